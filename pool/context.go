package pool

import (
	"context"
	"runtime"
	"sync"
	"time"
	"weak"

	"github.com/breakerkit/breaker"
)

// attemptContext is the context of one attempt. While the attempt runs it ends at a time of its own, or with the caller's,
// and its Deadline is whichever comes first. After the attempt has brought a value it is released: it follows the caller's
// context alone, for as long as it is held. After any other end of the attempt it has ended.
//
// An attempt that never asks for Done costs one allocation and no timer. A derived context of the context package would
// have to be cancelled to be released, and would take Canceled for the Err of a deadline.
type attemptContext struct {
	context.Context // the caller's
	clock           breaker.Clock
	end             time.Time // by clock
	limit           bool      // end is the pool's limit, not the attempt's own timeout

	mu        sync.Mutex
	released  bool // the attempt has brought a value
	err       error
	done      chan struct{}        // made for the first who asks
	onEnd     map[*func()]struct{} // to be called at the end, each in a goroutine
	stopTimer func()
	unfollow  func() bool
}

// Deadline is the end of the attempt, or the caller's deadline if that is earlier; once released, the caller's. It is for
// those who tell the other side how long they will wait. With an injected clock the end of the attempt is by that clock.
func (c *attemptContext) Deadline() (time.Time, bool) {
	at, ok := c.Context.Deadline()
	if !c.bounded() || ok && at.Before(c.end) {
		return at, ok
	}
	return c.end, true
}

// Err is the caller's, or DeadlineExceeded once the time is up.
func (c *attemptContext) Err() error {
	if err := c.Context.Err(); err != nil {
		c.finish(err)
	} else if c.bounded() && c.late() {
		c.finish(context.DeadlineExceeded)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Done is closed when Err is no longer nil.
func (c *attemptContext) Done() <-chan struct{} {
	c.mu.Lock()
	if c.done == nil && c.released && c.err == nil {
		c.mu.Unlock()
		return c.Context.Done()
	}
	first := c.done == nil
	if first {
		c.done = make(chan struct{})
		if c.err != nil {
			close(c.done)
			first = false
		}
	}
	done := c.done
	c.mu.Unlock()
	if first {
		c.watch()
	}
	return done
}

// AfterFunc lets contexts derived from this one do without a goroutine each; see context.AfterFunc.
func (c *attemptContext) AfterFunc(f func()) (stop func() bool) {
	if c.Done() == c.Context.Done() {
		return context.AfterFunc(c.Context, f)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		go f()
		return func() bool { return false }
	}
	if c.onEnd == nil {
		c.onEnd = make(map[*func()]struct{})
	}
	c.onEnd[&f] = struct{}{}
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		_, waiting := c.onEnd[&f]
		delete(c.onEnd, &f)
		return waiting
	}
}

// bounded reports whether the attempt's own time still matters.
func (c *attemptContext) bounded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.released
}

// late reports whether the time is up.
func (c *attemptContext) late() bool { return !read(c.clock).Before(c.end) }

// release ends the attempt with a value: from here on only the caller's context counts. On a nil attemptContext it does nothing.
func (c *attemptContext) release() {
	if c == nil {
		return
	}
	c.mu.Lock()
	c.released = true
	stop := c.stopTimer
	c.stopTimer = nil
	c.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// finish ends the context, unless it has ended. On a nil attemptContext it does nothing.
func (c *attemptContext) finish(err error) {
	if c == nil {
		return
	}
	caller := c.Context.Err()
	c.mu.Lock()
	if c.released {
		err = caller // a timer that was under way comes too late
	}
	if c.err != nil || err == nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	if c.done != nil {
		close(c.done)
	}
	stop, unfollow := c.stopTimer, c.unfollow
	c.stopTimer, c.unfollow = nil, nil
	for f := range c.onEnd {
		go (*f)()
	}
	c.onEnd = nil
	c.mu.Unlock()
	stopAll(stop, unfollow)
}

func stopAll(stop func(), unfollow func() bool) {
	if stop != nil {
		stop()
	}
	if unfollow != nil {
		unfollow()
	}
}

// watch sees to it that done is closed when the time is up, or when the caller's context ends.
func (c *attemptContext) watch() {
	stop := after(c.clock, c.end.Sub(read(c.clock)), func() { c.finish(context.DeadlineExceeded) })
	unfollow := c.follow()
	c.mu.Lock()
	if c.err == nil {
		c.unfollow, unfollow = unfollow, nil
		if !c.released {
			c.stopTimer, stop = stop, nil
		}
	}
	c.mu.Unlock()
	stopAll(stop, unfollow) // what is left, where it has ended meanwhile
}

// follow ends the context with the caller's. The caller's context may live much longer than what the attempt has brought:
// it refers to the attemptContext weakly, and its callback is removed once the attemptContext is no longer held.
func (c *attemptContext) follow() (unfollow func() bool) {
	if c.Context.Done() == nil {
		return nil
	}
	caller, me := c.Context, weak.Make(c)
	unfollow = context.AfterFunc(caller, func() {
		if c := me.Value(); c != nil {
			c.finish(caller.Err())
		}
	})
	runtime.AddCleanup(c, func(unfollow func() bool) { unfollow() }, unfollow)
	return unfollow
}

// read reads a clock; nil is the time package.
func read(clk breaker.Clock) time.Time {
	if clk == nil {
		return time.Now()
	}
	return clk.Now()
}

// after calls f once d has passed, in a goroutine of its own.
func after(c breaker.Clock, d time.Duration, f func()) (stop func()) {
	if c == nil {
		t := time.AfterFunc(d, f)
		return func() { t.Stop() }
	}
	stopped := make(chan struct{})
	expired := c.After(d) // asked for here, so that a test may move the clock as soon as Done has returned
	go func() {
		select {
		case <-expired:
			f()
		case <-stopped:
		}
	}()
	return func() { close(stopped) }
}
