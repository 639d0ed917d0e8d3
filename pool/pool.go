package pool

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
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
	Priority int              // higher first; one with a lower priority is used while none above is ready
	Weight   int              // WeightedRoundRobin: its turns per round; 0 = 1, at most 1,000,000
	Circuit  *breaker.Circuit // nil: the pool makes one, by WithBreaker and PerMember, and closes it; see WithName
}

// Pool is some members with a circuit each, and whose turn it is. Call them with [Do], or hold one with Acquire. It is
// safe for concurrent use; members may come and go while calls are under way. Make one with New: the zero value panics and
// says so.
//
// The first choice of a call takes no lock with Failover, RoundRobin and LeastBusy, and a short one otherwise; none
// allocates. With WeightedRoundRobin, and with LeastBusy where every member is busy, it takes time in proportion to the
// number of members, about 1 ns for each.
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
	name       string // "" where the pool has none
	prefix     string // of its circuits' names
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
	p := &Pool[E]{settings: settings{strategy: s, name: d.name, maxEjected: d.maxEjected, limit: d.limit, rand: d.rand, clock: d.clock, breaker: d.breaker}}
	if d.name != "" {
		p.settings.prefix = d.name + "/"
	}
	p.takeFuncs(d)
	if int(s) >= len(strategyNames) {
		d.faults.add("Strategy", "must be one of %s, got %d", strings.Join(strategyNames[:], ", "), uint8(s))
	}
	if len(members) == 0 {
		d.faults.add("Members", "must be at least one, got none")
	}
	entries, values := p.enter(slices.Clone(members), &d.faults)
	if err := d.faults.err(); err != nil {
		_ = closeOwn(entries)
		return nil, err
	}
	p.members.Store(p.build(entries, values, nil))
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

// enter checks the first members, makes their circuits and sorts them. Circuits are made where nothing is wrong so far:
// otherwise every one of them would repeat what is wrong with the options.
func (p *Pool[E]) enter(members []Member[E], f *faults) (entries []*entry, values []E) {
	taken := newNames(p.settings.prefix, nil)
	for i, m := range members {
		e := entryOf(m)
		*f = append(*f, taken.check(e, fmt.Sprintf("Members[%d]", i))...)
		taken.add(e)
		entries = append(entries, e)
	}
	if len(*f) > 0 {
		return entries, nil
	}
	for i, m := range members {
		wrong := p.makeCircuit(entries[i], m)
		*f = append(*f, wrong...)
		if slices.Contains(wrong, errNameless) {
			return entries, nil // once for all
		}
	}
	slices.SortStableFunc(members, func(a, b Member[E]) int { return cmp.Compare(b.Priority, a.Priority) })
	slices.SortStableFunc(entries, func(a, b *entry) int { return cmp.Compare(b.priority, a.priority) })
	for _, m := range members {
		values = append(values, m.Value)
	}
	return entries, values
}

// makeCircuit makes the circuit of a member that has none.
func (p *Pool[E]) makeCircuit(e *entry, m Member[E]) faults {
	if e.circuit != nil {
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
		if err := checkTwoStep(fmt.Sprintf("pool.PerMember(%q)", m.Name), true, more...); err != nil {
			f = append(f, err)
		}
		opts = append(opts, more...)
	}
	if len(f) > 0 {
		return f
	}
	b, err := breaker.New[struct{}](p.settings.prefix+m.Name, opts...)
	if err != nil {
		return faults{fmt.Errorf("pool: member %q: %w", m.Name, err)}
	}
	e.circuit, e.timeout, e.own = b.Circuit(), timeoutOf(b), true
	if p.settings.name == "" && e.circuit.Snapshot().Shared != nil {
		return faults{errNameless}
	}
	return nil
}

// build makes the list of some members, whose turns go on where those of old were.
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
