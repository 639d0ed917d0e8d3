package breaker_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/breakertest"
	"github.com/breakerkit/breaker/store"
)

// The K vectors again, each circuit on a Memory of its own: alone on it, and as one of several that take turns.

// memoryOf is a Memory under a circuit's clock.
func memoryOf(c breaker.Clock) breaker.Store { return store.NewMemory(store.WithClock(c)) }

// withWays runs f with other ways to make calls.
func withWays(change func(breakertest.Way) breakertest.Way, f func()) {
	run, do, policy, permit, every := breakertest.ByRun, breakertest.ByDo, breakertest.ByPolicy, breakertest.ByPermit, breakertest.EveryWay
	defer func() {
		breakertest.ByRun, breakertest.ByDo, breakertest.ByPolicy, breakertest.ByPermit, breakertest.EveryWay = run, do, policy, permit, every
	}()
	breakertest.ByRun, breakertest.ByDo, breakertest.ByPolicy, breakertest.ByPermit = change(run), change(do), change(policy), change(permit)
	breakertest.EveryWay = []breakertest.Way{breakertest.ByRun, breakertest.ByDo, breakertest.ByPolicy, breakertest.ByPermit}
	f()
}

// stored is a way on circuits with a Store.
func stored(make func(breaker.Clock) breaker.Store, opts ...breaker.StoreOption) func(breakertest.Way) breakertest.Way {
	return func(w breakertest.Way) breakertest.Way {
		w.Options = append(slices.Clip(w.Options), breaker.OnStoreOf(make, opts...))
		return w
	}
}

// spread is a way whose calls go to n circuits of the name in turn. The rig's own is one of them.
func spread(n int, to func(breakertest.Way) breakertest.Way) func(breakertest.Way) breakertest.Way {
	return func(w breakertest.Way) breakertest.Way {
		w = to(w)
		var mu sync.Mutex
		rigs := make(map[*breakertest.Rig][]*breakertest.Rig)
		turns := make(map[*breakertest.Rig]int)
		pick := func(r *breakertest.Rig) *breakertest.Rig {
			mu.Lock()
			defer mu.Unlock()
			all := rigs[r]
			if all == nil {
				all = []*breakertest.Rig{r}
				for range n - 1 {
					all = append(all, sibling(r, w))
				}
				rigs[r] = all
			}
			turns[r]++
			return all[turns[r]%n]
		}
		call := w.Call
		w.Call = func(r *breakertest.Rig, ctx context.Context, fn func(context.Context) (int, error)) (int, error) {
			return call(pick(r), ctx, fn)
		}
		return w
	}
}

// sibling makes another circuit like the rig's.
func sibling(r *breakertest.Rig, w breakertest.Way) *breakertest.Rig {
	s := &breakertest.Rig{World: r.World, Events: breakertest.NewRecorder()}
	c, err := breaker.Sibling(r.C, s.Events.Hooks())
	require.NoError(r, err)
	s.C = c
	var opts []breaker.Option
	if strings.Contains(w.Name, "option") {
		opts = breakertest.ByPolicy.Options[:1]
	}
	s.B, err = breaker.Over[int](c, opts...)
	require.NoError(r, err)
	r.AtEnd(func() { _ = c.Close() })
	return s
}

type vector struct {
	name string
	test func(*testing.T)
}

// sharedVectors hold on a Store, and however the calls are spread.
var sharedVectors = []vector{
	{"K05", TestFailureWindowIsExact},
	{"K07", TestOpenLastsExactlyTheOpenTimeout},
	{"K08", TestHalfOpenIsLazy},
	{"K09", TestHalfOpenAdmitsProbesUpToItsSlots},
	{"K11", TestProbeSuccessesCountFromZero},
	{"K12", TestFailedProbeReopensForAFullPeriod},
	{"K13", TestCountsStartAtZeroAfterClosing},
	{"K14", TestFailedProbeReopensThoughTheWindowIsEmpty},
	{"K30", TestToleranceIsTunable},
	{"K16", TestWhichErrorsCountIsAPredicate},
	{"K22", TestContextAlreadyDoneTakesNothing},
	{"K31 from anywhere", TestRecoveryFromAnywhere},
}

// ownVectors count what one circuit has seen.
var ownVectors = []vector{
	{"K02", TestThresholdIsReachedNotExceeded},
	{"K04", TestConsecutiveMeansAnUnbrokenRun},
	{"K10", TestSuccessThresholdCloses},
	{"K01", TestNewCircuitIsClosedAndPassesEverything},
	{"K03", TestOpenRejectsAtOnce},
	{"K15", TestOutcomesFromBeforeATransitionMoveNothing},
	{"K17", TestIgnoredIsNeitherSuccessNorFailure},
	{"K18", TestCallerWhoWalksAwayIsNoFailure},
	{"K19", TestValueAndErrorComeOutAsTheyWere},
	{"K20", TestTwoStepUse},
	{"K21", TestOnlyTheFirstSettlementCounts},
	{"K23", TestPanickingOrExitingProbeIsAFailure},
	{"K29", TestProbeThatNeverReturnsDoesNotBlockRecovery},
	{"K35", TestMaxInFlightStopsTheFirstWave},
	{"O03", TestLastFailureIsClearedBySuccessAndNoTimerHangsOnIt},
	{"O06", TestOneReasonPerTransition},
	{"E2", TestOneFailedProbeOfSeveralReopens},
	{"E3", TestE3_FiveTimeoutsSpareTheOthers},
}

func TestShareVectorsOnMemory(t *testing.T) {
	withWays(stored(memoryOf), func() {
		for _, v := range append(slices.Clip(ownVectors), sharedVectors...) {
			t.Run(v.name, v.test)
		}
	})
}

func TestShareVectorsSpread(t *testing.T) {
	for n, name := range map[int]string{2: "two", 3: "three"} {
		t.Run(name, func(t *testing.T) {
			withWays(spread(n, stored(memoryOf)), func() {
				for _, v := range sharedVectors {
					t.Run(v.name, v.test)
				}
			})
		})
	}
}

// Several circuits of a name are one circuit: the model of model_test.go, whose calls and commands go to one or the other.

// shModel is the model beside a fleet.
type shModel struct {
	*mdlModel
	nodes []*shNode
	step  time.Duration // of the waits; 0: any

	opener *shNode // who has opened the circuit, and why: the others do not know
	opened error
}

type shNode struct {
	c     *breaker.Circuit
	b     *breaker.Breaker[int]
	got   []breaker.Transition
	epoch uint64
}

func newShModel(t *rapid.T, n int, cfg mdlConfig) *shModel {
	clk := newMdlClock()
	m := &shModel{mdlModel: newMdlModel(t, clk, cfg)}
	m.shared = true
	if cfg.rule.kind != "consecutive" && cfg.rule.kind != "count" {
		m.step = cfg.rule.last / 20
	}
	s := store.NewMemory(store.WithClock(clk))
	for range n {
		node := &shNode{}
		hooks := breaker.Hooks{
			StateChange: func(e breaker.Transition) { node.got = append(node.got, e) },
			Reject:      func(_ context.Context, e breaker.RejectEvent) { m.gotRej = append(m.gotRej, e) },
		}
		if m.timed {
			hooks.Call = func(_ context.Context, e breaker.CallEvent) { m.gotCall = append(m.gotCall, e) }
		}
		opts := append(cfg.opts(), breaker.WithIgnore(errMdlIgnore), breaker.WithAnswered(errMdlAnswered), breaker.WithHooks(hooks), breaker.WithClock(clk), breaker.WithStore(s))
		b, err := breaker.New[int]("model", opts...)
		if err != nil {
			t.Fatal(err)
		}
		node.b, node.c = b, b.Circuit()
		m.nodes = append(m.nodes, node)
	}
	m.turn()
	m.reset(t) // the first word of a store on an empty ledger is another matter
	return m
}

// turn has another node act.
func (m *shModel) turn() {
	n := m.nodes[rapid.IntRange(0, len(m.nodes)-1).Draw(m.t, "node")]
	m.b, m.c = n.b, n.c
	m.cause = nil
	if n == m.opener {
		m.cause = m.opened
	}
}

func (m *shModel) acting(do func(*rapid.T)) func(*rapid.T) {
	return func(t *rapid.T) { m.turn(); do(t) }
}

func (m *shModel) wait(t *rapid.T) {
	if m.step == 0 {
		m.mdlModel.wait(t)
		return
	}
	m.time.pass(m.step * time.Duration(rapid.SampledFrom([]int{1, 1, 2, 5, 9, 10, 19, 20, 21, 100}).Draw(t, "steps")))
}

// setMode sets the mode of all. Of what a ForcedClosed time has let pass the ledger may remind them at any later word.
func (m *shModel) setMode(t *rapid.T) {
	if m.mdlModel.setMode(t); m.mode == breaker.ForcedClosed {
		m.mode = breaker.Shadow
	}
	for _, n := range m.nodes {
		n.c.SetMode(m.mode)
	}
}

// tripNow is Trip, but not of an open circuit that is due: it stays Open in a new epoch, of which no hook is told.
func (m *shModel) tripNow(t *rapid.T) {
	if !m.due() {
		m.trip(t)
	}
}

func (m *shModel) sync(t *rapid.T) {
	for range 2 {
		for _, n := range m.nodes {
			if err := n.c.Sync(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if m.state != breaker.Closed {
		return
	}
	for i, n := range m.nodes {
		got, want := n.c.Snapshot().Counts, m.counts()
		got.ConsecutiveSuccesses = want.ConsecutiveSuccesses // those that end no run are not reported as a run
		if m.step == 0 {
			got.Failures = want.Failures // a ledger keeps those of the window, in slices
			got.Successes, got.Ignored, got.ConsecutiveSuccesses = want.Successes, want.Ignored, want.ConsecutiveSuccesses
			got.ConsecutiveFailures = want.ConsecutiveFailures
		}
		if got != want {
			t.Fatalf("node %d counts %+v, want %+v", i, got, want)
		}
	}
}

func (m *shModel) check(t *rapid.T) {
	var totals breaker.Totals
	var inFlight int64
	probes := int64(0)
	for i, n := range m.nodes {
		if got := n.c.State(); got != m.visible() {
			t.Fatalf("node %d: State %v, want %v; %+v", i, got, m.visible(), n.c.Snapshot().Shared)
		}
		if got := n.c.Ready(); m.refusal() != "probes" && got != m.admits() {
			t.Fatalf("node %d: Ready %v, want %v (%s)", i, got, m.admits(), m.refusal())
		}
		if m.quiet {
			continue
		}
		s := n.c.Snapshot()
		totals.Calls += s.Totals.Calls
		totals.Successes += s.Totals.Successes
		totals.Failures += s.Totals.Failures
		totals.Ignored += s.Totals.Ignored
		totals.Rejected += s.Totals.Rejected
		totals.Late += s.Totals.Late
		totals.Slow += s.Totals.Slow
		totals.Panics += s.Totals.Panics
		inFlight += s.InFlight
		probes = max(probes, s.Probes)
		if s.State == breaker.Open && !s.Until.Equal(m.until) {
			t.Fatalf("node %d: until %v, want %v", i, s.Until, m.until)
		}
		if s.Shared.Alone || !s.Shared.Connected || s.Shared.Lost != 0 {
			t.Fatalf("node %d: %+v", i, s.Shared)
		}
	}
	if !m.quiet && (fmt.Sprintf("%+v", totals) != fmt.Sprintf("%+v", m.totals) || inFlight != int64(len(m.out))) {
		t.Fatalf("totals %+v, %d in flight, want %+v, %d", totals, inFlight, m.totals, len(m.out))
	}
	m.checkEvents(t)
}

// checkEvents: every node is told of every change, once, in order; one of them as its own doing.
func (m *shModel) checkEvents(t *rapid.T) {
	for i, w := range m.want {
		own := 0
		for j, n := range m.nodes {
			if i >= len(n.got) {
				t.Fatalf("node %d was not told of %+v", j, w)
			}
			g := n.got[i]
			if g.From != w.From || g.To != w.To || !g.At.Equal(w.At) || !g.Until.Equal(w.Until) || g.Epoch <= n.epoch || g.Name != w.Name {
				t.Fatalf("node %d after epoch %d:\n got %+v\nwant %+v", j, n.epoch, g, w)
			}
			if g.Epoch != m.nodes[0].got[i].Epoch {
				t.Fatalf("epochs %d and %d of %+v", g.Epoch, m.nodes[0].got[i].Epoch, w)
			}
			n.epoch = g.Epoch
			switch {
			case g.Remote && g.Reason == breaker.ReasonRemote:
			case g.Remote || g.Reason != w.Reason:
				t.Fatalf("node %d: reason %v, remote %v, want %v", j, g.Reason, g.Remote, w.Reason)
			default:
				own++
				switch w.To {
				case breaker.Open:
					m.opener, m.opened = n, w.Cause
				case breaker.Closed:
					m.opened = nil
				case breaker.HalfOpen:
				}
			}
			if !g.Remote && w.Cause != errMdlAny && !mdlSameError(g.Cause, w.Cause) || g.Remote && g.Cause != nil {
				t.Fatalf("node %d: cause %v, want %v", j, g.Cause, w.Cause)
			}
		}
		if own != 1 {
			t.Fatalf("%d nodes have done %+v", own, w)
		}
	}
	for j, n := range m.nodes {
		if len(n.got) != len(m.want) {
			t.Fatalf("node %d was told of %+v, want %+v", j, n.got, m.want)
		}
		n.got = nil
	}
	for i, w := range m.wantCall {
		if i < len(m.gotCall) && mdlSameError(m.gotCall[i].Err, w.Err) {
			m.gotCall[i].Err = w.Err
		}
	}
	for i := range m.gotRej {
		m.gotRej[i].Err = nil
	}
	if !slices.Equal(m.gotCall, m.wantCall) || !slices.Equal(m.gotRej, m.wantRej) {
		t.Fatalf("hooks\n got %+v %+v\nwant %+v %+v", m.gotCall, m.gotRej, m.wantCall, m.wantRej)
	}
	m.want, m.gotCall, m.wantCall, m.gotRej, m.wantRej = nil, nil, nil, nil, nil
}

func (m *shModel) run() {
	actions := map[string]func(*rapid.T){"": m.check}
	for name, a := range map[string]struct {
		weight int
		do     func(*rapid.T)
	}{
		"call": {9, m.acting(m.call)}, "start": {4, m.acting(m.start)}, "finish": {4, m.finish}, "wait": {4, m.wait}, "already done": {1, m.acting(m.alreadyDone)},
		"Trip": {1, m.acting(m.tripNow)}, "Reset": {1, m.acting(m.reset)}, "OfferProbe": {1, m.acting(m.offer)}, "SetMode": {1, m.setMode}, "Sync": {1, m.sync},
	} {
		for i := range a.weight {
			actions[fmt.Sprintf("%s %d", name, i)] = a.do
		}
	}
	m.t.Repeat(actions)
	for _, o := range m.out {
		if o.permit != nil {
			o.permit.Done(nil)
			o.cancel()
		}
	}
	for i, n := range m.nodes {
		if got := n.c.Snapshot().InFlight; got != 0 {
			m.t.Fatalf("%d in flight on node %d at the end", got, i)
		}
		_ = n.c.Close()
	}
}

func TestShareModel(t *testing.T) {
	for name, rule := range mdlRules {
		if rule.calls > 0 {
			continue
		}
		for _, n := range []int{1, 2, 3} {
			t.Run(fmt.Sprintf("%s, %d circuits", name, n), func(t *testing.T) {
				t.Parallel()
				for range mdlRounds() {
					rapid.Check(t, func(t *rapid.T) {
						cfg := mdlConfig{rule: rule, success: rapid.IntRange(1, 3).Draw(t, "success threshold"), probes: rapid.IntRange(1, 3).Draw(t, "probes"),
							open: 5 * time.Second, lease: time.Duration(rapid.SampledFrom([]int{3, 5, 8}).Draw(t, "lease")) * time.Second}
						if rapid.Bool().Draw(t, "backoff") {
							cfg.factor, cfg.maxOpen = 2, 18*time.Second
						}
						newShModel(t, n, cfg).run()
					})
				}
			})
		}
	}
}
