package breaker

import (
	"fmt"
	"time"
)

// Window is the stretch of the past that a rate looks at. The zero value is no window.
type Window struct {
	calls int
	last  time.Duration
}

// LastCalls is a window over the last n finished calls. Ignored calls take no place in it. It costs 2n bits.
func LastCalls(n int) Window { return Window{calls: n} }

// Last is a window over the last d of time. Up to 128 instants it is exact; beyond that calls are gathered into slices
// of d/64, each as old as its oldest call, so that it costs at most 11 KiB at any rate of calls.
//
// With the default clock, and a stream of more than about 16,000 successes per window, the clock is read for one success
// in 16 only. A success is then filed up to d/200 late; and where the stream ends, the last ones, up to 15 for each
// counter in use (one without contention), may be taken to be as old as those before them. Failures are always exact.
func Last(d time.Duration) Window { return Window{last: d} }

// String gives the constructor's call.
func (w Window) String() string {
	if w.calls != 0 {
		return fmt.Sprintf("LastCalls(%d)", w.calls)
	}
	return fmt.Sprintf("Last(%v)", w.last)
}
