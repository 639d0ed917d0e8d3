package breakerhttp_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
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

// inFlight is how many requests a circuit counts as under way.
func inFlight(t *testing.T, tr *breakerhttp.Transport, target string) int64 {
	t.Helper()
	return int64(circuit(t, tr, target).Snapshot().InFlight)
}

func totals(t *testing.T, tr *breakerhttp.Transport, target string) (ok, failed, ignored uint64) {
	t.Helper()
	n := circuit(t, tr, target).Snapshot().Totals
	return n.Successes, n.Failures, n.Ignored
}

// chunks sends a chunk whenever it is asked to.
func chunks(next <-chan string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		for {
			select {
			case s, ok := <-next:
				if !ok {
					return
				}
				_, _ = io.WriteString(w, s)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}
}

func TestSuccessSettlesAtTheEnd(t *testing.T) {
	for _, kind := range []string{"EOF", "length", "close", "close unread", "cancel", "cancel untouched", "decoder"} {
		t.Run(kind, func(t *testing.T) {
			next := make(chan string, 2)
			up := serve(t, chunks(next))
			if kind == "length" {
				up = serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"a":1}`) })
			}
			tr := transport(t, nil)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			resp, err := tr.RoundTrip(request(t, http.MethodGet, up.URL, nil).WithContext(ctx))
			require.NoError(t, err)
			defer resp.Body.Close()
			require.EqualValues(t, 1, inFlight(t, tr, up.URL))
			next <- `{"a":1}`
			switch kind {
			case "EOF":
				close(next)
				_, err = io.Copy(io.Discard, resp.Body)
				require.NoError(t, err)
			case "length":
				_, err = io.ReadFull(resp.Body, make([]byte, 7))
				require.NoError(t, err)
			case "close":
				_, err = io.ReadFull(resp.Body, make([]byte, 3))
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
			case "close unread":
				require.NoError(t, resp.Body.Close())
			case "cancel":
				cancel()
				_, err = io.Copy(io.Discard, resp.Body)
				require.ErrorIs(t, err, context.Canceled)
			case "cancel untouched":
				cancel()
				eventually(t, "settled", func() bool { return inFlight(t, tr, up.URL) == 0 })
			case "decoder":
				var v struct{ A int }
				require.NoError(t, json.NewDecoder(resp.Body).Decode(&v))
				require.NoError(t, resp.Body.Close())
			}
			require.Zero(t, inFlight(t, tr, up.URL))
			ok, failed, ignored := totals(t, tr, up.URL)
			require.Equal(t, [3]uint64{1, 0, 0}, [3]uint64{ok, failed, ignored})
		})
	}
}

// A connection that breaks half-way is a Failure, chunked or with a length.
func TestBrokenBodyIsAFailure(t *testing.T) {
	for _, kind := range []string{"chunked", "length", "gzip"} {
		t.Run(kind, func(t *testing.T) {
			up := serve(t, func(w http.ResponseWriter, r *http.Request) {
				switch kind {
				case "length":
					w.Header().Set("Content-Length", "1000")
				case "gzip":
					w.Header().Set("Content-Encoding", "gzip")
				}
				out := io.Writer(w)
				if kind == "gzip" {
					out = gzip.NewWriter(w)
				}
				_, _ = io.WriteString(out, "half")
				if z, ok := out.(*gzip.Writer); ok {
					_ = z.Flush()
				}
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			})
			tr := transport(t, nil, r0())
			for range 3 {
				_, body, err := get(t, tr, up.URL)
				require.Error(t, err)
				require.NotErrorIs(t, err, io.EOF)
				require.Equal(t, "half", body)
			}
			require.Equal(t, breaker.Open, state(t, tr, up.URL))
			require.Zero(t, inFlight(t, tr, up.URL))
		})
	}
}

// A deadline during the body is a Failure and says so: the caller's own or http.Client's.
func TestDeadlineDuringBody(t *testing.T) {
	const limit = time.Second // in which even a busy machine comes to the body
	next := make(chan string)
	up := serve(t, chunks(next))
	for name, client := range map[string]*http.Client{"context": {}, "client": {Timeout: limit}} {
		t.Run(name, func(t *testing.T) {
			tr := transport(t, nil)
			client.Transport = tr
			ctx := t.Context()
			if client.Timeout == 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, limit)
				defer cancel()
			}
			resp, err := client.Do(request(t, http.MethodGet, up.URL, nil).WithContext(ctx))
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, resp.Body)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NoError(t, resp.Body.Close())
			_, failed, _ := totals(t, tr, up.URL)
			require.EqualValues(t, 1, failed)
			require.Zero(t, inFlight(t, tr, up.URL))
		})
	}
	t.Run("whatever the base says", func(t *testing.T) {
		tr := transport(t, roundTripper(func(*http.Request) (*http.Response, error) {
			return answer(200, io.NopCloser(readerFunc(func([]byte) (int, error) { return 0, errBoom }))), nil
		}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Microsecond*200)
		defer cancel()
		resp, err := tr.RoundTrip(request(t, http.MethodGet, "http://up.example", nil).WithContext(ctx))
		if err != nil {
			t.Skip("too slow")
		}
		<-ctx.Done()
		_, err = resp.Body.Read(make([]byte, 1))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, errBoom)
		require.NoError(t, resp.Body.Close())
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// The attempt's timeout ends with the headers and never cuts a body; its context ends with the body.
func TestAttemptTimeoutSparesTheBody(t *testing.T) {
	next := make(chan string, 1)
	up := serve(t, chunks(next))
	var attempt context.Context
	rt := base(t)
	limit := 20 * time.Millisecond
	tr := transport(t, roundTripper(func(r *http.Request) (*http.Response, error) {
		attempt = r.Context()
		return rt.RoundTrip(r)
	}), breakerhttp.WithBreaker(breaker.WithTimeout(limit)))
	resp, err := tr.RoundTrip(request(t, http.MethodGet, up.URL, nil))
	if err != nil {
		t.Skip("too slow for the limit")
	}
	timer := time.NewTimer(2 * limit)
	<-timer.C
	require.NoError(t, attempt.Err())
	next <- "late"
	close(next)
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "late", string(b))
	require.NoError(t, resp.Body.Close())
	require.ErrorIs(t, attempt.Err(), context.Canceled)
}

// A failed response with an attempt's context keeps its body as well.
func TestFailureKeepsItsBodyUnderATimeout(t *testing.T) {
	up := serve(t, statuses(503))
	tr := transport(t, nil, breakerhttp.WithBreaker(breaker.WithTimeout(time.Minute)))
	code, body, err := get(t, tr, up.URL)
	require.NoError(t, err)
	require.Equal(t, 503, code)
	require.Equal(t, "answer", body)
	_, failed, _ := totals(t, tr, up.URL)
	require.EqualValues(t, 1, failed)
}

func TestSettleAtHeaders(t *testing.T) {
	up := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "half")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	tr := transport(t, nil, breakerhttp.SettleAtHeaders())
	resp, err := tr.RoundTrip(request(t, http.MethodGet, up.URL, nil))
	require.NoError(t, err)
	require.Zero(t, inFlight(t, tr, up.URL))
	_, err = io.Copy(io.Discard, resp.Body)
	require.Error(t, err)
	require.NoError(t, resp.Body.Close())
	ok, failed, _ := totals(t, tr, up.URL)
	require.EqualValues(t, 1, ok)
	require.Zero(t, failed)
}

// What has no body is settled with its headers: HEAD, 204, 304, a length of 0.
func TestNoBody(t *testing.T) {
	for name, c := range map[string]struct {
		method string
		code   int
	}{"HEAD": {http.MethodHead, 200}, "204": {http.MethodGet, 204}, "304": {http.MethodGet, 304}, "empty": {http.MethodGet, 200}} {
		t.Run(name, func(t *testing.T) {
			up := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				if c.code == 200 && c.method == http.MethodHead {
					w.Header().Set("Content-Length", "7")
				}
				w.WriteHeader(c.code)
			})
			tr := transport(t, nil)
			resp, err := tr.RoundTrip(request(t, c.method, up.URL, nil))
			require.NoError(t, err)
			require.Zero(t, inFlight(t, tr, up.URL))
			ok, _, _ := totals(t, tr, up.URL)
			require.EqualValues(t, 1, ok)
			require.NoError(t, resp.Body.Close())
			if c.method == http.MethodHead {
				require.EqualValues(t, 7, resp.ContentLength)
			}
		})
	}
}

// A probe whose body is never closed holds its slot until the lease ends, and no longer.
func TestUnclosedProbe(t *testing.T) {
	clk := clock.NewMock()
	next := make(chan string)
	up := serve(t, chunks(next))
	tr := transport(t, nil, r0(breaker.WithClock(clk), breaker.WithProbeLease(7*time.Second)))
	open(t, tr, up.URL)
	clk.Add(10 * time.Second)
	first, err := tr.RoundTrip(request(t, http.MethodGet, up.URL, nil))
	require.NoError(t, err)
	defer first.Body.Close()
	_, _, err = get(t, tr, up.URL)
	require.ErrorIs(t, err, breaker.ErrTooManyProbes)
	clk.Add(7 * time.Second)
	second, err := tr.RoundTrip(request(t, http.MethodGet, up.URL, nil))
	require.NoError(t, err)
	require.NoError(t, second.Body.Close())
	require.Equal(t, breaker.Closed, state(t, tr, up.URL))
}

// Server-sent events reach the caller as they are sent.
func TestStreaming(t *testing.T) {
	for name, opts := range map[string][]breakerhttp.Option{"plain": nil, "policies": {quick(2), breakerhttp.WithResponseCache(nil, time.Minute)}} {
		t.Run(name, func(t *testing.T) {
			next := make(chan string)
			up := serve(t, chunks(next))
			tr := transport(t, nil, opts...)
			guard(t, func() {
				resp, err := tr.RoundTrip(request(t, http.MethodGet, up.URL, nil))
				require.NoError(t, err)
				in := bufio.NewReader(resp.Body)
				for i := range 20 {
					event := fmt.Sprintf("data: %d\n", i)
					next <- event
					line, err := in.ReadString('\n') // nothing else is sent until it has come
					require.NoError(t, err)
					require.Equal(t, event, line)
				}
				close(next)
				_, err = in.ReadByte()
				require.Equal(t, io.EOF, err)
				require.NoError(t, resp.Body.Close())
			})
			require.Zero(t, inFlight(t, tr, up.URL))
		})
	}
}

// Reading and closing by different goroutines, and twice, is as safe as with the base's body.
func TestConcurrentClose(t *testing.T) {
	next := make(chan string)
	up := serve(t, chunks(next))
	tr := transport(t, nil)
	for range 20 {
		resp, err := tr.RoundTrip(request(t, http.MethodGet, up.URL, nil))
		require.NoError(t, err)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = io.Copy(io.Discard, resp.Body)
		}()
		require.NoError(t, resp.Body.Close())
		_ = resp.Body.Close()
		guard(t, func() { <-done })
	}
	ok, failed, ignored := totals(t, tr, up.URL)
	require.Equal(t, [3]uint64{20, 0, 0}, [3]uint64{ok, failed, ignored})
}

// The body's end frees the place under WithMaxInFlight.
func TestMaxInFlight(t *testing.T) {
	next := make(chan string)
	up := serve(t, chunks(next))
	for name, opts := range map[string][]breakerhttp.Option{"error": nil, "response": {breakerhttp.OpenAsResponse()}} {
		t.Run(name, func(t *testing.T) {
			tr := transport(t, nil, append(opts, breakerhttp.WithBreaker(breaker.WithMaxInFlight(1)))...)
			resp, err := tr.RoundTrip(request(t, http.MethodGet, up.URL, nil))
			require.NoError(t, err)
			code, _, err := get(t, tr, up.URL)
			if name == "response" {
				require.NoError(t, err)
				require.Equal(t, 503, code)
			} else {
				require.ErrorIs(t, err, breaker.ErrTooManyInFlight)
			}
			require.NoError(t, resp.Body.Close())
			resp, err = tr.RoundTrip(request(t, http.MethodGet, up.URL, nil))
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
		})
	}
}

func TestGzip(t *testing.T) {
	text := strings.Repeat("zip ", 1000)
	up := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, text)
		_ = z.Close()
	})
	tr := transport(t, nil)
	resp, err := tr.RoundTrip(request(t, http.MethodGet, up.URL, nil))
	require.NoError(t, err)
	require.True(t, resp.Uncompressed)
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, text, string(b))
	require.NoError(t, resp.Body.Close())

	req := request(t, http.MethodGet, up.URL, nil)
	req.Header.Set("Accept-Encoding", "gzip")
	_, raw, err := send(t, tr, req)
	require.NoError(t, err)
	z, err := gzip.NewReader(strings.NewReader(raw))
	require.NoError(t, err)
	b, err = io.ReadAll(z)
	require.NoError(t, err)
	require.Equal(t, text, string(b))
}

func TestRange(t *testing.T) {
	up := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "x.txt", time.Time{}, bytes.NewReader([]byte("0123456789")))
	})
	tr := transport(t, nil, breakerhttp.WithResponseCache(nil, time.Minute))
	req := request(t, http.MethodGet, up.URL, nil)
	req.Header.Set("Range", "bytes=2-4")
	code, body, err := send(t, tr, req)
	require.NoError(t, err)
	require.Equal(t, 206, code)
	require.Equal(t, "234", body)
}

// Trailers, the response's and the request's, arrive.
func TestTrailers(t *testing.T) {
	up := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Trailer", "X-Sum")
		_, _ = io.WriteString(w, "body")
		w.Header().Set("X-Sum", r.Trailer.Get("X-Request-Sum"))
	})
	for name, opts := range map[string][]breakerhttp.Option{"plain": nil, "policies": {quick(1), breakerhttp.WithBreaker(breaker.WithTimeout(time.Minute)), breakerhttp.WithResponseCache(nil, time.Minute)}} {
		t.Run(name, func(t *testing.T) {
			tr := transport(t, nil, opts...)
			req := request(t, http.MethodPost, up.URL, nil)
			req.Trailer = http.Header{"X-Request-Sum": nil}
			req.Body = io.NopCloser(io.MultiReader(strings.NewReader("x"), readerFunc(func([]byte) (int, error) {
				req.Trailer.Set("X-Request-Sum", "77")
				return 0, io.EOF
			})))
			req.ContentLength = -1
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, resp.Body)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, "77", resp.Trailer.Get("X-Sum"))
		})
	}
}

// A large stream takes no more memory than its buffers.
func TestLargeStream(t *testing.T) {
	size := int64(1 << 30)
	if testing.Short() || raceEnabled {
		size = 64 << 20
	}
	block := make([]byte, 1<<20)
	up := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		for n := int64(0); n < size; n += int64(len(block)) {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	})
	tr := transport(t, nil, quick(2), breakerhttp.WithResponseCache(nil, time.Minute))
	resp, err := tr.RoundTrip(request(t, http.MethodGet, up.URL, nil))
	require.NoError(t, err)
	before := heap()
	peak := uint64(0)
	buf := make([]byte, 256<<10)
	var n, mark int64
	for err == nil {
		var k int
		k, err = resp.Body.Read(buf)
		if n += int64(k); n-mark > size/16 {
			mark = n
			peak = max(peak, heap())
		}
	}
	require.Equal(t, io.EOF, err)
	require.Equal(t, size, n)
	require.NoError(t, resp.Body.Close())
	require.Less(t, peak, before+16<<20)
}
