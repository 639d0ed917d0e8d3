package breaker

import (
	"context"
	"sync/atomic"
	"time"
)

// Permit is one admitted call in two-step use: from Acquire to Done or Settle, on any goroutine. Only the first
// settlement counts. A probe's permit that is never settled loses its slot at the end of the lease; any other keeps
// counting as in flight.
type Permit struct {
	circuit *Circuit
	ctx     context.Context
	call    call
}

// Acquire admits a call that its caller makes itself and then settles by the Permit's Done or Settle. The error is the
// context's if that is already done, otherwise the rejection: an [*OpenError] or [ErrTooManyInFlight].
func (c *Circuit) Acquire(ctx context.Context) (*Permit, error) {
	c.load()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var k call
	if err := c.admit(ctx, &k); err != nil {
		return nil, err
	}
	if !k.probe {
		return &Permit{circuit: c, ctx: ctx, call: k}, nil
	}
	p := &struct { // one allocation for both
		Permit
		probe probeContext
	}{Permit{circuit: c, call: k}, c.probeContext(ctx, &k)}
	p.ctx = &p.probe
	return &p.Permit, nil
}

// Done settles the call by its error, classified like the error of a function given to Run. On a nil Permit it does
// nothing.
func (p *Permit) Done(err error) {
	if !p.first() {
		return
	}
	c := p.circuit
	if err == nil && c.succeed(&p.call) {
		return
	}
	defer p.ensure()
	c.finish(p.ctx, &p.call, err)
}

// Settle settles the call with an outcome; cause is the error behind a Failure, if there is one. On a nil Permit it does
// nothing.
func (p *Permit) Settle(o Outcome, cause error) {
	p.settleExcluding(o, cause, 0)
}

// settleExcluding is Settle for a call of whose time excluded was not the dependency's.
func (p *Permit) settleExcluding(o Outcome, cause error, excluded time.Duration) {
	if !p.first() || o == Success && p.circuit.succeed(&p.call) {
		return
	}
	defer p.ensure()
	p.circuit.settleExcluding(p.ctx, &p.call, validOutcome(o), cause, max(0, excluded))
}

// Probe reports whether the call is a probe of a half-open circuit, so that the state depends on how it ends. On a nil or
// zero Permit it is false.
func (p *Permit) Probe() bool { return p != nil && p.call.probe }

// first reports whether this settlement is the first.
func (p *Permit) first() bool {
	return p != nil && p.circuit != nil && atomic.LoadUint32(&p.call.ended) == 0 && atomic.CompareAndSwapUint32(&p.call.ended, 0, 1)
}

// ensure settles the call as failed if a user's function (a classifier, a hook) has panicked or ended the goroutine
// before.
func (p *Permit) ensure() {
	if !p.call.settled {
		p.circuit.abort(p.ctx, &p.call)
	}
}
