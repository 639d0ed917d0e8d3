package breaker

import (
	"context"
	"time"
	"weak"
)

// health is the state of a circuit's health checks. They run in one goroutine, which exists only while the circuit is
// open, and keeps it alive only while a check runs.
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
		go runHealth(weak.Make(c))
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
func runHealth(w weak.Pointer[Circuit]) {
	ended := false
	defer func() {
		if !ended {
			go runHealth(w)
		}
	}()
	for {
		open, s := w.Value().healthPeriod()
		if open == nil {
			ended = true
			return
		}
		checkDuring(w, open, s)
	}
}

// healthPeriod returns the open period whose checks are to run, and the settings for them. If there is none, or the circuit
// is gone, open is nil and the goroutine must end.
func (c *Circuit) healthPeriod() (open context.Context, s *settings) {
	if c == nil {
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	h := &c.extras.health
	h.running = h.open != nil
	return h.open, c.load()
}

// checkDuring runs checks until the open period ends, by the clock or otherwise, or until the circuit is gone.
func checkDuring(w weak.Pointer[Circuit], open context.Context, s *settings) {
	wait := s.draft.cfg.HealthCheck.Interval
	if jitter := s.draft.cfg.HealthCheck.Jitter; jitter > 0 {
		wait += duration(int64(s.draw() * float64(jitter)))
	}
	for {
		step := min(wait, w.Value().openFor(open))
		if step <= 0 {
			return
		}
		select {
		case <-open.Done():
			return
		case <-s.time.after(step):
		}
		if wait -= step; wait > 0 { // the open period should have ended
			continue
		}
		wait = s.draft.cfg.HealthCheck.Interval
		if c := w.Value(); c.openFor(open) > 0 && open.Err() == nil && c.check(s, open) {
			c.offerProbeIn(s, open)
		}
	}
}

// openFor returns the time left of the open period whose checks open stands for. If that has ended by the clock, even if no
// call has moved the machine yet, it stops the checks. It is 0 for a circuit that is gone.
func (c *Circuit) openFor(open context.Context) time.Duration {
	if c == nil {
		return 0
	}
	now := c.load().time.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m.stateAt(now) == Open {
		return duration(c.m.until - max(c.m.now, now))
	}
	if c.extras.health.open == open {
		c.stopHealthLocked()
	}
	return 0
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
