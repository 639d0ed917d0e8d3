package breaker

import (
	"context"
	"time"
)

// health is the state of a circuit's health checks. They run in one goroutine, which exists only while the circuit is
// open.
type health struct {
	open    context.Context // done when the open period ends; nil outside of one
	end     context.CancelFunc
	running bool // the goroutine exists
}

// startHealthLocked starts the checks of an open period, if there are any and they do not run yet.
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

// stopHealthLocked ends the checks of the open period. It does not wait for one that is running.
func (c *Circuit) stopHealthLocked() {
	if c.extras == nil || c.extras.health.open == nil {
		return
	}
	h := &c.extras.health
	h.end()
	h.open, h.end = nil, nil
}

// runHealth runs the checks of one open period after the other. If a check outlasts its period, those of the next one
// wait for it, so that there is never more than one at a time. If a check ends its goroutine, a new one goes on.
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

// checkDuring runs checks until the open period ends, by the clock or otherwise.
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

// offerProbeIn makes the circuit half-open after a check has passed, if the checks of its open period have not been
// stopped meanwhile.
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

// endHealth stops the checks of an open period that has ended by the clock, even if no call has moved the machine yet.
func (c *Circuit) endHealth(open context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.extras.health.open == open {
		c.stopHealthLocked()
	}
}

// check runs one check and reports whether it has passed.
func (c *Circuit) check(s *settings, open context.Context) (good bool) {
	ctx, cancel := s.time.withTimeout(open, s.draft.cfg.HealthCheck.Timeout, context.DeadlineExceeded)
	defer cancel()
	if s.time.clock != nil {
		ctx = noDeadline{ctx}
	}
	s.contain(c.name, "health check", func() { good = s.draft.health(ctx) == nil && ctx.Err() == nil })
	return good
}

// noDeadline is a context that ends by an injected clock but hides its deadline: net.Dialer, which checks often use,
// would compare that with the time package's clock.
type noDeadline struct{ context.Context }

func (noDeadline) Deadline() (time.Time, bool) { return time.Time{}, false }
