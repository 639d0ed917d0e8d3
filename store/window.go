package store

import (
	"math"
	"time"

	"github.com/breakerkit/breaker"
)

// limit is where counts stop and what epochs stay below. Up to here a float64 is exact, and other Stores count in them.
const limit = 1 << 53

// sums is a number of outcomes of each kind.
type sums struct{ successes, failures, ignored, slow uint64 }

func (s *sums) add(o sums) {
	s.successes = addCapped(s.successes, o.successes)
	s.failures = addCapped(s.failures, o.failures)
	s.ignored = addCapped(s.ignored, o.ignored)
	s.slow = addCapped(s.slow, o.slow)
}

// addCapped adds two counts. The sum stops at the limit.
func addCapped(a, b uint64) uint64 { return min(min(a, limit)+min(b, limit), limit) }

func sumsOf(s breaker.StoreSlice) sums {
	return sums{min(s.Successes, limit), min(s.Failures, limit), min(s.Ignored, limit), min(s.Slow, limit)}
}

// windowParts is how many parts a window has.
const windowParts = 20

// ring holds the sums of a time window, in parts. A part leaves the window as a whole, when its beginning does: what is older
// than the window is never counted, and what is not may be missed for the last 20th of its time.
type ring struct {
	length instant // of a part
	parts  int64   // how many parts the window has: fewer than windowParts only where it is shorter than 20ns
	all    [windowParts]part
}

// part is the sums of one part. Parts are numbered along the time line; the ring has the latest of each number modulo
// windowParts.
type part struct {
	number int64
	sums
}

func newRing(window time.Duration) *ring {
	r := &ring{length: max(1, instant(window)/windowParts), parts: min(windowParts, int64(window))}
	for i := range r.all {
		r.all[i].number = math.MinInt64
	}
	return r
}

// partOf returns the number of the part in which an instant lies.
func (r *ring) partOf(at instant) int64 {
	n := int64(at / r.length)
	if at%r.length < 0 {
		n--
	}
	return n
}

// add counts what happened at an instant within the window.
func (r *ring) add(now, at instant, s sums) {
	number := r.partOf(at)
	if r.partOf(now)-number >= r.parts {
		return
	}
	p := &r.all[(number%windowParts+windowParts)%windowParts]
	if p.number != number {
		*p = part{number: number}
	}
	p.add(s)
}

func (r *ring) sums(now instant) (all sums) {
	oldest := r.partOf(now) - r.parts + 1
	for i := range r.all {
		if r.all[i].number >= oldest {
			all.add(r.all[i].sums)
		}
	}
	return all
}
