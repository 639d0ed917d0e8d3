package storeredis_test

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	storeredis "github.com/breakerkit/breaker/store_redis"
	"github.com/breakerkit/breaker/store_redis/internal/redistest"
)

// Who gives a wrong password is told so.
func TestWrongPassword(t *testing.T) {
	if !redistest.Available() {
		t.Skip("there is no redis-server on this machine")
	}
	s := redistest.Start(t)
	s.Do("CONFIG", "SET", "requirepass", "right")
	client := s.Client(t, func(o *redis.Options) { o.Password = "wrong" })
	store, err := storeredis.New(client)
	require.NoError(t, err)
	defer store.Close()
	replies := store.Read(context.Background(), []string{"dep"})
	require.ErrorContains(t, replies[0].Err, "WRONGPASS")
}
