package breaker_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

func TestBC37_SettlingTwiceCountsOnce(t *testing.T) {
	bothClocks(t, func(w *world) {
		r := w.r0(breaker.WithSuccessThreshold(2), breaker.WithHalfOpenProbes(1))
		r.trip()
		w.at(10 * time.Second)
		p := r.acquire()
		var twice sync.WaitGroup
		twice.Go(func() { p.Done(nil) })
		twice.Go(func() { p.Done(nil) })
		twice.Wait()
		require.EqualValues(w, 1, r.c.Snapshot().ConsecutiveSuccesses)
		r.state(breaker.HalfOpen)
		first := r.gate()
		require.ErrorIs(w, r.rejected(), breaker.ErrTooManyProbes)
		p.Done(errBoom) // a third time, on somebody else's probe
		p.Settle(breaker.Failure, errBoom)
		r.state(breaker.HalfOpen)
		require.EqualValues(w, 1, r.c.Snapshot().Probes)
		first.finish(nil)
		r.state(breaker.Closed)
		r.idle()
	})
}

func TestK20_TwoStepUse(t *testing.T) {
	bothClocks(t, func(w *world) {
		r := w.circuit()
		var permits []*breaker.Permit
		for range 5 {
			permits = append(permits, r.acquire())
		}
		require.EqualValues(w, 5, r.c.Snapshot().InFlight)
		for i, p := range permits {
			r.state(breaker.Closed)
			if i%2 == 0 {
				p.Done(errBoom)
			} else {
				inGoroutine(func() { p.Settle(breaker.Failure, errBoom) })
			}
		}
		r.state(breaker.Open)
		_, err := r.c.Acquire(w.Context())
		require.ErrorIs(w, err, breaker.ErrOpen)
		w.at(30 * time.Second)
		a, b := r.acquire(), r.acquire()
		a.Done(nil)
		b.Settle(breaker.Success, nil)
		r.state(breaker.Closed)
		r.idle()
	})
}

func TestK21_OnlyTheFirstSettlementCounts(t *testing.T) {
	settle := map[string]func(*breaker.Permit, breaker.Outcome){
		"Done": func(p *breaker.Permit, o breaker.Outcome) {
			if o == breaker.Success {
				p.Done(nil)
				return
			}
			p.Done(errBoom)
		},
		"Settle": func(p *breaker.Permit, o breaker.Outcome) { p.Settle(o, errBoom) },
	}
	for first, settleFirst := range settle {
		for second, settleSecond := range settle {
			t.Run(first+" then "+second, func(t *testing.T) {
				bothClocks(t, func(w *world) {
					r := w.circuit()
					p := r.acquire()
					settleFirst(p, breaker.Failure)
					settleSecond(p, breaker.Failure)
					settleSecond(p, breaker.Success)
					require.EqualValues(w, 1, r.c.Snapshot().ConsecutiveFailures)
					require.EqualValues(w, 1, r.c.Snapshot().Totals.Calls)
					r.idle()

					q := r.acquire()
					settleFirst(q, breaker.Success)
					settleSecond(q, breaker.Failure)
					require.Zero(w, r.c.Snapshot().ConsecutiveFailures)
					require.EqualValues(w, 2, r.c.Snapshot().Totals.Calls)
					r.idle()
				})
			})
		}
	}
	t.Run("of many at once", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			r := w.circuit()
			p := r.acquire()
			var all sync.WaitGroup
			for range 50 {
				all.Go(func() { p.Done(errBoom) })
			}
			all.Wait()
			require.EqualValues(w, 1, r.c.Snapshot().Totals.Failures)
			r.idle()
		})
	})
	t.Run("of no permit at all", func(t *testing.T) {
		var p *breaker.Permit
		p.Done(nil)
		p.Settle(breaker.Failure, nil)
	})
}

func TestK22_ContextAlreadyDoneTakesNothing(t *testing.T) {
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	expired, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancel()
	caused, cancelWith := context.WithCancelCause(context.Background())
	cancelWith(errClient)
	for _, ctx := range []context.Context{cancelled, expired, caused} {
		everywhere(t, func(w *world) {
			r := w.circuit(breaker.WithSuccessThreshold(1))
			check := func(want breaker.State) {
				ran, before := r.ran.Load(), r.c.Snapshot()
				require.Equal(w, ctx.Err(), r.callCtx(ctx, nil))
				require.Equal(w, ran, r.ran.Load(), "the function ran")
				after := r.c.Snapshot()
				require.Equal(w, before.Totals, after.Totals)
				require.Equal(w, before.InFlight, after.InFlight)
				require.Equal(w, before.Probes, after.Probes)
				r.state(want)
			}
			check(breaker.Closed)
			r.trip()
			check(breaker.Open)
			w.at(30 * time.Second)
			check(breaker.HalfOpen)
			require.Len(w, r.steps(), 1, "such a call moves nothing")
			probe := r.gate()
			check(breaker.HalfOpen)
			probe.finish(nil)
			r.state(breaker.Closed)
			for _, m := range []breaker.Mode{breaker.ForcedOpen, breaker.ForcedClosed, breaker.Shadow} {
				r.c.SetMode(m)
				check(breaker.Closed)
			}
		})
	}
}

func TestPermitAbort(t *testing.T) {
	c := breaker.Must(breaker.NewCircuit("c"))
	ctx := context.Background()
	for range 2 {
		var p breaker.Permit
		require.NoError(t, c.AcquireInto(ctx, &p))
		require.Same(t, c, p.Circuit())
		require.Equal(t, ctx, p.Context())
		p.Abort()
		p.Abort() // only the first settlement counts
		p.Done(nil)
	}
	n := c.Snapshot()
	require.EqualValues(t, 2, n.Totals.Failures)
	require.EqualValues(t, 2, n.Totals.Panics)
	require.EqualValues(t, 2, n.Totals.Calls)
	require.EqualValues(t, 2, n.ConsecutiveFailures)
	require.Zero(t, n.InFlight)
	(*breaker.Permit)(nil).Abort()
	new(breaker.Permit).Abort()
	require.Nil(t, new(breaker.Permit).Circuit())
	require.Nil(t, new(breaker.Permit).Context())
}

// A panic after the caller's cancel is one all the same.
func TestPermitAbortAfterCancel(t *testing.T) {
	c := breaker.Must(breaker.NewCircuit("c"))
	ctx, cancel := context.WithCancel(context.Background())
	p, err := c.Acquire(ctx)
	require.NoError(t, err)
	cancel()
	p.Abort()
	require.EqualValues(t, 1, c.Snapshot().Totals.Failures)
}
