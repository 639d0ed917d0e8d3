package tests

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/breakertest"
	"github.com/breakerkit/breaker/store"
)

// No test may leave a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// spreadFleet is n circuits of a name on a Memory.
func spreadFleet(w *breakertest.World, n int, opts ...breaker.Option) (nodes []*breakertest.Rig) {
	var clk breaker.Clock
	if w.Clk != nil {
		clk = w.Clk
	}
	m := store.NewMemory(store.WithClock(clk))
	for range n {
		nodes = append(nodes, w.Circuit(append([]breaker.Option{breaker.WithStore(m)}, opts...)...))
	}
	return nodes
}

func allIn(nodes []*breakertest.Rig, want breaker.State) {
	nodes[0].Helper()
	for _, r := range nodes {
		r.Is(want)
	}
}

var errStore = errors.New("store is down")

// faulty is a Memory behind a bad line. Its zero faults are none.
type faulty struct {
	immediate bool
	timeout   time.Duration
	clk       breaker.Clock

	mu      sync.Mutex
	free    chan struct{} // closed by heal, and at the end: what is wedged goes on
	m       *store.Memory
	act     func(op string) fault
	ops     map[string]int
	pushes  *pusher
	applied breaker.Counts // of all reports that were applied
	watches int
}

// fault is what happens to an operation. The zero value is none.
type fault struct {
	before, after error // instead of carrying it out, or after it
	hangs         bool  // until ctx ends
	wedges        bool  // until it is healed, or the end of the test
	panics, exits bool
	replies       func([]breaker.StoreReply) []breaker.StoreReply
}

func newFaulty(w *breakertest.World, immediate bool) *faulty {
	f := &faulty{immediate: immediate, timeout: 100 * time.Millisecond, free: make(chan struct{}), ops: make(map[string]int)}
	if w.Clk != nil {
		f.clk = w.Clk
	}
	f.m = store.NewMemory(store.WithClock(f.clk))
	w.AtEnd(sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		close(f.free)
	}))
	return f
}

func (f *faulty) Immediate() bool        { return f.immediate }
func (f *faulty) Timeout() time.Duration { return f.timeout }

// set makes f act on every operation from here on.
func (f *faulty) set(act func(op string) fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.act = act
}

func (f *faulty) all(ft fault) { f.set(func(string) fault { return ft }) }

func (f *faulty) only(op string, ft fault) {
	f.set(func(o string) fault {
		if o == op {
			return ft
		}
		return fault{}
	})
}

func (f *faulty) heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.act = nil
	close(f.free)
	f.free = make(chan struct{})
}

// count returns how many operations there were since it was last called.
func (f *faulty) count() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := maps.Clone(f.ops)
	clear(f.ops)
	return n
}

func (f *faulty) total() (n int) {
	for _, k := range f.count() {
		n += k
	}
	return n
}

// wipe loses all ledgers.
func (f *faulty) wipe() {
	f.mu.Lock()
	defer f.mu.Unlock()
	_ = f.m.Close()
	f.m = store.NewMemory(store.WithClock(f.clk))
	if f.pushes != nil {
		f.m.Watch(f.pushes)
	}
}

func (f *faulty) do(ctx context.Context, op string, carryOut func(*store.Memory) []breaker.StoreReply) []breaker.StoreReply {
	f.mu.Lock()
	f.ops[op]++
	m, free := f.m, f.free
	var ft fault
	if f.act != nil {
		ft = f.act(op)
	}
	f.mu.Unlock()
	switch {
	case ft.hangs:
		<-ctx.Done()
		return failing(op, ctx.Err())
	case ft.wedges:
		<-free
		return failing(op, errStore)
	case ft.panics:
		panic("the store has panicked")
	case ft.exits:
		runtime.Goexit()
	case ft.before != nil:
		return failing(op, ft.before)
	}
	replies := carryOut(m)
	if ft.after != nil {
		for i := range replies {
			replies[i] = breaker.StoreReply{Err: ft.after}
		}
	}
	if ft.replies != nil {
		return ft.replies(replies)
	}
	return replies
}

// failing is an answer to an operation of any size; many is filled up by the caller.
func failing(_ string, err error) []breaker.StoreReply { return []breaker.StoreReply{{Err: err}} }

func (f *faulty) single(ctx context.Context, op string, carryOut func(*store.Memory) (breaker.Ledger, error)) (breaker.Ledger, error) {
	r := f.do(ctx, op, func(m *store.Memory) []breaker.StoreReply {
		l, err := carryOut(m)
		return []breaker.StoreReply{{Ledger: l, Err: err}}
	})
	if len(r) != 1 {
		return breaker.Ledger{}, errStore
	}
	return r[0].Ledger, r[0].Err
}

func fill(n int, r []breaker.StoreReply) []breaker.StoreReply {
	for len(r) > 0 && len(r) < n && r[0].Err != nil {
		r = append(r, r[0])
	}
	return r
}

func (f *faulty) Report(ctx context.Context, reports []breaker.StoreReport) []breaker.StoreReply {
	return fill(len(reports), f.do(ctx, "report", func(m *store.Memory) []breaker.StoreReply {
		replies := m.Report(ctx, reports)
		f.mu.Lock()
		defer f.mu.Unlock()
		for i, r := range replies {
			if r.Err == nil && r.Ledger.Applied {
				for _, s := range reports[i].Batch.Slices {
					f.applied.Successes += s.Successes
					f.applied.Failures += s.Failures
					f.applied.Ignored += s.Ignored
				}
			}
		}
		return replies
	}))
}

func (f *faulty) Move(ctx context.Context, v breaker.StoreMove) (breaker.Ledger, error) {
	return f.single(ctx, "move", func(m *store.Memory) (breaker.Ledger, error) { return m.Move(ctx, v) })
}

func (f *faulty) Acquire(ctx context.Context, a breaker.StoreAcquire) (breaker.Ledger, error) {
	return f.single(ctx, "acquire", func(m *store.Memory) (breaker.Ledger, error) { return m.Acquire(ctx, a) })
}

func (f *faulty) Settle(ctx context.Context, v breaker.StoreVerdict) (breaker.Ledger, error) {
	return f.single(ctx, "settle", func(m *store.Memory) (breaker.Ledger, error) { return m.Settle(ctx, v) })
}

func (f *faulty) Read(ctx context.Context, names []string) []breaker.StoreReply {
	return fill(len(names), f.do(ctx, "read", func(m *store.Memory) []breaker.StoreReply { return m.Read(ctx, names) }))
}

func (f *faulty) Watch(w breaker.StoreWatcher) func() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watches++
	f.pushes = &pusher{to: w}
	stop := f.m.Watch(f.pushes)
	return func() {
		f.mu.Lock()
		f.watches--
		f.mu.Unlock()
		stop()
	}
}

func (f *faulty) Close() error { return nil }

// pusher is the line by which a store tells a hub.
type pusher struct {
	to breaker.StoreWatcher

	mu    sync.Mutex
	lose  bool
	hold  bool
	held  []push
	count int
}

type push struct {
	name   string
	ledger breaker.Ledger
}

func (p *pusher) Changed(name string, l breaker.Ledger) {
	p.mu.Lock()
	p.count++
	lose, hold := p.lose, p.hold
	if hold {
		p.held = append(p.held, push{name, l})
	}
	p.mu.Unlock()
	if !lose && !hold {
		p.to.Changed(name, l)
	}
}

func (p *pusher) Resync() { p.to.Resync() }

func (p *pusher) set(lose, hold bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lose, p.hold = lose, hold
}

// release delivers what was held, in the order that is given by f.
func (p *pusher) release(f func([]push)) {
	p.mu.Lock()
	held := p.held
	p.held, p.hold = nil, false
	p.mu.Unlock()
	if f != nil {
		f(held)
	}
	for _, h := range held {
		p.to.Changed(h.name, h.ledger)
	}
}

// fleet is several circuits of one name on one store.
type fleet struct {
	*breakertest.World
	f     *faulty
	nodes []*breakertest.Rig
	mu    sync.Mutex
	errs  []error // what StoreError hooks were told
}

func newFleet(w *breakertest.World, f *faulty, n int, opts ...breaker.Option) *fleet {
	fl := &fleet{World: w, f: f}
	for range n {
		fl.join(opts...)
	}
	return fl
}

// join adds a circuit of the fleet.
func (fl *fleet) join(opts ...breaker.Option) *breakertest.Rig {
	hook := breaker.WithHooks(breaker.Hooks{StoreError: func(err error) {
		fl.mu.Lock()
		defer fl.mu.Unlock()
		fl.errs = append(fl.errs, err)
	}})
	r := fl.Circuit(append([]breaker.Option{breaker.WithStore(fl.f), hook}, opts...)...)
	fl.nodes = append(fl.nodes, r)
	return r
}

// storeErrors returns what the hooks were told since it was last called.
func (fl *fleet) storeErrors() []error {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	errs := fl.errs
	fl.errs = nil
	return errs
}

func (fl *fleet) states(want breaker.State) {
	fl.Helper()
	for i, r := range fl.nodes {
		require.Equal(fl, want, r.C.State(), "node %d at %v; events: %v; %+v", i, fl.Elapsed(), r.Steps(), r.C.Snapshot().Shared)
	}
}

// settle lets what is going on come to rest.
func rest(w *breakertest.World) {
	if w.Clk == nil {
		synctest.Wait()
	}
}

func (fl *fleet) sync() {
	fl.Helper()
	for _, r := range fl.nodes {
		require.NoError(fl, r.C.Sync(context.Background()))
	}
	rest(fl.World)
}

// bothHubs runs a test on a store that is used within the call, and on one that needs the hub's goroutine.
func bothHubs(t *testing.T, f func(*breakertest.World, *faulty)) {
	for _, immediate := range []bool{true, false} {
		t.Run(fmt.Sprintf("immediate %v", immediate), func(t *testing.T) {
			breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) { f(w, newFaulty(w, immediate)) })
		})
	}
}

// storeFaults are all the ways in which a store does not answer.
var storeFaults = map[string]fault{
	"an error before": {before: errStore},
	"an error after":  {after: errStore},
	"hangs":           {hangs: true},
	"wedges":          {wedges: true},
	"panics":          {panics: true},
	"exits":           {exits: true},
	"no replies":      {replies: func([]breaker.StoreReply) []breaker.StoreReply { return nil }},
	"many replies":    {replies: func(r []breaker.StoreReply) []breaker.StoreReply { return append(r, r...) }},
}

// awayHubs runs a test for every fault, on both kinds of hub where the fault makes sense there.
func awayHubs(t *testing.T, f func(*breakertest.World, *faulty, fault)) {
	for name, ft := range storeFaults {
		t.Run(name, func(t *testing.T) {
			for _, immediate := range []bool{true, false} {
				if immediate && (ft.hangs || ft.wedges || ft.exits) {
					continue // what is immediate does none of this
				}
				t.Run(fmt.Sprintf("immediate %v", immediate), func(t *testing.T) {
					breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) { f(w, newFaulty(w, immediate), ft) })
				})
			}
		})
	}
}

// atMost requires that f takes no longer than the store's timeout and a quarter.
func (fl *fleet) atMost(f func()) {
	fl.Helper()
	began := fl.Now()
	f()
	require.LessOrEqual(fl, fl.Now().Sub(began), fl.f.timeout+fl.f.timeout/4, "it waited for the store")
}

// line is one process's way to a Memory that several have: circuits on different lines have different hubs. An operation
// that is held is carried out when it is let go, as that of a process that was stopped.
type line struct {
	*store.Memory
	mu    sync.Mutex
	gates map[string]chan struct{}
	held  chan string // the operations that have come to a gate
}

func newLine(w *breakertest.World, m *store.Memory) *line {
	l := &line{Memory: m, gates: make(map[string]chan struct{}), held: make(chan string, 100)}
	w.AtEnd(func() { l.letGo() })
	return l
}

func (*line) Immediate() bool { return false }

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
func processes(w *breakertest.World, n int, opts ...breaker.Option) (lines []*line, nodes []*breakertest.Rig) {
	m := store.NewMemory()
	for range n {
		l := newLine(w, m)
		lines = append(lines, l)
		nodes = append(nodes, w.Circuit(append([]breaker.Option{breaker.WithStore(l)}, opts...)...))
	}
	return lines, nodes
}

// agree requires that all circuits are in one epoch and one state, with one deadline. It returns that.
func agree(nodes []*breakertest.Rig) (until time.Duration) {
	nodes[0].Helper()
	first := nodes[0].C.Snapshot()
	for _, r := range nodes[1:] {
		s := r.C.Snapshot()
		require.Equal(r, first.Epoch, s.Epoch)
		require.Equal(r, first.State, s.State)
		require.Equal(r, first.Until, s.Until)
	}
	return first.Until.Sub(nodes[0].Start)
}
