package breaker

import (
	"context"
	"errors"
	"time"
)

// DefaultClassifier takes nil for Success, a rejection by an inner circuit or limiter for Ignored, since the dependency was
// not asked, and everything else for Failure.
//
// A rejection has ErrOpen or ErrTooManyInFlight in its chain. Several errors joined into one (errors.Join, or more than one
// %w) are a rejection only if each of them is: where a circuit opens amid its own retries, or a fallback fails after a
// rejection, something has been called and has failed.
func DefaultClassifier(err error) Outcome {
	switch {
	case err == nil:
		return Success
	case rejection(err):
		return Ignored
	}
	return Failure
}

// preclassify decides what no classifier is asked about: the caller's own cancel, then WithFailOn, then WithIgnore.
func (s *settings) preclassify(ctx context.Context, err error) (Outcome, bool) {
	if err == nil {
		return Success, false
	}
	if ended := ctx.Err(); ended != nil && (s.draft.cfg.IgnoreCallerDeadline || !errors.Is(ended, context.DeadlineExceeded)) {
		return Ignored, true
	}
	for _, e := range s.draft.failOn {
		if errors.Is(err, e) {
			return Failure, true
		}
	}
	for _, e := range s.draft.ignore {
		if errors.Is(err, e) {
			return Ignored, true
		}
	}
	for _, e := range s.draft.answered {
		if errors.Is(err, e) {
			return Answered, true
		}
	}
	return Success, false
}

// validOutcome turns what is no Outcome into Failure.
func validOutcome(o Outcome) Outcome {
	if int(o) >= len(outcomeNames) {
		return Failure
	}
	return o
}

// rejection reports whether an error is a circuit's or limiter's refusal to call, so that nothing has run. It asks for both
// targets at once and allocates nothing, which saves every failure 5 ns. Unlike with errors.Is, one rejection among joined
// errors is not enough: the others are what did run.
func rejection(err error) bool {
	for err != nil {
		if err == ErrOpen || err == ErrTooManyInFlight {
			return true
		}
		if e, ok := err.(interface{ Is(error) bool }); ok && (e.Is(ErrOpen) || e.Is(ErrTooManyInFlight)) {
			return true
		}
		switch e := err.(type) {
		case interface{ Unwrap() error }:
			err = e.Unwrap()
		case interface{ Unwrap() []error }:
			return allRejections(e.Unwrap())
		default:
			return false
		}
	}
	return false
}

// allRejections reports whether there are errors, and each is a rejection. A nil among them says nothing.
func allRejections(errs []error) bool {
	found := false
	for _, err := range errs {
		if err == nil {
			continue
		}
		if !rejection(err) {
			return false
		}
		found = true
	}
	return found
}

// hint is how long a failure asks callers to wait (RetryAfter), within the limit of WithOpenHint.
func (s *settings) hint(err error) time.Duration {
	if s.hintMax == 0 || err == nil {
		return 0
	}
	return min(max(0, retryAfter(err)), s.hintMax)
}

// retryAfter returns the first RetryAfter in an error's chain; 0 if there is none. Every failure is asked, and errors.As
// would cost more.
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
