package breakerhttp

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// credentialHeaders are dropped from requests that go to another host than they were meant for, and keep answers out of
// a cache that does not tell them apart.
var credentialHeaders = []string{
	"Authorization", "Proxy-Authorization", "Cookie", "Cookie2", "Www-Authenticate", "Proxy-Authenticate",
	"Api-Key", "X-Api-Key", "X-Goog-Api-Key", "X-Auth-Token", "X-Access-Token", "X-Amz-Security-Token",
	"Private-Token", "X-Vault-Token", "Ocp-Apim-Subscription-Key", "X-Auth-Key",
}

// keyElsewhere is the key of a request's circuit at another host.
func (t *Transport) keyElsewhere(req *http.Request, to *url.URL) string {
	if t.key == nil {
		return t.keys.get(to)
	}
	return t.keyOf(redirected(req, to))
}

// redirected is a copy of the request that goes to another host.
func redirected(req *http.Request, to *url.URL) *http.Request {
	r := req.WithContext(req.Context())
	r.Header = req.Header.Clone()
	r.URL, r.Host = elsewhere(req.URL, to), to.Host
	if originOf(to) != originOf(req.URL) {
		remove(r.Header, credentialHeaders...)
	}
	if to.User != nil {
		if r.Header == nil {
			r.Header = make(http.Header)
		}
		remove(r.Header, "Authorization")
		password, _ := to.User.Password()
		r.SetBasicAuth(to.User.Username(), password)
	}
	return r
}

// remove deletes headers in whatever spelling they stand in the map; Del knows only one.
func remove(h http.Header, names ...string) {
	maps.DeleteFunc(h, func(name string, _ []string) bool {
		return slices.Contains(names, http.CanonicalHeaderKey(name))
	})
}

// elsewhere is the URL u at another host.
func elsewhere(u, to *url.URL) *url.URL {
	there := *u
	there.Scheme, there.Host, there.User, there.Opaque = to.Scheme, to.Host, nil, ""
	if u.Opaque != "" {
		there.Path, there.RawPath = opaquePath(u.Opaque)
	}
	if prefix := strings.TrimSuffix(to.Path, "/"); prefix != "" {
		if there.RawPath != "" || to.RawPath != "" {
			there.RawPath = strings.TrimSuffix(to.EscapedPath(), "/") + rooted(there.EscapedPath())
		}
		there.Path = prefix + rooted(there.Path)
	}
	return &there
}

// opaquePath is the path in an Opaque, which stands for it in a spelling of the caller's own, with the host or without.
func opaquePath(s string) (path, raw string) {
	if rest, ok := strings.CutPrefix(s, "//"); ok {
		_, s, _ = strings.Cut(rest, "/")
	}
	s = rooted(s)
	if path, err := url.PathUnescape(s); err == nil {
		return path, s
	}
	return s, ""
}

func rooted(path string) string {
	if path == "" || strings.HasPrefix(path, "/") {
		return path
	}
	return "/" + path
}
