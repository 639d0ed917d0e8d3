package breakerhttp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakerhttp"
)

// closeCounter is a response body that counts its closes.
type closeCounter struct {
	io.Reader
	closed atomic.Int64
}

func (c *closeCounter) Close() error { c.closed.Add(1); return nil }

// BC-92, W13: the request's body is closed on every path.
func TestRequestBodyIsClosed(t *testing.T) {
	ok := roundTripper(func(r *http.Request) (*http.Response, error) { defer r.Body.Close(); return answer(200, nil), nil })
	never := roundTripper(func(*http.Request) (*http.Response, error) { panic("must not be called") })
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	cases := map[string]struct {
		base  http.RoundTripper
		opts  []breakerhttp.Option
		ctx   context.Context
		open  bool
		panic bool
	}{
		"sent":             {base: ok},
		"rejected":         {base: never, open: true},
		"as response":      {base: never, open: true, opts: []breakerhttp.Option{breakerhttp.OpenAsResponse()}},
		"cancelled":        {base: never, ctx: cancelled},
		"cancelled bypass": {base: never, ctx: breakerhttp.PerRequest(cancelled, breakerhttp.NoBreaker())},
		"bad option":       {base: never, ctx: breakerhttp.PerRequest(t.Context(), breakerhttp.Retries(-1, 0))},
		"key panics":       {base: never, panic: true, opts: []breakerhttp.Option{breakerhttp.WithKey(func(*http.Request) string { panic("key") })}},
	}
	for name, c := range cases {
		for _, policies := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", name, policies), func(t *testing.T) {
				opts := append([]breakerhttp.Option{r0()}, c.opts...)
				if policies {
					opts = append(opts, quick(2), breakerhttp.WithResponseCache(nil, time.Minute))
				}
				tr := transport(t, c.base, opts...)
				if c.open {
					open(t, tr, "http://up.example")
				}
				req, made, closed := watchedRequest(t, http.MethodPut, "http://up.example", "hello")
				if c.ctx != nil {
					req = req.WithContext(c.ctx)
				}
				if c.panic {
					require.Panics(t, func() { _, _ = tr.RoundTrip(req) })
				} else if resp, err := tr.RoundTrip(req); err == nil {
					require.NoError(t, resp.Body.Close())
				}
				require.Equal(t, made.Load(), closed.Load())
			})
		}
	}
	t.Run("no URL", func(t *testing.T) {
		req, made, closed := watchedRequest(t, http.MethodPut, "http://up.example", "hello")
		req.URL = nil
		_, err := transport(t, never).RoundTrip(req)
		require.Error(t, err)
		require.Equal(t, made.Load(), closed.Load())
	})
}

// A pipe behind a rejected request is told.
func TestRejectedPipe(t *testing.T) {
	tr := transport(t, nil, r0())
	open(t, tr, "http://up.example")
	r, w := io.Pipe()
	done := make(chan error)
	go func() {
		_, err := w.Write([]byte("x"))
		done <- err
	}()
	_, _, err := send(t, tr, request(t, http.MethodPost, "http://up.example", r))
	require.ErrorIs(t, err, breaker.ErrOpen)
	guard(t, func() { require.ErrorIs(t, <-done, io.ErrClosedPipe) })
}

// W13: the caller's request is as it was, whatever the base does to its own.
func TestRequestIsNotChanged(t *testing.T) {
	var seen []*http.Request
	n := 0
	tr := transport(t, roundTripper(func(r *http.Request) (*http.Response, error) {
		n++
		seen = append(seen, r)
		if n > 1 { // the first is the caller's own, which a base must leave alone
			r.Header.Set("X-Mine", fmt.Sprint(n))
		}
		_, _ = io.Copy(io.Discard, r.Body)
		_ = r.Body.Close()
		return answer(503, nil), nil
	}), r0(breaker.WithFailureThreshold(99)), quick(3), breakerhttp.WithFailover("http://user:pw@other.example/base"))
	req := request(t, http.MethodPut, "http://up.example/path?q=1", strings.NewReader("hello"))
	req.Header.Set("Authorization", "secret")
	req.Header.Set("X-Any", "1")
	header, url, ctx, host, body := maps.Clone(req.Header), *req.URL, req.Context(), req.Host, req.Body
	_, _, err := send(t, tr, req)
	require.NoError(t, err)
	require.Len(t, seen, 5)
	require.Equal(t, header, req.Header)
	require.Equal(t, url, *req.URL)
	require.Equal(t, host, req.Host)
	require.Equal(t, body, req.Body)
	require.Equal(t, ctx, req.Context())
	distinct := map[*http.Request]bool{}
	for _, r := range seen {
		distinct[r] = true
	}
	require.Len(t, distinct, 5, "each attempt has a request of its own")
}

// Never both, never neither, always a body: whatever the base returns.
func TestBadBases(t *testing.T) {
	body := &closeCounter{Reader: strings.NewReader("x")}
	cases := map[string]func(*http.Request) (*http.Response, error){
		"nothing":  func(*http.Request) (*http.Response, error) { return nil, nil },
		"both":     func(*http.Request) (*http.Response, error) { return answer(200, body), errBoom },
		"no body":  func(*http.Request) (*http.Response, error) { r := answer(200, nil); r.Body = nil; return r, nil },
		"no head":  func(*http.Request) (*http.Response, error) { r := answer(200, nil); r.Header = nil; return r, nil },
		"too late": func(r *http.Request) (*http.Response, error) { <-r.Context().Done(); return answer(200, body), nil },
	}
	for name, f := range cases {
		for _, policies := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", name, policies), func(t *testing.T) {
				body.closed.Store(0)
				opts := []breakerhttp.Option{r0()}
				if name == "too late" {
					opts = []breakerhttp.Option{r0(breaker.WithTimeout(time.Millisecond))}
				}
				if policies {
					opts = append(opts, breakerhttp.WithRescueHeader(""), breakerhttp.WithDebugHeaders(""), breakerhttp.WithResponseCache(nil, time.Minute))
				}
				tr := transport(t, roundTripper(f), opts...)
				_, _, err := get(t, tr, "http://up.example")
				snap := circuit(t, tr, "up.example").Snapshot()
				require.Zero(t, snap.InFlight)
				switch name {
				case "no body", "no head":
					require.NoError(t, err)
					require.EqualValues(t, 1, snap.Totals.Successes)
				case "nothing":
					require.Error(t, err)
					require.EqualValues(t, 1, snap.Totals.Failures)
				case "too late":
					require.ErrorIs(t, err, context.DeadlineExceeded)
					require.EqualValues(t, 1, body.closed.Load())
					require.EqualValues(t, 1, snap.Totals.Failures)
				default:
					require.ErrorIs(t, err, errBoom)
					require.EqualValues(t, 1, body.closed.Load())
				}
			})
		}
	}
}

// A base that panics, or ends its goroutine, is settled as a Failure; the panic comes out.
func TestBasePanics(t *testing.T) {
	tr := transport(t, roundTripper(func(*http.Request) (*http.Response, error) { panic("base") }), r0(), quick(2))
	require.PanicsWithValue(t, "base", func() { _, _ = tr.RoundTrip(request(t, http.MethodGet, "http://up.example", nil)) })
	snap := circuit(t, tr, "up.example").Snapshot()
	require.EqualValues(t, 1, snap.Totals.Failures)
	require.Zero(t, snap.InFlight)
}

// Credentials, queries and bodies never show: in the names of circuits, in errors, logs, states, hooks or debug headers,
// whatever happens to a request.
func TestSecretsStaySecret(t *testing.T) {
	var shown strings.Builder
	e := &events{}
	tr := transport(t, roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		if r.URL.Path == "/err" { // as a base that is an http.Client fails
			return nil, &url.Error{Op: "Get", URL: r.URL.String(), Err: errBoom}
		}
		if r.URL.Path == "/broken" {
			return answer(200, io.NopCloser(readerFunc(func([]byte) (int, error) {
				return 0, &url.Error{Op: "Get", URL: r.URL.String(), Err: errBoom}
			}))), nil
		}
		return answer(503, nil, "X-Api-Key", "hunter2"), nil
	}), r0(e.hooks(), breaker.WithLogger(slog.New(slog.NewTextHandler(&shown, &slog.HandlerOptions{Level: slog.LevelDebug}))),
		breaker.WithHooks(breaker.Hooks{StateChange: func(t breaker.Transition) { fmt.Fprintln(&shown, t.Name, t.Cause) }})),
		quick(1), breakerhttp.RetryUnsafe(), breakerhttp.WithFailover("http://me:hunter2@other.example"),
		breakerhttp.WithResponseCache(nil, time.Minute, "Authorization"), breakerhttp.WithDebugHeaders(""), breakerhttp.WithRescueHeader(""))
	for _, path := range []string{"/status", "/err", "/broken", "/status", "/status"} {
		req := request(t, http.MethodPost, "http://user:hunter2@UP.example."+path+"?key=hunter2#hunter2", strings.NewReader("hunter2"))
		req.Header.Set("Authorization", "Bearer hunter2")
		resp, err := tr.RoundTrip(req)
		var oe *breaker.OpenError
		if errors.As(err, &oe) {
			fmt.Fprintln(&shown, oe.Error(), oe.Cause)
		}
		if err != nil {
			continue
		}
		for name, v := range resp.Header {
			if strings.HasPrefix(name, "X-Breaker-") || name == "X-Rescued" {
				fmt.Fprintln(&shown, name, v)
			}
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		require.NoError(t, resp.Body.Close())
		circuit(t, tr, "http://up.example").Reset()
	}
	for range 3 { // and now it opens
		_, _, _ = get(t, tr, "http://user:hunter2@up.example/err?key=hunter2")
	}
	names := map[string]bool{}
	for name, c := range tr.Circuits() {
		names[name] = true
		snap, err := json.Marshal(c.Snapshot())
		require.NoError(t, err)
		shown.Write(snap)
	}
	e.locked(func() { fmt.Fprintf(&shown, "%+v %+v %+v %+v", e.calls, e.retries, e.rescues, e.errs) })
	require.NotContains(t, shown.String(), "hunter2")
	require.Equal(t, map[string]bool{"http://up.example": true, "http://other.example": true}, names)
	for _, part := range []string{"to=open", "X-Breaker-Provider", "status 503", "boom"} {
		require.Contains(t, shown.String(), part, "it shows what it should")
	}
}

// BC-147: clients that share a Transport share its circuits, and one made anew is new.
func TestClonesShareCircuits(t *testing.T) {
	clk := clock.NewMock()
	up := serve(t, statuses(200))
	tr := transport(t, nil, r0(breaker.WithClock(clk)))
	open(t, tr, up.URL)
	clk.Add(2 * time.Second)
	a := &http.Client{Transport: tr}
	b := *a
	b.Timeout = time.Minute
	for _, client := range []*http.Client{a, &b} {
		_, err := client.Get(up.URL)
		var oe *breaker.OpenError
		require.True(t, errors.As(err, &oe))
		require.Equal(t, 8*time.Second, oe.RetryAfter())
	}
}

func TestCircuitLookup(t *testing.T) {
	tr := transport(t, roundTripper(func(*http.Request) (*http.Response, error) { return answer(200, nil), nil }))
	_, ok := tr.Circuit("https://api.example.com")
	require.False(t, ok)
	_, _, err := get(t, tr, "https://API.example.com:443/x")
	require.NoError(t, err)
	for _, key := range []string{"https://api.example.com", "https://API.EXAMPLE.com.:443/any?q", "api.example.com", "api.example.com:443"} {
		c, ok := tr.Circuit(key)
		require.True(t, ok, key)
		require.Equal(t, "https://api.example.com", c.Name())
	}
	_, ok = tr.Circuit("http://api.example.com")
	require.False(t, ok, "the scheme keeps circuits apart")
}

func TestWithKey(t *testing.T) {
	tr := transport(t, roundTripper(func(*http.Request) (*http.Response, error) { return answer(200, nil), nil }),
		breakerhttp.WithKey(func(r *http.Request) string { return r.Header.Get("X-Tenant") }))
	req := request(t, http.MethodGet, "http://up.example", nil)
	req.Header.Set("X-Tenant", "acme")
	_, _, err := send(t, tr, req)
	require.NoError(t, err)
	_, ok := tr.Circuit("acme")
	require.True(t, ok)
	_, _, err = get(t, tr, "http://up.example")
	require.NoError(t, err)
	_, ok = tr.Circuit("http://up.example")
	require.True(t, ok, "an empty key stands for the default")
}

// A URL stays out wherever in the chain of errors it is, and what the error is can still be asked.
func TestWrappedURLsStayOut(t *testing.T) {
	errSign := errors.New("sign")
	for name, wrap := range map[string]func(error) error{
		"wrapped": func(err error) error { return fmt.Errorf("%w: %w", errSign, err) },
		"joined":  func(err error) error { return errors.Join(errSign, err) },
		"twice": func(err error) error {
			return &url.Error{Op: "Get", URL: "http://a/?secret", Err: fmt.Errorf("%w: %w", errSign, err)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := &events{}
			tr := transport(t, roundTripper(func(r *http.Request) (*http.Response, error) {
				return nil, wrap(&url.Error{Op: "Get", URL: r.URL.String(), Err: errBoom})
			}), r0(e.hooks()))
			_, _, err := get(t, tr, "http://up.example/?secret=1")
			require.ErrorContains(t, err, "secret", "the caller's own error is as the base gave it")
			require.Equal(t, "boom", circuit(t, tr, "http://up.example").Snapshot().LastFailure)
			require.Len(t, e.calls, 1)
			require.ErrorIs(t, e.calls[0].Err, errSign)
			require.ErrorIs(t, e.calls[0].Err, errBoom)
		})
	}
	t.Run("not in the text", func(t *testing.T) {
		tr := transport(t, roundTripper(func(r *http.Request) (*http.Response, error) {
			return nil, taciturn{&url.Error{Op: "Get", URL: r.URL.String(), Err: errBoom}}
		}), r0())
		_, _, err := get(t, tr, "http://up.example/?secret=1")
		require.EqualError(t, err, "quiet")
		require.Equal(t, "quiet", circuit(t, tr, "http://up.example").Snapshot().LastFailure)
	})
}

// taciturn is an error that says nothing of what is inside.
type taciturn struct{ error }

func (taciturn) Error() string   { return "quiet" }
func (e taciturn) Unwrap() error { return e.error }
