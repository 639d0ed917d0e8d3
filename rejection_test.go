package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// errorList is an error of several that errors.Join would not make.
type errorList []error

func (l errorList) Error() string   { return fmt.Sprint([]error(l)) }
func (l errorList) Unwrap() []error { return l }

// refusedWith says itself that it is a rejection, as an error does that knows that nothing ran.
type refusedWith struct{ error }

func (e refusedWith) Is(target error) bool { return target == breaker.ErrOpen }
func (e refusedWith) Unwrap() error        { return e.error }

// BR-50: a rejection is an error in which nothing ran.
func TestBR50_ARejectionHasNoFailureInIt(t *testing.T) {
	open, full := breaker.ErrOpen, breaker.ErrTooManyInFlight
	for _, tc := range []struct {
		err  error
		want breaker.Outcome
	}{
		{open, breaker.Ignored},
		{full, breaker.Ignored},
		{&breaker.OpenError{Circuit: "inner"}, breaker.Ignored},
		{fmt.Errorf("quotes: %w", fmt.Errorf("host: %w", full)), breaker.Ignored},
		{errors.Join(open), breaker.Ignored},
		{errors.Join(open, full), breaker.Ignored},
		{fmt.Errorf("%w, and %w", open, errors.Join(full, fmt.Errorf("x: %w", open))), breaker.Ignored},
		{errorList{nil, open, nil}, breaker.Ignored},
		{refusedWith{errDown}, breaker.Ignored},

		{errDown, breaker.Failure},
		{errors.Join(errDown, open), breaker.Failure},
		{errors.Join(open, errDown), breaker.Failure},
		{errors.Join(open, full, errDown), breaker.Failure},
		{fmt.Errorf("%w: %w", context.DeadlineExceeded, open), breaker.Failure},
		{fmt.Errorf("outer: %w", errors.Join(open, fmt.Errorf("inner: %w", errors.Join(full, errDown)))), breaker.Failure},
		{&breaker.RetryError{Attempts: 2, Err: errors.Join(errDown, open)}, breaker.Failure},
		{errorList{nil, errDown}, breaker.Failure},
		{errorList{nil}, breaker.Failure},
		{errorList{}, breaker.Failure},
		{errors.Join(open, errorList{}), breaker.Failure},
	} {
		t.Run(fmt.Sprintf("%T %v", tc.err, tc.err), func(t *testing.T) {
			require.Equal(t, tc.want, breaker.DefaultClassifier(tc.err))

			// A retry and a fallback mean the same by it.
			b := breaker.Must(breaker.New[int]("outer", breaker.WithRetry(breaker.MaxRetries(1), breaker.Constant(0)), breaker.WithFallbackValue(-1)))
			r := b.Try(t.Context(), func(context.Context) (int, error) { return 0, tc.err })
			require.Equal(t, map[breaker.Outcome]int{breaker.Ignored: 1, breaker.Failure: 2}[tc.want], r.Attempts)
			require.Equal(t, breaker.RescueValue, r.Rescue)
			runs := 0
			_, err := breaker.Retry(t.Context(), retryOnce(t), func(context.Context) (int, error) { runs++; return 0, tc.err })
			require.Equal(t, r.Attempts, runs)
			require.Error(t, err)

			mdlAllocs(t, 0, func() { breaker.DefaultClassifier(tc.err) })
		})
	}
}

func retryOnce(t *testing.T, opts ...breaker.RetryOption) breaker.RetryPolicy {
	t.Helper()
	p, err := breaker.NewRetryPolicy(append([]breaker.RetryOption{breaker.MaxRetries(1), breaker.Constant(0)}, opts...)...)
	require.NoError(t, err)
	return p
}

// opensAmid is a breaker whose circuit opens amid its own retries, for a second.
func opensAmid() *breaker.Breaker[int] {
	return breaker.Must(breaker.New[int]("inner", breaker.WithFailureThreshold(2), breaker.WithOpenTimeout(time.Second),
		breaker.WithRetry(breaker.MaxRetries(3), breaker.Constant(0))))
}

// BR-50: a circuit that opens amid its own retries has asked, and been failed.
func TestBR50_ACircuitThatOpensAmidItsRetries(t *testing.T) {
	fails := func(context.Context) (int, error) { return 0, errDown }
	t.Run("is a failure of an outer circuit", func(t *testing.T) {
		outer := breaker.Must(breaker.New[int]("outer", breaker.WithFailureThreshold(3)))
		for range 10 {
			_, err := outer.Do(t.Context(), func(ctx context.Context) (int, error) {
				v, err := opensAmid().Do(ctx, fails)
				require.ErrorIs(t, err, errDown)
				require.ErrorIs(t, err, breaker.ErrOpen)
				return v, err
			})
			require.Error(t, err)
		}
		s := outer.Snapshot()
		require.Equal(t, breaker.Open, s.State)
		require.EqualValues(t, 3, s.Totals.Failures)
		require.Zero(t, s.Totals.Ignored)
	})
	outer := func(t *testing.T, opts ...breaker.RetryOption) map[string]func(context.Context, func(context.Context) (int, error)) (int, error) {
		p := retryOnce(t, opts...)
		all := append([]breaker.RetryOption{breaker.MaxRetries(1), breaker.Constant(0)}, opts...)
		b := breaker.Must(breaker.New[int]("outer", breaker.WithRetry(all...)))
		return map[string]func(context.Context, func(context.Context) (int, error)) (int, error){
			"WithRetry": b.Do,
			"Retry": func(ctx context.Context, fn func(context.Context) (int, error)) (int, error) {
				return breaker.Retry(ctx, p, fn)
			},
		}
	}
	for _, name := range []string{"WithRetry", "Retry"} {
		t.Run("is retried by an outer "+name+", when a probe is due", func(t *testing.T) {
			scene(t, func(w *stage) {
				inner, calls := opensAmid(), 0
				v, err := outer(t)[name](w.Context(), func(ctx context.Context) (int, error) {
					return inner.Do(ctx, func(context.Context) (int, error) {
						if calls++; calls <= 2 {
							return 0, errDown
						}
						return 7, nil
					})
				})
				require.NoError(w, err)
				require.Equal(w, 7, v)
				require.Equal(w, time.Second, w.elapsed())
			})
		})
		t.Run("is not by an outer "+name+" that may not wait so long", func(t *testing.T) {
			scene(t, func(w *stage) {
				runs := 0
				_, err := outer(t, breaker.RetryAfterCap(time.Millisecond))[name](w.Context(), func(ctx context.Context) (int, error) {
					runs++
					return opensAmid().Do(ctx, fails)
				})
				require.ErrorIs(w, err, errDown)
				require.Equal(w, 1, runs)
				require.Zero(w, w.elapsed())
			})
		})
		t.Run("the rejection of an open one is not retried by an outer "+name, func(t *testing.T) {
			scene(t, func(w *stage) {
				inner, runs := opensAmid(), 0
				inner.Circuit().Trip(nil)
				_, err := outer(t)[name](w.Context(), func(ctx context.Context) (int, error) { runs++; return inner.Do(ctx, fails) })
				require.ErrorIs(w, err, breaker.ErrOpen)
				require.Equal(w, 1, runs)
			})
		})
	}
}

// BR-50: what comes out of a call with fallbacks that all failed is a rejection only where nobody was called.
func TestBR50_FallbacksThatFail(t *testing.T) {
	forcedOpen := breaker.WithMode(breaker.ForcedOpen)
	open := breaker.Must(breaker.New[int]("backup", forcedOpen))
	ok := func(context.Context) (int, error) { return 7, nil }
	fails := func(context.Context) (int, error) { return 0, errDown }
	rejected := breaker.WithFailover("backup", open.Wrap(ok))
	for name, tc := range map[string]struct {
		opts []breaker.Option
		fn   func(context.Context) (int, error)
		want breaker.Outcome
	}{
		"both circuits are open":                {[]breaker.Option{forcedOpen, rejected}, ok, breaker.Ignored},
		"the call fails, the backup is open":    {[]breaker.Option{rejected}, fails, breaker.Failure},
		"the circuit is open, the backup fails": {[]breaker.Option{forcedOpen, breaker.WithFailover("backup", fails)}, ok, breaker.Failure},
		"the circuit is open, a function fails": {[]breaker.Option{forcedOpen, rejected,
			breaker.WithFallback("f", func(ctx context.Context, _ error) (int, error) { return fails(ctx) })}, ok, breaker.Failure},
		"both fail": {[]breaker.Option{breaker.WithFailover("backup", fails)}, fails, breaker.Failure},
	} {
		t.Run(name, func(t *testing.T) {
			inner := breaker.Must(breaker.New[int]("inner", tc.opts...))
			outer := breaker.Must(breaker.New[int]("outer"))
			_, err := outer.Do(t.Context(), func(ctx context.Context) (int, error) { return inner.Do(ctx, tc.fn) })
			require.Error(t, err)
			totals := outer.Snapshot().Totals
			require.Equal(t, tc.want == breaker.Failure, totals.Failures == 1)
			require.Equal(t, tc.want == breaker.Ignored, totals.Ignored == 1)
		})
	}
}

// The dependency answered, though not with what was asked for: there is nothing to repeat, to replace or to remember.
func TestAnsweredIsNeitherRetriedNorRescuedNorKept(t *testing.T) {
	errNone := errors.New("no such row")
	b := breaker.Must(breaker.New[int]("b",
		breaker.WithResult(func(v int, err error) breaker.Outcome {
			if v == 404 || errors.Is(err, errNone) {
				return breaker.Answered
			}
			return breaker.DefaultClassifier(err)
		}),
		breaker.WithRetry(breaker.MaxRetries(3), breaker.Constant(0)),
		breaker.WithFailover("backup", func(context.Context) (int, error) { t.Error("the backup was asked"); return 0, nil }),
		breaker.WithLastGood[int](time.Hour, func(context.Context) string { return "k" })))
	for _, want := range []breaker.Result[int]{{Value: 404, Attempts: 1}, {Err: errNone, Attempts: 1}} {
		require.Equal(t, want, b.Try(t.Context(), func(context.Context) (int, error) { return want.Value, want.Err }))
		v, err := b.DoOr(t.Context(), func(context.Context) (int, error) { return want.Value, want.Err },
			func(context.Context, error) (int, error) { t.Error("the alternative was asked"); return 0, nil })
		require.Equal(t, want.Value, v)
		require.Equal(t, want.Err, err)
	}
	require.Empty(t, b.Snapshot().Totals.Rescues)

	keeps := breaker.Must(breaker.Over[int](b.Circuit(),
		breaker.WithResult(func(v int, err error) breaker.Outcome {
			if v == 404 {
				return breaker.Answered
			}
			return breaker.DefaultClassifier(err)
		}), breaker.WithLastGood[int](time.Hour, func(context.Context) string { return "k" })))
	_, err := keeps.Do(t.Context(), func(context.Context) (int, error) { return 404, nil })
	require.NoError(t, err)
	_, err = keeps.Do(t.Context(), func(context.Context) (int, error) { return 0, errDown })
	require.Equal(t, errDown, err, "404 is no good answer to remember")
}
