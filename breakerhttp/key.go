package breakerhttp

import (
	"hash/maphash"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/breakerkit/breaker"
)

// originOf is the key of a URL: its scheme, host and port, in one spelling. Userinfo, path and query have no place in it.
func originOf(u *url.URL) string { return origin(u.Scheme, u.Host) }

func origin(scheme, host string) string {
	scheme = strings.ToLower(scheme)
	if i := strings.IndexAny(host, "/?#"); i >= 0 { // a Host set by hand may hold anything
		host = host[:i]
	}
	host = host[strings.LastIndexByte(host, '@')+1:]
	host = strings.TrimRight(strings.ToLower(host), ":")
	name, port := host, ""
	if i := strings.LastIndexByte(host, ':'); i > strings.LastIndexByte(host, ']') {
		name, port = host[:i], host[i+1:]
	}
	name = address(strings.TrimRight(name, "."))
	if p := strings.TrimLeft(port, "0"); p != "" { // 0 itself stays
		port = p
	}
	if port == "" || port == defaultPorts[scheme] {
		return scheme + "://" + name
	}
	return scheme + "://" + name + ":" + port
}

// address is an IPv6 literal in its one spelling, and any other name as it is. An IPv4 address in an IPv6 one is where
// its IPv4 address is.
func address(name string) string {
	if !strings.HasPrefix(name, "[") || !strings.HasSuffix(name, "]") {
		return name
	}
	a, err := netip.ParseAddr(name[1 : len(name)-1])
	switch {
	case err != nil || a.Is4(): // neither belongs into brackets
		return name
	case a.Is4In6() && a.Zone() == "":
		return a.Unmap().String()
	}
	return "[" + a.String() + "]"
}

var defaultPorts = map[string]string{"http": "80", "https": "443", "ws": "80", "wss": "443"}

// keyCache remembers the keys and circuits of hosts, so that the common request builds no string and asks the group for
// nothing. Hosts that share a slot take turns.
type keyCache struct {
	seed   maphash.Seed
	recent atomic.Pointer[keySlot] // the one that was filled last
	slots  [64]atomic.Pointer[keySlot]
}

type keySlot struct {
	scheme, host, key string
	breaker           *breaker.Breaker[struct{}] // nil: not known
	evictions         uint64                     // of the group, when it was asked
}

func (s *keySlot) is(u *url.URL) bool { return s != nil && s.host == u.Host && s.scheme == u.Scheme }

// find is what is known of a host; nil: nothing.
func (c *keyCache) find(u *url.URL) *keySlot {
	if s := c.recent.Load(); s.is(u) {
		return s
	}
	if s := c.at(u.Host).Load(); s.is(u) {
		return s
	}
	return nil
}

func (c *keyCache) at(host string) *atomic.Pointer[keySlot] {
	return &c.slots[maphash.String(c.seed, host)%uint64(len(c.slots))]
}

func (c *keyCache) fill(s *keySlot) {
	c.at(s.host).Store(s)
	c.recent.Store(s)
}

func (c *keyCache) get(u *url.URL) string {
	s := c.find(u)
	if s == nil {
		s = &keySlot{scheme: strings.Clone(u.Scheme), host: strings.Clone(u.Host), key: originOf(u)}
		c.fill(s)
	}
	return s.key
}

// keyOf is the key of a request's circuit.
func (t *Transport) keyOf(req *http.Request) string {
	if t.key != nil {
		if key := t.key(req); key != "" {
			return key
		}
	}
	return t.keys.get(req.URL)
}

// breakerOf is the breaker of a request.
func (t *Transport) breakerOf(req *http.Request) *breaker.Breaker[struct{}] {
	if t.key != nil {
		return t.group.Get(t.keyOf(req))
	}
	evictions := evictionsOf(t.group)
	if s := t.keys.find(req.URL); s != nil && s.breaker != nil && s.evictions == evictions {
		return s.breaker
	}
	key := t.keys.get(req.URL)
	b := t.group.Get(key)
	if kept, ok := t.group.Lookup(key); ok && kept == b { // one that found no room is asked for again
		t.keys.fill(&keySlot{strings.Clone(req.URL.Scheme), strings.Clone(req.URL.Host), key, b, evictions})
	}
	return b
}
