package breaker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/store"
)

// What else holds of circuits that share: beside share_test.go, which takes them as one circuit, and share_faults_test.go,
// which takes their store away.

// line is one process's way to a Memory that several have: circuits on different lines have different hubs. An operation
// that is held is carried out when it is let go, as that of a process that was stopped.
type line struct {
	*store.Memory
	mu    sync.Mutex
	gates map[string]chan struct{}
	held  chan string // the operations that have come to a gate
}

func newLine(w *world, m *store.Memory) *line {
	l := &line{Memory: m, gates: make(map[string]chan struct{}), held: make(chan string, 100)}
	w.atEnd = append(w.atEnd, func() { l.letGo() })
	return l
}

func (*line) Immediate() bool        { return false }
func (*line) Timeout() time.Duration { return time.Hour }

// hold stops all operations of a kind from here on.
func (l *line) hold(op string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gates[op] = make(chan struct{})
}

// letGo lets everything that is held go on.
func (l *line) letGo() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for op, gate := range l.gates {
		close(gate)
		delete(l.gates, op)
	}
}

func (l *line) pass(op string) {
	l.mu.Lock()
	gate := l.gates[op]
	l.mu.Unlock()
	if gate != nil {
		l.held <- op
		<-gate
	}
}

func (l *line) Report(ctx context.Context, r []breaker.StoreReport) []breaker.StoreReply {
	l.pass("report")
	return l.Memory.Report(ctx, r)
}

func (l *line) Move(ctx context.Context, m breaker.StoreMove) (breaker.Ledger, error) {
	l.pass("move")
	return l.Memory.Move(ctx, m)
}

func (l *line) Acquire(ctx context.Context, a breaker.StoreAcquire) (breaker.Ledger, error) {
	l.pass("acquire")
	return l.Memory.Acquire(ctx, a)
}

func (l *line) Settle(ctx context.Context, v breaker.StoreVerdict) (breaker.Ledger, error) {
	l.pass("settle")
	return l.Memory.Settle(ctx, v)
}

// processes makes n circuits of a name, each on a line of its own to one Memory.
func processes(w *world, n int, opts ...breaker.Option) (lines []*line, nodes []*rig) {
	m := store.NewMemory()
	for range n {
		l := newLine(w, m)
		lines = append(lines, l)
		nodes = append(nodes, w.circuit(append([]breaker.Option{breaker.WithStore(l)}, opts...)...))
	}
	return lines, nodes
}

func syncAll(nodes []*rig) {
	nodes[0].Helper()
	for range 2 {
		for _, r := range nodes {
			require.NoError(r, r.c.Sync(context.Background()))
		}
		nodes[0].rest()
	}
}

// agree requires that all circuits are in one epoch and one state, with one deadline. It returns that.
func agree(nodes []*rig) (until time.Duration) {
	nodes[0].Helper()
	first := nodes[0].c.Snapshot()
	for _, r := range nodes[1:] {
		s := r.c.Snapshot()
		require.Equal(r, first.Epoch, s.Epoch)
		require.Equal(r, first.State, s.State)
		require.Equal(r, first.Until, s.Until)
	}
	return first.Until.Sub(nodes[0].start)
}

// Q02, BC-113 on a fleet: a check that passes anywhere earns a probe everywhere, and closes nothing.
func TestShareMoreHealthChecks(t *testing.T) {
	bothHubs(t, func(w *world, f *faulty) {
		fl := &fleet{world: w, f: f}
		var healthy [2]atomic.Bool
		var checks [2]atomic.Int64
		for i := range 2 {
			fl.join(breaker.WithSuccessThreshold(1), breaker.WithHealthCheck(2*time.Second, func(context.Context) error {
				checks[i].Add(1)
				if healthy[i].Load() {
					return nil
				}
				return errBoom
			}))
		}
		a, b := fl.nodes[0], fl.nodes[1]
		a.c.Trip(nil)
		fl.sync()
		fl.states(breaker.Open)
		w.add(2 * time.Second)
		require.EqualValues(w, 1, checks[0].Load())
		require.EqualValues(w, 1, checks[1].Load())
		fl.states(breaker.Open)

		healthy[1].Store(true)
		w.add(2 * time.Second)
		fl.states(breaker.HalfOpen)
		require.Equal(w, breaker.ReasonHealthCheck, b.events.list()[1].Reason)
		require.Equal(w, breaker.ReasonRemote, a.events.list()[1].Reason)
		ran := checks[0].Load() + checks[1].Load()
		w.add(20 * time.Second)
		require.Equal(w, ran, checks[0].Load()+checks[1].Load(), "checks outside of an open period")
		fl.states(breaker.HalfOpen)
		a.ok(1)
		w.rest()
		fl.states(breaker.Closed)

		// With the store away a good check is its own circuit's affair.
		healthy[1].Store(false)
		a.c.Trip(nil)
		fl.sync()
		f.all(fault{before: errStore})
		healthy[1].Store(true)
		w.add(3 * time.Second)
		a.state(breaker.Open)
		b.state(breaker.HalfOpen)
		require.True(w, b.c.Snapshot().Shared.Alone)
		ran = checks[1].Load()
		w.add(6 * time.Second)
		require.Equal(w, ran, checks[1].Load())
		f.heal()
		w.add(6 * time.Second)
		fl.sync()
		w.add(3 * time.Second) // back in step it is Open, and checked again
		fl.states(breaker.HalfOpen)
		require.False(w, b.c.Snapshot().Shared.Alone)
		a.ok(1)
		w.rest()
		fl.states(breaker.Closed)
		require.NoError(w, a.c.Close())
		b.c.Trip(nil)
		_ = b.c.Sync(context.Background())
		ran = checks[0].Load()
		w.add(10 * time.Second)
		require.Equal(w, ran, checks[0].Load(), "a check after Close")
	})
}

// Two groups on a store have their keys in common.
func TestShareMoreGroups(t *testing.T) {
	injected(t, byDo, func(w *world) {
		ctx := context.Background()
		boom := func(context.Context) (int, error) { return 0, errBoom }
		m := store.NewMemory(store.WithClock(w.clk))
		var overflow []string
		make := func(max int) *breaker.Group[int] {
			g, err := breaker.NewGroup[int](breaker.WithStore(m), breaker.WithClock(w.clk), breaker.WithFailureThreshold(3), breaker.MaxKeys(max),
				breaker.PerKey(func(key string) []breaker.Option {
					if key == "own" {
						return []breaker.Option{breaker.WithFailureThreshold(1)}
					}
					return nil
				}),
				breaker.WithHooks(breaker.Hooks{Overflow: func(key string) { overflow = append(overflow, key) }}))
			require.NoError(w, err)
			return g
		}
		g, h := make(10), make(10)
		fail := func(g *breaker.Group[int], key string, n int) {
			for range n {
				_, err := g.Do(ctx, key, boom)
				require.Equal(w, errBoom, err)
			}
		}
		fail(g, "a", 2)
		fail(h, "b", 2)
		fail(h, "a", 1)
		require.Equal(w, breaker.Open, g.Get("a").State())
		require.Equal(w, breaker.Open, h.Get("a").State())
		require.Equal(w, breaker.Closed, g.Get("b").State())
		fail(g, "own", 1)
		require.Equal(w, breaker.Open, h.Get("own").State())
		require.False(w, h.Get("own").Snapshot().Shared.Foreign)

		// Eviction loses nothing: the ledger knows.
		small := make(1)
		fail(small, "c", 2)
		small.Get("d")
		_, there := small.Lookup("c")
		require.False(w, there)
		require.EqualValues(w, 2, h.Get("c").Snapshot().ConsecutiveFailures)
		fail(h, "c", 1)
		require.Equal(w, breaker.Open, small.Get("c").State())
		require.Empty(w, overflow)
		small.Get("d") // an open one stays
		require.Equal(w, []string{"d"}, overflow)
		_, there = small.Lookup("c")
		require.True(w, there)

		// Configure reaches the shared ones.
		require.NoError(w, g.Configure(breaker.WithFailureThreshold(4)))
		require.NoError(w, h.Configure(breaker.WithFailureThreshold(4)))
		fail(g, "e", 3)
		require.Equal(w, breaker.Closed, h.Get("e").State())
		fail(h, "e", 1)
		require.Equal(w, breaker.Open, g.Get("e").State())

		// A closed group is on its own.
		require.NoError(w, g.Close())
		require.NoError(w, g.Close())
		h.Get("a").Circuit().Reset()
		require.Equal(w, breaker.Open, g.Get("a").State())
		require.True(w, g.Get("a").Snapshot().Shared.Alone)
		fail(g, "new", 4)
		require.Equal(w, breaker.Open, g.Get("new").State())
		require.Equal(w, breaker.Closed, h.Get("new").State())
		require.NoError(w, h.Close())
		require.NoError(w, small.Close())
	})
}

// Where there is a ledger, it has the last word, not a snapshot; and that is no event.
func TestShareMoreSnapshotOption(t *testing.T) {
	bothHubs(t, func(w *world, f *faulty) {
		start := func(state breaker.State) breaker.Option {
			s := breaker.Snapshot{Name: "test", State: state, Epoch: 77, Since: w.now(), Totals: breaker.Totals{Calls: 5, Failures: 5}, LastFailure: "before"}
			if state == breaker.Open {
				s.Until = w.now().Add(20 * time.Second)
			}
			return breaker.WithSnapshot(s)
		}
		fl := &fleet{world: w, f: f}
		// No ledger yet: the snapshot's time is served, by others too.
		first := fl.join(start(breaker.Open), breaker.WithSuccessThreshold(1))
		first.state(breaker.Open)
		require.NoError(w, first.c.Sync(context.Background()))
		first.state(breaker.Open)
		require.NotZero(w, first.c.Snapshot().Shared.Epoch)
		other := fl.join()
		other.state(breaker.Open)
		require.WithinDuration(w, first.c.Snapshot().Until, other.c.Snapshot().Until, 0)
		require.NoError(w, other.c.Close())
		w.at(20*time.Second - 1)
		first.rejected()
		w.at(20 * time.Second)
		first.ok(1)
		first.state(breaker.Closed)
		w.rest()
		require.Len(w, first.steps(), 2)

		for _, ledger := range []breaker.State{breaker.Closed, breaker.Open, breaker.HalfOpen} {
			var g *gate
			switch ledger {
			case breaker.Open:
				first.c.Trip(nil)
			case breaker.HalfOpen:
				first.c.OfferProbe()
				_ = first.c.Sync(context.Background())
				g = first.gate()
			case breaker.Closed:
			}
			require.NoError(w, first.c.Sync(context.Background()))
			for _, state := range []breaker.State{breaker.Closed, breaker.HalfOpen, breaker.Open} {
				checked := false
				r := fl.join(start(state), breaker.WithSuccessThreshold(1), breaker.WithHealthCheck(time.Second, func(context.Context) error { checked = true; return errBoom }))
				w.rest()
				require.Equal(w, ledger, r.c.State(), "snapshot %v", state)
				require.Empty(w, r.steps())
				s := r.c.Snapshot()
				require.Equal(w, first.c.Snapshot().Epoch, s.Epoch)
				require.EqualValues(w, 5, s.Totals.Failures)
				require.Zero(w, s.ConsecutiveFailures)
				if ledger != breaker.Open {
					w.add(2 * time.Second)
					require.False(w, checked, "a check without an open period")
				}
				require.NoError(w, r.c.Close())
			}
			if g != nil {
				g.finish(nil)
			}
		}
		fl.nodes = fl.nodes[:1]
		fl.sync()
		fl.states(breaker.Closed)
	})
}

// A view by Over is the same circuit, and closes nothing. WithStore is for construction.
func TestShareMoreViews(t *testing.T) {
	bothClocks(t, func(w *world) {
		nodes := spreadFleet(w, 2)
		v, err := breaker.Over[string](nodes[0].c, breaker.WithFallbackValue("spare"))
		require.NoError(w, err)
		nodes[1].fail(4)
		got, err := v.Do(context.Background(), func(context.Context) (string, error) { return "", errBoom })
		require.NoError(w, err)
		require.Equal(w, "spare", got)
		allIn(nodes, breaker.Open)
		require.Equal(w, breaker.Open, v.State())
		require.Equal(w, nodes[1].c.Snapshot().Epoch, v.Snapshot().Epoch)
		require.NoError(w, v.Close())
		require.NoError(w, nodes[1].c.Sync(context.Background()))
		nodes[1].c.Reset()
		allIn(nodes, breaker.Closed)
		require.False(w, v.Snapshot().Shared.Alone)

		m := store.NewMemory()
		_, err = breaker.Over[string](nodes[0].c, breaker.WithStore(m))
		require.ErrorContains(w, err, "Store: is not an option of Over")
		require.ErrorContains(w, nodes[0].c.Configure(breaker.WithStore(m)), "Store: is not an option of Configure")
		require.ErrorContains(w, nodes[0].c.Configure(breaker.WithTrip(breaker.FailureRate(0.5, 5, breaker.LastCalls(10)))), "LastCalls")
		nodes[1].fail(5)
		allIn(nodes, breaker.Open)
	})
}

// While two configurations of a name are live everybody is told, and once all have changed it is over.
func TestShareMoreConfigure(t *testing.T) {
	for name, tc := range map[string]struct{ before, after breaker.Option }{
		"threshold": {breaker.WithFailureThreshold(5), breaker.WithFailureThreshold(4)},
		"window":    {breaker.WithTrip(breaker.FailureCount(4, 10*time.Second)), breaker.WithTrip(breaker.FailureCount(4, 20*time.Second))},
		"kind":      {breaker.WithFailureThreshold(4), breaker.WithTrip(breaker.FailureCount(4, 20*time.Second))},
	} {
		t.Run(name, func(t *testing.T) {
			bothHubs(t, func(w *world, f *faulty) {
				fl := newFleet(w, f, 2, tc.before)
				a, b := fl.nodes[0], fl.nodes[1]
				a.fail(1)
				fl.sync()
				epoch := a.c.Snapshot().Epoch
				require.False(w, a.c.Snapshot().Shared.Foreign)
				require.Empty(w, fl.storeErrors())

				require.NoError(w, b.c.Configure(tc.after))
				b.ok(1)
				b.fail(1)
				fl.sync()
				fl.sync()
				require.True(w, b.c.Snapshot().Shared.Foreign)
				require.Contains(w, b.c.Snapshot().Shared.LastError, "another configuration")
				require.False(w, a.c.Snapshot().Shared.Foreign, "the ledger is kept as it has asked for")
				require.True(w, b.c.Snapshot().Shared.Connected)
				errs := fl.storeErrors()
				require.Len(w, errs, 1)
				require.ErrorContains(w, errs[0], "another configuration")
				b.fail(1)
				fl.sync()
				require.Empty(w, fl.storeErrors(), "told again")
				fl.states(breaker.Closed)

				require.NoError(w, a.c.Configure(tc.after))
				w.add(time.Minute)
				b.ok(1)
				fl.sync()
				a.fail(1)
				fl.sync()
				fl.sync()
				for _, r := range fl.nodes {
					require.False(w, r.c.Snapshot().Shared.Foreign)
					require.EqualValues(w, 1, r.c.Snapshot().Counts.Failures, "counts begin anew")
					require.Equal(w, epoch, r.c.Snapshot().Epoch)
				}
				w.add(15 * time.Second)
				b.fail(1)
				fl.sync()
				a.fail(1)
				fl.sync()
				fl.states(breaker.Closed)
				b.fail(1)
				w.add(time.Second)
				fl.states(breaker.Open)
				until := agree(fl.nodes)
				require.NoError(w, a.c.Configure(breaker.WithOpenTimeout(time.Minute)))
				require.Equal(w, until, agree(fl.nodes), "what is running stays")
			})
		})
	}
}

// BC-137: hooks may ask everything, and act.
func TestShareMoreHooksMayAsk(t *testing.T) {
	bothHubs(t, func(w *world, f *faulty) {
		fl := &fleet{world: w, f: f}
		var told [2]atomic.Int64
		var tripped atomic.Bool
		look := func(i int) {
			if i >= len(fl.nodes) {
				return // being made
			}
			c := fl.nodes[i].c
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
					if s := fl.nodes[i].c.Snapshot(); s.Epoch < e.Epoch {
						w.Errorf("node %d is told of epoch %d in %d", i, e.Epoch, s.Epoch)
					}
					look(i)
					if e.To == breaker.Closed && tripped.CompareAndSwap(false, true) {
						fl.nodes[i].c.Trip(errClient)
					}
				},
				Call:       func(context.Context, breaker.CallEvent) { look(i) },
				Reject:     func(context.Context, breaker.RejectEvent) { look(i) },
				StoreError: func(error) { look(i) },
			}))
		}
		a, b := fl.nodes[0], fl.nodes[1]
		a.fail(3)
		_ = b.call(errBoom)
		_ = b.call(errBoom)
		w.add(time.Second)
		fl.states(breaker.Open)
		a.rejected()
		w.add(10 * time.Second)
		b.ok(1)
		w.add(time.Second)
		fl.states(breaker.Open) // by the hook
		require.True(w, tripped.Load())
		f.all(fault{before: errStore})
		_ = a.c.Sync(context.Background())
		w.add(time.Second)
		f.heal()
		w.add(20 * time.Second)
		a.ok(1)
		w.add(time.Second)
		fl.states(breaker.Closed)
		for i, r := range fl.nodes {
			require.Greater(w, told[i].Load(), int64(5))
			var last uint64
			for _, e := range r.events.list() {
				require.Greater(w, e.Epoch, last)
				last = e.Epoch
			}
			require.Len(w, r.steps(), 6, "%v", r.steps())
			r.idle()
		}
	})
}

// A dependency that asks to be left alone is, by all.
func TestShareMoreOpenHint(t *testing.T) {
	bothHubs(t, func(w *world, f *faulty) {
		fl := newFleet(w, f, 3, breaker.WithOpenHint(time.Minute), breaker.WithSuccessThreshold(1))
		a, b, c := fl.nodes[0], fl.nodes[1], fl.nodes[2]
		straggler := c.gate()
		a.failWith(hint(50 * time.Second)) // it is the one that opens whose word counts
		fl.sync()
		for range 3 {
			a.fail(1)
			fl.sync()
		}
		at := w.elapsed()
		b.failWith(hint(2 * time.Hour))
		fl.sync()
		fl.states(breaker.Open)
		until := agree(fl.nodes)
		require.Equal(w, at+time.Minute, until)
		straggler.finish(hint(2 * time.Hour))
		fl.sync()
		require.Equal(w, until, agree(fl.nodes))
		w.at(until)
		at = w.elapsed()
		c.failWith(hint(40 * time.Second))
		fl.sync()
		require.Equal(w, at+40*time.Second, agree(fl.nodes))
		a.c.Reset()
		at = w.elapsed()
		a.c.Trip(hint(45 * time.Second))
		fl.sync()
		require.Equal(w, at+45*time.Second, agree(fl.nodes))
	})
}

// The period of a fleet grows whoever opens it, and starts over after one open period in peace.
func TestShareMoreOpenBackoff(t *testing.T) {
	for _, jitter := range []float64{0, 0.5} {
		t.Run(fmt.Sprint("jitter ", jitter), func(t *testing.T) {
			bothHubs(t, func(w *world, f *faulty) {
				var opts []breaker.Option
				draw := 0.0
				opts = append(opts, breaker.WithOpenBackoff(2, 10*time.Minute, jitter), breaker.WithSuccessThreshold(1), breaker.WithRand(func() float64 { draw += 0.1; return draw }))
				fl := newFleet(w, f, 3, opts...)
				opens := func(r *rig, open func(), base time.Duration) {
					w.Helper()
					draw = 0
					at := w.elapsed()
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
				probe := func(r *rig) func() { return func() { r.fail(1) } }
				opens(fl.nodes[0], func() { fl.nodes[0].c.Trip(nil) }, 30*time.Second)
				for i := range 3 {
					w.at(agree(fl.nodes))
					r := fl.nodes[(i+1)%3]
					opens(r, probe(r), 30*time.Second<<(i+1))
				}
				w.at(agree(fl.nodes))
				fl.nodes[2].ok(1)
				fl.sync()
				w.add(30*time.Second - time.Millisecond) // not quite in peace
				opens(fl.nodes[1], func() { fl.nodes[1].c.Trip(nil) }, 480*time.Second)
				w.at(agree(fl.nodes))
				opens(fl.nodes[0], probe(fl.nodes[0]), 10*time.Minute)
				w.at(agree(fl.nodes))
				fl.nodes[0].ok(1)
				fl.sync()
				w.add(30 * time.Second)
				opens(fl.nodes[2], func() { fl.nodes[2].c.Trip(nil) }, 30*time.Second)
				fl.nodes[1].c.Reset()
				fl.sync()
				opens(fl.nodes[2], func() { fl.nodes[2].c.Trip(nil) }, 30*time.Second)
			})
		})
	}
}

// After a recovery every circuit admits the share of the moment.
func TestShareMoreRamp(t *testing.T) {
	injected(t, byRun, func(w *world) {
		nodes := spreadFleet(w, 2, breaker.WithRamp(10*time.Second), breaker.WithSuccessThreshold(1))
		nodes[0].c.Trip(nil)
		w.at(30 * time.Second)
		nodes[1].ok(1)
		allIn(nodes, breaker.Closed)
		for _, tc := range []struct {
			at       time.Duration
			from, to int
		}{{0, 0, 0}, {2 * time.Second, 19, 21}, {5 * time.Second, 49, 51}, {9 * time.Second, 89, 91}, {10 * time.Second, 100, 100}} {
			w.at(30*time.Second + tc.at)
			for i, r := range nodes {
				passed := 0
				for range 100 {
					if r.call(nil) == nil {
						passed++
					}
				}
				require.GreaterOrEqual(w, passed, tc.from, "node %d at %v", i, tc.at)
				require.LessOrEqual(w, passed, tc.to, "node %d at %v", i, tc.at)
			}
		}
	})
}

// The bulkhead is each process's own.
func TestShareMoreMaxInFlight(t *testing.T) {
	bothClocks(t, func(w *world) {
		nodes := spreadFleet(w, 2, breaker.WithMaxInFlight(2))
		var gates []*gate
		for _, r := range nodes {
			gates = append(gates, r.gate(), r.gate())
			require.ErrorIs(w, r.call(nil), breaker.ErrTooManyInFlight)
			require.EqualValues(w, 2, r.c.Snapshot().InFlight)
		}
		gates[0].finish(nil)
		nodes[0].ok(1)
		require.ErrorIs(w, nodes[1].call(nil), breaker.ErrTooManyInFlight)
		for _, g := range gates[1:] {
			g.finish(nil)
		}
		for _, r := range nodes {
			r.idle()
		}
	})
}

// Configuration as data shares like any other, and is the same configuration.
func TestShareMoreParsedConfig(t *testing.T) {
	injected(t, byDo, func(w *world) {
		m := store.NewMemory(store.WithClock(w.clk))
		cfg, err := breaker.ParseConfig(map[string]any{"failure_threshold": 3, "open_timeout": "10s", "success_threshold": 1})
		require.NoError(w, err)
		parsed := w.circuit(append(cfg.Options(), breaker.WithStore(m))...)
		again := w.circuit(append([]breaker.Option{breaker.WithStore(m)}, parsed.c.Config().Options()...)...)
		plain := w.r0(breaker.WithStore(m), breaker.WithHalfOpenProbes(parsed.c.Config().HalfOpenProbes), breaker.WithProbeLease(parsed.c.Config().ProbeLease))
		nodes := []*rig{parsed, again, plain}
		for _, r := range nodes {
			r.fail(1)
		}
		allIn(nodes, breaker.Open)
		require.Equal(w, 10*time.Second, agree(nodes))
		w.at(10 * time.Second)
		again.ok(1)
		allIn(nodes, breaker.Closed)
		for _, r := range nodes {
			require.False(w, r.c.Snapshot().Shared.Foreign)
			require.Empty(w, r.c.Snapshot().Shared.LastError)
		}
		require.NoError(w, parsed.c.Configure(cfg.Options()...))
		parsed.fail(3)
		allIn(nodes, breaker.Open)
	})
}

type uncomparable struct {
	breaker.Store
	_ []int
}

func TestShareMoreBadInput(t *testing.T) {
	m := store.NewMemory()
	last := breaker.Last
	for name, tc := range map[string]struct {
		opts []breaker.Option
		want []string
	}{
		"nil":          {[]breaker.Option{breaker.WithStore(nil)}, []string{"Store: must not be nil"}},
		"typed nil":    {[]breaker.Option{breaker.WithStore((*store.Memory)(nil))}, []string{"Store: must not be nil"}},
		"uncomparable": {[]breaker.Option{breaker.WithStore(uncomparable{Store: m})}, []string{"Store: must be comparable"}},
		"all of the arguments": {[]breaker.Option{breaker.WithStore(nil, nil, breaker.FlushEvery(-1), breaker.MinReporters(-1))},
			[]string{"Store: must not be nil", "StoreOption: must not be nil", "FlushEvery: must be above 0", "got -1ns", "MinReporters: must be from 0 to 1000, got -1"}},
		"zero flush, many reporters": {[]breaker.Option{breaker.WithStore(m, breaker.FlushEvery(0), breaker.MinReporters(1001))},
			[]string{"FlushEvery: must be above 0", "MinReporters: must be from 0 to 1000, got 1001"}},
		"the last one counts": {[]breaker.Option{breaker.WithStore(m, breaker.MinReporters(-5), breaker.MinReporters(2), breaker.FlushEvery(-1), breaker.FlushEvery(1))}, nil},
		"conditions": {[]breaker.Option{breaker.WithTrip(
			breaker.FailureRate(0.5, 5, breaker.LastCalls(10)),
			breaker.FailureRate(0.5, 5, last(time.Minute)),
			breaker.SlowCallRate(time.Second, 0.5, 5, last(time.Hour)),
			breaker.SlowCallRate(2*time.Second, 0.5, 5, last(time.Minute)),
			breaker.FailureCount(1001, time.Minute),
			breaker.FailureCount(3, 19*time.Millisecond),
		), breaker.WithStore(m, breaker.FlushEvery(-1))}, []string{
			"Trip[0].FailureRate.LastCalls: must not be used with a Store", "got 10",
			"Trip[2].SlowCallRate.Window: must be that of the other conditions, 1m0s, with a Store, got 1h0m0s",
			"Trip[3].SlowCallRate.Slow: must be that of the other conditions, 1s, with a Store, got 2s",
			"Trip[4].FailureCount.Failures: must be at most 1000 with a Store and a window, got 1001",
			"Trip[5].FailureCount.Window: must be at least 20ms with a Store, got 19ms",
			"FlushEvery: must be above 0",
		}},
		"a threshold with a window": {[]breaker.Option{breaker.WithStore(m), breaker.WithFailureThreshold(1001), breaker.WithFailureWindow(time.Minute)}, []string{"must be at most 1000 with a Store and a window, got 1001"}},
		"most that is allowed":      {[]breaker.Option{breaker.WithStore(m, breaker.MinReporters(1000)), breaker.WithFailureThreshold(1000), breaker.WithFailureWindow(20 * time.Millisecond)}, nil},
		"no window, many failures":  {[]breaker.Option{breaker.WithStore(m), breaker.WithFailureThreshold(100_000)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			for kind, make := range map[string]func(...breaker.Option) error{
				"circuit": func(opts ...breaker.Option) error {
					c, err := breaker.NewCircuit(name, opts...)
					if err == nil {
						_ = c.Close()
					}
					return err
				},
				"group": func(opts ...breaker.Option) error { _, err := breaker.NewGroup[int](opts...); return err },
			} {
				err := make(tc.opts...)
				if len(tc.want) == 0 {
					require.NoError(t, err, kind)
				}
				for _, want := range tc.want {
					require.ErrorContains(t, err, want, kind)
				}
			}
		})
	}
}

// BC-126: a ledger is kept as long as it describes anything, whoever reads it.
func TestShareMoreEntriesOutliveWhatTheyDescribe(t *testing.T) {
	injected(t, byDo, func(w *world) {
		m := store.NewMemory(store.WithClock(w.clk))
		opts := []breaker.Option{breaker.WithStore(m), breaker.WithOpenTimeout(300 * time.Hour), breaker.WithProbeLease(120 * time.Hour), breaker.WithSuccessThreshold(1)}
		fresh := func() *rig { return w.circuit(opts...) }
		fresh().trip()
		for _, h := range []time.Duration{61, 100, 299} {
			w.at(h * time.Hour)
			r := fresh()
			r.rejected()
			require.Equal(w, 300*time.Hour, r.c.Snapshot().Until.Sub(w.start))
			require.Empty(w, r.steps())
		}
		w.at(300 * time.Hour)
		g := fresh().gate()
		w.add(120*time.Hour - 1)
		r := fresh()
		require.ErrorIs(w, r.rejected(), breaker.ErrTooManyProbes)
		w.add(1)
		second := fresh().gate() // the lease has ended
		g.finish(nil)            // and counts all the same
		fresh().state(breaker.Closed)
		second.finish(errBoom)
		fresh().state(breaker.Closed)

		// A run of any spacing is kept for a day, and every report renews it.
		fresh().fail(1)
		w.add(20 * time.Hour)
		fresh().fail(1)
		w.add(20 * time.Hour)
		require.EqualValues(w, 2, fresh().c.Snapshot().ConsecutiveFailures)

		windowed := func() *rig {
			return w.circuit(breaker.WithStore(store.NewMemory(store.WithClock(w.clk))), breaker.WithTrip(breaker.FailureCount(3, 100*time.Hour)))
		}
		r = windowed()
		r.fail(2)
		w.add(99 * time.Hour)
		require.NoError(w, r.c.Sync(context.Background()))
		require.EqualValues(w, 2, r.c.Snapshot().Counts.Failures+uint64(0))
		r.fail(1)
		r.state(breaker.Open)
	})
}

// BC-129: what a process decided before it was stopped does not undo what came since.
func TestShareMoreOldDecisions(t *testing.T) {
	setup := func(t *testing.T, f func(w *world, a, b *rig, la *line)) {
		bubble(t, byDo, func(w *world) {
			lines, nodes := processes(w, 2, breaker.WithSuccessThreshold(1), breaker.WithHalfOpenProbes(2), breaker.WithProbeLease(10*time.Minute))
			nodes[0].c.Reset()
			syncAll(nodes)
			f(w, nodes[0], nodes[1], lines[0])
		})
	}
	after := func(w *world, a, b *rig, want breaker.State) {
		w.Helper()
		w.rest()
		syncAll([]*rig{a, b})
		a.state(want)
		b.state(want)
		agree([]*rig{a, b})
		var last uint64
		for _, r := range []*rig{a, b} {
			last = 0
			for _, e := range r.events.list() {
				require.Greater(w, e.Epoch, last)
				last = e.Epoch
			}
		}
	}
	t.Run("close", func(t *testing.T) {
		setup(t, func(w *world, a, b *rig, la *line) {
			a.c.Trip(nil)
			syncAll([]*rig{a, b})
			w.at(30 * time.Second)
			good, bad := a.gate(), b.gate()
			la.hold("settle")
			good.release <- nil
			require.Equal(w, "settle", <-la.held)
			bad.finish(errBoom)
			b.state(breaker.Open)
			until := b.c.Snapshot().Until
			w.add(5 * time.Second)
			la.letGo()
			require.NoError(w, <-good.result)
			after(w, a, b, breaker.Open)
			require.Equal(w, until, a.c.Snapshot().Until)
			a.rejected()
		})
	})
	t.Run("open", func(t *testing.T) {
		setup(t, func(w *world, a, b *rig, la *line) {
			la.hold("move")
			a.fail(5)
			require.Equal(w, "move", <-la.held)
			b.ok(1) // ends the run that the decision rests on
			require.NoError(w, b.c.Sync(context.Background()))
			la.letGo()
			after(w, a, b, breaker.Closed)
			require.Empty(w, b.steps())
		})
	})
	t.Run("open after a Reset", func(t *testing.T) {
		setup(t, func(w *world, a, b *rig, la *line) {
			la.hold("move")
			a.fail(5)
			require.Equal(w, "move", <-la.held)
			b.c.Reset()
			require.NoError(w, b.c.Sync(context.Background()))
			la.letGo()
			after(w, a, b, breaker.Closed)
			require.Empty(w, a.steps())
			require.Zero(w, a.c.Snapshot().ConsecutiveFailures)
		})
	})
	t.Run("results after a Reset", func(t *testing.T) {
		setup(t, func(w *world, a, b *rig, la *line) {
			la.hold("report")
			a.fail(4)
			require.Equal(w, "report", <-la.held)
			b.c.Reset()
			require.NoError(w, b.c.Sync(context.Background()))
			la.letGo()
			w.add(time.Second)
			b.fail(1)
			after(w, a, b, breaker.Closed)
			require.EqualValues(w, 1, a.c.Snapshot().ConsecutiveFailures)
		})
	})
	t.Run("a failed probe after a Reset", func(t *testing.T) {
		setup(t, func(w *world, a, b *rig, la *line) {
			a.c.Trip(nil)
			syncAll([]*rig{a, b})
			w.at(30 * time.Second)
			bad := a.gate()
			la.hold("settle")
			bad.release <- errBoom
			require.Equal(w, "settle", <-la.held)
			b.c.Reset()
			require.NoError(w, b.c.Sync(context.Background()))
			la.letGo()
			require.Equal(w, errBoom, <-bad.result)
			after(w, a, b, breaker.Closed)
		})
	})
	t.Run("slots after it has closed", func(t *testing.T) {
		setup(t, func(w *world, a, b *rig, la *line) {
			a.c.Trip(nil)
			syncAll([]*rig{a, b})
			w.at(30 * time.Second)
			la.hold("acquire")
			asking := make(chan error, 1)
			go func() { asking <- a.call(errBoom) }()
			require.Equal(w, "acquire", <-la.held)
			b.ok(1)
			b.state(breaker.Closed)
			la.letGo()
			require.Equal(w, errBoom, <-asking, "an ordinary call")
			after(w, a, b, breaker.Closed)
			a.idle()
		})
	})
	t.Run("gave up meanwhile", func(t *testing.T) {
		setup(t, func(w *world, a, b *rig, la *line) {
			a.c.Trip(nil)
			syncAll([]*rig{a, b})
			w.at(30 * time.Second)
			good, bad := a.gate(), b.gate()
			la.hold("settle")
			good.release <- nil
			require.Equal(w, "settle", <-la.held)
			bad.finish(errBoom)
			w.add(76 * time.Minute) // it acts by itself
			require.NoError(w, <-good.result)
			b.c.Trip(nil)
			require.NoError(w, b.c.Sync(context.Background()))
			la.letGo()
			w.add(5 * time.Second)
			after(w, a, b, breaker.Open)
			require.False(w, a.c.Snapshot().Shared.Alone)
		})
	})
}

// BC-131: only the store's clock counts.
func TestShareMoreClocksThatDisagree(t *testing.T) {
	for name, off := range map[string][2]time.Duration{"minutes": {90 * time.Second, -90 * time.Second}, "years": {40 * 365 * 24 * time.Hour, -20 * 365 * 24 * time.Hour}} {
		t.Run(name, func(t *testing.T) {
			injected(t, byDo, func(w *world) {
				m := store.NewMemory(store.WithClock(w.clk))
				var clocks [2]*clock.Mock
				var nodes [2]*rig
				for i := range nodes {
					clocks[i] = clock.NewMock()
					clocks[i].Set(w.start.Add(off[i]))
					nodes[i] = w.circuit(breaker.WithClock(clocks[i]), breaker.WithStore(m), breaker.WithTrip(breaker.FailureCount(5, time.Minute)), breaker.WithSuccessThreshold(1))
				}
				pass := func(d time.Duration) {
					w.add(d)
					for _, c := range clocks {
						c.Add(d)
					}
				}
				a, b := nodes[0], nodes[1]
				for i := range 4 { // at 0, 20s, 40s, 60s: of which three are in the window
					nodes[i%2].fail(1)
					pass(20 * time.Second)
				}
				require.NoError(w, a.c.Sync(context.Background()))
				a.fail(1) // 80s: with 40s and 60s
				a.state(breaker.Closed)
				b.fail(1)
				a.fail(1)
				a.state(breaker.Open)
				b.state(breaker.Open)
				for i, r := range nodes {
					left := r.c.Snapshot().Until.Sub(clocks[i].Now())
					require.Equal(w, 30*time.Second, left)
				}
				pass(time.Second)
				require.Equal(w, 29*time.Second, b.rejected().RetryAfter())
				pass(28 * time.Second)
				require.Equal(w, time.Second, b.rejected().RetryAfter())
				pass(time.Second)
				b.ok(1)
				a.state(breaker.Closed)
				require.WithinDuration(w, clocks[0].Now(), a.events.list()[2].At, time.Millisecond)
				require.WithinDuration(w, clocks[1].Now(), b.events.list()[2].At, time.Millisecond)
			})
		})
	}
	t.Run("drifting", func(t *testing.T) {
		injected(t, byDo, func(w *world) {
			m := store.NewMemory(store.WithClock(w.clk))
			fast, slow := clock.NewMock(), clock.NewMock()
			f := w.circuit(breaker.WithClock(fast), breaker.WithStore(m), breaker.WithSuccessThreshold(1))
			s := w.circuit(breaker.WithClock(slow), breaker.WithStore(m), breaker.WithSuccessThreshold(1))
			pass := func(d time.Duration) {
				w.add(d)
				fast.Add(d * 11 / 10)
				slow.Add(d * 9 / 10)
			}
			f.trip()
			s.state(breaker.Open)
			pass(28 * time.Second) // for the one it is due, by the store it is not
			f.state(breaker.HalfOpen)
			require.Equal(w, 2*time.Second, f.rejected().RetryAfter())
			pass(2 * time.Second)
			s.rejected() // for the other it is not, though by the store it is
			f.ok(1)
			s.state(breaker.Closed)
			s.ok(1)
		})
	})
}

// BC-134: any text is a name, and no two are one.
func TestShareMoreOddNames(t *testing.T) {
	injected(t, byDo, func(w *world) {
		m := store.NewMemory(store.WithClock(w.clk))
		long := strings.Repeat("x", 5000)
		names := []string{"a", "A", "a ", " a", "a:b", "a{b}", "{a}b", "{}", "}{", "a\nb", "a\r\nb", "\x00", "\x00\x00", "é", "e\u0301", "\xff", "\xfe", "\ufffd", "%41", "%2541", "日本", "😀", "*", "?", "[a]", "cb:{a}", "../a", `"a"`, long + "1", long + "2", long}
		circuits := make(map[string][2]*breaker.Circuit)
		for _, name := range names {
			var pair [2]*breaker.Circuit
			for i := range pair {
				pair[i] = breaker.Must(breaker.NewCircuit(name, breaker.WithStore(m), breaker.WithClock(w.clk), breaker.WithFailureThreshold(len(names)+1)))
			}
			circuits[name] = pair
		}
		for i, name := range names { // each has a number of failures of its own
			for range i + 1 {
				require.Equal(w, errBoom, circuits[name][i%2].Run(context.Background(), func(context.Context) error { return errBoom }))
			}
		}
		for i, name := range names {
			for _, c := range circuits[name] {
				require.NoError(w, c.Sync(context.Background()))
				require.EqualValues(w, i+1, c.Snapshot().Counts.ConsecutiveFailures, "%.20q", name)
			}
		}
		for i, name := range names {
			circuits[name][0].Trip(nil)
			for j, other := range names {
				require.Equal(w, map[bool]breaker.State{true: breaker.Open}[j <= i], circuits[other][1].State(), "%.20q %.20q", name, other)
			}
		}
		for _, pair := range circuits {
			_, _ = pair[0].Close(), pair[1].Close()
		}
	})
}

// BC-135: what counts is the store's time, whenever a circuit was made.
func TestShareMoreBucketsAgree(t *testing.T) {
	for name, trip := range map[string]breaker.TripCondition{
		"count": breaker.FailureCount(4, 10*time.Second),
		"rate":  breaker.FailureRate(1, 4, breaker.Last(10*time.Second)),
	} {
		t.Run(name, func(t *testing.T) {
			for _, calls := range []int{3, 4} {
				bothHubs(t, func(w *world, f *faulty) {
					fl := newFleet(w, f, 1, breaker.WithTrip(trip))
					w.at(3700 * time.Millisecond)
					fl.join(breaker.WithTrip(trip))
					for i := range calls {
						w.at(4*time.Second + time.Duration(i)*100*time.Millisecond)
						fl.states(breaker.Closed)
						fl.nodes[i%2].fail(1)
						fl.sync()
					}
					if calls == 4 {
						w.add(time.Second)
						fl.states(breaker.Open)
						return
					}
					count := func(want uint64) {
						w.Helper()
						for _, r := range fl.nodes {
							require.NoError(w, r.c.Sync(context.Background()))
							require.Equal(w, want, r.c.Snapshot().Counts.Failures, "at %v", w.elapsed())
						}
					}
					count(3)
					w.at(13400 * time.Millisecond)
					count(3)
					w.at(16 * time.Second)
					count(0)
					fl.nodes[1].fail(3)
					fl.sync()
					fl.states(breaker.Closed)
				})
			}
		})
	}
}

// BC-121 where there is a goroutine: protected all the same, and told once.
func TestShareMoreStoreDownFromTheStart(t *testing.T) {
	bothHubs(t, func(w *world, f *faulty) {
		f.all(fault{before: errStore})
		fl := newFleet(w, f, 1, breaker.WithFailureThreshold(3), breaker.WithSuccessThreshold(1), breaker.WithOpenTimeout(90*time.Second))
		a := fl.nodes[0]
		for range 10 {
			err := a.call(errBoom)
			require.True(w, errors.Is(err, errBoom) || errors.Is(err, breaker.ErrOpen), "%v", err)
			require.NotErrorIs(w, err, errStore)
			w.rest()
		}
		a.state(breaker.Open)
		require.EqualValues(w, 3, a.ran.Load())
		errs := fl.storeErrors()
		require.Len(w, errs, 1)
		require.ErrorIs(w, errs[0], errStore)
		s := a.c.Snapshot().Shared
		require.True(w, s.Alone)
		require.False(w, s.Connected)
		require.Contains(w, s.LastError, errStore.Error())
		require.Zero(w, s.Epoch)
		require.Zero(w, s.Exchanged)

		w.at(60 * time.Second)
		f.heal()
		w.add(2 * time.Second)
		other := w.circuit(breaker.WithStore(f), breaker.WithFailureThreshold(3), breaker.WithSuccessThreshold(1), breaker.WithOpenTimeout(90*time.Second))
		other.ok(1)
		other.fail(1) // the ledger says closed
		require.NoError(w, other.c.Sync(context.Background()))
		w.at(90*time.Second - 1)
		if a.c.Snapshot().Shared.Epoch == 0 {
			a.rejected()
		}
		w.at(91 * time.Second)
		a.ok(1)
		a.fail(1)
		require.NoError(w, a.c.Sync(context.Background()))
		require.True(w, a.c.Snapshot().Shared.Connected)
		require.Equal(w, a.c.Snapshot().Epoch, other.c.Snapshot().Epoch)
		require.Empty(w, fl.storeErrors())
	})
}

// BC-136: 50 names, 50 goroutines each; nothing of it is left.
func TestShareMoreManyNames(t *testing.T) {
	for _, immediate := range []bool{true, false} {
		t.Run(fmt.Sprintf("immediate %v", immediate), func(t *testing.T) {
			bubble(t, byDo, func(w *world) {
				f := newFaulty(w, immediate)
				before := inBubble()
				var calls atomic.Int64
				var left []weak.Pointer[breaker.Circuit]
				func() {
					var circuits []*breaker.Circuit
					var all sync.WaitGroup
					for name := range 50 {
						c := breaker.Must(breaker.NewCircuit(fmt.Sprint("name ", name), breaker.WithStore(f), breaker.WithOpenTimeout(20*time.Millisecond)))
						circuits, left = append(circuits, c), append(left, weak.Make(c))
						for g := range 50 {
							all.Go(func() {
								for i := range 4 {
									calls.Add(1)
									switch (name + g + i) % 10 {
									case 0:
										c.Trip(nil)
									case 1:
										c.Reset()
									case 2:
										ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
										_ = c.Run(ctx, func(context.Context) error { return errBoom })
										cancel()
									case 3:
										if p, err := c.Acquire(context.Background()); err == nil {
											p.Done(errBoom)
										}
									case 4:
										_ = c.Sync(context.Background())
									case 5:
										_ = c.Snapshot()
									default:
										_ = c.Run(context.Background(), func(context.Context) error { return nil })
									}
								}
							})
						}
					}
					all.Wait()
					require.EqualValues(w, 10_000, calls.Load())
					w.add(time.Second)
					for _, c := range circuits {
						require.NoError(w, c.Sync(context.Background()))
						s := c.Snapshot()
						require.Zero(w, s.InFlight)
						require.Zero(w, s.Shared.Lost)
						require.Zero(w, s.Shared.Pending)
						require.False(w, s.Shared.Alone)
						require.NoError(w, c.Close())
					}
				}()
				synctest.Wait()
				require.Zero(w, f.watches)
				require.Equal(w, before, inBubble())
				for range 20 {
					runtime.GC()
				}
				kept := 0
				for _, p := range left {
					if p.Value() != nil {
						kept++
					}
				}
				require.LessOrEqual(w, kept, 1, "circuits that something holds")
			})
		})
	}
}

// A circuit that is dropped while its hub lives on leaves it, with what it had to say said.
func TestShareMoreForgottenCircuits(t *testing.T) {
	guard(t, patience, func() {
		for _, immediate := range []bool{true, false} {
			w := &world{T: t}
			f := newFaulty(w, immediate)
			stays := breaker.Must(breaker.NewCircuit("stays", breaker.WithStore(f)))
			var p weak.Pointer[breaker.Circuit]
			func() {
				c := breaker.Must(breaker.NewCircuit("goes", breaker.WithStore(f), breaker.WithTrip(breaker.FailureRate(0.5, 10, breaker.Last(time.Minute)))))
				_ = c.Run(t.Context(), func(context.Context) error { return errBoom })
				p = weak.Make(c)
			}()
			for p.Value() != nil {
				runtime.GC()
				runtime.Gosched()
			}
			for {
				f.mu.Lock()
				n := f.applied.Failures
				f.mu.Unlock()
				if n == 1 {
					break
				}
				runtime.Gosched()
			}
			require.Equal(t, 1, f.watches)
			require.NoError(t, stays.Close())
			w.end()
		}
	})
}

// What Snapshot says of the sharing means what it says, and survives JSON.
func TestShareMoreSnapshotShared(t *testing.T) {
	bothHubs(t, func(w *world, f *faulty) {
		fl := newFleet(w, f, 2, breaker.WithTrip(breaker.FailureRate(0.9, 1000, breaker.Last(time.Hour))))
		a, b := fl.nodes[0], fl.nodes[1]
		shared := func() breaker.StoreStatus {
			w.Helper()
			s := a.c.Snapshot()
			text, err := json.Marshal(s)
			require.NoError(w, err)
			var back breaker.Snapshot
			require.NoError(w, json.Unmarshal(text, &back))
			again, err := json.Marshal(back)
			require.NoError(w, err)
			require.JSONEq(w, string(text), string(again))
			require.True(w, s.Shared.Exchanged.Equal(back.Shared.Exchanged))
			want, got := *s.Shared, *back.Shared
			want.Exchanged, got.Exchanged = time.Time{}, time.Time{}
			require.Equal(w, want, got)
			for _, key := range []string{"epoch", "alone", "connected", "pending", "lost", "foreign"} {
				require.Contains(w, string(text[strings.Index(string(text), `"shared":`):]), `"`+key+`":`)
			}
			return *s.Shared
		}
		s := shared()
		require.Equal(w, breaker.StoreStatus{Connected: true, Exchanged: s.Exchanged}, s)
		require.True(w, s.Exchanged.Equal(w.start), "%v", s.Exchanged)

		w.add(time.Second)
		a.fail(1)
		fl.sync()
		s = shared()
		require.NotZero(w, s.Epoch)
		require.Equal(w, s.Epoch, a.c.Snapshot().Epoch)
		require.True(w, s.Exchanged.Equal(w.now()))
		require.Zero(w, s.Pending)

		f.all(fault{before: errStore})
		require.Error(w, a.c.Sync(context.Background()))
		exchanged := w.now()
		w.add(10 * time.Second)
		a.fail(2)
		a.ok(3)
		s = shared()
		require.False(w, s.Connected)
		require.False(w, s.Alone, "it is where the ledger was")
		require.Contains(w, s.LastError, errStore.Error())
		require.True(w, s.Exchanged.Equal(exchanged))
		require.EqualValues(w, 5, s.Pending+s.Lost)
		lost := s.Lost
		f.heal()
		w.add(3 * time.Second)
		fl.sync()
		s = shared()
		require.True(w, s.Connected)
		require.Empty(w, s.LastError)
		require.Zero(w, s.Pending)
		require.Equal(w, lost, s.Lost, "it never falls")
		require.Equal(w, 6-lost, a.c.Snapshot().Counts.Failures+a.c.Snapshot().Counts.Successes)
		require.Equal(w, a.c.Snapshot().Counts, b.c.Snapshot().Counts)
		require.NoError(w, a.c.Close())
		require.True(w, shared().Alone)
	})
}

// Close reports what is left and waits no longer for that than the store may take; afterwards the circuit is on its own.
func TestShareMoreClose(t *testing.T) {
	bothHubs(t, func(w *world, f *faulty) {
		fl := newFleet(w, f, 2, breaker.WithStore(f, breaker.FlushEvery(time.Hour)), breaker.WithTrip(breaker.FailureRate(0.9, 1000, breaker.Last(3*time.Hour))), breaker.WithSuccessThreshold(1))
		a, b := fl.nodes[0], fl.nodes[1]
		a.fail(1)
		fl.sync()
		a.ok(10)
		a.fail(1)
		var both sync.WaitGroup
		for range 4 {
			both.Go(func() { require.NoError(w, a.c.Close()) })
		}
		both.Wait()
		require.NoError(w, a.c.Close())
		require.NoError(w, b.c.Sync(context.Background()))
		require.EqualValues(w, 2, b.c.Snapshot().Counts.Failures)
		require.EqualValues(w, 10, b.c.Snapshot().Counts.Successes)

		f.count()
		require.NoError(w, a.c.Sync(context.Background()))
		require.NoError(w, a.c.Configure(breaker.WithFailureThreshold(2), breaker.WithTrip(breaker.ConsecutiveFailures(2))))
		a.ok(1)
		a.fail(2)
		a.state(breaker.Open)
		a.rejected()
		a.c.OfferProbe()
		a.state(breaker.HalfOpen)
		a.ok(1)
		a.state(breaker.Closed)
		a.c.Trip(nil)
		a.state(breaker.Open)
		w.add(30 * time.Second)
		g := a.gate()
		require.NoError(w, a.c.Close())
		g.finish(nil)
		a.state(breaker.Closed)
		a.c.Reset()
		a.idle()
		b.state(breaker.Closed)
		if n := f.count(); n["report"]+n["move"]+n["acquire"]+n["settle"] != 0 {
			w.Errorf("a closed circuit has used the store: %v", n)
		}
		require.True(w, a.c.Snapshot().Shared.Alone)
		b.c.Trip(nil)
		require.NoError(w, b.c.Sync(context.Background()))
		a.state(breaker.Closed)
	})
}

func TestShareMoreCloseInAnOutage(t *testing.T) {
	awayHubs(t, func(w *world, f *faulty, ft fault) {
		fl := newFleet(w, f, 3)
		a, b, c := fl.nodes[0], fl.nodes[1], fl.nodes[2]
		a.fail(1)
		fl.sync()
		f.all(ft)
		b.fail(1)
		fl.atMost(func() { require.NoError(w, a.c.Close()) })
		fl.atMost(func() {
			var both sync.WaitGroup
			both.Go(func() { _ = b.c.Close() })
			both.Go(func() { _ = b.c.Close() })
			both.Wait()
		})
		w.add(3 * time.Second)
		fl.atMost(func() { require.NoError(w, c.c.Close()) })
		fl.atMost(func() { _ = c.c.Close() })
		b.ok(1)
		f.heal()
		w.add(3 * time.Second)
		w.rest()
		require.Zero(w, f.watches)
	})
}
