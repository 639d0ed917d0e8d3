package main

import (
	"context"
	"fmt"
	"time"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/pool"
)

// The works of a pool: choose a member and call it. No peer has anything like it; one call through one breaker is what
// they are set beside.
var (
	poolClosed  = work{name: "pool, all closed", every: never, calls: 1, goroutines: []int{1, 2}, ownTable: true}
	poolThird   = work{name: "pool, every third open", every: never, calls: 1, goroutines: []int{1}, ownTable: true}
	poolLimited = work{name: "pool, all closed, default limit", every: never, calls: 1, goroutines: []int{1}, ownTable: true}
)

var (
	poolStrategies = []pool.Strategy{pool.Failover, pool.RoundRobin, pool.WeightedRoundRobin, pool.Shuffle}
	poolWorks      = []work{poolClosed, poolThird, poolLimited}
	poolSizes      = []int{3, 30, 300}
)

func poolRow(s pool.Strategy, members int) string {
	return fmt.Sprintf("breaker, %v, %d members", s, members)
}

// poolRows are every strategy with every number of members at every work.
func poolRows() []row {
	var rows []row
	for _, w := range poolWorks {
		for _, s := range poolStrategies {
			for _, n := range poolSizes {
				rows = append(rows, row{work: w, name: poolRow(s, n), setup: func() op { return poolCalls(newPool(w, s, n)) }})
			}
		}
	}
	return rows
}

// newPool makes a pool whose members differ in what its strategy goes by.
func newPool(w work, s pool.Strategy, n int) *pool.Pool[int] {
	members := make([]pool.Member[int], n)
	for i := range members {
		members[i] = pool.Member[int]{Name: fmt.Sprintf("member-%03d", i), Value: i, Weight: 1 + i%5}
	}
	opts := []pool.Option{pool.WithBreaker(breaker.WithOpenTimeout(time.Hour))}
	if w.name == poolLimited.name {
		opts = append(opts, pool.WithLimit(5*time.Second))
	}
	p := breaker.Must(pool.New(s, members, opts...))
	if w.name == poolThird.name {
		for i := 0; i < n; i += 3 {
			p.Circuit(members[i].Name).Trip(errDown)
		}
	}
	return p
}

func poolCalls(p *pool.Pool[int]) op {
	return func(n int) (errs int) {
		ctx := context.Background()
		fails := failing(never)
		for i := range n {
			end := fails.next()
			if _, err := pool.Do(ctx, p, func(_ context.Context, member int) (int, error) { return i + member, end }); err != nil {
				errs++
			}
		}
		return errs
	}
}

// poolGates are those of poolRows. WeightedRoundRobin looks at every member's weight: it alone takes longer the more there
// are, which the table shows and no gate bounds.
func poolGates() []gate {
	var gates []gate
	for _, w := range poolWorks {
		most := 0.0
		if w.name == poolLimited.name {
			most = 1 // the context that carries the limit
		}
		for _, s := range poolStrategies {
			for _, n := range poolSizes {
				gates = append(gates, gate{must, key{w.name, poolRow(s, n)}, allocs, most, nil})
			}
		}
	}
	for _, s := range poolStrategies {
		gates = append(gates, gate{must, key{poolClosed.name, poolRow(s, poolSizes[0])}, one, 3, []key{{success.name, consecutive}}})
	}
	small, large := poolSizes[0], poolSizes[len(poolSizes)-1]
	for _, w := range []work{poolClosed, poolThird} {
		for _, s := range poolStrategies {
			if s != pool.WeightedRoundRobin {
				gates = append(gates, gate{target, key{w.name, poolRow(s, large)}, one, 1.5, []key{{w.name, poolRow(s, small)}}})
			}
		}
	}
	return gates
}

// poolTable has one line for each strategy and work, with all numbers of members.
func poolTable(r results) string {
	t := table{texts: 2}
	t.add("", "", "3 members", "30", "300", "300 / 3", "2 goroutines: 3", "30", "300", "allocations", "3 / one breaker's call")
	call := r.get(key{success.name, consecutive}, one)
	last := ""
	for _, w := range poolWorks {
		for _, s := range poolStrategies {
			what := w.name
			if what == last {
				what = ""
			}
			last = w.name
			at := func(i int) map[metric]float64 { return r[key{w.name, poolRow(s, poolSizes[i])}] }
			cells := []string{what, bold("breaker, " + s.String())}
			for i := range poolSizes {
				cells = append(cells, nanoseconds(at(i)[one]))
			}
			cells = append(cells, times(at(len(poolSizes) - 1)[one]/at(0)[one]))
			most := 0.0
			for i := range poolSizes {
				cells = append(cells, nanoseconds(at(i)[two]))
				most = max(most, at(i)[allocs])
			}
			t.add(append(cells, allocs.format(most), times(at(0)[one]/call))...)
		}
	}
	return t.String()
}
