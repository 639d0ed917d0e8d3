package breaker

import (
	"context"
	"slices"
	"time"

	"github.com/breakerkit/breaker/internal/window"
)

// What a circuit tells its store, and what it makes of the answer. See share.go.

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
	window.Sums
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
func (t *tally) slice(now int64) *window.Sums {
	if n := len(t.slices); n > 0 && now-t.slices[n-1].at < tallyGrain {
		return &t.slices[n-1].Sums
	}
	if len(t.slices) == tallySlices {
		for i := range tallySlices / 2 {
			t.slices[2*i].Plus(t.slices[2*i+1].Sums)
			t.slices[i] = t.slices[2*i]
		}
		t.slices = t.slices[:tallySlices/2]
	}
	t.slices = append(t.slices, tallySlice{at: now})
	return &t.slices[len(t.slices)-1].Sums
}

// fold takes in the successes that were only counted so far. breaks says whether they may have ended a run.
func (t *tally) fold(successes uint64, now int64, breaks bool) {
	n := successes - t.okSeen
	t.okSeen = successes
	if n == 0 {
		return
	}
	t.slice(now).OK += n
	t.n += n
	if t.run.early = t.run.early || !breaks; breaks {
		t.run.broken = true
		t.run.tail = 0
		t.run.trailing += n
	}
}

// add takes in one outcome that is no success. keep is how many times of failures are kept.
func (t *tally) add(now int64, o Outcome, slow bool, keep int) {
	t.slice(now).Count(window.Outcome(o), slow)
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
func (t *tally) batch(now int64, window time.Duration) (b StoreBatch) {
	for _, s := range t.slices {
		age := duration(now - s.at)
		if window == 0 || age < window {
			b.Slices = append(b.Slices, StoreSlice{Age: age, Successes: s.OK, Failures: s.Failed, Ignored: s.Ignored, Slow: s.Slow})
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
		sh.tally.slice(now).Slow++
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
func (c *Circuit) takeReport(asking bool) (r StoreReport, ok bool) {
	now := c.load().time.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.load()
	sh := c.extras.share
	now = max(c.m.now, now)
	if sh.closed {
		return r, false
	}
	if c.m.state == Closed && sh.acting == follows {
		sh.tally.fold(c.successesLocked(), now, sh.breaksRun())
	}
	r = StoreReport{Name: c.name, Node: sh.node, Epoch: sh.known, Shape: s.sharing.shape}
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
func (b *StoreBatch) outcomes() (n uint64) {
	for _, s := range b.Slices {
		n += s.Successes + s.Failures + s.Ignored
	}
	return n
}

// decides reports whether a batch has what a trip policy looks at.
func (b *StoreBatch) decides() bool {
	return slices.ContainsFunc(b.Slices, func(s StoreSlice) bool { return s.Successes > 0 || s.Failures > 0 })
}

// reported takes in the answer to a report.
func (c *Circuit) reported(r *StoreReport, answer *StoreReply) {
	now := c.load().time.now()
	c.mu.Lock()
	sh := c.extras.share
	if answer.Err != nil {
		sh.lost += r.Batch.outcomes()
	}
	sh.shapedLocked(answer)
	c.heardLocked(c.load(), answer, byRemote, nil, now)
	c.mu.Unlock()
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
func (c *Circuit) say(asking bool) (r StoreReport, answer StoreReply, ok bool) {
	if r, ok = c.takeReport(asking); ok {
		answer = c.extras.share.hub.report(r)
		c.reported(&r, &answer)
	}
	return r, answer, ok
}

// takeTurn takes the turn, or leaves word that somebody wanted it.
func (c *Circuit) takeTurn() bool {
	sh := c.extras.share
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
	sh := c.extras.share
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
		c.extras.share.hub.want(c, promptly)
	}
}

func (c *Circuit) hasOrders() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	sh := c.extras.share
	return len(sh.orders) > 0 && !sh.away()
}

// Sync waits until everything that the circuit has counted and others need to know is reported, every move that was asked
// for made, and the ledger read. It returns the context's error or the store's. Without a store there is nothing to wait for.
func (c *Circuit) Sync(ctx context.Context) error {
	shared := c.load().sharing != nil
	for {
		if err := ctx.Err(); err != nil || !shared {
			return err
		}
		select {
		case c.extras.share.turn <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		err := c.runOrders()
		var r StoreReport
		var answer StoreReply
		var ok bool
		if err == nil || !c.extras.share.unheard() {
			r, answer, ok = c.say(true)
		}
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
func (c *Circuit) decide(r *StoreReport, answer StoreReply) {
	l := &answer.Ledger
	switch {
	case !r.Batch.decides():
		return
	case answer.Err != nil, l.impossible():
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
	switch {
	case held:
		c.orderOpening(l, onRun)
	case l.Foreign:
		c.decideAlone() // the ledger may not keep what this circuit's policy asks for
	}
}

// askUser asks the user's trip functions, one goroutine at a time. One that calls Sync is not asked the same again.
func (c *Circuit) askUser(s *settings, answer StoreReply) {
	sh := c.extras.share
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
	e := event{kind: eventSettle, now: s.time.now(), random: s.openJitter(), trip: true}
	c.mu.Lock()
	s = c.load()
	sh := c.extras.share
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
	e := event{kind: eventSettle, now: s.time.now(), random: s.openJitter(), trip: true}
	c.mu.Lock()
	s = c.load()
	c.endRunLocked(s)
	if c.m.state == Closed && c.extras.share.follows() && s.trips.holds(c.memory, max(c.m.now, e.now), c.run) {
		e.hint, e.pass.epoch = c.extras.share.hint, c.m.epoch
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
		c.extras.share.cause = cause
	}
	return c.urgencyLocked(s, e.now)
}

// asksStoreLocked reports whether it is for the ledger to say when to open.
func (c *Circuit) asksStoreLocked() bool {
	sh := c.shareLocked()
	return sh.follows() && !sh.away()
}

// settled sees to what a settlement has led to.
func (c *Circuit) settled(judged *StoreReply, u urgency) {
	hub := c.extras.share.hub
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
	if e.kind != eventFollow {
		sh.actedLocked(c.m.state)
	}
	if e.kind == eventSettle && c.m.state == Closed {
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
	for i := range p.rules {
		if r := &p.rules[i]; r.met(l.facts(r)) {
			return true, r.kind == tripConsecutive
		}
	}
	return false, false
}

// facts is what a rule looks at, from the ledger's counts.
func (l *Ledger) facts(r *tripRule) tripFacts {
	n := &l.Counts
	f := tripFacts{
		run:    max(n.ConsecutiveFailures, l.Peak),
		recent: l.Recent,
		Sums:   window.Sums{OK: n.Successes, Failed: n.Failures, Slow: n.Slow},
	}
	if r.within > 0 {
		f.run = l.RecentRun
	}
	return f
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
