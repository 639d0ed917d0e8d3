package breaker

import "slices"

// Opening in step with a ledger: the trip policy is evaluated here, by the ledger's counts, after every report; the store
// is then asked to open. See share.go.

// decide evaluates the trip policy after a report, by the counts in the reply, or by the circuit's own if there are none. A
// report without a success or a failure decides nothing: that failures have become old, or successes have left the window,
// is no reason to open.
func (c *Circuit) decide(r *StoreReport, answer StoreReply) {
	l := &answer.Ledger
	switch {
	case !r.Batch.countsForTrip():
		return
	case answer.Err != nil, l.implausible():
		c.decideByOwnCounts()
		return
	case l.State != Closed || l.Epoch == 0:
		return
	}
	s := c.load()
	held, onRun := s.trips.heldBy(l)
	if !held && s.trips.user {
		if r.Batch.asksUser() {
			c.askTripFuncs(s, answer)
		}
		return
	}
	switch {
	case held:
		c.orderOpening(l, onRun)
	case l.Foreign:
		c.decideByOwnCounts() // the ledger may not keep all that this circuit's policy looks at
	}
}

// askTripFuncs asks the user's trip functions about the counts in a reply, in one goroutine at a time: a reply that arrives
// meanwhile is asked about next. A function that calls Sync thus causes no recursion, and is not asked about the same
// counts again.
func (c *Circuit) askTripFuncs(s *settings, answer StoreReply) {
	sh := c.shared()
	c.mu.Lock()
	sh.outbox.undecided = &answer
	mine := !sh.outbox.asking
	sh.outbox.asking = true
	c.mu.Unlock()
	if !mine {
		return
	}
	done := false
	defer func() {
		if !done { // a trip function has ended the goroutine by runtime.Goexit
			c.mu.Lock()
			sh.outbox.asking = false
			c.mu.Unlock()
		}
	}()
	for asked := (*Ledger)(nil); ; {
		c.mu.Lock()
		next := sh.outbox.undecided
		sh.outbox.undecided = nil
		if next == nil || asked != nil && asked.Epoch == next.Ledger.Epoch && asked.Counts == next.Ledger.Counts {
			sh.outbox.asking, done = false, true
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

// orderOpening orders the opening that the counts in l are a reason for; onRun says that the run of failures is the reason,
// so that a success of anybody meanwhile makes the order void. If fewer circuits have failed than MinReporters asks for,
// those that have failed open standalone.
func (c *Circuit) orderOpening(l *Ledger, onRun bool) {
	s := c.load()
	e := event{kind: eventSettle, now: s.time.now(), random: s.openJitter(), trip: true}
	c.mu.Lock()
	s = c.load()
	sh := c.shared()
	if sh.isInStep() && sh.view.epoch == l.Epoch && c.m.state == Closed && c.m.mode != ForcedClosed && len(sh.outbox.orders) == 0 {
		e.hint, e.pass.epoch = sh.outbox.hint, c.m.epoch
		switch {
		case l.Reporters >= s.sharing.shape.Reporters:
			o := order{to: Open, why: byThreshold, epoch: l.Epoch, event: e, cause: sh.outbox.cause}
			if onRun {
				o.run = l.Run
			}
			sh.outbox.orders = append(sh.outbox.orders, o)
		case c.failures > c.failuresBefore:
			c.stepLocked(s, &e, new(effects), nil)
		}
	}
	c.mu.Unlock()
	c.deliver(s)
	c.scheduleOrders()
}

// decideByOwnCounts opens the circuit standalone if its own counts are a reason to, by the user's trip functions too.
func (c *Circuit) decideByOwnCounts() {
	s := c.load()
	e := event{kind: eventSettle, now: s.time.now(), random: s.openJitter(), trip: true}
	var asked []Counts
	c.mu.Lock()
	s = c.load()
	if sh := c.shared(); c.m.state == Closed && sh.isInStep() && sh.joined {
		c.transferLocked(s, e.now)
		c.endRunLocked(s)
		e.hint, e.pass.epoch = sh.outbox.hint, c.m.epoch
		switch {
		case s.trips.holds(c.memory, max(c.m.now, e.now), c.run):
			c.stepLocked(s, &e, new(effects), nil)
		case s.trips.user:
			asked = c.countsForUserLocked(s, nil)
		}
	}
	c.mu.Unlock()
	c.deliver(s)
	if asked != nil && s.userTrips(c.name, asked) {
		c.applyCommand(s, e, nil)
	}
}
