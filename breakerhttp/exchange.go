package breakerhttp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/breakerkit/breaker"
)

// exchange is one request with all its policies: Cache(Failover(Retry(circuit(AttemptTimeout(base))))).
type exchange struct {
	t      *Transport
	req    *http.Request
	ctx    context.Context // the caller's
	replay replay

	primary    target
	out        context.Context // of attempts: the caller's, without the options that this Transport has taken
	limit      time.Duration
	limitSet   bool
	repeatable bool // to the same host
	reached    bool // an attempt may have reached a host
	unanswered bool // one of those has brought no response: nobody knows whether the host has acted
	policy     breaker.RetryPolicy
	failover   []*url.URL
	memory     *responseCache // nil: none
	key        string         // in memory; "": not to be kept
	ttl        time.Duration

	last     attempt // the last that was sent, its response held open; or the rejection of the first
	spent    bool    // last's response is not whole any more, and cannot be the answer
	attempts int
	errs     []error // what went wrong besides
	rescue   breaker.Rescue
	by       string // the circuit that answered
}

// target is where an attempt goes.
type target struct {
	key     string
	circuit *breaker.Circuit // nil: passed by
	told    *breaker.Circuit // whose hooks hear of it; circuit, unless that is passed by
	limit   time.Duration
	to      *url.URL // nil: where the request says
}

// configure puts the Transport's configuration and the request's own together.
func (x *exchange) configure(own *perRequest) (err error) {
	t := x.t
	x.policy, x.failover, x.memory = t.retry, t.failover, t.cache
	if x.memory != nil {
		x.ttl = x.memory.ttl
	}
	x.repeatable = x.replay.repeatable(t.unsafe)
	x.out = x.ctx
	bypass := false
	if own != nil {
		x.out = withoutPerRequest(x.ctx)
		if own.err != nil {
			return own.err
		}
		bypass = own.noBreaker
		x.limit, x.limitSet = own.limit, own.limitSet
		if err := x.override(own); err != nil {
			return err
		}
	}
	x.replay.many = t.retries || own != nil && own.retries != nil || len(x.failover) > 0
	x.primary = x.target(t.keyOf(x.req), bypass)
	x.by = x.primary.key
	if x.memory != nil {
		x.key = x.memory.keyOf(x.req)
	}
	return nil
}

func (x *exchange) override(own *perRequest) (err error) {
	if own.failover != nil {
		x.failover = own.failover
	}
	if own.retries != nil {
		x.policy, err = breaker.NewRetryPolicy(slices.Concat(x.t.retryOpts, own.retries)...)
	}
	switch {
	case !own.cacheSet:
	case own.cacheTTL == 0:
		x.memory = nil
	default:
		if x.memory == nil {
			x.memory = x.t.ownCache()
		}
		x.ttl = own.cacheTTL
	}
	return err
}

func (x *exchange) target(key string, bypass bool) target {
	g := target{key: key}
	if bypass {
		g.told = bypassOf(x.t.group, key)
		if !x.limitSet {
			g.limit = groupTimeout(x.t.group, key)
		}
	} else {
		b := x.t.group.Get(key)
		g.circuit, g.told, g.limit = b.Circuit(), b.Circuit(), timeoutOf(b)
	}
	if x.limitSet {
		g.limit = x.limit
	}
	return g
}

func (x *exchange) run() (*http.Response, error) {
	done := false
	defer func() {
		if !done { // by a panic in a user's function
			x.drop()
		}
	}()
	x.callPrimary()
	if x.wantsRescue() {
		if !x.failoverAnswers() {
			x.cacheAnswers()
		}
	}
	x.noteWrite()
	resp, err := x.answer()
	done = true
	return resp, err
}

// callPrimary makes the attempts on the host that the request names.
func (x *exchange) callPrimary() {
	began := retryBegin(x.policy, x.primary.told)
	var failed, because error
	for {
		a := x.attempt(x.primary, true)
		if !a.sent {
			x.noRetry(a.err)
			because = a.err
			break
		}
		x.attempts++
		retryRan(x.policy, x.primary.told, x.attempts)
		x.last = a
		x.note(&a)
		if a.outcome != breaker.Failure || a.final || !x.mayRepeat(x.repeatable) || x.callerEnd() != nil {
			break
		}
		failed = a.cause
		var again bool
		if again, because = x.wait(began, a.cause); !again {
			break
		}
	}
	x.primaryEnded(failed, because)
}

// mayRepeat reports whether the request may be sent once more, allowed being the answer where a host may have seen it. A
// request that never left may be sent again whatever its method.
func (x *exchange) mayRepeat(allowed bool) bool {
	return allowed || !x.reached && x.replay.replayable()
}

// note notes whether an attempt may have reached a host, and whether that has answered.
func (x *exchange) note(a *attempt) {
	if a.sent && !a.unsent {
		x.reached = true
		x.unanswered = x.unanswered || a.err != nil
	}
}

// noRetry tells the Rescue hooks why an announced retry was not made, where the caller gets a response that does not say so.
func (x *exchange) noRetry(err error) {
	if x.last.resp != nil && !rejection(err) && x.callerEnd() == nil {
		x.rescued(breaker.RescueRetry, x.last.cause, err)
	}
}

// heldKey is the context key of the response that is held while a retry, which the Retry hooks are told of, waits.
type heldKey struct{}

type held struct {
	resp  *http.Response
	spent bool
}

// wait decides about a retry, and waits for it. The request's Cancel ends the wait as its context does.
func (x *exchange) wait(began int64, cause error) (again bool, because error) {
	h := &held{resp: x.last.resp} // not x itself, which would then be on the heap from the start
	ctx := context.WithValue(x.ctx, heldKey{}, h)
	//lint:ignore SA1019 http.Client sets it
	if gone := x.req.Cancel; gone != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		done := make(chan struct{})
		defer close(done)
		go func() {
			select {
			case <-gone:
				cancel()
			case <-done:
			}
		}()
	}
	again, because = retryNext(ctx, x.policy, x.primary.told, began, x.attempts, cause)
	x.spent = h.spent
	return again, because
}

// freeConnections is a Retry hook of every circuit: a response that is held while its retry waits does not hold its
// connection meanwhile.
func freeConnections(ctx context.Context, _ breaker.RetryEvent) {
	if h, ok := ctx.Value(heldKey{}).(*held); ok {
		h.spent = !setAside(h.resp)
	}
}

// callerEnd is how the caller has ended the request, if so.
func (x *exchange) callerEnd() error {
	//lint:ignore SA1019 http.Client sets it
	return callerEnd(x.ctx, x.req.Cancel)
}

// primaryEnded settles what the host's attempts come to.
func (x *exchange) primaryEnded(failed, because error) {
	a := &x.last
	switch {
	case x.attempts == 0:
		*a = attempt{err: because, cause: because, outcome: breaker.Ignored}
	case a.resp != nil && because != nil && (x.spent || x.callerEnd() != nil): // the caller has gone during a wait
		x.drop()
		a.err = retriedError(retryError(x.attempts, a.cause, because))
	case a.err != nil:
		a.err = retriedError(retryError(x.attempts, a.err, because))
	case x.attempts > 1 && a.outcome == breaker.Success:
		x.rescued(breaker.RescueRetry, failed, nil)
	}
}

// attempt passes a circuit and sends the request. The response of the attempt before is dropped between the two: not
// earlier, since it is the answer if the circuit says no; not later, since it may hold the only connection. A response
// from elsewhere stays the answer for as long as there is no better one.
func (x *exchange) attempt(g target, sameHost bool) (a attempt) {
	b := &body{}
	if g.circuit == nil {
		b.more = &extras{ctx: x.ctx, past: g.told}
		if err := x.ctx.Err(); err != nil {
			return attempt{err: err}
		}
	} else if err := x.t.acquire(b, x.ctx, g.circuit); err != nil {
		return attempt{err: err}
	}
	req := x.prepare(b, g, &a)
	if req == nil {
		return a
	}
	if sameHost {
		x.drop()
	}
	if x.key != "" && g.to == nil {
		b.extra().keep = x.memory.record(x, g.told)
	}
	x.t.send(b, req, g.limit, &a)
	switch {
	case a.resp == nil:
	case g.to == nil:
		a.resp.Request = x.req
	default:
		leadBack(a.resp, req.URL)
	}
	return a
}

// prepare makes the request of an admitted attempt. Without one, the attempt has failed before it left the process, which
// says nothing about the host.
func (x *exchange) prepare(b *body, g target, a *attempt) (req *http.Request) {
	defer func() {
		if req == nil {
			b.settle(breaker.Ignored, nil)
			b.release()
		}
	}()
	ctx := x.out
	if g.limit > 0 || x.t.stall > 0 {
		ctx, b.extra().cancel = context.WithCancelCause(ctx)
	}
	r, err := x.replay.next(ctx)
	if err != nil {
		a.err = err
		return nil
	}
	if g.to != nil {
		r, a.bare = x.t.redirected(r, g.to)
	}
	return r
}

// drop lets go of the held response.
func (x *exchange) drop() {
	discard(x.last.resp)
	x.last.resp, x.spent = nil, false
}

// wantsRescue reports whether something else may answer: after a Failure, and after a rejection, by this circuit or one
// further in.
func (x *exchange) wantsRescue() bool {
	if x.callerEnd() == context.Canceled {
		return false
	}
	return x.last.outcome == breaker.Failure || x.last.err != nil && rejection(x.last.err)
}

// failoverAnswers sends the request to the other hosts in turn, to each once, and not to the one that it was addressed to.
func (x *exchange) failoverAnswers() bool {
	asked := map[string]bool{originOf(x.req.URL): true}
	for _, to := range x.failover {
		if x.callerEnd() != nil || x.replay.sent && !x.mayRepeat(x.replay.elsewhere(x.t.unsafe, !x.unanswered)) {
			return false
		}
		if at := originOf(to); !asked[at] {
			asked[at] = true
			if x.otherAnswers(to) {
				return true
			}
		}
	}
	return false
}

func (x *exchange) otherAnswers(to *url.URL) bool {
	g := x.target(x.t.keyElsewhere(x.req, to), x.primary.circuit == nil)
	g.to = to
	cause := x.last.cause
	a := x.attempt(g, false)
	x.note(&a)
	if !a.rescues() {
		x.rescued(breaker.RescueFailover, cause, withoutURL(a.problem()))
		discard(a.resp)
		x.errs = append(x.errs, a.problem())
		return false
	}
	x.drop()
	x.last, x.by = a, g.key
	x.rescued(breaker.RescueFailover, cause, nil)
	return true
}

// rescues reports whether another host's attempt is an answer. One that refuses us, without the credentials that stayed at home,
// says nothing about what was asked for.
func (a *attempt) rescues() bool {
	if !a.sent || a.err != nil || a.outcome == breaker.Failure {
		return false
	}
	refused := a.resp.StatusCode == http.StatusUnauthorized || a.resp.StatusCode == http.StatusForbidden || a.resp.StatusCode == http.StatusProxyAuthRequired
	return !a.bare || !refused
}

// problem is why an attempt is no answer.
func (a *attempt) problem() error {
	switch {
	case a.err != nil:
		return a.err
	case a.cause == nil:
		return &StatusError{StatusCode: a.resp.StatusCode}
	}
	return a.cause
}

// cacheAnswers looks for an answer from before.
func (x *exchange) cacheAnswers() bool {
	if x.key == "" {
		return false
	}
	resp := x.memory.get(x)
	if resp == nil {
		return false
	}
	cause := x.last.cause
	x.drop()
	x.last = attempt{resp: resp, sent: true, outcome: breaker.Success}
	x.rescued(breaker.RescueCache, cause, nil)
	return true
}

// noteWrite tells the caches that a URL was written to.
func (x *exchange) noteWrite() {
	resp := x.last.resp
	if safeMethod(x.req.Method) || resp == nil || resp.StatusCode >= 400 || x.rescue == breaker.RescueCache {
		return
	}
	if x.t.cache != nil {
		x.t.cache.written(x, resp)
	}
	if x.t.ownUsed.Load() {
		x.t.ownCache().written(x, resp)
	}
}

// rescued notes a rescue, or one that did not help.
func (x *exchange) rescued(kind breaker.Rescue, cause, err error) {
	if err == nil {
		x.rescue = kind
	}
	rescued(x.primary.told, x.ctx, breaker.RescueEvent{Kind: kind, Cause: cause, Err: err})
}

// answer is what the caller gets.
func (x *exchange) answer() (*http.Response, error) {
	a := &x.last
	if a.resp != nil {
		x.mark(a.resp, x.strategy())
		return a.resp, nil
	}
	if x.t.asResponse && x.attempts == 0 && rejection(a.err) {
		resp := unavailable(x.req, a.err)
		x.mark(resp, "open")
		return resp, nil
	}
	if len(x.errs) > 0 {
		return nil, retriedError(errors.Join(append([]error{a.err}, x.errs...)...))
	}
	return nil, a.err
}

func (x *exchange) strategy() string {
	switch {
	case x.rescue != "":
		return string(x.rescue)
	case x.primary.circuit == nil:
		return "bypass"
	}
	return "direct"
}

// mark sets the headers that tell what happened.
func (x *exchange) mark(resp *http.Response, strategy string) {
	t := x.t
	if t.rescue == "" && t.debug == "" {
		return
	}
	if resp.Header == nil {
		resp.Header = make(http.Header)
	}
	t.hideTrailers(resp)
	if t.rescue != "" {
		resp.Header.Del(t.rescue)
		if x.rescue != "" {
			resp.Header.Set(t.rescue, string(x.rescue))
		}
	}
	if t.debug != "" {
		resp.Header.Set(t.debug+"Provider", printable(x.by))
		resp.Header.Set(t.debug+"Strategy", strategy)
		resp.Header.Del(t.debug + "Health")
		if b, ok := t.group.Lookup(x.by); ok {
			resp.Header.Set(t.debug+"Health", b.State().String())
		}
	}
}

// printable escapes what may not stand in a header's value, or not be read there: a key is whatever WithKey makes of a request.
func printable(s string) string {
	if !strings.ContainsFunc(s, unprintable) {
		return s
	}
	var w strings.Builder
	for _, c := range []byte(s) {
		if unprintable(rune(c)) {
			fmt.Fprintf(&w, "%%%02X", c)
			continue
		}
		w.WriteByte(c)
	}
	return w.String()
}

func unprintable(c rune) bool { return c <= ' ' || c >= 0x7f || c == '%' }

// unavailable is a rejection as a response.
func unavailable(req *http.Request, err error) *http.Response {
	const text = "rejected by a circuit breaker\n"
	resp := &http.Response{
		Status:        "503 " + http.StatusText(http.StatusServiceUnavailable),
		StatusCode:    http.StatusServiceUnavailable,
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        http.Header{"Content-Type": {"text/plain; charset=utf-8"}},
		Body:          http.NoBody,
		ContentLength: int64(len(text)),
		Request:       req,
	}
	resp.Header.Set("Content-Length", strconv.Itoa(len(text)))
	if req.Method != http.MethodHead {
		resp.Body = readCloser{strings.NewReader(text)}
	}
	if s := rejectedFor(err); s > 0 {
		resp.Header.Set("Retry-After", strconv.FormatInt(s, 10))
	}
	return resp
}

// rejectedFor is how many seconds a rejection holds, 0 when unknown.
func rejectedFor(err error) int64 {
	var open *breaker.OpenError
	if errors.As(err, &open) {
		return wholeSeconds(open.RetryAfter())
	}
	return 0
}

// manyAttempts is the error of a call with more than one attempt. http.Client asks its error whether it is a timeout
// without unwrapping it.
type manyAttempts struct{ error }

func (e manyAttempts) Unwrap() error { return e.error }

func (e manyAttempts) Timeout() bool {
	var t interface{ Timeout() bool }
	return errors.As(e.error, &t) && t.Timeout()
}

// retriedError keeps an error that was put together from several from hiding that it is a timeout.
func retriedError(err error) error {
	switch err.(type) {
	case *breaker.RetryError, interface{ Unwrap() []error }:
		return manyAttempts{err}
	}
	return err
}
