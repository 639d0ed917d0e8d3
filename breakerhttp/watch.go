package breakerhttp

import (
	"context"
	"sync"
	"sync/atomic"
	"unsafe"
)

// A body that its caller neither reads nor closes is settled when the caller's context ends. To be told of that costs
// several times what a request through a closed circuit does, and nearly every body is read or closed at once. So a new
// body lies in a place of its Transport first. It is watched when another one needs the place; and whoever wants to know
// what is in flight looks through the places.

// waiting is the places of a Transport, a row to a cache line.
type waiting [rows][inRow]atomic.Pointer[body]

const (
	rows  = 32
	inRow = 8
)

// watch is how a body learns of the end of its caller's context.
type watch struct {
	places  *waiting // nil: nobody needs to know
	watcher atomic.Pointer[watcher]
}

// watcher settles a body. No lock is held meanwhile: a hook that is told of the end may close the body.
type watcher struct {
	mu   sync.Mutex
	stop func() bool // nil: it was asked to settle at once
}

// unwatched is the watcher of a body that needs none any more.
var unwatched = &watcher{}

// place is where b lies. Its address decides: a processor allocates from one page of memory for some time, and then from
// another, so that processors seldom meet in a row, and no place is left alone for ever.
func (w *waiting) place(b *body) *atomic.Pointer[body] {
	const golden = 0x9E3779B97F4A7C15 // 2^64 / golden ratio: spreads neighbours
	addr := uint64(uintptr(unsafe.Pointer(b)))
	return &w[addr>>13%rows][addr*golden>>32%inRow]
}

// add has b settled when its context ends.
func (w *waiting) add(b *body) {
	if b.ctx() == context.Background() {
		return
	}
	b.places = w
	if old := w.place(b).Swap(b); old != nil {
		old.startWatch()
	}
}

// look has the bodies settled whose contexts have ended, and reports whether there were any.
func (w *waiting) look(end func(*body)) (any bool) {
	for i := range w {
		for j := range w[i] {
			at := &w[i][j]
			if b := at.Load(); b != nil && b.ctx().Err() != nil {
				end(b)
				at.CompareAndSwap(b, nil)
				any = true
			}
		}
	}
	return any
}

// startWatch has b settled when its context ends, by a goroutine of its own: hooks must not run in whatever calls this.
func (b *body) startWatch() {
	w := &watcher{}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !b.watcher.CompareAndSwap(nil, w) {
		return
	}
	w.stop = context.AfterFunc(b.ctx(), b.callerEnded)
}

// endNow settles b by the end of its context.
func (b *body) endNow() {
	if b.watcher.CompareAndSwap(nil, &watcher{}) {
		b.callerEnded()
	}
}

// unwatch ends the watch, after b has settled or while it does.
func (b *body) unwatch() {
	if b.places == nil || b.watcher.Load() == unwatched {
		return
	}
	w := b.watcher.Swap(unwatched)
	if w == nil {
		b.places.place(b).CompareAndSwap(b, nil)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stop != nil {
		w.stop()
	}
}
