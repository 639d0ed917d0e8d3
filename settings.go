package breaker

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"
)

// settings is a validated configuration, compiled for use. It is immutable, and shared by all circuits that are
// configured alike.
type settings struct {
	draft     draft // what it was made from; Configure changes a copy
	policy    policy
	trips     *tripPolicy
	time      *timeline
	hintMax   time.Duration
	classify  func(error) Outcome
	rand      func() float64
	receivers []func(Transition)
	onCall    bool     // there is a Call hook
	onReject  bool     // there is a Reject hook
	timed     bool     // every call reads the clock when it starts
	sampled   bool     // successes need not all read the clock: see memory.adapt
	checked   bool     // there is a health check to run while Open
	sharing   *sharing // nil without a store
}

// newSettings compiles a draft without faults.
func newSettings(d *draft, t *timeline) *settings {
	c := d.cfg
	s := &settings{draft: d.kept(), time: t, hintMax: c.OpenHint, classify: d.classifier, rand: d.rand}
	s.policy = policy{
		successThreshold: uint32(c.SuccessThreshold),
		probes:           c.HalfOpenProbes,
		openTimeout:      int64(c.OpenTimeout),
		lease:            int64(c.ProbeLease),
		ramp:             int64(c.Ramp),
		backoffFactor:    c.OpenBackoff.Factor,
		backoffMax:       int64(c.OpenBackoff.Max),
		backoffJitter:    c.OpenBackoff.Jitter,
		maxInFlight:      int64(c.MaxInFlight),
	}
	s.trips = compileTrips(c.trips())
	if s.classify == nil {
		s.classify = DefaultClassifier
	}
	if s.rand == nil {
		s.rand = rand.Float64
	}
	s.receivers = d.receivers()
	for _, h := range d.hooks {
		s.onCall = s.onCall || h.Call != nil
		s.onReject = s.onReject || h.Reject != nil
	}
	s.timed = s.onCall || s.trips.slow > 0
	s.sampled = d.clock == nil && s.trips.grain > 0 && !s.timed
	s.checked = d.health != nil && c.HealthCheck.Enabled
	if d.store.store != nil {
		s.sharing = newSharing(s, d)
	}
	return s
}

// config is the configuration as data, without TripWhen.
func (s *settings) config() Config {
	c := s.draft.cfg
	c.Trip = slices.DeleteFunc(slices.Clone(c.Trip), func(t TripCondition) bool { return t.kind == tripWhen })
	return c
}

// draw returns a random number from [0, 1). If the user's source panics or returns anything else, it is 0.
func (s *settings) draw() (r float64) {
	s.contain("", "Rand", func() { r = s.rand() })
	return unit(r)
}

// unit returns r, or 0 if r is not in [0, 1).
func unit(r float64) float64 {
	if r >= 0 && r < 1 {
		return r
	}
	return 0
}

// openJitter draws for the jitter of an open period; 0 if it has none.
func (s *settings) openJitter() float64 {
	if s.policy.backoffJitter == 0 {
		return 0
	}
	return s.draw()
}

// receivers lists the functions that are called for every transition.
func (d *draft) receivers() (all []func(Transition)) {
	if l := d.logger; l != nil {
		all = append(all, func(t Transition) { logTransition(l, t) })
	}
	for _, h := range d.hooks {
		if h.StateChange != nil {
			all = append(all, h.StateChange)
		}
	}
	return all
}

// logTransition logs a transition as [WithLogger] says.
func logTransition(l *slog.Logger, t Transition) {
	level := slog.LevelInfo
	attrs := []slog.Attr{
		slog.String("name", t.Name),
		slog.String("from", t.From.String()),
		slog.String("to", t.To.String()),
		slog.String("reason", string(t.Reason)),
		slog.Uint64("failures", t.Counts.Failures),
	}
	if t.To == Open {
		level = slog.LevelWarn
		attrs = append(attrs, slog.Time("until", t.Until))
	}
	if t.Cause != nil {
		attrs = append(attrs, slog.Any("cause", t.Cause))
	}
	l.LogAttrs(context.Background(), level, "circuit state changed", attrs...)
}
