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
)

var errBackup = errors.New("the backup failed too")

// rfgOneKey puts every call under one key.
func rfgOneKey(context.Context) string { return "k" }

type rfgKeyOf struct{}

// rfgWithKey is a context that carries the key of a call.
func rfgWithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, rfgKeyOf{}, key)
}

func rfgKey(ctx context.Context) string { key, _ := ctx.Value(rfgKeyOf{}).(string); return key }

// rfgAnswer is a function that answers v, or fails.
func rfgAnswer(v int, err error) func(context.Context) (int, error) {
	return func(context.Context) (int, error) { return v, err }
}

// rfgBy is a result by a fallback after so many attempts.
func rfgBy(kind breaker.Rescue, v, attempts int) breaker.Result[int] {
	return breaker.Result[int]{Value: v, Attempts: attempts, Rescue: kind}
}

func TestF01_OpenServesTheStoredValue(t *testing.T) {
	rfgBoth(t, func(w *rfgWorld) {
		b := w.breaker(breaker.WithLastGood[int](10*time.Minute, rfgOneKey))
		v, err := b.Do(w.Context(), rfgAnswer(42, nil))
		require.NoError(w, err)
		require.Equal(w, 42, v)
		for range 5 {
			require.Equal(w, rfgBy(breaker.RescueCache, 42, 1), b.Try(w.Context(), rfgAnswer(0, errBoom)))
		}
		require.Equal(w, breaker.Open, b.State())
		f := w.fn(nil)
		require.Equal(w, rfgBy(breaker.RescueCache, 42, 0), b.Try(w.Context(), f.call))
		require.Empty(w, f.at, "the dependency was not asked")
		require.Zero(w, w.elapsed())
	})
}

func TestF02_ExhaustedRetriesServeTheStoredValue(t *testing.T) {
	rfgBoth(t, func(w *rfgWorld) {
		b := w.breaker(breaker.WithRetry(breaker.MaxRetries(3)), breaker.WithLastGood[int](10*time.Minute, rfgOneKey))
		_, err := b.Do(w.Context(), rfgAnswer(42, nil))
		require.NoError(w, err)
		require.Equal(w, rfgBy(breaker.RescueCache, 42, 4), b.Try(w.Context(), rfgAnswer(0, rfgStatus(503))))
		require.Equal(w, breaker.Closed, b.State())
		require.EqualValues(w, 4, b.Snapshot().ConsecutiveFailures, "a rescue is no success of the dependency")
	})
}

func TestF03_NothingStored(t *testing.T) {
	rfgBoth(t, func(w *rfgWorld) {
		var events rfgEvents
		b := w.breaker(breaker.WithLastGood[int](10*time.Minute, rfgOneKey), events.option())
		for range 5 {
			r := b.Try(w.Context(), rfgAnswer(0, rfgStatus(503)))
			require.Equal(w, breaker.Result[int]{Err: rfgStatus(503), Attempts: 1}, r, "the error as it was")
		}
		_, err := b.Do(w.Context(), rfgAnswer(0, nil))
		var open *breaker.OpenError
		require.True(w, errors.As(err, &open) && error(open) == err, "the rejection as it was")
		require.Empty(w, events.rescues, "nothing to say is no failure")
		require.Empty(w, b.Snapshot().Totals.Rescues)
	})
}

func TestF04_StoredOnSuccessForItsTTL(t *testing.T) {
	for _, ttl := range []time.Duration{600 * time.Second, 3600 * time.Second, 1} {
		t.Run(ttl.String(), func(t *testing.T) {
			rfgBoth(t, func(w *rfgWorld) {
				b := w.breaker(rfgFar, breaker.WithLastGood[int](ttl, rfgOneKey))
				_, err := b.Do(w.Context(), rfgAnswer(1, nil))
				require.NoError(w, err)
				w.at(ttl - 1)
				require.Equal(w, rfgBy(breaker.RescueCache, 1, 1), b.Try(w.Context(), rfgAnswer(99, errBoom)))
				w.at(ttl)
				require.Equal(w, errBoom, b.Try(w.Context(), rfgAnswer(99, errBoom)).Err, "neither the TTL nor a use prolongs it")
				_, err = b.Do(w.Context(), rfgAnswer(2, nil))
				require.NoError(w, err)
				require.Equal(w, rfgBy(breaker.RescueCache, 2, 1), b.Try(w.Context(), rfgAnswer(99, errBoom)))
			})
		})
	}
	// What is not a success is not stored.
	t.Run("nothing else", func(t *testing.T) {
		rfgBubble(t, func(w *rfgWorld) {
			b := w.breaker(rfgFar, breaker.WithIgnore(errClient), breaker.WithTimeout(time.Second),
				breaker.WithResult(func(v int, err error) breaker.Outcome {
					switch {
					case v == 13 || errors.Is(err, errBoom):
						return breaker.Failure
					case v == 14:
						return breaker.Ignored
					}
					return breaker.Success
				}),
				breaker.WithLastGood[int](time.Hour, rfgOneKey), breaker.WithFallback("static", func(context.Context, error) (int, error) { return 77, nil }))
			stored := func() (int, breaker.Rescue) {
				r := b.Try(w.Context(), rfgAnswer(0, errBoom))
				require.NoError(w, r.Err)
				return r.Value, r.Rescue
			}
			_, kind := stored()
			require.Equal(w, breaker.Rescue("static"), kind, "nothing yet, and a fallback's answer is not kept")
			for what, fn := range map[string]func(context.Context) (int, error){
				"a failure with a value":        rfgAnswer(5, errBoom),
				"an ignored error with a value": rfgAnswer(5, errClient),
				"a value that is a failure":     rfgAnswer(13, nil),
				"a value that is ignored":       rfgAnswer(14, nil),
				"an error that is a success":    rfgAnswer(5, errors.New("fine")),
				"a value that came too late":    func(context.Context) (int, error) { <-time.After(2 * time.Second); return 5, nil },
				"a panic":                       func(context.Context) (int, error) { panic("boom") },
			} {
				_ = panicOf(func() { _, _ = b.Do(w.Context(), fn) })
				_, kind = stored()
				require.Equal(w, breaker.Rescue("static"), kind, what)
			}
			ctx, cancel := context.WithCancel(w.Context())
			_, _ = b.Do(ctx, func(context.Context) (int, error) { cancel(); return 5, ctx.Err() })
			_, kind = stored()
			require.Equal(w, breaker.Rescue("static"), kind, "the caller's cancel")

			_, err := b.Do(w.Context(), rfgAnswer(6, nil))
			require.NoError(w, err)
			v, kind := stored()
			require.Equal(w, 6, v)
			require.Equal(w, breaker.RescueCache, kind)
		})
	})
	t.Run("a success after a retry, too", func(t *testing.T) {
		rfgBoth(t, func(w *rfgWorld) {
			b := w.breaker(breaker.WithRetry(breaker.MaxRetries(1)), breaker.WithLastGood[int](time.Hour, rfgOneKey))
			require.Equal(w, breaker.RescueRetry, b.Try(w.Context(), w.fn(errBoom, nil).call).Rescue)
			require.Equal(w, rfgBy(breaker.RescueCache, 2, 2), b.Try(w.Context(), rfgAnswer(0, errBoom)))
		})
	})
}

func TestF05_NeverServedWhileTheDependencyAnswers(t *testing.T) {
	rfgBoth(t, func(w *rfgWorld) {
		b := w.breaker(breaker.WithLastGood[int](time.Hour, rfgOneKey))
		for v := range 3 {
			require.Equal(w, breaker.Result[int]{Value: v, Attempts: 1}, b.Try(w.Context(), rfgAnswer(v, nil)))
		}
		require.Equal(w, rfgBy(breaker.RescueCache, 2, 1), b.Try(w.Context(), rfgAnswer(0, errBoom)), "the latest")
	})
}

func TestF06_KeysAreTheCallers(t *testing.T) {
	rfgBoth(t, func(w *rfgWorld) {
		b := w.breaker(rfgFar, breaker.WithLastGood[int](time.Hour, rfgKey))
		of := func(body string) context.Context {
			return rfgWithKey(w.Context(), fmt.Sprintf("client POST http://x/ %x", sha256.Sum256([]byte(body))))
		}
		for v, body := range []string{"one", "two"} {
			_, err := b.Do(of(body), rfgAnswer(v, nil))
			require.NoError(w, err)
		}
		for v, body := range []string{"one", "two"} {
			require.Equal(w, rfgBy(breaker.RescueCache, v, 1), b.Try(of(body), rfgAnswer(9, errBoom)))
		}
		require.Equal(w, errBoom, b.Try(of("three"), rfgAnswer(9, errBoom)).Err)
	})
	t.Run("an empty key is neither stored nor served", func(t *testing.T) {
		rfgBubble(t, func(w *rfgWorld) {
			cache := &rfgCache{}
			for _, opt := range []breaker.Option{
				breaker.WithLastGood[int](time.Hour, rfgKey),
				breaker.WithLastGood[int](time.Hour, rfgKey, breaker.LastGoodCache[int](cache)),
			} {
				b := w.breaker(rfgFar, opt)
				_, err := b.Do(w.Context(), rfgAnswer(7, nil))
				require.NoError(w, err)
				require.Equal(w, breaker.Result[int]{Err: errBoom, Attempts: 1}, b.Try(w.Context(), rfgAnswer(0, errBoom)))
			}
			synctest.Wait()
			require.Zero(w, cache.gets.Load()+cache.sets.Load(), "the cache is not asked")
		})
	})
}

func TestF07_OpenPrimaryGoesToTheBackup(t *testing.T) {
	rfgBoth(t, func(w *rfgWorld) {
		backup := w.fn(nil)
		b := w.breaker(breaker.WithRetry(breaker.MaxRetries(2)), breaker.WithFailover("backup", backup.call))
		b.Circuit().Trip(errBoom)
		primary := w.fn(nil)
		require.Equal(w, rfgBy(breaker.RescueFailover, 1, 0), b.Try(w.Context(), primary.call))
		require.Empty(w, primary.at)
		require.Len(w, backup.at, 1)
		require.Zero(w, w.elapsed())
	})
}

func TestF08_ExhaustedPrimaryGoesToTheBackup(t *testing.T) {
	rfgBoth(t, func(w *rfgWorld) {
		backup := w.fn(nil)
		b := w.breaker(breaker.WithRetry(breaker.MaxRetries(2)), breaker.WithFailover("backup", backup.call))
		primary := w.fn(errBoom)
		require.Equal(w, rfgBy(breaker.RescueFailover, 1, 3), b.Try(w.Context(), primary.call))
		require.Len(w, primary.at, 3)
		require.Len(w, backup.at, 1, "it is not retried")
		require.Equal(w, breaker.Closed, b.State())
	})
}

func TestF09_TheBackupHasItsOwnCircuit(t *testing.T) {
	rfgBoth(t, func(w *rfgWorld) {
		backup := breaker.Must(breaker.New[int]("backup", w.options()...))
		upstream := w.fn(errBackup)
		b := w.breaker(breaker.WithFailover("backup", backup.Wrap(upstream.call)))
		for range 5 {
			_, err := b.Do(w.Context(), rfgAnswer(0, errBoom))
			require.ErrorIs(w, err, errBoom)
			require.ErrorIs(w, err, errBackup)
			require.ErrorContains(w, err, "backup")
		}
		require.Equal(w, breaker.Open, b.State())
		require.Equal(w, breaker.Open, backup.State())
		_, err := b.Do(w.Context(), rfgAnswer(0, nil))
		require.ErrorIs(w, err, breaker.ErrOpen)
		require.Len(w, upstream.at, 5)

		last := breaker.Must(breaker.Over[int](b.Circuit(), breaker.WithFailover("backup", backup.Wrap(upstream.call)), breaker.WithFallbackValue(-1)))
		require.Equal(w, rfgBy(breaker.RescueValue, -1, 0), last.Try(w.Context(), rfgAnswer(0, nil)))
	})
}

// Fallbacks are asked in the order given, whatever their kind; DoOr's alternative comes last.
func TestF10_FallbacksRunInOrder(t *testing.T) {
	rfgBoth(t, func(w *rfgWorld) {
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
		var events rfgEvents
		b := w.breaker(rfgFar, events.option(),
			failover("first", errBackup),
			breaker.WithFallback("second", says("second", errClient)),
			breaker.WithLastGood[int](time.Hour, func(context.Context) string { asked = append(asked, "third"); return "" }),
			failover("fourth", errBackup),
			breaker.WithFallback("fifth", says("fifth", nil)),
			breaker.WithFallbackValue(-1),
		)
		alt := says("alt", nil)
		v, err := b.DoOr(w.Context(), rfgAnswer(0, errBoom), alt)
		require.NoError(w, err)
		require.Equal(w, 5, v)
		require.Equal(w, []string{"first", "second", "third", "fourth", "fifth"}, asked)
		kinds := []breaker.Rescue{}
		for _, e := range events.rescues {
			kinds = append(kinds, e.Kind)
			require.Equal(w, errBoom, e.Cause)
			require.Equal(w, e.Kind == "fifth", e.Err == nil)
		}
		require.Equal(w, []breaker.Rescue{breaker.RescueFailover, "second", breaker.RescueFailover, "fifth"}, kinds)
		require.Equal(w, map[breaker.Rescue]uint64{"fifth": 1}, b.Snapshot().Totals.Rescues, "only what helped")

		asked = nil
		b = w.breaker(rfgFar, failover("first", errBackup))
		_, err = b.DoOr(w.Context(), rfgAnswer(0, errBoom), alt)
		require.NoError(w, err)
		require.Equal(w, []string{"first", "alt"}, asked)
		require.Equal(w, map[breaker.Rescue]uint64{breaker.RescueAlt: 1}, b.Snapshot().Totals.Rescues)
	})
	t.Run("failover, then cache", func(t *testing.T) {
		rfgBoth(t, func(w *rfgWorld) {
			backup := errors.New("down")
			b := w.breaker(breaker.WithFailover("backup", func(context.Context) (int, error) { return 2, backup }),
				breaker.WithLastGood[int](time.Hour, rfgOneKey))
			_, err := b.Do(w.Context(), rfgAnswer(1, nil))
			require.NoError(w, err)
			require.Equal(w, rfgBy(breaker.RescueCache, 1, 1), b.Try(w.Context(), rfgAnswer(0, errBoom)))
			backup = nil
			require.Equal(w, rfgBy(breaker.RescueFailover, 2, 1), b.Try(w.Context(), rfgAnswer(0, errBoom)))
			backup = errBackup
			require.Equal(w, rfgBy(breaker.RescueCache, 1, 1), b.Try(w.Context(), rfgAnswer(0, errBoom)), "the backup's answer was not stored")
		})
	})
}

func TestF11_BackupFailuresDoNotCountAgainstThePrimary(t *testing.T) {
	rfgBoth(t, func(w *rfgWorld) {
		b := w.breaker(breaker.WithFailover("backup", rfgAnswer(0, errBackup)), breaker.WithFallback("other", func(context.Context, error) (int, error) { return 0, errBackup }))
		for i := range 4 {
			_, err := b.Do(w.Context(), rfgAnswer(0, errBoom))
			require.ErrorIs(w, err, errBackup)
			require.EqualValues(w, i+1, b.Snapshot().ConsecutiveFailures)
		}
		require.Equal(w, breaker.Closed, b.State())
		require.EqualValues(w, 4, b.Snapshot().Totals.Calls)
	})
}

func TestF12_NotForSuccessesAndIgnoredOutcomes(t *testing.T) {
	rfgBoth(t, func(w *rfgWorld) {
		asked := func(context.Context, error) (int, error) { w.Error("asked"); return 0, nil }
		b := w.breaker(breaker.WithIgnore(rfgStatus(404)), breaker.WithFallback("never", asked), breaker.WithRetry(breaker.MaxRetries(2)))
		for _, fn := range []func(context.Context) (int, error){rfgAnswer(7, nil), rfgAnswer(7, rfgStatus(404))} {
			for _, r := range []breaker.Result[int]{b.Try(w.Context(), fn), rfgResult(b.Do(w.Context(), fn)), rfgResult(b.DoOr(w.Context(), fn, asked))} {
				require.Equal(w, 7, r.Value)
				require.Empty(w, r.Rescue)
				if r.Err != nil {
					require.Equal(w, rfgStatus(404), r.Err)
				}
			}
		}
		require.Empty(w, b.Snapshot().Totals.Rescues)

		// Nor after a retry that ended in one.
		r := b.Try(w.Context(), w.fn(errBoom, rfgStatus(404)).call)
		rfgRetried(w, r.Err, 2, rfgStatus(404))

		// Nor after the caller's own cancel: before the call, in it, during a wait.
		ctx, cancel := context.WithCancel(w.Context())
		_, err := b.Do(ctx, func(context.Context) (int, error) { cancel(); return 0, errBoom })
		require.Equal(w, errBoom, err)
		_, err = b.Do(ctx, rfgAnswer(0, nil))
		require.Equal(w, context.Canceled, err)
		b.Circuit().Trip(nil)
		_, err = b.Do(ctx, rfgAnswer(0, nil))
		require.Equal(w, context.Canceled, err)
		_, err = b.DoOr(w.Context(), nil, asked)
		require.ErrorIs(w, err, breaker.ErrNilFunc)
	})
	t.Run("cancel during a wait", func(t *testing.T) {
		rfgBubble(t, func(w *rfgWorld) {
			b := w.breaker(breaker.WithRetry(breaker.MaxRetries(2), breaker.Constant(time.Hour)), breaker.WithFallbackValue(-1))
			ctx, cancel := context.WithCancel(w.Context())
			defer time.AfterFunc(time.Second, cancel).Stop()
			r := b.Try(ctx, rfgAnswer(0, errBoom))
			require.ErrorIs(w, r.Err, context.Canceled)
			require.ErrorIs(w, r.Err, errBoom)
			require.Empty(w, r.Rescue)
		})
	})
	t.Run("the caller's deadline is a failure", func(t *testing.T) {
		for _, ignored := range []bool{false, true} {
			rfgBubble(t, func(w *rfgWorld) {
				opts := []breaker.Option{breaker.WithFallbackValue(-1)}
				if ignored {
					opts = append(opts, breaker.IgnoreCallerDeadline())
				}
				ctx, cancel := context.WithTimeout(w.Context(), time.Second)
				defer cancel()
				r := w.breaker(opts...).Try(ctx, func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, ctx.Err() })
				require.Equal(w, ignored, r.Err != nil)
				require.Equal(w, ignored, r.Rescue == "")
			})
		}
	})
}

func rfgResult(v int, err error) breaker.Result[int] { return breaker.Result[int]{Value: v, Err: err} }

func TestF13_FailingFallbackKeepsBothErrors(t *testing.T) {
	rfgBoth(t, func(w *rfgWorld) {
		b := w.breaker(breaker.WithRetry(breaker.MaxRetries(1)),
			breaker.WithFailover("backup", rfgAnswer(0, errBackup)),
			breaker.WithFallback("other", func(context.Context, error) (int, error) { return 0, &rfgTyped{"other"} }))
		r := b.Try(w.Context(), rfgAnswer(7, errBoom))
		rfgRetried(w, r.Err, 2, errBoom)
		require.ErrorIs(w, r.Err, errBackup)
		var typed *rfgTyped
		require.ErrorAs(w, r.Err, &typed)
		require.Equal(w, 7, r.Value, "the dependency's own value")
		require.Empty(w, r.Rescue)
		for _, text := range []string{"boom", "backup", "typed other"} {
			require.ErrorContains(w, r.Err, text)
		}
		b.Circuit().Trip(nil)
		_, err := b.Do(w.Context(), rfgAnswer(7, nil))
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
	rfgBoth(t, func(w *rfgWorld) {
		var why error
		b := w.breaker(breaker.WithFailureThreshold(3), breaker.WithRetry(breaker.MaxRetries(1), breaker.Constant(0)), breaker.WithResult(func(v int, err error) breaker.Outcome {
			if v == 13 {
				return breaker.Failure
			}
			return breaker.DefaultClassifier(err)
		}), breaker.WithFallback("why", func(_ context.Context, cause error) (int, error) { why = cause; return -1, nil }))
		b2 := breaker.Must(breaker.Over[int](b.Circuit(), breaker.WithFallback("why", func(_ context.Context, cause error) (int, error) { why = cause; return -1, nil })))

		r := b2.Try(w.Context(), rfgAnswer(0, errBoom))
		require.Equal(w, rfgBy("why", -1, 1), r)
		require.Equal(w, errBoom, why, "the error as it was")
		r = b.Try(w.Context(), rfgAnswer(13, nil))
		require.Equal(w, rfgBy("why", -1, 2), r)
		require.Equal(w, breaker.ErrUnacceptable, why)
		require.Equal(w, breaker.Open, b.State())
		r = b2.Try(w.Context(), rfgAnswer(0, nil))
		require.Equal(w, rfgBy("why", -1, 0), r)
		require.ErrorIs(w, why, breaker.ErrOpen)

		b.Circuit().Reset()
		_ = b.Try(w.Context(), rfgAnswer(0, errBoom))
		rfgRetried(w, why, 2, errBoom)
		b.Circuit().Reset()
		r = b.Try(w.Context(), func(context.Context) (int, error) { b.Circuit().Trip(nil); return 0, errBoom })
		require.Equal(w, rfgBy("why", -1, 1), r)
		require.ErrorIs(w, why, errBoom)
		require.ErrorIs(w, why, breaker.ErrOpen)
	})
	t.Run("everything is settled before it runs", func(t *testing.T) {
		rfgBoth(t, func(w *rfgWorld) {
			for name, end := range map[string]func(){"panic": func() { panic("fallback") }, "Goexit": runtime.Goexit} {
				var b *breaker.Breaker[int]
				b = w.breaker(breaker.WithFailureThreshold(1), breaker.WithSuccessThreshold(1), breaker.WithFallback("ends", func(context.Context, error) (int, error) {
					s := b.Snapshot()
					require.Zero(w, s.InFlight+s.Probes, name)
					require.EqualValues(w, 1, s.Totals.Failures, name)
					end()
					return 0, nil
				}))
				got := inGoroutine(func() { _, _ = b.Do(w.Context(), rfgAnswer(0, errBoom)) })
				require.Equal(w, name == "panic", got != nil)
				require.Equal(w, breaker.Open, b.State())
				w.at(w.elapsed() + 30*time.Second)
				_, err := b.Do(w.Context(), rfgAnswer(0, nil)) // no lock, no slot is held
				require.NoError(w, err)
				require.Equal(w, breaker.Closed, b.State())
				require.Zero(w, b.Snapshot().Totals.Panics, "the fallback's panic is not the dependency's")
			}
		})
	})
	t.Run("a nil one is a constructor error", func(t *testing.T) {
		rfgFaults(t, rfgErr(breaker.New[int]("b", breaker.WithFallback[int]("x", nil))), "Fallback", "nil")
		rfgFaults(t, rfgErr(breaker.New[int]("b", breaker.WithFailover[int]("x", nil))), "Failover", "nil")
	})
	t.Run("a bad value that nobody rescues is the answer", func(t *testing.T) {
		rfgBoth(t, func(w *rfgWorld) {
			b := w.breaker(breaker.WithResult(func(int, error) breaker.Outcome { return breaker.Failure }), breaker.WithFailover("backup", rfgAnswer(0, errBackup)))
			require.Equal(w, breaker.Result[int]{Value: 13, Attempts: 1}, b.Try(w.Context(), rfgAnswer(13, nil)))
		})
	})
}

func rfgFaults(t require.TestingT, err error, texts ...string) {
	require.Error(t, err)
	for _, text := range texts {
		require.ErrorContains(t, err, text)
	}
}

// Of one call, one fallback answers, and the function does not run after it.
func TestBC104_OneFallbackAndNothingAfterIt(t *testing.T) {
	rfgBubble(t, func(w *rfgWorld) {
		fallbacks, ended := 0, make(chan struct{})
		b := w.breaker(breaker.WithRetry(breaker.MaxRetries(0)), breaker.WithFallback("late", func(context.Context, error) (int, error) { fallbacks++; return -1, nil }))
		r := b.Try(w.Context(), breaker.Detach(time.Second, func(context.Context) (int, error) {
			defer close(ended)
			<-time.After(5 * time.Second)
			return 0, errBoom
		}))
		require.Equal(w, rfgBy("late", -1, 1), r)
		require.Equal(w, time.Second, w.elapsed())
		<-ended
		synctest.Wait()
		require.Equal(w, 1, fallbacks)
		require.EqualValues(w, 1, b.Snapshot().Totals.Calls)
	})
	t.Run("after attempts that all end late", func(t *testing.T) {
		rfgBubble(t, func(w *rfgWorld) {
			var fallbacks, runs int
			b := w.breaker(breaker.WithTimeout(time.Second), breaker.WithRetry(breaker.MaxRetries(2), breaker.Constant(0)),
				breaker.WithFallback("f", func(context.Context, error) (int, error) { fallbacks++; return -1, nil }))
			r := b.Try(w.Context(), func(context.Context) (int, error) { runs++; <-time.After(5 * time.Second); return 0, errBoom })
			require.Equal(w, rfgBy("f", -1, 3), r)
			require.Equal(w, 1, fallbacks)
			require.Equal(w, 3, runs)
		})
	})
	t.Run("a full limiter", func(t *testing.T) {
		rfgBoth(t, func(w *rfgWorld) {
			b := w.breaker(breaker.WithMaxInFlight(1), breaker.WithFallbackValue(-1))
			p, err := b.Circuit().Acquire(w.Context())
			require.NoError(w, err)
			f := w.fn(nil)
			require.Equal(w, rfgBy(breaker.RescueValue, -1, 0), b.Try(w.Context(), f.call))
			p.Done(nil)
			require.Empty(w, f.at)
			require.EqualValues(w, 1, b.Snapshot().Totals.Calls)
		})
	})
	t.Run("a rejection further in is rescued, uncounted and not retried", func(t *testing.T) {
		rfgBoth(t, func(w *rfgWorld) {
			for _, inner := range []error{breaker.ErrOpen, fmt.Errorf("pool: %w", breaker.ErrOpen), breaker.ErrTooManyInFlight} {
				b := w.breaker(breaker.WithRetry(breaker.MaxRetries(3)), breaker.WithFallbackValue(-1))
				f := w.fn(inner)
				require.Equal(w, rfgBy(breaker.RescueValue, -1, 1), b.Try(w.Context(), f.call))
				require.Len(w, f.at, 1)
				totals := b.Snapshot().Totals
				require.Zero(w, totals.Failures)
				require.EqualValues(w, 1, totals.Ignored)
			}
		})
	})
	t.Run("no probe slot", func(t *testing.T) {
		rfgBoth(t, func(w *rfgWorld) {
			b := w.breaker(breaker.WithHalfOpenProbes(1), breaker.WithFallbackValue(-1))
			b.Circuit().Trip(nil)
			b.Circuit().OfferProbe()
			_, err := b.Circuit().Acquire(w.Context())
			require.NoError(w, err)
			require.Equal(w, rfgBy(breaker.RescueValue, -1, 0), b.Try(w.Context(), rfgAnswer(0, nil)))
		})
	})
}

// rfgSlow starts a call that started at time from, ends at time to, and brings v.
func (w *rfgWorld) rfgSlow(all *sync.WaitGroup, b *breaker.Breaker[int], from, to time.Duration, v int) {
	all.Go(func() {
		w.at(from)
		got, err := b.Do(w.Context(), func(context.Context) (int, error) { w.at(to); return v, nil })
		assert.NoError(w, err)
		assert.Equal(w, v, got)
	})
}

func TestBC106_OnlyGoodAnswersAreKeptAndTheyAge(t *testing.T) {
	rfgBubble(t, func(w *rfgWorld) {
		b := w.breaker(rfgFar, breaker.WithLastGood[int](60*time.Second, rfgOneKey))
		fails := rfgAnswer(99, errBoom)
		var all sync.WaitGroup
		w.rfgSlow(&all, b, 0, 40*time.Second, 100) // v0, the slow one
		w.rfgSlow(&all, b, time.Nanosecond, time.Nanosecond, 1)
		w.at(30 * time.Second)
		require.Equal(w, rfgBy(breaker.RescueCache, 1, 1), b.Try(w.Context(), fails))
		w.rfgSlow(&all, b, 35*time.Second, 35*time.Second, 2)
		w.at(41 * time.Second)
		all.Wait()
		require.Equal(w, rfgBy(breaker.RescueCache, 2, 1), b.Try(w.Context(), fails), "the answer of an older call came later and replaced nothing")
		w.at(95*time.Second - 1)
		require.Equal(w, rfgBy(breaker.RescueCache, 2, 1), b.Try(w.Context(), fails), "nor did it prolong anything")
		w.at(95 * time.Second)
		require.Equal(w, errBoom, b.Try(w.Context(), fails).Err)
	})
	t.Run("at 61s", func(t *testing.T) {
		rfgBoth(t, func(w *rfgWorld) {
			b := w.breaker(rfgFar, breaker.WithLastGood[int](60*time.Second, rfgOneKey))
			_, _ = b.Do(w.Context(), rfgAnswer(1, nil))
			w.at(61 * time.Second)
			require.Equal(w, errBoom, b.Try(w.Context(), rfgAnswer(0, errBoom)).Err)
		})
	})
	t.Run("of two that started at one instant the later answer stays", func(t *testing.T) {
		rfgBoth(t, func(w *rfgWorld) {
			b := w.breaker(rfgFar, breaker.WithLastGood[int](time.Hour, rfgOneKey))
			_, _ = b.Do(w.Context(), rfgAnswer(1, nil))
			_, _ = b.Do(w.Context(), rfgAnswer(2, nil))
			require.Equal(w, rfgBy(breaker.RescueCache, 2, 1), b.Try(w.Context(), rfgAnswer(0, errBoom)))
		})
	})
	t.Run("an answer of any age is better than one that has gone", func(t *testing.T) {
		rfgBubble(t, func(w *rfgWorld) {
			b := w.breaker(rfgFar, breaker.WithLastGood[int](5*time.Second, rfgOneKey))
			var all sync.WaitGroup
			w.rfgSlow(&all, b, 0, 20*time.Second, 1)
			w.rfgSlow(&all, b, time.Second, time.Second, 2)
			all.Wait()
			w.at(21 * time.Second)
			require.Equal(w, rfgBy(breaker.RescueCache, 1, 1), b.Try(w.Context(), rfgAnswer(0, errBoom)))
		})
	})
}

// The memory has stored before Do returns, keeps a bounded number of keys, and drops the one used least recently.
func TestLastGoodMemoryIsBounded(t *testing.T) {
	ask := func(w *rfgWorld, b *breaker.Breaker[int], key string) (int, bool) {
		r := b.Try(rfgWithKey(w.Context(), key), rfgAnswer(0, errBoom))
		return r.Value, r.Rescue == breaker.RescueCache
	}
	put := func(w *rfgWorld, b *breaker.Breaker[int], key string, v int) {
		_, err := b.Do(rfgWithKey(w.Context(), key), rfgAnswer(v, nil))
		require.NoError(w, err)
	}
	rfgBoth(t, func(w *rfgWorld) {
		for _, tc := range []struct {
			opts []breaker.LastGoodOption
			size int
		}{{nil, 1024}, {[]breaker.LastGoodOption{breaker.LastGoodSize(1)}, 1}, {[]breaker.LastGoodOption{breaker.LastGoodSize(10), breaker.LastGoodSize(3)}, 3}} {
			b := w.breaker(rfgFar, breaker.WithLastGood[int](time.Hour, rfgKey, tc.opts...))
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
		b := w.breaker(rfgFar, breaker.WithLastGood[int](time.Hour, rfgKey, breaker.LastGoodSize(2)))
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
	rfgBoth(t, func(w *rfgWorld) {
		opt := breaker.WithLastGood[int](time.Hour, rfgOneKey)
		a := w.breaker(rfgFar, opt)
		view := breaker.Must(breaker.Over[int](a.Circuit(), opt))
		other := w.breaker(rfgFar, opt)
		_, _ = a.Do(w.Context(), rfgAnswer(1, nil))
		for _, b := range []*breaker.Breaker[int]{view, other} {
			require.Equal(w, errBoom, b.Try(w.Context(), rfgAnswer(0, errBoom)).Err)
		}
		g := breaker.Must(breaker.NewGroup[int](w.options(opt)...))
		_, _ = g.Do(w.Context(), "x", rfgAnswer(1, nil))
		require.Equal(w, errBoom, g.Get("y").Try(w.Context(), rfgAnswer(0, errBoom)).Err)
		require.Equal(w, rfgBy(breaker.RescueCache, 1, 1), g.Get("x").Try(w.Context(), rfgAnswer(0, errBoom)))
	})
}

// rfgCache is a cache that does as a test says.
type rfgCache struct {
	mu         sync.Mutex
	values     map[string]int
	gets, sets atomic.Int64
	get        func(ctx context.Context) error
	set        func(ctx context.Context, started time.Time, ttl time.Duration) error
}

func (c *rfgCache) Get(ctx context.Context, key string) (int, bool, error) {
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

func (c *rfgCache) Set(ctx context.Context, key string, v int, started time.Time, ttl time.Duration) error {
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
	rfgBubble(t, func(w *rfgWorld) {
		cache := &rfgCache{}
		cache.set = func(ctx context.Context, started time.Time, ttl time.Duration) error {
			assert.Equal(w, time.Second, started.Sub(w.start), "when the call started, not when it ended")
			assert.Equal(w, time.Minute, ttl)
			assert.NoError(w, ctx.Err(), "the caller's context has nothing to do with it")
			assert.Equal(w, "v", ctx.Value(rfgKeyOf{}), "but for its values")
			_, limited := ctx.Deadline()
			assert.True(w, limited)
			return nil
		}
		b := w.breaker(rfgFar, breaker.WithLastGood[int](time.Minute, rfgOneKey, breaker.LastGoodCache[int](cache)))
		w.at(time.Second)
		ctx, cancel := context.WithCancel(rfgWithKey(w.Context(), "v"))
		_, err := b.Do(ctx, func(context.Context) (int, error) { w.at(3 * time.Second); return 7, nil })
		cancel()
		require.NoError(w, err)
		synctest.Wait()
		require.EqualValues(w, 1, cache.sets.Load())
		require.Equal(w, rfgBy(breaker.RescueCache, 7, 1), b.Try(w.Context(), rfgAnswer(0, errBoom)))

		// Also when the caller's deadline has passed.
		ctx, cancel = context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		r := b.Try(ctx, func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, ctx.Err() })
		require.Equal(w, rfgBy(breaker.RescueCache, 7, 1), r)
	})
}

// A cache that hangs, fails or panics delays no caller: storing not at all, looking up by 100ms at most.
func TestLastGoodCacheNeverDelaysTheCaller(t *testing.T) {
	t.Run("a Set that hangs", func(t *testing.T) {
		rfgBubble(t, func(w *rfgWorld) {
			var events rfgEvents
			release := make(chan struct{})
			cache := &rfgCache{set: func(context.Context, time.Time, time.Duration) error { <-release; return nil }}
			b := w.breaker(rfgFar, events.option(), breaker.WithLastGood[int](time.Hour, rfgKey, breaker.LastGoodCache[int](cache)))
			for i := range 100 {
				v, err := b.Do(rfgWithKey(w.Context(), fmt.Sprint(i)), rfgAnswer(i, nil))
				require.NoError(w, err)
				require.Equal(w, i, v)
			}
			require.Zero(w, w.elapsed())
			synctest.Wait()
			require.EqualValues(w, 16, cache.sets.Load(), "no more at a time")
			close(release)
			synctest.Wait()
			_, _ = b.Do(rfgWithKey(w.Context(), "after"), rfgAnswer(7, nil))
			synctest.Wait()
			require.Equal(w, rfgBy(breaker.RescueCache, 7, 1), b.Try(rfgWithKey(w.Context(), "after"), rfgAnswer(0, errBoom)))
			require.Empty(w, events.storeErrors())
		})
	})
	t.Run("a Set is given a limit", func(t *testing.T) {
		rfgBubble(t, func(w *rfgWorld) {
			var events rfgEvents
			cache := &rfgCache{set: func(ctx context.Context, _ time.Time, _ time.Duration) error { <-ctx.Done(); return ctx.Err() }}
			b := w.breaker(rfgFar, events.option(), breaker.WithLastGood[int](time.Hour, rfgOneKey, breaker.LastGoodCache[int](cache)))
			_, err := b.Do(w.Context(), rfgAnswer(1, nil))
			require.NoError(w, err)
			w.at(time.Minute)
			synctest.Wait()
			require.Len(w, events.storeErrors(), 1)
			require.ErrorIs(w, events.storeErrors()[0], context.DeadlineExceeded)
		})
	})
	t.Run("a Get that hangs", func(t *testing.T) {
		rfgBubble(t, func(w *rfgWorld) {
			var events rfgEvents
			release := make(chan struct{})
			cache := &rfgCache{get: func(context.Context) error { <-release; return nil }}
			b := w.breaker(rfgFar, events.option(), breaker.WithLastGood[int](time.Hour, rfgOneKey, breaker.LastGoodCache[int](cache)), breaker.WithFallbackValue(-1))
			for i := range 3 {
				require.Equal(w, rfgBy(breaker.RescueValue, -1, 1), b.Try(w.Context(), rfgAnswer(0, errBoom)))
				require.Equal(w, time.Duration(i+1)*100*time.Millisecond, w.elapsed())
			}
			require.Len(w, events.storeErrors(), 3)
			require.ErrorIs(w, events.storeErrors()[0], context.DeadlineExceeded)
			require.ErrorContains(w, events.storeErrors()[0], "test")
			close(release)
		})
	})
	t.Run("a Get that hangs, on an injected clock", func(t *testing.T) {
		guard(t, patience, func() {
			clk := rfgAskedClock()
			release := make(chan struct{})
			defer close(release)
			cache := &rfgCache{get: func(context.Context) error { <-release; return nil }}
			b := breaker.Must(breaker.New[int]("test", breaker.WithClock(clk), breaker.WithLastGood[int](time.Hour, rfgOneKey, breaker.LastGoodCache[int](cache))))
			done := make(chan error)
			go func() { _, err := b.Do(t.Context(), rfgAnswer(0, errBoom)); done <- err }()
			require.Equal(t, 100*time.Millisecond, <-clk.asked)
			clk.Add(100 * time.Millisecond)
			require.Equal(t, errBoom, <-done)
		})
	})
	for name, end := range map[string]func() error{
		"fails":            func() error { return errBackup },
		"panics":           func() error { panic("cache") },
		"ends its routine": func() error { runtime.Goexit(); return nil },
	} {
		t.Run("one that "+name, func(t *testing.T) {
			rfgBubble(t, func(w *rfgWorld) {
				var events rfgEvents
				var log rfgLog
				cache := &rfgCache{
					get: func(context.Context) error { return end() },
					set: func(context.Context, time.Time, time.Duration) error { return end() },
				}
				b := w.breaker(rfgFar, events.option(), log.option(), breaker.WithLastGood[int](time.Hour, rfgOneKey, breaker.LastGoodCache[int](cache)))
				for range 40 { // more than there are places
					v, err := b.Do(w.Context(), rfgAnswer(7, nil))
					require.NoError(w, err)
					require.Equal(w, 7, v)
					synctest.Wait()
				}
				require.EqualValues(w, 40, cache.sets.Load(), "each place is free again")
				require.Equal(w, breaker.Result[int]{Err: errBoom, Attempts: 1}, b.Try(w.Context(), rfgAnswer(0, errBoom)), "the cache's trouble is not the caller's")
				synctest.Wait()
				require.Zero(w, w.elapsed())
				told := events.storeErrors()
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
		rfgBubble(t, func(w *rfgWorld) {
			cache := &rfgCache{get: func(context.Context) error { return errBackup }, set: func(context.Context, time.Time, time.Duration) error { return errBackup }}
			b := w.breaker(breaker.WithLastGood[int](time.Hour, rfgOneKey, breaker.LastGoodCache[int](cache)),
				breaker.WithHooks(breaker.Hooks{StoreError: func(error) { panic("hook") }}))
			_, err := b.Do(w.Context(), rfgAnswer(7, nil))
			require.NoError(w, err)
			_, err = b.Do(w.Context(), rfgAnswer(7, errBoom))
			require.Equal(w, errBoom, err)
		})
	})
}

// rfgLog is a logger whose text can be read.
type rfgLog struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *rfgLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *rfgLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *rfgLog) option() breaker.Option {
	return breaker.WithLogger(slog.New(slog.NewTextHandler(l, nil)))
}

// A user's function for the key that panics comes out of the call, which is settled all the same.
func TestLastGoodKeyThatPanics(t *testing.T) {
	rfgBoth(t, func(w *rfgWorld) {
		b := w.breaker(breaker.WithLastGood[int](time.Hour, func(context.Context) string { panic("key") }))
		for _, err := range []error{nil, errBoom} {
			require.Equal(w, "key", panicOf(func() { _, _ = b.Do(w.Context(), rfgAnswer(0, err)) }))
		}
		s := b.Snapshot()
		require.Zero(w, s.InFlight)
		require.EqualValues(w, 1, s.Totals.Successes)
		require.EqualValues(w, 1, s.Totals.Failures)
		require.Zero(w, s.Totals.Panics)
	})
}

func TestO07_RetryCacheAndFailoverAreCounted(t *testing.T) {
	rfgBoth(t, func(w *rfgWorld) {
		var events rfgEvents
		down := true
		b := w.breaker(rfgFar, events.option(), breaker.WithRetry(breaker.MaxRetries(1)),
			breaker.WithFailover("backup", func(context.Context) (int, error) {
				if down {
					return 0, errBackup
				}
				return 2, nil
			}),
			breaker.WithLastGood[int](time.Hour, rfgOneKey),
			breaker.WithFallback("custom", func(context.Context, error) (int, error) { return 3, nil }))
		kinds := []breaker.Rescue{
			b.Try(w.Context(), rfgAnswer(0, errBoom)).Rescue,
			b.Try(w.Context(), w.fn(errBoom, nil).call).Rescue,
			b.Try(w.Context(), rfgAnswer(0, errBoom)).Rescue,
		}
		down = false
		kinds = append(kinds, b.Try(w.Context(), rfgAnswer(0, errBoom)).Rescue, b.Try(w.Context(), rfgAnswer(0, nil)).Rescue)
		require.Equal(w, []breaker.Rescue{"custom", breaker.RescueRetry, breaker.RescueCache, breaker.RescueFailover, ""}, kinds)
		require.Equal(w, map[breaker.Rescue]uint64{"custom": 1, breaker.RescueRetry: 1, breaker.RescueCache: 1, breaker.RescueFailover: 1}, b.Snapshot().Totals.Rescues)
		for i, kind := range []breaker.Rescue{breaker.RescueFailover, "custom", breaker.RescueRetry, breaker.RescueFailover, breaker.RescueCache, breaker.RescueFailover} {
			e := events.rescues[i]
			require.Equal(w, kind, e.Kind)
			require.Equal(w, "test", e.Name)
			require.ErrorIs(w, e.Cause, errBoom)
			require.Equal(w, i == 0 || i == 3, errors.Is(e.Err, errBackup))
		}
		require.Len(w, events.rescues, 6)
	})
	for kind, text := range map[breaker.Rescue]string{
		breaker.RescueRetry: "retry", breaker.RescueCache: "cache", breaker.RescueFailover: "failover", breaker.RescueValue: "value", breaker.RescueAlt: "alt",
	} {
		require.EqualValues(t, text, kind)
	}
}

type (
	rfgNamed  int
	rfgString string
)

func (rfgString) Error() string { return "rfgString" }

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
		v, err := b.Do(ctx, func(context.Context) ([]string, error) { return nil, errBoom })
		rescued(t, v, err, []string{"x"})
	})
	t.Run("a value for an interface", func(t *testing.T) {
		b := breaker.Must(breaker.New[any]("b", breaker.WithFallbackValue(7)))
		v, err := b.Do(ctx, func(context.Context) (any, error) { return nil, errBoom })
		rescued(t, v, err, 7)
		e := breaker.Must(breaker.New[error]("b", breaker.WithFallbackValue(rfgString("x"))))
		w, err := e.Do(ctx, func(context.Context) (error, error) { return nil, errBoom })
		rescued(t, w, err, rfgString("x"))
	})
	t.Run("an interface for a wider one", func(t *testing.T) {
		b := breaker.Must(breaker.New[any]("b", breaker.WithFallbackValue[error](errClient)))
		v, err := b.Do(ctx, func(context.Context) (any, error) { return 1, errBoom })
		rescued(t, v, err, errClient)
	})
	t.Run("nothing", func(t *testing.T) {
		b := breaker.Must(breaker.New[any]("b", breaker.WithFallbackValue[error](nil)))
		v, err := b.Do(ctx, func(context.Context) (any, error) { return 1, errBoom })
		rescued(t, v, err, nil)
		p := breaker.Must(breaker.New[*int]("b", breaker.WithFallbackValue[*int](nil)))
		q, err := p.Do(ctx, func(context.Context) (*int, error) { return new(int), errBoom })
		rescued(t, q, err, (*int)(nil))
	})
	t.Run("an unnamed type of the same kind", func(t *testing.T) {
		type list []int
		b := breaker.Must(breaker.New[list]("b", breaker.WithFallbackValue([]int{1})))
		v, err := b.Do(ctx, func(context.Context) (list, error) { return nil, errBoom })
		rescued(t, v, err, list{1})
	})
	t.Run("what is not assignable", func(t *testing.T) {
		rfgFaults(t, rfgErr(breaker.New[int]("b", breaker.WithFallbackValue("x"))), "FallbackValue", "int", "string")
		rfgFaults(t, rfgErr(breaker.New[int64]("b", breaker.WithFallbackValue(1))), "FallbackValue", "int64", "got int")
		rfgFaults(t, rfgErr(breaker.New[rfgNamed]("b", breaker.WithFallbackValue(1))), "FallbackValue", "rfgNamed", "int")
		rfgFaults(t, rfgErr(breaker.New[int]("b", breaker.WithFallbackValue[any](1))), "FallbackValue", "int", "interface {}")
		c := breaker.Must(breaker.NewCircuit("c"))
		rfgFaults(t, rfgErr(breaker.Over[int](c, breaker.WithFallbackValue("x"))), "FallbackValue", "int", "string")
		rfgFaults(t, rfgErr(breaker.NewGroup[int](breaker.WithFallbackValue("x"))), "FallbackValue", "int", "string")
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
		{breaker.WithLastGood[string](time.Hour, rfgOneKey), []string{"int", "string"}},
		{breaker.WithLastGood[int](0, rfgOneKey), []string{"LastGood.TTL", "0s"}},
		{breaker.WithLastGood[int](-time.Second, rfgOneKey), []string{"LastGood.TTL", "-1s"}},
		{breaker.WithLastGood[int](time.Hour, nil), []string{"LastGood.Key", "nil"}},
		{breaker.WithLastGood[int](time.Hour, rfgOneKey, breaker.LastGoodSize(0)), []string{"LastGoodSize", "0"}},
		{breaker.WithLastGood[int](time.Hour, rfgOneKey, breaker.LastGoodSize(-1)), []string{"LastGoodSize", "-1"}},
		{breaker.WithLastGood[int](time.Hour, rfgOneKey, breaker.LastGoodCache[int](nil)), []string{"LastGoodCache", "nil"}},
		{breaker.WithLastGood[int](time.Hour, rfgOneKey, breaker.LastGoodCache[int]((*rfgCache)(nil))), []string{"LastGoodCache", "nil"}},
		{breaker.WithLastGood[int](time.Hour, rfgOneKey, nil), []string{"LastGoodOption", "nil"}},
		{breaker.WithLastGood[string](time.Hour, rfgOneKey, breaker.LastGoodCache[int](&rfgCache{})), []string{"LastGoodCache", "string", "rfgCache"}},
		{breaker.WithLastGood[int](-1, nil, breaker.LastGoodSize(-1)), []string{"LastGood.TTL", "LastGood.Key", "LastGoodSize"}},
	} {
		rfgFaults(t, rfgErr(breaker.New[int]("b", tc.opt)), tc.texts...)
		rfgFaults(t, rfgErr(breaker.NewGroup[int](tc.opt)), tc.texts...)
	}
	for name, opt := range map[string]breaker.Option{
		"Fallback":      breaker.WithFallback("x", fallback),
		"Failover":      breaker.WithFailover("x", failover),
		"FallbackValue": breaker.WithFallbackValue("x"),
		"LastGood":      breaker.WithLastGood[string](time.Hour, rfgOneKey),
	} {
		rfgFaults(t, rfgErr(breaker.NewCircuit("c", opt)), name, "NewCircuit")
		rfgFaults(t, breaker.Must(breaker.NewCircuit("c")).Configure(opt), name, "Configure")
	}
}

// One list of options may serve many breakers, which share nothing by it.
func TestFallbackOptionsMayBeReused(t *testing.T) {
	rfgBoth(t, func(w *rfgWorld) {
		opts := make([]breaker.Option, 0, 10)
		opts = append(opts, rfgFar, breaker.WithLastGood[int](time.Hour, rfgOneKey))
		first := w.breaker(append(opts, breaker.WithFallbackValue(1))...)
		second := w.breaker(append(opts, breaker.WithFallbackValue(2))...)
		_, _ = first.Do(w.Context(), rfgAnswer(5, nil))
		require.Equal(w, rfgBy(breaker.RescueCache, 5, 1), first.Try(w.Context(), rfgAnswer(0, errBoom)))
		require.Equal(w, rfgBy(breaker.RescueValue, 2, 1), second.Try(w.Context(), rfgAnswer(0, errBoom)))
	})
}

// Many callers at once, on one memory.
func TestLastGoodUnderConcurrency(t *testing.T) {
	guard(t, patience, func() {
		b := breaker.Must(breaker.New[string]("test", rfgFar, breaker.WithLastGood[string](time.Hour, rfgKey, breaker.LastGoodSize(8))))
		var all sync.WaitGroup
		for g := range 8 {
			all.Go(func() {
				for i := range 500 {
					key := fmt.Sprint((g + i) % 12)
					ctx := rfgWithKey(context.Background(), key)
					v, err := b.Do(ctx, func(context.Context) (string, error) {
						if i%3 == 0 {
							return "", errBoom
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
	bothClocks(t, func(w *world) {
		r := w.r0()
		fails := func(context.Context) (int, error) { return 0, errBoom }

		var why error
		v, err := r.b.DoOr(w.Context(), fails, func(_ context.Context, e error) (int, error) { why = e; return 42, nil })
		require.NoError(w, err)
		require.Equal(w, 42, v)
		require.Same(w, errBoom, why)

		_, err = r.b.DoOr(w.Context(), fails, func(context.Context, error) (int, error) {
			require.Zero(w, r.c.Snapshot().InFlight, "all is settled by now")
			return 0, errAlt
		})
		require.ErrorIs(w, err, errBoom)
		require.ErrorIs(w, err, errAlt)
		require.EqualValues(w, 2, r.c.Snapshot().ConsecutiveFailures, "the alternative's failure is not the dependency's")

		_, err = r.b.DoOr(w.Context(), fails, nil)
		require.Same(w, errBoom, err)
		r.state(breaker.Open)

		_, err = r.b.DoOr(w.Context(), fails, func(_ context.Context, e error) (int, error) { why = e; return 0, errAlt })
		require.ErrorIs(w, why, breaker.ErrOpen)
		require.ErrorIs(w, err, breaker.ErrOpen)
		require.ErrorIs(w, err, errAlt)
		r.idle()
	})
	t.Run("never after a success or the caller's cancel", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			r := w.r0()
			v, err := r.b.DoOr(w.Context(), func(context.Context) (int, error) { return 1, nil }, w.noAlternative)
			require.NoError(w, err)
			require.Equal(w, 1, v)
			ctx, cancel := context.WithCancel(w.Context())
			_, err = r.b.DoOr(ctx, func(ctx context.Context) (int, error) { cancel(); return 0, ctx.Err() }, w.noAlternative)
			require.ErrorIs(w, err, context.Canceled)
			_, err = r.b.DoOr(ctx, func(context.Context) (int, error) { return 0, nil }, w.noAlternative)
			require.ErrorIs(w, err, context.Canceled)
		})
	})
	t.Run("for an inner circuit's rejection", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			outer, inner := w.r0(), w.r0()
			inner.trip()
			v, err := outer.b.DoOr(w.Context(), func(ctx context.Context) (int, error) {
				return inner.b.Do(ctx, func(context.Context) (int, error) { return 1, nil })
			}, func(context.Context, error) (int, error) { return 42, nil })
			require.NoError(w, err)
			require.Equal(w, 42, v)
			require.Zero(w, outer.c.Snapshot().Totals.Failures)
		})
	})
	t.Run("for a call too many", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			r := w.r0(breaker.WithMaxInFlight(1))
			r.gate()
			ran := r.ran.Load()
			v, err := r.b.DoOr(w.Context(), w.noCall,
				func(context.Context, error) (int, error) { return 42, nil })
			require.NoError(w, err)
			require.Equal(w, 42, v)
			require.Equal(w, ran, r.ran.Load())
		})
	})
	t.Run("no value twice: an attempt that overran brought its answer", func(t *testing.T) {
		bubble(t, byDo, func(w *world) {
			r := w.r0(breaker.WithTimeout(time.Second))
			v, err := r.b.DoOr(w.Context(), func(context.Context) (int, error) { <-time.After(2 * time.Second); return 7, nil },
				w.noAlternative)
			require.NoError(w, err)
			require.Equal(w, 7, v)
			require.EqualValues(w, 1, r.c.Snapshot().ConsecutiveFailures)
		})
	})
}

// O07 needs retry and the registered fallbacks; what DoOr does is here.
func TestO07_RescuesAreCountedByKind(t *testing.T) {
	bothClocks(t, func(w *world) {
		r := w.circuit()
		alt := func(context.Context, error) (int, error) { return 42, nil }
		for range 6 { // five failures, one rejection
			v, err := r.b.DoOr(w.Context(), func(context.Context) (int, error) { return 0, errBoom }, alt)
			require.NoError(w, err)
			require.Equal(w, 42, v)
		}
		_, err := r.b.DoOr(w.Context(), nil, alt)
		require.Error(w, err)
		require.Equal(w, map[breaker.Rescue]uint64{breaker.RescueAlt: 6}, r.c.Snapshot().Totals.Rescues)
	})
}

// Fallbacks went on being asked for a caller who had gone while the first of them worked.
func TestNoFallbackAfterTheCallerHasGone(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	asked := 0
	gone := func(ctx context.Context) (int, error) { cancel(); return 0, ctx.Err() }
	next := func(context.Context) (int, error) { asked++; return 7, nil }
	b := breaker.Must(breaker.New[int]("c", breaker.WithFailover("A", gone), breaker.WithFailover("B", next)))
	_, err := b.DoOr(ctx, func(context.Context) (int, error) { return 0, errBoom }, func(ctx context.Context, _ error) (int, error) { return next(ctx) })
	require.ErrorIs(t, err, errBoom)
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, asked)
}
