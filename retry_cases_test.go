package breaker_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// The refusal of a circuit further in was retried where a classifier, or a judge of results, took it for a failure.
func TestFault_RejectionsAreNotRetried(t *testing.T) {
	failure := func(error) breaker.Outcome { return breaker.Failure }
	for name, opt := range map[string]breaker.Option{
		"classifier": breaker.WithClassifier(failure),
		"result":     breaker.WithResult(func(_ int, err error) breaker.Outcome { return failure(err) }),
		"list":       breaker.WithFailOn(breaker.ErrOpen, breaker.ErrTooManyInFlight),
	} {
		for _, rejection := range []error{breaker.ErrOpen, breaker.ErrTooManyInFlight} {
			t.Run(name+", "+rejection.Error(), func(t *testing.T) {
				b := breaker.Must(breaker.New[int]("outer", opt, breaker.WithRetry(breaker.MaxRetries(3), breaker.Constant(0), breaker.NoJitter())))
				r := b.Try(context.Background(), func(context.Context) (int, error) { return 0, fmt.Errorf("inner: %w", rejection) })
				require.Equal(t, 1, r.Attempts)
				require.ErrorIs(t, r.Err, rejection)
				require.EqualValues(t, 1, b.Snapshot().Totals.Failures)
			})
		}
	}
}

// An error that is not worth a retry became a rejection when it also opened the circuit.
func TestFault_ErrorsThatAreNotRetriedStayAsTheyAre(t *testing.T) {
	for name, opt := range map[string]breaker.RetryOption{
		"not worth it":  breaker.RetryIf(func(error) bool { return false }),
		"too long away": breaker.RetryAfterCap(time.Millisecond),
	} {
		t.Run(name, func(t *testing.T) {
			b := breaker.Must(breaker.New[int]("c", breaker.WithFailureThreshold(1), breaker.WithRetry(breaker.MaxRetries(3), opt)))
			err := error(&awayError{time.Minute})
			_, got := b.Do(context.Background(), func(context.Context) (int, error) { return 0, err })
			require.Same(t, err, got)
			require.Equal(t, breaker.Open, b.State())
		})
	}
}

// A budget for retries stood still for as long as a clock had been set back.
func TestFault_BudgetOfAClockThatIsSetBack(t *testing.T) {
	clk := &setBackClock{now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	budget := breaker.Must(breaker.NewBudget(0, 1, 10*time.Second))
	b := breaker.Must(breaker.New[int]("c", breaker.WithClock(clk), breaker.WithFailureThreshold(100),
		breaker.WithRetry(breaker.MaxRetries(1), breaker.Constant(0), breaker.WithBudget(budget))))
	attempts := func() int {
		return b.Try(context.Background(), func(context.Context) (int, error) { return 0, errBoom }).Attempts
	}
	require.Equal(t, 2, attempts())
	require.Equal(t, 1, attempts())
	clk.add(-time.Hour)
	require.Equal(t, 1, attempts())
	clk.add(11 * time.Second)
	require.Equal(t, 2, attempts())
}

// setBackClock moves in both directions.
type setBackClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *setBackClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *setBackClock) After(time.Duration) <-chan time.Time {
	now := make(chan time.Time, 1)
	now <- c.Now()
	return now
}

func (c *setBackClock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// awayError asks to be left alone for some time.
type awayError struct{ time.Duration }

func (e *awayError) Error() string { return "away" }

func (e *awayError) RetryAfter() time.Duration { return e.Duration }
