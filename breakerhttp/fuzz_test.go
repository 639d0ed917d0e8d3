package breakerhttp_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker/breakerhttp"
)

func TestOrigin(t *testing.T) {
	for in, want := range map[string]string{
		"https://api.example.com/x":          "https://api.example.com",
		"https://API.Example.COM:443":        "https://api.example.com",
		"HTTPS://api.example.com.":           "https://api.example.com",
		"https://api.example.com.:443":       "https://api.example.com",
		"http://api.example.com:80?x=1":      "http://api.example.com",
		"http://api.example.com:443":         "http://api.example.com:443",
		"https://api.example.com:80":         "https://api.example.com:80",
		"http://user:pw@api.example.com:":    "http://api.example.com",
		"http://[::1]":                       "http://[::1]",
		"http://[::1]:80":                    "http://[::1]",
		"http://[2001:DB8::1]:8080":          "http://[2001:db8::1]:8080",
		"http://[0:0:0:0:0:0:0:1]:8080":      "http://[::1]:8080",
		"http://[::0001]:8080":               "http://[::1]:8080",
		"http://[::FFFF:127.0.0.1]:8080":     "http://127.0.0.1:8080",
		"http://[::ffff:7f00:1]":             "http://127.0.0.1",
		"http://[FE80:0::1%25en0]:80":        "http://[fe80::1%en0]",
		"http://h:080":                       "http://h",
		"http://h:00443":                     "http://h:443",
		"https://h:00443":                    "https://h",
		"http://h:0":                         "http://h:0",
		"http://127.0.0.1:8080/a/b?c#d":      "http://127.0.0.1:8080",
		"http://xn--bcher-kva.example:8080/": "http://xn--bcher-kva.example:8080",
	} {
		u, err := url.Parse(in)
		require.NoError(t, err)
		require.Equal(t, want, breakerhttp.Origin(u), in)
	}
	require.Equal(t, "http://h", breakerhttp.Origin(&url.URL{Scheme: "http", Host: "me:hunter2@h/p?q=hunter2"}))
}

func FuzzOrigin(f *testing.F) {
	for _, s := range []string{"https://API.example.com.:443/x?y#z", "http://u:p@[::1]:80", "http://h:", "http://:80", "http://..:80", "http://[::1%25eth0]:443", "http://[::ffff:0:1]:080", "http://h:00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u, err := url.Parse(s)
		if err != nil || u.Host == "" {
			return
		}
		key := breakerhttp.Origin(u)
		if key != strings.ToLower(key) {
			t.Errorf("%q: not lower case: %q", s, key)
		}
		if i := strings.Index(key, "://"); strings.ContainsAny(key[i+3:], "/?#@") {
			t.Errorf("%q: more than an origin: %q", s, key)
		}
		again := *u
		again.User, again.Path, again.RawQuery, again.Fragment = url.UserPassword("u", "p"), "/other", "q=1", "f"
		again.Scheme, again.Host = strings.ToUpper(u.Scheme), u.Host
		if got := breakerhttp.Origin(&again); got != key {
			t.Errorf("%q: %q and %q", s, key, got)
		}
		if !strings.HasPrefix(u.Host, "[") && strings.Count(u.Host, ":") > 1 {
			return // nobody can dial that
		}
		if back, err := url.Parse(key); err == nil {
			if got := breakerhttp.Origin(back); got != key {
				t.Errorf("%q: not stable: %q, then %q", s, key, got)
			}
		}
	})
}

func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"5", "-5", "1.5", "", "soon", "999999999999999999999", "Fri, 31 Dec 1999 23:59:59 GMT", "Friday, 31-Dec-99 23:59:59 GMT", "Fri Dec 31 23:59:59 1999", "Fri, 31 Dec 99999 23:59:59 GMT"} {
		f.Add(s, int64(1_700_000_000))
	}
	f.Fuzz(func(t *testing.T, s string, now int64) {
		d, ok := breakerhttp.ParseRetryAfter([]string{s}, time.Unix(now, 0))
		if d < 0 {
			t.Errorf("%q: %v", s, d)
		}
		if !ok && d != 0 {
			t.Errorf("%q: %v without being valid", s, d)
		}
		trimmed := strings.Trim(s, " \t")
		if digits := trimmed != "" && strings.Trim(trimmed, "0123456789") == ""; digits && !ok {
			t.Errorf("%q: digits are valid", s)
		}
		both, ok2 := breakerhttp.ParseRetryAfter([]string{"nonsense", s}, time.Unix(now, 0))
		if both != d || ok2 != ok {
			t.Errorf("%q: a malformed line in front changes it", s)
		}
	})
}
