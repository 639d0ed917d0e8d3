package breaker

// sharedLocked is the account of the share.
func (c *Circuit) sharedLocked(s *settings, wall anchor) *StoreStatus {
	sh := c.shareLocked()
	if sh == nil {
		return nil
	}
	a := &StoreStatus{
		Epoch:     sh.known,
		Alone:     !sh.follows(),
		Connected: sh.failed == nil && !sh.away(),
		LastError: sh.strange,
		Lost:      sh.lost,
		Foreign:   sh.foreign,
	}
	if sh.news(s) {
		a.Pending = sh.tally.n
	}
	if sh.failed != nil {
		a.LastError = sh.failed.Error()
	}
	if sh.seen {
		a.Exchanged = wall.at(sh.seenAt)
	}
	return a
}

// sharedCountsLocked is the ledger's counts as last seen, and what is still to be reported.
func (c *Circuit) sharedCountsLocked(s *settings) (n Counts, ok bool) {
	sh := c.shareLocked()
	if !sh.follows() || c.m.state != Closed {
		return n, false
	}
	sh.tally.fold(c.successesLocked(), c.m.now, sh.breaksRun())
	n = sh.ledger.Counts
	for _, t := range sh.tally.slices {
		n.Successes += t.ok
		n.Failures += t.failed
		n.Ignored += t.ignored
		n.Slow += t.slow
	}
	r := &sh.tally.run
	if s.sharing.shape.Failures > 0 && s.trips.rules[0].kind == tripConsecutive {
		n.ConsecutiveFailures = sh.ledger.RecentRun
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
