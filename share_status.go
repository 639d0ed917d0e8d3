package breaker

// storeStatusLocked returns what Snapshot says about the store; nil without one.
func (c *Circuit) storeStatusLocked(s *settings, wall anchor) *StoreStatus {
	sh := c.shareLocked()
	if sh == nil {
		return nil
	}
	a := &StoreStatus{
		Epoch:     sh.view.epoch,
		Alone:     !sh.isInStep(),
		Connected: sh.link.lastErr == nil && !sh.unavailable(),
		LastError: sh.link.anomaly,
		Lost:      sh.outbox.lost,
		Foreign:   sh.link.foreign,
	}
	if sh.hasNews(s) {
		a.Pending = sh.outbox.tally.outcomes
	}
	if sh.link.lastErr != nil {
		a.LastError = sh.link.lastErr.Error()
	}
	if sh.link.exchanged {
		a.Exchanged = wall.at(sh.link.exchangedAt)
	}
	return a
}

// sharedCountsLocked returns the counts that the trip policy will see: the ledger's, as last seen, and the tally. ok is
// false unless the circuit is Closed and in step; then its own counts are what counts.
func (c *Circuit) sharedCountsLocked(s *settings) (n Counts, ok bool) {
	sh := c.shareLocked()
	if !sh.isInStep() || c.m.state != Closed {
		return n, false
	}
	sh.outbox.tally.fold(c.successesLocked(), c.m.now, sh.successEndsRun())
	n = sh.view.ledger.Counts
	for _, t := range sh.outbox.tally.slices {
		n.Successes += t.OK
		n.Failures += t.Failed
		n.Ignored += t.Ignored
		n.Slow += t.Slow
	}
	r := &sh.outbox.tally.run
	if s.sharing.shape.Failures > 0 && s.trips.rules[0].kind == tripConsecutive {
		n.ConsecutiveFailures = sh.view.ledger.RecentRun
	}
	if r.broken {
		n.ConsecutiveFailures = 0
	}
	n.ConsecutiveFailures += r.tail
	if r.failures > 0 {
		n.ConsecutiveSuccesses = 0
	}
	n.ConsecutiveSuccesses += r.trailing
	return n, true
}
