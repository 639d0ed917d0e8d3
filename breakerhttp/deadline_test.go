package breakerhttp_test

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakerhttp"
)

// lateCtx is a context past its deadline that does not know of it yet, as http.Client's is when it closes the request's
// Cancel.
type lateCtx struct{ context.Context }

func (lateCtx) Deadline() (time.Time, bool) { return time.Now().Add(-time.Hour), true }

// http.Client's Timeout counts as its context's deadline does, whichever of its two ends of a request comes first.
func TestClientTimeoutOutcome(t *testing.T) {
	for name, opts := range map[string][]breakerhttp.Option{"plain": nil, "policies": {breakerhttp.WithRescueHeader("")}} {
		for _, ignored := range []bool{false, true} {
			for _, at := range []string{"headers", "read", "close"} {
				t.Run(name+" "+at, func(t *testing.T) {
					var more []breaker.Option
					if ignored {
						more = append(more, breaker.IgnoreCallerDeadline())
					}
					cancel := make(chan struct{})
					close(cancel)
					tr := transport(t, roundTripper(func(*http.Request) (*http.Response, error) {
						if at == "headers" {
							return nil, errBoom
						}
						return answer(200, io.NopCloser(readerFunc(func([]byte) (int, error) { return 0, errBoom }))), nil
					}), append(opts, r0(more...))...)
					req := request(t, http.MethodGet, "http://up.example", nil).WithContext(lateCtx{t.Context()})
					//lint:ignore SA1019 http.Client sets it
					req.Cancel = cancel
					resp, err := tr.RoundTrip(req)
					if at == "headers" {
						require.ErrorIs(t, err, errBoom)
					} else {
						require.NoError(t, err)
						if at == "read" {
							_, err = io.ReadAll(resp.Body)
							require.ErrorIs(t, err, context.DeadlineExceeded)
						}
						require.NoError(t, resp.Body.Close())
					}
					want := [3]uint64{0, 1, 0}
					if ignored {
						want = [3]uint64{0, 0, 1}
					}
					ok, failed, other := totals(t, tr, "http://up.example")
					require.Equal(t, want, [3]uint64{ok, failed, other})
				})
			}
		}
	}
}

// The same with a client and a host.
func TestClientTimeoutIgnored(t *testing.T) {
	for _, at := range []string{"headers", "body"} {
		t.Run(at, func(t *testing.T) {
			guard(t, func() {
				up := serve(t, func(w http.ResponseWriter, r *http.Request) {
					if at == "body" {
						w.(http.Flusher).Flush()
					}
					<-r.Context().Done()
				})
				tr := transport(t, nil, r0(breaker.IgnoreCallerDeadline()))
				client := &http.Client{Transport: tr, Timeout: 5 * time.Millisecond}
				for range 50 {
					if resp, err := client.Get(up.URL); err == nil {
						_, err = io.ReadAll(resp.Body)
						require.Error(t, err)
						require.NoError(t, resp.Body.Close())
					}
				}
				require.Zero(t, circuit(t, tr, up.URL).Snapshot().Totals.Failures)
				require.Zero(t, inFlight(t, tr, up.URL))
			})
		})
	}
}

// The deprecated way to cancel ends a stream as a context's cancel does.
func TestCancelChannelDuringBody(t *testing.T) {
	guard(t, func() {
		up := serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})
		tr := transport(t, nil, r0())
		for range 4 {
			cancel := make(chan struct{})
			req := request(t, http.MethodGet, up.URL, nil)
			//lint:ignore SA1019 it is what the test is about
			req.Cancel = cancel
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			close(cancel)
			_, err = io.ReadAll(resp.Body)
			require.Error(t, err)
			require.NoError(t, resp.Body.Close())
		}
		ok, failed, ignored := totals(t, tr, up.URL)
		require.Equal(t, [3]uint64{4, 0, 0}, [3]uint64{ok, failed, ignored})
	})
}
