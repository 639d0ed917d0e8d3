package pool

import "github.com/breakerkit/breaker"

// walk is the way of one Do through the members of a rota: each is looked at once at most.
type walk struct {
	rota   *rota
	rand   func() float64
	seen   set
	left   int // how many have not been seen
	wasted int // turns drawn for somebody who has been seen
	from   int // behind the last one drawn
}

func newWalk(r *rota, rand func() float64) walk {
	return walk{rota: r, rand: rand, seen: newSet(len(r.slots)), left: len(r.slots)}
}

// next returns the next member to call. past says that it is to be called past its circuit.
func (w *walk) next() (i int, past, ok bool) {
	for w.left > 0 {
		i := w.turn()
		w.seen.add(i)
		w.left--
		c := w.rota.slots[i].circuit
		if c.Ready() {
			return i, false, true
		}
		if w.rota.maxOut < len(w.rota.slots) && w.rota.excess(i) {
			return i, true, true
		}
	}
	return 0, false, false
}

// turn returns somebody who has not been seen.
func (w *walk) turn() int {
	for w.wasted < w.rota.patience() {
		random := 0.0
		if w.rota.strategy == Shuffle {
			random = w.rand()
		}
		i := w.rota.draw(random)
		w.from = i + 1
		if !w.seen.has(i) {
			return i
		}
		w.wasted++
	}
	i := w.rota.among(&w.seen, w.from)
	w.from = i + 1
	return i
}

// patience is how many turns of members that it has seen a walk drops before it asks the others among themselves. Callers
// who take turns at the same time make it necessary, and weights that differ much, where a heavy member that is out has
// most of the turns.
func (r *rota) patience() int {
	switch r.strategy {
	case Failover:
		return 0
	case WeightedRoundRobin:
		return 64
	}
	return 64 + len(r.slots)
}

// excess reports whether a member that is not ready is in rotation all the same, since as many as may be out are out
// before it.
func (r *rota) excess(i int) bool {
	if r.slots[i].circuit.State() != breaker.Open {
		return false
	}
	out := 0
	for _, s := range r.slots[:i] {
		if out >= r.maxOut {
			break
		}
		if s.circuit.State() == breaker.Open {
			out++
		}
	}
	return out >= r.maxOut && r.slots[i].circuit.Snapshot().Mode != breaker.ForcedOpen
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
