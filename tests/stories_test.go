package tests

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/breakertest"
)

// Scenarios from end to end: circuit, retries and fallbacks together, with the instants and the counts of each step.

// err503 is what an upstream in trouble answers.
const err503 = breakertest.Status(503)

// stack is a gateway's usual set: 5 failures in 60s open it for 15s, one probe closes it, three retries from
// 500ms on, the last good answer for an hour.
type stack struct {
	*breakertest.World
	b      *breaker.Breaker[string]
	events breakertest.Events
	calls  []time.Duration // when the upstream was called
	answer func() (string, error)
}

func newStack(w *breakertest.World, more ...breaker.Option) *stack {
	s := &stack{World: w}
	s.b = breaker.Must(breaker.New[string]("api", w.Options(append([]breaker.Option{
		s.events.Option(),
		breaker.WithFailureThreshold(5), breaker.WithFailureWindow(60 * time.Second), breaker.WithOpenTimeout(15 * time.Second),
		breaker.WithHalfOpenProbes(1), breaker.WithSuccessThreshold(1),
		breaker.WithRetry(breaker.MaxRetries(3), breaker.Exponential(500*time.Millisecond, 10*time.Second), breaker.NoJitter()),
		breaker.WithLastGood[string](3600*time.Second, oneKey),
	}, more...)...)...))
	return s
}

func (s *stack) post() breaker.Result[string] {
	return s.b.Try(s.Context(), func(context.Context) (string, error) {
		s.calls = append(s.calls, s.Elapsed())
		return s.answer()
	})
}

func (s *stack) say(v string, err error) { s.answer = func() (string, error) { return v, err } }

// since returns when the upstream was called from a time on, the time being 0.
func (s *stack) since(start time.Duration) (at []time.Duration) {
	for _, one := range s.calls {
		if one >= start {
			at = append(at, one-start)
		}
	}
	return at
}

// outage is when the trouble starts: ten seconds after the good answer.
const outage = 10 * time.Second

// steps1to3 takes a full stack through the outage, until just before t=25. stored says whether there was a good answer.
func (s *stack) steps1to3(stored bool) {
	require.Equal(s, 0, len(s.calls))
	if stored {
		s.say("V0", nil)
		require.Equal(s, breaker.Result[string]{Value: "V0", Attempts: 1}, s.post())
		s.calls = nil
	}
	rescued := func(r breaker.Result[string], attempts int, causes ...error) {
		s.Helper()
		require.Equal(s, attempts, r.Attempts)
		if stored {
			require.Equal(s, breaker.Result[string]{Value: "V0", Attempts: attempts, Rescue: breaker.RescueCache}, r)
			return
		}
		require.Empty(s, r.Rescue)
		for _, cause := range causes {
			require.ErrorIs(s, r.Err, cause)
		}
	}
	s.At(outage)
	s.say("", err503)
	rescued(s.post(), 4, err503)
	require.Equal(s, breakertest.Seconds(0, 0.5, 1.5, 3.5), s.since(outage))
	require.Equal(s, outage+3500*time.Millisecond, s.Elapsed())
	require.EqualValues(s, 4, s.b.Snapshot().ConsecutiveFailures)
	require.Equal(s, breaker.Closed, s.b.State())

	s.At(outage + 10*time.Second)
	rescued(s.post(), 1, err503, breaker.ErrOpen)
	require.Equal(s, outage+10*time.Second, s.Elapsed(), "no wait")
	require.Len(s, s.calls, 5)
	require.Equal(s, breaker.Open, s.b.State())
	require.Equal(s, outage+25*time.Second, s.b.Snapshot().Until.Sub(s.Start))

	for i := range 100 {
		s.At(outage + 10*time.Second + time.Duration(i)*149*time.Millisecond)
		before := s.Elapsed()
		rescued(s.post(), 0, breaker.ErrOpen)
		require.Equal(s, before, s.Elapsed())
	}
	require.Len(s, s.calls, 5)
	s.At(outage + 25*time.Second - 1)
	rescued(s.post(), 0, breaker.ErrOpen)
	require.Len(s, s.calls, 5)
}

func TestE1_FullStack(t *testing.T) {
	t.Run("4a the upstream is well again", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			s := newStack(w)
			s.steps1to3(true)
			s.At(outage + 25*time.Second)
			// 20 requests at once: one asks the upstream, the others are served meanwhile.
			entered, release := make(chan struct{}), make(chan struct{})
			var upstream atomic.Int64
			ask := func() breaker.Result[string] {
				return s.b.Try(w.Context(), func(context.Context) (string, error) {
					upstream.Add(1)
					close(entered)
					<-release
					return "V1", nil
				})
			}
			probe := make(chan breaker.Result[string], 1)
			go func() { probe <- ask() }()
			<-entered
			for range 19 {
				require.Equal(w, breaker.Result[string]{Value: "V0", Rescue: breaker.RescueCache}, ask())
			}
			close(release)
			require.Equal(w, breaker.Result[string]{Value: "V1", Attempts: 1}, <-probe, "no rescue")
			require.EqualValues(w, 1, upstream.Load())
			require.Equal(w, breaker.Closed, s.b.State())
			require.Zero(w, s.b.Snapshot().ConsecutiveFailures)
			require.Equal(w, outage+25*time.Second, s.Elapsed())

			s.say("", err503)
			r := s.post()
			require.Equal(w, "V1", r.Value, "what is kept was renewed")
			require.Equal(w, breaker.RescueCache, r.Rescue)
		})
	})
	t.Run("4a with 20 in parallel", func(t *testing.T) {
		breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
			s := newStack(w)
			s.steps1to3(true)
			s.At(outage + 25*time.Second)
			var upstream, good, cached atomic.Int64
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() {
					r := s.b.Try(w.Context(), func(context.Context) (string, error) {
						upstream.Add(1)
						<-time.After(time.Millisecond)
						return "V1", nil
					})
					assert.NoError(w, r.Err)
					switch r.Value {
					case "V1":
						good.Add(1)
					case "V0":
						assert.Equal(w, breaker.RescueCache, r.Rescue)
						cached.Add(1)
					}
				})
			}
			all.Wait()
			require.EqualValues(w, 1, upstream.Load())
			require.EqualValues(w, 1, good.Load())
			require.EqualValues(w, 19, cached.Load())
			require.Equal(w, breaker.Closed, s.b.State())
		})
	})
	t.Run("4b it is not", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			s := newStack(w)
			s.steps1to3(true)
			s.At(outage + 25*time.Second)
			retries := len(s.events.Retries)
			require.Equal(w, breaker.Result[string]{Value: "V0", Attempts: 1, Rescue: breaker.RescueCache}, s.post())
			require.Len(w, s.calls, 6)
			require.Len(w, s.events.Retries, retries, "a failed probe is not retried")
			require.Equal(w, outage+25*time.Second, s.Elapsed())
			require.Equal(w, outage+40*time.Second, s.b.Snapshot().Until.Sub(s.Start))
			s.At(outage + 40*time.Second - 1)
			require.Zero(w, s.post().Attempts)
			s.At(outage + 40*time.Second)
			s.say("V1", nil)
			require.Equal(w, breaker.Result[string]{Value: "V1", Attempts: 1}, s.post())
			require.Equal(w, breaker.Closed, s.b.State())
		})
	})
	t.Run("5 nothing is stored", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) { newStack(w).steps1to3(false) })
	})
	t.Run("with jitter", func(t *testing.T) {
		for _, random := range []float64{0, 0.3, 0.999999} {
			breakertest.BothWaiting(t, func(w *breakertest.World) {
				s := newStack(w, breaker.WithRand(func() float64 { return random }),
					breaker.WithRetry(breaker.MaxRetries(3), breaker.Exponential(500*time.Millisecond, 10*time.Second)))
				s.say("", err503)
				s.post()
				require.Len(w, s.calls, 4)
				for i, least := range breakertest.Seconds(0.5, 1, 2) {
					gap := s.calls[i+1] - s.calls[i]
					require.GreaterOrEqual(w, gap, least)
					require.Less(w, gap, least*3/2)
				}
			})
		}
	})
	t.Run("what the totals say", func(t *testing.T) {
		breakertest.BothWaiting(t, func(w *breakertest.World) {
			s := newStack(w)
			s.steps1to3(true)
			totals := s.b.Snapshot().Totals
			require.EqualValues(w, 6, totals.Calls)
			require.EqualValues(w, 5, totals.Failures)
			require.EqualValues(w, 101, totals.Rejected)
			require.EqualValues(w, 3, totals.Retries)
			require.Equal(w, map[breaker.Rescue]uint64{breaker.RescueCache: 103}, totals.Rescues)
		})
	})
}

// crowd makes n calls to an upstream that hangs, all at once.
type crowd struct {
	*breakertest.World
	all                                      sync.WaitGroup
	upstream, now, peak                      atomic.Int64
	served, timeouts, rejected, full, others atomic.Int64
}

func (c *crowd) hang(ctx context.Context) (string, error) {
	c.enter()
	defer c.now.Add(-1)
	<-ctx.Done()
	return "", ctx.Err()
}

func (c *crowd) enter() {
	c.upstream.Add(1)
	n := c.now.Add(1)
	for p := c.peak.Load(); n > p && !c.peak.CompareAndSwap(p, n); p = c.peak.Load() {
		continue
	}
}

func (c *crowd) well(context.Context) (string, error) {
	c.enter()
	defer c.now.Add(-1)
	return "answer", nil
}

func (c *crowd) call(n int, b *breaker.Breaker[string], fn func(context.Context) (string, error)) {
	for range n {
		c.all.Go(func() {
			v, err := b.Do(c.Context(), fn)
			switch {
			case errors.Is(err, breaker.ErrOpen):
				c.rejected.Add(1)
			case errors.Is(err, breaker.ErrTooManyInFlight):
				c.full.Add(1)
			case errors.Is(err, context.DeadlineExceeded):
				c.timeouts.Add(1)
			case err == nil && v != "":
				c.served.Add(1)
			default:
				c.others.Add(1)
			}
		})
	}
}

const users = 5000

func chat(w *breakertest.World, opts ...breaker.Option) *breaker.Breaker[string] {
	return breaker.Must(breaker.New[string]("chat", append([]breaker.Option{breaker.WithTimeout(30 * time.Second)}, opts...)...))
}

func TestE3_ControlWithoutBreaker(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		c := &crowd{World: w}
		c.call(users, chat(w, breaker.WithMode(breaker.ForcedClosed)), c.hang)
		c.all.Wait()
		require.Equal(w, 30*time.Second, w.Elapsed(), "all wait")
		require.EqualValues(w, users, c.timeouts.Load())
		require.EqualValues(w, users, c.upstream.Load())
		require.EqualValues(w, users, c.peak.Load())
	})
}

// A and B: five suffer, the others are answered at once; then it recovers by its probes.
func TestE3A_FiveSufferForAll(t *testing.T) {
	for _, text := range []string{"", "please try again in a moment"} {
		t.Run(fmt.Sprintf("fallback %q", text), func(t *testing.T) {
			breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
				var opts []breaker.Option
				if text != "" {
					opts = append(opts, breaker.WithFallbackValue(text))
				}
				b := chat(w, opts...)
				c := &crowd{World: w}
				c.call(5, b, c.hang)
				c.all.Wait()
				require.Equal(w, 30*time.Second, w.Elapsed())
				require.Equal(w, breaker.Open, b.State())
				require.Equal(w, 30*time.Second, b.Snapshot().Since.Sub(w.Start))

				others := &crowd{World: w}
				others.call(users-5, b, others.hang)
				others.all.Wait()
				require.Equal(w, 30*time.Second, w.Elapsed(), "in the same instant")
				require.Zero(w, others.upstream.Load())
				if text == "" {
					require.EqualValues(w, users-5, others.rejected.Load())
				} else {
					require.EqualValues(w, users-5, others.served.Load())
					require.EqualValues(w, users, b.Snapshot().Totals.Rescues[breaker.RescueValue])
				}
				require.Zero(w, b.Snapshot().InFlight)

				w.At(60*time.Second - 1)
				require.Equal(w, breaker.Open, b.State())
				w.At(60 * time.Second)
				require.Equal(w, breaker.HalfOpen, b.State())
				later := &crowd{World: w}
				for i, state := range []breaker.State{breaker.HalfOpen, breaker.Closed} {
					later.call(1, b, later.well)
					later.all.Wait()
					require.Equal(w, state, b.State(), "after probe %d", i+1)
				}
				totals := b.Snapshot().Totals
				require.EqualValues(w, 7, totals.Calls)
				require.EqualValues(w, 5, totals.Failures)
				require.EqualValues(w, users-5, totals.Rejected, "counted apart")
				later.call(1000, b, later.well)
				later.all.Wait()
				require.EqualValues(w, 1002, later.served.Load())
			})
		})
	}
}

// B: while half-open there are probes only.
func TestE3B_ProbesOnly(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		b := chat(w)
		c := &crowd{World: w}
		c.call(5, b, c.hang)
		c.all.Wait()
		w.At(60 * time.Second)
		many := &crowd{World: w}
		many.call(users, b, func(ctx context.Context) (string, error) {
			<-time.After(time.Second)
			return many.well(ctx)
		})
		many.all.Wait()
		require.EqualValues(w, 2, many.upstream.Load())
		require.EqualValues(w, users-2, many.rejected.Load())
		require.Equal(w, breaker.Closed, b.State())
	})
}

// C: a first wave meets a circuit that knows of no failure yet; only a limit on what is in flight stops it.
func TestE3C_FirstWave(t *testing.T) {
	for _, tc := range []struct{ limit, run int }{{0, users}, {100, 100}} {
		t.Run(fmt.Sprint("limit ", tc.limit), func(t *testing.T) {
			breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
				events := breakertest.NewRecorder()
				b := chat(w, breaker.WithMaxInFlight(tc.limit), breaker.WithHooks(events.Hooks()))
				c := &crowd{World: w}
				c.call(users, b, c.hang)
				synctest.Wait()
				require.Zero(w, w.Elapsed())
				require.EqualValues(w, tc.run, c.now.Load())
				require.EqualValues(w, users-tc.run, c.full.Load(), "rejected at once")
				c.all.Wait()
				require.Equal(w, 30*time.Second, w.Elapsed())
				require.EqualValues(w, tc.run, c.timeouts.Load())
				require.Zero(w, c.others.Load())
				require.Len(w, events.List(), 1)
				require.Equal(w, breaker.ReasonThreshold, events.List()[0].Reason)
				s := b.Snapshot()
				require.EqualValues(w, tc.run, s.Totals.Failures)
				require.EqualValues(w, tc.run-5, s.Totals.Late)
				require.Zero(w, s.InFlight)
				require.Equal(w, 60*time.Second, s.Until.Sub(w.Start), "the late ones change nothing")
				w.At(60 * time.Second)
				require.Equal(w, breaker.HalfOpen, b.State())
				require.Zero(w, b.Snapshot().Probes)
			})
		})
	}
}

// D: under a steady load the attempt's own limit decides how many suffer.
func TestE3D_SteadyLoad(t *testing.T) {
	for _, tc := range []struct {
		limit, opens time.Duration
		admitted     int64
	}{{30 * time.Second, 30_040 * time.Millisecond, 3005}, {time.Second, 1_040 * time.Millisecond, 105}} {
		t.Run(tc.limit.String(), func(t *testing.T) {
			breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
				events := breakertest.NewRecorder()
				b := chat(w, breaker.WithTimeout(tc.limit), breaker.WithHooks(events.Hooks()))
				c := &crowd{World: w}
				for i := range int(tc.opens/(10*time.Millisecond)) + 50 {
					w.At(time.Duration(i) * 10 * time.Millisecond)
					c.call(1, b, c.hang)
				}
				c.all.Wait()
				require.Len(w, events.List(), 1)
				require.Equal(w, tc.opens, events.List()[0].At.Sub(w.Start))
				// The caller of the instant in which the fifth result arrives may come before it or after it.
				require.Contains(w, []int64{tc.admitted, tc.admitted - 1}, c.upstream.Load())
				require.Equal(w, uint64(c.upstream.Load()-5), b.Snapshot().Totals.Late)
				require.Zero(w, b.Snapshot().InFlight)
			})
		})
	}
}

// E: a retry hides a single bad moment, and leaves no mark on the circuit.
func TestE3E_TransientBlip(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		b := chat(w, breaker.WithRetry(breaker.MaxRetries(2), breaker.Constant(500*time.Millisecond), breaker.NoJitter()))
		c := &crowd{World: w}
		var counts []uint64
		r := b.Try(w.Context(), func(ctx context.Context) (string, error) {
			counts = append(counts, b.Snapshot().ConsecutiveFailures)
			if len(counts) == 1 {
				return c.hang(ctx)
			}
			return c.well(ctx)
		})
		require.Equal(w, breaker.Result[string]{Value: "answer", Attempts: 2, Rescue: breaker.RescueRetry}, r)
		require.Equal(w, 30500*time.Millisecond, w.Elapsed())
		require.Equal(w, []uint64{0, 1}, counts)
		require.Zero(w, b.Snapshot().ConsecutiveFailures)
		require.Equal(w, breaker.Closed, b.State())
	})
}

// oneKey puts every call under one key.
func oneKey(context.Context) string { return "k" }

// rescuedBy is a result by a fallback after so many attempts.
func rescuedBy(kind breaker.Rescue, v, attempts int) breaker.Result[int] {
	return breaker.Result[int]{Value: v, Attempts: attempts, Rescue: kind}
}

// Use case 1: exchange rates, with the last good answer for ten minutes.
func TestE4_RatesFromTheCache(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		b := w.Breaker(breaker.WithFailureWindow(60*time.Second), breaker.WithOpenTimeout(15*time.Second),
			breaker.WithHalfOpenProbes(1), breaker.WithSuccessThreshold(1),
			breaker.WithLastGood[int](600*time.Second, func(context.Context) string { return "api.exchangerate.host" }))
		upstream := w.Func(nil, err503)
		require.Equal(w, breaker.Result[int]{Value: 1, Attempts: 1}, b.Try(w.Context(), upstream.Call))
		for i := 1; i <= 5; i++ {
			w.At(time.Duration(i) * time.Second)
			require.Equal(w, rescuedBy(breaker.RescueCache, 1, 1), b.Try(w.Context(), upstream.Call))
		}
		require.Equal(w, breaker.Open, b.State())
		require.Equal(w, 20*time.Second, b.Snapshot().Until.Sub(w.Start))
		w.At(6 * time.Second)
		require.Equal(w, rescuedBy(breaker.RescueCache, 1, 0), b.Try(w.Context(), upstream.Call))
		require.Len(w, upstream.At, 6, "the upstream was not asked")

		w.At(600 * time.Second) // it fails on: the probe, and then the circuit is open again
		require.Equal(w, breaker.Result[int]{Value: 7, Err: err503, Attempts: 1}, b.Try(w.Context(), upstream.Call), "the TTL is over")
		require.Equal(w, breaker.Open, b.State())
		r := b.Try(w.Context(), upstream.Call)
		require.ErrorIs(w, r.Err, breaker.ErrOpen)
		require.Zero(w, r.Attempts)
		require.Empty(w, r.Rescue)
	})
}

// Use case 2: two banks, each with a circuit of its own.
func TestE4_BackupBank(t *testing.T) {
	breakertest.BothWaiting(t, func(w *breakertest.World) {
		preset := []breaker.Option{breaker.WithFailureWindow(60 * time.Second), breaker.WithOpenTimeout(15 * time.Second),
			breaker.WithHalfOpenProbes(1), breaker.WithSuccessThreshold(1)}
		backup := breaker.Must(breaker.New[int]("backup-bank.com", w.Options(preset...)...))
		there := w.Func(nil)
		primary := breaker.Must(breaker.New[int]("primary-bank.com", w.Options(append(preset,
			breaker.WithRetry(breaker.MaxRetries(2), breaker.NoJitter()),
			breaker.WithFailover("backup-bank.com", backup.Wrap(there.Call)))...)...))
		here := w.Func(err503)
		for i := range 2 {
			require.Equal(w, rescuedBy(breaker.RescueFailover, i+1, 3-i), primary.Try(w.Context(), here.Call)) // three attempts; then two open it
		}
		require.Equal(w, breaker.Open, primary.State())
		require.Len(w, here.At, 5)

		before := w.Elapsed()
		require.Equal(w, rescuedBy(breaker.RescueFailover, 3, 0), primary.Try(w.Context(), here.Call))
		require.Equal(w, before, w.Elapsed())
		require.Len(w, here.At, 5, "the primary is not asked")
		require.Len(w, there.At, 3)
		require.Equal(w, breaker.Closed, backup.State())
		require.EqualValues(w, 3, backup.Snapshot().Totals.Successes)
		require.EqualValues(w, 5, primary.Snapshot().Totals.Failures)
		require.Equal(w, map[breaker.Rescue]uint64{breaker.RescueFailover: 3}, primary.Snapshot().Totals.Rescues)
	})
}
