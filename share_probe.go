package breaker

import (
	"context"
	"strconv"
	"time"
)

// The probes of a shared circuit: slots come from the store, and verdicts are its own. See share.go.

// grant is a slot that the store has given.
type grant struct {
	epoch uint64 // of the machine
	token string
	end   int64
}

// flight is a question for slots. Calls that come meanwhile wait for its end, and look again.
type flight struct{ done chan struct{} }

// slotLocked finds a slot for a call that may pass only with one. Where the store has to be asked first, it returns what
// to wait for, and whether the caller is the one to ask.
func (c *Circuit) slotLocked(s *settings, e *event) (f *flight, asks bool) {
	sh := c.shareLocked()
	if !sh.follows() || c.m.mode == ForcedOpen || c.m.mode == ForcedClosed {
		return nil, false
	}
	c.m.now = max(c.m.now, e.now)
	if c.m.state != HalfOpen && !c.m.due(c.m.now) {
		return nil, false
	}
	if c.takeGrantLocked(e) || c.fullLocked(s) {
		return nil, false
	}
	if sh.away() {
		sh.acting = alone
		return nil, false
	}
	sh.waiting++
	if sh.flight == nil {
		sh.flight = &flight{make(chan struct{})}
		asks = true
	}
	return sh.flight, asks
}

// fullLocked reports whether every slot is known to be taken.
func (c *Circuit) fullLocked(s *settings) bool {
	return c.m.state == HalfOpen && (c.m.now < c.extras.share.deniedUntil || c.m.liveLeases() >= s.policy.probes)
}

// takeGrantLocked takes a slot that was given and is still good.
func (c *Circuit) takeGrantLocked(e *event) bool {
	sh := c.extras.share
	for len(sh.grants) > 0 {
		g := sh.grants[0]
		sh.grants = sh.grants[1:]
		if g.epoch == c.m.epoch && c.m.now < g.end {
			e.slot = g.end
			if sh.tokens == nil {
				sh.tokens = make(map[int64][]string)
			}
			sh.tokens[g.end] = append(sh.tokens[g.end], g.token)
			return true
		}
	}
	return false
}

// await waits for a flight's end, or the caller's.
func (c *Circuit) await(ctx context.Context, f *flight, asks bool) (err error) {
	sh := c.extras.share
	waited := false
	defer func() {
		if !waited {
			c.stopWaiting(true) // a hook has ended the goroutine
		}
	}()
	if asks {
		sh.hub.run(func() { c.ask(f) })
	}
	select {
	case <-f.done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	waited = true
	c.stopWaiting(err != nil)
	return err
}

// stopWaiting is the end of a call's waiting for a slot.
func (c *Circuit) stopWaiting(leaves bool) {
	sh := c.extras.share
	c.mu.Lock()
	sh.waiting--
	var spare []string
	if leaves {
		spare = sh.spareLocked()
	}
	epoch := sh.known
	c.mu.Unlock()
	c.handBack(epoch, spare)
}

// spareLocked takes out the slots that nobody waits for.
func (sh *share) spareLocked() (tokens []string) {
	for len(sh.grants) > sh.waiting {
		last := len(sh.grants) - 1
		tokens = append(tokens, sh.grants[last].token)
		sh.grants = sh.grants[:last]
	}
	return tokens
}

// How long a refusal is believed without asking again: word that a slot is free may get lost.
const minDenied, maxDenied = time.Millisecond, time.Second

// ask asks the store for slots.
func (c *Circuit) ask(f *flight) {
	asked := c.load().time.now()
	c.mu.Lock()
	s := c.load()
	sh := c.extras.share
	a := StoreAcquire{Name: c.name, Shape: s.sharing.shape, Epoch: sh.known, Lease: duration(s.policy.lease), Limit: s.policy.probes, Openings: c.m.opens}
	for range max(1, min(sh.waiting, s.policy.probes-c.m.liveLeases())) {
		sh.serial++
		a.Tokens = append(a.Tokens, sh.node+strconv.FormatUint(sh.serial, 36))
	}
	sh.moving++
	c.mu.Unlock()

	r := sh.hub.acquire(a)

	now := c.load().time.now()
	c.mu.Lock()
	c.answeredLocked(&a, &r, asked, now)
	spare := sh.spareLocked()
	epoch := sh.known
	sh.flight = nil
	c.mu.Unlock()
	close(f.done)
	c.handBack(epoch, spare)
	c.ended()
	c.tell(c.load())
	c.pursue()
}

// answeredLocked takes in the answer to a question for slots.
func (c *Circuit) answeredLocked(a *StoreAcquire, r *StoreReply, asked, now int64) {
	s, sh, l := c.load(), c.extras.share, &r.Ledger
	why := byRemote
	if l.Applied {
		why = byTimeout
	}
	sh.shapedLocked(r)
	if r.Err != nil && sh.acting == alone {
		sh.failed = r.Err // nobody waits for it, and hooks have heard when it went alone
	}
	c.heardLocked(s, r, why, nil, now)
	switch {
	case r.Err != nil:
		if sh.acting == follows {
			sh.acting = alone
		}
	case sh.acting != follows, l.Epoch == sh.known && c.m.state == Closed:
	case l.Epoch == sh.known && c.m.state == Open && l.State == Open: // our clock is ahead of the store's
		c.m.until = max(c.m.until, c.m.now+min(max(clampDuration(l.Remaining), 1), s.longestOpen()))
		c.cachedRejection.Store(nil)
	case l.Epoch != sh.known || c.m.state != HalfOpen:
		if sh.fruitless++; sh.fruitless >= maxFruitless {
			sh.acting = alone // it answers, but with nothing that helps
		}
		return
	case l.Granted <= 0:
		wait := l.RetryAfter
		if wait <= 0 {
			wait = minDenied
		}
		sh.deniedUntil = c.m.now + int64(min(wait, maxDenied))
		sh.fullUntil = c.m.now + clampDuration(wait)
	default:
		for _, token := range a.Tokens[:min(l.Granted, len(a.Tokens))] {
			sh.grants = append(sh.grants, grant{c.m.epoch, token, asked + int64(a.Lease)})
		}
	}
	sh.fruitless = 0
}

// maxFruitless is how many answers in a row may neither give nor refuse a slot before the circuit probes by itself.
const maxFruitless = 4

// handBack gives slots back that nobody has used.
func (c *Circuit) handBack(epoch uint64, tokens []string) {
	hub := c.extras.share.hub
	for _, token := range tokens {
		v := StoreVerdict{Name: c.name, Shape: c.load().sharing.shape, Epoch: epoch, Token: token, Outcome: Ignored}
		hub.run(func() {
			hub.settle(v)
			hub.tellOthers()
		})
	}
}

// judge has the store settle a probe that it has admitted. The answer is nil where there is nothing to wait for: the
// probe was the circuit's own, its epoch has ended, or its outcome says nothing. After an answer, ended must be called.
func (c *Circuit) judge(s *settings, e *event, slow bool) (answer *StoreReply) {
	v, ok := c.takeVerdict(s, e, slow)
	if !ok {
		return nil
	}
	hub := c.extras.share.hub
	e.decided = true
	if v.Outcome == Ignored {
		hub.run(func() {
			c.learned(hub.settle(v), byRemote)
			c.ended()
			c.tell(s)
		})
		return nil
	}
	r := hub.settle(v)
	e.decided = r.Err == nil
	return &r
}

// takeVerdict is the verdict on a probe that the store has admitted.
func (c *Circuit) takeVerdict(s *settings, e *event, slow bool) (v StoreVerdict, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sh := c.extras.share
	tokens := sh.tokens[e.pass.lease]
	if len(tokens) == 0 || e.pass.epoch != c.m.epoch || !sh.follows() {
		return v, false
	}
	if sh.tokens[e.pass.lease] = tokens[1:]; len(tokens) == 1 {
		delete(sh.tokens, e.pass.lease)
	}
	v = StoreVerdict{Name: c.name, Shape: s.sharing.shape, Epoch: sh.known, Token: tokens[0], Outcome: e.outcome, Threshold: s.policy.successThreshold}
	if slow && v.Outcome == Success {
		v.Outcome = Failure
	}
	if v.Outcome == Failure {
		var length int64
		v.Openings, length = c.m.opening(&s.policy, e)
		v.For = duration(length)
	}
	sh.moving++
	return v, true
}

// judgedLocked takes in the answer to a probe's settlement.
func (c *Circuit) judgedLocked(s *settings, r *StoreReply, cause error, now int64) {
	why := byRemote
	switch {
	case !r.Ledger.Applied:
	case r.Ledger.State == Closed:
		why = byRecovery
	case r.Ledger.State == Open:
		why = byProbe
	}
	c.heardLocked(s, r, why, cause, now)
	if r.Err == nil && c.m.state == HalfOpen {
		c.undenyLocked()
	}
}
