package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// Faults that were seen in circuit breakers in use. Each test has the shape of one of them.

// Calls that take longer than the window, all of them failing, were dropped with the period that they began in.
func TestFault_FailuresSlowerThanTheWindowAreSeen(t *testing.T) {
	for name, policy := range map[string]breaker.Option{
		"failure window": breaker.WithFailureWindow(time.Second),
		"failure count":  breaker.WithTrip(breaker.FailureCount(3, time.Second)),
		"rate":           breaker.WithTrip(breaker.FailureRate(0.5, 3, breaker.Last(time.Second))),
		"user's own":     breaker.WithTrip(breaker.TripWhen(breaker.Last(time.Second), func(c breaker.Counts) bool { return c.Failures >= 3 })),
	} {
		t.Run(name, func(t *testing.T) {
			bothClocks(t, func(w *world) {
				r := w.r0(policy)
				var gates []*gate
				for range 200 {
					gates = append(gates, r.gate())
				}
				w.at(2 * time.Second)
				for i, g := range gates {
					g.finish(errBoom)
					require.Equal(w, i >= 2, r.c.State() == breaker.Open, "after failure %d", i+1)
				}
				require.Len(w, r.steps(), 1)
			})
		})
	}
}

// The run of failures lost those that left a rolling window.
func TestFault_RunOfFailuresDoesNotDecay(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.r0(breaker.WithTrip(
			breaker.ConsecutiveFailures(5),
			breaker.FailureRate(1, 100, breaker.Last(time.Second)),
			breaker.FailureCount(100, time.Second),
		))
		for i := range 5 {
			r.state(breaker.Closed)
			require.EqualValues(w, i, r.c.Snapshot().ConsecutiveFailures)
			r.fail(1)
			w.add(time.Hour)
		}
		require.Len(w, r.steps(), 1)
	})
}

// A probe that hung, ended its goroutine or was forgotten kept its slot for good.
func TestFault_NoProbeKeepsItsSlotForGood(t *testing.T) {
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

// Settling one permit three times counted three failures.
func TestFault_PermitSettledThreeTimesCountsOnce(t *testing.T) {
	bothClocks(t, func(w *world) {
		r := w.r0()
		p := r.acquire()
		for range 3 {
			p.Done(errBoom)
		}
		r.state(breaker.Closed)
		require.EqualValues(w, 1, r.c.Snapshot().Totals.Failures)
		r.fail(1)
		r.state(breaker.Closed)
		r.fail(1)
		r.state(breaker.Open)
	})
}

// Reading the state in a hook waited for the lock that the hook ran under.
func TestFault_HookReadsTheState(t *testing.T) {
	everywhere(t, func(w *world) {
		var r *rig
		var seen []string
		read := func(who string) { seen = append(seen, fmt.Sprint(who, " ", r.c.State(), " ", r.c.Snapshot().State)) }
		r = w.r0(breaker.WithHooks(breaker.Hooks{
			StateChange: func(breaker.Transition) { read("change") },
			Call:        func(context.Context, breaker.CallEvent) { read("call") },
			Reject:      func(context.Context, breaker.RejectEvent) { read("reject") },
		}))
		r.trip()
		r.rejected()
		w.at(10 * time.Second)
		r.ok(1)
		require.Contains(w, seen, "change open open")
		require.Contains(w, seen, "reject open open")
		require.Contains(w, seen, "change half-open half-open")
		require.Contains(w, seen, "change closed closed")
		require.Contains(w, seen, "call closed closed")
	})
}

// A panic, turned into an error, was a success to a list of the errors that count.
func TestFault_PanicPassesNoAllowList(t *testing.T) {
	for name, opt := range map[string]breaker.Option{
		"classifier that says success": breaker.WithClassifier(func(error) breaker.Outcome { return breaker.Success }),
		"classifier that says ignored": breaker.WithClassifier(func(error) breaker.Outcome { return breaker.Ignored }),
		"list of other errors":         breaker.WithFailOn(errClient),
		"value classifier":             breaker.WithResult(func(int, error) breaker.Outcome { return breaker.Success }),
	} {
		t.Run(name, func(t *testing.T) {
			bothClocks(t, func(w *world) {
				r := w.r0(opt)
				for range 3 {
					r.state(breaker.Closed)
					require.Equal(w, errClient, panicOf(func() {
						_, _ = r.b.Do(w.Context(), func(context.Context) (int, error) { panic(errClient) })
					}))
				}
				r.state(breaker.Open)
			})
		})
	}
}

// One number was both the cap on probes and the successes needed.
func TestFault_ProbeCapAndSuccessThresholdAreTwoSettings(t *testing.T) {
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

// A function ran though its context was done.
func TestFault_DoneContextRunsNothing(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.r0()
		ctx, cancel := context.WithCancelCause(w.Context())
		cancel(errClient)
		for range 10 {
			require.Equal(w, context.Canceled, r.callCtx(ctx, nil))
		}
		require.Zero(w, r.ran.Load())
		require.Zero(w, r.c.Snapshot().Totals)
		r.idle()
	})
}

// Panic, Goexit or a hang leaked the permit, of probes and of the limit on calls in flight.
func TestFault_NoPermitLeaks(t *testing.T) {
	for name, end := range map[string]func(){
		"panic":  func() { panic("boom") },
		"goexit": runtime.Goexit,
	} {
		for _, by := range []way{byRun, byDo, byPolicy} {
			t.Run(name+" "+by.name, func(t *testing.T) {
				injected(t, by, func(w *world) {
					r := w.r0(breaker.WithMaxInFlight(1), breaker.WithFailureThreshold(1000))
					for range 100 {
						_ = inGoroutine(func() {
							_, err := r.way.call(r, context.Background(), func(context.Context) (int, error) {
								r.ran.Add(1)
								end()
								return 0, nil
							})
							assert.NoError(w, err, "rejected")
						})
						r.idle()
					}
					require.EqualValues(w, 100, r.ran.Load())
					r.ok(1)
				})
			})
		}
	}
}

// Fifty successes of calls admitted while closed closed a half-open circuit that no probe had been sent through.
func TestFault_SuccessesOfAnEarlierTimeCloseNothing(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.r0(breaker.WithSuccessThreshold(3))
		var early []*gate
		for range 50 {
			early = append(early, r.gate())
		}
		r.trip()
		w.at(10 * time.Second)
		for _, g := range early[:25] {
			g.finish(nil) // due, but nobody has asked yet
		}
		r.state(breaker.HalfOpen)
		probe := r.gate()
		for _, g := range early[25:] {
			g.finish(nil)
		}
		r.state(breaker.HalfOpen)
		require.Zero(w, r.c.Snapshot().ConsecutiveSuccesses)
		require.EqualValues(w, 1, r.c.Snapshot().Probes)
		probe.finish(nil)
		r.state(breaker.HalfOpen)
		require.EqualValues(w, 50, r.c.Snapshot().Totals.Late)
	})
}

// Stale results handed back slots that they had never taken, so that more probes ran than there were slots.
func TestFault_StaleResultsRaiseNoCap(t *testing.T) {
	for name, outcome := range map[string]error{"successes": nil, "failures": errBoom, "ignored": fmt.Errorf("inner: %w", breaker.ErrOpen)} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(w *world) {
				const slots = 20
				r := w.r0(breaker.WithHalfOpenProbes(slots), breaker.WithSuccessThreshold(1000))
				var stale []*gate
				for range 90 {
					stale = append(stale, r.gate())
				}
				r.trip()
				w.at(10 * time.Second)
				for range slots {
					r.gate()
				}
				for _, g := range stale {
					g.finish(outcome)
				}
				require.EqualValues(w, slots, r.c.Snapshot().Probes)
				for range 90 {
					require.ErrorIs(w, r.rejected(), breaker.ErrTooManyProbes)
				}
				r.state(breaker.HalfOpen)
			})
		})
	}
}

// A hook that panicked took the process with it, by way of a lock that was not held.
func TestFault_PanickingHookHarmsNothing(t *testing.T) {
	for name, hooks := range rudeHooks(func() { panic("hook") }) {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(w *world) {
				r := w.r0(breaker.WithHooks(hooks))
				r.ok(1)
				r.trip()
				r.rejected()
				w.at(10 * time.Second)
				r.fail(1)
				w.at(20 * time.Second)
				r.ok(1)
				r.state(breaker.Closed)
				r.ok(10)
				r.idle()
				require.Len(w, r.steps(), 5, "the hooks beside it are told")
			})
		})
	}
}

// A rate was rounded to two places: 9.5 % tripped at 10 %.
func TestFault_RatesAreNotRounded(t *testing.T) {
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
			bothClocks(t, func(w *world) {
				for _, window := range []breaker.Window{breaker.LastCalls(tc.calls), breaker.Last(time.Minute)} {
					r := w.r0(breaker.WithTrip(breaker.FailureRate(tc.rate, tc.calls, window)))
					call := func(n int, err error) {
						for range n {
							_ = r.c.Run(context.Background(), func(context.Context) error { return err })
						}
					}
					call(tc.calls-tc.failures, nil)
					call(tc.failures, errBoom)
					r.state(tc.want)
				}
			})
		})
	}
}

// The state read open an hour after a second's open period had ended.
func TestFault_StateFollowsTheClock(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.r0(breaker.WithOpenTimeout(time.Second))
		r.trip()
		w.at(time.Hour)
		r.state(breaker.HalfOpen)
		require.Equal(w, breaker.HalfOpen, r.b.State())
		require.Equal(w, breaker.HalfOpen, r.c.Snapshot().State)
		require.True(w, r.c.Ready())
		require.Len(w, r.steps(), 1)
	})
}

// A panic went past every counter.
func TestFault_PanicsAreCounted(t *testing.T) {
	bothClocks(t, func(w *world) {
		var calls []breaker.CallEvent
		r := w.r0(breaker.WithHooks(breaker.Hooks{Call: func(_ context.Context, c breaker.CallEvent) { calls = append(calls, c) }}))
		panicOf(func() { _ = r.c.Run(w.Context(), func(context.Context) error { panic("boom") }) })
		totals := r.c.Snapshot().Totals
		require.EqualValues(w, 1, totals.Calls)
		require.EqualValues(w, 1, totals.Failures)
		require.EqualValues(w, 1, totals.Panics)
		require.EqualValues(w, 1, r.c.Snapshot().Counts.Failures)
		require.Len(w, calls, 1)
		require.Equal(w, breaker.Failure, calls[0].Outcome)
		require.Error(w, calls[0].Err)
	})
}

// Without any configuration it never opened.
func TestFault_EmptyConfigurationProtects(t *testing.T) {
	for name, opts := range map[string][]breaker.Option{
		"no options":         nil,
		"the default config": breaker.DefaultConfig().Options(),
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(w *world) {
				r := w.circuit(opts...)
				r.fail(5)
				r.state(breaker.Open)
			})
		})
	}
}

// Changing the configuration raced with calls.
func TestFault_ConfigureWhileCalling(t *testing.T) {
	bothClocks(t, func(w *world) {
		r := w.r0(breaker.WithOpenTimeout(time.Microsecond))
		settings := [][]breaker.Option{
			{breaker.WithFailureThreshold(2)},
			{breaker.WithTrip(breaker.FailureRate(0.5, 5, breaker.LastCalls(10)))},
			{breaker.WithTrip(breaker.FailureRate(0.5, 5, breaker.Last(time.Second)), breaker.FailureCount(5, time.Second))},
			{breaker.WithTrip(breaker.SlowCallRate(time.Second, 0.5, 5, breaker.LastCalls(10)))},
			{breaker.WithTrip(breaker.TripWhen(breaker.LastCalls(10), func(c breaker.Counts) bool { return c.Failures > 3 }))},
			{breaker.WithMaxInFlight(3)},
			{breaker.WithMaxInFlight(0)},
			{breaker.WithRamp(time.Second)},
			{breaker.WithRamp(0), breaker.WithSuccessThreshold(1)},
			{breaker.WithMode(breaker.Shadow)},
			{breaker.WithMode(breaker.Auto)},
		}
		var finished, rejected atomic.Uint64
		var all sync.WaitGroup
		for g := range 8 {
			all.Go(func() {
				for i := range 2000 {
					err := error(nil)
					if (g+i)%3 == 0 {
						err = errBoom
					}
					var got error
					v := panicOf(func() { got = r.c.Run(context.Background(), func(context.Context) error { return err }) })
					if !assert.Nil(w, v, "a call panicked by itself") {
						return
					}
					if errors.Is(got, breaker.ErrOpen) || errors.Is(got, breaker.ErrTooManyInFlight) {
						rejected.Add(1)
						continue
					}
					finished.Add(1)
				}
			})
		}
		for g := range 2 {
			all.Go(func() {
				for i := range 300 {
					assert.NoError(w, r.c.Configure(settings[(g+i)%len(settings)]...))
					_ = r.c.Config()
					runtime.Gosched()
				}
			})
		}
		all.Wait()
		totals := r.c.Snapshot().Totals
		require.Equal(w, finished.Load(), totals.Calls)
		require.Equal(w, rejected.Load(), totals.Rejected)
		r.idle()
	})
}

// Five hundred calls ran as probes at once; and fifty of fifty with another library.
func TestFault_HalfOpenAdmitsNoCrowd(t *testing.T) {
	for _, slots := range []int{1, 2, 10} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			bubble(t, byDo, func(w *world) {
				r := w.r0(breaker.WithHalfOpenProbes(slots))
				r.trip()
				r.ran.Store(0)
				w.at(10 * time.Second)
				release := make(chan struct{})
				var all sync.WaitGroup
				for range 500 {
					all.Go(func() {
						_ = r.c.Run(context.Background(), func(context.Context) error {
							r.ran.Add(1)
							<-release
							return nil
						})
					})
				}
				synctest.Wait()
				require.EqualValues(w, slots, r.ran.Load())
				require.EqualValues(w, 500-slots, r.c.Snapshot().Totals.Rejected)
				close(release)
				all.Wait()
				r.state(breaker.Closed)
			})
		})
	}
}

// Each closed breaker had a goroutine, and no way to end it.
func TestFault_NoGoroutinePerCircuit(t *testing.T) {
	bubble(t, byDo, func(w *world) { // which ends only when every goroutine in it has
		before := runtime.NumGoroutine()
		for i := range 100 {
			c := breaker.Must(breaker.NewCircuit(fmt.Sprint(i), breaker.WithTrip(
				breaker.FailureRate(0.5, 5, breaker.Last(time.Second)), breaker.FailureCount(5, time.Second)), breaker.WithRamp(time.Second)))
			for range 5 {
				_ = c.Run(context.Background(), func(context.Context) error { return errBoom })
			}
			require.Equal(w, breaker.Open, c.State())
		}
		w.at(30 * time.Second)
		noMoreThan(w, before)
	})
}

// The caller's deadline was taken for the caller's will, so that timeouts never tripped.
func TestFault_CallersDeadlineTrips(t *testing.T) {
	bubble(t, byDo, func(w *world) {
		r := w.r0()
		for range 3 {
			r.state(breaker.Closed)
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			require.ErrorIs(w, r.c.Run(ctx, func(ctx context.Context) error { _, err := hang(ctx); return err }), context.DeadlineExceeded)
			cancel()
		}
		r.state(breaker.Open)
	})
}

// An error to be ignored was not recognised once it was wrapped.
func TestFault_WrappedErrorsAreRecognised(t *testing.T) {
	bothClocks(t, func(w *world) {
		r := w.r0(breaker.WithIgnore(errClient))
		for _, err := range []error{
			errClient,
			fmt.Errorf("get: %w", errClient),
			fmt.Errorf("read: %w", fmt.Errorf("get: %w", errClient)),
			errors.Join(errors.New("beside"), errClient),
			fmt.Errorf("%w and %w", errors.New("beside"), errClient),
		} {
			r.failWith(err)
		}
		require.EqualValues(w, 5, r.c.Snapshot().Totals.Ignored)
		require.Zero(w, r.c.Snapshot().Totals.Failures)

		f := w.r0(breaker.WithFailOn(errClient), breaker.WithClassifier(func(error) breaker.Outcome { return breaker.Ignored }))
		for range 3 {
			f.failWith(fmt.Errorf("get: %w", errClient))
		}
		f.state(breaker.Open)
	})
}

// Two stale ignored results made room for five calls where two were permitted, and two stale successes closed.
func TestFault_StaleResultsInHalfOpen(t *testing.T) {
	everywhere(t, func(w *world) {
		ignored := fmt.Errorf("inner: %w", breaker.ErrOpen)
		r := w.r0(breaker.WithHalfOpenProbes(2), breaker.WithSuccessThreshold(2))
		var stale []*gate
		for range 5 {
			stale = append(stale, r.gate())
		}
		r.trip()
		w.at(10 * time.Second)
		a, b := r.gate(), r.gate()
		for _, g := range stale[:3] {
			g.finish(ignored)
			r.rejected()
		}
		for _, g := range stale[3:] {
			g.finish(nil)
			r.state(breaker.HalfOpen)
		}
		a.finish(nil)
		r.state(breaker.HalfOpen)
		b.finish(nil)
		r.state(breaker.Closed)
	})
}

// A reset left a timer behind that later moved a circuit which was forced open.
func TestFault_ResetLeavesNothingBehind(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.r0()
		r.trip()
		w.at(time.Second)
		r.c.Reset()
		r.c.SetMode(breaker.ForcedOpen)
		events := len(r.steps())
		for range 10 {
			w.add(3 * time.Second)
			r.rejected()
			r.state(breaker.Closed)
		}
		require.Len(w, r.steps(), events)
		r.c.SetMode(breaker.Auto)
		r.ok(1)

		r.c.Trip(nil) // and a new period is not cut short by the old one
		w.add(10*time.Second - 1)
		r.rejected()
	})
}

// A lock was held while the user's function ran, which made one queue of all calls.
func TestFault_CallsRunSideBySide(t *testing.T) {
	for name, opts := range map[string][]breaker.Option{
		"closed":          nil,
		"limited":         {breaker.WithMaxInFlight(10)},
		"time window":     {breaker.WithTrip(breaker.FailureRate(0.5, 5, breaker.Last(time.Second)))},
		"slow call limit": {breaker.WithTrip(breaker.SlowCallRate(time.Hour, 0.5, 5, breaker.LastCalls(9)))},
		"shadow":          {breaker.WithMode(breaker.Shadow)},
		"timeout":         {breaker.WithTimeout(time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			bothClocks(t, func(w *world) {
				r := w.r0(opts...)
				meet := rendezvous(5)
				var all sync.WaitGroup
				for range 5 {
					all.Go(func() {
						_, err := r.b.Do(context.Background(), func(context.Context) (int, error) { meet(); return 1, nil })
						assert.NoError(w, err)
					})
				}
				all.Wait()
			})
		})
	}
	t.Run("half-open", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			r := w.r0(breaker.WithHalfOpenProbes(5))
			r.trip()
			w.at(10 * time.Second)
			meet := rendezvous(5)
			var all sync.WaitGroup
			for range 5 {
				all.Go(func() { _ = r.c.Run(context.Background(), func(context.Context) error { meet(); return nil }) })
			}
			all.Wait()
			r.state(breaker.Closed)
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
				bothClocks(t, func(w *world) {
					r := w.r0(opts(rendezvous(5)), breaker.WithFailureThreshold(100))
					var all sync.WaitGroup
					for range 5 {
						all.Go(func() { _ = r.c.Run(context.Background(), func(context.Context) error { return errBoom }) })
					}
					all.Wait()
					r.idle()
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
func TestFault_ThrowingPredicateWedgesNothing(t *testing.T) {
	for name, throw := range map[string]func(){"panic": func() { panic("predicate") }, "goexit": runtime.Goexit} {
		for predicate, opt := range map[string]breaker.Option{
			"classifier":       breaker.WithClassifier(func(error) breaker.Outcome { throw(); return breaker.Failure }),
			"value classifier": breaker.WithResult(func(_ int, err error) breaker.Outcome { throw(); return breaker.Failure }),
			"trip function":    breaker.WithTrip(breaker.TripWhen(breaker.LastCalls(5), func(breaker.Counts) bool { throw(); return true }), breaker.ConsecutiveFailures(3)),
		} {
			t.Run(predicate+" "+name, func(t *testing.T) {
				bothClocks(t, func(w *world) {
					r := w.r0(opt)
					call := func(err error) {
						_ = inGoroutine(func() { _, _ = r.b.Do(context.Background(), func(context.Context) (int, error) { return 1, err }) })
					}
					for range 3 {
						r.state(breaker.Closed)
						call(errBoom)
						r.idle()
					}
					r.state(breaker.Open) // each of the calls counts as a failure
					w.at(10 * time.Second)
					call(errBoom)
					r.idle()
					r.state(breaker.Open)
					w.at(20 * time.Second)
					_ = inGoroutine(func() { _ = r.c.Run(context.Background(), func(context.Context) error { return nil }) })
					r.state(breaker.Closed)
					r.idle()
				})
			})
		}
	}
}

// The error of a rejection did not say how long to wait.
func TestFault_RejectionSaysHowLong(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.r0()
		r.trip()
		w.at(4 * time.Second)
		e := r.rejected()
		require.Equal(w, 6*time.Second, e.RetryAfter())
		require.True(w, e.Until.Equal(w.start.Add(10*time.Second)))
		require.Equal(w, "test", e.Circuit)
		require.Equal(w, breaker.Open, e.State)
		require.Equal(w, breaker.Auto, e.Mode)
		require.Equal(w, errBoom, e.Cause)
		require.NotErrorIs(w, e, errBoom, "that was another call's failure")
		require.NotContains(w, e.Error(), "boom")
		require.Contains(w, e.Error(), "test")
		w.at(5 * time.Second)
		require.Equal(w, 5*time.Second, e.RetryAfter(), "it goes on counting")
	})
}

// Rejected calls were counted as failures, or not at all, or their number fell.
func TestFault_RejectionsAreCountedOnceAndApart(t *testing.T) {
	everywhere(t, func(w *world) {
		rejections := 0
		r := w.r0(breaker.WithHooks(breaker.Hooks{Reject: func(_ context.Context, e breaker.RejectEvent) {
			rejections++
			require.ErrorIs(w, e.Err, breaker.ErrOpen)
			require.False(w, e.Shadow)
		}}))
		r.trip()
		for n := 1; n <= 100; n++ {
			r.rejected()
			require.EqualValues(w, n, r.c.Snapshot().Totals.Rejected)
			require.Equal(w, n, rejections)
		}
		require.EqualValues(w, 3, r.c.Snapshot().Totals.Calls)
		w.at(10 * time.Second)
		probe := r.gate()
		r.rejected()
		probe.finish(nil)
		r.c.Reset()
		require.EqualValues(w, 101, r.c.Snapshot().Totals.Rejected)
		require.EqualValues(w, 4, r.c.Snapshot().Totals.Calls)
	})
}

// After closing, all traffic came at once and broke what had just recovered.
func TestFault_RampSparesWhatHasJustRecovered(t *testing.T) {
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

// A growing open period had no jitter where a success was what opened: a fleet of slow dependencies probed in step.
func TestFault_JitterWhateverOpens(t *testing.T) {
	for name, open := range map[string]struct {
		trip breaker.TripCondition
		play func(*rig)
	}{
		"filled by a success": {breaker.FailureRate(0.5, 4, breaker.LastCalls(10)), func(r *rig) { r.fail(2); r.ok(2) }},
		"user's own": {breaker.TripWhen(breaker.LastCalls(10), func(c breaker.Counts) bool { return c.Successes == 2 }),
			func(r *rig) { r.ok(2) }},
		"slow": {breaker.SlowCallRate(time.Second, 0.5, 2, breaker.LastCalls(10)), func(r *rig) {
			for range 2 {
				g := r.gate()
				r.add(time.Second)
				g.finish(nil)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			bothClocks(t, func(w *world) {
				r := w.circuit(breaker.WithTrip(open.trip), breaker.WithOpenTimeout(10*time.Second),
					breaker.WithOpenBackoff(2, time.Hour, 1), breaker.WithRand(func() float64 { return 0.5 }))
				open.play(r)
				w.add(15*time.Second - 1)
				r.state(breaker.Open)
				w.add(1)
				r.state(breaker.HalfOpen)
			})
		})
	}
}

// The refusal of a circuit further in was retried where a classifier, or a judge of results, took it for a failure.
func TestFault_RejectionsAreNotRetried(t *testing.T) {
	failure := func(error) breaker.Outcome { return breaker.Failure }
	for name, opt := range map[string]breaker.Option{
		"classifier": breaker.WithClassifier(failure),
		"result":     breaker.WithResult(func(_ int, err error) breaker.Outcome { return failure(err) }),
		"list":       breaker.WithFailOn(breaker.ErrOpen, breaker.ErrTooManyInFlight),
	} {
		for _, rejection := range []error{breaker.ErrOpen, breaker.ErrTooManyInFlight} {
			t.Run(name+", "+rejection.Error(), func(t *testing.T) {
				b := breaker.Must(breaker.New[int]("outer", opt, breaker.WithRetry(breaker.MaxRetries(3), breaker.Constant(0), breaker.NoJitter())))
				r := b.Try(context.Background(), func(context.Context) (int, error) { return 0, fmt.Errorf("inner: %w", rejection) })
				require.Equal(t, 1, r.Attempts)
				require.ErrorIs(t, r.Err, rejection)
				require.EqualValues(t, 1, b.Snapshot().Totals.Failures)
			})
		}
	}
}

// An error that is not worth a retry became a rejection when it also opened the circuit.
func TestFault_ErrorsThatAreNotRetriedStayAsTheyAre(t *testing.T) {
	for name, opt := range map[string]breaker.RetryOption{
		"not worth it":  breaker.RetryIf(func(error) bool { return false }),
		"too long away": breaker.RetryAfterCap(time.Millisecond),
	} {
		t.Run(name, func(t *testing.T) {
			b := breaker.Must(breaker.New[int]("c", breaker.WithFailureThreshold(1), breaker.WithRetry(breaker.MaxRetries(3), opt)))
			err := error(&awayError{time.Minute})
			_, got := b.Do(context.Background(), func(context.Context) (int, error) { return 0, err })
			require.Same(t, err, got)
			require.Equal(t, breaker.Open, b.State())
		})
	}
}

// Fallbacks went on being asked for a caller who had gone while the first of them worked.
func TestFault_NoFallbackAfterTheCallerHasGone(t *testing.T) {
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

// What a circuit says of itself was refused when it was to be restored.
func TestFault_LongRunsOfSuccessesAreRestored(t *testing.T) {
	const many = 3_000_000_000
	s := breaker.Snapshot{Epoch: 1, ConsecutiveSuccesses: many, Totals: breaker.Totals{Calls: many, Successes: many}}
	c, err := breaker.NewCircuit("c", breaker.WithSnapshot(s))
	require.NoError(t, err)
	require.EqualValues(t, uint64(many), c.Snapshot().Totals.Successes)
}

// A panic was counted before the failure that it is.
func TestFault_PanicsAreNeverMoreThanFailures(t *testing.T) {
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

// A rate of two thirds was not reached by two of three.
func TestFault_RatesThatAreNoDecimals(t *testing.T) {
	for d := 2; d <= 40; d++ {
		for n := 1; n <= d; n++ {
			for _, less := range []int{0, 1} {
				if n == less {
					continue
				}
				c := breaker.Must(breaker.NewCircuit("c", breaker.WithTrip(breaker.FailureRate(float64(n)/float64(d), d, breaker.LastCalls(d)))))
				for i := range d {
					err := errBoom
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

// A health check that said yes long after its time was up let calls pass.
func TestFault_LateHealthChecksSayNothing(t *testing.T) {
	bubble(t, byDo, func(w *world) {
		r := w.circuit(breaker.WithOpenTimeout(time.Hour), breaker.WithHealthCheck(10*time.Second, func(context.Context) error {
			time.Sleep(25 * time.Second)
			return nil
		}, breaker.HealthTimeout(5*time.Second), breaker.HealthJitter(0)))
		r.c.Trip(nil)
		w.add(50 * time.Second)
		r.state(breaker.Open)
		require.NoError(w, r.c.Close())
		w.add(time.Minute)
	})
}

// A call that was never to be made took the place of a circuit that remembered a failure.
func TestFault_NoCircuitForACallerWhoHasGone(t *testing.T) {
	g := breaker.Must(breaker.NewGroup[int](breaker.MaxKeys(1)))
	_, _ = g.Do(context.Background(), "a", func(context.Context) (int, error) { return 0, errBoom })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := g.Do(ctx, "b", func(context.Context) (int, error) { return 0, nil })
	require.ErrorIs(t, err, context.Canceled)
	_, err = g.Do(context.Background(), "b", nil)
	require.ErrorIs(t, err, breaker.ErrNilFunc)
	a, ok := g.Lookup("a")
	require.True(t, ok)
	require.EqualValues(t, 1, a.Snapshot().ConsecutiveFailures)
}

// Misuse ended in a panic of another package.
func TestFault_NilAndZeroValuesSayWhatTheyAre(t *testing.T) {
	require.PanicsWithValue(t, "breaker: nil or zero Group; make one with NewGroup", func() { new(breaker.Group[int]).Get("a") })
	require.PanicsWithValue(t, "breaker: nil or zero Group; make one with NewGroup", func() { (*breaker.Group[int])(nil).Get("a") })
	_, err := breaker.New[int]("c", breaker.WithLastGood[string](time.Minute, func(context.Context) string { return "k" }))
	require.ErrorContains(t, err, "LastGood: must be of the breaker's type int, got one of string")
}

// A budget for retries stood still for as long as a clock had been set back.
func TestFault_BudgetOfAClockThatIsSetBack(t *testing.T) {
	clk := &setBackClock{now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	budget := breaker.Must(breaker.NewBudget(0, 1, 10*time.Second))
	b := breaker.Must(breaker.New[int]("c", breaker.WithClock(clk), breaker.WithFailureThreshold(100),
		breaker.WithRetry(breaker.MaxRetries(1), breaker.Constant(0), breaker.WithBudget(budget))))
	attempts := func() int {
		return b.Try(context.Background(), func(context.Context) (int, error) { return 0, errBoom }).Attempts
	}
	require.Equal(t, 2, attempts())
	require.Equal(t, 1, attempts())
	clk.add(-time.Hour)
	require.Equal(t, 1, attempts())
	clk.add(11 * time.Second)
	require.Equal(t, 2, attempts())
}

// setBackClock moves in both directions.
type setBackClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *setBackClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *setBackClock) After(time.Duration) <-chan time.Time {
	now := make(chan time.Time, 1)
	now <- c.Now()
	return now
}

func (c *setBackClock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// awayError asks to be left alone for some time.
type awayError struct{ time.Duration }

func (e *awayError) Error() string             { return "away" }
func (e *awayError) RetryAfter() time.Duration { return e.Duration }
