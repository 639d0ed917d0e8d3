package tests

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/breakertest"
)

func TestShareStoreIsAway(t *testing.T) {
	awayHubs(t, func(w *breakertest.World, f *faulty, ft fault) {
		fl := newFleet(w, f, 2, breaker.WithSuccessThreshold(1), breaker.WithHalfOpenProbes(3))
		a, b := fl.nodes[0], fl.nodes[1]
		a.Fails(1)
		fl.sync()
		f.all(ft)

		for range 3 {
			fl.atMost(func() { a.Fails(1) })
		}
		w.Add(2 * time.Second) // it is known by now
		for a.C.State() == breaker.Closed && a.Ran.Load() < 20 {
			fl.atMost(func() { a.Fails(1) })
			w.Add(200 * time.Millisecond)
		}
		a.Is(breaker.Open)
		require.LessOrEqual(w, a.Ran.Load(), int64(6), "it trips on its own count, which may have begun at 0")
		require.True(w, a.C.Snapshot().Shared.Alone)
		b.Is(breaker.Closed)
		opened := w.Elapsed()

		fl.atMost(func() { a.Rejected() })
		until := a.C.Snapshot().Until.Sub(w.Start)
		require.LessOrEqual(w, until-opened, 30*time.Second)
		w.At(until - 1)
		fl.atMost(func() { a.Rejected() })
		w.At(until)
		fl.atMost(func() {
			g := a.Gate()
			require.ErrorIs(w, a.Rejected(), breaker.ErrTooManyProbes, "one probe, whatever the slots")
			g.Finish(nil)
		})
		a.Is(breaker.Closed)
		b.Succeeds(1)
		w.Add(2 * time.Second)
		errs := fl.storeErrors()
		require.NotEmpty(w, errs)
		require.LessOrEqual(w, len(errs), 2, "once for each circuit that has noticed: %v", errs)

		f.heal()
		w.Add(3 * time.Second)
		fl.sync()
		fl.sync()
		fl.states(breaker.Closed)
		for _, r := range fl.nodes {
			s := r.C.Snapshot().Shared
			require.True(w, s.Connected, "%+v", s)
			require.False(w, s.Alone, "%+v", s)
		}
		require.Equal(w, a.C.Snapshot().Epoch, b.C.Snapshot().Epoch)
		b.Succeeds(1)
		fl.sync()
		b.Fails(2) // and they are one again
		a.Fails(3)
		w.Add(time.Second)
		fl.states(breaker.Open)
	})
}

// An open circuit stays open until its own deadline, then every node probes by itself, once.
func TestShareOpenWithoutTheStore(t *testing.T) {
	awayHubs(t, func(w *breakertest.World, f *faulty, ft fault) {
		fl := newFleet(w, f, 3, breaker.WithSuccessThreshold(1), breaker.WithHalfOpenProbes(5), breaker.WithProbeLease(10*time.Second))
		fl.nodes[0].C.Trip(nil)
		fl.sync()
		fl.states(breaker.Open)
		until := fl.nodes[1].C.Snapshot().Until.Sub(w.Start)
		f.all(ft)
		w.At(until - 1)
		for _, r := range fl.nodes {
			fl.atMost(func() { r.Rejected() })
		}
		w.At(until)
		var gates []*breakertest.Gate
		for _, r := range fl.nodes {
			fl.atMost(func() { gates = append(gates, r.Gate()) })
			fl.atMost(func() { require.ErrorIs(w, r.Rejected(), breaker.ErrTooManyProbes) })
		}
		fl.atMost(func() { gates[0].Finish(nil) })
		fl.atMost(func() { gates[1].Finish(breakertest.ErrBoom) })
		fl.nodes[0].Is(breaker.Closed)
		fl.nodes[1].Is(breaker.Open)
		fl.nodes[2].Is(breaker.HalfOpen)
		w.Add(2 * time.Second)
		f.heal()
		w.Add(3 * time.Second)
		fl.sync()
		// The ledger is where it was, Open and due, or further, where the last answers were lost: nobody's opinion has
		// moved it.
		gates[2].Finish(nil)
		w.Add(time.Minute)
		for range 3 {
			for _, r := range fl.nodes {
				_ = r.Call(nil)
			}
			w.Add(11 * time.Second)
		}
		fl.sync()
		fl.states(breaker.Closed)
		require.Equal(w, fl.nodes[0].C.Snapshot().Epoch, fl.nodes[2].C.Snapshot().Epoch)
	})
}

// A circuit can be made while the store is away.
func TestShareConstructor(t *testing.T) {
	awayHubs(t, func(w *breakertest.World, f *faulty, ft fault) {
		fl := &fleet{World: w, f: f}
		f.all(ft)
		fl.atMost(func() { fl.join() })
		fl.atMost(func() { fl.join() })
		a := fl.nodes[0]
		fl.atMost(func() { a.Succeeds(3) })
		rest(fl.World)
		require.NotEmpty(w, fl.storeErrors())
		require.Zero(w, a.C.Snapshot().Shared.Epoch)
		f.heal()
		w.Add(2 * time.Second)
		fl.sync()
		a.Fails(3)
		fl.nodes[1].Fails(2)
		w.Add(time.Second)
		fl.states(breaker.Open)
	})
}

// An overlay ends by its own probe, or when the fleet moves on; the others never hear of it.
func TestShareOverlayIsNotPushed(t *testing.T) {
	for _, moves := range []bool{false, true} {
		t.Run(fmt.Sprint("the fleet moves on: ", moves), func(t *testing.T) {
			bothHubs(t, func(w *breakertest.World, f *faulty) {
				fl := newFleet(w, f, 2, breaker.WithSuccessThreshold(1))
				a, b := fl.nodes[0], fl.nodes[1]
				b.Fails(1)
				fl.sync()
				f.all(fault{before: errStore})
				for range 6 {
					_ = a.Call(breakertest.ErrBoom)
					w.Add(200 * time.Millisecond)
				}
				a.Is(breaker.Open)
				until := a.C.Snapshot().Until.Sub(w.Start)
				epoch := a.C.Snapshot().Epoch
				f.heal()
				w.Add(3 * time.Second)
				fl.sync()
				a.Is(breaker.Open)
				b.Is(breaker.Closed)
				require.True(w, a.C.Snapshot().Shared.Alone)
				require.True(w, a.C.Snapshot().Shared.Connected)
				require.Equal(w, epoch, a.C.Snapshot().Epoch)
				if moves {
					b.C.Reset()
					fl.sync()
					a.Is(breaker.Closed)
					require.Greater(w, a.C.Snapshot().Epoch, epoch)
				} else {
					w.At(until - 1)
					a.Rejected()
					w.At(until)
					a.Succeeds(1)
				}
				fl.states(breaker.Closed)
				require.False(w, a.C.Snapshot().Shared.Alone)
				require.Len(w, b.Steps(), 0)
				fl.sync()
				b.Succeeds(1)
				fl.sync()
				b.Fails(2)
				a.Fails(3)
				w.Add(time.Second)
				fl.states(breaker.Open)
			})
		})
	}
}

// BC-121 where there is a goroutine: protected all the same, and told once.
func TestShareStoreDownFromTheStart(t *testing.T) {
	bothHubs(t, func(w *breakertest.World, f *faulty) {
		f.all(fault{before: errStore})
		fl := newFleet(w, f, 1, breaker.WithFailureThreshold(3), breaker.WithSuccessThreshold(1), breaker.WithOpenTimeout(90*time.Second))
		a := fl.nodes[0]
		for range 10 {
			err := a.Call(breakertest.ErrBoom)
			require.True(w, errors.Is(err, breakertest.ErrBoom) || errors.Is(err, breaker.ErrOpen), "%v", err)
			require.NotErrorIs(w, err, errStore)
			rest(w)
		}
		a.Is(breaker.Open)
		require.EqualValues(w, 3, a.Ran.Load())
		errs := fl.storeErrors()
		require.Len(w, errs, 1)
		require.ErrorIs(w, errs[0], errStore)
		s := a.C.Snapshot().Shared
		require.True(w, s.Alone)
		require.False(w, s.Connected)
		require.Contains(w, s.LastError, errStore.Error())
		require.Zero(w, s.Epoch)
		require.Zero(w, s.Exchanged)

		w.At(60 * time.Second)
		f.heal()
		w.Add(2 * time.Second)
		other := w.Circuit(breaker.WithStore(f), breaker.WithFailureThreshold(3), breaker.WithSuccessThreshold(1), breaker.WithOpenTimeout(90*time.Second))
		other.Succeeds(1)
		other.Fails(1) // the ledger says closed
		require.NoError(w, other.C.Sync(context.Background()))
		w.At(90*time.Second - 1)
		if a.C.Snapshot().Shared.Epoch == 0 {
			a.Rejected()
		}
		w.At(91 * time.Second)
		a.Succeeds(1)
		a.Fails(1)
		require.NoError(w, a.C.Sync(context.Background()))
		require.True(w, a.C.Snapshot().Shared.Connected)
		require.Equal(w, a.C.Snapshot().Epoch, other.C.Snapshot().Epoch)
		require.Empty(w, fl.storeErrors())
	})
}

// Trip during an outage, recovered locally before it ends.
func TestShareTripInAnOutageThatIsOver(t *testing.T) {
	bothHubs(t, func(w *breakertest.World, f *faulty) {
		fl := newFleet(w, f, 2, breaker.WithSuccessThreshold(1))
		fl.sync()
		f.all(fault{before: errStore})
		a, b := fl.nodes[0], fl.nodes[1]
		_ = a.C.Sync(context.Background())
		a.C.Trip(nil)
		rest(w)
		a.Is(breaker.Open)
		w.Add(30 * time.Second)
		a.Succeeds(1)
		a.Is(breaker.Closed)
		w.Add(time.Second)
		f.heal()
		w.Add(5 * time.Second)
		a.Succeeds(1)
		fl.sync()
		b.Is(breaker.Closed)
		a.Is(breaker.Closed)
	})
}

// Trip during an outage: still open at its end: how long, how many openings.
func TestShareTripInAnOutageThatOutlivesIt(t *testing.T) {
	bothHubs(t, func(w *breakertest.World, f *faulty) {
		fl := newFleet(w, f, 2, breaker.WithSuccessThreshold(1), breaker.WithOpenBackoff(2, time.Hour, 0))
		fl.sync()
		f.all(fault{before: errStore})
		a, b := fl.nodes[0], fl.nodes[1]
		_ = a.C.Sync(context.Background())
		a.C.Trip(nil)
		rest(w)
		a.Is(breaker.Open)
		w.Add(20 * time.Second)
		f.heal()
		w.Add(5 * time.Second)
		fl.sync()
		b.Is(breaker.Open)
		w.Add(35 * time.Second)
		b.Is(breaker.HalfOpen)
	})
}

// A Reset during an outage says nothing about an opening that came after it.
func TestShareResetThatAnOpeningHasOvertaken(t *testing.T) {
	bothHubs(t, func(w *breakertest.World, f *faulty) {
		fl := newFleet(w, f, 1)
		a := fl.nodes[0]
		a.Fails(1)
		fl.sync()
		f.all(fault{before: errStore})
		_ = a.C.Sync(context.Background())
		a.Fails(1)
		w.Add(time.Second)
		a.C.Reset()
		rest(w)
		for range 6 {
			_ = a.Call(breakertest.ErrBoom)
		}
		rest(w)
		a.Is(breaker.Open)
		f.heal()
		w.Add(5 * time.Second)
		a.Is(breaker.Open)
		w.Add(time.Minute)
		a.Is(breaker.HalfOpen)
	})
}

// Of the operator's words during an outage, the fleet hears the last.
func TestShareManyOrdersInAnOutage(t *testing.T) {
	for _, last := range []breaker.State{breaker.Open, breaker.Closed} {
		bothHubs(t, func(w *breakertest.World, f *faulty) {
			fl := newFleet(w, f, 2)
			a, b := fl.nodes[0], fl.nodes[1]
			a.Fails(1)
			fl.sync()
			f.all(fault{before: errStore})
			for range 50 {
				a.C.Trip(breakertest.ErrBoom)
				a.C.Reset()
			}
			if last == breaker.Open {
				a.C.Trip(breakertest.ErrBoom)
			}
			rest(w)
			a.Is(last)
			f.heal()
			before := f.count()["move"]
			w.Add(5 * time.Second)
			fl.sync()
			fl.states(last)
			require.LessOrEqual(w, f.count()["move"]-before, 3)
			require.LessOrEqual(w, len(b.Steps()), 2)
		})
	}
}

// onlyReads is a store that can be read and takes nothing: a full one, a replica.
func onlyReads(op string) fault {
	if op == "read" {
		return fault{}
	}
	return fault{before: errStore}
}

// A circuit whose store takes nothing closes by its own probes, and stays closed while the store can only be read. When the
// store takes something again, it is back.
func TestShareReturnStoreThatOnlyReads(t *testing.T) {
	for _, took := range []time.Duration{0, 700 * time.Millisecond, 1200 * time.Millisecond} {
		for _, threshold := range []int{1, 2} {
			for _, halfOpen := range []bool{false, true} {
				t.Run(fmt.Sprintf("probes of %v, %d to close, half-open %v", took, threshold, halfOpen), func(t *testing.T) {
					breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
						f := newFaulty(w, false)
						fl := newFleet(w, f, 1, breaker.WithOpenTimeout(300*time.Millisecond), breaker.WithFailureThreshold(3),
							breaker.WithSuccessThreshold(threshold), breaker.WithProbeLease(5*time.Second))
						a := fl.nodes[0]
						a.Fails(3)
						fl.sync()
						a.Is(breaker.Open)
						w.Add(400 * time.Millisecond)
						if halfOpen {
							g := a.Gate()
							f.set(onlyReads)
							g.Finish(nil)
						}
						f.set(onlyReads)
						closed := 0
						for end := w.Elapsed() + 30*time.Second; w.Elapsed() < end; {
							_, _ = a.Way.Call(a, w.Context(), func(context.Context) (int, error) {
								w.Add(took)
								return 0, nil
							})
							if a.C.State() == breaker.Closed {
								closed++
							} else {
								require.Zero(w, closed, a.Steps())
							}
							w.Add(10 * time.Millisecond)
							rest(w)
						}
						require.Len(w, a.Steps(), 3, "open, half-open, closed: %v", a.Steps())
						require.True(w, a.C.Snapshot().Shared.Alone)
						require.LessOrEqual(w, len(fl.storeErrors()), 2, "of the verdict, and of the slot that it asks for later")
						f.count()
						w.Add(16 * time.Second)
						require.InDelta(w, 2, f.count()["acquire"], 1)

						f.heal()
						for end := w.Elapsed() + 10*time.Second; w.Elapsed() < end; {
							_ = a.Call(nil)
							w.Add(10 * time.Millisecond)
							rest(w)
						}
						a.Is(breaker.Closed)
						require.False(w, a.C.Snapshot().Shared.Alone)
						require.Empty(w, fl.storeErrors())
						other := fl.join()
						other.Is(breaker.Closed)
					})
				})
			}
		}
	}
}

// After an outage circuits that closed by themselves are back as soon as the store is read.
func TestShareReturnAfterAnOutage(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		f := newFaulty(w, false)
		fl := newFleet(w, f, 3, breaker.WithOpenTimeout(time.Second), breaker.WithSuccessThreshold(1))
		fl.nodes[0].C.Trip(nil)
		fl.sync()
		fl.states(breaker.Open)
		f.all(fault{before: errStore})
		w.Add(time.Second)
		closed := fl.nodes[:2]
		for _, r := range closed {
			r.Succeeds(1)
			r.Is(breaker.Closed)
		}
		w.Add(time.Second)
		f.heal()
		w.Add(600 * time.Millisecond)
		rest(w)
		for _, r := range fl.nodes {
			require.False(w, r.C.Snapshot().Shared.Alone)
			require.Equal(w, fl.nodes[0].C.Snapshot().Epoch, r.C.Snapshot().Epoch)
		}
		fl.nodes[2].Succeeds(1)
		w.Add(time.Second)
		rest(w)
		fl.states(breaker.Closed)
	})
}

// CH-12. The store goes away, and an operation is still waiting for its answer when the threshold is reached: the circuit
// opens when that is given up, without a further failure.
func TestShareThresholdReachedBeforeTheOutageIsKnown(t *testing.T) {
	const limit = 125 * time.Millisecond // for an operation of a faulty store that ignores its context
	sync := func(w *breakertest.World, c *breaker.Circuit) { go func() { _ = c.Sync(w.Context()) }() }
	waits := map[string]struct {
		begin  func(w *breakertest.World, c, other *breaker.Circuit)
		within time.Duration
	}{
		"its own Sync":        {func(w *breakertest.World, c, _ *breaker.Circuit) { sync(w, c) }, limit},
		"the poll":            {func(w *breakertest.World, _, _ *breaker.Circuit) { w.At(time.Second) }, limit},
		"another name's Sync": {func(w *breakertest.World, _, other *breaker.Circuit) { sync(w, other) }, 2 * limit},
	}
	for name, policy := range map[string]breaker.Option{
		"in a row":   breaker.WithFailureThreshold(3),
		"in a time":  breaker.WithFailureWindow(time.Minute),
		"rate":       breaker.WithTrip(breaker.FailureRate(0.5, 4, breaker.Last(time.Minute))),
		"user's own": breaker.WithTrip(breaker.TripWhen(breaker.Last(time.Minute), func(c breaker.Counts) bool { return c.Failures >= 3 })),
	} {
		for what, wait := range waits {
			t.Run(name+", "+what, func(t *testing.T) {
				breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
					f := newFaulty(w, false)
					made := func(name string) *breaker.Circuit {
						c := breaker.Must(breaker.NewCircuit(name, breaker.WithStore(f), breaker.WithFailureThreshold(3), policy))
						w.AtEnd(func() { _ = c.Close() })
						return c
					}
					c, other, bystander := made("c"), made("other"), made("bystander")
					call := func(err error) { _ = c.Run(w.Context(), func(context.Context) error { return err }) }
					call(nil)
					require.NoError(w, c.Sync(w.Context()))
					w.At(time.Second - time.Millisecond)
					f.all(fault{wedges: true})
					wait.begin(w, c, other)
					w.Add(time.Millisecond)
					call(breakertest.ErrBoom)
					call(breakertest.ErrBoom)
					w.Add(time.Millisecond)
					call(breakertest.ErrBoom)
					require.Equal(w, breaker.Closed, c.State(), "the store may still answer")
					w.Add(wait.within)
					require.Equal(w, breaker.Open, c.State())
					require.True(w, c.Snapshot().Shared.Alone)
					w.Add(time.Second)
					require.Equal(w, breaker.Closed, other.State(), "it has no failures")
					require.Equal(w, breaker.Closed, bystander.State(), "nor has this one")
				})
			})
		}
	}
}
