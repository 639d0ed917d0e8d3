package breaker_test

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/breakertest"
)

// BC-113.
func TestPassingCheckEarnsATrialOnly(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		checks := 0
		r := w.R0(breaker.WithSuccessThreshold(2), breaker.WithHealthCheck(5*time.Second, func(context.Context) error { checks++; return nil }))
		r.Fails(2)
		w.At(60 * time.Second)
		require.Zero(w, checks, "none while closed")
		require.EqualValues(w, 2, r.C.Snapshot().ConsecutiveFailures)
		r.Fails(1)
		r.Is(breaker.Open)
		w.At(65*time.Second - 1)
		r.Is(breaker.Open)
		w.At(65 * time.Second)
		r.Is(breaker.HalfOpen)
		require.Equal(w, 1, checks)
		require.Equal(w, "open>half-open at 1m5s: health check", r.Steps()[1])
		probe := r.Gate()
		w.At(80 * time.Second)
		require.Equal(w, 1, checks, "none while half-open")
		r.Is(breaker.HalfOpen)
		probe.Finish(nil)
		r.Fails(1) // traffic says otherwise
		r.Is(breaker.Open)
		w.At(85 * time.Second)
		r.Is(breaker.HalfOpen)
		r.Succeeds(2)
		r.Is(breaker.Closed)
		require.EqualValues(w, 7, r.C.Snapshot().Totals.Calls, "checks are no calls")
	})
	t.Run("a failing one changes nothing", func(t *testing.T) {
		breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
			checks := 0
			r := w.R0(breaker.WithHealthCheck(3*time.Second, func(context.Context) error { checks++; return breakertest.ErrBoom }))
			r.Trip()
			w.At(10*time.Second - 1)
			r.Is(breaker.Open)
			require.Equal(w, 3, checks)
			w.At(time.Minute)
			require.Equal(w, 3, checks, "none once the circuit is due")
			r.Succeeds(1)
			r.Is(breaker.Closed)
		})
	})
	t.Run("one that panics, exits or hangs costs nothing else", func(t *testing.T) {
		for name, bad := range map[string]func(context.Context) error{
			"panics": func(context.Context) error { panic("check") },
			"exits":  func(context.Context) error { runtime.Goexit(); return nil },
			"hangs":  func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		} {
			t.Run(name, func(t *testing.T) {
				breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
					var checks atomic.Int64
					r := w.R0(breaker.WithOpenTimeout(time.Hour), breaker.WithHealthCheck(time.Second, func(ctx context.Context) error {
						if checks.Add(1) < 3 {
							return bad(ctx)
						}
						return nil
					}))
					r.Trip()
					w.At(20 * time.Second)
					r.Is(breaker.HalfOpen)
					require.EqualValues(w, 3, checks.Load())
					r.Succeeds(1)
					r.Is(breaker.Closed)
				})
			})
		}
	})
}

// BC-115.
func TestChecksStartAndStop(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) { // which ends only when every goroutine has
		var checks atomic.Int64
		check := breaker.WithHealthCheck(time.Second, func(context.Context) error { checks.Add(1); return breakertest.ErrBoom })
		closedFirst := w.R0(check, breaker.WithOpenTimeout(time.Hour))
		require.NoError(w, closedFirst.C.Close())
		require.NoError(w, closedFirst.C.Close())
		closedFirst.Trip()
		w.At(10 * time.Second)
		require.Zero(w, checks.Load(), "closed before the first check")

		r := w.R0(check, breaker.WithOpenTimeout(time.Hour))
		r.Trip()
		w.At(15*time.Second + time.Millisecond)
		require.EqualValues(w, 5, checks.Load())
		require.NoError(w, r.C.Close())
		w.At(time.Minute)
		require.EqualValues(w, 5, checks.Load())
		r.Rejected()
	})
	t.Run("a check that was running when stopped changes nothing", func(t *testing.T) {
		for name, stop := range map[string]func(*breakertest.Rig) breaker.State{
			"closed":               func(r *breakertest.Rig) breaker.State { _ = r.C.Close(); return breaker.Open },
			"reset":                func(r *breakertest.Rig) breaker.State { r.C.Reset(); return breaker.Closed },
			"reset, tripped again": func(r *breakertest.Rig) breaker.State { r.C.Reset(); r.C.Trip(nil); return breaker.Open },
		} {
			t.Run(name, func(t *testing.T) {
				breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
					running, finish := make(chan struct{}), make(chan struct{})
					first := true
					r := w.R0(breaker.WithOpenTimeout(time.Hour), breaker.WithHealthCheck(time.Second, func(context.Context) error {
						if first {
							first = false
							close(running)
							<-finish
							return nil
						}
						return breakertest.ErrBoom
					}))
					r.Trip()
					<-running
					want := stop(r)
					close(finish)
					w.Add(2 * time.Second)
					r.Is(want)
				})
			})
		}
	})
	t.Run("nothing runs while closed", func(t *testing.T) {
		defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
		c := breaker.Must(breaker.NewCircuit("test", breaker.WithHealthCheck(time.Millisecond, func(context.Context) error { return nil })))
		require.Equal(t, breaker.Closed, c.State())
		c.Trip(nil)
		require.NoError(t, c.Close())
	})
}

// A health check that said yes long after its time was up let calls pass.
func TestLateHealthChecksSayNothing(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		r := w.Circuit(breaker.WithOpenTimeout(time.Hour), breaker.WithHealthCheck(10*time.Second, func(context.Context) error {
			<-time.After(25 * time.Second)
			return nil
		}, breaker.HealthTimeout(5*time.Second), breaker.HealthJitter(0)))
		r.C.Trip(nil)
		w.Add(50 * time.Second)
		r.Is(breaker.Open)
		require.NoError(w, r.C.Close())
		w.Add(time.Minute)
	})
}

// However seldom a circuit is checked, nothing of its checks is left when the open period has ended.
func TestChecksEndWithTheOpenPeriod(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		before := breakertest.InBubble()
		r := w.R0(breaker.WithOpenTimeout(30*time.Second), breaker.WithHealthCheck(time.Hour, func(context.Context) error {
			w.Error("the circuit was checked after its open period")
			return nil
		}))
		r.Trip()
		w.At(30*time.Second - 1)
		require.Equal(w, before+1, breakertest.InBubble())
		w.At(30 * time.Second)
		require.Equal(w, before, breakertest.InBubble(), "though nobody has called")
		r.Fails(1)
		r.Is(breaker.Open)
		require.Equal(w, before+1, breakertest.InBubble(), "the next period has its own")
		w.Add(30 * time.Second)
		require.Equal(w, before, breakertest.InBubble())
		w.Add(24 * time.Hour)
	})
}

func TestChecksKeepNoDroppedCircuitAlive(t *testing.T) {
	breakertest.Guard(t, breakertest.Patience, func() {
		before := runtime.NumGoroutine()
		clk := breakertest.NewClock()
		dropped := make(chan struct{})
		func() {
			c := breaker.Must(breaker.NewCircuit("dropped", breaker.WithClock(clk), breaker.WithOpenTimeout(24*time.Hour),
				breaker.WithHealthCheck(time.Hour, func(context.Context) error { return breakertest.ErrBoom })))
			c.Trip(nil)
			runtime.AddCleanup(c, func(dropped chan struct{}) { close(dropped) }, dropped)
		}()
		for collected := false; !collected; {
			runtime.GC()
			select {
			case <-dropped:
				collected = true
			default:
			}
		}
		for runtime.NumGoroutine() > before {
			clk.Add(time.Hour) // at its next check the goroutine finds nothing to check
			runtime.Gosched()
		}
	})
}
