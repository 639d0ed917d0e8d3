package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/breakertest"
)

type (
	retryCall = func(context.Context, func(context.Context) (int, error)) (int, error)
	// An retryWay is one of the ways to call with retries.
	retryWay struct {
		name string
		make func(w *breakertest.World, random func() float64, opts ...breaker.RetryOption) retryCall
	}
)

// farFromTripping keeps a circuit out of a test about retries.
var farFromTripping = breaker.WithFailureThreshold(1 << 30)

func byBreaker(name string, call func(*breaker.Breaker[int]) retryCall, more ...breaker.Option) retryWay {
	return retryWay{name, func(w *breakertest.World, random func() float64, opts ...breaker.RetryOption) retryCall {
		all := append([]breaker.Option{farFromTripping, breaker.WithRetry(opts...)}, more...)
		if random != nil {
			all = append(all, breaker.WithRand(random))
		}
		return call(w.Breaker(all...))
	}}
}

var (
	byRetry = retryWay{"Retry", func(w *breakertest.World, random func() float64, opts ...breaker.RetryOption) retryCall {
		if w.Clk != nil {
			opts = append(opts, breaker.RetryClock(w.Clk))
		}
		if random != nil {
			opts = append(opts, breaker.RetryRand(random))
		}
		p, err := breaker.NewRetryPolicy(opts...)
		require.NoError(w, err)
		return func(ctx context.Context, fn func(context.Context) (int, error)) (int, error) {
			return breaker.Retry(ctx, p, fn)
		}
	}}
	viaDo  = func(b *breaker.Breaker[int]) retryCall { return b.Do }
	viaTry = func(b *breaker.Breaker[int]) retryCall {
		return func(ctx context.Context, fn func(context.Context) (int, error)) (int, error) {
			r := b.Try(ctx, fn)
			return r.Value, r.Err
		}
	}
	viaWrap = func(b *breaker.Breaker[int]) retryCall {
		return func(ctx context.Context, fn func(context.Context) (int, error)) (int, error) {
			return b.Wrap(fn)(ctx)
		}
	}
	retryWays = []retryWay{
		byRetry,
		byBreaker("Do", viaDo),
		byBreaker("Do with a call option", viaDo, breaker.WithResult(func(_ int, err error) breaker.Outcome {
			return breaker.DefaultClassifier(err)
		})),
		byBreaker("Try", viaTry),
		byBreaker("Wrap", viaWrap),
	}
)

// everyRetryWay runs a test in every way to retry, by both clocks.
func everyRetryWay(t *testing.T, f func(*breakertest.World, retryWay)) {
	t.Helper()
	for _, way := range retryWays {
		t.Run(way.name, func(t *testing.T) { breakertest.BothWaiting(t, func(w *breakertest.World) { f(w, way) }) })
	}
}

// requireRetried requires the error of a call that ran n times.
func requireRetried(t require.TestingT, err error, n int, last error) {
	if h, ok := t.(interface{ Helper() }); ok {
		h.Helper()
	}
	require.ErrorIs(t, err, last)
	var r *breaker.RetryError
	if n < 2 {
		require.False(t, errors.As(err, &r), "one attempt needs no RetryError")
		return
	}
	require.ErrorAs(t, err, &r)
	require.Equal(t, n, r.Attempts)
	require.ErrorIs(t, r.Err, last)
}

func TestR01_OffByDefault(t *testing.T) {
	for name, opts := range map[string][]breaker.RetryOption{
		"no option":     nil,
		"only a wait":   {breaker.Constant(time.Second)},
		"MaxRetries(0)": {breaker.MaxRetries(0)},
		"later wins":    {breaker.MaxRetries(5), breaker.MaxRetries(0)},
		"all bounds 0":  {breaker.MaxRetries(0), breaker.MaxElapsed(0), breaker.Constant(0)},
	} {
		t.Run(name, func(t *testing.T) {
			everyRetryWay(t, func(w *breakertest.World, way retryWay) {
				f := w.Func(breakertest.ErrBoom)
				_, err := way.make(w, nil, opts...)(w.Context(), f.Call)
				require.Equal(w, breakertest.ErrBoom, err)
				require.Len(w, f.At, 1)
				require.Zero(w, w.Elapsed())
			})
		})
	}
	t.Run("without WithRetry", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			f := w.Func(breakertest.ErrBoom)
			_, err := w.Breaker().Do(w.Context(), f.Call)
			require.Equal(w, breakertest.ErrBoom, err)
			require.Len(w, f.At, 1)
		})
	})
	t.Run("zero RetryPolicy", func(t *testing.T) {
		runs := 0
		v, err := breaker.Retry(t.Context(), breaker.RetryPolicy{}, func(context.Context) (int, error) { runs++; return 7, breakertest.ErrBoom })
		require.Equal(t, breakertest.ErrBoom, err)
		require.Equal(t, 7, v)
		require.Equal(t, 1, runs)
	})
}

// retryWaits are R02 to R06: waits, and when the attempts are made.
var retryWaits = []struct {
	name   string
	random float64
	opts   []breaker.RetryOption
	ends   []error
	at     []time.Duration
	ok     bool
}{
	{"R02", 0.9, []breaker.RetryOption{breaker.MaxRetries(3), breaker.Exponential(500*time.Millisecond, 10*time.Second), breaker.NoJitter()},
		[]error{breakertest.ErrBoom}, breakertest.Seconds(0, 0.5, 1.5, 3.5), false},
	{"R02 without chance", 0, []breaker.RetryOption{breaker.MaxRetries(3), breaker.Exponential(500*time.Millisecond, 10*time.Second)},
		[]error{breakertest.ErrBoom}, breakertest.Seconds(0, 0.5, 1.5, 3.5), false},
	{"R03", 0.9, []breaker.RetryOption{breaker.MaxRetries(5), breaker.NoJitter()},
		[]error{breakertest.ErrBoom}, breakertest.Seconds(0, 0.1, 0.3, 0.7, 1.5, 3.1), false},
	{"R04 least", 0, []breaker.RetryOption{breaker.MaxRetries(1), breaker.Exponential(500*time.Millisecond, 10*time.Second)},
		[]error{breakertest.ErrBoom}, breakertest.Seconds(0, 0.5), false},
	{"R04 half", 0.5, []breaker.RetryOption{breaker.MaxRetries(1), breaker.Exponential(500*time.Millisecond, 10*time.Second)},
		[]error{breakertest.ErrBoom}, breakertest.Seconds(0, 0.625), false},
	{"R05", 0, []breaker.RetryOption{breaker.MaxRetries(6), breaker.Exponential(time.Second, 10*time.Second), breaker.NoJitter()},
		[]error{breakertest.ErrBoom}, breakertest.Seconds(0, 1, 3, 7, 15, 25, 35), false},
	{"R05 with jitter", 0.5, []breaker.RetryOption{breaker.MaxRetries(6), breaker.Exponential(time.Second, 10*time.Second), breaker.AddJitter(1)},
		[]error{breakertest.ErrBoom}, breakertest.Seconds(0, 1.5, 4.5, 10.5, 20.5, 30.5, 40.5), false},
	{"R05 by default", 0.999, []breaker.RetryOption{breaker.MaxRetries(9), breaker.NoJitter()},
		[]error{breakertest.ErrBoom}, breakertest.Seconds(0, 0.1, 0.3, 0.7, 1.5, 3.1, 6.3, 12.7, 22.7, 32.7), false},
	{"R06", 0, []breaker.RetryOption{breaker.MaxRetries(5), breaker.NoJitter()},
		[]error{breakertest.ErrBoom, breakertest.ErrBoom, nil}, breakertest.Seconds(0, 0.1, 0.3), true},
	{"constant", 0, []breaker.RetryOption{breaker.MaxRetries(3), breaker.Constant(2 * time.Second), breaker.NoJitter()},
		[]error{breakertest.ErrBoom}, breakertest.Seconds(0, 2, 4, 6), false},
	{"constant with jitter", 0.5, []breaker.RetryOption{breaker.MaxRetries(2), breaker.Constant(2 * time.Second), breaker.AddJitter(0.5)},
		[]error{breakertest.ErrBoom}, breakertest.Seconds(0, 2.5, 5), false},
	{"constant above 10s is its own cap", 0.9, []breaker.RetryOption{breaker.MaxRetries(2), breaker.Constant(20 * time.Second)},
		[]error{breakertest.ErrBoom}, breakertest.Seconds(0, 20, 40), false},
	{"full jitter", 0.25, []breaker.RetryOption{breaker.MaxRetries(3), breaker.Exponential(time.Second, 3*time.Second), breaker.FullJitter()},
		[]error{breakertest.ErrBoom}, breakertest.Seconds(0, 0.25, 0.75, 1.5), false},
	{"full jitter, called", 0, []breaker.RetryOption{breaker.MaxRetries(2), breaker.FullJitter()},
		[]error{breakertest.ErrBoom}, breakertest.Seconds(0, 0, 0), false},
	{"later kind of jitter wins", 0.5, []breaker.RetryOption{breaker.FullJitter(), breaker.AddJitter(1), breaker.NoJitter(), breaker.MaxRetries(1), breaker.Constant(time.Second)},
		[]error{breakertest.ErrBoom}, breakertest.Seconds(0, 1), false},
	{"later backoff wins", 0, []breaker.RetryOption{breaker.MaxRetries(2), breaker.Constant(time.Hour), breaker.Exponential(time.Second, time.Minute)},
		[]error{breakertest.ErrBoom}, breakertest.Seconds(0, 1, 3), false},
	{"no wait", 0.9, []breaker.RetryOption{breaker.MaxRetries(3), breaker.Constant(0)},
		[]error{breakertest.ErrBoom}, breakertest.Seconds(0, 0, 0, 0), false},
	{"base above max", 0.9, []breaker.RetryOption{breaker.MaxRetries(1), breaker.Exponential(time.Minute, time.Second)},
		[]error{breakertest.ErrBoom}, breakertest.Seconds(0, 1), false},
}

func TestR02toR06_WaitsAndStops(t *testing.T) {
	for _, tc := range retryWaits {
		t.Run(tc.name, func(t *testing.T) {
			everyRetryWay(t, func(w *breakertest.World, way retryWay) {
				f := w.Func(tc.ends...)
				v, err := way.make(w, func() float64 { return tc.random }, tc.opts...)(w.Context(), f.Call)
				require.Equal(w, tc.at, f.At)
				require.Equal(w, tc.at[len(tc.at)-1], w.Elapsed(), "nothing is waited for after the last attempt")
				require.Equal(w, len(tc.at), v, "the last attempt's value")
				if tc.ok {
					require.NoError(w, err)
					return
				}
				requireRetried(w, err, len(tc.at), breakertest.ErrBoom)
			})
		})
	}
}

// Jitter lies in its bounds, and is not always the same.
func TestR04_JitterIsBounded(t *testing.T) {
	for _, tc := range []struct {
		name      string
		jitter    breaker.RetryOption
		low, high time.Duration // low <= wait < high
	}{
		{"default", breaker.MaxRetries(1), 500 * time.Millisecond, 750 * time.Millisecond},
		{"AddJitter", breaker.AddJitter(0.2), 500 * time.Millisecond, 600 * time.Millisecond},
		{"AddJitter, all", breaker.AddJitter(1), 500 * time.Millisecond, time.Second},
		{"AddJitter, none", breaker.AddJitter(0), 500 * time.Millisecond, 500*time.Millisecond + 1},
		{"FullJitter", breaker.FullJitter(), 0, 500 * time.Millisecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, way := range retryWays[:2] {
				t.Run(way.name, func(t *testing.T) {
					breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
						call := way.make(w, nil, breaker.MaxRetries(1), breaker.Exponential(500*time.Millisecond, 10*time.Second), tc.jitter)
						least, most := time.Duration(math.MaxInt64), time.Duration(0)
						for range 1000 {
							f := w.Func(breakertest.ErrBoom)
							_, _ = call(w.Context(), f.Call)
							wait := f.At[1] - f.At[0]
							least, most = min(least, wait), max(most, wait)
						}
						require.GreaterOrEqual(w, least, tc.low)
						require.Less(w, most, tc.high)
						require.Less(w, least, tc.low+(tc.high-tc.low)/8+1, "the low end is reached")
						require.Greater(w, most, tc.high-(tc.high-tc.low)/8-2, "the high end is reached")
					})
				})
			}
		})
	}
}

// What a source of chance gives that is no number from [0, 1) is taken for 0.
func TestR04_BadSourcesOfChance(t *testing.T) {
	for _, random := range []float64{1, 2, -0.5, math.NaN(), math.Inf(1), math.Inf(-1)} {
		t.Run(fmt.Sprint(random), func(t *testing.T) {
			everyRetryWay(t, func(w *breakertest.World, way retryWay) {
				f := w.Func(breakertest.ErrBoom)
				_, _ = way.make(w, func() float64 { return random }, breaker.MaxRetries(1), breaker.Constant(time.Second))(w.Context(), f.Call)
				require.Equal(w, breakertest.Seconds(0, 1), f.At)
			})
		})
	}
	t.Run("one that panics", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			f := w.Func(breakertest.ErrBoom)
			b := w.Breaker(breaker.WithRand(func() float64 { panic("no chance") }), breaker.WithRetry(breaker.MaxRetries(1), breaker.Constant(time.Second)))
			_, err := b.Do(w.Context(), f.Call)
			requireRetried(w, err, 2, breakertest.ErrBoom)
			require.Equal(w, breakertest.Seconds(0, 1), f.At)
		})
	})
	t.Run("is not asked without jitter", func(t *testing.T) {
		everyRetryWay(t, func(w *breakertest.World, way retryWay) {
			asked := 0
			_, _ = way.make(w, func() float64 { asked++; return 0 }, breaker.MaxRetries(3), breaker.NoJitter())(w.Context(), w.Func(breakertest.ErrBoom).Call)
			require.Zero(w, asked)
		})
	})
}

func isTransient(err error) bool {
	var s breakertest.Status
	return !errors.As(err, &s) || s == 408 || s == 429 || s >= 500
}

func TestR07_OnlyTransientFailuresAreRetried(t *testing.T) {
	for err, attempts := range map[error]int{
		syscall.ECONNREFUSED:     4,
		io.ErrUnexpectedEOF:      4,
		context.DeadlineExceeded: 4, // the dependency's own
		breakertest.Status(500):  4, breakertest.Status(502): 4, breakertest.Status(503): 4, breakertest.Status(504): 4, breakertest.Status(429): 4,
		breakertest.Status(400): 1, breakertest.Status(401): 1, breakertest.Status(403): 1, breakertest.Status(404): 1, breakertest.Status(422): 1,
		fmt.Errorf("wrapped: %w", breakertest.Status(401)): 1,
	} {
		t.Run(fmt.Sprint(err), func(t *testing.T) {
			breakertest.BothWaiting(t, func(w *breakertest.World) {
				retry := []breaker.RetryOption{breaker.MaxRetries(3)}
				check := func(f *breakertest.Func, got error, what string) {
					w.Helper()
					require.Len(w, f.At, attempts, what)
					requireRetried(w, got, attempts, err)
				}
				b := w.Breaker(breaker.WithRetry(retry...), breaker.WithClassifier(func(err error) breaker.Outcome {
					if isTransient(err) {
						return breaker.Failure
					}
					return breaker.Ignored
				}))
				f := w.Func(err)
				_, got := b.Do(w.Context(), f.Call)
				check(f, got, "by the classifier")

				retry = append(retry, breaker.RetryIf(isTransient))
				f = w.Func(err)
				_, got = w.Breaker(breaker.WithRetry(retry...)).Do(w.Context(), f.Call)
				check(f, got, "by RetryIf")

				f = w.Func(err)
				_, got = byRetry.make(w, nil, retry...)(w.Context(), f.Call)
				check(f, got, "free-standing, by RetryIf")
			})
		})
	}
}

// RetryIf can only say no.
func TestR07_RetryIfOnlySaysNo(t *testing.T) {
	always := breaker.RetryIf(func(error) bool { return true })
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		for name, opts := range map[string][]breaker.Option{
			"ignored by the list":       {breaker.WithIgnore(breakertest.ErrBoom)},
			"ignored by the classifier": {breaker.WithClassifier(func(error) breaker.Outcome { return breaker.Ignored })},
			"ignored by the result":     {breaker.WithResult(func(int, error) breaker.Outcome { return breaker.Ignored })},
			"a success":                 {breaker.WithClassifier(func(error) breaker.Outcome { return breaker.Success })},
			"forced open":               {breaker.WithMode(breaker.ForcedOpen)},
		} {
			f := w.Func(breakertest.ErrBoom)
			b := w.Breaker(append(opts, breaker.WithRetry(breaker.MaxRetries(3), always))...)
			r := b.Try(w.Context(), f.Call)
			require.Error(w, r.Err, name)
			require.LessOrEqual(w, len(f.At), 1, name)
			require.Equal(w, len(f.At), r.Attempts, name)
			require.Zero(w, w.Elapsed(), name)
		}
		// A rejection by a circuit or limiter further in, and the caller's own cancel.
		for _, err := range []error{breaker.ErrOpen, breaker.ErrTooManyInFlight, fmt.Errorf("inner: %w", breaker.ErrOpen)} {
			for _, way := range retryWays {
				f := w.Func(err)
				_, got := way.make(w, nil, breaker.MaxRetries(3), always)(w.Context(), f.Call)
				require.ErrorIs(w, got, err)
				require.Len(w, f.At, 1, way.name)
			}
		}
		for _, way := range retryWays {
			if way.name == "Do with a call option" {
				continue // its classifier asks WithResult, which the cancel comes before all the same
			}
			ctx, cancel := context.WithCancel(w.Context())
			runs := 0
			_, err := way.make(w, nil, breaker.MaxRetries(3), always)(ctx, func(context.Context) (int, error) { runs++; cancel(); return 0, breakertest.ErrBoom })
			require.Equal(w, breakertest.ErrBoom, err, way.name)
			require.Equal(w, 1, runs, way.name)
		}
	})
	t.Run("it is told of each failure, in order", func(t *testing.T) {
		everyRetryWay(t, func(w *breakertest.World, way retryWay) {
			var told []error
			e1, e2, e3 := errors.New("1"), errors.New("2"), errors.New("3")
			f := w.Func(e1, e2, e3)
			_, err := way.make(w, nil, breaker.MaxRetries(9), breaker.RetryIf(func(err error) bool {
				told = append(told, err)
				return err != e3
			}))(w.Context(), f.Call)
			require.Equal(w, []error{e1, e2, e3}, told)
			requireRetried(w, err, 3, e3)
		})
	})
	t.Run("a value that counts as a failure is ErrUnacceptable", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			var told []error
			f := w.Func(nil)
			b := w.Breaker(
				breaker.WithResult(func(v int, _ error) breaker.Outcome {
					if v < 3 {
						return breaker.Failure
					}
					return breaker.Success
				}),
				breaker.WithRetry(breaker.MaxRetries(9), breaker.RetryIf(func(err error) bool { told = append(told, err); return true })))
			r := b.Try(w.Context(), f.Call)
			require.Equal(w, breaker.Result[int]{Value: 3, Attempts: 3, Rescue: breaker.RescueRetry}, r)
			require.Equal(w, []error{breaker.ErrUnacceptable, breaker.ErrUnacceptable}, told)
		})
	})
}

func TestR08_OpenCircuitEndsTheLoop(t *testing.T) {
	retry := breaker.WithRetry(breaker.MaxRetries(3), breaker.Constant(time.Second), breaker.NoJitter())
	for _, opensAt := range []int{1, 2, 4} {
		t.Run(fmt.Sprint("opens at attempt ", opensAt), func(t *testing.T) {
			breakertest.BothWaiting(t, func(w *breakertest.World) {
				var events breakertest.Events
				b := w.Breaker(retry, breaker.WithFailureThreshold(opensAt), events.Option())
				f := w.Func(breakertest.ErrBoom)
				r := b.Try(w.Context(), f.Call)
				require.Equal(w, breakertest.Seconds(0, 1, 2, 3)[:opensAt], f.At)
				require.Equal(w, f.At[len(f.At)-1], w.Elapsed(), "no wait after the circuit has opened")
				require.Equal(w, opensAt, r.Attempts)
				requireRetried(w, r.Err, opensAt, breakertest.ErrBoom)
				if opensAt < 4 { // after the last attempt there was nothing left to end
					require.ErrorIs(w, r.Err, breaker.ErrOpen)
					var open *breaker.OpenError
					require.ErrorAs(w, r.Err, &open)
					require.Equal(w, breakertest.ErrBoom, open.Cause)
				}
				require.Len(w, events.Retries, opensAt-1)
				s := b.Snapshot()
				require.EqualValues(w, opensAt-1, s.Totals.Retries)
				require.Zero(w, s.Totals.Rejected, "nothing was rejected: it was not asked")
				require.Equal(w, breaker.Open, s.State)
			})
		})
	}
	t.Run("opened by somebody else during the wait", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			var b *breaker.Breaker[int]
			b = w.Breaker(retry, breaker.WithHooks(breaker.Hooks{Retry: func(context.Context, breaker.RetryEvent) { b.Circuit().Trip(nil) }}))
			f := w.Func(breakertest.ErrBoom)
			r := b.Try(w.Context(), f.Call)
			require.Len(w, f.At, 1)
			require.Equal(w, 1, r.Attempts)
			require.ErrorIs(w, r.Err, breakertest.ErrBoom)
			require.ErrorIs(w, r.Err, breaker.ErrOpen)
			require.Zero(w, b.Snapshot().Totals.Retries, "the retry never ran")
			require.EqualValues(w, 1, b.Snapshot().Totals.Rejected)
		})
	})
	t.Run("a failed probe is not retried", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			b := w.Breaker(retry)
			b.Circuit().Trip(breakertest.ErrBoom)
			w.At(30 * time.Second)
			f := w.Func(breakertest.ErrBoom)
			r := b.Try(w.Context(), f.Call)
			require.Equal(w, breakertest.Seconds(30), f.At)
			require.ErrorIs(w, r.Err, breakertest.ErrBoom)
			require.ErrorIs(w, r.Err, breaker.ErrOpen)
			require.Equal(w, 30*time.Second, w.Elapsed())
		})
	})
	t.Run("forced open in between", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			b := w.Breaker(retry)
			runs := 0
			_, err := b.Do(w.Context(), func(context.Context) (int, error) {
				runs++
				b.Circuit().SetMode(breaker.ForcedOpen)
				return 0, breakertest.ErrBoom
			})
			require.ErrorIs(w, err, breakertest.ErrBoom)
			require.ErrorIs(w, err, breaker.ErrOpen)
			require.Equal(w, 1, runs)
			require.Zero(w, w.Elapsed())
		})
	})
	t.Run("forced closed and shadow go on", func(t *testing.T) {
		for _, mode := range []breaker.Mode{breaker.ForcedClosed, breaker.Shadow} {
			breakertest.BothWaiting(t, func(w *breakertest.World) {
				f := w.Func(breakertest.ErrBoom)
				_, err := w.Breaker(retry, breaker.WithFailureThreshold(1), breaker.WithMode(mode)).Do(w.Context(), f.Call)
				requireRetried(w, err, 4, breakertest.ErrBoom)
			})
		}
	})
}

func TestR09_EveryAttemptCountsSingly(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		var calls []breaker.CallEvent
		b := w.Breaker(breaker.WithRetry(breaker.MaxRetries(3)), breaker.WithHooks(breaker.Hooks{
			Call: func(_ context.Context, c breaker.CallEvent) { calls = append(calls, c) },
		}))
		f := w.Func(breakertest.ErrBoom)
		r := b.Try(w.Context(), f.Call)
		require.Equal(w, 4, r.Attempts)
		s := b.Snapshot()
		require.EqualValues(w, 4, s.ConsecutiveFailures)
		require.EqualValues(w, 4, s.Totals.Calls)
		require.EqualValues(w, 4, s.Totals.Failures)
		require.EqualValues(w, 3, s.Totals.Retries)
		require.Equal(w, breaker.Closed, s.State)
		require.Len(w, calls, 4)
	})
}

// askedClock is a fake clock that says what it is asked to wait for, and does not move by itself.
type askedClock struct {
	*clock.Mock
	asked chan time.Duration
}

func newAskedClock() *askedClock {
	c := &askedClock{clock.NewMock(), make(chan time.Duration, 100)}
	c.Set(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	return c
}

func (c *askedClock) After(d time.Duration) <-chan time.Time {
	done := c.Mock.After(d)
	c.asked <- d
	return done
}

func TestR10_CancelDuringAWait(t *testing.T) {
	opts := []breaker.RetryOption{breaker.MaxRetries(4), breaker.Constant(500 * time.Millisecond), breaker.NoJitter()}
	for _, way := range retryWays {
		t.Run(way.name, func(t *testing.T) {
			breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
				ctx, cancel := context.WithCancel(w.Context())
				defer time.AfterFunc(100*time.Millisecond, cancel).Stop()
				f := w.Func(breakertest.ErrBoom)
				_, err := way.make(w, nil, opts...)(ctx, f.Call)
				require.Equal(w, 100*time.Millisecond, w.Elapsed())
				require.Len(w, f.At, 1)
				require.ErrorIs(w, err, context.Canceled)
				require.ErrorIs(w, err, breakertest.ErrBoom)
			})
		})
	}
	t.Run("injected clock", func(t *testing.T) {
		breakertest.Guard(t, breakertest.Patience, func() {
			clk := newAskedClock()
			start := clk.Now()
			b := breaker.Must(breaker.New[int]("test", breaker.WithClock(clk), breaker.WithRetry(opts...)))
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() {
				_, err := b.Do(ctx, func(context.Context) (int, error) { return 0, breakertest.ErrBoom })
				done <- err
			}()
			require.Equal(t, 500*time.Millisecond, <-clk.asked)
			clk.Add(100 * time.Millisecond)
			cancel()
			err := <-done
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, breakertest.ErrBoom)
			require.Equal(t, 100*time.Millisecond, clk.Now().Sub(start))
			require.EqualValues(t, 1, b.Snapshot().Totals.Calls)
			require.Zero(t, b.Snapshot().InFlight)
		})
	})
}

// A wait that cannot end before the deadline is not begun.
func TestR11_WaitsFitTheDeadline(t *testing.T) {
	for _, tc := range []struct {
		name     string
		deadline time.Duration
		at       []time.Duration
	}{
		{"2s", 2 * time.Second, breakertest.Seconds(0, 1)},
		{"just not", 3 * time.Second, breakertest.Seconds(0, 1)},
		{"just", 3*time.Second + 1, breakertest.Seconds(0, 1, 3)},
		{"none fits", time.Second, breakertest.Seconds(0)},
		{"all fit", time.Minute, breakertest.Seconds(0, 1, 3, 7)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			everyRetryWay(t, func(w *breakertest.World, way retryWay) {
				ctx, cancel := w.ContextFor(tc.deadline)
				defer cancel()
				f := w.Func(breakertest.ErrBoom)
				_, err := way.make(w, nil, breaker.MaxRetries(3), breaker.Exponential(time.Second, 10*time.Second), breaker.NoJitter())(ctx, f.Call)
				require.Equal(w, tc.at, f.At)
				require.Equal(w, tc.at[len(tc.at)-1], w.Elapsed())
				requireRetried(w, err, len(tc.at), breakertest.ErrBoom)
				require.Equal(w, len(tc.at) < 4, errors.Is(err, context.DeadlineExceeded))
			})
		})
	}
	// With a fake clock far from the machine's time, a real deadline says nothing about it.
	t.Run("a deadline by another clock", func(t *testing.T) {
		for _, year := range []int{1970, 2030} {
			clk := breakertest.NewWaitingClock()
			clk.Set(time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC))
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			runs := 0
			b := breaker.Must(breaker.New[int]("test", breaker.WithClock(clk), breaker.WithRetry(breaker.MaxRetries(2))))
			_, err := b.Do(ctx, func(context.Context) (int, error) { runs++; return 0, breakertest.ErrBoom })
			requireRetried(t, err, 3, breakertest.ErrBoom)
			require.Equal(t, 3, runs)
		}
	})
}

// A function that heeds its context, under a deadline: the caller's deadline ends the loop.
func TestR11_DeadlineDuringAnAttempt(t *testing.T) {
	for _, way := range retryWays {
		t.Run(way.name, func(t *testing.T) {
			breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
				ctx, cancel := w.ContextFor(2 * time.Second)
				defer cancel()
				runs := 0
				_, err := way.make(w, nil, breaker.MaxRetries(9), breaker.Constant(time.Second), breaker.NoJitter())(ctx, func(ctx context.Context) (int, error) {
					if runs++; runs == 1 {
						return 0, breakertest.ErrBoom
					}
					<-ctx.Done()
					return 0, ctx.Err()
				})
				require.Equal(w, 2*time.Second, w.Elapsed())
				require.Equal(w, 2, runs)
				requireRetried(w, err, 2, context.DeadlineExceeded)
			})
		})
	}
}

func TestR12_AttemptTimeout(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		b := w.Breaker(breaker.WithTimeout(time.Second), breaker.WithRetry(breaker.MaxRetries(1), breaker.Constant(0)))
		var at []time.Duration
		_, err := b.Do(w.Context(), func(ctx context.Context) (int, error) {
			at = append(at, w.Elapsed())
			<-ctx.Done()
			return 0, ctx.Err()
		})
		require.Equal(w, breakertest.Seconds(0, 1), at)
		require.Equal(w, 2*time.Second, w.Elapsed())
		requireRetried(w, err, 2, context.DeadlineExceeded)
		require.EqualValues(w, 2, b.Snapshot().ConsecutiveFailures)
	})
}

func TestR13_HintsAreWaitedFor(t *testing.T) {
	tooManySeconds := int64(9_999_999_999) // as a Duration it is negative
	for _, tc := range []struct {
		name string
		hint error
		opts []breaker.RetryOption
		at   []time.Duration
	}{
		{"longer than the backoff", breakertest.Hint(3 * time.Second), nil, breakertest.Seconds(0, 3)},
		{"wrapped", fmt.Errorf("busy: %w", breakertest.Hint(3*time.Second)), nil, breakertest.Seconds(0, 3)},
		{"joined", errors.Join(breakertest.ErrBoom, breakertest.Hint(3*time.Second)), nil, breakertest.Seconds(0, 3)},
		{"shorter than the backoff", breakertest.Hint(time.Millisecond), nil, breakertest.Seconds(0, 0.1)},
		{"zero", breakertest.Hint(0), nil, breakertest.Seconds(0, 0.1)},
		{"negative", breakertest.Hint(-3 * time.Second), nil, breakertest.Seconds(0, 0.1)},
		{"most negative", breakertest.Hint(math.MinInt64), nil, breakertest.Seconds(0, 0.1)},
		{"at the default cap, the backoff's max", breakertest.Hint(10 * time.Second), nil, breakertest.Seconds(0, 10)},
		{"above the default cap", breakertest.Hint(10*time.Second + 1), nil, breakertest.Seconds(0)},
		{"at a cap", breakertest.Hint(time.Hour), []breaker.RetryOption{breaker.RetryAfterCap(time.Hour)}, breakertest.Seconds(0, 3600)},
		{"above a cap", breakertest.Hint(time.Hour + 1), []breaker.RetryOption{breaker.RetryAfterCap(time.Hour)}, breakertest.Seconds(0)},
		{"a cap below the backoff", breakertest.Hint(50 * time.Millisecond), []breaker.RetryOption{breaker.RetryAfterCap(50 * time.Millisecond)}, breakertest.Seconds(0, 0.1)},
		{"no hint goes with a cap of 0", breakertest.Hint(1), []breaker.RetryOption{breaker.RetryAfterCap(0)}, breakertest.Seconds(0)},
		{"a cap of 0 leaves the rest alone", breakertest.ErrBoom, []breaker.RetryOption{breaker.RetryAfterCap(0)}, breakertest.Seconds(0, 0.1)},
		{"the cap follows Exponential", breakertest.Hint(time.Minute), []breaker.RetryOption{breaker.Exponential(100*time.Millisecond, time.Minute)}, breakertest.Seconds(0, 60)},
		{"the cap follows Constant", breakertest.Hint(20 * time.Second), []breaker.RetryOption{breaker.Constant(20 * time.Second)}, breakertest.Seconds(0, 20)},
		{"the cap in front of the backoff", breakertest.Hint(15 * time.Second), []breaker.RetryOption{breaker.RetryAfterCap(15 * time.Second), breaker.Constant(time.Second)}, breakertest.Seconds(0, 15)},
		{"as long as there is", breakertest.Hint(math.MaxInt64), []breaker.RetryOption{breaker.RetryAfterCap(1 << 62)}, breakertest.Seconds(0)},
		{"so many seconds that they overflow", breakertest.Hint(tooManySeconds * int64(time.Second)), []breaker.RetryOption{breaker.RetryAfterCap(1 << 62)}, breakertest.Seconds(0, 0.1)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			everyRetryWay(t, func(w *breakertest.World, way retryWay) {
				f := w.Func(tc.hint, nil)
				v, err := way.make(w, nil, append([]breaker.RetryOption{breaker.MaxRetries(1), breaker.NoJitter()}, tc.opts...)...)(w.Context(), f.Call)
				require.Equal(w, tc.at, f.At)
				require.Equal(w, len(tc.at), v)
				require.Equal(w, tc.at[len(tc.at)-1], w.Elapsed())
				if len(tc.at) == 1 {
					require.Equal(w, tc.hint, err, "the dependency's own answer")
					return
				}
				require.NoError(w, err)
			})
		})
	}
	t.Run("a hint that does not fit the deadline", func(t *testing.T) {
		everyRetryWay(t, func(w *breakertest.World, way retryWay) {
			ctx, cancel := w.ContextFor(2 * time.Second)
			defer cancel()
			f := w.Func(breakertest.Hint(3 * time.Second))
			_, err := way.make(w, nil, breaker.MaxRetries(3))(ctx, f.Call)
			require.Len(w, f.At, 1)
			require.Zero(w, w.Elapsed())
			require.ErrorIs(w, err, breakertest.Hint(3*time.Second))
			require.ErrorIs(w, err, context.DeadlineExceeded)
		})
	})
}

func TestR14_LastErrorAndAttemptCount(t *testing.T) {
	everyRetryWay(t, func(w *breakertest.World, way retryWay) {
		e := []error{errors.New("1"), errors.New("2"), errors.New("3"), &typedError{"4"}}
		f := w.Func(e...)
		v, err := way.make(w, nil, breaker.MaxRetries(3))(w.Context(), f.Call)
		require.Equal(w, 4, v, "the last value")
		requireRetried(w, err, 4, e[3])
		require.NotNil(w, errors.Unwrap(err))
		var typed *typedError
		require.ErrorAs(w, err, &typed)
		require.Contains(w, err.Error(), "4 attempts")
		require.Contains(w, err.Error(), "typed 4")
	})
}

type typedError struct{ s string }

func (e *typedError) Error() string { return "typed " + e.s }

// Retry goes round any function of any type, without a circuit.
func TestR15_AroundAnyFunction(t *testing.T) {
	type answer struct{ text string }
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		opts := []breaker.RetryOption{breaker.MaxRetries(3), breaker.Exponential(500*time.Millisecond, 10*time.Second), breaker.NoJitter()}
		if w.Clk != nil {
			opts = append(opts, breaker.RetryClock(w.Clk))
		}
		p, err := breaker.NewRetryPolicy(opts...)
		require.NoError(w, err)
		f := w.Func(breakertest.ErrBoom)
		got, err := breaker.Retry(w.Context(), p, func(ctx context.Context) (answer, error) {
			_, err := f.Call(ctx)
			return answer{fmt.Sprint("attempt ", len(f.At))}, err
		})
		requireRetried(w, err, 4, breakertest.ErrBoom)
		require.Equal(w, answer{"attempt 4"}, got)
		require.Equal(w, breakertest.Seconds(0, 0.5, 1.5, 3.5), f.At)

		// The policy may be used again, and by many.
		p2 := p
		s, err := breaker.Retry(w.Context(), p2, func(context.Context) (string, error) { return "fine", nil })
		require.NoError(w, err)
		require.Equal(w, "fine", s)
	})
	t.Run("before the first attempt", func(t *testing.T) {
		p := breaker.Must(breaker.NewRetryPolicy(breaker.MaxRetries(3)))
		_, err := breaker.Retry[int](t.Context(), p, nil)
		require.ErrorIs(t, err, breaker.ErrNilFunc)
		_, err = breaker.Retry[int](t.Context(), breaker.RetryPolicy{}, nil)
		require.ErrorIs(t, err, breaker.ErrNilFunc)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for _, policy := range []breaker.RetryPolicy{p, {}} {
			_, err = breaker.Retry(ctx, policy, func(context.Context) (int, error) { t.Error("it ran"); return 0, nil })
			require.ErrorIs(t, err, context.Canceled)
		}
	})
	t.Run("panic and Goexit go through", func(t *testing.T) {
		p := breaker.Must(breaker.NewRetryPolicy(breaker.MaxRetries(3)))
		runs := 0
		require.Equal(t, "boom", breakertest.PanicOf(func() {
			_, _ = breaker.Retry(t.Context(), p, func(context.Context) (int, error) { runs++; panic("boom") })
		}))
		returned := false
		breakertest.InGoroutine(func() {
			_, _ = breaker.Retry(t.Context(), p, func(context.Context) (int, error) { runs++; runtime.Goexit(); return 0, nil })
			returned = true
		})
		require.False(t, returned)
		require.Equal(t, 2, runs, "neither is retried")
	})
	t.Run("round a breaker", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			b := w.Breaker(breaker.WithFailureThreshold(2))
			f := w.Func(breakertest.ErrBoom)
			_, err := byRetry.make(w, nil, breaker.MaxRetries(9), breaker.NoJitter())(w.Context(), b.Wrap(f.Call))
			require.Equal(w, breakertest.Seconds(0, 0.1), f.At)
			requireRetried(w, err, 3, breaker.ErrOpen) // the function round the breaker ran once more, and was rejected
			require.Equal(w, 300*time.Millisecond, w.Elapsed())
		})
	})
}

func TestR16_SuccessAfterARetryIsARescue(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		var events breakertest.Events
		b := w.Breaker(breaker.WithRetry(breaker.MaxRetries(3), breaker.NoJitter()), events.Option())
		r := b.Try(w.Context(), w.Func(nil).Call)
		require.Equal(w, breaker.Result[int]{Value: 1, Attempts: 1}, r)
		require.Empty(w, events.Rescues)

		e1, e2 := errors.New("1"), errors.New("2")
		r = b.Try(w.Context(), w.Func(e1, e2, nil).Call)
		require.Equal(w, breaker.Result[int]{Value: 3, Attempts: 3, Rescue: breaker.RescueRetry}, r)
		require.Equal(w, []breaker.RescueEvent{{Name: "test", Kind: breaker.RescueRetry, Cause: e2}}, events.Rescues)
		require.Equal(w, []breaker.RetryEvent{
			{Name: "test", Attempt: 1, Wait: 100 * time.Millisecond, Err: e1},
			{Name: "test", Attempt: 2, Wait: 200 * time.Millisecond, Err: e2},
		}, events.Retries)

		r = b.Try(w.Context(), w.Func(breakertest.ErrBoom).Call)
		require.Empty(w, r.Rescue)
		require.Equal(w, map[breaker.Rescue]uint64{breaker.RescueRetry: 1}, b.Snapshot().Totals.Rescues)
		require.EqualValues(w, 5, b.Snapshot().Totals.Retries)
	})
	t.Run("an ignored end is none", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			b := w.Breaker(breaker.WithRetry(breaker.MaxRetries(3)), breaker.WithIgnore(breakertest.ErrClient))
			r := b.Try(w.Context(), w.Func(breakertest.ErrBoom, breakertest.ErrClient).Call)
			requireRetried(w, r.Err, 2, breakertest.ErrClient)
			require.Empty(w, r.Rescue)
			require.Empty(w, b.Snapshot().Totals.Rescues)
		})
	})
}

// A hook may do as it likes.
func TestRetryHooksAreContained(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		b := w.Breaker(breaker.WithRetry(breaker.MaxRetries(2)), breaker.WithHooks(breaker.Hooks{
			Retry:  func(context.Context, breaker.RetryEvent) { panic("hook") },
			Rescue: func(context.Context, breaker.RescueEvent) { panic("hook") },
		}))
		v, err := b.Do(w.Context(), w.Func(breakertest.ErrBoom, nil).Call)
		require.NoError(w, err)
		require.Equal(w, 2, v)
	})
}

func TestBC75_RetryStopsAtAnOpenCircuit(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		var events breakertest.Events
		b := w.Breaker(breaker.WithOpenTimeout(10*time.Second), breaker.WithRetry(breaker.MaxRetries(3), breaker.Constant(time.Second)), events.Option())
		b.Circuit().Trip(breakertest.ErrBoom)
		w.At(2 * time.Second)
		f := w.Func(nil)
		r := b.Try(w.Context(), f.Call)
		require.Equal(w, 2*time.Second, w.Elapsed())
		require.Empty(w, f.At)
		require.Zero(w, r.Attempts)
		var open *breaker.OpenError
		require.ErrorAs(w, r.Err, &open)
		require.Equal(w, 8*time.Second, open.RetryAfter())
		require.Len(w, events.Rejects, 1, "one admission was asked for")
		require.Empty(w, events.Retries)
		require.EqualValues(w, 1, b.Snapshot().Totals.Rejected)
	})
	t.Run("by retries round the circuit", func(t *testing.T) {
		retry := []breaker.RetryOption{breaker.MaxRetries(3), breaker.Constant(100 * time.Millisecond)}
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			inner := w.Breaker()
			inner.Circuit().Trip(nil)
			_, err := byRetry.make(w, nil, retry...)(w.Context(), inner.Wrap(w.Func(nil).Call))
			require.ErrorIs(w, err, breaker.ErrOpen)
			require.EqualValues(w, 1, inner.Snapshot().Totals.Rejected)
			_, err = w.Breaker(breaker.WithRetry(retry...)).Do(w.Context(), inner.Wrap(w.Func(nil).Call))
			require.ErrorIs(w, err, breaker.ErrOpen)
			require.EqualValues(w, 2, inner.Snapshot().Totals.Rejected)
			require.Zero(w, w.Elapsed())
		})
	})
	t.Run("no slot and no room", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			b := w.Breaker(breaker.WithMaxInFlight(1), breaker.WithRetry(breaker.MaxRetries(3), breaker.Constant(time.Second)))
			p, err := b.Circuit().Acquire(w.Context())
			require.NoError(w, err)
			r := b.Try(w.Context(), w.Func(nil).Call)
			require.Equal(w, breaker.ErrTooManyInFlight, r.Err)
			require.Zero(w, r.Attempts)
			p.Done(nil)

			b.Circuit().Trip(nil)
			b.Circuit().OfferProbe()
			require.NoError(w, b.Circuit().Configure(breaker.WithMaxInFlight(0), breaker.WithHalfOpenProbes(1)))
			_, err = b.Circuit().Acquire(w.Context())
			require.NoError(w, err)
			r = b.Try(w.Context(), w.Func(nil).Call)
			require.ErrorIs(w, r.Err, breaker.ErrTooManyProbes)
			require.Zero(w, r.Attempts)
			require.Zero(w, w.Elapsed())
		})
	})
}

func TestBC77_CompositionDecidesWhatAFailureIs(t *testing.T) {
	retry := []breaker.RetryOption{breaker.MaxRetries(2), breaker.Constant(0)}
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		inside := w.Breaker(breaker.WithFailureThreshold(3), breaker.WithRetry(retry...))
		f := w.Func(breakertest.ErrBoom)
		_, _ = inside.Do(w.Context(), f.Call)
		require.Len(w, f.At, 3)
		require.Equal(w, breaker.Open, inside.State(), "each attempt counts")

		outside := w.Breaker(breaker.WithFailureThreshold(3))
		p := breaker.Must(breaker.NewRetryPolicy(retry...))
		f = w.Func(breakertest.ErrBoom)
		for i := range 3 {
			require.Equal(w, breaker.Closed, outside.State(), "after %d calls", i)
			_, _ = outside.Do(w.Context(), func(ctx context.Context) (int, error) { return breaker.Retry(ctx, p, f.Call) })
		}
		require.Len(w, f.At, 9)
		require.Equal(w, breaker.Open, outside.State(), "each call counts")
	})
}

func TestBC79_CancelDuringTheWaitEndsIt(t *testing.T) {
	opts := []breaker.RetryOption{breaker.MaxRetries(4), breaker.Constant(10 * time.Second), breaker.NoJitter()}
	for _, way := range retryWays {
		t.Run(way.name, func(t *testing.T) {
			breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
				ctx, cancel := context.WithCancel(w.Context())
				defer time.AfterFunc(3*time.Second, cancel).Stop()
				f := w.Func(breakertest.ErrBoom)
				_, err := way.make(w, nil, opts...)(ctx, f.Call)
				require.Equal(w, 3*time.Second, w.Elapsed())
				require.Len(w, f.At, 1)
				require.ErrorIs(w, err, context.Canceled)
				require.ErrorIs(w, err, breakertest.ErrBoom)

				// A success that is there already is returned, whatever has happened to the context.
				ctx, cancel = context.WithCancel(w.Context())
				v, err := way.make(w, nil, opts...)(ctx, func(context.Context) (int, error) { cancel(); return 7, nil })
				require.NoError(w, err)
				require.Equal(w, 7, v)

				runs := 0
				ctx, cancel = context.WithCancel(w.Context())
				v, err = way.make(w, nil, opts...)(ctx, func(context.Context) (int, error) {
					if runs++; runs == 1 {
						return 0, breakertest.ErrBoom
					}
					cancel()
					return 8, nil
				})
				require.NoError(w, err)
				require.Equal(w, 8, v)
			})
		})
	}
}

func TestBC81_NumbersOfRetries(t *testing.T) {
	for _, n := range []int{0, 1, 3, 100} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			everyRetryWay(t, func(w *breakertest.World, way retryWay) {
				runs := 0
				_, err := way.make(w, nil, breaker.MaxRetries(n), breaker.Constant(0))(w.Context(), func(context.Context) (int, error) {
					if runs++; runs > 10_000 {
						panic("endless")
					}
					return 0, breakertest.ErrBoom
				})
				require.Equal(w, n+1, runs)
				requireRetried(w, err, n+1, breakertest.ErrBoom)
			})
		})
	}
	for _, n := range []int{-1, math.MinInt, math.MinInt32} {
		_, err := breaker.NewRetryPolicy(breaker.MaxRetries(n))
		require.ErrorContains(t, err, "MaxRetries")
		require.ErrorContains(t, err, fmt.Sprint(n))
		_, err = breaker.New[int]("test", breaker.WithRetry(breaker.MaxRetries(n)))
		require.ErrorContains(t, err, "MaxRetries")
	}
}

// Jitter of every kind, no wait, tiny waits and tiny caps: nothing panics, and every wait lies within its bounds.
func TestBC83_JitterAndTinyDelays(t *testing.T) {
	delays := []time.Duration{0, 1, 9, time.Millisecond}
	caps := []time.Duration{1, 9, time.Second}
	jitters := map[string]breaker.RetryOption{
		"none": breaker.NoJitter(), "0": breaker.AddJitter(0), "0.5": breaker.AddJitter(0.5), "1": breaker.AddJitter(1), "full": breaker.FullJitter(),
	}
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		for _, base := range delays {
			for _, most := range caps {
				for name, jitter := range jitters {
					var events breakertest.Events
					b := w.Breaker(farFromTripping, events.Option(), breaker.WithRetry(breaker.MaxRetries(50), breaker.Exponential(base, most), jitter))
					for range 4 {
						events.Retries = nil
						_, _ = b.Do(w.Context(), w.Func(breakertest.ErrBoom).Call)
						require.Len(w, events.Retries, 50)
						for i, e := range events.Retries {
							exact := most
							if base == 0 || i < 40 && base<<i < most {
								exact = base << i
							}
							require.GreaterOrEqual(w, e.Wait, time.Duration(0))
							require.LessOrEqual(w, e.Wait, most)
							switch name {
							case "none", "0":
								require.Equal(w, exact, e.Wait)
							case "full":
								require.LessOrEqual(w, e.Wait, exact)
							default:
								require.GreaterOrEqual(w, e.Wait, exact)
								require.LessOrEqual(w, e.Wait, 2*exact)
							}
						}
					}
				}
			}
		}
	})
	t.Run("constant", func(t *testing.T) {
		for _, jitter := range jitters {
			for _, wait := range []time.Duration{0, 1} {
				for _, way := range retryWays {
					breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
						f := w.Func(breakertest.ErrBoom)
						_, _ = way.make(w, nil, breaker.MaxRetries(70), breaker.Constant(wait), jitter)(w.Context(), f.Call)
						require.Len(w, f.At, 71, way.name)
						require.LessOrEqual(w, w.Elapsed(), 70*2*wait, way.name)
					})
				}
			}
		}
	})
	for _, share := range []float64{-0.1, 1.1, math.NaN(), math.Inf(1), math.Inf(-1)} {
		_, err := breaker.NewRetryPolicy(breaker.AddJitter(share))
		require.ErrorContains(t, err, "AddJitter")
	}
}

func TestBC84_ExhaustionTellsWhatHappened(t *testing.T) {
	everyRetryWay(t, func(w *breakertest.World, way retryWay) {
		e1, e2, e3 := errors.New("1"), errors.New("2"), errors.New("3")
		_, err := way.make(w, nil, breaker.MaxRetries(2))(w.Context(), w.Func(e1, e2, e3).Call)
		requireRetried(w, err, 3, e3)
		require.NotContains(w, err.Error(), "%!")

		_, err = way.make(w, nil, breaker.MaxRetries(2), breaker.RetryIf(func(error) bool { return false }))(w.Context(), w.Func(e1).Call)
		require.Equal(w, e1, err, "not worth a retry: the same error")
		_, err = way.make(w, nil)(w.Context(), w.Func(e1).Call)
		require.Equal(w, e1, err, "retries off: the same error")
	})
}

func TestBC85_AttemptTimeoutUsesUpAnAttempt(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		b := w.Breaker(breaker.WithTimeout(time.Second), breaker.WithRetry(breaker.MaxRetries(2), breaker.Constant(250*time.Millisecond), breaker.NoJitter()))
		ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
		defer cancel()
		runs := 0
		r := b.Try(ctx, func(ctx context.Context) (int, error) {
			if runs++; runs == 1 {
				<-ctx.Done()
				return 0, fmt.Errorf("dial: %w", ctx.Err()) // it looks like the caller's own
			}
			require.NoError(w, ctx.Err(), "each attempt has a timeout of its own")
			return 7, nil
		})
		require.Equal(w, breaker.Result[int]{Value: 7, Attempts: 2, Rescue: breaker.RescueRetry}, r)
		require.Equal(w, 1250*time.Millisecond, w.Elapsed())
		totals := b.Snapshot().Totals
		require.EqualValues(w, 1, totals.Failures)
		require.EqualValues(w, 1, totals.Successes)
	})
	t.Run("injected clock", func(t *testing.T) {
		breakertest.Guard(t, breakertest.Patience, func() {
			clk := newAskedClock()
			b := breaker.Must(breaker.New[int]("test", breaker.WithClock(clk), breaker.WithTimeout(time.Second),
				breaker.WithRetry(breaker.MaxRetries(2), breaker.Constant(250*time.Millisecond), breaker.NoJitter())))
			var runs atomic.Int32
			done := make(chan breaker.Result[int])
			go func() {
				done <- b.Try(t.Context(), func(ctx context.Context) (int, error) {
					if runs.Add(1) == 1 {
						<-ctx.Done()
						return 0, ctx.Err()
					}
					return 7, nil
				})
			}()
			require.Equal(t, time.Second, <-clk.asked)
			clk.Add(time.Second)
			require.Equal(t, 250*time.Millisecond, <-clk.asked)
			clk.Add(250 * time.Millisecond)
			require.Equal(t, breaker.Result[int]{Value: 7, Attempts: 2, Rescue: breaker.RescueRetry}, <-done)
		})
	})
	// An answer that came after the attempt's own time is the answer, and no reason for another attempt.
	t.Run("a late value", func(t *testing.T) {
		breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
			b := w.Breaker(breaker.WithTimeout(time.Second), breaker.WithRetry(breaker.MaxRetries(2)), breaker.WithFallbackValue(-1))
			r := b.Try(w.Context(), func(context.Context) (int, error) { <-time.After(2 * time.Second); return 7, nil })
			require.Equal(w, breaker.Result[int]{Value: 7, Attempts: 1}, r)
			require.EqualValues(w, 1, b.Snapshot().Totals.Failures)
		})
	})
}

func TestBC86_HintsAreBounded(t *testing.T) {
	for _, h := range []time.Duration{time.Hour, 365 * 24 * time.Hour, 484_289 * time.Hour, math.MaxInt64} {
		everyRetryWay(t, func(w *breakertest.World, way retryWay) {
			f := w.Func(breakertest.Hint(h))
			_, err := way.make(w, nil, breaker.MaxRetries(9))(w.Context(), f.Call)
			require.Equal(w, breakertest.Hint(h), err)
			require.Len(w, f.At, 1)
			require.Zero(w, w.Elapsed())
		})
	}
}

func TestBC89_SenselessHintsAreNone(t *testing.T) {
	for _, h := range []time.Duration{0, -1, -5 * time.Second, math.MinInt64} {
		everyRetryWay(t, func(w *breakertest.World, way retryWay) {
			f := w.Func(breakertest.Hint(h))
			_, err := way.make(w, nil, breaker.MaxRetries(2), breaker.Constant(2*time.Second), breaker.NoJitter())(w.Context(), f.Call)
			require.Equal(w, breakertest.Seconds(0, 2, 4), f.At)
			requireRetried(w, err, 3, breakertest.Hint(h))
		})
	}
}

// The failure that opens the circuit lengthens its open period, ends the retries, and comes out as it was.
func TestBC90_HintThatOpensTheCircuit(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		b := w.Breaker(breaker.WithFailureThreshold(3), breaker.WithOpenTimeout(10*time.Second),
			breaker.WithRetry(breaker.MaxRetries(5), breaker.Constant(0), breaker.RetryAfterCap(time.Minute)))
		f := w.Func(breakertest.ErrBoom, breakertest.ErrBoom, breakertest.Hint(25*time.Second))
		_, err := b.Do(w.Context(), f.Call)
		requireRetried(w, err, 3, breakertest.Hint(25*time.Second))
		var open *breaker.OpenError
		require.ErrorAs(w, err, &open)
		require.Equal(w, 25*time.Second, open.RetryAfter())
		require.Zero(w, w.Elapsed())
	})
}

func TestMaxElapsedBoundsAttemptsAndWaits(t *testing.T) {
	for _, tc := range []struct {
		name string
		most time.Duration
		took time.Duration // by each attempt
		at   []time.Duration
	}{
		{"none", 0, 0, breakertest.Seconds(0, 1, 2, 3, 4, 5)},
		{"of waits", 2500 * time.Millisecond, 0, breakertest.Seconds(0, 1, 2)},
		{"a wait that would end with it", 2 * time.Second, 0, breakertest.Seconds(0, 1)},
		{"a wait that ends before it", 2*time.Second + 1, 0, breakertest.Seconds(0, 1, 2)},
		{"attempts count", 5 * time.Second, time.Second, breakertest.Seconds(0, 2, 4)},
		{"one attempt longer than it", time.Second, 3 * time.Second, breakertest.Seconds(0)},
		{"tiny", 1, 0, breakertest.Seconds(0)},
		{"as long as there is", 1 << 62, 0, breakertest.Seconds(0, 1, 2, 3, 4, 5)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			everyRetryWay(t, func(w *breakertest.World, way retryWay) {
				f := w.Func(breakertest.ErrBoom)
				_, err := way.make(w, nil, breaker.MaxRetries(5), breaker.Constant(time.Second), breaker.NoJitter(), breaker.MaxElapsed(tc.most))(w.Context(), func(ctx context.Context) (int, error) {
					v, err := f.Call(ctx)
					w.At(w.Elapsed() + tc.took)
					return v, err
				})
				require.Equal(w, tc.at, f.At)
				requireRetried(w, err, len(tc.at), breakertest.ErrBoom)
				require.NotErrorIs(w, err, context.DeadlineExceeded, "the bound is the policy's, not the context's")
			})
		})
	}
}

func TestRetryNonsenseIsNamed(t *testing.T) {
	for name, o := range map[string]breaker.RetryOption{
		"MaxRetries":       breaker.MaxRetries(-1),
		"Exponential.Base": breaker.Exponential(-1, time.Second),
		"Exponential.Max":  breaker.Exponential(time.Second, 0),
		"Constant":         breaker.Constant(-1),
		"AddJitter":        breaker.AddJitter(2),
		"RetryIf":          breaker.RetryIf(nil),
		"MaxElapsed":       breaker.MaxElapsed(-1),
		"RetryAfterCap":    breaker.RetryAfterCap(-1),
		"Budget":           breaker.WithBudget(nil),
		"RetryClock":       breaker.RetryClock(nil),
		"RetryRand":        breaker.RetryRand(nil),
		"RetryOption":      nil,
	} {
		_, err := breaker.NewRetryPolicy(o)
		require.ErrorContains(t, err, name)
		_, err = breaker.New[int]("test", breaker.WithRetry(o))
		require.ErrorContains(t, err, name)
	}
	var typedNil *clock.Mock
	_, err := breaker.NewRetryPolicy(breaker.RetryClock(typedNil))
	require.ErrorContains(t, err, "RetryClock")

	p, err := breaker.NewRetryPolicy(breaker.MaxRetries(-1), breaker.Constant(-2), breaker.AddJitter(3))
	require.Zero(t, p)
	for _, all := range []string{"MaxRetries", "-1", "Constant", "-2ns", "AddJitter", "3"} {
		require.ErrorContains(t, err, all, "every fault is named")
	}
	_, err = breaker.New[int]("", breaker.WithFailureThreshold(-1), breaker.WithRetry(breaker.MaxRetries(-1)), breaker.WithFallbackValue("x"))
	for _, all := range []string{"name", "FailureThreshold", "MaxRetries", "FallbackValue"} {
		require.ErrorContains(t, err, all)
	}
	for what, err := range map[string]error{
		"NewCircuit": errOf(breaker.NewCircuit("c", breaker.WithRetry())),
		"Configure":  breaker.Must(breaker.NewCircuit("c")).Configure(breaker.WithRetry()),
	} {
		require.ErrorContains(t, err, "Retry", what)
	}
}

func errOf[T any](_ T, err error) error { return err }

// Of one option given twice the later wins, so an earlier WithRetry leaves nothing behind.
func TestLaterWithRetryReplacesTheEarlier(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		f := w.Func(breakertest.ErrBoom)
		b := w.Breaker(breaker.WithRetry(breaker.MaxRetries(9), breaker.Constant(time.Hour)), breaker.WithRetry(breaker.MaxRetries(1), breaker.NoJitter()))
		_, _ = b.Do(w.Context(), f.Call)
		require.Equal(w, breakertest.Seconds(0, 0.1), f.At)
	})
}

// Two views of one circuit have retries of their own.
func TestViewsRetryForThemselves(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		b := w.Breaker(breaker.WithRetry(breaker.MaxRetries(2), breaker.Constant(0)))
		plain := breaker.Must(breaker.Over[string](b.Circuit()))
		eager := breaker.Must(breaker.Over[string](b.Circuit(), breaker.WithRetry(breaker.MaxRetries(1), breaker.Constant(0))))
		r := plain.Try(w.Context(), func(context.Context) (string, error) { return "", breakertest.ErrBoom })
		require.Equal(w, 1, r.Attempts)
		r = eager.Try(w.Context(), func(context.Context) (string, error) { return "", breakertest.ErrBoom })
		require.Equal(w, 2, r.Attempts)
		require.EqualValues(w, 3, b.Snapshot().ConsecutiveFailures, "on one circuit")
	})
}

// Extreme values neither overflow nor panic nor loop.
func TestRetryExtremes(t *testing.T) {
	const most = time.Duration(1 << 62)
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		for name, opts := range map[string][]breaker.RetryOption{
			"everything as large as it goes": {breaker.MaxRetries(math.MaxInt32), breaker.Exponential(most, most), breaker.AddJitter(1), breaker.MaxElapsed(most), breaker.RetryAfterCap(most)},
			"a constant as large as it goes": {breaker.MaxRetries(math.MaxInt32), breaker.Constant(most), breaker.FullJitter()},
		} {
			ctx, cancel := context.WithTimeout(w.Context(), time.Hour)
			for _, way := range retryWays {
				f := w.Func(breakertest.Hint(math.MaxInt64 / 4))
				_, err := way.make(w, func() float64 { return 0.9999999999999999 }, opts...)(ctx, f.Call)
				require.Error(w, err, name)
				require.Len(w, f.At, 1, name)
			}
			cancel()
			require.Zero(w, w.Elapsed())
		}
		for _, tc := range []struct {
			n          int // of doublings
			base, most time.Duration
			jitter     breaker.RetryOption
		}{
			{5000, 1, time.Second, breaker.AddJitter(1)},
			{200, time.Hour, 2 * time.Hour, breaker.NoJitter()},
		} {
			var events breakertest.Events
			b := w.Breaker(farFromTripping, events.Option(), breaker.WithRetry(breaker.MaxRetries(tc.n), breaker.Exponential(tc.base, tc.most), tc.jitter))
			r := b.Try(w.Context(), w.Func(breakertest.ErrBoom).Call)
			require.Equal(w, tc.n+1, r.Attempts)
			for i, e := range events.Retries {
				require.Positive(w, e.Wait)
				require.LessOrEqual(w, e.Wait, tc.most)
				if i > 40 {
					require.Equal(w, tc.most, e.Wait)
				}
			}
			require.GreaterOrEqual(w, events.Retries[0].Wait, tc.base)
		}
	})
}

// The properties of a retried call, whatever is configured: the number of attempts, the sum of the waits, the bounds of
// each, and no wait past a deadline.
func TestRetryProperties(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		rapid.Check(struct{ testing.TB }{w.T}, func(t *rapid.T) {
			duration := func(name string, most time.Duration) time.Duration {
				return time.Duration(rapid.Int64Range(0, int64(most)).Draw(t, name))
			}
			n := rapid.IntRange(0, 12).Draw(t, "retries")
			base := duration("base", 3*time.Second)
			longest := duration("max", 20*time.Second) + 1
			constant := rapid.Bool().Draw(t, "constant")
			backoff := breaker.Exponential(base, longest)
			if constant {
				backoff, longest = breaker.Constant(base), max(base, 10*time.Second)
			}
			jitter := rapid.SampledFrom([]breaker.RetryOption{breaker.NoJitter(), breaker.FullJitter(), breaker.AddJitter(0.3), breaker.AddJitter(1)}).Draw(t, "jitter")
			hints := longest
			opts := []breaker.RetryOption{breaker.MaxRetries(n), backoff, jitter}
			if rapid.Bool().Draw(t, "has a cap") {
				hints = duration("cap", 30*time.Second)
				opts = append(opts, breaker.RetryAfterCap(hints))
			}
			elapsed := time.Duration(0)
			if rapid.Bool().Draw(t, "is bounded") {
				elapsed = 1 + duration("elapsed", time.Minute)
				opts = append(opts, breaker.MaxElapsed(elapsed))
			}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			deadline := time.Duration(0)
			if rapid.Bool().Draw(t, "has a deadline") {
				deadline = 1 + duration("deadline", time.Minute)
				ctx, cancel = context.WithTimeout(ctx, deadline)
				defer cancel()
			}
			var events breakertest.Events
			b := breaker.Must(breaker.New[int]("test", farFromTripping, events.Option(), breaker.WithRetry(opts...)))

			start := time.Now()
			var busy time.Duration
			var ends []error
			r := b.Try(ctx, func(ctx context.Context) (int, error) {
				took := duration("took", 2*time.Second)
				select {
				case <-time.After(took):
					busy += took
				case <-ctx.Done():
					busy += time.Since(start) - busy - sumOf(events.Retries)
					ends = append(ends, ctx.Err())
					return 0, ctx.Err()
				}
				end := rapid.SampledFrom([]error{breakertest.ErrBoom, breakertest.ErrBoom, breakertest.ErrBoom, breakertest.Hint(duration("hint", 30*time.Second)), nil}).Draw(t, "end")
				ends = append(ends, end)
				return len(ends), end
			})
			total := time.Since(start)

			if r.Attempts != len(ends) || r.Attempts < 1 || r.Attempts > n+1 {
				t.Fatalf("%d attempts, %d runs, %d retries allowed", r.Attempts, len(ends), n)
			}
			if got := b.Snapshot().Totals; got.Retries != uint64(len(events.Retries)) || got.Calls != uint64(len(ends)) || len(events.Retries) != len(ends)-1 {
				t.Fatalf("totals %+v, events %v", got, events.Retries)
			}
			if sum := sumOf(events.Retries); total != busy+sum {
				t.Fatalf("it took %v: %v of attempts and %v of waits", total, busy, sum)
			}
			for i, e := range events.Retries {
				var h breakertest.Hint
				errors.As(ends[i], &h)
				if e.Attempt != i+1 || e.Err != ends[i] || e.Wait < time.Duration(h) || e.Wait > max(longest, hints) || time.Duration(h) > hints {
					t.Fatalf("retry %+v after %v", e, ends[i])
				}
			}
			if deadline > 0 && total > deadline {
				t.Fatalf("%v of %v", total, deadline)
			}
			if elapsed > 0 && total-busy > 0 && total > elapsed+2*time.Second {
				t.Fatalf("%v of %v, one attempt not counted", total, elapsed)
			}
			last := ends[len(ends)-1]
			if last == nil && (r.Err != nil || (r.Rescue == breaker.RescueRetry) != (len(ends) > 1)) {
				t.Fatalf("%+v", r)
			}
			if last != nil && !errors.Is(r.Err, last) {
				t.Fatalf("%+v", r)
			}
			if s := b.Snapshot(); s.InFlight != 0 {
				t.Fatalf("%v", s)
			}
		})
	})
}

func sumOf(all []breaker.RetryEvent) (sum time.Duration) {
	for _, e := range all {
		sum += e.Wait
	}
	return sum
}

// The refusal of a circuit further in was retried where a classifier, or a judge of results, took it for a failure.
func TestRejectionsAreNotRetried(t *testing.T) {
	failure := func(error) breaker.Outcome { return breaker.Failure }
	for name, opt := range map[string]breaker.Option{
		"classifier": breaker.WithClassifier(failure),
		"result":     breaker.WithResult(func(_ int, err error) breaker.Outcome { return failure(err) }),
		"list":       breaker.WithFailOn(breaker.ErrOpen, breaker.ErrTooManyInFlight),
	} {
		for _, rejection := range []error{breaker.ErrOpen, breaker.ErrTooManyInFlight} {
			t.Run(name+", "+rejection.Error(), func(t *testing.T) {
				b := breaker.Must(breaker.New[int]("outer", opt, breaker.WithRetry(breaker.MaxRetries(3), breaker.Constant(0), breaker.NoJitter())))
				r := b.Try(context.Background(), func(context.Context) (int, error) { return 0, fmt.Errorf("inner: %w", rejection) })
				require.Equal(t, 1, r.Attempts)
				require.ErrorIs(t, r.Err, rejection)
				require.EqualValues(t, 1, b.Snapshot().Totals.Failures)
			})
		}
	}
}

// An error that is not worth a retry became a rejection when it also opened the circuit.
func TestErrorsThatAreNotRetriedStayAsTheyAre(t *testing.T) {
	for name, opt := range map[string]breaker.RetryOption{
		"not worth it":  breaker.RetryIf(func(error) bool { return false }),
		"too long away": breaker.RetryAfterCap(time.Millisecond),
	} {
		t.Run(name, func(t *testing.T) {
			b := breaker.Must(breaker.New[int]("c", breaker.WithFailureThreshold(1), breaker.WithRetry(breaker.MaxRetries(3), opt)))
			err := error(breakertest.Hint(time.Minute))
			_, got := b.Do(context.Background(), func(context.Context) (int, error) { return 0, err })
			require.Equal(t, err, got)
			require.Equal(t, breaker.Open, b.State())
		})
	}
}
