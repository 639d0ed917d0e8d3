package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/breakerkit/breaker"
)

// rfgWorld is where a test with waits gets its time from. A wait is over as soon as it is asked for.
type rfgWorld struct {
	*testing.T
	clk   *rfgClock // nil in a bubble
	start time.Time
}

// rfgClock is a fake clock that moves on when somebody waits for it. It is for one goroutine.
type rfgClock struct{ *clock.Mock }

func (c *rfgClock) After(d time.Duration) <-chan time.Time {
	done := c.Mock.After(d)
	c.Add(d)
	return done
}

// rfgBoth runs a test by an injected clock and by the default clock in a bubble.
func rfgBoth(t *testing.T, f func(*rfgWorld)) {
	t.Helper()
	t.Run("injected clock", func(t *testing.T) {
		guard(t, patience, func() {
			clk := &rfgClock{clock.NewMock()}
			clk.Set(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
			f(&rfgWorld{T: t, clk: clk, start: clk.Now()})
		})
	})
	t.Run("bubble", func(t *testing.T) { rfgBubble(t, f) })
}

// rfgBubble runs a test by the default clock in a bubble.
func rfgBubble(t *testing.T, f func(*rfgWorld)) {
	t.Helper()
	guard(t, patience, func() {
		synctest.Test(t, func(t *testing.T) { f(&rfgWorld{T: t, start: time.Now()}) })
	})
}

func (w *rfgWorld) elapsed() time.Duration {
	if w.clk != nil {
		return w.clk.Now().Sub(w.start)
	}
	return time.Since(w.start)
}

// at lets time pass until d after the beginning.
func (w *rfgWorld) at(d time.Duration) {
	w.Helper()
	left := d - w.elapsed()
	require.GreaterOrEqual(w, left, time.Duration(0), "the scenario goes back in time")
	switch {
	case left == 0:
	case w.clk != nil:
		w.clk.Add(left)
	default:
		<-time.After(left)
	}
}

// options adds the world's clock to options.
func (w *rfgWorld) options(opts ...breaker.Option) []breaker.Option {
	if w.clk != nil {
		opts = append([]breaker.Option{breaker.WithClock(w.clk)}, opts...)
	}
	return opts
}

// breaker makes a breaker by the world's clock.
func (w *rfgWorld) breaker(opts ...breaker.Option) *breaker.Breaker[int] {
	w.Helper()
	b, err := breaker.New[int]("test", w.options(opts...)...)
	require.NoError(w, err)
	return b
}

// deadline is a context with a deadline by the world's clock, which by an injected one never ends of itself.
func (w *rfgWorld) deadline(d time.Duration) (context.Context, context.CancelFunc) {
	if w.clk == nil {
		return context.WithTimeout(w.Context(), d)
	}
	return rfgDeadline{w.Context(), w.clk.Now().Add(d)}, func() {}
}

type rfgDeadline struct {
	context.Context
	at time.Time
}

func (c rfgDeadline) Deadline() (time.Time, bool) { return c.at, true }

// rfgFn is a function that ends as it was told, the last way again and again, and notes when it ran.
type rfgFn struct {
	w    *rfgWorld
	ends []error
	at   []time.Duration
}

func (w *rfgWorld) fn(ends ...error) *rfgFn { return &rfgFn{w: w, ends: ends} }

func (f *rfgFn) call(context.Context) (int, error) {
	err := f.ends[min(len(f.at), len(f.ends)-1)]
	f.at = append(f.at, f.w.elapsed())
	return len(f.at), err
}

// rfgSeconds turns seconds into durations.
func rfgSeconds(s ...float64) []time.Duration {
	var all []time.Duration
	for _, one := range s {
		all = append(all, time.Duration(one*float64(time.Second)))
	}
	return all
}

type (
	rfgCall = func(context.Context, func(context.Context) (int, error)) (int, error)
	// An rfgWay is one of the ways to call with retries.
	rfgWay struct {
		name string
		make func(w *rfgWorld, random func() float64, opts ...breaker.RetryOption) rfgCall
	}
)

// rfgFar keeps a circuit out of a test about retries.
var rfgFar = breaker.WithFailureThreshold(1 << 30)

func rfgByBreaker(name string, call func(*breaker.Breaker[int]) rfgCall, more ...breaker.Option) rfgWay {
	return rfgWay{name, func(w *rfgWorld, random func() float64, opts ...breaker.RetryOption) rfgCall {
		all := append([]breaker.Option{rfgFar, breaker.WithRetry(opts...)}, more...)
		if random != nil {
			all = append(all, breaker.WithRand(random))
		}
		return call(w.breaker(all...))
	}}
}

var (
	rfgByRetry = rfgWay{"Retry", func(w *rfgWorld, random func() float64, opts ...breaker.RetryOption) rfgCall {
		if w.clk != nil {
			opts = append(opts, breaker.RetryClock(w.clk))
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
	rfgDo  = func(b *breaker.Breaker[int]) rfgCall { return b.Do }
	rfgTry = func(b *breaker.Breaker[int]) rfgCall {
		return func(ctx context.Context, fn func(context.Context) (int, error)) (int, error) {
			r := b.Try(ctx, fn)
			return r.Value, r.Err
		}
	}
	rfgWrap = func(b *breaker.Breaker[int]) rfgCall {
		return func(ctx context.Context, fn func(context.Context) (int, error)) (int, error) {
			return b.Wrap(fn)(ctx)
		}
	}
	rfgWays = []rfgWay{
		rfgByRetry,
		rfgByBreaker("Do", rfgDo),
		rfgByBreaker("Do with a call option", rfgDo, breaker.WithResult(func(_ int, err error) breaker.Outcome {
			return breaker.DefaultClassifier(err)
		})),
		rfgByBreaker("Try", rfgTry),
		rfgByBreaker("Wrap", rfgWrap),
	}
)

// rfgEveryWay runs a test in every way to retry, by both clocks.
func rfgEveryWay(t *testing.T, f func(*rfgWorld, rfgWay)) {
	t.Helper()
	for _, way := range rfgWays {
		t.Run(way.name, func(t *testing.T) { rfgBoth(t, func(w *rfgWorld) { f(w, way) }) })
	}
}

// rfgRetried requires the error of a call that ran n times.
func rfgRetried(t require.TestingT, err error, n int, last error) {
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
	} {
		t.Run(name, func(t *testing.T) {
			rfgEveryWay(t, func(w *rfgWorld, way rfgWay) {
				f := w.fn(errBoom)
				_, err := way.make(w, nil, opts...)(w.Context(), f.call)
				require.Equal(w, errBoom, err)
				require.Len(w, f.at, 1)
				require.Zero(w, w.elapsed())
			})
		})
	}
	t.Run("without WithRetry", func(t *testing.T) {
		rfgBoth(t, func(w *rfgWorld) {
			f := w.fn(errBoom)
			_, err := w.breaker().Do(w.Context(), f.call)
			require.Equal(w, errBoom, err)
			require.Len(w, f.at, 1)
		})
	})
	t.Run("zero RetryPolicy", func(t *testing.T) {
		runs := 0
		v, err := breaker.Retry(t.Context(), breaker.RetryPolicy{}, func(context.Context) (int, error) { runs++; return 7, errBoom })
		require.Equal(t, errBoom, err)
		require.Equal(t, 7, v)
		require.Equal(t, 1, runs)
	})
}

// rfgVectors are R02 to R06: waits, and when the attempts are made.
var rfgVectors = []struct {
	name   string
	random float64
	opts   []breaker.RetryOption
	ends   []error
	at     []time.Duration
	ok     bool
}{
	{"R02", 0.9, []breaker.RetryOption{breaker.MaxRetries(3), breaker.Exponential(500*time.Millisecond, 10*time.Second), breaker.NoJitter()},
		[]error{errBoom}, rfgSeconds(0, 0.5, 1.5, 3.5), false},
	{"R02 without chance", 0, []breaker.RetryOption{breaker.MaxRetries(3), breaker.Exponential(500*time.Millisecond, 10*time.Second)},
		[]error{errBoom}, rfgSeconds(0, 0.5, 1.5, 3.5), false},
	{"R03", 0.9, []breaker.RetryOption{breaker.MaxRetries(5), breaker.NoJitter()},
		[]error{errBoom}, rfgSeconds(0, 0.1, 0.3, 0.7, 1.5, 3.1), false},
	{"R04 least", 0, []breaker.RetryOption{breaker.MaxRetries(1), breaker.Exponential(500*time.Millisecond, 10*time.Second)},
		[]error{errBoom}, rfgSeconds(0, 0.5), false},
	{"R04 half", 0.5, []breaker.RetryOption{breaker.MaxRetries(1), breaker.Exponential(500*time.Millisecond, 10*time.Second)},
		[]error{errBoom}, rfgSeconds(0, 0.625), false},
	{"R05", 0, []breaker.RetryOption{breaker.MaxRetries(6), breaker.Exponential(time.Second, 10*time.Second), breaker.NoJitter()},
		[]error{errBoom}, rfgSeconds(0, 1, 3, 7, 15, 25, 35), false},
	{"R05 with jitter", 0.5, []breaker.RetryOption{breaker.MaxRetries(6), breaker.Exponential(time.Second, 10*time.Second), breaker.AddJitter(1)},
		[]error{errBoom}, rfgSeconds(0, 1.5, 4.5, 10.5, 20.5, 30.5, 40.5), false},
	{"R05 by default", 0.999, []breaker.RetryOption{breaker.MaxRetries(9), breaker.NoJitter()},
		[]error{errBoom}, rfgSeconds(0, 0.1, 0.3, 0.7, 1.5, 3.1, 6.3, 12.7, 22.7, 32.7), false},
	{"R06", 0, []breaker.RetryOption{breaker.MaxRetries(5), breaker.NoJitter()},
		[]error{errBoom, errBoom, nil}, rfgSeconds(0, 0.1, 0.3), true},
	{"constant", 0, []breaker.RetryOption{breaker.MaxRetries(3), breaker.Constant(2 * time.Second), breaker.NoJitter()},
		[]error{errBoom}, rfgSeconds(0, 2, 4, 6), false},
	{"constant with jitter", 0.5, []breaker.RetryOption{breaker.MaxRetries(2), breaker.Constant(2 * time.Second), breaker.AddJitter(0.5)},
		[]error{errBoom}, rfgSeconds(0, 2.5, 5), false},
	{"constant above 10s is its own cap", 0.9, []breaker.RetryOption{breaker.MaxRetries(2), breaker.Constant(20 * time.Second)},
		[]error{errBoom}, rfgSeconds(0, 20, 40), false},
	{"full jitter", 0.25, []breaker.RetryOption{breaker.MaxRetries(3), breaker.Exponential(time.Second, 3*time.Second), breaker.FullJitter()},
		[]error{errBoom}, rfgSeconds(0, 0.25, 0.75, 1.5), false},
	{"full jitter, called", 0, []breaker.RetryOption{breaker.MaxRetries(2), breaker.FullJitter()},
		[]error{errBoom}, rfgSeconds(0, 0, 0), false},
	{"later kind of jitter wins", 0.5, []breaker.RetryOption{breaker.FullJitter(), breaker.AddJitter(1), breaker.NoJitter(), breaker.MaxRetries(1), breaker.Constant(time.Second)},
		[]error{errBoom}, rfgSeconds(0, 1), false},
	{"later backoff wins", 0, []breaker.RetryOption{breaker.MaxRetries(2), breaker.Constant(time.Hour), breaker.Exponential(time.Second, time.Minute)},
		[]error{errBoom}, rfgSeconds(0, 1, 3), false},
	{"no wait", 0.9, []breaker.RetryOption{breaker.MaxRetries(3), breaker.Constant(0)},
		[]error{errBoom}, rfgSeconds(0, 0, 0, 0), false},
	{"base above max", 0.9, []breaker.RetryOption{breaker.MaxRetries(1), breaker.Exponential(time.Minute, time.Second)},
		[]error{errBoom}, rfgSeconds(0, 1), false},
}

func TestR02toR06_WaitsAndStops(t *testing.T) {
	for _, tc := range rfgVectors {
		t.Run(tc.name, func(t *testing.T) {
			rfgEveryWay(t, func(w *rfgWorld, way rfgWay) {
				f := w.fn(tc.ends...)
				v, err := way.make(w, func() float64 { return tc.random }, tc.opts...)(w.Context(), f.call)
				require.Equal(w, tc.at, f.at)
				require.Equal(w, tc.at[len(tc.at)-1], w.elapsed(), "nothing is waited for after the last attempt")
				require.Equal(w, len(tc.at), v, "the last attempt's value")
				if tc.ok {
					require.NoError(w, err)
					return
				}
				rfgRetried(w, err, len(tc.at), errBoom)
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
			for _, way := range rfgWays[:2] {
				t.Run(way.name, func(t *testing.T) {
					rfgBubble(t, func(w *rfgWorld) {
						call := way.make(w, nil, breaker.MaxRetries(1), breaker.Exponential(500*time.Millisecond, 10*time.Second), tc.jitter)
						least, most := time.Duration(math.MaxInt64), time.Duration(0)
						for range 1000 {
							f := w.fn(errBoom)
							_, _ = call(w.Context(), f.call)
							wait := f.at[1] - f.at[0]
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
			rfgEveryWay(t, func(w *rfgWorld, way rfgWay) {
				f := w.fn(errBoom)
				_, _ = way.make(w, func() float64 { return random }, breaker.MaxRetries(1), breaker.Constant(time.Second))(w.Context(), f.call)
				require.Equal(w, rfgSeconds(0, 1), f.at)
			})
		})
	}
	t.Run("one that panics", func(t *testing.T) {
		rfgBoth(t, func(w *rfgWorld) {
			f := w.fn(errBoom)
			b := w.breaker(breaker.WithRand(func() float64 { panic("no chance") }), breaker.WithRetry(breaker.MaxRetries(1), breaker.Constant(time.Second)))
			_, err := b.Do(w.Context(), f.call)
			rfgRetried(w, err, 2, errBoom)
			require.Equal(w, rfgSeconds(0, 1), f.at)
		})
	})
	t.Run("is not asked without jitter", func(t *testing.T) {
		rfgEveryWay(t, func(w *rfgWorld, way rfgWay) {
			asked := 0
			_, _ = way.make(w, func() float64 { asked++; return 0 }, breaker.MaxRetries(3), breaker.NoJitter())(w.Context(), w.fn(errBoom).call)
			require.Zero(w, asked)
		})
	})
}

// rfgStatus is an error that carries a status.
type rfgStatus int

func (s rfgStatus) Error() string { return fmt.Sprint("status ", int(s)) }

func rfgTransient(err error) bool {
	var s rfgStatus
	return !errors.As(err, &s) || s == 408 || s == 429 || s >= 500
}

func TestR07_OnlyTransientFailuresAreRetried(t *testing.T) {
	for err, attempts := range map[error]int{
		syscall.ECONNREFUSED:     4,
		io.ErrUnexpectedEOF:      4,
		context.DeadlineExceeded: 4, // the dependency's own
		rfgStatus(500):           4, rfgStatus(502): 4, rfgStatus(503): 4, rfgStatus(504): 4, rfgStatus(429): 4,
		rfgStatus(400): 1, rfgStatus(401): 1, rfgStatus(403): 1, rfgStatus(404): 1, rfgStatus(422): 1,
		fmt.Errorf("wrapped: %w", rfgStatus(401)): 1,
	} {
		t.Run(fmt.Sprint(err), func(t *testing.T) {
			rfgBoth(t, func(w *rfgWorld) {
				retry := []breaker.RetryOption{breaker.MaxRetries(3)}
				check := func(f *rfgFn, got error, what string) {
					w.Helper()
					require.Len(w, f.at, attempts, what)
					rfgRetried(w, got, attempts, err)
				}
				b := w.breaker(breaker.WithRetry(retry...), breaker.WithClassifier(func(err error) breaker.Outcome {
					if rfgTransient(err) {
						return breaker.Failure
					}
					return breaker.Ignored
				}))
				f := w.fn(err)
				_, got := b.Do(w.Context(), f.call)
				check(f, got, "by the classifier")

				retry = append(retry, breaker.RetryIf(rfgTransient))
				f = w.fn(err)
				_, got = w.breaker(breaker.WithRetry(retry...)).Do(w.Context(), f.call)
				check(f, got, "by RetryIf")

				f = w.fn(err)
				_, got = rfgByRetry.make(w, nil, retry...)(w.Context(), f.call)
				check(f, got, "free-standing, by RetryIf")
			})
		})
	}
}

// RetryIf can only say no.
func TestR07_RetryIfOnlySaysNo(t *testing.T) {
	always := breaker.RetryIf(func(error) bool { return true })
	rfgBoth(t, func(w *rfgWorld) {
		for name, opts := range map[string][]breaker.Option{
			"ignored by the list":       {breaker.WithIgnore(errBoom)},
			"ignored by the classifier": {breaker.WithClassifier(func(error) breaker.Outcome { return breaker.Ignored })},
			"ignored by the result":     {breaker.WithResult(func(int, error) breaker.Outcome { return breaker.Ignored })},
			"a success":                 {breaker.WithClassifier(func(error) breaker.Outcome { return breaker.Success })},
			"forced open":               {breaker.WithMode(breaker.ForcedOpen)},
		} {
			f := w.fn(errBoom)
			b := w.breaker(append(opts, breaker.WithRetry(breaker.MaxRetries(3), always))...)
			r := b.Try(w.Context(), f.call)
			require.Error(w, r.Err, name)
			require.LessOrEqual(w, len(f.at), 1, name)
			require.Equal(w, len(f.at), r.Attempts, name)
			require.Zero(w, w.elapsed(), name)
		}
		// A rejection by a circuit or limiter further in, and the caller's own cancel.
		for _, err := range []error{breaker.ErrOpen, breaker.ErrTooManyInFlight, fmt.Errorf("inner: %w", breaker.ErrOpen)} {
			for _, way := range rfgWays {
				f := w.fn(err)
				_, got := way.make(w, nil, breaker.MaxRetries(3), always)(w.Context(), f.call)
				require.ErrorIs(w, got, err)
				require.Len(w, f.at, 1, way.name)
			}
		}
		for _, way := range rfgWays {
			if way.name == "Do with a call option" {
				continue // its classifier asks WithResult, which the cancel comes before all the same
			}
			ctx, cancel := context.WithCancel(w.Context())
			runs := 0
			_, err := way.make(w, nil, breaker.MaxRetries(3), always)(ctx, func(context.Context) (int, error) { runs++; cancel(); return 0, errBoom })
			require.Equal(w, errBoom, err, way.name)
			require.Equal(w, 1, runs, way.name)
		}
	})
	t.Run("it is told of each failure, in order", func(t *testing.T) {
		rfgEveryWay(t, func(w *rfgWorld, way rfgWay) {
			var told []error
			e1, e2, e3 := errors.New("1"), errors.New("2"), errors.New("3")
			f := w.fn(e1, e2, e3)
			_, err := way.make(w, nil, breaker.MaxRetries(9), breaker.RetryIf(func(err error) bool {
				told = append(told, err)
				return err != e3
			}))(w.Context(), f.call)
			require.Equal(w, []error{e1, e2, e3}, told)
			rfgRetried(w, err, 3, e3)
		})
	})
	t.Run("a value that counts as a failure is ErrUnacceptable", func(t *testing.T) {
		rfgBoth(t, func(w *rfgWorld) {
			var told []error
			f := w.fn(nil)
			b := w.breaker(
				breaker.WithResult(func(v int, _ error) breaker.Outcome {
					if v < 3 {
						return breaker.Failure
					}
					return breaker.Success
				}),
				breaker.WithRetry(breaker.MaxRetries(9), breaker.RetryIf(func(err error) bool { told = append(told, err); return true })))
			r := b.Try(w.Context(), f.call)
			require.Equal(w, breaker.Result[int]{Value: 3, Attempts: 3, Rescue: breaker.RescueRetry}, r)
			require.Equal(w, []error{breaker.ErrUnacceptable, breaker.ErrUnacceptable}, told)
		})
	})
}

// rfgEvents keeps what the hooks say about retries and rescues.
type rfgEvents struct {
	mu      sync.Mutex
	retries []breaker.RetryEvent
	rescues []breaker.RescueEvent
	rejects []breaker.RejectEvent
	store   []error
}

func (e *rfgEvents) option() breaker.Option {
	return breaker.WithHooks(breaker.Hooks{
		Retry: func(_ context.Context, r breaker.RetryEvent) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.retries = append(e.retries, r)
		},
		Rescue: func(_ context.Context, r breaker.RescueEvent) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.rescues = append(e.rescues, r)
		},
		Reject: func(_ context.Context, r breaker.RejectEvent) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.rejects = append(e.rejects, r)
		},
		StoreError: func(err error) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.store = append(e.store, err)
		},
	})
}

func (e *rfgEvents) storeErrors() []error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]error(nil), e.store...)
}

func TestR08_OpenCircuitEndsTheLoop(t *testing.T) {
	retry := breaker.WithRetry(breaker.MaxRetries(3), breaker.Constant(time.Second), breaker.NoJitter())
	for _, opensAt := range []int{1, 2, 4} {
		t.Run(fmt.Sprint("opens at attempt ", opensAt), func(t *testing.T) {
			rfgBoth(t, func(w *rfgWorld) {
				var events rfgEvents
				b := w.breaker(retry, breaker.WithFailureThreshold(opensAt), events.option())
				f := w.fn(errBoom)
				r := b.Try(w.Context(), f.call)
				require.Equal(w, rfgSeconds(0, 1, 2, 3)[:opensAt], f.at)
				require.Equal(w, f.at[len(f.at)-1], w.elapsed(), "no wait after the circuit has opened")
				require.Equal(w, opensAt, r.Attempts)
				rfgRetried(w, r.Err, opensAt, errBoom)
				if opensAt < 4 { // after the last attempt there was nothing left to end
					require.ErrorIs(w, r.Err, breaker.ErrOpen)
					var open *breaker.OpenError
					require.ErrorAs(w, r.Err, &open)
					require.Equal(w, errBoom, open.Cause)
				}
				require.Len(w, events.retries, opensAt-1)
				s := b.Snapshot()
				require.EqualValues(w, opensAt-1, s.Totals.Retries)
				require.Zero(w, s.Totals.Rejected, "nothing was rejected: it was not asked")
				require.Equal(w, breaker.Open, s.State)
			})
		})
	}
	t.Run("opened by somebody else during the wait", func(t *testing.T) {
		rfgBoth(t, func(w *rfgWorld) {
			var b *breaker.Breaker[int]
			b = w.breaker(retry, breaker.WithHooks(breaker.Hooks{Retry: func(context.Context, breaker.RetryEvent) { b.Circuit().Trip(nil) }}))
			f := w.fn(errBoom)
			r := b.Try(w.Context(), f.call)
			require.Len(w, f.at, 1)
			require.Equal(w, 1, r.Attempts)
			require.ErrorIs(w, r.Err, errBoom)
			require.ErrorIs(w, r.Err, breaker.ErrOpen)
			require.Zero(w, b.Snapshot().Totals.Retries, "the retry never ran")
			require.EqualValues(w, 1, b.Snapshot().Totals.Rejected)
		})
	})
	t.Run("a failed probe is not retried", func(t *testing.T) {
		rfgBoth(t, func(w *rfgWorld) {
			b := w.breaker(retry)
			b.Circuit().Trip(errBoom)
			w.at(30 * time.Second)
			f := w.fn(errBoom)
			r := b.Try(w.Context(), f.call)
			require.Equal(w, rfgSeconds(30), f.at)
			require.ErrorIs(w, r.Err, errBoom)
			require.ErrorIs(w, r.Err, breaker.ErrOpen)
			require.Equal(w, 30*time.Second, w.elapsed())
		})
	})
	t.Run("forced open in between", func(t *testing.T) {
		rfgBoth(t, func(w *rfgWorld) {
			b := w.breaker(retry)
			runs := 0
			_, err := b.Do(w.Context(), func(context.Context) (int, error) {
				runs++
				b.Circuit().SetMode(breaker.ForcedOpen)
				return 0, errBoom
			})
			require.ErrorIs(w, err, errBoom)
			require.ErrorIs(w, err, breaker.ErrOpen)
			require.Equal(w, 1, runs)
			require.Zero(w, w.elapsed())
		})
	})
	t.Run("forced closed and shadow go on", func(t *testing.T) {
		for _, mode := range []breaker.Mode{breaker.ForcedClosed, breaker.Shadow} {
			rfgBoth(t, func(w *rfgWorld) {
				f := w.fn(errBoom)
				_, err := w.breaker(retry, breaker.WithFailureThreshold(1), breaker.WithMode(mode)).Do(w.Context(), f.call)
				rfgRetried(w, err, 4, errBoom)
			})
		}
	})
}

func TestR09_EveryAttemptCountsSingly(t *testing.T) {
	rfgBoth(t, func(w *rfgWorld) {
		var calls []breaker.CallEvent
		b := w.breaker(breaker.WithRetry(breaker.MaxRetries(3)), breaker.WithHooks(breaker.Hooks{
			Call: func(_ context.Context, c breaker.CallEvent) { calls = append(calls, c) },
		}))
		f := w.fn(errBoom)
		r := b.Try(w.Context(), f.call)
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

// rfgAsked is a fake clock that says what it is asked to wait for, and does not move by itself.
type rfgAsked struct {
	*clock.Mock
	asked chan time.Duration
}

func rfgAskedClock() *rfgAsked {
	c := &rfgAsked{clock.NewMock(), make(chan time.Duration, 100)}
	c.Set(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	return c
}

func (c *rfgAsked) After(d time.Duration) <-chan time.Time {
	done := c.Mock.After(d)
	c.asked <- d
	return done
}

func TestR10_CancelDuringAWait(t *testing.T) {
	opts := []breaker.RetryOption{breaker.MaxRetries(4), breaker.Constant(500 * time.Millisecond), breaker.NoJitter()}
	for _, way := range rfgWays {
		t.Run(way.name, func(t *testing.T) {
			rfgBubble(t, func(w *rfgWorld) {
				ctx, cancel := context.WithCancel(w.Context())
				defer time.AfterFunc(100*time.Millisecond, cancel).Stop()
				f := w.fn(errBoom)
				_, err := way.make(w, nil, opts...)(ctx, f.call)
				require.Equal(w, 100*time.Millisecond, w.elapsed())
				require.Len(w, f.at, 1)
				require.ErrorIs(w, err, context.Canceled)
				require.ErrorIs(w, err, errBoom)
			})
		})
	}
	t.Run("injected clock", func(t *testing.T) {
		guard(t, patience, func() {
			clk := rfgAskedClock()
			start := clk.Now()
			b := breaker.Must(breaker.New[int]("test", breaker.WithClock(clk), breaker.WithRetry(opts...)))
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() {
				_, err := b.Do(ctx, func(context.Context) (int, error) { return 0, errBoom })
				done <- err
			}()
			require.Equal(t, 500*time.Millisecond, <-clk.asked)
			clk.Add(100 * time.Millisecond)
			cancel()
			err := <-done
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, errBoom)
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
		{"2s", 2 * time.Second, rfgSeconds(0, 1)},
		{"just not", 3 * time.Second, rfgSeconds(0, 1)},
		{"just", 3*time.Second + 1, rfgSeconds(0, 1, 3)},
		{"none fits", time.Second, rfgSeconds(0)},
		{"all fit", time.Minute, rfgSeconds(0, 1, 3, 7)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rfgEveryWay(t, func(w *rfgWorld, way rfgWay) {
				ctx, cancel := w.deadline(tc.deadline)
				defer cancel()
				f := w.fn(errBoom)
				_, err := way.make(w, nil, breaker.MaxRetries(3), breaker.Exponential(time.Second, 10*time.Second), breaker.NoJitter())(ctx, f.call)
				require.Equal(w, tc.at, f.at)
				require.Equal(w, tc.at[len(tc.at)-1], w.elapsed())
				rfgRetried(w, err, len(tc.at), errBoom)
				require.Equal(w, len(tc.at) < 4, errors.Is(err, context.DeadlineExceeded))
			})
		})
	}
	// With a fake clock far from the machine's time, a real deadline says nothing about it.
	t.Run("a deadline by another clock", func(t *testing.T) {
		for _, year := range []int{1970, 2030} {
			clk := &rfgClock{clock.NewMock()}
			clk.Set(time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC))
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			runs := 0
			b := breaker.Must(breaker.New[int]("test", breaker.WithClock(clk), breaker.WithRetry(breaker.MaxRetries(2))))
			_, err := b.Do(ctx, func(context.Context) (int, error) { runs++; return 0, errBoom })
			rfgRetried(t, err, 3, errBoom)
			require.Equal(t, 3, runs)
		}
	})
}

// A function that heeds its context, under a deadline: the caller's deadline ends the loop.
func TestR11_DeadlineDuringAnAttempt(t *testing.T) {
	for _, way := range rfgWays {
		t.Run(way.name, func(t *testing.T) {
			rfgBubble(t, func(w *rfgWorld) {
				ctx, cancel := w.deadline(2 * time.Second)
				defer cancel()
				runs := 0
				_, err := way.make(w, nil, breaker.MaxRetries(9), breaker.Constant(time.Second), breaker.NoJitter())(ctx, func(ctx context.Context) (int, error) {
					if runs++; runs == 1 {
						return 0, errBoom
					}
					<-ctx.Done()
					return 0, ctx.Err()
				})
				require.Equal(w, 2*time.Second, w.elapsed())
				require.Equal(w, 2, runs)
				rfgRetried(w, err, 2, context.DeadlineExceeded)
			})
		})
	}
}

func TestR12_AttemptTimeout(t *testing.T) {
	rfgBubble(t, func(w *rfgWorld) {
		b := w.breaker(breaker.WithTimeout(time.Second), breaker.WithRetry(breaker.MaxRetries(1), breaker.Constant(0)))
		var at []time.Duration
		_, err := b.Do(w.Context(), func(ctx context.Context) (int, error) {
			at = append(at, w.elapsed())
			<-ctx.Done()
			return 0, ctx.Err()
		})
		require.Equal(w, rfgSeconds(0, 1), at)
		require.Equal(w, 2*time.Second, w.elapsed())
		rfgRetried(w, err, 2, context.DeadlineExceeded)
		require.EqualValues(w, 2, b.Snapshot().ConsecutiveFailures)
	})
}

func TestR13_HintsAreWaitedFor(t *testing.T) {
	for _, tc := range []struct {
		name string
		hint error
		opts []breaker.RetryOption
		at   []time.Duration
	}{
		{"longer than the backoff", hint(3 * time.Second), nil, rfgSeconds(0, 3)},
		{"wrapped", fmt.Errorf("busy: %w", hint(3*time.Second)), nil, rfgSeconds(0, 3)},
		{"joined", errors.Join(errBoom, hint(3*time.Second)), nil, rfgSeconds(0, 3)},
		{"shorter than the backoff", hint(time.Millisecond), nil, rfgSeconds(0, 0.1)},
		{"zero", hint(0), nil, rfgSeconds(0, 0.1)},
		{"negative", hint(-3 * time.Second), nil, rfgSeconds(0, 0.1)},
		{"most negative", hint(math.MinInt64), nil, rfgSeconds(0, 0.1)},
		{"at the default cap, the backoff's max", hint(10 * time.Second), nil, rfgSeconds(0, 10)},
		{"above the default cap", hint(10*time.Second + 1), nil, rfgSeconds(0)},
		{"at a cap", hint(time.Hour), []breaker.RetryOption{breaker.RetryAfterCap(time.Hour)}, rfgSeconds(0, 3600)},
		{"above a cap", hint(time.Hour + 1), []breaker.RetryOption{breaker.RetryAfterCap(time.Hour)}, rfgSeconds(0)},
		{"a cap below the backoff", hint(50 * time.Millisecond), []breaker.RetryOption{breaker.RetryAfterCap(50 * time.Millisecond)}, rfgSeconds(0, 0.1)},
		{"no hint goes with a cap of 0", hint(1), []breaker.RetryOption{breaker.RetryAfterCap(0)}, rfgSeconds(0)},
		{"a cap of 0 leaves the rest alone", errBoom, []breaker.RetryOption{breaker.RetryAfterCap(0)}, rfgSeconds(0, 0.1)},
		{"the cap follows Exponential", hint(time.Minute), []breaker.RetryOption{breaker.Exponential(100*time.Millisecond, time.Minute)}, rfgSeconds(0, 60)},
		{"the cap follows Constant", hint(20 * time.Second), []breaker.RetryOption{breaker.Constant(20 * time.Second)}, rfgSeconds(0, 20)},
		{"the cap in front of the backoff", hint(15 * time.Second), []breaker.RetryOption{breaker.RetryAfterCap(15 * time.Second), breaker.Constant(time.Second)}, rfgSeconds(0, 15)},
		{"as long as there is", hint(math.MaxInt64), []breaker.RetryOption{breaker.RetryAfterCap(1 << 62)}, rfgSeconds(0)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rfgEveryWay(t, func(w *rfgWorld, way rfgWay) {
				f := w.fn(tc.hint, nil)
				v, err := way.make(w, nil, append([]breaker.RetryOption{breaker.MaxRetries(1), breaker.NoJitter()}, tc.opts...)...)(w.Context(), f.call)
				require.Equal(w, tc.at, f.at)
				require.Equal(w, len(tc.at), v)
				require.Equal(w, tc.at[len(tc.at)-1], w.elapsed())
				if len(tc.at) == 1 {
					require.Equal(w, tc.hint, err, "the dependency's own answer")
					return
				}
				require.NoError(w, err)
			})
		})
	}
	t.Run("a hint that does not fit the deadline", func(t *testing.T) {
		rfgEveryWay(t, func(w *rfgWorld, way rfgWay) {
			ctx, cancel := w.deadline(2 * time.Second)
			defer cancel()
			f := w.fn(hint(3 * time.Second))
			_, err := way.make(w, nil, breaker.MaxRetries(3))(ctx, f.call)
			require.Len(w, f.at, 1)
			require.Zero(w, w.elapsed())
			require.ErrorIs(w, err, hint(3*time.Second))
			require.ErrorIs(w, err, context.DeadlineExceeded)
		})
	})
}

func TestR14_LastErrorAndAttemptCount(t *testing.T) {
	rfgEveryWay(t, func(w *rfgWorld, way rfgWay) {
		e := []error{errors.New("1"), errors.New("2"), errors.New("3"), &rfgTyped{"4"}}
		f := w.fn(e...)
		_, err := way.make(w, nil, breaker.MaxRetries(3))(w.Context(), f.call)
		rfgRetried(w, err, 4, e[3])
		var typed *rfgTyped
		require.ErrorAs(w, err, &typed)
		require.Contains(w, err.Error(), "4 attempts")
		require.Contains(w, err.Error(), "typed 4")
	})
}

type rfgTyped struct{ s string }

func (e *rfgTyped) Error() string { return "typed " + e.s }

// Retry goes round any function of any type, without a circuit.
func TestR15_AroundAnyFunction(t *testing.T) {
	type answer struct{ text string }
	rfgBoth(t, func(w *rfgWorld) {
		opts := []breaker.RetryOption{breaker.MaxRetries(3), breaker.Exponential(500*time.Millisecond, 10*time.Second), breaker.NoJitter()}
		if w.clk != nil {
			opts = append(opts, breaker.RetryClock(w.clk))
		}
		p, err := breaker.NewRetryPolicy(opts...)
		require.NoError(w, err)
		f := w.fn(errBoom)
		got, err := breaker.Retry(w.Context(), p, func(ctx context.Context) (answer, error) {
			_, err := f.call(ctx)
			return answer{fmt.Sprint("attempt ", len(f.at))}, err
		})
		rfgRetried(w, err, 4, errBoom)
		require.Equal(w, answer{"attempt 4"}, got)
		require.Equal(w, rfgSeconds(0, 0.5, 1.5, 3.5), f.at)

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
		require.Equal(t, "boom", panicOf(func() {
			_, _ = breaker.Retry(t.Context(), p, func(context.Context) (int, error) { runs++; panic("boom") })
		}))
		returned := false
		inGoroutine(func() {
			_, _ = breaker.Retry(t.Context(), p, func(context.Context) (int, error) { runs++; runtime.Goexit(); return 0, nil })
			returned = true
		})
		require.False(t, returned)
		require.Equal(t, 2, runs, "neither is retried")
	})
	t.Run("round a breaker", func(t *testing.T) {
		rfgBoth(t, func(w *rfgWorld) {
			b := w.breaker(breaker.WithFailureThreshold(2))
			f := w.fn(errBoom)
			_, err := rfgByRetry.make(w, nil, breaker.MaxRetries(9), breaker.NoJitter())(w.Context(), b.Wrap(f.call))
			require.Equal(w, rfgSeconds(0, 0.1), f.at)
			rfgRetried(w, err, 3, breaker.ErrOpen) // the function round the breaker ran once more, and was rejected
			require.Equal(w, 300*time.Millisecond, w.elapsed())
		})
	})
}

func TestR16_SuccessAfterARetryIsARescue(t *testing.T) {
	rfgBoth(t, func(w *rfgWorld) {
		var events rfgEvents
		b := w.breaker(breaker.WithRetry(breaker.MaxRetries(3), breaker.NoJitter()), events.option())
		r := b.Try(w.Context(), w.fn(nil).call)
		require.Equal(w, breaker.Result[int]{Value: 1, Attempts: 1}, r)
		require.Empty(w, events.rescues)

		e1, e2 := errors.New("1"), errors.New("2")
		r = b.Try(w.Context(), w.fn(e1, e2, nil).call)
		require.Equal(w, breaker.Result[int]{Value: 3, Attempts: 3, Rescue: breaker.RescueRetry}, r)
		require.Equal(w, []breaker.RescueEvent{{Name: "test", Kind: breaker.RescueRetry, Cause: e2}}, events.rescues)
		require.Equal(w, []breaker.RetryEvent{
			{Name: "test", Attempt: 1, Wait: 100 * time.Millisecond, Err: e1},
			{Name: "test", Attempt: 2, Wait: 200 * time.Millisecond, Err: e2},
		}, events.retries)

		r = b.Try(w.Context(), w.fn(errBoom).call)
		require.Empty(w, r.Rescue)
		require.Equal(w, map[breaker.Rescue]uint64{breaker.RescueRetry: 1}, b.Snapshot().Totals.Rescues)
		require.EqualValues(w, 5, b.Snapshot().Totals.Retries)
	})
	t.Run("an ignored end is none", func(t *testing.T) {
		rfgBoth(t, func(w *rfgWorld) {
			b := w.breaker(breaker.WithRetry(breaker.MaxRetries(3)), breaker.WithIgnore(errClient))
			r := b.Try(w.Context(), w.fn(errBoom, errClient).call)
			rfgRetried(w, r.Err, 2, errClient)
			require.Empty(w, r.Rescue)
			require.Empty(w, b.Snapshot().Totals.Rescues)
		})
	})
}

// A hook may do as it likes.
func TestRetryHooksAreContained(t *testing.T) {
	rfgBoth(t, func(w *rfgWorld) {
		b := w.breaker(breaker.WithRetry(breaker.MaxRetries(2)), breaker.WithHooks(breaker.Hooks{
			Retry:  func(context.Context, breaker.RetryEvent) { panic("hook") },
			Rescue: func(context.Context, breaker.RescueEvent) { panic("hook") },
		}))
		v, err := b.Do(w.Context(), w.fn(errBoom, nil).call)
		require.NoError(w, err)
		require.Equal(w, 2, v)
	})
}

func TestBC75_RetryStopsAtAnOpenCircuit(t *testing.T) {
	rfgBoth(t, func(w *rfgWorld) {
		var events rfgEvents
		b := w.breaker(breaker.WithOpenTimeout(10*time.Second), breaker.WithRetry(breaker.MaxRetries(3), breaker.Constant(time.Second)), events.option())
		b.Circuit().Trip(errBoom)
		w.at(2 * time.Second)
		f := w.fn(nil)
		r := b.Try(w.Context(), f.call)
		require.Equal(w, 2*time.Second, w.elapsed())
		require.Empty(w, f.at)
		require.Zero(w, r.Attempts)
		var open *breaker.OpenError
		require.ErrorAs(w, r.Err, &open)
		require.Equal(w, 8*time.Second, open.RetryAfter())
		require.Len(w, events.rejects, 1, "one admission was asked for")
		require.Empty(w, events.retries)
		require.EqualValues(w, 1, b.Snapshot().Totals.Rejected)
	})
	t.Run("no slot and no room", func(t *testing.T) {
		rfgBoth(t, func(w *rfgWorld) {
			b := w.breaker(breaker.WithMaxInFlight(1), breaker.WithRetry(breaker.MaxRetries(3), breaker.Constant(time.Second)))
			p, err := b.Circuit().Acquire(w.Context())
			require.NoError(w, err)
			r := b.Try(w.Context(), w.fn(nil).call)
			require.Equal(w, breaker.ErrTooManyInFlight, r.Err)
			require.Zero(w, r.Attempts)
			p.Done(nil)

			b.Circuit().Trip(nil)
			b.Circuit().OfferProbe()
			require.NoError(w, b.Circuit().Configure(breaker.WithMaxInFlight(0), breaker.WithHalfOpenProbes(1)))
			_, err = b.Circuit().Acquire(w.Context())
			require.NoError(w, err)
			r = b.Try(w.Context(), w.fn(nil).call)
			require.ErrorIs(w, r.Err, breaker.ErrTooManyProbes)
			require.Zero(w, r.Attempts)
			require.Zero(w, w.elapsed())
		})
	})
}

func TestBC77_CompositionDecidesWhatAFailureIs(t *testing.T) {
	retry := []breaker.RetryOption{breaker.MaxRetries(2), breaker.Constant(0)}
	rfgBoth(t, func(w *rfgWorld) {
		inside := w.breaker(breaker.WithFailureThreshold(3), breaker.WithRetry(retry...))
		f := w.fn(errBoom)
		_, _ = inside.Do(w.Context(), f.call)
		require.Len(w, f.at, 3)
		require.Equal(w, breaker.Open, inside.State(), "each attempt counts")

		outside := w.breaker(breaker.WithFailureThreshold(3))
		p := breaker.Must(breaker.NewRetryPolicy(retry...))
		f = w.fn(errBoom)
		for i := range 3 {
			require.Equal(w, breaker.Closed, outside.State(), "after %d calls", i)
			_, _ = outside.Do(w.Context(), func(ctx context.Context) (int, error) { return breaker.Retry(ctx, p, f.call) })
		}
		require.Len(w, f.at, 9)
		require.Equal(w, breaker.Open, outside.State(), "each call counts")
	})
}

func TestBC79_CancelDuringTheWaitEndsIt(t *testing.T) {
	opts := []breaker.RetryOption{breaker.MaxRetries(4), breaker.Constant(10 * time.Second), breaker.NoJitter()}
	for _, way := range rfgWays {
		t.Run(way.name, func(t *testing.T) {
			rfgBubble(t, func(w *rfgWorld) {
				ctx, cancel := context.WithCancel(w.Context())
				defer time.AfterFunc(3*time.Second, cancel).Stop()
				f := w.fn(errBoom)
				_, err := way.make(w, nil, opts...)(ctx, f.call)
				require.Equal(w, 3*time.Second, w.elapsed())
				require.Len(w, f.at, 1)
				require.ErrorIs(w, err, context.Canceled)
				require.ErrorIs(w, err, errBoom)

				// A success that is there already is returned, whatever has happened to the context.
				ctx, cancel = context.WithCancel(w.Context())
				v, err := way.make(w, nil, opts...)(ctx, func(context.Context) (int, error) { cancel(); return 7, nil })
				require.NoError(w, err)
				require.Equal(w, 7, v)

				runs := 0
				ctx, cancel = context.WithCancel(w.Context())
				v, err = way.make(w, nil, opts...)(ctx, func(context.Context) (int, error) {
					if runs++; runs == 1 {
						return 0, errBoom
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
			rfgEveryWay(t, func(w *rfgWorld, way rfgWay) {
				runs := 0
				_, err := way.make(w, nil, breaker.MaxRetries(n), breaker.Constant(0))(w.Context(), func(context.Context) (int, error) {
					if runs++; runs > 10_000 {
						panic("endless")
					}
					return 0, errBoom
				})
				require.Equal(w, n+1, runs)
				rfgRetried(w, err, n+1, errBoom)
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
	rfgBubble(t, func(w *rfgWorld) {
		for _, base := range delays {
			for _, most := range caps {
				for name, jitter := range jitters {
					var events rfgEvents
					b := w.breaker(rfgFar, events.option(), breaker.WithRetry(breaker.MaxRetries(50), breaker.Exponential(base, most), jitter))
					for range 4 {
						events.retries = nil
						_, _ = b.Do(w.Context(), w.fn(errBoom).call)
						require.Len(w, events.retries, 50)
						for i, e := range events.retries {
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
	for _, share := range []float64{-0.1, 1.1, math.NaN(), math.Inf(1), math.Inf(-1)} {
		_, err := breaker.NewRetryPolicy(breaker.AddJitter(share))
		require.ErrorContains(t, err, "AddJitter")
	}
}

func TestBC84_ExhaustionTellsWhatHappened(t *testing.T) {
	rfgEveryWay(t, func(w *rfgWorld, way rfgWay) {
		e1, e2, e3 := errors.New("1"), errors.New("2"), errors.New("3")
		_, err := way.make(w, nil, breaker.MaxRetries(2))(w.Context(), w.fn(e1, e2, e3).call)
		rfgRetried(w, err, 3, e3)
		require.NotContains(w, err.Error(), "%!")

		_, err = way.make(w, nil, breaker.MaxRetries(2), breaker.RetryIf(func(error) bool { return false }))(w.Context(), w.fn(e1).call)
		require.Equal(w, e1, err, "not worth a retry: the same error")
		_, err = way.make(w, nil)(w.Context(), w.fn(e1).call)
		require.Equal(w, e1, err, "retries off: the same error")
	})
}

func TestBC85_AttemptTimeoutUsesUpAnAttempt(t *testing.T) {
	rfgBubble(t, func(w *rfgWorld) {
		b := w.breaker(breaker.WithTimeout(time.Second), breaker.WithRetry(breaker.MaxRetries(2), breaker.Constant(250*time.Millisecond), breaker.NoJitter()))
		ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
		defer cancel()
		runs := 0
		r := b.Try(ctx, func(ctx context.Context) (int, error) {
			if runs++; runs == 1 {
				<-ctx.Done()
				return 0, ctx.Err()
			}
			require.NoError(w, ctx.Err(), "each attempt has a timeout of its own")
			return 7, nil
		})
		require.Equal(w, breaker.Result[int]{Value: 7, Attempts: 2, Rescue: breaker.RescueRetry}, r)
		require.Equal(w, 1250*time.Millisecond, w.elapsed())
		totals := b.Snapshot().Totals
		require.EqualValues(w, 1, totals.Failures)
		require.EqualValues(w, 1, totals.Successes)
	})
	t.Run("injected clock", func(t *testing.T) {
		guard(t, patience, func() {
			clk := rfgAskedClock()
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
		rfgBubble(t, func(w *rfgWorld) {
			b := w.breaker(breaker.WithTimeout(time.Second), breaker.WithRetry(breaker.MaxRetries(2)), breaker.WithFallbackValue(-1))
			r := b.Try(w.Context(), func(context.Context) (int, error) { <-time.After(2 * time.Second); return 7, nil })
			require.Equal(w, breaker.Result[int]{Value: 7, Attempts: 1}, r)
			require.EqualValues(w, 1, b.Snapshot().Totals.Failures)
		})
	})
}

func TestBC86_HintsAreBounded(t *testing.T) {
	for _, h := range []time.Duration{time.Hour, 365 * 24 * time.Hour, 484_289 * time.Hour, math.MaxInt64} {
		rfgEveryWay(t, func(w *rfgWorld, way rfgWay) {
			f := w.fn(hint(h))
			_, err := way.make(w, nil, breaker.MaxRetries(9))(w.Context(), f.call)
			require.Equal(w, hint(h), err)
			require.Len(w, f.at, 1)
			require.Zero(w, w.elapsed())
		})
	}
}

func TestBC89_SenselessHintsAreNone(t *testing.T) {
	for _, h := range []time.Duration{0, -1, -5 * time.Second, math.MinInt64} {
		rfgEveryWay(t, func(w *rfgWorld, way rfgWay) {
			f := w.fn(hint(h))
			_, err := way.make(w, nil, breaker.MaxRetries(2), breaker.Constant(2*time.Second), breaker.NoJitter())(w.Context(), f.call)
			require.Equal(w, rfgSeconds(0, 2, 4), f.at)
			rfgRetried(w, err, 3, hint(h))
		})
	}
}

// The failure that opens the circuit lengthens its open period, ends the retries, and comes out as it was.
func TestBC90_HintThatOpensTheCircuit(t *testing.T) {
	rfgBoth(t, func(w *rfgWorld) {
		b := w.breaker(breaker.WithFailureThreshold(3), breaker.WithOpenTimeout(10*time.Second),
			breaker.WithRetry(breaker.MaxRetries(5), breaker.Constant(0), breaker.RetryAfterCap(time.Minute)))
		f := w.fn(errBoom, errBoom, hint(25*time.Second))
		_, err := b.Do(w.Context(), f.call)
		rfgRetried(w, err, 3, hint(25*time.Second))
		var open *breaker.OpenError
		require.ErrorAs(w, err, &open)
		require.Equal(w, 25*time.Second, open.RetryAfter())
		require.Zero(w, w.elapsed())
	})
}

func TestMaxElapsedBoundsAttemptsAndWaits(t *testing.T) {
	for _, tc := range []struct {
		name string
		most time.Duration
		took time.Duration // by each attempt
		at   []time.Duration
	}{
		{"none", 0, 0, rfgSeconds(0, 1, 2, 3, 4, 5)},
		{"of waits", 2500 * time.Millisecond, 0, rfgSeconds(0, 1, 2)},
		{"a wait that would end with it", 2 * time.Second, 0, rfgSeconds(0, 1)},
		{"a wait that ends before it", 2*time.Second + 1, 0, rfgSeconds(0, 1, 2)},
		{"attempts count", 5 * time.Second, time.Second, rfgSeconds(0, 2, 4)},
		{"one attempt longer than it", time.Second, 3 * time.Second, rfgSeconds(0)},
		{"tiny", 1, 0, rfgSeconds(0)},
		{"as long as there is", 1 << 62, 0, rfgSeconds(0, 1, 2, 3, 4, 5)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rfgEveryWay(t, func(w *rfgWorld, way rfgWay) {
				f := w.fn(errBoom)
				_, err := way.make(w, nil, breaker.MaxRetries(5), breaker.Constant(time.Second), breaker.NoJitter(), breaker.MaxElapsed(tc.most))(w.Context(), func(ctx context.Context) (int, error) {
					v, err := f.call(ctx)
					w.at(w.elapsed() + tc.took)
					return v, err
				})
				require.Equal(w, tc.at, f.at)
				rfgRetried(w, err, len(tc.at), errBoom)
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
		"NewCircuit": rfgErr(breaker.NewCircuit("c", breaker.WithRetry())),
		"Configure":  breaker.Must(breaker.NewCircuit("c")).Configure(breaker.WithRetry()),
	} {
		require.ErrorContains(t, err, "Retry", what)
	}
}

func rfgErr[T any](_ T, err error) error { return err }

// Of one option given twice the later wins, so an earlier WithRetry leaves nothing behind.
func TestLaterWithRetryReplacesTheEarlier(t *testing.T) {
	rfgBoth(t, func(w *rfgWorld) {
		f := w.fn(errBoom)
		b := w.breaker(breaker.WithRetry(breaker.MaxRetries(9), breaker.Constant(time.Hour)), breaker.WithRetry(breaker.MaxRetries(1), breaker.NoJitter()))
		_, _ = b.Do(w.Context(), f.call)
		require.Equal(w, rfgSeconds(0, 0.1), f.at)
	})
}

// Two views of one circuit have retries of their own.
func TestViewsRetryForThemselves(t *testing.T) {
	rfgBoth(t, func(w *rfgWorld) {
		b := w.breaker(breaker.WithRetry(breaker.MaxRetries(2), breaker.Constant(0)))
		plain := breaker.Must(breaker.Over[string](b.Circuit()))
		eager := breaker.Must(breaker.Over[string](b.Circuit(), breaker.WithRetry(breaker.MaxRetries(1), breaker.Constant(0))))
		r := plain.Try(w.Context(), func(context.Context) (string, error) { return "", errBoom })
		require.Equal(w, 1, r.Attempts)
		r = eager.Try(w.Context(), func(context.Context) (string, error) { return "", errBoom })
		require.Equal(w, 2, r.Attempts)
		require.EqualValues(w, 3, b.Snapshot().ConsecutiveFailures, "on one circuit")
	})
}

// Extreme values neither overflow nor panic nor loop.
func TestRetryExtremes(t *testing.T) {
	const most = time.Duration(1 << 62)
	rfgBubble(t, func(w *rfgWorld) {
		for name, opts := range map[string][]breaker.RetryOption{
			"everything as large as it goes": {breaker.MaxRetries(math.MaxInt32), breaker.Exponential(most, most), breaker.AddJitter(1), breaker.MaxElapsed(most), breaker.RetryAfterCap(most)},
			"a constant as large as it goes": {breaker.MaxRetries(math.MaxInt32), breaker.Constant(most), breaker.FullJitter()},
		} {
			ctx, cancel := context.WithTimeout(w.Context(), time.Hour)
			for _, way := range rfgWays {
				f := w.fn(hint(math.MaxInt64 / 4))
				_, err := way.make(w, func() float64 { return 0.9999999999999999 }, opts...)(ctx, f.call)
				require.Error(w, err, name)
				require.Len(w, f.at, 1, name)
			}
			cancel()
			require.Zero(w, w.elapsed())
		}
		// 5,000 doublings of a nanosecond.
		var events rfgEvents
		b := w.breaker(rfgFar, events.option(), breaker.WithRetry(breaker.MaxRetries(5000), breaker.Exponential(1, time.Second), breaker.AddJitter(1)))
		r := b.Try(w.Context(), w.fn(errBoom).call)
		require.Equal(w, 5001, r.Attempts)
		for i, e := range events.retries {
			require.Positive(w, e.Wait)
			require.LessOrEqual(w, e.Wait, time.Second)
			if i > 40 {
				require.Equal(w, time.Second, e.Wait)
			}
		}
	})
}

// The properties of a retried call, whatever is configured: the number of attempts, the sum of the waits, the bounds of
// each, and no wait past a deadline.
func TestRetryProperties(t *testing.T) {
	rfgBubble(t, func(w *rfgWorld) {
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
			var events rfgEvents
			b := breaker.Must(breaker.New[int]("test", rfgFar, events.option(), breaker.WithRetry(opts...)))

			start := time.Now()
			var busy time.Duration
			var ends []error
			r := b.Try(ctx, func(ctx context.Context) (int, error) {
				took := duration("took", 2*time.Second)
				select {
				case <-time.After(took):
					busy += took
				case <-ctx.Done():
					busy += time.Since(start) - busy - rfgSum(events.retries)
					ends = append(ends, ctx.Err())
					return 0, ctx.Err()
				}
				end := rapid.SampledFrom([]error{errBoom, errBoom, errBoom, hint(duration("hint", 30*time.Second)), nil}).Draw(t, "end")
				ends = append(ends, end)
				return len(ends), end
			})
			total := time.Since(start)

			if r.Attempts != len(ends) || r.Attempts < 1 || r.Attempts > n+1 {
				t.Fatalf("%d attempts, %d runs, %d retries allowed", r.Attempts, len(ends), n)
			}
			if got := b.Snapshot().Totals; got.Retries != uint64(len(events.retries)) || got.Calls != uint64(len(ends)) || len(events.retries) != len(ends)-1 {
				t.Fatalf("totals %+v, events %v", got, events.retries)
			}
			if sum := rfgSum(events.retries); total != busy+sum {
				t.Fatalf("it took %v: %v of attempts and %v of waits", total, busy, sum)
			}
			for i, e := range events.retries {
				var h hint
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

func rfgSum(all []breaker.RetryEvent) (sum time.Duration) {
	for _, e := range all {
		sum += e.Wait
	}
	return sum
}

func rfgBudget(t require.TestingT, ratio float64, reserve int, window time.Duration) *breaker.Budget {
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
	rfgBudget(t, 0, 0, 1)
	rfgBudget(t, math.MaxFloat64, math.MaxInt32, 1<<62)
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
			rfgEveryWay(t, func(w *rfgWorld, way rfgWay) {
				call := way.make(w, nil, breaker.MaxRetries(1), breaker.Constant(0), breaker.WithBudget(rfgBudget(w, tc.ratio, tc.reserve, time.Minute)))
				runs := 0
				for range tc.calls {
					_, err := call(w.Context(), func(context.Context) (int, error) { runs++; return 0, errBoom })
					require.ErrorIs(w, err, errBoom)
				}
				require.Equal(w, tc.calls+tc.want, runs)
			})
		})
	}
}

// A budget has a window: what was used comes back, and what was earned goes.
func TestBudgetIsWindowed(t *testing.T) {
	rfgEveryWay(t, func(w *rfgWorld, way rfgWay) {
		budget := rfgBudget(w, 0.5, 1, 10*time.Second)
		call := way.make(w, nil, breaker.MaxRetries(1), breaker.Constant(0), breaker.WithBudget(budget))
		attempts := func(err error) int {
			f := w.fn(err)
			_, _ = call(w.Context(), f.call)
			return len(f.at)
		}
		require.Equal(w, 2, attempts(errBoom), "the reserve")
		for range 5 {
			require.Equal(w, 1, attempts(nil))
		}
		w.at(5 * time.Second)
		for i, want := range []int{2, 2, 2, 2, 2, 2, 1} { // 7 to 13 calls allow 4, 5, 5, 6, 6, 7, 7 retries; one was before
			require.Equal(w, want, attempts(errBoom), "call %d", i)
		}
		w.at(10 * time.Second) // six calls and one retry are gone: 7 calls, 6 retries
		require.Equal(w, 1, attempts(errBoom), "8 calls allow 5")
		for range 3 {
			require.Equal(w, 1, attempts(nil))
		}
		require.Equal(w, 2, attempts(errBoom), "12 calls allow 7")
		w.at(time.Hour)
		require.Equal(w, 2, attempts(errBoom), "the reserve again")
		require.Equal(w, 2, attempts(errBoom), "2 calls allow 2")
		require.Equal(w, 1, attempts(errBoom))
	})
}

// What was used comes back in the middle of a call, too.
func TestBudgetGoesByTheTimeOfTheRetry(t *testing.T) {
	rfgEveryWay(t, func(w *rfgWorld, way rfgWay) {
		for _, took := range []time.Duration{time.Second - 1, time.Second} {
			call := way.make(w, nil, breaker.MaxRetries(5), breaker.Constant(0), breaker.WithBudget(rfgBudget(w, 0, 1, time.Second)))
			runs := 0
			_, _ = call(w.Context(), func(context.Context) (int, error) {
				if runs++; runs == 2 {
					w.at(w.elapsed() + took)
				}
				return 0, errBoom
			})
			require.Equal(w, map[time.Duration]int{time.Second - 1: 2, time.Second: 3}[took], runs)
		}
	})
}

func TestBudgetIsShared(t *testing.T) {
	rfgBoth(t, func(w *rfgWorld) {
		retry := breaker.WithRetry(breaker.MaxRetries(1), breaker.Constant(0), breaker.WithBudget(rfgBudget(w, 0, 3, time.Minute)))
		a, b := w.breaker(rfgFar, retry), w.breaker(rfgFar, retry)
		view := breaker.Must(breaker.Over[int](a.Circuit(), retry))
		runs := 0
		fails := func(context.Context) (int, error) { runs++; return 0, errBoom }
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
	rfgBoth(t, func(w *rfgWorld) {
		budget := rfgBudget(w, 0, 1, time.Hour)
		var events rfgEvents
		with := func(opts ...breaker.RetryOption) *breaker.Breaker[int] {
			return w.breaker(rfgFar, events.option(), breaker.WithRetry(append(opts, breaker.WithBudget(budget))...))
		}
		ctx, cancel := w.deadline(time.Second)
		defer cancel()
		for name, opts := range map[string][]breaker.RetryOption{
			"off":                  {},
			"not worth it":         {breaker.MaxRetries(1), breaker.RetryIf(func(error) bool { return false })},
			"does not fit":         {breaker.MaxRetries(1), breaker.Constant(time.Minute)},
			"longer than it may":   {breaker.MaxRetries(1), breaker.Constant(time.Minute), breaker.MaxElapsed(time.Second)},
			"a hint above the cap": {breaker.MaxRetries(1), breaker.RetryAfterCap(0)},
		} {
			f := w.fn(hint(1))
			_, _ = with(opts...).Do(ctx, f.call)
			require.Len(w, f.at, 1, name)
		}
		require.Empty(w, events.retries)
		open := w.breaker(breaker.WithFailureThreshold(1), breaker.WithRetry(breaker.MaxRetries(1), breaker.Constant(0), breaker.WithBudget(budget)))
		_, _ = open.Do(w.Context(), w.fn(errBoom).call)
		_, _ = open.Do(w.Context(), w.fn(errBoom).call)

		f := w.fn(errBoom)
		_, err := with(breaker.MaxRetries(5), breaker.Constant(0)).Do(w.Context(), f.call)
		require.Len(w, f.at, 2, "the one retry was still there")
		rfgRetried(w, err, 2, errBoom)
		require.Len(w, events.retries, 1, "a refused retry is not announced")
	})
	t.Run("the zero Budget allows none", func(t *testing.T) {
		rfgEveryWay(t, func(w *rfgWorld, way rfgWay) {
			f := w.fn(errBoom)
			_, err := way.make(w, nil, breaker.MaxRetries(3), breaker.WithBudget(new(breaker.Budget)))(w.Context(), f.call)
			require.Equal(w, errBoom, err)
			require.Len(w, f.at, 1)
		})
	})
}

// A rejected call never reached the dependency: it earns no retries.
func TestBudgetEarnsNothingFromRejections(t *testing.T) {
	rfgBoth(t, func(w *rfgWorld) {
		retry := breaker.WithRetry(breaker.MaxRetries(1), breaker.Constant(0), breaker.WithBudget(rfgBudget(w, 0.1, 0, time.Minute)))
		open, failing := w.breaker(retry, breaker.WithMode(breaker.ForcedOpen)), w.breaker(rfgFar, retry)
		for range 1000 {
			_, err := open.Do(w.Context(), w.fn(nil).call)
			require.ErrorIs(w, err, breaker.ErrOpen)
		}
		runs := 0
		for range 10 {
			_, _ = failing.Do(w.Context(), func(context.Context) (int, error) { runs++; return 0, errBoom })
		}
		require.Equal(w, 11, runs, "10 calls allow 1 retry")
	})
}

// Under a budget the retries of each window are bounded, whatever fails and when: at the instant of every retry, there
// are no more of them than the calls of the window allow. Up to 128 instants that is exact; beyond, a 64th of the window
// may be taken off its end.
func TestBudgetProperties(t *testing.T) {
	rfgBubble(t, func(w *rfgWorld) {
		rapid.Check(struct{ testing.TB }{w.T}, func(t *rapid.T) {
			ratio := float64(rapid.IntRange(0, 150).Draw(t, "percent")) / 100
			reserve := rapid.IntRange(0, 5).Draw(t, "reserve")
			window := time.Duration(rapid.Int64Range(1, int64(10*time.Second)).Draw(t, "window"))
			budget := rfgBudget(t, ratio, reserve, window)
			n := rapid.IntRange(1, 4).Draw(t, "retries")
			var retries, calls []time.Time
			hooks := breaker.WithHooks(breaker.Hooks{Retry: func(context.Context, breaker.RetryEvent) { retries = append(retries, time.Now()) }})
			wait := breaker.Constant(time.Duration(rapid.IntRange(0, 50).Draw(t, "wait ms")) * time.Millisecond)
			var all []*breaker.Breaker[int]
			for range 2 {
				all = append(all, breaker.Must(breaker.New[int]("test", rfgFar, hooks, breaker.WithRetry(breaker.MaxRetries(n), wait, breaker.WithBudget(budget)))))
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
						return 0, errBoom
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
	guard(t, patience, func() {
		const reserve, goroutines, calls = 50, 8, 500
		retry := breaker.WithRetry(breaker.MaxRetries(3), breaker.Constant(0), breaker.WithBudget(rfgBudget(t, 0.1, reserve, time.Hour)))
		var runs atomic.Int64
		var all sync.WaitGroup
		for range goroutines {
			b := breaker.Must(breaker.New[int]("test", rfgFar, retry))
			all.Go(func() {
				for range calls {
					_, err := b.Do(context.Background(), func(context.Context) (int, error) { runs.Add(1); return 0, errBoom })
					assert.ErrorIs(t, err, errBoom)
				}
			})
		}
		all.Wait()
		require.EqualValues(t, goroutines*calls+goroutines*calls/10+reserve, runs.Load())
	})
}
