package pool

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/breakerkit/breaker"
)

// Member is one of those that can do the work. Its zero fields are: priority 0, weight 1, a circuit made by the pool.
type Member[E any] struct {
	Name     string           // unique in the pool
	Value    E                // what the function given to Do gets: a client, an address
	Priority int              // Failover: higher first
	Weight   int              // WeightedRoundRobin: its turns per round; 0 = 1, at most 1,000,000
	Circuit  *breaker.Circuit // nil: the pool makes one of that name, by WithBreaker and PerMember, and closes it
}

// Pool is some members with a circuit each, and whose turn it is. Call them with [Do]. It is safe for concurrent use;
// members may come and go while calls are under way. Make one with New: the zero value panics and says so.
//
// The first choice of a Do takes no lock with Failover and RoundRobin, and a short one otherwise; none allocates.
type Pool[E any] struct {
	settings  settings
	perMember []func(Member[E]) []breaker.Option
	members   atomic.Pointer[memberList[E]]

	mu     sync.Mutex // Add, Remove and Close, one at a time
	closed bool
}

// settings is what a pool is besides its members.
type settings struct {
	strategy   Strategy
	maxEjected int
	limit      time.Duration
	rand       func() float64
	clock      breaker.Clock // nil: the time package
	hooks      []func(context.Context, Moved)
	breaker    []breaker.Option
}

// New makes a pool. The error names everything that is wrong with the strategy, the members and the options.
func New[E any](s Strategy, members []Member[E], opts ...Option) (*Pool[E], error) {
	d := newDraft(opts)
	p := &Pool[E]{settings: settings{strategy: s, maxEjected: d.maxEjected, limit: d.limit, rand: d.rand, clock: d.clock, breaker: d.breaker}}
	p.takeFuncs(d)
	if int(s) >= len(strategyNames) {
		d.faults.add("Strategy", "must be one of %s, got %d", strings.Join(strategyNames[:], ", "), uint8(s))
	}
	if len(members) == 0 {
		d.faults.add("Members", "must be at least one, got none")
	}
	all := memberList[E]{}
	for i, m := range members {
		s := entryOf(m)
		d.faults = append(d.faults, s.check(all.entries, fmt.Sprintf("Members[%d]", i))...)
		all.insert(p.settings.strategy, s, m.Value)
	}
	if len(d.faults) == 0 { // otherwise every circuit would repeat what is wrong with the options
		for _, m := range members {
			d.faults = append(d.faults, p.makeCircuit(all.entries[all.find(m.Name)], m)...)
		}
	}
	if err := d.faults.err(); err != nil {
		_ = closeOwn(all.entries)
		return nil, err
	}
	p.members.Store(p.build(all.entries, all.values, nil))
	return p, nil
}

// takeFuncs takes over what the options gave as functions.
func (p *Pool[E]) takeFuncs(d *draft) {
	for _, f := range d.perMember {
		own, ok := f.(func(Member[E]) []breaker.Option)
		if !ok {
			d.faults.add("PerMember", "must take the pool's Member[%v], got %T", reflect.TypeFor[E](), f)
			continue
		}
		p.perMember = append(p.perMember, own)
	}
	for _, h := range d.hooks {
		if h.Moved != nil {
			p.settings.hooks = append(p.settings.hooks, h.Moved)
		}
	}
}

// makeCircuit makes the circuit of a member that has none.
func (p *Pool[E]) makeCircuit(s *entry, m Member[E]) faults {
	if s.circuit != nil {
		return nil
	}
	var opts []breaker.Option
	if p.settings.clock != nil {
		opts = append(opts, breaker.WithClock(p.settings.clock))
	}
	opts = append(opts, p.settings.breaker...)
	var f faults
	for _, own := range p.perMember {
		more := own(m)
		if err := breaker.CheckTwoStep(fmt.Sprintf("pool.PerMember(%q)", m.Name), true, more...); err != nil {
			f = append(f, err)
		}
		opts = append(opts, more...)
	}
	if len(f) > 0 {
		return f
	}
	b, err := breaker.New[struct{}](m.Name, opts...)
	if err != nil {
		return faults{fmt.Errorf("pool: member %q: %w", m.Name, err)}
	}
	s.circuit, s.timeout, s.own = b.Circuit(), b.Timeout(), true
	return nil
}

// build makes the roster of some members, which goes on where old was.
func (p *Pool[E]) build(entries []*entry, values []E, old *roster) *memberList[E] {
	r := &memberList[E]{values: values}
	r.init(p.settings.strategy, entries, p.settings.maxEjected, old)
	return r
}

// load returns the members, and panics by name for a Pool that no constructor made.
func (p *Pool[E]) load() *memberList[E] {
	if p == nil {
		panic("pool: nil *Pool; make one with New")
	}
	r := p.members.Load()
	if r == nil {
		panic("pool: zero Pool; make one with New")
	}
	return r
}
