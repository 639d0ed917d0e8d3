package breakerhttp_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakerhttp"
)

// guarded puts a Handler with r0 in front of f.
func guarded(t *testing.T, f http.HandlerFunc, opts ...breakerhttp.Option) (http.Handler, func(key string) *breaker.Circuit) {
	t.Helper()
	h, err := breakerhttp.Handler(f, append([]breakerhttp.Option{r0()}, opts...)...)
	require.NoError(t, err)
	return h, func(key string) *breaker.Circuit {
		for name, c := range h.(breaker.Source).Circuits() {
			if name == key {
				return c
			}
		}
		t.Fatalf("no circuit %q", key)
		return nil
	}
}

func serveOnce(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestHandlerCounts(t *testing.T) {
	for code, want := range map[int]breaker.Outcome{200: breaker.Success, 0: breaker.Success, 302: breaker.Success, 400: breaker.Success,
		404: breaker.Success, 408: breaker.Ignored, 429: breaker.Ignored, 500: breaker.Failure, 503: breaker.Failure} {
		h, find := guarded(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			if code != 0 {
				w.WriteHeader(code)
			}
			_, _ = io.WriteString(w, "x")
		})
		for range 3 {
			w := serveOnce(h, httptest.NewRequest(http.MethodGet, "/", nil))
			require.Equal(t, "x", w.Body.String())
		}
		n := find("handler").Snapshot()
		got := map[breaker.Outcome]uint64{breaker.Success: n.Totals.Successes, breaker.Failure: n.Totals.Failures, breaker.Ignored: n.Totals.Ignored}
		require.EqualValues(t, 3, got[want], "%d: %+v", code, n.Totals)
		require.Zero(t, n.InFlight)
	}
}

func TestHandlerRejects(t *testing.T) {
	clk := clock.NewMock()
	ran := 0
	h, find := guarded(t, func(http.ResponseWriter, *http.Request) { ran++ }, breakerhttp.WithBreaker(breaker.WithClock(clk)))
	find("handler").Trip(errBoom)
	clk.Add(2500 * time.Millisecond)
	w := serveOnce(h, httptest.NewRequest(http.MethodGet, "/", nil))
	require.Equal(t, 503, w.Code)
	require.Equal(t, "8", w.Header().Get("Retry-After"))
	require.Zero(t, ran)
	clk.Add(7500 * time.Millisecond)
	require.Equal(t, 200, serveOnce(h, httptest.NewRequest(http.MethodGet, "/", nil)).Code)
	require.Equal(t, breaker.Closed, find("handler").State())
}

// A panic counts and goes on as it was; BC-59: http.ErrAbortHandler is one.
func TestHandlerPanics(t *testing.T) {
	for _, v := range []any{"boom", http.ErrAbortHandler} {
		h, find := guarded(t, func(http.ResponseWriter, *http.Request) { panic(v) })
		for range 3 {
			require.PanicsWithValue(t, v, func() { serveOnce(h, httptest.NewRequest(http.MethodGet, "/", nil)) })
		}
		require.Equal(t, breaker.Open, find("handler").State())
	}
}

// Once the client has gone, nothing counts: neither a status nor a panic.
func TestHandlerWhoseClientHasGone(t *testing.T) {
	for _, panics := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		h, find := guarded(t, func(w http.ResponseWriter, _ *http.Request) {
			cancel()
			if panics {
				panic(http.ErrAbortHandler)
			}
			w.WriteHeader(500)
		})
		func() {
			defer func() { _ = recover() }()
			serveOnce(h, httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx))
		}()
		require.EqualValues(t, 1, find("handler").Snapshot().Totals.Ignored)
		serveOnce(h, httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx))
		require.EqualValues(t, 1, find("handler").Snapshot().Totals.Calls)
	}
}

func TestHandlerOptions(t *testing.T) {
	_, err := breakerhttp.Handler(nil, breakerhttp.WithRetry(), breakerhttp.Ignore429(), breakerhttp.WithFailover("http://x"), breakerhttp.WithBreaker(breaker.WithTimeout(time.Second)))
	for _, want := range []string{"next must not be nil", "WithRetry: is not an option of Handler", "Ignore429", "WithFailover", "http.TimeoutHandler"} {
		require.ErrorContains(t, err, want)
	}
	h, find := guarded(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) },
		breakerhttp.WithKey(func(r *http.Request) string { return r.Header.Get("X-Tenant") }),
		breakerhttp.WithClassifier(func(r *http.Request, resp *http.Response, err error) breaker.Outcome {
			if r.URL.Path == "/panic" {
				panic("mad")
			}
			if err == nil && resp.StatusCode == 404 {
				return breaker.Failure
			}
			return breaker.Success
		}))
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("X-Tenant", "acme")
	for range 3 {
		serveOnce(h, r)
	}
	require.Equal(t, breaker.Open, find("acme").State())
	require.Equal(t, 404, serveOnce(h, httptest.NewRequest(http.MethodGet, "/", nil)).Code)
	require.PanicsWithValue(t, "mad", func() { serveOnce(h, httptest.NewRequest(http.MethodGet, "/panic", nil)) })
	require.EqualValues(t, 2, find("handler").Snapshot().Totals.Failures)
	require.NoError(t, h.(io.Closer).Close())
}

// What the writer can do, the handler may do: flush, hijack, ReadFrom, push, ResponseController.
func TestHandlerKeepsTheWritersPowers(t *testing.T) {
	t.Run("HTTP/1.1", func(t *testing.T) {
		h, _ := guarded(t, func(w http.ResponseWriter, r *http.Request) {
			_, flushes := w.(http.Flusher)
			_, reads := w.(io.ReaderFrom)
			if r.URL.Path == "/hijack" {
				conn, buf, err := w.(http.Hijacker).Hijack()
				if err != nil {
					return
				}
				defer conn.Close()
				_, _ = buf.WriteString("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nraw")
				_ = buf.Flush()
				return
			}
			_, _ = io.Copy(w, strings.NewReader(fmt.Sprint(flushes, reads, http.NewResponseController(w).SetWriteDeadline(time.Time{}), http.NewResponseController(w).Flush())))
		})
		up := serve(t, h.ServeHTTP)
		_, body, err := get(t, base(t), up.URL)
		require.NoError(t, err)
		require.Equal(t, "true true <nil> <nil>", body)
		_, body, err = get(t, base(t), up.URL+"/hijack")
		require.NoError(t, err)
		require.Equal(t, "raw", body)
	})
	t.Run("HTTP/2", func(t *testing.T) {
		h, _ := guarded(t, func(w http.ResponseWriter, _ *http.Request) {
			p, pushes := w.(http.Pusher)
			_, flushes := w.(http.Flusher)
			err := p.Push("/x", nil)
			_, hijacks := w.(http.Hijacker)
			_, _ = fmt.Fprint(w, flushes, pushes, hijacks, errors.Is(err, http.ErrNotSupported))
			w.(http.Flusher).Flush()
		})
		srv := httptest.NewUnstartedServer(h)
		srv.EnableHTTP2 = true
		srv.StartTLS()
		defer srv.Close()
		_, body, err := get(t, srv.Client().Transport, srv.URL)
		require.NoError(t, err)
		require.Equal(t, "true true false true", body)
	})
	t.Run("neither", func(t *testing.T) {
		h, _ := guarded(t, func(w http.ResponseWriter, _ *http.Request) {
			_, flushes := w.(http.Flusher)
			_, _ = fmt.Fprint(w, flushes)
		})
		w := &bareWriter{h: http.Header{}}
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		require.Equal(t, "false", w.b.String())
	})
	t.Run("flush", func(t *testing.T) {
		h, find := guarded(t, func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			w.WriteHeader(500) // too late
		})
		serveOnce(h, httptest.NewRequest(http.MethodGet, "/", nil))
		require.EqualValues(t, 1, find("handler").Snapshot().Totals.Successes)
	})
}

type bareWriter struct {
	h http.Header
	b strings.Builder
}

func (w *bareWriter) Header() http.Header         { return w.h }
func (w *bareWriter) Write(p []byte) (int, error) { return w.b.Write(p) }
func (w *bareWriter) WriteHeader(int)             {}

// Q06 and the other health checks.
func TestHealthChecks(t *testing.T) {
	up := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/down":
			w.WriteHeader(503)
		case "/moved":
			http.Redirect(w, r, "/", http.StatusFound)
		}
	})
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	secure.Config.ErrorLog = quiet
	down := refused(t)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	ctx := t.Context()

	require.NoError(t, breakerhttp.CheckTCP(hostOf(t, up.URL))(ctx))
	require.Error(t, breakerhttp.CheckTCP(hostOf(t, down))(ctx))
	require.Error(t, breakerhttp.CheckTCP("no port")(ctx))
	require.ErrorContains(t, breakerhttp.CheckTCP(hostOf(t, up.URL))(cancelled), "cancel")

	require.NoError(t, breakerhttp.CheckTLS(secure.URL, breakerhttp.CheckClient(secure.Client()))(ctx))
	require.NoError(t, breakerhttp.CheckTLS(hostOf(t, secure.URL), breakerhttp.CheckClient(secure.Client()))(ctx))
	require.Error(t, breakerhttp.CheckTLS(hostOf(t, secure.URL))(ctx), "a certificate that nobody knows")
	require.Error(t, breakerhttp.CheckTLS(hostOf(t, up.URL))(ctx))
	require.Error(t, breakerhttp.CheckTLS(hostOf(t, down))(ctx))
	for in, want := range map[string]string{"api.example.com": "api.example.com:443", "https://api.example.com": "api.example.com:443", "https://api.example.com:8443/x": "api.example.com:8443",
		"api.example.com:1": "api.example.com:1", "::1": "[::1]:443", "[::1]": "[::1]:443", "[::1]:9": "[::1]:9"} {
		require.Equal(t, want, breakerhttp.TLSAddr(in))
	}

	require.NoError(t, breakerhttp.CheckHTTP(up.URL)(ctx))
	require.ErrorContains(t, breakerhttp.CheckHTTP(up.URL+"/down?key=hunter2")(ctx), "status 503")
	require.NoError(t, breakerhttp.CheckHTTP(up.URL+"/down", breakerhttp.CheckStatus(200, 503))(ctx))
	require.Error(t, breakerhttp.CheckHTTP(up.URL, breakerhttp.CheckStatus(204))(ctx))
	require.ErrorContains(t, breakerhttp.CheckHTTP(up.URL+"/moved")(ctx), "status 302")
	for _, bad := range []string{down + "?key=hunter2", "http://[hunter2", ""} {
		err := breakerhttp.CheckHTTP(bad)(ctx)
		require.Error(t, err)
		require.NotContains(t, err.Error(), "hunter2")
	}
	require.ErrorIs(t, breakerhttp.CheckHTTP(up.URL)(cancelled), context.Canceled)
}

// A check offers a probe as soon as the host is back.
func TestHealthCheckOffersAProbe(t *testing.T) {
	up := serve(t, statuses(200))
	tr := transport(t, nil, breakerhttp.WithBreaker(breaker.WithOpenTimeout(time.Hour), breaker.WithSuccessThreshold(1),
		breaker.WithHealthCheck(time.Millisecond, breakerhttp.CheckTCP(hostOf(t, up.URL)))))
	open(t, tr, up.URL)
	eventually(t, "half-open", func() bool { return state(t, tr, up.URL) == breaker.HalfOpen })
	_, _, err := get(t, tr, up.URL)
	require.NoError(t, err)
	require.Equal(t, breaker.Closed, state(t, tr, up.URL))
}

// A fake clock that is set in the past does not end a check's dialling.
func TestHealthCheckOnAClockInThePast(t *testing.T) {
	up := serve(t, statuses(200))
	past := clock.NewMock() // 1970
	c := breaker.Must(breaker.NewCircuit("dep", breaker.WithClock(past), breaker.WithOpenTimeout(time.Hour),
		breaker.WithHealthCheck(10*time.Second, breakerhttp.CheckTCP(hostOf(t, up.URL)))))
	defer c.Close()
	c.Trip(nil)
	eventually(t, "half-open", func() bool {
		past.Add(time.Second)
		return c.Snapshot().Until.IsZero()
	})
}

// A check of a host that hangs has 5s.
func TestHealthCheckLimit(t *testing.T) {
	started, ended := make(chan struct{}, 1), make(chan struct{}, 1)
	up := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		started <- struct{}{}
		<-r.Context().Done()
		ended <- struct{}{}
	})
	clk := newFakeClock()
	tr := transport(t, nil, breakerhttp.WithBreaker(breaker.WithClock(clk), breaker.WithOpenTimeout(time.Hour),
		breaker.WithHealthCheck(10*time.Second, breakerhttp.CheckHTTP(up.URL))))
	open(t, tr, up.URL)
	clk.pass(t, 10*time.Second)
	guard(t, func() { <-started })
	clk.pass(t, 5*time.Second)
	guard(t, func() { <-ended })
	require.Equal(t, breaker.Open, state(t, tr, up.URL))
}

// A hang of the host is bounded by the check's context, whatever the check.
func TestHealthChecksEndWithTheirContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
		}
	}()
	for name, check := range map[string]func(context.Context) error{
		"TLS":  breakerhttp.CheckTLS(l.Addr().String()),
		"HTTP": breakerhttp.CheckHTTP("http://" + l.Addr().String()),
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			guard(t, func() { require.Error(t, check(ctx)) })
		})
	}
}

// What an empty source leaves open, the handler may still say.
func TestHandlerReadsFromNothing(t *testing.T) {
	guard(t, func() {
		for _, content := range []string{"", "x"} {
			h, find := guarded(t, func(w http.ResponseWriter, _ *http.Request) {
				n, _ := w.(io.ReaderFrom).ReadFrom(io.MultiReader(strings.NewReader(content), readerFunc(func([]byte) (int, error) { return 0, errBoom })))
				if n == 0 {
					w.WriteHeader(http.StatusBadGateway)
				}
			})
			code, body, err := get(t, base(t), serve(t, h.ServeHTTP).URL)
			require.NoError(t, err)
			require.Equal(t, content, body)
			totals := find("handler").Snapshot().Totals
			if content == "" {
				require.Equal(t, http.StatusBadGateway, code)
				require.EqualValues(t, 1, totals.Failures)
				continue
			}
			require.Equal(t, http.StatusOK, code)
			require.EqualValues(t, 1, totals.Successes)
		}
	})
}

// A handler that fails for what its client has sent says nothing against itself: broken chunks, or more than it may send.
func TestHandlerWhoseClientSendsNonsense(t *testing.T) {
	guard(t, func() {
		h, find := guarded(t, func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				w.WriteHeader(http.StatusBadGateway)
			}
		})
		up := serve(t, http.MaxBytesHandler(h, 1000).ServeHTTP)
		for _, chunks := range []string{"3\r\nabc\r\nZZ\r\n", "7d0\r\n" + strings.Repeat("x", 2000) + "\r\n0\r\n\r\n"} {
			for range 5 {
				c, err := net.Dial("tcp", hostOf(t, up.URL))
				require.NoError(t, err)
				_, err = io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"+chunks)
				require.NoError(t, err)
				resp, err := http.ReadResponse(bufio.NewReader(c), nil)
				require.NoError(t, err)
				require.Equal(t, http.StatusBadGateway, resp.StatusCode)
				require.NoError(t, c.Close())
			}
		}
		n := find("handler").Snapshot()
		require.Equal(t, breaker.Closed, n.State)
		require.EqualValues(t, 10, n.Totals.Ignored)
	})
}

// A deadline of the server's own is not a client that has gone.
func TestHandlerUnderATimeout(t *testing.T) {
	for _, ignored := range []bool{false, true} {
		var opts []breakerhttp.Option
		if ignored {
			opts = append(opts, breakerhttp.WithBreaker(breaker.IgnoreCallerDeadline()))
		}
		ended := make(chan struct{}, 1)
		ran := 0 // a busy machine may be late: what has ended before it began does not count
		h, find := guarded(t, func(_ http.ResponseWriter, r *http.Request) { ran++; <-r.Context().Done() }, opts...)
		outer := http.TimeoutHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() { ended <- struct{}{} }()
			h.ServeHTTP(w, r)
		}), 5*time.Millisecond, "slow")
		guard(t, func() {
			for ran < 3 {
				require.Equal(t, 503, serveOnce(outer, httptest.NewRequest(http.MethodGet, "/", nil)).Code)
				<-ended
			}
		})
		want := map[bool]breaker.State{false: breaker.Open, true: breaker.Closed}[ignored]
		require.Equal(t, want, find("handler").State())
	}
}

// A status that is none is not sent, so that the next one counts.
func TestHandlerRecoversFromABadStatus(t *testing.T) {
	h, find := guarded(t, func(w http.ResponseWriter, _ *http.Request) {
		defer func() {
			_ = recover()
			w.WriteHeader(http.StatusNoContent)
		}()
		w.WriteHeader(1000)
	})
	require.Equal(t, 204, serveOnce(h, httptest.NewRequest(http.MethodGet, "/", nil)).Code)
	require.EqualValues(t, 1, find("handler").Snapshot().Totals.Successes)
}

type hijackOnly struct{ bareWriter }

func (*hijackOnly) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, errBoom }

// A writer that can only be hijacked can still be hijacked.
func TestHandlerOverAHijacker(t *testing.T) {
	h, _ := guarded(t, func(w http.ResponseWriter, _ *http.Request) {
		_, flushes := w.(http.Flusher)
		_, _, err := w.(http.Hijacker).Hijack()
		_, _ = fmt.Fprint(w, flushes, errors.Is(err, errBoom))
	})
	w := &hijackOnly{bareWriter{h: http.Header{}}}
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	require.Equal(t, "false true", w.b.String())
}

// BR-67: a host with a certificate of its own CA, or one that wants a header, can be checked.
func TestHealthCheckOptions(t *testing.T) {
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Probe") != "1" || r.Host != "virtual.example" {
			w.WriteHeader(http.StatusForbidden)
		}
	}))
	defer secure.Close()
	secure.Config.ErrorLog = quiet
	ctx := t.Context()
	client := breakerhttp.CheckClient(secure.Client())
	host := breakerhttp.CheckHeader("host", "virtual.example")
	require.Error(t, breakerhttp.CheckHTTP(secure.URL)(ctx))
	require.ErrorContains(t, breakerhttp.CheckHTTP(secure.URL, client)(ctx), "403")
	require.ErrorContains(t, breakerhttp.CheckHTTP(secure.URL, client, breakerhttp.CheckHeader("X-Probe", "1"))(ctx), "403")
	require.NoError(t, breakerhttp.CheckHTTP(secure.URL, client, host, breakerhttp.CheckHeader("X-Probe", "1"))(ctx))
	require.NoError(t, breakerhttp.CheckHTTP(secure.URL, client, breakerhttp.CheckStatus(403), nil)(ctx))
	require.Error(t, breakerhttp.CheckTLS(secure.URL)(ctx))
	require.NoError(t, breakerhttp.CheckTLS(secure.URL, client)(ctx))
	other := breakerhttp.CheckClient(&http.Client{Transport: answers()})
	require.NoError(t, breakerhttp.CheckHTTP("http://up.example", other)(ctx))
	require.ErrorContains(t, breakerhttp.CheckTLS("up.example", other)(ctx), "http.Transport")
}

// Trailers of the host's are not taken for this package's headers.
func TestTrailersNamedLikeOurs(t *testing.T) {
	up := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Rescued")
		_, _ = io.WriteString(w, "x")
		w.Header().Set("X-Rescued", "forged")
		w.Header().Set(http.TrailerPrefix+"X-Breaker-Health", "forged")
		w.Header().Set(http.TrailerPrefix+"X-Other", "1")
	})
	tr := transport(t, nil, breakerhttp.WithRescueHeader(""), breakerhttp.WithDebugHeaders(""))
	resp, err := tr.RoundTrip(request(t, http.MethodGet, up.URL, nil))
	require.NoError(t, err)
	_, err = io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.Header{"X-Other": {"1"}}, resp.Trailer)
}
