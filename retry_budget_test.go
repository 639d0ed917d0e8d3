package breaker_test

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/breakertest"
)

func newBudget(t require.TestingT, ratio float64, reserve int, window time.Duration) *breaker.Budget {
	b, err := breaker.NewBudget(ratio, reserve, window)
	require.NoError(t, err)
	return b
}

func TestBudgetNonsenseIsNamed(t *testing.T) {
	for _, tc := range []struct {
		ratio   float64
		reserve int
		window  time.Duration
		names   []string
	}{
		{-0.1, 0, time.Second, []string{"Ratio", "-0.1"}},
		{math.NaN(), 0, time.Second, []string{"Ratio"}},
		{math.Inf(1), 0, time.Second, []string{"Ratio"}},
		{0, -1, time.Second, []string{"Reserve", "-1"}},
		{0, 0, 0, []string{"Window"}},
		{0, 0, -time.Second, []string{"Window", "-1s"}},
		{-1, -1, -1, []string{"Ratio", "Reserve", "Window"}},
	} {
		b, err := breaker.NewBudget(tc.ratio, tc.reserve, tc.window)
		require.Nil(t, b)
		for _, name := range tc.names {
			require.ErrorContains(t, err, name)
		}
	}
	newBudget(t, 0, 0, 1)
	newBudget(t, math.MaxFloat64, math.MaxInt32, 1<<62)
}

func TestBudgetBoundsRetries(t *testing.T) {
	for _, tc := range []struct {
		ratio          float64
		reserve, calls int
		want           int // retries of that many calls at one instant, each of which would retry once
	}{
		{0, 0, 100, 0},
		{0, 3, 100, 3},
		{0.1, 0, 9, 0},
		{0.1, 0, 10, 1},
		{0.1, 0, 100, 10},
		{0.2, 10, 100, 30},
		{0.29, 0, 100, 29},
		{0.57, 0, 100, 57},
		{1, 0, 100, 100},
		{math.MaxFloat64, 0, 100, 100},
		{0, math.MaxInt32, 100, 100},
	} {
		t.Run(fmt.Sprint(tc.ratio, tc.reserve, tc.calls), func(t *testing.T) {
			everyRetryWay(t, func(w *breakertest.World, way retryWay) {
				call := way.make(w, nil, breaker.MaxRetries(1), breaker.Constant(0), breaker.WithBudget(newBudget(w, tc.ratio, tc.reserve, time.Minute)))
				runs := 0
				for range tc.calls {
					_, err := call(w.Context(), func(context.Context) (int, error) { runs++; return 0, breakertest.ErrBoom })
					require.ErrorIs(w, err, breakertest.ErrBoom)
				}
				require.Equal(w, tc.calls+tc.want, runs)
			})
		})
	}
}

// A budget has a window: what was used comes back, and what was earned goes.
func TestBudgetIsWindowed(t *testing.T) {
	everyRetryWay(t, func(w *breakertest.World, way retryWay) {
		budget := newBudget(w, 0.5, 1, 10*time.Second)
		call := way.make(w, nil, breaker.MaxRetries(1), breaker.Constant(0), breaker.WithBudget(budget))
		attempts := func(err error) int {
			f := w.Func(err)
			_, _ = call(w.Context(), f.Call)
			return len(f.At)
		}
		require.Equal(w, 2, attempts(breakertest.ErrBoom), "the reserve")
		for range 5 {
			require.Equal(w, 1, attempts(nil))
		}
		w.At(5 * time.Second)
		for i, want := range []int{2, 2, 2, 2, 2, 2, 1} { // 7 to 13 calls allow 4, 5, 5, 6, 6, 7, 7 retries; one was before
			require.Equal(w, want, attempts(breakertest.ErrBoom), "call %d", i)
		}
		w.At(10 * time.Second) // six calls and one retry are gone: 7 calls, 6 retries
		require.Equal(w, 1, attempts(breakertest.ErrBoom), "8 calls allow 5")
		for range 3 {
			require.Equal(w, 1, attempts(nil))
		}
		require.Equal(w, 2, attempts(breakertest.ErrBoom), "12 calls allow 7")
		w.At(time.Hour)
		require.Equal(w, 2, attempts(breakertest.ErrBoom), "the reserve again")
		require.Equal(w, 2, attempts(breakertest.ErrBoom), "2 calls allow 2")
		require.Equal(w, 1, attempts(breakertest.ErrBoom))
	})
}

// What was used comes back in the middle of a call, too.
func TestBudgetGoesByTheTimeOfTheRetry(t *testing.T) {
	everyRetryWay(t, func(w *breakertest.World, way retryWay) {
		for _, took := range []time.Duration{time.Second - 1, time.Second} {
			call := way.make(w, nil, breaker.MaxRetries(5), breaker.Constant(0), breaker.WithBudget(newBudget(w, 0, 1, time.Second)))
			runs := 0
			_, _ = call(w.Context(), func(context.Context) (int, error) {
				if runs++; runs == 2 {
					w.At(w.Elapsed() + took)
				}
				return 0, breakertest.ErrBoom
			})
			require.Equal(w, map[time.Duration]int{time.Second - 1: 2, time.Second: 3}[took], runs)
		}
	})
}

func TestBudgetIsShared(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		retry := breaker.WithRetry(breaker.MaxRetries(1), breaker.Constant(0), breaker.WithBudget(newBudget(w, 0, 3, time.Minute)))
		a, b := w.Breaker(farFromTripping, retry), w.Breaker(farFromTripping, retry)
		view := breaker.Must(breaker.Over[int](a.Circuit(), retry))
		runs := 0
		fails := func(context.Context) (int, error) { runs++; return 0, breakertest.ErrBoom }
		for range 10 {
			for _, one := range []*breaker.Breaker[int]{a, b, view} {
				_, _ = one.Do(w.Context(), fails)
			}
		}
		require.Equal(w, 33, runs)
	})
}

// What a budget refuses leaves no trace, and a retry that will not be made costs it nothing.
func TestBudgetIsSpentOnRetriesOnly(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		budget := newBudget(w, 0, 1, time.Hour)
		var events breakertest.Events
		with := func(opts ...breaker.RetryOption) *breaker.Breaker[int] {
			return w.Breaker(farFromTripping, events.Option(), breaker.WithRetry(append(opts, breaker.WithBudget(budget))...))
		}
		ctx, cancel := w.ContextFor(time.Second)
		defer cancel()
		for name, opts := range map[string][]breaker.RetryOption{
			"off":                  {},
			"not worth it":         {breaker.MaxRetries(1), breaker.RetryIf(func(error) bool { return false })},
			"does not fit":         {breaker.MaxRetries(1), breaker.Constant(time.Minute)},
			"longer than it may":   {breaker.MaxRetries(1), breaker.Constant(time.Minute), breaker.MaxElapsed(time.Second)},
			"a hint above the cap": {breaker.MaxRetries(1), breaker.RetryAfterCap(0)},
		} {
			f := w.Func(breakertest.Hint(1))
			_, _ = with(opts...).Do(ctx, f.Call)
			require.Len(w, f.At, 1, name)
		}
		require.Empty(w, events.Retries)
		open := w.Breaker(breaker.WithFailureThreshold(1), breaker.WithRetry(breaker.MaxRetries(1), breaker.Constant(0), breaker.WithBudget(budget)))
		_, _ = open.Do(w.Context(), w.Func(breakertest.ErrBoom).Call)
		_, _ = open.Do(w.Context(), w.Func(breakertest.ErrBoom).Call)

		f := w.Func(breakertest.ErrBoom)
		_, err := with(breaker.MaxRetries(5), breaker.Constant(0)).Do(w.Context(), f.Call)
		require.Len(w, f.At, 2, "the one retry was still there")
		requireRetried(w, err, 2, breakertest.ErrBoom)
		require.Len(w, events.Retries, 1, "a refused retry is not announced")
	})
	t.Run("the zero Budget allows none", func(t *testing.T) {
		everyRetryWay(t, func(w *breakertest.World, way retryWay) {
			f := w.Func(breakertest.ErrBoom)
			_, err := way.make(w, nil, breaker.MaxRetries(3), breaker.WithBudget(new(breaker.Budget)))(w.Context(), f.Call)
			require.Equal(w, breakertest.ErrBoom, err)
			require.Len(w, f.At, 1)
		})
	})
}

// A rejected call never reached the dependency: it earns no retries.
func TestBudgetEarnsNothingFromRejections(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		retry := breaker.WithRetry(breaker.MaxRetries(1), breaker.Constant(0), breaker.WithBudget(newBudget(w, 0.1, 0, time.Minute)))
		open, failing := w.Breaker(retry, breaker.WithMode(breaker.ForcedOpen)), w.Breaker(farFromTripping, retry)
		for range 1000 {
			_, err := open.Do(w.Context(), w.Func(nil).Call)
			require.ErrorIs(w, err, breaker.ErrOpen)
		}
		runs := 0
		for range 10 {
			_, _ = failing.Do(w.Context(), func(context.Context) (int, error) { runs++; return 0, breakertest.ErrBoom })
		}
		require.Equal(w, 11, runs, "10 calls allow 1 retry")
	})
}

// Under a budget the retries of each window are bounded, whatever fails and when: at the instant of every retry, there
// are no more of them than the calls of the window allow. Up to 128 instants that is exact; beyond, a 64th of the window
// may be taken off its end.
func TestBudgetProperties(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		rapid.Check(struct{ testing.TB }{w.T}, func(t *rapid.T) {
			ratio := float64(rapid.IntRange(0, 150).Draw(t, "percent")) / 100
			reserve := rapid.IntRange(0, 5).Draw(t, "reserve")
			window := time.Duration(rapid.Int64Range(1, int64(10*time.Second)).Draw(t, "window"))
			budget := newBudget(t, ratio, reserve, window)
			n := rapid.IntRange(1, 4).Draw(t, "retries")
			var retries, calls []time.Time
			hooks := breaker.WithHooks(breaker.Hooks{Retry: func(context.Context, breaker.RetryEvent) { retries = append(retries, time.Now()) }})
			wait := breaker.Constant(time.Duration(rapid.IntRange(0, 50).Draw(t, "wait ms")) * time.Millisecond)
			var all []*breaker.Breaker[int]
			for range 2 {
				all = append(all, breaker.Must(breaker.New[int]("test", farFromTripping, hooks, breaker.WithRetry(breaker.MaxRetries(n), wait, breaker.WithBudget(budget)))))
			}
			percent := rapid.IntRange(0, 100).Draw(t, "failing")
			start := time.Now()
			runs := 0
			slack := time.Duration(0)
			for range rapid.IntRange(1, 300).Draw(t, "calls") {
				calls = append(calls, time.Now())
				_, _ = rapid.SampledFrom(all).Draw(t, "breaker").Do(context.Background(), func(context.Context) (int, error) {
					runs++
					if rapid.IntRange(1, 100).Draw(t, "end") <= percent {
						return 0, breakertest.ErrBoom
					}
					return 0, nil
				})
				if rapid.Bool().Draw(t, "pause") {
					<-time.After(time.Duration(rapid.Int64Range(1, int64(window)).Draw(t, "for")) / 20)
				}
			}
			if runs != len(calls)+len(retries) {
				t.Fatalf("%d runs of %d calls and %d retries", runs, len(calls), len(retries))
			}
			if len(calls)+len(retries) > 128 {
				slack = window / 64
			}
			for _, at := range retries {
				before := func(of []time.Time, window time.Duration) (n int) {
					for _, one := range of {
						if !one.After(at) && at.Sub(one) < window {
							n++
						}
					}
					return n
				}
				r, c := before(retries, window-slack), before(calls, window)
				if float64(r) > ratio*float64(c)+float64(reserve)+1e-9 {
					t.Fatalf("at %v: %d retries of %d calls, allowed are %v of them and %d", at.Sub(start), r, c, ratio, reserve)
				}
			}
			windows := 1 + float64(time.Since(start)/max(1, window-slack))
			if amplified := float64(runs); amplified > (1+ratio)*float64(len(calls))+float64(reserve)*windows+1e-9 {
				t.Fatalf("%v runs of %d calls in %v windows", amplified, len(calls), windows)
			}
		})
	})
}

// Many at once share a budget, by the default clock and without races.
func TestBudgetUnderConcurrency(t *testing.T) {
	breakertest.Guard(t, breakertest.Patience, func() {
		const reserve, goroutines, calls = 50, 8, 500
		retry := breaker.WithRetry(breaker.MaxRetries(3), breaker.Constant(0), breaker.WithBudget(newBudget(t, 0.1, reserve, time.Hour)))
		var runs atomic.Int64
		var all sync.WaitGroup
		for range goroutines {
			b := breaker.Must(breaker.New[int]("test", farFromTripping, retry))
			all.Go(func() {
				for range calls {
					_, err := b.Do(context.Background(), func(context.Context) (int, error) { runs.Add(1); return 0, breakertest.ErrBoom })
					assert.ErrorIs(t, err, breakertest.ErrBoom)
				}
			})
		}
		all.Wait()
		require.EqualValues(t, goroutines*calls+goroutines*calls/10+reserve, runs.Load())
	})
}

// A budget is of a window: a long good time saves nothing up, and a bad one does not use it up for good.
func TestBudgetSavesNothingUp(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		b := w.Breaker(farFromTripping, breaker.WithRetry(breaker.MaxRetries(3), breaker.Constant(0), breaker.WithBudget(newBudget(w, 0.2, 10, 10*time.Second))))
		load := func(seconds int, err error) (calls, runs int) {
			for range seconds {
				for range 100 {
					calls++
					_, _ = b.Do(w.Context(), func(context.Context) (int, error) { runs++; return 0, err })
				}
				w.At(w.Elapsed() + time.Second)
			}
			return calls, runs
		}
		calls, runs := load(3600, nil)
		require.Equal(w, calls, runs)
		for range 2 { // a long good time saves nothing up for a bad one, and a bad one leaves no debt
			calls, runs = load(60, breakertest.ErrBoom)
			require.LessOrEqual(w, runs, calls+calls/5+2*10+10*100/5, "a fifth on top, the reserve, and what the last good window had earned")
			require.GreaterOrEqual(w, runs, calls+calls/5-10)
			load(20, nil)
		}
	})
}

// A budget for retries stood still for as long as a clock had been set back.
func TestBudgetOfAClockThatIsSetBack(t *testing.T) {
	clk := &setBackClock{now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	budget := breaker.Must(breaker.NewBudget(0, 1, 10*time.Second))
	b := breaker.Must(breaker.New[int]("c", breaker.WithClock(clk), breaker.WithFailureThreshold(100),
		breaker.WithRetry(breaker.MaxRetries(1), breaker.Constant(0), breaker.WithBudget(budget))))
	attempts := func() int {
		return b.Try(context.Background(), func(context.Context) (int, error) { return 0, breakertest.ErrBoom }).Attempts
	}
	require.Equal(t, 2, attempts())
	require.Equal(t, 1, attempts())
	clk.add(-time.Hour)
	require.Equal(t, 1, attempts())
	clk.add(11 * time.Second)
	require.Equal(t, 2, attempts())
}

// setBackClock moves in both directions.
type setBackClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *setBackClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *setBackClock) After(time.Duration) <-chan time.Time {
	now := make(chan time.Time, 1)
	now <- c.Now()
	return now
}

func (c *setBackClock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}
