package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

func TestK24_SafeUnderConcurrency(t *testing.T) {
	for name, opts := range map[string][]breaker.Option{
		"default":       nil,
		"never trips":   {breaker.WithFailureThreshold(1 << 30)},
		"time window":   {breaker.WithTrip(breaker.FailureRate(0.9, 50, breaker.Last(time.Minute)))},
		"call window":   {breaker.WithTrip(breaker.FailureRate(0.9, 50, breaker.LastCalls(100)))},
		"max in flight": {breaker.WithMaxInFlight(10)},
		"slow calls":    {breaker.WithTrip(breaker.SlowCallRate(time.Hour, 0.5, 10, breaker.LastCalls(100)))},
		"user's trip":   {breaker.WithTrip(breaker.TripWhen(breaker.LastCalls(10), func(c breaker.Counts) bool { return c.Failures > 9 }))},
		"call hook":     {breaker.WithHooks(breaker.Hooks{Call: func(context.Context, breaker.CallEvent) {}})},
	} {
		t.Run(name, func(t *testing.T) {
			bothClocks(t, func(w *world) { hammer(w, w.circuit(append(opts, breaker.WithOpenTimeout(time.Millisecond))...)) })
		})
	}
}

// hammer makes 100 goroutines do 100 mixed things each, and checks that everything adds up.
func hammer(w *world, r *rig) {
	var finished, rejected, failures, ignored, panics atomic.Uint64
	count := func(err error) {
		if errors.Is(err, breaker.ErrOpen) || errors.Is(err, breaker.ErrTooManyInFlight) {
			rejected.Add(1)
			return
		}
		finished.Add(1)
		if err != nil {
			failures.Add(1)
		}
	}
	ctx := context.Background()
	one := func(i int) {
		switch i % 8 {
		case 0, 1:
			count(r.c.Run(ctx, func(context.Context) error { return nil }))
		case 2:
			count(r.c.Run(ctx, func(context.Context) error { return errBoom }))
		case 3:
			_, err := r.b.Do(ctx, func(context.Context) (int, error) { runtime.Gosched(); return 1, nil })
			count(err)
		case 4:
			p, err := r.c.Acquire(ctx)
			if err == nil {
				p.Done(nil)
				p.Done(errBoom)
			}
			count(err)
		case 5:
			if panicOf(func() {
				count(r.c.Run(ctx, func(context.Context) error { panic("boom") }))
			}) != nil {
				panics.Add(1)
				failures.Add(1)
				finished.Add(1)
			}
		case 6:
			ctx, cancel := context.WithCancel(ctx)
			err := r.c.Run(ctx, func(ctx context.Context) error { cancel(); return ctx.Err() })
			cancel()
			if errors.Is(err, context.Canceled) {
				ignored.Add(1)
				finished.Add(1)
				return
			}
			count(err)
		case 7:
			_, _ = r.c.State(), r.c.Ready()
			_ = r.c.Snapshot()
			if w.clk == nil {
				<-time.After(100 * time.Microsecond)
			}
		}
	}
	var all, looking sync.WaitGroup
	stop := make(chan struct{})
	looking.Go(func() { watch(r, stop) })
	for g := range 100 {
		all.Go(func() {
			for i := range 100 {
				one(g + i)
			}
		})
	}
	all.Wait()
	close(stop)
	looking.Wait()
	s := r.c.Snapshot()
	require.Equal(w, finished.Load(), s.Totals.Calls)
	require.Equal(w, failures.Load(), s.Totals.Failures)
	require.Equal(w, ignored.Load(), s.Totals.Ignored)
	require.Equal(w, panics.Load(), s.Totals.Panics)
	require.Equal(w, rejected.Load(), s.Totals.Rejected)
	require.Equal(w, s.Totals.Calls, s.Totals.Successes+s.Totals.Failures+s.Totals.Ignored)
	r.idle()
}

func TestE3_FiveTimeoutsSpareTheOthers(t *testing.T) {
	bubble(t, byDo, func(w *world) {
		r := w.circuit(breaker.WithTimeout(30 * time.Second))
		upstream := hang
		var inFlight atomic.Int64
		call := func() error {
			_, err := r.b.Do(context.Background(), func(ctx context.Context) (int, error) {
				r.ran.Add(1)
				inFlight.Add(1)
				defer inFlight.Add(-1)
				return upstream(ctx)
			})
			return err
		}
		var first sync.WaitGroup
		for range 5 {
			first.Go(func() { assert.ErrorIs(w, call(), context.DeadlineExceeded) })
		}
		w.at(30 * time.Second)
		first.Wait()
		r.state(breaker.Open)
		require.Equal(w, []string{"closed>open at 30s: threshold reached"}, r.steps())

		var others sync.WaitGroup
		for range 4995 {
			others.Go(func() { assert.ErrorIs(w, call(), breaker.ErrOpen) })
		}
		others.Wait()
		require.Equal(w, 30*time.Second, w.elapsed(), "rejections take no time")
		require.EqualValues(w, 5, r.ran.Load())
		require.Zero(w, inFlight.Load())
		r.idle()

		upstream = func(context.Context) (int, error) { return 1, nil }
		w.at(60 * time.Second)
		r.state(breaker.HalfOpen)
		require.NoError(w, call())
		r.state(breaker.HalfOpen)
		require.NoError(w, call())
		r.state(breaker.Closed)
		totals := r.c.Snapshot().Totals
		require.EqualValues(w, 7, totals.Calls)
		require.EqualValues(w, 5, totals.Failures)
		require.EqualValues(w, 4995, totals.Rejected)
		for range 100 {
			require.NoError(w, call())
		}
	})
}

// A circuit alone admits a first wave whole: nothing has failed yet.
func TestE3_FirstWave(t *testing.T) {
	for _, tc := range []struct {
		limit, admitted int
		late            uint64
	}{{0, 5000, 4995}, {100, 100, 95}} {
		t.Run(fmt.Sprint("MaxInFlight ", tc.limit), func(t *testing.T) {
			bubble(t, byDo, func(w *world) {
				r := w.circuit(breaker.WithTimeout(30*time.Second), breaker.WithMaxInFlight(tc.limit))
				var timeouts, refused atomic.Int64
				var all sync.WaitGroup
				for range 5000 {
					all.Go(func() {
						_, err := r.b.Do(context.Background(), hang)
						switch {
						case errors.Is(err, breaker.ErrTooManyInFlight):
							refused.Add(1)
						case errors.Is(err, context.DeadlineExceeded):
							timeouts.Add(1)
						}
					})
				}
				synctest.Wait()
				require.EqualValues(w, tc.admitted, r.c.Snapshot().InFlight)
				require.EqualValues(w, 5000-tc.admitted, refused.Load(), "rejected at once")
				w.at(30 * time.Second)
				all.Wait()
				require.EqualValues(w, tc.admitted, timeouts.Load())
				require.Equal(w, []string{"closed>open at 30s: threshold reached"}, r.steps())
				require.Equal(w, tc.late, r.c.Snapshot().Totals.Late)
				w.at(60 * time.Second)
				r.state(breaker.HalfOpen)
				r.idle()
			})
		})
	}
}

// Steady load of 100 callers a second: the attempt's own limit decides how many suffer.
func TestE3_SteadyLoad(t *testing.T) {
	for _, tc := range []struct {
		limit, opens time.Duration
		admitted     int64
	}{
		{30 * time.Second, 30_040 * time.Millisecond, 3005},
		{time.Second, 1_040 * time.Millisecond, 105},
	} {
		t.Run(tc.limit.String(), func(t *testing.T) {
			bubble(t, byDo, func(w *world) {
				r := w.circuit(breaker.WithTimeout(tc.limit))
				var admitted atomic.Int64
				var all sync.WaitGroup
				for w.elapsed() <= tc.opens+500*time.Millisecond {
					all.Go(func() {
						_, _ = r.b.Do(context.Background(), func(ctx context.Context) (int, error) {
							admitted.Add(1)
							return hang(ctx)
						})
					})
					w.add(10 * time.Millisecond)
				}
				all.Wait()
				require.Equal(w, []string{fmt.Sprintf("closed>open at %v: threshold reached", tc.opens)}, r.steps())
				// The caller and the fifth timeout of the same instant may come in either order.
				require.Contains(w, []int64{tc.admitted, tc.admitted - 1}, admitted.Load())
				require.Equal(w, uint64(admitted.Load()-5), r.c.Snapshot().Totals.Late)
				r.idle()
			})
		})
	}
}

// Each closed breaker had a goroutine, and no way to end it.
func TestFault_NoGoroutinePerCircuit(t *testing.T) {
	bubble(t, byDo, func(w *world) { // which ends only when every goroutine in it has
		before := runtime.NumGoroutine()
		for i := range 100 {
			c := breaker.Must(breaker.NewCircuit(fmt.Sprint(i), breaker.WithTrip(
				breaker.FailureRate(0.5, 5, breaker.Last(time.Second)), breaker.FailureCount(5, time.Second)), breaker.WithRamp(time.Second)))
			for range 5 {
				_ = c.Run(context.Background(), func(context.Context) error { return errBoom })
			}
			require.Equal(w, breaker.Open, c.State())
		}
		w.at(30 * time.Second)
		noMoreThan(w, before)
	})
}
