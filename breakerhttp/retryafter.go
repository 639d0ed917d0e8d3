package breakerhttp

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// StatusError stands for a response that counted as Failure: hooks, the circuit's Cause and RetryIf see it. The caller
// gets the response.
type StatusError struct {
	StatusCode int
	after      time.Duration
}

// Error names the status.
func (e *StatusError) Error() string {
	return fmt.Sprintf("breakerhttp: status %d %s", e.StatusCode, http.StatusText(e.StatusCode))
}

// RetryAfter is how long the host asked to be left alone, by what [WithWait] describes; 0 otherwise.
func (e *StatusError) RetryAfter() time.Duration { return e.after }

// newStatusError makes one, with what the response asks for.
func (t *Transport) newStatusError(resp *http.Response) *StatusError {
	e := &StatusError{StatusCode: resp.StatusCode}
	if t.wait != nil {
		e.after = max(0, t.wait(resp))
	}
	if e.after == 0 && limited(resp) {
		e.after = wait(resp.Header, t.now)
	}
	return e
}

// limited reports whether a response may say how long its host wants to be left alone.
func limited(resp *http.Response) bool {
	return resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable
}

// wait is what the headers ask for; 0: nothing.
func wait(h http.Header, now func() time.Time) time.Duration {
	for _, name := range []string{"Retry-After-Ms", "X-Ms-Retry-After-Ms"} {
		for _, line := range h[name] {
			if d, ok := decimal(strings.Trim(line, " \t"), time.Millisecond); ok {
				return d
			}
		}
	}
	if lines := h["Retry-After"]; len(lines) > 0 {
		d, _ := retryAfter(lines, now())
		return d
	}
	return 0
}

// RateLimitReset is a function for [WithWait]: with status 429 or 503, how long until the limits are reset that a response tells of in
// X-RateLimit-Reset and RateLimit-Reset headers, with or without a suffix such as -Requests or -Tokens. Of several it is
// the latest of those whose Remaining header is 0, or of all where none is. Their values are durations as Go writes them (1s, 6m0s), seconds,
// or a time in seconds since 1970. 0 where there are none.
func RateLimitReset(resp *http.Response) time.Duration {
	if !limited(resp) {
		return 0
	}
	now := time.Now()
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		now = date
	}
	var latest, exhausted time.Duration
	for name, values := range canonical(resp.Header) {
		prefix, suffix, ok := strings.Cut(name, "Ratelimit-Reset")
		if !ok || prefix != "" && prefix != "X-" || suffix != "" && suffix[0] != '-' || len(values) == 0 {
			continue
		}
		d := untilReset(strings.TrimSpace(values[0]), now)
		latest = max(latest, d)
		if strings.TrimSpace(resp.Header.Get(prefix+"Ratelimit-Remaining"+suffix)) == "0" {
			exhausted = max(exhausted, d)
		}
	}
	if exhausted > 0 {
		return exhausted
	}
	return latest
}

// untilReset reads a reset's time.
func untilReset(s string, now time.Time) time.Duration {
	if d, err := time.ParseDuration(s); err == nil {
		return max(0, d)
	}
	d, ok := decimal(s, time.Second)
	const year = 365 * 24 * time.Hour
	if ok && d > year { // nobody waits for so long: it is a time
		return max(0, time.Unix(int64(d/time.Second), 0).Sub(now))
	}
	return d
}

// decimal reads a number of units that may have a fraction.
func decimal(s string, unit time.Duration) (d time.Duration, ok bool) {
	if s == "" || strings.Trim(s, "0123456789.") != "" {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, false
	}
	if f *= float64(unit); f >= math.MaxInt64 {
		return math.MaxInt64, true
	}
	return time.Duration(f), true
}

// retryAfter reads the first valid line of a Retry-After header: seconds, or a date in any of HTTP's three forms. A date
// that has passed is 0; what is malformed is absent.
func retryAfter(lines []string, now time.Time) (d time.Duration, ok bool) {
	for _, line := range lines {
		line = strings.Trim(line, " \t")
		if d, ok := seconds(line); ok {
			return d, true
		}
		if at, err := http.ParseTime(line); err == nil {
			return max(0, at.Sub(now)), true
		}
	}
	return 0, false
}

// seconds reads digits. More than fit are the most that do.
func seconds(s string) (d time.Duration, ok bool) {
	if s == "" {
		return 0, false
	}
	const most = math.MaxInt64 / int64(time.Second)
	n := int64(0)
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = min(n*10+int64(c-'0'), most)
	}
	return time.Duration(n) * time.Second, true
}

// wholeSeconds is a wait as a Retry-After header, rounded up: a caller that comes back then is not early.
func wholeSeconds(d time.Duration) int64 {
	n := int64(d / time.Second)
	if d%time.Second > 0 {
		n++
	}
	return n
}
