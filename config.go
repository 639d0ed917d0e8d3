package breaker

import (
	"slices"
	"time"
)

// Config is the circuit options as data: each field is the option of the same name, with its meaning, units and range.
// A literal's zeros are zeros, not defaults: start from [DefaultConfig] or [ParseConfig].
//
// Functions are not data. Where a Config is applied to a running circuit, a classifier, a TripWhen or a health check
// that is already in force stays.
type Config struct {
	FailureThreshold     int             // default 5
	FailureWindow        time.Duration   // default 0: any spacing
	Trip                 []TripCondition // default none: FailureThreshold and FailureWindow decide. Without TripWhen
	SuccessThreshold     int             // default 2
	HalfOpenProbes       int             // default SuccessThreshold
	OpenTimeout          time.Duration   // default 30s
	OpenBackoff          OpenBackoff     // default off
	OpenHint             time.Duration   // default 5m; 0 = off
	ProbeLease           time.Duration   // default OpenTimeout; with options, WithTimeout where that is longer
	Ramp                 time.Duration   // default 0 = off
	MaxInFlight          int             // default 0 = off
	IgnoreCallerDeadline bool            // default false
	Mode                 Mode            // the mode to start in; default Auto
	HealthCheck          HealthCheck     // when to run a check given by WithHealthCheck; inert without one
}

// trips is the conditions in force.
func (c Config) trips() []TripCondition {
	if len(c.Trip) > 0 {
		return c.Trip
	}
	return []TripCondition{{kind: tripConsecutive, failures: c.FailureThreshold, within: c.FailureWindow}}
}

// OpenBackoff is the arguments of [WithOpenBackoff]. The zero value is off.
type OpenBackoff struct {
	Factor float64
	Max    time.Duration
	Jitter float64
}

// HealthCheck is when a health check runs; see [WithHealthCheck].
type HealthCheck struct {
	Enabled  bool          // default true
	Interval time.Duration // default 10s
	Timeout  time.Duration // default 5s
	Jitter   time.Duration // default 0
}

// DefaultConfig is the configuration of a circuit made without options. It is the one source of every default.
func DefaultConfig() Config {
	return Config{
		FailureThreshold: 5,
		SuccessThreshold: 2,
		HalfOpenProbes:   2,
		OpenTimeout:      30 * time.Second,
		OpenHint:         5 * time.Minute,
		ProbeLease:       30 * time.Second,
		HealthCheck:      HealthCheck{Enabled: true, Interval: 10 * time.Second, Timeout: 5 * time.Second},
	}
}

// Options returns the configuration as options for [New], [NewCircuit] or [Circuit.Configure].
func (c Config) Options() []Option {
	c.Trip = slices.Clone(c.Trip)
	return []Option{circuitOption("Config", func(d *draft) {
		funcs := slices.DeleteFunc(slices.Clone(d.cfg.Trip), func(t TripCondition) bool { return t.kind != tripWhen })
		d.cfg = c
		d.cfg.Trip = append(slices.Clone(c.Trip), funcs...)
		d.probesSet, d.leaseSet = true, true
		d.modeSet = d.modeSet || c.Mode != Auto
	})}
}
