package pool_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/pool"
)

func TestTheCallersEndAsItIs(t *testing.T) {
	r := newRig(t, pool.Failover, names("a", "b"), r0)
	ctx, cancel := context.WithCancel(t.Context())
	own := fmt.Errorf("reading: %w", context.Canceled)
	_, err := pool.Do(ctx, r.p, func(context.Context, string) (int, error) {
		cancel()
		return 0, own
	})
	assert.Same(t, own, err, "nothing is added to an error that says so itself")
}

func TestCallersDeadline(t *testing.T) {
	for _, ignore := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			var opts []breaker.Option
			if ignore {
				opts = append(opts, breaker.IgnoreCallerDeadline())
			}
			p, err := pool.New(pool.Failover, names("a", "b"), pool.WithBreaker(opts...))
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			calls := 0
			_, err = pool.Do(ctx, p, func(ctx context.Context, _ string) (int, error) {
				calls++
				<-ctx.Done()
				return 0, errBoom
			})
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorIs(t, err, errBoom)
			assert.NotErrorIs(t, err, pool.ErrLimit, "it was the caller's")
			assert.Equal(t, 1, calls)
			totals := p.Circuit("a").Snapshot().Totals
			assert.Equal(t, ignore, totals.Ignored == 1)
			assert.Equal(t, ignore, totals.Failures == 0)
		})
	}
}

func TestAnAnswerAfterTheCallersCancelIsAnAnswer(t *testing.T) {
	r := newRig(t, pool.Failover, names("a"), r0)
	ctx, cancel := context.WithCancel(t.Context())
	v, err := pool.Do(ctx, r.p, func(context.Context, string) (int, error) {
		cancel()
		return 7, nil
	})
	require.NoError(t, err)
	assert.Equal(t, 7, v)
	assert.EqualValues(t, 1, r.totals("a").Successes)
}

func TestLimitOnAnInjectedClock(t *testing.T) {
	guard(t, func() {
		r := newRig(t, pool.Failover, names("a", "b"), r0, pool.WithLimit(2*time.Second))
		_, err := pool.Do(t.Context(), r.p, func(ctx context.Context, name string) (int, error) {
			_, _ = r.call(ctx, name)
			done := ctx.Done()
			r.clk.Add(2*time.Second - 1)
			assert.NoError(t, ctx.Err())
			select {
			case <-done:
				t.Error("ended too early")
			default:
			}
			r.clk.Add(1)
			<-done
			return 0, ctx.Err()
		})
		assert.Equal(t, pool.ErrLimit, err)
		assert.Equal(t, []string{"a"}, r.called())
		assert.EqualValues(t, 1, r.totals("a").Failures)
	})
}

func TestLimitWithoutDone(t *testing.T) {
	r := newRig(t, pool.Failover, names("a", "b", "c"), r0, pool.WithLimit(2*time.Second))
	_, err := pool.Do(t.Context(), r.p, func(ctx context.Context, name string) (int, error) {
		_, _ = r.call(ctx, name)
		r.clk.Add(time.Second)
		return 0, errBoom
	})
	require.ErrorIs(t, err, pool.ErrLimit)
	require.ErrorIs(t, err, errBoom)
	assert.Equal(t, []string{"a", "b"}, r.called(), "the limit had passed before c's turn")

	v, err := pool.Do(t.Context(), r.p, func(ctx context.Context, _ string) (int, error) {
		r.clk.Add(3 * time.Second)
		assert.Equal(t, context.DeadlineExceeded, ctx.Err(), "without a timer")
		return 7, nil
	})
	require.NoError(t, err, "a value is a value")
	assert.Equal(t, 7, v)
	assert.EqualValues(t, 1, r.totals("a").Successes, "the limit is not the fault of a member that answers")
}

func TestTheLimitMakesAFailureOfWhateverError(t *testing.T) {
	for name, err := range map[string]error{"ignored": errClient, "rejection": breaker.ErrOpen} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, pool.Failover, names("a", "b"), r0, pool.WithLimit(time.Second), pool.WithBreaker(breaker.WithIgnore(errClient)))
			_, got := pool.Do(t.Context(), r.p, func(context.Context, string) (int, error) {
				r.clk.Add(time.Second)
				return 0, err
			})
			require.ErrorIs(t, got, pool.ErrLimit)
			require.ErrorIs(t, got, err)
			assert.EqualValues(t, 1, r.totals("a").Failures)
		})
	}
}

func TestNoLimitGivesTheCallersContext(t *testing.T) {
	r := newRig(t, pool.Failover, names("a"), pool.WithLimit(0))
	ctx := context.WithValue(t.Context(), status(0), 1)
	_, err := pool.Do(ctx, r.p, func(got context.Context, _ string) (int, error) {
		assert.Equal(t, ctx, got)
		return 0, nil
	})
	require.NoError(t, err)
}

func TestAStreamFollowsTheCallerOnly(t *testing.T) {
	for _, early := range []bool{false, true} { // whether fn itself asks for Done
		bubble(t, func(t *testing.T) {
			p, err := pool.New(pool.Failover, names("a"), pool.WithBreaker(breaker.WithTimeout(2*time.Second)))
			require.NoError(t, err)
			start := time.Now()
			caller, cancel := context.WithCancelCause(context.WithValue(t.Context(), status(1), "value"))
			stream, err := pool.Do(caller, p, func(ctx context.Context, _ string) (context.Context, error) {
				if early {
					select {
					case <-ctx.Done():
						return nil, ctx.Err()
					case <-time.After(time.Second):
					}
				}
				at, ok := ctx.Deadline()
				assert.True(t, ok)
				assert.Equal(t, start.Add(2*time.Second), at)
				assert.Equal(t, "value", ctx.Value(status(1)))
				return ctx, nil
			})
			require.NoError(t, err)
			_, ok := stream.Deadline()
			assert.False(t, ok, "a deadline would reach beyond fn")
			child, stop := context.WithTimeout(stream, 2*time.Hour)
			defer stop()
			pass(time.Hour)
			require.NoError(t, stream.Err(), "beyond both limits")
			select {
			case <-stream.Done():
				t.Fatal("ended")
			default:
			}
			runtime.GC()
			runtime.GC()
			cancel(errBoom)
			<-stream.Done()
			<-child.Done()
			assert.Equal(t, context.Canceled, stream.Err())
			assert.Equal(t, errBoom, context.Cause(stream))
			assert.EqualValues(t, 1, p.Circuit("a").Snapshot().Totals.Successes)
		})
	}
}

func TestTheContextOfAFailedAttemptHasEnded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, err := pool.New(pool.Failover, names("a", "b"), pool.WithLimit(5*time.Second))
		require.NoError(t, err)
		var first context.Context
		_, err = pool.Do(t.Context(), p, func(ctx context.Context, name string) (int, error) {
			if name == "a" {
				first = ctx
				go func() { <-ctx.Done() }()
				return 0, errBoom
			}
			<-first.Done()
			assert.Equal(t, context.Canceled, first.Err())
			assert.NoError(t, ctx.Err())
			return 0, nil
		})
		require.NoError(t, err)
		assert.Panics(t, func() {
			_, _ = pool.Do(t.Context(), p, func(ctx context.Context, _ string) (int, error) {
				first = ctx
				panic(errBoom)
			})
		})
		assert.Equal(t, context.Canceled, first.Err())
		<-first.Done() // asked for after the end
	})
}

func TestDerivedContexts(t *testing.T) {
	t.Run("end with the limit", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			p, err := pool.New(pool.Failover, names("a", "b"), pool.WithLimit(5*time.Second))
			require.NoError(t, err)
			start, ended := time.Now(), false
			_, err = pool.Do(t.Context(), p, func(ctx context.Context, _ string) (int, error) {
				before := runtime.NumGoroutine()
				var kept, dropped context.Context
				for range 100 {
					child, cancel := context.WithCancel(ctx)
					dropped = child
					cancel()
				}
				kept, cancel := context.WithTimeout(ctx, time.Hour)
				defer cancel()
				stopped := context.AfterFunc(ctx, func() { t.Error("stopped") })
				context.AfterFunc(ctx, func() { ended = true })
				assert.True(t, stopped())
				assert.False(t, stopped())
				direct := ctx.(interface{ AfterFunc(func()) func() bool }).AfterFunc(func() { t.Error("stopped") })
				assert.True(t, direct())
				assert.False(t, direct())
				assert.LessOrEqual(t, runtime.NumGoroutine(), before+2, "no goroutine each")
				assert.Error(t, dropped.Err())
				<-kept.Done()
				assert.Equal(t, context.DeadlineExceeded, kept.Err())
				late := make(chan struct{})
				assert.False(t, context.AfterFunc(ctx, func() { close(late) })())
				<-late
				return 0, kept.Err()
			})
			require.ErrorIs(t, err, pool.ErrLimit)
			assert.Equal(t, 5*time.Second, time.Since(start))
			pass(0)
			assert.True(t, ended)
		})
	})
	t.Run("of a stream end with the caller", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			p, err := pool.New(pool.Failover, names("a", "b"), pool.WithLimit(5*time.Second))
			require.NoError(t, err)
			caller, cancel := context.WithCancel(t.Context())
			stream, err := pool.Do(caller, p, func(ctx context.Context, _ string) (context.Context, error) {
				child, stop := context.WithCancel(ctx)
				context.AfterFunc(child, stop)
				return child, nil
			})
			require.NoError(t, err)
			fresh, err := pool.Do(caller, p, func(ctx context.Context, _ string) (context.Context, error) { return ctx, nil })
			require.NoError(t, err)
			child, stop := context.WithCancel(fresh)
			defer stop()
			told := make(chan struct{})
			fresh.(interface{ AfterFunc(func()) func() bool }).AfterFunc(func() { close(told) })
			pass(time.Hour)
			runtime.GC()
			require.NoError(t, stream.Err())
			require.NoError(t, child.Err())
			cancel()
			<-stream.Done()
			<-child.Done()
			<-told
		})
	})
}

// countingContext counts what hangs on it.
type countingContext struct {
	context.Context
	hanging atomic.Int64
}

// Value hides the context package's own ways to c.
func (c *countingContext) Value(any) any { return nil }

func (c *countingContext) AfterFunc(f func()) func() bool {
	stop := context.AfterFunc(c.Context, f)
	c.hanging.Add(1)
	return func() bool {
		stopped := stop()
		if stopped {
			c.hanging.Add(-1)
		}
		return stopped
	}
}

func TestACallersContextDoesNotFillUp(t *testing.T) {
	guard(t, func() {
		p, err := pool.New(pool.Failover, names("a", "b"), pool.WithLimit(5*time.Second))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		caller := &countingContext{Context: ctx}
		for range 100 {
			_, err := pool.Do(caller, p, func(ctx context.Context, name string) (int, error) {
				_ = ctx.Done()
				if name == "a" {
					return 0, errBoom
				}
				return 0, nil
			})
			require.NoError(t, err)
			p.Circuit("a").Reset()
		}
		assert.Positive(t, caller.hanging.Load())
		require.Eventually(t, func() bool {
			runtime.GC()
			return caller.hanging.Load() == 0
		}, testTimeout, time.Millisecond)
	})
}

func TestAttemptTimeout(t *testing.T) {
	t.Run("moves on", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			p, err := pool.New(pool.Failover, names("a", "b", "c"), pool.WithLimit(5*time.Second),
				pool.WithBreaker(breaker.WithTimeout(2*time.Second), breaker.WithIgnore(context.DeadlineExceeded)))
			require.NoError(t, err)
			start := time.Now()
			var at []time.Duration
			_, err = pool.Do(t.Context(), p, func(ctx context.Context, _ string) (int, error) {
				at = append(at, time.Since(start))
				<-ctx.Done()
				return 0, ctx.Err()
			})
			require.ErrorIs(t, err, pool.ErrLimit)
			assert.Equal(t, []time.Duration{0, 2 * time.Second, 4 * time.Second}, at)
			assert.Equal(t, 5*time.Second, time.Since(start))
			for _, n := range []string{"a", "b"} {
				assert.EqualValues(t, 1, p.Circuit(n).Snapshot().Totals.Failures, "whatever the error says")
			}
			assert.EqualValues(t, 1, p.Circuit("c").Snapshot().Totals.Ignored, "it had what the others had left of the limit")
		})
	})
	t.Run("a value that comes too late", func(t *testing.T) {
		r := newRig(t, pool.Failover, names("a", "b"), pool.WithBreaker(breaker.WithTimeout(time.Second)), pool.WithLimit(0))
		v, err := pool.Do(t.Context(), r.p, func(context.Context, string) (int, error) {
			r.clk.Add(time.Second)
			return 7, nil
		})
		require.NoError(t, err)
		assert.Equal(t, 7, v)
		assert.EqualValues(t, 1, r.totals("a").Failures)
	})
	t.Run("per member", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			p, err := pool.New(pool.Failover, names("a", "b"), pool.PerMember(func(m pool.Member[string]) []breaker.Option {
				if m.Name == "a" {
					return []breaker.Option{breaker.WithTimeout(time.Second)}
				}
				return nil
			}))
			require.NoError(t, err)
			start := time.Now()
			v, err := pool.Do(t.Context(), p, func(ctx context.Context, name string) (string, error) {
				select {
				case <-ctx.Done():
					return "", ctx.Err()
				case <-time.After(3 * time.Second):
					return name, nil
				}
			})
			require.NoError(t, err)
			assert.Equal(t, "b", v)
			assert.Equal(t, 4*time.Second, time.Since(start))
		})
	})
	t.Run("the caller cancels meanwhile", func(t *testing.T) {
		r := newRig(t, pool.Failover, names("a", "b"), pool.WithBreaker(breaker.WithTimeout(time.Second)))
		ctx, cancel := context.WithCancel(t.Context())
		_, err := pool.Do(ctx, r.p, func(context.Context, string) (int, error) {
			r.clk.Add(time.Second)
			cancel()
			return 0, errBoom
		})
		require.ErrorIs(t, err, context.Canceled)
		assert.EqualValues(t, 1, r.totals("a").Ignored)
	})
}

func TestTheDeadlineOfAnAttempt(t *testing.T) {
	const none = time.Duration(0)
	for _, tc := range []struct{ caller, timeout, limit, want time.Duration }{
		{none, none, none, none},
		{none, 2 * time.Second, none, 2 * time.Second},
		{none, none, 3 * time.Second, 3 * time.Second},
		{none, 2 * time.Second, 3 * time.Second, 2 * time.Second},
		{none, 3 * time.Second, 2 * time.Second, 2 * time.Second},
		{time.Second, 3 * time.Second, 2 * time.Second, time.Second},
		{time.Second, none, none, time.Second},
		{4 * time.Second, 3 * time.Second, none, 3 * time.Second},
	} {
		t.Run(fmt.Sprintf("caller %v, timeout %v, limit %v", tc.caller, tc.timeout, tc.limit), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				opts := []pool.Option{pool.WithLimit(tc.limit)}
				if tc.timeout != none {
					opts = append(opts, pool.WithBreaker(breaker.WithTimeout(tc.timeout)))
				}
				p, err := pool.New(pool.Failover, names("a"), opts...)
				require.NoError(t, err)
				ctx, start := t.Context(), time.Now()
				if tc.caller != none {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tc.caller)
					defer cancel()
				}
				left := func(ctx context.Context) (d time.Duration) {
					if at, ok := ctx.Deadline(); ok {
						d = at.Sub(start)
					}
					return d
				}
				after, err := pool.Do(ctx, p, func(ctx context.Context, _ string) (context.Context, error) {
					assert.Equal(t, tc.want, left(ctx))
					return ctx, nil
				})
				require.NoError(t, err)
				assert.Equal(t, tc.caller, left(after), "a deadline does not reach beyond the function")
			})
		})
	}
}

func TestNoLimitByDefault(t *testing.T) {
	r := newRig(t, pool.Failover, names("a", "b"), r0)
	_, err := pool.Do(t.Context(), r.p, func(ctx context.Context, _ string) (int, error) {
		r.clk.Add(24 * time.Hour)
		return 0, ctx.Err()
	})
	require.NoError(t, err)
}

// The end of the limit is a Failure of a member that had all of it, and says nothing of one that had a part.
func TestTheLimitIsHeldAgainstAMemberThatHadAllOfIt(t *testing.T) {
	for _, s := range strategies {
		r := newRig(t, s, names("a", "b"), r0, pool.WithLimit(2*time.Second))
		var first, second string
		_, err := pool.Do(t.Context(), r.p, func(_ context.Context, name string) (int, error) {
			if first == "" {
				first = name
				r.clk.Add(time.Second)
				return 0, errBoom
			}
			second = name
			r.clk.Add(time.Second)
			return 0, errBoom
		})
		require.ErrorIs(t, err, pool.ErrLimit)
		assert.EqualValues(t, 1, r.totals(first).Failures, "%v: it failed before the limit", s)
		assert.EqualValues(t, 1, r.totals(second).Ignored, "%v", s)
		assert.Zero(t, r.totals(second).Failures, "%v", s)

		var alone string
		before := map[string]uint64{"a": r.totals("a").Failures, "b": r.totals("b").Failures}
		_, err = pool.Do(t.Context(), r.p, func(_ context.Context, name string) (int, error) {
			alone = name
			r.clk.Add(2 * time.Second)
			return 0, errBoom
		})
		require.ErrorIs(t, err, pool.ErrLimit)
		assert.Equal(t, before[alone]+1, r.totals(alone).Failures, "%v: it had all of it", s)
	}
}
