package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/breakertest"
	"github.com/breakerkit/breaker/internal/testenv"
)

// BC-07, K04.
func TestConsecutiveMeansAnUnbrokenRun(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		r := w.R0()
		for i := range 50 {
			w.At(time.Duration(i) * time.Hour)
			r.Fails(1)
			require.EqualValues(w, 1, r.C.Snapshot().ConsecutiveFailures)
			r.Succeeds(1)
			require.Zero(w, r.C.Snapshot().ConsecutiveFailures)
		}
		r.Is(breaker.Closed)
		require.Empty(w, r.Steps())
	})
	t.Run("one short of the threshold each time", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.R0()
			for range 50 {
				r.Fails(2)
				r.Succeeds(1)
			}
			r.Is(breaker.Closed)
			r.Fails(3)
			r.Is(breaker.Open)
		})
	})
	t.Run("an answer of any kind breaks it, whenever its call began", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.R0()
			slow := r.Gate()
			r.Fails(2)
			slow.Finish(nil)
			r.Fails(2)
			r.Is(breaker.Closed)
		})
	})
}

// BC-14.
func TestSparseFailuresDoNotOpen(t *testing.T) {
	for name, policy := range map[string]breaker.Option{
		"failure window": breaker.WithFailureWindow(5 * time.Second),
		"failure count":  breaker.WithTrip(breaker.FailureCount(3, 5*time.Second)),
		"user's own": breaker.WithTrip(breaker.TripWhen(breaker.Last(5*time.Second), func(c breaker.Counts) bool {
			return c.Failures >= 3
		})),
		"rate": breaker.WithTrip(breaker.FailureRate(1, 3, breaker.Last(5*time.Second))),
	} {
		t.Run(name, func(t *testing.T) {
			breakertest.Everywhere(t, func(w *breakertest.World) {
				r := w.R0(policy)
				r.FailsAt(0, 5000, 6000)
				r.Is(breaker.Closed)
				r.FailsAt(6500)
				r.Is(breaker.Open)
			})
			breakertest.Everywhere(t, func(w *breakertest.World) {
				r := w.R0(policy)
				r.FailsAt(every(2500, 40)...) // never more than two within 5s
				r.Is(breaker.Closed)
			})
		})
	}
}

// BC-17.
func TestBurstAcrossABoundaryIsOneBurst(t *testing.T) {
	policies := map[string]breaker.Option{
		"rate": breaker.WithTrip(breaker.FailureRate(0.5, 20, breaker.Last(10*time.Second))),
		"user's own": breaker.WithTrip(breaker.TripWhen(breaker.Last(10*time.Second), func(c breaker.Counts) bool {
			return c.Successes+c.Failures >= 20 && c.Rate() >= 0.5
		})),
	}
	for name, policy := range policies {
		t.Run(name+": ten percent is not half", func(t *testing.T) {
			breakertest.BothClocks(t, func(w *breakertest.World) {
				r := w.R0(policy)
				for at := time.Second; at <= 10*time.Second; at += 100 * time.Millisecond {
					w.At(at)
					r.Succeeds(1)
				}
				for i := range 10 {
					w.At(10_500*time.Millisecond + time.Duration(i)*100*time.Millisecond)
					r.Fails(1)
				}
				r.Is(breaker.Closed)
			})
		})
		for _, shift := range []time.Duration{0, 1, 333 * time.Millisecond, time.Second, 4900 * time.Millisecond} {
			t.Run(fmt.Sprintf("%s: ten and ten, shifted by %v", name, shift), func(t *testing.T) {
				breakertest.BothClocks(t, func(w *breakertest.World) {
					r := w.R0(policy)
					for i := range 20 {
						r.Is(breaker.Closed)
						at := 9*time.Second + time.Duration(i)*100*time.Millisecond
						if i >= 10 {
							at += 100 * time.Millisecond
						}
						w.At(at + shift)
						r.Fails(1)
					}
					r.Is(breaker.Open)
				})
			})
		}
	}
}

// rateModel is the plainest thing that a failure rate over time can be.
type rateModel struct {
	calls []modelCall
}

type modelCall struct {
	at     time.Duration
	failed bool
}

func (m *rateModel) add(at time.Duration, failed bool) {
	m.calls = append(m.calls, modelCall{at, failed})
}

// trips says whether, of the calls younger than last or of the latest n, there are least and the share is reached.
func (m *rateModel) trips(now, last time.Duration, n, least int, percent int) bool {
	var total, failed int
	for i, c := range m.calls {
		if last > 0 && c.at <= now-last || n > 0 && i < len(m.calls)-n {
			continue
		}
		total++
		if c.failed {
			failed++
		}
	}
	return total >= least && failed*100 >= percent*total
}

// The windows against a model that keeps everything: the same verdict after every call.
// BC-17.
func TestWindowsAgreeWithAPlainModel(t *testing.T) {
	for name, timed := range map[string]bool{"in time": true, "of calls": false} {
		t.Run(name, func(t *testing.T) {
			breakertest.Guard(t, 2*breakertest.Patience, func() {
				rapid.Check(t, func(t *rapid.T) {
					clk := &handClock{}
					var (
						percent = rapid.IntRange(1, 100).Draw(t, "percent")
						size    = rapid.IntRange(1, 40).Draw(t, "size")
						least   = rapid.IntRange(1, size).Draw(t, "least")
						window  = breaker.LastCalls(size)
						last, n = time.Duration(0), size
					)
					if timed {
						last, n = time.Duration(size)*time.Second, 0
						window = breaker.Last(last)
					}
					c, err := breaker.NewCircuit("test", breaker.WithClock(clk),
						breaker.WithTrip(breaker.FailureRate(float64(percent)/100, least, window)))
					if err != nil {
						t.Fatal(err)
					}
					var model rateModel
					now := time.Duration(0)
					for i := range 100 {
						step := time.Duration(rapid.SampledFrom([]int{0, 0, 0, 1, 500, 1000, 3000, 20000}).Draw(t, "step")) * time.Millisecond
						if step > 0 && timed {
							now += step
							clk.ns.Store(int64(now))
						}
						failed := rapid.Bool().Draw(t, "failed")
						err := error(nil)
						if failed {
							err = breakertest.ErrBoom
						}
						_ = c.Run(context.Background(), func(context.Context) error { return err })
						model.add(now, failed)
						want := breaker.Closed
						if model.trips(now, last, n, least, percent) {
							want = breaker.Open
						}
						if got := c.State(); got != want {
							t.Fatalf("after call %d (failed: %v) at %v: %v, want %v", i, failed, now, got, want)
						}
						if want == breaker.Open {
							c.Reset()
							model = rateModel{}
						}
					}
				})
			})
		})
	}
}

// BC-19.
func TestAtTheThresholdTrips(t *testing.T) {
	for name, window := range map[string]breaker.Window{"calls": breaker.LastCalls(100), "time": breaker.Last(time.Minute)} {
		t.Run(name, func(t *testing.T) {
			breakertest.BothClocks(t, func(w *breakertest.World) {
				for p := 1; p <= 100; p++ {
					for failures, want := range map[int]breaker.State{p: breaker.Open, p - 1: breaker.Closed} {
						r := w.R0(breaker.WithTrip(breaker.FailureRate(float64(p)/100, 100, window)))
						r.Succeeds(100 - failures)
						r.Fails(failures)
						require.Equal(w, want, r.C.State(), "%d%% with %d failures of 100", p, failures)
					}
				}
			})
		})
		t.Run(name+", failures first", func(t *testing.T) {
			breakertest.BothClocks(t, func(w *breakertest.World) {
				for p := 1; p <= 100; p++ {
					for failures, want := range map[int]breaker.State{p: breaker.Open, p - 1: breaker.Closed} {
						r := w.R0(breaker.WithTrip(breaker.FailureRate(float64(p)/100, 100, window)))
						r.Fails(failures)
						if failures < 100 {
							r.Is(breaker.Closed) // fewer than the minimum
						}
						r.Succeeds(100 - failures)
						require.Equal(w, want, r.C.State(), "%d%% with %d failures of 100", p, failures)
					}
				}
			})
		})
	}
	t.Run("slow calls", func(t *testing.T) {
		breakertest.BothClocks(t, func(w *breakertest.World) {
			for slow, want := range map[int]breaker.State{57: breaker.Open, 56: breaker.Closed} {
				r := w.R0(breaker.WithTrip(breaker.SlowCallRate(time.Second, 0.57, 100, breaker.LastCalls(100))))
				r.Succeeds(100 - slow)
				var gates []*breakertest.Gate
				for range slow {
					gates = append(gates, r.Gate())
				}
				w.Add(time.Second) // that long, or longer
				for _, g := range gates {
					r.Is(breaker.Closed)
					g.Finish(nil)
				}
				r.Is(want)
				require.EqualValues(w, slow, r.C.Snapshot().Totals.Slow)
				require.Zero(w, r.C.Snapshot().Totals.Failures)
			}
		})
	})
}

// BC-20.
func TestOldSuccessesDoNotHideAnOutage(t *testing.T) {
	t.Run("a quiet time after many successes does not blunt it", func(t *testing.T) {
		for _, quiet := range []time.Duration{0, 50 * time.Millisecond, time.Second, 9 * time.Second, 10 * time.Second, 100 * time.Second, time.Hour} {
			for _, before := range []int{10, 64, 100, 1000, 1007, 20_000} {
				t.Run(fmt.Sprintf("%d, %v", before, quiet), func(t *testing.T) {
					breakertest.BothClocks(t, func(w *breakertest.World) {
						const window = 10 * time.Second
						r := w.R0(breaker.WithTrip(breaker.FailureRate(0.5, 20, breaker.Last(window))))
						r.Succeeds(before)
						w.Add(quiet)
						needed := 20 // when the successes have left the window
						if quiet < window {
							needed = max(before, 20-before)
						}
						for range needed - 1 {
							r.Fails(1)
							require.Equal(w, breaker.Closed, r.C.State())
						}
						r.Fails(1)
						require.Equal(w, breaker.Open, r.C.State())
					})
				})
			}
		}
	})
	t.Run("successes that trickle are filed at their time", func(t *testing.T) {
		breakertest.BothClocks(t, func(w *breakertest.World) {
			r := w.R0(breaker.WithTrip(breaker.FailureRate(0.5, 20, breaker.Last(10*time.Second))))
			r.Succeeds(1000) // a burst, after which a busy circuit reads its clock less often
			for range 15 {
				w.Add(100 * time.Millisecond)
				r.Succeeds(1)
			}
			w.At(10 * time.Second) // the burst has left, the trickle has not
			r.Fails(14)
			r.Is(breaker.Closed)
			r.Fails(1)
			r.Is(breaker.Open)
		})
	})
}

// BC-22.
func TestMinimumAboveTheWindowIsRefused(t *testing.T) {
	for _, trip := range []breaker.TripCondition{
		breaker.FailureRate(0.5, 10, breaker.LastCalls(5)),
		breaker.SlowCallRate(time.Second, 0.5, 10, breaker.LastCalls(5)),
	} {
		_, err := breaker.NewCircuit("test", breaker.WithTrip(trip))
		require.ErrorContains(t, err, "MinCalls")
		require.ErrorContains(t, err, "LastCalls")
		require.ErrorContains(t, err, "10")
		require.ErrorContains(t, err, "5")
	}
	t.Run("a minimum below the window does not wait for it to fill", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			for _, window := range []breaker.Window{breaker.LastCalls(5), breaker.LastCalls(100), breaker.LastCalls(1 << 24), breaker.Last(time.Hour)} {
				r := w.R0(breaker.WithTrip(breaker.FailureRate(0.5, 5, window)))
				r.Fails(4)
				r.Is(breaker.Closed)
				r.Fails(1)
				r.Is(breaker.Open)
			}
		})
	})
}

// BC-56.
func TestSuccessBetweenThresholdAndOpening(t *testing.T) {
	breakertest.Guard(t, breakertest.Patience, func() {
		for range 2000 {
			rec := breakertest.NewRecorder()
			c := breaker.Must(breaker.NewCircuit("test", breaker.WithFailureThreshold(3), breaker.WithHooks(rec.Hooks())))
			call := func(err error) { _ = c.Run(context.Background(), func(context.Context) error { return err }) }
			call(breakertest.ErrBoom)
			call(breakertest.ErrBoom)
			var race sync.WaitGroup
			release := make(chan struct{})
			race.Go(func() { <-release; call(breakertest.ErrBoom) })
			race.Go(func() { <-release; call(nil) })
			close(release)
			race.Wait()
			s := c.Snapshot()
			switch s.State {
			case breaker.Open: // the failure was first, or the success was rejected
				require.Len(t, rec.List(), 1)
				require.EqualValues(t, 3, rec.List()[0].Counts.ConsecutiveFailures)
			case breaker.Closed: // the success was first
				require.Empty(t, rec.List())
				require.LessOrEqual(t, s.ConsecutiveFailures, uint64(1))
			default:
				t.Fatalf("%v", s.State)
			}
		}
	})
}

// BC-56.
func TestVerdictOfAnEarlierTimeIsVoid(t *testing.T) {
	breakertest.BothClocks(t, func(w *breakertest.World) {
		var r *breakertest.Rig
		verdicts := 0
		r = w.R0(breaker.WithTrip(breaker.TripWhen(breaker.LastCalls(10), func(c breaker.Counts) bool {
			verdicts++
			if c.Failures == 2 {
				r.C.Reset() // the stay that the verdict is about has ended
				return true
			}
			return false
		})))
		r.Fails(2)
		r.Is(breaker.Closed)
		require.Equal(w, 2, verdicts)
		require.Empty(w, r.Steps())
		require.Zero(w, r.C.Snapshot().Counts)
	})
	t.Run("while it is still out", func(t *testing.T) {
		breakertest.BothClocks(t, func(w *breakertest.World) {
			deciding, decide := make(chan struct{}), make(chan struct{})
			var once sync.Once
			r := w.R0(breaker.WithTrip(breaker.TripWhen(breaker.LastCalls(10), func(breaker.Counts) bool {
				wait := false
				once.Do(func() { wait = true })
				if wait {
					close(deciding)
					<-decide
				}
				return wait
			})))
			var deciding1 sync.WaitGroup
			deciding1.Go(func() { _ = r.C.Run(context.Background(), func(context.Context) error { return breakertest.ErrBoom }) })
			<-deciding
			r.C.Trip(nil)
			r.C.OfferProbe()
			r.Succeeds(1)
			r.Is(breaker.Closed)
			close(decide)
			deciding1.Wait()
			r.Is(breaker.Closed)
			require.Len(w, r.Steps(), 3)
		})
	})
	t.Run("its counts hold the call that it is asked after", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			if w.Way.Name == breakertest.ByPolicy.Name {
				return
			}
			var got []breaker.Counts
			r := w.R0(breaker.WithIgnore(breakertest.ErrClient), breaker.WithTrip(
				breaker.TripWhen(breaker.LastCalls(3), func(breaker.Counts) bool { panic("the first of two") }),
				breaker.TripWhen(breaker.LastCalls(3), func(c breaker.Counts) bool { got = append(got, c); return c.ConsecutiveFailures == 3 }),
			))
			r.Succeeds(2)
			r.Fails(1)
			r.FailsWith(breakertest.ErrClient)
			r.Fails(1)
			r.Is(breaker.Closed)
			r.Fails(1)
			r.Is(breaker.Open)
			require.Equal(w, []breaker.Counts{
				{Successes: 2, Failures: 1, ConsecutiveFailures: 1},
				{Successes: 1, Failures: 2, Ignored: 1, ConsecutiveFailures: 2},
				{Failures: 3, Ignored: 1, ConsecutiveFailures: 3},
			}, got)
		})
	})
}

// A TripWhen is asked after each failure and each slow call, and after nothing else.
func TestTripWhenIsAskedAfterFailuresAndSlowCallsOnly(t *testing.T) {
	for name, window := range map[string]breaker.Window{"LastCalls": breaker.LastCalls(100), "Last": breaker.Last(time.Minute)} {
		t.Run(name, func(t *testing.T) {
			breakertest.BothClocks(t, func(w *breakertest.World) {
				var asked []breaker.Counts
				ask := breaker.TripWhen(window, func(n breaker.Counts) bool { asked = append(asked, n); return false })
				r := w.Circuit(breaker.WithTrip(ask, breaker.SlowCallRate(time.Second, 1, 100, window)),
					breaker.WithIgnore(breakertest.ErrClient), breaker.WithAnswered(errMdlAnswered))
				slow := func(err error) {
					g := r.Gate()
					w.Add(time.Second)
					g.Finish(err)
				}
				r.Succeeds(3)
				r.FailsWith(errMdlAnswered)
				r.FailsWith(breakertest.ErrClient)
				slow(breakertest.ErrClient)
				require.Empty(w, asked)

				r.Fails(1)
				slow(nil)
				slow(errMdlAnswered)
				slow(breakertest.ErrBoom)
				r.Succeeds(1)
				require.Equal(w, []breaker.Counts{
					{Successes: 4, Failures: 1, Ignored: 2, ConsecutiveFailures: 1},
					{Successes: 5, Failures: 1, Ignored: 2, Slow: 1, ConsecutiveSuccesses: 1},
					{Successes: 6, Failures: 1, Ignored: 2, Slow: 2, ConsecutiveSuccesses: 2},
					{Successes: 6, Failures: 2, Ignored: 2, Slow: 3, ConsecutiveFailures: 1},
				}, asked)
			})
		})
	}
}

// Nothing but the failure that follows asks about successes that took no lock: it finds them all, whatever the window.
func TestTripWhenSeesTheSuccessesThatItWasNotAskedAfter(t *testing.T) {
	for name, window := range map[string]breaker.Window{"LastCalls": breaker.LastCalls(100_000), "Last": breaker.Last(time.Hour)} {
		for _, n := range []int{1, 100, 5_000} { // enough for the sampling of the clock
			t.Run(fmt.Sprintf("%s, %d", name, n), func(t *testing.T) {
				var got breaker.Counts
				c := breaker.Must(breaker.NewCircuit("counted", breaker.WithTrip(breaker.TripWhen(window, func(n breaker.Counts) bool { got = n; return true }))))
				for range n {
					_ = c.Run(t.Context(), func(context.Context) error { return nil })
				}
				require.Equal(t, breaker.Closed, c.State())
				_ = c.Run(t.Context(), func(context.Context) error { return breakertest.ErrBoom })
				require.Equal(t, breaker.Counts{Successes: uint64(n), Failures: 1, ConsecutiveFailures: 1}, got)
				require.Equal(t, breaker.Open, c.State())
			})
		}
	}
}

// K01.
func TestNewCircuitIsClosedAndPassesEverything(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		r := w.Circuit()
		r.Is(breaker.Closed)
		r.Succeeds(1000)
		r.Is(breaker.Closed)
		require.EqualValues(w, 1000, r.Ran.Load())
		require.Empty(w, r.Steps())
		require.EqualValues(w, 1000, r.C.Snapshot().Totals.Successes)
		r.Idle()
	})
}

// K02.
func TestThresholdIsReachedNotExceeded(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		r := w.Circuit()
		w.At(7 * time.Second)
		r.Fails(4)
		r.Is(breaker.Closed)
		require.Empty(w, r.Steps())
		r.Fails(1)
		r.Is(breaker.Open)
		require.Equal(w, []string{"closed>open at 7s: threshold reached"}, r.Steps())
	})
	t.Run("any threshold", func(t *testing.T) {
		breakertest.BothClocks(t, func(w *breakertest.World) {
			for _, n := range []int{1, 2, 3, 7, 100} {
				r := w.Circuit(breaker.WithFailureThreshold(n))
				r.Fails(n - 1)
				r.Is(breaker.Closed)
				r.Fails(1)
				r.Is(breaker.Open)
			}
		})
	})
}

// K05.
func TestFailureWindowIsExact(t *testing.T) {
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
					breakertest.Everywhere(t, func(w *breakertest.World) {
						r := w.Circuit(policy)
						last := len(tc.at) - 1
						r.FailsAt(tc.at[:last]...)
						r.Is(breaker.Closed)
						r.FailsAt(tc.at[last])
						r.Is(tc.want)
					})
				})
			}
		})
	}
	t.Run("a success ends the run but not the count", func(t *testing.T) {
		for name, want := range map[string]breaker.State{"WithFailureWindow": breaker.Closed, "FailureCount": breaker.Open} {
			breakertest.Everywhere(t, func(w *breakertest.World) {
				r := w.Circuit(policies[name])
				r.FailsAt(0, 15_000)
				r.Succeeds(1)
				r.FailsAt(30_000, 45_000, 59_999)
				r.Is(want)
			})
		}
	})
	t.Run("a nanosecond decides", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			in, out := w.Circuit(policies["WithFailureWindow"]), w.Circuit(policies["WithFailureWindow"])
			in.Fails(4)
			out.Fails(4)
			w.At(minute - 1)
			in.Fails(1)
			in.Is(breaker.Open)
			w.At(minute)
			out.Fails(1)
			out.Is(breaker.Closed)
			require.NoError(w, out.C.Sync(context.Background())) // with a store, another circuit of the name may have failed
			require.EqualValues(w, 1, out.C.Snapshot().ConsecutiveFailures, "only the young failure counts")
		})
	})
}

// K06.
func TestWithoutWindowSpacingDoesNotMatter(t *testing.T) {
	policies := map[string]breaker.Option{
		"default":             breaker.WithFailureThreshold(5),
		"WithFailureWindow 0": breaker.WithFailureWindow(0),
		"ConsecutiveFailures": breaker.WithTrip(breaker.ConsecutiveFailures(5)),
		"rate of last 5":      breaker.WithTrip(breaker.FailureRate(1, 5, breaker.LastCalls(5))),
		"beside windows": breaker.WithTrip(breaker.ConsecutiveFailures(5),
			breaker.FailureRate(1, 100, breaker.Last(time.Second)), breaker.FailureCount(100, time.Second)),
	}
	for name, policy := range policies {
		t.Run(name, func(t *testing.T) {
			breakertest.Everywhere(t, func(w *breakertest.World) {
				r := w.Circuit(policy)
				const hour = 3_600_000
				r.FailsAt(0, hour, 2*hour, 3*hour)
				r.Is(breaker.Closed)
				r.FailsAt(4 * hour)
				r.Is(breaker.Open)
			})
		})
	}
}

// K25.
func TestOneTransitionPerCrossing(t *testing.T) {
	for name, opts := range map[string][]breaker.Option{
		"run":     nil,
		"windows": {breaker.WithTrip(breaker.FailureRate(0.5, 5, breaker.Last(time.Minute)), breaker.FailureCount(5, time.Minute))},
	} {
		t.Run(name, func(t *testing.T) {
			breakertest.Everywhere(t, func(w *breakertest.World) {
				r := w.Circuit(opts...)
				gates := make([]*breakertest.Gate, 200)
				for i := range gates {
					gates[i] = r.Gate()
				}
				var all sync.WaitGroup
				for _, g := range gates {
					all.Go(func() { g.Finish(breakertest.ErrBoom) })
				}
				all.Wait()
				r.Is(breaker.Open)
				require.Equal(w, []string{"closed>open at 0s: threshold reached"}, r.Steps())
				require.EqualValues(w, 195, r.C.Snapshot().Totals.Late)
			})
		})
	}
	t.Run("closing", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.Circuit(breaker.WithSuccessThreshold(5), breaker.WithHalfOpenProbes(50))
			r.Trip()
			w.At(30 * time.Second)
			gates := make([]*breakertest.Gate, 50)
			for i := range gates {
				gates[i] = r.Gate()
			}
			var all sync.WaitGroup
			for _, g := range gates {
				all.Go(func() { g.Finish(nil) })
			}
			all.Wait()
			r.Is(breaker.Closed)
			require.Len(w, r.Steps(), 3)
			r.Idle()
		})
	})
}

// Calls that take longer than the window, all of them failing, were dropped with the period that they began in.
// BC-20.
func TestFailuresSlowerThanTheWindowAreSeen(t *testing.T) {
	for name, policy := range map[string]breaker.Option{
		"failure window": breaker.WithFailureWindow(time.Second),
		"failure count":  breaker.WithTrip(breaker.FailureCount(3, time.Second)),
		"rate":           breaker.WithTrip(breaker.FailureRate(0.5, 3, breaker.Last(time.Second))),
		"rate of calls":  breaker.WithTrip(breaker.FailureRate(0.5, 3, breaker.LastCalls(10))),
		"user's own":     breaker.WithTrip(breaker.TripWhen(breaker.Last(time.Second), func(c breaker.Counts) bool { return c.Failures >= 3 })),
	} {
		t.Run(name, func(t *testing.T) {
			breakertest.BothClocks(t, func(w *breakertest.World) {
				r := w.R0(policy)
				var gates []*breakertest.Gate
				for range 200 {
					gates = append(gates, r.Gate())
				}
				w.At(2 * time.Second)
				for i, g := range gates {
					g.Finish(breakertest.ErrBoom)
					require.Equal(w, i >= 2, r.C.State() == breaker.Open, "after failure %d", i+1)
				}
				require.Len(w, r.Steps(), 1)
			})
		})
	}
}

// A rate was rounded to two places: 9.5 % tripped at 10 %.
func TestRatesAreNotRounded(t *testing.T) {
	for _, tc := range []struct {
		rate            float64
		failures, calls int
		want            breaker.State
	}{
		{0.1, 19, 200, breaker.Closed},
		{0.1, 20, 200, breaker.Open},
		{0.1, 999, 10_000, breaker.Closed},
		{0.1, 1000, 10_000, breaker.Open},
		{0.005, 49, 10_000, breaker.Closed},
		{0.005, 50, 10_000, breaker.Open},
		{0.0001, 0, 10_000, breaker.Closed},
		{0.0001, 1, 10_000, breaker.Open},
		{0.333333, 3333, 10_000, breaker.Closed},
		{0.333333, 3334, 10_000, breaker.Open},
	} {
		t.Run(fmt.Sprintf("%d of %d at %v", tc.failures, tc.calls, tc.rate), func(t *testing.T) {
			breakertest.BothClocks(t, func(w *breakertest.World) {
				for _, window := range []breaker.Window{breaker.LastCalls(tc.calls), breaker.Last(time.Minute)} {
					r := w.R0(breaker.WithTrip(breaker.FailureRate(tc.rate, tc.calls, window)))
					call := func(n int, err error) {
						for range n {
							_ = r.C.Run(context.Background(), func(context.Context) error { return err })
						}
					}
					call(tc.calls-tc.failures, nil)
					call(tc.failures, breakertest.ErrBoom)
					r.Is(tc.want)
				}
			})
		})
	}
}

// A rate of two thirds was not reached by two of three.
func TestRatesThatAreNoDecimals(t *testing.T) {
	for d := 2; d <= 40; d++ {
		for n := 1; n <= d; n++ {
			for _, less := range []int{0, 1} {
				if n == less {
					continue
				}
				c := breaker.Must(breaker.NewCircuit("c", breaker.WithTrip(breaker.FailureRate(float64(n)/float64(d), d, breaker.LastCalls(d)))))
				for i := range d {
					err := breakertest.ErrBoom
					if i < d-n+less {
						err = nil
					}
					_ = c.Run(context.Background(), func(context.Context) error { return err })
				}
				require.Equal(t, less == 0, c.State() == breaker.Open, "%d of %d at a rate of %d/%d", n-less, d, n, d)
			}
		}
	}
}

// K30.
func TestToleranceIsTunable(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		r := w.Circuit(breaker.WithFailureThreshold(10))
		r.Fails(9)
		r.Is(breaker.Closed)
		r.Fails(1)
		r.Is(breaker.Open)
	})
}

// Successes from before a pause never water down failures after it.
func TestSamplingIdleThenFailures(t *testing.T) {
	const minCalls = 20
	for _, window := range []time.Duration{time.Second, 10 * time.Second, time.Hour} {
		for _, successes := range []int{1, 15, 63, 64, 65, 79, 80, 1000, 1001, 1015, 5000} {
			for _, idle := range []time.Duration{window, window + window/100, 10 * window} {
				for _, every := range []time.Duration{0, 1, window / 100_000} {
					t.Run(fmt.Sprintf("Last(%v), %d every %v, idle %v", window, successes, every, idle), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							c := breaker.Must(breaker.NewCircuit("idle", breaker.WithTrip(breaker.FailureRate(0.5, minCalls, breaker.Last(window)))))
							for range successes {
								_ = c.Run(t.Context(), mdlOK)
								mdlBubble{}.pass(every)
							}
							mdlBubble{}.pass(idle)
							for i := range minCalls {
								if s := c.State(); s != breaker.Closed {
									t.Fatalf("%v before failure %d", s, i+1)
								}
								_ = c.Run(t.Context(), mdlFail)
							}
							if s := c.Snapshot(); s.State != breaker.Open {
								t.Fatalf("%v after %d failures and no success in the window: %+v", s.State, minCalls, s.Counts)
							}
						})
					})
				}
			}
		}
	}
}

// What Last allows: a success is filed late by no more than a part of the window, and where a fast stream ends up to 15,
// and the one that finds out, are taken to be as old as the one before them.
const (
	mdlLate  = 200
	mdlOlder = 16
)

// mdlSampled is a rate circuit on the default clock beside a list of all that it has seen.
type mdlSampled struct {
	c        *breaker.Circuit
	window   time.Duration
	minCalls uint64
	ok       []time.Time
	failed   []time.Time
}

// bounds is how many of some calls the window may hold. Each is as old as it is, or by so much younger, and gathered into
// a slice, it may leave a 64th of the window early. For each fast stream, some of those after it may be gone.
func (m *mdlSampled) bounds(calls []time.Time, younger time.Duration, older uint64) (least, most uint64) {
	streams, was := uint64(0), false
	for i, at := range calls {
		fast := i >= 16 && at.Sub(calls[i-16]) <= m.window/mdlLate
		if fast && !was {
			streams++
		}
		was = fast
		if time.Since(at) < m.window+younger {
			most++
		}
		if time.Since(at) <= m.window-m.window/64 {
			least++
		}
	}
	return least - min(least, streams*older), most
}

func (m *mdlSampled) succeed(t *rapid.T) {
	every := rapid.SampledFrom([]time.Duration{0, 0, 1, m.window / 1_000_000, m.window / 20_000, m.window / 12_000, m.window / 1000, m.window / 300}).Draw(t, "every")
	n := rapid.SampledFrom([]int{1, 5, 16, 70, 150, 400, 3000, 40_000}).Draw(t, "successes")
	if every > 0 || testenv.Race || !testenv.Long() {
		n = min(n, 3000) // time is slow in a bubble
	}
	for range n {
		if err := m.c.Run(context.Background(), mdlOK); err != nil {
			t.Fatal(err)
		}
		m.ok = append(m.ok, time.Now())
		if m.c.State() == breaker.Open { // the rate was reached by successes that have left the window
			m.check(t)
			return
		}
		mdlBubble{}.pass(every)
	}
}

func (m *mdlSampled) fail(t *rapid.T) {
	for range rapid.IntRange(1, 12).Draw(t, "failures") {
		if m.c.Run(context.Background(), mdlFail) != errMdlDown {
			return
		}
		m.failed = append(m.failed, time.Now())
		m.check(t)
	}
}

// check compares counts and verdict with what they may be.
func (m *mdlSampled) check(t *rapid.T) {
	okLeast, okMost := m.bounds(m.ok, m.window/mdlLate, mdlOlder)
	failedLeast, failedMost := m.bounds(m.failed, 0, 0)
	s := m.c.Snapshot()
	if s.State == breaker.Open {
		if failedMost < okLeast || failedMost+okMost < m.minCalls {
			t.Fatalf("open with at most %d failures and %d to %d successes", failedMost, okLeast, okMost)
		}
		m.c.Reset()
		m.ok, m.failed = nil, nil
		return
	}
	n := len(m.failed)
	if n > 0 && m.failed[n-1].Equal(time.Now()) && failedLeast >= okMost && failedLeast+okLeast >= m.minCalls {
		t.Fatalf("closed with at least %d failures and %d to %d successes", failedLeast, okLeast, okMost)
	}
	if c := s.Counts; c.Failures < failedLeast || c.Failures > failedMost || c.Successes < okLeast || c.Successes > okMost {
		t.Fatalf("%+v, want %d to %d failures and %d to %d successes", c, failedLeast, failedMost, okLeast, okMost)
	}
}

// With a busy window the times of successes are off by no more than Last says, and those of failures not at all.
func TestSamplingStaysWithinItsBounds(t *testing.T) {
	mdlCheckInABubble(t, func(t *rapid.T) {
		m := &mdlSampled{window: 10 * time.Second, minCalls: 10}
		m.c = breaker.Must(breaker.NewCircuit("busy", breaker.WithTrip(breaker.FailureRate(0.5, int(m.minCalls), breaker.Last(m.window)))))
		t.Repeat(map[string]func(*rapid.T){
			"succeed": m.succeed,
			"fail":    m.fail,
			"wait": func(t *rapid.T) {
				w := m.window
				mdlBubble{}.pass(rapid.SampledFrom([]time.Duration{w, w - 1, w - w/5000, w - w/1000, w / 2, w / 20, w / 300, w / 1000}).Draw(t, "d"))
			},
			"": m.check,
		})
	})
}

// Where a fast stream becomes a slow one, the slow one still counts: few failures among many successes do not trip.
func TestSamplingDropOfTraffic(t *testing.T) {
	const window = 10 * time.Second
	rates := []int{1_000, 30_000, 300_000, 2_000_000} // successes in one second
	if testenv.Small() {
		rates = rates[:2]
	}
	for _, fast := range rates {
		for _, slow := range []int{10, 30, 100} { // successes a second afterwards
			for _, after := range []time.Duration{window / 2, window, 2 * window} {
				t.Run(fmt.Sprintf("%d, then %d a second, %v", fast, slow, after), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						c := breaker.Must(breaker.NewCircuit("drop", breaker.WithTrip(breaker.FailureRate(0.5, 20, breaker.Last(window)))))
						stream := func(n, atOnce int, every time.Duration) {
							for range n {
								for range atOnce {
									_ = c.Run(t.Context(), mdlOK)
								}
								mdlBubble{}.pass(every)
							}
						}
						stream(1000, fast/1000, time.Millisecond)
						n := int(after.Seconds()) * slow
						stream(n, 1, time.Second/time.Duration(slow))
						for range 20 {
							_ = c.Run(t.Context(), mdlFail)
						}
						if s := c.Snapshot(); s.State != breaker.Closed {
							t.Errorf("open at 20 failures among %d successes in the window", min(n, int(window.Seconds())*slow))
						}
					})
				})
			}
		}
	}
}

// What leaves a busy window is noticed: here the old successes, which leave too many failures behind.
func TestSamplingNoticesWhatLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const window = 10 * time.Second
		c := breaker.Must(breaker.NewCircuit("leaves", breaker.WithTrip(breaker.FailureRate(0.5, 20, breaker.Last(window)))))
		start := time.Now()
		run := func(n int, fn func(context.Context) error) {
			for range n {
				_ = c.Run(t.Context(), fn)
			}
		}
		run(20_000, mdlOK)
		mdlBubble{}.pass(window - 100*time.Millisecond)
		run(1000, mdlOK)
		run(15_000, mdlFail)
		for time.Since(start) < window {
			if s := c.State(); s != breaker.Closed {
				t.Fatalf("%v after %v", s, time.Since(start))
			}
			run(20, mdlOK)
			mdlBubble{}.pass(time.Millisecond)
		}
		for c.State() == breaker.Closed {
			run(20, mdlOK)
			mdlBubble{}.pass(time.Millisecond)
			if time.Since(start) > window+window/64 {
				t.Fatalf("closed %v after they left: %+v", time.Since(start)-window, c.Snapshot().Counts)
			}
		}
	})
}

// Slower streams are exact, however much the window holds, and again once a fast one has left it.
func TestSamplingSlowStreamsAreExact(t *testing.T) {
	mdlCheckInABubble(t, func(t *rapid.T) {
		const window = 10 * time.Second
		c := breaker.Must(breaker.NewCircuit("slow", breaker.WithTrip(breaker.FailureRate(1, 1_000_000, breaker.Last(window)))))
		var ok []time.Time
		for range rapid.SampledFrom([]int{0, 3000}).Draw(t, "fast") {
			_ = c.Run(context.Background(), mdlOK)
		}
		most := rapid.SampledFrom([]int{1, 63}).Draw(t, "most")
		for range rapid.IntRange(101, 200).Draw(t, "bursts") {
			for range max(1, most-rapid.IntRange(0, 40).Draw(t, "less")) {
				_ = c.Run(context.Background(), mdlOK)
				ok = append(ok, time.Now())
			}
			mdlBubble{}.pass(rapid.SampledFrom([]time.Duration{window / 100, window / 50, window / 20}).Draw(t, "d"))
		}
		want := uint64(0)
		for _, at := range ok {
			if time.Since(at) < window {
				want++
			}
		}
		if got := c.Snapshot().Counts.Successes; got != want {
			t.Fatalf("%d successes in the window, want %d", got, want)
		}
	})
}

var errNotFound = errors.New("not found")

// W05: answers that are no success do not end a run of failures, but count as successes everywhere else.
func TestAnsweredCallsDoNotEndARunOfFailures(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		r := w.Circuit(breaker.WithAnswered(errNotFound))
		for range 4 {
			r.Fails(1)
			for range 10 {
				require.ErrorIs(w, r.Call(errNotFound), errNotFound)
			}
		}
		s := r.C.Snapshot()
		require.EqualValues(w, 4, s.ConsecutiveFailures)
		require.Zero(w, s.ConsecutiveSuccesses)
		require.EqualValues(w, 40, s.Totals.Successes)
		require.Zero(w, s.Totals.Ignored)
		r.Fails(1)
		r.Is(breaker.Open)

		w.Add(30 * time.Second)
		for range 2 { // a host that recovers into 404s has recovered
			require.ErrorIs(w, r.Call(errNotFound), errNotFound)
		}
		r.Is(breaker.Closed)
		r.Fails(4)
		r.Succeeds(1)
		require.ErrorIs(w, r.Call(errNotFound), errNotFound)
		require.EqualValues(w, 2, r.C.Snapshot().ConsecutiveSuccesses, "after a success, an answer is one more")
		r.Fails(4)
		r.Is(breaker.Closed)
	})
	t.Run("rates", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			for _, window := range []breaker.Window{breaker.LastCalls(100), breaker.Last(time.Minute)} {
				r := w.Circuit(breaker.WithAnswered(errNotFound), breaker.WithTrip(breaker.FailureRate(0.5, 10, window)))
				for range 20 {
					require.ErrorIs(w, r.Call(errNotFound), errNotFound)
				}
				r.Fails(19)
				r.Is(breaker.Closed)
				r.Fails(1) // 20 of 40
				r.Is(breaker.Open)
			}
		})
	})
	t.Run("lists", func(t *testing.T) { // FailOn, Ignore, Answered, classifier
		breakertest.BothClocks(t, func(w *breakertest.World) {
			odd := errors.New("odd")
			r := w.Circuit(breaker.WithAnswered(errNotFound, breakertest.ErrBoom, breakertest.ErrClient), breaker.WithFailOn(breakertest.ErrBoom),
				breaker.WithIgnore(breakertest.ErrClient, breakertest.ErrBoom),
				breaker.WithClassifier(func(err error) breaker.Outcome {
					if err == odd {
						return breaker.Answered
					}
					return breaker.Failure
				}))
			_ = r.Call(breakertest.ErrBoom)
			_ = r.Call(breakertest.ErrClient)
			_ = r.Call(fmt.Errorf("no row: %w", errNotFound))
			_ = r.Call(odd)
			n := r.C.Snapshot().Totals
			require.EqualValues(w, 1, n.Failures)
			require.EqualValues(w, 1, n.Ignored)
			require.EqualValues(w, 2, n.Successes)
		})
	})
}

// What ForcedClosed let pass is not held against the circuit afterwards.
func TestCountsBeginAnewWhenForcedClosedEnds(t *testing.T) {
	for name, trip := range map[string]breaker.Option{
		"a run":            breaker.WithFailureThreshold(5),
		"a run in a time":  breaker.WithFailureWindow(time.Minute),
		"a count":          breaker.WithTrip(breaker.FailureCount(5, time.Minute)),
		"a rate of calls":  breaker.WithTrip(breaker.FailureRate(0.5, 5, breaker.LastCalls(10))),
		"a rate of a time": breaker.WithTrip(breaker.FailureRate(0.5, 5, breaker.Last(time.Minute))),
	} {
		for _, by := range []string{"SetMode", "Configure"} {
			t.Run(name+" by "+by, func(t *testing.T) {
				breakertest.BothClocks(t, func(w *breakertest.World) {
					r := w.Circuit(trip)
					set := func(m breaker.Mode) {
						if by == "SetMode" {
							r.C.SetMode(m)
							return
						}
						require.NoError(w, r.C.Configure(breaker.WithMode(m)))
					}
					r.Succeeds(5)
					r.Fails(4)
					set(breaker.ForcedClosed)
					r.Fails(50)
					r.Is(breaker.Closed)
					require.NotEmpty(w, r.C.Snapshot().LastFailure)
					set(breaker.Auto)
					s := r.C.Snapshot()
					require.Equal(w, breaker.Counts{}, s.Counts)
					require.Empty(w, s.LastFailure)
					require.EqualValues(w, 54, s.Totals.Failures)
					require.EqualValues(w, 5, s.Totals.Successes)
					r.Fails(4)
					r.Is(breaker.Closed)
					r.Fails(1)
					r.Is(breaker.Open)
				})
			})
		}
	}
}

// Ignored calls take no place among the last calls, and yet no more of them are counted than the window holds calls.
func TestLastCallsCountsNoMoreIgnoredThanItHolds(t *testing.T) {
	for name, tt := range map[string]struct {
		calls         []error // one after the other
		window, after uint64  // how many calls of which none is ignored come then
		want          breaker.Counts
	}{
		"nothing else":            {slices.Repeat([]error{context.Canceled}, 1000), 10, 0, breaker.Counts{Ignored: 10}},
		"a few":                   {slices.Repeat([]error{context.Canceled}, 3), 10, 0, breaker.Counts{Ignored: 3}},
		"the rest stays as it is": {append([]error{errMdlDown}, slices.Repeat([]error{context.Canceled}, 1000)...), 10, 0, breaker.Counts{Failures: 1, Ignored: 10, ConsecutiveFailures: 1}},
		"they make way":           {slices.Repeat([]error{context.Canceled}, 1000), 10, 4, breaker.Counts{Successes: 4, Ignored: 6, ConsecutiveSuccesses: 4}},
		"they are gone":           {slices.Repeat([]error{context.Canceled}, 1000), 10, 100, breaker.Counts{Successes: 10, ConsecutiveSuccesses: 100}},
		"a window of one":         {slices.Repeat([]error{context.Canceled}, 7), 1, 0, breaker.Counts{Ignored: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			c := breaker.Must(breaker.NewCircuit("ignored", breaker.WithClock(newMdlClock()), breaker.WithIgnore(context.Canceled),
				breaker.WithTrip(breaker.FailureRate(1, int(tt.window), breaker.LastCalls(int(tt.window))))))
			for _, err := range tt.calls {
				_ = c.Run(t.Context(), func(context.Context) error { return err })
			}
			for range tt.after {
				_ = c.Run(t.Context(), mdlOK)
			}
			require.Equal(t, tt.want, c.Snapshot().Counts)
		})
	}
}
