// Httpclient puts a circuit breaker into an http.Client, and calls a server on the loopback interface that does well,
// fails for a while, and recovers. The client is the ten lines in newClient; the rest is the server and the printing.
package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"time"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakerhttp"
)

func main() {
	if err := run(os.Stdout, time.Second); err != nil {
		fmt.Fprintln(os.Stderr, "httpclient:", err)
		os.Exit(1)
	}
}

// newClient is an http.Client with a circuit for each host that it calls.
func newClient(open time.Duration) (*http.Client, error) {
	t, err := breakerhttp.NewTransport(nil,
		breakerhttp.WithBreaker(breaker.WithFailureThreshold(3), breaker.WithOpenTimeout(open), breaker.WithTimeout(5*time.Second)),
		breakerhttp.WithRetry(breaker.MaxRetries(2), breaker.Exponential(time.Millisecond, time.Second)),
		breakerhttp.WithRescueHeader("X-Rescued"))
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: t}, nil
}

func run(w io.Writer, open time.Duration) error {
	up := &upstream{}
	srv := httptest.NewServer(up)
	defer srv.Close()
	client, err := newClient(open)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()

	fmt.Fprintln(w, "The circuit opens at 3 failures in a row. A request is retried up to 2 times.")
	for _, step := range []struct {
		title string
		fails int64
		calls int
	}{
		{"All is well:", 0, 2},
		{"One hiccup, a retry helps:", 1, 1},
		{"The server is down. The third failure opens the circuit, and no more requests get through:", 99, 3},
	} {
		fmt.Fprintf(w, "\n%s\n", step.title)
		up.failing.Store(step.fails)
		for range step.calls {
			call(w, client, srv.URL, up)
		}
	}
	fmt.Fprintf(w, "\n%v later the server is back. Two probes close the circuit:\n", open)
	up.failing.Store(0)
	<-time.After(open)
	for range 3 {
		call(w, client, srv.URL, up)
	}
	return nil
}

// call makes a request and prints what came of it, and how many requests the server saw.
func call(w io.Writer, client *http.Client, url string, up *upstream) {
	before := up.requests.Load()
	resp, err := client.Get(url)
	seen := up.requests.Load() - before
	var rejected *breaker.OpenError
	switch {
	case errors.As(err, &rejected):
		fmt.Fprintf(w, "  rejected at once              server saw %d\n", seen)
	case err != nil:
		fmt.Fprintf(w, "  error: %v\n", err)
	default:
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		how := fmt.Sprintf("status %d", resp.StatusCode)
		if by := resp.Header.Get("X-Rescued"); by != "" {
			how += ", rescued by " + by
		}
		fmt.Fprintf(w, "  %-29s server saw %d\n", how, seen)
	}
}

// upstream is a server that fails as many requests as it is told to.
type upstream struct {
	requests atomic.Int64
	failing  atomic.Int64
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	u.requests.Add(1)
	if u.failing.Add(-1) >= 0 {
		http.Error(w, "down", http.StatusServiceUnavailable)
		return
	}
	_, _ = io.WriteString(w, "hello")
}
