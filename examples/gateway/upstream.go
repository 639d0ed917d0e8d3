package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// switchPath is where an upstream's answers are set by hand: curl -X PUT .../-/status -d 503
const switchPath = "/-/status"

// upstream is a server on a loopback address whose answers the demo, or a test, decides.
type upstream struct {
	name string
	srv  *http.Server
	addr string

	mu     sync.Mutex
	status int
	next   []int // answers that come before status
	calls  int
	gate   chan struct{} // if there, answers wait for its close
}

func startUpstream(name string) (*upstream, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	u := &upstream{name: name, addr: ln.Addr().String(), status: http.StatusOK}
	u.srv = &http.Server{Handler: u, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = u.srv.Serve(ln) }()
	return u, nil
}

// ServeHTTP answers a call with its number, or with the status that has been set.
func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == switchPath {
		u.switched(w, r)
		return
	}
	u.mu.Lock()
	u.calls++
	status, call, gate := u.status, u.calls, u.gate
	if len(u.next) > 0 {
		status, u.next = u.next[0], u.next[1:]
	}
	u.mu.Unlock()
	if gate != nil {
		<-gate
	}
	if status != http.StatusOK {
		http.Error(w, u.name+" is down", status)
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	_, _ = fmt.Fprintf(w, "%s, call %d", u.name, call)
}

func (u *upstream) switched(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 16))
	status, bad := strconv.Atoi(string(text))
	if r.Method != http.MethodPut || err != nil || bad != nil || status < 200 || status > 599 {
		http.Error(w, "PUT a status from 200 to 599", http.StatusBadRequest)
		return
	}
	u.set(status)
}

// set decides all answers from now on, but that those in first come before.
func (u *upstream) set(status int, first ...int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.status, u.next = status, first
}

// hold makes answers wait until release is called.
func (u *upstream) hold() (release func()) {
	gate := make(chan struct{})
	u.mu.Lock()
	defer u.mu.Unlock()
	u.gate = gate
	return sync.OnceFunc(func() {
		u.mu.Lock()
		u.gate = nil
		u.mu.Unlock()
		close(gate)
	})
}

// count is how many calls there have been.
func (u *upstream) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.calls
}
