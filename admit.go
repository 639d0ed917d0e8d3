package breaker

import (
	"context"
	"time"
)

// call is one admitted call until it settles.
type call struct {
	word    uint64 // the word that admitted it
	cell    *cell  // nil: not on the fast path; of word, only the epoch means something
	start   int64  // where it is known: of a probe, and where calls are timed
	lease   int64  // of a probe
	probe   bool
	state   State
	settled bool
	ended   uint32 // of a Permit, atomic: 1 once somebody settles it
}

// admit lets a call pass or returns why not. Closed and undisturbed, it is one load and one add.
func (c *Circuit) admit(ctx context.Context, k *call) error {
	w := c.word.Load()
	if w&wordFast == 0 {
		if err := c.rejectCached(ctx); err != nil {
			return err
		}
		return c.admitSlow(ctx, k, w)
	}
	k.enter(c, w)
	return nil
}

// enter admits a call without the lock.
func (k *call) enter(c *Circuit, w uint64) {
	k.word, k.cell = w, c.counters()
	if w&wordCountStarts != 0 {
		k.cell.started.Add(1)
	}
}

// shut is a rejection that holds until a time.
type cachedRejection struct {
	err     *OpenError
	refusal refusal
	until   int64
	fast    bool // nobody wants to be told, and time.Since(base) is the time
	base    time.Time
	time    *timeline
	notify  *settings // whose Reject hooks want to know; nil: nobody does
}

// now is the time where it is quick.
func (sh *cachedRejection) now() int64 { return int64(time.Since(sh.base)) }

// rejectCached rejects a call where a rejection given before still holds. It takes no lock, and nearly all of its time is the
// clock's.
func (c *Circuit) rejectCached(ctx context.Context) error {
	sh := c.cachedRejection.Load()
	if sh == nil {
		return nil
	}
	if sh.refusal == refusedProbes && c.probing(ctx) != 0 {
		return nil
	}
	if sh.until != never {
		var now int64
		if t := sh.time; t.clock == nil {
			now = int64(time.Since(t.base)) // as t.now does, which is too large to be inlined
		} else {
			now = t.injectedNow()
		}
		if now >= sh.until {
			return nil
		}
	}
	cl := c.counters()
	if n := cl.rejected.Load(); !cl.rejected.CompareAndSwap(n, n+1) {
		c.retryCountRejection(cl)
	}
	if sh.notify != nil {
		sh.notify.notifyReject(ctx, sh.err)
	}
	return sh.err
}

// retryCountRejection counts a rejection that has met another call at its counter.
func (c *Circuit) retryCountRejection(cl *cell) {
	c.contended()
	cl.rejected.Add(1)
}

// admitSlow lets a call pass that only wants to know when it starts; otherwise it asks the machine.
func (c *Circuit) admitSlow(ctx context.Context, k *call, w uint64) error {
	s := c.load()
	now := s.time.now()
	if w&wordTimed != 0 {
		k.word, k.start = w, now
		c.counters().started.Add(1)
		return nil
	}
	return c.admitUnderLock(ctx, k, now)
}

func (c *Circuit) admitUnderLock(ctx context.Context, k *call, now int64) error {
	var fx effects
	e := event{kind: eventAdmit, now: now, within: c.probing(ctx)}
	c.mu.Lock()
	s := c.load()
	for s.sharing != nil && e.within == 0 {
		f, asks := c.storeSlotLocked(s, &e)
		if f == nil {
			break
		}
		c.mu.Unlock()
		if err := c.awaitSlot(ctx, f, asks); err != nil {
			return err
		}
		e.now = s.time.now()
		c.mu.Lock()
		s = c.load()
	}
	if s.policy.maxInFlight > 0 {
		e.inFlight = c.inFlightLocked()
	}
	c.stepLocked(s, &e, &fx, nil)
	n := c.notifierLocked(&fx)
	var err error
	if fx.refused != admitted {
		err = c.rejectionLocked(s, fx.refused)
	}
	pass := fx.refused == admitted || fx.shadow
	if pass {
		c.cell.started.Add(1)
		k.word, k.probe, k.lease = fx.pass.epoch<<wordEpoch, fx.pass.probe, fx.pass.lease
		k.start, k.state = now, c.m.state
		if k.probe {
			k.start = fx.pass.start
		}
	}
	c.mu.Unlock()
	if !pass {
		c.counters().rejected.Add(1)
	}
	if n != nil || s.onReject && err != nil {
		c.notifyAdmission(ctx, s, k, n, err, pass)
	}
	if pass {
		return nil
	}
	return err
}

// announce tells the hooks about an admission. If one of them ends the goroutine, the call will never be made: what it
// took is handed back.
func (c *Circuit) notifyAdmission(ctx context.Context, s *settings, k *call, n *notifier, rejection error, passed bool) {
	told := false
	defer func() {
		if passed && !told {
			c.settle(ctx, k, Ignored, nil)
		}
	}()
	n.deliver(s)
	if s.onReject && rejection != nil {
		s.hookReject(ctx, RejectEvent{Name: c.name, Err: rejection, Shadow: passed})
	}
	told = true
}

// rejectionLocked returns the error for a refusal. One error serves until the machine moves; the lock-free path gives it
// out for as long as it is sure to hold.
func (c *Circuit) rejectionLocked(s *settings, r refusal) error {
	if r == refusedInFlight {
		return ErrTooManyInFlight
	}
	if sh := c.cachedRejection.Load(); sh != nil && sh.refusal == r && c.m.now < sh.err.at {
		return sh.err
	}
	e := &OpenError{Circuit: c.name, State: c.m.stateAt(c.m.now), Mode: c.m.mode, probes: r == refusedProbes, time: s.time}
	if c.lastFailure != nil && c.m.state != Closed {
		e.Cause = c.lastFailure.cause
	}
	sh := &cachedRejection{err: e, refusal: r, until: c.nextProbeLocked(), time: s.time, base: s.time.base}
	sh.fast = s.time.clock == nil && !s.onReject && r != refusedForced
	if s.onReject {
		sh.notify = s
	}
	switch r {
	case refusedForced:
		sh.until = never
		e.at = never
	case refusedRamp:
		e.at, sh.until = c.m.mark, c.m.since
		e.Until = s.time.anchor().at(c.m.mark)
	default:
		e.at = c.slotFreeAtLocked(sh.until)
		e.Until = s.time.anchor().at(e.at)
	}
	if c.m.mode == Shadow {
		sh.until = c.m.since // nobody is rejected without the machine
	}
	c.cachedRejection.Store(sh)
	return e
}

// opened returns the rejection that a call would meet now because the circuit is open, and counts nothing.
func (c *Circuit) openRejection() error {
	if c.word.Load()&(wordFast|wordTimed) != 0 {
		return nil
	}
	now := c.load().time.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.load()
	if r := c.refusalLocked(s, now); r == refusedOpen || r == refusedForced {
		return c.rejectionLocked(s, r)
	}
	return nil
}

// refusalLocked says why a call would be rejected now. It moves nothing.
func (c *Circuit) refusalLocked(s *settings, now int64) refusal {
	m := c.m // a copy
	m.now = max(m.now, now)
	if m.mode == ForcedClosed || m.mode == Shadow {
		return admitted
	}
	p, denied := c.readyPolicyLocked(s, &m)
	if denied {
		return refusedProbes
	}
	return m.refusal(p, c.inFlightLocked())
}

// probeContext is the context of a probe's function. By it a call that the function makes through the same circuit is known
// to be part of the probe. It would otherwise be rejected for want of a slot, and the probe would fail because of that.
type probeContext struct {
	context.Context
	circuit *Circuit
	epoch   uint64
}

// probeKey asks a context for the probe of a circuit that it belongs to.
type probeKey struct{ *Circuit }

func (p *probeContext) Value(key any) any {
	if k, ok := key.(probeKey); ok && k.Circuit == p.circuit {
		return p
	}
	return p.Context.Value(key)
}

// probing returns the epoch of the circuit's own probe in which ctx is; 0 outside of one.
func (c *Circuit) probing(ctx context.Context) uint64 {
	if p, ok := ctx.Value(probeKey{c}).(*probeContext); ok {
		return p.epoch
	}
	return 0
}

// contextFor is the context for the function of an admitted call.
func (c *Circuit) contextFor(ctx context.Context, k *call) context.Context {
	if !k.probe {
		return ctx
	}
	return &probeContext{ctx, c, k.word >> wordEpoch}
}
