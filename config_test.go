package breaker_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/breakertest"
)

var errCfgDown = errors.New("down")

// cfgHint is a failure that asks to be left alone.
type cfgHint time.Duration

func (h cfgHint) Error() string             { return "busy" }
func (h cfgHint) RetryAfter() time.Duration { return time.Duration(h) }

// cfgClock is a clock that stands still in the year 2030 until it is moved.
func cfgClock() *clock.Mock {
	clk := clock.NewMock()
	clk.Set(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	return clk
}

func cfgCircuit(t testing.TB, opts ...breaker.Option) *breaker.Circuit {
	t.Helper()
	c, err := breaker.NewCircuit("c", opts...)
	require.NoError(t, err)
	return c
}

// cfgCall makes calls that end with err, and returns what the last one returned.
func cfgCall(c *breaker.Circuit, n int, err error) (got error) {
	for range n {
		got = c.Run(context.Background(), func(context.Context) error { return err })
	}
	return got
}

func cfgNext(clk *clock.Mock, d time.Duration, c *breaker.Circuit, err error) error {
	clk.Add(d)
	return cfgCall(c, 1, err)
}

// cfgLeft is the time left of an open period.
func cfgLeft(t testing.TB, c *breaker.Circuit) time.Duration {
	t.Helper()
	var open *breaker.OpenError
	require.ErrorAs(t, cfgCall(c, 1, nil), &open)
	return open.RetryAfter()
}

const cfgMost = "1281023h53m38.427387904s" // the longest duration

// K26.
func TestWithoutOptionsTheDefaultsHold(t *testing.T) {
	clk := cfgClock()
	require.Equal(t, breaker.DefaultConfig(), cfgCircuit(t, breaker.DefaultConfig().Options()...).Config())
	c := cfgCircuit(t, breaker.WithClock(clk))
	require.Equal(t, breaker.DefaultConfig(), c.Config())
	require.Equal(t, breaker.Config{
		FailureThreshold: 5,
		SuccessThreshold: 2,
		HalfOpenProbes:   2,
		OpenTimeout:      30 * time.Second,
		OpenHint:         5 * time.Minute,
		ProbeLease:       30 * time.Second,
		HealthCheck:      breaker.HealthCheck{Enabled: true, Interval: 10 * time.Second, Timeout: 5 * time.Second},
	}, c.Config())

	b, err := breaker.New[int]("b")
	require.NoError(t, err)
	require.Equal(t, c.Config(), b.Circuit().Config())

	cfgCall(c, 4, errCfgDown)
	require.Equal(t, breaker.Closed, c.State())
	cfgCall(c, 1, errCfgDown)
	require.Equal(t, breaker.Open, c.State())
	require.ErrorIs(t, cfgNext(clk, 30*time.Second-1, c, nil), breaker.ErrOpen)
	require.NoError(t, cfgNext(clk, 1, c, nil))
	require.Equal(t, breaker.HalfOpen, c.State())
	require.NoError(t, cfgCall(c, 1, nil))
	require.Equal(t, breaker.Closed, c.State())
}

// K27: the settings of three published systems, with the vectors K02, K05, K06, K07, K09 and K10 in their numbers.
func TestPublishedSettings(t *testing.T) {
	for _, tt := range []struct {
		name                  string
		opts                  []breaker.Option
		file                  map[string]any
		failures, probes, oks int
		window, open          time.Duration
	}{
		{
			name: "MirApi",
			opts: []breaker.Option{
				breaker.WithFailureThreshold(5), breaker.WithFailureWindow(60 * time.Second), breaker.WithOpenTimeout(15 * time.Second),
				breaker.WithHalfOpenProbes(1), breaker.WithSuccessThreshold(1),
			},
			file:     map[string]any{"failure_threshold": 5, "failure_window": "60s", "open_timeout": "15s", "half_open_probes": 1, "success_threshold": 1},
			failures: 5, window: time.Minute, open: 15 * time.Second, probes: 1, oks: 1,
		},
		{
			name:     "HolySheep",
			opts:     []breaker.Option{breaker.WithFailureThreshold(5), breaker.WithOpenTimeout(30 * time.Second), breaker.WithSuccessThreshold(2)},
			file:     map[string]any{"failure_threshold": 5, "open_timeout": "30s", "success_threshold": 2},
			failures: 5, open: 30 * time.Second, probes: 2, oks: 2,
		},
		{
			name: "cc-relay",
			opts: []breaker.Option{
				breaker.WithFailureThreshold(5), breaker.WithOpenTimeout(30 * time.Second), breaker.WithHalfOpenProbes(3), breaker.WithSuccessThreshold(3),
			},
			file: map[string]any{"failure_threshold": 5, "open_timeout_ms": 30000, "half_open_probes": 3, "success_threshold": 3,
				"health_check": map[string]any{"enabled": true, "interval_ms": 10000}},
			failures: 5, open: 30 * time.Second, probes: 3, oks: 3,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fresh := func() (*breaker.Circuit, *clock.Mock) {
				clk := cfgClock()
				return cfgCircuit(t, append(tt.opts, breaker.WithClock(clk))...), clk
			}
			cfg, err := breaker.ParseConfig(tt.file)
			require.NoError(t, err)
			c, _ := fresh()
			require.Equal(t, cfg.HalfOpenProbes, tt.probes)
			cfg.ProbeLease = c.Config().ProbeLease
			require.Equal(t, c.Config(), cfg, "as options and as a file")

			t.Run("K02", func(t *testing.T) {
				c, _ := fresh()
				cfgCall(c, tt.failures-1, errCfgDown)
				require.Equal(t, breaker.Closed, c.State())
				cfgCall(c, 1, errCfgDown)
				require.Equal(t, breaker.Open, c.State())
			})
			t.Run("K05 or K06", func(t *testing.T) {
				failAt := func(times ...float64) breaker.State {
					c, clk := fresh()
					start := clk.Now()
					for _, at := range times {
						require.Equal(t, breaker.Closed, c.State())
						clk.Set(start.Add(time.Duration(at * float64(time.Second))))
						cfgCall(c, 1, errCfgDown)
					}
					return c.State()
				}
				if tt.window == 0 {
					require.Equal(t, breaker.Open, failAt(0, 3600, 7200, 10800, 14400))
					return
				}
				require.Equal(t, breaker.Open, failAt(0, 15, 30, 45, 59.999))
				require.Equal(t, breaker.Closed, failAt(0, 15, 30, 45, 60))
				require.Equal(t, breaker.Closed, failAt(0, 50, 100, 150, 200, 250, 300, 350, 400, 450, 500, 550, 600, 650, 700, 750, 800, 850, 900, 950))
				require.Equal(t, breaker.Open, failAt(0, 57, 58, 59, 61, 62))
			})
			opened := func() (*breaker.Circuit, *clock.Mock) {
				c, clk := fresh()
				cfgCall(c, tt.failures, errCfgDown)
				return c, clk
			}
			t.Run("K07", func(t *testing.T) {
				c, clk := opened()
				require.ErrorIs(t, cfgNext(clk, tt.open-1, c, nil), breaker.ErrOpen)
				require.NoError(t, cfgNext(clk, 1, c, nil))
			})
			t.Run("K09", func(t *testing.T) {
				c, clk := opened()
				clk.Add(tt.open)
				for range tt.probes {
					_, err := c.Acquire(context.Background())
					require.NoError(t, err)
				}
				for range 10 - tt.probes {
					_, err := c.Acquire(context.Background())
					require.ErrorIs(t, err, breaker.ErrTooManyProbes)
					require.ErrorIs(t, err, breaker.ErrOpen)
				}
			})
			t.Run("K10", func(t *testing.T) {
				c, clk := opened()
				clk.Add(tt.open)
				for range tt.oks - 1 {
					require.NoError(t, cfgCall(c, 1, nil))
					require.Equal(t, breaker.HalfOpen, c.State())
				}
				require.NoError(t, cfgCall(c, 1, nil))
				require.Equal(t, breaker.Closed, c.State())
			})
		})
	}
}

// cfgFault is an option that is wrong and what the error says of it.
type cfgFault struct {
	option breaker.Option
	want   string
}

// cfgFaults holds, for every option, every kind of nonsense.
var cfgFaults = append([]cfgFault{
	{breaker.WithFailureThreshold(0), "FailureThreshold: must be from 1 to 2147483647, got 0"},
	{breaker.WithFailureThreshold(-1), "FailureThreshold: must be from 1 to 2147483647, got -1"},
	{breaker.WithFailureWindow(-1), "FailureWindow: must be from 0 to " + cfgMost + ", got -1ns"},
	{breaker.WithFailureWindow(math.MaxInt64), "FailureWindow: must be from 0 to " + cfgMost + ", got 2562047h47m16.854775807s"},
	{breaker.WithTrip(), "Trip: must name at least one condition, got none"},
	{breaker.WithTrip(breaker.TripCondition{}), "Trip[0]: must be made by ConsecutiveFailures, FailureCount, FailureRate, SlowCallRate or TripWhen, got the zero Trip"},
	{breaker.WithTrip(breaker.ConsecutiveFailures(0)), "Trip[0].ConsecutiveFailures: must be from 1 to 2147483647, got 0"},
	{breaker.WithTrip(breaker.FailureCount(-2, time.Second)), "Trip[0].FailureCount.Failures: must be from 1 to 2147483647, got -2"},
	{breaker.WithTrip(breaker.FailureCount(2, 0)), "Trip[0].FailureCount.Within: must be above 0 and at most " + cfgMost + ", got 0s"},
	{breaker.WithTrip(breaker.FailureRate(0, 1, breaker.LastCalls(1))), "Trip[0].FailureRate.Rate: must be above 0 and at most 1, in steps of one millionth, got 0"},
	{breaker.WithTrip(breaker.FailureRate(-0.5, 1, breaker.LastCalls(1))), "Trip[0].FailureRate.Rate: must be above 0 and at most 1, in steps of one millionth, got -0.5"},
	{breaker.WithTrip(breaker.FailureRate(1.000001, 1, breaker.LastCalls(1))), "Trip[0].FailureRate.Rate: must be above 0 and at most 1, in steps of one millionth, got 1.000001"},
	{breaker.WithTrip(breaker.FailureRate(math.NaN(), 1, breaker.LastCalls(1))), "Trip[0].FailureRate.Rate: must be above 0 and at most 1, in steps of one millionth, got NaN"},
	{breaker.WithTrip(breaker.FailureRate(math.Inf(1), 1, breaker.LastCalls(1))), "Trip[0].FailureRate.Rate: must be above 0 and at most 1, in steps of one millionth, got +Inf"},
	{breaker.WithTrip(breaker.FailureRate(1e-7, 1, breaker.LastCalls(1))), "Trip[0].FailureRate.Rate: must be above 0 and at most 1, in steps of one millionth, got 1e-07"},
	{breaker.WithTrip(breaker.FailureRate(1, 0, breaker.LastCalls(1))), "Trip[0].FailureRate.MinCalls: must be from 1 to 2147483647, got 0"},
	{breaker.WithTrip(breaker.FailureRate(1, 10, breaker.LastCalls(5))), "Trip[0].FailureRate.MinCalls: must not be above Trip[0].FailureRate.LastCalls of 5, got 10"},
	{breaker.WithTrip(breaker.FailureRate(1, 1, breaker.LastCalls(0))), "Trip[0].FailureRate.Window: must be LastCalls or Last of more than 0, got 0"},
	{breaker.WithTrip(breaker.FailureRate(1, 1, breaker.Window{})), "Trip[0].FailureRate.Window: must be LastCalls or Last of more than 0, got 0"},
	{breaker.WithTrip(breaker.FailureRate(1, 1, breaker.LastCalls(-1))), "Trip[0].FailureRate.LastCalls: must be from 1 to 16777216, got -1"},
	{breaker.WithTrip(breaker.FailureRate(1, 1, breaker.LastCalls(1<<24+1))), "Trip[0].FailureRate.LastCalls: must be from 1 to 16777216, got 16777217"},
	{breaker.WithTrip(breaker.FailureRate(1, 1, breaker.Last(-time.Second))), "Trip[0].FailureRate.Last: must be above 0 and at most " + cfgMost + ", got -1s"},
	{breaker.WithTrip(breaker.SlowCallRate(0, 1, 1, breaker.LastCalls(1))), "Trip[0].SlowCallRate.Slow: must be above 0 and at most " + cfgMost + ", got 0s"},
	{breaker.WithTrip(breaker.FailureRate(1, -1, breaker.Last(1))), "Trip[0].FailureRate.MinCalls: must be from 1 to 2147483647, got -1"},
	{breaker.WithTrip(breaker.FailureCount(0, time.Second)), "Trip[0].FailureCount.Failures: must be from 1 to 2147483647, got 0"},
	{breaker.WithTrip(breaker.FailureCount(1, -time.Second)), "Trip[0].FailureCount.Within: must be above 0 and at most " + cfgMost + ", got -1s"},
	{breaker.WithTrip(breaker.SlowCallRate(-1, 1, 1, breaker.LastCalls(1))), "Trip[0].SlowCallRate.Slow: must be above 0 and at most " + cfgMost + ", got -1ns"},
	{breaker.WithTrip(breaker.SlowCallRate(1, 0, 1, breaker.LastCalls(1))), "Trip[0].SlowCallRate.Rate: must be above 0 and at most 1, in steps of one millionth, got 0"},
	{breaker.WithTrip(breaker.SlowCallRate(1, 2, 1, breaker.LastCalls(1))), "Trip[0].SlowCallRate.Rate: must be above 0 and at most 1, in steps of one millionth, got 2"},
	{breaker.WithTrip(breaker.TripWhen(breaker.LastCalls(1), nil)), "Trip[0].TripWhen.When: must not be nil"},
	{breaker.WithTrip(breaker.TripWhen(breaker.Last(-1), func(breaker.Counts) bool { return false })), "Trip[0].TripWhen.Last: must be above 0 and at most " + cfgMost + ", got -1ns"},
	{breaker.WithTrip(breaker.ConsecutiveFailures(1), breaker.ConsecutiveFailures(-9)), "Trip[1].ConsecutiveFailures: must be from 1 to 2147483647, got -9"},
	{breaker.WithSuccessThreshold(0), "SuccessThreshold: must be from 1 to 2147483647, got 0"},
	{breaker.WithSuccessThreshold(-1), "SuccessThreshold: must be from 1 to 2147483647, got -1"},
	{breaker.WithHalfOpenProbes(0), "HalfOpenProbes: must be from 1 to 2147483647, got 0"},
	{breaker.WithHalfOpenProbes(-3), "HalfOpenProbes: must be from 1 to 2147483647, got -3"},
	{breaker.WithOpenTimeout(0), "OpenTimeout: must be above 0 and at most " + cfgMost + ", got 0s"},
	{breaker.WithOpenTimeout(-time.Second), "OpenTimeout: must be above 0 and at most " + cfgMost + ", got -1s"},
	{breaker.WithOpenTimeout(math.MaxInt64), "OpenTimeout: must be above 0 and at most " + cfgMost + ", got 2562047h47m16.854775807s"},
	{breaker.WithOpenBackoff(0.5, time.Hour, 0), "OpenBackoff.Factor: must be at least 1 and finite, got 0.5"},
	{breaker.WithOpenBackoff(math.NaN(), time.Hour, 0), "OpenBackoff.Factor: must be at least 1 and finite, got NaN"},
	{breaker.WithOpenBackoff(math.Inf(1), time.Hour, 0), "OpenBackoff.Factor: must be at least 1 and finite, got +Inf"},
	{breaker.WithOpenBackoff(2, 0, 0), "OpenBackoff.Max: must be at least the open timeout of 30s and at most " + cfgMost + ", got 0s"},
	{breaker.WithOpenBackoff(2, -1, 0), "OpenBackoff.Max: must be at least the open timeout of 30s and at most " + cfgMost + ", got -1ns"},
	{breaker.WithOpenBackoff(2, time.Second, 0), "OpenBackoff.Max: must be at least the open timeout of 30s and at most " + cfgMost + ", got 1s"},
	{breaker.WithOpenBackoff(2, math.MaxInt64, 0), "OpenBackoff.Max: must be at least the open timeout of 30s and at most " + cfgMost + ", got 2562047h47m16.854775807s"},
	{breaker.WithOpenBackoff(2, time.Hour, -0.1), "OpenBackoff.Jitter: must be from 0 to 1, got -0.1"},
	{breaker.WithOpenBackoff(2, time.Hour, 1.1), "OpenBackoff.Jitter: must be from 0 to 1, got 1.1"},
	{breaker.WithOpenBackoff(2, time.Hour, math.NaN()), "OpenBackoff.Jitter: must be from 0 to 1, got NaN"},
	{breaker.WithOpenHint(-1), "OpenHint: must be from 0 to " + cfgMost + ", got -1ns"},
	{breaker.WithOpenHint(math.MaxInt64), "OpenHint: must be from 0 to " + cfgMost + ", got 2562047h47m16.854775807s"},
	{breaker.WithProbeLease(0), "ProbeLease: must be above 0 and at most " + cfgMost + ", got 0s"},
	{breaker.WithProbeLease(-1), "ProbeLease: must be above 0 and at most " + cfgMost + ", got -1ns"},
	{breaker.WithRamp(-1), "Ramp: must be from 0 to " + cfgMost + ", got -1ns"},
	{breaker.WithMaxInFlight(-1), "MaxInFlight: must be at least 0, got -1"},
	{breaker.WithClassifier(nil), "Classifier: must not be nil"},
	{breaker.WithIgnore(errCfgDown, nil), "Ignore[1]: must not be nil"},
	{breaker.WithFailOn(nil), "FailOn[0]: must not be nil"},
	{breaker.WithMode(breaker.Mode(9)), "Mode: must be a Mode, got 9"},
	{breaker.WithHealthCheck(time.Second, nil), "HealthCheck: must have a func, got nil"},
	{breaker.WithHealthCheck(0, cfgHealthy), "HealthCheck.Interval: must be above 0 and at most " + cfgMost + ", got 0s"},
	{breaker.WithHealthCheck(-time.Second, cfgHealthy), "HealthCheck.Interval: must be above 0 and at most " + cfgMost + ", got -1s"},
	{breaker.WithHealthCheck(time.Second, cfgHealthy, breaker.HealthTimeout(0)), "HealthCheck.Timeout: must be above 0 and at most " + cfgMost + ", got 0s"},
	{breaker.WithHealthCheck(time.Second, cfgHealthy, breaker.HealthJitter(-1)), "HealthCheck.Jitter: must be from 0 to " + cfgMost + ", got -1ns"},
	{breaker.WithClock(nil), "Clock: must not be nil"},
	{breaker.WithClock((*clock.Mock)(nil)), "Clock: must not be nil"},
	{breaker.WithRand(nil), "Rand: must not be nil"},
	{breaker.WithLogger(nil), "Logger: must not be nil"},
	{breaker.WithResult[int](nil), "Result: must not be nil"},
	{breaker.WithResult(func(string, error) breaker.Outcome { return breaker.Success }), "Result: must take the breaker's type int, got func(string, error) breaker.Outcome"},
	{breaker.WithTimeout(-1), "Timeout: must be from 0 to " + cfgMost + ", got -1ns"},
	{breaker.WithTimeout(math.MaxInt64), "Timeout: must be from 0 to " + cfgMost + ", got 2562047h47m16.854775807s"},
	{breaker.WithRetry(breaker.MaxRetries(-1)), "MaxRetries: must be from 0 to 2147483647, got -1"},
	{breaker.WithRetry(breaker.Exponential(-1, time.Second)), "Exponential.Base: must be from 0 to " + cfgMost + ", got -1ns"},
	{breaker.WithRetry(breaker.Exponential(1, 0)), "Exponential.Max: must be above 0 and at most " + cfgMost + ", got 0s"},
	{breaker.WithRetry(breaker.Constant(-1)), "Constant: must be from 0 to " + cfgMost + ", got -1ns"},
	{breaker.WithRetry(breaker.AddJitter(math.NaN())), "AddJitter: must be from 0 to 1, got NaN"},
	{breaker.WithRetry(breaker.AddJitter(-0.1)), "AddJitter: must be from 0 to 1, got -0.1"},
	{breaker.WithRetry(breaker.MaxElapsed(-1)), "MaxElapsed: must be from 0 to " + cfgMost + ", got -1ns"},
	{breaker.WithRetry(breaker.RetryAfterCap(-1)), "RetryAfterCap: must be from 0 to " + cfgMost + ", got -1ns"},
	{breaker.WithRetry(breaker.RetryIf(nil)), "RetryIf: must not be nil"},
	{breaker.WithRetry(breaker.WithBudget(nil)), "Budget: must not be nil"},
	{breaker.WithRetry(nil), "RetryOption: must not be nil"},
	{breaker.WithFallback[int]("f", nil), "Fallback: must not be nil"},
	{breaker.WithFallback("", func(context.Context, error) (int, error) { return 0, nil }), `Fallback.Name: must not be empty, got ""`},
	{breaker.WithFailover[int]("f", nil), "Failover: must not be nil"},
	{breaker.WithFailover("", func(context.Context) (int, error) { return 0, nil }), `Failover.Name: must not be empty, got ""`},
	{breaker.WithFallback("f", func(context.Context, error) (string, error) { return "", nil }), "Fallback: must be of the breaker's type int"},
	{breaker.WithFallbackValue("x"), "FallbackValue: must be assignable to the breaker's type int, got string"},
	{breaker.WithLastGood[int](0, func(context.Context) string { return "" }), "LastGood.TTL: must be above 0 and at most " + cfgMost + ", got 0s"},
	{breaker.WithLastGood[int](1, nil), "LastGood.Key: must not be nil"},
	{breaker.WithLastGood[int](1, func(context.Context) string { return "" }, breaker.LastGoodSize(0)), "LastGoodSize: must be from 1 to 2147483647, got 0"},
	{breaker.WithSnapshot(breaker.Snapshot{State: 7}), "Snapshot.State: must be a State, got 7"},
	{breaker.Config{}.Options()[0], "FailureThreshold: must be from 1 to 2147483647, got 0"},
	{nil, "Option: must not be nil"},
}, cfgTooMuch()...)

// cfgTooMuch is what is beyond 32 bits, where an int can hold that.
func cfgTooMuch() []cfgFault {
	if math.MaxInt == math.MaxInt32 {
		return nil
	}
	return []cfgFault{
		{breaker.WithFailureThreshold(math.MaxInt), "FailureThreshold: must be from 1 to 2147483647, got 9223372036854775807"},
		{breaker.WithTrip(breaker.ConsecutiveFailures(math.MaxInt)), "Trip[0].ConsecutiveFailures: must be from 1 to 2147483647, got 9223372036854775807"},
		{breaker.WithTrip(breaker.FailureCount(math.MaxInt, time.Second)), "Trip[0].FailureCount.Failures: must be from 1 to 2147483647, got 9223372036854775807"},
		{breaker.WithTrip(breaker.FailureRate(1, 1, breaker.LastCalls(math.MaxInt))), "Trip[0].FailureRate.LastCalls: must be from 1 to 16777216, got 9223372036854775807"},
	}
}

func cfgHealthy(context.Context) error { return nil }

// BC-145.
func TestNonsenseIsNamed(t *testing.T) {
	for _, tt := range cfgFaults {
		b, err := breaker.New[int]("b", tt.option)
		require.Nil(t, b, tt.want)
		require.Contains(t, "\n"+fmt.Sprint(err), "\nbreaker: "+tt.want)
	}
	_, err := breaker.New[int]("")
	require.Equal(t, []string{`breaker: name: must not be empty, got ""`}, cfgLines(err))
	_, err = breaker.NewCircuit("")
	require.Equal(t, []string{`breaker: name: must not be empty, got ""`}, cfgLines(err))
	_, err = breaker.Over[int](nil)
	require.Equal(t, []string{"breaker: Circuit: must not be nil"}, cfgLines(err))
	require.Contains(t, fmt.Sprint(breakertest.PanicOf(func() { cfgCircuit(t).SetMode(9) })), "SetMode")
}

// One of each, all in one call: one error names them all, and nothing else.
// BC-145.
func TestAllNonsenseIsNamedAtOnce(t *testing.T) {
	never := func(breaker.Counts) bool { return false }
	_, err := breaker.New[int]("",
		breaker.WithFailureThreshold(-1),
		breaker.WithFailureWindow(-2),
		breaker.WithTrip(
			breaker.TripCondition{},
			breaker.ConsecutiveFailures(-3),
			breaker.FailureCount(-4, -5),
			breaker.FailureRate(-6, -7, breaker.Last(-8)),
			breaker.SlowCallRate(-9, math.NaN(), 20, breaker.LastCalls(10)),
			breaker.TripWhen(breaker.LastCalls(-11), nil),
			breaker.TripWhen(breaker.Window{}, never)),
		breaker.WithSuccessThreshold(-12),
		breaker.WithHalfOpenProbes(-13),
		breaker.WithOpenTimeout(-14),
		breaker.WithOpenBackoff(-15, -16, -17),
		breaker.WithOpenHint(-18),
		breaker.WithProbeLease(-19),
		breaker.WithRamp(-20),
		breaker.WithMaxInFlight(-21),
		breaker.WithClassifier(nil),
		breaker.WithIgnore(nil),
		breaker.WithFailOn(errCfgDown, nil),
		breaker.WithMode(22),
		breaker.WithHealthCheck(-23, nil, breaker.HealthTimeout(-24), breaker.HealthJitter(-25)),
		breaker.WithClock(nil),
		breaker.WithRand(nil),
		breaker.WithLogger(nil),
		breaker.WithResult(func(string, error) breaker.Outcome { return breaker.Success }),
		breaker.WithTimeout(-26),
		breaker.WithSnapshot(breaker.Snapshot{Mode: 27}),
		nil,
	)
	require.Error(t, err)
	want := []string{
		`name: must not be empty, got ""`,
		"FailureThreshold: must be from 1 to 2147483647, got -1",
		"FailureWindow: must be from 0 to " + cfgMost + ", got -2ns",
		"Trip[0]: must be made by ConsecutiveFailures, FailureCount, FailureRate, SlowCallRate or TripWhen, got the zero Trip",
		"Trip[1].ConsecutiveFailures: must be from 1 to 2147483647, got -3",
		"Trip[2].FailureCount.Failures: must be from 1 to 2147483647, got -4",
		"Trip[2].FailureCount.Within: must be above 0 and at most " + cfgMost + ", got -5ns",
		"Trip[3].FailureRate.Rate: must be above 0 and at most 1, in steps of one millionth, got -6",
		"Trip[3].FailureRate.MinCalls: must be from 1 to 2147483647, got -7",
		"Trip[3].FailureRate.Last: must be above 0 and at most " + cfgMost + ", got -8ns",
		"Trip[4].SlowCallRate.Slow: must be above 0 and at most " + cfgMost + ", got -9ns",
		"Trip[4].SlowCallRate.Rate: must be above 0 and at most 1, in steps of one millionth, got NaN",
		"Trip[4].SlowCallRate.MinCalls: must not be above Trip[4].SlowCallRate.LastCalls of 10, got 20",
		"Trip[5].TripWhen.LastCalls: must be from 1 to 16777216, got -11",
		"Trip[5].TripWhen.When: must not be nil",
		"Trip[6].TripWhen.Window: must be LastCalls or Last of more than 0, got 0",
		"SuccessThreshold: must be from 1 to 2147483647, got -12",
		"HalfOpenProbes: must be from 1 to 2147483647, got -13",
		"OpenTimeout: must be above 0 and at most " + cfgMost + ", got -14ns",
		"OpenBackoff.Factor: must be at least 1 and finite, got -15",
		"OpenBackoff.Max: must be at least the open timeout of -14ns and at most " + cfgMost + ", got -16ns",
		"OpenBackoff.Jitter: must be from 0 to 1, got -17",
		"OpenHint: must be from 0 to " + cfgMost + ", got -18ns",
		"ProbeLease: must be above 0 and at most " + cfgMost + ", got -19ns",
		"Ramp: must be from 0 to " + cfgMost + ", got -20ns",
		"MaxInFlight: must be at least 0, got -21",
		"Classifier: must not be nil",
		"Ignore[0]: must not be nil",
		"FailOn[1]: must not be nil",
		"Mode: must be a Mode, got 22",
		"HealthCheck: must have a func, got nil",
		"HealthCheck.Interval: must be above 0 and at most " + cfgMost + ", got -23ns",
		"HealthCheck.Timeout: must be above 0 and at most " + cfgMost + ", got -24ns",
		"HealthCheck.Jitter: must be from 0 to " + cfgMost + ", got -25ns",
		"Clock: must not be nil",
		"Rand: must not be nil",
		"Logger: must not be nil",
		"Result: must take the breaker's type int, got func(string, error) breaker.Outcome",
		"Timeout: must be from 0 to " + cfgMost + ", got -26ns",
		"Snapshot.Mode: must be a Mode, got 27",
		"Option: must not be nil",
	}
	for i := range want {
		want[i] = "breaker: " + want[i]
	}
	require.ElementsMatch(t, want, cfgLines(err))
}

// A default that follows another setting is not blamed for it.
func TestOnlyWhatWasGivenIsNamed(t *testing.T) {
	_, err := breaker.NewCircuit("c", breaker.WithSuccessThreshold(0), breaker.WithOpenTimeout(0))
	require.ElementsMatch(t, []string{
		"breaker: SuccessThreshold: must be from 1 to 2147483647, got 0",
		"breaker: OpenTimeout: must be above 0 and at most " + cfgMost + ", got 0s",
	}, cfgLines(err))
}

func TestTheEdgesOfEveryRangeAreAccepted(t *testing.T) {
	const longest = time.Duration(1 << 62)
	for name, opts := range map[string][]breaker.Option{
		"least": {
			breaker.WithFailureThreshold(1), breaker.WithFailureWindow(1), breaker.WithSuccessThreshold(1), breaker.WithHalfOpenProbes(1),
			breaker.WithOpenTimeout(1), breaker.WithOpenBackoff(1, 1, 0), breaker.WithOpenHint(1), breaker.WithProbeLease(1), breaker.WithRamp(1),
			breaker.WithMaxInFlight(1), breaker.WithTimeout(1),
			breaker.WithHealthCheck(1, cfgHealthy, breaker.HealthTimeout(1), breaker.HealthJitter(0)),
		},
		"most": {
			breaker.WithFailureThreshold(math.MaxInt32), breaker.WithFailureWindow(longest), breaker.WithSuccessThreshold(math.MaxInt32),
			breaker.WithHalfOpenProbes(math.MaxInt32), breaker.WithOpenTimeout(longest), breaker.WithOpenBackoff(math.MaxFloat64, longest, 1),
			breaker.WithOpenHint(longest), breaker.WithProbeLease(longest), breaker.WithRamp(longest),
			breaker.WithMaxInFlight(math.MaxInt), breaker.WithTimeout(longest),
			breaker.WithHealthCheck(longest, cfgHealthy, breaker.HealthTimeout(longest), breaker.HealthJitter(longest)),
		},
		"least windows": {breaker.WithTrip(
			breaker.ConsecutiveFailures(1), breaker.FailureCount(1, 1), breaker.FailureRate(0.000001, 1, breaker.LastCalls(1)),
			breaker.FailureRate(0.000001, 1, breaker.Last(1)), breaker.SlowCallRate(1, 1, 1, breaker.Last(1)))},
		"most windows": {breaker.WithTrip(
			breaker.ConsecutiveFailures(math.MaxInt32), breaker.FailureCount(math.MaxInt32, longest),
			breaker.FailureRate(1, 1<<24, breaker.LastCalls(1<<24)), breaker.FailureRate(1, math.MaxInt32, breaker.Last(longest)),
			breaker.SlowCallRate(longest, 1, math.MaxInt32, breaker.Last(longest)))},
	} {
		t.Run(name, func(t *testing.T) {
			clk := &cfgManual{now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
			b, err := breaker.New[int]("b", append(opts, breaker.WithClock(clk))...)
			require.NoError(t, err)
			defer func() { require.NoError(t, b.Close()) }()
			for range 3 {
				_, _ = b.Do(context.Background(), func(context.Context) (int, error) { return 1, errCfgDown })
				_, _ = b.Do(context.Background(), func(context.Context) (int, error) { return 1, nil })
				b.Circuit().Trip(cfgHint(math.MaxInt64))
				clk.add(time.Hour)
			}
			require.NotPanics(t, func() { _ = b.Snapshot() })
		})
	}
}

// BC-144: zero given is not zero missing. Where an option has no sensible zero it is an error (TestNonsenseIsNamed).
func TestZeroMeansWhatItsOptionSays(t *testing.T) {
	open := []breaker.Option{breaker.WithFailureThreshold(1), breaker.WithSuccessThreshold(1), breaker.WithOpenTimeout(10 * time.Second)}
	with := func(t *testing.T, clk *clock.Mock, opts ...breaker.Option) *breaker.Circuit {
		return cfgCircuit(t, slices.Concat(open, opts, []breaker.Option{breaker.WithClock(clk)})...)
	}
	t.Run("FailureWindow: any spacing", func(t *testing.T) {
		clk := cfgClock()
		c := with(t, clk, breaker.WithFailureThreshold(2), breaker.WithFailureWindow(0))
		cfgCall(c, 1, errCfgDown)
		_ = cfgNext(clk, 1000*time.Hour, c, errCfgDown)
		require.Equal(t, breaker.Open, c.State())
	})
	t.Run("OpenHint: off, not 5m", func(t *testing.T) {
		clk := cfgClock()
		c := with(t, clk, breaker.WithOpenHint(0))
		require.Zero(t, c.Config().OpenHint)
		cfgCall(c, 1, cfgHint(time.Minute))
		require.Equal(t, 10*time.Second, cfgLeft(t, c))
		c = with(t, clk)
		cfgCall(c, 1, cfgHint(time.Minute))
		require.Equal(t, time.Minute, cfgLeft(t, c))
		c = with(t, clk)
		cfgCall(c, 1, cfgHint(time.Hour))
		require.Equal(t, 5*time.Minute, cfgLeft(t, c))
	})
	t.Run("OpenBackoff: off", func(t *testing.T) {
		clk := cfgClock()
		c := with(t, clk, breaker.WithOpenBackoff(0, 0, 0))
		cfgCall(c, 1, errCfgDown)
		for range 3 {
			require.ErrorIs(t, cfgNext(clk, 10*time.Second-1, c, nil), breaker.ErrOpen)
			require.ErrorIs(t, cfgNext(clk, 1, c, errCfgDown), errCfgDown)
		}
	})
	t.Run("Ramp: all at once", func(t *testing.T) {
		clk := cfgClock()
		c := with(t, clk, breaker.WithRamp(0))
		cfgCall(c, 1, errCfgDown)
		clk.Add(10 * time.Second)
		for range 10 {
			require.NoError(t, cfgCall(c, 1, nil))
		}
	})
	t.Run("MaxInFlight: no bound", func(t *testing.T) {
		c := with(t, cfgClock(), breaker.WithMaxInFlight(0))
		for range 1000 {
			_, err := c.Acquire(context.Background())
			require.NoError(t, err)
		}
	})
	t.Run("Timeout: no deadline", func(t *testing.T) {
		b, err := breaker.New[int]("b", breaker.WithTimeout(0))
		require.NoError(t, err)
		_, err = b.Do(context.Background(), func(ctx context.Context) (int, error) {
			_, ok := ctx.Deadline()
			require.False(t, ok)
			return 0, nil
		})
		require.NoError(t, err)
	})
	t.Run("HealthJitter: none", func(t *testing.T) {
		c := with(t, cfgClock(), breaker.WithHealthCheck(time.Second, cfgHealthy, breaker.HealthJitter(0)))
		require.Zero(t, c.Config().HealthCheck.Jitter)
	})
	t.Run("Mode: Auto", func(t *testing.T) {
		c := with(t, cfgClock(), breaker.WithMode(0))
		require.Equal(t, breaker.Auto, c.Snapshot().Mode)
	})
	t.Run("no errors: nothing to ignore or fail on", func(t *testing.T) {
		c := with(t, cfgClock(), breaker.WithIgnore(), breaker.WithFailOn())
		cfgCall(c, 1, errCfgDown)
		require.Equal(t, breaker.Open, c.State())
	})
	t.Run("no hooks", func(t *testing.T) {
		c := with(t, cfgClock(), breaker.WithHooks(breaker.Hooks{}))
		cfgCall(c, 1, errCfgDown)
		require.Equal(t, breaker.Open, c.State())
	})
	t.Run("a zero snapshot is a fresh circuit's", func(t *testing.T) {
		clk := cfgClock()
		c := with(t, clk, breaker.WithSnapshot(breaker.Snapshot{}))
		require.Equal(t, with(t, clk).Snapshot(), c.Snapshot())
	})
}

// BC-144.
func TestProbesAndLeaseFollowWhatWasGiven(t *testing.T) {
	c := cfgCircuit(t, breaker.WithSuccessThreshold(4), breaker.WithOpenTimeout(time.Minute))
	require.Equal(t, 4, c.Config().HalfOpenProbes)
	require.Equal(t, time.Minute, c.Config().ProbeLease)
	require.NoError(t, c.Configure(breaker.WithSuccessThreshold(3), breaker.WithOpenTimeout(time.Second)))
	require.Equal(t, 3, c.Config().HalfOpenProbes, "they were not given, so they follow")
	require.Equal(t, time.Second, c.Config().ProbeLease)
	require.NoError(t, c.Configure(breaker.WithHalfOpenProbes(1), breaker.WithProbeLease(time.Hour)))
	require.NoError(t, c.Configure(breaker.WithSuccessThreshold(5), breaker.WithOpenTimeout(time.Minute)))
	require.Equal(t, 1, c.Config().HalfOpenProbes, "given, they stay")
	require.Equal(t, time.Hour, c.Config().ProbeLease)
}

// BC-144.
func TestOfAnOptionGivenTwiceTheLaterWins(t *testing.T) {
	c := cfgCircuit(t,
		breaker.WithFailureThreshold(1), breaker.WithFailureWindow(1), breaker.WithTrip(breaker.ConsecutiveFailures(1)),
		breaker.WithSuccessThreshold(1), breaker.WithHalfOpenProbes(1), breaker.WithOpenTimeout(1), breaker.WithOpenBackoff(1, time.Hour, 0),
		breaker.WithOpenHint(1), breaker.WithProbeLease(1), breaker.WithRamp(1), breaker.WithMaxInFlight(1), breaker.WithMode(breaker.Shadow),

		breaker.WithFailureThreshold(2), breaker.WithFailureWindow(2), breaker.WithTrip(breaker.ConsecutiveFailures(2)),
		breaker.WithSuccessThreshold(2), breaker.WithHalfOpenProbes(3), breaker.WithOpenTimeout(2), breaker.WithOpenBackoff(2, time.Hour, 1),
		breaker.WithOpenHint(2), breaker.WithProbeLease(2), breaker.WithRamp(2), breaker.WithMaxInFlight(2), breaker.WithMode(breaker.Auto),
	)
	require.Equal(t, cfgDefaultsBut(func(c *breaker.Config) {
		c.FailureThreshold, c.FailureWindow, c.Trip = 2, 2, []breaker.TripCondition{breaker.ConsecutiveFailures(2)}
		c.SuccessThreshold, c.HalfOpenProbes, c.OpenTimeout = 2, 3, 2
		c.OpenBackoff = breaker.OpenBackoff{Factor: 2, Max: time.Hour, Jitter: 1}
		c.OpenHint, c.ProbeLease, c.Ramp, c.MaxInFlight = 2, 2, 2, 2
	}), c.Config())
	require.Equal(t, breaker.Auto, c.Snapshot().Mode)

	t.Run("nonsense that was replaced does no harm", func(t *testing.T) {
		_, err := breaker.NewCircuit("c", breaker.WithFailureThreshold(-1), breaker.WithFailureThreshold(3))
		require.NoError(t, err)
	})
	t.Run("funcs", func(t *testing.T) {
		ignoreAll := func(error) breaker.Outcome { return breaker.Ignored }
		failAll := func(error) breaker.Outcome { return breaker.Failure }
		c := cfgCircuit(t, breaker.WithFailureThreshold(1), breaker.WithClassifier(ignoreAll), breaker.WithClassifier(failAll))
		cfgCall(c, 1, errCfgDown)
		require.Equal(t, breaker.Open, c.State())
		b, err := breaker.New[int]("b", breaker.WithFailureThreshold(1),
			breaker.WithResult(func(int, error) breaker.Outcome { return breaker.Failure }),
			breaker.WithResult(func(int, error) breaker.Outcome { return breaker.Success }))
		require.NoError(t, err)
		_, _ = b.Do(context.Background(), func(context.Context) (int, error) { return 0, errCfgDown })
		require.Equal(t, breaker.Closed, b.State())
	})
	t.Run("a Config is all its options", func(t *testing.T) {
		cfg := breaker.DefaultConfig()
		cfg.FailureThreshold, cfg.OpenTimeout = 7, time.Minute
		c := cfgCircuit(t, append([]breaker.Option{breaker.WithFailureThreshold(3), breaker.WithRamp(1)}, cfg.Options()...)...)
		require.Equal(t, cfg, c.Config())
		c = cfgCircuit(t, append(cfg.Options(), breaker.WithFailureThreshold(3), breaker.WithRamp(1))...)
		cfg.FailureThreshold, cfg.Ramp = 3, 1
		require.Equal(t, cfg, c.Config())
	})
}

func TestHooksIgnoreAndFailOnAddUp(t *testing.T) {
	var told []string
	hooks := func(name string) breaker.Hooks {
		return breaker.Hooks{StateChange: func(breaker.Transition) { told = append(told, name) }}
	}
	errA, errB, errC := errors.New("a"), errors.New("b"), errors.New("c")
	c := cfgCircuit(t, breaker.WithFailureThreshold(1),
		breaker.WithHooks(hooks("first")), breaker.WithIgnore(errA), breaker.WithFailOn(errC),
		breaker.WithHooks(hooks("second")), breaker.WithIgnore(errB, errC), breaker.WithFailOn(errB))
	cfgCall(c, 1, errA)
	require.Equal(t, breaker.Closed, c.State())
	cfgCall(c, 1, fmt.Errorf("wrapped: %w", errC))
	require.Equal(t, breaker.Open, c.State(), "FailOn beats Ignore")
	c.Reset()
	cfgCall(c, 1, errors.Join(errA, errB))
	require.Equal(t, breaker.Open, c.State())
	require.Equal(t, []string{"first", "second", "first", "second", "first", "second"}, told)

	require.NoError(t, c.Configure(breaker.WithIgnore(errCfgDown)))
	c.Reset()
	cfgCall(c, 1, errCfgDown)
	cfgCall(c, 1, errA)
	require.Equal(t, breaker.Closed, c.State(), "in Configure too")
}

func TestOptionsDoNotDependOnTheirOrder(t *testing.T) {
	span := rapid.Int64Range(1, int64(time.Hour))
	rapid.Check(t, func(t *rapid.T) {
		d := func(name string) time.Duration { return time.Duration(span.Draw(t, name)) }
		n := func(name string) int { return rapid.IntRange(1, 9).Draw(t, name) }
		opts := []breaker.Option{
			breaker.WithFailureThreshold(n("failure threshold")),
			breaker.WithFailureWindow(d("failure window")),
			breaker.WithTrip(breaker.FailureRate(0.5, n("min calls"), breaker.LastCalls(10)), breaker.TripWhen(breaker.LastCalls(3), func(breaker.Counts) bool { return false })),
			breaker.WithSuccessThreshold(n("success threshold")),
			breaker.WithHalfOpenProbes(n("probes")),
			breaker.WithOpenTimeout(d("open timeout")),
			breaker.WithOpenBackoff(2, time.Hour, 0.5),
			breaker.WithOpenHint(d("hint")),
			breaker.WithProbeLease(d("lease")),
			breaker.WithRamp(d("ramp")),
			breaker.WithMaxInFlight(n("in flight")),
			breaker.IgnoreCallerDeadline(),
			breaker.WithMode(breaker.Mode(rapid.IntRange(0, 3).Draw(t, "mode"))),
			breaker.WithHealthCheck(d("health"), cfgHealthy, breaker.HealthTimeout(d("health timeout"))),
			breaker.WithClassifier(breaker.DefaultClassifier),
			breaker.WithSnapshot(breaker.Snapshot{Epoch: 7, Mode: breaker.ForcedOpen, Totals: breaker.Totals{Calls: 1, Failures: 1}}),
			breaker.WithClock(cfgClock()),
			breaker.WithRand(func() float64 { return 0 }),
			breaker.WithLogger(slog.New(slog.DiscardHandler)),
		}
		given := slices.DeleteFunc(opts, func(breaker.Option) bool { return rapid.Bool().Draw(t, "left out") })
		shuffled := rapid.Permutation(given).Draw(t, "order")
		a, err := breaker.NewCircuit("c", given...)
		require.NoError(t, err)
		b, err := breaker.NewCircuit("c", shuffled...)
		require.NoError(t, err)
		require.Equal(t, a.Config(), b.Config())
		require.Equal(t, a.Snapshot().Mode, b.Snapshot().Mode)
		require.Equal(t, a.Snapshot().Epoch, b.Snapshot().Epoch)
	})
}

// BC-145.
func TestOptionsInTheWrongPlace(t *testing.T) {
	circuit := map[string]breaker.Option{
		"FailureThreshold":     breaker.WithFailureThreshold(1),
		"FailureWindow":        breaker.WithFailureWindow(1),
		"Trip":                 breaker.WithTrip(breaker.ConsecutiveFailures(1)),
		"SuccessThreshold":     breaker.WithSuccessThreshold(1),
		"HalfOpenProbes":       breaker.WithHalfOpenProbes(1),
		"OpenTimeout":          breaker.WithOpenTimeout(1),
		"OpenBackoff":          breaker.WithOpenBackoff(0, 0, 0),
		"OpenHint":             breaker.WithOpenHint(1),
		"ProbeLease":           breaker.WithProbeLease(1),
		"Ramp":                 breaker.WithRamp(1),
		"MaxInFlight":          breaker.WithMaxInFlight(1),
		"Classifier":           breaker.WithClassifier(breaker.DefaultClassifier),
		"Ignore":               breaker.WithIgnore(errCfgDown),
		"FailOn":               breaker.WithFailOn(errCfgDown),
		"IgnoreCallerDeadline": breaker.IgnoreCallerDeadline(),
		"Mode":                 breaker.WithMode(breaker.Auto),
		"HealthCheck":          breaker.WithHealthCheck(1, cfgHealthy),
		"Rand":                 breaker.WithRand(func() float64 { return 0 }),
		"Logger":               breaker.WithLogger(slog.New(slog.DiscardHandler)),
		"Config":               breaker.DefaultConfig().Options()[0],
	}
	fixed := map[string]breaker.Option{
		"Clock":    breaker.WithClock(cfgClock()),
		"Hooks":    breaker.WithHooks(breaker.Hooks{}),
		"Snapshot": breaker.WithSnapshot(breaker.Snapshot{}),
	}
	call := map[string]breaker.Option{
		"Result":  breaker.WithResult(func(int, error) breaker.Outcome { return breaker.Success }),
		"Timeout": breaker.WithTimeout(1),

		"Retry":         breaker.WithRetry(),
		"Fallback":      breaker.WithFallback("f", func(context.Context, error) (int, error) { return 0, nil }),
		"FallbackValue": breaker.WithFallbackValue(1),
		"Failover":      breaker.WithFailover("f", func(context.Context) (int, error) { return 0, nil }),
		"LastGood":      breaker.WithLastGood[int](1, func(context.Context) string { return "" }),
	}
	c := cfgCircuit(t)
	for where, take := range map[string]func(...breaker.Option) error{
		"New":        func(o ...breaker.Option) error { _, err := breaker.New[int]("b", o...); return err },
		"NewCircuit": func(o ...breaker.Option) error { _, err := breaker.NewCircuit("c", o...); return err },
		"Over":       func(o ...breaker.Option) error { _, err := breaker.Over[int](c, o...); return err },
		"Configure":  func(o ...breaker.Option) error { return c.Configure(o...) },
	} {
		t.Run(where, func(t *testing.T) {
			check := func(opts map[string]breaker.Option, takes bool) {
				for name, o := range opts {
					if takes {
						require.NoError(t, take(o), name)
						continue
					}
					require.EqualError(t, take(o), "breaker: "+name+": is not an option of "+where)
				}
			}
			check(circuit, where != "Over")
			check(fixed, where == "New" || where == "NewCircuit")
			check(call, where == "New" || where == "Over")
		})
	}
	t.Run("all are named", func(t *testing.T) {
		err := c.Configure(fixed["Clock"], call["Timeout"], breaker.WithOpenTimeout(-1), fixed["Hooks"])
		require.ElementsMatch(t, []string{
			"breaker: Clock: is not an option of Configure",
			"breaker: Hooks: is not an option of Configure",
			"breaker: OpenTimeout: must be above 0 and at most " + cfgMost + ", got -1ns",
			"breaker: Timeout: is not an option of Configure",
		}, cfgLines(err))
	})
	t.Run("a result of another type", func(t *testing.T) {
		_, err := breaker.Over[string](c, call["Result"])
		require.EqualError(t, err, "breaker: Result: must take the breaker's type string, got func(int, error) breaker.Outcome")
		_, err = breaker.New[any]("b", call["Result"])
		require.EqualError(t, err, "breaker: Result: must take the breaker's type interface {}, got func(int, error) breaker.Outcome")
		_, err = breaker.New[error]("b", breaker.WithResult(func(error, error) breaker.Outcome { return breaker.Success }))
		require.NoError(t, err)
	})
}

func TestTripsAndWindowsReadLikeTheirCalls(t *testing.T) {
	for want, got := range map[string]fmt.Stringer{
		"ConsecutiveFailures(5)":               breaker.ConsecutiveFailures(5),
		"FailureCount(10, 1m0s)":               breaker.FailureCount(10, time.Minute),
		"FailureRate(0.5, 20, LastCalls(100))": breaker.FailureRate(0.5, 20, breaker.LastCalls(100)),
		"SlowCallRate(2s, 0.9, 20, Last(10s))": breaker.SlowCallRate(2*time.Second, 0.9, 20, breaker.Last(10*time.Second)),
		"TripWhen(Last(1m0s), func)":           breaker.TripWhen(breaker.Last(time.Minute), func(breaker.Counts) bool { return true }),
		"Trip{}":                               breaker.TripCondition{},
		"LastCalls(3)":                         breaker.LastCalls(3),
		"Last(0s)":                             breaker.Window{},
	} {
		require.Equal(t, want, got.String())
	}
}

func TestMustPanicsWithTheError(t *testing.T) {
	require.Same(t, errCfgMust, func() (err any) {
		defer func() { err = recover() }()
		breaker.Must[*breaker.Circuit](nil, errCfgMust)
		return nil
	}())
	require.Equal(t, "b", breaker.Must(breaker.New[int]("b")).Name())
	require.Equal(t, "c", breaker.Must(breaker.NewCircuit("c")).Name())
}

var errCfgMust = errors.New("no")

// BC-145.
func TestConfigureWithNonsenseChangesNothing(t *testing.T) {
	for _, tt := range cfgFaults {
		clk := cfgClock()
		c := cfgCircuit(t, breaker.WithClock(clk), breaker.WithFailureThreshold(3), breaker.WithMode(breaker.Shadow))
		cfgCall(c, 2, errCfgDown)
		config, snap := c.Config(), c.Snapshot()

		// Something good beside it, so that a half-done change would show.
		err := c.Configure(breaker.WithFailureThreshold(9), tt.option, breaker.WithIgnore(errCfgDown), breaker.WithMode(breaker.Auto),
			breaker.WithRamp(-1), breaker.WithClassifier(func(error) breaker.Outcome { return breaker.Success }))
		require.ErrorContains(t, err, "Ramp: must be from 0 to "+cfgMost+", got -1ns")
		require.Greater(t, len(cfgLines(err)), 0, tt.want)
		require.Equal(t, config, c.Config(), tt.want)
		require.Equal(t, snap, c.Snapshot(), tt.want)
		cfgCall(c, 1, errCfgDown)
		require.Equal(t, breaker.Open, c.State(), tt.want)
	}
}

func TestConfigureWithoutOptionsChangesNothing(t *testing.T) {
	clk := cfgClock()
	c := cfgCircuit(t, breaker.WithClock(clk))
	cfgCall(c, 3, errCfgDown)
	snap, config := c.Snapshot(), c.Config()
	require.NoError(t, c.Configure())
	require.NoError(t, c.Configure(c.Config().Options()...))
	require.Equal(t, config, c.Config())
	require.Equal(t, snap, c.Snapshot())
}

// BC-147, BC-53.
func TestConfigureKeepsStateAndRemainingTime(t *testing.T) {
	clk := cfgClock()
	c := cfgCircuit(t, breaker.WithClock(clk), breaker.WithFailureThreshold(3), breaker.WithOpenTimeout(10*time.Second), breaker.WithSuccessThreshold(1))
	cfgCall(c, 3, errCfgDown)
	epoch := c.Snapshot().Epoch
	clk.Add(2 * time.Second)
	require.Equal(t, 8*time.Second, cfgLeft(t, c))

	require.NoError(t, c.Configure(breaker.WithOpenTimeout(time.Minute)))
	require.Equal(t, breaker.Open, c.State())
	require.Equal(t, 8*time.Second, cfgLeft(t, c), "the running period keeps its length")
	require.NoError(t, c.Configure(breaker.WithOpenTimeout(time.Second), breaker.WithTrip(breaker.FailureRate(0.5, 2, breaker.Last(time.Minute)))))
	require.Equal(t, 8*time.Second, cfgLeft(t, c))
	require.Equal(t, epoch, c.Snapshot().Epoch)

	require.ErrorIs(t, cfgNext(clk, 8*time.Second-1, c, nil), breaker.ErrOpen)
	require.ErrorIs(t, cfgNext(clk, 1, c, errCfgDown), errCfgDown, "a probe, at the time it was due")
	require.Equal(t, time.Second, cfgLeft(t, c), "the next opening has the new length")

	clk.Add(time.Second)
	p, err := c.Acquire(context.Background())
	require.NoError(t, err)
	require.NoError(t, c.Configure(breaker.WithSuccessThreshold(2), breaker.WithHalfOpenProbes(2)))
	require.Equal(t, breaker.HalfOpen, c.State())
	require.EqualValues(t, 1, c.Snapshot().Probes, "a probe that is out keeps its slot")
	p.Done(nil)
	require.Equal(t, breaker.HalfOpen, c.State(), "and its success counts, under the new threshold")
	require.NoError(t, cfgCall(c, 1, nil))
	require.Equal(t, breaker.Closed, c.State())
}

// BC-147, K34.
func TestConfigureKeepsCounts(t *testing.T) {
	rate := breaker.FailureRate(0.5, 4, breaker.Last(time.Minute))
	for _, tt := range []struct {
		name          string
		before, after []breaker.Option
		failures      uint64 // what is left of 3
		more          int    // failures until it opens, with the new settings
	}{
		{"the threshold", nil, []breaker.Option{breaker.WithFailureThreshold(4)}, 3, 1},
		{"a higher threshold", nil, []breaker.Option{breaker.WithFailureThreshold(9)}, 3, 6},
		{"a lower threshold, the same failure window",
			[]breaker.Option{breaker.WithFailureWindow(time.Minute)}, []breaker.Option{breaker.WithFailureThreshold(4)}, 3, 1},
		{"a lower number, the same count window",
			[]breaker.Option{breaker.WithTrip(breaker.FailureCount(5, time.Minute))}, []breaker.Option{breaker.WithTrip(breaker.FailureCount(4, time.Minute))}, 3, 1},
		{"a higher minimum, the same window of calls",
			[]breaker.Option{breaker.WithTrip(breaker.FailureRate(1, 5, breaker.LastCalls(10)))}, []breaker.Option{breaker.WithTrip(breaker.FailureRate(1, 9, breaker.LastCalls(10)))}, 3, 6},
		{"something else beside a window of calls",
			[]breaker.Option{breaker.WithTrip(breaker.FailureRate(1, 5, breaker.LastCalls(10)))}, []breaker.Option{breaker.WithOpenTimeout(time.Hour)}, 3, 2},
		{"a count more, the window of calls the same",
			[]breaker.Option{breaker.WithTrip(breaker.FailureRate(1, 5, breaker.LastCalls(10)))},
			[]breaker.Option{breaker.WithTrip(breaker.FailureRate(1, 5, breaker.LastCalls(10)), breaker.FailureCount(100, time.Minute))}, 3, 2},
		{"another window of calls",
			[]breaker.Option{breaker.WithTrip(breaker.FailureRate(1, 5, breaker.LastCalls(10)))}, []breaker.Option{breaker.WithTrip(breaker.FailureRate(1, 5, breaker.LastCalls(11)))}, 0, 5},
		{"a threshold already reached", nil, []breaker.Option{breaker.WithFailureThreshold(2)}, 3, 1},
		{"something else", nil, []breaker.Option{breaker.WithOpenTimeout(time.Minute), breaker.WithRamp(time.Second), breaker.WithSuccessThreshold(7)}, 3, 2},
		{"the same failure window", []breaker.Option{breaker.WithFailureWindow(time.Minute)}, []breaker.Option{breaker.WithOpenTimeout(time.Minute)}, 3, 2},
		{"the same rate window", []breaker.Option{breaker.WithTrip(rate)}, []breaker.Option{breaker.WithTrip(breaker.FailureRate(0.5, 5, breaker.Last(time.Minute)))}, 3, 2},
		{"the same windows, one condition less",
			[]breaker.Option{breaker.WithTrip(rate, breaker.FailureRate(1, 100, breaker.Last(time.Minute)))}, []breaker.Option{breaker.WithTrip(rate)}, 3, 1},
		{"another threshold, the same failure window",
			[]breaker.Option{breaker.WithFailureWindow(time.Minute)}, []breaker.Option{breaker.WithFailureThreshold(6)}, 3, 3},
		{"another number, the same count window",
			[]breaker.Option{breaker.WithTrip(breaker.FailureCount(4, time.Minute))}, []breaker.Option{breaker.WithTrip(breaker.FailureCount(5, time.Minute))}, 3, 2},
		{"one window more, the other the same",
			[]breaker.Option{breaker.WithTrip(rate)}, []breaker.Option{breaker.WithTrip(rate, breaker.FailureRate(1, 100, breaker.LastCalls(100)))}, 3, 1},
		{"another rate window", []breaker.Option{breaker.WithTrip(rate)}, []breaker.Option{breaker.WithTrip(breaker.FailureRate(0.5, 4, breaker.Last(time.Hour)))}, 0, 4},
		{"calls instead of time", []breaker.Option{breaker.WithTrip(rate)}, []breaker.Option{breaker.WithTrip(breaker.FailureRate(0.5, 4, breaker.LastCalls(10)))}, 0, 4},
		{"another count window",
			[]breaker.Option{breaker.WithTrip(breaker.FailureCount(4, time.Minute))}, []breaker.Option{breaker.WithTrip(breaker.FailureCount(4, time.Hour))}, 0, 4},
		{"the same count window",
			[]breaker.Option{breaker.WithTrip(breaker.FailureCount(4, time.Minute))}, []breaker.Option{breaker.WithTrip(breaker.FailureCount(4, time.Minute))}, 3, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			clk := cfgClock()
			c := cfgCircuit(t, append([]breaker.Option{breaker.WithClock(clk), breaker.WithFailureThreshold(5)}, tt.before...)...)
			cfgCall(c, 3, errCfgDown)
			totals := c.Snapshot().Totals
			require.NoError(t, c.Configure(tt.after...))
			require.Equal(t, tt.failures, c.Snapshot().Counts.Failures)
			require.Equal(t, totals, c.Snapshot().Totals)
			require.Equal(t, breaker.Closed, c.State(), "configuring trips nothing")
			cfgCall(c, tt.more-1, errCfgDown)
			require.Equal(t, breaker.Closed, c.State())
			cfgCall(c, 1, errCfgDown)
			require.Equal(t, breaker.Open, c.State())
		})
	}
	t.Run("a run survives a new window for as long as the policy counts runs", func(t *testing.T) {
		c := cfgCircuit(t, breaker.WithClock(cfgClock()), breaker.WithTrip(breaker.ConsecutiveFailures(5), rate))
		cfgCall(c, 3, errCfgDown)
		require.NoError(t, c.Configure(breaker.WithTrip(breaker.ConsecutiveFailures(5), breaker.FailureRate(0.5, 100, breaker.LastCalls(100)))))
		cfgCall(c, 1, errCfgDown)
		require.Equal(t, breaker.Closed, c.State())
		cfgCall(c, 1, errCfgDown)
		require.Equal(t, breaker.Open, c.State())
	})
	t.Run("successes before and after a new window", func(t *testing.T) {
		c := cfgCircuit(t, breaker.WithClock(cfgClock()), breaker.WithTrip(breaker.FailureRate(0.5, 4, breaker.LastCalls(100))))
		cfgCall(c, 50, nil)
		require.NoError(t, c.Configure(breaker.WithTrip(breaker.FailureRate(0.5, 4, breaker.LastCalls(10)))))
		require.Zero(t, c.Snapshot().Counts.Successes)
		cfgCall(c, 2, nil)
		require.EqualValues(t, 2, c.Snapshot().Counts.Successes)
		cfgCall(c, 1, errCfgDown)
		require.Equal(t, breaker.Closed, c.State())
		cfgCall(c, 1, errCfgDown)
		require.Equal(t, breaker.Open, c.State(), "2 of 4")
	})
}

// A run of failures is as long after Configure as before, whatever the failure window was.
func TestConfigureKeepsTheRunUnderAnotherFailureWindow(t *testing.T) {
	for _, tt := range []struct {
		name          string
		before, after []breaker.Option
		more          int // failures until it opens, with the new settings
	}{
		{"one instead of none", nil, []breaker.Option{breaker.WithFailureWindow(time.Minute)}, 1},
		{"one instead of none, a higher threshold", nil, []breaker.Option{breaker.WithFailureWindow(time.Minute), breaker.WithFailureThreshold(7)}, 3},
		{"a longer one", []breaker.Option{breaker.WithFailureWindow(time.Minute)}, []breaker.Option{breaker.WithFailureWindow(time.Hour)}, 1},
		{"a shorter one that still holds all", []breaker.Option{breaker.WithFailureWindow(time.Hour)}, []breaker.Option{breaker.WithFailureWindow(time.Minute)}, 1},
		{"a shorter one that has room for two", []breaker.Option{breaker.WithFailureWindow(time.Hour)}, []breaker.Option{breaker.WithFailureWindow(time.Second + 1)}, 3},
		{"none any more", []breaker.Option{breaker.WithFailureWindow(time.Minute)}, []breaker.Option{breaker.WithFailureWindow(0)}, 1},
		{"one instead of a count", []breaker.Option{breaker.WithTrip(breaker.FailureCount(5, time.Minute))},
			append(breaker.DefaultConfig().Options(), breaker.WithFailureWindow(time.Minute)), 1},
		{"one instead of a window of calls", []breaker.Option{breaker.WithTrip(breaker.FailureRate(1, 5, breaker.LastCalls(5)))},
			append(breaker.DefaultConfig().Options(), breaker.WithFailureWindow(time.Minute)), 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			clk := cfgClock()
			c := cfgCircuit(t, append([]breaker.Option{breaker.WithClock(clk)}, tt.before...)...)
			cfgCall(c, 1, nil)
			for range 4 {
				cfgNext(clk, time.Second, c, errCfgDown)
			}
			require.NoError(t, c.Configure(tt.after...))
			require.Equal(t, breaker.Closed, c.State(), "configuring trips nothing")
			cfgCall(c, tt.more-1, errCfgDown)
			require.Equal(t, breaker.Closed, c.State())
			cfgCall(c, 1, errCfgDown)
			require.Equal(t, breaker.Open, c.State())
		})
	}
	t.Run("a success ends it", func(t *testing.T) {
		c := cfgCircuit(t, breaker.WithClock(cfgClock()))
		cfgCall(c, 4, errCfgDown)
		require.NoError(t, c.Configure(breaker.WithFailureWindow(time.Minute)))
		cfgCall(c, 1, nil)
		cfgCall(c, 4, errCfgDown)
		require.Equal(t, breaker.Closed, c.State())
		require.EqualValues(t, 4, c.Snapshot().ConsecutiveFailures)
	})
	t.Run("it ages from its last failure on", func(t *testing.T) {
		clk := cfgClock()
		c := cfgCircuit(t, breaker.WithClock(clk))
		cfgCall(c, 4, errCfgDown)
		clk.Add(time.Minute - 1)
		require.NoError(t, c.Configure(breaker.WithFailureWindow(time.Minute)))
		require.EqualValues(t, 4, c.Snapshot().ConsecutiveFailures)
		clk.Add(1)
		require.Zero(t, c.Snapshot().ConsecutiveFailures)
		cfgCall(c, 4, errCfgDown)
		require.Equal(t, breaker.Closed, c.State())
	})
}

// A condition more, or another one, on the same window leaves what the window holds.
func TestConfigureKeepsAWindowUnderOtherConditions(t *testing.T) {
	for name, w := range map[string]breaker.Window{"calls": breaker.LastCalls(20), "time": breaker.Last(time.Minute)} {
		rate := breaker.FailureRate(0.5, 6, w)
		slow := func(limit time.Duration) breaker.TripCondition { return breaker.SlowCallRate(limit, 0.5, 6, w) }
		for what, tt := range map[string]struct{ before, after []breaker.TripCondition }{
			"a slow call rate beside it":       {[]breaker.TripCondition{rate}, []breaker.TripCondition{rate, slow(time.Second)}},
			"a slow call rate in front of it":  {[]breaker.TripCondition{rate}, []breaker.TripCondition{slow(time.Second), rate}},
			"two slow call rates beside it":    {[]breaker.TripCondition{rate}, []breaker.TripCondition{rate, slow(time.Second), slow(time.Minute)}},
			"the slow call rate away":          {[]breaker.TripCondition{rate, slow(time.Second)}, []breaker.TripCondition{rate}},
			"another limit beside it":          {[]breaker.TripCondition{rate, slow(time.Second)}, []breaker.TripCondition{rate, slow(time.Minute)}},
			"a failure rate for the slow rate": {[]breaker.TripCondition{slow(time.Second)}, []breaker.TripCondition{rate}},
		} {
			t.Run(name+", "+what, func(t *testing.T) {
				c := cfgCircuit(t, breaker.WithClock(cfgClock()), breaker.WithTrip(tt.before...))
				cfgCall(c, 2, nil)
				cfgCall(c, 3, errCfgDown)
				require.NoError(t, c.Configure(breaker.WithTrip(tt.after...)))
				require.EqualValues(t, 3, c.Snapshot().Counts.Failures)
				require.EqualValues(t, 2, c.Snapshot().Counts.Successes)
				cfgCall(c, 1, nil)
				require.Equal(t, breaker.Open, c.State(), "3 of 6 have failed")
			})
		}
	}
	t.Run("what was slow by another limit is not slow", func(t *testing.T) {
		clk := cfgClock()
		c := cfgCircuit(t, breaker.WithClock(clk), breaker.WithTrip(breaker.SlowCallRate(time.Second, 1, 3, breaker.LastCalls(10))))
		slowly := func() {
			_ = c.Run(context.Background(), func(context.Context) error { clk.Add(time.Second); return nil })
		}
		slowly()
		slowly()
		require.EqualValues(t, 2, c.Snapshot().Counts.Slow)
		require.NoError(t, c.Configure(breaker.WithTrip(breaker.SlowCallRate(2*time.Second, 1, 3, breaker.LastCalls(10)))))
		require.Zero(t, c.Snapshot().Counts.Slow)
		require.EqualValues(t, 2, c.Snapshot().Counts.Successes)
		slowly()
		require.Equal(t, breaker.Closed, c.State())
	})
}

// A reload of the same file must not undo what an operator has said since.
// BC-147.
func TestReloadOfAnUnchangedModeKeepsSetMode(t *testing.T) {
	file := func(mode string) []breaker.Option {
		cfg, err := breaker.ParseConfig(map[string]any{"mode": mode})
		require.NoError(t, err)
		return cfg.Options()
	}
	c := cfgCircuit(t, file("auto")...)
	mode := func() breaker.Mode { return c.Snapshot().Mode }
	c.SetMode(breaker.ForcedOpen)
	require.NoError(t, c.Configure(file("auto")...))
	require.Equal(t, breaker.ForcedOpen, mode(), "unchanged in the file")
	require.NoError(t, c.Configure(breaker.WithMode(breaker.Auto)))
	require.Equal(t, breaker.ForcedOpen, mode(), "nor by the option")
	require.NoError(t, c.Configure(breaker.WithOpenTimeout(time.Second)))
	require.Equal(t, breaker.ForcedOpen, mode(), "not mentioned")
	require.NoError(t, c.Configure(file("shadow")...))
	require.Equal(t, breaker.Shadow, mode(), "changed in the file")
	require.Equal(t, breaker.Shadow, c.Config().Mode)
	c.SetMode(breaker.ForcedClosed)
	require.Equal(t, breaker.Shadow, c.Config().Mode, "the mode to start in")
	require.NoError(t, c.Configure(file("auto")...))
	require.Equal(t, breaker.Auto, mode())
}

// Circuits made with the same options share their configuration, if nothing in it differs: a function counts as the same only
// if it is the same closure.
func TestCircuitsMadeAlikeKeepApart(t *testing.T) {
	t.Run("functions", func(t *testing.T) {
		var all []*breaker.Circuit
		for i := range 20 {
			all = append(all, cfgCircuit(t, breaker.WithFailureThreshold(1), breaker.WithClassifier(func(error) breaker.Outcome {
				return breaker.Outcome(i % 2) // Success or Failure
			})))
		}
		for i, c := range all {
			cfgCall(c, 1, errCfgDown)
			require.Equal(t, i%2 == 1, c.State() == breaker.Open, i)
		}
	})
	t.Run("hooks", func(t *testing.T) {
		var heard [3]int
		for i := range heard {
			c := cfgCircuit(t, breaker.WithHooks(breaker.Hooks{StateChange: func(breaker.Transition) { heard[i]++ }}))
			c.Trip(nil)
		}
		require.Equal(t, [3]int{1, 1, 1}, heard)
	})
	t.Run("numbers and lists", func(t *testing.T) {
		for i := range 3 { // the second and third time round they may be shared
			a := cfgCircuit(t, breaker.WithFailureThreshold(7))
			b := cfgCircuit(t, breaker.WithFailureThreshold(8))
			d := cfgCircuit(t, breaker.WithTrip(breaker.FailureCount(7, time.Minute)), breaker.WithIgnore(errCfgDown))
			require.Equal(t, []int{7, 8}, []int{a.Config().FailureThreshold, b.Config().FailureThreshold}, i)
			require.Len(t, d.Config().Trip, 1)
			cfgCall(d, 10, errCfgDown)
			require.Equal(t, breaker.Closed, d.State())
		}
	})
	t.Run("Configure", func(t *testing.T) {
		a, b := cfgCircuit(t), cfgCircuit(t)
		require.NoError(t, a.Configure(breaker.WithFailureThreshold(1)))
		require.Equal(t, breaker.DefaultConfig(), b.Config())
		require.Equal(t, breaker.DefaultConfig(), cfgCircuit(t).Config())
	})
	t.Run("time of a bubble", func(t *testing.T) {
		since := func(t *testing.T) {
			require.WithinDuration(t, time.Now(), cfgCircuit(t).Snapshot().Since, time.Second)
		}
		for range 2 {
			since(t)
			synctest.Test(t, func(t *testing.T) {
				since(t)
				time.Sleep(time.Hour)
				since(t)
			})
		}
	})
}

func TestFuncsInForceStayUnderAConfig(t *testing.T) {
	errSoft := errors.New("soft")
	c := cfgCircuit(t, breaker.WithFailureThreshold(100),
		breaker.WithClassifier(func(err error) breaker.Outcome {
			if errors.Is(err, errSoft) {
				return breaker.Ignored
			}
			return breaker.Failure
		}),
		breaker.WithTrip(breaker.TripWhen(breaker.LastCalls(10), func(n breaker.Counts) bool { return n.Failures >= 2 })))
	require.Empty(t, c.Config().Trip, "a function is not data")

	cfg := breaker.DefaultConfig()
	cfg.Trip = []breaker.TripCondition{breaker.ConsecutiveFailures(50)}
	require.NoError(t, c.Configure(cfg.Options()...))
	require.Equal(t, cfg, c.Config())
	cfgCall(c, 5, errSoft)
	require.Equal(t, breaker.Closed, c.State())
	cfgCall(c, 2, errCfgDown)
	require.Equal(t, breaker.Open, c.State(), "TripWhen and the classifier still decide")

	require.NoError(t, c.Configure(breaker.WithTrip(breaker.ConsecutiveFailures(3))))
	c.Reset()
	cfgCall(c, 2, errCfgDown)
	require.Equal(t, breaker.Closed, c.State(), "WithTrip replaces it")
	cfgCall(c, 1, errCfgDown)
	require.Equal(t, breaker.Open, c.State())
}

// What a caller does to its slices later does not reach the circuit, nor the other way round.
func TestConfigSharesNoMemory(t *testing.T) {
	trips := []breaker.TripCondition{breaker.ConsecutiveFailures(3)}
	c := cfgCircuit(t, breaker.WithTrip(trips...))
	trips[0] = breaker.ConsecutiveFailures(1)
	want := []breaker.TripCondition{breaker.ConsecutiveFailures(3)}
	require.Equal(t, want, c.Config().Trip)
	c.Config().Trip[0] = breaker.ConsecutiveFailures(1)
	require.Equal(t, want, c.Config().Trip)

	cfg := c.Config()
	d := cfgCircuit(t, cfg.Options()...)
	cfg.Trip[0] = breaker.ConsecutiveFailures(1)
	require.Equal(t, want, d.Config().Trip)
	cfgCall(d, 1, errCfgDown)
	require.Equal(t, breaker.Closed, d.State())
}

func TestHealthCheckFromAFile(t *testing.T) {
	file := func(text string) []breaker.Option {
		m, err := cfgDecodeJSON([]byte(text), false)
		require.NoError(t, err)
		cfg, err := breaker.ParseConfig(m)
		require.NoError(t, err)
		return cfg.Options()
	}
	opened := func(t *testing.T, opts ...breaker.Option) (c *breaker.Circuit, checks *atomic.Int32) {
		checks = new(atomic.Int32)
		check := func(context.Context) error { checks.Add(1); return errCfgDown }
		c = cfgCircuit(t, slices.Concat([]breaker.Option{breaker.WithHealthCheck(time.Second, check)}, opts)...)
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		c.Trip(nil)
		return c, checks
	}
	after := func(d time.Duration) {
		time.Sleep(d) // the bubble's
		synctest.Wait()
	}
	inBubble := func(name string, f func(*testing.T)) {
		t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
	}
	inBubble("inert without a check", func(t *testing.T) {
		c := cfgCircuit(t, file(`{"health_check": {"enabled": true, "interval": "1s"}}`)...)
		c.Trip(nil)
		after(5 * time.Second)
		require.Equal(t, breaker.Open, c.State())
	})
	inBubble("tunes the check given in code", func(t *testing.T) {
		c, checks := opened(t, file(`{"health_check": {"interval": "7s"}}`)...)
		require.Equal(t, 7*time.Second, c.Config().HealthCheck.Interval)
		after(7*time.Second - 1)
		require.Zero(t, checks.Load())
		after(1)
		require.EqualValues(t, 1, checks.Load())
	})
	inBubble("switches it off", func(t *testing.T) {
		c, checks := opened(t, file(`{"health_check": {"enabled": false}}`)...)
		require.False(t, c.Config().HealthCheck.Enabled)
		after(10 * time.Second)
		require.Zero(t, checks.Load())
	})
	inBubble("at run time", func(t *testing.T) {
		c, checks := opened(t)
		after(time.Second)
		require.EqualValues(t, 1, checks.Load())
		require.NoError(t, c.Configure(file(`{"health_check": {"enabled": false}}`)...))
		after(5 * time.Second)
		require.EqualValues(t, 1, checks.Load(), "off")
		require.NoError(t, c.Configure(file(`{"health_check": {"interval": "3s"}}`)...))
		after(3 * time.Second)
		require.EqualValues(t, 2, checks.Load(), "on again, in the same open period")
	})
}

// A check that is replaced in the middle of an open period does not go on.
// BC-147.
func TestConfigureReplacesTheHealthCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var before, after atomic.Int32
		check := func(n *atomic.Int32) func(context.Context) error {
			return func(context.Context) error { n.Add(1); return errCfgDown }
		}
		c := cfgCircuit(t, breaker.WithHealthCheck(time.Second, check(&before)))
		defer func() { require.NoError(t, c.Close()) }()
		c.Trip(nil)
		time.Sleep(time.Second) // the bubble's
		synctest.Wait()
		require.EqualValues(t, 1, before.Load())
		require.NoError(t, c.Configure(breaker.WithHealthCheck(time.Second, check(&after))))
		time.Sleep(3 * time.Second)
		synctest.Wait()
		require.EqualValues(t, 1, before.Load())
		require.Positive(t, after.Load())
	})
}

func TestANilHealthOptionIsNamed(t *testing.T) {
	require.NotPanics(t, func() {
		_, err := breaker.NewCircuit("c", breaker.WithHealthCheck(time.Second, cfgHealthy, nil))
		require.ErrorContains(t, err, "breaker: HealthOption: must not be nil")
	})
}

// How long a call took is not known when nothing asked for the time as it started.
func TestCallsFromBeforeASlowCallRateAreNotSlow(t *testing.T) {
	clk := cfgClock()
	c := cfgCircuit(t, breaker.WithClock(clk))
	clk.Add(time.Hour)
	p, err := c.Acquire(context.Background())
	require.NoError(t, err)
	require.NoError(t, c.Configure(breaker.WithTrip(breaker.SlowCallRate(time.Second, 0.5, 1, breaker.LastCalls(10)))))
	p.Done(nil)
	require.Zero(t, c.Snapshot().Totals.Slow)
	require.Equal(t, breaker.Closed, c.State())

	p, err = c.Acquire(context.Background())
	require.NoError(t, err)
	clk.Add(time.Second)
	p.Done(nil)
	require.EqualValues(t, 1, c.Snapshot().Totals.Slow)
	require.Equal(t, breaker.Open, c.State())
}

// cfgManual is a clock for fuzzing: nothing waits on it.
type cfgManual struct {
	mu  sync.Mutex
	now time.Time
}

func (c *cfgManual) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *cfgManual) After(d time.Duration) <-chan time.Time {
	ch := make(chan time.Time, 1)
	if d <= 0 {
		ch <- c.Now()
	}
	return ch
}

func (c *cfgManual) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// cfgCallAFewTimes calls a circuit in several ways; none may panic, and the accounts must balance.
func cfgCallAFewTimes(t testing.TB, c *breaker.Circuit) {
	t.Helper()
	for _, err := range []error{nil, errCfgDown, errCfgDown, cfgHint(math.MaxInt64), nil} {
		_ = cfgCall(c, 1, err)
		_, _ = c.State(), c.Ready()
	}
	if p, err := c.Acquire(context.Background()); err == nil {
		p.Settle(breaker.Ignored, nil)
	}
	s := c.Snapshot()
	require.EqualValues(t, 6, s.Totals.Calls+s.Totals.Rejected)
	require.Zero(t, s.InFlight)
	require.False(t, math.IsNaN(s.Counts.Rate()))
	c.Trip(errCfgDown)
	_ = cfgCall(c, 1, nil)
	c.Reset()
	_ = cfgCall(c, 1, nil)
}

// cfgOptions makes options out of bytes: any option, any argument.
func cfgOptions(data []byte) (opts []breaker.Option) {
	u64 := func() (v uint64) {
		var b [8]byte
		data = data[copy(b[:], data):]
		return binary.LittleEndian.Uint64(b[:])
	}
	pick := func(of int) int { return int(u64() % uint64(of)) }
	n := func() int {
		return []int{1, 3, 0, -1, math.MaxInt32, int(int32(u64()))}[pick(6)]
	}
	d := func() time.Duration {
		return []time.Duration{1, time.Second, 0, -1, 1 << 62, time.Duration(u64())}[pick(6)]
	}
	f := func() float64 {
		return []float64{0.5, 1, 0, 2, math.NaN(), math.Float64frombits(u64())}[pick(6)]
	}
	window := func() breaker.Window {
		return []breaker.Window{breaker.LastCalls(n()), breaker.Last(d()), {}}[pick(3)]
	}
	trip := func() breaker.TripCondition {
		switch pick(6) {
		case 0:
			return breaker.ConsecutiveFailures(n())
		case 1:
			return breaker.FailureCount(n(), d())
		case 2:
			return breaker.FailureRate(f(), n(), window())
		case 3:
			return breaker.SlowCallRate(d(), f(), n(), window())
		case 4:
			return breaker.TripWhen(window(), func(c breaker.Counts) bool { return c.Failures > 1 })
		}
		return breaker.TripCondition{}
	}
	for len(data) > 0 {
		var o breaker.Option
		switch pick(25) {
		case 0:
			o = breaker.WithFailureThreshold(n())
		case 1:
			o = breaker.WithFailureWindow(d())
		case 2:
			o = breaker.WithTrip(trip())
		case 3:
			o = breaker.WithTrip(trip(), trip(), trip())
		case 4:
			o = breaker.WithSuccessThreshold(n())
		case 5:
			o = breaker.WithHalfOpenProbes(n())
		case 6:
			o = breaker.WithOpenTimeout(d())
		case 7:
			o = breaker.WithOpenBackoff(f(), d(), f())
		case 8:
			o = breaker.WithOpenHint(d())
		case 9:
			o = breaker.WithProbeLease(d())
		case 10:
			o = breaker.WithRamp(d())
		case 11:
			o = breaker.WithMaxInFlight(n())
		case 12:
			o = breaker.WithClassifier([]func(error) breaker.Outcome{breaker.DefaultClassifier, nil, func(error) breaker.Outcome { return 77 }}[pick(3)])
		case 13:
			o = breaker.WithIgnore([][]error{nil, {errCfgDown}, {nil}}[pick(3)]...)
		case 14:
			o = breaker.WithFailOn([][]error{nil, {errCfgDown}, {nil}}[pick(3)]...)
		case 15:
			o = breaker.IgnoreCallerDeadline()
		case 16:
			o = breaker.WithMode(breaker.Mode(pick(6)))
		case 17:
			o = breaker.WithHealthCheck(d(), []func(context.Context) error{cfgHealthy, nil}[pick(2)], breaker.HealthTimeout(d()), breaker.HealthJitter(d()))
		case 18:
			o = breaker.WithRand([]func() float64{nil, f, func() float64 { return math.NaN() }, func() float64 { panic("rand") }}[pick(4)])
		case 19:
			o = breaker.WithLogger([]*slog.Logger{nil, slog.New(slog.NewTextHandler(io.Discard, nil))}[pick(2)])
		case 20:
			o = breaker.WithHooks(breaker.Hooks{Call: func(context.Context, breaker.CallEvent) { panic("hook") }, StateChange: func(breaker.Transition) {}})
		case 21:
			o = breaker.WithSnapshot(breaker.Snapshot{
				State: breaker.State(pick(4)), Mode: breaker.Mode(pick(5)), Epoch: u64() >> pick(64), ConsecutiveFailures: u64() >> pick(64),
				Since: time.Unix(int64(u64())>>pick(40), 0), Until: time.Unix(int64(u64())>>pick(40), 0), LastFailure: "x",
			})
		case 22:
			o = breaker.WithResult(func(int, error) breaker.Outcome { return breaker.Outcome(pick(5)) })
		case 23:
			o = breaker.WithTimeout(d())
		}
		opts = append(opts, o)
	}
	return opts
}

// No combination of options makes a constructor panic, and what it accepts works.
func FuzzOptions(f *testing.F) {
	f.Add([]byte(nil))
	f.Add([]byte(strings.Repeat("\x00\x00\x00\x00\x00\x00\x00\x00", 24)))
	for option := range 25 {
		for arg := range 6 {
			var b []byte
			for _, v := range []uint64{uint64(option), uint64(arg), uint64(arg), uint64(arg)} {
				b = binary.LittleEndian.AppendUint64(b, v)
			}
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 2048 {
			return
		}
		clk := &cfgManual{now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
		opts := append(cfgOptions(data), breaker.WithClock(clk))
		b, err := breaker.New[int]("b", opts...)
		if err != nil {
			require.Nil(t, b)
			for _, line := range cfgLines(err) {
				require.True(t, strings.HasPrefix(line, "breaker: "), line)
			}
			return
		}
		c := b.Circuit()
		require.NoError(t, c.Configure(c.Config().Options()...), "what is in force is valid")
		before := c.Snapshot().Totals
		for range 4 {
			for _, err := range []error{errCfgDown, nil, cfgHint(time.Hour)} {
				_, _ = b.Do(context.Background(), func(context.Context) (int, error) { return 1, err })
				clk.add(time.Hour)
			}
		}
		s := c.Snapshot()
		require.EqualValues(t, 12, s.Totals.Calls+s.Totals.Rejected-before.Calls-before.Rejected)
		require.Zero(t, s.InFlight)
		require.NoError(t, b.Close())
	})
}

// BC-53.
func TestDurationIsReadOncePerDecision(t *testing.T) {
	t.Run("a lease keeps its length", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.R0()
			r.Trip()
			w.At(10 * time.Second)
			r.Gate()
			require.NoError(w, r.C.Configure(breaker.WithProbeLease(time.Second)))
			w.At(20*time.Second - 1)
			r.Rejected()
			w.At(20 * time.Second)
			r.Gate()
			w.At(21 * time.Second)
			r.Succeeds(1)
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
					breakertest.Guard(t, breakertest.Patience, func() {
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
								err = breakertest.ErrBoom
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
		breakertest.BothClocks(t, func(w *breakertest.World) {
			r := w.R0()
			views := []*breaker.Breaker[int]{
				breaker.Must(breaker.Over[int](r.C)),
				breaker.Must(breaker.Over[int](r.C, breaker.WithTimeout(time.Hour))),
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
					_ = r.C.Configure(breaker.WithOpenTimeout(time.Duration(1+i%2)*time.Second), breaker.WithFailureThreshold(3+i%2))
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
			r.Is(breaker.Closed)
			require.Zero(w, r.C.Snapshot().Totals.Failures)
			require.EqualValues(w, 1000, r.C.Snapshot().Totals.Calls)
			r.Idle()
		})
	})
}

// BC-62.
func TestNilAndZeroFailPolitely(t *testing.T) {
	breakertest.BothClocks(t, func(w *breakertest.World) {
		states := map[string]func(*breakertest.Rig){
			"closed":    func(*breakertest.Rig) {},
			"open":      func(r *breakertest.Rig) { r.Trip() },
			"half-open": func(r *breakertest.Rig) { r.Trip(); r.Add(10 * time.Second); r.Succeeds(1) },
		}
		for name, to := range states {
			for _, m := range []breaker.Mode{breaker.Auto, breaker.ForcedOpen, breaker.ForcedClosed, breaker.Shadow} {
				r := w.R0(breaker.WithSuccessThreshold(2))
				to(r)
				r.C.SetMode(m)
				before := r.C.Snapshot()
				_, err := r.B.Do(w.Context(), nil)
				require.ErrorIs(w, err, breaker.ErrNilFunc, "%s %v", name, m)
				require.ErrorIs(w, r.B.Try(w.Context(), nil).Err, breaker.ErrNilFunc)
				require.ErrorIs(w, r.C.Run(w.Context(), nil), breaker.ErrNilFunc)
				_, err = r.B.Wrap(nil)(w.Context())
				require.ErrorIs(w, err, breaker.ErrNilFunc)
				_, err = r.B.DoOr(w.Context(), nil, nil)
				require.ErrorIs(w, err, breaker.ErrNilFunc)
				require.Equal(w, before, r.C.Snapshot(), "%s %v: something was counted or taken", name, m)
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
				require.Contains(t, fmt.Sprint(breakertest.PanicOf(use)), "Circuit", name)
			}
		}
		for _, b := range []*breaker.Breaker[int]{nil, {}} {
			for name, use := range map[string]func(){
				"Do": func() { _, _ = b.Do(ctx, fn) }, "Do nil": func() { _, _ = b.Do(ctx, nil) }, "Try": func() { b.Try(ctx, fn) },
				"DoOr": func() { _, _ = b.DoOr(ctx, fn, nil) }, "Wrap": func() { b.Wrap(fn) }, "Circuit": func() { b.Circuit() },
				"Name": func() { b.Name() }, "State": func() { b.State() }, "Ready": func() { b.Ready() },
				"Snapshot": func() { b.Snapshot() }, "Close": func() { _ = b.Close() },
			} {
				require.Contains(t, fmt.Sprint(breakertest.PanicOf(use)), "Breaker", name)
			}
		}
	})
	t.Run("nil hooks and a nil alternative", func(t *testing.T) {
		breakertest.BothClocks(t, func(w *breakertest.World) {
			r := w.R0(breaker.WithHooks(breaker.Hooks{}))
			r.Trip()
			r.Rejected()
			_, err := r.B.DoOr(w.Context(), func(context.Context) (int, error) { return 1, nil }, nil)
			require.ErrorIs(w, err, breaker.ErrOpen)
		})
	})
}

// BC-145.
func TestExtremesThatAreAllowedWork(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		const century = 100 * 365 * 24 * time.Hour
		r := w.R0(breaker.WithOpenTimeout(century), breaker.WithProbeLease(century), breaker.WithRamp(century), breaker.WithOpenHint(century), breaker.WithFailureThreshold(1))
		r.Trip()
		require.Equal(w, century, r.Rejected().RetryAfter())
		r.C.OfferProbe()
		r.Gate()
		require.Equal(w, century, r.Rejected().RetryAfter())
	})
}

// BC-147.
func TestRebuildingDoesNotForget(t *testing.T) {
	t.Run("half-open, with its progress and its probe", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.R0(breaker.WithSuccessThreshold(3), breaker.WithHalfOpenProbes(2))
			r.Trip()
			w.At(10 * time.Second)
			r.Succeeds(1)
			probe := r.Gate()
			require.NoError(w, r.C.Configure(breaker.WithHalfOpenProbes(1)))
			require.ErrorIs(w, r.Rejected(), breaker.ErrTooManyProbes)
			probe.Finish(nil)
			r.Succeeds(1)
			r.Is(breaker.Closed)
		})
	})
	t.Run("views share the circuit", func(t *testing.T) {
		breakertest.BothClocks(t, func(w *breakertest.World) {
			r := w.R0()
			texts := breaker.Must(breaker.Over[string](r.C))
			again := breaker.Must(breaker.Over[int](r.C, breaker.WithTimeout(time.Hour)))
			_, _ = texts.Do(w.Context(), func(context.Context) (string, error) { return "", breakertest.ErrBoom })
			_, _ = again.Do(w.Context(), func(context.Context) (int, error) { return 0, breakertest.ErrBoom })
			r.Fails(1)
			_, err := texts.Do(w.Context(), func(context.Context) (string, error) { return "", nil })
			require.ErrorIs(w, err, breaker.ErrOpen)
			require.Same(w, r.C, texts.Circuit())
			require.NoError(w, texts.Close())
			require.Equal(w, "test", again.Name())
		})
	})
	t.Run("applying what is in force changes nothing", func(t *testing.T) {
		breakertest.BothClocks(t, func(w *breakertest.World) {
			for name, policy := range policies() {
				r := w.R0(policy, breaker.WithOpenBackoff(2, time.Hour, 0), breaker.WithMaxInFlight(50))
				r.Fails(9)
				config := r.C.Config()
				require.NoError(w, r.C.Configure(config.Options()...))
				require.Equal(w, config, r.C.Config())
				r.Is(breaker.Closed)
				r.Fails(1)
				require.Equal(w, breaker.Open, r.C.State(), name)
			}
		})
	})
}

// K33.
func TestCircuitsAreIsolated(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		shared := []breaker.Option{breaker.WithFailureWindow(60 * time.Second), breaker.WithOpenTimeout(15 * time.Second)}
		a, b := w.Circuit(shared...), w.Circuit(shared...)
		a.Trip()
		b.Is(breaker.Closed)
		b.Succeeds(10)
		b.Fails(4)
		b.Is(breaker.Closed)
		require.EqualValues(w, 5, a.C.Snapshot().Totals.Failures)
		require.EqualValues(w, 4, b.C.Snapshot().Totals.Failures)
		require.NoError(w, a.C.Configure(breaker.WithFailureThreshold(1)))
		require.Equal(w, 5, b.C.Config().FailureThreshold)
	})
}

// Changing the configuration raced with calls.
func TestConfigureWhileCalling(t *testing.T) {
	breakertest.BothClocks(t, func(w *breakertest.World) {
		r := w.R0(breaker.WithOpenTimeout(time.Microsecond))
		settings := [][]breaker.Option{
			{breaker.WithFailureThreshold(2)},
			{breaker.WithTrip(breaker.FailureRate(0.5, 5, breaker.LastCalls(10)))},
			{breaker.WithTrip(breaker.FailureRate(0.5, 5, breaker.Last(time.Second)), breaker.FailureCount(5, time.Second))},
			{breaker.WithTrip(breaker.SlowCallRate(time.Second, 0.5, 5, breaker.LastCalls(10)))},
			{breaker.WithTrip(breaker.TripWhen(breaker.LastCalls(10), func(c breaker.Counts) bool { return c.Failures > 3 }))},
			{breaker.WithMaxInFlight(3)},
			{breaker.WithMaxInFlight(0)},
			{breaker.WithRamp(time.Second)},
			{breaker.WithRamp(0), breaker.WithSuccessThreshold(1)},
			{breaker.WithMode(breaker.Shadow)},
			{breaker.WithMode(breaker.Auto)},
		}
		var finished, rejected atomic.Uint64
		var all sync.WaitGroup
		for g := range 8 {
			all.Go(func() {
				for i := range 2000 {
					err := error(nil)
					if (g+i)%3 == 0 {
						err = breakertest.ErrBoom
					}
					var got error
					v := breakertest.PanicOf(func() { got = r.C.Run(context.Background(), func(context.Context) error { return err }) })
					if !assert.Nil(w, v, "a call panicked by itself") {
						return
					}
					if errors.Is(got, breaker.ErrOpen) || errors.Is(got, breaker.ErrTooManyInFlight) {
						rejected.Add(1)
						continue
					}
					finished.Add(1)
				}
			})
		}
		for g := range 2 {
			all.Go(func() {
				for i := range 300 {
					assert.NoError(w, r.C.Configure(settings[(g+i)%len(settings)]...))
					_ = r.C.Config()
					s := r.C.Snapshot()
					assert.LessOrEqual(w, s.Counts.Failures, s.Totals.Failures)
					_, _ = r.C.State(), r.C.Ready()
					runtime.Gosched()
				}
			})
		}
		all.Wait()
		totals := r.C.Snapshot().Totals
		require.Equal(w, finished.Load(), totals.Calls)
		require.Equal(w, rejected.Load(), totals.Rejected)
		r.Idle()
	})
}

// BR-69: by default a probe keeps its slot at least as long as it may take.
func TestTheLeaseIsByDefaultNoShorterThanTheTimeout(t *testing.T) {
	lease := func(opts ...breaker.Option) time.Duration {
		g, err := breaker.NewGroup[int](opts...)
		require.NoError(t, err)
		defer g.Close()
		c := breaker.Must(breaker.New[int]("b", opts...)).Circuit().Config()
		require.Equal(t, c.ProbeLease, g.Get("k").Circuit().Config().ProbeLease)
		return c.ProbeLease
	}
	require.Equal(t, 30*time.Second, lease())
	require.Equal(t, 30*time.Second, lease(breaker.WithTimeout(20*time.Second)))
	require.Equal(t, 40*time.Second, lease(breaker.WithTimeout(40*time.Second)))
	require.Equal(t, 15*time.Second, lease(breaker.WithOpenTimeout(15*time.Second)))
	require.Equal(t, 20*time.Second, lease(breaker.WithTimeout(20*time.Second), breaker.WithOpenTimeout(15*time.Second)))
	require.Equal(t, 5*time.Second, lease(breaker.WithTimeout(20*time.Second), breaker.WithProbeLease(5*time.Second)))
}
