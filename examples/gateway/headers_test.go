package main

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseControl(t *testing.T) {
	s := defaultSettings()
	require.NoError(t, s.allow.Set("a.example:80,b.example:443,127.0.0.1:8080"))
	const target = "http://a.example/rates?base=EUR"
	for _, c := range []struct {
		name    string
		headers []string // besides X-Target-URL
		want    func(*control)
	}{
		{"nothing", nil, func(*control) {}},
		{"on", []string{"X-Circuit-Breaker", "on"}, func(c *control) { c.breaker = true }},
		{"true", []string{"x-circuit-breaker", " True "}, func(c *control) { c.breaker = true }},
		{"off", []string{"X-Circuit-Breaker", "off"}, func(*control) {}},
		{"false", []string{"X-Circuit-Breaker", "false"}, func(*control) {}},
		{"no retries", []string{"X-Retry-Count", "0"}, func(*control) {}},
		{"most retries", []string{"X-Retry-Count", "10"}, func(c *control) { c.retries = 10 }},
		{"delay", []string{"X-Retry-Delay", "500ms"}, func(c *control) { c.delay = 500 * time.Millisecond }},
		{"longest delay", []string{"X-Retry-Delay", "10s"}, func(c *control) { c.delay = 10 * time.Second }},
		{"cache", []string{"X-Smart-Cache", "3600s"}, func(c *control) { c.cache = time.Hour }},
		{"attempt", []string{"X-Attempt-Timeout", "1.5s"}, func(c *control) { c.attempt = 1500 * time.Millisecond }},
		{"overall", []string{"X-Proxy-Timeout", "30s"}, func(c *control) { c.overall = 30 * time.Second }},
		{"shorter overall", []string{"X-Proxy-Timeout", "2s"}, func(c *control) { c.overall = 2 * time.Second }},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := http.Header{}
			h.Set("X-Target-URL", target)
			for i := 0; i < len(c.headers); i += 2 {
				h.Add(c.headers[i], c.headers[i+1])
			}
			got, err := parseControl(h, s.limits, s.allow)
			require.NoError(t, err)
			want := control{target: got.target, delay: 100 * time.Millisecond, overall: 30 * time.Second}
			c.want(&want)
			require.Equal(t, want, got)
			require.Equal(t, target, got.target.String())
		})
	}
}

// refused is control headers that must be answered by the gateway itself, and how.
var refused = []struct {
	name    string
	status  int
	says    string
	headers []string // HOST stands for an upstream that is allowed
}{
	{"no target", 400, "X-Target-URL is missing", nil},
	{"empty target", 400, "X-Target-URL must", []string{"X-Target-URL", ""}},
	{"relative target", 400, "X-Target-URL must", []string{"X-Target-URL", "/rates"}},
	{"other scheme", 400, "X-Target-URL must", []string{"X-Target-URL", "file:///etc/passwd"}},
	{"no host", 400, "X-Target-URL must", []string{"X-Target-URL", "http:///rates"}},
	{"opaque", 400, "X-Target-URL must", []string{"X-Target-URL", "http:HOST"}},
	{"password", 400, "Authorization", []string{"X-Target-URL", "http://u:hunter2@HOST/"}},
	{"user", 400, "Authorization", []string{"X-Target-URL", "http://hunter2@HOST/"}},
	{"fragment", 400, "fragment", []string{"X-Target-URL", "http://HOST/#hunter2"}},
	{"space", 400, "ASCII", []string{"X-Target-URL", "http://HOST/?q=hunter2 HTTP/1.1"}},
	{"not ASCII", 400, "ASCII", []string{"X-Target-URL", "http://HOST/ü"}},
	{"bad escape", 400, "ASCII", []string{"X-Target-URL", "http://HOST/%zz"}},
	{"two targets", 400, "once", []string{"X-Target-URL", "http://HOST/", "X-Target-URL", "http://HOST/"}},
	{"host not allowed", 403, "allow-list", []string{"X-Target-URL", "http://hunter2.example/"}},
	{"port not allowed", 403, "allow-list", []string{"X-Target-URL", "http://127.0.0.1/"}},
	{"address in another spelling", 403, "allow-list", []string{"X-Target-URL", "http://2130706433/"}},
	{"breaker", 400, "X-Circuit-Breaker must", []string{"X-Target-URL", "http://HOST/", "X-Circuit-Breaker", "onn"}},
	{"empty breaker", 400, "X-Circuit-Breaker must", []string{"X-Target-URL", "http://HOST/", "X-Circuit-Breaker", ""}},
	{"breaker twice", 400, "once", []string{"X-Target-URL", "http://HOST/", "X-Circuit-Breaker", "on", "X-Circuit-Breaker", "off"}},
	{"11 retries", 400, "0 to 10", []string{"X-Target-URL", "http://HOST/", "X-Retry-Count", "11"}},
	{"negative retries", 400, "0 to 10", []string{"X-Target-URL", "http://HOST/", "X-Retry-Count", "-1"}},
	{"signed retries", 400, "0 to 10", []string{"X-Target-URL", "http://HOST/", "X-Retry-Count", "+1"}},
	{"half a retry", 400, "0 to 10", []string{"X-Target-URL", "http://HOST/", "X-Retry-Count", "1.5"}},
	{"retries without end", 400, "0 to 10", []string{"X-Target-URL", "http://HOST/", "X-Retry-Count", "99999999999999999999"}},
	{"delay without unit", 400, "X-Retry-Delay must", []string{"X-Target-URL", "http://HOST/", "X-Retry-Delay", "5"}},
	{"delay 0", 400, "above 0", []string{"X-Target-URL", "http://HOST/", "X-Retry-Delay", "0s"}},
	{"negative delay", 400, "above 0", []string{"X-Target-URL", "http://HOST/", "X-Retry-Delay", "-1s"}},
	{"long delay", 400, "at most 10s", []string{"X-Target-URL", "http://HOST/", "X-Retry-Delay", "11s"}},
	{"cache without unit", 400, "X-Smart-Cache must", []string{"X-Target-URL", "http://HOST/", "X-Smart-Cache", "600"}},
	{"cache for ever", 400, "at most 24h", []string{"X-Target-URL", "http://HOST/", "X-Smart-Cache", "25h"}},
	{"attempt timeout", 400, "at most 30s", []string{"X-Target-URL", "http://HOST/", "X-Attempt-Timeout", "31s"}},
	{"proxy timeout", 400, "at most 30s", []string{"X-Target-URL", "http://HOST/", "X-Proxy-Timeout", "31s"}},
	{"failover not allowed", 403, "X-Failover-URL", []string{"X-Target-URL", "http://HOST/", "X-Failover-URL", "http://hunter2.example/"}},
	{"failover is no URL", 400, "X-Failover-URL", []string{"X-Target-URL", "http://HOST/", "X-Failover-URL", "hunter2"}},
	{"failover with password", 400, "X-Failover-URL", []string{"X-Target-URL", "http://HOST/", "X-Failover-URL", "http://u:hunter2@HOST/"}},
	{"failover to itself", 400, "another host", []string{"X-Target-URL", "http://HOST/a", "X-Failover-URL", "http://HOST/b"}},
}

// What is refused never reaches an upstream, makes no circuit, and is not repeated in the answer or the log.
func TestRefused(t *testing.T) {
	up := newUpstream(t, "up")
	b := newBench(t, nil, up.addr)
	for _, c := range refused {
		t.Run(c.name, func(t *testing.T) {
			headers := make([]string, len(c.headers))
			for i, h := range c.headers {
				headers[i] = strings.ReplaceAll(h, "HOST", up.addr)
			}
			a := b.send(http.MethodGet, "", headers...)
			require.Equal(t, c.status, a.status, a.body)
			require.Contains(t, a.body, c.says)
			require.NotContains(t, a.body, "hunter2")
		})
	}
	require.Zero(t, up.count())
	require.Nil(t, b.circuit(up.addr))
	require.NotContains(t, b.log.String(), "hunter2")
}

// Where a request is forwarded, it goes where it may, and no control header goes along.
func FuzzHeaders(f *testing.F) {
	f.Add("http://a.example/x?y=z", "on", "3", "500ms", "600s", "http://b.example:8080/", "1s", "30s")
	f.Add("HTTP://A.EXAMPLE.:80/%2e%2e", "true", "0", "1ns", "", "", "", "")
	f.Add("http://a.example@b.example:8080", "off", "10", "1h", "-1s", "//b.example", "0", "1e9s")
	f.Add("http://[::1]:80/", "ON", "+1", ".5s", "1m", "http://127.0.0.1:8080", "1µs", "2s")
	f.Add("http://a.example\\@127.0.0.1/", "", "11", "5", "5", "https://b.example:8080", "31s", "31s")

	base := &stubBase{}
	s := defaultSettings()
	s.logger = slog.New(slog.DiscardHandler)
	s.base, s.clock = base, newLeapClock()
	require.NoError(f, s.allow.Set("a.example:80,b.example:8080,127.0.0.1:8080,[::1]:80"))
	g, err := newGateway(s)
	require.NoError(f, err)
	names := []string{"X-Target-URL", "X-Circuit-Breaker", "X-Retry-Count", "X-Retry-Delay", "X-Smart-Cache", "X-Failover-URL",
		"X-Attempt-Timeout", "X-Proxy-Timeout"}

	f.Fuzz(func(t *testing.T, target, on, count, delay, cache, failover, attempt, overall string) {
		h := http.Header{}
		for i, v := range []string{target, on, count, delay, cache, failover, attempt, overall} {
			if v != "" {
				h.Set(names[i], v)
			}
		}
		c, err := parseControl(h, s.limits, s.allow)
		if err != nil {
			var r *refusal
			require.ErrorAs(t, err, &r)
			require.Contains(t, []int{400, 403}, r.status)
			require.Equal(t, control{}, c)
		} else {
			requireWithin(t, &c, s.limits, s.allow)
			// What is left for time to do is none of this test's business.
			h.Del("X-Attempt-Timeout")
			h.Del("X-Proxy-Timeout")
		}
		base.start(t, s.allow)
		req := httptest.NewRequest(http.MethodGet, "/", nil)
		req.Header = h
		w := httptest.NewRecorder()
		g.ServeHTTP(w, req)
		if err != nil {
			require.Zero(t, base.calls)
			require.Contains(t, []int{400, 403}, w.Code)
			return
		}
		require.LessOrEqual(t, base.calls, 1+s.limits.retries+1)
	})
}

func requireWithin(t *testing.T, c *control, l limits, allow allowList) {
	t.Helper()
	require.True(t, allow.allows(c.target) && (c.failover == nil || allow.allows(c.failover)))
	require.True(t, c.retries >= 0 && c.retries <= l.retries)
	require.True(t, c.delay > 0 && c.delay <= l.delay)
	require.True(t, c.cache >= 0 && c.cache <= l.cache)
	require.True(t, c.attempt >= 0 && c.attempt <= l.timeout)
	require.True(t, c.overall > 0 && c.overall <= l.timeout)
	require.Nil(t, c.target.User)
}

// stubBase stands for the network. Its hosts are always down.
type stubBase struct {
	t     *testing.T
	allow allowList
	calls int
}

func (b *stubBase) start(t *testing.T, allow allowList) { b.t, b.allow, b.calls = t, allow, 0 }

func (b *stubBase) RoundTrip(req *http.Request) (*http.Response, error) {
	b.calls++
	require.True(b.t, b.allow.allows(req.URL), "sent to %v", req.URL)
	require.Equal(b.t, req.URL.Host, req.Host)
	for _, name := range controlHeaders {
		require.Empty(b.t, req.Header.Values(name))
	}
	if b.calls%2 == 0 {
		return nil, errors.New("down")
	}
	return &http.Response{StatusCode: 503, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("down"))}, nil
}
