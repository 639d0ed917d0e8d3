package breakerhttp

import (
	"context"
	"errors"
	"net/http"
)

// replay gives every attempt a request of its own, with the same body.
type replay struct {
	req  *http.Request // the caller's; it is not changed
	many bool          // there may be more than one attempt: each has its own header map, whatever the base writes into it
	sent bool          // its body, or the lack of one, has been given away
}

var errNoReplay = errors.New("breakerhttp: the request's body cannot be sent again")

// repeatable reports whether the request may be sent to its host more than once.
func (r *replay) repeatable(unsafe bool) bool {
	return r.replayable() && (unsafe || idempotent(r.req))
}

// elsewhere reports whether it may be sent to another host after it has been sent to its own. An Idempotency-Key is a promise
// of the host that it was made for: another one does not know whether that has acted, so that the key will do only where
// every attempt was answered as failed.
func (r *replay) elsewhere(unsafe, answered bool) bool {
	return r.replayable() && (unsafe || idempotentMethod(r.req.Method) || answered && idempotent(r.req))
}

func (r *replay) replayable() bool {
	return r.req.Body == nil || r.req.Body == http.NoBody || r.req.GetBody != nil
}

// idempotent is net/http's own notion, by which it repeats requests after a lost connection, plus PUT and DELETE.
func idempotent(req *http.Request) bool {
	return idempotentMethod(req.Method) || req.Header["Idempotency-Key"] != nil || req.Header["X-Idempotency-Key"] != nil
}

func idempotentMethod(method string) bool {
	return safeMethod(method) || method == http.MethodPut || method == http.MethodDelete
}

// next returns the request for another attempt under ctx. The first attempt under the caller's own context needs no
// copy: its body can be sent only once anyway.
func (r *replay) next(ctx context.Context) (*http.Request, error) {
	first := !r.sent
	if first && !r.many && ctx == r.req.Context() {
		r.sent = true
		return r.req, nil
	}
	req := r.req.WithContext(ctx)
	if r.many { // not a Clone: the caller fills in the Trailer's values while its body is read
		req.Header = r.req.Header.Clone()
	}
	if first {
		r.sent = true
		return req, nil
	}
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
