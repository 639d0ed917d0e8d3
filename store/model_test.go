package store_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/store"
	"github.com/breakerkit/breaker/store/storetest"
)

// twins is a Memory and a model of each of its ledgers, under one clock.
type twins struct {
	clk    *handClock
	start  time.Time
	m      *store.Memory
	models map[string]storetest.Model
	told   map[string]breaker.Ledger // the last Changed
}

func newTwins() *twins {
	clk := newHandClock()
	w := &twins{clk: clk, start: clk.Now(), m: store.NewMemory(store.WithClock(clk)),
		models: make(map[string]storetest.Model), told: make(map[string]breaker.Ledger)}
	w.m.Watch(w)
	return w
}

func (w *twins) Changed(name string, l breaker.Ledger) { w.told[name] = l }
func (w *twins) Resync()                               {}

func (w *twins) model(name string) storetest.Model {
	if m, ok := w.models[name]; ok {
		return m
	}
	return storetest.NewModel()
}

// do carries an operation out on both.
func (w *twins) do(t require.TestingT, name string, op any) breaker.Ledger {
	at := storetest.Moment{At: w.clk.Now().Sub(w.start), Clock: uint64(w.clk.Now().UnixMilli())}
	_, before := w.model(name).Do(storetest.Read(name), at)
	model, want := w.model(name).Do(op, at)
	w.models[name] = model
	delete(w.told, name)
	got, err := storetest.Do(testContext, w.m, op)
	require.NoError(t, err)
	require.Equal(t, want, got, "%+v", op)
	told, ok := w.told[name]
	handedBack := want.State == breaker.HalfOpen && (want.Slots < before.Slots || want.Progress > before.Progress)
	runBegun := want.Counts.ConsecutiveFailures > 0 && (before.Counts.ConsecutiveFailures == 0 || before.Run != want.Run)
	require.Equal(t, want.Epoch != before.Epoch || handedBack || want.Applied && runBegun, ok, "told of %+v: %+v", op, want)
	if ok {
		told.Applied, told.Granted, told.Peak, told.RetryAfter, told.Foreign = got.Applied, got.Granted, got.Peak, got.RetryAfter, got.Foreign
		require.Equal(t, got, told)
	}
	return got
}

var (
	anEpoch  = rapid.SampledFrom([]int64{0, 0, 0, 0, 0, -1, 1, -1000, 5000})
	aTime    = rapid.SampledFrom([]time.Duration{0, 0, 1, 999, time.Millisecond, 999 * time.Millisecond, time.Second, 3 * time.Second, 10*time.Second - 1, 10 * time.Second, 29 * time.Second, time.Minute, time.Hour, 25 * time.Hour, -time.Second})
	aPassing = rapid.OneOf(aTime, rapid.Map(rapid.Int64Range(0, int64(12*time.Second)), func(n int64) time.Duration { return time.Duration(n) }))
	aShape   = rapid.SampledFrom([]breaker.StoreShape{
		{Window: 10 * time.Second, Failures: 3, Reporters: 2, Config: "a"},
		{Window: 10 * time.Second, Failures: 3, Reporters: 2, Config: "a"},
		{Failures: 2, Reporters: 1, Config: "b"},
		{Window: 9_999_999_999, Failures: 5, Config: "c"},
		{Window: 2 * time.Minute, Reporters: 3, Config: "d"},
		{Window: -1, Failures: -1, Reporters: -1},
	})
	aToken = rapid.SampledFrom([]string{"t1", "t2", "t3", "t4", "t5"})
	aCount = rapid.SampledFrom([]uint64{0, 0, 1, 1, 2, 3, 9, 1 << 53, math.MaxUint64})
)

var aBatch = rapid.Custom(func(t *rapid.T) (b breaker.StoreBatch) {
	for range rapid.IntRange(0, 3).Draw(t, "slices") {
		b.Slices = append(b.Slices, breaker.StoreSlice{Age: aPassing.Draw(t, "age"), Successes: aCount.Draw(t, "successes"),
			Failures: aCount.Draw(t, "failures"), Ignored: aCount.Draw(t, "ignored"), Slow: aCount.Draw(t, "slow")})
	}
	b.FailureAges = rapid.SliceOfN(aPassing, 0, 4).Draw(t, "ages")
	b.Head, b.Tail = aCount.Draw(t, "head"), aCount.Draw(t, "tail")
	b.Longest, b.Trailing = aCount.Draw(t, "longest"), aCount.Draw(t, "trailing")
	b.Early = rapid.IntRange(0, 3).Draw(t, "early") == 3
	return b
})

// anOperation draws an operation that fits where the ledger stands, more or less.
func anOperation(t *rapid.T, name string, l breaker.Ledger) any {
	epoch := uint64(max(0, int64(l.Epoch)+anEpoch.Draw(t, "epoch")))
	shape, d, openings := aShape.Draw(t, "shape"), aTime.Draw(t, "duration"), rapid.Uint32Range(0, 9).Draw(t, "openings")
	switch rapid.SampledFrom([]string{"report", "report", "report", "move", "acquire", "acquire", "settle", "settle", "read"}).Draw(t, "operation") {
	case "report":
		node := rapid.SampledFrom([]string{"n1", "n2", "n3", "n4", ""}).Draw(t, "node")
		return breaker.StoreReport{Name: name, Node: node, Epoch: epoch, Shape: shape, Batch: aBatch.Draw(t, "batch")}
	case "move":
		run := rapid.SampledFrom([]uint64{0, 0, l.Run, l.Run + 1}).Draw(t, "run")
		return breaker.StoreMove{Name: name, Shape: shape, From: epoch, Run: run, To: breaker.State(rapid.IntRange(0, 3).Draw(t, "to")), For: d, Openings: openings}
	case "acquire":
		tokens := rapid.SliceOfNDistinct(aToken, 0, 3, rapid.ID[string]).Draw(t, "tokens")
		return breaker.StoreAcquire{Name: name, Shape: shape, Epoch: epoch, Tokens: tokens, Lease: d, Limit: rapid.IntRange(-1, 3).Draw(t, "limit"), Openings: openings}
	case "settle":
		return breaker.StoreVerdict{Name: name, Shape: shape, Epoch: epoch, Token: aToken.Draw(t, "token"), Outcome: breaker.Outcome(rapid.IntRange(0, 3).Draw(t, "outcome")),
			Threshold: rapid.Uint32Range(0, 3).Draw(t, "threshold"), For: d, Openings: openings}
	}
	return storetest.Read(name)
}

func TestMemoryIsTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newTwins()
		known := make(map[string]breaker.Ledger)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			name := fmt.Sprint("n", rapid.IntRange(0, 1).Draw(t, "name"))
			known[name] = w.do(t, name, anOperation(t, name, known[name]))
			if rapid.Bool().Draw(t, "time passes") {
				w.clk.Add(max(0, aPassing.Draw(t, "passing")))
			}
		}
	})
}

// FuzzReport feeds batches of any kind into a ledger in any shape.
func FuzzReport(f *testing.F) {
	f.Add(int64(time.Minute), 5, 2, uint64(0), int64(0), uint64(1), uint64(2), uint64(3), uint64(4), int64(0), int64(1), uint64(1), uint64(1), uint64(1), uint64(1), false, int64(time.Second))
	f.Add(int64(0), 0, 0, uint64(7), int64(-1), uint64(math.MaxUint64), uint64(math.MaxUint64), uint64(0), uint64(0), int64(math.MinInt64), int64(math.MaxInt64), uint64(9), uint64(9), uint64(0), uint64(9), false, int64(time.Hour))
	f.Add(int64(math.MaxInt64), math.MaxInt, -1, uint64(math.MaxUint64), int64(math.MaxInt64), uint64(0), uint64(1), uint64(0), uint64(0), int64(1), int64(0), uint64(0), uint64(0), uint64(0), uint64(0), false, int64(0))
	f.Add(int64(19), 1, 1, uint64(1), int64(3), uint64(0), uint64(1), uint64(0), uint64(0), int64(18), int64(20), uint64(0), uint64(0), uint64(0), uint64(0), false, int64(1))
	f.Fuzz(func(t *testing.T, window int64, failures, reporters int, epoch uint64, age int64, successes, failed, ignored, slow uint64, age1, age2 int64, head, tail, longest, trailing uint64, early bool, passing int64) {
		w := newTwins()
		r := breaker.StoreReport{Name: "n", Node: "a", Epoch: epoch, Shape: breaker.StoreShape{Window: time.Duration(window), Failures: failures, Reporters: reporters}}
		r.Batch = breaker.StoreBatch{
			Slices:      []breaker.StoreSlice{{Age: time.Duration(age), Successes: successes, Failures: failed, Ignored: ignored, Slow: slow}, {Failures: failed}},
			FailureAges: []time.Duration{time.Duration(age1), time.Duration(age2)},
			Head:        head, Tail: tail, Longest: longest, Trailing: trailing, Early: early,
		}
		w.do(t, "n", r)
		w.clk.Add(time.Duration(uint64(passing) % uint64(1000*time.Hour)))
		r.Node = "b"
		w.do(t, "n", r)
		w.do(t, "n", storetest.Read("n"))
	})
}
