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
	"github.com/breakerkit/breaker/internal/breakertest"
)

// BC-04.
func TestTripAndOfferWhereTheyChangeNothing(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		r := w.R0()
		r.C.OfferProbe()
		r.Is(breaker.Closed)
		require.EqualValues(w, 1, r.C.Snapshot().Epoch)
		pending := r.Gate()
		r.Trip()
		epoch := r.C.Snapshot().Epoch
		w.At(4 * time.Second)
		r.C.Trip(breakertest.Hint(time.Minute))
		require.Equal(w, 6*time.Second, r.Rejected().RetryAfter(), "an open circuit's period is not restarted")
		require.Equal(w, epoch, r.C.Snapshot().Epoch)
		pending.Finish(nil)

		w.At(10 * time.Second)
		r.C.OfferProbe() // due already
		require.Len(w, r.Steps(), 1)
		r.C.Trip(nil) // the period has ended: this one opens anew
		require.Equal(w, 10*time.Second, r.Rejected().RetryAfter())
		require.Equal(w, []string{"open>half-open at 10s: timeout expired", "half-open>open at 10s: manual"}, r.Steps()[1:])

		w.At(15 * time.Second)
		r.C.OfferProbe()
		probe := r.Gate()
		epoch = r.C.Snapshot().Epoch
		r.C.OfferProbe()
		require.Equal(w, epoch, r.C.Snapshot().Epoch)
		require.EqualValues(w, 1, r.C.Snapshot().Probes)
		probe.Finish(nil)
		r.Is(breaker.Closed)
	})
}

// A rejection is given out again and again; none outlives its reason.
// BC-04.
func TestRejectionEndsWithItsReason(t *testing.T) {
	open := func(r *breakertest.Rig) { r.Trip() }
	probing := func(r *breakertest.Rig) { r.Trip(); r.Add(10 * time.Second); r.Gate() }
	for name, tc := range map[string]struct{ begin, end func(*breakertest.Rig) }{
		"open, time":                 {open, func(r *breakertest.Rig) { r.Add(10 * time.Second) }},
		"open, OfferProbe":           {open, func(r *breakertest.Rig) { r.C.OfferProbe() }},
		"open, Reset":                {open, func(r *breakertest.Rig) { r.C.Reset() }},
		"open, ForcedClosed":         {open, func(r *breakertest.Rig) { r.C.SetMode(breaker.ForcedClosed) }},
		"open, Shadow":               {open, func(r *breakertest.Rig) { r.C.SetMode(breaker.Shadow) }},
		"open, configured":           {open, func(r *breakertest.Rig) { require.NoError(r, r.C.Configure(breaker.WithMode(breaker.Shadow))) }},
		"forced, Auto":               {func(r *breakertest.Rig) { r.C.SetMode(breaker.ForcedOpen) }, func(r *breakertest.Rig) { r.C.SetMode(breaker.Auto) }},
		"forced, configured":         {func(r *breakertest.Rig) { r.C.SetMode(breaker.ForcedOpen) }, func(r *breakertest.Rig) { require.NoError(r, r.C.Configure(breaker.WithMode(breaker.ForcedClosed))) }},
		"probing, lease":             {probing, func(r *breakertest.Rig) { r.Add(10 * time.Second) }},
		"probing, a slot more":       {probing, func(r *breakertest.Rig) { require.NoError(r, r.C.Configure(breaker.WithHalfOpenProbes(2))) }},
		"probing, Reset":             {probing, func(r *breakertest.Rig) { r.C.Reset() }},
		"probing, tripped, due":      {probing, func(r *breakertest.Rig) { r.C.Trip(nil); r.Add(10 * time.Second) }},
		"probing, tripped, rejected": {probing, func(r *breakertest.Rig) { r.C.Trip(nil); r.Rejected(); r.C.OfferProbe() }},
		"probing, ForcedClosed":      {probing, func(r *breakertest.Rig) { r.C.SetMode(breaker.ForcedClosed) }},
	} {
		t.Run(name, func(t *testing.T) {
			breakertest.Everywhere(t, func(w *breakertest.World) {
				r := w.R0()
				tc.begin(r)
				for range 3 {
					r.Rejected()
				}
				require.False(w, r.C.Ready())
				tc.end(r)
				require.True(w, r.C.Ready())
				r.Succeeds(1)
			})
		})
	}
	t.Run("probing, slot handed back", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.R0(breaker.WithSuccessThreshold(2), breaker.WithHalfOpenProbes(1))
			r.Trip()
			w.At(10 * time.Second)
			probe := r.Gate()
			r.Rejected()
			probe.Finish(nil)
			r.Succeeds(1)
			r.Is(breaker.Closed)
		})
	})
	t.Run("and each carries what holds now", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.R0()
			r.Trip()
			require.Equal(w, breakertest.ErrBoom, r.Rejected().Cause)
			w.At(10 * time.Second)
			r.FailsWith(breakertest.ErrClient)
			e := r.Rejected()
			require.Equal(w, breakertest.ErrClient, e.Cause)
			require.True(w, e.Until.Equal(w.Start.Add(20*time.Second)))
			r.C.SetMode(breaker.ForcedOpen)
			require.Equal(w, breaker.ForcedOpen, r.Rejected().Mode)
			r.C.SetMode(breaker.Auto)
			require.Equal(w, breaker.Auto, r.Rejected().Mode)
		})
	})
}

// BC-10.
func TestForcedOpenMeansNoProbes(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		r := w.R0()
		r.C.SetMode(breaker.ForcedOpen)
		for i := range 20 {
			w.At(time.Duration(i) * 5 * time.Second)
			require.False(w, r.C.Ready())
			e := r.Rejected()
			require.Equal(w, breaker.ForcedOpen, e.Mode)
			require.True(w, e.Until.IsZero(), "nobody knows until when")
			require.Zero(w, e.RetryAfter())
			if i == 10 {
				r.C.Reset()
			}
		}
		w.At(100 * time.Second)
		r.C.SetMode(breaker.Auto)
		r.Is(breaker.Closed)
		r.Succeeds(1)
		require.Empty(w, r.Steps(), "a mode is no state")
	})
	t.Run("over an open circuit that is reset", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.R0()
			r.Trip()
			r.C.SetMode(breaker.ForcedOpen)
			w.At(5 * time.Second)
			r.Rejected()
			r.C.Reset()
			r.Rejected()
			r.C.SetMode(breaker.Auto)
			r.Is(breaker.Closed)
			r.Succeeds(1)
		})
	})
	t.Run("over an open circuit that comes due", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.R0()
			r.Trip()
			r.C.SetMode(breaker.ForcedOpen)
			w.At(50 * time.Second)
			r.Rejected()
			require.Zero(w, r.C.Snapshot().Probes)
			r.C.SetMode(breaker.Auto)
			r.Is(breaker.HalfOpen)
			r.Succeeds(1)
			r.Is(breaker.Closed)
		})
	})
	t.Run("over a half-open circuit with a probe out", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.R0()
			r.Trip()
			w.At(10 * time.Second)
			probe := r.Gate()
			r.C.SetMode(breaker.ForcedOpen)
			r.Rejected()
			probe.Finish(nil) // the machine goes on underneath
			r.Is(breaker.Closed)
			r.Rejected()
			r.C.SetMode(breaker.Auto)
			r.Succeeds(1)
			r.Idle()
		})
	})
	t.Run("the run of failures stays", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.R0()
			r.Fails(2)
			r.C.SetMode(breaker.ForcedOpen)
			r.Rejected()
			r.C.SetMode(breaker.Auto)
			r.Fails(1)
			r.Is(breaker.Open)
		})
	})
	t.Run("from the start", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.R0(breaker.WithMode(breaker.ForcedOpen))
			r.Rejected()
			r.Is(breaker.Closed)
			require.Equal(w, breaker.ForcedOpen, r.C.Snapshot().Mode)
		})
	})
	t.Run("forced closed never trips", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.R0(breaker.WithMode(breaker.ForcedClosed))
			r.Fails(20)
			r.Is(breaker.Closed)
			require.EqualValues(w, 20, r.C.Snapshot().Totals.Failures, "but it counts")
			r.C.Trip(nil)
			r.Is(breaker.Open) // an operator's word, and the machine's own state
			require.True(w, r.C.Ready())
			r.Fails(3)
			w.At(10 * time.Second)
			r.Fails(3)
			r.C.SetMode(breaker.Auto)
			r.Is(breaker.HalfOpen)
			r.Succeeds(1)
			r.Is(breaker.Closed)
			r.Idle()
		})
	})
	t.Run("shadow reports and admits", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			var would []breaker.RejectEvent
			r := w.R0(breaker.WithMode(breaker.Shadow), breaker.WithHooks(breaker.Hooks{
				Reject: func(_ context.Context, e breaker.RejectEvent) { would = append(would, e) },
			}))
			r.Trip()
			require.True(w, r.C.Ready())
			r.Succeeds(4)
			r.Fails(1)
			require.Len(w, would, 5)
			for _, e := range would {
				require.True(w, e.Shadow)
				require.ErrorIs(w, e.Err, breaker.ErrOpen)
				require.Equal(w, "test", e.Name)
			}
			require.Zero(w, r.C.Snapshot().Totals.Rejected, "nobody was")
			r.Is(breaker.Open)
			w.At(10 * time.Second)
			probe := r.Gate()
			r.Succeeds(2) // beside the probe: not admitted as probes, hence no verdict
			r.Is(breaker.HalfOpen)
			require.Len(w, would, 7)
			require.ErrorIs(w, would[6].Err, breaker.ErrTooManyProbes)
			probe.Finish(nil)
			r.Is(breaker.Closed)
			r.Succeeds(1)
			require.Len(w, would, 7)
			r.Idle()
		})
	})
}

// BC-50.
func TestBoundaryMeansOneThing(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		r := w.R0()
		r.Trip()
		w.At(10*time.Second - 1)
		require.EqualValues(w, 1, r.Rejected().RetryAfter())
		require.False(w, r.C.Ready())
		r.Is(breaker.Open)
		before := r.Rejected()
		w.At(10 * time.Second)
		require.Zero(w, before.RetryAfter())
		require.True(w, r.C.Ready())
		r.Is(breaker.HalfOpen)
		r.Gate()
		for _, at := range []time.Duration{10 * time.Second, 15 * time.Second, 20*time.Second - 1} {
			w.At(at)
			e := r.Rejected()
			require.Equal(w, 20*time.Second-at, e.RetryAfter())
			require.False(w, e.Until.Before(w.Now()))
			require.Equal(w, breaker.HalfOpen, e.State)
			require.False(w, r.C.Ready())
		}
		w.At(time.Hour)
		require.Zero(w, before.RetryAfter(), "never negative")
		require.True(w, r.C.Ready())
	})
	t.Run("who waits as told is admitted", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			for _, opts := range [][]breaker.Option{
				nil,
				{breaker.WithOpenTimeout(1)},
				{breaker.WithOpenTimeout(time.Second + 1), breaker.WithOpenBackoff(1.7, time.Hour, 0)},
			} {
				r := w.R0(opts...)
				r.Trip()
				for range 5 {
					w.Add(r.Rejected().RetryAfter())
					r.Fails(1)
				}
			}
		})
	})
	t.Run("after the due time the next one's lease is told", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.R0(breaker.WithHalfOpenProbes(2), breaker.WithSuccessThreshold(3))
			r.Trip()
			w.At(10 * time.Second)
			first := r.Gate()
			w.At(13 * time.Second)
			r.Gate()
			require.Equal(w, 7*time.Second, r.Rejected().RetryAfter(), "the earliest lease")
			first.Finish(nil)
			w.At(14 * time.Second)
			r.Gate()
			require.Equal(w, 9*time.Second, r.Rejected().RetryAfter(), "the earliest that is left")
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
			breakertest.BothClocks(t, func(w *breakertest.World) {
				r := w.R0(breaker.WithOpenBackoff(tc.factor, tc.max, tc.jitter), breaker.WithRand(func() float64 { return tc.random }))
				r.Trip()
				for _, want := range tc.want {
					if want < 10_000 {
						want *= 1000
					}
					got := r.Rejected().RetryAfter()
					require.Equal(w, want*time.Millisecond, got)
					w.Add(got)
					r.Fails(1)
				}
			})
		})
	}
	t.Run("many openings", func(t *testing.T) {
		breakertest.Injected(t, breakertest.ByDo, func(w *breakertest.World) {
			r := w.R0(breaker.WithOpenBackoff(1.5, time.Hour, 1))
			r.Trip()
			last := time.Duration(0)
			for i := range 200 {
				d := r.Rejected().RetryAfter()
				require.GreaterOrEqual(w, d, 10*time.Second)
				require.LessOrEqual(w, d, time.Hour)
				if i > 30 {
					require.Equal(w, time.Hour, d)
				}
				last = d
				w.Clk.Set(w.Clk.Now().Add(last))
				r.Fails(1)
			}
		})
	})
	t.Run("a series ends when the circuit has stayed closed", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			for stay, want := range map[time.Duration]time.Duration{10*time.Second - 1: 40 * time.Second, 10 * time.Second: 10 * time.Second} {
				r := w.R0(breaker.WithOpenBackoff(2, time.Hour, 0))
				r.Trip()
				w.Add(10 * time.Second)
				r.Fails(1)
				w.Add(20 * time.Second)
				r.Succeeds(1)
				w.Add(stay)
				r.Trip()
				require.Equal(w, want, r.Rejected().RetryAfter())
			}
			r := w.R0(breaker.WithOpenBackoff(2, time.Hour, 0))
			r.Trip()
			w.Add(10 * time.Second)
			r.Fails(1)
			r.C.Reset()
			r.Trip()
			require.Equal(w, 10*time.Second, r.Rejected().RetryAfter(), "Reset starts over")
		})
	})
	t.Run("a source of chance that panics", func(t *testing.T) {
		breakertest.BothClocks(t, func(w *breakertest.World) {
			r := w.R0(breaker.WithOpenBackoff(2, time.Hour, 1), breaker.WithRand(func() float64 { panic("rand") }))
			r.Trip()
			require.Equal(w, 10*time.Second, r.Rejected().RetryAfter())
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
		{"longer than the timeout", nil, breakertest.Hint(25 * time.Second), 25 * time.Second},
		{"wrapped", nil, fmt.Errorf("get: %w", breakertest.Hint(25*time.Second)), 25 * time.Second},
		{"joined", nil, errors.Join(breakertest.ErrBoom, breakertest.Hint(25*time.Second)), 25 * time.Second},
		{"shorter", nil, breakertest.Hint(time.Second), 10 * time.Second},
		{"zero", nil, breakertest.Hint(0), 10 * time.Second},
		{"negative", nil, breakertest.Hint(-time.Hour), 10 * time.Second},
		{"above the default maximum", nil, breakertest.Hint(time.Hour), 5 * time.Minute},
		{"beyond all measure", nil, breakertest.Hint(math.MaxInt64), 5 * time.Minute},
		{"above the maximum", []breaker.Option{breaker.WithOpenHint(20 * time.Second)}, breakertest.Hint(time.Hour), 20 * time.Second},
		{"a maximum below the timeout", []breaker.Option{breaker.WithOpenHint(time.Second)}, breakertest.Hint(time.Hour), 10 * time.Second},
		{"off", []breaker.Option{breaker.WithOpenHint(0)}, breakertest.Hint(25 * time.Second), 10 * time.Second},
		{"with backoff the longer counts", []breaker.Option{breaker.WithOpenBackoff(2, time.Hour, 0)}, breakertest.Hint(15 * time.Second), 15 * time.Second},
		{"no hint", nil, breakertest.ErrBoom, 10 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			breakertest.Everywhere(t, func(w *breakertest.World) {
				r := w.R0(tc.opts...)
				r.Fails(2)
				r.FailsWith(tc.err)
				require.Equal(w, tc.want, r.Rejected().RetryAfter())
				w.At(tc.want - 1)
				r.Rejected()
				w.At(tc.want)
				r.Succeeds(1)
			})
		})
	}
	t.Run("only of the failure that opens", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.R0()
			straggler := r.Gate()
			r.FailsWith(breakertest.Hint(25 * time.Second))
			r.FailsWith(breakertest.Hint(25 * time.Second))
			r.Fails(1)
			require.Equal(w, 10*time.Second, r.Rejected().RetryAfter())
			w.At(3 * time.Second)
			straggler.Finish(breakertest.Hint(40 * time.Second))
			require.Equal(w, 7*time.Second, r.Rejected().RetryAfter())
			require.Len(w, r.Steps(), 1)
		})
	})
	t.Run("of a probe, and of Trip", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.R0()
			r.C.Trip(breakertest.Hint(15 * time.Second))
			require.Equal(w, 15*time.Second, r.Rejected().RetryAfter())
			w.At(15 * time.Second)
			r.FailsWith(breakertest.Hint(30 * time.Second))
			require.Equal(w, 30*time.Second, r.Rejected().RetryAfter())
		})
	})
	t.Run("an ignored error's counts for nothing", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			if w.Way.Name == breakertest.ByPolicy.Name {
				return
			}
			r := w.R0(breaker.WithIgnore(breakertest.Hint(time.Minute)))
			r.FailsWith(breakertest.Hint(time.Minute))
			r.Trip()
			require.Equal(w, 10*time.Second, r.Rejected().RetryAfter())
		})
	})
}

// K03.
func TestOpenRejectsAtOnce(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		r := w.Circuit()
		r.Trip()
		ran, before := r.Ran.Load(), w.Now()
		for range 1000 {
			require.ErrorIs(w, r.Call(nil), breaker.ErrOpen)
		}
		require.Equal(w, ran, r.Ran.Load())
		require.Equal(w, before, w.Now())
		require.EqualValues(w, 1000, r.C.Snapshot().Totals.Rejected)
	})
	t.Run("by every method", func(t *testing.T) {
		breakertest.BothClocks(t, func(w *breakertest.World) {
			r := w.Circuit()
			r.Trip()
			ctx := w.Context()

			_, err := r.B.Do(ctx, w.NoCall)
			require.ErrorIs(w, err, breaker.ErrOpen)
			_, err = r.B.Wrap(w.NoCall)(ctx)
			require.ErrorIs(w, err, breaker.ErrOpen)
			result := r.B.Try(ctx, w.NoCall)
			require.ErrorIs(w, result.Err, breaker.ErrOpen)
			require.Zero(w, result.Attempts)
			require.ErrorIs(w, r.C.Run(ctx, func(ctx context.Context) error { _, err := w.NoCall(ctx); return err }), breaker.ErrOpen)
			p, err := r.C.Acquire(ctx)
			require.ErrorIs(w, err, breaker.ErrOpen)
			require.Nil(w, p)
			v, err := r.B.DoOr(ctx, w.NoCall, func(_ context.Context, why error) (int, error) {
				require.ErrorIs(w, why, breaker.ErrOpen)
				return 42, nil
			})
			require.NoError(w, err)
			require.Equal(w, 42, v)
			require.EqualValues(w, 6, r.C.Snapshot().Totals.Rejected)
		})
	})
}

// K07.
func TestOpenLastsExactlyTheOpenTimeout(t *testing.T) {
	for _, timeout := range []time.Duration{1, time.Millisecond, 15 * time.Second, 30 * time.Second, 24 * time.Hour} {
		t.Run(timeout.String(), func(t *testing.T) {
			breakertest.Everywhere(t, func(w *breakertest.World) {
				r := w.Circuit(breaker.WithOpenTimeout(timeout))
				r.Trip()
				w.At(timeout - 1)
				require.EqualValues(w, 1, r.Rejected().RetryAfter())
				r.Is(breaker.Open)
				require.False(w, r.C.Ready())
				w.At(timeout)
				require.True(w, r.C.Ready())
				r.Succeeds(1)
				r.Is(breaker.HalfOpen)
			})
		})
	}
	t.Run("long after", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.Circuit()
			r.Trip()
			w.At(1000 * time.Hour)
			r.Succeeds(2)
			r.Is(breaker.Closed)
		})
	})
}

// K08.
func TestHalfOpenIsLazy(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		r := w.Circuit()
		before := runtime.NumGoroutine()
		r.Trip()
		w.At(30*time.Second - 1)
		r.Is(breaker.Open)
		w.At(30 * time.Second)
		r.Is(breaker.HalfOpen)
		w.At(time.Hour)
		r.Is(breaker.HalfOpen)
		require.Equal(w, breaker.HalfOpen, r.B.State())
		require.Equal(w, breaker.HalfOpen, r.C.Snapshot().State)
		require.True(w, r.C.Ready())
		breakertest.NoMoreThan(w, before)
		require.Len(w, r.Steps(), 1, "reading moves nothing")
	})
}

// A reset left a timer behind that later moved a circuit which was forced open.
func TestResetLeavesNothingBehind(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		r := w.R0()
		r.Trip()
		w.At(time.Second)
		r.C.Reset()
		r.C.SetMode(breaker.ForcedOpen)
		events := len(r.Steps())
		for range 10 {
			w.Add(3 * time.Second)
			r.Rejected()
			r.Is(breaker.Closed)
		}
		require.Len(w, r.Steps(), events)
		r.C.SetMode(breaker.Auto)
		r.Succeeds(1)

		r.C.Trip(nil) // and a new period is not cut short by the old one
		w.Add(10*time.Second - 1)
		r.Rejected()
	})
}

// The error of a rejection did not say how long to wait.
func TestRejectionSaysHowLong(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		r := w.R0()
		r.Trip()
		w.At(4 * time.Second)
		e := r.Rejected()
		require.Equal(w, 6*time.Second, e.RetryAfter())
		require.True(w, e.Until.Equal(w.Start.Add(10*time.Second)))
		require.Equal(w, "test", e.Circuit)
		require.Equal(w, breaker.Open, e.State)
		require.Equal(w, breaker.Auto, e.Mode)
		require.Equal(w, breakertest.ErrBoom, e.Cause)
		require.NotErrorIs(w, e, breakertest.ErrBoom, "that was another call's failure")
		require.NotContains(w, e.Error(), "boom")
		require.Contains(w, e.Error(), "test")
		w.At(5 * time.Second)
		require.Equal(w, 5*time.Second, e.RetryAfter(), "it goes on counting")
	})
}

// A growing open period had no jitter where a success was what opened: a fleet of slow dependencies probed in step.
func TestJitterWhateverOpens(t *testing.T) {
	for name, open := range map[string]struct {
		trip breaker.TripCondition
		play func(*breakertest.Rig)
	}{
		"filled by a success": {breaker.FailureRate(0.5, 4, breaker.LastCalls(10)), func(r *breakertest.Rig) { r.Fails(2); r.Succeeds(2) }},
		"user's own": {breaker.TripWhen(breaker.LastCalls(10), func(c breaker.Counts) bool { return c.Successes == 2 }),
			func(r *breakertest.Rig) { r.Succeeds(2); r.Fails(1) }},
		"slow": {breaker.SlowCallRate(time.Second, 0.5, 2, breaker.LastCalls(10)), func(r *breakertest.Rig) {
			for range 2 {
				g := r.Gate()
				r.Add(time.Second)
				g.Finish(nil)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			breakertest.BothClocks(t, func(w *breakertest.World) {
				r := w.Circuit(breaker.WithTrip(open.trip), breaker.WithOpenTimeout(10*time.Second),
					breaker.WithOpenBackoff(2, time.Hour, 1), breaker.WithRand(func() float64 { return 0.5 }))
				open.play(r)
				w.Add(15*time.Second - 1)
				r.Is(breaker.Open)
				w.Add(1)
				r.Is(breaker.HalfOpen)
			})
		})
	}
}

// A rejection tells the state at the time of the rejection, in ForcedOpen too, where the open period ends without a call.
func TestForcedRejectionTellsThePresentState(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		r := w.R0()
		r.Trip()
		r.C.SetMode(breaker.ForcedOpen)
		told := func() breaker.State {
			var open *breaker.OpenError
			require.ErrorAs(w, r.Call(nil), &open)
			require.Equal(w, breaker.ForcedOpen, open.Mode)
			require.Zero(w, open.Until)
			require.Zero(w, open.RetryAfter())
			return open.State
		}
		for range 2 { // the second one is given out without the lock
			require.Equal(w, breaker.Open, told())
		}
		left := r.C.Snapshot().Until.Sub(w.Now())
		w.Add(left - 1)
		require.Equal(w, breaker.Open, told())
		w.Add(1)
		for range 2 {
			require.Equal(w, breaker.HalfOpen, told())
		}
		r.C.Reset()
		require.Equal(w, breaker.Closed, told())
	})
}
