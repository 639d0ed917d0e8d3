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
	"github.com/breakerkit/breaker/internal/breakertest"
)

// BC-55.
func TestOneChangeOneEventInOrder(t *testing.T) {
	breakertest.BothClocks(t, func(w *breakertest.World) {
		r := w.R0(breaker.WithSuccessThreshold(2), breaker.WithHalfOpenProbes(2), breaker.WithOpenTimeout(time.Millisecond))
		const workers, each = 64, 500
		var all sync.WaitGroup
		for i := range workers {
			all.Go(func() {
				rng := rand.New(rand.NewPCG(1, uint64(i)))
				for range each {
					err := breakertest.ErrBoom
					if rng.IntN(3) > 0 {
						err = nil
					}
					_ = r.C.Run(context.Background(), func(context.Context) error { return err })
					switch rng.IntN(50) {
					case 0:
						r.C.Reset()
					case 1:
						r.C.Trip(nil)
					case 2:
						r.C.OfferProbe()
					}
				}
			})
		}
		all.Wait()
		if w.Clk == nil {
			synctest.Wait() // a goroutine may still be delivering
		}
		r.C.Trip(breakertest.ErrClient) // the last event of all
		r.C.OfferProbe()
		r.C.Trip(breakertest.ErrClient)
		events := r.Events.WaitFor(w, func(all []breaker.Transition) bool {
			return len(all) > 0 && all[len(all)-1].Epoch == r.C.Snapshot().Epoch
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
		require.Equal(w, events[len(events)-1].To, r.C.Snapshot().State)
		r.Idle()
	})
}

// BC-137.
func TestHooksMayAsk(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		var r *breakertest.Rig
		asked := make(map[string]int)
		ask := func(who string) {
			asked[who]++
			if asked[who] > 20 {
				return
			}
			_, _, _, _ = r.C.State(), r.C.Snapshot(), r.C.Ready(), r.C.Config()
			for range r.C.Circuits() {
			}
			_ = r.C.Configure(breaker.WithMaxInFlight(100 + asked[who]))
			if who == "StateChange" || who == "Rescue" { // a call that succeeds would end the run elsewhere
				_ = r.C.Run(context.Background(), func(context.Context) error { return nil })
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
		if w.Way.Name != breakertest.ByPolicy.Name {
			opts = append(opts, breaker.WithClassifier(func(error) breaker.Outcome { ask("Classifier"); return breaker.Failure }))
		}
		r = w.R0(opts...)
		_ = r.Call(nil)
		for range 3 {
			_ = r.Call(breakertest.ErrBoom)
		}
		r.Is(breaker.Open)
		_, _ = r.B.DoOr(w.Context(), func(context.Context) (int, error) { return 1, nil }, func(context.Context, error) (int, error) { return 2, nil })
		w.Add(time.Minute)
		for range 3 {
			_ = r.Call(nil)
		}
		r.Is(breaker.Closed)
		r.C.Trip(nil)
		r.C.OfferProbe()
		r.C.Reset()
		for _, who := range []string{"StateChange", "Call", "Reject", "Rescue", "TripWhen", "Logger", "Rand"} {
			require.Positive(w, asked[who], who)
		}
	})
	t.Run("a hook may move the state", func(t *testing.T) {
		breakertest.BothClocks(t, func(w *breakertest.World) {
			var r *breakertest.Rig
			r = w.R0(breaker.WithHooks(breaker.Hooks{StateChange: func(t breaker.Transition) {
				if t.To == breaker.Open {
					r.C.Reset()
				}
			}}))
			for range 10 {
				r.Fails(3)
				r.Is(breaker.Closed)
			}
			require.Len(w, r.Steps(), 20)
		})
	})
	t.Run("an error may ask", func(t *testing.T) {
		breakertest.BothClocks(t, func(w *breakertest.World) {
			r := w.R0()
			e := &askingError{ask: func() { r.C.State(); r.C.Snapshot() }}
			for range 3 {
				r.FailsWith(e)
			}
			r.Is(breaker.Open)
			_ = r.C.Snapshot()
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
	breakertest.BothClocks(t, func(w *breakertest.World) {
		hold := make(chan struct{})
		entered := make(chan struct{})
		var first sync.Once
		r := w.R0(breaker.WithHooks(breaker.Hooks{StateChange: func(breaker.Transition) {
			first.Do(func() { close(entered); <-hold })
		}}))
		other := w.R0()
		r.Fails(2)
		var causing sync.WaitGroup
		causing.Go(func() { _ = r.Call(breakertest.ErrBoom) })
		<-entered
		r.Is(breaker.Open)
		for range 100 {
			r.Rejected()
		}
		other.Succeeds(1)
		other.Trip()
		r.C.Reset() // its event waits behind the first
		r.Is(breaker.Closed)
		r.Succeeds(1)
		r.Fails(3)
		r.Is(breaker.Open)
		w.Add(10 * time.Second)
		r.Succeeds(1)
		r.Is(breaker.Closed)
		require.Len(w, r.Steps(), 1, "this hook was given first and has had one event")
		close(hold)
		causing.Wait()
		require.Equal(w, []string{
			"closed>open at 0s: threshold reached",
			"open>closed at 0s: manual",
			"closed>open at 0s: threshold reached",
			"open>half-open at 10s: timeout expired",
			"half-open>closed at 10s: recovered",
		}, r.Steps())
	})
	t.Run("who delivers does not deliver for ever", func(t *testing.T) {
		breakertest.BothClocks(t, func(w *breakertest.World) {
			hold := make(chan struct{})
			entered := make(chan struct{})
			var first sync.Once
			r := w.R0(breaker.WithHooks(breaker.Hooks{StateChange: func(breaker.Transition) {
				first.Do(func() { close(entered); <-hold })
			}}))
			var causing sync.WaitGroup
			causing.Go(func() { r.C.Trip(nil) })
			<-entered
			for range 50 {
				r.C.Reset()
				r.C.Trip(nil)
			}
			close(hold)
			causing.Wait()
			all := r.Events.WaitFor(w, func(all []breaker.Transition) bool { return len(all) == 101 })
			for i := 1; i < len(all); i++ {
				require.Greater(w, all[i].Epoch, all[i-1].Epoch)
			}
		})
	})
	t.Run("a hook that panics or exits holds up no event", func(t *testing.T) {
		for name, misbehave := range map[string]func(){"panics": func() { panic("hook") }, "exits": runtime.Goexit} {
			for which, h := range rudeHooks(misbehave) {
				t.Run(which+" "+name, func(t *testing.T) {
					breakertest.BothClocks(t, func(w *breakertest.World) {
						log := &logged{}
						r := w.R0(breaker.WithHooks(h), breaker.WithLogger(slog.New(log)))
						after := breakertest.NewRecorder()
						r2 := w.R0(breaker.WithHooks(h), breaker.WithHooks(after.Hooks()))
						for _, r := range []*breakertest.Rig{r, r2} {
							for range 3 {
								_ = breakertest.InGoroutine(func() { _ = r.C.Run(context.Background(), func(context.Context) error { return breakertest.ErrBoom }) })
							}
							r.Is(breaker.Open)
							_ = breakertest.InGoroutine(func() { _ = r.C.Run(context.Background(), func(context.Context) error { return nil }) })
							_ = breakertest.InGoroutine(func() {
								_, _ = r.B.DoOr(context.Background(), func(context.Context) (int, error) { return 1, nil }, func(context.Context, error) (int, error) { return 1, nil })
							})
							require.EqualValues(w, 2, r.C.Snapshot().Totals.Rejected)
						}
						after.WaitFor(w, func(all []breaker.Transition) bool { return len(all) == 1 })
						r.Events.WaitFor(w, func(all []breaker.Transition) bool { return len(all) == 1 })
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
	breakertest.Everywhere(t, func(w *breakertest.World) {
		gauge := map[breaker.State]int{breaker.Closed: 1}
		r := w.R0(breaker.WithHooks(breaker.Hooks{StateChange: func(t breaker.Transition) { gauge[t.From]--; gauge[t.To]++ }}))
		shows := func(want breaker.State) {
			w.Helper()
			r.Is(want)
			for s, n := range gauge {
				if s == want {
					require.Equal(w, 1, n, "%v", s)
				} else {
					require.Zero(w, n, "%v", s)
				}
			}
		}
		shows(breaker.Closed)
		r.Trip()
		shows(breaker.Open)
		w.At(10 * time.Second)
		probe := r.Gate()
		shows(breaker.HalfOpen)
		probe.Finish(breakertest.ErrBoom)
		shows(breaker.Open)
		w.At(20 * time.Second)
		probe = r.Gate()
		shows(breaker.HalfOpen)
		probe.Finish(nil)
		shows(breaker.Closed)
		w.At(time.Hour)
		shows(breaker.Closed)
	})
}

// O04.
func TestOneCallbackPerTransitionInOrderOutsideTheLock(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		var r *breakertest.Rig
		var seen []breaker.State
		r = w.Circuit(breaker.WithHooks(breaker.Hooks{StateChange: func(t breaker.Transition) {
			seen = append(seen, r.C.State())
			require.Equal(w, t.To, r.C.Snapshot().State)
		}, Call: func(context.Context, breaker.CallEvent) {
			require.Equal(w, r.C.State(), r.C.Snapshot().State)
		}, Reject: func(context.Context, breaker.RejectEvent) {
			require.Equal(w, breaker.Open, r.C.State())
			require.Equal(w, breaker.Open, r.C.Snapshot().State)
		}}))
		r.Trip()
		r.Rejected()
		w.At(30 * time.Second)
		r.Succeeds(2)
		require.Equal(w, []breaker.State{breaker.Open, breaker.HalfOpen, breaker.Closed}, seen)
		var epoch uint64
		from := breaker.Closed
		for _, e := range r.Events.List() {
			require.Equal(w, from, e.From)
			require.Greater(w, e.Epoch, epoch)
			require.Equal(w, "test", e.Name)
			require.False(w, e.Remote)
			from, epoch = e.To, e.Epoch
		}
		require.Equal(w, epoch, r.C.Snapshot().Epoch)
	})
	t.Run("several hooks in the order given", func(t *testing.T) {
		breakertest.BothClocks(t, func(w *breakertest.World) {
			var order []int
			numbered := func(n int) breaker.Option {
				return breaker.WithHooks(breaker.Hooks{StateChange: func(breaker.Transition) { order = append(order, n) }})
			}
			r := w.Circuit(numbered(1), numbered(2), breaker.WithFailureThreshold(1), numbered(3))
			r.Trip()
			require.Equal(w, []int{1, 2, 3}, order)
		})
	})
}

// O05.
func TestLogLevelsAndAttributes(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		log := &logged{}
		r := w.Circuit(breaker.WithLogger(slog.New(log)))
		r.Trip()
		w.At(30 * time.Second)
		r.Fails(1)
		w.At(60 * time.Second)
		r.Succeeds(2)

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
		require.True(w, first["until"].Time().Equal(w.Start.Add(30*time.Second)))
		require.Equal(w, breakertest.ErrBoom, first["cause"].Any())
	})
}

// O06.
func TestOneReasonPerTransition(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		r := w.Circuit()
		r.Trip()
		w.At(30 * time.Second)
		r.Fails(1)
		w.At(60 * time.Second)
		r.Succeeds(2)
		r.C.Trip(breakertest.ErrClient)
		w.At(61 * time.Second)
		r.C.OfferProbe()
		r.C.Reset()
		r.C.Trip(nil)
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
		}, r.Steps())
		for i, want := range []error{breakertest.ErrBoom, nil, breakertest.ErrBoom, nil, nil, breakertest.ErrClient, nil, nil, nil} {
			e := r.Events.List()[i]
			require.Equal(w, want, e.Cause, "the cause of event %d", i)
			if e.To == breaker.Open {
				require.True(w, e.Until.Equal(e.At.Add(30*time.Second)))
			} else {
				require.True(w, e.Until.IsZero())
			}
		}
	})
	t.Run("a manual trip has no failure to blame", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			for name, before := range map[string]func(*breakertest.Rig){
				"after a failure":                func(r *breakertest.Rig) { r.Fails(1) },
				"after a failure and a success":  func(r *breakertest.Rig) { r.Fails(1); r.Succeeds(1) },
				"after an outage that is over":   func(r *breakertest.Rig) { r.Trip(); r.C.Reset() },
				"while probing after a failure":  func(r *breakertest.Rig) { r.Trip(); r.C.OfferProbe() },
				"with nothing that ever went by": func(*breakertest.Rig) {},
			} {
				r := w.Circuit()
				before(r)
				r.C.Trip(nil)
				events := r.Events.List()
				require.NoError(w, events[len(events)-1].Cause, name)
				require.NoError(w, r.Rejected().Cause, name)
			}
		})
	})
	t.Run("counts are those of the stay that ended", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.Circuit()
			r.Succeeds(10)
			r.Trip()
			w.At(30 * time.Second)
			r.Succeeds(1)
			r.Fails(1)
			events := r.Events.List()
			require.Equal(w, breaker.Counts{Successes: 10, Failures: 5, ConsecutiveFailures: 5}, events[0].Counts)
			require.Zero(w, events[1].Counts)
			require.EqualValues(w, 1, events[2].Counts.Successes)
			require.EqualValues(w, 1, events[2].Counts.Failures)
		})
	})
}

// A logger that Configure adds is told of every change from then on, and of none from before, even while a hook that was
// there before is still busy with an earlier change.
func TestALoggerAddedByConfigureMissesNothing(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		entered, release := make(chan struct{}), make(chan struct{})
		first := true
		var told []breaker.State
		c := breaker.Must(breaker.NewCircuit("c", breaker.WithHooks(breaker.Hooks{StateChange: func(tr breaker.Transition) {
			told = append(told, tr.To)
			if first {
				first = false
				close(entered)
				<-release
			}
		}})))
		go c.Trip(nil)
		<-entered
		c.Reset() // before the logger
		var before, after logged
		require.NoError(w, c.Configure(breaker.WithLogger(slog.New(&before))))
		c.Trip(nil)
		require.NoError(w, c.Configure(breaker.WithLogger(slog.New(&after))))
		c.Reset()
		close(release)
		synctest.Wait()
		require.Equal(w, []breaker.State{breaker.Open, breaker.Closed, breaker.Open, breaker.Closed}, told)
		require.Len(w, before.list(), 1)
		require.Equal(w, "open", attrs(before.list()[0])["to"].String())
		require.Len(w, after.list(), 1)
		require.Equal(w, "closed", attrs(after.list()[0])["to"].String())
	})
}
