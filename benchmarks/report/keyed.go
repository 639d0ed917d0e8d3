package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/breakerkit/breaker"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/sony/gobreaker/v2"
)

// The names of the rows and sizes with a breaker for each key.
const (
	groupRow       = "breaker, Group"
	gobreakerKeyed = "gobreaker in a sync.Map"
	permitsKeyed   = "failsafe-go permits in a sync.Map"
)

// keyedRows look a key's breaker up and make a successful call through it. The peers have no groups; a sync.Map is what
// they are usually kept in, without a bound on the keys.
func keyedRows() []row {
	var rows []row
	for _, k := range []struct {
		work work
		keys int
	}{{oneKey, 1}, {thousandKeys, 1_000}, {manyKeys, 100_000}} {
		rows = append(rows,
			row{work: k.work, name: groupRow, setup: func() op { return groupCalls(newKeys(k.keys)) }},
			row{work: k.work, name: gobreakerKeyed, vs: groupRow, setup: func() op { return keyedExecuteCalls(newKeys(k.keys)) }},
			row{work: k.work, name: permitsKeyed, vs: groupRow, setup: func() op { return keyedPermitCalls(newKeys(k.keys)) }},
		)
	}
	return rows
}

// keyedSizes are what all that a key needs weighs, its string aside: breaker, lookup, and what calls leave behind.
var keyedSizes = []size{
	{name: groupRow, instances: 100_000, bank: func(keys []string) any { return newGroup(keys) }},
	{name: gobreakerKeyed, instances: 100_000, bank: func(keys []string) any { return newGobreakers(keys) }},
	{name: permitsKeyed, instances: 100_000, bank: func(keys []string) any { return newFailsafes(keys) }},
}

// newKeys makes keys as long as hosts are.
func newKeys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("shard-%06d.internal", i)
	}
	return keys
}

// shuffled are the keys in the order in which they get their breakers. It is another one than that of the calls, so
// that the breakers of calls that follow each other do not lie next to each other.
func shuffled(keys []string) []string {
	order := make([]string, len(keys))
	for i, at := range rand.New(rand.NewPCG(1, 2)).Perm(len(keys)) {
		order[i] = keys[at]
	}
	return order
}

// A walk goes round and round through the keys, where the one before it has ended.
type walk struct {
	keys  []string
	ended atomic.Uint64
}

// begin is where n more calls begin.
func (w *walk) begin(n int) int {
	return int((w.ended.Add(uint64(n)) - uint64(n)) % uint64(len(w.keys)))
}

// after is the place after at. It is small enough to be inlined.
func (w *walk) after(at int) int {
	if at++; at < len(w.keys) {
		return at
	}
	return 0
}

// newGroup makes a group in which every key has been called once.
func newGroup(keys []string) *breaker.Group[int] {
	g := breaker.Must(breaker.NewGroup[int](breaker.MaxKeys(len(keys))))
	for _, key := range shuffled(keys) {
		_, _ = g.Do(context.Background(), key, func(context.Context) (int, error) { return 0, nil })
	}
	return g
}

func groupCalls(keys []string) op {
	g := newGroup(keys)
	w := &walk{keys: keys}
	return func(n int) (errs int) {
		ctx := context.Background()
		fails := failing(never)
		at := w.begin(n)
		for i := range n {
			end := fails.next()
			if _, err := g.Do(ctx, keys[at], func(context.Context) (int, error) { return i, end }); err != nil {
				errs++
			}
			at = w.after(at)
		}
		return errs
	}
}

// gobreakers has a breaker for each key.
type gobreakers struct{ byKey sync.Map }

func (g *gobreakers) get(key string) *gobreaker.CircuitBreaker[int] {
	if cb, ok := g.byKey.Load(key); ok {
		return cb.(*gobreaker.CircuitBreaker[int])
	}
	cb, _ := g.byKey.LoadOrStore(key, gobreaker.NewCircuitBreaker[int](gobreaker.Settings{Name: key}))
	return cb.(*gobreaker.CircuitBreaker[int])
}

func newGobreakers(keys []string) *gobreakers {
	var g gobreakers
	for _, key := range shuffled(keys) {
		_, _ = g.get(key).Execute(func() (int, error) { return 0, nil })
	}
	return &g
}

func keyedExecuteCalls(keys []string) op {
	g := newGobreakers(keys)
	w := &walk{keys: keys}
	return func(n int) (errs int) {
		fails := failing(never)
		at := w.begin(n)
		for i := range n {
			end := fails.next()
			if _, err := g.get(keys[at]).Execute(func() (int, error) { return i, end }); err != nil {
				errs++
			}
			at = w.after(at)
		}
		return errs
	}
}

// failsafes has a breaker for each key.
type failsafes struct{ byKey sync.Map }

func (f *failsafes) get(key string) circuitbreaker.CircuitBreaker[int] {
	if cb, ok := f.byKey.Load(key); ok {
		return cb.(circuitbreaker.CircuitBreaker[int])
	}
	cb, _ := f.byKey.LoadOrStore(key, failsafeInARow(5))
	return cb.(circuitbreaker.CircuitBreaker[int])
}

func newFailsafes(keys []string) *failsafes {
	var f failsafes
	for _, key := range shuffled(keys) {
		if cb := f.get(key); cb.TryAcquirePermit() {
			cb.RecordSuccess()
		}
	}
	return &f
}

func keyedPermitCalls(keys []string) op {
	f := newFailsafes(keys)
	w := &walk{keys: keys}
	return func(n int) (errs int) {
		fails := failing(never)
		at := w.begin(n)
		for i := range n {
			end := fails.next()
			cb := f.get(keys[at])
			at = w.after(at)
			if !cb.TryAcquirePermit() {
				errs++
				continue
			}
			if _, err := protected(func() (int, error) { return i, end }); err != nil {
				cb.RecordFailure()
				errs++
				continue
			}
			cb.RecordSuccess()
		}
		return errs
	}
}
