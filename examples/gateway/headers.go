package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/breakerkit/breaker/breakerhttp"
)

// The control headers. Durations are Go's: 500ms, 10s, 1h.
const (
	headerTarget         = "X-Target-URL"      // where the request goes, in full; required
	headerBreaker        = "X-Circuit-Breaker" // on or true; otherwise the request goes past the circuit
	headerRetryCount     = "X-Retry-Count"     // attempts after the first; 0 without it
	headerRetryDelay     = "X-Retry-Delay"     // before the first retry, twice as long before each next one; 100ms
	headerSmartCache     = "X-Smart-Cache"     // how long the answer may stand in for later ones that fail
	headerFailover       = "X-Failover-URL"    // where else the request goes, in full
	headerAttemptTimeout = "X-Attempt-Timeout" // of each attempt, until the answer's headers
	headerProxyTimeout   = "X-Proxy-Timeout"   // of everything, the answer's body included; 30s
)

// controlHeaders are for the gateway alone: it strips them from what it forwards.
var controlHeaders = []string{headerTarget, headerBreaker, headerRetryCount, headerRetryDelay, headerSmartCache,
	headerFailover, headerAttemptTimeout, headerProxyTimeout}

const defaultRetryDelay = 100 * time.Millisecond

// limits are the most that control headers may ask for.
type limits struct {
	retries int
	delay   time.Duration
	cache   time.Duration
	timeout time.Duration // of X-Proxy-Timeout its default too
}

// control is what a request's control headers say.
type control struct {
	target   *url.URL
	failover *url.URL // nil: none
	breaker  bool
	retries  int
	delay    time.Duration
	cache    time.Duration // 0: off
	attempt  time.Duration // 0: no limit of its own
	overall  time.Duration
}

// A refusal answers a request that is not forwarded. Its text never repeats a header's value, which may be a secret.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return r.text }

// parseControl reads the control headers. Whatever is wrong with one refuses the request: a control that was mistyped
// and then ignored would be missed only in the outage it was meant for.
func parseControl(h http.Header, l limits, allow allowList) (control, error) {
	p := parser{header: h}
	c := control{
		target:   p.url(headerTarget),
		failover: p.url(headerFailover),
		breaker:  p.toggle(headerBreaker),
		retries:  p.count(headerRetryCount, l.retries),
		delay:    p.duration(headerRetryDelay, defaultRetryDelay, l.delay),
		cache:    p.duration(headerSmartCache, 0, l.cache),
		attempt:  p.duration(headerAttemptTimeout, 0, l.timeout),
		overall:  p.duration(headerProxyTimeout, l.timeout, l.timeout),
	}
	if p.err == nil {
		p.err = c.check(allow)
	}
	if p.err != nil {
		return control{}, p.err
	}
	return c, nil
}

// check is what the URLs must be together, and on the allow-list.
func (c *control) check(allow allowList) error {
	switch {
	case c.target == nil:
		return &refusal{http.StatusBadRequest, headerTarget + " is missing"}
	case !allow.allows(c.target):
		return &refusal{http.StatusForbidden, headerTarget + ": its host and port are not on the allow-list"}
	case c.failover == nil:
		return nil
	case !allow.allows(c.failover):
		return &refusal{http.StatusForbidden, headerFailover + ": its host and port are not on the allow-list"}
	case hostPort(c.failover) == hostPort(c.target):
		// It would be the circuit that has just failed.
		return &refusal{http.StatusBadRequest, headerFailover + " must name another host or port than " + headerTarget}
	}
	return nil
}

// perRequest puts the controls into a context for the Transport.
func (c *control) perRequest(ctx context.Context) context.Context {
	opts := []breakerhttp.RequestOption{
		breakerhttp.Retries(c.retries, c.delay),
		breakerhttp.Cache(c.cache),
		breakerhttp.AttemptTimeout(c.attempt),
	}
	if !c.breaker {
		opts = append(opts, breakerhttp.NoBreaker())
	}
	if c.failover != nil {
		origin := url.URL{Scheme: c.failover.Scheme, Host: c.failover.Host}
		opts = append(opts, breakerhttp.Failover(origin.String()))
	}
	ctx = context.WithValue(ctx, failoverKey{}, c.failover)
	return breakerhttp.PerRequest(ctx, opts...)
}

// parser reads headers and remembers the first thing that is wrong.
type parser struct {
	header http.Header
	err    error
}

func (p *parser) fault(name, format string, args ...any) {
	if p.err == nil {
		p.err = &refusal{http.StatusBadRequest, name + " " + fmt.Sprintf(format, args...)}
	}
}

// value is a header's only value. One that is there twice is refused: which of the two was meant?
func (p *parser) value(name string) (v string, ok bool) {
	values := p.header.Values(name)
	if len(values) == 0 {
		return "", false
	}
	if len(values) > 1 {
		p.fault(name, "must be given once")
		return "", false
	}
	return strings.Trim(values[0], " \t"), true
}

func (p *parser) toggle(name string) bool {
	v, ok := p.value(name)
	switch strings.ToLower(v) {
	case "on", "true":
		return true
	case "off", "false":
		return false
	}
	if ok {
		p.fault(name, "must be on, true, off or false")
	}
	return false
}

func (p *parser) count(name string, most int) int {
	v, ok := p.value(name)
	if !ok {
		return 0
	}
	n, err := strconv.ParseUint(v, 10, 31)
	if err != nil || int(n) > most {
		p.fault(name, "must be a whole number from 0 to %d", most)
		return 0
	}
	return int(n)
}

func (p *parser) duration(name string, absent, most time.Duration) time.Duration {
	v, ok := p.value(name)
	if !ok {
		return absent
	}
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 || d > most {
		p.fault(name, "must be a duration with its unit, such as 500ms or 10s, above 0 and at most %v", most)
		return absent
	}
	return d
}

// url reads an absolute URL. Userinfo is refused: it would be a second way for credentials, past the check for those
// that must not go to another host.
func (p *parser) url(name string) *url.URL {
	v, ok := p.value(name)
	if !ok {
		return nil
	}
	u, err := url.Parse(v)
	switch {
	case err != nil || strings.ContainsFunc(v, func(c rune) bool { return c <= ' ' || c >= 0x7f }):
		p.fault(name, "must be a URL, everything but ASCII percent-encoded")
	case u.Scheme != "http" && u.Scheme != "https" || u.Opaque != "" || u.Hostname() == "":
		p.fault(name, "must start with http:// or https:// and a host")
	case u.User != nil:
		p.fault(name, "must not hold a user or password; use the Authorization header")
	case strings.Contains(v, "#"):
		p.fault(name, "must have no fragment")
	default:
		return u
	}
	return nil
}
