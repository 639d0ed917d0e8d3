package breakerhttp

import (
	"context"
	"fmt"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/breakerkit/breaker"
)

// A RequestOption changes what a [Transport] does for one request; see [PerRequest].
type RequestOption func(*perRequest)

// perRequest is one request's options. It is immutable once it is in a context.
type perRequest struct {
	noBreaker bool
	retries   []breaker.RetryOption // nil: the transport's
	cacheSet  bool
	cacheTTL  time.Duration
	failover  []*url.URL
	limitSet  bool
	limit     time.Duration
	err       error // the first thing that is wrong
}

type perRequestKey struct{}

// perRequestUsed is set once there is a context with options: looking for some in a context that has many values takes
// as long as all else that a circuit does.
var perRequestUsed atomic.Bool

// PerRequest returns a context that carries options for the requests made with it. They go on top of those that ctx has
// already. What is wrong with them is the error of the request.
func PerRequest(ctx context.Context, opts ...RequestOption) context.Context {
	var p perRequest
	if old := perRequestOf(ctx); old != nil {
		p = *old
	}
	before := len(p.failover)
	p.failover = p.failover[:before:before]
	for _, o := range opts {
		if o != nil {
			o(&p)
		}
	}
	perRequestUsed.Store(true)
	return context.WithValue(ctx, perRequestKey{}, &p)
}

// withoutPerRequest is a context whose options nobody further in sees: a Transport around another takes them.
func withoutPerRequest(ctx context.Context) context.Context {
	return context.WithValue(ctx, perRequestKey{}, (*perRequest)(nil))
}

func perRequestOf(ctx context.Context) *perRequest {
	p, _ := ctx.Value(perRequestKey{}).(*perRequest)
	return p
}

func (p *perRequest) fault(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("breakerhttp: "+format, args...)
	}
}

// NoBreaker sends the request past the circuit: it is neither asked nor told. Retries, failover and cache still apply.
func NoBreaker() RequestOption { return func(p *perRequest) { p.noBreaker = true } }

// Retries sets how many attempts may follow the first, and how long the first wait is (Exponential, 10s at most, or base where
// that is longer); everything else stays as WithRetry says. 0 turns retries off.
func Retries(n int, base time.Duration) RequestOption {
	return func(p *perRequest) {
		if n < 0 || base < 0 {
			p.fault("Retries: must not be negative, got %d, %v", n, base)
			return
		}
		p.retries = []breaker.RetryOption{breaker.MaxRetries(n), breaker.Exponential(base, max(base, 10*time.Second))}
	}
}

// Cache lets the request's answer be remembered for ttl, and be rescued by one that is, as [WithResponseCache] describes; without that
// option, in a memory of the default size. 0 turns it off.
func Cache(ttl time.Duration) RequestOption {
	return func(p *perRequest) {
		if ttl < 0 {
			p.fault("Cache: must not be negative, got %v", ttl)
			return
		}
		p.cacheSet, p.cacheTTL = true, ttl
	}
}

// Failover names where else to send the request, instead of what [WithFailover] names, and in the same way: the URL's path
// is put in front of the request's. Given several times, it adds up.
func Failover(to string) RequestOption {
	return func(p *perRequest) {
		u, err := parseTarget(to)
		if err != nil {
			p.fault("Failover: %v", err)
			return
		}
		p.failover = append(p.failover, u)
	}
}

// AttemptTimeout limits each attempt until its response's headers, instead of breaker.WithTimeout. 0 turns it off.
func AttemptTimeout(d time.Duration) RequestOption {
	return func(p *perRequest) {
		if d < 0 {
			p.fault("AttemptTimeout: must not be negative, got %v", d)
			return
		}
		p.limitSet, p.limit = true, d
	}
}
