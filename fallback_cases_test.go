package breaker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

func TestBC102_AlternativeKnowsWhyAndHidesNothing(t *testing.T) {
	errAlt := errors.New("alt failed too")
	bothClocks(t, func(w *world) {
		r := w.r0()
		fails := func(context.Context) (int, error) { return 0, errBoom }

		var why error
		v, err := r.b.DoOr(w.Context(), fails, func(_ context.Context, e error) (int, error) { why = e; return 42, nil })
		require.NoError(w, err)
		require.Equal(w, 42, v)
		require.Same(w, errBoom, why)

		_, err = r.b.DoOr(w.Context(), fails, func(context.Context, error) (int, error) {
			require.Zero(w, r.c.Snapshot().InFlight, "all is settled by now")
			return 0, errAlt
		})
		require.ErrorIs(w, err, errBoom)
		require.ErrorIs(w, err, errAlt)
		require.EqualValues(w, 2, r.c.Snapshot().ConsecutiveFailures, "the alternative's failure is not the dependency's")

		_, err = r.b.DoOr(w.Context(), fails, nil)
		require.Same(w, errBoom, err)
		r.state(breaker.Open)

		_, err = r.b.DoOr(w.Context(), fails, func(_ context.Context, e error) (int, error) { why = e; return 0, errAlt })
		require.ErrorIs(w, why, breaker.ErrOpen)
		require.ErrorIs(w, err, breaker.ErrOpen)
		require.ErrorIs(w, err, errAlt)
		r.idle()
	})
	t.Run("never after a success or the caller's cancel", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			r := w.r0()
			v, err := r.b.DoOr(w.Context(), func(context.Context) (int, error) { return 1, nil }, w.noAlternative)
			require.NoError(w, err)
			require.Equal(w, 1, v)
			ctx, cancel := context.WithCancel(w.Context())
			_, err = r.b.DoOr(ctx, func(ctx context.Context) (int, error) { cancel(); return 0, ctx.Err() }, w.noAlternative)
			require.ErrorIs(w, err, context.Canceled)
			_, err = r.b.DoOr(ctx, func(context.Context) (int, error) { return 0, nil }, w.noAlternative)
			require.ErrorIs(w, err, context.Canceled)
		})
	})
	t.Run("for an inner circuit's rejection", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			outer, inner := w.r0(), w.r0()
			inner.trip()
			v, err := outer.b.DoOr(w.Context(), func(ctx context.Context) (int, error) {
				return inner.b.Do(ctx, func(context.Context) (int, error) { return 1, nil })
			}, func(context.Context, error) (int, error) { return 42, nil })
			require.NoError(w, err)
			require.Equal(w, 42, v)
			require.Zero(w, outer.c.Snapshot().Totals.Failures)
		})
	})
	t.Run("for a call too many", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			r := w.r0(breaker.WithMaxInFlight(1))
			r.gate()
			ran := r.ran.Load()
			v, err := r.b.DoOr(w.Context(), w.noCall,
				func(context.Context, error) (int, error) { return 42, nil })
			require.NoError(w, err)
			require.Equal(w, 42, v)
			require.Equal(w, ran, r.ran.Load())
		})
	})
	t.Run("no value twice: an attempt that overran brought its answer", func(t *testing.T) {
		bubble(t, byDo, func(w *world) {
			r := w.r0(breaker.WithTimeout(time.Second))
			v, err := r.b.DoOr(w.Context(), func(context.Context) (int, error) { <-time.After(2 * time.Second); return 7, nil },
				w.noAlternative)
			require.NoError(w, err)
			require.Equal(w, 7, v)
			require.EqualValues(w, 1, r.c.Snapshot().ConsecutiveFailures)
		})
	})
}

// O07 needs retry and the registered fallbacks; what DoOr does is here.
func TestO07_RescuesAreCountedByKind(t *testing.T) {
	bothClocks(t, func(w *world) {
		r := w.circuit()
		alt := func(context.Context, error) (int, error) { return 42, nil }
		for range 6 { // five failures, one rejection
			v, err := r.b.DoOr(w.Context(), func(context.Context) (int, error) { return 0, errBoom }, alt)
			require.NoError(w, err)
			require.Equal(w, 42, v)
		}
		_, err := r.b.DoOr(w.Context(), nil, alt)
		require.Error(w, err)
		require.Equal(w, map[breaker.Rescue]uint64{breaker.RescueAlt: 6}, r.c.Snapshot().Totals.Rescues)
	})
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
