package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// A rank is what it means when a gate does not hold.
type rank string

const (
	must   rank = "gate"   // the report fails
	target rank = "target" // it says so
)

// A gate compares a number of one row with the same number of others: value <= limit * the least of refs, or
// value <= limit without refs.
type gate struct {
	rank  rank
	row   key
	of    metric
	limit float64
	refs  []key
}

// The references that many gates share.
var (
	byDefer       = []key{{anchors.name, deferCall}}
	byClock       = []key{{anchors.name, timeSince}}
	byConsecutive = []key{{success.name, consecutive}}
	byHookParts   = []key{{success.name, hookParts}}
	byCycleParts  = []key{{cycle.name, cycleParts}}
	byCycle       = []key{{cycle.name, gobreakerDefault}}
	byHand        = []key{{policies.name, gobreakerByHand}}
	bySmallWindow = []key{{growth.name, "breaker, LastCalls(10)"}}
	byShortWindow = []key{{growth.name, "breaker, Last(1s)"}}
)

// The call with a deferred flag on the machine that the absolute targets were set on, in ns. They are scaled by it.
const (
	deferOne = 11
	deferTwo = 6.3
)

// gates are all that the numbers must hold, and what they aim at.
var gates = slices.Concat([]gate{
	{must, key{success.name, consecutive}, one, 2.7, byDefer},
	{must, key{success.name, nInTime}, one, 2.7, byDefer},
	{must, key{success.name, countWindow}, one, 2.7, byDefer},
	{target, key{success.name, consecutive}, one, 2.2, byDefer},
	{target, key{success.name, nInTime}, one, 2.2, byDefer},
	{target, key{success.name, countWindow}, one, 2.2, byDefer},
	{must, key{success.name, timeRate}, one, 0.7, byClock},
	{must, key{success.name, timeRate}, two, 0.7, byClock},
	{must, key{success.name, userTrip}, one, 1.1, byConsecutive},
	{must, key{success.name, answers}, one, 1.1, byConsecutive},
	{must, key{success.name, callHook}, one, 1.1, byHookParts},
	{must, key{rejected.name, consecutive}, one, 1.05, []key{{rejected.name, rejectParts}}},
	{must, key{rejected.name, consecutive}, two, 1.05, []key{{rejected.name, rejectParts}}},
	{must, key{probing.name, consecutive}, one, 1.05, []key{{probing.name, rejectParts}}},
	{must, key{probing.name, consecutive}, two, 1.05, []key{{probing.name, rejectParts}}},
	{must, key{cycle.name, consecutive}, one, 1.5, byCycleParts},
	{must, key{cycle.name, consecutive}, one, 1, byCycle},
	{must, key{policies.name, policiesRow}, one, 1.0 / 6, byHand},
	{must, key{policies.name, policiesRow}, two, 1.0 / 6, byHand},
	{must, key{anchors.name, deferCall}, allocs, 0, nil}, // with an allocation in it the anchor would excuse too much
	{must, key{success.name, hookParts}, allocs, 0, nil}, // nor in the floors
	{must, key{rejected.name, rejectParts}, allocs, 0, nil},
	{must, key{probing.name, rejectParts}, allocs, 0, nil},
	{must, key{cycle.name, cycleParts}, allocs, 0, nil},
	{must, key{success.name, consecutive}, allocs, 0, nil},
	{must, key{success.name, nInTime}, allocs, 0, nil},
	{must, key{success.name, countWindow}, allocs, 0, nil},
	{must, key{success.name, timeRate}, allocs, 0, nil},
	{must, key{success.name, userTrip}, allocs, 0, nil},
	{must, key{success.name, callHook}, allocs, 0, nil},
	{must, key{success.name, watched}, allocs, 0, nil},
	{must, key{success.name, bareRun}, allocs, 0, nil},
	{must, key{tenth.name, consecutive}, allocs, 0, nil},
	{must, key{tenth.name, countWindow}, allocs, 0, nil},
	{must, key{tenth.name, timeRate}, allocs, 0, nil},
	{must, key{half.name, consecutive}, allocs, 0, nil},
	{must, key{half.name, countWindow}, allocs, 0, nil},
	{must, key{half.name, timeRate}, allocs, 0, nil},
	{must, key{rejected.name, consecutive}, allocs, 0, nil},
	{must, key{probing.name, consecutive}, allocs, 0, nil},
	{must, key{cycle.name, consecutive}, allocs, 1, nil},
	{must, key{twoStep.name, stepRow}, allocs, 1, nil},
	{must, key{policies.name, policiesRow}, allocs, 0, nil},
	{must, key{oneKey.name, groupRow}, allocs, 0, nil},
	{must, key{thousandKeys.name, groupRow}, allocs, 0, nil},
	{must, key{manyKeys.name, groupRow}, allocs, 0, nil},
	{must, key{idle.name, idleShared}, bytes, 256, nil},
	{must, key{idle.name, idleAlone}, bytes, 400, nil},
	{must, key{keyed.name, groupRow}, bytes, 299, nil},
	{target, key{tenth.name, consecutive}, one, 30.0 / deferOne, byDefer},
	{target, key{tenth.name, consecutive}, two, 35.0 / deferTwo, byDefer},
	{target, key{tenth.name, timeRate}, one, 45.0 / deferOne, byDefer},
	{target, key{tenth.name, timeRate}, two, 80.0 / deferTwo, byDefer},
	{target, key{tenth.name, countWindow}, one, 32.0 / deferOne, byDefer},
	{target, key{tenth.name, countWindow}, two, 75.0 / deferTwo, byDefer},
	{target, key{policies.name, policiesRow}, one, 45.0 / deferOne, byDefer},
	{target, key{policies.name, policiesRow}, two, 25.0 / deferTwo, byDefer},
	{target, key{oneRetry.name, policiesRow}, one, 150.0 / deferOne, byDefer},
	{target, key{oneKey.name, groupRow}, one, 40.0 / deferOne, byDefer},
	{target, key{oneKey.name, groupRow}, two, 22.0 / deferTwo, byDefer},
	{target, key{thousandKeys.name, groupRow}, one, 60.0 / deferOne, byDefer},
	{target, key{thousandKeys.name, groupRow}, two, 32.0 / deferTwo, byDefer},
	{target, key{manyKeys.name, groupRow}, one, 350.0 / deferOne, byDefer},
	{target, key{manyKeys.name, groupRow}, two, 180.0 / deferTwo, byDefer},
	{target, key{growth.name, "breaker, LastCalls(1000000)"}, one, 1.5, bySmallWindow},
	{target, key{growth.name, "breaker, Last(1h0m0s)"}, one, 1.5, byShortWindow},
}, failureGates(), httpGates, poolGates(), storeGates)

// failureGates are those of works with failures, which meet at one lock: a call is below every peer's with the same policy,
// and is to be half of the best.
func failureGates() (gates []gate) {
	for _, w := range []struct {
		work work
		of   metric
	}{{tenth, two}, {half, crowd}} {
		for _, g := range []struct {
			ours  string
			peers []string
		}{
			{consecutive, []string{gobreakerConsecutive, permitsConsecutive, executorConsecutive, rubyistConsecutive}},
			{countWindow, []string{permitsCount}},
			{timeRate, []string{gobreakerSliding, permitsRate, executorRate, rubyistRate}},
		} {
			var refs []key
			for _, peer := range g.peers {
				refs = append(refs, key{w.work.name, peer})
			}
			row := key{w.work.name, g.ours}
			gates = append(gates, gate{must, row, w.of, 1, refs}, gate{target, row, w.of, 0.5, refs})
		}
	}
	return gates
}

// A verdict is one gate with the numbers of a run.
type verdict struct {
	gate
	value float64
	bound float64
	ref   key // the row that set the bound, if one did
}

func (v verdict) holds() bool { return v.value <= v.bound }

// judge compares the results with the gates. A gate on a number that was not measured does not hold.
func judge(gates []gate, r results) []verdict {
	var verdicts []verdict
	for _, g := range gates {
		v := verdict{gate: g, value: r.get(g.row, g.of), bound: g.limit}
		if len(g.refs) > 0 {
			least := math.Inf(1)
			for _, ref := range g.refs {
				if n := r.get(ref, g.of); n < least {
					least, v.ref = n, ref
				}
			}
			v.bound = g.limit * least
		}
		verdicts = append(verdicts, v)
	}
	return verdicts
}

// failed are the gates that do not hold; targets are not among them.
func failed(verdicts []verdict) []verdict {
	var broken []verdict
	for _, v := range verdicts {
		if v.rank == must && !v.holds() {
			broken = append(broken, v)
		}
	}
	return broken
}

// String gives the numbers and where the bound comes from.
func (v verdict) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s: %s, %s: %s, at most %s", v.row.work, v.row.name, v.of, v.of.format(v.value), v.of.format(v.bound))
	switch {
	case v.ref == key{}:
	case v.limit < 1:
		fmt.Fprintf(&s, " (%.3g times faster than %s, %s)", 1/v.limit, v.ref.name, v.of.format(v.bound/v.limit))
	default:
		fmt.Fprintf(&s, " (%.3g times %s, %s)", v.limit, v.ref.name, v.of.format(v.bound/v.limit))
	}
	return s.String()
}

func (m metric) String() string {
	switch m {
	case allocs:
		return "allocations"
	case bytes:
		return "bytes"
	case asked:
		return "operations of the Store in a million calls"
	case one:
		return "1 goroutine"
	}
	return fmt.Sprintf("%d goroutines", int(m))
}

// format writes a number of the metric, with its unit unless the metric's name says it.
func (m metric) format(v float64) string {
	switch m {
	case allocs, asked:
		return fmt.Sprintf("%.3g", v)
	case bytes:
		return fmt.Sprintf("%.0f", v)
	}
	return nanoseconds(v) + " ns"
}
