package tests

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/breakertest"
)

// What a call on a closed circuit, or on an open one, needs of its store: nothing.
func TestShareCallsDoNotUseTheStore(t *testing.T) {
	bothHubs(t, func(w *breakertest.World, f *faulty) {
		fl := newFleet(w, f, 2)
		a := fl.nodes[0]
		rest(fl.World)
		f.count()
		a.Succeeds(10_000)
		require.Zero(w, f.total(), "for admissions and successes on a closed circuit")
		a.C.Trip(nil)
		fl.sync()
		fl.states(breaker.Open)
		f.count()
		for range 10_000 {
			a.Rejected()
		}
		require.Zero(w, f.total(), "for rejections on an open circuit")
		f.all(fault{panics: true})
		for range 100 {
			a.Rejected()
		}
	})
}

// What has been counted arrives once or is counted as lost.
func TestShareNothingIsCountedTwice(t *testing.T) {
	awayHubs(t, func(w *breakertest.World, f *faulty, ft fault) {
		fl := newFleet(w, f, 2, breaker.WithTrip(breaker.FailureRate(0.9, 1000, breaker.Last(time.Hour))))
		a, b := fl.nodes[0], fl.nodes[1]
		calls := func(n int) {
			for range n {
				a.Fails(1)
				b.Succeeds(2)
				w.Add(20 * time.Millisecond)
			}
		}
		calls(10)
		fl.sync()
		f.all(ft)
		calls(100)
		f.heal()
		calls(10)
		w.Add(3 * time.Second)
		fl.sync()
		fl.sync()
		produced, lost := uint64(0), uint64(0)
		for _, r := range fl.nodes {
			s := r.C.Snapshot()
			produced += s.Totals.Calls
			lost += s.Shared.Lost
			require.Zero(w, s.Shared.Pending, "%+v", s.Shared)
		}
		require.EqualValues(w, 360, produced)
		f.mu.Lock()
		n := f.applied
		f.mu.Unlock()
		applied := n.Successes + n.Failures
		require.LessOrEqual(w, applied, produced)
		require.LessOrEqual(w, produced, applied+lost, "what is neither there nor known to be lost: %+v", n)
		if ft.after == nil && ft.replies == nil {
			require.Equal(w, produced, applied+lost)
		}
		require.Equal(w, n.Failures, a.C.Snapshot().Counts.Failures)
		require.Equal(w, n.Successes, b.C.Snapshot().Counts.Successes)
	})
}

// Successes cost nothing by default, and little where a window counts them.
func TestShareHubFlushes(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		f := newFaulty(w, false)
		run := newFleet(w, f, 1).nodes[0]
		rest(w)
		f.count()
		for range 1000 {
			run.Succeeds(100)
			w.Add(time.Millisecond)
		}
		n := f.count()
		require.Zero(w, n["report"])
		require.LessOrEqual(w, n["read"], 2)

		rate := newFleet(w, f, 1, breaker.WithStore(f, breaker.FlushEvery(100*time.Millisecond)), breaker.WithTrip(breaker.FailureRate(0.5, 20, breaker.Last(10*time.Second)))).nodes[0]
		rest(w)
		f.count()
		for range 1000 {
			rate.Succeeds(10)
			w.Add(time.Millisecond)
		}
		reports := f.count()["report"]
		require.GreaterOrEqual(w, reports, 2, "a busy window is looked at once in a 20th of it")
		require.LessOrEqual(w, reports, 12, "one in 100ms")
	})
}

// Failures near the threshold are reported at once, and a whole fleet knows within a round trip.
func TestShareHubUrgency(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		f := newFaulty(w, false)
		fl := newFleet(w, f, 3)
		w.Add(time.Second)
		for i := range 5 {
			fl.nodes[i%3].Fails(1)
		}
		w.Add(20 * time.Millisecond)
		fl.states(breaker.Open)
	})
}

// BC-135: what counts is the store's time, whenever a circuit was made.
func TestShareBucketsAgree(t *testing.T) {
	for name, trip := range map[string]breaker.TripCondition{
		"count": breaker.FailureCount(4, 10*time.Second),
		"rate":  breaker.FailureRate(1, 4, breaker.Last(10*time.Second)),
	} {
		t.Run(name, func(t *testing.T) {
			for _, calls := range []int{3, 4} {
				bothHubs(t, func(w *breakertest.World, f *faulty) {
					fl := newFleet(w, f, 1, breaker.WithTrip(trip))
					w.At(3700 * time.Millisecond)
					fl.join(breaker.WithTrip(trip))
					for i := range calls {
						w.At(4*time.Second + time.Duration(i)*100*time.Millisecond)
						fl.states(breaker.Closed)
						fl.nodes[i%2].Fails(1)
						fl.sync()
					}
					if calls == 4 {
						w.Add(time.Second)
						fl.states(breaker.Open)
						return
					}
					count := func(want uint64) {
						w.Helper()
						for _, r := range fl.nodes {
							require.NoError(w, r.C.Sync(context.Background()))
							require.Equal(w, want, r.C.Snapshot().Counts.Failures, "at %v", w.Elapsed())
						}
					}
					count(3)
					w.At(13400 * time.Millisecond)
					count(3)
					w.At(16 * time.Second)
					count(0)
					fl.nodes[1].Fails(3)
					fl.sync()
					fl.states(breaker.Closed)
				})
			}
		})
	}
}

// A word that somebody wanted the turn is heard once.
func TestShareSyncAndTraffic(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		f := newFaulty(w, false)
		fl := newFleet(w, f, 1)
		a := fl.nodes[0]
		n := 0
		f.set(func(op string) fault {
			if n++; op == "report" && n < 1000 {
				<-time.After(20 * time.Millisecond)
			}
			return fault{}
		})
		done := make(chan error, 1)
		go func() { done <- a.C.Sync(context.Background()) }()
		w.Add(5 * time.Millisecond)
		a.Fails(1)
		w.Add(50 * time.Millisecond)
		a.Fails(1)
		w.Add(time.Second)
		select {
		case err := <-done:
			require.NoError(w, err)
		default:
			require.Fail(w, "Sync has not returned")
		}
		require.Less(w, n, 12)
	})
}

// Move keeps failing, report works: Sync must end.
func TestShareSyncWhileMovesFail(t *testing.T) {
	bothHubs(t, func(w *breakertest.World, f *faulty) {
		fl := newFleet(w, f, 1)
		f.only("move", fault{before: errStore})
		fl.nodes[0].C.Trip(nil)
		rest(fl.World)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- fl.nodes[0].C.Sync(ctx) }()
		n := 0
		f.set(func(op string) fault {
			n++
			if n > 1000 {
				return fault{}
			}
			if op == "move" {
				return fault{before: errStore}
			}
			return fault{}
		})
		<-done
		require.Less(w, n, 100)
	})
}

// The first word of a store on an empty ledger: Reset voids what is pending.
func TestShareResetOfAnEmptyLedger(t *testing.T) {
	bothHubs(t, func(w *breakertest.World, f *faulty) {
		r := newFleet(w, f, 1).nodes[0]
		g := r.Gate()
		r.C.Reset()
		require.NoError(w, r.C.Sync(context.Background()))
		g.Finish(breakertest.ErrBoom)
		s := r.C.Snapshot()
		require.EqualValues(w, 1, s.Totals.Late)
		require.Zero(w, s.ConsecutiveFailures)
	})
}
