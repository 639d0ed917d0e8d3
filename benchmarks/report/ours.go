package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/breakerkit/breaker"
)

// The names of our rows that others are compared with.
const (
	consecutive = "breaker, consecutive"
	nInTime     = "breaker, N in T"
	countWindow = "breaker, count window"
	timeRate    = "breaker, time rate"

	watched    = "breaker, consecutive, watched by Snapshot"
	stepRow    = "breaker, Acquire and Done"
	idleShared = "breaker, Circuit and Breaker[int], configuration shared"
	idleAlone  = "breaker, Breaker[int], made by New"
	idleBare   = "breaker, Circuit, made by NewCircuit"
	userTrip   = "breaker, TripWhen, count window"
	answers    = "breaker, consecutive, WithAnswered"
	callHook   = "breaker, consecutive, Call hook"
	changeHook = "breaker, consecutive, StateChange hook"
	bareRun    = "breaker, consecutive, Circuit.Run"
	withCancel = "breaker, consecutive, context with cancel"
)

// The trip policies of the rows, with the thresholds that every peer gets as well.
var (
	tripNInTime = breaker.WithTrip(breaker.FailureCount(5, 10*time.Second))
	tripCount   = breaker.WithTrip(breaker.FailureRate(0.5, 20, breaker.LastCalls(100)))
	tripRate    = breaker.WithTrip(breaker.FailureRate(0.5, 20, breaker.Last(10*time.Second)))
	tripUser    = breaker.WithTrip(breaker.TripWhen(breaker.LastCalls(100), func(n breaker.Counts) bool { return n.Failures >= 50 }))

	// Half of the calls failing must not trip them.
	halfCount = breaker.WithTrip(breaker.FailureRate(0.9, 100, breaker.LastCalls(100)))
	halfRate  = breaker.WithTrip(breaker.FailureRate(0.9, 100, breaker.Last(10*time.Second)))
)

// ourRows are this library's. Those that others are compared with come first.
var ourRows = append([]row{
	{work: success, name: consecutive, many: true, setup: func() op { return doCalls(ours(), never) }},
	{work: success, name: nInTime, setup: func() op { return doCalls(ours(tripNInTime), never) }},
	{work: success, name: countWindow, setup: func() op { return doCalls(ours(tripCount), never) }},
	{work: success, name: timeRate, many: true, setup: func() op { return doCalls(ours(tripRate), never) }},
	{work: success, name: userTrip, setup: func() op { return doCalls(ours(tripUser), never) }},
	{work: success, name: answers, setup: func() op { return doCalls(ours(breaker.WithAnswered(io.EOF)), never) }},
	{work: success, name: watched, setup: observed},
	{work: success, name: bareRun, setup: func() op { return runCalls(ours().Circuit()) }},
	{work: success, name: withCancel, setup: cancellable},
	{work: success, name: callHook, setup: hooked(breaker.Hooks{Call: func(context.Context, breaker.CallEvent) {}})},
	{work: success, name: changeHook, setup: hooked(breaker.Hooks{StateChange: func(breaker.Transition) {}})},

	{work: tenth, name: consecutive, setup: func() op { return doCalls(ours(breaker.WithFailureThreshold(100)), tenth.every) }},
	{work: tenth, name: countWindow, setup: func() op { return doCalls(ours(tripCount), tenth.every) }},
	{work: tenth, name: timeRate, setup: func() op { return doCalls(ours(tripRate), tenth.every) }},

	{work: half, name: consecutive, setup: func() op { return doCalls(ours(breaker.WithFailureThreshold(100)), half.every) }},
	{work: half, name: countWindow, setup: func() op { return doCalls(ours(halfCount), half.every) }},
	{work: half, name: timeRate, setup: func() op { return doCalls(ours(halfRate), half.every) }},

	{work: rejected, name: consecutive, setup: func() op { return doCalls(opened(), never) }},
	{work: cycle, name: consecutive, setup: func() op { return doCalls(cycling(), cycle.every) }},
	{work: probing, name: consecutive, setup: func() op { return doCalls(probeOut(), never) }},
	{work: twoStep, name: stepRow, setup: func() op { return acquireCalls(ours().Circuit()) }},
}, growthRows()...)

// growthRows are one policy over windows of very different sizes.
func growthRows() []row {
	var rows []row
	for _, n := range []int{10, 1_000, 100_000, 1_000_000} {
		rows = append(rows, grown(fmt.Sprintf("LastCalls(%d)", n), min(n, 20), breaker.LastCalls(n), n))
	}
	for _, d := range []time.Duration{time.Second, time.Minute, time.Hour} {
		rows = append(rows, grown(fmt.Sprintf("Last(%v)", d), 20, breaker.Last(d), 0))
	}
	return rows
}

// grown is a failure rate over the window w, measured after warm calls that fill it.
func grown(name string, minCalls int, w breaker.Window, warm int) row {
	return row{work: growth, name: "breaker, " + name, setup: func() op {
		calls := doCalls(ours(breaker.WithTrip(breaker.FailureRate(0.5, minCalls, w))), growth.every)
		calls(warm)
		return calls
	}}
}

// ours makes a breaker; without options it is the default one.
func ours(opts ...breaker.Option) *breaker.Breaker[int] {
	return breaker.Must(breaker.New[int]("bench", opts...))
}

// opened is a breaker that a failure has opened for longer than the measurements last.
func opened() *breaker.Breaker[int] {
	b := ours(breaker.WithFailureThreshold(1), breaker.WithOpenTimeout(time.Hour))
	doCalls(b, 1)(1)
	return b
}

// cycling is a breaker that opens on every failure and closes on the success after it. The lease is spelled out because
// it follows the open timeout otherwise, and would end before the probe does.
func cycling() *breaker.Breaker[int] {
	return ours(breaker.WithFailureThreshold(1), breaker.WithSuccessThreshold(1), breaker.WithHalfOpenProbes(1),
		breaker.WithOpenTimeout(1), breaker.WithProbeLease(time.Hour))
}

// probeOut is a half-open breaker whose only probe slot is taken.
func probeOut() *breaker.Breaker[int] {
	b := cycling()
	doCalls(b, 1)(1)
	breaker.Must(b.Circuit().Acquire(context.Background()))
	return b
}

// observed is the default breaker with its calls in flight counted throughout. One that nobody has taken a Snapshot of
// stops counting what starts after 2^15 successes; calibrate makes more than that before anything is measured.
func observed() op {
	b := ours()
	b.Snapshot()
	return doCalls(b, never)
}

func hooked(h breaker.Hooks) func() op {
	return func() op { return doCalls(ours(breaker.WithHooks(h)), never) }
}

// cancellable is the default breaker, called with a context as servers have it.
func cancellable() op {
	b := ours()
	return func(n int) int {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		return doCallsWith(ctx, b, never, n)
	}
}

// doCalls calls through Do; every n-th call fails.
func doCalls(b *breaker.Breaker[int], every int) op {
	return func(n int) int { return doCallsWith(context.Background(), b, every, n) }
}

func doCallsWith(ctx context.Context, b *breaker.Breaker[int], every, n int) (errs int) {
	fails := failing(every)
	for i := range n {
		end := fails.next()
		if _, err := b.Do(ctx, func(context.Context) (int, error) { return i, end }); err != nil {
			errs++
		}
	}
	return errs
}

// runCalls calls through the circuit's Run.
func runCalls(c *breaker.Circuit) op {
	return func(n int) (errs int) {
		ctx := context.Background()
		fails := failing(never)
		for range n {
			end := fails.next()
			if err := c.Run(ctx, func(context.Context) error { return end }); err != nil {
				errs++
			}
		}
		return errs
	}
}

// acquireCalls asks for admission and settles in a second step.
func acquireCalls(c *breaker.Circuit) op {
	return func(n int) (errs int) {
		ctx := context.Background()
		for range n {
			p, err := c.Acquire(ctx)
			if err != nil {
				errs++
				continue
			}
			p.Done(nil)
		}
		return errs
	}
}

// lone is a circuit and its typed view in one allocation, as a Group has them for each key. On an idle one with the
// default policy everything else that they refer to is shared, so that a zero one weighs as much.
type lone struct {
	_ breaker.Breaker[int]
	_ breaker.Circuit
}

// ourSizes are what one idle breaker of ours weighs.
var ourSizes = []size{
	{name: idleShared, instances: 100_000, build: func(int) any { return new(lone) }},
	{name: idleAlone, instances: 100_000, build: func(int) any { return ours() }},
	{name: idleBare, instances: 100_000, build: func(int) any { return breaker.Must(breaker.NewCircuit("bench")) }},
}
