package breaker

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// faults adds everything that is wrong with the configuration to f. path turns a field, such as HealthCheck.Interval,
// into the name under which the user gave it.
func (c Config) faults(f *faults, path func(string) string) {
	f.between(path("FailureThreshold"), c.FailureThreshold, 1, maxCount)
	f.notNegative(path("FailureWindow"), c.FailureWindow)
	for i, t := range c.Trip {
		t.faults(f, fmt.Sprintf("Trip[%d]", i), path)
	}
	f.between(path("SuccessThreshold"), c.SuccessThreshold, 1, maxCount)
	f.between(path("HalfOpenProbes"), c.HalfOpenProbes, 1, maxCount)
	f.positive(path("OpenTimeout"), c.OpenTimeout)
	c.OpenBackoff.faults(f, path, c.OpenTimeout)
	f.notNegative(path("OpenHint"), c.OpenHint)
	f.positive(path("ProbeLease"), c.ProbeLease)
	f.notNegative(path("Ramp"), c.Ramp)
	f.atLeast(path("MaxInFlight"), c.MaxInFlight, 0)
	if int(c.Mode) >= len(modeNames) {
		f.add(path("Mode"), "must be a Mode, got %d", uint8(c.Mode))
	}
	if c.HealthCheck == (HealthCheck{}) {
		return
	}
	f.positive(path("HealthCheck.Interval"), c.HealthCheck.Interval)
	f.positive(path("HealthCheck.Timeout"), c.HealthCheck.Timeout)
	f.notNegative(path("HealthCheck.Jitter"), c.HealthCheck.Jitter)
}

func (b OpenBackoff) faults(f *faults, path func(string) string, openTimeout time.Duration) {
	if b == (OpenBackoff{}) {
		return
	}
	if !(b.Factor >= 1) || math.IsInf(b.Factor, 1) {
		f.add(path("OpenBackoff.Factor"), "must be at least 1 and finite, got %v", b.Factor)
	}
	if b.Max < openTimeout || b.Max > maxDuration {
		f.add(path("OpenBackoff.Max"), "must be at least the open timeout of %v and at most %v, got %v", openTimeout, maxDuration, b.Max)
	}
	if !(b.Jitter >= 0 && b.Jitter <= 1) {
		f.add(path("OpenBackoff.Jitter"), "must be from 0 to 1, got %v", b.Jitter)
	}
}

// faults adds everything that is wrong with the condition to f. at is its field in a Config.
func (t TripCondition) faults(f *faults, at string, path func(string) string) {
	if t.kind == tripNone {
		f.add(path(at), "must be made by ConsecutiveFailures, FailureCount, FailureRate, SlowCallRate or TripWhen, got the zero Trip")
		return
	}
	at += "." + tripNames[t.kind]
	switch t.kind {
	case tripConsecutive:
		f.between(path(at), t.failures, 1, maxCount)
	case tripCount:
		f.between(path(at+".Failures"), t.failures, 1, maxCount)
		f.positive(path(at+".Within"), t.within)
	case tripSlow:
		f.positive(path(at+".Slow"), t.slow)
		t.rateFaults(f, at, path)
	case tripRate:
		t.rateFaults(f, at, path)
	case tripWhen:
		t.window.faults(f, at, path)
		if t.when == nil {
			f.add(path(at+".When"), "must not be nil")
		}
	}
}

func (t TripCondition) rateFaults(f *faults, at string, path func(string) string) {
	if !(t.rate > 0 && t.rate <= 1) || toPPM(t.rate) == 0 { // NaN fails the first comparison
		f.add(path(at+".Rate"), "must be above 0 and at most 1, in steps of one millionth, got %v", t.rate)
	}
	f.between(path(at+".MinCalls"), t.minCalls, 1, maxCount)
	t.window.faults(f, at, path)
	if t.window.calls > 0 && t.minCalls > t.window.calls {
		f.add(path(at+".MinCalls"), "must not be above %s of %d, got %d", path(at+".LastCalls"), t.window.calls, t.minCalls)
	}
}

func (w Window) faults(f *faults, at string, path func(string) string) {
	switch {
	case w == Window{}:
		f.add(path(at+".Window"), "must be LastCalls or Last of more than 0, got 0")
	case w.calls != 0:
		f.between(path(at+".LastCalls"), w.calls, 1, maxWindowCalls)
	default:
		f.positive(path(at+".Last"), w.last)
	}
}

// maxWindowCalls bounds the memory of a LastCalls window: at 3 bits a call it is 6 MiB.
const maxWindowCalls = 1 << 24

// maxCount keeps every count inside 32 bits.
const maxCount = math.MaxInt32

// faults collects what is wrong with some options.
type faults []error

// fault is one of them. path names the option or key.
type fault struct{ path, text string }

func (f *fault) Error() string { return "breaker: " + f.path + ": " + f.text }

func (f *faults) add(path, format string, args ...any) {
	*f = append(*f, &fault{path, fmt.Sprintf(format, args...)})
}

func (f *faults) atLeast(path string, n, least int) {
	if n < least {
		f.add(path, "must be at least %d, got %d", least, n)
	}
}

func (f *faults) between(path string, n, least, most int) {
	if n < least || n > most {
		f.add(path, "must be from %d to %d, got %d", least, most, n)
	}
}

func (f *faults) positive(path string, d time.Duration) {
	if d <= 0 || d > maxDuration {
		f.add(path, "must be above 0 and at most %v, got %v", maxDuration, d)
	}
}

func (f *faults) notNegative(path string, d time.Duration) {
	if d < 0 || d > maxDuration {
		f.add(path, "must be from 0 to %v, got %v", maxDuration, d)
	}
}

func (f faults) err() error { return errors.Join(f...) }
