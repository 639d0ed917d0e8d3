package breakerhttp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// CheckTCP is a health check for breaker.WithHealthCheck: a connection to addr, host and port, can be made. It costs the
// dependency little, and says little: that somebody listens.
func CheckTCP(addr string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// A CheckOption configures [CheckHTTP] and [CheckTLS].
type CheckOption interface{ applyCheck(*check) }

type checkOption func(*check)

func (o checkOption) applyCheck(c *check) { o(c) }

// check is how a host is asked.
type check struct {
	client   *http.Client
	statuses []int
	header   http.Header
}

func newCheck(opts []CheckOption) *check {
	c := &check{header: make(http.Header)}
	for _, o := range opts {
		if o != nil {
			o.applyCheck(c)
		}
	}
	return c
}

// CheckStatus names the statuses that are good. Default: any 2xx. CheckTLS does not look at it.
func CheckStatus(codes ...int) CheckOption {
	return checkOption(func(c *check) { c.statuses = append(c.statuses, codes...) })
}

// CheckHeader sets a header of the check's request; Host sets its host. CheckTLS does not look at it.
func CheckHeader(name, value string) CheckOption {
	return checkOption(func(c *check) { c.header.Set(name, value) })
}

// CheckClient makes the check by a client: for its trust (a private CA, a certificate of its own), its proxy or its dialling.
// Where its Transport is a *http.Transport, or nil, the check takes a copy of it that keeps no connections: one kept from before
// the outage would prove nothing. CheckTLS takes the TLS configuration from it, and needs such a Transport. Redirects are not followed.
func CheckClient(client *http.Client) CheckOption {
	return checkOption(func(c *check) { c.client = client })
}

// transport is the check's own copy of its client's transport; nil if that is of another kind.
func (c *check) transport() *http.Transport {
	if c.client == nil || c.client.Transport == nil {
		return &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, ForceAttemptHTTP2: true}
	}
	t, ok := c.client.Transport.(*http.Transport)
	if !ok {
		return nil
	}
	t = t.Clone()
	t.DisableKeepAlives = true
	return t
}

// httpClient is the client of the check's requests.
func (c *check) httpClient() *http.Client {
	client := &http.Client{}
	if c.client != nil {
		*client = *c.client
	}
	if t := c.transport(); t != nil {
		client.Transport = t
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return client
}

var errNoTLSConfig = errors.New("breakerhttp: health check: CheckTLS needs a client whose Transport is a *http.Transport")

// CheckTLS is a health check: a TLS handshake with host succeeds, its certificate included. The port is 443 unless host
// names one; an https URL will do as well.
func CheckTLS(host string, opts ...CheckOption) func(context.Context) error {
	addr := tlsAddr(host)
	t := newCheck(opts).transport()
	return func(ctx context.Context) error {
		if t == nil {
			return errNoTLSConfig
		}
		d := tls.Dialer{Config: t.TLSClientConfig}
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// tlsAddr is where to dial.
func tlsAddr(host string) string {
	if strings.Contains(host, "://") {
		if u, err := url.Parse(host); err == nil {
			host = u.Host
		}
	}
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), "443")
}

// CheckHTTP is a health check: a GET of target answers with one of the statuses that CheckStatus names, or with any 2xx.
// It follows no redirects, and makes a new connection each time: one kept from before the outage would prove nothing.
func CheckHTTP(target string, opts ...CheckOption) func(context.Context) error {
	c := newCheck(opts)
	client := c.httpClient()
	return func(ctx context.Context) error { return checkHTTP(ctx, client, target, c) }
}

func checkHTTP(ctx context.Context, client *http.Client, target string, c *check) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return errors.New("breakerhttp: health check: is no URL")
	}
	req.Header = c.header.Clone()
	if host := req.Header.Get("Host"); host != "" {
		req.Host = host
		req.Header.Del("Host")
	}
	resp, err := client.Do(req)
	if err != nil {
		var u *url.Error // whose text repeats the URL, and the query with it
		if errors.As(err, &u) {
			err = u.Err
		}
		return fmt.Errorf("breakerhttp: health check: %w", err)
	}
	defer discard(resp)
	if slices.Contains(c.statuses, resp.StatusCode) || len(c.statuses) == 0 && resp.StatusCode/100 == 2 {
		return nil
	}
	return fmt.Errorf("breakerhttp: health check: status %d", resp.StatusCode)
}
