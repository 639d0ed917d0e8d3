package tests

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/breakertest"
	"github.com/breakerkit/breaker/store"
)

// callFailing makes a failing call that may be rejected.
func callFailing(r *breakertest.Rig) { _ = r.Call(breakertest.ErrBoom) }

// A store that has lost everything gets it back, with higher epochs.
func TestShareWipe(t *testing.T) {
	for _, state := range []breaker.State{breaker.Closed, breaker.HalfOpen, breaker.Open} {
		t.Run(state.String(), func(t *testing.T) {
			bothHubs(t, func(w *breakertest.World, f *faulty) {
				fl := newFleet(w, f, 3, breaker.WithSuccessThreshold(1))
				a, b, c := fl.nodes[0], fl.nodes[1], fl.nodes[2]
				a.C.Trip(nil)
				fl.sync()
				switch state {
				case breaker.Closed:
					a.C.Reset()
					fl.sync()
				case breaker.HalfOpen:
					w.Add(30 * time.Second)
					g := a.Gate()
					defer g.Finish(nil)
					rest(fl.World)
				case breaker.Open:
				}
				fl.states(state)
				epoch := b.C.Snapshot().Epoch
				w.Add(3 * time.Second)
				f.wipe()
				w.Add(time.Millisecond)
				before := b.C.Snapshot().Until
				if state != breaker.HalfOpen {
					callFailing(b)
				}
				_ = b.C.Sync(context.Background())
				w.Add(3 * time.Second)
				fl.sync()
				if state == breaker.HalfOpen { // comes back as a due Open
					_ = b.Call(nil)
					w.Add(time.Second)
					fl.sync()
					fl.states(breaker.Closed)
				} else {
					fl.states(state)
				}
				require.Equal(w, a.C.Snapshot().Epoch, b.C.Snapshot().Epoch)
				require.Equal(w, c.C.Snapshot().Epoch, b.C.Snapshot().Epoch)
				if state == breaker.Open {
					require.Greater(w, b.C.Snapshot().Epoch, epoch)
					require.WithinDuration(w, before, c.C.Snapshot().Until, 5*time.Millisecond)
					w.At(before.Sub(w.Start) + 5*time.Millisecond)
					c.Succeeds(1)
					rest(fl.World)
				}
				w.Add(time.Second)
				fl.states(breaker.Closed)
			})
		})
	}
}

// Impossible ledgers change nothing, and are told of once.
func TestShareGarbage(t *testing.T) {
	for name, spoil := range map[string]func(*breaker.Ledger){
		"an epoch years ahead":   func(l *breaker.Ledger) { l.Epoch = l.Clock + 3*365*24*3600*1000 },
		"the highest epoch":      func(l *breaker.Ledger) { l.Epoch = 1<<64 - 1 },
		"clock and epoch":        func(l *breaker.Ledger) { l.Epoch, l.Clock = 1<<63, 1<<64-1 },
		"an unknown state":       func(l *breaker.Ledger) { l.State, l.Epoch = 77, l.Epoch+1 },
		"negative durations":     func(l *breaker.Ledger) { l.Age, l.Remaining, l.RetryAfter = -1<<63, -1<<63, -1<<63 },
		"huge durations":         func(l *breaker.Ledger) { l.Age, l.Remaining, l.RetryAfter = 1<<63-1, 1<<63-1, 1<<63-1 },
		"a lower epoch":          func(l *breaker.Ledger) { l.Epoch = min(l.Epoch, 7) },
		"no epoch":               func(l *breaker.Ledger) { *l = breaker.Ledger{Clock: l.Clock} },
		"nothing":                func(l *breaker.Ledger) { *l = breaker.Ledger{} },
		"too many slots granted": func(l *breaker.Ledger) { l.Granted = 1 << 30 },
		"negative slots":         func(l *breaker.Ledger) { l.Granted, l.Slots = -5, -5 },
		"always applied":         func(l *breaker.Ledger) { l.Applied = true },
		"never applied":          func(l *breaker.Ledger) { l.Applied = false },
		"huge counts": func(l *breaker.Ledger) {
			l.Counts = breaker.Counts{Successes: 1<<64 - 1, Failures: 1<<64 - 1, ConsecutiveFailures: 0}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bothHubs(t, func(w *breakertest.World, f *faulty) {
				fl := newFleet(w, f, 2, breaker.WithSuccessThreshold(1))
				a := fl.nodes[0]
				a.C.Reset()
				fl.sync()
				f.all(fault{replies: func(r []breaker.StoreReply) []breaker.StoreReply {
					for i := range r {
						spoil(&r[i].Ledger)
					}
					return r
				}})
				ops := 0
				for i := range 100 {
					_ = a.Call(map[bool]error{true: breakertest.ErrBoom}[i%3 != 0])
					w.Add(50 * time.Millisecond)
					ops += f.total()
				}
				a.C.Trip(nil)
				w.Add(time.Second)
				a.C.OfferProbe()
				_ = a.Call(nil)
				a.C.Reset()
				w.Add(time.Second)
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				go func() { _ = a.C.Sync(ctx) }()
				w.Add(time.Second)
				cancel()
				ops += f.total()
				require.Less(w, ops, 5000, "operations")
				s := a.C.Snapshot()
				require.False(w, s.State == breaker.Open && s.Until.Sub(w.Now()) > time.Hour, "%v", s.Until)
				errs := fl.storeErrors()
				require.Less(w, len(errs), 100)

				f.heal()
				w.Add(time.Minute)
				for range 3 {
					for _, r := range fl.nodes {
						_ = r.Call(nil)
					}
					w.Add(31 * time.Second)
				}
				fl.sync()
				fl.states(breaker.Closed)
			})
		})
	}
}

// A store whose clock is behind says when it is due: until then calls are rejected, not held.
func TestShareStoreClockIsBehind(t *testing.T) {
	for name, behind := range map[string]time.Duration{"a nanosecond": 1, "a millisecond": time.Millisecond, "10s": 10 * time.Second, "far": 29 * time.Second} {
		t.Run(name, func(t *testing.T) {
			breakertest.Injected(t, breakertest.ByDo, func(w *breakertest.World) {
				other := clock.NewMock()
				other.Set(w.Start)
				m := store.NewMemory(store.WithClock(other))
				r := w.Circuit(breaker.WithStore(m), breaker.WithSuccessThreshold(1))
				r.Trip()
				w.At(30 * time.Second)
				other.Set(w.Start.Add(30*time.Second - behind))
				ctx, cancel := context.WithTimeout(w.Context(), 2*time.Second)
				defer cancel()
				require.ErrorIs(w, r.CallContext(ctx, nil), breaker.ErrOpen)
				w.Add(max(behind, time.Millisecond))
				other.Set(w.Start.Add(30 * time.Second))
				require.NoError(w, r.CallContext(ctx, nil))
				r.Is(breaker.Closed)
			})
		})
	}
}

// ErrLedger on move with a lasting order: hot loop
func TestShareBrokenLedgerIsNotAskedAllTheTime(t *testing.T) {
	bothHubs(t, func(w *breakertest.World, f *faulty) {
		fl := newFleet(w, f, 1)
		n := 0
		f.set(func(op string) fault {
			n++
			if n > 5000 {
				return fault{}
			}
			if op == "move" {
				return fault{before: breaker.ErrLedger}
			}
			return fault{}
		})
		fl.nodes[0].C.Trip(nil)
		w.Add(time.Second)
		require.Less(w, n, 200)
	})
}

func TestShareForeignStays(t *testing.T) {
	bothHubs(t, func(w *breakertest.World, f *faulty) {
		fl := newFleet(w, f, 1)
		b := fl.join(breaker.WithFailureThreshold(7))
		a := fl.nodes[0]
		a.Fails(1)
		fl.sync()
		b.Fails(1)
		fl.sync()
		require.True(w, b.C.Snapshot().Shared.Foreign)
		a.Fails(1)
		fl.sync()
		w.Add(3 * time.Second)
		require.True(w, b.C.Snapshot().Shared.Foreign)
		a.Succeeds(1)
		a.Fails(1)
		rest(fl.World)
		require.True(w, b.C.Snapshot().Shared.Foreign)
	})
}

// BC-126: a ledger is kept as long as it describes anything, whoever reads it.
func TestShareEntriesOutliveWhatTheyDescribe(t *testing.T) {
	breakertest.Injected(t, breakertest.ByDo, func(w *breakertest.World) {
		m := store.NewMemory(store.WithClock(w.Clk))
		opts := []breaker.Option{breaker.WithStore(m), breaker.WithOpenTimeout(300 * time.Hour), breaker.WithProbeLease(120 * time.Hour), breaker.WithSuccessThreshold(1)}
		fresh := func() *breakertest.Rig { return w.Circuit(opts...) }
		fresh().Trip()
		for _, h := range []time.Duration{61, 100, 299} {
			w.At(h * time.Hour)
			r := fresh()
			r.Rejected()
			require.Equal(w, 300*time.Hour, r.C.Snapshot().Until.Sub(w.Start))
			require.Empty(w, r.Steps())
		}
		w.At(300 * time.Hour)
		g := fresh().Gate()
		w.Add(120*time.Hour - 1)
		r := fresh()
		require.ErrorIs(w, r.Rejected(), breaker.ErrTooManyProbes)
		w.Add(1)
		second := fresh().Gate() // the lease has ended
		g.Finish(nil)            // and counts all the same
		fresh().Is(breaker.Closed)
		second.Finish(breakertest.ErrBoom)
		fresh().Is(breaker.Closed)

		// A run of any spacing is kept for a day, and every report renews it.
		fresh().Fails(1)
		w.Add(20 * time.Hour)
		fresh().Fails(1)
		w.Add(20 * time.Hour)
		require.EqualValues(w, 2, fresh().C.Snapshot().ConsecutiveFailures)

		windowed := func() *breakertest.Rig {
			return w.Circuit(breaker.WithStore(store.NewMemory(store.WithClock(w.Clk))), breaker.WithTrip(breaker.FailureCount(3, 100*time.Hour)))
		}
		r = windowed()
		r.Fails(2)
		w.Add(99 * time.Hour)
		require.NoError(w, r.C.Sync(context.Background()))
		require.EqualValues(w, 2, r.C.Snapshot().Counts.Failures+uint64(0))
		r.Fails(1)
		r.Is(breaker.Open)
	})
}

func syncAll(nodes []*breakertest.Rig) {
	nodes[0].Helper()
	for range 2 {
		for _, r := range nodes {
			require.NoError(r, r.C.Sync(context.Background()))
		}
		rest(nodes[0].World)
	}
}

// BC-129: what a process decided before it was stopped does not undo what came since.
func TestShareOldDecisions(t *testing.T) {
	setup := func(t *testing.T, f func(w *breakertest.World, a, b *breakertest.Rig, la *line)) {
		breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
			lines, nodes := processes(w, 2, breaker.WithSuccessThreshold(1), breaker.WithHalfOpenProbes(2), breaker.WithProbeLease(10*time.Minute))
			nodes[0].C.Reset()
			syncAll(nodes)
			f(w, nodes[0], nodes[1], lines[0])
		})
	}
	after := func(w *breakertest.World, a, b *breakertest.Rig, want breaker.State) {
		w.Helper()
		rest(w)
		syncAll([]*breakertest.Rig{a, b})
		a.Is(want)
		b.Is(want)
		agree([]*breakertest.Rig{a, b})
		var last uint64
		for _, r := range []*breakertest.Rig{a, b} {
			last = 0
			for _, e := range r.Events.List() {
				require.Greater(w, e.Epoch, last)
				last = e.Epoch
			}
		}
	}
	t.Run("close", func(t *testing.T) {
		setup(t, func(w *breakertest.World, a, b *breakertest.Rig, la *line) {
			a.C.Trip(nil)
			syncAll([]*breakertest.Rig{a, b})
			w.At(30 * time.Second)
			good, bad := a.Gate(), b.Gate()
			la.hold("settle")
			good.Release <- nil
			require.Equal(w, "settle", <-la.held)
			bad.Finish(breakertest.ErrBoom)
			b.Is(breaker.Open)
			until := b.C.Snapshot().Until
			w.Add(5 * time.Second)
			la.letGo()
			require.NoError(w, <-good.Result)
			after(w, a, b, breaker.Open)
			require.Equal(w, until, a.C.Snapshot().Until)
			a.Rejected()
		})
	})
	t.Run("open", func(t *testing.T) {
		setup(t, func(w *breakertest.World, a, b *breakertest.Rig, la *line) {
			la.hold("move")
			a.Fails(5)
			require.Equal(w, "move", <-la.held)
			b.Succeeds(1) // ends the run that the decision rests on
			require.NoError(w, b.C.Sync(context.Background()))
			la.letGo()
			after(w, a, b, breaker.Closed)
			require.Empty(w, b.Steps())
		})
	})
	t.Run("open after a Reset", func(t *testing.T) {
		setup(t, func(w *breakertest.World, a, b *breakertest.Rig, la *line) {
			la.hold("move")
			a.Fails(5)
			require.Equal(w, "move", <-la.held)
			b.C.Reset()
			require.NoError(w, b.C.Sync(context.Background()))
			la.letGo()
			after(w, a, b, breaker.Closed)
			require.Empty(w, a.Steps())
			require.Zero(w, a.C.Snapshot().ConsecutiveFailures)
		})
	})
	t.Run("results after a Reset", func(t *testing.T) {
		setup(t, func(w *breakertest.World, a, b *breakertest.Rig, la *line) {
			la.hold("report")
			a.Fails(4)
			require.Equal(w, "report", <-la.held)
			b.C.Reset()
			require.NoError(w, b.C.Sync(context.Background()))
			la.letGo()
			w.Add(time.Second)
			b.Fails(1)
			after(w, a, b, breaker.Closed)
			require.EqualValues(w, 1, a.C.Snapshot().ConsecutiveFailures)
		})
	})
	t.Run("a failed probe after a Reset", func(t *testing.T) {
		setup(t, func(w *breakertest.World, a, b *breakertest.Rig, la *line) {
			a.C.Trip(nil)
			syncAll([]*breakertest.Rig{a, b})
			w.At(30 * time.Second)
			bad := a.Gate()
			la.hold("settle")
			bad.Release <- breakertest.ErrBoom
			require.Equal(w, "settle", <-la.held)
			b.C.Reset()
			require.NoError(w, b.C.Sync(context.Background()))
			la.letGo()
			require.Equal(w, breakertest.ErrBoom, <-bad.Result)
			after(w, a, b, breaker.Closed)
		})
	})
	t.Run("slots after it has closed", func(t *testing.T) {
		setup(t, func(w *breakertest.World, a, b *breakertest.Rig, la *line) {
			a.C.Trip(nil)
			syncAll([]*breakertest.Rig{a, b})
			w.At(30 * time.Second)
			la.hold("acquire")
			asking := make(chan error, 1)
			go func() { asking <- a.Call(breakertest.ErrBoom) }()
			require.Equal(w, "acquire", <-la.held)
			b.Succeeds(1)
			b.Is(breaker.Closed)
			la.letGo()
			require.Equal(w, breakertest.ErrBoom, <-asking, "an ordinary call")
			after(w, a, b, breaker.Closed)
			a.Idle()
		})
	})
	t.Run("gave up meanwhile", func(t *testing.T) {
		setup(t, func(w *breakertest.World, a, b *breakertest.Rig, la *line) {
			a.C.Trip(nil)
			syncAll([]*breakertest.Rig{a, b})
			w.At(30 * time.Second)
			good, bad := a.Gate(), b.Gate()
			la.hold("settle")
			good.Release <- nil
			require.Equal(w, "settle", <-la.held)
			bad.Finish(breakertest.ErrBoom)
			w.Add(76 * time.Minute) // it acts by itself
			require.NoError(w, <-good.Result)
			b.C.Trip(nil)
			require.NoError(w, b.C.Sync(context.Background()))
			la.letGo()
			w.Add(5 * time.Second)
			after(w, a, b, breaker.Open)
			require.False(w, a.C.Snapshot().Shared.Alone)
		})
	})
}

// BC-131: only the store's clock counts.
func TestShareClocksThatDisagree(t *testing.T) {
	for name, off := range map[string][2]time.Duration{"minutes": {90 * time.Second, -90 * time.Second}, "years": {40 * 365 * 24 * time.Hour, -20 * 365 * 24 * time.Hour}} {
		t.Run(name, func(t *testing.T) {
			breakertest.Injected(t, breakertest.ByDo, func(w *breakertest.World) {
				m := store.NewMemory(store.WithClock(w.Clk))
				var clocks [2]*clock.Mock
				var nodes [2]*breakertest.Rig
				for i := range nodes {
					clocks[i] = clock.NewMock()
					clocks[i].Set(w.Start.Add(off[i]))
					nodes[i] = w.Circuit(breaker.WithClock(clocks[i]), breaker.WithStore(m), breaker.WithTrip(breaker.FailureCount(5, time.Minute)), breaker.WithSuccessThreshold(1))
				}
				pass := func(d time.Duration) {
					w.Add(d)
					for _, c := range clocks {
						c.Add(d)
					}
				}
				a, b := nodes[0], nodes[1]
				for i := range 4 { // at 0, 20s, 40s, 60s: of which three are in the window
					nodes[i%2].Fails(1)
					pass(20 * time.Second)
				}
				require.NoError(w, a.C.Sync(context.Background()))
				a.Fails(1) // 80s: with 40s and 60s
				a.Is(breaker.Closed)
				b.Fails(1)
				a.Fails(1)
				a.Is(breaker.Open)
				b.Is(breaker.Open)
				for i, r := range nodes {
					left := r.C.Snapshot().Until.Sub(clocks[i].Now())
					require.Equal(w, 30*time.Second, left)
				}
				pass(time.Second)
				require.Equal(w, 29*time.Second, b.Rejected().RetryAfter())
				pass(28 * time.Second)
				require.Equal(w, time.Second, b.Rejected().RetryAfter())
				pass(time.Second)
				b.Succeeds(1)
				a.Is(breaker.Closed)
				require.WithinDuration(w, clocks[0].Now(), a.Events.List()[2].At, time.Millisecond)
				require.WithinDuration(w, clocks[1].Now(), b.Events.List()[2].At, time.Millisecond)
			})
		})
	}
	t.Run("drifting", func(t *testing.T) {
		breakertest.Injected(t, breakertest.ByDo, func(w *breakertest.World) {
			m := store.NewMemory(store.WithClock(w.Clk))
			fast, slow := clock.NewMock(), clock.NewMock()
			f := w.Circuit(breaker.WithClock(fast), breaker.WithStore(m), breaker.WithSuccessThreshold(1))
			s := w.Circuit(breaker.WithClock(slow), breaker.WithStore(m), breaker.WithSuccessThreshold(1))
			pass := func(d time.Duration) {
				w.Add(d)
				fast.Add(d * 11 / 10)
				slow.Add(d * 9 / 10)
			}
			f.Trip()
			s.Is(breaker.Open)
			pass(28 * time.Second) // for the one it is due, by the store it is not
			f.Is(breaker.HalfOpen)
			require.Equal(w, 2*time.Second, f.Rejected().RetryAfter())
			pass(2 * time.Second)
			s.Rejected() // for the other it is not, though by the store it is
			f.Succeeds(1)
			s.Is(breaker.Closed)
			s.Succeeds(1)
		})
	})
}

type setBackWatcher struct {
	breaker.StoreWatcher
	s *setBack
}

func (w *setBackWatcher) Changed(name string, l breaker.Ledger) {
	w.StoreWatcher.Changed(name, w.s.ledger(l))
}

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

// setBackFleet is two circuits on such a store.
func setBackFleet(w *breakertest.World, timeout time.Duration, opts ...breaker.Option) (s *setBack, fl *fleet) {
	s = &setBack{faulty: newFaulty(w, false)}
	s.timeout = timeout
	fl = &fleet{World: w, f: s.faulty}
	for range 2 {
		fl.nodes = append(fl.nodes, w.Circuit(append([]breaker.Option{breaker.WithStore(s)}, opts...)...))
	}
	return s, fl
}

// Successes end a run of failures, wherever they were seen and whatever the store's clock says.
func TestShareReturnClockSetBack(t *testing.T) {
	for _, by := range []time.Duration{0, 10 * time.Millisecond, 5 * time.Second, time.Hour} {
		for _, other := range []int{0, 1} {
			t.Run(fmt.Sprintf("%v, success of node %d", by, other), func(t *testing.T) {
				breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
					s, fl := setBackFleet(w, time.Hour) // an answer may be old
					fails, succeeds := fl.nodes[0], fl.nodes[other]
					alternate := func(n int) {
						for range n {
							fails.Fails(1)
							w.Add(300 * time.Millisecond)
							rest(w)
							succeeds.Succeeds(1)
							w.Add(300 * time.Millisecond)
							rest(w)
						}
					}
					alternate(5)
					s.by.Store(by.Milliseconds())
					alternate(12)
					fl.states(breaker.Closed)
					require.NoError(w, fails.C.Sync(context.Background()))
					fails.Fails(5)
					w.Add(time.Second)
					rest(w)
					fl.states(breaker.Open)
				})
			})
		}
	}
}

// A ledger that nobody can follow does not keep a circuit from opening.
func TestShareReturnClockSetBackTooFar(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		s, fl := setBackFleet(w, time.Hour)
		fl.nodes[0].Succeeds(1)
		require.NoError(w, fl.nodes[0].C.Sync(context.Background()))
		s.by.Store((25 * time.Hour).Milliseconds())
		fl.nodes[0].Fails(5)
		w.Add(time.Second)
		rest(w)
		fl.nodes[0].Is(breaker.Open)
	})
}

// What was pushed long ago does not roll the view back, however long it was on its way.
func TestShareReturnLatePush(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		f := newFaulty(w, false)
		fl := newFleet(w, f, 1)
		a := fl.nodes[0]
		f.pushes.set(false, true)
		a.Fails(1)
		fl.sync()
		w.Add(time.Millisecond)
		a.Succeeds(1)
		fl.sync()
		w.Add(900 * time.Millisecond) // no operation takes so long
		f.pushes.release(nil)
		rest(w)
		require.Zero(w, a.C.Snapshot().Counts.ConsecutiveFailures)
	})
}

// A server that takes over empty gets the ledger back, though its clock is behind.
func TestShareReturnEmptyServerWhoseClockIsBehind(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		s, fl := setBackFleet(w, 100*time.Millisecond, breaker.WithOpenTimeout(time.Minute))
		fl.nodes[0].C.Trip(nil)
		fl.sync()
		fl.states(breaker.Open)
		w.Add(time.Second)
		s.wipe()
		s.by.Store(time.Hour.Milliseconds())
		w.Add(3 * time.Second)
		rest(w)
		fl.nodes = append(fl.nodes, w.Circuit(breaker.WithStore(s)))
		fl.states(breaker.Open)
	})
}
