package tests

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/breakertest"
	"github.com/breakerkit/breaker/store"
)

// A circuit whose policy asks for what the ledger does not keep has its own counts.
func TestShareConfigureToAnotherWindow(t *testing.T) {
	for name, opt := range map[string]breaker.Option{
		"failure window": breaker.WithFailureWindow(10 * time.Second),
		"count":          breaker.WithTrip(breaker.FailureCount(5, 10*time.Second)),
		"rate":           breaker.WithTrip(breaker.FailureRate(0.5, 5, breaker.Last(10*time.Second))),
	} {
		t.Run(name, func(t *testing.T) {
			bothHubs(t, func(w *breakertest.World, f *faulty) {
				fl := newFleet(w, f, 1)
				a := fl.nodes[0]
				a.Fails(1)
				a.Succeeds(100)
				fl.sync()
				require.NoError(w, a.C.Configure(opt))
				for range 5 {
					_ = a.Call(breakertest.ErrBoom)
					w.Add(100 * time.Millisecond)
				}
				fl.sync()
				a.Is(breaker.Open)
				require.True(w, a.C.Snapshot().Shared.Foreign)
			})
		})
	}
}

// Where there is a ledger, it has the last word, not a snapshot; and that is no event.
func TestShareSnapshotOption(t *testing.T) {
	bothHubs(t, func(w *breakertest.World, f *faulty) {
		start := func(state breaker.State) breaker.Option {
			s := breaker.Snapshot{Name: "test", State: state, Epoch: 77, Since: w.Now(), Totals: breaker.Totals{Calls: 5, Failures: 5}, LastFailure: "before"}
			if state == breaker.Open {
				s.Until = w.Now().Add(20 * time.Second)
			}
			return breaker.WithSnapshot(s)
		}
		fl := &fleet{World: w, f: f}
		// No ledger yet: the snapshot's time is served, by others too.
		first := fl.join(start(breaker.Open), breaker.WithSuccessThreshold(1))
		first.Is(breaker.Open)
		require.NoError(w, first.C.Sync(context.Background()))
		first.Is(breaker.Open)
		require.NotZero(w, first.C.Snapshot().Shared.Epoch)
		other := fl.join()
		other.Is(breaker.Open)
		require.WithinDuration(w, first.C.Snapshot().Until, other.C.Snapshot().Until, 0)
		require.NoError(w, other.C.Close())
		w.At(20*time.Second - 1)
		first.Rejected()
		w.At(20 * time.Second)
		first.Succeeds(1)
		first.Is(breaker.Closed)
		rest(w)
		require.Len(w, first.Steps(), 2)

		for _, ledger := range []breaker.State{breaker.Closed, breaker.Open, breaker.HalfOpen} {
			var g *breakertest.Gate
			switch ledger {
			case breaker.Open:
				first.C.Trip(nil)
			case breaker.HalfOpen:
				first.C.OfferProbe()
				_ = first.C.Sync(context.Background())
				g = first.Gate()
			case breaker.Closed:
			}
			require.NoError(w, first.C.Sync(context.Background()))
			for _, state := range []breaker.State{breaker.Closed, breaker.HalfOpen, breaker.Open} {
				checked := false
				r := fl.join(start(state), breaker.WithSuccessThreshold(1), breaker.WithHealthCheck(time.Second, func(context.Context) error { checked = true; return breakertest.ErrBoom }))
				rest(w)
				require.Equal(w, ledger, r.C.State(), "snapshot %v", state)
				require.Empty(w, r.Steps())
				s := r.C.Snapshot()
				require.Equal(w, first.C.Snapshot().Epoch, s.Epoch)
				require.EqualValues(w, 5, s.Totals.Failures)
				require.Zero(w, s.ConsecutiveFailures)
				if ledger != breaker.Open {
					w.Add(2 * time.Second)
					require.False(w, checked, "a check without an open period")
				}
				require.NoError(w, r.C.Close())
			}
			if g != nil {
				g.Finish(nil)
			}
		}
		fl.nodes = fl.nodes[:1]
		fl.sync()
		fl.states(breaker.Closed)
	})
}

// While two configurations of a name are live everybody is told, and once all have changed it is over.
func TestShareConfigure(t *testing.T) {
	for name, tc := range map[string]struct{ before, after breaker.Option }{
		"threshold": {breaker.WithFailureThreshold(5), breaker.WithFailureThreshold(4)},
		"window":    {breaker.WithTrip(breaker.FailureCount(4, 10*time.Second)), breaker.WithTrip(breaker.FailureCount(4, 20*time.Second))},
		"kind":      {breaker.WithFailureThreshold(4), breaker.WithTrip(breaker.FailureCount(4, 20*time.Second))},
	} {
		t.Run(name, func(t *testing.T) {
			bothHubs(t, func(w *breakertest.World, f *faulty) {
				fl := newFleet(w, f, 2, tc.before)
				a, b := fl.nodes[0], fl.nodes[1]
				a.Fails(1)
				fl.sync()
				epoch := a.C.Snapshot().Epoch
				require.False(w, a.C.Snapshot().Shared.Foreign)
				require.Empty(w, fl.storeErrors())

				require.NoError(w, b.C.Configure(tc.after))
				b.Succeeds(1)
				b.Fails(1)
				fl.sync()
				fl.sync()
				require.True(w, b.C.Snapshot().Shared.Foreign)
				require.Contains(w, b.C.Snapshot().Shared.LastError, "another configuration")
				require.False(w, a.C.Snapshot().Shared.Foreign, "the ledger is kept as it has asked for")
				require.True(w, b.C.Snapshot().Shared.Connected)
				errs := fl.storeErrors()
				require.Len(w, errs, 1)
				require.ErrorContains(w, errs[0], "another configuration")
				b.Fails(1)
				fl.sync()
				require.Empty(w, fl.storeErrors(), "told again")
				fl.states(breaker.Closed)

				require.NoError(w, a.C.Configure(tc.after))
				w.Add(time.Minute)
				b.Succeeds(1)
				fl.sync()
				a.Fails(1)
				fl.sync()
				fl.sync()
				for _, r := range fl.nodes {
					require.False(w, r.C.Snapshot().Shared.Foreign)
					require.EqualValues(w, 1, r.C.Snapshot().Counts.Failures, "counts begin anew")
					require.Equal(w, epoch, r.C.Snapshot().Epoch)
				}
				w.Add(15 * time.Second)
				b.Fails(1)
				fl.sync()
				a.Fails(1)
				fl.sync()
				fl.states(breaker.Closed)
				b.Fails(1)
				w.Add(time.Second)
				fl.states(breaker.Open)
				until := agree(fl.nodes)
				require.NoError(w, a.C.Configure(breaker.WithOpenTimeout(time.Minute)))
				require.Equal(w, until, agree(fl.nodes), "what is running stays")
			})
		})
	}
}

// Configuration as data shares like any other, and is the same configuration.
func TestShareParsedConfig(t *testing.T) {
	breakertest.Injected(t, breakertest.ByDo, func(w *breakertest.World) {
		m := store.NewMemory(store.WithClock(w.Clk))
		cfg, err := breaker.ParseConfig(map[string]any{"failure_threshold": 3, "open_timeout": "10s", "success_threshold": 1})
		require.NoError(w, err)
		parsed := w.Circuit(append(cfg.Options(), breaker.WithStore(m))...)
		again := w.Circuit(append([]breaker.Option{breaker.WithStore(m)}, parsed.C.Config().Options()...)...)
		plain := w.R0(breaker.WithStore(m), breaker.WithHalfOpenProbes(parsed.C.Config().HalfOpenProbes), breaker.WithProbeLease(parsed.C.Config().ProbeLease))
		nodes := []*breakertest.Rig{parsed, again, plain}
		for _, r := range nodes {
			r.Fails(1)
		}
		allIn(nodes, breaker.Open)
		require.Equal(w, 10*time.Second, agree(nodes))
		w.At(10 * time.Second)
		again.Succeeds(1)
		allIn(nodes, breaker.Closed)
		for _, r := range nodes {
			require.False(w, r.C.Snapshot().Shared.Foreign)
			require.Empty(w, r.C.Snapshot().Shared.LastError)
		}
		require.NoError(w, parsed.C.Configure(cfg.Options()...))
		parsed.Fails(3)
		allIn(nodes, breaker.Open)
	})
}

type uncomparable struct {
	breaker.Store
	_ []int
}

func TestShareBadInput(t *testing.T) {
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
