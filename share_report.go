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
		case c.rare.share.turn <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		err := c.runOrders()
		var r StoreReport
		var answer StoreReply
		var ok bool
		if err == nil || !c.rare.share.unheard() {
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
		answer = c.rare.share.hub.report(r)
		c.reported(&r, &answer)
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
	sh := c.rare.share
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

// reported takes in the answer to a report.
func (c *Circuit) reported(r *StoreReport, answer *StoreReply) {
	now := c.load().time.now()
	c.mu.Lock()
	sh := c.rare.share
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
