package pool

import (
	"context"
	"runtime"
	"sync"
	"time"
	"weak"

	"github.com/breakerkit/breaker"
)

// attemptContext is the context of one attempt. While the attempt runs it ends at a time of its own, or with the caller's. After
// the attempt has brought a value it follows the caller's alone, for as long as somebody holds it; after any other end of
// the attempt it has ended. Its Deadline and its values are the caller's.
//
// An attempt that never asks for Done costs one allocation and no timer. A derived context of the context package would
// have to be cancelled to be let go, and would take Canceled for the Err of a deadline.
type attemptContext struct {
	context.Context // the caller's
	clock           breaker.Clock
	end             time.Time // by clock
	limit           bool      // end is the pool's limit, not the attempt's own timeout

	mu        sync.Mutex
	released  bool // the attempt has brought a value
	err       error
	done      chan struct{}        // made for the first who asks
	then      map[*func()]struct{} // to be called at the end, each in a goroutine
	stopTimer func()
	unfollow  func() bool
}

// Err is the caller's, or DeadlineExceeded once the time is up.
func (l *attemptContext) Err() error {
	if err := l.Context.Err(); err != nil {
		l.finish(err)
	} else if l.bounded() && l.late() {
		l.finish(context.DeadlineExceeded)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Done is closed when Err is no longer nil.
func (l *attemptContext) Done() <-chan struct{} {
	l.mu.Lock()
	if l.done == nil && l.released && l.err == nil {
		l.mu.Unlock()
		return l.Context.Done()
	}
	first := l.done == nil
	if first {
		l.done = make(chan struct{})
		if l.err != nil {
			close(l.done)
			first = false
		}
	}
	done := l.done
	l.mu.Unlock()
	if first {
		l.watch()
	}
	return done
}

// AfterFunc lets contexts derived from this one do without a goroutine each; see context.AfterFunc.
func (l *attemptContext) AfterFunc(f func()) (stop func() bool) {
	if l.Done() == l.Context.Done() {
		return context.AfterFunc(l.Context, f)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		go f()
		return func() bool { return false }
	}
	if l.then == nil {
		l.then = make(map[*func()]struct{})
	}
	l.then[&f] = struct{}{}
	return func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		_, waiting := l.then[&f]
		delete(l.then, &f)
		return waiting
	}
}

// held reports whether the time still matters.
func (l *attemptContext) bounded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.released && l.err == nil
}

// late reports whether the time is up.
func (l *attemptContext) late() bool { return !read(l.clock).Before(l.end) }

// release ends the attempt with a value: from here on only the caller's context counts. On a nil attemptContext it does nothing.
func (l *attemptContext) release() {
	if l == nil {
		return
	}
	l.mu.Lock()
	l.released = true
	stop := l.stopTimer
	l.stopTimer = nil
	l.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// finish ends the context, unless it has ended. On a nil attemptContext it does nothing.
func (l *attemptContext) finish(err error) {
	if l == nil {
		return
	}
	caller := l.Context.Err()
	l.mu.Lock()
	if l.released {
		err = caller // a timer that was under way comes too late
	}
	if l.err != nil || err == nil {
		l.mu.Unlock()
		return
	}
	l.err = err
	if l.done != nil {
		close(l.done)
	}
	stop, unfollow := l.stopTimer, l.unfollow
	l.stopTimer, l.unfollow = nil, nil
	for f := range l.then {
		go (*f)()
	}
	l.then = nil
	l.mu.Unlock()
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
func (l *attemptContext) watch() {
	stop := after(l.clock, l.end.Sub(read(l.clock)), func() { l.finish(context.DeadlineExceeded) })
	unfollow := l.follow()
	l.mu.Lock()
	if l.err == nil {
		l.unfollow, unfollow = unfollow, nil
		if !l.released {
			l.stopTimer, stop = stop, nil
		}
	}
	l.mu.Unlock()
	stopAll(stop, unfollow) // what is left, where it has ended meanwhile
}

// follow ends the context with the caller's. The caller's may live much longer than what the attempt has brought: it must
// not keep the attemptContext, and is rid of the rest when nobody else keeps it either.
func (l *attemptContext) follow() (unfollow func() bool) {
	if l.Context.Done() == nil {
		return nil
	}
	caller, me := l.Context, weak.Make(l)
	unfollow = context.AfterFunc(caller, func() {
		if l := me.Value(); l != nil {
			l.finish(caller.Err())
		}
	})
	runtime.AddCleanup(l, func(unfollow func() bool) { unfollow() }, unfollow)
	return unfollow
}

// read reads a clock; nil is the time package.
func read(c breaker.Clock) time.Time {
	if c == nil {
		return time.Now()
	}
	return c.Now()
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
