package storeredis

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/breakerkit/breaker"
	"github.com/redis/go-redis/v9"
)

// A connection on which nothing comes for pingAfter is sent a PING, and given up when nothing has come for deadAfter.
const (
	pingAfter = 250 * time.Millisecond
	deadAfter = 750 * time.Millisecond

	minPause = 20 * time.Millisecond // the first wait before connecting again; it doubles
	maxPause = 500 * time.Millisecond
)

// watch is one watcher. Its lock is held during calls, so that none is made after stop has returned.
type watch struct {
	mu      sync.Mutex
	stopped bool
	w       breaker.StoreWatcher
}

func (w *watch) notify(f func(breaker.StoreWatcher)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.stopped {
		f(w.w)
	}
}

func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
}

// Watch tells w of changes. See [breaker.Store]. One goroutine and one connection serve all watchers: they are there from
// the first Watch until the last stop, or Close. Resync is called when that connection has subscribed, the first time and
// every time after it was lost. stop waits for a call of w's methods that is going on, and must not be called by them.
func (s *Store) Watch(w breaker.StoreWatcher) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return func() {}
	}
	added := &watch{w: w}
	s.watches = append(slices.Clip(s.watches), added)
	if len(s.watches) == 1 {
		s.listenLocked()
	}
	return func() {
		s.unwatch(added)
		added.stop()
	}
}

func (s *Store) unwatch(w *watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	had := len(s.watches)
	s.watches = slices.DeleteFunc(slices.Clone(s.watches), func(o *watch) bool { return o == w })
	if had > 0 && len(s.watches) == 0 {
		s.stopListening()
	}
}

// listenLocked starts the goroutine that listens.
func (s *Store) listenLocked() {
	ctx, cancel := context.WithCancel(s.closing)
	s.stopListening = cancel
	s.running.Add(1)
	go func() {
		defer s.running.Done()
		defer cancel()
		s.listen(ctx)
	}()
}

// listen receives events until ctx ends, and connects again whenever the connection is lost.
func (s *Store) listen(ctx context.Context) {
	pause := minPause
	for ctx.Err() == nil {
		if s.session(ctx) {
			pause = minPause
		}
		jittered := pause/2 + rand.N(pause/2)
		select {
		case <-ctx.Done():
		case <-time.After(jittered):
		}
		pause = min(2*pause, maxPause)
	}
}

// session makes one connection and receives events until it is lost. It reports whether it has subscribed.
func (s *Store) session(ctx context.Context) (subscribed bool) {
	sub := s.client.Subscribe(ctx) // connects with the first channel only
	defer func() { _ = sub.Close() }()
	defer context.AfterFunc(ctx, func() { _ = sub.Close() })()
	if err := bounded(ctx, func(ctx context.Context) error { return sub.Subscribe(ctx, s.channel) }); err != nil {
		return false
	}
	lastReceived := time.Now()
	for ctx.Err() == nil {
		var message any
		err := bounded(ctx, func(ctx context.Context) (err error) {
			message, err = sub.ReceiveTimeout(ctx, pingAfter)
			return err
		})
		switch {
		case err == nil:
			lastReceived = time.Now()
			subscribed = s.receive(ctx, message) || subscribed
		case !isTimeout(err) || time.Since(lastReceived) >= deadAfter:
			return subscribed
		default:
			if err := bounded(ctx, func(ctx context.Context) error { return sub.Ping(ctx) }); err != nil {
				return subscribed
			}
		}
	}
	return subscribed
}

// bounded limits a call of the client, which may make a connection in any of them.
func bounded(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, deadAfter)
	defer cancel()
	return f(ctx)
}

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// receive tells the watchers of a message. It reports whether it is the confirmation that the channel is subscribed to.
func (s *Store) receive(ctx context.Context, message any) (subscribed bool) {
	switch m := message.(type) {
	case *redis.Subscription:
		if m.Kind == "subscribe" {
			s.notify(ctx, breaker.StoreWatcher.Resync)
			return true
		}
	case *redis.Message:
		if name, l, ok := parseEvent(m.Payload); ok {
			s.notify(ctx, func(w breaker.StoreWatcher) { w.Changed(name, l) })
		}
	}
	return false
}

func (s *Store) notify(ctx context.Context, f func(breaker.StoreWatcher)) {
	s.mu.Lock()
	watches := s.watches
	s.mu.Unlock()
	for _, w := range watches {
		if ctx.Err() == nil {
			w.notify(f)
		}
	}
}

// Close ends the Store's goroutines and waits for them, but no longer than an operation may take and 750ms. It does not close
// the client. It may be called more than once.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed, s.watches = true, nil
	s.mu.Unlock()
	s.cancel()
	ended := make(chan struct{})
	go func() {
		s.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(s.timeout + deadAfter):
	}
	return nil
}
