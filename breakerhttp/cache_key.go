package breakerhttp

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
)

// choosesNothing are the request headers that are left out of a cache's key unless they are named: they identify a
// message or its sender's software, or are for the connection or the cache itself, and choose no answer. Any other header
// may choose one, so that all others are part of the key.
var choosesNothing = map[string]bool{
	"User-Agent": true, "Date": true, "Content-Length": true, "Cache-Control": true, "Pragma": true,
	"Connection": true, "Keep-Alive": true, "Proxy-Connection": true, "Te": true, "Trailer": true, "Transfer-Encoding": true, "Expect": true,
	"Request-Id": true, "X-Request-Id": true, "Correlation-Id": true, "X-Correlation-Id": true,
	"Traceparent": true, "Tracestate": true, "Sentry-Trace": true, "Uber-Trace-Id": true, "X-Amzn-Trace-Id": true, "X-Cloud-Trace-Context": true,
	"B3": true, "X-B3-Traceid": true, "X-B3-Spanid": true, "X-B3-Parentspanid": true, "X-B3-Sampled": true, "X-B3-Flags": true,
	"X-Datadog-Trace-Id": true, "X-Datadog-Parent-Id": true, "X-Datadog-Sampling-Priority": true,
}

// inKey reports whether a header is part of the key. The name is in net/http's spelling.
func (c *responseCache) inKey(name string) bool {
	if slices.Contains(c.headers, name) {
		return true
	}
	return !choosesNothing[name] && !slices.Contains(c.without, name)
}

// keyOf is the key of a request, or "" where its answer must not be kept. It is a hash: what is in the request does not
// show in the cache's keys.
func (c *responseCache) keyOf(req *http.Request) string {
	switch req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch:
	default:
		return ""
	}
	header := canonical(req.Header)
	if header["Range"] != nil || len(req.Trailer) > 0 || directives(header).has("no-store") {
		return ""
	}
	for _, h := range credentialHeaders {
		if header[h] != nil && !slices.Contains(c.headers, h) {
			return ""
		}
	}
	sum := sha256.New()
	hashStrings(sum, methodOf(req))
	hashURL(sum, req)
	c.hashHeader(sum, header)
	if c.more != nil {
		hashStrings(sum, c.more(req))
	}
	if !hashBody(sum, req) {
		return ""
	}
	return "http:" + hex.EncodeToString(sum.Sum(nil))
}

// urlKey is the key under which a cache notes when a URL was last written to.
func urlKey(req *http.Request) string {
	sum := sha256.New()
	hashURL(sum, req)
	return "http-written:" + hex.EncodeToString(sum.Sum(nil))
}

func methodOf(req *http.Request) string {
	if req.Method == "" {
		return http.MethodGet
	}
	return req.Method
}

// safeMethod reports whether a method only reads.
func safeMethod(method string) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}

// canonical is h with every name in net/http's spelling. A header that was set in the map by another goes out all the same.
func canonical(h http.Header) http.Header {
	odd := false
	for name := range h {
		odd = odd || name != http.CanonicalHeaderKey(name)
	}
	if !odd {
		return h
	}
	all := make(http.Header, len(h))
	for _, name := range slices.Sorted(maps.Keys(h)) {
		as := http.CanonicalHeaderKey(name)
		all[as] = append(all[as], h[name]...)
	}
	return all
}

func hashURL(sum hash.Hash, req *http.Request) {
	u := url.URL{Scheme: req.URL.Scheme, Opaque: req.URL.Opaque, Host: req.URL.Host, Path: req.URL.Path,
		RawPath: req.URL.RawPath, RawQuery: req.URL.RawQuery}
	named := req.URL.Host
	if req.Host != "" {
		named = req.Host
	}
	hashStrings(sum, originOf(req.URL), u.RequestURI(), origin(req.URL.Scheme, named))
	// net/http makes an Authorization of the userinfo.
	if req.URL.User != nil {
		hashStrings(sum, req.URL.User.String())
	}
}

func (c *responseCache) hashHeader(sum hash.Hash, header http.Header) {
	for _, name := range slices.Sorted(maps.Keys(header)) {
		if values := header[name]; c.inKey(name) && len(values) > 0 {
			hashStrings(sum, name, strconv.Itoa(len(values)))
			hashStrings(sum, values...)
		}
	}
}

// sameHeader reports whether two requests have the same headers, as far as they are part of the key.
func (c *responseCache) sameHeader(a, b http.Header) bool {
	one, other := sha256.New(), sha256.New()
	c.hashHeader(one, canonical(a))
	c.hashHeader(other, canonical(b))
	return string(one.Sum(nil)) == string(other.Sum(nil))
}

// hashStrings writes each with its length, so that no two lists look alike.
func hashStrings(sum hash.Hash, all ...string) {
	for _, s := range all {
		_, _ = fmt.Fprintf(sum, "%d:%s", len(s), s)
	}
}

func hashBody(sum hash.Hash, req *http.Request) bool {
	if req.Body == nil || req.Body == http.NoBody {
		return true
	}
	if req.GetBody == nil || req.ContentLength < 0 || req.ContentLength > cacheBody {
		return false
	}
	b, err := req.GetBody()
	if err != nil {
		return false
	}
	defer b.Close()
	n, err := io.CopyN(sum, b, cacheBody+1)
	return err == io.EOF && n <= cacheBody
}
