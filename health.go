package breaker

import (
	"context"
	"time"
)

// health is the state of a circuit's health checks: one goroutine while the circuit is open, none otherwise.
type health struct {
	open    context.Context // ends when the present open period does; nil outside of one
	end     context.CancelFunc
	running bool
}

// startHealthLocked sees to it that checks run in the open period that has begun.
func (c *Circuit) startHealthLocked(s *settings) {
	if !s.checked || c.extrasLocked().closed || c.extras.health.open != nil {
		return
	}
	h := &c.extras.health
	h.open, h.end = context.WithCancel(context.Background())
	if !h.running {
		h.running = true
		go c.runHealth()
	}
}

func (c *Circuit) stopHealthLocked() {
	if c.extras == nil || c.extras.health.open == nil {
		return
	}
	h := &c.extras.health
	h.end()
	h.open, h.end = nil, nil
}

// runHealth serves open periods one after the other, so that a check that hangs beyond one is waited for, not doubled.
// A check that ends its goroutine does not end the checks.
func (c *Circuit) runHealth() {
	ended := false
	defer func() {
		if !ended {
			go c.runHealth()
		}
	}()
	for {
		c.mu.Lock()
		h := &c.extras.health
		open := h.open
		if open == nil {
			h.running = false
			ended = true
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		c.checkDuring(open)
	}
}

// checkDuring checks until the open period ends, by the clock or otherwise.
func (c *Circuit) checkDuring(open context.Context) {
	s := c.load()
	cfg := s.draft.cfg.HealthCheck
	wait := cfg.Interval
	if cfg.Jitter > 0 {
		wait += duration(int64(s.draw() * float64(cfg.Jitter)))
	}
	for {
		select {
		case <-open.Done():
			return
		case <-s.time.after(wait):
		}
		wait = cfg.Interval
		if c.State() != Open {
			c.endHealth(open)
			return
		}
		if open.Err() == nil && c.check(s, open) {
			c.offerProbeIn(s, open)
		}
	}
}

// offerProbeIn offers a probe for a check that passed, if the open period in which it began lasts and nobody has stopped the
// checks.
func (c *Circuit) offerProbeIn(s *settings, open context.Context) {
	e := event{kind: eventOfferProbe, now: s.time.now()}
	var fx effects
	c.mu.Lock()
	s = c.load()
	lasts := c.extras.health.open == open
	if lasts && s.sharing == nil {
		c.stepLocked(s, &e, &fx, nil)
	}
	n := c.notifierLocked(&fx)
	c.mu.Unlock()
	n.deliver(s)
	if lasts && s.sharing != nil {
		c.OfferProbe()
	}
}

// endHealth ends the checks of an open period that is over by the clock, though no call has moved the machine yet.
func (c *Circuit) endHealth(open context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.extras.health.open == open {
		c.stopHealthLocked()
	}
}

// check runs one check.
func (c *Circuit) check(s *settings, open context.Context) (good bool) {
	ctx, cancel := s.time.withTimeout(open, s.draft.cfg.HealthCheck.Timeout, context.DeadlineExceeded)
	defer cancel()
	if s.time.clock != nil {
		ctx = noDeadline{ctx}
	}
	s.contain(c.name, "health check", func() { good = s.draft.health(ctx) == nil && ctx.Err() == nil })
	return good
}

// noDeadline is a context that ends by an injected clock and does not say when: net.Dialer, which checks are made with, would
// compare that with the time package's.
type noDeadline struct{ context.Context }

func (noDeadline) Deadline() (time.Time, bool) { return time.Time{}, false }
