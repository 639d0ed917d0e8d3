package breaker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/breakertest"
)

// BC-47.
func TestJumpingClockNeitherFreezesNorUnlocks(t *testing.T) {
	t.Run("forward", func(t *testing.T) {
		breakertest.Injected(t, breakertest.ByDo, func(w *breakertest.World) {
			r := w.R0()
			r.Trip()
			w.Clk.Set(w.Start.Add(2*time.Second + time.Hour))
			r.Succeeds(1) // a clock without a monotonic reading says so: that hour has passed
			r.Is(breaker.Closed)
		})
	})
	t.Run("forward and back again", func(t *testing.T) {
		breakertest.Injected(t, breakertest.ByDo, func(w *breakertest.World) {
			r := w.R0(breaker.WithTrip(breaker.FailureRate(0.5, 4, breaker.Last(10*time.Second))))
			r.Succeeds(2)
			w.Clk.Set(w.Start.Add(time.Hour))
			r.Fails(2)
			w.Clk.Set(w.Start.Add(time.Second))
			r.Fails(1)
			r.Is(breaker.Closed) // three failures are in the window, the successes are not: too few calls
			w.Clk.Set(w.Start.Add(2 * time.Second))
			r.Fails(1)
			r.Is(breaker.Open)
			require.LessOrEqual(w, r.Rejected().RetryAfter(), 10*time.Second)
			w.Clk.Set(w.Clk.Now().Add(10 * time.Second))
			r.Succeeds(1)
		})
	})
	t.Run("windows survive a step back", func(t *testing.T) {
		for name, policy := range map[string]breaker.Option{
			"failure window": breaker.WithFailureWindow(10 * time.Second),
			"failure count":  breaker.WithTrip(breaker.FailureCount(3, 10*time.Second)),
			"rate":           breaker.WithTrip(breaker.FailureRate(0.5, 3, breaker.Last(10*time.Second))),
		} {
			t.Run(name, func(t *testing.T) {
				breakertest.Injected(t, breakertest.ByDo, func(w *breakertest.World) {
					r := w.R0(policy)
					r.Fails(2)
					w.Clk.Set(w.Start.Add(-time.Hour))
					require.EqualValues(w, 2, r.C.Snapshot().Counts.Failures)
					r.Fails(1)
					r.Is(breaker.Open)
				})
			})
		}
	})
	t.Run("back while a probe is out", func(t *testing.T) {
		breakertest.Injected(t, breakertest.ByDo, func(w *breakertest.World) {
			r := w.R0()
			r.Trip()
			w.Clk.Set(w.Start.Add(10 * time.Second))
			r.Gate()
			r.Rejected()
			w.Clk.Set(w.Start.Add(-time.Hour))
			e := r.Rejected()
			require.ErrorIs(w, e, breaker.ErrTooManyProbes)
			require.LessOrEqual(w, e.RetryAfter(), 10*time.Second)
			w.Clk.Set(w.Clk.Now().Add(10 * time.Second))
			r.Succeeds(1)
			r.Is(breaker.Closed)
		})
	})
}

// BC-48.
func TestOneClockUsedEverywhere(t *testing.T) {
	breakertest.Injected(t, breakertest.ByDo, func(w *breakertest.World) {
		require.Greater(w, time.Until(w.Start).Abs(), 24*time.Hour, "the machine's clock must be elsewhere for this test")
		var calls []breaker.CallEvent
		r := w.R0(breaker.WithHooks(breaker.Hooks{Call: func(_ context.Context, c breaker.CallEvent) { calls = append(calls, c) }}),
			breaker.WithTrip(breaker.FailureRate(0.5, 10, breaker.Last(10*time.Second))))
		r.C.Trip(breakertest.ErrBoom)
		require.True(w, r.Events.List()[0].At.Equal(w.Start))
		require.True(w, r.Events.List()[0].Until.Equal(w.Start.Add(10*time.Second)))
		require.Equal(w, 10*time.Second, r.Rejected().RetryAfter())
		w.At(10*time.Second - 1)
		r.Rejected()
		w.At(10 * time.Second)
		r.Succeeds(1)
		r.Is(breaker.Closed)

		g := r.Gate()
		w.At(12 * time.Second)
		g.Finish(breakertest.ErrBoom)
		require.Equal(w, 2*time.Second, calls[len(calls)-1].Duration)
		s := r.C.Snapshot()
		require.True(w, s.LastFailureAt.Equal(w.Now()))
		require.True(w, s.Since.Equal(w.Start.Add(10*time.Second)))
		require.EqualValues(w, 1, s.Counts.Failures)
		w.At(22*time.Second - 1)
		require.EqualValues(w, 1, r.C.Snapshot().Counts.Failures)
		w.At(22 * time.Second)
		require.Zero(w, r.C.Snapshot().Counts.Failures, "it has left the window, by the clock given")
	})
	t.Run("the attempt's own timeout", func(t *testing.T) {
		breakertest.Injected(t, breakertest.ByDo, func(w *breakertest.World) {
			r := w.R0(breaker.WithTimeout(time.Second))
			entered := make(chan struct{})
			result := make(chan error)
			go func() {
				_, err := r.B.Do(context.Background(), func(ctx context.Context) (int, error) {
					deadline, ok := ctx.Deadline()
					if !ok || !deadline.Equal(w.Start.Add(time.Second)) {
						return 0, fmt.Errorf("the deadline is %v", deadline)
					}
					close(entered)
					<-ctx.Done()
					return 0, ctx.Err()
				})
				result <- err
			}()
			<-entered
			w.Clk.Add(time.Second - 1)
			select {
			case err := <-result:
				require.NoError(w, err, "too early")
			default:
			}
			w.Clk.Add(1)
			require.ErrorIs(w, <-result, context.DeadlineExceeded)
			require.EqualValues(w, 1, r.C.Snapshot().ConsecutiveFailures)
		})
	})
	t.Run("the context that a function gets", func(t *testing.T) {
		breakertest.BothClocks(t, func(w *breakertest.World) {
			r := w.R0(breaker.WithTimeout(time.Minute))
			type key struct{}
			parent, cancel := context.WithCancelCause(context.WithValue(context.Background(), key{}, "value"))
			var kept, child context.Context
			_, err := r.B.Do(parent, func(ctx context.Context) (int, error) {
				kept = ctx
				require.Equal(w, "value", ctx.Value(key{}))
				require.NoError(w, ctx.Err())
				deadline, ok := ctx.Deadline()
				require.True(w, ok)
				require.True(w, deadline.Equal(w.Now().Add(time.Minute)))
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

			_, err = r.B.Do(parent, func(ctx context.Context) (int, error) {
				cancel(breakertest.ErrClient)
				<-ctx.Done()
				require.ErrorIs(w, context.Cause(ctx), breakertest.ErrClient)
				return 0, ctx.Err()
			})
			require.ErrorIs(w, err, context.Canceled)
			require.EqualValues(w, 1, r.C.Snapshot().Totals.Ignored)
		})
	})
	t.Run("the source", func(t *testing.T) {
		ours := map[string]bool{"Duration": true, "Time": true, "Nanosecond": true, "Microsecond": true, "Millisecond": true,
			"Second": true, "Minute": true, "Hour": true, "ParseDuration": true}
		allowed := map[string]bool{ // of the default clock
			"errors.go Now": true, "errors.go Until": true, // how long an error asks to wait
			"admit.go Since":     true,                                   // whether a rejection still holds
			"syncer.go NewTimer": true, "store_client.go NewTimer": true, // connections to a store are paced by real time
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

// BC-52.
func TestTimeZeroIsATime(t *testing.T) {
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
				breakertest.Injected(t, breakertest.ByDo, func(w *breakertest.World) {
					w.Clk.Set(start)
					w.Start = start
					r := w.R0(opt)
					require.Zero(w, r.C.Snapshot().Counts)
					r.Fails(1)
					for i := range 10 {
						w.At(time.Duration(i) * time.Second)
						require.EqualValues(w, 1, r.C.Snapshot().Counts.Failures)
					}
					w.At(0 + 9*time.Second)
					r.Fails(2)
					r.Is(breaker.Open)
					require.Equal(w, 10*time.Second, r.Rejected().RetryAfter())
					w.At(19*time.Second - 1)
					require.EqualValues(w, 1, r.Rejected().RetryAfter())
					w.At(19 * time.Second)
					r.Succeeds(1)
					r.Is(breaker.Closed)
				})
			})
		}
	}
	t.Run("due at the zero time", func(t *testing.T) {
		breakertest.Injected(t, breakertest.ByDo, func(w *breakertest.World) {
			w.Start = time.Time{}.Add(-10 * time.Second)
			w.Clk.Set(w.Start)
			r := w.R0()
			r.Trip()
			require.Equal(w, 10*time.Second, r.Rejected().RetryAfter())
			w.At(10 * time.Second)
			r.Is(breaker.HalfOpen)
			r.Succeeds(1)
		})
	})
}

// K28.
func TestNoTestSleeps(t *testing.T) {
	for name, calls := range timeCalls(t, func(name string) bool { return strings.HasSuffix(name, "_test.go") && !strings.HasPrefix(name, "zz") }) {
		source, err := os.ReadFile(name)
		require.NoError(t, err)
		if !bytes.Contains(source, []byte(`"testing/synctest"`)) { // in a bubble it takes no time
			require.NotContains(t, calls, "Sleep", "%s", name)
		}
	}
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

// Under an injected clock nothing is sampled: what a burst leaves is exact to the nanosecond.
func TestSamplingIsOffUnderAnInjectedClock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const window = 10 * time.Second
		clk := newMdlClock()
		c := breaker.Must(breaker.NewCircuit("exact", breaker.WithClock(clk), breaker.WithTrip(breaker.FailureRate(1, 1_000_000, breaker.Last(window)))))
		var ok []time.Time
		for range rapid.IntRange(1, 60).Draw(t, "bursts") {
			for range rapid.IntRange(0, 200).Draw(t, "successes") {
				_ = c.Run(context.Background(), mdlOK)
				ok = append(ok, clk.Now())
			}
			clk.pass(rapid.SampledFrom([]time.Duration{0, 1, time.Millisecond, time.Second, window - 1}).Draw(t, "d"))
			want := uint64(0)
			for _, at := range ok {
				if clk.Now().Sub(at) < window {
					want++
				}
			}
			if got := c.Snapshot().Counts.Successes; got != want {
				t.Fatalf("%d successes in the window, want %d", got, want)
			}
		}
	})
}

// BC-47: a wall clock that is set back or forward.
// K28.
func TestClockSetBack(t *testing.T) {
	const period = 10 * time.Second
	for _, seen := range []bool{false, true} { // whether a call was rejected before the step
		t.Run(fmt.Sprintf("rejected before %v", seen), func(t *testing.T) {
			clk := newMdlClock()
			c := breaker.Must(breaker.NewCircuit("jump", breaker.WithClock(clk), breaker.WithFailureThreshold(1), breaker.WithOpenTimeout(period)))
			_ = c.Run(t.Context(), mdlFail)
			clk.pass(2 * time.Second)
			if seen {
				mdlRemaining(t, c, period)
			}
			clk.pass(-time.Hour)
			left := mdlRemaining(t, c, period)
			if seen && left != 8*time.Second {
				t.Errorf("%v left, want 8s", left)
			}
			if s := c.Snapshot(); s.State != breaker.Open || s.Until.Sub(clk.Now()) > period || s.Until.Before(clk.Now()) {
				t.Errorf("at %v: %+v", clk.Now(), s)
			}
			clk.pass(left - 1)
			if c.State() != breaker.Open || c.Ready() {
				t.Errorf("%v before its time", c.State())
			}
			mdlRemaining(t, c, 1)
			clk.pass(1)
			if c.State() != breaker.HalfOpen {
				t.Errorf("%v when it is due", c.State())
			}
			if err := c.Run(t.Context(), mdlOK); err != nil {
				t.Errorf("no probe when it is due: %v", err)
			}
		})
	}
}

// mdlRemaining requires a rejection and returns its RetryAfter, which is at most that much.
func mdlRemaining(t *testing.T, c *breaker.Circuit, most time.Duration) time.Duration {
	t.Helper()
	var open *breaker.OpenError
	if err := c.Run(t.Context(), mdlOK); !errors.As(err, &open) {
		t.Fatalf("not rejected: %v", err)
	}
	left := open.RetryAfter()
	if left < 0 || left > most {
		t.Errorf("%v left, want at most %v", left, most)
	}
	return left
}

// Whatever a clock does: windows never go wrong, an open circuit opens up within its period, and nothing is stuck.
// BC-47.
func TestClockJumps(t *testing.T) {
	for name, rule := range mdlRules {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				const period = 5 * time.Second
				clk := newMdlClock()
				c := breaker.Must(breaker.NewCircuit("jump", append(rule.opts(), breaker.WithClock(clk), breaker.WithOpenTimeout(period), breaker.WithSuccessThreshold(1))...))
				calls := uint64(0)
				jump := rapid.SampledFrom([]time.Duration{-time.Hour, -time.Second, -1, 0, 0, 1, time.Second, 3 * time.Second, time.Hour})
				t.Repeat(map[string]func(*rapid.T){
					"jump": func(t *rapid.T) { clk.pass(jump.Draw(t, "by")) },
					"call": func(t *rapid.T) {
						fn := rapid.SampledFrom([]func(context.Context) error{mdlOK, mdlFail}).Draw(t, "fn")
						var open *breaker.OpenError
						if err := c.Run(context.Background(), fn); !errors.As(err, &open) {
							calls++
						} else if left := open.RetryAfter(); left < 0 || left > period {
							t.Fatalf("%v left", left)
						}
					},
					"recover": func(t *rapid.T) {
						_ = c.State() // reads the clock, so that what passes from here on is known
						clk.pass(period)
						if c.State() == breaker.Open || !c.Ready() {
							t.Fatalf("%v", c.Snapshot())
						}
					},
					"": func(t *rapid.T) {
						s := c.Snapshot()
						n := s.Counts
						if s.Totals.Calls != calls || s.InFlight != 0 || n.Successes+n.Failures+n.Ignored > calls || n.Slow > calls {
							t.Fatalf("%v: %+v", s, n)
						}
						if s.State == breaker.Open && (s.Until.Sub(clk.Now()) > period || s.Since.After(clk.Now())) {
							t.Fatalf("open since %v until %v at %v", s.Since, s.Until, clk.Now())
						}
					},
				})
			})
		})
	}
}

// mdlUserClock is a clock of a user that does more than tell the time.
type mdlUserClock struct {
	*mdlClock
	do atomic.Pointer[func()]
}

func (c *mdlUserClock) Now() time.Time {
	if do := c.do.Load(); do != nil {
		(*do)()
	}
	return c.mdlClock.Now()
}

// A clock that panics is taken to say what it said before; calls and slots come to no harm.
func TestClockPanics(t *testing.T) {
	clk := &mdlUserClock{mdlClock: newMdlClock()}
	c := breaker.Must(breaker.NewCircuit("panics", breaker.WithClock(clk), breaker.WithFailureThreshold(2), breaker.WithSuccessThreshold(1), breaker.WithOpenTimeout(10*time.Second)))
	broken := func() { panic("clock") }
	clk.do.Store(&broken)
	ctx := t.Context()
	_ = c.Run(ctx, mdlOK)
	_ = c.Run(ctx, mdlFail)
	_ = c.Run(ctx, mdlFail)
	if s := c.Snapshot(); s.State != breaker.Open || s.InFlight != 0 {
		t.Fatalf("%v", s)
	}
	if err := c.Run(ctx, mdlOK); !errors.Is(err, breaker.ErrOpen) {
		t.Fatal(err)
	}
	clk.pass(10 * time.Second)
	if c.State() != breaker.Open {
		t.Error("time has passed on a clock that does not say so")
	}
	clk.do.Store(nil)
	p, err := c.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	clk.do.Store(&broken)
	p.Done(nil)
	if s := c.Snapshot(); s.State != breaker.Closed || s.InFlight != 0 || s.Probes != 0 {
		t.Errorf("%v after a good probe", s)
	}
	c.Trip(nil)
	c.Reset()
	c.OfferProbe()
	if err := c.Configure(breaker.WithFailureThreshold(3)); err != nil {
		t.Error(err)
	}
}

// A clock may call the circuit: it is asked outside every lock.
// BC-137.
func TestClockCallsTheCircuit(t *testing.T) {
	clk := &mdlUserClock{mdlClock: newMdlClock()}
	c := breaker.Must(breaker.NewCircuit("calls", breaker.WithClock(clk), breaker.WithTrip(breaker.FailureRate(0.5, 2, breaker.Last(time.Minute)))))
	var inside atomic.Bool
	calls := func() {
		if inside.CompareAndSwap(false, true) {
			defer inside.Store(false)
			_ = c.Snapshot()
			_ = c.Run(context.Background(), mdlOK)
			_ = c.Ready()
		}
	}
	clk.do.Store(&calls)
	breakertest.Guard(t, breakertest.Patience, func() {
		for range 3 {
			_ = c.Run(context.Background(), mdlOK)
			_ = c.Run(context.Background(), mdlFail)
			c.Trip(nil)
			_ = c.Run(context.Background(), mdlOK)
			c.OfferProbe()
			c.SetMode(breaker.Auto)
			c.Reset()
		}
	})
	if n := c.Snapshot().InFlight; n != 0 {
		t.Errorf("%d in flight", n)
	}
}

// A clock that is set far ahead, such as a fake one from the zero time to the present, is one more clock that was set: what
// comes afterwards goes as always.
func TestClockSetFarAhead(t *testing.T) {
	const half = 150 * 365 * 24 * time.Hour // of more nanoseconds than an int64 has
	far := func(clk *mdlClock) { clk.pass(half); clk.pass(half) }
	back := func(clk *mdlClock) { clk.pass(-half); clk.pass(-half) }
	const period = 30 * time.Second
	for name, rule := range map[string]breaker.Option{
		"in a row":  breaker.WithFailureThreshold(5),
		"in a time": breaker.WithFailureWindow(time.Minute),
		"count":     breaker.WithTrip(breaker.FailureCount(5, time.Minute)),
		"rate":      breaker.WithTrip(breaker.FailureRate(0.5, 5, breaker.Last(time.Minute))),
	} {
		for what, set := range map[string]func(*mdlClock){
			"once":               far,
			"again and again":    far,
			"back":               back,
			"ahead, then back":   func(clk *mdlClock) { far(clk); back(clk); back(clk) },
			"by a hundred years": func(clk *mdlClock) { clk.pass(half / 3 * 2) },
		} {
			t.Run(name+", "+what, func(t *testing.T) {
				clk := newMdlClock()
				c := breaker.Must(breaker.NewCircuit("far", breaker.WithClock(clk), rule, breaker.WithSuccessThreshold(1)))
				for range 20 {
					set(clk)
					_ = c.State() // reads the clock
					for i := range 5 {
						require.Equal(t, breaker.Closed, c.State(), "after %d failures", i)
						_ = c.Run(t.Context(), mdlFail)
					}
					s := c.Snapshot()
					require.Equal(t, breaker.Open, s.State, "at the fifth failure")
					require.True(t, s.Since.Equal(clk.Now()), "%v at %v", s.Since, clk.Now())
					require.Equal(t, period, s.Until.Sub(clk.Now()))
					require.Equal(t, period, mdlRemaining(t, c, period))
					clk.pass(period - 1)
					require.Equal(t, breaker.Open, c.State())
					clk.pass(1)
					require.Equal(t, breaker.HalfOpen, c.State())
					require.NoError(t, c.Run(t.Context(), mdlOK))
					require.Equal(t, breaker.Closed, c.State())
					if what == "once" {
						return
					}
				}
			})
		}
	}
	t.Run("while open", func(t *testing.T) {
		clk := newMdlClock()
		c := breaker.Must(breaker.NewCircuit("far", breaker.WithClock(clk), breaker.WithFailureThreshold(1)))
		_ = c.Run(t.Context(), mdlFail)
		far(clk)
		require.Equal(t, breaker.HalfOpen, c.State(), "the period is over")
	})
}
