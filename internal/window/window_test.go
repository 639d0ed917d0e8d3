package window

import (
	"math"
	"math/bits"
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"
)

// The windows against references that keep every call and count anew each time.

// mdlSeen is a call that a window has seen.
type mdlSeen struct {
	at      int64
	outcome Outcome
	slow    bool
}

func mdlCount(calls []mdlSeen) (s Sums) {
	for _, c := range calls {
		s.Count(c.outcome, c.slow)
	}
	return s
}

// mdlQuicken makes every call one that is not slow.
func mdlQuicken(calls []mdlSeen) {
	for i := range calls {
		calls[i].slow = false
	}
}

func mdlDrawCall(t *rapid.T) (Outcome, bool) {
	return Outcome(rapid.IntRange(0, 2).Draw(t, "outcome")), rapid.Bool().Draw(t, "slow")
}

func TestCallWindowHoldsExactlyTheLastCalls(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.OneOf(rapid.IntRange(1, 10), rapid.SampledFrom([]int{63, 64, 65, 127, 128, 129, 200})).Draw(t, "size")
		w := NewCalls(size)
		var calls, all []mdlSeen // calls is all without the ignored
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				o, slow := mdlDrawCall(t)
				w.Add(0, o, slow)
				all = append(all, mdlSeen{0, o, slow})
				if o != Ignored {
					calls = append(calls, mdlSeen{0, o, slow})
				}
			},
			"addSuccesses": func(t *rapid.T) {
				n := rapid.OneOf(rapid.Uint64Range(0, uint64(2*size)), rapid.Uint64Range(math.MaxUint64-3, math.MaxUint64)).Draw(t, "n")
				w.AddSuccesses(0, n)
				for range min(n, uint64(size)) {
					calls, all = append(calls, mdlSeen{0, Success, false}), append(all, mdlSeen{0, Success, false})
				}
			},
			"withoutSlow": func(*rapid.T) {
				w = w.WithoutSlow().(*Calls)
				mdlQuicken(calls)
			},
			"clear": func(*rapid.T) { w.Clear(); calls, all = nil, nil },
			"": func(t *rapid.T) {
				calls, all = calls[max(0, len(calls)-size):], all[max(0, len(all)-size):]
				want := mdlCount(calls)
				want.Ignored = mdlCount(all).Ignored
				if got := w.Sums(0); got != want {
					t.Fatalf("%+v, want %+v", got, want)
				}
			},
		})
	})
}

func TestCallWindowCostsTwoBitsACall(t *testing.T) {
	w := NewCalls(1000)
	w.AddSuccesses(0, 5000)
	if w.failed != nil || w.slow != nil {
		t.Error("a window of successes has made its bits")
	}
	w.Add(0, Failure, true)
	if got := len(w.failed) + len(w.slow); got != 2*16 {
		t.Errorf("%d words of bits, want 32", got)
	}
}

func TestBitset(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint64Range(1, 300).Draw(t, "n")
		at := rapid.OneOf(rapid.Uint64Range(0, n-1), rapid.SampledFrom([]uint64{0, min(n, 64) - 1, min(n, 65) - 1, min(n, 128) - 1, n - 1}))
		b := newBitset(n)
		want := map[uint64]bool{}
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				for range 3 {
					i := at.Draw(t, "i")
					b.set(i)
					want[i] = true
				}
			},
			"clear": func(t *rapid.T) {
				from := at.Draw(t, "from")
				to := at.Draw(t, "to") + rapid.Uint64Range(0, 1).Draw(t, "more")
				cleared := uint64(0)
				for i := from; i < to; i++ {
					if want[i] {
						cleared++
						delete(want, i)
					}
				}
				if got := b.clear(from, to); got != cleared {
					t.Fatalf("clear(%d, %d) = %d, want %d", from, to, got, cleared)
				}
			},
			"": func(t *rapid.T) {
				ones := 0
				for _, word := range b {
					ones += bits.OnesCount64(word)
				}
				for i := range want {
					if b[i/64]>>(i%64)&1 == 0 {
						t.Fatalf("bit %d is missing", i)
					}
				}
				if ones != len(want) {
					t.Fatalf("%d bits set, want %d", ones, len(want))
				}
			},
		})
	})
}

// mdlExact is up to how many instants in it a time window is exact: see Last.
const mdlExact = 128

// mdlTimeWindowSize is how many bytes a time window may cost: see Last.
const mdlTimeWindowSize = 11 << 10

// mdlTimeModel is a time window beside its reference.
type mdlTimeModel struct {
	w     *Time
	now   int64
	calls []mdlSeen
	exact bool // every instant has had a slice of its own so far
}

// wait lets time pass, within what fits an int64.
func (m *mdlTimeModel) wait(d int64) {
	if m.now < math.MaxInt64-d {
		m.now += d
	}
}

func (m *mdlTimeModel) age(call int) uint64 { return uint64(m.now) - uint64(m.calls[call].at) }

// younger is what the calls younger than d add up to.
func (m *mdlTimeModel) younger(d int64) Sums {
	i := 0
	for i < len(m.calls) && m.age(i) >= uint64(d) {
		i++
	}
	return mdlCount(m.calls[i:])
}

func (m *mdlTimeModel) instants() (n int) {
	for i, c := range m.calls {
		if m.age(i) < uint64(m.w.length) && (i == 0 || m.calls[i-1].at != c.at) {
			n++
		}
	}
	return n
}

func (m *mdlTimeModel) add(o Outcome, slow bool) {
	m.w.Add(m.now, o, slow)
	m.calls = append(m.calls, mdlSeen{m.now, o, slow})
	m.exact = m.exact && m.instants() <= mdlExact
}

// check: never a call that is as old as the window is long; every call that is younger by a slice, which is a 64th of
// the window. Up to 128 instants, exactly the calls in the window.
func (m *mdlTimeModel) check(t *rapid.T) {
	d := m.w.length
	got, most, least := m.w.Sums(m.now), m.younger(d), m.younger(min(d, d-d/(MaxSlices/2)+1))
	if m.exact && got != most {
		t.Fatalf("at %d: %+v, want exactly %+v", m.now, got, most)
	}
	for _, n := range [][3]uint64{
		{least.OK, got.OK, most.OK}, {least.Failed, got.Failed, most.Failed},
		{least.Ignored, got.Ignored, most.Ignored}, {least.Slow, got.Slow, most.Slow},
	} {
		if n[1] < n[0] || n[1] > n[2] {
			t.Fatalf("at %d: %+v, want at least %+v, at most %+v", m.now, got, least, most)
		}
	}
	m.checkRoom(t)
}

func (m *mdlTimeModel) checkRoom(t *rapid.T) {
	if len(m.w.slices) > MaxSlices+spareSlices || len(m.w.slices)-m.w.head > MaxSlices {
		t.Fatalf("%d slices, %d of them live", len(m.w.slices), len(m.w.slices)-m.w.head)
	}
}

func mdlCheckTimeWindow(t *rapid.T, length int64, step *rapid.Generator[int64]) {
	start := rapid.SampledFrom([]int64{0, 1, math.MinInt64 / 2, -length, int64(1 << 62)}).Draw(t, "start")
	m := &mdlTimeModel{w: NewTime(time.Duration(length)), now: start, exact: true}
	t.Repeat(map[string]func(*rapid.T){
		"add": func(t *rapid.T) { m.add(mdlDrawCall(t)) },
		"addSuccesses": func(t *rapid.T) {
			n := rapid.IntRange(0, 50).Draw(t, "n")
			m.w.AddSuccesses(m.now, uint64(n))
			for range n {
				m.calls = append(m.calls, mdlSeen{m.now, Success, false})
			}
			m.exact = m.exact && m.instants() <= mdlExact
		},
		"run": func(t *rapid.T) {
			d := step.Draw(t, "every")
			o, slow := mdlDrawCall(t)
			for range rapid.IntRange(1, 300).Draw(t, "calls") {
				m.wait(d)
				m.add(o, slow)
				m.checkRoom(t)
			}
		},
		"wait":    func(t *rapid.T) { m.wait(step.Draw(t, "d")) },
		"outwait": func(*rapid.T) { m.wait(length - 1) },
		"withoutSlow": func(*rapid.T) {
			m.w = m.w.WithoutSlow().(*Time)
			mdlQuicken(m.calls)
		},
		"": m.check,
	})
}

func TestTimeWindowFewInstants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		length := rapid.Int64Range(1, 100).Draw(t, "length")
		mdlCheckTimeWindow(t, length, rapid.Int64Range(0, 2+length))
	})
}

func TestTimeWindowManyInstants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		length := rapid.SampledFrom([]int64{128, 191, 1000, 6400, int64(time.Second), int64(1 << 62)}).Draw(t, "length")
		mdlCheckTimeWindow(t, length, rapid.OneOf(
			rapid.Int64Range(0, length/1000+1),
			rapid.Int64Range(length/200, length/50+1),
			rapid.Int64Range(length/10, length/2),
		))
	})
}

func TestTimeWindowBulkIsTheSameAsOneByOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bulk, single := NewTime(1000), NewTime(1000)
		now := int64(0)
		for range rapid.IntRange(1, 400).Draw(t, "steps") {
			now += rapid.Int64Range(0, 30).Draw(t, "d")
			n := rapid.IntRange(1, 5).Draw(t, "n")
			bulk.AddSuccesses(now, uint64(n))
			for range n {
				single.Add(now, Success, false)
			}
			if b, s := bulk.Sums(now), single.Sums(now); b != s {
				t.Fatalf("%+v in bulk, %+v one by one", b, s)
			}
		}
	})
}

// A late filing, dated before the newest slice, joins that one; it never wakes what has expired.
func TestTimeWindowFilesThePast(t *testing.T) {
	w := NewTime(100)
	w.Add(50, Failure, false)
	w.AddSuccesses(10, 3)
	if got := w.Sums(149); got != (Sums{OK: 3, Failed: 1}) {
		t.Errorf("at 149: %+v", got)
	}
	if got := w.Sums(150); got != (Sums{}) {
		t.Errorf("at 150: %+v", got)
	}
	w.AddSuccesses(20, 5)
	if got := w.Sums(150); got != (Sums{}) {
		t.Errorf("successes of 20 at 150: %+v", got)
	}
}

// The room and the work that a window takes do not depend on the rate of calls.
func TestTimeWindowCostIsFlat(t *testing.T) {
	const length = int64(time.Second)
	for _, perWindow := range []int64{100, 1_000, 100_000, 10_000_000} {
		w := NewTime(time.Duration(length))
		merges, last := 0, 0
		calls := min(3*perWindow, 300_000)
		for i := range calls {
			w.Add(i*length/perWindow, Failure, false)
			if len(w.slices) < last {
				merges++
			}
			last = len(w.slices)
		}
		if most := int(calls/(MaxSlices/2-1)) + 4; merges > most {
			t.Errorf("%d calls a window: %d merges in %d calls, want at most %d", perWindow, merges, calls, most)
		}
		if size := cap(w.slices) * int(unsafe.Sizeof(timeSlice{})); size > mdlTimeWindowSize {
			t.Errorf("%d calls a window: room for %d slices, %d bytes, want at most %d", perWindow, cap(w.slices), size, mdlTimeWindowSize)
		}
	}
}

func TestTimeWindowSumsNeverWrap(t *testing.T) {
	w := NewTime(10)
	w.AddSuccesses(0, math.MaxUint64)
	w.Add(5, Failure, true)
	if got := w.Sums(9); got != (Sums{OK: math.MaxUint64, Failed: 1, Slow: 1}) {
		t.Errorf("%+v", got)
	}
	if got := w.Sums(10); got != (Sums{Failed: 1, Slow: 1}) {
		t.Errorf("%+v", got)
	}
	if got := w.Sums(15); got != (Sums{}) {
		t.Errorf("%+v", got)
	}
}

func TestRecentCountsExactly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 20).Draw(t, "n")
		var r Recent
		var times []int64
		now := rapid.SampledFrom([]int64{0, -50, math.MaxInt64 / 2}).Draw(t, "start")
		t.Repeat(map[string]func(*rapid.T){
			"add":   func(*rapid.T) { r.Add(now, n); times = append(times, now) },
			"wait":  func(t *rapid.T) { now += rapid.Int64Range(0, 20).Draw(t, "d") },
			"clear": func(*rapid.T) { r.Clear(); times = nil },
			"": func(t *rapid.T) {
				times = times[max(0, len(times)-n):]
				d := rapid.OneOf(rapid.Int64Range(1, 60), rapid.Just(int64(1<<62))).Draw(t, "within")
				want := 0
				for _, at := range times {
					if now-at < d {
						want++
					}
				}
				if got := r.Within(now, d); got != want {
					t.Fatalf("%d of %v within %d at %d, want %d", got, times, d, now, want)
				}
				if len(r.times) > n {
					t.Fatalf("keeps %d times, want at most %d", len(r.times), n)
				}
			},
		})
	})
}
