package breakerhttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/breakerkit/breaker"
)

const (
	cacheBody = 1 << 20 // the largest body that is kept, and the largest request body that is a key

	// A cache from outside never holds up a caller for long.
	cacheGetLimit = 100 * time.Millisecond
	cacheSetLimit = 5 * time.Second
	cacheSetters  = 16
)

// responseCache keeps answers as HTTP/1.1 messages: any process can read them back, whatever the version of this library.
// That an answer must not be given any more is kept in the same way, since a breaker.Cache removes nothing: an empty
// value in its place, or, for all answers of a URL, the time when that was written to.
type responseCache struct {
	store      breaker.Cache[[]byte]
	memory     bool // store is our own: fast, and never fails
	ttl        time.Duration
	headers    []string // that are in the key in any case; canonical
	without    []string // that are left out of it; canonical
	more       func(*http.Request) string
	serveStale bool
	now        func() time.Time
	setting    chan struct{} // a place for each Set under way
	removing   chan struct{} // for each that takes an answer away
}

func newResponseCache(d *cacheDraft, now func() time.Time) *responseCache {
	c := &responseCache{store: d.store, ttl: d.ttl, headers: d.headers, without: d.without, more: d.key, serveStale: d.serveStale, now: now}
	if c.store == nil {
		c.memory = true
		c.store = newMemoryCache(now)
	}
	c.setting, c.removing = make(chan struct{}, cacheSetters), make(chan struct{}, cacheSetters)
	return c
}

// recording is an answer on its way into the cache: it is kept once the caller has read all of it.
type recording struct {
	cache   *responseCache
	circuit *breaker.Circuit // whose hooks hear of a cache that fails
	ctx     context.Context
	key     string
	ttl     time.Duration
	started time.Time
	hide    func(http.Header)
	req     *http.Request // the caller's
	method  string

	until time.Time     // when the answer must not be given any more
	resp  http.Response // status and headers
	from  *http.Response
	body  []byte
	over  bool
	atEnd *ending // nil: the last byte is the end
}

// record starts a recording for an attempt of x that is about to be sent.
func (c *responseCache) record(x *exchange, circuit *breaker.Circuit) *recording {
	return &recording{cache: c, circuit: circuit, ctx: x.ctx, key: x.key, ttl: x.ttl, started: c.now(),
		hide: x.t.hideOwn, req: x.req, method: x.req.Method}
}

// accept takes a response's head, if the answer may be kept. sent is the request that the base says it has sent.
func (r *recording) accept(resp *http.Response, sent *http.Request) bool {
	switch resp.StatusCode {
	case http.StatusOK, http.StatusNonAuthoritativeInfo, http.StatusNoContent:
	default:
		return false
	}
	h := canonical(resp.Header)
	r.until = r.started.Add(lifetime(h, r.ttl, r.cache.now(), r.cache.serveStale))
	// The trailers that are announced; the others show at the end.
	if h["Set-Cookie"] != nil || !r.until.After(r.started) || len(resp.Trailer) > 0 ||
		resp.ContentLength > cacheBody && r.method != http.MethodHead || !r.cache.coversVary(h) {
		return false
	}
	// What the base added, such as a user's token, is not in the key, and chose the answer.
	if sent != nil && !r.cache.sameHeader(sent.Header, r.req.Header) {
		return false
	}
	r.resp = http.Response{StatusCode: resp.StatusCode, Header: h.Clone()}
	if r.resp.Header == nil {
		r.resp.Header = make(http.Header)
	}
	r.from = resp
	if resp.ProtoMajor >= 2 && resp.ContentLength > 0 && resp.Body != http.NoBody {
		r.atEnd = &ending{ReadCloser: resp.Body, r: r}
		resp.Body = r.atEnd
	}
	return true
}

// ending is a body after whose last byte trailers may come: from HTTP/2 on they may in spite of a Content-Length. The
// answer is kept when the end has come, or when the caller closes the body without a look at it.
type ending struct {
	io.ReadCloser
	r     *recording
	ended bool        // the end has come
	whole atomic.Bool // there is an answer to keep
}

func (e *ending) Read(p []byte) (n int, err error) {
	n, err = e.ReadCloser.Read(p)
	if err == nil {
		return n, nil
	}
	e.ended = err == io.EOF
	if e.whole.CompareAndSwap(true, false) && e.ended && len(e.r.from.Trailer) == 0 {
		e.r.keep()
	}
	return n, err
}

func (e *ending) Close() error {
	err := e.ReadCloser.Close()
	if e.whole.CompareAndSwap(true, false) {
		e.r.keep()
	}
	return err
}

// coversVary reports whether everything that the answer depends on is in the key.
func (c *responseCache) coversVary(h http.Header) bool {
	for _, line := range h["Vary"] {
		for name := range strings.SplitSeq(line, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			if name != "" && (name == "*" || !c.inKey(name)) {
				return false
			}
		}
	}
	return true
}

func (r *recording) add(p []byte) {
	if r.over = r.over || len(r.body)+len(p) > cacheBody; r.over {
		r.body = nil
		return
	}
	r.body = append(r.body, p...)
}

// complete keeps the answer, or leaves that to the end. One with trailers would lose them.
func (r *recording) complete() {
	switch {
	case r.over:
		r.remove()
	case r.atEnd != nil && !r.atEnd.ended:
		r.atEnd.whole.Store(true)
	case len(r.from.Trailer) == 0:
		r.keep()
	default:
		r.remove()
	}
}

func (r *recording) keep() {
	now := r.cache.now()
	left := r.ttl
	if r.until.Before(r.started.Add(r.ttl)) { // by its headers, which count from when it was made
		left = r.until.Sub(now)
	}
	if left <= 0 {
		return
	}
	r.hide(r.resp.Header)
	r.resp.Header.Set(storedHeader, strconv.FormatInt(now.Unix(), 10))
	r.resp.Header.Set(startedHeader, strconv.FormatInt(r.started.UnixNano(), 10))
	value := encode(&r.resp, r.body, r.method)
	if r.cache.memory {
		_ = r.cache.store.Set(r.ctx, r.key, value, r.started, left)
		return
	}
	select {
	case r.cache.setting <- struct{}{}:
		go r.cache.set(r.ctx, r.circuit, r.key, value, r.started, left, r.cache.setting)
	default: // it is too slow for what comes; a later answer will do
	}
}

// remove takes away what an earlier request has left: this answer is newer, and must not be kept.
func (r *recording) remove() { r.cache.put(r.ctx, r.circuit, r.key, nil, r.started, r.ttl) }

// put stores what takes answers away. Unlike an answer it must not be lost, so that it waits a little for its turn.
func (c *responseCache) put(ctx context.Context, circuit *breaker.Circuit, key string, value []byte, started time.Time, ttl time.Duration) {
	if c.memory {
		_ = c.store.Set(ctx, key, value, started, ttl)
		return
	}
	timer := time.NewTimer(cacheGetLimit)
	defer timer.Stop()
	select {
	case c.removing <- struct{}{}:
		go c.set(ctx, circuit, key, value, started, ttl, c.removing)
	case <-timer.C:
		reportCache(circuit, errors.New("too slow to take an answer away"))
	}
}

func (c *responseCache) set(ctx context.Context, circuit *breaker.Circuit, key string, value []byte, started time.Time, ttl time.Duration, place <-chan struct{}) {
	defer func() { <-place }()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cacheSetLimit)
	defer cancel()
	reportCache(circuit, contained(func() error { return c.store.Set(ctx, key, value, started, ttl) }))
}

// written takes away the answers of the URL of a request that wrote to it, and of those that its answer names (RFC 9111
// 4.4).
func (c *responseCache) written(x *exchange, resp *http.Response) {
	now := c.now()
	mark := func(req *http.Request) {
		c.put(x.ctx, x.primary.told, urlKey(req), strconv.AppendInt(nil, now.UnixNano(), 10), now, max(x.ttl, c.ttl, writtenFor))
	}
	mark(x.req)
	for _, name := range []string{"Location", "Content-Location"} {
		ref, err := url.Parse(resp.Header.Get(name))
		if err != nil || *ref == (url.URL{}) {
			continue
		}
		if u := x.req.URL.ResolveReference(ref); originOf(u) == originOf(x.req.URL) {
			mark(&http.Request{URL: u, Host: x.req.Host})
		}
	}
}

// writtenFor is how long it is remembered, at the least, that a URL was written to: as long as an answer of PerRequest is kept
// by anybody in his senses.
const writtenFor = 24 * time.Hour

// contained runs a user's function; a panic in it is an error.
func contained(f func() error) (err error) {
	err = errors.New("runtime.Goexit")
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	err = f()
	return err
}

func reportCache(c *breaker.Circuit, err error) {
	if err != nil {
		reportStoreError(c, fmt.Errorf("breakerhttp: response cache: %w", err))
	}
}

// hideOwn removes what only this package may say.
func (t *Transport) hideOwn(h http.Header) {
	if t.rescue != "" {
		h.Del(t.rescue)
	}
	if t.debug != "" {
		for _, name := range []string{"Provider", "Strategy", "Health"} {
			h.Del(t.debug + name)
		}
	}
}

// get looks an answer up; nil if there is none, or none that may be given.
func (c *responseCache) get(x *exchange) *http.Response {
	value := c.read(x, x.key)
	if len(value) == 0 {
		return nil
	}
	resp := decode(value, x.req)
	if resp == nil {
		return nil
	}
	started := startedAt(resp.Header)
	old := age(resp.Header, c.now())
	if !takesOld(x.req.Header, old) || safeMethod(x.req.Method) && c.writtenSince(x, started) {
		_ = resp.Body.Close()
		return nil
	}
	return resp
}

func (c *responseCache) read(x *exchange, key string) []byte {
	value, ok, err := c.lookUp(context.WithoutCancel(x.ctx), key)
	if err != nil {
		reportCache(x.primary.told, err)
	}
	if err != nil || !ok {
		return nil
	}
	return value
}

// writtenSince reports whether the request's URL was written to after some instant. What cannot be known is taken for
// yes.
func (c *responseCache) writtenSince(x *exchange, started int64) bool {
	value, ok, err := c.lookUp(context.WithoutCancel(x.ctx), urlKey(x.req))
	if err != nil {
		reportCache(x.primary.told, err)
		return true
	}
	if !ok {
		return false
	}
	at, err := strconv.ParseInt(string(value), 10, 64)
	return err != nil || at >= started
}

// found is what a cache said.
type found struct {
	value []byte
	ok    bool
	err   error
}

func (c *responseCache) lookUp(ctx context.Context, key string) ([]byte, bool, error) {
	if c.memory {
		return c.store.Get(ctx, key)
	}
	ctx, cancel := context.WithTimeout(ctx, cacheGetLimit)
	defer cancel()
	said := make(chan found, 1)
	go func() {
		f := found{err: errors.New("runtime.Goexit")}
		defer func() { said <- f }()
		f.err = contained(func() (err error) {
			f.value, f.ok, err = c.store.Get(ctx, key)
			return err
		})
	}()
	select {
	case f := <-said:
		return f.value, f.ok, f.err
	case <-ctx.Done():
		return nil, false, errors.New("no answer within " + cacheGetLimit.String())
	}
}
