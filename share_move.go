package breaker

import (
	"errors"
	"slices"
)

// The moves that a circuit asks its store for: openings that the ledger's counts are a reason for, and what operators order.
// See share.go.

// order is a move that is to be asked for.
type order struct {
	to    State
	why   reason
	epoch uint64 // the epoch that it is for; 0: whichever there is when its turn comes
	run   uint64 // the run that it rests on
	until int64  // to is Open: the end of a period that was begun before; 0: it begins now
	event event  // what it is to the machine, where the store is away
	cause error
	acted bool // the machine has been told
	over  bool // and has recovered from it
}

// lasting reports whether the order stands until it is carried out: an operator's Trip or Reset.
func (o *order) lasting() bool { return o.event.kind == eventTrip || o.event.kind == eventReset }

// order asks for an operator's move. It reports false where there is nobody to ask. Where the store is away, the circuit
// makes it alone, and asks for it later if it still stands then.
func (c *Circuit) order(o order) bool {
	o.event.now = c.load().time.now()
	c.mu.Lock()
	s := c.load()
	sh := c.shareLocked()
	if sh == nil || sh.closed {
		c.mu.Unlock()
		return false
	}
	if sh.unheard() {
		o.acted = true
		c.stepLocked(s, &o.event, new(effects), o.cause)
	}
	if o.event.kind == eventOfferProbe {
		o.epoch = sh.known // it is for this open period only
	}
	if !o.acted || o.lasting() {
		sh.queue(o)
	}
	c.mu.Unlock()
	c.tell(s)
	c.pursue()
	return true
}

// queue has an order wait for its turn. Of those that the machine has been told of, only the last still stands: it goes
// in the place of the others, but not of the first, which may be under way.
func (sh *share) queue(o order) {
	if o.acted && len(sh.orders) > 0 {
		waiting := slices.DeleteFunc(sh.orders[1:], func(w order) bool { return w.acted })
		sh.orders = sh.orders[:1+len(waiting)]
	}
	sh.orders = append(sh.orders, o)
}

// superseded reports whether the machine has been told of the first order, and of another one since.
func (sh *share) superseded() bool {
	return sh.orders[0].acted && slices.ContainsFunc(sh.orders[1:], func(w order) bool { return w.acted })
}

// runOrders asks the store for the moves that are due, one after the other. The turn must be taken.
func (c *Circuit) runOrders() error {
	for range maxAttempts {
		m, ok := c.nextMove()
		if !ok {
			return nil
		}
		r := c.extras.share.hub.move(m)
		c.moved(r)
		c.ended()
		if r.Err != nil {
			return r.Err
		}
	}
	return errUnmoved
}

var errUnmoved = errors.New("breaker: store does not carry out a move")

// maxAttempts bounds how often a move is repeated from a newer epoch in one go.
const maxAttempts = 16

// nextMove is the move to ask for next. It drops orders that have no point any more.
func (c *Circuit) nextMove() (m StoreMove, ok bool) {
	now := c.load().time.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.load()
	sh := c.extras.share
	c.m.now = max(c.m.now, now)
	for len(sh.orders) > 0 && (sh.superseded() || c.pointlessLocked(&sh.orders[0])) {
		sh.orders = sh.orders[1:]
	}
	if len(sh.orders) == 0 || sh.away() {
		return m, false
	}
	o := &sh.orders[0]
	m = StoreMove{Name: c.name, Shape: s.sharing.shape, From: sh.known, Run: o.run, To: o.to, Openings: c.m.opens}
	switch {
	case o.to == Closed:
		m.Openings = 0
	case o.acted && o.to == Open && sh.acting == tripped:
		m.For = duration(max(0, c.m.until-c.m.now))
	case o.to == Open && o.until != 0:
		m.For = duration(max(0, o.until-c.m.now))
	case o.to == Open:
		var length int64
		m.Openings, length = c.m.opening(&s.policy, &o.event)
		m.For = duration(length)
	}
	sh.moving++
	return m, true
}

// pointlessLocked reports whether an order is void: its epoch has ended, or all are where it would bring them.
func (c *Circuit) pointlessLocked(o *order) bool {
	sh := c.extras.share
	switch {
	case o.epoch != 0 && o.epoch != sh.known:
		return true
	case o.acted && o.event.kind == eventTrip && sh.acting != follows:
		return c.m.state != Open || c.m.due(c.m.now) // it has had its time
	case o.acted && o.event.kind == eventTrip && o.over:
		return true
	case o.acted && o.event.kind == eventReset && sh.acting != follows:
		return c.m.state != Closed // it has opened again since
	case sh.acting != follows:
		return false
	case o.event.kind == eventTrip:
		return c.m.state == Open && !c.m.due(c.m.now)
	case o.event.kind == eventOfferProbe:
		return c.m.state != Open || c.m.due(c.m.now)
	}
	return false
}

// moved takes in the answer to the first order.
func (c *Circuit) moved(r StoreReply) {
	now := c.load().time.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.load()
	sh := c.extras.share
	why, cause := byRemote, error(nil)
	if o := &sh.orders[0]; r.Ledger.Applied {
		why, cause = o.why, o.cause
	}
	if r.Err != nil {
		c.actLocked(s, now)
	}
	if r.Ledger.Applied || !sh.orders[0].lasting() {
		sh.orders = sh.orders[1:]
	}
	sh.shapedLocked(&r)
	c.heardLocked(s, &r, why, cause, now)
}

// actLocked makes the moves that wait for a store which has failed. Those that do not last have had their time.
func (c *Circuit) actLocked(s *settings, now int64) {
	sh := c.extras.share
	for i := range sh.orders {
		o := &sh.orders[i]
		if o.acted || o.why == byRemote {
			continue
		}
		o.acted = true
		e := o.event
		e.now, e.pass.epoch = now, c.m.epoch
		c.stepLocked(s, &e, new(effects), o.cause)
	}
	rest := slices.DeleteFunc(sh.orders[1:], func(o order) bool { return o.acted && !o.lasting() })
	sh.orders = sh.orders[:1+len(rest)]
}
