package breaker

import (
	"fmt"
	"time"

	"github.com/breakerkit/breaker/internal/window"
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
const grainParts = window.MaxSlices / 2 * 16

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

// tripFacts is what has happened, as far as one rule looks at it. A circuit fills it from its own memory, or from the
// ledger that it shares with others.
type tripFacts struct {
	run         uint64 // consecutive failures; those within the rule's time, if it has one
	recent      uint64 // failures within the rule's time
	window.Sums        // of the rule's window
}

// met reports whether the facts are a reason to open. TripWhen is not decided here: its function may run only outside
// the lock.
func (r *tripRule) met(f tripFacts) bool {
	switch r.kind {
	case tripConsecutive:
		return f.run >= uint64(r.failures)
	case tripCount:
		return f.recent >= uint64(r.failures)
	case tripRate:
		return f.Calls() >= uint64(r.minCalls) && f.Failed*ppm >= r.ppm*f.Calls()
	case tripSlow:
		return f.Calls() >= uint64(r.minCalls) && f.Slow*ppm >= r.ppm*f.Calls()
	}
	return false
}

// holds reports whether any rule but TripWhen is met by the circuit's own counts.
func (p *tripPolicy) holds(m *memory, now int64, run uint32) bool {
	for i := range p.rules {
		if r := &p.rules[i]; r.met(m.facts(r, now, run)) {
			return true
		}
	}
	return false
}

// successMayTrip reports whether one more success could meet a rate: only by being the one that reaches minCalls.
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
