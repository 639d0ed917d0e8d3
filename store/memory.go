// Package store has a [breaker.Store] inside the process. Circuits of one name that are put on the same [Memory] act as
// one: they count together, open together, and share their probe slots.
//
// Memory is also the reference for other Stores: the package storetest checks what they must do, and Memory does it in the
// plainest way. Where the contract leaves a choice, Memory does this:
//
//   - A window is kept in 20 parts. What is older than the window is never counted; what is in its oldest part may be
//     missed. The times of failures are exact.
//   - A ledger is kept for an hour after it has lost its meaning: after the window that begins with the last report, after
//     the open period, after the longest lease. Without a window it is kept for 24 hours after the last report.
//   - If circuits with two configurations share a name, the first to report determines what is kept. The other one takes
//     over, with all counts at 0, when it reports and the first has not done so for the length of the window, or for a
//     minute if that is longer. In a new epoch it is the circuit that began it.
//   - Of the probes that outlive their leases, the last 1,024 are remembered until the epoch ends; the verdicts of others
//     change nothing. A token gets no second slot, so that a late copy of a request does no harm.
//   - Counts stop at 2^53, where a float64 ceases to be exact. Epochs stay below it, and an operation that names a higher
//     one changes nothing. Negative ages and durations are taken for 0, and a run in a batch for no longer than the batch.
package store

import (
	"container/heap"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/breakerkit/breaker"
)

var errNoName = fmt.Errorf("%w: a name must not be empty", breaker.ErrLedger)

// Memory is a [breaker.Store] inside the process, for circuits that share it. It must be made by [NewMemory]. It is safe
// for concurrent use. It has no goroutine and no timer: a ledger that has expired is dropped by the next operation.
//
// It does not share anything between processes. A circuit that is the only one of its name does not need it.
type Memory struct {
	time *timeline

	// One lock guards everything. An operation holds it for well under a microsecond, whatever the length of the window. A
	// lock for each ledger would need a lock for all as well, to find it and to drop it with the ledger.
	mu      sync.Mutex
	now     instant // the latest at which an operation was carried out
	closed  bool
	ledgers map[string]*ledger
	queue   queue    // all ledgers, the first to expire in front
	watches []*watch // a new slice at every change, so that it may be read after the lock is released
}

var _ breaker.Store = (*Memory)(nil)

// Option configures a [Memory].
type Option interface{ apply(*Memory) }

type option func(*Memory)

func (o option) apply(m *Memory) { o(m) }

// WithClock sets the clock. Default, and what nil means, is the time package.
func WithClock(c breaker.Clock) Option { return option(func(m *Memory) { m.time = newTimeline(c) }) }

// NewMemory makes an empty Store.
func NewMemory(opts ...Option) *Memory {
	m := &Memory{ledgers: make(map[string]*ledger)}
	for _, o := range opts {
		if o != nil {
			o.apply(m)
		}
	}
	if m.time == nil {
		m.time = newTimeline(nil)
	}
	return m
}

// Immediate is true: no operation waits for anything.
func (m *Memory) Immediate() bool { return true }

// Report adds what circuits have counted. See [breaker.Store].
func (m *Memory) Report(ctx context.Context, reports []breaker.StoreReport) []breaker.StoreReply {
	replies := make([]breaker.StoreReply, len(reports))
	for i := range reports {
		r := &reports[i]
		replies[i].Ledger, replies[i].Err = m.do(ctx, r.Name, func(l *ledger, now moment, out *breaker.Ledger) effect {
			result := l.report(now, r, out)
			out.Foreign = l.foreign(r.Shape)
			return result
		})
	}
	return replies
}

// Move begins a new epoch. See [breaker.Store].
func (m *Memory) Move(ctx context.Context, v breaker.StoreMove) (breaker.Ledger, error) {
	return m.do(ctx, v.Name, func(l *ledger, now moment, out *breaker.Ledger) effect {
		result := l.move(now, &v, out)
		out.Foreign = l.foreign(v.Shape)
		return result
	})
}

// Acquire takes probe slots. See [breaker.Store].
func (m *Memory) Acquire(ctx context.Context, a breaker.StoreAcquire) (breaker.Ledger, error) {
	return m.do(ctx, a.Name, func(l *ledger, now moment, out *breaker.Ledger) effect {
		result := l.acquire(now, &a, out)
		out.Foreign = l.foreign(a.Shape)
		return result
	})
}

// Settle ends a probe. See [breaker.Store].
func (m *Memory) Settle(ctx context.Context, v breaker.StoreVerdict) (breaker.Ledger, error) {
	return m.do(ctx, v.Name, func(l *ledger, now moment, out *breaker.Ledger) effect {
		result := l.settle(now, &v, out)
		out.Foreign = l.foreign(v.Shape)
		return result
	})
}

// Read reads ledgers. See [breaker.Store].
func (m *Memory) Read(ctx context.Context, names []string) []breaker.StoreReply {
	replies := make([]breaker.StoreReply, len(names))
	for i, name := range names {
		replies[i].Ledger, replies[i].Err = m.do(ctx, name, func(*ledger, moment, *breaker.Ledger) effect { return unchanged })
	}
	return replies
}

// operation carries out an operation on a ledger, and fills in what it has done.
type operation func(l *ledger, now moment, out *breaker.Ledger) effect

// do carries out an operation, and tells the watchers if there is something to tell.
func (m *Memory) do(ctx context.Context, name string, op operation) (breaker.Ledger, error) {
	canceled := ctx.Err()
	now := m.time.now()
	out, watches, err := m.locked(canceled, name, now, op)
	for _, w := range watches {
		w.deliver()
	}
	return out, err
}

func (m *Memory) locked(canceled error, name string, at instant, op operation) (breaker.Ledger, []*watch, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return breaker.Ledger{}, nil, breaker.ErrStoreClosed
	case canceled != nil:
		return breaker.Ledger{}, nil, canceled
	case name == "":
		return breaker.Ledger{}, nil, errNoName
	}
	m.now = max(m.now, at) // the clock was read without the lock, perhaps before that of an operation that came first
	now := moment{m.now, m.time.milliseconds(m.now)}
	m.dropExpiredLocked(now)

	l := m.ledgers[name]
	if l == nil {
		l = emptyLedger(name)
	}
	var done breaker.Ledger
	result := op(l, now, &done)
	if result >= changed {
		m.keepLocked(l, now)
	}
	view := l.view(now)
	if result < announced {
		return merge(view, done), nil, nil
	}
	for _, w := range m.watches {
		w.add(change{name, view})
	}
	return merge(view, done), m.watches, nil
}

// merge adds what an operation has done to what its ledger holds.
func merge(view, done breaker.Ledger) breaker.Ledger {
	view.Peak, view.Foreign, view.Applied = done.Peak, done.Foreign, done.Applied
	view.Granted, view.RetryAfter = done.Granted, done.RetryAfter
	return view
}

func (m *Memory) keepLocked(l *ledger, now moment) {
	l.expires = l.keepUntil(now)
	if l.queueIndex >= 0 {
		heap.Fix(&m.queue, l.queueIndex)
		return
	}
	m.ledgers[l.name] = l
	heap.Push(&m.queue, l)
}

func (m *Memory) dropExpiredLocked(now moment) {
	for len(m.queue) > 0 && m.queue[0].expires <= now.at {
		l := heap.Pop(&m.queue).(*ledger)
		delete(m.ledgers, l.name)
	}
}

// queue is a heap of ledgers, the first to expire in front.
type queue []*ledger

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].expires < q[j].expires }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].queueIndex, q[j].queueIndex = i, j
}

func (q *queue) Push(l any) {
	l.(*ledger).queueIndex = len(*q)
	*q = append(*q, l.(*ledger))
}

func (q *queue) Pop() any {
	last := len(*q) - 1
	l := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return l
}

// Watch calls w's methods within the operations that change something, with no lock held, in the order of the changes and
// one call at a time. Of two operations at once one may return before w was told of it, if the other's goroutine is telling
// w of both. Resync is never called, since no change is ever missed. w's methods may use the Store, but must not call stop,
// which waits for a call that is going on.
func (m *Memory) Watch(w breaker.StoreWatcher) (stop func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return func() {}
	}
	added := newWatch(w)
	m.watches = append(slices.Clip(m.watches), added)
	return func() {
		m.unwatch(added)
		added.stop()
	}
}

func (m *Memory) unwatch(w *watch) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watches = slices.DeleteFunc(slices.Clone(m.watches), func(o *watch) bool { return o == w })
}

// Close drops all ledgers. It may be called more than once. It does not wait for a call of a watcher that is going on.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.ledgers, m.queue, m.watches = nil, nil, nil
	return nil
}
