package breaker_test

import (
	"bytes"
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

func TestBC47_JumpingClockNeitherFreezesNorUnlocks(t *testing.T) {
	t.Run("forward", func(t *testing.T) {
		injected(t, byDo, func(w *world) {
			r := w.r0()
			r.trip()
			w.clk.Set(w.start.Add(2*time.Second + time.Hour))
			r.ok(1) // a clock without a monotonic reading says so: that hour has passed
			r.state(breaker.Closed)
		})
	})
	t.Run("forward and back again", func(t *testing.T) {
		injected(t, byDo, func(w *world) {
			r := w.r0(breaker.WithTrip(breaker.FailureRate(0.5, 4, breaker.Last(10*time.Second))))
			r.ok(2)
			w.clk.Set(w.start.Add(time.Hour))
			r.fail(2)
			w.clk.Set(w.start.Add(time.Second))
			r.fail(1)
			r.state(breaker.Closed) // three failures are in the window, the successes are not: too few calls
			w.clk.Set(w.start.Add(2 * time.Second))
			r.fail(1)
			r.state(breaker.Open)
			require.LessOrEqual(w, r.rejected().RetryAfter(), 10*time.Second)
			w.clk.Set(w.clk.Now().Add(10 * time.Second))
			r.ok(1)
		})
	})
	t.Run("windows survive a step back", func(t *testing.T) {
		for name, policy := range map[string]breaker.Option{
			"failure window": breaker.WithFailureWindow(10 * time.Second),
			"failure count":  breaker.WithTrip(breaker.FailureCount(3, 10*time.Second)),
			"rate":           breaker.WithTrip(breaker.FailureRate(0.5, 3, breaker.Last(10*time.Second))),
		} {
			t.Run(name, func(t *testing.T) {
				injected(t, byDo, func(w *world) {
					r := w.r0(policy)
					r.fail(2)
					w.clk.Set(w.start.Add(-time.Hour))
					require.EqualValues(w, 2, r.c.Snapshot().Counts.Failures)
					r.fail(1)
					r.state(breaker.Open)
				})
			})
		}
	})
	t.Run("back while a probe is out", func(t *testing.T) {
		injected(t, byDo, func(w *world) {
			r := w.r0()
			r.trip()
			w.clk.Set(w.start.Add(10 * time.Second))
			r.gate()
			r.rejected()
			w.clk.Set(w.start.Add(-time.Hour))
			e := r.rejected()
			require.ErrorIs(w, e, breaker.ErrTooManyProbes)
			require.LessOrEqual(w, e.RetryAfter(), 10*time.Second)
			w.clk.Set(w.clk.Now().Add(10 * time.Second))
			r.ok(1)
			r.state(breaker.Closed)
		})
	})
}

func TestBC48_OneClockUsedEverywhere(t *testing.T) {
	injected(t, byDo, func(w *world) {
		require.Greater(w, time.Until(w.start).Abs(), 24*time.Hour, "the machine's clock must be elsewhere for this test")
		var calls []breaker.CallEvent
		r := w.r0(breaker.WithHooks(breaker.Hooks{Call: func(_ context.Context, c breaker.CallEvent) { calls = append(calls, c) }}),
			breaker.WithTrip(breaker.FailureRate(0.5, 10, breaker.Last(10*time.Second))))
		r.c.Trip(errBoom)
		require.True(w, r.events.list()[0].At.Equal(w.start))
		require.True(w, r.events.list()[0].Until.Equal(w.start.Add(10*time.Second)))
		require.Equal(w, 10*time.Second, r.rejected().RetryAfter())
		w.at(10*time.Second - 1)
		r.rejected()
		w.at(10 * time.Second)
		r.ok(1)
		r.state(breaker.Closed)

		g := r.gate()
		w.at(12 * time.Second)
		g.finish(errBoom)
		require.Equal(w, 2*time.Second, calls[len(calls)-1].Duration)
		s := r.c.Snapshot()
		require.True(w, s.LastFailureAt.Equal(w.now()))
		require.True(w, s.Since.Equal(w.start.Add(10*time.Second)))
		require.EqualValues(w, 1, s.Counts.Failures)
		w.at(22*time.Second - 1)
		require.EqualValues(w, 1, r.c.Snapshot().Counts.Failures)
		w.at(22 * time.Second)
		require.Zero(w, r.c.Snapshot().Counts.Failures, "it has left the window, by the clock given")
	})
	t.Run("the attempt's own timeout", func(t *testing.T) {
		injected(t, byDo, func(w *world) {
			r := w.r0(breaker.WithTimeout(time.Second))
			entered := make(chan struct{})
			result := make(chan error)
			go func() {
				_, err := r.b.Do(context.Background(), func(ctx context.Context) (int, error) {
					deadline, ok := ctx.Deadline()
					if !ok || !deadline.Equal(w.start.Add(time.Second)) {
						return 0, fmt.Errorf("the deadline is %v", deadline)
					}
					close(entered)
					<-ctx.Done()
					return 0, ctx.Err()
				})
				result <- err
			}()
			<-entered
			w.clk.Add(time.Second - 1)
			select {
			case err := <-result:
				require.NoError(w, err, "too early")
			default:
			}
			w.clk.Add(1)
			require.ErrorIs(w, <-result, context.DeadlineExceeded)
			require.EqualValues(w, 1, r.c.Snapshot().ConsecutiveFailures)
		})
	})
	t.Run("the context that a function gets", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			r := w.r0(breaker.WithTimeout(time.Minute))
			type key struct{}
			parent, cancel := context.WithCancelCause(context.WithValue(context.Background(), key{}, "value"))
			var kept, child context.Context
			_, err := r.b.Do(parent, func(ctx context.Context) (int, error) {
				kept = ctx
				require.Equal(w, "value", ctx.Value(key{}))
				require.NoError(w, ctx.Err())
				deadline, ok := ctx.Deadline()
				require.True(w, ok)
				require.True(w, deadline.Equal(w.now().Add(time.Minute)))
				var stop context.CancelFunc
				child, stop = context.WithCancel(ctx)
				w.Cleanup(stop)
				return 1, nil
			})
			require.NoError(w, err)
			<-kept.Done() // it ends when Do returns
			<-child.Done()
			require.ErrorIs(w, kept.Err(), context.Canceled)
			require.ErrorIs(w, child.Err(), context.Canceled)

			_, err = r.b.Do(parent, func(ctx context.Context) (int, error) {
				cancel(errClient)
				<-ctx.Done()
				require.ErrorIs(w, context.Cause(ctx), errClient)
				return 0, ctx.Err()
			})
			require.ErrorIs(w, err, context.Canceled)
			require.EqualValues(w, 1, r.c.Snapshot().Totals.Ignored)
		})
	})
	t.Run("the source", func(t *testing.T) {
		ours := map[string]bool{"Duration": true, "Time": true, "Nanosecond": true, "Microsecond": true, "Millisecond": true,
			"Second": true, "Minute": true, "Hour": true, "ParseDuration": true}
		allowed := map[string]bool{ // of the default clock
			"errors.go Now": true, "errors.go Until": true, // how long an error asks to wait
			"circuit.go Since": true, // whether a rejection still holds
			"hub.go NewTimer":  true, // connections to a store are paced by real time
		}
		for name, calls := range timeCalls(t, func(name string) bool { return !strings.HasSuffix(name, "_test.go") }) {
			if name == "clock.go" {
				continue
			}
			for _, call := range calls {
				if !ours[call] && !allowed[name+" "+call] {
					t.Errorf("%s uses time.%s", name, call)
				}
			}
		}
	})
}

func TestBC52_TimeZeroIsATime(t *testing.T) {
	starts := map[string]time.Time{
		"the zero time":          {},
		"just before it":         time.Time{}.Add(-10 * time.Second),
		"the epoch":              time.Unix(0, 0),
		"before the epoch":       time.Unix(-10, 0),
		"a nanosecond before it": time.Unix(0, -1),
		"far away":               time.Date(9000, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	for name, start := range starts {
		for policy, opt := range map[string]breaker.Option{
			"threshold":      breaker.WithFailureThreshold(3),
			"failure window": breaker.WithFailureWindow(10 * time.Second),
			"failure count":  breaker.WithTrip(breaker.FailureCount(3, 10*time.Second)),
			"rate":           breaker.WithTrip(breaker.FailureRate(0.5, 3, breaker.Last(10*time.Second))),
		} {
			t.Run(name+" "+policy, func(t *testing.T) {
				injected(t, byDo, func(w *world) {
					w.clk.Set(start)
					w.start = start
					r := w.r0(opt)
					require.Zero(w, r.c.Snapshot().Counts)
					r.fail(1)
					for i := range 10 {
						w.at(time.Duration(i) * time.Second)
						require.EqualValues(w, 1, r.c.Snapshot().Counts.Failures)
					}
					w.at(0 + 9*time.Second)
					r.fail(2)
					r.state(breaker.Open)
					require.Equal(w, 10*time.Second, r.rejected().RetryAfter())
					w.at(19*time.Second - 1)
					require.EqualValues(w, 1, r.rejected().RetryAfter())
					w.at(19 * time.Second)
					r.ok(1)
					r.state(breaker.Closed)
				})
			})
		}
	}
	t.Run("due at the zero time", func(t *testing.T) {
		injected(t, byDo, func(w *world) {
			w.start = time.Time{}.Add(-10 * time.Second)
			w.clk.Set(w.start)
			r := w.r0()
			r.trip()
			require.Equal(w, 10*time.Second, r.rejected().RetryAfter())
			w.at(10 * time.Second)
			r.state(breaker.HalfOpen)
			r.ok(1)
		})
	})
}

func TestK28_ClockIsInjectedAndMonotonic(t *testing.T) {
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

var _ breaker.Clock = (*clock.Mock)(nil)
