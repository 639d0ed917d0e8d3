package main

import (
	"slices"
	"sync"
	"time"
)

// storyClock stands still but for the jumps that a story makes, until it is let run. The zero value starts now.
type storyClock struct {
	mu      sync.Mutex
	now     time.Time
	running time.Time // since when, by the real clock; zero while it stands still
	waits   []storyWait
}

type storyWait struct {
	until time.Time
	over  chan time.Time
}

// Now is the story's time.
func (c *storyClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nowLocked()
}

func (c *storyClock) nowLocked() time.Time {
	if c.now.IsZero() {
		c.now = time.Now().Round(0)
	}
	if !c.running.IsZero() {
		return c.now.Add(time.Since(c.running))
	}
	return c.now
}

// After waits in the story's time.
func (c *storyClock) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := storyWait{c.nowLocked().Add(d), make(chan time.Time, 1)}
	switch {
	case d <= 0:
		w.over <- c.now
	case c.running.IsZero():
		c.waits = append(c.waits, w)
	default:
		return time.After(d)
	}
	return w.over
}

// skip jumps ahead.
func (c *storyClock) skip(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.nowLocked().Add(d)
	c.waits = slices.DeleteFunc(c.waits, func(w storyWait) bool {
		if w.until.After(c.now) {
			return false
		}
		w.over <- c.now
		return true
	})
}

// run lets time pass as it does.
func (c *storyClock) run() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.nowLocked()
	c.running = time.Now()
	for _, w := range c.waits {
		time.AfterFunc(w.until.Sub(now), func() { w.over <- w.until })
	}
	c.waits = nil
}
