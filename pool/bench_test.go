package pool_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/breakerkit/breaker/pool"
)

// BenchmarkDo is choosing a member and calling it, with all members closed and with every third open.
func BenchmarkDo(b *testing.B) {
	for _, s := range strategies {
		for _, n := range []int{3, 30, 300} {
			for _, limit := range []time.Duration{5 * time.Second, 0} {
				for _, open := range []bool{false, true} {
					b.Run(fmt.Sprintf("%v/n=%d/limit=%v/open=%v", s, n, limit, open), func(b *testing.B) {
						p := many(b, s, n, open, pool.WithLimit(limit))
						ctx, sum := b.Context(), 0
						b.ReportAllocs()
						for b.Loop() {
							v, err := pool.Do(ctx, p, func(_ context.Context, v int) (int, error) { return v, nil })
							if err != nil {
								b.Fatal(err)
							}
							sum += v
						}
					})
				}
			}
		}
	}
}

// BenchmarkParallel is BenchmarkDo by all processors at once.
func BenchmarkParallel(b *testing.B) {
	for _, s := range strategies {
		b.Run(s.String(), func(b *testing.B) {
			p := many(b, s, 30, false)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					_, _ = pool.Do(b.Context(), p, func(_ context.Context, v int) (int, error) { return v, nil })
				}
			})
		})
	}
}

// BenchmarkUnavailable is a pool with no member left.
func BenchmarkUnavailable(b *testing.B) {
	for _, n := range []int{3, 30, 300} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			p := many(b, pool.RoundRobin, n, false)
			for _, c := range p.Circuits() {
				c.Trip(nil)
			}
			b.ReportAllocs()
			for b.Loop() {
				_, _ = pool.Do(b.Context(), p, func(_ context.Context, v int) (int, error) { return v, nil })
			}
		})
	}
}
