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
// A call on a closed circuit takes no lock: it adds to a counter. What the machine in state.go decides, it decides under
// mu; word and shut publish as much of it as lock-free readers need.
type Circuit struct {
	word            atomic.Uint64                   // the machine's epoch and how to pass it; see wordFast
	settings        atomic.Pointer[settings]        // the configuration in force
	cachedRejection atomic.Pointer[cachedRejection] // a rejection that holds without asking the machine
	shards          atomic.Pointer[shards]          // counters, once the one below was seen contended
	cell            cell
	name            string
	contention      atomic.Uint32 // how often two calls met at cell

	mu               sync.Mutex
	watched          bool   // somebody wants to know what is in flight
	untracked        bool   // what starts on the fast path is not counted
	run              uint32 // failures in a row; void once successes() is not runMark
	runMark          uint64 // this epoch's successes at the last failure
	lockedSuccesses  uint64 // this epoch's successes besides those in the cells
	earlierSuccesses uint64 // successes before this epoch, and late ones
	failures         uint64
	failuresBefore   uint64 // of those, the ones before this epoch and the late ones
	m                machine
	memory           *memory      // the trip policy's windows; nil where the run is all
	lastFailure      *lastFailure // the last failure; nil before the first
	extras           *extras      // what few circuits need; nil until one does
}

// trouble is the last failure.
type lastFailure struct {
	err   error // of the present run
	at    int64
	cause error // whatever run it was of; once the circuit is open, what opened it
}

// rare is what most circuits never need.
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
// Sources too. Adapters for metrics, traces and pages take Sources.
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
	c.init(newSettings(d, newTimeline(d.clock)), d)
	return c, nil
}

// init puts a new circuit to work. d is what s was made of.
func (c *Circuit) init(s *settings, d *draft) {
	c.settings.Store(s)
	c.memory = s.trips.newMemory()
	now := s.time.now()
	c.m = machine{epoch: 1, now: now, since: now, until: now, ramp: now, mode: d.cfg.Mode}
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

// Config returns what is in force, with every default filled in.
func (c *Circuit) Config() Config { return c.load().config() }

// Circuits yields the circuit itself: a Circuit is a [Source].
func (c *Circuit) Circuits() iter.Seq2[string, *Circuit] {
	return func(yield func(string, *Circuit) bool) { yield(c.Name(), c) }
}

// State is the machine's state now: never Open after the open period has ended. It only reads, and says nothing of the
// mode.
func (c *Circuit) State() State {
	now := c.load().time.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.m.stateAt(now)
}

// Ready reports whether a call would be admitted now. It spends nothing.
func (c *Circuit) Ready() bool {
	s := c.load()
	if c.word.Load()&(wordFast|wordTimed) != 0 {
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
	b := Breaker[struct{}]{circuit: c}
	_, err := b.Do(ctx, func(ctx context.Context) (struct{}, error) { return struct{}{}, fn(ctx) })
	return err
}

// stepLocked runs the machine and does what follows from a change of its state. err is what a change to Open is due to.
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
	if m.mode != mode && c.memory != nil {
		c.memory.recheck = true
	}
	if (m.epoch != epoch || m.mode != mode || len(m.leases) != leases) && c.cachedRejection.Load() != nil {
		c.cachedRejection.Store(nil)
	}
	c.publishLocked(s)
	if m.epoch != epoch { // what was in the cells has been taken out
		c.earlierSuccesses += c.lockedSuccesses
		c.lockedSuccesses = 0
		if c.memory != nil {
			c.memory.transferred = 0
		}
	}
}

// beginEpochLocked starts a new epoch: what happened goes to whoever wants to know, and the counts start at 0.
func (c *Circuit) beginEpochLocked(s *settings, fx *effects, err error) {
	c.endRunLocked(s)
	var counts Counts
	told := len(s.receivers) > 0 && !c.joiningLocked()
	if told {
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
		if told {
			c.extrasLocked().notifier.add(c.transitionLocked(s, mv, counts, cause))
		}
		counts = Counts{}
	}
	if c.m.state == Closed && c.lastFailure != nil {
		*c.lastFailure = lastFailure{}
	}
	c.run, c.runMark = 0, 0
	c.failuresBefore = c.failures
	if c.extras != nil {
		c.extras.ignoredBefore, c.extras.slowBefore = c.extras.ignored, c.extras.slow
	}
	if c.memory != nil {
		c.memory.clear()
	}
}

// causeLocked records why the circuit opens: the error of the call that did it, or the last failure where a success did,
// by being the call that filled the policy's minimum; by hand, what the hand gave.
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

func (c *Circuit) setLastFailureLocked(err error, now int64) {
	t := c.lastFailure
	if t == nil {
		t = &lastFailure{}
		c.lastFailure = t
	}
	t.err, t.at, t.cause = err, now, err
}

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

func (c *Circuit) extrasLocked() *extras {
	if c.extras == nil {
		c.extras = &extras{}
	}
	return c.extras
}
