package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakerhttp"
	"github.com/breakerkit/breaker/pool"
)

const chatPath = "/v1/chat/completions"

// provider is a member of the pool. Its settings change by a reload; its circuit stays.
type provider struct {
	name    string
	circuit *breaker.Circuit
	target  atomic.Pointer[target]
}

// target is where a provider is.
type target struct {
	providerSettings
	check func(context.Context) error
}

func (p *provider) aim(s providerSettings) { p.target.Store(&target{s, healthCheck(s)}) }

// healthy is the circuit's health check.
func (p *provider) healthy(ctx context.Context) error { return p.target.Load().check(ctx) }

// healthCheck is the lightest one that says something: it costs no tokens.
func healthCheck(s providerSettings) func(context.Context) error {
	u, err := url.Parse(s.url)
	switch {
	case err != nil:
		return func(context.Context) error { return err }
	case s.health != "":
		return breakerhttp.CheckHTTP(u.Scheme + "://" + u.Host + s.health)
	case u.Scheme == "https":
		return breakerhttp.CheckTLS(u.Host)
	case u.Port() == "":
		return breakerhttp.CheckTCP(net.JoinHostPort(u.Hostname(), "80"))
	}
	return breakerhttp.CheckTCP(u.Host)
}

// request makes a provider's request. Of the caller's headers it takes none: what they hold is not the provider's affair,
// and the key is ours.
func (t *target) request(ctx context.Context, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(t.url, "/")+chatPath, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if t.key != "" {
		req.Header.Set("Authorization", "Bearer "+t.key)
	}
	return req, nil
}

var (
	// errSlow is the error where a provider has kept us waiting.
	errSlow = errors.New("no byte in time")
	// errCallersFault is what a statusError is if every provider would say the same. Circuits ignore it.
	errCallersFault = errors.New("the request was wrong")
)

// statusError is an answer that is none.
type statusError struct {
	status int
	after  time.Duration
}

func (e *statusError) Error() string             { return fmt.Sprintf("status %d", e.status) }
func (e *statusError) RetryAfter() time.Duration { return e.after }
func (e *statusError) Is(target error) bool      { return target == errCallersFault && e.callersFault() }

func (e *statusError) callersFault() bool {
	return e.status/100 == 4 && e.status != http.StatusRequestTimeout && e.status != http.StatusTooManyRequests
}

// retryAfter reads the header in both of its forms; what is malformed is absent.
func retryAfter(h http.Header, now time.Time) time.Duration {
	v := h.Get("Retry-After")
	if n, err := strconv.ParseUint(v, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	if at, err := http.ParseTime(v); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}

// attempt asks one provider. It ends with the answer's last byte, so that the circuit knows of an answer that breaks off,
// and a probe has not succeeded before all of it is there. A failure is the last one where there is no way back: when the
// caller has got a part of an answer, or has waited long enough for one.
func (c *call) attempt(ctx context.Context, p *provider) error {
	c.provider, c.health, c.tries = p.name, p.circuit.State(), c.tries+1
	mine, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	left := c.s.failoverLimit - c.now().Sub(c.start)
	dog := watch(c.clock, min(left, c.s.firstByte), func() { cancel(errSlow) })
	defer dog.stop()

	err := c.ask(mine, p, dog)
	switch {
	case err == nil:
	case c.begun && ctx.Err() != nil: // the caller has gone, which says nothing against the provider
		err = nil
	case ctx.Err() == nil && context.Cause(mine) == errSlow:
		err = errSlow
	}
	c.logAttempt(err)
	if c.begun || c.now().Sub(c.start) >= c.s.failoverLimit {
		return pool.Stop(err)
	}
	return err
}

func (c *call) ask(ctx context.Context, p *provider, dog *watchdog) error {
	req, err := p.target.Load().request(ctx, c.body)
	if err != nil {
		return err
	}
	resp, err := c.client.Do(req)
	if err != nil {
		var u *url.Error // which repeats the URL
		if errors.As(err, &u) {
			err = u.Err
		}
		return err
	}
	defer resp.Body.Close()
	failed := &statusError{status: resp.StatusCode}
	if resp.StatusCode < 400 || failed.callersFault() {
		err := c.pass(resp, dog)
		if resp.StatusCode < 400 || err != nil {
			return err
		}
		return failed
	}
	failed.after = retryAfter(resp.Header, c.now())
	return failed
}

// pass sends the answer on, part by part as it comes. Until the first part is there, another provider can take over;
// never after it.
func (c *call) pass(resp *http.Response, dog *watchdog) error {
	part := make([]byte, 16<<10)
	for {
		n, err := resp.Body.Read(part)
		if n > 0 || err == io.EOF {
			dog.pat(c.s.idle)
			c.begin(resp)
			if c.send(part[:n]) != nil {
				return nil // the caller has gone
			}
		}
		if err == io.EOF {
			c.whole = true
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// watchdog barks when it has not been patted for too long.
type watchdog struct {
	pats chan time.Duration
	done chan struct{}
}

func watch(clock breaker.Clock, first time.Duration, bark func()) *watchdog {
	d := &watchdog{make(chan time.Duration), make(chan struct{})}
	late := clock.After(first)
	go func() {
		for {
			select {
			case next := <-d.pats:
				late = clock.After(next)
			case <-late:
				bark()
				late = nil
			case <-d.done:
				return
			}
		}
	}()
	return d
}

func (d *watchdog) pat(next time.Duration) { d.pats <- next }
func (d *watchdog) stop()                  { close(d.done) }
