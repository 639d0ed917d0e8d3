package pool_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/pool"
)

// acquire must get a lease.
func (r *rig) acquire() *pool.Lease[string] {
	r.t.Helper()
	l, err := r.p.Acquire(r.t.Context())
	require.NoError(r.t, err)
	return l
}

func TestALeaseHoldsAMemberUntilItIsSettled(t *testing.T) {
	r := newRig(t, pool.RoundRobin, []pool.Member[string]{{Name: "a", Priority: 7, Weight: 3}, {Name: "b", Priority: 7}}, r0)
	l := r.acquire()
	assert.Equal(t, pool.Member[string]{Name: "a", Value: "a", Priority: 7, Weight: 3, Circuit: r.p.Circuit("a")}, l.Member())
	assert.EqualValues(t, 1, r.p.Circuit("a").Snapshot().InFlight)
	assert.Zero(t, r.totals("a").Calls, "a stream that is being read has not succeeded")
	other := r.acquire()
	assert.Equal(t, "b", other.Member().Name, "the turns go on")
	l.Done(nil)
	assert.EqualValues(t, 1, r.totals("a").Successes)
	assert.Zero(t, r.p.Circuit("a").Snapshot().InFlight)
	other.Done(errBoom)
	assert.EqualValues(t, 1, r.totals("b").Failures, "a stream that breaks off is a Failure")
}

func TestALeaseIsClassifiedLikeACall(t *testing.T) {
	r := newRig(t, pool.Failover, names("a"), pool.WithBreaker(breaker.WithClassifier(func(err error) breaker.Outcome {
		if err == errClient {
			return breaker.Ignored
		}
		return breaker.Failure
	})))
	r.acquire().Done(errClient)
	assert.EqualValues(t, 1, r.totals("a").Ignored)
	r.acquire().Done(pool.Stop(errClient))
	assert.EqualValues(t, 2, r.totals("a").Ignored, "without the mark")
	r.acquire().Settle(breaker.Failure, errBoom)
	assert.EqualValues(t, 1, r.totals("a").Failures)
	ctx, cancel := context.WithCancel(t.Context())
	l, err := r.p.Acquire(ctx)
	require.NoError(t, err)
	cancel()
	l.Done(context.Canceled)
	assert.EqualValues(t, 3, r.totals("a").Ignored, "the caller has gone")
}

func TestOnlyTheFirstSettlementOfALeaseCounts(t *testing.T) {
	for _, s := range []pool.Strategy{pool.Failover, pool.LeastBusy} {
		for _, ejected := range []int{0, 100} {
			t.Run(fmt.Sprintf("%v, at most %d %% out", s, ejected), func(t *testing.T) {
				r := newRig(t, s, names("a"), r0, pool.MaxEjected(ejected))
				if ejected == 0 {
					r.open("a")
				}
				l := r.acquire()
				var all sync.WaitGroup
				for range 8 {
					all.Go(func() { l.Settle(breaker.Ignored, nil) })
				}
				all.Wait()
				l.Done(nil)
				l.Settle(breaker.Failure, errBoom)
				assert.Zero(t, r.totals("a").Successes+r.totals("a").Failures)
				if ejected == 0 {
					assert.Equal(t, breaker.Open, r.state("a"))
				} else {
					assert.EqualValues(t, 1, r.totals("a").Ignored)
				}
			})
		}
	}
	var none *pool.Lease[string]
	none.Done(nil)
	none.Settle(breaker.Failure, nil)
}

func TestALeaseMayBeAProbe(t *testing.T) {
	r := newRig(t, pool.Failover, names("a"), r0)
	r.open("a")
	_, err := r.p.Acquire(t.Context())
	var none *pool.UnavailableError
	require.ErrorAs(t, err, &none)
	require.ErrorIs(t, err, breaker.ErrOpen)
	assert.Equal(t, 10*time.Second, none.RetryAfter())
	r.clk.Add(10 * time.Second)
	l := r.acquire()
	_, err = r.p.Acquire(t.Context())
	require.ErrorIs(t, err, breaker.ErrOpen, "the slot is taken")
	l.Done(nil)
	assert.Equal(t, breaker.Closed, r.state("a"))
}

func TestALeasePastACircuitOffersAProbe(t *testing.T) {
	r := newRig(t, pool.Failover, names("a"), r0, pool.MaxEjected(0))
	r.open("a")
	r.acquire().Done(errBoom)
	r.acquire().Settle(breaker.Failure, errBoom)
	assert.Equal(t, breaker.Open, r.state("a"))
	assert.Zero(t, r.totals("a").Calls, "calls past a circuit are not counted")
	r.acquire().Done(nil)
	assert.Equal(t, breaker.HalfOpen, r.state("a"))
	r.open("a")
	r.acquire().Settle(breaker.Success, nil)
	assert.Equal(t, breaker.HalfOpen, r.state("a"))
}

func TestAcquireHasNoLimit(t *testing.T) {
	r := newRig(t, pool.Failover, names("a"), r0, pool.WithLimit(time.Second), pool.WithBreaker(breaker.WithTimeout(time.Second)))
	l := r.acquire()
	r.clk.Add(time.Hour)
	l.Done(nil)
	assert.EqualValues(t, 1, r.totals("a").Successes)
}

func TestAcquireAfterTheCallersEnd(t *testing.T) {
	r := newRig(t, pool.Failover, names("a"), r0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := r.p.Acquire(ctx)
	assert.Equal(t, context.Canceled, err)
	assert.Zero(t, r.p.Circuit("a").Snapshot().InFlight)
	assert.PanicsWithValue(t, "pool: zero Pool; make one with New", func() { _, _ = (&pool.Pool[int]{}).Acquire(t.Context()) })
}

func TestAcquireMovesOnFromALostRace(t *testing.T) {
	guard(t, func() {
		lostRace(t, func(p *pool.Pool[string]) {
			l, err := p.Acquire(t.Context())
			require.NoError(t, err)
			assert.Equal(t, "b", l.Member().Name)
			l.Done(nil)
		})
	})
}

func TestLeasesAreInFlightForLeastBusy(t *testing.T) {
	r := newRig(t, pool.LeastBusy, names("a", "b"))
	first := r.acquire()
	require.Equal(t, "a", first.Member().Name)
	assert.Equal(t, []string{"b", "b", "b"}, r.good(3))
	first.Done(nil)
	assert.Len(t, count(r.good(4)), 2)
}

func ExamplePool_Acquire() {
	p, err := pool.New(pool.LeastBusy, []pool.Member[string]{{Name: "a", Value: "https://a.example"}, {Name: "b", Value: "https://b.example"}})
	if err != nil {
		panic(err)
	}
	lease, err := p.Acquire(context.Background())
	if err != nil {
		panic(err) // an *UnavailableError, or the context's
	}
	fmt.Println("reading a stream from", lease.Member().Value)
	lease.Done(errors.New("the stream broke off")) // when the stream ends, not when it begins
	fmt.Println(lease.Member().Circuit.Snapshot().Totals.Failures, "failure")
	// Output:
	// reading a stream from https://a.example
	// 1 failure
}
