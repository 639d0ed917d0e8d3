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

func (s *setBack) all(replies []breaker.Reply) []breaker.Reply {
	for i := range replies {
		replies[i].Ledger = s.ledger(replies[i].Ledger)
	}
	return replies
}

func (s *setBack) Report(ctx context.Context, r []breaker.Report) []breaker.Reply {
	return s.all(s.faulty.Report(ctx, r))
}

func (s *setBack) Read(ctx context.Context, names []string) []breaker.Reply {
	return s.all(s.faulty.Read(ctx, names))
}

func (s *setBack) Move(ctx context.Context, m breaker.Move) (breaker.Ledger, error) {
	l, err := s.faulty.Move(ctx, m)
	return s.ledger(l), err
}

func (s *setBack) Watch(w breaker.Watcher) func() { return s.faulty.Watch(&setBackWatcher{w, s}) }

type setBackWatcher struct {
	breaker.Watcher
	s *setBack
}

func (w *setBackWatcher) Changed(name string, l breaker.Ledger) {
	w.Watcher.Changed(name, w.s.ledger(l))
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
