// Package store has a [breaker.Store] inside the process. Circuits of one name that are put on the same [Memory] act as
// one: they count together, open together, and share their probe slots.
//
// Memory is also the reference for other Stores: the package storetest, which checks any of them, says what they must do,
// and Memory does it in the plainest way. How it fills what the contract leaves open:
//
//   - A window is kept in slices of a 20th. What is older is never counted, and what is about to leave may be missed by
//     one slice. The times of failures are exact.
//   - A ledger is kept as long as it can matter and an hour more: the window from the last report, the open period, the
//     longest lease. Without a window it is kept for 24 hours from the last report.
//   - Of two configurations on one name, the first to write determines what is kept. The other one takes over, and the
//     counts begin anew, with its report after no report of the first has come for the window, or a minute where that is
//     longer. A new epoch is always kept as whoever began it wants it.
//   - Of the probes that outlive their leases, the last 1,024 are remembered; the verdicts of others change nothing. A token
//     is good for one slot: a late copy of the request for it gets no other.
//   - Counts stop at 2^53, where a float64 ceases to be exact. Epochs stay below it, and what claims to come from an epoch
//     beyond changes nothing. Negative ages and durations are 0, and a batch's run is no longer than its failures.
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
// for concurrent use. It has no goroutine and no timer: what has expired is dropped by the next operation.
//
// It is not for sharing between processes, and one circuit of a name does not need it.
type Memory struct {
	time *timeline

	// One lock guards everything. An operation holds it for well under a microsecond, whatever the length of the window,
	// and a lock for each ledger would have to be found, and dropped with it, under one for all.
	mu      sync.Mutex
	now     instant // the latest seen
	closed  bool
	ledgers map[string]*ledger
	queue   queue    // all ledgers, by when they expire
	watches []*watch // replaced, never changed
}

var _ breaker.Store = (*Memory)(nil)

// Option configures a [Memory].
type Option interface{ apply(*Memory) }

type option func(*Memory)

func (o option) apply(m *Memory) { o(m) }

// WithClock sets the clock. By default, or where it is nil, it is the time package's.
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
		replies[i].Ledger, replies[i].Err = m.do(ctx, name, func(*ledger, moment, *breaker.Ledger) effect { return nothing })
	}
	return replies
}

// An operation changes a ledger and fills in what it has done.
type operation func(l *ledger, now moment, out *breaker.Ledger) effect

// do carries an operation out, and tells the watchers of it.
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
	m.now = max(m.now, at) // it may have been read before another operation's
	now := moment{m.now, m.time.milliseconds(m.now)}
	m.dropExpiredLocked(now)

	l := m.ledgers[name]
	if l == nil {
		l = emptyLedger(name)
	}
	var done breaker.Ledger
	result := op(l, now, &done)
	if result >= written {
		m.keepLocked(l, now)
	}
	view := l.view(now)
	if result < telling {
		return merge(view, done), nil, nil
	}
	for _, w := range m.watches {
		w.add(change{name, view})
	}
	return merge(view, done), m.watches, nil
}

// merge adds to how a ledger stands what an operation has done.
func merge(view, done breaker.Ledger) breaker.Ledger {
	view.Peak, view.Foreign, view.Applied = done.Peak, done.Foreign, done.Applied
	view.Granted, view.RetryAfter = done.Granted, done.RetryAfter
	return view
}

func (m *Memory) keepLocked(l *ledger, now moment) {
	l.expires = l.lifetime(now)
	if l.place >= 0 {
		heap.Fix(&m.queue, l.place)
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
	q[i].place, q[j].place = i, j
}

func (q *queue) Push(l any) {
	l.(*ledger).place = len(*q)
	*q = append(*q, l.(*ledger))
}

func (q *queue) Pop() any {
	last := len(*q) - 1
	l := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return l
}

// Watch calls w from within the operations that change something, outside of every lock: in the order of the changes, one
// call at a time. Of two operations at once, one may return while the other's goroutine still tells of both. Resync is
// never called, since nothing is ever missed. w's methods may use the Store, but not call stop, which waits for a call
// that is going on.
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

// Close drops everything. It may be called more than once. It ends no call of a watcher that is going on.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.ledgers, m.queue, m.watches = nil, nil, nil
	return nil
}
