package breaker

import (
	"context"
)

// What a circuit tells its store, and what it makes of the answer. See share.go.

// Sync waits until everything that the circuit has counted and others need to know is reported, every move that was asked
// for made, and the ledger read. It returns the context's error or the store's. Without a store there is nothing to wait for.
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

// exchange asks for the moves that are due and reports what there is to report, until there is nothing more to say. It
// leaves that to another goroutine which is at it already.
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

// sendReport reports what there is to report. The turn must be taken.
func (c *Circuit) sendReport(asking bool) (r StoreReport, answer StoreReply, ok bool) {
	if r, ok = c.takeReport(asking); ok {
		answer = c.shared().link.client.report(r)
		c.applyReport(&r, &answer)
	}
	return r, answer, ok
}

// takeReport takes the tally out as a report; ok is false when there is nothing to say. With asking set it says so, which
// makes a reading of it. The turn must be taken, and ended be called after the answer.
func (c *Circuit) takeReport(asking bool) (r StoreReport, ok bool) {
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
	case !asking:
		return r, false
	}
	sh.view.epochOps++
	return r, true
}

// applyReport takes in the answer to a report.
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
		answer.Ledger.Peak = 0 // no failure here: whatever it was, it was somebody else's to decide on
	}
}

// beginReporting takes the turn, or leaves word that somebody wanted it.
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

// endReporting gives the turn back, and reports whether somebody wanted it meanwhile.
func (c *Circuit) endReporting() (again bool) {
	sh := c.shared()
	c.mu.Lock()
	<-sh.outbox.reporting
	again, sh.outbox.reportAgain = sh.outbox.reportAgain, false
	c.mu.Unlock()
	c.deliver(c.load())
	return again
}

// addToTallyLocked notes an outcome of the closed state for the next report.
func (c *Circuit) addToTallyLocked(s *settings, e *event, slow bool) {
	sh := c.shareLocked()
	if !sh.isInStep() {
		return
	}
	now := max(c.m.now, e.now)
	sh.outbox.tally.fold(c.successesLocked(), now, sh.successEndsRun())
	switch {
	case e.outcome != Success:
		sh.outbox.tally.add(now, e.outcome, slow, s.sharing.shape.Failures)
	case slow:
		sh.outbox.tally.slice(now).slow++
	}
	if e.outcome != Ignored {
		sh.outbox.hint = e.hint // none for a success
	}
}

// successEndsRun reports whether a success now would end a run of failures.
func (sh *share) successEndsRun() bool {
	return sh.view.ledger.Counts.ConsecutiveFailures > 0 || sh.outbox.tally.run.failures > 0
}

// needsSuccessLocked reports whether the next success is to be noted: it ends a run of the ledger's.
func (c *Circuit) needsSuccessLocked() bool {
	sh := c.shareLocked()
	return sh.isInStep() && sh.view.ledger.Counts.ConsecutiveFailures > 0 && !sh.outbox.tally.run.broken
}

// hasNews reports whether there is something in the tally that the others need to know.
func (sh *share) hasNews(s *settings) bool {
	r := &sh.outbox.tally.run
	return r.failures > 0 || s.trips.grain > 0 && sh.outbox.tally.outcomes > 0 || r.broken && sh.view.ledger.Counts.ConsecutiveFailures > 0
}

// urgency is when the store should hear of what is tallied.
type urgency uint8

const (
	none        urgency = iota
	nextFlush           // at the next flush
	rateLimited         // as soon as the spacing of reports allows
	immediate           // an order
)

// urgencyLocked says when the tally should be reported, if the hub does not know already.
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

// urgency is urgencyLocked but for what the hub knows. Several failures in a row here may be the last of as many
// everywhere, whatever was last seen of the ledger.
func (sh *share) urgency(s *settings, now int64, run uint32) urgency {
	switch {
	case sh.link.client.immediate, sh.outbox.tally.run.broken && sh.view.ledger.Counts.ConsecutiveFailures > 0:
		return rateLimited
	case sh.outbox.tally.run.failures > 0 && (run > 1 || now-sh.outbox.reportedAt >= int64(s.sharing.flushEvery) || s.trips.nearly(sh)):
		return rateLimited
	}
	return nextFlush
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
