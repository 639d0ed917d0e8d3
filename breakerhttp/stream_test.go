package breakerhttp_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakerhttp"
)

// fed is a body that brings what it is fed with, and waits meanwhile.
type fed struct {
	next    chan string
	closed  chan struct{}
	waiting chan struct{} // a Read has begun
}

func newFed() *fed {
	return &fed{make(chan string, 8), make(chan struct{}), make(chan struct{}, 64)}
}

func (f *fed) Read(p []byte) (int, error) {
	f.waiting <- struct{}{}
	select {
	case s, ok := <-f.next:
		if !ok {
			return 0, io.EOF
		}
		return copy(p, s), nil
	case <-f.closed:
		return 0, errBoom
	}
}

func (f *fed) Close() error {
	select {
	case <-f.closed:
	default:
		close(f.closed)
	}
	return nil
}

// Write is for an upgraded connection.
func (f *fed) Write(p []byte) (int, error) { return len(p), nil }

// streaming is a Transport whose base answers with fed bodies under a fake clock.
func streaming(t *testing.T, code int, opts ...breakerhttp.Option) (tr *breakerhttp.Transport, clk *clock.Mock, stream func(context.Context) (*http.Response, *fed)) {
	clk = clock.NewMock()
	var body *fed
	tr = transport(t, roundTripper(func(*http.Request) (*http.Response, error) { return answer(code, body), nil }),
		append([]breakerhttp.Option{r0(breaker.WithClock(clk), breaker.WithProbeLease(8*time.Second))}, opts...)...)
	return tr, clk, func(ctx context.Context) (*http.Response, *fed) {
		body = newFed()
		resp, err := tr.RoundTrip(request(t, http.MethodGet, "http://up.example", nil).WithContext(ctx))
		require.NoError(t, err)
		return resp, body
	}
}

// BR-59: a probe whose stream lives some time after its headers closes the circuit, though it does not end; a stream that
// upgrades is alive if it is used either way.
func TestStreamThatLives(t *testing.T) {
	for name, c := range map[string]struct {
		code  int
		opts  []breakerhttp.Option
		after time.Duration
		write bool
	}{
		"default":       {200, nil, 5 * time.Second, false},
		"own":           {200, []breakerhttp.Option{breakerhttp.StreamAlive(2 * time.Second)}, 2 * time.Second, false},
		"lease":         {200, []breakerhttp.Option{breakerhttp.StreamAlive(time.Hour)}, 8 * time.Second, false},
		"upgrade":       {101, nil, 5 * time.Second, false},
		"upgrade write": {101, nil, 5 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			guard(t, func() {
				tr, clk, stream := streaming(t, c.code, c.opts...)
				open(t, tr, "http://up.example")
				clk.Add(10 * time.Second)
				resp, body := stream(t.Context())
				event := func() {
					if c.write {
						_, err := resp.Body.(io.Writer).Write([]byte("x"))
						require.NoError(t, err)
						return
					}
					body.next <- "x"
					_, err := resp.Body.Read(make([]byte, 1))
					require.NoError(t, err)
				}
				clk.Add(c.after - 1)
				event()
				require.Equal(t, breaker.HalfOpen, state(t, tr, "up.example"))
				clk.Add(1)
				event()
				require.Equal(t, breaker.Closed, state(t, tr, "up.example"))
				require.NoError(t, resp.Body.Close())
				ok, _, ignored := totals(t, tr, "up.example")
				require.Equal(t, [2]uint64{1, 0}, [2]uint64{ok, ignored})
			})
		})
	}
	t.Run("no probe", func(t *testing.T) {
		tr, clk, stream := streaming(t, 200)
		resp, body := stream(t.Context())
		clk.Add(time.Hour)
		body.next <- "x"
		_, err := resp.Body.Read(make([]byte, 1))
		require.NoError(t, err)
		require.EqualValues(t, 1, inFlight(t, tr, "up.example"), "it settles at its end")
		require.NoError(t, resp.Body.Close())
	})
}

// BR-74: headers and some bytes, then silence. A reader who gives up while a Read waits says nothing for the host: six
// such calls are no Success, and as probes they do not close the circuit.
func TestReaderGivesUp(t *testing.T) {
	for _, how := range []string{"close", "cancel"} {
		for _, probe := range []bool{false, true} {
			t.Run(fmt.Sprint(how, probe), func(t *testing.T) {
				guard(t, func() {
					tr, clk, stream := streaming(t, 200)
					if probe {
						open(t, tr, "http://up.example")
						clk.Add(10 * time.Second)
					}
					for range 6 {
						ctx, cancel := context.WithCancel(t.Context())
						resp, body := stream(ctx)
						body.next <- "x"
						_, err := resp.Body.Read(make([]byte, 1))
						require.NoError(t, err)
						<-body.waiting
						done := make(chan error)
						go func() {
							_, err := resp.Body.Read(make([]byte, 1))
							done <- err
						}()
						<-body.waiting
						if how == "cancel" {
							cancel()
							_ = body.Close() // as net/http breaks the Read then
						} else {
							require.NoError(t, resp.Body.Close())
						}
						require.Error(t, <-done)
						_ = resp.Body.Close()
						cancel()
					}
					ok, failed, ignored := totals(t, tr, "up.example")
					require.Equal(t, [3]uint64{0, 0, 6}, [3]uint64{ok, failed, ignored})
					if probe {
						require.Equal(t, breaker.HalfOpen, state(t, tr, "up.example"))
					}
				})
			})
		}
	}
}

// With WithStall silence is a Failure, told as a deadline; the pauses of the reader do not count.
func TestStall(t *testing.T) {
	const limit = 20 * time.Millisecond
	next := make(chan string, 1)
	up := serve(t, chunks(next))
	for name, more := range map[string][]breakerhttp.Option{"plain": nil, "policies": {quick(1), breakerhttp.WithBreaker(breaker.WithTimeout(patience))},
		"bypass": nil} {
		t.Run(name, func(t *testing.T) {
			guard(t, func() {
				tr := transport(t, nil, append(more, r0(), breakerhttp.WithStall(limit))...)
				ctx := t.Context()
				if name == "bypass" {
					ctx = breakerhttp.PerRequest(ctx, breakerhttp.NoBreaker())
				}
				resp, err := tr.RoundTrip(request(t, http.MethodGet, up.URL, nil).WithContext(ctx))
				require.NoError(t, err)
				timer := time.NewTimer(3 * limit)
				<-timer.C
				next <- "x"
				_, err = resp.Body.Read(make([]byte, 1))
				require.NoError(t, err)
				_, err = resp.Body.Read(make([]byte, 1))
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.NoError(t, ctx.Err())
				require.NoError(t, resp.Body.Close())
				if name != "bypass" {
					ok, failed, ignored := totals(t, tr, up.URL)
					require.Equal(t, [3]uint64{0, 1, 0}, [3]uint64{ok, failed, ignored})
				}
			})
		})
	}
	_, err := breakerhttp.NewTransport(nil, breakerhttp.WithStall(-1), breakerhttp.StreamAlive(-1))
	require.ErrorContains(t, err, "WithStall")
	require.ErrorContains(t, err, "StreamAlive")
}

// BR-70: slow is the host's time: until the headers, and what Reads wait. The reader's pauses are its own.
func TestSlowIsTheHostsTime(t *testing.T) {
	const slow = 200 * time.Millisecond
	for name, c := range map[string]struct {
		headers, pause, wait time.Duration
		slow                 uint64
	}{
		"reader":         {pause: time.Hour},
		"headers":        {headers: slow, slow: 1},
		"body":           {wait: slow, slow: 1},
		"both":           {headers: slow / 2, wait: slow / 2, pause: time.Hour, slow: 1},
		"both, not slow": {headers: slow / 2, wait: slow/2 - 2, pause: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			guard(t, func() {
				clk := clock.NewMock()
				body := newFed()
				e := &events{}
				tr := transport(t, roundTripper(func(*http.Request) (*http.Response, error) {
					clk.Add(c.headers)
					return answer(200, body), nil
				}), breakerhttp.WithBreaker(e.hooks(), breaker.WithClock(clk), breaker.WithTrip(breaker.SlowCallRate(slow, 0.5, 99, breaker.LastCalls(100)))))
				resp, err := tr.RoundTrip(request(t, http.MethodGet, "http://up.example", nil))
				require.NoError(t, err)
				clk.Add(c.pause)
				go func() {
					<-body.waiting
					clk.Add(c.wait)
					close(body.next)
				}()
				_, err = io.ReadAll(resp.Body)
				require.NoError(t, err)
				clk.Add(c.pause)
				require.NoError(t, resp.Body.Close())
				require.Equal(t, c.slow, circuit(t, tr, "up.example").Snapshot().Totals.Slow)
				require.Equal(t, c.headers+c.wait, e.calls[0].Duration)
			})
		})
	}
}

// Neither an attempt's timeout nor slowness counts what waits for the caller's own body.
func TestSlowUploads(t *testing.T) {
	guard(t, func() {
		const limit = 50 * time.Millisecond
		up := serve(t, swallow)
		tr := transport(t, nil, breakerhttp.WithBreaker(breaker.WithTimeout(limit), breaker.WithFailureThreshold(3)))
		upload := func(w io.WriteCloser) {
			for range 5 {
				<-time.After(limit)
				_, _ = w.Write([]byte("x"))
			}
			_ = w.Close()
		}
		for range 3 {
			pr, pw := io.Pipe()
			go upload(pw)
			code, _, err := send(t, tr, request(t, http.MethodPut, up.URL, pr))
			require.NoError(t, err)
			require.Equal(t, 200, code)
		}
		ok, failed, _ := totals(t, tr, up.URL)
		require.Equal(t, [2]uint64{3, 0}, [2]uint64{ok, failed})

		hangs := serve(t, func(_ http.ResponseWriter, r *http.Request) { swallow(nil, r); <-r.Context().Done() })
		pr, pw := io.Pipe()
		go upload(pw)
		_, _, err := send(t, tr, request(t, http.MethodPut, hangs.URL, pr))
		require.ErrorIs(t, err, context.DeadlineExceeded, "the host has its limit after the upload")
		_, failed, _ = totals(t, tr, hangs.URL)
		require.EqualValues(t, 1, failed)
	})
	clk := clock.NewMock()
	tr := transport(t, roundTripper(func(r *http.Request) (*http.Response, error) {
		_, _ = io.Copy(io.Discard, r.Body)
		return answer(200, nil), nil
	}), breakerhttp.WithBreaker(breaker.WithClock(clk), breaker.WithTrip(breaker.SlowCallRate(time.Second, 0.5, 99, breaker.LastCalls(100)))))
	slowly := readerFunc(func([]byte) (int, error) { clk.Add(time.Hour); return 0, io.EOF })
	requireSend(t, tr, request(t, http.MethodPut, "http://up.example", slowly))
	require.Zero(t, circuit(t, tr, "up.example").Snapshot().Totals.Slow)
}

// Requests one close upon the other under WithMaxInFlight(1), each when the one before has gone, are no rejections.
func TestAdmissionIsAskedOnce(t *testing.T) {
	rejected := 0
	tr := transport(t, answers(), breakerhttp.WithBreaker(breaker.WithMaxInFlight(1),
		breaker.WithHooks(breaker.Hooks{Reject: func(context.Context, breaker.RejectEvent) { rejected++ }})))
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		untouched(t, tr, ctx)
		cancel()
	}
	require.Zero(t, rejected)
	require.Zero(t, circuit(t, tr, "up.example").Snapshot().Totals.Rejected)
}

// A Call hook may close the body of whose end it is told.
func TestHookClosesTheBody(t *testing.T) {
	guard(t, func() {
		closed := make(chan error, 1)
		var resp *http.Response
		tr := transport(t, answers(), breakerhttp.WithBreaker(breaker.WithHooks(breaker.Hooks{Call: func(context.Context, breaker.CallEvent) { closed <- resp.Body.Close() }})))
		ctx, cancel := context.WithCancel(t.Context())
		resp = untouched(t, tr, ctx)
		cancel()
		_, _ = tr.Circuit("up.example")
		require.NoError(t, <-closed)
	})
}

// A base that panics under a timeout leaves no timer behind, and no goroutine: TestMain sees to that.
func TestPanicStopsTheTimer(t *testing.T) {
	clk := newFakeClock()
	tr := transport(t, roundTripper(func(*http.Request) (*http.Response, error) { panic("base") }), r0(breaker.WithClock(clk), breaker.WithTimeout(time.Hour)))
	require.PanicsWithValue(t, "base", func() { _, _, _ = get(t, tr, "http://up.example") })
}
