package main

import (
	"time"

	"github.com/sony/gobreaker/v2"
)

// The names of gobreaker's rows that gates refer to.
const (
	gobreakerDefault     = "gobreaker, defaults"
	gobreakerConsecutive = "gobreaker, consecutive"
	gobreakerSliding     = "gobreaker, sliding window"
)

// gobreakerRows are those of github.com/sony/gobreaker/v2.
var gobreakerRows = []row{
	{work: success, name: gobreakerDefault, vs: consecutive, many: true,
		setup: func() op { return executeCalls(gobreaker.Settings{}, never) }},
	{work: success, name: "gobreaker, N in an interval", vs: nInTime,
		setup: func() op { return executeCalls(gobreakerInterval, never) }},
	{work: success, name: gobreakerSliding, vs: timeRate, many: true,
		setup: func() op { return executeCalls(gobreakerRate, never) }},

	{work: tenth, name: gobreakerConsecutive, vs: consecutive,
		setup: func() op { return executeCalls(gobreaker.Settings{ReadyToTrip: hundredInARow}, tenth.every) }},
	{work: tenth, name: gobreakerSliding, vs: timeRate,
		setup: func() op { return executeCalls(gobreakerRate, tenth.every) }},

	{work: half, name: gobreakerConsecutive, vs: consecutive,
		setup: func() op { return executeCalls(gobreaker.Settings{ReadyToTrip: hundredInARow}, half.every) }},
	{work: half, name: gobreakerSliding, vs: timeRate,
		setup: func() op { return executeCalls(gobreakerHalf, half.every) }},

	{work: rejected, name: gobreakerDefault, vs: consecutive, setup: gobreakerOpened},
	{work: cycle, name: gobreakerDefault, vs: consecutive,
		setup: func() op { return executeCalls(gobreakerCycling, cycle.every) }},
	{work: probing, name: gobreakerDefault, vs: consecutive, setup: gobreakerProbeOut},
	{work: twoStep, name: "gobreaker, Allow and done", vs: stepRow,
		setup: func() op { return allowCalls(gobreaker.NewTwoStepCircuitBreaker[int](gobreaker.Settings{})) }},
}

var (
	gobreakerInterval = gobreaker.Settings{
		Interval:    10 * time.Second,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.TotalFailures >= 5 },
	}
	gobreakerRate = gobreaker.Settings{
		Interval:     10 * time.Second,
		BucketPeriod: time.Second,
		ReadyToTrip:  func(c gobreaker.Counts) bool { return c.Requests >= 20 && 2*c.TotalFailures >= c.Requests },
	}
	gobreakerHalf = gobreaker.Settings{
		Interval:     10 * time.Second,
		BucketPeriod: time.Second,
		ReadyToTrip:  func(c gobreaker.Counts) bool { return c.Requests >= 100 && 10*c.TotalFailures >= 9*c.Requests },
	}
	gobreakerCycling = gobreaker.Settings{
		MaxRequests: 1,
		Timeout:     1,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= 1 },
	}
)

func hundredInARow(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= 100 }

// gobreakerOpened rejects: more than five failures have opened it, for a minute by default, here for an hour.
func gobreakerOpened() op {
	settings := gobreaker.Settings{Timeout: time.Hour}
	cb := gobreaker.NewCircuitBreaker[int](settings)
	executeOn(cb, 1)(6)
	return executeOn(cb, never)
}

// gobreakerProbeOut rejects because its only probe has not reported yet.
func gobreakerProbeOut() op {
	cb := gobreaker.NewTwoStepCircuitBreaker[int](gobreakerCycling)
	if done, err := cb.Allow(); err == nil {
		done(errDown)
	}
	_, _ = cb.Allow() // the probe
	return allowCalls(cb)
}

func executeCalls(settings gobreaker.Settings, every int) op {
	return executeOn(gobreaker.NewCircuitBreaker[int](settings), every)
}

// executeOn calls through Execute; every n-th call fails.
func executeOn(cb *gobreaker.CircuitBreaker[int], every int) op {
	return func(n int) (errs int) {
		fails := failing(every)
		for i := range n {
			end := fails.next()
			if _, err := cb.Execute(func() (int, error) { return i, end }); err != nil {
				errs++
			}
		}
		return errs
	}
}

// allowCalls asks for admission and reports in a second step.
func allowCalls(cb *gobreaker.TwoStepCircuitBreaker[int]) op {
	return func(n int) (errs int) {
		for range n {
			done, err := cb.Allow()
			if err != nil {
				errs++
				continue
			}
			done(nil)
		}
		return errs
	}
}

// gobreakerSizes are what one idle breaker of gobreaker's weighs.
var gobreakerSizes = []size{
	{name: gobreakerDefault, instances: 100_000,
		build: func(int) any { return gobreaker.NewCircuitBreaker[int](gobreaker.Settings{Name: "bench"}) }},
	{name: gobreakerSliding, instances: 100_000,
		build: func(int) any { return gobreaker.NewCircuitBreaker[int](gobreakerRate) }},
}
