package breakerhttp

import (
	"bufio"
	"bytes"
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/breakerkit/breaker"
)

const (
	cacheBody    = 1 << 20 // the largest body that is kept, and the largest request body that is a key
	cacheEntries = 1024
	cacheBytes   = 64 << 20

	// A cache from outside never holds up a caller for long.
	cacheGetLimit = 100 * time.Millisecond
	cacheSetLimit = 5 * time.Second
	cacheSetters  = 16
)

// responseCache keeps answers as HTTP/1.1 messages: any process can read them back, whatever the version of this library.
type responseCache struct {
	store   breaker.Cache[[]byte]
	memory  bool // store is our own: fast, and never fails
	ttl     time.Duration
	headers []string // sorted, canonical
	now     func() time.Time
	setting chan struct{} // a place for each Set under way
}

func newResponseCache(d *cacheDraft, now func() time.Time) *responseCache {
	c := &responseCache{store: d.store, ttl: d.ttl, headers: d.headers, now: now}
	if c.store == nil {
		c.memory = true
		c.store = &memoryCache{now: now, byKey: make(map[string]*list.Element)}
	}
	c.setting = make(chan struct{}, cacheSetters)
	return c
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
	if header["Range"] != nil || hasDirective(header, "no-store") {
		return ""
	}
	for _, h := range credentialHeaders {
		if header[h] != nil && !slices.Contains(c.headers, h) {
			return ""
		}
	}
	sum := sha256.New()
	// The encodings that the caller accepts are always part of the key, since nearly every server varies on them.
	hashHead(sum, req, header, append(slices.Clip(c.headers), "Accept-Encoding"))
	if !hashBody(sum, req) {
		return ""
	}
	return "http:" + hex.EncodeToString(sum.Sum(nil))
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

func hashHead(sum hash.Hash, req *http.Request, header http.Header, names []string) {
	method := req.Method
	if method == "" {
		method = http.MethodGet
	}
	u := url.URL{Scheme: req.URL.Scheme, Opaque: req.URL.Opaque, Host: req.URL.Host, Path: req.URL.Path,
		RawPath: req.URL.RawPath, RawQuery: req.URL.RawQuery}
	named := req.URL.Host
	if req.Host != "" {
		named = req.Host
	}
	hashStrings(sum, method, originOf(req.URL), u.RequestURI(), origin(req.URL.Scheme, named))
	for _, name := range names {
		values := header[name]
		hashStrings(sum, name, strconv.Itoa(len(values)))
		hashStrings(sum, values...)
	}
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

// hasDirective reports whether Cache-Control says one of some things.
func hasDirective(h http.Header, names ...string) bool {
	for _, line := range h["Cache-Control"] {
		for d := range strings.SplitSeq(line, ",") {
			name, _, _ := strings.Cut(d, "=")
			if slices.Contains(names, strings.ToLower(strings.TrimSpace(name))) {
				return true
			}
		}
	}
	return false
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
	method  string

	resp  http.Response // status and headers
	from  *http.Response
	body  []byte
	over  bool
	atEnd *ending // nil: the last byte is the end
}

// record starts a recording for an attempt of x that is about to be sent.
func (c *responseCache) record(x *exchange, circuit *breaker.Circuit) *recording {
	return &recording{cache: c, circuit: circuit, ctx: x.ctx, key: x.key, ttl: x.ttl, started: c.now(),
		hide: x.t.hideOwn, method: x.req.Method}
}

// accept takes a response's head, if the answer may be kept.
func (r *recording) accept(resp *http.Response) bool {
	switch resp.StatusCode {
	case http.StatusOK, http.StatusNonAuthoritativeInfo, http.StatusNoContent:
	default:
		return false
	}
	h := canonical(resp.Header)
	// The trailers that are announced; the others show at the end.
	if h["Set-Cookie"] != nil || hasDirective(h, "no-store", "private") || len(resp.Trailer) > 0 ||
		resp.ContentLength > cacheBody && r.method != http.MethodHead || !r.cache.coversVary(h) {
		return false
	}
	r.resp = http.Response{StatusCode: resp.StatusCode, Header: h.Clone()}
	if r.resp.Header == nil {
		r.resp.Header = make(http.Header)
	}
	r.from = resp
	if resp.ProtoMajor >= 2 && resp.ContentLength >= 0 && resp.Body != http.NoBody {
		r.atEnd = &ending{ReadCloser: resp.Body, r: r}
		resp.Body = r.atEnd
	}
	return true
}

// ending is a body after whose last byte trailers may come: from HTTP/2 on they may in spite of a Content-Length, even 0. The
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
			if name != "" && name != "Accept-Encoding" && !slices.Contains(c.headers, name) {
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
	case r.atEnd != nil && !r.atEnd.ended:
		r.atEnd.whole.Store(true)
	case len(r.from.Trailer) == 0:
		r.keep()
	}
}

func (r *recording) keep() {
	r.hide(r.resp.Header)
	r.resp.Header.Set(storedHeader, strconv.FormatInt(r.cache.now().Unix(), 10))
	value := encode(&r.resp, r.body, r.method)
	if r.cache.memory {
		_ = r.cache.store.Set(r.ctx, r.key, value, r.started, r.ttl)
		return
	}
	select {
	case r.cache.setting <- struct{}{}:
		go r.set(value)
	default: // it is too slow for what comes; a later answer will do
	}
}

func (r *recording) set(value []byte) {
	defer func() { <-r.cache.setting }()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), cacheSetLimit)
	defer cancel()
	err := contained(func() error { return r.cache.store.Set(ctx, r.key, value, r.started, r.ttl) })
	reportCache(r.circuit, err)
}

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

// hopHeaders belong to a connection, not to an answer.
var hopHeaders = []string{"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// storedHeader says in a stored message when it was stored, in seconds since 1970.
const storedHeader = "Breaker-Stored"

// age is what the Age header of a stored answer has become, and no more than that: it was as old as it says when it came.
func age(h http.Header, now time.Time) {
	stored, err := strconv.ParseInt(h.Get(storedHeader), 10, 64)
	h.Del(storedHeader)
	if err != nil {
		return
	}
	before, _ := seconds(h.Get("Age"))
	h.Set("Age", strconv.FormatInt(int64(before/time.Second)+max(0, now.Unix()-stored), 10))
}

// encode writes an answer as an HTTP/1.1 message.
func encode(resp *http.Response, body []byte, method string) []byte {
	for _, h := range hopHeaders {
		resp.Header.Del(h)
	}
	if method != http.MethodHead && resp.StatusCode != http.StatusNoContent {
		resp.Header.Set("Content-Length", strconv.Itoa(len(body)))
	}
	var w bytes.Buffer
	fmt.Fprintf(&w, "HTTP/1.1 %d %s\r\n", resp.StatusCode, http.StatusText(resp.StatusCode))
	_ = resp.Header.Write(&w)
	w.WriteString("\r\n")
	w.Write(body)
	return w.Bytes()
}

// decode reads one back; nil if it is none.
func decode(value []byte, req *http.Request) *http.Response {
	r := bytes.NewReader(value)
	resp, err := http.ReadResponse(bufio.NewReaderSize(r, 4096), req)
	if err != nil {
		return nil
	}
	b, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		return nil
	}
	resp.Close = false
	resp.Body = readCloser{bytes.NewReader(b)}
	if len(b) == 0 {
		resp.Body = http.NoBody
	}
	return resp
}

// readCloser is a reader over memory, whose Close has nothing to do.
type readCloser struct{ io.Reader }

func (readCloser) Close() error { return nil }

// WriteTo lets io.Copy pass the memory on without a copy.
func (r readCloser) WriteTo(w io.Writer) (int64, error) { return io.Copy(w, r.Reader) }

// get looks an answer up; nil if there is none.
func (c *responseCache) get(x *exchange) *http.Response {
	value, ok, err := c.lookUp(context.WithoutCancel(x.ctx), x.key)
	if err != nil {
		reportCache(x.primary.told, err)
	}
	if err != nil || !ok {
		return nil
	}
	resp := decode(value, x.req)
	if resp != nil {
		age(resp.Header, c.now())
	}
	return resp
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

// memoryCache is the cache in memory, bounded in answers and in bytes; the answer used least recently goes first.
type memoryCache struct {
	now func() time.Time

	mu     sync.Mutex
	bytes  int
	byKey  map[string]*list.Element
	recent list.List // of *memoryEntry, the one used last in front
}

type memoryEntry struct {
	key     string
	value   []byte
	started time.Time
	expires time.Time
}

func (c *memoryCache) Get(_ context.Context, key string) ([]byte, bool, error) {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.byKey[key]
	if at == nil {
		return nil, false, nil
	}
	e := at.Value.(*memoryEntry)
	if !now.Before(e.expires) {
		c.removeLocked(at)
		return nil, false, nil
	}
	c.recent.MoveToFront(at)
	return e.value, true, nil
}

func (c *memoryCache) Set(_ context.Context, key string, value []byte, started time.Time, ttl time.Duration) error {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := c.byKey[key]; at != nil {
		if e := at.Value.(*memoryEntry); started.Before(e.started) && now.Before(e.expires) {
			return nil
		}
		c.removeLocked(at)
	}
	c.byKey[key] = c.recent.PushFront(&memoryEntry{key, value, started, now.Add(ttl)})
	c.bytes += len(value)
	for len(c.byKey) > cacheEntries || c.bytes > cacheBytes {
		c.removeLocked(c.recent.Back())
	}
	return nil
}

func (c *memoryCache) removeLocked(at *list.Element) {
	e := at.Value.(*memoryEntry)
	delete(c.byKey, e.key)
	c.bytes -= len(e.value)
	c.recent.Remove(at)
}
