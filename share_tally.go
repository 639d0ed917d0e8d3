package breaker

import (
	"slices"
	"time"

	"github.com/breakerkit/breaker/internal/window"
)

// tally is the outcomes of the Closed state that are to be reported. The zero value is empty.
type tally struct {
	slices       []tallySlice // oldest first
	failureTimes []int64      // of the last failures, oldest first; as many as StoreShape.Failures
	run          runShape
	outcomes     uint64 // in all slices
	folded       uint64 // how many of the epoch's successes, Answered ones included, have been entered, here or in an earlier tally
}

// tallySlice counts what happened within sliceGrain.
type tallySlice struct {
	at int64 // of the first outcome
	window.Sums
}

// runShape is what a tally does to a run of failures, as the store needs to know it without the order of all outcomes.
type runShape struct {
	early    bool   // there was a success that ends no run: from before the run that the ledger is in, or Answered
	broken   bool   // there was any other success
	failures uint64 // in all
	head     uint64 // this and the next three: see StoreBatch
	tail     uint64
	longest  uint64
	trailing uint64
}

const (
	maxTallySlices = 40        // more are merged
	sliceGrain     = 5_000_000 // 5ms: outcomes that come within this after a slice's first are counted in it
)

// slice returns where to count an outcome now. When there are too many slices, neighbours are merged.
func (t *tally) slice(now int64) *window.Sums {
	if n := len(t.slices); n > 0 && now-t.slices[n-1].at < sliceGrain {
		return &t.slices[n-1].Sums
	}
	if len(t.slices) == maxTallySlices {
		for i := range maxTallySlices / 2 {
			t.slices[2*i].Plus(t.slices[2*i+1].Sums)
			t.slices[i] = t.slices[2*i]
		}
		t.slices = t.slices[:maxTallySlices/2]
	}
	t.slices = append(t.slices, tallySlice{at: now})
	return &t.slices[len(t.slices)-1].Sums
}

// fold enters the successes that have not been entered yet, successes being how many the epoch has had in all. breaks says
// whether they may have ended a run of failures; otherwise they came before it, or were Answered.
func (t *tally) fold(successes uint64, now int64, breaks bool) {
	n := successes - t.folded
	t.folded = successes
	if n == 0 {
		return
	}
	t.slice(now).OK += n
	t.outcomes += n
	if t.run.early = t.run.early || !breaks; breaks {
		t.run.broken = true
		t.run.tail = 0
		t.run.trailing += n
	}
}

// add enters a Failure or an Ignored. keep is how many failure times are kept.
func (t *tally) add(now int64, o Outcome, slow bool, keep int) {
	t.slice(now).Count(window.Outcome(o), slow)
	t.outcomes++
	if o != Failure {
		return
	}
	r := &t.run
	r.failures++
	r.tail++
	r.trailing = 0
	if !r.broken {
		r.head++
	}
	r.longest = max(r.longest, r.tail)
	if keep > 0 {
		t.failureTimes = append(t.failureTimes[max(0, len(t.failureTimes)-keep+1):], now)
	}
}

// batch returns what the tally has, in the form of a report. Slices older than the window are left out: the ledger would
// not count them.
func (t *tally) batch(now int64, window time.Duration) (b StoreBatch) {
	for _, s := range t.slices {
		age := duration(now - s.at)
		if window == 0 || age < window {
			b.Slices = append(b.Slices, StoreSlice{Age: age, Successes: s.OK, Failures: s.Failed, Ignored: s.Ignored, Slow: s.Slow})
		}
	}
	for _, at := range t.failureTimes {
		b.FailureAges = append(b.FailureAges, duration(now-at))
	}
	r := &t.run
	b.Head, b.Tail, b.Longest, b.Trailing, b.Early = r.head, r.tail, r.longest, r.trailing, r.early && !r.broken
	return b
}

// outcomes returns how many outcomes a batch has.
func (b *StoreBatch) outcomes() (n uint64) {
	for _, s := range b.Slices {
		n += s.Successes + s.Failures + s.Ignored
	}
	return n
}

// countsForTrip reports whether a batch has an outcome that trip policies look at.
func (b *StoreBatch) countsForTrip() bool {
	return slices.ContainsFunc(b.Slices, func(s StoreSlice) bool { return s.Successes > 0 || s.Failures > 0 })
}

// asksUser reports whether the TripWhen functions are asked after a report of the batch; see tripPolicy.asksUser.
func (b *StoreBatch) asksUser() bool {
	return slices.ContainsFunc(b.Slices, func(s StoreSlice) bool { return s.Failures > 0 || s.Slow > 0 })
}
