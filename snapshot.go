package breaker

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"time"
)

// Snapshot is the state of a circuit at one instant. It marshals to JSON and back; [WithSnapshot] restores a circuit
// from it.
//
// InFlight is exact when no call begins or ends while it is read. Otherwise it is never too low, and too high by the calls
// that end meanwhile: a handful as a rule, but thousands if the goroutine that reads it is interrupted in the midst. With
// WithMaxInFlight it is always exact. A circuit stops counting the starts of calls after tens of thousands of calls without a
// Snapshot; the first one then misses the calls that are in flight at that moment, and those count in no later one either.
type Snapshot struct {
	Name                 string       `json:"name"`
	State                State        `json:"state"`
	Mode                 Mode         `json:"mode"`
	Epoch                uint64       `json:"epoch"`             // counts the stays in a state, from 1; in HalfOpen that no call has begun yet, the Open one's
	Since                time.Time    `json:"since,omitzero"`    // when the state began
	Until                time.Time    `json:"until,omitzero"`    // Open: when the open period ends and a call may become a probe
	Openings             uint64       `json:"openings,omitzero"` // in this series, which WithOpenBackoff makes the open period grow by
	InFlight             int64        `json:"in_flight"`         // calls admitted and not finished
	Probes               int64        `json:"probes"`            // HalfOpen: probe slots in use
	ConsecutiveFailures  uint64       `json:"consecutive_failures"`
	ConsecutiveSuccesses uint64       `json:"consecutive_successes"`
	Counts               Counts       `json:"counts"`                 // in the trip policy's window; without one, in this epoch
	Totals               Totals       `json:"totals"`                 // since construction, never falling
	LastFailure          string       `json:"last_failure,omitempty"` // the text of the last failure since the last success
	LastFailureAt        time.Time    `json:"last_failure_at,omitzero"`
	Shared               *StoreStatus `json:"shared,omitempty"` // with a Store: how the circuit stands with it
}

// Totals are counted since construction, and never fall. They are not read at one instant: with calls in progress, one
// field may include a call that another does not.
type Totals struct {
	Calls     uint64            `json:"calls"` // finished: Successes + Failures + Ignored
	Successes uint64            `json:"successes"`
	Failures  uint64            `json:"failures"`
	Ignored   uint64            `json:"ignored"`
	Rejected  uint64            `json:"rejected"` // not among Calls
	Late      uint64            `json:"late"`     // of Calls: those that ended after their epoch
	Slow      uint64            `json:"slow"`     // of Calls: those that took the slow limit or longer
	Panics    uint64            `json:"panics"`   // of Failures: calls that ended by panic or runtime.Goexit
	Retries   uint64            `json:"retries"`  // attempts after a first one
	Rescues   map[Rescue]uint64 `json:"rescues,omitempty"`
}

// StoreStatus is how a circuit gets on with its [Store], in Snapshot.Shared. It is nil there without a Store.
//
// A circuit is not Connected while its store does not answer. That alone does not make it Alone: it stays in the state that
// all are in until it has to decide something without the store, such as to open, or to admit a probe. It follows the others
// again when the store answers and has a newer state, or grants a probe slot, or when the circuit's own probes have brought
// it back to the state of the others.
type StoreStatus struct {
	Epoch     uint64    `json:"epoch"`                // the number of the state that all are in, as last seen; 0: none was seen yet
	Alone     bool      `json:"alone"`                // the circuit decides by itself: Snapshot.State may differ from that of the others. Always after Close
	Connected bool      `json:"connected"`            // the last exchange with the store worked
	Exchanged time.Time `json:"exchanged,omitzero"`   // when an exchange last worked, by the circuit's clock; zero: never
	LastError string    `json:"last_error,omitempty"` // why the last exchange failed, or what was odd in one that worked; "": nothing
	Pending   uint64    `json:"pending"`              // outcomes that are still to be reported to the store
	Lost      uint64    `json:"lost"`                 // outcomes whose report may not have arrived, since construction; they are not sent again
	Foreign   bool      `json:"foreign"`              // others share the name with another configuration: an error in their or this one's setup
}

// Snapshot returns the circuit's state and counts. From the first one on, the circuit counts the starts of all calls: for
// InFlight, see [Snapshot].
func (c *Circuit) Snapshot() Snapshot {
	s := c.load()
	now := s.time.now()
	c.mu.Lock()
	s = c.load()
	snap, last := c.snapshotLocked(s, now)
	c.mu.Unlock()
	if last != nil { // Error is the user's code: not under the lock
		s.contain(c.name, "Error", func() { snap.LastFailure = last.Error() })
	}
	return snap
}

func (c *Circuit) snapshotLocked(s *settings, now int64) (snap Snapshot, last error) {
	if c.m.state == Closed {
		c.transferLocked(s, now)
	}
	c.watched, c.untracked = true, false
	c.publishLocked(s)
	c.m.now = max(c.m.now, now)
	c.endRunLocked(s)
	m := &c.m
	wall := s.time.anchor()
	snap = Snapshot{
		Name:     c.name,
		State:    m.stateAt(now),
		Mode:     m.mode,
		Epoch:    c.epochLocked(),
		Since:    wall.at(m.since),
		Openings: uint64(m.opens),
		InFlight: c.inFlightLocked(),
		Counts:   c.liveCountsLocked(s),
		Totals:   c.totalsLocked(),
		Shared:   c.storeStatusLocked(s, wall),
	}
	switch {
	case snap.State == Open:
		snap.Until = wall.at(m.until)
	case m.state == Open: // HalfOpen since the open period ended, though no call has come
		snap.Since = wall.at(m.until)
	case m.state == HalfOpen:
		snap.Probes = max(int64(m.liveLeases()), c.sharedProbesLocked())
	}
	snap.ConsecutiveFailures = snap.Counts.ConsecutiveFailures
	snap.ConsecutiveSuccesses = snap.Counts.ConsecutiveSuccesses
	if t := c.lastFailure; t != nil && t.err != nil {
		last = t.err
		snap.LastFailureAt = wall.at(t.at)
	}
	return snap, last
}

// faults adds to f what no Snapshot of a circuit can hold.
func (s *Snapshot) faults(f *faults) {
	if int(s.State) >= len(stateNames) {
		f.add("Snapshot.State", "must be a State, got %d", uint8(s.State))
	}
	if int(s.Mode) >= len(modeNames) {
		f.add("Snapshot.Mode", "must be a Mode, got %d", uint8(s.Mode))
	}
	if s.State == Open && s.Until.Before(s.Since) {
		f.add("Snapshot.Until", "must not be before Since (%v), got %v", s.Since, s.Until)
	}
	if s.Epoch > maxEpoch {
		f.add("Snapshot.Epoch", "must be at most %d, got %d", uint64(maxEpoch), s.Epoch)
	}
	if s.ConsecutiveFailures > maxCount {
		f.add("Snapshot.ConsecutiveFailures", "must be at most %d, got %d", maxCount, s.ConsecutiveFailures)
	}
	if s.State == HalfOpen && s.ConsecutiveSuccesses > maxCount { // in other states it is not restored
		f.add("Snapshot.ConsecutiveSuccesses", "must be at most %d, got %d", maxCount, s.ConsecutiveSuccesses)
	}
	if s.Openings > math.MaxUint32 {
		f.add("Snapshot.Openings", "must be at most %d, got %d", uint64(math.MaxUint32), s.Openings)
	}
	t := s.Totals
	for kind, n := range t.Rescues {
		if n > maxTotal {
			f.add("Snapshot.Totals.Rescues", "must each be at most %d, got %d of %q", uint64(maxTotal), n, kind)
		}
	}
	if max(t.Successes, t.Failures, t.Ignored, t.Rejected, t.Retries) > maxTotal {
		f.add("Snapshot.Totals", "must each be at most %d, got %+v", uint64(maxTotal), t)
		return
	}
	if t.Calls != t.Successes+t.Failures+t.Ignored {
		f.add("Snapshot.Totals.Calls", "must be Successes + Failures + Ignored (%d), got %d", t.Successes+t.Failures+t.Ignored, t.Calls)
	}
	if t.Late > t.Calls || t.Slow > t.Calls || t.Panics > t.Failures {
		f.add("Snapshot.Totals", "must have no more Late (%d), Slow (%d) than Calls (%d) and no more Panics (%d) than Failures (%d)",
			t.Late, t.Slow, t.Calls, t.Panics, t.Failures)
	}
}

// maxTotal keeps sums of totals within 64 bits.
const maxTotal = 1 << 60

// maxEpoch leaves room for the other bits of the word, and for more epochs than any circuit will have.
const maxEpoch = 1 << 54

// restore gives a new circuit the state in the snapshot. An open period ends when it would have ended. If the clocks of
// the two processes disagree, it lasts no longer than it was long, and no longer than the longest that is configured.
func (c *Circuit) restore(s *settings, snap *Snapshot, keepMode bool) {
	now := c.m.now
	wall := s.time.anchor().at(now)
	c.m.epoch = max(1, snap.Epoch)
	c.m.state = snap.State
	c.m.opens = uint32(snap.Openings)
	if !keepMode {
		c.m.mode = snap.Mode
	}
	if !snap.Since.IsZero() {
		c.m.since = min(now, now+clampDuration(snap.Since.Sub(wall)))
	}
	switch snap.State {
	case Open:
		period := clampDuration(snap.Until.Sub(snap.Since))
		longest := max(s.policy.openTimeout, int64(s.hintMax), s.policy.backoffMax)
		c.m.until = now + min(clampDuration(snap.Until.Sub(wall)), period, longest)
		c.m.opens = max(1, c.m.opens)
	case HalfOpen:
		c.m.progress = uint32(snap.ConsecutiveSuccesses)
		c.m.opens = max(1, c.m.opens)
	case Closed:
		c.run = uint32(snap.ConsecutiveFailures)
	}
	if snap.LastFailure != "" {
		at := now + clampDuration(snap.LastFailureAt.Sub(wall))
		err := errors.New(snap.LastFailure)
		c.lastFailure = &lastFailure{err, min(now, at), err}
	}
	c.memory = c.memory.carry(&tripPolicy{}, s.trips, c.run, c.lastFailureAtLocked())
	c.restoreTotals(snap.Totals)
}

// restoreTotals gives a new circuit the totals in the snapshot.
func (c *Circuit) restoreTotals(t Totals) {
	c.earlierSuccesses, c.failures, c.failuresBefore = t.Successes, t.Failures, t.Failures
	c.cell.rejected.Store(t.Rejected)
	c.cell.started.Store(t.Calls)
	if t.Ignored+t.Late+t.Slow+t.Panics+t.Retries > 0 || len(t.Rescues) > 0 {
		*c.extrasLocked() = extras{
			ignored: t.Ignored, ignoredBefore: t.Ignored, slow: t.Slow, slowBefore: t.Slow,
			late: t.Late, panics: t.Panics, retries: t.Retries, rescues: maps.Clone(t.Rescues),
		}
	}
}

// clampDuration bounds a duration, so that its sum with an instant fits an int64.
func clampDuration(d time.Duration) int64 {
	return int64(min(max(d, -maxDuration), maxDuration))
}

// String is one line for humans.
func (s Snapshot) String() string {
	return fmt.Sprintf("%s: %s (%s), %d in flight, %d calls, %d failures, %d rejected",
		s.Name, s.State, s.Mode, s.InFlight, s.Totals.Calls, s.Totals.Failures, s.Totals.Rejected)
}
