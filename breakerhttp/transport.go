package breakerhttp

import (
	"context"
	"errors"
	"hash/maphash"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/breakerkit/breaker"
)

var (
	errNoURL   = errors.New("breakerhttp: the request has no URL")
	errNothing = errors.New("breakerhttp: the base RoundTripper returned neither a response nor an error")
	errTimeout = error(attemptTimeout{})
)

// attemptTimeout is the error of an attempt whose headers did not come in time.
type attemptTimeout struct{}

func (attemptTimeout) Error() string {
	return "breakerhttp: no response headers within the attempt's timeout"
}
func (attemptTimeout) Timeout() bool        { return true }
func (attemptTimeout) Temporary() bool      { return true }
func (attemptTimeout) Is(target error) bool { return target == context.DeadlineExceeded }

// Transport is an http.RoundTripper with a circuit for each origin. It is safe for concurrent use. Make one with
// NewTransport and keep it: circuits that are made anew for each request or client are always closed and protect nothing.
// Clients that share a Transport share its circuits. A nil or zero Transport panics.
type Transport struct {
	base       http.RoundTripper
	group      *breaker.Group[struct{}]
	clock      breaker.Clock // nil: the time package
	key        func(*http.Request) string
	keys       keyCache
	waiting    waiting
	classifier func(*http.Request, *http.Response, error) breaker.Outcome
	retryOpts  []breaker.RetryOption
	retry      breaker.RetryPolicy
	failover   []*url.URL
	kept       []string
	dropped    []string
	alive      time.Duration
	stall      time.Duration                      // 0: off
	wait       func(*http.Response) time.Duration // nil: the headers alone
	cache      *responseCache                     // nil: off, but for PerRequest
	ownCache   func() *responseCache
	ownUsed    atomic.Bool // there is one
	rescue     string
	debug      string

	retries    bool // WithRetry was given
	plain      bool // a request without options of its own is one attempt and no more
	ignore429  bool
	atHeaders  bool
	unsafe     bool
	asResponse bool
}

// NewTransport makes a Transport that sends requests through base; nil is http.DefaultTransport. The error names every
// option that is wrong.
func NewTransport(base http.RoundTripper, opts ...Option) (*Transport, error) {
	d := newDraft(forTransport, opts)
	d.breaker = append(d.breaker, breaker.WithHooks(breaker.Hooks{Retry: freeConnections}))
	t := &Transport{
		base:       base,
		group:      d.group(),
		key:        d.key,
		classifier: d.classifier,
		failover:   d.failover,
		kept:       d.kept,
		dropped:    d.dropped,
		wait:       d.wait,
		alive:      d.alive,
		stall:      d.stall,
		rescue:     d.rescue,
		debug:      d.debug,
		ignore429:  d.ignore429,
		atHeaders:  d.atHeaders,
		unsafe:     d.unsafe,
		asResponse: d.asResponse,
	}
	t.keys.seed = maphash.MakeSeed()
	if base == nil {
		t.base = http.DefaultTransport
	}
	if t.group != nil {
		t.clock = clockOf(t.group)
	}
	var err error
	if t.retryOpts = d.retry; t.clock != nil {
		t.retryOpts = append([]breaker.RetryOption{breaker.RetryClock(t.clock)}, d.retry...)
	}
	if t.retry, err = breaker.NewRetryPolicy(t.retryOpts...); err != nil {
		d.faults = append(d.faults, err)
	}
	d.check()
	if err := d.err(); err != nil {
		return nil, err
	}
	t.setCache(d)
	t.retries = len(d.retry) > 0
	t.plain = !t.retries && len(t.failover) == 0 && t.cache == nil && t.rescue == "" && t.debug == ""
	return t, nil
}

func (t *Transport) setCache(d *draft) {
	own := d.cache
	own.store, own.ttl, own.headers = nil, 0, nil
	t.ownCache = sync.OnceValue(func() *responseCache {
		t.ownUsed.Store(true)
		return newResponseCache(&own, t.now)
	})
	if d.cached {
		t.cache = newResponseCache(&d.cache, t.now)
	}
}

// now is the time by the circuits' clock.
func (t *Transport) now() time.Time {
	if t.clock == nil {
		return time.Now()
	}
	return t.clock.Now()
}

// Circuits yields the keys and circuits that there are: a Transport is a breaker.Source.
func (t *Transport) Circuits() iter.Seq2[string, *breaker.Circuit] {
	return func(yield func(string, *breaker.Circuit) bool) {
		t.waiting.look((*body).startWatch)
		t.group.Circuits()(yield)
	}
}

// Circuit returns the circuit of a key if there is one; it makes none. A key is an origin, such as https://example.com or
// http://10.0.0.7:8080, or what WithKey returned. Any URL of the origin will do, and a host alone where only one scheme
// is in use.
func (t *Transport) Circuit(key string) (*breaker.Circuit, bool) {
	t.waiting.look((*body).startWatch)
	if b, ok := t.group.Lookup(key); ok {
		return b.Circuit(), true
	}
	spellings := []string{origin("https", key), origin("http", key)}
	if scheme, rest, ok := strings.Cut(key, "://"); ok {
		spellings = []string{origin(scheme, rest)}
	}
	for _, s := range spellings {
		if b, ok := t.group.Lookup(s); ok {
			return b.Circuit(), true
		}
	}
	return nil, false
}

// CloseIdleConnections closes the base RoundTripper's idle connections, if it has such a method.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// Close stops the circuits' health checks. Requests go on as before. It may be called more than once.
func (t *Transport) Close() error { return t.group.Close() }

// RoundTrip sends the request if the circuit of its origin admits it, and returns what the base RoundTripper returns: a
// response that counts as a Failure comes back as it is. A rejection is the error of the circuit, a *breaker.OpenError or
// breaker.ErrTooManyInFlight, unless an option answers it otherwise. After more than one attempt without a response the
// error is also a *breaker.RetryError. The request's body is closed in every case.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if t == nil || t.group == nil {
		panic("breakerhttp: nil or zero Transport; make one with NewTransport")
	}
	if req.URL == nil {
		closeBody(req)
		return nil, errNoURL
	}
	var own *perRequest
	if perRequestUsed.Load() {
		own = perRequestOf(req.Context())
	}
	if own == nil && t.plain && (safeMethod(req.Method) || !t.ownUsed.Load()) {
		return t.once(req)
	}
	x := exchange{t: t, req: req, ctx: req.Context(), replay: replay{req: req}}
	defer x.replay.close()
	if err := x.configure(own); err != nil {
		return nil, err
	}
	return x.run()
}

// once is the exchange of a Transport without policies: one attempt.
func (t *Transport) once(req *http.Request) (*http.Response, error) {
	sent := false
	defer func() {
		if !sent {
			closeBody(req)
		}
	}()
	br := t.breakerOf(req)
	b := &body{}
	if err := t.acquire(b, req.Context(), br.Circuit()); err != nil {
		if t.asResponse && rejection(err) {
			return unavailable(req, err), nil
		}
		return nil, err
	}
	sent = true
	var a attempt
	limit := timeoutOf(br)
	if limit == 0 && t.stall == 0 {
		t.send(b, req, 0, &a)
		return a.resp, a.err
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	b.extra().cancel = cancel
	t.send(b, req.WithContext(ctx), limit, &a)
	if a.resp != nil {
		a.resp.Request = req
	}
	return a.resp, a.err
}

// acquire asks a circuit to admit b. What is held by the body of a caller who has gone is free: that is seen to before the
// circuit is asked, so that a call which is admitted in the end counts no rejection.
func (t *Transport) acquire(b *body, ctx context.Context, c *breaker.Circuit) error {
	if !undisturbed(c) && ctx.Err() == nil && full(c.Refusal()) {
		t.waiting.look((*body).endNow)
	}
	return c.AcquireInto(ctx, &b.permit)
}

// full reports whether a rejection is due to other calls that have not ended.
func full(err error) bool {
	open, ok := err.(*breaker.OpenError)
	return ok && open.State == breaker.HalfOpen || err == breaker.ErrTooManyInFlight
}

// attempt is what came of one.
type attempt struct {
	resp    *http.Response
	err     error
	outcome breaker.Outcome
	cause   error // of a Failure: err, or the response's status
	sent    bool  // false: the circuit rejected it, or there was no body to send; err says which
	unsent  bool  // there was no connection: no host has seen anything of it
	final   bool  // another attempt would end in the same way
	bare    bool  // credentials were left behind
}

// send makes an admitted attempt, and settles it or leaves that to the response's body.
func (t *Transport) send(b *body, req *http.Request, limit time.Duration, a *attempt) {
	done := false
	var limiter *timer
	defer func() {
		if !done {
			if limiter != nil {
				limiter.stop()
			}
			b.permit.Abort()
			b.release()
			if a.resp != nil {
				_ = a.resp.Body.Close()
			}
		}
	}()
	a.sent = true
	//lint:ignore SA1019 http.Client sets it for every RoundTripper that is not net/http's own
	if gone := req.Cancel; gone != nil {
		b.extra().gone = gone
	}
	t.observe(b, limit)
	out := req
	if mayFail(req) {
		out = watchUpload(req, &b.extra().unread, b.more.upload)
	}
	var late bool
	if limit > 0 {
		limiter = startTimer(t.clock, limit, b.more.hostHas(limit), func() { b.more.cancel(errTimeout) })
		a.resp, a.err = t.base.RoundTrip(out)
		late = !limiter.stop()
	} else if a.resp, a.err = t.base.RoundTrip(out); a.err == nil && t.streams(b, a.resp) {
		b.attach(a.resp)
		t.waiting.add(b)
		done = true
		return
	}
	b.headersCame(t)
	var as *http.Request // which the base says it has sent
	if a.resp != nil {
		if as = a.resp.Request; as == out {
			a.resp.Request = req
		}
	}
	a.check(b.ctx(), late)
	late = late && a.err == errTimeout
	a.outcome, a.cause = t.judge(b, req, a, late)
	t.conclude(b, a, as)
	done = true
}

// streams reports whether an answer is the common one: a success whose body is to settle it, and nothing else to do.
func (t *Transport) streams(b *body, resp *http.Response) bool {
	return resp != nil && resp.StatusCode < 400 && hasBody(resp) &&
		t.classifier == nil && !t.atHeaders && b.circuit() != nil && b.more == nil
}

// check makes the base's answer one that keeps the contract: a response with a body, or an error.
func (a *attempt) check(caller context.Context, late bool) {
	if a.resp != nil && a.resp.Body == nil {
		a.resp.Body = http.NoBody
	}
	if a.resp != nil && a.err == nil && !late {
		return
	}
	switch ended := caller.Err(); {
	case late && ended == nil:
		a.refuse(errTimeout)
	case late && a.err == nil: // its context is dead, and so would its body be
		a.refuse(ended)
	case a.err != nil:
		a.refuse(a.err)
	case a.resp == nil:
		a.err = errNothing
	}
}

// refuse puts an error in the place of a response.
func (a *attempt) refuse(err error) {
	if a.resp != nil {
		_ = a.resp.Body.Close()
	}
	a.resp, a.err = nil, err
}

// judge classifies an attempt at its headers.
func (t *Transport) judge(b *body, req *http.Request, a *attempt, late bool) (o breaker.Outcome, cause error) {
	switch {
	case a.err != nil:
		o, cause = t.judgeError(b, req, a.err, late), withoutURL(a.err)
		a.unsent, a.final = noConnection(a.err), untrusted(a.err)
	case t.classifier != nil:
		o = valid(t.classifier(req, a.resp, nil))
	default:
		o = byStatus(a.resp.StatusCode)
		if t.ignore429 && a.resp.StatusCode == http.StatusTooManyRequests {
			o = breaker.Ignored
		}
	}
	if o == breaker.Failure && a.err == nil {
		cause = t.newStatusError(a.resp)
		a.final = a.resp.StatusCode == http.StatusNotImplemented || a.resp.StatusCode == http.StatusHTTPVersionNotSupported
	}
	return o, cause
}

// withoutURL is an error for logs, hooks and states: one that a client further in has put the request's URL around, and
// with it the query, is bared of it.
func withoutURL(err error) error {
	var u *url.Error
	if !errors.As(err, &u) || u.Err == nil {
		return err
	}
	inner := withoutURL(u.Err)
	if err == error(u) {
		return inner
	}
	if text := err.Error(); strings.Contains(text, u.URL) || strings.Contains(text, strconv.Quote(u.URL)) {
		return &bared{inner, err}
	}
	return err
}

// bared is an error whose own text holds a URL, with the text of what is inside.
type bared struct {
	error
	whole error
}

func (e *bared) Unwrap() error { return e.whole }

func (t *Transport) judgeError(b *body, req *http.Request, err error, late bool) breaker.Outcome {
	if late {
		return breaker.Failure
	}
	c := b.circuit()
	if c == nil {
		c = b.more.past
	}
	if o, ok := decided(c, b.callerCtx(), err); ok {
		return o
	}
	if b.unread() || unsendable(req, err) {
		return breaker.Ignored
	}
	if t.classifier != nil {
		return valid(t.classifier(req, nil, err))
	}
	return breaker.DefaultClassifier(err)
}

// byStatus is the table of the package's documentation.
func byStatus(code int) breaker.Outcome {
	switch {
	case code >= 500, code == http.StatusRequestTimeout, code == http.StatusTooManyRequests:
		return breaker.Failure
	case code >= 400:
		return breaker.Answered
	}
	return breaker.Success
}

// valid takes what a classifier returned for Failure where it is no Outcome.
func valid(o breaker.Outcome) breaker.Outcome {
	if o > breaker.Answered {
		return breaker.Failure
	}
	return o
}

// callerEnd is how the caller has ended the request, if so. http.Client's Timeout ends a request by its deprecated Cancel
// channel too, at the same moment as by its context.
func callerEnd(ctx context.Context, gone <-chan struct{}) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-gone:
	default:
		return nil
	}
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return context.Canceled
}

// conclude settles an attempt at its headers, or has the body do it.
func (t *Transport) conclude(b *body, a *attempt, as *http.Request) {
	b.record(a, as)
	streams := a.err == nil && hasBody(a.resp)
	if a.outcome == breaker.Success && streams && !t.atHeaders && b.circuit() != nil {
		b.attach(a.resp)
		t.waiting.add(b)
		return
	}
	b.settle(a.outcome, a.cause)
	if b.more == nil {
		return
	}
	if streams && (b.more.cancel != nil || b.more.keep != nil || b.more.stall > 0) {
		b.attach(a.resp)
		return
	}
	if b.more.keep != nil {
		b.complete()
	}
	b.release()
}

// hasBody reports whether there is anything to wait for: data, or only the end, which over HTTP/2 may come after the
// headers whatever these say. net/http gives NoBody where neither comes.
func hasBody(resp *http.Response) bool { return resp.Body != nil && resp.Body != http.NoBody }
