package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/breakerkit/breaker"
)

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
