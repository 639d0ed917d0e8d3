package breaker

import (
	"time"
)

// Config is the circuit options as data. Each field has the meaning, units and range of the option of the same name. A
// zero field is 0, not the default: start from [DefaultConfig] or [ParseConfig].
//
// Functions are not part of a Config. If one is applied to a running circuit, the circuit keeps its classifier, TripWhen
// functions and health check. Its TripWhen functions then decide beside the conditions in Trip; where they are all that
// decides, Trip is empty, and FailureThreshold stays without effect. Only WithTrip removes them. A new circuit made of the
// Config alone does not have them: there an empty Trip means FailureThreshold and FailureWindow.
type Config struct {
	FailureThreshold     int             // default 5
	FailureWindow        time.Duration   // default 0: any spacing
	Trip                 []TripCondition // default none: FailureThreshold and FailureWindow decide. It holds no TripWhen
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
	HealthCheck          HealthCheck     // when to run the check given by WithHealthCheck; without one it has no effect
}

// trips is the conditions in force: Trip, or what FailureThreshold and FailureWindow stand for.
func (c Config) trips() []TripCondition {
	if len(c.Trip) > 0 {
		return c.Trip
	}
	return []TripCondition{{kind: tripConsecutive, failures: c.FailureThreshold, within: c.FailureWindow}}
}

// OpenBackoff is the arguments of [WithOpenBackoff]. The zero value turns it off.
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

// DefaultConfig is the configuration of a circuit made without options. All defaults are defined here.
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
