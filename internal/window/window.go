// Package window keeps what was counted over a stretch of the past: the last n calls, or the last stretch of time. Its
// types are not safe for concurrent use, and take their time from the caller, in nanoseconds since any base.
package window

import (
	"math/bits"
	"slices"
	"sort"
	"time"
)

// Outcome is what one call counts as. The breaker's own Outcome has the same values.
type Outcome uint8

// The outcomes.
const (
	Success Outcome = iota
	Failure
	Ignored
)

// Ring is a window that moves on with the calls or with the time.
type Ring interface {
	Add(now int64, o Outcome, slow bool)
	AddSuccesses(at int64, n uint64)
	Sums(now int64) Sums // what the window holds at now; calls that have left it are dropped
	Clear()
	WithoutSlow() Ring // a copy in which no call is slow
}

// Sums is what a window adds up. Slow calls are also among the others.
type Sums struct{ OK, Failed, Ignored, Slow uint64 }

// Count adds one call. An Ignored call is never slow.
func (s *Sums) Count(o Outcome, slow bool) {
	switch o {
	case Success:
		s.OK++
	case Failure:
		s.Failed++
	case Ignored:
		s.Ignored++
		return
	}
	if slow {
		s.Slow++
	}
}

// Plus adds t.
func (s *Sums) Plus(t Sums) {
	s.OK += t.OK
	s.Failed += t.Failed
	s.Ignored += t.Ignored
	s.Slow += t.Slow
}

// Minus takes t out.
func (s *Sums) Minus(t Sums) {
	s.OK -= t.OK
	s.Failed -= t.Failed
	s.Ignored -= t.Ignored
	s.Slow -= t.Slow
}

// Calls is how many calls a rate is taken of.
func (s Sums) Calls() uint64 { return s.OK + s.Failed }

// Calls holds the last calls as a ring of bits. Successes may be added many at once. Ignored calls take no place in it: they
// have a ring of their own, over the last calls of every outcome.
type Calls struct {
	failed, slow bitset // made at the first failure or slow call
	size         uint64
	next         uint64 // where the next call goes
	filled       uint64
	total        Sums // OK is not kept: it is filled less Failed

	ignored *ignoredCalls // made at the first Ignored call
}

// ignoredCalls is which of the last calls, of any outcome, were Ignored.
type ignoredCalls struct {
	set  bitset
	next uint64 // where the next call goes; kept up only while a bit is set
}

// NewCalls makes a window over the last n calls.
func NewCalls(n int) *Calls { return &Calls{size: uint64(n)} }

// Add adds one call. The time is not used.
func (w *Calls) Add(_ int64, o Outcome, slow bool) {
	if o == Ignored {
		w.addIgnored()
		return
	}
	if o == Success && !slow {
		w.AddSuccesses(0, 1)
		return
	}
	if w.failed == nil {
		w.failed, w.slow = newBitset(w.size), newBitset(w.size)
	}
	at := w.next
	w.AddSuccesses(0, 1)
	if o == Failure {
		w.failed.set(at)
		w.total.Failed++
	}
	if slow {
		w.slow.set(at)
		w.total.Slow++
	}
}

func (w *Calls) addIgnored() {
	if w.ignored == nil {
		w.ignored = &ignoredCalls{set: newBitset(w.size)}
	}
	at := w.ignored.next
	w.total.Ignored -= w.ignored.set.clearNext(at, 1, w.size)
	w.ignored.next = (at + 1) % w.size
	w.ignored.set.set(at)
	w.total.Ignored++
}

// AddSuccesses adds n successes.
func (w *Calls) AddSuccesses(_ int64, n uint64) {
	n = min(n, w.size)
	w.filled = min(w.size, w.filled+n)
	w.forgetNext(n)
	w.next = (w.next + n) % w.size
	if w.total.Ignored > 0 {
		w.total.Ignored -= w.ignored.set.clearNext(w.ignored.next, n, w.size)
		w.ignored.next = (w.ignored.next + n) % w.size
	}
}

// forgetNext takes the calls whose places the next n calls get out of the ring and the sums.
func (w *Calls) forgetNext(n uint64) {
	if w.total.Failed > 0 {
		w.total.Failed -= w.failed.clearNext(w.next, n, w.size)
	}
	if w.total.Slow > 0 {
		w.total.Slow -= w.slow.clearNext(w.next, n, w.size)
	}
}

// Sums adds up the calls in the window.
func (w *Calls) Sums(int64) Sums {
	s := w.total
	s.OK = w.filled - s.Failed
	return s
}

// Clear forgets every call.
func (w *Calls) Clear() {
	w.AddSuccesses(0, w.size) // which leaves every bit at 0
	w.next, w.filled = 0, 0
}

// WithoutSlow is a copy in which no call is slow.
func (w *Calls) WithoutSlow() Ring {
	n := *w
	n.failed = slices.Clone(w.failed)
	if w.ignored != nil {
		n.ignored = &ignoredCalls{slices.Clone(w.ignored.set), w.ignored.next}
	}
	n.total.Slow = 0
	if w.slow != nil {
		n.slow = newBitset(w.size)
	}
	return &n
}

type bitset []uint64

func newBitset(n uint64) bitset { return make(bitset, (n+63)/64) }

func (b bitset) set(i uint64) { b[i/64] |= 1 << (i % 64) }

// clearNext clears n <= size bits from the one at from on, in a ring of size bits, and returns how many of them were set.
func (b bitset) clearNext(from, n, size uint64) uint64 {
	end := from + n
	if end <= size {
		return b.clear(from, end)
	}
	return b.clear(from, size) + b.clear(0, end-size)
}

// clear clears the bits in [from, to) and returns how many of them were set.
func (b bitset) clear(from, to uint64) (n uint64) {
	for from < to {
		word := from / 64
		mask := ^uint64(0) << (from % 64)
		if end := (word + 1) * 64; to < end {
			mask &= ^uint64(0) >> (end - to)
		}
		n += uint64(bits.OnesCount64(b[word] & mask))
		b[word] &^= mask
		from = (word + 1) * 64
	}
	return n
}

// Time holds the calls of the last stretch of time, as a queue of slices of time. Every instant gets a slice of its own
// while there is room; when there is none, neighbours are merged. A merge leaves at most half of the slices, so its
// cost, shared by the calls that filled the other half, does not depend on the window's length or on the rate of calls.
type Time struct {
	length int64
	slices []timeSlice // oldest first, from head
	head   int
	total  Sums
}

type timeSlice struct {
	start int64
	Sums
}

const (
	MaxSlices   = 128
	spareSlices = MaxSlices // room for slices that have left the window, so that they need not be removed one by one
)

// NewTime makes a window over the last d of time.
func NewTime(d time.Duration) *Time { return &Time{length: int64(d)} }

// Add adds one call at now, which is not before the calls added already.
func (w *Time) Add(now int64, o Outcome, slow bool) {
	w.at(now).Count(o, slow)
	w.total.Count(o, slow)
}

// AddSuccesses adds n successes at one instant.
func (w *Time) AddSuccesses(at int64, n uint64) {
	w.at(at).OK += n
	w.total.OK += n
}

// Sums adds up the calls that are in the window at now, and drops the others.
func (w *Time) Sums(now int64) Sums {
	w.expire(now)
	return w.total
}

// Clear forgets every call.
func (w *Time) Clear() { w.slices, w.head, w.total = w.slices[:0], 0, Sums{} }

// WithoutSlow is a copy in which no call is slow.
func (w *Time) WithoutSlow() Ring {
	n := *w
	n.slices = slices.Clone(w.slices)
	for i := range n.slices {
		n.slices[i].Slow = 0
	}
	n.total.Slow = 0
	return &n
}

// at returns the slice for an instant that is not before those of the slices there are.
func (w *Time) at(now int64) *Sums {
	w.expire(now)
	if n := len(w.slices); n > w.head && w.slices[n-1].start >= now {
		return &w.slices[n-1].Sums
	}
	if len(w.slices)-w.head == MaxSlices || len(w.slices) == MaxSlices+spareSlices {
		w.compact()
	}
	w.slices = append(w.slices, timeSlice{start: now})
	return &w.slices[len(w.slices)-1].Sums
}

func (w *Time) expire(now int64) {
	for w.head < len(w.slices) && w.slices[w.head].start <= now-w.length {
		w.total.Minus(w.slices[w.head].Sums)
		w.head++
	}
	if w.head == len(w.slices) {
		w.slices, w.head = w.slices[:0], 0
	}
}

// compact moves the slices that are left to the front. If they are still as many as there may be, it merges those whose
// starts lie within a 64th of the window.
func (w *Time) compact() {
	w.slices = slices.Delete(w.slices, 0, w.head)
	w.head = 0
	if len(w.slices) < MaxSlices {
		return
	}
	last := 0
	for _, s := range w.slices[1:] {
		if s.start-w.slices[last].start < w.length/(MaxSlices/2) {
			w.slices[last].Plus(s.Sums)
			continue
		}
		last++
		w.slices[last] = s
	}
	w.slices = w.slices[:last+1]
}

// Recent keeps the times of the last n failures, to tell exactly whether n of them lie within a time.
type Recent struct {
	times []int64 // a ring once it holds n
	next  int
}

// Add adds a failure at now. n is how many are kept.
func (r *Recent) Add(now int64, n int) {
	if len(r.times) < n {
		r.times = append(r.times, now)
		return
	}
	r.times[r.next] = now
	r.next = (r.next + 1) % n
}

// Last is a copy that keeps at most the last n.
func (r *Recent) Last(n int) Recent { return Recent{times: r.last(n)} }

// last is the times of the last n, or of all if they are fewer, the oldest first.
func (r *Recent) last(n int) []int64 {
	times := slices.Concat(r.times[r.next:], r.times[:r.next])
	return times[max(0, len(times)-n):]
}

// maxCarried bounds the memory that LastOf may need at once, whatever number of failures it is told of.
const maxCarried = 1 << 20

// LastOf is Last for a run of so many failures, of which r may have kept too few, or none. Those that it did not keep count
// as old as the oldest that it did, and no older than latest, the time of the last one.
func (r *Recent) LastOf(run, n int, latest int64) Recent {
	n = min(n, run, maxCarried)
	known := r.last(n)
	oldest := latest
	if len(known) > 0 {
		oldest = known[0]
	}
	times := make([]int64, n-len(known), n)
	for i := range times {
		times[i] = oldest
	}
	return Recent{times: append(times, known...)}
}

// Clear forgets every failure.
func (r *Recent) Clear() { r.times, r.next = r.times[:0], 0 }

// Within counts the failures younger than d.
func (r *Recent) Within(now, d int64) int {
	n := len(r.times)
	return n - sort.Search(n, func(i int) bool { return r.times[(r.next+i)%n] > now-d })
}
