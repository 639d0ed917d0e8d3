package breakertest

import (
	"context"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// Recorder keeps the transitions that a circuit reports.
type Recorder struct {
	mu     sync.Mutex
	more   chan struct{} // closed at the next one
	events []breaker.Transition
}

func NewRecorder() *Recorder { return &Recorder{more: make(chan struct{})} }

// Hooks are what a circuit reports to.
func (r *Recorder) Hooks() breaker.Hooks {
	return breaker.Hooks{StateChange: func(t breaker.Transition) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.events = append(r.events, t)
		close(r.more)
		r.more = make(chan struct{})
	}}
}

// List is what was reported so far.
func (r *Recorder) List() []breaker.Transition {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]breaker.Transition(nil), r.events...)
}

// WaitFor waits for events that another goroutine may still be delivering, until there are enough.
func (r *Recorder) WaitFor(w *World, enough func([]breaker.Transition) bool) []breaker.Transition {
	w.Helper()
	late := time.After(5 * time.Second) // in a bubble that is when nothing else is left to happen
	for {
		r.mu.Lock()
		events, more := append([]breaker.Transition(nil), r.events...), r.more
		r.mu.Unlock()
		if enough(events) {
			return events
		}
		select {
		case <-more:
		case <-late:
			require.FailNow(w, "events are missing", "%v", events)
		}
	}
}

// Events keeps what the hooks say about retries, rescues, rejections and the store.
type Events struct {
	mu      sync.Mutex
	Retries []breaker.RetryEvent
	Rescues []breaker.RescueEvent
	Rejects []breaker.RejectEvent
	store   []error
}

// Option has a circuit report here.
func (e *Events) Option() breaker.Option {
	return breaker.WithHooks(breaker.Hooks{
		Retry:      func(_ context.Context, r breaker.RetryEvent) { e.locked(func() { e.Retries = append(e.Retries, r) }) },
		Rescue:     func(_ context.Context, r breaker.RescueEvent) { e.locked(func() { e.Rescues = append(e.Rescues, r) }) },
		Reject:     func(_ context.Context, r breaker.RejectEvent) { e.locked(func() { e.Rejects = append(e.Rejects, r) }) },
		StoreError: func(err error) { e.locked(func() { e.store = append(e.store, err) }) },
	})
}

func (e *Events) locked(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
}

// StoreErrors are the store's errors so far.
func (e *Events) StoreErrors() []error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]error(nil), e.store...)
}
