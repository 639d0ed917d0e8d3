package store

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/breakerkit/breaker"
)

// ledger is what is kept for one name. Its methods are the operations. They are told the time and take no lock; Memory
// holds one.
type ledger struct {
	name     string
	epoch    uint64 // 0: empty
	state    breaker.State
	since    instant // when the epoch began
	until    instant // Open: when a probe is due
	openings uint32

	shape   breaker.StoreShape
	shapeAt instant // when the ledger was last written with this shape

	window    *ring // nil before the first count, and where there is no window
	epochSums sums  // since the epoch began
	runs
	failureTimes []failure // of the last failures, oldest first; as many as the shape asks for
	reporters    []reporter

	progress  uint32          // HalfOpen
	slots     map[string]slot // HalfOpen: by token, also those whose lease has ended
	given     uint64          // HalfOpen: how many slots have been given
	succeeded uint64          // HalfOpen: the number of the last given slot whose probe has succeeded; 0: none has

	expires    instant // when it is dropped
	queueIndex int     // in Memory.queue; -1: not there
}

// runs is outcomes in a row.
type runs struct {
	run       uint64 // the number of the current run of failures
	failures  uint64 // in that run
	successes uint64 // since the last failure
}

// slot is a probe slot that has been given and not settled.
type slot struct {
	ends   instant // its lease
	number uint64  // in the order in which the slots of the epoch were given, from 1
}

// failure is a failure whose time is kept.
type failure struct {
	at  instant
	run uint64 // the number of its run
}

// reporter is a caller that has failed.
type reporter struct {
	node string
	at   instant // of its last failure
}

// moment is the time of an operation.
type moment struct {
	at    instant
	clock uint64 // in milliseconds since 1970
}

// effect is what an operation has done to a ledger.
type effect uint8

const (
	unchanged effect = iota // it has done nothing
	changed                 // it has changed the ledger
	announced               // it has changed the ledger, and watchers are to be told
)

const (
	slack         = time.Hour      // for how long a ledger is kept that means nothing any more
	keepUnbounded = 24 * time.Hour // for how long a ledger without a window is kept after the last report
	reclaimAfter  = time.Minute    // the least time without a report in the ledger's shape after which another takes over
	maxExpired    = 1024           // slots that are remembered after their lease has ended
)

func emptyLedger(name string) *ledger { return &ledger{name: name, runs: runs{run: 1}, queueIndex: -1} }

// nextEpoch returns the number of a new epoch for an operation that was told of the epoch known. It returns 0 if there is
// none: epochs end below limit, and one from beyond was given by no Store.
func (l *ledger) nextEpoch(now moment, known uint64) uint64 {
	next := max(l.epoch, known, max(now.clock, 1)-1)
	if next >= limit-1 {
		return 0
	}
	return next + 1
}

// begin starts an epoch, with all counts at 0 and no slots.
func (l *ledger) begin(now moment, epoch uint64, s breaker.State, shape breaker.StoreShape, openings uint32) {
	*l = ledger{
		name: l.name, expires: l.expires, queueIndex: l.queueIndex,
		epoch: epoch, state: s, since: now.at, openings: openings,
		shape: shape, shapeAt: now.at,
		runs: runs{run: 1},
	}
}

// due reports whether the open period of an Open ledger has ended.
func (l *ledger) due(now moment) bool { return l.state == breaker.Open && now.at >= l.until }

// keepUntil returns until when the ledger is kept if nothing changes it before.
func (l *ledger) keepUntil(now moment) instant {
	end := now.at
	switch {
	case l.state == breaker.Open:
		end = max(end, l.until)
	case l.state == breaker.HalfOpen:
		for _, s := range l.slots {
			end = max(end, s.ends)
		}
	case l.shape.Window > 0:
		end = end.plus(l.shape.Window)
	default:
		return end.plus(keepUnbounded)
	}
	return end.plus(slack)
}

// view returns what the ledger holds, as callers see it.
func (l *ledger) view(now moment) breaker.Ledger {
	v := breaker.Ledger{Clock: now.clock, Run: l.run}
	if l.epoch == 0 {
		return v
	}
	v.Epoch, v.State, v.Openings, v.Progress = l.epoch, l.state, l.openings, l.progress
	v.Age = now.at.since(l.since)
	if l.state == breaker.Open {
		v.Remaining = max(0, l.until.since(now.at))
	}
	v.Slots = l.liveSlots(now)
	v.Counts = l.counts(now)
	recent := l.recentFailures(now)
	v.Recent = uint64(len(recent))
	v.RecentRun = uint64(len(recent) - sort.Search(len(recent), func(i int) bool { return recent[i].run == l.run }))
	v.Reporters = l.recentReporters(now)
	return v
}

func (l *ledger) counts(now moment) breaker.Counts {
	s := l.epochSums
	if l.shape.Window > 0 {
		s = sums{}
		if l.window != nil {
			s = l.window.sums(now.at)
		}
	}
	return breaker.Counts{
		Successes: s.successes, Failures: s.failures, Ignored: s.ignored, Slow: s.slow,
		ConsecutiveFailures: l.runs.failures, ConsecutiveSuccesses: l.runs.successes,
	}
}

// inWindow reports whether what happened at an instant is still to be counted.
func (l *ledger) inWindow(now moment, at instant) bool {
	return l.shape.Window == 0 || at > now.at.minus(l.shape.Window)
}

// recentFailures returns the failures, of those whose times are kept, that are within the window. They are the last ones,
// since the times are in order.
func (l *ledger) recentFailures(now moment) []failure {
	return l.failureTimes[sort.Search(len(l.failureTimes), func(i int) bool { return l.inWindow(now, l.failureTimes[i].at) }):]
}

// recentReporters returns how many callers have failed within the window.
func (l *ledger) recentReporters(now moment) (n int) {
	for _, r := range l.reporters {
		if l.inWindow(now, r.at) {
			n++
		}
	}
	return n
}

// foreign reports whether the ledger is kept for another configuration.
func (l *ledger) foreign(s breaker.StoreShape) bool {
	return l.epoch != 0 && l.shape.Config != s.Config
}

// Report.

func (l *ledger) report(now moment, r *breaker.StoreReport, out *breaker.Ledger) effect {
	b := normalizeBatch(r.Batch)
	if b.all == (sums{}) || l.state != breaker.Closed {
		return unchanged
	}
	shape := normalizeShape(r.Shape)
	result := changed
	switch {
	case l.epoch == 0:
		epoch := r.Epoch
		if epoch == 0 || epoch >= limit {
			epoch = l.nextEpoch(now, r.Epoch)
		}
		if epoch == 0 {
			return unchanged
		}
		l.begin(now, epoch, breaker.Closed, shape, 0)
		result = announced
	case r.Epoch != 0 && r.Epoch != l.epoch:
		return unchanged
	}
	l.chooseShape(now, shape)
	before := l.runs
	out.Peak = l.runs.enter(b)
	out.Applied = true
	l.addSlices(now, r.Batch.Slices)
	l.addFailures(now, b, before.run)
	l.addReporter(now, r.Node, b)
	if l.runs.failures > 0 && (before.failures == 0 || before.run != l.run) {
		result = announced
	}
	return result
}

// chooseShape decides for whose shape the ledger is kept. The first writer's stays as long as anybody reports with it, so
// that two configurations in use at once do not take turns in clearing the counts. Then any other takes over.
func (l *ledger) chooseShape(now moment, s breaker.StoreShape) {
	switch {
	case s == l.shape:
		l.shapeAt = now.at
	case now.at >= l.shapeAt.plus(max(l.shape.Window, reclaimAfter)):
		if l.runs.failures > 0 {
			l.run++ // a move whose reason is the run that ends here must fail
		}
		l.shape, l.shapeAt = s, now.at
		l.window, l.epochSums, l.failureTimes, l.reporters = nil, sums{}, nil, nil
		l.runs = runs{run: l.run}
	}
}

func (l *ledger) addSlices(now moment, batch []breaker.StoreSlice) {
	for _, s := range batch {
		l.epochSums.add(sumsOf(s))
		at := now.at.minus(max(0, s.Age))
		if l.shape.Window == 0 || !l.inWindow(now, at) {
			continue
		}
		if l.window == nil {
			l.window = newRing(l.shape.Window)
		}
		l.window.add(now.at, at, sumsOf(s))
	}
}

// addFailures adds the times of a batch's failures. before is the number of the run that the batch has found. A failure
// that is older than the last one kept is entered with the time of that one, so that the times stay in order.
func (l *ledger) addFailures(now moment, b *batch, before uint64) {
	for i, age := range b.ages {
		f := failure{at: now.at.minus(max(0, age)), run: l.run}
		if l.shape.Failures == 0 || !l.inWindow(now, f.at) {
			continue
		}
		if uint64(len(b.ages)-i) > b.tail {
			f.run = before
		}
		if n := len(l.failureTimes); n > 0 {
			f.at = max(f.at, l.failureTimes[n-1].at)
		}
		l.failureTimes = append(l.failureTimes, f)
	}
	if extra := len(l.failureTimes) - l.shape.Failures; extra > 0 {
		l.failureTimes = l.failureTimes[extra:]
	}
	if old := len(l.failureTimes) - len(l.recentFailures(now)); old > 0 {
		l.failureTimes = l.failureTimes[old:]
	}
}

// addReporter notes that a caller has failed. Where there are more than are told apart, the one whose last failure is
// oldest is dropped.
func (l *ledger) addReporter(now moment, node string, b *batch) {
	at := now.at.minus(b.youngest)
	if b.all.failures == 0 || l.shape.Reporters == 0 || !l.inWindow(now, at) {
		return
	}
	i := slices.IndexFunc(l.reporters, func(r reporter) bool { return r.node == node })
	if i >= 0 {
		l.reporters[i].at = max(l.reporters[i].at, at)
		return
	}
	l.reporters = append(l.reporters, reporter{node, at})
	if len(l.reporters) > l.shape.Reporters {
		oldest := slices.MinFunc(l.reporters, func(a, b reporter) int { return cmp.Compare(a.at, b.at) })
		l.reporters = slices.DeleteFunc(l.reporters, func(r reporter) bool { return r == oldest })
	}
}

// batch is a breaker.StoreBatch whose numbers do not contradict each other.
type batch struct {
	all      sums
	ages     []time.Duration // of the last failures, oldest first
	youngest time.Duration   // the age of the last failure
	head     uint64
	tail     uint64
	longest  uint64
	trailing uint64
	inRun    uint64 // the successes, unless they came before the run
}

func normalizeBatch(from breaker.StoreBatch) *batch {
	b := &batch{ages: from.FailureAges}
	for _, s := range from.Slices {
		b.all.add(sumsOf(s))
		if s.Failures > 0 {
			b.youngest = max(0, s.Age)
		}
	}
	if extra := len(b.ages) - int(min(b.all.failures, uint64(len(b.ages)))); extra > 0 {
		b.ages = b.ages[extra:]
	}
	if n := len(b.ages); n > 0 {
		b.youngest = max(0, b.ages[n-1])
	}
	failures, successes := b.all.failures, b.all.successes
	if from.Early {
		successes = 0
	}
	b.inRun = successes
	b.head, b.tail, b.longest = failures, failures, failures
	if successes > 0 {
		b.head, b.tail = min(from.Head, failures), min(from.Tail, failures)
		b.longest = min(max(from.Longest, b.head, b.tail), failures)
	}
	b.trailing = min(from.Trailing, successes)
	return b
}

// enter adds a batch to the runs, as if its outcomes had come one after another. It returns the longest that the run of
// failures was meanwhile.
func (r *runs) enter(b *batch) (peak uint64) {
	switch {
	case b.inRun == 0:
		r.failures = addCapped(r.failures, b.all.failures)
		peak = r.failures
	default:
		peak = max(addCapped(r.failures, b.head), b.longest)
		if r.failures > 0 || b.all.failures > b.tail {
			r.run++ // a failure was followed by a success
		}
		r.failures = b.tail
	}
	if b.all.failures > 0 {
		r.successes = 0
	}
	r.successes = addCapped(r.successes, b.trailing)
	return peak
}

// normalizeShape returns a shape without negative numbers.
func normalizeShape(s breaker.StoreShape) breaker.StoreShape {
	s.Window, s.Failures, s.Reporters = max(0, s.Window), max(0, s.Failures), max(0, s.Reporters)
	return s
}

// Move.

func (l *ledger) move(now moment, m *breaker.StoreMove, out *breaker.Ledger) effect {
	epoch := l.nextEpoch(now, m.From)
	switch {
	case epoch == 0, l.epoch > m.From, m.To > breaker.Open:
		return unchanged
	case m.Run != 0 && l.epoch == m.From && l.run != m.Run:
		return unchanged
	}
	l.begin(now, epoch, m.To, normalizeShape(m.Shape), m.Openings)
	if m.To == breaker.Open {
		l.until = now.at.plus(max(0, m.For))
	}
	out.Applied = true
	return announced
}

// Acquire.

func (l *ledger) acquire(now moment, a *breaker.StoreAcquire, out *breaker.Ledger) effect {
	result := unchanged
	if l.epoch == 0 || l.epoch < a.Epoch || l.due(now) {
		epoch := l.nextEpoch(now, a.Epoch)
		if epoch == 0 || len(a.Tokens) == 0 || a.Limit <= 0 || a.Lease <= 0 {
			return unchanged // no slot would be granted
		}
		openings := l.openings
		if l.epoch < a.Epoch || l.epoch == 0 {
			openings = a.Openings
		}
		l.begin(now, epoch, breaker.HalfOpen, normalizeShape(a.Shape), openings)
		out.Applied = true
		result = announced
	}
	if l.state != breaker.HalfOpen {
		return unchanged
	}
	if l.grant(now, a, out) {
		return max(result, changed)
	}
	return result
}

// grant gives slots to the tokens of a. It reports whether any token got one that had none.
func (l *ledger) grant(now moment, a *breaker.StoreAcquire, out *breaker.Ledger) (given bool) {
	live := l.liveSlots(now)
	for _, token := range a.Tokens {
		held, known := l.slots[token]
		switch {
		case known && now.at < held.ends:
			out.Granted++
		case !known && live < a.Limit && a.Lease > 0:
			if l.slots == nil {
				l.slots = make(map[string]slot)
			}
			l.given++
			l.slots[token] = slot{ends: now.at.plus(a.Lease), number: l.given}
			live++
			out.Granted++
			given = true
		}
	}
	if given {
		l.forgetExpired(now)
	}
	if out.Granted < len(a.Tokens) {
		out.RetryAfter = l.firstLeaseEnd(now)
	}
	return given
}

// liveSlots returns how many slots have a lease that has not ended.
func (l *ledger) liveSlots(now moment) (n int) {
	for _, s := range l.slots {
		if now.at < s.ends {
			n++
		}
	}
	return n
}

// firstLeaseEnd returns how long it takes until a lease ends; 0 if there is none.
func (l *ledger) firstLeaseEnd(now moment) (wait time.Duration) {
	for _, s := range l.slots {
		if left := s.ends.since(now.at); left > 0 && (wait == 0 || left < wait) {
			wait = left
		}
	}
	return wait
}

// forgetExpired drops the oldest of the slots whose lease has ended, where too many are remembered.
func (l *ledger) forgetExpired(now moment) {
	for len(l.slots)-l.liveSlots(now) > maxExpired {
		first, at := "", instant(math.MaxInt64)
		for token, s := range l.slots {
			if s.ends < at {
				first, at = token, s.ends
			}
		}
		delete(l.slots, first)
	}
}

// Settle.

func (l *ledger) settle(now moment, v *breaker.StoreVerdict, out *breaker.Ledger) effect {
	held, known := l.slots[v.Token]
	if l.state != breaker.HalfOpen || l.epoch != v.Epoch || !known {
		return unchanged
	}
	out.Applied = true
	delete(l.slots, v.Token)
	expired := now.at >= held.ends
	switch {
	case v.Outcome == breaker.Failure && !(expired && held.number < l.succeeded):
		l.reopen(now, v)
	case v.Outcome != breaker.Success && expired:
		return changed // its slot is free already, and it decides nothing
	case v.Outcome == breaker.Success:
		l.progress++
		l.succeeded = max(l.succeeded, held.number)
		if l.progress >= v.Threshold {
			l.close(now, v)
		}
	}
	return announced
}

func (l *ledger) reopen(now moment, v *breaker.StoreVerdict) {
	if epoch := l.nextEpoch(now, v.Epoch); epoch != 0 {
		l.begin(now, epoch, breaker.Open, normalizeShape(v.Shape), v.Openings)
		l.until = now.at.plus(max(0, v.For))
	}
}

func (l *ledger) close(now moment, v *breaker.StoreVerdict) {
	if epoch := l.nextEpoch(now, v.Epoch); epoch != 0 {
		l.begin(now, epoch, breaker.Closed, normalizeShape(v.Shape), l.openings)
	}
}
