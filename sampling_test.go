package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/breakerkit/breaker"
)

// Time: a busy time window that reads the clock for every 16th success only, and clocks that do what clocks should not.

func mdlOK(context.Context) error   { return nil }
func mdlFail(context.Context) error { return errMdlDown }

// Successes from before a pause never water down failures after it.
func TestSamplingIdleThenFailures(t *testing.T) {
	const minCalls = 20
	for _, window := range []time.Duration{time.Second, 10 * time.Second, time.Hour} {
		for _, successes := range []int{1, 15, 63, 64, 65, 79, 80, 1000, 1001, 1015, 5000} {
			for _, idle := range []time.Duration{window, window + window/100, 10 * window} {
				for _, every := range []time.Duration{0, 1, window / 100_000} {
					t.Run(fmt.Sprintf("Last(%v), %d every %v, idle %v", window, successes, every, idle), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							c := breaker.Must(breaker.NewCircuit("idle", breaker.WithTrip(breaker.FailureRate(0.5, minCalls, breaker.Last(window)))))
							for range successes {
								_ = c.Run(t.Context(), mdlOK)
								mdlBubble{}.pass(every)
							}
							mdlBubble{}.pass(idle)
							for i := range minCalls {
								if s := c.State(); s != breaker.Closed {
									t.Fatalf("%v before failure %d", s, i+1)
								}
								_ = c.Run(t.Context(), mdlFail)
							}
							if s := c.Snapshot(); s.State != breaker.Open {
								t.Fatalf("%v after %d failures and no success in the window: %+v", s.State, minCalls, s.Counts)
							}
						})
					})
				}
			}
		}
	}
}

// What Last allows: a success is filed late by no more than a part of the window, and where a fast stream ends up to 15,
// and the one that finds out, are taken to be as old as the one before them.
const (
	mdlLate  = 200
	mdlOlder = 16
)

// mdlSampled is a rate circuit on the default clock beside a list of all that it has seen.
type mdlSampled struct {
	c        *breaker.Circuit
	window   time.Duration
	minCalls uint64
	ok       []time.Time
	failed   []time.Time
}

// bounds is how many of some calls the window may hold. Each is as old as it is, or by so much younger, and gathered into
// a slice, it may leave a 64th of the window early. For each fast stream, some of those after it may be gone.
func (m *mdlSampled) bounds(calls []time.Time, younger time.Duration, older uint64) (least, most uint64) {
	streams, was := uint64(0), false
	for i, at := range calls {
		fast := i >= 16 && at.Sub(calls[i-16]) <= m.window/mdlLate
		if fast && !was {
			streams++
		}
		was = fast
		if time.Since(at) < m.window+younger {
			most++
		}
		if time.Since(at) <= m.window-m.window/64 {
			least++
		}
	}
	return least - min(least, streams*older), most
}

func (m *mdlSampled) succeed(t *rapid.T) {
	every := rapid.SampledFrom([]time.Duration{0, 0, 1, m.window / 1_000_000, m.window / 20_000, m.window / 12_000, m.window / 1000, m.window / 300}).Draw(t, "every")
	n := rapid.SampledFrom([]int{1, 5, 16, 70, 150, 400, 3000, 40_000}).Draw(t, "successes")
	if every > 0 || breaker.RaceEnabled {
		n = min(n, 3000) // time is slow in a bubble
	}
	for range n {
		if err := m.c.Run(context.Background(), mdlOK); err != nil {
			t.Fatal(err)
		}
		m.ok = append(m.ok, time.Now())
		if m.c.State() == breaker.Open { // the rate was reached by successes that have left the window
			m.check(t)
			return
		}
		mdlBubble{}.pass(every)
	}
}

func (m *mdlSampled) fail(t *rapid.T) {
	for range rapid.IntRange(1, 12).Draw(t, "failures") {
		if m.c.Run(context.Background(), mdlFail) != errMdlDown {
			return
		}
		m.failed = append(m.failed, time.Now())
		m.check(t)
	}
}

// check compares counts and verdict with what they may be.
func (m *mdlSampled) check(t *rapid.T) {
	okLeast, okMost := m.bounds(m.ok, m.window/mdlLate, mdlOlder)
	failedLeast, failedMost := m.bounds(m.failed, 0, 0)
	s := m.c.Snapshot()
	if s.State == breaker.Open {
		if failedMost < okLeast || failedMost+okMost < m.minCalls {
			t.Fatalf("open with at most %d failures and %d to %d successes", failedMost, okLeast, okMost)
		}
		m.c.Reset()
		m.ok, m.failed = nil, nil
		return
	}
	n := len(m.failed)
	if n > 0 && m.failed[n-1].Equal(time.Now()) && failedLeast >= okMost && failedLeast+okLeast >= m.minCalls {
		t.Fatalf("closed with at least %d failures and %d to %d successes", failedLeast, okLeast, okMost)
	}
	if c := s.Counts; c.Failures < failedLeast || c.Failures > failedMost || c.Successes < okLeast || c.Successes > okMost {
		t.Fatalf("%+v, want %d to %d failures and %d to %d successes", c, failedLeast, failedMost, okLeast, okMost)
	}
}

// With a busy window the times of successes are off by no more than Last says, and those of failures not at all.
func TestSamplingStaysWithinItsBounds(t *testing.T) {
	mdlCheckInABubble(t, func(t *rapid.T) {
		m := &mdlSampled{window: 10 * time.Second, minCalls: 10}
		m.c = breaker.Must(breaker.NewCircuit("busy", breaker.WithTrip(breaker.FailureRate(0.5, int(m.minCalls), breaker.Last(m.window)))))
		t.Repeat(map[string]func(*rapid.T){
			"succeed": m.succeed,
			"fail":    m.fail,
			"wait": func(t *rapid.T) {
				w := m.window
				mdlBubble{}.pass(rapid.SampledFrom([]time.Duration{w, w - 1, w - w/5000, w - w/1000, w / 2, w / 20, w / 300, w / 1000}).Draw(t, "d"))
			},
			"": m.check,
		})
	})
}

// Where a fast stream becomes a slow one, the slow one still counts: few failures among many successes do not trip.
func TestSamplingDropOfTraffic(t *testing.T) {
	const window = 10 * time.Second
	rates := []int{1_000, 30_000, 300_000, 2_000_000} // successes in one second
	if testing.Short() || breaker.RaceEnabled {
		rates = rates[:2]
	}
	for _, fast := range rates {
		for _, slow := range []int{10, 30, 100} { // successes a second afterwards
			for _, after := range []time.Duration{window / 2, window, 2 * window} {
				t.Run(fmt.Sprintf("%d, then %d a second, %v", fast, slow, after), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						c := breaker.Must(breaker.NewCircuit("drop", breaker.WithTrip(breaker.FailureRate(0.5, 20, breaker.Last(window)))))
						stream := func(n, atOnce int, every time.Duration) {
							for range n {
								for range atOnce {
									_ = c.Run(t.Context(), mdlOK)
								}
								mdlBubble{}.pass(every)
							}
						}
						stream(1000, fast/1000, time.Millisecond)
						n := int(after.Seconds()) * slow
						stream(n, 1, time.Second/time.Duration(slow))
						for range 20 {
							_ = c.Run(t.Context(), mdlFail)
						}
						if s := c.Snapshot(); s.State != breaker.Closed {
							t.Errorf("open at 20 failures among %d successes in the window", min(n, int(window.Seconds())*slow))
						}
					})
				})
			}
		}
	}
}

// What leaves a busy window is noticed: here the old successes, which leave too many failures behind.
func TestSamplingNoticesWhatLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const window = 10 * time.Second
		c := breaker.Must(breaker.NewCircuit("leaves", breaker.WithTrip(breaker.FailureRate(0.5, 20, breaker.Last(window)))))
		start := time.Now()
		run := func(n int, fn func(context.Context) error) {
			for range n {
				_ = c.Run(t.Context(), fn)
			}
		}
		run(20_000, mdlOK)
		mdlBubble{}.pass(window - 100*time.Millisecond)
		run(1000, mdlOK)
		run(15_000, mdlFail)
		for time.Since(start) < window {
			if s := c.State(); s != breaker.Closed {
				t.Fatalf("%v after %v", s, time.Since(start))
			}
			run(20, mdlOK)
			mdlBubble{}.pass(time.Millisecond)
		}
		for c.State() == breaker.Closed {
			run(20, mdlOK)
			mdlBubble{}.pass(time.Millisecond)
			if time.Since(start) > window+window/64 {
				t.Fatalf("closed %v after they left: %+v", time.Since(start)-window, c.Snapshot().Counts)
			}
		}
	})
}

// Slower streams are exact, however much the window holds, and again once a fast one has left it.
func TestSamplingSlowStreamsAreExact(t *testing.T) {
	mdlCheckInABubble(t, func(t *rapid.T) {
		const window = 10 * time.Second
		c := breaker.Must(breaker.NewCircuit("slow", breaker.WithTrip(breaker.FailureRate(1, 1_000_000, breaker.Last(window)))))
		var ok []time.Time
		for range rapid.SampledFrom([]int{0, 3000}).Draw(t, "fast") {
			_ = c.Run(context.Background(), mdlOK)
		}
		most := rapid.SampledFrom([]int{1, 63}).Draw(t, "most")
		for range rapid.IntRange(101, 200).Draw(t, "bursts") {
			for range max(1, most-rapid.IntRange(0, 40).Draw(t, "less")) {
				_ = c.Run(context.Background(), mdlOK)
				ok = append(ok, time.Now())
			}
			mdlBubble{}.pass(rapid.SampledFrom([]time.Duration{window / 100, window / 50, window / 20}).Draw(t, "d"))
		}
		want := uint64(0)
		for _, at := range ok {
			if time.Since(at) < window {
				want++
			}
		}
		if got := c.Snapshot().Counts.Successes; got != want {
			t.Fatalf("%d successes in the window, want %d", got, want)
		}
	})
}

// Under an injected clock nothing is sampled: what a burst leaves is exact to the nanosecond.
func TestSamplingIsOffUnderAnInjectedClock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const window = 10 * time.Second
		clk := newMdlClock()
		c := breaker.Must(breaker.NewCircuit("exact", breaker.WithClock(clk), breaker.WithTrip(breaker.FailureRate(1, 1_000_000, breaker.Last(window)))))
		var ok []time.Time
		for range rapid.IntRange(1, 60).Draw(t, "bursts") {
			for range rapid.IntRange(0, 200).Draw(t, "successes") {
				_ = c.Run(context.Background(), mdlOK)
				ok = append(ok, clk.Now())
			}
			clk.pass(rapid.SampledFrom([]time.Duration{0, 1, time.Millisecond, time.Second, window - 1}).Draw(t, "d"))
			want := uint64(0)
			for _, at := range ok {
				if clk.Now().Sub(at) < window {
					want++
				}
			}
			if got := c.Snapshot().Counts.Successes; got != want {
				t.Fatalf("%d successes in the window, want %d", got, want)
			}
		}
	})
}

// BC-47: a wall clock that is set back or forward.
func TestClockSetBack(t *testing.T) {
	const period = 10 * time.Second
	for _, seen := range []bool{false, true} { // whether a call was rejected before the step
		t.Run(fmt.Sprintf("rejected before %v", seen), func(t *testing.T) {
			clk := newMdlClock()
			c := breaker.Must(breaker.NewCircuit("jump", breaker.WithClock(clk), breaker.WithFailureThreshold(1), breaker.WithOpenTimeout(period)))
			_ = c.Run(t.Context(), mdlFail)
			clk.pass(2 * time.Second)
			if seen {
				mdlRemaining(t, c, period)
			}
			clk.pass(-time.Hour)
			left := mdlRemaining(t, c, period)
			if seen && left != 8*time.Second {
				t.Errorf("%v left, want 8s", left)
			}
			if s := c.Snapshot(); s.State != breaker.Open || s.Until.Sub(clk.Now()) > period || s.Until.Before(clk.Now()) {
				t.Errorf("at %v: %+v", clk.Now(), s)
			}
			clk.pass(left - 1)
			if c.State() != breaker.Open || c.Ready() {
				t.Errorf("%v before its time", c.State())
			}
			mdlRemaining(t, c, 1)
			clk.pass(1)
			if c.State() != breaker.HalfOpen {
				t.Errorf("%v when it is due", c.State())
			}
			if err := c.Run(t.Context(), mdlOK); err != nil {
				t.Errorf("no probe when it is due: %v", err)
			}
		})
	}
}

// mdlRemaining requires a rejection and returns its RetryAfter, which is at most that much.
func mdlRemaining(t *testing.T, c *breaker.Circuit, most time.Duration) time.Duration {
	t.Helper()
	var open *breaker.OpenError
	if err := c.Run(t.Context(), mdlOK); !errors.As(err, &open) {
		t.Fatalf("not rejected: %v", err)
	}
	left := open.RetryAfter()
	if left < 0 || left > most {
		t.Errorf("%v left, want at most %v", left, most)
	}
	return left
}

// Whatever a clock does: windows never go wrong, an open circuit opens up within its period, and nothing is stuck.
func TestClockJumps(t *testing.T) {
	for name, rule := range mdlRules {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				const period = 5 * time.Second
				clk := newMdlClock()
				c := breaker.Must(breaker.NewCircuit("jump", append(rule.opts(), breaker.WithClock(clk), breaker.WithOpenTimeout(period), breaker.WithSuccessThreshold(1))...))
				calls := uint64(0)
				jump := rapid.SampledFrom([]time.Duration{-time.Hour, -time.Second, -1, 0, 0, 1, time.Second, 3 * time.Second, time.Hour})
				t.Repeat(map[string]func(*rapid.T){
					"jump": func(t *rapid.T) { clk.pass(jump.Draw(t, "by")) },
					"call": func(t *rapid.T) {
						fn := rapid.SampledFrom([]func(context.Context) error{mdlOK, mdlFail}).Draw(t, "fn")
						var open *breaker.OpenError
						if err := c.Run(context.Background(), fn); !errors.As(err, &open) {
							calls++
						} else if left := open.RetryAfter(); left < 0 || left > period {
							t.Fatalf("%v left", left)
						}
					},
					"recover": func(t *rapid.T) {
						_ = c.State() // reads the clock, so that what passes from here on is known
						clk.pass(period)
						if c.State() == breaker.Open || !c.Ready() {
							t.Fatalf("%v", c.Snapshot())
						}
					},
					"": func(t *rapid.T) {
						s := c.Snapshot()
						n := s.Counts
						if s.Totals.Calls != calls || s.InFlight != 0 || n.Successes+n.Failures+n.Ignored > calls || n.Slow > calls {
							t.Fatalf("%v: %+v", s, n)
						}
						if s.State == breaker.Open && (s.Until.Sub(clk.Now()) > period || s.Since.After(clk.Now())) {
							t.Fatalf("open since %v until %v at %v", s.Since, s.Until, clk.Now())
						}
					},
				})
			})
		})
	}
}

// mdlUserClock is a clock of a user that does more than tell the time.
type mdlUserClock struct {
	*mdlClock
	do atomic.Pointer[func()]
}

func (c *mdlUserClock) Now() time.Time {
	if do := c.do.Load(); do != nil {
		(*do)()
	}
	return c.mdlClock.Now()
}

// A clock that panics is taken to say what it said before; calls and slots come to no harm.
func TestClockPanics(t *testing.T) {
	clk := &mdlUserClock{mdlClock: newMdlClock()}
	c := breaker.Must(breaker.NewCircuit("panics", breaker.WithClock(clk), breaker.WithFailureThreshold(2), breaker.WithSuccessThreshold(1), breaker.WithOpenTimeout(10*time.Second)))
	broken := func() { panic("clock") }
	clk.do.Store(&broken)
	ctx := t.Context()
	_ = c.Run(ctx, mdlOK)
	_ = c.Run(ctx, mdlFail)
	_ = c.Run(ctx, mdlFail)
	if s := c.Snapshot(); s.State != breaker.Open || s.InFlight != 0 {
		t.Fatalf("%v", s)
	}
	if err := c.Run(ctx, mdlOK); !errors.Is(err, breaker.ErrOpen) {
		t.Fatal(err)
	}
	clk.pass(10 * time.Second)
	if c.State() != breaker.Open {
		t.Error("time has passed on a clock that does not say so")
	}
	clk.do.Store(nil)
	p, err := c.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	clk.do.Store(&broken)
	p.Done(nil)
	if s := c.Snapshot(); s.State != breaker.Closed || s.InFlight != 0 || s.Probes != 0 {
		t.Errorf("%v after a good probe", s)
	}
	c.Trip(nil)
	c.Reset()
	c.OfferProbe()
	if err := c.Configure(breaker.WithFailureThreshold(3)); err != nil {
		t.Error(err)
	}
}

// A clock may call the circuit: it is asked outside every lock.
func TestClockCallsTheCircuit(t *testing.T) {
	clk := &mdlUserClock{mdlClock: newMdlClock()}
	c := breaker.Must(breaker.NewCircuit("calls", breaker.WithClock(clk), breaker.WithTrip(breaker.FailureRate(0.5, 2, breaker.Last(time.Minute)))))
	var inside atomic.Bool
	calls := func() {
		if inside.CompareAndSwap(false, true) {
			defer inside.Store(false)
			_ = c.Snapshot()
			_ = c.Run(context.Background(), mdlOK)
			_ = c.Ready()
		}
	}
	clk.do.Store(&calls)
	guard(t, patience, func() {
		for range 3 {
			_ = c.Run(context.Background(), mdlOK)
			_ = c.Run(context.Background(), mdlFail)
			c.Trip(nil)
			_ = c.Run(context.Background(), mdlOK)
			c.OfferProbe()
			c.SetMode(breaker.Auto)
			c.Reset()
		}
	})
	if n := c.Snapshot().InFlight; n != 0 {
		t.Errorf("%d in flight", n)
	}
}
