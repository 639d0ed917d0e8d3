package breaker

import (
	"context"
	"fmt"
	"sync"
)

// notifier delivers a circuit's transitions in order, one at a time, outside the circuit's lock. They are queued under
// that lock, which determines the order.
type notifier struct {
	mu        sync.Mutex
	queue     []notice
	delivered int  // how many receivers the first in the queue has been delivered to
	busy      bool // a goroutine is delivering
}

// notice is a transition and the functions to call for it: those that were configured when it happened, whatever the
// goroutine that delivers it knows of.
type notice struct {
	Transition
	receivers []func(Transition)
}

// deliverAtMost is how many events a caller's goroutine delivers before another one takes over.
const deliverAtMost = 16

func (n *notifier) add(t Transition, receivers []func(Transition)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.queue = append(n.queue, notice{t, receivers})
}

// notifierLocked returns the circuit's notifier if a step has queued something, otherwise nil.
func (c *Circuit) notifierLocked(fx *effects) *notifier {
	if fx.moved == 0 || c.extras == nil {
		return nil
	}
	return &c.extras.notifier
}

// idle reports whether the queue is empty.
func (n *notifier) idle() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.queue) == 0
}

// deliver delivers what is queued, unless another goroutine is doing so. On a nil notifier it does nothing.
func (n *notifier) deliver(s *settings) {
	if n == nil {
		return
	}
	n.mu.Lock()
	mine := !n.busy
	n.busy = true
	n.mu.Unlock()
	if mine {
		n.run(s, deliverAtMost)
	}
}

// run delivers until the queue is empty. A new goroutine goes on after atMost events (a negative number is no bound),
// and after a receiver has ended this one.
func (n *notifier) run(s *settings, atMost int) {
	ended := false
	defer func() {
		if !ended {
			go n.run(s, -1)
		}
	}()
	for atMost != 0 {
		t, receive, done := n.next()
		if done {
			ended = true
			return
		}
		if receive == nil {
			atMost--
			continue
		}
		s.contain(t.Name, "StateChange", func() { receive(t) })
	}
}

// next returns the next event and the next receiver for it. receive is nil when the event has been delivered to all.
func (n *notifier) next() (t Transition, receive func(Transition), done bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.queue) == 0 {
		n.busy = false
		return t, nil, true
	}
	first := &n.queue[0]
	if n.delivered == len(first.receivers) {
		*first = notice{}
		n.queue, n.delivered = n.queue[1:], 0
		return t, nil, false
	}
	n.delivered++
	return first.Transition, first.receivers[n.delivered-1], false
}

func (s *settings) hookCall(ctx context.Context, e CallEvent) {
	for _, h := range s.draft.hooks {
		if h.Call != nil {
			s.contain(e.Name, "Call", func() { h.Call(ctx, e) })
		}
	}
}

// notifyCall calls the hooks for a finished call, then delivers the transitions that it caused, even if a Call hook
// ends the goroutine.
func (s *settings) notifyCall(ctx context.Context, e CallEvent, n *notifier) {
	defer n.deliver(s)
	s.hookCall(ctx, e)
}

func (s *settings) hookReject(ctx context.Context, e RejectEvent) {
	for _, h := range s.draft.hooks {
		if h.Reject != nil {
			s.contain(e.Name, "Reject", func() { h.Reject(ctx, e) })
		}
	}
}

// notifyReject calls the hooks for a rejection that took no lock.
func (s *settings) notifyReject(ctx context.Context, err *OpenError) {
	s.hookReject(ctx, RejectEvent{Name: err.Circuit, Err: err})
}

func (s *settings) hookRetry(ctx context.Context, e RetryEvent) {
	for _, h := range s.draft.hooks {
		if h.Retry != nil {
			s.contain(e.Name, "Retry", func() { h.Retry(ctx, e) })
		}
	}
}

func (s *settings) hookStoreError(circuit string, err error) {
	for _, h := range s.draft.hooks {
		if h.StoreError != nil {
			s.contain(circuit, "StoreError", func() { h.StoreError(err) })
		}
	}
}

func (s *settings) hookOverflow(key string) {
	for _, h := range s.draft.hooks {
		if h.Overflow != nil {
			s.contain(key, "Overflow", func() { h.Overflow(key) })
		}
	}
}

func (s *settings) hookRescue(ctx context.Context, e RescueEvent) {
	for _, h := range s.draft.hooks {
		if h.Rescue != nil {
			s.contain(e.Name, "Rescue", func() { h.Rescue(ctx, e) })
		}
	}
}

// contain runs a user's function. A panic in it is recovered and logged. If it ends its goroutine by runtime.Goexit,
// which cannot be undone, that is logged.
func (s *settings) contain(circuit, what string, f func()) {
	returned := false
	defer func() {
		if returned {
			return
		}
		var end any = "runtime.Goexit"
		if r := recover(); r != nil {
			end = r
		}
		s.logUnreturned(circuit, what, end)
	}()
	f()
	returned = true
}

// logUnreturned logs how a user's function ended. A panic in the logger is recovered.
func (s *settings) logUnreturned(circuit, what string, end any) {
	defer func() { _ = recover() }()
	if l := s.draft.logger; l != nil {
		l.Error("user function did not return", "name", circuit, "function", what, "end", fmt.Sprint(end))
	}
}

// userTrips calls the user's TripWhen functions with their counts, in the order of the rules, until one says to open.
func (s *settings) userTrips(circuit string, counts []Counts) (trip bool) {
	for i := range s.trips.rules {
		r := &s.trips.rules[i]
		if r.kind != tripWhen {
			continue
		}
		s.contain(circuit, "TripWhen", func() { trip = r.when(counts[0]) })
		if trip {
			return true
		}
		counts = counts[1:]
	}
	return false
}
