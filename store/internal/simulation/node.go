package simulation

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/breakerkit/breaker"
)

var (
	errUnreachable = errors.New("store is unreachable")
	errDependency  = errors.New("dependency failed")
)

// node is a process with one circuit.
type node struct {
	w       *World
	id      int
	name    int
	circuit *breaker.Circuit
	handle  *handle
	clock   nodeClock
	mode    breaker.Mode
	dead    bool // killed, or it has left

	reachable time.Duration // the store is, from then on
	resync    bool          // one is to come
	busy      int           // operations on their way
	ops       int

	// What it should have counted.
	running                    int
	succeeded, failed, ignored uint64
	rejected                   uint64
	produced                   uint64           // outcomes in all
	entered                    uint64           // of those, what reached a ledger
	in                         map[uint64]int64 // by epoch: outcomes of calls admitted in it, less those that were entered; 0: the epoch was not known
	counted                    uint64           // failures that belong to a closed epoch, by the Call hook
	slots, probes              int              // slots that it was given, and calls admitted with one
	state                      breaker.State
	epoch, told                uint64 // the highest that it knew, and that its StateChange hook was told
	aloneBefore, restless      bool   // it was alone when it was looked at last, or has met a fault since
	changes                    []breaker.Transition
	stranger                   string // the first StoreError that must not be
}

// nodeClock is a clock that is off, runs fast or slow, and jumps.
type nodeClock struct {
	w     *World
	off   time.Duration
	drift float64
}

func (c *nodeClock) Now() time.Time {
	return origin.Add(c.w.now + c.off + time.Duration(float64(c.w.now)*c.drift))
}
func (c *nodeClock) After(time.Duration) <-chan time.Time { return nil }

// join starts a node.
func (w *World) join() *node {
	n := &node{w: w, in: make(map[uint64]int64), id: w.joined, name: w.joined % w.plan.names}
	w.joined++
	n.clock.w = w
	if w.plan.drift {
		n.clock.drift = (w.rng.Float64() - 0.5) / 50
	}
	if w.plan.jumps {
		n.clock.off = time.Duration(w.n(7200)-3600) * time.Second
	}
	n.handle = &handle{w: w, n: n}
	hooks := breaker.Hooks{
		StateChange: func(t breaker.Transition) {
			n.changes = append(n.changes, t)
			n.restless = n.restless || n.circuit != nil && n.circuit.Snapshot().Shared.Alone
		},
		StoreError: func(err error) {
			if text := err.Error(); strings.Contains(text, "impossible") || strings.Contains(text, "configuration") {
				n.stranger = text
			}
		},
	}
	var reporters []breaker.StoreOption
	if w.plan.minimum > 0 {
		reporters = append(reporters, breaker.MinReporters(w.plan.minimum))
	}
	options := append([]breaker.Option{breaker.WithClock(&n.clock), breaker.WithRand(w.rng.Float64),
		breaker.WithStore(n.handle, reporters...), breaker.WithHooks(hooks)}, w.plan.options...)
	w.nodes, w.all = append(w.nodes, n), append(w.all, n)
	c, err := breaker.NewCircuit(w.names[n.name], options...)
	if err != nil {
		panic(err)
	}
	n.circuit, n.state = c, c.State() // finding out where the others stand is no change
	if s := c.Snapshot(); s.State == breaker.HalfOpen && !s.Until.IsZero() {
		n.state = breaker.Open // whose period has ended
	}
	return n
}

// drop takes a node out, and starts another where they become few. What it was doing goes on without being looked at.
func (w *World) drop(n *node) {
	n.dead = true
	for i := range w.nodes {
		if w.nodes[i] == n {
			w.nodes = append(w.nodes[:i:i], w.nodes[i+1:]...)
			break
		}
	}
	if len(w.nodes) <= w.plan.nodes/2 {
		w.join()
	}
}

// running is a call that has been admitted.
type running struct {
	n      *node
	permit *breaker.Permit
	ends   time.Duration
	closed bool // it was admitted while closed
	probe  bool
	own    bool // a probe without the store's word
	hangs  bool // a probe that outlasts its lease and then fails
	order  int  // in which calls were admitted
	epoch  uint64
	lease  time.Duration // a probe of the store's: until when its slot is good
	ended  bool
}

// proof is the last admitted of the probes of an epoch that have succeeded.
type proof struct {
	epoch uint64
	order int
}

// call makes a call on a node, which must not be busy.
func (w *World) call(n *node) {
	before := n.circuit.Snapshot()
	w.stats.Calls++
	ops, live := n.ops, w.server.live(n.name, w.now)
	permit, err := n.circuit.Acquire(context.Background())
	after := n.circuit.Snapshot()
	quiet := n.ops == ops
	w.note(n.id, "call "+before.State.String(), uint64(n.mode), flag(err == nil)<<1|flag(quiet))
	if err != nil {
		n.rejected++
		if !errors.Is(err, breaker.ErrOpen) {
			w.fail("node %d: rejected with %v", n.id, err)
		}
	}
	switch n.mode {
	case breaker.ForcedOpen:
		if err == nil || !quiet {
			w.fail("node %d: forced open: %v, %d operations", n.id, err, n.ops-ops)
		}
	case breaker.ForcedClosed, breaker.Shadow:
		if err != nil {
			w.fail("node %d: %v: %v", n.id, n.mode, err)
		}
	}
	if n.mode != breaker.Shadow && before.State != breaker.HalfOpen && !quiet {
		w.fail("node %d: a call while %v asked the store", n.id, before.State)
	}
	c := &running{n: n, permit: permit, order: w.stats.Calls}
	if n.mode == breaker.Auto {
		switch {
		case before.State == breaker.Open && err == nil:
			w.fail("node %d: a call passed while open", n.id)
		case before.State == breaker.Closed && err != nil:
			w.fail("node %d: a call was rejected while closed: %v", n.id, err)
		case w.plan.calm && before.State == breaker.HalfOpen && !before.Shared.Alone && live < w.plan.limit && err != nil:
			w.fail("node %d: no probe passed, though only %d slots of %d are in use", n.id, live, w.plan.limit)
		}
		if err == nil && after.State == breaker.HalfOpen {
			c.probe, c.own, c.epoch, c.lease = true, after.Shared.Alone, after.Shared.Epoch, w.now+w.plan.lease
			w.admitted(n, c, after)
		}
	}
	if err != nil {
		return
	}
	n.running++
	c.closed, c.epoch = after.State == breaker.Closed, after.Shared.Epoch
	if c.probe && w.plan.kills && w.chance(0.2) && w.mayKill() {
		w.note(n.id, "KILL", 0, 0)
		w.stats.Killed++
		w.drop(n)
		return
	}
	took := time.Duration(0)
	switch {
	case c.probe && w.plan.hangs && !w.healing && w.chance(0.5):
		c.hangs = true
		took = w.plan.lease + time.Duration(w.n(int(w.plan.lease)))
	case w.chance(0.4):
	case w.plan.slow && !w.healing && w.chance(0.1):
		took = w.plan.lease/2 + time.Duration(w.n(int(2*w.plan.lease)))
	default:
		took = time.Duration(w.n(int(50 * time.Millisecond)))
	}
	c.ends = w.now + took
	w.calls = append(w.calls, c)
	if took == 0 {
		w.end(c)
		return
	}
	w.at(c.ends, func() { w.end(c) })
}

// admitted checks a probe that has been admitted.
func (w *World) admitted(n *node, c *running, after breaker.Snapshot) {
	w.stats.Probes++
	if c.own {
		w.stats.Alone++
		if w.plan.strict {
			w.fail("node %d: is alone", n.id)
		}
		if after.Probes != 1 {
			w.fail("node %d: has %d probes of its own", n.id, after.Probes)
		}
		return
	}
	if n.probes++; n.probes > n.slots {
		w.fail("node %d: %d probes passed with %d slots", n.id, n.probes, n.slots)
	}
	if !w.plan.calm {
		return
	}
	live := 1
	for _, o := range w.calls {
		if o.probe && !o.ended && o.n.name == n.name && o.epoch == c.epoch && w.now < o.lease {
			live++
		}
	}
	if live > w.plan.limit {
		w.fail("%d probes at once, the limit is %d", live, w.plan.limit)
	}
}

// end ends a call.
func (w *World) end(c *running) {
	if c.ended {
		return
	}
	c.ended = true
	for i := range w.calls {
		if w.calls[i] == c {
			w.calls[i] = w.calls[len(w.calls)-1]
			w.calls = w.calls[:len(w.calls)-1]
			break
		}
	}
	n := c.n
	if n.dead {
		return
	}
	n.running--
	n.produced++
	n.in[c.epoch]++
	o := breaker.Success
	switch {
	case c.hangs && !w.healing:
		o = breaker.Failure
		n.failed++
	case w.chance(0.02):
		o = breaker.Ignored
		n.ignored++
	case w.chance(w.failing):
		o = breaker.Failure
		n.failed++
	case w.chance(0.1):
		o = breaker.Answered
		n.succeeded++
		w.stats.Answered++
	default:
		n.succeeded++
	}
	w.note(n.id, "end "+o.String(), flag(c.probe), 0)
	was, before := n.circuit.Snapshot(), w.server.read(n.name)
	c.permit.Settle(o, errDependency)
	if c.closed && n.mode != breaker.ForcedClosed && n.circuit.Snapshot().Totals.Late == was.Totals.Late {
		w.counted(n, o, before)
	}
	if w.plan.calm && !w.plan.modes && c.probe && !c.own && !was.Shared.Alone && before.State == breaker.HalfOpen && before.Epoch == c.epoch {
		w.probed(c, o)
	}
	w.look(n)
}

// probed checks what the outcome of a probe has led to, where nothing goes wrong and no mode lets probes pass unseen. A failure opens, for however long it has
// been on its way: or else a dependency that hangs past the lease would have the circuits half-open for ever. Only the
// success of a probe that was admitted later makes a late one void.
func (w *World) probed(c *running, o breaker.Outcome) {
	p, after := &w.proofs[c.n.name], w.server.read(c.n.name)
	switch {
	case o == breaker.Ignored:
	case o != breaker.Failure:
		if p.epoch != c.epoch || p.order < c.order {
			*p = proof{c.epoch, c.order}
		}
	case w.now >= c.lease && p.epoch == c.epoch && p.order > c.order:
		if after.Epoch != c.epoch {
			w.fail("node %d: a probe that a later one has disproved led to %+v", c.n.id, after)
		}
	case after.State != breaker.Open || after.Epoch == c.epoch:
		w.fail("node %d: a probe failed, late %v, and led to %+v", c.n.id, w.now >= c.lease, after)
	}
}

// counted notes an outcome that counts. Where nothing goes wrong and nobody interferes, a number of failures in a row opens
// the circuit, wherever they are seen, and nothing else does.
func (w *World) counted(n *node, o breaker.Outcome, before breaker.Ledger) {
	run := &w.runs[n.name]
	switch o {
	case breaker.Success:
		*run = 0
	case breaker.Failure:
		n.counted++
		*run++
	}
	p := &w.plan
	if !p.strict || p.row == 0 || p.hands || p.modes {
		return
	}
	after := w.server.read(n.name)
	opened := after.Epoch != before.Epoch && after.State == breaker.Open
	if opened != (*run >= p.row) {
		w.fail("node %d: after %d failures in a row of %d it is in %+v, was in %+v", n.id, *run, p.row, after, before)
	}
	if opened {
		*run = 0
	}
}

// mayKill limits how many nodes die once the faults have ended.
func (w *World) mayKill() bool {
	if w.healing {
		w.spared++
	}
	return w.spared < 2
}

// look checks a node that is not busy.
func (w *World) look(n *node) {
	if n.dead || n.busy > 0 {
		return
	}
	s := n.circuit.Snapshot()
	t := s.Totals
	if t.Successes != n.succeeded || t.Failures != n.failed || t.Ignored != n.ignored || t.Rejected != n.rejected || t.Calls != n.produced {
		w.fail("node %d: totals %+v, should be %d, %d, %d, %d", n.id, t, n.succeeded, n.failed, n.ignored, n.rejected)
	}
	if s.InFlight != int64(n.running) {
		w.fail("node %d: %d in flight, should be %d", n.id, s.InFlight, n.running)
	}
	if n.stranger != "" {
		w.fail("node %d: %s", n.id, n.stranger)
	}
	shared, seen := s.Shared, w.server.names[n.name].states
	alone := shared.Alone || n.aloneBefore || n.restless
	for _, c := range n.changes {
		switch want, ok := seen[c.Epoch]; {
		case c.From != n.state || c.From == c.To:
			w.fail("node %d: change from %v to %v, was %v", n.id, c.From, c.To, n.state)
		case c.Epoch < n.told || c.Epoch == n.told && (!alone || w.plan.strict):
			w.fail("node %d: change to %v in epoch %d after %d", n.id, c.To, c.Epoch, n.told)
		case !alone && (!ok || want != c.To && !(want == breaker.Open && c.To == breaker.HalfOpen)):
			w.fail("node %d: change to %v in epoch %d, which is %v", n.id, c.To, c.Epoch, want)
		}
		n.state, n.told = c.To, c.Epoch
		if m := w.server.names[n.name].moved; c.Remote {
			m[c.Epoch] += 0 // somebody's doing, but not this one's
		} else {
			m[c.Epoch]++
		}
	}
	n.changes = n.changes[:0]
	if shared.Epoch < n.epoch {
		w.fail("node %d: went back from epoch %d to %d", n.id, n.epoch, shared.Epoch)
	}
	n.epoch = shared.Epoch
	if want, ok := seen[n.epoch]; n.epoch != 0 && (!ok || !shared.Alone && want != s.State && !(want == breaker.Open && s.State == breaker.HalfOpen)) {
		w.fail("node %d: is %v in epoch %d, which is %v", n.id, s.State, n.epoch, want)
	}
	if w.plan.calm {
		if shared.Alone && w.plan.strict {
			w.fail("node %d: is alone", n.id)
		}
		if l := w.server.read(n.name); l.Epoch != n.epoch {
			w.fail("node %d: is in epoch %d, the ledger in %d", n.id, n.epoch, l.Epoch)
		}
	}
	n.aloneBefore, n.restless = shared.Alone, false
}

// handle is the store as one node sees it. Like a Memory it waits for nothing.
type handle struct {
	w       *World
	n       *node
	watcher breaker.StoreWatcher
}

func (h *handle) Immediate() bool { return true }
func (h *handle) Close() error    { return nil }

// Watch begins the pushes. They end with the node: its stop is called by a goroutine of its own.
func (h *handle) Watch(w breaker.StoreWatcher) (stop func()) {
	h.watcher = w
	return func() {}
}

func (h *handle) Report(_ context.Context, reports []breaker.StoreReport) []breaker.StoreReply {
	replies := make([]breaker.StoreReply, len(reports))
	for i, r := range reports {
		h.w.owner[r.Node] = h.n
		replies[i].Ledger, replies[i].Err = h.perform(r)
	}
	return replies
}

func (h *handle) Move(_ context.Context, m breaker.StoreMove) (breaker.Ledger, error) {
	return h.perform(m)
}

func (h *handle) Acquire(_ context.Context, a breaker.StoreAcquire) (breaker.Ledger, error) {
	h.w.owner[a.Tokens[0][:16]] = h.n
	l, err := h.perform(a)
	if err == nil {
		h.n.slots += l.Granted
	}
	return l, err
}

func (h *handle) Settle(_ context.Context, v breaker.StoreVerdict) (breaker.Ledger, error) {
	return h.perform(v)
}

func (h *handle) Read(_ context.Context, names []string) []breaker.StoreReply {
	replies := make([]breaker.StoreReply, len(names))
	for i, name := range names {
		replies[i].Ledger, replies[i].Err = h.perform(name)
	}
	return replies
}

// perform carries an operation out, or not.
func (h *handle) perform(op any) (l breaker.Ledger, err error) {
	w, n := h.w, h.n
	w.stats.Operations++
	n.ops++
	n.busy++
	defer func() {
		n.busy--
		if err != nil {
			w.stats.Failed++
			n.restless = true
			n.missed()
			w.note(n.id, fmt.Sprintf("%T failed", op), 0, 0)
		}
	}()
	if w.budget--; w.budget < 0 {
		w.fail("node %d: operations without end, the last is a %T", n.id, op)
		return l, errUnreachable
	}
	if n.dead || w.now < n.reachable || w.now < w.reachable {
		return l, errUnreachable
	}
	w.overlap()
	p := &w.plan
	switch calm := p.calm || w.healing; {
	case calm:
	case w.chance(p.before):
		return l, errUnreachable
	case w.chance(p.late):
		w.later(n, op, false)
		return l, errUnreachable
	case w.chance(p.after):
		w.server.apply(n, op, false)
		return l, errUnreachable
	case w.chance(p.copies):
		w.later(n, op, true)
	}
	l = w.server.apply(n, op, false)
	w.overlap()
	return l, nil
}

// later delivers a copy of an operation after some time, unless the faults have ended by then.
func (w *World) later(n *node, op any, again bool) {
	if _, reads := op.(string); reads {
		return
	}
	w.at(w.now+w.delay(), func() {
		if !w.healing {
			w.note(n.id, "late command", 0, 0)
			w.late = true
			w.server.apply(n, op, again)
			w.late = false
		}
	})
}

// push tells the node of a change.
func (h *handle) push(l breaker.Ledger) {
	w, n := h.w, h.n
	p := &w.plan
	switch calm := p.calm || w.healing; {
	case n.dead:
		return
	case w.now < n.reachable || w.now < w.reachable:
		n.missed()
		return
	case calm:
	case w.chance(p.lost):
		n.missed()
		return
	case w.chance(p.delayed):
		w.at(w.now+w.delay(), func() { h.deliver(l) })
		n.missed()
		return
	case w.chance(p.doubled):
		w.at(w.now+w.delay(), func() { h.deliver(l) })
	}
	h.deliver(l)
}

func (h *handle) deliver(l breaker.Ledger) {
	if n := h.n; !n.dead {
		h.watcher.Changed(h.w.names[n.name], l)
	}
}

// missed has the node read once the store can be reached.
func (n *node) missed() {
	if n.resync {
		return
	}
	n.resync = true
	n.w.at(max(n.w.now, n.reachable, n.w.reachable)+n.w.delay(), n.catchUp)
}

func (n *node) catchUp() {
	n.resync = false
	switch {
	case n.dead:
	case n.w.now < n.reachable || n.w.now < n.w.reachable:
		n.missed()
	default:
		n.handle.watcher.Resync()
		n.w.look(n)
	}
}
