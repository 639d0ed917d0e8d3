package breaker

import (
	"slices"
	"time"
)

// memory is what a circuit remembers for its trip policy besides the run of failures. It is nil where the run is all.
type memory struct {
	windows     []window
	recent      []recent
	transferred uint64 // of the successes now in the cells, those that are in the windows; it wraps when they are taken out

	// recheck: the policy or the mode has changed, and may hold after the next outcome, whatever it is.
	recheck bool

	// Sampling: with many calls and the default clock, only one in 2^sampleShift successes of a cell reads the clock.
	sampling      bool
	transferredAt int64 // when successes were last filed
	clockReadAt   int64 // when the clock was last read
	transferAt    int64 // when to file again
	burstAt       int64 // when the present burst of successes began
	burst         int
}

func (p *tripPolicy) newMemory() *memory {
	if len(p.windows) == 0 && len(p.recents) == 0 {
		return nil
	}
	m := &memory{recent: make([]recent, len(p.recents))}
	for _, w := range p.windows {
		if w.calls > 0 {
			m.windows = append(m.windows, newCallWindow(w.calls))
		} else {
			m.windows = append(m.windows, newTimeWindow(w.last))
		}
	}
	return m
}

// carry returns the memory for a policy q that takes the place of p: what both keep goes on, the rest begins anew.
func (m *memory) carry(p, q *tripPolicy) *memory {
	n := q.newMemory()
	if m == nil || n == nil {
		return n
	}
	for i, spec := range q.windows {
		if at := slices.Index(p.windows, spec); at >= 0 {
			n.windows[i] = m.windows[at]
		}
	}
	for i, spec := range q.recents {
		for at, was := range p.recents {
			if was.run == spec.run && was.within == spec.within {
				n.recent[i] = m.recent[at].last(spec.n)
			}
		}
	}
	return n
}

// clear forgets everything.
func (m *memory) clear() {
	for _, w := range m.windows {
		w.clear()
	}
	for i := range m.recent {
		m.recent[i].clear()
	}
	*m = memory{windows: m.windows, recent: m.recent}
}

// file adds n successes of the fast path that no window has seen yet.
func (m *memory) addSuccesses(at int64, n uint64) {
	if n == 0 {
		return
	}
	for _, w := range m.windows {
		w.addSuccesses(at, n)
	}
	m.transferred += n
}

// What sampling may cost in exactness: a success is filed late by at most five grains; and where a
// stream of successes ends, those since the last reading of the clock, fewer than 16 a cell, are filed early. It starts
// only where the window holds so many that these do not matter.
const (
	sampleShift    = 4
	burstToSample  = 4 << sampleShift // successes, within as many grains as they would be samples, that start it
	grainSlack     = 4
	volumeToSample = 64 << sampleShift // successes in the window
)

// transferTime is the time under which the successes that no window has seen yet are filed. Once the stream of them has
// slackened, it is not known how long after the last reading of the clock they came. They are then taken to be as old as
// they can be, so that successes from before a pause never water down failures after it; and the sampling ends.
func (m *memory) transferTime(s *settings, now int64) int64 {
	seen := max(m.clockReadAt, m.transferredAt)
	m.transferredAt = now
	m.transferAt = now + s.trips.grain
	if m.sampling && now-seen > grainSlack*s.trips.grain {
		m.sampling = false
		m.burst = 0
		return seen
	}
	return now
}

// sampled takes a reading of the clock, and reports whether it is time to file.
func (m *memory) noteClock(now int64) bool {
	if now < m.transferAt {
		m.clockReadAt = max(m.clockReadAt, now)
		return false
	}
	return m.sampling
}

// adapt starts the sampling when successes come so fast that a sample of them is as good as all.
func (m *memory) adapt(s *settings, now int64, o Outcome) {
	if !s.sampled || m.sampling || !o.answered() {
		return
	}
	if now-m.burstAt > grainSlack*s.trips.grain {
		m.burstAt, m.burst = now, 0
	}
	m.burst++
	if m.burst >= burstToSample && m.holdsMany(s, now) {
		m.sampling, m.transferredAt, m.clockReadAt, m.transferAt = true, now, now, now+s.trips.grain
	}
}

func (m *memory) holdsMany(s *settings, now int64) bool {
	for i, w := range m.windows {
		if s.trips.windows[i].last > 0 && w.sums(now).ok < volumeToSample {
			return false
		}
	}
	return true
}

// watches reports whether successes must come one by one, under the lock: to be filed at their time, or because one of
// them might trip.
func (m *memory) needsEverySuccess(s *settings, now int64) bool {
	if m == nil {
		return false
	}
	return m.recheck || s.trips.grain > 0 && !m.sampling || s.trips.successMayTrip(m, now)
}

// add adds one outcome.
func (m *memory) add(p *tripPolicy, now int64, o Outcome, took time.Duration) {
	if o == Answered {
		o = Success
	}
	for i, w := range m.windows {
		slow := p.windows[i].slow
		w.add(now, o, slow > 0 && took >= slow)
	}
	if o == Failure {
		for i, spec := range p.recents {
			m.recent[i].add(now, spec.n)
		}
	}
}

// endRun forgets the failure times that belong to a run of failures.
func (m *memory) endRun(p *tripPolicy) {
	for i, spec := range p.recents {
		if spec.run {
			m.recent[i].clear()
		}
	}
}

// restartRun makes a failure the first of a new run.
func (m *memory) restartRun(p *tripPolicy, now int64) {
	m.endRun(p)
	for i, spec := range p.recents {
		if spec.run {
			m.recent[i].add(now, spec.n)
		}
	}
}

// youngRun is how many failures of a run count: those inside the failure window where there is one.
func (m *memory) recentRun(s *settings, now int64, run uint32) int {
	if m != nil {
		for i, spec := range s.trips.recents {
			if spec.run {
				return m.recent[i].within(now, int64(spec.within))
			}
		}
	}
	return int(run)
}
