package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// Faults that were seen in retry and fallback libraries in use, and in groups of circuits. Each test has the shape of
// one of them.

// A server that asked for an hour got it, though the cap was ten seconds.
func TestFaultRetry_CapHoldsForHints(t *testing.T) {
	rfgEveryWay(t, func(w *rfgWorld, way rfgWay) {
		f := w.fn(hint(3600 * time.Second))
		_, err := way.make(w, nil, breaker.MaxRetries(4), breaker.Exponential(time.Second, 10*time.Second))(w.Context(), f.call)
		require.Zero(w, w.elapsed())
		require.Len(w, f.at, 1)
		require.Equal(w, hint(3600*time.Second), err, "the answer is not lost")
	})
}

// A hint of 9,999,999,999 seconds became a wait of minus 2,346,317 hours.
func TestFaultRetry_HintsDoNotOverflow(t *testing.T) {
	seconds := int64(9_999_999_999)
	for _, h := range []time.Duration{time.Duration(seconds * int64(time.Second)), math.MaxInt64, math.MinInt64, -2_346_317 * time.Hour} {
		rfgEveryWay(t, func(w *rfgWorld, way rfgWay) {
			f := w.fn(hint(h), nil)
			before := w.elapsed()
			_, _ = way.make(w, nil, breaker.MaxRetries(1), breaker.Constant(time.Second), breaker.NoJitter(), breaker.RetryAfterCap(1<<62))(w.Context(), f.call)
			took := w.elapsed() - before
			if h > 1<<62 {
				require.Zero(w, took)
				require.Len(w, f.at, 1)
				return
			}
			require.Equal(w, time.Second, took, "a hint of the past is none")
		})
	}
}

// Doubling overflowed, or a factor of two with no cap: negative waits, and retries without pause.
func TestFaultRetry_BackoffDoesNotOverflow(t *testing.T) {
	rfgBubble(t, func(w *rfgWorld) {
		var events rfgEvents
		b := w.breaker(rfgFar, events.option(), breaker.WithRetry(breaker.MaxRetries(200), breaker.Exponential(time.Hour, 2*time.Hour), breaker.NoJitter()))
		_, _ = b.Do(w.Context(), w.fn(errBoom).call)
		for i, e := range events.retries {
			require.Equal(w, time.Duration(min(i+1, 2))*time.Hour, e.Wait)
		}
	})
}

// A sleep went through the caller's cancel, and another attempt followed.
func TestFaultRetry_SleepEndsWithTheCaller(t *testing.T) {
	for _, way := range rfgWays {
		rfgBubble(t, func(w *rfgWorld) {
			ctx, cancel := context.WithCancel(w.Context())
			defer time.AfterFunc(300*time.Millisecond, cancel).Stop()
			f := w.fn(errBoom)
			_, err := way.make(w, nil, breaker.MaxRetries(3), breaker.Constant(5*time.Second))(ctx, f.call)
			require.Equal(w, 300*time.Millisecond, w.elapsed(), way.name)
			require.Len(w, f.at, 1)
			require.ErrorIs(w, err, context.Canceled)
		})
	}
}

// A wait of five seconds under a deadline of 300ms blocked for the 300ms, for nothing.
func TestFaultRetry_NoWaitThatCannotHelp(t *testing.T) {
	rfgEveryWay(t, func(w *rfgWorld, way rfgWay) {
		ctx, cancel := w.deadline(300 * time.Millisecond)
		defer cancel()
		_, err := way.make(w, nil, breaker.MaxRetries(3), breaker.Constant(5*time.Second))(ctx, w.fn(errBoom).call)
		require.Zero(w, w.elapsed())
		require.ErrorIs(w, err, errBoom)
		require.ErrorIs(w, err, context.DeadlineExceeded)
	})
}

// Zero meant unlimited; minus one looped for ever.
func TestFaultRetry_ZeroIsNotUnlimited(t *testing.T) {
	rfgEveryWay(t, func(w *rfgWorld, way rfgWay) {
		f := w.fn(errBoom)
		_, _ = way.make(w, nil, breaker.MaxRetries(0), breaker.MaxElapsed(0), breaker.Constant(0))(w.Context(), f.call)
		require.Len(w, f.at, 1)
	})
	for name, opt := range map[string]breaker.RetryOption{"MaxRetries": breaker.MaxRetries(-1), "MaxElapsed": breaker.MaxElapsed(-1)} {
		_, err := breaker.NewRetryPolicy(opt)
		require.ErrorContains(t, err, name)
	}
}

// After the last attempt the answer was gone: an error that named nothing, or a nil one, or one that unwrapped to nil.
func TestFaultRetry_LastAnswerSurvives(t *testing.T) {
	rfgEveryWay(t, func(w *rfgWorld, way rfgWay) {
		v, err := way.make(w, nil, breaker.MaxRetries(2))(w.Context(), w.fn(rfgStatus(503)).call)
		require.Equal(w, 3, v, "the last value")
		require.ErrorIs(w, err, rfgStatus(503))
		require.ErrorContains(w, err, "503")
		require.NotNil(w, errors.Unwrap(err))
	})
}

// Three retries and 300ms of waiting were spent on a circuit that was open, and the rejection was lost in the end.
func TestFaultRetry_OpenCircuitIsNotRetried(t *testing.T) {
	retry := []breaker.RetryOption{breaker.MaxRetries(3), breaker.Constant(100 * time.Millisecond)}
	rfgBoth(t, func(w *rfgWorld) {
		inside := w.breaker(breaker.WithRetry(retry...))
		inside.Circuit().Trip(nil)
		_, err := inside.Do(w.Context(), w.fn(nil).call)
		require.ErrorIs(w, err, breaker.ErrOpen)
		require.EqualValues(w, 1, inside.Snapshot().Totals.Rejected)

		plain := w.breaker()
		plain.Circuit().Trip(nil)
		_, err = rfgByRetry.make(w, nil, retry...)(w.Context(), plain.Wrap(w.fn(nil).call))
		require.ErrorIs(w, err, breaker.ErrOpen)
		require.EqualValues(w, 1, plain.Snapshot().Totals.Rejected)

		outer := w.breaker(breaker.WithRetry(retry...))
		_, err = outer.Do(w.Context(), plain.Wrap(w.fn(nil).call))
		require.ErrorIs(w, err, breaker.ErrOpen)
		require.EqualValues(w, 2, plain.Snapshot().Totals.Rejected, "nor that of a circuit further in")
		require.Zero(w, w.elapsed())
	})
}

// Without a budget, a dependency in trouble got four times its load. A budget that knew no time was used up for good by
// one bad hour, or saved up for another.
func TestFaultRetry_BudgetHasAWindow(t *testing.T) {
	rfgBubble(t, func(w *rfgWorld) {
		b := w.breaker(rfgFar, breaker.WithRetry(breaker.MaxRetries(3), breaker.Constant(0), breaker.WithBudget(rfgBudget(w, 0.2, 10, 10*time.Second))))
		load := func(seconds int, err error) (calls, runs int) {
			for range seconds {
				for range 100 {
					calls++
					_, _ = b.Do(w.Context(), func(context.Context) (int, error) { runs++; return 0, err })
				}
				w.at(w.elapsed() + time.Second)
			}
			return calls, runs
		}
		calls, runs := load(3600, nil)
		require.Equal(w, calls, runs)
		for range 2 { // a long good time saves nothing up for a bad one, and a bad one leaves no debt
			calls, runs = load(60, errBoom)
			require.LessOrEqual(w, runs, calls+calls/5+2*10+10*100/5, "a fifth on top, the reserve, and what the last good window had earned")
			require.GreaterOrEqual(w, runs, calls+calls/5-10)
			load(20, nil)
		}
	})
}

// A first retry crashed the process: a draw from an empty range.
func TestFaultRetry_NoJitterAndNoDelayDoNotPanic(t *testing.T) {
	for _, jitter := range []breaker.RetryOption{breaker.NoJitter(), breaker.FullJitter(), breaker.AddJitter(0), breaker.AddJitter(1)} {
		for _, wait := range []breaker.RetryOption{breaker.Constant(0), breaker.Constant(1), breaker.Exponential(0, 1), breaker.Exponential(1, 1)} {
			rfgEveryWay(t, func(w *rfgWorld, way rfgWay) {
				f := w.fn(errBoom)
				_, _ = way.make(w, nil, breaker.MaxRetries(70), wait, jitter)(w.Context(), f.call)
				require.Len(w, f.at, 71)
			})
		}
	}
}

// An attempt's own timeout ended the whole call, since its error looked like the caller's.
func TestFaultRetry_AttemptTimeoutIsNotTheCallers(t *testing.T) {
	rfgBubble(t, func(w *rfgWorld) {
		b := w.breaker(breaker.WithTimeout(time.Second), breaker.WithRetry(breaker.MaxRetries(1), breaker.Constant(0)))
		first := true
		v, err := b.Do(w.Context(), func(ctx context.Context) (int, error) {
			if first {
				first = false
				<-ctx.Done()
				return 0, fmt.Errorf("dial: %w", ctx.Err())
			}
			return 7, nil
		})
		require.NoError(w, err)
		require.Equal(w, 7, v)
	})
}

// A nil fallback swallowed the error; one that failed hid it; one that panicked took the slot with it.
func TestFaultFallback_HidesNothing(t *testing.T) {
	rfgBoth(t, func(w *rfgWorld) {
		_, err := w.breaker().DoOr(w.Context(), rfgAnswer(0, errBoom), nil)
		require.Equal(w, errBoom, err)
		_, err = w.breaker(breaker.WithFailover("b", rfgAnswer(0, errBackup))).Do(w.Context(), rfgAnswer(0, errBoom))
		require.ErrorIs(w, err, errBoom)
		require.ErrorIs(w, err, errBackup)

		b := w.breaker(breaker.WithMaxInFlight(1), breaker.WithFallback("f", func(context.Context, error) (int, error) { panic("fallback") }))
		require.Equal(w, "fallback", panicOf(func() { _, _ = b.Do(w.Context(), rfgAnswer(0, errBoom)) }))
		_, err = b.Do(w.Context(), rfgAnswer(0, nil))
		require.NoError(w, err)
		require.Zero(w, b.Snapshot().InFlight)
	})
}

// The function ran after a fallback had answered; timeout and late error each had a fallback run.
func TestFaultFallback_RunsOnce(t *testing.T) {
	rfgBubble(t, func(w *rfgWorld) {
		var fallbacks, runs int
		b := w.breaker(breaker.WithTimeout(time.Second), breaker.WithRetry(breaker.MaxRetries(2), breaker.Constant(0)),
			breaker.WithFallback("f", func(context.Context, error) (int, error) { fallbacks++; return -1, nil }))
		r := b.Try(w.Context(), func(ctx context.Context) (int, error) { runs++; <-time.After(5 * time.Second); return 0, errBoom })
		require.Equal(w, rfgBy("f", -1, 3), r)
		require.Equal(w, 1, fallbacks)
		require.Equal(w, 3, runs)
	})
}

// Failures were cached, or what was cached was served for ever, or while the dependency was well.
func TestFaultCache_KeepsGoodAnswersForTheirTime(t *testing.T) {
	rfgBoth(t, func(w *rfgWorld) {
		b := w.breaker(rfgFar, breaker.WithLastGood[int](time.Minute, rfgOneKey))
		_, _ = b.Do(w.Context(), rfgAnswer(1, nil))
		_, _ = b.Do(w.Context(), rfgAnswer(666, errBoom))
		require.Equal(w, rfgBy(breaker.RescueCache, 1, 1), b.Try(w.Context(), rfgAnswer(666, errBoom)))
		require.Equal(w, breaker.Result[int]{Value: 2, Attempts: 1}, b.Try(w.Context(), rfgAnswer(2, nil)))
		w.at(time.Minute)
		require.ErrorIs(w, b.Try(w.Context(), rfgAnswer(666, errBoom)).Err, errBoom)
	})
}

// A map of circuits grew without bound; where it was bounded, cleaning up removed the open ones.
func TestFaultGroup_BoundedWithoutLosingOpenCircuits(t *testing.T) {
	rfgBoth(t, func(w *rfgWorld) {
		g := w.group(breaker.MaxKeys(10), breaker.IdleAfter(time.Second), breaker.WithOpenTimeout(24*time.Hour))
		rfgFail(w, g.Get("down"), 3)
		for i := range 50 {
			rfgFill(w, g, fmt.Sprint(i, "-"), 20)
			w.at(w.elapsed() + time.Minute)
			require.LessOrEqual(w, g.Len(), 10)
		}
		_, err := g.Do(w.Context(), "down", rfgAnswer(0, nil))
		require.ErrorIs(w, err, breaker.ErrOpen)
	})
}

// Two circuits for one key, each with half of the failures.
func TestFaultGroup_OneKeyIsOneCircuit(t *testing.T) {
	guard(t, patience, func() {
		for range 50 {
			g := breaker.Must(breaker.NewGroup[int](breaker.WithFailureThreshold(16)))
			var all sync.WaitGroup
			for range 16 {
				all.Go(func() {
					_, err := g.Do(context.Background(), "host", rfgAnswer(0, errBoom))
					assert.Equal(t, errBoom, err)
				})
			}
			all.Wait()
			require.Equal(t, breaker.Open, g.Get("host").State())
		}
	})
}

// Looking a key up inside the function that configures keys deadlocked.
func TestFaultGroup_ConfiguringMayLookUp(t *testing.T) {
	guard(t, patience, func() {
		var g *breaker.Group[int]
		g = breaker.Must(breaker.NewGroup[int](breaker.PerKey(func(key string) []breaker.Option {
			if key == "a" {
				g.Get("b").Circuit().Trip(nil)
			}
			return nil
		})))
		require.Equal(t, breaker.Closed, g.Get("a").State())
		require.Equal(t, breaker.Open, g.Get("b").State())
	})
}
