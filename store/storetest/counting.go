package storetest

import (
	"strings"
	"time"

	"github.com/breakerkit/breaker"
)

// What a ledger counts.

var readCases = []testcase{
	{"a name that nobody has written to", "a new circuit has to find Closed, and nothing that it could mistake for news",
		func(s *suite) {
			l := s.read(s.name())
			equal(s, "ledger", standing(l), breaker.Ledger{Run: l.Run})
			equal(s, "age", l.Age, 0)
			s.check(l.Clock > 0 || s.f.Advance != nil, "the Store's clock is missing")
		}},
	{"reading writes nothing", "a process that joins, a dashboard or a poll must neither reset a fleet nor fill the Store",
		func(s *suite) {
			name, empty := s.name(), s.name()
			epoch := s.closed(name)
			s.report(name, epoch, failures(2))
			for range 3 {
				s.unchanged(name, "reading", func() {
					st := s.open()
					s.ledgers(st.Read(s.ctx, []string{name, empty}))
					for _, e := range []uint64{0, epoch, epoch + 1} {
						s.report(name, e, breaker.StoreBatch{})
						s.report(empty, e, breaker.StoreBatch{Slices: []breaker.StoreSlice{{Age: time.Second}}})
					}
				})
			}
			equal(s, "epoch of a ledger that was only read", s.read(empty).Epoch, 0)
		}},
	{"replies come in the order of the questions", "a circuit would take another one's state for its own",
		func(s *suite) {
			a, b, empty := s.name(), s.name(), s.name()
			s.closed(a)
			s.opened(b, long)
			for _, names := range [][]string{{a, b, empty}, {empty, b, a}, {b, b, a, b}, {}} {
				got := s.ledgers(s.a.Read(s.ctx, names))
				equal(s, "replies", len(got), len(names))
				for i, name := range names {
					equal(s, "reply for "+name, standing(got[i]), standing(s.read(name)))
				}
			}
			equal(s, "replies to no reports", len(s.a.Report(s.ctx, nil)), 0)
		}},
	{"many in one call", "batches of many circuits travel together; each is applied to its own ledger, one after another",
		func(s *suite) {
			const n = 200
			names := make([]string, n)
			reports := make([]breaker.StoreReport, 0, 2*n)
			for i := range names {
				names[i] = s.name()
				reports = append(reports, breaker.StoreReport{Name: names[i], Shape: plain, Batch: failures(i%5 + 1)})
			}
			for i := range names {
				reports = append(reports, breaker.StoreReport{Name: names[i], Shape: plain, Batch: failures(1)})
			}
			for i, l := range s.reports(s.a, reports...) {
				s.check(l.Applied, "report %d was not applied", i)
				equal(s, "failures", l.Counts.Failures, uint64(i%n%5+1+i/n))
			}
			for i, l := range s.ledgers(s.b.Read(s.ctx, names)) {
				equal(s, "failures read", l.Counts.Failures, uint64(i%5+2))
			}
		}},
}

var reportCases = []testcase{
	{"a report without an epoch begins an empty ledger in a new one", "that number must be higher than any that a lost ledger had, and the clock is all there is to go by",
		func(s *suite) {
			name := s.name()
			before := s.read(name).Clock
			l := s.report(name, 0, failures(1))
			s.check(l.Applied, "not applied")
			s.check(l.Epoch >= max(before, 1) && l.Epoch <= max(l.Clock, 1), "epoch %d, clock %d to %d", l.Epoch, before, l.Clock)
			equal(s, "state", l.State, breaker.Closed)
			equal(s, "read", standing(s.read(name)), standing(l))
		}},
	{"a report with an epoch begins an empty ledger in that one", "circuits that are Closed in an epoch go on when the Store has lost it, without anything that looks like news",
		func(s *suite) {
			const hour = 60 * 60 * 1000
			for _, epoch := range []uint64{1, 7, s.read(s.name()).Clock + hour} {
				name := s.name()
				l := s.report(name, epoch, failures(2))
				s.check(l.Applied, "not applied")
				equal(s, "epoch", l.Epoch, epoch)
				equal(s, "failures", l.Counts.Failures, 2)
			}
		}},
	{"a report counts in its own epoch only", "results of calls that were admitted before the circuit moved describe the past",
		func(s *suite) {
			name := s.name()
			epoch := s.closed(name)
			for _, other := range []uint64{1, epoch - 1, epoch + 1} {
				s.unchanged(name, "a report of another epoch", func() {
					equal(s, "applied", s.report(name, other, failures(3)).Applied, false)
				})
			}
			l := s.report(name, epoch, failures(3))
			equal(s, "applied", l.Applied, true)
			equal(s, "failures", l.Counts.Failures, 3)
			l = s.report(name, 0, failures(1))
			equal(s, "applied without an epoch", l.Applied, true)
			equal(s, "failures", l.Counts.Failures, 4)

			reset := s.move(breaker.StoreMove{Name: name, From: epoch, To: breaker.Closed})
			s.unchanged(name, "a late report", func() { s.report(name, epoch, outcomes("SFFF")) })
			equal(s, "failures of the new epoch", reset.Counts.Failures, 0)
		}},
	{"nothing is counted but in Closed", "failures that land while Open describe the outage already known, and probes have a rule of their own",
		func(s *suite) {
			open, half := s.name(), s.name()
			epochs := map[string]uint64{open: s.opened(open, long), half: s.probing(half, long, 1, "t")}
			for name, epoch := range epochs {
				for _, e := range []uint64{0, 1, epoch, epoch + 1} {
					s.unchanged(name, "a report while not Closed", func() {
						equal(s, "applied", s.report(name, e, outcomes("FSFF")).Applied, false)
					})
				}
			}
		}},
	{"every outcome is counted once", "a rate is only as good as its sums",
		func(s *suite) {
			name := s.name()
			epoch := s.closed(name)
			b := outcomes("SSFIIIF")
			b.Slices = append(b.Slices, breaker.StoreSlice{Successes: 4, Slow: 2})
			b.Tail, b.Trailing = 0, 4
			s.report(name, epoch, b)
			got := s.report(name, epoch, breaker.StoreBatch{Slices: []breaker.StoreSlice{{Ignored: 5, Slow: 1}}}).Counts
			want := breaker.Counts{Successes: 7, Failures: 2, Ignored: 8, Slow: 3, ConsecutiveSuccesses: 4}
			equal(s, "counts", got, want)
			equal(s, "counts read", s.read(name).Counts, want)
		}},
	{"a report is seen by everybody at once", "failures of all processes add up: that is what the Store is for",
		func(s *suite) {
			name := s.name()
			epoch := s.closed(name)
			for i := range 6 {
				st := []breaker.Store{s.a, s.b}[i%2]
				l := s.reports(st, breaker.StoreReport{Name: name, Node: "n", Epoch: epoch, Shape: plain, Batch: failures(1)})[0]
				equal(s, "run", l.Counts.ConsecutiveFailures, uint64(i+1))
			}
		}},
}

// runVectors are batches one after another, and what the run is after each.
var runVectors = []struct {
	batch     string
	run, peak uint64
	successes uint64 // in a row
	ended     bool   // a run has ended
	recent    uint64
	recentRun uint64
}{
	{"FFFF", 4, 4, 0, false, 5, 4},
	{"S", 0, 4, 1, true, 5, 0},
	{"FFFF", 4, 4, 0, false, 5, 4},
	{"F", 5, 5, 0, false, 5, 5},
	{"FS", 0, 6, 1, true, 5, 0},
	{"SS", 0, 0, 3, false, 5, 0},
	{"SFF", 2, 2, 0, false, 5, 2},
	{"FFSFSF", 1, 4, 0, true, 5, 1},
	{"SFFFFFFFSS", 0, 7, 2, true, 5, 0},
	{"FFF", 3, 3, 0, false, 5, 3},
	{"SFF", 2, 3, 0, true, 5, 2},
	{"I", 2, 2, 0, false, 5, 2},
	{"FIF", 4, 4, 0, false, 5, 4},
	{"FSFFFFFFFFF", 9, 9, 0, true, 5, 5},
	{"SSSSF", 1, 9, 0, true, 5, 1},
	{"SFSSFFSSS", 0, 2, 3, true, 5, 0},
}

var runCases = []testcase{
	{"the run of failures", "five failures in a row must be five in a row: in one batch or in five, and with a success between them they are not",
		func(s *suite) {
			name := s.name()
			epoch := s.closed(name)
			s.report(name, epoch, outcomes("FS"))
			run := s.read(name).Run
			for _, v := range runVectors {
				l := s.report(name, epoch, outcomes(v.batch))
				at := func(what string) string { return v.batch + ": " + what }
				if v.ended {
					run++
				}
				equal(s, at("applied"), l.Applied, true)
				equal(s, at("failures in a row"), l.Counts.ConsecutiveFailures, v.run)
				equal(s, at("peak"), l.Peak, v.peak)
				equal(s, at("successes in a row"), l.Counts.ConsecutiveSuccesses, v.successes)
				equal(s, at("number of the run"), l.Run, run)
				equal(s, at("recent failures"), l.Recent, v.recent)
				equal(s, at("recent failures of the run"), l.RecentRun, v.recentRun)
			}
		}},
	{"the longest run within a batch is seen", "a batch may hold a run that was long enough to trip and has ended: whoever reports it must learn of it",
		func(s *suite) {
			name := s.name()
			epoch := s.closed(name)
			s.report(name, epoch, failures(3))
			l := s.report(name, epoch, outcomes("FFSF"))
			equal(s, "peak", l.Peak, 5)
			equal(s, "run", l.Counts.ConsecutiveFailures, 1)
			s.unchanged(name, "a read", func() { s.report(name, epoch, breaker.StoreBatch{}) })
		}},
	{"early successes end no run", "a report of successes that was under way when a run began is about the time before: it must not stop a circuit from opening",
		func(s *suite) {
			name := s.name()
			epoch := s.closed(name)
			run := s.report(name, epoch, failures(3)).Run
			early := func(letters string) breaker.Ledger {
				b := outcomes(letters)
				b.Early = true
				return s.report(name, epoch, b)
			}
			l := early("SSS")
			equal(s, "applied", l.Applied, true)
			equal(s, "counts", l.Counts, breaker.Counts{Successes: 4, Failures: 3, ConsecutiveFailures: 3})
			equal(s, "number of the run", l.Run, run)
			equal(s, "recent of the run", l.RecentRun, 3)
			l = early("FSSFS")
			equal(s, "counts", l.Counts, breaker.Counts{Successes: 7, Failures: 5, ConsecutiveFailures: 5})
			equal(s, "peak", l.Peak, 5)
			equal(s, "number of the run", l.Run, run)
			equal(s, "recent of the run", l.RecentRun, 5)
			s.report(name, epoch, outcomes("SS"))
			equal(s, "successes in a row", early("S").Counts.ConsecutiveSuccesses, 2)
		}},
	{"successes that end no run, among others that do", "a 404 between two 503s is a success for every rate, but does not say that the dependency has recovered; in a batch it must not be taken for one that does, nor keep one from counting",
		func(s *suite) {
			name := s.name()
			epoch := s.closed(name)
			s.report(name, epoch, outcomes("FS"))
			run := s.read(name).Run
			for _, v := range []struct {
				batch     string
				run, peak uint64
				successes uint64 // in a row
				ended     bool
				recentRun uint64
			}{
				{"A", 0, 0, 1, false, 0},
				{"FAAF", 2, 2, 0, false, 2},
				{"AAA", 2, 2, 0, false, 2},
				{"FAFSFAFAF", 3, 4, 0, true, 3},
				{"ASA", 0, 3, 1, true, 0},
				{"ASAAS", 0, 0, 3, false, 0},
				{"AFASAFASAA", 0, 1, 1, true, 0},
				{"SAFA", 1, 1, 0, false, 1},
				{"AFSAFAFAASA", 0, 2, 1, true, 0},
			} {
				before := s.read(name).Counts.Successes
				l := s.report(name, epoch, outcomes(v.batch))
				at := func(what string) string { return v.batch + ": " + what }
				if v.ended {
					run++
				}
				equal(s, at("failures in a row"), l.Counts.ConsecutiveFailures, v.run)
				equal(s, at("peak"), l.Peak, v.peak)
				equal(s, at("successes in a row"), l.Counts.ConsecutiveSuccesses, v.successes)
				equal(s, at("number of the run"), l.Run, run)
				equal(s, at("recent failures of the run"), l.RecentRun, v.recentRun)
				successes := uint64(strings.Count(v.batch, "S") + strings.Count(v.batch, "A"))
				equal(s, at("successes in all"), l.Counts.Successes, before+successes)
			}
		}},
	{"a new epoch counts from 0", "failures of before must not open the circuit again right after it has closed",
		func(s *suite) {
			name := s.name()
			epoch := s.closed(name)
			s.report(name, epoch, outcomes("SFFFF"))
			l := s.move(breaker.StoreMove{Name: name, From: epoch, To: breaker.Closed})
			equal(s, "ledger", standing(l), breaker.Ledger{Epoch: l.Epoch, Run: l.Run})
			l = s.report(name, l.Epoch, failures(1))
			equal(s, "run", l.Counts.ConsecutiveFailures, 1)
			equal(s, "recent", l.Recent, 1)
		}},
}

func (s *suite) windowed(units int) breaker.StoreShape {
	return breaker.StoreShape{Window: s.units(units), Failures: 8, Reporters: 4, Config: "windowed"}
}

// reportAs reports in a shape, from a node.
func (s *suite) reportAs(name, node string, shape breaker.StoreShape, b breaker.StoreBatch) breaker.Ledger {
	s.Helper()
	return s.reports(s.b, breaker.StoreReport{Name: name, Node: node, Shape: shape, Batch: b})[0]
}

var windowCases = []testcase{
	{"a window forgets", "failures of before the window are history, and successes of before it must not water down those of now",
		func(s *suite) {
			name, shape := s.name(), s.windowed(20)
			slow := s.by(18)
			s.reportAs(name, "n", shape, outcomes("SSSIF"))
			s.wait(10)
			l := s.reportAs(name, "n", shape, outcomes("FS"))
			slow()
			equal(s, "counts", l.Counts, breaker.Counts{Successes: 4, Failures: 2, Ignored: 1, ConsecutiveSuccesses: 1})
			equal(s, "recent", l.Recent, 2)
			slow = s.by(18)
			s.wait(11)
			l = s.read(name)
			slow()
			equal(s, "counts when the first have left", l.Counts, breaker.Counts{Successes: 1, Failures: 1, ConsecutiveSuccesses: 1})
			equal(s, "recent", l.Recent, 1)
			s.wait(11)
			l = s.read(name)
			equal(s, "counts when all have left", l.Counts, breaker.Counts{ConsecutiveSuccesses: 1})
			equal(s, "recent", l.Recent, 0)
			equal(s, "reporters", l.Reporters, 0)
		}},
	{"outcomes are filed by their age", "batches come late; what is in them must leave the window when it is due, not later",
		func(s *suite) {
			name, shape := s.name(), s.windowed(40)
			b := failuresAt(s.units(30), s.units(5))
			slow := s.by(5)
			l := s.reportAs(name, "n", shape, b)
			slow()
			equal(s, "failures", l.Counts.Failures, 2)
			equal(s, "recent", l.Recent, 2)
			slow = s.by(30)
			s.wait(12)
			l = s.read(name)
			slow()
			equal(s, "failures when the older has left", l.Counts.Failures, 1)
			equal(s, "recent", l.Recent, 1)
			equal(s, "recent of the run", l.RecentRun, 1)
			equal(s, "the run goes on", l.Counts.ConsecutiveFailures, 2)
		}},
	{"what is older than the window does not count", "a process that was cut off brings back batches that nobody should act on any more",
		func(s *suite) {
			name, shape := s.name(), s.windowed(20)
			b := failuresAt(s.units(1000), s.units(25), s.units(21))
			b.Slices = append(b.Slices, breaker.StoreSlice{Age: long * 1000, Successes: 3, Slow: 1, Ignored: 2})
			l := s.reportAs(name, "n", shape, b)
			c := l.Counts
			equal(s, "sums", breaker.Counts{Successes: c.Successes, Failures: c.Failures, Ignored: c.Ignored, Slow: c.Slow}, breaker.Counts{})
			equal(s, "recent", l.Recent, 0)
			equal(s, "reporters", l.Reporters, 0)
			slow := s.by(15)
			l = s.reportAs(name, "n", shape, failures(1))
			slow()
			equal(s, "failures of now", l.Counts.Failures, 1)
			equal(s, "recent", l.Recent, 1)
		}},
	{"the times of failures are exact", "five failures within a minute are not five within 63 seconds",
		func(s *suite) {
			name, shape := s.name(), s.windowed(20)
			shape.Failures = 3
			l := s.reportAs(name, "n", shape, failuresAt(s.units(18), s.units(17), s.units(16), s.units(15)))
			s.check(l.Recent <= 3, "%d failures kept of 3", l.Recent)
			slow := s.by(4)
			s.wait(1)
			l = s.read(name)
			slow()
			s.check(l.Recent >= 1 && l.Recent <= 3, "recent %d", l.Recent)
			s.wait(5)
			equal(s, "recent when all have left", s.read(name).Recent, 0)
		}},
	{"without a window everything counts", "failures in a row may be an hour apart",
		func(s *suite) {
			name := s.name()
			shape := breaker.StoreShape{Failures: 3, Reporters: 2, Config: "whole"}
			s.reportAs(name, "n", shape, failuresAt(1000*long, long))
			s.wait(5)
			l := s.reportAs(name, "m", shape, failures(2))
			equal(s, "counts", l.Counts, breaker.Counts{Failures: 4, ConsecutiveFailures: 4})
			equal(s, "recent", l.Recent, 3)
			equal(s, "recent of the run", l.RecentRun, 3)
			equal(s, "reporters", l.Reporters, 2)
		}},
	{"who failed lately", "one bad process must not cut off a whole fleet",
		func(s *suite) {
			name, shape := s.name(), s.windowed(40)
			shape.Reporters = 3
			slow := s.by(10)
			report := func(node string, b breaker.StoreBatch) int {
				s.Helper()
				return s.reportAs(name, node, shape, b).Reporters
			}
			equal(s, "after a success", report("a", successes(1)), 0)
			equal(s, "after a's failure", report("a", failures(9)), 1)
			equal(s, "after another of a", report("a", outcomes("SF")), 1)
			equal(s, "after b's", report("b", failuresAt(s.units(30))), 2)
			equal(s, "after c's", report("c", failures(1)), 3)
			equal(s, "after more than are told apart", report("d", failures(1)), 3)
			slow()
			equal(s, "a's run has ended, its failures have not", report("a", outcomes("SS")), 3)
			slow()
			s.wait(41)
			equal(s, "after the window", s.read(name).Reporters, 0)
		}},
	{"a late batch makes no reporter older", "batches overtake one another; what counts is when a process last failed",
		func(s *suite) {
			name, shape := s.name(), s.windowed(40)
			slow := s.by(35)
			s.reportAs(name, "a", shape, failures(1))
			s.reportAs(name, "a", shape, failuresAt(s.units(30)))
			s.wait(12)
			got := s.read(name).Reporters
			slow()
			equal(s, "reporters", got, 1)
		}},
	{"a reporter leaves the window", "a process that failed a while ago is no witness of what is now",
		func(s *suite) {
			name, shape := s.name(), s.windowed(40)
			slow := s.by(9)
			s.reportAs(name, "a", shape, failuresAt(s.units(30)))
			equal(s, "reporters", s.reportAs(name, "b", shape, failures(1)).Reporters, 2)
			slow()
			slow = s.by(35)
			s.wait(11)
			got := s.read(name).Reporters
			slow()
			equal(s, "reporters when the first has left", got, 1)
		}},
}
