package breaker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"
)

// The store's operations, bounded in time.

func (h *hub) report(r StoreReport) StoreReply {
	return h.one(r.Name, func(ctx context.Context) []StoreReply { return h.store.Report(ctx, []StoreReport{r}) })
}

func (h *hub) read(name string) StoreReply {
	return h.readMany([]string{name})[0]
}

func (h *hub) readMany(names []string) []StoreReply {
	return h.many(names, func(ctx context.Context) []StoreReply { return h.store.Read(ctx, names) })
}

func (h *hub) move(m StoreMove) StoreReply {
	return h.single(m.Name, func(ctx context.Context) (Ledger, error) { return h.store.Move(ctx, m) })
}

func (h *hub) acquire(a StoreAcquire) StoreReply {
	return h.single(a.Name, func(ctx context.Context) (Ledger, error) { return h.store.Acquire(ctx, a) })
}

func (h *hub) settle(v StoreVerdict) StoreReply {
	return h.single(v.Name, func(ctx context.Context) (Ledger, error) { return h.store.Settle(ctx, v) })
}

func (h *hub) single(name string, op func(context.Context) (Ledger, error)) StoreReply {
	return h.one(name, func(ctx context.Context) []StoreReply {
		l, err := op(ctx)
		return []StoreReply{{l, err}}
	})
}

func (h *hub) one(name string, op func(context.Context) []StoreReply) StoreReply {
	return h.many([]string{name}, op)[0]
}

// many runs an operation that asks about names, and judges by the answers who is away.
func (h *hub) many(names []string, op func(context.Context) []StoreReply) []StoreReply {
	replies, err := h.bounded(h.hopeless(names), op)
	if err == nil && len(replies) != len(names) {
		err = fmt.Errorf("breaker: store gave %d replies to %d questions", len(replies), len(names))
	}
	if err != nil {
		replies = make([]StoreReply, len(names))
		for i := range replies {
			replies[i].Err = err
		}
	}
	if !h.immediate {
		h.judge(names, replies)
	}
	return replies
}

// hopeless reports whether an answer would be a surprise.
func (h *hub) hopeless(names []string) bool {
	if h.immediate {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.away.Load() || slices.ContainsFunc(names, func(name string) bool { return h.silent[name] > 0 })
}

// answered reports whether the store has answered, be it that it cannot use the ledger.
func (r StoreReply) answered() bool { return r.Err == nil || errors.Is(r.Err, ErrLedger) }

// judge takes the names that had no answer to be away. The store is away where all of them are; where some may not be,
// serve asks one of these.
func (h *hub) judge(names []string, replies []StoreReply) {
	h.mu.Lock()
	defer h.mu.Unlock()
	news, any := false, false
	for i, name := range names {
		ok := replies[i].answered()
		any = any || ok
		l := h.members[name]
		if l == nil {
			continue // it has left
		}
		if ok {
			delete(h.silent, name)
		} else {
			h.silent[name]++
		}
		news = l.away.Swap(!ok) == ok || news
	}
	switch {
	case any:
		h.answers++
		h.doubt = false
		news = h.away.Swap(false) || news
	case len(h.silent) == len(h.members):
		news = !h.away.Swap(true) || news
	default:
		h.doubt = h.doubt || news && !h.away.Load()
	}
	if news {
		h.rouse()
	}
}

// silentNames returns the names that had no answer, those first that were asked about least often.
func (h *hub) silentNames() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.SortedFunc(maps.Keys(h.silent), func(a, b string) int { return cmp.Compare(h.silent[a], h.silent[b]) })
}

// gone reports whether the store is away. Where there is doubt it asks about names that may still have an answer, each
// by itself: one that hangs must not speak for the others.
func (h *hub) gone() bool {
	h.mu.Lock()
	doubt, answers := h.doubt, h.answers
	h.doubt = false
	h.mu.Unlock()
	for n := 0; doubt && n < witnesses; n++ {
		h.mu.Lock()
		name, ok := "", false
		for name = range h.members {
			if ok = h.silent[name] == 0; ok {
				break
			}
		}
		h.mu.Unlock()
		if ok {
			h.read(name)
		}
		h.mu.Lock()
		h.doubt = false
		switch {
		case h.answers != answers, len(h.silent) == 0:
			doubt = false
		case !ok || n == witnesses-1:
			h.away.Store(true)
		}
		h.mu.Unlock()
	}
	return h.away.Load()
}

// bounded runs an operation, and gives up on one that does not return in time. Of those that are hopeless it begins
// no others while some do not return.
func (h *hub) bounded(hopeless bool, op func(context.Context) []StoreReply) (replies []StoreReply, err error) {
	if h.immediate {
		h.busy.Add(1)
		defer h.busy.Add(-1)
		return contained(context.Background(), op)
	}
	if hopeless && h.trying.Load() >= triesAtMost || h.overdue.Load() >= overdueAtMost {
		return nil, errOverdue
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.timeout)
	type result struct {
		replies []StoreReply
		err     error
	}
	done := make(chan result, 1)
	var over atomic.Bool // it has ended, or was given up; whoever finds it so counts it out
	count := func(by int32) {
		h.overdue.Add(by)
		if hopeless {
			h.trying.Add(by)
		}
	}
	go func() {
		defer func() {
			cancel()
			if over.Swap(true) {
				count(-1)
			}
		}()
		replies, err := contained(ctx, op)
		done <- result{replies, err}
	}()
	late := time.NewTimer(h.timeout + h.timeout/4)
	defer late.Stop()
	select {
	case r := <-done:
		return r.replies, r.err
	case <-late.C:
		count(1)
		if over.Swap(true) {
			count(-1)
		}
		return nil, fmt.Errorf("breaker: store did not return within %v", h.timeout)
	}
}

var errOverdue = errors.New("breaker: store has not returned from what it was asked before")

// contained runs an operation, whose panic is its error.
func contained(ctx context.Context, op func(context.Context) []StoreReply) (replies []StoreReply, err error) {
	err = errors.New("breaker: store ended the goroutine")
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("breaker: store panicked: %v", r)
		}
	}()
	return op(ctx), nil
}
