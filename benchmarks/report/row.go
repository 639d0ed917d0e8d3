package main

import (
	"errors"
	"math"
)

// errDown is how a failing call fails.
var errDown = errors.New("dependency is down")

// An op makes n calls and returns how many of them gave an error. Several goroutines may run one op at the same time.
type op func(n int) (errs int)

// A work is what is asked of a breaker; the rows of one work can be compared with each other.
type work struct {
	name       string
	every      int     // every n-th call fails
	errs       float64 // the share of calls that must give an error; a row with another share does not measure what it says
	calls      int     // how many calls make one unit, whose time is reported
	goroutines []int   // how many goroutines share the breaker, one measurement each
	apart      bool    // measured in rounds of its own: its breakers fill so much memory that they would slow every collection
	ownTable   bool    // its rows stand in a table of its own, not in the main one
}

// crowd is how many goroutines meet where many calls fail at once.
const crowd = 8

// never is the every of a work without failures.
const never = math.MaxInt

var (
	anchors  = work{name: "anchor", every: never, calls: 1, goroutines: []int{1, 2}}
	success  = work{name: "success, closed", every: never, calls: 1, goroutines: []int{1, 2}}
	tenth    = work{name: "10 % failures", every: 10, errs: 0.1, calls: 1, goroutines: []int{1, 2}}
	half     = work{name: "50 % failures", every: 2, errs: 0.5, calls: 1, goroutines: []int{1, crowd}, ownTable: true}
	growth   = work{name: "10 % failures, by window", every: 10, errs: 0.1, calls: 1, goroutines: []int{1, 2}}
	rejected = work{name: "rejected, open", every: never, errs: 1, calls: 1, goroutines: []int{1, 2}}
	cycle    = work{name: "trip + probe + close", every: 2, errs: 0.5, calls: 2, goroutines: []int{1}} // two goroutines would cut into each other's
	probing  = work{name: "rejected, probe out", every: never, errs: 1, calls: 1, goroutines: []int{1, 2}}
	twoStep  = work{name: "two-step, success", every: never, calls: 1, goroutines: []int{1, 2}}

	policies     = work{name: "retry + breaker + fallback, success", every: never, calls: 1, goroutines: []int{1, 2}}
	oneRetry     = work{name: "one retry, not delayed", every: never, calls: 1, goroutines: []int{1, 2}}
	oneKey       = work{name: "keyed, 1 key", every: never, calls: 1, goroutines: []int{1, 2}}
	thousandKeys = work{name: "keyed, 1,000 keys", every: never, calls: 1, goroutines: []int{1, 2}}
	manyKeys     = work{name: "keyed, 100,000 keys", every: never, calls: 1, goroutines: []int{1, 2}, apart: true}

	// These have sizes, not rows.
	idle  = work{name: "idle"}
	keyed = work{name: "one key of 100,000"}
)

// A key names a row, or a size, in gates and results.
type key struct{ work, name string }

// A row is one line of the table: one breaker at one work.
type row struct {
	work  work
	name  string
	vs    string    // the row of ours, of the same work, that a peer's is compared with; empty for ours and for anchors
	over  string    // the row of the same work that this one's numbers are on top of; empty for most
	many  bool      // also measured with the goroutines of the contention table
	setup func() op // makes a fresh breaker, in the state that the work asks for, and the op that uses it
}

func (r row) key() key { return key{r.work.name, r.name} }

// crowds are the goroutine counts that the contention table adds to a row's own.
var crowds = []int{4, 8}

// goroutines are all the counts that the row is measured with.
func (r row) goroutines() []int {
	if !r.many {
		return r.work.goroutines
	}
	return append(r.work.goroutines[:len(r.work.goroutines):len(r.work.goroutines)], crowds...)
}

// allRows are the rows of the report, anchors first, each work's rows together and ours before the peers'.
func allRows() []row {
	var rows []row
	for _, w := range []work{
		anchors, success, tenth, half, growth, rejected, cycle, probing, twoStep, policies, oneRetry, oneKey, thousandKeys, manyKeys,
		httpStub, httpLoopback, poolClosed, poolThird, poolLimited, storeClosed, storeOpen,
	} {
		for _, source := range [][]row{
			anchorRows, ourRows, gobreakerRows, failsafeRows, otherRows, policyRows, keyedRows(), httpRows, poolRows(), storeRows(),
		} {
			for _, r := range source {
				if r.work.name == w.name {
					rows = append(rows, r)
				}
			}
		}
	}
	return rows
}

// A schedule says which calls fail.
type schedule struct{ every, left int }

func failing(every int) schedule { return schedule{every, every} }

// next is how the coming call ends. It is small enough to be inlined: the loops around it are part of what is measured.
func (s *schedule) next() error {
	s.left--
	if s.left > 0 {
		return nil
	}
	s.left = s.every
	return errDown
}
