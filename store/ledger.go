package store

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/breakerkit/breaker"
)

// ledger is what is kept for one name. Its methods are the operations; they are told the time, and no lock or watcher is
// in them.
type ledger struct {
	name     string
	epoch    uint64 // 0: empty
	state    breaker.State
	since    instant // when the epoch began
	until    instant // Open: when a probe is due
	openings uint32

	shape   breaker.StoreShape
	shapeAt instant // when it was last written in this shape

	window *ring // nil before the first count, and where there is no window
	whole  sums  // of the epoch
	runs
	kept      []failure // the last ones, oldest first
	reporters []reporter

	progress  uint32          // HalfOpen
	slots     map[string]slot // HalfOpen: by token, also those whose lease has ended
	given     uint64          // HalfOpen: how many slots have been given
	succeeded uint64          // HalfOpen: the number of the last given slot whose probe has succeeded; 0: none has

	expires instant // when it is dropped
	place   int     // in the queue of those to be dropped
}

// runs is what comes in a row.
type runs struct {
	run       uint64 // the number of the present run of failures
	failures  uint64 // its length
	successes uint64 // since the last failure
}

// slot is a probe slot that has been given and not settled.
type slot struct {
	ends   instant // its lease
	number uint64  // in the order in which the slots of the epoch were given, from 1
}

type failure struct {
	at  instant
	run uint64
}

type reporter struct {
	node string
	at   instant // of its last failure
}

// moment is when an operation happens.
type moment struct {
	at    instant
	clock uint64 // in milliseconds since 1970
}

// effect is what follows from an operation.
type effect uint8

const (
	nothing effect = iota // it has changed nothing
	written               // it has changed something
	telling               // and watchers are told
)

const (
	slack         = time.Hour      // how long a ledger is kept after it has come to its end
	keepUnbounded = 24 * time.Hour // how long one without a window is kept after the last report
	reclaimAfter  = time.Minute    // how long no report must have come in the stored shape before another takes over, at least
	maxExpired    = 1024           // how many slots are remembered after their lease, the latest
)

func emptyLedger(name string) *ledger { return &ledger{name: name, runs: runs{run: 1}, place: -1} }

// next is the number of a new epoch for an operation that was told of a known one; 0 where there is none: numbers end
// below limit, and one from beyond was given by no Store.
func (l *ledger) next(now moment, known uint64) uint64 {
	next := max(l.epoch, known, max(now.clock, 1)-1)
	if next >= limit-1 {
		return 0
	}
	return next + 1
}

// begin starts an epoch, with all counts at 0 and no slots.
func (l *ledger) begin(now moment, epoch uint64, s breaker.State, shape breaker.StoreShape, openings uint32) {
	*l = ledger{
		name: l.name, expires: l.expires, place: l.place,
		epoch: epoch, state: s, since: now.at, openings: openings,
		shape: shape, shapeAt: now.at,
		runs: runs{run: 1},
	}
}

// due reports whether an open period has ended.
func (l *ledger) due(now moment) bool { return l.state == breaker.Open && now.at >= l.until }

// lifetime is until when the ledger is kept if nothing more is written.
func (l *ledger) lifetime(now moment) instant {
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

// view is how the ledger stands.
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
	v.Slots = l.live(now)
	v.Counts = l.counts(now)
	young := l.young(now)
	v.Recent = uint64(len(young))
	v.RecentRun = uint64(len(young) - sort.Search(len(young), func(i int) bool { return young[i].run == l.run }))
	v.Reporters = l.failing(now)
	return v
}

func (l *ledger) counts(now moment) breaker.Counts {
	s := l.whole
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

// young is those of the kept failures that the window holds. They are in order, so that it is the last ones.
func (l *ledger) young(now moment) []failure {
	return l.kept[sort.Search(len(l.kept), func(i int) bool { return l.inWindow(now, l.kept[i].at) }):]
}

func (l *ledger) failing(now moment) (n int) {
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
	b := summarize(r.Batch)
	if b.all == (sums{}) || l.state != breaker.Closed {
		return nothing
	}
	shape := tidy(r.Shape)
	result := written
	switch {
	case l.epoch == 0:
		epoch := r.Epoch
		if epoch == 0 || epoch >= limit {
			epoch = l.next(now, r.Epoch)
		}
		if epoch == 0 {
			return nothing
		}
		l.begin(now, epoch, breaker.Closed, shape, 0)
		result = telling
	case r.Epoch != 0 && r.Epoch != l.epoch:
		return nothing
	}
	l.settleShape(now, shape)
	before := l.runs
	out.Peak = l.runs.enter(b)
	out.Applied = true
	l.count(now, r.Batch.Slices)
	l.keepFailures(now, b, before.run)
	l.keepReporter(now, r.Node, b)
	if l.runs.failures > 0 && (before.failures == 0 || before.run != l.run) {
		result = telling
	}
	return result
}

// settleShape decides in which shape the ledger is kept. The first writer's stays while anybody writes in it, so that two
// configurations in use at once do not take turns in clearing the counts; once nobody does, another takes over.
func (l *ledger) settleShape(now moment, s breaker.StoreShape) {
	switch {
	case s == l.shape:
		l.shapeAt = now.at
	case now.at >= l.shapeAt.plus(max(l.shape.Window, reclaimAfter)):
		if l.runs.failures > 0 {
			l.run++ // whoever has decided on the run that ends here must not move
		}
		l.shape, l.shapeAt = s, now.at
		l.window, l.whole, l.kept, l.reporters = nil, sums{}, nil, nil
		l.runs = runs{run: l.run}
	}
}

func (l *ledger) count(now moment, batch []breaker.StoreSlice) {
	for _, s := range batch {
		l.whole.add(sumsOf(s))
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

// keepFailures keeps the times of a batch's failures. One that came late is taken to be as old as the latest known, so
// that they stay in order.
func (l *ledger) keepFailures(now moment, b *batch, before uint64) {
	for i, age := range b.ages {
		f := failure{at: now.at.minus(max(0, age)), run: l.run}
		if l.shape.Failures == 0 || !l.inWindow(now, f.at) {
			continue
		}
		if uint64(len(b.ages)-i) > b.tail {
			f.run = before
		}
		if n := len(l.kept); n > 0 {
			f.at = max(f.at, l.kept[n-1].at)
		}
		l.kept = append(l.kept, f)
	}
	if extra := len(l.kept) - l.shape.Failures; extra > 0 {
		l.kept = l.kept[extra:]
	}
	if old := len(l.kept) - len(l.young(now)); old > 0 {
		l.kept = l.kept[old:]
	}
}

// keepReporter notes who failed. Where they are more than are told apart, the one that did so longest ago is forgotten.
func (l *ledger) keepReporter(now moment, node string, b *batch) {
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

// batch is a breaker.StoreBatch without its contradictions.
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

func summarize(from breaker.StoreBatch) *batch {
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

// enter lets a batch's outcomes come one after another, and returns the longest that the run was meanwhile.
func (r *runs) enter(b *batch) (peak uint64) {
	switch {
	case b.inRun == 0:
		r.failures = total(r.failures, b.all.failures)
		peak = r.failures
	default:
		peak = max(total(r.failures, b.head), b.longest)
		if r.failures > 0 || b.all.failures > b.tail {
			r.run++ // a failure was followed by a success
		}
		r.failures = b.tail
	}
	if b.all.failures > 0 {
		r.successes = 0
	}
	r.successes = total(r.successes, b.trailing)
	return peak
}

// tidy is a shape without what cannot be.
func tidy(s breaker.StoreShape) breaker.StoreShape {
	s.Window, s.Failures, s.Reporters = max(0, s.Window), max(0, s.Failures), max(0, s.Reporters)
	return s
}

// Move.

func (l *ledger) move(now moment, m *breaker.StoreMove, out *breaker.Ledger) effect {
	epoch := l.next(now, m.From)
	switch {
	case epoch == 0, l.epoch > m.From, m.To > breaker.Open:
		return nothing
	case m.Run != 0 && l.epoch == m.From && l.run != m.Run:
		return nothing
	}
	l.begin(now, epoch, m.To, tidy(m.Shape), m.Openings)
	if m.To == breaker.Open {
		l.until = now.at.plus(max(0, m.For))
	}
	out.Applied = true
	return telling
}

// Acquire.

func (l *ledger) acquire(now moment, a *breaker.StoreAcquire, out *breaker.Ledger) effect {
	result := nothing
	if l.epoch == 0 || l.epoch < a.Epoch || l.due(now) {
		epoch := l.next(now, a.Epoch)
		if epoch == 0 || len(a.Tokens) == 0 || a.Limit <= 0 || a.Lease <= 0 {
			return nothing // none would be given
		}
		openings := l.openings
		if l.epoch < a.Epoch || l.epoch == 0 {
			openings = a.Openings
		}
		l.begin(now, epoch, breaker.HalfOpen, tidy(a.Shape), openings)
		out.Applied = true
		result = telling
	}
	if l.state != breaker.HalfOpen {
		return nothing
	}
	if l.give(now, a, out) {
		return max(result, written)
	}
	return result
}

// give gives slots, and reports whether it did.
func (l *ledger) give(now moment, a *breaker.StoreAcquire, out *breaker.Ledger) (given bool) {
	live := l.live(now)
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
		l.forget(now)
	}
	if out.Granted < len(a.Tokens) {
		out.RetryAfter = l.firstFree(now)
	}
	return given
}

// live is how many slots are in use.
func (l *ledger) live(now moment) (n int) {
	for _, s := range l.slots {
		if now.at < s.ends {
			n++
		}
	}
	return n
}

// firstFree is how long it is until the first lease ends.
func (l *ledger) firstFree(now moment) (wait time.Duration) {
	for _, s := range l.slots {
		if left := s.ends.since(now.at); left > 0 && (wait == 0 || left < wait) {
			wait = left
		}
	}
	return wait
}

// forget bounds how many slots are remembered after their lease has ended.
func (l *ledger) forget(now moment) {
	for len(l.slots)-l.live(now) > maxExpired {
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
		return nothing
	}
	out.Applied = true
	delete(l.slots, v.Token)
	expired := now.at >= held.ends
	switch {
	case v.Outcome == breaker.Failure && !(expired && held.number < l.succeeded):
		l.reopen(now, v)
	case v.Outcome != breaker.Success && expired:
		return written // its slot is free already, and it decides nothing
	case v.Outcome == breaker.Success:
		l.progress++
		l.succeeded = max(l.succeeded, held.number)
		if l.progress >= v.Threshold {
			l.close(now, v)
		}
	}
	return telling
}

func (l *ledger) reopen(now moment, v *breaker.StoreVerdict) {
	if epoch := l.next(now, v.Epoch); epoch != 0 {
		l.begin(now, epoch, breaker.Open, tidy(v.Shape), v.Openings)
		l.until = now.at.plus(max(0, v.For))
	}
}

func (l *ledger) close(now moment, v *breaker.StoreVerdict) {
	if epoch := l.next(now, v.Epoch); epoch != 0 {
		l.begin(now, epoch, breaker.Closed, tidy(v.Shape), l.openings)
	}
}
