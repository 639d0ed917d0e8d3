package simulation

import (
	"time"

	"github.com/breakerkit/breaker"
)

// plan is what is drawn once for a run: how large the fleet is, what policy it has, and what goes wrong how often.
type plan struct {
	calm     bool // nothing goes wrong with the store
	strict   bool // and no circuit ever acts by itself
	nodes    int
	names    int
	limit    int
	success  int
	open     time.Duration
	longest  time.Duration // of an open period
	lease    time.Duration
	gap      time.Duration // between two calls, on average
	steps    int
	window   time.Duration
	row      int // the policy is so many failures in a row, of any spacing
	least    int // failures that it takes to open
	options  []breaker.Option
	minimum  int     // reporters
	overlaps float64 // how often something else happens while an operation is on its way

	before, after, late, copies float64 // of operations: fail without effect, fail with effect, arrive late, arrive twice
	lost, delayed, doubled      float64 // of pushes

	wipes, failovers, partitions, blackouts, jumps, drift, kills, churn, hands, modes, slow, hangs bool
}

// rare draws how often something goes wrong: in most runs never.
func (w *World) rare() float64 {
	if !w.chance(0.4) {
		return 0
	}
	return []float64{0.01, 0.05, 0.2, 0.5}[w.n(4)]
}

func (w *World) draw() (p plan) {
	ms := func(low, high int) time.Duration { return time.Duration(low+w.n(high-low)) * time.Millisecond }
	p.calm = w.chance(0.2)
	switch {
	case w.chance(0.02):
		p.nodes = 300 + w.n(701)
	case w.chance(0.3): // where all may lose sight of the store at once
		p.nodes = 1 + w.n(10)
	case w.chance(0.1):
		p.nodes = 101 + w.n(200)
	default:
		p.nodes = 100
	}
	p.names = 1 + w.n(3)
	p.limit = []int{1, 3}[w.n(2)]
	p.success = 1 + w.n(3)
	p.open = ms(100, 2000)
	p.longest = p.open
	p.lease = ms(50, 1000)
	p.gap = []time.Duration{time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond}[w.n(3)]
	p.steps = 200 + w.n(400)
	p.options = []breaker.Option{
		breaker.WithSuccessThreshold(p.success), breaker.WithHalfOpenProbes(p.limit),
		breaker.WithOpenTimeout(p.open), breaker.WithProbeLease(p.lease),
	}
	failures := []int{1, 3, 5}[w.n(3)]
	within := ms(100, 3000)
	p.least = failures
	switch w.n(4) {
	case 0:
		p.options = append(p.options, breaker.WithFailureThreshold(failures))
		p.row = failures
	case 1:
		p.options = append(p.options, breaker.WithFailureThreshold(failures), breaker.WithFailureWindow(within))
		p.window = within
	case 2:
		p.options = append(p.options, breaker.WithTrip(breaker.FailureRate(0.5, 5+w.n(10), breaker.Last(within))))
		p.window, p.least = within, 3
	case 3:
		p.options = append(p.options, breaker.WithTrip(breaker.FailureCount(failures, within)))
		p.window = within
	}
	if w.chance(0.3) {
		p.longest = 3 * p.open
		p.options = append(p.options, breaker.WithOpenBackoff(2, p.longest, 0.5))
	}
	if w.chance(0.25) {
		p.minimum = 2 + w.n(2)
	}
	p.strict = p.calm && p.minimum == 0
	p.kills, p.churn, p.hands = w.chance(0.5), w.chance(0.3), w.chance(0.4)
	p.modes, p.slow, p.hangs = w.chance(0.3), w.chance(0.4), w.chance(0.4)
	if p.calm {
		return p
	}
	if w.chance(0.5) {
		p.overlaps = 0.1
	}
	p.before, p.after, p.late, p.copies = w.rare(), w.rare(), w.rare(), w.rare()
	p.lost, p.delayed, p.doubled = w.rare(), w.rare(), w.rare()
	p.wipes, p.failovers, p.partitions, p.blackouts = w.chance(0.3), w.chance(0.3), w.chance(0.3), w.chance(0.3)
	p.jumps, p.drift = w.chance(0.3), w.chance(0.3)
	return p
}
