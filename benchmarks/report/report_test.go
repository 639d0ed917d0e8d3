package main

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/store"
)

// Every row must do what its work says, at every number of goroutines; contender.run checks it.
func TestRowsDoTheirWork(t *testing.T) {
	for _, r := range allRows() {
		t.Run(r.work.name+"/"+r.name, func(t *testing.T) {
			for _, threads := range r.goroutines() {
				c := contender{row: r, threads: threads, op: r.setup(), calls: 1000}
				if _, err := c.run(); err != nil {
					t.Errorf("%d goroutines: %v", threads, err)
				}
			}
		})
	}
}

// A misspelt name would be a ratio to nothing.
func TestNamesReferToRows(t *testing.T) {
	known := map[key]bool{}
	for _, r := range allRows() {
		if known[r.key()] {
			t.Errorf("two rows are named %v", r.key())
		}
		known[r.key()] = true
	}
	for _, s := range allSizes() {
		if known[s.key()] {
			t.Errorf("two sizes are named %v", s.key())
		}
		known[s.key()] = true
	}
	for _, r := range allRows() {
		if vs := (key{r.work.name, r.vs}); r.vs != "" && !known[vs] {
			t.Errorf("%v is compared with %v, which is no row", r.key(), vs)
		}
	}
	for _, g := range gates {
		for _, k := range append(g.refs, g.row) {
			if !known[k] {
				t.Errorf("a gate refers to %v, which is no row", k)
			}
		}
	}
}

// The size of one breaker with shared configuration is that of zero values. It is the whole of it only if a used one in a
// group has no more than its place there besides.
func TestSharedSizeIsWhole(t *testing.T) {
	const place = 64
	shared, inGroup := ourSizes[0], keyedSizes[0]
	shared.instances, inGroup.instances = 1<<16, 1<<16
	if one, entry := shared.weigh(), inGroup.weigh(); one < 100 || entry < one || entry > one+place {
		t.Errorf("%s: %.0f bytes, but %s: %.0f", shared.name, one, inGroup.name, entry)
	}
}

// A pool with every third member open has them open, however it calls the others.
func TestPoolsAreAsTheirWorksSay(t *testing.T) {
	for _, w := range poolWorks {
		for _, s := range poolStrategies {
			for _, n := range poolSizes {
				p := newPool(w, s, n)
				poolCalls(p)(2 * n)
				open := 0
				for _, c := range p.Circuits() {
					if c.State() == breaker.Open {
						open++
					}
				}
				want := 0
				if w.name == poolThird.name {
					want = n / 3
				}
				if open != want {
					t.Errorf("%s, %s: %d are open instead of %d", w.name, poolRow(s, n), open, want)
				}
			}
		}
	}
}

// Gates on operations would all hold if nobody counted them.
func TestOperationsOfAStoreAreCounted(t *testing.T) {
	b := ours(breaker.WithFailureThreshold(1), breaker.WithOpenTimeout(time.Hour), breaker.WithStore(&askedStore{store.NewMemory()}))
	before := operations.Load()
	if doCalls(b, 1)(1); operations.Load() == before {
		t.Error("a failure that opens does nothing to the Store")
	}
	if b.Circuit().State() != breaker.Open {
		t.Error("a failure does not open")
	}
	before = operations.Load()
	if doCalls(b, never)(1000); operations.Load() != before {
		t.Errorf("%d operations for 1000 rejections", operations.Load()-before)
	}
}

// What a row stands on is taken away round by round, and only with as many goroutines.
func TestSubtract(t *testing.T) {
	base, on := row{work: httpStub, name: "base"}, row{work: httpStub, name: "on", over: "base"}
	contenders := []contender{
		{row: base, threads: 1, samples: []float64{10, 100, 10}},
		{row: base, threads: 2, samples: []float64{5, 5, 5}},
		{row: on, threads: 1, samples: []float64{13, 103, 14}},
	}
	r := results{base.key(): {allocs: 1}, on.key(): {allocs: 3}}
	subtract(contenders, r)
	if got := contenders[2].samples; !slices.Equal(got, []float64{3, 3, 4}) || r.get(on.key(), allocs) != 2 {
		t.Errorf("%v ns and %v allocations on top", got, r.get(on.key(), allocs))
	}
	if got := contenders[0].samples; !slices.Equal(got, []float64{10, 100, 10}) || r.get(base.key(), allocs) != 1 {
		t.Errorf("the base became %v ns and %v allocations", got, r.get(base.key(), allocs))
	}
}

// Calls in portions, as share makes them, go through all keys in turn.
func TestWalkVisitsEveryKey(t *testing.T) {
	w := walk{keys: newKeys(7)}
	visits := make([]int, len(w.keys))
	for range len(w.keys) {
		const portion = 4
		at := w.begin(portion)
		for range portion {
			visits[at]++
			at = w.after(at)
		}
	}
	for i, n := range visits {
		if n != 4 {
			t.Errorf("key %d was visited %d times instead of 4", i, n)
		}
	}
}

func TestShareRunsEveryCallOnce(t *testing.T) {
	for _, threads := range []int{1, 2, 8} {
		all := func(n int) int { return n }
		if _, got := share(all, 1001, threads, 10); got != 1001 {
			t.Errorf("%d goroutines ran %d calls instead of 1001", threads, got)
		}
	}
}

func TestJudge(t *testing.T) {
	a, b, c := key{"w", "a"}, key{"w", "b"}, key{"w", "c"}
	r := results{a: {one: 10, allocs: 1}, b: {one: 100}, c: {one: 90}}
	for _, tt := range []struct {
		gate  gate
		bound float64
		holds bool
	}{
		{gate{must, a, one, 1.0 / 9, []key{b, c}}, 10, true},
		{gate{must, a, one, 1.0 / 10, []key{b, c}}, 9, false},
		{gate{must, a, allocs, 1, nil}, 1, true},
		{gate{must, a, allocs, 0, nil}, 0, false},
		{gate{must, a, two, 1000, nil}, 1000, false},
	} {
		v := judge([]gate{tt.gate}, r)[0]
		if math.Abs(v.bound-tt.bound) > 1e-9 || v.holds() != tt.holds {
			t.Errorf("%v: holds %v", v, v.holds())
		}
		if failed := len(failed([]verdict{v})) > 0; failed == tt.holds {
			t.Errorf("%v: failed %v", v, failed)
		}
	}
}

func TestTargetsDoNotFail(t *testing.T) {
	if broken := failed([]verdict{{gate: gate{rank: target}, value: 2, bound: 1}}); len(broken) > 0 {
		t.Errorf("failed: %v", broken)
	}
}

func TestMedian(t *testing.T) {
	if got := median([]float64{9, 1, 5}); got != 5 {
		t.Errorf("median of three is %v", got)
	}
	if got := median([]float64{9, 1, 5, 3}); got != 4 {
		t.Errorf("median of four is %v", got)
	}
}

func TestDifferencesAroundZero(t *testing.T) {
	for v, want := range map[float64]string{-0.04: "+0.0", 0.04: "+0.0", -0.06: "-0.1", 12.34: "+12.3"} {
		if got := signed(v); got != want {
			t.Errorf("%v is written as %s", v, got)
		}
	}
	if got := nanoseconds(-0.04); got != "0.0" {
		t.Errorf("-0.04 is written as %s", got)
	}
}

func TestEmbed(t *testing.T) {
	got, err := embed("a\n"+beginMark+"\nold\n"+endMark+"\nb\n", "new\n")
	if want := "a\n" + beginMark + "\nnew\n" + endMark + "\nb\n"; got != want || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := embed(endMark+beginMark, "new\n"); err == nil {
		t.Error("marks in the wrong order are accepted")
	}
}

// The whole way from measuring to the text, with one row.
func TestMeasureAndPrint(t *testing.T) {
	p := plan{rounds: 2, sample: time.Millisecond}
	rows, sizes := anchorRows[:1], ourSizes[:0]
	r, err := measure(rows, p, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	if ns := r.get(rows[0].key(), one); !(ns > 0) {
		t.Errorf("%v ns", ns)
	}
	if text := tables(rows, sizes, r, p); !strings.Contains(text, plainCall) {
		t.Errorf("no row in:\n%s", text)
	}
}
