package store_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/breakertest"
	"github.com/breakerkit/breaker/store"
	"github.com/breakerkit/breaker/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// epoch is when the clocks of the tests start: some time of our days.
var epoch = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// handClock is a clock that a test moves, back too.
type handClock struct {
	mu  sync.Mutex
	t   time.Time
	hit func() // called by Now
}

func newHandClock() *handClock { return &handClock{t: epoch} }

func (c *handClock) Now() time.Time {
	c.mu.Lock()
	t, hit := c.t, c.hit
	c.mu.Unlock()
	if hit != nil {
		hit()
	}
	return t
}

func (c *handClock) After(time.Duration) <-chan time.Time { panic("nothing in a Memory waits") }

func (c *handClock) Add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

func (c *handClock) onNow(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hit = f
}

// guard fails a test that hangs, and lets the others run.
func guard(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
		if t.Failed() {
			t.FailNow()
		}
	case <-time.After(2 * time.Minute):
		stacks := make([]byte, 1<<20)
		t.Fatalf("stuck\n%s", stacks[:runtime.Stack(stacks, true)])
	}
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Fixture {
		clk := clock.NewMock()
		clk.Set(epoch)
		m := store.NewMemory(store.WithClock(clk))
		return storetest.Fixture{Open: func(*testing.T) breaker.Store { return m }, Advance: clk.Add}
	})
}

var (
	testContext = context.Background()
	windowed    = breaker.StoreShape{Window: time.Minute, Failures: 5, Reporters: 3, Config: "windowed"}
	unbounded   = breaker.StoreShape{Failures: 5, Config: "unbounded"}
)

// rig is a Memory with its clock.
type rig struct {
	*testing.T
	m   *store.Memory
	clk *handClock
}

func newRig(t *testing.T) *rig {
	clk := newHandClock()
	return &rig{t, store.NewMemory(store.WithClock(clk)), clk}
}

func (r *rig) do(op any) breaker.Ledger {
	r.Helper()
	l, err := storetest.Do(testContext, r.m, op)
	require.NoError(r, err)
	return l
}

func (r *rig) read(name string) breaker.Ledger { return r.do(storetest.Read(name)) }

func (r *rig) fail(name string, shape breaker.StoreShape) breaker.Ledger {
	return r.do(breaker.StoreReport{Name: name, Node: "n", Shape: shape, Batch: breaker.StoreBatch{
		Slices: []breaker.StoreSlice{{Failures: 1}}, FailureAges: []time.Duration{0}, Head: 1, Tail: 1, Longest: 1}})
}

func (r *rig) probe(name string, lease time.Duration, tokens ...string) breaker.Ledger {
	return r.do(breaker.StoreAcquire{Name: name, Shape: windowed, Tokens: tokens, Lease: lease, Limit: 1})
}

// lasts checks that a ledger is there until just before some time has passed, and no longer.
func (r *rig) lasts(name string, d time.Duration) {
	r.Helper()
	r.clk.Add(d - 1)
	require.NotZero(r, r.read(name).Epoch, "gone too soon")
	r.clk.Add(1)
	require.Zero(r, r.read(name).Epoch, "still there")
	require.Zero(r, r.m.Len())
}

func TestLedgersExpire(t *testing.T) {
	t.Run("Closed with a window", func(t *testing.T) {
		r := newRig(t)
		r.fail("n", windowed)
		r.clk.Add(time.Hour)
		r.fail("n", windowed)
		r.lasts("n", time.Minute+time.Hour)
	})
	t.Run("Closed without a window", func(t *testing.T) {
		r := newRig(t)
		for range 5 {
			r.fail("n", unbounded)
			r.clk.Add(23 * time.Hour)
		}
		require.EqualValues(t, 5, r.read("n").Counts.ConsecutiveFailures)
		r.lasts("n", time.Hour)
	})
	t.Run("Open", func(t *testing.T) {
		r := newRig(t)
		r.do(breaker.StoreMove{Name: "n", Shape: windowed, To: breaker.Open, For: 10 * time.Hour})
		r.lasts("n", 11*time.Hour)
	})
	t.Run("HalfOpen", func(t *testing.T) {
		r := newRig(t)
		r.probe("n", 2*time.Hour, "t")
		r.lasts("n", 3*time.Hour)
	})
	t.Run("HalfOpen without a slot", func(t *testing.T) {
		r := newRig(t)
		r.do(breaker.StoreMove{Name: "n", Shape: windowed, To: breaker.HalfOpen})
		r.lasts("n", time.Hour)
	})
	t.Run("nothing that changes nothing renews it", func(t *testing.T) {
		r := newRig(t)
		l := r.probe("n", time.Hour, "t")
		r.clk.Add(30 * time.Minute)
		require.Zero(t, r.probe("n", 100*time.Hour, "u").Granted)
		require.Equal(t, 1, r.probe("n", 100*time.Hour, "t").Granted)
		r.read("n")
		r.fail("n", windowed)
		r.do(breaker.StoreMove{Name: "n", Shape: windowed, From: l.Epoch - 1, To: breaker.Open, For: 100 * time.Hour})
		r.do(breaker.StoreVerdict{Name: "n", Shape: windowed, Epoch: l.Epoch, Token: "u", For: 100 * time.Hour})
		r.lasts("n", 90*time.Minute)
	})
	t.Run("a shorter life is shorter", func(t *testing.T) {
		r := newRig(t)
		l := r.do(breaker.StoreMove{Name: "n", Shape: windowed, To: breaker.Open, For: 1000 * time.Hour})
		r.do(breaker.StoreMove{Name: "n", Shape: windowed, From: l.Epoch, To: breaker.Closed})
		r.lasts("n", time.Minute+time.Hour)
	})
	t.Run("a new one goes on with the numbers", func(t *testing.T) {
		r := newRig(t)
		last := r.fail("n", windowed).Epoch
		r.clk.Add(2 * time.Hour)
		require.Greater(t, r.fail("n", windowed).Epoch, last)
	})
}

// One Store, names that are never used again.
func TestMemoryIsBounded(t *testing.T) {
	r := newRig(t)
	for i := range 20_000 {
		r.fail(fmt.Sprint("n", i), windowed)
		r.clk.Add(time.Second)
		require.LessOrEqual(t, r.m.Len(), 3660)
	}
	r.clk.Add(2 * time.Hour)
	r.read("another")
	require.Zero(t, r.m.Len())
}

func TestFewExpiredTokensAreRemembered(t *testing.T) {
	r := newRig(t)
	var l breaker.Ledger
	for i := range 3000 {
		l = r.probe("n", time.Second, fmt.Sprint("t", i))
		require.Equal(t, 1, l.Granted)
		r.clk.Add(time.Second)
	}
	require.Equal(t, 1025, r.m.Remembered("n"))
	for token, known := range map[string]bool{"t0": false, "t1974": false, "t1975": true, "t2999": true} {
		v := breaker.StoreVerdict{Name: "n", Shape: windowed, Epoch: l.Epoch, Token: token, Outcome: breaker.Ignored}
		require.Equal(t, known, r.do(v).Applied, token)
	}
}

// A late failure counts as long as its token is remembered, and every token carries its place in the order of giving.
func TestLateFailures(t *testing.T) {
	for _, late := range []struct {
		what      string
		token     string
		succeeded string // before it; empty: none has
		state     breaker.State
		applied   bool
	}{
		{"nothing has succeeded", "t1999", "", breaker.Open, true},
		{"the oldest that is remembered", "t976", "", breaker.Open, true},
		{"one that is forgotten", "t975", "", breaker.HalfOpen, false},
		{"an earlier one has succeeded", "t1500", "t1499", breaker.Open, true},
		{"a later one has succeeded", "t1500", "t1501", breaker.HalfOpen, true},
		{"one has succeeded and been forgotten", "t1500", "first", breaker.Open, true},
	} {
		t.Run(late.what, func(t *testing.T) {
			r := newRig(t)
			verdict := func(token string, o breaker.Outcome) breaker.Ledger {
				return r.do(breaker.StoreVerdict{Name: "n", Shape: windowed, Epoch: r.read("n").Epoch, Token: token, Outcome: o,
					Threshold: 9, For: time.Minute})
			}
			r.probe("n", time.Second, "first")
			if late.succeeded == "first" {
				verdict("first", breaker.Success)
			}
			r.clk.Add(time.Second)
			for i := range 2000 {
				require.Equal(t, 1, r.probe("n", time.Second, fmt.Sprint("t", i)).Granted)
				r.clk.Add(time.Second)
			}
			r.probe("n", time.Second, "last")
			if late.succeeded != "" && late.succeeded != "first" {
				verdict(late.succeeded, breaker.Success)
			}
			l := verdict(late.token, breaker.Failure)
			require.Equal(t, late.applied, l.Applied)
			require.Equal(t, late.state, l.State)
			require.False(t, verdict(late.token, breaker.Failure).Applied, "twice")
		})
	}
}

// A clock is somebody else's code: it may be set back, panic, and use what it is the clock of.
func TestClocks(t *testing.T) {
	t.Run("set back", func(t *testing.T) {
		r := newRig(t)
		r.do(breaker.StoreMove{Name: "n", Shape: windowed, To: breaker.Open, For: time.Minute})
		r.clk.Add(20 * time.Second)
		clock := r.read("n").Clock
		r.clk.Add(-time.Hour)
		require.Equal(t, 40*time.Second, r.read("n").Remaining)
		require.Equal(t, clock, r.read("n").Clock)
		r.clk.Add(30 * time.Second)
		require.Equal(t, 10*time.Second, r.read("n").Remaining)
	})
	t.Run("panics", func(t *testing.T) {
		r := newRig(t)
		r.clk.Add(time.Second)
		before := r.fail("n", windowed)
		r.clk.Add(time.Second)
		r.clk.onNow(func() { panic("no time") })
		require.Equal(t, before.Clock, r.read("n").Clock)
		r.clk.onNow(nil)
		require.Equal(t, before.Clock+1000, r.read("n").Clock)
	})
	t.Run("is not called under a lock", func(t *testing.T) {
		guard(t, func() {
			r := newRig(t)
			var inside atomic.Bool
			r.clk.onNow(func() {
				if inside.CompareAndSwap(false, true) {
					r.fail("other", windowed)
					inside.Store(false)
				}
			})
			r.fail("n", windowed)
		})
	})
	t.Run("before 1970", func(t *testing.T) {
		r := newRig(t)
		r.clk.Add(time.Unix(-1000, 0).Sub(epoch))
		r.m = store.NewMemory(store.WithClock(r.clk))
		l := r.fail("n", windowed)
		require.Zero(t, l.Clock)
		require.EqualValues(t, 1, l.Epoch)
		require.EqualValues(t, 2, r.do(breaker.StoreMove{Name: "n", Shape: windowed, From: 1}).Epoch)
	})
	t.Run("in a bubble", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := &rig{T: t, m: store.NewMemory(store.WithClock(nil), nil)}
			r.fail("n", windowed)
			time.Sleep(time.Minute - 1)
			require.EqualValues(t, 1, r.read("n").Recent)
			time.Sleep(time.Nanosecond)
			require.Zero(t, r.read("n").Recent)
			require.EqualValues(t, time.Now().UnixMilli(), r.read("n").Clock)
		})
	})
}

// Failures within a time, to the nanosecond.
func TestFailureTimesAreExact(t *testing.T) {
	for _, tc := range []struct {
		at     []time.Duration
		recent []uint64
	}{
		{[]time.Duration{0, 15 * time.Second, 30 * time.Second, 45 * time.Second, time.Minute - 1}, []uint64{1, 2, 3, 4, 5}},
		{[]time.Duration{0, 15 * time.Second, 30 * time.Second, 45 * time.Second, time.Minute}, []uint64{1, 2, 3, 4, 4}},
		{[]time.Duration{0, 50 * time.Second, 100 * time.Second, 150 * time.Second}, []uint64{1, 2, 2, 2}},
		{[]time.Duration{0, 57 * time.Second, 58 * time.Second, 59 * time.Second, 61 * time.Second, 62 * time.Second}, []uint64{1, 2, 3, 4, 4, 5}},
	} {
		r := newRig(t)
		for i, at := range tc.at {
			r.clk.Add(at - r.clk.Now().Sub(epoch))
			l := r.fail("n", windowed)
			require.Equal(t, tc.recent[i], l.Recent, "failure %d of %v", i, tc.at)
			require.Equal(t, l.Recent, l.RecentRun)
		}
	}
}

// What has left the window is never counted; what is about to leave may be missed by a 20th.
func TestWindowIsKeptInSlices(t *testing.T) {
	for offset := time.Duration(0); offset < 3*time.Second; offset += 700 * time.Millisecond {
		r := newRig(t)
		r.clk.Add(offset)
		r.fail("n", windowed)
		r.clk.Add(57*time.Second - 1)
		require.EqualValues(t, 1, r.read("n").Counts.Failures, "at offset %v", offset)
		r.clk.Add(3*time.Second + 1)
		require.Zero(t, r.read("n").Counts.Failures, "at offset %v", offset)
	}
}

type watchFunc func(string, breaker.Ledger)

func (f watchFunc) Changed(name string, l breaker.Ledger) { f(name, l) }
func (watchFunc) Resync()                                 { panic("nothing is ever missed") }

func TestWatchersAreToldInOrder(t *testing.T) {
	guard(t, func() {
		m := store.NewMemory()
		var inside atomic.Int32
		last := make(map[string]uint64) // guarded by there being one call at a time
		calls := 0
		stop := m.Watch(watchFunc(func(name string, l breaker.Ledger) {
			if inside.Add(1) != 1 {
				t.Error("two calls at a time")
			}
			if l.Epoch <= last[name] {
				t.Errorf("%s: epoch %d after %d", name, l.Epoch, last[name])
			}
			last[name] = l.Epoch
			calls++
			inside.Add(-1)
		}))
		var applied atomic.Int64
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				for n := range 500 {
					name := fmt.Sprint("n", (i+n)%3)
					from := m.Read(testContext, []string{name})[0].Ledger.Epoch
					if l, _ := m.Move(testContext, breaker.StoreMove{Name: name, From: from, To: breaker.State(n % 3)}); l.Applied {
						applied.Add(1)
					}
				}
			})
		}
		wg.Wait()
		stop() // waits for what is under way
		if int64(calls) != applied.Load() {
			t.Errorf("%d calls for %d moves", calls, applied.Load())
		}
	})
}

// While one call is going on, the operations of others leave theirs to whoever makes it.
func TestWatchersAreCalledOneAtATime(t *testing.T) {
	guard(t, func() {
		synctest.Test(t, func(t *testing.T) {
			m := store.NewMemory()
			var mu sync.Mutex
			var trace []string
			note := func(what string) {
				mu.Lock()
				defer mu.Unlock()
				trace = append(trace, what)
			}
			traced := func() []string {
				mu.Lock()
				defer mu.Unlock()
				return slices.Clone(trace)
			}
			m.Watch(watchFunc(func(name string, _ breaker.Ledger) {
				note(name)
				time.Sleep(time.Second) // in the bubble: until all others wait
				note("end of " + name)
			}))
			go func() { _, _ = m.Move(testContext, breaker.StoreMove{Name: "a"}) }()
			synctest.Wait()
			for _, name := range []string{"b", "c"} {
				_, err := m.Move(testContext, breaker.StoreMove{Name: name})
				require.NoError(t, err)
			}
			require.Equal(t, []string{"a"}, traced())
			time.Sleep(time.Minute)
			require.Equal(t, []string{"a", "end of a", "b", "end of b", "c", "end of c"}, traced())
		})
	})
}

func TestWatchersMayUseTheStore(t *testing.T) {
	guard(t, func() {
		r := newRig(t)
		var seen []uint64
		r.m.Watch(watchFunc(func(name string, l breaker.Ledger) {
			seen = append(seen, l.Epoch)
			if len(seen) < 4 {
				r.do(breaker.StoreMove{Name: name, Shape: windowed, From: l.Epoch, To: breaker.Closed})
				r.m.Watch(watchFunc(func(string, breaker.Ledger) {}))()
			}
		}))
		first := r.fail("n", windowed).Epoch
		if want := []uint64{first, first + 1, first + 2, first + 3}; fmt.Sprint(want) != fmt.Sprint(seen) {
			t.Errorf("seen %v, want %v", seen, want)
		}
	})
}

// One that misbehaves gets no more than what it was told of, and harms no other.
func TestWatchersThatEndTheirGoroutine(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("watcher") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			guard(t, func() {
				r := newRig(t)
				calls := 0
				stop := r.m.Watch(watchFunc(func(string, breaker.Ledger) {
					if calls++; calls == 1 {
						end()
					}
				}))
				var wg sync.WaitGroup
				wg.Go(func() {
					defer func() { _ = recover() }()
					r.fail("n", windowed)
				})
				wg.Wait()
				r.fail("m", windowed)
				stop()
				if calls != 2 {
					t.Errorf("%d calls", calls)
				}
			})
		})
	}
}

func TestStopWaitsForACall(t *testing.T) {
	guard(t, func() {
		synctest.Test(t, func(t *testing.T) {
			m := store.NewMemory()
			var done atomic.Bool
			stop := m.Watch(watchFunc(func(string, breaker.Ledger) {
				time.Sleep(time.Second) // in the bubble: until all others wait
				done.Store(true)
			}))
			go func() { _, _ = m.Move(testContext, breaker.StoreMove{Name: "n"}) }()
			synctest.Wait()
			stop()
			require.True(t, done.Load(), "stop has returned while a call was going on")
		})
	})
}

func TestNoGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	r := newRig(t)
	stop := r.m.Watch(watchFunc(func(string, breaker.Ledger) {}))
	for i := range 100 {
		r.fail(fmt.Sprint("n", i), windowed)
		r.probe(fmt.Sprint("m", i), time.Second, "t")
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), before) // fewer where a test before has just ended
	require.True(t, r.m.Immediate())
	stop()
	require.NoError(t, r.m.Close())
	require.Zero(t, r.m.Len())
}

// BR-73. A circuit that was made in a bubble is dropped there without Close. When the collector finds it, from outside of the
// bubble, nothing happens.
func TestCircuitsOfABubbleMayBeDropped(t *testing.T) {
	dropped := make(chan struct{}) // not the bubble's
	breakertest.Guard(t, breakertest.Patience, func() {
		synctest.Test(t, func(t *testing.T) {
			m := store.NewMemory()
			for i := range 10 {
				c := breaker.Must(breaker.NewCircuit(fmt.Sprint("c", i), breaker.WithStore(m), breaker.WithFailureThreshold(1)))
				_ = c.Run(t.Context(), func(context.Context) error { return breakertest.ErrBoom })
			}
			runtime.AddCleanup(m, func(dropped chan struct{}) { close(dropped) }, dropped)
		})
		for { // the Memory goes after its circuits have left it
			select {
			case <-dropped:
				return
			default:
				runtime.GC()
			}
		}
	})
}

// A clock that is set ahead by more than nanoseconds can tell is one more clock that was set.
func TestClockSetFarAhead(t *testing.T) {
	breakertest.Guard(t, breakertest.Patience, func() {
		clk := clock.NewMock()
		m := store.NewMemory(store.WithClock(clk))
		made := func() *breaker.Circuit {
			return breaker.Must(breaker.NewCircuit("c", breaker.WithStore(m), breaker.WithClock(clk), breaker.WithFailureWindow(time.Minute)))
		}
		a, b := made(), made()
		fail := func(n int) {
			for range n {
				_ = a.Run(t.Context(), func(context.Context) error { return breakertest.ErrBoom })
			}
		}
		fail(4)
		for range 2 {
			clk.Add(150 * 365 * 24 * time.Hour)
		}
		fail(4)
		require.Equal(t, breaker.Closed, a.State(), "the first four are old")
		fail(1)
		for _, c := range []*breaker.Circuit{a, b} {
			s := c.Snapshot()
			require.Equal(t, breaker.Open, s.State)
			require.Equal(t, 30*time.Second, s.Until.Sub(clk.Now()))
		}
		clk.Add(30 * time.Second)
		require.Equal(t, breaker.HalfOpen, b.State())
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
}

// What a ledger costs. The figures are bounds, far enough off not to depend on the version of Go.
func TestCost(t *testing.T) {
	r := newRig(t)
	report := []breaker.StoreReport{{Name: "n", Node: "a", Shape: windowed, Batch: breaker.StoreBatch{
		Slices: []breaker.StoreSlice{{Successes: 3, Failures: 1}}, FailureAges: []time.Duration{0}, Tail: 1, Longest: 1}}}
	for range 100 {
		r.m.Report(testContext, report)
	}
	allocs := testing.AllocsPerRun(1000, func() { r.m.Report(testContext, report) })
	require.LessOrEqual(t, allocs, 6.0, "allocations of a report")

	size := func(shape breaker.StoreShape) float64 {
		const n = 5000
		r := newRig(t)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range n {
			for range 10 {
				r.fail(fmt.Sprintf("name-%08d", i), shape)
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		require.Equal(t, n, r.m.Len())
		return float64(after.HeapAlloc-before.HeapAlloc) / n
	}
	with, without := size(windowed), size(unbounded)
	t.Logf("a report: %.0f allocations; a ledger: %.0f bytes with a window, %.0f without", allocs, with, without)
	require.Less(t, with, 2500.0)
	require.Less(t, without, 1200.0)
}

func BenchmarkReport(b *testing.B) {
	for _, window := range []time.Duration{0, time.Second, time.Hour} {
		b.Run(window.String(), func(b *testing.B) {
			m := store.NewMemory()
			report := []breaker.StoreReport{{Name: "n", Node: "a", Shape: breaker.StoreShape{Window: window, Failures: 5}, Batch: breaker.StoreBatch{
				Slices: []breaker.StoreSlice{{Successes: 3, Failures: 1}}, FailureAges: []time.Duration{0}, Tail: 1, Longest: 1}}}
			b.ReportAllocs()
			for b.Loop() {
				m.Report(testContext, report)
			}
		})
	}
	b.Run("in parallel", func(b *testing.B) {
		m := store.NewMemory()
		var n atomic.Int64
		b.RunParallel(func(pb *testing.PB) {
			report := []breaker.StoreReport{{Name: fmt.Sprint("n", n.Add(1)), Node: "a", Shape: windowed, Batch: breaker.StoreBatch{Slices: []breaker.StoreSlice{{Failures: 1}}}}}
			for pb.Next() {
				m.Report(testContext, report)
			}
		})
	})
}
