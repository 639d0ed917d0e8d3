package pool

import "github.com/breakerkit/breaker"

// rotation is the way of one Do through the members of a roster: each is looked at once at most.
type rotation struct {
	roster  *roster
	rand    func() float64
	seen    set
	left    int // how many have not been seen
	skipped int // turns drawn for somebody who has been seen
	from    int // behind the last one drawn
}

func newRotation(r *roster, rand func() float64) rotation {
	return rotation{roster: r, rand: rand, seen: newSet(len(r.entries)), left: len(r.entries)}
}

// next returns the next member to call. bypass says that it is to be called although its circuit is open.
func (w *rotation) next() (i int, past, ok bool) {
	for w.left > 0 {
		i := w.turn()
		w.seen.add(i)
		w.left--
		c := w.roster.entries[i].circuit
		if c.Ready() {
			return i, false, true
		}
		if w.roster.maxOut < len(w.roster.entries) && w.roster.keptIn(i) {
			return i, true, true
		}
	}
	return 0, false, false
}

// turn returns somebody who has not been seen.
func (w *rotation) turn() int {
	for w.skipped < w.roster.maxSkips() {
		random := 0.0
		if w.roster.strategy == Shuffle {
			random = w.rand()
		}
		i := w.roster.nextTurn(random)
		w.from = i + 1
		if !w.seen.has(i) {
			return i
		}
		w.skipped++
	}
	i := w.roster.nextUnseen(&w.seen, w.from)
	w.from = i + 1
	return i
}

// patience is how many turns of members that it has seen a rotation drops before it asks the others among themselves. Callers
// who take turns at the same time make it necessary, and weights that differ much, where a heavy member that is out has
// most of the turns.
func (r *roster) maxSkips() int {
	switch r.strategy {
	case Failover:
		return 0
	case WeightedRoundRobin:
		return 64
	}
	return 64 + len(r.entries)
}

// keptIn reports whether a member that is not ready is in rotation all the same, since as many as may be out are out
// before it.
func (r *roster) keptIn(i int) bool {
	if r.entries[i].circuit.State() != breaker.Open {
		return false
	}
	out := 0
	for _, s := range r.entries[:i] {
		if out >= r.maxOut {
			break
		}
		if s.circuit.State() == breaker.Open {
			out++
		}
	}
	return out >= r.maxOut && r.entries[i].circuit.Snapshot().Mode != breaker.ForcedOpen
}

// set is some of the numbers below n. Up to 320 it takes no memory of its own.
type set struct {
	few  [5]uint64
	many []uint64
}

func newSet(n int) (s set) {
	if n > len(s.few)*64 {
		s.many = make([]uint64, (n+63)/64)
	}
	return s
}

func (s *set) has(i int) bool {
	if s.many != nil {
		return s.many[i>>6]>>(i&63)&1 != 0
	}
	return s.few[i>>6]>>(i&63)&1 != 0
}

func (s *set) add(i int) {
	if s.many != nil {
		s.many[i>>6] |= 1 << (i & 63)
		return
	}
	s.few[i>>6] |= 1 << (i & 63)
}
