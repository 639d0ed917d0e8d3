package pool

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/breakerkit/breaker"
)

var (
	// ErrLimit is what the error of a Do is (errors.Is) that ended because [WithLimit] had passed. It is
	// context.DeadlineExceeded too, and what the last member returned is joined to it.
	ErrLimit = fmt.Errorf("pool: the limit has passed: %w", context.DeadlineExceeded)

	// ErrClosed is returned by Add after Close.
	ErrClosed = errors.New("pool: closed")

	errAbnormal = errors.New("pool: the attempt ended by panic or runtime.Goexit")
)

// UnavailableError says that nobody is left: every member of the pool was passed over, rejected the call or failed.
// errors.Is(err, breaker.ErrOpen) holds. It unwraps to Last, so that errors.Is and errors.As find what a member really
// returned.
type UnavailableError struct {
	Reasons []Reason // one for each member, in the pool's order
	Last    error    // the error of the last member that was called and failed; nil if none was

	until time.Time // when the first of them is due; zero when unknown
	now   func() time.Time
}

// Reason is why a member did not answer.
type Reason struct {
	Member string
	Called bool  // fn ran for it
	Err    error // what it returned, or the rejection that it met or would have met
}

// Error names the members and why, those that were called with what they returned.
func (e *UnavailableError) Error() string {
	if len(e.Reasons) == 0 {
		return "pool: no members"
	}
	var b strings.Builder
	b.WriteString("pool: no member is available")
	sep := ": "
	for _, r := range e.Reasons {
		fmt.Fprintf(&b, "%s%s: %v", sep, r.Member, r.Err)
		sep = "; "
	}
	return b.String()
}

// Is reports whether target is breaker.ErrOpen.
func (e *UnavailableError) Is(target error) bool { return target == breaker.ErrOpen }

// Unwrap returns Last.
func (e *UnavailableError) Unwrap() error { return e.Last }

// RetryAfter is the time left until the first of the members is due: until its circuit lets a probe through, or until
// when the error that it returned asked to be left alone. It is never negative, and 0 when unknown.
func (e *UnavailableError) RetryAfter() time.Duration {
	if e.until.IsZero() {
		return 0
	}
	now := time.Now
	if e.now != nil {
		now = e.now
	}
	return max(0, e.until.Sub(now()))
}

// due notes a time at which a member may be back.
func (e *UnavailableError) due(at time.Time) {
	if !at.IsZero() && (e.until.IsZero() || at.Before(e.until)) {
		e.until = at
	}
}

// Stop marks an error as the end of a Do: it is settled for what it is, and returned, without another member being called.
// It is for what must not be done twice: a request that is out, and may have been acted on. Stop(nil) is nil.
//
// The mark is the pool's and does not reach the caller of Do, or the classifier, unless other errors are wrapped around it.
func Stop(err error) error {
	if err == nil {
		return nil
	}
	return &stopError{err}
}

type stopError struct{ err error }

func (e *stopError) Error() string { return e.err.Error() }
func (e *stopError) Unwrap() error { return e.err }

// withoutMark takes the mark of Stop off an error.
func withoutMark(err error) (bare error, stop bool) {
	if s, ok := err.(*stopError); ok {
		return s.err, true
	}
	_, stop = errors.AsType[*stopError](err)
	return err, stop
}

// rejection reports whether an error is a circuit's, limiter's or pool's refusal to call.
func rejection(err error) bool {
	return errors.Is(err, breaker.ErrOpen) || errors.Is(err, breaker.ErrTooManyInFlight)
}
