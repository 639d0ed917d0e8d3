package breakerhttp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakerhttp"
)

// sent is what a host was sent.
type sent struct {
	mu     sync.Mutex
	bodies []string
	keys   []string
	length []int64
}

func (s *sent) take(r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bodies = append(s.bodies, string(b))
	s.keys = append(s.keys, r.Header.Get("Idempotency-Key"))
	s.length = append(s.length, r.ContentLength)
}

// BC-91, W12: every attempt sends the same bytes under the same key.
func TestReplay(t *testing.T) {
	s := &sent{}
	script := statuses(503, 503, 503, 200)
	up := serve(t, func(w http.ResponseWriter, r *http.Request) {
		s.take(r)
		script(w, r)
	})
	tr := transport(t, nil, quick(3))
	req, made, closed := watchedRequest(t, http.MethodPost, up.URL, "hello")
	req.Header.Set("Idempotency-Key", "k1")
	code, body, err := send(t, tr, req)
	require.NoError(t, err)
	require.Equal(t, 200, code)
	require.Equal(t, "answer", body)
	require.Equal(t, []string{"hello", "hello", "hello", "hello"}, s.bodies)
	require.Equal(t, []string{"k1", "k1", "k1", "k1"}, s.keys)
	require.Equal(t, []int64{5, 5, 5, 5}, s.length)
	require.EqualValues(t, 4, made.Load(), "one body an attempt, the caller's included")
	require.Equal(t, made.Load(), closed.Load())
	require.EqualValues(t, 1, up.conns.Load())
}

func TestReplayKinds(t *testing.T) {
	bodies := map[string]func() io.Reader{
		"bytes.Reader":   func() io.Reader { return strings.NewReader("hello") },
		"unreplayable":   func() io.Reader { return io.MultiReader(strings.NewReader("hello")) },
		"nil":            func() io.Reader { return nil },
		"NoBody":         func() io.Reader { return http.NoBody },
		"empty, unknown": func() io.Reader { return io.MultiReader() },
	}
	want := map[string]int64{"unreplayable": 1, "empty, unknown": 1}
	for name, body := range bodies {
		t.Run(name, func(t *testing.T) {
			up := serve(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.WriteHeader(503)
			})
			code, _, err := send(t, transport(t, nil, quick(2)), request(t, http.MethodPut, up.URL, body()))
			require.NoError(t, err)
			require.Equal(t, 503, code)
			n := want[name]
			if n == 0 {
				n = 3
			}
			require.Equal(t, n, up.hits.Load())
		})
	}
}

// A GetBody that fails ends the retries with the last response, and costs no probe slot.
func TestGetBodyFails(t *testing.T) {
	tr := transport(t, roundTripper(func(r *http.Request) (*http.Response, error) { _ = r.Body.Close(); return answer(503, nil), nil }), quick(2))
	req := request(t, http.MethodPut, "http://up.example", strings.NewReader("x"))
	req.GetBody = func() (io.ReadCloser, error) { return nil, errBoom }
	code, body, err := send(t, tr, req)
	require.NoError(t, err)
	require.Equal(t, 503, code)
	require.Equal(t, "answer", body)
	snap := circuit(t, tr, "up.example").Snapshot()
	require.EqualValues(t, 1, snap.Totals.Failures)
	require.EqualValues(t, 1, snap.Totals.Ignored)
	require.Zero(t, snap.InFlight)
}

// BC-94: what is not idempotent is sent once, unless somebody says so.
func TestOnlyIdempotentRequestsAreRepeated(t *testing.T) {
	for _, c := range []struct {
		method string
		key    string
		unsafe bool
		want   int
	}{
		{method: "", want: 3}, {method: "GET", want: 3}, {method: "HEAD", want: 3}, {method: "PUT", want: 3}, {method: "DELETE", want: 3},
		{method: "OPTIONS", want: 3}, {method: "TRACE", want: 3}, {method: "POST", want: 1}, {method: "PATCH", want: 1}, {method: "PURGE", want: 1},
		{method: "POST", key: "Idempotency-Key", want: 3}, {method: "PATCH", key: "X-Idempotency-Key", want: 3}, {method: "POST", unsafe: true, want: 3},
	} {
		for _, err := range []error{nil, errBoom} {
			t.Run(fmt.Sprint(c, err), func(t *testing.T) {
				opts := []breakerhttp.Option{quick(2)}
				if c.unsafe {
					opts = append(opts, breakerhttp.RetryUnsafe())
				}
				n := 0
				tr := transport(t, roundTripper(func(*http.Request) (*http.Response, error) {
					n++
					if err != nil {
						return nil, err
					}
					return answer(503, nil), nil
				}), opts...)
				req := request(t, c.method, "http://up.example", nil)
				if c.key != "" {
					req.Header.Set(c.key, "k")
				}
				_, _, got := send(t, tr, req)
				require.ErrorIs(t, got, err)
				require.Equal(t, c.want, n)
			})
		}
	}
}

// BC-75: an open circuit ends the retries at once, before a wait and after.
func TestRetryStopsAtOpenCircuit(t *testing.T) {
	e := &events{}
	up := serve(t, statuses(503))
	opts := []breakerhttp.Option{r0(breaker.WithClock(clock.NewMock()), e.hooks()), breakerhttp.WithRetry(breaker.MaxRetries(4), breaker.Constant(time.Second))}
	t.Run("open before", func(t *testing.T) {
		tr := transport(t, nil, opts...)
		open(t, tr, up.URL)
		guard(t, func() {
			_, _, err := get(t, tr, up.URL)
			require.ErrorIs(t, err, breaker.ErrOpen)
		})
		require.Zero(t, up.hits.Load())
		require.Empty(t, e.waits())
	})
	t.Run("opens during", func(t *testing.T) { // BC-77 a: one call opens a circuit with 3 failures
		tr := transport(t, nil, r0(), quick(9))
		code, body, err := get(t, tr, up.URL)
		require.NoError(t, err)
		require.Equal(t, 503, code, "the last response is the answer")
		require.Equal(t, "answer", body)
		require.EqualValues(t, 3, up.hits.Load())
		require.Equal(t, breaker.Open, state(t, tr, up.URL))
		require.Zero(t, circuit(t, tr, up.URL).Snapshot().Totals.Rejected, "it was not asked again")
	})
	t.Run("opens during, no response", func(t *testing.T) {
		tr := transport(t, roundTripper(func(*http.Request) (*http.Response, error) { return nil, errBoom }), r0(), quick(9))
		_, _, err := get(t, tr, "http://up.example")
		require.ErrorIs(t, err, breaker.ErrOpen)
		require.ErrorIs(t, err, errBoom)
		var re *breaker.RetryError
		require.ErrorAs(t, err, &re)
		require.Equal(t, 3, re.Attempts)
	})
	t.Run("opens during the wait", func(t *testing.T) {
		clk := newFakeClock()
		up := serve(t, statuses(503))
		tr := transport(t, nil, r0(breaker.WithClock(clk)), breakerhttp.WithRetry(breaker.MaxRetries(4), breaker.Constant(time.Second), breaker.NoJitter()))
		guard(t, func() {
			go func() {
				d := <-clk.waiting
				circuit(t, tr, up.URL).Trip(errBoom)
				clk.Add(d)
			}()
			code, body, err := get(t, tr, up.URL)
			require.NoError(t, err)
			require.Equal(t, 503, code)
			require.Equal(t, "answer", body)
		})
		require.EqualValues(t, 1, up.hits.Load())
		require.EqualValues(t, 1, circuit(t, tr, up.URL).Snapshot().Totals.Rejected)
	})
}

// The retry's waits go by the circuits' clock.
func TestRetryWaits(t *testing.T) {
	e, clk := &events{}, newFakeClock()
	up := serve(t, statuses(503, 503, 503, 200))
	tr := transport(t, nil, breakerhttp.WithBreaker(breaker.WithClock(clk), e.hooks()),
		breakerhttp.WithRetry(breaker.MaxRetries(3), breaker.Exponential(500*time.Millisecond, 10*time.Second), breaker.NoJitter()))
	guard(t, func() {
		go func() {
			for _, d := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second} {
				clk.pass(t, d)
			}
		}()
		code, _, err := get(t, tr, up.URL)
		require.NoError(t, err)
		require.Equal(t, 200, code)
	})
	require.Equal(t, []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second}, e.waits())
	total := circuit(t, tr, up.URL).Snapshot().Totals
	require.EqualValues(t, 3, total.Failures)
	require.EqualValues(t, 1, total.Successes)
	require.EqualValues(t, 3, total.Retries)
	require.EqualValues(t, 1, total.Rescues[breaker.RescueRetry])
	require.Len(t, e.rescues, 1)
	// W16: the log of an attempt has its real status.
	for i, r := range e.retries {
		var status *breakerhttp.StatusError
		require.ErrorAs(t, r.Err, &status)
		require.Equal(t, 503, status.StatusCode)
		require.Equal(t, i+1, r.Attempt)
	}
	require.Len(t, e.calls, 4)
	require.EqualError(t, e.calls[0].Err, "breakerhttp: status 503 Service Unavailable")
}

// BC-79: a cancel ends a wait at once; the error is the cancel and the attempt's.
func TestCancelDuringWait(t *testing.T) {
	for name, rt := range map[string]roundTripper{
		"status": func(*http.Request) (*http.Response, error) { return answer(503, nil), nil },
		"error":  func(*http.Request) (*http.Response, error) { return nil, errBoom },
	} {
		t.Run(name, func(t *testing.T) {
			clk := newFakeClock()
			tr := transport(t, rt, r0(breaker.WithClock(clk)), breakerhttp.WithRetry(breaker.MaxRetries(4), breaker.Constant(10*time.Second), breaker.NoJitter()))
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-clk.waiting
				cancel()
			}()
			guard(t, func() {
				_, err := tr.RoundTrip(request(t, http.MethodGet, "http://up.example", nil).WithContext(ctx))
				require.ErrorIs(t, err, context.Canceled)
				if name == "error" {
					require.ErrorIs(t, err, errBoom)
					return
				}
				var status *breakerhttp.StatusError
				require.ErrorAs(t, err, &status)
			})
			require.EqualValues(t, 1, circuit(t, tr, "up.example").Snapshot().Totals.Failures)
		})
	}
}

// A wait that would end after the deadline is not begun: the last response is the answer.
func TestWaitThatDoesNotFit(t *testing.T) {
	tr := transport(t, roundTripper(func(*http.Request) (*http.Response, error) { return answer(503, nil), nil }),
		breakerhttp.WithRetry(breaker.MaxRetries(4), breaker.Constant(time.Hour)))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	guard(t, func() {
		code, body, err := send(t, tr, request(t, http.MethodGet, "http://up.example", nil).WithContext(ctx))
		require.NoError(t, err)
		require.Equal(t, 503, code)
		require.Equal(t, "answer", body)
	})
	tr = transport(t, roundTripper(func(*http.Request) (*http.Response, error) { return nil, errBoom }),
		breakerhttp.WithRetry(breaker.MaxRetries(4), breaker.Constant(time.Hour)))
	guard(t, func() {
		_, _, err := send(t, tr, request(t, http.MethodGet, "http://up.example", nil).WithContext(ctx))
		require.ErrorIs(t, err, errBoom)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// BC-81, BC-84.
func TestNumberOfAttempts(t *testing.T) {
	for retries, want := range map[int]int{0: 1, 1: 2, 3: 4} {
		up := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(503)
			_, _ = io.WriteString(w, "db down")
		})
		code, body, err := get(t, transport(t, nil, quick(retries)), up.URL)
		require.NoError(t, err)
		require.Equal(t, 503, code)
		require.Equal(t, "db down", body, "the last response is intact")
		require.EqualValues(t, want, up.hits.Load())
	}
	n := 0
	tr := transport(t, roundTripper(func(*http.Request) (*http.Response, error) { n++; return nil, fmt.Errorf("e%d: %w", n, errBoom) }), quick(2))
	_, _, err := get(t, tr, "http://up.example")
	var re *breaker.RetryError
	require.ErrorAs(t, err, &re)
	require.Equal(t, 3, re.Attempts)
	require.ErrorContains(t, err, "e3")
	tr = transport(t, roundTripper(func(*http.Request) (*http.Response, error) { return nil, errBoom }), quick(0))
	_, _, err = get(t, tr, "http://up.example")
	require.Equal(t, errBoom, err)
	_, err = breakerhttp.NewTransport(nil, quick(-1))
	require.Error(t, err)
}

// BC-85: an attempt's timeout uses up an attempt, not the call.
func TestAttemptTimeout(t *testing.T) {
	for name, injected := range map[string]bool{"real": false, "injected": true} {
		t.Run(name, func(t *testing.T) {
			release := make(chan struct{})
			var n atomic.Int64
			up := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if n.Add(1) == 1 {
					select {
					case <-r.Context().Done():
					case <-release:
					}
				}
				b, _ := io.ReadAll(r.Body)
				_, _ = w.Write(b)
			})
			defer close(release)
			limit := 10 * time.Millisecond
			opts := []breaker.Option{breaker.WithTimeout(limit)}
			clk := newFakeClock()
			if injected {
				opts = append(opts, breaker.WithClock(clk))
				go func() {
					eventually(t, "the request is out", func() bool { return n.Load() == 1 })
					clk.pass(t, limit)
				}()
			}
			tr := transport(t, nil, breakerhttp.WithBreaker(opts...), quick(2))
			guard(t, func() {
				code, body, err := send(t, tr, request(t, http.MethodPut, up.URL, strings.NewReader("hello")))
				require.NoError(t, err)
				require.Equal(t, 200, code)
				require.Equal(t, "hello", body)
			})
			total := circuit(t, tr, up.URL).Snapshot().Totals
			require.EqualValues(t, 1, total.Failures)
			require.EqualValues(t, 1, total.Successes)
		})
	}
}

// After several attempts that timed out, the error still says that it is a timeout to those who do not unwrap.
func TestTimeoutShowsThroughRetries(t *testing.T) {
	tr := transport(t, roundTripper(func(r *http.Request) (*http.Response, error) { <-r.Context().Done(); return nil, r.Context().Err() }),
		breakerhttp.WithBreaker(breaker.WithTimeout(time.Millisecond)), quick(1))
	_, err := (&http.Client{Transport: tr}).Get("http://up.example")
	var timeout interface{ Timeout() bool }
	require.True(t, errors.As(err, &timeout))
	require.True(t, timeout.Timeout())
	var re *breaker.RetryError
	require.ErrorAs(t, err, &re)
}

// BC-86, BC-89: what the host asks for, within limits.
func TestRetryAfterIsBounded(t *testing.T) {
	clk := clock.NewMock()
	clk.Set(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	base := 2 * time.Second
	for _, c := range []struct {
		code  int
		lines []string
		want  time.Duration // 0: gives up at once
	}{
		{503, []string{"5"}, 5 * time.Second}, {429, []string{"5"}, 5 * time.Second}, {503, []string{"1"}, base}, {503, []string{"0"}, base}, {503, []string{"10"}, 10 * time.Second},
		{503, []string{"11"}, 0}, {503, []string{"3600"}, 0}, {503, []string{"9223372036854775807"}, 0}, {503, []string{strings.Repeat("9", 400)}, 0},
		{503, []string{"Sun, 03 Jan 2027 03:04:05 GMT"}, 0},
		{503, []string{"Fri, 02 Jan 2026 03:04:10 GMT"}, 5 * time.Second},
		{503, []string{"Friday, 02-Jan-26 03:04:10 GMT"}, 5 * time.Second},
		{503, []string{"Fri Jan  2 03:04:10 2026"}, 5 * time.Second},
		{503, []string{"Fri, 02 Jan 2026 03:04:00 GMT"}, base},
		{503, []string{"-5"}, base}, {503, []string{"1.5"}, base}, {503, []string{""}, base}, {503, []string{"soon"}, base}, {503, []string{"+5"}, base},
		{503, []string{"Fri, 31 Dec 99999 23:59:59 GMT"}, base}, {503, []string{"5 "}, 5 * time.Second},
		{503, []string{"soon", "5"}, 5 * time.Second}, {503, []string{"5", "9"}, 5 * time.Second},
		{500, []string{"5"}, base}, {503, nil, base},
	} {
		t.Run(fmt.Sprint(c.code, c.lines), func(t *testing.T) {
			e := &events{}
			tr := transport(t, roundTripper(func(*http.Request) (*http.Response, error) {
				resp := answer(c.code, nil)
				resp.Header["Retry-After"] = c.lines
				return resp, nil
			}), breakerhttp.WithBreaker(breaker.WithClock(clk), e.hooks()),
				breakerhttp.WithRetry(breaker.MaxRetries(1), breaker.Constant(base), breaker.NoJitter()))
			ctx, cancel := context.WithCancel(t.Context())
			stopped := breaker.Hooks{Retry: func(context.Context, breaker.RetryEvent) { cancel() }}
			require.NotNil(t, stopped.Retry)
			go func() {
				eventually(t, "a wait or an end", func() bool { return len(e.waits()) > 0 || ctx.Err() != nil })
				cancel()
			}()
			guard(t, func() {
				resp, err := tr.RoundTrip(request(t, http.MethodGet, "http://up.example", nil).WithContext(ctx))
				if c.want == 0 {
					require.NoError(t, err)
					require.Equal(t, c.code, resp.StatusCode)
					cancel()
					return
				}
				require.ErrorIs(t, err, context.Canceled)
				require.Equal(t, []time.Duration{c.want}, e.waits())
			})
		})
	}
}

// BC-90: the failure that opens the circuit says for how long; later ones do not.
func TestRetryAfterLengthensTheOpenPeriod(t *testing.T) {
	clk := clock.NewMock()
	headers := [][]string{nil, nil, {"Retry-After", "25"}}
	n := 0
	slow, arrived := make(chan struct{}), make(chan struct{})
	tr := transport(t, roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path == "/straggler" {
			close(arrived)
			<-slow
			return answer(503, nil, "Retry-After", "40"), nil
		}
		n++
		return answer(503, nil, headers[n-1]...), nil
	}), r0(breaker.WithClock(clk)))
	done := make(chan error)
	go func() {
		_, _, err := get(t, tr, "http://up.example/straggler")
		done <- err
	}()
	<-arrived
	for range 3 {
		code, body, err := get(t, tr, "http://up.example")
		require.NoError(t, err)
		require.Equal(t, 503, code)
		require.Equal(t, "answer", body)
	}
	left := func() time.Duration {
		_, _, err := get(t, tr, "http://up.example")
		var oe *breaker.OpenError
		require.ErrorAs(t, err, &oe)
		return oe.RetryAfter()
	}
	require.Equal(t, 25*time.Second, left())
	clk.Add(3 * time.Second)
	close(slow)
	require.NoError(t, <-done)
	require.Equal(t, 22*time.Second, left())
}

// BC-96: what is dropped is drained first, so that one connection does for all.
func TestDroppedResponsesAreDrained(t *testing.T) {
	t.Run("short", func(t *testing.T) {
		var n atomic.Int64
		up := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			if n.Add(1) < 3 {
				w.WriteHeader(503)
				_, _ = w.Write(make([]byte, 2<<10))
			}
		})
		rt := base(t)
		rt.MaxConnsPerHost = 1
		guard(t, func() {
			code, _, err := get(t, transport(t, rt, quick(2)), up.URL)
			require.NoError(t, err)
			require.Equal(t, 200, code)
		})
		require.EqualValues(t, 1, up.conns.Load())
	})
	t.Run("endless", func(t *testing.T) {
		var n atomic.Int64
		up := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if n.Add(1) < 3 {
				w.WriteHeader(503)
				for r.Context().Err() == nil {
					if _, err := w.Write(make([]byte, 32<<10)); err != nil {
						return
					}
				}
			}
		})
		rt := base(t)
		rt.MaxConnsPerHost = 1
		guard(t, func() {
			code, _, err := get(t, transport(t, rt, quick(2)), up.URL)
			require.NoError(t, err)
			require.Equal(t, 200, code)
		})
		require.LessOrEqual(t, up.conns.Load(), int64(3))
	})
}

// A 503 whose body stalls does not hold up the next attempt. A busy machine may: one quick retry in several will do.
func TestSlowBodyDoesNotHoldTheRetry(t *testing.T) {
	stall := make(chan struct{})
	var first, second atomic.Int64
	up := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if first.CompareAndSwap(0, time.Now().UnixNano()) {
			w.WriteHeader(503)
			_, _ = io.WriteString(w, "ti")
			w.(http.Flusher).Flush()
			<-stall
			return
		}
		second.Store(time.Now().UnixNano())
	})
	defer close(stall)
	limit := 50 * time.Millisecond
	if raceEnabled {
		limit *= 10
	}
	tr := transport(t, nil, quick(1))
	best := time.Hour
	for range 20 {
		first.Store(0)
		guard(t, func() {
			code, _, err := get(t, tr, up.URL)
			require.NoError(t, err)
			require.Equal(t, 200, code)
		})
		if best = min(best, time.Duration(second.Load()-first.Load())); best < limit {
			return
		}
	}
	t.Fatalf("the next attempt came after %v", best)
}

// BC-101, W06: a connection that is refused is retried too, with or without a body.
func TestRefusedIsRetried(t *testing.T) {
	up := serve(t, statuses(200))
	for name, body := range map[string]io.Reader{"nil": nil, "NoBody": http.NoBody, "body": strings.NewReader("hello")} {
		t.Run(name, func(t *testing.T) {
			n := 0
			rt := base(t)
			tr := transport(t, roundTripper(func(r *http.Request) (*http.Response, error) {
				if n++; n == 1 {
					if r.Body != nil {
						_ = r.Body.Close()
					}
					return nil, errBoom
				}
				return rt.RoundTrip(r)
			}), quick(1))
			code, _, err := send(t, tr, request(t, http.MethodPut, up.URL, body))
			require.NoError(t, err)
			require.Equal(t, 200, code)
		})
	}
}

// One budget bounds the retries of all.
func TestRetryBudget(t *testing.T) {
	budget, err := breaker.NewBudget(0, 2, time.Minute)
	require.NoError(t, err)
	up := serve(t, statuses(503))
	tr := transport(t, nil, breakerhttp.WithBreaker(breaker.WithFailureThreshold(99)),
		breakerhttp.WithRetry(breaker.MaxRetries(3), breaker.Constant(0), breaker.WithBudget(budget)))
	for range 5 {
		_, _, err := get(t, tr, up.URL)
		require.NoError(t, err)
	}
	require.EqualValues(t, 7, up.hits.Load())
}

// Requests that were made earn retries; those that the circuit rejected do not.
func TestRetryBudgetIsEarned(t *testing.T) {
	budget, err := breaker.NewBudget(0.5, 0, time.Hour)
	require.NoError(t, err)
	up := serve(t, statuses(200, 200, 200, 503))
	tr := transport(t, nil, breakerhttp.WithBreaker(breaker.WithFailureThreshold(99)),
		breakerhttp.WithRetry(breaker.MaxRetries(9), breaker.Constant(0), breaker.WithBudget(budget)))
	for range 4 {
		_, _, err := get(t, tr, up.URL)
		require.NoError(t, err)
	}
	require.EqualValues(t, 6, up.hits.Load(), "four requests earn two retries")

	origin, ok := tr.Circuit(up.URL)
	require.True(t, ok)
	origin.Trip(nil)
	for range 10 {
		_, _, err := get(t, tr, up.URL)
		require.ErrorIs(t, err, breaker.ErrOpen)
	}
	origin.Reset()
	_, _, err = get(t, tr, up.URL)
	require.NoError(t, err)
	require.EqualValues(t, 7, up.hits.Load(), "five requests earn two retries")
}

func TestRetryIf(t *testing.T) {
	up := serve(t, statuses(501))
	tr := transport(t, nil, breakerhttp.WithRetry(breaker.MaxRetries(3), breaker.Constant(0), breaker.RetryIf(func(err error) bool {
		var status *breakerhttp.StatusError
		return !errors.As(err, &status) || status.StatusCode != 501
	})))
	_, _, err := get(t, tr, up.URL)
	require.NoError(t, err)
	require.EqualValues(t, 1, up.hits.Load())
}

// A body that panics while it is dropped does no more than any other that cannot be read.
func TestDroppedBodyPanics(t *testing.T) {
	guard(t, func() {
		n := 0
		tr := transport(t, roundTripper(func(*http.Request) (*http.Response, error) {
			if n++; n > 1 {
				return answer(200, nil), nil
			}
			return answer(503, io.NopCloser(readerFunc(func([]byte) (int, error) { panic("body") }))), nil
		}), quick(1))
		code, _, err := get(t, tr, "http://up.example")
		require.NoError(t, err)
		require.Equal(t, 200, code)
	})
}

// Whatever the base writes into a request's headers, each attempt has its own, and the caller's stay as they are.
func TestAttemptsShareNoHeaders(t *testing.T) {
	for name, opts := range map[string][]breakerhttp.Option{"retries": {quick(2)}, "failover": {breakerhttp.WithFailover("http://backup.example")}} {
		t.Run(name, func(t *testing.T) {
			var seen []int
			tr := transport(t, roundTripper(func(r *http.Request) (*http.Response, error) {
				r.Header.Add("X-Signature", "1")
				seen = append(seen, len(r.Header["X-Signature"]))
				return nil, errBoom
			}), append(opts, r0())...)
			req := request(t, http.MethodGet, "http://up.example", nil)
			_, _, err := send(t, tr, req)
			require.Error(t, err)
			require.Empty(t, req.Header)
			require.GreaterOrEqual(t, len(seen), 2)
			for _, n := range seen {
				require.Equal(t, 1, n)
			}
		})
	}
}

// A Transport around another takes the request's options; the one inside does not see them.
func TestPerRequestIsTakenOnce(t *testing.T) {
	up := serve(t, statuses(503))
	inner := transport(t, nil, breakerhttp.WithBreaker(breaker.WithFailureThreshold(99)))
	tr := transport(t, inner, breakerhttp.WithBreaker(breaker.WithFailureThreshold(99)))
	ctx := breakerhttp.PerRequest(t.Context(), breakerhttp.Retries(2, 0))
	requireSend(t, tr, request(t, http.MethodGet, up.URL, nil).WithContext(ctx))
	require.EqualValues(t, 3, up.hits.Load())
}

// While a retry waits, the failed response does not hold its connection: a small body is kept for the caller, a large one
// is given up.
func TestWaitHoldsNoConnection(t *testing.T) {
	for name, size := range map[string]int{"small": 100, "large": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			guard(t, func() {
				clk := newFakeClock()
				up := serve(t, func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/bad" {
						w.Header().Set("Trailer", "X-Sum")
						w.WriteHeader(503)
						_, _ = io.WriteString(w, strings.Repeat("x", size))
						w.Header().Set("X-Sum", "1")
					}
				})
				rt := base(t)
				rt.MaxConnsPerHost = 1
				tr := transport(t, rt, r0(breaker.WithClock(clk)), breakerhttp.WithRetry(breaker.MaxRetries(1), breaker.Constant(5*time.Second), breaker.NoJitter()))
				done := make(chan error)
				go func() {
					resp, err := tr.RoundTrip(request(t, http.MethodGet, up.URL+"/bad", nil))
					if err == nil {
						var b []byte
						b, err = io.ReadAll(resp.Body)
						if err == nil && (len(b) != size || resp.StatusCode != 503 || resp.Trailer.Get("X-Sum") != "1") {
							err = fmt.Errorf("%d bytes, %d", len(b), resp.StatusCode)
						}
						_ = resp.Body.Close()
					}
					done <- err
				}()
				wait := <-clk.waiting
				code, _, err := get(t, tr, up.URL+"/good")
				require.NoError(t, err)
				require.Equal(t, 200, code)
				circuit(t, tr, up.URL).Trip(errBoom)
				clk.Add(wait)
				err = <-done
				if name == "small" {
					require.NoError(t, err, "the answer is whole")
					return
				}
				var status *breakerhttp.StatusError
				require.ErrorAs(t, err, &status)
				require.ErrorIs(t, err, breaker.ErrOpen)
			})
		})
	}
}

// The deprecated way to cancel ends a wait at once, without another attempt.
func TestCancelChannelDuringWait(t *testing.T) {
	clk := newFakeClock()
	n := 0
	tr := transport(t, roundTripper(func(*http.Request) (*http.Response, error) { n++; return answer(503, nil), nil }),
		r0(breaker.WithClock(clk)), breakerhttp.WithRetry(breaker.MaxRetries(4), breaker.Constant(time.Hour)))
	cancel := make(chan struct{})
	req := request(t, http.MethodGet, "http://up.example", nil)
	//lint:ignore SA1019 it is what the test is about
	req.Cancel = cancel
	go func() {
		<-clk.waiting
		close(cancel)
	}()
	guard(t, func() {
		_, _, err := send(t, tr, req)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 1, n)
	})
}

// A retry that cannot be made, because there is no body for it, is told to the hooks: the response does not say so.
func TestGetBodyFailureIsTold(t *testing.T) {
	e := &events{}
	tr := transport(t, roundTripper(func(r *http.Request) (*http.Response, error) { _ = r.Body.Close(); return answer(503, nil), nil }), r0(e.hooks()), quick(2))
	req := request(t, http.MethodPut, "http://up.example", strings.NewReader("x"))
	req.GetBody = func() (io.ReadCloser, error) { return nil, errBoom }
	code, _, err := send(t, tr, req)
	require.NoError(t, err)
	require.Equal(t, 503, code)
	require.Len(t, e.rescues, 1)
	require.Equal(t, breaker.RescueRetry, e.rescues[0].Kind)
	require.ErrorIs(t, e.rescues[0].Err, errBoom)
}

// BR-60: how long a host wants to be left alone, in the headers that there are for it.
func TestWaitHeaders(t *testing.T) {
	const none = 3 * time.Second // the backoff's own
	reset := breakerhttp.WithWait(breakerhttp.RateLimitReset)
	fixed := breakerhttp.WithWait(func(r *http.Response) time.Duration {
		if r.StatusCode == 500 {
			return 7 * time.Second
		}
		return -1
	})
	date := "Fri, 02 Jan 2026 03:04:05 GMT" // 1767323045
	for _, c := range []struct {
		opt    breakerhttp.Option
		code   int
		header []string
		want   time.Duration
	}{
		{nil, 429, []string{"Retry-After-Ms", "4500"}, 4500 * time.Millisecond},
		{nil, 503, []string{"X-Ms-Retry-After-Ms", "4500.5"}, 4500500 * time.Microsecond},
		{nil, 429, []string{"Retry-After-Ms", "4500", "Retry-After", "9"}, 4500 * time.Millisecond},
		{nil, 429, []string{"Retry-After-Ms", "soon", "Retry-After", "9"}, 9 * time.Second},
		{nil, 500, []string{"Retry-After-Ms", "4500"}, none},
		{nil, 429, []string{"X-RateLimit-Reset-Requests", "6s"}, none},
		{reset, 429, []string{"X-RateLimit-Reset-Requests", "6s", "X-RateLimit-Reset-Tokens", "1m0s", "X-RateLimit-Remaining-Requests", "0", "X-RateLimit-Remaining-Tokens", "12"}, 6 * time.Second},
		{reset, 429, []string{"X-RateLimit-Reset-Requests", "6s", "X-RateLimit-Reset-Tokens", "8s"}, 8 * time.Second},
		{reset, 429, []string{"X-RateLimit-Reset", "1767323050", "Date", date}, 5 * time.Second},
		{reset, 503, []string{"RateLimit-Reset", "5"}, 5 * time.Second},
		{reset, 429, []string{"X-RateLimit-Reset", "soon", "Retry-After", "9"}, 9 * time.Second},
		{reset, 500, []string{"X-RateLimit-Reset", "9"}, none},
		{fixed, 500, nil, 7 * time.Second},
		{fixed, 429, []string{"Retry-After", "9"}, 9 * time.Second},
	} {
		t.Run(fmt.Sprint(c.code, c.header), func(t *testing.T) {
			clk := newFakeClock()
			opts := []breakerhttp.Option{r0(breaker.WithClock(clk)), breakerhttp.WithRetry(breaker.MaxRetries(1), breaker.Constant(none), breaker.NoJitter(), breaker.RetryAfterCap(time.Hour))}
			if c.opt != nil {
				opts = append(opts, c.opt)
			}
			tr := transport(t, roundTripper(func(*http.Request) (*http.Response, error) { return answer(c.code, nil, c.header...), nil }), opts...)
			guard(t, func() {
				go func() { clk.pass(t, c.want) }()
				requireSend(t, tr, request(t, http.MethodGet, "http://up.example", nil))
			})
		})
	}
}
