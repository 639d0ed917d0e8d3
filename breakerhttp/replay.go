package breakerhttp

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"
)

// replay gives every attempt a request of its own, with the same body.
type replay struct {
	req  *http.Request // the caller's; it is not changed
	sent bool          // its body, or the lack of one, has been given away
}

var errNoReplay = errors.New("breakerhttp: the request's body cannot be sent again")

// repeatable reports whether the request may be sent more than once.
func (r *replay) repeatable(unsafe bool) bool {
	return r.replayable() && (unsafe || idempotent(r.req))
}

func (r *replay) replayable() bool {
	return r.req.Body == nil || r.req.Body == http.NoBody || r.req.GetBody != nil
}

// idempotent is net/http's own notion, by which it repeats requests after a lost connection, plus PUT and DELETE.
func idempotent(req *http.Request) bool {
	switch req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return req.Header["Idempotency-Key"] != nil || req.Header["X-Idempotency-Key"] != nil
}

// next returns the request for another attempt under ctx. The first attempt under the caller's own context needs no
// copy: its body can be sent only once anyway.
func (r *replay) next(ctx context.Context) (*http.Request, error) {
	first := !r.sent
	if first && ctx == r.req.Context() {
		r.sent = true
		return r.req, nil
	}
	req := r.req.WithContext(ctx)
	if first {
		r.sent = true
		return req, nil
	}
	// Not a Clone: the caller fills in the Trailer's values while its body is read.
	req.Header = r.req.Header.Clone()
	if r.req.Body == nil || r.req.Body == http.NoBody {
		return req, nil
	}
	if r.req.GetBody == nil {
		return nil, errNoReplay
	}
	b, err := r.req.GetBody()
	if err != nil {
		return nil, err
	}
	req.Body = b
	return req, nil
}

// close closes the caller's body if no attempt has taken it over.
func (r *replay) close() {
	if !r.sent {
		r.sent = true
		closeBody(r.req)
	}
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

const (
	// drainBytes and drainTime bound what is spent on a response that is dropped: reading it to its end keeps the
	// connection, which is worth little when it takes long.
	drainBytes = 64 << 10
	drainTime  = 20 * time.Millisecond
)

// discard drains and closes a response that is dropped. The time is the real one: a test's clock must not hold it up.
func discard(resp *http.Response) {
	if resp == nil || resp.Body == nil {
		return
	}
	if resp.Body != http.NoBody && resp.ContentLength <= drainBytes {
		drain(resp.Body)
	}
	_ = resp.Body.Close()
}

func drain(r io.Reader) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = recover() }() // a body that panics is dropped all the same; here it would end the process
		_, _ = io.CopyN(io.Discard, r, drainBytes)
	}()
	timer := time.NewTimer(drainTime)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C: // the close that follows ends the read
	}
}
