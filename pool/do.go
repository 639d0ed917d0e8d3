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
// fn's context ends when the pool's limit or the attempt's timeout passes, when the attempt fails, and when ctx ends. Its
// Deadline is the earliest of those times. Once fn has returned a value without an error, only the end of ctx ends it.
//
// What fn returned is settled when fn returns. A stream that ends later is then a Success whatever becomes of it, and a
// deadline that was told to the other side still holds for it: use [Pool.Acquire] for streams.
//
// A context that is already done is returned before anything is counted or called, and [breaker.ErrNilFunc] for a nil fn.
// If no member is left, the error is an [*UnavailableError], beside the value that the last member that was called returned.
// If ctx ends meanwhile, no further member is called, and the error is ctx's (errors.Is) with what the member returned; if
// the limit passes, it is [ErrLimit] with that. A panic in fn, and runtime.Goexit, is a Failure of the member, counted
// among its circuit's Totals.Panics, and goes on as it was: no other member is called.
func Do[E, T any](ctx context.Context, p *Pool[E], fn func(context.Context, E) (T, error)) (v T, err error) {
	r := p.load()
	if fn == nil {
		return v, breaker.ErrNilFunc
	}
	if err := ctx.Err(); err != nil {
		return v, err
	}
	i, plain := r.first(&p.settings)
	if !plain {
		return doRest(ctx, p, r, fn, i, v, result{how: untried})
	}
	var res result
	v, ok := tryFirst(ctx, r.entries[i], r.values[i], r.strategy == LeastBusy, fn, &res)
	if ok {
		return v, nil
	}
	return doRest(ctx, p, r, fn, i, v, res)
}

// first takes the first turn of a call. plain is true where this is all that there is to choose, and nothing limits an
// attempt on this member: most calls come to no more, and need not pay for what is there for the others. Otherwise the
// turn, if there is one, is still to be looked at; -1 if not.
func (r *roster) first(s *settings) (i int, plain bool) {
	if s.limit > 0 || len(r.tiers) == 0 {
		return -1, false
	}
	switch t := &r.tiers[0]; r.strategy {
	case Failover:
		i = 0
	case LeastBusy:
		i = t.leastBusy(r.entries)
	case Shuffle:
		i = t.nextShuffled(s.rand())
	default:
		i = t.next(r.strategy, 0)
	}
	e := r.entries[i]
	return i, e.timeout == 0 && e.circuit.Ready()
}

// result is how the first attempt ended.
type result struct {
	how     ending
	err     error
	outcome breaker.Outcome // where it failed
	stop    bool            // the error was marked by Stop
	alive   bool            // the caller's context had not ended
}

// tryFirst is attempt for a member that first has found, without limits. counts says that the strategy goes by the calls
// in flight. Where it brings no value, res says why.
func tryFirst[E, T any](ctx context.Context, e *entry, value E, counts bool, fn func(context.Context, E) (T, error), res *result) (v T, ok bool) {
	var permit breaker.Permit
	err := e.circuit.AcquireInto(ctx, &permit)
	if err != nil {
		res.how, res.err = refused, err
		return v, false
	}
	if counts {
		e.inFlight.Add(1)
	}
	ended := false
	defer func() {
		if counts {
			e.inFlight.Add(-1)
		}
		if !ended {
			permit.Abort()
		}
	}()
	v, err = fn(ctx, value)
	if err == nil {
		permit.Done(nil)
		ended = true
		return v, true
	}
	res.how = failed
	res.err, res.stop = withoutMark(err)
	res.alive = ctx.Err() == nil
	res.outcome = e.circuit.Classify(ctx, res.err)
	permit.Settle(res.outcome, res.err)
	ended = true
	return v, false
}

// doRest is Do after its first turn, which was the member i's, and brought v.
func doRest[E, T any](ctx context.Context, p *Pool[E], r *memberList[E], fn func(context.Context, E) (T, error), i int, v T, res result) (T, error) {
	var t invocation
	t.begin(ctx, &r.roster, &p.settings, p.settings.limit)
	how, err := t.resume(i, res)
	for how != answered {
		i, bypass, ok := t.next()
		if !ok {
			return v, t.noneLeft()
		}
		var got T
		got, how, err = attempt(&t, i, bypass, r.values[i], fn)
		if how != refused {
			v = got
		}
	}
	return v, err
}

// ending is how an attempt ended.
type ending uint8

const (
	answered ending = iota // Do returns what it brought
	failed                 // another member is called
	refused                // it was not made
	untried                // its member has not been looked at
)

// attempt calls fn for one member. However it ends, what it took of the circuit is settled.
func attempt[E, T any](t *invocation, i int, bypass bool, value E, fn func(context.Context, E) (T, error)) (v T, how ending, err error) {
	var permit breaker.Permit
	if !bypass {
		if err := t.roster.entries[i].circuit.AcquireInto(t.ctx, &permit); err != nil {
			how, err = t.refused(err)
			return v, how, err
		}
	}
	counts := t.roster.strategy == LeastBusy
	if counts {
		t.roster.entries[i].inFlight.Add(1)
	}
	ctx, c := t.context(i)
	phase := before
	defer func() {
		if counts {
			t.roster.entries[i].inFlight.Add(-1)
		}
		switch phase {
		case before:
			permit.Settle(breaker.Ignored, nil)
			c.finish(context.Canceled)
		case inside:
			permit.Abort()
			c.finish(context.Canceled)
		}
	}()
	if t.calls != nil {
		t.moved(i)
	}
	if (t.calls != nil || bypass) && t.ctx.Err() != nil { // a hook may have taken a while; a bypass has asked no circuit
		return v, answered, t.callerEnded(t.last)
	}
	phase = inside
	v, err = fn(ctx, value)
	if err == nil {
		t.succeeded(i, bypass, &permit, c)
	} else {
		how, err = t.failed(i, bypass, &permit, c, err)
	}
	phase = settled
	return v, how, err
}

// phase is how far an attempt has come.
type phase uint8

const (
	before phase = iota // fn has not been called
	inside              // fn has been called, and what it returned has not been settled
	settled
)

// invocation is one Do, or one Acquire.
type invocation struct {
	rotation
	calls []error // what the members that were called and failed returned; nil while there is none
	prev  int     // the last of them
	last  error   // the last real error of one: not a rejection
}

// resume takes up a call after the turn of member i.
func (t *invocation) resume(i int, res result) (ending, error) {
	if i < 0 {
		return untried, nil
	}
	t.skipped = 1
	switch res.how {
	case untried:
		t.pending = i
		return untried, nil
	case refused:
		t.see(i)
		return t.refused(res.err)
	}
	t.see(i)
	return t.goOn(i, res)
}

// context is the context of an attempt on a member. Where nothing limits it, it is the caller's.
func (t *invocation) context(i int) (context.Context, *attemptContext) {
	timeout := t.roster.entries[i].timeout
	if timeout == 0 && t.limit.IsZero() {
		return t.ctx, nil
	}
	c := &attemptContext{Context: t.ctx, clock: t.settings.clock, end: t.limit, limit: true}
	if timeout > 0 {
		if at := read(c.clock).Add(timeout); t.limit.IsZero() || at.Before(t.limit) {
			c.end, c.limit = at, false
		}
	}
	return c, c
}

// moved tells the hooks who is called next.
func (t *invocation) moved(i int) {
	m := Moved{From: t.roster.entries[t.prev].name, To: t.roster.entries[i].name, Err: t.calls[t.prev]}
	for _, f := range t.settings.hooks {
		func() {
			defer func() { _ = recover() }()
			f(t.ctx, m)
		}()
	}
}

// refused is the end of an attempt that was not made: another call has taken the last slot, or the caller has gone.
func (t *invocation) refused(err error) (ending, error) {
	if t.ctx.Err() != nil && !rejection(err) {
		return answered, t.callerEnded(t.last)
	}
	return refused, nil
}

// succeeded settles an attempt that brought a value. One that took longer than its own timeout allowed has failed, but
// its value is the answer; the pool's limit is not the fault of a member that answers.
func (t *invocation) succeeded(i int, bypass bool, permit *breaker.Permit, c *attemptContext) {
	if c != nil && !c.limit && c.late() {
		permit.Settle(breaker.Failure, nil)
	} else {
		permit.Done(nil)
		if bypass {
			offerProbe(t.roster.entries[i].circuit, breaker.Success)
		}
	}
	c.release()
}

// offerProbe lets an open circuit probe, where a call past it says that the member is well.
func offerProbe(c *breaker.Circuit, o breaker.Outcome) {
	if o == breaker.Success || o == breaker.Answered {
		c.OfferProbe()
	}
}

// failed settles an attempt that brought an error, and says what becomes of the call.
func (t *invocation) failed(i int, bypass bool, permit *breaker.Permit, c *attemptContext, err error) (ending, error) {
	err, stop := withoutMark(err)
	alive := t.ctx.Err() == nil
	outcome := t.outcome(i, c, alive, err)
	permit.Settle(outcome, err)
	if bypass {
		offerProbe(t.roster.entries[i].circuit, outcome)
	}
	c.finish(context.Canceled)
	return t.goOn(i, result{failed, err, outcome, stop, alive})
}

// goOn says what becomes of a call after an attempt that brought an error.
func (t *invocation) goOn(i int, res result) (ending, error) {
	err, outcome := res.err, res.outcome
	declined := outcome == breaker.Ignored && rejection(err)
	switch {
	case !res.alive:
		return answered, t.callerEnded(err)
	case t.late() && !res.stop:
		return answered, limited(err)
	case res.stop || outcome != breaker.Failure && !declined:
		return answered, err
	}
	if !declined {
		t.last = err
	}
	if t.calls == nil {
		t.calls = make([]error, len(t.roster.entries))
	}
	t.calls[i], t.prev = err, i
	t.called()
	return failed, err
}

// outcome is what an attempt that brought an error says about the member. Whatever the error, one that was ended by its own
// timeout has failed, and so has one that had the whole of the pool's limit; one that had what others had left of it says
// nothing.
func (t *invocation) outcome(i int, c *attemptContext, alive bool, err error) breaker.Outcome {
	switch {
	case !alive || c == nil || !c.late():
		return t.roster.entries[i].circuit.Classify(t.ctx, err)
	case c.limit && t.calls != nil:
		return breaker.Ignored
	}
	return breaker.Failure
}

// noneLeft is the error of a call that found no member to call, or no further one.
func (t *invocation) noneLeft() error {
	switch {
	case t.ctx.Err() != nil:
		return t.callerEnded(t.last)
	case t.late():
		return limited(t.last)
	}
	return t.unavailable()
}

// callerEnded is the error of a call whose caller has gone. err is what the member returned; it may be nil.
func (t *invocation) callerEnded(err error) error {
	end := t.ctx.Err()
	switch {
	case err == nil:
		return end
	case errors.Is(err, end):
		return err
	}
	return fmt.Errorf("%w: %w", end, err)
}

// limited is the error of a Do whose limit has passed. err is what the member returned; it may be nil.
func limited(err error) error {
	if err == nil || err == context.DeadlineExceeded {
		return ErrLimit
	}
	return fmt.Errorf("%w: %w", ErrLimit, err)
}

// unavailable is the error of a call that no member answered.
func (t *invocation) unavailable() error {
	e := &UnavailableError{Last: t.last, Reasons: make([]Reason, len(t.roster.entries))}
	if c := t.settings.clock; c != nil {
		e.now = c.Now
	}
	now := read(t.settings.clock)
	for i, s := range t.roster.entries {
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
