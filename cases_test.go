package breaker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/breakerkit/breaker"
)

// The state machine.

// policies trips at ten failures in a row, each in its own manner.
func policies() map[string]breaker.Option {
	return map[string]breaker.Option{
		"threshold":            breaker.WithFailureThreshold(10),
		"consecutive failures": breaker.WithTrip(breaker.ConsecutiveFailures(10)),
		"failure count":        breaker.WithTrip(breaker.FailureCount(10, 10*time.Second)),
		"rate in time":         breaker.WithTrip(breaker.FailureRate(0.5, 10, breaker.Last(10*time.Second))),
		"rate of calls":        breaker.WithTrip(breaker.FailureRate(0.5, 10, breaker.LastCalls(10))),
		"user's own": breaker.WithTrip(breaker.TripWhen(breaker.LastCalls(10), func(c breaker.Counts) bool {
			return c.Failures >= 10
		})),
		"slow or failed": breaker.WithTrip(
			breaker.SlowCallRate(time.Hour, 0.5, 10, breaker.LastCalls(10)),
			breaker.FailureRate(0.5, 10, breaker.LastCalls(10)),
		),
	}
}

func TestBC01_FailedProbeReopensWhateverThePolicySays(t *testing.T) {
	for name, policy := range policies() {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(w *world) {
				r := w.r0(policy, breaker.WithSuccessThreshold(3), breaker.WithHalfOpenProbes(1))
				r.fail(10)
				r.state(breaker.Open)
				w.at(10 * time.Second) // any window is empty now
				r.fail(1)
				r.state(breaker.Open)
				for range 3 {
					r.rejected()
				}
				w.at(20*time.Second - 1)
				r.rejected()
				w.at(20 * time.Second)
				r.ok(3)
				r.state(breaker.Closed)
			})
		})
	}
}

func TestBC01_SlowProbeIsAFailedProbe(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.r0(breaker.WithTrip(
			breaker.SlowCallRate(2*time.Second, 0.5, 100, breaker.LastCalls(100)),
			breaker.ConsecutiveFailures(3),
		), breaker.WithSuccessThreshold(2), breaker.WithIgnore(errClient))
		r.fail(3)
		w.at(10 * time.Second)
		slow := r.gate()
		w.at(12 * time.Second)
		slow.finish(nil) // its caller has the answer all the same
		r.state(breaker.Open)
		last := r.events.list()[2]
		require.Equal(w, breaker.ReasonProbeFailed, last.Reason)
		require.Error(w, last.Cause)
		totals := r.c.Snapshot().Totals
		require.EqualValues(w, 1, totals.Successes)
		require.EqualValues(w, 1, totals.Slow)
		w.at(22*time.Second - 1)
		r.rejected()
		w.at(22 * time.Second)
		fast := r.gate()
		w.at(24*time.Second - 1)
		fast.finish(nil)
		r.state(breaker.HalfOpen)
		if w.way.name != byPolicy.name {
			ignored := r.gate()
			w.add(5 * time.Second)
			ignored.finish(errClient) // slow, but no verdict
			r.state(breaker.HalfOpen)
		}
		r.ok(1)
		r.state(breaker.Closed)
	})
}

func TestBC02_FailedProbeStartsAFullPeriod(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.r0()
		r.trip()
		w.at(10 * time.Second)
		r.fail(1)
		for _, at := range []time.Duration{10_001 * time.Millisecond, 15 * time.Second, 19_999 * time.Millisecond} {
			w.at(at)
			r.state(breaker.Open)
			require.Equal(w, 20*time.Second-at, r.rejected().RetryAfter())
			require.True(w, r.c.Snapshot().Until.Equal(w.start.Add(20*time.Second)))
			require.True(w, r.c.Snapshot().Since.Equal(w.start.Add(10*time.Second)))
		}
		w.at(20 * time.Second)
		r.ok(1)
	})
	t.Run("again and again", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			r.trip()
			for i := range 10 {
				w.at(time.Duration(i+1) * 10 * time.Second)
				r.fail(1)
				r.rejected()
			}
			require.Len(w, r.steps(), 21)
		})
	})
	t.Run("however late the probe came", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			r.trip()
			w.at(time.Hour)
			probe := r.gate()
			w.add(5 * time.Second)
			probe.finish(errBoom)
			w.add(10*time.Second - 1)
			r.rejected()
			w.add(1)
			r.ok(1)
		})
	})
}

func TestBC04_FailuresWhileOpenChangeNothing(t *testing.T) {
	for name, late := range map[string]error{"failure": errBoom, "failure with a hint": hint(time.Minute)} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(w *world) {
				r := w.r0()
				var gates []*gate
				for range 6 {
					gates = append(gates, r.gate())
				}
				w.at(time.Second)
				for _, g := range gates[:3] {
					g.finish(errBoom)
				}
				for i, at := range []time.Duration{4000, 7000, 9900} {
					w.at(at * time.Millisecond)
					gates[3+i].finish(late)
				}
				require.Equal(w, []string{"closed>open at 1s: threshold reached"}, r.steps())
				w.at(11*time.Second - 1)
				r.rejected()
				w.at(11 * time.Second)
				r.ok(1)
				r.state(breaker.Closed)
				r.fail(2)
				r.state(breaker.Closed)
				r.fail(1)
				r.state(breaker.Open)
			})
		})
	}
}

func TestBC04_TripAndOfferWhereTheyChangeNothing(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.r0()
		r.c.OfferProbe()
		r.state(breaker.Closed)
		require.EqualValues(w, 1, r.c.Snapshot().Epoch)
		pending := r.gate()
		r.trip()
		epoch := r.c.Snapshot().Epoch
		w.at(4 * time.Second)
		r.c.Trip(hint(time.Minute))
		require.Equal(w, 6*time.Second, r.rejected().RetryAfter(), "an open circuit's period is not restarted")
		require.Equal(w, epoch, r.c.Snapshot().Epoch)
		pending.finish(nil)

		w.at(10 * time.Second)
		r.c.OfferProbe() // due already
		require.Len(w, r.steps(), 1)
		r.c.Trip(nil) // the period has ended: this one opens anew
		require.Equal(w, 10*time.Second, r.rejected().RetryAfter())
		require.Equal(w, []string{"open>half-open at 10s: timeout expired", "half-open>open at 10s: manual"}, r.steps()[1:])

		w.at(15 * time.Second)
		r.c.OfferProbe()
		probe := r.gate()
		epoch = r.c.Snapshot().Epoch
		r.c.OfferProbe()
		require.Equal(w, epoch, r.c.Snapshot().Epoch)
		require.EqualValues(w, 1, r.c.Snapshot().Probes)
		probe.finish(nil)
		r.state(breaker.Closed)
	})
}

// A rejection is given out again and again; none outlives its reason.
func TestBC04_RejectionEndsWithItsReason(t *testing.T) {
	open := func(r *rig) { r.trip() }
	probing := func(r *rig) { r.trip(); r.add(10 * time.Second); r.gate() }
	for name, tc := range map[string]struct{ begin, end func(*rig) }{
		"open, time":                 {open, func(r *rig) { r.add(10 * time.Second) }},
		"open, OfferProbe":           {open, func(r *rig) { r.c.OfferProbe() }},
		"open, Reset":                {open, func(r *rig) { r.c.Reset() }},
		"open, ForcedClosed":         {open, func(r *rig) { r.c.SetMode(breaker.ForcedClosed) }},
		"open, Shadow":               {open, func(r *rig) { r.c.SetMode(breaker.Shadow) }},
		"open, configured":           {open, func(r *rig) { require.NoError(r, r.c.Configure(breaker.WithMode(breaker.Shadow))) }},
		"forced, Auto":               {func(r *rig) { r.c.SetMode(breaker.ForcedOpen) }, func(r *rig) { r.c.SetMode(breaker.Auto) }},
		"forced, configured":         {func(r *rig) { r.c.SetMode(breaker.ForcedOpen) }, func(r *rig) { require.NoError(r, r.c.Configure(breaker.WithMode(breaker.ForcedClosed))) }},
		"probing, lease":             {probing, func(r *rig) { r.add(10 * time.Second) }},
		"probing, a slot more":       {probing, func(r *rig) { require.NoError(r, r.c.Configure(breaker.WithHalfOpenProbes(2))) }},
		"probing, Reset":             {probing, func(r *rig) { r.c.Reset() }},
		"probing, tripped, due":      {probing, func(r *rig) { r.c.Trip(nil); r.add(10 * time.Second) }},
		"probing, tripped, rejected": {probing, func(r *rig) { r.c.Trip(nil); r.rejected(); r.c.OfferProbe() }},
		"probing, ForcedClosed":      {probing, func(r *rig) { r.c.SetMode(breaker.ForcedClosed) }},
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(w *world) {
				r := w.r0()
				tc.begin(r)
				for range 3 {
					r.rejected()
				}
				require.False(w, r.c.Ready())
				tc.end(r)
				require.True(w, r.c.Ready())
				r.ok(1)
			})
		})
	}
	t.Run("probing, slot handed back", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0(breaker.WithSuccessThreshold(2), breaker.WithHalfOpenProbes(1))
			r.trip()
			w.at(10 * time.Second)
			probe := r.gate()
			r.rejected()
			probe.finish(nil)
			r.ok(1)
			r.state(breaker.Closed)
		})
	})
	t.Run("and each carries what holds now", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			r.trip()
			require.Equal(w, errBoom, r.rejected().Cause)
			w.at(10 * time.Second)
			r.failWith(errClient)
			e := r.rejected()
			require.Equal(w, errClient, e.Cause)
			require.True(w, e.Until.Equal(w.start.Add(20*time.Second)))
			r.c.SetMode(breaker.ForcedOpen)
			require.Equal(w, breaker.ForcedOpen, r.rejected().Mode)
			r.c.SetMode(breaker.Auto)
			require.Equal(w, breaker.Auto, r.rejected().Mode)
		})
	})
}

func TestBC06_ClosingForgetsTheFailures(t *testing.T) {
	const minute = time.Minute
	for name, policy := range map[string]breaker.Option{
		"threshold":     breaker.WithFailureThreshold(3),
		"with a window": breaker.WithFailureWindow(minute),
		"failure count": breaker.WithTrip(breaker.FailureCount(3, minute)),
		"rate in time":  breaker.WithTrip(breaker.FailureRate(0.1, 3, breaker.Last(minute))),
		"rate of calls": breaker.WithTrip(breaker.FailureRate(0.1, 3, breaker.LastCalls(100))),
		"user's own":    breaker.WithTrip(breaker.TripWhen(breaker.Last(minute), func(c breaker.Counts) bool { return c.Failures >= 3 })),
	} {
		for how, closeIt := range map[string]func(*rig){
			"by a probe":        func(r *rig) { r.add(10 * time.Second); r.ok(1) },
			"by Reset":          func(r *rig) { r.c.Reset() },
			"by Reset when due": func(r *rig) { r.add(10 * time.Second); r.c.Reset() },
			"by a health check": func(r *rig) { r.c.OfferProbe(); r.ok(1) },
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				everywhere(t, func(w *world) {
					r := w.r0(policy)
					r.fail(3)
					r.state(breaker.Open)
					closeIt(r)
					r.state(breaker.Closed)
					require.Zero(w, r.c.Snapshot().Counts)
					require.Zero(w, r.c.Snapshot().ConsecutiveFailures)
					require.Empty(w, r.c.Snapshot().LastFailure)
					w.add(time.Second)
					r.fail(2)
					r.state(breaker.Closed)
					r.fail(1)
					r.state(breaker.Open)
				})
			})
		}
		t.Run(name+" Reset of a closed circuit", func(t *testing.T) {
			everywhere(t, func(w *world) {
				r := w.r0(policy)
				r.fail(2)
				pending := r.gate()
				r.c.Reset()
				require.Empty(w, r.steps(), "closed to closed is no transition")
				require.Zero(w, r.c.Snapshot().Counts)
				pending.finish(errBoom) // admitted before: void
				r.fail(2)
				r.state(breaker.Closed)
				r.fail(1)
				r.state(breaker.Open)
			})
		})
	}
	t.Run("successes are forgotten too, whatever happens in between", func(t *testing.T) {
		everywhere(t, func(w *world) {
			for name, meanwhile := range map[string]func(*rig){
				"reset":           func(r *rig) { r.c.Reset() },
				"trip and reset":  func(r *rig) { r.c.Trip(nil); r.c.Reset() },
				"shadow":          func(r *rig) { r.c.SetMode(breaker.Shadow); r.c.Reset(); r.c.SetMode(breaker.Auto) },
				"forced open":     func(r *rig) { r.c.SetMode(breaker.ForcedOpen); r.c.Reset(); r.c.SetMode(breaker.Auto) },
				"forced closed":   func(r *rig) { r.c.SetMode(breaker.ForcedClosed); r.c.Trip(nil); r.c.Reset(); r.c.SetMode(breaker.Auto) },
				"stays in shadow": func(r *rig) { r.c.SetMode(breaker.Shadow); r.c.Reset() },
				"a limit set":     func(r *rig) { require.NoError(r, r.c.Configure(breaker.WithMaxInFlight(9))); r.c.Reset() },
				"a limit set once": func(r *rig) {
					require.NoError(r, r.c.Configure(breaker.WithMaxInFlight(9)))
					r.c.Reset()
					require.NoError(r, r.c.Configure(breaker.WithMaxInFlight(0)))
				},
			} {
				for _, policy := range []breaker.Option{
					breaker.WithFailureThreshold(6),
					breaker.WithTrip(breaker.FailureRate(0.5, 6, breaker.LastCalls(100))),
					breaker.WithTrip(breaker.FailureRate(0.5, 6, breaker.Last(time.Minute))),
				} {
					r := w.r0(policy)
					r.ok(50)
					meanwhile(r)
					require.Zero(w, r.c.Snapshot().Counts, "%s, %v", name, r.c.Config().Trip)
					require.Zero(w, r.c.Snapshot().ConsecutiveSuccesses, name)
					r.fail(5)
					require.Equal(w, breaker.Closed, r.c.State(), name)
					r.fail(1)
					require.Equal(w, breaker.Open, r.c.State(), name)
				}
			}
		})
	})
}

func TestBC07_ConsecutiveMeansAnUnbrokenRun(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.r0()
		for i := range 50 {
			w.at(time.Duration(i) * time.Hour)
			r.fail(1)
			require.EqualValues(w, 1, r.c.Snapshot().ConsecutiveFailures)
			r.ok(1)
			require.Zero(w, r.c.Snapshot().ConsecutiveFailures)
		}
		r.state(breaker.Closed)
		require.Empty(w, r.steps())
	})
	t.Run("one short of the threshold each time", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			for range 50 {
				r.fail(2)
				r.ok(1)
			}
			r.state(breaker.Closed)
			r.fail(3)
			r.state(breaker.Open)
		})
	})
	t.Run("an answer of any kind breaks it, whenever its call began", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			slow := r.gate()
			r.fail(2)
			slow.finish(nil)
			r.fail(2)
			r.state(breaker.Closed)
		})
	})
}

func TestBC08_ProbeSuccessesInARowClose(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.r0(breaker.WithSuccessThreshold(3), breaker.WithHalfOpenProbes(1))
		r.trip()
		var states []breaker.State
		for _, step := range []struct {
			at  time.Duration
			err error
		}{{10, nil}, {10, nil}, {10, errBoom}, {20, nil}, {20, nil}, {20, nil}} {
			w.at(step.at * time.Second)
			require.Equal(w, step.err, r.call(step.err))
			states = append(states, r.c.State())
		}
		require.Equal(w, []breaker.State{
			breaker.HalfOpen, breaker.HalfOpen, breaker.Open,
			breaker.HalfOpen, breaker.HalfOpen, breaker.Closed,
		}, states)
	})
	t.Run("more probes than successes needed", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0(breaker.WithSuccessThreshold(1), breaker.WithHalfOpenProbes(3))
			r.trip()
			w.at(10 * time.Second)
			a, b, c := r.gate(), r.gate(), r.gate()
			b.finish(nil)
			r.state(breaker.Closed)
			a.finish(errBoom) // of an epoch that is over
			c.finish(errBoom)
			r.state(breaker.Closed)
			require.Zero(w, r.c.Snapshot().ConsecutiveFailures)
			require.EqualValues(w, 2, r.c.Snapshot().Totals.Late)
		})
	})
}

func TestBC10_ForcedOpenMeansNoProbes(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.r0()
		r.c.SetMode(breaker.ForcedOpen)
		for i := range 20 {
			w.at(time.Duration(i) * 5 * time.Second)
			require.False(w, r.c.Ready())
			e := r.rejected()
			require.Equal(w, breaker.ForcedOpen, e.Mode)
			require.True(w, e.Until.IsZero(), "nobody knows until when")
			require.Zero(w, e.RetryAfter())
			if i == 10 {
				r.c.Reset()
			}
		}
		w.at(100 * time.Second)
		r.c.SetMode(breaker.Auto)
		r.state(breaker.Closed)
		r.ok(1)
		require.Empty(w, r.steps(), "a mode is no state")
	})
	t.Run("over an open circuit that is reset", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			r.trip()
			r.c.SetMode(breaker.ForcedOpen)
			w.at(5 * time.Second)
			r.rejected()
			r.c.Reset()
			r.rejected()
			r.c.SetMode(breaker.Auto)
			r.state(breaker.Closed)
			r.ok(1)
		})
	})
	t.Run("over an open circuit that comes due", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			r.trip()
			r.c.SetMode(breaker.ForcedOpen)
			w.at(50 * time.Second)
			r.rejected()
			require.Zero(w, r.c.Snapshot().Probes)
			r.c.SetMode(breaker.Auto)
			r.state(breaker.HalfOpen)
			r.ok(1)
			r.state(breaker.Closed)
		})
	})
	t.Run("over a half-open circuit with a probe out", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			r.trip()
			w.at(10 * time.Second)
			probe := r.gate()
			r.c.SetMode(breaker.ForcedOpen)
			r.rejected()
			probe.finish(nil) // the machine goes on underneath
			r.state(breaker.Closed)
			r.rejected()
			r.c.SetMode(breaker.Auto)
			r.ok(1)
			r.idle()
		})
	})
	t.Run("the run of failures stays", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			r.fail(2)
			r.c.SetMode(breaker.ForcedOpen)
			r.rejected()
			r.c.SetMode(breaker.Auto)
			r.fail(1)
			r.state(breaker.Open)
		})
	})
	t.Run("from the start", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0(breaker.WithMode(breaker.ForcedOpen))
			r.rejected()
			r.state(breaker.Closed)
			require.Equal(w, breaker.ForcedOpen, r.c.Snapshot().Mode)
		})
	})
	t.Run("forced closed never trips", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0(breaker.WithMode(breaker.ForcedClosed))
			r.fail(20)
			r.state(breaker.Closed)
			require.EqualValues(w, 20, r.c.Snapshot().Totals.Failures, "but it counts")
			r.c.Trip(nil)
			r.state(breaker.Open) // an operator's word, and the machine's own state
			require.True(w, r.c.Ready())
			r.fail(3)
			w.at(10 * time.Second)
			r.fail(3)
			r.c.SetMode(breaker.Auto)
			r.state(breaker.HalfOpen)
			r.ok(1)
			r.state(breaker.Closed)
			r.idle()
		})
	})
	t.Run("shadow reports and admits", func(t *testing.T) {
		everywhere(t, func(w *world) {
			var would []breaker.RejectEvent
			r := w.r0(breaker.WithMode(breaker.Shadow), breaker.WithHooks(breaker.Hooks{
				Reject: func(_ context.Context, e breaker.RejectEvent) { would = append(would, e) },
			}))
			r.trip()
			require.True(w, r.c.Ready())
			r.ok(4)
			r.fail(1)
			require.Len(w, would, 5)
			for _, e := range would {
				require.True(w, e.Shadow)
				require.ErrorIs(w, e.Err, breaker.ErrOpen)
				require.Equal(w, "test", e.Name)
			}
			require.Zero(w, r.c.Snapshot().Totals.Rejected, "nobody was")
			r.state(breaker.Open)
			w.at(10 * time.Second)
			probe := r.gate()
			r.ok(2) // beside the probe: not admitted as probes, hence no verdict
			r.state(breaker.HalfOpen)
			require.Len(w, would, 7)
			require.ErrorIs(w, would[6].Err, breaker.ErrTooManyProbes)
			probe.finish(nil)
			r.state(breaker.Closed)
			r.ok(1)
			require.Len(w, would, 7)
			r.idle()
		})
	})
}

func TestBC11_LookingChangesNothing(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.r0()
		r.trip()
		look := func() {
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					for range 1000 {
						_, _, _, _ = r.c.State(), r.c.Ready(), r.c.Snapshot(), r.c.Config()
						_, _, _ = r.b.State(), r.b.Ready(), r.b.Snapshot()
					}
				})
			}
			all.Wait()
		}
		look()
		r.rejected()
		w.at(10 * time.Second)
		before := r.c.Snapshot()
		look()
		require.Equal(w, before, r.c.Snapshot())
		require.Len(w, r.steps(), 1)
		probe := r.gate()
		require.Equal(w, "open>half-open at 10s: timeout expired", r.steps()[1])
		look()
		require.ErrorIs(w, r.rejected(), breaker.ErrTooManyProbes)
		probe.finish(nil)
		r.state(breaker.Closed)
		r.fail(2)
		look()
		r.fail(1)
		r.state(breaker.Open)
	})
}

// restored makes a rig that starts from a snapshot as read back from JSON.
func (w *world) restored(s breaker.Snapshot, opts ...breaker.Option) *rig {
	w.Helper()
	text, err := json.Marshal(s)
	require.NoError(w, err)
	var back breaker.Snapshot
	require.NoError(w, json.Unmarshal(text, &back))
	return w.r0(append(opts, breaker.WithSnapshot(back))...)
}

func TestBC13_RestoredStateAgesWhileNobodyRuns(t *testing.T) {
	t.Run("long after", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			r.trip()
			w.at(3 * time.Second)
			saved := r.c.Snapshot()
			w.at(60 * time.Second)
			next := w.restored(saved)
			next.state(breaker.HalfOpen)
			next.ok(1)
			next.state(breaker.Closed)
			require.Equal(w, []string{"open>half-open at 1m0s: timeout expired", "half-open>closed at 1m0s: recovered"}, next.steps())
		})
	})
	t.Run("soon after", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			r.trip()
			w.at(3 * time.Second)
			saved := r.c.Snapshot()
			w.at(5 * time.Second)
			next := w.restored(saved)
			require.Empty(w, next.steps(), "constructing is no event")
			require.Equal(w, 5*time.Second, next.rejected().RetryAfter())
			w.at(10*time.Second - 1)
			next.rejected()
			w.at(10 * time.Second)
			next.ok(1)
			next.state(breaker.Closed)
		})
	})
	t.Run("half-open", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0(breaker.WithSuccessThreshold(3))
			r.trip()
			w.at(10 * time.Second)
			r.ok(2)
			r.gate() // out when the process ends: nobody will settle it
			next := w.restored(r.c.Snapshot(), breaker.WithSuccessThreshold(3))
			next.state(breaker.HalfOpen)
			require.Zero(w, next.c.Snapshot().InFlight)
			next.ok(1)
			next.state(breaker.Closed)
		})
	})
	t.Run("closed, with its run", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			r.ok(4)
			r.fail(2)
			saved := r.c.Snapshot()
			next := w.restored(saved)
			next.state(breaker.Closed)
			now := next.c.Snapshot()
			require.Equal(w, saved.Totals, now.Totals)
			require.Equal(w, saved.ConsecutiveFailures, now.ConsecutiveFailures)
			require.Equal(w, saved.LastFailure, now.LastFailure)
			require.Equal(w, saved.Epoch, now.Epoch)
			next.fail(1)
			next.state(breaker.Open)
			require.Greater(w, next.events.list()[0].Epoch, saved.Epoch)
		})
	})
	t.Run("a mode", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0(breaker.WithMode(breaker.ForcedOpen))
			saved := r.c.Snapshot()
			w.restored(saved).rejected()
			w.restored(saved, breaker.WithMode(breaker.Auto)).ok(1)
		})
	})
	t.Run("by a clock that is behind", func(t *testing.T) {
		injected(t, byDo, func(w *world) {
			r := w.r0()
			r.trip()
			saved := r.c.Snapshot()
			w.clk.Set(w.start.Add(-time.Hour))
			next := w.restored(saved)
			require.LessOrEqual(w, next.rejected().RetryAfter(), 10*time.Second)
			w.clk.Add(10 * time.Second)
			next.ok(1)
		})
	})
	t.Run("an open circuit with nothing else known", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			next := w.r0(breaker.WithSnapshot(breaker.Snapshot{State: breaker.Open}))
			w.add(10 * time.Second)
			next.ok(1)
			next.state(breaker.Closed)
		})
	})
	t.Run("an open one is checked on", func(t *testing.T) {
		bubble(t, byDo, func(w *world) {
			saved := breaker.Snapshot{State: breaker.Open, Since: w.now(), Until: w.now().Add(time.Hour)}
			next := w.r0(breaker.WithSnapshot(saved), breaker.WithHealthCheck(time.Second, func(context.Context) error { return nil }))
			w.at(1500 * time.Millisecond)
			next.state(breaker.HalfOpen)
		})
	})
	t.Run("what is saved twice is the same", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			r.ok(3)
			r.trip()
			r.rejected()
			saved := r.c.Snapshot()
			again := w.restored(saved).c.Snapshot()
			require.True(w, saved.Until.Equal(again.Until))
			require.True(w, saved.Since.Equal(again.Since))
			require.Equal(w, saved.State, again.State)
			require.Equal(w, saved.Epoch, again.Epoch)
			require.Equal(w, saved.Totals, again.Totals)
			require.Equal(w, saved.LastFailure, again.LastFailure)
		})
	})
}

// Windows.

func TestBC14_SparseFailuresDoNotOpen(t *testing.T) {
	for name, policy := range map[string]breaker.Option{
		"failure window": breaker.WithFailureWindow(5 * time.Second),
		"failure count":  breaker.WithTrip(breaker.FailureCount(3, 5*time.Second)),
		"user's own": breaker.WithTrip(breaker.TripWhen(breaker.Last(5*time.Second), func(c breaker.Counts) bool {
			return c.Failures >= 3
		})),
		"rate": breaker.WithTrip(breaker.FailureRate(1, 3, breaker.Last(5*time.Second))),
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(w *world) {
				r := w.r0(policy)
				r.failuresAt(0, 5000, 6000)
				r.state(breaker.Closed)
				r.failuresAt(6500)
				r.state(breaker.Open)
			})
			everywhere(t, func(w *world) {
				r := w.r0(policy)
				r.failuresAt(every(2500, 40)...) // never more than two within 5s
				r.state(breaker.Closed)
			})
		})
	}
}

func TestBC17_BurstAcrossABoundaryIsOneBurst(t *testing.T) {
	policies := map[string]breaker.Option{
		"rate": breaker.WithTrip(breaker.FailureRate(0.5, 20, breaker.Last(10*time.Second))),
		"user's own": breaker.WithTrip(breaker.TripWhen(breaker.Last(10*time.Second), func(c breaker.Counts) bool {
			return c.Successes+c.Failures >= 20 && c.Rate() >= 0.5
		})),
	}
	for name, policy := range policies {
		t.Run(name+": ten percent is not half", func(t *testing.T) {
			bothClocks(t, func(w *world) {
				r := w.r0(policy)
				for at := time.Second; at <= 10*time.Second; at += 100 * time.Millisecond {
					w.at(at)
					r.ok(1)
				}
				for i := range 10 {
					w.at(10_500*time.Millisecond + time.Duration(i)*100*time.Millisecond)
					r.fail(1)
				}
				r.state(breaker.Closed)
			})
		})
		for _, shift := range []time.Duration{0, 1, 333 * time.Millisecond, time.Second, 4900 * time.Millisecond} {
			t.Run(fmt.Sprintf("%s: ten and ten, shifted by %v", name, shift), func(t *testing.T) {
				bothClocks(t, func(w *world) {
					r := w.r0(policy)
					for i := range 20 {
						r.state(breaker.Closed)
						at := 9*time.Second + time.Duration(i)*100*time.Millisecond
						if i >= 10 {
							at += 100 * time.Millisecond
						}
						w.at(at + shift)
						r.fail(1)
					}
					r.state(breaker.Open)
				})
			})
		}
	}
}

// rateModel is the plainest thing that a failure rate over time can be.
type rateModel struct {
	calls []modelCall
}

type modelCall struct {
	at     time.Duration
	failed bool
}

func (m *rateModel) add(at time.Duration, failed bool) {
	m.calls = append(m.calls, modelCall{at, failed})
}

// trips says whether, of the calls younger than last or of the latest n, there are least and the share is reached.
func (m *rateModel) trips(now, last time.Duration, n, least int, percent int) bool {
	var total, failed int
	for i, c := range m.calls {
		if last > 0 && c.at <= now-last || n > 0 && i < len(m.calls)-n {
			continue
		}
		total++
		if c.failed {
			failed++
		}
	}
	return total >= least && failed*100 >= percent*total
}

// The windows against a model that keeps everything: the same verdict after every call.
func TestBC17_WindowsAgreeWithAPlainModel(t *testing.T) {
	for name, timed := range map[string]bool{"in time": true, "of calls": false} {
		t.Run(name, func(t *testing.T) {
			guard(t, 2*patience, func() {
				rapid.Check(t, func(t *rapid.T) {
					clk := &handClock{}
					var (
						percent = rapid.IntRange(1, 100).Draw(t, "percent")
						size    = rapid.IntRange(1, 40).Draw(t, "size")
						least   = rapid.IntRange(1, size).Draw(t, "least")
						window  = breaker.LastCalls(size)
						last, n = time.Duration(0), size
					)
					if timed {
						last, n = time.Duration(size)*time.Second, 0
						window = breaker.Last(last)
					}
					c, err := breaker.NewCircuit("test", breaker.WithClock(clk),
						breaker.WithTrip(breaker.FailureRate(float64(percent)/100, least, window)))
					if err != nil {
						t.Fatal(err)
					}
					var model rateModel
					now := time.Duration(0)
					for i := range 100 {
						step := time.Duration(rapid.SampledFrom([]int{0, 0, 0, 1, 500, 1000, 3000, 20000}).Draw(t, "step")) * time.Millisecond
						if step > 0 && timed {
							now += step
							clk.ns.Store(int64(now))
						}
						failed := rapid.Bool().Draw(t, "failed")
						err := error(nil)
						if failed {
							err = errBoom
						}
						_ = c.Run(context.Background(), func(context.Context) error { return err })
						model.add(now, failed)
						want := breaker.Closed
						if model.trips(now, last, n, least, percent) {
							want = breaker.Open
						}
						if got := c.State(); got != want {
							t.Fatalf("after call %d (failed: %v) at %v: %v, want %v", i, failed, now, got, want)
						}
						if want == breaker.Open {
							c.Reset()
							model = rateModel{}
						}
					}
				})
			})
		})
	}
}

func TestBC19_AtTheThresholdTrips(t *testing.T) {
	for name, window := range map[string]breaker.Window{"calls": breaker.LastCalls(100), "time": breaker.Last(time.Minute)} {
		t.Run(name, func(t *testing.T) {
			bothClocks(t, func(w *world) {
				for p := 1; p <= 100; p++ {
					for failures, want := range map[int]breaker.State{p: breaker.Open, p - 1: breaker.Closed} {
						r := w.r0(breaker.WithTrip(breaker.FailureRate(float64(p)/100, 100, window)))
						r.ok(100 - failures)
						r.fail(failures)
						require.Equal(w, want, r.c.State(), "%d%% with %d failures of 100", p, failures)
					}
				}
			})
		})
		t.Run(name+", failures first", func(t *testing.T) {
			bothClocks(t, func(w *world) {
				for p := 1; p <= 100; p++ {
					for failures, want := range map[int]breaker.State{p: breaker.Open, p - 1: breaker.Closed} {
						r := w.r0(breaker.WithTrip(breaker.FailureRate(float64(p)/100, 100, window)))
						r.fail(failures)
						if failures < 100 {
							r.state(breaker.Closed) // fewer than the minimum
						}
						r.ok(100 - failures)
						require.Equal(w, want, r.c.State(), "%d%% with %d failures of 100", p, failures)
					}
				}
			})
		})
	}
	t.Run("rates that no fraction of two can hold", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			for rate, of := range map[float64][2]int{0.57: {57, 100}, 0.29: {29, 100}, 1.0 / 3: {1, 3}, 0.1: {1, 10}, 0.07: {7, 100}, 0.001: {1, 1000}} {
				r := w.r0(breaker.WithTrip(breaker.FailureRate(rate, of[1], breaker.LastCalls(of[1]))))
				r.ok(of[1] - of[0])
				r.fail(of[0] - 1)
				r.state(breaker.Closed)
				r.fail(1)
				require.Equal(w, breaker.Open, r.c.State(), "%v", rate)
			}
		})
	})
	t.Run("slow calls", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			for slow, want := range map[int]breaker.State{57: breaker.Open, 56: breaker.Closed} {
				r := w.r0(breaker.WithTrip(breaker.SlowCallRate(time.Second, 0.57, 100, breaker.LastCalls(100))))
				r.ok(100 - slow)
				var gates []*gate
				for range slow {
					gates = append(gates, r.gate())
				}
				w.add(time.Second) // that long, or longer
				for _, g := range gates {
					r.state(breaker.Closed)
					g.finish(nil)
				}
				r.state(want)
				require.EqualValues(w, slow, r.c.Snapshot().Totals.Slow)
				require.Zero(w, r.c.Snapshot().Totals.Failures)
			}
		})
	})
}

func TestBC20_OutageSlowerThanTheWindowOpens(t *testing.T) {
	const window = 5 * time.Second
	for name, policy := range map[string]breaker.Option{
		"failure window": breaker.WithFailureWindow(window),
		"failure count":  breaker.WithTrip(breaker.FailureCount(3, window)),
		"rate":           breaker.WithTrip(breaker.FailureRate(0.5, 3, breaker.Last(window))),
		"rate of calls":  breaker.WithTrip(breaker.FailureRate(0.5, 3, breaker.LastCalls(10))),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, byDo, func(w *world) {
				r := w.r0(policy, breaker.WithOpenTimeout(time.Minute))
				var workers sync.WaitGroup
				for range 4 {
					workers.Go(func() {
						for range 5 {
							_, _ = r.b.Do(context.Background(), func(context.Context) (int, error) {
								r.ran.Add(1)
								<-time.After(8 * time.Second)
								return 0, errBoom
							})
						}
					})
				}
				workers.Wait()
				require.Equal(w, []string{"closed>open at 8s: threshold reached"}, r.steps())
				require.LessOrEqual(w, r.ran.Load(), int64(6), "two may have begun anew before the third failure, at 8s")
			})
		})
	}
	t.Run("a quiet time after many successes does not blunt it", func(t *testing.T) {
		for _, quiet := range []time.Duration{0, 50 * time.Millisecond, time.Second, 9 * time.Second, 10 * time.Second, 100 * time.Second, time.Hour} {
			for _, before := range []int{10, 64, 100, 1000, 1007, 20_000} {
				t.Run(fmt.Sprintf("%d, %v", before, quiet), func(t *testing.T) {
					bothClocks(t, func(w *world) {
						const window = 10 * time.Second
						r := w.r0(breaker.WithTrip(breaker.FailureRate(0.5, 20, breaker.Last(window))))
						r.ok(before)
						w.add(quiet)
						needed := 20 // when the successes have left the window
						if quiet < window {
							needed = max(before, 20-before)
						}
						for range needed - 1 {
							r.fail(1)
							require.Equal(w, breaker.Closed, r.c.State())
						}
						r.fail(1)
						require.Equal(w, breaker.Open, r.c.State())
					})
				})
			}
		}
	})
	t.Run("successes that trickle are filed at their time", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			r := w.r0(breaker.WithTrip(breaker.FailureRate(0.5, 20, breaker.Last(10*time.Second))))
			r.ok(1000) // a burst, after which a busy circuit reads its clock less often
			for range 15 {
				w.add(100 * time.Millisecond)
				r.ok(1)
			}
			w.at(10 * time.Second) // the burst has left, the trickle has not
			r.fail(14)
			r.state(breaker.Closed)
			r.fail(1)
			r.state(breaker.Open)
		})
	})
}

func TestBC22_MinimumAboveTheWindowIsRefused(t *testing.T) {
	for _, trip := range []breaker.TripCondition{
		breaker.FailureRate(0.5, 10, breaker.LastCalls(5)),
		breaker.SlowCallRate(time.Second, 0.5, 10, breaker.LastCalls(5)),
	} {
		_, err := breaker.NewCircuit("test", breaker.WithTrip(trip))
		require.ErrorContains(t, err, "MinCalls")
		require.ErrorContains(t, err, "LastCalls")
		require.ErrorContains(t, err, "10")
		require.ErrorContains(t, err, "5")
	}
	t.Run("a minimum below the window does not wait for it to fill", func(t *testing.T) {
		everywhere(t, func(w *world) {
			for _, window := range []breaker.Window{breaker.LastCalls(5), breaker.LastCalls(100), breaker.LastCalls(1 << 24), breaker.Last(time.Hour)} {
				r := w.r0(breaker.WithTrip(breaker.FailureRate(0.5, 5, window)))
				r.fail(4)
				r.state(breaker.Closed)
				r.fail(1)
				r.state(breaker.Open)
			}
		})
	})
}

// Probe slots.

func TestBC27_HungProbeDoesNotLockTheCircuit(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.r0()
		r.trip()
		w.at(10 * time.Second)
		r.gate() // A, never finished
		for _, at := range []time.Duration{10_100 * time.Millisecond, 20*time.Second - 1} {
			w.at(at)
			e := r.rejected()
			require.ErrorIs(w, e, breaker.ErrTooManyProbes)
			require.Equal(w, 20*time.Second-at, e.RetryAfter(), "what is left of the lease")
		}
		w.at(20 * time.Second)
		require.Zero(w, r.c.Snapshot().Probes)
		require.True(w, r.c.Ready())
		b := r.gate()
		w.at(20_100 * time.Millisecond)
		r.rejected()
		require.EqualValues(w, 1, r.c.Snapshot().Probes)
		b.finish(nil)
		r.state(breaker.Closed)
		require.EqualValues(w, 1, r.c.Snapshot().InFlight, "A is still out")
	})
	t.Run("each new probe hangs too", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			r.trip()
			var hung []*gate
			for i := 1; i <= 10; i++ {
				w.at(time.Duration(i) * 10 * time.Second)
				hung = append(hung, r.gate())
				r.rejected()
			}
			for _, g := range hung[:9] {
				g.finish(errBoom) // each is older than its lease
				r.state(breaker.HalfOpen)
				r.rejected()
			}
			hung[9].finish(nil)
			r.state(breaker.Closed)
			r.idle()
		})
	})
	t.Run("a late end frees nobody else's slot", func(t *testing.T) {
		for name, end := range map[string]func(*gate, context.CancelFunc){
			"failure": func(g *gate, _ context.CancelFunc) { g.finish(errBoom) },
			"ignored": func(g *gate, _ context.CancelFunc) { g.finish(errClient) },
			"cancel":  func(g *gate, cancel context.CancelFunc) { cancel(); g.finish(context.Canceled) },
		} {
			t.Run(name, func(t *testing.T) {
				bothClocks(t, func(w *world) {
					r := w.r0(breaker.WithHalfOpenProbes(2), breaker.WithSuccessThreshold(2), breaker.WithIgnore(errClient))
					r.trip()
					w.at(10 * time.Second)
					ctx, cancel := context.WithCancel(w.Context())
					defer cancel()
					old := r.gateCtx(ctx)
					w.at(15 * time.Second)
					r.gate()
					w.at(20 * time.Second) // old's lease has ended, the other's not
					third := r.gate()
					require.EqualValues(w, 2, r.c.Snapshot().Probes)
					end(old, cancel)
					require.EqualValues(w, 2, r.c.Snapshot().Probes)
					r.rejected()
					third.finish(nil)
					require.EqualValues(w, 1, r.c.Snapshot().Probes)
					r.ok(1)
					r.state(breaker.Closed)
				})
			})
		}
	})
	t.Run("a hung probe and a limit of one call in flight", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0(breaker.WithMaxInFlight(2))
			r.trip()
			w.at(10 * time.Second)
			r.gate()
			w.at(20 * time.Second)
			r.ok(1)
			r.state(breaker.Closed)
		})
	})
	t.Run("many leases that end together", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0(breaker.WithHalfOpenProbes(5), breaker.WithSuccessThreshold(9))
			r.trip()
			w.at(10 * time.Second)
			var gates []*gate
			for range 5 {
				gates = append(gates, r.gate())
			}
			gates[2].finish(nil)
			gates[4].finish(nil)
			require.EqualValues(w, 3, r.c.Snapshot().Probes)
			w.at(20 * time.Second)
			require.Zero(w, r.c.Snapshot().Probes)
			for range 5 {
				r.gate()
			}
			r.rejected()
		})
	})
}

func TestBC28_PanickingProbeIsAFailure(t *testing.T) {
	for _, way := range []way{byRun, byDo, byPolicy} {
		t.Run(way.name, func(t *testing.T) {
			for _, clocked := range []func(*testing.T, func(*world)){
				func(t *testing.T, f func(*world)) { injected(t, way, f) },
				func(t *testing.T, f func(*world)) { bubble(t, way, f) },
			} {
				clocked(t, func(w *world) {
					r := w.r0()
					r.trip()
					w.at(10 * time.Second)
					require.Equal(w, "boom", panicOf(func() {
						_, _ = r.way.call(r, w.Context(), func(context.Context) (int, error) { panic("boom") })
					}))
					r.state(breaker.Open)
					r.idle()
					w.at(10_100 * time.Millisecond)
					r.rejected()
					w.at(20*time.Second - 1)
					r.rejected()
					w.at(20 * time.Second)
					r.ok(1)
					r.state(breaker.Closed)
				})
			}
		})
	}
}

func TestBC29_GoexitIsAFailure(t *testing.T) {
	for _, way := range []way{byRun, byDo, byPolicy} {
		goexit := func(r *rig) {
			_ = inGoroutine(func() {
				_, _ = r.way.call(r, context.Background(), func(context.Context) (int, error) {
					r.ran.Add(1)
					runtime.Goexit()
					return 0, nil
				})
				r.Error("Goexit was swallowed")
			})
		}
		for name, clocked := range map[string]func(*testing.T, func(*world)){
			"injected clock": func(t *testing.T, f func(*world)) { injected(t, way, f) },
			"bubble":         func(t *testing.T, f func(*world)) { bubble(t, way, f) },
		} {
			t.Run(way.name+" "+name, func(t *testing.T) {
				clocked(t, func(w *world) {
					r := w.r0()
					r.trip()
					w.at(10 * time.Second)
					goexit(r)
					r.state(breaker.Open)
					r.idle()
					w.at(10_100 * time.Millisecond)
					r.rejected()
					w.at(20 * time.Second)
					r.ok(1)
					r.state(breaker.Closed)

					for range 3 {
						r.state(breaker.Closed)
						goexit(r)
						r.idle()
					}
					r.state(breaker.Open)
					require.EqualValues(w, 4, r.c.Snapshot().Totals.Panics)
				})
			})
		}
	}
}

func TestBC31_AskingSpendsNoProbe(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.r0()
		r.trip()
		w.at(10 * time.Second)
		for range 100 {
			require.True(w, r.c.Ready())
			require.True(w, r.b.Ready())
		}
		require.Zero(w, r.c.Snapshot().Probes)
		require.Len(w, r.steps(), 1)
		probe := r.gate()
		for range 100 {
			require.False(w, r.c.Ready())
		}
		probe.finish(nil)
		require.True(w, r.c.Ready())
		require.Zero(w, r.c.Snapshot().Totals.Rejected, "asking is no call")
	})
}

// panicky is an error whose methods panic.
type panicky struct{ method string }

func (p *panicky) Error() string {
	if p.method == "Error" {
		panic("Error")
	}
	return p.method
}

func (p *panicky) RetryAfter() time.Duration {
	if p.method == "RetryAfter" {
		panic("RetryAfter")
	}
	return 0
}

func (p *panicky) Is(error) bool {
	if p.method == "Is" {
		panic("Is")
	}
	return false
}

// endings are the ways in which a call may end. Each runs a call and swallows how it ended.
func endings() map[string]func(*rig) {
	run := func(r *rig, ctx context.Context, fn func(context.Context) error) {
		_ = inGoroutine(func() { _ = r.c.Run(ctx, fn) })
	}
	returns := func(err error) func(*rig) {
		return func(r *rig) { run(r, context.Background(), func(context.Context) error { return err }) }
	}
	cancelling := func(err func(context.Context) error) func(*rig) {
		return func(r *rig) {
			ctx, cancel := context.WithCancel(context.Background())
			run(r, ctx, func(ctx context.Context) error { cancel(); return err(ctx) })
			cancel()
		}
	}
	acquired := func(settle func(*breaker.Permit)) func(*rig) {
		return func(r *rig) {
			_ = inGoroutine(func() { settle(r.acquire()) })
		}
	}
	return map[string]func(*rig){
		"ok":                         returns(nil),
		"counted error":              returns(errBoom),
		"ignored error":              returns(errClient),
		"wrapped ignored error":      returns(fmt.Errorf("get: %w", errClient)),
		"joined ignored error":       returns(errors.Join(errBoom, errClient)),
		"deadline":                   returns(context.DeadlineExceeded),
		"error with a hint":          returns(hint(time.Second)),
		"error with a negative hint": returns(hint(-time.Hour)),
		"inner rejection":            returns(fmt.Errorf("inner: %w", breaker.ErrOpen)),
		"classifier panics":          returns(errPanicClassifier),
		"classifier exits":           returns(errExitClassifier),
		"classifier knows no answer": returns(errOddClassifier),
		"error panics in RetryAfter": returns(&panicky{"RetryAfter"}),
		"error panics in Error":      returns(&panicky{"Error"}),
		"error panics in Is":         returns(&panicky{"Is"}),
		"cancelled before": func(r *rig) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			run(r, ctx, func(context.Context) error { return nil })
		},
		"cancelled during":       cancelling(func(ctx context.Context) error { return ctx.Err() }),
		"cancelled, other error": cancelling(func(context.Context) error { return errBoom }),
		"cancelled, yet ok":      cancelling(func(context.Context) error { return nil }),
		"nil function":           func(r *rig) { _ = r.c.Run(context.Background(), nil) },
		"panic":                  func(r *rig) { run(r, context.Background(), func(context.Context) error { panic("boom") }) },
		"panic with nil":         func(r *rig) { run(r, context.Background(), func(context.Context) error { panic(nil) }) },
		"goexit": func(r *rig) {
			run(r, context.Background(), func(context.Context) error { runtime.Goexit(); return nil })
		},
		"permit done":                acquired(func(p *breaker.Permit) { p.Done(nil) }),
		"permit failed":              acquired(func(p *breaker.Permit) { p.Done(errBoom) }),
		"permit settled":             acquired(func(p *breaker.Permit) { p.Settle(breaker.Success, nil) }),
		"permit settled as ignored":  acquired(func(p *breaker.Permit) { p.Settle(breaker.Ignored, nil) }),
		"permit settled as nonsense": acquired(func(p *breaker.Permit) { p.Settle(breaker.Outcome(77), nil) }),
		"permit, panicky RetryAfter": acquired(func(p *breaker.Permit) { p.Settle(breaker.Failure, &panicky{"RetryAfter"}) }),
		"permit, classifier panics":  acquired(func(p *breaker.Permit) { p.Done(errPanicClassifier) }),
		"permit, classifier exits":   acquired(func(p *breaker.Permit) { p.Done(errExitClassifier) }),
		"typed result": func(r *rig) {
			_, _ = r.b.Do(context.Background(), func(context.Context) (int, error) { return 1, nil })
		},
		"alternative panics": func(r *rig) {
			_ = inGoroutine(func() {
				_, _ = r.b.DoOr(context.Background(), func(context.Context) (int, error) { return 0, errBoom },
					func(context.Context, error) (int, error) { panic("alt") })
			})
		},
	}
}

var (
	errPanicClassifier = errors.New("makes the classifier panic")
	errExitClassifier  = errors.New("makes the classifier end its goroutine")
	errOddClassifier   = errors.New("makes the classifier return nonsense")
)

// oddClassifier does all that a classifier should not.
func oddClassifier(err error) breaker.Outcome {
	switch {
	case errors.Is(err, errPanicClassifier):
		panic("classifier")
	case errors.Is(err, errExitClassifier):
		runtime.Goexit()
	case errors.Is(err, errOddClassifier):
		return breaker.Outcome(200)
	}
	return breaker.DefaultClassifier(err)
}

// rudeHooks misbehave in every hook.
func rudeHooks(misbehave func()) map[string]breaker.Hooks {
	return map[string]breaker.Hooks{
		"StateChange": {StateChange: func(breaker.Transition) { misbehave() }},
		"Call":        {Call: func(context.Context, breaker.CallEvent) { misbehave() }},
		"Reject":      {Reject: func(context.Context, breaker.RejectEvent) { misbehave() }},
		"Rescue":      {Rescue: func(context.Context, breaker.RescueEvent) { misbehave() }},
	}
}

func TestBC32_EveryEndingSettles(t *testing.T) {
	hooks := map[string]breaker.Hooks{"none": {}}
	for name, h := range rudeHooks(func() { panic("hook") }) {
		hooks["panics in "+name] = h
	}
	for name, h := range rudeHooks(runtime.Goexit) {
		hooks["exits in "+name] = h
	}
	for ending, end := range endings() {
		t.Run(ending, func(t *testing.T) {
			for hook, h := range hooks {
				t.Run("hook "+hook, func(t *testing.T) {
					bothClocks(t, func(w *world) {
						r := w.r0(breaker.WithIgnore(errClient), breaker.WithClassifier(oddClassifier),
							breaker.WithHooks(h))
						exitSafe := func(f func()) { _ = inGoroutine(f) }
						exitSafe(func() { end(r) }) // closed
						require.Zero(w, r.c.Snapshot().InFlight)
						exitSafe(r.c.Reset)
						exitSafe(func() { r.c.Trip(nil) })
						r.state(breaker.Open)
						w.add(10 * time.Second)
						exitSafe(func() { end(r) })
						r.idle()
						for range 3 { // whatever the probe's verdict was, the circuit recovers
							w.add(10 * time.Second)
							exitSafe(func() { _ = r.c.Run(context.Background(), func(context.Context) error { return nil }) })
						}
						r.state(breaker.Closed)
						r.idle()
					})
				})
			}
		})
	}
}

func TestBC34_ExactlyAsManyProbesAsSlots(t *testing.T) {
	for name, settings := range map[string]struct{ slots, rounds int }{"two": {2, 1000}, "one": {1, 200}, "five": {5, 200}} {
		t.Run(name, func(t *testing.T) {
			guard(t, 2*patience, func() {
				for range settings.rounds {
					clk := &handClock{}
					c := breaker.Must(breaker.NewCircuit("test", breaker.WithClock(clk),
						breaker.WithHalfOpenProbes(settings.slots), breaker.WithSuccessThreshold(settings.slots)))
					c.Trip(nil)
					clk.ns.Store(int64(30 * time.Second))
					const callers = 50
					var ran, full atomic.Int64
					all, settle, answered := make(chan struct{}), make(chan struct{}), make(chan struct{}, callers)
					var done sync.WaitGroup
					for range callers {
						done.Go(func() {
							<-all
							err := c.Run(context.Background(), func(context.Context) error {
								ran.Add(1)
								answered <- struct{}{}
								<-settle
								return nil
							})
							if errors.Is(err, breaker.ErrTooManyProbes) {
								full.Add(1)
								answered <- struct{}{}
							}
						})
					}
					close(all)
					for range callers {
						<-answered
					}
					if int(ran.Load()) != settings.slots || int(full.Load()) != callers-settings.slots {
						t.Fatalf("%d ran and %d were rejected, with %d slots", ran.Load(), full.Load(), settings.slots)
					}
					close(settle)
					done.Wait()
					if c.State() != breaker.Closed {
						t.Fatalf("%v after every probe succeeded", c.State())
					}
				}
			})
		})
	}
}

// handClock is a clock that is set by hand, for tests that set it often.
type handClock struct{ ns atomic.Int64 }

func (c *handClock) Now() time.Time                       { return time.Unix(0, c.ns.Load()) }
func (c *handClock) After(time.Duration) <-chan time.Time { panic("nobody should wait") }

func TestBC35_HalfOpenIsNotClosed(t *testing.T) {
	bubble(t, byDo, func(w *world) {
		r := w.r0(breaker.WithProbeLease(time.Hour))
		r.trip()
		r.ran.Store(0)
		w.at(10 * time.Second)
		var calls sync.WaitGroup
		var rejected atomic.Int64
		for w.elapsed() < 39*time.Second {
			calls.Go(func() {
				_, err := r.b.Do(context.Background(), func(context.Context) (int, error) {
					r.ran.Add(1)
					<-time.After(30 * time.Second)
					return 0, errBoom
				})
				if errors.Is(err, breaker.ErrTooManyProbes) {
					rejected.Add(1)
				}
			})
			w.add(100 * time.Millisecond)
			require.EqualValues(w, 1, r.ran.Load())
		}
		require.EqualValues(w, 289, rejected.Load())
		calls.Wait()
		r.state(breaker.Open)
		require.Equal(w, "half-open>open at 40s: probe failed", r.steps()[2])
	})
	t.Run("one more for each lease", func(t *testing.T) {
		bubble(t, byDo, func(w *world) {
			r := w.r0()
			r.trip()
			r.ran.Store(0)
			w.at(10 * time.Second)
			for w.elapsed() < 60*time.Second {
				r.begin()
				w.add(time.Second)
			}
			require.EqualValues(w, 5, r.ran.Load())
		})
	})
}

func TestBC37_SettlingTwiceCountsOnce(t *testing.T) {
	bothClocks(t, func(w *world) {
		r := w.r0(breaker.WithSuccessThreshold(2), breaker.WithHalfOpenProbes(1))
		r.trip()
		w.at(10 * time.Second)
		p := r.acquire()
		var twice sync.WaitGroup
		twice.Go(func() { p.Done(nil) })
		twice.Go(func() { p.Done(nil) })
		twice.Wait()
		require.EqualValues(w, 1, r.c.Snapshot().ConsecutiveSuccesses)
		r.state(breaker.HalfOpen)
		first := r.gate()
		require.ErrorIs(w, r.rejected(), breaker.ErrTooManyProbes)
		p.Done(errBoom) // a third time, on somebody else's probe
		p.Settle(breaker.Failure, errBoom)
		r.state(breaker.HalfOpen)
		require.EqualValues(w, 1, r.c.Snapshot().Probes)
		first.finish(nil)
		r.state(breaker.Closed)
		r.idle()
	})
}

func TestBC39_ProbeThatNeverLeftIsInconclusive(t *testing.T) {
	errPoolExhausted := errors.New("own pool exhausted")
	for name, opts := range map[string][]breaker.Option{
		"WithIgnore": {breaker.WithIgnore(errPoolExhausted)},
		"WithClassifier": {breaker.WithClassifier(func(err error) breaker.Outcome {
			if errors.Is(err, errPoolExhausted) {
				return breaker.Ignored
			}
			return breaker.Failure
		})},
		"an inner limiter": nil,
	} {
		t.Run(name, func(t *testing.T) {
			bothClocks(t, func(w *world) {
				inconclusive := errPoolExhausted
				if opts == nil {
					inconclusive = fmt.Errorf("inner: %w", breaker.ErrTooManyInFlight)
				}
				r := w.r0(append(opts, breaker.WithOpenBackoff(2, time.Hour, 0))...)
				r.trip()
				w.at(10 * time.Second)
				for range 3 {
					r.failWith(inconclusive)
					r.state(breaker.HalfOpen)
					require.Zero(w, r.c.Snapshot().Probes)
				}
				r.ok(1)
				r.state(breaker.Closed)
			})
		})
	}
	t.Run("an inner circuit that is open", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			outer, inner := w.r0(), w.r0()
			inner.trip()
			for range 10 {
				err := outer.c.Run(w.Context(), func(ctx context.Context) error { return inner.c.Run(ctx, func(context.Context) error { return nil }) })
				require.ErrorIs(w, err, breaker.ErrOpen)
			}
			outer.state(breaker.Closed)
			require.EqualValues(w, 10, outer.c.Snapshot().Totals.Ignored)
			require.Zero(w, outer.c.Snapshot().Totals.Rejected)
		})
	})
}

// Stale results.

func TestBC40_StaleSuccessDoesNotClose(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.r0()
		stale := r.gate()
		w.at(time.Second)
		r.trip()
		w.at(11 * time.Second)
		probe := r.gate()
		events := len(r.steps())
		w.at(12 * time.Second)
		stale.finish(nil) // its caller gets the result all the same
		r.state(breaker.HalfOpen)
		require.Zero(w, r.c.Snapshot().ConsecutiveSuccesses)
		for range 10 {
			r.rejected()
		}
		require.Len(w, r.steps(), events)
		probe.finish(errBoom)
		r.state(breaker.Open)
	})
	t.Run("as many as the threshold asks for", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0(breaker.WithSuccessThreshold(3))
			var stale []*gate
			for range 50 {
				stale = append(stale, r.gate())
			}
			r.trip()
			w.at(10 * time.Second)
			r.ok(1) // half-open now
			for _, g := range stale {
				g.finish(nil)
			}
			r.state(breaker.HalfOpen)
			require.EqualValues(w, 1, r.c.Snapshot().ConsecutiveSuccesses)
		})
	})
	t.Run("of another half-open time", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0(breaker.WithHalfOpenProbes(2))
			r.trip()
			w.at(10 * time.Second)
			stale := r.gate()
			r.fail(1)
			w.at(20 * time.Second)
			probe := r.gate()
			stale.finish(nil)
			r.state(breaker.HalfOpen)
			probe.finish(errBoom)
			r.state(breaker.Open)
		})
	})
	t.Run("by way of a manual trip", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			stale := r.gate()
			r.c.Trip(nil)
			r.c.OfferProbe()
			stale.finish(nil)
			r.state(breaker.HalfOpen)
		})
	})
}

func TestBC42_SuccessWhileOpenDoesNotClose(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.r0()
		stale := r.gate()
		w.at(time.Second)
		r.trip()
		w.at(2 * time.Second)
		stale.finish(nil)
		w.at(3 * time.Second)
		r.state(breaker.Open)
		require.Equal(w, 8*time.Second, r.rejected().RetryAfter())
		w.at(11*time.Second - 1)
		r.rejected()
		w.at(11 * time.Second)
		r.ok(1)
		r.state(breaker.Closed)
	})
	t.Run("a probe's success after it was tripped by hand", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			r.trip()
			w.at(10 * time.Second)
			probe := r.gate()
			r.c.Trip(nil)
			probe.finish(nil)
			r.state(breaker.Open)
			w.at(20*time.Second - 1)
			r.rejected()
		})
	})
	t.Run("admitted by a mode above", func(t *testing.T) {
		everywhere(t, func(w *world) {
			for _, m := range []breaker.Mode{breaker.ForcedClosed, breaker.Shadow} {
				r := w.r0()
				r.trip()
				r.c.SetMode(m)
				r.ok(5)
				r.state(breaker.Open)
				r.c.SetMode(breaker.Auto)
				r.rejected()
			}
		})
	})
}

func TestBC45_DroppedResultLeavesATrace(t *testing.T) {
	bothClocks(t, func(w *world) {
		var calls []breaker.CallEvent
		r := w.r0(breaker.WithHooks(breaker.Hooks{Call: func(_ context.Context, c breaker.CallEvent) { calls = append(calls, c) }}))
		p := r.acquire()
		r.trip()
		w.at(10 * time.Second)
		calls = nil
		p.Done(nil)
		r.state(breaker.HalfOpen)
		require.EqualValues(w, 1, r.c.Snapshot().Totals.Late)
		require.EqualValues(w, 4, r.c.Snapshot().Totals.Calls)
		require.EqualValues(w, 1, r.c.Snapshot().Totals.Successes)
		require.Len(w, calls, 1)
		require.True(w, calls[0].Late)
		require.Equal(w, breaker.Closed, calls[0].State)
		require.Equal(w, breaker.Success, calls[0].Outcome)
		require.Equal(w, 10*time.Second, calls[0].Duration)
		require.False(w, calls[0].Probe)

		r.ok(1)
		require.Len(w, calls, 2)
		require.False(w, calls[1].Late)
		require.True(w, calls[1].Probe)
		require.Equal(w, breaker.HalfOpen, calls[1].State)
	})
	t.Run("without a hook", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			var gates []*gate
			for range 6 {
				gates = append(gates, r.gate())
			}
			r.c.Reset()
			gates[0].finish(nil)
			gates[1].finish(errBoom)
			r.trip()
			gates[2].finish(nil)
			w.at(10 * time.Second)
			r.ok(1)
			for _, g := range gates[3:] {
				g.finish(errBoom)
			}
			totals := r.c.Snapshot().Totals
			require.EqualValues(w, 6, totals.Late)
			require.EqualValues(w, 10, totals.Calls)
			r.state(breaker.Closed)
			require.Zero(w, r.c.Snapshot().ConsecutiveFailures)
		})
	})
}

// Time.

func TestBC47_JumpingClockNeitherFreezesNorUnlocks(t *testing.T) {
	for name, withRejection := range map[string]bool{"somebody was rejected before": true, "nobody was": false} {
		t.Run("back, "+name, func(t *testing.T) {
			injected(t, byDo, func(w *world) {
				r := w.r0()
				r.trip()
				w.clk.Set(w.start.Add(2 * time.Second))
				if withRejection {
					r.rejected()
				}
				w.clk.Set(w.start.Add(2*time.Second - time.Hour))
				require.LessOrEqual(w, r.rejected().RetryAfter(), 10*time.Second, "the remaining time")
				s := r.c.Snapshot()
				require.LessOrEqual(w, s.Until.Sub(w.clk.Now()), 10*time.Second)
				require.False(w, s.Since.After(w.clk.Now()))
				w.clk.Set(w.clk.Now().Add(10 * time.Second))
				r.ok(1)
				r.state(breaker.Closed)
			})
		})
	}
	t.Run("forward", func(t *testing.T) {
		injected(t, byDo, func(w *world) {
			r := w.r0()
			r.trip()
			w.clk.Set(w.start.Add(2*time.Second + time.Hour))
			r.ok(1) // a clock without a monotonic reading says so: that hour has passed
			r.state(breaker.Closed)
		})
	})
	t.Run("forward and back again", func(t *testing.T) {
		injected(t, byDo, func(w *world) {
			r := w.r0(breaker.WithTrip(breaker.FailureRate(0.5, 4, breaker.Last(10*time.Second))))
			r.ok(2)
			w.clk.Set(w.start.Add(time.Hour))
			r.fail(2)
			w.clk.Set(w.start.Add(time.Second))
			r.fail(1)
			r.state(breaker.Closed) // three failures are in the window, the successes are not: too few calls
			w.clk.Set(w.start.Add(2 * time.Second))
			r.fail(1)
			r.state(breaker.Open)
			require.LessOrEqual(w, r.rejected().RetryAfter(), 10*time.Second)
			w.clk.Set(w.clk.Now().Add(10 * time.Second))
			r.ok(1)
		})
	})
	t.Run("windows survive a step back", func(t *testing.T) {
		for name, policy := range map[string]breaker.Option{
			"failure window": breaker.WithFailureWindow(10 * time.Second),
			"failure count":  breaker.WithTrip(breaker.FailureCount(3, 10*time.Second)),
			"rate":           breaker.WithTrip(breaker.FailureRate(0.5, 3, breaker.Last(10*time.Second))),
		} {
			t.Run(name, func(t *testing.T) {
				injected(t, byDo, func(w *world) {
					r := w.r0(policy)
					r.fail(2)
					w.clk.Set(w.start.Add(-time.Hour))
					require.EqualValues(w, 2, r.c.Snapshot().Counts.Failures)
					r.fail(1)
					r.state(breaker.Open)
				})
			})
		}
	})
	t.Run("back while a probe is out", func(t *testing.T) {
		injected(t, byDo, func(w *world) {
			r := w.r0()
			r.trip()
			w.clk.Set(w.start.Add(10 * time.Second))
			r.gate()
			r.rejected()
			w.clk.Set(w.start.Add(-time.Hour))
			e := r.rejected()
			require.ErrorIs(w, e, breaker.ErrTooManyProbes)
			require.LessOrEqual(w, e.RetryAfter(), 10*time.Second)
			w.clk.Set(w.clk.Now().Add(10 * time.Second))
			r.ok(1)
			r.state(breaker.Closed)
		})
	})
	t.Run("back and forth all the time", func(t *testing.T) {
		injected(t, byDo, func(w *world) {
			r := w.r0(breaker.WithTrip(breaker.FailureRate(0.9, 10, breaker.Last(10*time.Second))))
			rng := rand.New(rand.NewPCG(3, 4))
			for range 300 {
				w.clk.Set(w.clk.Now().Add(time.Duration(rng.IntN(20_000)-10_000) * time.Millisecond))
				err := errBoom
				if rng.IntN(2) == 0 {
					err = nil
				}
				_ = r.call(err)
				s := r.c.Snapshot()
				require.Less(w, s.Counts.Failures, uint64(1000))
				require.Less(w, s.Counts.Successes, uint64(1000))
			}
			r.c.Trip(nil)
			w.clk.Add(10 * time.Second)
			r.ok(1)
		})
	})
}

func TestBC48_OneClockUsedEverywhere(t *testing.T) {
	injected(t, byDo, func(w *world) {
		require.Greater(w, time.Until(w.start).Abs(), 24*time.Hour, "the machine's clock must be elsewhere for this test")
		var calls []breaker.CallEvent
		r := w.r0(breaker.WithHooks(breaker.Hooks{Call: func(_ context.Context, c breaker.CallEvent) { calls = append(calls, c) }}),
			breaker.WithTrip(breaker.FailureRate(0.5, 10, breaker.Last(10*time.Second))))
		r.c.Trip(errBoom)
		require.True(w, r.events.list()[0].At.Equal(w.start))
		require.True(w, r.events.list()[0].Until.Equal(w.start.Add(10*time.Second)))
		require.Equal(w, 10*time.Second, r.rejected().RetryAfter())
		w.at(10*time.Second - 1)
		r.rejected()
		w.at(10 * time.Second)
		r.ok(1)
		r.state(breaker.Closed)

		g := r.gate()
		w.at(12 * time.Second)
		g.finish(errBoom)
		require.Equal(w, 2*time.Second, calls[len(calls)-1].Duration)
		s := r.c.Snapshot()
		require.True(w, s.LastFailureAt.Equal(w.now()))
		require.True(w, s.Since.Equal(w.start.Add(10*time.Second)))
		require.EqualValues(w, 1, s.Counts.Failures)
		w.at(22*time.Second - 1)
		require.EqualValues(w, 1, r.c.Snapshot().Counts.Failures)
		w.at(22 * time.Second)
		require.Zero(w, r.c.Snapshot().Counts.Failures, "it has left the window, by the clock given")
	})
	t.Run("the attempt's own timeout", func(t *testing.T) {
		injected(t, byDo, func(w *world) {
			r := w.r0(breaker.WithTimeout(time.Second))
			entered := make(chan struct{})
			result := make(chan error)
			go func() {
				_, err := r.b.Do(context.Background(), func(ctx context.Context) (int, error) {
					deadline, ok := ctx.Deadline()
					if !ok || !deadline.Equal(w.start.Add(time.Second)) {
						return 0, fmt.Errorf("the deadline is %v", deadline)
					}
					close(entered)
					<-ctx.Done()
					return 0, ctx.Err()
				})
				result <- err
			}()
			<-entered
			w.clk.Add(time.Second - 1)
			select {
			case err := <-result:
				require.NoError(w, err, "too early")
			default:
			}
			w.clk.Add(1)
			require.ErrorIs(w, <-result, context.DeadlineExceeded)
			require.EqualValues(w, 1, r.c.Snapshot().ConsecutiveFailures)
		})
	})
	t.Run("the context that a function gets", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			r := w.r0(breaker.WithTimeout(time.Minute))
			type key struct{}
			parent, cancel := context.WithCancelCause(context.WithValue(context.Background(), key{}, "value"))
			var kept, child context.Context
			_, err := r.b.Do(parent, func(ctx context.Context) (int, error) {
				kept = ctx
				require.Equal(w, "value", ctx.Value(key{}))
				require.NoError(w, ctx.Err())
				deadline, ok := ctx.Deadline()
				require.True(w, ok)
				require.True(w, deadline.Equal(w.now().Add(time.Minute)))
				var stop context.CancelFunc
				child, stop = context.WithCancel(ctx)
				w.Cleanup(stop)
				return 1, nil
			})
			require.NoError(w, err)
			<-kept.Done() // it ends when Do returns
			<-child.Done()
			require.ErrorIs(w, kept.Err(), context.Canceled)
			require.ErrorIs(w, child.Err(), context.Canceled)

			_, err = r.b.Do(parent, func(ctx context.Context) (int, error) {
				cancel(errClient)
				<-ctx.Done()
				require.ErrorIs(w, context.Cause(ctx), errClient)
				return 0, ctx.Err()
			})
			require.ErrorIs(w, err, context.Canceled)
			require.EqualValues(w, 1, r.c.Snapshot().Totals.Ignored)
		})
	})
	t.Run("the source", func(t *testing.T) {
		ours := map[string]bool{"Duration": true, "Time": true, "Nanosecond": true, "Microsecond": true, "Millisecond": true,
			"Second": true, "Minute": true, "Hour": true, "ParseDuration": true}
		allowed := map[string]bool{ // of the default clock
			"errors.go Now": true, "errors.go Until": true, // how long an error asks to wait
			"circuit.go Since":   true,                                   // whether a rejection still holds
			"syncer.go NewTimer": true, "store_client.go NewTimer": true, // connections to a store are paced by real time
		}
		for name, calls := range timeCalls(t, func(name string) bool { return !strings.HasSuffix(name, "_test.go") }) {
			if name == "clock.go" {
				continue
			}
			for _, call := range calls {
				if !ours[call] && !allowed[name+" "+call] {
					t.Errorf("%s uses time.%s", name, call)
				}
			}
		}
	})
}

func TestBC50_BoundaryMeansOneThing(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.r0()
		r.trip()
		w.at(10*time.Second - 1)
		require.EqualValues(w, 1, r.rejected().RetryAfter())
		require.False(w, r.c.Ready())
		r.state(breaker.Open)
		before := r.rejected()
		w.at(10 * time.Second)
		require.Zero(w, before.RetryAfter())
		require.True(w, r.c.Ready())
		r.state(breaker.HalfOpen)
		r.gate()
		for _, at := range []time.Duration{10 * time.Second, 15 * time.Second, 20*time.Second - 1} {
			w.at(at)
			e := r.rejected()
			require.Equal(w, 20*time.Second-at, e.RetryAfter())
			require.False(w, e.Until.Before(w.now()))
			require.Equal(w, breaker.HalfOpen, e.State)
			require.False(w, r.c.Ready())
		}
		w.at(time.Hour)
		require.Zero(w, before.RetryAfter(), "never negative")
		require.True(w, r.c.Ready())
	})
	t.Run("who waits as told is admitted", func(t *testing.T) {
		everywhere(t, func(w *world) {
			for _, opts := range [][]breaker.Option{
				nil,
				{breaker.WithOpenTimeout(1)},
				{breaker.WithOpenTimeout(time.Second + 1), breaker.WithOpenBackoff(1.7, time.Hour, 0)},
			} {
				r := w.r0(opts...)
				r.trip()
				for range 5 {
					w.add(r.rejected().RetryAfter())
					r.fail(1)
				}
			}
		})
	})
	t.Run("after the due time the next one's lease is told", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0(breaker.WithHalfOpenProbes(2), breaker.WithSuccessThreshold(3))
			r.trip()
			w.at(10 * time.Second)
			first := r.gate()
			w.at(13 * time.Second)
			r.gate()
			require.Equal(w, 7*time.Second, r.rejected().RetryAfter(), "the earliest lease")
			first.finish(nil)
			w.at(14 * time.Second)
			r.gate()
			require.Equal(w, 9*time.Second, r.rejected().RetryAfter(), "the earliest that is left")
		})
	})
}

func TestBC52_TimeZeroIsATime(t *testing.T) {
	starts := map[string]time.Time{
		"the zero time":          {},
		"just before it":         time.Time{}.Add(-10 * time.Second),
		"the epoch":              time.Unix(0, 0),
		"before the epoch":       time.Unix(-10, 0),
		"a nanosecond before it": time.Unix(0, -1),
		"far away":               time.Date(9000, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	for name, start := range starts {
		for policy, opt := range map[string]breaker.Option{
			"threshold":      breaker.WithFailureThreshold(3),
			"failure window": breaker.WithFailureWindow(10 * time.Second),
			"failure count":  breaker.WithTrip(breaker.FailureCount(3, 10*time.Second)),
			"rate":           breaker.WithTrip(breaker.FailureRate(0.5, 3, breaker.Last(10*time.Second))),
		} {
			t.Run(name+" "+policy, func(t *testing.T) {
				injected(t, byDo, func(w *world) {
					w.clk.Set(start)
					w.start = start
					r := w.r0(opt)
					require.Zero(w, r.c.Snapshot().Counts)
					r.fail(1)
					for i := range 10 {
						w.at(time.Duration(i) * time.Second)
						require.EqualValues(w, 1, r.c.Snapshot().Counts.Failures)
					}
					w.at(0 + 9*time.Second)
					r.fail(2)
					r.state(breaker.Open)
					require.Equal(w, 10*time.Second, r.rejected().RetryAfter())
					w.at(19*time.Second - 1)
					require.EqualValues(w, 1, r.rejected().RetryAfter())
					w.at(19 * time.Second)
					r.ok(1)
					r.state(breaker.Closed)
				})
			})
		}
	}
	t.Run("due at the zero time", func(t *testing.T) {
		injected(t, byDo, func(w *world) {
			w.start = time.Time{}.Add(-10 * time.Second)
			w.clk.Set(w.start)
			r := w.r0()
			r.trip()
			require.Equal(w, 10*time.Second, r.rejected().RetryAfter())
			w.at(10 * time.Second)
			r.state(breaker.HalfOpen)
			r.ok(1)
		})
	})
}

func TestBC53_DurationIsReadOncePerDecision(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.r0()
		r.trip()
		w.at(5 * time.Second)
		require.NoError(w, r.c.Configure(breaker.WithOpenTimeout(time.Minute)))
		require.Equal(w, 5*time.Second, r.rejected().RetryAfter())
		w.at(6 * time.Second)
		require.NoError(w, r.c.Configure(breaker.WithOpenTimeout(time.Second)))
		w.at(10*time.Second - 1)
		r.rejected()
		w.at(10 * time.Second)
		r.fail(1) // the probe of the period that ran
		require.Equal(w, time.Second, r.rejected().RetryAfter(), "the next opening takes the new length")
		w.at(11 * time.Second)
		r.ok(1)
	})
	t.Run("a lease keeps its length", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			r.trip()
			w.at(10 * time.Second)
			r.gate()
			require.NoError(w, r.c.Configure(breaker.WithProbeLease(time.Second)))
			w.at(20*time.Second - 1)
			r.rejected()
			w.at(20 * time.Second)
			r.gate()
			w.at(21 * time.Second)
			r.ok(1)
		})
	})
	t.Run("changed while a decision is on its way", func(t *testing.T) {
		all := map[string]breaker.Option{
			"none":       breaker.WithTrip(breaker.ConsecutiveFailures(100)),
			"count":      breaker.WithTrip(breaker.FailureCount(100, time.Second)),
			"calls":      breaker.WithTrip(breaker.FailureRate(1, 100, breaker.LastCalls(100))),
			"time":       breaker.WithTrip(breaker.FailureRate(1, 100, breaker.Last(time.Minute))),
			"two":        breaker.WithTrip(breaker.FailureRate(1, 100, breaker.Last(time.Minute)), breaker.SlowCallRate(time.Second, 1, 100, breaker.LastCalls(100))),
			"user's own": breaker.WithTrip(breaker.TripWhen(breaker.LastCalls(100), func(breaker.Counts) bool { return false })),
		}
		for from, before := range all {
			for to, after := range all {
				t.Run(from+" to "+to, func(t *testing.T) {
					guard(t, patience, func() {
						clk := &askingClock{}
						c := breaker.Must(breaker.NewCircuit("test", breaker.WithClock(clk), before))
						reload := []breaker.Option{after, before}
						n := 0
						clk.ask = func() { // between what a decision has read and its lock
							assert.NoError(t, c.Configure(reload[n%2]))
							n++
						}
						for i := range 20 {
							err := error(nil)
							if i%3 == 0 {
								err = errBoom
							}
							_ = c.Run(context.Background(), func(context.Context) error { return err })
							_, _, _ = c.Snapshot(), c.State(), c.Ready()
						}
						require.EqualValues(t, 20, c.Snapshot().Totals.Calls)
						require.Zero(t, c.Snapshot().InFlight)
						c.Trip(nil)
						c.OfferProbe()
						c.Reset()
						require.Equal(t, breaker.Closed, c.State())
					})
				})
			}
		}
	})
	t.Run("under traffic", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			r := w.r0()
			views := []*breaker.Breaker[int]{
				breaker.Must(breaker.Over[int](r.c)),
				breaker.Must(breaker.Over[int](r.c, breaker.WithTimeout(time.Hour))),
			}
			stop := make(chan struct{})
			var background sync.WaitGroup
			background.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					_ = r.c.Configure(breaker.WithOpenTimeout(time.Duration(1+i%2)*time.Second), breaker.WithFailureThreshold(3+i%2))
					runtime.Gosched()
				}
			})
			var calls sync.WaitGroup
			for i := range 1000 {
				calls.Go(func() {
					_, err := views[i%2].Do(context.Background(), func(ctx context.Context) (int, error) { return 1, ctx.Err() })
					assert.NoError(w, err, "no call sees a deadline that has passed")
				})
			}
			calls.Wait()
			close(stop)
			background.Wait()
			r.state(breaker.Closed)
			require.Zero(w, r.c.Snapshot().Totals.Failures)
			require.EqualValues(w, 1000, r.c.Snapshot().Totals.Calls)
			r.idle()
		})
	})
}

// Concurrency.

func TestBC55_OneChangeOneEventInOrder(t *testing.T) {
	bothClocks(t, func(w *world) {
		r := w.r0(breaker.WithSuccessThreshold(2), breaker.WithHalfOpenProbes(2), breaker.WithOpenTimeout(time.Millisecond))
		const workers, each = 64, 500
		var all sync.WaitGroup
		for i := range workers {
			all.Go(func() {
				rng := rand.New(rand.NewPCG(1, uint64(i)))
				for range each {
					err := errBoom
					if rng.IntN(3) > 0 {
						err = nil
					}
					_ = r.c.Run(context.Background(), func(context.Context) error { return err })
					switch rng.IntN(50) {
					case 0:
						r.c.Reset()
					case 1:
						r.c.Trip(nil)
					case 2:
						r.c.OfferProbe()
					}
				}
			})
		}
		all.Wait()
		if w.clk == nil {
			synctest.Wait() // a goroutine may still be delivering
		}
		r.c.Trip(errClient) // the last event of all
		r.c.OfferProbe()
		r.c.Trip(errClient)
		events := r.events.waitFor(w, func(all []breaker.Transition) bool {
			return len(all) > 0 && all[len(all)-1].Epoch == r.c.Snapshot().Epoch
		})
		require.Greater(w, len(events), 100)
		require.Equal(w, breaker.Closed, events[0].From)
		for i, e := range events {
			require.NotEqual(w, e.From, e.To)
			if i > 0 {
				require.Equal(w, events[i-1].To, e.From, "the chain is broken at %d", i)
				require.Greater(w, e.Epoch, events[i-1].Epoch)
				require.False(w, e.At.Before(events[i-1].At))
			}
		}
		require.Equal(w, events[len(events)-1].To, r.c.Snapshot().State)
		r.idle()
	})
}

func TestBC56_SuccessBetweenThresholdAndOpening(t *testing.T) {
	guard(t, patience, func() {
		for range 2000 {
			rec := newRecorder()
			c := breaker.Must(breaker.NewCircuit("test", breaker.WithFailureThreshold(3), breaker.WithHooks(rec.hooks())))
			call := func(err error) { _ = c.Run(context.Background(), func(context.Context) error { return err }) }
			call(errBoom)
			call(errBoom)
			var race sync.WaitGroup
			release := make(chan struct{})
			race.Go(func() { <-release; call(errBoom) })
			race.Go(func() { <-release; call(nil) })
			close(release)
			race.Wait()
			s := c.Snapshot()
			switch s.State {
			case breaker.Open: // the failure was first, or the success was rejected
				require.Len(t, rec.list(), 1)
				require.EqualValues(t, 3, rec.list()[0].Counts.ConsecutiveFailures)
			case breaker.Closed: // the success was first
				require.Empty(t, rec.list())
				require.LessOrEqual(t, s.ConsecutiveFailures, uint64(1))
			default:
				t.Fatalf("%v", s.State)
			}
		}
	})
}

func TestBC56_VerdictOfAnEarlierTimeIsVoid(t *testing.T) {
	bothClocks(t, func(w *world) {
		var r *rig
		verdicts := 0
		r = w.r0(breaker.WithTrip(breaker.TripWhen(breaker.LastCalls(10), func(c breaker.Counts) bool {
			verdicts++
			if c.Failures == 2 {
				r.c.Reset() // the stay that the verdict is about has ended
				return true
			}
			return false
		})))
		r.fail(2)
		r.state(breaker.Closed)
		require.Equal(w, 2, verdicts)
		require.Empty(w, r.steps())
		require.Zero(w, r.c.Snapshot().Counts)
	})
	t.Run("while it is still out", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			deciding, decide := make(chan struct{}), make(chan struct{})
			var once sync.Once
			r := w.r0(breaker.WithTrip(breaker.TripWhen(breaker.LastCalls(10), func(breaker.Counts) bool {
				wait := false
				once.Do(func() { wait = true })
				if wait {
					close(deciding)
					<-decide
				}
				return wait
			})))
			var deciding1 sync.WaitGroup
			deciding1.Go(func() { _ = r.c.Run(context.Background(), func(context.Context) error { return errBoom }) })
			<-deciding
			r.c.Trip(nil)
			r.c.OfferProbe()
			r.ok(1)
			r.state(breaker.Closed)
			close(decide)
			deciding1.Wait()
			r.state(breaker.Closed)
			require.Len(w, r.steps(), 3)
		})
	})
	t.Run("its counts hold the call that it is asked after", func(t *testing.T) {
		everywhere(t, func(w *world) {
			if w.way.name == byPolicy.name {
				return
			}
			var got []breaker.Counts
			r := w.r0(breaker.WithIgnore(errClient), breaker.WithTrip(
				breaker.TripWhen(breaker.LastCalls(3), func(breaker.Counts) bool { panic("the first of two") }),
				breaker.TripWhen(breaker.LastCalls(3), func(c breaker.Counts) bool { got = append(got, c); return c.ConsecutiveFailures == 3 }),
			))
			r.ok(2)
			r.fail(1)
			r.failWith(errClient)
			r.fail(1)
			r.state(breaker.Closed)
			r.fail(1)
			r.state(breaker.Open)
			require.Equal(w, []breaker.Counts{
				{Successes: 1, ConsecutiveSuccesses: 1},
				{Successes: 2, ConsecutiveSuccesses: 2},
				{Successes: 2, Failures: 1, ConsecutiveFailures: 1},
				{Successes: 2, Failures: 1, Ignored: 1, ConsecutiveFailures: 1},
				{Successes: 1, Failures: 2, Ignored: 1, ConsecutiveFailures: 2},
				{Failures: 3, Ignored: 1, ConsecutiveFailures: 3},
			}, got)
		})
	})
}

// Panics and nil.

func TestBC59_PanicsComeOutUnchanged(t *testing.T) {
	type custom struct{ n int }
	pointer := &custom{3}
	values := []any{"text", 42, custom{1}, pointer, errBoom, fmt.Errorf("wrapped: %w", errBoom), http.ErrAbortHandler, context.Canceled, breaker.ErrOpen}
	for _, way := range []way{byRun, byDo, byPolicy} {
		t.Run(way.name, func(t *testing.T) {
			injected(t, way, func(w *world) {
				for _, value := range values {
					r := w.r0(breaker.WithIgnore(errBoom, http.ErrAbortHandler, context.Canceled),
						breaker.WithClassifier(func(error) breaker.Outcome { return breaker.Success }))
					for range 3 {
						r.state(breaker.Closed)
						got := panicOf(func() {
							_, _ = way.call(r, context.Background(), func(context.Context) (int, error) { panic(value) })
						})
						require.True(w, got == value, "panicked with %v, came out as %v", value, got)
						r.idle()
					}
					require.Equal(w, breaker.Open, r.c.State(), "three panics with %v", value)
					require.Error(w, r.rejected().Cause)
				}
			})
		})
	}
	t.Run("a panic with nil is one as well", func(t *testing.T) {
		r := (&world{T: t, clk: clock.NewMock(), way: byRun}).r0()
		v := panicOf(func() { _ = r.c.Run(context.Background(), func(context.Context) error { panic(nil) }) })
		require.IsType(t, &runtime.PanicNilError{}, v)
		require.EqualValues(t, 1, r.c.Snapshot().Totals.Panics)
	})
	t.Run("after the caller's cancel", func(t *testing.T) {
		r := (&world{T: t, clk: clock.NewMock(), way: byRun}).r0()
		for range 3 {
			ctx, cancel := context.WithCancel(context.Background())
			panicOf(func() { _ = r.c.Run(ctx, func(context.Context) error { cancel(); panic("boom") }) })
		}
		r.state(breaker.Open) // a panic counts before anything else is asked
	})
	t.Run("the stack is the function's", func(t *testing.T) {
		r := (&world{T: t, clk: clock.NewMock(), way: byRun}).r0()
		var stack string
		func() {
			defer func() {
				if recover() != nil {
					text := make([]byte, 1<<16)
					stack = string(text[:runtime.Stack(text, false)])
				}
			}()
			_ = r.c.Run(context.Background(), func(context.Context) error { panicHere(); return nil })
		}()
		require.Contains(t, stack, "panicHere", "a panic that was recovered and raised again has lost its place")
	})
}

func panicHere() { panic("here") }

func TestBC59_PanicsOfClassifierAndTripFunction(t *testing.T) {
	for _, by := range []way{byRun, byDo, byPermit} {
		t.Run("classifier, "+by.name, func(t *testing.T) {
			injected(t, by, func(w *world) {
				r := w.r0(breaker.WithClassifier(func(error) breaker.Outcome { panic("classify") }))
				for range 3 {
					r.state(breaker.Closed)
					require.Equal(w, "classify", panicOf(func() { _ = r.call(errBoom) }))
				}
				r.state(breaker.Open)
				require.EqualValues(w, 3, r.c.Snapshot().Totals.Failures)
				r.idle()
			})
		})
	}
	t.Run("trip function", func(t *testing.T) {
		everywhere(t, func(w *world) {
			log := &logged{}
			r := w.r0(breaker.WithLogger(slog.New(log)), breaker.WithTrip(breaker.TripWhen(breaker.LastCalls(5), func(breaker.Counts) bool { panic("trip function") })))
			r.ok(1)
			r.fail(9)
			r.state(breaker.Closed)
			require.Len(w, log.list(), 10)
			require.Equal(w, slog.LevelError, log.list()[0].Level)
			require.Contains(w, fmt.Sprint(attrs(log.list()[0])), "trip function")
		})
	})
}

func TestBC62_NilAndZeroFailPolitely(t *testing.T) {
	bothClocks(t, func(w *world) {
		states := map[string]func(*rig){
			"closed":    func(*rig) {},
			"open":      func(r *rig) { r.trip() },
			"half-open": func(r *rig) { r.trip(); r.add(10 * time.Second); r.ok(1) },
		}
		for name, to := range states {
			for _, m := range []breaker.Mode{breaker.Auto, breaker.ForcedOpen, breaker.ForcedClosed, breaker.Shadow} {
				r := w.r0(breaker.WithSuccessThreshold(2))
				to(r)
				r.c.SetMode(m)
				before := r.c.Snapshot()
				_, err := r.b.Do(w.Context(), nil)
				require.ErrorIs(w, err, breaker.ErrNilFunc, "%s %v", name, m)
				require.ErrorIs(w, r.b.Try(w.Context(), nil).Err, breaker.ErrNilFunc)
				require.ErrorIs(w, r.c.Run(w.Context(), nil), breaker.ErrNilFunc)
				_, err = r.b.Wrap(nil)(w.Context())
				require.ErrorIs(w, err, breaker.ErrNilFunc)
				_, err = r.b.DoOr(w.Context(), nil, nil)
				require.ErrorIs(w, err, breaker.ErrNilFunc)
				require.Equal(w, before, r.c.Snapshot(), "%s %v: something was counted or taken", name, m)
			}
		}
	})
	t.Run("zero values panic by name", func(t *testing.T) {
		fn := func(context.Context) (int, error) { return 0, nil }
		run := func(context.Context) error { return nil }
		ctx := context.Background()
		for _, c := range []*breaker.Circuit{nil, {}} {
			for name, use := range map[string]func(){
				"Name": func() { c.Name() }, "State": func() { c.State() }, "Ready": func() { c.Ready() },
				"Snapshot": func() { c.Snapshot() }, "Config": func() { c.Config() }, "Run": func() { _ = c.Run(ctx, run) },
				"Run nil": func() { _ = c.Run(ctx, nil) }, "Acquire": func() { _, _ = c.Acquire(ctx) }, "Trip": func() { c.Trip(nil) },
				"Reset": c.Reset, "OfferProbe": c.OfferProbe, "SetMode": func() { c.SetMode(breaker.Auto) },
				"Configure": func() { _ = c.Configure() }, "Close": func() { _ = c.Close() },
			} {
				require.Contains(t, fmt.Sprint(panicOf(use)), "Circuit", name)
			}
		}
		for _, b := range []*breaker.Breaker[int]{nil, {}} {
			for name, use := range map[string]func(){
				"Do": func() { _, _ = b.Do(ctx, fn) }, "Do nil": func() { _, _ = b.Do(ctx, nil) }, "Try": func() { b.Try(ctx, fn) },
				"DoOr": func() { _, _ = b.DoOr(ctx, fn, nil) }, "Wrap": func() { b.Wrap(fn) }, "Circuit": func() { b.Circuit() },
				"Name": func() { b.Name() }, "State": func() { b.State() }, "Ready": func() { b.Ready() },
				"Snapshot": func() { b.Snapshot() }, "Close": func() { _ = b.Close() },
			} {
				require.Contains(t, fmt.Sprint(panicOf(use)), "Breaker", name)
			}
		}
	})
	t.Run("nil hooks and a nil alternative", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			r := w.r0(breaker.WithHooks(breaker.Hooks{}))
			r.trip()
			r.rejected()
			_, err := r.b.DoOr(w.Context(), func(context.Context) (int, error) { return 1, nil }, nil)
			require.ErrorIs(w, err, breaker.ErrOpen)
		})
	})
	t.Run("nil options are refused", func(t *testing.T) {
		var noClock *clock.Mock
		for name, opt := range map[string]breaker.Option{
			"Option": nil, "Classifier": breaker.WithClassifier(nil), "Clock": breaker.WithClock(nil), "a typed nil Clock": breaker.WithClock(noClock),
			"Rand": breaker.WithRand(nil), "Logger": breaker.WithLogger(nil), "HealthCheck": breaker.WithHealthCheck(time.Second, nil),
			"Ignore": breaker.WithIgnore(nil), "FailOn": breaker.WithFailOn(errBoom, nil), "When": breaker.WithTrip(breaker.TripWhen(breaker.LastCalls(1), nil)),
		} {
			_, err := breaker.NewCircuit("test", opt)
			require.Error(t, err, name)
			require.ErrorContains(t, err, name[strings.LastIndex(name, " ")+1:])
		}
		_, err := breaker.New[int]("test", breaker.WithResult[int](nil))
		require.ErrorContains(t, err, "Result")
		_, err = breaker.Over[int](nil)
		require.ErrorContains(t, err, "Circuit")
		_, err = breaker.NewCircuit("")
		require.Error(t, err)
	})
}

// Context.

func TestBC63_CallerWhoWalksAwayIsNoFailure(t *testing.T) {
	ends := map[string]func(context.Context) error{
		"the context's error": func(ctx context.Context) error { return ctx.Err() },
		"wrapped":             func(ctx context.Context) error { return fmt.Errorf("query: %w", ctx.Err()) },
		"its cause":           context.Cause,
		"any other error":     func(context.Context) error { return errBoom },
		"a deadline's":        func(context.Context) error { return context.DeadlineExceeded },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(w *world) {
				r := w.r0()
				r.fail(2)
				for range 10 {
					ctx, cancel := context.WithCancelCause(w.Context())
					_, err := r.way.call(r, ctx, func(ctx context.Context) (int, error) {
						cancel(errors.New("gone"))
						return 0, end(ctx)
					})
					require.Error(w, err)
				}
				r.state(breaker.Closed)
				s := r.c.Snapshot()
				require.EqualValues(w, 2, s.ConsecutiveFailures)
				require.EqualValues(w, 10, s.Totals.Ignored)
				r.fail(1)
				r.state(breaker.Open)
			})
		})
	}
	t.Run("an answer that came all the same counts", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			r.fail(2)
			ctx, cancel := context.WithCancel(w.Context())
			_, err := r.way.call(r, ctx, func(context.Context) (int, error) { cancel(); return 1, nil })
			require.NoError(w, err)
			require.Zero(w, r.c.Snapshot().ConsecutiveFailures)
			r.fail(2)
			r.state(breaker.Closed)
		})
	})
	t.Run("WithFailOn does not change it", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0(breaker.WithFailOn(context.Canceled, errBoom))
			for range 5 {
				ctx, cancel := context.WithCancel(w.Context())
				_, _ = r.way.call(r, ctx, func(ctx context.Context) (int, error) { cancel(); return 0, ctx.Err() })
			}
			r.state(breaker.Closed)
		})
	})
	t.Run("as a probe it hands its slot back", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			r.trip()
			w.at(10 * time.Second)
			for range 5 {
				ctx, cancel := context.WithCancel(w.Context())
				g := r.gateCtx(ctx)
				cancel()
				g.finish(ctx.Err())
				r.state(breaker.HalfOpen)
				r.idle()
			}
			r.ok(1)
			r.state(breaker.Closed)
		})
	})
}

func TestBC64_DependencysOwnTimeoutCounts(t *testing.T) {
	children := map[string]func(context.Context) error{
		"deadline": func(ctx context.Context) error {
			ctx, cancel := context.WithDeadline(ctx, time.Unix(0, 0))
			defer cancel()
			return ctx.Err()
		},
		"cancel by the client library": func(ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return ctx.Err()
		},
		"wrapped": func(context.Context) error { return fmt.Errorf("client: %w", context.Canceled) },
	}
	for name, child := range children {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(w *world) {
				r := w.r0()
				for range 3 {
					r.state(breaker.Closed)
					_, err := r.way.call(r, w.Context(), func(ctx context.Context) (int, error) { return 0, child(ctx) })
					require.Error(w, err)
				}
				r.state(breaker.Open)
			})
		})
	}
	t.Run("the attempt's own timeout", func(t *testing.T) {
		for name, opts := range map[string][]breaker.Option{"": nil, " with IgnoreCallerDeadline": {breaker.IgnoreCallerDeadline()}} {
			t.Run("set by WithTimeout"+name, func(t *testing.T) {
				bubble(t, byDo, func(w *world) {
					r := w.r0(append(opts, breaker.WithTimeout(time.Second))...)
					for i := range 3 {
						r.state(breaker.Closed)
						_, err := r.b.Do(w.Context(), hang)
						require.ErrorIs(w, err, context.DeadlineExceeded)
						require.Equal(w, time.Duration(i+1)*time.Second, w.elapsed())
					}
					r.state(breaker.Open)
				})
			})
		}
	})
	t.Run("an attempt that overran is a failure whatever it returned", func(t *testing.T) {
		bubble(t, byDo, func(w *world) {
			r := w.r0(breaker.WithTimeout(time.Second), breaker.WithIgnore(errClient))
			for i, err := range []error{nil, errClient, errBoom} {
				v, got := r.b.Do(w.Context(), func(context.Context) (int, error) {
					<-time.After(time.Second)
					return i, err
				})
				require.Equal(w, i, v, "the value is the answer")
				require.Equal(w, err, got)
			}
			r.state(breaker.Open)
			require.EqualValues(w, 3, r.c.Snapshot().Totals.Failures)
		})
	})
}

func TestBC66_HiddenCancelIsRecognised(t *testing.T) {
	errHidden := errors.New("rpc: operation was canceled")
	everywhere(t, func(w *world) {
		r := w.r0()
		for range 5 {
			ctx, cancel := context.WithCancel(w.Context())
			_, err := r.way.call(r, ctx, func(context.Context) (int, error) { cancel(); return 0, errHidden })
			require.Equal(w, errHidden, err)
		}
		r.state(breaker.Closed)
		require.Zero(w, r.c.Snapshot().Totals.Failures)
		for range 3 {
			r.failWith(errHidden)
		}
		r.state(breaker.Open)
	})
}

func TestBC67_CallersOwnDeadline(t *testing.T) {
	for _, tc := range []struct {
		name           string
		opts           []breaker.Option
		limit, takes   time.Duration
		cancel         bool
		want           breaker.State
		wantErr        error
		ignoresContext bool
	}{
		{name: "counts", limit: 200 * time.Millisecond, want: breaker.Open, wantErr: context.DeadlineExceeded},
		{name: "counts however short it is", limit: time.Millisecond, want: breaker.Open, wantErr: context.DeadlineExceeded},
		{name: "does not with IgnoreCallerDeadline", opts: []breaker.Option{breaker.IgnoreCallerDeadline()}, limit: time.Millisecond, want: breaker.Closed, wantErr: context.DeadlineExceeded},
		{name: "a cancel before it stays neutral", limit: 200 * time.Millisecond, cancel: true, want: breaker.Closed, wantErr: context.Canceled},
		{name: "counts under an attempt's longer timeout", opts: []breaker.Option{breaker.WithTimeout(time.Minute)}, limit: time.Second, want: breaker.Open, wantErr: context.DeadlineExceeded},
		{name: "an attempt's shorter timeout counts, whatever the deadline's meaning", opts: []breaker.Option{breaker.WithTimeout(time.Second), breaker.IgnoreCallerDeadline()}, limit: time.Minute, want: breaker.Open, wantErr: context.DeadlineExceeded},
		{name: "does not under an attempt's longer timeout with IgnoreCallerDeadline", opts: []breaker.Option{breaker.WithTimeout(time.Minute), breaker.IgnoreCallerDeadline()}, limit: time.Second, want: breaker.Closed, wantErr: context.DeadlineExceeded},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, byDo, func(w *world) {
				r := w.r0(tc.opts...)
				for range 3 {
					r.state(breaker.Closed)
					ctx, cancel := context.WithTimeout(context.Background(), tc.limit)
					if tc.cancel {
						time.AfterFunc(10*time.Millisecond, cancel)
					}
					_, err := r.b.Do(ctx, hang)
					cancel()
					require.ErrorIs(w, err, tc.wantErr)
				}
				r.state(tc.want)
				r.idle()
			})
		})
	}
	t.Run("with a cause of its own", func(t *testing.T) {
		bubble(t, byDo, func(w *world) {
			r := w.r0()
			for range 3 {
				ctx, cancel := context.WithTimeoutCause(context.Background(), time.Second, errClient)
				_, err := r.b.Do(ctx, func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, context.Cause(ctx) })
				cancel()
				require.Equal(w, errClient, err)
			}
			r.state(breaker.Open)
		})
	})
	t.Run("met by a function that ignores its context", func(t *testing.T) {
		bubble(t, byDo, func(w *world) {
			r := w.r0()
			stuck := make(chan struct{})
			defer close(stuck)
			for range 3 {
				_, err := r.b.Do(context.Background(), breaker.Detach(time.Second, func(context.Context) (int, error) {
					<-stuck
					return 0, nil
				}))
				require.ErrorIs(w, err, context.DeadlineExceeded)
			}
			r.state(breaker.Open)
			r.idle()
		})
	})
}

// Classification.

func TestBC69_ClientErrorIsNeitherFailureNorForgiveness(t *testing.T) {
	everywhere(t, func(w *world) {
		if w.way.name == byPolicy.name {
			return // has a WithResult of its own; WithIgnore decides before it, which TestBC72 covers
		}
		ignore := breaker.WithIgnore(errClient)

		a := w.r0(ignore)
		a.fail(2)
		a.failWith(errClient)
		a.fail(1)
		a.state(breaker.Open)

		b := w.r0(ignore)
		b.trip()
		w.add(10 * time.Second)
		b.failWith(errClient)
		b.state(breaker.HalfOpen) // the slot is back, there is no verdict
		b.idle()
		b.ok(1)
		b.state(breaker.Closed)

		c := w.r0(ignore)
		for _, err := range []error{errBoom, errClient, errBoom, errClient} {
			c.failWith(err)
			c.state(breaker.Closed)
		}
		c.fail(1)
		c.state(breaker.Open)

		d := w.r0(ignore)
		for range 1000 {
			d.failWith(errClient)
		}
		d.state(breaker.Closed)
	})
	t.Run("in windows", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			for _, window := range []breaker.Window{breaker.LastCalls(10), breaker.Last(time.Minute)} {
				r := w.r0(breaker.WithIgnore(errClient), breaker.WithTrip(breaker.FailureRate(0.5, 10, window)))
				for range 5 {
					r.ok(1)
					for range 20 { // takes no place in the window
						r.failWith(errClient)
					}
				}
				r.fail(4)
				r.state(breaker.Closed)
				r.failWith(errClient)
				r.state(breaker.Closed)
				r.fail(1)
				r.state(breaker.Open)
			}
		})
	})
}

type reply struct{ code int }

func TestBC72_BadValueCanBeAFailure(t *testing.T) {
	bothClocks(t, func(w *world) {
		asked := 0
		classify := func(v *reply, err error) breaker.Outcome {
			asked++
			switch {
			case err != nil || v != nil && v.code >= 500:
				return breaker.Failure
			case v != nil && v.code >= 400:
				return breaker.Ignored
			}
			return breaker.Success
		}
		var calls []breaker.CallEvent
		r := w.r0(breaker.WithIgnore(errClient), breaker.WithHooks(breaker.Hooks{
			Call: func(_ context.Context, c breaker.CallEvent) { calls = append(calls, c) },
		}))
		b := breaker.Must(breaker.Over[*reply](r.c, breaker.WithResult(classify)))
		do := func(v *reply, err error) (*reply, error) {
			return b.Do(w.Context(), func(context.Context) (*reply, error) { return v, err })
		}
		v, err := do(nil, nil)
		require.NoError(w, err)
		require.Nil(w, v)
		bad := &reply{503}
		for i := range 3 {
			require.Equal(w, i, int(r.c.Snapshot().ConsecutiveFailures))
			v, err := do(bad, nil)
			require.NoError(w, err)
			require.Same(w, bad, v)
			require.ErrorIs(w, calls[len(calls)-1].Err, breaker.ErrUnacceptable)
			require.Equal(w, breaker.Failure, calls[len(calls)-1].Outcome)
		}
		r.state(breaker.Open)
		require.Equal(w, 4, asked, "once about each call")
		_, err = do(bad, nil)
		var open *breaker.OpenError
		require.ErrorAs(w, err, &open)
		require.ErrorIs(w, open.Cause, breaker.ErrUnacceptable)
		require.Equal(w, 4, asked, "never about a rejection")

		r.c.Reset()
		for range 5 {
			_, _ = do(&reply{404}, nil)
			_, _ = do(nil, errClient) // WithIgnore decides first
		}
		require.Equal(w, 9, asked)
		require.EqualValues(w, 10, r.c.Snapshot().Counts.Ignored)
		_, err = do(&reply{200}, errBoom)
		require.ErrorIs(w, err, errBoom)
		require.Equal(w, breaker.Failure, calls[len(calls)-1].Outcome)
	})
	t.Run("an alternative is asked, with a reason", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			r := w.r0()
			b := breaker.Must(breaker.Over[*reply](r.c, breaker.WithResult(func(v *reply, _ error) breaker.Outcome {
				if v.code >= 500 {
					return breaker.Failure
				}
				return breaker.Success
			})))
			good := &reply{200}
			v, err := b.DoOr(w.Context(), func(context.Context) (*reply, error) { return &reply{503}, nil }, func(_ context.Context, why error) (*reply, error) {
				require.ErrorIs(w, why, breaker.ErrUnacceptable)
				return good, nil
			})
			require.NoError(w, err)
			require.Same(w, good, v)
		})
	})
	t.Run("a wrong type is refused", func(t *testing.T) {
		_, err := breaker.New[int]("test", breaker.WithResult(func(string, error) breaker.Outcome { return breaker.Success }))
		require.ErrorContains(t, err, "int")
		require.ErrorContains(t, err, "string")
		_, err = breaker.Over[int](breaker.Must(breaker.NewCircuit("test")), breaker.WithResult(func(string, error) breaker.Outcome { return breaker.Success }))
		require.Error(t, err)
	})
	t.Run("it panics", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			r := w.r0()
			b := breaker.Must(breaker.Over[int](r.c, breaker.WithResult(func(int, error) breaker.Outcome { panic("classify") })))
			for range 3 {
				r.state(breaker.Closed)
				require.Equal(w, "classify", panicOf(func() {
					_, _ = b.Do(w.Context(), func(context.Context) (int, error) { return 1, nil })
				}))
			}
			r.state(breaker.Open)
			r.idle()
		})
	})
}

func TestBC74_ClassifyingDoesNotReplace(t *testing.T) {
	bothClocks(t, func(w *world) {
		for _, opt := range []breaker.Option{
			breaker.WithIgnore(errClient),
			breaker.WithClassifier(func(error) breaker.Outcome { return breaker.Ignored }),
			breaker.WithClassifier(func(error) breaker.Outcome { return breaker.Success }),
			breaker.WithFailOn(errClient),
		} {
			r := w.r0(opt)
			fn := func(context.Context) (int, error) { return 9, errClient }
			v, err := r.b.Do(w.Context(), fn)
			require.Equal(w, 9, v)
			require.Same(w, errClient, err)
			require.Same(w, errClient, r.c.Run(w.Context(), func(context.Context) error { return errClient }))
		}
	})
	t.Run("no alternative for what is not a failure", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			for _, o := range []breaker.Outcome{breaker.Ignored, breaker.Success} {
				r := w.r0(breaker.WithClassifier(func(error) breaker.Outcome { return o }))
				v, err := r.b.DoOr(w.Context(), func(context.Context) (int, error) { return 9, errClient },
					w.noAlternative)
				require.Equal(w, 9, v)
				require.Same(w, errClient, err)
			}
		})
	})
}

// The open period's length.

func TestBC83_JitterStaysInItsBounds(t *testing.T) {
	for _, tc := range []struct {
		factor, jitter, random float64
		max                    time.Duration
		want                   []time.Duration // in seconds, of the openings in a row
	}{
		{2, 0, 0.999, 100 * time.Second, []time.Duration{10, 20, 40, 80, 100, 100}},
		{2, 0.5, 0, 100 * time.Second, []time.Duration{10, 20, 40, 80, 100, 100}},
		{2, 0.5, 0.5, 100 * time.Second, []time.Duration{12500, 25000, 50000, 100000, 100000}},
		{1, 1, 0.5, 100 * time.Second, []time.Duration{15, 15, 15}},
		{3, 0, 0, 10 * time.Second, []time.Duration{10, 10, 10}},
		{1e300, 1, 0.999, time.Hour, []time.Duration{19990, 3600, 3600, 3600}},
		{2, 1, math.NaN(), 100 * time.Second, []time.Duration{10, 20}},
		{2, 1, 1, 100 * time.Second, []time.Duration{10, 20}},
		{2, 1, -5, 100 * time.Second, []time.Duration{10, 20}},
	} {
		t.Run(fmt.Sprint(tc.factor, tc.jitter, tc.random), func(t *testing.T) {
			bothClocks(t, func(w *world) {
				r := w.r0(breaker.WithOpenBackoff(tc.factor, tc.max, tc.jitter), breaker.WithRand(func() float64 { return tc.random }))
				r.trip()
				for _, want := range tc.want {
					if want < 10_000 {
						want *= 1000
					}
					got := r.rejected().RetryAfter()
					require.Equal(w, want*time.Millisecond, got)
					w.add(got)
					r.fail(1)
				}
			})
		})
	}
	t.Run("many openings", func(t *testing.T) {
		injected(t, byDo, func(w *world) {
			r := w.r0(breaker.WithOpenBackoff(1.5, time.Hour, 1))
			r.trip()
			last := time.Duration(0)
			for i := range 200 {
				d := r.rejected().RetryAfter()
				require.GreaterOrEqual(w, d, 10*time.Second)
				require.LessOrEqual(w, d, time.Hour)
				if i > 30 {
					require.Equal(w, time.Hour, d)
				}
				last = d
				w.clk.Set(w.clk.Now().Add(last))
				r.fail(1)
			}
		})
	})
	t.Run("a series ends when the circuit has stayed closed", func(t *testing.T) {
		everywhere(t, func(w *world) {
			for stay, want := range map[time.Duration]time.Duration{10*time.Second - 1: 40 * time.Second, 10 * time.Second: 10 * time.Second} {
				r := w.r0(breaker.WithOpenBackoff(2, time.Hour, 0))
				r.trip()
				w.add(10 * time.Second)
				r.fail(1)
				w.add(20 * time.Second)
				r.ok(1)
				w.add(stay)
				r.trip()
				require.Equal(w, want, r.rejected().RetryAfter())
			}
			r := w.r0(breaker.WithOpenBackoff(2, time.Hour, 0))
			r.trip()
			w.add(10 * time.Second)
			r.fail(1)
			r.c.Reset()
			r.trip()
			require.Equal(w, 10*time.Second, r.rejected().RetryAfter(), "Reset starts over")
		})
	})
	t.Run("a source of chance that panics", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			r := w.r0(breaker.WithOpenBackoff(2, time.Hour, 1), breaker.WithRand(func() float64 { panic("rand") }))
			r.trip()
			require.Equal(w, 10*time.Second, r.rejected().RetryAfter())
		})
	})
}

func TestBC90_HintLengthensThePeriodItStarts(t *testing.T) {
	for _, tc := range []struct {
		name string
		opts []breaker.Option
		err  error
		want time.Duration
	}{
		{"longer than the timeout", nil, hint(25 * time.Second), 25 * time.Second},
		{"wrapped", nil, fmt.Errorf("get: %w", hint(25*time.Second)), 25 * time.Second},
		{"joined", nil, errors.Join(errBoom, hint(25*time.Second)), 25 * time.Second},
		{"shorter", nil, hint(time.Second), 10 * time.Second},
		{"zero", nil, hint(0), 10 * time.Second},
		{"negative", nil, hint(-time.Hour), 10 * time.Second},
		{"above the default maximum", nil, hint(time.Hour), 5 * time.Minute},
		{"beyond all measure", nil, hint(math.MaxInt64), 5 * time.Minute},
		{"above the maximum", []breaker.Option{breaker.WithOpenHint(20 * time.Second)}, hint(time.Hour), 20 * time.Second},
		{"a maximum below the timeout", []breaker.Option{breaker.WithOpenHint(time.Second)}, hint(time.Hour), 10 * time.Second},
		{"off", []breaker.Option{breaker.WithOpenHint(0)}, hint(25 * time.Second), 10 * time.Second},
		{"with backoff the longer counts", []breaker.Option{breaker.WithOpenBackoff(2, time.Hour, 0)}, hint(15 * time.Second), 15 * time.Second},
		{"no hint", nil, errBoom, 10 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			everywhere(t, func(w *world) {
				r := w.r0(tc.opts...)
				r.fail(2)
				r.failWith(tc.err)
				require.Equal(w, tc.want, r.rejected().RetryAfter())
				w.at(tc.want - 1)
				r.rejected()
				w.at(tc.want)
				r.ok(1)
			})
		})
	}
	t.Run("only of the failure that opens", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			straggler := r.gate()
			r.failWith(hint(25 * time.Second))
			r.failWith(hint(25 * time.Second))
			r.fail(1)
			require.Equal(w, 10*time.Second, r.rejected().RetryAfter())
			w.at(3 * time.Second)
			straggler.finish(hint(40 * time.Second))
			require.Equal(w, 7*time.Second, r.rejected().RetryAfter())
			require.Len(w, r.steps(), 1)
		})
	})
	t.Run("of a probe, and of Trip", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0()
			r.c.Trip(hint(15 * time.Second))
			require.Equal(w, 15*time.Second, r.rejected().RetryAfter())
			w.at(15 * time.Second)
			r.failWith(hint(30 * time.Second))
			require.Equal(w, 30*time.Second, r.rejected().RetryAfter())
		})
	})
	t.Run("an ignored error's counts for nothing", func(t *testing.T) {
		everywhere(t, func(w *world) {
			if w.way.name == byPolicy.name {
				return
			}
			r := w.r0(breaker.WithIgnore(hint(time.Minute)))
			r.failWith(hint(time.Minute))
			r.trip()
			require.Equal(w, 10*time.Second, r.rejected().RetryAfter())
		})
	})
}

// Alternatives.

func TestBC102_AlternativeKnowsWhyAndHidesNothing(t *testing.T) {
	errAlt := errors.New("alt failed too")
	bothClocks(t, func(w *world) {
		r := w.r0()
		fails := func(context.Context) (int, error) { return 0, errBoom }

		var why error
		v, err := r.b.DoOr(w.Context(), fails, func(_ context.Context, e error) (int, error) { why = e; return 42, nil })
		require.NoError(w, err)
		require.Equal(w, 42, v)
		require.Same(w, errBoom, why)

		_, err = r.b.DoOr(w.Context(), fails, func(context.Context, error) (int, error) {
			require.Zero(w, r.c.Snapshot().InFlight, "all is settled by now")
			return 0, errAlt
		})
		require.ErrorIs(w, err, errBoom)
		require.ErrorIs(w, err, errAlt)
		require.EqualValues(w, 2, r.c.Snapshot().ConsecutiveFailures, "the alternative's failure is not the dependency's")

		_, err = r.b.DoOr(w.Context(), fails, nil)
		require.Same(w, errBoom, err)
		r.state(breaker.Open)

		_, err = r.b.DoOr(w.Context(), fails, func(_ context.Context, e error) (int, error) { why = e; return 0, errAlt })
		require.ErrorIs(w, why, breaker.ErrOpen)
		require.ErrorIs(w, err, breaker.ErrOpen)
		require.ErrorIs(w, err, errAlt)
		r.idle()
	})
	t.Run("never after a success or the caller's cancel", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			r := w.r0()
			v, err := r.b.DoOr(w.Context(), func(context.Context) (int, error) { return 1, nil }, w.noAlternative)
			require.NoError(w, err)
			require.Equal(w, 1, v)
			ctx, cancel := context.WithCancel(w.Context())
			_, err = r.b.DoOr(ctx, func(ctx context.Context) (int, error) { cancel(); return 0, ctx.Err() }, w.noAlternative)
			require.ErrorIs(w, err, context.Canceled)
			_, err = r.b.DoOr(ctx, func(context.Context) (int, error) { return 0, nil }, w.noAlternative)
			require.ErrorIs(w, err, context.Canceled)
		})
	})
	t.Run("for an inner circuit's rejection", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			outer, inner := w.r0(), w.r0()
			inner.trip()
			v, err := outer.b.DoOr(w.Context(), func(ctx context.Context) (int, error) {
				return inner.b.Do(ctx, func(context.Context) (int, error) { return 1, nil })
			}, func(context.Context, error) (int, error) { return 42, nil })
			require.NoError(w, err)
			require.Equal(w, 42, v)
			require.Zero(w, outer.c.Snapshot().Totals.Failures)
		})
	})
	t.Run("for a call too many", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			r := w.r0(breaker.WithMaxInFlight(1))
			r.gate()
			ran := r.ran.Load()
			v, err := r.b.DoOr(w.Context(), w.noCall,
				func(context.Context, error) (int, error) { return 42, nil })
			require.NoError(w, err)
			require.Equal(w, 42, v)
			require.Equal(w, ran, r.ran.Load())
		})
	})
	t.Run("no value twice: an attempt that overran brought its answer", func(t *testing.T) {
		bubble(t, byDo, func(w *world) {
			r := w.r0(breaker.WithTimeout(time.Second))
			v, err := r.b.DoOr(w.Context(), func(context.Context) (int, error) { <-time.After(2 * time.Second); return 7, nil },
				w.noAlternative)
			require.NoError(w, err)
			require.Equal(w, 7, v)
			require.EqualValues(w, 1, r.c.Snapshot().ConsecutiveFailures)
		})
	})
}

func TestBC104_LateResultOfADetachedCallIsDropped(t *testing.T) {
	bubble(t, byDo, func(w *world) {
		r := w.r0()
		release := make(chan struct{})
		alts := 0
		v, err := r.b.DoOr(context.Background(), breaker.Detach(time.Second, func(context.Context) (int, error) {
			<-release
			return 7, errBoom
		}), func(_ context.Context, why error) (int, error) {
			alts++
			require.ErrorIs(w, why, context.DeadlineExceeded)
			return 42, nil
		})
		require.NoError(w, err)
		require.Equal(w, 42, v)
		require.Equal(w, time.Second, w.elapsed())
		w.at(5 * time.Second)
		close(release)
		synctest.Wait()
		require.Equal(w, 1, alts)
		require.EqualValues(w, 1, r.c.Snapshot().Totals.Calls)
		r.idle()
	})
	t.Run("what ends in time comes out", func(t *testing.T) {
		bubble(t, byDo, func(w *world) {
			v, err := breaker.Detach(time.Second, func(context.Context) (int, error) { return 7, errBoom })(w.Context())
			require.Equal(w, 7, v)
			require.Same(w, errBoom, err)
			require.Equal(w, "boom", panicOf(func() {
				_, _ = breaker.Detach(time.Second, func(context.Context) (int, error) { panic("boom") })(w.Context())
			}))
			_, err = breaker.Detach(time.Second, func(context.Context) (int, error) { runtime.Goexit(); return 0, nil })(w.Context())
			require.ErrorIs(w, err, breaker.ErrGoexit)
			ctx, cancel := context.WithCancel(w.Context())
			time.AfterFunc(100*time.Millisecond, cancel)
			_, err = breaker.Detach(time.Second, func(context.Context) (int, error) { <-time.After(time.Minute); return 0, nil })(ctx)
			require.ErrorIs(w, err, context.Canceled)
			w.add(time.Minute) // the function ends, and nobody minds
		})
	})
	t.Run("nonsense is an error of every call", func(t *testing.T) {
		_, err := breaker.Detach[int](time.Second, nil)(context.Background())
		require.ErrorIs(t, err, breaker.ErrNilFunc)
		for _, d := range []time.Duration{0, -1} {
			_, err = breaker.Detach(d, func(context.Context) (int, error) { return 0, nil })(context.Background())
			require.Error(t, err)
		}
	})
}

// Health checks.

func TestBC113_PassingCheckEarnsATrialOnly(t *testing.T) {
	bubble(t, byDo, func(w *world) {
		checks := 0
		r := w.r0(breaker.WithSuccessThreshold(2), breaker.WithHealthCheck(5*time.Second, func(context.Context) error { checks++; return nil }))
		r.fail(2)
		w.at(60 * time.Second)
		require.Zero(w, checks, "none while closed")
		require.EqualValues(w, 2, r.c.Snapshot().ConsecutiveFailures)
		r.fail(1)
		r.state(breaker.Open)
		w.at(65*time.Second - 1)
		r.state(breaker.Open)
		w.at(65 * time.Second)
		r.state(breaker.HalfOpen)
		require.Equal(w, 1, checks)
		require.Equal(w, "open>half-open at 1m5s: health check", r.steps()[1])
		probe := r.gate()
		w.at(80 * time.Second)
		require.Equal(w, 1, checks, "none while half-open")
		r.state(breaker.HalfOpen)
		probe.finish(nil)
		r.fail(1) // traffic says otherwise
		r.state(breaker.Open)
		w.at(85 * time.Second)
		r.state(breaker.HalfOpen)
		r.ok(2)
		r.state(breaker.Closed)
		require.EqualValues(w, 7, r.c.Snapshot().Totals.Calls, "checks are no calls")
	})
	t.Run("a failing one changes nothing", func(t *testing.T) {
		bubble(t, byDo, func(w *world) {
			checks := 0
			r := w.r0(breaker.WithHealthCheck(3*time.Second, func(context.Context) error { checks++; return errBoom }))
			r.trip()
			w.at(10*time.Second - 1)
			r.state(breaker.Open)
			require.Equal(w, 3, checks)
			w.at(time.Minute)
			require.Equal(w, 3, checks, "none once the circuit is due")
			r.ok(1)
			r.state(breaker.Closed)
		})
	})
	t.Run("one that panics, exits or hangs costs nothing else", func(t *testing.T) {
		for name, bad := range map[string]func(context.Context) error{
			"panics": func(context.Context) error { panic("check") },
			"exits":  func(context.Context) error { runtime.Goexit(); return nil },
			"hangs":  func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		} {
			t.Run(name, func(t *testing.T) {
				bubble(t, byDo, func(w *world) {
					var checks atomic.Int64
					r := w.r0(breaker.WithOpenTimeout(time.Hour), breaker.WithHealthCheck(time.Second, func(ctx context.Context) error {
						if checks.Add(1) < 3 {
							return bad(ctx)
						}
						return nil
					}))
					r.trip()
					w.at(20 * time.Second)
					r.state(breaker.HalfOpen)
					require.EqualValues(w, 3, checks.Load())
					r.ok(1)
					r.state(breaker.Closed)
				})
			})
		}
	})
}

func TestBC115_ChecksStartAndStop(t *testing.T) {
	bubble(t, byDo, func(w *world) { // which ends only when every goroutine has
		var checks atomic.Int64
		check := breaker.WithHealthCheck(time.Second, func(context.Context) error { checks.Add(1); return errBoom })
		closedFirst := w.r0(check, breaker.WithOpenTimeout(time.Hour))
		require.NoError(w, closedFirst.c.Close())
		require.NoError(w, closedFirst.c.Close())
		closedFirst.trip()
		w.at(10 * time.Second)
		require.Zero(w, checks.Load(), "closed before the first check")

		r := w.r0(check, breaker.WithOpenTimeout(time.Hour))
		r.trip()
		w.at(15*time.Second + time.Millisecond)
		require.EqualValues(w, 5, checks.Load())
		require.NoError(w, r.c.Close())
		w.at(time.Minute)
		require.EqualValues(w, 5, checks.Load())
		r.rejected()
	})
	t.Run("a check that was running when stopped changes nothing", func(t *testing.T) {
		for name, stop := range map[string]func(*rig) breaker.State{
			"closed":               func(r *rig) breaker.State { _ = r.c.Close(); return breaker.Open },
			"reset":                func(r *rig) breaker.State { r.c.Reset(); return breaker.Closed },
			"reset, tripped again": func(r *rig) breaker.State { r.c.Reset(); r.c.Trip(nil); return breaker.Open },
		} {
			t.Run(name, func(t *testing.T) {
				bubble(t, byDo, func(w *world) {
					running, finish := make(chan struct{}), make(chan struct{})
					first := true
					r := w.r0(breaker.WithOpenTimeout(time.Hour), breaker.WithHealthCheck(time.Second, func(context.Context) error {
						if first {
							first = false
							close(running)
							<-finish
							return nil
						}
						return errBoom
					}))
					r.trip()
					<-running
					want := stop(r)
					close(finish)
					w.add(2 * time.Second)
					r.state(want)
				})
			})
		}
	})
	t.Run("nothing runs while closed", func(t *testing.T) {
		defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
		c := breaker.Must(breaker.NewCircuit("test", breaker.WithHealthCheck(time.Millisecond, func(context.Context) error { return nil })))
		require.Equal(t, breaker.Closed, c.State())
		c.Trip(nil)
		require.NoError(t, c.Close())
	})
}

// Hooks.

func TestBC137_HooksMayAsk(t *testing.T) {
	everywhere(t, func(w *world) {
		var r *rig
		asked := make(map[string]int)
		ask := func(who string) {
			asked[who]++
			if asked[who] > 20 {
				return
			}
			_, _, _, _ = r.c.State(), r.c.Snapshot(), r.c.Ready(), r.c.Config()
			for range r.c.Circuits() {
			}
			_ = r.c.Configure(breaker.WithMaxInFlight(100 + asked[who]))
			if who == "StateChange" || who == "Rescue" { // a call that succeeds would end the run elsewhere
				_ = r.c.Run(context.Background(), func(context.Context) error { return nil })
			}
		}
		opts := []breaker.Option{
			breaker.WithHooks(breaker.Hooks{
				StateChange: func(breaker.Transition) { ask("StateChange") },
				Call:        func(context.Context, breaker.CallEvent) { ask("Call") },
				Reject:      func(context.Context, breaker.RejectEvent) { ask("Reject") },
				Rescue:      func(context.Context, breaker.RescueEvent) { ask("Rescue") },
			}),
			breaker.WithTrip(breaker.ConsecutiveFailures(3), breaker.TripWhen(breaker.LastCalls(5), func(breaker.Counts) bool { ask("TripWhen"); return false })),
			breaker.WithLogger(slog.New(askingHandler{slog.NewTextHandler(io.Discard, nil), func() { ask("Logger") }})),
			breaker.WithRand(func() float64 { ask("Rand"); return 0 }),
			breaker.WithOpenBackoff(2, time.Hour, 0.5),
			breaker.WithSuccessThreshold(3),
		}
		if w.way.name != byPolicy.name {
			opts = append(opts, breaker.WithClassifier(func(error) breaker.Outcome { ask("Classifier"); return breaker.Failure }))
		}
		r = w.r0(opts...)
		_ = r.call(nil)
		for range 3 {
			_ = r.call(errBoom)
		}
		r.state(breaker.Open)
		_, _ = r.b.DoOr(w.Context(), func(context.Context) (int, error) { return 1, nil }, func(context.Context, error) (int, error) { return 2, nil })
		w.add(time.Minute)
		for range 3 {
			_ = r.call(nil)
		}
		r.state(breaker.Closed)
		r.c.Trip(nil)
		r.c.OfferProbe()
		r.c.Reset()
		for _, who := range []string{"StateChange", "Call", "Reject", "Rescue", "TripWhen", "Logger", "Rand"} {
			require.Positive(w, asked[who], who)
		}
	})
	t.Run("a hook may move the state", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			var r *rig
			r = w.r0(breaker.WithHooks(breaker.Hooks{StateChange: func(t breaker.Transition) {
				if t.To == breaker.Open {
					r.c.Reset()
				}
			}}))
			for range 10 {
				r.fail(3)
				r.state(breaker.Closed)
			}
			require.Len(w, r.steps(), 20)
		})
	})
	t.Run("a clock may ask", func(t *testing.T) {
		guard(t, patience, func() {
			clk := &askingClock{}
			c := breaker.Must(breaker.NewCircuit("test", breaker.WithClock(clk), breaker.WithFailureThreshold(1)))
			clk.ask = func() { c.State(); c.Snapshot(); c.Ready() }
			_ = c.Run(context.Background(), func(context.Context) error { return errBoom })
			require.Equal(t, breaker.Open, c.State())
			require.ErrorIs(t, c.Run(context.Background(), func(context.Context) error { return nil }), breaker.ErrOpen)
		})
	})
	t.Run("an error may ask", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			r := w.r0()
			e := &askingError{ask: func() { r.c.State(); r.c.Snapshot() }}
			for range 3 {
				r.failWith(e)
			}
			r.state(breaker.Open)
			_ = r.c.Snapshot()
		})
	})
}

// askingHandler asks before it handles.
type askingHandler struct {
	slog.Handler
	ask func()
}

func (h askingHandler) Handle(ctx context.Context, r slog.Record) error {
	h.ask()
	return h.Handler.Handle(ctx, r)
}

// askingClock asks, but not while it asks.
type askingClock struct {
	asking atomic.Bool
	ask    func()
}

func (c *askingClock) Now() time.Time {
	if c.ask != nil && c.asking.CompareAndSwap(false, true) {
		defer c.asking.Store(false)
		c.ask()
	}
	return time.Unix(1000, 0)
}

func (c *askingClock) After(time.Duration) <-chan time.Time { return nil }

// askingError asks in every method.
type askingError struct {
	asking atomic.Bool
	ask    func()
}

func (e *askingError) once() {
	if e.asking.CompareAndSwap(false, true) {
		defer e.asking.Store(false)
		e.ask()
	}
}

func (e *askingError) Error() string             { e.once(); return "asking" }
func (e *askingError) Is(error) bool             { e.once(); return false }
func (e *askingError) RetryAfter() time.Duration { e.once(); return 0 }

func TestBC139_SlowHookSlowsNobodyElse(t *testing.T) {
	bothClocks(t, func(w *world) {
		hold := make(chan struct{})
		entered := make(chan struct{})
		var first sync.Once
		r := w.r0(breaker.WithHooks(breaker.Hooks{StateChange: func(breaker.Transition) {
			first.Do(func() { close(entered); <-hold })
		}}))
		other := w.r0()
		r.fail(2)
		var causing sync.WaitGroup
		causing.Go(func() { _ = r.call(errBoom) })
		<-entered
		r.state(breaker.Open)
		for range 100 {
			r.rejected()
		}
		other.ok(1)
		other.trip()
		r.c.Reset() // its event waits behind the first
		r.state(breaker.Closed)
		r.ok(1)
		r.fail(3)
		r.state(breaker.Open)
		w.add(10 * time.Second)
		r.ok(1)
		r.state(breaker.Closed)
		require.Len(w, r.steps(), 1, "this hook was given first and has had one event")
		close(hold)
		causing.Wait()
		require.Equal(w, []string{
			"closed>open at 0s: threshold reached",
			"open>closed at 0s: manual",
			"closed>open at 0s: threshold reached",
			"open>half-open at 10s: timeout expired",
			"half-open>closed at 10s: recovered",
		}, r.steps())
	})
	t.Run("who delivers does not deliver for ever", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			hold := make(chan struct{})
			entered := make(chan struct{})
			var first sync.Once
			r := w.r0(breaker.WithHooks(breaker.Hooks{StateChange: func(breaker.Transition) {
				first.Do(func() { close(entered); <-hold })
			}}))
			var causing sync.WaitGroup
			causing.Go(func() { r.c.Trip(nil) })
			<-entered
			for range 50 {
				r.c.Reset()
				r.c.Trip(nil)
			}
			close(hold)
			causing.Wait()
			all := r.events.waitFor(w, func(all []breaker.Transition) bool { return len(all) == 101 })
			for i := 1; i < len(all); i++ {
				require.Greater(w, all[i].Epoch, all[i-1].Epoch)
			}
		})
	})
	t.Run("a hook that panics or exits holds up no event", func(t *testing.T) {
		for name, misbehave := range map[string]func(){"panics": func() { panic("hook") }, "exits": runtime.Goexit} {
			for which, h := range rudeHooks(misbehave) {
				t.Run(which+" "+name, func(t *testing.T) {
					bothClocks(t, func(w *world) {
						log := &logged{}
						r := w.r0(breaker.WithHooks(h), breaker.WithLogger(slog.New(log)))
						after := newRecorder()
						r2 := w.r0(breaker.WithHooks(h), breaker.WithHooks(after.hooks()))
						for _, r := range []*rig{r, r2} {
							for range 3 {
								_ = inGoroutine(func() { _ = r.c.Run(context.Background(), func(context.Context) error { return errBoom }) })
							}
							r.state(breaker.Open)
							_ = inGoroutine(func() { _ = r.c.Run(context.Background(), func(context.Context) error { return nil }) })
							_ = inGoroutine(func() {
								_, _ = r.b.DoOr(context.Background(), func(context.Context) (int, error) { return 1, nil }, func(context.Context, error) (int, error) { return 1, nil })
							})
							require.EqualValues(w, 2, r.c.Snapshot().Totals.Rejected)
						}
						after.waitFor(w, func(all []breaker.Transition) bool { return len(all) == 1 })
						r.events.waitFor(w, func(all []breaker.Transition) bool { return len(all) == 1 })
						errorsLogged := 0
						for _, rec := range log.list() {
							if rec.Level == slog.LevelError {
								errorsLogged++
							}
						}
						require.Positive(w, errorsLogged, "it is reported to the logger")
					})
				})
			}
		}
	})
}

// What is seen from outside.

func TestBC141_GaugeFollowsTheState(t *testing.T) {
	everywhere(t, func(w *world) {
		gauge := map[breaker.State]int{breaker.Closed: 1}
		r := w.r0(breaker.WithHooks(breaker.Hooks{StateChange: func(t breaker.Transition) { gauge[t.From]--; gauge[t.To]++ }}))
		shows := func(want breaker.State) {
			w.Helper()
			r.state(want)
			for s, n := range gauge {
				if s == want {
					require.Equal(w, 1, n, "%v", s)
				} else {
					require.Zero(w, n, "%v", s)
				}
			}
		}
		shows(breaker.Closed)
		r.trip()
		shows(breaker.Open)
		w.at(10 * time.Second)
		probe := r.gate()
		shows(breaker.HalfOpen)
		probe.finish(errBoom)
		shows(breaker.Open)
		w.at(20 * time.Second)
		probe = r.gate()
		shows(breaker.HalfOpen)
		probe.finish(nil)
		shows(breaker.Closed)
		w.at(time.Hour)
		shows(breaker.Closed)
	})
}

func TestBC143_NumbersMakeSenseFromFirstToLast(t *testing.T) {
	sane := func(t require.TestingT, c *breaker.Circuit) {
		s := c.Snapshot()
		rate := s.Counts.Rate()
		require.False(t, math.IsNaN(rate) || math.IsInf(rate, 0) || rate < 0 || rate > 1, "rate %v", rate)
		require.GreaterOrEqual(t, s.InFlight, int64(0))
		text, err := json.Marshal(s)
		require.NoError(t, err)
		var back breaker.Snapshot
		require.NoError(t, json.Unmarshal(text, &back))
		again, err := json.Marshal(back)
		require.NoError(t, err)
		require.JSONEq(t, string(text), string(again))
		require.NotEmpty(t, s.String())
	}
	for name, policy := range policies() {
		t.Run(name, func(t *testing.T) {
			bothClocks(t, func(w *world) {
				r := w.r0(policy)
				sane(w, r.c)
				require.Zero(w, r.c.Snapshot().Counts.Rate())
				r.ok(1)
				r.fail(2)
				sane(w, r.c)
				w.add(24 * time.Hour)
				sane(w, r.c)
				for range 10 {
					_ = r.call(errBoom)
				}
				r.state(breaker.Open)
				sane(w, r.c)
				w.add(10 * time.Second)
				sane(w, r.c)
				r.ok(1)
				sane(w, r.c)
			})
		})
	}
	t.Run("a million calls", func(t *testing.T) {
		guard(t, patience, func() {
			c := breaker.Must(breaker.NewCircuit("test", breaker.WithTrip(breaker.FailureRate(1, 1, breaker.LastCalls(10)), breaker.FailureRate(1, 1, breaker.Last(time.Minute)))))
			n := 1_000_000
			if testing.Short() {
				n = 100_000
			}
			for range n {
				_ = c.Run(context.Background(), func(context.Context) error { return nil })
			}
			sane(t, c)
			require.EqualValues(t, n, c.Snapshot().Totals.Successes)
			require.Zero(t, c.Snapshot().InFlight)
		})
	})
	t.Run("hostile snapshots are refused", func(t *testing.T) {
		for name, s := range map[string]breaker.Snapshot{
			"unknown state":       {State: 9},
			"unknown mode":        {Mode: 9},
			"until before since":  {State: breaker.Open, Since: time.Unix(100, 0), Until: time.Unix(50, 0)},
			"huge epoch":          {Epoch: math.MaxUint64},
			"huge run":            {ConsecutiveFailures: math.MaxUint64},
			"totals do not match": {Totals: breaker.Totals{Calls: 5, Successes: 1}},
			"more late than all":  {Totals: breaker.Totals{Calls: 1, Successes: 1, Late: 2}},
			"more panics":         {Totals: breaker.Totals{Calls: 1, Successes: 1, Panics: 1}},
			"totals overflow":     {Totals: breaker.Totals{Calls: 0, Successes: math.MaxUint64, Failures: 1}},
		} {
			_, err := breaker.NewCircuit("test", breaker.WithSnapshot(s))
			require.ErrorContains(t, err, "Snapshot", name)
		}
	})
	t.Run("odd ones leave a circuit that works", func(t *testing.T) {
		far := time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
		for name, s := range map[string]breaker.Snapshot{
			"nothing":                  {},
			"in flight and probes":     {InFlight: 99, Probes: 99},
			"negative":                 {InFlight: -5, Probes: -5},
			"since the far future":     {State: breaker.Open, Since: far, Until: far},
			"until the far future":     {State: breaker.HalfOpen, Until: far},
			"progress beyond the goal": {State: breaker.HalfOpen, ConsecutiveSuccesses: 99},
			"run beyond the goal":      {State: breaker.Closed, ConsecutiveFailures: 99},
			"failure in the future":    {State: breaker.Open, LastFailure: "x", LastFailureAt: far},
		} {
			t.Run(name, func(t *testing.T) {
				bothClocks(t, func(w *world) {
					r := w.r0(breaker.WithSnapshot(s))
					sane(w, r.c)
					w.add(10 * time.Second)
					r.ok(1)
					r.state(breaker.Closed)
					r.idle()
					r.ok(10)
					r.trip()
				})
			})
		}
	})
	t.Run("in flight is right whoever looks and whenever", func(t *testing.T) {
		everywhere(t, func(w *world) {
			for _, before := range []int{0, 1, 100, 70_000} {
				if before > 1000 && testing.Short() {
					continue
				}
				r := w.r0()
				require.Zero(w, r.c.Snapshot().InFlight) // looked at from the start
				for range before {
					_ = r.c.Run(context.Background(), func(context.Context) error { return nil })
				}
				gates := []*gate{r.gate(), r.gate(), r.gate()}
				require.EqualValues(w, 3, r.c.Snapshot().InFlight, "after %d calls", before)
				gates[0].finish(nil)
				gates[1].finish(errBoom)
				require.EqualValues(w, 1, r.c.Snapshot().InFlight)
				r.c.Trip(nil)
				gates[2].finish(nil)
				r.idle()
				require.EqualValues(w, before+3, r.c.Snapshot().Totals.Calls)
			}
		})
	})
	t.Run("in flight returns to nothing when nobody looked before", func(t *testing.T) {
		everywhere(t, func(w *world) {
			for name, ends := range map[string]func(*rig, []*gate){
				"good":    func(_ *rig, g []*gate) { g[0].finish(nil); g[1].finish(nil) },
				"bad":     func(_ *rig, g []*gate) { g[0].finish(errBoom); g[1].finish(errBoom) },
				"tripped": func(r *rig, g []*gate) { r.c.Trip(nil); g[0].finish(nil); r.c.Reset(); g[1].finish(errBoom) },
				"limited": func(r *rig, g []*gate) {
					require.NoError(r, r.c.Configure(breaker.WithMaxInFlight(5)))
					g[0].finish(nil)
					r.ok(10)
					g[1].finish(errBoom)
				},
				"shadow": func(r *rig, g []*gate) {
					r.c.SetMode(breaker.Shadow)
					g[0].finish(nil)
					r.ok(3)
					r.c.SetMode(breaker.Auto)
					g[1].finish(nil)
				},
				"looked": func(r *rig, g []*gate) {
					require.GreaterOrEqual(r, r.c.Snapshot().InFlight, int64(0))
					g[0].finish(nil)
					require.GreaterOrEqual(r, r.c.Snapshot().InFlight, int64(0))
					g[1].finish(nil)
				},
			} {
				r := w.r0()
				for range 70_000 {
					_ = r.c.Run(context.Background(), func(context.Context) error { return nil })
				}
				ends(r, []*gate{r.gate(), r.gate()})
				s := r.c.Snapshot()
				require.Zero(w, s.InFlight, name)
				require.GreaterOrEqual(w, s.Totals.Calls, uint64(70_002), name)
				g := r.begin()
				if g.ran {
					require.EqualValues(w, 1, r.c.Snapshot().InFlight, name)
					g.finish(nil)
				}
				r.idle()
			}
		})
	})
	t.Run("a limit set at run time counts the calls already in flight", func(t *testing.T) {
		everywhere(t, func(w *world) {
			for _, before := range []int{0, 70_000} {
				r := w.r0()
				r.c.Snapshot() // looked at from the start
				for range before {
					_ = r.c.Run(context.Background(), func(context.Context) error { return nil })
				}
				gates := []*gate{r.gate(), r.gate()}
				require.NoError(w, r.c.Configure(breaker.WithMaxInFlight(2)))
				require.ErrorIs(w, r.call(nil), breaker.ErrTooManyInFlight, "after %d calls", before)
				gates[0].finish(nil)
				r.ok(1)
			}
		})
	})
}

// Configuration.

func TestBC144_ZeroGivenIsNotZeroMissing(t *testing.T) {
	refused := map[string]breaker.Option{
		"FailureThreshold": breaker.WithFailureThreshold(0),
		"SuccessThreshold": breaker.WithSuccessThreshold(0),
		"HalfOpenProbes":   breaker.WithHalfOpenProbes(0),
		"OpenTimeout":      breaker.WithOpenTimeout(0),
		"ProbeLease":       breaker.WithProbeLease(0),
		"Interval":         breaker.WithHealthCheck(0, func(context.Context) error { return nil }),
		"Timeout":          breaker.WithHealthCheck(1, func(context.Context) error { return nil }, breaker.HealthTimeout(0)),
		"Trip":             breaker.WithTrip(),
	}
	for name, opt := range refused {
		_, err := breaker.NewCircuit("test", opt)
		require.ErrorContains(t, err, name)
	}
	for name, opts := range map[string][]breaker.Option{
		"any spacing":   {breaker.WithFailureWindow(0)},
		"no hint":       {breaker.WithOpenHint(0)},
		"no ramp":       {breaker.WithRamp(0)},
		"no limit":      {breaker.WithMaxInFlight(0)},
		"no backoff":    {breaker.WithOpenBackoff(0, 0, 0)},
		"no jitter":     {breaker.WithOpenBackoff(1, time.Hour, 0)},
		"no timeout":    {breaker.WithTimeout(0)},
		"start at once": {breaker.WithHealthCheck(1, func(context.Context) error { return nil }, breaker.HealthJitter(0))},
	} {
		_, err := breaker.New[int]("test", opts...)
		require.NoError(t, err, name)
	}
	c := breaker.Must(breaker.NewCircuit("test", breaker.WithOpenHint(0)))
	require.Zero(t, c.Config().OpenHint, "not the default of 5m")
	t.Run("defaults that follow another option", func(t *testing.T) {
		c := breaker.Must(breaker.NewCircuit("test", breaker.WithSuccessThreshold(7), breaker.WithOpenTimeout(time.Second)))
		require.Equal(t, 7, c.Config().HalfOpenProbes)
		require.Equal(t, time.Second, c.Config().ProbeLease)
		require.NoError(t, c.Configure(breaker.WithSuccessThreshold(3), breaker.WithOpenTimeout(time.Minute)))
		require.Equal(t, 3, c.Config().HalfOpenProbes)
		require.Equal(t, time.Minute, c.Config().ProbeLease)
		require.NoError(t, c.Configure(breaker.WithHalfOpenProbes(1), breaker.WithProbeLease(time.Hour)))
		require.NoError(t, c.Configure(breaker.WithSuccessThreshold(5), breaker.WithOpenTimeout(time.Second)))
		require.Equal(t, 1, c.Config().HalfOpenProbes)
		require.Equal(t, time.Hour, c.Config().ProbeLease)
	})
	t.Run("in any order, the later of two", func(t *testing.T) {
		c := breaker.Must(breaker.NewCircuit("test", breaker.WithHalfOpenProbes(1), breaker.WithFailureThreshold(9), breaker.WithSuccessThreshold(4), breaker.WithFailureThreshold(8)))
		require.Equal(t, 8, c.Config().FailureThreshold)
		require.Equal(t, 4, c.Config().SuccessThreshold)
		require.Equal(t, 1, c.Config().HalfOpenProbes)
	})
}

func TestBC145_NonsenseIsRefused(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	check := func(context.Context) error { return nil }
	nonsense := map[string]struct {
		field string
		opt   breaker.Option
	}{
		"threshold -1":       {"FailureThreshold", breaker.WithFailureThreshold(-1)},
		"threshold huge":     {"FailureThreshold", breaker.WithFailureThreshold(math.MaxInt)},
		"window -1":          {"FailureWindow", breaker.WithFailureWindow(-1)},
		"window huge":        {"FailureWindow", breaker.WithFailureWindow(math.MaxInt64)},
		"successes -1":       {"SuccessThreshold", breaker.WithSuccessThreshold(-1)},
		"probes -1":          {"HalfOpenProbes", breaker.WithHalfOpenProbes(-1)},
		"timeout -1":         {"OpenTimeout", breaker.WithOpenTimeout(-1)},
		"timeout huge":       {"OpenTimeout", breaker.WithOpenTimeout(math.MaxInt64)},
		"hint -1":            {"OpenHint", breaker.WithOpenHint(-1)},
		"lease -1":           {"ProbeLease", breaker.WithProbeLease(-1)},
		"ramp -1":            {"Ramp", breaker.WithRamp(-1)},
		"in flight -1":       {"MaxInFlight", breaker.WithMaxInFlight(-1)},
		"mode 9":             {"Mode", breaker.WithMode(9)},
		"factor below 1":     {"Factor", breaker.WithOpenBackoff(0.5, time.Hour, 0)},
		"factor NaN":         {"Factor", breaker.WithOpenBackoff(nan, time.Hour, 0)},
		"factor Inf":         {"Factor", breaker.WithOpenBackoff(inf, time.Hour, 0)},
		"backoff max":        {"Max", breaker.WithOpenBackoff(2, time.Second, 0)},
		"jitter -1":          {"Jitter", breaker.WithOpenBackoff(2, time.Hour, -1)},
		"jitter 2":           {"Jitter", breaker.WithOpenBackoff(2, time.Hour, 2)},
		"jitter NaN":         {"Jitter", breaker.WithOpenBackoff(2, time.Hour, nan)},
		"rate 0":             {"Rate", breaker.WithTrip(breaker.FailureRate(0, 1, breaker.LastCalls(1)))},
		"rate -1":            {"Rate", breaker.WithTrip(breaker.FailureRate(-1, 1, breaker.LastCalls(1)))},
		"rate 1.01":          {"Rate", breaker.WithTrip(breaker.FailureRate(1.01, 1, breaker.LastCalls(1)))},
		"rate NaN":           {"Rate", breaker.WithTrip(breaker.FailureRate(nan, 1, breaker.LastCalls(1)))},
		"rate Inf":           {"Rate", breaker.WithTrip(breaker.FailureRate(inf, 1, breaker.LastCalls(1)))},
		"rate too small":     {"Rate", breaker.WithTrip(breaker.FailureRate(1e-9, 1, breaker.LastCalls(1)))},
		"minimum 0":          {"MinCalls", breaker.WithTrip(breaker.FailureRate(1, 0, breaker.LastCalls(1)))},
		"minimum -1":         {"MinCalls", breaker.WithTrip(breaker.FailureRate(1, -1, breaker.Last(1)))},
		"window of no calls": {"Window", breaker.WithTrip(breaker.FailureRate(1, 1, breaker.LastCalls(0)))},
		"window of -1 calls": {"LastCalls", breaker.WithTrip(breaker.FailureRate(1, 1, breaker.LastCalls(-1)))},
		"window beyond use":  {"LastCalls", breaker.WithTrip(breaker.FailureRate(1, 1, breaker.LastCalls(math.MaxInt)))},
		"window of no time":  {"Window", breaker.WithTrip(breaker.FailureRate(1, 1, breaker.Last(0)))},
		"window of -1s":      {"Last", breaker.WithTrip(breaker.FailureRate(1, 1, breaker.Last(-time.Second)))},
		"slow 0":             {"Slow", breaker.WithTrip(breaker.SlowCallRate(0, 1, 1, breaker.LastCalls(1)))},
		"slow -1":            {"Slow", breaker.WithTrip(breaker.SlowCallRate(-1, 1, 1, breaker.LastCalls(1)))},
		"slow rate 0":        {"Rate", breaker.WithTrip(breaker.SlowCallRate(1, 0, 1, breaker.LastCalls(1)))},
		"consecutive 0":      {"Failures", breaker.WithTrip(breaker.ConsecutiveFailures(0))},
		"consecutive -1":     {"Failures", breaker.WithTrip(breaker.ConsecutiveFailures(-1))},
		"consecutive huge":   {"Failures", breaker.WithTrip(breaker.ConsecutiveFailures(math.MaxInt))},
		"count 0":            {"Failures", breaker.WithTrip(breaker.FailureCount(0, time.Second))},
		"count huge":         {"Failures", breaker.WithTrip(breaker.FailureCount(math.MaxInt, time.Second))},
		"count in no time":   {"Within", breaker.WithTrip(breaker.FailureCount(1, 0))},
		"count in -1s":       {"Within", breaker.WithTrip(breaker.FailureCount(1, -time.Second))},
		"no window":          {"Window", breaker.WithTrip(breaker.TripWhen(breaker.Window{}, func(breaker.Counts) bool { return false }))},
		"zero trip":          {"Trip", breaker.WithTrip(breaker.TripCondition{})},
		"zero trip beside":   {"Trip[1]", breaker.WithTrip(breaker.ConsecutiveFailures(1), breaker.TripCondition{})},
		"check interval -1":  {"Interval", breaker.WithHealthCheck(-1, check)},
		"check timeout -1":   {"Timeout", breaker.WithHealthCheck(1, check, breaker.HealthTimeout(-1))},
		"check jitter -1":    {"Jitter", breaker.WithHealthCheck(1, check, breaker.HealthJitter(-1))},
		"a literal's zeros":  {"FailureThreshold", breaker.Config{}.Options()[0]},
	}
	if math.MaxInt == math.MaxInt32 { // as much as is allowed
		delete(nonsense, "threshold huge")
		delete(nonsense, "consecutive huge")
		delete(nonsense, "count huge")
	}
	for name, tc := range nonsense {
		t.Run(name, func(t *testing.T) {
			_, err := breaker.NewCircuit("test", tc.opt)
			require.ErrorContains(t, err, tc.field)
			_, err = breaker.New[int]("test", tc.opt)
			require.ErrorContains(t, err, tc.field)

			c := breaker.Must(breaker.NewCircuit("test", breaker.WithFailureThreshold(2), breaker.WithClock(clock.NewMock())))
			_ = c.Run(context.Background(), func(context.Context) error { return errBoom })
			before, config := c.Snapshot(), c.Config()
			require.ErrorContains(t, c.Configure(breaker.WithSuccessThreshold(9), tc.opt), tc.field)
			require.Equal(t, config, c.Config(), "nonsense changes nothing")
			require.Equal(t, before, c.Snapshot())
		})
	}
	t.Run("all that is wrong is named at once", func(t *testing.T) {
		_, err := breaker.New[int]("", breaker.WithFailureThreshold(-7), breaker.WithOpenTimeout(-1), breaker.WithTimeout(-2), breaker.WithHalfOpenProbes(-3))
		for _, part := range []string{"FailureThreshold", "-7", "OpenTimeout", "Timeout", "HalfOpenProbes", "-3", "name"} {
			require.ErrorContains(t, err, part)
		}
		joined, ok := err.(interface{ Unwrap() []error })
		require.True(t, ok, "errors.Join")
		require.GreaterOrEqual(t, len(joined.Unwrap()), 5)
	})
	t.Run("an option in the wrong place", func(t *testing.T) {
		c := breaker.Must(breaker.NewCircuit("test"))
		timeout := breaker.WithTimeout(time.Second)
		result := breaker.WithResult(func(int, error) breaker.Outcome { return breaker.Success })
		for name, opt := range map[string]breaker.Option{"Timeout": timeout, "Result": result} {
			_, err := breaker.NewCircuit("test", opt)
			require.ErrorContains(t, err, name)
			require.ErrorContains(t, c.Configure(opt), name)
		}
		for name, opt := range map[string]breaker.Option{
			"FailureThreshold": breaker.WithFailureThreshold(1), "Clock": breaker.WithClock(clock.NewMock()), "Mode": breaker.WithMode(breaker.Shadow), "Hooks": breaker.WithHooks(breaker.Hooks{}),
		} {
			_, err := breaker.Over[int](c, opt)
			require.ErrorContains(t, err, name)
		}
		for name, opt := range map[string]breaker.Option{
			"Clock": breaker.WithClock(clock.NewMock()), "Hooks": breaker.WithHooks(breaker.Hooks{}), "Snapshot": breaker.WithSnapshot(breaker.Snapshot{}),
		} {
			require.ErrorContains(t, c.Configure(opt), name)
		}
		require.Contains(t, fmt.Sprint(panicOf(func() { c.SetMode(9) })), "SetMode")
	})
	t.Run("extremes that are allowed work", func(t *testing.T) {
		everywhere(t, func(w *world) {
			const century = 100 * 365 * 24 * time.Hour
			r := w.r0(breaker.WithOpenTimeout(century), breaker.WithProbeLease(century), breaker.WithRamp(century), breaker.WithOpenHint(century), breaker.WithFailureThreshold(1))
			r.trip()
			require.Equal(w, century, r.rejected().RetryAfter())
			r.c.OfferProbe()
			r.gate()
			require.Equal(w, century, r.rejected().RetryAfter())
		})
	})
}

func TestBC147_RebuildingDoesNotForget(t *testing.T) {
	everywhere(t, func(w *world) {
		r := w.r0()
		r.trip()
		w.at(2 * time.Second)
		require.NoError(w, r.c.Configure(breaker.WithOpenTimeout(time.Minute), breaker.WithFailureThreshold(4)))
		r.state(breaker.Open)
		require.Equal(w, 8*time.Second, r.rejected().RetryAfter())
		require.Len(w, r.steps(), 1, "a reload is no transition")
		w.at(10 * time.Second)
		r.fail(1)
		require.Equal(w, time.Minute, r.rejected().RetryAfter())
		require.EqualValues(w, 4, r.c.Snapshot().Totals.Failures)
	})
	t.Run("half-open, with its progress and its probe", func(t *testing.T) {
		everywhere(t, func(w *world) {
			r := w.r0(breaker.WithSuccessThreshold(3), breaker.WithHalfOpenProbes(2))
			r.trip()
			w.at(10 * time.Second)
			r.ok(1)
			probe := r.gate()
			require.NoError(w, r.c.Configure(breaker.WithHalfOpenProbes(1)))
			require.ErrorIs(w, r.rejected(), breaker.ErrTooManyProbes)
			probe.finish(nil)
			r.ok(1)
			r.state(breaker.Closed)
		})
	})
	t.Run("counts stay while their window does", func(t *testing.T) {
		const minute = time.Minute
		for name, tc := range map[string]struct {
			before, after breaker.Option
			left          int // failures that are then missing
		}{
			"run, lower":            {breaker.WithFailureThreshold(5), breaker.WithFailureThreshold(4), 1},
			"run, higher":           {breaker.WithFailureThreshold(5), breaker.WithFailureThreshold(9), 6},
			"failure window":        {join(breaker.WithFailureThreshold(5), breaker.WithFailureWindow(minute)), breaker.WithFailureThreshold(9), 6},
			"failure window, lower": {join(breaker.WithFailureThreshold(5), breaker.WithFailureWindow(minute)), breaker.WithFailureThreshold(4), 1},
			"failure count":         {breaker.WithTrip(breaker.FailureCount(5, minute)), breaker.WithTrip(breaker.FailureCount(9, minute)), 6},
			"failure count, lower":  {breaker.WithTrip(breaker.FailureCount(5, minute)), breaker.WithTrip(breaker.FailureCount(4, minute)), 1},
			"rate in time":          {breaker.WithTrip(breaker.FailureRate(1, 5, breaker.Last(minute))), breaker.WithTrip(breaker.FailureRate(1, 9, breaker.Last(minute))), 6},
			"rate of calls":         {breaker.WithTrip(breaker.FailureRate(1, 5, breaker.LastCalls(10))), breaker.WithTrip(breaker.FailureRate(1, 9, breaker.LastCalls(10))), 6},
			"something else":        {breaker.WithTrip(breaker.FailureRate(1, 5, breaker.LastCalls(10))), breaker.WithOpenTimeout(time.Hour), 2},
			"a rule more":           {breaker.WithTrip(breaker.FailureRate(1, 5, breaker.LastCalls(10))), breaker.WithTrip(breaker.FailureRate(1, 5, breaker.LastCalls(10)), breaker.FailureCount(100, minute)), 2},
			"a rule more, in time":  {breaker.WithTrip(breaker.FailureRate(1, 5, breaker.LastCalls(10))), breaker.WithTrip(breaker.FailureRate(1, 5, breaker.LastCalls(10)), breaker.FailureRate(1, 100, breaker.Last(minute))), 2},
			"another window":        {breaker.WithTrip(breaker.FailureRate(1, 5, breaker.LastCalls(10))), breaker.WithTrip(breaker.FailureRate(1, 5, breaker.LastCalls(11))), 5},
		} {
			t.Run(name, func(t *testing.T) {
				everywhere(t, func(w *world) {
					r := w.r0(tc.before)
					r.fail(3)
					require.NoError(w, r.c.Configure(tc.after))
					r.fail(tc.left - 1)
					r.state(breaker.Closed)
					r.fail(1)
					r.state(breaker.Open)
				})
			})
		}
	})
	t.Run("views share the circuit", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			r := w.r0()
			texts := breaker.Must(breaker.Over[string](r.c))
			again := breaker.Must(breaker.Over[int](r.c, breaker.WithTimeout(time.Hour)))
			_, _ = texts.Do(w.Context(), func(context.Context) (string, error) { return "", errBoom })
			_, _ = again.Do(w.Context(), func(context.Context) (int, error) { return 0, errBoom })
			r.fail(1)
			_, err := texts.Do(w.Context(), func(context.Context) (string, error) { return "", nil })
			require.ErrorIs(w, err, breaker.ErrOpen)
			require.Same(w, r.c, texts.Circuit())
			require.NoError(w, texts.Close())
			require.Equal(w, "test", again.Name())
		})
	})
	t.Run("a reload does not undo an operator's mode", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			r := w.r0()
			r.c.SetMode(breaker.ForcedOpen)
			require.NoError(w, r.c.Configure(breaker.WithMode(breaker.Auto), breaker.WithFailureThreshold(4)))
			r.rejected()
			require.NoError(w, r.c.Configure(breaker.WithMode(breaker.Shadow)))
			r.ok(1)
		})
	})
	t.Run("applying what is in force changes nothing", func(t *testing.T) {
		bothClocks(t, func(w *world) {
			for name, policy := range policies() {
				r := w.r0(policy, breaker.WithOpenBackoff(2, time.Hour, 0), breaker.WithMaxInFlight(50))
				r.fail(9)
				config := r.c.Config()
				require.NoError(w, r.c.Configure(config.Options()...))
				require.Equal(w, config, r.c.Config())
				r.state(breaker.Closed)
				r.fail(1)
				require.Equal(w, breaker.Open, r.c.State(), name)
			}
		})
	})
	t.Run("another health check takes over", func(t *testing.T) {
		bubble(t, byDo, func(w *world) {
			var old, now atomic.Int64
			r := w.r0(breaker.WithOpenTimeout(time.Hour), breaker.WithHealthCheck(time.Second, func(context.Context) error { old.Add(1); return errBoom }))
			r.trip()
			w.at(1500 * time.Millisecond)
			require.EqualValues(w, 1, old.Load())
			require.NoError(w, r.c.Configure(breaker.WithHealthCheck(time.Second, func(context.Context) error { now.Add(1); return errBoom })))
			w.at(10 * time.Second)
			require.LessOrEqual(w, old.Load(), int64(2))
			require.Positive(w, now.Load())
		})
	})
}

// join makes one option of two.
func join(opts ...breaker.Option) breaker.Option {
	d := breaker.Must(breaker.NewCircuit("join", opts...)).Config()
	return d.Options()[0]
}
