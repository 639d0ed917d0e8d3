package storeredis_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/breakerkit/breaker"
	storeredis "github.com/breakerkit/breaker/store_redis"
	"github.com/redis/go-redis/v9"
)

type rate struct {
	Currency string
	Value    float64
}

func newCache[T any](t *testing.T, c redis.UniversalClient, opts ...storeredis.CacheOption) *storeredis.Cache[T] {
	t.Helper()
	cache, err := storeredis.NewCache[T](c, append([]storeredis.CacheOption{storeredis.CacheTimeout(20 * time.Second)}, opts...)...)
	return must(t, cache, err)
}

func get[T comparable](t *testing.T, c *storeredis.Cache[T], key string, want T, wantOK bool) {
	t.Helper()
	v, ok, err := c.Get(ctx, key)
	if err != nil || ok != wantOK || v != want {
		t.Errorf("%.40q: got %v, %v, %v, want %v, %v", key, v, ok, err, want, wantOK)
	}
}

func set[T any](t *testing.T, c *storeredis.Cache[T], key string, v T, started time.Time) {
	t.Helper()
	if err := c.Set(ctx, key, v, started, 10*time.Minute); err != nil {
		t.Errorf("%.40q: %v", key, err)
	}
}

func TestCacheKeeps(t *testing.T) {
	c := client(t)
	one, other := newCache[rate](t, c), newCache[rate](t, c)
	now := time.Now()
	get(t, one, "EUR", rate{}, false)
	set(t, one, "EUR", rate{"EUR", 1.5}, now)
	get(t, other, "EUR", rate{"EUR", 1.5}, true)
	if ttl := c.PTTL(ctx, "cb:cache:EUR").Val(); ttl > 600*time.Second || ttl < 590*time.Second {
		t.Errorf("lives for %v, want about 600s", ttl)
	}
	set(t, other, "EUR", rate{"EUR", 2}, now.Add(time.Microsecond))
	set(t, one, "EUR", rate{"EUR", 1}, now) // it took longer, and is older
	get(t, one, "EUR", rate{"EUR", 2}, true)
	set(t, one, "EUR", rate{"EUR", 3}, now.Add(time.Second))
	get(t, other, "EUR", rate{"EUR", 3}, true)
	get(t, newCache[rate](t, c, storeredis.CachePrefix("other")), "EUR", rate{}, false)
	set(t, one, "old", rate{"old", 1}, time.Time{})
	set(t, one, "old", rate{"old", 2}, time.Unix(-1, 0))
	get(t, one, "old", rate{"old", 2}, true)
	set(t, one, "future", rate{"future", 1}, time.Unix(1<<60, 0))
	get(t, one, "future", rate{"future", 1}, true)
}

func TestCacheExpires(t *testing.T) {
	guard(t)
	m := miniredis.RunT(t)
	c := newCache[int](t, miniClient(t, m))
	set(t, c, "k", 7, time.Now())
	m.FastForward(10*time.Minute - time.Millisecond)
	get(t, c, "k", 7, true)
	m.FastForward(time.Millisecond)
	get(t, c, "k", 0, false)
	for _, ttl := range []time.Duration{0, -1, time.Millisecond - 1} {
		if err := c.Set(ctx, "k", 7, time.Now(), ttl); err == nil {
			t.Errorf("a ttl of %v: no error", ttl)
		}
	}
	if err := c.Set(ctx, "k", 7, time.Now(), 1<<62); err != nil {
		t.Errorf("an endless ttl: %v", err)
	}
	get(t, c, "k", 7, true)
}

func TestCacheKeysAreBounded(t *testing.T) {
	c := client(t)
	cache := newCache[int](t, c)
	keys := []string{"", "a", "{a}", "a\nb", "\xff", strings.Repeat("x", 5000), strings.Repeat("x", 5001), "GET https://example.com/?q={1}"}
	for i, k := range keys {
		set(t, cache, k, i, time.Now())
	}
	for i, k := range keys {
		get(t, cache, k, i, true)
	}
	for _, k := range c.Keys(ctx, "*").Val() {
		if len(k) > 220 || strings.ContainsAny(k, "{}\n") {
			t.Errorf("the key %q", k)
		}
	}
}

func TestCacheIsSpoilt(t *testing.T) {
	c := client(t)
	cache := newCache[rate](t, c)
	for what, spoil := range map[string]func(){
		"another type":     func() { c.Set(ctx, "cb:cache:k", "x", time.Hour) },
		"no JSON":          func() { c.HSet(ctx, "cb:cache:k", "started", 1, "value", "{") },
		"other JSON":       func() { c.HSet(ctx, "cb:cache:k", "started", 1, "value", "[1]") },
		"an empty value":   func() { c.HSet(ctx, "cb:cache:k", "started", 1, "value", "") },
		"an unreadable at": func() { c.HSet(ctx, "cb:cache:k", "started", "soon", "value", "[]") },
		"an absurd at":     func() { c.HSet(ctx, "cb:cache:k", "started", 1<<53, "value", "[]") },
		"too large":        func() { c.HSet(ctx, "cb:cache:k", "started", 1, "value", "{}"+strings.Repeat(" ", 1<<20)) },
	} {
		c.Del(ctx, "cb:cache:k")
		spoil()
		if v, ok, err := cache.Get(ctx, "k"); err == nil || ok || v != (rate{}) {
			t.Errorf("%s: got %v, %v, %v, want an error", what, v, ok, err)
		}
		set(t, cache, "k", rate{"EUR", 1}, time.Now())
		get(t, cache, "k", rate{"EUR", 1}, true)
	}
	c.Del(ctx, "cb:cache:k")
	c.HSet(ctx, "cb:cache:k", "started", 1)
	get(t, cache, "k", rate{}, false)
}

func TestCacheRefuses(t *testing.T) {
	c := client(t)
	small := newCache[string](t, c, storeredis.CacheMaxBytes(10))
	if err := small.Set(ctx, "k", strings.Repeat("x", 9), time.Now(), time.Minute); err == nil || !strings.Contains(err.Error(), "11 bytes are more than 10") {
		t.Errorf("too large: %v", err)
	}
	get(t, small, "k", "", false)
	set(t, small, "k", strings.Repeat("x", 8), time.Now())
	get(t, small, "k", strings.Repeat("x", 8), true)
	if err := newCache[string](t, c).Set(ctx, "m", strings.Repeat("x", 1<<20), time.Now(), time.Minute); err == nil {
		t.Error("more than 1 MiB: no error")
	}
	if err := newCache[func()](t, c).Set(ctx, "f", func() {}, time.Now(), time.Minute); err == nil {
		t.Error("a value that cannot be encoded: no error")
	}
	done, cancel := context.WithCancel(ctx)
	cancel()
	if err := small.Set(done, "k", "y", time.Now(), time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("Set with a context that has ended: %v", err)
	}
	if _, _, err := small.Get(done, "k"); !errors.Is(err, context.Canceled) {
		t.Errorf("Get with a context that has ended: %v", err)
	}
}

func TestCacheCodec(t *testing.T) {
	c := client(t)
	plain := newCache[string](t, c, storeredis.CacheCodec(
		func(v any) ([]byte, error) { return []byte("<" + v.(string) + ">"), nil },
		func(b []byte, v any) error { *v.(*string) = strings.Trim(string(b), "<>"); return nil },
	))
	set(t, plain, "k", "text", time.Now())
	get(t, plain, "k", "text", true)
	if v := c.HGet(ctx, "cb:cache:k", "value").Val(); v != "<text>" {
		t.Errorf("kept as %q", v)
	}
	wild := newCache[string](t, c, storeredis.CacheCodec(
		func(any) ([]byte, error) { panic("marshal") }, func([]byte, any) error { panic("unmarshal") }))
	if err := wild.Set(ctx, "k", "", time.Now(), time.Minute); err == nil || !strings.Contains(err.Error(), "panic: marshal") {
		t.Errorf("a codec that panics: %v", err)
	}
	if _, ok, err := wild.Get(ctx, "k"); err == nil || ok || !strings.Contains(err.Error(), "panic: unmarshal") {
		t.Errorf("a codec that panics: %v", err)
	}
}

func TestCacheUnknownScript(t *testing.T) {
	srv := server(t)
	c := newCache[int](t, srv.Client(t))
	for i := range 3 {
		srv.Do("SCRIPT", "FLUSH")
		set(t, c, "k", i, time.Now().Add(time.Duration(i)*time.Second))
		get(t, c, "k", i, true)
	}
}

func TestCacheServerStandsStill(t *testing.T) {
	srv := server(t)
	c := newCache[int](t, srv.Client(t), storeredis.CacheTimeout(100*time.Millisecond))
	srv.Pause()
	defer srv.Resume()
	begun := time.Now()
	if err := c.Set(ctx, "k", 1, time.Now(), time.Minute); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Set: %v", err)
	}
	if _, ok, err := c.Get(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) || ok {
		t.Errorf("Get: %v", err)
	}
	if took := time.Since(begun); took > 2*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestNewCacheNamesEveryFault(t *testing.T) {
	_, err := storeredis.NewCache[int](nil, storeredis.CachePrefix("{"), storeredis.CacheTimeout(-1), storeredis.CacheMaxBytes(0), storeredis.CacheCodec(nil, nil), nil)
	for _, want := range []string{"client: must not be nil", "CachePrefix: must", "CacheTimeout: must be above 0, got -1ns", "CacheMaxBytes: must be above 0, got 0", "CacheCodec: must not be nil"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %v", want, err)
		}
	}
}

// The newest of many answers stays, whoever stores it and in whatever order.
func TestCacheConcurrently(t *testing.T) {
	c := client(t)
	now := time.Now()
	var wg sync.WaitGroup
	for i := range 8 {
		cache := newCache[int](t, c)
		wg.Go(func() {
			for j := range 50 {
				n := (j*37+i*11)%100 + 1
				if err := cache.Set(ctx, "k", n, now.Add(time.Duration(n)*time.Microsecond), time.Minute); err != nil {
					t.Error(err)
				}
				_, _, _ = cache.Get(ctx, "k")
			}
		})
	}
	wg.Wait()
	get(t, newCache[int](t, c), "k", 100, true)
}

// The whole: answers of one process rescue the calls of another.
func TestCacheRescues(t *testing.T) {
	c := client(t)
	key := func(context.Context) string { return "EUR" }
	process := func() *breaker.Breaker[rate] {
		b, err := breaker.New[rate]("rates", breaker.WithLastGood[rate](10*time.Minute, key, breaker.LastGoodCache[rate](newCache[rate](t, c))))
		return must(t, b, err)
	}
	good := func(context.Context) (rate, error) { return rate{"EUR", 1.5}, nil }
	bad := func(context.Context) (rate, error) { return rate{}, fmt.Errorf("down") }
	if _, err := process().Do(ctx, good); err != nil {
		t.Fatal(err)
	}
	other := process()
	eventually(t, "the answer is stored", func() bool {
		r := other.Try(ctx, bad)
		return r.Err == nil && r.Value == (rate{"EUR", 1.5}) && r.Rescue == "cache"
	})
}
