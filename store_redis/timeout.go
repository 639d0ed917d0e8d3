package storeredis

import (
	"context"
	"fmt"
	"time"
)

// withTimeout calls f and returns its result, but no later than when ctx ends or d has passed: a client may be busy with
// making a connection, and does not notice a cancel while it reads. f is given a context with that limit; where it does not
// return in time, its goroutine goes on, and its result is dropped.
func withTimeout[T any](ctx context.Context, d time.Duration, f func(context.Context) T) (T, error) {
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
	case v := <-done: // f has returned: that cancels limited too
		return v, nil
	default:
	}
	if err := ctx.Err(); err != nil {
		return none, err
	}
	return none, fmt.Errorf("no answer within %v: %w", d, context.DeadlineExceeded)
}
