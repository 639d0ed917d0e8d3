package breaker

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"time"
)

// Hooks are called as things happen. A nil field costs nothing. Hooks run outside every lock and may call any method of
// any circuit; one that panics or ends its goroutine is contained and reported to the logger; one that is slow delays
// only the call that it runs in. Several Hooks (WithHooks given more than once) are called in the order given.
type Hooks struct {
	// StateChange is called once for every change of the state, in order (by Epoch). Whoever changed the state delivers,
	// up to 16 events, and hands the rest over to a short-lived goroutine.
	StateChange func(Transition)
	// Call is called after every finished call.
	Call func(context.Context, CallEvent)
	// Reject is called for every rejected call; with Rejection.Shadow set, for a call that would have been rejected.
	Reject func(context.Context, RejectEvent)
	// Retry is called before the wait that precedes another attempt.
	Retry func(context.Context, RetryEvent)
	// Rescue is called after a fallback has run, whether it helped (Err is nil) or not, and after a retry has helped.
	Rescue func(context.Context, RescueEvent)
	// StoreError is called when something behind a circuit fails that no caller may suffer from: a Store, at the first of
	// a row of failures; a Cache; the options that PerKey gives.
	StoreError func(error)
	// Overflow is called when a Group is full of circuits that must not be evicted.
	Overflow func(key string)
}

// A Reason says why the state changed.
type Reason string

// The reasons of a Transition.
const (
	ReasonThreshold   Reason = "threshold reached" // Closed -> Open: the trip policy held
	ReasonTimeout     Reason = "timeout expired"   // Open -> HalfOpen: the open period has ended
	ReasonProbeFailed Reason = "probe failed"      // HalfOpen -> Open: failure during recovery
	ReasonRecovered   Reason = "recovered"         // HalfOpen -> Closed: enough probes succeeded
	ReasonManual      Reason = "manual"            // Trip or Reset
	ReasonHealthCheck Reason = "health check"      // Open -> HalfOpen before its time: OfferProbe
	ReasonRemote      Reason = "remote"            // another process moved the shared circuit
)

// Transition is one change of a circuit's state.
type Transition struct {
	Name   string
	From   State
	To     State
	Reason Reason
	At     time.Time // when, by the circuit's clock
	Until  time.Time // To is Open: when the next probe is due; zero otherwise
	Epoch  uint64    // the number of the stay that began; grows by at least one each time
	Counts Counts    // what was counted during the stay that ended
	Cause  error     // To is Open: the failure that tripped, or Trip's argument; nil otherwise
	Remote bool      // the change came from another process
}

// CallEvent is one finished call.
type CallEvent struct {
	Name     string
	State    State // the state that admitted it
	Outcome  Outcome
	Probe    bool          // it held a probe slot
	Late     bool          // its epoch had ended before it did; it counts in Totals only
	Duration time.Duration // by the circuit's clock
	Err      error         // what the function returned, or ErrUnacceptable for a value that counted as Failure
}

// RejectEvent is one rejected call.
type RejectEvent struct {
	Name   string
	Err    error
	Shadow bool // the circuit is in Shadow mode: the call was admitted all the same
}

// RetryEvent is one coming retry.
type RetryEvent struct {
	Name    string
	Attempt int           // the number of the attempt that failed, from 1
	Wait    time.Duration // how long the next attempt is delayed
	Err     error         // how the attempt failed
}

// RescueEvent is one use of a fallback.
type RescueEvent struct {
	Name  string
	Kind  Rescue
	Cause error // what the fallback was used for
	Err   error // the fallback's own failure; nil when it helped
}

// A Rescue names what answered in the dependency's place, or how an answer was won after a first failure. It is empty
// for a first attempt that did well, and for a call that nothing rescued.
type Rescue string

// The rescues that have no name of their own; one by [WithFallback] has the name given to it.
const (
	RescueRetry    Rescue = "retry"    // a success after a failed attempt
	RescueCache    Rescue = "cache"    // WithLastGood
	RescueFailover Rescue = "failover" // WithFailover
	RescueValue    Rescue = "value"    // WithFallbackValue
	RescueAlt      Rescue = "alt"      // the alternative given to DoOr
)

// Source gives the circuits that something holds. A Circuit is a Source of itself; groups, pools and transports are
// Sources too. Adapters for metrics, traces and pages take Sources.
type Source interface {
	Circuits() iter.Seq2[string, *Circuit]
}

// Counts is what was counted during some time: a stay in a state, or the trip policy's window.
type Counts struct {
	Successes            uint64 `json:"successes"`
	Failures             uint64 `json:"failures"`
	Ignored              uint64 `json:"ignored"`
	Slow                 uint64 `json:"slow"`                  // calls that took the slow limit or longer; 0 without SlowCallRate
	ConsecutiveFailures  uint64 `json:"consecutive_failures"`  // since the last success
	ConsecutiveSuccesses uint64 `json:"consecutive_successes"` // since the last failure
}

// Rate is the share of failures among successes and failures, from 0 to 1; 0 when there were none.
func (c Counts) Rate() float64 {
	n := float64(c.Successes) + float64(c.Failures)
	if n == 0 {
		return 0
	}
	return float64(c.Failures) / n
}

// notifier delivers a circuit's transitions in order, one at a time, outside the circuit's lock. It is filled under that
// lock, which gives the order.
type notifier struct {
	mu    sync.Mutex
	queue []Transition
	told  int  // how many receivers the first in the queue has been given to
	busy  bool // somebody delivers
}

// deliverAtMost is how many events a caller delivers before a goroutine takes over from it.
const deliverAtMost = 16

func (n *notifier) add(t Transition) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.queue = append(n.queue, t)
}

// notifierLocked returns the circuit's notifier if there may be something to deliver.
func (c *Circuit) notifierLocked(fx *effects) *notifier {
	if fx.moved == 0 || c.rare == nil {
		return nil
	}
	return &c.rare.notifier
}

// idle reports whether there is nothing to deliver.
func (n *notifier) idle() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.queue) == 0
}

// deliver hands out what is queued, unless somebody does so already. On a nil notifier it does nothing.
func (n *notifier) deliver(s *settings) {
	if n == nil {
		return
	}
	n.mu.Lock()
	mine := !n.busy
	n.busy = true
	n.mu.Unlock()
	if mine {
		n.run(s, deliverAtMost)
	}
}

// run delivers until the queue is empty, or atMost events; another goroutine goes on after those, and after a receiver
// that ended this one.
func (n *notifier) run(s *settings, atMost int) {
	ended := false
	defer func() {
		if !ended {
			go n.run(s, -1)
		}
	}()
	for atMost != 0 {
		t, receive, done := n.next(s)
		if done {
			ended = true
			return
		}
		if receive == nil {
			atMost--
			continue
		}
		s.contain(t.Name, "StateChange", func() { receive(t) })
	}
}

// next returns the next event with the next receiver for it; no receiver, when the event has been given to all.
func (n *notifier) next(s *settings) (t Transition, receive func(Transition), done bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.queue) == 0 {
		n.busy = false
		return t, nil, true
	}
	if n.told == len(s.receivers) {
		n.queue[0] = Transition{}
		n.queue, n.told = n.queue[1:], 0
		return t, nil, false
	}
	n.told++
	return n.queue[0], s.receivers[n.told-1], false
}

// receivers lists who is told of changes of the state.
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

func (s *settings) hookCall(ctx context.Context, e CallEvent) {
	for _, h := range s.draft.hooks {
		if h.Call != nil {
			s.contain(e.Name, "Call", func() { h.Call(ctx, e) })
		}
	}
}

// called tells the hooks of a finished call, then of what changed with it. The order is kept where one of them ends the
// goroutine.
func (s *settings) called(ctx context.Context, e CallEvent, n *notifier) {
	defer n.deliver(s)
	s.hookCall(ctx, e)
}

func (s *settings) hookReject(ctx context.Context, e RejectEvent) {
	for _, h := range s.draft.hooks {
		if h.Reject != nil {
			s.contain(e.Name, "Reject", func() { h.Reject(ctx, e) })
		}
	}
}

// rejected tells the hooks of a rejection that took no lock.
func (s *settings) rejected(ctx context.Context, err *OpenError) {
	s.hookReject(ctx, RejectEvent{Name: err.Circuit, Err: err})
}

func (s *settings) hookRetry(ctx context.Context, e RetryEvent) {
	for _, h := range s.draft.hooks {
		if h.Retry != nil {
			s.contain(e.Name, "Retry", func() { h.Retry(ctx, e) })
		}
	}
}

func (s *settings) hookStoreError(circuit string, err error) {
	for _, h := range s.draft.hooks {
		if h.StoreError != nil {
			s.contain(circuit, "StoreError", func() { h.StoreError(err) })
		}
	}
}

func (s *settings) hookOverflow(key string) {
	for _, h := range s.draft.hooks {
		if h.Overflow != nil {
			s.contain(key, "Overflow", func() { h.Overflow(key) })
		}
	}
}

func (s *settings) hookRescue(ctx context.Context, e RescueEvent) {
	for _, h := range s.draft.hooks {
		if h.Rescue != nil {
			s.contain(e.Name, "Rescue", func() { h.Rescue(ctx, e) })
		}
	}
}

// contain runs a user's function. A panic in it goes to the logger and no further; so does the news that it ended its
// goroutine, which nobody can undo.
func (s *settings) contain(circuit, what string, f func()) {
	returned := false
	defer func() {
		if returned {
			return
		}
		var end any = "runtime.Goexit"
		if r := recover(); r != nil {
			end = r
		}
		s.report(circuit, what, end)
	}()
	f()
	returned = true
}

// report logs how a user's function ended, and survives a logger that does no better.
func (s *settings) report(circuit, what string, end any) {
	defer func() { _ = recover() }()
	if l := s.draft.logger; l != nil {
		l.Error("user function did not return", "name", circuit, "function", what, "end", fmt.Sprint(end))
	}
}

// userTrips asks the user's trip functions, each about its own counts.
func (s *settings) userTrips(circuit string, counts []Counts) (trip bool) {
	for i := range s.trips.rules {
		r := &s.trips.rules[i]
		if r.kind != tripWhen {
			continue
		}
		s.contain(circuit, "TripWhen", func() { trip = r.when(counts[0]) })
		if trip {
			return true
		}
		counts = counts[1:]
	}
	return false
}
