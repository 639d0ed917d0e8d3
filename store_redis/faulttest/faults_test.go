package faulttest

import (
	"context"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	toxiproxy "github.com/Shopify/toxiproxy/v2"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/testenv"
	"github.com/breakerkit/breaker/store_redis/internal/redistest"
)

// scenario is one way to break things.
type scenario struct {
	name      string
	usual     bool // runs in every test run, the others only in a long one
	size      int  // processes; default 4
	limit     int  // default 2
	repeating bool
	kind      string // default single
	proxied   bool
	inject    func(f *fleet)
}

// fleet is a running scenario.
type fleet struct {
	*testing.T
	scenario
	server    *redistest.Server
	cluster   *redistest.Cluster
	replicas  *redistest.Replicated
	proxy     *toxiproxy.Proxy
	processes []*process
	killed    map[int]bool
	deadline  time.Time
}

func TestFaults(t *testing.T) {
	if !redistest.Available() {
		t.Skip("there is no redis-server on this machine")
	}
	all := []scenario{
		{name: "none", limit: 1, size: 8, inject: func(f *fleet) { f.flap(2 * time.Second) }},
		{name: "stopped and continued", usual: true, inject: func(f *fleet) {
			f.flap(500 * time.Millisecond)
			f.server.Pause()
			f.flap(1500 * time.Millisecond)
			f.server.Resume()
			f.flap(500 * time.Millisecond)
		}},
		{name: "killed, and empty again", inject: func(f *fleet) {
			for range 2 {
				f.flap(500 * time.Millisecond)
				f.server.Kill()
				f.flap(700 * time.Millisecond)
				f.server.Restart()
			}
			f.flap(500 * time.Millisecond)
		}},
		{name: "FLUSHALL", inject: func(f *fleet) {
			for range 12 {
				f.flap(150 * time.Millisecond)
				f.server.Do("FLUSHALL")
			}
		}},
		{name: "SCRIPT FLUSH", inject: func(f *fleet) {
			for range 12 {
				f.flap(150 * time.Millisecond)
				f.server.Do("SCRIPT", "FLUSH")
			}
		}},
		{name: "eviction", inject: func(f *fleet) {
			for range 30 {
				f.flap(60 * time.Millisecond)
				f.server.Do("DEL", "cb:{"+f.circuit()+"}")
			}
		}},
		{name: "maxmemory", inject: func(f *fleet) {
			f.flap(500 * time.Millisecond)
			f.server.Do("CONFIG", "SET", "maxmemory", "1mb", "maxmemory-policy", "noeviction")
			f.flap(time.Second)
			f.server.Do("CONFIG", "SET", "maxmemory", "0")
			f.flap(500 * time.Millisecond)
		}},
		{name: "slow scripts", inject: func(f *fleet) {
			for range 5 {
				f.flap(200 * time.Millisecond)
				f.server.Do("EVAL", "local t = redis.call('TIME'); local e = t[1] * 1000 + t[2] / 1000 + 300; "+
					"repeat local n = redis.call('TIME') until n[1] * 1000 + n[2] / 1000 > e; return 1", "0")
			}
		}},
		{name: "black hole", proxied: true, inject: func(f *fleet) {
			f.flap(500 * time.Millisecond)
			f.toxic("hole", `{"name":"hole","type":"timeout","stream":"downstream","attributes":{"timeout":0}}`)
			f.flap(1500 * time.Millisecond)
			f.healed("hole")
			f.flap(500 * time.Millisecond)
		}},
		{name: "latency", proxied: true, inject: func(f *fleet) {
			f.toxic("slow", `{"name":"slow","type":"latency","stream":"downstream","attributes":{"latency":100,"jitter":90}}`)
			f.flap(2 * time.Second)
			f.healed("slow")
			f.flap(300 * time.Millisecond)
		}},
		{name: "clock jumps", inject: func(f *fleet) {
			f.flap(300 * time.Millisecond)
			f.processes[0].tell(order{Do: "skew", By: 90 * time.Second})
			f.processes[1].tell(order{Do: "skew", By: -90 * time.Second})
			f.flap(time.Second)
			f.processes[0].tell(order{Do: "skew", By: -180 * time.Second})
			f.flap(time.Second)
		}},
		{name: "operations sent twice, late", usual: true, repeating: true, inject: func(f *fleet) { f.flap(2 * time.Second) }},
		{name: "killed with a probe in hand", usual: true, limit: 1, inject: func(f *fleet) {
			f.processes[0].tell(order{Do: "hold"}) // its first probe will not end
			for range 3 {
				f.flap(300 * time.Millisecond)
			}
			f.kill(0)
			f.flap(time.Second)
		}},
		{name: "a process stopped and continued", inject: func(f *fleet) {
			f.flap(300 * time.Millisecond)
			_ = f.processes[0].cmd.Process.Signal(syscall.SIGSTOP)
			f.flap(1500 * time.Millisecond)
			_ = f.processes[0].cmd.Process.Signal(syscall.SIGCONT)
			f.flap(500 * time.Millisecond)
		}},
		{name: "operators", inject: func(f *fleet) {
			for i := range 8 {
				f.flap(200 * time.Millisecond)
				f.processes[i%4].tell(order{Do: []string{"trip", "reset"}[i%2]})
			}
		}},
		{name: "failover with lost writes", kind: "sentinel", inject: func(f *fleet) {
			f.flap(300 * time.Millisecond)
			f.replicas.Replica.Pause() // what is written from now on does not reach it
			f.flap(400 * time.Millisecond)
			f.replicas.Master.Kill()
			f.replicas.Replica.Resume()
			f.flap(3 * time.Second)
		}},
		{name: "cluster", kind: "cluster", inject: func(f *fleet) {
			f.flap(time.Second)
			for _, s := range f.cluster.Servers {
				s.Do("SCRIPT", "FLUSH")
			}
			f.flap(time.Second)
		}},
	}
	for _, s := range all {
		if !s.usual && !testenv.Long() {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			s.play(t)
		})
	}
}

func (s scenario) play(t *testing.T) {
	if s.size == 0 {
		s.size = 4
	}
	if s.limit == 0 {
		s.limit = 2
	}
	f := &fleet{T: t, scenario: s, killed: make(map[int]bool), deadline: time.Now().Add(2 * time.Minute)}
	kind, addrs := f.servers()
	for n := range s.size {
		f.processes = append(f.processes, start(t, job{
			Number: n, Name: f.circuit(), Addrs: addrs, Kind: kind, Repeating: s.repeating, Limit: s.limit, Callers: 3,
		}))
	}
	for _, p := range f.processes {
		_, err := p.state(time.Minute)
		require.NoError(t, err)
	}
	s.inject(f)
	f.all("recover")
	f.agree()
	f.ttls()
	f.check()
}

func (f *fleet) circuit() string { return "dep" }

// servers starts what the scenario needs, and returns where to connect.
func (f *fleet) servers() (kind string, addrs []string) {
	switch f.kind {
	case "cluster":
		f.cluster = redistest.StartCluster(f.T, 3)
		for _, s := range f.cluster.Servers {
			addrs = append(addrs, s.Addr)
		}
		return "cluster", addrs
	case "sentinel":
		f.replicas = redistest.StartReplicated(f.T)
		return "sentinel", []string{f.replicas.Sentinel.Addr}
	}
	f.server = redistest.Start(f.T)
	if !f.proxied {
		return "single", []string{f.server.Addr}
	}
	srv := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	f.proxy = toxiproxy.NewProxy(srv, "redis", "127.0.0.1:0", f.server.Addr)
	require.NoError(f, f.proxy.Start())
	f.Cleanup(f.proxy.Stop)
	return "single", []string{f.proxy.Listen}
}

func (f *fleet) toxic(name, json string) {
	_, err := f.proxy.Toxics.AddToxicJson(strings.NewReader(json))
	require.NoError(f, err, name)
}

func (f *fleet) healed(name string) {
	require.NoError(f, f.proxy.Toxics.RemoveToxic(context.Background(), name))
}

func (f *fleet) all(do string) {
	for _, p := range f.processes {
		p.tell(order{Do: do})
	}
}

// flap has the dependency fail and recover for some time.
func (f *fleet) flap(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		f.all("fail")
		time.Sleep(min(d, 100*time.Millisecond))
		f.all("recover")
		time.Sleep(min(d, 150*time.Millisecond))
	}
}

func (f *fleet) kill(n int) {
	require.NoError(f, f.processes[n].cmd.Process.Kill())
	<-f.processes[n].done
	f.killed[n] = true
}

// living is the processes that have not been killed.
func (f *fleet) living() (all []*process) {
	for n, p := range f.processes {
		if !f.killed[n] {
			all = append(all, p)
		}
	}
	return all
}

// agree waits until all are closed in the same epoch, with nobody acting alone.
func (f *fleet) agree() {
	f.Helper()
	var states []breaker.Snapshot
	for time.Now().Before(f.deadline) {
		states = states[:0]
		for _, p := range f.living() {
			s, err := p.state(time.Minute)
			require.NoError(f, err)
			states = append(states, s)
		}
		if !slices.ContainsFunc(states, func(s breaker.Snapshot) bool {
			return s.State != breaker.Closed || s.Shared.Alone || !s.Shared.Connected || s.Epoch != states[0].Epoch
		}) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	for _, s := range states {
		f.Logf("%v, epoch %d, %+v", s, s.Epoch, *s.Shared)
	}
	f.Fatal("the fleet has not come to agree")
}

// ttls checks that every key ends.
func (f *fleet) ttls() {
	var clients []*redis.Client
	switch {
	case f.cluster != nil:
		for _, s := range f.cluster.Servers {
			clients = append(clients, s.Client(f))
		}
	case f.server != nil:
		clients = append(clients, f.server.Client(f))
	}
	for _, c := range clients {
		keys, err := c.Keys(f.Context(), "cb:*").Result()
		require.NoError(f, err)
		for _, key := range keys {
			ttl, err := c.PTTL(f.Context(), key).Result()
			require.NoError(f, err)
			assert.NotEqual(f, time.Duration(-1), ttl, "%s has no end", key)
		}
	}
}

// check ends the fleet and looks at everything that it has told.
func (f *fleet) check() {
	f.all("end")
	states := make(map[uint64]breaker.State)
	var probes []line
	changes := 0
	for n, p := range f.processes {
		select {
		case <-p.done:
		case <-time.After(time.Minute):
			f.Fatalf("process %d does not end", n)
		}
		if !f.killed[n] {
			f.totals(n, p.totals)
		}
		var last uint64
		for _, e := range p.events {
			if e.Kind == "probe" {
				probes = append(probes, e)
				continue
			}
			changes++
			assert.GreaterOrEqual(f, e.Epoch, last, "process %d went back", n)
			if e.Epoch > last && !e.Alone {
				was, known := states[e.Epoch]
				closed := e.To == breaker.Closed
				assert.False(f, known && (was == breaker.Closed) != closed, "process %d: epoch %d is %v and %v", n, e.Epoch, was, e.To)
				states[e.Epoch] = e.To
			}
			last = max(last, e.Epoch)
		}
	}
	most := overlap(probes)
	f.Logf("%d changes of state in %d epochs, %d probes, at most %d at once", changes, len(states), len(probes), most)
	assert.LessOrEqual(f, most, f.limit, "probes at once")
	assert.NotZero(f, changes, "nothing has happened")
}

// totals checks what one process has counted.
func (f *fleet) totals(n int, l *line) {
	if !assert.NotNil(f, l, "process %d has not told its totals", n) {
		return
	}
	t := l.State.Totals
	assert.Equal(f, l.Ran, t.Calls, "process %d: calls", n)
	assert.Equal(f, l.Failed, t.Failures, "process %d: failures", n)
	assert.Equal(f, t.Calls, t.Successes+t.Failures+t.Ignored, "process %d: totals", n)
	assert.Zero(f, l.State.InFlight, "process %d: in flight", n)
	assert.Zero(f, l.OnOpen, "process %d: calls on an open circuit", n)
	assert.Less(f, l.Waited, storeTimeout*4/5, "process %d: a call that needed no slot has waited for the store", n)
}

// overlap is how many probes ran at once, at most, for as long as their leases certainly lasted.
func overlap(probes []line) (most int) {
	for _, p := range probes {
		n := 0
		for _, q := range probes {
			if q.Start <= p.Start && q.End > p.Start {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}
