package breakerhttp_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakerhttp"
)

// No test may leave a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test may take in real time before it is taken to be stuck.
const patience = 2 * time.Minute

var errBoom = errors.New("boom")

// guard fails a test that is stuck, with stacks.
func guard(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-done:
		if t.Failed() {
			t.FailNow()
		}
	case <-timer.C:
		stacks := make([]byte, 1<<20)
		t.Fatalf("stuck after %v\n%s", patience, stacks[:runtime.Stack(stacks, true)])
	}
}

// eventually waits for what another goroutine does without telling.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	require.Eventually(t, f, patience, time.Millisecond, what)
}

// host is a server on the loopback interface.
type host struct {
	*httptest.Server
	hits  atomic.Int64
	conns atomic.Int64
}

// serve starts a host that counts.
func serve(t *testing.T, f http.HandlerFunc) *host {
	t.Helper()
	h := &host{}
	h.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.hits.Add(1)
		f(w, r)
	}))
	h.Config.ConnState = h.count
	h.Start()
	t.Cleanup(func() {
		h.CloseClientConnections() // a test that has failed may have left a stream open, which Close would wait for
		h.Close()
	})
	return h
}

func (h *host) count(_ net.Conn, s http.ConnState) {
	if s == http.StateNew {
		h.conns.Add(1)
	}
}

// statuses answers with these one after the other, then with the last for ever.
func statuses(codes ...int) http.HandlerFunc {
	var n atomic.Int64
	return func(w http.ResponseWriter, _ *http.Request) {
		i := min(int(n.Add(1)), len(codes)) - 1
		w.WriteHeader(codes[i])
		if codes[i] != http.StatusNoContent && codes[i] != http.StatusNotModified {
			_, _ = io.WriteString(w, "answer")
		}
	}
}

// base is a transport of the test's own, without idle connections afterwards.
func base(t *testing.T) *http.Transport {
	b := &http.Transport{}
	t.Cleanup(b.CloseIdleConnections)
	return b
}

// transport makes a Transport with quick defaults over base.
func transport(t *testing.T, rt http.RoundTripper, opts ...breakerhttp.Option) *breakerhttp.Transport {
	t.Helper()
	if rt == nil {
		rt = base(t)
	}
	tr, err := breakerhttp.NewTransport(rt, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	return tr
}

// r0 is a circuit that opens at the third failure, for 10s.
func r0(more ...breaker.Option) breakerhttp.Option {
	return breakerhttp.WithBreaker(append([]breaker.Option{breaker.WithFailureThreshold(3), breaker.WithOpenTimeout(10 * time.Second), breaker.WithSuccessThreshold(1)}, more...)...)
}

// quick retries n times without waiting.
func quick(n int) breakerhttp.Option {
	return breakerhttp.WithRetry(breaker.MaxRetries(n), breaker.Constant(0), breaker.NoJitter())
}

func request(t *testing.T, method, target string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequest(method, target, body)
	require.NoError(t, err)
	return req
}

// get makes a request, reads the answer and returns its status; 0 after an error.
func get(t *testing.T, rt http.RoundTripper, target string) (code int, body string, err error) {
	t.Helper()
	return send(t, rt, request(t, http.MethodGet, target, nil))
}

func send(t *testing.T, rt http.RoundTripper, req *http.Request) (code int, body string, err error) {
	t.Helper()
	resp, err := rt.RoundTrip(req)
	require.False(t, (resp == nil) == (err == nil), "RoundTrip returned %v, %v", resp, err)
	if err != nil {
		return 0, "", err
	}
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode, string(b), err
}

func circuit(t *testing.T, tr *breakerhttp.Transport, target string) *breaker.Circuit {
	t.Helper()
	c, ok := tr.Circuit(target)
	require.True(t, ok, "no circuit for %s", target)
	return c
}

func state(t *testing.T, tr *breakerhttp.Transport, target string) breaker.State {
	t.Helper()
	return circuit(t, tr, target).State()
}

// open makes the circuit of target, and opens it.
func open(t *testing.T, tr *breakerhttp.Transport, target string) {
	t.Helper()
	_, ok := tr.Circuit(target)
	if !ok {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := tr.RoundTrip(request(t, http.MethodGet, target, nil).WithContext(ctx))
		require.ErrorIs(t, err, context.Canceled)
	}
	circuit(t, tr, target).Trip(errBoom)
}

// refused is the address of nobody.
func refused(t *testing.T) string {
	srv := httptest.NewServer(http.NotFoundHandler())
	srv.Close()
	return srv.URL
}

// watched is a request body that knows whether it was closed.
type watched struct {
	io.Reader
	closed *atomic.Int64
}

func (w watched) Close() error { w.closed.Add(1); return nil }

// watchedRequest counts the bodies that were handed out and closed.
func watchedRequest(t *testing.T, method, target, body string) (req *http.Request, made, closed *atomic.Int64) {
	made, closed = new(atomic.Int64), new(atomic.Int64)
	req = request(t, method, target, nil)
	again := func() (io.ReadCloser, error) {
		made.Add(1)
		return watched{strings.NewReader(body), closed}, nil
	}
	req.Body, _ = again()
	req.GetBody = again
	req.ContentLength = int64(len(body))
	return req, made, closed
}

// roundTripper is a base made of a func.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// answer is a response from nowhere. Its body counts.
func answer(code int, body io.ReadCloser, header ...string) *http.Response {
	if body == nil {
		body = io.NopCloser(strings.NewReader("answer"))
	}
	h := http.Header{}
	for i := 0; i < len(header); i += 2 {
		h.Add(header[i], header[i+1])
	}
	return &http.Response{StatusCode: code, Header: h, Body: body, ContentLength: -1, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
}

// events collects what hooks say.
type events struct {
	mu      sync.Mutex
	calls   []breaker.CallEvent
	retries []breaker.RetryEvent
	rescues []breaker.RescueEvent
	errs    []error
}

func (e *events) hooks() breaker.Option {
	return breaker.WithHooks(breaker.Hooks{
		Call:       func(_ context.Context, c breaker.CallEvent) { e.locked(func() { e.calls = append(e.calls, c) }) },
		Retry:      func(_ context.Context, r breaker.RetryEvent) { e.locked(func() { e.retries = append(e.retries, r) }) },
		Rescue:     func(_ context.Context, r breaker.RescueEvent) { e.locked(func() { e.rescues = append(e.rescues, r) }) },
		StoreError: func(err error) { e.locked(func() { e.errs = append(e.errs, err) }) },
	})
}

func (e *events) locked(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
}

// waits are the waits before retries.
func (e *events) waits() (all []time.Duration) {
	e.locked(func() {
		for _, r := range e.retries {
			all = append(all, r.Wait)
		}
	})
	return all
}

// fakeClock is a clock that tells when somebody waits on it.
type fakeClock struct {
	*clock.Mock
	waiting chan time.Duration
}

func newFakeClock() *fakeClock { return &fakeClock{clock.NewMock(), make(chan time.Duration, 64)} }

func (c *fakeClock) After(d time.Duration) <-chan time.Time {
	ch := c.Mock.After(d)
	c.waiting <- d
	return ch
}

// pass waits until somebody waits for d, and lets it pass.
func (c *fakeClock) pass(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case got := <-c.waiting:
		require.Equal(t, d, got)
		c.Add(d)
	case <-time.After(patience):
		t.Fatalf("nobody waits for %v", d)
	}
}

func hostOf(t *testing.T, s string) string {
	u, err := url.Parse(s)
	require.NoError(t, err)
	return u.Host
}

// heap is how much memory is in use.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
