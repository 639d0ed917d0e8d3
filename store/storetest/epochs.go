package storetest

import (
	"fmt"
	"time"

	"github.com/breakerkit/breaker"
)

// How a ledger moves.

var moveCases = []testcase{
	{"a move begins a new epoch", "everything that is under way is told apart by it",
		func(s *suite) {
			for _, to := range []breaker.State{breaker.Closed, breaker.HalfOpen, breaker.Open} {
				for _, from := range []breaker.State{breaker.Closed, breaker.HalfOpen, breaker.Open} {
					name := s.name()
					l := s.move(breaker.StoreMove{Name: name, To: from, For: long})
					s.report(name, l.Epoch, failures(2))
					m := s.move(breaker.StoreMove{Name: name, From: l.Epoch, To: to, For: long, Openings: 3})
					what := fmt.Sprintf("%v to %v: ", from, to)
					equal(s, what+"applied", m.Applied, true)
					s.check(m.Epoch > l.Epoch, "%sepoch %d after %d", what, m.Epoch, l.Epoch)
					want := breaker.Ledger{Epoch: m.Epoch, State: to, Openings: 3, Run: m.Run}
					equal(s, what+"ledger", standing(m), want)
					equal(s, what+"read", standing(s.read(name)), want)
				}
			}
		}},
	{"only a move from the present epoch, or from one that is lost, is applied", "a decision that was made on an old state must not undo a newer one",
		func(s *suite) {
			name := s.name()
			epoch := s.closed(name)
			for _, from := range []uint64{0, 1, epoch - 1} {
				s.unchanged(name, "a stale move", func() {
					l := s.move(breaker.StoreMove{Name: name, From: from, To: breaker.Open, For: long, Openings: 9})
					equal(s, "applied", l.Applied, false)
					equal(s, "what the loser is told", standing(l), standing(s.read(name)))
				})
			}
			won := s.move(breaker.StoreMove{Name: name, From: epoch, To: breaker.Open, For: long})
			s.unchanged(name, "the same move again", func() {
				equal(s, "applied", s.move(breaker.StoreMove{Name: name, From: epoch, To: breaker.Open, For: long}).Applied, false)
			})
			ahead := won.Epoch + 1000
			l := s.move(breaker.StoreMove{Name: name, From: ahead, Run: 99, To: breaker.Closed})
			equal(s, "a move from an epoch that was lost", l.Applied, true)
			s.check(l.Epoch > ahead, "epoch %d after %d", l.Epoch, ahead)
		}},
	{"a move that rests on a run loses when the run has ended", "a success between the last failure and the move says that they were not in a row",
		func(s *suite) {
			name := s.name()
			epoch := s.closed(name)
			run := s.report(name, epoch, failures(5)).Run
			s.report(name, epoch, outcomes("SFFFFF"))
			s.unchanged(name, "a move on an ended run", func() {
				equal(s, "applied", s.move(breaker.StoreMove{Name: name, From: epoch, Run: run, To: breaker.Open, For: long}).Applied, false)
			})
			now := s.report(name, epoch, failures(1)).Run
			s.check(now > run, "run %d after %d", now, run)
			equal(s, "a move on the present run",
				s.move(breaker.StoreMove{Name: name, From: epoch, Run: now, To: breaker.Open, For: long}).Applied, true)
		}},
	{"a move that names no run rests on none", "rates and orders by hand hold whatever the run is",
		func(s *suite) {
			name := s.name()
			epoch := s.closed(name)
			s.report(name, epoch, outcomes("FSFSF"))
			equal(s, "applied", s.move(breaker.StoreMove{Name: name, From: epoch, To: breaker.Open}).Applied, true)
		}},
	{"of many moves from one epoch one wins", "fifty processes that see the fifth failure open the circuit once",
		func(s *suite) {
			name := s.name()
			epoch := s.closed(name)
			won := s.together(50, func(i int, st breaker.Store) (int, error) {
				l, err := st.Move(s.ctx, breaker.StoreMove{Name: name, Shape: plain, From: epoch, To: breaker.Open, For: long, Openings: uint32(i + 1)})
				if l.Applied {
					return i + 1, err
				}
				return 0, err
			})
			equal(s, "moves applied", count(won), 1)
			equal(s, "what the winner wanted", int(s.read(name).Openings), sum(won))
		}},
	{"an open period is measured by the Store", "clocks of processes differ; what remains is never negative, never more than was asked for, and goes down",
		func(s *suite) {
			name := s.name()
			slow := s.by(10)
			l := s.move(breaker.StoreMove{Name: name, To: breaker.Open, For: s.units(10)})
			s.check(l.Remaining > 0 && l.Remaining <= s.units(10), "remaining %v of %v", l.Remaining, s.units(10))
			s.wait(4)
			l = s.read(name)
			s.check(l.Age >= s.units(4), "age %v after %v", l.Age, s.units(4))
			slow()
			s.check(l.Remaining > 0 && l.Remaining <= s.units(6), "remaining %v after %v of %v", l.Remaining, s.units(4), s.units(10))
			s.wait(7)
			l = s.read(name)
			equal(s, "remaining at the end", l.Remaining, 0)
			equal(s, "state at the end", l.State, breaker.Open)
		}},
}

var acquireCases = []testcase{
	{"no slot before the open period has ended", "Open means that no call passes, in the whole fleet",
		func(s *suite) {
			name := s.name()
			slow := s.by(8)
			epoch := s.opened(name, s.units(8))
			a := breaker.StoreAcquire{Name: name, Epoch: epoch, Tokens: []string{"a", "b"}, Lease: long, Limit: 1, Openings: 7}
			s.unchanged(name, "asking too early", func() {
				equal(s, "granted", s.acquire(a).Granted, 0)
				s.wait(3)
				equal(s, "granted", s.acquire(a).Granted, 0)
				slow()
			})
			s.wait(6)
			l := s.acquire(a)
			equal(s, "granted when due", l.Granted, 1)
			equal(s, "an epoch has been begun", l.Applied, true)
			equal(s, "state", l.State, breaker.HalfOpen)
			s.check(l.Epoch > epoch, "epoch %d after %d", l.Epoch, epoch)
			equal(s, "slots", l.Slots, 1)
			equal(s, "openings: the series goes on", l.Openings, 1)
		}},
	{"no slot in Closed", "calls pass there without one",
		func(s *suite) {
			name := s.name()
			epoch := s.closed(name)
			for _, known := range []uint64{0, epoch - 1, epoch} {
				s.unchanged(name, "asking for a slot", func() {
					equal(s, "granted", s.acquire(breaker.StoreAcquire{Name: name, Epoch: known, Tokens: []string{"t"}, Lease: long, Limit: 1}).Granted, 0)
				})
			}
		}},
	{"slots are given up to the limit, in order", "callers of a process join one request; the first of them go first",
		func(s *suite) {
			name := s.name()
			epoch := s.probing(name, long, 3, "a", "b")
			l := s.acquire(breaker.StoreAcquire{Name: name, Epoch: epoch, Tokens: []string{"c", "d", "e"}, Lease: long, Limit: 3})
			equal(s, "granted", l.Granted, 1)
			equal(s, "an epoch has been begun", l.Applied, false)
			equal(s, "slots", l.Slots, 3)
			equal(s, "epoch", l.Epoch, epoch)
			s.check(l.RetryAfter > 0 && l.RetryAfter <= long, "retry after %v", l.RetryAfter)
			for token, holds := range map[string]bool{"d": false, "e": false, "c": true, "a": true} {
				v := breaker.StoreVerdict{Name: name, Epoch: epoch, Token: token, Outcome: breaker.Ignored}
				equal(s, token+" holds a slot", s.settle(v).Applied, holds)
			}
			l = s.acquire(breaker.StoreAcquire{Name: name, Epoch: epoch, Tokens: []string{"f", "g", "h"}, Lease: long, Limit: 3})
			equal(s, "granted after two were handed back", l.Granted, 2)
		}},
	{"asking twice takes one slot", "a request whose answer got lost is sent again",
		func(s *suite) {
			name := s.name()
			epoch := s.probing(name, long, 2, "a")
			for range 3 {
				l := s.acquire(breaker.StoreAcquire{Name: name, Epoch: epoch, Tokens: []string{"a"}, Lease: long, Limit: 2})
				equal(s, "granted", l.Granted, 1)
				equal(s, "slots", l.Slots, 1)
				equal(s, "epoch", l.Epoch, epoch)
			}
			full := s.acquire(breaker.StoreAcquire{Name: name, Epoch: epoch, Tokens: []string{"b", "a", "c"}, Lease: long, Limit: 1})
			equal(s, "granted at the limit", full.Granted, 1)
			equal(s, "slots at the limit", full.Slots, 1)
			more := s.acquire(breaker.StoreAcquire{Name: name, Epoch: epoch, Tokens: []string{"a", "b"}, Lease: long, Limit: 2})
			equal(s, "granted, the one it holds included", more.Granted, 2)
			equal(s, "slots", more.Slots, 2)
		}},
	{"asking again renews no lease", "a process that keeps asking would keep a dead probe's slot from everybody",
		func(s *suite) {
			name := s.name()
			slow := s.by(6)
			epoch := s.probing(name, s.units(6), 1, "a")
			s.wait(4)
			again := s.acquire(breaker.StoreAcquire{Name: name, Epoch: epoch, Tokens: []string{"a"}, Lease: long, Limit: 1})
			slow()
			equal(s, "granted", again.Granted, 1)
			s.wait(3)
			l := s.acquire(breaker.StoreAcquire{Name: name, Epoch: epoch, Tokens: []string{"b"}, Lease: long, Limit: 1})
			equal(s, "granted to another", l.Granted, 1)
		}},
	{"a refusal changes nothing", "many that are refused must not keep alive what would otherwise end",
		func(s *suite) {
			name := s.name()
			slow := s.by(6)
			epoch := s.probing(name, s.units(6), 1, "a")
			refuse := func() {
				s.Helper()
				l := s.acquire(breaker.StoreAcquire{Name: name, Epoch: epoch, Tokens: []string{"x", "y"}, Lease: long, Limit: 1, Openings: 9})
				slow()
				equal(s, "granted", l.Granted, 0)
				s.check(l.RetryAfter > 0 && l.RetryAfter <= s.units(6), "retry after %v", l.RetryAfter)
			}
			s.unchanged(name, "refusals", func() { refuse(); s.wait(4); refuse(); slow() })
			s.wait(3)
			equal(s, "slots after the lease", s.read(name).Slots, 0)
			for _, token := range []string{"x", "y"} {
				v := breaker.StoreVerdict{Name: name, Epoch: epoch, Token: token, Outcome: breaker.Failure, For: long}
				equal(s, "a refused token is known", s.settle(v).Applied, false)
			}
		}},
	{"asking for nothing changes nothing", "an Open circuit becomes HalfOpen with a probe, not with a question",
		func(s *suite) {
			due, empty := s.name(), s.name()
			epoch := s.opened(due, 0)
			for _, a := range []breaker.StoreAcquire{
				{Tokens: nil, Lease: long, Limit: 1},
				{Tokens: []string{"t"}, Lease: long, Limit: 0},
				{Tokens: []string{"t"}, Lease: long, Limit: -1},
				{Tokens: []string{"t"}, Lease: 0, Limit: 1},
				{Tokens: []string{"t"}, Lease: -long, Limit: 1},
			} {
				for name, known := range map[string]uint64{due: epoch, empty: 0} {
					a.Name, a.Epoch = name, known
					s.unchanged(name, "asking for nothing", func() { equal(s, "granted", s.acquire(a).Granted, 0) })
					a.Epoch += 1000
					s.unchanged(name, "asking for nothing, from ahead", func() { equal(s, "granted", s.acquire(a).Granted, 0) })
				}
			}
		}},
	{"a slot falls free when its lease ends", "a probe that was killed must not lock the circuit for good",
		func(s *suite) {
			name := s.name()
			slow := s.by(5)
			epoch := s.probing(name, s.units(5), 2, "a", "b")
			l := s.acquire(breaker.StoreAcquire{Name: name, Epoch: epoch, Tokens: []string{"c"}, Lease: long, Limit: 2})
			slow()
			equal(s, "granted before", l.Granted, 0)
			s.check(l.RetryAfter > 0 && l.RetryAfter <= s.units(5), "retry after %v", l.RetryAfter)
			s.pass(l.RetryAfter + s.unit/10)
			l = s.acquire(breaker.StoreAcquire{Name: name, Epoch: epoch, Tokens: []string{"c", "d", "e"}, Lease: long, Limit: 2})
			equal(s, "granted after", l.Granted, 2)
			equal(s, "slots", l.Slots, 2)
			equal(s, "epoch", l.Epoch, epoch)
		}},
	{"a late copy of a request takes no slot", "commands get duplicated and delayed on the way; nobody is behind the copy to hand the slot back",
		func(s *suite) {
			name := s.name()
			epoch := s.probing(name, s.unit, 1, "a")
			s.wait(2)
			s.unchanged(name, "a late copy", func() {
				l := s.acquire(breaker.StoreAcquire{Name: name, Epoch: epoch, Tokens: []string{"a"}, Lease: long, Limit: 1})
				equal(s, "granted", l.Granted, 0)
				equal(s, "slots", l.Slots, 0)
			})
		}},
	{"a HalfOpen ledger gives slots whatever epoch is known", "a process that has missed the last moves may probe; the reply tells it where it is",
		func(s *suite) {
			name := s.name()
			epoch := s.probing(name, long, 3, "a")
			for i, known := range []uint64{0, epoch - 1} {
				l := s.acquire(breaker.StoreAcquire{Name: name, Epoch: known, Tokens: []string{fmt.Sprint("t", i)}, Lease: long, Limit: 3})
				equal(s, "granted", l.Granted, 1)
				equal(s, "epoch", l.Epoch, epoch)
			}
		}},
	{"the limit holds under concurrency", "one probe in a fleet is one: a recovering service is not to be trampled down",
		func(s *suite) {
			for _, limit := range []int{1, 3} {
				name := s.name()
				epoch := s.opened(name, 0)
				granted := s.together(64, func(i int, st breaker.Store) (int, error) {
					l, err := st.Acquire(s.ctx, breaker.StoreAcquire{Name: name, Shape: plain, Epoch: epoch,
						Tokens: []string{fmt.Sprintf("t%d", i)}, Lease: long, Limit: limit})
					return l.Granted, err
				})
				equal(s, "granted in all", sum(granted), limit)
				equal(s, "slots", s.read(name).Slots, limit)
			}
		}},
}

func verdict(name string, epoch uint64, token string, o breaker.Outcome) breaker.StoreVerdict {
	return breaker.StoreVerdict{Name: name, Epoch: epoch, Token: token, Outcome: o, Threshold: 2, For: long, Openings: 2}
}

var settleCases = []testcase{
	{"successes in a row close", "and what is counted afterwards begins with nothing",
		func(s *suite) {
			name := s.name()
			epoch := s.probing(name, long, 3, "a", "b", "c")
			l := s.settle(verdict(name, epoch, "a", breaker.Success))
			equal(s, "ledger", still(l), breaker.Ledger{Epoch: epoch, State: breaker.HalfOpen, Openings: 1, Progress: 1, Slots: 2, Run: l.Run, Applied: true})
			l = s.settle(verdict(name, epoch, "b", breaker.Success))
			s.check(l.Epoch > epoch, "epoch %d after %d", l.Epoch, epoch)
			want := breaker.Ledger{Epoch: l.Epoch, State: breaker.Closed, Openings: 1, Run: l.Run}
			equal(s, "ledger", standing(l), want)
			equal(s, "applied", l.Applied, true)
			s.unchanged(name, "the verdict of a probe that is left", func() {
				equal(s, "applied", s.settle(verdict(name, epoch, "c", breaker.Failure)).Applied, false)
				equal(s, "applied", s.settle(verdict(name, l.Epoch, "c", breaker.Failure)).Applied, false)
			})
		}},
	{"a failure opens at once", "whatever has succeeded before it, for a whole new period",
		func(s *suite) {
			name := s.name()
			epoch := s.probing(name, long, 3, "a", "b", "c")
			s.settle(verdict(name, epoch, "a", breaker.Success))
			l := s.settle(verdict(name, epoch, "b", breaker.Failure))
			s.check(l.Epoch > epoch, "epoch %d after %d", l.Epoch, epoch)
			equal(s, "ledger", standing(l), breaker.Ledger{Epoch: l.Epoch, State: breaker.Open, Openings: 2, Run: l.Run})
			s.check(l.Remaining > long-patience && l.Remaining <= long, "remaining %v of %v", l.Remaining, long)
			s.unchanged(name, "the success of a probe that is left", func() {
				equal(s, "applied", s.settle(verdict(name, epoch, "c", breaker.Success)).Applied, false)
			})
		}},
	{"successes are counted from 0 in every HalfOpen", "good probes of the last time do not vouch for this one",
		func(s *suite) {
			name := s.name()
			epoch := s.probing(name, long, 2, "a", "b")
			s.settle(verdict(name, epoch, "a", breaker.Success))
			v := verdict(name, epoch, "b", breaker.Failure)
			v.For = 0
			l := s.settle(v)
			l = s.acquire(breaker.StoreAcquire{Name: name, Epoch: l.Epoch, Tokens: []string{"c"}, Lease: long, Limit: 1})
			equal(s, "progress", l.Progress, 0)
			l = s.settle(verdict(name, l.Epoch, "c", breaker.Success))
			equal(s, "state", l.State, breaker.HalfOpen)
			equal(s, "progress", l.Progress, 1)
		}},
	{"ignored hands the slot back", "an outcome that says nothing decides nothing, and must not keep others from probing",
		func(s *suite) {
			name := s.name()
			epoch := s.probing(name, long, 2, "a", "b")
			s.settle(verdict(name, epoch, "a", breaker.Success))
			l := s.settle(verdict(name, epoch, "b", breaker.Ignored))
			equal(s, "ledger", still(l), breaker.Ledger{Epoch: epoch, State: breaker.HalfOpen, Openings: 1, Progress: 1, Run: l.Run, Applied: true})
			got := s.acquire(breaker.StoreAcquire{Name: name, Epoch: epoch, Tokens: []string{"c", "d"}, Lease: long, Limit: 2})
			equal(s, "granted", got.Granted, 2)
		}},
	{"a threshold of 0 or 1 closes with the first", "one good probe is the least there can be; none would close without any",
		func(s *suite) {
			for _, threshold := range []uint32{0, 1} {
				name := s.name()
				v := verdict(name, s.probing(name, long, 1, "a"), "a", breaker.Success)
				v.Threshold = threshold
				equal(s, "state", s.settle(v).State, breaker.Closed)
			}
		}},
	{"every probe counts once", "a verdict that is sent twice must not close alone what takes two",
		func(s *suite) {
			name := s.name()
			epoch := s.probing(name, long, 2, "a", "b")
			for _, o := range []breaker.Outcome{breaker.Success, breaker.Ignored} {
				token := map[breaker.Outcome]string{breaker.Success: "a", breaker.Ignored: "b"}[o]
				equal(s, "applied", s.settle(verdict(name, epoch, token, o)).Applied, true)
				for _, again := range []breaker.Outcome{breaker.Success, breaker.Failure, breaker.Ignored} {
					s.unchanged(name, "a second verdict", func() {
						equal(s, "applied", s.settle(verdict(name, epoch, token, again)).Applied, false)
					})
				}
			}
		}},
	{"a verdict needs its epoch and its token", "a probe of before must not decide about the circuit of now",
		func(s *suite) {
			name := s.name()
			old := s.probing(name, long, 1, "t")
			v := verdict(name, old, "t", breaker.Failure)
			v.For = 0
			l := s.settle(v)
			epoch := s.acquire(breaker.StoreAcquire{Name: name, Epoch: l.Epoch, Tokens: []string{"t"}, Lease: long, Limit: 1}).Epoch
			for _, o := range []breaker.Outcome{breaker.Success, breaker.Failure, breaker.Ignored} {
				for _, v := range []breaker.StoreVerdict{
					verdict(name, old, "t", o), verdict(name, epoch-1, "t", o), verdict(name, epoch+1, "t", o), verdict(name, 0, "t", o),
					verdict(name, epoch, "u", o), verdict(name, epoch, "", o), verdict(name, epoch, "T", o),
				} {
					s.unchanged(name, "a stray verdict", func() {
						l := s.settle(v)
						equal(s, "applied", l.Applied, false)
						equal(s, "what the sender is told", standing(l), standing(s.read(name)))
					})
				}
			}
			for _, other := range []string{s.name(), s.name()} {
				if other == "name-3" {
					s.closed(other)
				}
				s.unchanged(other, "a verdict in another state", func() {
					equal(s, "applied", s.settle(verdict(other, s.read(other).Epoch, "t", breaker.Failure)).Applied, false)
				})
			}
		}},
	{"a late success counts once", "a probe that comes back after its lease says that the dependency answers, or slow services would never close; its slot is another's by then",
		func(s *suite) {
			name := s.name()
			epoch := s.probing(name, s.units(2), 4, "a", "b", "c", "d")
			s.wait(3)
			equal(s, "slots", s.read(name).Slots, 0)
			s.unchanged(name, "a late nothing", func() { s.settle(verdict(name, epoch, "d", breaker.Ignored)) })
			l := s.acquire(breaker.StoreAcquire{Name: name, Epoch: epoch, Tokens: []string{"x"}, Lease: long, Limit: 1})
			equal(s, "granted", l.Granted, 1)
			l = s.settle(verdict(name, epoch, "b", breaker.Success))
			equal(s, "applied", l.Applied, true)
			equal(s, "progress", l.Progress, 1)
			equal(s, "slots: the other's is its own", l.Slots, 1)
			s.unchanged(name, "the same again", func() {
				equal(s, "applied", s.settle(verdict(name, epoch, "b", breaker.Success)).Applied, false)
			})
			equal(s, "state after the second", s.settle(verdict(name, epoch, "c", breaker.Success)).State, breaker.Closed)
		}},
	{"a late failure opens", "a dependency that hangs for longer than the lease and then fails would otherwise keep the circuits half-open for ever, with one caller after the other hanging in it",
		func(s *suite) {
			name := s.name()
			epoch := s.probing(name, s.units(2), 4, "a", "b", "c")
			equal(s, "progress", s.settle(verdict(name, epoch, "a", breaker.Success)).Progress, 1)
			s.wait(3)
			l := s.acquire(breaker.StoreAcquire{Name: name, Epoch: epoch, Tokens: []string{"x"}, Lease: long, Limit: 1})
			equal(s, "granted", l.Granted, 1)
			l = s.settle(verdict(name, epoch, "b", breaker.Failure))
			equal(s, "applied", l.Applied, true)
			s.check(l.Epoch > epoch, "epoch %d after %d", l.Epoch, epoch)
			equal(s, "ledger", standing(l), breaker.Ledger{Epoch: l.Epoch, State: breaker.Open, Openings: 2, Run: l.Run})
			s.check(l.Remaining > long-patience && l.Remaining <= long, "remaining %v of %v", l.Remaining, long)
			for _, token := range []string{"a", "b", "c", "x"} {
				for _, o := range []breaker.Outcome{breaker.Success, breaker.Failure} {
					s.unchanged(name, "a verdict of before", func() {
						equal(s, "applied", s.settle(verdict(name, epoch, token, o)).Applied, false)
					})
				}
			}
		}},
	{"a late failure is void once a probe admitted later has succeeded", "that the dependency answers now is newer than that it did not when the late one called; one slow caller of before must not open a circuit that recovers",
		func(s *suite) {
			name := s.name()
			epoch := s.probing(name, s.units(2), 4, "a", "b", "c")
			s.wait(3)
			s.acquire(breaker.StoreAcquire{Name: name, Epoch: epoch, Tokens: []string{"x", "y"}, Lease: s.units(2), Limit: 4})
			v := verdict(name, epoch, "x", breaker.Success)
			v.Threshold = 9
			equal(s, "progress", s.settle(v).Progress, 1)
			v.Token = "a"
			equal(s, "progress with the late success of an earlier one", s.settle(v).Progress, 2)
			for _, token := range []string{"b", "c"} {
				s.unchanged(name, "a late failure", func() {
					equal(s, "applied", s.settle(verdict(name, epoch, token, breaker.Failure)).Applied, true)
				})
				s.unchanged(name, "the same again", func() {
					equal(s, "applied", s.settle(verdict(name, epoch, token, breaker.Failure)).Applied, false)
				})
			}
			s.wait(3)
			equal(s, "state after the late failure of the last that was admitted", s.settle(verdict(name, epoch, "y", breaker.Failure)).State, breaker.Open)
		}},
	{"which probe was admitted later is told by the order of the slots", "leases differ and may end in another order; within one request the order is that of the tokens, and who asks again for a slot that he holds stays where he is",
		func(s *suite) {
			for failing, opens := range map[string]bool{"a": false, "b": false, "c": true} {
				name := s.name()
				epoch := s.probing(name, s.units(3), 3, "a", "b")
				s.acquire(breaker.StoreAcquire{Name: name, Epoch: epoch, Tokens: []string{"c"}, Lease: s.unit, Limit: 3})
				s.acquire(breaker.StoreAcquire{Name: name, Epoch: epoch, Tokens: []string{"a", "b"}, Lease: long, Limit: 3})
				s.wait(4)
				succeeding := map[string]string{"a": "b", "b": "c", "c": "b"}[failing]
				equal(s, "progress", s.settle(verdict(name, epoch, succeeding, breaker.Success)).Progress, 1)
				l := s.settle(verdict(name, epoch, failing, breaker.Failure))
				equal(s, failing+" fails late after "+succeeding+" has succeeded: open", l.State == breaker.Open, opens)
			}
		}},
	{"a failure within its lease opens whatever has succeeded", "a probe that is not late has called as recently as may be",
		func(s *suite) {
			name := s.name()
			epoch := s.probing(name, long, 2, "a", "b")
			equal(s, "progress", s.settle(verdict(name, epoch, "b", breaker.Success)).Progress, 1)
			equal(s, "state", s.settle(verdict(name, epoch, "a", breaker.Failure)).State, breaker.Open)
		}},
	{"a success of before makes no late failure void", "only what this half-open time has shown counts in it",
		func(s *suite) {
			name := s.name()
			epoch := s.probing(name, long, 3, "a", "b", "c")
			equal(s, "progress", s.settle(verdict(name, epoch, "b", breaker.Success)).Progress, 1)
			v := verdict(name, epoch, "c", breaker.Failure)
			v.For = 0
			l := s.settle(v)
			l = s.acquire(breaker.StoreAcquire{Name: name, Epoch: l.Epoch, Tokens: []string{"d"}, Lease: s.unit, Limit: 1})
			equal(s, "granted", l.Granted, 1)
			s.wait(2)
			equal(s, "state", s.settle(verdict(name, l.Epoch, "d", breaker.Failure)).State, breaker.Open)
		}},
	{"of many verdicts one decides", "a success must not slip in between a failure and what follows from it",
		func(s *suite) {
			name := s.name()
			tokens := make([]string, 40)
			for i := range tokens {
				tokens[i] = fmt.Sprint("t", i)
			}
			epoch := s.probing(name, long, len(tokens), tokens...)
			ended := s.together(len(tokens), func(i int, st breaker.Store) (int, error) {
				v := verdict(name, epoch, tokens[i], breaker.Success)
				v.Shape = plain
				v.Threshold = uint32(len(tokens))
				if i == 20 {
					v.Outcome = breaker.Failure
				}
				l, err := st.Settle(s.ctx, v)
				if l.Applied && l.State != breaker.HalfOpen {
					return 1, err
				}
				return 0, err
			})
			equal(s, "verdicts that ended the state", sum(ended), 1)
			equal(s, "who did", ended[20], 1)
			equal(s, "state", s.read(name).State, breaker.Open)
		}},
}

var lifeCases = []testcase{
	{"from failures to recovery", "the whole way, as a fleet goes it",
		func(s *suite) {
			name := s.name()
			epoch := s.closed(name)
			for range 4 {
				s.report(name, epoch, failures(1))
			}
			s.report(name, epoch, successes(1))
			equal(s, "run after a success", s.report(name, epoch, failures(4)).Counts.ConsecutiveFailures, 4)
			l := s.report(name, epoch, failures(1))
			equal(s, "run", l.Counts.ConsecutiveFailures, 5)
			slow := s.by(5)
			l = s.move(breaker.StoreMove{Name: name, From: epoch, Run: l.Run, To: breaker.Open, For: s.units(5), Openings: 1})
			equal(s, "opened", l.Applied, true)
			s.unchanged(name, "late outcomes", func() { s.report(name, epoch, outcomes("SSFFFFFF")) })
			l = s.acquire(breaker.StoreAcquire{Name: name, Epoch: l.Epoch, Tokens: []string{"early"}, Lease: long, Limit: 1})
			slow()
			equal(s, "granted early", l.Granted, 0)
			s.wait(6)
			equal(s, "a late success has not delayed it", s.read(name).Remaining, 0)
			l = s.acquire(breaker.StoreAcquire{Name: name, Epoch: l.Epoch, Tokens: []string{"p1"}, Lease: long, Limit: 1})
			equal(s, "granted", l.Granted, 1)
			s.unchanged(name, "late failures while HalfOpen", func() { s.report(name, epoch, failures(6)) })
			s.settle(verdict(name, l.Epoch, "p1", breaker.Success))
			l = s.acquire(breaker.StoreAcquire{Name: name, Epoch: l.Epoch, Tokens: []string{"p2"}, Lease: long, Limit: 1})
			l = s.settle(verdict(name, l.Epoch, "p2", breaker.Success))
			equal(s, "state", l.State, breaker.Closed)
			l = s.report(name, l.Epoch, failures(4))
			equal(s, "run of the new epoch", l.Counts.ConsecutiveFailures, 4)
		}},
	{"a probe fails when the window has emptied", "the volume and rate rules belong to Closed; in HalfOpen one failure is the verdict",
		func(s *suite) {
			name, shape := s.name(), s.windowed(2)
			l := s.reportAs(name, "n", shape, failures(5))
			l = s.move(breaker.StoreMove{Name: name, Shape: shape, From: l.Epoch, To: breaker.Open, For: s.units(3), Openings: 1})
			s.wait(5)
			l = s.acquire(breaker.StoreAcquire{Name: name, Shape: shape, Epoch: l.Epoch, Tokens: []string{"p"}, Lease: long, Limit: 1})
			equal(s, "granted", l.Granted, 1)
			v := verdict(name, l.Epoch, "p", breaker.Failure)
			v.Shape = shape
			equal(s, "state", s.settle(v).State, breaker.Open)
		}},
	{"a ledger outlives what it describes", "an entry that expires reads as Closed: in the middle of an open period, or beside a running probe",
		func(s *suite) {
			open, half, shape := s.name(), s.name(), breaker.StoreShape{Window: s.unit / 10, Config: "short"}
			o := s.move(breaker.StoreMove{Name: open, Shape: shape, To: breaker.Open, For: long})
			h := s.move(breaker.StoreMove{Name: half, Shape: shape, To: breaker.Open})
			h = s.acquire(breaker.StoreAcquire{Name: half, Shape: shape, Epoch: h.Epoch, Tokens: []string{"t"}, Lease: long, Limit: 1})
			s.wait(10)
			l := s.read(open)
			equal(s, "open", standing(l), standing(o))
			s.check(l.Remaining > 0, "the open period is lost")
			equal(s, "half-open", standing(s.read(half)), standing(h))
		}},
	{"epochs only grow, and each has one state", "circuits follow the highest number: a number used twice would let them disagree for good",
		func(s *suite) {
			name := s.name()
			var seen [64][]breaker.Ledger
			s.together(len(seen), func(i int, st breaker.Store) (_ int, err error) {
				var l breaker.Ledger
				for n := range 20 {
					token := fmt.Sprintf("t%dx%d", i, n)
					switch (i + n) % 5 {
					case 0:
						l = st.Report(s.ctx, []breaker.StoreReport{{Name: name, Epoch: l.Epoch, Shape: plain, Batch: failures(1)}})[0].Ledger
					case 1:
						l, err = st.Move(s.ctx, breaker.StoreMove{Name: name, Shape: plain, From: l.Epoch, To: breaker.State(i % 3)})
					case 2:
						l, err = st.Acquire(s.ctx, breaker.StoreAcquire{Name: name, Shape: plain, Epoch: l.Epoch, Tokens: []string{token}, Lease: time.Minute, Limit: 2})
						if l.Granted > 0 {
							seen[i] = append(seen[i], l)
							v := verdict(name, l.Epoch, token, breaker.Outcome(n%3))
							v.Shape, v.For = plain, 0
							l, err = st.Settle(s.ctx, v)
						}
					default:
						l = st.Read(s.ctx, []string{name})[0].Ledger
					}
					if err != nil {
						return 0, err
					}
					seen[i] = append(seen[i], l)
				}
				return 0, nil
			})
			states := make(map[uint64]breaker.State)
			for _, ledgers := range seen {
				last := uint64(0)
				for _, l := range ledgers {
					s.check(l.Epoch >= last, "epoch %d was seen after %d", l.Epoch, last)
					last = l.Epoch
					was, known := states[l.Epoch]
					s.check(!known || was == l.State, "epoch %d was seen %v and %v", l.Epoch, was, l.State)
					states[l.Epoch] = l.State
				}
			}
			s.check(len(states) > 3, "only %d epochs were seen", len(states))
		}},
}

var lostCases = []testcase{
	{"a lost ledger is brought back by a move", "Stores lose what they hold: by a restart, eviction or failover; no epoch may be used twice even so",
		func(s *suite) {
			s.lost(func(name string, known breaker.Ledger) {
				l := s.move(breaker.StoreMove{Name: name, From: known.Epoch, Run: known.Run, To: breaker.Open, For: long, Openings: 4})
				equal(s, "applied", l.Applied, true)
				s.check(l.Epoch > known.Epoch, "epoch %d after %d", l.Epoch, known.Epoch)
				equal(s, "state", l.State, breaker.Open)
				equal(s, "openings", l.Openings, 4)
			})
		}},
	{"a lost ledger is brought back by a probe", "a lost Open or HalfOpen is not Closed: one probe of the fleet has to pass first",
		func(s *suite) {
			s.lost(func(name string, known breaker.Ledger) {
				a := breaker.StoreAcquire{Name: name, Epoch: known.Epoch, Tokens: []string{"n1", "n2"}, Lease: long, Limit: 1, Openings: 6}
				l := s.acquire(a)
				equal(s, "granted", l.Granted, 1)
				s.check(l.Epoch > known.Epoch, "epoch %d after %d", l.Epoch, known.Epoch)
				equal(s, "state", l.State, breaker.HalfOpen)
				equal(s, "openings", l.Openings, 6)
				s.unchanged(name, "another process that knows the old epoch", func() {
					a.Tokens = []string{"n3"}
					equal(s, "granted", s.acquire(a).Granted, 0)
				})
				s.unchanged(name, "what is left of before", func() {
					s.settle(verdict(name, known.Epoch, "t", breaker.Failure))
					s.report(name, known.Epoch, failures(5))
					s.move(breaker.StoreMove{Name: name, From: known.Epoch, To: breaker.Open, For: long})
				})
			})
		}},
	{"a lost ledger is brought back by a report", "calls go on to be counted, in the epoch that the circuits are in",
		func(s *suite) {
			s.lost(func(name string, known breaker.Ledger) {
				l := s.report(name, known.Epoch, failures(2))
				equal(s, "applied", l.Applied, true)
				equal(s, "epoch", l.Epoch, known.Epoch)
				equal(s, "counts", l.Counts, breaker.Counts{Failures: 2, ConsecutiveFailures: 2})
				s.unchanged(name, "a report of before", func() { s.report(name, known.Epoch-1, failures(2)) })
			})
		}},
	{"a verdict on a lost ledger changes nothing", "the token is not known any more; the next probe decides",
		func(s *suite) {
			s.lost(func(name string, known breaker.Ledger) {
				s.unchanged(name, "a verdict", func() {
					equal(s, "applied", s.settle(verdict(name, known.Epoch, "t", breaker.Success)).Applied, false)
				})
				equal(s, "epoch", s.read(name).Epoch, 0)
			})
		}},
	{"a ledger that has fallen back is brought up", "a replica that takes over may lack the last moves",
		func(s *suite) {
			for _, state := range []breaker.State{breaker.Closed, breaker.HalfOpen, breaker.Open} {
				name := s.name()
				epoch := s.move(breaker.StoreMove{Name: name, To: state, For: long, Openings: 1}).Epoch
				ahead := epoch + 100_000
				s.unchanged(name, "a report from ahead", func() {
					equal(s, "applied", s.report(name, ahead, failures(1)).Applied, false)
				})
				l := s.acquire(breaker.StoreAcquire{Name: name, Epoch: ahead, Tokens: []string{"t"}, Lease: long, Limit: 1, Openings: 5})
				equal(s, "granted", l.Granted, 1)
				s.check(l.Epoch > ahead, "epoch %d after %d", l.Epoch, ahead)
				equal(s, "state", l.State, breaker.HalfOpen)
				equal(s, "openings", l.Openings, 5)
			}
		}},
}

// lost runs a check on ledgers that are lost: on a new name, which is the same to a Store, and on one that was wiped.
func (s *suite) lost(check func(name string, known breaker.Ledger)) {
	s.Helper()
	now := s.read(s.name()).Clock
	check(s.name(), breaker.Ledger{Epoch: now + 1_000_000, State: breaker.HalfOpen, Run: 17})
	if s.f.Wipe == nil {
		return
	}
	name := s.name()
	s.probing(name, long, 2, "t", "u")
	known := s.read(name)
	s.f.Wipe(s.T)
	equal(s, "epoch after the loss", s.read(name).Epoch, 0)
	check(name, known)
}
