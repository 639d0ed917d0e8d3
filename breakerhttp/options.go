package breakerhttp

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/breakerkit/breaker"
)

// An Option configures a [Transport] or a [Handler]. Options do not depend on their order; of one given twice the later
// wins, except that WithBreaker, WithRetry and WithFailover add up. The constructors report everything that is wrong in
// one error.
type Option interface{ apply(*draft) }

// place says which constructor takes an option.
type place uint8

const (
	forTransport place = 1 << iota
	forHandler
)

var placeNames = map[place]string{forTransport: "NewTransport", forHandler: "Handler"}

type option struct {
	name string
	in   place
	set  func(*draft)
}

func (o option) apply(d *draft) {
	if o.in&d.place == 0 {
		d.fault(o.name, "is not an option of %s", placeNames[d.place])
		return
	}
	o.set(d)
}

// draft is what options write to.
type draft struct {
	place      place
	breaker    []breaker.Option
	retry      []breaker.RetryOption
	key        func(*http.Request) string
	classifier func(*http.Request, *http.Response, error) breaker.Outcome
	ignore429  bool
	atHeaders  bool
	unsafe     bool
	failover   []*url.URL
	alive      time.Duration
	stall      time.Duration
	kept       []string // headers that go along to other hosts
	dropped    []string // headers that do not
	wait       func(*http.Response) time.Duration
	cached     bool // WithResponseCache was given
	cache      cacheDraft
	asResponse bool
	rescue     string // the header's name; "" = off
	debug      string // the headers' prefix; "" = off
	faults     []error
}

type cacheDraft struct {
	store      breaker.Cache[[]byte]
	ttl        time.Duration
	headers    []string
	without    []string
	key        func(*http.Request) string
	serveStale bool
}

func newDraft(p place, opts []Option) *draft {
	d := &draft{place: p, alive: 5 * time.Second}
	for _, o := range opts {
		if o == nil {
			d.fault("Option", "must not be nil")
			continue
		}
		o.apply(d)
	}
	return d
}

func (d *draft) fault(name, format string, args ...any) {
	d.faults = append(d.faults, fmt.Errorf("breakerhttp: "+name+": "+format, args...))
}

// group makes the circuits.
func (d *draft) group() *breaker.Group[struct{}] {
	g, err := breaker.NewGroup[struct{}](append(d.breaker, twoStep("breakerhttp.WithBreaker"))...)
	if err != nil {
		d.faults = append(d.faults, err)
	}
	return g
}

func (d *draft) err() error { return errors.Join(d.faults...) }

// check reports what is wrong between options.
func (d *draft) check() {
	for _, h := range d.cache.without {
		if slices.Contains(d.cache.headers, h) {
			d.fault("CacheKeyWithout", "%s is named by WithResponseCache too", h)
		}
	}
}

// WithBreaker configures the circuits: circuit and group options of the root package, and WithTimeout, which limits each
// attempt until its response's headers and never cuts a body. WithClassifier, WithResult, WithRetry and fallbacks are
// errors here: this package has its own.
func WithBreaker(opts ...breaker.Option) Option {
	return option{"WithBreaker", forTransport | forHandler, func(d *draft) { d.breaker = append(d.breaker, opts...) }}
}

// WithRetry repeats requests that failed, as often as breaker.MaxRetries says. Only requests that may be repeated are:
// idempotent methods (GET, HEAD, OPTIONS, TRACE, PUT, DELETE), and others with an Idempotency-Key header, or all with
// [RetryUnsafe]; a request with a body needs a GetBody. Each attempt passes the circuit and counts singly: with a threshold of
// 5 and 3 retries, two requests to a dead host open it. A circuit that opens ends the retries.
func WithRetry(opts ...breaker.RetryOption) Option {
	return option{"WithRetry", forTransport, func(d *draft) { d.retry = append(d.retry, opts...) }}
}

// WithKey says which circuit a request belongs to, instead of the one of its origin. Keys become the circuits' names, in
// logs and metrics: leave out what is secret. An empty key stands for the default. f must be safe for concurrent use.
func WithKey(f func(*http.Request) string) Option {
	return option{"WithKey", forTransport | forHandler, func(d *draft) {
		if f == nil {
			d.fault("WithKey", "must not be nil")
		}
		d.key = f
	}}
}

// WithClassifier decides what a response, or the error in its place, says about the dependency, instead of the table in
// the package's documentation. It is asked once for each attempt, at the headers, and must leave the body alone. It is not
// asked after the caller's own cancel, or where breaker.WithIgnore or breaker.WithFailOn have decided. In a Handler the
// response has a status and headers only. f must be safe for concurrent use; its panic counts as a Failure and comes out.
func WithClassifier(f func(*http.Request, *http.Response, error) breaker.Outcome) Option {
	return option{"WithClassifier", forTransport | forHandler, func(d *draft) {
		if f == nil {
			d.fault("WithClassifier", "must not be nil")
		}
		d.classifier = f
	}}
}

// Ignore429 makes status 429 an Ignored outcome, for hosts where it says more about the caller than about the host. It
// is then not retried either.
func Ignore429() Option {
	return option{"Ignore429", forTransport, func(d *draft) { d.ignore429 = true }}
}

// SettleAtHeaders settles every outcome when the headers have come, whatever becomes of the body.
func SettleAtHeaders() Option {
	return option{"SettleAtHeaders", forTransport, func(d *draft) { d.atHeaders = true }}
}

// RetryUnsafe lets every method be repeated, POST and PATCH included, by retries and failover. The host may have acted on an attempt that failed.
func RetryUnsafe() Option {
	return option{"RetryUnsafe", forTransport, func(d *draft) { d.unsafe = true }}
}

// WithFailover names where else to send a request that the circuit has rejected or whose retries have failed, in this
// order, each host once, and not the host that was addressed. A URL is scheme, host and optionally a path, which is put in front of the request's path; the query
// is the request's. With https://backup.example/v2, a request for https://api.example/rates?base=EUR goes to
// https://backup.example/v2/rates?base=EUR. A request that has been sent goes elsewhere only if it may be repeated (see
// [WithRetry]; an Idempotency-Key, which the other host does not know, is enough only where each attempt was answered by a
// status: after a timeout the first host may have acted); one that was rejected, or found no connection, always may.
//
// The Host header becomes the other's, and the other's circuit is asked. Headers that look as if they held credentials stay
// behind: those whose name has auth, cookie, credential, csrf, jwt, key, passw, secret, session, signature, token or xsrf in
// it (but not Idempotency-Key), and a Referer with a query; [KeepHeaders] and [DropHeaders] change that. Keys in the query
// go along. What the other host needs, its URL may bring as user and password, or the base RoundTripper add; one that adds
// a token to every request sends that to the other host as well, unless it looks at the request's host. An answer of 401, 403
// or 407 to a request that has left credentials behind is no rescue. The same other hosts serve every request of the Transport,
// also one that a redirect has led elsewhere: use a Transport for each group of hosts that stand in for each other.
//
// The answer comes as the other host gives it, a relative Location made absolute, and its Request is the one that was sent there. Mind its Set-Cookie:
// an http.Client with a Jar keeps that for the host that was asked first, and sends it there from then on. Where the hosts
// do not share their cookies, let the base RoundTripper remove it.
func WithFailover(urls ...string) Option {
	return option{"WithFailover", forTransport, func(d *draft) {
		for i, s := range urls {
			u, err := parseTarget(s)
			if err != nil {
				d.fault(fmt.Sprintf("WithFailover[%d]", i), "%v", err)
				continue
			}
			d.failover = append(d.failover, u)
		}
	}}
}

// StreamAlive says when a stream that does not end has shown that its host is well: a probe whose headers were good is a
// Success as soon as it brings bytes d after them, or, for an upgraded connection, is used either way, but no later than
// by the end of the probe's lease. Default 5s. Calls that are no probes settle at their end.
func StreamAlive(d time.Duration) Option {
	return option{"StreamAlive", forTransport, func(d2 *draft) {
		if d < 0 {
			d2.fault("StreamAlive", "must not be negative, got %v", d)
		}
		d2.alive = d
	}}
}

// WithStall ends an answer whose body brings no byte for d while a Read waits for one: that is a Failure, the Read returns an error
// that is context.DeadlineExceeded, and the body is closed. The time between Reads does not count. Default 0 = off.
func WithStall(d time.Duration) Option {
	return option{"WithStall", forTransport, func(d2 *draft) {
		if d < 0 {
			d2.fault("WithStall", "must not be negative, got %v", d)
		}
		d2.stall = d
	}}
}

// KeepHeaders lets request headers go along to other hosts that look as if they held credentials; see [WithFailover].
func KeepHeaders(names ...string) Option {
	return option{"KeepHeaders", forTransport, func(d *draft) { d.kept = append(d.kept, d.headerNames("KeepHeaders", names)...) }}
}

// DropHeaders keeps more request headers from going along to other hosts; see [WithFailover]. It goes before KeepHeaders.
func DropHeaders(names ...string) Option {
	return option{"DropHeaders", forTransport, func(d *draft) { d.dropped = append(d.dropped, d.headerNames("DropHeaders", names)...) }}
}

// WithWait says how long a response that counts as Failure asks to be left alone: the wait before a retry is at least
// that, and so is the open period that the failure starts, within their own limits. 0 leaves it to the headers, as without
// the option: retry-after-ms and x-ms-retry-after-ms (milliseconds), then Retry-After, of answers with status 429 or 503.
// [RateLimitReset] is such a function. f must leave the body alone and be safe for concurrent use.
func WithWait(f func(*http.Response) time.Duration) Option {
	return option{"WithWait", forTransport, func(d *draft) {
		if f == nil {
			d.fault("WithWait", "must not be nil")
		}
		d.wait = f
	}}
}

// WithResponseCache remembers good answers for ttl and gives them where the circuit has rejected the request or the
// retries and failovers have failed; never otherwise. A nil cache is memory of 1,024 answers and 64 MiB at most.
//
// An answer is given only to a request that is the same in all that may choose an answer: method, URL, the body's hash,
// and every header but those that only identify a message, its sender's software or its trace, such as User-Agent, Date,
// X-Request-Id and traceparent. Headers named here are part of the key in any case; [CacheKey] adds what is not in the
// request; [CacheKeyWithout] leaves headers out. Requests with credentials in a well-known header (Authorization, Cookie,
// X-Api-Key and their like) are kept only if that header is named here. What the base RoundTripper adds to a request is
// not in the key: an answer that the base says was sent for other headers, as by an http.RoundTripper that adds tokens, is
// not kept; where it adds a client certificate or the like by the request's context, name the user with CacheKey.
//
// The method is GET, HEAD, POST, PUT or PATCH, the last three with a body that can be sent again (GetBody) and has 1 MiB
// at most. Only complete answers with status 200, 203 or 204 of up to 1 MiB are kept. Never kept: answers with
// Set-Cookie or trailers, with Cache-Control no-store, private or no-cache, with Pragma no-cache alone, or with a Vary on
// a header that is not in the key; requests with Cache-Control no-store, a Range or trailers. must-revalidate,
// proxy-revalidate and s-maxage let an answer be given while it is fresh, stale-if-error for so long afterwards. [ServeStale]
// overrides no-cache and these. A request with no-cache is not answered from the cache, one with max-age only by what is
// young enough. A later answer that must not be kept takes the earlier one away, unless it is a Failure; a success of a
// method that writes takes away the answers to GET and HEAD of its URL.
//
// An answer from the cache has an Age. It says nothing of the request that it answers: that one may have done nothing.
// Mind that with methods that write.
func WithResponseCache(cache breaker.Cache[[]byte], ttl time.Duration, headers ...string) Option {
	return option{"WithResponseCache", forTransport, func(d *draft) {
		if ttl <= 0 {
			d.fault("WithResponseCache", "the ttl must be above 0, got %v", ttl)
		}
		d.cached = true
		d.cache.store, d.cache.ttl = cache, ttl
		d.cache.headers = d.headerNames("WithResponseCache", headers)
	}}
}

// CacheKey adds what f returns to the key of the response cache, [WithResponseCache]'s and [Cache]'s: for instance the
// user that the base RoundTripper authenticates by the request's context. f must be safe for concurrent use.
func CacheKey(f func(*http.Request) string) Option {
	return option{"CacheKey", forTransport, func(d *draft) {
		if f == nil {
			d.fault("CacheKey", "must not be nil")
		}
		d.cache.key = f
	}}
}

// CacheKeyWithout leaves request headers out of the key of the response cache, [WithResponseCache]'s and [Cache]'s. The
// risk is that one caller is given the answer of another: leave out only what the host does not look at, or what every caller may
// see. An answer whose Vary names such a header is not kept.
func CacheKeyWithout(headers ...string) Option {
	return option{"CacheKeyWithout", forTransport, func(d *draft) {
		d.cache.without = append(d.cache.without, d.headerNames("CacheKeyWithout", headers)...)
	}}
}

// ServeStale lets the response cache keep and give answers in spite of Cache-Control no-cache, must-revalidate,
// proxy-revalidate, s-maxage and stale-if-error, and of Pragma no-cache. RFC 9111 forbids that even while the host is
// away: it is for hosts of your own.
func ServeStale() Option {
	return option{"ServeStale", forTransport, func(d *draft) { d.cache.serveStale = true }}
}

// headerNames checks names of headers, and returns them in net/http's spelling.
func (d *draft) headerNames(option string, names []string) (all []string) {
	for _, h := range names {
		if !isToken(h) {
			d.fault(option, "%q is no header name", h)
		}
		all = append(all, http.CanonicalHeaderKey(h))
	}
	return all
}

// OpenAsResponse answers a rejected request with status 503 and a Retry-After instead of an error.
func OpenAsResponse() Option {
	return option{"OpenAsResponse", forTransport, func(d *draft) { d.asResponse = true }}
}

// WithRescueHeader names what rescued a response in a header of it: retry, failover or cache; no header for an answer at
// the first attempt. The host's own header of that name is removed. An empty name is X-Rescued. Default off.
func WithRescueHeader(name string) Option {
	return option{"WithRescueHeader", forTransport, func(d *draft) {
		if name == "" {
			name = "X-Rescued"
		}
		if !isToken(name) {
			d.fault("WithRescueHeader", "%q is no header name", name)
		}
		d.rescue = http.CanonicalHeaderKey(name)
	}}
}

// WithDebugHeaders adds three headers to each response: Provider, the circuit of the host that answered; Strategy, how
// the answer came about (direct, bypass, retry, failover, cache or open); Health, the state of that circuit. The prefix
// stands in front of each name; an empty one is X-Breaker-. The host's own headers of those names are removed. Default
// off.
func WithDebugHeaders(prefix string) Option {
	return option{"WithDebugHeaders", forTransport, func(d *draft) {
		if prefix == "" {
			prefix = "X-Breaker-"
		}
		if !strings.HasSuffix(prefix, "-") {
			prefix += "-"
		}
		if !isToken(prefix) {
			d.fault("WithDebugHeaders", "%q is no prefix of a header name", prefix)
		}
		d.debug = http.CanonicalHeaderKey(prefix)
	}}
}

// isToken reports whether s may be a header's name.
func isToken(s string) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`()<>@,;:\"/[]?={}`, c) >= 0 {
			return false
		}
	}
	return s != ""
}

// parseTarget reads a failover URL. Its errors do not repeat it: it may hold a password.
func parseTarget(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return nil, errors.New("is no URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("must start with http:// or https://")
	case u.Hostname() == "":
		return nil, errors.New("must name a host")
	case u.RawQuery != "" || u.Fragment != "" || u.ForceQuery:
		return nil, errors.New("must have no query and no fragment")
	}
	return u, nil
}
