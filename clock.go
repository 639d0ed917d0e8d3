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
// time is taken to be what it returned before.
type Clock interface {
	Now() time.Time
	After(time.Duration) <-chan time.Time
}

// timeline turns a clock's readings into nanoseconds since a base. Configurations without a clock of their own share one
// where they may: see current.
type timeline struct {
	clock Clock // nil: the time package
	base  time.Time

	// An injected clock may have wall time only, and be set back. Instants from before remain valid: offset, the sum of
	// all steps back, is added to every later reading. The time package's readings are monotonic and need none of this.
	mu     sync.Mutex
	offset int64
	last   int64
}

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
	ns = t.last
	t.mu.Unlock()
	defer func() { _ = recover() }() // of a panic in Now: ns is the reading before
	read := t.clock.Now()

	t.mu.Lock()
	defer t.mu.Unlock()
	d := int64(read.Sub(t.base)) + t.offset
	if d < ns { // read after ns was, yet earlier: the clock was set back
		t.offset += ns - d
		d = ns
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
	return anchor{t.base, t.offset}
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
