package breaker

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"
)

// Circuit guards one dependency. It knows no result type; a [Breaker] is a typed view of one. It is safe for concurrent
// use. Make one with NewCircuit: the zero value panics and says so.
//
// A call on a closed circuit takes no lock: it adds to a counter. What the machine in state.go decides, it decides under
// mu; word and shut publish as much of it as lock-free readers need.
type Circuit struct {
	word     atomic.Uint64            // the machine's epoch and how to pass it; see wordPlain
	settings atomic.Pointer[settings] // the configuration in force
	shut     atomic.Pointer[shut]     // a rejection that holds without asking the machine
	shards   atomic.Pointer[shards]   // counters, once the one below was seen contended
	cell     cell
	name     string
	clashes  atomic.Uint32 // how often two calls met at cell

	mu             sync.Mutex
	watched        bool   // somebody wants to know what is in flight
	untracked      bool   // what starts on the fast path is not counted
	run            uint32 // failures in a row; void once successes() is not runMark
	runMark        uint64 // this epoch's successes at the last failure
	slowOK         uint64 // this epoch's successes besides those in the cells
	oks            uint64 // successes before this epoch, and late ones
	failures       uint64
	failuresBefore uint64 // of those, the ones before this epoch and the late ones
	m              machine
	memory         *memory  // the trip policy's windows; nil where the run is all
	trouble        *trouble // the last failure; nil before the first
	rare           *rare    // what few circuits need; nil until one does
}

// The word. Its upper bits are the machine's epoch; the lower ones say what an admission or settlement needs besides.
const (
	wordTick  = 0      // settlement of a success: something more, once in every 2^n; 4 bits of n, 0 for nothing
	wordTimed = 1 << 4 // admission: the time, but no lock
	wordPlain = 1 << 5 // admission: nothing. It is the bit that a zero Circuit lacks
	wordTrack = 1 << 6 // admission: count it, so that calls in flight are known
	wordNote  = 1 << 7 // settlement of a success: the lock
	wordEpoch = 8
	wordTag   = 5 // from here on, a success must be counted under the word that admitted it
)

// ticks reports whether the n-th success of a cell has something more to do.
func ticks(word, n uint64) bool {
	every := word >> wordTick & 15
	return every != 0 && n<<(64-every) == 0
}

// untrackAfter is how many successes a circuit has before it stops counting what starts, unless somebody has taken a
// Snapshot: each of the two counts is a third of the cost of a call. They are counted in a cell, by ticks.
const untrackAfter = 1 << trackTick

const trackTick = 15

// cell counts what happens without the lock. ok carries in its upper 16 bits those of the word from wordTag on, so
// that a success is counted under the word that admitted it or not at all.
type cell struct {
	started  atomic.Uint64
	ok       atomic.Uint64
	rejected atomic.Uint64
}

const (
	tagShift  = 48
	countMask = 1<<tagShift - 1
)

func tagOf(word uint64) uint64 { return word >> wordTag << tagShift }

// trouble is the last failure.
type trouble struct {
	err   error // of the present run
	at    int64
	cause error // whatever run it was of; once the circuit is open, what opened it
}

// rare is what most circuits never need.
type rare struct {
	ignored       uint64
	ignoredBefore uint64
	slow          uint64
	slowBefore    uint64
	late          uint64
	panics        uint64
	retries       uint64
	rescues       map[Rescue]uint64
	notifier      notifier
	health        health
	share         *share // nil without a store
	closed        bool
}

// shut is a rejection that holds until a time.
type shut struct {
	err     *OpenError
	refused refusal
	until   int64
	quick   bool // nobody wants to be told, and time.Since(base) is the time
	base    time.Time
	time    *timeline
	tell    *settings // whose Reject hooks want to know; nil: nobody does
}

// now is the time where it is quick.
func (sh *shut) now() int64 { return int64(time.Since(sh.base)) }

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
	if c.word.Load()&(wordPlain|wordTimed) != 0 {
		return true
	}
	now := s.time.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refusalLocked(c.load(), now) == admitted
}

// refusalLocked says why a call would be rejected now. It moves nothing.
func (c *Circuit) refusalLocked(s *settings, now int64) refusal {
	m := c.m // a copy
	m.now = max(m.now, now)
	if m.mode == ForcedClosed || m.mode == Shadow {
		return admitted
	}
	p, denied := c.readyPolicyLocked(s, &m)
	if denied {
		return refusedProbes
	}
	return m.refusal(p, c.inFlightLocked())
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

// Permit is one admitted call in two-step use: from Acquire to Done or Settle, on any goroutine. Only the first
// settlement counts. A probe's permit that is never settled loses its slot at the end of the lease; any other keeps
// counting as in flight.
type Permit struct {
	circuit *Circuit
	ctx     context.Context
	call    call
}

// Acquire asks to make a call. The error is the context's if that is already done, otherwise the rejection.
func (c *Circuit) Acquire(ctx context.Context) (*Permit, error) {
	c.load()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var k call
	if err := c.admit(ctx, &k); err != nil {
		return nil, err
	}
	return &Permit{circuit: c, ctx: ctx, call: k}, nil
}

// Done settles the call by its error, classified like the error of a function given to Run. On a nil Permit it does
// nothing.
func (p *Permit) Done(err error) {
	if !p.first() {
		return
	}
	c := p.circuit
	if err == nil && c.succeed(&p.call) {
		return
	}
	defer p.ensure()
	c.finish(p.ctx, &p.call, err)
}

// Settle settles the call with an outcome; cause is the error behind a Failure, if there is one. On a nil Permit it does
// nothing.
func (p *Permit) Settle(o Outcome, cause error) {
	if !p.first() || o == Success && p.circuit.succeed(&p.call) {
		return
	}
	defer p.ensure()
	p.circuit.settle(p.ctx, &p.call, validOutcome(o), cause)
}

// first reports whether this settlement is the first.
func (p *Permit) first() bool {
	return p != nil && p.circuit != nil && atomic.LoadUint32(&p.call.ended) == 0 && atomic.CompareAndSwapUint32(&p.call.ended, 0, 1)
}

// ensure settles the call where a user's function kept the settlement from it.
func (p *Permit) ensure() {
	if !p.call.settled {
		p.circuit.abort(p.ctx, &p.call)
	}
}

// Trip opens the circuit now, as if the policy had tripped, for a full open period. On an open circuit it changes
// nothing. cause may be nil.
//
// With a [Store] Trip, Reset and OfferProbe move all circuits of the name, and do not wait for it; Sync does. Where the
// store is away, the circuit moves alone, and Trip and Reset are made up for when the store is back.
func (c *Circuit) Trip(cause error) {
	s := c.load()
	e := event{kind: evTrip, hint: int64(s.hint(cause)), random: s.openJitter()}
	c.command(s, order{to: Open, why: byHand, event: e, cause: cause})
}

// Reset closes the circuit and forgets its counts, its windows and its open backoff. The results of calls still pending
// count in the totals only. It does not touch the mode or the totals.
func (c *Circuit) Reset() {
	c.command(c.load(), order{to: Closed, why: byHand, event: event{kind: evReset}})
}

// OfferProbe makes an open circuit half-open before its time, as when a health check has passed. In other states it
// changes nothing.
func (c *Circuit) OfferProbe() {
	c.command(c.load(), order{to: HalfOpen, why: byHealthCheck, event: event{kind: evOffer}})
}

// SetMode sets the mode. The machine keeps its state underneath.
func (c *Circuit) SetMode(m Mode) {
	s := c.load()
	if int(m) >= len(modeNames) {
		panic(fmt.Sprintf("breaker: SetMode: must be a Mode, got %d", uint8(m)))
	}
	c.operate(s, event{kind: evSetMode, mode: m}, nil)
}

// command carries out an operator's move: the store's where there is one, or else the circuit's own.
func (c *Circuit) command(s *settings, o order) {
	if s.sharing == nil || !c.orderMove(o) {
		c.operate(s, o.event, o.cause)
	}
}

// operate carries out a manual operation.
func (c *Circuit) operate(s *settings, e event, cause error) {
	e.now = s.time.now()
	var fx effects
	c.mu.Lock()
	s = c.load()
	c.stepLocked(s, &e, &fx, cause)
	n := c.notifierLocked(&fx)
	c.mu.Unlock()
	n.deliver(s)
}

// Configure changes what is in force by some options. If any is wrong, or may not change on a running circuit (Clock,
// Hooks, Snapshot), it changes nothing and the error names all that are. The state, the remaining time of an open period
// and the run of failures survive; the counts of a window survive where the window stays the same.
func (c *Circuit) Configure(opts ...Option) error {
	for {
		old := c.load()
		d := old.draft
		d.snapshot = nil
		d.take("Configure", scopeCircuit, opts)
		if err := d.faults.err(); err != nil {
			return err
		}
		if c.adopt(old, newSettings(&d, old.time)) {
			return nil
		}
	}
}

// put makes c adopt settings whatever it has.
func (c *Circuit) put(s *settings) {
	for !c.adopt(c.load(), s) {
		continue
	}
}

// adopt puts new settings in the place of the old ones, unless those have been replaced meanwhile.
func (c *Circuit) adopt(old, s *settings) bool {
	now := s.time.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.settings.Load() != old {
		return false
	}
	c.fileLocked(old, now)
	c.endRunLocked(old)
	c.memory = c.memory.carry(old.trips, s.trips)
	if c.memory != nil {
		c.memory.filed = c.inCellsLocked()
		c.memory.recheck = true
	}
	if s.draft.cfg.Mode != old.draft.cfg.Mode {
		c.m.mode = s.draft.cfg.Mode
	}
	c.settings.Store(s)
	c.shut.Store(nil)
	c.publishLocked(s)
	if c.m.state == Open {
		if s.draft.cfg.HealthCheck != old.draft.cfg.HealthCheck || s.draft.healths != old.draft.healths {
			c.stopHealthLocked()
		}
		c.startHealthLocked(s)
	}
	return true
}

// Close stops the circuit's health check, reports to its [Store] what is still to be reported, and leaves the store.
// Calls go on as before, on a circuit of this process alone. It may be called more than once.
func (c *Circuit) Close() error {
	s := c.load()
	c.mu.Lock()
	c.rareLocked().closed = true
	c.stopHealthLocked()
	c.mu.Unlock()
	if s.sharing != nil {
		c.leaveStore()
	}
	return nil
}

// call is one admitted call until it settles.
type call struct {
	word    uint64 // the word that admitted it
	cell    *cell  // nil: not on the fast path; of word, only the epoch means something
	start   int64
	lease   int64 // of a probe
	probe   bool
	state   State
	settled bool
	ended   uint32 // of a Permit, atomic: 1 once somebody settles it
}

// counters returns where this goroutine counts.
func (c *Circuit) counters() *cell {
	if s := c.shards.Load(); s != nil {
		return s.pick()
	}
	return &c.cell
}

// admit lets a call pass or returns why not. Closed and undisturbed, it is one load and one add.
func (c *Circuit) admit(ctx context.Context, k *call) error {
	w := c.word.Load()
	if w&wordPlain == 0 {
		if err := c.shutOut(ctx); err != nil {
			return err
		}
		return c.admitSlow(ctx, k, w)
	}
	k.enter(c, w)
	return nil
}

// enter admits a call without the lock.
func (k *call) enter(c *Circuit, w uint64) {
	k.word, k.cell = w, c.counters()
	if w&wordTrack != 0 {
		k.cell.started.Add(1)
	}
}

// shutOut rejects a call where a rejection given before still holds. It takes no lock, and nearly all of its time is the
// clock's.
func (c *Circuit) shutOut(ctx context.Context) error {
	sh := c.shut.Load()
	if sh == nil {
		return nil
	}
	if sh.until != never {
		var now int64
		if t := sh.time; t.clock == nil {
			now = int64(time.Since(t.base)) // as t.now does, which is too large to be inlined
		} else {
			now = t.injectedNow()
		}
		if now >= sh.until {
			return nil
		}
	}
	cl := c.counters()
	if n := cl.rejected.Load(); !cl.rejected.CompareAndSwap(n, n+1) {
		c.rejectedAnew(cl)
	}
	if sh.tell != nil {
		sh.tell.rejected(ctx, sh.err)
	}
	return sh.err
}

// rejectedAnew counts a rejection that has met another call at its counter.
func (c *Circuit) rejectedAnew(cl *cell) {
	c.contended()
	cl.rejected.Add(1)
}

// admitSlow lets a call pass that only wants to know when it starts; otherwise it asks the machine.
func (c *Circuit) admitSlow(ctx context.Context, k *call, w uint64) error {
	s := c.load()
	now := s.time.now()
	if w&wordTimed != 0 {
		k.word, k.start = w, now
		c.counters().started.Add(1)
		return nil
	}
	return c.admitLocking(ctx, k, now)
}

func (c *Circuit) admitLocking(ctx context.Context, k *call, now int64) error {
	var fx effects
	e := event{kind: evAdmit, now: now}
	c.mu.Lock()
	s := c.load()
	for s.sharing != nil {
		f, asks := c.storeSlotLocked(s, &e)
		if f == nil {
			break
		}
		c.mu.Unlock()
		if err := c.awaitSlot(ctx, f, asks); err != nil {
			return err
		}
		e.now = s.time.now()
		c.mu.Lock()
		s = c.load()
	}
	if s.policy.maxInFlight > 0 {
		e.inFlight = c.inFlightLocked()
	}
	c.stepLocked(s, &e, &fx, nil)
	n := c.notifierLocked(&fx)
	var err error
	if fx.refused != admitted {
		err = c.rejectionLocked(s, fx.refused)
	}
	pass := fx.refused == admitted || fx.shadow
	if pass {
		c.cell.started.Add(1)
		k.word, k.probe, k.lease = fx.pass.epoch<<wordEpoch, fx.pass.probe, fx.pass.lease
		k.start, k.state = now, c.m.state
	}
	c.mu.Unlock()
	if !pass {
		c.counters().rejected.Add(1)
	}
	if n != nil || s.onReject && err != nil {
		c.announce(ctx, s, k, n, err, pass)
	}
	if pass {
		return nil
	}
	return err
}

// announce tells the hooks about an admission. If one of them ends the goroutine, the call will never be made: what it
// took is handed back.
func (c *Circuit) announce(ctx context.Context, s *settings, k *call, n *notifier, rejection error, passed bool) {
	told := false
	defer func() {
		if passed && !told {
			c.settle(ctx, k, Ignored, nil)
		}
	}()
	n.deliver(s)
	if s.onReject && rejection != nil {
		s.hookReject(ctx, RejectEvent{Name: c.name, Err: rejection, Shadow: passed})
	}
	told = true
}

// rejectionLocked returns the error for a refusal. One error serves until the machine moves; the lock-free path gives it
// out for as long as it is sure to hold.
func (c *Circuit) rejectionLocked(s *settings, r refusal) error {
	if r == refusedInFlight {
		return ErrTooManyInFlight
	}
	if sh := c.shut.Load(); sh != nil && sh.refused == r && c.m.now < sh.err.at {
		return sh.err
	}
	e := &OpenError{Circuit: c.name, State: c.m.stateAt(c.m.now), Mode: c.m.mode, probes: r == refusedProbes, time: s.time}
	if c.trouble != nil && c.m.state != Closed {
		e.Cause = c.trouble.cause
	}
	sh := &shut{err: e, refused: r, until: c.nextProbeLocked(), time: s.time, base: s.time.base}
	sh.quick = s.time.clock == nil && !s.onReject && r != refusedForced
	if s.onReject {
		sh.tell = s
	}
	switch r {
	case refusedForced:
		sh.until = never
		e.at = never
	case refusedRamp:
		e.at, sh.until = c.m.ramp, c.m.since
		e.Until = s.time.anchor().at(c.m.ramp)
	default:
		e.at = c.slotFreeAtLocked(sh.until)
		e.Until = s.time.anchor().at(e.at)
	}
	if c.m.mode == Shadow {
		sh.until = c.m.since // nobody is rejected without the machine
	}
	c.shut.Store(sh)
	return e
}

// opened returns the rejection that a call would meet now because the circuit is open, and counts nothing.
func (c *Circuit) opened() error {
	if c.word.Load()&(wordPlain|wordTimed) != 0 {
		return nil
	}
	now := c.load().time.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.load()
	if r := c.refusalLocked(s, now); r == refusedOpen || r == refusedForced {
		return c.rejectionLocked(s, r)
	}
	return nil
}

// succeed settles a success without the lock, if nothing but a count is needed.
func (c *Circuit) succeed(k *call) bool {
	if k.cell == nil || c.word.Load() != k.word || k.word&wordNote != 0 {
		return false
	}
	for {
		n := k.cell.ok.Load()
		if n&^countMask != tagOf(k.word) {
			return false
		}
		if k.cell.ok.CompareAndSwap(n, n+1) {
			k.settled = true
			if ticks(k.word, n+1) {
				c.tick(k.word, n+1&countMask)
			}
			return true
		}
		c.contended()
	}
}

// finish classifies an error and settles the call.
func (c *Circuit) finish(ctx context.Context, k *call, err error) Outcome {
	o := c.Classify(ctx, err)
	c.settle(ctx, k, o, err)
	return o
}

// abort settles a call that ended by panic or runtime.Goexit.
func (c *Circuit) abort(ctx context.Context, k *call) {
	c.settle(ctx, k, Failure, errAbnormal)
}

// preclassify decides what comes before every classifier: the caller's own cancel, then the lists.
func (s *settings) preclassify(ctx context.Context, err error) (Outcome, bool) {
	if err == nil {
		return Success, false
	}
	if ended := ctx.Err(); ended != nil && (s.draft.cfg.IgnoreCallerDeadline || !errors.Is(ended, context.DeadlineExceeded)) {
		return Ignored, true
	}
	for _, e := range s.draft.failOn {
		if errors.Is(err, e) {
			return Failure, true
		}
	}
	for _, e := range s.draft.ignore {
		if errors.Is(err, e) {
			return Ignored, true
		}
	}
	return Success, false
}

// validOutcome takes what a classifier returned for Failure where it is no Outcome.
func validOutcome(o Outcome) Outcome {
	if int(o) >= len(outcomeNames) {
		return Failure
	}
	return o
}

// settle ends a call with an outcome. err is what it returned.
func (c *Circuit) settle(ctx context.Context, k *call, o Outcome, err error) {
	s := c.load()
	if o == Failure && err == nil {
		err = ErrUnacceptable
	}
	e := event{kind: evSettle, outcome: o, random: s.openJitter()} // a success may open too: by being slow, or one too few
	e.pass.epoch, e.pass.probe, e.pass.lease = k.word>>wordEpoch, k.probe, k.lease
	if o == Failure {
		e.hint = int64(s.hint(err))
	}
	e.now = s.time.now()
	took := time.Duration(0)
	if s.timed && k.cell == nil { // the fast path does not know when it started
		took = duration(max(0, e.now-k.start))
	}

	var judged *StoreReply
	if s.sharing != nil && e.pass.probe {
		judged = c.settleProbe(s, &e, s.trips.isSlow(took))
	}
	var fx effects
	c.mu.Lock()
	s = c.load() // Configure may have been here
	k.settled = true
	if k.cell != nil && k.word&wordTrack == 0 {
		c.cell.started.Add(1) // it ends on the slow path, which counts it: so must its start be
	}
	cause := c.countLocked(s, &e, took, err)
	var u urgency
	if s.sharing != nil {
		u = c.deferToStoreLocked(s, &e, cause)
	}
	c.stepLocked(s, &e, &fx, cause)
	if judged != nil {
		c.applySettlementLocked(s, judged, cause, e.now)
	}
	n := c.notifierLocked(&fx)
	var asked []Counts
	if s.trips.user && !fx.late && fx.moved == 0 && c.m.state == Closed && !c.storeDecidesLocked() {
		var few [2]Counts // in here, since others need not clear it
		asked = c.countsForUserLocked(s, few[:0])
	}
	c.mu.Unlock()

	if s.sharing != nil {
		defer c.afterSettlement(judged, u) // whatever becomes of this goroutine in a user's function
	}
	if s.onCall {
		call := CallEvent{Name: c.name, State: k.state, Outcome: o, Probe: k.probe, Late: fx.late, Duration: took, Err: err}
		s.called(ctx, call, n)
	} else {
		n.deliver(s)
	}
	if asked != nil && s.userTrips(c.name, asked) {
		e.trip = true
		c.operate(s, e, cause)
	}
}

// countLocked enters an outcome into the totals and, while its epoch lasts, into the run and the windows; then it asks
// the trip policy. It returns the cause of what may follow.
func (c *Circuit) countLocked(s *settings, e *event, took time.Duration, err error) (cause error) {
	current := e.pass.epoch == c.m.epoch
	slow := s.trips.isSlow(took) && e.outcome != Ignored
	if current && c.m.state == Closed {
		c.fileLocked(s, e.now)
	}
	c.tallyLocked(e.outcome, slow, current)
	if err == errAbnormal {
		c.rareLocked().panics++
	}
	switch {
	case e.outcome == Failure:
		cause = err
	case slow:
		cause = errSlowCall
	}
	switch {
	case !current:
		c.rareLocked().late++
	case c.m.state == Closed:
		c.rememberLocked(s, e, took, err)
		if s.sharing != nil {
			c.addToTallyLocked(s, e, slow)
		}
	case !e.pass.probe || e.outcome != Success:
	case slow:
		e.outcome = Failure // of the probe; the call was a success
	case c.trouble != nil:
		c.trouble.err = nil // the run of failures has ended
	}
	return cause
}

// tallyLocked adds to the totals; what is not of this epoch, to what was before it as well.
func (c *Circuit) tallyLocked(o Outcome, slow, current bool) {
	var before uint64
	if !current {
		before = 1
	}
	switch o {
	case Success, Answered:
		c.oks += before
		c.slowOK += 1 - before
	case Failure:
		c.failures++
		c.failuresBefore += before
	case Ignored:
		r := c.rareLocked()
		r.ignored++
		r.ignoredBefore += before
	}
	if slow {
		r := c.rareLocked()
		r.slow++
		r.slowBefore += before
	}
}

// rememberLocked enters an outcome of the closed state into the run and the windows.
func (c *Circuit) rememberLocked(s *settings, e *event, took time.Duration, err error) {
	now := max(c.m.now, e.now)
	c.endRunLocked(s)
	if e.outcome == Failure {
		if c.run < maxCount {
			c.run++
		}
		c.runMark = c.successesLocked()
		c.blameLocked(err, now)
	}
	if c.memory != nil {
		c.memory.add(s.trips, now, e.outcome, took)
		c.memory.adapt(s, now, e.outcome)
	}
	e.trip = e.outcome != Ignored && s.trips.holds(c.memory, now, c.run)
	if c.memory != nil && e.outcome != Ignored {
		c.memory.recheck = false
	}
	if e.trip && e.outcome == Failure && c.sealLocked() {
		c.fileLocked(s, now)
		c.run, c.runMark = 1, c.successesLocked()
		if c.memory != nil {
			c.memory.restartRun(s.trips, now)
		}
		e.trip = s.trips.holds(c.memory, now, c.run)
	}
}

// sealLocked ends the fast path before a failure trips, and reports whether a success has slipped in since that failure
// was counted. It then came before: either it breaks the run, or it comes too late, but never both.
func (c *Circuit) sealLocked() bool {
	if w := c.word.Load(); w&wordPlain != 0 {
		sealed := w &^ wordPlain
		c.word.Store(sealed)
		c.retagLocked(w, sealed)
	}
	return c.successesLocked() != c.runMark
}

// endRunLocked ends a run of failures that a success has broken. Successes do not write; their number tells.
func (c *Circuit) endRunLocked(s *settings) {
	if c.run == 0 || c.runMark == c.successesLocked() {
		return
	}
	c.run = 0
	if c.trouble != nil {
		c.trouble.err = nil
	}
	if c.memory != nil {
		c.memory.endRun(s.trips)
	}
}

func (c *Circuit) blameLocked(err error, now int64) {
	t := c.trouble
	if t == nil {
		t = &trouble{}
		c.trouble = t
	}
	t.err, t.at, t.cause = err, now, err
}

// fileLocked enters the successes of the fast path into the windows.
func (c *Circuit) fileLocked(s *settings, now int64) { c.fileOwnLocked(s, now, 0) }

// fileOwnLocked is fileLocked for a caller that knows own of these successes to be of this moment.
func (c *Circuit) fileOwnLocked(s *settings, now int64, own uint64) {
	if c.memory == nil || len(c.memory.windows) == 0 {
		return
	}
	now = max(c.m.now, now)
	n := c.inCellsLocked() - c.memory.filed
	own = min(own, n)
	c.memory.file(c.memory.filingTime(s, now), n-own)
	c.memory.file(now, own)
}

// tick is called by the successes of a cell for which something more is to be done.
func (c *Circuit) tick(w, count uint64) {
	if w&wordTrack == 0 || count%untrackAfter != 0 {
		c.sample()
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.untracked = !c.watched
	c.publishLocked(c.load())
}

// sample looks at the clock for the successes of a busy circuit. Now and then it enters them into the windows, and asks
// the trip policy, since what has left a time window may raise its rate. When another call holds the lock, that one has
// looked at the clock.
func (c *Circuit) sample() {
	s := c.load()
	now, random := s.time.now(), s.openJitter()
	if !c.mu.TryLock() {
		return
	}
	s = c.load()
	var fx effects
	var n *notifier
	var u urgency
	if c.m.state == Closed && c.memory != nil && c.memory.sampled(now) {
		c.fileOwnLocked(s, now, 1)
		now = max(c.m.now, now)
		c.endRunLocked(s)
		e := event{kind: evSettle, now: now, random: random, pass: pass{epoch: c.m.epoch}, trip: s.trips.holds(c.memory, now, c.run)}
		if s.sharing != nil {
			u = c.deferToStoreLocked(s, &e, nil)
		}
		c.stepLocked(s, &e, &fx, nil)
		n = c.notifierLocked(&fx)
	}
	c.mu.Unlock()
	n.deliver(s)
	if s.sharing != nil {
		c.afterSettlement(nil, u)
	}
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
		c.turnLocked(s, fx, err)
	}
	if m.mode != mode && c.memory != nil {
		c.memory.recheck = true
	}
	if (m.epoch != epoch || m.mode != mode || len(m.leases) != leases) && c.shut.Load() != nil {
		c.shut.Store(nil)
	}
	c.publishLocked(s)
	if m.epoch != epoch { // what was in the cells has been taken out
		c.oks += c.slowOK
		c.slowOK = 0
		if c.memory != nil {
			c.memory.filed = 0
		}
	}
}

// turnLocked starts a new epoch: what happened goes to whoever wants to know, and the counts start at 0.
func (c *Circuit) turnLocked(s *settings, fx *effects, err error) {
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
			c.rareLocked().notifier.add(c.transitionLocked(s, mv, counts, cause))
		}
		counts = Counts{}
	}
	if c.m.state == Closed && c.trouble != nil {
		*c.trouble = trouble{}
	}
	c.run, c.runMark = 0, 0
	c.failuresBefore = c.failures
	if c.rare != nil {
		c.rare.ignoredBefore, c.rare.slowBefore = c.rare.ignored, c.rare.slow
	}
	if c.memory != nil {
		c.memory.clear()
	}
}

// causeLocked records why the circuit opens: the error of the call that did it, or the last failure where a success did,
// by being the call that filled the policy's minimum; by hand, what the hand gave.
func (c *Circuit) causeLocked(err error, mv *move) error {
	if err != nil {
		c.blameLocked(err, mv.at)
	}
	if c.trouble == nil {
		return nil
	}
	if mv.reason == byHand || mv.reason == byRemote {
		c.trouble.cause = err
	}
	return c.trouble.cause
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

// publishLocked puts into word what lock-free readers need to know.
func (c *Circuit) publishLocked(s *settings) {
	w := c.m.epoch << wordEpoch
	if c.m.state == Closed && c.m.mode == Auto && !c.m.ramping() && s.policy.maxInFlight == 0 {
		if s.timed {
			w |= wordTimed
		} else {
			w |= wordPlain
		}
	}
	if !c.untracked {
		w |= wordTrack | trackTick<<wordTick
	}
	if c.memory != nil && c.memory.sampling {
		w = w&^(15<<wordTick) | sampleTick<<wordTick
	}
	if s.trips.user || c.memory.watches(s, c.m.now) || s.sharing != nil && c.needsSuccessLocked() {
		w |= wordNote
	}
	old := c.word.Load()
	if w == old || (w|old)&(wordPlain|wordTimed) == 0 { // of one without these bits, nobody reads the others
		return
	}
	c.word.Store(w)
	if (w|old)&wordPlain != 0 && tagOf(w) != tagOf(old) {
		c.retagLocked(old, w)
	}
}

// retagLocked marks every cell for a new word, and takes out what was counted under the old one.
func (c *Circuit) retagLocked(old, w uint64) {
	tag := tagOf(w)
	n := c.sumLocked(func(cl *cell) uint64 { return cl.ok.Swap(tag) & countMask })
	c.slowOK += n
	if c.memory != nil {
		c.memory.filed -= n
	}
	if old&wordTrack == 0 {
		c.cell.started.Add(n)
	}
}

// Sums over the counters.

// sumLocked adds up one counter of every cell.
func (c *Circuit) sumLocked(of func(*cell) uint64) uint64 {
	n := of(&c.cell)
	if s := c.shards.Load(); s != nil {
		for i := range s.cells {
			n += of(&s.cells[i].cell)
		}
	}
	return n
}

// inCellsLocked is the successes counted under the present word.
func (c *Circuit) inCellsLocked() uint64 {
	return c.sumLocked(func(cl *cell) uint64 { return cl.ok.Load() & countMask })
}

// successesLocked is this epoch's successes.
func (c *Circuit) successesLocked() uint64 { return c.inCellsLocked() + c.slowOK }

func (c *Circuit) rejectedLocked() uint64 {
	return c.sumLocked(func(cl *cell) uint64 { return cl.rejected.Load() })
}

// inFlightLocked is what was seen to start and has not finished. It reads the ends first, so that it is never below the
// truth.
func (c *Circuit) inFlightLocked() int64 {
	ended := c.oks + c.slowOK + c.failures
	if c.word.Load()&wordTrack != 0 {
		ended += c.inCellsLocked()
	}
	if c.rare != nil {
		ended += c.rare.ignored
	}
	started := c.sumLocked(func(cl *cell) uint64 { return cl.started.Load() })
	return int64(started - ended)
}

// epochCountsLocked is what the present epoch has counted.
func (c *Circuit) epochCountsLocked(s *settings) Counts {
	n := Counts{Successes: c.successesLocked(), Failures: c.failures - c.failuresBefore}
	if c.rare != nil {
		n.Ignored = c.rare.ignored - c.rare.ignoredBefore
		n.Slow = c.rare.slow - c.rare.slowBefore
	}
	c.runsLocked(s, &n)
	return n
}

// runsLocked fills in the two runs.
func (c *Circuit) runsLocked(s *settings, n *Counts) {
	ok := c.successesLocked()
	switch {
	case c.m.state == HalfOpen:
		n.ConsecutiveSuccesses = uint64(c.m.progress)
	case c.run > 0 && c.runMark == ok:
		n.ConsecutiveFailures = uint64(c.memory.youngRun(s, c.m.now, c.run))
	default:
		n.ConsecutiveSuccesses = ok - c.runMark
	}
}

// windowCountsLocked is what the window of a rule holds.
func (c *Circuit) windowCountsLocked(s *settings, r *tripRule) Counts {
	w := c.memory.windows[r.window].sums(c.m.now)
	n := Counts{Successes: w.ok, Failures: w.failed, Ignored: w.ignored, Slow: w.slow}
	c.runsLocked(s, &n)
	return n
}

// countsForUserLocked appends what the user's trip functions are asked about, in their order.
func (c *Circuit) countsForUserLocked(s *settings, all []Counts) []Counts {
	for i := range s.trips.rules {
		if r := &s.trips.rules[i]; r.kind == tripWhen {
			all = append(all, c.windowCountsLocked(s, r))
		}
	}
	return all
}

func (c *Circuit) rareLocked() *rare {
	if c.rare == nil {
		c.rare = &rare{}
	}
	return c.rare
}
