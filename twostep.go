package breaker

import (
	"context"
	"time"
)

// This file is for wrappers that call circuits in two steps, Acquire and Settle, because a call ends later than the
// function that makes it returns: an HTTP response ends with its body. They give circuits per key, retries and hooks the
// meaning that they have in a Breaker.

// CheckTwoStep reports options that two-step use would pass over: WithResult, WithRetry and fallbacks, and a classifier
// unless classifies says that [Circuit.Classify] is asked. where is the name of what takes the options. What NewGroup
// would refuse is NewGroup's to report.
func CheckTwoStep(where string, classifies bool, opts ...Option) error {
	d := newDraft(where, scopeCircuit|scopeFixed|scopeSnapshot|scopeCall|scopeGroup, opts)
	d.faults = faults{}
	d.checkTwoStep(where, classifies)
	return d.faults.err()
}

// TwoStep is an option of NewGroup that says that the group's circuits are called in two steps, and do not classify. What
// [CheckTwoStep] reports is then an error, in NewGroup and in what PerKey returns. where is the name of what takes the
// options.
func TwoStep(where string) Option {
	return groupOption("TwoStep", func(d *draft) { d.group.twoStep = where })
}

func (d *draft) checkTwoStep(where string, classifies bool) {
	if where == "" {
		return
	}
	for _, o := range []struct {
		name  string
		given bool
	}{
		{"Classifier", d.classifier != nil && !classifies},
		{"Result", d.call.result != nil},
		{"Retry", d.call.retry != nil},
		{"Fallback", len(d.call.fallbacks) > 0},
	} {
		if o.given {
			d.faults.add(o.name, "is not an option of %s", where)
		}
	}
}

// Past is a circuit for a call that passes the one of its key by. It has the key's name and the group's hooks, clock and
// lists of errors, but is not in the group, shares nothing and is not to be asked: hooks alone see what it counts.
func (g *Group[T]) Past(key string) *Circuit {
	s := g.base.Load().settings
	now := s.time.now()
	c := &Circuit{name: key, m: machine{epoch: 1, now: now, since: now, until: now, ramp: now, mode: ForcedClosed}}
	c.settings.Store(s)
	c.publishLocked(s) // nobody else has it yet
	return c
}

// Timeout is the limit that WithTimeout sets for an attempt with a key; 0 = none. It makes no circuit; without one, PerKey's
// function is asked.
func (g *Group[T]) Timeout(key string) time.Duration {
	if b, ok := g.Lookup(key); ok {
		return b.Timeout()
	}
	if _, p, _ := g.settingsFor(g.base.Load(), key); p != nil {
		return p.timeout
	}
	return 0
}

// Evictions is how many circuits have been evicted so far. For as long as the number stays, what Get has returned for a
// key is what it would return again.
func (g *Group[T]) Evictions() uint64 { return g.gone.Load() }

// Clock returns the clock that was given to the group, or nil where its circuits go by the time package.
func (g *Group[T]) Clock() Clock { return g.base.Load().settings.time.clock }

// Timeout is the limit that WithTimeout sets for an attempt; 0 = none.
func (b *Breaker[T]) Timeout() time.Duration {
	b.load()
	if b.policy == nil {
		return 0
	}
	return b.policy.timeout
}

// AcquireInto is [Circuit.Acquire] with the caller's memory for the permit. p must be a zero Permit, and must not be
// copied. After an error it is still one.
func (c *Circuit) AcquireInto(ctx context.Context, p *Permit) error {
	c.load()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := c.admit(ctx, &p.call); err != nil {
		return err
	}
	p.circuit, p.ctx = c, ctx
	return nil
}

// Abort settles the call as one that ended by panic or runtime.Goexit: a Failure, counted among Totals.Panics. On a nil
// Permit it does nothing.
func (p *Permit) Abort() {
	if p.first() {
		p.circuit.abort(p.ctx, &p.call)
	}
}

// Circuit returns the circuit that admitted the call; nil for a zero Permit.
func (p *Permit) Circuit() *Circuit { return p.circuit }

// Context returns the context that the call was asked for with; nil for a zero Permit.
func (p *Permit) Context() context.Context { return p.ctx }

// Decided returns what comes before every classifier: an error after the caller's own cancel is Ignored, then
// WithFailOn and WithIgnore decide. decided is false where the classifier would be asked, and for nil.
func (c *Circuit) Decided(ctx context.Context, err error) (o Outcome, decided bool) {
	return c.load().preclassify(ctx, err)
}

// Classify returns what an error says about the dependency: what Decided says, and where it says nothing, the classifier.
// It counts nothing. A nil error is Success.
func (c *Circuit) Classify(ctx context.Context, err error) Outcome {
	s := c.load()
	o, decided := s.preclassify(ctx, err)
	if !decided && err != nil {
		o = validOutcome(s.classify(err))
	}
	return o
}

// Refusal returns the rejection that a call would meet now; nil if it would be admitted. It spends and counts nothing.
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

// Rescued counts a rescue that helped (e.Err is nil), and tells the Rescue hooks of any. The circuit fills in its name.
func (c *Circuit) Rescued(ctx context.Context, e RescueEvent) {
	s := c.load()
	e.Name = c.name
	if e.Err == nil {
		c.countRescue(e.Kind)
	}
	s.hookRescue(ctx, e)
}

// Retries is the retries of one call whose attempts the caller makes: the loop inside [WithRetry], to be driven from
// outside. It belongs to one goroutine.
type Retries struct {
	circuit  *Circuit // nil: none
	loop     retryLoop
	attempts int
}

// Begin starts a call through c, before its first attempt. Waits go by c's clock and chance, and c's hooks and totals
// are told. With a nil c the policy's own clock and chance serve, and nobody is told.
func (p RetryPolicy) Begin(c *Circuit) Retries {
	r := Retries{circuit: c}
	switch {
	case p.p == nil:
	case c != nil:
		r.loop = p.p.begin(c.load().time)
	default:
		r.loop = p.p.begin(p.p.time)
	}
	return r
}

// Next is called after an attempt that counted as Failure, with its error. It waits and returns true if there is to be
// another attempt, which must pass the circuit again. Otherwise because says why not, where the caller of the call should
// know: the circuit has opened, the wait would not end before ctx's deadline, or ctx ended during it.
func (r *Retries) Next(ctx context.Context, err error) (again bool, because error) {
	if r.loop.p == nil || ctx.Err() != nil {
		return false, ctx.Err()
	}
	if err == nil {
		err = ErrUnacceptable
	}
	return r.loop.again(ctx, r.circuit, r.attempts, err)
}

// Ran notes that an attempt was made: the first, which earns retries where there is a budget, or one that Next announced.
// An attempt that the circuit rejected was not made.
func (r *Retries) Ran() {
	r.attempts++
	switch {
	case r.attempts == 1:
		r.loop.ran()
	case r.circuit != nil:
		r.circuit.countRetry()
	}
}

// Attempts is how many attempts have been made.
func (r *Retries) Attempts() int { return r.attempts }

// Error is what to return for a call whose last attempt ended with err and whose retries ended because of because; a
// [*RetryError] after more than one attempt. Either may be nil.
func (r *Retries) Error(err, because error) error {
	if err == nil {
		return because
	}
	return retried(r.attempts, also(err, because))
}

// ReportStoreError tells the StoreError hooks of something behind the circuit that failed, and that no caller may suffer
// from.
func (c *Circuit) ReportStoreError(err error) { c.load().hookStoreError(c.name, err) }
