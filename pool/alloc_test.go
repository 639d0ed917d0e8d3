package pool_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/breakerkit/breaker/pool"
)

// Choosing among any number of members allocates nothing, whoever is open; the context that carries the limit is one
// allocation.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, s := range strategies {
		for _, n := range []int{3, 30, 300} {
			for _, open := range []bool{false, true} {
				for limit, want := range map[time.Duration]float64{0: 0, 5 * time.Second: 1} {
					t.Run(fmt.Sprintf("%v, %d members, a third open: %v, limit %v", s, n, open, limit), func(t *testing.T) {
						p := many(t, s, n, open, pool.WithLimit(limit))
						ctx := t.Context()
						sum := 0
						got := testing.AllocsPerRun(1000, func() {
							v, err := pool.Do(ctx, p, func(ctx context.Context, v int) (int, error) {
								sum += v
								return v, ctx.Err()
							})
							if err != nil {
								t.Error(err)
							}
							sum -= v
						})
						assert.Equal(t, want, got)
						assert.Zero(t, sum)
					})
				}
			}
		}
	}
}

// With default options a call allocates nothing, and a lease is one allocation.
func TestAllocationsByDefault(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, s := range strategies {
		p, ctx := many(t, s, 3, false), t.Context()
		assert.Zero(t, testing.AllocsPerRun(1000, func() {
			_, _ = pool.Do(ctx, p, func(_ context.Context, v int) (int, error) { return v, nil })
		}), "%v", s)
		assert.EqualValues(t, 1, testing.AllocsPerRun(1000, func() {
			l, err := p.Acquire(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			l.Done(nil)
		}), "%v", s)
	}
}
