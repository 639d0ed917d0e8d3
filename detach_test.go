package breaker_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
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

// deaf is a dependency whose client ignores its context: it takes 5s. It knows how many of its calls run.
type deaf struct {
	running, most, ran atomic.Int64
	end                func() // how a call ends; nil: it returns
}

func (d *deaf) call(context.Context) (int, error) {
	n := d.running.Add(1)
	defer d.running.Add(-1)
	d.ran.Add(1)
	for most := d.most.Load(); n > most && !d.most.CompareAndSwap(most, n); most = d.most.Load() {
		continue
	}
	<-time.After(5 * time.Second)
	if d.end != nil {
		d.end()
	}
	return 7, nil
}

// BR-23: what Detach leaves behind keeps its place among those of WithMaxInFlight, until it ends.
func TestBR23_DetachKeepsItsPlace(t *testing.T) {
	ask := func(b *breaker.Breaker[int], fn func(context.Context) (int, error)) func(context.Context) error {
		return func(ctx context.Context) error { _, err := b.Do(ctx, fn); return err }
	}
	limit := breaker.WithMaxInFlight(2)
	for name, build := range map[string]func(fn func(context.Context) (int, error)) (*breaker.Circuit, func(context.Context) error){
		"Do": func(fn func(context.Context) (int, error)) (*breaker.Circuit, func(context.Context) error) {
			b := breaker.Must(breaker.New[int]("b", limit, farAway))
			return b.Circuit(), ask(b, breaker.Detach(time.Second, fn))
		},
		"Run": func(fn func(context.Context) (int, error)) (*breaker.Circuit, func(context.Context) error) {
			c := breaker.Must(breaker.NewCircuit("c", limit, farAway))
			return c, func(ctx context.Context) error {
				return c.Run(ctx, func(ctx context.Context) error { _, err := breaker.Detach(time.Second, fn)(ctx); return err })
			}
		},
		"with a timeout and a policy": func(fn func(context.Context) (int, error)) (*breaker.Circuit, func(context.Context) error) {
			b := breaker.Must(breaker.New[int]("b", limit, farAway, breaker.WithTimeout(time.Second), breaker.WithFallback("f",
				func(_ context.Context, cause error) (int, error) { return 0, cause })))
			return b.Circuit(), ask(b, breaker.Detach(time.Hour, fn))
		},
		"in a group": func(fn func(context.Context) (int, error)) (*breaker.Circuit, func(context.Context) error) {
			b := breaker.Must(breaker.NewGroup[int](limit, farAway)).Get("k")
			return b.Circuit(), ask(b, breaker.Detach(time.Second, fn))
		},
		"within a Detach": func(fn func(context.Context) (int, error)) (*breaker.Circuit, func(context.Context) error) {
			b := breaker.Must(breaker.New[int]("b", limit, farAway))
			return b.Circuit(), ask(b, breaker.Detach(time.Second, breaker.Detach(2*time.Second, fn)))
		},
		"within another circuit": func(fn func(context.Context) (int, error)) (*breaker.Circuit, func(context.Context) error) {
			outer := breaker.Must(breaker.New[int]("outer", limit, farAway))
			inner := breaker.Must(breaker.New[int]("inner", breaker.WithMaxInFlight(100), breaker.WithTimeout(time.Hour)))
			return outer.Circuit(), ask(outer, inner.Wrap(breaker.Detach(time.Second, fn)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(w *stage) {
				d := &deaf{}
				c, call := build(d.call)
				var refused atomic.Int64
				tenCalls := func() {
					var all sync.WaitGroup
					for range 10 {
						all.Go(func() {
							err := call(context.Background())
							if errors.Is(err, breaker.ErrTooManyInFlight) {
								refused.Add(1)
							} else {
								assert.ErrorIs(w, err, context.DeadlineExceeded)
							}
						})
					}
					all.Wait()
					synctest.Wait()
				}
				tenCalls()
				require.Equal(w, time.Second, w.elapsed(), "the callers are back")
				require.EqualValues(w, 8, refused.Load())
				require.EqualValues(w, 2, c.Snapshot().InFlight, "the functions are not")
				tenCalls()
				require.EqualValues(w, 18, refused.Load())
				w.at(5*time.Second - 1)
				require.EqualValues(w, 2, c.Snapshot().InFlight)
				w.at(5 * time.Second)
				require.Zero(w, c.Snapshot().InFlight)
				tenCalls()
				require.EqualValues(w, 26, refused.Load())
				require.EqualValues(w, 2, d.most.Load())
				require.EqualValues(w, 4, d.ran.Load())
				w.at(time.Minute)
				require.Zero(w, c.Snapshot().InFlight)
				require.EqualValues(w, 4, c.Snapshot().Totals.Calls)
			})
		})
	}
}

// However a function that was left behind ends, its place is free again.
func TestBR23_PlacesAreFreedHoweverTheFunctionEnds(t *testing.T) {
	log := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&bytes.Buffer{}, nil)))
	defer slog.SetDefault(log)
	for name, end := range map[string]func(){"return": nil, "panic": func() { panic("late") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(w *stage) {
				d := &deaf{end: end}
				b := breaker.Must(breaker.New[int]("b", breaker.WithMaxInFlight(1)))
				_, err := b.Do(w.Context(), breaker.Detach(time.Second, d.call))
				require.Equal(w, context.DeadlineExceeded, err)
				_, err = b.Do(w.Context(), d.call)
				require.Equal(w, breaker.ErrTooManyInFlight, err)
				w.at(5 * time.Second)
				_, err = b.Do(w.Context(), func(context.Context) (int, error) { return 7, nil })
				require.NoError(w, err)
				require.Zero(w, b.Snapshot().InFlight)
			})
		})
		t.Run(name+" in time", func(t *testing.T) {
			scene(t, func(w *stage) {
				d := &deaf{end: end}
				b := breaker.Must(breaker.New[int]("b", breaker.WithMaxInFlight(1)))
				_ = recovered(func() { _, _ = b.Do(w.Context(), breaker.Detach(time.Minute, d.call)) })
				require.Equal(w, 5*time.Second, w.elapsed())
				require.Zero(w, b.Snapshot().InFlight)
			})
		})
		t.Run(name+" as the caller goes", func(t *testing.T) { // either may be first
			for range 50 {
				scene(t, func(w *stage) {
					d := &deaf{end: end}
					b := breaker.Must(breaker.New[int]("b", breaker.WithMaxInFlight(1)))
					_ = recovered(func() { _, _ = b.Do(w.Context(), breaker.Detach(5*time.Second, d.call)) })
					synctest.Wait()
					require.Zero(w, b.Snapshot().InFlight)
				})
			}
		})
	}
}

// Each attempt that is left behind has a place of its own.
func TestBR23_RetriesOfDetachedFunctions(t *testing.T) {
	retry := []breaker.RetryOption{breaker.MaxRetries(3), breaker.Constant(0)}
	for name, build := range map[string]func(*deaf) *breaker.Breaker[int]{
		"attempts": func(*deaf) *breaker.Breaker[int] {
			return breaker.Must(breaker.New[int]("b", breaker.WithMaxInFlight(2), breaker.WithRetry(retry...)))
		},
		"within one attempt": func(*deaf) *breaker.Breaker[int] {
			return breaker.Must(breaker.New[int]("b", breaker.WithMaxInFlight(2)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(w *stage) {
				d := &deaf{}
				b := build(d)
				fn := breaker.Detach(time.Second, d.call)
				most := int64(2)
				if name == "within one attempt" { // which has passed the circuit once
					inner, policy := fn, breaker.Must(breaker.NewRetryPolicy(retry...))
					fn = func(ctx context.Context) (int, error) { return breaker.Retry(ctx, policy, inner) }
					most = 4
				}
				_, err := b.Do(w.Context(), fn)
				require.ErrorIs(w, err, context.DeadlineExceeded)
				synctest.Wait()
				require.EqualValues(w, most, d.running.Load())
				require.EqualValues(w, most, b.Snapshot().InFlight, "it counts what runs")
				require.Equal(w, time.Duration(most)*time.Second, w.elapsed())
				_, err = b.Do(w.Context(), fn)
				require.Equal(w, breaker.ErrTooManyInFlight, err)
				w.at(time.Minute)
				require.Zero(w, b.Snapshot().InFlight)
			})
		})
	}
}

// Where there is no limit, nobody counts what was left behind.
func TestDetachWithoutALimit(t *testing.T) {
	scene(t, func(w *stage) {
		b := breaker.Must(breaker.New[int]("b"))
		_, err := b.Do(w.Context(), breaker.Detach(time.Second, (&deaf{}).call))
		require.Equal(w, context.DeadlineExceeded, err)
		require.Zero(w, b.Snapshot().InFlight)
		w.at(time.Minute)
		require.Zero(w, b.Snapshot().InFlight)
	})
}
