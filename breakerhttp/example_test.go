package breakerhttp_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakerhttp"
)

// flaky answers with these statuses, one after the other, and with 200 afterwards.
func flaky(codes ...int) *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if len(codes) > 0 {
			w.WriteHeader(codes[0])
			codes = codes[1:]
		}
		_, _ = io.WriteString(w, "hello")
	}))
}

func show(resp *http.Response, err error) {
	if err != nil {
		fmt.Println("error:", errors.Is(err, breaker.ErrOpen))
		return
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	fmt.Println(resp.StatusCode, string(b), err)
}

func ExampleNewTransport() {
	srv := flaky(500, 500)
	defer srv.Close()

	t, err := breakerhttp.NewTransport(nil, breakerhttp.WithBreaker(breaker.WithFailureThreshold(2)))
	if err != nil {
		panic(err)
	}
	defer t.CloseIdleConnections()
	client := &http.Client{Transport: t}
	for range 3 {
		show(client.Get(srv.URL))
	}
	// Output:
	// 500 hello <nil>
	// 500 hello <nil>
	// error: true
}

func ExampleWithRetry() {
	srv := flaky(503, 502)
	defer srv.Close()

	t, err := breakerhttp.NewTransport(nil,
		breakerhttp.WithRetry(breaker.MaxRetries(2), breaker.Exponential(time.Millisecond, time.Second)),
		breakerhttp.WithRescueHeader("X-Rescued"))
	if err != nil {
		panic(err)
	}
	defer t.CloseIdleConnections()
	resp, err := (&http.Client{Transport: t}).Get(srv.URL)
	fmt.Println("rescued by", resp.Header.Get("X-Rescued"))
	show(resp, err)
	// Output:
	// rescued by retry
	// 200 hello <nil>
}

func ExamplePerRequest() {
	primary, backup := flaky(503), flaky()
	defer primary.Close()
	defer backup.Close()

	t, err := breakerhttp.NewTransport(nil)
	if err != nil {
		panic(err)
	}
	defer t.CloseIdleConnections()
	req, err := http.NewRequest(http.MethodGet, primary.URL, nil)
	if err != nil {
		panic(err)
	}
	ctx := breakerhttp.PerRequest(req.Context(), breakerhttp.Failover(backup.URL), breakerhttp.AttemptTimeout(time.Second))
	show((&http.Client{Transport: t}).Do(req.WithContext(ctx)))
	// Output:
	// 200 hello <nil>
}

func ExampleHandler() {
	h, err := breakerhttp.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
	}), breakerhttp.WithBreaker(breaker.WithFailureThreshold(1), breaker.WithOpenTimeout(30*time.Second)))
	if err != nil {
		panic(err)
	}
	for range 2 {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		fmt.Printf("%d %q\n", w.Code, w.Header().Get("Retry-After"))
	}
	// Output:
	// 500 ""
	// 503 "30"
}

func ExampleCheckHTTP() {
	srv := flaky()
	defer srv.Close()

	t, err := breakerhttp.NewTransport(nil, breakerhttp.WithBreaker(
		breaker.WithHealthCheck(5*time.Second, breakerhttp.CheckHTTP(srv.URL+"/healthz"))))
	if err != nil {
		panic(err)
	}
	defer t.Close() // stops the checks
	defer t.CloseIdleConnections()
	show((&http.Client{Transport: t}).Get(srv.URL))
	// Output:
	// 200 hello <nil>
}
