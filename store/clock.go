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

	// An injected clock may tell wall time only, and be set back or far ahead. Instants that were read before stay valid:
	// base moves with every step back, and with what of a step ahead is more than maxStep. wall moves with the latter only,
	// so that what milliseconds returns never falls.
	mu   sync.Mutex
	base time.Time
	wall time.Time
	last instant
}

// maxStep is the longest step ahead that counts as it is: a longer one may not fit the nanoseconds of an instant, or leave
// no room for what comes after it.
const maxStep = 50 * 365 * 24 * time.Hour

func newTimeline(clock breaker.Clock) *timeline {
	if clock == nil {
		now := time.Now()
		return &timeline{base: now, wall: now}
	}
	now := clock.Now()
	return &timeline{clock: clock, base: now, wall: now}
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
	base := t.base
	now = t.last
	t.mu.Unlock()
	defer func() { _ = recover() }() // a clock that panics is taken to stand still
	reading := t.clock.Now()

	t.mu.Lock()
	defer t.mu.Unlock()
	if t.base != base { // another goroutine has met a step, of which it is not known whether it came before this reading
		return t.last
	}
	at := instant(reading.Sub(base))
	switch latest := now.plus(maxStep); {
	case at < now: // read later, yet earlier: the clock was set back
		at = now
		t.base = reading.Add(-time.Duration(at))
	case at > latest:
		at = latest
		t.base = reading.Add(-time.Duration(at))
		if t.base.After(t.wall) {
			t.wall = t.base
		}
	}
	t.last = max(t.last, at)
	return at
}

// milliseconds returns an instant in milliseconds since 1970.
func (t *timeline) milliseconds(now instant) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return uint64(max(0, t.wall.Add(time.Duration(now)).UnixMilli()))
}
