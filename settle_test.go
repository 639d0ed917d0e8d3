package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
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

// BC-04.
func TestFailuresWhileOpenChangeNothing(t *testing.T) {
	for name, late := range map[string]error{"failure": breakertest.ErrBoom, "failure with a hint": breakertest.Hint(time.Minute)} {
		t.Run(name, func(t *testing.T) {
			breakertest.Everywhere(t, func(w *breakertest.World) {
				r := w.R0()
				var gates []*breakertest.Gate
				for range 6 {
					gates = append(gates, r.Gate())
				}
				w.At(time.Second)
				for _, g := range gates[:3] {
					g.Finish(breakertest.ErrBoom)
				}
				for i, at := range []time.Duration{4000, 7000, 9900} {
					w.At(at * time.Millisecond)
					gates[3+i].Finish(late)
				}
				require.Equal(w, []string{"closed>open at 1s: threshold reached"}, r.Steps())
				w.At(11*time.Second - 1)
				r.Rejected()
				w.At(11 * time.Second)
				r.Succeeds(1)
				r.Is(breaker.Closed)
				r.Fails(2)
				r.Is(breaker.Closed)
				r.Fails(1)
				r.Is(breaker.Open)
			})
		})
	}
}

// BC-29, BC-28.
func TestPanickingOrExitingProbeIsAFailure(t *testing.T) {
	for ending, end := range map[string]func(){"panic": func() { panic("boom") }, "goexit": runtime.Goexit} {
		for _, by := range []breakertest.Way{breakertest.ByRun, breakertest.ByDo, breakertest.ByPolicy} {
			breakOff := func(r *breakertest.Rig) {
				value := breakertest.InGoroutine(func() {
					_, _ = r.Way.Call(r, context.Background(), func(context.Context) (int, error) {
						r.Ran.Add(1)
						end()
						return 0, nil
					})
					r.Errorf("%s was swallowed", ending)
				})
				require.Equal(r, ending == "panic", value == "boom", "came out as %v", value)
			}
			for name, clocked := range map[string]func(*testing.T, breakertest.Way, func(*breakertest.World)){"injected clock": breakertest.Injected, "bubble": breakertest.Bubble} {
				t.Run(ending+" "+by.Name+" "+name, func(t *testing.T) {
					clocked(t, by, func(w *breakertest.World) {
						r := w.R0()
						r.Trip()
						w.At(10 * time.Second)
						breakOff(r)
						r.Is(breaker.Open)
						r.Idle()
						w.At(20*time.Second - 1)
						r.Rejected()
						w.At(20 * time.Second)
						r.Succeeds(1)
						r.Is(breaker.Closed)

						for range 3 {
							r.Is(breaker.Closed)
							breakOff(r)
							r.Idle()
						}
						r.Is(breaker.Open)
						require.EqualValues(w, 4, r.C.Snapshot().Totals.Panics)
					})
				})
			}
		}
	}
}

// panicky is an error whose methods panic.
type panicky struct{ method string }

func (p *panicky) Error() string {
	if p.method == "Error" {
		panic("Error")
	}
	return p.method
}

func (p *panicky) RetryAfter() time.Duration {
	if p.method == "RetryAfter" {
		panic("RetryAfter")
	}
	return 0
}

func (p *panicky) Is(error) bool {
	if p.method == "Is" {
		panic("Is")
	}
	return false
}

// endings are the ways in which a call may end. Each runs a call and swallows how it ended.
func endings() map[string]func(*breakertest.Rig) {
	run := func(r *breakertest.Rig, ctx context.Context, fn func(context.Context) error) {
		_ = breakertest.InGoroutine(func() { _ = r.C.Run(ctx, fn) })
	}
	returns := func(err error) func(*breakertest.Rig) {
		return func(r *breakertest.Rig) { run(r, context.Background(), func(context.Context) error { return err }) }
	}
	cancelling := func(err func(context.Context) error) func(*breakertest.Rig) {
		return func(r *breakertest.Rig) {
			ctx, cancel := context.WithCancel(context.Background())
			run(r, ctx, func(ctx context.Context) error { cancel(); return err(ctx) })
			cancel()
		}
	}
	acquired := func(settle func(*breaker.Permit)) func(*breakertest.Rig) {
		return func(r *breakertest.Rig) {
			_ = breakertest.InGoroutine(func() { settle(r.Acquire()) })
		}
	}
	return map[string]func(*breakertest.Rig){
		"ok":                         returns(nil),
		"counted error":              returns(breakertest.ErrBoom),
		"ignored error":              returns(breakertest.ErrClient),
		"wrapped ignored error":      returns(fmt.Errorf("get: %w", breakertest.ErrClient)),
		"joined ignored error":       returns(errors.Join(breakertest.ErrBoom, breakertest.ErrClient)),
		"deadline":                   returns(context.DeadlineExceeded),
		"error with a hint":          returns(breakertest.Hint(time.Second)),
		"error with a negative hint": returns(breakertest.Hint(-time.Hour)),
		"inner rejection":            returns(fmt.Errorf("inner: %w", breaker.ErrOpen)),
		"classifier panics":          returns(errPanicClassifier),
		"classifier exits":           returns(errExitClassifier),
		"classifier knows no answer": returns(errOddClassifier),
		"error panics in RetryAfter": returns(&panicky{"RetryAfter"}),
		"error panics in Error":      returns(&panicky{"Error"}),
		"error panics in Is":         returns(&panicky{"Is"}),
		"cancelled before": func(r *breakertest.Rig) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			run(r, ctx, func(context.Context) error { return nil })
		},
		"cancelled during":       cancelling(func(ctx context.Context) error { return ctx.Err() }),
		"cancelled, other error": cancelling(func(context.Context) error { return breakertest.ErrBoom }),
		"cancelled, yet ok":      cancelling(func(context.Context) error { return nil }),
		"nil function":           func(r *breakertest.Rig) { _ = r.C.Run(context.Background(), nil) },
		"panic":                  func(r *breakertest.Rig) { run(r, context.Background(), func(context.Context) error { panic("boom") }) },
		"panic with nil":         func(r *breakertest.Rig) { run(r, context.Background(), func(context.Context) error { panic(nil) }) },
		"goexit": func(r *breakertest.Rig) {
			run(r, context.Background(), func(context.Context) error { runtime.Goexit(); return nil })
		},
		"permit done":                acquired(func(p *breaker.Permit) { p.Done(nil) }),
		"permit failed":              acquired(func(p *breaker.Permit) { p.Done(breakertest.ErrBoom) }),
		"permit settled":             acquired(func(p *breaker.Permit) { p.Settle(breaker.Success, nil) }),
		"permit settled as ignored":  acquired(func(p *breaker.Permit) { p.Settle(breaker.Ignored, nil) }),
		"permit settled as nonsense": acquired(func(p *breaker.Permit) { p.Settle(breaker.Outcome(77), nil) }),
		"permit, panicky RetryAfter": acquired(func(p *breaker.Permit) { p.Settle(breaker.Failure, &panicky{"RetryAfter"}) }),
		"permit, classifier panics":  acquired(func(p *breaker.Permit) { p.Done(errPanicClassifier) }),
		"permit, classifier exits":   acquired(func(p *breaker.Permit) { p.Done(errExitClassifier) }),
		"typed result": func(r *breakertest.Rig) {
			_, _ = r.B.Do(context.Background(), func(context.Context) (int, error) { return 1, nil })
		},
		"alternative panics": func(r *breakertest.Rig) {
			_ = breakertest.InGoroutine(func() {
				_, _ = r.B.DoOr(context.Background(), func(context.Context) (int, error) { return 0, breakertest.ErrBoom },
					func(context.Context, error) (int, error) { panic("alt") })
			})
		},
	}
}

var (
	errPanicClassifier = errors.New("makes the classifier panic")
	errExitClassifier  = errors.New("makes the classifier end its goroutine")
	errOddClassifier   = errors.New("makes the classifier return nonsense")
)

// oddClassifier does all that a classifier should not.
func oddClassifier(err error) breaker.Outcome {
	switch {
	case errors.Is(err, errPanicClassifier):
		panic("classifier")
	case errors.Is(err, errExitClassifier):
		runtime.Goexit()
	case errors.Is(err, errOddClassifier):
		return breaker.Outcome(200)
	}
	return breaker.DefaultClassifier(err)
}

// BC-32.
func TestEveryEndingSettles(t *testing.T) {
	hooks := map[string]breaker.Hooks{"none": {}}
	for name, h := range rudeHooks(func() { panic("hook") }) {
		hooks["panics in "+name] = h
	}
	for name, h := range rudeHooks(runtime.Goexit) {
		hooks["exits in "+name] = h
	}
	for ending, end := range endings() {
		t.Run(ending, func(t *testing.T) {
			for hook, h := range hooks {
				t.Run("hook "+hook, func(t *testing.T) {
					run := breakertest.BothClocks
					if hook != "none" { // the mock of a clock sleeps for a moment whenever it is moved
						run = func(t *testing.T, f func(*breakertest.World)) { breakertest.Bubble(t, breakertest.ByDo, f) }
					}
					run(t, func(w *breakertest.World) {
						r := w.R0(breaker.WithIgnore(breakertest.ErrClient), breaker.WithClassifier(oddClassifier),
							breaker.WithHooks(h))
						exitSafe := func(f func()) { _ = breakertest.InGoroutine(f) }
						exitSafe(func() { end(r) }) // closed
						require.Zero(w, r.C.Snapshot().InFlight)
						exitSafe(r.C.Reset)
						exitSafe(func() { r.C.Trip(nil) })
						r.Is(breaker.Open)
						w.Add(10 * time.Second)
						exitSafe(func() { end(r) })
						r.Idle()
						for range 3 { // whatever the probe's verdict was, the circuit recovers
							w.Add(10 * time.Second)
							exitSafe(func() { _ = r.C.Run(context.Background(), func(context.Context) error { return nil }) })
						}
						r.Is(breaker.Closed)
						r.Idle()
					})
				})
			}
		})
	}
}

// BC-42, BC-40.
func TestSuccessWhileOpenDoesNotClose(t *testing.T) {
	t.Run("a probe's success after it was tripped by hand", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.R0()
			r.Trip()
			w.At(10 * time.Second)
			probe := r.Gate()
			r.C.Trip(nil)
			probe.Finish(nil)
			r.Is(breaker.Open)
			w.At(20*time.Second - 1)
			r.Rejected()
		})
	})
	t.Run("nor in a half-open circuit that nobody has called", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.R0()
			stale := r.Gate()
			r.C.Trip(nil)
			r.C.OfferProbe()
			stale.Finish(nil)
			r.Is(breaker.HalfOpen)
		})
	})
	t.Run("admitted by a mode above", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			for _, m := range []breaker.Mode{breaker.ForcedClosed, breaker.Shadow} {
				r := w.R0()
				r.Trip()
				r.C.SetMode(m)
				r.Succeeds(5)
				r.Is(breaker.Open)
				r.C.SetMode(breaker.Auto)
				r.Rejected()
			}
		})
	})
}

// BC-45.
func TestDroppedResultLeavesATrace(t *testing.T) {
	breakertest.BothClocks(t, func(w *breakertest.World) {
		var calls []breaker.CallEvent
		r := w.R0(breaker.WithHooks(breaker.Hooks{Call: func(_ context.Context, c breaker.CallEvent) { calls = append(calls, c) }}))
		p := r.Acquire()
		r.Trip()
		w.At(10 * time.Second)
		calls = nil
		p.Done(nil)
		r.Is(breaker.HalfOpen)
		require.EqualValues(w, 1, r.C.Snapshot().Totals.Late)
		require.EqualValues(w, 4, r.C.Snapshot().Totals.Calls)
		require.EqualValues(w, 1, r.C.Snapshot().Totals.Successes)
		require.Len(w, calls, 1)
		require.True(w, calls[0].Late)
		require.Equal(w, breaker.Closed, calls[0].State)
		require.Equal(w, breaker.Success, calls[0].Outcome)
		require.Equal(w, 10*time.Second, calls[0].Duration)
		require.False(w, calls[0].Probe)

		r.Succeeds(1)
		require.Len(w, calls, 2)
		require.False(w, calls[1].Late)
		require.True(w, calls[1].Probe)
		require.Equal(w, breaker.HalfOpen, calls[1].State)
	})
	t.Run("without a hook", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.R0()
			var gates []*breakertest.Gate
			for range 6 {
				gates = append(gates, r.Gate())
			}
			r.C.Reset()
			gates[0].Finish(nil)
			gates[1].Finish(breakertest.ErrBoom)
			r.Trip()
			gates[2].Finish(nil)
			w.At(10 * time.Second)
			r.Succeeds(1)
			for _, g := range gates[3:] {
				g.Finish(breakertest.ErrBoom)
			}
			totals := r.C.Snapshot().Totals
			require.EqualValues(w, 6, totals.Late)
			require.EqualValues(w, 10, totals.Calls)
			r.Is(breaker.Closed)
			require.Zero(w, r.C.Snapshot().ConsecutiveFailures)
		})
	})
}

// BC-59, K23.
func TestPanicsComeOutUnchanged(t *testing.T) {
	type custom struct{ n int }
	pointer := &custom{3}
	values := []any{"text", 42, custom{1}, pointer, breakertest.ErrBoom, fmt.Errorf("wrapped: %w", breakertest.ErrBoom), http.ErrAbortHandler, context.Canceled, breaker.ErrOpen}
	for _, way := range []breakertest.Way{breakertest.ByRun, breakertest.ByDo, breakertest.ByPolicy} {
		t.Run(way.Name, func(t *testing.T) {
			breakertest.Injected(t, way, func(w *breakertest.World) {
				for _, value := range values {
					r := w.R0(breaker.WithIgnore(breakertest.ErrBoom, http.ErrAbortHandler, context.Canceled),
						breaker.WithClassifier(func(error) breaker.Outcome { return breaker.Success }))
					for range 3 {
						r.Is(breaker.Closed)
						got := breakertest.PanicOf(func() {
							_, _ = way.Call(r, context.Background(), func(context.Context) (int, error) { panic(value) })
						})
						require.True(w, got == value, "panicked with %v, came out as %v", value, got)
						r.Idle()
					}
					require.Equal(w, breaker.Open, r.C.State(), "three panics with %v", value)
					require.Error(w, r.Rejected().Cause)
					require.EqualValues(w, 3, r.C.Snapshot().Totals.Panics)
					require.EqualValues(w, 3, r.C.Snapshot().Totals.Failures)
				}
			})
		})
	}
	t.Run("a panic with nil is one as well", func(t *testing.T) {
		r := (&breakertest.World{T: t, Clk: breakertest.NewClock(), Way: breakertest.ByRun}).R0()
		v := breakertest.PanicOf(func() { _ = r.C.Run(context.Background(), func(context.Context) error { panic(nil) }) })
		require.IsType(t, &runtime.PanicNilError{}, v)
		require.EqualValues(t, 1, r.C.Snapshot().Totals.Panics)
	})
	t.Run("after the caller's cancel", func(t *testing.T) {
		r := (&breakertest.World{T: t, Clk: breakertest.NewClock(), Way: breakertest.ByRun}).R0()
		for range 3 {
			ctx, cancel := context.WithCancel(context.Background())
			breakertest.PanicOf(func() { _ = r.C.Run(ctx, func(context.Context) error { cancel(); panic("boom") }) })
		}
		r.Is(breaker.Open) // a panic counts before anything else is asked
	})
	t.Run("the stack is the function's", func(t *testing.T) {
		r := (&breakertest.World{T: t, Clk: breakertest.NewClock(), Way: breakertest.ByRun}).R0()
		var stack string
		func() {
			defer func() {
				if recover() != nil {
					text := make([]byte, 1<<16)
					stack = string(text[:runtime.Stack(text, false)])
				}
			}()
			_ = r.C.Run(context.Background(), func(context.Context) error { panicHere(); return nil })
		}()
		require.Contains(t, stack, "panicHere", "a panic that was recovered and raised again has lost its place")
	})
}

func panicHere() { panic("here") }

// BC-59.
func TestPanicsOfClassifierAndTripFunction(t *testing.T) {
	for _, by := range []breakertest.Way{breakertest.ByRun, breakertest.ByDo, breakertest.ByPermit} {
		t.Run("classifier, "+by.Name, func(t *testing.T) {
			breakertest.Injected(t, by, func(w *breakertest.World) {
				r := w.R0(breaker.WithClassifier(func(error) breaker.Outcome { panic("classify") }))
				for range 3 {
					r.Is(breaker.Closed)
					require.Equal(w, "classify", breakertest.PanicOf(func() { _ = r.Call(breakertest.ErrBoom) }))
				}
				r.Is(breaker.Open)
				require.EqualValues(w, 3, r.C.Snapshot().Totals.Failures)
				r.Idle()
			})
		})
	}
	t.Run("trip function", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			log := &logged{}
			r := w.R0(breaker.WithLogger(slog.New(log)), breaker.WithTrip(breaker.TripWhen(breaker.LastCalls(5), func(breaker.Counts) bool { panic("trip function") })))
			r.Succeeds(1)
			r.Fails(9)
			r.Is(breaker.Closed)
			require.Len(w, log.list(), 9)
			require.Equal(w, slog.LevelError, log.list()[0].Level)
			require.Contains(w, fmt.Sprint(attrs(log.list()[0])), "trip function")
		})
	})
}

// BC-104.
func TestLateResultOfADetachedCallIsDropped(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		r := w.R0()
		release := make(chan struct{})
		alts := 0
		v, err := r.B.DoOr(context.Background(), breaker.Detach(time.Second, func(context.Context) (int, error) {
			<-release
			return 7, breakertest.ErrBoom
		}), func(_ context.Context, why error) (int, error) {
			alts++
			require.ErrorIs(w, why, context.DeadlineExceeded)
			return 42, nil
		})
		require.NoError(w, err)
		require.Equal(w, 42, v)
		require.Equal(w, time.Second, w.Elapsed())
		w.At(5 * time.Second)
		close(release)
		synctest.Wait()
		require.Equal(w, 1, alts)
		require.EqualValues(w, 1, r.C.Snapshot().Totals.Calls)
		r.Idle()
	})
	t.Run("what ends in time comes out", func(t *testing.T) {
		breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
			v, err := breaker.Detach(time.Second, func(context.Context) (int, error) { return 7, breakertest.ErrBoom })(w.Context())
			require.Equal(w, 7, v)
			require.Same(w, breakertest.ErrBoom, err)
			require.Equal(w, "boom", breakertest.PanicOf(func() {
				_, _ = breaker.Detach(time.Second, func(context.Context) (int, error) { panic("boom") })(w.Context())
			}))
			_, err = breaker.Detach(time.Second, func(context.Context) (int, error) { runtime.Goexit(); return 0, nil })(w.Context())
			require.ErrorIs(w, err, breaker.ErrGoexit)
			ctx, cancel := context.WithCancel(w.Context())
			time.AfterFunc(100*time.Millisecond, cancel)
			_, err = breaker.Detach(time.Second, func(context.Context) (int, error) { <-time.After(time.Minute); return 0, nil })(ctx)
			require.ErrorIs(w, err, context.Canceled)
			w.Add(time.Minute) // the function ends, and nobody minds
		})
	})
	t.Run("nonsense is an error of every call", func(t *testing.T) {
		_, err := breaker.Detach[int](time.Second, nil)(context.Background())
		require.ErrorIs(t, err, breaker.ErrNilFunc)
		for _, d := range []time.Duration{0, -1} {
			_, err = breaker.Detach(d, func(context.Context) (int, error) { return 0, nil })(context.Background())
			require.Error(t, err)
		}
	})
}

// K15, BC-40.
func TestOutcomesFromBeforeATransitionMoveNothing(t *testing.T) {
	for name, outcome := range map[string]error{"success": nil, "failure": breakertest.ErrBoom, "ignored": fmt.Errorf("inner: %w", breaker.ErrOpen)} {
		for _, when := range []struct {
			name string
			at   time.Duration
			want breaker.State
		}{
			{"at the opening", 0, breaker.Open},
			{"while open", 12 * time.Second, breaker.Open},
			{"just before the end", 29 * time.Second, breaker.Open},
			{"at the end, before a probe", 30 * time.Second, breaker.HalfOpen},
		} {
			t.Run(name+" "+when.name, func(t *testing.T) {
				breakertest.Everywhere(t, func(w *breakertest.World) {
					r := w.Circuit()
					stale := []*breakertest.Gate{r.Gate(), r.Gate(), r.Gate(), r.Gate(), r.Gate()}
					r.Trip()
					w.At(when.at)
					for _, g := range stale {
						g.Finish(outcome)
					}
					r.Is(when.want)
					w.At(30 * time.Second)
					r.Is(breaker.HalfOpen)
					require.Len(w, r.Steps(), 1)
					require.EqualValues(w, 5, r.C.Snapshot().Totals.Late)
					r.Succeeds(1)
					r.Is(breaker.HalfOpen)
					r.Succeeds(1)
					r.Is(breaker.Closed)
				})
			})
		}
		t.Run(name+" while half-open", func(t *testing.T) {
			breakertest.Everywhere(t, func(w *breakertest.World) {
				r := w.Circuit()
				stale := []*breakertest.Gate{r.Gate(), r.Gate(), r.Gate()}
				r.Trip()
				w.At(30 * time.Second)
				r.Succeeds(1)
				for _, g := range stale {
					g.Finish(outcome)
				}
				r.Is(breaker.HalfOpen)
				require.EqualValues(w, 1, r.C.Snapshot().ConsecutiveSuccesses)
				r.Succeeds(1)
				r.Is(breaker.Closed)
			})
		})
		t.Run(name+" of a probe after the next opening", func(t *testing.T) {
			breakertest.Everywhere(t, func(w *breakertest.World) {
				r := w.Circuit(breaker.WithProbeLease(time.Hour))
				r.Trip()
				w.At(30 * time.Second)
				probe := r.Gate()
				r.Fails(1)
				w.At(60 * time.Second)
				next := r.Gate()
				probe.Finish(outcome)
				r.Is(breaker.HalfOpen)
				require.EqualValues(w, 1, r.C.Snapshot().Probes, "the stale probe frees nobody's slot")
				next.Finish(nil)
				r.Is(breaker.HalfOpen)
				r.Succeeds(1)
				r.Is(breaker.Closed)
			})
		})
		t.Run(name+" from an earlier closed time", func(t *testing.T) {
			breakertest.Everywhere(t, func(w *breakertest.World) {
				r := w.Circuit()
				stale := []*breakertest.Gate{r.Gate(), r.Gate(), r.Gate(), r.Gate(), r.Gate()}
				r.Trip()
				w.At(30 * time.Second)
				r.Succeeds(2)
				r.Fails(4)
				for _, g := range stale {
					g.Finish(outcome)
				}
				r.Is(breaker.Closed)
				require.EqualValues(w, 4, r.C.Snapshot().ConsecutiveFailures)
				r.Fails(1)
				r.Is(breaker.Open)
			})
		})
	}
}

// K35.
func TestMaxInFlightStopsTheFirstWave(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		r := w.Circuit(breaker.WithMaxInFlight(100))
		var in []*breakertest.Gate
		refused := 0
		for range 5000 {
			g := r.Begin()
			if g.Ran {
				in = append(in, g)
				continue
			}
			err := <-g.Result
			require.ErrorIs(w, err, breaker.ErrTooManyInFlight)
			require.NotErrorIs(w, err, breaker.ErrOpen)
			refused++
		}
		require.Len(w, in, 100)
		require.Equal(w, 4900, refused)
		require.EqualValues(w, 4900, r.C.Snapshot().Totals.Rejected)
		require.EqualValues(w, 100, r.C.Snapshot().InFlight)
		require.False(w, r.C.Ready())
		in[0].Finish(nil)
		require.True(w, r.C.Ready())
		again := r.Gate()
		require.ErrorIs(w, r.Call(nil), breaker.ErrTooManyInFlight)
		for _, g := range append(in[1:], again) {
			g.Finish(nil)
		}
		r.Idle()
		r.Is(breaker.Closed)
	})
	t.Run("0 is off", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.Circuit(breaker.WithMaxInFlight(0))
			for range 500 {
				r.Gate()
			}
			require.EqualValues(w, 500, r.C.Snapshot().InFlight)
		})
	})
	t.Run("never exceeded by callers that race", func(t *testing.T) {
		breakertest.BothClocks(t, func(w *breakertest.World) {
			r := w.Circuit(breaker.WithMaxInFlight(7))
			var now, most, over atomic.Int64
			var all sync.WaitGroup
			for range 64 {
				all.Go(func() {
					for range 100 {
						_ = r.C.Run(context.Background(), func(context.Context) error {
							n := now.Add(1)
							for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
							}
							if n > 7 {
								over.Add(1)
							}
							runtime.Gosched()
							now.Add(-1)
							return nil
						})
					}
				})
			}
			all.Wait()
			require.Zero(w, over.Load(), "up to %d in flight", most.Load())
			r.Idle()
		})
	})
}

// A panic, turned into an error, was a success to a list of the errors that count.
func TestPanicPassesNoAllowList(t *testing.T) {
	for name, opt := range map[string]breaker.Option{
		"classifier that says success": breaker.WithClassifier(func(error) breaker.Outcome { return breaker.Success }),
		"classifier that says ignored": breaker.WithClassifier(func(error) breaker.Outcome { return breaker.Ignored }),
		"list of other errors":         breaker.WithFailOn(breakertest.ErrClient),
		"value classifier":             breaker.WithResult(func(int, error) breaker.Outcome { return breaker.Success }),
	} {
		t.Run(name, func(t *testing.T) {
			breakertest.BothClocks(t, func(w *breakertest.World) {
				r := w.R0(opt)
				for range 3 {
					r.Is(breaker.Closed)
					require.Equal(w, breakertest.ErrClient, breakertest.PanicOf(func() {
						_, _ = r.B.Do(w.Context(), func(context.Context) (int, error) { panic(breakertest.ErrClient) })
					}))
				}
				r.Is(breaker.Open)
			})
		})
	}
}

// Panic, Goexit or a hang leaked the permit, of probes and of the limit on calls in flight.
func TestNoPermitLeaks(t *testing.T) {
	for name, end := range map[string]func(){
		"panic":  func() { panic("boom") },
		"goexit": runtime.Goexit,
	} {
		for _, by := range []breakertest.Way{breakertest.ByRun, breakertest.ByDo, breakertest.ByPolicy} {
			t.Run(name+" "+by.Name, func(t *testing.T) {
				breakertest.Injected(t, by, func(w *breakertest.World) {
					r := w.R0(breaker.WithMaxInFlight(1), breaker.WithFailureThreshold(1000))
					for range 100 {
						_ = breakertest.InGoroutine(func() {
							_, err := r.Way.Call(r, context.Background(), func(context.Context) (int, error) {
								r.Ran.Add(1)
								end()
								return 0, nil
							})
							assert.NoError(w, err, "rejected")
						})
						r.Idle()
					}
					require.EqualValues(w, 100, r.Ran.Load())
					r.Succeeds(1)
				})
			})
		}
	}
}

// Fifty successes of calls admitted while closed closed a half-open circuit that no probe had been sent through.
func TestSuccessesOfAnEarlierTimeCloseNothing(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		r := w.R0(breaker.WithSuccessThreshold(3))
		var early []*breakertest.Gate
		for range 50 {
			early = append(early, r.Gate())
		}
		r.Trip()
		w.At(10 * time.Second)
		for _, g := range early[:25] {
			g.Finish(nil) // due, but nobody has asked yet
		}
		r.Is(breaker.HalfOpen)
		probe := r.Gate()
		for _, g := range early[25:] {
			g.Finish(nil)
		}
		r.Is(breaker.HalfOpen)
		require.Zero(w, r.C.Snapshot().ConsecutiveSuccesses)
		require.EqualValues(w, 1, r.C.Snapshot().Probes)
		probe.Finish(nil)
		r.Is(breaker.HalfOpen)
		require.EqualValues(w, 50, r.C.Snapshot().Totals.Late)
	})
}

// Stale results handed back slots that they had never taken, so that more probes ran than there were slots.
func TestStaleResultsRaiseNoCap(t *testing.T) {
	for name, outcome := range map[string]error{"successes": nil, "failures": breakertest.ErrBoom, "ignored": fmt.Errorf("inner: %w", breaker.ErrOpen)} {
		t.Run(name, func(t *testing.T) {
			breakertest.Everywhere(t, func(w *breakertest.World) {
				const slots = 20
				r := w.R0(breaker.WithHalfOpenProbes(slots), breaker.WithSuccessThreshold(1000))
				var stale []*breakertest.Gate
				for range 90 {
					stale = append(stale, r.Gate())
				}
				r.Trip()
				w.At(10 * time.Second)
				for range slots {
					r.Gate()
				}
				for _, g := range stale {
					g.Finish(outcome)
				}
				require.EqualValues(w, slots, r.C.Snapshot().Probes)
				for range 90 {
					require.ErrorIs(w, r.Rejected(), breaker.ErrTooManyProbes)
				}
				r.Is(breaker.HalfOpen)
			})
		})
	}
}

// A panic went past every counter.
func TestPanicsAreCounted(t *testing.T) {
	breakertest.BothClocks(t, func(w *breakertest.World) {
		var calls []breaker.CallEvent
		r := w.R0(breaker.WithHooks(breaker.Hooks{Call: func(_ context.Context, c breaker.CallEvent) { calls = append(calls, c) }}))
		breakertest.PanicOf(func() { _ = r.C.Run(w.Context(), func(context.Context) error { panic("boom") }) })
		totals := r.C.Snapshot().Totals
		require.EqualValues(w, 1, totals.Calls)
		require.EqualValues(w, 1, totals.Failures)
		require.EqualValues(w, 1, totals.Panics)
		require.EqualValues(w, 1, r.C.Snapshot().Counts.Failures)
		require.Len(w, calls, 1)
		require.Equal(w, breaker.Failure, calls[0].Outcome)
		require.Error(w, calls[0].Err)
	})
}

// A lock was held while the user's function ran, which made one queue of all calls.
func TestCallsRunSideBySide(t *testing.T) {
	for name, opts := range map[string][]breaker.Option{
		"closed":          nil,
		"limited":         {breaker.WithMaxInFlight(10)},
		"time window":     {breaker.WithTrip(breaker.FailureRate(0.5, 5, breaker.Last(time.Second)))},
		"slow call limit": {breaker.WithTrip(breaker.SlowCallRate(time.Hour, 0.5, 5, breaker.LastCalls(9)))},
		"shadow":          {breaker.WithMode(breaker.Shadow)},
		"timeout":         {breaker.WithTimeout(time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			breakertest.BothClocks(t, func(w *breakertest.World) {
				r := w.R0(opts...)
				meet := rendezvous(5)
				var all sync.WaitGroup
				for range 5 {
					all.Go(func() {
						_, err := r.B.Do(context.Background(), func(context.Context) (int, error) { meet(); return 1, nil })
						assert.NoError(w, err)
					})
				}
				all.Wait()
			})
		})
	}
	t.Run("half-open", func(t *testing.T) {
		breakertest.BothClocks(t, func(w *breakertest.World) {
			r := w.R0(breaker.WithHalfOpenProbes(5))
			r.Trip()
			w.At(10 * time.Second)
			meet := rendezvous(5)
			var all sync.WaitGroup
			for range 5 {
				all.Go(func() { _ = r.C.Run(context.Background(), func(context.Context) error { meet(); return nil }) })
			}
			all.Wait()
			r.Is(breaker.Closed)
		})
	})
	t.Run("user code beside the function", func(t *testing.T) {
		for name, opts := range map[string]func(meet func()) breaker.Option{
			"classifier": func(meet func()) breaker.Option {
				return breaker.WithClassifier(func(error) breaker.Outcome { meet(); return breaker.Ignored })
			},
			"trip function": func(meet func()) breaker.Option {
				return breaker.WithTrip(breaker.TripWhen(breaker.LastCalls(5), func(breaker.Counts) bool { meet(); return false }))
			},
			"call hook": func(meet func()) breaker.Option {
				return breaker.WithHooks(breaker.Hooks{Call: func(context.Context, breaker.CallEvent) { meet() }})
			},
		} {
			t.Run(name, func(t *testing.T) {
				breakertest.BothClocks(t, func(w *breakertest.World) {
					r := w.R0(opts(rendezvous(5)), breaker.WithFailureThreshold(100))
					var all sync.WaitGroup
					for range 5 {
						all.Go(func() { _ = r.C.Run(context.Background(), func(context.Context) error { return breakertest.ErrBoom }) })
					}
					all.Wait()
					r.Idle()
				})
			})
		}
	})
}

// rendezvous returns a function that returns when n goroutines have called it.
func rendezvous(n int) func() {
	var here atomic.Int64
	all := make(chan struct{})
	return func() {
		if here.Add(1) == int64(n) {
			close(all)
		}
		<-all
	}
}

// A predicate that threw left the circuit stuck.
func TestThrowingPredicateWedgesNothing(t *testing.T) {
	for name, throw := range map[string]func(){"panic": func() { panic("predicate") }, "goexit": runtime.Goexit} {
		for predicate, opt := range map[string]breaker.Option{
			"classifier":       breaker.WithClassifier(func(error) breaker.Outcome { throw(); return breaker.Failure }),
			"value classifier": breaker.WithResult(func(_ int, err error) breaker.Outcome { throw(); return breaker.Failure }),
			"trip function":    breaker.WithTrip(breaker.TripWhen(breaker.LastCalls(5), func(breaker.Counts) bool { throw(); return true }), breaker.ConsecutiveFailures(3)),
		} {
			t.Run(predicate+" "+name, func(t *testing.T) {
				breakertest.BothClocks(t, func(w *breakertest.World) {
					r := w.R0(opt)
					call := func(err error) {
						_ = breakertest.InGoroutine(func() { _, _ = r.B.Do(context.Background(), func(context.Context) (int, error) { return 1, err }) })
					}
					for range 3 {
						r.Is(breaker.Closed)
						call(breakertest.ErrBoom)
						r.Idle()
					}
					r.Is(breaker.Open) // each of the calls counts as a failure
					w.At(10 * time.Second)
					call(breakertest.ErrBoom)
					r.Idle()
					r.Is(breaker.Open)
					w.At(20 * time.Second)
					_ = breakertest.InGoroutine(func() { _ = r.C.Run(context.Background(), func(context.Context) error { return nil }) })
					r.Is(breaker.Closed)
					r.Idle()
				})
			})
		}
	}
}

// Rejected calls were counted as failures, or not at all, or their number fell.
// O02.
func TestRejectionsAreCountedOnceAndApart(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		rejections := 0
		r := w.R0(breaker.WithHooks(breaker.Hooks{Reject: func(_ context.Context, e breaker.RejectEvent) {
			rejections++
			require.ErrorIs(w, e.Err, breaker.ErrOpen)
			require.False(w, e.Shadow)
		}}))
		r.Trip()
		for n := 1; n <= 100; n++ {
			r.Rejected()
			require.EqualValues(w, n, r.C.Snapshot().Totals.Rejected)
			require.Equal(w, n, rejections)
		}
		require.EqualValues(w, 3, r.C.Snapshot().Totals.Calls)
		w.At(10 * time.Second)
		probe := r.Gate()
		r.Rejected()
		probe.Finish(nil)
		r.C.Reset()
		require.EqualValues(w, 101, r.C.Snapshot().Totals.Rejected)
		require.EqualValues(w, 4, r.C.Snapshot().Totals.Calls)
	})
}

// Callers that meet at a counter, or where a busy circuit looks at its clock, lose no call.
func TestNoRacingCallIsLost(t *testing.T) {
	const rounds, callers, each = 20, 4, 5_000 // a circuit that has seen such callers keeps them apart from then on
	good := func(context.Context) (int, error) { return 1, nil }
	for _, by := range []breakertest.Way{breakertest.ByDo, breakertest.ByPermit} {
		for name, tripped := range map[string]bool{"rejections": true, "successes": false} {
			t.Run(name+" "+by.Name, func(t *testing.T) {
				breakertest.Guard(t, breakertest.Patience, func() {
					for range rounds {
						r := (&breakertest.World{T: t, Start: time.Now(), Way: by}).Circuit(breaker.WithTrip(breaker.FailureRate(0.5, 5, breaker.Last(time.Minute))))
						want := breaker.Totals{Calls: callers * each, Successes: callers * each}
						if tripped {
							r.C.Trip(nil)
							want = breaker.Totals{Rejected: callers * each}
						}
						start := make(chan struct{})
						var all sync.WaitGroup
						for range callers {
							all.Go(func() {
								<-start
								for range each {
									_, _ = by.Call(r, context.Background(), good)
								}
							})
						}
						close(start)
						all.Wait()
						require.Equal(t, want, r.C.Snapshot().Totals)
						r.Idle()
					}
				})
			})
		}
	}
}

// A panic was counted before the failure that it is.
func TestPanicsAreNeverMoreThanFailures(t *testing.T) {
	var c *breaker.Circuit
	looks := 0
	c = breaker.Must(breaker.NewCircuit("c", breaker.WithOpenBackoff(2, time.Hour, 1), breaker.WithRand(func() float64 {
		looks++
		n := c.Snapshot().Totals
		require.LessOrEqual(t, n.Panics, n.Failures)
		return 0
	})))
	require.Panics(t, func() { _ = c.Run(context.Background(), func(context.Context) error { panic("boom") }) })
	require.NotZero(t, looks)
	n := c.Snapshot().Totals
	require.EqualValues(t, 1, n.Panics)
	require.EqualValues(t, 1, n.Failures)
}

// BC-37.
func TestSettlingTwiceCountsOnce(t *testing.T) {
	breakertest.BothClocks(t, func(w *breakertest.World) {
		r := w.R0(breaker.WithSuccessThreshold(2), breaker.WithHalfOpenProbes(1))
		r.Trip()
		w.At(10 * time.Second)
		p := r.Acquire()
		var twice sync.WaitGroup
		twice.Go(func() { p.Done(nil) })
		twice.Go(func() { p.Done(nil) })
		twice.Wait()
		require.EqualValues(w, 1, r.C.Snapshot().ConsecutiveSuccesses)
		r.Is(breaker.HalfOpen)
		first := r.Gate()
		require.ErrorIs(w, r.Rejected(), breaker.ErrTooManyProbes)
		p.Done(breakertest.ErrBoom) // a third time, on somebody else's probe
		p.Settle(breaker.Failure, breakertest.ErrBoom)
		r.Is(breaker.HalfOpen)
		require.EqualValues(w, 1, r.C.Snapshot().Probes)
		first.Finish(nil)
		r.Is(breaker.Closed)
		r.Idle()
	})
}

// K20.
func TestTwoStepUse(t *testing.T) {
	breakertest.BothClocks(t, func(w *breakertest.World) {
		r := w.Circuit()
		var permits []*breaker.Permit
		for range 5 {
			permits = append(permits, r.Acquire())
		}
		require.EqualValues(w, 5, r.C.Snapshot().InFlight)
		for i, p := range permits {
			r.Is(breaker.Closed)
			if i%2 == 0 {
				p.Done(breakertest.ErrBoom)
			} else {
				breakertest.InGoroutine(func() { p.Settle(breaker.Failure, breakertest.ErrBoom) })
			}
		}
		r.Is(breaker.Open)
		_, err := r.C.Acquire(w.Context())
		require.ErrorIs(w, err, breaker.ErrOpen)
		w.At(30 * time.Second)
		a, b := r.Acquire(), r.Acquire()
		a.Done(nil)
		b.Settle(breaker.Success, nil)
		r.Is(breaker.Closed)
		r.Idle()
	})
}

// K21.
func TestOnlyTheFirstSettlementCounts(t *testing.T) {
	settle := map[string]func(*breaker.Permit, breaker.Outcome){
		"Done": func(p *breaker.Permit, o breaker.Outcome) {
			if o == breaker.Success {
				p.Done(nil)
				return
			}
			p.Done(breakertest.ErrBoom)
		},
		"Settle": func(p *breaker.Permit, o breaker.Outcome) { p.Settle(o, breakertest.ErrBoom) },
	}
	for first, settleFirst := range settle {
		for second, settleSecond := range settle {
			t.Run(first+" then "+second, func(t *testing.T) {
				breakertest.BothClocks(t, func(w *breakertest.World) {
					r := w.Circuit()
					p := r.Acquire()
					settleFirst(p, breaker.Failure)
					settleSecond(p, breaker.Failure)
					settleSecond(p, breaker.Success)
					require.EqualValues(w, 1, r.C.Snapshot().ConsecutiveFailures)
					require.EqualValues(w, 1, r.C.Snapshot().Totals.Calls)
					r.Idle()

					q := r.Acquire()
					settleFirst(q, breaker.Success)
					settleSecond(q, breaker.Failure)
					require.Zero(w, r.C.Snapshot().ConsecutiveFailures)
					require.EqualValues(w, 2, r.C.Snapshot().Totals.Calls)
					r.Idle()
				})
			})
		}
	}
	t.Run("of many at once", func(t *testing.T) {
		breakertest.BothClocks(t, func(w *breakertest.World) {
			r := w.Circuit()
			p := r.Acquire()
			var all sync.WaitGroup
			for range 50 {
				all.Go(func() { p.Done(breakertest.ErrBoom) })
			}
			all.Wait()
			require.EqualValues(w, 1, r.C.Snapshot().Totals.Failures)
			r.Idle()
		})
	})
	t.Run("of no permit at all", func(t *testing.T) {
		var p *breaker.Permit
		p.Done(nil)
		p.Settle(breaker.Failure, nil)
	})
}

// K22.
func TestContextAlreadyDoneTakesNothing(t *testing.T) {
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	expired, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancel()
	caused, cancelWith := context.WithCancelCause(context.Background())
	cancelWith(breakertest.ErrClient)
	for _, ctx := range []context.Context{cancelled, expired, caused} {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.Circuit(breaker.WithSuccessThreshold(1))
			check := func(want breaker.State) {
				ran, before := r.Ran.Load(), r.C.Snapshot()
				require.Equal(w, ctx.Err(), r.CallContext(ctx, nil))
				require.Equal(w, ran, r.Ran.Load(), "the function ran")
				after := r.C.Snapshot()
				require.Equal(w, before.Totals, after.Totals)
				require.Equal(w, before.InFlight, after.InFlight)
				require.Equal(w, before.Probes, after.Probes)
				r.Is(want)
			}
			check(breaker.Closed)
			r.Trip()
			check(breaker.Open)
			w.At(30 * time.Second)
			check(breaker.HalfOpen)
			require.Len(w, r.Steps(), 1, "such a call moves nothing")
			probe := r.Gate()
			check(breaker.HalfOpen)
			probe.Finish(nil)
			r.Is(breaker.Closed)
			for _, m := range []breaker.Mode{breaker.ForcedOpen, breaker.ForcedClosed, breaker.Shadow} {
				r.C.SetMode(m)
				check(breaker.Closed)
			}
		})
	}
}
