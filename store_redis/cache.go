package storeredis

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/breakerkit/breaker"
	"github.com/redis/go-redis/v9"
)

// Cache is a [breaker.Cache] on Redis, for [breaker.LastGoodCache]: the last good answers of a fleet, where each process
// can serve what another one has stored. It must be made by [NewCache]. It is safe for concurrent use, and has no
// goroutine besides those of operations that are going on.
type Cache[T any] struct {
	client redis.UniversalClient
	set    cacheSettings
}

var _ breaker.Cache[int] = (*Cache[int])(nil)

// CacheOption configures a [Cache].
type CacheOption interface{ applyCache(*cacheSettings) }

type cacheOption func(*cacheSettings)

func (o cacheOption) applyCache(s *cacheSettings) { o(s) }

type cacheSettings struct {
	prefix    string
	timeout   time.Duration
	maxBytes  int
	marshal   func(any) ([]byte, error)
	unmarshal func([]byte, any) error
}

// CachePrefix sets what all keys begin with; a key is <prefix>:cache:<key>. Default "cb". Caches share if prefix and
// database are the same; they must then be of one type. It may have up to 100 bytes, but no braces and no control
// characters.
func CachePrefix(prefix string) CacheOption {
	return cacheOption(func(s *cacheSettings) { s.prefix = prefix })
}

// CacheTimeout sets how long an operation may take, its connection included. Default 200ms.
func CacheTimeout(d time.Duration) CacheOption {
	return cacheOption(func(s *cacheSettings) { s.timeout = d })
}

// CacheMaxBytes sets how large an encoded value may be. Default 1 MiB. What is larger is refused by Set with an error.
func CacheMaxBytes(n int) CacheOption {
	return cacheOption(func(s *cacheSettings) { s.maxBytes = n })
}

// CacheCodec sets how values are encoded; unmarshal is given a pointer to one. Default is encoding/json. A codec that
// panics is taken to have failed.
func CacheCodec(marshal func(any) ([]byte, error), unmarshal func([]byte, any) error) CacheOption {
	return cacheOption(func(s *cacheSettings) { s.marshal, s.unmarshal = marshal, unmarshal })
}

// NewCache makes a Cache of values of type T. It makes no connection. The client stays the caller's. Its settings do not
// matter here, though one with ContextTimeoutEnabled frees a connection sooner that got no answer. A nil client and an option
// out of range are errors.
func NewCache[T any](client redis.UniversalClient, opts ...CacheOption) (*Cache[T], error) {
	s := cacheSettings{
		prefix: defaultPrefix, timeout: defaultTimeout, maxBytes: 1 << 20,
		marshal: json.Marshal, unmarshal: json.Unmarshal,
	}
	for _, o := range opts {
		if o != nil {
			o.applyCache(&s)
		}
	}
	if err := s.faults(client); err != nil {
		return nil, err
	}
	return &Cache[T]{client, s}, nil
}

func (s *cacheSettings) faults(client redis.UniversalClient) error {
	faults := []error{clientFault(client, true)}
	if fault := prefixFault(s.prefix); fault != "" {
		faults = append(faults, fmt.Errorf("storeredis: CachePrefix: %s, got %q", fault, s.prefix))
	}
	if s.timeout <= 0 {
		faults = append(faults, fmt.Errorf("storeredis: CacheTimeout: must be above 0, got %v", s.timeout))
	}
	if s.maxBytes <= 0 {
		faults = append(faults, fmt.Errorf("storeredis: CacheMaxBytes: must be above 0, got %d", s.maxBytes))
	}
	if s.marshal == nil || s.unmarshal == nil {
		faults = append(faults, errors.New("storeredis: CacheCodec: must not be nil"))
	}
	return errors.Join(faults...)
}

func (c *Cache[T]) key(key string) string { return c.set.prefix + ":cache:" + encodeName(key) }

// Get returns the value of a key, and whether there is one. For a value that cannot be decoded or is too large it returns
// false and an error.
func (c *Cache[T]) Get(ctx context.Context, key string) (T, bool, error) {
	var none, value T
	if err := ctx.Err(); err != nil {
		return none, false, err
	}
	type answer struct {
		text string
		err  error
	}
	a, err := withTimeout(ctx, c.set.timeout, func(ctx context.Context) answer {
		text, err := c.client.HGet(ctx, c.key(key), "value").Result()
		return answer{text, err}
	})
	err = errors.Join(err, a.err)
	switch {
	case errors.Is(err, redis.Nil):
		return none, false, nil
	case err != nil:
		return none, false, fmt.Errorf("storeredis: Cache.Get: %w", clientError(err))
	case len(a.text) > c.set.maxBytes:
		return none, false, fmt.Errorf("storeredis: Cache.Get: %d bytes are more than %d", len(a.text), c.set.maxBytes)
	}
	err = contained(func() error { return c.set.unmarshal([]byte(a.text), &value) })
	if err != nil {
		return none, false, fmt.Errorf("storeredis: Cache.Get: unreadable value: %w", err)
	}
	return value, true, nil
}

// Set keeps a value for ttl, unless it holds one for the key that started later; the times that callers say they started
// at are compared to the microsecond. A ttl below a millisecond and a value that is too large are errors.
func (c *Cache[T]) Set(ctx context.Context, key string, value T, started time.Time, ttl time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if ttl < time.Millisecond {
		return fmt.Errorf("storeredis: Cache.Set: ttl must be at least 1ms, got %v", ttl)
	}
	var text []byte
	err := contained(func() (err error) { text, err = c.set.marshal(value); return err })
	if err != nil {
		return fmt.Errorf("storeredis: Cache.Set: %w", err)
	}
	if len(text) > c.set.maxBytes {
		return fmt.Errorf("storeredis: Cache.Set: %d bytes are more than %d", len(text), c.set.maxBytes)
	}
	at := min(max(started.UnixMicro(), -limit), limit)
	set := call{cacheScript, []string{c.key(key)}, []any{at, text, min(ttl, longest).Milliseconds()}}
	failed, err := withTimeout(ctx, c.set.timeout, func(ctx context.Context) error {
		return run(ctx, c.client, []call{set})[0].Err()
	})
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("storeredis: Cache.Set: %w", clientError(err))
	}
	return nil
}

// contained turns a panic into an error.
func contained(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return f()
}
