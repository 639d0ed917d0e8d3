package breaker_test

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/breakertest"
	"github.com/breakerkit/breaker/internal/testenv"
	"github.com/breakerkit/breaker/store"
)

// group makes a group by the world's clock: 3 failures open a circuit for 10s, 1 success closes it.
func group(w *breakertest.World, opts ...breaker.Option) *breaker.Group[int] {
	w.Helper()
	g, err := breaker.NewGroup[int](w.Options(append([]breaker.Option{
		breaker.WithFailureThreshold(3),
		breaker.WithSuccessThreshold(1),
		breaker.WithOpenTimeout(10 * time.Second),
	}, opts...)...)...)
	require.NoError(w, err)
	w.Cleanup(func() { _ = g.Close() })
	return g
}

// failTimes makes n failing calls.
func failTimes(t require.TestingT, b *breaker.Breaker[int], n int) {
	for range n {
		_, err := b.Do(context.Background(), answering(0, breakertest.ErrBoom))
		require.ErrorIs(t, err, breakertest.ErrBoom)
	}
}

// fillGroup calls n new keys once.
func fillGroup(t require.TestingT, g *breaker.Group[int], prefix string, n int) {
	for i := range n {
		_, err := g.Do(context.Background(), fmt.Sprint(prefix, i), answering(i, nil))
		require.NoError(t, err)
	}
}

// evict fills a group until a key has gone.
func evict(t require.TestingT, g *breaker.Group[int], key string) {
	for i := range 1000 {
		if _, ok := g.Lookup(key); !ok {
			return
		}
		fillGroup(t, g, fmt.Sprint("in place of ", key, " ", i, " "), 1)
	}
	require.FailNow(t, "it never goes", key)
}

func keysOf(g *breaker.Group[int]) []string {
	var keys []string
	for key := range g.All() {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func TestK32_OneLazilyMadeCircuitPerKey(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		g := group(w)
		_, ok := g.Lookup("x")
		require.False(w, ok)
		require.Zero(w, g.Len(), "asking makes none")
		require.Equal(w, breaker.Closed, g.Get("x").State())
		require.Equal(w, "x", g.Get("x").Name())
		require.Equal(w, 1, g.Len())

		got := make([]*breaker.Breaker[int], 100)
		var all sync.WaitGroup
		for i := range got {
			all.Go(func() { got[i] = g.Get("a") })
		}
		all.Wait()
		for _, b := range got {
			require.Same(w, got[0], b)
		}
		b, ok := g.Lookup("a")
		require.True(w, ok)
		require.Same(w, got[0], b)
		require.Equal(w, 2, g.Len())
	})
	// A key must not be empty, as a name must not: Do says so, and Get returns a circuit that works but is nobody's.
	t.Run("the empty key is none", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			var events breakertest.Events
			g := group(w, events.Option(), breaker.WithStore(store.NewMemory()))
			_, err := g.Do(w.Context(), "", answering(0, nil))
			require.EqualError(w, err, `breaker: Group: key must not be empty, got ""`)
			_, err = g.Do(w.Context(), "", nil)
			require.ErrorIs(w, err, breaker.ErrNilFunc)
			require.Empty(w, events.StoreErrors(), "the caller has been told")

			b := g.Get("")
			require.Len(w, events.StoreErrors(), 1)
			requireTexts(w, events.StoreErrors()[0], "key must not be empty")
			failTimes(w, b, 3)
			_, err = b.Do(w.Context(), answering(0, nil))
			require.ErrorIs(w, err, breaker.ErrOpen, "it works")
			require.Equal(w, breaker.Closed, g.Get("").State(), "but is not kept, nor in the store")
			_, ok := g.Lookup("")
			require.False(w, ok)
			require.Zero(w, g.Len())
		})
	})
	t.Run("odd keys", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			g := group(w)
			keys := []string{"\x00", "a\xff", "ä", "a b", "a/b", "A", "a", string(make([]byte, 10_000))}
			for i, key := range keys {
				failTimes(w, g.Get(key), i%2+1)
			}
			for i, key := range keys {
				require.EqualValues(w, i%2+1, g.Get(key).Snapshot().ConsecutiveFailures, "%.10q", key)
			}
		})
	})
}

func TestK33_KeysAreIsolated(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		g := group(w)
		g.Get("b")
		for range 3 {
			_, err := g.Do(w.Context(), "a", answering(0, breakertest.ErrBoom))
			require.Equal(w, breakertest.ErrBoom, err)
		}
		require.Equal(w, breaker.Open, g.Get("a").State())
		require.Equal(w, breaker.Closed, g.Get("b").State())
		_, err := g.Do(w.Context(), "a", answering(0, nil))
		var open *breaker.OpenError
		require.ErrorAs(w, err, &open)
		require.Equal(w, "a", open.Circuit)
		v, err := g.Do(w.Context(), "b", answering(7, nil))
		require.NoError(w, err)
		require.Equal(w, 7, v)
	})
}

func TestK34_GroupSettingsCanBeSwapped(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		g := group(w)
		failTimes(w, g.Get("a"), 2)
		failTimes(w, g.Get("open"), 3)
		require.NoError(w, g.Configure(breaker.WithFailureThreshold(5), breaker.WithOpenTimeout(time.Hour)))
		for _, key := range []string{"a", "open", "new"} {
			require.Equal(w, 5, g.Get(key).Circuit().Config().FailureThreshold, key)
		}
		require.Equal(w, breaker.Open, g.Get("open").State(), "the state survives")
		require.Equal(w, 10*time.Second, g.Get("open").Snapshot().Until.Sub(w.Start), "and the remaining time")
		require.EqualValues(w, 2, g.Get("a").Snapshot().ConsecutiveFailures, "and the counts")
		failTimes(w, g.Get("a"), 2)
		require.Equal(w, breaker.Closed, g.Get("a").State())
		failTimes(w, g.Get("a"), 1)
		require.Equal(w, breaker.Open, g.Get("a").State())

		require.NoError(w, g.Configure(breaker.WithFailureThreshold(1)))
		g.Get("new").Circuit().Reset()
		failTimes(w, g.Get("new"), 1)
		require.Equal(w, breaker.Open, g.Get("new").State())
		require.Equal(w, time.Hour, g.Get("new").Snapshot().Until.Sub(w.Start), "what an earlier Configure set stays")
	})
	t.Run("nonsense changes nothing", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			g := group(w)
			g.Get("a")
			for _, opt := range []breaker.Option{
				breaker.WithFailureThreshold(0), breaker.WithClock(newAskedClock()), breaker.WithHooks(breaker.Hooks{}), breaker.WithSnapshot(breaker.Snapshot{}),
				breaker.WithRetry(), breaker.WithTimeout(1), breaker.WithFallbackValue(1), breaker.MaxKeys(1), breaker.IdleAfter(1), breaker.PerKey(func(string) []breaker.Option { return nil }), nil,
			} {
				require.Error(w, g.Configure(breaker.WithFailureThreshold(9), opt))
				require.Equal(w, 3, g.Get("a").Circuit().Config().FailureThreshold)
				require.Equal(w, 3, g.Get("b").Circuit().Config().FailureThreshold)
			}
			requireTexts(w, g.Configure(breaker.WithFailureThreshold(-1), breaker.WithOpenTimeout(-2), breaker.MaxKeys(3)), "FailureThreshold", "-1", "OpenTimeout", "-2ns", "MaxKeys", "Configure")
		})
	})
	t.Run("PerKey goes on top again", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			g := group(w, breaker.PerKey(func(key string) []breaker.Option {
				if key == "a" {
					return []breaker.Option{breaker.WithFailureThreshold(7)}
				}
				return nil
			}))
			g.Get("a")
			g.Get("b")
			require.NoError(w, g.Configure(breaker.WithFailureThreshold(5), breaker.WithSuccessThreshold(4)))
			require.Equal(w, 7, g.Get("a").Circuit().Config().FailureThreshold)
			require.Equal(w, 4, g.Get("a").Circuit().Config().SuccessThreshold)
			require.Equal(w, 5, g.Get("b").Circuit().Config().FailureThreshold)
		})
	})
	// A circuit that is being made while the settings change has the new ones.
	t.Run("a circuit that is being made", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			var g *breaker.Group[int]
			once := true
			g = group(w, breaker.PerKey(func(string) []breaker.Option {
				if once {
					once = false
					assert.NoError(w, g.Configure(breaker.WithFailureThreshold(9)))
				}
				return nil
			}))
			require.Equal(w, 9, g.Get("a").Circuit().Config().FailureThreshold)
		})
	})
	// So has one that was evicted, is still held, and comes back.
	t.Run("a circuit that was away", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			g := group(w, breaker.MaxKeys(2))
			held := g.Get("held")
			evict(w, g, "held")
			require.NoError(w, g.Configure(breaker.WithFailureThreshold(9)))
			require.Same(w, held, g.Get("held"))
			require.Equal(w, 9, held.Circuit().Config().FailureThreshold)
		})
	})
}

func TestBC58_OneKeyOneCircuit(t *testing.T) {
	breakertest.Guard(t, breakertest.Patience, func() {
		var g *breaker.Group[int]
		var built atomic.Int64
		var asked sync.Map
		g = breaker.Must(breaker.NewGroup[int](breaker.WithFailureThreshold(200), breaker.PerKey(func(key string) []breaker.Option {
			built.Add(1)
			_, twice := asked.LoadOrStore(key, true)
			assert.False(t, twice, "%q was asked about twice", key)
			if key == "api.test:443" {
				g.Get("other.test:443")
				_, _ = g.Lookup(key)
				g.Len()
				for range g.All() {
					break
				}
			}
			return []breaker.Option{breaker.WithSuccessThreshold(3)}
		})))
		var all sync.WaitGroup
		got := make([]*breaker.Breaker[int], 200)
		for i := range got {
			all.Go(func() {
				got[i] = g.Get("api.test:443")
				_, _ = got[i].Do(context.Background(), answering(0, breakertest.ErrBoom))
			})
		}
		all.Wait()
		for _, b := range got {
			require.Same(t, got[0], b)
		}
		require.EqualValues(t, 2, built.Load())
		require.Equal(t, breaker.Open, got[0].State(), "all 200 failures count in one place")
		require.EqualValues(t, 200, got[0].Snapshot().Totals.Failures)
		require.Equal(t, 2, g.Len())
	})
}

func TestBC117_BoundedAndEvictionNeverOpensTheGate(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		g := group(w, breaker.MaxKeys(1000), breaker.IdleAfter(5*time.Minute), breaker.WithOpenTimeout(10*time.Minute))
		failTimes(w, g.Get("X"), 3)
		p, err := g.Get("busy").Circuit().Acquire(w.Context())
		require.NoError(w, err)
		hosts := 100_000
		if testenv.Small() {
			hosts = 10_000
		}
		for i := range hosts {
			_, err := g.Do(w.Context(), fmt.Sprint("host-", i), answering(i, nil))
			require.NoError(w, err)
			if i%1000 == 0 {
				require.LessOrEqual(w, g.Len(), 1000)
			}
		}
		require.Equal(w, 1000, g.Len())
		w.At(6 * time.Minute)
		_, err = g.Do(w.Context(), "one more", answering(0, nil)) // which looks for room
		require.NoError(w, err)
		require.Equal(w, 3, g.Len(), "all that were idle have gone")
		require.Equal(w, []string{"X", "busy", "one more"}, keysOf(g))
		_, err = g.Do(w.Context(), "X", answering(0, nil))
		require.ErrorIs(w, err, breaker.ErrOpen)
		p.Done(nil)
		require.EqualValues(w, 1, g.Get("busy").Snapshot().Totals.Successes)
	})
	// A result that arrives for a circuit that has gone harms nothing.
	t.Run("a permit outlives its entry", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			g := group(w, breaker.MaxKeys(1))
			c := g.Get("a").Circuit()
			c.Trip(nil)
			c.OfferProbe()
			p, err := c.Acquire(w.Context())
			require.NoError(w, err)
			c.Reset() // closed, though the permit is still out
			g.Get("b")
			p.Done(breakertest.ErrBoom)
			p.Done(nil)
			require.EqualValues(w, 1, c.Snapshot().Totals.Late)
		})
	})
}

// What goes first: what is idle; then what is closed, by its failures.
func TestGroupEvictionOrder(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		g := group(w, breaker.MaxKeys(4), breaker.IdleAfter(time.Minute), breaker.WithFailureThreshold(10))
		failTimes(w, g.Get("idle, 1 failure"), 1)
		w.At(time.Minute)
		failTimes(w, g.Get("2 failures"), 2)
		failTimes(w, g.Get("no failures"), 1)
		_, err := g.Do(w.Context(), "no failures", answering(0, nil))
		require.NoError(w, err)
		failTimes(w, g.Get("1 failure"), 1)
		require.Equal(w, 4, g.Len())
		for i, gone := range []string{"idle, 1 failure", "no failures", "1 failure", "2 failures"} {
			failTimes(w, g.Get(fmt.Sprint("new ", i)), 5)
			_, ok := g.Lookup(gone)
			require.False(w, ok, gone)
			require.Equal(w, 4, g.Len(), "one goes at a time")
		}
	})
	t.Run("failures that left the window do not protect", func(t *testing.T) {
		for name, policy := range map[string]breaker.Option{
			"window of the run": breaker.WithFailureWindow(10 * time.Second),
			"count":             breaker.WithTrip(breaker.FailureCount(10, 10*time.Second)),
			"rate":              breaker.WithTrip(breaker.FailureRate(1, 10, breaker.Last(10*time.Second))),
		} {
			t.Run(name, func(t *testing.T) {
				breakertest.BothWaiting(t, func(w *breakertest.World) {
					g := group(w, breaker.MaxKeys(2), breaker.WithFailureThreshold(10), policy)
					failTimes(w, g.Get("old"), 9)
					w.At(11 * time.Second)
					failTimes(w, g.Get("young"), 1)
					g.Get("new")
					require.Equal(w, []string{"new", "young"}, keysOf(g))
				})
			})
		}
	})
}

// Open, half-open, forced and busy circuits never go, however long ago they were used.
func TestGroupNeverEvicts(t *testing.T) {
	for name, prepare := range map[string]func(w *breakertest.World, b *breaker.Breaker[int]){
		"open":                  func(w *breakertest.World, b *breaker.Breaker[int]) { failTimes(w, b, 3) },
		"tripped by hand":       func(_ *breakertest.World, b *breaker.Breaker[int]) { b.Circuit().Trip(nil) },
		"half-open":             func(_ *breakertest.World, b *breaker.Breaker[int]) { b.Circuit().Trip(nil); b.Circuit().OfferProbe() },
		"forced open":           func(_ *breakertest.World, b *breaker.Breaker[int]) { b.Circuit().SetMode(breaker.ForcedOpen) },
		"forced closed":         func(_ *breakertest.World, b *breaker.Breaker[int]) { b.Circuit().SetMode(breaker.ForcedClosed) },
		"shadow":                func(_ *breakertest.World, b *breaker.Breaker[int]) { b.Circuit().SetMode(breaker.Shadow) },
		"busy":                  func(w *breakertest.World, b *breaker.Breaker[int]) { breaker.Must(b.Circuit().Acquire(w.Context())) },
		"busy after many calls": busyAfterMany,
	} {
		t.Run(name, func(t *testing.T) {
			breakertest.BothWaiting(t, func(w *breakertest.World) {
				g := group(w, breaker.MaxKeys(3), breaker.IdleAfter(time.Minute))
				b := g.Get("kept")
				prepare(w, b)
				before := b.Snapshot()
				b = nil
				for round := range 5 {
					fillGroup(w, g, fmt.Sprint("fill-", round, "-"), 10)
					w.At(w.Elapsed() + time.Hour)
					fillGroup(w, g, fmt.Sprint("again-", round, "-"), 10)
					runtime.GC()
					got, ok := g.Lookup("kept")
					require.True(w, ok)
					require.LessOrEqual(w, g.Len(), 3)
					after := got.Snapshot()
					require.Equal(w, before.Epoch, after.Epoch)
					require.Equal(w, before.Mode, after.Mode)
					require.Equal(w, before.InFlight, after.InFlight)
				}
			})
		})
	}
}

func busyAfterMany(w *breakertest.World, b *breaker.Breaker[int]) {
	ctx := w.Context()
	for range 100_000 {
		_, _ = b.Do(ctx, answering(0, nil))
	}
	breaker.Must(b.Circuit().Acquire(ctx))
}

// Idle is what nobody has looked up or called for the whole of the time; it goes when room is looked for.
func TestGroupIdleEviction(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		g := group(w, breaker.MaxKeys(4), breaker.IdleAfter(10*time.Minute))
		failTimes(w, g.Get("idle"), 1)
		failTimes(w, g.Get("used"), 1)
		held := g.Get("called by its holder")
		failTimes(w, held, 1)
		g.Get("looked up")
		for range 9 {
			w.At(w.Elapsed() + time.Minute)
			g.Get("used")
			failTimes(w, held, 1)
			_, _ = held.Do(w.Context(), answering(0, nil))
			_, ok := g.Lookup("looked up")
			require.True(w, ok)
		}
		w.At(10 * time.Minute)
		require.Equal(w, 4, g.Len(), "nothing goes before its time")
		failTimes(w, held, 1)
		g.Get("new")
		require.Equal(w, []string{"called by its holder", "new", "used"}, keysOf(g), "Lookup is no use")
		require.EqualValues(w, 1, g.Get("used").Snapshot().ConsecutiveFailures)
	})
	t.Run("the instant before", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			g := group(w, breaker.MaxKeys(2), breaker.IdleAfter(10*time.Minute))
			failTimes(w, g.Get("a"), 2)
			w.At(10*time.Minute - 1)
			failTimes(w, g.Get("b"), 1)
			g.Get("c")
			require.Equal(w, []string{"a", "c"}, keysOf(g), "a was not idle yet, and b had the fewest failures")
		})
	})
	// A circuit that was busy and is now used seldom is not idle. One failure keeps it from going for want of room.
	t.Run("busy, then seldom", func(t *testing.T) {
		for _, sharded := range []bool{false, true} {
			breakertest.BothWaiting(t, func(w *breakertest.World) {
				g := group(w, breaker.MaxKeys(3), breaker.IdleAfter(10*time.Minute))
				if sharded {
					breaker.Shard(g.Get("a").Circuit())
				}
				for range 20_000 {
					_, _ = g.Do(w.Context(), "a", answering(0, nil))
				}
				failTimes(w, g.Get("a"), 1)
				for i := range 30 {
					w.At(w.Elapsed() + 5*time.Minute)
					failTimes(w, g.Get("a"), 1)
					g.Get("a").Circuit().Reset()
					failTimes(w, g.Get("a"), 1)
					fillGroup(w, g, fmt.Sprint("fill-", i, "-"), 5)
					_, ok := g.Lookup("a")
					require.True(w, ok, "after %v", w.Elapsed())
				}
			})
		}
	})
	// One that was busy goes when it has been idle for long, like any other.
	t.Run("busy, then idle", func(t *testing.T) {
		for _, sharded := range []bool{false, true} {
			t.Run(fmt.Sprint("sharded ", sharded), func(t *testing.T) {
				breakertest.BothWaiting(t, func(w *breakertest.World) {
					g := group(w, breaker.MaxKeys(3), breaker.IdleAfter(10*time.Minute))
					if sharded {
						breaker.Shard(g.Get("a").Circuit())
					}
					for range 20_000 {
						_, _ = g.Do(w.Context(), "a", answering(0, nil))
					}
					failTimes(w, g.Get("a"), 1)
					for i := range 5 {
						w.At(w.Elapsed() + 11*time.Minute)
						fillGroup(w, g, fmt.Sprint("fill-", i, "-"), 5)
					}
					_, ok := g.Lookup("a")
					require.False(w, ok)
				})
			})
		}
	})
}

// A circuit that is evicted while somebody holds it comes back as it is.
func TestGroupIdentityOfEvictedCircuits(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		g := group(w, breaker.MaxKeys(2), breaker.WithFailureThreshold(1))
		held := g.Get("held")
		evict(w, g, "held") // between Get and the call
		runtime.GC()
		failTimes(w, held, 1)
		require.Equal(w, breaker.Open, held.State())
		got, ok := g.Lookup("held")
		require.True(w, ok, "it is in its place again")
		require.Same(w, held, got)
		require.Same(w, held, g.Get("held"))
		_, err := g.Do(w.Context(), "held", answering(0, nil))
		require.ErrorIs(w, err, breaker.ErrOpen)
		require.Equal(w, 2, g.Len())

		held.Circuit().Reset()
		for range 5 { // away and back, again and again
			evict(w, g, "held")
			require.Same(w, held, g.Get("held"))
		}
	})
	t.Run("a circuit of which only the Circuit is held", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			g := group(w, breaker.MaxKeys(1))
			c := g.Get("held").Circuit()
			g.Get("other")
			runtime.GC()
			c.Trip(nil)
			require.Same(w, c, g.Get("held").Circuit())
		})
	})
	t.Run("one that nobody holds is made anew", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			g := group(w, breaker.MaxKeys(1))
			failTimes(w, g.Get("a"), 2)
			g.Get("b")
			runtime.GC()
			runtime.GC()
			require.Zero(w, g.Get("a").Snapshot().Totals.Calls)
		})
	})
	t.Run("many at once get one", func(t *testing.T) {
		breakertest.Guard(t, breakertest.Patience, func() {
			g := breaker.Must(breaker.NewGroup[int](breaker.MaxKeys(1)))
			for range 50 {
				held := g.Get("held")
				g.Get("other")
				var all sync.WaitGroup
				for range 8 {
					all.Go(func() { assert.Same(t, held, g.Get("held")) })
				}
				all.Wait()
				runtime.KeepAlive(held)
			}
			require.Equal(t, 1, g.Len())
		})
	})
	// A circuit that opens after its eviction, and of which nobody keeps hold, must not come back closed.
	t.Run("one that opened while it was away", func(t *testing.T) {
		for _, configured := range []bool{false, true} { // by itself, past the group
			breakertest.BothWaiting(t, func(w *breakertest.World) {
				g := group(w, breaker.MaxKeys(2), breaker.WithFailureThreshold(1))
				_, err := g.Do(w.Context(), "held", func(context.Context) (int, error) { return 0, nil })
				require.NoError(w, err)
				func() {
					held := g.Get("held")
					if configured {
						require.NoError(w, held.Circuit().Configure(breaker.WithOpenTimeout(time.Hour)))
					}
					evict(w, g, "held")
					failTimes(w, held, 1)
				}()
				runtime.GC()
				runtime.GC()
				require.Equal(w, breaker.Open, g.Get("held").State())
			})
		}
	})
}

// Full of circuits that must not go, a group still works, and says so.
func TestGroupOverflow(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		var over []string
		g := group(w, breaker.MaxKeys(3), breaker.IdleAfter(time.Minute), breaker.WithHooks(breaker.Hooks{Overflow: func(key string) { over = append(over, key) }}))
		for i := range 3 {
			failTimes(w, g.Get(fmt.Sprint(i)), 3)
		}
		require.Empty(w, over)
		b := g.Get("more")
		require.NotNil(w, b)
		require.Equal(w, []string{"more"}, over)
		require.Equal(w, 3, g.Len())
		_, ok := g.Lookup("more")
		require.False(w, ok, "it is not kept")
		failTimes(w, b, 3)
		_, err := b.Do(w.Context(), answering(0, nil))
		require.ErrorIs(w, err, breaker.ErrOpen, "but it works")
		require.Same(w, b, g.Get("more"), "for as long as somebody holds it, it is the one")
		v, err := g.Do(w.Context(), "one more", answering(7, nil))
		require.NoError(w, err)
		require.Equal(w, 7, v)

		// Once one of them has closed, there is room again.
		w.At(10 * time.Second)
		_, err = g.Do(w.Context(), "0", answering(0, nil))
		require.NoError(w, err)
		require.Equal(w, breaker.Closed, g.Get("0").State())
		before := len(over)
		require.Same(w, b, g.Get("more"))
		require.Len(w, over, before)
		_, ok = g.Lookup("more")
		require.True(w, ok)
		_, ok = g.Lookup("0")
		require.False(w, ok)
	})
	t.Run("a hook may ask the group, panic, end its goroutine", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			var g *breaker.Group[int]
			end := func() {}
			g = group(w, breaker.MaxKeys(1), breaker.WithHooks(breaker.Hooks{Overflow: func(key string) {
				g.Len()
				_, _ = g.Lookup(key)
				_ = g.Get("full")
				for range g.All() {
					continue
				}
				end()
			}}))
			g.Get("full").Circuit().Trip(nil)
			require.NotNil(w, g.Get("a"))
			end = func() { panic("hook") }
			require.NotNil(w, g.Get("b"))
			end = runtime.Goexit
			breakertest.InGoroutine(func() { g.Get("c") })
			end = func() {}
			require.NotNil(w, g.Get("c"), "and the group goes on")
			require.NotNil(w, g.Get("d"))
		})
	})
}

// A hook that asks the group for the key that it is told of gets its circuit, and is told once.
func TestGroupOverflowHookAsksForTheSameKey(t *testing.T) {
	breakertest.Guard(t, breakertest.Patience, func() {
		var g *breaker.Group[int]
		var got []*breaker.Breaker[int]
		end := func() {}
		g = breaker.Must(breaker.NewGroup[int](breaker.MaxKeys(1), breaker.WithHooks(breaker.Hooks{Overflow: func(key string) {
			got = append(got, g.Get(key))
			_, err := g.Do(context.Background(), key, answering(0, nil))
			assert.NoError(t, err)
			end()
		}})))
		g.Get("full").Circuit().Trip(nil)
		b := g.Get("a")
		require.Len(t, got, 1)
		require.Same(t, b, got[0])
		require.Same(t, b, g.Get("a"))
		require.Len(t, got, 2, "asked for anew, it is told anew")
		end = runtime.Goexit
		breakertest.InGoroutine(func() { g.Get("a") })
		end = func() { panic("hook") }
		require.Same(t, b, g.Get("a"))
		require.Len(t, got, 4, "however the one before ended")
		require.EqualValues(t, 4, b.Snapshot().Totals.Successes)
	})
}

// What PerKey and the hooks do while a circuit is being made harms nobody: asking for the same key, or for one whose maker
// asks for this one, waits for nothing.
func TestGroupAsksForAKeyThatIsBeingMade(t *testing.T) {
	for name, opts := range map[string]func(inside func(key string)) []breaker.Option{
		"PerKey": func(inside func(string)) []breaker.Option {
			return []breaker.Option{breaker.PerKey(func(key string) []breaker.Option { inside(key); return nil })}
		},
		"PerKey, then a panic": func(inside func(string)) []breaker.Option {
			return []breaker.Option{breaker.PerKey(func(key string) []breaker.Option { inside(key); panic("no options") })}
		},
		"StoreError of wrong options": func(inside func(string)) []breaker.Option {
			return []breaker.Option{breaker.WithHooks(breaker.Hooks{StoreError: func(error) { inside("k") }}),
				breaker.PerKey(func(string) []breaker.Option { return []breaker.Option{breaker.WithFailureThreshold(-1)} })}
		},
		"StoreError of a store": func(inside func(string)) []breaker.Option {
			return []breaker.Option{breaker.WithHooks(breaker.Hooks{StoreError: func(error) { inside("k") }}), breaker.WithStore(awayStore{store.NewMemory()})}
		},
	} {
		t.Run(name, func(t *testing.T) {
			breakertest.Guard(t, breakertest.Patience, func() {
				var g *breaker.Group[int]
				var got []*breaker.Breaker[int]
				g = breaker.Must(breaker.NewGroup[int](opts(func(key string) {
					if len(got) > 0 {
						return
					}
					got = append(got, g.Get(key))
					failTimes(t, got[0], 5)
					assert.Equal(t, breaker.Open, got[0].State(), "it works")
					_, err := g.Do(context.Background(), key, answering(0, nil))
					assert.NoError(t, err, "and is not kept")
					assert.Zero(t, g.Len())
					assert.NoError(t, g.Configure(breaker.WithOpenTimeout(time.Hour)))
				})...))
				b := g.Get("k")
				require.Len(t, got, 1)
				require.NotSame(t, b, got[0])
				require.Equal(t, "k", got[0].Name())
				require.Zero(t, b.Snapshot().Totals.Failures)
				require.Same(t, b, g.Get("k"))
				require.Equal(t, 1, g.Len())
				require.Equal(t, time.Hour, b.Circuit().Config().OpenTimeout)
				require.NoError(t, g.Close())
			})
		})
	}
	t.Run("each for the other's", func(t *testing.T) {
		breakertest.Guard(t, breakertest.Patience, func() {
			var g *breaker.Group[int]
			var inside sync.WaitGroup
			inside.Add(2)
			other := map[string]string{"a": "b", "b": "a"}
			g = breaker.Must(breaker.NewGroup[int](breaker.PerKey(func(key string) []breaker.Option {
				inside.Done()
				inside.Wait()
				g.Get(other[key])
				return nil
			})))
			var all sync.WaitGroup
			for key := range other {
				all.Go(func() { assert.Equal(t, key, g.Get(key).Name()) })
			}
			all.Wait()
			require.Equal(t, []string{"a", "b"}, keysOf(g))
		})
	})
	// Those who wait for a circuit whose maker's goroutine ends make it themselves.
	t.Run("and ends its goroutine", func(t *testing.T) {
		breakertest.Guard(t, breakertest.Patience, func() {
			var asked atomic.Int64
			entered, release := make(chan struct{}), make(chan struct{})
			g := breaker.Must(breaker.NewGroup[int](breaker.PerKey(func(string) []breaker.Option {
				if asked.Add(1) == 1 {
					close(entered)
					<-release
					runtime.Goexit()
				}
				return []breaker.Option{breaker.WithFailureThreshold(9)}
			})))
			var all sync.WaitGroup
			all.Go(func() { g.Get("k"); t.Error("it goes on") })
			<-entered
			got := make([]*breaker.Breaker[int], 8)
			for i := range got {
				all.Go(func() { got[i] = g.Get("k") })
			}
			close(release)
			all.Wait()
			for _, b := range got {
				require.Same(t, got[0], b)
			}
			require.Equal(t, 9, got[0].Circuit().Config().FailureThreshold)
			require.EqualValues(t, 2, asked.Load())
		})
	})
}

// awayStore is a store within the process that does not answer.
type awayStore struct{ *store.Memory }

func (awayStore) Read(_ context.Context, names []string) []breaker.StoreReply {
	all := make([]breaker.StoreReply, len(names))
	for i := range all {
		all[i].Err = breakertest.ErrBoom
	}
	return all
}

// An option of the user's that Configure applies may use the group.
func TestGroupConfigureRunsOptionsOutsideTheLock(t *testing.T) {
	breakertest.Guard(t, breakertest.Patience, func() {
		g := breaker.Must(breaker.NewGroup[int]())
		g.Get("a")
		require.NoError(t, g.Configure(breaker.WithHealthCheck(time.Second, func(context.Context) error { return nil },
			func(*breaker.HealthCheck) { require.Equal(t, 1, g.Len()) })))
		require.Equal(t, time.Second, g.Get("a").Circuit().Config().HealthCheck.Interval)
	})
}

// A group that nobody holds is collected, with circuits that have gone and come back, and such that are still away.
func TestGroupIsCollected(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		group, back, away := func() (weak.Pointer[breaker.Group[int]], weak.Pointer[breaker.Breaker[int]], weak.Pointer[breaker.Breaker[int]]) {
			g := breaker.Must(breaker.NewGroup[int](breaker.MaxKeys(1)))
			back, away := g.Get("back"), g.Get("away")
			require.Same(w, back, g.Get("back"))
			_, ok := g.Lookup("away")
			require.False(w, ok)
			return weak.Make(g), weak.Make(back), weak.Make(away)
		}()
		for i := 0; group.Value() != nil && i < 5; i++ {
			runtime.GC()
		}
		require.Nil(w, group.Value())
		require.Nil(w, back.Value())
		require.Nil(w, away.Value())
	})
}

// A circuit that is forced after its eviction, and of which nobody keeps hold, comes back forced.
func TestGroupForcedWhileAway(t *testing.T) {
	for name, force := range map[string]func(*breaker.Circuit) breaker.Mode{
		"forced open":   func(c *breaker.Circuit) breaker.Mode { c.SetMode(breaker.ForcedOpen); return breaker.ForcedOpen },
		"forced closed": func(c *breaker.Circuit) breaker.Mode { c.SetMode(breaker.ForcedClosed); return breaker.ForcedClosed },
		"shadow":        func(c *breaker.Circuit) breaker.Mode { c.SetMode(breaker.Shadow); return breaker.Shadow },
		"configured": func(c *breaker.Circuit) breaker.Mode {
			_ = c.Configure(breaker.WithMode(breaker.ForcedOpen))
			return breaker.ForcedOpen
		},
		"opened": func(c *breaker.Circuit) breaker.Mode { c.Trip(nil); return breaker.Auto },
	} {
		t.Run(name, func(t *testing.T) {
			breakertest.BothWaiting(t, func(w *breakertest.World) {
				g := group(w, breaker.MaxKeys(2))
				want := func() breaker.Mode {
					held := g.Get("held")
					evict(w, g, "held")
					return force(held.Circuit())
				}()
				runtime.GC()
				runtime.GC()
				require.LessOrEqual(w, g.Len(), 2)
				b, ok := g.Lookup("held")
				require.True(w, ok)
				require.Equal(w, want, b.Snapshot().Mode)
				require.Equal(w, want == breaker.Auto, b.State() == breaker.Open)
				require.Same(w, b, g.Get("held"))
			})
		})
	}
	// Where there is no room for it, the hook says so, and the next change tries again.
	t.Run("without room", func(t *testing.T) {
		breakertest.Guard(t, breakertest.Patience, func() {
			over := make(chan string, 9)
			g := breaker.Must(breaker.NewGroup[int](breaker.MaxKeys(1), breaker.WithHooks(breaker.Hooks{Overflow: func(key string) { over <- key }})))
			held := g.Get("held")
			g.Get("full").Circuit().Trip(nil)
			held.Circuit().Trip(nil)
			_, ok := g.Lookup("held")
			require.False(t, ok)
			require.Equal(t, "held", <-over)
			g.Get("full").Circuit().Reset()
			held.Circuit().SetMode(breaker.Shadow)
			got, ok := g.Lookup("held")
			require.True(t, ok)
			require.Same(t, held, got)
			require.Empty(t, over)
		})
	})
}

// A hook that is told of a circuit that has come back in vain, while another key is asked for, keeps nobody from that key.
func TestGroupOverflowHookEndsAnothersGoroutine(t *testing.T) {
	breakertest.Guard(t, breakertest.Patience, func() {
		ended := make(chan string, 9)
		g := breaker.Must(breaker.NewGroup[int](breaker.MaxKeys(1), breaker.WithHooks(breaker.Hooks{Overflow: func(key string) {
			ended <- key
			runtime.Goexit()
		}})))
		held := g.Get("held")
		g.Get("full").Circuit().Trip(nil)
		held.Circuit().Trip(nil)
		breakertest.InGoroutine(func() { g.Get("new") })
		require.Equal(t, "held", <-ended)
		breakertest.InGoroutine(func() { g.Get("new") })
		g.Get("full").Circuit().Reset()
		require.Equal(t, "new", g.Get("new").Name())
		require.Equal(t, []string{"new"}, keysOf(g))
	})
}

// Where many ask for a key that is away at the same instant, and it opens as well, it comes back once.
func TestGroupComesBackOnce(t *testing.T) {
	breakertest.Guard(t, breakertest.Patience, func() {
		for range 300 {
			g := breaker.Must(breaker.NewGroup[int](breaker.MaxKeys(2)))
			held := g.Get("held")
			evict(t, g, "held")
			var all sync.WaitGroup
			all.Go(func() { held.Circuit().Trip(nil); g.Lookup("held") })
			for range 3 {
				all.Go(func() { assert.Same(t, held, g.Get("held")) })
			}
			all.Wait()
			require.Equal(t, 2, g.Len())
			require.Len(t, keysOf(g), 2)
			for i := range 64 { // which look into every chain of the table
				g.Lookup(fmt.Sprint(i))
			}
		}
	})
}

// Circuits are made while a store tells those of the same name in another group, which open.
func TestGroupsOfOneStore(t *testing.T) {
	breakertest.Guard(t, breakertest.Patience, func() {
		shared := store.NewMemory()
		group := func() *breaker.Group[int] {
			return breaker.Must(breaker.NewGroup[int](breaker.MaxKeys(16), breaker.WithFailureThreshold(1), breaker.WithSuccessThreshold(1),
				breaker.WithHealthCheck(time.Millisecond, func(context.Context) error { return nil }), breaker.WithStore(shared)))
		}
		groups := []*breaker.Group[int]{group(), group()}
		var all sync.WaitGroup
		for _, g := range groups {
			for worker := range 2 {
				all.Go(func() {
					for i := range 100 {
						_, _ = g.Do(context.Background(), fmt.Sprint((i+worker)%40), answering(0, breakertest.ErrBoom))
					}
				})
			}
		}
		all.Wait()
		for _, g := range groups {
			require.NoError(t, g.Close())
			for _, b := range g.All() {
				require.NoError(t, b.Close())
			}
		}
	})
}

func TestGroupPerKey(t *testing.T) {
	perKey := func(opts map[string][]breaker.Option) breaker.Option {
		return breaker.PerKey(func(key string) []breaker.Option { return opts[key] })
	}
	t.Run("valid", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			var seen []string
			hook := breaker.WithHooks(breaker.Hooks{StateChange: func(tr breaker.Transition) { seen = append(seen, tr.Name) }})
			g := group(w, hook, breaker.WithFallbackValue(-1), perKey(map[string][]breaker.Option{
				"one":      {breaker.WithFailureThreshold(1)},
				"retries":  {breaker.WithRetry(breaker.MaxRetries(2), breaker.Constant(0))},
				"fallback": {breaker.WithFallback("own", func(context.Context, error) (int, error) { return -2, nil })},
				"forced":   {breaker.WithMode(breaker.ForcedOpen)},
				"restored": {breaker.WithSnapshot(breaker.Snapshot{State: breaker.Open, Since: w.Start, Until: w.Start.Add(5 * time.Second)})},
			}))
			require.Equal(w, rescuedBy(breaker.RescueValue, -1, 1), g.Get("one").Try(w.Context(), answering(0, breakertest.ErrBoom)))
			require.Equal(w, breaker.Open, g.Get("one").State())
			require.Equal(w, []string{"one"}, seen, "the group's hooks are in force")
			require.Equal(w, 3, g.Get("retries").Try(w.Context(), answering(0, breakertest.ErrBoom)).Attempts)
			require.Equal(w, rescuedBy(breaker.RescueValue, -1, 1), g.Get("fallback").Try(w.Context(), answering(0, breakertest.ErrBoom)), "they are added: the group's come first")
			require.Equal(w, breaker.ForcedOpen, g.Get("forced").Snapshot().Mode)
			require.Equal(w, breaker.Open, g.Get("restored").State())
			require.Equal(w, 1, g.Get("plain").Try(w.Context(), answering(0, breakertest.ErrBoom)).Attempts)
			require.Equal(w, 3, g.Get("plain").Circuit().Config().FailureThreshold)
		})
	})
	t.Run("invalid", func(t *testing.T) {
		for name, opt := range map[string]breaker.Option{
			"FailureThreshold": breaker.WithFailureThreshold(-1),
			"FallbackValue":    breaker.WithFallbackValue("x"),
			"Result":           breaker.WithResult(func(string, error) breaker.Outcome { return breaker.Success }),
			"MaxRetries":       breaker.WithRetry(breaker.MaxRetries(-1)),
			"Clock":            breaker.WithClock(newAskedClock()),
			"Hooks":            breaker.WithHooks(breaker.Hooks{}),
			"MaxKeys":          breaker.MaxKeys(1),
			"IdleAfter":        breaker.IdleAfter(1),
			"PerKey":           breaker.PerKey(func(string) []breaker.Option { return nil }),
			"Option":           nil,
		} {
			t.Run(name, func(t *testing.T) {
				breakertest.BothWaiting(t, func(w *breakertest.World) {
					var events breakertest.Events
					var log logLines
					g := group(w, events.Option(), log.option(), breaker.WithRetry(breaker.MaxRetries(1), breaker.Constant(0)),
						perKey(map[string][]breaker.Option{"bad": {breaker.WithSuccessThreshold(9), opt}}))
					b := g.Get("bad")
					require.NotNil(w, b)
					require.Equal(w, 1, b.Circuit().Config().SuccessThreshold, "the group's options, all of them")
					require.Equal(w, 2, b.Try(w.Context(), answering(0, breakertest.ErrBoom)).Attempts)
					require.Len(w, events.StoreErrors(), 1)
					requireTexts(w, events.StoreErrors()[0], name, `"bad"`)
					require.Contains(w, log.String(), name)
					require.Same(w, b, g.Get("bad"))
					require.Len(w, events.StoreErrors(), 1, "it is asked once")
				})
			})
		}
	})
	t.Run("one that panics", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			var log logLines
			g := group(w, log.option(), breaker.PerKey(func(key string) []breaker.Option { panic("no options for " + key) }))
			b := g.Get("a")
			require.NotNil(w, b)
			require.Equal(w, 3, b.Circuit().Config().FailureThreshold)
			require.Contains(w, log.String(), "no options for a")
			require.Same(w, b, g.Get("a"))
		})
	})
	t.Run("one that ends its goroutine", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			end := true
			g := group(w, breaker.PerKey(func(string) []breaker.Option {
				if end {
					end = false
					runtime.Goexit()
				}
				return nil
			}))
			breakertest.InGoroutine(func() { g.Get("a") })
			require.NotNil(w, g.Get("a"))
			require.NotNil(w, g.Get("b"))
		})
	})
	t.Run("one that asks for other keys", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			var g *breaker.Group[int]
			g = group(w, breaker.MaxKeys(3), breaker.PerKey(func(key string) []breaker.Option {
				if len(key) < 5 {
					g.Get(key + "x")
				}
				return nil
			}))
			require.Equal(w, "x", g.Get("x").Name())
			require.Equal(w, 3, g.Len())
		})
	})
	t.Run("a slow one holds up its own key only", func(t *testing.T) {
		breakertest.Guard(t, breakertest.Patience, func() {
			release, entered := make(chan struct{}), make(chan struct{})
			g := breaker.Must(breaker.NewGroup[int](breaker.PerKey(func(key string) []breaker.Option {
				if key == "slow" {
					close(entered)
					<-release
				}
				return nil
			})))
			done := make(chan *breaker.Breaker[int])
			go func() { done <- g.Get("slow") }()
			<-entered
			g.Get("other")
			require.Equal(t, 1, g.Len())
			require.NoError(t, g.Configure(breaker.WithFailureThreshold(4)))
			close(release)
			require.Equal(t, 4, (<-done).Circuit().Config().FailureThreshold)
		})
	})
}

func TestGroupIteration(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		g := group(w)
		for range g.All() {
			w.Error("an empty group has a key")
		}
		want := map[string]*breaker.Breaker[int]{}
		for i := range 100 {
			key := fmt.Sprint(i)
			want[key] = g.Get(key)
		}
		require.Equal(w, want, maps.Collect(g.All()))
		circuits := maps.Collect(g.Circuits())
		require.Len(w, circuits, 100)
		for key, c := range circuits {
			require.Same(w, want[key].Circuit(), c)
			require.Equal(w, key, c.Name())
		}
		var source breaker.Source = g
		for range source.Circuits() {
			break
		}
		n := 0
		for key := range g.All() { // changes under way do no harm
			g.Get(key + "+")
			if n++; n == 50 {
				break
			}
		}
		require.Equal(w, 150, g.Len())
	})
}

func TestGroupClose(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		var checks atomic.Int64
		g := group(w, breaker.WithHealthCheck(time.Second, func(context.Context) error { checks.Add(1); return breakertest.ErrBoom }), breaker.WithOpenTimeout(time.Hour))
		failTimes(w, g.Get("a"), 3)
		w.At(10*time.Second + 1)
		require.EqualValues(w, 10, checks.Load())
		require.NoError(w, g.Close())
		require.NoError(w, g.Close())
		failTimes(w, g.Get("b"), 3)
		w.At(time.Minute)
		require.EqualValues(w, 10, checks.Load(), "neither old nor new circuits are checked")
		_, err := g.Do(w.Context(), "a", answering(0, nil))
		require.ErrorIs(w, err, breaker.ErrOpen)
		v, err := g.Do(w.Context(), "c", answering(7, nil))
		require.NoError(w, err)
		require.Equal(w, 7, v)
	})
}

func TestGroupOptionsBelongToGroups(t *testing.T) {
	group := map[string]breaker.Option{
		"MaxKeys": breaker.MaxKeys(1), "IdleAfter": breaker.IdleAfter(1), "PerKey": breaker.PerKey(func(string) []breaker.Option { return nil }),
	}
	c := breaker.Must(breaker.NewCircuit("c"))
	for name, opt := range group {
		requireTexts(t, errOf(breaker.New[int]("b", opt)), name, "New")
		requireTexts(t, errOf(breaker.NewCircuit("b", opt)), name, "NewCircuit")
		requireTexts(t, errOf(breaker.Over[int](c, opt)), name, "Over")
		requireTexts(t, c.Configure(opt), name, "Configure")
		_, err := breaker.NewGroup[int](opt)
		require.NoError(t, err)
	}
	requireTexts(t, errOf(breaker.NewGroup[int](breaker.WithSnapshot(breaker.Snapshot{}))), "Snapshot", "NewGroup")
	for name, opt := range map[string]breaker.Option{
		"MaxKeys": breaker.MaxKeys(0), "IdleAfter": breaker.IdleAfter(0), "PerKey": breaker.PerKey(nil), "OpenTimeout": breaker.WithOpenTimeout(-1),
		"Result": breaker.WithResult(func(string, error) breaker.Outcome { return 0 }), "Option": nil,
	} {
		requireTexts(t, errOf(breaker.NewGroup[int](opt)), name)
	}
	requireTexts(t, errOf(breaker.NewGroup[int](breaker.MaxKeys(-1), breaker.IdleAfter(-2), breaker.PerKey(nil), breaker.WithFailureThreshold(0))),
		"MaxKeys", "-1", "IdleAfter", "-2ns", "PerKey", "FailureThreshold")
	require.NotNil(t, breakertest.PanicOf(func() { new(breaker.Group[int]).Get("a") }), "the zero value is of no use")
}

func TestAllocsGroup(t *testing.T) {
	g := breaker.Must(breaker.NewGroup[int]())
	rich := breaker.Must(breaker.NewGroup[int](breaker.WithRetry(breaker.MaxRetries(3)), breaker.WithFallbackValue(-1)))
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = fmt.Sprint("host-", i, ".test:443")
		g.Get(keys[i])
		rich.Get(keys[i])
	}
	ctx, x, i := context.Background(), len(keys), 0
	for name, f := range map[string]func(){
		"Get":    func() { i++; mdlSink = len(g.Get(keys[i%1000]).Name()) },
		"Lookup": func() { i++; _, _ = g.Lookup(keys[i%1000]) },
		"Do": func() {
			i++
			mdlSink, _ = g.Do(ctx, keys[i%1000], func(context.Context) (int, error) { return x, nil })
		},
		"Do, retry and fallback": func() {
			i++
			mdlSink, _ = rich.Do(ctx, keys[i%1000], func(context.Context) (int, error) { return x, nil })
		},
		"Try, retry and fallback": func() {
			i++
			mdlSink = rich.Get(keys[i%1000]).Try(ctx, func(context.Context) (int, error) { return x, nil }).Value
		},
	} {
		t.Run(name, func(t *testing.T) { mdlAllocs(t, 0, f) })
	}
}

// A success pays nothing for what would have been done about a failure.
func TestAllocsRetryAndFallback(t *testing.T) {
	ctx, x := context.Background(), 7
	budget := newBudget(t, 0.1, 10, time.Hour)
	fallback := breaker.WithFallback("f", func(context.Context, error) (int, error) { return x, nil })
	for name, opts := range map[string][]breaker.Option{
		"retry":              {breaker.WithRetry(breaker.MaxRetries(3))},
		"retry and fallback": {breaker.WithRetry(breaker.MaxRetries(3)), fallback},
		"all fallbacks": {fallback, breaker.WithFallbackValue(1), breaker.WithFailover("b", func(context.Context) (int, error) { return x, nil }),
			breaker.WithRetry(breaker.MaxRetries(3))},
		"MaxElapsed":      {breaker.WithRetry(breaker.MaxRetries(3), breaker.MaxElapsed(time.Hour))},
		"budget":          {breaker.WithRetry(breaker.MaxRetries(3), breaker.WithBudget(budget))},
		"last good":       {breaker.WithLastGood[int](time.Hour, oneKey)},
		"WithResult":      {fallback, breaker.WithResult(func(int, error) breaker.Outcome { return breaker.Success })},
		"DoOr's own test": {},
	} {
		b := breaker.Must(breaker.New[int]("alloc", opts...))
		for way, f := range map[string]func(){
			"Do":  func() { mdlSink, _ = b.Do(ctx, func(context.Context) (int, error) { return x, nil }) },
			"Try": func() { mdlSink = b.Try(ctx, func(context.Context) (int, error) { return x, nil }).Value },
			"DoOr": func() {
				mdlSink, _ = b.DoOr(ctx, func(context.Context) (int, error) { return x, nil }, func(context.Context, error) (int, error) { return x, nil })
			},
		} {
			t.Run(name+", "+way, func(t *testing.T) { mdlAllocs(t, 0, f) })
		}
	}
	t.Run("rejected, with a fallback", func(t *testing.T) {
		b := breaker.Must(breaker.New[int]("alloc", breaker.WithMode(breaker.ForcedOpen), breaker.WithFallbackValue(1)))
		mdlAllocs(t, 2, func() { mdlSink, _ = b.Do(ctx, func(context.Context) (int, error) { return x, nil }) })
	})
	t.Run("Retry", func(t *testing.T) {
		p := breaker.Must(breaker.NewRetryPolicy(breaker.MaxRetries(3)))
		mdlAllocs(t, 0, func() {
			mdlSink, _ = breaker.Retry(ctx, p, func(context.Context) (int, error) { return x, nil })
		})
	})
}

// A group stays within its bound, and removes no open circuit for that.
func TestGroupIsBoundedAndKeepsOpenCircuits(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		g := group(w, breaker.MaxKeys(10), breaker.IdleAfter(time.Second), breaker.WithOpenTimeout(24*time.Hour))
		failTimes(w, g.Get("down"), 3)
		for i := range 50 {
			fillGroup(w, g, fmt.Sprint(i, "-"), 20)
			w.At(w.Elapsed() + time.Minute)
			require.LessOrEqual(w, g.Len(), 10)
		}
		_, err := g.Do(w.Context(), "down", answering(0, nil))
		require.ErrorIs(w, err, breaker.ErrOpen)
	})
}

// Callers who ask for a new key at once share one circuit: their failures are counted together.
func TestGroupCountsCallersOfAKeyTogether(t *testing.T) {
	breakertest.Guard(t, breakertest.Patience, func() {
		for range 50 {
			g := breaker.Must(breaker.NewGroup[int](breaker.WithFailureThreshold(16)))
			var all sync.WaitGroup
			for range 16 {
				all.Go(func() {
					_, err := g.Do(context.Background(), "host", answering(0, breakertest.ErrBoom))
					assert.Equal(t, breakertest.ErrBoom, err)
				})
			}
			all.Wait()
			require.Equal(t, breaker.Open, g.Get("host").State())
		}
	})
}

// The function that configures keys may look up another key.
func TestGroupPerKeyMayLookUp(t *testing.T) {
	breakertest.Guard(t, breakertest.Patience, func() {
		var g *breaker.Group[int]
		g = breaker.Must(breaker.NewGroup[int](breaker.PerKey(func(key string) []breaker.Option {
			if key == "a" {
				g.Get("b").Circuit().Trip(nil)
			}
			return nil
		})))
		require.Equal(t, breaker.Closed, g.Get("a").State())
		require.Equal(t, breaker.Open, g.Get("b").State())
	})
}
