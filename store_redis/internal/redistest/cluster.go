package redistest

import (
	"net"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Cluster is a number of masters that share the hash slots, without replicas.
type Cluster struct{ Servers []*Server }

// slots is how many hash slots there are.
const slots = 16384

// StartCluster starts a cluster, and waits until every node knows the whole of it.
func StartCluster(tb testing.TB, masters int) *Cluster {
	tb.Helper()
	c := &Cluster{}
	for i := range masters {
		s := start(tb, func(port, _ string) []string {
			return []string{
				"--port", port, "--save", "", "--appendonly", "no",
				"--cluster-enabled", "yes", "--cluster-port", freePort(tb), "--cluster-node-timeout", "5000",
				"--cluster-require-full-coverage", "no",
			}
		})
		s.Do("CLUSTER", "SET-CONFIG-EPOCH", i+1)
		s.Do("CLUSTER", "ADDSLOTSRANGE", i*slots/masters, (i+1)*slots/masters-1)
		c.Servers = append(c.Servers, s)
	}
	for _, s := range c.Servers[1:] {
		host, port, _ := net.SplitHostPort(s.Addr)
		c.Servers[0].Do("CLUSTER", "MEET", host, port, s.busPort())
	}
	for _, s := range c.Servers {
		eventually(tb, "the cluster comes together", func() bool {
			info, _ := s.Do("CLUSTER", "INFO").(string)
			list, _ := s.Do("CLUSTER", "SHARDS").([]any)
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_slots_ok:16384") && len(list) == masters
		})
	}
	return c
}

// busPort is where the nodes of a cluster talk to each other.
func (s *Server) busPort() string {
	for i, a := range s.args {
		if a == "--cluster-port" {
			return s.args[i+1]
		}
	}
	return "0"
}

// Client is a client of the cluster with settings that the Store accepts. It is closed when tb ends.
func (c *Cluster) Client(tb testing.TB) *redis.ClusterClient {
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs(c.Servers), MaxRetries: -1, ContextTimeoutEnabled: true})
	tb.Cleanup(func() { _ = client.Close() })
	return client
}
