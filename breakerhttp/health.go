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

// CheckTLS is a health check: a TLS handshake with host succeeds, its certificate included. The port is 443 unless host
// names one; an https URL will do as well.
func CheckTLS(host string) func(context.Context) error { return checkTLS(host, nil) }

func checkTLS(host string, config *tls.Config) func(context.Context) error {
	addr := tlsAddr(host)
	return func(ctx context.Context) error {
		d := tls.Dialer{Config: config}
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

// CheckHTTP is a health check: a GET of target answers with one of the statuses, or with any 2xx where none is given.
// It follows no redirects, and makes a new connection each time: one kept from before the outage would prove nothing.
func CheckHTTP(target string, statuses ...int) func(context.Context) error {
	statuses = slices.Clone(statuses)
	client := &http.Client{
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, ForceAttemptHTTP2: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return func(ctx context.Context) error { return checkHTTP(ctx, client, target, statuses) }
}

func checkHTTP(ctx context.Context, client *http.Client, target string, statuses []int) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return errors.New("breakerhttp: health check: is no URL")
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
	if slices.Contains(statuses, resp.StatusCode) || len(statuses) == 0 && resp.StatusCode/100 == 2 {
		return nil
	}
	return fmt.Errorf("breakerhttp: health check: status %d", resp.StatusCode)
}
