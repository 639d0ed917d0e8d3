package breaker_test

import (
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// BC-55.
func TestOneChangeOneEventInOrder(t *testing.T) {
	bothClocks(t, func(w *world) {
		r := w.r0(breaker.WithSuccessThreshold(2), breaker.WithHalfOpenProbes(2), breaker.WithOpenTimeout(time.Millisecond))
		const workers, each = 64, 500
		var all sync.WaitGroup
		for i := range workers {
			all.Go(func() {
				rng := rand.New(rand.NewPCG(1, uint64(i)))
				for range each {
					err := errBoom
					if rng.IntN(3) > 0 {
						err = nil
					}
					_ = r.c.Run(context.Background(), func(context.Context) error { return err })
					switch rng.IntN(50) {
					case 0:
						r.c.Reset()
					case 1:
						r.c.Trip(nil)
					case 2:
						r.c.OfferProbe()
					}
				}
			})
		}
		all.Wait()
		if w.clk == nil {
			synctest.Wait() // a goroutine may still be delivering
		}
		r.c.Trip(errClient) // the last event of all
		r.c.OfferProbe()
		r.c.Trip(errClient)
		events := r.events.waitFor(w, func(all []breaker.Transition) bool {
			return len(all) > 0 && all[len(all)-1].Epoch == r.c.Snapshot().Epoch
		})
		require.Greater(w, len(events), 100)
		require.Equal(w, breaker.Closed, events[0].From)
		for i, e := range events {
			require.NotEqual(w, e.From, e.To)
			if i > 0 {
				require.Equal(w, events[i-1].To, e.From, "the chain is broken at %d", i)
				require.Greater(w, e.Epoch, events[i-1].Epoch)
				require.False(w, e.At.Before(events[i-1].At))
			}
		}
		require.Equal(w, events[len(events)-1].To, r.c.Snapshot().State)
		r.idle()
	})
}

// BC-137.
func TestHooksMayAsk(t *testing.T) {
	everywhere(t, func(w *world) {
		var r *rig
		asked := make(map[string]int)
		ask := func(who string) {
			asked[who]++
			if asked[who] > 20 {
				return
			}
			_, _, _, _ = r.c.State(), r.c.Snapshot(), r.c.Ready(), r.c.Config()
			for range r.c.Circuits() {
			}
			_ = r.c.Configure(breaker.WithMaxInFlight(100 + asked[who]))
			if who == "StateChange" || who == "Rescue" { // a call that succeeds would end the run elsewhere
				_ = r.c.Run(context.Background(), func(context.Context) error { return nil })
			}
		}
		opts := []breaker.Option{
			breaker.WithHooks(breaker.Hooks{
				StateChange: func(breaker.Transition) { ask("StateChange") },
				Call:        func(context.Context, breaker.CallEvent) { ask("Call") },
				Reject:      func(context.Context, breaker.RejectEvent) { ask("Reject") },
				Rescue:      func(context.Context, breaker.RescueEvent) { ask("Rescue") },
			}),
			breaker.WithTrip(breaker.ConsecutiveFailures(3), breaker.TripWhen(breaker.LastCalls(5), func(breaker.Counts) bool { ask("TripWhen"); return false })),
			breaker.WithLogger(slog.New(askingHandler{slog.NewTextHandler(io.Discard, nil), func() { ask("Logger") }})),
			breaker.WithRand(func() float64 { ask("Rand"); return 0 }),
			breaker.WithOpenBackoff(2, time.Hour, 0.5),
			breaker.WithSuccessThreshold(3),
		}
		if w.way.name != byPolicy.name {
			opts = append(opts, breaker.WithClassifier(func(error) breaker.Outcome { ask("Classifier"); return breaker.Failure }))
		}
		r = w.r0(opts...)
		_ = r.call(nil)
		for range 3 {
			_ = r.call(errBoom)
		}
		r.state(breaker.Open)
		_, _ = r.b.DoOr(w.Context(), func(context.Context) (int, error) { return 1, nil }, func(context.Context, error) (int, error) { return 2, nil })
		w.add(time.Minute)
		for range 3 {
			_ = r.call(nil)
		}
		r.state(breaker.Closed)
		r.c.Trip(nil)
		r.c.OfferProbe()
		r.c.Reset()
		for _, who := range []string{"StateChange", "Call", "Reject", "Rescue", "TripWhen", "Logger", "Rand"} {
			require.Positive(w, asked[who], who)
		}
	})
	t.Run("a hook may move the state", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			var r *rig
			r = w.r0(breaker.WithHooks(breaker.Hooks{StateChange: func(t breaker.Transition) {
				if t.To == breaker.Open {
					r.c.Reset()
				}
			}}))
			for range 10 {
				r.fail(3)
				r.state(breaker.Closed)
			}
			require.Len(w, r.steps(), 20)
		})
	})
	t.Run("an error may ask", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			r := w.r0()
			e := &askingError{ask: func() { r.c.State(); r.c.Snapshot() }}
			for range 3 {
				r.failWith(e)
			}
			r.state(breaker.Open)
			_ = r.c.Snapshot()
		})
	})
}

// askingHandler asks before it handles.
type askingHandler struct {
	slog.Handler
	ask func()
}

func (h askingHandler) Handle(ctx context.Context, r slog.Record) error {
	h.ask()
	return h.Handler.Handle(ctx, r)
}

// askingError asks in every method.
type askingError struct {
	asking atomic.Bool
	ask    func()
}

func (e *askingError) once() {
	if e.asking.CompareAndSwap(false, true) {
		defer e.asking.Store(false)
		e.ask()
	}
}

func (e *askingError) Error() string { e.once(); return "asking" }

func (e *askingError) Is(error) bool { e.once(); return false }

func (e *askingError) RetryAfter() time.Duration { e.once(); return 0 }

// BC-139.
func TestSlowHookSlowsNobodyElse(t *testing.T) {
	bothClocks(t, func(w *world) {
		hold := make(chan struct{})
		entered := make(chan struct{})
		var first sync.Once
		r := w.r0(breaker.WithHooks(breaker.Hooks{StateChange: func(breaker.Transition) {
			first.Do(func() { close(entered); <-hold })
		}}))
		other := w.r0()
		r.fail(2)
		var causing sync.WaitGroup
		causing.Go(func() { _ = r.call(errBoom) })
		<-entered
		r.state(breaker.Open)
		for range 100 {
			r.rejected()
		}
		other.ok(1)
		other.trip()
		r.c.Reset() // its event waits behind the first
		r.state(breaker.Closed)
		r.ok(1)
		r.fail(3)
		r.state(breaker.Open)
		w.add(10 * time.Second)
		r.ok(1)
		r.state(breaker.Closed)
		require.Len(w, r.steps(), 1, "this hook was given first and has had one event")
		close(hold)
		causing.Wait()
		require.Equal(w, []string{
			"closed>open at 0s: threshold reached",
			"open>closed at 0s: manual",
			"closed>open at 0s: threshold reached",
			"open>half-open at 10s: timeout expired",
			"half-open>closed at 10s: recovered",
		}, r.steps())
	})
	t.Run("who delivers does not deliver for ever", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			hold := make(chan struct{})
			entered := make(chan struct{})
			var first sync.Once
			r := w.r0(breaker.WithHooks(breaker.Hooks{StateChange: func(breaker.Transition) {
				first.Do(func() { close(entered); <-hold })
			}}))
			var causing sync.WaitGroup
			causing.Go(func() { r.c.Trip(nil) })
			<-entered
			for range 50 {
				r.c.Reset()
				r.c.Trip(nil)
			}
			close(hold)
			causing.Wait()
			all := r.events.waitFor(w, func(all []breaker.Transition) bool { return len(all) == 101 })
			for i := 1; i < len(all); i++ {
				require.Greater(w, all[i].Epoch, all[i-1].Epoch)
			}
		})
	})
	t.Run("a hook that panics or exits holds up no event", func(t *testing.T) {
		for name, misbehave := range map[string]func(){"panics": func() { panic("hook") }, "exits": runtime.Goexit} {
			for which, h := range rudeHooks(misbehave) {
				t.Run(which+" "+name, func(t *testing.T) {
					bothClocks(t, func(w *world) {
						log := &logged{}
						r := w.r0(breaker.WithHooks(h), breaker.WithLogger(slog.New(log)))
						after := newRecorder()
						r2 := w.r0(breaker.WithHooks(h), breaker.WithHooks(after.hooks()))
						for _, r := range []*rig{r, r2} {
							for range 3 {
								_ = inGoroutine(func() { _ = r.c.Run(context.Background(), func(context.Context) error { return errBoom }) })
							}
							r.state(breaker.Open)
							_ = inGoroutine(func() { _ = r.c.Run(context.Background(), func(context.Context) error { return nil }) })
							_ = inGoroutine(func() {
								_, _ = r.b.DoOr(context.Background(), func(context.Context) (int, error) { return 1, nil }, func(context.Context, error) (int, error) { return 1, nil })
							})
							require.EqualValues(w, 2, r.c.Snapshot().Totals.Rejected)
						}
						after.waitFor(w, func(all []breaker.Transition) bool { return len(all) == 1 })
						r.events.waitFor(w, func(all []breaker.Transition) bool { return len(all) == 1 })
						errorsLogged := 0
						for _, rec := range log.list() {
							if rec.Level == slog.LevelError {
								errorsLogged++
							}
						}
						require.Positive(w, errorsLogged, "it is reported to the logger")
					})
				})
			}
		}
	})
}

// BC-141.
func TestGaugeFollowsTheState(t *testing.T) {
	everywhere(t, func(w *world) {
		gauge := map[breaker.State]int{breaker.Closed: 1}
		r := w.r0(breaker.WithHooks(breaker.Hooks{StateChange: func(t breaker.Transition) { gauge[t.From]--; gauge[t.To]++ }}))
		shows := func(want breaker.State) {
			w.Helper()
			r.state(want)
			for s, n := range gauge {
				if s == want {
					require.Equal(w, 1, n, "%v", s)
				} else {
					require.Zero(w, n, "%v", s)
				}
			}
		}
		shows(breaker.Closed)
		r.trip()
		shows(breaker.Open)
		w.at(10 * time.Second)
		probe := r.gate()
		shows(breaker.HalfOpen)
		probe.finish(errBoom)
		shows(breaker.Open)
		w.at(20 * time.Second)
		probe = r.gate()
		shows(breaker.HalfOpen)
		probe.finish(nil)
		shows(breaker.Closed)
		w.at(time.Hour)
		shows(breaker.Closed)
	})
}

// O04.
func TestOneCallbackPerTransitionInOrderOutsideTheLock(t *testing.T) {
	everywhere(t, func(w *world) {
		var r *rig
		var seen []breaker.State
		r = w.circuit(breaker.WithHooks(breaker.Hooks{StateChange: func(t breaker.Transition) {
			seen = append(seen, r.c.State())
			require.Equal(w, t.To, r.c.Snapshot().State)
		}, Call: func(context.Context, breaker.CallEvent) {
			require.Equal(w, r.c.State(), r.c.Snapshot().State)
		}, Reject: func(context.Context, breaker.RejectEvent) {
			require.Equal(w, breaker.Open, r.c.State())
			require.Equal(w, breaker.Open, r.c.Snapshot().State)
		}}))
		r.trip()
		r.rejected()
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

// O05.
func TestLogLevelsAndAttributes(t *testing.T) {
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

// O06.
func TestOneReasonPerTransition(t *testing.T) {
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
