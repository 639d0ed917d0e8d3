package breaker

import (
	"errors"
	"slices"
)

// The moves that a circuit asks its store for: openings that the ledger's counts are a reason for, and what operators order.
// See share.go.

// order is a move that is to be asked for.
type order struct {
	to          State
	why         reason
	epoch       uint64 // the epoch that it is for; 0: whichever there is when its turn comes
	run         uint64 // the run that it rests on
	until       int64  // to is Open: the end of a period that was begun before; 0: it begins now
	event       event  // what it is to the machine, where the store is away
	cause       error
	appliedHere bool // the machine has been told
	recovered   bool // and has recovered from it
}

// persists reports whether the order stands until it is carried out: an operator's Trip or Reset.
func (o *order) persists() bool { return o.event.kind == evTrip || o.event.kind == evReset }

// orderMove asks for an operator's move. It reports false where there is nobody to ask. Where the store is away, the circuit
// makes it alone, and asks for it later if it still stands then.
func (c *Circuit) orderMove(o order) bool {
	o.event.now = c.load().time.now()
	c.mu.Lock()
	s := c.load()
	sh := c.shareLocked()
	if sh == nil || sh.closed {
		c.mu.Unlock()
		return false
	}
	if sh.unreachable() {
		o.appliedHere = true
		c.stepLocked(s, &o.event, new(effects), o.cause)
	}
	if o.event.kind == evOffer {
		o.epoch = sh.view.epoch // it is for this open period only
	}
	if !o.appliedHere || o.persists() {
		sh.enqueue(o)
	}
	c.mu.Unlock()
	c.deliver(s)
	c.scheduleOrders()
	return true
}

// enqueue has an order wait for its turn. Of those that the machine has been told of, only the last still stands: it goes
// in the place of the others, but not of the first, which may be under way.
func (sh *share) enqueue(o order) {
	if o.appliedHere && len(sh.outbox.orders) > 0 {
		waiting := slices.DeleteFunc(sh.outbox.orders[1:], func(w order) bool { return w.appliedHere })
		sh.outbox.orders = sh.outbox.orders[:1+len(waiting)]
	}
	sh.outbox.orders = append(sh.outbox.orders, o)
}

// scheduleOrders sees to orders that something has led to.
func (c *Circuit) scheduleOrders() {
	if c.hasOrders() {
		c.shared().link.syncer.schedule(c, immediate)
	}
}

func (c *Circuit) hasOrders() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	sh := c.shared()
	return len(sh.outbox.orders) > 0 && !sh.unavailable()
}

// runOrders asks the store for the moves that are due, one after the other. The turn must be taken.
func (c *Circuit) runOrders() error {
	for range maxMoveAttempts {
		m, ok := c.nextMove()
		if !ok {
			return nil
		}
		r := c.shared().link.client.move(m)
		c.applyMove(r)
		c.epochOpEnded()
		if r.Err != nil {
			return r.Err
		}
	}
	return errMoveNotMade
}

var errMoveNotMade = errors.New("breaker: store does not carry out a move")

// maxMoveAttempts bounds how often a move is repeated from a newer epoch in one go.
const maxMoveAttempts = 16

// nextMove is the move to ask for next. It drops orders that have no point any more.
func (c *Circuit) nextMove() (m StoreMove, ok bool) {
	now := c.load().time.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.load()
	sh := c.shared()
	c.m.now = max(c.m.now, now)
	for len(sh.outbox.orders) > 0 && (sh.firstSuperseded() || c.isVoidLocked(&sh.outbox.orders[0])) {
		sh.outbox.orders = sh.outbox.orders[1:]
	}
	if len(sh.outbox.orders) == 0 || sh.unavailable() {
		return m, false
	}
	o := &sh.outbox.orders[0]
	m = StoreMove{Name: c.name, Shape: s.sharing.shape, From: sh.view.epoch, Run: o.run, To: o.to, Openings: c.m.opens}
	switch {
	case o.to == Closed:
		m.Openings = 0
	case o.appliedHere && o.to == Open && sh.standing == standaloneOpen:
		m.For = duration(max(0, c.m.until-c.m.now))
	case o.to == Open && o.until != 0:
		m.For = duration(max(0, o.until-c.m.now))
	case o.to == Open:
		var length int64
		m.Openings, length = c.m.opening(&s.policy, &o.event)
		m.For = duration(length)
	}
	sh.view.epochOps++
	return m, true
}

// firstSuperseded reports whether the machine has been told of the first order, and of another one since.
func (sh *share) firstSuperseded() bool {
	return sh.outbox.orders[0].appliedHere && slices.ContainsFunc(sh.outbox.orders[1:], func(w order) bool { return w.appliedHere })
}

// isVoidLocked reports whether an order is void: its epoch has ended, or all are where it would bring them.
func (c *Circuit) isVoidLocked(o *order) bool {
	sh := c.shared()
	switch {
	case o.epoch != 0 && o.epoch != sh.view.epoch:
		return true
	case o.appliedHere && o.event.kind == evTrip && sh.standing != inStep:
		return c.m.state != Open || c.m.due(c.m.now) // it has had its time
	case o.appliedHere && o.event.kind == evTrip && o.recovered:
		return true
	case o.appliedHere && o.event.kind == evReset && sh.standing != inStep:
		return c.m.state != Closed // it has opened again since
	case sh.standing != inStep:
		return false
	case o.event.kind == evTrip:
		return c.m.state == Open && !c.m.due(c.m.now)
	case o.event.kind == evOffer:
		return c.m.state != Open || c.m.due(c.m.now)
	}
	return false
}

// applyMove takes in the answer to the first order.
func (c *Circuit) applyMove(r StoreReply) {
	now := c.load().time.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.load()
	sh := c.shared()
	why, cause := byRemote, error(nil)
	if o := &sh.outbox.orders[0]; r.Ledger.Applied {
		why, cause = o.why, o.cause
	}
	if r.Err != nil {
		c.moveStandaloneLocked(s, now)
	}
	if r.Ledger.Applied || !sh.outbox.orders[0].persists() {
		sh.outbox.orders = sh.outbox.orders[1:]
	}
	sh.noteForeignLocked(&r)
	c.applyReplyLocked(s, &r, why, cause, now)
}

// moveStandaloneLocked makes the moves that wait for a store which has failed. Those that do not last have had their time.
func (c *Circuit) moveStandaloneLocked(s *settings, now int64) {
	sh := c.shared()
	for i := range sh.outbox.orders {
		o := &sh.outbox.orders[i]
		if o.appliedHere || o.why == byRemote {
			continue
		}
		o.appliedHere = true
		e := o.event
		e.now, e.pass.epoch = now, c.m.epoch
		c.stepLocked(s, &e, new(effects), o.cause)
	}
	rest := slices.DeleteFunc(sh.outbox.orders[1:], func(o order) bool { return o.appliedHere && !o.persists() })
	sh.outbox.orders = sh.outbox.orders[:1+len(rest)]
}
