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
)

// BC-113.
func TestPassingCheckEarnsATrialOnly(t *testing.T) {
	bubble(t, byDo, func(w *world) {
		checks := 0
		r := w.r0(breaker.WithSuccessThreshold(2), breaker.WithHealthCheck(5*time.Second, func(context.Context) error { checks++; return nil }))
		r.fail(2)
		w.at(60 * time.Second)
		require.Zero(w, checks, "none while closed")
		require.EqualValues(w, 2, r.c.Snapshot().ConsecutiveFailures)
		r.fail(1)
		r.state(breaker.Open)
		w.at(65*time.Second - 1)
		r.state(breaker.Open)
		w.at(65 * time.Second)
		r.state(breaker.HalfOpen)
		require.Equal(w, 1, checks)
		require.Equal(w, "open>half-open at 1m5s: health check", r.steps()[1])
		probe := r.gate()
		w.at(80 * time.Second)
		require.Equal(w, 1, checks, "none while half-open")
		r.state(breaker.HalfOpen)
		probe.finish(nil)
		r.fail(1) // traffic says otherwise
		r.state(breaker.Open)
		w.at(85 * time.Second)
		r.state(breaker.HalfOpen)
		r.ok(2)
		r.state(breaker.Closed)
		require.EqualValues(w, 7, r.c.Snapshot().Totals.Calls, "checks are no calls")
	})
	t.Run("a failing one changes nothing", func(t *testing.T) {
		bubble(t, byDo, func(w *world) {
			checks := 0
			r := w.r0(breaker.WithHealthCheck(3*time.Second, func(context.Context) error { checks++; return errBoom }))
			r.trip()
			w.at(10*time.Second - 1)
			r.state(breaker.Open)
			require.Equal(w, 3, checks)
			w.at(time.Minute)
			require.Equal(w, 3, checks, "none once the circuit is due")
			r.ok(1)
			r.state(breaker.Closed)
		})
	})
	t.Run("one that panics, exits or hangs costs nothing else", func(t *testing.T) {
		for name, bad := range map[string]func(context.Context) error{
			"panics": func(context.Context) error { panic("check") },
			"exits":  func(context.Context) error { runtime.Goexit(); return nil },
			"hangs":  func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		} {
			t.Run(name, func(t *testing.T) {
				bubble(t, byDo, func(w *world) {
					var checks atomic.Int64
					r := w.r0(breaker.WithOpenTimeout(time.Hour), breaker.WithHealthCheck(time.Second, func(ctx context.Context) error {
						if checks.Add(1) < 3 {
							return bad(ctx)
						}
						return nil
					}))
					r.trip()
					w.at(20 * time.Second)
					r.state(breaker.HalfOpen)
					require.EqualValues(w, 3, checks.Load())
					r.ok(1)
					r.state(breaker.Closed)
				})
			})
		}
	})
}

// BC-115.
func TestChecksStartAndStop(t *testing.T) {
	bubble(t, byDo, func(w *world) { // which ends only when every goroutine has
		var checks atomic.Int64
		check := breaker.WithHealthCheck(time.Second, func(context.Context) error { checks.Add(1); return errBoom })
		closedFirst := w.r0(check, breaker.WithOpenTimeout(time.Hour))
		require.NoError(w, closedFirst.c.Close())
		require.NoError(w, closedFirst.c.Close())
		closedFirst.trip()
		w.at(10 * time.Second)
		require.Zero(w, checks.Load(), "closed before the first check")

		r := w.r0(check, breaker.WithOpenTimeout(time.Hour))
		r.trip()
		w.at(15*time.Second + time.Millisecond)
		require.EqualValues(w, 5, checks.Load())
		require.NoError(w, r.c.Close())
		w.at(time.Minute)
		require.EqualValues(w, 5, checks.Load())
		r.rejected()
	})
	t.Run("a check that was running when stopped changes nothing", func(t *testing.T) {
		for name, stop := range map[string]func(*rig) breaker.State{
			"closed":               func(r *rig) breaker.State { _ = r.c.Close(); return breaker.Open },
			"reset":                func(r *rig) breaker.State { r.c.Reset(); return breaker.Closed },
			"reset, tripped again": func(r *rig) breaker.State { r.c.Reset(); r.c.Trip(nil); return breaker.Open },
		} {
			t.Run(name, func(t *testing.T) {
				bubble(t, byDo, func(w *world) {
					running, finish := make(chan struct{}), make(chan struct{})
					first := true
					r := w.r0(breaker.WithOpenTimeout(time.Hour), breaker.WithHealthCheck(time.Second, func(context.Context) error {
						if first {
							first = false
							close(running)
							<-finish
							return nil
						}
						return errBoom
					}))
					r.trip()
					<-running
					want := stop(r)
					close(finish)
					w.add(2 * time.Second)
					r.state(want)
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
	bubble(t, byDo, func(w *world) {
		r := w.circuit(breaker.WithOpenTimeout(time.Hour), breaker.WithHealthCheck(10*time.Second, func(context.Context) error {
			<-time.After(25 * time.Second)
			return nil
		}, breaker.HealthTimeout(5*time.Second), breaker.HealthJitter(0)))
		r.c.Trip(nil)
		w.add(50 * time.Second)
		r.state(breaker.Open)
		require.NoError(w, r.c.Close())
		w.add(time.Minute)
	})
}
