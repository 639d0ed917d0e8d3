package pool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/breakerkit/breaker"
)

// Do calls fn with the value of one member after another, until one of them answers, and returns what fn returned for it.
// Which member is first is the strategy's to say; when to move on, the package's documentation.
//
// fn's context ends when the pool's limit or the attempt's timeout passes, when the attempt fails, and when ctx ends. Once
// fn has returned a value without an error, only the end of ctx ends it.
//
// A context that is already done is returned before anything is counted or called, and [breaker.ErrNilFunc] for a nil fn.
// If nobody is left, the error is an [*UnavailableError], beside the value that the last member that was called returned. If ctx ends
// meanwhile, the error is ctx's (errors.Is) with what the member returned; if the limit passes, it is [ErrLimit] with that. A panic in fn, and
// runtime.Goexit, is a Failure of the member, and goes on as it was: no other member is called.
func Do[E, T any](ctx context.Context, p *Pool[E], fn func(context.Context, E) (T, error)) (v T, err error) {
	r := p.load()
	if fn == nil {
		return v, breaker.ErrNilFunc
	}
	if err := ctx.Err(); err != nil {
		return v, err
	}
	t := tour{walk: newWalk(&r.rota, p.core.rand), core: &p.core, ctx: ctx}
	if p.core.limit > 0 {
		t.limit = read(p.core.clock).Add(p.core.limit)
	}
	for {
		i, past, ok := t.next()
		if !ok {
			return v, t.unavailable()
		}
		got, how, gotErr := attempt(&t, i, past, r.values[i], fn)
		switch how {
		case answered:
			return got, gotErr
		case failed:
			v = got
		}
	}
}

// ending is how an attempt ended.
type ending uint8

const (
	answered ending = iota // Do returns what it brought
	failed                 // somebody else is called
	refused                // it was not made
)

// attempt calls fn for one member. However it ends, what it took of the circuit is settled.
func attempt[E, T any](t *tour, i int, past bool, value E, fn func(context.Context, E) (T, error)) (v T, how ending, err error) {
	var permit breaker.Permit
	if !past {
		if permit, err = acquire(t.rota.slots[i].circuit, t.ctx); err != nil {
			how, err = t.refused(err)
			return v, how, err
		}
	}
	ctx, l := t.context(i)
	ended, abrupt := false, breaker.Ignored
	defer func() {
		if !ended {
			permit.Settle(abrupt, errAbnormal)
			l.finish(context.Canceled)
		}
	}()
	if t.calls != nil {
		t.moved(i)
	}
	abrupt = breaker.Failure
	v, err = fn(ctx, value)
	if err == nil {
		t.succeeded(i, past, &permit, l)
	} else {
		how, err = t.failed(i, &permit, l, err)
	}
	ended = true
	return v, how, err
}

// tour is one Do.
type tour struct {
	walk
	core  *core
	ctx   context.Context // the caller's
	limit time.Time       // when all of it must end; zero for never
	calls []error         // what the members that were called and failed returned; nil while there is none
	prev  int             // the last of them
	last  error           // the last real error of one: not a rejection
}

// context is the context of an attempt on a member. Where nothing limits it, it is the caller's.
func (t *tour) context(i int) (context.Context, *leash) {
	timeout := t.rota.slots[i].timeout
	if timeout == 0 && t.limit.IsZero() {
		return t.ctx, nil
	}
	l := &leash{Context: t.ctx, clock: t.core.clock, end: t.limit, limit: true}
	if timeout > 0 {
		if at := read(l.clock).Add(timeout); t.limit.IsZero() || at.Before(t.limit) {
			l.end, l.limit = at, false
		}
	}
	return l, l
}

// moved tells the hooks who is called next.
func (t *tour) moved(i int) {
	m := Moved{From: t.rota.slots[t.prev].name, To: t.rota.slots[i].name, Err: t.calls[t.prev]}
	for _, f := range t.core.hooks {
		func() {
			defer func() { _ = recover() }()
			f(t.ctx, m)
		}()
	}
}

// refused is the end of an attempt that was not made: another call has taken the last slot, or the caller has gone.
func (t *tour) refused(err error) (ending, error) {
	if t.ctx.Err() != nil && !rejection(err) {
		return answered, t.callerEnded(t.last)
	}
	return refused, nil
}

// succeeded settles an attempt that brought a value. One that took longer than its own timeout allowed has failed, but
// its value is the answer; the pool's limit is not the fault of a member that answers.
func (t *tour) succeeded(i int, past bool, permit *breaker.Permit, l *leash) {
	if l != nil && !l.limit && l.late() {
		permit.Settle(breaker.Failure, nil)
	} else {
		permit.Done(nil)
		if past {
			t.rota.slots[i].circuit.OfferProbe()
		}
	}
	l.letGo()
}

// failed settles an attempt that brought an error, and says what becomes of the call.
func (t *tour) failed(i int, permit *breaker.Permit, l *leash, err error) (ending, error) {
	s := t.rota.slots[i]
	err, stop := unmark(err)
	alive := t.ctx.Err() == nil
	late := l != nil && l.late()
	outcome := breaker.Failure
	if !alive || !late {
		outcome = s.circuit.Classify(t.ctx, err)
	}
	permit.Settle(outcome, err)
	l.finish(context.Canceled)
	declined := outcome == breaker.Ignored && rejection(err)
	switch {
	case !alive:
		return answered, t.callerEnded(err)
	case stop || outcome != breaker.Failure && !declined:
		return answered, err
	case t.late():
		return answered, limited(err)
	}
	if !declined {
		t.last = err
	}
	if t.calls == nil {
		t.calls = make([]error, len(t.rota.slots))
	}
	t.calls[i], t.prev = err, i
	return failed, err
}

// late reports whether the pool's limit has passed.
func (t *tour) late() bool { return !t.limit.IsZero() && !read(t.core.clock).Before(t.limit) }

// callerEnded is the error of a Do whose caller has gone. err is what the member returned; it may be nil.
func (t *tour) callerEnded(err error) error {
	end := t.ctx.Err()
	switch {
	case err == nil:
		return end
	case errors.Is(err, end):
		return err
	}
	return fmt.Errorf("%w: %w", end, err)
}

// limited is the error of a Do whose limit has passed.
func limited(err error) error {
	if err == context.DeadlineExceeded {
		return ErrLimit
	}
	return fmt.Errorf("%w: %w", ErrLimit, err)
}

// unavailable is the error of a Do that nobody answered.
func (t *tour) unavailable() error {
	e := &UnavailableError{Last: t.last, Reasons: make([]Reason, len(t.rota.slots))}
	if c := t.core.clock; c != nil {
		e.now = c.Now
	}
	now := read(t.core.clock)
	for i, s := range t.rota.slots {
		r := Reason{Member: s.name, Err: s.circuit.Refusal()}
		var due time.Time
		if open, ok := r.Err.(*breaker.OpenError); ok {
			due = open.Until
		}
		switch {
		case t.calls != nil && t.calls[i] != nil:
			r.Called, r.Err = true, t.calls[i]
			if d := retryAfter(r.Err); d > 0 && due.Before(now.Add(d)) {
				due = now.Add(d)
			}
		case r.Err == nil: // it has come back since it was passed over
			r.Err = breaker.ErrOpen
		}
		e.Reasons[i] = r
		e.due(due)
	}
	return e
}

// retryAfter is how long an error asks to be left alone.
func retryAfter(err error) time.Duration {
	if hint, ok := errors.AsType[interface {
		error
		RetryAfter() time.Duration
	}](err); ok {
		return hint.RetryAfter()
	}
	return 0
}
