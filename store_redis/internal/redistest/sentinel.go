package redistest

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Replicated is a master with one replica, watched by a sentinel that promotes the replica when the master is gone.
type Replicated struct {
	Master, Replica *Server // as they were at the start
	Sentinel        *Server
}

// masterName is what the sentinel calls them.
const masterName = "main"

// StartReplicated starts the three, and waits until the replica is in step and the sentinel knows both.
func StartReplicated(tb testing.TB) *Replicated {
	tb.Helper()
	r := &Replicated{Master: Start(tb, "--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0")}
	host, port, _ := net.SplitHostPort(r.Master.Addr)
	r.Replica = Start(tb, "--replicaof", host+" "+port)
	eventually(tb, "the replica is in step", func() bool {
		return r.Replica.Info("replication", "master_link_status") == "up"
	})
	r.Sentinel = start(tb, func(own, dir string) []string {
		file := filepath.Join(dir, "sentinel.conf")
		lines := []string{
			"port " + own,
			"sentinel monitor " + masterName + " " + host + " " + port + " 1",
			"sentinel down-after-milliseconds " + masterName + " 500",
			"sentinel failover-timeout " + masterName + " 2000",
		}
		if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			tb.Fatalf("redistest: %v", err)
		}
		return []string{file, "--sentinel"}
	})
	eventually(tb, "the sentinel knows the replica", func() bool {
		list, _ := r.Sentinel.Do("SENTINEL", "REPLICAS", masterName).([]any)
		return len(list) == 1
	})
	return r
}

// Client is a client that follows the sentinel, with settings that the Store accepts. It is closed when tb ends.
func (r *Replicated) Client(tb testing.TB) *redis.Client {
	c := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: masterName, SentinelAddrs: []string{r.Sentinel.Addr}, MaxRetries: -1, ContextTimeoutEnabled: true,
	})
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

// Failover kills the master and waits until the replica has been promoted. What was not replicated is lost.
func (r *Replicated) Failover() {
	r.Master.tb.Helper()
	r.Master.Kill()
	eventually(r.Master.tb, "the replica is promoted", func() bool {
		return r.Replica.Info("replication", "role") == "master"
	})
}

// InStep waits until the replica has all that the master has.
func (r *Replicated) InStep() {
	r.Master.tb.Helper()
	c := r.Master.plainClient()
	defer c.Close()
	if n, err := c.Wait(context.Background(), 1, 5*time.Second).Result(); n != 1 {
		r.Master.tb.Fatalf("redistest: the replica does not follow: %v", err)
	}
}
