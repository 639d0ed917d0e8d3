package breakerhttp

import (
	"net/http"
	"net/url"
	"strings"
)

// credentialHeaders are dropped from requests that go to another host than they were meant for, and keep answers out of
// a cache that does not tell them apart.
var credentialHeaders = []string{
	"Authorization", "Proxy-Authorization", "Cookie", "Cookie2", "Www-Authenticate", "Proxy-Authenticate",
	"Api-Key", "X-Api-Key", "X-Goog-Api-Key", "X-Auth-Token", "X-Access-Token", "X-Amz-Security-Token",
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
	u := *req.URL
	u.Scheme, u.Host, u.User, u.Opaque = to.Scheme, to.Host, nil, ""
	if prefix := strings.TrimSuffix(to.Path, "/"); prefix != "" {
		u.Path = prefix + rooted(req.URL.Path)
		if u.RawPath != "" || to.RawPath != "" {
			u.RawPath = strings.TrimSuffix(to.EscapedPath(), "/") + rooted(req.URL.EscapedPath())
		}
	}
	r.URL, r.Host = &u, to.Host
	if originOf(to) != originOf(req.URL) {
		for _, h := range credentialHeaders {
			r.Header.Del(h)
		}
	}
	if to.User != nil {
		if r.Header == nil {
			r.Header = make(http.Header)
		}
		password, _ := to.User.Password()
		r.SetBasicAuth(to.User.Username(), password)
	}
	return r
}

func rooted(path string) string {
	if path == "" || strings.HasPrefix(path, "/") {
		return path
	}
	return "/" + path
}
