package storeredis_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	storeredis "github.com/breakerkit/breaker/store_redis"
)

// Circuits on a real server: what a circuit does alone, several of a name do together. The server's time is real, so the
// vectors' seconds are scaled to fractions of one.

var errDown = errors.New("down")

// fleet is circuits of one name, each with a store and a connection of its own, as in as many processes.
type fleet struct {
	*testing.T
	client *redis.Client
	nodes  []*breaker.Circuit
	began  time.Time
	turn   int
}

func newFleet(t *testing.T, size int, opts ...breaker.Option) *fleet {
	s := server(t)
	f := &fleet{T: t, client: s.Client(t), began: time.Now()}
	for range size {
		store := open(t, s.Client(t), storeredis.MirrorKeys())
		c, err := breaker.NewCircuit("dep", append([]breaker.Option{breaker.WithStore(store)}, opts...)...)
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		f.nodes = append(f.nodes, c)
	}
	return f
}

// call makes calls on one circuit after the other, and waits until all know of each.
func (f *fleet) call(n int, err error) {
	f.Helper()
	for range n {
		f.turn++
		_ = f.nodes[f.turn%len(f.nodes)].Run(f.Context(), func(context.Context) error { return err })
		f.sync()
	}
}

func (f *fleet) sync() {
	f.Helper()
	for range 2 {
		for _, c := range f.nodes {
			require.NoError(f, c.Sync(f.Context()))
		}
	}
}

// are checks the state of all.
func (f *fleet) are(want breaker.State) {
	f.Helper()
	for i, c := range f.nodes {
		require.Equal(f, want, c.State(), "circuit %d", i)
	}
}

// become waits until all are in a state.
func (f *fleet) become(want breaker.State) {
	f.Helper()
	require.Eventually(f, func() bool {
		for _, c := range f.nodes {
			if c.State() != want {
				return false
			}
		}
		return true
	}, 20*time.Second, time.Millisecond, "not all became %v", want)
}

// at waits until so long after the beginning, and reports whether it is still that time: a machine may be slower.
func (f *fleet) at(d time.Duration) bool {
	time.Sleep(time.Until(f.began.Add(d)))
	return time.Since(f.began) < d+20*time.Millisecond
}

// scaled plays a story of instants again until the machine was quick enough for it.
func scaled(t *testing.T, play func(f *fleet) (inTime bool), size int, opts ...breaker.Option) {
	t.Helper()
	f := newFleet(t, size, opts...)
	for range 20 {
		f.nodes[0].Reset()
		f.sync()
		f.began = time.Now()
		if play(f) {
			return
		}
	}
	t.Skip("this machine is too slow for the story")
}

const second = 10 * time.Millisecond // of the vectors

func TestCircuitsCountTogether(t *testing.T) {
	for _, size := range []int{1, 2, 3} {
		f := newFleet(t, size, breaker.WithOpenTimeout(time.Hour))
		f.call(100, nil) // K01
		f.are(breaker.Closed)
		f.call(4, errDown) // K02
		f.are(breaker.Closed)
		f.call(1, nil) // K04
		f.call(4, errDown)
		f.are(breaker.Closed)
		f.call(1, errDown)
		f.are(breaker.Open)
		for _, c := range f.nodes { // K03
			require.ErrorIs(t, c.Run(t.Context(), func(context.Context) error { t.Error("called"); return nil }), breaker.ErrOpen)
		}
	}
}

// Garbage that looks like a ledger makes way: who finds it is told, and the circuits go on to count together.
func TestCircuitsReplaceGarbage(t *testing.T) {
	for _, garbage := range [][]any{
		{"epoch", "9000000000000000:closed:1:0"},
		{"epoch", "5:open:1:9007199254740992"},
		{"lately", "0:0:10:5:0"},
		{"shape", "0:5:9000:x"},
	} {
		f := newFleet(t, 2, breaker.WithOpenTimeout(time.Hour))
		f.call(1, nil)
		require.NoError(t, f.client.HSet(ctx, "cb:{dep}", garbage...).Err())
		require.ErrorIs(t, f.nodes[0].Sync(ctx), storeredis.ErrCorrupt, garbage)
		f.call(5, errDown)
		f.are(breaker.Open)
	}
}

// K05: only failures younger than the window count.
func TestCircuitsShareAWindow(t *testing.T) {
	for name, c := range map[string]struct {
		at   []int
		want breaker.State
	}{
		"a: five within it":         {[]int{0, 15, 30, 45, 55}, breaker.Open},
		"b: the first has left":     {[]int{0, 15, 30, 45, 65}, breaker.Closed},
		"d: the last five":          {[]int{0, 57, 58, 59, 66, 67}, breaker.Open},
		"e: not five within it yet": {[]int{0, 57, 58, 59, 66}, breaker.Closed},
	} {
		t.Run(name, func(t *testing.T) {
			scaled(t, func(f *fleet) bool {
				for _, at := range c.at {
					if !f.at(time.Duration(at) * second) {
						return false
					}
					f.call(1, errDown)
				}
				if time.Since(f.began) > time.Duration(c.at[len(c.at)-1])*second+20*time.Millisecond {
					return false
				}
				f.are(c.want)
				return true
			}, 2, breaker.WithFailureWindow(60*second), breaker.WithOpenTimeout(time.Hour))
		})
	}
}

// K07, K09, K10, K12, K13, K31: the open period, the slots, and back.
func TestCircuitsRecoverTogether(t *testing.T) {
	f := newFleet(t, 2, breaker.WithOpenTimeout(200*time.Millisecond), breaker.WithProbeLease(time.Minute), breaker.WithSuccessThreshold(3))
	began := time.Now()
	f.call(5, errDown)
	if time.Since(began) < 150*time.Millisecond {
		f.are(breaker.Open)
	}
	f.become(breaker.HalfOpen)
	f.call(1, nil)
	f.call(1, errDown) // K12: one failed probe, and all is as before
	f.become(breaker.HalfOpen)
	require.GreaterOrEqual(t, time.Since(began), 400*time.Millisecond, "two open periods")

	var ran atomic.Int64
	var callers sync.WaitGroup
	gate, rejected := make(chan struct{}), make(chan error, 10)
	for i := range 10 { // K09
		callers.Go(func() {
			err := f.nodes[i%2].Run(t.Context(), func(context.Context) error { ran.Add(1); <-gate; return nil })
			if err != nil {
				rejected <- err
			}
		})
	}
	for range 7 {
		require.ErrorIs(t, <-rejected, breaker.ErrTooManyProbes)
	}
	close(gate)
	callers.Wait()
	require.EqualValues(t, 3, ran.Load())
	f.sync()
	f.are(breaker.Closed) // K10
	f.call(4, errDown)    // K13
	f.are(breaker.Closed)
	f.call(1, errDown)
	f.are(breaker.Open)
}

// K15: what was admitted before a change does not move the state.
func TestCircuitsIgnoreTheLate(t *testing.T) {
	f := newFleet(t, 2, breaker.WithOpenTimeout(time.Hour))
	var slow sync.WaitGroup
	gates := make([]chan error, 10)
	for i := range gates {
		gates[i] = make(chan error)
		started := make(chan struct{})
		slow.Go(func() {
			_ = f.nodes[i%2].Run(t.Context(), func(context.Context) error { close(started); return <-gates[i] })
		})
		<-started
	}
	f.call(5, errDown)
	f.are(breaker.Open)
	epoch := f.nodes[0].Snapshot().Epoch
	for i, g := range gates {
		g <- [2]error{nil, errDown}[i/5]
	}
	slow.Wait()
	f.sync()
	f.are(breaker.Open)
	f.nodes[0].Reset()
	f.sync()
	f.are(breaker.Closed)
	require.Greater(t, f.nodes[1].Snapshot().Epoch, epoch)
	require.Zero(t, f.nodes[1].Snapshot().Counts.Failures)
}

// Every kind of trip policy, the user's own included, is served by the same ledger.
func TestCircuitsTripByAnyPolicy(t *testing.T) {
	for name, c := range map[string]struct {
		trip   breaker.TripCondition
		before func(f *fleet)
	}{
		"FailureCount": {breaker.FailureCount(3, time.Minute), func(f *fleet) { f.call(2, errDown); f.call(5, nil) }},
		"FailureRate":  {breaker.FailureRate(0.5, 8, breaker.Last(time.Minute)), func(f *fleet) { f.call(4, nil); f.call(3, errDown) }},
		"TripWhen": {breaker.TripWhen(breaker.Last(time.Minute), func(n breaker.Counts) bool { return n.Successes == 2 && n.Failures == 3 }),
			func(f *fleet) { f.call(2, nil); f.call(2, errDown) }},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 2, breaker.WithTrip(c.trip), breaker.WithOpenTimeout(time.Hour))
			c.before(f)
			f.are(breaker.Closed)
			f.call(1, errDown)
			f.become(breaker.Open)
		})
	}
}

// D03, D04, D05 and E1's step 4a: MirApi's circuit, with the keys that others read.
func TestCircuitsLikeMirApi(t *testing.T) {
	f := newFleet(t, 2, breaker.WithFailureWindow(time.Minute), breaker.WithSuccessThreshold(1), breaker.WithHalfOpenProbes(1),
		breaker.WithOpenTimeout(1500*time.Millisecond), breaker.WithProbeLease(time.Minute))
	ctx := t.Context()
	f.call(5, errDown) // 3 by one, 2 by the other
	f.are(breaker.Open)
	state, err := f.client.Get(ctx, "cb:state:{dep}").Result()
	require.NoError(t, err)
	require.Equal(t, "OPEN", state)
	ttl, err := f.client.PTTL(ctx, "cb:state:{dep}").Result()
	require.NoError(t, err)
	require.Greater(t, ttl, 500*time.Millisecond)
	require.LessOrEqual(t, ttl, 1500*time.Millisecond)

	f.become(breaker.HalfOpen)
	var ran atomic.Int64
	var callers sync.WaitGroup
	gate, rejected := make(chan struct{}), make(chan error, 20)
	for i := range 20 {
		callers.Go(func() {
			if err := f.nodes[i%2].Run(ctx, func(context.Context) error { ran.Add(1); <-gate; return errDown }); err != nil && !errors.Is(err, errDown) {
				rejected <- err
			}
		})
	}
	for range 19 {
		require.ErrorIs(t, <-rejected, breaker.ErrOpen)
	}
	close(gate)
	callers.Wait()
	require.EqualValues(t, 1, ran.Load(), "calls that reached the upstream")
	f.sync()
	for _, c := range f.nodes { // D05
		assert.Equal(t, breaker.Open, c.State())
		assert.InDelta(t, 1500, time.Until(c.Snapshot().Until).Milliseconds(), 500)
	}
	f.become(breaker.HalfOpen)
	f.call(1, nil)
	f.are(breaker.Closed)
	n, err := f.client.Exists(ctx, "cb:state:{dep}", "cb:fails:{dep}").Result()
	require.NoError(t, err)
	require.Zero(t, n)
}

// Successes from before a run of failures, reported after it has begun, do not end it.
func TestCircuitsTellEarlySuccesses(t *testing.T) {
	f := newFleet(t, 3, breaker.WithOpenTimeout(time.Hour))
	for _, c := range f.nodes {
		for range 20 {
			require.NoError(t, c.Run(t.Context(), func(context.Context) error { return nil }))
		}
	}
	for _, c := range f.nodes { // nobody knows of the others' yet
		_ = c.Run(t.Context(), func(context.Context) error { return errDown })
	}
	f.sync()
	require.EqualValues(t, 3, f.nodes[0].Snapshot().Counts.ConsecutiveFailures)
	f.call(2, errDown)
	f.are(breaker.Open)
}
