package pool

import (
	"context"
	"math"
	"time"

	"github.com/breakerkit/breaker"
)

const (
	// lookEvery is how many members a rotation looks at before it looks at the caller's context and the limit again.
	lookEvery = 64
	// maxSteps bounds what a rotation does that takes a step for each member, and that it would do again after every member
	// that it has called. Ten thousand members that all fail must not take a hundred million steps.
	maxSteps = 1 << 17
)

// rotation is the members in the order in which one call asks them: each is looked at once at most.
type rotation struct {
	roster   *roster
	settings *settings
	ctx      context.Context // the caller's
	limit    time.Time       // when all of the call must end; zero for never

	pending int // the member whose turn has been taken, and is to be looked at; -1 if none
	tier    int // the index of the tier that is being asked
	left    int // how many of its members have not been seen
	skipped int // how many of its turns led to no member
	from    int // behind the member that was chosen last
	seen    set
	ready   bool // those of the tier that have not been seen were ready when last looked at
	steps   int
	looks   int
	over    bool // the caller's context or the limit has ended
	cut     int  // open members from this index on are kept in rotation by MaxEjected; -1 before it is known
}

// begin starts a rotation. It fills in a zero one, which costs less than returning a new one.
func (w *rotation) begin(ctx context.Context, r *roster, s *settings, limit time.Duration) {
	w.ctx, w.roster, w.settings, w.pending, w.cut = ctx, r, s, -1, -1
	if r.strategy != Failover && len(r.entries) > len(w.seen.few)*64 {
		w.seen.many = make([]uint64, (len(r.entries)+63)/64)
	}
	if limit > 0 {
		w.limit = read(s.clock).Add(limit)
	}
	w.enter(0)
}

// enter begins with a tier.
func (w *rotation) enter(k int) {
	w.tier = k
	if k < len(w.roster.tiers) {
		t := &w.roster.tiers[k]
		w.left, w.from, w.skipped, w.ready = t.size(), t.from, 0, false
	}
}

// next returns the next member to call. bypass says that it is to be called although its circuit is open. ok is false
// where no member is left, and where the caller's context or the limit has ended.
func (w *rotation) next() (i int, bypass, ok bool) {
	for ; w.tier < len(w.roster.tiers); w.enter(w.tier + 1) {
		for w.left > 0 && !w.over {
			i := w.choose(&w.roster.tiers[w.tier])
			if i < 0 {
				break
			}
			w.see(i)
			if bypass, ok := w.usable(i); ok {
				return i, bypass, true
			}
			w.interrupted()
		}
		if w.over || w.ended() {
			break
		}
	}
	return 0, false, false
}

func (w *rotation) see(i int) {
	w.left--
	w.from = i + 1
	if w.roster.strategy != Failover {
		w.seen.add(i)
	}
}

// usable reports whether a member would take a call, and whether it is to be called although its circuit is open.
func (w *rotation) usable(i int) (bypass, ok bool) {
	if w.roster.entries[i].circuit.Ready() {
		return false, true
	}
	if w.roster.maxOut < len(w.roster.entries) && w.keptIn(i) {
		return true, true
	}
	return false, false
}

// ended reports whether no further member may be called.
func (w *rotation) ended() bool { return w.ctx.Err() != nil || w.late() }

// late reports whether the limit has passed.
func (w *rotation) late() bool { return !w.limit.IsZero() && !read(w.settings.clock).Before(w.limit) }

// interrupted is ended, asked once in a while. Once true it stays so.
func (w *rotation) interrupted() bool {
	w.looks++
	if w.looks%lookEvery == 0 && w.ended() {
		w.over = true
	}
	return w.over
}

// choose returns a member of a tier that has not been seen; -1 where none is left, or where the call has ended.
func (w *rotation) choose(t *tier) int {
	if i := w.pending; i >= 0 {
		w.pending = -1
		return i
	}
	switch w.roster.strategy {
	case Failover:
		return w.from
	case LeastBusy:
		if w.steps < maxSteps {
			return w.leastBusy(t)
		}
		return w.unseen(t)
	}
	for most := maxSkips(w.roster.strategy, t.size()); w.skipped < most; {
		random := 0.0
		if w.roster.strategy == Shuffle {
			random = w.settings.rand()
		}
		w.skipped++
		if i := t.next(w.roster.strategy, random); !w.seen.has(i) {
			return i
		}
	}
	if w.roster.strategy == WeightedRoundRobin && w.steps < maxSteps {
		return w.weighted(t)
	}
	return w.unseen(t)
}

// maxSkips is how many turns in a tier of n a rotation takes before it asks those that it has not seen. Callers who take
// turns at the same time make it necessary, and weights that differ much, where a heavy member that is out has most of the
// turns. A weighted turn takes time in proportion to n, hence a bound on their product.
func maxSkips(s Strategy, n int) int {
	if s == WeightedRoundRobin {
		return max(8, min(64+n, (1<<16)/n))
	}
	return min(64+n, 1024)
}

// weighted chooses by weight among those that have not been seen and are ready. Whether they are is found first, so that
// the lock is held for one choice and for none of the looks.
func (w *rotation) weighted(t *tier) int {
	w.steps += t.size()
	for i := t.from; i < t.to && !w.ready; i++ {
		if w.stays(i); w.interrupted() {
			return -1
		}
	}
	w.ready = true
	return t.nextAmong(w.roster.entries, &w.seen)
}

// unseen returns the next one that has not been seen, in the order given.
func (w *rotation) unseen(t *tier) int {
	for k := range t.size() {
		if i := t.from + (w.from-t.from+k)%t.size(); !w.seen.has(i) {
			return i
		}
	}
	return -1
}

// leastBusy chooses the one with the fewest calls in flight of those that have not been seen and are ready. Equals have
// their turn one after the other: the search begins with the one whose turn it is.
func (w *rotation) leastBusy(t *tier) int {
	w.steps += t.size()
	start := t.next(LeastBusy, 0)
	for most := maxSkips(LeastBusy, t.size()); w.left > 0 && w.skipped < most && !w.stays(start); start = t.next(LeastBusy, 0) {
		if w.skipped++; w.interrupted() {
			return -1
		}
	}
	best, least := -1, int64(math.MaxInt64)
	for k := range t.size() {
		i := t.from + (start-t.from+k)%t.size()
		n := w.roster.entries[i].inFlight.Load()
		if n < least && w.stays(i) {
			best, least = i, n
		}
		if least == 0 {
			break
		}
		if w.interrupted() {
			return -1
		}
	}
	return best
}

// stays reports whether a member has not been seen and would take a call. One that would not has been seen thereby.
func (w *rotation) stays(i int) bool {
	if w.seen.has(i) {
		return false
	}
	_, ok := w.usable(i)
	if !ok {
		w.see(i)
	}
	return ok
}

// keptIn reports whether a member that is not ready is in rotation all the same, since as many as may be out are out
// before it.
func (w *rotation) keptIn(i int) bool {
	if w.cut < 0 {
		w.findCut()
	}
	if i < w.cut || w.over {
		return false
	}
	e, ok := w.roster.entries[i].circuit.Refusal().(*breaker.OpenError)
	return ok && e.State == breaker.Open && e.Mode != breaker.ForcedOpen
}

// findCut finds behind which member as many as may be out are out.
func (w *rotation) findCut() {
	w.steps += len(w.roster.entries)
	out := 0
	for w.cut = 0; w.cut < len(w.roster.entries) && out < w.roster.maxOut; w.cut++ {
		if w.roster.entries[w.cut].circuit.State() == breaker.Open {
			out++
		}
		if w.interrupted() {
			return
		}
	}
}

// called notes that a member was called. It may have taken a while: other circuits may have opened or closed meanwhile.
func (w *rotation) called() {
	w.ready = false
	if w.steps < maxSteps {
		w.cut = -1
	}
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
