package breaker_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// A budget holds to the end of its window, also where it was called at more instants than it keeps apart.
func TestBudgetHoldsInEveryWindow(t *testing.T) {
	const window = 64 * time.Second
	for name, tc := range map[string]struct {
		ratio   float64
		reserve int
		failing func(i int) bool
	}{
		"one retry among many calls": {0, 1, func(i int) bool { return i == 50 || i > 600 }},
		"many retries":               {0, 300, func(int) bool { return true }},
		"a share":                    {0.5, 0, func(i int) bool { return i%10 < 6 }},
	} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(w *stage) {
				var calls, retries []time.Duration
				budget := breaker.Must(breaker.NewBudget(tc.ratio, tc.reserve, window))
				b := breaker.Must(breaker.New[int]("b", farAway, breaker.WithRetry(breaker.MaxRetries(1), breaker.Constant(0), breaker.WithBudget(budget))))
				within := func(of []time.Duration) (n int) {
					for _, at := range of {
						if w.elapsed()-at < window {
							n++
						}
					}
					return n
				}
				call := func(i int) {
					calls = append(calls, w.elapsed())
					r := b.Try(w.Context(), func(context.Context) (int, error) {
						if tc.failing(i) {
							return 0, errDown
						}
						return 0, nil
					})
					if r.Attempts == 2 {
						retries = append(retries, w.elapsed())
						require.LessOrEqual(w, float64(within(retries)), tc.ratio*float64(within(calls))+float64(tc.reserve), "at %v", w.elapsed())
					}
				}
				for i := range 1500 {
					w.at(time.Duration(i) * 100 * time.Millisecond)
					call(i)
					for range i / 600 * 5 { // more than the window gives back
						call(i)
					}
				}
				require.Greater(w, within(retries), (int(tc.ratio*float64(within(calls)))+tc.reserve)*9/10-1, "nor is it much less than it may be")
			})
		})
	}
}
