package breaker

import (
	"context"
	"time"
)

// succeed settles a success by counting it, without the lock. It reports false, and does nothing, if that is not enough.
func (c *Circuit) succeed(k *call) bool {
	if k.cell == nil || c.word.Load() != k.word || k.word&wordLockSuccess != 0 {
		return false
	}
	for {
		n := k.cell.successes.Load()
		if n&^countMask != cellTag(k.word) {
			return false
		}
		if k.cell.successes.CompareAndSwap(n, n+1) {
			k.settled = true
			if periodDue(k.word, n+1) {
				c.periodicWork(k.word, n+1&countMask)
			}
			return true
		}
		c.contended()
	}
}

// finish classifies an error and settles the call.
func (c *Circuit) finish(ctx context.Context, k *call, err error) Outcome {
	o := c.Classify(ctx, err)
	c.settle(ctx, k, o, err)
	return o
}

// abort settles a call that ended by panic or runtime.Goexit.
func (c *Circuit) abort(ctx context.Context, k *call) {
	c.settle(ctx, k, Failure, errAbnormal)
}

// settle ends a call with an outcome, under the lock. err is what the call returned.
func (c *Circuit) settle(ctx context.Context, k *call, o Outcome, err error) {
	c.settleExcluding(ctx, k, o, err, 0)
}

// settleExcluding is settle for a call of whose time excluded was not the dependency's.
func (c *Circuit) settleExcluding(ctx context.Context, k *call, o Outcome, err error, excluded time.Duration) {
	s := c.load()
	if o == Failure && err == nil {
		err = ErrUnacceptable
	}
	e := event{kind: eventSettle, outcome: o, random: s.openJitter()} // for a success as well: it can open the circuit too, by being slow or by reaching minCalls
	e.pass = pass{epoch: k.word >> wordEpoch, probe: k.probe, lease: k.lease, start: k.start}
	if o == Failure {
		e.hint = int64(s.hint(err))
	}
	e.now = s.time.now()
	took := time.Duration(0)
	if s.timed && k.cell == nil { // the fast path does not know when it started
		took = max(0, duration(e.now-k.start)-excluded)
	}

	var judged *StoreReply
	if s.sharing != nil && e.pass.probe {
		judged = c.settleProbe(s, &e, s.trips.isSlow(took))
	}
	var fx effects
	c.mu.Lock()
	s = c.load() // Configure may have replaced it meanwhile
	k.settled = true
	if k.cell != nil && k.word&wordCountStarts == 0 {
		c.oweStartLocked() // its end is counted here, so its start must be too
	}
	cause := c.recordLocked(s, &e, took, err)
	var u urgency
	if s.sharing != nil {
		u = c.deferToStoreLocked(s, &e, cause)
	}
	if e.trip || !c.staysAsItIsLocked(s, &e) {
		c.stepLocked(s, &e, &fx, cause)
	}
	if judged != nil {
		c.applySettlementLocked(s, judged, cause, e.now)
	}
	n := c.notifierLocked(&fx)
	var asked []Counts
	if s.trips.asksUser(o, took) && !fx.late && fx.moved == 0 && c.m.state == Closed && !c.storeDecidesLocked() {
		var few [2]Counts // declared here: other calls should not pay for clearing it
		asked = c.countsForUserLocked(s, few[:0])
	}
	c.mu.Unlock()

	if s.sharing != nil {
		defer c.afterSettlement(judged, u) // deferred, since a user's function may end the goroutine
	}
	if s.onCall {
		call := CallEvent{Name: c.name, State: k.state, Outcome: o, Probe: k.probe, Late: fx.late, Duration: took, Err: err}
		s.notifyCall(ctx, call, n)
	} else {
		n.deliver(s)
	}
	if asked != nil && s.userTrips(c.name, asked) {
		e.trip = true
		c.applyCommand(s, e, cause)
	}
}

// staysAsItIsLocked reports whether the machine and the word stay as they are after an outcome that is no reason to open: the
// circuit is Closed and on the fast path, and nothing but its epoch, mode and settings decides about the word. It moves the
// machine's time, which is all that a step would do. Failures meet under the lock, and the step is a tenth of what they do there.
func (c *Circuit) staysAsItIsLocked(s *settings, e *event) bool {
	if e.pass.epoch != c.m.epoch || c.memory != nil || s.sharing != nil || c.word.Load()&wordFast == 0 {
		return false
	}
	c.m.now = max(c.m.now, e.now)
	return true
}

// recordLocked adds an outcome to the totals and, if its epoch is the current one, to the run of failures and the
// windows. Then it asks the trip policy and puts the answer into e.trip. It returns the cause in case the circuit
// opens.
func (c *Circuit) recordLocked(s *settings, e *event, took time.Duration, err error) (cause error) {
	current := e.pass.epoch == c.m.epoch
	slow := s.trips.isSlow(took) && e.outcome != Ignored
	var inCells uint64 // added up once: there are dozens of cells, some of them in other processors' caches
	if current && c.m.state == Closed {
		inCells = c.inCellsLocked()
		if c.memory != nil && len(c.memory.windows) > 0 {
			c.transferCellsLocked(s, e.now, inCells, 0)
		}
		if e.outcome == Answered {
			c.keepRunLocked(s, inCells)
		}
	}
	c.addTotalsLocked(e.outcome, slow, current)
	if err == errAbnormal {
		c.extrasLocked().panics++
	}
	switch {
	case e.outcome == Failure:
		cause = err
	case slow:
		cause = errSlowCall
	}
	switch {
	case !current:
		c.extrasLocked().late++
	case c.m.state == Closed:
		c.recordClosedLocked(s, e, took, err, inCells)
		if s.sharing != nil {
			c.addToTallyLocked(s, e, slow)
		}
	case !e.pass.probe || !e.outcome.answered(): // the machine alone decides what follows
	case slow:
		e.outcome = Failure // a slow probe has failed, although the call counts as a success
	case c.lastFailure != nil:
		c.lastFailure.err = nil // the run of failures has ended
	}
	return cause
}

// addTotalsLocked adds an outcome to the totals. A late one is added to those of earlier epochs as well, so that it does
// not count in this one.
func (c *Circuit) addTotalsLocked(o Outcome, slow, current bool) {
	var before uint64
	if !current {
		before = 1
	}
	switch o {
	case Success, Answered:
		c.earlierSuccesses += before
		c.lockedSuccesses += 1 - before
	case Failure:
		c.failures++
		c.failuresBefore += before
	case Ignored:
		r := c.extrasLocked()
		r.ignored++
		r.ignoredBefore += before
	}
	if slow {
		r := c.extrasLocked()
		r.slow++
		r.slowBefore += before
	}
}

// recordClosedLocked adds an outcome of the closed state to the run of failures and to the windows, and asks the trip
// policy. If that says to open, it closes the fast path and looks once more: a success that was counted meanwhile ends
// the run before this failure. Until then a success that is not among inCells counts as one after it.
func (c *Circuit) recordClosedLocked(s *settings, e *event, took time.Duration, err error, inCells uint64) {
	now := max(c.m.now, e.now)
	c.endRunAtLocked(s, inCells+c.lockedSuccesses)
	if e.outcome == Failure {
		if c.run < maxCount {
			c.run++
		}
		c.runMark = inCells + c.lockedSuccesses
		c.setLastFailureLocked(err, now)
	}
	if c.memory != nil {
		c.memory.add(s.trips, now, e.outcome, took)
		if s.sampled {
			c.memory.adapt(s.trips, now, e.outcome)
		}
	}
	e.trip = e.outcome != Ignored && s.trips.holds(c.memory, now, c.run)
	if c.memory != nil && e.outcome != Ignored {
		c.memory.recheck = false
	}
	if e.trip && e.outcome == Failure && c.disableFastPathLocked() {
		c.transferLocked(s, now)
		c.run, c.runMark = 1, c.successesLocked()
		if c.memory != nil {
			c.memory.restartRun(s.trips, now)
		}
		e.trip = s.trips.holds(c.memory, now, c.run)
	}
}

// keepRunLocked prepares for a success that does not end the present run of failures: it is counted as one that came before
// the run.
func (c *Circuit) keepRunLocked(s *settings, inCells uint64) {
	c.endRunAtLocked(s, inCells+c.lockedSuccesses) // if another success has ended it
	if c.run > 0 {
		c.runMark++
	}
}

// endRunLocked ends the run of failures if there was a success since the last failure. A success on the fast path leaves
// the run alone; that there was one shows in the number of successes.
func (c *Circuit) endRunLocked(s *settings) {
	if c.run > 0 {
		c.endRunAtLocked(s, c.successesLocked())
	}
}

// endRunAtLocked is endRunLocked for a caller that has added up the successes already.
func (c *Circuit) endRunAtLocked(s *settings, successes uint64) {
	if c.run == 0 || c.runMark == successes {
		return
	}
	c.run = 0
	if c.lastFailure != nil {
		c.lastFailure.err = nil
	}
	if c.memory != nil {
		c.memory.endRun(s.trips)
	}
}

// periodicWork is done by every 2^n-th success of a cell, with n from the word w. Depending on n it is the check
// whether to go on counting starts, or a sample of the clock.
func (c *Circuit) periodicWork(w, count uint64) {
	if w&wordCountStarts == 0 || count%untrackAfter != 0 {
		c.sample()
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.untracked = !c.watched
	c.publishLocked(c.load())
}

// sample reads the clock on behalf of the successes of a busy circuit. When it is time, it adds them to the windows and
// asks the trip policy: a failure rate rises without any failure as older successes leave the window. If another call
// holds the lock, sample does nothing: that call reads the clock itself.
func (c *Circuit) sample() {
	s := c.load()
	now, random := s.time.now(), s.openJitter()
	if !c.mu.TryLock() {
		return
	}
	s = c.load()
	var fx effects
	var n *notifier
	var u urgency
	if c.m.state == Closed && c.memory != nil && c.memory.noteClock(now) {
		c.transferAsOfLocked(s, now, 1)
		now = max(c.m.now, now)
		c.endRunLocked(s)
		e := event{kind: eventSettle, now: now, random: random, pass: pass{epoch: c.m.epoch}, trip: s.trips.holds(c.memory, now, c.run)}
		if s.sharing != nil {
			u = c.deferToStoreLocked(s, &e, nil)
		}
		c.stepLocked(s, &e, &fx, nil)
		n = c.notifierLocked(&fx)
	}
	c.mu.Unlock()
	n.deliver(s)
	if s.sharing != nil {
		c.afterSettlement(nil, u)
	}
}
