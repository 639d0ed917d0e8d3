package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/store"
)

// The works with a Store: what it adds to a call that the same circuit without one admits or rejects.
var (
	storeClosed = work{name: "added by a Store, success", every: never, calls: 1, goroutines: []int{1, 2}, ownTable: true}
	storeOpen   = work{name: "added by a Store, rejected", every: never, errs: 1, calls: 1, goroutines: []int{1, 2}, ownTable: true}
)

// storePolicies are the trip policies of the rows with a Store. Each has a row with it and one without.
var storePolicies = []struct {
	with, without string
	opts          []breaker.Option
}{
	{consecutive, "consecutive, without a Store", nil},
	{timeRate, "time rate, without a Store", []breaker.Option{tripRate}},
}

// storeRows have those without a Store right before those with one.
func storeRows() []row {
	var rows []row
	for _, p := range storePolicies {
		shared := func() []breaker.Option {
			return append(p.opts[:len(p.opts):len(p.opts)], breaker.WithStore(&askedStore{store.NewMemory()}))
		}
		rows = append(rows,
			row{work: storeClosed, name: p.without, setup: func() op { return doCalls(ours(p.opts...), never) }},
			row{work: storeClosed, name: p.with, over: p.without, setup: func() op { return doCalls(ours(shared()...), never) }},
			row{work: storeOpen, name: p.without, setup: func() op { return doCalls(tripped(p.opts...), never) }},
			row{work: storeOpen, name: p.with, over: p.without, setup: func() op { return doCalls(tripped(shared()...), never) }},
		)
	}
	return rows
}

// storeGates are those of storeRows: a Store adds next to nothing, and is not asked. Only a rate needs to be told of
// successes, some of them at a time.
var storeGates = []gate{
	{must, key{storeClosed.name, consecutive}, one, 15, nil},
	{must, key{storeClosed.name, consecutive}, two, 15, nil},
	{must, key{storeOpen.name, consecutive}, one, 15, nil},
	{must, key{storeOpen.name, consecutive}, two, 15, nil},
	{must, key{storeClosed.name, consecutive}, asked, 0, nil},
	{must, key{storeOpen.name, consecutive}, asked, 0, nil},
	{must, key{storeOpen.name, timeRate}, asked, 0, nil},
	{must, key{storeClosed.name, consecutive}, allocs, 0, nil},
	{must, key{storeOpen.name, consecutive}, allocs, 0, nil},
	{target, key{storeClosed.name, timeRate}, one, 15, nil},
	{target, key{storeClosed.name, timeRate}, two, 15, nil},
	{target, key{storeOpen.name, timeRate}, one, 15, nil},
	{target, key{storeOpen.name, timeRate}, two, 15, nil},
}

// tripped is open for longer than the measurements last, whatever its policy.
func tripped(opts ...breaker.Option) *breaker.Breaker[int] {
	b := ours(append(opts, breaker.WithOpenTimeout(time.Hour))...)
	b.Circuit().Trip(errDown)
	return b
}

// operations are all that the Stores of all rows have been asked for. One row runs at a time, and a Memory does nothing
// that it is not asked for.
var operations atomic.Int64

// askedStore counts its operations. All of them are on the path of the call that causes them, as a Memory has it.
type askedStore struct{ *store.Memory }

func (s *askedStore) Report(ctx context.Context, reports []breaker.StoreReport) []breaker.StoreReply {
	operations.Add(1)
	return s.Memory.Report(ctx, reports)
}

func (s *askedStore) Move(ctx context.Context, m breaker.StoreMove) (breaker.Ledger, error) {
	operations.Add(1)
	return s.Memory.Move(ctx, m)
}

func (s *askedStore) Acquire(ctx context.Context, a breaker.StoreAcquire) (breaker.Ledger, error) {
	operations.Add(1)
	return s.Memory.Acquire(ctx, a)
}

func (s *askedStore) Settle(ctx context.Context, v breaker.StoreVerdict) (breaker.Ledger, error) {
	operations.Add(1)
	return s.Memory.Settle(ctx, v)
}

func (s *askedStore) Read(ctx context.Context, names []string) []breaker.StoreReply {
	operations.Add(1)
	return s.Memory.Read(ctx, names)
}

// storeTable sets what a Store adds beside what the call takes without it.
func storeTable(r results) string {
	t := table{texts: 2}
	t.add("", "", "without, 1 goroutine", "added", "without, 2 goroutines", "added", "allocations", "operations in a million calls")
	for _, w := range []work{storeClosed, storeOpen} {
		what := w.name
		for _, p := range storePolicies {
			without, adds := r[key{w.name, p.without}], r[key{w.name, p.with}]
			t.add(what, bold(p.with), nanoseconds(without[one]), signed(adds[one]), nanoseconds(without[two]), signed(adds[two]),
				allocs.format(without[allocs]+adds[allocs]), asked.format(adds[asked]))
			what = ""
		}
	}
	return t.String()
}

// signed is a difference: noise can make it negative.
func signed(v float64) string { return fmt.Sprintf("%+.1f", tenths(v)) }
