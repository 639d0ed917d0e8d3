package breaker

import (
	"context"
	"sync"
	"time"
)

// Clock is a source of time. The clocks of github.com/benbjohnson/clock, github.com/jonboulle/clockwork
// and k8s.io/utils/clock fit as they are. Without one the time package is used, inside a testing/synctest bubble too.
//
// Both methods must be safe for concurrent use. They are never called under a lock. If Now panics, the
// time is taken to be what it returned before. A clock that is set back is taken to have stood still, and one that is set
// ahead by more than 50 years to have been set ahead by 50: what is left of an open period stays as long as it was.
type Clock interface {
	Now() time.Time
	After(time.Duration) <-chan time.Time
}

// maxDuration, 146 years, keeps the sum of an instant and a duration inside an int64 of nanoseconds.
const maxDuration = time.Duration(1 << 62)

// timeline turns a clock's readings into nanoseconds since a base. Configurations without a clock of their own share one
// where they may: see current.
type timeline struct {
	clock Clock // nil: the time package

	// An injected clock may have wall time only, and be set back or far ahead. Instants from before remain valid: base moves
	// with every step back, and with what of a step ahead is more than maxStep. The time package's readings are monotonic
	// and need none of this: base stays, and is read without the lock.
	mu   sync.Mutex
	base time.Time
	last int64
}

// maxStep is the longest step ahead that counts as it is. A longer one, as of a fake clock that is set from the zero time to
// the present, would not fit an int64 of nanoseconds, or leave no room for what comes after it.
const maxStep = 50 * 365 * 24 * time.Hour

func newTimeline(clock Clock) *timeline {
	if clock == nil {
		return &timeline{base: time.Now()}
	}
	return &timeline{clock: clock, base: clock.Now()}
}

// current reports whether circuits made now may use t, which has no clock of its own. A bubble of testing/synctest has
// another time than the program and than other bubbles: readings would be negative, or decades from the base.
func (t *timeline) current() bool {
	age := time.Since(t.base)
	return age >= 0 && age < 365*24*time.Hour
}

func (t *timeline) now() int64 {
	if t.clock == nil {
		return int64(time.Since(t.base))
	}
	return t.injectedNow()
}

func (t *timeline) injectedNow() (ns int64) {
	t.mu.Lock()
	base := t.base
	ns = t.last
	t.mu.Unlock()
	defer func() { _ = recover() }() // of a panic in Now: ns is the reading before
	read := t.clock.Now()

	t.mu.Lock()
	defer t.mu.Unlock()
	if t.base != base { // another goroutine has met a step, of which it is not known whether it came before this reading
		return t.last
	}
	d := int64(read.Sub(base))
	furthest := ns + min(int64(maxStep), (int64(maxDuration)-ns)/2) // instants stay below maxDuration, however many steps there are
	if counted := max(ns, min(d, furthest)); counted != d {         // read after ns was, yet earlier or far ahead: the clock was set
		d = counted
		t.base = read.Add(-duration(d))
	}
	t.last = max(t.last, d)
	return d
}

// anchor returns an instant together with the clock's reading at it. It does not call the user's clock.
func (t *timeline) anchor() anchor {
	if t.clock == nil {
		now := time.Now()
		return anchor{now, int64(now.Sub(t.base))}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return anchor{t.base, 0} // base is the reading at instant 0
}

type anchor struct {
	wall time.Time
	ns   int64
}

// at is an instant as the clock reads it.
func (a anchor) at(ns int64) time.Time { return a.wall.Add(duration(ns - a.ns)) }

// read is the clock's own reading, which can be compared between timelines.
func (t *timeline) read() time.Time {
	if t.clock == nil {
		return time.Now()
	}
	now := t.injectedNow()
	return t.anchor().at(now)
}

// fits reports whether a wait ends before ctx's deadline. With an injected clock, a deadline that has passed although
// ctx is not done must be by another clock, and is disregarded.
func (t *timeline) fits(ctx context.Context, wait time.Duration) bool {
	deadline, ok := ctx.Deadline()
	if !ok {
		return true
	}
	left := deadline.Sub(t.read())
	return left > wait || left <= 0 && t.clock != nil
}

// sleep waits, or returns the context's error as soon as it ends.
func (t *timeline) sleep(ctx context.Context, wait time.Duration) error {
	if wait <= 0 {
		return ctx.Err()
	}
	if t.clock == nil {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		return waitFor(ctx, timer.C)
	}
	return waitFor(ctx, t.clock.After(wait))
}

func waitFor(ctx context.Context, c <-chan time.Time) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// after is time.After by this timeline.
func (t *timeline) after(d time.Duration) <-chan time.Time {
	if t.clock == nil {
		return time.After(d)
	}
	return t.clock.After(d)
}

// withTimeout is context.WithTimeout by this timeline. The cause of its end is cause.
func (t *timeline) withTimeout(parent context.Context, d time.Duration, cause error) (context.Context, context.CancelFunc) {
	if t.clock == nil {
		return context.WithTimeoutCause(parent, d, cause)
	}
	return newClockContext(parent, t, d, cause)
}

// clockContext is a context with a deadline on an injected clock. It does not derive from context.WithCancel, since a
// child of that would take Canceled for its Err.
type clockContext struct {
	context.Context // a child of parent that carries the cause
	parent          context.Context
	deadline        time.Time
	done            chan struct{}

	mu  sync.Mutex
	err error
}

func newClockContext(parent context.Context, t *timeline, d time.Duration, cause error) (context.Context, context.CancelFunc) {
	caused, setCause := context.WithCancelCause(parent)
	c := &clockContext{Context: caused, parent: parent, deadline: t.read().Add(d), done: make(chan struct{})}
	if earlier, ok := parent.Deadline(); ok && earlier.Before(c.deadline) {
		c.deadline = earlier
	}
	expired := t.clock.After(d) // not in the goroutine: a test may move the clock as soon as this returns
	stop := context.AfterFunc(parent, func() { c.end(parent.Err()) })
	go func() {
		select {
		case <-expired:
			setCause(cause)
			c.end(context.DeadlineExceeded)
		case <-c.done:
		}
	}()
	return c, func() {
		stop()
		c.end(context.Canceled)
		setCause(nil)
	}
}

func (c *clockContext) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		close(c.done)
	}
}

func (c *clockContext) Deadline() (time.Time, bool) { return c.deadline, true }
func (c *clockContext) Done() <-chan struct{}       { return c.done }

func (c *clockContext) Err() error {
	if err := c.parent.Err(); err != nil {
		c.end(err) // the AfterFunc of parent may not have run yet
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}
