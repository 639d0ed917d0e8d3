package breaker

import "context"

// For wrappers: those who call a circuit in two steps, Acquire and Settle, because a call ends later than the function
// that makes it returns, as an HTTP response ends with its body. These give such a call the meaning that it has in a
// Breaker.

// AcquireInto is [Circuit.Acquire] for wrappers that keep the permit in a value of their own, and so allocate nothing. p must
// be a zero Permit, and must not be copied afterwards. After an error it is still one.
func (c *Circuit) AcquireInto(ctx context.Context, p *Permit) error {
	c.load()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := c.admit(ctx, &p.call); err != nil {
		return err
	}
	p.circuit, p.ctx = c, c.contextFor(ctx, &p.call)
	return nil
}

// Abort settles the call as one that ended by panic or runtime.Goexit: a Failure, counted among Totals.Panics. On a nil
// Permit it does nothing. It is for wrappers.
func (p *Permit) Abort() {
	if p.first() {
		p.circuit.abort(p.ctx, &p.call)
	}
}

// Classify returns what an error says about the dependency. A nil error is Success, one that came after the caller's own
// cancel Ignored; then WithFailOn and WithIgnore decide, and for the rest the classifier. It counts nothing. It is for
// wrappers that do something else about a failure than about an ignored error; [Permit.Done] classifies by itself.
func (c *Circuit) Classify(ctx context.Context, err error) Outcome {
	s := c.load()
	o, decided := s.preclassify(ctx, err)
	if !decided && err != nil {
		o = validOutcome(s.classify(err))
	}
	return o
}

// Refusal returns the rejection that a call would meet now; nil if it would be admitted. It spends and counts nothing. It
// is for wrappers that choose between circuits and tell why none was chosen.
func (c *Circuit) Refusal() error {
	now := c.load().time.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.load()
	if r := c.refusalLocked(s, now); r != admitted {
		return c.rejectionLocked(s, r)
	}
	return nil
}
