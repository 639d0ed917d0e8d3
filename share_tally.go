package breaker

import (
	"slices"
	"time"
)

// tally is what is to be reported.
type tally struct {
	slices       []tallySlice
	failureTimes []int64 // of the last failures
	run          runShape
	outcomes     uint64 // outcomes in the slices
	folded       uint64 // of the epoch's successes, those that are in here or were before
}

type tallySlice struct {
	at int64
	sums
}

// runShape is what a batch does to a run of failures.
type runShape struct {
	early               bool   // there was a success, but from before the ledger's run
	broken              bool   // there was a success that ends a run
	failures            uint64 // in all
	head, tail, longest uint64 // as in Batch
	trailing            uint64
}

const (
	maxTallySlices = 40        // at most so many
	sliceGrain     = 5_000_000 // 5ms: outcomes no farther apart are one slice
)

// slice returns where to count what happens now. Where there are too many, neighbours are merged.
func (t *tally) slice(now int64) *sums {
	if n := len(t.slices); n > 0 && now-t.slices[n-1].at < sliceGrain {
		return &t.slices[n-1].sums
	}
	if len(t.slices) == maxTallySlices {
		for i := range maxTallySlices / 2 {
			t.slices[2*i].plus(t.slices[2*i+1].sums)
			t.slices[i] = t.slices[2*i]
		}
		t.slices = t.slices[:maxTallySlices/2]
	}
	t.slices = append(t.slices, tallySlice{at: now})
	return &t.slices[len(t.slices)-1].sums
}

// fold takes in the successes that were only counted so far. breaks says whether they may have ended a run.
func (t *tally) fold(successes uint64, now int64, breaks bool) {
	n := successes - t.folded
	t.folded = successes
	if n == 0 {
		return
	}
	t.slice(now).ok += n
	t.outcomes += n
	if t.run.early = t.run.early || !breaks; breaks {
		t.run.broken = true
		t.run.tail = 0
		t.run.trailing += n
	}
}

// add takes in one outcome that is no success. keep is how many times of failures are kept.
func (t *tally) add(now int64, o Outcome, slow bool, keep int) {
	t.slice(now).count(o, slow)
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

// batch writes the tally down. What is older than the window is of no use any more.
func (t *tally) batch(now int64, window time.Duration) (b StoreBatch) {
	for _, s := range t.slices {
		age := duration(now - s.at)
		if window == 0 || age < window {
			b.Slices = append(b.Slices, StoreSlice{Age: age, Successes: s.ok, Failures: s.failed, Ignored: s.ignored, Slow: s.slow})
		}
	}
	for _, at := range t.failureTimes {
		b.FailureAges = append(b.FailureAges, duration(now-at))
	}
	r := &t.run
	b.Head, b.Tail, b.Longest, b.Trailing, b.Early = r.head, r.tail, r.longest, r.trailing, r.early && !r.broken
	return b
}

// outcomes is how many a batch has.
func (b *StoreBatch) outcomes() (n uint64) {
	for _, s := range b.Slices {
		n += s.Successes + s.Failures + s.Ignored
	}
	return n
}

// countsForTrip reports whether a batch has what a trip policy looks at.
func (b *StoreBatch) countsForTrip() bool {
	return slices.ContainsFunc(b.Slices, func(s StoreSlice) bool { return s.Successes > 0 || s.Failures > 0 })
}
