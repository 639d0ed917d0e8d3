package breakerhttp

import (
	"sync/atomic"
	"time"

	"github.com/breakerkit/breaker"
)

// timer ends something. Either it fires or it is stopped.
type timer struct {
	real  *time.Timer
	done  chan struct{} // of a timer on an injected clock
	state atomic.Int32
}

const (
	timerFired = 1 + iota
	timerStopped
)

// startTimer calls fire after d, unless more says that it is not yet time, and how much is left. more may be nil.
func startTimer(clock breaker.Clock, d time.Duration, more func() time.Duration, fire func()) *timer {
	t := &timer{}
	left := func() time.Duration {
		if more != nil && t.state.Load() == 0 {
			if left := more(); left > 0 {
				return max(left, time.Millisecond) // what waits goes on: do not spin
			}
		}
		if t.state.CompareAndSwap(0, timerFired) {
			fire()
		}
		return 0
	}
	t.done = make(chan struct{})
	if clock == nil {
		set := make(chan struct{})
		t.real = time.AfterFunc(d, func() {
			<-set
			if left := left(); left > 0 {
				t.real.Reset(left)
			}
		})
		close(set)
		return t
	}
	expired := clock.After(d) // asked for here, so that a test may move the clock as soon as the request is out
	go func() {
		for {
			select {
			case <-expired:
			case <-t.done:
				return
			}
			left := left()
			if left <= 0 {
				return
			}
			expired = clock.After(left)
		}
	}()
	return t
}

// stop reports whether it came before the time was up. It may be called more than once, by one goroutine.
func (t *timer) stop() bool {
	stopped := t.state.CompareAndSwap(0, timerStopped)
	if t.real != nil {
		t.real.Stop()
	} else if stopped {
		close(t.done)
	}
	return stopped
}
