package breaker

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"
)

// Detach wraps a function that may ignore its context. It runs fn in a goroutine of its own, with a context that ends
// after d, and returns when fn does, or when that context ends, with the context's error. What fn returns after that is
// dropped. A panic in fn is raised again in the caller; once the caller has returned, it is recovered and logged by
// [slog.Default]. If fn ends its goroutine with runtime.Goexit, the error is [ErrGoexit]. d must be above 0 and fn not
// nil, otherwise every call returns an error.
//
// Within a function given to a circuit with [WithMaxInFlight], and with the context given to it, an fn that is left behind
// keeps the call's place until it ends: it counts in Snapshot.InFlight, and a dependency that hangs is not called by more
// goroutines than the limit. In a function that leaves several behind, each takes a place. A call that was admitted before
// the process made its first detached function does not know of this.
func Detach[T any](d time.Duration, fn func(context.Context) (T, error)) func(context.Context) (T, error) {
	var f faults
	f.positive("Detach", d)
	if fn == nil {
		f = append(f, ErrNilFunc)
	}
	if err := f.err(); err != nil {
		return func(context.Context) (v T, _ error) { return v, err }
	}
	if !detaching.Load() {
		detaching.Store(true)
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
	var left leftBehind
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
				left.end(ctx)
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
		left.leave(ctx)
		return v, ctx.Err()
	}
}

// detaching is true once there is a detached function in the process. Only then a call with a place has a context of its
// own, which is an allocation.
var detaching atomic.Bool

// placeContext is the context of a call that has a place among those of WithMaxInFlight. By it Detach finds the circuits
// whose places it has to keep.
type placeContext struct {
	context.Context
	circuit *Circuit
}

type placeKey struct{}

func (p *placeContext) Value(key any) any {
	if key == (placeKey{}) {
		return p
	}
	return p.Context.Value(key)
}

// withPlace is the context for the function of an admitted call.
func (c *Circuit) withPlace(ctx context.Context, k *call) context.Context {
	if k.cell != nil || !detaching.Load() || c.load().policy.maxInFlight == 0 { // a circuit with a limit has no fast path
		return ctx
	}
	return &placeContext{ctx, c}
}

// keepPlaces counts a function that is left behind, or with -1 one that has ended, in every circuit around it.
func keepPlaces(ctx context.Context, n int64) {
	for {
		p, ok := ctx.Value(placeKey{}).(*placeContext)
		if !ok {
			return
		}
		p.circuit.mu.Lock()
		p.circuit.extrasLocked().left += n
		p.circuit.mu.Unlock()
		ctx = p.Context
	}
}

// leftBehind is a detached function whose caller may leave it. The caller leaves before its call is settled, so that its
// place is never free in between; for as long as both count, the circuit admits one call less.
type leftBehind struct{ state atomic.Uint32 }

const (
	detachRunning uint32 = iota
	detachLeft
	detachEnded
)

// leave keeps the function's places until it ends.
func (l *leftBehind) leave(ctx context.Context) {
	keepPlaces(ctx, 1)
	if !l.state.CompareAndSwap(detachRunning, detachLeft) { // it has just ended
		keepPlaces(ctx, -1)
	}
}

// end gives the places back that leave has kept.
func (l *leftBehind) end(ctx context.Context) {
	if l.state.Swap(detachEnded) == detachLeft {
		keepPlaces(ctx, -1)
	}
}
