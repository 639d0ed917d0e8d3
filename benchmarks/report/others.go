package main

import (
	"fmt"
	"math"
	"runtime"
	"time"

	"github.com/afex/hystrix-go/hystrix"
	resiliency "github.com/eapache/go-resiliency/breaker"
	aegis "github.com/go-kratos/aegis/circuitbreaker"
	"github.com/go-kratos/aegis/circuitbreaker/sre"
	circuit "github.com/rubyist/circuitbreaker"
	gozero "github.com/zeromicro/go-zero/core/breaker"
	"github.com/zeromicro/go-zero/core/logx"
)

// The names of rows that several works have, or gates refer to.
const (
	resiliencyRow      = "go-resiliency"
	rubyistConsecutive = "rubyist, consecutive"
	rubyistRate        = "rubyist, time rate"
	aegisRow           = "aegis SRE"
	gozeroRow          = "go-zero"
	hystrixRow         = "hystrix-go"
)

// otherRows are those of the peers that need few lines each.
var otherRows = []row{
	{work: success, name: resiliencyRow, vs: consecutive, many: true,
		setup: func() op { return resiliencyCalls(resiliency.New(5, 2, 30*time.Second), never) }},
	{work: success, name: rubyistConsecutive, vs: consecutive,
		setup: func() op { return rubyistCalls(circuit.NewConsecutiveBreaker(5), never) }},
	{work: success, name: rubyistRate, vs: timeRate,
		setup: func() op { return rubyistCalls(circuit.NewRateBreaker(0.5, 20), never) }},
	{work: success, name: aegisRow, vs: timeRate, setup: func() op { return aegisCalls(sre.NewBreaker()) }},
	{work: success, name: gozeroRow, vs: timeRate, setup: func() op { return gozeroCalls(newGozero()) }},
	{work: success, name: hystrixRow, vs: timeRate, setup: hystrixCalls},

	// go-resiliency counts failures until it has seen none for its timeout: one in ten opens any but a huge threshold.
	{work: tenth, name: resiliencyRow, vs: consecutive,
		setup: func() op { return resiliencyCalls(resiliency.New(math.MaxInt, 2, time.Second), tenth.every) }},
	{work: tenth, name: rubyistConsecutive, vs: consecutive,
		setup: func() op { return rubyistCalls(circuit.NewConsecutiveBreaker(100), tenth.every) }},
	{work: tenth, name: rubyistRate, vs: timeRate,
		setup: func() op { return rubyistCalls(circuit.NewRateBreaker(0.5, 20), tenth.every) }},

	{work: half, name: resiliencyRow, vs: consecutive,
		setup: func() op { return resiliencyCalls(resiliency.New(math.MaxInt, 2, time.Second), half.every) }},
	{work: half, name: rubyistConsecutive, vs: consecutive,
		setup: func() op { return rubyistCalls(circuit.NewConsecutiveBreaker(100), half.every) }},
	{work: half, name: rubyistRate, vs: timeRate,
		setup: func() op { return rubyistCalls(circuit.NewRateBreaker(0.9, 100), half.every) }},

	{work: rejected, name: resiliencyRow, vs: consecutive, setup: resiliencyOpened},
	{work: rejected, name: rubyistConsecutive, vs: consecutive, setup: rubyistOpened},

	{work: cycle, name: "go-resiliency, waiting for its timer", vs: consecutive, setup: resiliencyCycles},
	{work: cycle, name: rubyistConsecutive, vs: consecutive,
		setup: func() op { return rubyistCalls(rubyistAfter(1), cycle.every) }},

	{work: twoStep, name: "go-zero, Allow and Accept", vs: stepRow, setup: func() op { return promiseCalls(newGozero()) }},
}

// resiliencyCalls calls through go-resiliency's Run; every n-th call fails.
func resiliencyCalls(b *resiliency.Breaker, every int) op {
	return func(n int) (errs int) {
		fails := failing(every)
		for range n {
			end := fails.next()
			if err := b.Run(func() error { return end }); err != nil {
				errs++
			}
		}
		return errs
	}
}

func resiliencyOpened() op {
	b := resiliency.New(1, 1, time.Hour)
	resiliencyCalls(b, 1)(1)
	return resiliencyCalls(b, never)
}

// resiliencyCycles waits between the failure and the probe until the goroutine that go-resiliency starts for each open
// period has run.
func resiliencyCycles() op {
	b := resiliency.New(1, 1, 1)
	fail, succeed := resiliencyCalls(b, 1), resiliencyCalls(b, never)
	return func(n int) (errs int) {
		for range n / cycle.calls {
			errs += fail(1)
			for b.GetState() != resiliency.HalfOpen {
				runtime.Gosched()
			}
			errs += succeed(1)
		}
		return errs
	}
}

// rubyistCalls calls through rubyist's Call, without a timeout; every n-th call fails.
func rubyistCalls(b *circuit.Breaker, every int) op {
	return func(n int) (errs int) {
		fails := failing(every)
		for range n {
			end := fails.next()
			if err := b.Call(func() error { return end }, 0); err != nil {
				errs++
			}
		}
		return errs
	}
}

func rubyistOpened() op {
	b := rubyistAfter(time.Hour)
	b.Trip()
	return rubyistCalls(b, never)
}

// rubyistAfter trips on one failure and stays open for d.
func rubyistAfter(d time.Duration) *circuit.Breaker {
	return circuit.NewBreakerWithOptions(&circuit.Options{BackOff: constant(d), ShouldTrip: circuit.ConsecutiveTripFunc(1)})
}

// constant is a backoff that does not grow.
type constant time.Duration

func (d constant) NextBackOff() time.Duration { return time.Duration(d) }
func (constant) Reset()                       {}

// aegisCalls asks aegis, calls, and marks the outcome.
func aegisCalls(b aegis.CircuitBreaker) op {
	return func(n int) (errs int) {
		fails := failing(never)
		for i := range n {
			end := fails.next()
			if b.Allow() != nil {
				errs++
				continue
			}
			if _, err := protected(func() (int, error) { return i, end }); err != nil {
				b.MarkFailed()
				errs++
				continue
			}
			b.MarkSuccess()
		}
		return errs
	}
}

// newGozero makes a go-zero breaker and silences the statistics that go-zero prints once a minute.
func newGozero() gozero.Breaker {
	logx.Disable()
	return gozero.NewBreaker(gozero.WithName("bench"))
}

// gozeroCalls calls through go-zero's Do.
func gozeroCalls(b gozero.Breaker) op {
	return func(n int) (errs int) {
		fails := failing(never)
		for range n {
			end := fails.next()
			if err := b.Do(func() error { return end }); err != nil {
				errs++
			}
		}
		return errs
	}
}

// promiseCalls asks for admission and accepts in a second step.
func promiseCalls(b gozero.Breaker) op {
	return func(n int) (errs int) {
		for range n {
			promise, err := b.Allow()
			if err != nil {
				errs++
				continue
			}
			promise.Accept()
		}
		return errs
	}
}

// hystrixCalls calls through hystrix-go's Do. Do returns before its goroutines have given back their places, hence the
// room for so many; no call reaches the timeout.
func hystrixCalls() op {
	hystrix.ConfigureCommand("bench", hystrix.CommandConfig{Timeout: 60_000, MaxConcurrentRequests: 100_000})
	return func(n int) (errs int) {
		fails := failing(never)
		for range n {
			end := fails.next()
			if err := hystrix.Do("bench", func() error { return end }, nil); err != nil {
				errs++
			}
		}
		return errs
	}
}

// otherSizes are what one idle breaker of these peers weighs. The heavy ones are counted over fewer.
var otherSizes = []size{
	{name: resiliencyRow, instances: 100_000, build: func(int) any { return resiliency.New(5, 2, 30*time.Second) }},
	{name: rubyistConsecutive, instances: 100_000, build: func(int) any { return circuit.NewConsecutiveBreaker(5) }},
	{name: aegisRow, instances: 10_000, build: func(int) any { return sre.NewBreaker() }},
	{name: gozeroRow, instances: 10_000, build: func(int) any { return newGozero() }},
	{name: hystrixRow, instances: 1_000, build: newHystrix},
}

// newHystrix makes the circuit of one more command; hystrix-go keeps them all, by name, for good.
func newHystrix(i int) any {
	c, _, _ := hystrix.GetCircuit(fmt.Sprintf("bench %d", i))
	return c
}
