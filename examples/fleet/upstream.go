package main

import (
	"net/http"
	"net/http/httptest"
	"sync"
)

// upstream is the dependency. It does well or answers 503, and knows who asks.
type upstream struct {
	server *httptest.Server
	told   func(worker string, ok bool) // of every request

	mu       sync.Mutex
	down     bool
	requests int
}

func newUpstream(told func(worker string, ok bool)) *upstream {
	u := &upstream{told: told}
	u.server = httptest.NewServer(u)
	return u
}

func (u *upstream) url() string { return u.server.URL }
func (u *upstream) close()      { u.server.Close() }

// set makes the upstream fail or recover.
func (u *upstream) set(down bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.down = down
}

// served is how many requests have arrived.
func (u *upstream) served() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.requests
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u.mu.Lock()
	u.requests++
	down := u.down
	u.mu.Unlock()
	u.told(r.Header.Get("X-Worker"), !down)
	if down {
		http.Error(w, "down", http.StatusServiceUnavailable)
	}
}
