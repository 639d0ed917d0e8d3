package main

import (
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
)

// The names of failsafe-go's rows that gates refer to, and of those that several works have.
const (
	permitsConsecutive  = "failsafe-go permits, consecutive"
	permitsCount        = "failsafe-go permits, count window"
	permitsRate         = "failsafe-go permits, time rate"
	executorConsecutive = "failsafe-go executor, consecutive"
	executorRate        = "failsafe-go executor, time rate"
)

// failsafeRows are those of github.com/failsafe-go/failsafe-go: its circuit breaker alone, by permits, and in an executor.
var failsafeRows = []row{
	{work: success, name: permitsConsecutive, vs: consecutive, many: true,
		setup: func() op { return permitCalls(failsafeInARow(5), never) }},
	{work: success, name: "failsafe-go permits, N in T", vs: nInTime,
		setup: func() op { return permitCalls(failsafeInTime(), never) }},
	{work: success, name: permitsCount, vs: countWindow,
		setup: func() op { return permitCalls(failsafeCount(), never) }},
	{work: success, name: permitsRate, vs: timeRate, many: true,
		setup: func() op { return permitCalls(failsafeRate(), never) }},
	{work: success, name: executorConsecutive, vs: consecutive,
		setup: func() op { return executorCalls(failsafeInARow(5), never) }},
	{work: success, name: executorRate, vs: timeRate,
		setup: func() op { return executorCalls(failsafeRate(), never) }},

	{work: tenth, name: permitsConsecutive, vs: consecutive,
		setup: func() op { return permitCalls(failsafeInARow(100), tenth.every) }},
	{work: tenth, name: permitsCount, vs: countWindow,
		setup: func() op { return permitCalls(failsafeCount(), tenth.every) }},
	{work: tenth, name: permitsRate, vs: timeRate,
		setup: func() op { return permitCalls(failsafeRate(), tenth.every) }},
	{work: tenth, name: executorConsecutive, vs: consecutive,
		setup: func() op { return executorCalls(failsafeInARow(100), tenth.every) }},
	{work: tenth, name: executorRate, vs: timeRate,
		setup: func() op { return executorCalls(failsafeRate(), tenth.every) }},

	{work: half, name: permitsConsecutive, vs: consecutive,
		setup: func() op { return permitCalls(failsafeInARow(100), half.every) }},
	{work: half, name: permitsCount, vs: countWindow,
		setup: func() op { return permitCalls(failsafeMostOf(), half.every) }},
	{work: half, name: permitsRate, vs: timeRate,
		setup: func() op { return permitCalls(failsafeMostIn(), half.every) }},
	{work: half, name: executorConsecutive, vs: consecutive,
		setup: func() op { return executorCalls(failsafeInARow(100), half.every) }},
	{work: half, name: executorRate, vs: timeRate,
		setup: func() op { return executorCalls(failsafeMostIn(), half.every) }},

	{work: rejected, name: permitsConsecutive, vs: consecutive,
		setup: func() op { return permitCalls(failsafeOpened(), never) }},
	{work: rejected, name: executorConsecutive, vs: consecutive,
		setup: func() op { return executorCalls(failsafeOpened(), never) }},

	{work: cycle, name: permitsConsecutive, vs: consecutive,
		setup: func() op { return permitCalls(failsafeCycling(), cycle.every) }},
	{work: cycle, name: executorConsecutive, vs: consecutive,
		setup: func() op { return executorCalls(failsafeCycling(), cycle.every) }},

	{work: probing, name: permitsConsecutive, vs: consecutive,
		setup: func() op { return permitCalls(failsafeProbeOut(), never) }},
	{work: probing, name: executorConsecutive, vs: consecutive,
		setup: func() op { return executorCalls(failsafeProbeOut(), never) }},
}

func failsafeInARow(n uint) circuitbreaker.CircuitBreaker[int] {
	return circuitbreaker.NewBuilder[int]().WithFailureThreshold(n).Build()
}

func failsafeInTime() circuitbreaker.CircuitBreaker[int] {
	return circuitbreaker.NewBuilder[int]().WithFailureThresholdPeriod(5, 10*time.Second).Build()
}

func failsafeCount() circuitbreaker.CircuitBreaker[int] {
	return circuitbreaker.NewBuilder[int]().WithFailureThresholdRatio(50, 100).Build()
}

func failsafeRate() circuitbreaker.CircuitBreaker[int] {
	return circuitbreaker.NewBuilder[int]().WithFailureRateThreshold(0.5, 20, 10*time.Second).Build()
}

// failsafeMostOf and failsafeMostIn are not tripped by half of the calls failing.
func failsafeMostOf() circuitbreaker.CircuitBreaker[int] {
	return circuitbreaker.NewBuilder[int]().WithFailureThresholdRatio(90, 100).Build()
}

func failsafeMostIn() circuitbreaker.CircuitBreaker[int] {
	return circuitbreaker.NewBuilder[int]().WithFailureRateThreshold(0.9, 100, 10*time.Second).Build()
}

// failsafeOpened is open for longer than the measurements last.
func failsafeOpened() circuitbreaker.CircuitBreaker[int] {
	cb := circuitbreaker.NewBuilder[int]().WithDelay(time.Hour).Build()
	cb.Open()
	return cb
}

// failsafeCycling opens on every failure and closes on the success after it.
func failsafeCycling() circuitbreaker.CircuitBreaker[int] {
	return circuitbreaker.NewBuilder[int]().WithFailureThreshold(1).WithSuccessThreshold(1).WithDelay(1).Build()
}

// failsafeProbeOut is half-open and has no permit left.
func failsafeProbeOut() circuitbreaker.CircuitBreaker[int] {
	cb := failsafeCycling()
	cb.HalfOpen()
	cb.TryAcquirePermit()
	return cb
}

// permitCalls takes a permit, calls, and records; every n-th call fails.
func permitCalls(cb circuitbreaker.CircuitBreaker[int], every int) op {
	return func(n int) (errs int) {
		fails := failing(every)
		for i := range n {
			end := fails.next()
			if !cb.TryAcquirePermit() {
				errs++
				continue
			}
			if _, err := protected(func() (int, error) { return i, end }); err != nil {
				cb.RecordFailure()
				errs++
				continue
			}
			cb.RecordSuccess()
		}
		return errs
	}
}

// protected stands for the user's own function behind an API of two steps.
//
//go:noinline
func protected(fn func() (int, error)) (int, error) { return fn() }

// executorCalls calls through an executor with the breaker as its only policy; every n-th call fails.
func executorCalls(cb circuitbreaker.CircuitBreaker[int], every int) op {
	return executeWith(failsafe.With[int](cb), every)
}

func executeWith(executor failsafe.Executor[int], every int) op {
	return func(n int) (errs int) {
		fails := failing(every)
		for i := range n {
			end := fails.next()
			if _, err := executor.Get(func() (int, error) { return i, end }); err != nil {
				errs++
			}
		}
		return errs
	}
}

// failsafeSizes are what one idle breaker of failsafe-go's weighs, without an executor.
var failsafeSizes = []size{
	{name: "failsafe-go, consecutive", instances: 100_000, build: func(int) any { return failsafeInARow(5) }},
	{name: "failsafe-go, time rate", instances: 100_000, build: func(int) any { return failsafeRate() }},
}
