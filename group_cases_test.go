package breaker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/breakertest"
)

// A call that was never to be made took the place of a circuit that remembered a failure.
func TestFault_NoCircuitForACallerWhoHasGone(t *testing.T) {
	g := breaker.Must(breaker.NewGroup[int](breaker.MaxKeys(1)))
	_, _ = g.Do(context.Background(), "a", func(context.Context) (int, error) { return 0, breakertest.ErrBoom })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := g.Do(ctx, "b", func(context.Context) (int, error) { return 0, nil })
	require.ErrorIs(t, err, context.Canceled)
	_, err = g.Do(context.Background(), "b", nil)
	require.ErrorIs(t, err, breaker.ErrNilFunc)
	a, ok := g.Lookup("a")
	require.True(t, ok)
	require.EqualValues(t, 1, a.Snapshot().ConsecutiveFailures)
}

// Misuse ended in a panic of another package.
func TestFault_NilAndZeroValuesSayWhatTheyAre(t *testing.T) {
	require.PanicsWithValue(t, "breaker: nil or zero Group; make one with NewGroup", func() { new(breaker.Group[int]).Get("a") })
	require.PanicsWithValue(t, "breaker: nil or zero Group; make one with NewGroup", func() { (*breaker.Group[int])(nil).Get("a") })
	_, err := breaker.New[int]("c", breaker.WithLastGood[string](time.Minute, func(context.Context) string { return "k" }))
	require.ErrorContains(t, err, "LastGood: must be of the breaker's type int, got one of string")
}

func TestTwoStepGroup(t *testing.T) {
	forbidden := []breaker.Option{breaker.WithClassifier(breaker.DefaultClassifier), breaker.WithRetry(),
		breaker.WithFallbackValue(1), breaker.WithResult(func(int, error) breaker.Outcome { return 0 })}
	names := []string{"Classifier", "Retry", "Fallback", "Result"}
	_, err := breaker.NewGroup[int](append(forbidden, breaker.TwoStep("here"))...)
	for _, name := range names {
		require.ErrorContains(t, err, name+": is not an option of here")
	}
	for i, o := range forbidden {
		var told []error
		g := breaker.Must(breaker.NewGroup[int](breaker.TwoStep("here"), breaker.WithFailureThreshold(7),
			breaker.WithHooks(breaker.Hooks{StoreError: func(err error) { told = append(told, err) }}),
			breaker.PerKey(func(string) []breaker.Option { return []breaker.Option{breaker.WithFailureThreshold(1), o} })))
		require.Equal(t, 7, g.Get("k").Circuit().Config().FailureThreshold)
		require.Len(t, told, 1)
		require.ErrorContains(t, told[0], names[i])
	}
	g := breaker.Must(breaker.NewGroup[int](breaker.TwoStep("here"), breaker.WithTimeout(time.Second)))
	require.Equal(t, time.Second, g.Get("k").Timeout())
}

func TestGroupTimeout(t *testing.T) {
	perKey := breaker.PerKey(func(key string) []breaker.Option {
		if key == "own" {
			return []breaker.Option{breaker.WithTimeout(time.Minute)}
		}
		return nil
	})
	g := breaker.Must(breaker.NewGroup[int](breaker.WithTimeout(time.Second), perKey))
	require.Equal(t, time.Second, g.Timeout("k"))
	require.Equal(t, time.Minute, g.Timeout("own"))
	require.Zero(t, g.Len())
	g.Get("own")
	require.Equal(t, time.Minute, g.Timeout("own"))
	require.Zero(t, breaker.Must(breaker.NewGroup[int]()).Timeout("k"))
}

func TestGroupPast(t *testing.T) {
	errOne := errors.New("one")
	var retries []breaker.RetryEvent
	g := breaker.Must(breaker.NewGroup[int](breaker.WithIgnore(errOne), breaker.WithMode(breaker.ForcedOpen), breaker.WithFailureThreshold(1),
		breaker.WithHooks(breaker.Hooks{Retry: func(_ context.Context, e breaker.RetryEvent) { retries = append(retries, e) }})))
	c := g.Past("k")
	require.Equal(t, "k", c.Name())
	require.Zero(t, g.Len())
	o, decided := c.Decided(context.Background(), errOne)
	require.True(t, decided)
	require.Equal(t, breaker.Ignored, o)

	p := breaker.Must(breaker.NewRetryPolicy(breaker.MaxRetries(1), breaker.Constant(0)))
	r := p.Begin(c)
	r.Ran()
	again, because := r.Next(context.Background(), errors.New("two"))
	require.NoError(t, because)
	require.True(t, again, "it is never open")
	require.Equal(t, "k", retries[0].Name)
}

func TestGroupEvictions(t *testing.T) {
	g := breaker.Must(breaker.NewGroup[int](breaker.MaxKeys(2)))
	for i, key := range []string{"a", "b", "a", "c", "d"} {
		g.Get(key)
		require.EqualValues(t, max(0, i-2), g.Evictions())
	}
}
