package main

import (
	"context"
	"errors"
	"time"

	"github.com/avast/retry-go/v4"
	"github.com/breakerkit/breaker"
	"github.com/cenkalti/backoff/v5"
	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/fallback"
	"github.com/failsafe-go/failsafe-go/retrypolicy"
	"github.com/sony/gobreaker/v2"
)

// The names of the rows with several policies.
const (
	policiesRow       = "breaker, retry and fallback"
	gobreakerByHand   = "gobreaker in a hand-written loop"
	gobreakerAvast    = "gobreaker in avast/retry-go"
	gobreakerCenkalti = "gobreaker in cenkalti/backoff"
	executorPolicies  = "failsafe-go executor, retry and fallback"
)

// policyRows are a breaker between a retry and a fallback. All of them retry up to three times, not after a rejection,
// and answer with standIn when that was in vain.
var policyRows = []row{
	{work: policies, name: policiesRow, setup: func() op { return doCalls(ours(tripleRetry, standInFallback), never) }},
	{work: policies, name: gobreakerByHand, vs: policiesRow, setup: handCalls},
	{work: policies, name: gobreakerAvast, vs: policiesRow, setup: avastCalls},
	{work: policies, name: gobreakerCenkalti, vs: policiesRow, setup: cenkaltiCalls},
	{work: policies, name: executorPolicies, vs: policiesRow,
		setup: func() op { return executeWith(failsafePolicies(100*time.Millisecond), never) }},

	{work: oneRetry, name: policiesRow, setup: retriedCalls},
	{work: oneRetry, name: gobreakerByHand, vs: policiesRow, setup: handRetries},
	{work: oneRetry, name: executorPolicies, vs: policiesRow, setup: executorRetries},
}

const (
	maxRetries = 3
	standIn    = -1
)

var (
	tripleRetry     = breaker.WithRetry(breaker.MaxRetries(maxRetries))
	undelayedRetry  = breaker.WithRetry(breaker.MaxRetries(maxRetries), breaker.Constant(0), breaker.NoJitter())
	standInFallback = breaker.WithFallbackValue(standIn)
)

// retriedCalls fails the first attempt of every call, as all rows of its work do.
func retriedCalls() op {
	b := ours(undelayedRetry, standInFallback)
	return func(n int) (errs int) {
		ctx := context.Background()
		for i := range n {
			failed := false
			v, err := b.Do(ctx, func(context.Context) (int, error) {
				if !failed {
					failed = true
					return 0, errDown
				}
				return i, nil
			})
			if err != nil || v != i {
				errs++
			}
		}
		return errs
	}
}

// retryByHand is what is usually written around a breaker that knows no retries.
func retryByHand(ctx context.Context, cb *gobreaker.CircuitBreaker[int], wait time.Duration, fn func() (int, error)) (int, error) {
	for attempt := 0; ; attempt++ {
		v, err := cb.Execute(fn)
		if err == nil {
			return v, nil
		}
		if attempt == maxRetries || gobreakerRejected(err) || !pause(ctx, wait<<attempt) {
			return standIn, nil
		}
	}
}

func gobreakerRejected(err error) bool {
	return errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests)
}

func pause(ctx context.Context, d time.Duration) bool {
	if d == 0 {
		return ctx.Err() == nil
	}
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

func handCalls() op {
	cb := gobreaker.NewCircuitBreaker[int](gobreaker.Settings{})
	return func(n int) (errs int) {
		ctx := context.Background()
		fails := failing(never)
		for i := range n {
			end := fails.next()
			v, err := retryByHand(ctx, cb, 100*time.Millisecond, func() (int, error) { return i, end })
			if err != nil || v != i {
				errs++
			}
		}
		return errs
	}
}

func handRetries() op {
	cb := gobreaker.NewCircuitBreaker[int](gobreaker.Settings{})
	return func(n int) (errs int) {
		ctx := context.Background()
		for i := range n {
			failed := false
			v, err := retryByHand(ctx, cb, 0, func() (int, error) {
				if !failed {
					failed = true
					return 0, errDown
				}
				return i, nil
			})
			if err != nil || v != i {
				errs++
			}
		}
		return errs
	}
}

// avastCalls has its options made beforehand, as they may be shared.
func avastCalls() op {
	cb := gobreaker.NewCircuitBreaker[int](gobreaker.Settings{})
	opts := []retry.Option{
		retry.Attempts(1 + maxRetries),
		retry.LastErrorOnly(true),
		retry.RetryIf(func(err error) bool { return !gobreakerRejected(err) }),
	}
	return func(n int) (errs int) {
		fails := failing(never)
		for i := range n {
			end := fails.next()
			v, err := retry.DoWithData(func() (int, error) {
				return cb.Execute(func() (int, error) { return i, end })
			}, opts...)
			if err != nil {
				v = standIn
			}
			if v != i {
				errs++
			}
		}
		return errs
	}
}

// cenkaltiCalls has its options made beforehand; the backoff itself must be every call's own.
func cenkaltiCalls() op {
	cb := gobreaker.NewCircuitBreaker[int](gobreaker.Settings{})
	opts := []backoff.RetryOption{backoff.WithMaxTries(1 + maxRetries)}
	return func(n int) (errs int) {
		ctx := context.Background()
		fails := failing(never)
		for i := range n {
			end := fails.next()
			v, err := backoff.Retry(ctx, func() (int, error) {
				v, err := cb.Execute(func() (int, error) { return i, end })
				if err != nil && gobreakerRejected(err) {
					err = backoff.Permanent(err)
				}
				return v, err
			}, opts...)
			if err != nil {
				v = standIn
			}
			if v != i {
				errs++
			}
		}
		return errs
	}
}

// failsafePolicies has the fallback outside, as ours has it.
func failsafePolicies(wait time.Duration) failsafe.Executor[int] {
	retries := retrypolicy.NewBuilder[int]().WithMaxRetries(maxRetries).AbortOnErrors(circuitbreaker.ErrOpen)
	if wait > 0 {
		retries = retries.WithBackoff(wait, 10*time.Second)
	}
	return failsafe.With[int](fallback.NewWithResult(standIn), retries.Build(), failsafeInARow(5))
}

func executorRetries() op {
	executor := failsafePolicies(0)
	return func(n int) (errs int) {
		for i := range n {
			failed := false
			v, err := executor.Get(func() (int, error) {
				if !failed {
					failed = true
					return 0, errDown
				}
				return i, nil
			})
			if err != nil || v != i {
				errs++
			}
		}
		return errs
	}
}
