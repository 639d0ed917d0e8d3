package pool_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/pool"
)

// field is a pool of numbered members with weights, some of them open.
type field struct {
	*rig
	strategy pool.Strategy
	weight   map[string]int
	out      map[string]bool
	order    []string // those that are there
}

func newField(t *testing.T, s pool.Strategy, weights []int) *field {
	f := &field{strategy: s, weight: map[string]int{}, out: map[string]bool{}}
	members := make([]pool.Member[string], len(weights))
	for i, w := range weights {
		members[i] = f.member(i, w)
	}
	f.rig = newRig(t, s, members, pool.WithLimit(0), pool.WithBreaker(breaker.WithOpenTimeout(time.Hour)))
	return f
}

func (f *field) member(i, weight int) pool.Member[string] {
	name := fmt.Sprint(i)
	f.weight[name] = max(1, weight)
	if f.strategy != pool.WeightedRoundRobin {
		f.weight[name] = 1
	}
	f.order = append(f.order, name)
	return pool.Member[string]{Name: name, Value: name, Weight: weight}
}

func (f *field) set(name string, out bool) {
	f.out[name] = out
	if out {
		f.open(name)
		return
	}
	f.p.Circuit(name).Reset()
}

// ready is the members in rotation, and the sum of their weights.
func (f *field) ready() (all []string, sum int) {
	for _, n := range f.order {
		if !f.out[n] {
			all = append(all, n)
			sum += f.weight[n]
		}
	}
	return all, sum
}

var rotating = []pool.Strategy{pool.RoundRobin, pool.WeightedRoundRobin, pool.Shuffle, pool.LeastBusy}

// Whatever the weights, and whoever is open: in any run of turns each has its share, to within one round.
func TestFairness(t *testing.T) {
	guard(t, func() {
		rapid.Check(t, func(rt *rapid.T) {
			s := rapid.SampledFrom(rotating).Draw(rt, "strategy")
			f := newField(t, s, rapid.SliceOfN(rapid.IntRange(0, 20), 1, 12).Draw(rt, "weights"))
			for range rapid.IntRange(1, 6).Draw(rt, "changes") {
				for _, n := range f.order {
					f.set(n, rapid.IntRange(0, 2).Draw(rt, "open "+n) == 0)
				}
				all, sum := f.ready()
				if len(all) == 0 {
					continue
				}
				picks := rapid.IntRange(1, 4*sum).Draw(rt, "picks")
				by := count(f.good(picks))
				for _, n := range all {
					share := float64(picks) * float64(f.weight[n]) / float64(sum)
					round := float64(f.weight[n])
					if s == pool.Shuffle {
						round++ // the run may begin and end within a round
					}
					if got := float64(by[n]); math.Abs(got-share) > round+1e-9 {
						rt.Fatalf("%v: %s (weight %d of %d) was called %v times of %d: %v", s, n, f.weight[n], sum, got, picks, by)
					}
				}
			}
		})
	})
}

// From the start, whole rounds are exact.
func TestWholeRoundsAreExact(t *testing.T) {
	guard(t, func() {
		rapid.Check(t, func(rt *rapid.T) {
			s := rapid.SampledFrom(rotating).Draw(rt, "strategy")
			f := newField(t, s, rapid.SliceOfN(rapid.IntRange(0, 9), 1, 10).Draw(rt, "weights"))
			for i := range len(f.order) - 1 {
				f.set(f.order[i], rapid.IntRange(0, 3).Draw(rt, "open") == 0)
			}
			all, sum := f.ready()
			for range 3 {
				by := count(f.good(sum))
				for _, n := range all {
					if by[n] != f.weight[n] {
						rt.Fatalf("%v: %s with weight %d: %v", s, n, f.weight[n], by)
					}
				}
			}
		})
	})
}

// The turns of the weighted strategy are spread: no member is further than one turn from its share, nor ever was, where two
// weights differ; with more, further than two.
func TestWeightedTurnsAreSpread(t *testing.T) {
	guard(t, func() {
		rapid.Check(t, func(rt *rapid.T) {
			f := newField(t, pool.WeightedRoundRobin, rapid.SliceOfN(rapid.IntRange(1, 20), 2, 8).Draw(rt, "weights"))
			_, sum := f.ready()
			by := map[string]int{}
			for k := 1; k <= 2*sum; k++ {
				by[f.good(1)[0]]++
				for _, n := range f.order {
					most := 1.0
					if len(f.order) > 2 {
						most = 2
					}
					if d := math.Abs(float64(by[n]) - float64(k*f.weight[n])/float64(sum)); d >= most {
						rt.Fatalf("after %d: %s is off by %v: %v", k, n, d, by)
					}
				}
			}
		})
	})
}

// Weights that differ by much more than the members are many: the heavy one is out, the light ones share alike.
func TestAHeavyMemberThatIsOutStarvesNobody(t *testing.T) {
	guard(t, func() {
		f := newField(t, pool.WeightedRoundRobin, []int{1_000_000, 1, 1, 2})
		assert.Equal(t, map[string]int{"0": 1000}, count(f.good(1000)))
		f.set("0", true)
		by := count(f.good(4000))
		assert.InDelta(t, 1000, by["1"], 10)
		assert.InDelta(t, 1000, by["2"], 10)
		assert.InDelta(t, 2000, by["3"], 20)
		f.set("0", false)
		assert.Greater(t, count(f.good(1000))["0"], 900)
	})
}

// Members come, go, open and close: whoever stays in rotation has its turn within a bounded number of calls, and nobody
// who is not there or not in rotation is called.
func TestNobodyStarves(t *testing.T) {
	guard(t, func() {
		rapid.Check(t, func(rt *rapid.T) {
			s := rapid.SampledFrom(rotating).Draw(rt, "strategy")
			f := newField(t, s, rapid.SliceOfN(rapid.IntRange(0, 5), 2, 8).Draw(rt, "weights"))
			next := len(f.order)
			waits := map[string]int{}
			for range rapid.IntRange(20, 200).Draw(rt, "steps") {
				switch what := rapid.IntRange(0, 9).Draw(rt, "step"); {
				case what == 0 && len(f.order) < 10:
					require.NoError(rt, f.p.Add(f.member(next, rapid.IntRange(0, 5).Draw(rt, "weight"))))
					next++
				case what == 1 && len(f.order) > 2:
					at := rapid.IntRange(0, len(f.order)-1).Draw(rt, "gone")
					if !f.p.Remove(f.order[at]) {
						rt.Fatalf("%s was there", f.order[at])
					}
					f.order = slices.Delete(f.order, at, at+1)
				case what == 2:
					n := rapid.SampledFrom(f.order).Draw(rt, "which")
					f.set(n, !f.out[n])
				}
				ready, _ := f.ready()
				v, err := f.do()
				if len(ready) == 0 {
					require.ErrorIs(rt, err, breaker.ErrOpen)
					clear(waits)
					continue
				}
				require.NoError(rt, err)
				if !slices.Contains(ready, v) {
					rt.Fatalf("%s was called; in rotation are %v", v, ready)
				}
				for _, n := range ready {
					waits[n]++
				}
				waits[v] = 0
				for n, w := range waits {
					if !slices.Contains(ready, n) {
						delete(waits, n)
					} else if w > 120 { // two rounds of ten members with weight 5, and the changes
						rt.Fatalf("%v: %s has waited for %d calls", s, n, w)
					}
				}
			}
		})
	})
}

func TestMovingOnTakesTurnsLikeAnybody(t *testing.T) {
	r := newRig(t, pool.RoundRobin, names("a", "b", "c"), pool.WithBreaker(breaker.WithFailureThreshold(1000)))
	r.fail["a"] = errBoom
	by := count(r.good(300))
	assert.Equal(t, map[string]int{"b": 150, "c": 150}, by, "the failing one's neighbour does not get its share")
}

func TestFailoverOrder(t *testing.T) {
	r := newRig(t, pool.Failover, []pool.Member[string]{
		{Name: "low", Priority: -1}, {Name: "a1", Priority: 5}, {Name: "zero"}, {Name: "a2", Priority: 5}, {Name: "top", Priority: 9}})
	require.NoError(t, r.p.Add(pool.Member[string]{Name: "a3", Value: "a3", Priority: 5}))
	var got []string
	for {
		v, err := r.do()
		if err != nil {
			break
		}
		got = append(got, v)
		r.open(v)
	}
	assert.Equal(t, []string{"top", "a1", "a2", "a3", "zero", "low"}, got, "equals in the order given")
}

func TestRotationGoesOnAcrossChanges(t *testing.T) {
	t.Run("round-robin", func(t *testing.T) {
		r := newRig(t, pool.RoundRobin, names("a", "b", "c", "d"))
		assert.Equal(t, "ab", strings.Join(r.good(2), ""))
		require.True(t, r.p.Remove("a"))
		assert.Equal(t, "c", r.good(1)[0])
		require.True(t, r.p.Remove("d"))
		assert.Equal(t, "bcb", strings.Join(r.good(3), ""))
		require.NoError(t, r.p.Add(pool.Member[string]{Name: "e", Value: "e"}))
		assert.Equal(t, "cebce", strings.Join(r.good(5), ""))
	})
	t.Run("weighted", func(t *testing.T) {
		r := newRig(t, pool.WeightedRoundRobin, []pool.Member[string]{{Name: "a", Weight: 9}, {Name: "b", Weight: 1}, {Name: "x", Weight: 1}})
		n := 0
		for i := range 110 { // a change after each call must not start the round anew
			n += count(r.good(1))["b"]
			require.True(t, r.p.Remove([]string{"x", "y"}[i%2]))
			name := []string{"y", "x"}[i%2]
			require.NoError(t, r.p.Add(pool.Member[string]{Name: name, Value: name, Weight: 1}))
		}
		assert.InDelta(t, 10, n, 3)
	})
	t.Run("shuffle", func(t *testing.T) {
		for range 50 {
			r := newRig(t, pool.Shuffle, names("a", "b", "c", "d"))
			round := r.good(2)
			gone := round[0]
			require.True(t, r.p.Remove(gone))
			require.NoError(t, r.p.Add(pool.Member[string]{Name: "e", Value: "e"}))
			round = append(round, r.good(3)...)
			assert.Len(t, count(round), 5, "the round goes on, with the new one in it: %v", round)
		}
	})
}

func TestShuffleUsesTheGivenChance(t *testing.T) {
	deal := func(f func() float64) string {
		r := newRig(t, pool.Shuffle, names("a", "b", "c", "d"), pool.WithRand(f))
		return strings.Join(r.good(12), "")
	}
	assert.Equal(t, "abcdabcdabcd", deal(func() float64 { return 0 }))
	for _, wrong := range []float64{-1, 1, 2, math.NaN(), math.Inf(1)} {
		assert.Equal(t, "abcdabcdabcd", deal(func() float64 { return wrong }), "what is no number from [0, 1) is 0")
	}
	seeded := func() string { return deal(rand.New(rand.NewPCG(1, 2)).Float64) }
	assert.Equal(t, seeded(), seeded())
}

func TestShuffleIsEven(t *testing.T) {
	r := newRig(t, pool.Shuffle, names("a", "b", "c"), pool.WithRand(rand.New(rand.NewPCG(1, 2)).Float64), pool.WithLimit(0))
	orders := map[string]int{}
	for range 6000 {
		orders[strings.Join(r.good(3), "")]++
	}
	for order, n := range orders {
		assert.InDelta(t, 1000, n, 150, order)
	}
}

func TestP01FailoverSkipsAnOpenMember(t *testing.T) {
	guard(t, func() {
		r := newRig(t, pool.Failover, []pool.Member[string]{{Name: "b", Priority: 1}, {Name: "a", Priority: 2}}, r0)
		assert.Equal(t, map[string]int{"a": 10}, count(r.good(10)))
		r.open("a")
		assert.Equal(t, map[string]int{"b": 10}, count(r.good(10)))
		assert.Zero(t, r.totals("a").Rejected, "a member that is passed over has rejected no call")
	})
}

func TestP02RoundRobinLeavesOutAnOpenMember(t *testing.T) {
	guard(t, func() {
		r := newRig(t, pool.RoundRobin, names("a", "b", "c"), r0)
		assert.Equal(t, []string{"a", "b", "c", "a", "b", "c"}, r.good(6))
		r.open("b")
		assert.Equal(t, []string{"a", "c", "a", "c"}, r.good(4))
		assert.Zero(t, r.totals("b").Rejected)
	})
}

func TestP03WeightedRoundRobin(t *testing.T) {
	guard(t, func() {
		r := newRig(t, pool.WeightedRoundRobin, []pool.Member[string]{{Name: "a", Weight: 3}, {Name: "b"}}, r0)
		assert.Equal(t, []string{"a", "a", "b", "a"}, r.good(4))
		r.open("a")
		assert.Equal(t, []string{"b", "b", "b", "b"}, r.good(4))
		r.p.Circuit("a").Reset()
		assert.Equal(t, map[string]int{"a": 3, "b": 1}, count(r.good(4)))
		assert.Equal(t, map[string]int{"a": 300, "b": 100}, count(r.good(400)))
	})
	guard(t, func() {
		r := newRig(t, pool.WeightedRoundRobin, []pool.Member[string]{{Name: "a", Weight: 5}, {Name: "b", Weight: 1}, {Name: "c", Weight: 1}})
		assert.Equal(t, "aabacaa", strings.Join(r.good(7), ""), "spread evenly")
	})
}

func TestP04ShuffleDealsEachOncePerRound(t *testing.T) {
	guard(t, func() {
		r := newRig(t, pool.Shuffle, names("a", "b", "c"), r0)
		orders := map[string]int{}
		for range 600 {
			round := r.good(3)
			assert.Equal(t, map[string]int{"a": 1, "b": 1, "c": 1}, count(round))
			orders[strings.Join(round, "")]++
		}
		assert.Len(t, orders, 6, "every order comes up")
		r.open("b")
		for range 50 {
			assert.Equal(t, map[string]int{"a": 1, "c": 1}, count(r.good(2)))
		}
	})
}

// More than 320 members take one allocation more.
func TestAThousandMembers(t *testing.T) {
	for _, s := range strategies {
		p := many(t, s, 1000, true)
		seen := map[int]bool{}
		for range 2000 {
			v, err := pool.Do(t.Context(), p, func(_ context.Context, v int) (int, error) { return v, nil })
			require.NoError(t, err)
			assert.NotZero(t, v%3)
			seen[v] = true
		}
		if s == pool.Failover {
			assert.Len(t, seen, 1)
		} else {
			assert.Len(t, seen, 666)
		}
		for _, c := range p.Circuits() {
			c.Trip(nil)
		}
		_, err := pool.Do(t.Context(), p, func(_ context.Context, v int) (int, error) { return v, nil })
		require.Error(t, err)
	}
}

// What members were owed while a heavy one was there does not bind those that are there without it.
func TestWeightedSharesAfterAHeavyMemberHasGone(t *testing.T) {
	for _, heavy := range []int{100, 1000, 1_000_000} {
		for _, calls := range []int{0, 1, 49, 50, 51, 500} {
			t.Run(fmt.Sprintf("%d, after %d calls", heavy, calls), func(t *testing.T) {
				r := newRig(t, pool.WeightedRoundRobin, []pool.Member[string]{{Name: "a", Weight: 1}, {Name: "z", Weight: heavy}})
				r.good(calls)
				require.True(t, r.p.Remove("z"))
				require.NoError(t, r.p.Add(pool.Member[string]{Name: "c", Value: "c", Weight: 1}))
				assert.Equal(t, map[string]int{"a": 200, "c": 200}, count(r.good(400)))

				r = newRig(t, pool.WeightedRoundRobin, []pool.Member[string]{{Name: "a", Weight: heavy}, {Name: "b"}, {Name: "c"}})
				r.good(calls)
				require.True(t, r.p.Remove("a"))
				assert.LessOrEqual(t, longestRun(r.good(100)), 2, "equals take turns")
			})
		}
	}
}

// longestRun is how many equal ones there are in a row at most.
func longestRun(all []string) (longest int) {
	run := 0
	for i := range all {
		if i > 0 && all[i] != all[i-1] {
			run = 0
		}
		run++
		longest = max(longest, run)
	}
	return longest
}

func TestALowerTierIsUsedWhileNoneAboveIsReady(t *testing.T) {
	for _, s := range strategies {
		r := newRig(t, s, []pool.Member[string]{{Name: "low"}, {Name: "a", Priority: 2}, {Name: "lower", Priority: -1}, {Name: "b", Priority: 2}}, r0)
		top := map[string]int{"a": 6, "b": 6}
		if s == pool.Failover {
			top = map[string]int{"a": 12}
		}
		assert.Equal(t, top, count(r.good(12)), "%v", s)
		r.open("a")
		assert.Equal(t, map[string]int{"b": 12}, count(r.good(12)), "%v", s)
		r.open("b")
		assert.Equal(t, map[string]int{"low": 12}, count(r.good(12)), "%v", s)
		r.open("low")
		assert.Equal(t, map[string]int{"lower": 12}, count(r.good(12)), "%v", s)
		require.NoError(t, r.p.Add(pool.Member[string]{Name: "between", Value: "between", Priority: 1}))
		assert.Equal(t, map[string]int{"between": 12}, count(r.good(12)), "%v", s)
		r.clk.Add(10 * time.Second)
		by := count(r.good(12))
		assert.Equal(t, 12, by["a"]+by["b"], "%v: those above are back, one by one as probes", s)
	}
}

func TestAFailureMovesOnWithinATierFirst(t *testing.T) {
	for _, s := range strategies {
		r := newRig(t, s, []pool.Member[string]{{Name: "low"}, {Name: "a", Priority: 1}, {Name: "b", Priority: 1}, {Name: "c", Priority: 1}},
			pool.WithBreaker(breaker.WithFailureThreshold(1000)))
		for _, n := range []string{"a", "b", "c"} {
			r.fail[n] = errBoom
		}
		for range 20 {
			assert.Equal(t, []string{"low"}, r.good(1), "%v", s)
			called := r.called()
			require.Len(t, called, 4, "%v", s)
			assert.Equal(t, "low", called[3], "%v: %v", s, called)
		}
	}
}

func TestLeastBusy(t *testing.T) {
	r := newRig(t, pool.LeastBusy, names("a", "b", "c"), r0)
	assert.Equal(t, []string{"a", "b", "c", "a"}, r.good(4), "equals take turns")
	g := r.gate()
	assert.Equal(t, map[string]int{"a": 2, "b": 2, "c": 2}, count(g.start(6)))
	by, _ := g.finish()
	require.Len(t, by, 6)

	g = r.gate()
	busy := g.start(2)
	free := map[string]int{"a": 9, "b": 9, "c": 9}
	delete(free, busy[0])
	delete(free, busy[1])
	assert.Equal(t, free, count(r.good(9)), "%v have a call in flight each", busy)
	r.fail["a"], r.fail["b"], r.fail["c"] = errBoom, errBoom, errBoom
	_, err := r.do()
	require.ErrorIs(t, err, errBoom)
	assert.Panics(t, func() {
		_, _ = pool.Do(t.Context(), r.p, func(context.Context, string) (int, error) { panic(errBoom) })
	})
	clear(r.fail)
	g.finish()
	assert.Equal(t, map[string]int{"a": 4, "b": 4, "c": 4}, count(r.good(12)), "failures and panics are not in flight any more")
	for _, n := range []string{"d", "e"} {
		require.NoError(t, r.p.Add(pool.Member[string]{Name: n, Value: n}))
	}
	r.open("b", "c")
	assert.Equal(t, map[string]int{"a": 4, "d": 4, "e": 4}, count(r.good(12)), "an open member's turn goes to no neighbour in particular")
}
