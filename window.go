package breaker

import (
	"fmt"
	"time"
)

// Window is the part of the past that a rate is taken of: see Last and LastCalls. The zero value is no window.
type Window struct {
	calls int
	last  time.Duration
}

// LastCalls is a window over the last n finished calls, without the Ignored ones. Its Counts.Ignored is how many of the last
// n finished calls of every outcome were Ignored. It needs 2n bits of memory, and n more once a call has been Ignored.
func LastCalls(n int) Window { return Window{calls: n} }

// Last is a window over the last d of time. It is exact while it holds calls of at most 128 different instants. Beyond
// that, calls are gathered into slices of d/64, each as old as its oldest call, so that it needs at most 11 KiB of
// memory at any rate of calls.
//
// With the default clock, and more than about 16,000 successes in the window, only one success in 16 reads the clock. A
// success may then leave the window up to d/200 late. When the calls stop, the last successes, up to 15 for each
// counter in use (one without contention), may leave it early, together with those before them. Failures are always
// exact.
func Last(d time.Duration) Window { return Window{last: d} }

// String is the call that makes the window, such as "Last(10s)".
func (w Window) String() string {
	if w.calls != 0 {
		return fmt.Sprintf("LastCalls(%d)", w.calls)
	}
	return fmt.Sprintf("Last(%v)", w.last)
}
