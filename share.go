package breaker

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"
)

// This file keeps a circuit in step with its ledger in a Store. The circuit's own machine is its view of the ledger:
// calls are admitted and rejected by it, without the store. What they bring is tallied and reported in batches; where
// the ledger stands, the machine follows. Only the store says who may probe, and how a probe's result moves the state.
//
// hub.go decides when to talk to the store; here is what is made of what it says. What is said to it stands in
// share_report.go, share_move.go and share_probe.go. Nothing of the store is called under the circuit's lock.

// StoreStatus is how a circuit stands with its [Store].
type StoreStatus struct {
	Epoch     uint64    `json:"epoch"`                // the highest epoch that the store has given; 0: none yet
	Alone     bool      `json:"alone"`                // the circuit acts by itself: Snapshot.State is not the ledger's
	Connected bool      `json:"connected"`            // the last exchange with the store worked
	Exchanged time.Time `json:"exchanged,omitzero"`   // when an exchange last worked
	LastError string    `json:"last_error,omitempty"` // why it does not work, or what was strange about what came
	Pending   uint64    `json:"pending"`              // outcomes that are still to be reported
	Lost      uint64    `json:"lost"`                 // outcomes whose report may not have arrived; it is not repeated
	Foreign   bool      `json:"foreign"`              // others share the name with another configuration
}

// sharing is what all circuits of one configuration need for a store. It is immutable.
type sharing struct {
	sharingDraft
	shape StoreShape
	asked policy // following the ledger: no probe without its word
	alone policy // by itself: one probe at a time
}

func newSharing(s *settings, d *draft) *sharing {
	sh := &sharing{sharingDraft: d.store, asked: s.policy, alone: s.policy}
	sh.asked.probes, sh.alone.probes = 0, 1
	for i := range s.trips.rules {
		r := &s.trips.rules[i]
		sh.shape.Window = max(sh.shape.Window, r.TripCondition.window.last, r.within) // there is but one
		if r.within > 0 {
			sh.shape.Failures = max(sh.shape.Failures, r.failures)
		}
	}
	if d.store.minReporters > 1 {
		sh.shape.Reporters = d.store.minReporters
	}
	sh.shape.Config = digest(d)
	return sh
}

// digest is the same for circuits that agree in everything that the others would notice.
func digest(d *draft) string {
	c := d.cfg
	h := fnv.New64a()
	fmt.Fprint(h, c.trips(), c.SuccessThreshold, c.HalfOpenProbes, c.OpenTimeout, c.OpenBackoff, c.ProbeLease, d.store.minReporters)
	return fmt.Sprintf("%016x", h.Sum64())
}

const (
	maxSharedFailures = 1000                  // failure times that a ledger keeps
	minSharedWindow   = 20 * time.Millisecond // what a store's milliseconds can serve
)

// sharingFaults reports conditions that a ledger cannot serve.
func sharingFaults(f *faults, trips []TripCondition) {
	var window, slow time.Duration
	for i, t := range trips {
		at := fmt.Sprintf("Trip[%d].%s", i, tripNames[t.kind])
		if t.window.calls > 0 {
			f.add(at+".LastCalls", "must not be used with a Store, which keeps windows of time, got %d", t.window.calls)
		}
		window = sharedOne(f, at+".Window", window, max(t.window.last, t.within), minSharedWindow)
		slow = sharedOne(f, at+".Slow", slow, t.slow, 1)
		if t.within > 0 && t.failures > maxSharedFailures {
			f.add(at+".Failures", "must be at most %d with a Store and a window, got %d", maxSharedFailures, t.failures)
		}
	}
}

// sharedOne reports a duration that differs from those before it. It returns what the next ones are to be.
func sharedOne(f *faults, at string, before, d, least time.Duration) time.Duration {
	switch {
	case d <= 0:
		return before
	case d < least:
		f.add(at, "must be at least %v with a Store, got %v", least, d)
	case before != 0 && d != before:
		f.add(at, "must be that of the other conditions, %v, with a Store, got %v", before, d)
	}
	return d
}

// acting is how a machine stands to its ledger.
type acting uint8

const (
	follows acting = iota // it is where the ledger is
	alone                 // the store was away when something had to be decided; see staysLocked for what ends this
	tripped               // as alone, and it opened: only its own probes or a newer epoch close it again
)

// share is one circuit's part. Except for turn it is guarded by the circuit's mu.
type share struct {
	hub    *hub
	line   *line
	node   string
	turn   chan struct{} // holds a token for whoever reports and moves; one at a time, or runs would be counted out of order
	again  bool          // somebody found the turn taken
	known  uint64        // the highest epoch that was taken over
	ledger Ledger        // as last seen in that epoch
	tookAt int64         // when that was, by the hub's time
	seenAt int64         // when an exchange last worked
	seen   bool          // one did
	acting acting
	joined bool // the first reading has been taken over: what follows is news
	closed bool // Close was called: the store is not used any more

	failed  error   // why the last exchange did not work; nil when it did
	strange string  // what was strange in an exchange that worked
	foreign bool    // others share the name with another configuration
	said    []error // for the StoreError hooks
	tally   tally
	wanted  urgency // what the hub knows of it
	sentAt  int64   // when a report was last begun
	hint    int64   // how long the last failure asked to be left alone
	cause   error   // what the last outcome would be to a trip
	lost    uint64
	orders  []order // moves to ask the store for, one after the other
	moving  int     // operations on their way that may begin an epoch
	heard   *Ledger // the newest that was pushed meanwhile

	deciding  bool        // the user's functions are being asked
	undecided *StoreReply // what they are to be asked about next

	backAt int64         // alone: when to ask for a slot again, by the hub's time
	backIn time.Duration // how long that was after the last time

	fruitless   int                // answers that neither gave nor refused a slot
	flight      *flight            // slots are being asked for
	grants      []grant            // slots that were given and not taken yet
	waiting     int                // calls that wait for one
	deniedUntil int64              // nobody asks before
	fullUntil   int64              // when a slot falls free by itself
	tokens      map[int64][]string // of slots taken, by the end of their lease
	serial      uint64

	used      uint64       // hub's: calls when it was last asked whether it is in use
	flushedAt atomic.Int64 // hub's: when it last reported for this circuit
}

// shareLocked returns the circuit's share, nil without a store.
func (c *Circuit) shareLocked() *share {
	if c.extras == nil {
		return nil
	}
	return c.extras.share
}

// joiningLocked reports whether the circuit is finding out where the others stand, which is no news to its hooks.
func (c *Circuit) joiningLocked() bool {
	sh := c.shareLocked()
	return sh != nil && !sh.joined
}

// follows reports whether the machine is its ledger's view.
func (sh *share) follows() bool { return sh != nil && sh.acting == follows && !sh.closed }

// away reports whether there is no point in asking the store.
func (sh *share) away() bool { return sh.closed || sh.unheard() }

// unheard reports whether the store does not answer, to anybody or about this name.
func (sh *share) unheard() bool { return sh.hub.away.Load() || sh.line.away.Load() }

// policyLocked is the policy that holds for the machine: with a store, who may probe is not for the machine to say.
func (c *Circuit) policyLocked(s *settings) *policy {
	sh := c.shareLocked()
	switch {
	case sh == nil || sh.closed:
		return &s.policy
	case sh.acting == follows:
		return &s.sharing.asked
	}
	return &s.sharing.alone
}

// epochLocked is the number of the present stay as others know it: with a store, the store's.
func (c *Circuit) epochLocked() uint64 {
	if sh := c.shareLocked(); sh != nil && sh.known > 0 {
		return sh.known
	}
	return c.m.epoch
}

// attach puts a new circuit on its store, and reads where the others stand.
func (c *Circuit) attach(s *settings) {
	sh := &share{node: fmt.Sprintf("%016x", rand.Uint64()), turn: make(chan struct{}, 1), sentAt: -int64(maxDuration)}
	sh.hub = hubOf(s.sharing.store)
	if err := sh.hub.unwatched; err != nil {
		sh.saidLocked(c.name, "it cannot be watched", ": "+err.Error())
	}
	c.mu.Lock()
	c.extrasLocked().share = sh
	c.mu.Unlock()
	sh.hub.join(c)
	if !sh.unheard() {
		c.learned(sh.hub.read(c.name), byRemote)
	}
	c.mu.Lock()
	sh.joined = true
	switch {
	case sh.known > 0:
		c.run, c.runMark = 0, 0 // of a Snapshot: the ledger knows better
	case sh.failed == nil && c.m.state != Closed: // a Snapshot knows what nobody else does
		sh.orders = append(sh.orders, order{to: Open, why: byRemote, until: max(c.m.now, c.m.until)})
	}
	c.mu.Unlock()
	c.tell(s)
	c.pursue()
}

// What the store says.

// learned takes in an answer of the store: where the ledger stands, or that it could not be asked.
func (c *Circuit) learned(r StoreReply, why reason) {
	now := c.load().time.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heardLocked(c.load(), &r, why, nil, now)
}

// heardLocked is learned under the lock. cause is why the ledger opened, if it did so at our word.
func (c *Circuit) heardLocked(s *settings, r *StoreReply, why reason, cause error, now int64) {
	sh := c.extras.share
	if r.Err != nil {
		if sh.failed == nil {
			sh.said = append(sh.said, fmt.Errorf("breaker: store of circuit %q: %w", c.name, r.Err))
		}
		sh.failed = r.Err
		return
	}
	sh.failed = nil
	sh.seenAt, sh.seen = max(c.m.now, now), true
	l := &r.Ledger
	if l.impossible() {
		sh.saidLocked(c.name, "an impossible ledger", fmt.Sprintf(": epoch %d, state %d at %d ms", l.Epoch, l.State, l.Clock))
		return
	}
	if sh.known > l.Clock+maxAhead && sh.ledger.Clock > l.Clock { // the clock was set back: what is known is out of its reach
		sh.known, sh.ledger = 0, Ledger{}
	}
	if l.Foreign {
		sh.saidLocked(c.name, "others share the name with another configuration", "")
	}
	c.adoptLocked(s, l, why, cause, sh.seenAt)
}

// maxAhead is how many milliseconds an epoch may be ahead of the store's clock: one forged message must not keep a fleet
// from ever moving again.
const maxAhead = 24 * 60 * 60 * 1000

// impossible reports whether no circuit can follow a ledger.
func (l *Ledger) impossible() bool {
	return l.Epoch > min(l.Clock+maxAhead, maxEpoch) || int(l.State) >= len(stateNames)
}

// shapedLocked takes in what the answer to a question with a Shape says about it.
func (sh *share) shapedLocked(r *StoreReply) {
	if r.Err != nil {
		return
	}
	if sh.foreign && !r.Ledger.Foreign {
		sh.strange = "" // that is over, and news if it comes again
	}
	sh.foreign = r.Ledger.Foreign
}

// saidLocked notes something strange for the StoreError hooks, unless it is what they heard last.
func (sh *share) saidLocked(name, what, detail string) {
	if !strings.HasPrefix(sh.strange, what) {
		sh.strange = what + detail
		sh.said = append(sh.said, fmt.Errorf("breaker: store of circuit %q: %s", name, sh.strange))
	}
}

// tell delivers what hooks should know, here and where another circuit was told of what we did. It must not be called with
// the turn taken: a hook may call Sync.
func (c *Circuit) tell(s *settings) {
	c.tellOwn(s)
	c.extras.share.hub.tellOthers()
}

func (c *Circuit) tellOwn(s *settings) {
	c.mu.Lock()
	sh := c.extras.share
	said := sh.said
	sh.said = nil
	n := &c.extras.notifier
	c.mu.Unlock()
	if len(said) == 0 && n.idle() {
		return
	}
	sh.hub.run(func() {
		defer n.deliver(s)
		for _, err := range said {
			s.hookStoreError(c.name, err)
		}
	})
}

// adoptLocked moves the machine to where the ledger stands, if that is news.
func (c *Circuit) adoptLocked(s *settings, l *Ledger, why reason, cause error, now int64) {
	sh := c.extras.share
	if l.Epoch < sh.known {
		c.bringBackLocked(l, now)
		return
	}
	news := l.Epoch > sh.known
	first := sh.known == 0 && sh.acting == follows && c.m.state == Closed && l.State == Closed && why != byOperator
	returning := !news && sh.acting == alone && !c.staysLocked(l)
	sh.known = l.Epoch
	if first && news { // the series of openings that the others are in
		c.m.opens = l.Openings
		c.m.since = min(c.m.now, now-clampDuration(l.Age))
	}
	if returning {
		sh.acting = follows
	}
	if !(news && !first || returning && c.m.state != l.State) {
		c.refreshLocked(s, l, now)
		c.comeBackLocked(l)
		c.publishLocked(s)
		return
	}
	sh.acting = follows
	sh.takeLocked(l)
	e := event{kind: eventFollow, now: now, to: l.State, why: why, opens: l.Openings, since: now - clampDuration(l.Age)}
	e.until = now + min(clampDuration(l.Remaining), s.longestOpen())
	if l.State == Open && l.Remaining <= 0 && c.m.state != Open {
		e.to = HalfOpen
	}
	c.stepLocked(s, &e, new(effects), cause)
	c.m.progress = l.Progress
}

// staysLocked reports whether a circuit that acts by itself keeps to that, in an epoch that is not over: it has closed, or
// probes where a probe is due. That the ledger can be read does not end it, since a store may be read that cannot be
// written to, and the next probe would leave again. A newer epoch does, or a slot. A store within the process is not read
// by the hub.
func (c *Circuit) staysLocked(l *Ledger) bool {
	sh := c.extras.share
	if sh.acting != alone || sh.hub.immediate || l.State == Closed || l.Granted > 0 {
		return false
	}
	return c.m.state == Closed || l.State == HalfOpen || l.Remaining <= 0
}

// How far apart a circuit that stays by itself asks for a slot. The times are doubled.
const firstComeBack, lastComeBack = time.Second, 8 * time.Second

// comeBackLocked asks for a slot, as any circuit would of such a ledger, to see whether the store takes anything. No call
// waits for it.
func (c *Circuit) comeBackLocked(l *Ledger) {
	sh := c.extras.share
	now := sh.hub.time.now()
	switch {
	case !c.staysLocked(l):
		sh.backIn, sh.backAt = 0, 0
		return
	case l.State == Open && l.Remaining > 0, now < sh.backAt, sh.flight != nil, len(sh.orders) > 0, sh.away():
		return
	}
	sh.backIn = min(max(2*sh.backIn, firstComeBack), lastComeBack)
	sh.backAt = now + int64(sh.backIn)
	sh.flight = &flight{make(chan struct{})}
	go c.ask(sh.flight)
}

// longestOpen is the longest open period that the configuration allows.
func (s *settings) longestOpen() int64 {
	return max(s.policy.openTimeout, int64(s.hintMax), s.policy.backoffMax)
}

// refreshLocked takes over what the ledger says about the epoch that lasts.
func (c *Circuit) refreshLocked(s *settings, l *Ledger, now int64) {
	sh := c.extras.share
	if l.Counts.ConsecutiveFailures > 0 && sh.ledger.Counts.ConsecutiveFailures == 0 && c.m.state == Closed {
		sh.tally.fold(c.successesLocked(), now, false) // these came before the run
	}
	if sh.overtaken(l) && !sh.outlasted() {
		return
	}
	sh.takeLocked(l)
	if c.m.state != HalfOpen || sh.acting != follows {
		return
	}
	c.m.progress = l.Progress
	if l.Slots < s.policy.probes {
		c.undenyLocked()
	}
}

// takeLocked takes a ledger over as the one that was seen last.
func (sh *share) takeLocked(l *Ledger) { sh.ledger, sh.tookAt = *l, sh.hub.time.now() }

// overtaken reports whether a ledger is older than what is known, by what it says itself. The store's clock may have been
// set back, or be another server's; but within an epoch runs follow each other by their numbers, and grow.
func (sh *share) overtaken(l *Ledger) bool {
	k := &sh.ledger
	switch {
	case l.Epoch != k.Epoch:
		return l.Epoch < k.Epoch && l.Clock <= k.Clock
	case l.Run != k.Run:
		return l.Clock < k.Clock && l.Run < k.Run
	}
	return l.Clock < k.Clock && l.Counts.ConsecutiveFailures <= k.Counts.ConsecutiveFailures
}

// outlasted reports whether no operation is under way any more that was when a ledger was last taken over: what is answered
// now has been asked since, whatever the store's clock says.
func (sh *share) outlasted() bool { return (sh.hub.time.now()-sh.tookAt)/2 > int64(sh.hub.timeout) }

// undenyLocked makes the next call ask for a slot again.
func (c *Circuit) undenyLocked() {
	c.extras.share.deniedUntil = 0
	c.cachedRejection.Store(nil)
}

// bringBackLocked sees to it that a store which has lost the ledger, or the last of it, gets it back. A ledger that is no
// younger than what is known is merely late, unless it was asked for since.
func (c *Circuit) bringBackLocked(l *Ledger, now int64) {
	sh := c.extras.share
	if sh.overtaken(l) && !sh.outlasted() || sh.acting == tripped || len(sh.orders) > 0 {
		return
	}
	o := order{to: c.m.state, why: byRemote, epoch: sh.known}
	if sh.acting == alone {
		o.to = sh.ledger.State // what it did by itself is not for the others
	}
	switch {
	case o.to == Closed && l.Epoch == 0 && sh.acting == follows:
		return // the next report brings it back
	case o.to == HalfOpen, o.to == Open && sh.acting == alone:
		o.to, o.until = Open, now // a lost HalfOpen comes back as a due Open
	case o.to == Open:
		o.until = max(now, c.m.until)
	}
	sh.orders = append(sh.orders, o)
}

// pushed takes in a ledger that the store sent unasked.
func (c *Circuit) pushed(l Ledger) {
	c.mu.Lock()
	sh := c.extras.share
	held := sh.moving > 0 || sh.closed || sh.overtaken(&l) // nobody asked: it may have been on its way for long
	if sh.moving > 0 && (sh.heard == nil || l.Epoch >= sh.heard.Epoch) {
		sh.heard = &l // what our own operation causes would be taken for another's: its answer comes first
	}
	c.mu.Unlock()
	if !held {
		c.learned(StoreReply{Ledger: l}, byRemote)
		sh.hub.tellLater(c)
	}
}

// ended is called when an operation that may have begun an epoch has been answered, and its answer taken in.
func (c *Circuit) ended() {
	c.mu.Lock()
	sh := c.extras.share
	sh.moving--
	var l *Ledger
	if sh.moving == 0 {
		l, sh.heard = sh.heard, nil
	}
	if l != nil && sh.overtaken(l) {
		l = nil
	}
	c.mu.Unlock()
	if l != nil {
		c.learned(StoreReply{Ledger: *l}, byRemote)
	}
}

// actedLocked notes that the machine has moved by itself.
func (sh *share) actedLocked(to State) {
	switch {
	case sh.acting == tripped && to == Closed && sh.ledger.State == Closed:
		sh.acting = follows // its own probes have brought it back to where the ledger is
	case to == Open, sh.acting == tripped && to == HalfOpen:
		sh.acting = tripped
	default:
		sh.acting = alone
	}
}

// startEpochLocked forgets what belonged to the stay that has ended.
func (sh *share) startEpochLocked() {
	sh.tally = tally{}
	sh.hint, sh.cause, sh.wanted = 0, nil, notAtAll
	sh.grants, sh.tokens = nil, nil
	sh.deniedUntil = 0
}

// What Snapshot says.

// sharedLocked is the account of the share.
func (c *Circuit) sharedLocked(s *settings, wall anchor) *StoreStatus {
	sh := c.shareLocked()
	if sh == nil {
		return nil
	}
	a := &StoreStatus{
		Epoch:     sh.known,
		Alone:     !sh.follows(),
		Connected: sh.failed == nil && !sh.away(),
		LastError: sh.strange,
		Lost:      sh.lost,
		Foreign:   sh.foreign,
	}
	if sh.news(s) {
		a.Pending = sh.tally.n
	}
	if sh.failed != nil {
		a.LastError = sh.failed.Error()
	}
	if sh.seen {
		a.Exchanged = wall.at(sh.seenAt)
	}
	return a
}

// sharedCountsLocked is the ledger's counts as last seen, and what is still to be reported.
func (c *Circuit) sharedCountsLocked(s *settings) (n Counts, ok bool) {
	sh := c.shareLocked()
	if !sh.follows() || c.m.state != Closed {
		return n, false
	}
	sh.tally.fold(c.successesLocked(), c.m.now, sh.breaksRun())
	n = sh.ledger.Counts
	for _, t := range sh.tally.slices {
		n.Successes += t.OK
		n.Failures += t.Failed
		n.Ignored += t.Ignored
		n.Slow += t.Slow
	}
	r := &sh.tally.run
	if s.sharing.shape.Failures > 0 && s.trips.rules[0].kind == tripConsecutive {
		n.ConsecutiveFailures = sh.ledger.RecentRun
	}
	if r.broken {
		n.ConsecutiveFailures = 0
	}
	n.ConsecutiveFailures += r.tail
	if r.failures > 0 {
		n.ConsecutiveSuccesses = 0
	}
	n.ConsecutiveSuccesses += r.trailing
	return n, true
}

// closeShare reports what is left and leaves the store.
func (c *Circuit) closeShare() {
	c.mu.Lock()
	sh := c.shareLocked()
	open := sh != nil && !sh.closed
	c.mu.Unlock()
	if !open {
		return
	}
	if !sh.unheard() {
		ctx, cancel := context.WithTimeout(context.Background(), sh.hub.timeout)
		defer cancel()
		_ = c.Sync(ctx) // what cannot be reported now is lost with the circuit
	}
	c.mu.Lock()
	sh.closed = true
	c.mu.Unlock()
	sh.hub.leave(c)
}
