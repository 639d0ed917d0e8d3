package breaker_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/breakertest"
	"github.com/breakerkit/breaker/internal/testenv"
)

// keyModel is where a key is, and what is known of its circuit, as group_table.go says; building is over before a call
// returns.
type keyModel struct {
	place        keyPlace
	held         bool // by the user
	open, forced bool
}

type keyPlace string

const (
	absent keyPlace = "absent" // or collected
	kept   keyPlace = "kept"
	away   keyPlace = "away"
)

// keyOps is what may happen to a key of a group with room for one, and what follows. fresh says that its circuit is another
// one than before.
var keyOps = map[string]func(k keyModel) (next keyModel, fresh bool){
	"get": func(k keyModel) (keyModel, bool) {
		fresh := k.place == absent
		k.place, k.held = kept, true
		return k, fresh
	},
	"ask for another key": func(k keyModel) (keyModel, bool) {
		if k.place == kept && !k.open && !k.forced {
			k.place = away
			if !k.held {
				k.place = absent
			}
		}
		return k, false
	},
	"drop": func(k keyModel) (keyModel, bool) {
		k.held = false
		if k.place == away {
			k.place = absent
		}
		return k, false
	},
	"open": func(k keyModel) (keyModel, bool) {
		if k.held {
			k.open, k.place = true, kept
		}
		return k, false
	},
	"force": func(k keyModel) (keyModel, bool) {
		if k.held {
			k.forced, k.place = true, kept
		}
		return k, false
	},
	"ease": func(k keyModel) (keyModel, bool) {
		if k.held {
			k.open, k.forced = false, false
		}
		return k, false
	},
	"configure": func(k keyModel) (keyModel, bool) { return k, false },
}

// keyWorld is a group with such a key.
type keyWorld struct {
	t     require.TestingT
	g     *breaker.Group[int]
	held  *breaker.Breaker[int]
	calls uint64 // that the circuit must have counted, by which it is known
	limit int
	model keyModel
}

func newKeyWorld(t require.TestingT) *keyWorld {
	return &keyWorld{t: t, limit: 5, model: keyModel{place: absent}, g: breaker.Must(breaker.NewGroup[int](breaker.MaxKeys(1), breaker.WithFailureThreshold(5)))}
}

// do has the group and the model do the same.
func (w *keyWorld) do(op string) {
	next, fresh := keyOps[op](w.model)
	switch op {
	case "get":
		w.held = w.g.Get("k")
		if fresh {
			w.calls = 0
		}
		require.Equal(w.t, w.calls, w.held.Snapshot().Totals.Calls, "whether it is another circuit")
		w.calls++
		_, _ = w.held.Do(context.Background(), answering(0, nil))
		if w.model.open || w.model.forced {
			w.calls--
		}
	case "ask for another key":
		w.g.Get("another")
		w.collect()
	case "drop":
		w.held = nil
		w.collect()
	case "configure":
		w.limit = 5 + (w.limit+1)%5
		require.NoError(w.t, w.g.Configure(breaker.WithFailureThreshold(w.limit)))
	default:
		if w.held != nil {
			map[string]func(*breaker.Circuit){
				"open":  func(c *breaker.Circuit) { c.Trip(nil) },
				"force": func(c *breaker.Circuit) { c.SetMode(breaker.ForcedOpen) },
				"ease":  func(c *breaker.Circuit) { c.SetMode(breaker.Auto); c.Reset() },
			}[op](w.held.Circuit())
		}
	}
	if next.place == absent {
		next.open, next.forced = false, false
	}
	w.model = next
	w.check()
}

func (w *keyWorld) collect() {
	if w.held == nil {
		runtime.GC()
		runtime.GC()
	}
}

// check compares the group with the model.
func (w *keyWorld) check() {
	b, ok := w.g.Lookup("k")
	require.Equal(w.t, w.model.place == kept, ok, "%+v", w.model)
	require.LessOrEqual(w.t, w.g.Len(), 1)
	require.Len(w.t, keysOf(w.g), w.g.Len())
	if !ok {
		return
	}
	n := b.Snapshot()
	require.Equal(w.t, w.model.open, n.State == breaker.Open, "%+v", w.model)
	require.Equal(w.t, w.model.forced, n.Mode == breaker.ForcedOpen, "%+v", w.model)
	require.Equal(w.t, w.calls, n.Totals.Calls)
	require.Equal(w.t, w.limit, b.Circuit().Config().FailureThreshold, "what was configured, wherever it was")
	if w.held != nil {
		require.Same(w.t, w.held, b)
	}
}

// Every operation in every state that a key can be in, and then a long walk by chance.
func TestGroupKeyModel(t *testing.T) {
	breakertest.Guard(t, breakertest.Patience, func() {
		names := slices.Sorted(maps.Keys(keyOps))
		paths := map[keyModel][]string{{place: absent}: nil}
		edges := 0
		for queue := []keyModel{{place: absent}}; len(queue) > 0; queue = queue[1:] {
			for _, op := range names {
				w := newKeyWorld(t)
				for _, before := range paths[queue[0]] {
					w.do(before)
				}
				require.Equal(t, queue[0], w.model)
				w.do(op)
				edges++
				if _, known := paths[w.model]; !known {
					paths[w.model] = append(slices.Clone(paths[queue[0]]), op)
					queue = append(queue, w.model)
				}
			}
		}
		require.Equal(t, 10, len(paths), "absent; kept, held or not, open or not, forced or not; away: %v", slices.Collect(maps.Keys(paths)))
		require.Equal(t, len(paths)*len(names), edges)

		rng := rand.New(rand.NewPCG(1, 2))
		w := newKeyWorld(t)
		for range 400 {
			w.do(names[rng.IntN(len(names))])
		}
	})
}

// What is open or forced is never lost, however it was evicted, opened, forced, let go of and collected, while others
// fill the group, look at it and configure it.
func TestStressGroupKeyPlaces(t *testing.T) {
	breakertest.Guard(t, breakertest.Patience, func() {
		rounds := 150
		if testenv.Small() {
			rounds = 60
		}
		g := breaker.Must(breaker.NewGroup[int](breaker.MaxKeys(24), breaker.IdleAfter(time.Millisecond), breaker.WithFailureThreshold(3), breaker.WithOpenTimeout(time.Hour)))
		var owners, others errgroup.Group
		done := make(chan struct{})
		for i := range 4 {
			owners.Go(func() error { return ownKey(g, fmt.Sprint("own-", i), rounds) })
		}
		for range 3 {
			others.Go(func() error {
				for {
					select {
					case <-done:
						return nil
					default:
					}
					if err := crowd(g); err != nil {
						return err
					}
				}
			})
		}
		require.NoError(t, owners.Wait())
		close(done)
		require.NoError(t, others.Wait())
		require.Len(t, keysOf(g), g.Len())
	})
}

// ownKey opens or forces the circuit of a key that nobody else uses, wherever the key is by then, lets go of it, and
// looks for it.
func ownKey(g *breaker.Group[int], key string, rounds int) error {
	rng := rand.New(rand.NewPCG(rand.Uint64(), 1))
	for i := range rounds {
		mode := breaker.Mode(rng.IntN(3)) // Auto stands for open
		func() {
			b := g.Get(key)
			for range rng.IntN(200) { // the others evict it meanwhile, or not
				runtime.Gosched()
			}
			if mode == breaker.Auto {
				b.Circuit().Trip(breakertest.ErrBoom)
			} else {
				b.Circuit().SetMode(mode)
			}
		}()
		if rng.IntN(3) == 0 {
			runtime.GC()
		}
		n := g.Get(key).Snapshot()
		if n.Mode != mode || mode == breaker.Auto && n.State != breaker.Open {
			return fmt.Errorf("round %d of %s: %v is %v, %v", i, key, mode, n.Mode, n.State)
		}
		c := g.Get(key).Circuit()
		c.SetMode(breaker.Auto)
		c.Reset()
	}
	return nil
}

// crowd is what others do to a group.
func crowd(g *breaker.Group[int]) error {
	key := fmt.Sprint("key-", rand.IntN(100))
	switch rand.IntN(30) {
	case 0:
		return g.Configure(breaker.WithFailureThreshold(3 + rand.IntN(3)))
	case 1:
		for k, b := range g.All() {
			if b.Name() != k {
				return fmt.Errorf("%q is at %q", b.Name(), k)
			}
		}
	case 2:
		if n := g.Len(); n > 24 {
			return fmt.Errorf("%d keys", n)
		}
	case 3:
		if a, b := g.Get(key), g.Get(key); a != b {
			return fmt.Errorf("%q has two circuits", key)
		}
	default:
		_, err := g.Do(context.Background(), key, answering(7, nil))
		return err
	}
	return nil
}

// All of a group's methods at once, with more keys than there is room for. An open circuit is never lost.
func TestStressGroup(t *testing.T) {
	breakertest.Guard(t, breakertest.Patience, func() {
		const limit = 64
		rounds := 4000
		if testenv.Small() {
			rounds = 800
		}
		var over atomic.Int64
		g := breaker.Must(breaker.NewGroup[int](breaker.MaxKeys(limit), breaker.IdleAfter(time.Millisecond), breaker.WithFailureThreshold(3), breaker.WithOpenTimeout(time.Hour),
			breaker.WithHooks(breaker.Hooks{Overflow: func(string) { over.Add(1) }}),
			breaker.PerKey(func(key string) []breaker.Option {
				if len(key)%2 == 0 {
					return []breaker.Option{breaker.WithSuccessThreshold(3)}
				}
				return nil
			})))
		var open []*breaker.Breaker[int]
		for i := range 8 {
			b := g.Get(fmt.Sprint("open-", i))
			b.Circuit().Trip(breakertest.ErrBoom)
			open = append(open, b)
		}
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				rng := rand.New(rand.NewPCG(rand.Uint64(), 1))
				for range rounds {
					key := fmt.Sprint("key-", rng.IntN(300))
					switch rng.IntN(20) {
					case 0:
						assert.LessOrEqual(t, g.Len(), limit)
					case 1:
						_, _ = g.Lookup(key)
					case 2:
						n := 0
						for k, b := range g.All() {
							n++
							if !assert.Equal(t, k, b.Name()) {
								return
							}
						}
						assert.LessOrEqual(t, n, limit)
					case 3:
						assert.NoError(t, g.Configure(breaker.WithFailureThreshold(3+rng.IntN(3))))
					case 4:
						a, b := g.Get(key), g.Get(key)
						assert.Same(t, a, b)
					default:
						v, err := g.Do(context.Background(), key, answering(7, nil))
						assert.NoError(t, err)
						assert.Equal(t, 7, v)
					}
				}
			})
		}
		all.Wait()
		for i, b := range open {
			got, ok := g.Lookup(fmt.Sprint("open-", i))
			require.True(t, ok)
			require.Same(t, b, got)
			require.Equal(t, breaker.Open, got.State())
		}
		require.Zero(t, over.Load(), "there was room to be had all the time")
		require.LessOrEqual(t, g.Len(), limit)
		require.Equal(t, len(keysOf(g)), g.Len())
	})
}

// A million keys go through a group of a few thousand, and the open ones among them stay.
func TestStressGroupOfManyKeys(t *testing.T) {
	breakertest.Guard(t, 2*breakertest.Patience, func() {
		keys, limit, opened := testenv.Size(30_000, 200_000, 1_000_000), 10_000, 1000
		if testenv.Small() {
			limit, opened = 1000, 100
		}
		g := breaker.Must(breaker.NewGroup[int](breaker.MaxKeys(limit), breaker.WithFailureThreshold(1), breaker.WithOpenTimeout(time.Hour),
			breaker.WithHooks(breaker.Hooks{Overflow: func(key string) { t.Error(key) }})))
		ctx := context.Background()
		for i := range keys {
			err := breakertest.ErrBoom
			if i%(keys/opened) != 0 {
				err = nil
			}
			if _, got := g.Do(ctx, fmt.Sprint("host-", i, ".test"), answering(i, err)); got != err {
				t.Fatal(got)
			}
		}
		require.Equal(t, limit, g.Len())
		for i := 0; i < keys; i += keys / opened {
			b, ok := g.Lookup(fmt.Sprint("host-", i, ".test"))
			if !ok || b.State() != breaker.Open {
				t.Fatal(i, ok)
			}
		}
	})
}

// Full of open circuits, or of circuits with failures, however many, a group takes microseconds for a new key.
func TestStressGroupThatIsFull(t *testing.T) {
	if testenv.Small() {
		t.Skip("it measures")
	}
	for _, limit := range []int{10_000, 100_000} {
		for name, prepare := range map[string]func(*breaker.Breaker[int]){
			"open":    func(b *breaker.Breaker[int]) { b.Circuit().Trip(nil) },
			"failing": func(b *breaker.Breaker[int]) { _, _ = b.Do(context.Background(), answering(0, breakertest.ErrBoom)) },
		} {
			t.Run(fmt.Sprintf("%d %s", limit, name), func(t *testing.T) {
				breakertest.Guard(t, breakertest.Patience, func() {
					g := breaker.Must(breaker.NewGroup[int](breaker.MaxKeys(limit)))
					for i := range limit {
						prepare(g.Get(fmt.Sprint(i)))
					}
					const more = 200
					best := time.Hour // of several, since others use the machine
					for round := range 10 {
						start := time.Now()
						for i := range more {
							prepare(g.Get(fmt.Sprint(round, "-", i)))
						}
						best = min(best, time.Since(start)/more)
					}
					t.Logf("%v for a new key", best)
					require.Less(t, best, 100*time.Microsecond)
					require.Equal(t, limit, g.Len())
				})
			})
		}
	}
}
