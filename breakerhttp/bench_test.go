package breakerhttp_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakerhttp"
)

// stub answers at once.
type stub struct {
	resp http.Response
	body io.ReadCloser
}

func (s *stub) RoundTrip(*http.Request) (*http.Response, error) {
	r := s.resp
	r.Body = s.body
	return &r, nil
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return 0, io.EOF }
func (endless) Close() error               { return nil }

func benchmarkRoundTrip(b *testing.B, rt http.RoundTripper) {
	req, err := http.NewRequest(http.MethodGet, "https://api.example.com/v1/things?limit=3", nil)
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 512)
	b.ReportAllocs()
	for b.Loop() {
		resp, err := rt.RoundTrip(req)
		if err != nil {
			b.Fatal(err)
		}
		_, _ = resp.Body.Read(buf)
		_ = resp.Body.Close()
	}
}

func newStub() *stub {
	return &stub{resp: http.Response{StatusCode: 200, ContentLength: -1, Header: http.Header{}}, body: endless{}}
}

// What a request through a closed circuit costs on top of a base that does nothing.
func BenchmarkRoundTrip(b *testing.B) {
	b.Run("base", func(b *testing.B) { benchmarkRoundTrip(b, newStub()) })
	b.Run("circuit", func(b *testing.B) {
		t := breaker.Must(breakerhttp.NewTransport(newStub()))
		benchmarkRoundTrip(b, t)
	})
	b.Run("policies", func(b *testing.B) {
		t := breaker.Must(breakerhttp.NewTransport(newStub(), breakerhttp.WithRetry(breaker.MaxRetries(2)), breakerhttp.WithFailover("https://backup.example.com")))
		benchmarkRoundTrip(b, t)
	})
}

// A closed circuit adds one allocation: the body. A context that can end makes no difference.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	req, err := http.NewRequest(http.MethodGet, "https://api.example.com/", strings.NewReader(""))
	if err != nil {
		t.Fatal(err)
	}
	testAllocations(t, req)
	testAllocations(t, req.WithContext(t.Context()))
}

func testAllocations(t *testing.T, req *http.Request) {
	t.Helper()
	count := func(rt http.RoundTripper) float64 {
		return testing.AllocsPerRun(200, func() {
			resp, err := rt.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
		})
	}
	base := count(newStub())
	if got := count(breaker.Must(breakerhttp.NewTransport(newStub()))); got > base+1 {
		t.Fatalf("%v allocations a request, the base makes %v", got, base)
	}
}
