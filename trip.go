package breaker

import (
	"fmt"
	"slices"
	"time"
)

// A TripCondition is one condition under which a closed circuit opens. [WithTrip] takes any number of them; any one is enough.
// Make one with ConsecutiveFailures, FailureCount, FailureRate, SlowCallRate or TripWhen; the zero value is refused.
//
// A condition is checked after every finished call that its window has seen, that call included: "reached" trips.
type TripCondition struct {
	kind     tripKind
	failures int
	within   time.Duration
	rate     float64
	minCalls int
	slow     time.Duration
	window   Window
	when     func(Counts) bool
}

type tripKind uint8

const (
	tripNone tripKind = iota
	tripConsecutive
	tripCount
	tripRate
	tripSlow
	tripWhen
)

var tripNames = [...]string{
	tripConsecutive: "ConsecutiveFailures",
	tripCount:       "FailureCount",
	tripRate:        "FailureRate",
	tripSlow:        "SlowCallRate",
	tripWhen:        "TripWhen",
}

// ConsecutiveFailures trips at n failures since the last success, however far apart.
func ConsecutiveFailures(n int) TripCondition {
	return TripCondition{kind: tripConsecutive, failures: n}
}

// FailureCount trips at n failures younger than d, whatever succeeded in between. It is exact, and keeps n times.
func FailureCount(n int, d time.Duration) TripCondition {
	return TripCondition{kind: tripCount, failures: n, within: d}
}

// FailureRate trips when at least rate (0 < rate <= 1) of the calls in the window failed and the window holds at least
// minCalls. The rate is kept in parts per million and compared in integers.
func FailureRate(rate float64, minCalls int, w Window) TripCondition {
	return TripCondition{kind: tripRate, rate: rate, minCalls: minCalls, window: w}
}

// SlowCallRate trips when at least rate of the calls in the window, failed or not, took slow or longer, and the window
// holds at least minCalls. While half-open, a slow probe is a failed probe. It makes every call read the clock twice.
func SlowCallRate(slow time.Duration, rate float64, minCalls int, w Window) TripCondition {
	return TripCondition{kind: tripSlow, slow: slow, rate: rate, minCalls: minCalls, window: w}
}

// TripWhen trips when f says so. f gets the window's counts after each finished call, outside every lock: it may take
// its time and call the circuit. Its word counts only while the same stay in Closed lasts. If it panics, the circuit
// does not trip and the logger is told.
func TripWhen(w Window, f func(Counts) bool) TripCondition {
	return TripCondition{kind: tripWhen, window: w, when: f}
}

// String names the condition with its numbers.
func (t TripCondition) String() string {
	switch t.kind {
	case tripConsecutive:
		if t.within > 0 { // by WithFailureWindow
			return fmt.Sprintf("ConsecutiveFailures(%d) within %v", t.failures, t.within)
		}
		return fmt.Sprintf("ConsecutiveFailures(%d)", t.failures)
	case tripCount:
		return fmt.Sprintf("FailureCount(%d, %v)", t.failures, t.within)
	case tripRate:
		return fmt.Sprintf("FailureRate(%v, %d, %v)", t.rate, t.minCalls, t.window)
	case tripSlow:
		return fmt.Sprintf("SlowCallRate(%v, %v, %d, %v)", t.slow, t.rate, t.minCalls, t.window)
	case tripWhen:
		return fmt.Sprintf("TripWhen(%v, func)", t.window)
	}
	return "Trip{}"
}

// String gives the constructor's call.
func (w Window) String() string {
	if w.calls != 0 {
		return fmt.Sprintf("LastCalls(%d)", w.calls)
	}
	return fmt.Sprintf("Last(%v)", w.last)
}

// faults reports everything that is wrong with the condition. at is its place in a Config.
func (t TripCondition) faults(f *faults, at string, path func(string) string) {
	if t.kind == tripNone {
		f.add(path(at), "must be made by ConsecutiveFailures, FailureCount, FailureRate, SlowCallRate or TripWhen, got the zero Trip")
		return
	}
	at += "." + tripNames[t.kind]
	switch t.kind {
	case tripConsecutive:
		f.between(path(at), t.failures, 1, maxCount)
	case tripCount:
		f.between(path(at+".Failures"), t.failures, 1, maxCount)
		f.positive(path(at+".Within"), t.within)
	case tripSlow:
		f.positive(path(at+".Slow"), t.slow)
		t.rateFaults(f, at, path)
	case tripRate:
		t.rateFaults(f, at, path)
	case tripWhen:
		t.window.faults(f, at, path)
		if t.when == nil {
			f.add(path(at+".When"), "must not be nil")
		}
	}
}

func (t TripCondition) rateFaults(f *faults, at string, path func(string) string) {
	if !(t.rate > 0 && t.rate <= 1) || toPPM(t.rate) == 0 { // NaN fails the first comparison
		f.add(path(at+".Rate"), "must be above 0 and at most 1, in steps of one millionth, got %v", t.rate)
	}
	f.between(path(at+".MinCalls"), t.minCalls, 1, maxCount)
	t.window.faults(f, at, path)
	if t.window.calls > 0 && t.minCalls > t.window.calls {
		f.add(path(at+".MinCalls"), "must not be above %s of %d, got %d", path(at+".LastCalls"), t.window.calls, t.minCalls)
	}
}

func (w Window) faults(f *faults, at string, path func(string) string) {
	switch {
	case w == Window{}:
		f.add(path(at+".Window"), "must be LastCalls or Last of more than 0, got 0")
	case w.calls != 0:
		f.between(path(at+".LastCalls"), w.calls, 1, maxWindowCalls)
	default:
		f.positive(path(at+".Last"), w.last)
	}
}

// maxWindowCalls bounds what a LastCalls window may cost: 2 bits a call, 4 MiB in all.
const maxWindowCalls = 1 << 24

// toPPM rounds down, so that 2 of 3 meet a rate of 2.0/3; what binary fractions lack of a millionth is made up for.
func toPPM(rate float64) uint64 { return uint64(rate*ppm + 1e-3) }

// tripPolicy is the compiled form of what trips. It is shared by all circuits of one configuration.
type tripPolicy struct {
	rules   []tripRule
	windows []windowSpec
	recents []recentSpec
	slow    time.Duration // the smallest slow limit; 0: none
	user    bool          // a rule is the user's function
	grain   int64         // the time by which the filing of a success may be off; 0: no time window
}

type tripRule struct {
	TripCondition
	ppm    uint64
	window int // index of its window
	recent int // index of its failure times; -1: none
}

// windowSpec tells the windows of a circuit apart: rules with the same one share the memory.
type windowSpec struct {
	Window
	slow time.Duration
}

// recentSpec is what a rule that keeps the times of failures keeps: the last n, for as long as the run where it is one.
type recentSpec struct {
	run    bool
	n      int
	within time.Duration
}

// grainParts is how many times finer than a time window's slices the filing of successes is: a 16th of a slice.
const grainParts = maxSlices / 2 * 16

func compileTrips(trips []TripCondition) *tripPolicy {
	p := &tripPolicy{}
	for _, t := range trips {
		if t.kind == tripSlow && (p.slow == 0 || t.slow < p.slow) {
			p.slow = t.slow
		}
	}
	for _, t := range trips {
		r := tripRule{TripCondition: t, ppm: toPPM(t.rate), recent: -1}
		if t.within > 0 {
			r.recent = len(p.recents)
			p.recents = append(p.recents, recentSpec{t.kind == tripConsecutive, t.failures, t.within})
		}
		if t.window != (Window{}) {
			r.window = p.windowFor(t)
		}
		p.user = p.user || t.kind == tripWhen
		p.rules = append(p.rules, r)
	}
	return p
}

func (p *tripPolicy) windowFor(t TripCondition) int {
	spec := windowSpec{t.window, p.slow}
	if t.kind == tripSlow {
		spec.slow = t.slow
	}
	for i, w := range p.windows {
		if w == spec {
			return i
		}
	}
	p.windows = append(p.windows, spec)
	if g := int64(spec.last) / grainParts; spec.last > 0 && (p.grain == 0 || g < p.grain) {
		p.grain = max(g, 1)
	}
	return len(p.windows) - 1
}

// isSlow reports whether a call that took so long is slow by the smallest limit.
func (p *tripPolicy) isSlow(took time.Duration) bool { return p.slow > 0 && took >= p.slow }

// memory is what a circuit remembers for its trip policy besides the run of failures. It is nil where the run is all.
type memory struct {
	windows []window
	recent  []recent
	filed   uint64 // of the successes now in the cells, those that are in the windows; it wraps when they are taken out

	// recheck: the policy or the mode has changed, and may hold after the next outcome, whatever it is.
	recheck bool

	// Sampling: with many calls and the default clock, only one in 2^sampleTick successes of a cell reads the clock.
	sampling bool
	filedAt  int64 // when successes were last filed
	seenAt   int64 // when the clock was last read
	fileAt   int64 // when to file again
	burstAt  int64 // when the present burst of successes began
	burst    int
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
func (m *memory) file(at int64, n uint64) {
	if n == 0 {
		return
	}
	for _, w := range m.windows {
		w.addSuccesses(at, n)
	}
	m.filed += n
}

// What sampling may cost in exactness: a success is filed late by at most five grains; and where a
// stream of successes ends, those since the last reading of the clock, fewer than 16 a cell, are filed early. It starts
// only where the window holds so many that these do not matter.
const (
	sampleTick     = 4
	burstToSample  = 4 << sampleTick // successes, within as many grains as they would be samples, that start it
	grainSlack     = 4
	volumeToSample = 64 << sampleTick // successes in the window
)

// filingTime is the time under which the successes that no window has seen yet are filed. Once the stream of them has
// slackened, it is not known how long after the last reading of the clock they came. They are then taken to be as old as
// they can be, so that successes from before a pause never water down failures after it; and the sampling ends.
func (m *memory) filingTime(s *settings, now int64) int64 {
	seen := max(m.seenAt, m.filedAt)
	m.filedAt = now
	m.fileAt = now + s.trips.grain
	if m.sampling && now-seen > grainSlack*s.trips.grain {
		m.sampling = false
		m.burst = 0
		return seen
	}
	return now
}

// sampled takes a reading of the clock, and reports whether it is time to file.
func (m *memory) sampled(now int64) bool {
	if now < m.fileAt {
		m.seenAt = max(m.seenAt, now)
		return false
	}
	return m.sampling
}

// adapt starts the sampling when successes come so fast that a sample of them is as good as all.
func (m *memory) adapt(s *settings, now int64, o Outcome) {
	if !s.sampled || m.sampling || o != Success {
		return
	}
	if now-m.burstAt > grainSlack*s.trips.grain {
		m.burstAt, m.burst = now, 0
	}
	m.burst++
	if m.burst >= burstToSample && m.holdsMany(s, now) {
		m.sampling, m.filedAt, m.seenAt, m.fileAt = true, now, now, now+s.trips.grain
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
func (m *memory) watches(s *settings, now int64) bool {
	if m == nil {
		return false
	}
	return m.recheck || s.trips.grain > 0 && !m.sampling || s.trips.successMayTrip(m, now)
}

// add adds one outcome.
func (m *memory) add(p *tripPolicy, now int64, o Outcome, took time.Duration) {
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
func (m *memory) youngRun(s *settings, now int64, run uint32) int {
	if m != nil {
		for i, spec := range s.trips.recents {
			if spec.run {
				return m.recent[i].within(now, int64(spec.within))
			}
		}
	}
	return int(run)
}

// holds reports whether any rule but the user's own is met.
func (p *tripPolicy) holds(m *memory, now int64, run uint32) bool {
	for i := range p.rules {
		if p.rules[i].met(m, now, run) {
			return true
		}
	}
	return false
}

func (r *tripRule) met(m *memory, now int64, run uint32) bool {
	switch r.kind {
	case tripConsecutive, tripCount:
		if r.recent >= 0 {
			return m.recent[r.recent].within(now, int64(r.within)) >= r.failures
		}
		return uint64(run) >= uint64(r.failures)
	case tripRate:
		s := m.windows[r.window].sums(now)
		return s.calls() >= uint64(r.minCalls) && s.failed*ppm >= r.ppm*s.calls()
	case tripSlow:
		s := m.windows[r.window].sums(now)
		return s.calls() >= uint64(r.minCalls) && s.slow*ppm >= r.ppm*s.calls()
	}
	return false
}

// successMayTrip reports whether one more success could meet a rate: only by being the one that reaches minCalls.
func (p *tripPolicy) successMayTrip(m *memory, now int64) bool {
	for i := range p.rules {
		if r := &p.rules[i]; r.kind == tripRate {
			s := m.windows[r.window].sums(now)
			if s.failed > 0 && s.calls() < uint64(r.minCalls) {
				return true
			}
		}
	}
	return false
}
