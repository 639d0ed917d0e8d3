package breakerhttp

import (
	"fmt"
	"math"
	"net/http"
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

// RetryAfter is how long the host asked to be left alone, by a Retry-After header with status 429 or 503; 0 otherwise.
func (e *StatusError) RetryAfter() time.Duration { return e.after }

func newStatusError(resp *http.Response, now func() time.Time) *StatusError {
	e := &StatusError{StatusCode: resp.StatusCode}
	if e.StatusCode == http.StatusTooManyRequests || e.StatusCode == http.StatusServiceUnavailable {
		if lines := resp.Header["Retry-After"]; len(lines) > 0 {
			e.after, _ = retryAfter(lines, now())
		}
	}
	return e
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
