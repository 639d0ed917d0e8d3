package pool

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"time"

	"github.com/breakerkit/breaker"
)

const (
	// maxWeight keeps sums of weights far inside an int64.
	maxWeight = 1_000_000
	// maxLimit keeps deadlines inside what a time.Time can be compared with: 146 years.
	maxLimit = time.Duration(1 << 62)
)

// An Option configures a [Pool]. Options do not depend on their order; of one given twice the later wins, except that
// WithBreaker, PerMember and WithHooks add up. New reports everything that is wrong in one error.
type Option interface{ apply(*draft) }

type option func(*draft)

func (o option) apply(d *draft) { o(d) }

// WithBreaker configures the circuits that the pool makes, those of members without one: circuit options of the root
// package, and WithTimeout, which bounds each attempt on those members. WithResult, WithRetry and fallbacks are errors
// here: put a breaker with them around Do.
func WithBreaker(opts ...breaker.Option) Option {
	return option(func(d *draft) { d.breaker = append(d.breaker, opts...) })
}

// PerMember gives the circuits of some members options of their own, which are added to those of WithBreaker: a health
// check of the member's address, for one. E is the pool's. f is asked once for each member without a circuit, by New and
// Add, outside every lock.
func PerMember[E any](f func(Member[E]) []breaker.Option) Option {
	return option(func(d *draft) {
		if f == nil {
			d.faults.add("PerMember", "must not be nil")
			return
		}
		d.perMember = append(d.perMember, f)
	})
}

// MaxEjected keeps a share of the members in rotation whatever their circuits say: at most percent of 100 of them,
// rounded down, may be out. Of the members that are open, the first so many in the pool's order are left out; the others
// have their turn as if they were closed, are called past their circuit, and a success offers their circuit a probe. What
// such a call does is not counted otherwise. It guards against a fault of the caller's own, which makes every member look
// bad. A member that is forced open stays out in any case, and a half-open one gets its probes and no more.
//
// Default 100 = off. With 0 no member is ever out; so is the single member of a pool of one below 100.
func MaxEjected(percent int) Option {
	return option(func(d *draft) {
		if percent < 0 || percent > 100 {
			d.faults.add("MaxEjected", "must be from 0 to 100, got %d", percent)
		}
		d.maxEjected = percent
	})
}

// WithName names the pool. The circuits that it makes are then called name/member, so that pools may have members of the
// same name. With a breaker.Store the name is required: circuits of one name share their state, and two pools with a
// member "primary" would have one circuit. The name must not be empty or hold a slash, which ends it in a circuit's name.
// Default: none, and circuits are called as their members.
func WithName(name string) Option {
	return option(func(d *draft) {
		if name == "" || strings.Contains(name, "/") {
			d.faults.add("Name", "must not be empty or hold a slash, got %q", name)
		}
		d.name = name
	})
}

// WithLimit bounds the whole of a Do, all its attempts together: the context given to fn ends after t, and no further
// member is called. It ends when fn returns a value. Where the limit ends an attempt, that is a Failure of the member if it
// was the only one that was called, and otherwise Ignored: the others have had a part of its time. To bound each attempt,
// give breaker.WithTimeout to WithBreaker. [Pool.Acquire] has no limit. Default 0 = none.
func WithLimit(t time.Duration) Option {
	return option(func(d *draft) {
		if t < 0 || t > maxLimit {
			d.faults.add("Limit", "must be from 0 to %v, got %v", maxLimit, t)
		}
		d.limit = t
	})
}

// WithRand gives the random source for Shuffle: numbers from [0, 1), safe for concurrent use. Default math/rand/v2.
// The circuits have their own; see breaker.WithRand.
func WithRand(f func() float64) Option {
	return option(func(d *draft) {
		if f == nil {
			d.faults.add("Rand", "must not be nil")
		}
		d.rand = f
	})
}

// WithClock gives the pool another clock than the time package's, for its limit, its attempts' timeouts and the circuits
// that it makes. Default: the clock in WithBreaker, if there is one.
func WithClock(c breaker.Clock) Option {
	return option(func(d *draft) {
		if v := reflect.ValueOf(c); c == nil || v.Kind() == reflect.Pointer && v.IsNil() {
			d.faults.add("Clock", "must not be nil")
			c = nil
		}
		d.clock = c
	})
}

// Hooks are called as things happen in a pool. A nil field costs nothing. They run outside every lock and may call any
// method; a panic in one is contained.
type Hooks struct {
	// Moved is called when Do calls another member because one has failed. Members that were only passed over are not
	// told of.
	Moved func(context.Context, Moved)
}

// Moved is one step of a Do from a member to another.
type Moved struct {
	From string // the member that was called
	To   string // the member that is called instead
	Err  error  // what the first one returned
}

// WithHooks adds hooks. Those of the circuits are given with breaker.WithHooks.
func WithHooks(h Hooks) Option {
	return option(func(d *draft) { d.hooks = append(d.hooks, h) })
}

// draft is what options write to.
type draft struct {
	name       string
	breaker    []breaker.Option
	perMember  []any // each a func(Member[E]) []breaker.Option
	maxEjected int
	limit      time.Duration
	rand       func() float64
	clock      breaker.Clock
	hooks      []Hooks
	faults     faults
}

func newDraft(opts []Option) *draft {
	d := &draft{maxEjected: 100, rand: rand.Float64}
	for _, o := range opts {
		if o == nil {
			d.faults.add("Option", "must not be nil")
			continue
		}
		o.apply(d)
	}
	if err := checkTwoStep("pool.WithBreaker", true, d.breaker...); err != nil {
		d.faults = append(d.faults, err)
	}
	d.findClock()
	return d
}

// findClock validates the circuits' options where no member may need them, and takes the clock from them.
func (d *draft) findClock() {
	g, err := breaker.NewGroup[struct{}](d.breaker...)
	switch {
	case err != nil:
		d.faults = append(d.faults, err)
	case d.clock == nil:
		d.clock = clockOf(g)
	}
}

// faults collects what is wrong.
type faults []error

func (f *faults) add(field, format string, args ...any) {
	*f = append(*f, fmt.Errorf("pool: "+field+": "+format, args...))
}

func (f faults) err() error { return errors.Join(f...) }
