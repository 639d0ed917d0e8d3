package breaker

import (
	"context"

	"github.com/breakerkit/breaker/internal/window"
)

// Reports: the tally on its way to the ledger. Whoever runs orders and sends reports for a circuit holds outbox.reporting
// meanwhile, and releases it before hooks are called or anything is decided. See share.go.

// Sync waits until the [Store] has carried out what the circuit had to ask of it when Sync was called: Trip, Reset and
// OfferProbe, and an opening that its counts are a reason for. It reports the outcomes that others need to know of and reads
// the ledger. It returns the context's error or the store's, and nil at once for a circuit without a Store or after Close.
//
// Calls do not need it. It is for tests, for tools that act on a circuit and exit, and before a process ends.
func (c *Circuit) Sync(ctx context.Context) error {
	shared := c.load().sharing != nil
	for {
		if err := ctx.Err(); err != nil || !shared {
			return err
		}
		select {
		case c.shared().outbox.reporting <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		err := c.runOrders()
		var r StoreReport
		var answer StoreReply
		var ok bool
		if err == nil || !c.shared().unreachable() {
			r, answer, ok = c.sendReport(true)
		}
		again := c.endReporting()
		c.decide(&r, answer)
		if err == nil {
			err = answer.Err
		}
		if !ok || err != nil || !again && !c.hasOrders() {
			return err
		}
	}
}

// exchange runs the orders and reports the tally, until nothing is left to do. If another goroutine is doing that, it
// leaves it to that one.
func (c *Circuit) exchange() {
	for c.beginReporting() {
		_ = c.runOrders()
		r, answer, ok := c.sendReport(false)
		again := c.endReporting()
		if !ok && !again {
			return
		}
		c.decide(&r, answer)
	}
}

// sendReport reports the tally, if there is something to tell; with read set it sends an empty report otherwise, which
// reads the ledger. reporting must be held.
func (c *Circuit) sendReport(read bool) (r StoreReport, answer StoreReply, ok bool) {
	if r, ok = c.takeReport(read); ok {
		answer = c.shared().link.client.report(r)
		c.applyReport(&r, &answer)
	}
	return r, answer, ok
}

// takeReport makes a report of the tally, and empties it; ok is false if there is nothing to tell, and read is not set.
// reporting must be held, and epochOpEnded be called after the reply, since a report begins an epoch in an empty ledger.
func (c *Circuit) takeReport(read bool) (r StoreReport, ok bool) {
	now := c.load().time.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.load()
	sh := c.shared()
	now = max(c.m.now, now)
	if sh.closed {
		return r, false
	}
	if c.m.state == Closed && sh.standing == inStep {
		sh.outbox.tally.fold(c.successesLocked(), now, sh.successEndsRun())
	}
	r = StoreReport{Name: c.name, Node: sh.link.node, Epoch: sh.view.epoch, Shape: s.sharing.shape}
	switch {
	case sh.hasNews(s):
		r.Batch = sh.outbox.tally.batch(now, s.sharing.shape.Window)
		sh.outbox.tally = tally{folded: sh.outbox.tally.folded}
		sh.outbox.reportedAt, sh.outbox.scheduled = now, none
	case !read:
		return r, false
	}
	sh.view.epochOps++
	return r, true
}

// applyReport takes over the reply to a report. What may not have arrived is counted as lost, never sent again: it might be
// counted twice.
func (c *Circuit) applyReport(r *StoreReport, answer *StoreReply) {
	now := c.load().time.now()
	c.mu.Lock()
	sh := c.shared()
	if answer.Err != nil {
		sh.outbox.lost += r.Batch.outcomes()
	}
	sh.noteForeignLocked(answer)
	c.applyReplyLocked(c.load(), answer, byRemote, nil, now)
	c.mu.Unlock()
	c.epochOpEnded()
	if r.Batch.Longest == 0 {
		answer.Ledger.Peak = 0 // the peak has no failure of ours: whoever has reported it decides on it
	}
}

// beginReporting takes reporting, or notes that it was wanted.
func (c *Circuit) beginReporting() bool {
	sh := c.shared()
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case sh.outbox.reporting <- struct{}{}:
		return true
	default:
		sh.outbox.reportAgain = true
		return false
	}
}

// endReporting releases reporting, and calls the hooks that are due. It reports whether somebody else wanted it meanwhile.
func (c *Circuit) endReporting() (again bool) {
	sh := c.shared()
	c.mu.Lock()
	<-sh.outbox.reporting
	again, sh.outbox.reportAgain = sh.outbox.reportAgain, false
	c.mu.Unlock()
	c.deliver(c.load())
	return again
}

// addToTallyLocked counts an outcome of a call in the Closed state for the next report. successesLocked must have it already,
// if it is a Success or Answered. The other successes, of the fast path, are folded in first.
func (c *Circuit) addToTallyLocked(s *settings, e *event, slow bool) {
	sh := c.shareLocked()
	if !sh.isInStep() {
		return
	}
	if c.m.mode == ForcedClosed { // it says nothing about when to open, here or elsewhere
		c.skipTallyLocked()
		return
	}
	now, t := max(c.m.now, e.now), &sh.outbox.tally
	successes := c.successesLocked() // with this one, if it is a Success or Answered
	if e.outcome == Answered {
		t.fold(successes-1, now, sh.successEndsRun())
	}
	t.fold(successes, now, e.outcome != Answered && sh.successEndsRun())
	switch {
	case e.outcome == Failure || e.outcome == Ignored:
		t.add(now, e.outcome, slow, s.sharing.shape.Failures)
	case slow:
		t.slice(now).Slow++
	}
	switch {
	case e.outcome == Ignored:
	case e.outcome == Answered && t.run.failures > 0: // it leaves what the last failure asked for to the report of both
	default:
		sh.outbox.hint = e.hint // 0 but for a failure
	}
}

// foldTallyLocked counts the successes so far for the next report.
func (c *Circuit) foldTallyLocked() {
	if sh := c.shareLocked(); sh.isInStep() && c.m.state == Closed {
		sh.outbox.tally.fold(c.successesLocked(), c.m.now, sh.successEndsRun())
	}
}

// skipTallyLocked leaves the successes so far out of the next report.
func (c *Circuit) skipTallyLocked() {
	if sh := c.shareLocked(); sh != nil {
		sh.outbox.tally.folded = c.successesLocked()
	}
}

// successEndsRun reports whether a success now would end a run of failures, the ledger's or one that is not reported yet.
func (sh *share) successEndsRun() bool {
	return sh.view.ledger.Counts.ConsecutiveFailures > 0 || sh.outbox.tally.run.failures > 0
}

// needsSuccessLocked reports whether the next success must not take the fast path: it ends the ledger's run of failures,
// which the others must be told of.
func (c *Circuit) needsSuccessLocked() bool {
	sh := c.shareLocked()
	return sh.isInStep() && sh.view.ledger.Counts.ConsecutiveFailures > 0 && !sh.outbox.tally.run.broken
}

// hasNews reports whether the tally has something that the others need to know. Successes alone matter if they end a run of
// the ledger, or for a trip condition over a time window.
func (sh *share) hasNews(s *settings) bool {
	t := &sh.outbox.tally
	endsRun := t.run.broken && sh.view.ledger.Counts.ConsecutiveFailures > 0
	return t.run.failures > 0 || s.trips.grain > 0 && t.outcomes > 0 || endsRun
}

// urgency is how soon the store must be told something.
type urgency uint8

const (
	none        urgency = iota // there is nothing to tell, or it is scheduled already
	nextFlush                  // within FlushEvery
	rateLimited                // as soon as reportSpacing allows
	immediate                  // at once: an order
)

// urgencyLocked returns how soon the tally must be reported, or none if the syncer has been told so already. It notes that
// the syncer is told.
func (c *Circuit) urgencyLocked(s *settings, now int64) urgency {
	sh := c.shareLocked()
	if !sh.isInStep() || !sh.hasNews(s) {
		return none
	}
	u := sh.urgency(s, now, c.run)
	if !sh.link.client.immediate && u <= sh.outbox.scheduled {
		return none
	}
	sh.outbox.scheduled = u
	return u
}

// urgency returns how soon the tally must be reported, run being the circuit's own failures in a row. With more than one of
// these the ledger may be at its threshold, whatever was last seen of it, and so it may be after a quiet time, in which
// others have failed.
func (sh *share) urgency(s *settings, now int64, run uint32) urgency {
	switch {
	case sh.link.client.immediate, sh.outbox.tally.run.broken && sh.view.ledger.Counts.ConsecutiveFailures > 0:
		return rateLimited
	case sh.outbox.tally.run.failures == 0:
		return nextFlush
	case run > 1, now-sh.outbox.reportedAt >= int64(s.sharing.flushEvery), s.trips.nearly(sh):
		return rateLimited
	}
	return nextFlush
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
	l := &sh.view.ledger
	failed := l.Counts.Failures + sh.outbox.tally.run.failures
	calls := l.Counts.Successes + l.Counts.Failures + sh.outbox.tally.outcomes
	for i := range p.rules {
		r := &p.rules[i]
		near := false
		switch r.kind {
		case tripConsecutive:
			near = 2*(l.Counts.ConsecutiveFailures+sh.outbox.tally.run.longest) >= uint64(r.failures)
		case tripCount:
			near = 2*(l.Recent+sh.outbox.tally.run.failures) >= uint64(r.failures)
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
