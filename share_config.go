package breaker

import (
	"fmt"
	"hash/fnv"
	"time"
)

// sharing is what all circuits of one configuration need for a store. It does not change.
type sharing struct {
	sharingDraft
	shape            StoreShape
	policyInStep     policy // without probe slots: the store grants them
	policyStandalone policy // with one probe slot: every process may be probing at once
}

func newSharing(s *settings, d *draft) *sharing {
	sh := &sharing{sharingDraft: d.store, policyInStep: s.policy, policyStandalone: s.policy}
	sh.policyInStep.probes, sh.policyStandalone.probes = 0, 1
	for i := range s.trips.rules {
		r := &s.trips.rules[i]
		sh.shape.Window = max(sh.shape.Window, r.TripCondition.window.last, r.within) // all that have a window have the same; see sharingFaults
		if r.within > 0 {
			sh.shape.Failures = max(sh.shape.Failures, r.failures)
		}
	}
	if d.store.minReporters > 1 {
		sh.shape.Reporters = d.store.minReporters
	}
	sh.shape.Config = digest(d)
	return sh
}

// digest returns a text that differs for configurations which must not share a ledger: the trip conditions and what decides
// how it closes and opens.
func digest(d *draft) string {
	c := d.cfg
	h := fnv.New64a()
	fmt.Fprint(h, c.trips(), c.SuccessThreshold, c.HalfOpenProbes, c.OpenTimeout, c.OpenBackoff, c.ProbeLease, d.store.minReporters)
	return fmt.Sprintf("%016x", h.Sum64())
}

const (
	maxSharedFailures = 1000                  // of a FailureCount: a ledger keeps a time for each
	minSharedWindow   = 20 * time.Millisecond // a store keeps a window in parts, and may count in milliseconds
)

// sharingFaults adds the faults of trip conditions that a ledger cannot serve. It keeps one time window and one slow limit.
func sharingFaults(f *faults, trips []TripCondition) {
	var window, slow time.Duration
	for i, t := range trips {
		at := fmt.Sprintf("Trip[%d].%s", i, tripNames[t.kind])
		if t.window.calls > 0 {
			f.add(at+".LastCalls", "must not be used with a Store, which keeps windows of time, got %d", t.window.calls)
		}
		window = checkShared(f, at+".Window", window, max(t.window.last, t.within), minSharedWindow)
		slow = checkShared(f, at+".Slow", slow, t.slow, 1)
		if t.within > 0 && t.failures > maxSharedFailures {
			f.add(at+".Failures", "must be at most %d with a Store and a window, got %d", maxSharedFailures, t.failures)
		}
	}
}

// checkShared adds a fault if d, where it is set, is below least or differs from the value of the conditions before. It
// returns the value for the next ones.
func checkShared(f *faults, at string, before, d, least time.Duration) time.Duration {
	switch {
	case d <= 0:
		return before
	case d < least:
		f.add(at, "must be at least %v with a Store, got %v", least, d)
	case before != 0 && d != before:
		f.add(at, "must be that of the other conditions, %v, with a Store, got %v", before, d)
	}
	return d
}
