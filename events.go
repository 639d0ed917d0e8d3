package breaker

import (
	"context"
	"time"
)

// Hooks are functions that a circuit calls when something happens. A nil field costs nothing. Hooks run outside every
// lock and may call any method of any circuit. A panic in a hook is recovered and logged (WithLogger); a slow hook
// delays only the call that it runs in. Several Hooks (WithHooks given more than once) are called in the order given.
type Hooks struct {
	// StateChange is called once for every change of the state, in order (by Epoch), one call at a time. It runs in the
	// goroutine that changed the state; after 16 events a short-lived goroutine delivers the rest.
	StateChange func(Transition)
	// Call is called after every finished call.
	Call func(context.Context, CallEvent)
	// Reject is called for every rejected call. In Shadow mode it is called, with RejectEvent.Shadow set, for every
	// call that would have been rejected.
	Reject func(context.Context, RejectEvent)
	// Retry is called before the wait that precedes another attempt.
	Retry func(context.Context, RetryEvent)
	// Rescue is called after a fallback has run, whether it helped (Err is nil) or not, and after a retry has helped.
	Rescue func(context.Context, RescueEvent)
	// StoreError is called for failures that no call returns: of a Store (for the first of consecutive ones), of a
	// Cache, and of the options that PerKey gives.
	StoreError func(error)
	// Overflow is called when a Group is full of circuits that must not be evicted.
	Overflow func(key string)
}

// A Reason says why the state changed.
type Reason string

// The reasons of a Transition.
const (
	ReasonThreshold   Reason = "threshold reached" // Closed -> Open: a trip condition was met
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
	Epoch  uint64    // the number of the epoch that began; grows by at least one each time
	Counts Counts    // what was counted during the epoch that ended
	Cause  error     // To is Open: the failure that tripped, or Trip's argument; nil otherwise
	Remote bool      // the change came from another process
}

// CallEvent is one finished call.
type CallEvent struct {
	Name     string
	State    State // the state in which it was admitted
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
	Shadow bool // the circuit is in Shadow mode: the call was admitted nevertheless
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

// A Rescue says where an answer came from after the first attempt had failed or was rejected: a retry or a fallback. It
// is empty for a first attempt that succeeded, and for a call that failed in the end.
type Rescue string

// The rescues with fixed names. A fallback added by [WithFallback] has the name given there.
const (
	RescueRetry    Rescue = "retry"    // a success after a failed attempt
	RescueCache    Rescue = "cache"    // WithLastGood
	RescueFailover Rescue = "failover" // WithFailover
	RescueValue    Rescue = "value"    // WithFallbackValue
	RescueAlt      Rescue = "alt"      // the alternative given to DoOr
)
