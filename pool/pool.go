package pool

import (
	"context"
	"errors"
	"fmt"
	"iter"
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
	Priority int              // Failover: higher first
	Weight   int              // WeightedRoundRobin: its turns per round; 0 = 1, at most 1,000,000
	Circuit  *breaker.Circuit // nil: the pool makes one of that name, by WithBreaker and PerMember, and closes it
}

// Pool is some members with a circuit each, and whose turn it is. Call them with [Do]. It is safe for concurrent use;
// members may come and go while calls are under way. Make one with New: the zero value panics and says so.
//
// The first choice of a Do takes no lock with Failover and RoundRobin, and a short one otherwise; none allocates.
type Pool[E any] struct {
	core      core
	perMember []func(Member[E]) []breaker.Option
	roster    atomic.Pointer[roster[E]]

	mu     sync.Mutex // Add, Remove and Close, one at a time
	closed bool
}

// core is what a pool is besides its members.
type core struct {
	strategy   Strategy
	maxEjected int
	limit      time.Duration
	rand       func() float64
	clock      breaker.Clock // nil: the time package
	hooks      []func(context.Context, Moved)
	breaker    []breaker.Option
}

// roster is the members at one time, in the order in which they are asked. It never changes.
type roster[E any] struct {
	rota
	values []E
}

// slot is one member without its value.
type slot struct {
	name     string
	priority int
	weight   int
	circuit  *breaker.Circuit
	timeout  time.Duration // of an attempt; 0 = none
	own      bool          // the circuit was made by the pool
}

// New makes a pool. The error names everything that is wrong with the strategy, the members and the options.
func New[E any](s Strategy, members []Member[E], opts ...Option) (*Pool[E], error) {
	d := newDraft(opts)
	p := &Pool[E]{core: core{strategy: s, maxEjected: d.maxEjected, limit: d.limit, rand: d.rand, clock: d.clock, breaker: d.breaker}}
	p.takeFuncs(d)
	if int(s) >= len(strategyNames) {
		d.faults.add("Strategy", "must be one of %s, got %d", strings.Join(strategyNames[:], ", "), uint8(s))
	}
	if len(members) == 0 {
		d.faults.add("Members", "must be at least one, got none")
	}
	all := roster[E]{}
	for i, m := range members {
		s := slotOf(m)
		d.faults = append(d.faults, s.check(all.slots, fmt.Sprintf("Members[%d]", i))...)
		all.insert(p.core.strategy, s, m.Value)
	}
	if len(d.faults) == 0 { // otherwise every circuit would repeat what is wrong with the options
		for _, m := range members {
			d.faults = append(d.faults, p.equip(all.slots[all.find(m.Name)], m)...)
		}
	}
	if err := d.faults.err(); err != nil {
		_ = closeOwn(all.slots)
		return nil, err
	}
	p.roster.Store(p.build(all.slots, all.values, nil))
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
			p.core.hooks = append(p.core.hooks, h.Moved)
		}
	}
}

// check reports what is wrong with a member beside those that are there.
func (s *slot) check(there []*slot, where string) faults {
	var f faults
	if s.name == "" {
		f.add(where+".Name", `must not be empty, got ""`)
	}
	if s.weight < 0 || s.weight > maxWeight {
		f.add(where+".Weight", "must be from 0 to %d, got %d", maxWeight, s.weight)
	}
	for _, other := range there {
		switch {
		case other.name == "" || s.name == "":
		case other.name == s.name:
			f.add(where+".Name", "must be unique in the pool, got %q again", s.name)
		case other.circuitName() == s.circuitName():
			f.add(where+".Circuit", "must be the member's own, got %q, which %q has", s.circuitName(), other.name)
		}
	}
	return f
}

func (s *slot) circuitName() string {
	if s.circuit == nil {
		return s.name
	}
	return s.circuit.Name()
}

func slotOf[E any](m Member[E]) *slot {
	return &slot{name: m.Name, priority: m.Priority, weight: m.Weight, circuit: m.Circuit}
}

// equip makes the circuit of a member that has none.
func (p *Pool[E]) equip(s *slot, m Member[E]) faults {
	if s.circuit != nil {
		return nil
	}
	var opts []breaker.Option
	if p.core.clock != nil {
		opts = append(opts, breaker.WithClock(p.core.clock))
	}
	opts = append(opts, p.core.breaker...)
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
	b, err := breaker.New[struct{}](m.Name, opts...)
	if err != nil {
		return faults{fmt.Errorf("pool: member %q: %w", m.Name, err)}
	}
	s.circuit, s.timeout, s.own = b.Circuit(), timeoutOf(b), true
	return nil
}

// insert puts a member where it belongs.
func (r *roster[E]) insert(s Strategy, m *slot, v E) {
	at := len(r.slots)
	if s == Failover {
		for at > 0 && r.slots[at-1].priority < m.priority {
			at--
		}
	}
	r.slots = slices.Insert(r.slots, at, m)
	r.values = slices.Insert(r.values, at, v)
}

// build makes the roster of some members, which goes on where old was.
func (p *Pool[E]) build(slots []*slot, values []E, old *rota) *roster[E] {
	r := &roster[E]{values: values}
	r.init(p.core.strategy, slots, p.core.maxEjected, old)
	return r
}

// Add adds a member. It has its turn as if it had been there all along; members with the same turn come before it. With a
// Circuit, its state is the circuit's: a member that was removed comes back as it was. The error says what is wrong with
// it, or that the pool is closed ([ErrClosed]).
func (p *Pool[E]) Add(m Member[E]) error {
	s := slotOf(m)
	f := s.check(p.load().slots, "Member")
	if len(f) == 0 {
		f = p.equip(s, m) // user code, hence outside the lock
	}
	if err := f.err(); err != nil {
		return err
	}
	err := p.admit(s, m.Value)
	if err != nil {
		_ = closeOwn([]*slot{s})
	}
	return err
}

func (p *Pool[E]) admit(s *slot, v E) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	old := p.roster.Load()
	if err := s.check(old.slots, "Member").err(); err != nil {
		return err
	}
	all := roster[E]{values: slices.Clone(old.values)}
	all.slots = slices.Clone(old.slots)
	all.insert(p.core.strategy, s, v)
	p.roster.Store(p.build(all.slots, all.values, &old.rota))
	return nil
}

// Remove removes a member, and reports whether there was one of that name. Calls to it that are under way go on, and are
// settled. A circuit that the pool made is closed. Without its last member a pool answers with an [*UnavailableError].
func (p *Pool[E]) Remove(name string) bool {
	p.load()
	gone := p.dismiss(name)
	if gone == nil {
		return false
	}
	_ = closeOwn([]*slot{gone})
	return true
}

func (p *Pool[E]) dismiss(name string) *slot {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.roster.Load()
	at := old.find(name)
	if at < 0 {
		return nil
	}
	slots := slices.Delete(slices.Clone(old.slots), at, at+1)
	values := slices.Delete(slices.Clone(old.values), at, at+1)
	p.roster.Store(p.build(slots, values, &old.rota))
	return old.slots[at]
}

func (r *rota) find(name string) int {
	return slices.IndexFunc(r.slots, func(s *slot) bool { return s.name == name })
}

// Circuit returns the circuit of a member; nil if there is none of that name.
func (p *Pool[E]) Circuit(name string) *breaker.Circuit {
	r := p.load()
	if i := r.find(name); i >= 0 {
		return r.slots[i].circuit
	}
	return nil
}

// Circuits yields the circuits of the members that are there now, by the circuits' names, in the pool's order: a Pool is a
// [breaker.Source].
func (p *Pool[E]) Circuits() iter.Seq2[string, *breaker.Circuit] {
	r := p.load()
	return func(yield func(string, *breaker.Circuit) bool) {
		for _, s := range r.slots {
			if !yield(s.circuit.Name(), s.circuit) {
				return
			}
		}
	}
}

// Close closes the circuits that the pool made: it stops their health checks. Calls go on as before; members can no
// longer be added. It may be called more than once.
func (p *Pool[E]) Close() error {
	p.load()
	p.mu.Lock()
	p.closed = true
	slots := p.roster.Load().slots
	p.mu.Unlock()
	return closeOwn(slots)
}

func closeOwn(slots []*slot) error {
	var errs []error
	for _, s := range slots {
		if s.own {
			errs = append(errs, s.circuit.Close())
		}
	}
	return errors.Join(errs...)
}

// load returns the members, and panics by name for a Pool that no constructor made.
func (p *Pool[E]) load() *roster[E] {
	if p == nil {
		panic("pool: nil *Pool; make one with New")
	}
	r := p.roster.Load()
	if r == nil {
		panic("pool: zero Pool; make one with New")
	}
	return r
}
