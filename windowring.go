package breaker

import (
	"math/bits"
	"slices"
	"sort"
	"time"
)

// window is a trip policy's memory. It is not safe for concurrent use.
type window interface {
	add(now int64, o Outcome, slow bool)
	addSuccesses(at int64, n uint64)
	sums(now int64) sums // what the window holds at now; what has left it is dropped
	clear()
}

// sums is what a window adds up.
type sums struct{ ok, failed, ignored, slow uint64 }

func (s *sums) count(o Outcome, slow bool) {
	switch o {
	case Success:
		s.ok++
	case Failure:
		s.failed++
	case Ignored:
		s.ignored++
		return
	}
	if slow {
		s.slow++
	}
}

func (s *sums) plus(t sums) {
	s.ok += t.ok
	s.failed += t.failed
	s.ignored += t.ignored
	s.slow += t.slow
}

func (s *sums) minus(t sums) {
	s.ok -= t.ok
	s.failed -= t.failed
	s.ignored -= t.ignored
	s.slow -= t.slow
}

func (s sums) calls() uint64 { return s.ok + s.failed }

// callWindow is LastCalls: a ring of bits. Successes arrive in bulk, since a success writes nothing on its own.
type callWindow struct {
	failed, slow bitset // made at the first failure or slow call
	size         uint64
	next         uint64 // where the next call goes
	filled       uint64
	total        sums // ok is not kept: it is what the others leave of filled
}

func newCallWindow(n int) *callWindow { return &callWindow{size: uint64(n)} }

func (w *callWindow) add(_ int64, o Outcome, slow bool) {
	if o == Ignored {
		w.total.ignored++
		return
	}
	if o == Success && !slow {
		w.addSuccesses(0, 1)
		return
	}
	if w.failed == nil {
		w.failed, w.slow = newBitset(w.size), newBitset(w.size)
	}
	at := w.next
	w.addSuccesses(0, 1)
	if o == Failure {
		w.failed.set(at)
		w.total.failed++
	}
	if slow {
		w.slow.set(at)
		w.total.slow++
	}
}

func (w *callWindow) addSuccesses(_ int64, n uint64) {
	n = min(n, w.size)
	w.filled = min(w.size, w.filled+n)
	end := w.next + n
	w.forget(w.next, min(end, w.size))
	if end > w.size {
		w.forget(0, end-w.size)
	}
	w.next = end % w.size
}

// forget takes the calls in [from, to) out of the sums.
func (w *callWindow) forget(from, to uint64) {
	if w.total.failed > 0 {
		w.total.failed -= w.failed.clear(from, to)
	}
	if w.total.slow > 0 {
		w.total.slow -= w.slow.clear(from, to)
	}
}

func (w *callWindow) sums(int64) sums {
	s := w.total
	s.ok = w.filled - s.failed
	return s
}

func (w *callWindow) clear() {
	w.forget(0, w.size)
	w.next, w.filled, w.total = 0, 0, sums{}
}

type bitset []uint64

func newBitset(n uint64) bitset { return make(bitset, (n+63)/64) }

func (b bitset) set(i uint64) { b[i/64] |= 1 << (i % 64) }

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

// timeWindow is Last: a queue of slices of time. Every instant gets a slice of its own while there is room; when there
// is none, neighbours are merged. A merge leaves at most half of the room taken, so that its cost, shared by the calls
// that filled the other half, does not depend on the window's length or on the rate of calls.
type timeWindow struct {
	length int64
	slices []timeSlice // oldest first, from head
	head   int
	total  sums
}

type timeSlice struct {
	start int64
	sums
}

const (
	maxSlices   = 128
	spareSlices = maxSlices // room for those that have left, so that they need not be taken out one by one
)

func newTimeWindow(d time.Duration) *timeWindow { return &timeWindow{length: int64(d)} }

func (w *timeWindow) add(now int64, o Outcome, slow bool) {
	w.at(now).count(o, slow)
	w.total.count(o, slow)
}

func (w *timeWindow) addSuccesses(at int64, n uint64) {
	w.at(at).ok += n
	w.total.ok += n
}

func (w *timeWindow) sums(now int64) sums {
	w.expire(now)
	return w.total
}

func (w *timeWindow) clear() { w.slices, w.head, w.total = w.slices[:0], 0, sums{} }

// at returns the slice for an instant, which is not before those already there.
func (w *timeWindow) at(now int64) *sums {
	w.expire(now)
	if n := len(w.slices); n > w.head && w.slices[n-1].start >= now {
		return &w.slices[n-1].sums
	}
	if len(w.slices)-w.head == maxSlices || len(w.slices) == maxSlices+spareSlices {
		w.compact()
	}
	w.slices = append(w.slices, timeSlice{start: now})
	return &w.slices[len(w.slices)-1].sums
}

func (w *timeWindow) expire(now int64) {
	for w.head < len(w.slices) && w.slices[w.head].start <= now-w.length {
		w.total.minus(w.slices[w.head].sums)
		w.head++
	}
	if w.head == len(w.slices) {
		w.slices, w.head = w.slices[:0], 0
	}
}

// compact moves what is left to the front. When it is as much as there may be, it merges slices whose starts lie within
// a 64th of the window.
func (w *timeWindow) compact() {
	w.slices = slices.Delete(w.slices, 0, w.head)
	w.head = 0
	if len(w.slices) < maxSlices {
		return
	}
	last := 0
	for _, s := range w.slices[1:] {
		if s.start-w.slices[last].start < w.length/(maxSlices/2) {
			w.slices[last].plus(s.sums)
			continue
		}
		last++
		w.slices[last] = s
	}
	w.slices = w.slices[:last+1]
}

// recent keeps the times of the last n failures, to tell exactly whether n of them lie within a window.
type recent struct {
	times []int64 // a ring once it holds n
	next  int
}

func (r *recent) add(now int64, n int) {
	if len(r.times) < n {
		r.times = append(r.times, now)
		return
	}
	r.times[r.next] = now
	r.next = (r.next + 1) % n
}

// last is the last n of the times.
func (r *recent) last(n int) recent {
	times := slices.Concat(r.times[r.next:], r.times[:r.next])
	return recent{times: times[max(0, len(times)-n):]}
}

func (r *recent) clear() { r.times, r.next = r.times[:0], 0 }

// within counts the failures younger than d.
func (r *recent) within(now, d int64) int {
	n := len(r.times)
	return n - sort.Search(n, func(i int) bool { return r.times[(r.next+i)%n] > now-d })
}
