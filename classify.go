package breaker

import (
	"context"
	"errors"
	"slices"
	"time"
)

// DefaultClassifier returns Success for nil, and Ignored for the rejection by another circuit or limiter (ErrOpen or
// ErrTooManyInFlight anywhere in the chain), since the dependency was not called. Every other error is a Failure.
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
	return Success, false
}

// validOutcome turns what is no Outcome into Failure.
func validOutcome(o Outcome) Outcome {
	if int(o) >= len(outcomeNames) {
		return Failure
	}
	return o
}

// rejection reports whether an error is a circuit's or limiter's refusal to call. It is errors.Is for both targets at
// once, which saves 5 ns for each failure.
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
			return slices.ContainsFunc(e.Unwrap(), rejection)
		default:
			return false
		}
	}
	return false
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
