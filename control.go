package breaker

import "fmt"

// Trip opens the circuit now, as if the policy had tripped, for a full open period. On an open circuit it changes
// nothing. cause may be nil.
//
// With a [Store], Trip, Reset and OfferProbe move all circuits of the name. They do not wait for the store; Sync does.
// While the store cannot be reached, the circuit moves alone, and moves the others for Trip and Reset once it can.
func (c *Circuit) Trip(cause error) {
	s := c.load()
	e := event{kind: eventTrip, hint: int64(s.hint(cause)), random: s.openJitter()}
	c.command(s, order{to: Open, why: byOperator, event: e, cause: cause})
}

// Reset closes the circuit and forgets its counts, its windows and its open backoff. The results of calls still pending
// count in the totals only. It does not touch the mode or the totals.
func (c *Circuit) Reset() {
	c.command(c.load(), order{to: Closed, why: byOperator, event: event{kind: eventReset}})
}

// OfferProbe makes an open circuit half-open before its time, as when a health check has passed. In other states it
// changes nothing.
func (c *Circuit) OfferProbe() {
	c.command(c.load(), order{to: HalfOpen, why: byHealthCheck, event: event{kind: eventOfferProbe}})
}

// SetMode sets the mode. It does not change the state. It panics if m is no Mode.
func (c *Circuit) SetMode(m Mode) {
	s := c.load()
	if int(m) >= len(modeNames) {
		panic(fmt.Sprintf("breaker: SetMode: must be a Mode, got %d", uint8(m)))
	}
	c.applyCommand(s, event{kind: eventSetMode, mode: m}, nil)
}

// command carries out an operator's move: through the store if there is one that takes it, otherwise on this circuit
// alone.
func (c *Circuit) command(s *settings, o order) {
	if s.sharing == nil || !c.orderMove(o) {
		c.applyCommand(s, o.event, o.cause)
	}
}

// applyCommand gives the machine an event that no call has caused, and tells the hooks what has changed.
func (c *Circuit) applyCommand(s *settings, e event, cause error) {
	e.now = s.time.now()
	var fx effects
	c.mu.Lock()
	s = c.load()
	c.stepLocked(s, &e, &fx, cause)
	n := c.notifierLocked(&fx)
	c.mu.Unlock()
	n.deliver(s)
}

// Configure applies options to the running circuit. If any is wrong, or may not change on a running circuit (Clock,
// Hooks, Snapshot), it changes nothing and the error names every option that is wrong. The state, the remaining time of
// an open period and the run of failures survive: with a [WithFailureWindow] that was not in force before, failures whose
// time is not known any more count as old as the last one. The counts of a window survive where the window stays the same,
// whatever conditions look at it; after a change of the slow limit, what it holds counts as not slow.
func (c *Circuit) Configure(opts ...Option) error {
	for {
		old := c.load()
		d := old.draft
		d.take("Configure", scopeCircuit, opts)
		if err := d.faults.err(); err != nil {
			return err
		}
		if c.swapSettings(old, newSettings(&d, old.time)) {
			return nil
		}
	}
}

// replaceSettings puts s in force, whatever was in force before.
func (c *Circuit) replaceSettings(s *settings) {
	for !c.swapSettings(c.load(), s) {
		continue
	}
}

// swapSettings puts s in force in place of old. It does nothing and returns false if old is no longer in force.
func (c *Circuit) swapSettings(old, s *settings) bool {
	now := s.time.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.settings.Load() != old {
		return false
	}
	c.transferLocked(old, now)
	c.endRunLocked(old)
	c.memory = c.memory.carry(old.trips, s.trips, c.run, c.lastFailureAtLocked())
	if c.memory != nil {
		c.memory.transferred = c.inCellsLocked()
		c.memory.recheck = true
	}
	c.settings.Store(s)
	if mode := c.m.mode; s.draft.cfg.Mode != old.draft.cfg.Mode {
		c.m.mode = s.draft.cfg.Mode
		c.modeChangedLocked(s, mode)
		c.recallLocked(s)
	}
	c.cachedRejection.Store(nil)
	c.publishLocked(s)
	if c.m.state == Open {
		if s.draft.cfg.HealthCheck != old.draft.cfg.HealthCheck || s.draft.healths != old.draft.healths {
			c.stopHealthLocked()
		}
		c.startHealthLocked(s)
	}
	return true
}

// Close stops the circuit's health check, reports to its [Store] what is still to be reported, and leaves the store.
// The circuit can still be used: it then counts and opens alone. It may be called more than once.
func (c *Circuit) Close() error {
	s := c.load()
	c.mu.Lock()
	c.extrasLocked().closed = true
	c.stopHealthLocked()
	c.mu.Unlock()
	if s.sharing != nil {
		c.leaveStore()
	}
	return nil
}
