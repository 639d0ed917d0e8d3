package breaker_test

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

type prices = map[string]int

// pricesCache is a Cache that keeps what it gets, as it is.
type pricesCache struct {
	mu    sync.Mutex
	value prices
}

func (c *pricesCache) Get(context.Context, string) (prices, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value, c.value != nil, nil
}

func (c *pricesCache) Set(_ context.Context, _ string, v prices, _ time.Time, _ time.Duration) error {
	<-time.After(time.Second) // by then the caller has its answer
	c.mu.Lock()
	defer c.mu.Unlock()
	c.value = v
	return nil
}

func lastPrices(opts ...breaker.LastGoodOption) breaker.Option {
	return breaker.WithLastGood[prices](time.Hour, func(context.Context) string { return "k" }, opts...)
}

// BR-32: what WithLastGood hands out is what it keeps, unless LastGoodClone copies it: on keeping, and for each caller.
func TestBR32_LastGoodClone(t *testing.T) {
	fails := func(context.Context) (prices, error) { return nil, errDown }
	clone := breaker.LastGoodClone(maps.Clone[prices])
	for name, opts := range map[string]func() []breaker.LastGoodOption{
		"memory": func() []breaker.LastGoodOption { return []breaker.LastGoodOption{clone} },
		"cache": func() []breaker.LastGoodOption {
			return []breaker.LastGoodOption{breaker.LastGoodCache[prices](&pricesCache{}), clone}
		},
	} {
		t.Run(name, func(t *testing.T) {
			scene(t, func(w *stage) {
				b := breaker.Must(breaker.New[prices]("b", breaker.WithFailureThreshold(100), lastPrices(opts()...)))
				answer := prices{"EUR": 1}
				got, err := b.Do(w.Context(), func(context.Context) (prices, error) { return answer, nil })
				require.NoError(w, err)
				got["EUR"] = 2 // whoever called may do as they like
				answer["USD"] = 3
				w.at(2 * time.Second)
				for range 3 {
					r := b.Try(w.Context(), fails)
					require.Equal(w, breaker.RescueCache, r.Rescue)
					require.Equal(w, prices{"EUR": 1}, r.Value)
					r.Value["EUR"] = 4
				}
			})
		})
	}
	t.Run("without it the value is shared", func(t *testing.T) {
		scene(t, func(w *stage) {
			b := breaker.Must(breaker.New[prices]("b", lastPrices()))
			got, _ := b.Do(w.Context(), func(context.Context) (prices, error) { return prices{"EUR": 1}, nil })
			got["EUR"] = 2
			require.Equal(w, prices{"EUR": 2}, b.Try(w.Context(), fails).Value)
		})
	})
	t.Run("one that panics keeps and serves nothing", func(t *testing.T) {
		scene(t, func(w *stage) {
			var log bytes.Buffer
			bad := true
			b := breaker.Must(breaker.New[prices]("b", breaker.WithFailureThreshold(100), breaker.WithLogger(slog.New(slog.NewTextHandler(&log, nil))), lastPrices(breaker.LastGoodClone(func(p prices) prices {
				if bad {
					panic("cannot copy")
				}
				return p
			}))))
			good := func(context.Context) (prices, error) { return prices{"EUR": 1}, nil }
			_, err := b.Do(w.Context(), good)
			require.NoError(w, err)
			require.Contains(w, log.String(), "LastGoodClone")
			bad = false
			require.Equal(w, errDown, b.Try(w.Context(), fails).Err, "it was not kept")
			_, err = b.Do(w.Context(), good)
			require.NoError(w, err)
			bad = true
			require.Equal(w, errDown, b.Try(w.Context(), fails).Err, "it is not served")
			bad = false
			require.Equal(w, prices{"EUR": 1}, b.Try(w.Context(), fails).Value)
			require.Zero(w, b.Snapshot().Totals.Panics)
		})
	})
	t.Run("one of another type is a constructor error", func(t *testing.T) {
		for text, opt := range map[string]breaker.Option{
			"func(int) int": lastPrices(breaker.LastGoodClone(func(v int) int { return v })),
			"nil":           lastPrices(breaker.LastGoodClone[prices](nil)),
		} {
			_, err := breaker.New[prices]("b", opt)
			require.ErrorContains(t, err, "LastGoodClone")
			require.ErrorContains(t, err, text)
		}
	})
}

// stuckCache is a Cache whose Get takes as long as a test likes.
type stuckCache struct {
	get  func()
	gets atomic.Int64 // that are under way
}

func (c *stuckCache) Get(context.Context, string) (int, bool, error) {
	c.gets.Add(1)
	defer c.gets.Add(-1)
	c.get()
	return 7, true, nil
}

func (c *stuckCache) Set(context.Context, string, int, time.Time, time.Duration) error { return nil }

// However many calls are rescued, a cache is asked by a bounded number of goroutines.
func TestLastGoodCacheIsAskedByFew(t *testing.T) {
	opts := func(c *stuckCache) []breaker.Option {
		return []breaker.Option{breaker.WithMode(breaker.ForcedOpen),
			breaker.WithLastGood[int](time.Hour, func(context.Context) string { return "k" }, breaker.LastGoodCache[int](c)),
			breaker.WithFallbackValue(-1)}
	}
	never := func(context.Context) (int, error) { return 0, errDown }
	t.Run("a Get that hangs", func(t *testing.T) {
		scene(t, func(w *stage) {
			release := make(chan struct{})
			cache := &stuckCache{get: func() { <-release }}
			b := breaker.Must(breaker.New[int]("b", opts(cache)...))
			before := runtime.NumGoroutine()
			for range 10 {
				var all sync.WaitGroup
				began := time.Now()
				for range 200 {
					all.Go(func() {
						r := b.Try(context.Background(), never)
						assert.Equal(w, breaker.RescueValue, r.Rescue)
						assert.LessOrEqual(w, time.Since(began), 100*time.Millisecond, "nobody is held up for longer")
					})
				}
				all.Wait()
			}
			require.EqualValues(w, 16, cache.gets.Load())
			require.Less(w, runtime.NumGoroutine(), before+100, "those of other tests come and go")
			close(release)
			synctest.Wait()
			require.Equal(w, breaker.RescueCache, b.Try(w.Context(), never).Rescue, "and it is asked again")
		})
	})
	t.Run("one that answers in its time serves all", func(t *testing.T) {
		scene(t, func(w *stage) {
			b := breaker.Must(breaker.New[int]("b", opts(&stuckCache{get: func() { <-time.After(5 * time.Millisecond) }})...))
			var all sync.WaitGroup
			for range 200 {
				all.Go(func() { assert.Equal(w, breaker.RescueCache, b.Try(context.Background(), never).Rescue) })
			}
			all.Wait()
		})
	})
}
