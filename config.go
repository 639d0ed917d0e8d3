package breaker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"reflect"
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
	ProbeLease           time.Duration   // default OpenTimeout
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

// WithProbeLease sets how long a probe may hold its slot. One that has not settled by then loses the slot; its failure
// no longer counts, its success still does while the circuit stays half-open. Default: the open timeout.
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

// DefaultClassifier takes nil for Success, a rejection by an inner circuit or limiter (ErrOpen or ErrTooManyInFlight
// anywhere in the chain) for Ignored, since the dependency was not asked, and everything else for Failure.
func DefaultClassifier(err error) Outcome {
	switch {
	case err == nil:
		return Success
	case rejection(err):
		return Ignored
	}
	return Failure
}

// draft is what options write to.
type draft struct {
	cfg                          Config
	probesSet, leaseSet, modeSet bool
	classifier                   func(error) Outcome
	ignore, failOn               []error
	clock                        Clock
	rand                         func() float64
	logger                       *slog.Logger
	hooks                        []Hooks
	snapshot                     *Snapshot
	health                       func(context.Context) error
	healths                      int            // how many checks there have been: functions cannot be compared
	recall                       func(*Circuit) // tells the group of a circuit that is away; nil outside of one
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
		d.cfg.ProbeLease = d.cfg.OpenTimeout
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

// faults reports everything that is wrong with the configuration. path turns a field, such as HealthCheck.Interval, into
// what its user wrote.
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

const (
	// maxDuration keeps every deadline inside an int64 of nanoseconds: 146 years after 146 years.
	maxDuration = time.Duration(1 << 62)
	// maxCount keeps every count inside 32 bits.
	maxCount = math.MaxInt32
)

// faults collects what is wrong with some options.
type faults []error

// fault is one thing that is wrong.
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

// settings is a validated configuration in the form that circuits use. It is immutable, and shared by all circuits that
// are configured alike.
type settings struct {
	draft     draft // to patch
	policy    policy
	trips     *tripPolicy
	time      *timeline
	hintMax   time.Duration
	classify  func(error) Outcome
	rand      func() float64
	receivers []func(Transition)
	onCall    bool
	onReject  bool
	timed     bool     // every call reads the clock at its start
	sampled   bool     // a busy time window may read the clock for some successes only
	checked   bool     // a health check is to run
	sharing   *sharing // nil without a store
}

func newSettings(d *draft, t *timeline) *settings {
	c := d.cfg
	s := &settings{draft: *d, time: t, hintMax: c.OpenHint, classify: d.classifier, rand: d.rand}
	s.draft.faults = nil
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
	s.sampled = d.clock == nil && s.trips.grain > 0 && !s.timed && !s.trips.user
	s.checked = d.health != nil && c.HealthCheck.Enabled
	if d.store.store != nil {
		s.sharing = newSharing(s, d)
	}
	return s
}

// config is what is in force.
func (s *settings) config() Config {
	c := s.draft.cfg
	c.Trip = slices.DeleteFunc(slices.Clone(c.Trip), func(t TripCondition) bool { return t.kind == tripWhen })
	return c
}

// draw is a number from [0, 1), whatever the user's source says or does.
func (s *settings) draw() (r float64) {
	s.contain("", "Rand", func() { r = s.rand() })
	return unit(r)
}

// unit takes what is no number from [0, 1) for 0.
func unit(r float64) float64 {
	if r >= 0 && r < 1 {
		return r
	}
	return 0
}

// openJitter is a draw where an open period has jitter.
func (s *settings) openJitter() float64 {
	if s.policy.backoffJitter == 0 {
		return 0
	}
	return s.draw()
}

// hint is how long a failure asks to be left alone, within what WithOpenHint allows.
func (s *settings) hint(err error) time.Duration {
	if s.hintMax == 0 || err == nil {
		return 0
	}
	return min(max(0, retryAfter(err)), s.hintMax)
}

// retryAfter finds the first RetryAfter in an error's chain. It is errors.As for the one question that every failure is
// asked, without its cost.
func retryAfter(err error) time.Duration {
	for err != nil {
		switch e := err.(type) {
		case interface{ RetryAfter() time.Duration }:
			return e.RetryAfter()
		case interface{ Unwrap() error }:
			err = e.Unwrap()
		case interface{ Unwrap() []error }:
			for _, one := range e.Unwrap() {
				if d := retryAfter(one); d != 0 {
					return d
				}
			}
			return 0
		default:
			return 0
		}
	}
	return 0
}
