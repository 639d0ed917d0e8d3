package breaker

import (
	"slices"
	"time"

	"github.com/breakerkit/breaker/internal/window"
)

// Outcomes are converted to those of the package window as numbers. This does not compile unless the numbers are equal.
var _ = [1]struct{}{}[Success-Outcome(window.Success)|Failure-Outcome(window.Failure)|Ignored-Outcome(window.Ignored)]

// memory is what a circuit keeps for its trip policy: the windows and failure times that the rules need. It is nil for
// a policy that needs only the number of consecutive failures. Successes of the fast path reach it late, by
// transferLocked.
type memory struct {
	windows     []window.Ring   // one for each of the policy's windows
	recent      []window.Recent // one for each of the policy's recents
	transferred uint64          // how many of the successes in the cells have been added to the windows; it may wrap below 0

	// The policy or the mode has changed: even a success may now be the call after which the policy says to open.
	recheck bool

	// Sampling: at a high rate of calls and with the default clock, only every 2^sampleShift-th success of a cell reads
	// the clock, and successes are added to the windows once in a grain.
	sampling      bool
	transferredAt int64 // when successes were last added
	clockReadAt   int64 // when the clock was last read
	transferAt    int64 // when to add them again
	burstAt       int64 // when the current burst of successes began
	burst         int   // successes in it
}

// newMemory makes an empty memory for a policy; nil if it needs none.
func (p *tripPolicy) newMemory() *memory {
	if len(p.windows) == 0 && len(p.recents) == 0 {
		return nil
	}
	m := &memory{recent: make([]window.Recent, len(p.recents))}
	for _, w := range p.windows {
		if w.calls > 0 {
			m.windows = append(m.windows, window.NewCalls(w.calls))
		} else {
			m.windows = append(m.windows, window.NewTime(w.last))
		}
	}
	return m
}

// carry returns the memory for a policy q that replaces p: windows and failure times that both need are kept, and the run
// of failures, which the circuit has counted and whose last failure was at latest. The others begin empty.
// m is nil where p needs no memory.
func (m *memory) carry(p, q *tripPolicy, run uint32, latest int64) *memory {
	n := q.newMemory()
	if n == nil {
		return nil
	}
	for i, spec := range q.windows {
		if ring := m.windowLike(p, spec); ring != nil {
			n.windows[i] = ring
		}
	}
	for i, spec := range q.recents {
		at := slices.IndexFunc(p.recents, func(was recentSpec) bool {
			return was.run == spec.run && (was.run || was.within == spec.within)
		})
		var kept window.Recent
		if at >= 0 {
			kept = m.recent[at]
		}
		if spec.run {
			n.recent[i] = kept.LastOf(int(run), spec.n, latest)
		} else {
			n.recent[i] = kept.Last(spec.n)
		}
	}
	return n
}

// windowLike returns the calls that a window of another policy is to begin with; nil if m has none of the same stretch. If
// only the slow limit differs, which of the calls were slow by the new one is not known: they count as not slow.
func (m *memory) windowLike(p *tripPolicy, spec windowSpec) window.Ring {
	if at := slices.Index(p.windows, spec); at >= 0 {
		return m.windows[at]
	}
	if at := slices.IndexFunc(p.windows, func(was windowSpec) bool { return was.Window == spec.Window }); at >= 0 {
		return m.windows[at].WithoutSlow()
	}
	return nil
}

// clear forgets everything.
func (m *memory) clear() {
	for _, w := range m.windows {
		w.Clear()
	}
	for i := range m.recent {
		m.recent[i].Clear()
	}
	*m = memory{windows: m.windows, recent: m.recent}
}

// addSuccesses adds n successes of the fast path that the windows do not hold yet.
func (m *memory) addSuccesses(at int64, n uint64) {
	if n == 0 {
		return
	}
	for _, w := range m.windows {
		w.AddSuccesses(at, n)
	}
	m.transferred += n
}

// How exact sampling is: a success counts as up to five grains younger than it is. When a stream of successes stops,
// the last ones, fewer than 16 in each cell, count as older than they are. Sampling starts only when the window holds
// so many successes that this does not matter.
const (
	sampleShift    = 4
	burstToSample  = 4 << sampleShift  // so many successes within grainSlack grains start it: 4 samples' worth
	grainSlack     = 4                 // a burst lasts no longer; a longer pause ends the sampling
	volumeToSample = 64 << sampleShift // least number of successes in a window
)

// transferTime returns the time at which to count the successes that the windows do not hold yet: now, as a rule. After
// a pause it is not known how soon after the last reading of the clock they came. They then count as old as they can
// be, so that successes before the pause never lower the rate of failures after it, and the sampling ends.
func (m *memory) transferTime(p *tripPolicy, now int64) int64 {
	seen := max(m.clockReadAt, m.transferredAt)
	m.transferredAt = now
	m.transferAt = now + p.grain
	if m.sampling && now-seen > grainSlack*p.grain {
		m.sampling = false
		m.burst = 0
		return seen
	}
	return now
}

// noteClock takes a reading of the clock, and reports whether it is time to add successes to the windows.
func (m *memory) noteClock(now int64) bool {
	if now < m.transferAt {
		m.clockReadAt = max(m.clockReadAt, now)
		return false
	}
	return m.sampling
}

// adapt starts the sampling when successes come fast enough.
func (m *memory) adapt(p *tripPolicy, now int64, o Outcome) {
	if m.sampling || !o.answered() {
		return
	}
	if now-m.burstAt > grainSlack*p.grain {
		m.burstAt, m.burst = now, 0
	}
	m.burst++
	if m.burst >= burstToSample && m.holdsMany(p, now) {
		m.sampling, m.transferredAt, m.clockReadAt, m.transferAt = true, now, now, now+p.grain
	}
}

// holdsMany reports whether every time window holds enough successes for sampling.
func (m *memory) holdsMany(p *tripPolicy, now int64) bool {
	for i, w := range m.windows {
		if p.windows[i].last > 0 && w.Sums(now).OK < volumeToSample {
			return false
		}
	}
	return true
}

// needsEverySuccess reports whether each success must take the lock: to be counted at its exact time, or because it
// might be the call after which the policy says to open.
func (m *memory) needsEverySuccess(p *tripPolicy, now int64) bool {
	if m == nil {
		return false
	}
	return m.recheck || p.grain > 0 && !m.sampling || p.successMayTrip(m, now)
}

// add adds one outcome to the windows and failure times.
func (m *memory) add(p *tripPolicy, now int64, o Outcome, took time.Duration) {
	if o == Answered {
		o = Success
	}
	for i, w := range m.windows {
		slow := p.windows[i].slow
		w.Add(now, window.Outcome(o), slow > 0 && took >= slow)
	}
	if o == Failure {
		for i, spec := range p.recents {
			m.recent[i].Add(now, spec.n)
		}
	}
}

// endRun forgets the times of consecutive failures.
func (m *memory) endRun(p *tripPolicy) {
	for i, spec := range p.recents {
		if spec.run {
			m.recent[i].Clear()
		}
	}
}

// restartRun makes a failure at now the first of a new run.
func (m *memory) restartRun(p *tripPolicy, now int64) {
	m.endRun(p)
	for i, spec := range p.recents {
		if spec.run {
			m.recent[i].Add(now, spec.n)
		}
	}
}

// recentRun is how many failures of a run count: with a failure window those inside it, otherwise all.
func (m *memory) recentRun(p *tripPolicy, now int64, run uint32) int {
	if m != nil {
		for i, spec := range p.recents {
			if spec.run {
				return m.recent[i].Within(now, int64(spec.within))
			}
		}
	}
	return int(run)
}

// facts is what a rule looks at, from the circuit's own counts. Only what the rule's kind needs is filled in. m may be
// nil where the run of failures is all that the rules need.
func (m *memory) facts(r *tripRule, now int64, run uint32) (f tripFacts) {
	switch r.kind {
	case tripConsecutive, tripCount:
		f.run = uint64(run)
		if r.recent >= 0 {
			f.recent = uint64(m.recent[r.recent].Within(now, int64(r.within)))
			f.run = f.recent // for tripConsecutive: a success clears the times of its failures (endRun)
		}
	case tripRate, tripSlow:
		f.Sums = m.windows[r.window].Sums(now)
	}
	return f
}

// holds reports whether any rule but TripWhen is met by the circuit's own counts.
func (p *tripPolicy) holds(m *memory, now int64, run uint32) bool {
	for i := range p.rules {
		r := &p.rules[i]
		if r.kind == tripConsecutive && r.recent < 0 { // what met says; without the facts in between, which are 8 % of a failure
			if run >= uint32(r.failures) {
				return true
			}
			continue
		}
		if r.met(m.facts(r, now, run)) {
			return true
		}
	}
	return false
}

// successMayTrip reports whether one more success could meet a rate. Since it lowers every failure rate, it can only do
// so by being the call that reaches minCalls.
func (p *tripPolicy) successMayTrip(m *memory, now int64) bool {
	for i := range p.rules {
		if r := &p.rules[i]; r.kind == tripRate {
			s := m.windows[r.window].Sums(now)
			if s.Failed > 0 && s.Calls() < uint64(r.minCalls) {
				return true
			}
		}
	}
	return false
}
