package main

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// pace is how a story's time passes: by a clock that leaps, with the true numbers, or by the real one, scaled down.
type pace struct {
	clock *leapClock // nil: real time
	scale time.Duration
}

func (p pace) settings(s *settings) {
	if p.clock != nil {
		s.clock = p.clock
	}
	s.open /= p.scale
}

func (p pace) text(d time.Duration) string { return (d / p.scale).String() }

// at moves the leaping clock; in real time nothing depends on the exact moment.
func (p pace) at(began time.Time, t time.Duration) {
	if p.clock != nil {
		p.clock.set(began.Add(t))
	}
}

func (p pace) slept(t *testing.T, want ...time.Duration) {
	t.Helper()
	if p.clock != nil {
		require.Equal(t, want, p.clock.slept())
	}
}

// recover goes to the end of the open period.
func (p pace) recover(b *bench, addr string) {
	b.t.Helper()
	if p.clock != nil {
		c := b.circuit(addr)
		require.Equal(b.t, 15*time.Second, c.Until.Sub(p.clock.Now()), "the open period is not the full 15s")
		p.clock.set(c.Until.Add(-1))
		require.Equal(b.t, "open", b.state(addr), "a nanosecond early")
		p.clock.set(c.Until)
	}
	b.eventually("half-open", func() bool { return b.state(addr) == breaker.HalfOpen.String() })
}

func eachPace(t *testing.T, story func(*testing.T, pace)) {
	t.Parallel()
	t.Run("true numbers, leaping clock", func(t *testing.T) { story(t, pace{newLeapClock(), 1}) })
	t.Run("real time, scaled", func(t *testing.T) { story(t, pace{nil, 5}) })
}

// fullStack is E1's request: POST, 3 retries from 500 ms, cache 3600 s.
type fullStack struct {
	*bench
	pace
	up *upstream
}

func newFullStack(t *testing.T, p pace) *fullStack {
	up := newUpstream(t, "model")
	return &fullStack{newBench(t, p.settings, up.addr), p, up}
}

func (f *fullStack) headers() []string {
	return []string{
		"X-Target-URL", "http://" + f.up.addr + "/v1/chat", "X-Circuit-Breaker", "on",
		"X-Retry-Count", "3", "X-Retry-Delay", f.text(500 * time.Millisecond), "X-Smart-Cache", f.text(time.Hour),
		"Content-Type", "application/json", "Idempotency-Key", "k1",
	}
}

func (f *fullStack) post() answer {
	f.t.Helper()
	return f.send(http.MethodPost, `{"q":1}`, f.headers()...)
}

const v0 = "model, call 1"

// fromCache asserts a stored answer.
func (f *fullStack) fromCache(a answer) {
	f.t.Helper()
	require.Equal(f.t, answer{200, v0, "cache", a.header}, a)
	require.Equal(f.t, "text/plain", a.header.Get("Content-Type"))
}

// open plays steps 1 to 3, after a good answer: 1 + 5 calls.
func (f *fullStack) open() {
	t := f.t
	began := time.Time{}
	if f.clock != nil {
		began = f.clock.Now()
	}
	first := f.post()
	require.Equal(t, answer{200, v0, "", first.header}, first, "the first try succeeds: no X-Rescued")
	require.Equal(t, 1, f.up.count())
	f.up.set(http.StatusServiceUnavailable)

	f.at(began, 10*time.Second)
	f.fromCache(f.post())
	f.slept(t, 500*time.Millisecond, time.Second, 2*time.Second)
	require.Equal(t, 1+4, f.up.count())
	require.Equal(t, "closed", f.state(f.up.addr))
	require.EqualValues(t, 4, f.circuit(f.up.addr).ConsecutiveFailures)

	f.at(began, 20*time.Second)
	f.fromCache(f.post())
	f.slept(t)
	require.Equal(t, 1+5, f.up.count())

	for range 100 {
		f.fromCache(f.post())
	}
	require.Equal(t, 1+5, f.up.count(), "an open circuit lets nothing through")
	require.Equal(t, "open", f.state(f.up.addr))
}

// E1, steps 1 to 4a.
func TestFullStackRecovers(t *testing.T) {
	eachPace(t, func(t *testing.T, p pace) {
		f := newFullStack(t, p)
		f.open()
		f.recover(f.bench, f.up.addr)
		f.up.set(http.StatusOK)
		release := f.up.hold()
		defer release()
		answers, failed := make(chan answer, 20), make(chan error, 20)
		for range 20 {
			go func() {
				a, err := f.try(http.MethodPost, `{"q":1}`, f.headers()...)
				failed <- err
				answers <- a
			}()
		}
		for range 19 { // the probe waits for all others
			require.NoError(t, <-failed)
			f.fromCache(<-answers)
		}
		release()
		require.NoError(t, <-failed)
		probe := <-answers
		require.Equal(t, answer{200, "model, call 7", "", probe.header}, probe)
		require.Equal(t, 1+5+1, f.up.count(), "one probe, whatever the rush")

		c := f.circuit(f.up.addr)
		require.Equal(t, "closed", c.State)
		require.Zero(t, c.ConsecutiveFailures)
		require.EqualValues(t, 1+1+100+19, c.Totals.Rescues["cache"])

		f.up.set(http.StatusServiceUnavailable)
		require.Equal(t, "model, call 7", f.post().body, "the cache has the probe's answer")
	})
}

// E1, step 4b.
func TestFullStackProbeFails(t *testing.T) {
	eachPace(t, func(t *testing.T, p pace) {
		f := newFullStack(t, p)
		f.open()
		f.recover(f.bench, f.up.addr)
		f.fromCache(f.post())
		f.slept(t)
		require.Equal(t, 1+6, f.up.count(), "one call, no retries")
		require.Equal(t, "open", f.state(f.up.addr))
		f.fromCache(f.post())
		require.Equal(t, 1+6, f.up.count())
		f.recover(f.bench, f.up.addr)
	})
}

// E1, step 5.
func TestFullStackNothingStored(t *testing.T) {
	f := newFullStack(t, pace{newLeapClock(), 1})
	f.up.set(http.StatusServiceUnavailable)
	for i, calls := range []int{4, 5} {
		a := f.post()
		require.Equal(t, answer{503, "model is down\n", "", a.header}, a, "request %d: the host's own answer", i+1)
		require.Equal(t, calls, f.up.count())
	}
	a := f.post()
	require.Equal(t, 503, a.status)
	require.Equal(t, "15", a.header.Get("Retry-After"))
	require.NotContains(t, a.body, "model")
	require.Empty(t, a.rescued)
	require.Equal(t, 5, f.up.count())
}

// E4, use case 1.
func TestRatesFromCache(t *testing.T) {
	clock := newLeapClock()
	up := newUpstream(t, "rates")
	b := newBench(t, pace{clock, 1}.settings, up.addr)
	began := clock.Now()
	get := func(at time.Duration) answer {
		t.Helper()
		clock.set(began.Add(at))
		return b.send(http.MethodGet, "", "X-Target-URL", "http://"+up.addr+"/latest", "X-Circuit-Breaker", "true",
			"X-Smart-Cache", "600s")
	}
	require.Empty(t, get(0).rescued)
	up.set(http.StatusInternalServerError)
	for i := 1; i <= 5; i++ {
		require.Equal(t, "cache", get(time.Duration(i)*time.Second).rescued)
	}
	require.Equal(t, began.Add(20*time.Second).UTC(), b.circuit(up.addr).Until.UTC())

	a := get(6 * time.Second)
	require.Equal(t, answer{200, "rates, call 1", "cache", a.header}, a)
	require.Equal(t, 6, up.count(), "no call while open")
	require.Equal(t, "cache", get(600*time.Second-1).rescued, "the last moment of the ttl; a probe that fails")
	require.Equal(t, 7, up.count())

	a = get(600 * time.Second)
	require.Equal(t, 503, a.status, "the ttl is over, and the circuit open")
	require.Empty(t, a.rescued)
	require.Equal(t, "15", a.header.Get("Retry-After"))
	require.Equal(t, 7, up.count())
}

// E4, use case 1, in real time: a second here is 80 of the cache's, and 3 of the circuit's. The ttl
// ends in the midst of the second open period, so that a slow machine does not miss it.
func TestRatesFromCacheInRealTime(t *testing.T) {
	t.Parallel()
	const ttl, open = 600 * time.Second / 80, 15 * time.Second / 3
	up := newUpstream(t, "rates")
	b := newBench(t, func(s *settings) { s.open = open }, up.addr)
	get := func() answer {
		t.Helper()
		return b.send(http.MethodGet, "", "X-Target-URL", "http://"+up.addr+"/latest", "X-Circuit-Breaker", "true",
			"X-Smart-Cache", ttl.String())
	}
	require.Empty(t, get().rescued)
	up.set(http.StatusInternalServerError)
	for range 6 {
		require.Equal(t, "cache", get().rescued)
	}
	require.Equal(t, 6, up.count(), "the sixth made no call: the circuit is open")
	b.eventually("half-open", func() bool { return b.state(up.addr) == "half-open" })
	require.Equal(t, "cache", get().rescued, "a probe that fails")
	require.Equal(t, 7, up.count())

	var last answer
	b.eventually("the end of the ttl", func() bool { last = get(); return last.rescued == "" })
	require.Equal(t, 503, last.status)
	require.NotEmpty(t, last.header.Get("Retry-After"))
	require.Equal(t, 7, up.count())
}

// E4, use case 2.
func TestBanksFailover(t *testing.T) {
	eachPace(t, func(t *testing.T, p pace) {
		primary, backup := newUpstream(t, "primary"), newUpstream(t, "backup")
		b := newBench(t, p.settings, primary.addr, backup.addr)
		primary.set(http.StatusBadGateway)
		for i, calls := range []int{3, 5, 5, 5} {
			a := b.send(http.MethodPost, "100 EUR", "X-Target-URL", "http://"+primary.addr+"/pay", "X-Circuit-Breaker", "on",
				"X-Retry-Count", "2", "X-Retry-Delay", p.text(100*time.Millisecond),
				"X-Failover-URL", "http://"+backup.addr+"/pay", "Idempotency-Key", "p1")
			require.Equal(t, 200, a.status)
			require.Equal(t, "failover", a.rescued)
			require.Equal(t, calls, primary.count(), "payment %d", i+1)
			require.Equal(t, i+1, backup.count())
			switch i {
			case 0:
				p.slept(t, 100*time.Millisecond, 200*time.Millisecond)
			case 1:
				p.slept(t, 100*time.Millisecond)
			default:
				p.slept(t) // open: the backup at once
			}
		}
		require.Equal(t, "open", b.state(primary.addr))
		c := b.circuit(backup.addr)
		require.Equal(t, "closed", c.State)
		require.EqualValues(t, 4, c.Totals.Calls)
		require.Zero(t, c.Totals.Failures)
	})
}

// A POST without an Idempotency-Key may have been acted upon: it is not repeated, unless a rejection kept it back.
func TestUnsafePost(t *testing.T) {
	for _, c := range []struct {
		unsafe bool
		calls  int
	}{{false, 1}, {true, 3}} {
		up := newUpstream(t, "bank")
		up.set(http.StatusBadGateway)
		b := newBench(t, func(s *settings) { s.retryUnsafe = c.unsafe; s.clock = newLeapClock() }, up.addr)
		a := b.send(http.MethodPost, "100 EUR", "X-Target-URL", "http://"+up.addr, "X-Retry-Count", "2")
		require.Equal(t, 502, a.status)
		require.Equal(t, c.calls, up.count())
	}
}
