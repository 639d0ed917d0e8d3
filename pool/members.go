package pool

import (
	"errors"
	"iter"
	"slices"

	"github.com/breakerkit/breaker"
)

// Add adds a member. It has its turn as if it had been there all along; members of the same Priority come before it. With a
// Circuit, its state is the circuit's: a member that was removed comes back as it was. The error says what is wrong with
// it, or that the pool is closed ([ErrClosed]).
func (p *Pool[E]) Add(m Member[E]) error {
	e := entryOf(m)
	err := p.check(p.load(), e)
	if err == nil {
		err = p.makeCircuit(e, m).err() // user code, hence outside the lock
	}
	if err == nil {
		err = p.insertMember(e, m.Value)
	}
	if err != nil {
		_ = closeOwn([]*entry{e})
	}
	return err
}

func (p *Pool[E]) insertMember(e *entry, v E) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	old := p.members.Load()
	if err := p.check(old, e); err != nil {
		return err
	}
	at := old.place(e.priority)
	entries := slices.Insert(slices.Clone(old.entries), at, e)
	values := slices.Insert(slices.Clone(old.values), at, v)
	p.members.Store(p.build(entries, values, &old.roster))
	return nil
}

func (p *Pool[E]) check(r *memberList[E], e *entry) error {
	return newNames(p.settings.prefix, r.entries).check(e, "Member").err()
}

// Remove removes a member, and reports whether there was one of that name. Calls to it that are under way go on, and are
// settled. A circuit that the pool made is closed. Without its last member a pool answers with an [*UnavailableError].
func (p *Pool[E]) Remove(name string) bool {
	p.load()
	gone := p.removeMember(name)
	if gone == nil {
		return false
	}
	_ = closeOwn([]*entry{gone})
	return true
}

func (p *Pool[E]) removeMember(name string) *entry {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.members.Load()
	at := old.find(name)
	if at < 0 {
		return nil
	}
	entries := slices.Delete(slices.Clone(old.entries), at, at+1)
	values := slices.Delete(slices.Clone(old.values), at, at+1)
	p.members.Store(p.build(entries, values, &old.roster))
	return old.entries[at]
}

// Circuit returns the circuit of a member; nil if there is none of that name.
func (p *Pool[E]) Circuit(name string) *breaker.Circuit {
	r := p.load()
	if i := r.find(name); i >= 0 {
		return r.entries[i].circuit
	}
	return nil
}

// Circuits yields the circuits of the members that are there now, by the circuits' names, in the pool's order: a Pool is a
// [breaker.Source].
func (p *Pool[E]) Circuits() iter.Seq2[string, *breaker.Circuit] {
	r := p.load()
	return func(yield func(string, *breaker.Circuit) bool) {
		for _, e := range r.entries {
			if !yield(e.circuit.Name(), e.circuit) {
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
	entries := p.members.Load().entries
	p.mu.Unlock()
	return closeOwn(entries)
}

func closeOwn(entries []*entry) error {
	var errs []error
	for _, e := range entries {
		if e.own {
			errs = append(errs, e.circuit.Close())
		}
	}
	return errors.Join(errs...)
}
