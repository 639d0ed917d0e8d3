package breaker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// The K vectors: the circuit.

func TestK01_NewCircuitIsClosedAndPassesEverything(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.circuit()
		r.state(breaker.Closed)
		r.ok(1000)
		r.state(breaker.Closed)
		require.EqualValues(w, 1000, r.ran.Load())
		require.Empty(w, r.steps())
		require.EqualValues(w, 1000, r.c.Snapshot().Totals.Successes)
		r.idle()
	})
}

func TestK02_ThresholdIsReachedNotExceeded(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.circuit()
		w.at(7 * time.Second)
		r.fail(4)
		r.state(breaker.Closed)
		require.Empty(w, r.steps())
		r.fail(1)
		r.state(breaker.Open)
		require.Equal(w, []string{"closed>open at 7s: threshold reached"}, r.steps())
	})
	t.Run("any threshold", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			for _, n := range []int{1, 2, 3, 7, 100} {
				r := w.circuit(breaker.WithFailureThreshold(n))
				r.fail(n - 1)
				r.state(breaker.Closed)
				r.fail(1)
				r.state(breaker.Open)
			}
		})
	})
}

func TestK03_OpenRejectsAtOnce(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.circuit()
		r.trip()
		ran, before := r.ran.Load(), w.now()
		for range 1000 {
			require.ErrorIs(w, r.call(nil), breaker.ErrOpen)
		}
		require.Equal(w, ran, r.ran.Load())
		require.Equal(w, before, w.now())
		require.EqualValues(w, 1000, r.c.Snapshot().Totals.Rejected)
	})
	t.Run("by every method", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			r := w.circuit()
			r.trip()
			ctx := w.Context()

			_, err := r.b.Do(ctx, w.noCall)
			require.ErrorIs(w, err, breaker.ErrOpen)
			_, err = r.b.Wrap(w.noCall)(ctx)
			require.ErrorIs(w, err, breaker.ErrOpen)
			result := r.b.Try(ctx, w.noCall)
			require.ErrorIs(w, result.Err, breaker.ErrOpen)
			require.Zero(w, result.Attempts)
			require.ErrorIs(w, r.c.Run(ctx, func(ctx context.Context) error { _, err := w.noCall(ctx); return err }), breaker.ErrOpen)
			p, err := r.c.Acquire(ctx)
			require.ErrorIs(w, err, breaker.ErrOpen)
			require.Nil(w, p)
			v, err := r.b.DoOr(ctx, w.noCall, func(_ context.Context, why error) (int, error) {
				require.ErrorIs(w, why, breaker.ErrOpen)
				return 42, nil
			})
			require.NoError(w, err)
			require.Equal(w, 42, v)
			require.EqualValues(w, 6, r.c.Snapshot().Totals.Rejected)
		})
	})
}

func TestK04_SuccessResetsTheRun(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.circuit()
		r.fail(4)
		require.EqualValues(w, 4, r.c.Snapshot().ConsecutiveFailures)
		r.ok(1)
		require.Zero(w, r.c.Snapshot().ConsecutiveFailures)
		r.fail(4)
		r.state(breaker.Closed)
		r.fail(1)
		r.state(breaker.Open)
	})
}

// failuresAt makes a failing call at each time, in milliseconds, that is admitted.
func (r *rig) failuresAt(ms ...int) {
	r.Helper()
	for _, at := range ms {
		r.at(time.Duration(at) * time.Millisecond)
		r.fail(1)
	}
}

func every(step, n int) (ms []int) {
	for i := range n {
		ms = append(ms, i*step)
	}
	return ms
}

func TestK05_FailureWindowIsExact(t *testing.T) {
	const minute = time.Minute
	policies := map[string]breaker.Option{
		"WithFailureWindow": breaker.WithFailureWindow(minute),
		"FailureCount":      breaker.WithTrip(breaker.FailureCount(5, minute)),
	}
	for _, tc := range []struct {
		name string
		at   []int // failures, in ms
		want breaker.State
	}{
		{"a: the fifth is just inside", []int{0, 15_000, 30_000, 45_000, 59_999}, breaker.Open},
		{"b: the first has just left", []int{0, 15_000, 30_000, 45_000, 60_000}, breaker.Closed},
		{"c: one each 50s", every(50_000, 20), breaker.Closed},
		{"d: the window moves on", []int{0, 57_000, 58_000, 59_000, 61_000, 62_000}, breaker.Open},
		{"d without its last", []int{0, 57_000, 58_000, 59_000, 61_000}, breaker.Closed},
		{"all at once", []int{0, 0, 0, 0, 0}, breaker.Open},
		{"all at once, late", []int{0, 900_000, 900_000, 900_000, 900_000, 900_000}, breaker.Open},
		{"four each minute", []int{0, 0, 0, 0, 60_000, 60_000, 60_000, 60_000, 120_000, 120_000, 120_000, 120_000}, breaker.Closed},
		{"one each 15s", every(15_000, 20), breaker.Closed},
		{"one each 14.999s", every(14_999, 5), breaker.Open},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for name, policy := range policies {
				t.Run(name, func(t *testing.T) {
					everywhere(t, func(w *world) {
						r := w.circuit(policy)
						last := len(tc.at) - 1
						r.failuresAt(tc.at[:last]...)
						r.state(breaker.Closed)
						r.failuresAt(tc.at[last])
						r.state(tc.want)
					})
				})
			}
		})
	}
	t.Run("a success ends the run but not the count", func(t *testing.T) {
		for name, want := range map[string]breaker.State{"WithFailureWindow": breaker.Closed, "FailureCount": breaker.Open} {
			everywhere(t, func(w *world) {
				r := w.circuit(policies[name])
				r.failuresAt(0, 15_000)
				r.ok(1)
				r.failuresAt(30_000, 45_000, 59_999)
				r.state(want)
			})
		}
	})
	t.Run("a nanosecond decides", func(t *testing.T) {
		everywhere(t, func(w *world) {
			in, out := w.circuit(policies["WithFailureWindow"]), w.circuit(policies["WithFailureWindow"])
			in.fail(4)
			out.fail(4)
			w.at(minute - 1)
			in.fail(1)
			in.state(breaker.Open)
			w.at(minute)
			out.fail(1)
			out.state(breaker.Closed)
			require.NoError(w, out.c.Sync(context.Background())) // with a store, another circuit of the name may have failed
			require.EqualValues(w, 1, out.c.Snapshot().ConsecutiveFailures, "only the young failure counts")
		})
	})
}

func TestK06_WithoutWindowSpacingDoesNotMatter(t *testing.T) {
	policies := map[string]breaker.Option{
		"default":             breaker.WithFailureThreshold(5),
		"WithFailureWindow 0": breaker.WithFailureWindow(0),
		"ConsecutiveFailures": breaker.WithTrip(breaker.ConsecutiveFailures(5)),
		"rate of last 5":      breaker.WithTrip(breaker.FailureRate(1, 5, breaker.LastCalls(5))),
	}
	for name, policy := range policies {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(w *world) {
				r := w.circuit(policy)
				const hour = 3_600_000
				r.failuresAt(0, hour, 2*hour, 3*hour)
				r.state(breaker.Closed)
				r.failuresAt(4 * hour)
				r.state(breaker.Open)
			})
		})
	}
}

func TestK07_OpenLastsExactlyTheOpenTimeout(t *testing.T) {
	for _, timeout := range []time.Duration{1, time.Millisecond, 15 * time.Second, 30 * time.Second, 24 * time.Hour} {
		t.Run(timeout.String(), func(t *testing.T) {
			everywhere(t, func(w *world) {
				r := w.circuit(breaker.WithOpenTimeout(timeout))
				r.trip()
				w.at(timeout - 1)
				require.EqualValues(w, 1, r.rejected().RetryAfter())
				r.state(breaker.Open)
				require.False(w, r.c.Ready())
				w.at(timeout)
				require.True(w, r.c.Ready())
				r.ok(1)
				r.state(breaker.HalfOpen)
			})
		})
	}
	t.Run("long after", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.circuit()
			r.trip()
			w.at(1000 * time.Hour)
			r.ok(2)
			r.state(breaker.Closed)
		})
	})
}

func TestK08_HalfOpenIsLazy(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.circuit()
		before := runtime.NumGoroutine()
		r.trip()
		w.at(30*time.Second - 1)
		r.state(breaker.Open)
		w.at(30 * time.Second)
		r.state(breaker.HalfOpen)
		require.Equal(w, breaker.HalfOpen, r.c.Snapshot().State)
		noMoreThan(w, before)
		require.Len(w, r.steps(), 1, "reading moves nothing")
	})
}

func TestK09_HalfOpenAdmitsProbesUpToItsSlots(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			everywhere(t, func(w *world) {
				r := w.circuit(breaker.WithHalfOpenProbes(n), breaker.WithSuccessThreshold(n))
				r.trip()
				w.at(30 * time.Second)
				var in, out []*gate
				for range 10 {
					if g := r.begin(); g.ran {
						in = append(in, g)
					} else {
						out = append(out, g)
					}
				}
				require.Len(w, in, n)
				require.Len(w, out, 10-n)
				for _, g := range out {
					err := <-g.result
					require.ErrorIs(w, err, breaker.ErrTooManyProbes)
					require.ErrorIs(w, err, breaker.ErrOpen)
				}
				require.EqualValues(w, n, r.c.Snapshot().Probes)
				for _, g := range in {
					r.state(breaker.HalfOpen)
					g.finish(nil)
				}
				r.state(breaker.Closed)
				r.idle()
			})
		})
	}
	t.Run("a freed slot is given out again", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.circuit(breaker.WithHalfOpenProbes(2), breaker.WithSuccessThreshold(4))
			r.trip()
			w.at(30 * time.Second)
			a, b := r.gate(), r.gate()
			require.ErrorIs(w, r.rejected(), breaker.ErrTooManyProbes)
			a.finish(nil)
			c := r.gate()
			require.ErrorIs(w, r.rejected(), breaker.ErrTooManyProbes)
			b.finish(nil)
			c.finish(nil)
			r.state(breaker.HalfOpen)
			r.ok(1)
			r.state(breaker.Closed)
		})
	})
	t.Run("an open circuit's rejection is not about probes", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.circuit()
			r.trip()
			require.NotErrorIs(w, r.rejected(), breaker.ErrTooManyProbes)
		})
	})
	t.Run("as many as the success threshold by default", func(t *testing.T) {
		c := breaker.Must(breaker.NewCircuit("test", breaker.WithSuccessThreshold(7)))
		require.Equal(t, 7, c.Config().HalfOpenProbes)
	})
}

func TestK10_SuccessThresholdCloses(t *testing.T) {
	for _, n := range []int{1, 2, 3, 10} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			everywhere(t, func(w *world) {
				r := w.circuit(breaker.WithSuccessThreshold(n))
				r.trip()
				w.at(30 * time.Second)
				for i := range n {
					r.state(breaker.HalfOpen)
					if i > 0 {
						require.EqualValues(w, i, r.c.Snapshot().ConsecutiveSuccesses)
					}
					r.ok(1)
				}
				r.state(breaker.Closed)
				require.Equal(w, []string{
					"closed>open at 0s: threshold reached",
					"open>half-open at 30s: timeout expired",
					"half-open>closed at 30s: recovered",
				}, r.steps())
			})
		})
	}
}

func TestK11_ProbeSuccessesCountFromZero(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.circuit()
		r.ok(1000)
		r.trip()
		w.at(30 * time.Second)
		r.ok(1)
		r.state(breaker.HalfOpen)
		r.ok(1)
		r.state(breaker.Closed)
		r.ok(10)
		r.trip() // and in the next half-open period again
		w.at(60 * time.Second)
		r.ok(1)
		r.state(breaker.HalfOpen)
	})
}

func TestK12_FailedProbeReopensForAFullPeriod(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.circuit()
		r.trip()
		w.at(30 * time.Second)
		r.ok(1)
		w.at(31 * time.Second)
		r.fail(1)
		r.state(breaker.Open)
		w.at(61*time.Second - 1)
		r.rejected()
		r.state(breaker.Open)
		w.at(61 * time.Second)
		r.state(breaker.HalfOpen)
		r.ok(1)
		r.state(breaker.HalfOpen) // the success at 30s is forgotten
		r.ok(1)
		r.state(breaker.Closed)
	})
}

func TestK13_CountsStartAtZeroAfterClosing(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.circuit()
		r.trip()
		w.at(30 * time.Second)
		r.ok(2)
		r.state(breaker.Closed)
		require.Zero(w, r.c.Snapshot().Counts.Failures)
		require.Zero(w, r.c.Snapshot().ConsecutiveFailures)
		r.fail(4)
		r.state(breaker.Closed)
		r.fail(1)
		r.state(breaker.Open)
	})
}

// gatewayPreset opens at 5 failures within 60s for 15s, and asks one probe.
func gatewayPreset() []breaker.Option {
	return []breaker.Option{
		breaker.WithFailureWindow(60 * time.Second),
		breaker.WithOpenTimeout(15 * time.Second),
		breaker.WithSuccessThreshold(1),
	}
}

func TestK14_FailedProbeReopensThoughTheWindowIsEmpty(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.circuit(gatewayPreset()...)
		r.failuresAt(0, 15_000, 30_000, 45_000, 59_000)
		r.state(breaker.Open)
		w.at(74 * time.Second)
		r.fail(1)
		r.state(breaker.Open)
		w.at(89*time.Second - 1)
		r.rejected()
		w.at(89 * time.Second)
		r.ok(1)
		r.state(breaker.Closed)
	})
}

func TestK15_OutcomesFromBeforeATransitionMoveNothing(t *testing.T) {
	for name, outcome := range map[string]error{"success": nil, "failure": errBoom} {
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
				everywhere(t, func(w *world) {
					r := w.circuit()
					stale := []*gate{r.gate(), r.gate(), r.gate(), r.gate(), r.gate()}
					r.trip()
					w.at(when.at)
					for _, g := range stale {
						g.finish(outcome)
					}
					r.state(when.want)
					w.at(30 * time.Second)
					r.state(breaker.HalfOpen)
					require.Len(w, r.steps(), 1)
					require.EqualValues(w, 5, r.c.Snapshot().Totals.Late)
					r.ok(1)
					r.state(breaker.HalfOpen)
					r.ok(1)
					r.state(breaker.Closed)
				})
			})
		}
		t.Run(name+" while half-open", func(t *testing.T) {
			everywhere(t, func(w *world) {
				r := w.circuit()
				stale := []*gate{r.gate(), r.gate(), r.gate()}
				r.trip()
				w.at(30 * time.Second)
				r.ok(1)
				for _, g := range stale {
					g.finish(outcome)
				}
				r.state(breaker.HalfOpen)
				require.EqualValues(w, 1, r.c.Snapshot().ConsecutiveSuccesses)
				r.ok(1)
				r.state(breaker.Closed)
			})
		})
		t.Run(name+" of a probe after the next opening", func(t *testing.T) {
			everywhere(t, func(w *world) {
				r := w.circuit(breaker.WithProbeLease(time.Hour))
				r.trip()
				w.at(30 * time.Second)
				probe := r.gate()
				r.fail(1)
				w.at(60 * time.Second)
				next := r.gate()
				probe.finish(outcome)
				r.state(breaker.HalfOpen)
				require.EqualValues(w, 1, r.c.Snapshot().Probes, "the stale probe frees nobody's slot")
				next.finish(nil)
				r.state(breaker.HalfOpen)
				r.ok(1)
				r.state(breaker.Closed)
			})
		})
		t.Run(name+" from an earlier closed time", func(t *testing.T) {
			everywhere(t, func(w *world) {
				r := w.circuit()
				stale := []*gate{r.gate(), r.gate(), r.gate(), r.gate(), r.gate()}
				r.trip()
				w.at(30 * time.Second)
				r.ok(2)
				r.fail(4)
				for _, g := range stale {
					g.finish(outcome)
				}
				r.state(breaker.Closed)
				require.EqualValues(w, 4, r.c.Snapshot().ConsecutiveFailures)
				r.fail(1)
				r.state(breaker.Open)
			})
		})
	}
}

func TestK16_WhichErrorsCountIsAPredicate(t *testing.T) {
	errX, errY := errors.New("x"), errors.New("y")
	onlyX := func(err error) breaker.Outcome {
		if errors.Is(err, errX) {
			return breaker.Failure
		}
		return breaker.Ignored
	}
	for name, opts := range map[string][]breaker.Option{
		"WithClassifier":                {breaker.WithClassifier(onlyX)},
		"WithIgnore":                    {breaker.WithIgnore(errY)},
		"WithIgnore twice":              {breaker.WithIgnore(errY), breaker.WithIgnore(errClient)},
		"WithFailOn beats WithIgnore":   {breaker.WithFailOn(errX), breaker.WithIgnore(errX, errY)},
		"WithFailOn beats a classifier": {breaker.WithFailOn(errX), breaker.WithClassifier(func(error) breaker.Outcome { return breaker.Ignored })},
	} {
		t.Run(name, func(t *testing.T) {
			bothClocks(t, func(w *world) {
				r := w.circuit(opts...)
				for range 10 {
					r.failWith(errY)
				}
				r.state(breaker.Closed)
				for range 4 {
					r.failWith(fmt.Errorf("wrapped: %w", errX))
				}
				r.state(breaker.Closed)
				r.failWith(errX)
				r.state(breaker.Open)
			})
		})
	}
	t.Run("every error counts by default", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.circuit()
			for i := range 5 {
				r.failWith(fmt.Errorf("number %d", i))
			}
			r.state(breaker.Open)
		})
	})
	t.Run("a classifier may call an error a success", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			r := w.circuit(breaker.WithClassifier(func(err error) breaker.Outcome {
				if errors.Is(err, errY) {
					return breaker.Success
				}
				return breaker.Failure
			}))
			r.fail(4)
			r.failWith(errY)
			r.fail(4)
			r.state(breaker.Closed)
		})
	})
}

func TestK17_IgnoredIsNeitherSuccessNorFailure(t *testing.T) {
	ignoring := breaker.WithIgnore(errClient)
	bothClocks(t, func(w *world) {
		for _, way := range []way{byRun, byDo, byPermit} {
			w.way = way
			r := w.circuit(ignoring)
			w.start = w.now()
			r.fail(4)
			r.failWith(errClient)
			r.state(breaker.Closed)
			r.fail(1)
			r.state(breaker.Open)

			w.at(30 * time.Second)
			for range 5 { // more than there are slots
				r.failWith(errClient)
				r.state(breaker.HalfOpen)
				require.Zero(w, r.c.Snapshot().Probes)
			}
			r.ok(1)
			r.failWith(errClient) // no verdict: the success before stays
			r.ok(1)
			r.state(breaker.Closed)
			require.EqualValues(w, 7, r.c.Snapshot().Totals.Ignored)
		}
	})
}

func TestK18_TimeoutsCountAndCancelsDoNot(t *testing.T) {
	everywhere(t, func(w *world) {
		timeouts := w.circuit()
		for range 5 {
			timeouts.failWith(context.DeadlineExceeded)
		}
		timeouts.state(breaker.Open)

		cancels := w.circuit()
		for range 5 {
			ctx, cancel := context.WithCancel(w.Context())
			g := cancels.gateCtx(ctx)
			cancel()
			g.finish(ctx.Err())
		}
		cancels.state(breaker.Closed)
		require.EqualValues(w, 5, cancels.c.Snapshot().Totals.Ignored)
		require.Zero(w, cancels.c.Snapshot().ConsecutiveFailures)
	})
}

func TestK19_ValueAndErrorComeOutAsTheyWere(t *testing.T) {
	errA := errors.New("a")
	type answer struct{ n int }
	bothClocks(t, func(w *world) {
		r := w.circuit()
		v, err := r.b.Do(w.Context(), func(context.Context) (int, error) { return 7, errA })
		require.Equal(w, 7, v)
		require.Same(w, errA, err)
		result := r.b.Try(w.Context(), func(context.Context) (int, error) { return 7, errA })
		require.Equal(w, breaker.Result[int]{Value: 7, Err: errA, Attempts: 1}, result)

		pointers := breaker.Must(breaker.Over[*answer](r.c))
		seven := &answer{7}
		p, err := pointers.Do(w.Context(), func(context.Context) (*answer, error) { return seven, nil })
		require.NoError(w, err)
		require.Same(w, seven, p)

		r.trip()
		v, err = r.b.Do(w.Context(), func(context.Context) (int, error) { return 7, nil })
		require.Zero(w, v)
		require.ErrorIs(w, err, breaker.ErrOpen)
		p, err = pointers.Do(w.Context(), func(context.Context) (*answer, error) { return seven, nil })
		require.Nil(w, p)
		require.ErrorIs(w, err, breaker.ErrOpen)
	})
}

// acquire takes a permit that must be given.
func (r *rig) acquire() *breaker.Permit {
	r.Helper()
	p, err := r.c.Acquire(context.Background())
	require.NoError(r, err, "at %v", r.elapsed())
	return p
}

func TestK20_TwoStepUse(t *testing.T) {
	bothClocks(t, func(w *world) {
		r := w.circuit()
		var permits []*breaker.Permit
		for range 5 {
			permits = append(permits, r.acquire())
		}
		require.EqualValues(w, 5, r.c.Snapshot().InFlight)
		for i, p := range permits {
			r.state(breaker.Closed)
			if i%2 == 0 {
				p.Done(errBoom)
			} else {
				inGoroutine(func() { p.Settle(breaker.Failure, errBoom) })
			}
		}
		r.state(breaker.Open)
		_, err := r.c.Acquire(w.Context())
		require.ErrorIs(w, err, breaker.ErrOpen)
		w.at(30 * time.Second)
		a, b := r.acquire(), r.acquire()
		a.Done(nil)
		b.Settle(breaker.Success, nil)
		r.state(breaker.Closed)
		r.idle()
	})
}

func TestK21_OnlyTheFirstSettlementCounts(t *testing.T) {
	settle := map[string]func(*breaker.Permit, breaker.Outcome){
		"Done": func(p *breaker.Permit, o breaker.Outcome) {
			if o == breaker.Success {
				p.Done(nil)
				return
			}
			p.Done(errBoom)
		},
		"Settle": func(p *breaker.Permit, o breaker.Outcome) { p.Settle(o, errBoom) },
	}
	for first, settleFirst := range settle {
		for second, settleSecond := range settle {
			t.Run(first+" then "+second, func(t *testing.T) {
				bothClocks(t, func(w *world) {
					r := w.circuit()
					p := r.acquire()
					settleFirst(p, breaker.Failure)
					settleSecond(p, breaker.Failure)
					settleSecond(p, breaker.Success)
					require.EqualValues(w, 1, r.c.Snapshot().ConsecutiveFailures)
					require.EqualValues(w, 1, r.c.Snapshot().Totals.Calls)
					r.idle()

					q := r.acquire()
					settleFirst(q, breaker.Success)
					settleSecond(q, breaker.Failure)
					require.Zero(w, r.c.Snapshot().ConsecutiveFailures)
					require.EqualValues(w, 2, r.c.Snapshot().Totals.Calls)
					r.idle()
				})
			})
		}
	}
	t.Run("of many at once", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			r := w.circuit()
			p := r.acquire()
			var all sync.WaitGroup
			for range 50 {
				all.Go(func() { p.Done(errBoom) })
			}
			all.Wait()
			require.EqualValues(w, 1, r.c.Snapshot().Totals.Failures)
			r.idle()
		})
	})
	t.Run("of no permit at all", func(t *testing.T) {
		var p *breaker.Permit
		p.Done(nil)
		p.Settle(breaker.Failure, nil)
	})
}

func TestK22_ContextAlreadyDoneTakesNothing(t *testing.T) {
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	expired, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancel()
	for _, ctx := range []context.Context{cancelled, expired} {
		everywhere(t, func(w *world) {
			r := w.circuit(breaker.WithSuccessThreshold(1))
			check := func(want breaker.State) {
				ran, before := r.ran.Load(), r.c.Snapshot()
				require.Equal(w, ctx.Err(), r.callCtx(ctx, nil))
				require.Equal(w, ran, r.ran.Load(), "the function ran")
				after := r.c.Snapshot()
				require.Equal(w, before.Totals, after.Totals)
				require.Equal(w, before.InFlight, after.InFlight)
				require.Equal(w, before.Probes, after.Probes)
				r.state(want)
			}
			check(breaker.Closed)
			r.trip()
			check(breaker.Open)
			w.at(30 * time.Second)
			check(breaker.HalfOpen)
			require.Len(w, r.steps(), 1, "such a call moves nothing")
			probe := r.gate()
			check(breaker.HalfOpen)
			probe.finish(nil)
			r.state(breaker.Closed)
			for _, m := range []breaker.Mode{breaker.ForcedOpen, breaker.ForcedClosed, breaker.Shadow} {
				r.c.SetMode(m)
				check(breaker.Closed)
			}
		})
	}
}

func TestK23_PanicCountsAndComesOut(t *testing.T) {
	for _, by := range []way{byRun, byDo, byPolicy} {
		for name, f := range map[string]func(*testing.T, way, func(*world)){"injected clock": injected, "bubble": bubble} {
			t.Run(by.name+" "+name, func(t *testing.T) {
				f(t, by, func(w *world) {
					r := w.circuit()
					r.fail(1)
					for i := range 4 {
						r.state(breaker.Closed)
						value := fmt.Sprint("panic ", i)
						require.Equal(w, value, panicOf(func() {
							_, _ = r.way.call(r, w.Context(), func(context.Context) (int, error) { panic(value) })
						}))
					}
					r.state(breaker.Open)
					r.idle()
					require.EqualValues(w, 4, r.c.Snapshot().Totals.Panics)
					require.EqualValues(w, 5, r.c.Snapshot().Totals.Failures)
				})
			})
		}
	}
}

func TestK24_SafeUnderConcurrency(t *testing.T) {
	for name, opts := range map[string][]breaker.Option{
		"default":       nil,
		"never trips":   {breaker.WithFailureThreshold(1 << 30)},
		"time window":   {breaker.WithTrip(breaker.FailureRate(0.9, 50, breaker.Last(time.Minute)))},
		"call window":   {breaker.WithTrip(breaker.FailureRate(0.9, 50, breaker.LastCalls(100)))},
		"max in flight": {breaker.WithMaxInFlight(10)},
		"slow calls":    {breaker.WithTrip(breaker.SlowCallRate(time.Hour, 0.5, 10, breaker.LastCalls(100)))},
		"user's trip":   {breaker.WithTrip(breaker.TripWhen(breaker.LastCalls(10), func(c breaker.Counts) bool { return c.Failures > 9 }))},
		"call hook":     {breaker.WithHooks(breaker.Hooks{Call: func(context.Context, breaker.CallEvent) {}})},
	} {
		t.Run(name, func(t *testing.T) {
			bothClocks(t, func(w *world) { hammer(w, w.circuit(append(opts, breaker.WithOpenTimeout(time.Millisecond))...)) })
		})
	}
}

// hammer makes 100 goroutines do 100 mixed things each, and checks that everything adds up.
func hammer(w *world, r *rig) {
	var finished, rejected, failures, ignored, panics atomic.Uint64
	count := func(err error) {
		if errors.Is(err, breaker.ErrOpen) || errors.Is(err, breaker.ErrTooManyInFlight) {
			rejected.Add(1)
			return
		}
		finished.Add(1)
		if err != nil {
			failures.Add(1)
		}
	}
	ctx := context.Background()
	one := func(i int) {
		switch i % 8 {
		case 0, 1:
			count(r.c.Run(ctx, func(context.Context) error { return nil }))
		case 2:
			count(r.c.Run(ctx, func(context.Context) error { return errBoom }))
		case 3:
			_, err := r.b.Do(ctx, func(context.Context) (int, error) { runtime.Gosched(); return 1, nil })
			count(err)
		case 4:
			p, err := r.c.Acquire(ctx)
			if err == nil {
				p.Done(nil)
				p.Done(errBoom)
			}
			count(err)
		case 5:
			if panicOf(func() {
				count(r.c.Run(ctx, func(context.Context) error { panic("boom") }))
			}) != nil {
				panics.Add(1)
				failures.Add(1)
				finished.Add(1)
			}
		case 6:
			ctx, cancel := context.WithCancel(ctx)
			err := r.c.Run(ctx, func(ctx context.Context) error { cancel(); return ctx.Err() })
			cancel()
			if errors.Is(err, context.Canceled) {
				ignored.Add(1)
				finished.Add(1)
				return
			}
			count(err)
		case 7:
			_, _ = r.c.State(), r.c.Ready()
			_ = r.c.Snapshot()
			if w.clk == nil {
				<-time.After(100 * time.Microsecond)
			}
		}
	}
	var all, looking sync.WaitGroup
	stop := make(chan struct{})
	looking.Go(func() { watch(r, stop) })
	for g := range 100 {
		all.Go(func() {
			for i := range 100 {
				one(g + i)
			}
		})
	}
	all.Wait()
	close(stop)
	looking.Wait()
	s := r.c.Snapshot()
	require.Equal(w, finished.Load(), s.Totals.Calls)
	require.Equal(w, failures.Load(), s.Totals.Failures)
	require.Equal(w, ignored.Load(), s.Totals.Ignored)
	require.Equal(w, panics.Load(), s.Totals.Panics)
	require.Equal(w, rejected.Load(), s.Totals.Rejected)
	require.Equal(w, s.Totals.Calls, s.Totals.Successes+s.Totals.Failures+s.Totals.Ignored)
	r.idle()
}

// watch looks at a circuit under traffic until it is told to stop: whenever one looks, the numbers make sense.
func watch(r *rig, stop <-chan struct{}) {
	slots := int64(r.c.Config().HalfOpenProbes)
	var last breaker.Snapshot
	for {
		select {
		case <-stop:
			return
		default:
		}
		s := r.c.Snapshot()
		assert.GreaterOrEqual(r, s.InFlight, int64(0), "calls in flight")
		assert.LessOrEqual(r, s.Probes, slots)
		assert.GreaterOrEqual(r, s.Epoch, last.Epoch)
		assert.GreaterOrEqual(r, s.Totals.Calls, last.Totals.Calls)
		assert.GreaterOrEqual(r, s.Totals.Successes, last.Totals.Successes)
		assert.GreaterOrEqual(r, s.Totals.Failures, last.Totals.Failures)
		assert.GreaterOrEqual(r, s.Totals.Rejected, last.Totals.Rejected)
		assert.GreaterOrEqual(r, s.Totals.Late, last.Totals.Late)
		assert.Equal(r, s.Totals.Calls, s.Totals.Successes+s.Totals.Failures+s.Totals.Ignored)
		last = s
		if r.clk == nil {
			<-time.After(100 * time.Microsecond) // a bubble's time passes only while everybody waits
		}
		runtime.Gosched()
	}
}

func TestK25_OneTransitionPerCrossing(t *testing.T) {
	for name, opts := range map[string][]breaker.Option{
		"run":     nil,
		"windows": {breaker.WithTrip(breaker.FailureRate(0.5, 5, breaker.Last(time.Minute)), breaker.FailureCount(5, time.Minute))},
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(w *world) {
				r := w.circuit(opts...)
				gates := make([]*gate, 200)
				for i := range gates {
					gates[i] = r.gate()
				}
				var all sync.WaitGroup
				for _, g := range gates {
					all.Go(func() { g.finish(errBoom) })
				}
				all.Wait()
				r.state(breaker.Open)
				require.Equal(w, []string{"closed>open at 0s: threshold reached"}, r.steps())
				require.EqualValues(w, 195, r.c.Snapshot().Totals.Late)
			})
		})
	}
	t.Run("closing", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.circuit(breaker.WithSuccessThreshold(5), breaker.WithHalfOpenProbes(50))
			r.trip()
			w.at(30 * time.Second)
			gates := make([]*gate, 50)
			for i := range gates {
				gates[i] = r.gate()
			}
			var all sync.WaitGroup
			for _, g := range gates {
				all.Go(func() { g.finish(nil) })
			}
			all.Wait()
			r.state(breaker.Closed)
			require.Len(w, r.steps(), 3)
			r.idle()
		})
	})
}

func TestK26_ZeroOptionsAreTheDefaults(t *testing.T) {
	c, err := breaker.NewCircuit("test")
	require.NoError(t, err)
	cfg := c.Config()
	require.Equal(t, 5, cfg.FailureThreshold)
	require.Zero(t, cfg.FailureWindow)
	require.Equal(t, 2, cfg.SuccessThreshold)
	require.Equal(t, 2, cfg.HalfOpenProbes)
	require.Equal(t, 30*time.Second, cfg.OpenTimeout)
	require.Equal(t, 30*time.Second, cfg.ProbeLease)
	require.Equal(t, 5*time.Minute, cfg.OpenHint)
	require.Zero(t, cfg.MaxInFlight)
	require.Zero(t, cfg.Ramp)
	require.Equal(t, breaker.Auto, cfg.Mode)
	require.Equal(t, breaker.DefaultConfig(), cfg)

	_, err = breaker.NewCircuit("test", breaker.WithFailureThreshold(-1))
	require.ErrorContains(t, err, "FailureThreshold")
	require.ErrorContains(t, err, "-1")
}

func TestK27_PublishedSettings(t *testing.T) {
	for _, tc := range []struct {
		name              string
		opts              []breaker.Option
		open              time.Duration
		successes, probes int
		windowed          bool
	}{
		{"gateway", gatewayPreset(), 15 * time.Second, 1, 1, true},
		{"chatbot", []breaker.Option{breaker.WithSuccessThreshold(2)}, 30 * time.Second, 2, 2, false},
		{"relay", []breaker.Option{breaker.WithSuccessThreshold(3), breaker.WithHalfOpenProbes(3)}, 30 * time.Second, 3, 3, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			everywhere(t, func(w *world) {
				r := w.circuit(tc.opts...)
				r.failuresAt(every(50_000, 6)...) // each more than 5 within 60s, and less
				if tc.windowed {
					r.state(breaker.Closed)
				}
			})
			everywhere(t, func(w *world) {
				r := w.circuit(tc.opts...)
				r.fail(4)
				r.state(breaker.Closed)
				r.fail(1)
				r.state(breaker.Open)
				w.at(tc.open - 1)
				r.rejected()
				w.at(tc.open)
				var probes []*gate
				for range tc.probes {
					probes = append(probes, r.gate())
				}
				require.ErrorIs(w, r.rejected(), breaker.ErrTooManyProbes)
				for i, g := range probes {
					r.state(breaker.HalfOpen)
					g.finish(nil)
					require.Equal(w, i+1 == tc.successes, r.c.State() == breaker.Closed)
				}
				r.state(breaker.Closed)
			})
		})
	}
}

func TestK28_ClockIsInjectedAndMonotonic(t *testing.T) {
	t.Run("set back while open", func(t *testing.T) {
		injected(t, byDo, func(w *world) {
			r := w.circuit()
			r.trip()
			w.clk.Add(10 * time.Second)
			r.rejected() // the clock is read here: these 10s are known to have passed
			w.clk.Set(w.clk.Now().Add(-time.Hour))
			r.rejected()
			w.clk.Add(20*time.Second - 1)
			r.rejected()
			w.clk.Add(1)
			r.ok(2)
			r.state(breaker.Closed)
		})
	})
	t.Run("set back unseen", func(t *testing.T) {
		injected(t, byDo, func(w *world) {
			r := w.circuit()
			r.trip()
			w.clk.Add(10 * time.Second)
			w.clk.Set(w.clk.Now().Add(-time.Hour))
			r.rejected()
			w.clk.Add(30 * time.Second) // no later than one period after the step
			r.ok(2)
			r.state(breaker.Closed)
		})
	})
	t.Run("no test sleeps", func(t *testing.T) {
		for name, calls := range timeCalls(t, func(name string) bool { return strings.HasSuffix(name, "_test.go") && !strings.HasPrefix(name, "zz") }) {
			source, err := os.ReadFile(name)
			require.NoError(t, err)
			if !bytes.Contains(source, []byte(`"testing/synctest"`)) { // in a bubble it takes no time
				require.NotContains(t, calls, "Sleep", "%s", name)
			}
		}
	})
}

// timeCalls lists which functions of package time the package's files use.
func timeCalls(t *testing.T, wanted func(name string) bool) map[string][]string {
	t.Helper()
	calls := make(map[string][]string)
	names, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, name := range names {
		if !wanted(name) {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" && x.Obj == nil {
					calls[name] = append(calls[name], sel.Sel.Name)
				}
			}
			return true
		})
	}
	require.NotEmpty(t, calls)
	return calls
}

func TestK29_ProbeThatNeverReturnsDoesNotBlockRecovery(t *testing.T) {
	t.Run("its slot falls free", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.circuit(breaker.WithSuccessThreshold(1))
			r.trip()
			w.at(30 * time.Second)
			hung := r.gate()
			w.at(60*time.Second - 1)
			require.ErrorIs(w, r.rejected(), breaker.ErrTooManyProbes)
			w.at(60 * time.Second)
			second := r.gate()
			require.ErrorIs(w, r.rejected(), breaker.ErrTooManyProbes)
			hung.finish(errBoom) // too old to count
			r.state(breaker.HalfOpen)
			require.Zero(w, r.c.Snapshot().Totals.Late, "its epoch is still the present one")
			require.ErrorIs(w, r.rejected(), breaker.ErrTooManyProbes)
			second.finish(nil)
			r.state(breaker.Closed)
			r.idle()
		})
	})
	t.Run("its success counts while the half-open epoch lasts", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.circuit(breaker.WithSuccessThreshold(1))
			r.trip()
			w.at(30 * time.Second)
			slow := r.gate()
			w.at(5 * time.Minute)
			r.state(breaker.HalfOpen)
			slow.finish(nil)
			r.state(breaker.Closed)
			require.Zero(w, r.c.Snapshot().Totals.Late)
		})
	})
	t.Run("a dependency slower than the lease closes the circuit", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.circuit() // two successes
			r.trip()
			w.at(30 * time.Second)
			a, b := r.gate(), r.gate()
			w.at(61 * time.Second)
			c, d := r.gate(), r.gate()
			a.finish(nil)
			r.state(breaker.HalfOpen)
			b.finish(nil)
			r.state(breaker.Closed)
			c.finish(nil)
			d.finish(nil)
			r.state(breaker.Closed)
			require.EqualValues(w, 2, r.c.Snapshot().Totals.Late)
			r.idle()
		})
	})
	t.Run("a settlement exactly at the end is late", func(t *testing.T) {
		everywhere(t, func(w *world) {
			for end, want := range map[time.Duration]breaker.State{
				30*time.Second - 1: breaker.Open,
				30 * time.Second:   breaker.HalfOpen,
			} {
				w.start = w.now()
				r := w.circuit(breaker.WithSuccessThreshold(1))
				r.trip()
				w.at(30 * time.Second)
				probe := r.gate()
				w.at(30*time.Second + end)
				probe.finish(errBoom)
				r.state(want)
				r.idle()
			}
		})
	})
	t.Run("the lease is a setting", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.circuit(breaker.WithProbeLease(5*time.Second), breaker.WithSuccessThreshold(1))
			r.trip()
			w.at(30 * time.Second)
			r.gate()
			w.at(35*time.Second - 1)
			require.EqualValues(w, 1, r.rejected().RetryAfter())
			w.at(35 * time.Second)
			r.ok(1)
			r.state(breaker.Closed)
		})
	})
	t.Run("a permit that is forgotten", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			r := w.circuit(breaker.WithSuccessThreshold(1))
			r.trip()
			w.at(30 * time.Second)
			_ = r.acquire()
			w.at(60 * time.Second)
			r.ok(1)
			r.state(breaker.Closed)
		})
	})
}

func TestK30_ToleranceIsTunable(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.circuit(breaker.WithFailureThreshold(10))
		r.fail(9)
		r.state(breaker.Closed)
		r.fail(1)
		r.state(breaker.Open)
	})
}

func TestK31_RecoveryNeedsNoManualCall(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.circuit()
		for range 3 {
			w.start = w.now()
			r.trip()
			w.at(30 * time.Second)
			r.ok(2)
			r.state(breaker.Closed)
			r.ok(10)
		}
	})
}

func TestK33_CircuitsAreIsolated(t *testing.T) {
	everywhere(t, func(w *world) {
		shared := append([]breaker.Option(nil), gatewayPreset()...)
		a, b := w.circuit(shared...), w.circuit(shared...)
		a.trip()
		b.state(breaker.Closed)
		b.ok(10)
		b.fail(4)
		b.state(breaker.Closed)
		require.EqualValues(w, 5, a.c.Snapshot().Totals.Failures)
		require.EqualValues(w, 4, b.c.Snapshot().Totals.Failures)
		require.NoError(w, a.c.Configure(breaker.WithFailureThreshold(1)))
		require.Equal(w, 5, b.c.Config().FailureThreshold)
	})
}

func TestK34_SettingsCanBeSwapped(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.circuit()
		r.fail(4)
		require.NoError(w, r.c.Configure(breaker.WithFailureThreshold(1)))
		require.Equal(w, 1, r.c.Config().FailureThreshold)
		r.state(breaker.Closed) // Configure trips nothing by itself
		r.c.Reset()
		require.Zero(w, r.c.Snapshot().ConsecutiveFailures)
		r.fail(1)
		r.state(breaker.Open)
	})
	t.Run("with the run so far", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.circuit()
			r.fail(4)
			require.NoError(w, r.c.Configure(breaker.WithFailureThreshold(6)))
			r.fail(1)
			r.state(breaker.Closed)
			r.fail(1)
			r.state(breaker.Open)
		})
	})
}

func TestK35_MaxInFlightStopsTheFirstWave(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.circuit(breaker.WithMaxInFlight(100))
		var in []*gate
		refused := 0
		for range 5000 {
			g := r.begin()
			if g.ran {
				in = append(in, g)
				continue
			}
			err := <-g.result
			require.ErrorIs(w, err, breaker.ErrTooManyInFlight)
			require.NotErrorIs(w, err, breaker.ErrOpen)
			refused++
		}
		require.Len(w, in, 100)
		require.Equal(w, 4900, refused)
		require.EqualValues(w, 4900, r.c.Snapshot().Totals.Rejected)
		require.EqualValues(w, 100, r.c.Snapshot().InFlight)
		require.False(w, r.c.Ready())
		in[0].finish(nil)
		require.True(w, r.c.Ready())
		again := r.gate()
		require.ErrorIs(w, r.call(nil), breaker.ErrTooManyInFlight)
		for _, g := range append(in[1:], again) {
			g.finish(nil)
		}
		r.idle()
		r.state(breaker.Closed)
	})
	t.Run("0 is off", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.circuit(breaker.WithMaxInFlight(0))
			for range 500 {
				r.gate()
			}
			require.EqualValues(w, 500, r.c.Snapshot().InFlight)
		})
	})
	t.Run("never exceeded by callers that race", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			r := w.circuit(breaker.WithMaxInFlight(7))
			var now, most, over atomic.Int64
			var all sync.WaitGroup
			for range 64 {
				all.Go(func() {
					for range 100 {
						_ = r.c.Run(context.Background(), func(context.Context) error {
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
			r.idle()
		})
	})
}

// The O vectors: what can be seen.

func TestO01_StatsAreZeroAtStart(t *testing.T) {
	everywhere(t, func(w *world) {
		s := w.circuit().c.Snapshot()
		require.Equal(w, "test", s.Name)
		require.Equal(w, breaker.Closed, s.State)
		require.Equal(w, breaker.Auto, s.Mode)
		require.Zero(w, s.Counts)
		require.Zero(w, s.Totals)
		require.Zero(w, s.ConsecutiveFailures)
		require.Zero(w, s.ConsecutiveSuccesses)
		require.Zero(w, s.InFlight)
		require.Zero(w, s.Probes)
		require.Empty(w, s.LastFailure)
		require.True(w, s.LastFailureAt.IsZero())
		require.True(w, s.Until.IsZero())
		require.True(w, s.Since.Equal(w.start))
	})
}

func TestO02_TotalsCountFinishedCallsAndRejectionsApart(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.circuit()
		pending := r.gate()
		r.trip()
		for range 3 {
			r.rejected()
		}
		totals := r.c.Snapshot().Totals
		require.EqualValues(w, 5, totals.Calls)
		require.EqualValues(w, 5, totals.Failures)
		require.EqualValues(w, 3, totals.Rejected)
		pending.finish(nil)
		totals = r.c.Snapshot().Totals
		require.EqualValues(w, 6, totals.Calls)
		require.EqualValues(w, 1, totals.Successes)
		require.EqualValues(w, 1, totals.Late)
	})
	t.Run("totals never fall", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.circuit()
			var last breaker.Totals
			grown := func() {
				now := r.c.Snapshot().Totals
				assert.GreaterOrEqual(w, now.Calls, last.Calls)
				assert.GreaterOrEqual(w, now.Successes, last.Successes)
				assert.GreaterOrEqual(w, now.Failures, last.Failures)
				assert.GreaterOrEqual(w, now.Rejected, last.Rejected)
				require.Equal(w, now.Calls, now.Successes+now.Failures+now.Ignored)
				last = now
			}
			r.ok(5)
			grown()
			r.trip()
			grown()
			r.rejected()
			w.at(30 * time.Second)
			r.ok(2)
			grown()
			r.c.Reset()
			grown()
			r.ok(1)
			require.NoError(w, r.c.Configure(breaker.WithTrip(breaker.FailureRate(0.5, 10, breaker.Last(time.Second)))))
			grown()
			r.ok(3)
			r.fail(1)
			grown()
			require.EqualValues(w, 17, last.Calls)
		})
	})
}

func TestO03_LastFailureIsClearedBySuccessAndNoTimerHangsOnIt(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.circuit()
		w.at(3 * time.Second)
		r.fail(1)
		s := r.c.Snapshot()
		require.Equal(w, "boom", s.LastFailure)
		require.True(w, s.LastFailureAt.Equal(w.now()), "%v", s.LastFailureAt)
		r.ok(1)
		s = r.c.Snapshot()
		require.Empty(w, s.LastFailure)
		require.True(w, s.LastFailureAt.IsZero())

		late := []*gate{r.gate(), r.gate()}
		r.trip()
		until := r.c.Snapshot().Until
		require.True(w, until.Equal(w.now().Add(30*time.Second)))
		w.at(8 * time.Second)
		late[0].finish(nil)
		late[1].finish(errors.New("a straggler"))
		s = r.c.Snapshot()
		require.Equal(w, until, s.Until)
		require.Equal(w, "boom", s.LastFailure)
		require.True(w, s.LastFailureAt.Equal(w.start.Add(3*time.Second)))
		w.at(33*time.Second - 1)
		r.rejected()
		w.at(33 * time.Second)
		r.ok(1)
		require.Empty(w, r.c.Snapshot().LastFailure, "a probe's success ends the run")
	})
	t.Run("an ignored error is no failure", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			r := w.circuit(breaker.WithIgnore(errClient))
			r.failWith(errClient)
			require.Empty(w, r.c.Snapshot().LastFailure)
			r.fail(1)
			w.at(time.Second)
			r.failWith(errClient)
			require.Equal(w, "boom", r.c.Snapshot().LastFailure)
			require.True(w, r.c.Snapshot().LastFailureAt.Equal(w.start))
		})
	})
}

func TestO04_OneCallbackPerTransitionInOrderOutsideTheLock(t *testing.T) {
	everywhere(t, func(w *world) {
		var r *rig
		var seen []breaker.State
		r = w.circuit(breaker.WithHooks(breaker.Hooks{StateChange: func(t breaker.Transition) {
			seen = append(seen, r.c.State())
			require.Equal(w, t.To, r.c.Snapshot().State)
		}}))
		r.trip()
		w.at(30 * time.Second)
		r.ok(2)
		require.Equal(w, []breaker.State{breaker.Open, breaker.HalfOpen, breaker.Closed}, seen)
		var epoch uint64
		from := breaker.Closed
		for _, e := range r.events.list() {
			require.Equal(w, from, e.From)
			require.Greater(w, e.Epoch, epoch)
			require.Equal(w, "test", e.Name)
			require.False(w, e.Remote)
			from, epoch = e.To, e.Epoch
		}
		require.Equal(w, epoch, r.c.Snapshot().Epoch)
	})
	t.Run("several hooks in the order given", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			var order []int
			numbered := func(n int) breaker.Option {
				return breaker.WithHooks(breaker.Hooks{StateChange: func(breaker.Transition) { order = append(order, n) }})
			}
			r := w.circuit(numbered(1), numbered(2), breaker.WithFailureThreshold(1), numbered(3))
			r.trip()
			require.Equal(w, []int{1, 2, 3}, order)
		})
	})
}

// logged is a handler that keeps records.
type logged struct {
	mu      sync.Mutex
	records []slog.Record
}

func (l *logged) Enabled(context.Context, slog.Level) bool { return true }
func (l *logged) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *logged) WithGroup(string) slog.Handler            { return l }

func (l *logged) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records = append(l.records, r)
	return nil
}

func (l *logged) list() []slog.Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]slog.Record(nil), l.records...)
}

func attrs(r slog.Record) map[string]slog.Value {
	all := make(map[string]slog.Value)
	r.Attrs(func(a slog.Attr) bool { all[a.Key] = a.Value; return true })
	return all
}

func TestO05_LogLevelsAndAttributes(t *testing.T) {
	everywhere(t, func(w *world) {
		log := &logged{}
		r := w.circuit(breaker.WithLogger(slog.New(log)))
		r.trip()
		w.at(30 * time.Second)
		r.fail(1)
		w.at(60 * time.Second)
		r.ok(2)

		type line struct {
			level            slog.Level
			from, to, reason string
		}
		var got []line
		for _, rec := range log.list() {
			a := attrs(rec)
			require.Equal(w, "test", a["name"].String())
			got = append(got, line{rec.Level, a["from"].String(), a["to"].String(), a["reason"].String()})
		}
		require.Equal(w, []line{
			{slog.LevelWarn, "closed", "open", "threshold reached"},
			{slog.LevelInfo, "open", "half-open", "timeout expired"},
			{slog.LevelWarn, "half-open", "open", "probe failed"},
			{slog.LevelInfo, "open", "half-open", "timeout expired"},
			{slog.LevelInfo, "half-open", "closed", "recovered"},
		}, got)
		first := attrs(log.list()[0])
		require.EqualValues(w, 5, first["failures"].Uint64())
		require.True(w, first["until"].Time().Equal(w.start.Add(30*time.Second)))
		require.Equal(w, errBoom, first["cause"].Any())
	})
}

func TestO06_OneReasonPerTransition(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.circuit()
		r.trip()
		w.at(30 * time.Second)
		r.fail(1)
		w.at(60 * time.Second)
		r.ok(2)
		r.c.Trip(errClient)
		w.at(61 * time.Second)
		r.c.OfferProbe()
		r.c.Reset()
		r.c.Trip(nil)
		require.Equal(w, []string{
			"closed>open at 0s: threshold reached",
			"open>half-open at 30s: timeout expired",
			"half-open>open at 30s: probe failed",
			"open>half-open at 1m0s: timeout expired",
			"half-open>closed at 1m0s: recovered",
			"closed>open at 1m0s: manual",
			"open>half-open at 1m1s: health check",
			"half-open>closed at 1m1s: manual",
			"closed>open at 1m1s: manual",
		}, r.steps())
		for i, want := range []error{errBoom, nil, errBoom, nil, nil, errClient, nil, nil, nil} {
			e := r.events.list()[i]
			require.Equal(w, want, e.Cause, "the cause of event %d", i)
			if e.To == breaker.Open {
				require.True(w, e.Until.Equal(e.At.Add(30*time.Second)))
			} else {
				require.True(w, e.Until.IsZero())
			}
		}
	})
	t.Run("a manual trip has no failure to blame", func(t *testing.T) {
		everywhere(t, func(w *world) {
			for name, before := range map[string]func(*rig){
				"after a failure":                func(r *rig) { r.fail(1) },
				"after a failure and a success":  func(r *rig) { r.fail(1); r.ok(1) },
				"after an outage that is over":   func(r *rig) { r.trip(); r.c.Reset() },
				"while probing after a failure":  func(r *rig) { r.trip(); r.c.OfferProbe() },
				"with nothing that ever went by": func(*rig) {},
			} {
				r := w.circuit()
				before(r)
				r.c.Trip(nil)
				events := r.events.list()
				require.NoError(w, events[len(events)-1].Cause, name)
				require.NoError(w, r.rejected().Cause, name)
			}
		})
	})
	t.Run("counts are those of the stay that ended", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.circuit()
			r.ok(10)
			r.trip()
			w.at(30 * time.Second)
			r.ok(1)
			r.fail(1)
			events := r.events.list()
			require.Equal(w, breaker.Counts{Successes: 10, Failures: 5, ConsecutiveFailures: 5}, events[0].Counts)
			require.Zero(w, events[1].Counts)
			require.EqualValues(w, 1, events[2].Counts.Successes)
			require.EqualValues(w, 1, events[2].Counts.Failures)
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

func TestO08_StateTexts(t *testing.T) {
	for s, text := range map[breaker.State]string{
		breaker.Closed:   "closed",
		breaker.HalfOpen: "half-open",
		breaker.Open:     "open",
	} {
		require.Equal(t, text, s.String())
		b, err := s.MarshalText()
		require.NoError(t, err)
		require.Equal(t, text, string(b))
		for _, spelling := range []string{
			text, strings.ToUpper(text),
			strings.ReplaceAll(text, "-", "_"), strings.ToUpper(strings.ReplaceAll(text, "-", "_")),
		} {
			var got breaker.State
			require.NoError(t, got.UnmarshalText([]byte(spelling)))
			require.Equal(t, s, got)
		}
	}
	var s breaker.State = breaker.Open
	for _, nonsense := range []string{"", "ajar", "openn", "half", "1"} {
		require.Error(t, s.UnmarshalText([]byte(nonsense)))
		require.Equal(t, breaker.Open, s, "a text that is refused changes nothing")
	}
	_, err := breaker.State(9).MarshalText()
	require.Error(t, err)
	require.NotEmpty(t, breaker.State(9).String())

	var doc bytes.Buffer
	require.NoError(t, json.NewEncoder(&doc).Encode(map[string]breaker.State{"state": breaker.HalfOpen}))
	require.JSONEq(t, `{"state":"half-open"}`, doc.String())
}

// The parts of E2 and E3 that need one circuit only.

func TestE2_RecoveryOfOneProvider(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.circuit(breaker.WithSuccessThreshold(3), breaker.WithHalfOpenProbes(3))
		for i, what := range []string{"429", "500", "503", "timeout", "refused"} {
			w.at(time.Duration(i) * time.Second)
			r.failWith(errors.New(what))
		}
		r.state(breaker.Open)
		require.Equal(w, []string{"closed>open at 4s: threshold reached"}, r.steps())
		w.at(34*time.Second - 1)
		r.rejected()
		w.at(34 * time.Second)
		r.state(breaker.HalfOpen)
		var probes []*gate
		for range 10 {
			if g := r.begin(); g.ran {
				probes = append(probes, g)
			}
		}
		require.Len(w, probes, 3)
		for _, p := range probes {
			p.finish(nil)
		}
		r.state(breaker.Closed)
		r.ok(1)
	})
	t.Run("one probe of three fails", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.circuit(breaker.WithSuccessThreshold(3), breaker.WithHalfOpenProbes(3))
			r.trip()
			w.at(34 * time.Second)
			a, b, c := r.gate(), r.gate(), r.gate()
			a.finish(nil)
			b.finish(errBoom)
			r.state(breaker.Open)
			c.finish(nil)
			w.at(64*time.Second - 1)
			r.rejected()
			w.at(64 * time.Second)
			r.ok(2)
			r.state(breaker.HalfOpen)
			r.ok(1)
			r.state(breaker.Closed)
		})
	})
}

// hang is a dependency that does not answer: it returns when the attempt's context ends.
func hang(ctx context.Context) (int, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

func TestE3_FiveTimeoutsSpareTheOthers(t *testing.T) {
	bubble(t, byDo, func(w *world) {
		r := w.circuit(breaker.WithTimeout(30 * time.Second))
		upstream := hang
		var inFlight atomic.Int64
		call := func() error {
			_, err := r.b.Do(context.Background(), func(ctx context.Context) (int, error) {
				r.ran.Add(1)
				inFlight.Add(1)
				defer inFlight.Add(-1)
				return upstream(ctx)
			})
			return err
		}
		var first sync.WaitGroup
		for range 5 {
			first.Go(func() { assert.ErrorIs(w, call(), context.DeadlineExceeded) })
		}
		w.at(30 * time.Second)
		first.Wait()
		r.state(breaker.Open)
		require.Equal(w, []string{"closed>open at 30s: threshold reached"}, r.steps())

		var others sync.WaitGroup
		for range 4995 {
			others.Go(func() { assert.ErrorIs(w, call(), breaker.ErrOpen) })
		}
		others.Wait()
		require.Equal(w, 30*time.Second, w.elapsed(), "rejections take no time")
		require.EqualValues(w, 5, r.ran.Load())
		require.Zero(w, inFlight.Load())
		r.idle()

		upstream = func(context.Context) (int, error) { return 1, nil }
		w.at(60 * time.Second)
		r.state(breaker.HalfOpen)
		require.NoError(w, call())
		r.state(breaker.HalfOpen)
		require.NoError(w, call())
		r.state(breaker.Closed)
		totals := r.c.Snapshot().Totals
		require.EqualValues(w, 7, totals.Calls)
		require.EqualValues(w, 5, totals.Failures)
		require.EqualValues(w, 4995, totals.Rejected)
		for range 100 {
			require.NoError(w, call())
		}
	})
}

// A circuit alone admits a first wave whole: nothing has failed yet.
func TestE3_FirstWave(t *testing.T) {
	for _, tc := range []struct {
		limit, admitted int
		late            uint64
	}{{0, 5000, 4995}, {100, 100, 95}} {
		t.Run(fmt.Sprint("MaxInFlight ", tc.limit), func(t *testing.T) {
			bubble(t, byDo, func(w *world) {
				r := w.circuit(breaker.WithTimeout(30*time.Second), breaker.WithMaxInFlight(tc.limit))
				var timeouts, refused atomic.Int64
				var all sync.WaitGroup
				for range 5000 {
					all.Go(func() {
						_, err := r.b.Do(context.Background(), hang)
						switch {
						case errors.Is(err, breaker.ErrTooManyInFlight):
							refused.Add(1)
						case errors.Is(err, context.DeadlineExceeded):
							timeouts.Add(1)
						}
					})
				}
				synctest.Wait()
				require.EqualValues(w, tc.admitted, r.c.Snapshot().InFlight)
				require.EqualValues(w, 5000-tc.admitted, refused.Load(), "rejected at once")
				w.at(30 * time.Second)
				all.Wait()
				require.EqualValues(w, tc.admitted, timeouts.Load())
				require.Equal(w, []string{"closed>open at 30s: threshold reached"}, r.steps())
				require.Equal(w, tc.late, r.c.Snapshot().Totals.Late)
				w.at(60 * time.Second)
				r.state(breaker.HalfOpen)
				r.idle()
			})
		})
	}
}

// Steady load of 100 callers a second: the attempt's own limit decides how many suffer.
func TestE3_SteadyLoad(t *testing.T) {
	for _, tc := range []struct {
		limit, opens time.Duration
		admitted     int64
	}{
		{30 * time.Second, 30_040 * time.Millisecond, 3005},
		{time.Second, 1_040 * time.Millisecond, 105},
	} {
		t.Run(tc.limit.String(), func(t *testing.T) {
			bubble(t, byDo, func(w *world) {
				r := w.circuit(breaker.WithTimeout(tc.limit))
				var admitted atomic.Int64
				var all sync.WaitGroup
				for w.elapsed() <= tc.opens+500*time.Millisecond {
					all.Go(func() {
						_, _ = r.b.Do(context.Background(), func(ctx context.Context) (int, error) {
							admitted.Add(1)
							return hang(ctx)
						})
					})
					w.add(10 * time.Millisecond)
				}
				all.Wait()
				require.Equal(w, []string{fmt.Sprintf("closed>open at %v: threshold reached", tc.opens)}, r.steps())
				// The caller and the fifth timeout of the same instant may come in either order.
				require.Contains(w, []int64{tc.admitted, tc.admitted - 1}, admitted.Load())
				require.Equal(w, uint64(admitted.Load()-5), r.c.Snapshot().Totals.Late)
				r.idle()
			})
		})
	}
}

// From wherever it is, a circuit with a healthy dependency and traffic closes within one open period and its probes' time.
func TestK31_RecoveryFromAnywhere(t *testing.T) {
	bothClocks(t, func(w *world) {
		rng := rand.New(rand.NewPCG(1, 2))
		for range 50 {
			w.start = w.now()
			r := w.circuit(breaker.WithSuccessThreshold(1+rng.IntN(3)), breaker.WithHalfOpenProbes(1+rng.IntN(3)))
			for range 30 {
				switch rng.IntN(9) {
				case 0, 1, 2:
					_ = r.call(errBoom)
				case 3:
					_ = r.call(nil)
				case 4:
					r.begin() // and never finish
				case 5:
					w.add(time.Duration(rng.IntN(20)) * time.Second)
				case 6:
					r.c.OfferProbe()
				case 7:
					r.c.Trip(nil)
				case 8:
					w.add(30 * time.Second)
				}
			}
			w.add(30 * time.Second)
			for range 3 {
				_ = r.call(nil)
			}
			r.state(breaker.Closed)
		}
	})
}

var _ breaker.Clock = (*clock.Mock)(nil)
