package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/pool"
)

const (
	circuitsPath = "/-/circuits"
	bodyTimeout  = 30 * time.Second // for a request's body to arrive
)

// router answers chat requests by whichever provider is well.
type router struct {
	log    *slog.Logger
	clock  breaker.Clock
	hooks  breaker.Hooks
	client *http.Client
	mux    *http.ServeMux

	live atomic.Pointer[live]

	reloading sync.Mutex // held while live is replaced
}

// live is what is in force. It is replaced as a whole.
type live struct {
	settings
	pool      *pool.Pool[*provider]
	providers map[string]*provider
}

// options are for tests and the demo.
type options struct {
	log   *slog.Logger
	clock breaker.Clock // nil: real time
	hooks breaker.Hooks
}

type realTime struct{}

func (realTime) Now() time.Time                         { return time.Now() }
func (realTime) After(d time.Duration) <-chan time.Time { return time.After(d) }

func newRouter(s settings, o options) (*router, error) {
	r := &router{log: o.log, clock: o.clock, hooks: o.hooks, mux: http.NewServeMux()}
	if r.clock == nil {
		r.clock = realTime{}
	}
	r.client = &http.Client{
		Transport:     &http.Transport{MaxIdleConnsPerHost: 32, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 64 << 10},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	r.mux.HandleFunc("POST "+chatPath, r.chat)
	r.mux.HandleFunc("GET "+circuitsPath, r.circuits)
	r.live.Store(&live{providers: map[string]*provider{}})
	return r, r.reload(s)
}

// Close ends the health checks and what is kept open.
func (r *router) Close() error {
	r.client.CloseIdleConnections()
	l := r.live.Load()
	errs := []error{l.pool.Close()}
	for _, p := range l.providers {
		errs = append(errs, p.circuit.Close())
	}
	return errors.Join(errs...)
}

// ServeHTTP answers those who call this machine by its own names. A page in a browser here whose name was made to resolve
// to a loopback address would still say that name.
func (r *router) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	host := req.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	if (err != nil || !ip.IsLoopback()) && !strings.EqualFold(host, "localhost") {
		refuse(w, http.StatusMisdirectedRequest, "the router is called by its loopback address alone")
		return
	}
	r.mux.ServeHTTP(w, req)
}

// call is one request under way.
type call struct {
	*router
	s     *settings
	w     http.ResponseWriter
	body  []byte
	start time.Time

	provider string        // that was asked last
	health   breaker.State // of its circuit at that time
	tries    int
	status   int
	begun    bool // the caller has got something: there is no way back
	whole    bool // the caller has got all of it
}

func (r *router) chat(w http.ResponseWriter, req *http.Request) {
	l := r.live.Load()
	body, ok := readBody(w, req, int64(l.maxBody))
	if !ok {
		return
	}
	c := &call{router: r, s: &l.settings, w: w, body: body, start: r.clock.Now()}
	_, err := pool.Do(req.Context(), l.pool, func(ctx context.Context, p *provider) (struct{}, error) {
		return struct{}{}, c.attempt(ctx, p)
	})
	c.finish(req.Context(), err)
}

// readBody reads what every provider may have to be sent. A page elsewhere cannot send JSON without the browser's asking
// us first, which we do not answer.
func readBody(w http.ResponseWriter, req *http.Request, most int64) ([]byte, bool) {
	if kind, _, _ := mime.ParseMediaType(req.Header.Get("Content-Type")); kind != "application/json" {
		refuse(w, http.StatusUnsupportedMediaType, "the Content-Type must be application/json")
		return nil, false
	}
	conn := http.NewResponseController(w)
	_ = conn.SetReadDeadline(time.Now().Add(bodyTimeout))
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, most))
	_ = conn.SetReadDeadline(time.Time{})
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		refuse(w, http.StatusRequestEntityTooLarge, "the body is too large")
	case err != nil:
		refuse(w, http.StatusBadRequest, "the body did not arrive")
	case !json.Valid(body):
		refuse(w, http.StatusBadRequest, "the body is no JSON")
	default:
		return body, true
	}
	return nil, false
}

func (c *call) now() time.Time { return c.clock.Now() }

// begin sends the answer's headers, once.
func (c *call) begin(resp *http.Response) {
	if c.begun {
		return
	}
	c.begun, c.status = true, resp.StatusCode
	h := c.w.Header()
	if kind := resp.Header.Get("Content-Type"); kind != "" {
		h.Set("Content-Type", kind)
	}
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	c.debugHeaders()
	c.w.WriteHeader(resp.StatusCode)
}

// debugHeaders tell who answered and why: for those who run the router, not for those who use it.
func (c *call) debugHeaders() {
	if !c.s.debug {
		return
	}
	h := c.w.Header()
	h.Set(c.s.debugPrefix+"Strategy", c.s.strategy)
	if c.begun {
		h.Set(c.s.debugPrefix+"Provider", c.provider)
		h.Set(c.s.debugPrefix+"Health", c.health.String())
	}
}

// send passes a part on at once. A caller who does not take it is given up after a while.
func (c *call) send(part []byte) error {
	conn := http.NewResponseController(c.w)
	_ = conn.SetWriteDeadline(time.Now().Add(c.s.idle))
	if _, err := c.w.Write(part); err != nil {
		return err
	}
	return conn.Flush()
}

// finish answers where no provider has, and cuts an answer that broke off: its end would look like an end.
func (c *call) finish(ctx context.Context, err error) {
	var none *pool.UnavailableError
	switch {
	case c.whole, c.begun && err == nil:
	case c.begun:
		c.logRequest(err)
		panic(http.ErrAbortHandler)
	case ctx.Err() != nil:
		c.status = 499 // the caller has gone; for the log
	case errors.As(err, &none):
		c.unavailable(none)
	case errors.Is(err, errSlow):
		c.fail(http.StatusGatewayTimeout, "no provider has answered in time")
	default:
		c.fail(http.StatusBadGateway, "no provider has answered")
	}
	c.logRequest(err)
}

// unavailable says when to come back.
func (c *call) unavailable(err *pool.UnavailableError) {
	if d := err.RetryAfter(); d > 0 {
		c.w.Header().Set("Retry-After", strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10))
	}
	c.fail(http.StatusServiceUnavailable, "no provider is available")
}

func (c *call) fail(status int, text string) {
	c.status = status
	c.debugHeaders()
	refuse(c.w, status, text)
}

// refuse answers in the form that chat clients know.
func refuse(w http.ResponseWriter, status int, text string) {
	type problem struct {
		Message string `json:"message"`
		Type    string `json:"type"`
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]problem{"error": {text, "router_error"}})
}

// logAttempt tells what the provider really said: what comes out at the end may not show it.
func (c *call) logAttempt(err error) {
	attrs := []slog.Attr{slog.String("provider", c.provider), slog.String("health", c.health.String())}
	var s *statusError
	switch {
	case errors.As(err, &s):
		attrs = append(attrs, slog.Int("status", s.status), slog.Duration("retry_after", s.after))
	case err != nil:
		attrs = append(attrs, slog.String("problem", err.Error()))
	default:
		attrs = append(attrs, slog.Int("status", c.status))
	}
	c.log.LogAttrs(context.Background(), slog.LevelDebug, "attempt", attrs...)
}

func (c *call) logRequest(err error) {
	attrs := []slog.Attr{slog.Int("status", c.status), slog.String("provider", c.provider), slog.Int("attempts", c.tries),
		slog.Duration("took", c.now().Sub(c.start))}
	if err != nil {
		attrs = append(attrs, slog.String("problem", strings.ReplaceAll(err.Error(), "\n", "; ")))
	}
	c.log.LogAttrs(context.Background(), slog.LevelInfo, "request", attrs...)
}

// circuits lists them for an operator. What a provider said in its errors is left out.
func (r *router) circuits(w http.ResponseWriter, _ *http.Request) {
	all := []breaker.Snapshot{}
	for _, p := range r.live.Load().providers {
		s := p.circuit.Snapshot()
		s.LastFailure = ""
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b breaker.Snapshot) int { return strings.Compare(a.Name, b.Name) })
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(all)
}
