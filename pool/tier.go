package pool

import (
	"sync"
	"sync/atomic"
)

// tier is the members of one priority and whose turn it is among them. Its turns are an endless sequence from which all
// callers take; which members would take a call does not concern it.
type tier struct {
	from, to int // the indexes of its members in the roster

	turn atomic.Uint64 // RoundRobin, LeastBusy: how many turns were taken

	mu     sync.Mutex
	order  []int   // Shuffle: those that have had their turn in this round, then the others
	taken  int     // Shuffle: how many have had it
	share  []int64 // WeightedRoundRobin: what each earns by a turn
	credit []int64 // WeightedRoundRobin: what each is owed of the turns that were taken
	some   []int64 // WeightedRoundRobin: what each is owed of the turns that were taken among some of them
}

// wholeTurn is the unit of the weighted strategy's accounts: a share of a turn is a share of this number. As the unit does
// not depend on the sum of the weights, what members are owed keeps its meaning when members come and go. The largest
// weight, 2^20, times wholeTurn fits an int64.
const wholeTurn = 1 << 42

func (t *tier) init(s Strategy, entries []*entry, from, to int) {
	t.from, t.to = from, to
	if s == Shuffle {
		for i := from; i < to; i++ {
			t.order = append(t.order, i)
		}
	}
	if s != WeightedRoundRobin {
		return
	}
	n := to - from
	t.share, t.credit, t.some = make([]int64, n), make([]int64, n), make([]int64, n)
	sum := int64(0)
	for _, e := range entries[from:to] {
		sum += e.turns()
	}
	for k, e := range entries[from:to] {
		t.share[k] = e.turns() * wholeTurn / sum
	}
}

// turns is a member's weight: how many turns of a round are its own.
func (e *entry) turns() int64 { return int64(max(1, e.weight)) }

func (t *tier) size() int { return t.to - t.from }

// next takes the next turn. random is a number from [0, 1).
func (t *tier) next(s Strategy, random float64) int {
	switch s {
	case WeightedRoundRobin:
		return t.nextWeighted()
	case Shuffle:
		return t.nextShuffled(random)
	}
	return t.from + int((t.turn.Add(1)-1)%uint64(t.size()))
}

// nextWeighted gives everybody its share of a turn and takes the turn from the one that is owed most. After as many turns
// as the sum of the weights each has had its weight, and is owed nothing.
func (t *tier) nextWeighted() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	best, sum := 0, int64(0)
	credit := t.credit[:len(t.share)]
	for k, share := range t.share {
		credit[k] += share
		sum += share
		if credit[k] > credit[best] {
			best = k
		}
	}
	credit[best] -= sum
	return t.from + best
}

// nextAmong is nextWeighted among those not in without; -1 if all are. These turns have an account of their own: the same
// members are not always among them.
func (t *tier) nextAmong(entries []*entry, without *set) int {
	sum := int64(0)
	for i := t.from; i < t.to; i++ {
		if !without.has(i) {
			sum += entries[i].turns()
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	best, given := -1, int64(0)
	for i := t.from; i < t.to; i++ {
		if without.has(i) {
			continue
		}
		share := entries[i].turns() * wholeTurn / sum
		t.some[i-t.from] += share
		given += share
		if best < 0 || t.some[i-t.from] > t.some[best] {
			best = i - t.from
		}
	}
	if best < 0 {
		return -1
	}
	t.some[best] -= given
	return t.from + best
}

// nextShuffled is one step of a Fisher-Yates shuffle: it takes one of those that have not had their turn in this round.
func (t *tier) nextShuffled(random float64) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.taken >= len(t.order) {
		t.taken = 0
	}
	at := t.taken
	if random > 0 && random < 1 {
		at += int(random * float64(len(t.order)-t.taken))
	}
	i := t.order[at]
	t.order[at], t.order[t.taken] = t.order[t.taken], i
	t.taken++
	return i
}

// leastBusy takes a turn and returns the member with the fewest calls in flight, of equals the first from that turn on.
func (t *tier) leastBusy(entries []*entry) int {
	best := t.next(LeastBusy, 0)
	least := entries[best].inFlight.Load()
	for k, i := 1, best+1; k < t.size() && least > 0; k, i = k+1, i+1 {
		if i >= t.to {
			i = t.from
		}
		if n := entries[i].inFlight.Load(); n < least {
			best, least = i, n
		}
	}
	return best
}

// continueFrom takes over where the tier of the same priority was in the roster before; old may be nil.
func (t *tier) continueFrom(old *tier, was, is *roster) {
	if old == nil {
		return
	}
	old.mu.Lock()
	defer old.mu.Unlock()
	switch is.strategy {
	case RoundRobin, LeastBusy:
		t.continueTurn(old, was, is)
	case WeightedRoundRobin:
		for k := range old.credit {
			if i := is.indexOf(was.entries[old.from+k]); i >= 0 {
				t.credit[i-t.from], t.some[i-t.from] = old.credit[k], old.some[k]
			}
		}
	case Shuffle:
		t.continueRound(old, was, is)
	}
}

// continueTurn starts with the member whose turn it would have been.
func (t *tier) continueTurn(old *tier, was, is *roster) {
	n := uint64(old.size())
	for at := range n {
		if i := is.indexOf(was.entries[old.from+int((old.turn.Load()+at)%n)]); i >= 0 {
			t.turn.Store(uint64(i - t.from))
			return
		}
	}
}

// continueRound goes on with the round. A new member has its turn in it.
func (t *tier) continueRound(old *tier, was, is *roster) {
	t.order = t.order[:0]
	stays := newSet(len(is.entries))
	for k, at := range old.order {
		i := is.indexOf(was.entries[at])
		if i < 0 {
			continue
		}
		if k < old.taken {
			t.taken++
		}
		t.order = append(t.order, i)
		stays.add(i)
	}
	for i := t.from; i < t.to; i++ {
		if !stays.has(i) {
			t.order = append(t.order, i)
		}
	}
}
