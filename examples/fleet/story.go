package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"
	"time"
)

// story is what is played, and what was seen of it.
type story struct {
	out      *timeline
	up       *upstream
	redis    *redisServer // nil: in memory
	fleet    *fleet
	heardAll chan struct{}

	mu     sync.Mutex
	states map[int]string
	opened map[int]bool // in the present act
	finals []event
	faults []string
}

func newStory(w io.Writer) *story {
	out := &timeline{w: w, began: time.Now(), failures: -1}
	return &story{
		out:      out,
		up:       newUpstream(out.upstream),
		heardAll: make(chan struct{}),
		states:   make(map[int]string),
		opened:   make(map[int]bool),
	}
}

func (s *story) startFleet(ctx context.Context, redis string) (err error) {
	if s.redis, err = startRedis(ctx, redis); err != nil {
		return err
	}
	s.out.say("a redis-server on %s, an upstream, and %d processes that call it 20 times a second each", s.redis.addr, workers)
	s.fleet, err = startProcesses(ctx, s.up.url(), s.redis.addr)
	return err
}

// listen takes in what the workers tell.
func (s *story) listen() {
	defer close(s.heardAll)
	for e := range s.fleet.events {
		s.mu.Lock()
		switch {
		case e.Final:
			s.finals = append(s.finals, e)
		default:
			s.states[e.Worker] = e.To
			if e.To == "open" {
				s.opened[e.Worker] = true
			}
			s.out.change(e)
		}
		s.mu.Unlock()
	}
}

// all waits until every worker is in a state.
func (s *story) all(ctx context.Context, state string) {
	for ctx.Err() == nil {
		s.mu.Lock()
		n := 0
		for _, is := range s.states {
			if is == state {
				n++
			}
		}
		s.mu.Unlock()
		if n == workers {
			return
		}
		pause(ctx, 10*time.Millisecond)
	}
}

func (s *story) check(ok bool, what string, args ...any) {
	if !ok {
		s.faults = append(s.faults, fmt.Sprintf(what, args...))
	}
}

// agree is the first act: the upstream fails and recovers, and three processes act as one.
func (s *story) agree(ctx context.Context) {
	pause(ctx, time.Second)
	s.out.act("the upstream fails")
	s.out.showFailures(true)
	s.up.set(true)
	s.all(ctx, "open")
	pause(ctx, 100*time.Millisecond) // what was on its way arrives
	before := s.up.served()
	pause(ctx, 400*time.Millisecond)
	s.check(s.up.served() == before, "an open fleet sent %d requests", s.up.served()-before)
	s.out.act("the upstream is well again; the next probe is due 2s after the opening")
	s.up.set(false)
	s.out.showProbes(true)
	s.all(ctx, "closed")
	s.out.showProbes(false)
	s.check(s.out.mostProbes() <= 2, "%d requests before the fleet was closed, for a success threshold of 2", s.out.mostProbes())
	pause(ctx, time.Second)
}

// withoutRedis is the second act: Redis is stopped, and what depends on it goes on.
func (s *story) withoutRedis(ctx context.Context) {
	s.out.act("Redis is stopped (SIGSTOP): it holds its connections and answers nothing")
	_ = s.redis.signal(syscall.SIGSTOP)
	before := s.up.served()
	pause(ctx, 2*time.Second)
	n := s.up.served() - before
	s.out.say("%d requests were served in these 2s, nobody has noticed", n)
	s.check(n > 60, "only %d requests within 2s while Redis was stopped", n)

	s.out.act("the upstream fails while Redis is away: everyone is on his own")
	s.up.set(true)
	s.all(ctx, "open")
	s.up.set(false)
	s.out.act("the upstream is well again")
	s.all(ctx, "closed")
	s.out.act("Redis goes on (SIGCONT)")
	_ = s.redis.signal(syscall.SIGCONT)
	pause(ctx, 1500*time.Millisecond)
	s.all(ctx, "closed")
}

// verdict prints the totals, and whether the story happened.
func (s *story) verdict() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out.totals(s.finals)
	s.check(len(s.finals) == workers, "%d of %d workers have told their totals", len(s.finals), workers)
	for n := 1; n <= workers; n++ {
		s.check(s.opened[n], "worker %d has never opened", n)
	}
	if len(s.faults) > 0 {
		return fmt.Errorf("the story went otherwise:\n  %s", strings.Join(s.faults, "\n  "))
	}
	s.out.say("all as it should be: one circuit, %d members", workers)
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// timeline prints what happens.
type timeline struct {
	w     io.Writer
	began time.Time

	mu       sync.Mutex
	failures int // shown in this act; -1: not to be shown
	fifth    time.Time
	probes   bool
	probed   int
}

func (t *timeline) line(at time.Time, format string, args ...any) {
	fmt.Fprintf(t.w, "%7.3fs  %s\n", at.Sub(t.began).Seconds(), fmt.Sprintf(format, args...))
}

func (t *timeline) say(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.line(time.Now(), format, args...)
}

// act begins a new part.
func (t *timeline) act(what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintln(t.w)
	t.line(time.Now(), "--- %s", what)
}

func (t *timeline) showFailures(yes bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failures = -1
	if yes {
		t.failures = 0
	}
}

func (t *timeline) showProbes(yes bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.probes = yes
}

func (t *timeline) mostProbes() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.probed
}

// upstream is told of every request.
func (t *timeline) upstream(worker string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	switch {
	case !ok && t.failures >= 0:
		t.failures++
		t.line(now, "            upstream: 503 to worker %s (%d)", worker, t.failures)
		if t.failures == 5 {
			t.fifth = now
		}
	case ok && t.probes && t.probed < 2:
		t.probed++
		t.line(now, "            upstream: worker %s probes, 200", worker)
	}
}

// change is told of every change of a worker's state.
func (t *timeline) change(e event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	after := ""
	if e.To == "open" && !t.fifth.IsZero() {
		after = fmt.Sprintf(", %.1f ms after the fifth failure", float64(e.At.Sub(t.fifth).Microseconds())/1000)
	}
	t.line(e.At, "worker %d  %-9s -> %-9s (%s)%s", e.Worker, e.From, e.To, e.Reason, after)
	if e.To == "closed" {
		t.fifth, t.failures = time.Time{}, -1
	}
}

func (t *timeline) totals(finals []event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintln(t.w)
	for _, e := range finals {
		fmt.Fprintf(t.w, "          worker %d: %d calls, %d failed, %d rejected; the breaker added at most %v to a call that was no probe\n",
			e.Worker, e.Calls, e.Failures, e.Rejected, e.Slowest.Round(time.Microsecond))
	}
	fmt.Fprintln(t.w)
}
