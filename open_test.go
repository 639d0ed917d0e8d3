package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// BC-04.
func TestTripAndOfferWhereTheyChangeNothing(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.r0()
		r.c.OfferProbe()
		r.state(breaker.Closed)
		require.EqualValues(w, 1, r.c.Snapshot().Epoch)
		pending := r.gate()
		r.trip()
		epoch := r.c.Snapshot().Epoch
		w.at(4 * time.Second)
		r.c.Trip(hint(time.Minute))
		require.Equal(w, 6*time.Second, r.rejected().RetryAfter(), "an open circuit's period is not restarted")
		require.Equal(w, epoch, r.c.Snapshot().Epoch)
		pending.finish(nil)

		w.at(10 * time.Second)
		r.c.OfferProbe() // due already
		require.Len(w, r.steps(), 1)
		r.c.Trip(nil) // the period has ended: this one opens anew
		require.Equal(w, 10*time.Second, r.rejected().RetryAfter())
		require.Equal(w, []string{"open>half-open at 10s: timeout expired", "half-open>open at 10s: manual"}, r.steps()[1:])

		w.at(15 * time.Second)
		r.c.OfferProbe()
		probe := r.gate()
		epoch = r.c.Snapshot().Epoch
		r.c.OfferProbe()
		require.Equal(w, epoch, r.c.Snapshot().Epoch)
		require.EqualValues(w, 1, r.c.Snapshot().Probes)
		probe.finish(nil)
		r.state(breaker.Closed)
	})
}

// A rejection is given out again and again; none outlives its reason.
// BC-04.
func TestRejectionEndsWithItsReason(t *testing.T) {
	open := func(r *rig) { r.trip() }
	probing := func(r *rig) { r.trip(); r.add(10 * time.Second); r.gate() }
	for name, tc := range map[string]struct{ begin, end func(*rig) }{
		"open, time":                 {open, func(r *rig) { r.add(10 * time.Second) }},
		"open, OfferProbe":           {open, func(r *rig) { r.c.OfferProbe() }},
		"open, Reset":                {open, func(r *rig) { r.c.Reset() }},
		"open, ForcedClosed":         {open, func(r *rig) { r.c.SetMode(breaker.ForcedClosed) }},
		"open, Shadow":               {open, func(r *rig) { r.c.SetMode(breaker.Shadow) }},
		"open, configured":           {open, func(r *rig) { require.NoError(r, r.c.Configure(breaker.WithMode(breaker.Shadow))) }},
		"forced, Auto":               {func(r *rig) { r.c.SetMode(breaker.ForcedOpen) }, func(r *rig) { r.c.SetMode(breaker.Auto) }},
		"forced, configured":         {func(r *rig) { r.c.SetMode(breaker.ForcedOpen) }, func(r *rig) { require.NoError(r, r.c.Configure(breaker.WithMode(breaker.ForcedClosed))) }},
		"probing, lease":             {probing, func(r *rig) { r.add(10 * time.Second) }},
		"probing, a slot more":       {probing, func(r *rig) { require.NoError(r, r.c.Configure(breaker.WithHalfOpenProbes(2))) }},
		"probing, Reset":             {probing, func(r *rig) { r.c.Reset() }},
		"probing, tripped, due":      {probing, func(r *rig) { r.c.Trip(nil); r.add(10 * time.Second) }},
		"probing, tripped, rejected": {probing, func(r *rig) { r.c.Trip(nil); r.rejected(); r.c.OfferProbe() }},
		"probing, ForcedClosed":      {probing, func(r *rig) { r.c.SetMode(breaker.ForcedClosed) }},
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(w *world) {
				r := w.r0()
				tc.begin(r)
				for range 3 {
					r.rejected()
				}
				require.False(w, r.c.Ready())
				tc.end(r)
				require.True(w, r.c.Ready())
				r.ok(1)
			})
		})
	}
	t.Run("probing, slot handed back", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0(breaker.WithSuccessThreshold(2), breaker.WithHalfOpenProbes(1))
			r.trip()
			w.at(10 * time.Second)
			probe := r.gate()
			r.rejected()
			probe.finish(nil)
			r.ok(1)
			r.state(breaker.Closed)
		})
	})
	t.Run("and each carries what holds now", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			r.trip()
			require.Equal(w, errBoom, r.rejected().Cause)
			w.at(10 * time.Second)
			r.failWith(errClient)
			e := r.rejected()
			require.Equal(w, errClient, e.Cause)
			require.True(w, e.Until.Equal(w.start.Add(20*time.Second)))
			r.c.SetMode(breaker.ForcedOpen)
			require.Equal(w, breaker.ForcedOpen, r.rejected().Mode)
			r.c.SetMode(breaker.Auto)
			require.Equal(w, breaker.Auto, r.rejected().Mode)
		})
	})
}

// BC-10.
func TestForcedOpenMeansNoProbes(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.r0()
		r.c.SetMode(breaker.ForcedOpen)
		for i := range 20 {
			w.at(time.Duration(i) * 5 * time.Second)
			require.False(w, r.c.Ready())
			e := r.rejected()
			require.Equal(w, breaker.ForcedOpen, e.Mode)
			require.True(w, e.Until.IsZero(), "nobody knows until when")
			require.Zero(w, e.RetryAfter())
			if i == 10 {
				r.c.Reset()
			}
		}
		w.at(100 * time.Second)
		r.c.SetMode(breaker.Auto)
		r.state(breaker.Closed)
		r.ok(1)
		require.Empty(w, r.steps(), "a mode is no state")
	})
	t.Run("over an open circuit that is reset", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			r.trip()
			r.c.SetMode(breaker.ForcedOpen)
			w.at(5 * time.Second)
			r.rejected()
			r.c.Reset()
			r.rejected()
			r.c.SetMode(breaker.Auto)
			r.state(breaker.Closed)
			r.ok(1)
		})
	})
	t.Run("over an open circuit that comes due", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			r.trip()
			r.c.SetMode(breaker.ForcedOpen)
			w.at(50 * time.Second)
			r.rejected()
			require.Zero(w, r.c.Snapshot().Probes)
			r.c.SetMode(breaker.Auto)
			r.state(breaker.HalfOpen)
			r.ok(1)
			r.state(breaker.Closed)
		})
	})
	t.Run("over a half-open circuit with a probe out", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			r.trip()
			w.at(10 * time.Second)
			probe := r.gate()
			r.c.SetMode(breaker.ForcedOpen)
			r.rejected()
			probe.finish(nil) // the machine goes on underneath
			r.state(breaker.Closed)
			r.rejected()
			r.c.SetMode(breaker.Auto)
			r.ok(1)
			r.idle()
		})
	})
	t.Run("the run of failures stays", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			r.fail(2)
			r.c.SetMode(breaker.ForcedOpen)
			r.rejected()
			r.c.SetMode(breaker.Auto)
			r.fail(1)
			r.state(breaker.Open)
		})
	})
	t.Run("from the start", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0(breaker.WithMode(breaker.ForcedOpen))
			r.rejected()
			r.state(breaker.Closed)
			require.Equal(w, breaker.ForcedOpen, r.c.Snapshot().Mode)
		})
	})
	t.Run("forced closed never trips", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0(breaker.WithMode(breaker.ForcedClosed))
			r.fail(20)
			r.state(breaker.Closed)
			require.EqualValues(w, 20, r.c.Snapshot().Totals.Failures, "but it counts")
			r.c.Trip(nil)
			r.state(breaker.Open) // an operator's word, and the machine's own state
			require.True(w, r.c.Ready())
			r.fail(3)
			w.at(10 * time.Second)
			r.fail(3)
			r.c.SetMode(breaker.Auto)
			r.state(breaker.HalfOpen)
			r.ok(1)
			r.state(breaker.Closed)
			r.idle()
		})
	})
	t.Run("shadow reports and admits", func(t *testing.T) {
		everywhere(t, func(w *world) {
			var would []breaker.RejectEvent
			r := w.r0(breaker.WithMode(breaker.Shadow), breaker.WithHooks(breaker.Hooks{
				Reject: func(_ context.Context, e breaker.RejectEvent) { would = append(would, e) },
			}))
			r.trip()
			require.True(w, r.c.Ready())
			r.ok(4)
			r.fail(1)
			require.Len(w, would, 5)
			for _, e := range would {
				require.True(w, e.Shadow)
				require.ErrorIs(w, e.Err, breaker.ErrOpen)
				require.Equal(w, "test", e.Name)
			}
			require.Zero(w, r.c.Snapshot().Totals.Rejected, "nobody was")
			r.state(breaker.Open)
			w.at(10 * time.Second)
			probe := r.gate()
			r.ok(2) // beside the probe: not admitted as probes, hence no verdict
			r.state(breaker.HalfOpen)
			require.Len(w, would, 7)
			require.ErrorIs(w, would[6].Err, breaker.ErrTooManyProbes)
			probe.finish(nil)
			r.state(breaker.Closed)
			r.ok(1)
			require.Len(w, would, 7)
			r.idle()
		})
	})
}

// BC-50.
func TestBoundaryMeansOneThing(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.r0()
		r.trip()
		w.at(10*time.Second - 1)
		require.EqualValues(w, 1, r.rejected().RetryAfter())
		require.False(w, r.c.Ready())
		r.state(breaker.Open)
		before := r.rejected()
		w.at(10 * time.Second)
		require.Zero(w, before.RetryAfter())
		require.True(w, r.c.Ready())
		r.state(breaker.HalfOpen)
		r.gate()
		for _, at := range []time.Duration{10 * time.Second, 15 * time.Second, 20*time.Second - 1} {
			w.at(at)
			e := r.rejected()
			require.Equal(w, 20*time.Second-at, e.RetryAfter())
			require.False(w, e.Until.Before(w.now()))
			require.Equal(w, breaker.HalfOpen, e.State)
			require.False(w, r.c.Ready())
		}
		w.at(time.Hour)
		require.Zero(w, before.RetryAfter(), "never negative")
		require.True(w, r.c.Ready())
	})
	t.Run("who waits as told is admitted", func(t *testing.T) {
		everywhere(t, func(w *world) {
			for _, opts := range [][]breaker.Option{
				nil,
				{breaker.WithOpenTimeout(1)},
				{breaker.WithOpenTimeout(time.Second + 1), breaker.WithOpenBackoff(1.7, time.Hour, 0)},
			} {
				r := w.r0(opts...)
				r.trip()
				for range 5 {
					w.add(r.rejected().RetryAfter())
					r.fail(1)
				}
			}
		})
	})
	t.Run("after the due time the next one's lease is told", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0(breaker.WithHalfOpenProbes(2), breaker.WithSuccessThreshold(3))
			r.trip()
			w.at(10 * time.Second)
			first := r.gate()
			w.at(13 * time.Second)
			r.gate()
			require.Equal(w, 7*time.Second, r.rejected().RetryAfter(), "the earliest lease")
			first.finish(nil)
			w.at(14 * time.Second)
			r.gate()
			require.Equal(w, 9*time.Second, r.rejected().RetryAfter(), "the earliest that is left")
		})
	})
}

// BC-83.
func TestJitterStaysInItsBounds(t *testing.T) {
	for _, tc := range []struct {
		factor, jitter, random float64
		max                    time.Duration
		want                   []time.Duration // in seconds, of the openings in a row
	}{
		{2, 0, 0.999, 100 * time.Second, []time.Duration{10, 20, 40, 80, 100, 100}},
		{2, 0.5, 0, 100 * time.Second, []time.Duration{10, 20, 40, 80, 100, 100}},
		{2, 0.5, 0.5, 100 * time.Second, []time.Duration{12500, 25000, 50000, 100000, 100000}},
		{1, 1, 0.5, 100 * time.Second, []time.Duration{15, 15, 15}},
		{3, 0, 0, 10 * time.Second, []time.Duration{10, 10, 10}},
		{1e300, 1, 0.999, time.Hour, []time.Duration{19990, 3600, 3600, 3600}},
		{2, 1, math.NaN(), 100 * time.Second, []time.Duration{10, 20}},
		{2, 1, 1, 100 * time.Second, []time.Duration{10, 20}},
		{2, 1, -5, 100 * time.Second, []time.Duration{10, 20}},
	} {
		t.Run(fmt.Sprint(tc.factor, tc.jitter, tc.random), func(t *testing.T) {
			bothClocks(t, func(w *world) {
				r := w.r0(breaker.WithOpenBackoff(tc.factor, tc.max, tc.jitter), breaker.WithRand(func() float64 { return tc.random }))
				r.trip()
				for _, want := range tc.want {
					if want < 10_000 {
						want *= 1000
					}
					got := r.rejected().RetryAfter()
					require.Equal(w, want*time.Millisecond, got)
					w.add(got)
					r.fail(1)
				}
			})
		})
	}
	t.Run("many openings", func(t *testing.T) {
		injected(t, byDo, func(w *world) {
			r := w.r0(breaker.WithOpenBackoff(1.5, time.Hour, 1))
			r.trip()
			last := time.Duration(0)
			for i := range 200 {
				d := r.rejected().RetryAfter()
				require.GreaterOrEqual(w, d, 10*time.Second)
				require.LessOrEqual(w, d, time.Hour)
				if i > 30 {
					require.Equal(w, time.Hour, d)
				}
				last = d
				w.clk.Set(w.clk.Now().Add(last))
				r.fail(1)
			}
		})
	})
	t.Run("a series ends when the circuit has stayed closed", func(t *testing.T) {
		everywhere(t, func(w *world) {
			for stay, want := range map[time.Duration]time.Duration{10*time.Second - 1: 40 * time.Second, 10 * time.Second: 10 * time.Second} {
				r := w.r0(breaker.WithOpenBackoff(2, time.Hour, 0))
				r.trip()
				w.add(10 * time.Second)
				r.fail(1)
				w.add(20 * time.Second)
				r.ok(1)
				w.add(stay)
				r.trip()
				require.Equal(w, want, r.rejected().RetryAfter())
			}
			r := w.r0(breaker.WithOpenBackoff(2, time.Hour, 0))
			r.trip()
			w.add(10 * time.Second)
			r.fail(1)
			r.c.Reset()
			r.trip()
			require.Equal(w, 10*time.Second, r.rejected().RetryAfter(), "Reset starts over")
		})
	})
	t.Run("a source of chance that panics", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			r := w.r0(breaker.WithOpenBackoff(2, time.Hour, 1), breaker.WithRand(func() float64 { panic("rand") }))
			r.trip()
			require.Equal(w, 10*time.Second, r.rejected().RetryAfter())
		})
	})
}

// BC-90.
func TestHintLengthensThePeriodItStarts(t *testing.T) {
	for _, tc := range []struct {
		name string
		opts []breaker.Option
		err  error
		want time.Duration
	}{
		{"longer than the timeout", nil, hint(25 * time.Second), 25 * time.Second},
		{"wrapped", nil, fmt.Errorf("get: %w", hint(25*time.Second)), 25 * time.Second},
		{"joined", nil, errors.Join(errBoom, hint(25*time.Second)), 25 * time.Second},
		{"shorter", nil, hint(time.Second), 10 * time.Second},
		{"zero", nil, hint(0), 10 * time.Second},
		{"negative", nil, hint(-time.Hour), 10 * time.Second},
		{"above the default maximum", nil, hint(time.Hour), 5 * time.Minute},
		{"beyond all measure", nil, hint(math.MaxInt64), 5 * time.Minute},
		{"above the maximum", []breaker.Option{breaker.WithOpenHint(20 * time.Second)}, hint(time.Hour), 20 * time.Second},
		{"a maximum below the timeout", []breaker.Option{breaker.WithOpenHint(time.Second)}, hint(time.Hour), 10 * time.Second},
		{"off", []breaker.Option{breaker.WithOpenHint(0)}, hint(25 * time.Second), 10 * time.Second},
		{"with backoff the longer counts", []breaker.Option{breaker.WithOpenBackoff(2, time.Hour, 0)}, hint(15 * time.Second), 15 * time.Second},
		{"no hint", nil, errBoom, 10 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			everywhere(t, func(w *world) {
				r := w.r0(tc.opts...)
				r.fail(2)
				r.failWith(tc.err)
				require.Equal(w, tc.want, r.rejected().RetryAfter())
				w.at(tc.want - 1)
				r.rejected()
				w.at(tc.want)
				r.ok(1)
			})
		})
	}
	t.Run("only of the failure that opens", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			straggler := r.gate()
			r.failWith(hint(25 * time.Second))
			r.failWith(hint(25 * time.Second))
			r.fail(1)
			require.Equal(w, 10*time.Second, r.rejected().RetryAfter())
			w.at(3 * time.Second)
			straggler.finish(hint(40 * time.Second))
			require.Equal(w, 7*time.Second, r.rejected().RetryAfter())
			require.Len(w, r.steps(), 1)
		})
	})
	t.Run("of a probe, and of Trip", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			r.c.Trip(hint(15 * time.Second))
			require.Equal(w, 15*time.Second, r.rejected().RetryAfter())
			w.at(15 * time.Second)
			r.failWith(hint(30 * time.Second))
			require.Equal(w, 30*time.Second, r.rejected().RetryAfter())
		})
	})
	t.Run("an ignored error's counts for nothing", func(t *testing.T) {
		everywhere(t, func(w *world) {
			if w.way.name == byPolicy.name {
				return
			}
			r := w.r0(breaker.WithIgnore(hint(time.Minute)))
			r.failWith(hint(time.Minute))
			r.trip()
			require.Equal(w, 10*time.Second, r.rejected().RetryAfter())
		})
	})
}

// K03.
func TestOpenRejectsAtOnce(t *testing.T) {
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

// K07.
func TestOpenLastsExactlyTheOpenTimeout(t *testing.T) {
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

// K08.
func TestHalfOpenIsLazy(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.circuit()
		before := runtime.NumGoroutine()
		r.trip()
		w.at(30*time.Second - 1)
		r.state(breaker.Open)
		w.at(30 * time.Second)
		r.state(breaker.HalfOpen)
		w.at(time.Hour)
		r.state(breaker.HalfOpen)
		require.Equal(w, breaker.HalfOpen, r.b.State())
		require.Equal(w, breaker.HalfOpen, r.c.Snapshot().State)
		require.True(w, r.c.Ready())
		noMoreThan(w, before)
		require.Len(w, r.steps(), 1, "reading moves nothing")
	})
}

// A reset left a timer behind that later moved a circuit which was forced open.
func TestResetLeavesNothingBehind(t *testing.T) {
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

// The error of a rejection did not say how long to wait.
func TestRejectionSaysHowLong(t *testing.T) {
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

// A growing open period had no jitter where a success was what opened: a fleet of slow dependencies probed in step.
func TestJitterWhateverOpens(t *testing.T) {
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
