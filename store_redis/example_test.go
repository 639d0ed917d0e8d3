package storeredis_test

import (
	"context"
	"fmt"
	"time"

	"github.com/breakerkit/breaker"
	storeredis "github.com/breakerkit/breaker/store_redis"
	"github.com/redis/go-redis/v9"
)

func ExampleNew() {
	client := redis.NewClient(&redis.Options{
		Addr:                  "localhost:6379",
		MaxRetries:            -1,   // what is sent twice may count twice
		ContextTimeoutEnabled: true, // operations are given up in time
	})
	defer client.Close()
	shared, err := storeredis.New(client, storeredis.KeyPrefix("shop"), storeredis.Timeout(100*time.Millisecond))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer shared.Close()
}

// A client with the defaults of go-redis is refused, in words that say what to change.
func ExampleNew_refused() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379", MaxRetries: -1})
	defer client.Close()
	_, err := storeredis.New(client)
	fmt.Println(err)
	// Output: storeredis: client: ContextTimeoutEnabled must be true, got false: without it an operation is not given up in time (UncheckedClient accepts it)
}

// Any process of the fleet serves the last good answer that any of them has got.
func ExampleNewCache() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
	defer client.Close()
	cache, err := storeredis.NewCache[float64](client, storeredis.CachePrefix("rates"))
	if err != nil {
		fmt.Println(err)
		return
	}
	rates, err := breaker.New[float64]("rates",
		breaker.WithLastGood[float64](10*time.Minute,
			func(context.Context) string { return "EUR" },
			breaker.LastGoodCache[float64](cache)))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rates.Close()
}
