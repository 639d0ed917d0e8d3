package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/testenv"
)

// What is promised not to allocate does not. Each function captures, since that is how functions are written.

// mdlAllocRules are far from tripping.
var mdlAllocRules = map[string]breaker.Option{
	"consecutive":        breaker.WithFailureThreshold(1 << 30),
	"FailureCount":       breaker.WithTrip(breaker.FailureCount(1000, time.Nanosecond)),
	"rate of LastCalls":  breaker.WithTrip(breaker.FailureRate(1, 100, breaker.LastCalls(100))),
	"rate of Last":       breaker.WithTrip(breaker.FailureRate(1, 1<<30, breaker.Last(10*time.Second))),
	"slow of LastCalls":  breaker.WithTrip(breaker.SlowCallRate(time.Hour, 1, 10, breaker.LastCalls(100))),
	"slow of Last":       breaker.WithTrip(breaker.SlowCallRate(time.Hour, 1, 10, breaker.Last(10*time.Second))),
	"TripWhen LastCalls": breaker.WithTrip(breaker.TripWhen(breaker.LastCalls(100), func(breaker.Counts) bool { return false })),
	"TripWhen Last":      breaker.WithTrip(breaker.TripWhen(breaker.Last(10*time.Second), func(breaker.Counts) bool { return false })),
}

// mdlAllocs requires at most that many allocations of f, once it is warm.
func mdlAllocs(t *testing.T, most float64, f func()) {
	t.Helper()
	if testenv.Race {
		t.Skip("the race detector allocates")
	}
	for range 500 {
		f()
	}
	if got := testing.AllocsPerRun(1000, f); got > most {
		t.Errorf("%v allocations, want at most %v", got, most)
	}
}

var mdlSink int

func TestAllocsSuccess(t *testing.T) {
	for name, rule := range mdlAllocRules {
		for _, sharded := range []bool{false, true} {
			b := breaker.Must(breaker.New[int]("alloc", rule))
			if sharded {
				breaker.Shard(b.Circuit())
			}
			ctx, x := context.Background(), len(name)
			ways := map[string]func(){
				"Do":  func() { mdlSink, _ = b.Do(ctx, func(context.Context) (int, error) { return x, nil }) },
				"Run": func() { _ = b.Circuit().Run(ctx, func(context.Context) error { mdlSink = x; return nil }) },
				"Try": func() { mdlSink = b.Try(ctx, func(context.Context) (int, error) { return x, nil }).Value },
				"after Wrap": func() {
					mdlSink, _ = b.Wrap(func(context.Context) (int, error) { return x, nil })(ctx)
				},
			}
			for way, f := range ways {
				t.Run(fmt.Sprintf("%s, %s, sharded %v", name, way, sharded), func(t *testing.T) { mdlAllocs(t, 0, f) })
			}
		}
	}
}

func TestAllocsFailure(t *testing.T) {
	for name, rule := range mdlAllocRules {
		t.Run(name, func(t *testing.T) {
			b := breaker.Must(breaker.New[int]("alloc", rule, breaker.WithMode(breaker.ForcedClosed)))
			b.Circuit().SetMode(breaker.ForcedClosed) // it never trips
			ctx, x := context.Background(), len(name)
			mdlAllocs(t, 0, func() { mdlSink, _ = b.Do(ctx, func(context.Context) (int, error) { return x, errMdlDown }) })
		})
	}
	t.Run("among successes", func(t *testing.T) {
		b := breaker.Must(breaker.New[int]("alloc"))
		ctx, i := context.Background(), 0
		mdlAllocs(t, 0, func() {
			i++
			mdlSink, _ = b.Do(ctx, func(context.Context) (int, error) {
				if i%10 == 0 {
					return 0, errMdlDown
				}
				return i, nil
			})
		})
	})
}

func TestAllocsRejection(t *testing.T) {
	ctx := context.Background()
	open := func(c *breaker.Circuit) { c.Trip(errMdlDown) }
	halfOpen := func(c *breaker.Circuit) {
		c.Trip(errMdlDown)
		c.OfferProbe()
		for range 2 {
			_ = breaker.Must(c.Acquire(ctx))
		}
	}
	for name, prepare := range map[string]func(*breaker.Circuit){
		"open":                  open,
		"half-open, slots used": halfOpen,
		"forced open":           func(c *breaker.Circuit) { c.SetMode(breaker.ForcedOpen) },
		"too many in flight": func(c *breaker.Circuit) {
			for range 3 {
				_ = breaker.Must(c.Acquire(ctx))
			}
		},
		"ramp": func(c *breaker.Circuit) {
			halfOpen(c)
			c.Reset()
			c.Trip(errMdlDown)
			c.OfferProbe()
			for range 2 {
				_ = c.Run(ctx, func(context.Context) error { return nil })
			}
		},
	} {
		for _, injected := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, injected clock %v", name, injected), func(t *testing.T) {
				opts := []breaker.Option{breaker.WithOpenTimeout(time.Hour), breaker.WithRamp(1000 * time.Hour), breaker.WithMaxInFlight(3)}
				if injected {
					opts = append(opts, breaker.WithClock(newMdlClock()))
				}
				c := breaker.Must(breaker.NewCircuit("alloc", opts...))
				prepare(c)
				ran := 0
				t.Run("Run", func(t *testing.T) {
					mdlAllocs(t, 0, func() {
						if c.Run(ctx, func(context.Context) error { ran++; return nil }) == nil {
							t.Fatal("not rejected")
						}
					})
				})
				t.Run("Acquire", func(t *testing.T) {
					mdlAllocs(t, 0, func() {
						if p, err := c.Acquire(ctx); p != nil || err == nil {
							t.Fatal("not rejected")
						}
					})
				})
				if got := c.Snapshot().Totals.Rejected; ran != 0 || got < 2000 && !testenv.Race {
					t.Errorf("%d ran, %d rejected", ran, got)
				}
			})
		}
	}
}

func TestAllocsPermit(t *testing.T) {
	ctx := context.Background()
	for name, rule := range mdlAllocRules {
		t.Run(name, func(t *testing.T) {
			c := breaker.Must(breaker.NewCircuit("alloc", rule))
			mdlAllocs(t, 1, func() {
				p, _ := c.Acquire(ctx)
				p.Done(nil)
			})
		})
	}
	t.Run("half-open", func(t *testing.T) {
		c := breaker.Must(breaker.NewCircuit("alloc"))
		c.Trip(nil)
		c.OfferProbe()
		mdlAllocs(t, 1, func() {
			p, _ := c.Acquire(ctx)
			p.Settle(breaker.Ignored, nil)
		})
		if s := c.Snapshot(); s.State != breaker.HalfOpen || s.Totals.Rejected > 0 {
			t.Errorf("%v", s)
		}
	})
}

// A whole cycle: trip, probe, close.
func TestAllocsCycle(t *testing.T) {
	for name, rule := range map[string]breaker.Option{
		"consecutive":           breaker.WithFailureThreshold(1),
		"consecutive, windowed": breaker.WithFailureWindow(time.Minute),
		"FailureCount":          breaker.WithTrip(breaker.FailureCount(1, time.Minute)),
		"rate of LastCalls":     breaker.WithTrip(breaker.FailureRate(1, 1, breaker.LastCalls(100))),
		"rate of Last":          breaker.WithTrip(breaker.FailureRate(1, 1, breaker.Last(10*time.Second))),
	} {
		t.Run(name, func(t *testing.T) {
			b := breaker.Must(breaker.New[int]("alloc", breaker.WithFailureThreshold(1), rule, breaker.WithSuccessThreshold(1)))
			ctx, x := context.Background(), 1
			mdlAllocs(t, 1, func() {
				mdlSink, _ = b.Do(ctx, func(context.Context) (int, error) { return x, errMdlDown })
				if b.State() != breaker.Open {
					t.Fatal("not open")
				}
				b.Circuit().OfferProbe()
				mdlSink, _ = b.Do(ctx, func(context.Context) (int, error) { return x, nil })
				if b.State() != breaker.Closed {
					t.Fatal("not closed")
				}
			})
		})
	}
}

// The circuits of a group share their configuration. All in, with the group's table, an idle one takes at most 299 bytes.
func TestAllocsIdleSize(t *testing.T) {
	if testenv.Race {
		t.Skip("the race detector allocates")
	}
	const n = 100_000
	keys := make([]string, n)
	for i := range keys {
		keys[i] = strconv.Itoa(i)
	}
	g := breaker.Must(breaker.NewGroup[int](breaker.MaxKeys(n)))
	before := mdlHeap()
	for _, key := range keys {
		g.Get(key)
	}
	size := float64(mdlHeap()-before) / n
	runtime.KeepAlive(g)
	runtime.KeepAlive(keys)
	t.Logf("%.0f bytes a key, of them %d for the circuit and its breaker", size, breaker.IdleSize)
	if size > 299 {
		t.Errorf("%.0f bytes a key, want at most 299", size)
	}
	if breaker.IdleSize > 256 {
		t.Errorf("circuit and breaker take %d bytes, want at most 256", breaker.IdleSize)
	}
}

// A circuit of its own shares its configuration with those made with the same options. All in, with its breaker, an idle one
// takes at most 400 bytes; a window adds its own memory.
func TestAllocsIdleSizeOfItsOwn(t *testing.T) {
	if testenv.Race {
		t.Skip("the race detector allocates")
	}
	const n = 100_000
	errGone := errors.New("gone")
	log, hooks := slog.New(slog.DiscardHandler), breaker.Hooks{StateChange: func(breaker.Transition) {}}
	for name, tc := range map[string]struct {
		most float64
		opts func() []breaker.Option
	}{
		"default": {400, func() []breaker.Option { return nil }},
		"usual options": {400, func() []breaker.Option {
			return []breaker.Option{
				breaker.WithFailureThreshold(10), breaker.WithOpenTimeout(time.Minute), breaker.WithOpenBackoff(2, time.Hour, 0.5),
				breaker.WithIgnore(errGone), breaker.WithLogger(log), breaker.WithHooks(hooks),
			}
		}},
		"window of time": {512, func() []breaker.Option {
			return []breaker.Option{breaker.WithTrip(breaker.FailureRate(0.5, 20, breaker.Last(time.Minute)))}
		}},
		"window of calls": {512, func() []breaker.Option {
			return []breaker.Option{breaker.WithTrip(breaker.FailureRate(0.5, 20, breaker.LastCalls(100)))}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			kept := make([]*breaker.Breaker[int], n)
			before := mdlHeap()
			for i := range kept {
				kept[i] = breaker.Must(breaker.New[int]("x", tc.opts()...))
			}
			size := float64(mdlHeap()-before) / n
			runtime.KeepAlive(kept)
			t.Logf("%.0f bytes", size)
			if size > tc.most {
				t.Errorf("%.0f bytes, want at most %.0f", size, tc.most)
			}
		})
	}
}

func mdlHeap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
