package breakerhttp_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakerhttp"
)

// M11, BC-101: another host answers, under its own name and circuit.
func TestFailover(t *testing.T) {
	var got *http.Request
	var body string
	backup := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got, body = r, string(b)
		_, _ = io.WriteString(w, "backup")
	})
	down := refused(t)
	e := &events{}
	tr := transport(t, nil, r0(e.hooks()), quick(1), breakerhttp.WithFailover(backup.URL+"/v2/"), breakerhttp.WithRescueHeader(""))
	for range 10 { // the primary's circuit opens on the way
		req := request(t, http.MethodPut, down+"/things/a%2Fb?x=1", strings.NewReader("hello"))
		req.Header.Set("X-Any", "1")
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, "backup", string(b))
		require.Equal(t, "failover", resp.Header.Get("X-Rescued"))
		require.Equal(t, hostOf(t, backup.URL), got.Host)
		require.Equal(t, "/v2/things/a%2Fb?x=1", got.RequestURI)
		require.Equal(t, "hello", body)
		require.Equal(t, "1", got.Header.Get("X-Any"))
	}
	require.Equal(t, breaker.Open, state(t, tr, down))
	require.EqualValues(t, 10, circuit(t, tr, backup.URL).Snapshot().Totals.Successes)
	require.EqualValues(t, 10, circuit(t, tr, down).Snapshot().Totals.Rescues[breaker.RescueFailover])
	require.Len(t, e.rescues, 10)
	require.Error(t, e.rescues[0].Cause)
}

// Credentials stay with the host that they are meant for.
func TestFailoverDropsCredentials(t *testing.T) {
	headers := []string{"Authorization", "Cookie", "Proxy-Authorization", "X-Api-Key", "Api-Key"}
	var got http.Header
	backup := serve(t, func(_ http.ResponseWriter, r *http.Request) { got = r.Header })
	call := func(target, failover string) {
		tr := transport(t, roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.URL.Path == "/" {
				if r.Body != nil {
					_ = r.Body.Close()
				}
				return nil, errBoom
			}
			rt := &http.Transport{DisableKeepAlives: true}
			return rt.RoundTrip(r)
		}), breakerhttp.WithFailover(failover))
		req := request(t, http.MethodGet, target, nil)
		for _, h := range headers {
			req.Header.Set(h, "secret")
		}
		code, _, err := send(t, tr, req)
		require.NoError(t, err)
		require.Equal(t, 200, code)
	}
	call("http://up.example/", backup.URL+"/x")
	for _, h := range headers {
		require.Empty(t, got.Get(h), h)
	}
	call("http://up.example/", strings.Replace(backup.URL, "http://", "http://me:pw@", 1)+"/x")
	require.Equal(t, "Basic "+base64.StdEncoding.EncodeToString([]byte("me:pw")), got.Get("Authorization"))
}

// Where nobody answers, the caller gets the host's own answer, or every error.
func TestFailoverFails(t *testing.T) {
	bad := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(500)
		_, _ = io.WriteString(w, "backup's")
	})
	up := serve(t, statuses(503))
	tr := transport(t, nil, r0(), breakerhttp.WithFailover(bad.URL, refused(t)), breakerhttp.WithRescueHeader(""))
	resp, err := tr.RoundTrip(request(t, http.MethodGet, up.URL, nil))
	require.NoError(t, err)
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, 503, resp.StatusCode)
	require.Equal(t, "answer", string(b))
	require.Empty(t, resp.Header.Get("X-Rescued"))

	open(t, tr, up.URL)
	_, _, err = get(t, tr, up.URL)
	require.ErrorIs(t, err, breaker.ErrOpen)
	var status *breakerhttp.StatusError
	require.ErrorAs(t, err, &status)
	require.Equal(t, 500, status.StatusCode)
	require.ErrorContains(t, err, "refused")
}

// What was sent once and may not be repeated goes nowhere else; what was never sent may.
func TestFailoverOfUnsafeRequests(t *testing.T) {
	up, backup := serve(t, statuses(503)), serve(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	tr := transport(t, nil, r0(), breakerhttp.WithFailover(backup.URL))
	post := func() (int, error) {
		code, _, err := send(t, tr, request(t, http.MethodPost, up.URL, io.MultiReader(strings.NewReader("hello"))))
		return code, err
	}
	code, err := post()
	require.NoError(t, err)
	require.Equal(t, 503, code)
	require.Zero(t, backup.hits.Load())
	open(t, tr, up.URL)
	code, err = post()
	require.NoError(t, err)
	require.Equal(t, 200, code)
	require.EqualValues(t, 1, backup.hits.Load())
}

// Neither a success nor the client's fault nor its cancel needs a rescue.
func TestNoRescueWithoutNeed(t *testing.T) {
	never := roundTripper(func(r *http.Request) (*http.Response, error) {
		require.Equal(t, "up.example", r.URL.Host)
		if r.URL.Path == "/cancel" {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}
		return answer(404, nil), nil
	})
	tr := transport(t, never, breakerhttp.WithFailover("http://backup.example"), breakerhttp.WithResponseCache(nil, time.Minute))
	code, _, err := get(t, tr, "http://up.example")
	require.NoError(t, err)
	require.Equal(t, 404, code)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(time.Millisecond, cancel)
	_, err = tr.RoundTrip(request(t, http.MethodGet, "http://up.example/cancel", nil).WithContext(ctx))
	require.ErrorIs(t, err, context.Canceled)
}

// W15, M10: the remembered answer, status, headers and body, while the host fails and while the circuit is open.
func TestCacheRescue(t *testing.T) {
	clk := clock.NewMock()
	healthy := true
	up := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if !healthy {
			w.WriteHeader(503)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Rescued", "forged")
		_, _ = io.WriteString(w, `{"rate":1.5}`)
	})
	tr := transport(t, nil, r0(breaker.WithClock(clk)), breakerhttp.WithResponseCache(nil, time.Minute), breakerhttp.WithRescueHeader(""))
	call := func() *http.Response {
		resp, err := tr.RoundTrip(request(t, http.MethodGet, up.URL+"/rates?base=EUR", nil))
		require.NoError(t, err)
		return resp
	}
	read := func(resp *http.Response) string {
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return string(b)
	}
	fresh := call()
	require.Empty(t, fresh.Header.Get("X-Rescued"), "only this package may say so")
	want := read(fresh)
	healthy = false
	for i := range 5 {
		resp := call()
		require.Equal(t, 200, resp.StatusCode)
		require.Equal(t, "application/json", resp.Header.Get("Content-Type"))
		require.Equal(t, "cache", resp.Header.Get("X-Rescued"))
		require.EqualValues(t, len(want), resp.ContentLength)
		require.Equal(t, want, read(resp), i)
	}
	require.EqualValues(t, 4, up.hits.Load(), "no call while the circuit is open")
	require.EqualValues(t, 5, circuit(t, tr, up.URL).Snapshot().Totals.Rescues[breaker.RescueCache])
	clk.Add(time.Minute)
	code, _, err := get(t, tr, up.URL+"/rates?base=EUR")
	require.NoError(t, err)
	require.Equal(t, 503, code, "too old")
}

// BC-106: an answer from before says how old it is.
func TestCachedAnswersHaveAnAge(t *testing.T) {
	clk := clock.NewMock()
	for came, want := range map[string]string{"": "30", "12": "42", "nonsense": "30"} {
		down := false
		tr := transport(t, roundTripper(func(*http.Request) (*http.Response, error) {
			if down {
				return nil, errBoom
			}
			return answer(200, nil, "Age", came, "Breaker-Stored", "forged"), nil
		}), breakerhttp.WithBreaker(breaker.WithClock(clk)), breakerhttp.WithResponseCache(nil, time.Minute))
		_, _, err := get(t, tr, "http://up.example")
		require.NoError(t, err)
		clk.Add(30 * time.Second)
		down = true
		resp, err := tr.RoundTrip(request(t, http.MethodGet, "http://up.example", nil))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, want, resp.Header.Get("Age"))
		require.Empty(t, resp.Header.Get("Breaker-Stored"))
	}
}

// Where a request goes at another host: its own path and query behind the failover's path, in the spelling that it has.
func TestFailoverURLs(t *testing.T) {
	for _, c := range []struct{ from, to, want string }{
		{"http://up.example", "https://b.example", "https://b.example"},
		{"http://up.example/", "https://b.example/", "https://b.example/"},
		{"http://up.example/a/b?x=1&y=%2F#f", "https://b.example:8443", "https://b.example:8443/a/b?x=1&y=%2F#f"},
		{"http://up.example/a", "https://b.example/v2", "https://b.example/v2/a"},
		{"http://up.example/a/", "https://b.example/v2/", "https://b.example/v2/a/"},
		{"http://up.example", "https://b.example/v2/", "https://b.example/v2"},
		{"http://up.example?x=1", "https://b.example/v2", "https://b.example/v2?x=1"},
		{"http://up.example/a%2Fb", "https://b.example/v%2F2", "https://b.example/v%2F2/a%2Fb"},
		{"http://me:pw@up.example/a", "https://b.example", "https://b.example/a"},
		{"http://up.example/a", "https://me:pw@b.example", "https://b.example/a"},
		{"opaque //up.example/a%2fb", "https://b.example/v2", "https://b.example/v2/a%2fb"},
		{"opaque /a%2fb", "https://b.example", "https://b.example/a%2fb"},
	} {
		t.Run(c.from+" "+c.to, func(t *testing.T) {
			var got *http.Request
			tr := transport(t, roundTripper(func(r *http.Request) (*http.Response, error) {
				if r.URL.Host == "up.example" {
					return nil, errBoom
				}
				got = r
				resp := answer(200, nil)
				resp.Request = r // as net/http does
				return resp, nil
			}), breakerhttp.WithFailover(c.to))
			req := request(t, http.MethodGet, c.from, nil)
			if opaque, ok := strings.CutPrefix(c.from, "opaque "); ok {
				req = request(t, http.MethodGet, "http://up.example", nil)
				req.URL.Opaque = opaque
			}
			req.Host = "virtual.example"
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, c.want, got.URL.String())
			require.Equal(t, got.URL.Host, got.Host)
			require.Same(t, got, resp.Request, "it says where the answer comes from")
			ok, _, _ := totals(t, tr, c.want)
			require.EqualValues(t, 1, ok, "the other host's circuit is told")
		})
	}
}

// A rejected request asks the circuit of the other host, too.
func TestFailoverPassesTheOtherCircuit(t *testing.T) {
	never := roundTripper(func(*http.Request) (*http.Response, error) { panic("must not be called") })
	tr := transport(t, never, r0(), breakerhttp.WithFailover("http://b.example"))
	open(t, tr, "http://up.example")
	open(t, tr, "http://b.example")
	_, _, err := get(t, tr, "http://up.example")
	require.ErrorIs(t, err, breaker.ErrOpen)
	require.EqualValues(t, 1, circuit(t, tr, "http://b.example").Snapshot().Totals.Rejected)
}

// What is never kept, and what is.
func TestWhatIsCached(t *testing.T) {
	type change struct {
		req    func(*http.Request)
		resp   []string
		code   int
		body   func() io.ReadCloser
		unread bool
	}
	set := func(k, v string) func(*http.Request) { return func(r *http.Request) { r.Header.Set(k, v) } }
	for name, c := range map[string]struct {
		change
		kept bool
	}{
		"plain":              {kept: true},
		"public":             {kept: true, change: change{resp: []string{"Cache-Control", "public, max-age=1"}}},
		"vary on user agent": {change: change{resp: []string{"Vary", "User-Agent"}}},
		"request trailer":    {change: change{req: func(r *http.Request) { r.Trailer = http.Header{"X-Sum": nil} }}},
		"vary on encoding":   {kept: true, change: change{resp: []string{"Vary", "Accept-Encoding"}}},
		"vary on named":      {kept: true, change: change{resp: []string{"Vary", "accept-language, Accept-Encoding"}, req: set("Accept-Language", "de")}},
		"named credential":   {kept: true, change: change{req: set("X-Api-Key", "k")}},
		"POST":               {kept: true, change: change{req: func(r *http.Request) { r.Method = "POST" }}},
		"HEAD":               {kept: true, change: change{req: func(r *http.Request) { r.Method = "HEAD" }}},
		"204":                {kept: true, change: change{code: 204, body: func() io.ReadCloser { return http.NoBody }}},
		"1 MiB":              {kept: true, change: change{body: func() io.ReadCloser { return io.NopCloser(strings.NewReader(strings.Repeat("x", 1<<20))) }}},
		"over 1 MiB":         {change: change{body: func() io.ReadCloser { return io.NopCloser(strings.NewReader(strings.Repeat("x", 1<<20+1))) }}},
		"authorization":      {change: change{req: set("Authorization", "Bearer x")}},
		"cookie":             {change: change{req: set("Cookie", "a=b")}},
		"request no-store":   {change: change{req: set("Cache-Control", "no-store")}},
		"range":              {change: change{req: set("Range", "bytes=0-1")}},
		"set-cookie":         {change: change{resp: []string{"Set-Cookie", "a=b"}}},
		"no-store":           {change: change{resp: []string{"Cache-Control", "max-age=0, No-Store"}}},
		"private":            {change: change{resp: []string{"Cache-Control", `private="x"`}}},
		"vary on another":    {kept: true, change: change{resp: []string{"Vary", "Accept"}}},
		"vary on all":        {change: change{resp: []string{"Vary", "*"}}},
		"partial":            {change: change{code: 206}},
		"redirect":           {change: change{code: 302}},
		"PUT":                {kept: true, change: change{req: func(r *http.Request) { *r = *withBody("PUT") }}},
		"PATCH":              {kept: true, change: change{req: func(r *http.Request) { *r = *withBody("PATCH") }}},
		"unreplayable PUT":   {change: change{req: func(r *http.Request) { *r = *withBody("PUT"); r.GetBody = nil }}},
		"PATCH, no length":   {change: change{req: func(r *http.Request) { *r = *withBody("PATCH"); r.ContentLength = -1 }}},
		"DELETE":             {change: change{req: func(r *http.Request) { r.Method = "DELETE" }}},
		"closed early":       {change: change{unread: true}},
		"broken":             {change: change{body: func() io.ReadCloser { return io.NopCloser(readerFunc(func([]byte) (int, error) { return 0, errBoom })) }}},
		"unreplayable body":  {change: change{req: func(r *http.Request) { r.Method, r.Body = "POST", io.NopCloser(strings.NewReader("x")) }}},
		"body over 1 MiB":    {change: change{req: func(r *http.Request) { *r = *bigRequest() }}},
	} {
		t.Run(name, func(t *testing.T) {
			n := 0
			tr := transport(t, roundTripper(func(r *http.Request) (*http.Response, error) {
				if r.Body != nil {
					_ = r.Body.Close()
				}
				if n++; n > 1 {
					return nil, errBoom
				}
				code := c.code
				if code == 0 {
					code = 200
				}
				var body io.ReadCloser
				if c.body != nil {
					body = c.body()
				}
				return answer(code, body, c.resp...), nil
			}), breakerhttp.WithResponseCache(nil, time.Minute, "accept-language", "X-Api-Key"))
			for i := range 2 {
				req := request(t, http.MethodGet, "http://up.example/x", nil)
				if c.req != nil {
					c.req(req)
				}
				if c.unread && i == 0 {
					resp, err := tr.RoundTrip(req)
					require.NoError(t, err)
					_, err = resp.Body.Read(make([]byte, 1))
					require.NoError(t, err)
					require.NoError(t, resp.Body.Close())
					continue
				}
				_, _, err := send(t, tr, req)
				if i == 1 {
					require.Equal(t, c.kept, err == nil, "%v", err)
				}
			}
		})
	}
}

func withBody(method string) *http.Request {
	r, err := http.NewRequest(method, "http://up.example/x", strings.NewReader("body"))
	if err != nil {
		panic(err)
	}
	return r
}

func bigRequest() *http.Request {
	r, err := http.NewRequest(http.MethodPost, "http://up.example/x", strings.NewReader(strings.Repeat("x", 1<<20+1)))
	if err != nil {
		panic(err)
	}
	return r
}

// The key: method, origin, path, query, headers, body; and nothing else.
func TestCacheKey(t *testing.T) {
	requests := []func() *http.Request{
		func() *http.Request { return request(t, "GET", "http://up.example/a", nil) },
		func() *http.Request { return request(t, "HEAD", "http://up.example/a", nil) },
		func() *http.Request { return request(t, "GET", "https://up.example/a", nil) },
		func() *http.Request { return request(t, "GET", "http://up.example:81/a", nil) },
		func() *http.Request { return request(t, "GET", "http://up.example/b", nil) },
		func() *http.Request { return request(t, "GET", "http://up.example/a?x=1", nil) },
		func() *http.Request { return request(t, "POST", "http://up.example/w", strings.NewReader("1")) },
		func() *http.Request { return request(t, "POST", "http://up.example/w", strings.NewReader("2")) },
		func() *http.Request { return request(t, "PUT", "http://up.example/w", strings.NewReader("1")) },
		func() *http.Request { return request(t, "PUT", "http://up.example/w", strings.NewReader("2")) },
		func() *http.Request { return request(t, "PATCH", "http://up.example/w", strings.NewReader("1")) },
		func() *http.Request {
			r := request(t, "GET", "http://up.example/a", nil)
			r.Header.Set("X-Tenant", "1")
			return r
		},
		func() *http.Request {
			r := request(t, "GET", "http://up.example/a", nil)
			r.Header.Set("X-Tenant", "2")
			return r
		},
		func() *http.Request {
			r := request(t, "GET", "http://up.example/a", nil)
			r.Header.Set("Accept-Encoding", "br")
			return r
		},
	}
	healthy := true
	n := 0
	tr := transport(t, roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		if !healthy {
			return nil, errBoom
		}
		n++
		return answer(200, io.NopCloser(strings.NewReader(fmt.Sprint(n)))), nil
	}), breakerhttp.WithBreaker(breaker.WithFailureThreshold(99)), breakerhttp.WithResponseCache(nil, time.Minute, "X-Tenant"))
	var want []string
	for _, r := range requests {
		_, body, err := send(t, tr, r())
		require.NoError(t, err)
		want = append(want, body)
	}
	healthy = false
	for i, r := range requests {
		_, body, err := send(t, tr, r())
		require.NoError(t, err)
		if r().Method != http.MethodHead {
			require.Equal(t, want[i], body)
		}
	}
	for _, same := range []string{"http://UP.example:80/a#f"} {
		r := request(t, "GET", same, nil)
		r.Host = ""
		r.Header.Set("User-Agent", "1")
		_, body, err := send(t, tr, r)
		require.NoError(t, err)
		require.Equal(t, want[0], body)
	}
}

// mapCache is a cache from outside.
type mapCache struct {
	mu     sync.Mutex
	m      map[string][]byte
	ttl    time.Duration
	broken error
	block  chan struct{}
	sets   chan struct{}
}

func (c *mapCache) Get(ctx context.Context, key string) ([]byte, bool, error) {
	if c.block != nil {
		<-c.block
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.m[key]
	return v, ok, c.broken
}

func (c *mapCache) Set(_ context.Context, key string, v []byte, _ time.Time, ttl time.Duration) error {
	defer func() { c.sets <- struct{}{} }()
	if c.broken != nil {
		panic("broken")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.m[key], c.ttl = v, ttl
	return nil
}

// A cache from outside sees no secrets in its keys, holds nobody up, and its faults are hooks' news.
func TestOutsideCache(t *testing.T) {
	c := &mapCache{m: map[string][]byte{}, sets: make(chan struct{}, 8)}
	e := &events{}
	down := false
	tr := transport(t, roundTripper(func(*http.Request) (*http.Response, error) {
		if down {
			return nil, errBoom
		}
		return answer(200, nil), nil
	}), breakerhttp.WithBreaker(e.hooks(), breaker.WithFailureThreshold(99)), breakerhttp.WithResponseCache(c, time.Hour, "Authorization"))
	call := func(ctx context.Context) (string, error) {
		req := request(t, http.MethodGet, "http://up.example/?key=hunter2", nil).WithContext(ctx)
		req.Header.Set("Authorization", "hunter2")
		_, body, err := send(t, tr, req)
		return body, err
	}
	_, err := call(t.Context())
	require.NoError(t, err)
	guard(t, func() { <-c.sets })
	for key := range c.m {
		require.NotContains(t, key, "hunter2")
	}
	require.Equal(t, time.Hour, c.ttl)
	down = true
	body, err := call(t.Context())
	require.NoError(t, err)
	require.Equal(t, "answer", body)

	for key := range c.m { // what is no answer is none
		c.m[key] = []byte("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort")
	}
	_, err = call(t.Context())
	require.ErrorIs(t, err, errBoom)

	c.broken = errors.New("cache down")
	_, err = call(t.Context())
	require.ErrorIs(t, err, errBoom)
	require.ErrorContains(t, e.errs[0], "cache down")
	down = false
	_, err = call(t.Context())
	require.NoError(t, err)
	guard(t, func() { <-c.sets })
	eventually(t, "the panic is told", func() (told bool) { e.locked(func() { told = len(e.errs) == 2 }); return told })

	down, c.broken, c.block = true, nil, make(chan struct{})
	guard(t, func() {
		_, err = call(t.Context())
		require.ErrorIs(t, err, errBoom)
	})
	close(c.block)
}

// The memory is bounded, and an answer that started earlier never replaces a later one.
func TestCacheIsBounded(t *testing.T) {
	down := false
	tr := transport(t, roundTripper(func(r *http.Request) (*http.Response, error) {
		if down {
			return nil, errBoom
		}
		return answer(200, io.NopCloser(strings.NewReader(r.URL.Path))), nil
	}), breakerhttp.WithBreaker(breaker.WithFailureThreshold(1<<20)), breakerhttp.WithResponseCache(nil, time.Minute))
	for i := range 1030 {
		_, _, err := get(t, tr, fmt.Sprintf("http://up.example/%d", i))
		require.NoError(t, err)
	}
	down = true
	for i, kept := range map[int]bool{0: false, 5: false, 6: true, 1029: true} {
		_, _, err := get(t, tr, fmt.Sprintf("http://up.example/%d", i))
		require.Equal(t, kept, err == nil, i)
	}
}

func TestOlderAnswerDoesNotReplaceANewerOne(t *testing.T) {
	clk := clock.NewMock()
	down := false
	n := 0
	tr := transport(t, roundTripper(func(*http.Request) (*http.Response, error) {
		if down {
			return nil, errBoom
		}
		n++
		return answer(200, io.NopCloser(strings.NewReader(fmt.Sprint(n)))), nil
	}), breakerhttp.WithBreaker(breaker.WithClock(clk)), breakerhttp.WithResponseCache(nil, time.Minute))
	slow, err := tr.RoundTrip(request(t, http.MethodGet, "http://up.example", nil))
	require.NoError(t, err)
	clk.Add(time.Second)
	_, _, err = get(t, tr, "http://up.example")
	require.NoError(t, err)
	_, err = io.ReadAll(slow.Body)
	require.NoError(t, err)
	require.NoError(t, slow.Body.Close())
	down = true
	_, body, err := get(t, tr, "http://up.example")
	require.NoError(t, err)
	require.Equal(t, "2", body)
}

// W09: one row for each value, and none for an answer at the first attempt.
func TestRescueHeader(t *testing.T) {
	backup := serve(t, statuses(200))
	for want, c := range map[string]struct {
		codes []int
		opts  []breakerhttp.Option
		calls int
	}{
		"":         {[]int{200}, nil, 1},
		"retry":    {[]int{503, 200}, []breakerhttp.Option{quick(1)}, 1},
		"failover": {[]int{503}, []breakerhttp.Option{quick(1), breakerhttp.WithFailover(backup.URL)}, 1},
		"cache":    {[]int{200, 503}, []breakerhttp.Option{quick(1), breakerhttp.WithResponseCache(nil, time.Minute)}, 2},
	} {
		t.Run(want, func(t *testing.T) {
			up := serve(t, statuses(c.codes...))
			tr := transport(t, nil, append(c.opts, breakerhttp.WithRescueHeader("x-saved-by"))...)
			var resp *http.Response
			for range c.calls {
				var err error
				resp, err = tr.RoundTrip(request(t, http.MethodGet, up.URL, nil))
				require.NoError(t, err)
				_, err = io.ReadAll(resp.Body)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
			}
			require.Equal(t, 200, resp.StatusCode)
			require.Equal(t, want, resp.Header.Get("X-Saved-By"))
		})
	}
}

// W14: three headers, off by default, under any prefix.
func TestDebugHeaders(t *testing.T) {
	up := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Breaker-Provider", "forged")
		w.Header().Set("X-Dbg-Health", "forged")
	})
	call := func(tr *breakerhttp.Transport, ctx context.Context) http.Header {
		resp, err := tr.RoundTrip(request(t, http.MethodGet, up.URL, nil).WithContext(ctx))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp.Header
	}
	h := call(transport(t, nil), t.Context())
	require.Empty(t, h.Get("X-Breaker-Strategy"))
	for prefix, name := range map[string]string{"": "X-Breaker-", "x-dbg": "X-Dbg-", "X-Dbg-": "X-Dbg-"} {
		tr := transport(t, nil, breakerhttp.WithDebugHeaders(prefix), breakerhttp.OpenAsResponse())
		h := call(tr, t.Context())
		require.Equal(t, []string{up.URL, "direct", "closed"}, []string{h.Get(name + "Provider"), h.Get(name + "Strategy"), h.Get(name + "Health")})
		h = call(tr, breakerhttp.PerRequest(t.Context(), breakerhttp.NoBreaker()))
		require.Equal(t, "bypass", h.Get(name+"Strategy"))
		open(t, tr, up.URL)
		h = call(tr, t.Context())
		require.Equal(t, []string{up.URL, "open", "open"}, []string{h.Get(name + "Provider"), h.Get(name + "Strategy"), h.Get(name + "Health")})
	}
}

// W10: without a circuit nothing is asked or told, and the policies apply.
func TestNoBreaker(t *testing.T) {
	up := serve(t, statuses(503))
	backup := serve(t, statuses(200))
	tr := transport(t, nil, r0(), quick(2))
	ctx := breakerhttp.PerRequest(t.Context(), breakerhttp.NoBreaker())
	for range 4 {
		code, _, err := send(t, tr, request(t, http.MethodGet, up.URL, nil).WithContext(ctx))
		require.NoError(t, err)
		require.Equal(t, 503, code)
	}
	require.EqualValues(t, 12, up.hits.Load())
	for name := range tr.Circuits() {
		t.Fatalf("there is a circuit %s", name)
	}
	code, _, err := send(t, tr, request(t, http.MethodGet, up.URL, nil).WithContext(breakerhttp.PerRequest(ctx, breakerhttp.Failover(backup.URL))))
	require.NoError(t, err)
	require.Equal(t, 200, code)
	open(t, tr, up.URL)
	code, _, err = send(t, tr, request(t, http.MethodGet, up.URL, nil).WithContext(ctx))
	require.NoError(t, err)
	require.Equal(t, 503, code)
}

// Past the circuit an attempt's timeout holds all the same, and no circuit is made for it.
func TestNoBreakerKeepsTheTimeout(t *testing.T) {
	guard(t, func() {
		const limit = 20 * time.Millisecond
		up := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		for name, opts := range map[string][]breaker.Option{
			"group":  {breaker.WithTimeout(limit)},
			"PerKey": {breaker.WithTimeout(time.Hour), breaker.PerKey(func(string) []breaker.Option { return []breaker.Option{breaker.WithTimeout(limit)} })},
		} {
			t.Run(name, func(t *testing.T) {
				tr := transport(t, nil, r0(opts...))
				ctx, cancel := context.WithTimeout(breakerhttp.PerRequest(t.Context(), breakerhttp.NoBreaker()), patience/4)
				defer cancel()
				call := func() {
					_, _, err := send(t, tr, request(t, http.MethodGet, up.URL, nil).WithContext(ctx))
					require.ErrorIs(t, err, context.DeadlineExceeded)
					require.NoError(t, ctx.Err())
				}
				call()
				for name := range tr.Circuits() {
					t.Fatalf("there is a circuit %s", name)
				}
				open(t, tr, up.URL)
				call()
			})
		}
	})
}

// Options in a context go on top of the Transport's and of those that are there.
func TestPerRequest(t *testing.T) {
	up := serve(t, statuses(503))
	backup := serve(t, statuses(200))
	attempts := func(tr *breakerhttp.Transport, ctx context.Context) int64 {
		before := up.hits.Load()
		_, _, err := send(t, tr, request(t, http.MethodGet, up.URL, nil).WithContext(ctx))
		require.NoError(t, err)
		return up.hits.Load() - before
	}
	plain, retrying := transport(t, nil), transport(t, nil, quick(1), breakerhttp.WithBreaker(breaker.WithFailureThreshold(99)))
	require.EqualValues(t, 1, attempts(plain, t.Context()))
	three := breakerhttp.PerRequest(t.Context(), breakerhttp.Retries(3, 0), nil)
	require.EqualValues(t, 4, attempts(transport(t, nil), three))
	require.EqualValues(t, 4, attempts(retrying, three))
	require.EqualValues(t, 1, attempts(retrying, breakerhttp.PerRequest(three, breakerhttp.Retries(0, 0))))
	require.EqualValues(t, 2, attempts(retrying, t.Context()))

	fails := breakerhttp.PerRequest(t.Context(), breakerhttp.Failover(refused(t)))
	code, _, err := send(t, retrying, request(t, http.MethodGet, up.URL, nil).WithContext(breakerhttp.PerRequest(fails, breakerhttp.Failover(backup.URL))))
	require.NoError(t, err)
	require.Equal(t, 200, code)

	for _, bad := range []breakerhttp.RequestOption{breakerhttp.Retries(-1, 0), breakerhttp.Retries(1, -1), breakerhttp.Cache(-1), breakerhttp.AttemptTimeout(-1), breakerhttp.Failover("nowhere"), breakerhttp.Failover("http://u:hunter2@h?x")} {
		_, _, err := send(t, plain, request(t, http.MethodGet, up.URL, nil).WithContext(breakerhttp.PerRequest(t.Context(), bad)))
		require.ErrorContains(t, err, "breakerhttp: ")
		require.NotContains(t, err.Error(), "hunter2")
	}
}

func TestPerRequestCache(t *testing.T) {
	for name, opts := range map[string][]breakerhttp.Option{"own memory": nil, "the transport's": {breakerhttp.WithResponseCache(nil, time.Minute)}} {
		t.Run(name, func(t *testing.T) {
			clk := clock.NewMock()
			down := false
			tr := transport(t, roundTripper(func(*http.Request) (*http.Response, error) {
				if down {
					return nil, errBoom
				}
				return answer(200, nil), nil
			}), append(opts, breakerhttp.WithBreaker(breaker.WithClock(clk), breaker.WithFailureThreshold(99)))...)
			call := func(o ...breakerhttp.RequestOption) error {
				_, _, err := send(t, tr, request(t, http.MethodGet, "http://up.example", nil).WithContext(breakerhttp.PerRequest(t.Context(), o...)))
				return err
			}
			require.NoError(t, call(breakerhttp.Cache(10*time.Second)))
			down = true
			require.NoError(t, call(breakerhttp.Cache(10*time.Second)))
			require.Error(t, call(breakerhttp.Cache(0)))
			clk.Add(10 * time.Second)
			require.Error(t, call(breakerhttp.Cache(10*time.Second)))
		})
	}
}

// M12: the whole stack. Three retries that wait, the answer from before, and the circuit opens at the fifth failure.
func TestFullStack(t *testing.T) {
	clk := newFakeClock()
	e := &events{}
	up := serve(t, statuses(200, 503))
	tr := transport(t, nil, breakerhttp.WithBreaker(breaker.WithClock(clk), breaker.WithOpenTimeout(15*time.Second), e.hooks()),
		breakerhttp.RetryUnsafe(), breakerhttp.WithRescueHeader(""), breakerhttp.WithRetry(breaker.NoJitter()))
	call := func() *http.Response {
		ctx := breakerhttp.PerRequest(t.Context(), breakerhttp.Retries(3, 500*time.Millisecond), breakerhttp.Cache(time.Hour))
		resp, err := tr.RoundTrip(request(t, http.MethodPost, up.URL, strings.NewReader(`{"q":1}`)).WithContext(ctx))
		require.NoError(t, err)
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, "answer", string(b))
		return resp
	}
	guard(t, func() {
		require.Empty(t, call().Header.Get("X-Rescued"))
		go func() {
			for _, d := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second} {
				clk.pass(t, d)
			}
		}()
		require.Equal(t, "cache", call().Header.Get("X-Rescued"))
		require.EqualValues(t, 5, up.hits.Load())
		require.Equal(t, breaker.Closed, state(t, tr, up.URL))
		require.Equal(t, "cache", call().Header.Get("X-Rescued"), "the fifth failure opens: no wait")
		require.EqualValues(t, 6, up.hits.Load())
		require.Equal(t, breaker.Open, state(t, tr, up.URL))
	})
}

// once answers the first request, and 503 to the others.
func once(f http.HandlerFunc) http.HandlerFunc {
	var n atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1) > 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		f(w, r)
	}
}

// A header that was put into the map under another spelling goes out all the same, and so it counts.
func TestSpellingOfHeaders(t *testing.T) {
	set := func(r *http.Request, name, value string) { r.Header[name] = []string{value} }
	t.Run("failover", func(t *testing.T) {
		guard(t, func() {
			var got http.Header
			host := serve(t, statuses(503))
			backup := serve(t, func(_ http.ResponseWriter, r *http.Request) { got = r.Header })
			names := []string{"authorization", "COOKIE", "x-api-key", "private-token", "x-vault-token", "ocp-apim-subscription-key", "x-auth-key"}
			call := func(failover string) {
				req := request(t, http.MethodGet, host.URL, nil)
				for _, name := range names {
					set(req, name, "secret")
				}
				set(req, "x-other", "kept")
				code, _, err := send(t, transport(t, nil, breakerhttp.WithFailover(failover)), req)
				require.NoError(t, err)
				require.Equal(t, 200, code)
				require.Equal(t, "secret", req.Header[names[0]][0])
				require.Equal(t, "kept", got.Get("X-Other"))
			}
			call(backup.URL)
			for _, name := range names {
				require.Empty(t, got.Get(name), name)
			}
			call(strings.Replace(backup.URL, "http://", "http://me:pw@", 1))
			require.Len(t, got.Values("Authorization"), 1)
		})
	})
	t.Run("cached requests", func(t *testing.T) {
		guard(t, func() {
			for name, shared := range map[string]bool{"user-agent": true, "x-plain": false, "authorization": false, "cookie": false, "x-api-key": false,
				"x-vault-token": false, "range": false, "accept-language": false, "accept-encoding": false} {
				up := serve(t, once(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Header.Get(name)) }))
				tr := transport(t, nil, breakerhttp.WithResponseCache(nil, time.Minute, "Accept-Language"))
				for i, user := range []string{"alice", "bob"} {
					req := request(t, http.MethodGet, up.URL, nil)
					set(req, name, user)
					code, _, err := send(t, tr, req)
					require.NoError(t, err)
					require.Equal(t, i == 0 || shared, code == 200, name)
				}
			}
			up := serve(t, once(func(http.ResponseWriter, *http.Request) {}))
			tr := transport(t, nil, breakerhttp.WithResponseCache(nil, time.Minute, "Accept-Language"))
			for _, name := range []string{"accept-language", "Accept-Language", "ACCEPT-LANGUAGE"} {
				req := request(t, http.MethodGet, up.URL, nil)
				set(req, name, "de")
				code, _, err := send(t, tr, req)
				require.NoError(t, err)
				require.Equal(t, 200, code, name)
			}
		})
	})
	t.Run("cached answers", func(t *testing.T) {
		guard(t, func() {
			for name, value := range map[string]string{"cache-control": "no-store", "vary": "User-Agent", "set-cookie": "a=b"} {
				up := serve(t, once(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "mine") }))
				tr := transport(t, roundTripper(func(r *http.Request) (*http.Response, error) {
					resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
					if err == nil {
						resp.Header[name] = []string{value} // as by a middleware
					}
					return resp, err
				}), breakerhttp.WithResponseCache(nil, time.Minute))
				for _, want := range []int{200, 503} {
					code, _, err := send(t, tr, request(t, http.MethodGet, up.URL, nil))
					require.NoError(t, err)
					require.Equal(t, want, code, name)
				}
			}
		})
	})
}

// Trailers come after the body, and not all are announced. An answer that has lost them is another one.
func TestAnswersWithTrailersAreNotCached(t *testing.T) {
	readAll := func(r io.Reader) error { _, err := io.Copy(io.Discard, r); return err }
	readBytes := func(r io.Reader) error { _, err := io.ReadFull(r, make([]byte, len("data"))); return err }
	for name, c := range map[string]struct {
		http2, flush, empty, trailer bool
		read                         func(io.Reader) error
		kept                         bool
	}{
		"trailer":               {flush: true, trailer: true, read: readAll},
		"none":                  {flush: true, read: readAll, kept: true},
		"h2 trailer":            {http2: true, flush: true, trailer: true, read: readAll},
		"h2 trailer and length": {http2: true, trailer: true, read: readAll},
		"h2 length":             {http2: true, read: readAll, kept: true},
		"h2 trailer, no body":   {http2: true, empty: true, trailer: true, read: readAll},
		"h2 no body":            {http2: true, empty: true, read: readAll, kept: true},
		"h2 length, no end":     {http2: true, read: readBytes, kept: true},
	} {
		t.Run(name, func(t *testing.T) {
			guard(t, func() {
				up := httptest.NewUnstartedServer(once(func(w http.ResponseWriter, _ *http.Request) {
					if !c.empty {
						_, _ = io.WriteString(w, "data")
					}
					if c.flush {
						w.(http.Flusher).Flush()
					}
					if c.trailer {
						w.Header().Set(http.TrailerPrefix+"X-Error", "truncated")
					}
				}))
				up.EnableHTTP2 = c.http2
				up.StartTLS()
				defer up.Close()
				rt := up.Client().Transport.(*http.Transport)
				defer rt.CloseIdleConnections()
				tr := transport(t, rt, breakerhttp.WithResponseCache(nil, time.Minute))
				for i := range 2 {
					resp, err := tr.RoundTrip(request(t, http.MethodGet, up.URL, nil))
					require.NoError(t, err)
					require.Equal(t, i == 0 || c.kept, resp.StatusCode == 200)
					require.NoError(t, c.read(resp.Body))
					if i == 0 {
						require.Equal(t, c.http2, resp.ProtoMajor == 2)
						require.Equal(t, c.flush, resp.ContentLength < 0)
						require.Equal(t, c.trailer, len(resp.Trailer) > 0)
					}
					require.NoError(t, resp.Body.Close())
				}
			})
		})
	}
}
