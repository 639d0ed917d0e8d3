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

	errNameless = errors.New("pool: Name: must be given with WithName where circuits have a Store: circuits of one name share their state")
)

// UnavailableError says that no member is left: every member of the pool was passed over, rejected the call or failed.
//
// It is a rejection, errors.Is(err, breaker.ErrOpen), only if Last is nil: no member was called, or those that were called
// met a rejection themselves. Otherwise it unwraps to Last, so that errors.Is and errors.As find what a member really
// returned, and a circuit or a retry around the pool takes it for the failure that it is.
type UnavailableError struct {
	Reasons []Reason // one for each member, in the pool's order
	Last    error    // the error of the last member that was called and failed, not by a rejection; nil if there was none

	until time.Time // when the first of them is due; zero when unknown
	now   func() time.Time
}

// Reason is why a member did not answer.
type Reason struct {
	Member string
	Called bool  // fn ran for it
	Err    error // what it returned, or the rejection that it met or would have met
}

const (
	maxReasons = 8   // that Error names
	maxText    = 200 // bytes of each that it shows
)

// Error names the members and why, those that were called with what they returned. It names at most eight, of many members
// those that were called first, and shows at most 200 bytes of each reason; Reasons has them all.
func (e *UnavailableError) Error() string {
	if len(e.Reasons) == 0 {
		return "pool: no members"
	}
	what := "pool: no member is available"
	if e.Last != nil {
		what = "pool: no member has answered"
	}
	var b strings.Builder
	b.WriteString(what)
	sep := ": "
	for _, r := range e.shown() {
		fmt.Fprintf(&b, "%s%s: %s", sep, short(r.Member), short(fmt.Sprint(r.Err)))
		sep = "; "
	}
	if more := len(e.Reasons) - maxReasons; more > 0 {
		fmt.Fprintf(&b, "; and %d more", more)
	}
	return b.String()
}

// shown is the reasons that Error names.
func (e *UnavailableError) shown() []Reason {
	if len(e.Reasons) <= maxReasons {
		return e.Reasons
	}
	shown := make([]Reason, 0, maxReasons)
	for _, called := range []bool{true, false} {
		for _, r := range e.Reasons {
			if len(shown) < maxReasons && r.Called == called {
				shown = append(shown, r)
			}
		}
	}
	return shown
}

// short cuts a text, between two characters.
func short(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "…"
}

// Is reports whether target is breaker.ErrOpen and no member has really failed.
func (e *UnavailableError) Is(target error) bool { return target == breaker.ErrOpen && e.Last == nil }

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
