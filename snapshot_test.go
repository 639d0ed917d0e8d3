package breaker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/breakertest"
)

// cfgR0 trips on 3 failures for 10s; one probe closes it.
func cfgR0(t testing.TB, opts ...breaker.Option) (*breaker.Circuit, *clock.Mock) {
	t.Helper()
	clk := cfgClock()
	return cfgR0On(t, clk, opts...), clk
}

func cfgR0On(t testing.TB, clk breaker.Clock, opts ...breaker.Option) *breaker.Circuit {
	t.Helper()
	return cfgCircuit(t, append([]breaker.Option{
		breaker.WithClock(clk), breaker.WithFailureThreshold(3), breaker.WithSuccessThreshold(1), breaker.WithOpenTimeout(10 * time.Second),
	}, opts...)...)
}

// cfgThroughJSON is a snapshot written to a file and read again.
func cfgThroughJSON(t testing.TB, s breaker.Snapshot) (back breaker.Snapshot) {
	t.Helper()
	text, err := json.Marshal(s)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &back))
	return back
}

// cfgReborn is the circuit in a process that was started later, from a snapshot in a file.
func cfgReborn(t testing.TB, c *breaker.Circuit, clk breaker.Clock, opts ...breaker.Option) *breaker.Circuit {
	t.Helper()
	return cfgR0On(t, clk, append(opts, breaker.WithSnapshot(cfgThroughJSON(t, c.Snapshot())))...)
}

func cfgOpened(t testing.TB) (*breaker.Circuit, *clock.Mock) {
	t.Helper()
	c, clk := cfgR0(t)
	cfgCall(c, 3, errCfgDown)
	require.Equal(t, breaker.Open, c.State())
	return c, clk
}

// O01.
func TestSnapshotOfAFreshCircuit(t *testing.T) {
	c, clk := cfgR0(t)
	require.Equal(t, breaker.Snapshot{Name: "c", Epoch: 1, Since: clk.Now()}, c.Snapshot())
	text, err := json.Marshal(c.Snapshot())
	require.NoError(t, err)
	require.JSONEq(t, `{"name": "c", "state": "closed", "mode": "auto", "epoch": 1, "since": "2030-01-01T00:00:00Z",
		"in_flight": 0, "probes": 0, "consecutive_failures": 0, "consecutive_successes": 0,
		"counts": {"successes": 0, "failures": 0, "ignored": 0, "slow": 0, "consecutive_failures": 0, "consecutive_successes": 0},
		"totals": {"calls": 0, "successes": 0, "failures": 0, "ignored": 0, "rejected": 0, "late": 0, "slow": 0, "panics": 0, "retries": 0}}`, string(text))
	require.Equal(t, "c: closed (auto), 0 in flight, 0 calls, 0 failures, 0 rejected", c.Snapshot().String())
}

func TestSnapshotThroughTheStates(t *testing.T) {
	c, clk := cfgR0(t, breaker.WithSuccessThreshold(2))
	start := clk.Now()
	cfgCall(c, 2, nil)
	clk.Add(time.Second)
	cfgCall(c, 2, errCfgDown)
	two := breaker.Counts{Successes: 2, Failures: 2, ConsecutiveFailures: 2}
	require.Equal(t, breaker.Snapshot{
		Name: "c", Epoch: 1, Since: start, ConsecutiveFailures: 2, Counts: two,
		Totals:      breaker.Totals{Calls: 4, Successes: 2, Failures: 2},
		LastFailure: "down", LastFailureAt: start.Add(time.Second),
	}, c.Snapshot())

	clk.Add(time.Second)
	cfgCall(c, 1, errors.New("worse"))
	cfgCall(c, 4, nil) // rejected
	open := breaker.Snapshot{
		Name: "c", State: breaker.Open, Epoch: 2, Since: start.Add(2 * time.Second), Until: start.Add(12 * time.Second), Openings: 1,
		Totals:      breaker.Totals{Calls: 5, Successes: 2, Failures: 3, Rejected: 4},
		LastFailure: "worse", LastFailureAt: start.Add(2 * time.Second),
	}
	require.Equal(t, open, c.Snapshot())

	clk.Add(10 * time.Second)
	due := open
	due.State, due.Since, due.Until = breaker.HalfOpen, open.Until, time.Time{}
	require.Equal(t, due, c.Snapshot(), "the period has ended, though nobody has called")

	p, err := c.Acquire(context.Background())
	require.NoError(t, err)
	half := c.Snapshot()
	require.Equal(t, breaker.HalfOpen, half.State)
	require.EqualValues(t, 3, half.Epoch)
	require.EqualValues(t, 1, half.InFlight)
	require.EqualValues(t, 1, half.Probes)
	require.Equal(t, start.Add(12*time.Second), half.Since)
	require.Zero(t, half.Until)
	require.Equal(t, "worse", half.LastFailure, "the run has not ended")
	p.Done(nil)
	half = c.Snapshot()
	require.Equal(t, breaker.HalfOpen, half.State)
	require.EqualValues(t, 1, half.ConsecutiveSuccesses)
	require.Zero(t, half.Probes)
	require.Empty(t, half.LastFailure, "a success that counts has ended it")

	clk.Add(time.Second)
	cfgCall(c, 1, nil)
	require.Equal(t, breaker.Snapshot{
		Name: "c", Epoch: 4, Since: start.Add(13 * time.Second), Openings: 1,
		Totals: breaker.Totals{Calls: 7, Successes: 4, Failures: 3, Rejected: 4},
	}, c.Snapshot())

	c.SetMode(breaker.ForcedOpen)
	require.Equal(t, breaker.ForcedOpen, c.Snapshot().Mode)
	require.Equal(t, breaker.Closed, c.Snapshot().State, "the mode stands apart")
	require.EqualValues(t, 4, c.Snapshot().Epoch)
}

func TestSnapshotThroughJSON(t *testing.T) {
	for name, prepare := range map[string]func(*breaker.Circuit, *clock.Mock){
		"closed":    func(c *breaker.Circuit, _ *clock.Mock) { cfgCall(c, 3, nil); cfgCall(c, 2, errCfgDown) },
		"open":      func(c *breaker.Circuit, _ *clock.Mock) { cfgCall(c, 3, errCfgDown); cfgCall(c, 7, nil) },
		"due":       func(c *breaker.Circuit, clk *clock.Mock) { cfgCall(c, 3, errCfgDown); clk.Add(time.Minute) },
		"half-open": func(c *breaker.Circuit, clk *clock.Mock) { c.Trip(errCfgDown); c.OfferProbe(); clk.Add(1) },
		"a probe is out": func(c *breaker.Circuit, _ *clock.Mock) {
			c.Trip(nil)
			c.OfferProbe()
			_, _ = c.Acquire(context.Background())
		},
		"forced":            func(c *breaker.Circuit, _ *clock.Mock) { c.SetMode(breaker.ForcedClosed); cfgCall(c, 9, errCfgDown) },
		"text with escapes": func(c *breaker.Circuit, _ *clock.Mock) { cfgCall(c, 1, errors.New("a \"b\"\n\x00é\xff")) },
		"rescues": func(c *breaker.Circuit, _ *clock.Mock) {
			b := breaker.Must(breaker.Over[int](c))
			_, _ = b.DoOr(context.Background(), func(context.Context) (int, error) { return 0, errCfgDown },
				func(context.Context, error) (int, error) { return 1, nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, clk := cfgR0(t)
			prepare(c, clk)
			s := c.Snapshot()
			back := cfgThroughJSON(t, s)
			if name == "text with escapes" { // JSON has no invalid UTF-8
				s.LastFailure = "a \"b\"\n\x00é\uFFFD"
			}
			require.Equal(t, s, back)
		})
	}
	t.Run("by the default clock", func(t *testing.T) {
		c := cfgCircuit(t)
		c.Trip(errCfgDown)
		s := c.Snapshot()
		back := cfgThroughJSON(t, s)
		require.True(t, back.Until.Equal(s.Until))
		require.True(t, back.Since.Equal(s.Since))
		back.Since, back.Until, back.LastFailureAt = s.Since, s.Until, s.LastFailureAt
		require.Equal(t, s, back)
	})
	t.Run("states in other spellings", func(t *testing.T) {
		var s breaker.Snapshot
		require.NoError(t, json.Unmarshal([]byte(`{"state": "HALF_OPEN", "mode": "Forced_Open"}`), &s))
		require.Equal(t, breaker.HalfOpen, s.State)
		require.Equal(t, breaker.ForcedOpen, s.Mode)
		require.ErrorContains(t, json.Unmarshal([]byte(`{"state": "ajar"}`), &s), `breaker: State: "ajar" is none of closed, half-open, open`)
		require.ErrorContains(t, json.Unmarshal([]byte(`{"mode": "open"}`), &s), `breaker: Mode: "open" is none of auto, forced-open, forced-closed, shadow`)
		require.Error(t, json.Unmarshal([]byte(`{"epoch": -1}`), &s))
		_, err := json.Marshal(breaker.Snapshot{State: 9})
		require.ErrorContains(t, err, "breaker: State: unknown value 9")
	})
}

// BC-13.
func TestARestoredOpenPeriodHasAgedMeanwhile(t *testing.T) {
	c, clk := cfgOpened(t)
	saved := c.Snapshot()

	clk.Add(5 * time.Second)
	d := cfgReborn(t, c, clk)
	require.Equal(t, breaker.Open, d.State())
	require.Equal(t, 5*time.Second, cfgLeft(t, d))
	s := d.Snapshot()
	require.Equal(t, saved.Since, s.Since)
	require.Equal(t, saved.Until, s.Until)
	require.Equal(t, saved.Epoch, s.Epoch)
	require.Equal(t, "down", s.LastFailure)
	require.Equal(t, saved.LastFailureAt, s.LastFailureAt)
	require.ErrorIs(t, cfgNext(clk, 5*time.Second-1, d, nil), breaker.ErrOpen)
	require.NoError(t, cfgNext(clk, 1, d, nil))
	require.Equal(t, breaker.Closed, d.State())

	clk.Add(50 * time.Second)
	d = cfgCircuit(t, breaker.WithClock(clk), breaker.WithSnapshot(saved))
	require.Equal(t, breaker.HalfOpen, d.State(), "long over")
	require.NoError(t, cfgCall(d, 1, nil), "a probe at once")
}

func TestARestoredRejectionTellsItsCause(t *testing.T) {
	c, clk := cfgOpened(t)
	d := cfgReborn(t, c, clk)
	var open *breaker.OpenError
	require.ErrorAs(t, cfgCall(d, 1, nil), &open)
	require.EqualError(t, open.Cause, "down")
	require.Equal(t, breaker.Open, open.State)
	require.Equal(t, c.Snapshot().Until, open.Until)
}

// Clocks of two processes disagree, files are edited: a circuit is never open for longer than the period was long.
// BC-13.
func TestARestoredPeriodIsNeverLongerThanItWas(t *testing.T) {
	for _, off := range []time.Duration{time.Second, time.Hour, 24 * 365 * time.Hour, 200 * 24 * 365 * time.Hour} {
		c, _ := cfgOpened(t)
		early := clock.NewMock()
		early.Set(c.Snapshot().Since.Add(-off))
		d := cfgReborn(t, c, early)
		require.Equal(t, 10*time.Second, cfgLeft(t, d), "the clock is %v behind", off)
		require.False(t, d.Snapshot().Since.After(early.Now()))
		require.ErrorIs(t, cfgNext(early, 10*time.Second-1, d, nil), breaker.ErrOpen)
		require.NoError(t, cfgNext(early, 1, d, nil))
	}
	t.Run("new settings do not shorten it", func(t *testing.T) {
		c, clk := cfgOpened(t)
		d := cfgReborn(t, c, clk, breaker.WithOpenTimeout(time.Second))
		require.Equal(t, 10*time.Second, cfgLeft(t, d))
	})
	t.Run("without Since", func(t *testing.T) {
		clk := cfgClock()
		d := cfgR0On(t, clk, breaker.WithSnapshot(breaker.Snapshot{State: breaker.Open, Until: clk.Now().Add(7 * time.Second)}))
		require.Equal(t, 7*time.Second, cfgLeft(t, d))
	})
	t.Run("without any time", func(t *testing.T) {
		d := cfgR0On(t, cfgClock(), breaker.WithSnapshot(breaker.Snapshot{State: breaker.Open}))
		require.Equal(t, breaker.HalfOpen, d.State(), "due at once")
		require.NoError(t, cfgCall(d, 1, nil))
	})
	t.Run("an Until in the far future", func(t *testing.T) {
		clk := cfgClock()
		for _, until := range []time.Time{clk.Now().Add(math.MaxInt64), time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)} {
			d := cfgR0On(t, clk, breaker.WithSnapshot(breaker.Snapshot{State: breaker.Open, Since: clk.Now(), Until: until}))
			left := cfgLeft(t, d)
			require.Greater(t, left, time.Duration(0))
			require.LessOrEqual(t, left, time.Duration(1<<62))
			d.Reset()
			require.NoError(t, cfgCall(d, 1, nil), "an operator can close it")
		}
	})
}

// BC-52: zero is a time like any other.
func TestSnapshotsAtTimeZero(t *testing.T) {
	for _, start := range []time.Time{{}, time.Unix(0, 0).UTC(), time.Unix(-1, 0).UTC(), {}} {
		clk := &cfgManual{now: start}
		c := cfgR0On(t, clk)
		cfgCall(c, 3, errCfgDown)
		s := c.Snapshot()
		require.Equal(t, start, s.Since)
		require.Equal(t, start.Add(10*time.Second), s.Until)
		require.Equal(t, start, s.LastFailureAt)
		clk.add(4 * time.Second)
		d := cfgReborn(t, c, clk)
		require.Equal(t, breaker.Open, d.State())
		require.Equal(t, 6*time.Second, cfgLeft(t, d))
		clk.add(6 * time.Second)
		require.NoError(t, cfgCall(d, 1, nil))
		require.Equal(t, breaker.Closed, d.State())
	}
}

// BC-13.
func TestARestoredClosedCircuitGoesOnWithItsRun(t *testing.T) {
	c, clk := cfgR0(t)
	cfgCall(c, 5, nil)
	clk.Add(time.Second)
	cfgCall(c, 2, errCfgDown)
	failed := clk.Now()
	clk.Add(time.Second)

	d := cfgReborn(t, c, clk)
	s := d.Snapshot()
	require.Equal(t, breaker.Closed, s.State)
	require.EqualValues(t, 2, s.ConsecutiveFailures)
	require.Equal(t, c.Snapshot().Totals, s.Totals)
	require.Equal(t, "down", s.LastFailure)
	require.Equal(t, failed, s.LastFailureAt)
	require.Equal(t, c.Snapshot().Since, s.Since)
	cfgCall(d, 1, errCfgDown)
	require.Equal(t, breaker.Open, d.State(), "the third in a row")
	require.EqualValues(t, 2, d.Snapshot().Epoch, "epochs go on too")

	t.Run("a success ends it", func(t *testing.T) {
		d := cfgReborn(t, c, clk)
		cfgCall(d, 1, nil)
		s := d.Snapshot()
		require.Zero(t, s.ConsecutiveFailures)
		require.Empty(t, s.LastFailure)
		require.Zero(t, s.LastFailureAt)
		cfgCall(d, 2, errCfgDown)
		require.Equal(t, breaker.Closed, d.State())
	})
	t.Run("a run that new settings would not have borne", func(t *testing.T) {
		d := cfgReborn(t, c, clk, breaker.WithFailureThreshold(1))
		require.Equal(t, breaker.Closed, d.State())
		require.NoError(t, cfgCall(d, 1, nil))
		require.Equal(t, breaker.Closed, d.State())
		cfgCall(d, 1, errCfgDown)
		require.Equal(t, breaker.Open, d.State())
	})
	t.Run("under a failure window", func(t *testing.T) {
		d := cfgReborn(t, c, clk, breaker.WithFailureWindow(time.Minute))
		require.EqualValues(t, 2, d.Snapshot().ConsecutiveFailures)
		require.NoError(t, cfgCall(cfgReborn(t, d, clk, breaker.WithFailureWindow(time.Minute)), 1, nil))
		cfgCall(d, 1, errCfgDown)
		require.Equal(t, breaker.Open, d.State())

		later := cfgR0On(t, clk, breaker.WithFailureWindow(2*time.Second), breaker.WithSnapshot(c.Snapshot()))
		clk.Add(time.Second)
		require.Zero(t, later.Snapshot().ConsecutiveFailures, "it ages from the last failure on")
		cfgCall(later, 2, errCfgDown)
		require.Equal(t, breaker.Closed, later.State())
	})
	t.Run("what lay in a window is not restored", func(t *testing.T) {
		policy := breaker.WithTrip(breaker.FailureRate(0.5, 4, breaker.Last(time.Minute)))
		c := cfgR0On(t, clk, policy)
		cfgCall(c, 3, errCfgDown)
		d := cfgReborn(t, c, clk, policy)
		require.Zero(t, d.Snapshot().Counts.Failures)
		cfgCall(d, 3, errCfgDown)
		require.Equal(t, breaker.Closed, d.State())
		cfgCall(d, 1, errCfgDown)
		require.Equal(t, breaker.Open, d.State())
	})
}

// BC-13.
func TestARestoredHalfOpenCircuitGoesOn(t *testing.T) {
	prepare := func() (*breaker.Circuit, *clock.Mock) {
		c, clk := cfgR0(t, breaker.WithSuccessThreshold(3), breaker.WithHalfOpenProbes(1))
		cfgCall(c, 3, errCfgDown)
		clk.Add(10 * time.Second)
		cfgCall(c, 2, nil)
		_, err := c.Acquire(context.Background()) // the process dies with a probe out
		require.NoError(t, err)
		return c, clk
	}
	three := []breaker.Option{breaker.WithSuccessThreshold(3), breaker.WithHalfOpenProbes(1)}
	t.Run("success", func(t *testing.T) {
		c, clk := prepare()
		d := cfgReborn(t, c, clk, three...)
		s := d.Snapshot()
		require.Equal(t, breaker.HalfOpen, s.State)
		require.EqualValues(t, 2, s.ConsecutiveSuccesses)
		require.Zero(t, s.Probes, "its slot died with it")
		require.Zero(t, s.InFlight)
		require.NoError(t, cfgCall(d, 1, nil))
		require.Equal(t, breaker.Closed, d.State())
	})
	t.Run("failure", func(t *testing.T) {
		c, clk := prepare()
		d := cfgReborn(t, c, clk, three...)
		cfgCall(d, 1, errCfgDown)
		require.Equal(t, 10*time.Second, cfgLeft(t, d))
	})
	t.Run("a lower threshold", func(t *testing.T) {
		c, clk := prepare()
		d := cfgReborn(t, c, clk, breaker.WithSuccessThreshold(1))
		require.Equal(t, breaker.HalfOpen, d.State(), "restoring moves nothing")
		require.NoError(t, cfgCall(d, 1, nil))
		require.Equal(t, breaker.Closed, d.State())
	})
	t.Run("an open period that ended unnoticed", func(t *testing.T) {
		c, clk := cfgOpened(t)
		clk.Add(time.Minute)
		d := cfgReborn(t, c, clk)
		require.Equal(t, breaker.HalfOpen, d.State())
		require.NoError(t, cfgCall(d, 1, nil))
		require.Equal(t, breaker.Closed, d.State())
	})
}

// BC-13.
func TestARestoredMode(t *testing.T) {
	c, clk := cfgR0(t)
	c.SetMode(breaker.ForcedOpen)
	require.Equal(t, breaker.ForcedOpen, cfgReborn(t, c, clk).Snapshot().Mode)
	require.ErrorIs(t, cfgCall(cfgReborn(t, c, clk), 1, nil), breaker.ErrOpen)
	d := cfgReborn(t, c, clk, breaker.WithMode(breaker.Auto))
	require.Equal(t, breaker.Auto, d.Snapshot().Mode, "WithMode is given")
	require.NoError(t, cfgCall(d, 1, nil))

	// A reload compares with the configuration, not with the snapshot.
	d = cfgReborn(t, c, clk)
	require.NoError(t, d.Configure(breaker.WithMode(breaker.Auto)))
	require.Equal(t, breaker.ForcedOpen, d.Snapshot().Mode)
}

// The backoff of a restored open circuit goes on from its first opening at least.
func TestARestoredOpenCircuitBacksOff(t *testing.T) {
	c, clk := cfgOpened(t)
	d := cfgReborn(t, c, clk, breaker.WithOpenBackoff(2, time.Minute, 0))
	clk.Add(10 * time.Second)
	cfgCall(d, 1, errCfgDown)
	require.Equal(t, 20*time.Second, cfgLeft(t, d))
}

// What has made the open period grow so far is in the snapshot, in whatever state that was taken.
func TestARestoredBackoffGoesOnGrowing(t *testing.T) {
	backoff := breaker.WithOpenBackoff(2, time.Hour, 0)
	fifth := func() (*breaker.Circuit, *clock.Mock) {
		c, clk := cfgR0(t, backoff, breaker.WithOpenTimeout(time.Second))
		cfgCall(c, 3, errCfgDown)
		for _, period := range []time.Duration{1, 2, 4, 8} {
			clk.Add(period * time.Second)
			cfgCall(c, 1, errCfgDown)
		}
		require.Equal(t, 16*time.Second, cfgLeft(t, c))
		require.EqualValues(t, 5, c.Snapshot().Openings)
		return c, clk
	}
	reborn := func(c *breaker.Circuit, clk *clock.Mock) *breaker.Circuit {
		return cfgReborn(t, c, clk, backoff, breaker.WithOpenTimeout(time.Second))
	}
	t.Run("from an open period", func(t *testing.T) {
		c, clk := fifth()
		d := reborn(c, clk)
		require.Equal(t, c.Snapshot(), d.Snapshot())
		clk.Add(16 * time.Second)
		cfgCall(d, 1, errCfgDown)
		require.Equal(t, 32*time.Second, cfgLeft(t, d))
	})
	t.Run("from the end of one", func(t *testing.T) {
		c, clk := fifth()
		clk.Add(16 * time.Second)
		d := reborn(c, clk)
		cfgCall(d, 1, errCfgDown)
		require.Equal(t, 32*time.Second, cfgLeft(t, d))
	})
	t.Run("from a short recovery", func(t *testing.T) {
		c, clk := fifth()
		clk.Add(16 * time.Second)
		cfgCall(c, 1, nil)
		d := reborn(c, clk)
		require.Equal(t, breaker.Closed, d.State())
		cfgCall(d, 3, errCfgDown)
		require.Equal(t, 32*time.Second, cfgLeft(t, d))
	})
	t.Run("from a recovery that has lasted", func(t *testing.T) {
		c, clk := fifth()
		clk.Add(16 * time.Second)
		cfgCall(c, 1, nil)
		d := reborn(c, clk)
		clk.Add(time.Second)
		cfgCall(d, 3, errCfgDown)
		require.Equal(t, time.Second, cfgLeft(t, d), "it starts over")
	})
	t.Run("from a snapshot that does not say", func(t *testing.T) {
		c, clk := fifth()
		s := c.Snapshot()
		s.Openings = 0
		d := cfgR0On(t, clk, backoff, breaker.WithOpenTimeout(time.Second), breaker.WithSnapshot(s))
		clk.Add(16 * time.Second)
		cfgCall(d, 1, errCfgDown)
		require.Equal(t, 2*time.Second, cfgLeft(t, d), "this one at least is known")
	})
}

// BC-13.
func TestARestoredOpenCircuitIsChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cfgCircuit(t)
		c.Trip(nil)
		d := cfgCircuit(t, breaker.WithSnapshot(cfgThroughJSON(t, c.Snapshot())), breaker.WithHealthCheck(time.Second, cfgHealthy))
		time.Sleep(time.Second) // the bubble's
		synctest.Wait()
		require.Equal(t, breaker.HalfOpen, d.State(), "20s before its time")
		require.NoError(t, d.Close())
	})
}

func TestRestoredTransitionsGoOnCounting(t *testing.T) {
	c, clk := cfgOpened(t)
	var seen []uint64
	d := cfgReborn(t, c, clk, breaker.WithHooks(breaker.Hooks{StateChange: func(tr breaker.Transition) { seen = append(seen, tr.Epoch) }}))
	require.Empty(t, seen, "restoring is no change")
	clk.Add(10 * time.Second)
	cfgCall(d, 1, nil)
	require.Equal(t, []uint64{3, 4}, seen)
}

// BC-143.
func TestBadSnapshotsAreRefused(t *testing.T) {
	at := cfgClock().Now()
	totals := func(tot breaker.Totals) breaker.Snapshot { return breaker.Snapshot{Totals: tot} }
	for _, tt := range []struct {
		in   breaker.Snapshot
		want string
	}{
		{breaker.Snapshot{State: 3}, "Snapshot.State: must be a State, got 3"},
		{breaker.Snapshot{Mode: 4}, "Snapshot.Mode: must be a Mode, got 4"},
		{breaker.Snapshot{State: breaker.Open, Since: at, Until: at.Add(-1)}, "Snapshot.Until: must not be before Since (" + at.String() + "), got " + at.Add(-1).String()},
		{breaker.Snapshot{State: breaker.Open, Since: at}, "Snapshot.Until: must not be before Since (" + at.String() + "), got 0001-01-01 00:00:00 +0000 UTC"},
		{breaker.Snapshot{Epoch: math.MaxUint64}, "Snapshot.Epoch: must be at most "},
		{breaker.Snapshot{ConsecutiveFailures: math.MaxUint64}, "Snapshot.ConsecutiveFailures: must be at most 2147483647, got 18446744073709551615"},
		{breaker.Snapshot{State: breaker.HalfOpen, ConsecutiveSuccesses: 1 << 31}, "Snapshot.ConsecutiveSuccesses: must be at most 2147483647, got 2147483648"},
		{breaker.Snapshot{Openings: 1 << 32}, "Snapshot.Openings: must be at most 4294967295, got 4294967296"},
		{totals(breaker.Totals{Rescues: map[breaker.Rescue]uint64{"cache": math.MaxUint64}}), `Snapshot.Totals.Rescues: must each be at most 1152921504606846976, got 18446744073709551615 of "cache"`},
		{totals(breaker.Totals{Calls: 5}), "Snapshot.Totals.Calls: must be Successes + Failures + Ignored (0), got 5"},
		{totals(breaker.Totals{Successes: 1, Failures: 1, Ignored: 1}), "Snapshot.Totals.Calls: must be Successes + Failures + Ignored (3), got 0"},
		{totals(breaker.Totals{Late: 1}), "Snapshot.Totals: must have no more Late (1)"},
		{totals(breaker.Totals{Slow: 1}), "Slow (1)"},
		{totals(breaker.Totals{Calls: 1, Successes: 1, Panics: 1}), "Panics (1) than Failures (0)"},
	} {
		c, err := breaker.NewCircuit("c", breaker.WithSnapshot(tt.in))
		require.Nil(t, c, tt.want)
		require.Len(t, cfgLines(err), 1, tt.want)
		require.ErrorContains(t, err, "breaker: Snapshot.")
		require.ErrorContains(t, err, tt.want)
	}
	_, err := breaker.NewCircuit("", breaker.WithSnapshot(breaker.Snapshot{
		State: 3, Mode: 4, Epoch: math.MaxUint64, ConsecutiveFailures: math.MaxUint64, Totals: breaker.Totals{Calls: 1, Late: 2},
	}), breaker.WithRamp(-1))
	require.Len(t, cfgLines(err), 8, "all at once: %v", err)
}

// A sum that wraps around is no account either.
func TestSnapshotTotalsThatOverflowAreRefused(t *testing.T) {
	for _, tot := range []breaker.Totals{
		{Successes: math.MaxUint64, Failures: 1},
		{Successes: math.MaxUint64, Failures: math.MaxUint64, Ignored: 2},
	} {
		_, err := breaker.NewCircuit("c", breaker.WithSnapshot(breaker.Snapshot{Totals: tot}))
		require.ErrorContains(t, err, "Snapshot.Totals", "%+v", tot)
	}
	c, err := breaker.NewCircuit("c", breaker.WithSnapshot(breaker.Snapshot{Totals: breaker.Totals{
		Calls: math.MaxUint64, Successes: math.MaxUint64, Rejected: math.MaxUint64}}))
	if err != nil {
		return
	}
	before := c.Snapshot().Totals
	cfgCall(c, 1, nil)
	require.GreaterOrEqual(t, c.Snapshot().Totals.Calls, before.Calls, "totals never fall")
}

// O02.
func TestTotalsCountEveryCallOnce(t *testing.T) {
	c, clk := cfgR0(t, breaker.WithIgnore(context.Canceled), breaker.WithFailureThreshold(100),
		breaker.WithTrip(breaker.ConsecutiveFailures(100), breaker.SlowCallRate(time.Second, 1, 100, breaker.LastCalls(100))))
	run := func(fn func(context.Context) error) { _ = c.Run(context.Background(), fn) }
	cfgCall(c, 3, nil)
	cfgCall(c, 2, errCfgDown)
	cfgCall(c, 4, context.Canceled)
	run(func(context.Context) error { clk.Add(time.Second); return nil })
	run(func(context.Context) error { clk.Add(2 * time.Second); return errCfgDown })
	require.Panics(t, func() { run(func(context.Context) error { panic("x") }) })
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		run(func(context.Context) error { runtime.Goexit(); return nil })
	}()
	<-gone
	late, err := c.Acquire(context.Background())
	require.NoError(t, err)
	c.Trip(nil)
	late.Done(nil)
	cfgCall(c, 6, nil)
	c.SetMode(breaker.ForcedOpen)
	cfgCall(c, 1, nil)
	done, cancel := context.WithCancel(context.Background())
	cancel()
	_ = c.Run(done, func(context.Context) error { return nil })
	_ = c.Run(context.Background(), nil)
	require.Equal(t, breaker.Totals{Calls: 14, Successes: 5, Failures: 5, Ignored: 4, Rejected: 7, Late: 1, Slow: 2, Panics: 2}, c.Snapshot().Totals)
	require.Zero(t, c.Snapshot().InFlight)
}

func TestTotalsKeepRescues(t *testing.T) {
	b, err := breaker.New[int]("b")
	require.NoError(t, err)
	fail := func(context.Context) (int, error) { return 0, errCfgDown }
	answer := func(err error) func(context.Context, error) (int, error) {
		return func(context.Context, error) (int, error) { return 1, err }
	}
	_, _ = b.DoOr(context.Background(), fail, answer(nil))
	_, _ = b.DoOr(context.Background(), fail, answer(errCfgDown)) // no rescue
	s := b.Snapshot()
	require.Equal(t, map[breaker.Rescue]uint64{breaker.RescueAlt: 1}, s.Totals.Rescues)
	s.Totals.Rescues[breaker.RescueAlt] = 99
	require.EqualValues(t, 1, b.Snapshot().Totals.Rescues[breaker.RescueAlt], "a snapshot is a copy")

	saved := b.Snapshot()
	d, err := breaker.New[int]("b", breaker.WithSnapshot(saved))
	require.NoError(t, err)
	_, _ = d.DoOr(context.Background(), fail, answer(nil))
	require.EqualValues(t, 2, d.Snapshot().Totals.Rescues[breaker.RescueAlt])
	require.EqualValues(t, 1, saved.Totals.Rescues[breaker.RescueAlt])
}

// Whatever happens, also across restarts: totals do not fall, they add up, and nothing in a snapshot is impossible.
// O02.
func TestTotalsNeverFall(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clk := &cfgManual{now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
		opts := []breaker.Option{breaker.WithClock(clk), breaker.WithFailureThreshold(2), breaker.WithOpenTimeout(3 * time.Second),
			breaker.WithIgnore(context.Canceled)}
		opts = append(opts, rapid.SampledFrom([][]breaker.Option{
			nil,
			{breaker.WithFailureWindow(2 * time.Second)},
			{breaker.WithTrip(breaker.FailureRate(0.5, 2, breaker.Last(2*time.Second)))},
			{breaker.WithTrip(breaker.FailureRate(0.5, 2, breaker.LastCalls(3)))},
			{breaker.WithTrip(breaker.FailureCount(2, 2*time.Second))},
			{breaker.WithTrip(breaker.SlowCallRate(time.Second, 0.5, 2, breaker.LastCalls(3)))},
		}).Draw(t, "policy")...)
		c, err := breaker.NewCircuit("c", opts...)
		require.NoError(t, err)
		var permits []*breaker.Permit
		var before breaker.Totals
		var epoch uint64
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 12).Draw(t, "step") {
			case 0, 1:
				cfgCall(c, 1, nil)
			case 2, 3:
				cfgCall(c, 1, errCfgDown)
			case 4:
				cfgCall(c, 1, context.Canceled)
			case 5:
				if p, err := c.Acquire(context.Background()); err == nil {
					permits = append(permits, p)
				}
			case 6:
				if len(permits) > 0 {
					permits[0].Done(rapid.SampledFrom([]error{nil, errCfgDown}).Draw(t, "outcome"))
					permits = permits[1:]
				}
			case 7:
				clk.add(time.Duration(rapid.IntRange(0, 4).Draw(t, "seconds")) * time.Second)
			case 8:
				c.Reset()
			case 9:
				c.Trip(errCfgDown)
			case 10:
				c.SetMode(breaker.Mode(rapid.IntRange(0, 3).Draw(t, "mode")))
			case 11:
				text, err := json.Marshal(c.Snapshot())
				require.NoError(t, err)
				var s breaker.Snapshot
				require.NoError(t, json.Unmarshal(text, &s))
				c, err = breaker.NewCircuit("c", append(opts, breaker.WithSnapshot(s))...)
				require.NoError(t, err, "every snapshot is accepted")
				permits = nil
			case 12:
				require.NoError(t, c.Configure(breaker.WithTrip(breaker.FailureRate(0.5, 10, breaker.Last(time.Second)))))
			}
			s := c.Snapshot()
			tot := s.Totals
			require.Equal(t, tot.Calls, tot.Successes+tot.Failures+tot.Ignored)
			for _, n := range [][2]uint64{
				{before.Calls, tot.Calls}, {before.Successes, tot.Successes}, {before.Failures, tot.Failures}, {before.Ignored, tot.Ignored},
				{before.Rejected, tot.Rejected}, {before.Late, tot.Late}, {before.Slow, tot.Slow}, {before.Panics, tot.Panics},
				{epoch, s.Epoch}, {tot.Late, tot.Calls}, {tot.Slow, tot.Calls}, {tot.Panics, tot.Failures},
				{s.Counts.Successes, tot.Successes}, {s.Counts.Failures, tot.Failures}, {s.Counts.Ignored, tot.Ignored}, {s.Counts.Slow, tot.Slow},
			} {
				require.LessOrEqual(t, n[0], n[1], "%+v", s)
			}
			require.EqualValues(t, len(permits), s.InFlight)
			require.Equal(t, s.LastFailure == "", s.LastFailureAt.IsZero())
			require.True(t, s.Counts.Rate() >= 0 && s.Counts.Rate() <= 1, "%+v", s.Counts)
			require.False(t, s.ConsecutiveFailures > 0 && s.ConsecutiveSuccesses > 0)
			before, epoch = tot, s.Epoch
		}
	})
}

// BC-143.
func TestRatesAreNumbers(t *testing.T) {
	require.Zero(t, breaker.Counts{}.Rate())
	require.Zero(t, breaker.Counts{Ignored: 9}.Rate())
	require.Zero(t, breaker.Counts{Successes: 9}.Rate())
	require.Equal(t, 1.0, breaker.Counts{Failures: 9}.Rate())
	require.Equal(t, 0.25, breaker.Counts{Failures: 1, Successes: 3, Ignored: 96}.Rate())
	huge := breaker.Counts{Failures: math.MaxUint64, Successes: math.MaxUint64}.Rate()
	require.True(t, huge >= 0 && huge <= 1, huge)
	huge = breaker.Counts{Failures: math.MaxUint64, Successes: 2}.Rate()
	require.True(t, huge >= 0 && huge <= 1, huge)
}

func TestLastFailureIsOfThePresentRun(t *testing.T) {
	b, err := breaker.New[int]("b", breaker.WithClock(cfgClock()), breaker.WithIgnore(context.Canceled),
		breaker.WithResult(func(v int, err error) breaker.Outcome {
			if err != nil || v < 0 {
				return breaker.Failure
			}
			return breaker.Success
		}))
	require.NoError(t, err)
	c := b.Circuit()
	last := func() string { return c.Snapshot().LastFailure }
	require.Empty(t, last())
	cfgCall(c, 1, errors.New("first"))
	require.Equal(t, "first", last())
	cfgCall(c, 1, errors.New("second"))
	require.Equal(t, "second", last())
	cfgCall(c, 1, context.Canceled)
	require.Equal(t, "second", last(), "ignored: nothing to say")
	cfgCall(c, 1, nil)
	require.Empty(t, last())
	require.Zero(t, c.Snapshot().LastFailureAt)
	cfgCall(c, 1, nil)
	require.Empty(t, last())

	_, err = b.Do(context.Background(), func(context.Context) (int, error) { return -1, nil })
	require.NoError(t, err)
	require.Equal(t, "breaker: unacceptable result", last())
	require.Panics(t, func() { _ = c.Run(context.Background(), func(context.Context) error { panic("secret") }) })
	require.Equal(t, "breaker: call ended by panic or runtime.Goexit", last())

	p, err := c.Acquire(context.Background())
	require.NoError(t, err)
	c.Reset()
	require.Empty(t, last(), "forgotten")
	p.Done(errCfgDown)
	require.Empty(t, last(), "a late failure is of no run")

	c.Trip(errors.New("maintenance"))
	require.Equal(t, "maintenance", last())
	c.Reset()
	c.Trip(nil)
	require.Empty(t, last())
	require.Zero(t, c.Snapshot().LastFailureAt)
}

// cfgBadError is a failure whose text cannot be had.
type cfgBadError struct{}

func (cfgBadError) Error() string { panic("no text") }

func TestAnErrorWithoutTextHarmsNoSnapshot(t *testing.T) {
	c, _ := cfgR0(t)
	cfgCall(c, 1, cfgBadError{})
	require.NotPanics(t, func() { c.Snapshot() })
	require.EqualValues(t, 1, c.Snapshot().Totals.Failures)
}

func TestCountsExpireOnRead(t *testing.T) {
	for _, tt := range []struct {
		name   string
		policy breaker.Option
		age    time.Duration // when the failures have left the window
	}{
		{"Last", breaker.WithTrip(breaker.FailureRate(1, 100, breaker.Last(10*time.Second))), 10 * time.Second},
		{"FailureCount", breaker.WithTrip(breaker.FailureCount(100, 5*time.Second)), 5 * time.Second},
		{"TripWhen", breaker.WithTrip(breaker.TripWhen(breaker.Last(10*time.Second), func(breaker.Counts) bool { return false })), 10 * time.Second},
		{"the first window speaks",
			breaker.WithTrip(breaker.ConsecutiveFailures(100), breaker.FailureRate(1, 100, breaker.Last(time.Second)), breaker.FailureRate(1, 100, breaker.Last(time.Hour))), time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, clk := cfgR0(t, tt.policy)
			cfgCall(c, 3, errCfgDown)
			clk.Add(tt.age - 1)
			require.EqualValues(t, 3, c.Snapshot().Counts.Failures)
			clk.Add(1)
			require.Zero(t, c.Snapshot().Counts.Failures)
			require.Zero(t, c.Snapshot().Counts.Rate())
			require.EqualValues(t, 3, c.Snapshot().Totals.Failures)
			require.EqualValues(t, 3, c.Snapshot().ConsecutiveFailures, "the run has no window")
		})
	}
	t.Run("LastCalls", func(t *testing.T) {
		c, clk := cfgR0(t, breaker.WithTrip(breaker.FailureRate(1, 3, breaker.LastCalls(3))))
		cfgCall(c, 2, errCfgDown)
		clk.Add(1000 * time.Hour)
		require.EqualValues(t, 2, c.Snapshot().Counts.Failures, "calls do not age")
		cfgCall(c, 2, nil)
		require.Equal(t, breaker.Counts{Successes: 2, Failures: 1, ConsecutiveSuccesses: 2}, c.Snapshot().Counts)
		cfgCall(c, 1, nil)
		require.Equal(t, breaker.Counts{Successes: 3, ConsecutiveSuccesses: 3}, c.Snapshot().Counts)
	})
	t.Run("FailureWindow", func(t *testing.T) {
		c, clk := cfgR0(t, breaker.WithFailureThreshold(10), breaker.WithFailureWindow(10*time.Second))
		cfgCall(c, 2, errCfgDown)
		clk.Add(5 * time.Second)
		cfgCall(c, 1, errCfgDown)
		require.EqualValues(t, 3, c.Snapshot().ConsecutiveFailures)
		clk.Add(5 * time.Second)
		require.EqualValues(t, 1, c.Snapshot().ConsecutiveFailures, "of the run, those that still count")
		clk.Add(5 * time.Second)
		require.Zero(t, c.Snapshot().ConsecutiveFailures)
		require.Equal(t, "down", c.Snapshot().LastFailure, "no success has ended the run")
	})
	t.Run("without a window, the present stay", func(t *testing.T) {
		c, clk := cfgR0(t)
		cfgCall(c, 2, errCfgDown)
		cfgCall(c, 1, nil)
		clk.Add(1000 * time.Hour)
		require.Equal(t, breaker.Counts{Successes: 1, Failures: 2, ConsecutiveSuccesses: 1}, c.Snapshot().Counts)
		c.Reset()
		require.Zero(t, c.Snapshot().Counts)
	})
}

// Snapshots marshal whatever a circuit has been through.
func TestEverySnapshotMarshals(t *testing.T) {
	c, clk := cfgR0(t, breaker.WithOpenTimeout(1<<62), breaker.WithOpenHint(1<<62))
	c.Trip(cfgHint(math.MaxInt64))
	for range 3 {
		_, err := json.Marshal(c.Snapshot())
		require.NoError(t, err)
		_, err = json.Marshal(fmt.Sprint(c.Snapshot()))
		require.NoError(t, err)
		clk.Add(1000 * time.Hour)
	}
}

// BC-11, BC-31.
func TestLookingChangesNothing(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		r := w.R0()
		r.Trip()
		look := func() {
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					for range 1000 {
						_, _, _, _ = r.C.State(), r.C.Ready(), r.C.Snapshot(), r.C.Config()
						_, _, _ = r.B.State(), r.B.Ready(), r.B.Snapshot()
					}
				})
			}
			all.Wait()
		}
		look()
		r.Rejected()
		w.At(10 * time.Second)
		before := r.C.Snapshot()
		look()
		require.Equal(w, before, r.C.Snapshot())
		require.Len(w, r.Steps(), 1)
		probe := r.Gate()
		require.Equal(w, "open>half-open at 10s: timeout expired", r.Steps()[1])
		look()
		require.ErrorIs(w, r.Rejected(), breaker.ErrTooManyProbes)
		probe.Finish(nil)
		r.Is(breaker.Closed)
		r.Fails(2)
		look()
		r.Fails(1)
		r.Is(breaker.Open)
		require.EqualValues(w, 2, r.C.Snapshot().Totals.Rejected, "looking is no call")
	})
}

// BC-143.
func TestNumbersMakeSenseFromFirstToLast(t *testing.T) {
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
			breakertest.BothClocks(t, func(w *breakertest.World) {
				r := w.R0(policy)
				sane(w, r.C)
				require.Zero(w, r.C.Snapshot().Counts.Rate())
				r.Succeeds(1)
				r.Fails(2)
				sane(w, r.C)
				w.Add(24 * time.Hour)
				sane(w, r.C)
				for range 10 {
					_ = r.Call(breakertest.ErrBoom)
				}
				r.Is(breaker.Open)
				sane(w, r.C)
				w.Add(10 * time.Second)
				sane(w, r.C)
				r.Succeeds(1)
				sane(w, r.C)
			})
		})
	}
	t.Run("a million calls", func(t *testing.T) {
		breakertest.Guard(t, breakertest.Patience, func() {
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
				breakertest.BothClocks(t, func(w *breakertest.World) {
					r := w.R0(breaker.WithSnapshot(s))
					sane(w, r.C)
					w.Add(10 * time.Second)
					r.Succeeds(1)
					r.Is(breaker.Closed)
					r.Idle()
					r.Succeeds(10)
					r.Trip()
				})
			})
		}
	})
	t.Run("in flight is right whoever looks and whenever", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			for _, before := range []int{0, 1, 100, 70_000} {
				if before > 1000 && testing.Short() {
					continue
				}
				r := w.R0()
				require.Zero(w, r.C.Snapshot().InFlight) // looked at from the start
				for range before {
					_ = r.C.Run(context.Background(), func(context.Context) error { return nil })
				}
				gates := []*breakertest.Gate{r.Gate(), r.Gate(), r.Gate()}
				require.EqualValues(w, 3, r.C.Snapshot().InFlight, "after %d calls", before)
				gates[0].Finish(nil)
				gates[1].Finish(breakertest.ErrBoom)
				require.EqualValues(w, 1, r.C.Snapshot().InFlight)
				r.C.Trip(nil)
				gates[2].Finish(nil)
				r.Idle()
				require.EqualValues(w, before+3, r.C.Snapshot().Totals.Calls)
			}
		})
	})
	t.Run("in flight returns to nothing when nobody looked before", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			for name, ends := range map[string]func(*breakertest.Rig, []*breakertest.Gate){
				"good": func(_ *breakertest.Rig, g []*breakertest.Gate) { g[0].Finish(nil); g[1].Finish(nil) },
				"bad": func(_ *breakertest.Rig, g []*breakertest.Gate) {
					g[0].Finish(breakertest.ErrBoom)
					g[1].Finish(breakertest.ErrBoom)
				},
				"tripped": func(r *breakertest.Rig, g []*breakertest.Gate) {
					r.C.Trip(nil)
					g[0].Finish(nil)
					r.C.Reset()
					g[1].Finish(breakertest.ErrBoom)
				},
				"limited": func(r *breakertest.Rig, g []*breakertest.Gate) {
					require.NoError(r, r.C.Configure(breaker.WithMaxInFlight(5)))
					g[0].Finish(nil)
					r.Succeeds(10)
					g[1].Finish(breakertest.ErrBoom)
				},
				"shadow": func(r *breakertest.Rig, g []*breakertest.Gate) {
					r.C.SetMode(breaker.Shadow)
					g[0].Finish(nil)
					r.Succeeds(3)
					r.C.SetMode(breaker.Auto)
					g[1].Finish(nil)
				},
				"looked": func(r *breakertest.Rig, g []*breakertest.Gate) {
					require.GreaterOrEqual(r, r.C.Snapshot().InFlight, int64(0))
					g[0].Finish(nil)
					require.GreaterOrEqual(r, r.C.Snapshot().InFlight, int64(0))
					g[1].Finish(nil)
				},
			} {
				r := w.R0()
				for range 70_000 {
					_ = r.C.Run(context.Background(), func(context.Context) error { return nil })
				}
				ends(r, []*breakertest.Gate{r.Gate(), r.Gate()})
				s := r.C.Snapshot()
				require.Zero(w, s.InFlight, name)
				require.GreaterOrEqual(w, s.Totals.Calls, uint64(70_002), name)
				g := r.Begin()
				if g.Ran {
					require.EqualValues(w, 1, r.C.Snapshot().InFlight, name)
					g.Finish(nil)
				}
				r.Idle()
			}
		})
	})
	t.Run("a limit set at run time counts the calls already in flight", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			for _, before := range []int{0, 70_000} {
				r := w.R0()
				r.C.Snapshot() // looked at from the start
				for range before {
					_ = r.C.Run(context.Background(), func(context.Context) error { return nil })
				}
				gates := []*breakertest.Gate{r.Gate(), r.Gate()}
				require.NoError(w, r.C.Configure(breaker.WithMaxInFlight(2)))
				require.ErrorIs(w, r.Call(nil), breaker.ErrTooManyInFlight, "after %d calls", before)
				gates[0].Finish(nil)
				r.Succeeds(1)
			}
		})
	})
}

// O03.
func TestLastFailureIsClearedBySuccessAndNoTimerHangsOnIt(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		r := w.Circuit()
		w.At(3 * time.Second)
		r.Fails(1)
		s := r.C.Snapshot()
		require.Equal(w, "boom", s.LastFailure)
		require.True(w, s.LastFailureAt.Equal(w.Now()), "%v", s.LastFailureAt)
		r.Succeeds(1)
		s = r.C.Snapshot()
		require.Empty(w, s.LastFailure)
		require.True(w, s.LastFailureAt.IsZero())

		late := []*breakertest.Gate{r.Gate(), r.Gate()}
		r.Trip()
		until := r.C.Snapshot().Until
		require.True(w, until.Equal(w.Now().Add(30*time.Second)))
		w.At(8 * time.Second)
		late[0].Finish(nil)
		late[1].Finish(errors.New("a straggler"))
		s = r.C.Snapshot()
		require.Equal(w, until, s.Until)
		require.Equal(w, "boom", s.LastFailure)
		require.True(w, s.LastFailureAt.Equal(w.Start.Add(3*time.Second)))
		w.At(33*time.Second - 1)
		r.Rejected()
		w.At(33 * time.Second)
		r.Succeeds(1)
		require.Empty(w, r.C.Snapshot().LastFailure, "a probe's success ends the run")
	})
}

// O08.
func TestStateTexts(t *testing.T) {
	for s, text := range map[breaker.State]string{
		breaker.Closed:   "closed",
		breaker.HalfOpen: "half-open",
		breaker.Open:     "open",
	} {
		require.Equal(t, text, s.String())
		b, err := s.MarshalText()
		require.NoError(t, err)
		require.Equal(t, text, string(b))
		for _, spelling := range []string{
			text, strings.ToUpper(text),
			strings.ReplaceAll(text, "-", "_"), strings.ToUpper(strings.ReplaceAll(text, "-", "_")),
		} {
			var got breaker.State
			require.NoError(t, got.UnmarshalText([]byte(spelling)))
			require.Equal(t, s, got)
		}
	}
	var s breaker.State = breaker.Open
	for _, nonsense := range []string{"", "ajar", "openn", "half", "1"} {
		require.Error(t, s.UnmarshalText([]byte(nonsense)))
		require.Equal(t, breaker.Open, s, "a text that is refused changes nothing")
	}
	_, err := breaker.State(9).MarshalText()
	require.Error(t, err)
	require.NotEmpty(t, breaker.State(9).String())

	var doc bytes.Buffer
	require.NoError(t, json.NewEncoder(&doc).Encode(map[string]breaker.State{"state": breaker.HalfOpen}))
	require.JSONEq(t, `{"state":"half-open"}`, doc.String())
}

// What a circuit says of itself was refused when it was to be restored.
func TestLongRunsOfSuccessesAreRestored(t *testing.T) {
	const many = 3_000_000_000
	s := breaker.Snapshot{Epoch: 1, ConsecutiveSuccesses: many, Totals: breaker.Totals{Calls: many, Successes: many}}
	c, err := breaker.NewCircuit("c", breaker.WithSnapshot(s))
	require.NoError(t, err)
	require.EqualValues(t, uint64(many), c.Snapshot().Totals.Successes)
}
