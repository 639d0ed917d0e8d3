package fakeclock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/examples/fakeclock"
)

var errDown = errors.New("price API is down")

// api is a price API that a test can switch off and on again.
type api struct {
	down  bool
	calls int
}

func (a *api) fetch(context.Context, string) (float64, error) {
	a.calls++
	if a.down {
		return 0, errDown
	}
	return 101.5, nil
}

func TestPriceWithMockClock(t *testing.T) {
	clk := clock.NewMock() // stands still until Add
	upstream := &api{down: true}
	prices, err := fakeclock.NewPrices(upstream.fetch, breaker.WithClock(clk))
	require.NoError(t, err)

	failFiveTimes(t, prices)

	// Rejected for 30 seconds, and the API gets some rest.
	requireRejected(t, prices, 30*time.Second)
	clk.Add(20 * time.Second)
	requireRejected(t, prices, 10*time.Second)
	clk.Add(10*time.Second - time.Nanosecond)
	requireRejected(t, prices, time.Nanosecond)
	assert.Equal(t, 5, upstream.calls)

	// The 30 seconds are over and the API is still down: the probe opens the circuit for another 30.
	clk.Add(time.Nanosecond)
	_, err = prices.Price(t.Context(), "ACME")
	require.ErrorIs(t, err, errDown)
	requireRejected(t, prices, 30*time.Second)

	// The API is back: two good probes close the circuit.
	upstream.down = false
	clk.Add(30 * time.Second)
	for range 2 {
		requirePrice(t, prices)
	}
	assert.Equal(t, 8, upstream.calls)

	// Closed: it takes five failures again.
	upstream.down = true
	failFiveTimes(t, prices)
	requireRejected(t, prices, 30*time.Second)
}

// Inside a synctest bubble the default clock is the bubble's: sleeping costs nothing and no option is needed.
func TestPriceInSynctest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		upstream := &api{down: true}
		prices, err := fakeclock.NewPrices(upstream.fetch)
		require.NoError(t, err)

		failFiveTimes(t, prices)
		time.Sleep(29 * time.Second)
		requireRejected(t, prices, time.Second)
		assert.False(t, prices.Available())
		assert.Equal(t, 5, upstream.calls)

		upstream.down = false
		time.Sleep(time.Second)
		assert.True(t, prices.Available())
		requirePrice(t, prices)
		requirePrice(t, prices)
		assert.Equal(t, 7, upstream.calls)
	})
}

// A hanging API is a failing API: WithTimeout gives each attempt a deadline of its own.
func TestPriceTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := func(ctx context.Context, _ string) (float64, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}
		prices, err := fakeclock.NewPrices(hang, breaker.WithTimeout(2*time.Second))
		require.NoError(t, err)

		began := time.Now()
		for range 5 {
			_, err := prices.Price(t.Context(), "ACME")
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		assert.Equal(t, 10*time.Second, time.Since(began))
		requireRejected(t, prices, 30*time.Second)
		assert.Equal(t, 10*time.Second, time.Since(began), "a rejection waits for nothing")
	})
}

func failFiveTimes(t *testing.T, prices *fakeclock.Prices) {
	t.Helper()
	for range 5 {
		_, err := prices.Price(t.Context(), "ACME")
		require.ErrorIs(t, err, errDown)
	}
}

func requireRejected(t *testing.T, prices *fakeclock.Prices, retryAfter time.Duration) {
	t.Helper()
	_, err := prices.Price(t.Context(), "ACME")
	require.ErrorIs(t, err, breaker.ErrOpen)
	var open *breaker.OpenError
	require.ErrorAs(t, err, &open)
	assert.Equal(t, retryAfter, open.RetryAfter())
}

func requirePrice(t *testing.T, prices *fakeclock.Prices) {
	t.Helper()
	price, err := prices.Price(t.Context(), "ACME")
	require.NoError(t, err)
	assert.InDelta(t, 101.5, price, 0)
}
