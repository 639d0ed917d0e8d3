package breakertest

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// Rig is a circuit with what a test needs around it.
type Rig struct {
	*World
	B      *breaker.Breaker[int]
	C      *breaker.Circuit
	Events *Recorder
	Ran    atomic.Int64 // how often a function really ran
}

// Circuit makes a rig with the default options and then some.
func (w *World) Circuit(opts ...breaker.Option) *Rig {
	w.Helper()
	r := &Rig{World: w, Events: NewRecorder()}
	all := w.Options(breaker.WithHooks(r.Events.Hooks()))
	all = append(append(all, w.Way.Options...), opts...)
	b, err := breaker.New[int]("test", all...)
	require.NoError(w, err)
	r.B, r.C = b, b.Circuit()
	w.AtEnd(func() { _ = r.C.Close() })
	return r
}

// R0 makes the rig that most cases use: 3 failures open it for 10s, 1 success of 1 probe at a time closes it.
func (w *World) R0(opts ...breaker.Option) *Rig {
	w.Helper()
	return w.Circuit(append([]breaker.Option{
		breaker.WithFailureThreshold(3),
		breaker.WithSuccessThreshold(1),
		breaker.WithOpenTimeout(10 * time.Second),
	}, opts...)...)
}

// Call makes one call whose function returns err.
func (r *Rig) Call(err error) error { return r.CallContext(context.Background(), err) }

// CallContext is Call with a context.
func (r *Rig) CallContext(ctx context.Context, err error) error {
	_, got := r.Way.Call(r, ctx, func(context.Context) (int, error) {
		r.Ran.Add(1)
		return 7, err
	})
	return got
}

// Succeeds makes n good calls.
func (r *Rig) Succeeds(n int) {
	r.Helper()
	for range n {
		ran := r.Ran.Load()
		require.NoError(r, r.Call(nil), "at %v", r.Elapsed())
		require.Equal(r, ran+1, r.Ran.Load())
	}
}

// Fails makes n failing calls.
func (r *Rig) Fails(n int) {
	r.Helper()
	for range n {
		r.FailsWith(ErrBoom)
	}
}

// FailsWith makes a call that fails with err.
func (r *Rig) FailsWith(err error) {
	r.Helper()
	ran := r.Ran.Load()
	require.Equal(r, err, r.Call(err), "at %v", r.Elapsed())
	require.Equal(r, ran+1, r.Ran.Load())
}

// FailsAt makes a failing call at each time, in milliseconds, that is admitted.
func (r *Rig) FailsAt(ms ...int) {
	r.Helper()
	for _, at := range ms {
		r.At(time.Duration(at) * time.Millisecond)
		r.Fails(1)
	}
}

// Trip makes the calls that open the circuit.
func (r *Rig) Trip() {
	r.Helper()
	r.Is(breaker.Closed)
	r.Fails(r.C.Config().FailureThreshold)
	r.Is(breaker.Open)
}

// Rejected makes a call that must be rejected.
func (r *Rig) Rejected() *breaker.OpenError {
	r.Helper()
	ran := r.Ran.Load()
	err := r.Call(nil)
	require.ErrorIs(r, err, breaker.ErrOpen, "at %v", r.Elapsed())
	require.Equal(r, ran, r.Ran.Load(), "a rejected call ran")
	var open *breaker.OpenError
	require.ErrorAs(r, err, &open)
	require.GreaterOrEqual(r, open.RetryAfter(), time.Duration(0))
	return open
}

// Acquire takes a permit that must be given.
func (r *Rig) Acquire() *breaker.Permit {
	r.Helper()
	p, err := r.C.Acquire(context.Background())
	require.NoError(r, err, "at %v", r.Elapsed())
	return p
}

// Is requires a state.
func (r *Rig) Is(want breaker.State) {
	r.Helper()
	require.Equal(r, want, r.C.State(), "at %v; events: %v", r.Elapsed(), r.Steps())
}

// Steps is what has happened to the circuit, one line for each change.
func (r *Rig) Steps() []string {
	var all []string
	for _, t := range r.Events.List() {
		all = append(all, fmt.Sprintf("%v>%v at %v: %s", t.From, t.To, t.At.Sub(r.Start), t.Reason))
	}
	return all
}

// Idle requires that nothing is in flight and no slot in use.
func (r *Rig) Idle() {
	r.Helper()
	s := r.C.Snapshot()
	require.Zero(r, s.InFlight, "calls in flight")
	require.Zero(r, s.Probes, "slots in use")
}

// Gate is a call that stays inside its function until it is told to finish.
type Gate struct {
	Release chan error
	Result  chan error
	Ran     bool
	r       *Rig
}

// Begin starts a call and waits until it is inside its function or has been rejected.
func (r *Rig) Begin() *Gate { return r.BeginContext(context.Background()) }

// BeginContext is Begin with a context.
func (r *Rig) BeginContext(ctx context.Context) *Gate {
	g := &Gate{r: r, Release: make(chan error, 1), Result: make(chan error, 1)}
	entered := make(chan struct{})
	go func() {
		_, err := r.Way.Call(r, ctx, func(context.Context) (int, error) {
			r.Ran.Add(1)
			close(entered)
			return 7, <-g.Release
		})
		g.Result <- err
	}()
	select {
	case <-entered:
		g.Ran = true
		r.AtEnd(func() {
			select {
			case g.Release <- ErrBoom:
			default: // already finished
			}
		})
	case err := <-g.Result:
		g.Result <- err
	}
	return g
}

// Gate starts a call that must be admitted.
func (r *Rig) Gate() *Gate {
	r.Helper()
	return r.GateContext(context.Background())
}

// GateContext is Gate with a context.
func (r *Rig) GateContext(ctx context.Context) *Gate {
	r.Helper()
	g := r.BeginContext(ctx)
	if !g.Ran {
		require.NoError(r, <-g.Result, "at %v: a call that should be admitted", r.Elapsed())
	}
	return g
}

// Finish ends the call with err, which must come out of it unchanged.
func (g *Gate) Finish(err error) {
	g.r.Helper()
	require.True(g.r, g.Ran, "a rejected call has nothing to finish")
	g.Release <- err
	require.Equal(g.r, err, <-g.Result)
}
