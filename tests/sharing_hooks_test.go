package tests

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/breakertest"
)

// Goexit in a Call hook during a probe: moving stays up
func TestShareGoexitInACallHookOfAProbe(t *testing.T) {
	bothHubs(t, func(w *breakertest.World, f *faulty) {
		exit := false
		fl := newFleet(w, f, 1, breaker.WithSuccessThreshold(2), breaker.WithHooks(breaker.Hooks{Call: func(context.Context, breaker.CallEvent) {
			if exit {
				runtime.Goexit()
			}
		}}))
		fl.join(breaker.WithSuccessThreshold(2))
		a, b := fl.nodes[0], fl.nodes[1]
		a.C.Trip(nil)
		fl.sync()
		w.Add(30 * time.Second)
		exit = true
		breakertest.InGoroutine(func() { _ = a.Call(nil) })
		exit = false
		b.Succeeds(1)
		rest(fl.World)
		b.Is(breaker.Closed)
		a.Is(breaker.Closed)
	})
}

// Goexit in a StateChange hook when asking
func TestShareGoexitInAStateChangeHook(t *testing.T) {
	bothHubs(t, func(w *breakertest.World, f *faulty) {
		var exit atomic.Bool
		fl := newFleet(w, f, 1, breaker.WithSuccessThreshold(3), breaker.WithHooks(breaker.Hooks{StateChange: func(breaker.Transition) {
			if exit.CompareAndSwap(true, false) {
				runtime.Goexit()
			}
		}}))
		a := fl.nodes[0]
		a.C.Trip(nil)
		fl.sync()
		w.Add(30 * time.Second)
		exit.Store(true)
		breakertest.InGoroutine(func() { _ = a.Call(nil) })
		synctest.Wait() // until the hooks have been told
		exit.Store(false)
		rest(fl.World)
		a.Succeeds(1)
		g := a.Gate()
		rest(fl.World)
		require.EqualValues(w, 1, a.C.Snapshot().Probes)
		g.Finish(nil)
	})
}

func TestShareSyncInTripWhen(t *testing.T) {
	bothHubs(t, func(w *breakertest.World, f *faulty) {
		var r *breakertest.Rig
		n := 0
		fl := newFleet(w, f, 1, breaker.WithTrip(breaker.TripWhen(breaker.Last(time.Minute), func(c breaker.Counts) bool {
			n++
			if n < 1000 {
				_ = r.C.Sync(context.Background())
			}
			return c.Failures > 2
		})))
		r = fl.nodes[0]
		r.Fails(1)
		rest(fl.World)
		require.Less(w, n, 10)
	})
}

// A report of successes alone is no reason to ask a trip function.
func TestShareTripWhenIsAskedAfterFailuresOnly(t *testing.T) {
	bothHubs(t, func(w *breakertest.World, f *faulty) {
		var asked atomic.Int64
		fl := newFleet(w, f, 2, breaker.WithTrip(breaker.TripWhen(breaker.Last(time.Minute), func(n breaker.Counts) bool {
			asked.Add(1)
			return n.Successes == 4 && n.Failures == 1
		})))
		for _, r := range fl.nodes {
			r.Succeeds(2)
			require.NoError(w, r.C.Sync(context.Background()))
		}
		rest(fl.World)
		require.Zero(w, asked.Load())
		fl.nodes[0].Fails(1)
		require.NoError(w, fl.nodes[0].C.Sync(context.Background()))
		rest(fl.World)
		require.NotZero(w, asked.Load())
		for _, r := range fl.nodes {
			r.Is(breaker.Open)
		}
	})
}

// BC-137: hooks may ask everything, and act.
func TestShareHooksMayAsk(t *testing.T) {
	bothHubs(t, func(w *breakertest.World, f *faulty) {
		fl := &fleet{World: w, f: f}
		var told [2]atomic.Int64
		var closed atomic.Int64
		var tripped atomic.Bool
		look := func(i int) {
			if i >= len(fl.nodes) {
				return // being made
			}
			c := fl.nodes[i].C
			told[i].Add(1)
			_, _, _, _ = c.State(), c.Ready(), c.Config(), c.Name()
			s := c.Snapshot()
			_ = s.String()
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = c.Sync(ctx)
			for name := range c.Circuits() {
				_ = name
			}
		}
		for i := range 2 {
			fl.join(breaker.WithSuccessThreshold(1), breaker.WithOpenTimeout(10*time.Second), breaker.WithHooks(breaker.Hooks{
				StateChange: func(e breaker.Transition) {
					if s := fl.nodes[i].C.Snapshot(); s.Epoch < e.Epoch {
						w.Errorf("node %d is told of epoch %d in %d", i, e.Epoch, s.Epoch)
					}
					look(i)
					if e.To == breaker.Closed && closed.Add(1) == 2 { // both have been told: a state that lasts no time may be missed
						fl.nodes[i].C.Trip(breakertest.ErrClient)
						tripped.Store(true)
					}
				},
				Call:       func(context.Context, breaker.CallEvent) { look(i) },
				Reject:     func(context.Context, breaker.RejectEvent) { look(i) },
				StoreError: func(error) { look(i) },
			}))
		}
		a, b := fl.nodes[0], fl.nodes[1]
		a.Fails(3)
		_ = b.Call(breakertest.ErrBoom)
		_ = b.Call(breakertest.ErrBoom)
		w.Add(time.Second)
		fl.states(breaker.Open)
		a.Rejected()
		w.Add(10 * time.Second)
		b.Succeeds(1)
		w.Add(time.Second)
		fl.states(breaker.Open) // by the hook
		require.True(w, tripped.Load())
		f.all(fault{before: errStore})
		_ = a.C.Sync(context.Background())
		w.Add(time.Second)
		f.heal()
		w.Add(20 * time.Second)
		a.Succeeds(1)
		w.Add(time.Second)
		fl.states(breaker.Closed)
		for i, r := range fl.nodes {
			require.Greater(w, told[i].Load(), int64(5))
			var last uint64
			for _, e := range r.Events.List() {
				require.Greater(w, e.Epoch, last)
				last = e.Epoch
			}
			require.Len(w, r.Steps(), 6, "%v", r.Steps())
			r.Idle()
		}
	})
}
