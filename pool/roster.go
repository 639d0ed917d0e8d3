package pool

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/breakerkit/breaker"
)

// roster is whose turn it is among some members. Every strategy but Failover is an endless row of turns from which all
// callers take; which of them would take a call is no concern of it. The members of a roster never change: adding or
// removing one makes another roster, which goes on where this one was.
type roster struct {
	strategy Strategy
	entries  []*entry
	maxOut   int // how many may be out; MaxEjected

	turn atomic.Uint64 // RoundRobin

	mu           sync.Mutex
	order        []int // Shuffle: those taken in this round, then the others
	taken        int
	weight       []int64 // WeightedRoundRobin
	credit       []int64 // what each is owed of the turns that are drawn, in shares of a turn
	unseenCredit []int64 // and of those that are taken among a few
}

// init makes a roster that goes on where old was; old may be nil.
func (r *roster) init(s Strategy, entries []*entry, maxEjected int, old *roster) {
	r.strategy, r.entries, r.maxOut = s, entries, len(entries)*maxEjected/100
	switch s {
	case RoundRobin:
		r.turnsFrom(old)
	case WeightedRoundRobin:
		r.creditsFrom(old)
	case Shuffle:
		r.orderFrom(old)
	}
}

// draw takes the next turn. random is a number from [0, 1).
func (r *roster) nextTurn(random float64) int {
	switch r.strategy {
	case WeightedRoundRobin:
		return r.nextWeighted(nil)
	case Shuffle:
		return r.nextShuffled(random)
	}
	return int((r.turn.Add(1) - 1) % uint64(len(r.entries)))
}

// among takes a turn for one that is not in seen, where turns drawn one by one are too long in coming to one; -1 if all
// are. from is where to look first.
func (r *roster) nextUnseen(seen *set, from int) int {
	if r.strategy == WeightedRoundRobin {
		return r.nextWeighted(seen)
	}
	n := len(r.entries)
	for i := range n {
		if j := (from + i) % n; !seen.has(j) {
			return j
		}
	}
	return -1
}

// nextWeighted gives everybody not in seen its weight's share of a turn and takes the turn from the one that is owed most.
// After as many turns as the sum of the weights everybody has had its weight, and is owed nothing. Turns among a few have
// an account of their own: one of them is not worth as much as one among all.
func (r *roster) nextWeighted(seen *set) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	best, most, sum := -1, int64(0), int64(0)
	credit := r.credit[:len(r.weight)]
	if seen != nil {
		credit = r.unseenCredit[:len(r.weight)]
	}
	for i, w := range r.weight {
		if seen != nil && seen.has(i) {
			continue
		}
		c := credit[i] + w
		credit[i] = c
		sum += w
		if best < 0 || c > most {
			best, most = i, c
		}
	}
	if best >= 0 {
		credit[best] -= sum
	}
	return best
}

// deal takes the next card of the round: one step of a Fisher-Yates shuffle.
func (r *roster) nextShuffled(random float64) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.taken >= len(r.order) {
		r.taken = 0
	}
	left := len(r.order) - r.taken
	at := r.taken
	if random > 0 && random < 1 {
		at += int(random * float64(left))
	}
	card := r.order[at]
	r.order[at], r.order[r.taken] = r.order[r.taken], card
	r.taken++
	return card
}

// turnsFrom starts with the one whose turn it would have been.
func (r *roster) turnsFrom(old *roster) {
	if old == nil || len(old.entries) == 0 {
		return
	}
	index := r.index()
	n := uint64(len(old.entries))
	for at := range n {
		if i, ok := index[old.entries[(old.turn.Load()+at)%n]]; ok {
			r.turn.Store(uint64(i))
			return
		}
	}
}

// creditsFrom takes over what everybody is owed.
func (r *roster) creditsFrom(old *roster) {
	r.weight = make([]int64, len(r.entries))
	r.credit = make([]int64, len(r.entries))
	r.unseenCredit = make([]int64, len(r.entries))
	for i, s := range r.entries {
		r.weight[i] = int64(max(1, s.weight))
	}
	if old == nil {
		return
	}
	index := r.index()
	old.mu.Lock()
	defer old.mu.Unlock()
	for i, s := range old.entries {
		if to, ok := index[s]; ok {
			r.credit[to], r.unseenCredit[to] = old.credit[i], old.unseenCredit[i]
		}
	}
}

// orderFrom goes on with the round. Who is new has its turn in it.
func (r *roster) orderFrom(old *roster) {
	index := r.index()
	if old != nil {
		old.mu.Lock()
		defer old.mu.Unlock()
		for i, card := range old.order {
			to, ok := index[old.entries[card]]
			if !ok {
				continue
			}
			if i < old.taken {
				r.taken++
			}
			r.order = append(r.order, to)
			delete(index, old.entries[card])
		}
	}
	for i, s := range r.entries {
		if _, isNew := index[s]; isNew {
			r.order = append(r.order, i)
		}
	}
}

func (r *roster) index() map[*entry]int {
	index := make(map[*entry]int, len(r.entries))
	for i, s := range r.entries {
		index[s] = i
	}
	return index
}

// memberList is the members at one time, in the order in which they are asked. It never changes.
type memberList[E any] struct {
	roster
	values []E
}

// entry is one member without its value.
type entry struct {
	name     string
	priority int
	weight   int
	circuit  *breaker.Circuit
	timeout  time.Duration // of an attempt; 0 = none
	own      bool          // the circuit was made by the pool
}

// check reports what is wrong with a member beside those that are there.
func (s *entry) check(there []*entry, where string) faults {
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

func (s *entry) circuitName() string {
	if s.circuit == nil {
		return s.name
	}
	return s.circuit.Name()
}

func entryOf[E any](m Member[E]) *entry {
	return &entry{name: m.Name, priority: m.Priority, weight: m.Weight, circuit: m.Circuit}
}

// insert puts a member where it belongs.
func (r *memberList[E]) insert(s Strategy, m *entry, v E) {
	at := len(r.entries)
	if s == Failover {
		for at > 0 && r.entries[at-1].priority < m.priority {
			at--
		}
	}
	r.entries = slices.Insert(r.entries, at, m)
	r.values = slices.Insert(r.values, at, v)
}

func (r *roster) find(name string) int {
	return slices.IndexFunc(r.entries, func(s *entry) bool { return s.name == name })
}
