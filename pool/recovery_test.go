package pool_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/pool"
)

func TestP06AHalfOpenMemberGetsItsProbesOnly(t *testing.T) {
	guard(t, func() {
		r := newRig(t, pool.Failover, names("a", "b"), pool.WithBreaker(breaker.WithSuccessThreshold(3), breaker.WithOpenTimeout(30*time.Second)))
		r.open("a")
		r.clk.Add(30 * time.Second)
		g := r.gate()
		assert.Equal(t, map[string]int{"a": 3, "b": 7}, count(g.start(10)))
		assert.Zero(t, r.totals("a").Rejected)
		_, errs := g.finish()
		for _, err := range errs {
			assert.NoError(t, err)
		}
		assert.Equal(t, breaker.Closed, r.state("a"))
	})
}

func TestP07ARecoveredMemberReturnsByItself(t *testing.T) {
	for _, s := range strategies {
		guard(t, func() {
			r := newRig(t, s, names("a", "b", "c"), r0)
			r.open("a")
			assert.NotContains(t, count(r.good(30)), "a")
			r.clk.Add(10 * time.Second)
			by := count(r.good(30))
			assert.Equal(t, breaker.Closed, r.state("a"))
			if s == pool.Failover {
				assert.Equal(t, map[string]int{"a": 30}, by)
				return
			}
			for _, n := range []string{"a", "b", "c"} { // a round of the shuffle may have been under way
				assert.InDelta(t, 10, by[n], 1, "%v: %v", s, by)
			}
		})
	}
}

func TestQ01OnlyOpenMembersAreChecked(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, checks := checked(t, 10*time.Second, ill)
		p.Circuit("b").Trip(nil)
		p.Circuit("c").Trip(nil)
		p.Circuit("c").OfferProbe()
		pass(10 * time.Second)
		assert.EqualValues(t, 0, checks["a"].Load(), "closed")
		assert.EqualValues(t, 1, checks["b"].Load(), "open")
		assert.EqualValues(t, 0, checks["c"].Load(), "half-open")
		require.NoError(t, p.Close())
	})
}

func TestQ02ChecksInAMinute(t *testing.T) {
	off := breaker.DefaultConfig()
	off.HealthCheck.Enabled = false
	for _, tc := range []struct {
		name string
		opts func(check func(context.Context) error) []breaker.Option
		want int64
	}{
		{"10 s", func(f func(context.Context) error) []breaker.Option {
			return []breaker.Option{breaker.WithHealthCheck(breaker.DefaultConfig().HealthCheck.Interval, f)}
		}, 6},
		{"5 s", func(f func(context.Context) error) []breaker.Option {
			return []breaker.Option{breaker.WithHealthCheck(5*time.Second, f)}
		}, 12},
		{"off", func(f func(context.Context) error) []breaker.Option {
			return append([]breaker.Option{breaker.WithHealthCheck(10*time.Second, f)}, off.Options()...)
		}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var checks atomic.Int64
				p, err := pool.New(pool.RoundRobin, names("a"), pool.WithBreaker(tc.opts(func(context.Context) error {
					checks.Add(1)
					return errBoom
				})...), pool.WithBreaker(breaker.WithOpenTimeout(time.Hour)))
				require.NoError(t, err)
				p.Circuit("a").Trip(nil)
				pass(60 * time.Second)
				assert.Equal(t, tc.want, checks.Load())
				require.NoError(t, p.Close())
			})
		})
	}
}

func TestQ03AGoodCheckMakesHalfOpen(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, _ := checked(t, 10*time.Second, well)
		p.Circuit("a").Trip(nil)
		pass(10*time.Second - 1)
		assert.Equal(t, breaker.Open, p.Circuit("a").State())
		pass(1)
		assert.Equal(t, breaker.HalfOpen, p.Circuit("a").State(), "20 s before its time")
		v, err := pool.Do(t.Context(), p, func(_ context.Context, name string) (string, error) { return name, nil })
		require.NoError(t, err)
		assert.Equal(t, "a", v, "it has its turn at once")
		require.NoError(t, p.Close())
	})
}

func TestQ04ABadCheckChangesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, checks := checked(t, 10*time.Second, ill)
		p.Circuit("a").Trip(nil)
		pass(30*time.Second - 1)
		assert.EqualValues(t, 2, checks["a"].Load())
		assert.Equal(t, breaker.Open, p.Circuit("a").State())
		pass(1)
		assert.Equal(t, breaker.HalfOpen, p.Circuit("a").State())
		assert.Zero(t, p.Circuit("a").Snapshot().Totals.Calls, "checks are no calls")
		require.NoError(t, p.Close())
	})
}

func TestQ05AGoodCheckNeverCloses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, _ := checked(t, 10*time.Second, well)
		c := p.Circuit("a")
		c.Trip(nil)
		pass(time.Hour)
		assert.Equal(t, breaker.HalfOpen, c.State())
		for i := range 3 {
			assert.Equal(t, breaker.HalfOpen, c.State(), "after %d probes", i)
			_, err := pool.Do(t.Context(), p, func(context.Context, string) (int, error) { return 0, nil })
			require.NoError(t, err)
		}
		assert.Equal(t, breaker.Closed, c.State())
		require.NoError(t, p.Close())
	})
}

func TestQ06ACheckHasFiveSeconds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var took []time.Duration
		p, _ := checked(t, 10*time.Second, func(ctx context.Context) error {
			start := time.Now()
			<-ctx.Done()
			took = append(took, time.Since(start))
			return ctx.Err()
		})
		p.Circuit("a").Trip(nil)
		pass(16 * time.Second)
		assert.Equal(t, []time.Duration{5 * time.Second}, took)
		require.NoError(t, p.Close())
	})
}

func TestQ07CloseEndsTheChecks(t *testing.T) {
	for _, stop := range map[string]func(*pool.Pool[string]){
		"close":  func(p *pool.Pool[string]) { _ = p.Close() },
		"remove": func(p *pool.Pool[string]) { p.Remove("a") },
	} {
		bubble(t, func(t *testing.T) {
			p, checks := checked(t, 10*time.Second, ill)
			p.Circuit("a").Trip(nil)
			pass(10 * time.Second)
			assert.EqualValues(t, 1, checks["a"].Load())
			stop(p)
			pass(time.Hour)
			assert.EqualValues(t, 1, checks["a"].Load(), "no further check; the bubble would not end with a goroutine in it")
		})
	}
}

func TestQ08StartJitter(t *testing.T) {
	for _, random := range []float64{0, 0.25, 0.5, 0.999999} {
		bubble(t, func(t *testing.T) {
			start := time.Now()
			var first time.Duration
			p, err := pool.New(pool.Failover, names("a"), pool.WithBreaker(
				breaker.WithRand(func() float64 { return random }),
				breaker.WithHealthCheck(10*time.Second, func(context.Context) error {
					first = time.Since(start)
					return nil
				}, breaker.HealthJitter(2*time.Second))))
			require.NoError(t, err)
			p.Circuit("a").Trip(nil)
			pass(15 * time.Second)
			assert.InDelta(t, 10+2*random, first.Seconds(), 1e-6)
			assert.Less(t, first, 12*time.Second)
			require.NoError(t, p.Close())
		})
	}
}

// e2 is the pool of the recovery scenario.
type e2 struct {
	*rig
	log     bytes.Buffer
	changes []breaker.Transition
}

func newE2(t *testing.T, opts ...breaker.Option) *e2 {
	x := &e2{}
	opts = append([]breaker.Option{
		breaker.WithFailureThreshold(5), breaker.WithOpenTimeout(30 * time.Second),
		breaker.WithHalfOpenProbes(3), breaker.WithSuccessThreshold(3),
		breaker.WithIgnore(status(401), status(404)),
		breaker.WithLogger(slog.New(slog.NewTextHandler(&x.log, nil))),
		breaker.WithHooks(breaker.Hooks{StateChange: func(tr breaker.Transition) { x.changes = append(x.changes, tr) }}),
	}, opts...)
	x.rig = newRig(t, pool.Failover, []pool.Member[string]{{Name: "A", Priority: 2}, {Name: "B", Priority: 1}}, pool.WithBreaker(opts...))
	return x
}

// fell takes the scenario to where A has just opened, at t=4s.
func (x *e2) fell() {
	t := x.t
	for i, err := range []error{status(429), status(500), status(503), context.DeadlineExceeded, errors.New("connection refused")} {
		x.fail["A"] = status(401)
		_, got := x.do()
		assert.Equal(t, status(401), got, "the client's fault comes back")
		assert.Equal(t, []string{"A"}, x.called())
		assert.Equal(t, breaker.Closed, x.state("A"))
		x.fail["A"] = err
		assert.Equal(t, []string{"B"}, x.good(1), "B answers at t=%d", i)
		assert.Equal(t, []string{"A", "B"}, x.called())
		if i < 4 {
			x.clk.Add(time.Second)
		}
	}
	x.fail["A"] = nil
	require.Equal(t, breaker.Open, x.state("A"))
	require.Len(t, x.changes, 1)
	assert.Equal(t, breaker.ReasonThreshold, x.changes[0].Reason)
	assert.Equal(t, 1, strings.Count(x.log.String(), "level=WARN"))
}

func TestE2RecoveryStepByStep(t *testing.T) {
	guard(t, func() {
		x := newE2(t)
		x.fell() // steps 1 and 2
		for range 29 {
			assert.Equal(t, map[string]int{"B": 10}, count(x.good(10)))
			x.clk.Add(time.Second)
		}
		x.clk.Add(time.Second - time.Millisecond) // t=33.999
		assert.Equal(t, []string{"B"}, x.good(1))
		assert.NotContains(t, count(x.called()), "A")
		x.clk.Add(time.Millisecond)
		assert.Equal(t, breaker.HalfOpen, x.state("A"), "t=34")

		g := x.gate()
		assert.Equal(t, map[string]int{"A": 3, "B": 7}, count(g.start(10)))
		require.Len(t, x.changes, 2)
		assert.Equal(t, breaker.ReasonTimeout, x.changes[1].Reason)
		by, errs := g.finish()
		assert.Equal(t, map[string]int{"A": 3, "B": 7}, count(by))
		for _, err := range errs {
			assert.NoError(t, err)
		}
		assert.Equal(t, breaker.Closed, x.state("A"))
		require.Len(t, x.changes, 3)
		assert.Equal(t, breaker.ReasonRecovered, x.changes[2].Reason)
		assert.Equal(t, []string{"A"}, x.good(1))
		assert.Equal(t, 1, strings.Count(x.log.String(), "level=WARN"))
		assert.Equal(t, 2, strings.Count(x.log.String(), "level=INFO"))
		assert.Zero(t, x.totals("A").Rejected)
	})
}

func TestE2Variants(t *testing.T) {
	t.Run("i: one of three probes fails", func(t *testing.T) {
		x := newE2(t)
		x.fell()
		x.clk.Add(30 * time.Second)
		assert.Equal(t, []string{"A", "A"}, x.good(2))
		assert.Equal(t, breaker.HalfOpen, x.state("A"))
		x.clk.Add(time.Second) // t=35
		x.fail["A"] = status(503)
		assert.Equal(t, []string{"B"}, x.good(1), "the caller does not pay for the probe")
		assert.Equal(t, breaker.Open, x.state("A"))
		x.fail["A"] = nil
		x.clk.Add(30*time.Second - 1)
		assert.Equal(t, []string{"B"}, x.good(1))
		x.clk.Add(1) // t=65
		assert.Equal(t, []string{"A", "A"}, x.good(2))
		assert.Equal(t, breaker.HalfOpen, x.state("A"), "the successes before the failure are gone")
		x.good(1)
		assert.Equal(t, breaker.Closed, x.state("A"))
	})
	t.Run("ii: a health check is good at t=14", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			p, err := pool.New(pool.Failover, names("A", "B"), pool.WithBreaker(
				breaker.WithHalfOpenProbes(3), breaker.WithSuccessThreshold(3), breaker.WithHealthCheck(10*time.Second, well)))
			require.NoError(t, err)
			pass(4 * time.Second)
			for range 5 {
				_, err := pool.Do(t.Context(), p, func(_ context.Context, name string) (string, error) {
					if name == "A" {
						return "", status(503)
					}
					return name, nil
				})
				require.NoError(t, err)
			}
			a := p.Circuit("A")
			require.Equal(t, breaker.Open, a.State())
			assert.Equal(t, 30*time.Second, time.Until(a.Snapshot().Until))
			pass(10 * time.Second)
			assert.Equal(t, breaker.HalfOpen, a.State(), "at t=14, 20 s early")
			require.NoError(t, p.Close())
		})
	})
	t.Run("iii: B is open too", func(t *testing.T) {
		x := newE2(t)
		x.fell()
		x.open("B")
		_, err := x.do()
		none, ok := errors.AsType[*pool.UnavailableError](err)
		require.True(t, ok)
		require.ErrorIs(t, err, breaker.ErrOpen)
		assert.Equal(t, 30*time.Second, none.RetryAfter())
	})
	t.Run("iv: a probe answers 404", func(t *testing.T) {
		x := newE2(t)
		x.fell()
		x.clk.Add(30 * time.Second)
		x.fail["A"] = status(404)
		for range 5 {
			_, err := x.do()
			assert.Equal(t, status(404), err)
			assert.Equal(t, breaker.HalfOpen, x.state("A"))
			assert.Zero(t, x.p.Circuit("A").Snapshot().Probes, "the slot is handed back")
		}
		assert.Equal(t, map[string]int{"A": 5}, count(x.called()))
	})
}

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
				members[i] = pool.Member[string]{Name: fmt.Sprint(i), Weight: i % 4}
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
