package breaker

import (
	"context"
	"time"

	"github.com/breakerkit/breaker/internal/seam"
)

// What only breakerhttp and pool need; the package seam says what each function is for.
func init() {
	seam.Admitted = (*Permit).admitted
	seam.Fast = (*Permit).fast
	seam.SettleExcluding = (*Permit).settleExcluding
	seam.Undisturbed = (*Circuit).undisturbed
	seam.Decided = (*Circuit).decided
	seam.Rescued = (*Circuit).rescued
	seam.ReportStoreError = (*Circuit).reportStoreError
	seam.Rejection = rejection
	seam.CheckTwoStep = checkTwoStep
	seam.TwoStep = twoStep
	seam.Timeout = (*Breaker[struct{}]).attemptTimeout
	seam.GroupTimeout = (*Group[struct{}]).attemptTimeout
	seam.Bypass = (*Group[struct{}]).bypass
	seam.Evictions = (*Group[struct{}]).evictions
	seam.Clock = (*Group[struct{}]).clock
	seam.RetryBegin = RetryPolicy.begin
	seam.RetryRan = RetryPolicy.ran
	seam.RetryNext = retryNext
	seam.RetryError = retryError
}

func (p *Permit) admitted() (*Circuit, context.Context) { return p.circuit, p.ctx }

func (p *Permit) fast() bool { return p.call.cell != nil }

func (c *Circuit) decided(ctx context.Context, err error) (Outcome, bool) {
	return c.load().preclassify(ctx, err)
}

func (c *Circuit) rescued(ctx context.Context, e RescueEvent) {
	s := c.load()
	e.Name = c.name
	if e.Err == nil {
		c.countRescue(e.Kind)
	}
	s.hookRescue(ctx, e)
}

func (c *Circuit) reportStoreError(err error) { c.load().hookStoreError(c.name, err) }

func checkTwoStep(where string, classifies bool, opts ...Option) error {
	d := newDraft(where, scopeCircuit|scopeFixed|scopeSnapshot|scopeCall|scopeGroup, opts)
	d.faults = faults{}
	d.checkTwoStep(where, classifies)
	return d.faults.err()
}

func twoStep(where string) Option {
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

func (b *Breaker[T]) attemptTimeout() time.Duration {
	b.load()
	return b.policy.attemptTimeout()
}

func (p *callPolicy[T]) attemptTimeout() time.Duration {
	if p == nil {
		return 0
	}
	return p.timeout
}

func (g *Group[T]) attemptTimeout(key string) time.Duration {
	if b, ok := g.Lookup(key); ok {
		return b.attemptTimeout()
	}
	_, p, _ := g.settingsFor(g.base.Load(), key)
	return p.attemptTimeout()
}

func (g *Group[T]) bypass(key string) *Circuit {
	s := g.base.Load().bypass
	c := &Circuit{name: key}
	c.init(s, &s.draft)
	return c
}

func (g *Group[T]) evictions() uint64 { return g.gone.Load() }

func (g *Group[T]) clock() Clock { return g.base.Load().settings.time.clock }

// loop is the retries of a call through c that began at began.
func (p RetryPolicy) loop(c *Circuit, began int64) retryLoop {
	switch {
	case p.p == nil:
		return retryLoop{}
	case c != nil:
		return retryLoop{p.p, c.load().time, began}
	}
	return retryLoop{p.p, p.p.time, began}
}

func (p RetryPolicy) begin(c *Circuit) (began int64) {
	l := p.loop(c, 0)
	return l.p.begin(l.time).began
}

func (p RetryPolicy) ran(c *Circuit, n int) {
	switch {
	case n == 1:
		l := p.loop(c, 0)
		l.ran()
	case c != nil:
		c.countRetry()
	}
}

func retryNext(ctx context.Context, p RetryPolicy, c *Circuit, began int64, n int, err error) (again bool, because error) {
	if p.p == nil || ctx.Err() != nil {
		return false, ctx.Err()
	}
	if err == nil {
		err = ErrUnacceptable
	}
	l := p.loop(c, began)
	return l.again(ctx, c, n, err)
}

func retryError(n int, err, because error) error {
	if err == nil {
		return because
	}
	return retried(n, also(err, because))
}
