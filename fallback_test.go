package breaker_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/breakertest"
)

var errBackup = errors.New("the backup failed too")

// oneKey puts every call under one key.
func oneKey(context.Context) string { return "k" }

type contextKey struct{}

// withKey is a context that carries the key of a call.
func withKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, contextKey{}, key)
}

func keyIn(ctx context.Context) string { key, _ := ctx.Value(contextKey{}).(string); return key }

// answering is a function that answers v, or fails.
func answering(v int, err error) func(context.Context) (int, error) {
	return func(context.Context) (int, error) { return v, err }
}

// rescuedBy is a result by a fallback after so many attempts.
func rescuedBy(kind breaker.Rescue, v, attempts int) breaker.Result[int] {
	return breaker.Result[int]{Value: v, Attempts: attempts, Rescue: kind}
}

func TestF01_OpenServesTheStoredValue(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		b := w.Breaker(breaker.WithLastGood[int](10*time.Minute, oneKey))
		v, err := b.Do(w.Context(), answering(42, nil))
		require.NoError(w, err)
		require.Equal(w, 42, v)
		for range 5 {
			require.Equal(w, rescuedBy(breaker.RescueCache, 42, 1), b.Try(w.Context(), answering(0, breakertest.ErrBoom)))
		}
		require.Equal(w, breaker.Open, b.State())
		f := w.Func(nil)
		require.Equal(w, rescuedBy(breaker.RescueCache, 42, 0), b.Try(w.Context(), f.Call))
		require.Empty(w, f.At, "the dependency was not asked")
		require.Zero(w, w.Elapsed())
	})
}

func TestF02_ExhaustedRetriesServeTheStoredValue(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		b := w.Breaker(breaker.WithRetry(breaker.MaxRetries(3)), breaker.WithLastGood[int](10*time.Minute, oneKey))
		_, err := b.Do(w.Context(), answering(42, nil))
		require.NoError(w, err)
		require.Equal(w, rescuedBy(breaker.RescueCache, 42, 4), b.Try(w.Context(), answering(0, breakertest.Status(503))))
		require.Equal(w, breaker.Closed, b.State())
		require.EqualValues(w, 4, b.Snapshot().ConsecutiveFailures, "a rescue is no success of the dependency")
	})
}

func TestF03_NothingStored(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		var events breakertest.Events
		b := w.Breaker(breaker.WithLastGood[int](10*time.Minute, oneKey), events.Option())
		for range 5 {
			r := b.Try(w.Context(), answering(0, breakertest.Status(503)))
			require.Equal(w, breaker.Result[int]{Err: breakertest.Status(503), Attempts: 1}, r, "the error as it was")
		}
		_, err := b.Do(w.Context(), answering(0, nil))
		var open *breaker.OpenError
		require.True(w, errors.As(err, &open) && error(open) == err, "the rejection as it was")
		require.Empty(w, events.Rescues, "nothing to say is no failure")
		require.Empty(w, b.Snapshot().Totals.Rescues)
	})
}

func TestF04_StoredOnSuccessForItsTTL(t *testing.T) {
	for _, ttl := range []time.Duration{600 * time.Second, 3600 * time.Second, 1} {
		t.Run(ttl.String(), func(t *testing.T) {
			breakertest.BothWaiting(t, func(w *breakertest.World) {
				b := w.Breaker(farFromTripping, breaker.WithLastGood[int](ttl, oneKey))
				_, err := b.Do(w.Context(), answering(1, nil))
				require.NoError(w, err)
				w.At(ttl - 1)
				require.Equal(w, rescuedBy(breaker.RescueCache, 1, 1), b.Try(w.Context(), answering(99, breakertest.ErrBoom)))
				w.At(ttl)
				require.Equal(w, breakertest.ErrBoom, b.Try(w.Context(), answering(99, breakertest.ErrBoom)).Err, "neither the TTL nor a use prolongs it")
				_, err = b.Do(w.Context(), answering(2, nil))
				require.NoError(w, err)
				require.Equal(w, rescuedBy(breaker.RescueCache, 2, 1), b.Try(w.Context(), answering(99, breakertest.ErrBoom)))
			})
		})
	}
	// What is not a success is not stored.
	t.Run("nothing else", func(t *testing.T) {
		breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
			b := w.Breaker(farFromTripping, breaker.WithIgnore(breakertest.ErrClient), breaker.WithTimeout(time.Second),
				breaker.WithResult(func(v int, err error) breaker.Outcome {
					switch {
					case v == 13 || errors.Is(err, breakertest.ErrBoom):
						return breaker.Failure
					case v == 14:
						return breaker.Ignored
					}
					return breaker.Success
				}),
				breaker.WithLastGood[int](time.Hour, oneKey), breaker.WithFallback("static", func(context.Context, error) (int, error) { return 77, nil }))
			stored := func() (int, breaker.Rescue) {
				r := b.Try(w.Context(), answering(0, breakertest.ErrBoom))
				require.NoError(w, r.Err)
				return r.Value, r.Rescue
			}
			_, kind := stored()
			require.Equal(w, breaker.Rescue("static"), kind, "nothing yet, and a fallback's answer is not kept")
			for what, fn := range map[string]func(context.Context) (int, error){
				"a failure with a value":        answering(5, breakertest.ErrBoom),
				"an ignored error with a value": answering(5, breakertest.ErrClient),
				"a value that is a failure":     answering(13, nil),
				"a value that is ignored":       answering(14, nil),
				"an error that is a success":    answering(5, errors.New("fine")),
				"a value that came too late":    func(context.Context) (int, error) { <-time.After(2 * time.Second); return 5, nil },
				"a panic":                       func(context.Context) (int, error) { panic("boom") },
			} {
				_ = breakertest.PanicOf(func() { _, _ = b.Do(w.Context(), fn) })
				_, kind = stored()
				require.Equal(w, breaker.Rescue("static"), kind, what)
			}
			ctx, cancel := context.WithCancel(w.Context())
			_, _ = b.Do(ctx, func(context.Context) (int, error) { cancel(); return 5, ctx.Err() })
			_, kind = stored()
			require.Equal(w, breaker.Rescue("static"), kind, "the caller's cancel")

			_, err := b.Do(w.Context(), answering(6, nil))
			require.NoError(w, err)
			v, kind := stored()
			require.Equal(w, 6, v)
			require.Equal(w, breaker.RescueCache, kind)
		})
	})
	t.Run("a success after a retry, too", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			b := w.Breaker(breaker.WithRetry(breaker.MaxRetries(1)), breaker.WithLastGood[int](time.Hour, oneKey))
			require.Equal(w, breaker.RescueRetry, b.Try(w.Context(), w.Func(breakertest.ErrBoom, nil).Call).Rescue)
			require.Equal(w, rescuedBy(breaker.RescueCache, 2, 2), b.Try(w.Context(), answering(0, breakertest.ErrBoom)))
		})
	})
}

func TestF05_NeverServedWhileTheDependencyAnswers(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		b := w.Breaker(breaker.WithLastGood[int](time.Hour, oneKey))
		for v := range 3 {
			require.Equal(w, breaker.Result[int]{Value: v, Attempts: 1}, b.Try(w.Context(), answering(v, nil)))
		}
		require.Equal(w, rescuedBy(breaker.RescueCache, 2, 1), b.Try(w.Context(), answering(0, breakertest.ErrBoom)), "the latest")
	})
}

func TestF06_KeysAreTheCallers(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		b := w.Breaker(farFromTripping, breaker.WithLastGood[int](time.Hour, keyIn))
		of := func(body string) context.Context {
			return withKey(w.Context(), fmt.Sprintf("client POST http://x/ %x", sha256.Sum256([]byte(body))))
		}
		for v, body := range []string{"one", "two"} {
			_, err := b.Do(of(body), answering(v, nil))
			require.NoError(w, err)
		}
		for v, body := range []string{"one", "two"} {
			require.Equal(w, rescuedBy(breaker.RescueCache, v, 1), b.Try(of(body), answering(9, breakertest.ErrBoom)))
		}
		require.Equal(w, breakertest.ErrBoom, b.Try(of("three"), answering(9, breakertest.ErrBoom)).Err)
	})
	t.Run("an empty key is neither stored nor served", func(t *testing.T) {
		breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
			cache := &stubCache{}
			for _, opt := range []breaker.Option{
				breaker.WithLastGood[int](time.Hour, keyIn),
				breaker.WithLastGood[int](time.Hour, keyIn, breaker.LastGoodCache[int](cache)),
			} {
				b := w.Breaker(farFromTripping, opt)
				_, err := b.Do(w.Context(), answering(7, nil))
				require.NoError(w, err)
				require.Equal(w, breaker.Result[int]{Err: breakertest.ErrBoom, Attempts: 1}, b.Try(w.Context(), answering(0, breakertest.ErrBoom)))
			}
			synctest.Wait()
			require.Zero(w, cache.gets.Load()+cache.sets.Load(), "the cache is not asked")
		})
	})
}

func TestF07_OpenPrimaryGoesToTheBackup(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		backup := w.Func(nil)
		b := w.Breaker(breaker.WithRetry(breaker.MaxRetries(2)), breaker.WithFailover("backup", backup.Call))
		b.Circuit().Trip(breakertest.ErrBoom)
		primary := w.Func(nil)
		require.Equal(w, rescuedBy(breaker.RescueFailover, 1, 0), b.Try(w.Context(), primary.Call))
		require.Empty(w, primary.At)
		require.Len(w, backup.At, 1)
		require.Zero(w, w.Elapsed())
	})
}

func TestF08_ExhaustedPrimaryGoesToTheBackup(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		backup := w.Func(nil)
		b := w.Breaker(breaker.WithRetry(breaker.MaxRetries(2)), breaker.WithFailover("backup", backup.Call))
		primary := w.Func(breakertest.ErrBoom)
		require.Equal(w, rescuedBy(breaker.RescueFailover, 1, 3), b.Try(w.Context(), primary.Call))
		require.Len(w, primary.At, 3)
		require.Len(w, backup.At, 1, "it is not retried")
		require.Equal(w, breaker.Closed, b.State())
	})
}

func TestF09_TheBackupHasItsOwnCircuit(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		backup := breaker.Must(breaker.New[int]("backup", w.Options()...))
		upstream := w.Func(errBackup)
		b := w.Breaker(breaker.WithFailover("backup", backup.Wrap(upstream.Call)))
		for range 5 {
			_, err := b.Do(w.Context(), answering(0, breakertest.ErrBoom))
			require.ErrorIs(w, err, breakertest.ErrBoom)
			require.ErrorIs(w, err, errBackup)
			require.ErrorContains(w, err, "backup")
		}
		require.Equal(w, breaker.Open, b.State())
		require.Equal(w, breaker.Open, backup.State())
		_, err := b.Do(w.Context(), answering(0, nil))
		require.ErrorIs(w, err, breaker.ErrOpen)
		require.Len(w, upstream.At, 5)

		last := breaker.Must(breaker.Over[int](b.Circuit(), breaker.WithFailover("backup", backup.Wrap(upstream.Call)), breaker.WithFallbackValue(-1)))
		require.Equal(w, rescuedBy(breaker.RescueValue, -1, 0), last.Try(w.Context(), answering(0, nil)))
	})
}

// Fallbacks are asked in the order given, whatever their kind; DoOr's alternative comes last.
func TestF10_FallbacksRunInOrder(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		var asked []string
		says := func(name string, err error) func(context.Context, error) (int, error) {
			return func(context.Context, error) (int, error) {
				asked = append(asked, name)
				return len(asked), err
			}
		}
		failover := func(name string, err error) breaker.Option {
			f := says(name, err)
			return breaker.WithFailover(name, func(ctx context.Context) (int, error) { return f(ctx, nil) })
		}
		var events breakertest.Events
		b := w.Breaker(farFromTripping, events.Option(),
			failover("first", errBackup),
			breaker.WithFallback("second", says("second", breakertest.ErrClient)),
			breaker.WithLastGood[int](time.Hour, func(context.Context) string { asked = append(asked, "third"); return "" }),
			failover("fourth", errBackup),
			breaker.WithFallback("fifth", says("fifth", nil)),
			breaker.WithFallbackValue(-1),
		)
		alt := says("alt", nil)
		v, err := b.DoOr(w.Context(), answering(0, breakertest.ErrBoom), alt)
		require.NoError(w, err)
		require.Equal(w, 5, v)
		require.Equal(w, []string{"first", "second", "third", "fourth", "fifth"}, asked)
		kinds := []breaker.Rescue{}
		for _, e := range events.Rescues {
			kinds = append(kinds, e.Kind)
			require.Equal(w, breakertest.ErrBoom, e.Cause)
			require.Equal(w, e.Kind == "fifth", e.Err == nil)
		}
		require.Equal(w, []breaker.Rescue{breaker.RescueFailover, "second", breaker.RescueFailover, "fifth"}, kinds)
		require.Equal(w, map[breaker.Rescue]uint64{"fifth": 1}, b.Snapshot().Totals.Rescues, "only what helped")

		asked = nil
		b = w.Breaker(farFromTripping, failover("first", errBackup))
		_, err = b.DoOr(w.Context(), answering(0, breakertest.ErrBoom), alt)
		require.NoError(w, err)
		require.Equal(w, []string{"first", "alt"}, asked)
		require.Equal(w, map[breaker.Rescue]uint64{breaker.RescueAlt: 1}, b.Snapshot().Totals.Rescues)
	})
	t.Run("failover, then cache", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			backup := errors.New("down")
			b := w.Breaker(breaker.WithFailover("backup", func(context.Context) (int, error) { return 2, backup }),
				breaker.WithLastGood[int](time.Hour, oneKey))
			_, err := b.Do(w.Context(), answering(1, nil))
			require.NoError(w, err)
			require.Equal(w, rescuedBy(breaker.RescueCache, 1, 1), b.Try(w.Context(), answering(0, breakertest.ErrBoom)))
			backup = nil
			require.Equal(w, rescuedBy(breaker.RescueFailover, 2, 1), b.Try(w.Context(), answering(0, breakertest.ErrBoom)))
			backup = errBackup
			require.Equal(w, rescuedBy(breaker.RescueCache, 1, 1), b.Try(w.Context(), answering(0, breakertest.ErrBoom)), "the backup's answer was not stored")
		})
	})
}

func TestF11_BackupFailuresDoNotCountAgainstThePrimary(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		b := w.Breaker(breaker.WithFailover("backup", answering(0, errBackup)), breaker.WithFallback("other", func(context.Context, error) (int, error) { return 0, errBackup }))
		for i := range 4 {
			_, err := b.Do(w.Context(), answering(0, breakertest.ErrBoom))
			require.ErrorIs(w, err, errBackup)
			require.EqualValues(w, i+1, b.Snapshot().ConsecutiveFailures)
		}
		require.Equal(w, breaker.Closed, b.State())
		require.EqualValues(w, 4, b.Snapshot().Totals.Calls)
	})
}

func TestF12_NotForSuccessesAndIgnoredOutcomes(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		asked := func(context.Context, error) (int, error) { w.Error("asked"); return 0, nil }
		b := w.Breaker(breaker.WithIgnore(breakertest.Status(404)), breaker.WithFallback("never", asked), breaker.WithRetry(breaker.MaxRetries(2)))
		for _, fn := range []func(context.Context) (int, error){answering(7, nil), answering(7, breakertest.Status(404))} {
			for _, r := range []breaker.Result[int]{b.Try(w.Context(), fn), plainResult(b.Do(w.Context(), fn)), plainResult(b.DoOr(w.Context(), fn, asked))} {
				require.Equal(w, 7, r.Value)
				require.Empty(w, r.Rescue)
				if r.Err != nil {
					require.Equal(w, breakertest.Status(404), r.Err)
				}
			}
		}
		require.Empty(w, b.Snapshot().Totals.Rescues)

		// Nor after a retry that ended in one.
		r := b.Try(w.Context(), w.Func(breakertest.ErrBoom, breakertest.Status(404)).Call)
		requireRetried(w, r.Err, 2, breakertest.Status(404))

		// Nor after the caller's own cancel: before the call, in it, during a wait.
		ctx, cancel := context.WithCancel(w.Context())
		_, err := b.Do(ctx, func(context.Context) (int, error) { cancel(); return 0, breakertest.ErrBoom })
		require.Equal(w, breakertest.ErrBoom, err)
		_, err = b.Do(ctx, answering(0, nil))
		require.Equal(w, context.Canceled, err)
		b.Circuit().Trip(nil)
		_, err = b.Do(ctx, answering(0, nil))
		require.Equal(w, context.Canceled, err)
		_, err = b.DoOr(w.Context(), nil, asked)
		require.ErrorIs(w, err, breaker.ErrNilFunc)
	})
	t.Run("cancel during a wait", func(t *testing.T) {
		breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
			b := w.Breaker(breaker.WithRetry(breaker.MaxRetries(2), breaker.Constant(time.Hour)), breaker.WithFallbackValue(-1))
			ctx, cancel := context.WithCancel(w.Context())
			defer time.AfterFunc(time.Second, cancel).Stop()
			r := b.Try(ctx, answering(0, breakertest.ErrBoom))
			require.ErrorIs(w, r.Err, context.Canceled)
			require.ErrorIs(w, r.Err, breakertest.ErrBoom)
			require.Empty(w, r.Rescue)
		})
	})
	t.Run("the caller's deadline is a failure", func(t *testing.T) {
		for _, ignored := range []bool{false, true} {
			breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
				opts := []breaker.Option{breaker.WithFallbackValue(-1)}
				if ignored {
					opts = append(opts, breaker.IgnoreCallerDeadline())
				}
				ctx, cancel := context.WithTimeout(w.Context(), time.Second)
				defer cancel()
				r := w.Breaker(opts...).Try(ctx, func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, ctx.Err() })
				require.Equal(w, ignored, r.Err != nil)
				require.Equal(w, ignored, r.Rescue == "")
			})
		}
	})
}

func plainResult(v int, err error) breaker.Result[int] {
	return breaker.Result[int]{Value: v, Err: err}
}

func TestF13_FailingFallbackKeepsBothErrors(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		b := w.Breaker(breaker.WithRetry(breaker.MaxRetries(1)),
			breaker.WithFailover("backup", answering(0, errBackup)),
			breaker.WithFallback("other", func(context.Context, error) (int, error) { return 0, &typedError{"other"} }))
		r := b.Try(w.Context(), answering(7, breakertest.ErrBoom))
		requireRetried(w, r.Err, 2, breakertest.ErrBoom)
		require.ErrorIs(w, r.Err, errBackup)
		var typed *typedError
		require.ErrorAs(w, r.Err, &typed)
		require.Equal(w, 7, r.Value, "the dependency's own value")
		require.Empty(w, r.Rescue)
		for _, text := range []string{"boom", "backup", "typed other"} {
			require.ErrorContains(w, r.Err, text)
		}
		b.Circuit().Trip(nil)
		_, err := b.Do(w.Context(), answering(7, nil))
		require.ErrorIs(w, err, breaker.ErrOpen)
		require.ErrorIs(w, err, errBackup)
	})
}

func TestF14_FallbackOfAnyType(t *testing.T) {
	type rate struct{ currency string }
	b := breaker.Must(breaker.New[*rate]("rates", breaker.WithFallback("fixed", func(_ context.Context, cause error) (*rate, error) {
		require.ErrorIs(t, cause, breaker.ErrOpen)
		return &rate{"EUR"}, nil
	})))
	b.Circuit().Trip(nil)
	got, err := b.Wrap(func(context.Context) (*rate, error) { return nil, nil })(t.Context())
	require.NoError(t, err)
	require.Equal(t, "EUR", got.currency)
}

func TestBC102_RegisteredFallbacksKnowWhy(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		var why error
		b := w.Breaker(breaker.WithFailureThreshold(3), breaker.WithRetry(breaker.MaxRetries(1), breaker.Constant(0)), breaker.WithResult(func(v int, err error) breaker.Outcome {
			if v == 13 {
				return breaker.Failure
			}
			return breaker.DefaultClassifier(err)
		}), breaker.WithFallback("why", func(_ context.Context, cause error) (int, error) { why = cause; return -1, nil }))
		b2 := breaker.Must(breaker.Over[int](b.Circuit(), breaker.WithFallback("why", func(_ context.Context, cause error) (int, error) { why = cause; return -1, nil })))

		r := b2.Try(w.Context(), answering(0, breakertest.ErrBoom))
		require.Equal(w, rescuedBy("why", -1, 1), r)
		require.Equal(w, breakertest.ErrBoom, why, "the error as it was")
		r = b.Try(w.Context(), answering(13, nil))
		require.Equal(w, rescuedBy("why", -1, 2), r)
		require.Equal(w, breaker.ErrUnacceptable, why)
		require.Equal(w, breaker.Open, b.State())
		r = b2.Try(w.Context(), answering(0, nil))
		require.Equal(w, rescuedBy("why", -1, 0), r)
		require.ErrorIs(w, why, breaker.ErrOpen)

		b.Circuit().Reset()
		_ = b.Try(w.Context(), answering(0, breakertest.ErrBoom))
		requireRetried(w, why, 2, breakertest.ErrBoom)
		b.Circuit().Reset()
		r = b.Try(w.Context(), func(context.Context) (int, error) { b.Circuit().Trip(nil); return 0, breakertest.ErrBoom })
		require.Equal(w, rescuedBy("why", -1, 1), r)
		require.ErrorIs(w, why, breakertest.ErrBoom)
		require.ErrorIs(w, why, breaker.ErrOpen)
	})
	t.Run("everything is settled before it runs", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			for name, end := range map[string]func(){"panic": func() { panic("fallback") }, "Goexit": runtime.Goexit} {
				var b *breaker.Breaker[int]
				b = w.Breaker(breaker.WithFailureThreshold(1), breaker.WithSuccessThreshold(1), breaker.WithFallback("ends", func(context.Context, error) (int, error) {
					s := b.Snapshot()
					require.Zero(w, s.InFlight+s.Probes, name)
					require.EqualValues(w, 1, s.Totals.Failures, name)
					end()
					return 0, nil
				}))
				got := breakertest.InGoroutine(func() { _, _ = b.Do(w.Context(), answering(0, breakertest.ErrBoom)) })
				require.Equal(w, name == "panic", got != nil)
				require.Equal(w, breaker.Open, b.State())
				w.At(w.Elapsed() + 30*time.Second)
				_, err := b.Do(w.Context(), answering(0, nil)) // no lock, no slot is held
				require.NoError(w, err)
				require.Equal(w, breaker.Closed, b.State())
				require.Zero(w, b.Snapshot().Totals.Panics, "the fallback's panic is not the dependency's")
			}
		})
	})
	t.Run("a nil one is a constructor error", func(t *testing.T) {
		requireTexts(t, errOf(breaker.New[int]("b", breaker.WithFallback[int]("x", nil))), "Fallback", "nil")
		requireTexts(t, errOf(breaker.New[int]("b", breaker.WithFailover[int]("x", nil))), "Failover", "nil")
	})
	t.Run("a bad value that nobody rescues is the answer", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			b := w.Breaker(breaker.WithResult(func(int, error) breaker.Outcome { return breaker.Failure }), breaker.WithFailover("backup", answering(0, errBackup)))
			require.Equal(w, breaker.Result[int]{Value: 13, Attempts: 1}, b.Try(w.Context(), answering(13, nil)))
		})
	})
}

func requireTexts(t require.TestingT, err error, texts ...string) {
	require.Error(t, err)
	for _, text := range texts {
		require.ErrorContains(t, err, text)
	}
}

// Of one call, one fallback answers, and the function does not run after it.
func TestBC104_OneFallbackAndNothingAfterIt(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		fallbacks, ended := 0, make(chan struct{})
		b := w.Breaker(breaker.WithRetry(breaker.MaxRetries(0)), breaker.WithFallback("late", func(context.Context, error) (int, error) { fallbacks++; return -1, nil }))
		r := b.Try(w.Context(), breaker.Detach(time.Second, func(context.Context) (int, error) {
			defer close(ended)
			<-time.After(5 * time.Second)
			return 0, breakertest.ErrBoom
		}))
		require.Equal(w, rescuedBy("late", -1, 1), r)
		require.Equal(w, time.Second, w.Elapsed())
		<-ended
		synctest.Wait()
		require.Equal(w, 1, fallbacks)
		require.EqualValues(w, 1, b.Snapshot().Totals.Calls)
	})
	t.Run("after attempts that all end late", func(t *testing.T) {
		breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
			var fallbacks, runs int
			b := w.Breaker(breaker.WithTimeout(time.Second), breaker.WithRetry(breaker.MaxRetries(2), breaker.Constant(0)),
				breaker.WithFallback("f", func(context.Context, error) (int, error) { fallbacks++; return -1, nil }))
			r := b.Try(w.Context(), func(context.Context) (int, error) {
				runs++
				<-time.After(5 * time.Second)
				return 0, breakertest.ErrBoom
			})
			require.Equal(w, rescuedBy("f", -1, 3), r)
			require.Equal(w, 1, fallbacks)
			require.Equal(w, 3, runs)
		})
	})
	t.Run("a full limiter", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			b := w.Breaker(breaker.WithMaxInFlight(1), breaker.WithFallbackValue(-1))
			p, err := b.Circuit().Acquire(w.Context())
			require.NoError(w, err)
			f := w.Func(nil)
			require.Equal(w, rescuedBy(breaker.RescueValue, -1, 0), b.Try(w.Context(), f.Call))
			p.Done(nil)
			require.Empty(w, f.At)
			require.EqualValues(w, 1, b.Snapshot().Totals.Calls)
		})
	})
	t.Run("a rejection further in is rescued, uncounted and not retried", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			for _, inner := range []error{breaker.ErrOpen, fmt.Errorf("pool: %w", breaker.ErrOpen), breaker.ErrTooManyInFlight} {
				b := w.Breaker(breaker.WithRetry(breaker.MaxRetries(3)), breaker.WithFallbackValue(-1))
				f := w.Func(inner)
				require.Equal(w, rescuedBy(breaker.RescueValue, -1, 1), b.Try(w.Context(), f.Call))
				require.Len(w, f.At, 1)
				totals := b.Snapshot().Totals
				require.Zero(w, totals.Failures)
				require.EqualValues(w, 1, totals.Ignored)
			}
		})
	})
	t.Run("no probe slot", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			b := w.Breaker(breaker.WithHalfOpenProbes(1), breaker.WithFallbackValue(-1))
			b.Circuit().Trip(nil)
			b.Circuit().OfferProbe()
			_, err := b.Circuit().Acquire(w.Context())
			require.NoError(w, err)
			require.Equal(w, rescuedBy(breaker.RescueValue, -1, 0), b.Try(w.Context(), answering(0, nil)))
		})
	})
}

// slowCall starts a call that started at time from, ends at time to, and brings v.
func slowCall(w *breakertest.World, all *sync.WaitGroup, b *breaker.Breaker[int], from, to time.Duration, v int) {
	all.Go(func() {
		w.At(from)
		got, err := b.Do(w.Context(), func(context.Context) (int, error) { w.At(to); return v, nil })
		assert.NoError(w, err)
		assert.Equal(w, v, got)
	})
}

func TestBC106_OnlyGoodAnswersAreKeptAndTheyAge(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		b := w.Breaker(farFromTripping, breaker.WithLastGood[int](60*time.Second, oneKey))
		fails := answering(99, breakertest.ErrBoom)
		var all sync.WaitGroup
		slowCall(w, &all, b, 0, 40*time.Second, 100) // v0, the slow one
		slowCall(w, &all, b, time.Nanosecond, time.Nanosecond, 1)
		w.At(30 * time.Second)
		require.Equal(w, rescuedBy(breaker.RescueCache, 1, 1), b.Try(w.Context(), fails))
		slowCall(w, &all, b, 35*time.Second, 35*time.Second, 2)
		w.At(41 * time.Second)
		all.Wait()
		require.Equal(w, rescuedBy(breaker.RescueCache, 2, 1), b.Try(w.Context(), fails), "the answer of an older call came later and replaced nothing")
		w.At(95*time.Second - 1)
		require.Equal(w, rescuedBy(breaker.RescueCache, 2, 1), b.Try(w.Context(), fails), "nor did it prolong anything")
		w.At(95 * time.Second)
		require.Equal(w, breakertest.ErrBoom, b.Try(w.Context(), fails).Err)
	})
	t.Run("at 61s", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			b := w.Breaker(farFromTripping, breaker.WithLastGood[int](60*time.Second, oneKey))
			_, _ = b.Do(w.Context(), answering(1, nil))
			w.At(61 * time.Second)
			require.Equal(w, breakertest.ErrBoom, b.Try(w.Context(), answering(0, breakertest.ErrBoom)).Err)
		})
	})
	t.Run("of two that started at one instant the later answer stays", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			b := w.Breaker(farFromTripping, breaker.WithLastGood[int](time.Hour, oneKey))
			_, _ = b.Do(w.Context(), answering(1, nil))
			_, _ = b.Do(w.Context(), answering(2, nil))
			require.Equal(w, rescuedBy(breaker.RescueCache, 2, 1), b.Try(w.Context(), answering(0, breakertest.ErrBoom)))
		})
	})
	t.Run("an answer of any age is better than one that has gone", func(t *testing.T) {
		breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
			b := w.Breaker(farFromTripping, breaker.WithLastGood[int](5*time.Second, oneKey))
			var all sync.WaitGroup
			slowCall(w, &all, b, 0, 20*time.Second, 1)
			slowCall(w, &all, b, time.Second, time.Second, 2)
			all.Wait()
			w.At(21 * time.Second)
			require.Equal(w, rescuedBy(breaker.RescueCache, 1, 1), b.Try(w.Context(), answering(0, breakertest.ErrBoom)))
		})
	})
}

// The memory has stored before Do returns, keeps a bounded number of keys, and drops the one used least recently.
func TestLastGoodMemoryIsBounded(t *testing.T) {
	ask := func(w *breakertest.World, b *breaker.Breaker[int], key string) (int, bool) {
		r := b.Try(withKey(w.Context(), key), answering(0, breakertest.ErrBoom))
		return r.Value, r.Rescue == breaker.RescueCache
	}
	put := func(w *breakertest.World, b *breaker.Breaker[int], key string, v int) {
		_, err := b.Do(withKey(w.Context(), key), answering(v, nil))
		require.NoError(w, err)
	}
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		for _, tc := range []struct {
			opts []breaker.LastGoodOption
			size int
		}{{nil, 1024}, {[]breaker.LastGoodOption{breaker.LastGoodSize(1)}, 1}, {[]breaker.LastGoodOption{breaker.LastGoodSize(10), breaker.LastGoodSize(3)}, 3}} {
			b := w.Breaker(farFromTripping, breaker.WithLastGood[int](time.Hour, keyIn, tc.opts...))
			for i := range tc.size + 2 {
				put(w, b, fmt.Sprint(i), i)
			}
			for i := range tc.size + 2 {
				v, ok := ask(w, b, fmt.Sprint(i))
				require.Equal(w, i >= 2, ok, "key %d of %d", i, tc.size)
				if ok {
					require.Equal(w, i, v)
				}
			}
		}
		b := w.Breaker(farFromTripping, breaker.WithLastGood[int](time.Hour, keyIn, breaker.LastGoodSize(2)))
		put(w, b, "a", 1)
		put(w, b, "b", 2)
		_, ok := ask(w, b, "a") // a use
		require.True(w, ok)
		put(w, b, "c", 3)
		_, ok = ask(w, b, "b")
		require.False(w, ok, "b was used least recently")
		put(w, b, "a", 4) // a use, too
		put(w, b, "d", 5)
		_, ok = ask(w, b, "c")
		require.False(w, ok)
		v, _ := ask(w, b, "a")
		require.Equal(w, 4, v)
	})
}

// Each view, and each circuit of a group, remembers for itself.
func TestLastGoodBelongsToItsView(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		opt := breaker.WithLastGood[int](time.Hour, oneKey)
		a := w.Breaker(farFromTripping, opt)
		view := breaker.Must(breaker.Over[int](a.Circuit(), opt))
		other := w.Breaker(farFromTripping, opt)
		_, _ = a.Do(w.Context(), answering(1, nil))
		for _, b := range []*breaker.Breaker[int]{view, other} {
			require.Equal(w, breakertest.ErrBoom, b.Try(w.Context(), answering(0, breakertest.ErrBoom)).Err)
		}
		g := breaker.Must(breaker.NewGroup[int](w.Options(opt)...))
		_, _ = g.Do(w.Context(), "x", answering(1, nil))
		require.Equal(w, breakertest.ErrBoom, g.Get("y").Try(w.Context(), answering(0, breakertest.ErrBoom)).Err)
		require.Equal(w, rescuedBy(breaker.RescueCache, 1, 1), g.Get("x").Try(w.Context(), answering(0, breakertest.ErrBoom)))
	})
}

// stubCache is a cache that does as a test says.
type stubCache struct {
	mu         sync.Mutex
	values     map[string]int
	gets, sets atomic.Int64
	get        func(ctx context.Context) error
	set        func(ctx context.Context, started time.Time, ttl time.Duration) error
}

func (c *stubCache) Get(ctx context.Context, key string) (int, bool, error) {
	c.gets.Add(1)
	if c.get != nil {
		if err := c.get(ctx); err != nil {
			return 99, true, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.values[key]
	return v, ok, nil
}

func (c *stubCache) Set(ctx context.Context, key string, v int, started time.Time, ttl time.Duration) error {
	c.sets.Add(1)
	if c.set != nil {
		if err := c.set(ctx, started, ttl); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.values == nil {
		c.values = map[string]int{}
	}
	c.values[key] = v
	return nil
}

func TestLastGoodCacheIsAsked(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		cache := &stubCache{}
		cache.set = func(ctx context.Context, started time.Time, ttl time.Duration) error {
			assert.Equal(w, time.Second, started.Sub(w.Start), "when the call started, not when it ended")
			assert.Equal(w, time.Minute, ttl)
			assert.NoError(w, ctx.Err(), "the caller's context has nothing to do with it")
			assert.Equal(w, "v", ctx.Value(contextKey{}), "but for its values")
			_, limited := ctx.Deadline()
			assert.True(w, limited)
			return nil
		}
		b := w.Breaker(farFromTripping, breaker.WithLastGood[int](time.Minute, oneKey, breaker.LastGoodCache[int](cache)))
		w.At(time.Second)
		ctx, cancel := context.WithCancel(withKey(w.Context(), "v"))
		_, err := b.Do(ctx, func(context.Context) (int, error) { w.At(3 * time.Second); return 7, nil })
		cancel()
		require.NoError(w, err)
		synctest.Wait()
		require.EqualValues(w, 1, cache.sets.Load())
		require.Equal(w, rescuedBy(breaker.RescueCache, 7, 1), b.Try(w.Context(), answering(0, breakertest.ErrBoom)))

		// Also when the caller's deadline has passed.
		ctx, cancel = context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		r := b.Try(ctx, func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, ctx.Err() })
		require.Equal(w, rescuedBy(breaker.RescueCache, 7, 1), r)
	})
}

// A cache that hangs, fails or panics delays no caller: storing not at all, looking up by 100ms at most.
func TestLastGoodCacheNeverDelaysTheCaller(t *testing.T) {
	t.Run("a Set that hangs", func(t *testing.T) {
		breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
			var events breakertest.Events
			release := make(chan struct{})
			cache := &stubCache{set: func(context.Context, time.Time, time.Duration) error { <-release; return nil }}
			b := w.Breaker(farFromTripping, events.Option(), breaker.WithLastGood[int](time.Hour, keyIn, breaker.LastGoodCache[int](cache)))
			for i := range 100 {
				v, err := b.Do(withKey(w.Context(), fmt.Sprint(i)), answering(i, nil))
				require.NoError(w, err)
				require.Equal(w, i, v)
			}
			require.Zero(w, w.Elapsed())
			synctest.Wait()
			require.EqualValues(w, 16, cache.sets.Load(), "no more at a time")
			close(release)
			synctest.Wait()
			_, _ = b.Do(withKey(w.Context(), "after"), answering(7, nil))
			synctest.Wait()
			require.Equal(w, rescuedBy(breaker.RescueCache, 7, 1), b.Try(withKey(w.Context(), "after"), answering(0, breakertest.ErrBoom)))
			require.Empty(w, events.StoreErrors())
		})
	})
	t.Run("a Set is given a limit", func(t *testing.T) {
		breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
			var events breakertest.Events
			cache := &stubCache{set: func(ctx context.Context, _ time.Time, _ time.Duration) error { <-ctx.Done(); return ctx.Err() }}
			b := w.Breaker(farFromTripping, events.Option(), breaker.WithLastGood[int](time.Hour, oneKey, breaker.LastGoodCache[int](cache)))
			_, err := b.Do(w.Context(), answering(1, nil))
			require.NoError(w, err)
			w.At(time.Minute)
			synctest.Wait()
			require.Len(w, events.StoreErrors(), 1)
			require.ErrorIs(w, events.StoreErrors()[0], context.DeadlineExceeded)
		})
	})
	t.Run("a Get that hangs", func(t *testing.T) {
		breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
			var events breakertest.Events
			release := make(chan struct{})
			cache := &stubCache{get: func(context.Context) error { <-release; return nil }}
			b := w.Breaker(farFromTripping, events.Option(), breaker.WithLastGood[int](time.Hour, oneKey, breaker.LastGoodCache[int](cache)), breaker.WithFallbackValue(-1))
			for i := range 3 {
				require.Equal(w, rescuedBy(breaker.RescueValue, -1, 1), b.Try(w.Context(), answering(0, breakertest.ErrBoom)))
				require.Equal(w, time.Duration(i+1)*100*time.Millisecond, w.Elapsed())
			}
			require.Len(w, events.StoreErrors(), 3)
			require.ErrorIs(w, events.StoreErrors()[0], context.DeadlineExceeded)
			require.ErrorContains(w, events.StoreErrors()[0], "test")
			close(release)
		})
	})
	t.Run("a Get that hangs, on an injected clock", func(t *testing.T) {
		breakertest.Guard(t, breakertest.Patience, func() {
			clk := newAskedClock()
			release := make(chan struct{})
			defer close(release)
			cache := &stubCache{get: func(context.Context) error { <-release; return nil }}
			b := breaker.Must(breaker.New[int]("test", breaker.WithClock(clk), breaker.WithLastGood[int](time.Hour, oneKey, breaker.LastGoodCache[int](cache))))
			done := make(chan error)
			go func() { _, err := b.Do(t.Context(), answering(0, breakertest.ErrBoom)); done <- err }()
			require.Equal(t, 100*time.Millisecond, <-clk.asked)
			clk.Add(100 * time.Millisecond)
			require.Equal(t, breakertest.ErrBoom, <-done)
		})
	})
	for name, end := range map[string]func() error{
		"fails":            func() error { return errBackup },
		"panics":           func() error { panic("cache") },
		"ends its routine": func() error { runtime.Goexit(); return nil },
	} {
		t.Run("one that "+name, func(t *testing.T) {
			breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
				var events breakertest.Events
				var log logLines
				cache := &stubCache{
					get: func(context.Context) error { return end() },
					set: func(context.Context, time.Time, time.Duration) error { return end() },
				}
				b := w.Breaker(farFromTripping, events.Option(), log.option(), breaker.WithLastGood[int](time.Hour, oneKey, breaker.LastGoodCache[int](cache)))
				for range 40 { // more than there are places
					v, err := b.Do(w.Context(), answering(7, nil))
					require.NoError(w, err)
					require.Equal(w, 7, v)
					synctest.Wait()
				}
				require.EqualValues(w, 40, cache.sets.Load(), "each place is free again")
				require.Equal(w, breaker.Result[int]{Err: breakertest.ErrBoom, Attempts: 1}, b.Try(w.Context(), answering(0, breakertest.ErrBoom)), "the cache's trouble is not the caller's")
				synctest.Wait()
				require.Zero(w, w.Elapsed())
				told := events.StoreErrors()
				require.NotEmpty(w, told)
				for _, err := range told {
					require.ErrorContains(w, err, `"test"`)
				}
				if name == "fails" {
					require.Len(w, told, 41)
					require.ErrorIs(w, told[0], errBackup)
					return
				}
				require.Contains(w, log.String(), "Cache.Set")
				require.Contains(w, log.String(), "Cache.Get")
			})
		})
	}
	t.Run("a StoreError hook that panics", func(t *testing.T) {
		breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
			cache := &stubCache{get: func(context.Context) error { return errBackup }, set: func(context.Context, time.Time, time.Duration) error { return errBackup }}
			b := w.Breaker(breaker.WithLastGood[int](time.Hour, oneKey, breaker.LastGoodCache[int](cache)),
				breaker.WithHooks(breaker.Hooks{StoreError: func(error) { panic("hook") }}))
			_, err := b.Do(w.Context(), answering(7, nil))
			require.NoError(w, err)
			_, err = b.Do(w.Context(), answering(7, breakertest.ErrBoom))
			require.Equal(w, breakertest.ErrBoom, err)
		})
	})
}

// logLines is a logger whose text can be read.
type logLines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logLines) option() breaker.Option {
	return breaker.WithLogger(slog.New(slog.NewTextHandler(l, nil)))
}

// A user's function for the key that panics comes out of the call, which is settled all the same.
func TestLastGoodKeyThatPanics(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		b := w.Breaker(breaker.WithLastGood[int](time.Hour, func(context.Context) string { panic("key") }))
		for _, err := range []error{nil, breakertest.ErrBoom} {
			require.Equal(w, "key", breakertest.PanicOf(func() { _, _ = b.Do(w.Context(), answering(0, err)) }))
		}
		s := b.Snapshot()
		require.Zero(w, s.InFlight)
		require.EqualValues(w, 1, s.Totals.Successes)
		require.EqualValues(w, 1, s.Totals.Failures)
		require.Zero(w, s.Totals.Panics)
	})
}

func TestO07_RetryCacheAndFailoverAreCounted(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		var events breakertest.Events
		down := true
		b := w.Breaker(farFromTripping, events.Option(), breaker.WithRetry(breaker.MaxRetries(1)),
			breaker.WithFailover("backup", func(context.Context) (int, error) {
				if down {
					return 0, errBackup
				}
				return 2, nil
			}),
			breaker.WithLastGood[int](time.Hour, oneKey),
			breaker.WithFallback("custom", func(context.Context, error) (int, error) { return 3, nil }))
		kinds := []breaker.Rescue{
			b.Try(w.Context(), answering(0, breakertest.ErrBoom)).Rescue,
			b.Try(w.Context(), w.Func(breakertest.ErrBoom, nil).Call).Rescue,
			b.Try(w.Context(), answering(0, breakertest.ErrBoom)).Rescue,
		}
		down = false
		kinds = append(kinds, b.Try(w.Context(), answering(0, breakertest.ErrBoom)).Rescue, b.Try(w.Context(), answering(0, nil)).Rescue)
		require.Equal(w, []breaker.Rescue{"custom", breaker.RescueRetry, breaker.RescueCache, breaker.RescueFailover, ""}, kinds)
		require.Equal(w, map[breaker.Rescue]uint64{"custom": 1, breaker.RescueRetry: 1, breaker.RescueCache: 1, breaker.RescueFailover: 1}, b.Snapshot().Totals.Rescues)
		for i, kind := range []breaker.Rescue{breaker.RescueFailover, "custom", breaker.RescueRetry, breaker.RescueFailover, breaker.RescueCache, breaker.RescueFailover} {
			e := events.Rescues[i]
			require.Equal(w, kind, e.Kind)
			require.Equal(w, "test", e.Name)
			require.ErrorIs(w, e.Cause, breakertest.ErrBoom)
			require.Equal(w, i == 0 || i == 3, errors.Is(e.Err, errBackup))
		}
		require.Len(w, events.Rescues, 6)
	})
	for kind, text := range map[breaker.Rescue]string{
		breaker.RescueRetry: "retry", breaker.RescueCache: "cache", breaker.RescueFailover: "failover", breaker.RescueValue: "value", breaker.RescueAlt: "alt",
	} {
		require.EqualValues(t, text, kind)
	}
}

type (
	namedValue int
	keyString  string
)

func (keyString) Error() string { return "keyString" }

// A value must be assignable to the breaker's type; otherwise the error names both.
func TestFallbackValueAssignability(t *testing.T) {
	ctx := t.Context()
	rescued := func(t *testing.T, got any, err error, want any) {
		t.Helper()
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	t.Run("the same type", func(t *testing.T) {
		b := breaker.Must(breaker.New[[]string]("b", breaker.WithFallbackValue([]string{"x"})))
		v, err := b.Do(ctx, func(context.Context) ([]string, error) { return nil, breakertest.ErrBoom })
		rescued(t, v, err, []string{"x"})
	})
	t.Run("a value for an interface", func(t *testing.T) {
		b := breaker.Must(breaker.New[any]("b", breaker.WithFallbackValue(7)))
		v, err := b.Do(ctx, func(context.Context) (any, error) { return nil, breakertest.ErrBoom })
		rescued(t, v, err, 7)
		e := breaker.Must(breaker.New[error]("b", breaker.WithFallbackValue(keyString("x"))))
		w, err := e.Do(ctx, func(context.Context) (error, error) { return nil, breakertest.ErrBoom })
		rescued(t, w, err, keyString("x"))
	})
	t.Run("an interface for a wider one", func(t *testing.T) {
		b := breaker.Must(breaker.New[any]("b", breaker.WithFallbackValue[error](breakertest.ErrClient)))
		v, err := b.Do(ctx, func(context.Context) (any, error) { return 1, breakertest.ErrBoom })
		rescued(t, v, err, breakertest.ErrClient)
	})
	t.Run("nothing", func(t *testing.T) {
		b := breaker.Must(breaker.New[any]("b", breaker.WithFallbackValue[error](nil)))
		v, err := b.Do(ctx, func(context.Context) (any, error) { return 1, breakertest.ErrBoom })
		rescued(t, v, err, nil)
		p := breaker.Must(breaker.New[*int]("b", breaker.WithFallbackValue[*int](nil)))
		q, err := p.Do(ctx, func(context.Context) (*int, error) { return new(int), breakertest.ErrBoom })
		rescued(t, q, err, (*int)(nil))
	})
	t.Run("an unnamed type of the same kind", func(t *testing.T) {
		type list []int
		b := breaker.Must(breaker.New[list]("b", breaker.WithFallbackValue([]int{1})))
		v, err := b.Do(ctx, func(context.Context) (list, error) { return nil, breakertest.ErrBoom })
		rescued(t, v, err, list{1})
	})
	t.Run("what is not assignable", func(t *testing.T) {
		requireTexts(t, errOf(breaker.New[int]("b", breaker.WithFallbackValue("x"))), "FallbackValue", "int", "string")
		requireTexts(t, errOf(breaker.New[int64]("b", breaker.WithFallbackValue(1))), "FallbackValue", "int64", "got int")
		requireTexts(t, errOf(breaker.New[namedValue]("b", breaker.WithFallbackValue(1))), "FallbackValue", "namedValue", "int")
		requireTexts(t, errOf(breaker.New[int]("b", breaker.WithFallbackValue[any](1))), "FallbackValue", "int", "interface {}")
		c := breaker.Must(breaker.NewCircuit("c"))
		requireTexts(t, errOf(breaker.Over[int](c, breaker.WithFallbackValue("x"))), "FallbackValue", "int", "string")
		requireTexts(t, errOf(breaker.NewGroup[int](breaker.WithFallbackValue("x"))), "FallbackValue", "int", "string")
	})
}

func TestFallbackNonsenseIsNamed(t *testing.T) {
	fallback := func(context.Context, error) (string, error) { return "", nil }
	failover := func(context.Context) (string, error) { return "", nil }
	for _, tc := range []struct {
		opt   breaker.Option
		texts []string
	}{
		{breaker.WithFallback("", fallback), []string{"Fallback.Name"}},
		{breaker.WithFailover("", failover), []string{"Failover.Name"}},
		{breaker.WithFallback("x", fallback), []string{"Fallback", "int", "string"}},
		{breaker.WithFailover("x", failover), []string{"int", "string"}},
		{breaker.WithLastGood[string](time.Hour, oneKey), []string{"int", "string"}},
		{breaker.WithLastGood[int](0, oneKey), []string{"LastGood.TTL", "0s"}},
		{breaker.WithLastGood[int](-time.Second, oneKey), []string{"LastGood.TTL", "-1s"}},
		{breaker.WithLastGood[int](time.Hour, nil), []string{"LastGood.Key", "nil"}},
		{breaker.WithLastGood[int](time.Hour, oneKey, breaker.LastGoodSize(0)), []string{"LastGoodSize", "0"}},
		{breaker.WithLastGood[int](time.Hour, oneKey, breaker.LastGoodSize(-1)), []string{"LastGoodSize", "-1"}},
		{breaker.WithLastGood[int](time.Hour, oneKey, breaker.LastGoodCache[int](nil)), []string{"LastGoodCache", "nil"}},
		{breaker.WithLastGood[int](time.Hour, oneKey, breaker.LastGoodCache[int]((*stubCache)(nil))), []string{"LastGoodCache", "nil"}},
		{breaker.WithLastGood[int](time.Hour, oneKey, nil), []string{"LastGoodOption", "nil"}},
		{breaker.WithLastGood[string](time.Hour, oneKey, breaker.LastGoodCache[int](&stubCache{})), []string{"LastGoodCache", "string", "stubCache"}},
		{breaker.WithLastGood[int](-1, nil, breaker.LastGoodSize(-1)), []string{"LastGood.TTL", "LastGood.Key", "LastGoodSize"}},
	} {
		requireTexts(t, errOf(breaker.New[int]("b", tc.opt)), tc.texts...)
		requireTexts(t, errOf(breaker.NewGroup[int](tc.opt)), tc.texts...)
	}
	for name, opt := range map[string]breaker.Option{
		"Fallback":      breaker.WithFallback("x", fallback),
		"Failover":      breaker.WithFailover("x", failover),
		"FallbackValue": breaker.WithFallbackValue("x"),
		"LastGood":      breaker.WithLastGood[string](time.Hour, oneKey),
	} {
		requireTexts(t, errOf(breaker.NewCircuit("c", opt)), name, "NewCircuit")
		requireTexts(t, breaker.Must(breaker.NewCircuit("c")).Configure(opt), name, "Configure")
	}
}

// One list of options may serve many breakers, which share nothing by it.
func TestFallbackOptionsMayBeReused(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		opts := make([]breaker.Option, 0, 10)
		opts = append(opts, farFromTripping, breaker.WithLastGood[int](time.Hour, oneKey))
		first := w.Breaker(append(opts, breaker.WithFallbackValue(1))...)
		second := w.Breaker(append(opts, breaker.WithFallbackValue(2))...)
		_, _ = first.Do(w.Context(), answering(5, nil))
		require.Equal(w, rescuedBy(breaker.RescueCache, 5, 1), first.Try(w.Context(), answering(0, breakertest.ErrBoom)))
		require.Equal(w, rescuedBy(breaker.RescueValue, 2, 1), second.Try(w.Context(), answering(0, breakertest.ErrBoom)))
	})
}

// Many callers at once, on one memory.
func TestLastGoodUnderConcurrency(t *testing.T) {
	breakertest.Guard(t, breakertest.Patience, func() {
		b := breaker.Must(breaker.New[string]("test", farFromTripping, breaker.WithLastGood[string](time.Hour, keyIn, breaker.LastGoodSize(8))))
		var all sync.WaitGroup
		for g := range 8 {
			all.Go(func() {
				for i := range 500 {
					key := fmt.Sprint((g + i) % 12)
					ctx := withKey(context.Background(), key)
					v, err := b.Do(ctx, func(context.Context) (string, error) {
						if i%3 == 0 {
							return "", breakertest.ErrBoom
						}
						return key + strings.Repeat("x", i%5), nil
					})
					if err == nil {
						assert.True(t, strings.TrimRight(v, "x") == key, "%q under %q", v, key)
					}
				}
			})
		}
		all.Wait()
		require.Zero(t, b.Snapshot().InFlight)
	})
}

func TestBC102_AlternativeKnowsWhyAndHidesNothing(t *testing.T) {
	errAlt := errors.New("alt failed too")
	breakertest.BothClocks(t, func(w *breakertest.World) {
		r := w.R0()
		fails := func(context.Context) (int, error) { return 0, breakertest.ErrBoom }

		var why error
		v, err := r.B.DoOr(w.Context(), fails, func(_ context.Context, e error) (int, error) { why = e; return 42, nil })
		require.NoError(w, err)
		require.Equal(w, 42, v)
		require.Same(w, breakertest.ErrBoom, why)

		_, err = r.B.DoOr(w.Context(), fails, func(context.Context, error) (int, error) {
			require.Zero(w, r.C.Snapshot().InFlight, "all is settled by now")
			return 0, errAlt
		})
		require.ErrorIs(w, err, breakertest.ErrBoom)
		require.ErrorIs(w, err, errAlt)
		require.EqualValues(w, 2, r.C.Snapshot().ConsecutiveFailures, "the alternative's failure is not the dependency's")

		_, err = r.B.DoOr(w.Context(), fails, nil)
		require.Same(w, breakertest.ErrBoom, err)
		r.Is(breaker.Open)

		_, err = r.B.DoOr(w.Context(), fails, func(_ context.Context, e error) (int, error) { why = e; return 0, errAlt })
		require.ErrorIs(w, why, breaker.ErrOpen)
		require.ErrorIs(w, err, breaker.ErrOpen)
		require.ErrorIs(w, err, errAlt)
		r.Idle()
	})
	t.Run("never after a success or the caller's cancel", func(t *testing.T) {
		breakertest.BothClocks(t, func(w *breakertest.World) {
			r := w.R0()
			v, err := r.B.DoOr(w.Context(), func(context.Context) (int, error) { return 1, nil }, w.NoAlternative)
			require.NoError(w, err)
			require.Equal(w, 1, v)
			ctx, cancel := context.WithCancel(w.Context())
			_, err = r.B.DoOr(ctx, func(ctx context.Context) (int, error) { cancel(); return 0, ctx.Err() }, w.NoAlternative)
			require.ErrorIs(w, err, context.Canceled)
			_, err = r.B.DoOr(ctx, func(context.Context) (int, error) { return 0, nil }, w.NoAlternative)
			require.ErrorIs(w, err, context.Canceled)
		})
	})
	t.Run("for an inner circuit's rejection", func(t *testing.T) {
		breakertest.BothClocks(t, func(w *breakertest.World) {
			outer, inner := w.R0(), w.R0()
			inner.Trip()
			v, err := outer.B.DoOr(w.Context(), func(ctx context.Context) (int, error) {
				return inner.B.Do(ctx, func(context.Context) (int, error) { return 1, nil })
			}, func(context.Context, error) (int, error) { return 42, nil })
			require.NoError(w, err)
			require.Equal(w, 42, v)
			require.Zero(w, outer.C.Snapshot().Totals.Failures)
		})
	})
	t.Run("for a call too many", func(t *testing.T) {
		breakertest.BothClocks(t, func(w *breakertest.World) {
			r := w.R0(breaker.WithMaxInFlight(1))
			r.Gate()
			ran := r.Ran.Load()
			v, err := r.B.DoOr(w.Context(), w.NoCall,
				func(context.Context, error) (int, error) { return 42, nil })
			require.NoError(w, err)
			require.Equal(w, 42, v)
			require.Equal(w, ran, r.Ran.Load())
		})
	})
	t.Run("no value twice: an attempt that overran brought its answer", func(t *testing.T) {
		breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
			r := w.R0(breaker.WithTimeout(time.Second))
			v, err := r.B.DoOr(w.Context(), func(context.Context) (int, error) { <-time.After(2 * time.Second); return 7, nil },
				w.NoAlternative)
			require.NoError(w, err)
			require.Equal(w, 7, v)
			require.EqualValues(w, 1, r.C.Snapshot().ConsecutiveFailures)
		})
	})
}

// O07 needs retry and the registered fallbacks; what DoOr does is here.
func TestO07_RescuesAreCountedByKind(t *testing.T) {
	breakertest.BothClocks(t, func(w *breakertest.World) {
		r := w.Circuit()
		alt := func(context.Context, error) (int, error) { return 42, nil }
		for range 6 { // five failures, one rejection
			v, err := r.B.DoOr(w.Context(), func(context.Context) (int, error) { return 0, breakertest.ErrBoom }, alt)
			require.NoError(w, err)
			require.Equal(w, 42, v)
		}
		_, err := r.B.DoOr(w.Context(), nil, alt)
		require.Error(w, err)
		require.Equal(w, map[breaker.Rescue]uint64{breaker.RescueAlt: 6}, r.C.Snapshot().Totals.Rescues)
	})
}

// Fallbacks went on being asked for a caller who had gone while the first of them worked.
func TestNoFallbackAfterTheCallerHasGone(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	asked := 0
	gone := func(ctx context.Context) (int, error) { cancel(); return 0, ctx.Err() }
	next := func(context.Context) (int, error) { asked++; return 7, nil }
	b := breaker.Must(breaker.New[int]("c", breaker.WithFailover("A", gone), breaker.WithFailover("B", next)))
	_, err := b.DoOr(ctx, func(context.Context) (int, error) { return 0, breakertest.ErrBoom }, func(ctx context.Context, _ error) (int, error) { return next(ctx) })
	require.ErrorIs(t, err, breakertest.ErrBoom)
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, asked)
}
