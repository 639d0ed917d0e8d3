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
// given twice the later wins; WithHooks, WithIgnore and WithFailOn add up. All of them are validated together: the
// constructor's error names everything that is wrong, with its value.
type Option interface{ apply(*draft) }

// scope says where an option may be given.
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

// WithOpenBackoff makes the open period grow: the n-th opening of a series lasts OpenTimeout * factor^(n-1), plus up to
// jitter (0 to 1) of that by chance, and never more than max. A series ends when the circuit has stayed closed for one
// OpenTimeout, or by Reset. factor is at least 1 and max at least OpenTimeout. Default off; WithOpenBackoff(0, 0, 0)
// turns it off.
func WithOpenBackoff(factor float64, max time.Duration, jitter float64) Option {
	return circuitOption("OpenBackoff", func(d *draft) { d.cfg.OpenBackoff = OpenBackoff{factor, max, jitter} })
}

// WithOpenHint lets a failure that has a method RetryAfter() time.Duration, anywhere in its chain, lengthen the open
// period that it starts, up to max. Failures that arrive while the circuit is open change nothing. Default 5m; 0 = off.
func WithOpenHint(max time.Duration) Option {
	return circuitOption("OpenHint", func(d *draft) { d.cfg.OpenHint = max })
}

// WithProbeLease sets how long a probe may hold its slot. One that has not settled by then loses the slot to the next call.
// Its outcome still counts while the circuit stays half-open, a failure only if no probe admitted later has succeeded
// meanwhile. Default: the open timeout or [WithTimeout], whichever is longer.
func WithProbeLease(t time.Duration) Option {
	return circuitOption("ProbeLease", func(d *draft) { d.cfg.ProbeLease, d.leaseSet = t, true })
}

// WithRamp admits, after the circuit has closed, a share of the calls that grows from none to all in t. The others are
// rejected as by an open circuit. Default 0 = off.
func WithRamp(t time.Duration) Option {
	return circuitOption("Ramp", func(d *draft) { d.cfg.Ramp = t })
}

// WithMaxInFlight bounds the calls in flight; those above are rejected with [ErrTooManyInFlight]. A circuit alone
// cannot stop the first wave of calls against a dependency that hangs: no result has come back yet. While half-open the
// probe slots are the bound instead, so that calls that never come back cannot keep the circuit from recovering. Set on a
// running circuit that nobody has taken a Snapshot of, it may not know of all the calls in flight. Default 0 = off.
func WithMaxInFlight(n int) Option {
	return circuitOption("MaxInFlight", func(d *draft) { d.cfg.MaxInFlight = n })
}

// WithClassifier decides what an error says about the dependency. It is asked about errors only: nil is Success. It
// is not asked where WithIgnore or WithFailOn have decided, nor after the caller's own cancel. Default
// [DefaultClassifier].
func WithClassifier(f func(error) Outcome) Option {
	return circuitOption("Classifier", func(d *draft) {
		if f == nil {
			d.faults.add("Classifier", "must not be nil")
		}
		d.classifier = f
	})
}

// WithIgnore makes errors that are (errors.Is) one of errs Ignored. WithFailOn beats it.
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

// IgnoreCallerDeadline treats the caller's own deadline like the caller's cancel: an error after it is Ignored. By
// default it is a Failure, since that is how Go callers meet a dependency that hangs.
func IgnoreCallerDeadline() Option {
	return circuitOption("IgnoreCallerDeadline", func(d *draft) { d.cfg.IgnoreCallerDeadline = true })
}

// WithMode sets the mode to start in. Given to Configure, it sets the mode where it differs from the one configured
// before: reloading an unchanged configuration does not undo SetMode. Default Auto.
func WithMode(m Mode) Option {
	return circuitOption("Mode", func(d *draft) { d.cfg.Mode, d.modeSet = m, true })
}

// WithHealthCheck runs check every so often while the circuit is open, in a goroutine that lives no longer than that. A
// check that returns nil makes the circuit half-open before its time; probes still decide. One check runs at a time,
// with a context that ends after 5s (HealthTimeout). A check that panics has failed.
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

// A HealthOption tunes a health check.
type HealthOption func(*HealthCheck)

// HealthTimeout sets how long one check may take before its context ends. Default 5s.
func HealthTimeout(t time.Duration) HealthOption { return func(h *HealthCheck) { h.Timeout = t } }

// HealthJitter delays the first check of an open period by up to max more, by chance. Default 0.
func HealthJitter(max time.Duration) HealthOption { return func(h *HealthCheck) { h.Jitter = max } }

// WithClock gives the circuit another clock than the time package's; a fake one for tests.
func WithClock(c Clock) Option {
	return fixedOption("Clock", func(d *draft) {
		if isNil(c) {
			d.faults.add("Clock", "must not be nil")
			c = nil
		}
		d.clock = c
	})
}

// WithRand gives the source of chance for every jitter: numbers from [0, 1), safe for concurrent use. Default
// math/rand/v2.
func WithRand(f func() float64) Option {
	return circuitOption("Rand", func(d *draft) {
		if f == nil {
			d.faults.add("Rand", "must not be nil")
		}
		d.rand = f
	})
}

// WithLogger logs every change of the state, at WARN where the new state is Open and at INFO otherwise, with name, from,
// to, reason, until, failures and cause; and at ERROR what was contained: a panic in a hook, a trip function or a health
// check. Default none.
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

// WithSnapshot starts the circuit where another one, of this or an earlier process, was when the snapshot was taken: its
// state with the remaining time, its epoch, run of failures, totals and mode (unless WithMode is given). What lay in a
// window is not restored.
func WithSnapshot(s Snapshot) Option {
	return option{"Snapshot", scopeSnapshot, func(d *draft) { d.snapshot = &s }}
}

// WithStore makes the circuit one with all others of its name on the same [Store], in this process and in others: they
// count together, open together, and share the probes. A call that is admitted while Closed, or rejected while Open, does
// not wait for the store; admitting and settling a probe may, for the store's own timeout or, where it does not keep that,
// a quarter longer. Where the store cannot be reached, the circuit goes on by itself, and no call fails for it; see [StoreStatus].
//
// NewCircuit reads where the others stand before it returns, and waits as long for that at most.
//
// With a store a trip policy has one time window, the same for every condition that has any, and one slow limit; a
// window over LastCalls is refused. The mode stays each process's own.
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

// A StoreOption tunes what a circuit does with its [Store].
type StoreOption func(*sharingDraft)

const (
	defaultFlushEvery = 250 * time.Millisecond
	maxReporters      = 1000
)

// FlushEvery sets how often what has been counted is reported where there is no hurry. Failures near the threshold, and
// the first after a quiet time, are reported at once, at most every 10ms. A Store without waiting (Immediate) is told of
// everything at once. Default 250ms.
func FlushEvery(t time.Duration) StoreOption {
	return func(d *sharingDraft) { d.flushEvery = t }
}

// MinReporters makes all circuits of the name open only when at least n of them, n processes as a rule, have seen
// failures within the trip policy's window; with fewer, only those open that have. So one process with a broken network
// does not cut off all. Default 0: any number is enough. At most 1,000.
func MinReporters(n int) StoreOption {
	return func(d *sharingDraft) { d.minReporters = n }
}

// sharingDraft is the arguments of WithStore.
type sharingDraft struct {
	store        Store // nil: none
	flushEvery   time.Duration
	minReporters int
}

// WithResult classifies a call by its value as well. It is asked once about each finished call, instead of the
// classifier, except where WithIgnore, WithFailOn or the caller's cancel have decided. T is the Breaker's.
func WithResult[T any](f func(T, error) Outcome) Option {
	return callOption("Result", func(d *draft) {
		if f == nil {
			d.faults.add("Result", "must not be nil")
			return
		}
		d.call.result = f
	})
}

// WithTimeout bounds each attempt: the context given to fn ends after t. Do returns when fn does; [Detach] is for a fn
// that ignores its context. An attempt that took longer is a Failure whatever it returned; a value that it brought
// without an error is still the answer. The context ends when Do returns, too: read bodies and streams inside fn.
// Default 0 = off.
func WithTimeout(t time.Duration) Option {
	return callOption("Timeout", func(d *draft) {
		d.faults.notNegative("Timeout", t)
		d.call.timeout = t
	})
}

// draft is what options write to.
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
	healths                      int              // how many checks there have been: functions cannot be compared
	moved                        func(Transition) // the group's own interest in changes of the state; nil outside of one
	call                         callDraft
	group                        groupDraft
	store                        sharingDraft

	where   string // which function takes the options
	allowed scope
	faults  faults
}

// callDraft is the part of a draft that belongs to a typed view.
type callDraft struct {
	result    any // func(T, error) Outcome
	timeout   time.Duration
	retry     *retryPolicy
	fallbacks []any // each a fallbackOption[T] or a fallbackValue
}

func newDraft(where string, allowed scope, opts []Option) *draft {
	d := &draft{cfg: DefaultConfig()}
	d.take(where, allowed, opts)
	return d
}

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

// same compares errors of any type.
func same(a, b error) bool {
	return reflect.TypeOf(a) == reflect.TypeOf(b) && reflect.ValueOf(a).Comparable() && a == b
}

func isNil(v any) bool {
	if v == nil {
		return true
	}
	r := reflect.ValueOf(v)
	return r.Kind() == reflect.Pointer && r.IsNil()
}
