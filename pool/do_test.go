package pool_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/pool"
)

func TestDoRefusesBeforeAnythingIsCounted(t *testing.T) {
	r := newRig(t, pool.Failover, names("a"), r0)
	_, err := pool.Do[string, int](t.Context(), r.p, nil)
	require.ErrorIs(t, err, breaker.ErrNilFunc)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = pool.Do(ctx, r.p, r.call)
	assert.Equal(t, context.Canceled, err)
	assert.Empty(t, r.called())
	assert.Zero(t, r.totals("a").Calls)
	r.open("a")
	_, err = pool.Do[string, int](t.Context(), r.p, nil)
	require.ErrorIs(t, err, breaker.ErrNilFunc, "in every state")
	_, err = pool.Do(ctx, r.p, r.call)
	assert.Equal(t, context.Canceled, err, "in every state")
	r = newRig(t, pool.Failover, names("a"), r0, pool.MaxEjected(0))
	r.open("a")
	_, err = pool.Do(ctx, r.p, r.call)
	assert.Equal(t, context.Canceled, err)
	assert.Empty(t, r.called())
}

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

func TestARejectionIsNoRealError(t *testing.T) {
	r := newRig(t, pool.Failover, names("a", "b"), r0)
	r.fail["a"], r.fail["b"] = errBoom, breaker.ErrOpen
	_, err := r.do()
	none, ok := errors.AsType[*pool.UnavailableError](err)
	require.True(t, ok)
	assert.Equal(t, errBoom, none.Last)
	r.fail["a"] = breaker.ErrTooManyInFlight
	_, err = r.do()
	none, ok = errors.AsType[*pool.UnavailableError](err)
	require.True(t, ok)
	assert.NoError(t, none.Last)
	assert.True(t, none.Reasons[1].Called)
}

func TestZeroPoolPanicsByName(t *testing.T) {
	var none *pool.Pool[string]
	fn := func(context.Context, string) (int, error) { return 0, nil }
	assert.PanicsWithValue(t, "pool: nil *Pool; make one with New", func() { _, _ = pool.Do(t.Context(), none, fn) })
	assert.PanicsWithValue(t, "pool: zero Pool; make one with New", func() { _, _ = pool.Do(t.Context(), &pool.Pool[string]{}, fn) })
	assert.PanicsWithValue(t, "pool: zero Pool; make one with New", func() { (&pool.Pool[string]{}).Circuit("a") })
	assert.Equal(t, "pool without New", (&pool.Pool[string]{}).String())
}

func TestAllFailed(t *testing.T) {
	r := newRig(t, pool.Failover, names("a", "b", "c", "d"), r0)
	r.open("a")
	r.fail["b"], r.fail["d"] = status(500), status(503)
	r.fail["c"] = fmt.Errorf("inside: %w", breaker.ErrOpen)
	v, err := r.do()
	assert.Equal(t, "d", v, "what the last one brought")
	assert.Equal(t, []string{"b", "c", "d"}, r.called())
	none, ok := errors.AsType[*pool.UnavailableError](err)
	require.True(t, ok)
	assert.Equal(t, status(503), none.Last)
	require.ErrorIs(t, err, breaker.ErrOpen)
	got, ok := errors.AsType[status](err)
	assert.True(t, ok)
	assert.Equal(t, status(503), got)
	assert.NotErrorIs(t, err, status(500))
	assert.Equal(t, 10*time.Second, none.RetryAfter())
	assert.Equal(t, []bool{false, true, true, true}, []bool{none.Reasons[0].Called, none.Reasons[1].Called, none.Reasons[2].Called, none.Reasons[3].Called})
	assert.Equal(t, status(500), none.Reasons[1].Err)
	assert.ErrorIs(t, none.Reasons[2].Err, breaker.ErrOpen)
	assert.Equal(t, `pool: no member is available: a: breaker: circuit "a" is open; b: status 500; c: inside: breaker: circuit is open; d: status 503`, err.Error())

	assert.EqualValues(t, 1, r.totals("b").Failures)
	assert.EqualValues(t, 1, r.totals("c").Ignored)
}

func TestRetryAfterIsTheEarliest(t *testing.T) {
	r := newRig(t, pool.Failover, names("a", "b", "c"), r0)
	after := func() time.Duration {
		_, err := r.do()
		none, ok := errors.AsType[*pool.UnavailableError](err)
		require.True(t, ok)
		return none.RetryAfter()
	}
	r.fail["a"], r.fail["b"], r.fail["c"] = errBoom, errBoom, errBoom
	assert.Zero(t, after(), "nobody has said anything")
	r.fail["b"] = busy(7 * time.Second)
	assert.Equal(t, 7*time.Second, after(), "a hint")
	assert.Equal(t, 10*time.Second, after(), "all circuits have opened, b's for longer than b has asked for")
	r.clk.Add(8 * time.Second)
	assert.Equal(t, 2*time.Second, after())
	r.p.Circuit("a").SetMode(breaker.ForcedOpen)
	r.p.Circuit("b").SetMode(breaker.ForcedOpen)
	r.p.Circuit("c").SetMode(breaker.ForcedOpen)
	assert.Zero(t, after(), "forced open says nothing")
	assert.Zero(t, (&pool.UnavailableError{}).RetryAfter())
	assert.EqualError(t, &pool.UnavailableError{}, "pool: no members")
}

func TestReasonsOfThoseThatAreBusy(t *testing.T) {
	r := newRig(t, pool.Failover, names("a"), pool.WithBreaker(breaker.WithMaxInFlight(1)))
	g := r.gate()
	g.start(1)
	_, err := r.do()
	none, ok := errors.AsType[*pool.UnavailableError](err)
	require.True(t, ok)
	assert.Equal(t, breaker.ErrTooManyInFlight, none.Reasons[0].Err)
	assert.Zero(t, r.totals("a").Rejected)
	g.finish()
}

func TestAnInnerRejectionMovesOn(t *testing.T) {
	for _, inner := range []error{
		breaker.ErrOpen, breaker.ErrTooManyInFlight, &breaker.OpenError{Circuit: "x"},
		fmt.Errorf("wrapped: %w", breaker.ErrOpen), &pool.UnavailableError{},
	} {
		r := newRig(t, pool.Failover, names("a", "b"), r0)
		r.fail["a"] = inner
		for range 5 {
			assert.Equal(t, []string{"b"}, r.good(1), "%v", inner)
			assert.Equal(t, []string{"a", "b"}, r.called())
		}
		assert.Equal(t, breaker.Closed, r.state("a"))
		assert.EqualValues(t, 5, r.totals("a").Ignored)
	}
}

// raceClock lets somebody be quicker: between a circuit's being found ready and its being asked.
type raceClock struct {
	*clock.Mock
	reads atomic.Int64
	at    int64
	then  func()
}

func (c *raceClock) Now() time.Time {
	if c.reads.Add(1) == c.at {
		c.then()
	}
	return c.Mock.Now()
}

func TestALostRaceMovesOn(t *testing.T) {
	guard(t, func() {
		clk := &raceClock{Mock: clock.NewMock()}
		a := breaker.Must(breaker.NewCircuit("a", breaker.WithClock(clk), breaker.WithSuccessThreshold(1)))
		var moves []pool.Moved
		p, err := pool.New(pool.Failover, []pool.Member[string]{{Name: "a", Priority: 1, Circuit: a}, {Name: "b"}},
			pool.WithHooks(pool.Hooks{Moved: func(_ context.Context, m pool.Moved) { moves = append(moves, m) }}))
		require.NoError(t, err)
		a.Trip(nil)
		a.OfferProbe()
		var taken *breaker.Permit
		clk.at = clk.reads.Load() + 2 // the first read is Ready's
		clk.then = func() {
			taken, err = a.Acquire(t.Context())
			require.NoError(t, err)
		}
		var called []string
		_, err = pool.Do(t.Context(), p, func(context.Context, string) (int, error) {
			called = append(called, "?")
			return 0, nil
		})
		require.NoError(t, err)
		assert.Len(t, called, 1)
		require.NotNil(t, taken, "the race took place")
		assert.EqualValues(t, 1, a.Snapshot().Totals.Rejected)
		assert.EqualValues(t, 1, p.Circuit("b").Snapshot().Totals.Successes)
		assert.Empty(t, moves, "nobody was called and failed")
		taken.Done(nil)
		assert.Equal(t, breaker.Closed, a.State())
	})
}

func TestMovedHook(t *testing.T) {
	var moves []pool.Moved
	r := newRig(t, pool.Failover, names("a", "b", "c", "d"), r0, pool.WithHooks(pool.Hooks{}),
		pool.WithHooks(pool.Hooks{Moved: func(context.Context, pool.Moved) { panic("contained") }}),
		pool.WithHooks(pool.Hooks{Moved: func(_ context.Context, m pool.Moved) { moves = append(moves, m) }}))
	r.open("b")
	r.fail["a"], r.fail["c"] = errBoom, errClient
	assert.Equal(t, []string{"d"}, r.good(1))
	assert.Equal(t, []pool.Moved{{From: "a", To: "c", Err: errBoom}, {From: "c", To: "d", Err: errClient}}, moves)
}

func TestAHookThatEndsTheGoroutineKeepsNoSlot(t *testing.T) {
	guard(t, func() {
		r := newRig(t, pool.Failover, names("a", "b"), r0, pool.WithHooks(pool.Hooks{Moved: func(context.Context, pool.Moved) { runtime.Goexit() }}))
		r.fail["a"] = errBoom
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = r.do()
		}()
		<-done
		s := r.p.Circuit("b").Snapshot()
		assert.Zero(t, s.InFlight)
		assert.EqualValues(t, 1, s.Totals.Ignored)
		assert.Equal(t, []string{"a"}, r.called())
	})
}

func TestPanicAndGoexitSettle(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic(errBoom) }, "goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			guard(t, func() {
				r := newRig(t, pool.Failover, names("a", "b"), r0)
				for range 3 {
					done := make(chan any)
					go func() {
						defer func() { done <- recover() }()
						_, _ = pool.Do(t.Context(), r.p, func(ctx context.Context, name string) (int, error) {
							_, _ = r.call(ctx, name)
							end()
							return 0, nil
						})
					}()
					if got := <-done; name == "panic" {
						assert.Equal(t, errBoom, got, "unchanged")
					}
				}
				assert.Equal(t, map[string]int{"a": 3}, count(r.called()), "nobody else is called")
				assert.Equal(t, breaker.Open, r.state("a"))
				s := r.p.Circuit("a").Snapshot()
				assert.EqualValues(t, 3, s.Totals.Failures)
				assert.Zero(t, s.InFlight)
				r.clk.Add(10 * time.Second)
				assert.Equal(t, []string{"a"}, r.good(1), "and no probe slot is lost")
			})
		})
	}
}

func TestAPanickingIgnoreListSettles(t *testing.T) {
	r := newRig(t, pool.Failover, names("a", "b"), r0, pool.WithBreaker(breaker.WithIgnore(errClient)))
	assert.Panics(t, func() {
		_, _ = pool.Do(t.Context(), r.p, func(context.Context, string) (int, error) { return 0, nasty{} })
	})
	s := r.p.Circuit("a").Snapshot()
	assert.Zero(t, s.InFlight)
	assert.EqualValues(t, 1, s.Totals.Failures)
}

type nasty struct{}

func (nasty) Error() string   { return "nasty" }
func (nasty) Is(error) bool   { panic("nasty") }
func (nasty) Unwrap() []error { return nil }

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
			caller, cancel := context.WithCancelCause(context.WithValue(t.Context(), status(1), "value"))
			stream, err := pool.Do(caller, p, func(ctx context.Context, _ string) (context.Context, error) {
				if early {
					select {
					case <-ctx.Done():
						return nil, ctx.Err()
					case <-time.After(time.Second):
					}
				}
				_, hasDeadline := ctx.Deadline()
				assert.False(t, hasDeadline, "a deadline would reach beyond fn")
				assert.Equal(t, "value", ctx.Value(status(1)))
				return ctx, nil
			})
			require.NoError(t, err)
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
		p, err := pool.New(pool.Failover, names("a", "b"))
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
			p, err := pool.New(pool.Failover, names("a", "b"))
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
			p, err := pool.New(pool.Failover, names("a", "b"))
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
		p, err := pool.New(pool.Failover, names("a", "b"))
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
		}, patience, time.Millisecond)
	})
}

func TestAttemptTimeout(t *testing.T) {
	t.Run("moves on", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			p, err := pool.New(pool.Failover, names("a", "b", "c"), pool.WithBreaker(breaker.WithTimeout(2*time.Second), breaker.WithIgnore(context.DeadlineExceeded)))
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
			for _, c := range p.Circuits() {
				assert.EqualValues(t, 1, c.Snapshot().Totals.Failures, "whatever the error says")
			}
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

func TestClassifier(t *testing.T) {
	classify := breaker.WithClassifier(func(err error) breaker.Outcome {
		if s, ok := err.(status); ok && s >= 400 && s < 500 {
			return breaker.Ignored
		}
		return breaker.Failure
	})
	given := breaker.Must(breaker.NewCircuit("a", classify))
	for _, c := range []*breaker.Circuit{nil, given} {
		r := newRig(t, pool.Failover, []pool.Member[string]{{Name: "a", Priority: 1, Circuit: c}, {Name: "b"}}, pool.WithBreaker(classify))
		r.fail["a"] = status(404)
		_, err := r.do()
		assert.Equal(t, status(404), err)
		assert.Equal(t, []string{"a"}, r.called())
		assert.EqualValues(t, 1, r.totals("a").Ignored)
		_, err = pool.Do(t.Context(), r.p, func(context.Context, string) (int, error) { return 0, pool.Stop(status(404)) })
		assert.Equal(t, status(404), err, "the classifier sees no mark")
		assert.EqualValues(t, 2, r.totals("a").Ignored)
		r.fail["a"] = status(503)
		assert.Equal(t, []string{"b"}, r.good(1))
	}
}
