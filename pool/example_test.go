package pool_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/pool"
)

// ask stands for a call to a provider.
func ask(url string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		if url == "https://a.example" {
			return "", errors.New("503")
		}
		return "an answer from " + url, nil
	}
}

func ExampleNew() {
	p, err := pool.New(pool.Failover, []pool.Member[string]{
		{Name: "primary", Value: "https://a.example", Priority: 2},
		{Name: "backup", Value: "https://b.example", Priority: 1},
	}, pool.WithBreaker(breaker.WithFailureThreshold(3)))
	if err != nil {
		panic(err)
	}
	defer func() { _ = p.Close() }()

	for range 4 {
		answer, err := pool.Do(context.Background(), p, func(ctx context.Context, url string) (string, error) {
			return ask(url)(ctx)
		})
		fmt.Println(answer, err)
	}
	fmt.Println(p)
	fmt.Println(p.Circuit("primary").Snapshot().Totals.Calls, "calls to the primary")
	// Output:
	// an answer from https://b.example <nil>
	// an answer from https://b.example <nil>
	// an answer from https://b.example <nil>
	// an answer from https://b.example <nil>
	// failover pool of 2: primary open, backup closed
	// 3 calls to the primary
}

func ExampleDo_unavailable() {
	clk := clock.NewMock()
	p, err := pool.New(pool.RoundRobin, []pool.Member[int]{{Name: "a"}, {Name: "b"}}, pool.WithClock(clk))
	if err != nil {
		panic(err)
	}
	for _, c := range p.Circuits() {
		c.Trip(nil)
		clk.Add(10 * time.Second)
	}

	_, err = pool.Do(context.Background(), p, func(context.Context, int) (string, error) { return "never called", nil })
	if none, ok := errors.AsType[*pool.UnavailableError](err); ok {
		fmt.Println(errors.Is(err, breaker.ErrOpen), none.RetryAfter())
		for _, r := range none.Reasons {
			fmt.Println(r.Member, r.Err)
		}
	}
	// Output:
	// true 10s
	// a breaker: circuit "a" is open
	// b breaker: circuit "b" is open
}

func ExampleStop() {
	p, err := pool.New(pool.Failover, []pool.Member[string]{{Name: "bank a", Value: "a", Priority: 1}, {Name: "bank b", Value: "b"}})
	if err != nil {
		panic(err)
	}
	_, err = pool.Do(context.Background(), p, func(_ context.Context, bank string) (string, error) {
		fmt.Println("paying through", bank)
		return "", pool.Stop(errors.New("connection reset: the payment may have gone through"))
	})
	fmt.Println(err)
	// Output:
	// paying through a
	// connection reset: the payment may have gone through
}

func ExampleWeightedRoundRobin() {
	p, err := pool.New(pool.WeightedRoundRobin, []pool.Member[string]{{Name: "big", Weight: 3}, {Name: "small"}})
	if err != nil {
		panic(err)
	}
	turn := func() {
		_, _ = pool.Do(context.Background(), p, func(context.Context, string) (int, error) { return 0, nil })
	}
	for range 8 {
		turn()
	}
	for name, c := range p.Circuits() {
		fmt.Println(name, c.Snapshot().Totals.Calls)
	}
	// Output:
	// big 6
	// small 2
}

func ExamplePerMember() {
	dial := func(addr string) func(context.Context) error {
		return func(context.Context) error { return nil } // breakerhttp.CheckTCP(addr), for one
	}
	p, err := pool.New(pool.Failover, []pool.Member[string]{
		{Name: "a", Value: "a.example:443", Priority: 1},
		{Name: "b", Value: "b.example:443"},
	}, pool.PerMember(func(m pool.Member[string]) []breaker.Option {
		return []breaker.Option{breaker.WithHealthCheck(10*time.Second, dial(m.Value))}
	}))
	if err != nil {
		panic(err)
	}
	defer func() { _ = p.Close() }()
	fmt.Println(p)
	// Output: failover pool of 2: a closed, b closed
}
