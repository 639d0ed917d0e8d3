package breakerhttp

import (
	"hash/maphash"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
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
	name = strings.TrimRight(name, ".")
	if port == "" || port == defaultPorts[scheme] {
		return scheme + "://" + name
	}
	return scheme + "://" + name + ":" + port
}

var defaultPorts = map[string]string{"http": "80", "https": "443", "ws": "80", "wss": "443"}

// keyCache remembers how hosts are spelt as keys, so that the common request builds no string. Hosts that share a slot
// take turns.
type keyCache struct {
	seed  maphash.Seed
	slots [64]atomic.Pointer[keySlot]
}

type keySlot struct{ scheme, host, key string }

func (c *keyCache) get(u *url.URL) string {
	slot := &c.slots[maphash.String(c.seed, u.Host)%uint64(len(c.slots))]
	if s := slot.Load(); s != nil && s.host == u.Host && s.scheme == u.Scheme {
		return s.key
	}
	key := originOf(u)
	slot.Store(&keySlot{strings.Clone(u.Scheme), strings.Clone(u.Host), key})
	return key
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
