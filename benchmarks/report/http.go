package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakerhttp"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/sony/gobreaker/v2"
)

// The works over HTTP: what a round trip costs on top of a RoundTripper that answers at once, and what is left of that
// where the request goes to a server, if only on the loopback interface.
var (
	httpStub     = work{name: "HTTP, on top of a stub", every: never, calls: 1, goroutines: []int{1, 2}}
	httpLoopback = work{name: "HTTP, loopback", every: never, calls: 1, goroutines: []int{1, 2}, ownTable: true}
)

// The names of their rows.
const (
	stubRow         = "the stub itself"
	wrappedRow      = "a body of 16 bytes around the stub's, and no circuit"
	transportRow    = "breaker, Transport"
	transportCancel = "breaker, Transport, context with cancel"
	gobreakerTrip   = "gobreaker in a hand-written RoundTripper, one for each host in a sync.Map"
	failsafeTrip    = "failsafe-go's RoundTripper, one circuit for all hosts"
	plainTransport  = "http.Transport"
)

// httpRows get a status 200 with a body and read it to its end.
var httpRows = []row{
	{work: httpStub, name: stubRow, setup: func() op { return roundTrips(stub{}, stubURL) }},
	{work: httpStub, name: wrappedRow, over: stubRow, setup: func() op { return roundTrips(wrapping{stub{}}, stubURL) }},
	{work: httpStub, name: transportRow, over: stubRow, setup: func() op { return roundTrips(transport(stub{}), stubURL) }},
	{work: httpStub, name: transportCancel, over: stubRow, setup: cancellableTrips},
	{work: httpStub, name: gobreakerTrip, over: stubRow, vs: transportRow,
		setup: func() op { return roundTrips(&handWritten{base: stub{}}, stubURL) }},
	{work: httpStub, name: failsafeTrip, over: stubRow, vs: transportRow,
		setup: func() op { return roundTrips(failsafeTransport(stub{}), stubURL) }},

	{work: httpLoopback, name: plainTransport, setup: func() op { return roundTrips(newPlainTransport(), loopbackURL()) }},
	{work: httpLoopback, name: transportRow, setup: func() op { return roundTrips(transport(newPlainTransport()), loopbackURL()) }},
}

// httpGates are those of httpRows.
var httpGates = []gate{
	{must, key{httpStub.name, transportRow}, allocs, 1, nil},
	{must, key{httpStub.name, transportCancel}, allocs, 1, nil},
	{must, key{httpStub.name, transportRow}, one, 2, byWrapping},
	{must, key{httpStub.name, transportRow}, two, 2, byWrapping},
	{must, key{httpStub.name, transportRow}, one, 1, byHandWritten},
	{must, key{httpStub.name, transportRow}, two, 1, byHandWritten},
}

var (
	byWrapping    = []key{{httpStub.name, wrappedRow}}
	byHandWritten = []key{{httpStub.name, gobreakerTrip}}
)

const stubURL = "https://api.example.com/v1/rates?base=EUR"

// stub answers at once, with a response of its own for each request.
type stub struct{}

func (stub) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, ContentLength: -1, Body: stubBody{}, Request: req}, nil
}

// stubBody is read at once.
type stubBody struct{}

func (stubBody) Read(p []byte) (int, error) { return copy(p, "answer"), io.EOF }
func (stubBody) Close() error               { return nil }

// wrapping puts a body of its own in the place of the answer's: what a circuit needs that is to hear of the body's end,
// without the circuit.
type wrapping struct{ base http.RoundTripper }

func (w wrapping) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := w.base.RoundTrip(req)
	if err == nil {
		resp.Body = &wrapped{resp.Body}
	}
	return resp, err
}

type wrapped struct{ io.ReadCloser }

// roundTrips makes requests and reads the answers.
func roundTrips(rt http.RoundTripper, url string) op {
	return func(n int) int { return roundTripsWith(context.Background(), rt, url, n) }
}

// cancellableTrips have a context as servers give it.
func cancellableTrips() op {
	rt := transport(stub{})
	ctx, cancel := context.WithCancel(context.Background())
	_ = cancel // it lasts as long as the program
	return func(n int) int { return roundTripsWith(ctx, rt, stubURL, n) }
}

func roundTripsWith(ctx context.Context, rt http.RoundTripper, url string, n int) (errs int) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return n
	}
	buf := make([]byte, 512)
	for range n {
		resp, err := rt.RoundTrip(req)
		if err != nil {
			errs++
			continue
		}
		for err == nil {
			_, err = resp.Body.Read(buf)
		}
		if resp.Body.Close() != nil || err != io.EOF || resp.StatusCode != http.StatusOK {
			errs++
		}
	}
	return errs
}

func transport(base http.RoundTripper) *breakerhttp.Transport {
	return breaker.Must(breakerhttp.NewTransport(base))
}

// handWritten is what one writes around gobreaker: a circuit for each host, a status of 500 or more is a failure, and the
// caller gets its response all the same.
type handWritten struct {
	base   http.RoundTripper
	byHost sync.Map
}

var errStatus = errors.New("status of 500 or more")

func (h *handWritten) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := h.of(req.URL.Host).Execute(func() (*http.Response, error) {
		resp, err := h.base.RoundTrip(req)
		if err == nil && resp.StatusCode >= 500 {
			return resp, errStatus
		}
		return resp, err
	})
	if err == errStatus {
		return resp, nil
	}
	return resp, err
}

func (h *handWritten) of(host string) *gobreaker.CircuitBreaker[*http.Response] {
	if cb, ok := h.byHost.Load(host); ok {
		return cb.(*gobreaker.CircuitBreaker[*http.Response])
	}
	cb, _ := h.byHost.LoadOrStore(host, gobreaker.NewCircuitBreaker[*http.Response](gobreaker.Settings{Name: host}))
	return cb.(*gobreaker.CircuitBreaker[*http.Response])
}

func failsafeTransport(base http.RoundTripper) http.RoundTripper {
	return failsafehttp.NewRoundTripper(base, circuitbreaker.NewBuilder[*http.Response]().WithFailureThreshold(5).Build())
}

func newPlainTransport() *http.Transport { return &http.Transport{MaxIdleConnsPerHost: 8} }

// loopbackURL is that of a server, which runs until the program ends.
var loopbackURL = sync.OnceValue(func() string {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("answer ", 100))
	})).URL
})

// The quartiles of a time are metrics besides its median: so much added to the number of goroutines.
const (
	lowerQuartile metric = 1000
	upperQuartile metric = 2000
)

func (r results) setQuartiles(c contender) {
	sorted := slices.SortedFunc(slices.Values(c.samples), cmp.Compare)
	r.set(c.row.key(), lowerQuartile+metric(c.threads), sorted[len(sorted)/4])
	r.set(c.row.key(), upperQuartile+metric(c.threads), sorted[len(sorted)*3/4])
}

// loopbackTable sets the medians of the two loopback rows beside the spread of their samples: no gate, since a difference
// of a thousandth cannot be told from noise.
func loopbackTable(r results) string {
	t := table{texts: 1}
	t.add("", "ns, 1 goroutine", "half of the samples", "2 goroutines", "half of the samples")
	for _, name := range []string{plainTransport, transportRow} {
		n := r[key{httpLoopback.name, name}]
		cells := []string{bold(name)}
		for _, m := range []metric{one, two} {
			cells = append(cells, nanoseconds(n[m]), fmt.Sprintf("%.0f to %.0f", n[lowerQuartile+m], n[upperQuartile+m]))
		}
		t.add(cells...)
	}
	return t.String()
}
