package store

import (
	"math"
	"sync"
	"time"

	"github.com/breakerkit/breaker"
)

// instant is a point in time: nanoseconds since the Memory was made.
type instant int64

// plus returns the instant d later. It stops at the last instant that there is.
func (t instant) plus(d time.Duration) instant {
	if d > 0 && int64(t) > math.MaxInt64-int64(d) {
		return math.MaxInt64
	}
	return t + instant(d)
}

// minus returns the instant d earlier. It stops at the first instant that there is.
func (t instant) minus(d time.Duration) instant {
	if d > 0 && int64(t) < math.MinInt64+int64(d) {
		return math.MinInt64
	}
	return t - instant(d)
}

// since returns how long ago an earlier instant was.
func (t instant) since(earlier instant) time.Duration { return time.Duration(t - earlier) }

// timeline turns a clock's readings into instants.
type timeline struct {
	clock breaker.Clock // nil: the time package
	base  time.Time

	// An injected clock may tell wall time only, and be set back. Instants that were read before stay valid: offset is the
	// sum of all steps back, and is added to everything that is read later.
	mu     sync.Mutex
	offset instant
	last   instant
}

func newTimeline(clock breaker.Clock) *timeline {
	if clock == nil {
		return &timeline{base: time.Now()}
	}
	return &timeline{clock: clock, base: clock.Now()}
}

// now reads the clock. It must be called without a lock, since an injected clock is a user's code.
func (t *timeline) now() instant {
	if t.clock == nil {
		return instant(time.Since(t.base))
	}
	return t.injectedNow()
}

func (t *timeline) injectedNow() (now instant) {
	t.mu.Lock()
	now = t.last
	t.mu.Unlock()
	defer func() { _ = recover() }() // a clock that panics is taken to stand still
	reading := t.clock.Now()

	t.mu.Lock()
	defer t.mu.Unlock()
	at := instant(reading.Sub(t.base)).plus(time.Duration(t.offset))
	if at < now { // read later, yet earlier: the clock was set back
		t.offset += now - at
		at = now
	}
	t.last = max(t.last, at)
	return at
}

// milliseconds returns an instant in milliseconds since 1970.
func (t *timeline) milliseconds(now instant) uint64 {
	return uint64(max(0, t.base.Add(time.Duration(now)).UnixMilli()))
}
