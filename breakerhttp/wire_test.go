package breakerhttp_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakerhttp"
)

// quiet is the log of servers whose connections break on purpose.
var quiet = log.New(io.Discard, "", 0)

// HTTP/2 over TLS: streams, failures, resets, cancels, many at once on one connection.
func TestHTTP2(t *testing.T) {
	next := make(chan string)
	var conns atomic.Int64
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/fail":
			w.WriteHeader(503)
			_, _ = io.WriteString(w, "db down")
		case "/reset":
			_, _ = io.WriteString(w, "half")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		case "/stream":
			chunks(next)(w, r)
		default:
			_, _ = io.Copy(w, r.Body)
		}
	}))
	srv.EnableHTTP2 = true
	srv.Config.ErrorLog = quiet
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	srv.StartTLS()
	defer srv.Close()
	tr := transport(t, srv.Client().Transport, breakerhttp.WithBreaker(breaker.WithFailureThreshold(99), breaker.WithTimeout(time.Minute)), quick(2))
	_, _, err := get(t, tr, srv.URL) // the connection for all
	require.NoError(t, err)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			body := fmt.Sprint("hello", i)
			resp, err := tr.RoundTrip(request(t, http.MethodPut, srv.URL, strings.NewReader(body)))
			if err != nil {
				t.Error(err)
				return
			}
			b, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if resp.ProtoMajor != 2 || string(b) != body {
				t.Errorf("%s %q", resp.Proto, b)
			}
		})
	}
	wg.Wait()
	code, body, err := get(t, tr, srv.URL+"/fail")
	require.NoError(t, err)
	require.Equal(t, 503, code)
	require.Equal(t, "db down", body)
	_, _, err = get(t, tr, srv.URL+"/reset")
	require.Error(t, err)
	ok, failed, _ := totals(t, tr, srv.URL)
	require.EqualValues(t, 21, ok)
	require.EqualValues(t, 4, failed, "three attempts, and a body that broke")

	ctx, cancel := context.WithCancel(t.Context())
	resp, err := tr.RoundTrip(request(t, http.MethodGet, srv.URL+"/stream", nil).WithContext(ctx))
	require.NoError(t, err)
	in := bufio.NewReader(resp.Body)
	for i := range 5 {
		event := fmt.Sprintf("data: %d\n", i)
		next <- event
		line, err := in.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, event, line)
	}
	cancel()
	_, err = in.ReadString('\n')
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, resp.Body.Close())
	ok, failed, _ = totals(t, tr, srv.URL)
	require.EqualValues(t, 22, ok)
	require.EqualValues(t, 4, failed)
	require.Zero(t, inFlight(t, tr, srv.URL))
	require.EqualValues(t, 1, conns.Load())
}

// Expect: 100-continue, and a trace that sees what it would see without us.
func TestContinueAndTrace(t *testing.T) {
	up := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		_, _ = io.Copy(w, r.Body)
	})
	rt := base(t)
	rt.ExpectContinueTimeout = patience
	trace := func(tr http.RoundTripper) (seen []string) {
		var mu sync.Mutex
		see := func(s string) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, s)
		}
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			GotConn:              func(httptrace.GotConnInfo) { see("conn") },
			WroteHeaders:         func() { see("headers") },
			Wait100Continue:      func() { see("wait") },
			Got100Continue:       func() { see("continue") },
			GotFirstResponseByte: func() { see("first byte") },
		})
		req := request(t, http.MethodPut, up.URL, strings.NewReader("hello")).WithContext(ctx)
		req.Header.Set("Expect", "100-continue")
		_, body, err := send(t, tr, req)
		require.NoError(t, err)
		require.Equal(t, "hello", body)
		mu.Lock()
		defer mu.Unlock()
		return seen
	}
	plain := trace(rt)
	require.Contains(t, plain, "continue")
	require.ElementsMatch(t, plain, trace(transport(t, rt)))
	require.ElementsMatch(t, plain, trace(transport(t, rt, quick(2), breakerhttp.WithBreaker(breaker.WithTimeout(time.Minute)))))
}

// Redirects are http.Client's business; each hop passes its own circuit.
func TestRedirects(t *testing.T) {
	there := serve(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	here := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, there.URL+"/x", http.StatusTemporaryRedirect)
	})
	tr := transport(t, nil, quick(1))
	resp, err := (&http.Client{Transport: tr}).Post(here.URL, "text/plain", strings.NewReader("hello"))
	require.NoError(t, err)
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, "hello", string(b))
	require.Equal(t, there.URL+"/x", resp.Request.URL.String())
	for _, u := range []string{here.URL, there.URL} {
		ok, _, _ := totals(t, tr, u)
		require.EqualValues(t, 1, ok)
	}
}

// The response's request is the caller's, whatever was sent.
func TestResponsesRequest(t *testing.T) {
	up := serve(t, statuses(503, 200))
	for _, opts := range [][]breakerhttp.Option{nil, {quick(1)}, {breakerhttp.WithBreaker(breaker.WithTimeout(time.Minute))}} {
		req := request(t, http.MethodGet, up.URL, nil)
		resp, err := transport(t, nil, opts...).RoundTrip(req)
		require.NoError(t, err)
		require.Same(t, req, resp.Request)
		require.NoError(t, resp.Body.Close())
	}
}

// Slow headers are no failure as long as nobody sets a limit.
func TestSlowHeaders(t *testing.T) {
	release := make(chan struct{})
	up := serve(t, func(http.ResponseWriter, *http.Request) { <-release })
	tr := transport(t, nil)
	done := make(chan error)
	go func() {
		_, _, err := get(t, tr, up.URL)
		done <- err
	}()
	eventually(t, "in flight", func() bool { return up.hits.Load() == 1 && inFlight(t, tr, up.URL) == 1 })
	close(release)
	guard(t, func() { require.NoError(t, <-done) })
}

// A connection that is reset before the headers is a Failure, and is retried.
func TestResetBeforeHeaders(t *testing.T) {
	var n atomic.Int64
	up := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1) <= 2 {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				return
			}
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		}
	})
	tr := transport(t, nil, quick(2))
	code, _, err := send(t, tr, request(t, http.MethodPut, up.URL, strings.NewReader("hello")))
	require.NoError(t, err)
	require.Equal(t, 200, code)
	_, failed, _ := totals(t, tr, up.URL)
	require.EqualValues(t, 2, failed)
}

// A name that does not resolve is a Failure: for good, or for now, or because the resolver is too slow.
func TestNameErrors(t *testing.T) {
	dead := &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) { return nil, errBoom }}
	for name, dial := range map[string]func(context.Context, string, string) (net.Conn, error){
		"no resolver": (&net.Dialer{Resolver: dead}).DialContext,
		"no such host": func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "up.example", IsNotFound: true}}
		},
		"timeout": func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "i/o timeout", Name: "up.example", IsTimeout: true}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			rt := base(t)
			rt.DialContext = dial
			tr := transport(t, rt, r0())
			for range 3 {
				req, made, closed := watchedRequest(t, http.MethodPut, "http://up.example", "hello")
				_, _, err := send(t, tr, req)
				var dns *net.DNSError
				require.ErrorAs(t, err, &dns)
				eventually(t, "body closed", func() bool { return made.Load() == closed.Load() })
			}
			require.Equal(t, breaker.Open, state(t, tr, "up.example"))
		})
	}
}

// connectProxy makes tunnels, or answers with a status; it counts the tunnels.
func connectProxy(t *testing.T, status *atomic.Int64) (proxy *host) {
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		if code := status.Load(); code != 200 || r.Method != http.MethodConnect {
			http.Error(w, "no tunnel", int(code))
			return
		}
		there, err := net.Dial("tcp", r.Host)
		if err != nil {
			return
		}
		here, _, err := http.NewResponseController(w).Hijack() // before the client may send more, some of which would be the server's
		if err != nil {
			_ = there.Close()
			return
		}
		_, _ = io.WriteString(here, "HTTP/1.1 200 OK\r\n\r\n")
		go func() {
			_, _ = io.Copy(there, here)
			_ = there.Close()
		}()
		_, _ = io.Copy(here, there)
		_ = here.Close()
	})
}

// Through a proxy the circuit is still the target's: a tunnel that the proxy refuses counts there.
func TestConnectProxy(t *testing.T) {
	up := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }))
	defer up.Close()
	var status atomic.Int64
	status.Store(200)
	proxy := connectProxy(t, &status)
	u, err := url.Parse(strings.Replace(proxy.URL, "http://", "http://me:hunter2@", 1))
	require.NoError(t, err)
	rt := up.Client().Transport.(*http.Transport).Clone()
	rt.Proxy = http.ProxyURL(u)
	defer rt.CloseIdleConnections()
	tr := transport(t, rt, r0())
	for range 3 {
		code, body, err := send(t, tr, request(t, http.MethodPut, up.URL, strings.NewReader("hello")))
		require.NoError(t, err)
		require.Equal(t, 200, code)
		require.Equal(t, "hello", body)
	}
	require.EqualValues(t, 1, proxy.hits.Load(), "one tunnel for all")
	rt.CloseIdleConnections()
	status.Store(502)
	for range 3 {
		_, _, err := get(t, tr, up.URL)
		require.ErrorContains(t, err, "Bad Gateway")
	}
	require.Equal(t, breaker.Open, state(t, tr, up.URL))
	for name, c := range tr.Circuits() {
		require.Equal(t, up.URL, name)
		require.NotContains(t, c.Snapshot().LastFailure, "hunter2")
	}
	require.EqualValues(t, 4, proxy.hits.Load())
}

// proxy is a reverse proxy in front of target that goes through tr.
func proxy(t *testing.T, tr http.RoundTripper, target string) *httptest.Server {
	u, err := url.Parse(target)
	require.NoError(t, err)
	p := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(u) }, Transport: tr, ErrorLog: quiet, FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadGateway)
		}}
	srv := httptest.NewServer(p)
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	return srv
}

func TestReverseProxy(t *testing.T) {
	up := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/fail" {
			w.WriteHeader(500)
			return
		}
		w.Header().Set("Trailer", "X-Sum")
		_, _ = io.Copy(w, r.Body)
		w.Header().Set("X-Sum", "1")
	})
	for name, opts := range map[string][]breakerhttp.Option{"plain": nil, "policies": {quick(1), breakerhttp.WithRescueHeader("")}} {
		t.Run(name, func(t *testing.T) {
			tr := transport(t, nil, append(opts, r0())...)
			front := proxy(t, tr, up.URL)
			resp, err := base(t).RoundTrip(request(t, http.MethodPost, front.URL, strings.NewReader("hello")))
			require.NoError(t, err)
			b, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, "hello", string(b))
			require.Equal(t, "1", resp.Trailer.Get("X-Sum"))
			for range 3 {
				code, _, err := get(t, base(t), front.URL+"/fail")
				require.NoError(t, err)
				require.Equal(t, 500, code)
				if state(t, tr, up.URL) == breaker.Open {
					break
				}
			}
			code, body, err := get(t, base(t), front.URL)
			require.NoError(t, err)
			require.Equal(t, 502, code)
			require.Contains(t, body, "is open")
			eventually(t, "nothing in flight", func() bool { return inFlight(t, tr, up.URL) == 0 })
		})
	}
}

// A client that leaves in the middle of a proxied stream is no fault of the host's.
func TestReverseProxyClientLeaves(t *testing.T) {
	up := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "x")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	tr := transport(t, nil, r0())
	front := proxy(t, tr, up.URL)
	for range 5 {
		resp, err := base(t).RoundTrip(request(t, http.MethodGet, front.URL, nil))
		require.NoError(t, err)
		_, err = io.ReadFull(resp.Body, make([]byte, 1))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
	}
	eventually(t, "settled", func() bool { return inFlight(t, tr, up.URL) == 0 })
	_, failed, _ := totals(t, tr, up.URL)
	require.Zero(t, failed)
}

// An upgraded connection works both ways through a reverse proxy, and is in flight until it ends.
func TestUpgrade(t *testing.T) {
	up := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, buf, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = buf.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_ = buf.Flush()
		for {
			line, err := buf.ReadString('\n')
			if err != nil {
				return
			}
			_, _ = buf.WriteString("echo " + line)
			_ = buf.Flush()
		}
	})
	for name, opts := range map[string][]breakerhttp.Option{"plain": nil, "policies": {quick(1), breakerhttp.WithBreaker(breaker.WithTimeout(time.Minute))},
		"at headers": {breakerhttp.SettleAtHeaders()}, "bypass": {breakerhttp.WithRescueHeader("")}} {
		t.Run(name, func(t *testing.T) {
			tr := transport(t, nil, opts...)
			front := proxy(t, tr, up.URL)
			guard(t, func() {
				conn, err := net.Dial("tcp", hostOf(t, front.URL))
				require.NoError(t, err)
				_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
				require.NoError(t, err)
				in := bufio.NewReader(conn)
				resp, err := http.ReadResponse(in, nil)
				require.NoError(t, err)
				require.Equal(t, 101, resp.StatusCode)
				for i := range 3 {
					_, err = fmt.Fprintf(conn, "hello %d\n", i)
					require.NoError(t, err)
					line, err := in.ReadString('\n')
					require.NoError(t, err)
					require.Equal(t, fmt.Sprintf("echo hello %d\n", i), line)
				}
				want := int64(1)
				if name == "at headers" {
					want = 0
				}
				require.Equal(t, want, inFlight(t, tr, up.URL))
				require.NoError(t, conn.Close())
			})
			eventually(t, "settled", func() bool { return inFlight(t, tr, up.URL) == 0 })
			ok, failed, _ := totals(t, tr, up.URL)
			require.EqualValues(t, 1, ok)
			require.Zero(t, failed)
		})
	}
}

// A cancel at any moment leaves nothing behind.
func TestCancelAtEveryStage(t *testing.T) {
	up := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if rand.IntN(3) == 0 {
			w.WriteHeader(503)
		}
		for range 3 {
			_, _ = w.Write(make([]byte, 4<<10))
			w.(http.Flusher).Flush()
		}
	})
	tr := transport(t, nil, breakerhttp.WithBreaker(breaker.WithFailureThreshold(1<<20), breaker.WithTimeout(time.Minute)),
		breakerhttp.WithRetry(breaker.MaxRetries(2), breaker.Constant(100*time.Microsecond)), breakerhttp.WithFailover(up.URL+"/other"), breakerhttp.WithResponseCache(nil, time.Minute))
	guard(t, func() {
		for i := range 300 {
			ctx, cancel := context.WithCancel(t.Context())
			timer := time.AfterFunc(time.Duration(i)*5*time.Microsecond, cancel)
			req, made, closed := watchedRequest(t, http.MethodPut, up.URL, "hello")
			if resp, err := tr.RoundTrip(req.WithContext(ctx)); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
			timer.Stop()
			cancel()
			eventually(t, "bodies closed", func() bool { return made.Load() == closed.Load() })
		}
	})
	n := circuit(t, tr, up.URL).Snapshot()
	require.Zero(t, n.InFlight)
	require.Equal(t, n.Totals.Calls, n.Totals.Successes+n.Totals.Failures+n.Totals.Ignored)
}

// A mix of everything leaves no goroutine, closes every body, and dials no more than without us.
func TestNothingLeaks(t *testing.T) {
	requests := 10_000
	if testing.Short() || raceEnabled {
		requests = 2_000
	}
	up := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		switch r.URL.Path {
		case "/503":
			w.WriteHeader(503)
		case "/404":
			w.WriteHeader(404)
		case "/chunked":
			for range 3 {
				_, _ = w.Write(make([]byte, 1<<10))
				w.(http.Flusher).Flush()
			}
			return
		}
		_, _ = w.Write(make([]byte, 2<<10))
	})
	run := func(wrap func(http.RoundTripper) http.RoundTripper) (conns int64) {
		before := goleak.IgnoreCurrent()
		dialled := up.conns.Load()
		plain := base(t)
		plain.MaxIdleConnsPerHost = 4
		opened, closed := new(atomic.Int64), new(atomic.Int64)
		rt := wrap(roundTripper(func(r *http.Request) (*http.Response, error) {
			resp, err := plain.RoundTrip(r)
			if err == nil {
				opened.Add(1)
				resp.Body = &onceClosed{ReadCloser: resp.Body, n: closed}
			}
			return resp, err
		}))
		made, shut := new(atomic.Int64), new(atomic.Int64)
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				for i := range requests / 4 {
					mixed(t, rt, up.URL, w*requests+i, made, shut)
				}
			})
		}
		wg.Wait()
		eventually(t, "request bodies closed", func() bool { return made.Load() == shut.Load() }) // net/http may do so a little later
		require.Equal(t, opened.Load(), closed.Load(), "response bodies")
		plain.CloseIdleConnections()
		eventually(t, "no goroutines left", func() bool { return goleak.Find(before) == nil })
		return up.conns.Load() - dialled
	}
	guard(t, func() {
		without := run(func(rt http.RoundTripper) http.RoundTripper { return rt })
		var tr *breakerhttp.Transport
		with := run(func(rt http.RoundTripper) http.RoundTripper {
			tr = transport(t, rt, breakerhttp.WithBreaker(breaker.WithFailureThreshold(1<<20), breaker.WithTimeout(time.Minute)), quick(1))
			return tr
		})
		t.Logf("%d requests: %d connections without, %d with", requests, without, with)
		require.LessOrEqual(t, with, without+8)
		require.Zero(t, inFlight(t, tr, up.URL))
	})
}

// mixed makes one of several kinds of requests.
func mixed(t *testing.T, rt http.RoundTripper, target string, i int, made, closed *atomic.Int64) {
	path := []string{"/", "/503", "/404", "/chunked", "/"}[i%5]
	req, err := http.NewRequest([]string{http.MethodGet, http.MethodPut, http.MethodPost}[i%3], target+path, nil)
	if err != nil {
		t.Error(err)
		return
	}
	if req.Method != http.MethodGet {
		req.GetBody = func() (io.ReadCloser, error) {
			made.Add(1)
			return &onceClosed{ReadCloser: io.NopCloser(bytes.NewReader(make([]byte, 512))), n: closed}, nil
		}
		req.Body, _ = req.GetBody()
		req.ContentLength = 512
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if i%50 == 49 {
		cancel()
	}
	resp, err := rt.RoundTrip(req.WithContext(ctx))
	if err != nil {
		return
	}
	if i%20 == 19 { // closed early
		_, _ = resp.Body.Read(make([]byte, 10))
	} else {
		_, _ = io.Copy(io.Discard, resp.Body)
	}
	_ = resp.Body.Close()
}

// onceClosed counts its first Close.
type onceClosed struct {
	io.ReadCloser
	n    *atomic.Int64
	once sync.Once
}

func (c *onceClosed) Close() error {
	c.once.Do(func() { c.n.Add(1) })
	return c.ReadCloser.Close()
}
