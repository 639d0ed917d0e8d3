package breaker

import (
	"errors"
	"slices"
)

// Moves that a circuit asks its store for: openings that the ledger's counts are a reason for, and the commands of an
// operator or a health check. They are asked for one after the other. See share.go.

// order is a move to ask the store for.
type order struct {
	to    State
	why   reason
	epoch uint64 // the epoch that it is to end; it is void in any other. 0: any
	run   uint64 // the ledger's run of failures that is the reason; 0: it does not depend on one
	until int64  // to is Open: when the open period ends, which has begun already; 0: it begins with the move
	event event  // the same move for the machine, if the store cannot make it
	cause error  // told with the transition

	appliedHere bool // the machine has made it, standalone
	recovered   bool // and the circuit has closed by its own probes since
}

// persists reports whether the order stays until the store has carried it out or it is void: an operator's Trip or Reset.
// Any other is asked for once.
func (o *order) persists() bool { return o.event.kind == eventTrip || o.event.kind == eventReset }

// orderMove carries out a command through the store. It reports false if the circuit is closed or has none; then the
// command is the machine's. While the store cannot be reached the machine makes the move standalone, at once, and the store
// is asked for it later if it still has a point then.
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
	if o.event.kind == eventOfferProbe {
		o.epoch = sh.view.epoch // it is void in a later open period
	}
	if !o.appliedHere || o.persists() {
		sh.enqueue(o)
	}
	c.mu.Unlock()
	c.deliver(s)
	c.scheduleOrders()
	return true
}

// enqueue adds an order. Of the orders that the machine has made already only the last still has a point, so that it
// replaces the others; but not the first, which may be under way.
func (sh *share) enqueue(o order) {
	if o.appliedHere && len(sh.outbox.orders) > 0 {
		waiting := slices.DeleteFunc(sh.outbox.orders[1:], func(w order) bool { return w.appliedHere })
		sh.outbox.orders = sh.outbox.orders[:1+len(waiting)]
	}
	sh.outbox.orders = append(sh.outbox.orders, o)
}

// scheduleOrders has the orders run if there are any.
func (c *Circuit) scheduleOrders() {
	if c.hasOrders() {
		c.shared().link.syncer.schedule(c, immediate)
	}
}

// hasOrders reports whether there are orders, and a store to ask.
func (c *Circuit) hasOrders() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	sh := c.shared()
	return len(sh.outbox.orders) > 0 && !sh.unavailable()
}

// runOrders asks the store for the moves that are ordered, one after the other. reporting must be held.
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

// maxMoveAttempts bounds how many moves one call of runOrders asks for: a Trip or Reset that loses to a newer epoch is
// repeated from that one.
const maxMoveAttempts = 16

// nextMove returns the move to ask for next, after dropping void orders. epochOpEnded must be called after the reply.
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

// firstSuperseded reports whether the machine has made the first order, and a later one after it.
func (sh *share) firstSuperseded() bool {
	return sh.outbox.orders[0].appliedHere && slices.ContainsFunc(sh.outbox.orders[1:], func(w order) bool { return w.appliedHere })
}

// isVoidLocked reports whether an order has no point any more: the epoch that it is to end has ended, the circuit has left
// the state since, or all are in that state already.
func (c *Circuit) isVoidLocked(o *order) bool {
	sh := c.shared()
	switch {
	case o.epoch != 0 && o.epoch != sh.view.epoch:
		return true
	case o.appliedHere && o.event.kind == eventTrip && sh.standing != inStep:
		return c.m.state != Open || c.m.due(c.m.now) // its open period has ended
	case o.appliedHere && o.event.kind == eventTrip && o.recovered:
		return true
	case o.appliedHere && o.event.kind == eventReset && sh.standing != inStep:
		return c.m.state != Closed // it has opened again since
	case sh.standing != inStep:
		return false
	case o.event.kind == eventTrip:
		return c.m.state == Open && !c.m.due(c.m.now)
	case o.event.kind == eventOfferProbe:
		return c.m.state != Open || c.m.due(c.m.now)
	}
	return false
}

// applyMove takes over the reply to the first order.
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

// moveStandaloneLocked lets the machine make the moves for which the store has just failed, and drops those that do not
// persist. What was to restore the ledger is not the machine's.
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
