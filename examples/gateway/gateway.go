package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakerhttp"
)

const (
	rescueHeader = "X-Rescued"

	// statusClientGone stands in the log for a caller who did not wait for the answer.
	statusClientGone = 499

	bodyTimeout = 30 * time.Second // for a request's body to arrive
)

// settings is what flags, the demo and tests configure.
type settings struct {
	allow       allowList
	failures    int           // that open a circuit
	window      time.Duration // within which they count
	open        time.Duration // how long it stays open
	retryUnsafe bool
	jitter      float64
	limits      limits
	maxBody     int64
	logger      *slog.Logger

	// For tests.
	clock    breaker.Clock // nil: real time
	resolver *net.Resolver // nil: the system's
	base     http.RoundTripper
}

func defaultSettings() settings {
	return settings{
		allow:    allowList{},
		failures: 5,
		window:   time.Minute,
		open:     15 * time.Second,
		jitter:   0.5,
		limits:   limits{retries: 10, delay: 10 * time.Second, cache: 24 * time.Hour, timeout: 30 * time.Second},
		maxBody:  1 << 20,
		logger:   slog.Default(),
	}
}

// cacheHeaders are the credentials with which answers are kept: a caller gets them back only with the credentials that they
// were given for. All other headers that may choose an answer tell answers apart without being named.
var cacheHeaders = []string{"Authorization", "Cookie", "X-Api-Key"}

func (s *settings) options() []breakerhttp.Option {
	circuits := []breaker.Option{
		breaker.WithFailureThreshold(s.failures),
		breaker.WithFailureWindow(s.window),
		breaker.WithOpenTimeout(s.open),
		breaker.WithHalfOpenProbes(1),
		breaker.WithSuccessThreshold(1),
		breaker.WithIgnore(errNotAllowed), // a refusal of ours says nothing about the host
		breaker.WithLogger(s.logger),
	}
	if s.clock != nil {
		circuits = append(circuits, breaker.WithClock(s.clock))
	}
	opts := []breakerhttp.Option{
		breakerhttp.WithBreaker(circuits...),
		breakerhttp.WithRetry(breaker.AddJitter(s.jitter)),
		breakerhttp.WithResponseCache(nil, s.limits.cache, cacheHeaders...),
		breakerhttp.OpenAsResponse(),
		breakerhttp.WithRescueHeader(rescueHeader),
	}
	if s.retryUnsafe {
		opts = append(opts, breakerhttp.RetryUnsafe())
	}
	return opts
}

// gateway forwards requests to where their control headers say.
type gateway struct {
	settings
	circuits *breakerhttp.Transport
	proxy    *httputil.ReverseProxy
}

func newGateway(s settings) (*gateway, error) {
	if s.base == nil {
		s.base = newBase(s.allow, s.resolver)
	}
	t, err := breakerhttp.NewTransport(failoverURL{s.base}, s.options()...)
	if err != nil {
		return nil, err
	}
	g := &gateway{settings: s, circuits: t}
	g.proxy = &httputil.ReverseProxy{
		Rewrite:      rewrite,
		Transport:    t, // a RoundTripper follows no redirects: they go back to the caller
		ErrorHandler: answerError,
		ErrorLog:     slog.NewLogLogger(s.logger.Handler(), slog.LevelWarn),
	}
	return g, nil
}

// newBase is the way to the network. It takes no Proxy from the environment: that would be dialled in place of the
// target, past the allow-list.
func newBase(allow allowList, resolver *net.Resolver) *http.Transport {
	return &http.Transport{
		DialContext:            allow.dialContext(resolver),
		ForceAttemptHTTP2:      true,
		DisableCompression:     true, // bodies pass as they are
		MaxIdleConnsPerHost:    32,
		IdleConnTimeout:        90 * time.Second,
		TLSHandshakeTimeout:    10 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
	}
}

// Close ends what the gateway keeps open.
func (g *gateway) Close() error {
	g.circuits.CloseIdleConnections()
	return g.circuits.Close()
}

// failoverKey is the context key of X-Failover-URL.
type failoverKey struct{}

// failoverURL completes what breakerhttp's failover begins: that changes the host and keeps the path, while
// X-Failover-URL is a whole URL.
type failoverURL struct{ http.RoundTripper }

func (f failoverURL) RoundTrip(req *http.Request) (*http.Response, error) {
	to, _ := req.Context().Value(failoverKey{}).(*url.URL)
	if to != nil && req.URL.Host == to.Host && req.URL.Scheme == to.Scheme {
		req = req.WithContext(req.Context())
		req.URL = to
	}
	return f.RoundTripper.RoundTrip(req)
}

// CloseIdleConnections is how http.Client and the Transport find the base's.
func (f failoverURL) CloseIdleConnections() {
	if c, ok := f.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// ServeHTTP answers one request. The access log's line is written in every case, also where an answer breaks off, which
// ReverseProxy shows by a panic.
func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rec := &recorder{ResponseWriter: w}
	began := time.Now()
	var c control
	done := false
	defer func() {
		if !done {
			rec.problem = "the answer broke off"
		}
		g.logAccess(r, rec, &c, time.Since(began))
	}()

	c, err := g.accept(w, r)
	if err != nil {
		rec.refuse(err)
	} else {
		g.forward(rec, r, &c)
	}
	done = true
}

// forward sends the request on, with all that its controls ask for, and answers it.
func (g *gateway) forward(rec *recorder, r *http.Request, c *control) {
	ctx, cancel := context.WithTimeout(r.Context(), c.overall)
	defer cancel()
	ctx = context.WithValue(c.perRequest(ctx), targetKey{}, c.target)
	g.proxy.ServeHTTP(rec, r.WithContext(ctx))
}

// accept reads a request: its control headers, and then its body, which must be at hand for every attempt.
func (g *gateway) accept(w http.ResponseWriter, r *http.Request) (control, error) {
	c, err := parseControl(r.Header, g.limits, g.allow)
	switch {
	case err != nil:
		return c, err
	case r.URL.Path != "/" || r.URL.RawQuery != "":
		return control{}, &refusal{http.StatusBadRequest, "the path and query to call belong into " + headerTarget}
	case r.Method == http.MethodConnect || r.Header.Get("Upgrade") != "":
		return control{}, &refusal{http.StatusNotImplemented, "tunnels and upgrades are not forwarded"}
	}
	return c, g.buffer(w, r)
}

func (g *gateway) buffer(w http.ResponseWriter, r *http.Request) error {
	if r.ContentLength > g.maxBody {
		return &refusal{http.StatusRequestEntityTooLarge, "the body is too large"}
	}
	// The server's own ReadTimeout would go on running after the body, and end the request.
	conn := http.NewResponseController(w)
	_ = conn.SetReadDeadline(time.Now().Add(bodyTimeout))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, g.maxBody))
	_ = conn.SetReadDeadline(time.Time{})

	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return &refusal{http.StatusRequestEntityTooLarge, "the body is too large"}
	case err != nil:
		return &refusal{http.StatusBadRequest, "the body did not arrive"}
	}
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	r.Body, _ = r.GetBody()
	r.ContentLength, r.TransferEncoding, r.Trailer = int64(len(body)), nil, nil
	if len(body) == 0 {
		r.Body, r.GetBody = http.NoBody, nil
	}
	return nil
}

// targetKey is the context key of X-Target-URL.
type targetKey struct{}

// rewrite makes the request that is forwarded.
func rewrite(p *httputil.ProxyRequest) {
	target := *p.In.Context().Value(targetKey{}).(*url.URL)
	p.Out.URL, p.Out.Host = &target, target.Host
	for _, name := range controlHeaders {
		p.Out.Header.Del(name)
	}
	p.Out.Header.Del("Expect") // the body is here already
}

// answerError answers where there is no response to pass on.
func answerError(w http.ResponseWriter, r *http.Request, err error) {
	rec := w.(*recorder)
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, errNotAllowed):
		rec.refuse(&refusal{http.StatusForbidden, "the host has an address that is not on the allow-list"})
	case r.Context().Err() == context.Canceled:
		rec.refuse(&refusal{statusClientGone, "the caller has gone"})
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		rec.refuse(&refusal{http.StatusGatewayTimeout, "the host did not answer in time"})
	default:
		rec.refuse(&refusal{http.StatusBadGateway, "the host did not answer"})
	}
}

// recorder notes what has been answered.
type recorder struct {
	http.ResponseWriter
	status  int
	bytes   int64
	problem string // why the gateway answered by itself
}

// Unwrap lets http.ResponseController find the writer below.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader notes the final status; informational ones go before it.
func (w *recorder) WriteHeader(status int) {
	if w.status < http.StatusOK {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// refuse answers without the host.
func (w *recorder) refuse(err error) {
	r := &refusal{http.StatusInternalServerError, "internal error"}
	errors.As(err, &r)
	w.problem = r.text
	http.Error(w, "gateway: "+r.text, r.status)
}

// logAccess writes a line that holds no secret: of the target its origin alone, since paths and queries may be keys.
func (g *gateway) logAccess(r *http.Request, w *recorder, c *control, took time.Duration) {
	attrs := []slog.Attr{slog.String("method", r.Method), slog.Int("status", w.status), slog.Int64("bytes", w.bytes),
		slog.Duration("took", took)}
	if c.target != nil {
		attrs = append(attrs, slog.String("target", c.target.Scheme+"://"+hostPort(c.target)))
	}
	if by := w.Header().Get(rescueHeader); by != "" {
		attrs = append(attrs, slog.String("rescued", by))
	}
	if w.problem != "" {
		attrs = append(attrs, slog.String("problem", w.problem))
	}
	g.logger.LogAttrs(context.WithoutCancel(r.Context()), slog.LevelInfo, "request", attrs...)
}

// circuitView is a circuit as /-/circuits shows it. The text of its last failure is left out: it may quote the host.
type circuitView struct {
	Name                string         `json:"name"`
	State               string         `json:"state"`
	Since               time.Time      `json:"since,omitzero"`
	Until               time.Time      `json:"until,omitzero"`
	InFlight            int64          `json:"in_flight"`
	ConsecutiveFailures uint64         `json:"consecutive_failures"`
	LastFailureAt       time.Time      `json:"last_failure_at,omitzero"`
	Totals              breaker.Totals `json:"totals"`
}

// admin is the handler of the listener for operators.
func (g *gateway) admin() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /-/circuits", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		out := json.NewEncoder(w)
		out.SetIndent("", "  ")
		_ = out.Encode(g.view())
	})
	return mux
}

func (g *gateway) view() []circuitView {
	all := []circuitView{} // an empty list is [], not null
	for _, c := range g.circuits.Circuits() {
		s := c.Snapshot()
		all = append(all, circuitView{s.Name, s.State.String(), s.Since, s.Until, s.InFlight, s.ConsecutiveFailures,
			s.LastFailureAt, s.Totals})
	}
	slices.SortFunc(all, func(a, b circuitView) int { return strings.Compare(a.Name, b.Name) })
	return all
}
