package breaker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// This file keeps a circuit in step with its ledger in a Store. The circuit's own machine is its view of the ledger:
// calls are admitted and rejected by it, without the store. What they bring is tallied and reported in batches; where
// the ledger stands, the machine follows. Only the store says who may probe, and how a probe's result moves the state.
//
// syncer.go decides when to talk to the store; here is what is made of what it says. What is said to it stands in
// share_report.go, share_move.go and share_probe.go. Nothing of the store is called under the circuit's lock.

// attach puts a new circuit on its store, and reads where the others stand.
func (c *Circuit) attach(s *settings) {
	sh := &share{node: fmt.Sprintf("%016x", rand.Uint64()), turn: make(chan struct{}, 1), sentAt: -int64(maxDuration)}
	sh.hub = hubOf(s.sharing.store)
	if err := sh.hub.unwatched; err != nil {
		sh.saidLocked(c.name, "it cannot be watched", ": "+err.Error())
	}
	c.mu.Lock()
	c.rareLocked().share = sh
	c.mu.Unlock()
	sh.hub.join(c)
	if !sh.unheard() {
		c.learned(sh.hub.read(c.name), byRemote)
	}
	c.mu.Lock()
	sh.joined = true
	switch {
	case sh.known > 0:
		c.run, c.runMark = 0, 0 // of a Snapshot: the ledger knows better
	case sh.failed == nil && c.m.state != Closed: // a Snapshot knows what nobody else does
		sh.orders = append(sh.orders, order{to: Open, why: byRemote, until: max(c.m.now, c.m.until)})
	}
	c.mu.Unlock()
	c.tell(s)
	c.pursue()
}

// closeShare reports what is left and leaves the store.
func (c *Circuit) closeShare() {
	c.mu.Lock()
	sh := c.shareLocked()
	open := sh != nil && !sh.closed
	c.mu.Unlock()
	if !open {
		return
	}
	if !sh.unheard() {
		ctx, cancel := context.WithTimeout(context.Background(), sh.hub.timeout)
		defer cancel()
		_ = c.Sync(ctx) // what cannot be reported now is lost with the circuit
	}
	c.mu.Lock()
	sh.closed = true
	c.mu.Unlock()
	sh.hub.leave(c)
}

// policyLocked is the policy that holds for the machine: with a store, who may probe is not for the machine to say.
func (c *Circuit) policyLocked(s *settings) *policy {
	sh := c.shareLocked()
	switch {
	case sh == nil || sh.closed:
		return &s.policy
	case sh.acting == follows:
		return &s.sharing.asked
	}
	return &s.sharing.alone
}

// epochLocked is the number of the present stay as others know it: with a store, the store's.
func (c *Circuit) epochLocked() uint64 {
	if sh := c.shareLocked(); sh != nil && sh.known > 0 {
		return sh.known
	}
	return c.m.epoch
}

// joiningLocked reports whether the circuit is finding out where the others stand, which is no news to its hooks.
func (c *Circuit) joiningLocked() bool {
	sh := c.shareLocked()
	return sh != nil && !sh.joined
}

// nextProbeLocked is when the next call may become a probe, as far as is known.
func (c *Circuit) nextProbeLocked() int64 {
	if sh := c.shareLocked(); c.m.state == HalfOpen && sh.follows() && c.m.now < sh.deniedUntil {
		return sh.deniedUntil
	}
	return c.m.nextProbe()
}

// deferLocked leaves the opening of a circuit that follows its ledger to the ledger's counts, unless the store is known to
// be away. It says when the store should hear of what has happened.
func (c *Circuit) deferLocked(s *settings, e *event, cause error) urgency {
	if !c.asksStoreLocked() {
		return notAtAll
	}
	e.trip = false
	if e.pass.epoch == c.m.epoch && e.outcome != Ignored {
		c.rare.share.cause = cause
	}
	return c.urgencyLocked(s, e.now)
}

// asksStoreLocked reports whether it is for the ledger to say when to open.
func (c *Circuit) asksStoreLocked() bool {
	sh := c.shareLocked()
	return sh.follows() && !sh.away()
}

// settled sees to what a settlement has led to.
func (c *Circuit) settled(judged *StoreReply, u urgency) {
	hub := c.rare.share.hub
	if judged != nil {
		c.ended()
		c.tell(c.load())
		c.pursue()
	}
	hub.want(c, u)
}

// turnSharedLocked starts a new stay.
func (c *Circuit) turnSharedLocked(e *event) {
	sh := c.shareLocked()
	if sh == nil {
		return
	}
	if e.kind != evAdopt {
		sh.actedLocked(c.m.state)
	}
	if e.kind == evSettle && c.m.state == Closed {
		for i := range sh.orders {
			sh.orders[i].over = sh.orders[i].acted
		}
	}
	sh.startEpochLocked()
}

// acting is how a machine stands to its ledger.
type acting uint8

const (
	follows acting = iota // it is where the ledger is
	alone                 // the store was away when something had to be decided; see staysLocked for what ends this
	tripped               // as alone, and it opened: only its own probes or a newer epoch close it again
)

// share is one circuit's part. Except for turn it is guarded by the circuit's mu.
type share struct {
	hub    *hub
	line   *line
	node   string
	turn   chan struct{} // holds a token for whoever reports and moves; one at a time, or runs would be counted out of order
	again  bool          // somebody found the turn taken
	known  uint64        // the highest epoch that was taken over
	ledger Ledger        // as last seen in that epoch
	tookAt int64         // when that was, by the hub's time
	seenAt int64         // when an exchange last worked
	seen   bool          // one did
	acting acting
	joined bool // the first reading has been taken over: what follows is news
	closed bool // Close was called: the store is not used any more

	failed  error   // why the last exchange did not work; nil when it did
	strange string  // what was strange in an exchange that worked
	foreign bool    // others share the name with another configuration
	said    []error // for the StoreError hooks
	tally   tally
	wanted  urgency // what the hub knows of it
	sentAt  int64   // when a report was last begun
	hint    int64   // how long the last failure asked to be left alone
	cause   error   // what the last outcome would be to a trip
	lost    uint64
	orders  []order // moves to ask the store for, one after the other
	moving  int     // operations on their way that may begin an epoch
	heard   *Ledger // the newest that was pushed meanwhile

	deciding  bool        // the user's functions are being asked
	undecided *StoreReply // what they are to be asked about next

	backAt int64         // alone: when to ask for a slot again, by the hub's time
	backIn time.Duration // how long that was after the last time

	fruitless   int                // answers that neither gave nor refused a slot
	flight      *flight            // slots are being asked for
	grants      []grant            // slots that were given and not taken yet
	waiting     int                // calls that wait for one
	deniedUntil int64              // nobody asks before
	fullUntil   int64              // when a slot falls free by itself
	tokens      map[int64][]string // of slots taken, by the end of their lease
	serial      uint64

	used      uint64       // hub's: calls when it was last asked whether it is in use
	flushedAt atomic.Int64 // hub's: when it last reported for this circuit
}

// shareLocked returns the circuit's share, nil without a store.
func (c *Circuit) shareLocked() *share {
	if c.rare == nil {
		return nil
	}
	return c.rare.share
}

// follows reports whether the machine is its ledger's view.
func (sh *share) follows() bool { return sh != nil && sh.acting == follows && !sh.closed }

// away reports whether there is no point in asking the store.
func (sh *share) away() bool { return sh.closed || sh.unheard() }

// unheard reports whether the store does not answer, to anybody or about this name.
func (sh *share) unheard() bool { return sh.hub.away.Load() || sh.line.away.Load() }

// actedLocked notes that the machine has moved by itself.
func (sh *share) actedLocked(to State) {
	switch {
	case sh.acting == tripped && to == Closed && sh.ledger.State == Closed:
		sh.acting = follows // its own probes have brought it back to where the ledger is
	case to == Open, sh.acting == tripped && to == HalfOpen:
		sh.acting = tripped
	default:
		sh.acting = alone
	}
}

// startEpochLocked forgets what belonged to the stay that has ended.
func (sh *share) startEpochLocked() {
	sh.tally = tally{}
	sh.hint, sh.cause, sh.wanted = 0, nil, notAtAll
	sh.grants, sh.tokens = nil, nil
	sh.deniedUntil = 0
}
