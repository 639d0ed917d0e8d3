package pool

import (
	"context"
	"sync/atomic"

	"github.com/breakerkit/breaker"
)

// Lease is a member held for one call that ends later than a function would return: a stream, a session. It is from
// [Pool.Acquire] to Done or Settle, on any goroutine, and safe for concurrent use. Only the first settlement counts.
//
// A lease that is never settled keeps counting as in flight; if it was the probe of a half-open circuit, its slot returns
// when the circuit's probe lease ends.
type Lease[E any] struct {
	member   Member[E]
	permit   breaker.Permit // the zero Permit where bypass
	ctx      context.Context
	bypass   bool          // the member was chosen although its circuit is open; see MaxEjected
	inFlight *atomic.Int64 // nil where the strategy does not go by it
	ended    atomic.Bool
}

// Acquire chooses a member as [Do] does and holds it until the lease is settled. It calls nothing, so that the pool's
// limit and breaker.WithTimeout do not apply, and it does not move on: after a Failure, settle and Acquire again.
//
// The error is ctx's if that is done, and an [*UnavailableError], which is breaker.ErrOpen, if no member would take a
// call.
func (p *Pool[E]) Acquire(ctx context.Context) (*Lease[E], error) {
	r := p.load()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var t invocation
	t.begin(ctx, &r.roster, &p.settings, 0)
	l := &Lease[E]{ctx: ctx}
	for {
		i, bypass, ok := t.next()
		if !ok {
			return nil, t.noneLeft()
		}
		e := r.entries[i]
		if !bypass {
			if err := e.circuit.AcquireInto(ctx, &l.permit); err != nil {
				if how, err := t.refused(err); how == answered {
					return nil, err
				}
				continue
			}
		}
		l.member = Member[E]{Name: e.name, Value: r.values[i], Priority: e.priority, Weight: e.weight, Circuit: e.circuit}
		l.bypass = bypass
		if r.strategy == LeastBusy {
			e.inFlight.Add(1)
			l.inFlight = &e.inFlight
		}
		return l, nil
	}
}

// Member returns the member that is held. Its Circuit is the one in use, also where the pool has made it.
func (l *Lease[E]) Member() Member[E] { return l.member }

// Done settles the lease by an error, classified by the member's circuit like the error of a function given to [Do]: a nil
// error is Success, one after the caller's cancel Ignored. A mark by [Stop] is taken off. On a nil Lease it does nothing.
func (l *Lease[E]) Done(err error) {
	if !l.end() {
		return
	}
	if err != nil {
		err, _ = withoutMark(err)
	}
	if l.bypass {
		offerProbe(l.member.Circuit, l.member.Circuit.Classify(l.ctx, err))
		return
	}
	l.permit.Done(err)
}

// Settle settles the lease with an outcome; cause is the error behind a Failure, if there is one. On a nil Lease it does
// nothing.
func (l *Lease[E]) Settle(o breaker.Outcome, cause error) {
	if !l.end() {
		return
	}
	if l.bypass {
		offerProbe(l.member.Circuit, o)
		return
	}
	l.permit.Settle(o, cause)
}

// end reports whether this settlement is the first.
func (l *Lease[E]) end() bool {
	if l == nil || !l.ended.CompareAndSwap(false, true) {
		return false
	}
	if l.inFlight != nil {
		l.inFlight.Add(-1)
	}
	return true
}
