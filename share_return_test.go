package breaker_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// setBack is a store whose clock can be set back.
type setBack struct {
	*faulty
	by atomic.Int64 // milliseconds
}

func (s *setBack) ledger(l breaker.Ledger) breaker.Ledger {
	l.Clock -= uint64(s.by.Load())
	return l
}

func (s *setBack) all(replies []breaker.StoreReply) []breaker.StoreReply {
	for i := range replies {
		replies[i].Ledger = s.ledger(replies[i].Ledger)
	}
	return replies
}

func (s *setBack) Report(ctx context.Context, r []breaker.StoreReport) []breaker.StoreReply {
	return s.all(s.faulty.Report(ctx, r))
}

func (s *setBack) Read(ctx context.Context, names []string) []breaker.StoreReply {
	return s.all(s.faulty.Read(ctx, names))
}

func (s *setBack) Move(ctx context.Context, m breaker.StoreMove) (breaker.Ledger, error) {
	l, err := s.faulty.Move(ctx, m)
	return s.ledger(l), err
}

func (s *setBack) Watch(w breaker.StoreWatcher) func() { return s.faulty.Watch(&setBackWatcher{w, s}) }

type setBackWatcher struct {
	breaker.StoreWatcher
	s *setBack
}

func (w *setBackWatcher) Changed(name string, l breaker.Ledger) {
	w.StoreWatcher.Changed(name, w.s.ledger(l))
}

// setBackFleet is two circuits on such a store.
func setBackFleet(w *world, timeout time.Duration, opts ...breaker.Option) (s *setBack, fl *fleet) {
	s = &setBack{faulty: newFaulty(w, false)}
	s.timeout = timeout
	fl = &fleet{world: w, f: s.faulty}
	for range 2 {
		fl.nodes = append(fl.nodes, w.circuit(append([]breaker.Option{breaker.WithStore(s)}, opts...)...))
	}
	return s, fl
}

// Successes end a run of failures, wherever they were seen and whatever the store's clock says.
func TestShareReturnClockSetBack(t *testing.T) {
	for _, by := range []time.Duration{0, 10 * time.Millisecond, 5 * time.Second, time.Hour} {
		for _, other := range []int{0, 1} {
			t.Run(fmt.Sprintf("%v, success of node %d", by, other), func(t *testing.T) {
				bubble(t, byDo, func(w *world) {
					s, fl := setBackFleet(w, time.Hour) // an answer may be old
					fails, succeeds := fl.nodes[0], fl.nodes[other]
					alternate := func(n int) {
						for range n {
							fails.fail(1)
							w.add(300 * time.Millisecond)
							w.rest()
							succeeds.ok(1)
							w.add(300 * time.Millisecond)
							w.rest()
						}
					}
					alternate(5)
					s.by.Store(by.Milliseconds())
					alternate(12)
					fl.states(breaker.Closed)
					require.NoError(w, fails.c.Sync(context.Background()))
					fails.fail(5)
					w.add(time.Second)
					w.rest()
					fl.states(breaker.Open)
				})
			})
		}
	}
}

// A ledger that nobody can follow does not keep a circuit from opening.
func TestShareReturnClockSetBackTooFar(t *testing.T) {
	bubble(t, byDo, func(w *world) {
		s, fl := setBackFleet(w, time.Hour)
		fl.nodes[0].ok(1)
		require.NoError(w, fl.nodes[0].c.Sync(context.Background()))
		s.by.Store((25 * time.Hour).Milliseconds())
		fl.nodes[0].fail(5)
		w.add(time.Second)
		w.rest()
		fl.nodes[0].state(breaker.Open)
	})
}

// What was pushed long ago does not roll the view back, however long it was on its way.
func TestShareReturnLatePush(t *testing.T) {
	bubble(t, byDo, func(w *world) {
		f := newFaulty(w, false)
		fl := newFleet(w, f, 1)
		a := fl.nodes[0]
		f.pushes.set(false, true)
		a.fail(1)
		fl.sync()
		w.add(time.Millisecond)
		a.ok(1)
		fl.sync()
		w.add(900 * time.Millisecond) // no operation takes so long
		f.pushes.release(nil)
		w.rest()
		require.Zero(w, a.c.Snapshot().Counts.ConsecutiveFailures)
	})
}

// A server that takes over empty gets the ledger back, though its clock is behind.
func TestShareReturnEmptyServerWhoseClockIsBehind(t *testing.T) {
	bubble(t, byDo, func(w *world) {
		s, fl := setBackFleet(w, 100*time.Millisecond, breaker.WithOpenTimeout(time.Minute))
		fl.nodes[0].c.Trip(nil)
		fl.sync()
		fl.states(breaker.Open)
		w.add(time.Second)
		s.wipe()
		s.by.Store(time.Hour.Milliseconds())
		w.add(3 * time.Second)
		w.rest()
		fl.nodes = append(fl.nodes, w.circuit(breaker.WithStore(s)))
		fl.states(breaker.Open)
	})
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
					bubble(t, byDo, func(w *world) {
						f := newFaulty(w, false)
						fl := newFleet(w, f, 1, breaker.WithOpenTimeout(300*time.Millisecond), breaker.WithFailureThreshold(3),
							breaker.WithSuccessThreshold(threshold), breaker.WithProbeLease(5*time.Second))
						a := fl.nodes[0]
						a.fail(3)
						fl.sync()
						a.state(breaker.Open)
						w.add(400 * time.Millisecond)
						if halfOpen {
							g := a.gate()
							f.set(onlyReads)
							g.finish(nil)
						}
						f.set(onlyReads)
						closed := 0
						for end := w.elapsed() + 30*time.Second; w.elapsed() < end; {
							_, _ = a.way.call(a, w.Context(), func(context.Context) (int, error) {
								w.add(took)
								return 0, nil
							})
							if a.c.State() == breaker.Closed {
								closed++
							} else {
								require.Zero(w, closed, a.steps())
							}
							w.add(10 * time.Millisecond)
							w.rest()
						}
						require.Len(w, a.steps(), 3, "open, half-open, closed: %v", a.steps())
						require.True(w, a.c.Snapshot().Shared.Alone)
						require.LessOrEqual(w, len(fl.storeErrors()), 2, "of the verdict, and of the slot that it asks for later")
						f.count()
						w.add(16 * time.Second)
						require.InDelta(w, 2, f.count()["acquire"], 1)

						f.heal()
						for end := w.elapsed() + 10*time.Second; w.elapsed() < end; {
							_ = a.call(nil)
							w.add(10 * time.Millisecond)
							w.rest()
						}
						a.state(breaker.Closed)
						require.False(w, a.c.Snapshot().Shared.Alone)
						require.Empty(w, fl.storeErrors())
						other := fl.join()
						other.state(breaker.Closed)
					})
				})
			}
		}
	}
}

// After an outage circuits that closed by themselves are back as soon as the store is read.
func TestShareReturnAfterAnOutage(t *testing.T) {
	bubble(t, byDo, func(w *world) {
		f := newFaulty(w, false)
		fl := newFleet(w, f, 3, breaker.WithOpenTimeout(time.Second), breaker.WithSuccessThreshold(1))
		fl.nodes[0].c.Trip(nil)
		fl.sync()
		fl.states(breaker.Open)
		f.all(fault{before: errStore})
		w.add(time.Second)
		closed := fl.nodes[:2]
		for _, r := range closed {
			r.ok(1)
			r.state(breaker.Closed)
		}
		w.add(time.Second)
		f.heal()
		w.add(600 * time.Millisecond)
		w.rest()
		for _, r := range fl.nodes {
			require.False(w, r.c.Snapshot().Shared.Alone)
			require.Equal(w, fl.nodes[0].c.Snapshot().Epoch, r.c.Snapshot().Epoch)
		}
		fl.nodes[2].ok(1)
		w.add(time.Second)
		w.rest()
		fl.states(breaker.Closed)
	})
}
