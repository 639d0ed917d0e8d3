package store

import (
	"math"
	"time"

	"github.com/breakerkit/breaker"
)

// limit is where counts stop and what epochs stay below: up to here a float64 is exact, and some Stores count in them.
const limit = 1 << 53

// sums is what is counted.
type sums struct{ successes, failures, ignored, slow uint64 }

func (s *sums) add(o sums) {
	s.successes = total(s.successes, o.successes)
	s.failures = total(s.failures, o.failures)
	s.ignored = total(s.ignored, o.ignored)
	s.slow = total(s.slow, o.slow)
}

// total adds two counts.
func total(a, b uint64) uint64 { return min(min(a, limit)+min(b, limit), limit) }

func sumsOf(s breaker.StoreSlice) sums {
	return sums{min(s.Successes, limit), min(s.Failures, limit), min(s.Ignored, limit), min(s.Slow, limit)}
}

// parts is how many slices of time a window has.
const parts = 20

// ring holds the sums of a time window. A slice leaves as a whole, when its beginning does: so what has left the window
// is never counted, and what is about to leave may be missed by a 20th of the window.
type ring struct {
	grain instant // how long a slice is
	reach int64   // how many are in the window; fewer than there are only where it is shorter than 20ns
	ring  [parts]slice
}

type slice struct {
	number int64 // how many grains after the beginning of time it begins
	sums
}

func newRing(window time.Duration) *ring {
	r := &ring{grain: max(1, instant(window)/parts), reach: min(parts, int64(window))}
	for i := range r.ring {
		r.ring[i].number = math.MinInt64
	}
	return r
}

// number says in which slice an instant lies.
func (r *ring) number(at instant) int64 {
	n := int64(at / r.grain)
	if at%r.grain < 0 {
		n--
	}
	return n
}

// add counts what happened at an instant within the window.
func (r *ring) add(now, at instant, s sums) {
	number := r.number(at)
	if r.number(now)-number >= r.reach {
		return
	}
	place := &r.ring[(number%parts+parts)%parts]
	if place.number != number {
		*place = slice{number: number}
	}
	place.add(s)
}

func (r *ring) sums(now instant) (all sums) {
	oldest := r.number(now) - r.reach + 1
	for i := range r.ring {
		if r.ring[i].number >= oldest {
			all.add(r.ring[i].sums)
		}
	}
	return all
}
