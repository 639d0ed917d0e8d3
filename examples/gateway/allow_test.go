package main

import (
	"context"
	"encoding/binary"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAllowListSet(t *testing.T) {
	a := allowList{}
	require.NoError(t, a.Set("API.Example.:443, 127.0.0.1:8080"))
	require.NoError(t, a.Set("[0:0::1]:9"))
	require.NoError(t, a.Set("[::ffff:10.0.0.1]:80"))
	require.Equal(t, "10.0.0.1:80,127.0.0.1:8080,[::1]:9,api.example:443", a.String())
	require.Empty(t, allowList(nil).String())
	for _, bad := range []string{"", "api.example", "api.example:", ":80", "a:0", "a:65536", "a:http", "http://a:80", "*:80",
		"a/b:80", "user@a:80", "bücher.example:80", "0.0.0.0:80", "[::]:80", ".:80", "a:80,"} {
		require.Error(t, allowList{}.Set(bad), bad)
	}
}

func TestAllowListURLs(t *testing.T) {
	a := allowList{}
	require.NoError(t, a.Set("api.example:443,api.example:80,127.0.0.1:8080,[::1]:80"))
	for s, want := range map[string]bool{
		"https://api.example/x?y":        true,
		"https://API.EXAMPLE.:443":       true,
		"http://api.example":             true,
		"http://api.example:":            true,
		"http://127.0.0.1:8080":          true,
		"http://[::ffff:127.0.0.1]:8080": true,
		"http://[0::1]/":                 true,
		"http://api.example:8080":        false,
		"http://127.0.0.1":               false,
		"http://127.1:8080":              false,
		"http://0x7f000001:8080":         false,
		"http://localhost:8080":          false,
		"http://evil.api.example":        false,
		"http://api.example.evil":        false,
	} {
		u, err := url.Parse(s)
		require.NoError(t, err)
		require.Equal(t, want, a.allows(u), s)
	}
}

func TestCheckDial(t *testing.T) {
	a := allowList{}
	require.NoError(t, a.Set("api.example:443,localhost:80,10.0.0.5:443,inside.example:443"))
	for _, c := range []struct {
		asked, resolved string
		ok              bool
	}{
		{"api.example:443", "93.184.215.14:443", true},
		{"API.example.:443", "[2606:2800:21f::1]:443", true},
		{"inside.example:443", "10.0.0.5:443", true}, // on the list itself
		{"inside.example:443", "[::ffff:10.0.0.5]:443", true},
		{"localhost:80", "127.0.0.1:80", true},
		{"localhost:80", "[::1]:80", true},
		{"localhost:80", "10.0.0.6:80", false},
		{"10.0.0.5:443", "10.0.0.5:443", true},
		{"10.0.0.6:443", "10.0.0.6:443", false},
		{"other.example:443", "93.184.215.14:443", false},
		{"api.example:443", "93.184.215.14:80", false}, // another port
		{"api.example:443", "127.0.0.1:443", false},
		{"api.example:443", "[::1]:443", false},
		{"api.example:443", "10.0.0.6:443", false},
		{"api.example:443", "172.16.0.1:443", false},
		{"api.example:443", "192.168.1.1:443", false},
		{"api.example:443", "169.254.169.254:443", false},
		{"api.example:443", "100.64.0.1:443", false},
		{"api.example:443", "0.0.0.0:443", false},
		{"api.example:443", "224.0.0.1:443", false},
		{"api.example:443", "255.255.255.255:443", false},
		{"api.example:443", "[fd00::1]:443", false},
		{"api.example:443", "[fe80::1]:443", false},
		{"api.example:443", "[::ffff:127.0.0.1]:443", false},
		{"api.example:443", "[64:ff9b::7f00:1]:443", false},
		{"api.example:443", "[2002:7f00:1::]:443", false},
		{"api.example:443", "nonsense", false},
		{"nonsense", "93.184.215.14:443", false},
	} {
		require.Equal(t, c.ok, a.checkDial(c.asked, c.resolved) == nil, "%s at %s", c.asked, c.resolved)
	}
}

// A name that is allowed, but leads to this machine, leads nowhere: not as target and not as failover.
func TestNameThatLeadsInside(t *testing.T) {
	inside, outside := newUpstream(t, "inside"), newUpstream(t, "outside")
	_, port, err := net.SplitHostPort(inside.addr)
	require.NoError(t, err)
	name := "rebound.example.:" + port
	resolver := func(s *settings) { s.resolver = resolverTo127(t) }

	b := newBench(t, resolver, name, outside.addr)
	a := b.send(http.MethodGet, "", "X-Target-URL", "http://"+name, "X-Circuit-Breaker", "on")
	require.Equal(t, 403, a.status, a.body)
	require.EqualValues(t, 1, b.circuit("rebound.example:"+port).Totals.Ignored, "it says nothing about the host")

	outside.set(http.StatusBadGateway)
	a = b.send(http.MethodGet, "", "X-Target-URL", "http://"+outside.addr, "X-Circuit-Breaker", "on", "X-Failover-URL", "http://"+name)
	require.Equal(t, "outside is down\n", a.body)
	require.Zero(t, inside.count())

	b = newBench(t, resolver, name, inside.addr)
	a = b.send(http.MethodGet, "", "X-Target-URL", "http://"+name, "X-Circuit-Breaker", "on")
	require.Equal(t, "inside, call 1", a.body, "the address is on the list itself")
}

// Redirects go back to the caller. Nobody follows them past the list.
func TestRedirectIsNotFollowed(t *testing.T) {
	inside := newUpstream(t, "inside")
	outside := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://"+inside.addr+"/secrets", http.StatusFound)
	})
	b := newBench(t, nil, outside)
	a := b.send(http.MethodGet, "", "X-Target-URL", "http://"+outside)
	require.Equal(t, http.StatusFound, a.status)
	require.Equal(t, "http://"+inside.addr+"/secrets", a.header.Get("Location"))
	require.Zero(t, inside.count())
}

// A proxy in the environment would be dialled in place of the target.
func TestNoProxyFromEnvironment(t *testing.T) {
	g, err := newGateway(defaultSettings())
	require.NoError(t, err)
	defer g.Close()
	require.Nil(t, baseOf(g).Proxy)
}

// The empty list allows nothing, not even what it is not asked about.
func TestEmptyAllowList(t *testing.T) {
	up := newUpstream(t, "up")
	b := newBench(t, nil)
	require.Equal(t, 403, b.send(http.MethodGet, "", "X-Target-URL", "http://"+up.addr).status)
	_, err := allowList{}.dialContext(nil)(context.Background(), "tcp", up.addr)
	require.ErrorIs(t, err, errNotAllowed)
	require.Zero(t, up.count())
}

// resolverTo127 is a resolver whose DNS server says 127.0.0.1 whatever the name.
func resolverTo127(t *testing.T) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	var done atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		query := make([]byte, 512)
		for !done.Load() {
			if n, from, err := conn.ReadFrom(query); err == nil {
				_, _ = conn.WriteTo(answer127(query[:n]), from)
			}
		}
	}()
	t.Cleanup(func() {
		done.Store(true)
		_ = conn.Close()
		<-ended
	})
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// answer127 turns a query of one question into its answer: an A record, or nothing for other types.
func answer127(query []byte) []byte {
	end := 12
	for query[end] != 0 {
		end += int(query[end]) + 1
	}
	end += 5 // the name's end, type and class
	isA := binary.BigEndian.Uint16(query[end-4:]) == 1
	msg := append([]byte{}, query[:end]...)
	msg[2], msg[3] = 0x81, 0x80 // a response, recursion available
	clear(msg[6:12])
	if !isA {
		return msg
	}
	msg[7] = 1
	return append(msg, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 127, 0, 0, 1)
}
