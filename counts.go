package breaker

import "maps"

// transferLocked adds the successes that the cells have counted since the last time to the windows.
func (c *Circuit) transferLocked(s *settings, now int64) { c.transferAsOfLocked(s, now, 0) }

// transferAsOfLocked is transferLocked where the caller knows that fresh of these successes happened just now. The times
// of the others are estimated by transferTime.
func (c *Circuit) transferAsOfLocked(s *settings, now int64, fresh uint64) {
	if c.memory == nil || len(c.memory.windows) == 0 {
		return
	}
	c.transferCellsLocked(s, now, c.inCellsLocked(), fresh)
}

// transferCellsLocked is transferAsOfLocked for a caller that has added up the cells already.
func (c *Circuit) transferCellsLocked(s *settings, now int64, inCells, fresh uint64) {
	now = max(c.m.now, now)
	n := inCells - c.memory.transferred
	fresh = min(fresh, n)
	c.memory.addSuccesses(c.memory.transferTime(s.trips, now), n-fresh)
	c.memory.addSuccesses(now, fresh)
}

// epochCountsLocked is what was counted in this epoch.
func (c *Circuit) epochCountsLocked(s *settings) Counts {
	n := Counts{Successes: c.successesLocked(), Failures: c.failures - c.failuresBefore}
	if c.extras != nil {
		n.Ignored = c.extras.ignored - c.extras.ignoredBefore
		n.Slow = c.extras.slow - c.extras.slowBefore
	}
	c.runsLocked(s, &n)
	return n
}

// runsLocked fills in ConsecutiveFailures and ConsecutiveSuccesses.
func (c *Circuit) runsLocked(s *settings, n *Counts) {
	ok := c.successesLocked()
	switch {
	case c.m.state == HalfOpen:
		n.ConsecutiveSuccesses = uint64(c.m.progress)
	case c.run > 0 && c.runMark == ok:
		n.ConsecutiveFailures = uint64(c.memory.recentRun(s.trips, c.m.now, c.run))
	default:
		n.ConsecutiveSuccesses = ok - c.runMark
	}
}

// windowCountsLocked is what a rule's window holds now.
func (c *Circuit) windowCountsLocked(s *settings, r *tripRule) Counts {
	w := c.memory.windows[r.window].Sums(c.m.now)
	n := Counts{Successes: w.OK, Failures: w.Failed, Ignored: w.Ignored, Slow: w.Slow}
	c.runsLocked(s, &n)
	return n
}

// countsForUserLocked appends to all the counts for each TripWhen function, in the order of the rules.
func (c *Circuit) countsForUserLocked(s *settings, all []Counts) []Counts {
	for i := range s.trips.rules {
		if r := &s.trips.rules[i]; r.kind == tripWhen {
			all = append(all, c.windowCountsLocked(s, r))
		}
	}
	return all
}

// inFlightLocked is how many calls whose start was counted have not ended, and how many functions Detach has left running. It reads the ends before the starts: a call
// that starts or ends meanwhile can make the result too high, but never too low.
func (c *Circuit) inFlightLocked() int64 {
	ended, left := c.earlierSuccesses+c.lockedSuccesses+c.failures, int64(0)
	if c.word.Load()&wordCountStarts != 0 {
		ended += c.inCellsLocked()
	}
	if c.extras != nil {
		ended += c.extras.ignored
		left = c.extras.left
	}
	started := c.sumLocked(func(cl *cell) uint64 { return cl.started.Load() })
	return int64(started+uint64(c.owedStarts)-ended) + left
}

// liveCountsLocked is what a Snapshot shows as Counts: the ledger's counts where the circuit follows one; while closed,
// what the window of the first rule that has one holds; otherwise the epoch's.
func (c *Circuit) liveCountsLocked(s *settings) Counts {
	if n, ok := c.sharedCountsLocked(s); ok {
		return n
	}
	n := c.epochCountsLocked(s)
	if c.m.state != Closed || c.memory == nil {
		return n
	}
	for i := range s.trips.rules {
		r := &s.trips.rules[i]
		if r.TripCondition.window != (Window{}) {
			return c.windowCountsLocked(s, r)
		}
		if r.kind == tripCount {
			n.Failures = uint64(c.memory.recent[r.recent].Within(c.m.now, int64(r.within)))
			return n
		}
	}
	return n
}

// totalsLocked adds up the totals since construction.
func (c *Circuit) totalsLocked() Totals {
	t := Totals{Successes: c.earlierSuccesses + c.successesLocked(), Failures: c.failures, Rejected: c.rejectedLocked()}
	if r := c.extras; r != nil {
		t.Ignored, t.Slow, t.Late, t.Panics, t.Retries, t.Rescues = r.ignored, r.slow, r.late, r.panics, r.retries, maps.Clone(r.rescues)
	}
	t.Calls = t.Successes + t.Failures + t.Ignored
	return t
}

// countRescue adds to the totals.
func (c *Circuit) countRescue(kind Rescue) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.extrasLocked()
	if r.rescues == nil {
		r.rescues = make(map[Rescue]uint64)
	}
	r.rescues[kind]++
}

// countRetry adds to the totals.
func (c *Circuit) countRetry() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.extrasLocked().retries++
}
