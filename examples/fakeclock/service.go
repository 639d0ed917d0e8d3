// Package fakeclock is a small service that calls a price API through a circuit breaker. Its tests are the point: they
// cover half a minute of open circuit without waiting, once with an injected clock and once inside a synctest bubble.
package fakeclock

import (
	"context"

	"github.com/breakerkit/breaker"
)

// Fetch asks the price API.
type Fetch func(ctx context.Context, symbol string) (float64, error)

// Prices answers with current prices as long as the API behind it does.
type Prices struct {
	fetch   Fetch
	circuit *breaker.Breaker[float64]
}

// NewPrices takes the breaker's options from its caller, so that a test can pass a clock and production code its own settings.
func NewPrices(fetch Fetch, opts ...breaker.Option) (*Prices, error) {
	b, err := breaker.New[float64]("prices", opts...)
	if err != nil {
		return nil, err
	}
	return &Prices{fetch: fetch, circuit: b}, nil
}

// Price is the price of symbol. While the API is down the error is a *breaker.OpenError and the API is left alone.
func (p *Prices) Price(ctx context.Context, symbol string) (float64, error) {
	return p.circuit.Do(ctx, func(ctx context.Context) (float64, error) {
		return p.fetch(ctx, symbol)
	})
}

// Available tells a readiness probe whether a call would be let through now.
func (p *Prices) Available() bool { return p.circuit.Ready() }
