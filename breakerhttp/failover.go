package breakerhttp

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// credentialHeaders keep answers out of a cache unless they are named.
var credentialHeaders = []string{
	"Authorization", "Proxy-Authorization", "Cookie", "Cookie2", "Www-Authenticate", "Proxy-Authenticate",
	"Api-Key", "X-Api-Key", "X-Goog-Api-Key", "X-Auth-Token", "X-Access-Token", "X-Amz-Security-Token",
	"Private-Token", "X-Vault-Token", "Ocp-Apim-Subscription-Key", "X-Auth-Key",
}

// credentialWords are what the names of headers with credentials are made of.
var credentialWords = []string{"auth", "cookie", "credential", "csrf", "jwt", "key", "passw", "secret", "session", "signature", "token", "xsrf"}

// noCredentials are headers whose names have such a word, and that hold no credentials all the same.
var noCredentials = []string{"Idempotency-Key", "X-Idempotency-Key", "Sec-Websocket-Key", "Author", "X-Author", "Authority"}

// mayBeCredential reports whether a header looks like one that is meant for the host that was addressed alone.
func mayBeCredential(name string) bool {
	if slices.Contains(noCredentials, http.CanonicalHeaderKey(name)) {
		return false
	}
	name = strings.ToLower(name)
	return slices.ContainsFunc(credentialWords, func(word string) bool { return strings.Contains(name, word) })
}

// staysHome reports whether a header must not go to another host.
func (t *Transport) staysHome(name string, values []string) bool {
	as := http.CanonicalHeaderKey(name)
	switch {
	case slices.Contains(t.dropped, as):
		return true
	case slices.Contains(t.kept, as):
		return false
	case as == "Referer": // a query, or userinfo, may hold what the path does not
		return slices.ContainsFunc(values, func(v string) bool { return strings.ContainsAny(v, "?@") })
	}
	return mayBeCredential(name)
}

// keyElsewhere is the key of a request's circuit at another host.
func (t *Transport) keyElsewhere(req *http.Request, to *url.URL) string {
	if t.key == nil {
		return t.keys.get(to)
	}
	r, _ := t.redirected(req, to)
	return t.keyOf(r)
}

// redirected is a copy of the request that goes to another host, and whether it had to leave credentials behind.
func (t *Transport) redirected(req *http.Request, to *url.URL) (r *http.Request, bare bool) {
	r = req.WithContext(req.Context())
	r.Header = req.Header.Clone()
	r.URL, r.Host = elsewhere(req.URL, to), to.Host
	if originOf(to) != originOf(req.URL) {
		before := len(r.Header)
		maps.DeleteFunc(r.Header, t.staysHome)
		bare = len(r.Header) < before
	}
	if to.User != nil {
		if r.Header == nil {
			r.Header = make(http.Header)
		}
		remove(r.Header, "Authorization")
		password, _ := to.User.Password()
		r.SetBasicAuth(to.User.Username(), password)
	}
	return r, bare
}

// leadBack makes a relative Location of another host's answer lead to where that host meant it to: the caller would take
// it for one of the host that was addressed.
func leadBack(resp *http.Response, there *url.URL) {
	for _, name := range []string{"Location", "Content-Location"} {
		ref, err := url.Parse(resp.Header.Get(name))
		if err == nil && *ref != (url.URL{}) && !ref.IsAbs() {
			resp.Header.Set(name, there.ResolveReference(ref).String())
		}
	}
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
