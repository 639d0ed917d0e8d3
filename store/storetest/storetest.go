// Package storetest checks that a [breaker.Store] keeps its contract. A Store's own test calls [Run]:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) storetest.Fixture {
//			ledgers := newLedgers(t)
//			return storetest.Fixture{Open: func(t *testing.T) breaker.Store { return mystore.New(ledgers) }}
//		})
//	}
//
// Every case says, when it fails, why it matters. [Model] is the contract as a program: the plainest one that keeps it.
// With [Step], a [History] of concurrent operations can be checked against it by a linearizability checker.
//
// Where the contract leaves a choice, the suite asks for what all Stores can do: counts that stop at 2^53, windows that are
// exact to a 20th, and a run number that grows by one with every batch in which a success follows a failure.
package storetest

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/breakerkit/breaker"
)

// Fixture is a set of ledgers, empty and of its own, with the ways to get at it.
type Fixture struct {
	// Open opens a Store on the ledgers: the same ones each time, as another process would. The Stores are closed by the
	// suite; a Store that is in use by others may be returned again. Required.
	Open func(t *testing.T) breaker.Store

	// Advance lets time pass by the Store's clock, at no cost. Where it is nil, the suite waits, and leaves out what would
	// take longer than a few seconds.
	Advance func(d time.Duration)

	// Unit is a time that is long against an operation. All times of the suite are multiples of it. Default 50ms.
	Unit time.Duration

	// Wipe loses all ledgers, as a server that restarts empty does. Nil: those cases are made with new names only.
	Wipe func(t *testing.T)
}

// Run checks a Store. It calls open for every case; what open starts should end with t.
func Run(t *testing.T, open func(t *testing.T) Fixture) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("%s: %s", c.name, c.why)
				}
			})
			c.run(newSuite(t, open(t)))
		})
	}
}

// testcase is one rule. Its sentence says why the rule matters.
type testcase struct {
	name string
	why  string
	run  func(*suite)
}

var cases = concat(readCases, reportCases, runCases, windowCases, moveCases, acquireCases, settleCases, lifeCases,
	lostCases, nameCases, shapeCases, watchCases, edgeCases, concurrencyCases)

func concat(groups ...[]testcase) (all []testcase) {
	for _, g := range groups {
		all = append(all, g...)
	}
	return all
}

// patience is how long the suite waits, in real time, for what has to happen.
const patience = 10 * time.Second

// suite is what a case works with. Its helpers end the case when an operation fails.
type suite struct {
	*testing.T
	ctx   context.Context
	f     Fixture
	unit  time.Duration
	a, b  breaker.Store // two handles to the same ledgers
	names atomic.Int64
}

func newSuite(t *testing.T, f Fixture) *suite {
	t.Helper()
	if f.Open == nil {
		t.Fatal("storetest: Fixture.Open is missing")
	}
	s := &suite{T: t, f: f, unit: f.Unit}
	if s.unit <= 0 {
		s.unit = 50 * time.Millisecond
	}
	ctx, cancel := context.WithCancel(context.Background())
	stuck := time.AfterFunc(time.Minute, func() {
		stacks := make([]byte, 1<<20)
		panic(fmt.Sprintf("storetest: %s is stuck\n%s", t.Name(), stacks[:runtime.Stack(stacks, true)]))
	})
	t.Cleanup(func() { stuck.Stop(); cancel() })
	s.ctx = ctx
	s.a, s.b = s.open(), s.open()
	return s
}

// open opens another handle.
func (s *suite) open() breaker.Store {
	s.Helper()
	st := s.f.Open(s.T)
	if st == nil {
		s.Fatal("storetest: Open returned no Store")
	}
	s.Cleanup(func() { _ = st.Close() })
	return st
}

// name is a name that has not been used.
func (s *suite) name() string { return fmt.Sprintf("name-%d", s.names.Add(1)) }

// units is a multiple of the unit.
func (s *suite) units(n int) time.Duration { return time.Duration(n) * s.unit }

// wait lets n units pass.
func (s *suite) wait(n int) { s.pass(s.units(n)) }

func (s *suite) pass(d time.Duration) {
	s.Helper()
	switch {
	case s.f.Advance != nil:
		s.f.Advance(d)
	case d > time.Minute:
		s.Skip("takes too long without Fixture.Advance")
	default:
		time.Sleep(d)
	}
}

// by starts a span of real time, and returns a function that leaves the case if the span is over: what has to hold only
// until then cannot be judged on a machine that has been that slow.
func (s *suite) by(n int) (still func()) {
	begun := time.Now()
	return func() {
		s.Helper()
		if s.f.Advance == nil && time.Since(begun) >= s.units(n) {
			s.Skip("this machine was too slow to tell")
		}
	}
}

// eventually waits, in real time, until ok.
func (s *suite) eventually(what string, ok func() bool) {
	s.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			s.Fatalf("%s: has not happened within %v", what, patience)
		}
	}
}

func (s *suite) check(ok bool, format string, args ...any) {
	s.Helper()
	if !ok {
		s.Fatalf(format, args...)
	}
}

func equal[T comparable](s *suite, what string, got, want T) {
	s.Helper()
	if got != want {
		s.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

// plain is a shape without a window.
var plain = breaker.StoreShape{Failures: 5, Config: "plain"}

// The operations.

func (s *suite) reports(st breaker.Store, reports ...breaker.StoreReport) []breaker.Ledger {
	s.Helper()
	replies := st.Report(s.ctx, reports)
	equal(s, "replies", len(replies), len(reports))
	return s.ledgers(replies)
}

func (s *suite) ledgers(replies []breaker.StoreReply) (all []breaker.Ledger) {
	s.Helper()
	for _, r := range replies {
		s.check(r.Err == nil, "the operation failed: %v", r.Err)
		s.sane(r.Ledger)
		all = append(all, r.Ledger)
	}
	return all
}

// sane checks what holds of every ledger.
func (s *suite) sane(l breaker.Ledger) {
	s.Helper()
	s.check(l.Run > 0, "Run is 0: %+v", l)
	s.check(l.Epoch < 1<<53, "epoch %d is not below 2^53", l.Epoch)
	s.check(l.Age >= 0 && l.Remaining >= 0 && l.RetryAfter >= 0, "a negative time: %+v", l)
	s.check(l.State == breaker.Open || l.Remaining == 0, "%v with time remaining: %+v", l.State, l)
	s.check(l.State == breaker.HalfOpen || l.Slots == 0 && l.Progress == 0, "%v with probes: %+v", l.State, l)
	s.check(l.State == breaker.Closed || l.Counts == breaker.Counts{}, "%v with counts: %+v", l.State, l)
	s.check(l.RecentRun <= l.Recent, "more recent failures in the run than there are: %+v", l)
}

// report reports a batch through the first handle, in a known epoch.
func (s *suite) report(name string, epoch uint64, b breaker.StoreBatch) breaker.Ledger {
	s.Helper()
	return s.reports(s.a, breaker.StoreReport{Name: name, Node: "node", Epoch: epoch, Shape: plain, Batch: b})[0]
}

func (s *suite) move(m breaker.StoreMove) breaker.Ledger {
	s.Helper()
	if m.Shape == (breaker.StoreShape{}) {
		m.Shape = plain
	}
	l, err := s.b.Move(s.ctx, m)
	s.check(err == nil, "Move failed: %v", err)
	s.sane(l)
	return l
}

func (s *suite) acquire(a breaker.StoreAcquire) breaker.Ledger {
	s.Helper()
	if a.Shape == (breaker.StoreShape{}) {
		a.Shape = plain
	}
	l, err := s.a.Acquire(s.ctx, a)
	s.check(err == nil, "Acquire failed: %v", err)
	s.sane(l)
	return l
}

func (s *suite) settle(v breaker.StoreVerdict) breaker.Ledger {
	s.Helper()
	if v.Shape == (breaker.StoreShape{}) {
		v.Shape = plain
	}
	l, err := s.b.Settle(s.ctx, v)
	s.check(err == nil, "Settle failed: %v", err)
	s.sane(l)
	return l
}

// read reads one ledger through both handles; they must agree.
func (s *suite) read(name string) breaker.Ledger {
	s.Helper()
	l := s.ledgers(s.a.Read(s.ctx, []string{name}))[0]
	o := s.ledgers(s.b.Read(s.ctx, []string{name}))[0]
	equal(s, "what another handle reads", still(o), still(l))
	return l
}

// still is a ledger without what passes by itself.
func still(l breaker.Ledger) breaker.Ledger {
	l.Clock, l.Age, l.Remaining, l.RetryAfter = 0, 0, 0, 0
	return l
}

// standing is a ledger without what the operation that returned it has done.
func standing(l breaker.Ledger) breaker.Ledger {
	l = still(l)
	l.Peak, l.Foreign, l.Applied, l.Granted = 0, false, false, 0
	return l
}

// unchanged does something, and checks that the ledger stands as before.
func (s *suite) unchanged(name, what string, do func()) {
	s.Helper()
	before := s.read(name)
	do()
	equal(s, "after "+what, standing(s.read(name)), standing(before))
}

// Batches.

// failures is n failures of now.
func failures(n int) breaker.StoreBatch { return failuresAt(make([]time.Duration, n)...) }

// failuresAt is failures of some ages, oldest first.
func failuresAt(ages ...time.Duration) breaker.StoreBatch {
	n := uint64(len(ages))
	b := breaker.StoreBatch{FailureAges: ages, Head: n, Tail: n, Longest: n}
	for _, age := range ages {
		b.Slices = append(b.Slices, breaker.StoreSlice{Age: age, Failures: 1})
	}
	return b
}

// successes is n successes of now.
func successes(n int) breaker.StoreBatch {
	return breaker.StoreBatch{Slices: []breaker.StoreSlice{{Successes: uint64(n)}}, Trailing: uint64(n)}
}

// outcomes is a batch out of letters: F failure, S success, A a success that ends no run, I ignored. It counts by going
// through them.
func outcomes(letters string) breaker.StoreBatch {
	var b breaker.StoreBatch
	var one breaker.StoreSlice
	var run uint64
	var ended bool // by a success
	for _, c := range letters {
		switch c {
		case 'F':
			one.Failures++
			run++
			b.Trailing = 0
			b.FailureAges = append(b.FailureAges, 0)
			b.Longest = max(b.Longest, run)
			if !ended {
				b.Head++
			}
		case 'S':
			one.Successes++
			b.Trailing++
			run, ended = 0, true
		case 'A':
			one.Successes++
		case 'I':
			one.Ignored++
		}
	}
	b.Tail = run
	b.Early = one.Successes > 0 && !ended
	b.Slices = []breaker.StoreSlice{one}
	return b
}

// States to start from.

// closed is a new ledger in Closed; it returns its epoch.
func (s *suite) closed(name string) uint64 {
	s.Helper()
	l := s.report(name, 0, successes(1))
	equal(s, "state", l.State, breaker.Closed)
	return l.Epoch
}

// opened is a new ledger in Open.
func (s *suite) opened(name string, period time.Duration) uint64 {
	s.Helper()
	l := s.move(breaker.StoreMove{Name: name, To: breaker.Open, For: period, Openings: 1})
	s.check(l.Applied, "a move on an empty ledger was not applied: %+v", l)
	return l.Epoch
}

// probing is a new ledger in HalfOpen with slots given to some tokens.
func (s *suite) probing(name string, lease time.Duration, limit int, tokens ...string) uint64 {
	s.Helper()
	l := s.acquire(breaker.StoreAcquire{Name: name, Epoch: s.opened(name, 0), Tokens: tokens, Lease: lease, Limit: limit, Openings: 1})
	equal(s, "state", l.State, breaker.HalfOpen)
	equal(s, "granted", l.Granted, min(limit, len(tokens)))
	return l.Epoch
}

// long is a time that does not pass.
const long = time.Hour
