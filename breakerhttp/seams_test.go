package breakerhttp_test

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakerhttp"
)

// A panic of the base or of a classifier, and runtime.Goexit, are Failures and show among the panics.
func TestPanicsAreCounted(t *testing.T) {
	good := roundTripper(func(*http.Request) (*http.Response, error) { return answer(200, nil), nil })
	for name, c := range map[string]struct {
		base roundTripper
		opts []breakerhttp.Option
	}{
		"base":       {base: func(*http.Request) (*http.Response, error) { panic("base") }},
		"Goexit":     {base: func(*http.Request) (*http.Response, error) { runtime.Goexit(); return nil, nil }},
		"classifier": {base: good, opts: []breakerhttp.Option{breakerhttp.WithClassifier(func(*http.Request, *http.Response, error) breaker.Outcome { panic("mad") })}},
	} {
		for _, policies := range []bool{false, true} {
			t.Run(fmt.Sprint(name, policies), func(t *testing.T) {
				opts := append(c.opts, r0())
				if policies {
					opts = append(opts, quick(2))
				}
				tr := transport(t, c.base, opts...)
				req := request(t, http.MethodGet, "http://up.example", nil)
				ended := make(chan any, 1)
				go func() {
					defer func() { ended <- recover() }()
					_, _ = tr.RoundTrip(req)
				}()
				guard(t, func() { require.Equal(t, name == "Goexit", <-ended == nil) })
				n := circuit(t, tr, "up.example").Snapshot()
				require.Zero(t, n.InFlight)
				require.EqualValues(t, 1, n.Totals.Failures)
				require.EqualValues(t, 1, n.Totals.Panics)
			})
		}
	}
	h, find := guarded(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/panic" {
			panic("handler")
		}
	}, breakerhttp.WithClassifier(func(*http.Request, *http.Response, error) breaker.Outcome { panic("mad") }))
	for _, path := range []string{"/panic", "/"} {
		require.Panics(t, func() { serveOnce(h, httptest.NewRequest(http.MethodGet, path, nil)) })
	}
	n := find("handler").Snapshot()
	require.EqualValues(t, 2, n.Totals.Panics)
	require.EqualValues(t, 2, n.Totals.Failures)
}

// Past the circuit, hooks hear of retries and rescues as they would otherwise.
func TestNoBreakerTellsHooks(t *testing.T) {
	e := &events{}
	up := serve(t, statuses(503, 503, 200))
	tr := transport(t, nil, r0(breaker.WithFailureThreshold(1), e.hooks()), quick(2))
	ctx := breakerhttp.PerRequest(t.Context(), breakerhttp.NoBreaker())
	code, _, err := send(t, tr, request(t, http.MethodGet, up.URL, nil).WithContext(ctx))
	require.NoError(t, err)
	require.Equal(t, 200, code)
	require.Len(t, e.retries, 2)
	for i, r := range e.retries {
		require.Equal(t, up.URL, r.Name)
		require.Equal(t, i+1, r.Attempt)
		require.EqualError(t, r.Err, "breakerhttp: status 503 Service Unavailable")
	}
	require.Len(t, e.rescues, 1)
	require.Equal(t, breaker.RescueRetry, e.rescues[0].Kind)
	require.Empty(t, e.calls, "the circuit is not told")
	for name := range tr.Circuits() {
		t.Fatalf("there is a circuit %s", name)
	}
}

// Past a circuit that is forced open, retries go on.
func TestNoBreakerPastForcedOpen(t *testing.T) {
	up := serve(t, statuses(503, 200))
	tr := transport(t, nil, breakerhttp.WithBreaker(breaker.WithMode(breaker.ForcedOpen)), quick(1))
	code, _, err := send(t, tr, request(t, http.MethodGet, up.URL, nil).WithContext(breakerhttp.PerRequest(t.Context(), breakerhttp.NoBreaker())))
	require.NoError(t, err)
	require.Equal(t, 200, code)
}

// The lists of errors given through WithBreaker decide past the circuit, too: what is ignored is not retried.
func TestErrorListsPastTheCircuit(t *testing.T) {
	for _, bypass := range []bool{false, true} {
		n := 0
		err := errBoom
		tr := transport(t, roundTripper(func(*http.Request) (*http.Response, error) { n++; return nil, err }),
			r0(breaker.WithFailureThreshold(99), breaker.WithIgnore(errBoom), breaker.WithFailOn(breaker.ErrOpen)), quick(2))
		ctx := t.Context()
		if bypass {
			ctx = breakerhttp.PerRequest(ctx, breakerhttp.NoBreaker())
		}
		call := func() int {
			n = 0
			_, _, got := send(t, tr, request(t, http.MethodGet, "http://up.example", nil).WithContext(ctx))
			require.ErrorIs(t, got, err)
			return n
		}
		require.Equal(t, 1, call())
		err = fmt.Errorf("inner: %w", breaker.ErrOpen) // Ignored without the list
		require.Equal(t, 1, call())                    // a rejection is not retried, whatever it counts for
		if !bypass {
			require.EqualValues(t, 1, circuit(t, tr, "up.example").Snapshot().Totals.Failures)
		}
	}
}

// What PerKey returns is held to what WithBreaker is: what is wrong is told, and the base options stay.
func TestPerKeyIsChecked(t *testing.T) {
	var log strings.Builder
	e := &events{}
	perKey := func(key string) []breaker.Option {
		switch {
		case strings.Contains(key, "bad"):
			return []breaker.Option{breaker.WithFailureThreshold(1), breaker.WithRetry(), breaker.WithClassifier(breaker.DefaultClassifier),
				breaker.WithFallbackValue(struct{}{}), breaker.WithResult(func(struct{}, error) breaker.Outcome { return 0 })}
		case strings.Contains(key, "good"):
			return []breaker.Option{breaker.WithFailureThreshold(1), breaker.WithTimeout(time.Minute)}
		}
		return nil
	}
	tr := transport(t, roundTripper(func(*http.Request) (*http.Response, error) { return nil, errBoom }),
		r0(e.hooks(), breaker.PerKey(perKey), breaker.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))))
	for _, target := range []string{"http://bad.example", "http://good.example", "http://other.example"} {
		_, _, err := get(t, tr, target)
		require.ErrorIs(t, err, errBoom)
	}
	require.Equal(t, breaker.Closed, state(t, tr, "bad.example"))
	require.Equal(t, breaker.Open, state(t, tr, "good.example"))
	require.Equal(t, breaker.Closed, state(t, tr, "other.example"))
	require.Equal(t, 3, circuit(t, tr, "bad.example").Config().FailureThreshold)
	require.Len(t, e.errs, 1)
	for _, name := range []string{"bad.example", "Retry", "Classifier", "Fallback", "Result", "is not an option of breakerhttp.WithBreaker"} {
		require.ErrorContains(t, e.errs[0], name)
		require.Contains(t, log.String(), name)
	}
}

// Hosts that push each other out of the group keep their counts, and the one in use is the one that is listed.
func TestCrowdedOut(t *testing.T) {
	tr := transport(t, roundTripper(func(*http.Request) (*http.Response, error) { return nil, errBoom }), r0(breaker.MaxKeys(1)))
	for range 2 {
		for _, target := range []string{"http://a.example", "http://b.example"} {
			_, _, err := get(t, tr, target)
			require.ErrorIs(t, err, errBoom)
			_, ok := tr.Circuit(target)
			require.True(t, ok, "the host that was asked last")
			n := 0
			for range tr.Circuits() {
				n++
			}
			require.Equal(t, 1, n)
		}
	}
	var oe *breaker.OpenError
	_, _, err := get(t, tr, "http://a.example")
	require.ErrorIs(t, err, errBoom)
	_, _, err = get(t, tr, "http://a.example")
	require.True(t, errors.As(err, &oe), "the third failure has opened it")
	_, _, _ = get(t, tr, "http://c.example")
	require.Equal(t, breaker.Open, state(t, tr, "a.example"), "what is open stays")
}

// A host for which there was no room gets it once there is.
func TestRoomAfterOverflow(t *testing.T) {
	fail := true
	tr := transport(t, roundTripper(func(r *http.Request) (*http.Response, error) {
		if fail {
			return nil, errBoom
		}
		return answer(200, io.NopCloser(strings.NewReader("x"))), nil
	}), r0(breaker.MaxKeys(1)))
	open(t, tr, "http://a.example")
	_, _, err := get(t, tr, "http://b.example")
	require.ErrorIs(t, err, errBoom)
	_, ok := tr.Circuit("http://b.example")
	require.False(t, ok)
	circuit(t, tr, "a.example").Reset()
	fail = false
	_, _, err = get(t, tr, "http://b.example")
	require.NoError(t, err)
	_, ok = tr.Circuit("http://b.example")
	require.True(t, ok)
}
