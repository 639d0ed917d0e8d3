package pool_test

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/pool"
)

func TestAddAndRemove(t *testing.T) {
	r := newRig(t, pool.RoundRobin, names("a", "b", "c"), r0)
	a, b := r.p.Circuit("a"), r.p.Circuit("b")
	r.open("b")
	assert.False(t, r.p.Remove("x"))
	assert.True(t, r.p.Remove("a"))
	assert.False(t, r.p.Remove("a"))
	assert.Nil(t, r.p.Circuit("a"))
	assert.Same(t, b, r.p.Circuit("b"))
	assert.Equal(t, breaker.Open, r.state("b"), "the others keep their state")
	assert.Equal(t, map[string]int{"c": 4}, count(r.good(4)))

	a.Trip(nil)
	require.NoError(t, r.p.Add(pool.Member[string]{Name: "a", Value: "a", Circuit: a}))
	assert.Equal(t, breaker.Open, r.state("a"), "the same circuit, the same state")
	assert.Equal(t, map[string]int{"c": 4}, count(r.good(4)))
	require.True(t, r.p.Remove("a"))
	require.NoError(t, r.p.Add(pool.Member[string]{Name: "a", Value: "a"}))
	assert.Equal(t, breaker.Closed, r.state("a"), "a new circuit")
	assert.Equal(t, 3, r.p.Circuit("a").Config().FailureThreshold, "configured like the others")

	err := r.p.Add(pool.Member[string]{Name: "a", Weight: -2})
	require.Error(t, err)
	assert.EqualError(t, err, "pool: Member.Weight: must be from 0 to 1000000, got -2\npool: Member.Name: must be unique in the pool, got \"a\" again")
	require.ErrorContains(t, r.p.Add(pool.Member[string]{Name: "d", Circuit: b}), `got "b", which "b" has`)

	for _, n := range []string{"a", "b", "c"} {
		require.True(t, r.p.Remove(n))
	}
	_, err = r.do()
	require.ErrorIs(t, err, breaker.ErrOpen)
	assert.EqualError(t, err, "pool: no members")
	require.NoError(t, r.p.Add(pool.Member[string]{Name: "z", Value: "z"}))
	assert.Equal(t, []string{"z"}, r.good(1))
}

func TestCallsOnARemovedMemberSettle(t *testing.T) {
	guard(t, func() {
		r := newRig(t, pool.Failover, names("a", "b"), r0)
		a := r.p.Circuit("a")
		a.Trip(nil)
		r.clk.Add(10 * time.Second)
		g := r.gate()
		assert.Equal(t, []string{"a"}, g.start(1))
		require.True(t, r.p.Remove("a"))
		assert.Equal(t, []string{"b"}, r.good(1))
		by, errs := g.finish()
		assert.Equal(t, []string{"a"}, by)
		assert.Equal(t, []error{nil}, errs)
		assert.Equal(t, breaker.Closed, a.State(), "the probe counted")
		assert.Zero(t, a.Snapshot().InFlight)
	})
}

func TestOnlyCircuitsOfItsOwnAreClosed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var checks atomic.Int64
		check := breaker.WithHealthCheck(time.Second, func(context.Context) error {
			checks.Add(1)
			return errBoom
		})
		given := breaker.Must(breaker.NewCircuit("given", check))
		p, err := pool.New(pool.Failover, []pool.Member[string]{{Name: "a", Circuit: given}, {Name: "b"}}, pool.WithBreaker(check))
		require.NoError(t, err)
		p.Circuit("a").Trip(nil)
		p.Circuit("b").Trip(nil)
		pass(3 * time.Second)
		assert.EqualValues(t, 6, checks.Load())
		require.True(t, p.Remove("a"))
		require.NoError(t, p.Close())
		pass(3 * time.Second)
		assert.EqualValues(t, 9, checks.Load(), "the given one's go on")
		_, err = pool.Do(t.Context(), p, func(context.Context, string) (int, error) { return 0, nil })
		require.ErrorIs(t, err, breaker.ErrOpen, "calls go on as before")
		require.NoError(t, given.Close())
	})
}

func TestNewClosesWhatItMadeInVain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		snap := breaker.Snapshot{State: breaker.Open, Since: time.Now(), Until: time.Now().Add(30 * time.Second)}
		_, err := pool.New(pool.Failover, names("a", "b"), pool.PerMember(func(m pool.Member[string]) []breaker.Option {
			if m.Name == "a" { // open from the start, hence with a health check under way
				return []breaker.Option{breaker.WithSnapshot(snap), breaker.WithHealthCheck(time.Second, ill)}
			}
			return []breaker.Option{breaker.WithFailureThreshold(0)}
		}))
		require.Error(t, err)
	})
}

func TestAddClosesWhatItMadeInVain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		snap := breaker.Snapshot{State: breaker.Open, Since: time.Now(), Until: time.Now().Add(30 * time.Second)}
		p, err := pool.New(pool.Failover, names("a"), pool.PerMember(func(m pool.Member[string]) []breaker.Option {
			if m.Name == "late" { // open from the start, hence with a health check under way
				return []breaker.Option{breaker.WithSnapshot(snap), breaker.WithHealthCheck(time.Second, ill)}
			}
			return nil
		}))
		require.NoError(t, err)
		require.NoError(t, p.Close())
		require.ErrorIs(t, p.Add(pool.Member[string]{Name: "late"}), pool.ErrClosed)
	})
}

func TestPerMemberMayUseThePool(t *testing.T) {
	guard(t, func() {
		var p *pool.Pool[string]
		p, err := pool.New(pool.Failover, names("a"), pool.PerMember(func(m pool.Member[string]) []breaker.Option {
			if p != nil {
				_ = p.Remove("a")
			}
			return nil
		}))
		require.NoError(t, err)
		require.NoError(t, p.Add(pool.Member[string]{Name: "b"}))
		assert.Nil(t, p.Circuit("a"))
	})
}

func TestCircuitsSnapshotAndString(t *testing.T) {
	given := breaker.Must(breaker.NewCircuit("circuit of a"))
	r := newRig(t, pool.Failover, []pool.Member[string]{{Name: "b"}, {Name: "a", Priority: 3, Weight: 2, Circuit: given}, {Name: "c", Priority: -1}}, r0)
	r.open("b")
	var got []string
	for n, c := range r.p.Circuits() {
		assert.Equal(t, n, c.Name())
		got = append(got, n)
	}
	assert.Equal(t, []string{"circuit of a", "b", "c"}, got)
	for range r.p.Circuits() {
		break
	}
	s := r.p.Snapshot()
	assert.Equal(t, pool.Failover, s.Strategy)
	require.Len(t, s.Members, 3)
	assert.Equal(t, []bool{true, false, true}, []bool{s.Members[0].Ready, s.Members[1].Ready, s.Members[2].Ready})
	assert.Equal(t, 2, s.Members[0].Weight)
	assert.Equal(t, 1, s.Members[1].Weight)
	assert.Equal(t, "circuit of a", s.Members[0].Circuit.Name)
	assert.Equal(t, breaker.Open, s.Members[1].Circuit.State)
	text, err := json.Marshal(s)
	require.NoError(t, err)
	assert.Contains(t, string(text), `{"strategy":"failover","members":[{"name":"a","priority":3,"weight":2,"ready":true,"circuit":{"name":"circuit of a","state":"closed"`)
	assert.Equal(t, "failover pool of 3: a closed, b open, c closed", r.p.String())
}
