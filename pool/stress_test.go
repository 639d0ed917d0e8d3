package pool_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/pool"
)

// Many callers, while members come and go, open and close: every call is answered by one member or by none, asks none
// twice, and leaves nothing behind.
func TestStress(t *testing.T) {
	for _, s := range strategies {
		for _, percent := range []int{100, 50} {
			t.Run(fmt.Sprintf("%v, at most %d %% out", s, percent), func(t *testing.T) {
				guard(t, func() { stress(t, s, percent) })
			})
		}
	}
}

func stress(t *testing.T, s pool.Strategy, percent int) {
	const callers, calls = 8, 400
	circuits := make([]*breaker.Circuit, 8)
	members := make([]pool.Member[int], len(circuits))
	for i := range circuits {
		circuits[i] = breaker.Must(breaker.NewCircuit(fmt.Sprint(i), breaker.WithFailureThreshold(3), breaker.WithOpenTimeout(time.Millisecond), breaker.WithMaxInFlight(6)))
		members[i] = pool.Member[int]{Name: fmt.Sprint(i), Value: i, Priority: i % 3, Weight: i, Circuit: circuits[i]}
	}
	p, err := pool.New(s, members, pool.MaxEjected(percent), pool.WithLimit(testTimeout))
	require.NoError(t, err)
	var ran [8]atomic.Int64
	var all, disturbers sync.WaitGroup
	stop := make(chan struct{})
	disturb := func(f func(i int)) {
		disturbers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					f(rand.IntN(len(circuits)))
				}
			}
		})
	}
	disturb(func(i int) { circuits[i].Trip(nil) })
	disturb(func(i int) { circuits[i].OfferProbe(); circuits[rand.IntN(8)].Reset() })
	disturb(func(i int) {
		if p.Remove(members[i].Name) {
			_ = p.Add(members[i])
		}
	})
	disturb(func(int) { _, _ = p.Snapshot(), p.String() })
	for range callers {
		all.Go(func() {
			for k := range calls {
				var asked set8
				v, err := pool.Do(t.Context(), p, func(ctx context.Context, i int) (int, error) {
					ran[i].Add(1)
					if !asked.add(i) {
						t.Errorf("%d was asked twice", i)
					}
					if k%4 == 0 {
						_ = ctx.Done()
					}
					if rand.IntN(4) == 0 {
						return 0, errBoom
					}
					return i, nil
				})
				switch {
				case err == nil && !asked.has(v):
					t.Errorf("%d answered without being asked", v)
				case err != nil:
					if _, ok := errors.AsType[*pool.UnavailableError](err); !ok {
						t.Errorf("unexpected: %v", err)
					}
				}
			}
		})
	}
	all.Wait()
	close(stop)
	disturbers.Wait()
	for i, c := range circuits {
		snap := c.Snapshot()
		assert.Zero(t, snap.InFlight)
		assert.Equal(t, snap.Totals.Calls, snap.Totals.Successes+snap.Totals.Failures+snap.Totals.Ignored)
		if percent == 100 {
			assert.EqualValues(t, ran[i].Load(), snap.Totals.Calls)
		}
		c.Reset()
	}
	for range 50 {
		_, err := pool.Do(t.Context(), p, func(context.Context, int) (int, error) { return 0, nil })
		require.NoError(t, err)
	}
}

// set8 is a set of numbers below 8.
type set8 uint8

func (s *set8) add(i int) bool {
	was := s.has(i)
	*s |= 1 << i
	return !was
}

func (s *set8) has(i int) bool { return *s>>i&1 != 0 }

// Many callers at once have even shares too.
func TestSharesAmongManyCallers(t *testing.T) {
	for _, s := range []pool.Strategy{pool.RoundRobin, pool.WeightedRoundRobin, pool.Shuffle} {
		guard(t, func() {
			const callers, calls = 8, 750
			p := many(t, s, 3, false)
			if s == pool.WeightedRoundRobin { // weights 0, 1 and 2
				require.True(t, p.Remove("m2"))
			}
			n := len(p.Snapshot().Members)
			var ran [3]atomic.Int64
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					for range calls {
						_, err := pool.Do(t.Context(), p, func(_ context.Context, i int) (int, error) {
							ran[i].Add(1)
							return 0, nil
						})
						assert.NoError(t, err)
					}
				})
			}
			wg.Wait()
			for i := range n {
				assert.EqualValues(t, callers*calls/n, ran[i].Load(), "%v", s)
			}
		})
	}
}

// Probe slots hold under any number of callers, and none of them is turned away.
func TestProbesAmongManyCallers(t *testing.T) {
	guard(t, func() {
		a := breaker.Must(breaker.NewCircuit("a", breaker.WithSuccessThreshold(3), breaker.WithOpenTimeout(time.Hour)))
		p, err := pool.New(pool.Failover, []pool.Member[string]{{Name: "a", Value: "a", Priority: 1, Circuit: a}, {Name: "b", Value: "b"}}, pool.WithLimit(0))
		require.NoError(t, err)
		a.Trip(nil)
		a.OfferProbe()
		var inside atomic.Int64
		started := make(chan struct{}, 100)
		release := make(chan struct{})
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				_, err := pool.Do(t.Context(), p, func(_ context.Context, name string) (int, error) {
					if name == "a" {
						inside.Add(1)
					}
					started <- struct{}{}
					<-release
					return 0, nil
				})
				assert.NoError(t, err)
			})
		}
		for range 100 {
			<-started
		}
		assert.EqualValues(t, 3, inside.Load())
		close(release)
		wg.Wait()
		assert.Equal(t, breaker.Closed, a.State())
	})
}
