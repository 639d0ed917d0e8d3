package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// The anchors' names.
const (
	plainCall   = "call through a func value"
	deferCall   = "call with a deferred flag"
	countedCall = "call with a deferred flag and one counter"
	trackedCall = "call with a deferred flag, start and end counter"
	mutexPair   = "mutex, lock and unlock"
	sharedCount = "shared atomic add"
	timeSince   = "time.Since"

	// The floors: what the work cannot do without, and no logic. Gates refer to them, since a ratio to a peer that reads the
	// clock says what the clock costs.
	rejectParts = "its call, time.Since and atomic add, without any logic"
	hookParts   = "its call, two time.Since and the hook, without any logic"
	cycleParts  = "its calls, clocks, locks and atomic writes, without any logic"
)

// anchorRows are what everything else is measured against: the parts that a breaker cannot do without or would like to.
var anchorRows = []row{
	{work: anchors, name: plainCall, setup: func() op { return directCalls(callPlain, never) }},
	{work: anchors, name: deferCall, setup: func() op { return directCalls(callDeferred, never) }},
	{work: anchors, name: countedCall, setup: func() op { return directCalls(callCounted, never) }},
	{work: anchors, name: trackedCall, setup: func() op { return directCalls(callTracked, never) }},
	{work: anchors, name: mutexPair, many: true, setup: mutexPairs},
	{work: anchors, name: sharedCount, many: true, setup: sharedAdds},
	{work: anchors, name: timeSince, setup: clockReads},

	{work: success, name: hookParts, setup: bareHooks},
	{work: rejected, name: rejectParts, setup: bareRejections},
	{work: probing, name: rejectParts, setup: bareRejections},
	{work: cycle, name: cycleParts, setup: bareCycles},
}

// directCalls is the loop of every row, with nothing between the caller and its function but call.
func directCalls(call func(context.Context, func(context.Context) (int, error)) (int, error), every int) op {
	return func(n int) (errs int) {
		ctx := context.Background()
		fails := failing(every)
		for i := range n {
			end := fails.next()
			if _, err := call(ctx, func(context.Context) (int, error) { return i, end }); err != nil {
				errs++
			}
		}
		return errs
	}
}

//go:noinline
func callPlain(ctx context.Context, fn func(context.Context) (int, error)) (int, error) {
	return fn(ctx)
}

// abnormal is what callDeferred's deferred function would write to.
var abnormal atomic.Bool

// callDeferred notices a panic or Goexit of fn in the cheapest way there is.
//
//go:noinline
func callDeferred(ctx context.Context, fn func(context.Context) (int, error)) (int, error) {
	done := false
	defer func() {
		if !done {
			abnormal.Store(true)
		}
	}()
	v, err := fn(ctx)
	done = true
	return v, err
}

// tally is where callCounted and callTracked count, on a cache line of its own.
var tally struct {
	_          [64]byte
	start, end atomic.Uint64
	_          [64]byte
}

// callCounted also knows afterwards how many calls have ended well: the floor of a breaker that counts successes.
//
//go:noinline
func callCounted(ctx context.Context, fn func(context.Context) (int, error)) (int, error) {
	done := false
	defer func() {
		if !done {
			abnormal.Store(true)
		}
	}()
	v, err := fn(ctx)
	done = true
	tally.end.Add(1)
	return v, err
}

// callTracked knows at any time how many calls are in flight: the floor of a breaker that counts them.
//
//go:noinline
func callTracked(ctx context.Context, fn func(context.Context) (int, error)) (int, error) {
	tally.start.Add(1)
	done := false
	defer func() {
		if !done {
			abnormal.Store(true)
		}
	}()
	v, err := fn(ctx)
	done = true
	tally.end.Add(1)
	return v, err
}

func mutexPairs() op {
	var s struct {
		mu sync.Mutex
		n  int
	}
	return func(n int) int {
		for range n {
			s.mu.Lock()
			s.n++
			s.mu.Unlock()
		}
		return 0
	}
}

func sharedAdds() op {
	var count atomic.Uint64
	return func(n int) int {
		for range n {
			count.Add(1)
		}
		return 0
	}
}

func clockReads() op {
	start := time.Now()
	return func(n int) (errs int) {
		for range n {
			if time.Since(start) < 0 {
				errs++
			}
		}
		return errs
	}
}

// The loops of the floors are written out: given as a func value, a method would be unknown to the compiler, and the closures
// that it is called with would be allocated, which nothing that is compared with them does.

// refuser rejects every call until a time comes, and counts what it rejects on a cache line of its own.
type refuser struct {
	_        [64]byte
	rejected atomic.Uint64
	base     time.Time
	until    time.Duration
	_        [64]byte
}

//go:noinline
func (r *refuser) call(ctx context.Context, fn func(context.Context) (int, error)) (int, error) {
	if time.Since(r.base) < r.until {
		r.rejected.Add(1)
		return 0, errDown
	}
	return fn(ctx)
}

// bareRejections are the parts of a rejection: the clock, since an open period ends by it, and a counter, here one for each
// goroutine.
func bareRejections() op {
	return func(n int) (errs int) {
		r := &refuser{base: time.Now(), until: time.Hour}
		ctx := context.Background()
		fails := failing(never)
		for i := range n {
			end := fails.next()
			if _, err := r.call(ctx, func(context.Context) (int, error) { return i, end }); err != nil {
				errs++
			}
		}
		return errs
	}
}

// timer tells a hook how long each call took.
type timer struct {
	base time.Time
	hook func(context.Context, time.Duration)
}

//go:noinline
func (t *timer) call(ctx context.Context, fn func(context.Context) (int, error)) (int, error) {
	start := time.Since(t.base)
	done := false
	defer func() {
		if !done {
			abnormal.Store(true)
		}
	}()
	v, err := fn(ctx)
	done = true
	t.hook(ctx, time.Since(t.base)-start)
	return v, err
}

// bareHooks are the parts of a call that a hook is told of: its length takes two readings of the clock.
func bareHooks() op {
	t := &timer{base: time.Now(), hook: func(context.Context, time.Duration) {}}
	return func(n int) (errs int) {
		ctx := context.Background()
		fails := failing(never)
		for i := range n {
			end := fails.next()
			if _, err := t.call(ctx, func(context.Context) (int, error) { return i, end }); err != nil {
				errs++
			}
		}
		return errs
	}
}

// bareCycles are the parts of a failure that opens, and of a success that is the probe and closes. What decides is left
// out: the one goroutine that calls knows what comes.
func bareCycles() op {
	p := &parts{base: time.Now()}
	return func(n int) (errs int) {
		ctx := context.Background()
		fails := failing(cycle.every)
		for i := range n {
			end := fails.next()
			if _, err := p.call(ctx, func(context.Context) (int, error) { return i, end }); err != nil {
				errs++
			}
		}
		return errs
	}
}

// parts is what a circuit guards its decisions with.
type parts struct {
	mu           sync.Mutex
	base         time.Time
	since, until time.Duration
	open         bool
	word         atomic.Uint64 // what callers see
	started, ok  atomic.Uint64 // what they count, the latter marked with the word
}

//go:noinline
func (p *parts) call(ctx context.Context, fn func(context.Context) (int, error)) (int, error) {
	if p.word.Load() != 0 {
		now := time.Since(p.base) // is the probe due
		p.mu.Lock()
		p.until = now
		p.mu.Unlock()
	}
	p.started.Add(1)
	done := false
	defer func() {
		if !done {
			abnormal.Store(true)
		}
	}()
	v, err := fn(ctx)
	done = true
	now := time.Since(p.base) // when it opens, or closes
	p.mu.Lock()
	p.open, p.since = !p.open, now
	if p.open {
		p.word.Store(1)
	} else {
		p.word.Store(0)
	}
	p.ok.Swap(0)
	p.mu.Unlock()
	return v, err
}
