package breakerhttp

import (
	"net/http"
	"strings"
	"time"
)

// cacheControl is the directives of a Cache-Control header, in lower case, without the quotes of their values.
type cacheControl map[string]string

func directives(h http.Header) cacheControl {
	var all cacheControl
	for _, line := range h["Cache-Control"] {
		for d := range strings.SplitSeq(line, ",") {
			name, value, _ := strings.Cut(d, "=")
			if name = strings.ToLower(strings.TrimSpace(name)); name == "" {
				continue
			}
			if all == nil {
				all = make(cacheControl)
			}
			if _, twice := all[name]; !twice {
				all[name] = strings.Trim(strings.TrimSpace(value), `"`)
			}
		}
	}
	return all
}

func (c cacheControl) has(names ...string) bool {
	for _, name := range names {
		if _, ok := c[name]; ok {
			return true
		}
	}
	return false
}

// seconds is a directive's number of seconds. One that is malformed is 0: what is not understood allows nothing.
func (c cacheControl) seconds(name string) (d time.Duration, ok bool) {
	value, ok := c[name]
	d, _ = seconds(value)
	return d, ok
}

// lifetime is how long from now an answer may be given without asking its host, ttl at most; 0: it must not be kept.
// RFC 9111 5.2.2: not at all after no-store, private and no-cache; only while it is fresh after must-revalidate,
// proxy-revalidate and s-maxage. RFC 5861: stale-if-error limits how long after that. With serveStale only no-store and
// private count.
func lifetime(h http.Header, ttl time.Duration, now time.Time, serveStale bool) time.Duration {
	cc := directives(h)
	switch {
	case cc.has("no-store", "private"):
		return 0
	case serveStale:
		return ttl
	case cc.has("no-cache"), len(cc) == 0 && pragmaNoCache(h):
		return 0
	}
	left := freshness(h, cc) - currentAge(h, now)
	if cc.has("must-revalidate", "proxy-revalidate", "s-maxage") {
		return max(0, min(ttl, left))
	}
	if more, ok := cc.seconds("stale-if-error"); ok {
		return max(0, min(ttl, left+min(more, most)))
	}
	return ttl
}

func pragmaNoCache(h http.Header) bool {
	for _, line := range h["Pragma"] {
		for d := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(d), "no-cache") {
				return true
			}
		}
	}
	return false
}

// most keeps sums of header values from overflowing.
const most = 100 * 365 * 24 * time.Hour

// freshness is how long an answer is fresh by its own headers, from when it was made.
func freshness(h http.Header, cc cacheControl) time.Duration {
	for _, name := range []string{"s-maxage", "max-age"} {
		if d, ok := cc.seconds(name); ok {
			return min(d, most)
		}
	}
	expires, err := http.ParseTime(h.Get("Expires"))
	if err != nil {
		return 0
	}
	made, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return 0
	}
	return min(max(0, expires.Sub(made)), most)
}

// currentAge is how old an answer is that has just come.
func currentAge(h http.Header, now time.Time) time.Duration {
	said, _ := seconds(strings.TrimSpace(h.Get("Age")))
	made, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return min(said, most)
	}
	return min(max(said, now.Sub(made), 0), most)
}

// takesOld reports whether a request takes an answer of some age.
func takesOld(h http.Header, age time.Duration) bool {
	h = canonical(h)
	cc := directives(h)
	if cc.has("no-cache", "no-store") || len(cc) == 0 && pragmaNoCache(h) {
		return false
	}
	d, ok := cc.seconds("max-age")
	return !ok || age <= d
}
