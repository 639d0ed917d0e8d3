package breakerhttp

import (
	"bufio"
	"io"
	"iter"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/breakerkit/breaker"
)

// Handler puts a circuit in front of next: while it is open, requests are answered with 503 and a Retry-After, and next
// is not called. A status of 500 or more and a panic are Failures (the panic goes on), 408 and 429 are Ignored, another 4xx is
// Answered, the rest is Success. Once the request's context is cancelled the outcome is Ignored, since the client has gone; a
// deadline on it, as http.TimeoutHandler sets one, is a Failure unless breaker.IgnoreCallerDeadline is given. A status that
// would be a Failure is Ignored where the client's body could not be read: broken chunks, or more than a
// http.MaxBytesHandler around this one allows. What a limit inside next refuses is not seen here; answer that with a 4xx.
//
// All requests share one circuit named handler, unless WithKey tells them apart: what a client sends, the Host header
// included, is no sound key by itself. It takes WithBreaker (without WithTimeout), WithKey and WithClassifier. The
// handler is also a breaker.Source.
func Handler(next http.Handler, opts ...Option) (http.Handler, error) {
	d := newDraft(forHandler, opts)
	if next == nil {
		d.fault("Handler", "next must not be nil")
	}
	h := &handler{next: next, group: d.group(), key: d.key, classifier: d.classifier}
	if h.group != nil && timeoutOf(h.group.Get(handlerKey)) != 0 {
		d.fault("WithBreaker", "WithTimeout is not an option of Handler; use http.TimeoutHandler")
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	return h, nil
}

const handlerKey = "handler"

type handler struct {
	next       http.Handler
	group      *breaker.Group[struct{}]
	key        func(*http.Request) string
	classifier func(*http.Request, *http.Response, error) breaker.Outcome
}

// Circuits yields the handler's circuits.
func (h *handler) Circuits() iter.Seq2[string, *breaker.Circuit] { return h.group.Circuits() }

// Close stops the circuits' health checks.
func (h *handler) Close() error { return h.group.Close() }

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := handlerKey
	if h.key != nil {
		if k := h.key(r); k != "" {
			key = k
		}
	}
	var p breaker.Permit
	err := h.group.Get(key).Circuit().AcquireInto(r.Context(), &p)
	if err != nil {
		refuse(w, err)
		return
	}
	c := &served{permit: &p, req: r, rec: &recorder{ResponseWriter: w}}
	in := r
	if r.Body != nil && r.Body != http.NoBody {
		in = watchUpload(r, &c.unread, nil)
	}
	done := false
	defer func() { h.settle(c, done) }()
	h.next.ServeHTTP(c.rec.wrap(), in)
	done = true
}

// refuse answers in the handler's place.
func refuse(w http.ResponseWriter, err error) {
	if s := rejectedFor(err); s > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(s, 10))
	}
	http.Error(w, http.StatusText(http.StatusServiceUnavailable), http.StatusServiceUnavailable)
}

// served is one request on its way through a Handler.
type served struct {
	permit *breaker.Permit
	req    *http.Request
	rec    *recorder
	unread atomic.Bool // the client's body could not be read
}

// settle classifies what the handler did. done is false after a panic or runtime.Goexit.
func (h *handler) settle(c *served, done bool) {
	p := c.permit
	ended := c.req.Context().Err()
	if ended != nil {
		circuit, ctx := admitted(p)
		if o, ok := decided(circuit, ctx, ended); ok {
			p.Settle(o, ended)
			return
		}
	}
	if !done {
		p.Abort()
		return
	}
	if ended != nil { // a deadline, which the server has set itself
		p.Settle(breaker.Failure, ended)
		return
	}
	defer p.Abort() // where the classifier panics; otherwise the second to come
	o := h.classify(c)
	var cause error
	if o == breaker.Failure {
		cause = &StatusError{StatusCode: c.rec.code()}
	}
	p.Settle(o, cause)
}

func (h *handler) classify(c *served) breaker.Outcome {
	code := c.rec.code()
	o := byServedStatus(code)
	if h.classifier != nil {
		resp := &http.Response{StatusCode: code, Header: c.rec.Header(), Body: http.NoBody, Request: c.req}
		o = valid(h.classifier(c.req, resp, nil))
	}
	if o == breaker.Failure && c.unread.Load() { // it is for what the client has sent
		return breaker.Ignored
	}
	return o
}

// byServedStatus is the table of a Handler: 408 and 429 are what it says of its client.
func byServedStatus(code int) breaker.Outcome {
	if code == http.StatusRequestTimeout || code == http.StatusTooManyRequests {
		return breaker.Ignored
	}
	return byStatus(code)
}

// recorder notes the status of a response on its way through.
type recorder struct {
	http.ResponseWriter
	status int
}

func (rec *recorder) code() int {
	if rec.status == 0 {
		return http.StatusOK
	}
	return rec.status
}

// WriteHeader notes the first final status; those before it inform only.
func (rec *recorder) WriteHeader(code int) {
	rec.ResponseWriter.WriteHeader(code) // which panics where code is none
	if rec.status == 0 && (code >= 200 || code == http.StatusSwitchingProtocols) {
		rec.status = code
	}
}

func (rec *recorder) Write(p []byte) (int, error) {
	if rec.status == 0 {
		rec.status = http.StatusOK
	}
	return rec.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (rec *recorder) Unwrap() http.ResponseWriter { return rec.ResponseWriter }

// wrap gives the recorder the optional methods that the writer behind it has, in the sets that net/http's have.
func (rec *recorder) wrap() http.ResponseWriter {
	f, flushes := rec.ResponseWriter.(http.Flusher)
	if !flushes {
		if hj, ok := rec.ResponseWriter.(http.Hijacker); ok {
			return &hijackOnlyRecorder{rec, hj}
		}
		return rec
	}
	if hj, ok := rec.ResponseWriter.(http.Hijacker); ok {
		return &hijackRecorder{flushRecorder{rec, f}, hj}
	}
	if p, ok := rec.ResponseWriter.(http.Pusher); ok {
		return &pushRecorder{flushRecorder{rec, f}, p}
	}
	return &flushRecorder{rec, f}
}

type flushRecorder struct {
	*recorder
	flusher http.Flusher
}

func (rec *flushRecorder) Flush() {
	if rec.status == 0 {
		rec.status = http.StatusOK
	}
	rec.flusher.Flush()
}

// FlushError is for http.ResponseController.
func (rec *flushRecorder) FlushError() error {
	if rec.status == 0 {
		rec.status = http.StatusOK
	}
	return http.NewResponseController(rec.ResponseWriter).Flush()
}

// hijackRecorder is over HTTP/1.1.
type hijackRecorder struct {
	flushRecorder
	hijacker http.Hijacker
}

func (rec *hijackRecorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return rec.hijacker.Hijack()
}

// hijackOnlyRecorder is over a writer of somebody else's.
type hijackOnlyRecorder struct {
	*recorder
	hijacker http.Hijacker
}

func (rec *hijackOnlyRecorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return rec.hijacker.Hijack()
}

// ReadFrom keeps the way open for sendfile. Where there was nothing to read, the status is still to be said.
func (rec *hijackRecorder) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(rec.ResponseWriter, r)
	if n > 0 && rec.status == 0 {
		rec.status = http.StatusOK
	}
	return n, err
}

// pushRecorder is over HTTP/2.
type pushRecorder struct {
	flushRecorder
	pusher http.Pusher
}

func (rec *pushRecorder) Push(target string, opts *http.PushOptions) error {
	return rec.pusher.Push(target, opts)
}
