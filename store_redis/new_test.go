package storeredis_test

import (
	"strings"
	"testing"
	"time"

	storeredis "github.com/breakerkit/breaker/store_redis"
	"github.com/redis/go-redis/v9"
)

func inDB1(o *redis.Options) { o.DB = 1 }

func TestNewNamesEveryFault(t *testing.T) {
	good := redis.Options{Addr: "localhost:1", MaxRetries: -1, ContextTimeoutEnabled: true}
	with := func(change func(*redis.Options)) redis.UniversalClient {
		o := good
		change(&o)
		return redis.NewClient(&o)
	}
	var typedNil *redis.Client
	for name, c := range map[string]struct {
		client redis.UniversalClient
		opts   []storeredis.Option
		want   string // empty: no error
	}{
		"good":               {client: with(func(*redis.Options) {})},
		"nil options":        {client: with(func(*redis.Options) {}), opts: []storeredis.Option{nil}},
		"nil":                {want: "client: must not be nil"},
		"typed nil":          {client: typedNil, want: "client: must not be nil"},
		"default retries":    {client: with(func(o *redis.Options) { o.MaxRetries = 0 }), want: "MaxRetries must be -1, for none, got 3"},
		"retries":            {client: with(func(o *redis.Options) { o.MaxRetries = 1 }), want: "MaxRetries must be -1, for none, got 1"},
		"no deadlines":       {client: with(func(o *redis.Options) { o.ContextTimeoutEnabled = false }), want: "ContextTimeoutEnabled must be true, got false"},
		"deadlines off":      {client: with(func(o *redis.Options) { o.ReadTimeout = -2 }), want: "ReadTimeout must not be -2, which turns deadlines off, got -2"},
		"unchecked":          {client: with(func(o *redis.Options) { o.MaxRetries = 5; o.ContextTimeoutEnabled = false }), opts: []storeredis.Option{storeredis.UncheckedClient()}},
		"unchecked nil":      {opts: []storeredis.Option{storeredis.UncheckedClient()}, want: "client: must not be nil"},
		"cluster":            {client: redis.NewClusterClient(&redis.ClusterOptions{ContextTimeoutEnabled: true})},
		"cluster, retries":   {client: redis.NewClusterClient(&redis.ClusterOptions{ContextTimeoutEnabled: true, MaxRetries: 2}), want: "MaxRetries must be -1, for none, got 2"},
		"cluster, deadlines": {client: redis.NewClusterClient(&redis.ClusterOptions{}), want: "ContextTimeoutEnabled must be true, got false"},
		"ring":               {client: redis.NewRing(&redis.RingOptions{MaxRetries: -1, ContextTimeoutEnabled: true}), want: "must not be a Ring"},
		"empty prefix":       {client: with(func(*redis.Options) {}), opts: []storeredis.Option{storeredis.KeyPrefix("")}, want: `KeyPrefix: must not be empty, got ""`},
		"braces":             {client: with(func(*redis.Options) {}), opts: []storeredis.Option{storeredis.KeyPrefix("a{b}")}, want: `KeyPrefix: must have neither braces nor control characters, got "a{b}"`},
		"control":            {client: with(func(*redis.Options) {}), opts: []storeredis.Option{storeredis.KeyPrefix("a\nb")}, want: "KeyPrefix"},
		"not UTF-8":          {client: with(func(*redis.Options) {}), opts: []storeredis.Option{storeredis.KeyPrefix("a\xff")}, want: "KeyPrefix"},
		"long prefix":        {client: with(func(*redis.Options) {}), opts: []storeredis.Option{storeredis.KeyPrefix(strings.Repeat("a", 101))}, want: "KeyPrefix: must not be longer than 100 bytes"},
		"a mirror's prefix":  {client: with(func(*redis.Options) {}), opts: []storeredis.Option{storeredis.KeyPrefix("cb:state")}, want: "KeyPrefix: must not end in :state"},
		"no time":            {client: with(func(*redis.Options) {}), opts: []storeredis.Option{storeredis.Timeout(0)}, want: "Timeout: must be above 0, got 0s"},
		"negative time":      {client: with(func(*redis.Options) {}), opts: []storeredis.Option{storeredis.Timeout(-time.Second)}, want: "Timeout: must be above 0, got -1s"},
	} {
		s, err := storeredis.New(c.client, c.opts...)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || s != nil):
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if s != nil {
			_ = s.Close()
		}
		if !isNil(c.client) {
			_ = c.client.Close()
		}
	}
	_, err := storeredis.New(nil, storeredis.KeyPrefix(""), storeredis.Timeout(0))
	for _, want := range []string{"client", "KeyPrefix", "Timeout"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("of several faults %s is missing: %v", want, err)
		}
	}
}

func isNil(c redis.UniversalClient) bool {
	p, ok := c.(*redis.Client)
	return c == nil || ok && p == nil
}
