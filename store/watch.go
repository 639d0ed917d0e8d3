package store

import (
	"sync"

	"github.com/breakerkit/breaker"
)

// watch is one watcher with what it is still to be told. It is filled under the Memory's lock, which gives the order, and
// emptied outside of it by whoever is first to come, one call at a time.
type watch struct {
	w breaker.StoreWatcher

	mu      sync.Mutex
	idle    sync.Cond // a call has ended
	queue   []change
	calling bool
	stopped bool
}

type change struct {
	name   string
	ledger breaker.Ledger
}

func newWatch(w breaker.StoreWatcher) *watch {
	t := &watch{w: w}
	t.idle.L = &t.mu
	return t
}

func (t *watch) add(c change) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.stopped {
		t.queue = append(t.queue, c)
	}
}

// deliver tells all that there is to tell, unless another goroutine is at it: that one does it all.
func (t *watch) deliver() {
	for {
		c, ok := t.take()
		if !ok {
			return
		}
		t.tell(c)
	}
}

func (t *watch) take() (c change, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.calling || t.stopped || len(t.queue) == 0 {
		return c, false
	}
	t.calling = true
	c, t.queue = t.queue[0], t.queue[1:]
	return c, true
}

func (t *watch) tell(c change) {
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.calling = false
		t.idle.Broadcast()
	}()
	t.w.Changed(c.name, c.ledger)
}

// stop ends the calls, and waits for one that is going on.
func (t *watch) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped, t.queue = true, nil
	for t.calling {
		t.idle.Wait()
	}
}
