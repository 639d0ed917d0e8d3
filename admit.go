package breaker

import (
	"context"
	"time"
)

// call is one admitted call, until it settles.
type call struct {
	word    uint64 // the word that admitted it; without a cell only its epoch is valid
	cell    *cell  // where the fast path counts it; nil: admitted under the lock, or timed
	start   int64  // when it was admitted, where that is known: of a probe, and where calls are timed
	lease   int64  // probe: when its slot falls free by itself
	probe   bool
	state   State // that admitted it
	settled bool
	ended   uint32 // Permit only, atomic: 1 from the first settlement on
}

// admit admits a call or returns the rejection. On the fast path it is one load and one add. Do has a copy of it inline.
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

// cachedRejection is a rejection that calls are given without the lock until it expires, or until the machine moves.
type cachedRejection struct {
	err     *OpenError
	refusal refusal
	expires int64
	fast    bool // Do may serve it inline: no hook for it, and time.Since(base) is the time
	base    time.Time
	time    *timeline
	notify  *settings // whose Reject hooks are to be called; nil: there are none
}

// now is the time, if fast is set.
func (sh *cachedRejection) now() int64 { return int64(time.Since(sh.base)) }

// rejectCached returns the cached rejection if there is one that has not expired. It takes no lock; nearly all of its
// time is spent reading the clock.
func (c *Circuit) rejectCached(ctx context.Context) error {
	sh := c.cachedRejection.Load()
	if sh == nil {
		return nil
	}
	if sh.refusal == refusedProbes && c.probing(ctx) != 0 {
		return nil // the machine knows whether it is part of a probe
	}
	if sh.expires != never {
		var now int64
		if t := sh.time; t.clock == nil {
			now = int64(time.Since(t.base)) // what t.now does, written out: t.now is too large to be inlined
		} else {
			now = t.injectedNow()
		}
		if now >= sh.expires {
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

// retryCountRejection counts a rejection whose first try to count collided with another call.
func (c *Circuit) retryCountRejection(cl *cell) {
	c.contended()
	cl.rejected.Add(1)
}

// admitSlow admits a call off the fast path: without the lock if the word says that only its start time is needed,
// otherwise by asking the machine.
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

// admitUnderLock asks the machine. With a store it first asks that for a probe slot where one is needed.
func (c *Circuit) admitUnderLock(ctx context.Context, k *call, now int64) error {
	var fx effects
	e := event{kind: eventAdmit, now: now, within: c.probing(ctx)}
	c.mu.Lock()
	s := c.load()
	for s.sharing != nil && !c.m.inProbe(&e) {
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

// notifyAdmission calls the hooks after the machine has admitted or rejected a call. If a hook ends the goroutine, the
// call will never be made: it is settled as Ignored, which gives back its probe slot.
func (c *Circuit) notifyAdmission(ctx context.Context, s *settings, k *call, n *notifier, rejection error, passed bool) {
	returned := false
	defer func() {
		if passed && !returned {
			c.settle(ctx, k, Ignored, nil)
		}
	}()
	n.deliver(s)
	if s.onReject && rejection != nil {
		s.hookReject(ctx, RejectEvent{Name: c.name, Err: rejection, Shadow: passed})
	}
	returned = true
}

// rejectionLocked returns the error for a refusal and caches it. The error is the same until the machine moves; calls
// get it without the lock until it expires, which is the first instant at which the machine might decide otherwise.
func (c *Circuit) rejectionLocked(s *settings, r refusal) error {
	if r == refusedInFlight {
		return ErrTooManyInFlight
	}
	if sh := c.cachedRejection.Load(); sh != nil && sh.refusal == r && c.m.now < sh.err.at && sh.err.State == c.m.stateAt(c.m.now) {
		return sh.err
	}
	e := &OpenError{Circuit: c.name, State: c.m.stateAt(c.m.now), Mode: c.m.mode, probes: r == refusedProbes, time: s.time}
	if c.lastFailure != nil && c.m.state != Closed {
		e.Cause = c.lastFailure.cause
	}
	sh := &cachedRejection{err: e, refusal: r, expires: c.nextProbeLocked(), time: s.time}
	if s.time.clock == nil {
		sh.base = s.time.base
		sh.fast = !s.onReject && r != refusedForced
	}
	if s.onReject {
		sh.notify = s
	}
	switch r {
	case refusedForced:
		e.at, sh.expires = never, never
		if e.State == Open {
			sh.expires = c.m.until // then it is HalfOpen
		}
	case refusedRamp:
		e.at, sh.expires = c.m.mark, c.m.since
		e.Until = s.time.anchor().at(c.m.mark)
	default:
		e.at = c.slotFreeAtLocked(sh.expires)
		e.Until = s.time.anchor().at(e.at)
	}
	if c.m.mode == Shadow {
		sh.expires = c.m.since // expired from the start: in Shadow the machine must see every call
	}
	c.cachedRejection.Store(sh)
	return e
}

// openRejection returns the rejection that a call would get now if the circuit is open or forced open; nil otherwise. It
// counts nothing.
func (c *Circuit) openRejection() error {
	if c.undisturbed() {
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

// refusalLocked says why a call would be rejected now. It changes nothing.
func (c *Circuit) refusalLocked(s *settings, now int64) refusal {
	m := c.m // a copy, so that its time can be set
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
	ctx = c.withPlace(ctx, k)
	if !k.probe {
		return ctx
	}
	p := c.probeContext(ctx, k)
	return &p
}

func (c *Circuit) probeContext(ctx context.Context, k *call) probeContext {
	return probeContext{ctx, c, k.word >> wordEpoch}
}
