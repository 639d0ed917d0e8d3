// Quickstart calls an HTTP server on the loopback interface through a circuit breaker while the server does well, fails,
// hangs and recovers. It prints what happens as it happens and ends with a check that the story was the expected one.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"sync/atomic"
	"time"

	"github.com/breakerkit/breaker"
)

// A pace is the time scale of the story.
type pace struct {
	every time.Duration // between two calls
	limit time.Duration // for one attempt
	open  time.Duration // how long the circuit stays open
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := run(ctx, os.Stdout, pace{every: 400 * time.Millisecond, limit: 500 * time.Millisecond, open: 1500 * time.Millisecond})
	if err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, w io.Writer, p pace) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()

	up := &upstream{}
	srv := httptest.NewServer(up)
	defer srv.Close()

	out := &timeline{w: w, began: time.Now()}
	weather, err := breaker.New[string]("weather",
		breaker.WithFailureThreshold(3),
		breaker.WithOpenTimeout(p.open),
		breaker.WithTimeout(p.limit),
		breaker.WithHooks(breaker.Hooks{StateChange: out.change}))
	if err != nil {
		return err
	}
	defer weather.Close()
	fetch := func(ctx context.Context) (string, error) { return get(ctx, srv.Client(), srv.URL) }

	out.header(weather.Circuit().Config(), p)
	for up.requests.Load() < int64(len(script)) {
		seen := up.requests.Load()
		began := time.Now()
		answer, err := weather.Do(ctx, fetch)
		out.call(began, up.since(seen), answer, err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(p.every):
		}
	}
	return out.verdict(weather.Snapshot(), up.requests.Load())
}

// get is an ordinary HTTP call. It knows nothing of the breaker; an error is all that the breaker needs.
func get(ctx context.Context, client *http.Client, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", errors.New(resp.Status)
	}
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// script is what the server does with each request that reaches it.
var script = []string{"200", "200", "200", "500", "500", "500", "hangs", "200", "200", "200", "200"}

type upstream struct{ requests atomic.Int64 }

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch n := u.requests.Add(1); script[min(int(n), len(script))-1] {
	case "500":
		http.Error(w, "out of order", http.StatusInternalServerError)
	case "hangs":
		<-r.Context().Done() // until the caller hangs up
	default:
		fmt.Fprint(w, "sunny, 21 C")
	}
}

// since tells what the server did with the request that came after the first seen ones, if one came.
func (u *upstream) since(seen int64) string {
	if u.requests.Load() == seen {
		return "not called"
	}
	return script[seen]
}
