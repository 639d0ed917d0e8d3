package main

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The host gets the request as it was sent, without the control headers, and the caller the answer as it was given.
func TestForwarding(t *testing.T) {
	seen := make(chan *http.Request, 1)
	host := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		seen <- r
		w.Header().Set("X-Own", "yes")
		w.Header().Set("X-Rescued", "forged")
		w.WriteHeader(http.StatusTeapot)
		_, _ = w.Write(append([]byte("got "), body...))
	})
	b := newBench(t, nil, host)
	a := b.send(http.MethodPut, "tea", "X-Target-URL", "http://"+host+"/a%2Fb?q=1&q=2", "X-Circuit-Breaker", "on",
		"X-Retry-Count", "1", "X-Retry-Delay", "1ms", "X-Smart-Cache", "1m", "X-Attempt-Timeout", "9s", "X-Proxy-Timeout", "9s",
		"Authorization", "Bearer t", "X-Other", "1", "Connection", "X-Hop", "X-Hop", "1", "Expect", "100-continue")
	require.Equal(t, http.StatusTeapot, a.status)
	require.Equal(t, "got tea", a.body)
	require.Equal(t, "yes", a.header.Get("X-Own"))
	require.Empty(t, a.rescued)

	r := <-seen
	require.Equal(t, http.MethodPut, r.Method)
	require.Equal(t, "/a%2Fb?q=1&q=2", r.RequestURI)
	require.Equal(t, host, r.Host)
	require.Equal(t, "Bearer t", r.Header.Get("Authorization"))
	require.Equal(t, "1", r.Header.Get("X-Other"))
	for _, name := range append(controlHeaders, "X-Hop", "Expect", "X-Forwarded-For") {
		require.Empty(t, r.Header.Values(name), name)
	}
}

// X-Failover-URL is a whole URL; credentials stay with the host that they were meant for.
func TestFailoverURL(t *testing.T) {
	seen := make(chan *http.Request, 1)
	primary := newUpstream(t, "primary")
	primary.set(http.StatusBadGateway)
	backup := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		seen <- r
		_, _ = w.Write(body)
	})
	b := newBench(t, nil, primary.addr, backup)
	a := b.send(http.MethodPut, "again", "X-Target-URL", "http://"+primary.addr+"/v1/chat?a=1",
		"X-Failover-URL", "http://"+backup+"/v2/messages?b=2", "Authorization", "Bearer t")
	require.Equal(t, "again", a.body)
	require.Equal(t, "failover", a.rescued)
	r := <-seen
	require.Equal(t, "/v2/messages?b=2", r.RequestURI)
	require.Equal(t, backup, r.Host)
	require.NotContains(t, r.Header, "Authorization")
	require.Empty(t, r.Header.Values(headerFailover))
}

// Without X-Circuit-Breaker there is no circuit, however often the host fails.
func TestSwitch(t *testing.T) {
	up := newUpstream(t, "up")
	up.set(http.StatusServiceUnavailable)
	b := newBench(t, nil, up.addr)
	for range 10 {
		require.Equal(t, "up is down\n", b.send(http.MethodGet, "", "X-Target-URL", "http://"+up.addr).body)
	}
	require.Equal(t, 10, up.count())
	require.Nil(t, b.circuit(up.addr))
	for range 10 {
		b.send(http.MethodGet, "", "X-Target-URL", "http://"+up.addr, "X-Circuit-Breaker", "on")
	}
	require.Equal(t, 15, up.count())
	require.Equal(t, "open", b.state(up.addr))
}

// A retry is marked; what is not asked for does not happen.
func TestRetry(t *testing.T) {
	up := newUpstream(t, "up")
	b := newBench(t, func(s *settings) { s.clock = newLeapClock() }, up.addr)
	up.set(http.StatusOK, 503, 500)
	a := b.send(http.MethodGet, "", "X-Target-URL", "http://"+up.addr, "X-Retry-Count", "2")
	require.Equal(t, answer{200, "up, call 3", "retry", a.header}, a)
	up.set(http.StatusOK, 503)
	a = b.send(http.MethodGet, "", "X-Target-URL", "http://"+up.addr)
	require.Equal(t, answer{503, "up is down\n", "", a.header}, a)
}

// An answer is stored for those alone who ask for it, and given to those alone who send the same credentials.
func TestCacheIsApart(t *testing.T) {
	up := newUpstream(t, "up")
	b := newBench(t, nil, up.addr)
	get := func(headers ...string) answer {
		return b.send(http.MethodGet, "", append([]string{"X-Target-URL", "http://" + up.addr}, headers...)...)
	}
	get()
	get("X-Smart-Cache", "1m", "Authorization", "Bearer a")
	up.set(http.StatusServiceUnavailable)
	require.Equal(t, 503, get("X-Smart-Cache", "1m").status, "the first answer was not to be stored")
	require.Equal(t, 503, get("X-Smart-Cache", "1m", "Authorization", "Bearer b").status)
	require.Equal(t, 503, get("Authorization", "Bearer a").status, "not asked for")
	a := get("X-Smart-Cache", "1m", "Authorization", "Bearer a")
	require.Equal(t, answer{200, "up, call 2", "cache", a.header}, a)
}

// Callers who differ in a header that no list of ours names get their own answers, too.
func TestCacheIsApartByAnyHeader(t *testing.T) {
	up := newUpstream(t, "up")
	b := newBench(t, nil, up.addr)
	get := func(token string) answer {
		return b.send(http.MethodGet, "", "X-Target-URL", "http://"+up.addr, "X-Smart-Cache", "1m", "X-Session-Token", token)
	}
	alice := get("alice")
	up.set(http.StatusServiceUnavailable)
	require.Equal(t, 503, get("bob").status)
	require.Equal(t, alice.body, get("alice").body)
}

// The cache answers for the methods that have a body as for GET, and tells bodies apart.
func TestCacheMethods(t *testing.T) {
	up := newUpstream(t, "up")
	b := newBench(t, nil, up.addr)
	for method, rescued := range map[string]string{"GET": "cache", "POST": "cache", "PUT": "cache", "PATCH": "cache", "DELETE": ""} {
		t.Run(method, func(t *testing.T) {
			send := func(body string) answer {
				if method == http.MethodGet {
					body = ""
				}
				return b.send(method, body, "X-Target-URL", "http://"+up.addr+"/"+method, "X-Smart-Cache", "1m")
			}
			up.set(http.StatusOK)
			stored := send("1").body
			up.set(http.StatusServiceUnavailable)
			a := send("1")
			require.Equal(t, rescued, a.rescued)
			if rescued == "" {
				return
			}
			require.Equal(t, answer{200, stored, "cache", a.header}, a)
			require.NotEmpty(t, a.header.Get("Age"))
			if method != http.MethodGet {
				require.Empty(t, send("2").rescued, "another body")
			}
		})
	}
}

func TestOwnAnswers(t *testing.T) {
	up := newUpstream(t, "up")
	dead := refusedAddr(t)
	b := newBench(t, func(s *settings) { s.maxBody = 8 }, up.addr, dead)
	target := []string{"X-Target-URL", "http://" + up.addr}

	require.Equal(t, 413, b.send(http.MethodPost, "123456789", target...).status)
	req, err := http.NewRequest(http.MethodPost, b.url, io.MultiReader(strings.NewReader("123456789"))) // of unknown length
	require.NoError(t, err)
	req.Header.Set("X-Target-URL", target[1])
	resp, err := b.client.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, 413, resp.StatusCode)
	require.Equal(t, 501, b.send(http.MethodGet, "", append(target, "Connection", "Upgrade", "Upgrade", "websocket")...).status)

	whole := b.url
	b.url = whole + "path"
	require.Equal(t, 400, b.send(http.MethodGet, "", target...).status)
	b.url = whole + "?cb=on"
	require.Equal(t, 400, b.send(http.MethodGet, "", target...).status)
	b.url = whole
	require.Zero(t, up.count())

	require.Equal(t, 200, b.send(http.MethodPost, "12345678", target...).status)
	require.Equal(t, 502, b.send(http.MethodGet, "", "X-Target-URL", "http://"+dead, "X-Circuit-Breaker", "on").status)
	require.EqualValues(t, 1, b.circuit(dead).ConsecutiveFailures)
}

// Both timeouts end a host that hangs, and count; with something in the cache, that is the answer.
func TestTimeouts(t *testing.T) {
	for _, name := range []string{"X-Attempt-Timeout", "X-Proxy-Timeout"} {
		up := newUpstream(t, "up")
		b := newBench(t, nil, up.addr)
		get := func(headers ...string) answer {
			return b.send(http.MethodGet, "", append([]string{"X-Target-URL", "http://" + up.addr, "X-Circuit-Breaker", "on"}, headers...)...)
		}
		require.Equal(t, 200, get("X-Smart-Cache", "1m").status)
		release := up.hold()
		require.Equal(t, 504, get(name, "20ms").status)
		require.Equal(t, "cache", get(name, "20ms", "X-Smart-Cache", "1m").rescued)
		require.EqualValues(t, 2, b.circuit(up.addr).ConsecutiveFailures)
		release()
	}
}

// A stream's parts arrive as they are sent.
func TestStream(t *testing.T) {
	next := make(chan struct{})
	unblock := sync.OnceFunc(func() { close(next) })
	host := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: 1\n")
		_ = http.NewResponseController(w).Flush()
		<-next
		_, _ = io.WriteString(w, "data: 2\n")
	})
	defer unblock()
	b := newBench(t, nil, host)
	req, err := http.NewRequest(http.MethodGet, b.url, nil)
	require.NoError(t, err)
	req.Header.Set("X-Target-URL", "http://"+host)
	req.Header.Set("X-Circuit-Breaker", "on")
	resp, err := b.client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	in := bufio.NewReader(resp.Body)
	line, err := in.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "data: 1\n", line)
	unblock()
	line, err = in.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "data: 2\n", line)
}

// An answer that breaks off breaks off for the caller too, counts, and is logged.
func TestBrokenAnswer(t *testing.T) {
	host := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "not all")
	})
	b := newBench(t, nil, host)
	_, err := b.try(http.MethodGet, "", "X-Target-URL", "http://"+host, "X-Circuit-Breaker", "on")
	require.Error(t, err)
	require.EqualValues(t, 1, b.circuit(host).ConsecutiveFailures)
	b.eventually("a line in the log", func() bool { return strings.Contains(b.log.String(), `problem="the answer broke off"`) })
}

// A caller who has gone counts neither way.
func TestCallerGone(t *testing.T) {
	up := newUpstream(t, "up")
	release := up.hold()
	defer release()
	b := newBench(t, nil, up.addr)
	b.client.Timeout = 50 * time.Millisecond
	_, err := b.try(http.MethodGet, "", "X-Target-URL", "http://"+up.addr, "X-Circuit-Breaker", "on")
	require.Error(t, err)
	b.client.Timeout = patience
	b.eventually("ignored", func() bool {
		c := b.circuit(up.addr)
		return c != nil && c.Totals.Ignored == 1 && c.InFlight == 0
	})
	b.eventually("a line in the log", func() bool { return strings.Contains(b.log.String(), "status=499") })
}

// Neither the log nor /-/circuits shows what may be secret, whatever happens to a request.
func TestNoSecrets(t *testing.T) {
	up, backup := newUpstream(t, "up"), newUpstream(t, "backup")
	dead := refusedAddr(t)
	b := newBench(t, nil, up.addr, backup.addr, dead)
	up.set(http.StatusServiceUnavailable)
	for range 6 {
		for _, host := range []string{up.addr, dead} {
			b.send(http.MethodPost, "body-hunter2", "X-Target-URL", "http://"+host+"/path-hunter2?key=hunter2", "X-Circuit-Breaker", "on",
				"X-Failover-URL", "http://"+backup.addr+"/?key=hunter2", "Authorization", "Bearer hunter2", "Cookie", "s=hunter2",
				"X-Smart-Cache", "1m", "Idempotency-Key", "hunter2")
		}
		backup.set(http.StatusServiceUnavailable)
	}
	resp, err := b.client.Get(b.admin)
	require.NoError(t, err)
	defer resp.Body.Close()
	circuits, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Contains(t, string(circuits), `"name": "http://`+up.addr+`"`)
	require.Contains(t, string(circuits), `"state": "open"`)
	b.eventually("the log", func() bool { return strings.Count(b.log.String(), "msg=request") == 12 })
	require.NotContains(t, string(circuits), "hunter2")
	require.NotContains(t, b.log.String(), "hunter2")
	require.Contains(t, b.log.String(), "target=http://"+up.addr+" rescued=failover")
}

func baseOf(g *gateway) *http.Transport { return g.base.(*http.Transport) }
