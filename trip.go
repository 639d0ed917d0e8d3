package breaker

import (
	"fmt"
	"time"

	"github.com/breakerkit/breaker/internal/window"
)

// A TripCondition is one condition under which a closed circuit opens. [WithTrip] takes any number of them; any one is
// enough. Make one with ConsecutiveFailures, FailureCount, FailureRate, SlowCallRate or TripWhen; the zero value is
// refused.
//
// A condition is checked after every finished call that its window has seen, that call included: "reached" trips. Only
// TripWhen is not asked after every call.
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

// ConsecutiveFailures trips at n failures since the last success, whatever the time between them.
func ConsecutiveFailures(n int) TripCondition {
	return TripCondition{kind: tripConsecutive, failures: n}
}

// FailureCount trips at n failures younger than d, whatever succeeded in between. It is exact, and keeps the times of n
// failures.
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

// TripWhen trips when f says so. f gets the window's counts after each Failure and each slow call, that call included; a
// call is slow where a SlowCallRate stands beside it and says so. f is not asked after any other call: a success costs
// what it costs without a TripWhen, and a condition that a success could meet is met at the next failure. With a [Store],
// f gets the counts of all circuits of the name after each report that has a failure or a slow call in it.
//
// f is called outside every lock, by several goroutines at once: it may take its time and call the circuit. Its answer
// counts only while the circuit stays in the same epoch. If it panics, the circuit does not trip and the panic is logged.
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

// toPPM rounds down, so that 2 of 3 meet a rate of 2.0/3. The small addition keeps a rate such as 0.29, whose binary
// fraction is a little too low, from losing a whole millionth.
func toPPM(rate float64) uint64 { return uint64(rate*ppm + 1e-3) }

// tripPolicy is the compiled form of a circuit's trip conditions. It is immutable, and shared by all circuits that are
// configured alike.
type tripPolicy struct {
	rules   []tripRule
	windows []windowSpec  // that the rules need, each once
	recents []recentSpec  // the failure times that the rules need
	slow    time.Duration // the smallest slow limit; 0: none
	user    bool          // there is a TripWhen
	grain   int64         // how often sampled successes are added to the time windows; 0: no time window
}

// tripRule is one compiled condition.
type tripRule struct {
	TripCondition
	ppm    uint64 // the rate in parts per million
	window int    // index into windows, if the condition has a window
	recent int    // index into recents; -1: none
}

// windowSpec describes a window. Rules with equal ones share one window.
type windowSpec struct {
	Window
	slow time.Duration // the limit from which its calls count as slow; 0: none
}

// recentSpec describes the failure times that a rule needs: those of the last n failures within the given time.
type recentSpec struct {
	run    bool // only of consecutive failures: a success clears them
	n      int
	within time.Duration
}

// Sampled successes are added to a time window grainParts times in its length: 16 times for each of its slices.
const grainParts = window.MaxSlices / 2 * 16

// compileTrips makes the policy of validated conditions.
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

// windowFor returns the index of the window that a condition needs, and adds it if there is none yet.
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

// isSlow reports whether a call that took so long is slow by the smallest slow limit.
func (p *tripPolicy) isSlow(took time.Duration) bool { return p.slow > 0 && took >= p.slow }

// asksUser reports whether the TripWhen functions are asked after a call. They are not after a plain success, which would
// have to take the lock for them, nor after a call that says nothing about the dependency.
func (p *tripPolicy) asksUser(o Outcome, took time.Duration) bool {
	return p.user && (o == Failure || o != Ignored && p.isSlow(took))
}

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
