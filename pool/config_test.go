package pool_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/pool"
	"github.com/breakerkit/breaker/store"
)

// A Pool is a Source.
var _ breaker.Source = (*pool.Pool[int])(nil)

func TestNewNamesEverythingThatIsWrong(t *testing.T) {
	other := breaker.Must(breaker.NewCircuit("shared"))
	for name, tc := range map[string]struct {
		strategy pool.Strategy
		members  []pool.Member[string]
		opts     []pool.Option
		want     []string
	}{
		"no members":       {want: []string{"pool: Members: must be at least one, got none"}},
		"unknown strategy": {strategy: 9, members: names("a"), want: []string{"pool: Strategy: must be one of failover, round-robin, weighted-round-robin, shuffle, least-busy, got 9"}},
		"names and weights": {members: []pool.Member[string]{{Name: "a"}, {}, {Name: "a"}, {Name: "b", Weight: -1}, {Name: "c", Weight: 1_000_001}}, want: []string{
			`pool: Members[1].Name: must not be empty, got ""`,
			`pool: Members[2].Name: must be unique in the pool, got "a" again`,
			`pool: Members[3].Weight: must be from 0 to 1000000, got -1`,
			`pool: Members[4].Weight: must be from 0 to 1000000, got 1000001`,
		}},
		"one circuit for two": {members: []pool.Member[string]{{Name: "a", Circuit: other}, {Name: "b", Circuit: other}}, want: []string{
			`pool: Members[1].Circuit: must be the member's own, got "shared", which "a" has`,
		}},
		"a circuit with another member's name": {members: []pool.Member[string]{{Name: "a", Circuit: other}, {Name: "shared"}}, want: []string{
			`pool: Members[1].Circuit: must be the member's own, got "shared", which "a" has`,
		}},
		"limits": {members: names("a"), opts: []pool.Option{pool.WithLimit(-1), pool.MaxEjected(-1), pool.MaxEjected(101), nil}, want: []string{
			"pool: Limit: must be from 0 to 1281023h53m38.427387904s, got -1ns",
			"pool: MaxEjected: must be from 0 to 100, got -1",
			"pool: MaxEjected: must be from 0 to 100, got 101",
			"pool: Option: must not be nil",
		}},
		"names of the pool": {members: names("a"), opts: []pool.Option{pool.WithName(""), pool.WithName("a/b")}, want: []string{
			`pool: Name: must not be empty or hold a slash, got ""`,
			`pool: Name: must not be empty or hold a slash, got "a/b"`,
		}},
		"a circuit with the name of one to be made": {members: []pool.Member[string]{{Name: "a", Circuit: breaker.Must(breaker.NewCircuit("p/b"))}, {Name: "b"}}, opts: []pool.Option{pool.WithName("p")}, want: []string{
			`pool: Members[1].Circuit: must be the member's own, got "p/b", which "a" has`,
		}},
		"a store without a name": {members: names("a", "b"), opts: []pool.Option{pool.WithBreaker(breaker.WithStore(store.NewMemory()))}, want: []string{
			"pool: Name: must be given with WithName where circuits have a Store: circuits of one name share their state",
		}},
		"nil": {members: names("a"), opts: []pool.Option{pool.WithRand(nil), pool.WithClock(nil), pool.WithClock((*clock.Mock)(nil)), pool.PerMember[string](nil), pool.WithBreaker(nil)}, want: []string{
			"pool: Rand: must not be nil",
			"pool: Clock: must not be nil",
			"pool: Clock: must not be nil",
			"pool: PerMember: must not be nil",
			"breaker: Option: must not be nil",
		}},
		"PerMember of another type": {members: names("a"), opts: []pool.Option{pool.PerMember(func(pool.Member[int]) []breaker.Option { return nil })}, want: []string{
			"pool: PerMember: must take the pool's Member[string], got func(pool.Member[int]) []breaker.Option",
		}},
		"circuit options": {members: names("a"), opts: []pool.Option{pool.WithBreaker(breaker.WithFailureThreshold(-1), breaker.WithOpenTimeout(0))}, want: []string{
			"breaker: FailureThreshold: must be from 1 to 2147483647, got -1",
			"breaker: OpenTimeout: must be above 0 and at most 1281023h53m38.427387904s, got 0s",
		}},
		"what would be passed over": {members: names("a"), opts: []pool.Option{pool.WithBreaker(breaker.WithRetry(breaker.MaxRetries(1)),
			breaker.WithResult(func(struct{}, error) breaker.Outcome { return 0 }), breaker.WithFallbackValue(struct{}{}))}, want: []string{
			"breaker: Retry: is not an option of pool.WithBreaker",
			"breaker: Result: is not an option of pool.WithBreaker",
			"breaker: Fallback: is not an option of pool.WithBreaker",
		}},
		"group options": {members: names("a"), opts: []pool.Option{pool.WithBreaker(breaker.MaxKeys(3))}, want: []string{
			`pool: member "a": breaker: MaxKeys: is not an option of New`,
		}},
		"a member's own options": {members: names("a", "b"), opts: []pool.Option{pool.PerMember(func(m pool.Member[string]) []breaker.Option {
			if m.Name == "a" {
				return []breaker.Option{breaker.WithRetry(breaker.MaxRetries(1))}
			}
			return []breaker.Option{breaker.WithSuccessThreshold(0)}
		})}, want: []string{
			`breaker: Retry: is not an option of pool.PerMember("a")`,
			`pool: member "b": breaker: SuccessThreshold: must be from 1 to 2147483647, got 0`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := pool.New(tc.strategy, tc.members, tc.opts...)
			assert.Nil(t, p)
			require.Error(t, err)
			for _, want := range tc.want {
				assert.Contains(t, err.Error(), want)
			}
			assert.GreaterOrEqual(t, len(strings.Split(err.Error(), "\n")), len(tc.want))
		})
	}
}

func TestAClassifierIsNotRefused(t *testing.T) {
	_, err := pool.New(pool.Failover, names("a"), pool.WithBreaker(breaker.WithClassifier(breaker.DefaultClassifier)))
	require.NoError(t, err)
}

func TestOptionsReachTheCircuits(t *testing.T) {
	given := breaker.Must(breaker.NewCircuit("given", breaker.WithFailureThreshold(9)))
	asked := 0
	p, err := pool.New(pool.Failover, []pool.Member[string]{{Name: "a", Priority: 1}, {Name: "b", Circuit: given}},
		pool.WithBreaker(breaker.WithFailureThreshold(3)), pool.WithBreaker(breaker.WithSuccessThreshold(4)),
		pool.PerMember(func(m pool.Member[string]) []breaker.Option {
			asked++
			return []breaker.Option{breaker.WithOpenTimeout(time.Minute)}
		}))
	require.NoError(t, err)
	assert.Equal(t, 1, asked, "not for a given circuit")
	c := p.Circuit("a").Config()
	assert.Equal(t, "a", p.Circuit("a").Name())
	assert.Equal(t, 3, c.FailureThreshold)
	assert.Equal(t, 4, c.SuccessThreshold)
	assert.Equal(t, time.Minute, c.OpenTimeout)
	assert.Same(t, given, p.Circuit("b"))
	assert.Nil(t, p.Circuit("given"), "by the member's name")
}

func TestTheClock(t *testing.T) {
	for name, opts := range map[string]func(breaker.Clock) []pool.Option{
		"of the pool":     func(c breaker.Clock) []pool.Option { return []pool.Option{pool.WithClock(c)} },
		"of the circuits": func(c breaker.Clock) []pool.Option { return []pool.Option{pool.WithBreaker(breaker.WithClock(c))} },
	} {
		t.Run(name, func(t *testing.T) {
			clk := clock.NewMock()
			p, err := pool.New(pool.Failover, names("a"), append(opts(clk), pool.WithLimit(5*time.Second))...)
			require.NoError(t, err)
			_, err = pool.Do(t.Context(), p, func(ctx context.Context, _ string) (int, error) {
				clk.Add(5 * time.Second)
				return 0, ctx.Err()
			})
			assert.Equal(t, pool.ErrLimit, err)
			p.Circuit("a").Trip(nil)
			clk.Add(30 * time.Second)
			assert.Equal(t, breaker.HalfOpen, p.Circuit("a").State())
		})
	}
}

func TestStrategyNames(t *testing.T) {
	for s, want := range map[pool.Strategy]string{
		pool.Failover: "failover", pool.RoundRobin: "round-robin", pool.WeightedRoundRobin: "weighted-round-robin", pool.Shuffle: "shuffle", pool.LeastBusy: "least-busy", 7: "Strategy(7)",
	} {
		assert.Equal(t, want, s.String())
		text, err := s.MarshalText()
		assert.Equal(t, s == 7, err != nil)
		if s != 7 {
			assert.Equal(t, want, string(text))
		}
	}
	assert.Zero(t, pool.Failover)
}

func TestErrorsOfLimit(t *testing.T) {
	assert.True(t, errors.Is(pool.ErrLimit, context.DeadlineExceeded))
	assert.EqualError(t, pool.ErrLimit, "pool: the limit has passed: context deadline exceeded")
}

func TestCircuitsAreNamedAfterPoolAndMember(t *testing.T) {
	r := newRig(t, pool.Failover, names("a/1", "b"), pool.WithName("models"))
	assert.Equal(t, "models/a/1", r.p.Circuit("a/1").Name())
	assert.Nil(t, r.p.Circuit("models/b"), "members keep their names")
	require.NoError(t, r.p.Add(pool.Member[string]{Name: "c"}))
	assert.Equal(t, "models/c", r.p.Circuit("c").Name())
	assert.Equal(t, "models", r.p.Snapshot().Name)
	var all []string
	for n := range r.p.Circuits() {
		all = append(all, n)
	}
	assert.Equal(t, []string{"models/a/1", "models/b", "models/c"}, all)
	given := breaker.Must(breaker.NewCircuit("given"))
	require.NoError(t, r.p.Add(pool.Member[string]{Name: "d", Circuit: given}))
	assert.Equal(t, "given", r.p.Circuit("d").Name())
}

func TestBR33PoolsOnOneStoreDoNotShareAMembersName(t *testing.T) {
	bubble(t, func(t *testing.T) {
		ledgers := store.NewMemory()
		shared := pool.WithBreaker(breaker.WithStore(ledgers), breaker.WithFailureThreshold(1))
		var pools []*pool.Pool[string]
		for _, name := range []string{"models", "search"} {
			p, err := pool.New(pool.Failover, names("primary"), shared, pool.WithName(name))
			require.NoError(t, err)
			pools = append(pools, p)
		}
		_, err := pool.Do(t.Context(), pools[0], func(context.Context, string) (int, error) { return 0, errBoom })
		require.ErrorIs(t, err, errBoom)
		pass(time.Second)
		assert.Equal(t, breaker.Open, pools[0].Circuit("primary").State())
		assert.Equal(t, breaker.Closed, pools[1].Circuit("primary").State())

		p, err := pool.New(pool.Failover, names("primary"))
		require.NoError(t, err)
		pools = append(pools, p)
		_, err = pool.New(pool.Failover, names("primary"), shared)
		require.ErrorContains(t, err, "pool: Name: must be given with WithName")
		p, err = pool.New(pool.Failover, names("plain"), pool.PerMember(func(m pool.Member[string]) []breaker.Option {
			if m.Name == "primary" {
				return []breaker.Option{breaker.WithStore(ledgers)}
			}
			return nil
		}))
		require.NoError(t, err)
		pools = append(pools, p)
		require.ErrorContains(t, p.Add(pool.Member[string]{Name: "primary"}), "pool: Name: must be given with WithName")
		assert.Nil(t, p.Circuit("primary"))
		for _, p := range pools {
			require.NoError(t, p.Close())
		}
	})
}
