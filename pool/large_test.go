package pool_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/pool"
)

const crowd = 10_000

// countingClock counts how often it is read: a circuit that is open reads it whenever it is looked at. At the read number
// at it calls then.
type countingClock struct {
	*clock.Mock
	reads atomic.Int64
	at    atomic.Int64
	then  func()
}

func (c *countingClock) Now() time.Time {
	if c.reads.Add(1) == c.at.Load() {
		c.then()
	}
	return c.Mock.Now()
}

// on calls f at the nth read from now.
func (c *countingClock) on(n int64, f func()) {
	c.then = f
	c.at.Store(c.reads.Load() + n)
}

// openCrowd is a pool of many members, all of them open. The clock is that of the circuits alone.
func openCrowd(t *testing.T, s pool.Strategy, opts ...pool.Option) (*pool.Pool[int], *countingClock) {
	clk := &countingClock{Mock: clock.NewMock()}
	members := make([]pool.Member[int], crowd)
	for i := range members {
		members[i] = pool.Member[int]{Name: fmt.Sprint(i), Value: i, Weight: 1 + i%5}
	}
	p, err := pool.New(s, members, append([]pool.Option{pool.WithBreaker(breaker.WithClock(clk))}, opts...)...)
	require.NoError(t, err)
	for _, c := range p.Circuits() {
		c.Trip(nil)
	}
	clk.reads.Store(0)
	return p, clk
}

// Finding that no member is ready looks at each of many members a few times, not at each for each.
func TestChoosingAmongManyIsLinear(t *testing.T) {
	for _, s := range strategies {
		for _, percent := range []int{100, 50} {
			t.Run(fmt.Sprintf("%v, at most %d %% out", s, percent), func(t *testing.T) {
				guard(t, func() {
					p, clk := openCrowd(t, s, pool.MaxEjected(percent))
					calls := 0
					_, err := pool.Do(t.Context(), p, func(context.Context, int) (int, error) { calls++; return 0, errBoom })
					require.Error(t, err)
					assert.Equal(t, crowd-crowd*percent/100, calls)
					assert.Less(t, clk.reads.Load(), int64(30*crowd))
					clk.reads.Store(0)
					_, err = p.Acquire(t.Context())
					assert.Equal(t, percent == 100, err != nil)
					assert.Less(t, clk.reads.Load(), int64(8*crowd))
					clk.reads.Store(0)
					require.Len(t, p.Snapshot().Members, crowd)
					assert.Less(t, clk.reads.Load(), int64(8*crowd))
				})
			})
		}
	}
}

// A caller whose context ends while many members are looked at does not wait for the rest.
func TestChoosingAmongManyLooksAtTheContext(t *testing.T) {
	for _, s := range strategies {
		for _, percent := range []int{100, 99} {
			t.Run(fmt.Sprintf("%v, at most %d %% out", s, percent), func(t *testing.T) {
				guard(t, func() {
					p, clk := openCrowd(t, s, pool.MaxEjected(percent))
					ctx, cancel := context.WithCancel(t.Context())
					clk.on(1000, cancel)
					_, err := pool.Do(ctx, p, func(context.Context, int) (int, error) { return 0, nil })
					assert.Equal(t, context.Canceled, err)
					assert.Less(t, clk.reads.Load(), int64(1500))
					ctx, cancel = context.WithCancel(t.Context())
					clk.reads.Store(0)
					clk.on(1000, cancel)
					_, err = p.Acquire(ctx)
					assert.Equal(t, context.Canceled, err)
					assert.Less(t, clk.reads.Load(), int64(1500))
				})
			})
		}
	}
}

// So with the pool's limit.
func TestChoosingAmongManyLooksAtTheLimit(t *testing.T) {
	for _, s := range strategies {
		guard(t, func() {
			p, clk := openCrowd(t, s, pool.WithLimit(time.Second))
			clk.on(1000, func() { clk.Add(time.Second) })
			_, err := pool.Do(t.Context(), p, func(context.Context, int) (int, error) { return 0, nil })
			assert.Equal(t, pool.ErrLimit, err, "%v", s)
			assert.Less(t, clk.reads.Load(), int64(1500), "%v", s)
		})
	}
}

// While one caller is held up by a look at a member, others choose.
func TestNoLockIsHeldWhileMembersAreLookedAt(t *testing.T) {
	for _, s := range strategies {
		guard(t, func() {
			p, clk := openCrowd(t, s)
			var others sync.WaitGroup
			looked := false
			clk.on(crowd/2, func() {
				looked = true
				for range 4 {
					others.Go(func() {
						ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
						defer cancel()
						_, _ = pool.Do(ctx, p, func(context.Context, int) (int, error) { return 0, nil })
					})
				}
				others.Wait()
			})
			_, err := pool.Do(t.Context(), p, func(context.Context, int) (int, error) { return 0, nil })
			require.ErrorIs(t, err, breaker.ErrOpen, "%v", s)
			assert.True(t, looked, "%v", s)
		})
	}
}

// Making a large pool does not compare each member with each: with names whose comparison takes a while that takes six
// seconds and more, and otherwise a fraction of one.
func TestALargePoolIsMadeInLinearTime(t *testing.T) {
	guard(t, func() {
		members := make([]pool.Member[int], crowd)
		prefix := strings.Repeat("x", 4096)
		for i := range members {
			members[i] = pool.Member[int]{Name: fmt.Sprintf("%s%05d", prefix, i), Priority: i % 100}
		}
		best := time.Hour
		for range 3 {
			start := time.Now()
			p, err := pool.New(pool.WeightedRoundRobin, members)
			best = min(best, time.Since(start))
			require.NoError(t, err)
			require.NoError(t, p.Close())
		}
		assert.Less(t, best, 2*time.Second)
	})
}

// A weighted turn costs time in proportion to the members: a call in vain takes a few of them and not one for each.
func TestACallInVainTakesFewWeightedTurns(t *testing.T) {
	guard(t, func() {
		members := make([]pool.Member[int], crowd)
		for i := range members {
			members[i] = pool.Member[int]{Name: fmt.Sprint(i), Value: i}
		}
		p, err := pool.New(pool.WeightedRoundRobin, members)
		require.NoError(t, err)
		for _, c := range p.Circuits() {
			c.Trip(nil)
		}
		same := func(_ context.Context, i int) (int, error) { return i, nil }
		_, err = pool.Do(t.Context(), p, same)
		require.ErrorIs(t, err, breaker.ErrOpen)
		for _, c := range p.Circuits() {
			c.Reset()
		}
		next, err := pool.Do(t.Context(), p, same)
		require.NoError(t, err)
		assert.Greater(t, next, 0, "turns have been taken")
		assert.LessOrEqual(t, next, 64, "equals have their turns in order")
	})
}
