package pool

import (
	"sort"
	"sync/atomic"
	"time"

	"github.com/breakerkit/breaker"
)

// memberList is the members at one time, those with the highest priority first, and of equals those given first. It never
// changes: adding or removing a member makes another list.
type memberList[E any] struct {
	roster
	values []E
}

// roster is a memberList without the members' values.
type roster struct {
	strategy Strategy
	entries  []*entry
	byName   map[string]int
	tiers    []tier
	maxOut   int // how many may be out; MaxEjected
}

// entry is one member without its value. It stays the same from roster to roster.
type entry struct {
	name     string
	priority int
	weight   int
	circuit  *breaker.Circuit
	timeout  time.Duration // of an attempt; 0 = none
	own      bool          // the circuit was made by the pool

	_        [64]byte     // every call writes what follows, and reads what precedes
	inFlight atomic.Int64 // calls of this pool; kept for LeastBusy alone
}

func entryOf[E any](m Member[E]) *entry {
	return &entry{name: m.Name, priority: m.Priority, weight: m.Weight, circuit: m.Circuit}
}

// init makes a roster whose turns go on where those of old were; old may be nil.
func (r *roster) init(s Strategy, entries []*entry, maxEjected int, old *roster) {
	r.strategy, r.entries, r.maxOut = s, entries, len(entries)*maxEjected/100
	r.byName = make(map[string]int, len(entries))
	for i, e := range entries {
		r.byName[e.name] = i
	}
	r.tiers = make([]tier, r.countTiers())
	from := 0
	for k := range r.tiers {
		to := r.tierEnd(from)
		r.tiers[k].init(s, entries, from, to)
		if old != nil {
			r.tiers[k].continueFrom(old.tierOf(entries[from].priority), old, r)
		}
		from = to
	}
}

// tierEnd is where the tier that begins at from ends. Failover has one tier: its order is the priority.
func (r *roster) tierEnd(from int) int {
	if r.strategy == Failover {
		return len(r.entries)
	}
	to := from + 1
	for to < len(r.entries) && r.entries[to].priority == r.entries[from].priority {
		to++
	}
	return to
}

func (r *roster) countTiers() (n int) {
	for from := 0; from < len(r.entries); from = r.tierEnd(from) {
		n++
	}
	return n
}

// tierOf returns the tier of a priority; nil if there is none.
func (r *roster) tierOf(priority int) *tier {
	k := sort.Search(len(r.tiers), func(k int) bool { return r.entries[r.tiers[k].from].priority <= priority })
	if k == len(r.tiers) || r.entries[r.tiers[k].from].priority != priority {
		return nil
	}
	return &r.tiers[k]
}

// find returns the index of a member; -1 if there is none of that name.
func (r *roster) find(name string) int {
	if i, ok := r.byName[name]; ok {
		return i
	}
	return -1
}

// indexOf returns where an entry of another roster is in this one; -1 if it is not.
func (r *roster) indexOf(e *entry) int {
	if i, ok := r.byName[e.name]; ok && r.entries[i] == e {
		return i
	}
	return -1
}

// place is where a member of this priority goes: behind its equals.
func (r *roster) place(priority int) int {
	return sort.Search(len(r.entries), func(i int) bool { return r.entries[i].priority < priority })
}

// names are the names that a pool's members and their circuits have, to find those given twice.
type names struct {
	prefix  string            // of the circuits that the pool makes
	members map[string]bool   // by member
	owners  map[string]string // by circuit: the member
}

func newNames(prefix string, there []*entry) *names {
	n := &names{prefix, make(map[string]bool, len(there)), make(map[string]string, len(there))}
	for _, e := range there {
		n.add(e)
	}
	return n
}

func (n *names) add(e *entry) {
	if e.name != "" {
		n.members[e.name] = true
		n.owners[n.circuit(e)] = e.name
	}
}

// circuit is the name of a member's circuit, made already or not.
func (n *names) circuit(e *entry) string {
	if e.circuit == nil {
		return n.prefix + e.name
	}
	return e.circuit.Name()
}

// check reports what is wrong with a member beside those that are there.
func (n *names) check(e *entry, where string) faults {
	var f faults
	if e.name == "" {
		f.add(where+".Name", `must not be empty, got ""`)
	}
	if e.weight < 0 || e.weight > maxWeight {
		f.add(where+".Weight", "must be from 0 to %d, got %d", maxWeight, e.weight)
	}
	if n.members[e.name] {
		f.add(where+".Name", "must be unique in the pool, got %q again", e.name)
	}
	if owner, taken := n.owners[n.circuit(e)]; taken && e.name != "" && owner != e.name {
		f.add(where+".Circuit", "must be the member's own, got %q, which %q has", n.circuit(e), owner)
	}
	return f
}
