package pool_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

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
	require.NotErrorIs(t, err, breaker.ErrOpen, "members were called and failed")
	got, ok := errors.AsType[status](err)
	assert.True(t, ok)
	assert.Equal(t, status(503), got)
	assert.NotErrorIs(t, err, status(500))
	assert.Equal(t, 10*time.Second, none.RetryAfter())
	assert.Equal(t, []bool{false, true, true, true}, []bool{none.Reasons[0].Called, none.Reasons[1].Called, none.Reasons[2].Called, none.Reasons[3].Called})
	assert.Equal(t, status(500), none.Reasons[1].Err)
	assert.ErrorIs(t, none.Reasons[2].Err, breaker.ErrOpen)
	assert.Equal(t, `pool: no member has answered: a: breaker: circuit "a" is open; b: status 500; c: inside: breaker: circuit is open; d: status 503`, err.Error())

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

// A rejection is an error in which nothing ran: a failure that is joined with one is a failure of the member.
func TestBR50AFailureJoinedWithARejectionIsAFailure(t *testing.T) {
	for _, err := range []error{
		errors.Join(errBoom, breaker.ErrOpen), errors.Join(breaker.ErrTooManyInFlight, errBoom),
		fmt.Errorf("%w: %w", errBoom, &breaker.OpenError{Circuit: "x"}),
	} {
		r := newRig(t, pool.Failover, names("a", "b"), r0)
		r.fail["a"] = err
		assert.Equal(t, []string{"b"}, r.good(1), "%v", err)
		assert.EqualValues(t, 1, r.totals("a").Failures)
		r.fail["b"] = breaker.ErrOpen
		_, got := r.do()
		none, ok := errors.AsType[*pool.UnavailableError](got)
		require.True(t, ok)
		assert.Equal(t, err, none.Last, "what ran, not b's rejection")

		// Where the member's circuit takes it for the caller's fault, it is the answer.
		r = newRig(t, pool.Failover, names("a", "b"), pool.WithBreaker(breaker.WithIgnore(errBoom)))
		r.fail["a"] = err
		_, got = r.do()
		require.Equal(t, err, got)
		assert.Equal(t, []string{"a"}, r.called())
		assert.EqualValues(t, 1, r.totals("a").Ignored)
	}
}

// raceClock lets another caller be quicker, between a circuit's being found ready and its being asked.
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

// lostRace makes a call of a pool of a and b, of which a is chosen as ready and its one probe slot then lost to another.
func lostRace(t *testing.T, call func(p *pool.Pool[string])) {
	clk := &raceClock{Mock: clock.NewMock()}
	a := breaker.Must(breaker.NewCircuit("a", breaker.WithClock(clk), breaker.WithSuccessThreshold(1)))
	var moves []pool.Moved
	p, err := pool.New(pool.Failover, []pool.Member[string]{{Name: "a", Value: "a", Circuit: a}, {Name: "b", Value: "b"}},
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
	call(p)
	require.NotNil(t, taken, "the race took place")
	assert.EqualValues(t, 1, a.Snapshot().Totals.Rejected)
	assert.EqualValues(t, 1, p.Circuit("b").Snapshot().Totals.Successes)
	assert.Empty(t, moves, "no member was called and failed")
	taken.Done(nil)
	assert.Equal(t, breaker.Closed, a.State())
}

func TestALostRaceMovesOn(t *testing.T) {
	guard(t, func() {
		lostRace(t, func(p *pool.Pool[string]) {
			var called []string
			_, err := pool.Do(t.Context(), p, func(_ context.Context, name string) (int, error) {
				called = append(called, name)
				return 0, nil
			})
			require.NoError(t, err)
			assert.Equal(t, []string{"b"}, called)
		})
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
		for _, limit := range []time.Duration{0, time.Minute} {
			t.Run(fmt.Sprintf("%s, limit %v", name, limit), func(t *testing.T) {
				guard(t, func() { endsAbnormally(t, limit, name == "panic", end) })
			})
		}
	}
}

func endsAbnormally(t *testing.T, limit time.Duration, panics bool, end func()) {
	r := newRig(t, pool.Failover, names("a", "b"), r0, pool.WithLimit(limit))
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
		if got := <-done; panics {
			assert.Equal(t, errBoom, got, "unchanged")
		}
	}
	assert.Equal(t, map[string]int{"a": 3}, count(r.called()), "no other member is called")
	assert.Equal(t, breaker.Open, r.state("a"))
	s := r.p.Circuit("a").Snapshot()
	assert.EqualValues(t, 3, s.Totals.Failures)
	assert.EqualValues(t, 3, s.Totals.Panics)
	assert.Zero(t, s.InFlight)
	r.clk.Add(10 * time.Second)
	assert.Equal(t, []string{"a"}, r.good(1), "and no probe slot is lost")
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

func (nasty) Error() string { return "nasty" }

func (nasty) Is(error) bool { panic("nasty") }

func (nasty) Unwrap() []error { return nil }

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

func TestP05AllOpenIsOneClearError(t *testing.T) {
	for _, s := range strategies {
		guard(t, func() {
			r := newRig(t, s, names("a", "b", "c"), r0)
			at := r.clk.Now()
			r.open("b")
			r.clk.Add(time.Second)
			r.open("a", "c")
			v, err := r.do()
			assert.Empty(t, v)
			require.ErrorIs(t, err, breaker.ErrOpen)
			none, ok := errors.AsType[*pool.UnavailableError](err)
			require.True(t, ok)
			assert.Equal(t, 9*time.Second, none.RetryAfter(), "the earliest: b's")
			require.Len(t, none.Reasons, 3)
			for i, n := range []string{"a", "b", "c"} {
				assert.Equal(t, n, none.Reasons[i].Member)
				assert.False(t, none.Reasons[i].Called)
				assert.ErrorIs(t, none.Reasons[i].Err, breaker.ErrOpen)
				assert.Contains(t, err.Error(), n)
				assert.Zero(t, r.totals(n).Rejected)
			}
			assert.Nil(t, none.Last)
			assert.Empty(t, r.called())
			assert.Equal(t, at.Add(time.Second), r.clk.Now())
			r.clk.Add(4 * time.Second)
			assert.Equal(t, 5*time.Second, none.RetryAfter(), "it runs down")
			r.clk.Add(time.Hour)
			assert.Zero(t, none.RetryAfter(), "and never below 0")
		})
	}
}

func TestP08AFailureMovesOn(t *testing.T) {
	t.Run("to the next", func(t *testing.T) {
		r := newRig(t, pool.Failover, names("a", "b", "c"), r0, pool.WithBreaker(breaker.WithIgnore(errClient)))
		r.fail["a"] = status(503)
		assert.Equal(t, []string{"b"}, r.good(1))
		assert.Equal(t, []string{"a", "b"}, r.called())
		r.fail["b"] = errClient
		_, err := r.do()
		assert.Equal(t, errClient, err, "as it is")
		assert.Equal(t, []string{"a", "b"}, r.called(), "a 4xx does not move on")
	})
	t.Run("5,000 ms for all of it", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			p, err := pool.New(pool.Failover, names("a", "b"), pool.WithLimit(5*time.Second))
			require.NoError(t, err)
			start := time.Now()
			var called []string
			_, err = pool.Do(t.Context(), p, func(ctx context.Context, name string) (int, error) {
				called = append(called, name)
				if name == "a" {
					time.Sleep(3 * time.Second)
					return 0, errBoom
				}
				<-ctx.Done()
				return 0, ctx.Err()
			})
			assert.Equal(t, 5*time.Second, time.Since(start))
			require.ErrorIs(t, err, pool.ErrLimit)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			assert.NotErrorIs(t, err, breaker.ErrOpen)
			assert.Equal(t, []string{"a", "b"}, called)
			assert.EqualValues(t, 1, p.Circuit("b").Snapshot().Totals.Ignored, "it had what a had left of the limit")
		})
	})
}

func TestBC112FailoverMovesOnQuietlyAndStopsWhenItMust(t *testing.T) {
	t.Run("a: the call is a's probe and fails", func(t *testing.T) {
		r := newRig(t, pool.Failover, names("a", "b"), r0)
		r.open("a")
		r.clk.Add(10 * time.Second)
		r.fail["a"] = status(503)
		assert.Equal(t, []string{"b"}, r.good(1))
		assert.Equal(t, []string{"a", "b"}, r.called())
		assert.Equal(t, breaker.Open, r.state("a"))
	})
	t.Run("b: a is open", func(t *testing.T) {
		r := newRig(t, pool.Failover, names("a", "b"), r0)
		r.open("a")
		at := r.clk.Now()
		assert.Equal(t, []string{"b"}, r.good(1))
		assert.Equal(t, []string{"b"}, r.called())
		assert.Equal(t, at, r.clk.Now())
	})
	t.Run("c: a answers 400", func(t *testing.T) {
		r := newRig(t, pool.Failover, names("a", "b"), r0, pool.WithBreaker(breaker.WithIgnore(status(400))))
		r.fail["a"] = status(400)
		for range 10 {
			_, err := r.do()
			assert.Equal(t, status(400), err)
		}
		assert.Equal(t, map[string]int{"a": 10}, count(r.called()))
		assert.Equal(t, breaker.Closed, r.state("a"))
		assert.Zero(t, r.totals("a").Failures)
	})
	t.Run("d: the caller cancels during a", func(t *testing.T) {
		r := newRig(t, pool.Failover, names("a", "b"), r0)
		for _, errFn := range []error{context.Canceled, errBoom} {
			ctx, cancel := context.WithCancel(t.Context())
			_, err := pool.Do(ctx, r.p, func(ctx context.Context, name string) (int, error) {
				_, _ = r.call(ctx, name)
				cancel()
				<-ctx.Done()
				return 0, errFn
			})
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, errFn)
			assert.NotErrorIs(t, err, breaker.ErrOpen)
			assert.Equal(t, []string{"a"}, r.called())
		}
		assert.EqualValues(t, 2, r.totals("a").Ignored)
	})
	t.Run("e: what must not be sent twice", func(t *testing.T) {
		r := newRig(t, pool.Failover, names("a", "b"), r0)
		_, err := pool.Do(t.Context(), r.p, func(ctx context.Context, name string) (int, error) {
			_, _ = r.call(ctx, name)
			return 0, pool.Stop(errBoom)
		})
		assert.Equal(t, errBoom, err, "without the mark")
		assert.Equal(t, []string{"a"}, r.called())
		assert.EqualValues(t, 1, r.totals("a").Failures, "it is a failure all the same")
		assert.NoError(t, pool.Stop(nil))
		_, err = pool.Do(t.Context(), r.p, func(ctx context.Context, name string) (int, error) {
			_, _ = r.call(ctx, name)
			return 0, fmt.Errorf("sending: %w", pool.Stop(errBoom))
		})
		require.ErrorIs(t, err, errBoom)
		assert.EqualError(t, err, "sending: boom")
		assert.Equal(t, []string{"a"}, r.called())
	})
}

// Whatever fails: every call asks each member once at most, in the strategy's order, until one answers.
func TestEachMemberOnceAtMost(t *testing.T) {
	guard(t, func() {
		rapid.Check(t, func(rt *rapid.T) {
			s := rapid.SampledFrom(strategies).Draw(rt, "strategy")
			f := newField(t, s, rapid.SliceOfN(rapid.IntRange(0, 30), 1, 9).Draw(rt, "weights"))
			for range 20 {
				for _, n := range f.order {
					f.set(n, rapid.IntRange(0, 3).Draw(rt, "open") == 0)
					f.fail[n] = nil
					if rapid.Bool().Draw(rt, "fails") {
						f.fail[n] = errBoom
					}
				}
				ready, _ := f.ready()
				v, err := f.do()
				called := f.called()
				for n, times := range count(called) {
					if times > 1 || !slices.Contains(ready, n) {
						rt.Fatalf("%v were called, %v are in rotation", called, ready)
					}
				}
				healthy := slices.ContainsFunc(ready, func(n string) bool { return f.fail[n] == nil })
				if healthy != (err == nil) || healthy && f.fail[v] != nil || !healthy && len(called) != len(ready) {
					rt.Fatalf("%v of %v were called: %v, %v", called, ready, v, err)
				}
				if s == pool.Failover && !slices.IsSortedFunc(called, func(a, b string) int { return slices.Index(f.order, a) - slices.Index(f.order, b) }) {
					rt.Fatalf("%v were called", called)
				}
			}
		})
	})
}

func TestBR50AFailedPoolIsAFailureToWhatIsAroundIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, err := pool.New(pool.Failover, names("a", "b"), pool.WithBreaker(breaker.WithFailureThreshold(1000)))
		require.NoError(t, err)
		calls := 0
		fail := func(context.Context, string) (int, error) { calls++; return 0, errBoom }
		through := func(b *breaker.Breaker[int]) error {
			_, err := b.Do(t.Context(), func(ctx context.Context) (int, error) { return pool.Do(ctx, p, fail) })
			return err
		}
		outer := breaker.Must(breaker.New[int]("outer", breaker.WithFailureThreshold(3)))
		for range 10 {
			require.Error(t, through(outer))
		}
		totals := outer.Circuit().Snapshot().Totals
		assert.EqualValues(t, 3, totals.Failures)
		assert.EqualValues(t, 7, totals.Rejected)
		assert.Zero(t, totals.Ignored)
		assert.Equal(t, 6, calls)

		retrying := breaker.Must(breaker.New[int]("retrying", breaker.WithFailureThreshold(100), breaker.WithRetry(breaker.MaxRetries(2))))
		require.ErrorIs(t, through(retrying), errBoom)
		assert.Equal(t, 6+3*2, calls, "each retry asks all members again")

		for _, c := range p.Circuits() {
			c.Trip(nil)
		}
		require.ErrorIs(t, through(retrying), breaker.ErrOpen)
		totals = retrying.Circuit().Snapshot().Totals
		assert.EqualValues(t, 1, totals.Ignored, "nothing ran: a rejection, which is not retried")
		assert.Equal(t, 12, calls)
	})
}

func TestUnavailableIsARejectionOnlyIfNothingRan(t *testing.T) {
	r := newRig(t, pool.Failover, names("a", "b"), r0)
	r.fail["a"], r.fail["b"] = &breaker.OpenError{Circuit: "inner"}, breaker.ErrTooManyInFlight
	_, err := r.do()
	require.ErrorIs(t, err, breaker.ErrOpen, "both have met rejections")
	r.fail["b"] = errBoom
	_, err = r.do()
	require.NotErrorIs(t, err, breaker.ErrOpen)
	require.ErrorIs(t, err, errBoom)
	r.open("a", "b")
	_, err = r.do()
	require.ErrorIs(t, err, breaker.ErrOpen)
	assert.True(t, strings.HasPrefix(err.Error(), "pool: no member is available: "), err)
}

func TestTheTextOfUnavailableIsBounded(t *testing.T) {
	e := &pool.UnavailableError{Last: errBoom}
	long := errors.New(strings.Repeat("ä", 10_000))
	for i := range 10_000 {
		e.Reasons = append(e.Reasons, pool.Reason{Member: fmt.Sprintf("m%d", i), Err: long, Called: i == 7_000})
	}
	text := e.Error()
	assert.Less(t, len(text), 4096)
	assert.True(t, utf8.ValidString(text))
	assert.True(t, strings.HasPrefix(text, "pool: no member has answered: m7000: ä"), "one that was called comes first")
	assert.True(t, strings.HasSuffix(text, "; and 9992 more"))
	nested := &pool.UnavailableError{Reasons: []pool.Reason{{Member: strings.Repeat("x", 1000), Err: e}}}
	assert.Less(t, len(nested.Error()), 512)
}

// Whatever ends the caller's context, and wherever: no further member is called, and what was taken is given back.
func TestNoMemberIsCalledAfterTheCallersEnd(t *testing.T) {
	for _, s := range strategies {
		for _, deadline := range []bool{false, true} {
			for _, where := range []string{"in the function", "in a hook", "past the circuits"} {
				t.Run(fmt.Sprintf("%v, deadline %v, %s", s, deadline, where), func(t *testing.T) {
					bubble(t, func(t *testing.T) { endsDuring(t, s, deadline, where) })
				})
			}
		}
	}
}

func endsDuring(t *testing.T, s pool.Strategy, deadline bool, where string) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	end := func() {
		if deadline {
			pass(time.Second)
		}
		cancel()
	}
	ejected := 100
	if where == "past the circuits" {
		ejected = 0
	}
	calls := 0
	p, err := pool.New(s, names("a", "b", "c"), pool.MaxEjected(ejected), pool.WithHooks(pool.Hooks{Moved: func(context.Context, pool.Moved) {
		if where != "in the function" {
			end()
		}
	}}))
	require.NoError(t, err)
	for _, c := range p.Circuits() {
		if ejected == 0 {
			c.Trip(nil)
		}
	}
	_, err = pool.Do(ctx, p, func(context.Context, string) (int, error) {
		calls++
		if where == "in the function" {
			end()
		}
		return 0, errBoom
	})
	want := context.Canceled
	if deadline {
		want = context.DeadlineExceeded
	}
	require.ErrorIs(t, err, want)
	require.ErrorIs(t, err, errBoom)
	assert.Equal(t, 1, calls)
	for _, c := range p.Circuits() {
		assert.Zero(t, c.Snapshot().InFlight)
		assert.LessOrEqual(t, c.Snapshot().Totals.Failures, uint64(1))
	}
}
