package main

import (
	"context"
	"flag"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFlags(t *testing.T) {
	f, err := parseFlags(strings.Fields("-allow a:1,b:2 -allow c:3 -open 5s -window 10s -failures 3 -jitter 0 -max-body 9 -retry-unsafe"), io.Discard)
	require.NoError(t, err)
	require.Equal(t, "a:1,b:2,c:3", f.allow.String())
	require.Equal(t, []any{5 * time.Second, 10 * time.Second, 3, 0.0, int64(9), true},
		[]any{f.open, f.window, f.failures, f.jitter, f.maxBody, f.retryUnsafe})

	f, err = parseFlags(nil, io.Discard)
	require.NoError(t, err)
	require.Empty(t, f.allow)
	require.Equal(t, []any{5, time.Minute, 15 * time.Second, "127.0.0.1:8080"}, []any{f.failures, f.window, f.open, f.listen})

	for _, bad := range []string{"-allow nonsense", "extra", "-unknown", "-open x"} {
		_, err := parseFlags(strings.Fields(bad), io.Discard)
		require.Error(t, err, bad)
	}
}

func TestRunRefuses(t *testing.T) {
	for args, says := range map[string]string{
		"-h":                flag.ErrHelp.Error(),
		"-failures 0":       "FailureThreshold",
		"-jitter 2":         "AddJitter",
		"-listen 0.0.0.0:0": "loopback",
		"-listen :0":        "loopback",
		"-listen 127.0.0.1:0 -admin 192.168.0.1:0":   "loopback",
		"-listen 127.0.0.1:0 -admin example.com:443": "loopback",
	} {
		require.ErrorContains(t, run(context.Background(), strings.Fields(args), io.Discard, io.Discard), says, args)
	}
}

// A program that is told to end answers what it has begun, takes nothing new, and leaves nothing behind.
func TestShutdown(t *testing.T) {
	up := newUpstream(t, "up")
	release := up.hold()
	defer release()
	b := newBench(t, nil, up.addr)
	public, err := listen("127.0.0.1:0")
	require.NoError(t, err)
	admin, err := listen("127.0.0.1:0")
	require.NoError(t, err)
	b.url, b.admin = "http://"+public.Addr().String()+"/", "http://"+admin.Addr().String()+"/-/circuits"

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, b.g, public, admin, patience) }()
	begun := make(chan answer, 1)
	go func() {
		a, err := b.try(http.MethodGet, "", "X-Target-URL", "http://"+up.addr, "X-Circuit-Breaker", "on")
		if err != nil {
			a.body = err.Error()
		}
		begun <- a
	}()
	b.eventually("a request under way", func() bool { return up.count() == 1 })
	require.EqualValues(t, 1, b.circuit(up.addr).InFlight)

	cancel()
	b.eventually("nothing new", func() bool {
		conn, err := net.Dial("tcp", public.Addr().String())
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	release()
	require.Equal(t, "up, call 1", (<-begun).body)
	require.NoError(t, <-ended)
}

// What takes longer than the grace is cut off.
func TestShutdownGraceEnds(t *testing.T) {
	up := newUpstream(t, "up")
	release := up.hold()
	defer release()
	b := newBench(t, nil, up.addr)
	public, err := listen("127.0.0.1:0")
	require.NoError(t, err)
	admin, err := listen("127.0.0.1:0")
	require.NoError(t, err)
	b.url = "http://" + public.Addr().String() + "/"
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended, begun := make(chan error, 1), make(chan error, 1)
	go func() { ended <- serve(ctx, b.g, public, admin, 10*time.Millisecond) }()
	go func() {
		_, err := b.try(http.MethodGet, "", "X-Target-URL", "http://"+up.addr)
		begun <- err
	}()
	b.eventually("a request under way", func() bool { return up.count() == 1 })
	cancel()
	require.ErrorContains(t, <-ended, "cut off")
	require.Error(t, <-begun)
}

// A page whose name was made to resolve to this machine is turned away.
func TestOnlyLocal(t *testing.T) {
	h := onlyLocal(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for host, status := range map[string]int{
		"127.0.0.1:8080": 200, "127.0.0.1": 200, "[::1]:8080": 200, "[::1]": 200, "localhost:8080": 200, "LOCALHOST": 200,
		"page.example:8080": 421, "localhost.page.example": 421, "10.0.0.1": 421, "": 421,
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		require.Equal(t, status, w.Code, host)
	}
}

// A listener that breaks ends the program with its error.
func TestServeFails(t *testing.T) {
	b := newBench(t, nil)
	public, err := listen("127.0.0.1:0")
	require.NoError(t, err)
	admin, err := listen("127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, public.Close())
	require.ErrorIs(t, serve(context.Background(), b.g, public, admin, time.Second), net.ErrClosed)
}

// An upstream can be broken by hand.
func TestSwitchUpstream(t *testing.T) {
	up := newUpstream(t, "up")
	b := newBench(t, nil, up.addr)
	put := func(method, body string) int {
		return b.send(method, body, "X-Target-URL", "http://"+up.addr+switchPath).status
	}
	require.Equal(t, 200, put(http.MethodPut, "503"))
	require.Equal(t, 503, b.send(http.MethodGet, "", "X-Target-URL", "http://"+up.addr).status)
	for _, bad := range []string{"", "x", "199", "600", "11111111111111111111"} {
		require.Equal(t, 400, put(http.MethodPut, bad), bad)
	}
	require.Equal(t, 400, put(http.MethodPost, "200"))
}

// The demo's story happens, and it says so.
func TestDemo(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var out strings.Builder
	require.NoError(t, run(ctx, []string{"-demo"}, &out, io.Discard), out.String())
	for _, line := range []string{
		"  the model is down: 4 attempts, then the cache      200        cache        +4 = 5  closed\n",
		"  15s later, well: 20 at once, 1 is the probe        20 x 200   19 x cache   +1 = 8  closed\n",
		"  open: the backup bank at once                      200        failover     +0 = 7  open\n",
		"steps went as they should.\n",
	} {
		require.Contains(t, out.String(), line)
	}
	require.Less(t, strings.Count(out.String(), "\n"), 55)
}
