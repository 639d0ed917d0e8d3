package breaker

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"time"
)

// An Option configures a circuit, a breaker or both. Options do not depend on their order, except that of one option
// given twice the later one counts; WithHooks, WithIgnore and WithFailOn add up. All are validated together: the
// constructor's error names every option that is wrong, with its value.
type Option interface{ apply(*draft) }

// scope says to which functions an option may be given.
type scope uint8

const (
	scopeCircuit  scope = 1 << iota // New, NewCircuit, NewGroup, PerKey, Configure
	scopeFixed                      // New, NewCircuit, NewGroup: what a running circuit cannot change
	scopeSnapshot                   // New, NewCircuit, PerKey
	scopeCall                       // New, NewGroup, PerKey, Over
	scopeGroup                      // NewGroup
)

type option struct {
	name  string
	scope scope
	set   func(*draft)
}

func (o option) apply(d *draft) {
	if o.scope&d.allowed == 0 {
		d.faults.add(o.name, "is not an option of %s", d.where)
		return
	}
	o.set(d)
}

func circuitOption(name string, set func(*draft)) Option { return option{name, scopeCircuit, set} }
func fixedOption(name string, set func(*draft)) Option   { return option{name, scopeFixed, set} }
func callOption(name string, set func(*draft)) Option    { return option{name, scopeCall, set} }

// WithFailureThreshold sets how many failures since the last success open the circuit; the n-th opens it. Default 5.
func WithFailureThreshold(n int) Option {
	return circuitOption("FailureThreshold", func(d *draft) { d.cfg.FailureThreshold = n })
}

// WithFailureWindow lets only failures younger than w count towards the failure threshold, exactly. Default 0: any
// spacing.
func WithFailureWindow(w time.Duration) Option {
	return circuitOption("FailureWindow", func(d *draft) { d.cfg.FailureWindow = w })
}

// WithTrip replaces the failure threshold by one or more conditions, any of which opens the circuit.
func WithTrip(anyOf ...TripCondition) Option {
	return circuitOption("Trip", func(d *draft) {
		if len(anyOf) == 0 {
			d.faults.add("Trip", "must name at least one condition, got none")
		}
		d.cfg.Trip = slices.Clone(anyOf)
	})
}

// WithSuccessThreshold sets how many probe successes in a row close the circuit. Default 2.
func WithSuccessThreshold(n int) Option {
	return circuitOption("SuccessThreshold", func(d *draft) { d.cfg.SuccessThreshold = n })
}

// WithHalfOpenProbes sets how many probes may be in flight at once: slots, not a budget. Default: the success threshold.
func WithHalfOpenProbes(n int) Option {
	return circuitOption("HalfOpenProbes", func(d *draft) { d.cfg.HalfOpenProbes, d.probesSet = n, true })
}

// WithOpenTimeout sets the open period: from its end on, that instant included, calls are admitted as probes. A running
// period keeps the length it began with. Default 30s.
func WithOpenTimeout(t time.Duration) Option {
	return circuitOption("OpenTimeout", func(d *draft) { d.cfg.OpenTimeout = t })
}

// WithOpenBackoff makes the open period grow: the n-th opening of a series lasts OpenTimeout * factor^(n-1), plus a
// random 0 to jitter (0 to 1) of that, and never more than max. A series ends when the circuit has stayed closed for one
// OpenTimeout, or by Reset. factor is at least 1 and max at least OpenTimeout. Default off; WithOpenBackoff(0, 0, 0)
// turns it off.
func WithOpenBackoff(factor float64, max time.Duration, jitter float64) Option {
	return circuitOption("OpenBackoff", func(d *draft) { d.cfg.OpenBackoff = OpenBackoff{factor, max, jitter} })
}

// WithOpenHint lets a failure that opens the circuit lengthen the open period, if an error in its chain has a method
// RetryAfter() time.Duration: the period is then at least that long, up to max. Failures that arrive while the circuit
// is open change nothing. Default 5m; 0 = off.
func WithOpenHint(max time.Duration) Option {
	return circuitOption("OpenHint", func(d *draft) { d.cfg.OpenHint = max })
}

// WithProbeLease sets how long a probe may hold its slot, so that a probe that hangs cannot block recovery. A probe that has
// not settled by then loses the slot to the next call. Its outcome still counts while the circuit stays half-open, a failure
// only if no probe admitted later has succeeded meanwhile. Default: the open timeout or [WithTimeout], whichever is longer.
func WithProbeLease(t time.Duration) Option {
	return circuitOption("ProbeLease", func(d *draft) { d.cfg.ProbeLease, d.leaseSet = t, true })
}

// WithRamp admits, after the circuit has closed, a share of the calls that grows from none to all in t. The others are
// rejected as by an open circuit. Default 0 = off.
func WithRamp(t time.Duration) Option {
	return circuitOption("Ramp", func(d *draft) { d.cfg.Ramp = t })
}

// WithMaxInFlight bounds the calls in flight; those above are rejected with [ErrTooManyInFlight]. When a dependency
// starts to hang, the circuit cannot open before the first calls have failed; this bounds how many wait until then.
// While half-open the probe slots are the bound instead, so that calls that never return cannot block recovery. If it
// is set by Configure on a circuit of which no Snapshot has been taken, calls that are in flight at that moment may not
// be counted. Default 0 = off.
func WithMaxInFlight(n int) Option {
	return circuitOption("MaxInFlight", func(d *draft) { d.cfg.MaxInFlight = n })
}

// WithClassifier sets the function that decides which Outcome an error is. It is called for errors only: nil is
// Success. It is not called if WithIgnore or WithFailOn decide, nor after the caller has canceled. Default
// [DefaultClassifier].
func WithClassifier(f func(error) Outcome) Option {
	return circuitOption("Classifier", func(d *draft) {
		if f == nil {
			d.faults.add("Classifier", "must not be nil")
		}
		d.classifier = f
	})
}

// WithIgnore makes errors that are (errors.Is) one of errs Ignored. WithFailOn takes precedence.
func WithIgnore(errs ...error) Option {
	return circuitOption("Ignore", func(d *draft) { d.addErrors("Ignore", &d.ignore, errs) })
}

// WithFailOn makes errors that are (errors.Is) one of errs Failures, whatever WithIgnore and the classifier say.
func WithFailOn(errs ...error) Option {
	return circuitOption("FailOn", func(d *draft) { d.addErrors("FailOn", &d.failOn, errs) })
}

// WithAnswered makes errors that are (errors.Is) one of errs [Answered], unless WithFailOn or WithIgnore names them too: the
// dependency did its part, though it had nothing to give, such as sql.ErrNoRows. It is asked before the classifier.
// Several add up. Default none.
func WithAnswered(errs ...error) Option {
	return circuitOption("Answered", func(d *draft) { d.addErrors("Answered", &d.answered, errs) })
}

// IgnoreCallerDeadline makes an error Ignored after the caller's own deadline has passed, as it is after the caller has
// canceled. By default it is a Failure, since a deadline is how callers notice a dependency that hangs.
func IgnoreCallerDeadline() Option {
	return circuitOption("IgnoreCallerDeadline", func(d *draft) { d.cfg.IgnoreCallerDeadline = true })
}

// WithMode sets the mode to start in. Given to Configure, it sets the mode only if it differs from the one configured
// before: reloading an unchanged configuration does not undo SetMode. Default Auto.
func WithMode(m Mode) Option {
	return circuitOption("Mode", func(d *draft) { d.cfg.Mode, d.modeSet = m, true })
}

// WithHealthCheck calls check at the given interval while the circuit is open, in a goroutine that ends with the open
// period. A check that returns nil makes the circuit half-open early; probes then decide whether it closes. One check
// runs at a time, with a context that ends after 5s (HealthTimeout). A check that panics has failed.
func WithHealthCheck(every time.Duration, check func(context.Context) error, opts ...HealthOption) Option {
	return circuitOption("HealthCheck", func(d *draft) {
		if check == nil {
			d.faults.add("HealthCheck", "must have a func, got nil")
		}
		d.health = check
		d.healths++
		if d.cfg.HealthCheck.Timeout == 0 {
			d.cfg.HealthCheck.Timeout = DefaultConfig().HealthCheck.Timeout
		}
		d.cfg.HealthCheck.Interval = every
		for _, o := range opts {
			if o == nil {
				d.faults.add("HealthOption", "must not be nil")
				continue
			}
			o(&d.cfg.HealthCheck)
		}
	})
}

// A HealthOption configures a health check.
type HealthOption func(*HealthCheck)

// HealthTimeout sets how long one check may take before its context ends. Default 5s.
func HealthTimeout(t time.Duration) HealthOption { return func(h *HealthCheck) { h.Timeout = t } }

// HealthJitter delays the first check of an open period by a random time of up to max. Default 0.
func HealthJitter(max time.Duration) HealthOption { return func(h *HealthCheck) { h.Jitter = max } }

// WithClock gives the circuit a clock other than the time package's, such as a fake one for tests.
func WithClock(c Clock) Option {
	return fixedOption("Clock", func(d *draft) {
		if isNil(c) {
			d.faults.add("Clock", "must not be nil")
			c = nil
		}
		d.clock = c
	})
}

// WithRand sets the source of random numbers for every jitter. f returns numbers from [0, 1) and must be safe for
// concurrent use. Default math/rand/v2.
func WithRand(f func() float64) Option {
	return circuitOption("Rand", func(d *draft) {
		if f == nil {
			d.faults.add("Rand", "must not be nil")
		}
		d.rand = f
	})
}

// WithLogger logs every change of the state, at WARN if the new state is Open and at INFO otherwise, with name, from,
// to, reason, until, failures and cause; and at ERROR each panic that was recovered from a hook, a trip function or a
// health check. Default none.
func WithLogger(l *slog.Logger) Option {
	return circuitOption("Logger", func(d *draft) {
		if l == nil {
			d.faults.add("Logger", "must not be nil")
		}
		d.logger = l
	})
}

// WithHooks adds hooks.
func WithHooks(h Hooks) Option {
	return fixedOption("Hooks", func(d *draft) { d.hooks = append(slices.Clip(d.hooks), h) })
}

// WithSnapshot restores a circuit of this or an earlier process from a snapshot: its state with the remaining open
// period, epoch, run of failures, number of openings, totals, and mode (unless WithMode is given). The calls in a window
// are not restored; with WithFailureWindow the run counts as old as its last failure.
//
// An open period that is restored ends when it would have ended, even if WithOpenTimeout is shorter now. It is cut to the
// longest that the configuration allows: of WithOpenTimeout, WithOpenHint and WithOpenBackoff's max the largest. Reset
// ends it at once.
func WithSnapshot(s Snapshot) Option {
	return option{"Snapshot", scopeSnapshot, func(d *draft) { d.snapshot = &s }}
}

// WithStore makes the circuit share its state with all others of its name on the same [Store], in this process and in
// others: they count together, open together, and share the probe slots. A call that is admitted while Closed, or
// rejected while Open, does not wait for the store; admitting and settling a probe may, for the store's own timeout or,
// if it does not keep that, a quarter longer. While the store cannot be reached, the circuit works alone, and no
// call fails because of it; see [StoreStatus].
//
// NewCircuit reads the shared state before it returns, and waits for that no longer than a probe does.
//
// With a store, all conditions that have a time must have the same one, and all slow limits must be equal; a window over
// LastCalls is refused. The mode is not shared.
func WithStore(s Store, opts ...StoreOption) Option {
	return fixedOption("Store", func(d *draft) {
		d.store = sharingDraft{flushEvery: defaultFlushEvery}
		switch {
		case isNil(s):
			d.faults.add("Store", "must not be nil")
		case !reflect.ValueOf(s).Comparable():
			d.faults.add("Store", "must be comparable, such as a pointer, got %T", s)
		default:
			d.store.store = s
		}
		for _, o := range opts {
			if o == nil {
				d.faults.add("StoreOption", "must not be nil")
				continue
			}
			o(&d.store)
		}
		d.faults.positive("FlushEvery", d.store.flushEvery)
		d.faults.between("MinReporters", d.store.minReporters, 0, maxReporters)
	})
}

// A StoreOption configures how a circuit uses its [Store].
type StoreOption func(*sharingDraft)

const (
	defaultFlushEvery = 250 * time.Millisecond
	maxReporters      = 1000
)

// FlushEvery sets how often counts are reported to the store. Failures near the threshold, and the first failure after a
// quiet time, are reported without delay, at most every 10ms. A Store that never waits (Immediate) gets every report
// without delay. Default 250ms.
func FlushEvery(t time.Duration) StoreOption {
	return func(d *sharingDraft) { d.flushEvery = t }
}

// MinReporters makes all circuits of the name open only if at least n of them, as a rule in n processes, have seen
// failures within the trip policy's window; otherwise only those that have seen failures open. So one process with a
// broken network does not open the circuits of all others. Default 0: one is enough. At most 1,000.
func MinReporters(n int) StoreOption {
	return func(d *sharingDraft) { d.minReporters = n }
}

// sharingDraft is the arguments of WithStore.
type sharingDraft struct {
	store        Store // nil: none
	flushEvery   time.Duration
	minReporters int
}

// WithResult sets a function that decides which Outcome a value and an error are. It is called once for each finished
// call, instead of the classifier, unless WithIgnore, WithFailOn or the caller's cancel decide. T must be the
// Breaker's.
func WithResult[T any](f func(T, error) Outcome) Option {
	return callOption("Result", func(d *draft) {
		if f == nil {
			d.faults.add("Result", "must not be nil")
			return
		}
		d.call.result = f
	})
}

// WithTimeout bounds each attempt: the context given to fn ends after t. Do returns only when fn does; for a fn that
// ignores its context see [Detach]. An attempt that took longer is a Failure, whatever it returned; if it returned a
// value without an error, Do still returns that. The context also ends when Do returns: read bodies and streams inside
// fn. Default 0 = off.
func WithTimeout(t time.Duration) Option {
	return callOption("Timeout", func(d *draft) {
		d.faults.notNegative("Timeout", t)
		d.call.timeout = t
	})
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

// draft is a configuration while options are being applied. It refers up to every part that has options: calls, groups
// and sharing.
type draft struct {
	cfg                          Config
	probesSet, leaseSet, modeSet bool
	classifier                   func(error) Outcome
	ignore, failOn, answered     []error
	clock                        Clock
	rand                         func() float64
	logger                       *slog.Logger
	hooks                        []Hooks
	snapshot                     *Snapshot
	health                       func(context.Context) error
	healths                      int            // counts WithHealthCheck, to tell whether the check was replaced: functions cannot be compared
	recall                       func(*Circuit) // tells its Group that an evicted circuit must be kept; nil outside of a group
	call                         callDraft
	group                        groupDraft
	store                        sharingDraft

	where   string // which function takes the options
	allowed scope
	faults  faults
}

// callDraft is the part of a draft for the call options.
type callDraft struct {
	result    any // func(T, error) Outcome
	timeout   time.Duration
	retry     *retryPolicy
	fallbacks []any // each a fallbackOption[T] or a fallbackValue
}

// newDraft applies options to the defaults. Faults are collected in the draft.
func newDraft(where string, allowed scope, opts []Option) *draft {
	d := &draft{cfg: DefaultConfig()}
	d.take(where, allowed, opts)
	return d
}

// take applies options to d and validates the result.
func (d *draft) take(where string, allowed scope, opts []Option) {
	d.where, d.allowed, d.faults = where, allowed, nil
	for _, o := range opts {
		if o == nil {
			d.faults.add("Option", "must not be nil")
			continue
		}
		o.apply(d)
	}
	if !d.probesSet && d.cfg.SuccessThreshold > 0 {
		d.cfg.HalfOpenProbes = d.cfg.SuccessThreshold
	}
	if !d.leaseSet && d.cfg.OpenTimeout > 0 && d.cfg.OpenTimeout <= maxDuration {
		d.cfg.ProbeLease = max(d.cfg.OpenTimeout, min(d.call.timeout, maxDuration))
	}
	d.cfg.faults(&d.faults, func(field string) string { return field })
	if d.store.store != nil {
		sharingFaults(&d.faults, d.cfg.trips())
	}
	if d.snapshot != nil {
		d.snapshot.faults(&d.faults)
	}
}

// addErrors adds errs to a list, each once.
func (d *draft) addErrors(name string, to *[]error, errs []error) {
	for i, err := range errs {
		if err == nil {
			d.faults.add(fmt.Sprintf("%s[%d]", name, i), "must not be nil")
		}
		if !slices.ContainsFunc(*to, func(e error) bool { return same(e, err) }) {
			*to = append(slices.Clip(*to), err)
		}
	}
}

// same compares errors of any type; errors that are not comparable are never the same.
func same(a, b error) bool {
	return reflect.TypeOf(a) == reflect.TypeOf(b) && reflect.ValueOf(a).Comparable() && a == b
}

// isNil reports whether an interface holds nothing or a nil pointer.
func isNil(v any) bool {
	if v == nil {
		return true
	}
	r := reflect.ValueOf(v)
	return r.Kind() == reflect.Pointer && r.IsNil()
}
