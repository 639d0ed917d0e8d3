package tests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakerhttp"
	"github.com/breakerkit/breaker/internal/breakertest"
)

// Each test here plays a symptom of docs/troubleshooting.md, shows it where the page says that it can be seen, and then
// that it goes away by what the page says to change.

// inTrouble plays a symptom in fake time.
func inTrouble(t *testing.T, f func(*breakertest.World)) {
	t.Helper()
	breakertest.Bubble(t, breakertest.ByDo, f)
}

// takes is a dependency that answers after d, unless the caller's or the attempt's time is over before.
func takes(d time.Duration) func(context.Context) (int, error) {
	return func(ctx context.Context) (int, error) {
		select {
		case <-time.After(d):
			return 7, nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// host is an HTTP dependency without a network.
type host func(*http.Request) *http.Response

func (h host) RoundTrip(req *http.Request) (*http.Response, error) {
	resp := h(req)
	resp.Request = req
	return resp, nil
}

func status(code int, header ...string) *http.Response {
	resp := &http.Response{StatusCode: code, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{}, Body: http.NoBody}
	for i := 0; i < len(header); i += 2 {
		resp.Header.Set(header[i], header[i+1])
	}
	return resp
}

// client sends requests to a host through breakerhttp.
type client struct {
	*breakertest.World
	transport *breakerhttp.Transport
	calls     []breaker.CallEvent // what the Call hook was told
}

func newClient(w *breakertest.World, h host, opts ...breakerhttp.Option) *client {
	w.Helper()
	c := &client{World: w}
	seen := breaker.Hooks{Call: func(_ context.Context, e breaker.CallEvent) { c.calls = append(c.calls, e) }}
	transport, err := breakerhttp.NewTransport(h, append(opts, breakerhttp.WithBreaker(breaker.WithHooks(seen)))...)
	require.NoError(w, err)
	w.AtEnd(func() { _ = transport.Close() })
	c.transport = transport
	return c
}

// get sends a request with an API key and returns the status, or 0 where the circuit rejected it.
func (c *client) get(key string) int {
	c.Helper()
	req, err := http.NewRequest(http.MethodGet, "http://api.example/", nil)
	require.NoError(c, err)
	req.Header.Set("Authorization", key)
	resp, err := c.transport.RoundTrip(req)
	if errors.Is(err, breaker.ErrOpen) {
		return 0
	}
	require.NoError(c, err)
	_, _ = io.Copy(io.Discard, resp.Body)
	require.NoError(c, resp.Body.Close())
	return resp.StatusCode
}

func (c *client) circuit(key string) *breaker.Circuit {
	c.Helper()
	circuit, ok := c.transport.Circuit(key)
	require.True(c, ok, "no circuit %s", key)
	return circuit
}

const apiExample = "http://api.example"

// A dependency that fails six times in a row now and then, and is well in between.
func TestTroubleThresholdTooLow(t *testing.T) {
	inTrouble(t, func(w *breakertest.World) {
		burst := func(r *breakertest.Rig) (rejected int) {
			for range 3 {
				for range 6 {
					if errors.Is(r.Call(breakertest.ErrBoom), breaker.ErrOpen) {
						rejected++
					}
				}
				w.Add(time.Second)
				if errors.Is(r.Call(nil), breaker.ErrOpen) { // it would have been well
					rejected++
				}
				w.Add(time.Minute)
				r.Succeeds(2)
			}
			return rejected
		}
		r := w.Circuit()
		require.Equal(w, 6, burst(r), "opens again and again")
		require.Len(w, r.Events.List(), 9)
		first := r.Events.List()[0]
		require.Equal(w, breaker.ReasonThreshold, first.Reason)
		require.EqualValues(w, 5, first.Counts.ConsecutiveFailures)
		require.Equal(w, breaker.ReasonRecovered, r.Events.List()[2].Reason, "and is well at the first try")

		r = w.Circuit(breaker.WithFailureThreshold(10))
		require.Zero(w, burst(r))
		require.Empty(w, r.Events.List())
	})
}

// A host that lets each key send ten requests a minute.
func TestTroubleRateLimits(t *testing.T) {
	inTrouble(t, func(w *breakertest.World) {
		limited := func() host {
			sent := make(map[string]int)
			return func(req *http.Request) *http.Response {
				at := w.Elapsed()
				slot := fmt.Sprint(req.Header.Get("Authorization"), at/time.Minute)
				if sent[slot]++; sent[slot] > 10 {
					left := (at/time.Minute+1)*time.Minute - at
					return status(429, "Retry-After", strconv.Itoa(int(left/time.Second)))
				}
				return status(200)
			}
		}
		minute := func(c *client, keys ...string) map[int]int {
			w.At((w.Elapsed()/time.Minute + 1) * time.Minute) // a new one
			got := make(map[int]int)
			for i := range 20 {
				got[c.get(keys[i%len(keys)])]++
				w.Add(2 * time.Second)
			}
			return got
		}
		c := newClient(w, limited())
		require.Equal(w, map[int]int{200: 10, 429: 5, 0: 5}, minute(c, "a"))
		circuit := c.circuit(apiExample)
		require.Equal(w, "breakerhttp: status 429 Too Many Requests", circuit.Snapshot().LastFailure)
		require.Equal(w, 32*time.Second, circuit.Snapshot().Until.Sub(circuit.Snapshot().Since), "it asked for that, not for 30s")

		c = newClient(w, limited(), breakerhttp.WithBreaker(breaker.WithFailureThreshold(10)))
		require.Equal(w, map[int]int{200: 10, 429: 10}, minute(c, "a"), "another threshold answers nobody")
		c = newClient(w, limited(), breakerhttp.Ignore429())
		require.Equal(w, map[int]int{200: 10, 429: 10}, minute(c, "a"), "nor does a blind eye")

		perKey := breakerhttp.WithKey(func(req *http.Request) string { return "key " + req.Header.Get("Authorization") })
		c = newClient(w, limited(), perKey)
		require.Equal(w, map[int]int{200: 20}, minute(c, "a", "b"), "a second key does")
	})
}

// Answers that take 40s, and a limit of 30s.
func TestTroubleSlowAnswers(t *testing.T) {
	inTrouble(t, func(w *breakertest.World) {
		var calls []breaker.CallEvent
		seen := breaker.WithHooks(breaker.Hooks{Call: func(_ context.Context, c breaker.CallEvent) { calls = append(calls, c) }})
		r := w.Circuit(seen, breaker.WithTimeout(30*time.Second))
		for range 5 {
			_, err := r.B.Do(w.Context(), takes(40*time.Second))
			require.ErrorIs(w, err, context.DeadlineExceeded)
		}
		r.Is(breaker.Open)
		require.Len(w, calls, 5)
		for _, c := range calls {
			require.ErrorIs(w, c.Err, context.DeadlineExceeded)
			require.Equal(w, 30*time.Second, c.Duration, "all end at the limit")
		}

		r = w.Circuit(breaker.WithTimeout(5 * time.Minute))
		for range 5 {
			_, err := r.B.Do(w.Context(), takes(40*time.Second))
			require.NoError(w, err)
		}
		r.Is(breaker.Closed)
	})
}

// A dependency that is well again after 5s, and callers who come every 100ms.
func TestTroubleSlowRecovery(t *testing.T) {
	down := func(context.Context) error { return nil }
	for _, tt := range []struct {
		name   string
		opts   []breaker.Option
		closed time.Duration
		reason breaker.Reason
	}{
		{"the default", nil, 30 * time.Second, breaker.ReasonTimeout},
		{"shorter open timeout", []breaker.Option{breaker.WithOpenTimeout(15 * time.Second)}, 15 * time.Second, breaker.ReasonTimeout},
		{"health check every 10s", []breaker.Option{breaker.WithHealthCheck(10*time.Second, down)}, 10 * time.Second, breaker.ReasonHealthCheck},
		{"health check every 5s", []breaker.Option{breaker.WithHealthCheck(5*time.Second, down)}, 5 * time.Second, breaker.ReasonHealthCheck},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inTrouble(t, func(w *breakertest.World) {
				r := w.Circuit(tt.opts...)
				r.Trip()
				require.Equal(w, r.C.Config().OpenTimeout, r.C.Snapshot().Until.Sub(w.Start))
				for r.C.State() != breaker.Closed {
					w.Add(100 * time.Millisecond)
					_ = r.Call(nil)
				}
				require.InDelta(w, tt.closed, w.Elapsed(), float64(200*time.Millisecond))
				require.Equal(w, tt.reason, r.Events.List()[1].Reason)
			})
		})
	}
}

// A dependency that asks to be left alone for an hour.
func TestTroubleLongHint(t *testing.T) {
	for max, period := range map[time.Duration]time.Duration{
		-1: 5 * time.Minute, time.Minute: time.Minute, 0: 30 * time.Second,
	} {
		inTrouble(t, func(w *breakertest.World) {
			var opts []breaker.Option
			if max >= 0 {
				opts = append(opts, breaker.WithOpenHint(max))
			}
			r := w.Circuit(opts...)
			for range 5 {
				r.FailsWith(breakertest.Hint(time.Hour))
			}
			s := r.C.Snapshot()
			require.Equal(w, period, s.Until.Sub(s.Since))
			require.Equal(w, "come back in 1h0m0s", s.LastFailure)
		})
	}
}

// Answers that say that the request was wrong.
func TestTroubleOpensOnClientErrors(t *testing.T) {
	inTrouble(t, func(w *breakertest.World) {
		codes := []int{400, 401, 403, 404, 422}
		n := 0
		c := newClient(w, func(*http.Request) *http.Response { n++; return status(codes[n%len(codes)]) })
		for range 100 {
			require.NotZero(w, c.get("a"))
		}
		s := c.circuit(apiExample).Snapshot()
		require.Equal(w, breaker.Closed, s.State)
		require.EqualValues(w, 100, s.Totals.Successes)
		require.Zero(w, s.ConsecutiveFailures)

		// What opens it is hidden among them, and the Call hook shows it.
		n = 0
		c = newClient(w, func(*http.Request) *http.Response { n++; return status([]int{401, 429}[n%2]) })
		for range 9 {
			c.get("a")
		}
		require.Equal(w, breaker.Open, c.circuit(apiExample).State())
		var hidden *breakerhttp.StatusError
		require.ErrorAs(w, c.calls[len(c.calls)-1].Err, &hidden)
		require.Equal(w, 429, hidden.StatusCode)
	})
}

// A function that returns an error for what its caller did wrong, in a breaker that has not been told.
func TestTroubleOwnClientErrors(t *testing.T) {
	inTrouble(t, func(w *breakertest.World) {
		r := w.Circuit()
		r.Trip() // any error counts

		wrong := fmt.Errorf("order 7: %w", breakertest.ErrClient)
		r = w.Circuit(breaker.WithIgnore(breakertest.ErrClient))
		for range 100 {
			r.FailsWith(wrong)
		}
		r.Is(breaker.Closed)
		require.EqualValues(w, 100, r.C.Snapshot().Totals.Ignored)
	})
}

// A cut in the network that all circuits sit behind.
func TestTroubleAllOpenAtOnce(t *testing.T) {
	inTrouble(t, func(w *breakertest.World) {
		cut := func(opts ...breaker.Option) (open int, well time.Duration) {
			var all []*breakertest.Rig
			for range 3 {
				all = append(all, w.Circuit(opts...))
			}
			began := w.Elapsed()
			for range 8 { // one call of each in a second, for 8s
				for _, r := range all {
					_ = r.Call(breakertest.ErrBoom)
				}
				w.Add(time.Second)
			}
			for _, r := range all {
				if events := r.Events.List(); len(events) > 0 {
					open++
					require.Equal(w, all[0].Events.List()[0].At, events[0].At, "all in the same moment")
					require.Equal(w, breakertest.ErrBoom, events[0].Cause, "and for the same reason")
				}
			}
			for all[0].Call(nil) != nil {
				w.Add(time.Second)
			}
			return open, w.Elapsed() - began
		}
		open, well := cut()
		require.Equal(w, 3, open)
		require.Equal(w, 34*time.Second, well)
		open, well = cut(breaker.WithFailureThreshold(10))
		require.Zero(w, open)
		require.Equal(w, 8*time.Second, well)
		open, well = cut(breaker.WithOpenTimeout(5 * time.Second))
		require.Equal(w, 3, open)
		require.Equal(w, 9*time.Second, well)
	})
}

// Callers who give up after 100ms on a dependency that takes 200ms and is well.
func TestTroubleImpatientCallers(t *testing.T) {
	inTrouble(t, func(w *breakertest.World) {
		call := func(r *breakertest.Rig) {
			ctx, cancel := context.WithTimeout(w.Context(), 100*time.Millisecond)
			defer cancel()
			_, err := r.B.Do(ctx, takes(200*time.Millisecond))
			require.ErrorIs(w, err, context.DeadlineExceeded)
		}
		r := w.Circuit()
		for range 5 {
			call(r)
		}
		r.Is(breaker.Open)
		require.ErrorIs(w, r.Rejected().Cause, context.DeadlineExceeded)

		r = w.Circuit(breaker.IgnoreCallerDeadline())
		for range 100 {
			call(r)
		}
		r.Is(breaker.Closed)
		require.EqualValues(w, 100, r.C.Snapshot().Totals.Ignored)

		r = w.Circuit() // a cancel, on the other hand, never counts
		ctx, cancel := context.WithCancel(w.Context())
		for range 5 {
			g := r.GateContext(ctx)
			cancel()
			g.Finish(ctx.Err())
			ctx, cancel = context.WithCancel(w.Context())
		}
		cancel()
		r.Is(breaker.Closed)
	})
}

// A host that asks for a minute's rest, and locks out a key that sends 20 requests all the same.
func TestTroubleRetriesGotTheKeySuspended(t *testing.T) {
	inTrouble(t, func(w *breakertest.World) {
		got := 0
		limited := func(*http.Request) *http.Response {
			if got++; got > 20 {
				return status(401)
			}
			return status(429, "Retry-After", "60")
		}
		naive := host(limited)
		for range 30 { // a loop of one's own
			req, _ := http.NewRequest(http.MethodGet, "http://api.example/", nil)
			resp, _ := naive.RoundTrip(req)
			if resp.StatusCode == 200 {
				break
			}
			w.Add(100 * time.Millisecond)
		}
		require.Equal(w, 30, got, "locked out, and still at it")

		got = 0
		c := newClient(w, limited, breakerhttp.WithRetry(breaker.MaxRetries(5)))
		for range 100 {
			c.get("a")
		}
		require.Equal(w, 5, got, "no retry before the minute is over, and then the circuit")
		require.Equal(w, time.Minute, c.circuit(apiExample).Snapshot().Until.Sub(w.Now()))

		c = newClient(w, func(*http.Request) *http.Response { got++; return status(401) }, breakerhttp.WithRetry(breaker.MaxRetries(5)))
		got = 0
		require.Equal(w, 401, c.get("a"))
		require.Equal(w, 1, got, "nobody asks twice with a key that is locked out")
	})
}

// 5,000 callers at once, and a dependency that hangs.
func TestTroubleWaitingCallers(t *testing.T) {
	for _, tt := range []struct {
		name             string
		opts             []breaker.Option
		inFlight, turned int
		end              time.Duration
	}{
		{"nothing but the circuit", nil, 5000, 0, 30 * time.Second},
		{"at most 100 in flight", []breaker.Option{breaker.WithMaxInFlight(100)}, 100, 4900, 30 * time.Second},
		{"and 1s each", []breaker.Option{breaker.WithMaxInFlight(100), breaker.WithTimeout(time.Second)}, 100, 4900, time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inTrouble(t, func(w *breakertest.World) {
				r := w.Circuit(append([]breaker.Option{breaker.WithTimeout(30 * time.Second)}, tt.opts...)...)
				require.Zero(w, r.C.Snapshot().InFlight)
				var mu sync.Mutex
				turned := 0
				var all sync.WaitGroup
				for range 5000 {
					all.Go(func() {
						if _, err := r.B.Do(w.Context(), takes(time.Hour)); errors.Is(err, breaker.ErrTooManyInFlight) {
							mu.Lock()
							defer mu.Unlock()
							turned++
						}
					})
				}
				synctest.Wait()
				require.EqualValues(w, tt.inFlight, r.C.Snapshot().InFlight)
				require.Equal(w, tt.turned, turned)
				all.Wait()
				require.Equal(w, tt.end, w.Elapsed())
				require.Len(w, r.Events.List(), 1)
				r.Rejected()
			})
		})
	}
}

// A network that loses one call in four.
func TestTroublePacketLoss(t *testing.T) {
	inTrouble(t, func(w *breakertest.World) {
		day := func(opts ...breaker.Option) (seen int, r *breakertest.Rig) {
			r = w.Circuit(append(opts, breaker.WithTimeout(time.Second))...)
			n := 0
			for range 100 {
				_, err := r.B.Do(w.Context(), func(ctx context.Context) (int, error) {
					if n++; n%4 == 0 {
						return takes(time.Hour)(ctx)
					}
					return 7, nil
				})
				if err != nil {
					seen++
				}
			}
			r.Is(breaker.Closed)
			return seen, r
		}
		seen, _ := day()
		require.Equal(w, 25, seen)
		seen, r := day(breaker.WithRetry(breaker.MaxRetries(1)))
		require.Zero(w, seen)
		totals := r.C.Snapshot().Totals
		require.EqualValues(w, 33, totals.Retries)
		require.EqualValues(w, 33, totals.Rescues[breaker.RescueRetry])
	})
}

// Circuits that stay closed though their dependency is in trouble.
func TestTroubleNeverOpens(t *testing.T) {
	t.Run("a success now and then ends the run", func(t *testing.T) {
		inTrouble(t, func(w *breakertest.World) {
			day := func(r *breakertest.Rig) {
				for range 100 {
					for _, err := range []error{breakertest.ErrBoom, breakertest.ErrBoom, breakertest.ErrBoom, nil} {
						_ = r.Call(err)
					}
				}
			}
			r := w.Circuit()
			day(r)
			r.Is(breaker.Closed)
			require.EqualValues(w, 300, r.C.Snapshot().Totals.Failures)
			r = w.Circuit(breaker.WithTrip(breaker.FailureRate(0.5, 20, breaker.Last(time.Minute))))
			day(r)
			r.Is(breaker.Open)
		})
	})
	t.Run("a breaker for each call", func(t *testing.T) {
		inTrouble(t, func(w *breakertest.World) {
			for range 100 {
				b := breaker.Must(breaker.New[int]("new"))
				_, err := b.Do(w.Context(), func(context.Context) (int, error) { return 0, breakertest.ErrBoom })
				require.Equal(w, breakertest.ErrBoom, err)
				require.EqualValues(w, 1, b.Snapshot().Totals.Calls, "it knows of one")
			}
			g := breaker.Must(breaker.NewGroup[int]())
			for range 100 {
				_, _ = g.Do(w.Context(), "kept", func(context.Context) (int, error) { return 0, breakertest.ErrBoom })
			}
			require.Equal(w, breaker.Open, g.Get("kept").State())
		})
	})
	t.Run("bad answers without an error", func(t *testing.T) {
		inTrouble(t, func(w *breakertest.World) {
			call := func(r *breakertest.Rig) {
				for range 5 {
					_, err := r.B.Do(w.Context(), func(context.Context) (int, error) { return -1, nil })
					require.NoError(w, err)
				}
			}
			r := w.Circuit()
			call(r)
			r.Is(breaker.Closed)
			r = w.Circuit(breaker.WithResult(func(v int, err error) breaker.Outcome {
				if v < 0 {
					return breaker.Failure
				}
				return breaker.DefaultClassifier(err)
			}))
			call(r)
			r.Is(breaker.Open)
		})
	})
	t.Run("forced closed", func(t *testing.T) {
		inTrouble(t, func(w *breakertest.World) {
			r := w.Circuit(breaker.WithMode(breaker.ForcedClosed))
			r.Fails(100)
			r.Is(breaker.Closed)
			require.Equal(w, breaker.ForcedClosed, r.C.Snapshot().Mode)
			r.C.SetMode(breaker.Auto)
			r.Fails(4) // the counts have begun anew
			r.Is(breaker.Closed)
			r.Fails(1)
			r.Is(breaker.Open)
		})
	})
}

// A health check that says less than the calls need: the port answers, the dependency behind it does not.
func TestTroubleShallowHealthCheck(t *testing.T) {
	inTrouble(t, func(w *breakertest.World) {
		night := func(opts ...breaker.Option) (failed int, last breaker.Reason) {
			r := w.Circuit(opts...)
			r.Trip()
			began := w.Elapsed()
			for w.Elapsed() < began+5*time.Minute {
				w.Add(time.Second)
				if r.Call(breakertest.ErrBoom) == breakertest.ErrBoom {
					failed++
				}
			}
			for _, e := range r.Events.List() {
				if e.From == breaker.Open {
					last = e.Reason
				}
			}
			return failed, last
		}
		port := func(context.Context) error { return nil }
		behind := func(context.Context) error { return breakertest.ErrBoom }
		failed, why := night(breaker.WithHealthCheck(5*time.Second, port))
		require.Equal(w, breaker.ReasonHealthCheck, why)
		require.InDelta(w, 55, failed, 5, "a caller pays every 5s or so")
		failed, why = night(breaker.WithHealthCheck(5*time.Second, behind))
		require.Equal(w, breaker.ReasonTimeout, why)
		require.InDelta(w, 10, failed, 1, "one every 30s")
		failed, _ = night(breaker.WithHealthCheck(5*time.Second, behind), breaker.WithOpenBackoff(2, 5*time.Minute, 0))
		require.LessOrEqual(w, failed, 4)
	})
}

// Callers turned away in the recovery, and a probe that hangs.
func TestTroubleRejectedWhileHalfOpen(t *testing.T) {
	inTrouble(t, func(w *breakertest.World) {
		r := w.Circuit()
		r.Trip()
		w.Add(30 * time.Second)
		r.Gate()
		r.Gate()
		require.ErrorIs(w, r.Rejected(), breaker.ErrTooManyProbes)
		require.EqualValues(w, 2, r.C.Snapshot().Probes)
		w.Add(30 * time.Second) // the lease of the two that hang
		r.Succeeds(2)
		r.Is(breaker.Closed)

		r = w.Circuit(breaker.WithHalfOpenProbes(10))
		r.Trip()
		w.Add(30 * time.Second)
		for range 10 {
			r.Gate()
		}
		require.ErrorIs(w, r.Rejected(), breaker.ErrTooManyProbes)

		r = w.Circuit(breaker.WithProbeLease(2 * time.Second))
		r.Trip()
		w.Add(30 * time.Second)
		r.Gate()
		r.Gate()
		w.Add(2 * time.Second)
		r.Succeeds(2)
		r.Is(breaker.Closed)
	})
}

// Callers turned away though the circuit is closed.
func TestTroubleRejectedWhileClosed(t *testing.T) {
	inTrouble(t, func(w *breakertest.World) {
		r := w.Circuit(breaker.WithMaxInFlight(1))
		r.Gate()
		err := r.Call(nil)
		require.ErrorIs(w, err, breaker.ErrTooManyInFlight)
		require.NotErrorIs(w, err, breaker.ErrOpen)
		require.EqualValues(w, 1, r.C.Snapshot().InFlight)

		r = w.Circuit(breaker.WithRamp(time.Minute), breaker.WithRand(func() float64 { return 0.5 }))
		r.Trip()
		w.Add(30 * time.Second)
		r.Succeeds(2)
		r.Is(breaker.Closed)
		w.Add(10 * time.Second)
		require.Equal(w, breaker.Closed, r.Rejected().State, "a ramp")
		w.Add(50 * time.Second)
		r.Succeeds(10)
	})
}

// A new open timeout for a circuit that is open, and a file that the program's own options undo.
func TestTroubleReloadWithoutEffect(t *testing.T) {
	inTrouble(t, func(w *breakertest.World) {
		file, err := breaker.ParseConfig(map[string]any{"open_timeout": "5s", "health_check": map[string]any{"interval": "2s"}})
		require.NoError(w, err)
		r := w.Circuit()
		r.Trip()
		w.Add(10 * time.Second)
		require.NoError(w, r.C.Configure(file.Options()...))
		require.Equal(w, 20*time.Second, r.Rejected().RetryAfter(), "a period keeps its length")
		w.Add(20 * time.Second)
		r.FailsWith(breakertest.ErrBoom)
		require.Equal(w, 5*time.Second, r.Rejected().RetryAfter(), "the next has the new one")

		check := breaker.WithHealthCheck(time.Minute, func(context.Context) error { return breakertest.ErrBoom })
		first := w.Circuit(append(file.Options(), check)...)
		require.Equal(w, time.Minute, first.C.Config().HealthCheck.Interval, "the option came after the file")
		second := w.Circuit(append([]breaker.Option{check}, file.Options()...)...)
		require.Equal(w, 2*time.Second, second.C.Config().HealthCheck.Interval)
	})
}

// A log that says what happened, and Snapshot's one line.
func TestTroubleWhereToLook(t *testing.T) {
	inTrouble(t, func(w *breakertest.World) {
		var log strings.Builder
		r := w.Circuit(breaker.WithLogger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{
			ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				switch a.Key {
				case slog.TimeKey, slog.MessageKey:
					return slog.Attr{}
				case "until":
					return slog.Duration(a.Key, a.Value.Time().Sub(w.Start))
				}
				return a
			},
		}))))
		r.Trip()
		r.Rejected()
		require.Equal(w, "test: open (auto), 0 in flight, 5 calls, 5 failures, 1 rejected", r.C.Snapshot().String())
		w.Add(30 * time.Second)
		r.Succeeds(2)
		require.Equal(w, `level=WARN name=test from=closed to=open reason="threshold reached" failures=5 until=30s cause=boom
level=INFO name=test from=open to=half-open reason="timeout expired" failures=0
level=INFO name=test from=half-open to=closed reason=recovered failures=0
`, log.String())
	})
}
