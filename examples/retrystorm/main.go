// Retrystorm shows what retries do to a dependency in trouble, and what breakers and budgets do about it. 1,000 callers in
// 50 processes call it every other second, first while it is down and then while a fifth of its answers are errors. Callers are
// goroutines; time is the example's own, so that the minutes pass at once.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/examples/internal/world"
)

const (
	processes = 50
	callers   = 20 // in each process
	lasts     = 30 * time.Second
	every     = 2 * time.Second // each caller's calls
	calls     = processes * callers * int(lasts/every)
)

func main() {
	if err := run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "retrystorm:", err)
		os.Exit(1)
	}
}

// A policy is how a process calls the dependency.
type policy struct {
	name                     string
	retries, budget, circuit bool
}

var policies = []policy{
	{name: "no retries"},
	{name: "3 retries", retries: true},
	{name: "3 retries, budget", retries: true, budget: true},
	{name: "3 retries, breaker", retries: true, circuit: true},
	{name: "3 retries, breaker, budget", retries: true, circuit: true, budget: true},
}

// process puts the policy around ask. Each process has its own: its circuit and its budget know nothing of the others.
func (p policy) process(w *world.World, random func() float64, ask func(context.Context) (string, error)) (func(context.Context) (string, error), error) {
	retry := []breaker.RetryOption{breaker.Exponential(100*time.Millisecond, 10*time.Second)} // and up to half more, by chance
	if p.retries {
		retry = append(retry, breaker.MaxRetries(3))
	}
	if p.budget {
		budget, err := breaker.NewBudget(0.1, 1, 10*time.Second) // 1 retry for every 10 calls, plus 1, in any 10 s
		if err != nil {
			return nil, err
		}
		retry = append(retry, breaker.WithBudget(budget))
	}
	if !p.circuit {
		free, err := breaker.NewRetryPolicy(append(retry, breaker.RetryClock(w.Waiting()), breaker.RetryRand(random))...)
		return func(ctx context.Context) (string, error) { return breaker.Retry(ctx, free, ask) }, err
	}
	b, err := breaker.New[string]("dependency",
		breaker.WithClock(w.Waiting()),
		breaker.WithRand(random),
		// A number of failures in a row would come by chance sooner or later where a fifth of the calls fail.
		breaker.WithTrip(breaker.FailureRate(0.5, 20, breaker.Last(10*time.Second))),
		breaker.WithOpenTimeout(5*time.Second),
		breaker.WithRetry(retry...))
	if err != nil {
		return nil, err
	}
	return b.Wrap(ask), nil
}

// outcome is what came of a policy.
type outcome struct {
	reached  int // calls that reached the dependency while its trouble lasted
	answered int // callers who got an answer in the end
}

// factor is the calls that reached the dependency for each call that was made.
func (o outcome) factor() float64 { return float64(o.reached) / float64(calls) }

// simulate lets all processes call a dependency of whose answers a share are errors.
func simulate(p policy, errorShare float64) (o outcome, err error) {
	w := world.New()
	end := w.Now().Add(lasts)
	random := rand.New(rand.NewPCG(1, 2)).Float64 // the same in every run; nobody here draws at the same time as another
	ask := func(context.Context) (string, error) {
		if !w.Now().Before(end) { // the trouble is over
			return "answer", nil
		}
		o.reached++
		if random() < errorShare {
			return "", errors.New("out of order")
		}
		return "answer", nil
	}
	for range processes {
		call, err := p.process(w, random, ask)
		if err != nil {
			return o, err
		}
		for range callers {
			for at := time.Duration(random() * float64(every)); at < lasts; at += every {
				w.Enter(at, func() {
					if _, err := call(context.Background()); err == nil {
						o.answered++
					}
				})
			}
		}
	}
	w.Run()
	return o, nil
}

func run(out io.Writer) error {
	fmt.Fprintf(out, "%s callers in %d processes call a dependency every 2 s, for 30 s: %s calls.\n\n", count(processes*callers), processes, count(calls))
	fmt.Fprintln(out, "  3 retries   after 0.1, 0.2 and 0.4 s, and up to half of that more")
	fmt.Fprintln(out, "  breaker     one in each process: opens for 5 s when half of at least 20 calls within 10 s have failed")
	fmt.Fprintln(out, "  budget      one in each process: a retry for every 10 calls, and one more, in any 10 s")
	fmt.Fprintln(out)
	fmt.Fprintf(out, "%-26s   %24s   %35s\n", "", "it is down", "a fifth of its answers are errors")
	fmt.Fprintf(out, "%-26s   %13s  %9s   %13s  %9s  %9s\n", "", "calls to it", "factor", "calls to it", "factor", "answered")
	for _, p := range policies {
		down, err := simulate(p, 1)
		if err != nil {
			return err
		}
		sick, err := simulate(p, 0.2)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%-26s   %13s  %8.2fx   %13s  %8.2fx  %8.1f%%\n", p.name,
			count(down.reached), down.factor(), count(sick.reached), sick.factor(), 100*float64(sick.answered)/float64(calls))
	}
	fmt.Fprint(out, `
Down: plain retries hit the dependency almost four times as hard as its callers do, just when it needs rest.
With a breaker they end as soon as the circuit opens, and all that is left is a probe now and then.

A fifth of the answers are errors: most calls do well, and the circuits stay closed, as they should. Retries
help nearly every caller there, and a budget bounds the load that they add: fewer answers for more rest.
`)
	return nil
}

// count is a number with a comma in front of the last three digits.
func count(n int) string {
	s := strconv.Itoa(n)
	if len(s) > 3 {
		s = s[:len(s)-3] + "," + s[len(s)-3:]
	}
	return s
}
