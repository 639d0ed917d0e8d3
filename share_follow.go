package breaker

import (
	"fmt"
	"strings"
	"time"
)

// applyReply takes in an answer of the store: where the ledger stands, or that it could not be asked.
func (c *Circuit) applyReply(r StoreReply, why reason) {
	now := c.load().time.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.applyReplyLocked(c.load(), &r, why, nil, now)
}

// applyReplyLocked is applyReply under the lock. cause is why the ledger opened, if it did so at our word.
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
	if sh.view.epoch > l.Clock+maxAhead && sh.view.ledger.Clock > l.Clock { // the clock was set back: what is known is out of its reach
		sh.view.epoch, sh.view.ledger = 0, Ledger{}
	}
	if l.Foreign {
		sh.noteAnomalyLocked(c.name, "others share the name with another configuration", "")
	}
	c.followLocked(s, l, why, cause, sh.link.exchangedAt)
}

// noteForeignLocked takes in what the answer to a question with a Shape says about it.
func (sh *share) noteForeignLocked(r *StoreReply) {
	if r.Err != nil {
		return
	}
	if sh.link.foreign && !r.Ledger.Foreign {
		sh.link.anomaly = "" // that is over, and news if it comes again
	}
	sh.link.foreign = r.Ledger.Foreign
}

// maxAhead is how many milliseconds an epoch may be ahead of the store's clock: one forged message must not keep a fleet
// from ever moving again.
const maxAhead = 24 * 60 * 60 * 1000

// implausible reports whether no circuit can follow a ledger.
func (l *Ledger) implausible() bool {
	return l.Epoch > min(l.Clock+maxAhead, maxEpoch) || int(l.State) >= len(stateNames)
}

// followLocked moves the machine to where the ledger stands, if that is news.
func (c *Circuit) followLocked(s *settings, l *Ledger, why reason, cause error, now int64) {
	sh := c.shared()
	if l.Epoch < sh.view.epoch {
		c.restoreLedgerLocked(l, now)
		return
	}
	news := l.Epoch > sh.view.epoch
	first := sh.view.epoch == 0 && sh.standing == inStep && c.m.state == Closed && l.State == Closed && why != byHand
	returning := !news && sh.standing == standalone && !c.staysStandaloneLocked(l)
	sh.view.epoch = l.Epoch
	if first && news { // the series of openings that the others are in
		c.m.opens = l.Openings
		c.m.since = min(c.m.now, now-clampDuration(l.Age))
	}
	if returning {
		sh.rejoin()
	}
	if !(news && !first || returning && c.m.state != l.State) {
		c.refreshViewLocked(s, l, now)
		c.tryRejoinLocked(l)
		c.publishLocked(s)
		return
	}
	sh.rejoin()
	sh.setLedgerLocked(l)
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

// refreshViewLocked takes over what the ledger says about the epoch that lasts.
func (c *Circuit) refreshViewLocked(s *settings, l *Ledger, now int64) {
	sh := c.shared()
	if l.Counts.ConsecutiveFailures > 0 && sh.view.ledger.Counts.ConsecutiveFailures == 0 && c.m.state == Closed {
		sh.outbox.tally.fold(c.successesLocked(), now, false) // these came before the run
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

// setLedgerLocked takes a ledger over as the one that was seen last.
func (sh *share) setLedgerLocked(l *Ledger) {
	sh.view.ledger, sh.view.takenAt = *l, sh.link.syncer.time.now()
}

// isOutdated reports whether a ledger is older than what is known, by what it says itself. The store's clock may have been
// set back, or be another server's; but within an epoch runs follow each other by their numbers, and grow.
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

// answersAreNewer reports whether no operation is under way any more that was when a ledger was last taken over: what is answered
// now has been asked since, whatever the store's clock says.
func (sh *share) answersAreNewer() bool {
	return (sh.link.syncer.time.now()-sh.view.takenAt)/2 > int64(sh.link.client.timeout)
}

// forgetDenialLocked makes the next call ask for a slot again.
func (c *Circuit) forgetDenialLocked() {
	c.shared().probes.deniedUntil = 0
	c.shut.Store(nil)
}

// staysStandaloneLocked reports whether a circuit that acts by itself keeps to that, in an epoch that is not over: it has closed, or
// probes where a probe is due. That the ledger can be read does not end it, since a store may be read that cannot be
// written to, and the next probe would leave again. A newer epoch does, or a slot. A store within the process is not read
// by the hub.
func (c *Circuit) staysStandaloneLocked(l *Ledger) bool {
	sh := c.shared()
	if sh.standing != standalone || sh.link.client.immediate || l.State == Closed || l.Granted > 0 {
		return false
	}
	return c.m.state == Closed || l.State == HalfOpen || l.Remaining <= 0
}

// How far apart a circuit that stays by itself asks for a slot. The times are doubled.
const minRejoinWait, maxRejoinWait = time.Second, 8 * time.Second

// tryRejoinLocked asks for a slot, as any circuit would of such a ledger, to see whether the store takes anything. No call
// waits for it.
func (c *Circuit) tryRejoinLocked(l *Ledger) {
	sh := c.shared()
	now := sh.link.syncer.time.now()
	switch {
	case !c.staysStandaloneLocked(l):
		sh.probes.rejoinAfter, sh.probes.rejoinAt = 0, 0
		return
	case l.State == Open && l.Remaining > 0, now < sh.probes.rejoinAt, sh.probes.request != nil, len(sh.outbox.orders) > 0, sh.unavailable():
		return
	}
	sh.probes.rejoinAfter = min(max(2*sh.probes.rejoinAfter, minRejoinWait), maxRejoinWait)
	sh.probes.rejoinAt = now + int64(sh.probes.rejoinAfter)
	sh.probes.request = &slotRequest{make(chan struct{})}
	go c.requestSlots(sh.probes.request)
}

// restoreLedgerLocked sees to it that a store which has lost the ledger, or the last of it, gets it back. A ledger that is no
// younger than what is known is merely late, unless it was asked for since.
func (c *Circuit) restoreLedgerLocked(l *Ledger, now int64) {
	sh := c.shared()
	if sh.isOutdated(l) && !sh.answersAreNewer() || sh.standing == standaloneOpen || len(sh.outbox.orders) > 0 {
		return
	}
	o := order{to: c.m.state, why: byRemote, epoch: sh.view.epoch}
	if sh.standing == standalone {
		o.to = sh.view.ledger.State // what it did by itself is not for the others
	}
	switch {
	case o.to == Closed && l.Epoch == 0 && sh.standing == inStep:
		return // the next report brings it back
	case o.to == HalfOpen, o.to == Open && sh.standing == standalone:
		o.to, o.until = Open, now // a lost HalfOpen comes back as a due Open
	case o.to == Open:
		o.until = max(now, c.m.until)
	}
	sh.outbox.orders = append(sh.outbox.orders, o)
}

// applyPushed takes in a ledger that the store sent unasked.
func (c *Circuit) applyPushed(l Ledger) {
	c.mu.Lock()
	sh := c.shared()
	held := sh.view.epochOps > 0 || sh.closed || sh.isOutdated(&l) // nobody asked: it may have been on its way for long
	if sh.view.epochOps > 0 && (sh.view.pushed == nil || l.Epoch >= sh.view.pushed.Epoch) {
		sh.view.pushed = &l // what our own operation causes would be taken for another's: its answer comes first
	}
	c.mu.Unlock()
	if !held {
		c.applyReply(StoreReply{Ledger: l}, byRemote)
		sh.link.syncer.deliverLater(c)
	}
}

// epochOpEnded is called when an operation that may have begun an epoch has been answered, and its answer taken in.
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

// noteAnomalyLocked notes something strange for the StoreError hooks, unless it is what they heard last.
func (sh *share) noteAnomalyLocked(name, what, detail string) {
	if !strings.HasPrefix(sh.link.anomaly, what) {
		sh.link.anomaly = what + detail
		sh.link.pendingErrors = append(sh.link.pendingErrors, fmt.Errorf("breaker: store of circuit %q: %s", name, sh.link.anomaly))
	}
}

// deliver delivers what hooks should know, here and where another circuit was told of what we did. It must not be called with
// the turn taken: a hook may call Sync.
func (c *Circuit) deliver(s *settings) {
	c.deliverOwn(s)
	c.shared().link.syncer.deliverPending()
}

func (c *Circuit) deliverOwn(s *settings) {
	c.mu.Lock()
	sh := c.shared()
	said := sh.link.pendingErrors
	sh.link.pendingErrors = nil
	n := &c.rare.notifier
	c.mu.Unlock()
	if len(said) == 0 && n.idle() {
		return
	}
	sh.link.syncer.background(func() {
		defer n.deliver(s)
		for _, err := range said {
			s.hookStoreError(c.name, err)
		}
	})
}
