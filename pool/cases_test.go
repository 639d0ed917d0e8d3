package pool_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/pool"
)

func TestBC31ChoosingSpendsNoProbe(t *testing.T) {
	guard(t, func() {
		r := newRig(t, pool.Failover, names("c", "b", "a"), r0)
		r.open("a")
		r.clk.Add(10 * time.Second)
		assert.Equal(t, map[string]int{"c": 100}, count(r.good(100)))
		assert.Zero(t, r.p.Circuit("a").Snapshot().Probes)
		r.open("c", "b")
		assert.Equal(t, []string{"a"}, r.good(1), "as its probe")
		assert.Equal(t, breaker.Closed, r.state("a"))
	})
}

func TestBC108AnOpenMemberGetsBackIntoRotation(t *testing.T) {
	t.Run("pool of one", func(t *testing.T) {
		for _, s := range strategies {
			r := newRig(t, s, names("a"), r0)
			r.open("a")
			_, err := r.do()
			require.ErrorIs(t, err, breaker.ErrOpen)
			r.clk.Add(10 * time.Second)
			assert.Equal(t, []string{"a"}, r.good(1))
			assert.Equal(t, breaker.Closed, r.state("a"))
		}
	})
	t.Run("pool of three", func(t *testing.T) {
		for _, s := range strategies {
			r := newRig(t, s, names("a", "b", "c"), r0)
			r.open("a")
			r.good(7)
			r.clk.Add(10 * time.Second)
			assert.Contains(t, count(r.good(5)), "a", "%v: within two rounds", s)
			assert.Equal(t, breaker.Closed, r.state("a"))
			r.good(100)
		}
	})
	t.Run("pool of three hundred, a hundred of which come back", func(t *testing.T) {
		for _, s := range strategies {
			members := make([]pool.Member[string], 300)
			for i := range members {
				members[i] = pool.Member[string]{Name: fmt.Sprint(i), Priority: -i, Weight: i % 4}
			}
			r := newRig(t, s, members, r0)
			for i := 0; i < 300; i += 3 {
				r.open(fmt.Sprint(i))
			}
			r.good(1000)
			r.clk.Add(10 * time.Second)
			by := count(r.good(1000))
			if s == pool.Failover {
				assert.Equal(t, map[string]int{"0": 1000}, by)
				continue
			}
			assert.Len(t, by, 300, "%v", s)
		}
	})
	t.Run("an open top member that is due gets the call", func(t *testing.T) {
		r := newRig(t, pool.Failover, names("a", "b", "c"), r0)
		r.open("a", "b")
		r.clk.Add(10 * time.Second)
		assert.Equal(t, map[string]int{"a": 100}, count(r.good(100)))
		assert.Equal(t, breaker.HalfOpen, r.state("b"), "nobody needs it; it is due all the same")
		r.open("a")
		assert.Equal(t, []string{"b"}, r.good(1))
	})
}

func TestBC110AtMostSoManyAreEjected(t *testing.T) {
	for _, s := range strategies {
		for n := 1; n <= 10; n++ {
			for _, percent := range []int{0, 10, 50, 67, 100} {
				t.Run(fmt.Sprintf("%v, %d members, %d %%", s, n, percent), func(t *testing.T) {
					guard(t, func() { ejected(t, s, n, percent) })
				})
			}
		}
	}
}

func ejected(t *testing.T, s pool.Strategy, n, percent int) {
	members := make([]pool.Member[string], n)
	for i := range members {
		members[i] = pool.Member[string]{Name: fmt.Sprint(i), Priority: -i}
	}
	r := newRig(t, s, members, r0, pool.MaxEjected(percent))
	for i := range n {
		r.fail[fmt.Sprint(i)] = errBoom
	}
	most := n * percent / 100
	for range 3 { // each call goes through all members, and all fail their threshold
		_, err := r.do()
		require.ErrorIs(t, err, errBoom)
		assert.Len(t, count(r.called()), n)
	}
	for i := range n {
		require.Equal(t, breaker.Open, r.state(fmt.Sprint(i)))
	}
	total := r.totals("0").Calls
	by := map[string]int{}
	for range 20 {
		_, err := r.do()
		require.ErrorIs(t, err, breaker.ErrOpen)
		assert.Equal(t, n > most, errors.Is(err, errBoom))
		for name, times := range count(r.called()) {
			by[name] += times
		}
	}
	assert.Len(t, by, n-most, "the others keep receiving traffic")
	for _, times := range by {
		assert.Equal(t, 20, times)
	}
	assert.Equal(t, total, r.totals("0").Calls, "calls past a circuit are not counted")
	assert.Zero(t, r.totals("0").Rejected)
	if n == most {
		return
	}
	clear(r.fail) // it was the caller's own fault; now everything is well
	who := r.good(1)[0]
	assert.Equal(t, breaker.HalfOpen, r.state(who), "a success offers a probe")
	for range 10 * n {
		r.good(1)
	}
	assert.Equal(t, breaker.Closed, r.state(who))
	if s != pool.Failover {
		out := 0
		for i := range n {
			if r.state(fmt.Sprint(i)) == breaker.Open {
				out++
			}
		}
		assert.Equal(t, most, out, "before their time, those that may be out stay out")
	}
}

func TestBC110OneAfterTheOther(t *testing.T) {
	for _, s := range strategies {
		r := newRig(t, s, names("a", "b", "c", "d"), r0, pool.MaxEjected(67))
		for _, n := range []string{"a", "b", "c", "d"} {
			r.fail[n] = errBoom
		}
		for i, n := range []string{"d", "b", "a", "c"} {
			r.open(n)
			_, _ = r.do()
			assert.Len(t, count(r.called()), 4-min(2, i+1), "%v: %d are open", s, i+1)
		}
	}
}

func TestMaxEjectedAndModes(t *testing.T) {
	r := newRig(t, pool.RoundRobin, names("a", "b"), r0, pool.MaxEjected(0))
	r.p.Circuit("a").SetMode(breaker.ForcedOpen)
	assert.Equal(t, map[string]int{"b": 4}, count(r.good(4)), "an operator's word holds")
	r.open("a", "b")
	assert.Equal(t, map[string]int{"b": 4}, count(r.good(4)))
	r.p.Circuit("a").SetMode(breaker.Auto)
	assert.Len(t, count(r.good(4)), 2)
}

func TestMaxEjectedHalfOpenGetsItsProbesOnly(t *testing.T) {
	r := newRig(t, pool.RoundRobin, names("a"), r0, pool.MaxEjected(0))
	r.open("a")
	r.p.Circuit("a").OfferProbe()
	g := r.gate()
	assert.Equal(t, []string{"a"}, g.start(1))
	_, err := r.do()
	require.ErrorIs(t, err, breaker.ErrOpen)
	g.finish()
}

func TestMaxEjectedMovesOnAndClassifies(t *testing.T) {
	r := newRig(t, pool.Failover, names("a", "b"), r0, pool.WithBreaker(breaker.WithIgnore(errClient)), pool.MaxEjected(0))
	r.open("a")
	r.fail["a"] = errBoom
	assert.Equal(t, []string{"b"}, r.good(1))
	assert.Equal(t, []string{"a", "b"}, r.called())
	r.fail["a"] = errClient
	_, err := r.do()
	assert.Equal(t, errClient, err)
	assert.Equal(t, []string{"a"}, r.called())
	assert.Equal(t, breaker.Open, r.state("a"), "only a success offers a probe")
}

func TestBC112FailoverMovesOnQuietlyAndStopsWhenItMust(t *testing.T) {
	t.Run("a: the call is a's probe and fails", func(t *testing.T) {
		r := newRig(t, pool.Failover, names("a", "b"), r0)
		r.open("a")
		r.clk.Add(10 * time.Second)
		r.fail["a"] = status(503)
		assert.Equal(t, []string{"b"}, r.good(1))
		assert.Equal(t, []string{"a", "b"}, r.called())
		assert.Equal(t, breaker.Open, r.state("a"))
	})
	t.Run("b: a is open", func(t *testing.T) {
		r := newRig(t, pool.Failover, names("a", "b"), r0)
		r.open("a")
		at := r.clk.Now()
		assert.Equal(t, []string{"b"}, r.good(1))
		assert.Equal(t, []string{"b"}, r.called())
		assert.Equal(t, at, r.clk.Now())
	})
	t.Run("c: a answers 400", func(t *testing.T) {
		r := newRig(t, pool.Failover, names("a", "b"), r0, pool.WithBreaker(breaker.WithIgnore(status(400))))
		r.fail["a"] = status(400)
		for range 10 {
			_, err := r.do()
			assert.Equal(t, status(400), err)
		}
		assert.Equal(t, map[string]int{"a": 10}, count(r.called()))
		assert.Equal(t, breaker.Closed, r.state("a"))
		assert.Zero(t, r.totals("a").Failures)
	})
	t.Run("d: the caller cancels during a", func(t *testing.T) {
		r := newRig(t, pool.Failover, names("a", "b"), r0)
		for _, errFn := range []error{context.Canceled, errBoom} {
			ctx, cancel := context.WithCancel(t.Context())
			_, err := pool.Do(ctx, r.p, func(ctx context.Context, name string) (int, error) {
				_, _ = r.call(ctx, name)
				cancel()
				<-ctx.Done()
				return 0, errFn
			})
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, errFn)
			assert.NotErrorIs(t, err, breaker.ErrOpen)
			assert.Equal(t, []string{"a"}, r.called())
		}
		assert.EqualValues(t, 2, r.totals("a").Ignored)
	})
	t.Run("e: what must not be sent twice", func(t *testing.T) {
		r := newRig(t, pool.Failover, names("a", "b"), r0)
		_, err := pool.Do(t.Context(), r.p, func(ctx context.Context, name string) (int, error) {
			_, _ = r.call(ctx, name)
			return 0, pool.Stop(errBoom)
		})
		assert.Equal(t, errBoom, err, "without the mark")
		assert.Equal(t, []string{"a"}, r.called())
		assert.EqualValues(t, 1, r.totals("a").Failures, "it is a failure all the same")
		assert.NoError(t, pool.Stop(nil))
		_, err = pool.Do(t.Context(), r.p, func(ctx context.Context, name string) (int, error) {
			_, _ = r.call(ctx, name)
			return 0, fmt.Errorf("sending: %w", pool.Stop(errBoom))
		})
		require.ErrorIs(t, err, errBoom)
		assert.EqualError(t, err, "sending: boom")
		assert.Equal(t, []string{"a"}, r.called())
	})
}

func TestBC113AGoodCheckEarnsATrialNotFullTraffic(t *testing.T) {
	opts := func(more ...breaker.Option) pool.Option {
		return pool.WithBreaker(append([]breaker.Option{breaker.WithFailureThreshold(3), breaker.WithOpenTimeout(10 * time.Minute),
			breaker.WithSuccessThreshold(2), breaker.WithHealthCheck(5*time.Second, well)}, more...)...)
	}
	t.Run("a shallow check", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			p, err := pool.New(pool.Failover, names("a", "b"), opts())
			require.NoError(t, err)
			a, calls := p.Circuit("a"), 0
			fn := func(_ context.Context, name string) (string, error) {
				if name == "a" {
					calls++
					return "", errBoom
				}
				return name, nil
			}
			a.Trip(nil)
			for second := 1; second <= 60; second++ {
				for range 10 {
					v, err := pool.Do(t.Context(), p, fn)
					require.NoError(t, err)
					assert.Equal(t, "b", v)
					assert.NotEqual(t, breaker.Closed, a.State())
				}
				pass(time.Second)
			}
			assert.Equal(t, 11, calls, "one real call after each green check, which reopens")
			assert.EqualValues(t, 11, a.Snapshot().Totals.Calls, "checks are no calls")
			require.NoError(t, p.Close())
		})
	})
	t.Run("in closed, and while a probe is in flight", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			p, err := pool.New(pool.Failover, names("a"), opts())
			require.NoError(t, err)
			a := p.Circuit("a")
			fail := func(context.Context, string) (int, error) { return 0, errBoom }
			_, _ = pool.Do(t.Context(), p, fail)
			_, _ = pool.Do(t.Context(), p, fail)
			pass(time.Minute)
			assert.EqualValues(t, 2, a.Snapshot().ConsecutiveFailures)
			_, _ = pool.Do(t.Context(), p, fail)
			pass(5 * time.Second)
			_, err = pool.Do(t.Context(), p, func(context.Context, string) (int, error) {
				pass(4 * time.Second)
				assert.EqualValues(t, 1, a.Snapshot().Probes)
				return 0, nil
			})
			require.NoError(t, err)
			assert.Equal(t, breaker.HalfOpen, a.State())
			require.NoError(t, p.Close())
		})
	})
}

func TestBC115StartAndStop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, checks := checked(t, 10*time.Second, well)
		require.NoError(t, p.Close(), "before any check has started")
		p.Circuit("a").Trip(nil)
		pass(29 * time.Second)
		assert.Zero(t, checks["a"].Load(), "it never starts")
		assert.Equal(t, breaker.Open, p.Circuit("a").State())
		require.NoError(t, p.Close(), "twice")
		require.ErrorIs(t, p.Add(pool.Member[string]{Name: "d"}), pool.ErrClosed)
	})
	t.Run("removed during a check", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			p, _ := checked(t, 10*time.Second, func(context.Context) error {
				time.Sleep(3 * time.Second)
				return nil
			})
			a := p.Circuit("a")
			a.Trip(nil)
			pass(11 * time.Second)
			assert.True(t, p.Remove("a"))
			pass(10 * time.Second)
			assert.Equal(t, breaker.Open, a.State(), "a check that was running when stopped changes nothing")
			require.NoError(t, p.Close())
		})
	})
	t.Run("removed and added again", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			p, checks := checked(t, 10*time.Second, ill)
			p.Circuit("a").Trip(nil)
			pass(10 * time.Second)
			assert.True(t, p.Remove("a"))
			require.NoError(t, p.Add(pool.Member[string]{Name: "a", Value: "a"}))
			pass(10 * time.Second)
			assert.EqualValues(t, 1, checks["a"].Load(), "the new circuit is closed")
			p.Circuit("a").Trip(nil)
			pass(10 * time.Second)
			assert.EqualValues(t, 2, checks["a"].Load())
			require.NoError(t, p.Close())
		})
	})
}
