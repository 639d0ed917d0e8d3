package storeredis_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/store/storetest"
	storeredis "github.com/breakerkit/breaker/store_redis"
	"github.com/breakerkit/breaker/store_redis/internal/redistest"
	"github.com/redis/go-redis/v9"
)

var prefixes atomic.Int64

// fixture gives every case ledgers of its own under a prefix of its own. wipe loses what all cases have.
func fixture(newClient func(t *testing.T) redis.UniversalClient, wipe func(t *testing.T)) func(t *testing.T) storetest.Fixture {
	return func(t *testing.T) storetest.Fixture {
		prefix := storeredis.KeyPrefix(fmt.Sprintf("p%d", prefixes.Add(1)))
		return storetest.Fixture{
			Open: func(t *testing.T) breaker.Store { return open(t, newClient(t), prefix) },
			Wipe: wipe,
		}
	}
}

func TestConformanceOnOneServer(t *testing.T) {
	t.Parallel()
	srv := server(t)
	storetest.Run(t, fixture(
		func(t *testing.T) redis.UniversalClient { return srv.Client(t) },
		func(*testing.T) { srv.Do("FLUSHALL") },
	))
}

func TestConformanceOnMiniredis(t *testing.T) {
	m := miniredis.RunT(t)
	now := time.Now()
	m.SetTime(now)
	with := fixture(
		func(t *testing.T) redis.UniversalClient { return miniClient(t, m) },
		func(*testing.T) { m.FlushAll() },
	)
	storetest.Run(t, func(t *testing.T) storetest.Fixture {
		f := with(t)
		f.Advance = func(d time.Duration) {
			now = now.Add(d)
			m.SetTime(now)
			m.FastForward(d)
		}
		return f
	})
}

func TestConformanceOnACluster(t *testing.T) {
	t.Parallel()
	guard(t)
	if !redistest.Available() {
		t.Skip("needs a redis-server")
	}
	c := redistest.StartCluster(t, 3)
	storetest.Run(t, fixture(func(t *testing.T) redis.UniversalClient { return c.Client(t) }, func(*testing.T) {
		for _, s := range c.Servers {
			s.Do("FLUSHALL")
		}
	}))
}

func TestConformanceBehindASentinel(t *testing.T) {
	t.Parallel()
	guard(t)
	if !redistest.Available() {
		t.Skip("needs a redis-server")
	}
	r := redistest.StartReplicated(t)
	r.Sentinel.Do("SENTINEL", "SET", "main", "down-after-milliseconds", "120000") // a busy machine is no reason to promote
	storetest.Run(t, fixture(
		func(t *testing.T) redis.UniversalClient { return r.Client(t) },
		func(*testing.T) { r.Master.Do("FLUSHALL") },
	))
}
