package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/breakertest"
)

// BC-01.
func TestFailedProbeReopensWhateverThePolicySays(t *testing.T) {
	for name, policy := range policies() {
		t.Run(name, func(t *testing.T) {
			breakertest.Everywhere(t, func(w *breakertest.World) {
				r := w.R0(policy, breaker.WithSuccessThreshold(3), breaker.WithHalfOpenProbes(1))
				r.Fails(10)
				r.Is(breaker.Open)
				w.At(10 * time.Second) // any window is empty now
				r.Fails(1)
				r.Is(breaker.Open)
				for range 3 {
					r.Rejected()
				}
				w.At(20*time.Second - 1)
				r.Rejected()
				w.At(20 * time.Second)
				r.Succeeds(3)
				r.Is(breaker.Closed)
			})
		})
	}
}

// BC-01.
func TestSlowProbeIsAFailedProbe(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		r := w.R0(breaker.WithTrip(
			breaker.SlowCallRate(2*time.Second, 0.5, 100, breaker.LastCalls(100)),
			breaker.ConsecutiveFailures(3),
		), breaker.WithSuccessThreshold(2), breaker.WithIgnore(breakertest.ErrClient))
		r.Fails(3)
		w.At(10 * time.Second)
		slow := r.Gate()
		w.At(12 * time.Second)
		slow.Finish(nil) // its caller has the answer all the same
		r.Is(breaker.Open)
		last := r.Events.List()[2]
		require.Equal(w, breaker.ReasonProbeFailed, last.Reason)
		require.Error(w, last.Cause)
		totals := r.C.Snapshot().Totals
		require.EqualValues(w, 1, totals.Successes)
		require.EqualValues(w, 1, totals.Slow)
		w.At(22*time.Second - 1)
		r.Rejected()
		w.At(22 * time.Second)
		fast := r.Gate()
		w.At(24*time.Second - 1)
		fast.Finish(nil)
		r.Is(breaker.HalfOpen)
		if w.Way.Name != breakertest.ByPolicy.Name {
			ignored := r.Gate()
			w.Add(5 * time.Second)
			ignored.Finish(breakertest.ErrClient) // slow, but no verdict
			r.Is(breaker.HalfOpen)
		}
		r.Succeeds(1)
		r.Is(breaker.Closed)
	})
}

// BC-02.
func TestFailedProbeStartsAFullPeriod(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		r := w.R0()
		r.Trip()
		w.At(10 * time.Second)
		r.Fails(1)
		for _, at := range []time.Duration{10_001 * time.Millisecond, 15 * time.Second, 19_999 * time.Millisecond} {
			w.At(at)
			r.Is(breaker.Open)
			require.Equal(w, 20*time.Second-at, r.Rejected().RetryAfter())
			require.True(w, r.C.Snapshot().Until.Equal(w.Start.Add(20*time.Second)))
			require.True(w, r.C.Snapshot().Since.Equal(w.Start.Add(10*time.Second)))
		}
		w.At(20 * time.Second)
		r.Succeeds(1)
	})
	t.Run("again and again", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.R0()
			r.Trip()
			for i := range 10 {
				w.At(time.Duration(i+1) * 10 * time.Second)
				r.Fails(1)
				r.Rejected()
			}
			require.Len(w, r.Steps(), 21)
		})
	})
	t.Run("however late the probe came", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.R0()
			r.Trip()
			w.At(time.Hour)
			probe := r.Gate()
			w.Add(5 * time.Second)
			probe.Finish(breakertest.ErrBoom)
			w.Add(10*time.Second - 1)
			r.Rejected()
			w.Add(1)
			r.Succeeds(1)
		})
	})
}

// BC-06.
func TestClosingForgetsTheFailures(t *testing.T) {
	const minute = time.Minute
	for name, policy := range map[string]breaker.Option{
		"threshold":     breaker.WithFailureThreshold(3),
		"with a window": breaker.WithFailureWindow(minute),
		"failure count": breaker.WithTrip(breaker.FailureCount(3, minute)),
		"rate in time":  breaker.WithTrip(breaker.FailureRate(0.1, 3, breaker.Last(minute))),
		"rate of calls": breaker.WithTrip(breaker.FailureRate(0.1, 3, breaker.LastCalls(100))),
		"user's own":    breaker.WithTrip(breaker.TripWhen(breaker.Last(minute), func(c breaker.Counts) bool { return c.Failures >= 3 })),
	} {
		for how, closeIt := range map[string]func(*breakertest.Rig){
			"by a probe":        func(r *breakertest.Rig) { r.Add(10 * time.Second); r.Succeeds(1) },
			"by Reset":          func(r *breakertest.Rig) { r.C.Reset() },
			"by Reset when due": func(r *breakertest.Rig) { r.Add(10 * time.Second); r.C.Reset() },
			"by a health check": func(r *breakertest.Rig) { r.C.OfferProbe(); r.Succeeds(1) },
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				breakertest.Everywhere(t, func(w *breakertest.World) {
					r := w.R0(policy)
					r.Fails(3)
					r.Is(breaker.Open)
					closeIt(r)
					r.Is(breaker.Closed)
					require.Zero(w, r.C.Snapshot().Counts)
					require.Zero(w, r.C.Snapshot().ConsecutiveFailures)
					require.Empty(w, r.C.Snapshot().LastFailure)
					w.Add(time.Second)
					r.Fails(2)
					r.Is(breaker.Closed)
					r.Fails(1)
					r.Is(breaker.Open)
				})
			})
		}
		t.Run(name+" Reset of a closed circuit", func(t *testing.T) {
			breakertest.Everywhere(t, func(w *breakertest.World) {
				r := w.R0(policy)
				r.Fails(2)
				pending := r.Gate()
				r.C.Reset()
				require.Empty(w, r.Steps(), "closed to closed is no transition")
				require.Zero(w, r.C.Snapshot().Counts)
				pending.Finish(breakertest.ErrBoom) // admitted before: void
				r.Fails(2)
				r.Is(breaker.Closed)
				r.Fails(1)
				r.Is(breaker.Open)
			})
		})
	}
	t.Run("successes are forgotten too, whatever happens in between", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			for name, meanwhile := range map[string]func(*breakertest.Rig){
				"reset":          func(r *breakertest.Rig) { r.C.Reset() },
				"trip and reset": func(r *breakertest.Rig) { r.C.Trip(nil); r.C.Reset() },
				"shadow":         func(r *breakertest.Rig) { r.C.SetMode(breaker.Shadow); r.C.Reset(); r.C.SetMode(breaker.Auto) },
				"forced open":    func(r *breakertest.Rig) { r.C.SetMode(breaker.ForcedOpen); r.C.Reset(); r.C.SetMode(breaker.Auto) },
				"forced closed": func(r *breakertest.Rig) {
					r.C.SetMode(breaker.ForcedClosed)
					r.C.Trip(nil)
					r.C.Reset()
					r.C.SetMode(breaker.Auto)
				},
				"stays in shadow": func(r *breakertest.Rig) { r.C.SetMode(breaker.Shadow); r.C.Reset() },
				"a limit set":     func(r *breakertest.Rig) { require.NoError(r, r.C.Configure(breaker.WithMaxInFlight(9))); r.C.Reset() },
				"a limit set once": func(r *breakertest.Rig) {
					require.NoError(r, r.C.Configure(breaker.WithMaxInFlight(9)))
					r.C.Reset()
					require.NoError(r, r.C.Configure(breaker.WithMaxInFlight(0)))
				},
			} {
				for _, policy := range []breaker.Option{
					breaker.WithFailureThreshold(6),
					breaker.WithTrip(breaker.FailureRate(0.5, 6, breaker.LastCalls(100))),
					breaker.WithTrip(breaker.FailureRate(0.5, 6, breaker.Last(time.Minute))),
				} {
					r := w.R0(policy)
					r.Succeeds(50)
					meanwhile(r)
					require.Zero(w, r.C.Snapshot().Counts, "%s, %v", name, r.C.Config().Trip)
					require.Zero(w, r.C.Snapshot().ConsecutiveSuccesses, name)
					r.Fails(5)
					require.Equal(w, breaker.Closed, r.C.State(), name)
					r.Fails(1)
					require.Equal(w, breaker.Open, r.C.State(), name)
				}
			}
		})
	})
}

// BC-08.
func TestProbeSuccessesInARowClose(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		r := w.R0(breaker.WithSuccessThreshold(3), breaker.WithHalfOpenProbes(1))
		r.Trip()
		var states []breaker.State
		for _, step := range []struct {
			at  time.Duration
			err error
		}{{10, nil}, {10, nil}, {10, breakertest.ErrBoom}, {20, nil}, {20, nil}, {20, nil}} {
			w.At(step.at * time.Second)
			require.Equal(w, step.err, r.Call(step.err))
			states = append(states, r.C.State())
		}
		require.Equal(w, []breaker.State{
			breaker.HalfOpen, breaker.HalfOpen, breaker.Open,
			breaker.HalfOpen, breaker.HalfOpen, breaker.Closed,
		}, states)
	})
	t.Run("more probes than successes needed", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.R0(breaker.WithSuccessThreshold(1), breaker.WithHalfOpenProbes(3))
			r.Trip()
			w.At(10 * time.Second)
			a, b, c := r.Gate(), r.Gate(), r.Gate()
			b.Finish(nil)
			r.Is(breaker.Closed)
			a.Finish(breakertest.ErrBoom) // of an epoch that is over
			c.Finish(breakertest.ErrBoom)
			r.Is(breaker.Closed)
			require.Zero(w, r.C.Snapshot().ConsecutiveFailures)
			require.EqualValues(w, 2, r.C.Snapshot().Totals.Late)
		})
	})
}

// BC-27, K29.
func TestHungProbeDoesNotLockTheCircuit(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		r := w.R0()
		r.Trip()
		w.At(10 * time.Second)
		r.Gate() // A, never finished
		for _, at := range []time.Duration{10_100 * time.Millisecond, 20*time.Second - 1} {
			w.At(at)
			e := r.Rejected()
			require.ErrorIs(w, e, breaker.ErrTooManyProbes)
			require.Equal(w, 20*time.Second-at, e.RetryAfter(), "what is left of the lease")
		}
		w.At(20 * time.Second)
		require.Zero(w, r.C.Snapshot().Probes)
		require.True(w, r.C.Ready())
		b := r.Gate()
		w.At(20_100 * time.Millisecond)
		r.Rejected()
		require.EqualValues(w, 1, r.C.Snapshot().Probes)
		b.Finish(nil)
		r.Is(breaker.Closed)
		require.EqualValues(w, 1, r.C.Snapshot().InFlight, "A is still out")
	})
	t.Run("each new probe hangs too", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.R0()
			r.Trip()
			var hung []*breakertest.Gate
			for i := 1; i <= 10; i++ {
				w.At(time.Duration(i) * 10 * time.Second)
				hung = append(hung, r.Gate())
				r.Rejected()
			}
			hung[4].Finish(breakertest.ErrBoom) // older than its lease, but nothing better is known of the dependency
			r.Is(breaker.Open)
			require.Zero(w, r.C.Snapshot().Totals.Late, "its epoch was still the present one")
			for _, g := range append(hung[:4], hung[5:]...) {
				g.Finish(breakertest.ErrBoom)
			}
			require.EqualValues(w, 9, r.C.Snapshot().Totals.Late)
			require.Equal(w, 10*time.Second, r.Rejected().RetryAfter(), "one opening, one period")
			w.Add(10 * time.Second)
			r.Succeeds(1)
			r.Is(breaker.Closed)
			r.Idle()
		})
	})
	t.Run("a late end frees nobody else's slot", func(t *testing.T) {
		for name, end := range map[string]func(*breakertest.Gate, context.CancelFunc){
			"ignored": func(g *breakertest.Gate, _ context.CancelFunc) { g.Finish(breakertest.ErrClient) },
			"cancel":  func(g *breakertest.Gate, cancel context.CancelFunc) { cancel(); g.Finish(context.Canceled) },
		} {
			t.Run(name, func(t *testing.T) {
				breakertest.BothClocks(t, func(w *breakertest.World) {
					r := w.R0(breaker.WithHalfOpenProbes(2), breaker.WithSuccessThreshold(2), breaker.WithIgnore(breakertest.ErrClient))
					r.Trip()
					w.At(10 * time.Second)
					ctx, cancel := context.WithCancel(w.Context())
					defer cancel()
					old := r.GateContext(ctx)
					w.At(15 * time.Second)
					r.Gate()
					w.At(20 * time.Second) // old's lease has ended, the other's not
					third := r.Gate()
					require.EqualValues(w, 2, r.C.Snapshot().Probes)
					end(old, cancel)
					require.EqualValues(w, 2, r.C.Snapshot().Probes)
					r.Rejected()
					third.Finish(nil)
					require.EqualValues(w, 1, r.C.Snapshot().Probes)
					r.Succeeds(1)
					r.Is(breaker.Closed)
				})
			})
		}
	})
	t.Run("a hung probe and a limit of one call in flight", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.R0(breaker.WithMaxInFlight(2))
			r.Trip()
			w.At(10 * time.Second)
			r.Gate()
			w.At(20 * time.Second)
			r.Succeeds(1)
			r.Is(breaker.Closed)
		})
	})
	t.Run("many leases that end together", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.R0(breaker.WithHalfOpenProbes(5), breaker.WithSuccessThreshold(9))
			r.Trip()
			w.At(10 * time.Second)
			var gates []*breakertest.Gate
			for range 5 {
				gates = append(gates, r.Gate())
			}
			gates[2].Finish(nil)
			gates[4].Finish(nil)
			require.EqualValues(w, 3, r.C.Snapshot().Probes)
			w.At(20 * time.Second)
			require.Zero(w, r.C.Snapshot().Probes)
			for range 5 {
				r.Gate()
			}
			r.Rejected()
		})
	})
}

// BC-34.
func TestExactlyAsManyProbesAsSlots(t *testing.T) {
	for name, settings := range map[string]struct{ slots, rounds int }{"two": {2, 1000}, "one": {1, 200}, "five": {5, 200}} {
		t.Run(name, func(t *testing.T) {
			breakertest.Guard(t, 2*breakertest.Patience, func() {
				for range settings.rounds {
					clk := &handClock{}
					c := breaker.Must(breaker.NewCircuit("test", breaker.WithClock(clk),
						breaker.WithHalfOpenProbes(settings.slots), breaker.WithSuccessThreshold(settings.slots)))
					c.Trip(nil)
					clk.ns.Store(int64(30 * time.Second))
					const callers = 50
					var ran, full atomic.Int64
					all, settle, answered := make(chan struct{}), make(chan struct{}), make(chan struct{}, callers)
					var done sync.WaitGroup
					for range callers {
						done.Go(func() {
							<-all
							err := c.Run(context.Background(), func(context.Context) error {
								ran.Add(1)
								answered <- struct{}{}
								<-settle
								return nil
							})
							if errors.Is(err, breaker.ErrTooManyProbes) {
								full.Add(1)
								answered <- struct{}{}
							}
						})
					}
					close(all)
					for range callers {
						<-answered
					}
					if int(ran.Load()) != settings.slots || int(full.Load()) != callers-settings.slots {
						t.Fatalf("%d ran and %d were rejected, with %d slots", ran.Load(), full.Load(), settings.slots)
					}
					close(settle)
					done.Wait()
					if c.State() != breaker.Closed {
						t.Fatalf("%v after every probe succeeded", c.State())
					}
				}
			})
		})
	}
}

// BC-35.
func TestHalfOpenIsNotClosed(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		r := w.R0(breaker.WithProbeLease(time.Hour))
		r.Trip()
		r.Ran.Store(0)
		w.At(10 * time.Second)
		var calls sync.WaitGroup
		var rejected atomic.Int64
		for w.Elapsed() < 39*time.Second {
			calls.Go(func() {
				_, err := r.B.Do(context.Background(), func(context.Context) (int, error) {
					r.Ran.Add(1)
					<-time.After(30 * time.Second)
					return 0, breakertest.ErrBoom
				})
				if errors.Is(err, breaker.ErrTooManyProbes) {
					rejected.Add(1)
				}
			})
			w.Add(100 * time.Millisecond)
			require.EqualValues(w, 1, r.Ran.Load())
		}
		require.EqualValues(w, 289, rejected.Load())
		calls.Wait()
		r.Is(breaker.Open)
		require.Equal(w, "half-open>open at 40s: probe failed", r.Steps()[2])
	})
	t.Run("one more for each lease", func(t *testing.T) {
		breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
			r := w.R0()
			r.Trip()
			r.Ran.Store(0)
			w.At(10 * time.Second)
			for w.Elapsed() < 60*time.Second {
				r.Begin()
				w.Add(time.Second)
			}
			require.EqualValues(w, 5, r.Ran.Load())
		})
	})
}

// BC-39.
func TestProbeThatNeverLeftIsInconclusive(t *testing.T) {
	errPoolExhausted := errors.New("own pool exhausted")
	for name, opts := range map[string][]breaker.Option{
		"WithIgnore": {breaker.WithIgnore(errPoolExhausted)},
		"WithClassifier": {breaker.WithClassifier(func(err error) breaker.Outcome {
			if errors.Is(err, errPoolExhausted) {
				return breaker.Ignored
			}
			return breaker.Failure
		})},
		"an inner limiter": nil,
	} {
		t.Run(name, func(t *testing.T) {
			breakertest.BothClocks(t, func(w *breakertest.World) {
				inconclusive := errPoolExhausted
				if opts == nil {
					inconclusive = fmt.Errorf("inner: %w", breaker.ErrTooManyInFlight)
				}
				r := w.R0(append(opts, breaker.WithOpenBackoff(2, time.Hour, 0))...)
				r.Trip()
				w.At(10 * time.Second)
				for range 3 {
					r.FailsWith(inconclusive)
					r.Is(breaker.HalfOpen)
					require.Zero(w, r.C.Snapshot().Probes)
				}
				r.Succeeds(1)
				r.Is(breaker.Closed)
			})
		})
	}
	t.Run("an inner circuit that is open", func(t *testing.T) {
		breakertest.BothClocks(t, func(w *breakertest.World) {
			outer, inner := w.R0(), w.R0()
			inner.Trip()
			for range 10 {
				err := outer.C.Run(w.Context(), func(ctx context.Context) error { return inner.C.Run(ctx, func(context.Context) error { return nil }) })
				require.ErrorIs(w, err, breaker.ErrOpen)
			}
			outer.Is(breaker.Closed)
			require.EqualValues(w, 10, outer.C.Snapshot().Totals.Ignored)
			require.Zero(w, outer.C.Snapshot().Totals.Rejected)
		})
	})
}

// K09.
func TestHalfOpenAdmitsProbesUpToItsSlots(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			breakertest.Everywhere(t, func(w *breakertest.World) {
				r := w.Circuit(breaker.WithHalfOpenProbes(n), breaker.WithSuccessThreshold(n))
				r.Trip()
				w.At(30 * time.Second)
				var in, out []*breakertest.Gate
				for range 10 {
					if g := r.Begin(); g.Ran {
						in = append(in, g)
					} else {
						out = append(out, g)
					}
				}
				require.Len(w, in, n)
				require.Len(w, out, 10-n)
				for _, g := range out {
					err := <-g.Result
					require.ErrorIs(w, err, breaker.ErrTooManyProbes)
					require.ErrorIs(w, err, breaker.ErrOpen)
				}
				require.EqualValues(w, n, r.C.Snapshot().Probes)
				for _, g := range in {
					r.Is(breaker.HalfOpen)
					g.Finish(nil)
				}
				r.Is(breaker.Closed)
				r.Idle()
			})
		})
	}
	t.Run("a freed slot is given out again", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.Circuit(breaker.WithHalfOpenProbes(2), breaker.WithSuccessThreshold(4))
			r.Trip()
			w.At(30 * time.Second)
			a, b := r.Gate(), r.Gate()
			require.ErrorIs(w, r.Rejected(), breaker.ErrTooManyProbes)
			a.Finish(nil)
			c := r.Gate()
			require.ErrorIs(w, r.Rejected(), breaker.ErrTooManyProbes)
			b.Finish(nil)
			c.Finish(nil)
			r.Is(breaker.HalfOpen)
			r.Succeeds(1)
			r.Is(breaker.Closed)
		})
	})
	t.Run("an open circuit's rejection is not about probes", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.Circuit()
			r.Trip()
			require.NotErrorIs(w, r.Rejected(), breaker.ErrTooManyProbes)
		})
	})
	t.Run("as many as the success threshold by default", func(t *testing.T) {
		c := breaker.Must(breaker.NewCircuit("test", breaker.WithSuccessThreshold(7)))
		require.Equal(t, 7, c.Config().HalfOpenProbes)
	})
}

// K10.
func TestSuccessThresholdCloses(t *testing.T) {
	for _, n := range []int{1, 2, 3, 10} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			breakertest.Everywhere(t, func(w *breakertest.World) {
				r := w.Circuit(breaker.WithSuccessThreshold(n))
				r.Trip()
				w.At(30 * time.Second)
				for i := range n {
					r.Is(breaker.HalfOpen)
					if i > 0 {
						require.EqualValues(w, i, r.C.Snapshot().ConsecutiveSuccesses)
					}
					r.Succeeds(1)
				}
				r.Is(breaker.Closed)
				require.Equal(w, []string{
					"closed>open at 0s: threshold reached",
					"open>half-open at 30s: timeout expired",
					"half-open>closed at 30s: recovered",
				}, r.Steps())
			})
		})
	}
}

// K11.
func TestProbeSuccessesCountFromZero(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		r := w.Circuit()
		r.Succeeds(1000)
		r.Trip()
		w.At(30 * time.Second)
		r.Succeeds(1)
		r.Is(breaker.HalfOpen)
		r.Succeeds(1)
		r.Is(breaker.Closed)
		r.Succeeds(10)
		r.Trip() // and in the next half-open period again
		w.At(60 * time.Second)
		r.Succeeds(1)
		r.Is(breaker.HalfOpen)
	})
}

// K29.
func TestProbeThatNeverReturnsDoesNotBlockRecovery(t *testing.T) {
	t.Run("its success counts while the half-open epoch lasts", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.Circuit(breaker.WithSuccessThreshold(1))
			r.Trip()
			w.At(30 * time.Second)
			slow := r.Gate()
			w.At(5 * time.Minute)
			r.Is(breaker.HalfOpen)
			slow.Finish(nil)
			r.Is(breaker.Closed)
			require.Zero(w, r.C.Snapshot().Totals.Late)
		})
	})
	t.Run("a dependency slower than the lease closes the circuit", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.Circuit() // two successes
			r.Trip()
			w.At(30 * time.Second)
			a, b := r.Gate(), r.Gate()
			w.At(61 * time.Second)
			c, d := r.Gate(), r.Gate()
			a.Finish(nil)
			r.Is(breaker.HalfOpen)
			b.Finish(nil)
			r.Is(breaker.Closed)
			c.Finish(nil)
			d.Finish(nil)
			r.Is(breaker.Closed)
			require.EqualValues(w, 2, r.C.Snapshot().Totals.Late)
			r.Idle()
		})
	})
	t.Run("a settlement exactly at the end is late", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			for end, want := range map[time.Duration]breaker.State{
				30*time.Second - 1: breaker.Open, // on time, a failure decides whatever has succeeded meanwhile
				30 * time.Second:   breaker.HalfOpen,
			} {
				w.Start = w.Now()
				r := w.Circuit(breaker.WithSuccessThreshold(3))
				r.Trip()
				w.At(30 * time.Second)
				probe := r.Gate()
				w.At(31 * time.Second)
				r.Succeeds(1)
				w.At(30*time.Second + end)
				probe.Finish(breakertest.ErrBoom)
				r.Is(want)
				r.Idle()
			}
		})
	})
	t.Run("the lease is a setting", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.Circuit(breaker.WithProbeLease(5*time.Second), breaker.WithSuccessThreshold(1))
			r.Trip()
			w.At(30 * time.Second)
			r.Gate()
			w.At(35*time.Second - 1)
			require.EqualValues(w, 1, r.Rejected().RetryAfter())
			w.At(35 * time.Second)
			r.Succeeds(1)
			r.Is(breaker.Closed)
		})
	})
}

// E2.
func TestOneFailedProbeOfSeveralReopens(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		r := w.Circuit(breaker.WithSuccessThreshold(3), breaker.WithHalfOpenProbes(3))
		r.Trip()
		w.At(34 * time.Second)
		a, b, c := r.Gate(), r.Gate(), r.Gate()
		a.Finish(nil)
		b.Finish(breakertest.ErrBoom)
		r.Is(breaker.Open)
		c.Finish(nil)
		w.At(64*time.Second - 1)
		r.Rejected()
		w.At(64 * time.Second)
		r.Succeeds(2)
		r.Is(breaker.HalfOpen)
		r.Succeeds(1)
		r.Is(breaker.Closed)
	})
}

// From wherever it is, a circuit with a healthy dependency and traffic closes within one open period and its probes' time.
// K31.
func TestRecoveryFromAnywhere(t *testing.T) {
	breakertest.BothClocks(t, func(w *breakertest.World) {
		rng := rand.New(rand.NewPCG(1, 2))
		for range 50 {
			w.Start = w.Now()
			r := w.Circuit(breaker.WithSuccessThreshold(1+rng.IntN(3)), breaker.WithHalfOpenProbes(1+rng.IntN(3)))
			for range 30 {
				switch rng.IntN(9) {
				case 0, 1, 2:
					_ = r.Call(breakertest.ErrBoom)
				case 3:
					_ = r.Call(nil)
				case 4:
					r.Begin() // and never finish
				case 5:
					w.Add(time.Duration(rng.IntN(20)) * time.Second)
				case 6:
					r.C.OfferProbe()
				case 7:
					r.C.Trip(nil)
				case 8:
					w.Add(30 * time.Second)
				}
			}
			w.Add(30 * time.Second)
			for range 3 {
				_ = r.Call(nil)
			}
			r.Is(breaker.Closed)
		}
	})
}

// A probe that hung, ended its goroutine or was forgotten kept its slot for good.
func TestNoProbeKeepsItsSlotForGood(t *testing.T) {
	for name, lose := range map[string]func(*breakertest.Rig){
		"hung": func(r *breakertest.Rig) { r.Gate() },
		"goexit": func(r *breakertest.Rig) {
			_ = breakertest.InGoroutine(func() {
				_ = r.C.Run(context.Background(), func(context.Context) error { runtime.Goexit(); return nil })
			})
		},
		"panic": func(r *breakertest.Rig) {
			_ = breakertest.InGoroutine(func() { _ = r.C.Run(context.Background(), func(context.Context) error { panic("boom") }) })
		},
		"forgotten permit": func(r *breakertest.Rig) { _ = r.Acquire() },
		"ignored": func(r *breakertest.Rig) {
			_ = r.C.Run(context.Background(), func(context.Context) error { return fmt.Errorf("inner: %w", breaker.ErrOpen) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			breakertest.BothClocks(t, func(w *breakertest.World) {
				r := w.R0()
				r.Trip()
				for range 5 { // the n-th is as harmless as the first
					w.Add(10 * time.Second)
					lose(r)
				}
				w.Add(10 * time.Second)
				require.Zero(w, r.C.Snapshot().Probes)
				r.Succeeds(1)
				r.Is(breaker.Closed)
			})
		})
	}
}

// One number was both the cap on probes and the successes needed.
func TestProbeCapAndSuccessThresholdAreTwoSettings(t *testing.T) {
	for _, tc := range []struct{ slots, successes int }{{1, 5}, {5, 1}, {2, 3}, {3, 2}} {
		t.Run(fmt.Sprintf("%d slots, %d successes", tc.slots, tc.successes), func(t *testing.T) {
			breakertest.Everywhere(t, func(w *breakertest.World) {
				r := w.R0(breaker.WithHalfOpenProbes(tc.slots), breaker.WithSuccessThreshold(tc.successes))
				r.Trip()
				w.At(10 * time.Second)
				var gates []*breakertest.Gate
				for range tc.slots {
					gates = append(gates, r.Gate())
				}
				require.ErrorIs(w, r.Rejected(), breaker.ErrTooManyProbes)
				for n := 1; n <= tc.successes; n++ {
					r.Is(breaker.HalfOpen)
					if len(gates) == 0 {
						gates = append(gates, r.Gate())
					}
					gates[0].Finish(nil)
					gates = gates[1:]
				}
				r.Is(breaker.Closed)
			})
		})
	}
}

// After closing, all traffic came at once and broke what had just recovered.
func TestRampSparesWhatHasJustRecovered(t *testing.T) {
	breakertest.BothClocks(t, func(w *breakertest.World) {
		r := w.R0(breaker.WithRamp(10 * time.Second))
		r.Trip()
		w.At(10 * time.Second)
		r.Succeeds(1)
		r.Is(breaker.Closed)
		share := func(calls int) (admitted int) {
			for range calls {
				err := r.Call(nil)
				if err == nil {
					admitted++
					continue
				}
				require.ErrorIs(w, err, breaker.ErrOpen)
				var open *breaker.OpenError
				require.ErrorAs(w, err, &open)
				require.Equal(w, breaker.Closed, open.State)
				require.LessOrEqual(w, open.RetryAfter(), 10*time.Second)
			}
			return admitted
		}
		require.LessOrEqual(w, share(100), 1, "at the start")
		for percent := 10; percent < 100; percent += 10 {
			w.At(10*time.Second + time.Duration(percent)*100*time.Millisecond)
			require.InDelta(w, percent, share(100), 1)
		}
		w.At(20 * time.Second)
		require.Equal(w, 100, share(100), "at the end")
	})
	t.Run("failures in it open the circuit", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.R0(breaker.WithRamp(10 * time.Second))
			r.Trip()
			w.At(10 * time.Second)
			r.Succeeds(1)
			w.At(15 * time.Second)
			for range 10 {
				_ = r.Call(breakertest.ErrBoom)
			}
			r.Is(breaker.Open)
			w.At(25 * time.Second)
			r.Succeeds(1)
			r.C.Reset() // and a reset ramps nothing
			r.Succeeds(20)
		})
	})
}

// K12.
func TestFailedProbeReopensForAFullPeriod(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		r := w.Circuit()
		r.Trip()
		w.At(30 * time.Second)
		r.Succeeds(1)
		w.At(31 * time.Second)
		r.Fails(1)
		r.Is(breaker.Open)
		w.At(61*time.Second - 1)
		r.Rejected()
		r.Is(breaker.Open)
		w.At(61 * time.Second)
		r.Is(breaker.HalfOpen)
		r.Succeeds(1)
		r.Is(breaker.HalfOpen) // the success at 30s is forgotten
		r.Succeeds(1)
		r.Is(breaker.Closed)
	})
}

// K13.
func TestCountsStartAtZeroAfterClosing(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		r := w.Circuit()
		r.Trip()
		w.At(30 * time.Second)
		r.Succeeds(2)
		r.Is(breaker.Closed)
		require.Zero(w, r.C.Snapshot().Counts.Failures)
		require.Zero(w, r.C.Snapshot().ConsecutiveFailures)
		r.Fails(4)
		r.Is(breaker.Closed)
		r.Fails(1)
		r.Is(breaker.Open)
	})
}

// K14.
func TestFailedProbeReopensThoughTheWindowIsEmpty(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		r := w.Circuit(breaker.WithFailureWindow(60*time.Second), breaker.WithOpenTimeout(15*time.Second), breaker.WithSuccessThreshold(1))
		r.FailsAt(0, 15_000, 30_000, 45_000, 59_000)
		r.Is(breaker.Open)
		w.At(74 * time.Second)
		r.Fails(1)
		r.Is(breaker.Open)
		w.At(89*time.Second - 1)
		r.Rejected()
		w.At(89 * time.Second)
		r.Succeeds(1)
		r.Is(breaker.Closed)
	})
}

// A probe's failure counts in its half-open epoch, however late it comes, unless a probe that was admitted later has succeeded.
func TestLateFailureCountsInItsEpoch(t *testing.T) {
	for name, tt := range map[string]struct {
		before bool // another probe that was admitted before the late one succeeds
		same   bool // another that was admitted at the same instant does
		after  bool // another that was admitted later does
		want   breaker.State
	}{
		"alone":                                   {want: breaker.Open},
		"an earlier probe has succeeded":          {before: true, want: breaker.Open},
		"one of the same instant has succeeded":   {same: true, want: breaker.Open},
		"a later probe has succeeded":             {after: true, want: breaker.HalfOpen},
		"an earlier and a later one did":          {before: true, after: true, want: breaker.HalfOpen},
		"one of the same instant and a later did": {same: true, after: true, want: breaker.HalfOpen},
	} {
		t.Run(name, func(t *testing.T) {
			breakertest.Everywhere(t, func(w *breakertest.World) {
				r := w.R0(breaker.WithHalfOpenProbes(3), breaker.WithSuccessThreshold(4))
				r.Trip()
				w.At(10 * time.Second)
				if tt.before {
					r.Succeeds(1)
				}
				w.At(11 * time.Second)
				late := r.Gate()
				if tt.same {
					r.Succeeds(1)
				}
				if tt.after {
					w.At(12 * time.Second)
					r.Succeeds(1)
				}
				w.At(21 * time.Second) // its lease has ended
				late.Finish(breakertest.ErrBoom)
				r.Is(tt.want)
				r.Idle()
			})
		})
	}
}

// BR-69: whatever deadline callers have, a dependency that hangs has the circuit open for most of the time.
func TestADependencyThatHangsHasItOpen(t *testing.T) {
	for _, tt := range []struct {
		name     string
		deadline time.Duration // of the callers
		opts     []breaker.Option
		least    time.Duration // open within the hour
	}{
		{"deadlines of 5s", 5 * time.Second, nil, 3070 * time.Second},
		{"deadlines of 29s", 29 * time.Second, nil, 1800 * time.Second},
		{"deadlines of 31s", 31 * time.Second, nil, 1740 * time.Second},
		{"deadlines of 60s", time.Minute, nil, 1140 * time.Second},
		{"deadlines of 600s", 10 * time.Minute, nil, 120 * time.Second},
		{"a timeout of 40s, one probe, a growing period", time.Hour, []breaker.Option{breaker.WithTimeout(40 * time.Second),
			breaker.WithHalfOpenProbes(1), breaker.WithOpenBackoff(2, 10*time.Minute, 0)}, 3000 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				openings := 0
				var openSince time.Time
				open := time.Duration(0)
				b := breaker.Must(breaker.New[int]("b", append(tt.opts, breaker.WithHooks(breaker.Hooks{StateChange: func(tr breaker.Transition) {
					mu.Lock()
					defer mu.Unlock()
					if tr.To == breaker.Open {
						openings++
						openSince = tr.At
					}
					if tr.From == breaker.Open {
						open += tr.At.Sub(openSince)
					}
				}}))...))
				hang := func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, ctx.Err() }
				start := time.Now()
				var calls sync.WaitGroup
				for time.Since(start) < time.Hour {
					calls.Go(func() {
						ctx, cancel := context.WithTimeout(t.Context(), tt.deadline)
						defer cancel()
						_, _ = b.Do(ctx, hang)
					})
					time.Sleep(time.Second)
				}
				state := b.State()
				mu.Lock()
				if state == breaker.Open {
					open += time.Since(openSince)
				}
				t.Logf("%d openings, open for %v of 1h, %d calls hung", openings, open, b.Snapshot().Totals.Calls+uint64(b.Snapshot().InFlight))
				require.GreaterOrEqual(t, open, tt.least)
				require.Greater(t, openings, 1)
				mu.Unlock()
				calls.Wait()
			})
		})
	}
}

// BR-46: what a probe's function calls through the same circuit is part of the probe.
func TestACallWithinAProbePassesWithIt(t *testing.T) {
	for _, way := range breakertest.EveryWay {
		t.Run(way.Name, func(t *testing.T) {
			breakertest.Bubble(t, way, func(w *breakertest.World) {
				r := w.R0(breaker.WithSuccessThreshold(1))
				nested := func(ends error) error {
					return r.C.Run(w.Context(), func(ctx context.Context) error {
						for range 3 { // its rejection would be remembered
							if err := r.C.Run(ctx, func(context.Context) error { return ends }); errors.Is(err, breaker.ErrOpen) {
								return err
							}
						}
						return nil
					})
				}
				r.Trip()
				w.At(10 * time.Second)
				require.NoError(w, nested(breakertest.ErrBoom), "a nested failure decides nothing")
				r.Is(breaker.Closed)
				n := r.C.Snapshot().Totals
				require.Zero(w, n.Rejected)
				require.EqualValues(w, 3+3, n.Failures, "but it is counted")
				r.Idle()

				r.C.Trip(nil)
				w.Add(10 * time.Second)
				require.ErrorIs(w, r.C.Run(w.Context(), func(ctx context.Context) error {
					require.NoError(w, r.C.Run(ctx, func(context.Context) error { return nil }), "a nested success closes nothing")
					require.Equal(w, breaker.HalfOpen, r.C.State())
					require.ErrorIs(w, r.C.Run(w.Context(), func(context.Context) error { return nil }), breaker.ErrTooManyProbes, "another's call takes no part")
					r.C.SetMode(breaker.ForcedOpen)
					require.ErrorIs(w, r.C.Run(ctx, func(context.Context) error { return nil }), breaker.ErrOpen)
					r.C.SetMode(breaker.Auto)
					r.C.Trip(nil) // this stay is over
					require.ErrorIs(w, r.C.Run(ctx, func(context.Context) error { return nil }), breaker.ErrOpen)
					return breakertest.ErrBoom
				}), breakertest.ErrBoom)
				r.Is(breaker.Open)
				r.Idle()
			})
		})
	}
}
