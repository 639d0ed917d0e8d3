package store

import (
	"sync"

	"github.com/breakerkit/breaker"
)

// watch is one watcher and the changes that it has not been told of. They are added under the Memory's lock, in their order.
// Any goroutine that has added some delivers them without that lock, but only one at a time.
type watch struct {
	w breaker.StoreWatcher

	mu      sync.Mutex
	idle    sync.Cond // signalled when a call has ended
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

// deliver tells the watcher of all changes, unless another goroutine is doing that: that one goes on until none is left.
func (t *watch) deliver() {
	for {
		c, ok := t.take()
		if !ok {
			return
		}
		t.call(c)
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

func (t *watch) call(c change) {
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.calling = false
		t.idle.Broadcast()
	}()
	t.w.Changed(c.name, c.ledger)
}

// stop has no more calls made, and waits for one that is going on.
func (t *watch) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped, t.queue = true, nil
	for t.calling {
		t.idle.Wait()
	}
}
