package storeredis_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/breakerkit/breaker"
	storeredis "github.com/breakerkit/breaker/store_redis"
	"github.com/breakerkit/breaker/store_redis/internal/redistest"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

// No test may leave a goroutine behind.
func TestMain(m *testing.M) {
	redis.SetLogger(silent{})
	if !redistest.Available() {
		fmt.Println("there is no redis-server: what needs a real one is left out, the rest runs on miniredis")
	}
	goleak.VerifyTestMain(m)
}

// silent drops what the client logs: servers that are away are what many tests are about.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// guard ends the run when a test hangs.
func guard(t *testing.T) {
	t.Helper()
	stuck := time.AfterFunc(4*time.Minute, func() {
		fmt.Fprintln(os.Stderr, t.Name(), "is stuck")
		panic(t.Name() + " is stuck")
	})
	t.Cleanup(func() { stuck.Stop() })
}

// server starts a real server, or skips the test where there is none.
func server(t *testing.T, args ...string) *redistest.Server {
	t.Helper()
	guard(t)
	if !redistest.Available() {
		t.Skip("needs a redis-server")
	}
	return redistest.Start(t, args...)
}

// client is of a real server, or of miniredis where there is none.
func client(t *testing.T) *redis.Client {
	t.Helper()
	if redistest.Available() {
		return server(t).Client(t)
	}
	guard(t)
	return miniClient(t, miniredis.RunT(t))
}

func miniClient(t *testing.T, m *miniredis.Miniredis) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: m.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// open makes a Store; one that a race detector slows down is given more time than the default.
func open(t *testing.T, c redis.UniversalClient, opts ...storeredis.Option) *storeredis.Store {
	t.Helper()
	s, err := storeredis.New(c, append([]storeredis.Option{storeredis.Timeout(20 * time.Second)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

var _ breaker.Store = (*storeredis.Store)(nil)

func newStore(c redis.UniversalClient) (*storeredis.Store, error) {
	return storeredis.New(c, storeredis.Timeout(20*time.Second))
}
