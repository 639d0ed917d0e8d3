package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/breakertest"
	"github.com/breakerkit/breaker/store"
)

// K02, K04, K06, K10, K15, K17, K29 where every call goes to another circuit.
func TestShareTakingTurns(t *testing.T) {
	for n := 2; n <= 3; n++ {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			i := 0
			nodes := spreadFleet(w, n)
			next := func() *breakertest.Rig { i++; return nodes[i%n] }
			stale := []*breakertest.Gate{next().Gate(), next().Gate(), next().Gate()}
			for range 4 {
				next().Fails(1)
				w.Add(time.Hour)
			}
			next().Succeeds(1)
			for range 4 {
				next().Fails(1)
			}
			next().FailsWith(context.Canceled) // of the dependency's: a failure
			allIn(nodes, breaker.Open)
			at := w.Elapsed()
			for _, g := range stale {
				g.Finish(breakertest.ErrBoom)
			}
			w.At(at + 30*time.Second - 1)
			next().Rejected()
			w.At(at + 30*time.Second)
			allIn(nodes, breaker.HalfOpen)
			hung := []*breakertest.Gate{next().Gate(), next().Gate()}
			for range n {
				require.ErrorIs(w, next().Rejected(), breaker.ErrTooManyProbes)
			}
			w.At(at + 60*time.Second)
			next().Succeeds(1)
			hung[0].Finish(breakertest.ErrBoom) // too old to count
			allIn(nodes, breaker.HalfOpen)
			hung[1].Finish(nil) // still counts
			allIn(nodes, breaker.Closed)
			for _, r := range nodes {
				steps := []string{"closed>open", "open>half-open", "half-open>closed"}
				for j, e := range r.Events.List() {
					require.Equal(w, steps[j], fmt.Sprintf("%v>%v", e.From, e.To))
					require.Equal(w, e.Epoch, nodes[0].Events.List()[j].Epoch)
				}
				require.Len(w, r.Steps(), 3)
				r.Idle()
			}
		})
	}
}

// S03, K25, BC-119: however many fail at once, on however many circuits, the circuit opens once.
func TestShareOneTransitionPerCrossing(t *testing.T) {
	for name, opts := range map[string][]breaker.Option{
		"run":     nil,
		"windows": {breaker.WithTrip(breaker.FailureRate(0.5, 5, breaker.Last(time.Minute)), breaker.FailureCount(5, time.Minute))},
		"user":    {breaker.WithTrip(breaker.TripWhen(breaker.Last(time.Minute), func(n breaker.Counts) bool { return n.Failures >= 5 }))},
	} {
		t.Run(name, func(t *testing.T) {
			breakertest.BothClocks(t, func(w *breakertest.World) {
				nodes := spreadFleet(w, 4, opts...)
				var gates []*breakertest.Gate
				for i := range 200 {
					gates = append(gates, nodes[i%4].Gate())
				}
				var all sync.WaitGroup
				for _, g := range gates {
					all.Go(func() { g.Finish(breakertest.ErrBoom) })
				}
				all.Wait()
				allIn(nodes, breaker.Open)
				own := 0
				for _, r := range nodes {
					require.Len(w, r.Steps(), 1)
					if !r.Events.List()[0].Remote {
						own++
					}
				}
				require.Equal(w, 1, own)
			})
		})
	}
}

// Every policy sees what all have counted.
func TestSharePolicies(t *testing.T) {
	for name, tc := range map[string]struct {
		opts  []breaker.Option
		calls string // f: failure, s: success, l: slow; alternating between the circuits
		open  bool
	}{
		"rate reached":        {[]breaker.Option{breaker.WithTrip(breaker.FailureRate(0.5, 10, breaker.Last(10*time.Second)))}, "sssssfffff", true},
		"rate not reached":    {[]breaker.Option{breaker.WithTrip(breaker.FailureRate(0.5, 10, breaker.Last(10*time.Second)))}, "ssssssffff", false},
		"too few for a rate":  {[]breaker.Option{breaker.WithTrip(breaker.FailureRate(0.5, 10, breaker.Last(10*time.Second)))}, "fffffffff", false},
		"a success fills it":  {[]breaker.Option{breaker.WithTrip(breaker.FailureRate(0.5, 10, breaker.Last(10*time.Second)))}, "fffffffffs", true},
		"count":               {[]breaker.Option{breaker.WithTrip(breaker.FailureCount(4, 10*time.Second))}, "fsfsfssf", true},
		"count not reached":   {[]breaker.Option{breaker.WithTrip(breaker.FailureCount(4, 10*time.Second))}, "fsfsfss", false},
		"slow":                {[]breaker.Option{breaker.WithTrip(breaker.SlowCallRate(time.Second, 0.5, 4, breaker.Last(time.Minute)))}, "slsl", true},
		"not slow enough":     {[]breaker.Option{breaker.WithTrip(breaker.SlowCallRate(time.Second, 0.5, 4, breaker.Last(time.Minute)))}, "slss", false},
		"windowed run":        {[]breaker.Option{breaker.WithFailureThreshold(3), breaker.WithFailureWindow(10 * time.Second)}, "ffsfff", true},
		"windowed run broken": {[]breaker.Option{breaker.WithFailureThreshold(3), breaker.WithFailureWindow(10 * time.Second)}, "ffsff", false},
	} {
		t.Run(name, func(t *testing.T) {
			breakertest.BothClocks(t, func(w *breakertest.World) {
				nodes := spreadFleet(w, 3, tc.opts...)
				for i, kind := range tc.calls {
					allIn(nodes, breaker.Closed)
					g := nodes[i%3].Gate()
					switch kind {
					case 'l':
						w.Add(time.Second)
						g.Finish(nil)
					case 's':
						g.Finish(nil)
					default:
						g.Finish(breakertest.ErrBoom)
					}
				}
				allIn(nodes, map[bool]breaker.State{true: breaker.Open, false: breaker.Closed}[tc.open])
			})
		})
	}
}

// Modes are each circuit's own.
func TestShareModes(t *testing.T) {
	breakertest.BothClocks(t, func(w *breakertest.World) {
		nodes := spreadFleet(w, 2)
		a, b := nodes[0], nodes[1]
		a.C.SetMode(breaker.ForcedClosed)
		a.Fails(10)
		allIn(nodes, breaker.Closed)
		b.Fails(4)
		allIn(nodes, breaker.Closed) // what a mode let pass is not held against anybody
		b.Fails(1)
		allIn(nodes, breaker.Open)
		a.Succeeds(1)
		b.Rejected()
		a.C.SetMode(breaker.Shadow)
		require.NoError(w, a.Call(nil))
		a.C.SetMode(breaker.ForcedOpen)
		b.C.Reset()
		a.Rejected()
		b.Succeeds(1)
		allIn(nodes, breaker.Closed)
	})
}

// BC-136: many names and goroutines on one store, all at once.
func TestShareHammer(t *testing.T) {
	breakertest.Guard(t, breakertest.Patience, func() {
		m := store.NewMemory()
		var all sync.WaitGroup
		for name := range 10 {
			for range 3 {
				c := breaker.Must(breaker.NewCircuit(fmt.Sprint("c{}:\n\x00", name), breaker.WithStore(m), breaker.WithOpenTimeout(time.Millisecond)))
				for g := range 4 {
					all.Go(func() {
						for i := range 300 {
							switch (i + g) % 23 {
							case 7:
								c.Trip(nil)
							case 11:
								c.Reset()
							case 13:
								c.OfferProbe()
							case 17:
								_ = c.Sync(t.Context())
							case 19:
								_ = c.Snapshot()
							default:
								_ = c.Run(t.Context(), func(context.Context) error {
									if i%3 == 0 {
										return breakertest.ErrBoom
									}
									return nil
								})
							}
						}
						if g == 0 {
							_ = c.Close()
						}
					})
				}
			}
		}
		all.Wait()
	})
}

// One bad node opens alone.
func TestShareMinReporters(t *testing.T) {
	bothHubs(t, func(w *breakertest.World, f *faulty) {
		for _, bad := range []int{1, 2} {
			fl := newFleet(w, f, 3, breaker.WithStore(f, breaker.MinReporters(2)), breaker.WithTrip(breaker.FailureRate(0.5, 10, breaker.Last(time.Minute))), breaker.WithSuccessThreshold(1))
			fl.nodes[0].C.Reset()
			fl.sync()
			for i := range 12 {
				_ = fl.nodes[i%bad].Call(breakertest.ErrBoom)
			}
			w.Add(2 * time.Second)
			if bad == 2 {
				fl.states(breaker.Open)
				fl.nodes[0].C.Reset()
				fl.sync()
				continue
			}
			fl.nodes[0].Is(breaker.Open)
			fl.nodes[1].Is(breaker.Closed)
			fl.nodes[1].Succeeds(5)
			w.Add(2 * time.Second)
			fl.nodes[2].Is(breaker.Closed)
			require.True(w, fl.nodes[0].C.Snapshot().Shared.Alone)
			w.Add(28 * time.Second)
			fl.nodes[0].Succeeds(1)
			w.Add(2 * time.Second)
			fl.states(breaker.Closed)
			require.False(w, fl.nodes[0].C.Snapshot().Shared.Alone)
			for _, r := range fl.nodes {
				_ = r.C.Close()
			}
		}
	})
}

// A view by Over is the same circuit, and closes nothing. WithStore is for construction.
func TestShareViews(t *testing.T) {
	breakertest.BothClocks(t, func(w *breakertest.World) {
		nodes := spreadFleet(w, 2)
		v, err := breaker.Over[string](nodes[0].C, breaker.WithFallbackValue("spare"))
		require.NoError(w, err)
		nodes[1].Fails(4)
		got, err := v.Do(context.Background(), func(context.Context) (string, error) { return "", breakertest.ErrBoom })
		require.NoError(w, err)
		require.Equal(w, "spare", got)
		allIn(nodes, breaker.Open)
		require.Equal(w, breaker.Open, v.State())
		require.Equal(w, nodes[1].C.Snapshot().Epoch, v.Snapshot().Epoch)
		require.NoError(w, v.Close())
		require.NoError(w, nodes[1].C.Sync(context.Background()))
		nodes[1].C.Reset()
		allIn(nodes, breaker.Closed)
		require.False(w, v.Snapshot().Shared.Alone)

		m := store.NewMemory()
		_, err = breaker.Over[string](nodes[0].C, breaker.WithStore(m))
		require.ErrorContains(w, err, "Store: is not an option of Over")
		require.ErrorContains(w, nodes[0].C.Configure(breaker.WithStore(m)), "Store: is not an option of Configure")
		require.ErrorContains(w, nodes[0].C.Configure(breaker.WithTrip(breaker.FailureRate(0.5, 5, breaker.LastCalls(10)))), "LastCalls")
		nodes[1].Fails(5)
		allIn(nodes, breaker.Open)
	})
}

// Two groups on a store have their keys in common.
func TestShareGroups(t *testing.T) {
	breakertest.Injected(t, breakertest.ByDo, func(w *breakertest.World) {
		ctx := context.Background()
		boom := func(context.Context) (int, error) { return 0, breakertest.ErrBoom }
		m := store.NewMemory(store.WithClock(w.Clk))
		var overflow []string
		make := func(max int) *breaker.Group[int] {
			g, err := breaker.NewGroup[int](breaker.WithStore(m), breaker.WithClock(w.Clk), breaker.WithFailureThreshold(3), breaker.MaxKeys(max),
				breaker.PerKey(func(key string) []breaker.Option {
					if key == "own" {
						return []breaker.Option{breaker.WithFailureThreshold(1)}
					}
					return nil
				}),
				breaker.WithHooks(breaker.Hooks{Overflow: func(key string) { overflow = append(overflow, key) }}))
			require.NoError(w, err)
			return g
		}
		g, h := make(10), make(10)
		fail := func(g *breaker.Group[int], key string, n int) {
			for range n {
				_, err := g.Do(ctx, key, boom)
				require.Equal(w, breakertest.ErrBoom, err)
			}
		}
		fail(g, "a", 2)
		fail(h, "b", 2)
		fail(h, "a", 1)
		require.Equal(w, breaker.Open, g.Get("a").State())
		require.Equal(w, breaker.Open, h.Get("a").State())
		require.Equal(w, breaker.Closed, g.Get("b").State())
		fail(g, "own", 1)
		require.Equal(w, breaker.Open, h.Get("own").State())
		require.False(w, h.Get("own").Snapshot().Shared.Foreign)

		// Eviction loses nothing: the ledger knows.
		small := make(1)
		fail(small, "c", 2)
		small.Get("d")
		_, there := small.Lookup("c")
		require.False(w, there)
		require.EqualValues(w, 2, h.Get("c").Snapshot().ConsecutiveFailures)
		fail(h, "c", 1)
		require.Equal(w, breaker.Open, small.Get("c").State())
		require.Empty(w, overflow)
		small.Get("d") // an open one stays
		require.Equal(w, []string{"d"}, overflow)
		_, there = small.Lookup("c")
		require.True(w, there)

		// Configure reaches the shared ones.
		require.NoError(w, g.Configure(breaker.WithFailureThreshold(4)))
		require.NoError(w, h.Configure(breaker.WithFailureThreshold(4)))
		fail(g, "e", 3)
		require.Equal(w, breaker.Closed, h.Get("e").State())
		fail(h, "e", 1)
		require.Equal(w, breaker.Open, g.Get("e").State())

		// A closed group is on its own.
		require.NoError(w, g.Close())
		require.NoError(w, g.Close())
		h.Get("a").Circuit().Reset()
		require.Equal(w, breaker.Open, g.Get("a").State())
		require.True(w, g.Get("a").Snapshot().Shared.Alone)
		fail(g, "new", 4)
		require.Equal(w, breaker.Open, g.Get("new").State())
		require.Equal(w, breaker.Closed, h.Get("new").State())
		require.NoError(w, h.Close())
		require.NoError(w, small.Close())
	})
}

// BC-134: any text is a name, and no two are one.
func TestShareOddNames(t *testing.T) {
	breakertest.Injected(t, breakertest.ByDo, func(w *breakertest.World) {
		m := store.NewMemory(store.WithClock(w.Clk))
		long := strings.Repeat("x", 5000)
		names := []string{"a", "A", "a ", " a", "a:b", "a{b}", "{a}b", "{}", "}{", "a\nb", "a\r\nb", "\x00", "\x00\x00", "é", "e\u0301", "\xff", "\xfe", "\ufffd", "%41", "%2541", "日本", "😀", "*", "?", "[a]", "cb:{a}", "../a", `"a"`, long + "1", long + "2", long}
		circuits := make(map[string][2]*breaker.Circuit)
		for _, name := range names {
			var pair [2]*breaker.Circuit
			for i := range pair {
				pair[i] = breaker.Must(breaker.NewCircuit(name, breaker.WithStore(m), breaker.WithClock(w.Clk), breaker.WithFailureThreshold(len(names)+1)))
			}
			circuits[name] = pair
		}
		for i, name := range names { // each has a number of failures of its own
			for range i + 1 {
				require.Equal(w, breakertest.ErrBoom, circuits[name][i%2].Run(context.Background(), func(context.Context) error { return breakertest.ErrBoom }))
			}
		}
		for i, name := range names {
			for _, c := range circuits[name] {
				require.NoError(w, c.Sync(context.Background()))
				require.EqualValues(w, i+1, c.Snapshot().Counts.ConsecutiveFailures, "%.20q", name)
			}
		}
		for i, name := range names {
			circuits[name][0].Trip(nil)
			for j, other := range names {
				require.Equal(w, map[bool]breaker.State{true: breaker.Open}[j <= i], circuits[other][1].State(), "%.20q %.20q", name, other)
			}
		}
		for _, pair := range circuits {
			_, _ = pair[0].Close(), pair[1].Close()
		}
	})
}

// The bulkhead is each process's own.
func TestShareMaxInFlight(t *testing.T) {
	breakertest.BothClocks(t, func(w *breakertest.World) {
		nodes := spreadFleet(w, 2, breaker.WithMaxInFlight(2))
		var gates []*breakertest.Gate
		for _, r := range nodes {
			gates = append(gates, r.Gate(), r.Gate())
			require.ErrorIs(w, r.Call(nil), breaker.ErrTooManyInFlight)
			require.EqualValues(w, 2, r.C.Snapshot().InFlight)
		}
		gates[0].Finish(nil)
		nodes[0].Succeeds(1)
		require.ErrorIs(w, nodes[1].Call(nil), breaker.ErrTooManyInFlight)
		for _, g := range gates[1:] {
			g.Finish(nil)
		}
		for _, r := range nodes {
			r.Idle()
		}
	})
}

func openByFailures(r *breakertest.Rig) {
	for range 5 {
		r.Fails(1)
	}
	_ = r.C.Sync(context.Background())
}

func TestShareConstructingIsNoEvent(t *testing.T) {
	bothHubs(t, func(w *breakertest.World, f *faulty) {
		fl := newFleet(w, f, 1)
		openByFailures(fl.nodes[0])
		fl.sync()
		r := fl.join()
		rest(fl.World)
		r.Is(breaker.Open)
		require.Empty(w, r.Steps())
	})
}

// What Snapshot says of the sharing means what it says, and survives JSON.
func TestShareSnapshotShared(t *testing.T) {
	bothHubs(t, func(w *breakertest.World, f *faulty) {
		fl := newFleet(w, f, 2, breaker.WithTrip(breaker.FailureRate(0.9, 1000, breaker.Last(time.Hour))))
		a, b := fl.nodes[0], fl.nodes[1]
		shared := func() breaker.StoreStatus {
			w.Helper()
			s := a.C.Snapshot()
			text, err := json.Marshal(s)
			require.NoError(w, err)
			var back breaker.Snapshot
			require.NoError(w, json.Unmarshal(text, &back))
			again, err := json.Marshal(back)
			require.NoError(w, err)
			require.JSONEq(w, string(text), string(again))
			require.True(w, s.Shared.Exchanged.Equal(back.Shared.Exchanged))
			want, got := *s.Shared, *back.Shared
			want.Exchanged, got.Exchanged = time.Time{}, time.Time{}
			require.Equal(w, want, got)
			for _, key := range []string{"epoch", "alone", "connected", "pending", "lost", "foreign"} {
				require.Contains(w, string(text[strings.Index(string(text), `"shared":`):]), `"`+key+`":`)
			}
			return *s.Shared
		}
		s := shared()
		require.Equal(w, breaker.StoreStatus{Connected: true, Exchanged: s.Exchanged}, s)
		require.True(w, s.Exchanged.Equal(w.Start), "%v", s.Exchanged)

		w.Add(time.Second)
		a.Fails(1)
		fl.sync()
		s = shared()
		require.NotZero(w, s.Epoch)
		require.Equal(w, s.Epoch, a.C.Snapshot().Epoch)
		require.True(w, s.Exchanged.Equal(w.Now()))
		require.Zero(w, s.Pending)

		f.all(fault{before: errStore})
		require.Error(w, a.C.Sync(context.Background()))
		exchanged := w.Now()
		w.Add(10 * time.Second)
		a.Fails(2)
		a.Succeeds(3)
		s = shared()
		require.False(w, s.Connected)
		require.False(w, s.Alone, "it is where the ledger was")
		require.Contains(w, s.LastError, errStore.Error())
		require.True(w, s.Exchanged.Equal(exchanged))
		require.EqualValues(w, 5, s.Pending+s.Lost)
		lost := s.Lost
		f.heal()
		w.Add(3 * time.Second)
		fl.sync()
		s = shared()
		require.True(w, s.Connected)
		require.Empty(w, s.LastError)
		require.Zero(w, s.Pending)
		require.Equal(w, lost, s.Lost, "it never falls")
		require.Equal(w, 6-lost, a.C.Snapshot().Counts.Failures+a.C.Snapshot().Counts.Successes)
		require.Equal(w, a.C.Snapshot().Counts, b.C.Snapshot().Counts)
		require.NoError(w, a.C.Close())
		require.True(w, shared().Alone)
	})
}

// BC-136: 50 names, 50 goroutines each; nothing of it is left.
func TestShareManyNames(t *testing.T) {
	for _, immediate := range []bool{true, false} {
		t.Run(fmt.Sprintf("immediate %v", immediate), func(t *testing.T) {
			breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
				f := newFaulty(w, immediate)
				before := breakertest.InBubble()
				var calls atomic.Int64
				var left []weak.Pointer[breaker.Circuit]
				func() {
					var circuits []*breaker.Circuit
					var all sync.WaitGroup
					for name := range 50 {
						c := breaker.Must(breaker.NewCircuit(fmt.Sprint("name ", name), breaker.WithStore(f), breaker.WithOpenTimeout(20*time.Millisecond)))
						circuits, left = append(circuits, c), append(left, weak.Make(c))
						for g := range 50 {
							all.Go(func() {
								for i := range 4 {
									calls.Add(1)
									switch (name + g + i) % 10 {
									case 0:
										c.Trip(nil)
									case 1:
										c.Reset()
									case 2:
										ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
										_ = c.Run(ctx, func(context.Context) error { return breakertest.ErrBoom })
										cancel()
									case 3:
										if p, err := c.Acquire(context.Background()); err == nil {
											p.Done(breakertest.ErrBoom)
										}
									case 4:
										_ = c.Sync(context.Background())
									case 5:
										_ = c.Snapshot()
									default:
										_ = c.Run(context.Background(), func(context.Context) error { return nil })
									}
								}
							})
						}
					}
					all.Wait()
					require.EqualValues(w, 10_000, calls.Load())
					w.Add(time.Second)
					for _, c := range circuits {
						require.NoError(w, c.Sync(context.Background()))
						s := c.Snapshot()
						require.Zero(w, s.InFlight)
						require.Zero(w, s.Shared.Lost)
						require.Zero(w, s.Shared.Pending)
						require.False(w, s.Shared.Alone)
						require.NoError(w, c.Close())
					}
				}()
				synctest.Wait()
				require.Zero(w, f.watches)
				require.Equal(w, before, breakertest.InBubble())
				for range 20 {
					runtime.GC()
				}
				kept := 0
				for _, p := range left {
					if p.Value() != nil {
						kept++
					}
				}
				require.LessOrEqual(w, kept, 1, "circuits that something holds")
			})
		})
	}
}
