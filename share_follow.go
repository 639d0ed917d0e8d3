package breaker

import (
	"fmt"
	"strings"
	"time"
)

// How the machine follows the ledger. The replies of the store, and the ledgers that it pushes, all come through
// applyReplyLocked. See share.go.

// applyReply takes over a reply of the store. why is the reason to tell if the machine moves.
func (c *Circuit) applyReply(r StoreReply, why reason) {
	now := c.load().time.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.applyReplyLocked(c.load(), &r, why, nil, now)
}

// applyReplyLocked is applyReply under the lock. cause is told with an opening that this circuit has asked for.
func (c *Circuit) applyReplyLocked(s *settings, r *StoreReply, why reason, cause error, now int64) {
	sh := c.shared()
	if r.Err != nil {
		if sh.link.lastErr == nil {
			sh.link.pendingErrors = append(sh.link.pendingErrors, fmt.Errorf("breaker: store of circuit %q: %w", c.name, r.Err))
		}
		sh.link.lastErr = r.Err
		return
	}
	sh.link.lastErr = nil
	sh.link.exchangedAt, sh.link.exchanged = max(c.m.now, now), true
	l := &r.Ledger
	if l.implausible() {
		sh.noteAnomalyLocked(c.name, "an impossible ledger", fmt.Sprintf(": epoch %d, state %d at %d ms", l.Epoch, l.State, l.Clock))
		return
	}
	if sh.view.epoch > l.Clock+maxAhead && sh.view.ledger.Clock > l.Clock {
		// The store's clock was set back so far that it would never again give an epoch above the one known.
		sh.view.epoch, sh.view.ledger = 0, Ledger{}
	}
	if l.Foreign {
		sh.noteAnomalyLocked(c.name, "others share the name with another configuration", "")
	}
	c.followLocked(s, l, why, cause, sh.link.exchangedAt)
}

// noteForeignLocked takes over whether the ledger is kept for another configuration. Only a reply to an operation that
// carries a StoreShape says so.
func (sh *share) noteForeignLocked(r *StoreReply) {
	if r.Err != nil {
		return
	}
	if sh.link.foreign && !r.Ledger.Foreign {
		sh.link.anomaly = "" // it is over; if it comes again, it is told again
	}
	sh.link.foreign = r.Ledger.Foreign
}

// maxAhead is how many milliseconds an epoch may be ahead of the store's clock. Without a limit one forged message with a
// huge epoch would keep all circuits of the name from ever following the store again.
const maxAhead = 24 * 60 * 60 * 1000

// implausible reports whether a ledger must not be followed: its epoch is too far ahead, or its state is none.
func (l *Ledger) implausible() bool {
	return l.Epoch > min(l.Clock+maxAhead, maxEpoch) || int(l.State) >= len(stateNames)
}

// followLocked makes the machine follow a ledger: into another state if the ledger has a newer epoch, or if nothing keeps a
// standalone circuit from following the epoch that it knows.
//
// A first reading that finds both Closed is no change of state: the circuit only takes over when the epoch began. An epoch
// that an operator's Reset of this circuit has begun is a change, though both are Closed: it clears the counts.
func (c *Circuit) followLocked(s *settings, l *Ledger, why reason, cause error, now int64) {
	sh := c.shared()
	if l.Epoch < sh.view.epoch {
		c.restoreLedgerLocked(l, now)
		return
	}
	news := l.Epoch > sh.view.epoch
	first := sh.view.epoch == 0 && sh.standing == inStep && c.m.state == Closed && l.State == Closed && why != byOperator
	returning := !news && sh.standing == standalone && !c.staysStandaloneLocked(l)
	sh.view.epoch = l.Epoch
	if first && news { // the open backoff that the others have reached
		c.m.opens = l.Openings
		c.m.since = min(c.m.now, now-clampDuration(l.Age))
	}
	if returning {
		sh.rejoin()
	}
	if moves := news && !first || returning && c.m.state != l.State; !moves {
		c.refreshViewLocked(s, l, now)
		c.tryRejoinLocked(l)
		c.publishLocked(s)
		return
	}
	sh.rejoin()
	sh.setLedgerLocked(l)
	e := event{kind: eventFollow, now: now, to: l.State, why: why, opens: l.Openings, since: now - clampDuration(l.Age)}
	e.until = now + min(clampDuration(l.Remaining), s.longestOpen())
	if l.State == Open && l.Remaining <= 0 && c.m.state != Open {
		e.to = HalfOpen
	}
	c.stepLocked(s, &e, new(effects), cause)
	c.m.progress = l.Progress
}

// longestOpen returns the longest open period that the configuration allows. A remaining time that a store tells is cut to
// it.
func (s *settings) longestOpen() int64 {
	return max(s.policy.openTimeout, int64(s.hintMax), s.policy.backoffMax)
}

// refreshViewLocked takes over what the ledger says about the epoch that the circuit knows.
func (c *Circuit) refreshViewLocked(s *settings, l *Ledger, now int64) {
	sh := c.shared()
	if l.Counts.ConsecutiveFailures > 0 && sh.view.ledger.Counts.ConsecutiveFailures == 0 && c.m.state == Closed {
		sh.outbox.tally.fold(c.successesLocked(), now, false) // the successes so far came before the run that the others are in
	}
	if sh.isOutdated(l) && !sh.answersAreNewer() {
		return
	}
	sh.setLedgerLocked(l)
	if c.m.state != HalfOpen || sh.standing != inStep {
		return
	}
	c.m.progress = l.Progress
	if l.Slots < s.policy.probes {
		c.forgetDenialLocked()
	}
}

// setLedgerLocked replaces the ledger as last seen.
func (sh *share) setLedgerLocked(l *Ledger) {
	sh.view.ledger, sh.view.takenAt = *l, sh.link.syncer.time.now()
}

// isOutdated reports whether a ledger is older than the one last seen, as far as ledgers themselves tell: replies and
// pushes may overtake each other. The store's clock alone does not tell, since it may have been set back or be another
// server's after a failover. Within an epoch run numbers rise, and the current run grows.
func (sh *share) isOutdated(l *Ledger) bool {
	k := &sh.view.ledger
	switch {
	case l.Epoch != k.Epoch:
		return l.Epoch < k.Epoch && l.Clock <= k.Clock
	case l.Run != k.Run:
		return l.Clock < k.Clock && l.Run < k.Run
	}
	return l.Clock < k.Clock && l.Counts.ConsecutiveFailures <= k.Counts.ConsecutiveFailures
}

// answersAreNewer reports whether a reply that arrives now must be newer than the ledger last seen, whatever the clocks in
// both say: every operation that was under way when that ledger was taken over has ended or been given up. Otherwise a
// store whose clock was set back would be taken for outdated until its clock has caught up.
func (sh *share) answersAreNewer() bool {
	return (sh.link.syncer.time.now()-sh.view.takenAt)/2 > int64(sh.link.client.timeout)
}

// forgetDenialLocked makes the next call ask the store for a slot, though it has refused one.
func (c *Circuit) forgetDenialLocked() {
	c.shared().probes.deniedUntil = 0
	c.cachedRejection.Store(nil)
}

// staysStandaloneLocked reports whether a circuit that is standalone without having opened stays so after reading l, a
// ledger of the epoch that it knows: it has closed by its own probe, or a probe is due. That the ledger can be read is no
// reason to rejoin: a store that can be read but not written to would send it back at the next probe, and so on. A newer
// epoch is a reason, and so is a slot. A store within the process cannot be in that condition, and is not polled.
func (c *Circuit) staysStandaloneLocked(l *Ledger) bool {
	sh := c.shared()
	if sh.standing != standalone || sh.link.client.immediate || l.State == Closed || l.Granted > 0 {
		return false
	}
	return c.m.state == Closed || l.State == HalfOpen || l.Remaining <= 0
}

// The waits between the requests of tryRejoinLocked.
const minRejoinWait, maxRejoinWait = time.Second, 8 * time.Second

// tryRejoinLocked asks the store for a slot on behalf of a circuit that stays standalone after reading l, to find out
// whether the store can be written to again. No call waits for the reply. The waits between these requests double.
func (c *Circuit) tryRejoinLocked(l *Ledger) {
	sh := c.shared()
	now := sh.link.syncer.time.now()
	switch {
	case !c.staysStandaloneLocked(l):
		sh.probes.rejoinAfter, sh.probes.rejoinAt = 0, 0
		return
	case l.State == Open && l.Remaining > 0, now < sh.probes.rejoinAt:
		return // it is not time yet
	case sh.probes.request != nil, len(sh.outbox.orders) > 0, sh.unavailable():
		return // it is being found out, or cannot be
	}
	sh.probes.rejoinAfter = min(max(2*sh.probes.rejoinAfter, minRejoinWait), maxRejoinWait)
	sh.probes.rejoinAt = now + int64(sh.probes.rejoinAfter)
	sh.probes.request = &slotRequest{make(chan struct{})}
	go c.requestSlots(sh.probes.request)
}

// restoreLedgerLocked orders what gives a ledger back to a store that has lost it, or its latest epochs: l is of a lower
// epoch than the circuit knows. An l that is only late is ignored. A circuit whose own opening is behind it
// (standaloneOpen) restores nothing: that opening is not for the others.
func (c *Circuit) restoreLedgerLocked(l *Ledger, now int64) {
	sh := c.shared()
	if sh.isOutdated(l) && !sh.answersAreNewer() || sh.standing == standaloneOpen || len(sh.outbox.orders) > 0 {
		return
	}
	o := order{to: c.m.state, why: byRemote, epoch: sh.view.epoch}
	if sh.standing == standalone {
		o.to = sh.view.ledger.State // the others get back what was theirs, not the circuit's own state
	}
	switch {
	case o.to == Closed && l.Epoch == 0 && sh.standing == inStep:
		return // the next report begins it again in the epoch known
	case o.to == HalfOpen, o.to == Open && sh.standing == standalone:
		o.to, o.until = Open, now // an Open whose period has ended: the next probe makes it HalfOpen
	case o.to == Open:
		o.until = max(now, c.m.until)
	}
	sh.outbox.orders = append(sh.outbox.orders, o)
}

// applyPushed takes over a ledger that the store has pushed.
func (c *Circuit) applyPushed(l Ledger) {
	c.mu.Lock()
	sh := c.shared()
	held := sh.view.epochOps > 0 || sh.closed || sh.isOutdated(&l)
	if sh.view.epochOps > 0 && (sh.view.pushed == nil || l.Epoch >= sh.view.pushed.Epoch) {
		sh.view.pushed = &l
	}
	c.mu.Unlock()
	if !held {
		c.applyReply(StoreReply{Ledger: l}, byRemote)
		sh.link.syncer.deliverLater(c)
	}
}

// epochOpEnded must be called once for every increment of epochOps, after the reply has been taken over. After the last one
// it takes over what was pushed meanwhile.
func (c *Circuit) epochOpEnded() {
	c.mu.Lock()
	sh := c.shared()
	sh.view.epochOps--
	var l *Ledger
	if sh.view.epochOps == 0 {
		l, sh.view.pushed = sh.view.pushed, nil
	}
	if l != nil && sh.isOutdated(l) {
		l = nil
	}
	c.mu.Unlock()
	if l != nil {
		c.applyReply(StoreReply{Ledger: *l}, byRemote)
	}
}

// noteAnomalyLocked notes something odd in an exchange that worked, for the StoreError hooks and for StoreStatus.LastError;
// nothing, if the same was told last. what is the part by which it is the same.
func (sh *share) noteAnomalyLocked(name, what, detail string) {
	if !strings.HasPrefix(sh.link.anomaly, what) {
		sh.link.anomaly = what + detail
		sh.link.pendingErrors = append(sh.link.pendingErrors, fmt.Errorf("breaker: store of circuit %q: %s", name, sh.link.anomaly))
	}
}

// deliver calls the hooks that are due: the circuit's own, and those of circuits that an operation of an immediate store
// has pushed to. It must not be called with reporting held, since a hook may call Sync, which waits for it.
func (c *Circuit) deliver(s *settings) {
	c.deliverOwn(s)
	c.shared().link.syncer.deliverPending()
}

// deliverOwn calls the circuit's own hooks that are due.
func (c *Circuit) deliverOwn(s *settings) {
	c.mu.Lock()
	sh := c.shared()
	errs := sh.link.pendingErrors
	sh.link.pendingErrors = nil
	n := &c.extras.notifier
	c.mu.Unlock()
	if len(errs) == 0 && n.idle() {
		return
	}
	sh.link.syncer.background(func() {
		defer n.deliver(s)
		for _, err := range errs {
			s.hookStoreError(c.name, err)
		}
	})
}
