package breakerhttp_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakerhttp"
)

// requireIgnored requires that n requests have been Ignored, and nothing else.
func requireIgnored(t *testing.T, tr *breakerhttp.Transport, target string, n uint64) {
	t.Helper()
	ok, failed, ignored := totals(t, tr, target)
	require.Equal(t, [3]uint64{0, 0, n}, [3]uint64{ok, failed, ignored})
	require.Equal(t, breaker.Closed, state(t, tr, target))
	require.Zero(t, inFlight(t, tr, target))
}

func swallow(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }

// failsAfter is a body that brings some bytes and then an error.
func failsAfter(n int) io.Reader {
	return io.MultiReader(strings.NewReader(strings.Repeat("x", n)), readerFunc(func([]byte) (int, error) { return 0, errBoom }))
}

// A body that cannot be read says nothing about the host, and is not sent again.
func TestUnreadableUpload(t *testing.T) {
	for name, more := range map[string][]breakerhttp.Option{
		"plain":      nil,
		"policies":   {quick(3), breakerhttp.RetryUnsafe()},
		"timeout":    {breakerhttp.WithBreaker(breaker.WithTimeout(patience))},
		"classifier": {breakerhttp.WithClassifier(func(*http.Request, *http.Response, error) breaker.Outcome { return breaker.Failure })},
	} {
		t.Run(name, func(t *testing.T) {
			guard(t, func() {
				up := serve(t, swallow)
				tr := transport(t, nil, append([]breakerhttp.Option{r0()}, more...)...)
				for i := range 4 {
					req := request(t, http.MethodPut, up.URL, failsAfter(i*1000))
					made := 0
					req.GetBody = func() (io.ReadCloser, error) { made++; return io.NopCloser(failsAfter(0)), nil }
					given := req.Body
					_, _, err := send(t, tr, req)
					require.ErrorIs(t, err, errBoom)
					require.Zero(t, made)
					require.Equal(t, fmt.Sprintf("%p", given), fmt.Sprintf("%p", req.Body))
				}
				requireIgnored(t, tr, up.URL, 4)
			})
		})
	}
}

// A body of another length than its request says cannot be sent.
func TestUploadOfAnotherLength(t *testing.T) {
	guard(t, func() {
		up := serve(t, swallow)
		tr := transport(t, nil, r0())
		bodies := []io.Reader{strings.NewReader("short"), bytes.NewReader([]byte("short")), bytes.NewBufferString("short"), struct{ io.Reader }{strings.NewReader("short")}}
		for _, b := range bodies {
			req := request(t, http.MethodPut, up.URL, b)
			req.ContentLength = 10
			_, _, err := send(t, tr, req)
			require.Error(t, err)
		}
		requireIgnored(t, tr, up.URL, 4)
	})
}

// Clients of a proxy that break off their chunks, or send more than they may, do not cut its host off from the others.
func TestProxyUploads(t *testing.T) {
	guard(t, func() {
		up := serve(t, swallow)
		tr := transport(t, nil, r0())
		to, err := url.Parse(up.URL)
		require.NoError(t, err)
		proxy := httptest.NewServer(http.MaxBytesHandler(&httputil.ReverseProxy{
			Transport:    tr,
			Rewrite:      func(p *httputil.ProxyRequest) { p.SetURL(to) },
			ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusTeapot) },
		}, 1000))
		defer proxy.Close()
		for _, chunks := range []string{"3\r\nabc\r\nZZ\r\n", "7d0\r\n" + strings.Repeat("x", 2000) + "\r\n0\r\n\r\n"} {
			for range 3 {
				c, err := net.Dial("tcp", proxy.Listener.Addr().String())
				require.NoError(t, err)
				_, err = io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"+chunks)
				require.NoError(t, err)
				resp, err := http.ReadResponse(bufio.NewReader(c), nil)
				require.NoError(t, err)
				require.Equal(t, http.StatusTeapot, resp.StatusCode)
				require.NoError(t, c.Close())
			}
		}
		requireIgnored(t, tr, up.URL, 6)
	})
}

// The same while the host answers already.
func TestUnreadableUploadDuringTheAnswer(t *testing.T) {
	guard(t, func() {
		up := serve(t, func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).EnableFullDuplex()
			w.(http.Flusher).Flush()
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		})
		tr := transport(t, nil, r0())
		for range 4 {
			pr, pw := io.Pipe()
			resp, err := tr.RoundTrip(request(t, http.MethodPost, up.URL, pr))
			require.NoError(t, err)
			pw.CloseWithError(errBoom)
			_, err = io.Copy(io.Discard, resp.Body)
			require.Error(t, err)
			require.NoError(t, resp.Body.Close())
		}
		requireIgnored(t, tr, up.URL, 4)
	})
}

// A host that breaks off an upload is the one that fails: that its body is closed then, and cannot be read, is no excuse.
func TestBrokenUploadIsAFailure(t *testing.T) {
	guard(t, func() {
		up := serve(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
		tr := transport(t, nil, r0())
		for range 3 {
			pr, pw := io.Pipe()
			go func() {
				for err := error(nil); err == nil; { // net/http notices when it writes
					_, err = pw.Write(make([]byte, 1000))
				}
			}()
			_, _, err := send(t, tr, request(t, http.MethodPost, up.URL, pr))
			require.Error(t, err)
		}
		require.Equal(t, breaker.Open, state(t, tr, up.URL))
	})
	tr := transport(t, roundTripper(func(r *http.Request) (*http.Response, error) {
		_ = r.Body.Close()
		_, _ = r.Body.Read(make([]byte, 1))
		return nil, errBoom
	}), r0())
	pr, _ := io.Pipe()
	_, _, err := send(t, tr, request(t, http.MethodPost, "http://up.example", pr))
	require.ErrorIs(t, err, errBoom)
	_, failed, _ := totals(t, tr, "http://up.example")
	require.EqualValues(t, 1, failed)
}

// What reads well arrives, and the answer names the caller's request. Buffers go out as they are.
func TestUploads(t *testing.T) {
	guard(t, func() {
		up := serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Got", fmt.Sprint(r.ContentLength))
			_, _ = io.Copy(w, r.Body)
		})
		var sent *http.Request
		rt := base(t)
		tr := transport(t, roundTripper(func(r *http.Request) (*http.Response, error) { sent = r; return rt.RoundTrip(r) }))
		for _, same := range []bool{true, false} {
			for _, length := range []int64{5, -1} {
				var b io.Reader = strings.NewReader("hello")
				if !same {
					b = struct{ io.Reader }{b}
				}
				req := request(t, http.MethodPost, up.URL, b)
				req.ContentLength = length
				resp, err := tr.RoundTrip(req)
				require.NoError(t, err)
				require.Same(t, req, resp.Request)
				got, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				require.Equal(t, "hello", string(got))
				require.Equal(t, fmt.Sprint(length), resp.Header.Get("Got"))
				require.Equal(t, same && length == 5, sent == req)
			}
		}
	})
}

// The body that net/http asks for in place of one that a lost connection has used up is watched as well.
func TestUnreadableSecondBody(t *testing.T) {
	var closed atomic.Int64
	tr := transport(t, roundTripper(func(r *http.Request) (*http.Response, error) {
		_ = r.Body.Close()
		b, err := r.GetBody()
		if err != nil {
			return nil, err
		}
		defer b.Close()
		_, err = io.Copy(io.Discard, b)
		return nil, err
	}), r0())
	req := request(t, http.MethodPost, "http://up.example", nil)
	req.Body = watched{strings.NewReader("x"), &closed}
	req.GetBody = func() (io.ReadCloser, error) { return watched{failsAfter(3), &closed}, nil }
	_, _, err := send(t, tr, req)
	require.ErrorIs(t, err, errBoom)
	require.EqualValues(t, 2, closed.Load())
	requireIgnored(t, tr, "http://up.example", 1)
}

// What net/http refuses to send says nothing about the host, and is refused once.
func TestUnsendable(t *testing.T) {
	for name, change := range map[string]func(*http.Request){
		"value":   func(r *http.Request) { r.Header.Set("X-User", "a\x00b") },
		"newline": func(r *http.Request) { r.Header.Set("X-User", "a\nb") },
		"name":    func(r *http.Request) { r.Header["X User"] = []string{"a"} },
		"empty":   func(r *http.Request) { r.Header[""] = []string{"a"} },
		"trailer": func(r *http.Request) { r.Trailer = http.Header{"X-User": {"a\x7f"}} },
		"method":  func(r *http.Request) { r.Method = "GE T" },
		"query":   func(r *http.Request) { r.URL.RawQuery = "a\nb" },
	} {
		t.Run(name, func(t *testing.T) {
			guard(t, func() {
				up := serve(t, statuses(200))
				tr := transport(t, nil, r0(), quick(3))
				for range 4 {
					req := request(t, http.MethodGet, up.URL, nil)
					change(req)
					_, _, err := send(t, tr, req)
					require.Error(t, err)
					require.NotErrorAs(t, err, new(*breaker.RetryError))
				}
				requireIgnored(t, tr, up.URL, 4)
				require.Zero(t, up.hits.Load())
			})
		})
	}
	t.Run("host", func(t *testing.T) {
		e := &events{}
		tr := transport(t, nil, r0(e.hooks()))
		_, _, err := send(t, tr, request(t, http.MethodGet, "http:///path", nil))
		require.Error(t, err)
		require.Len(t, e.calls, 1)
		require.Equal(t, breaker.Ignored, e.calls[0].Outcome)
	})
	t.Run("tab and bytes beyond ASCII may go", func(t *testing.T) {
		addr := refused(t)
		tr := transport(t, nil, r0())
		req := request(t, http.MethodGet, addr, nil)
		req.Header.Set("X-User", "a\tb \xff ü")
		_, _, err := send(t, tr, req)
		require.Error(t, err)
		_, failed, _ := totals(t, tr, addr)
		require.EqualValues(t, 1, failed)
	})
}

// Whatever net/http refuses to send says nothing about the host, over HTTP/1 and HTTP/2. What a host does to a request that
// was sent is a Failure, whatever the request.
func TestRefusedByNetHTTP(t *testing.T) {
	long := strings.Repeat("x", 64<<10)
	for name, c := range map[string]struct {
		http2  bool
		change func(*http.Request)
	}{
		"h2 upgrade":           {true, func(r *http.Request) { r.Header.Set("Upgrade", "h2c") }},
		"h2 connection":        {true, func(r *http.Request) { r.Header.Set("Connection", "X") }},
		"h2 transfer-encoding": {true, func(r *http.Request) { r.Header.Set("Transfer-Encoding", "gzip") }},
		"h2 header list":       {true, func(r *http.Request) { r.Header.Set("X-Long", long) }},
		"length without body":  {false, func(r *http.Request) { r.ContentLength = 5 }},
		"trailer key": {false, func(r *http.Request) {
			r.Method, r.Body, r.ContentLength, r.Trailer = "PUT", io.NopCloser(strings.NewReader("x")), -1, http.Header{"Content-Length": nil}
		}},
		"scheme": {false, func(r *http.Request) { r.URL.Scheme = "ftp" }},
	} {
		t.Run(name, func(t *testing.T) {
			guard(t, func() {
				up := httptest.NewUnstartedServer(http.HandlerFunc(swallow))
				up.EnableHTTP2 = c.http2
				up.Config.MaxHeaderBytes = 16 << 10
				up.Config.ErrorLog = quiet
				if c.http2 {
					up.StartTLS()
				} else {
					up.Start()
				}
				defer up.Close()
				backup := serve(t, statuses(200))
				rt := up.Client().Transport.(*http.Transport)
				defer rt.CloseIdleConnections()
				tr := transport(t, rt, r0(), quick(3), breakerhttp.WithFailover(backup.URL))
				requireSend(t, tr, request(t, http.MethodGet, up.URL, nil)) // the peer's settings are known
				for range 5 {
					req := request(t, http.MethodGet, up.URL, nil)
					c.change(req)
					_, _, err := send(t, tr, req)
					require.Error(t, err)
					require.NotErrorAs(t, err, new(*breaker.RetryError))
				}
				require.Zero(t, backup.hits.Load())
				for _, c := range tr.Circuits() {
					require.Zero(t, c.Snapshot().Totals.Failures)
				}
			})
		})
	}
	t.Run("sent all the same", func(t *testing.T) {
		guard(t, func() {
			up := serve(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
			tr := transport(t, nil, r0())
			for _, header := range []string{"Connection", "Upgrade", "X-Any"} { // lawful over HTTP/1
				_, _, err := send(t, tr, with(request(t, http.MethodGet, up.URL, nil), header, "X"))
				require.Error(t, err)
			}
			_, failed, ignored := totals(t, tr, up.URL)
			require.Equal(t, [2]uint64{3, 0}, [2]uint64{failed, ignored})
		})
	})
}
