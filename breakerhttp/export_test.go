package breakerhttp

import (
	"net/url"
	"time"
)

// TLSAddr is where CheckTLS dials.
func TLSAddr(host string) string { return tlsAddr(host) }

// ParseRetryAfter reads a Retry-After header.
func ParseRetryAfter(lines []string, now time.Time) (time.Duration, bool) {
	return retryAfter(lines, now)
}

// Origin is the key of a URL.
func Origin(u *url.URL) string { return originOf(u) }
