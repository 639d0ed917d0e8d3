package pool_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/pool"
)

// No test may leave a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	errBoom   = errors.New("boom")
	errClient = errors.New("the client was wrong")
)

// testTimeout is how long a test may take in real time before it is taken to be stuck.
const testTimeout = 2 * time.Minute

// guard fails a test that is stuck, with stacks.
func guard(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if v := recover(); v != nil { // a bubble whose goroutines wait for ever, for one
				t.Errorf("panic: %v\n%s", v, debug.Stack())
			}
		}()
		f()
	}()
	timer := time.NewTimer(testTimeout)
	defer timer.Stop()
	select {
	case <-done:
		if t.Failed() {
			t.FailNow()
		}
	case <-timer.C:
		stacks := make([]byte, 1<<20)
		t.Fatalf("stuck after %v\n%s", testTimeout, stacks[:runtime.Stack(stacks, true)])
	}
}

// bubble runs a test in a bubble of testing/synctest, where time passes by itself.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	guard(t, func() { synctest.Test(t, f) })
}

// rig is a pool whose members are their own names, and answer with them or with what fail says.
type rig struct {
	t   *testing.T
	clk *clock.Mock
	p   *pool.Pool[string]

	mu   sync.Mutex
	fail map[string]error
	ran  map[string]int
	log  []string // who was called, in order
}

// r0 is circuits that open at the third failure, for 10s, and close at the first good probe.
var r0 = pool.WithBreaker(breaker.WithFailureThreshold(3), breaker.WithOpenTimeout(10*time.Second), breaker.WithSuccessThreshold(1))

func newRig(t *testing.T, s pool.Strategy, members []pool.Member[string], opts ...pool.Option) *rig {
	t.Helper()
	r := &rig{t: t, clk: clock.NewMock(), fail: map[string]error{}, ran: map[string]int{}}
	r.clk.Set(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	for i := range members {
		members[i].Value = members[i].Name
	}
	p, err := pool.New(s, members, append([]pool.Option{pool.WithClock(r.clk)}, opts...)...)
	require.NoError(t, err)
	r.p = p
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return r
}

// names makes members of these names, all of the same priority.
func names(all ...string) []pool.Member[string] {
	members := make([]pool.Member[string], len(all))
	for i, n := range all {
		members[i] = pool.Member[string]{Name: n, Value: n}
	}
	return members
}

func (r *rig) call(_ context.Context, name string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ran[name]++
	r.log = append(r.log, name)
	return name, r.fail[name]
}

// do makes a call, and returns who answered.
func (r *rig) do() (string, error) { return pool.Do(r.t.Context(), r.p, r.call) }

// good makes n calls that must be answered, and returns by whom.
func (r *rig) good(n int) (by []string) {
	r.t.Helper()
	for range n {
		v, err := r.do()
		require.NoError(r.t, err)
		by = append(by, v)
	}
	return by
}

// open opens circuits.
func (r *rig) open(all ...string) {
	for _, n := range all {
		r.p.Circuit(n).Trip(errBoom)
	}
}

func (r *rig) state(name string) breaker.State { return r.p.Circuit(name).State() }

// called is who has been called since the last time.
func (r *rig) called() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.log
	r.log = nil
	return all
}

// count counts who is in a list.
func count(all []string) map[string]int {
	n := map[string]int{}
	for _, v := range all {
		n[v]++
	}
	return n
}

// totals is the totals of a circuit.
func (r *rig) totals(name string) breaker.Totals { return r.p.Circuit(name).Snapshot().Totals }

// gate is calls that wait inside until they are let go.
type gate struct {
	r       *rig
	entered chan string
	release chan error
	wg      sync.WaitGroup
	mu      sync.Mutex
	by      []string
	errs    []error
}

func (r *rig) gate() *gate {
	return &gate{r: r, entered: make(chan string, 1024), release: make(chan error)}
}

// start makes n calls, and returns on whom they wait.
func (g *gate) start(n int) (on []string) {
	g.r.t.Helper()
	for range n {
		g.wg.Go(func() {
			v, err := pool.Do(g.r.t.Context(), g.r.p, func(_ context.Context, name string) (string, error) {
				g.entered <- name
				return name, <-g.release
			})
			g.mu.Lock()
			defer g.mu.Unlock()
			g.by, g.errs = append(g.by, v), append(g.errs, err)
		})
		select {
		case name := <-g.entered:
			on = append(on, name)
		case <-time.After(testTimeout):
			g.r.t.Fatal("the call did not start")
		}
	}
	return on
}

// finish lets the calls go, and waits for them.
func (g *gate) finish() (by []string, errs []error) {
	close(g.release)
	g.wg.Wait()
	return g.by, g.errs
}

// status is the error of an answer with an HTTP status.
type status int

func (s status) Error() string { return fmt.Sprintf("status %d", int(s)) }

// busy is an error that asks to be left alone.
type busy time.Duration

func (b busy) Error() string             { return "busy" }
func (b busy) RetryAfter() time.Duration { return time.Duration(b) }

// checked makes a pool of members whose health is checked by check, and counts the checks.
func checked(t *testing.T, every time.Duration, check func(context.Context) error, opts ...breaker.HealthOption) (*pool.Pool[string], map[string]*atomic.Int64) {
	checks := map[string]*atomic.Int64{"a": {}, "b": {}, "c": {}}
	p, err := pool.New(pool.Failover, names("a", "b", "c"),
		pool.WithBreaker(breaker.WithOpenTimeout(30*time.Second), breaker.WithSuccessThreshold(3)),
		pool.PerMember(func(m pool.Member[string]) []breaker.Option {
			return []breaker.Option{breaker.WithHealthCheck(every, func(ctx context.Context) error {
				checks[m.Value].Add(1)
				return check(ctx)
			}, opts...)}
		}))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p, checks
}

func ill(context.Context) error { return errBoom }

func well(context.Context) error { return nil }

// pass lets time pass, and everything that is due then happen.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

var strategies = []pool.Strategy{pool.Failover, pool.RoundRobin, pool.WeightedRoundRobin, pool.Shuffle, pool.LeastBusy}

// many makes a pool of n, of which every third is open if so wanted.
func many(tb testing.TB, s pool.Strategy, n int, thirdOpen bool, opts ...pool.Option) *pool.Pool[int] {
	tb.Helper()
	members := make([]pool.Member[int], n)
	for i := range members {
		members[i] = pool.Member[int]{Name: fmt.Sprintf("m%d", i), Value: i, Weight: i % 5}
	}
	p, err := pool.New(s, members, append([]pool.Option{pool.WithBreaker(breaker.WithOpenTimeout(24 * time.Hour))}, opts...)...)
	require.NoError(tb, err)
	for i := 0; thirdOpen && i < n; i += 3 {
		p.Circuit(fmt.Sprintf("m%d", i)).Trip(nil)
	}
	return p
}
