package breaker

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrOpen is what every rejection by a circuit is (errors.Is): the circuit is open or forced open, has no probe slot
	// left, or admits only a share of the calls after closing; or the call is one that its own failover makes
	// ([WithFailover]). The error itself is an [*OpenError].
	ErrOpen = errors.New("breaker: circuit is open")

	// ErrTooManyProbes matches, besides ErrOpen, a rejection by a half-open circuit whose probe slots are all in use.
	ErrTooManyProbes = errors.New("breaker: every probe slot is taken")

	// ErrTooManyInFlight is the rejection of a call above [WithMaxInFlight]. It is not ErrOpen: the dependency is busy,
	// and not known to have failed.
	ErrTooManyInFlight = errors.New("breaker: too many calls in flight")

	// ErrUnacceptable takes the place of the error for a call that is a Failure but returned none: [WithResult] refused
	// its value, or it took longer than WithTimeout. Fallbacks, hooks and Cause get it; the caller gets the value and a
	// nil error.
	ErrUnacceptable = errors.New("breaker: unacceptable result")

	// ErrGoexit is returned by a function made by [Detach] whose inner function ended its goroutine with runtime.Goexit.
	ErrGoexit = errors.New("breaker: function ended by runtime.Goexit")

	// ErrNilFunc is returned for a nil function, in every state and mode and before anything is counted or taken.
	ErrNilFunc = errors.New("breaker: nil func")

	// The causes of failures that returned no error.
	errAbnormal = errors.New("breaker: call ended by panic or runtime.Goexit")
	errSlowCall = errors.New("breaker: slow call")
)

// OpenError is the error of a rejected call. As a rule it is shared by the rejected calls of one open period, so that rejecting
// allocates nothing: do not modify it.
//
// errors.Is(err, ErrOpen) holds for every OpenError; errors.Is(err, ErrTooManyProbes) for those met while all probe
// slots were taken.
//
// A clock that is set meanwhile does not move Until, while the open period stays as long as it was: RetryAfter is right
// then too.
type OpenError struct {
	Circuit string    // the circuit's name
	State   State     // the machine's state at the rejection; Closed while a ramp is under way, or in a failover back to the circuit
	Mode    Mode      // the mode at the rejection; ForcedOpen rejects whatever the state
	Until   time.Time // when the next probe is due, as the clock was set at the rejection; zero when unknown (forced open, a failover back to the circuit)
	Cause   error     // the failure that opened the circuit, nil in Closed; not unwrapped, it was another call's

	probes   bool      // every probe slot was taken
	failover bool      // the circuit's own failover led back to it
	at       int64     // Until on the circuit's timeline; never if unknown
	time     *timeline // nil where Until is all
}

// Error names the circuit and why it rejects. It leaves out the text of Cause, which may hold data of another call.
func (e *OpenError) Error() string {
	switch {
	case e.failover:
		return fmt.Sprintf("breaker: circuit %q is not asked again: its own failover led back to it", e.Circuit)
	case e.Mode == ForcedOpen:
		return fmt.Sprintf("breaker: circuit %q is forced open", e.Circuit)
	case e.probes:
		return fmt.Sprintf("breaker: circuit %q is half-open and every probe slot is taken", e.Circuit)
	case e.State == Closed:
		return fmt.Sprintf("breaker: circuit %q has just closed and admits a share of the calls", e.Circuit)
	}
	return fmt.Sprintf("breaker: circuit %q is open", e.Circuit)
}

// Is reports whether target is ErrOpen, or ErrTooManyProbes if that is the reason.
func (e *OpenError) Is(target error) bool {
	return target == ErrOpen || e.probes && target == ErrTooManyProbes
}

// RetryAfter is the time left until the next probe is due, by the circuit's clock. It is never negative, and 0 when
// unknown.
func (e *OpenError) RetryAfter() time.Duration {
	switch {
	case e.time == nil && e.Until.IsZero(), e.at == never:
		return 0
	case e.time == nil:
		return max(0, time.Until(e.Until))
	}
	return duration(max(0, e.at-e.time.now()))
}
