package breakerhttp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakerhttp"
)

// W01: any RoundTripper may be wrapped, nil is the default one.
func TestWrapsAnyRoundTripper(t *testing.T) {
	up := serve(t, statuses(200))
	for name, rt := range map[string]http.RoundTripper{"nil": nil, "own": base(t), "func": roundTripper(base(t).RoundTrip)} {
		t.Run(name, func(t *testing.T) {
			tr, err := breakerhttp.NewTransport(rt)
			require.NoError(t, err)
			defer tr.Close()
			client := &http.Client{Transport: tr}
			defer client.CloseIdleConnections()
			resp, err := client.Get(up.URL)
			require.NoError(t, err)
			b, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, "answer", string(b))
		})
	}
}

// W02: one circuit for each origin.
func TestCircuitPerOrigin(t *testing.T) {
	one, two := serve(t, statuses(503)), serve(t, statuses(200))
	tr := transport(t, nil, r0())
	for _, path := range []string{"/a", "/b?x=1", "/a/b#c"} {
		code, _, err := get(t, tr, one.URL+path)
		require.NoError(t, err)
		require.Equal(t, 503, code)
	}
	_, _, err := get(t, tr, one.URL+"/d")
	require.ErrorIs(t, err, breaker.ErrOpen)
	code, _, err := get(t, tr, two.URL)
	require.NoError(t, err)
	require.Equal(t, 200, code)
	require.Equal(t, breaker.Closed, state(t, tr, two.URL))

	names := map[string]bool{}
	for name := range tr.Circuits() {
		names[name] = true
	}
	require.Equal(t, map[string]bool{one.URL: true, two.URL: true}, names)
}

// The outcome of every status. W03, W04, W05, BC-70.
func TestStatuses(t *testing.T) {
	want := func(code int) breaker.Outcome {
		switch {
		case code == 408, code == 429, code >= 500:
			return breaker.Failure
		}
		return breaker.Success // Answered is one
	}
	for _, code := range []int{200, 201, 202, 204, 206, 226, 301, 302, 304, 307, 308, 400, 401, 403, 404, 405, 408, 409, 410, 418, 422, 425, 429, 451, 499, 500, 501, 502, 503, 504, 505, 511, 520, 599} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			tr := transport(t, roundTripper(func(*http.Request) (*http.Response, error) { return answer(code, nil), nil }),
				breakerhttp.WithBreaker(breaker.WithFailureThreshold(5)))
			for range 5 {
				got, body, err := get(t, tr, "http://up.example")
				require.NoError(t, err)
				require.Equal(t, code, got)
				require.Equal(t, "answer", body)
			}
			total := circuit(t, tr, "http://up.example").Snapshot().Totals
			counts := map[breaker.Outcome]uint64{breaker.Success: total.Successes, breaker.Failure: total.Failures, breaker.Ignored: total.Ignored}
			require.EqualValues(t, 5, counts[want(code)], "%+v", total)
			require.Equal(t, want(code) == breaker.Failure, state(t, tr, "http://up.example") == breaker.Open)
		})
	}
}

// W04: a success ends the run.
func TestSuccessEndsTheRun(t *testing.T) {
	up := serve(t, statuses(503, 503, 503, 503, 200, 503))
	tr := transport(t, nil, breakerhttp.WithBreaker(breaker.WithFailureThreshold(5)))
	for range 5 {
		_, _, err := get(t, tr, up.URL)
		require.NoError(t, err)
	}
	require.Zero(t, circuit(t, tr, up.URL).Snapshot().ConsecutiveFailures)
}

// W05, BC-69: the client's faults neither open the circuit nor end a run of failures.
func TestClientErrorsLeaveTheCircuitAlone(t *testing.T) {
	t.Run("many", func(t *testing.T) {
		up := serve(t, statuses(401))
		tr := transport(t, nil, r0())
		for range 100 {
			_, _, err := get(t, tr, up.URL)
			require.NoError(t, err)
		}
		require.Equal(t, breaker.Closed, state(t, tr, up.URL))
	})
	t.Run("between", func(t *testing.T) {
		up := serve(t, statuses(500, 404, 500, 404, 500, 200))
		tr := transport(t, nil, r0())
		for range 5 {
			_, _, err := get(t, tr, up.URL)
			require.NoError(t, err)
		}
		require.Equal(t, breaker.Open, state(t, tr, up.URL))
	})
	t.Run("probe", func(t *testing.T) {
		clk := clock.NewMock()
		up := serve(t, statuses(404, 200))
		tr := transport(t, nil, r0(breaker.WithClock(clk)))
		open(t, tr, up.URL)
		clk.Add(10 * time.Second)
		code, _, err := get(t, tr, up.URL)
		require.NoError(t, err)
		require.Equal(t, 404, code)
		snap := circuit(t, tr, up.URL).Snapshot()
		require.Equal(t, breaker.Closed, snap.State, "a host that recovers into 404s has recovered")
	})
}

// BC-70, both settings.
func Test429(t *testing.T) {
	for _, header := range [][]string{nil, {"Retry-After", "5"}} {
		limited := roundTripper(func(*http.Request) (*http.Response, error) { return answer(429, nil, header...), nil })
		counts := transport(t, limited, r0())
		ignores := transport(t, limited, r0(), breakerhttp.Ignore429())
		for range 3 {
			_, _, err := get(t, counts, "http://up.example")
			require.NoError(t, err)
		}
		require.Equal(t, breaker.Open, state(t, counts, "up.example"))
		for range 10 {
			_, _, err := get(t, ignores, "http://up.example")
			require.NoError(t, err)
		}
		require.Equal(t, breaker.Closed, state(t, ignores, "up.example"))
	}
}

// W06: no connection is a failure.
func TestRefusedConnections(t *testing.T) {
	target := refused(t)
	tr := transport(t, nil, breakerhttp.WithBreaker(breaker.WithFailureThreshold(5)))
	for range 5 {
		_, _, err := get(t, tr, target)
		require.Error(t, err)
		require.NotErrorIs(t, err, breaker.ErrOpen)
	}
	_, _, err := get(t, tr, target)
	require.ErrorIs(t, err, breaker.ErrOpen)
}

// W06: so are the attempt's timeout, the caller's deadline and http.Client's Timeout.
func TestTimeoutsCount(t *testing.T) {
	stop := make(chan struct{})
	up := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-stop:
		case <-r.Context().Done():
		}
	})
	defer close(stop)
	limit := 5 * time.Millisecond
	cases := map[string]func(*http.Request, *breakerhttp.Transport) error{
		"attempt": func(req *http.Request, tr *breakerhttp.Transport) error {
			_, err := tr.RoundTrip(req.WithContext(breakerhttp.PerRequest(req.Context(), breakerhttp.AttemptTimeout(limit))))
			return err
		},
		"deadline": func(req *http.Request, tr *breakerhttp.Transport) error {
			ctx, cancel := context.WithTimeout(req.Context(), limit)
			defer cancel()
			_, err := tr.RoundTrip(req.WithContext(ctx))
			return err
		},
		"client": func(req *http.Request, tr *breakerhttp.Transport) error {
			_, err := (&http.Client{Transport: tr, Timeout: limit}).Do(req)
			return err
		},
	}
	for name, call := range cases {
		t.Run(name, func(t *testing.T) {
			tr := transport(t, nil, r0())
			for range 3 {
				err := call(request(t, http.MethodGet, up.URL, nil), tr)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				var timeout interface{ Timeout() bool }
				require.ErrorAs(t, err, &timeout)
				require.True(t, timeout.Timeout())
			}
			require.Equal(t, breaker.Open, state(t, tr, up.URL))
		})
	}
	t.Run("option", func(t *testing.T) {
		tr := transport(t, nil, r0(breaker.WithTimeout(limit)))
		for range 3 {
			_, _, err := get(t, tr, up.URL)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		require.Equal(t, breaker.Open, state(t, tr, up.URL))
	})
	t.Run("ignored deadline", func(t *testing.T) {
		tr := transport(t, nil, r0(breaker.IgnoreCallerDeadline()))
		for range 5 {
			require.Error(t, cases["deadline"](request(t, http.MethodGet, up.URL, nil), tr))
		}
		require.Equal(t, breaker.Closed, state(t, tr, up.URL))
	})
}

// W07: who walks away says nothing about the host.
func TestCallersCancel(t *testing.T) {
	arrived := make(chan struct{})
	up := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-r.Context().Done()
	})
	tr := transport(t, nil, r0(), quick(3))
	for range 10 {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-arrived
			cancel()
		}()
		_, err := tr.RoundTrip(request(t, http.MethodGet, up.URL, nil).WithContext(ctx))
		require.ErrorIs(t, err, context.Canceled)
	}
	snap := circuit(t, tr, up.URL).Snapshot()
	require.Equal(t, breaker.Closed, snap.State)
	require.Zero(t, snap.ConsecutiveFailures)
	require.Zero(t, snap.InFlight)
	require.EqualValues(t, 10, snap.Totals.Ignored)
	require.EqualValues(t, 10, up.hits.Load())
}

// The deprecated way to cancel a request is the caller's cancel as well.
func TestCancelChannel(t *testing.T) {
	up := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	tr := transport(t, nil, r0(), quick(3))
	req := request(t, http.MethodGet, up.URL, nil)
	cancel := make(chan struct{})
	//lint:ignore SA1019 it is what the test is about
	req.Cancel = cancel
	close(cancel)
	_, _, err := send(t, tr, req)
	require.Error(t, err)
	require.EqualValues(t, 1, circuit(t, tr, up.URL).Snapshot().Totals.Ignored)
}

// W08: a rejection is an error, or a 503 that says when to come back.
func TestRejection(t *testing.T) {
	clk := clock.NewMock()
	hold := breaker.WithOpenTimeout(15 * time.Second)
	up := serve(t, statuses(200))

	tr := transport(t, nil, r0(breaker.WithClock(clk), hold))
	open(t, tr, up.URL)
	clk.Add(5 * time.Second)
	_, _, err := get(t, tr, up.URL)
	var oe *breaker.OpenError
	require.ErrorAs(t, err, &oe)
	require.Equal(t, 10*time.Second, oe.RetryAfter())
	require.Equal(t, up.URL, oe.Circuit)

	for name, more := range map[string][]breakerhttp.Option{"plain": nil, "policies": {quick(2)}} {
		t.Run(name, func(t *testing.T) {
			tr := transport(t, nil, append(more, r0(breaker.WithClock(clk), hold), breakerhttp.OpenAsResponse())...)
			open(t, tr, up.URL)
			clk.Add(5*time.Second - time.Millisecond)
			resp, err := tr.RoundTrip(request(t, http.MethodGet, up.URL, nil))
			require.NoError(t, err)
			require.Equal(t, 503, resp.StatusCode)
			require.Equal(t, "11", resp.Header.Get("Retry-After"), "rounded up: who comes back then is not early")
			b, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.EqualValues(t, len(b), resp.ContentLength)
			require.NoError(t, resp.Body.Close())
			clk.Add(time.Millisecond)
			resp, err = tr.RoundTrip(request(t, http.MethodHead, up.URL, nil))
			require.NoError(t, err)
			require.Equal(t, "10", resp.Header.Get("Retry-After"))
			require.Equal(t, http.NoBody, resp.Body)
		})
	}
	require.Zero(t, up.hits.Load())
}

func TestClassifier(t *testing.T) {
	codes := []int{404, 503}
	tr := transport(t, roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path == "/err" {
			return nil, errBoom
		}
		return answer(codes[0], nil), nil
	}), r0(), breakerhttp.WithClassifier(func(req *http.Request, resp *http.Response, err error) breaker.Outcome {
		switch {
		case err != nil:
			return breaker.Ignored
		case resp.StatusCode == 404:
			return breaker.Failure
		}
		return breaker.Success
	}))
	for range 5 {
		_, _, err := get(t, tr, "http://up.example/err")
		require.Equal(t, errBoom, err, "the error itself")
	}
	require.Equal(t, breaker.Closed, state(t, tr, "up.example"))
	for range 3 {
		code, body, err := get(t, tr, "http://up.example/")
		require.NoError(t, err)
		require.Equal(t, 404, code)
		require.Equal(t, "answer", body)
	}
	require.Equal(t, breaker.Open, state(t, tr, "up.example"))
	circuit(t, tr, "up.example").Reset()
	codes[0] = 503
	_, _, err := get(t, tr, "http://up.example/")
	require.NoError(t, err)
	require.EqualValues(t, 1, circuit(t, tr, "up.example").Snapshot().Totals.Successes)
}

// A classifier that is out of its mind counts as a Failure; a panic comes out, and nothing is left open.
func TestClassifierPanics(t *testing.T) {
	for name, more := range map[string][]breakerhttp.Option{"plain": nil, "policies": {quick(2)}} {
		t.Run(name, func(t *testing.T) {
			body := &closeCounter{Reader: strings.NewReader("x")}
			mad := func(*http.Request, *http.Response, error) breaker.Outcome { panic("mad") }
			tr := transport(t, roundTripper(func(r *http.Request) (*http.Response, error) {
				_ = r.Body.Close()
				return answer(200, body), nil
			}), append(more, r0(), breakerhttp.WithClassifier(mad))...)
			req, _, closed := watchedRequest(t, http.MethodPut, "http://up.example", "x")
			require.PanicsWithValue(t, "mad", func() { _, _ = tr.RoundTrip(req) })
			require.EqualValues(t, 1, closed.Load())
			require.EqualValues(t, 1, body.closed.Load())
			snap := circuit(t, tr, "up.example").Snapshot()
			require.EqualValues(t, 1, snap.Totals.Failures)
			require.Zero(t, snap.InFlight)
		})
	}
	tr := transport(t, roundTripper(func(*http.Request) (*http.Response, error) { return answer(200, nil), nil }), r0(),
		breakerhttp.WithClassifier(func(*http.Request, *http.Response, error) breaker.Outcome { return 77 }))
	_, _, err := get(t, tr, "http://up.example")
	require.NoError(t, err)
	require.EqualValues(t, 1, circuit(t, tr, "up.example").Snapshot().Totals.Failures)
}

// The root's lists hold for transport errors, and an inner circuit's rejection is not the host's fault.
func TestErrorLists(t *testing.T) {
	other := errors.New("other")
	errs := map[string]error{"/ignored": errBoom, "/other": other, "/inner": fmt.Errorf("inner: %w", breaker.ErrOpen)}
	tr := transport(t, roundTripper(func(r *http.Request) (*http.Response, error) { return nil, errs[r.URL.Path] }),
		r0(breaker.WithIgnore(errBoom)))
	for path := range errs {
		_, _, err := get(t, tr, "http://up.example"+path)
		require.ErrorIs(t, err, errs[path])
	}
	total := circuit(t, tr, "up.example").Snapshot().Totals
	require.EqualValues(t, 1, total.Failures)
	require.EqualValues(t, 2, total.Ignored)
}

// BR-50: a rejection is an error in which nothing ran. A failure that is joined with one, as by a base that retries until its
// own circuit opens, is a Failure of the host: it is retried, and then rescued.
func TestBR50FailureJoinedWithARejection(t *testing.T) {
	for _, err := range []error{errors.Join(errBoom, breaker.ErrOpen), fmt.Errorf("%w: %w", breaker.ErrTooManyInFlight, errBoom)} {
		var asked []string
		rt := roundTripper(func(r *http.Request) (*http.Response, error) {
			asked = append(asked, r.URL.Host)
			if r.URL.Host == "backup.example" {
				return answer(200, nil), nil
			}
			return nil, err
		})
		failover := breakerhttp.WithFailover("http://backup.example")
		tr := transport(t, rt, r0(), quick(1), failover)
		code, _, got := get(t, tr, "http://up.example")
		require.NoError(t, got)
		require.Equal(t, 200, code)
		require.Equal(t, []string{"up.example", "up.example", "backup.example"}, asked)
		require.EqualValues(t, 2, circuit(t, tr, "up.example").Snapshot().Totals.Failures)

		// Where the circuit ignores it, it says nothing of the host, and nothing was rejected either.
		asked = nil
		tr = transport(t, rt, r0(breaker.WithIgnore(errBoom)), quick(1), failover)
		_, _, got = get(t, tr, "http://up.example")
		require.ErrorIs(t, got, err)
		require.Equal(t, []string{"up.example"}, asked)
		require.EqualValues(t, 1, circuit(t, tr, "up.example").Snapshot().Totals.Ignored)
	}
}

// BC-98: what failed is still handed over.
func TestFailureIsHandedOver(t *testing.T) {
	up := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Trace", "7")
		w.WriteHeader(503)
		_, _ = io.WriteString(w, "db down")
	})
	tr := transport(t, nil, r0())
	client := &http.Client{Transport: tr}
	for range 3 {
		resp, err := client.Get(up.URL)
		require.NoError(t, err)
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, "db down", string(b))
		require.Equal(t, "7", resp.Header.Get("X-Trace"))
	}
	resp, err := client.Get(up.URL)
	require.Nil(t, resp)
	require.ErrorIs(t, err, breaker.ErrOpen)
	require.EqualValues(t, 1, up.conns.Load(), "the connection was kept")
}

// Everything wrong is named at once, and secrets are not repeated.
func TestOptionsAreValidated(t *testing.T) {
	_, err := breakerhttp.NewTransport(nil,
		nil,
		breakerhttp.WithBreaker(breaker.WithFailureThreshold(0), breaker.WithClassifier(breaker.DefaultClassifier), breaker.WithRetry(),
			breaker.WithFallbackValue(struct{}{}), breaker.WithResult(func(struct{}, error) breaker.Outcome { return 0 })),
		breakerhttp.WithRetry(breaker.MaxRetries(-1)),
		breakerhttp.WithKey(nil),
		breakerhttp.WithClassifier(nil),
		breakerhttp.WithFailover("ftp://x", "https://user:hunter2@", "http://h?key=hunter2", "http://[", "relative"),
		breakerhttp.WithResponseCache(nil, 0, "bad name"),
		breakerhttp.WithRescueHeader("a b"),
		breakerhttp.WithDebugHeaders("a:b"),
	)
	require.Error(t, err)
	for _, want := range []string{"Option: must not be nil", "FailureThreshold", "Classifier: is not an option of", "Retry: is not an option of", "Fallback: is not an option of",
		"Result: is not an option of", "MaxRetries", "WithKey", "WithClassifier", "WithFailover[0]", "WithFailover[1]", "WithFailover[2]", "WithFailover[3]", "WithFailover[4]",
		"ttl must be above 0", `"bad name"`, "WithRescueHeader", "WithDebugHeaders"} {
		require.ErrorContains(t, err, want)
	}
	require.NotContains(t, err.Error(), "hunter2")
	require.Panics(t, func() { _, _ = new(breakerhttp.Transport).RoundTrip(request(t, "GET", "http://x", nil)) })
}
