package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// A ring is breakers each of which fails over to the next, the last one to the first.
type ring struct {
	*testing.T
	do    []func(context.Context, func(context.Context) (int, error)) (int, error)
	asked []int
}

// call asks the i-th breaker, whose dependency fails with an error of its own.
func (r *ring) call(ctx context.Context, i int) (int, error) {
	require.Less(r, r.asked[i], 10, "%d is asked again and again", i)
	return r.do[i](ctx, func(context.Context) (int, error) {
		r.asked[i]++
		return 0, r.err(i)
	})
}

func (r *ring) err(i int) error { return ringError(i) }

type ringError int

func (e ringError) Error() string { return fmt.Sprint("dependency ", int(e), " is down") }

// next is the option that makes the i-th of n breakers fail over to the next.
func (r *ring) next(i, n int) breaker.Option {
	return breaker.WithFailover(fmt.Sprint("to ", (i+1)%n), func(ctx context.Context) (int, error) { return r.call(ctx, (i+1)%n) })
}

// BR-01: of breakers that fail over to each other each is asked once, and then an error comes back.
func TestBR01_FailoverRings(t *testing.T) {
	type made = func(r *ring, i, n int, opts ...breaker.Option) *breaker.Breaker[int]
	plain := func(r *ring, i, n int, opts ...breaker.Option) *breaker.Breaker[int] {
		return breaker.Must(breaker.New[int](fmt.Sprint(i), append(opts, r.next(i, n))...))
	}
	for name, makes := range map[string]made{
		"Do": plain,
		"a view over the circuit": func(r *ring, i, n int, opts ...breaker.Option) *breaker.Breaker[int] {
			return breaker.Must(breaker.Over[int](breaker.Must(breaker.NewCircuit(fmt.Sprint(i))), append(opts, r.next(i, n))...))
		},
		"with a timeout": func(r *ring, i, n int, opts ...breaker.Option) *breaker.Breaker[int] {
			return plain(r, i, n, append(opts, breaker.WithTimeout(time.Hour))...)
		},
		"with a last good answer": func(r *ring, i, n int, opts ...breaker.Option) *breaker.Breaker[int] {
			return plain(r, i, n, append(opts, breaker.WithLastGood[int](time.Hour, func(context.Context) string { return "k" }))...)
		},
	} {
		for n := 1; n <= 3; n++ {
			t.Run(fmt.Sprintf("%s, ring of %d", name, n), func(t *testing.T) {
				scene(t, func(*stage) {
					r := &ring{T: t, asked: make([]int, n)}
					var all []*breaker.Breaker[int]
					for i := range n {
						b := makes(r, i, n)
						all, r.do = append(all, b), append(r.do, b.Do)
					}
					for round := range 2 { // a call after the first is one of its own
						_, err := r.call(context.Background(), 0)
						for i := range n {
							require.Equal(t, round+1, r.asked[i], "dependency %d", i)
							require.ErrorIs(t, err, r.err(i))
						}
						require.ErrorContains(t, err, `circuit "0" is not asked again`)
						require.Equal(t, breaker.Failure, breaker.DefaultClassifier(err))
					}
					require.Zero(t, all[0].Snapshot().Totals.Rejected, "the circuit has rejected nothing: it was not asked")

					for i := range n { // whoever is asked first
						for j := range r.asked {
							r.asked[j] = 0
						}
						_, err := r.call(context.Background(), i)
						require.ErrorContains(t, err, fmt.Sprintf("circuit %q is not asked again", fmt.Sprint(i)))
						for j := range n {
							require.Equal(t, 1, r.asked[j])
						}
					}
				})
			})
		}
	}
}

func TestBR01_RingsOfOtherKinds(t *testing.T) {
	down := func(context.Context) (int, error) { return 0, errDown }
	t.Run("each circuit has its retries", func(t *testing.T) {
		r := &ring{T: t, asked: make([]int, 2)}
		for i := range 2 {
			r.do = append(r.do, breaker.Must(breaker.New[int](fmt.Sprint(i), r.next(i, 2), breaker.WithRetry(breaker.MaxRetries(1), breaker.Constant(0)))).Do)
		}
		_, err := r.call(context.Background(), 0)
		require.Error(t, err)
		require.Equal(t, []int{2, 2}, r.asked)
	})
	t.Run("several views of one circuit", func(t *testing.T) {
		asked := map[string]int{}
		fn := func(name string) func(context.Context) (int, error) {
			return func(context.Context) (int, error) { asked[name]++; return 0, errDown }
		}
		var first, second, backup *breaker.Breaker[int]
		first = breaker.Must(breaker.New[int]("a", breaker.WithFailover("b", func(ctx context.Context) (int, error) { return backup.Do(ctx, fn("b")) })))
		second = breaker.Must(breaker.Over[int](first.Circuit(), breaker.WithFailover("c", func(ctx context.Context) (int, error) { return fn("c")(ctx) })))
		backup = breaker.Must(breaker.New[int]("b", breaker.WithFailover("a", func(ctx context.Context) (int, error) { return second.Do(ctx, fn("a")) })))
		_, err := first.Do(context.Background(), fn("a"))
		require.ErrorContains(t, err, `circuit "a" is not asked again`)
		require.Equal(t, map[string]int{"a": 1, "b": 1, "c": 1}, asked, "what another view fails over to is somebody else")
	})
	t.Run("the circuits of groups, kept or not", func(t *testing.T) {
		for _, opts := range [][]breaker.Option{nil, {breaker.MaxKeys(1)}} {
			scene(t, func(*stage) {
				r := &ring{T: t, asked: make([]int, 2)}
				for i := range 2 {
					g := breaker.Must(breaker.NewGroup[int](append(opts, r.next(i, 2))...))
					g.Get("tripped").Circuit().Trip(nil) // it takes the only place
					r.do = append(r.do, func(ctx context.Context, fn func(context.Context) (int, error)) (int, error) {
						return g.Do(ctx, "k", fn)
					})
				}
				_, err := r.call(context.Background(), 0)
				require.ErrorContains(t, err, `circuit "k" is not asked again`)
				require.Equal(t, []int{1, 1}, r.asked, "equal keys of two groups are two circuits")
			})
		}
	})
	t.Run("where nobody could be asked it is a rejection", func(t *testing.T) {
		r := &ring{T: t, asked: make([]int, 2)}
		for i := range 2 {
			b := breaker.Must(breaker.New[int](fmt.Sprint(i), r.next(i, 2), breaker.WithMode(breaker.ForcedOpen)))
			r.do = append(r.do, b.Do)
		}
		_, err := r.call(context.Background(), 0)
		require.Equal(t, breaker.Ignored, breaker.DefaultClassifier(err))
		require.Equal(t, []int{0, 0}, r.asked)
	})
	t.Run("the rejection tells", func(t *testing.T) {
		var b *breaker.Breaker[int]
		b = breaker.Must(breaker.New[int]("a", breaker.WithFailover("itself", func(ctx context.Context) (int, error) {
			ctx, cancel := context.WithTimeout(ctx, time.Hour) // it is found further in, too
			defer cancel()
			v, err := b.Do(ctx, down)
			var open *breaker.OpenError
			require.ErrorAs(t, err, &open)
			require.Equal(t, "a", open.Circuit)
			require.Equal(t, breaker.Closed, open.State)
			require.Zero(t, open.Until)
			require.Zero(t, open.RetryAfter())
			require.ErrorIs(t, err, breaker.ErrOpen)
			require.Equal(t, breaker.Ignored, breaker.DefaultClassifier(err))

			w, err := b.DoOr(ctx, down, func(_ context.Context, why error) (int, error) {
				require.ErrorIs(t, why, breaker.ErrOpen)
				return 5, nil
			})
			require.NoError(t, err, "an alternative of the call's own is nobody's failover")
			require.Equal(t, 5, w)
			return v, open
		})))
		_, err := b.Do(context.Background(), down)
		require.ErrorIs(t, err, errDown)
		require.EqualValues(t, 1, b.Snapshot().Totals.Calls)
	})
	t.Run("a context that outlives the failover says nothing", func(t *testing.T) {
		var b *breaker.Breaker[int]
		var kept context.Context
		b = breaker.Must(breaker.New[int]("a", breaker.WithFailover("keeps it", func(ctx context.Context) (int, error) {
			kept = context.WithoutCancel(ctx)
			panic("ends in any way")
		})))
		require.NotNil(t, recovered(func() { _, _ = b.Do(context.Background(), down) }))
		v, err := b.Do(kept, func(context.Context) (int, error) { return 7, nil })
		require.NoError(t, err)
		require.Equal(t, 7, v)
	})
}

// A function of WithFallback may use the breaker again, for something else. Fallbacks do not go round all the same.
func TestBR01_FallbackFunctionsMayUseTheirBreaker(t *testing.T) {
	scene(t, func(*stage) {
		asked, fallbacks := 0, 0
		var b *breaker.Breaker[int]
		fn := func(v int, err error) func(context.Context) (int, error) {
			return func(context.Context) (int, error) { asked++; return v, err }
		}
		second := errDown
		b = breaker.Must(breaker.New[int]("a", breaker.WithFailureThreshold(100),
			breaker.WithFailover("backup", func(context.Context) (int, error) { return 0, errOther }),
			breaker.WithFallback("a smaller one", func(ctx context.Context, _ error) (int, error) {
				fallbacks++
				return b.Do(ctx, fn(5, second))
			}), breaker.WithFallbackValue(-1)))
		r := b.Try(context.Background(), fn(0, errDown))
		require.Equal(t, breaker.Result[int]{Value: -1, Attempts: 1, Rescue: breaker.RescueValue}, r, "the value is of the outer call's fallbacks")
		require.Equal(t, []int{2, 1}, []int{asked, fallbacks})
		second = nil
		r = b.Try(context.Background(), fn(0, errDown))
		require.Equal(t, breaker.Result[int]{Value: 5, Attempts: 1, Rescue: "a smaller one"}, r)
		require.Equal(t, []int{4, 2}, []int{asked, fallbacks})
	})
	t.Run("two that lead to each other", func(t *testing.T) {
		scene(t, func(*stage) {
			asked := []int{0, 0}
			all := make([]*breaker.Breaker[int], 2)
			fn := func(i int) func(context.Context) (int, error) {
				return func(context.Context) (int, error) { asked[i]++; return 0, errDown }
			}
			for i := range all {
				all[i] = breaker.Must(breaker.New[int](fmt.Sprint(i), breaker.WithFallback("other", func(ctx context.Context, _ error) (int, error) {
					return all[1-i].Do(ctx, fn(1-i))
				})))
			}
			_, err := all[0].Do(context.Background(), fn(0))
			require.ErrorIs(t, err, errDown)
			require.Equal(t, []int{2, 1}, asked)
		})
	})
}

// After the caller's context has ended no further dependency is called. After a deadline whatever is at hand still answers;
// after a cancel nothing does.
func TestNobodyIsCalledForACallerWhoHasGone(t *testing.T) {
	asked := func(v int) func(context.Context, error) (int, error) {
		return func(context.Context, error) (int, error) { return v, nil }
	}
	failover := func(t *testing.T) breaker.Option {
		return breaker.WithFailover("backup", func(context.Context) (int, error) { t.Error("the backup was called"); return 0, nil })
	}
	errGone := errors.New("gone")
	for name, tc := range map[string]struct {
		opts []breaker.Option
		alt  func(context.Context, error) (int, error)
		want breaker.Rescue // after a deadline
	}{
		"nothing else": {},
		"a function":   {[]breaker.Option{breaker.WithFallback("f", asked(5))}, nil, "f"},
		"a value":      {[]breaker.Option{breaker.WithFallbackValue(5)}, nil, breaker.RescueValue},
		"a last good answer": {[]breaker.Option{breaker.WithLastGood[int](time.Hour, func(context.Context) string { return "k" })},
			nil, breaker.RescueCache},
		"an alternative": {nil, asked(5), breaker.RescueAlt},
	} {
		for kind, end := range map[string]func(context.Context) (context.Context, func()){
			"deadline": func(ctx context.Context) (context.Context, func()) {
				ctx, cancel := context.WithTimeoutCause(ctx, time.Second, errGone)
				return ctx, func() { <-ctx.Done(); cancel() }
			},
			"cancel": func(ctx context.Context) (context.Context, func()) {
				ctx, cancel := context.WithCancel(ctx)
				return ctx, cancel
			},
			"cancel with a cause": func(ctx context.Context) (context.Context, func()) {
				ctx, cancel := context.WithCancelCause(ctx)
				return ctx, func() { cancel(context.DeadlineExceeded) }
			},
		} {
			t.Run(name+" after a "+kind, func(t *testing.T) {
				scene(t, func(w *stage) {
					b := breaker.Must(breaker.New[int]("test", append([]breaker.Option{failover(t), breaker.WithRetry(breaker.MaxRetries(3), breaker.Constant(0))}, tc.opts...)...))
					_, err := b.Do(w.Context(), func(context.Context) (int, error) { return 5, nil })
					require.NoError(w, err)
					ctx, ends := end(w.Context())
					runs := 0
					fn := func(context.Context) (int, error) { runs++; ends(); return 0, errDown }
					v, err := b.DoOr(ctx, fn, tc.alt)
					require.Equal(w, 1, runs)
					totals := b.Snapshot().Totals
					require.Zero(w, totals.Retries)
					if kind == "deadline" && tc.want != "" {
						require.NoError(w, err)
						require.Equal(w, 5, v)
						require.EqualValues(w, 1, totals.Rescues[tc.want])
						return
					}
					require.Equal(w, errDown, err)
					require.Empty(w, totals.Rescues)
				})
			})
		}
	}
	t.Run("a deadline during a failover", func(t *testing.T) {
		scene(t, func(w *stage) {
			b := breaker.Must(breaker.New[int]("test",
				breaker.WithFailover("slow", func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, ctx.Err() }),
				failover(t), breaker.WithFallbackValue(5)))
			ctx, cancel := context.WithTimeout(w.Context(), time.Second)
			defer cancel()
			r := b.Try(ctx, func(context.Context) (int, error) { return 0, errDown })
			require.Equal(w, breaker.Result[int]{Value: 5, Attempts: 1, Rescue: breaker.RescueValue}, r)
		})
	})
}

// jumpClock moves on to the end of every wait at once.
type jumpClock struct{ *clock.Mock }

func (c jumpClock) After(d time.Duration) <-chan time.Time {
	done := c.Mock.After(d)
	c.Add(d)
	return done
}

// Where the wait for a retry and the context end at once, there is no retry.
func TestNoRetryWhenTheWaitAndTheContextEndTogether(t *testing.T) {
	opts := []breaker.RetryOption{breaker.MaxRetries(1), breaker.Constant(time.Second)}
	clk := jumpClock{clock.NewMock()}
	policy := breaker.Must(breaker.NewRetryPolicy(append(opts, breaker.RetryClock(clk))...))
	for range 100 { // which of two ends is seen first is random
		ctx, cancel := context.WithCancel(context.Background())
		b := breaker.Must(breaker.New[int]("test", breaker.WithClock(clk), breaker.WithRetry(opts...),
			breaker.WithHooks(breaker.Hooks{Retry: func(context.Context, breaker.RetryEvent) { cancel() }})))
		runs := 0
		_, err := b.Do(ctx, func(context.Context) (int, error) { runs++; return 0, errDown })
		require.ErrorIs(t, err, errDown)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 1, runs)

		runs = 0
		ctx = &endsWhenAsked{Context: context.Background(), after: 2}
		_, err = breaker.Retry(ctx, policy, func(context.Context) (int, error) { runs++; return 0, errDown })
		require.ErrorIs(t, err, errDown)
		require.Equal(t, 1, runs)
	}
}

// endsWhenAsked is a context that has ended when it has been asked for its error so often.
type endsWhenAsked struct {
	context.Context
	after int
}

func (c *endsWhenAsked) Err() error {
	if c.after--; c.after < 0 {
		return context.Canceled
	}
	return nil
}
