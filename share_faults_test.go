package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/store"
)

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

func newFaulty(w *world, immediate bool) *faulty {
	f := &faulty{immediate: immediate, timeout: 100 * time.Millisecond, free: make(chan struct{}), ops: make(map[string]int)}
	if w.clk != nil {
		f.clk = w.clk
	}
	f.m = store.NewMemory(store.WithClock(f.clk))
	w.atEnd = append(w.atEnd, sync.OnceFunc(func() {
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
	*world
	f     *faulty
	nodes []*rig
	mu    sync.Mutex
	errs  []error // what StoreError hooks were told
}

func newFleet(w *world, f *faulty, n int, opts ...breaker.Option) *fleet {
	fl := &fleet{world: w, f: f}
	for range n {
		fl.join(opts...)
	}
	return fl
}

// join adds a circuit of the fleet.
func (fl *fleet) join(opts ...breaker.Option) *rig {
	hook := breaker.WithHooks(breaker.Hooks{StoreError: func(err error) {
		fl.mu.Lock()
		defer fl.mu.Unlock()
		fl.errs = append(fl.errs, err)
	}})
	r := fl.circuit(append([]breaker.Option{breaker.WithStore(fl.f), hook}, opts...)...)
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
		require.Equal(fl, want, r.c.State(), "node %d at %v; events: %v; %+v", i, fl.elapsed(), r.steps(), r.c.Snapshot().Shared)
	}
}

// settle lets what is going on come to rest.
func (w *world) rest() {
	if w.clk == nil {
		synctest.Wait()
	}
}

func (fl *fleet) sync() {
	fl.Helper()
	for _, r := range fl.nodes {
		require.NoError(fl, r.c.Sync(context.Background()))
	}
	fl.rest()
}

// bothHubs runs a test on a store that is used within the call, and on one that needs the hub's goroutine.
func bothHubs(t *testing.T, f func(*world, *faulty)) {
	for _, immediate := range []bool{true, false} {
		t.Run(fmt.Sprintf("immediate %v", immediate), func(t *testing.T) {
			bubble(t, byDo, func(w *world) { f(w, newFaulty(w, immediate)) })
		})
	}
}

// What a call on a closed circuit, or on an open one, needs of its store: nothing.
func TestShareFaultsCallsDoNotUseTheStore(t *testing.T) {
	bothHubs(t, func(w *world, f *faulty) {
		fl := newFleet(w, f, 2)
		a := fl.nodes[0]
		fl.rest()
		f.count()
		a.ok(10_000)
		require.Zero(w, f.total(), "for admissions and successes on a closed circuit")
		a.c.Trip(nil)
		fl.sync()
		fl.states(breaker.Open)
		f.count()
		for range 10_000 {
			a.rejected()
		}
		require.Zero(w, f.total(), "for rejections on an open circuit")
		f.all(fault{panics: true})
		for range 100 {
			a.rejected()
		}
	})
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
func awayHubs(t *testing.T, f func(*world, *faulty, fault)) {
	for name, ft := range storeFaults {
		t.Run(name, func(t *testing.T) {
			for _, immediate := range []bool{true, false} {
				if immediate && (ft.hangs || ft.wedges || ft.exits) {
					continue // what is immediate does none of this
				}
				t.Run(fmt.Sprintf("immediate %v", immediate), func(t *testing.T) {
					bubble(t, byDo, func(w *world) { f(w, newFaulty(w, immediate), ft) })
				})
			}
		})
	}
}

// atMost requires that f takes no longer than the store's timeout and a quarter.
func (fl *fleet) atMost(f func()) {
	fl.Helper()
	began := fl.now()
	f()
	require.LessOrEqual(fl, fl.now().Sub(began), fl.f.timeout+fl.f.timeout/4, "it waited for the store")
}

func TestShareFaultsStoreIsAway(t *testing.T) {
	awayHubs(t, func(w *world, f *faulty, ft fault) {
		fl := newFleet(w, f, 2, breaker.WithSuccessThreshold(1), breaker.WithHalfOpenProbes(3))
		a, b := fl.nodes[0], fl.nodes[1]
		a.fail(1)
		fl.sync()
		f.all(ft)

		for range 3 {
			fl.atMost(func() { a.fail(1) })
		}
		w.add(2 * time.Second) // it is known by now
		for a.c.State() == breaker.Closed && a.ran.Load() < 20 {
			fl.atMost(func() { a.fail(1) })
			w.add(200 * time.Millisecond)
		}
		a.state(breaker.Open)
		require.LessOrEqual(w, a.ran.Load(), int64(6), "it trips on its own count, which may have begun at 0")
		require.True(w, a.c.Snapshot().Shared.Alone)
		b.state(breaker.Closed)
		opened := w.elapsed()

		fl.atMost(func() { a.rejected() })
		until := a.c.Snapshot().Until.Sub(w.start)
		require.LessOrEqual(w, until-opened, 30*time.Second)
		w.at(until - 1)
		fl.atMost(func() { a.rejected() })
		w.at(until)
		fl.atMost(func() {
			g := a.gate()
			require.ErrorIs(w, a.rejected(), breaker.ErrTooManyProbes, "one probe, whatever the slots")
			g.finish(nil)
		})
		a.state(breaker.Closed)
		b.ok(1)
		w.add(2 * time.Second)
		errs := fl.storeErrors()
		require.NotEmpty(w, errs)
		require.LessOrEqual(w, len(errs), 2, "once for each circuit that has noticed: %v", errs)

		f.heal()
		w.add(3 * time.Second)
		fl.sync()
		fl.sync()
		fl.states(breaker.Closed)
		for _, r := range fl.nodes {
			s := r.c.Snapshot().Shared
			require.True(w, s.Connected, "%+v", s)
			require.False(w, s.Alone, "%+v", s)
		}
		require.Equal(w, a.c.Snapshot().Epoch, b.c.Snapshot().Epoch)
		b.ok(1)
		fl.sync()
		b.fail(2) // and they are one again
		a.fail(3)
		w.add(time.Second)
		fl.states(breaker.Open)
	})
}

// What has been counted arrives once or is counted as lost.
func TestShareFaultsNothingIsCountedTwice(t *testing.T) {
	awayHubs(t, func(w *world, f *faulty, ft fault) {
		fl := newFleet(w, f, 2, breaker.WithTrip(breaker.FailureRate(0.9, 1000, breaker.Last(time.Hour))))
		a, b := fl.nodes[0], fl.nodes[1]
		calls := func(n int) {
			for range n {
				a.fail(1)
				b.ok(2)
				w.add(20 * time.Millisecond)
			}
		}
		calls(10)
		fl.sync()
		f.all(ft)
		calls(100)
		f.heal()
		calls(10)
		w.add(3 * time.Second)
		fl.sync()
		fl.sync()
		produced, lost := uint64(0), uint64(0)
		for _, r := range fl.nodes {
			s := r.c.Snapshot()
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
		require.Equal(w, n.Failures, a.c.Snapshot().Counts.Failures)
		require.Equal(w, n.Successes, b.c.Snapshot().Counts.Successes)
	})
}

// An open circuit stays open until its own deadline, then every node probes by itself, once.
func TestShareFaultsOpenWithoutTheStore(t *testing.T) {
	awayHubs(t, func(w *world, f *faulty, ft fault) {
		fl := newFleet(w, f, 3, breaker.WithSuccessThreshold(1), breaker.WithHalfOpenProbes(5), breaker.WithProbeLease(10*time.Second))
		fl.nodes[0].c.Trip(nil)
		fl.sync()
		fl.states(breaker.Open)
		until := fl.nodes[1].c.Snapshot().Until.Sub(w.start)
		f.all(ft)
		w.at(until - 1)
		for _, r := range fl.nodes {
			fl.atMost(func() { r.rejected() })
		}
		w.at(until)
		var gates []*gate
		for _, r := range fl.nodes {
			fl.atMost(func() { gates = append(gates, r.gate()) })
			fl.atMost(func() { require.ErrorIs(w, r.rejected(), breaker.ErrTooManyProbes) })
		}
		fl.atMost(func() { gates[0].finish(nil) })
		fl.atMost(func() { gates[1].finish(errBoom) })
		fl.nodes[0].state(breaker.Closed)
		fl.nodes[1].state(breaker.Open)
		fl.nodes[2].state(breaker.HalfOpen)
		w.add(2 * time.Second)
		f.heal()
		w.add(3 * time.Second)
		fl.sync()
		// The ledger is where it was, Open and due, or further, where the last answers were lost: nobody's opinion has
		// moved it.
		gates[2].finish(nil)
		w.add(time.Minute)
		for range 3 {
			for _, r := range fl.nodes {
				_ = r.call(nil)
			}
			w.add(11 * time.Second)
		}
		fl.sync()
		fl.states(breaker.Closed)
		require.Equal(w, fl.nodes[0].c.Snapshot().Epoch, fl.nodes[2].c.Snapshot().Epoch)
	})
}

// A circuit can be made while the store is away.
func TestShareFaultsConstructor(t *testing.T) {
	awayHubs(t, func(w *world, f *faulty, ft fault) {
		fl := &fleet{world: w, f: f}
		f.all(ft)
		fl.atMost(func() { fl.join() })
		fl.atMost(func() { fl.join() })
		a := fl.nodes[0]
		fl.atMost(func() { a.ok(3) })
		fl.rest()
		require.NotEmpty(w, fl.storeErrors())
		require.Zero(w, a.c.Snapshot().Shared.Epoch)
		f.heal()
		w.add(2 * time.Second)
		fl.sync()
		a.fail(3)
		fl.nodes[1].fail(2)
		w.add(time.Second)
		fl.states(breaker.Open)
	})
}

// An overlay ends by its own probe, or when the fleet moves on; the others never hear of it.
func TestShareFaultsOverlayIsNotPushed(t *testing.T) {
	for _, moves := range []bool{false, true} {
		t.Run(fmt.Sprint("the fleet moves on: ", moves), func(t *testing.T) {
			bothHubs(t, func(w *world, f *faulty) {
				fl := newFleet(w, f, 2, breaker.WithSuccessThreshold(1))
				a, b := fl.nodes[0], fl.nodes[1]
				b.fail(1)
				fl.sync()
				f.all(fault{before: errStore})
				for range 6 {
					_ = a.call(errBoom)
					w.add(200 * time.Millisecond)
				}
				a.state(breaker.Open)
				until := a.c.Snapshot().Until.Sub(w.start)
				epoch := a.c.Snapshot().Epoch
				f.heal()
				w.add(3 * time.Second)
				fl.sync()
				a.state(breaker.Open)
				b.state(breaker.Closed)
				require.True(w, a.c.Snapshot().Shared.Alone)
				require.True(w, a.c.Snapshot().Shared.Connected)
				require.Equal(w, epoch, a.c.Snapshot().Epoch)
				if moves {
					b.c.Reset()
					fl.sync()
					a.state(breaker.Closed)
					require.Greater(w, a.c.Snapshot().Epoch, epoch)
				} else {
					w.at(until - 1)
					a.rejected()
					w.at(until)
					a.ok(1)
				}
				fl.states(breaker.Closed)
				require.False(w, a.c.Snapshot().Shared.Alone)
				require.Len(w, b.steps(), 0)
				fl.sync()
				b.ok(1)
				fl.sync()
				b.fail(2)
				a.fail(3)
				w.add(time.Second)
				fl.states(breaker.Open)
			})
		})
	}
}

// A store that has lost everything gets it back, with higher epochs.
func TestShareFaultsWipe(t *testing.T) {
	for _, state := range []breaker.State{breaker.Closed, breaker.HalfOpen, breaker.Open} {
		t.Run(state.String(), func(t *testing.T) {
			bothHubs(t, func(w *world, f *faulty) {
				fl := newFleet(w, f, 3, breaker.WithSuccessThreshold(1))
				a, b, c := fl.nodes[0], fl.nodes[1], fl.nodes[2]
				a.c.Trip(nil)
				fl.sync()
				switch state {
				case breaker.Closed:
					a.c.Reset()
					fl.sync()
				case breaker.HalfOpen:
					w.add(30 * time.Second)
					g := a.gate()
					defer g.finish(nil)
					fl.rest()
				case breaker.Open:
				}
				fl.states(state)
				epoch := b.c.Snapshot().Epoch
				w.add(3 * time.Second)
				f.wipe()
				w.add(time.Millisecond)
				before := b.c.Snapshot().Until
				if state != breaker.HalfOpen {
					b.fail2()
				}
				_ = b.c.Sync(context.Background())
				w.add(3 * time.Second)
				fl.sync()
				if state == breaker.HalfOpen { // comes back as a due Open
					_ = b.call(nil)
					w.add(time.Second)
					fl.sync()
					fl.states(breaker.Closed)
				} else {
					fl.states(state)
				}
				require.Equal(w, a.c.Snapshot().Epoch, b.c.Snapshot().Epoch)
				require.Equal(w, c.c.Snapshot().Epoch, b.c.Snapshot().Epoch)
				if state == breaker.Open {
					require.Greater(w, b.c.Snapshot().Epoch, epoch)
					require.WithinDuration(w, before, c.c.Snapshot().Until, 5*time.Millisecond)
					w.at(before.Sub(w.start) + 5*time.Millisecond)
					c.ok(1)
					fl.rest()
				}
				w.add(time.Second)
				fl.states(breaker.Closed)
			})
		})
	}
}

// fail2 makes a failing call that may be rejected.
func (r *rig) fail2() { _ = r.call(errBoom) }

// Impossible ledgers change nothing, and are told of once.
func TestShareFaultsGarbage(t *testing.T) {
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
			bothHubs(t, func(w *world, f *faulty) {
				fl := newFleet(w, f, 2, breaker.WithSuccessThreshold(1))
				a := fl.nodes[0]
				a.c.Reset()
				fl.sync()
				f.all(fault{replies: func(r []breaker.StoreReply) []breaker.StoreReply {
					for i := range r {
						spoil(&r[i].Ledger)
					}
					return r
				}})
				ops := 0
				for i := range 100 {
					_ = a.call(map[bool]error{true: errBoom}[i%3 != 0])
					w.add(50 * time.Millisecond)
					ops += f.total()
				}
				a.c.Trip(nil)
				w.add(time.Second)
				a.c.OfferProbe()
				_ = a.call(nil)
				a.c.Reset()
				w.add(time.Second)
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				go func() { _ = a.c.Sync(ctx) }()
				w.add(time.Second)
				cancel()
				ops += f.total()
				require.Less(w, ops, 5000, "operations")
				s := a.c.Snapshot()
				require.False(w, s.State == breaker.Open && s.Until.Sub(w.now()) > time.Hour, "%v", s.Until)
				errs := fl.storeErrors()
				require.Less(w, len(errs), 100)

				f.heal()
				w.add(time.Minute)
				for range 3 {
					for _, r := range fl.nodes {
						_ = r.call(nil)
					}
					w.add(31 * time.Second)
				}
				fl.sync()
				fl.states(breaker.Closed)
			})
		})
	}
}

// A store whose clock is behind says when it is due: until then calls are rejected, not held.
func TestShareFaultsStoreClockIsBehind(t *testing.T) {
	for name, behind := range map[string]time.Duration{"a nanosecond": 1, "a millisecond": time.Millisecond, "10s": 10 * time.Second, "far": 29 * time.Second} {
		t.Run(name, func(t *testing.T) {
			injected(t, byDo, func(w *world) {
				other := clock.NewMock()
				other.Set(w.start)
				m := store.NewMemory(store.WithClock(other))
				r := w.circuit(breaker.WithStore(m), breaker.WithSuccessThreshold(1))
				r.trip()
				w.at(30 * time.Second)
				other.Set(w.start.Add(30*time.Second - behind))
				ctx, cancel := context.WithTimeout(w.Context(), 2*time.Second)
				defer cancel()
				require.ErrorIs(w, r.callCtx(ctx, nil), breaker.ErrOpen)
				w.add(max(behind, time.Millisecond))
				other.Set(w.start.Add(30 * time.Second))
				require.NoError(w, r.callCtx(ctx, nil))
				r.state(breaker.Closed)
			})
		})
	}
}

// Goexit in a Call hook during a probe: moving stays up
func TestShareGoexitInACallHookOfAProbe(t *testing.T) {
	bothHubs(t, func(w *world, f *faulty) {
		exit := false
		fl := newFleet(w, f, 1, breaker.WithSuccessThreshold(2), breaker.WithHooks(breaker.Hooks{Call: func(context.Context, breaker.CallEvent) {
			if exit {
				runtime.Goexit()
			}
		}}))
		fl.join(breaker.WithSuccessThreshold(2))
		a, b := fl.nodes[0], fl.nodes[1]
		a.c.Trip(nil)
		fl.sync()
		w.add(30 * time.Second)
		exit = true
		inGoroutine(func() { _ = a.call(nil) })
		exit = false
		b.ok(1)
		fl.rest()
		b.state(breaker.Closed)
		a.state(breaker.Closed)
	})
}

// Goexit in a StateChange hook when asking
func TestShareGoexitInAStateChangeHook(t *testing.T) {
	bothHubs(t, func(w *world, f *faulty) {
		var exit atomic.Bool
		fl := newFleet(w, f, 1, breaker.WithSuccessThreshold(3), breaker.WithHooks(breaker.Hooks{StateChange: func(breaker.Transition) {
			if exit.CompareAndSwap(true, false) {
				runtime.Goexit()
			}
		}}))
		a := fl.nodes[0]
		a.c.Trip(nil)
		fl.sync()
		w.add(30 * time.Second)
		exit.Store(true)
		inGoroutine(func() { _ = a.call(nil) })
		synctest.Wait() // until the hooks have been told
		exit.Store(false)
		fl.rest()
		a.ok(1)
		g := a.gate()
		fl.rest()
		require.EqualValues(w, 1, a.c.Snapshot().Probes)
		g.finish(nil)
	})
}

func TestShareSyncInTripWhen(t *testing.T) {
	bothHubs(t, func(w *world, f *faulty) {
		var r *rig
		n := 0
		fl := newFleet(w, f, 1, breaker.WithTrip(breaker.TripWhen(breaker.Last(time.Minute), func(c breaker.Counts) bool {
			n++
			if n < 1000 {
				_ = r.c.Sync(context.Background())
			}
			return c.Failures > 2
		})))
		r = fl.nodes[0]
		r.fail(1)
		fl.rest()
		require.Less(w, n, 10)
	})
}

// Move keeps failing, report works: Sync must end.
func TestShareSyncWhileMovesFail(t *testing.T) {
	bothHubs(t, func(w *world, f *faulty) {
		fl := newFleet(w, f, 1)
		f.only("move", fault{before: errStore})
		fl.nodes[0].c.Trip(nil)
		fl.rest()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- fl.nodes[0].c.Sync(ctx) }()
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

// ErrLedger on move with a lasting order: hot loop
func TestShareBrokenLedgerIsNotAskedAllTheTime(t *testing.T) {
	bothHubs(t, func(w *world, f *faulty) {
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
		fl.nodes[0].c.Trip(nil)
		w.add(time.Second)
		require.Less(w, n, 200)
	})
}

// Trip during an outage, recovered locally before it ends.
func TestShareTripInAnOutageThatIsOver(t *testing.T) {
	bothHubs(t, func(w *world, f *faulty) {
		fl := newFleet(w, f, 2, breaker.WithSuccessThreshold(1))
		fl.sync()
		f.all(fault{before: errStore})
		a, b := fl.nodes[0], fl.nodes[1]
		_ = a.c.Sync(context.Background())
		a.c.Trip(nil)
		w.rest()
		a.state(breaker.Open)
		w.add(30 * time.Second)
		a.ok(1)
		a.state(breaker.Closed)
		w.add(time.Second)
		f.heal()
		w.add(5 * time.Second)
		a.ok(1)
		fl.sync()
		b.state(breaker.Closed)
		a.state(breaker.Closed)
	})
}

// Trip during an outage: still open at its end: how long, how many openings.
func TestShareTripInAnOutageThatOutlivesIt(t *testing.T) {
	bothHubs(t, func(w *world, f *faulty) {
		fl := newFleet(w, f, 2, breaker.WithSuccessThreshold(1), breaker.WithOpenBackoff(2, time.Hour, 0))
		fl.sync()
		f.all(fault{before: errStore})
		a, b := fl.nodes[0], fl.nodes[1]
		_ = a.c.Sync(context.Background())
		a.c.Trip(nil)
		w.rest()
		a.state(breaker.Open)
		w.add(20 * time.Second)
		f.heal()
		w.add(5 * time.Second)
		fl.sync()
		b.state(breaker.Open)
		w.add(35 * time.Second)
		b.state(breaker.HalfOpen)
	})
}

// A Reset during an outage says nothing about an opening that came after it.
func TestShareResetThatAnOpeningHasOvertaken(t *testing.T) {
	bothHubs(t, func(w *world, f *faulty) {
		fl := newFleet(w, f, 1)
		a := fl.nodes[0]
		a.fail(1)
		fl.sync()
		f.all(fault{before: errStore})
		_ = a.c.Sync(context.Background())
		a.fail(1)
		w.add(time.Second)
		a.c.Reset()
		w.rest()
		for range 6 {
			_ = a.call(errBoom)
		}
		w.rest()
		a.state(breaker.Open)
		f.heal()
		w.add(5 * time.Second)
		a.state(breaker.Open)
		w.add(time.Minute)
		a.state(breaker.HalfOpen)
	})
}

// Of the operator's words during an outage, the fleet hears the last.
func TestShareManyOrdersInAnOutage(t *testing.T) {
	for _, last := range []breaker.State{breaker.Open, breaker.Closed} {
		bothHubs(t, func(w *world, f *faulty) {
			fl := newFleet(w, f, 2)
			a, b := fl.nodes[0], fl.nodes[1]
			a.fail(1)
			fl.sync()
			f.all(fault{before: errStore})
			for range 50 {
				a.c.Trip(errBoom)
				a.c.Reset()
			}
			if last == breaker.Open {
				a.c.Trip(errBoom)
			}
			w.rest()
			a.state(last)
			f.heal()
			before := f.count()["move"]
			w.add(5 * time.Second)
			fl.sync()
			fl.states(last)
			require.LessOrEqual(w, f.count()["move"]-before, 3)
			require.LessOrEqual(w, len(b.steps()), 2)
		})
	}
}

// A circuit whose policy asks for what the ledger does not keep has its own counts.
func TestShareConfigureToAnotherWindow(t *testing.T) {
	for name, opt := range map[string]breaker.Option{
		"failure window": breaker.WithFailureWindow(10 * time.Second),
		"count":          breaker.WithTrip(breaker.FailureCount(5, 10*time.Second)),
		"rate":           breaker.WithTrip(breaker.FailureRate(0.5, 5, breaker.Last(10*time.Second))),
	} {
		t.Run(name, func(t *testing.T) {
			bothHubs(t, func(w *world, f *faulty) {
				fl := newFleet(w, f, 1)
				a := fl.nodes[0]
				a.fail(1)
				a.ok(100)
				fl.sync()
				require.NoError(w, a.c.Configure(opt))
				for range 5 {
					_ = a.call(errBoom)
					w.add(100 * time.Millisecond)
				}
				fl.sync()
				a.state(breaker.Open)
				require.True(w, a.c.Snapshot().Shared.Foreign)
			})
		})
	}
}

func TestShareForeignStays(t *testing.T) {
	bothHubs(t, func(w *world, f *faulty) {
		fl := newFleet(w, f, 1)
		b := fl.join(breaker.WithFailureThreshold(7))
		a := fl.nodes[0]
		a.fail(1)
		fl.sync()
		b.fail(1)
		fl.sync()
		require.True(w, b.c.Snapshot().Shared.Foreign)
		a.fail(1)
		fl.sync()
		w.add(3 * time.Second)
		require.True(w, b.c.Snapshot().Shared.Foreign)
		a.ok(1)
		a.fail(1)
		fl.rest()
		require.True(w, b.c.Snapshot().Shared.Foreign)
	})
}

func TestShareConstructingIsNoEvent(t *testing.T) {
	bothHubs(t, func(w *world, f *faulty) {
		fl := newFleet(w, f, 1)
		fl.nodes[0].trip2()
		fl.sync()
		r := fl.join()
		fl.rest()
		r.state(breaker.Open)
		require.Empty(w, r.steps())
	})
}

func (r *rig) trip2() {
	for range 5 {
		r.fail(1)
	}
	_ = r.c.Sync(context.Background())
}

// A word that somebody wanted the turn is heard once.
func TestShareSyncAndTraffic(t *testing.T) {
	bubble(t, byDo, func(w *world) {
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
		go func() { done <- a.c.Sync(context.Background()) }()
		w.add(5 * time.Millisecond)
		a.fail(1)
		w.add(50 * time.Millisecond)
		a.fail(1)
		w.add(time.Second)
		select {
		case err := <-done:
			require.NoError(w, err)
		default:
			require.Fail(w, "Sync has not returned")
		}
		require.Less(w, n, 12)
	})
}

// The first word of a store on an empty ledger: Reset voids what is pending.
func TestShareResetOfAnEmptyLedger(t *testing.T) {
	bothHubs(t, func(w *world, f *faulty) {
		r := newFleet(w, f, 1).nodes[0]
		g := r.gate()
		r.c.Reset()
		require.NoError(w, r.c.Sync(context.Background()))
		g.finish(errBoom)
		s := r.c.Snapshot()
		require.EqualValues(w, 1, s.Totals.Late)
		require.Zero(w, s.ConsecutiveFailures)
	})
}

// One goroutine, whatever the number of circuits, and none once they have left.
func TestShareHubGoroutines(t *testing.T) {
	bubble(t, byDo, func(w *world) {
		counts := make(map[int]int)
		for _, n := range []int{1, 1000} {
			f := newFaulty(w, false)
			before := inBubble()
			var all []*breaker.Circuit
			for i := range n {
				all = append(all, breaker.Must(breaker.NewCircuit(fmt.Sprint("c", i), breaker.WithStore(f))))
			}
			w.add(5 * time.Second)
			counts[n] = inBubble() - before
			require.Equal(w, 1, f.watches)
			for _, c := range all {
				require.NoError(w, c.Close())
				require.NoError(w, c.Close())
			}
			synctest.Wait()
			require.Equal(w, before, inBubble())
			require.Zero(w, f.watches)
			require.NoError(w, all[0].Run(w.Context(), func(context.Context) error { return nil }))
		}
		require.Equal(w, counts[1], counts[1000])
		require.LessOrEqual(w, counts[1], 2)
	})
}

// Circuits that nobody holds any more leave by themselves.
func TestShareHubOfForgottenCircuits(t *testing.T) {
	guard(t, patience, func() {
		f := newFaulty(&world{T: t}, false)
		func() {
			for i := range 10 {
				c := breaker.Must(breaker.NewCircuit(fmt.Sprint("c", i), breaker.WithStore(f)))
				_ = c.Run(t.Context(), func(context.Context) error { return nil })
			}
		}()
		for {
			runtime.GC()
			f.mu.Lock()
			n := f.watches
			f.mu.Unlock()
			if n == 0 {
				return
			}
			runtime.Gosched()
		}
	})
}

// Successes cost nothing by default, and little where a window counts them.
func TestShareHubFlushes(t *testing.T) {
	bubble(t, byDo, func(w *world) {
		f := newFaulty(w, false)
		run := newFleet(w, f, 1).nodes[0]
		w.rest()
		f.count()
		for range 1000 {
			run.ok(100)
			w.add(time.Millisecond)
		}
		n := f.count()
		require.Zero(w, n["report"])
		require.LessOrEqual(w, n["read"], 2)

		rate := newFleet(w, f, 1, breaker.WithStore(f, breaker.FlushEvery(100*time.Millisecond)), breaker.WithTrip(breaker.FailureRate(0.5, 20, breaker.Last(10*time.Second)))).nodes[0]
		w.rest()
		f.count()
		for range 1000 {
			rate.ok(10)
			w.add(time.Millisecond)
		}
		reports := f.count()["report"]
		require.GreaterOrEqual(w, reports, 2, "a busy window is looked at once in a 20th of it")
		require.LessOrEqual(w, reports, 12, "one in 100ms")
	})
}

// Failures near the threshold are reported at once, and a whole fleet knows within a round trip.
func TestShareHubUrgency(t *testing.T) {
	bubble(t, byDo, func(w *world) {
		f := newFaulty(w, false)
		fl := newFleet(w, f, 3)
		w.add(time.Second)
		for i := range 5 {
			fl.nodes[i%3].fail(1)
		}
		w.add(20 * time.Millisecond)
		fl.states(breaker.Open)
	})
}

// Pushes that are lost, late or out of order: polling sees to it, and nobody goes back.
func TestShareHubPushes(t *testing.T) {
	for _, how := range []string{"lost", "reversed", "twice"} {
		t.Run(how, func(t *testing.T) {
			bubble(t, byDo, func(w *world) {
				f := newFaulty(w, false)
				fl := newFleet(w, f, 2, breaker.WithSuccessThreshold(1))
				a, b := fl.nodes[0], fl.nodes[1]
				fl.sync()
				f.pushes.set(how == "lost", how != "lost")
				for range 4 {
					a.c.Trip(nil)
					require.NoError(w, a.c.Sync(context.Background()))
					a.c.Reset()
					require.NoError(w, a.c.Sync(context.Background()))
				}
				a.c.Trip(nil)
				fl.sync()
				epoch := a.c.Snapshot().Epoch
				f.pushes.release(func(held []push) {
					if how == "reversed" {
						slices.Reverse(held)
					}
				})
				w.rest()
				b.ok2()
				w.add(1100 * time.Millisecond)
				fl.states(breaker.Open)
				require.Equal(w, epoch, b.c.Snapshot().Epoch)
				var last uint64
				for _, e := range b.events.list() {
					require.Greater(w, e.Epoch, last)
					last = e.Epoch
				}
			})
		})
	}
}

func (r *rig) ok2() { _ = r.call(nil) }

// One bad node opens alone.
func TestShareMinReporters(t *testing.T) {
	bothHubs(t, func(w *world, f *faulty) {
		for _, bad := range []int{1, 2} {
			fl := newFleet(w, f, 3, breaker.WithStore(f, breaker.MinReporters(2)), breaker.WithTrip(breaker.FailureRate(0.5, 10, breaker.Last(time.Minute))), breaker.WithSuccessThreshold(1))
			fl.nodes[0].c.Reset()
			fl.sync()
			for i := range 12 {
				_ = fl.nodes[i%bad].call(errBoom)
			}
			w.add(2 * time.Second)
			if bad == 2 {
				fl.states(breaker.Open)
				fl.nodes[0].c.Reset()
				fl.sync()
				continue
			}
			fl.nodes[0].state(breaker.Open)
			fl.nodes[1].state(breaker.Closed)
			fl.nodes[1].ok(5)
			w.add(2 * time.Second)
			fl.nodes[2].state(breaker.Closed)
			require.True(w, fl.nodes[0].c.Snapshot().Shared.Alone)
			w.add(28 * time.Second)
			fl.nodes[0].ok(1)
			w.add(2 * time.Second)
			fl.states(breaker.Closed)
			require.False(w, fl.nodes[0].c.Snapshot().Shared.Alone)
			for _, r := range fl.nodes {
				_ = r.c.Close()
			}
		}
	})
}
