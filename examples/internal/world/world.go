// Package world gives the examples with many goroutines a time of its own: an hour in it passes as fast as it can be
// computed, and every run goes the same way.
package world

import (
	"container/heap"
	"time"

	"github.com/breakerkit/breaker"
)

// A World's time passes only while everybody in it sleeps. One of its goroutines runs at a time, in an order that is the
// same in every run: what they share needs no lock. It is a breaker.Clock for circuits and timeouts; for retries it is
// [World.Waiting]. Make one with New.
type World struct {
	now   time.Time
	queue queue
	count int           // of events so far
	idle  chan struct{} // whoever runs says here that it sleeps or has ended
}

var (
	_ breaker.Clock = (*World)(nil)
	_ breaker.Clock = waiting{}
)

// New makes an empty world.
func New() *World {
	return &World{now: time.Date(2026, time.January, 5, 9, 0, 0, 0, time.UTC), idle: make(chan struct{})}
}

// Now is the world's time.
func (w *World) Now() time.Time { return w.now }

// After is for timeouts: its caller goes on running, and somebody outside the world, such as the breaker's own goroutine,
// receives from the channel.
func (w *World) After(d time.Duration) <-chan time.Time {
	over := make(chan time.Time, 1)
	w.plan(d, func() { over <- w.now })
	return over
}

// Waiting is the world's clock for those who receive from After's channel as soon as they have it: retries.
func (w *World) Waiting() breaker.Clock { return waiting{w} }

// Enter brings somebody into the world after d, in a goroutine.
func (w *World) Enter(d time.Duration, body func()) {
	w.plan(d, func() {
		go func() {
			body()
			w.idle <- struct{}{}
		}()
		<-w.idle
	})
}

// Sleep is for those who have entered: it wakes its caller after d.
func (w *World) Sleep(d time.Duration) { <-waiting{w}.After(d) }

// Run lets time pass until nothing is left to happen.
func (w *World) Run() {
	for len(w.queue) > 0 {
		e := heap.Pop(&w.queue).(event)
		w.now = e.at
		e.happens()
	}
}

func (w *World) plan(d time.Duration, happens func()) {
	w.count++
	heap.Push(&w.queue, event{w.now.Add(d), w.count, happens})
}

type waiting struct{ w *World }

func (c waiting) Now() time.Time { return c.w.now }

func (c waiting) After(d time.Duration) <-chan time.Time {
	over := make(chan time.Time, 1)
	c.w.plan(d, func() {
		over <- c.w.now
		<-c.w.idle
	})
	c.w.idle <- struct{}{}
	return over
}

type event struct {
	at      time.Time
	number  int // of two events at one instant, the one that was planned first comes first
	happens func()
}

type queue []event

func (q queue) Len() int { return len(q) }

func (q queue) Less(i, j int) bool {
	if q[i].at.Equal(q[j].at) {
		return q[i].number < q[j].number
	}
	return q[i].at.Before(q[j].at)
}

func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

func (q *queue) Push(x any) { *q = append(*q, x.(event)) }

func (q *queue) Pop() any {
	old := *q
	e := old[len(old)-1]
	*q = old[:len(old)-1]
	return e
}
