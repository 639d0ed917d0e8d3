package pool

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// A Strategy says whose turn it is among the members of a pool. The zero value is Failover.
type Strategy uint8

// The strategies. All of them pass over members that would not take the call; the turn of such a member is dropped, so
// that it goes to no neighbour in particular, and nobody has any to make up for when it comes back.
const (
	Failover           Strategy = iota // the one with the highest Priority; of equals, the one given first
	RoundRobin                         // one after the other, in the order given
	WeightedRoundRobin                 // each as often as its Weight, spread evenly: 3 to 1 is a, a, b, a
	Shuffle                            // each once per round, in an order that chance makes anew for each round
)

var strategyNames = [...]string{"failover", "round-robin", "weighted-round-robin", "shuffle"}

// String is the strategy's name: failover, round-robin, weighted-round-robin or shuffle.
func (s Strategy) String() string {
	if int(s) < len(strategyNames) {
		return strategyNames[s]
	}
	return fmt.Sprintf("Strategy(%d)", uint8(s))
}

// MarshalText writes what String returns.
func (s Strategy) MarshalText() ([]byte, error) {
	if int(s) < len(strategyNames) {
		return []byte(strategyNames[s]), nil
	}
	return nil, fmt.Errorf("pool: Strategy: unknown value %d", uint8(s))
}

// rota is whose turn it is among some members. Every strategy but Failover is an endless row of turns from which all
// callers take; which of them would take a call is no concern of it. The members of a rota never change: adding or
// removing one makes another rota, which goes on where this one was.
type rota struct {
	strategy Strategy
	slots    []*slot
	maxOut   int // how many may be out; MaxEjected

	turn atomic.Uint64 // RoundRobin

	mu     sync.Mutex
	deck   []int // Shuffle: those dealt in this round, then the others
	dealt  int
	weight []int64 // WeightedRoundRobin
	credit []int64 // what each is owed of the turns that are drawn, in shares of a turn
	spare  []int64 // and of those that are taken among a few
}

// init makes a rota that goes on where old was; old may be nil.
func (r *rota) init(s Strategy, slots []*slot, maxEjected int, old *rota) {
	r.strategy, r.slots, r.maxOut = s, slots, len(slots)*maxEjected/100
	switch s {
	case RoundRobin:
		r.turnsFrom(old)
	case WeightedRoundRobin:
		r.creditsFrom(old)
	case Shuffle:
		r.deckFrom(old)
	}
}

// draw takes the next turn. random is a number from [0, 1).
func (r *rota) draw(random float64) int {
	switch r.strategy {
	case WeightedRoundRobin:
		return r.mostOwed(nil)
	case Shuffle:
		return r.deal(random)
	}
	return int((r.turn.Add(1) - 1) % uint64(len(r.slots)))
}

// among takes a turn for one that is not in seen, where turns drawn one by one are too long in coming to one; -1 if all
// are. from is where to look first.
func (r *rota) among(seen *set, from int) int {
	if r.strategy == WeightedRoundRobin {
		return r.mostOwed(seen)
	}
	n := len(r.slots)
	for i := range n {
		if j := (from + i) % n; !seen.has(j) {
			return j
		}
	}
	return -1
}

// mostOwed gives everybody not in seen its weight's share of a turn and takes the turn from the one that is owed most.
// After as many turns as the sum of the weights everybody has had its weight, and is owed nothing. Turns among a few have
// an account of their own: one of them is not worth as much as one among all.
func (r *rota) mostOwed(seen *set) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	best, most, sum := -1, int64(0), int64(0)
	credit := r.credit[:len(r.weight)]
	if seen != nil {
		credit = r.spare[:len(r.weight)]
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
func (r *rota) deal(random float64) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dealt >= len(r.deck) {
		r.dealt = 0
	}
	left := len(r.deck) - r.dealt
	at := r.dealt
	if random > 0 && random < 1 {
		at += int(random * float64(left))
	}
	card := r.deck[at]
	r.deck[at], r.deck[r.dealt] = r.deck[r.dealt], card
	r.dealt++
	return card
}

// turnsFrom starts with the one whose turn it would have been.
func (r *rota) turnsFrom(old *rota) {
	if old == nil || len(old.slots) == 0 {
		return
	}
	index := r.index()
	n := uint64(len(old.slots))
	for at := range n {
		if i, ok := index[old.slots[(old.turn.Load()+at)%n]]; ok {
			r.turn.Store(uint64(i))
			return
		}
	}
}

// creditsFrom takes over what everybody is owed.
func (r *rota) creditsFrom(old *rota) {
	r.weight = make([]int64, len(r.slots))
	r.credit = make([]int64, len(r.slots))
	r.spare = make([]int64, len(r.slots))
	for i, s := range r.slots {
		r.weight[i] = int64(max(1, s.weight))
	}
	if old == nil {
		return
	}
	index := r.index()
	old.mu.Lock()
	defer old.mu.Unlock()
	for i, s := range old.slots {
		if to, ok := index[s]; ok {
			r.credit[to], r.spare[to] = old.credit[i], old.spare[i]
		}
	}
}

// deckFrom goes on with the round. Who is new has its turn in it.
func (r *rota) deckFrom(old *rota) {
	index := r.index()
	if old != nil {
		old.mu.Lock()
		defer old.mu.Unlock()
		for i, card := range old.deck {
			to, ok := index[old.slots[card]]
			if !ok {
				continue
			}
			if i < old.dealt {
				r.dealt++
			}
			r.deck = append(r.deck, to)
			delete(index, old.slots[card])
		}
	}
	for i, s := range r.slots {
		if _, isNew := index[s]; isNew {
			r.deck = append(r.deck, i)
		}
	}
}

func (r *rota) index() map[*slot]int {
	index := make(map[*slot]int, len(r.slots))
	for i, s := range r.slots {
		index[s] = i
	}
	return index
}
