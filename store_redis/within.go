package storeredis

import (
	"context"
	"fmt"
	"time"
)

// within calls f, and returns what it does, but no later than ctx ends or d has passed: a client may be held up by a
// connection that it makes, and does not hear of a cancel while it reads. f is given the time limit, and goes on behind.
func within[T any](ctx context.Context, d time.Duration, f func(context.Context) T) (T, error) {
	var none T
	limited, cancel := context.WithTimeout(ctx, d)
	done := make(chan T, 1)
	go func() {
		defer cancel()
		done <- f(limited)
	}()
	select {
	case v := <-done:
		return v, nil
	case <-limited.Done():
	}
	select {
	case v := <-done: // that f has returned ends limited too
		return v, nil
	default:
	}
	if err := ctx.Err(); err != nil {
		return none, err
	}
	return none, fmt.Errorf("no answer within %v: %w", d, context.DeadlineExceeded)
}
