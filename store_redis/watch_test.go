package storeredis_test

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/breakerkit/breaker"
	storeredis "github.com/breakerkit/breaker/store_redis"
)

// watcher records what it is told.
type watcher struct {
	mu      sync.Mutex
	changes []told
	resyncs int
}

type told struct {
	name   string
	ledger breaker.Ledger
}

func (w *watcher) Changed(name string, l breaker.Ledger) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changes = append(w.changes, told{name, l})
}

func (w *watcher) Resync() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.resyncs++
}

// count is how often Resync has been called.
func (w *watcher) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.resyncs
}

func (w *watcher) await(t *testing.T, what string, fits func(told) bool) {
	t.Helper()
	eventually(t, what, func() bool { return w.heard(fits) })
}

func (w *watcher) heard(fits func(told) bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.changes, fits)
}

// watch starts a watcher and waits until it listens.
func watch(t *testing.T, s *storeredis.Store) *watcher {
	t.Helper()
	w := &watcher{}
	t.Cleanup(s.Watch(w))
	eventually(t, "the first Resync", func() bool { return w.count() > 0 })
	return w
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: has not happened", what)
		}
	}
}

// Whatever happens to the connection, watchers are told that they may have missed something, and then hear again.
func TestWatchRecovers(t *testing.T) {
	srv := server(t)
	s := open(t, srv.Client(t), storeredis.Timeout(time.Second))
	w := watch(t, s)
	for what, disturb := range map[string]func(){
		"a pause": func() {
			srv.Pause()
			time.Sleep(1200 * time.Millisecond) // longer than a silent connection is believed in
			srv.Resume()
		},
		"a crash":           srv.Restart,
		"a lost connection": func() { srv.Do("CLIENT", "KILL", "TYPE", "pubsub") },
	} {
		before := w.count()
		disturb()
		begun := time.Now()
		eventually(t, "Resync after "+what, func() bool { return w.count() > before })
		t.Logf("after %s: Resync within %v", what, time.Since(begun).Round(time.Millisecond))
		for try, heard := 0, false; !heard; try++ { // the first time, unless the machine itself stands still
			before = w.count()
			name := fmt.Sprint(what, try)
			var l breaker.Ledger
			eventually(t, "an answer after "+what, func() bool {
				var err error
				l, err = s.Move(ctx, breaker.StoreMove{Name: name, Shape: shape, To: breaker.Open, For: time.Minute})
				return err == nil
			})
			eventually(t, "a change after "+what+", or another Resync", func() bool {
				heard = w.heard(func(c told) bool { return c.name == name && c.ledger.Epoch == l.Epoch })
				return heard || w.count() > before
			})
		}
	}
}

// A silent channel is no lost connection.
func TestWatchStaysConnected(t *testing.T) {
	s := open(t, client(t))
	w := watch(t, s)
	time.Sleep(2500 * time.Millisecond)
	if n := w.count(); n > 2 { // once more is allowed to a machine that stood still itself
		t.Errorf("%d times Resync on a connection that was well", n)
	}
}

// With the last watcher the listener goes, and comes back with the next.
func TestWatchEnds(t *testing.T) {
	c := client(t)
	s := open(t, c)
	for range 2 {
		w := &watcher{}
		stop := s.Watch(w)
		eventually(t, "Resync", func() bool { return w.count() > 0 })
		stop()
		eventually(t, "nobody listens", func() bool { return c.PubSubNumSub(ctx, "cb:events").Val()["cb:events"] == 0 })
	}
}

// One goroutine listens, however many watchers and circuits there are, and it goes with the last watcher.
func TestWatchGoroutines(t *testing.T) {
	s := open(t, client(t))
	report(t, s, breaker.StoreReport{Name: "c", Node: "n", Shape: shape, Batch: outcomes(0, 1)})
	before := runtime.NumGoroutine()
	w := watch(t, s)
	one := runtime.NumGoroutine()
	var stops []func()
	for range 100 {
		stops = append(stops, s.Watch(&watcher{}))
	}
	for i := range 300 {
		move(t, s, string(rune('a'+i)), 0, breaker.Open, time.Hour)
	}
	eventually(t, "no more goroutines, whatever the connections need", func() bool { return runtime.NumGoroutine() <= min(one, before+2) })
	for _, stop := range stops {
		stop()
	}
	w.await(t, "the last change", func(c told) bool { return c.name == string(rune('a'+299)) })
	again := &watcher{}
	stop := s.Watch(again)
	move(t, s, "again", 0, breaker.Open, time.Hour)
	again.await(t, "a newcomer's change", func(c told) bool { return c.name == "again" })
	stop()
}

func TestClose(t *testing.T) {
	c := client(t)
	s := open(t, c)
	w := watch(t, s)
	for range 3 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if n := w.count(); n != 1 {
		t.Errorf("%d times Resync", n)
	}
	if err := c.Ping(ctx).Err(); err != nil {
		t.Errorf("the client was closed: %v", err)
	}
}

// Events of another database on the same server are none of ours.
func TestDatabasesDoNotMix(t *testing.T) {
	srv := server(t)
	zero, one := open(t, srv.Client(t)), open(t, srv.Client(t, inDB1))
	w := watch(t, zero)
	w1 := watch(t, one)
	move(t, one, "c", 0, breaker.Open, time.Hour)
	w1.await(t, "its own change", func(c told) bool { return c.name == "c" })
	move(t, zero, "after", 0, breaker.Open, time.Hour)
	w.await(t, "its own change", func(c told) bool { return c.name == "after" })
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.changes {
		if c.name == "c" {
			t.Error("told of another database's circuit")
		}
	}
}
