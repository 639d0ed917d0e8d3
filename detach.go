package breaker

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// Detach wraps a function that may ignore its context. It runs fn in a goroutine of its own, with a context that ends
// after d, and returns when fn does, or when that context ends, with the context's error. What fn returns after that is
// dropped. A panic in fn is raised again in the caller; once the caller has returned, it is recovered and logged by
// [slog.Default]. If fn ends its goroutine with runtime.Goexit, the error is [ErrGoexit]. d must be above 0 and fn not
// nil, otherwise every call returns an error.
func Detach[T any](d time.Duration, fn func(context.Context) (T, error)) func(context.Context) (T, error) {
	var f faults
	f.positive("Detach", d)
	if fn == nil {
		f = append(f, ErrNilFunc)
	}
	if err := f.err(); err != nil {
		return func(context.Context) (v T, _ error) { return v, err }
	}
	return func(ctx context.Context) (T, error) {
		ctx, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		return detached(ctx, fn)
	}
}

// detachedResult is how a detached function ended.
type detachedResult[T any] struct {
	value    T
	err      error
	panicked bool
	panic    any
}

// detached runs fn in a goroutine and waits for it or for ctx.
func detached[T any](ctx context.Context, fn func(context.Context) (T, error)) (v T, err error) {
	ends := make(chan detachedResult[T])
	go func() {
		e := detachedResult[T]{err: ErrGoexit, panicked: true}
		defer func() {
			if e.panicked {
				e.panic = recover()
				e.panicked = e.panic != nil
			}
			select {
			case ends <- e:
			case <-ctx.Done():
				if e.panicked {
					slog.Default().Error("breaker: panic in a detached function after its deadline", "panic", fmt.Sprint(e.panic))
				}
			}
		}()
		e.value, e.err = fn(ctx)
		e.panicked = false
	}()
	select {
	case e := <-ends:
		if e.panicked {
			panic(e.panic)
		}
		return e.value, e.err
	case <-ctx.Done():
		return v, ctx.Err()
	}
}
