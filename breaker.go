package breaker

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"
)

// Breaker is a typed view of a [Circuit], with the call options: timeout, retries, fallbacks. Several views, of
// different types, may share one circuit (Over). It is safe for concurrent use. Make one with New or Over: the zero
// value panics and says so.
type Breaker[T any] struct {
	circuit *Circuit
	policy  *callPolicy[T] // nil for a breaker of New without call options
}

// callPolicy is a breaker's call options. It is immutable.
type callPolicy[T any] struct {
	view      bool // made by Over
	direct    bool // Do may make the first attempt itself, without try
	timeout   time.Duration
	result    func(T, error) Outcome
	retry     *retryPolicy
	fallbacks []fallback[T]
	lastGood  []*lastGood[T] // those of fallbacks that are by WithLastGood

	recursive bool // a fallback asks a function, which may lead back to the breaker
	failover  bool // a fallback asks another dependency
}

// Result is the outcome of Try: the answer and how it came about.
type Result[T any] struct {
	Value    T
	Err      error
	Attempts int    // how often fn was called
	Rescue   Rescue // where the answer came from; "" for a first attempt that succeeded, or no answer
}

// New makes a circuit and a typed view of it. The error names every option that is wrong.
func New[T any](name string, opts ...Option) (*Breaker[T], error) {
	d := newDraft("New", scopeCircuit|scopeFixed|scopeSnapshot|scopeCall, opts)
	p := newCallPolicy[T](d)
	c, err := newCircuit(name, d)
	if err != nil {
		return nil, err
	}
	return p.newView(c), nil
}

// Over makes another typed view of a circuit. It takes call options only. Closing it closes nothing.
func Over[T any](c *Circuit, opts ...Option) (*Breaker[T], error) {
	d := newDraft("Over", scopeCall, opts)
	p := newCallPolicy[T](d)
	if c == nil {
		d.faults.add("Circuit", "must not be nil")
	}
	if err := d.faults.err(); err != nil {
		return nil, err
	}
	c.load()
	if p == nil {
		p = &callPolicy[T]{direct: true}
	}
	p.view = true
	return p.newView(c), nil
}

// Must returns b, or panics with err. It is for breakers and circuits made once, with options known to be right.
func Must[B any](b B, err error) B {
	if err != nil {
		panic(err)
	}
	return b
}

// newCallPolicy is the call options of a draft; nil if there are none.
func newCallPolicy[T any](d *draft) *callPolicy[T] {
	p := &callPolicy[T]{timeout: d.call.timeout, retry: d.call.retry}
	if d.call.result != nil {
		f, ok := d.call.result.(func(T, error) Outcome)
		if !ok {
			d.faults.add("Result", "must take the breaker's type %v, got %T", reflect.TypeFor[T](), d.call.result)
		}
		p.result = f
	}
	bindFallbacks(p, d)
	if p.timeout == 0 && p.result == nil && p.retry == nil && len(p.fallbacks) == 0 {
		return nil
	}
	p.direct = p.timeout == 0 && p.result == nil && len(p.lastGood) == 0 && !p.retry.counts()
	return p
}

// newView is a breaker of c with the policy.
func (p *callPolicy[T]) newView(c *Circuit) *Breaker[T] {
	b := p.bind(c)
	return &b
}

// bind is newView by value. With WithLastGood every breaker has a memory of its own.
func (p *callPolicy[T]) bind(c *Circuit) Breaker[T] {
	if p != nil && len(p.lastGood) > 0 {
		p = p.withMemory(c)
	}
	return Breaker[T]{circuit: c, policy: p}
}

// Do calls fn if the circuit admits it, and returns what fn returned, or what retries and fallbacks made of it. A
// rejected call returns the zero T and an [*OpenError], or [ErrTooManyInFlight]. If the context is already done, its
// error is returned before anything is counted. The outcome is settled however fn ends; a panic or runtime.Goexit in fn
// goes on to the caller.
func (b *Breaker[T]) Do(ctx context.Context, fn func(context.Context) (T, error)) (v T, err error) {
	c := b.load()
	if p := b.policy; p != nil && (!p.direct || p.failover && c.failingOver(ctx)) || fn == nil {
		r := b.try(ctx, fn, nil)
		return r.Value, r.Err
	}
	if err := ctx.Err(); err != nil {
		return v, err
	}
	w := c.word.Load() // up to the defer this is c.admit inline: calling it would take a tenth of Do's time
	if w&wordFast == 0 {
		if sh := c.cachedRejection.Load(); sh != nil {
			if !sh.fast {
				if err := c.rejectCached(ctx); err != nil {
					return b.afterRefusal(ctx, fn, err)
				}
			} else if sh.now() < sh.expires && (sh.refusal != refusedProbes || c.probing(ctx) == 0) { // c.rejectCached inline: of 32 ns the clock takes 23, and the two calls took 2
				cl := c.counters()
				if n := cl.rejected.Load(); !cl.rejected.CompareAndSwap(n, n+1) {
					c.retryCountRejection(cl)
				}
				if b.policy == nil {
					return v, sh.err
				}
				return b.afterRefusal(ctx, fn, sh.err)
			}
		}
	}
	var k call
	inner := ctx
	if w&wordFast != 0 {
		k.enter(c, w)
	} else if err := c.admitSlow(ctx, &k, w); err != nil {
		return b.afterRefusal(ctx, fn, err)
	} else {
		inner = c.contextFor(ctx, &k)
	}
	defer func() {
		if !k.settled {
			c.abort(ctx, &k)
		}
	}()
	v, err = fn(inner)
	if err == nil && c.succeed(&k) {
		return v, nil
	}
	o := c.finish(ctx, &k, err)
	if err != nil && b.policy != nil {
		r := b.afterFirst(ctx, fn, nil, finishedAttempt(v, err, o, false), b.policy.retry.begin(c.load().time))
		return r.Value, r.Err
	}
	return v, err
}

// afterRefusal ends a call that the circuit did not admit: fallbacks may answer it.
func (b *Breaker[T]) afterRefusal(ctx context.Context, fn func(context.Context) (T, error), err error) (v T, _ error) {
	if b.policy == nil {
		return v, err
	}
	r := b.afterFirst(ctx, fn, nil, attempt[T]{err: err, outcome: Ignored, rescue: true}, retryLoop{})
	return r.Value, r.Err
}

// Try is Do, but also returns how the answer came about.
func (b *Breaker[T]) Try(ctx context.Context, fn func(context.Context) (T, error)) Result[T] {
	b.load()
	return b.try(ctx, fn, nil)
}

// DoOr is Do with a last fallback for this call: alt answers if the call was rejected or failed and no other fallback
// has answered; it gets the error. It is not called after a success, after an Answered or Ignored outcome, or after the caller
// has canceled; after the caller's deadline it is. If alt fails too, the error wraps both.
func (b *Breaker[T]) DoOr(ctx context.Context, fn func(context.Context) (T, error), alt func(context.Context, error) (T, error)) (T, error) {
	b.load()
	r := b.try(ctx, fn, alt)
	return r.Value, r.Err
}

// Wrap returns a function that calls Do with fn.
func (b *Breaker[T]) Wrap(fn func(context.Context) (T, error)) func(context.Context) (T, error) {
	b.load()
	return func(ctx context.Context) (T, error) { return b.Do(ctx, fn) }
}

// Circuit returns the circuit that b is a view of. Its Run and Acquire do not apply b's call options.
func (b *Breaker[T]) Circuit() *Circuit { return b.load() }

// Name is the circuit's name.
func (b *Breaker[T]) Name() string { return b.load().Name() }

// State is the circuit's state; see [Circuit.State].
func (b *Breaker[T]) State() State { return b.load().State() }

// Ready reports whether the circuit would admit a call now; see [Circuit.Ready].
func (b *Breaker[T]) Ready() bool { return b.load().Ready() }

// Snapshot reads the circuit; see [Circuit.Snapshot].
func (b *Breaker[T]) Snapshot() Snapshot { return b.load().Snapshot() }

// Close closes the circuit that New made; see [Circuit.Close]. On a view made by Over it does nothing.
func (b *Breaker[T]) Close() error {
	c := b.load()
	if b.policy != nil && b.policy.view {
		return nil
	}
	return c.Close()
}

// load returns the circuit, and panics by name for a Breaker that no constructor made.
func (b *Breaker[T]) load() *Circuit {
	if b == nil || b.circuit == nil {
		panic("breaker: nil or zero Breaker; make one with New or Over")
	}
	return b.circuit
}

// precheck is what is checked before anything is counted or taken.
func precheck(ctx context.Context, nilFunc bool) error {
	if nilFunc {
		return ErrNilFunc
	}
	return ctx.Err()
}

// attempt is the result of one attempt: one call of fn, or its rejection.
type attempt[T any] struct {
	value   T
	err     error
	outcome Outcome
	ran     bool // false: rejected
	rescue  bool // a retry or a fallback may answer instead
}

// finishedAttempt is the result of an attempt that ran. overran says that it took longer than its timeout. Such an
// attempt is a Failure; if it returned a value nevertheless, that is the answer, and nothing is done about it.
func finishedAttempt[T any](v T, err error, o Outcome, overran bool) attempt[T] {
	a := attempt[T]{value: v, err: err, outcome: o, ran: true}
	a.rescue = o == Failure && !(overran && err == nil) || o == Ignored && rejection(err)
	return a
}

// try is Do with everything that the call options ask for.
func (b *Breaker[T]) try(ctx context.Context, fn func(context.Context) (T, error), alt func(context.Context, error) (T, error)) Result[T] {
	if err := precheck(ctx, fn == nil); err != nil {
		return Result[T]{Err: err}
	}
	if b.policy != nil && b.policy.failover && b.circuit.failingOver(ctx) {
		err := b.circuit.failoverRejection()
		return b.afterFirst(ctx, fn, alt, attempt[T]{err: err, outcome: Ignored, rescue: true}, retryLoop{})
	}
	var loop retryLoop
	if b.policy != nil {
		loop = b.policy.retry.begin(b.circuit.load().time)
	}
	a := b.attempt(ctx, fn)
	if a.ran {
		loop.ran()
	}
	return b.afterFirst(ctx, fn, alt, a, loop)
}

// afterFirst does what follows the first attempt: retries, then fallbacks.
func (b *Breaker[T]) afterFirst(ctx context.Context, fn func(context.Context) (T, error), alt func(context.Context, error) (T, error), a attempt[T], loop retryLoop) (r Result[T]) {
	r.Value, r.Err = a.value, a.err
	if a.ran {
		r.Attempts = 1
	}
	if loop.p != nil {
		b.retry(ctx, fn, &a, &r, &loop)
	}
	if a.rescue && !cancelled(ctx) && (alt != nil || b.policy != nil && len(b.policy.fallbacks) > 0) {
		return b.rescue(ctx, r, alt)
	}
	return r
}

// retry repeats the attempt a as long as it fails and the policy allows. a becomes the last attempt.
func (b *Breaker[T]) retry(ctx context.Context, fn func(context.Context) (T, error), a *attempt[T], r *Result[T], loop *retryLoop) {
	c := b.circuit
	var last, because error // the last failure; why there is no further attempt
	for a.ran && a.rescue && a.outcome == Failure && ctx.Err() == nil {
		last = a.err
		if last == nil {
			last = ErrUnacceptable
		}
		var again bool
		if again, because = loop.again(ctx, c, r.Attempts, last); !again {
			break
		}
		next := b.attempt(ctx, fn)
		if !next.ran {
			because = next.err
			break
		}
		c.countRetry()
		*a = next
		r.Value, r.Err = a.value, a.err
		r.Attempts++
	}
	switch {
	case because != nil && r.Err != nil:
		r.Err = also(r.Err, because)
	case r.Attempts > 1 && a.outcome == Success && a.err == nil:
		r.Rescue = RescueRetry
		c.rescued(ctx, RescueEvent{Kind: RescueRetry, Cause: last})
	}
	r.Err = retried(r.Attempts, r.Err)
}

// attempt makes one attempt: admission, fn under the attempt's timeout, settlement.
func (b *Breaker[T]) attempt(ctx context.Context, fn func(context.Context) (T, error)) (a attempt[T]) {
	c := b.circuit
	var k call
	if err := c.admit(ctx, &k); err != nil {
		return attempt[T]{err: err, outcome: Ignored, rescue: true}
	}
	var started int64
	keeps := b.policy != nil && len(b.policy.lastGood) > 0
	if keeps {
		started = c.load().time.now()
	}
	defer func() {
		if !k.settled {
			c.abort(ctx, &k)
		}
	}()
	v, err, overran := b.call(c.contextFor(ctx, &k), fn)
	if err == nil && !overran && (b.policy == nil || b.policy.result == nil) && c.succeed(&k) {
		a = finishedAttempt(v, nil, Success, false)
	} else {
		o := b.classify(ctx, v, err, overran)
		c.settle(ctx, &k, o, err)
		a = finishedAttempt(v, err, o, overran)
	}
	if keeps && a.outcome == Success && err == nil {
		for _, g := range b.policy.lastGood {
			g.keep(ctx, v, started)
		}
	}
	return a
}

// errAttemptTimeout is the cause of a context that WithTimeout has ended.
var errAttemptTimeout = fmt.Errorf("breaker: attempt timed out: %w", context.DeadlineExceeded)

// call calls fn under the attempt's timeout, and reports whether it took longer than that.
func (b *Breaker[T]) call(ctx context.Context, fn func(context.Context) (T, error)) (v T, err error, overran bool) {
	if b.policy == nil || b.policy.timeout == 0 {
		v, err = fn(ctx)
		return v, err, false
	}
	t := b.circuit.load().time
	limit := b.policy.timeout
	start := t.now()
	attemptCtx, cancel := t.withTimeout(ctx, limit, errAttemptTimeout)
	defer cancel()
	v, err = fn(attemptCtx)
	switch attemptCtx.Err() {
	case nil: // the context's timer may be late
		overran = t.now()-start >= int64(limit)
	case context.DeadlineExceeded:
		overran = context.Cause(attemptCtx) == errAttemptTimeout
	}
	return v, err, overran
}

// classify decides which outcome an attempt is.
func (b *Breaker[T]) classify(ctx context.Context, v T, err error, overran bool) Outcome {
	s := b.circuit.load()
	if overran && (err == nil || ctx.Err() == nil || !errors.Is(ctx.Err(), context.Canceled)) {
		return Failure
	}
	o, decided := s.preclassify(ctx, err)
	switch {
	case decided:
	case b.policy != nil && b.policy.result != nil:
		o = validOutcome(b.policy.result(v, err))
	case err != nil:
		o = validOutcome(s.classify(err))
	}
	return o
}
