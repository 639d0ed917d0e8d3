package breaker

import (
	"context"
	"iter"
	"sync"
	"sync/atomic"
)

// Circuit guards one dependency. It knows no result type; a [Breaker] is a typed view of one. It is safe for concurrent
// use. Make one with NewCircuit: the zero value panics and says so.
//
// A call on a closed circuit takes no lock: it only adds to a counter. The state machine (state.go) runs under mu. What
// calls need to know of its decisions without the lock is published in word and in cachedRejection.
type Circuit struct {
	word            atomic.Uint64                   // the epoch, and what a call has to do in it: see word.go
	settings        atomic.Pointer[settings]        // the configuration in force
	cachedRejection atomic.Pointer[cachedRejection] // a rejection to give out without the lock; nil: none
	shards          atomic.Pointer[shards]          // the counters of a contended circuit; nil until it is one
	cell            cell                            // the counters of a circuit without contention; shards add to them
	name            string
	contention      atomic.Uint32 // how often two calls wanted the same counter at once

	mu               sync.Mutex
	evicted          bool   // its group has evicted it; see group_table.go
	watched          bool   // InFlight has been asked for: from now on the starts of calls are always counted
	untracked        bool   // the starts of calls on the fast path are not counted
	owedStarts       uint32 // calls whose end is among failures or in extras, but whose start was not counted; see oweStartLocked
	run              uint32 // consecutive failures; valid while successesLocked() == runMark
	runMark          uint64 // this epoch's successes at its last failure
	lockedSuccesses  uint64 // this epoch's successes that are not in the cells
	earlierSuccesses uint64 // successes of earlier epochs, and late ones
	failures         uint64 // all, late ones included
	failuresBefore   uint64 // of failures: those of earlier epochs, and late ones
	m                machine
	memory           *memory      // the trip policy's windows; nil if it needs none
	lastFailure      *lastFailure // nil before the first failure
	extras           *extras      // what few circuits need; nil until it is needed
}

// lastFailure is the last failure of a circuit, and the reason why it is open.
type lastFailure struct {
	err   error // nil once a success has ended the run of failures
	at    int64
	cause error // like err, but kept after the run; while the circuit is open, what opened it
}

// extras is what most circuits never need. It is apart from Circuit to keep an idle one small, and holds the state
// of parts that stand above: the notifier, health checks and sharing. The fields named
// ...Before hold what was counted in earlier epochs, and late.
type extras struct {
	ignored       uint64
	ignoredBefore uint64
	slow          uint64
	slowBefore    uint64
	late          uint64
	panics        uint64
	retries       uint64
	left          int64 // functions that Detach has left running, and that keep their places
	rescues       map[Rescue]uint64
	notifier      notifier
	health        health
	share         *share // nil without a store
	closed        bool
}

// Source gives the circuits that something holds. A Circuit is a Source of itself; groups, pools and transports are
// Sources too. The adapters for metrics, traces and status pages take Sources.
type Source interface {
	Circuits() iter.Seq2[string, *Circuit]
}

// NewCircuit makes a circuit. The error names every option that is wrong.
func NewCircuit(name string, opts ...Option) (*Circuit, error) {
	d := newDraft("NewCircuit", scopeCircuit|scopeFixed|scopeSnapshot, opts)
	return newCircuit(name, d)
}

func newCircuit(name string, d *draft) (*Circuit, error) {
	if name == "" {
		d.faults.add("name", `must not be empty, got ""`)
	}
	if err := d.faults.err(); err != nil {
		return nil, err
	}
	c := &Circuit{name: name}
	c.init(sharedSettings(d), d)
	return c, nil
}

// init completes a new circuit. s was made from d.
func (c *Circuit) init(s *settings, d *draft) {
	c.settings.Store(s)
	c.memory = s.trips.newMemory()
	now := s.time.now()
	c.m = machine{epoch: 1, now: now, since: now, until: now, mark: now, mode: d.cfg.Mode}
	if d.snapshot != nil {
		c.restore(s, d.snapshot, d.modeSet)
	}
	c.mu.Lock()
	c.publishLocked(s)
	if c.m.state == Open {
		c.startHealthLocked(s)
	}
	c.mu.Unlock()
	if s.sharing != nil {
		c.joinStore(s)
	}
}

// load returns the settings, and panics by name for a Circuit that no constructor made.
func (c *Circuit) load() *settings {
	if c == nil {
		panic("breaker: nil *Circuit; make one with NewCircuit")
	}
	s := c.settings.Load()
	if s == nil {
		panic("breaker: zero Circuit; make one with NewCircuit")
	}
	return s
}

// Name returns the name given at construction.
func (c *Circuit) Name() string { c.load(); return c.name }

// Config returns the configuration in force, with every default filled in.
func (c *Circuit) Config() Config { return c.load().config() }

// Circuits yields the circuit itself: a Circuit is a [Source].
func (c *Circuit) Circuits() iter.Seq2[string, *Circuit] {
	return func(yield func(string, *Circuit) bool) { yield(c.Name(), c) }
}

// State is the circuit's state now. A circuit whose open period has ended is HalfOpen, even if no call has come since.
// The mode does not change the state: a circuit in ForcedOpen may be Closed. State changes nothing.
func (c *Circuit) State() State {
	now := c.load().time.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.m.stateAt(now)
}

// Ready reports whether a call would be admitted now. It takes no probe slot and counts nothing.
func (c *Circuit) Ready() bool {
	s := c.load()
	if c.undisturbed() {
		return true
	}
	now := s.time.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refusalLocked(c.load(), now) == admitted
}

// Run calls fn if the circuit admits it, and returns what fn returned. The outcome is settled however fn ends: return,
// panic or runtime.Goexit. A context that is already done is returned before anything is counted or taken; a rejection
// is an [*OpenError], or [ErrTooManyInFlight].
func (c *Circuit) Run(ctx context.Context, fn func(context.Context) error) error {
	if c == nil || fn == nil {
		c.load()
		return ErrNilFunc
	}
	b := Breaker[struct{}]{circuit: c} // refers up to breaker.go, so that a call is written once
	_, err := b.Do(ctx, func(ctx context.Context) (struct{}, error) { return struct{}{}, fn(ctx) })
	return err
}

// stepLocked gives an event to the machine and carries out what follows from it: it tells the hooks, starts or stops the
// health check, begins a new epoch's counts and publishes the word. err is the cause if the circuit opens.
func (c *Circuit) stepLocked(s *settings, e *event, fx *effects, err error) {
	m := &c.m
	epoch, mode, leases := m.epoch, m.mode, len(m.leases)
	p := &s.policy
	if s.sharing != nil {
		p = c.policyLocked(s)
	}
	m.step(p, e, fx)
	if m.epoch != epoch {
		if s.sharing != nil {
			c.beginSharedStayLocked(e)
		}
		c.beginEpochLocked(s, fx, err)
	}
	if m.mode != mode {
		c.modeChangedLocked(s, mode)
	}
	if (m.epoch != epoch || m.mode != mode || len(m.leases) != leases) && c.cachedRejection.Load() != nil {
		c.cachedRejection.Store(nil)
	}
	c.publishLocked(s)
	if m.epoch != epoch || m.mode != mode {
		c.recallLocked(s)
	}
	if m.epoch != epoch { // publishLocked has moved the cells' successes into lockedSuccesses
		c.earlierSuccesses += c.lockedSuccesses
		c.lockedSuccesses = 0
		if c.memory != nil {
			c.memory.transferred = 0
		}
	}
}

// modeChangedLocked does what follows from another mode. What ForcedClosed let pass is not held against the circuit
// afterwards: the counts begin anew.
func (c *Circuit) modeChangedLocked(s *settings, old Mode) {
	if s.sharing != nil && c.m.mode == ForcedClosed {
		c.foldTallyLocked()
	}
	if old == ForcedClosed && c.m.state == Closed {
		c.forgetCountsLocked()
	}
	if c.memory != nil {
		c.memory.recheck = true
	}
}

// forgetCountsLocked lets the counts of the present epoch begin anew. The fast path must be off, so that the cells are empty.
func (c *Circuit) forgetCountsLocked() {
	c.earlierSuccesses += c.lockedSuccesses
	c.lockedSuccesses = 0
	c.startCountsLocked()
	if c.lastFailure != nil {
		*c.lastFailure = lastFailure{}
	}
	c.skipTallyLocked()
}

// startCountsLocked puts the run of failures, the windows and the counts other than the successes at 0.
func (c *Circuit) startCountsLocked() {
	c.run, c.runMark = 0, 0
	c.failuresBefore = c.failures
	if c.extras != nil {
		c.extras.ignoredBefore, c.extras.slowBefore = c.extras.ignored, c.extras.slow
	}
	if c.memory != nil {
		c.memory.clear()
	}
}

// beginEpochLocked starts the counts of a new epoch at 0, after queueing the transitions that led to it, with the counts
// of the epoch that has ended, for the hooks.
func (c *Circuit) beginEpochLocked(s *settings, fx *effects, err error) {
	c.endRunLocked(s)
	var counts Counts
	notify := len(s.receivers) > 0 && !c.joiningLocked()
	if notify {
		counts = c.epochCountsLocked(s)
	}
	for i := range fx.moved {
		mv := &fx.moves[i]
		var cause error
		if mv.to == Open {
			cause = c.causeLocked(err, mv)
			c.startHealthLocked(s)
		} else {
			c.stopHealthLocked()
		}
		if notify {
			c.extrasLocked().notifier.add(c.transitionLocked(s, mv, counts, cause), s.receivers)
		}
		counts = Counts{}
	}
	if c.m.state == Closed && c.lastFailure != nil {
		*c.lastFailure = lastFailure{}
	}
	c.startCountsLocked()
}

// causeLocked records and returns why the circuit opens. That is err, the error of the call that opened it. A success
// opens a circuit too, by being the call that reaches a rate's minCalls: then it is the last failure before. Where an
// operator or another process opened it, it is the error they gave, even if that is nil.
func (c *Circuit) causeLocked(err error, mv *move) error {
	if err != nil {
		c.setLastFailureLocked(err, mv.at)
	}
	if c.lastFailure == nil {
		return nil
	}
	if mv.reason == byOperator || mv.reason == byRemote {
		c.lastFailure.cause = err
	}
	return c.lastFailure.cause
}

// setLastFailureLocked records a failure.
func (c *Circuit) setLastFailureLocked(err error, now int64) {
	t := c.lastFailure
	if t == nil {
		t = &lastFailure{}
		c.lastFailure = t
	}
	t.err, t.at, t.cause = err, now, err
}

// lastFailureAtLocked is when the last failure of the present run was. Where that is not known, it is the latest that it can
// have been.
func (c *Circuit) lastFailureAtLocked() int64 {
	if c.lastFailure == nil || c.lastFailure.err == nil {
		return c.m.now
	}
	return c.lastFailure.at
}

// transitionLocked is a move as the hooks are told of it.
func (c *Circuit) transitionLocked(s *settings, mv *move, counts Counts, cause error) Transition {
	wall := s.time.anchor()
	t := Transition{Name: c.name, From: mv.from, To: mv.to, Reason: reasons[mv.reason], At: wall.at(mv.at), Epoch: mv.epoch, Counts: counts, Cause: cause, Remote: mv.reason == byRemote}
	if s.sharing != nil {
		t.Epoch = c.epochLocked()
	}
	if mv.to == Open {
		t.Until = wall.at(mv.until)
	}
	return t
}

// extrasLocked returns extras, and makes them first if there are none.
func (c *Circuit) extrasLocked() *extras {
	if c.extras == nil {
		c.extras = &extras{}
	}
	return c.extras
}
