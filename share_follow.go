package breaker

import (
	"fmt"
	"strings"
	"time"
)

// learned takes in an answer of the store: where the ledger stands, or that it could not be asked.
func (c *Circuit) learned(r StoreReply, why reason) {
	now := c.load().time.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heardLocked(c.load(), &r, why, nil, now)
}

// heardLocked is learned under the lock. cause is why the ledger opened, if it did so at our word.
func (c *Circuit) heardLocked(s *settings, r *StoreReply, why reason, cause error, now int64) {
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

// maxAhead is how many milliseconds an epoch may be ahead of the store's clock: one forged message must not keep a fleet
// from ever moving again.
const maxAhead = 24 * 60 * 60 * 1000

// impossible reports whether no circuit can follow a ledger.
func (l *Ledger) impossible() bool {
	return l.Epoch > min(l.Clock+maxAhead, maxEpoch) || int(l.State) >= len(stateNames)
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
	c.rare.share.deniedUntil = 0
	c.shut.Store(nil)
}

// staysLocked reports whether a circuit that acts by itself keeps to that, in an epoch that is not over: it has closed, or
// probes where a probe is due. That the ledger can be read does not end it, since a store may be read that cannot be
// written to, and the next probe would leave again. A newer epoch does, or a slot. A store within the process is not read
// by the hub.
func (c *Circuit) staysLocked(l *Ledger) bool {
	sh := c.rare.share
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
	sh := c.rare.share
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

// bringBackLocked sees to it that a store which has lost the ledger, or the last of it, gets it back. A ledger that is no
// younger than what is known is merely late, unless it was asked for since.
func (c *Circuit) bringBackLocked(l *Ledger, now int64) {
	sh := c.rare.share
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
	sh := c.rare.share
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
	sh := c.rare.share
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
