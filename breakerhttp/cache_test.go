package breakerhttp_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakerhttp"
)

// cached is a Transport with a cache of a minute over a base that answers until it is down.
type cached struct {
	*breakerhttp.Transport
	down   atomic.Bool
	answer func(*http.Request) *http.Response
}

func newCached(t *testing.T, opts ...breakerhttp.Option) *cached {
	c := &cached{answer: func(*http.Request) *http.Response { return answer(200, nil) }}
	rt := roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		if c.down.Load() {
			return nil, errBoom
		}
		return c.answer(r), nil
	})
	c.Transport = transport(t, rt, append([]breakerhttp.Option{breakerhttp.WithBreaker(breaker.WithFailureThreshold(1 << 20)),
		breakerhttp.WithResponseCache(nil, time.Minute)}, opts...)...)
	return c
}

// outage makes a request while the host is down; ok says whether an answer from before came.
func (c *cached) outage(t *testing.T, req *http.Request) (body string, ok bool) {
	t.Helper()
	c.down.Store(true)
	defer c.down.Store(false)
	_, body, err := send(t, c, req)
	return body, err == nil
}

func with(req *http.Request, header ...string) *http.Request {
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return req
}

func requireSend(t *testing.T, rt http.RoundTripper, req *http.Request) {
	t.Helper()
	_, _, err := send(t, rt, req)
	require.NoError(t, err)
}

// Whatever in a request may choose its answer is part of the key, whether headers are named or not. What only identifies a
// message is not.
func TestCacheTellsCallersApart(t *testing.T) {
	get := func(header ...string) *http.Request {
		return with(request(t, http.MethodGet, "http://up.example/me", nil), header...)
	}
	for _, opts := range [][]breakerhttp.Option{nil, {breakerhttp.WithResponseCache(nil, time.Minute, "Accept", "Authorization")}} {
		for _, name := range []string{"X-Session-Token", "X-User-Id", "X-Tenant", "Accept-Language", "Accept", "X-Http-Method-Override", "If-None-Match", "Anything-Else"} {
			c := newCached(t, opts...)
			requireSend(t, c, get(name, "alice"))
			_, ok := c.outage(t, get(name, "bob"))
			require.False(t, ok, name)
			_, ok = c.outage(t, get())
			require.False(t, ok, name)
			_, ok = c.outage(t, get(name, "alice"))
			require.True(t, ok, name)
		}
		for _, name := range []string{"User-Agent", "X-Request-Id", "Traceparent", "Date"} {
			c := newCached(t, opts...)
			requireSend(t, c, get(name, "1"))
			_, ok := c.outage(t, get(name, "2"))
			require.True(t, ok, name)
		}
	}
}

// Naming a header adds to the key, leaving one out is an option of its own, and a function adds what is not in the
// request.
func TestCacheKeyOptions(t *testing.T) {
	type user struct{}
	req := func(ctx context.Context, header ...string) *http.Request {
		return with(request(t, http.MethodGet, "http://up.example/", nil).WithContext(ctx), header...)
	}
	ctx := t.Context()
	c := newCached(t, breakerhttp.WithResponseCache(nil, time.Minute, "user-agent"))
	requireSend(t, c, req(ctx, "User-Agent", "1"))
	_, ok := c.outage(t, req(ctx, "User-Agent", "2"))
	require.False(t, ok)

	c = newCached(t, breakerhttp.CacheKeyWithout("x-tenant"))
	requireSend(t, c, req(ctx, "X-Tenant", "1"))
	_, ok = c.outage(t, req(ctx, "X-Tenant", "2"))
	require.True(t, ok)
	c.answer = func(*http.Request) *http.Response { return answer(200, nil, "Vary", "X-Tenant") }
	requireSend(t, c, req(ctx, "X-Tenant", "1"))
	_, ok = c.outage(t, req(ctx, "X-Tenant", "2"))
	require.False(t, ok, "the host says that it matters")

	c = newCached(t, breakerhttp.CacheKey(func(r *http.Request) string { s, _ := r.Context().Value(user{}).(string); return s }))
	requireSend(t, c, req(context.WithValue(ctx, user{}, "alice")))
	_, ok = c.outage(t, req(context.WithValue(ctx, user{}, "bob")))
	require.False(t, ok)

	_, err := breakerhttp.NewTransport(nil, breakerhttp.WithResponseCache(nil, time.Minute, "X-A"), breakerhttp.CacheKeyWithout("x-a", "b c"), breakerhttp.CacheKey(nil))
	for _, want := range []string{"X-A is named by WithResponseCache too", `"b c"`, "CacheKey: must not be nil"} {
		require.ErrorContains(t, err, want)
	}
}

// An answer to a request to which the base has added a token belongs to that token.
func TestCacheBehindABaseThatAddsTokens(t *testing.T) {
	type token struct{}
	up := serve(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Header.Get("Authorization")) })
	plain := base(t)
	down := false
	tr := transport(t, roundTripper(func(r *http.Request) (*http.Response, error) {
		if down {
			return nil, errBoom
		}
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", r.Context().Value(token{}).(string))
		return plain.RoundTrip(r)
	}), breakerhttp.WithResponseCache(nil, time.Minute))
	alice := request(t, http.MethodGet, up.URL, nil).WithContext(context.WithValue(t.Context(), token{}, "alice"))
	_, body, err := send(t, tr, alice)
	require.NoError(t, err)
	require.Equal(t, "alice", body)
	down = true
	_, _, err = send(t, tr, request(t, http.MethodGet, up.URL, nil).WithContext(context.WithValue(t.Context(), token{}, "bob")))
	require.ErrorIs(t, err, errBoom)
}

// RFC 9111 5.2.2, RFC 5861: what an answer says of itself limits how long it is given in an outage.
func TestCacheHeedsDirectives(t *testing.T) {
	const unlimited = time.Minute
	for _, c := range []struct {
		header []string
		lasts  time.Duration
		stale  time.Duration // with ServeStale
	}{
		{nil, unlimited, unlimited},
		{[]string{"Cache-Control", "max-age=5"}, unlimited, unlimited},
		{[]string{"Cache-Control", "no-cache"}, 0, unlimited},
		{[]string{"Cache-Control", `no-cache="x"`}, 0, unlimited},
		{[]string{"Cache-Control", "NO-CACHE, stale-if-error=30"}, 0, unlimited},
		{[]string{"Pragma", "no-cache"}, 0, unlimited},
		{[]string{"Pragma", "no-cache", "Cache-Control", "max-age=1"}, unlimited, unlimited},
		{[]string{"Cache-Control", "must-revalidate"}, 0, unlimited},
		{[]string{"Cache-Control", "must-revalidate, max-age=20"}, 20 * time.Second, unlimited},
		{[]string{"Cache-Control", "must-revalidate, max-age=20", "Age", "5"}, 15 * time.Second, unlimited},
		{[]string{"Cache-Control", "must-revalidate, max-age=20, stale-if-error=9"}, 20 * time.Second, unlimited},
		{[]string{"Cache-Control", "proxy-revalidate, max-age=20"}, 20 * time.Second, unlimited},
		{[]string{"Cache-Control", "s-maxage=20, max-age=1"}, 20 * time.Second, unlimited},
		{[]string{"Cache-Control", "max-age=10, stale-if-error=20"}, 30 * time.Second, unlimited},
		{[]string{"Cache-Control", "stale-if-error=20"}, 20 * time.Second, unlimited},
		{[]string{"Cache-Control", "stale-if-error=soon"}, 0, unlimited},
		{[]string{"Cache-Control", "max-age=9999999999999999999, stale-if-error=9999999999999999999"}, unlimited, unlimited},
		{[]string{"Cache-Control", "stale-if-error=0", "Date", "Thu, 01 Jan 1970 00:00:00 GMT", "Expires", "Thu, 01 Jan 1970 00:00:25 GMT"}, 25 * time.Second, unlimited},
		{[]string{"Cache-Control", "no-store"}, 0, 0},
		{[]string{"Cache-Control", "private, max-age=20"}, 0, 0},
	} {
		for i, lasts := range []time.Duration{c.lasts, c.stale} {
			t.Run(fmt.Sprint(c.header, i), func(t *testing.T) {
				clk := clock.NewMock()
				opts := []breakerhttp.Option{breakerhttp.WithBreaker(breaker.WithClock(clk))}
				if i == 1 {
					opts = append(opts, breakerhttp.ServeStale())
				}
				cc := newCached(t, opts...)
				cc.answer = func(*http.Request) *http.Response { return answer(200, nil, c.header...) }
				get := func() bool {
					_, ok := cc.outage(t, request(t, http.MethodGet, "http://up.example", nil))
					return ok
				}
				requireSend(t, cc, request(t, http.MethodGet, "http://up.example", nil))
				if lasts > 0 {
					clk.Add(lasts - 1)
					require.True(t, get(), "until then")
					clk.Add(1)
				}
				require.False(t, get(), "not any more")
			})
		}
	}
}

// What a request says of old answers is heeded.
func TestCacheHeedsTheRequest(t *testing.T) {
	clk := clock.NewMock()
	c := newCached(t, breakerhttp.WithBreaker(breaker.WithClock(clk)))
	requireSend(t, c, with(request(t, http.MethodGet, "http://up.example", nil), "Cache-Control", "no-cache"))
	clk.Add(10 * time.Second)
	for header, want := range map[string]bool{"Cache-Control: no-cache": false, "Cache-Control: max-age=9": false, "Cache-Control: max-age=10": true,
		"Cache-Control: no-store": false, "Pragma: no-cache": false, "X: y": false, "User-Agent: x": true} {
		name, value, _ := strings.Cut(header, ": ")
		_, ok := c.outage(t, with(request(t, http.MethodGet, "http://up.example", nil), name, value))
		require.Equal(t, want, ok, header)
	}
}

// RFC 9111 4.4: a success of a method that writes takes away the answers to GET and HEAD of its URL, for all callers; and
// so does a later answer to the same request that must not be kept.
func TestCacheInvalidation(t *testing.T) {
	for name, c := range map[string]struct {
		then *http.Request
		with *http.Response
		gone bool
	}{
		"PUT":              {request(t, "PUT", "http://up.example/a", strings.NewReader("x")), answer(204, http.NoBody), true},
		"DELETE":           {request(t, "DELETE", "http://up.example/a", nil), answer(200, nil), true},
		"POST":             {request(t, "POST", "http://up.example/a", strings.NewReader("x")), answer(303, nil), true},
		"unknown":          {request(t, "PURGE", "http://up.example/a", nil), answer(200, nil), true},
		"Location":         {request(t, "POST", "http://up.example/all", strings.NewReader("x")), answer(201, nil, "Location", "/a"), true},
		"Content-Location": {request(t, "POST", "http://up.example/all", strings.NewReader("x")), answer(201, nil, "Content-Location", "a"), true},
		"other host":       {request(t, "POST", "http://evil.example/all", strings.NewReader("x")), answer(201, nil, "Location", "http://up.example/a"), false},
		"PUT elsewhere":    {request(t, "PUT", "http://up.example/b", strings.NewReader("x")), answer(204, http.NoBody), false},
		"PUT that fails":   {request(t, "PUT", "http://up.example/a", strings.NewReader("x")), answer(409, nil), false},
		"OPTIONS":          {request(t, "OPTIONS", "http://up.example/a", nil), answer(200, nil), false},
		"410":              {nil, answer(410, nil), true},
		"404":              {nil, answer(404, nil), true},
		"403":              {nil, answer(403, nil), true},
		"302":              {nil, answer(302, nil), true},
		"private":          {nil, answer(200, nil, "Cache-Control", "private"), true},
		"no-store":         {nil, answer(200, nil, "Cache-Control", "no-store"), true},
		"Set-Cookie":       {nil, answer(200, nil, "Set-Cookie", "a=b"), true},
		"too large":        {nil, answer(200, io.NopCloser(strings.NewReader(strings.Repeat("x", 1<<20+1)))), true},
		"503":              {nil, answer(503, nil), false},
		"429":              {nil, answer(429, nil), false},
	} {
		for _, outside := range []bool{false, true} {
			t.Run(fmt.Sprint(name, outside), func(t *testing.T) {
				clk := clock.NewMock()
				m := &mapCache{m: map[string][]byte{}, sets: make(chan struct{}, 8)}
				opts := []breakerhttp.Option{breakerhttp.WithBreaker(breaker.WithClock(clk))}
				if outside {
					opts = append(opts, breakerhttp.WithResponseCache(m, time.Minute))
				}
				cc := newCached(t, opts...)
				get := request(t, http.MethodGet, "http://up.example/a", nil)
				get.Header.Set("X-User", "alice")
				requireSend(t, cc, get)
				if outside {
					guard(t, func() { <-m.sets })
				}
				clk.Add(time.Second)
				then := c.then
				if then == nil {
					then = get
				} else if then.GetBody != nil {
					then.Body, _ = then.GetBody()
				}
				again := *c.with
				if b, err := io.ReadAll(c.with.Body); err == nil && c.with.Body != http.NoBody {
					c.with.Body, again.Body = io.NopCloser(strings.NewReader(string(b))), io.NopCloser(strings.NewReader(string(b)))
				}
				cc.answer = func(*http.Request) *http.Response { return &again }
				requireSend(t, cc, then)
				_, ok := true, true
				if outside && c.gone {
					eventually(t, "taken away", func() bool { _, ok = cc.outage(t, get); return !ok })
				} else {
					_, ok = cc.outage(t, get)
				}
				require.Equal(t, !c.gone, ok)
			})
		}
	}
	t.Run("PerRequest", func(t *testing.T) { // the request that writes has no options of its own
		down := false
		tr := transport(t, roundTripper(func(*http.Request) (*http.Response, error) {
			if down {
				return nil, errBoom
			}
			return answer(200, nil), nil
		}))
		get := request(t, http.MethodGet, "http://up.example/a", nil)
		get = get.WithContext(breakerhttp.PerRequest(t.Context(), breakerhttp.Cache(time.Minute)))
		requireSend(t, tr, get)
		requireSend(t, tr, request(t, http.MethodDelete, "http://up.example/a", nil))
		down = true
		_, _, err := send(t, tr, get)
		require.ErrorIs(t, err, errBoom)
	})
}

// What belongs to one connection or one proxy is not kept: RFC 9111 3.1.
func TestCacheKeepsNoHopHeaders(t *testing.T) {
	c := newCached(t)
	c.answer = func(*http.Request) *http.Response {
		return answer(200, nil, "Connection", "X-Hop, close", "X-Hop", "1", "Proxy-Authenticate", "Basic", "X-Kept", "1")
	}
	requireSend(t, c, request(t, http.MethodGet, "http://up.example", nil))
	c.down.Store(true)
	resp, err := c.RoundTrip(request(t, http.MethodGet, "http://up.example", nil))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	for _, name := range []string{"Connection", "X-Hop", "Proxy-Authenticate", "Breaker-Stored", "Breaker-Started"} {
		require.Empty(t, resp.Header.Get(name), name)
	}
	require.Equal(t, "1", resp.Header.Get("X-Kept"))
}

// A base that leaves ContentLength at 0 beside a body, as mocks do, has a body.
func TestBodyWithoutALength(t *testing.T) {
	c := newCached(t)
	c.answer = func(*http.Request) *http.Response {
		resp := answer(200, io.NopCloser(io.MultiReader(strings.NewReader("hel"), strings.NewReader("lo"))))
		resp.ContentLength = 0
		return resp
	}
	get := request(t, http.MethodGet, "http://up.example", nil)
	requireSend(t, c, get)
	body, ok := c.outage(t, get)
	require.True(t, ok)
	require.Equal(t, "hello", body)
}

// Over HTTP/2 an answer without a body by its headers ends later: its end, and its trailers, come, and it is kept.
func TestEndAfterTheHeaders(t *testing.T) {
	for _, code := range []int{200, 204} {
		for _, trailer := range []bool{false, true} {
			for name, opts := range map[string][]breakerhttp.Option{"plain": nil, "timeout": {breakerhttp.WithBreaker(breaker.WithTimeout(patience))},
				"cache": {breakerhttp.WithBreaker(breaker.WithTimeout(patience)), breakerhttp.WithResponseCache(nil, time.Minute)}} {
				t.Run(fmt.Sprint(code, trailer, name), func(t *testing.T) {
					seen := make(chan struct{}, 1)
					up := httptest.NewUnstartedServer(once(func(w http.ResponseWriter, _ *http.Request) {
						w.Header().Set("Content-Length", "0")
						if code == 204 {
							w.Header().Del("Content-Length")
						}
						w.WriteHeader(code)
						w.(http.Flusher).Flush()
						<-seen
						if trailer {
							w.Header().Set(http.TrailerPrefix+"X-Sum", "1")
						}
					}))
					up.EnableHTTP2 = true
					up.StartTLS()
					defer up.Close()
					rt := up.Client().Transport.(*http.Transport)
					defer rt.CloseIdleConnections()
					tr := transport(t, rt, opts...)
					guard(t, func() {
						resp, err := tr.RoundTrip(request(t, http.MethodGet, up.URL, nil))
						require.NoError(t, err)
						seen <- struct{}{}
						_, err = io.ReadAll(resp.Body)
						require.NoError(t, err)
						require.Equal(t, trailer, resp.Trailer.Get("X-Sum") == "1")
						require.NoError(t, resp.Body.Close())
					})
					if name == "cache" {
						code2, _, err := get(t, tr, up.URL)
						require.NoError(t, err)
						require.Equal(t, !trailer, code2 == code)
					}
				})
			}
		}
	}
}
