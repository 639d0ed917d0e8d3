package storetest

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"time"

	"github.com/breakerkit/breaker"
)

// Model is the contract as a program: one ledger, kept as plainly as can be. It remembers every instant and works out
// what it is asked for each time anew. It is a value: an operation returns the next one and leaves this one as it is.
// The zero value is no model; see [NewModel].
type Model struct {
	epoch    uint64
	state    breaker.State
	since    time.Duration
	until    time.Duration
	openings uint32
	shape    breaker.StoreShape
	shapeAt  time.Duration // when it was last written in that shape

	tallies   map[time.Duration]tally // by when it happened
	run       uint64
	failures  uint64
	successes uint64
	times     []failureTime
	nodes     map[string]time.Duration // when each last failed

	progress  uint32
	leases    map[string]lease // of all tokens that are not settled
	succeeded []bool           // of every slot given in the epoch, in the order of giving: whether its probe has succeeded
	expires   time.Duration
}

type lease struct {
	ends time.Duration
	slot int // where it is in succeeded
}

type tally struct{ successes, failures, ignored, slow uint64 }

type failureTime struct {
	at  time.Duration
	run uint64
}

// Moment is when an operation takes place.
type Moment struct {
	At    time.Duration // since any fixed time
	Clock uint64        // the Store's clock, in milliseconds since 1970
}

// Read is the operation that reads one name; see [Model.Do].
type Read string

const maxCount = 1 << 53

// NewModel is the ledger of a name that nobody has written to.
func NewModel() Model {
	return Model{
		run:     1,
		tallies: make(map[time.Duration]tally),
		nodes:   make(map[string]time.Duration),
		leases:  make(map[string]lease),
	}
}

// Equal reports whether two models stand the same.
func (m Model) Equal(o Model) bool { return reflect.DeepEqual(m, o) }

func (m Model) clone() Model {
	m.tallies, m.nodes, m.leases = maps.Clone(m.tallies), maps.Clone(m.nodes), maps.Clone(m.leases)
	m.times, m.succeeded = slices.Clone(m.times), slices.Clone(m.succeeded)
	return m
}

// Do carries out an operation: a [breaker.StoreReport], [breaker.StoreMove], [breaker.StoreAcquire], [breaker.StoreVerdict] or [Read]. It
// returns the ledger as it then is, and what a Store returns.
func (m Model) Do(op any, at Moment) (Model, breaker.Ledger) {
	if m.epoch > 0 && at.At >= m.expires {
		m = NewModel()
	}
	n := m.clone()
	var done breaker.Ledger
	changed := false
	var shape *breaker.StoreShape
	switch op := op.(type) {
	case breaker.StoreReport:
		changed, shape = n.report(op, at, &done), &op.Shape
	case breaker.StoreMove:
		changed, shape = n.move(op, at, &done), &op.Shape
	case breaker.StoreAcquire:
		changed, shape = n.acquire(op, at, &done), &op.Shape
	case breaker.StoreVerdict:
		changed, shape = n.settle(op, at, &done), &op.Shape
	case Read:
	default:
		panic(fmt.Sprintf("storetest: %T is no operation", op))
	}
	if !changed {
		n = m
	} else {
		n.expires = n.lifetime(at)
	}
	l := n.ledger(at)
	l.Applied, l.Granted, l.Peak, l.RetryAfter = done.Applied, done.Granted, done.Peak, done.RetryAfter
	l.Foreign = shape != nil && n.epoch > 0 && shape.Config != n.shape.Config
	return n, l
}

// ledger is how the model stands.
func (m Model) ledger(at Moment) breaker.Ledger {
	l := breaker.Ledger{Clock: at.Clock, Run: m.run}
	if m.epoch == 0 {
		return l
	}
	l.Epoch, l.State, l.Age, l.Openings, l.Progress = m.epoch, m.state, at.At-m.since, m.openings, m.progress
	if m.state == breaker.Open {
		l.Remaining = max(0, m.until-at.At)
	}
	l.Slots = m.live(at)
	l.Counts.ConsecutiveFailures, l.Counts.ConsecutiveSuccesses = m.failures, m.successes
	for when, t := range m.tallies {
		if m.summed(at, when) {
			l.Counts.Successes = plus(l.Counts.Successes, t.successes)
			l.Counts.Failures = plus(l.Counts.Failures, t.failures)
			l.Counts.Ignored = plus(l.Counts.Ignored, t.ignored)
			l.Counts.Slow = plus(l.Counts.Slow, t.slow)
		}
	}
	for _, f := range m.times {
		if m.young(at, f.at) {
			l.Recent++
			if f.run == m.run {
				l.RecentRun++
			}
		}
	}
	for _, when := range m.nodes {
		if m.young(at, when) {
			l.Reporters = min(l.Reporters+1, m.shape.Reporters)
		}
	}
	return l
}

// young reports whether something lies within the window.
func (m Model) young(at Moment, when time.Duration) bool {
	return m.shape.Window <= 0 || before(at.At, m.shape.Window) < when
}

// summed reports whether something is in the window's sums, which are kept in slices of a 20th.
func (m Model) summed(at Moment, when time.Duration) bool {
	if m.shape.Window <= 0 {
		return true
	}
	part := max(1, m.shape.Window/20)
	number := func(t time.Duration) time.Duration {
		if t < 0 {
			t -= part - 1
		}
		return t / part
	}
	return m.young(at, when) && number(at.At)-number(when) < 20
}

func plus(a, b uint64) uint64 { return min(min(a, maxCount)+min(b, maxCount), maxCount) }

// before and after move a time; what goes beyond the ends of time stays there.
func before(t, d time.Duration) time.Duration {
	d = max(0, d)
	if t < math.MinInt64+d {
		return math.MinInt64
	}
	return t - d
}

func after(t, d time.Duration) time.Duration {
	d = max(0, d)
	if t > math.MaxInt64-d {
		return math.MaxInt64
	}
	return t + d
}

// lifetime is until when the ledger is kept.
func (m Model) lifetime(at Moment) time.Duration {
	if m.state == breaker.Closed && m.shape.Window <= 0 {
		return after(at.At, 24*time.Hour)
	}
	end := at.At
	switch m.state {
	case breaker.Closed:
		end = after(end, m.shape.Window)
	case breaker.Open:
		end = max(end, m.until)
	case breaker.HalfOpen:
		for _, lease := range m.leases {
			end = max(end, lease.ends)
		}
	}
	return after(end, time.Hour)
}

// next is the number of a new epoch, 0 where the numbers have ended.
func (m Model) next(known uint64, at Moment) uint64 {
	n := max(m.epoch, known)
	if at.Clock > 0 {
		n = max(n, at.Clock-1)
	}
	if n >= maxCount-1 {
		return 0
	}
	return n + 1
}

func (m *Model) begin(epoch uint64, state breaker.State, shape breaker.StoreShape, openings uint32, at Moment) {
	*m = NewModel()
	m.epoch, m.state, m.shape, m.openings = epoch, state, tidy(shape), openings
	m.since, m.shapeAt = at.At, at.At
}

func (m *Model) report(r breaker.StoreReport, at Moment, done *breaker.Ledger) (changed bool) {
	var all tally
	for _, s := range r.Batch.Slices {
		all = all.plus(s)
	}
	if all == (tally{}) || m.state != breaker.Closed || m.epoch > 0 && r.Epoch > 0 && r.Epoch != m.epoch {
		return false
	}
	if m.epoch == 0 {
		epoch := r.Epoch
		if epoch == 0 {
			epoch = m.next(0, at)
		}
		if epoch == 0 || epoch >= maxCount {
			return false
		}
		m.begin(epoch, breaker.Closed, r.Shape, 0, at)
	}
	m.reshape(r.Shape, at)
	done.Applied = true
	m.count(r, all, at, done)
	return true
}

func (t tally) plus(s breaker.StoreSlice) tally {
	return tally{plus(t.successes, s.Successes), plus(t.failures, s.Failures), plus(t.ignored, s.Ignored), plus(t.slow, s.Slow)}
}

// tidy is a shape without what is below 0.
func tidy(s breaker.StoreShape) breaker.StoreShape {
	s.Window, s.Failures, s.Reporters = max(0, s.Window), max(0, s.Failures), max(0, s.Reporters)
	return s
}

// reshape lets another shape take over from one that is not in use any more.
func (m *Model) reshape(s breaker.StoreShape, at Moment) {
	s = tidy(s)
	if s == m.shape {
		m.shapeAt = at.At
		return
	}
	if at.At < after(m.shapeAt, max(m.shape.Window, time.Minute)) {
		return
	}
	was := *m
	m.begin(was.epoch, was.state, s, was.openings, at)
	m.since, m.run = was.since, was.run
	if was.failures > 0 {
		m.run++
	}
}

func (m *Model) count(r breaker.StoreReport, all tally, at Moment, done *breaker.Ledger) {
	b := r.Batch
	for _, s := range b.Slices {
		when := before(at.At, s.Age)
		m.tallies[when] = m.tallies[when].plus(s)
	}
	run := m.run
	tail := all.failures
	inRun := all.successes
	if b.Early {
		inRun = 0
	}
	if inRun == 0 {
		m.failures = plus(m.failures, all.failures)
		done.Peak = m.failures
	} else {
		head, longest := min(b.Head, all.failures), min(b.Longest, all.failures)
		tail = min(b.Tail, all.failures)
		done.Peak = max(plus(m.failures, head), longest, tail)
		if m.failures > 0 || all.failures > tail {
			m.run++
		}
		m.failures = tail
	}
	trailing := min(b.Trailing, inRun)
	m.successes = plus(m.successes, trailing)
	if all.failures > 0 {
		m.successes = trailing
	}
	m.remember(r, all.failures, tail, run, at)
}

// remember keeps when the failures were: those at the end of the batch belong to the present run.
func (m *Model) remember(r breaker.StoreReport, failures, tail, run uint64, at Moment) {
	ages := r.Batch.FailureAges
	for uint64(len(ages)) > failures {
		ages = ages[1:]
	}
	for i, age := range ages {
		f := failureTime{before(at.At, age), m.run}
		if uint64(len(ages)-i) > tail {
			f.run = run
		}
		if !m.young(at, f.at) {
			continue
		}
		for _, kept := range m.times {
			f.at = max(f.at, kept.at)
		}
		m.times = append(m.times, f)
	}
	for len(m.times) > max(0, m.shape.Failures) {
		m.times = m.times[1:]
	}
	if failures == 0 {
		return
	}
	last := time.Duration(math.MinInt64)
	for _, s := range r.Batch.Slices {
		if s.Failures > 0 {
			last = before(at.At, s.Age)
		}
	}
	if n := len(ages); n > 0 {
		last = before(at.At, ages[n-1])
	}
	if was, known := m.nodes[r.Node]; !known || last > was {
		m.nodes[r.Node] = last
	}
}

func (m *Model) move(v breaker.StoreMove, at Moment, done *breaker.Ledger) (changed bool) {
	epoch := m.next(v.From, at)
	if m.epoch > v.From || epoch == 0 || v.To > breaker.Open {
		return false
	}
	if v.Run > 0 && v.Run != m.run && v.From == m.epoch {
		return false
	}
	m.begin(epoch, v.To, v.Shape, v.Openings, at)
	if v.To == breaker.Open {
		m.until = after(at.At, v.For)
	}
	done.Applied = true
	return true
}

func (m *Model) acquire(a breaker.StoreAcquire, at Moment, done *breaker.Ledger) (changed bool) {
	lost := m.epoch == 0 || m.epoch < a.Epoch
	if lost || m.state == breaker.Open && at.At >= m.until {
		epoch := m.next(a.Epoch, at)
		if epoch == 0 || len(a.Tokens) == 0 || a.Limit <= 0 || a.Lease <= 0 {
			return false
		}
		openings := m.openings
		if lost {
			openings = a.Openings
		}
		m.begin(epoch, breaker.HalfOpen, a.Shape, openings, at)
		done.Applied = true
	}
	if m.state != breaker.HalfOpen {
		return false
	}
	for _, token := range a.Tokens {
		held, known := m.leases[token]
		switch {
		case known && at.At < held.ends:
			done.Granted++
		case !known && m.live(at) < a.Limit && a.Lease > 0:
			m.leases[token] = lease{ends: after(at.At, a.Lease), slot: len(m.succeeded)}
			m.succeeded = append(m.succeeded, false)
			done.Granted++
			changed = true
		}
	}
	if done.Granted < len(a.Tokens) {
		for _, lease := range m.leases {
			if left := lease.ends - at.At; left > 0 && (done.RetryAfter == 0 || left < done.RetryAfter) {
				done.RetryAfter = left
			}
		}
	}
	return changed
}

func (m Model) live(at Moment) (n int) {
	for _, lease := range m.leases {
		if at.At < lease.ends {
			n++
		}
	}
	return n
}

func (m *Model) settle(v breaker.StoreVerdict, at Moment, done *breaker.Ledger) (changed bool) {
	held, known := m.leases[v.Token]
	if m.state != breaker.HalfOpen || m.epoch != v.Epoch || !known {
		return false
	}
	done.Applied = true
	delete(m.leases, v.Token)
	switch {
	case v.Outcome == breaker.Success:
		m.progress++
		m.succeeded[held.slot] = true
		if m.progress >= v.Threshold {
			m.begin(m.next(v.Epoch, at), breaker.Closed, v.Shape, m.openings, at)
		}
	case v.Outcome == breaker.Failure && (at.At < held.ends || !slices.Contains(m.succeeded[held.slot+1:], true)):
		m.begin(m.next(v.Epoch, at), breaker.Open, v.Shape, v.Openings, at)
		m.until = after(at.At, v.For)
	}
	return true
}
