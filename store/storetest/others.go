package storetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/breakerkit/breaker"
)

// together does something n times at once, on both handles.
func (s *suite) together(n int, do func(i int, st breaker.Store) (int, error)) []int {
	s.Helper()
	results, errs := make([]int, n), make([]error, n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			results[i], errs[i] = do(i, []breaker.Store{s.a, s.b}[i%2])
		})
	}
	close(start)
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		s.Fatalf("operations failed: %v", err)
	}
	return results
}

func sum(values []int) (total int) {
	for _, v := range values {
		total += v
	}
	return total
}

func count(values []int) (n int) {
	for _, v := range values {
		if v != 0 {
			n++
		}
	}
	return n
}

// oddNames are names that could be taken for one another, or for something else.
func oddNames() []string {
	names := []string{
		"a", "A", "a ", " a", "a:b", "a:", ":a", ":", "::", "{a}", "{", "}", "}a{", "{}", "{}a", "a{b}c", "a}{b", "{a}{b}",
		"a\nb", "a\r\nb", "a\x00b", "\x00", "a\tb", "a%b", "a%25b", "a%2525b", "%61", "%", "%%", "%00", "%0A", "\n",
		"a/b", "a\\b", "a*b", "a?b", "[a]", "a,b", "a|b", "a=b", "a&b", "a\"b", "'a'", "$a", "a b", "a+b", "a%20b", "a%2Bb",
		"ü", "u\u0308", "ß", "ss", "点", "点点", "🔌", "\xff", "\xfe", "\xc3\x28", "\ufffd", "%FF", "%ff",
		"https://api.example.com:443/v1?x={y}", "https://api.example.com:443/v1?x={Y}",
	}
	long := strings.Repeat("x", 300)
	names = append(names, long, long+"y", long[:299], long[:200], long[:201], long[:299]+"y", long[:250]+"{"+long[251:],
		strings.Repeat("点", 100), strings.Repeat("点", 99)+"些", strings.Repeat("%", 100), strings.Repeat("%25", 100))
	return names
}

var nameCases = []testcase{
	{"names are arbitrary, and never share a ledger", "a name that leaves its place, or is cut short, would open a stranger's circuit",
		func(s *suite) {
			names := oddNames()
			for i, name := range names {
				l := s.report(name, uint64(i+1), failures(i%7+1))
				equal(s, fmt.Sprintf("epoch of %q", name), l.Epoch, uint64(i+1))
			}
			got := s.ledgers(s.b.Read(s.ctx, names))
			for i, name := range names {
				equal(s, fmt.Sprintf("epoch of %q", name), got[i].Epoch, uint64(i+1))
				equal(s, fmt.Sprintf("failures of %q", name), got[i].Counts.Failures, uint64(i%7+1))
			}
		}},
	{"watchers are told the name as it is", "a circuit looks itself up by it",
		func(s *suite) {
			w := s.watch(s.b)
			for _, name := range oddNames() {
				epoch := s.opened(name, long)
				s.eventually(fmt.Sprintf("a change of %q", name), func() bool { return w.has(name, epoch) })
			}
		}},
	{"an empty name is an error", "it is nobody's, and must not become a ledger that all who forget it share",
		func(s *suite) {
			for op, err := range everyOperation(s.ctx, s.a, "") {
				s.check(err != nil && !errors.Is(err, breaker.ErrStoreClosed), "%s: %v", op, err)
			}
			name := s.name()
			epoch := s.closed(name)
			r := s.a.Report(s.ctx, []breaker.StoreReport{{Shape: plain, Batch: failures(1)}, {Name: name, Epoch: epoch, Shape: plain, Batch: failures(1)}})
			s.check(len(r) == 2 && r[0].Err != nil && r[1].Err == nil && r[1].Ledger.Applied, "an empty name beside another: %+v", r)
		}},
}

var (
	first  = breaker.StoreShape{Window: time.Hour, Failures: 3, Reporters: 2, Config: "first"}
	second = breaker.StoreShape{Window: 2 * time.Hour, Failures: 5, Reporters: 4, Config: "second"}
)

var shapeCases = []testcase{
	{"another configuration is told that it is foreign", "two deployments that differ on one name are a mistake that somebody has to hear of",
		func(s *suite) {
			name := s.name()
			equal(s, "the first writer", s.reportAs(name, "a", first, failures(1)).Foreign, false)
			equal(s, "another", s.reportAs(name, "b", second, failures(1)).Foreign, true)
			equal(s, "another that only reads", s.reportAs(name, "b", second, breaker.StoreBatch{}).Foreign, true)
			equal(s, "the first", s.reportAs(name, "a", first, breaker.StoreBatch{}).Foreign, false)
			equal(s, "one without a configuration", s.read(name).Foreign, false)
			l := s.move(breaker.StoreMove{Name: name, Shape: second, From: 1, To: breaker.Open})
			equal(s, "another whose move is stale", l.Foreign && !l.Applied, true)
			l = s.acquire(breaker.StoreAcquire{Name: name, Shape: second, Tokens: []string{"t"}, Lease: long, Limit: 1})
			equal(s, "another that asks for a slot", l.Foreign, true)
			equal(s, "another that settles", s.settle(breaker.StoreVerdict{Name: name, Shape: second, Epoch: l.Epoch, Token: "t"}).Foreign, true)
			equal(s, "on an empty ledger", s.reportAs(s.name(), "b", second, breaker.StoreBatch{}).Foreign, false)
		}},
	{"two configurations in use do not take turns", "if each cleared the counts of the other, neither would ever trip",
		func(s *suite) {
			name := s.name()
			for i := range 10 {
				shape := []breaker.StoreShape{first, second}[i%2]
				l := s.reportAs(name, "n", shape, failures(1))
				equal(s, "applied", l.Applied, true)
				equal(s, "failures", l.Counts.Failures, uint64(i+1))
				equal(s, "run", l.Counts.ConsecutiveFailures, uint64(i+1))
				equal(s, "failures kept, as the first wants it", l.Recent, uint64(min(i+1, 3)))
				equal(s, "foreign", l.Foreign, i%2 == 1)
				s.wait(1)
			}
		}},
	{"a new epoch is kept as its maker wants it", "the next period is his who began it; the counts are new anyway",
		func(s *suite) {
			name := s.name()
			l := s.reportAs(name, "n", first, failures(1))
			l = s.move(breaker.StoreMove{Name: name, Shape: second, From: l.Epoch, To: breaker.Closed})
			equal(s, "foreign to its maker", l.Foreign, false)
			equal(s, "foreign to the one before", s.reportAs(name, "n", first, failures(4)).Foreign, true)
			equal(s, "failures kept", s.read(name).Recent, 4)

			v := verdict(name, s.probing(s.name(), long, 1, "t"), "t", breaker.Success)
			v.Name, v.Shape, v.Threshold = "name-2", first, 1
			l = s.settle(v)
			equal(s, "state", l.State, breaker.Closed)
			equal(s, "foreign to who closed", l.Foreign, false)
			equal(s, "foreign to who probed", s.reportAs(v.Name, "n", plain, breaker.StoreBatch{}).Foreign, true)
		}},
	{"a configuration that is in use no more gives way", "after a reload the old layout must not stay for ever",
		func(s *suite) {
			if s.f.Advance == nil {
				s.Skip("takes too long without Fixture.Advance")
			}
			old := breaker.StoreShape{Window: 2 * time.Minute, Failures: 3, Config: "old"}
			name := s.name()
			run := s.reportAs(name, "n", old, failures(2)).Run
			s.pass(119 * time.Second)
			l := s.reportAs(name, "n", second, failures(1))
			equal(s, "foreign while the old is in use", l.Foreign, true)
			equal(s, "run", l.Counts.ConsecutiveFailures, 3)
			s.pass(2 * time.Second)
			l = s.reportAs(name, "n", second, failures(4))
			equal(s, "foreign after that", l.Foreign, false)
			equal(s, "applied", l.Applied, true)
			equal(s, "counts", l.Counts, breaker.Counts{Failures: 4, ConsecutiveFailures: 4})
			equal(s, "failures kept", l.Recent, 4)
			s.check(l.Run > run, "run %d after %d: a move that rests on what was cleared would win", l.Run, run)
			equal(s, "the old one", s.reportAs(name, "n", old, failures(1)).Foreign, true)

			brief, name := breaker.StoreShape{Window: time.Second, Config: "brief"}, s.name()
			s.reportAs(name, "n", brief, failures(1))
			s.pass(59 * time.Second)
			equal(s, "within a minute", s.reportAs(name, "n", second, failures(1)).Foreign, true)
			s.pass(time.Second)
			equal(s, "after a minute", s.reportAs(name, "n", second, failures(1)).Foreign, false)
		}},
}

// watcher records what it is told.
type watcher struct {
	mu      sync.Mutex
	changes []told
	resyncs int
}

type told struct {
	name   string
	ledger breaker.Ledger
}

func (w *watcher) Changed(name string, l breaker.Ledger) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changes = append(w.changes, told{name, l})
}

func (w *watcher) Resync() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.resyncs++
}

// of is what was told of one name.
func (w *watcher) of(name string) (all []breaker.Ledger) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.changes {
		if c.name == name {
			all = append(all, c.ledger)
		}
	}
	return all
}

func (w *watcher) has(name string, epoch uint64) bool {
	return slices.ContainsFunc(w.of(name), func(l breaker.Ledger) bool { return l.Epoch == epoch })
}

// watch starts a watcher, and waits until it is told of what happens.
func (s *suite) watch(st breaker.Store) *watcher {
	s.Helper()
	w := &watcher{}
	stop := st.Watch(w)
	s.Cleanup(stop)
	s.ready(w)
	return w
}

// ready waits until a watcher is told of what happens: some need a connection first.
func (s *suite) ready(w *watcher) {
	s.Helper()
	name := s.name()
	epoch := uint64(0)
	s.eventually("a first Changed", func() bool {
		if epoch == 0 || !w.has(name, epoch) {
			epoch = s.move(breaker.StoreMove{Name: name, From: epoch, To: breaker.Closed}).Epoch
			for range 20 {
				if w.has(name, epoch) {
					break
				}
				time.Sleep(time.Millisecond)
			}
		}
		return w.has(name, epoch)
	})
}

// tells does something, and waits until every watcher has been told of a ledger that fits.
func (s *suite) tells(what, name string, fits func(breaker.Ledger) bool, watchers []*watcher, do func()) {
	s.Helper()
	before := make([]int, len(watchers))
	for i, w := range watchers {
		before[i] = len(w.of(name))
	}
	do()
	for i, w := range watchers {
		s.eventually(what, func() bool { return slices.ContainsFunc(w.of(name)[before[i]:], fits) })
	}
}

var watchCases = []testcase{
	{"watchers learn of every change", "a circuit rejects by what it has been told; the own process is told too, since its circuits are many",
		func(s *suite) {
			watchers := []*watcher{s.watch(s.a), s.watch(s.b), s.watch(s.a)}
			name := s.name()
			var l breaker.Ledger
			as := func(want func() breaker.Ledger) func(breaker.Ledger) bool {
				return func(got breaker.Ledger) bool { return standing(got) == standing(want()) }
			}
			now := as(func() breaker.Ledger { return l })
			s.tells("an epoch begun by a report", name, now, watchers, func() { l = s.report(name, 0, successes(1)) })
			s.tells("a run that begins", name, now, watchers, func() { l = s.report(name, l.Epoch, outcomes("SF")) })
			s.tells("a run that begins after another", name, now, watchers, func() { l = s.report(name, l.Epoch, outcomes("FSFF")) })
			s.report(name, l.Epoch, successes(1))
			s.tells("a run that begins anew", name, now, watchers, func() { l = s.report(name, l.Epoch, failures(3)) })
			s.tells("a move", name, now, watchers, func() {
				l = s.move(breaker.StoreMove{Name: name, From: l.Epoch, To: breaker.Open, Openings: 1})
			})
			s.tells("an open period that has ended", name, now, watchers, func() {
				l = s.acquire(breaker.StoreAcquire{Name: name, Epoch: l.Epoch, Tokens: []string{"a", "b", "c"}, Lease: long, Limit: 3})
			})
			s.tells("a slot handed back", name, now, watchers, func() { l = s.settle(verdict(name, l.Epoch, "a", breaker.Ignored)) })
			s.tells("a slot handed back with a success", name, now, watchers, func() { l = s.settle(verdict(name, l.Epoch, "b", breaker.Success)) })
			s.tells("a verdict", name, now, watchers, func() { l = s.settle(verdict(name, l.Epoch, "c", breaker.Success)) })
		}},
	{"watchers are told the time that remains", "a circuit that learns of an opening from others has to know when it may probe",
		func(s *suite) {
			w := s.watch(s.b)
			name := s.name()
			epoch := s.opened(name, long)
			s.eventually("Changed", func() bool { return w.has(name, epoch) })
			l := w.of(name)[0]
			s.check(l.Remaining > long-time.Minute && l.Remaining <= long, "remaining %v of %v", l.Remaining, long)
			s.check(l.Clock > 0 || s.f.Advance != nil, "the Store's clock is missing: %+v", l)
		}},
	{"no call after stop", "whoever has stopped may be gone",
		func(s *suite) {
			name := s.name()
			epoch := s.closed(name)
			done := make(chan struct{})
			moved := make(chan error, 1)
			var moves atomic.Int64
			go func() { // moves all the while
				var err error
				for e := epoch; err == nil; {
					select {
					case <-done:
						moved <- nil
						return
					default:
					}
					var l breaker.Ledger
					l, err = s.b.Move(s.ctx, breaker.StoreMove{Name: name, Shape: plain, From: e, To: breaker.Closed})
					e = l.Epoch
					moves.Add(1)
				}
				moved <- err
			}()
			for i := range 20 {
				w := &watcher{}
				stop := s.a.Watch(w)
				if i > 15 {
					s.eventually("a call", func() bool { return len(w.of(name)) > 0 })
				}
				stop()
				n, then := len(w.of(name)), moves.Load()+20
				s.eventually("moves", func() bool { return moves.Load() >= then || len(moved) > 0 })
				equal(s, "calls after stop", len(w.of(name)), n)
				stop() // again: nothing
			}
			close(done)
			s.check(<-moved == nil, "Move failed")
		}},
	{"one watcher's stop is its own", "circuits come and go on one Store",
		func(s *suite) {
			stays := s.watch(s.a)
			gone := &watcher{}
			stop := s.a.Watch(gone)
			s.ready(gone)
			stop()
			name := s.name()
			epoch := s.opened(name, long)
			s.eventually("Changed", func() bool { return stays.has(name, epoch) })
			equal(s, "calls of the other", len(gone.of(name)), 0)
		}},
	{"a loss is told", "after a time during which something may have been missed circuits have to read for themselves; without news they have to be told nothing",
		func(s *suite) {
			w := s.watch(s.a)
			name := s.name()
			var l breaker.Ledger
			for range 50 {
				l = s.move(breaker.StoreMove{Name: name, From: l.Epoch, To: breaker.Closed})
			}
			s.eventually("the last change, or Resync", func() bool {
				w.mu.Lock()
				resyncs := w.resyncs
				w.mu.Unlock()
				return w.has(name, l.Epoch) || resyncs > 1
			})
		}},
}

// everyOperation calls each operation once and returns its errors by name.
func everyOperation(ctx context.Context, st breaker.Store, name string) map[string]error {
	errs := make(map[string]error)
	replies := st.Report(ctx, []breaker.StoreReport{{Name: name, Shape: plain, Batch: failures(1)}})
	errs["Report"] = errReplies
	if len(replies) == 1 {
		errs["Report"] = replies[0].Err
	}
	replies = st.Read(ctx, []string{name})
	errs["Read"] = errReplies
	if len(replies) == 1 {
		errs["Read"] = replies[0].Err
	}
	_, errs["Move"] = st.Move(ctx, breaker.StoreMove{Name: name, Shape: plain, To: breaker.Open})
	_, errs["Acquire"] = st.Acquire(ctx, breaker.StoreAcquire{Name: name, Shape: plain, Tokens: []string{"t"}, Lease: long, Limit: 1})
	_, errs["Settle"] = st.Settle(ctx, breaker.StoreVerdict{Name: name, Shape: plain, Epoch: 1, Token: "t"})
	return errs
}

var errReplies = errors.New("storetest: not one reply per question")

var edgeCases = []testcase{
	{"a closed Store says so", "circuits on it go on by themselves; they must learn that it is for good",
		func(s *suite) {
			st := s.open()
			w := &watcher{}
			stop := st.Watch(w)
			for range 2 {
				s.check(st.Close() == nil, "Close failed")
			}
			for op, err := range everyOperation(s.ctx, st, s.name()) {
				s.check(errors.Is(err, breaker.ErrStoreClosed), "%s on a closed Store: %v", op, err)
			}
			stop()
			st.Watch(w)()
			equal(s, "calls of a watcher", len(w.of("name-1")), 0)
		}},
	{"Close while in use", "processes shut down under load",
		func(s *suite) {
			st := s.open()
			name := s.name()
			s.together(16, func(i int, _ breaker.Store) (int, error) {
				if i == 8 {
					return 0, st.Close()
				}
				for range 50 {
					st.Watch(&watcher{})()
					for _, err := range everyOperation(s.ctx, st, name) {
						if errors.Is(err, errReplies) {
							return 0, err
						}
					}
				}
				return 0, nil
			})
		}},
	{"a context that has ended", "a caller that gives up is not held, and what it asked for is not done",
		func(s *suite) {
			ctx, cancel := context.WithCancel(s.ctx)
			cancel()
			name := s.name()
			for op, err := range everyOperation(ctx, s.a, name) {
				s.check(errors.Is(err, context.Canceled), "%s: %v", op, err)
			}
			equal(s, "epoch", s.read(name).Epoch, 0)
		}},
	{"negative times are 0", "clocks go back; a batch from the future is one of now",
		func(s *suite) {
			name := s.name()
			l := s.reportAs(name, "n", first, failuresAt(-long, math.MinInt64, -1))
			equal(s, "failures", l.Counts.Failures, 3)
			equal(s, "recent", l.Recent, 3)
			l = s.move(breaker.StoreMove{Name: name, From: l.Epoch, To: breaker.Open, For: -long})
			equal(s, "remaining", l.Remaining, 0)
			l = s.acquire(breaker.StoreAcquire{Name: name, Epoch: l.Epoch, Tokens: []string{"t"}, Lease: long, Limit: 1})
			v := verdict(name, l.Epoch, "t", breaker.Failure)
			v.For = math.MinInt64
			equal(s, "remaining", s.settle(v).Remaining, 0)
			shape := breaker.StoreShape{Window: -1, Failures: -1, Reporters: -1, Config: "negative"}
			l = s.reportAs(s.name(), "n", shape, failuresAt(long))
			equal(s, "failures without a window", l.Counts.Failures, 1)
			equal(s, "failures kept", l.Recent, 0)
		}},
	{"endless times", "a number that is too large must not come out small",
		func(s *suite) {
			name := s.name()
			l := s.move(breaker.StoreMove{Name: name, To: breaker.Open, For: math.MaxInt64})
			s.check(l.Remaining > 100*long, "remaining %v", l.Remaining)
			equal(s, "granted", s.acquire(breaker.StoreAcquire{Name: name, Epoch: l.Epoch, Tokens: []string{"t"}, Lease: long, Limit: 1}).Granted, 0)
			l = s.move(breaker.StoreMove{Name: name, From: l.Epoch, To: breaker.HalfOpen})
			l = s.acquire(breaker.StoreAcquire{Name: name, Epoch: l.Epoch, Tokens: []string{"t"}, Lease: math.MaxInt64, Limit: math.MaxInt})
			equal(s, "slots", l.Slots, 1)
			l = s.reportAs(s.name(), "n", breaker.StoreShape{Window: math.MaxInt64, Failures: math.MaxInt, Reporters: math.MaxInt}, failuresAt(math.MaxInt64-1, 0))
			s.check(l.Applied, "not applied")
		}},
	{"endless counts", "a count stops at 2^53: it must not wrap, nor keep the ledger from being used",
		func(s *suite) {
			name := s.name()
			many := breaker.StoreBatch{Slices: []breaker.StoreSlice{{Successes: math.MaxUint64, Failures: math.MaxUint64, Ignored: math.MaxUint64, Slow: math.MaxUint64},
				{Failures: math.MaxUint64}}, Head: math.MaxUint64, Tail: math.MaxUint64, Longest: math.MaxUint64, Trailing: math.MaxUint64}
			for _, shape := range []breaker.StoreShape{first, plain} {
				name = s.name()
				for range 3 {
					l := s.reportAs(name, "n", shape, many)
					for _, n := range []uint64{l.Counts.Successes, l.Counts.Failures, l.Counts.Ignored, l.Counts.Slow, l.Counts.ConsecutiveFailures, l.Counts.ConsecutiveSuccesses, l.Peak} {
						s.check(n >= 1<<53-1 && n <= 1<<53, "a count of %d: %+v", n, l)
					}
				}
			}
			l := s.reportAs(name, "n", plain, outcomes("SSF"))
			equal(s, "run", l.Counts.ConsecutiveFailures, 1)
			l = s.move(breaker.StoreMove{Name: name, From: l.Epoch, Run: l.Run, To: breaker.Closed})
			equal(s, "counts of a new epoch", l.Counts, breaker.Counts{})
		}},
	{"a batch that contradicts itself", "a run is no longer than the failures that are in it",
		func(s *suite) {
			name := s.name()
			epoch := s.closed(name)
			b := failures(2)
			b.Head, b.Tail, b.Longest, b.Trailing = 0, 0, 0, 9
			l := s.report(name, epoch, b)
			equal(s, "run without a success", l.Counts.ConsecutiveFailures, 2)
			equal(s, "peak", l.Peak, 2)
			equal(s, "successes in a row", l.Counts.ConsecutiveSuccesses, 0)
			b = outcomes("FS")
			b.Head, b.Tail, b.Longest, b.Trailing = 7, 8, 9, 5
			b.FailureAges = make([]time.Duration, 4)
			l = s.report(name, epoch, b)
			equal(s, "run", l.Counts.ConsecutiveFailures, 1)
			equal(s, "peak", l.Peak, 3)
			equal(s, "successes in a row", l.Counts.ConsecutiveSuccesses, 1)
			equal(s, "recent", l.Recent, 3)
		}},
	{"an epoch that no Store has given", "one garbled number must not push a fleet to where no higher one is left",
		func(s *suite) {
			for _, absurd := range []uint64{1 << 53, math.MaxUint64} {
				name, empty, half := s.name(), s.name(), s.name()
				s.closed(name)
				s.probing(half, long, 2, "t")
				for _, name := range []string{name, empty, half} {
					s.unchanged(name, "operations with an absurd epoch", func() {
						equal(s, "report applied", s.report(name, absurd, failures(1)).Applied, false)
						equal(s, "move applied", s.move(breaker.StoreMove{Name: name, From: absurd, To: breaker.Open, For: long}).Applied, false)
						equal(s, "granted", s.acquire(breaker.StoreAcquire{Name: name, Epoch: absurd, Tokens: []string{"u"}, Lease: long, Limit: 2}).Granted, 0)
						equal(s, "verdict applied", s.settle(verdict(name, absurd, "t", breaker.Failure)).Applied, false)
					})
				}
			}
		}},
	{"the last epoch there is", "the numbers end below 2^53, or nearer to the clock: what would need a higher one changes nothing",
		func(s *suite) {
			name := s.name()
			const last = 1<<53 - 1
			taken := s.report(name, last, failures(1)).Applied
			s.unchanged(name, "a move", func() {
				equal(s, "applied", s.move(breaker.StoreMove{Name: name, From: last, To: breaker.Open}).Applied, false)
			})
			l := s.report(name, last, failures(1))
			equal(s, "applied again", l.Applied, taken)
			if taken {
				equal(s, "failures", l.Counts.Failures, 2)
			}
		}},
	{"states and outcomes that do not exist", "the next version may have more of them",
		func(s *suite) {
			name := s.name()
			epoch := s.closed(name)
			s.unchanged(name, "a move to an unknown state", func() {
				l, _ := s.a.Move(s.ctx, breaker.StoreMove{Name: name, Shape: plain, From: epoch, To: 77})
				equal(s, "applied", l.Applied, false)
			})
			name = s.name()
			epoch = s.probing(name, long, 1, "t")
			_, _ = s.a.Settle(s.ctx, breaker.StoreVerdict{Name: name, Shape: plain, Epoch: epoch, Token: "t", Outcome: 77, Threshold: 1})
			l := s.read(name)
			equal(s, "state", l.State, breaker.HalfOpen)
			equal(s, "progress", l.Progress, 0)
		}},
	{"optional methods", "a circuit asks for them once and relies on the answer",
		func(s *suite) {
			if t, ok := s.a.(interface{ Timeout() time.Duration }); ok {
				s.check(t.Timeout() > 0, "Timeout is %v", t.Timeout())
			}
		}},
}

var concurrencyCases = []testcase{
	{"counts add up", "reports of all processes are applied one after another: none is lost, and none is seen twice",
		func(s *suite) {
			name := s.name()
			epoch := s.closed(name)
			const each = 25
			s.together(40, func(_ int, st breaker.Store) (int, error) {
				for range each {
					r := st.Report(s.ctx, []breaker.StoreReport{{Name: name, Epoch: epoch, Shape: plain, Batch: failures(2)}})[0]
					if r.Err != nil || !r.Ledger.Applied {
						return 0, fmt.Errorf("report: %+v", r)
					}
				}
				return 0, nil
			})
			equal(s, "counts", s.read(name).Counts, breaker.Counts{Successes: 1, Failures: 40 * each * 2, ConsecutiveFailures: 40 * each * 2})
		}},
	{"mixed operations on many names", "one Store serves all circuits of a process, from all its goroutines",
		func(s *suite) {
			const goroutines, each, names = 50, 200, 50
			var mu sync.Mutex
			applied := make(map[string]map[uint64]uint64) // failures by name and epoch
			s.together(goroutines, func(i int, st breaker.Store) (int, error) {
				for n := range each {
					name := fmt.Sprintf("mixed-%d", (i*7+n)%names)
					failed, l, err := mixedOperation(s.ctx, st, name, i, n)
					if err != nil {
						return 0, err
					}
					if failed > 0 {
						mu.Lock()
						if applied[name] == nil {
							applied[name] = make(map[uint64]uint64)
						}
						applied[name][l.Epoch] += failed
						mu.Unlock()
					}
				}
				return 0, nil
			})
			for name, epochs := range applied {
				if l := s.read(name); l.State == breaker.Closed {
					equal(s, "failures of "+name, l.Counts.Failures, epochs[l.Epoch])
				}
			}
		}},
}

// mixedOperation does one of everything, and returns how many failures were counted in the ledger's epoch.
func mixedOperation(ctx context.Context, st breaker.Store, name string, i, n int) (failed uint64, l breaker.Ledger, err error) {
	read := st.Read(ctx, []string{name})[0]
	if read.Err != nil {
		return 0, l, read.Err
	}
	l = read.Ledger
	switch k := (i + n*3) % 10; {
	case k < 5:
		r := st.Report(ctx, []breaker.StoreReport{{Name: name, Node: fmt.Sprint("n", i), Epoch: l.Epoch, Shape: plain, Batch: failures(k + 1)}})[0]
		if r.Ledger.Applied {
			failed = uint64(k + 1)
		}
		return failed, r.Ledger, r.Err
	case k == 5:
		l, err = st.Move(ctx, breaker.StoreMove{Name: name, Shape: plain, From: l.Epoch, To: breaker.State(n % 3), For: time.Millisecond})
	case k < 8:
		token := fmt.Sprintf("t%dx%d", i, n)
		l, err = st.Acquire(ctx, breaker.StoreAcquire{Name: name, Shape: plain, Epoch: l.Epoch, Tokens: []string{token}, Lease: time.Minute, Limit: 2})
		if err == nil && l.Granted > 0 {
			v := verdict(name, l.Epoch, token, breaker.Outcome(n%3))
			v.Shape, v.For = plain, 0
			l, err = st.Settle(ctx, v)
		}
	}
	return 0, l, err
}
