package breaker

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"
)

// Fallbacks are tried in the order in which they were given, until one answers: after a rejection, by this circuit or by
// one inside fn, and after a Failure, once the retries have ended. They are not tried after a success, after any other
// Ignored outcome, or after the caller's own cancel. Everything is settled before the first one runs: what it does never
// counts against the circuit. If all fail, the error is the call's and theirs together.

// WithFallback adds a fallback. f gets the error that it is called for: the call's error, or [ErrUnacceptable]. name is
// the Rescue that Result and the totals show.
func WithFallback[T any](name string, f func(context.Context, error) (T, error)) Option {
	return fallbackOption[T]("Fallback", Rescue(name), name, f == nil, f)
}

// WithFallbackValue adds a fallback that answers with v. v must be assignable to the breaker's type.
func WithFallbackValue[T any](v T) Option {
	return callOption("FallbackValue", func(d *draft) {
		d.call.fallbacks = append(d.call.fallbacks, fallbackValue{reflect.ValueOf(&v).Elem()})
	})
}

// WithFailover adds a fallback that calls another dependency: any function, for example backup.Wrap(fn), which goes
// through the circuit of the backup. The Rescue is "failover"; name tells failovers apart in errors.
func WithFailover[T any](name string, f func(context.Context) (T, error)) Option {
	return fallbackOption("Failover", RescueFailover, name, f == nil, func(ctx context.Context, _ error) (T, error) {
		v, err := f(ctx)
		if err != nil {
			err = fmt.Errorf("failover %q: %w", name, err)
		}
		return v, err
	})
}

// WithLastGood remembers, per key, the last answer of a success for ttl, and answers with it. An empty key is neither
// stored nor served. Failures and what fallbacks answered are never stored, and an answer whose call started earlier
// never replaces one that started later. By default it keeps 1,024 keys (LastGoodSize) in memory; [LastGoodCache] keeps
// them elsewhere.
func WithLastGood[T any](ttl time.Duration, key func(ctx context.Context) string, opts ...LastGoodOption) Option {
	return callOption("LastGood", func(d *draft) {
		d.faults.positive("LastGood.TTL", ttl)
		if key == nil {
			d.faults.add("LastGood.Key", "must not be nil")
		}
		g := lastGoodDraft{size: 1024}
		for _, o := range opts {
			if o == nil {
				d.faults.add("LastGoodOption", "must not be nil")
				continue
			}
			o(&g, &d.faults)
		}
		cache, ok := g.cache.(Cache[T])
		if g.cache != nil && !ok {
			d.faults.add("LastGoodCache", "must be a Cache of %v, got %T", reflect.TypeFor[T](), g.cache)
		}
		d.call.fallbacks = append(d.call.fallbacks, &lastGood[T]{ttl: ttl, key: key, size: g.size, cache: cache})
	})
}

// A LastGoodOption configures [WithLastGood].
type LastGoodOption func(*lastGoodDraft, *faults)

type lastGoodDraft struct {
	size  int
	cache any
}

// LastGoodSize sets how many keys are kept in memory; the least recently used is dropped first. Default 1,024.
func LastGoodSize(n int) LastGoodOption {
	return func(d *lastGoodDraft, f *faults) { f.between("LastGoodSize", n, 1, maxCount); d.size = n }
}

// LastGoodCache keeps the answers in c instead of in memory. A cache that is slow or fails does not delay a caller for
// long: values are stored in the background, at most 16 at a time, and a lookup ends after 100ms. Its errors go to the
// StoreError hook.
func LastGoodCache[T any](c Cache[T]) LastGoodOption {
	return func(d *lastGoodDraft, f *faults) {
		if isNil(c) {
			f.add("LastGoodCache", "must not be nil")
			return
		}
		d.cache = c
	}
}

// Cache keeps values for [WithLastGood]. It must be safe for concurrent use.
type Cache[T any] interface {
	// Get returns the value of a key, and whether there is one.
	Get(ctx context.Context, key string) (T, bool, error)
	// Set keeps a value for ttl, unless it holds one for the key that started later. started is when the call that
	// brought the value started.
	Set(ctx context.Context, key string, value T, started time.Time, ttl time.Duration) error
}

// fallback is one of a breaker's fallbacks.
type fallback[T any] struct {
	kind Rescue
	// answer tries to answer. Without an answer and without an error, it does not apply to this call.
	answer func(ctx context.Context, cause error) (v T, ok bool, err error)
}

// boundFallback is a fallback with the type that its option named.
type boundFallback[T any] struct{ fallback[T] }

func fallbackOption[T any](option string, kind Rescue, name string, isNil bool, f func(context.Context, error) (T, error)) Option {
	return callOption(option, func(d *draft) {
		if name == "" {
			d.faults.add(option+".Name", `must not be empty, got ""`)
		}
		if isNil {
			d.faults.add(option, "must not be nil")
		}
		d.call.fallbacks = append(d.call.fallbacks, boundFallback[T]{fallback[T]{kind, func(ctx context.Context, cause error) (T, bool, error) {
			v, err := f(ctx, cause)
			return v, err == nil, err
		}}})
	})
}

type fallbackValue struct{ value reflect.Value }

// typed is what an option left for a type that is not the breaker's.
type typed interface {
	typ() reflect.Type
	option() string
}

func (boundFallback[T]) typ() reflect.Type { return reflect.TypeFor[T]() }
func (*lastGood[T]) typ() reflect.Type     { return reflect.TypeFor[T]() }
func (boundFallback[T]) option() string    { return "Fallback" }
func (*lastGood[T]) option() string        { return "LastGood" }

// bindFallbacks turns the draft's fallbacks into those of the breaker's type. Another type is a fault.
func bindFallbacks[T any](p *callPolicy[T], d *draft) {
	want := reflect.TypeFor[T]()
	for _, f := range d.call.fallbacks {
		switch f := f.(type) {
		case boundFallback[T]:
			p.fallbacks = append(p.fallbacks, f.fallback)
		case *lastGood[T]:
			p.lastGood = append(p.lastGood, f)
			p.fallbacks = append(p.fallbacks, fallback[T]{RescueCache, nil})
		case fallbackValue:
			if got := f.value.Type(); !got.AssignableTo(want) {
				d.faults.add("FallbackValue", "must be assignable to the breaker's type %v, got %v", want, got)
				continue
			}
			var v T
			reflect.ValueOf(&v).Elem().Set(f.value)
			p.fallbacks = append(p.fallbacks, fallback[T]{RescueValue, func(context.Context, error) (T, bool, error) { return v, true, nil }})
		default:
			other := f.(typed)
			d.faults.add(other.option(), "must be of the breaker's type %v, got one of %v", want, other.typ())
		}
	}
}

// rescue calls the fallbacks in their order, and alt after them, until one answers.
func (b *Breaker[T]) rescue(ctx context.Context, r Result[T], alt func(context.Context, error) (T, error)) Result[T] {
	cause := r.Err
	if cause == nil {
		cause = ErrUnacceptable
	}
	errs := []error{cause}
	if b.policy != nil {
		for i := range b.policy.fallbacks {
			if ctx.Err() == context.Canceled { // while the one before was running
				break
			}
			f := &b.policy.fallbacks[i]
			v, ok, err := f.answer(ctx, cause)
			if ok {
				return b.rescued(ctx, r, f.kind, cause, v)
			}
			errs = b.notRescued(ctx, f.kind, errs, err)
		}
	}
	if alt != nil && ctx.Err() != context.Canceled {
		v, err := alt(ctx, cause)
		if err == nil {
			return b.rescued(ctx, r, RescueAlt, cause, v)
		}
		errs = b.notRescued(ctx, RescueAlt, errs, err)
	}
	if r.Err != nil && len(errs) > 1 {
		r.Err = errors.Join(errs...)
	}
	return r
}

func (b *Breaker[T]) rescued(ctx context.Context, r Result[T], kind Rescue, cause error, v T) Result[T] {
	r.Value, r.Err, r.Rescue = v, nil, kind
	b.circuit.Rescued(ctx, RescueEvent{Kind: kind, Cause: cause})
	return r
}

// notRescued adds the error of a fallback that failed; one that did not apply has none.
func (b *Breaker[T]) notRescued(ctx context.Context, kind Rescue, errs []error, err error) []error {
	if err == nil {
		return errs
	}
	b.circuit.Rescued(ctx, RescueEvent{Kind: kind, Cause: errs[0], Err: err})
	return append(errs, err)
}

// lastGood is one WithLastGood of one view.
type lastGood[T any] struct {
	ttl     time.Duration
	key     func(context.Context) string
	size    int
	cache   Cache[T] // nil: memory
	memory  *memCache[T]
	circuit *Circuit
	storing chan struct{} // a semaphore for the calls of cache.Set in progress
}

const (
	cacheGetLimit = 100 * time.Millisecond
	cacheSetLimit = 5 * time.Second
	cacheSetters  = 16
)

// withMemory is a copy of the policy for one breaker of c, with a memory of its own that goes by the circuit's clock.
func (p *callPolicy[T]) withMemory(c *Circuit) *callPolicy[T] {
	own := *p
	own.lastGood = make([]*lastGood[T], len(p.lastGood))
	own.fallbacks = slices.Clone(p.fallbacks)
	next := 0
	for i := range own.fallbacks {
		if own.fallbacks[i].answer != nil {
			continue
		}
		g := *p.lastGood[next]
		g.attach(c)
		own.lastGood[next] = &g
		own.fallbacks[i].answer = g.answer
		next++
	}
	return &own
}

func (g *lastGood[T]) attach(c *Circuit) {
	g.circuit = c
	if g.cache == nil {
		g.memory = newMemCache[T](g.size, c.load().time)
		return
	}
	g.storing = make(chan struct{}, cacheSetters)
}

// keep stores the answer of a call that started at started.
func (g *lastGood[T]) keep(ctx context.Context, v T, started int64) {
	key := g.key(ctx)
	if key == "" {
		return
	}
	if g.memory != nil {
		g.memory.set(key, v, started, g.ttl)
		return
	}
	select {
	case g.storing <- struct{}{}:
		go g.store(context.WithoutCancel(ctx), key, v, started)
	default: // the cache is too slow for the rate of answers: this one is dropped
	}
}

func (g *lastGood[T]) store(ctx context.Context, key string, v T, started int64) {
	defer func() { <-g.storing }()
	s := g.circuit.load()
	ctx, cancel := s.time.withTimeout(ctx, cacheSetLimit, context.DeadlineExceeded)
	defer cancel()
	s.contain(g.circuit.name, "Cache.Set", func() {
		if err := g.cache.Set(ctx, key, v, s.time.anchor().at(started), g.ttl); err != nil {
			s.hookStoreError(g.circuit.name, fmt.Errorf("breaker: last-good cache of %q: %w", g.circuit.name, err))
		}
	})
}

// answer looks the last good answer up.
func (g *lastGood[T]) answer(ctx context.Context, _ error) (v T, ok bool, err error) {
	key := g.key(ctx)
	if key == "" {
		return v, false, nil
	}
	if g.memory != nil {
		v, ok = g.memory.get(key)
		return v, ok, nil
	}
	return g.lookUp(ctx, key)
}

// found is what a cache returned.
type found[T any] struct {
	v   T
	ok  bool
	err error
}

// lookUp asks the cache, even for a caller whose deadline has passed: an answer is what it is still waiting for.
func (g *lastGood[T]) lookUp(caller context.Context, key string) (v T, ok bool, _ error) {
	s := g.circuit.load()
	ctx, cancel := s.time.withTimeout(context.WithoutCancel(caller), cacheGetLimit, context.DeadlineExceeded)
	defer cancel()
	said := make(chan found[T], 1)
	go func() {
		f := found[T]{err: errAbnormal}
		defer func() { said <- f }()
		s.contain(g.circuit.name, "Cache.Get", func() { f.v, f.ok, f.err = g.cache.Get(ctx, key) })
	}()
	var f found[T]
	select {
	case f = <-said:
	case <-ctx.Done():
		f.err = ctx.Err()
	}
	if f.err != nil {
		s.hookStoreError(g.circuit.name, fmt.Errorf("breaker: last-good cache of %q: %w", g.circuit.name, f.err))
		return v, false, nil
	}
	return f.v, f.ok, nil
}

// memCache keeps a bounded number of values in memory; the least recently used is dropped first.
type memCache[T any] struct {
	size int
	time *timeline

	mu     sync.Mutex
	byKey  map[string]*list.Element
	recent list.List // of *memEntry[T], the one used last in front
}

type memEntry[T any] struct {
	key     string
	value   T
	started int64
	expires int64
}

func newMemCache[T any](size int, t *timeline) *memCache[T] {
	return &memCache[T]{size: size, time: t, byKey: make(map[string]*list.Element)}
}

func (c *memCache[T]) get(key string) (v T, ok bool) {
	now := c.time.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.byKey[key]
	if at == nil {
		return v, false
	}
	e := at.Value.(*memEntry[T])
	if now >= e.expires {
		c.removeLocked(at)
		return v, false
	}
	c.recent.MoveToFront(at)
	return e.value, true
}

func (c *memCache[T]) set(key string, v T, started int64, ttl time.Duration) {
	now := c.time.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := c.byKey[key]; at != nil {
		e := at.Value.(*memEntry[T])
		if started >= e.started || now >= e.expires {
			e.value, e.started, e.expires = v, started, now+int64(ttl)
		}
		c.recent.MoveToFront(at)
		return
	}
	if len(c.byKey) >= c.size {
		c.removeLocked(c.recent.Back())
	}
	c.byKey[key] = c.recent.PushFront(&memEntry[T]{key, v, started, now + int64(ttl)})
}

func (c *memCache[T]) removeLocked(at *list.Element) {
	delete(c.byKey, at.Value.(*memEntry[T]).key)
	c.recent.Remove(at)
}
