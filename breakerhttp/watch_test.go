package breakerhttp_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakerhttp"
)

// untouched makes a request of a caller who lets the answer lie.
func untouched(t *testing.T, tr *breakerhttp.Transport, ctx context.Context) *http.Response {
	t.Helper()
	resp, err := tr.RoundTrip(request(t, http.MethodGet, "http://up.example", nil).WithContext(ctx))
	require.NoError(t, err)
	return resp
}

func answers() roundTripper {
	return func(*http.Request) (*http.Response, error) { return answer(200, nil), nil }
}

// Many answers that nobody reads or closes are settled when their callers go: a cancel is a success, a deadline a failure.
func TestUntouchedBodies(t *testing.T) {
	const n = 300 // more than wait for their turn
	for name, end := range map[string]func(context.Context) (context.Context, context.CancelFunc){
		"cancel": context.WithCancel,
		"deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 3*time.Second) // in which even a busy machine has made them all
		},
	} {
		t.Run(name, func(t *testing.T) {
			tr := transport(t, answers(), r0(breaker.WithFailureThreshold(2*n)))
			ctx, cancel := end(t.Context())
			defer cancel()
			for range n {
				untouched(t, tr, ctx)
			}
			require.EqualValues(t, n, inFlight(t, tr, "up.example"))
			if name == "cancel" {
				cancel()
			}
			<-ctx.Done()
			eventually(t, "settled", func() bool { return inFlight(t, tr, "up.example") == 0 })
			ok, failed, _ := totals(t, tr, "up.example")
			want := [2]uint64{n, 0}
			if name == "deadline" {
				want = [2]uint64{0, n}
			}
			require.Equal(t, want, [2]uint64{ok, failed})
		})
	}
}

// Who only holds the circuit sees it too, as soon as there has been some traffic.
func TestUntouchedBodiesAndTraffic(t *testing.T) {
	tr := transport(t, answers())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	untouched(t, tr, ctx)
	c := circuit(t, tr, "up.example")
	cancel()
	eventually(t, "settled", func() bool {
		for range 1000 {
			require.NoError(t, untouched(t, tr, t.Context()).Body.Close())
		}
		return c.Snapshot().InFlight == 0
	})
}

// The place under WithMaxInFlight, and the probe's slot, of a caller who has gone are free for the next one.
func TestUntouchedBodiesHoldNobodyUp(t *testing.T) {
	clk := clock.NewMock()
	for name, opts := range map[string][]breakerhttp.Option{
		"in flight": {breakerhttp.WithBreaker(breaker.WithMaxInFlight(1))},
		"probe":     {r0(breaker.WithClock(clk), breaker.WithHalfOpenProbes(1))},
		"policies":  {quick(1), breakerhttp.WithBreaker(breaker.WithMaxInFlight(1))},
	} {
		t.Run(name, func(t *testing.T) {
			tr := transport(t, answers(), opts...)
			if name == "probe" {
				open(t, tr, "http://up.example")
				clk.Add(10 * time.Second)
			}
			for range 3 {
				ctx, cancel := context.WithCancel(t.Context())
				untouched(t, tr, ctx)
				if name != "probe" {
					_, _, err := get(t, tr, "http://up.example")
					require.ErrorIs(t, err, breaker.ErrTooManyInFlight)
				}
				cancel()
			}
		})
	}
}

// Who asks for circuits under a lock that a hook takes, too, is not stuck.
func TestCircuitsRunNoHooks(t *testing.T) {
	var mu sync.Mutex
	called := make(chan struct{})
	tr := transport(t, answers(), breakerhttp.WithBreaker(breaker.WithHooks(breaker.Hooks{Call: func(context.Context, breaker.CallEvent) {
		mu.Lock()
		defer mu.Unlock()
		close(called)
	}})))
	ctx, cancel := context.WithCancel(t.Context())
	untouched(t, tr, ctx)
	cancel()
	guard(t, func() {
		mu.Lock()
		for range tr.Circuits() {
			break
		}
		tr.Circuit("up.example")
		mu.Unlock()
		<-called
	})
}

// What has been read or closed is not kept, and nothing of it stays with the context, whether it lay there for long.
func TestFinishedBodiesAreNotKept(t *testing.T) {
	for _, others := range []int{0, 20_000} { // so many take every place
		for name, finish := range map[string]func(io.ReadCloser) error{
			"closed": io.ReadCloser.Close,
			"read":   func(b io.ReadCloser) error { _, err := io.Copy(io.Discard, b); return err },
		} {
			t.Run(fmt.Sprint(name, others), func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var next io.ReadCloser
				tr := transport(t, roundTripper(func(*http.Request) (*http.Response, error) { return answer(200, next), nil }))
				text := strings.NewReader("answer")
				kept := weak.Make(text)
				next = io.NopCloser(text)
				resp := untouched(t, tr, ctx)
				next = nil
				for range others {
					untouched(t, tr, ctx)
				}
				require.NoError(t, finish(resp.Body))
				text, resp = nil, nil
				eventually(t, "forgotten", func() bool {
					runtime.GC()
					return kept.Value() == nil
				})
				require.NoError(t, ctx.Err())
			})
		}
	}
}

// Cancel, reading and closing at the same time: each request is settled once, and nothing is in flight at the end.
func TestUntouchedBodiesRace(t *testing.T) {
	tr := transport(t, answers(), r0(breaker.WithFailureThreshold(1<<20)))
	const workers, each = 8, 500
	guard(t, func() {
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				for i := range each {
					ctx, cancel := context.WithCancel(t.Context())
					req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://up.example", nil)
					if err != nil {
						t.Error(err)
					}
					resp, err := tr.RoundTrip(req)
					if err != nil {
						t.Error(err)
						cancel()
						continue
					}
					var both sync.WaitGroup
					both.Go(cancel)
					if i%3 > 0 {
						both.Go(func() { _, _ = io.Copy(io.Discard, resp.Body) })
					}
					if i%3 > 1 {
						both.Go(func() { _ = resp.Body.Close() })
					}
					if i%7 == 0 {
						both.Go(func() { tr.Circuit("up.example") })
					}
					both.Wait()
				}
			})
		}
		wg.Wait()
	})
	eventually(t, "settled", func() bool { return inFlight(t, tr, "up.example") == 0 })
	ok, failed, ignored := totals(t, tr, "up.example")
	require.EqualValues(t, workers*each, ok+failed+ignored)
}
