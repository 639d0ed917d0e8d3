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
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// BC-01.
func TestFailedProbeReopensWhateverThePolicySays(t *testing.T) {
	for name, policy := range policies() {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(w *world) {
				r := w.r0(policy, breaker.WithSuccessThreshold(3), breaker.WithHalfOpenProbes(1))
				r.fail(10)
				r.state(breaker.Open)
				w.at(10 * time.Second) // any window is empty now
				r.fail(1)
				r.state(breaker.Open)
				for range 3 {
					r.rejected()
				}
				w.at(20*time.Second - 1)
				r.rejected()
				w.at(20 * time.Second)
				r.ok(3)
				r.state(breaker.Closed)
			})
		})
	}
}

// BC-01.
func TestSlowProbeIsAFailedProbe(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.r0(breaker.WithTrip(
			breaker.SlowCallRate(2*time.Second, 0.5, 100, breaker.LastCalls(100)),
			breaker.ConsecutiveFailures(3),
		), breaker.WithSuccessThreshold(2), breaker.WithIgnore(errClient))
		r.fail(3)
		w.at(10 * time.Second)
		slow := r.gate()
		w.at(12 * time.Second)
		slow.finish(nil) // its caller has the answer all the same
		r.state(breaker.Open)
		last := r.events.list()[2]
		require.Equal(w, breaker.ReasonProbeFailed, last.Reason)
		require.Error(w, last.Cause)
		totals := r.c.Snapshot().Totals
		require.EqualValues(w, 1, totals.Successes)
		require.EqualValues(w, 1, totals.Slow)
		w.at(22*time.Second - 1)
		r.rejected()
		w.at(22 * time.Second)
		fast := r.gate()
		w.at(24*time.Second - 1)
		fast.finish(nil)
		r.state(breaker.HalfOpen)
		if w.way.name != byPolicy.name {
			ignored := r.gate()
			w.add(5 * time.Second)
			ignored.finish(errClient) // slow, but no verdict
			r.state(breaker.HalfOpen)
		}
		r.ok(1)
		r.state(breaker.Closed)
	})
}

// BC-02.
func TestFailedProbeStartsAFullPeriod(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.r0()
		r.trip()
		w.at(10 * time.Second)
		r.fail(1)
		for _, at := range []time.Duration{10_001 * time.Millisecond, 15 * time.Second, 19_999 * time.Millisecond} {
			w.at(at)
			r.state(breaker.Open)
			require.Equal(w, 20*time.Second-at, r.rejected().RetryAfter())
			require.True(w, r.c.Snapshot().Until.Equal(w.start.Add(20*time.Second)))
			require.True(w, r.c.Snapshot().Since.Equal(w.start.Add(10*time.Second)))
		}
		w.at(20 * time.Second)
		r.ok(1)
	})
	t.Run("again and again", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			r.trip()
			for i := range 10 {
				w.at(time.Duration(i+1) * 10 * time.Second)
				r.fail(1)
				r.rejected()
			}
			require.Len(w, r.steps(), 21)
		})
	})
	t.Run("however late the probe came", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			r.trip()
			w.at(time.Hour)
			probe := r.gate()
			w.add(5 * time.Second)
			probe.finish(errBoom)
			w.add(10*time.Second - 1)
			r.rejected()
			w.add(1)
			r.ok(1)
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
		for how, closeIt := range map[string]func(*rig){
			"by a probe":        func(r *rig) { r.add(10 * time.Second); r.ok(1) },
			"by Reset":          func(r *rig) { r.c.Reset() },
			"by Reset when due": func(r *rig) { r.add(10 * time.Second); r.c.Reset() },
			"by a health check": func(r *rig) { r.c.OfferProbe(); r.ok(1) },
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				everywhere(t, func(w *world) {
					r := w.r0(policy)
					r.fail(3)
					r.state(breaker.Open)
					closeIt(r)
					r.state(breaker.Closed)
					require.Zero(w, r.c.Snapshot().Counts)
					require.Zero(w, r.c.Snapshot().ConsecutiveFailures)
					require.Empty(w, r.c.Snapshot().LastFailure)
					w.add(time.Second)
					r.fail(2)
					r.state(breaker.Closed)
					r.fail(1)
					r.state(breaker.Open)
				})
			})
		}
		t.Run(name+" Reset of a closed circuit", func(t *testing.T) {
			everywhere(t, func(w *world) {
				r := w.r0(policy)
				r.fail(2)
				pending := r.gate()
				r.c.Reset()
				require.Empty(w, r.steps(), "closed to closed is no transition")
				require.Zero(w, r.c.Snapshot().Counts)
				pending.finish(errBoom) // admitted before: void
				r.fail(2)
				r.state(breaker.Closed)
				r.fail(1)
				r.state(breaker.Open)
			})
		})
	}
	t.Run("successes are forgotten too, whatever happens in between", func(t *testing.T) {
		everywhere(t, func(w *world) {
			for name, meanwhile := range map[string]func(*rig){
				"reset":           func(r *rig) { r.c.Reset() },
				"trip and reset":  func(r *rig) { r.c.Trip(nil); r.c.Reset() },
				"shadow":          func(r *rig) { r.c.SetMode(breaker.Shadow); r.c.Reset(); r.c.SetMode(breaker.Auto) },
				"forced open":     func(r *rig) { r.c.SetMode(breaker.ForcedOpen); r.c.Reset(); r.c.SetMode(breaker.Auto) },
				"forced closed":   func(r *rig) { r.c.SetMode(breaker.ForcedClosed); r.c.Trip(nil); r.c.Reset(); r.c.SetMode(breaker.Auto) },
				"stays in shadow": func(r *rig) { r.c.SetMode(breaker.Shadow); r.c.Reset() },
				"a limit set":     func(r *rig) { require.NoError(r, r.c.Configure(breaker.WithMaxInFlight(9))); r.c.Reset() },
				"a limit set once": func(r *rig) {
					require.NoError(r, r.c.Configure(breaker.WithMaxInFlight(9)))
					r.c.Reset()
					require.NoError(r, r.c.Configure(breaker.WithMaxInFlight(0)))
				},
			} {
				for _, policy := range []breaker.Option{
					breaker.WithFailureThreshold(6),
					breaker.WithTrip(breaker.FailureRate(0.5, 6, breaker.LastCalls(100))),
					breaker.WithTrip(breaker.FailureRate(0.5, 6, breaker.Last(time.Minute))),
				} {
					r := w.r0(policy)
					r.ok(50)
					meanwhile(r)
					require.Zero(w, r.c.Snapshot().Counts, "%s, %v", name, r.c.Config().Trip)
					require.Zero(w, r.c.Snapshot().ConsecutiveSuccesses, name)
					r.fail(5)
					require.Equal(w, breaker.Closed, r.c.State(), name)
					r.fail(1)
					require.Equal(w, breaker.Open, r.c.State(), name)
				}
			}
		})
	})
}

// BC-08.
func TestProbeSuccessesInARowClose(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.r0(breaker.WithSuccessThreshold(3), breaker.WithHalfOpenProbes(1))
		r.trip()
		var states []breaker.State
		for _, step := range []struct {
			at  time.Duration
			err error
		}{{10, nil}, {10, nil}, {10, errBoom}, {20, nil}, {20, nil}, {20, nil}} {
			w.at(step.at * time.Second)
			require.Equal(w, step.err, r.call(step.err))
			states = append(states, r.c.State())
		}
		require.Equal(w, []breaker.State{
			breaker.HalfOpen, breaker.HalfOpen, breaker.Open,
			breaker.HalfOpen, breaker.HalfOpen, breaker.Closed,
		}, states)
	})
	t.Run("more probes than successes needed", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0(breaker.WithSuccessThreshold(1), breaker.WithHalfOpenProbes(3))
			r.trip()
			w.at(10 * time.Second)
			a, b, c := r.gate(), r.gate(), r.gate()
			b.finish(nil)
			r.state(breaker.Closed)
			a.finish(errBoom) // of an epoch that is over
			c.finish(errBoom)
			r.state(breaker.Closed)
			require.Zero(w, r.c.Snapshot().ConsecutiveFailures)
			require.EqualValues(w, 2, r.c.Snapshot().Totals.Late)
		})
	})
}

// BC-27, K29.
func TestHungProbeDoesNotLockTheCircuit(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.r0()
		r.trip()
		w.at(10 * time.Second)
		r.gate() // A, never finished
		for _, at := range []time.Duration{10_100 * time.Millisecond, 20*time.Second - 1} {
			w.at(at)
			e := r.rejected()
			require.ErrorIs(w, e, breaker.ErrTooManyProbes)
			require.Equal(w, 20*time.Second-at, e.RetryAfter(), "what is left of the lease")
		}
		w.at(20 * time.Second)
		require.Zero(w, r.c.Snapshot().Probes)
		require.True(w, r.c.Ready())
		b := r.gate()
		w.at(20_100 * time.Millisecond)
		r.rejected()
		require.EqualValues(w, 1, r.c.Snapshot().Probes)
		b.finish(nil)
		r.state(breaker.Closed)
		require.EqualValues(w, 1, r.c.Snapshot().InFlight, "A is still out")
	})
	t.Run("each new probe hangs too", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			r.trip()
			var hung []*gate
			for i := 1; i <= 10; i++ {
				w.at(time.Duration(i) * 10 * time.Second)
				hung = append(hung, r.gate())
				r.rejected()
			}
			for _, g := range hung[:9] {
				g.finish(errBoom) // each is older than its lease
				r.state(breaker.HalfOpen)
				r.rejected()
			}
			require.Zero(w, r.c.Snapshot().Totals.Late, "their epoch is still the present one")
			hung[9].finish(nil)
			r.state(breaker.Closed)
			r.idle()
		})
	})
	t.Run("a late end frees nobody else's slot", func(t *testing.T) {
		for name, end := range map[string]func(*gate, context.CancelFunc){
			"failure": func(g *gate, _ context.CancelFunc) { g.finish(errBoom) },
			"ignored": func(g *gate, _ context.CancelFunc) { g.finish(errClient) },
			"cancel":  func(g *gate, cancel context.CancelFunc) { cancel(); g.finish(context.Canceled) },
		} {
			t.Run(name, func(t *testing.T) {
				bothClocks(t, func(w *world) {
					r := w.r0(breaker.WithHalfOpenProbes(2), breaker.WithSuccessThreshold(2), breaker.WithIgnore(errClient))
					r.trip()
					w.at(10 * time.Second)
					ctx, cancel := context.WithCancel(w.Context())
					defer cancel()
					old := r.gateCtx(ctx)
					w.at(15 * time.Second)
					r.gate()
					w.at(20 * time.Second) // old's lease has ended, the other's not
					third := r.gate()
					require.EqualValues(w, 2, r.c.Snapshot().Probes)
					end(old, cancel)
					require.EqualValues(w, 2, r.c.Snapshot().Probes)
					r.rejected()
					third.finish(nil)
					require.EqualValues(w, 1, r.c.Snapshot().Probes)
					r.ok(1)
					r.state(breaker.Closed)
				})
			})
		}
	})
	t.Run("a hung probe and a limit of one call in flight", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0(breaker.WithMaxInFlight(2))
			r.trip()
			w.at(10 * time.Second)
			r.gate()
			w.at(20 * time.Second)
			r.ok(1)
			r.state(breaker.Closed)
		})
	})
	t.Run("many leases that end together", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0(breaker.WithHalfOpenProbes(5), breaker.WithSuccessThreshold(9))
			r.trip()
			w.at(10 * time.Second)
			var gates []*gate
			for range 5 {
				gates = append(gates, r.gate())
			}
			gates[2].finish(nil)
			gates[4].finish(nil)
			require.EqualValues(w, 3, r.c.Snapshot().Probes)
			w.at(20 * time.Second)
			require.Zero(w, r.c.Snapshot().Probes)
			for range 5 {
				r.gate()
			}
			r.rejected()
		})
	})
}

// BC-34.
func TestExactlyAsManyProbesAsSlots(t *testing.T) {
	for name, settings := range map[string]struct{ slots, rounds int }{"two": {2, 1000}, "one": {1, 200}, "five": {5, 200}} {
		t.Run(name, func(t *testing.T) {
			guard(t, 2*patience, func() {
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
	bubble(t, byDo, func(w *world) {
		r := w.r0(breaker.WithProbeLease(time.Hour))
		r.trip()
		r.ran.Store(0)
		w.at(10 * time.Second)
		var calls sync.WaitGroup
		var rejected atomic.Int64
		for w.elapsed() < 39*time.Second {
			calls.Go(func() {
				_, err := r.b.Do(context.Background(), func(context.Context) (int, error) {
					r.ran.Add(1)
					<-time.After(30 * time.Second)
					return 0, errBoom
				})
				if errors.Is(err, breaker.ErrTooManyProbes) {
					rejected.Add(1)
				}
			})
			w.add(100 * time.Millisecond)
			require.EqualValues(w, 1, r.ran.Load())
		}
		require.EqualValues(w, 289, rejected.Load())
		calls.Wait()
		r.state(breaker.Open)
		require.Equal(w, "half-open>open at 40s: probe failed", r.steps()[2])
	})
	t.Run("one more for each lease", func(t *testing.T) {
		bubble(t, byDo, func(w *world) {
			r := w.r0()
			r.trip()
			r.ran.Store(0)
			w.at(10 * time.Second)
			for w.elapsed() < 60*time.Second {
				r.begin()
				w.add(time.Second)
			}
			require.EqualValues(w, 5, r.ran.Load())
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
			bothClocks(t, func(w *world) {
				inconclusive := errPoolExhausted
				if opts == nil {
					inconclusive = fmt.Errorf("inner: %w", breaker.ErrTooManyInFlight)
				}
				r := w.r0(append(opts, breaker.WithOpenBackoff(2, time.Hour, 0))...)
				r.trip()
				w.at(10 * time.Second)
				for range 3 {
					r.failWith(inconclusive)
					r.state(breaker.HalfOpen)
					require.Zero(w, r.c.Snapshot().Probes)
				}
				r.ok(1)
				r.state(breaker.Closed)
			})
		})
	}
	t.Run("an inner circuit that is open", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			outer, inner := w.r0(), w.r0()
			inner.trip()
			for range 10 {
				err := outer.c.Run(w.Context(), func(ctx context.Context) error { return inner.c.Run(ctx, func(context.Context) error { return nil }) })
				require.ErrorIs(w, err, breaker.ErrOpen)
			}
			outer.state(breaker.Closed)
			require.EqualValues(w, 10, outer.c.Snapshot().Totals.Ignored)
			require.Zero(w, outer.c.Snapshot().Totals.Rejected)
		})
	})
}

// K09.
func TestHalfOpenAdmitsProbesUpToItsSlots(t *testing.T) {
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

// K10.
func TestSuccessThresholdCloses(t *testing.T) {
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

// K11.
func TestProbeSuccessesCountFromZero(t *testing.T) {
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

// K29.
func TestProbeThatNeverReturnsDoesNotBlockRecovery(t *testing.T) {
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
}

// E2.
func TestOneFailedProbeOfSeveralReopens(t *testing.T) {
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
}

// From wherever it is, a circuit with a healthy dependency and traffic closes within one open period and its probes' time.
// K31.
func TestRecoveryFromAnywhere(t *testing.T) {
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

// A probe that hung, ended its goroutine or was forgotten kept its slot for good.
func TestNoProbeKeepsItsSlotForGood(t *testing.T) {
	for name, lose := range map[string]func(*rig){
		"hung": func(r *rig) { r.gate() },
		"goexit": func(r *rig) {
			_ = inGoroutine(func() {
				_ = r.c.Run(context.Background(), func(context.Context) error { runtime.Goexit(); return nil })
			})
		},
		"panic": func(r *rig) {
			_ = inGoroutine(func() { _ = r.c.Run(context.Background(), func(context.Context) error { panic("boom") }) })
		},
		"forgotten permit": func(r *rig) { _ = r.acquire() },
		"ignored": func(r *rig) {
			_ = r.c.Run(context.Background(), func(context.Context) error { return fmt.Errorf("inner: %w", breaker.ErrOpen) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			bothClocks(t, func(w *world) {
				r := w.r0()
				r.trip()
				for range 5 { // the n-th is as harmless as the first
					w.add(10 * time.Second)
					lose(r)
				}
				w.add(10 * time.Second)
				require.Zero(w, r.c.Snapshot().Probes)
				r.ok(1)
				r.state(breaker.Closed)
			})
		})
	}
}

// One number was both the cap on probes and the successes needed.
func TestProbeCapAndSuccessThresholdAreTwoSettings(t *testing.T) {
	for _, tc := range []struct{ slots, successes int }{{1, 5}, {5, 1}, {2, 3}, {3, 2}} {
		t.Run(fmt.Sprintf("%d slots, %d successes", tc.slots, tc.successes), func(t *testing.T) {
			everywhere(t, func(w *world) {
				r := w.r0(breaker.WithHalfOpenProbes(tc.slots), breaker.WithSuccessThreshold(tc.successes))
				r.trip()
				w.at(10 * time.Second)
				var gates []*gate
				for range tc.slots {
					gates = append(gates, r.gate())
				}
				require.ErrorIs(w, r.rejected(), breaker.ErrTooManyProbes)
				for n := 1; n <= tc.successes; n++ {
					r.state(breaker.HalfOpen)
					if len(gates) == 0 {
						gates = append(gates, r.gate())
					}
					gates[0].finish(nil)
					gates = gates[1:]
				}
				r.state(breaker.Closed)
			})
		})
	}
}

// After closing, all traffic came at once and broke what had just recovered.
func TestRampSparesWhatHasJustRecovered(t *testing.T) {
	bothClocks(t, func(w *world) {
		r := w.r0(breaker.WithRamp(10 * time.Second))
		r.trip()
		w.at(10 * time.Second)
		r.ok(1)
		r.state(breaker.Closed)
		share := func(calls int) (admitted int) {
			for range calls {
				err := r.call(nil)
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
			w.at(10*time.Second + time.Duration(percent)*100*time.Millisecond)
			require.InDelta(w, percent, share(100), 1)
		}
		w.at(20 * time.Second)
		require.Equal(w, 100, share(100), "at the end")
	})
	t.Run("failures in it open the circuit", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0(breaker.WithRamp(10 * time.Second))
			r.trip()
			w.at(10 * time.Second)
			r.ok(1)
			w.at(15 * time.Second)
			for range 10 {
				_ = r.call(errBoom)
			}
			r.state(breaker.Open)
			w.at(25 * time.Second)
			r.ok(1)
			r.c.Reset() // and a reset ramps nothing
			r.ok(20)
		})
	})
}

// K12.
func TestFailedProbeReopensForAFullPeriod(t *testing.T) {
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

// K13.
func TestCountsStartAtZeroAfterClosing(t *testing.T) {
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

// K14.
func TestFailedProbeReopensThoughTheWindowIsEmpty(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.circuit(breaker.WithFailureWindow(60*time.Second), breaker.WithOpenTimeout(15*time.Second), breaker.WithSuccessThreshold(1))
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
