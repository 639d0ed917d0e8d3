package breaker

import (
	"context"
	"strconv"
	"time"
)

// Probes in step with a ledger: the store grants the slots, and decides what an outcome does to the state. See share.go.

// grant is a slot that the store has given to this circuit and no call has taken yet.
type grant struct {
	epoch uint64 // the machine's, when it was granted
	token string // identifies the slot to the store
	end   int64  // of its lease
}

// slotRequest is an Acquire under way. Calls that arrive meanwhile wait until done is closed, and then look for a slot
// again.
type slotRequest struct{ done chan struct{} }

// storeSlotLocked looks for a slot of the store for a call that arrives while the circuit is half-open, or open and due. A
// slot that was granted before is entered in e. If the store has to be asked first, it returns the request to wait for in
// awaitSlot, and whether the caller is the one to make it. In all other cases it returns nil, and the machine decides: it
// admits, or rejects because it has no slot itself.
func (c *Circuit) storeSlotLocked(s *settings, e *event) (request *slotRequest, asks bool) {
	sh := c.shareLocked()
	if !sh.isInStep() || c.m.mode == ForcedOpen || c.m.mode == ForcedClosed {
		return nil, false
	}
	c.m.now = max(c.m.now, e.now)
	if c.m.state != HalfOpen && !c.m.due(c.m.now) {
		return nil, false
	}
	if c.takeGrantLocked(e) || c.noSlotFreeLocked(s) {
		return nil, false
	}
	if sh.unavailable() {
		sh.detach()
		return nil, false
	}
	sh.probes.waiting++
	if sh.probes.request == nil {
		sh.probes.request = &slotRequest{make(chan struct{})}
		asks = true
	}
	return sh.probes.request, asks
}

// noSlotFreeLocked reports whether all slots are known to be in use, so that the store need not be asked.
func (c *Circuit) noSlotFreeLocked(s *settings) bool {
	return c.m.state == HalfOpen && (c.m.now < c.shared().probes.deniedUntil || c.m.liveLeases() >= s.policy.probes)
}

// takeGrantLocked takes a slot that was granted, if there is one whose lease has not ended. The end of the lease is what a
// call knows its slot by. Where another call's lease ends at the same instant, this one's is shortened by a nanosecond: the
// store must be told the verdict of each slot by its own token, since it matters which of two was given later.
func (c *Circuit) takeGrantLocked(e *event) bool {
	sh := c.shared()
	for len(sh.probes.granted) > 0 {
		g := sh.probes.granted[0]
		sh.probes.granted = sh.probes.granted[1:]
		for taken := true; taken; {
			if _, taken = sh.probes.tokens[g.end]; taken {
				g.end--
			}
		}
		if g.epoch == c.m.epoch && c.m.now < g.end {
			e.slot = g.end
			if sh.probes.tokens == nil {
				sh.probes.tokens = make(map[int64]string)
			}
			sh.probes.tokens[g.end] = g.token
			return true
		}
	}
	return false
}

// awaitSlot makes a request for slots if the caller is the one to make it, and waits until it has ended, or ctx.
func (c *Circuit) awaitSlot(ctx context.Context, request *slotRequest, asks bool) (err error) {
	sh := c.shared()
	waited := false
	defer func() {
		if !waited {
			c.stopWaiting(true) // a hook has ended the goroutine by runtime.Goexit
		}
	}()
	if asks {
		sh.link.syncer.background(func() { c.requestSlots(request) })
	}
	select {
	case <-request.done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	waited = true
	c.stopWaiting(err != nil)
	return err
}

// stopWaiting ends the waiting of one call. One that leaves without looking for a slot again gives back what only it would
// have taken.
func (c *Circuit) stopWaiting(leaves bool) {
	sh := c.shared()
	c.mu.Lock()
	sh.probes.waiting--
	var spare []string
	if leaves {
		spare = sh.surplusSlotsLocked()
	}
	epoch := sh.view.epoch
	c.mu.Unlock()
	c.returnSlots(epoch, spare)
}

// surplusSlotsLocked removes and returns the slots that no waiting call will take.
func (sh *share) surplusSlotsLocked() (tokens []string) {
	for len(sh.probes.granted) > sh.probes.waiting {
		last := len(sh.probes.granted) - 1
		tokens = append(tokens, sh.probes.granted[last].token)
		sh.probes.granted = sh.probes.granted[:last]
	}
	return tokens
}

// For how long after a refusal the store is not asked again, unless it pushes that a slot is free, which may get lost.
const minDenial, maxDenial = time.Millisecond, time.Second

// requestSlots asks the store for as many slots as there are calls that wait, within the limit, and ends the request.
func (c *Circuit) requestSlots(request *slotRequest) {
	asked := c.load().time.now()
	c.mu.Lock()
	s := c.load()
	sh := c.shared()
	a := StoreAcquire{
		Name: c.name, Shape: s.sharing.shape, Epoch: sh.view.epoch,
		Lease: duration(s.policy.lease), Limit: s.policy.probes, Openings: c.m.opens,
	}
	for range max(1, min(sh.probes.waiting, s.policy.probes-c.m.liveLeases())) {
		sh.probes.serial++
		a.Tokens = append(a.Tokens, sh.link.node+strconv.FormatUint(sh.probes.serial, 36))
	}
	sh.view.epochOps++
	c.mu.Unlock()

	r := sh.link.client.acquire(a)

	now := c.load().time.now()
	c.mu.Lock()
	c.applySlotsLocked(&a, &r, asked, now)
	spare := sh.surplusSlotsLocked()
	epoch := sh.view.epoch
	sh.probes.request = nil
	c.mu.Unlock()
	close(request.done)
	c.returnSlots(epoch, spare)
	c.epochOpEnded()
	c.deliver(c.load())
	c.scheduleOrders()
}

// applySlotsLocked takes over the reply to a request for slots. asked is when it was made: a lease is counted from then, so
// that it ends here no later than in the store.
func (c *Circuit) applySlotsLocked(a *StoreAcquire, r *StoreReply, asked, now int64) {
	s, sh, l := c.load(), c.shared(), &r.Ledger
	why := byRemote
	if l.Applied {
		why = byTimeout
	}
	sh.noteForeignLocked(r)
	if r.Err != nil && sh.standing == standalone {
		sh.link.lastErr = r.Err // no call waits for the slot, and hooks were told when the circuit detached: do not tell again
	}
	c.applyReplyLocked(s, r, why, nil, now)
	switch {
	case r.Err != nil:
		sh.detach()
	case sh.standing != inStep, l.Epoch == sh.view.epoch && c.m.state == Closed: // no slot is needed
	case l.Epoch == sh.view.epoch && c.m.state == Open && l.State == Open: // not due by the store's clock, which is behind ours
		c.m.until = max(c.m.until, c.m.now+min(max(clampDuration(l.Remaining), 1), s.longestOpen()))
		c.cachedRejection.Store(nil)
	case l.Epoch != sh.view.epoch || c.m.state != HalfOpen:
		if sh.probes.uselessReplies++; sh.probes.uselessReplies >= maxUselessReplies {
			sh.detach() // or calls would be rejected for as long as it answers like that
		}
		return
	case l.Granted <= 0:
		wait := l.RetryAfter
		if wait <= 0 {
			wait = minDenial
		}
		sh.probes.deniedUntil = c.m.now + int64(min(wait, maxDenial))
		sh.probes.freeAt = c.m.now + clampDuration(wait)
	default:
		for _, token := range a.Tokens[:min(l.Granted, len(a.Tokens))] {
			sh.probes.granted = append(sh.probes.granted, grant{c.m.epoch, token, asked + int64(a.Lease)})
		}
	}
	sh.probes.uselessReplies = 0
}

// maxUselessReplies is how many replies in a row may neither grant nor refuse a slot before the circuit probes standalone.
const maxUselessReplies = 4

// returnSlots gives slots back to the store unused.
func (c *Circuit) returnSlots(epoch uint64, tokens []string) {
	link := &c.shared().link
	for _, token := range tokens {
		v := StoreVerdict{Name: c.name, Shape: c.load().sharing.shape, Epoch: epoch, Token: token, Outcome: Ignored}
		link.syncer.background(func() {
			link.client.settle(v)
			link.syncer.deliverPending()
		})
	}
}

// settleProbe has the store settle a probe that it has granted a slot for, and returns the reply, for applySettlementLocked
// and afterSettlement. It returns nil, and leaves the settlement to the machine, if the slot was not the store's, or its
// epoch has ended. It also returns nil for an outcome that is Ignored: that only gives back the slot, for which nobody
// waits.
func (c *Circuit) settleProbe(s *settings, e *event, slow bool) (answer *StoreReply) {
	v, ok := c.takeVerdict(s, e, slow)
	if !ok {
		return nil
	}
	link := &c.shared().link
	e.decided = true
	if v.Outcome == Ignored {
		link.syncer.background(func() {
			c.applyReply(link.client.settle(v), byRemote)
			c.epochOpEnded()
			c.deliver(s)
		})
		return nil
	}
	r := link.client.settle(v)
	e.decided = r.Err == nil
	return &r
}

// takeVerdict removes the slot of a probe that ends, and returns what to tell the store; ok is false if the store is not to
// be told. The store is told after the end of the lease too: it decides what a late outcome counts for.
func (c *Circuit) takeVerdict(s *settings, e *event, slow bool) (v StoreVerdict, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sh := c.shared()
	token, held := sh.probes.tokens[e.pass.lease]
	if !held || e.pass.epoch != c.m.epoch || !sh.isInStep() {
		return v, false
	}
	delete(sh.probes.tokens, e.pass.lease)
	v = StoreVerdict{
		Name: c.name, Shape: s.sharing.shape, Epoch: sh.view.epoch,
		Token: token, Outcome: e.outcome, Threshold: s.policy.successThreshold,
	}
	if v.Outcome == Answered {
		v.Outcome = Success // a probe's, and a Store knows no other
	}
	if slow && v.Outcome == Success {
		v.Outcome = Failure
	}
	if v.Outcome == Failure {
		var length int64
		v.Openings, length = c.m.opening(&s.policy, e)
		v.For = duration(length)
	}
	sh.view.epochOps++
	return v, true
}

// applySettlementLocked takes over the reply to a probe's settlement.
func (c *Circuit) applySettlementLocked(s *settings, r *StoreReply, cause error, now int64) {
	why := byRemote
	switch {
	case !r.Ledger.Applied:
	case r.Ledger.State == Closed:
		why = byRecovery
	case r.Ledger.State == Open:
		why = byProbe
	}
	c.applyReplyLocked(s, r, why, cause, now)
	if r.Err == nil && c.m.state == HalfOpen {
		c.forgetDenialLocked()
	}
}
