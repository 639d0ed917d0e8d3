package main

import (
	"bytes"
	"context"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The test's own program serves as a worker too.
func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" {
		if err := work(context.Background(), os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func play(t *testing.T, redis string) string {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
	defer cancel()
	var out bytes.Buffer
	err := run(ctx, &out, redis)
	require.NoError(t, err, "\n%s", out.String())
	return out.String()
}

func TestFleet(t *testing.T) {
	t.Run("on Redis", func(t *testing.T) {
		t.Parallel()
		redis := findRedis()
		if redis == "" {
			t.Skip("there is no redis-server on this machine")
		}
		out := play(t, redis)
		require.Regexp(t, `worker \d  closed +-> open +\(threshold reached\), \d+\.\d ms after the fifth failure`, out)
		require.Len(t, regexp.MustCompile(`closed +-> open +\(remote\)`).FindAllString(out, -1), workers-1)
		require.Len(t, regexp.MustCompile(`half-open -> closed +\(recovered\)`).FindAllString(out, 1), 1)
		require.Contains(t, out, "nobody has noticed")
		require.Contains(t, out, "all as it should be")
	})
	t.Run("in memory", func(t *testing.T) {
		t.Parallel()
		out := play(t, "")
		require.Contains(t, out, "share a circuit in memory")
		require.Contains(t, out, "all as it should be")
	})
}
