package tests

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/breakertest"
)

// E1 step 4a, D04, D05, BC-127: the slots are the fleet's.
func TestShareProbesOfAFleet(t *testing.T) {
	for _, limit := range []int{1, 3} {
		for _, good := range []bool{true, false} {
			t.Run(fmt.Sprint(limit, good), func(t *testing.T) {
				breakertest.Everywhere(t, func(w *breakertest.World) {
					nodes := spreadFleet(w, 8, breaker.WithSuccessThreshold(limit), breaker.WithOpenTimeout(15*time.Second))
					nodes[0].C.Trip(nil)
					w.At(15 * time.Second)
					var all sync.WaitGroup
					gates := make([]*breakertest.Gate, 512)
					for i := range gates {
						all.Go(func() { gates[i] = nodes[i%8].Begin() })
					}
					all.Wait()
					var in []*breakertest.Gate
					for _, g := range gates {
						if g.Ran {
							in = append(in, g)
							continue
						}
						require.ErrorIs(w, <-g.Result, breaker.ErrTooManyProbes)
					}
					require.Len(w, in, limit)
					for _, g := range in {
						if good {
							g.Finish(nil)
						} else {
							g.Finish(breakertest.ErrBoom)
						}
					}
					if good {
						allIn(nodes, breaker.Closed)
						return
					}
					allIn(nodes, breaker.Open)
					w.At(30*time.Second - 1)
					nodes[3].Rejected()
					w.At(30 * time.Second)
					allIn(nodes, breaker.HalfOpen)
				})
			})
		}
	}
}

// A call that waits no longer leaves its slot to others; so does one whose hook ends its goroutine.
func TestShareCancelWhileWaiting(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		f := newFaulty(w, false)
		fl := newFleet(w, f, 2, breaker.WithSuccessThreshold(1))
		fl.nodes[0].C.Trip(nil)
		fl.sync()
		w.Add(30 * time.Second)
		f.set(func(op string) fault {
			if op == "acquire" {
				<-time.After(50 * time.Millisecond)
			}
			return fault{}
		})
		ctx, cancel := context.WithTimeout(w.Context(), 10*time.Millisecond)
		defer cancel()
		require.ErrorIs(w, fl.nodes[0].CallContext(ctx, nil), context.DeadlineExceeded)
		w.Add(100 * time.Millisecond)
		f.heal()
		fl.nodes[1].Succeeds(1)
		rest(w)
		fl.states(breaker.Closed)
		fl.nodes[0].Idle()
	})
}

// Q02, BC-113 on a fleet: a check that passes anywhere earns a probe everywhere, and closes nothing.
func TestShareHealthChecks(t *testing.T) {
	bothHubs(t, func(w *breakertest.World, f *faulty) {
		fl := &fleet{World: w, f: f}
		var healthy [2]atomic.Bool
		var checks [2]atomic.Int64
		for i := range 2 {
			fl.join(breaker.WithSuccessThreshold(1), breaker.WithHealthCheck(2*time.Second, func(context.Context) error {
				checks[i].Add(1)
				if healthy[i].Load() {
					return nil
				}
				return breakertest.ErrBoom
			}))
		}
		a, b := fl.nodes[0], fl.nodes[1]
		a.C.Trip(nil)
		fl.sync()
		fl.states(breaker.Open)
		w.Add(2 * time.Second)
		require.EqualValues(w, 1, checks[0].Load())
		require.EqualValues(w, 1, checks[1].Load())
		fl.states(breaker.Open)

		healthy[1].Store(true)
		w.Add(2 * time.Second)
		fl.states(breaker.HalfOpen)
		require.Equal(w, breaker.ReasonHealthCheck, b.Events.List()[1].Reason)
		require.Equal(w, breaker.ReasonRemote, a.Events.List()[1].Reason)
		ran := checks[0].Load() + checks[1].Load()
		w.Add(20 * time.Second)
		require.Equal(w, ran, checks[0].Load()+checks[1].Load(), "checks outside of an open period")
		fl.states(breaker.HalfOpen)
		a.Succeeds(1)
		rest(w)
		fl.states(breaker.Closed)

		// With the store away a good check is its own circuit's affair.
		healthy[1].Store(false)
		a.C.Trip(nil)
		fl.sync()
		f.all(fault{before: errStore})
		healthy[1].Store(true)
		w.Add(3 * time.Second)
		a.Is(breaker.Open)
		b.Is(breaker.HalfOpen)
		require.True(w, b.C.Snapshot().Shared.Alone)
		ran = checks[1].Load()
		w.Add(6 * time.Second)
		require.Equal(w, ran, checks[1].Load())
		f.heal()
		w.Add(6 * time.Second)
		fl.sync()
		w.Add(3 * time.Second) // back in step it is Open, and checked again
		fl.states(breaker.HalfOpen)
		require.False(w, b.C.Snapshot().Shared.Alone)
		a.Succeeds(1)
		rest(w)
		fl.states(breaker.Closed)
		require.NoError(w, a.C.Close())
		b.C.Trip(nil)
		_ = b.C.Sync(context.Background())
		ran = checks[0].Load()
		w.Add(10 * time.Second)
		require.Equal(w, ran, checks[0].Load(), "a check after Close")
	})
}

// After a recovery every circuit admits the share of the moment.
func TestShareRamp(t *testing.T) {
	breakertest.Injected(t, breakertest.ByRun, func(w *breakertest.World) {
		nodes := spreadFleet(w, 2, breaker.WithRamp(10*time.Second), breaker.WithSuccessThreshold(1))
		nodes[0].C.Trip(nil)
		w.At(30 * time.Second)
		nodes[1].Succeeds(1)
		allIn(nodes, breaker.Closed)
		for _, tc := range []struct {
			at       time.Duration
			from, to int
		}{{0, 0, 0}, {2 * time.Second, 19, 21}, {5 * time.Second, 49, 51}, {9 * time.Second, 89, 91}, {10 * time.Second, 100, 100}} {
			w.At(30*time.Second + tc.at)
			for i, r := range nodes {
				passed := 0
				for range 100 {
					if r.Call(nil) == nil {
						passed++
					}
				}
				require.GreaterOrEqual(w, passed, tc.from, "node %d at %v", i, tc.at)
				require.LessOrEqual(w, passed, tc.to, "node %d at %v", i, tc.at)
			}
		}
	})
}

// A dependency that asks to be left alone is, by all.
func TestShareOpenHint(t *testing.T) {
	bothHubs(t, func(w *breakertest.World, f *faulty) {
		fl := newFleet(w, f, 3, breaker.WithOpenHint(time.Minute), breaker.WithSuccessThreshold(1))
		a, b, c := fl.nodes[0], fl.nodes[1], fl.nodes[2]
		straggler := c.Gate()
		a.FailsWith(breakertest.Hint(50 * time.Second)) // it is the one that opens whose word counts
		fl.sync()
		for range 3 {
			a.Fails(1)
			fl.sync()
		}
		at := w.Elapsed()
		b.FailsWith(breakertest.Hint(2 * time.Hour))
		fl.sync()
		fl.states(breaker.Open)
		until := agree(fl.nodes)
		require.Equal(w, at+time.Minute, until)
		straggler.Finish(breakertest.Hint(2 * time.Hour))
		fl.sync()
		require.Equal(w, until, agree(fl.nodes))
		w.At(until)
		at = w.Elapsed()
		c.FailsWith(breakertest.Hint(40 * time.Second))
		fl.sync()
		require.Equal(w, at+40*time.Second, agree(fl.nodes))
		a.C.Reset()
		at = w.Elapsed()
		a.C.Trip(breakertest.Hint(45 * time.Second))
		fl.sync()
		require.Equal(w, at+45*time.Second, agree(fl.nodes))
	})
}

// The period of a fleet grows whoever opens it, and starts over after one open period in peace.
func TestShareOpenBackoff(t *testing.T) {
	for _, jitter := range []float64{0, 0.5} {
		t.Run(fmt.Sprint("jitter ", jitter), func(t *testing.T) {
			bothHubs(t, func(w *breakertest.World, f *faulty) {
				var opts []breaker.Option
				draw := 0.0
				opts = append(opts, breaker.WithOpenBackoff(2, 10*time.Minute, jitter), breaker.WithSuccessThreshold(1), breaker.WithRand(func() float64 { draw += 0.1; return draw }))
				fl := newFleet(w, f, 3, opts...)
				opens := func(r *breakertest.Rig, open func(), base time.Duration) {
					w.Helper()
					draw = 0
					at := w.Elapsed()
					open()
					fl.sync()
					fl.states(breaker.Open)
					period := agree(fl.nodes) - at
					require.GreaterOrEqual(w, period, base)
					require.LessOrEqual(w, float64(period), float64(base)*(1+jitter))
					if jitter == 0 {
						require.Equal(w, base, period)
					}
				}
				probe := func(r *breakertest.Rig) func() { return func() { r.Fails(1) } }
				opens(fl.nodes[0], func() { fl.nodes[0].C.Trip(nil) }, 30*time.Second)
				for i := range 3 {
					w.At(agree(fl.nodes))
					r := fl.nodes[(i+1)%3]
					opens(r, probe(r), 30*time.Second<<(i+1))
				}
				w.At(agree(fl.nodes))
				fl.nodes[2].Succeeds(1)
				fl.sync()
				w.Add(30*time.Second - time.Millisecond) // not quite in peace
				opens(fl.nodes[1], func() { fl.nodes[1].C.Trip(nil) }, 480*time.Second)
				w.At(agree(fl.nodes))
				opens(fl.nodes[0], probe(fl.nodes[0]), 10*time.Minute)
				w.At(agree(fl.nodes))
				fl.nodes[0].Succeeds(1)
				fl.sync()
				w.Add(30 * time.Second)
				opens(fl.nodes[2], func() { fl.nodes[2].C.Trip(nil) }, 30*time.Second)
				fl.nodes[1].C.Reset()
				fl.sync()
				opens(fl.nodes[2], func() { fl.nodes[2].C.Trip(nil) }, 30*time.Second)
			})
		})
	}
}

// BR-46: a context that has outlived its probe belongs to no probe. A call made with it asks for a slot as any other does.
func TestShareContextOfAnEarlierProbe(t *testing.T) {
	breakertest.BothClocks(t, func(w *breakertest.World) {
		nodes := spreadFleet(w, 2, breaker.WithSuccessThreshold(1))
		a, b := nodes[0], nodes[1]
		kept := w.Context()
		for range 2 {
			a.C.Trip(nil)
			w.Add(30 * time.Second)
			require.NoError(w, a.C.Run(kept, func(ctx context.Context) error {
				kept = ctx
				require.ErrorIs(w, b.Rejected(), breaker.ErrTooManyProbes, "the slot is taken for all")
				return nil
			}))
			allIn(nodes, breaker.Closed)
		}
	})
}
