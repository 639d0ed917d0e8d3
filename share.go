package breaker

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// This file keeps a circuit in step with its ledger in a Store. The circuit's own machine is its view of the ledger:
// calls are admitted and rejected by it, without the store. What they bring is tallied and reported in batches; where
// the ledger stands, the machine follows. Only the store says who may probe, and how a probe's result moves the state.
//
// hub.go decides when to talk to the store; here is what is said. Nothing of the store is called under the circuit's
// lock.

// Shared is how a circuit stands with its [Store].
type Shared struct {
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
	shape Shape
	asked policy // following the ledger: no probe without its word
	alone policy // by itself: one probe at a time
}

func newSharing(s *settings, d *draft) *sharing {
	sh := &sharing{sharingDraft: d.store, asked: s.policy, alone: s.policy}
	sh.asked.probes, sh.alone.probes = 0, 1
	for i := range s.trips.rules {
		r := &s.trips.rules[i]
		sh.shape.Window = max(sh.shape.Window, r.Trip.window.last, r.within) // there is but one
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
func sharingFaults(f *faults, trips []Trip) {
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
	alone                 // the store was away when something had to be decided; its next word ends this
	tripped               // as alone, and it opened: only its own probes or a newer epoch close it again
)

// share is one circuit's part. Except for turn it is guarded by the circuit's mu.
type share struct {
	hub    *hub
	node   string
	turn   chan struct{} // holds a token for whoever reports and moves; one at a time, or runs would be counted out of order
	again  bool          // somebody found the turn taken
	known  uint64        // the highest epoch that was taken over
	ledger Ledger        // as last seen in that epoch
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

	deciding  bool   // the user's functions are being asked
	undecided *Reply // what they are to be asked about next

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
	if c.rare == nil {
		return nil
	}
	return c.rare.share
}

// joiningLocked reports whether the circuit is finding out where the others stand, which is no news to its hooks.
func (c *Circuit) joiningLocked() bool {
	sh := c.shareLocked()
	return sh != nil && !sh.joined
}

// follows reports whether the machine is its ledger's view.
func (sh *share) follows() bool { return sh != nil && sh.acting == follows && !sh.closed }

// away reports whether there is no point in asking the store.
func (sh *share) away() bool { return sh.closed || sh.hub.away.Load() }

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
	c.mu.Lock()
	c.rareLocked().share = sh
	c.mu.Unlock()
	sh.hub.join(c)
	if !sh.hub.away.Load() {
		c.learned(sh.hub.read(c.name), byRemote)
	}
	c.mu.Lock()
	sh.joined = true
	c.mu.Unlock()
	c.tell(s)
}

// What the store says.

// learned takes in an answer of the store: where the ledger stands, or that it could not be asked.
func (c *Circuit) learned(r Reply, why reason) {
	now := c.load().time.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heardLocked(c.load(), &r, why, nil, now)
}

// heardLocked is learned under the lock. cause is why the ledger opened, if it did so at our word.
func (c *Circuit) heardLocked(s *settings, r *Reply, why reason, cause error, now int64) {
	sh := c.rare.share
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
	if l.Epoch > min(l.Clock+maxAhead, maxEpoch) || int(l.State) >= len(stateNames) {
		sh.saidLocked(c.name, "an impossible ledger", fmt.Sprintf(": epoch %d, state %d at %d ms", l.Epoch, l.State, l.Clock))
		return
	}
	if l.Foreign {
		sh.saidLocked(c.name, "others share the name with another configuration", "")
	}
	c.adoptLocked(s, l, why, cause, sh.seenAt)
}

// maxAhead is how many milliseconds an epoch may be ahead of the store's clock: one forged message must not keep a fleet
// from ever moving again.
const maxAhead = 24 * 60 * 60 * 1000

// shapedLocked takes in what the answer to a question with a Shape says about it.
func (sh *share) shapedLocked(r *Reply) {
	if r.Err == nil {
		sh.foreign = r.Ledger.Foreign
	}
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
	c.rare.share.hub.tellOthers()
}

func (c *Circuit) tellOwn(s *settings) {
	c.mu.Lock()
	sh := c.rare.share
	said := sh.said
	sh.said = nil
	n := &c.rare.notifier
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
	sh := c.rare.share
	if l.Epoch < sh.known {
		c.bringBackLocked(l, now)
		return
	}
	news := l.Epoch > sh.known
	first := sh.known == 0 && sh.acting == follows && c.m.state == Closed && l.State == Closed && why != byHand
	returning := !news && sh.acting == alone
	sh.known = l.Epoch
	if returning {
		sh.acting = follows
	}
	if !(news && !first || returning && c.m.state != l.State) {
		c.refreshLocked(s, l, now)
		c.publishLocked(s)
		return
	}
	sh.acting, sh.ledger = follows, *l
	e := event{kind: evAdopt, now: now, to: l.State, why: why, opens: l.Openings, since: now - clampDuration(l.Age)}
	e.until = now + min(clampDuration(l.Remaining), s.longestOpen())
	if l.State == Open && l.Remaining <= 0 && c.m.state != Open {
		e.to = HalfOpen
	}
	c.stepLocked(s, &e, new(effects), cause)
	c.m.progress = l.Progress
}

// longestOpen is the longest open period that the configuration allows.
func (s *settings) longestOpen() int64 {
	return max(s.policy.openTimeout, int64(s.hintMax), s.policy.backoffMax)
}

// refreshLocked takes over what the ledger says about the epoch that lasts.
func (c *Circuit) refreshLocked(s *settings, l *Ledger, now int64) {
	sh := c.rare.share
	if l.Counts.ConsecutiveFailures > 0 && sh.ledger.Counts.ConsecutiveFailures == 0 && c.m.state == Closed {
		sh.tally.fold(c.successesLocked(), now, false) // these came before the run
	}
	if l.Clock < sh.ledger.Clock && l.Epoch == sh.ledger.Epoch {
		return // it has been overtaken
	}
	sh.ledger = *l
	if c.m.state != HalfOpen || sh.acting != follows {
		return
	}
	c.m.progress = l.Progress
	if l.Slots < s.policy.probes {
		c.undenyLocked()
	}
}

// undenyLocked makes the next call ask for a slot again.
func (c *Circuit) undenyLocked() {
	c.rare.share.deniedUntil = 0
	c.shut.Store(nil)
}

// bringBackLocked sees to it that a store which has lost the ledger, or the last of it, gets it back. A ledger that is no
// younger than what is known is merely late.
func (c *Circuit) bringBackLocked(l *Ledger, now int64) {
	sh := c.rare.share
	if l.Clock <= sh.ledger.Clock || sh.acting == tripped || len(sh.orders) > 0 {
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
	sh := c.rare.share
	held := sh.moving > 0 || sh.closed
	if sh.moving > 0 && (sh.heard == nil || l.Epoch >= sh.heard.Epoch) {
		sh.heard = &l // what our own operation causes would be taken for another's: its answer comes first
	}
	c.mu.Unlock()
	if !held {
		c.learned(Reply{Ledger: l}, byRemote)
		sh.hub.tellLater(c)
	}
}

// ended is called when an operation that may have begun an epoch has been answered, and its answer taken in.
func (c *Circuit) ended() {
	c.mu.Lock()
	sh := c.rare.share
	sh.moving--
	var l *Ledger
	if sh.moving == 0 {
		l, sh.heard = sh.heard, nil
	}
	c.mu.Unlock()
	if l != nil {
		c.learned(Reply{Ledger: *l}, byRemote)
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

// Reports.

// tally is what is to be reported.
type tally struct {
	slices []tallySlice
	times  []int64 // of the last failures
	run    runShape
	n      uint64 // outcomes in the slices
	okSeen uint64 // of the epoch's successes, those that are in here or were before
}

type tallySlice struct {
	at int64
	sums
}

// runShape is what a batch does to a run of failures.
type runShape struct {
	early               bool   // there was a success, but from before the ledger's run
	broken              bool   // there was a success that ends a run
	failures            uint64 // in all
	head, tail, longest uint64 // as in Batch
	trailing            uint64
}

const (
	tallySlices = 40        // at most so many
	tallyGrain  = 5_000_000 // 5ms: outcomes no farther apart are one slice
)

// slice returns where to count what happens now. Where there are too many, neighbours are merged.
func (t *tally) slice(now int64) *sums {
	if n := len(t.slices); n > 0 && now-t.slices[n-1].at < tallyGrain {
		return &t.slices[n-1].sums
	}
	if len(t.slices) == tallySlices {
		for i := range tallySlices / 2 {
			t.slices[2*i].plus(t.slices[2*i+1].sums)
			t.slices[i] = t.slices[2*i]
		}
		t.slices = t.slices[:tallySlices/2]
	}
	t.slices = append(t.slices, tallySlice{at: now})
	return &t.slices[len(t.slices)-1].sums
}

// fold takes in the successes that were only counted so far. breaks says whether they may have ended a run.
func (t *tally) fold(successes uint64, now int64, breaks bool) {
	n := successes - t.okSeen
	t.okSeen = successes
	if n == 0 {
		return
	}
	t.slice(now).ok += n
	t.n += n
	if t.run.early = t.run.early || !breaks; breaks {
		t.run.broken = true
		t.run.tail = 0
		t.run.trailing += n
	}
}

// add takes in one outcome that is no success. keep is how many times of failures are kept.
func (t *tally) add(now int64, o Outcome, slow bool, keep int) {
	t.slice(now).count(o, slow)
	t.n++
	if o != Failure {
		return
	}
	r := &t.run
	r.failures++
	r.tail++
	r.trailing = 0
	if !r.broken {
		r.head++
	}
	r.longest = max(r.longest, r.tail)
	if keep > 0 {
		t.times = append(t.times[max(0, len(t.times)-keep+1):], now)
	}
}

// batch writes the tally down. What is older than the window is of no use any more.
func (t *tally) batch(now int64, window time.Duration) (b Batch) {
	for _, s := range t.slices {
		age := duration(now - s.at)
		if window == 0 || age < window {
			b.Slices = append(b.Slices, Slice{Age: age, Successes: s.ok, Failures: s.failed, Ignored: s.ignored, Slow: s.slow})
		}
	}
	for _, at := range t.times {
		b.FailureAges = append(b.FailureAges, duration(now-at))
	}
	r := &t.run
	b.Head, b.Tail, b.Longest, b.Trailing, b.Early = r.head, r.tail, r.longest, r.trailing, r.early && !r.broken
	return b
}

// reportLocked notes an outcome of the closed state for the next report.
func (c *Circuit) reportLocked(s *settings, e *event, slow bool) {
	sh := c.shareLocked()
	if !sh.follows() {
		return
	}
	now := max(c.m.now, e.now)
	sh.tally.fold(c.successesLocked(), now, sh.breaksRun())
	switch {
	case e.outcome != Success:
		sh.tally.add(now, e.outcome, slow, s.sharing.shape.Failures)
	case slow:
		sh.tally.slice(now).slow++
	}
	if e.outcome != Ignored {
		sh.hint = e.hint // none for a success
	}
}

// breaksRun reports whether a success now would end a run of failures.
func (sh *share) breaksRun() bool {
	return sh.ledger.Counts.ConsecutiveFailures > 0 || sh.tally.run.failures > 0
}

// asksForSuccessesLocked reports whether the next success is to be noted: it ends a run of the ledger's.
func (c *Circuit) asksForSuccessesLocked() bool {
	sh := c.shareLocked()
	return sh.follows() && sh.ledger.Counts.ConsecutiveFailures > 0 && !sh.tally.run.broken
}

// news reports whether there is something in the tally that the others need to know.
func (sh *share) news(s *settings) bool {
	r := &sh.tally.run
	return r.failures > 0 || s.trips.grain > 0 && sh.tally.n > 0 || r.broken && sh.ledger.Counts.ConsecutiveFailures > 0
}

// urgency is when the store should hear of what is tallied.
type urgency uint8

const (
	notAtAll urgency = iota
	soon             // at the next flush
	atOnce           // as soon as the spacing of reports allows
	promptly         // an order
)

// urgencyLocked says when the tally should be reported, if the hub does not know already.
func (c *Circuit) urgencyLocked(s *settings, now int64) urgency {
	sh := c.shareLocked()
	if !sh.follows() || !sh.news(s) {
		return notAtAll
	}
	u := sh.urgency(s, now, c.run)
	if !sh.hub.immediate && u <= sh.wanted {
		return notAtAll
	}
	sh.wanted = u
	return u
}

// urgency is urgencyLocked but for what the hub knows. Several failures in a row here may be the last of as many
// everywhere, whatever was last seen of the ledger.
func (sh *share) urgency(s *settings, now int64, run uint32) urgency {
	switch {
	case sh.hub.immediate, sh.tally.run.broken && sh.ledger.Counts.ConsecutiveFailures > 0:
		return atOnce
	case sh.tally.run.failures > 0 && (run > 1 || now-sh.sentAt >= int64(s.sharing.flushEvery) || s.trips.nearly(sh)):
		return atOnce
	}
	return soon
}

// takeReport takes the tally out as a report; ok is false when there is nothing to say. With asking set it says so, which
// makes a reading of it. The turn must be taken, and ended be called after the answer.
func (c *Circuit) takeReport(asking bool) (r Report, ok bool) {
	now := c.load().time.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.load()
	sh := c.rare.share
	now = max(c.m.now, now)
	if sh.closed {
		return r, false
	}
	if c.m.state == Closed && sh.acting == follows {
		sh.tally.fold(c.successesLocked(), now, sh.breaksRun())
	}
	r = Report{Name: c.name, Node: sh.node, Epoch: sh.known, Shape: s.sharing.shape}
	switch {
	case sh.news(s):
		r.Batch = sh.tally.batch(now, s.sharing.shape.Window)
		sh.tally = tally{okSeen: sh.tally.okSeen}
		sh.sentAt, sh.wanted = now, notAtAll
	case !asking:
		return r, false
	}
	sh.moving++
	return r, true
}

// outcomes is how many a batch has.
func (b *Batch) outcomes() (n uint64) {
	for _, s := range b.Slices {
		n += s.Successes + s.Failures + s.Ignored
	}
	return n
}

// decides reports whether a batch has what a trip policy looks at.
func (b *Batch) decides() bool {
	return slices.ContainsFunc(b.Slices, func(s Slice) bool { return s.Successes > 0 || s.Failures > 0 })
}

// reported takes in the answer to a report.
func (c *Circuit) reported(r *Report, answer *Reply) {
	if n := r.Batch.outcomes(); n > 0 && answer.Err != nil {
		c.mu.Lock()
		c.rare.share.lost += n
		c.mu.Unlock()
	}
	c.mu.Lock()
	c.rare.share.shapedLocked(answer)
	c.mu.Unlock()
	c.learned(*answer, byRemote)
	c.ended()
	if r.Batch.Longest == 0 {
		answer.Ledger.Peak = 0 // no failure here: whatever it was, it was somebody else's to decide on
	}
}

// exchange asks for the moves that are due and reports what there is to report, until there is nothing more to say. It
// leaves that to another goroutine which is at it already.
func (c *Circuit) exchange() {
	for c.takeTurn() {
		_ = c.runOrders()
		r, answer, ok := c.say(false)
		again := c.passTurn()
		if !ok && !again {
			return
		}
		c.decide(&r, answer)
	}
}

// say reports what there is to report. The turn must be taken.
func (c *Circuit) say(asking bool) (r Report, answer Reply, ok bool) {
	if r, ok = c.takeReport(asking); ok {
		answer = c.rare.share.hub.report(r)
		c.reported(&r, &answer)
	}
	return r, answer, ok
}

// takeTurn takes the turn, or leaves word that somebody wanted it.
func (c *Circuit) takeTurn() bool {
	sh := c.rare.share
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case sh.turn <- struct{}{}:
		return true
	default:
		sh.again = true
		return false
	}
}

// passTurn gives the turn back, and reports whether somebody wanted it meanwhile.
func (c *Circuit) passTurn() (again bool) {
	sh := c.rare.share
	c.mu.Lock()
	<-sh.turn
	again, sh.again = sh.again, false
	c.mu.Unlock()
	c.tell(c.load())
	return again
}

// pursue sees to orders that something has led to.
func (c *Circuit) pursue() {
	if c.hasOrders() {
		c.rare.share.hub.want(c, promptly)
	}
}

func (c *Circuit) hasOrders() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	sh := c.rare.share
	return len(sh.orders) > 0 && !sh.away()
}

// Sync waits until everything that the circuit has counted and others need to know is reported, every move that was asked
// for made, and the ledger read. It returns the context's error or the store's. Without a store there is nothing to wait for.
func (c *Circuit) Sync(ctx context.Context) error {
	s := c.load()
	if err := ctx.Err(); err != nil || s.sharing == nil {
		return err
	}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		select {
		case c.rare.share.turn <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		c.mu.Lock()
		c.rare.share.again = false
		c.mu.Unlock()
		err := c.runOrders()
		r, answer, ok := c.say(true)
		again := c.passTurn()
		c.decide(&r, answer)
		if err == nil {
			err = answer.Err
		}
		if !ok || err != nil || !again && !c.hasOrders() {
			return err
		}
	}
}

// Decisions.

// decide asks the store to open if the ledger's counts are a reason to; without an answer the circuit's own counts are.
// Time alone is no reason: without a success or a failure in the report, there is nothing to decide.
func (c *Circuit) decide(r *Report, answer Reply) {
	l := &answer.Ledger
	switch {
	case !r.Batch.decides():
		return
	case answer.Err != nil:
		c.decideAlone()
		return
	case l.State != Closed || l.Epoch == 0:
		return
	}
	s := c.load()
	held, onRun := s.trips.heldBy(l)
	if !held && s.trips.user {
		c.askUser(s, answer)
		return
	}
	if held {
		c.orderOpening(l, onRun)
	}
}

// askUser asks the user's trip functions, one goroutine at a time. One that calls Sync is not asked the same again.
func (c *Circuit) askUser(s *settings, answer Reply) {
	sh := c.rare.share
	c.mu.Lock()
	sh.undecided = &answer
	mine := !sh.deciding
	sh.deciding = true
	c.mu.Unlock()
	if !mine {
		return
	}
	done := false
	defer func() {
		if !done { // a function has ended the goroutine
			c.mu.Lock()
			sh.deciding = false
			c.mu.Unlock()
		}
	}()
	for asked := (*Ledger)(nil); ; {
		c.mu.Lock()
		next := sh.undecided
		sh.undecided = nil
		if next == nil || asked != nil && asked.Epoch == next.Ledger.Epoch && asked.Counts == next.Ledger.Counts {
			sh.deciding, done = false, true
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		asked = &next.Ledger
		if s.userTrips(c.name, slices.Repeat([]Counts{asked.Counts}, len(s.trips.rules))) {
			c.orderOpening(asked, false)
		}
	}
}

// orderOpening orders the move to Open that a ledger is a reason for. Where too few have seen failures, those that have
// open by themselves.
func (c *Circuit) orderOpening(l *Ledger, onRun bool) {
	s := c.load()
	e := event{kind: evSettle, now: s.time.now(), random: s.openJitter(), trip: true}
	c.mu.Lock()
	s = c.load()
	sh := c.rare.share
	if sh.follows() && sh.known == l.Epoch && c.m.state == Closed && c.m.mode != ForcedClosed && len(sh.orders) == 0 {
		e.hint, e.pass.epoch = sh.hint, c.m.epoch
		switch {
		case l.Reporters >= s.sharing.shape.Reporters:
			o := order{to: Open, why: byThreshold, epoch: l.Epoch, event: e, cause: sh.cause}
			if onRun {
				o.run = l.Run
			}
			sh.orders = append(sh.orders, o)
		case c.failures > c.failuresBefore:
			c.stepLocked(s, &e, new(effects), nil)
		}
	}
	c.mu.Unlock()
	c.tell(s)
	c.pursue()
}

// decideAlone opens the circuit on its own counts.
func (c *Circuit) decideAlone() {
	s := c.load()
	e := event{kind: evSettle, now: s.time.now(), random: s.openJitter(), trip: true}
	c.mu.Lock()
	s = c.load()
	c.endRunLocked(s)
	if c.m.state == Closed && c.rare.share.follows() && s.trips.holds(c.memory, max(c.m.now, e.now), c.run) {
		e.hint, e.pass.epoch = c.rare.share.hint, c.m.epoch
		c.stepLocked(s, &e, new(effects), nil)
	}
	c.mu.Unlock()
	c.tell(s)
}

// deferLocked leaves the opening of a circuit that follows its ledger to the ledger's counts, unless the store is known to
// be away. It says when the store should hear of what has happened.
func (c *Circuit) deferLocked(s *settings, e *event, cause error) urgency {
	if !c.asksStoreLocked() {
		return notAtAll
	}
	e.trip = false
	if e.pass.epoch == c.m.epoch && e.outcome != Ignored {
		c.rare.share.cause = cause
	}
	return c.urgencyLocked(s, e.now)
}

// asksStoreLocked reports whether it is for the ledger to say when to open.
func (c *Circuit) asksStoreLocked() bool {
	sh := c.shareLocked()
	return sh.follows() && !sh.away()
}

// settled sees to what a settlement has led to.
func (c *Circuit) settled(judged *Reply, u urgency) {
	hub := c.rare.share.hub
	if judged != nil {
		c.ended()
		c.tell(c.load())
		c.pursue()
	}
	hub.want(c, u)
}

// turnSharedLocked starts a new stay.
func (c *Circuit) turnSharedLocked(e *event) {
	sh := c.shareLocked()
	if sh == nil {
		return
	}
	if e.kind != evAdopt {
		sh.actedLocked(c.m.state)
	}
	if e.kind == evSettle && c.m.state == Closed {
		for i := range sh.orders {
			sh.orders[i].over = sh.orders[i].acted
		}
	}
	sh.startEpochLocked()
}

// nextProbeLocked is when the next call may become a probe, as far as is known.
func (c *Circuit) nextProbeLocked() int64 {
	if sh := c.shareLocked(); c.m.state == HalfOpen && sh.follows() && c.m.now < sh.deniedUntil {
		return sh.deniedUntil
	}
	return c.m.nextProbe()
}

// heldBy reports whether a condition, the user's own aside, is met by the ledger's counts; and whether it is one that a
// success would undo.
func (p *tripPolicy) heldBy(l *Ledger) (held, onRun bool) {
	n := &l.Counts
	calls := n.Successes + n.Failures
	for i := range p.rules {
		r := &p.rules[i]
		switch r.kind {
		case tripConsecutive:
			run := max(n.ConsecutiveFailures, l.Peak)
			if r.within > 0 {
				run = l.RecentRun
			}
			held, onRun = run >= uint64(r.failures), true
		case tripCount:
			held = l.Recent >= uint64(r.failures)
		case tripRate:
			held = calls >= uint64(r.minCalls) && n.Failures*ppm >= r.ppm*calls
		case tripSlow:
			held = calls >= uint64(r.minCalls) && n.Slow*ppm >= r.ppm*calls
		}
		if held {
			return true, onRun && r.kind == tripConsecutive
		}
	}
	return false, false
}

// nearly reports whether what is tallied may have made half of what it takes.
func (p *tripPolicy) nearly(sh *share) bool {
	l := &sh.ledger
	failed := l.Counts.Failures + sh.tally.run.failures
	calls := l.Counts.Successes + l.Counts.Failures + sh.tally.n
	for i := range p.rules {
		r := &p.rules[i]
		near := false
		switch r.kind {
		case tripConsecutive:
			near = 2*(l.Counts.ConsecutiveFailures+sh.tally.run.longest) >= uint64(r.failures)
		case tripCount:
			near = 2*(l.Recent+sh.tally.run.failures) >= uint64(r.failures)
		case tripRate, tripSlow:
			near = 2*calls >= uint64(r.minCalls) && 2*failed*ppm >= r.ppm*calls
		case tripWhen:
			near = true
		}
		if near {
			return true
		}
	}
	return false
}

// Moves.

// order is a move that is to be asked for.
type order struct {
	to    State
	why   reason
	epoch uint64 // the epoch that it is for; 0: whichever there is when its turn comes
	run   uint64 // the run that it rests on
	until int64  // to is Open: the end of a period that was begun before; 0: it begins now
	event event  // what it is to the machine, where the store is away
	cause error
	acted bool // the machine has been told
	over  bool // and has recovered from it
}

// lasting reports whether the order stands until it is carried out: an operator's Trip or Reset.
func (o *order) lasting() bool { return o.event.kind == evTrip || o.event.kind == evReset }

// order asks for an operator's move. It reports false where there is nobody to ask. Where the store is away, the circuit
// makes it alone, and asks for it later if it still stands then.
func (c *Circuit) order(o order) bool {
	o.event.now = c.load().time.now()
	c.mu.Lock()
	s := c.load()
	sh := c.shareLocked()
	if sh == nil || sh.closed {
		c.mu.Unlock()
		return false
	}
	if sh.hub.away.Load() {
		o.acted = true
		c.stepLocked(s, &o.event, new(effects), o.cause)
	}
	if !o.acted || o.lasting() {
		sh.orders = append(sh.orders, o)
	}
	c.mu.Unlock()
	c.tell(s)
	c.pursue()
	return true
}

// runOrders asks the store for the moves that are due, one after the other. The turn must be taken.
func (c *Circuit) runOrders() error {
	for range maxAttempts {
		m, ok := c.nextMove()
		if !ok {
			return nil
		}
		r := c.rare.share.hub.move(m)
		c.moved(r)
		c.ended()
		if r.Err != nil {
			return r.Err
		}
	}
	return errUnmoved
}

var errUnmoved = errors.New("breaker: store does not carry out a move")

// maxAttempts bounds how often a move is repeated from a newer epoch in one go.
const maxAttempts = 16

// nextMove is the move to ask for next. It drops orders that have no point any more.
func (c *Circuit) nextMove() (m Move, ok bool) {
	now := c.load().time.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.load()
	sh := c.rare.share
	c.m.now = max(c.m.now, now)
	for len(sh.orders) > 0 && c.pointlessLocked(&sh.orders[0]) {
		sh.orders = sh.orders[1:]
	}
	if len(sh.orders) == 0 || sh.away() {
		return m, false
	}
	o := &sh.orders[0]
	m = Move{Name: c.name, Shape: s.sharing.shape, From: sh.known, Run: o.run, To: o.to, Openings: c.m.opens}
	switch {
	case o.to == Closed:
		m.Openings = 0
	case o.acted && o.to == Open && sh.acting == tripped:
		m.For = duration(max(0, c.m.until-c.m.now))
	case o.to == Open && o.until != 0:
		m.For = duration(max(0, o.until-c.m.now))
	case o.to == Open:
		var length int64
		m.Openings, length = c.m.opening(&s.policy, &o.event)
		m.For = duration(length)
	}
	sh.moving++
	return m, true
}

// pointlessLocked reports whether an order is void: its epoch has ended, or all are where it would bring them.
func (c *Circuit) pointlessLocked(o *order) bool {
	sh := c.rare.share
	switch {
	case o.epoch != 0:
		return o.epoch != sh.known
	case o.acted && o.event.kind == evTrip && sh.acting != follows:
		return c.m.state != Open || c.m.due(c.m.now) // it has had its time
	case o.acted && o.event.kind == evTrip && o.over:
		return true
	case sh.acting != follows:
		return false
	case o.event.kind == evTrip:
		return c.m.state == Open && !c.m.due(c.m.now)
	case o.event.kind == evOffer:
		return c.m.state != Open || c.m.due(c.m.now)
	}
	return false
}

// moved takes in the answer to the first order.
func (c *Circuit) moved(r Reply) {
	now := c.load().time.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.load()
	sh := c.rare.share
	o := &sh.orders[0]
	why, cause := byRemote, error(nil)
	if r.Ledger.Applied {
		why, cause = o.why, o.cause
	}
	if r.Err != nil && !o.acted && o.why != byRemote {
		o.acted = true
		e := o.event
		e.now, e.pass.epoch = now, c.m.epoch
		c.stepLocked(s, &e, new(effects), o.cause)
	}
	if r.Ledger.Applied || !o.lasting() {
		sh.orders = sh.orders[1:]
	}
	sh.shapedLocked(&r)
	c.heardLocked(s, &r, why, cause, now)
}

// Probes.

// grant is a slot that the store has given.
type grant struct {
	epoch uint64 // of the machine
	token string
	end   int64
}

// flight is a question for slots. Calls that come meanwhile wait for its end, and look again.
type flight struct{ done chan struct{} }

// slotLocked finds a slot for a call that may pass only with one. Where the store has to be asked first, it returns what
// to wait for, and whether the caller is the one to ask.
func (c *Circuit) slotLocked(s *settings, e *event) (f *flight, asks bool) {
	sh := c.shareLocked()
	if !sh.follows() || c.m.mode == ForcedOpen || c.m.mode == ForcedClosed {
		return nil, false
	}
	c.m.now = max(c.m.now, e.now)
	if c.m.state != HalfOpen && !c.m.due(c.m.now) {
		return nil, false
	}
	if c.takeGrantLocked(e) || c.fullLocked(s) {
		return nil, false
	}
	if sh.away() {
		sh.acting = alone
		return nil, false
	}
	sh.waiting++
	if sh.flight == nil {
		sh.flight = &flight{make(chan struct{})}
		asks = true
	}
	return sh.flight, asks
}

// fullLocked reports whether every slot is known to be taken.
func (c *Circuit) fullLocked(s *settings) bool {
	return c.m.state == HalfOpen && (c.m.now < c.rare.share.deniedUntil || c.m.liveLeases() >= s.policy.probes)
}

// takeGrantLocked takes a slot that was given and is still good.
func (c *Circuit) takeGrantLocked(e *event) bool {
	sh := c.rare.share
	for len(sh.grants) > 0 {
		g := sh.grants[0]
		sh.grants = sh.grants[1:]
		if g.epoch == c.m.epoch && c.m.now < g.end {
			e.slot = g.end
			if sh.tokens == nil {
				sh.tokens = make(map[int64][]string)
			}
			sh.tokens[g.end] = append(sh.tokens[g.end], g.token)
			return true
		}
	}
	return false
}

// await waits for a flight's end, or the caller's.
func (c *Circuit) await(ctx context.Context, f *flight, asks bool) (err error) {
	sh := c.rare.share
	waited := false
	defer func() {
		if !waited {
			c.stopWaiting(true) // a hook has ended the goroutine
		}
	}()
	if asks {
		sh.hub.run(func() { c.ask(f) })
	}
	select {
	case <-f.done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	waited = true
	c.stopWaiting(err != nil)
	return err
}

// stopWaiting is the end of a call's waiting for a slot.
func (c *Circuit) stopWaiting(leaves bool) {
	sh := c.rare.share
	c.mu.Lock()
	sh.waiting--
	var spare []string
	if leaves {
		spare = sh.spareLocked()
	}
	epoch := sh.known
	c.mu.Unlock()
	c.handBack(epoch, spare)
}

// spareLocked takes out the slots that nobody waits for.
func (sh *share) spareLocked() (tokens []string) {
	for len(sh.grants) > sh.waiting {
		last := len(sh.grants) - 1
		tokens = append(tokens, sh.grants[last].token)
		sh.grants = sh.grants[:last]
	}
	return tokens
}

// How long a refusal is believed without asking again: word that a slot is free may get lost.
const minDenied, maxDenied = time.Millisecond, time.Second

// ask asks the store for slots.
func (c *Circuit) ask(f *flight) {
	asked := c.load().time.now()
	c.mu.Lock()
	s := c.load()
	sh := c.rare.share
	a := Acquire{Name: c.name, Shape: s.sharing.shape, Epoch: sh.known, Lease: duration(s.policy.lease), Limit: s.policy.probes, Openings: c.m.opens}
	for range max(1, min(sh.waiting, s.policy.probes-c.m.liveLeases())) {
		sh.serial++
		a.Tokens = append(a.Tokens, sh.node+strconv.FormatUint(sh.serial, 36))
	}
	sh.moving++
	c.mu.Unlock()

	r := sh.hub.acquire(a)

	now := c.load().time.now()
	c.mu.Lock()
	c.answeredLocked(&a, &r, asked, now)
	spare := sh.spareLocked()
	epoch := sh.known
	sh.flight = nil
	c.mu.Unlock()
	close(f.done)
	c.handBack(epoch, spare)
	c.ended()
	c.tell(c.load())
	c.pursue()
}

// answeredLocked takes in the answer to a question for slots.
func (c *Circuit) answeredLocked(a *Acquire, r *Reply, asked, now int64) {
	s, sh, l := c.load(), c.rare.share, &r.Ledger
	why := byRemote
	if l.Applied {
		why = byTimeout
	}
	sh.shapedLocked(r)
	c.heardLocked(s, r, why, nil, now)
	switch {
	case r.Err != nil:
		if sh.acting == follows {
			sh.acting = alone
		}
	case sh.acting != follows, l.Epoch == sh.known && c.m.state == Closed:
	case l.Epoch == sh.known && c.m.state == Open && l.State == Open: // our clock is ahead of the store's
		c.m.until = max(c.m.until, c.m.now+min(max(clampDuration(l.Remaining), 1), s.longestOpen()))
		c.shut.Store(nil)
	case l.Epoch != sh.known || c.m.state != HalfOpen:
		if sh.fruitless++; sh.fruitless >= maxFruitless {
			sh.acting = alone // it answers, but with nothing that helps
		}
		return
	case l.Granted <= 0:
		wait := l.RetryAfter
		if wait <= 0 {
			wait = minDenied
		}
		sh.deniedUntil = c.m.now + int64(min(wait, maxDenied))
		sh.fullUntil = c.m.now + clampDuration(wait)
	default:
		for _, token := range a.Tokens[:min(l.Granted, len(a.Tokens))] {
			sh.grants = append(sh.grants, grant{c.m.epoch, token, asked + int64(a.Lease)})
		}
	}
	sh.fruitless = 0
}

// maxFruitless is how many answers in a row may neither give nor refuse a slot before the circuit probes by itself.
const maxFruitless = 4

// handBack gives slots back that nobody has used.
func (c *Circuit) handBack(epoch uint64, tokens []string) {
	hub := c.rare.share.hub
	for _, token := range tokens {
		v := Verdict{Name: c.name, Shape: c.load().sharing.shape, Epoch: epoch, Token: token, Outcome: Ignored}
		hub.run(func() {
			hub.settle(v)
			hub.tellOthers()
		})
	}
}

// judge has the store settle a probe that it has admitted. The answer is nil where there is nothing to wait for: the
// probe was the circuit's own, its epoch has ended, or its outcome says nothing. After an answer, ended must be called.
func (c *Circuit) judge(s *settings, e *event, slow bool) (answer *Reply) {
	v, ok := c.takeVerdict(s, e, slow)
	if !ok {
		return nil
	}
	hub := c.rare.share.hub
	e.decided = true
	if v.Outcome == Ignored {
		hub.run(func() {
			c.learned(hub.settle(v), byRemote)
			c.ended()
			c.tell(s)
		})
		return nil
	}
	r := hub.settle(v)
	e.decided = r.Err == nil
	return &r
}

// takeVerdict is the verdict on a probe that the store has admitted.
func (c *Circuit) takeVerdict(s *settings, e *event, slow bool) (v Verdict, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sh := c.rare.share
	tokens := sh.tokens[e.pass.lease]
	if len(tokens) == 0 || e.pass.epoch != c.m.epoch || !sh.follows() {
		return v, false
	}
	if sh.tokens[e.pass.lease] = tokens[1:]; len(tokens) == 1 {
		delete(sh.tokens, e.pass.lease)
	}
	v = Verdict{Name: c.name, Shape: s.sharing.shape, Epoch: sh.known, Token: tokens[0], Outcome: e.outcome, Threshold: s.policy.successThreshold}
	if slow && v.Outcome == Success {
		v.Outcome = Failure
	}
	if v.Outcome == Failure {
		var length int64
		v.Openings, length = c.m.opening(&s.policy, e)
		v.For = duration(length)
	}
	sh.moving++
	return v, true
}

// judgedLocked takes in the answer to a probe's settlement.
func (c *Circuit) judgedLocked(s *settings, r *Reply, cause error, now int64) {
	why := byRemote
	switch {
	case !r.Ledger.Applied:
	case r.Ledger.State == Closed:
		why = byRecovery
	case r.Ledger.State == Open:
		why = byProbe
	}
	c.heardLocked(s, r, why, cause, now)
	if r.Err == nil && c.m.state == HalfOpen {
		c.undenyLocked()
	}
}

// What Snapshot says.

// sharedLocked is the account of the share.
func (c *Circuit) sharedLocked(s *settings, wall anchor) *Shared {
	sh := c.shareLocked()
	if sh == nil {
		return nil
	}
	a := &Shared{
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
		n.Successes += t.ok
		n.Failures += t.failed
		n.Ignored += t.ignored
		n.Slow += t.slow
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
	if !sh.hub.away.Load() {
		ctx, cancel := context.WithTimeout(context.Background(), sh.hub.timeout)
		defer cancel()
		_ = c.Sync(ctx) // what cannot be reported now is lost with the circuit
	}
	c.mu.Lock()
	sh.closed = true
	c.mu.Unlock()
	sh.hub.leave(c)
}
