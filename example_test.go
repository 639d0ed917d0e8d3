package breaker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/breakerkit/breaker"
)

// Five calls fail, the circuit opens, the others do not reach the dependency.
func Example() {
	weather := breaker.Must(breaker.New[string]("weather")) // one for each dependency, made once
	calls := 0
	fetch := func(context.Context) (string, error) {
		calls++
		return "", errors.New("no connection")
	}
	for range 7 {
		_, err := weather.Do(context.Background(), fetch)
		if errors.Is(err, breaker.ErrOpen) {
			fmt.Println("not called:", err)
			continue
		}
		fmt.Println("called:", err)
	}
	fmt.Println(calls, "calls,", weather.State())
	// Output:
	// called: no connection
	// called: no connection
	// called: no connection
	// called: no connection
	// called: no connection
	// not called: breaker: circuit "weather" is open
	// not called: breaker: circuit "weather" is open
	// 5 calls, open
}

func ExampleNew() {
	b, err := breaker.New[int]("stock",
		breaker.WithFailureThreshold(3),
		breaker.WithOpenTimeout(15*time.Second))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(b.Name(), b.State())

	// The error names everything that is wrong.
	_, err = breaker.New[int]("stock",
		breaker.WithFailureThreshold(-3),
		breaker.WithOpenBackoff(0.5, time.Hour, 0))
	fmt.Println(err)
	// Output:
	// stock closed
	// breaker: FailureThreshold: must be from 1 to 2147483647, got -3
	// breaker: OpenBackoff.Factor: must be at least 1 and finite, got 0.5
}

func ExampleBreaker_Do() {
	b := breaker.Must(breaker.New[int]("stock"))
	n, err := b.Do(context.Background(), func(ctx context.Context) (int, error) {
		return 42, nil // ask the dependency, with ctx
	})
	fmt.Println(n, err)
	// Output: 42 <nil>
}

func ExampleBreaker_Try() {
	b := breaker.Must(breaker.New[int]("stock"))
	ask := func(context.Context) (int, error) { return 42, nil }

	r := b.Try(context.Background(), ask)
	fmt.Println(r.Value, r.Err, r.Attempts)

	b.Circuit().Trip(nil)
	r = b.Try(context.Background(), ask)
	fmt.Println(r.Value, errors.Is(r.Err, breaker.ErrOpen), r.Attempts)
	// Output:
	// 42 <nil> 1
	// 0 true 0
}

func ExampleBreaker_DoOr() {
	b := breaker.Must(breaker.New[float64]("prices"))
	b.Circuit().Trip(errors.New("maintenance"))

	price, err := b.DoOr(context.Background(),
		func(context.Context) (float64, error) { return 9.99, nil },
		func(_ context.Context, cause error) (float64, error) {
			fmt.Println("instead, because:", cause)
			return 9.50, nil // the last price known
		})
	fmt.Println(price, err)
	// Output:
	// instead, because: breaker: circuit "prices" is open
	// 9.5 <nil>
}

func ExampleBreaker_Wrap() {
	greet := func(context.Context) (string, error) { return "hello", nil }

	b := breaker.Must(breaker.New[string]("greeter"))
	greet = b.Wrap(greet) // the same function, behind the breaker

	fmt.Println(greet(context.Background()))
	b.Circuit().Trip(nil)
	_, err := greet(context.Background())
	fmt.Println(err)
	// Output:
	// hello <nil>
	// breaker: circuit "greeter" is open
}

// One dependency, one circuit, any number of result types.
func ExampleOver() {
	names := breaker.Must(breaker.New[string]("accounts", breaker.WithFailureThreshold(1)))
	ages := breaker.Must(breaker.Over[int](names.Circuit(), breaker.WithTimeout(time.Second)))

	_, err := names.Do(context.Background(), func(context.Context) (string, error) { return "", errors.New("no connection") })
	fmt.Println(err)
	_, err = ages.Do(context.Background(), func(context.Context) (int, error) { return 33, nil })
	fmt.Println(err)
	// Output:
	// no connection
	// breaker: circuit "accounts" is open
}

func ExampleCircuit_Run() {
	c := breaker.Must(breaker.NewCircuit("mail"))
	err := c.Run(context.Background(), func(ctx context.Context) error {
		return nil // send, with ctx
	})
	fmt.Println(err)
	// Output: <nil>
}

// A call that is no function: it begins here and ends elsewhere.
func ExampleCircuit_Acquire() {
	c := breaker.Must(breaker.NewCircuit("queue", breaker.WithFailureThreshold(1)))

	permit, err := c.Acquire(context.Background())
	if err != nil {
		fmt.Println(err) // rejected
		return
	}
	defer permit.Settle(breaker.Failure, nil) // for a panic; after Done it does nothing
	permit.Done(errors.New("not acknowledged"))

	_, err = c.Acquire(context.Background())
	fmt.Println(err)
	// Output: breaker: circuit "queue" is open
}

// A function that does not heed its context is left behind at the deadline.
func ExampleDetach() {
	answer := make(chan int)
	defer close(answer)
	stuck := func(context.Context) (int, error) { return <-answer, nil }

	b := breaker.Must(breaker.New[int]("legacy"))
	_, err := b.Do(context.Background(), breaker.Detach(10*time.Millisecond, stuck))
	fmt.Println(err)
	fmt.Println(b.Snapshot().Totals.Failures, "failure")
	// Output:
	// context deadline exceeded
	// 1 failure
}

func ExampleWithTrip() {
	b := breaker.Must(breaker.New[int]("search", breaker.WithTrip(
		breaker.FailureRate(0.5, 4, breaker.Last(10*time.Second)),            // half of at least 4 calls
		breaker.SlowCallRate(2*time.Second, 0.9, 20, breaker.LastCalls(100)), // or nearly all are slow
		breaker.TripWhen(breaker.Last(time.Minute), func(c breaker.Counts) bool { // or anything else
			return c.Failures >= 10 && c.Successes == 0
		}))))
	for _, err := range []error{nil, nil, errors.New("down"), errors.New("down")} {
		_, _ = b.Do(context.Background(), func(context.Context) (int, error) { return 0, err })
		fmt.Println(b.State())
	}
	// Output:
	// closed
	// closed
	// closed
	// open
}

// A value can be a failure although it came without an error.
func ExampleWithResult() {
	type reply struct{ status int }
	b := breaker.Must(breaker.New[reply]("api",
		breaker.WithFailureThreshold(1),
		breaker.WithResult(func(r reply, err error) breaker.Outcome {
			switch {
			case err != nil, r.status >= 500:
				return breaker.Failure
			case r.status >= 400:
				return breaker.Ignored // the request was wrong, not the server
			}
			return breaker.Success
		})))
	for _, status := range []int{200, 404, 503} {
		r, err := b.Do(context.Background(), func(context.Context) (reply, error) { return reply{status}, nil })
		fmt.Println(r.status, err, b.State())
	}
	// Output:
	// 200 <nil> closed
	// 404 <nil> closed
	// 503 <nil> open
}

func ExampleParseConfig() {
	file := `{
		"failure_threshold": 5,
		"failure_window": "60s",
		"open_timeout_ms": 15000,
		"success_threshold": 1
	}`
	var settings map[string]any // YAML and TOML decoders make one, too
	if err := json.Unmarshal([]byte(file), &settings); err != nil {
		fmt.Println(err)
		return
	}
	cfg, err := breaker.ParseConfig(settings)
	if err != nil {
		fmt.Println(err)
		return
	}
	c := breaker.Must(breaker.NewCircuit("llm", cfg.Options()...))
	fmt.Println(c.Config().FailureWindow, c.Config().OpenTimeout, c.Config().HalfOpenProbes)

	// What is wrong is named with its path.
	_, err = breaker.ParseConfig(map[string]any{
		"open_timeout": 15,
		"health_check": map[string]any{"interval": "-5s"},
	})
	fmt.Println(err)
	// Output:
	// 1m0s 15s 1
	// breaker: open_timeout: must be a duration such as "30s" (milliseconds go under open_timeout_ms), got 15
	// breaker: health_check.interval: must be above 0 and at most 1281023h53m38.427387904s, got -5s
}

// Settings change while the circuit runs. Its state, the time left and its counts stay.
func ExampleCircuit_Configure() {
	c := breaker.Must(breaker.NewCircuit("llm", breaker.WithFailureThreshold(5)))
	fail := func(context.Context) error { return errors.New("down") }
	for range 3 {
		_ = c.Run(context.Background(), fail)
	}
	fmt.Println(c.Configure(breaker.WithFailureThreshold(4)))
	_ = c.Run(context.Background(), fail)
	fmt.Println(c.State())

	fmt.Println(c.Configure(breaker.WithFailureThreshold(0))) // changes nothing
	fmt.Println(c.Config().FailureThreshold)
	// Output:
	// <nil>
	// open
	// breaker: FailureThreshold: must be from 1 to 2147483647, got 0
	// 4
}

func ExampleCircuit_Trip() {
	c := breaker.Must(breaker.NewCircuit("db"))
	c.Trip(errors.New("fail-over under way"))
	fmt.Println(c.State()) // it recovers as after any other opening
	c.Reset()
	fmt.Println(c.State())
	// Output:
	// open
	// closed
}

func ExampleCircuit_Reset() {
	c := breaker.Must(breaker.NewCircuit("db", breaker.WithFailureThreshold(2)))
	fail := func(context.Context) error { return errors.New("down") }
	_ = c.Run(context.Background(), fail)
	c.Reset() // the failure is forgotten
	_ = c.Run(context.Background(), fail)
	fmt.Println(c.State(), c.Snapshot().Totals.Failures)
	// Output: closed 2
}

func ExampleCircuit_SetMode() {
	c := breaker.Must(breaker.NewCircuit("db"))
	ping := func() error { return c.Run(context.Background(), func(context.Context) error { return nil }) }

	c.SetMode(breaker.ForcedOpen) // reject everything, until further notice
	fmt.Println(ping())
	c.SetMode(breaker.Auto)
	fmt.Println(ping())
	// Output:
	// breaker: circuit "db" is forced open
	// <nil>
}

func ExampleCircuit_Snapshot() {
	c := breaker.Must(breaker.NewCircuit("db"))
	for _, err := range []error{nil, nil, errors.New("deadlock")} {
		_ = c.Run(context.Background(), func(context.Context) error { return err })
	}
	s := c.Snapshot()
	fmt.Println(s)
	fmt.Printf("%.2f of the calls failed, last by %q\n", s.Counts.Rate(), s.LastFailure)
	// Output:
	// db: closed (auto), 0 in flight, 3 calls, 1 failures, 0 rejected
	// 0.33 of the calls failed, last by "deadlock"
}

// After a restart the circuit is as open as it was, for as long as was left.
func ExampleWithSnapshot() {
	clk := clock.NewMock()
	c := breaker.Must(breaker.NewCircuit("db", breaker.WithClock(clk)))
	c.Trip(errors.New("no connection"))
	file, err := json.Marshal(c.Snapshot())
	if err != nil {
		fmt.Println(err)
		return
	}

	clk.Add(20 * time.Second) // the restart

	var saved breaker.Snapshot
	if err := json.Unmarshal(file, &saved); err != nil {
		fmt.Println(err)
		return
	}
	c = breaker.Must(breaker.NewCircuit(saved.Name, breaker.WithClock(clk), breaker.WithSnapshot(saved)))
	err = c.Run(context.Background(), func(context.Context) error { return nil })
	if open, ok := errors.AsType[*breaker.OpenError](err); ok {
		fmt.Println(c.State(), "because of", open.Cause, "for another", open.RetryAfter())
	}
	// Output: open because of no connection for another 10s
}

func ExampleWithHooks() {
	b := breaker.Must(breaker.New[int]("search",
		breaker.WithFailureThreshold(2),
		breaker.WithHooks(breaker.Hooks{
			StateChange: func(t breaker.Transition) {
				fmt.Printf("%s: %s -> %s, %s (%v)\n", t.Name, t.From, t.To, t.Reason, t.Cause)
			},
			Call:   func(_ context.Context, c breaker.CallEvent) { fmt.Println("call:", c.Outcome) },
			Reject: func(_ context.Context, r breaker.RejectEvent) { fmt.Println("reject:", r.Err) },
		})))
	for range 3 {
		_, _ = b.Do(context.Background(), func(context.Context) (int, error) { return 0, errors.New("no shard") })
	}
	// Output:
	// call: failure
	// call: failure
	// search: closed -> open, threshold reached (no shard)
	// reject: breaker: circuit "search" is open
}

// A fake clock moves a test through hours at once. github.com/benbjohnson/clock, github.com/jonboulle/clockwork and
// k8s.io/utils/clock/testing fit as they are.
func ExampleWithClock() {
	clk := clock.NewMock()
	c := breaker.Must(breaker.NewCircuit("db", breaker.WithClock(clk), breaker.WithSuccessThreshold(1)))
	ok := func(context.Context) error { return nil }

	c.Trip(nil)
	clk.Add(29 * time.Second)
	fmt.Println(c.State(), c.Run(context.Background(), ok))
	clk.Add(time.Second)
	fmt.Println(c.State(), c.Run(context.Background(), ok))
	fmt.Println(c.State())
	// Output:
	// open breaker: circuit "db" is open
	// half-open <nil>
	// closed
}

// What a caller can tell its own caller.
func ExampleOpenError() {
	clk := clock.NewMock()
	c := breaker.Must(breaker.NewCircuit("db", breaker.WithClock(clk), breaker.WithOpenTimeout(time.Minute)))
	c.Trip(errors.New("no connection"))
	clk.Add(12 * time.Second)

	err := c.Run(context.Background(), func(context.Context) error { return nil })
	if open, ok := errors.AsType[*breaker.OpenError](err); ok {
		fmt.Println("Retry-After:", open.RetryAfter().Seconds())
		fmt.Println("Cause:", open.Cause)
	}
	// Output:
	// Retry-After: 48
	// Cause: no connection
}

// A breaker learns from results. Until there are some, only a bound on the calls in flight holds back a wave of them.
func ExampleWithMaxInFlight() {
	c := breaker.Must(breaker.NewCircuit("db", breaker.WithMaxInFlight(2)))
	for range 3 {
		_, err := c.Acquire(context.Background()) // a call that hangs
		fmt.Println(err)
	}
	// Output:
	// <nil>
	// <nil>
	// breaker: too many calls in flight
}

func ExampleWithClassifier() {
	type notFound struct{ error }
	c := breaker.Must(breaker.NewCircuit("files",
		breaker.WithFailureThreshold(1),
		breaker.WithClassifier(func(err error) breaker.Outcome {
			if _, ok := errors.AsType[notFound](err); ok || strings.HasPrefix(err.Error(), "bad request") {
				return breaker.Ignored
			}
			return breaker.DefaultClassifier(err)
		})))
	for _, err := range []error{notFound{errors.New("no such file")}, errors.New("bad request: no name"), errors.New("disk full")} {
		_ = c.Run(context.Background(), func(context.Context) error { return err })
		fmt.Println(c.State())
	}
	// Output:
	// closed
	// closed
	// open
}

// Each opening lasts twice as long as the one before, until the circuit has stayed closed for a while.
func ExampleWithOpenBackoff() {
	clk := clock.NewMock()
	c := breaker.Must(breaker.NewCircuit("db", breaker.WithClock(clk),
		breaker.WithOpenTimeout(5*time.Second),
		breaker.WithOpenBackoff(2, time.Minute, 0)))
	c.Trip(nil)
	for range 5 {
		s := c.Snapshot()
		fmt.Println(s.Until.Sub(s.Since))
		clk.Set(s.Until)
		_ = c.Run(context.Background(), func(context.Context) error { return errors.New("still down") }) // a probe
	}
	// Output:
	// 5s
	// 10s
	// 20s
	// 40s
	// 1m0s
}

func ExampleWithRetry() {
	b := breaker.Must(breaker.New[string]("quotes",
		breaker.WithRetry(
			breaker.MaxRetries(2), // three attempts at most
			breaker.Exponential(time.Millisecond, 20*time.Millisecond))))

	attempt := 0
	r := b.Try(context.Background(), func(context.Context) (string, error) {
		attempt++
		if attempt == 1 {
			return "", errors.New("busy")
		}
		return "42.10", nil
	})
	fmt.Printf("%s after %d attempts, rescued by %q\n", r.Value, r.Attempts, r.Rescue)

	_, err := b.Do(context.Background(), func(context.Context) (string, error) { return "", errors.New("no connection") })
	fmt.Println(err)
	// Output:
	// 42.10 after 2 attempts, rescued by "retry"
	// breaker: failed after 3 attempts: no connection
}

// Attempts count one by one, and a circuit that opens ends the retries without another wait.
func ExampleWithRetry_open() {
	b := breaker.Must(breaker.New[string]("quotes",
		breaker.WithFailureThreshold(2),
		breaker.WithRetry(breaker.MaxRetries(10), breaker.Constant(time.Millisecond))))

	r := b.Try(context.Background(), func(context.Context) (string, error) { return "", errors.New("no connection") })
	fmt.Println(r.Attempts, "attempts")
	fmt.Println(r.Err)
	fmt.Println(errors.Is(r.Err, breaker.ErrOpen))
	// Output:
	// 2 attempts
	// breaker: failed after 2 attempts: no connection; not retried: breaker: circuit "quotes" is open
	// true
}

// Retry needs no circuit.
func ExampleRetry() {
	errBadRequest := errors.New("bad request")
	policy, err := breaker.NewRetryPolicy(
		breaker.MaxRetries(5),
		breaker.Constant(time.Millisecond),
		breaker.RetryIf(func(err error) bool { return !errors.Is(err, errBadRequest) }))
	if err != nil {
		fmt.Println(err)
		return
	}

	results := []error{errors.New("busy"), errors.New("busy"), errBadRequest}
	attempt := 0
	_, err = breaker.Retry(context.Background(), policy, func(context.Context) (int, error) {
		attempt++
		return 0, results[attempt-1]
	})
	fmt.Println(err)
	// Output: breaker: failed after 3 attempts: bad request
}

func ExampleNewRetryPolicy() {
	// The error names everything that is wrong.
	_, err := breaker.NewRetryPolicy(
		breaker.MaxRetries(-1),
		breaker.AddJitter(1.5),
		breaker.MaxElapsed(-time.Second))
	fmt.Println(err)
	// Output:
	// breaker: MaxRetries: must be from 0 to 2147483647, got -1
	// breaker: AddJitter: must be from 0 to 1, got 1.5
	// breaker: MaxElapsed: must be from 0 to 1281023h53m38.427387904s, got -1s
}

// One budget for all breakers of a process: however many calls fail, retries add little to them.
func ExampleNewBudget() {
	budget, err := breaker.NewBudget(0.1, 1, time.Minute) // a retry for every 10 calls, and one more, in any minute
	if err != nil {
		fmt.Println(err)
		return
	}
	retry := breaker.WithRetry(breaker.MaxRetries(3), breaker.Constant(time.Millisecond), breaker.WithBudget(budget))
	users := breaker.Must(breaker.New[string]("users", retry, breaker.WithFailureThreshold(1000)))
	teams := breaker.Must(breaker.New[string]("teams", retry, breaker.WithFailureThreshold(1000)))

	attempts := 0
	fail := func(context.Context) (string, error) {
		attempts++
		return "", errors.New("no connection")
	}
	for range 10 {
		_, _ = users.Do(context.Background(), fail)
		_, _ = teams.Do(context.Background(), fail)
	}
	fmt.Printf("20 calls, %d retries\n", attempts-20)
	// Output: 20 calls, 3 retries
}

func ExampleWithFallback() {
	b := breaker.Must(breaker.New[string]("translations",
		breaker.WithFailureThreshold(1),
		breaker.WithFallback("untranslated", func(_ context.Context, cause error) (string, error) {
			fmt.Println("because:", cause)
			return "hello", nil
		})))

	for range 2 {
		r := b.Try(context.Background(), func(context.Context) (string, error) { return "", errors.New("no connection") })
		fmt.Printf("%q from %q, error %v\n", r.Value, r.Rescue, r.Err)
	}
	// Output:
	// because: no connection
	// "hello" from "untranslated", error <nil>
	// because: breaker: circuit "translations" is open
	// "hello" from "untranslated", error <nil>
}

func ExampleWithFallbackValue() {
	b := breaker.Must(breaker.New[[]string]("recommendations",
		breaker.WithFallbackValue([]string{"bestseller"})))

	titles, err := b.Do(context.Background(), func(context.Context) ([]string, error) { return nil, errors.New("no connection") })
	fmt.Println(titles, err)
	// Output: [bestseller] <nil>
}

// The backup has a circuit of its own: what it does never counts against the primary, nor the other way round.
func ExampleWithFailover() {
	askPrimary := func(context.Context) (string, error) { return "", errors.New("no connection") }
	askBackup := func(context.Context) (string, error) { return "receipt 17", nil }

	backup := breaker.Must(breaker.New[string]("backup-bank"))
	primary := breaker.Must(breaker.New[string]("primary-bank",
		breaker.WithFailureThreshold(1),
		breaker.WithFailover("backup-bank", backup.Wrap(askBackup))))

	for range 2 {
		r := primary.Try(context.Background(), askPrimary)
		fmt.Printf("%s by %s; the primary was asked %d times\n", r.Value, r.Rescue, r.Attempts)
	}
	fmt.Println(primary.Name(), primary.State())
	fmt.Println(backup.Name(), backup.State())
	// Output:
	// receipt 17 by failover; the primary was asked 1 times
	// receipt 17 by failover; the primary was asked 0 times
	// primary-bank open
	// backup-bank closed
}

// The key says what the answer is an answer to. It comes from the context, as the question does.
func ExampleWithLastGood() {
	type currency struct{} // the key in the context
	currencyOf := func(ctx context.Context) string { return ctx.Value(currency{}).(string) }

	clk := clock.NewMock()
	rates := breaker.Must(breaker.New[float64]("exchange-rates",
		breaker.WithClock(clk),
		breaker.WithLastGood[float64](10*time.Minute, currencyOf)))

	down := false
	fetch := func(context.Context) (float64, error) {
		if down {
			return 0, errors.New("no connection")
		}
		return 1.0850, nil
	}
	ask := func(name string) {
		r := rates.Try(context.WithValue(context.Background(), currency{}, name), fetch)
		fmt.Printf("%s: %v %q %v\n", name, r.Value, r.Rescue, r.Err)
	}
	ask("USD")
	down = true
	ask("USD")
	ask("JPY") // never asked for before
	clk.Add(10 * time.Minute)
	ask("USD") // too old now
	// Output:
	// USD: 1.085 "" <nil>
	// USD: 1.085 "cache" <nil>
	// JPY: 0 "" no connection
	// USD: 0 "" no connection
}

func ExampleNewGroup() {
	hosts, err := breaker.NewGroup[string](
		breaker.WithFailureThreshold(1), // for every key
		breaker.MaxKeys(1000),
		breaker.IdleAfter(time.Hour))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, _ = hosts.Get("a.example").Do(context.Background(), func(context.Context) (string, error) { return "", errors.New("no connection") })

	fmt.Println(hosts.Get("a.example").State())
	fmt.Println(hosts.Get("b.example").State())
	fmt.Println(hosts.Len(), "keys")
	// Output:
	// open
	// closed
	// 2 keys
}

// What PerKey returns is added to the options of the group.
func ExamplePerKey() {
	hosts := breaker.Must(breaker.NewGroup[string](
		breaker.WithOpenTimeout(10*time.Second),
		breaker.PerKey(func(host string) []breaker.Option {
			if host == "slow.example" {
				return []breaker.Option{breaker.WithFailureThreshold(20)}
			}
			return nil // the group's own will do
		})))
	for _, host := range []string{"fast.example", "slow.example"} {
		c := hosts.Get(host).Circuit().Config()
		fmt.Println(host, c.FailureThreshold, c.OpenTimeout)
	}
	// Output:
	// fast.example 5 10s
	// slow.example 20 10s
}

// One tenant's trouble is no other's.
func ExampleGroup_Do() {
	tenants := breaker.Must(breaker.NewGroup[int](breaker.WithFailureThreshold(2)))
	count := func(tenant string) func(context.Context) (int, error) {
		return func(context.Context) (int, error) {
			if tenant == "broken" {
				return 0, errors.New("no such database")
			}
			return 7, nil
		}
	}
	for range 3 {
		for _, tenant := range []string{"broken", "fine"} {
			n, err := tenants.Do(context.Background(), tenant, count(tenant))
			fmt.Println(tenant, n, err)
		}
	}
	// Output:
	// broken 0 no such database
	// fine 7 <nil>
	// broken 0 no such database
	// fine 7 <nil>
	// broken 0 breaker: circuit "broken" is open
	// fine 7 <nil>
}
