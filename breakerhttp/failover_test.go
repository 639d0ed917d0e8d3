package breakerhttp_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakerhttp"
)

// What looks like a credential stays with the host that was addressed, under whatever name; the user may say otherwise.
func TestHeadersThatStayAtHome(t *testing.T) {
	stay := []string{"Anthropic-Api-Key", "X-Csrf-Token", "X-Session-Token", "Helicone-Auth", "Dd-Api-Key", "X-Xsrf", "Set-Session", "X-Client-Secret", "X-Password", "X-Jwt-Assertion"}
	goes := []string{"Accept", "X-Request-Id", "Idempotency-Key", "X-Author", "X-User-Id", "Content-Type"}
	var got http.Header
	backup := serve(t, func(_ http.ResponseWriter, r *http.Request) { got = r.Header })
	call := func(opts ...breakerhttp.Option) {
		req := request(t, http.MethodGet, refused(t), nil)
		for _, name := range append(stay, goes...) {
			req.Header.Set(name, "value")
		}
		req.Header.Set("Referer", "http://up.example/?secret")
		requireSend(t, transport(t, nil, append(opts, breakerhttp.WithFailover(backup.URL))...), req)
	}
	call()
	for _, name := range append(stay, "Referer") {
		require.Empty(t, got.Get(name), name)
	}
	for _, name := range goes {
		require.Equal(t, "value", got.Get(name), name)
	}
	call(breakerhttp.KeepHeaders("helicone-auth", "referer"), breakerhttp.DropHeaders("x-user-id"))
	require.Equal(t, "value", got.Get("Helicone-Auth"))
	require.NotEmpty(t, got.Get("Referer"))
	require.Empty(t, got.Get("X-User-Id"))
	require.Empty(t, got.Get("X-Csrf-Token"))
}

// Each host is asked once for a request, the one that it was addressed to included.
func TestFailoverAsksEachHostOnce(t *testing.T) {
	up, backup := serve(t, statuses(503)), serve(t, statuses(503))
	tr := transport(t, nil, breakerhttp.WithFailover(up.URL+"/other", backup.URL, backup.URL+"/x", up.URL))
	code, _, err := get(t, tr, up.URL)
	require.NoError(t, err)
	require.Equal(t, 503, code)
	require.EqualValues(t, 1, up.hits.Load())
	require.EqualValues(t, 1, backup.hits.Load())
}

// A relative Location of another host's answer leads where that host meant it to.
func TestFailoverRedirects(t *testing.T) {
	backup := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/here" {
			w.Header().Set("Location", "there?x=1")
			w.WriteHeader(http.StatusFound)
			return
		}
		_, _ = io.WriteString(w, r.Host+r.URL.String())
	})
	client := &http.Client{Transport: transport(t, nil, r0(), breakerhttp.WithFailover(backup.URL+"/v2"))}
	resp, err := client.Get(refused(t) + "/here")
	require.NoError(t, err)
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, hostOf(t, backup.URL)+"/v2/there?x=1", string(b))
}

// Another host that refuses us, without the credentials that stayed at home, is no rescue: the cache is asked, or the host's
// own answer stands.
func TestRefusalOfABareRequestIsNoRescue(t *testing.T) {
	backup := serve(t, statuses(401))
	e := &events{}
	up := serve(t, statuses(200, 503))
	tr := transport(t, nil, r0(e.hooks()), breakerhttp.WithFailover(backup.URL), breakerhttp.WithResponseCache(nil, time.Minute, "Authorization"), breakerhttp.WithRescueHeader(""))
	call := func(path string) *http.Response {
		resp, err := tr.RoundTrip(with(request(t, http.MethodGet, up.URL+path, nil), "Authorization", "me"))
		require.NoError(t, err)
		_, err = io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp
	}
	call("/a")
	require.Equal(t, "cache", call("/a").Header.Get("X-Rescued"))
	require.Equal(t, 503, call("/b").StatusCode)
	require.ErrorContains(t, e.rescues[0].Err, "401")
	// Without credentials a 401 is an answer.
	code, _, err := get(t, tr, refused(t))
	require.NoError(t, err)
	require.Equal(t, 401, code)
}

// The primary's circuit is open and the backup fails: the caller learns both.
func TestRejectedAndTheBackupFails(t *testing.T) {
	tr := transport(t, nil, r0(), breakerhttp.WithFailover(serve(t, statuses(500)).URL))
	open(t, tr, "http://up.example")
	_, _, err := get(t, tr, "http://up.example")
	require.ErrorIs(t, err, breaker.ErrOpen)
	var status *breakerhttp.StatusError
	require.ErrorAs(t, err, &status)
	require.Equal(t, 500, status.StatusCode)
}

// An Idempotency-Key is a promise of the host that it was made for: it goes elsewhere only after answers. A request that has found no connection has been seen by
// nobody, whatever its method.
func TestWhatMayGoElsewhere(t *testing.T) {
	hangsUp := func() string {
		return serve(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }).URL
	}
	for name, c := range map[string]struct {
		down   func() string
		unsafe bool
		want   int64
	}{
		"unanswered":         {down: hangsUp},
		"unanswered, unsafe": {down: hangsUp, unsafe: true, want: 1},
		"answered":           {down: func() string { return serve(t, statuses(503)).URL }, want: 1},
		"no connection":      {down: func() string { return refused(t) }, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			backup := serve(t, statuses(200))
			opts := []breakerhttp.Option{r0(), breakerhttp.WithFailover(backup.URL)}
			if c.unsafe {
				opts = append(opts, breakerhttp.RetryUnsafe())
			}
			req := request(t, http.MethodPost, c.down(), strings.NewReader("x"))
			req.Header.Set("Idempotency-Key", "1")
			_, _, err := send(t, transport(t, nil, opts...), req)
			require.Equal(t, c.want == 1, err == nil)
			require.Equal(t, c.want, backup.hits.Load())
		})
	}
	n := 0
	tr := transport(t, nil, r0(breaker.WithFailureThreshold(9), breaker.WithHooks(breaker.Hooks{})), quick(2), breakerhttp.WithClassifier(func(*http.Request, *http.Response, error) breaker.Outcome { n++; return breaker.Failure }))
	_, _, err := send(t, tr, request(t, http.MethodPost, refused(t), strings.NewReader("x")))
	require.Error(t, err)
	require.Equal(t, 3, n, "a POST that was never sent is tried again")
}

// BR-11: a certificate that nobody trusts is a Failure, and another handshake would end in the same way. 501 likewise.
func TestWhatIsNotWorthARetry(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.NotFoundHandler())
	srv.Config.ErrorLog = quiet
	up := &host{Server: srv}
	srv.Config.ConnState = up.count
	srv.StartTLS()
	defer srv.Close()
	tr := transport(t, nil, r0(), quick(3))
	_, _, err := get(t, tr, srv.URL)
	require.Error(t, err)
	require.EqualValues(t, 1, up.conns.Load())
	_, failed, _ := totals(t, tr, srv.URL)
	require.EqualValues(t, 1, failed)

	plain := serve(t, statuses(501))
	code, _, err := get(t, tr, plain.URL)
	require.NoError(t, err)
	require.Equal(t, 501, code)
	require.EqualValues(t, 1, plain.hits.Load())
	_, failed, _ = totals(t, tr, plain.URL)
	require.EqualValues(t, 1, failed)
}

// A key may hold anything; a header's value may not.
func TestDebugHeadersAreEscaped(t *testing.T) {
	tr := transport(t, answers(), breakerhttp.WithKey(func(*http.Request) string { return "a\r\nSet-Cookie: x=ü%" }), breakerhttp.WithDebugHeaders(""))
	resp, err := tr.RoundTrip(request(t, http.MethodGet, "http://up.example", nil))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, "a%0D%0ASet-Cookie:%20x=%C3%BC%25", resp.Header.Get("X-Breaker-Provider"))
}
