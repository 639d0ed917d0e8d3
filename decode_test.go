package breaker_test

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/breakerkit/breaker"
)

func cfgDefaultsBut(change func(*breaker.Config)) breaker.Config {
	c := breaker.DefaultConfig()
	if change != nil {
		change(&c)
	}
	return c
}

// cfgLines are the faults that an error joins.
func cfgLines(err error) []string {
	if err == nil {
		return nil
	}
	return strings.Split(err.Error(), "\n")
}

func TestParseConfigReadsEverySetting(t *testing.T) {
	type table = map[string]any
	for _, tt := range []struct {
		name string
		in   table
		want func(*breaker.Config)
	}{
		{"nil map", nil, nil},
		{"empty", table{}, nil},
		{"failure_threshold", table{"failure_threshold": 7}, func(c *breaker.Config) { c.FailureThreshold = 7 }},
		{"failure_window", table{"failure_window": "60s"}, func(c *breaker.Config) { c.FailureWindow = time.Minute }},
		{"failure_window_ms", table{"failure_window_ms": 60000}, func(c *breaker.Config) { c.FailureWindow = time.Minute }},
		{"failure_window zero", table{"failure_window": "0"}, nil},
		{"success_threshold", table{"success_threshold": 3}, func(c *breaker.Config) { c.SuccessThreshold, c.HalfOpenProbes = 3, 3 }},
		{"half_open_probes", table{"half_open_probes": 3}, func(c *breaker.Config) { c.HalfOpenProbes = 3 }},
		{"half_open_probes beside success_threshold", table{"half_open_probes": 1, "success_threshold": 3},
			func(c *breaker.Config) { c.SuccessThreshold, c.HalfOpenProbes = 3, 1 }},
		{"open_timeout", table{"open_timeout": "15s"}, func(c *breaker.Config) { c.OpenTimeout, c.ProbeLease = 15*time.Second, 15*time.Second }},
		{"open_timeout_ms", table{"open_timeout_ms": 1500}, func(c *breaker.Config) { c.OpenTimeout, c.ProbeLease = 1500*time.Millisecond, 1500*time.Millisecond }},
		{"probe_lease", table{"probe_lease": "5s"}, func(c *breaker.Config) { c.ProbeLease = 5 * time.Second }},
		{"probe_lease_ms beside open_timeout", table{"probe_lease_ms": 5000, "open_timeout": "15s"},
			func(c *breaker.Config) { c.OpenTimeout, c.ProbeLease = 15*time.Second, 5*time.Second }},
		{"open_backoff", table{"open_backoff": table{"factor": 2, "max": "5m", "jitter": 0.2}},
			func(c *breaker.Config) {
				c.OpenBackoff = breaker.OpenBackoff{Factor: 2, Max: 5 * time.Minute, Jitter: 0.2}
			}},
		{"open_backoff without jitter, in ms", table{"open_backoff": table{"factor": 1.5, "max_ms": 60000}},
			func(c *breaker.Config) { c.OpenBackoff = breaker.OpenBackoff{Factor: 1.5, Max: time.Minute} }},
		{"open_backoff off", table{"open_backoff": table{}}, nil},
		{"open_backoff zeros", table{"open_backoff": table{"factor": 0, "max": "0s", "jitter": 0.0}}, nil},
		{"open_hint off", table{"open_hint": "0s"}, func(c *breaker.Config) { c.OpenHint = 0 }},
		{"open_hint_ms", table{"open_hint_ms": 1}, func(c *breaker.Config) { c.OpenHint = time.Millisecond }},
		{"ramp", table{"ramp": "1m30s"}, func(c *breaker.Config) { c.Ramp = 90 * time.Second }},
		{"ramp_ms", table{"ramp_ms": 90000}, func(c *breaker.Config) { c.Ramp = 90 * time.Second }},
		{"max_in_flight", table{"max_in_flight": 100}, func(c *breaker.Config) { c.MaxInFlight = 100 }},
		{"ignore_caller_deadline", table{"ignore_caller_deadline": true}, func(c *breaker.Config) { c.IgnoreCallerDeadline = true }},
		{"ignore_caller_deadline false", table{"ignore_caller_deadline": false}, nil},
		{"mode auto", table{"mode": "auto"}, nil},
		{"mode forced-open", table{"mode": "forced-open"}, func(c *breaker.Config) { c.Mode = breaker.ForcedOpen }},
		{"mode FORCED_CLOSED", table{"mode": "FORCED_CLOSED"}, func(c *breaker.Config) { c.Mode = breaker.ForcedClosed }},
		{"mode shadow", table{"mode": "Shadow"}, func(c *breaker.Config) { c.Mode = breaker.Shadow }},
		{"health_check off", table{"health_check": table{"enabled": false}}, func(c *breaker.Config) { c.HealthCheck.Enabled = false }},
		{"health_check, the setting of cc-relay", table{"health_check": table{"enabled": true, "interval_ms": 10000}}, nil},
		{"health_check in full", table{"health_check": table{"enabled": true, "interval": "1s", "timeout": "2s", "jitter": "3s"}},
			func(c *breaker.Config) {
				c.HealthCheck = breaker.HealthCheck{Enabled: true, Interval: time.Second, Timeout: 2 * time.Second, Jitter: 3 * time.Second}
			}},
		{"health_check in ms", table{"health_check": table{"interval_ms": 1000, "timeout_ms": 2000, "jitter_ms": 3000}},
			func(c *breaker.Config) {
				c.HealthCheck = breaker.HealthCheck{Enabled: true, Interval: time.Second, Timeout: 2 * time.Second, Jitter: 3 * time.Second}
			}},
		{"trip", table{"trip": []any{
			table{"consecutive_failures": 5},
			table{"failure_count": table{"failures": 10, "within": "1m"}},
			table{"failure_count": table{"failures": 10, "within_ms": 1}},
			table{"failure_rate": table{"rate": 0.5, "min_calls": 20, "last": "10s"}},
			table{"failure_rate": table{"rate": 1, "min_calls": 20, "last_calls": 100}},
			table{"slow_call_rate": table{"slow": "2s", "rate": 0.5, "min_calls": 20, "last_calls": 100}},
			table{"slow_call_rate": table{"slow_ms": 2000, "rate": 0.000001, "min_calls": 20, "last_ms": 10000}},
		}}, func(c *breaker.Config) {
			c.Trip = []breaker.TripCondition{
				breaker.ConsecutiveFailures(5),
				breaker.FailureCount(10, time.Minute),
				breaker.FailureCount(10, time.Millisecond),
				breaker.FailureRate(0.5, 20, breaker.Last(10*time.Second)),
				breaker.FailureRate(1, 20, breaker.LastCalls(100)),
				breaker.SlowCallRate(2*time.Second, 0.5, 20, breaker.LastCalls(100)),
				breaker.SlowCallRate(2*time.Second, 0.000001, 20, breaker.Last(10*time.Second)),
			}
		}},
		{"TOML: array of tables", table{"trip": []map[string]any{{"consecutive_failures": int64(5)}}},
			func(c *breaker.Config) { c.Trip = []breaker.TripCondition{breaker.ConsecutiveFailures(5)} }},
		{"older YAML: keys of any type", table{
			"health_check": map[any]any{"timeout": "1s"},
			"trip":         []any{map[any]any{"failure_count": map[any]any{"failures": 2, "within": "1s"}}},
		}, func(c *breaker.Config) {
			c.HealthCheck.Timeout = time.Second
			c.Trip = []breaker.TripCondition{breaker.FailureCount(2, time.Second)}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := breaker.ParseConfig(tt.in)
			require.NoError(t, err)
			require.Equal(t, cfgDefaultsBut(tt.want), got)

			b, err := breaker.New[int]("b", got.Options()...)
			require.NoError(t, err)
			require.Equal(t, got, b.Circuit().Config(), "what is in force is what was read")
			c, err := breaker.NewCircuit("c", b.Circuit().Config().Options()...)
			require.NoError(t, err)
			require.Equal(t, got, c.Config())
		})
	}
}

func TestParseConfigReadsNumbersOfEveryDecoder(t *testing.T) {
	for _, five := range []any{5, int64(5), uint64(5), 5.0, json.Number("5"), json.Number("5.0"), json.Number("0.5e1")} {
		c, err := breaker.ParseConfig(map[string]any{"max_in_flight": five, "ramp_ms": five, "open_backoff": map[string]any{"factor": five, "max": "1m"}})
		require.NoError(t, err, "%T(%v)", five, five)
		require.Equal(t, 5, c.MaxInFlight, "%T(%v)", five, five)
		require.Equal(t, 5*time.Millisecond, c.Ramp, "%T(%v)", five, five)
		require.Equal(t, 5.0, c.OpenBackoff.Factor, "%T(%v)", five, five)
	}
	c, err := breaker.ParseConfig(map[string]any{"failure_threshold": 1e3, "ramp_ms": json.Number("1e3")})
	require.NoError(t, err)
	require.Equal(t, 1000, c.FailureThreshold)
	require.Equal(t, time.Second, c.Ramp)

	for _, none := range []any{
		1.5, json.Number("1.5"), math.NaN(), math.Inf(1), math.Inf(-1), 1e19, -1e19, uint64(math.MaxUint64),
		json.Number("9223372036854775808"), json.Number("1e400"), json.Number(""), json.Number("x"), "5", true, nil,
		[]any{5}, map[string]any{"n": 5},
	} {
		_, err := breaker.ParseConfig(map[string]any{"failure_threshold": none, "ramp_ms": none})
		lines := cfgLines(err)
		require.Len(t, lines, 2, "%T(%v)", none, none)
		require.Contains(t, lines[0], "breaker: failure_threshold: must be a whole number of ")
		require.Contains(t, lines[1], "breaker: ramp_ms: must be a whole number of milliseconds")
	}

	_, err = breaker.ParseConfig(map[string]any{"open_hint_ms": int64(math.MaxInt64), "ramp_ms": int64(math.MinInt64)})
	require.Len(t, cfgLines(err), 2, "the product would not fit")
	require.ErrorContains(t, err, "breaker: open_hint_ms: must be a whole number of milliseconds, at most 292 years of them, got 9223372036854775807")
	require.ErrorContains(t, err, "breaker: ramp_ms: must be a whole number of milliseconds, at most 292 years of them, got -9223372036854775808")
}

func TestParseConfigNamesWhatIsWrong(t *testing.T) {
	type table = map[string]any
	const most = "1281023h53m38.427387904s"
	for _, tt := range []struct {
		name string
		in   table
		want []string // the lines of the error, without "breaker: "
	}{
		{"unknown key", table{"open_duration_ms": 30000}, []string{
			"open_duration_ms: is none of failure_threshold, failure_window, half_open_probes, health_check, ignore_caller_deadline, " +
				"max_in_flight, mode, open_backoff, open_hint, open_timeout, probe_lease, ramp, success_threshold, trip"}},
		{"only durations have _ms", table{"failure_threshold_ms": 1, "open_backoff": table{"factor_ms": 2}}, []string{
			"failure_threshold_ms: is none of failure_threshold, failure_window, half_open_probes, health_check, ignore_caller_deadline, " +
				"max_in_flight, mode, open_backoff, open_hint, open_timeout, probe_lease, ramp, success_threshold, trip",
			"open_backoff.factor_ms: is none of factor, jitter, max"}},
		{"unknown keys in tables", table{"health_check": table{"intervall": "1s"}, "open_backoff": map[any]any{2: 3}}, []string{
			"health_check.intervall: is none of enabled, interval, jitter, timeout",
			"open_backoff.2: is none of factor, jitter, max"}},
		{"twice", table{"open_timeout": "30s", "open_timeout_ms": 30000, "health_check": table{"interval": "1s", "interval_ms": 1000}}, []string{
			"health_check.interval_ms: must not be given together with health_check.interval",
			"open_timeout_ms: must not be given together with open_timeout"}},
		{"durations", table{"failure_window": 60, "open_timeout": "30", "open_hint": "soon", "probe_lease": nil, "ramp": json.Number("5"),
			"open_backoff": table{"factor": 2, "max": true}}, []string{
			`failure_window: must be a duration such as "30s" (milliseconds go under failure_window_ms), got 60`,
			`open_backoff.max: must be a duration such as "30s", got true`,
			`open_hint: must be a duration such as "30s", got "soon"`,
			`open_timeout: must be a duration such as "30s", got "30"`,
			`probe_lease: must be a duration such as "30s", got nothing`,
			`ramp: must be a duration such as "30s" (milliseconds go under ramp_ms), got 5`}},
		{"a duration string under _ms", table{"open_timeout_ms": "30s"}, []string{
			`open_timeout_ms: must be a whole number of milliseconds, at most 292 years of them, got "30s"`}},
		{"a duration too long for a string", table{"open_timeout": "9999999h"}, []string{
			`open_timeout: must be a duration such as "30s", got "9999999h"`}},
		{"other types", table{"ignore_caller_deadline": "yes", "mode": "open", "open_backoff": 2, "health_check": []any{}, "trip": table{"consecutive_failures": 5}}, []string{
			"health_check: must be a table, got a list",
			`ignore_caller_deadline: must be true or false, got "yes"`,
			`mode: must be one of auto, forced-open, forced-closed, shadow, got "open"`,
			"open_backoff: must be a table, got 2",
			"trip: must be a list, got a table with consecutive_failures"}},
		{"more types", table{"mode": 3, "health_check": table{"enabled": 1}, "open_backoff": table{"factor": "2", "max": "1m", "jitter": false}, "trip": nil}, []string{
			"health_check.enabled: must be true or false, got 1",
			"mode: must be one of auto, forced-open, forced-closed, shadow, got 3",
			`open_backoff.factor: must be a number, got "2"`,
			"open_backoff.jitter: must be a number, got false",
			"trip: must be a list, got nothing"}},
		{"what no decoder gives", table{"failure_threshold": complex64(5), "health_check": struct{}{}}, []string{
			"failure_threshold: must be a whole number of 64 bits, got a value of type complex64",
			"health_check: must be a table, got a value of type struct {}"}},
		{"ranges", table{"failure_threshold": 0, "failure_window": "-1s", "success_threshold": -1, "half_open_probes": 0, "open_timeout": "-5s",
			"open_hint_ms": -1, "probe_lease": "0s", "ramp": "-1ns", "max_in_flight": -1,
			"open_backoff": table{"factor": math.NaN(), "max_ms": -1, "jitter": 1.5},
			"health_check": table{"interval": "-5s", "timeout_ms": 0, "jitter": "-1s"}}, []string{
			"failure_threshold: must be from 1 to 2147483647, got 0",
			"failure_window: must be from 0 to " + most + ", got -1s",
			"success_threshold: must be from 1 to 2147483647, got -1",
			"half_open_probes: must be from 1 to 2147483647, got 0",
			"open_timeout: must be above 0 and at most " + most + ", got -5s",
			"open_backoff.factor: must be at least 1 and finite, got NaN",
			"open_backoff.jitter: must be from 0 to 1, got 1.5",
			"open_hint_ms: must be from 0 to " + most + ", got -1ms",
			"probe_lease: must be above 0 and at most " + most + ", got 0s",
			"ramp: must be from 0 to " + most + ", got -1ns",
			"max_in_flight: must be at least 0, got -1",
			"health_check.interval: must be above 0 and at most " + most + ", got -5s",
			"health_check.timeout_ms: must be above 0 and at most " + most + ", got 0s",
			"health_check.jitter: must be from 0 to " + most + ", got -1s"}},
		{"a source's fault is not that of what follows it", table{"success_threshold": 0, "open_timeout_ms": 0}, []string{
			"success_threshold: must be from 1 to 2147483647, got 0",
			"open_timeout_ms: must be above 0 and at most " + most + ", got 0s"}},
		{"too long", table{"open_timeout": "2562047h"}, []string{
			"open_timeout: must be above 0 and at most " + most + ", got 2562047h0m0s"}},
		{"backoff below the open timeout", table{"open_timeout": "1m", "open_backoff": table{"factor": 2, "max": "30s"}}, []string{
			"open_backoff.max: must be at least the open timeout of 1m0s and at most " + most + ", got 30s"}},
		{"trip: conditions", table{"trip": []any{
			"consecutive_failures", table{}, table{"consecutive_failures": 5, "failure_count": table{}}, table{"failures": 5},
			table{"consecutive_failures": table{"failures": 5}}, table{"failure_count": 5}, table{"failure_rate": nil},
		}}, []string{
			`trip[0]: must be a table with one key, consecutive_failures or failure_count or failure_rate or slow_call_rate, got "consecutive_failures"`,
			"trip[1]: must be a table with one key, consecutive_failures or failure_count or failure_rate or slow_call_rate, got an empty table",
			"trip[2]: must be a table with one key, consecutive_failures or failure_count or failure_rate or slow_call_rate, got a table with consecutive_failures, failure_count",
			"trip[3].failures: is none of consecutive_failures, failure_count, failure_rate, slow_call_rate",
			"trip[4].consecutive_failures: must be a whole number of 64 bits, got a table with failures",
			"trip[5].failure_count: must be a table, got 5",
			"trip[6].failure_rate: must be a table, got nothing"}},
		{"trip: types and unknown keys", table{"trip": []any{
			table{"failure_count": table{"failures": "10", "within": 60, "last": "1m"}},
			table{"failure_rate": table{"rate": "50%", "min_calls": 0.5, "last_calls": "100"}},
			table{"slow_call_rate": table{"slow": 2, "rate": true, "min_calls": nil, "last": 10, "slow_calls": 1}},
		}}, []string{
			`trip[0].failure_count.failures: must be a whole number of 64 bits, got "10"`,
			"trip[0].failure_count.last: is none of failures, within",
			`trip[0].failure_count.within: must be a duration such as "30s" (milliseconds go under trip[0].failure_count.within_ms), got 60`,
			`trip[1].failure_rate.last_calls: must be a whole number of 64 bits, got "100"`,
			"trip[1].failure_rate.min_calls: must be a whole number of 64 bits, got 0.5",
			`trip[1].failure_rate.rate: must be a number, got "50%"`,
			`trip[2].slow_call_rate.last: must be a duration such as "30s" (milliseconds go under trip[2].slow_call_rate.last_ms), got 10`,
			"trip[2].slow_call_rate.min_calls: must be a whole number of 64 bits, got nothing",
			"trip[2].slow_call_rate.rate: must be a number, got true",
			`trip[2].slow_call_rate.slow: must be a duration such as "30s" (milliseconds go under trip[2].slow_call_rate.slow_ms), got 2`,
			"trip[2].slow_call_rate.slow_calls: is none of last, last_calls, min_calls, rate, slow"}},
		{"trip: missing and double", table{"trip": []any{
			table{"failure_count": table{}},
			table{"failure_rate": table{}},
			table{"slow_call_rate": table{"last_ms": 1000, "last_calls": 100, "slow": "1s", "slow_ms": 1000, "rate": 1}},
		}}, []string{
			"trip[0].failure_count.failures: must be given",
			"trip[0].failure_count.within: must be given",
			"trip[1].failure_rate.last: must be given, or last_calls",
			"trip[1].failure_rate.min_calls: must be given",
			"trip[1].failure_rate.rate: must be given",
			"trip[2].slow_call_rate.slow_ms: must not be given together with trip[2].slow_call_rate.slow",
			"trip[2].slow_call_rate.min_calls: must be given",
			"trip[2].slow_call_rate.last_calls: must not be given together with trip[2].slow_call_rate.last_ms"}},
		{"trip: ranges", table{"trip": []any{
			table{"consecutive_failures": 0},
			table{"failure_count": table{"failures": -1, "within_ms": 0}},
			table{"failure_rate": table{"rate": 1.01, "min_calls": 0, "last": "-10s"}},
			table{"failure_rate": table{"rate": math.NaN(), "min_calls": 10, "last_calls": 5}},
			table{"slow_call_rate": table{"slow_ms": -2, "rate": 0, "min_calls": -1, "last_calls": 0}},
			table{"slow_call_rate": table{"slow": "2s", "rate": 1e-7, "min_calls": 1, "last_ms": 0}},
			table{"failure_rate": table{"rate": 1, "min_calls": 1, "last_calls": -1}},
			table{"failure_rate": table{"rate": 1, "min_calls": 1, "last_calls": 1 << 25}},
		}}, []string{
			"trip[0].consecutive_failures: must be from 1 to 2147483647, got 0",
			"trip[1].failure_count.failures: must be from 1 to 2147483647, got -1",
			"trip[1].failure_count.within_ms: must be above 0 and at most " + most + ", got 0s",
			"trip[2].failure_rate.rate: must be above 0 and at most 1, in steps of one millionth, got 1.01",
			"trip[2].failure_rate.min_calls: must be from 1 to 2147483647, got 0",
			"trip[2].failure_rate.last: must be above 0 and at most " + most + ", got -10s",
			"trip[3].failure_rate.rate: must be above 0 and at most 1, in steps of one millionth, got NaN",
			"trip[3].failure_rate.min_calls: must not be above trip[3].failure_rate.last_calls of 5, got 10",
			"trip[4].slow_call_rate.slow_ms: must be above 0 and at most " + most + ", got -2ms",
			"trip[4].slow_call_rate.rate: must be above 0 and at most 1, in steps of one millionth, got 0",
			"trip[4].slow_call_rate.min_calls: must be from 1 to 2147483647, got -1",
			"trip[4].slow_call_rate.last_calls: must be LastCalls or Last of more than 0, got 0",
			"trip[5].slow_call_rate.rate: must be above 0 and at most 1, in steps of one millionth, got 1e-07",
			"trip[5].slow_call_rate.last_ms: must be LastCalls or Last of more than 0, got 0",
			"trip[6].failure_rate.last_calls: must be from 1 to 16777216, got -1",
			"trip[7].failure_rate.last_calls: must be from 1 to 16777216, got 33554432"}},
		{"a type that is wrong hides no range that is wrong", table{"failure_threshold": "5", "ramp": "-1s", "hint": 0,
			"trip": []any{table{"failure_rate": table{"rate": 7, "min_calls": "20", "last": "10s"}}, 5}}, []string{
			`failure_threshold: must be a whole number of 64 bits, got "5"`,
			"hint: is none of failure_threshold, failure_window, half_open_probes, health_check, ignore_caller_deadline, " +
				"max_in_flight, mode, open_backoff, open_hint, open_timeout, probe_lease, ramp, success_threshold, trip",
			`trip[0].failure_rate.min_calls: must be a whole number of 64 bits, got "20"`,
			"trip[1]: must be a table with one key, consecutive_failures or failure_count or failure_rate or slow_call_rate, got 5",
			"trip[0].failure_rate.rate: must be above 0 and at most 1, in steps of one millionth, got 7",
			"ramp: must be from 0 to " + most + ", got -1s"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := breaker.ParseConfig(tt.in)
			require.Error(t, err)
			require.Zero(t, got)
			for i := range tt.want {
				tt.want[i] = strings.ReplaceAll("breaker: "+tt.want[i], "of 64 bits", "of "+strconv.Itoa(strconv.IntSize)+" bits")
			}
			require.Equal(t, tt.want, cfgLines(err))
		})
	}
}

func TestZeroConfigIsRefused(t *testing.T) {
	_, err := breaker.NewCircuit("c", breaker.Config{}.Options()...)
	require.ErrorContains(t, err, "FailureThreshold: must be from 1 to 2147483647, got 0", "a literal's zeros are zeros")
}

// cfgDocumented is the file in ParseConfig's documentation, as JSON.
const cfgDocumented = `{
	"failure_threshold": 5,
	"failure_window": "60s",
	"trip": [
		{"consecutive_failures": 5},
		{"failure_count": {"failures": 100, "within": "1m"}},
		{"failure_rate": {"rate": 0.5, "min_calls": 20, "last": "10s"}},
		{"slow_call_rate": {"slow": "2s", "rate": 0.9, "min_calls": 20, "last_calls": 100}}
	],
	"success_threshold": 2,
	"half_open_probes": 2,
	"open_timeout": "30s",
	"open_backoff": {"factor": 2, "max": "5m", "jitter": 0.2},
	"open_hint": "5m",
	"probe_lease": "30s",
	"ramp": "0s",
	"max_in_flight": 0,
	"ignore_caller_deadline": false,
	"mode": "auto",
	"health_check": {"enabled": true, "interval": "10s", "timeout": "5s", "jitter": "0s"}
}`

// cfgDecodeJSON decodes in both ways that encoding/json has for numbers.
func cfgDecodeJSON(text []byte, useNumber bool) (m map[string]any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if useNumber {
		d.UseNumber()
	}
	return m, d.Decode(&m)
}

func TestParseConfigFromJSON(t *testing.T) {
	want := cfgDefaultsBut(func(c *breaker.Config) {
		c.FailureWindow = time.Minute
		c.Trip = []breaker.TripCondition{
			breaker.ConsecutiveFailures(5),
			breaker.FailureCount(100, time.Minute),
			breaker.FailureRate(0.5, 20, breaker.Last(10*time.Second)),
			breaker.SlowCallRate(2*time.Second, 0.9, 20, breaker.LastCalls(100)),
		}
		c.OpenBackoff = breaker.OpenBackoff{Factor: 2, Max: 5 * time.Minute, Jitter: 0.2}
	})
	for _, useNumber := range []bool{false, true} {
		m, err := cfgDecodeJSON([]byte(cfgDocumented), useNumber)
		require.NoError(t, err)
		got, err := breaker.ParseConfig(m)
		require.NoError(t, err)
		require.Equal(t, want, got, "UseNumber: %v", useNumber)
	}
}

// A map that was read is not changed: it may be somebody's configuration cache.
func TestParseConfigLeavesItsArgumentAlone(t *testing.T) {
	a, err := cfgDecodeJSON([]byte(cfgDocumented), false)
	require.NoError(t, err)
	b, err := cfgDecodeJSON([]byte(cfgDocumented), false)
	require.NoError(t, err)
	_, err = breaker.ParseConfig(a)
	require.NoError(t, err)
	require.Equal(t, b, a)
}

// Any configuration that can be written reads back as it was meant.
func TestParseConfigRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, want := cfgDrawConfig(t)
		got, err := breaker.ParseConfig(m)
		require.NoError(t, err)
		require.Equal(t, want, got)
		b, err := breaker.New[int]("b", got.Options()...)
		require.NoError(t, err)
		require.Equal(t, got, b.Circuit().Config())
	})
}

// cfgDrawConfig draws a valid configuration with one of the ways to write it.
func cfgDrawConfig(t *rapid.T) (map[string]any, breaker.Config) {
	c := breaker.DefaultConfig()
	m := map[string]any{}
	flag := func(name string) bool { return rapid.Bool().Draw(t, name) }
	count := func(in map[string]any, key string, to *int, least int) {
		if flag(key + " given") {
			*to = rapid.IntRange(least, 1000).Draw(t, key)
			in[key] = rapid.SampledFrom([]any{*to, int64(*to), uint64(*to), float64(*to)}).Draw(t, key+" type")
		}
	}
	span := func(in map[string]any, key string, to *time.Duration, least time.Duration) {
		if !flag(key + " given") {
			return
		}
		ms := rapid.Int64Range(least.Milliseconds(), 1e9).Draw(t, key)
		*to = time.Duration(ms) * time.Millisecond
		if flag(key + " in ms") {
			in[key+"_ms"] = ms
		} else {
			in[key] = to.String()
		}
	}
	share := func(in map[string]any, key string, to *float64) {
		*to = float64(rapid.IntRange(1, 1e6).Draw(t, key)) / 1e6
		in[key] = *to
	}
	count(m, "failure_threshold", &c.FailureThreshold, 1)
	span(m, "failure_window", &c.FailureWindow, 0)
	count(m, "success_threshold", &c.SuccessThreshold, 1)
	c.HalfOpenProbes = c.SuccessThreshold
	count(m, "half_open_probes", &c.HalfOpenProbes, 1)
	span(m, "open_timeout", &c.OpenTimeout, time.Millisecond)
	c.ProbeLease = c.OpenTimeout
	span(m, "probe_lease", &c.ProbeLease, time.Millisecond)
	span(m, "open_hint", &c.OpenHint, 0)
	span(m, "ramp", &c.Ramp, 0)
	count(m, "max_in_flight", &c.MaxInFlight, 0)
	if flag("backoff") {
		b := map[string]any{"factor": 2}
		c.OpenBackoff = breaker.OpenBackoff{Factor: 2, Max: c.OpenTimeout}
		b["max"] = c.OpenBackoff.Max.String()
		share(b, "jitter", &c.OpenBackoff.Jitter)
		m["open_backoff"] = b
	}
	c.IgnoreCallerDeadline = flag("ignore_caller_deadline")
	m["ignore_caller_deadline"] = c.IgnoreCallerDeadline
	c.Mode = breaker.Mode(rapid.IntRange(0, 3).Draw(t, "mode"))
	m["mode"] = c.Mode.String()
	h := map[string]any{}
	span(h, "interval", &c.HealthCheck.Interval, time.Millisecond)
	span(h, "timeout", &c.HealthCheck.Timeout, time.Millisecond)
	span(h, "jitter", &c.HealthCheck.Jitter, 0)
	m["health_check"] = h
	var trips []any
	for i := range rapid.IntRange(0, 3).Draw(t, "conditions") {
		var n int
		var d time.Duration
		var rate float64
		inner := map[string]any{}
		switch i {
		case 0:
			c.Trip = append(c.Trip, breaker.ConsecutiveFailures(3))
			trips = append(trips, map[string]any{"consecutive_failures": 3})
		case 1:
			n, inner["failures"] = 4, 4
			d, inner["within"] = time.Minute, "60s"
			c.Trip = append(c.Trip, breaker.FailureCount(n, d))
			trips = append(trips, map[string]any{"failure_count": inner})
		case 2:
			share(inner, "rate", &rate)
			inner["min_calls"], inner["last_calls"] = 3, uint64(30)
			c.Trip = append(c.Trip, breaker.FailureRate(rate, 3, breaker.LastCalls(30)))
			trips = append(trips, map[string]any{"failure_rate": inner})
		}
	}
	if trips != nil {
		m["trip"] = trips
	}
	return m, c
}

// What ParseConfig accepts, every constructor accepts; what it refuses, it refuses without a panic and by name.
func FuzzParseConfig(f *testing.F) {
	for _, seed := range []string{
		cfgDocumented,
		`{}`, `null`, `{"failure_threshold": 0}`, `{"failure_threshold": 1e3, "open_timeout_ms": 1}`,
		`{"failure_threshold": 1e400}`, `{"failure_threshold": -0}`, `{"open_timeout": "2562047h47m16.854775807s"}`,
		`{"open_timeout_ms": 9223372036854}`, `{"open_timeout_ms": 9223372036855}`, `{"open_timeout": "1s", "open_timeout_ms": 1}`,
		`{"trip": [{"failure_rate": {"rate": 1e-6, "min_calls": 1, "last": "1ns"}}]}`,
		`{"trip": [{"failure_rate": {"rate": 1e-7, "min_calls": 2, "last_calls": 1}}]}`,
		`{"trip": [{"slow_call_rate": {"slow": "1ns", "rate": 1, "min_calls": 16777216, "last_calls": 16777216}}]}`,
		`{"trip": [{"failure_count": {"failures": 2147483647, "within_ms": 1}}, {}, [], null, {"a": 1, "b": 2}]}`,
		`{"health_check": {"enabled": false, "interval": "0s", "timeout": "0s", "jitter": "0s"}}`,
		`{"open_backoff": {"factor": 1.7976931348623157e308, "max": "1281023h53m38.427387904s", "jitter": 1}}`,
		`{"mode": "HALF_OPEN"}`, `{"mode": "forced_open", "": 1, "a.b": [[]]}`, `{"trip": {"consecutive_failures": 5}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, useNumber := range []bool{false, true} {
			m, err := cfgDecodeJSON(text, useNumber)
			if err != nil {
				return
			}
			cfg, err := breaker.ParseConfig(m)
			if err != nil {
				require.Zero(t, cfg)
				for _, line := range cfgLines(err) {
					require.True(t, strings.HasPrefix(line, "breaker: "), line)
				}
				continue
			}
			c, err := breaker.NewCircuit("c", cfg.Options()...)
			require.NoError(t, err)
			require.Equal(t, cfg, c.Config())
			cfgCallAFewTimes(t, c)
		}
	})
}

// A map written in Go, or by a decoder of a less common kind, holds numbers of any type.
func TestParseConfigTakesNumbersOfAnyType(t *testing.T) {
	type percent float32
	for _, five := range []any{5, int8(5), int16(5), int32(5), int64(5), uint(5), uint8(5), uint16(5), uint32(5), uint64(5), float32(5), 5.0, json.Number("5")} {
		c, err := breaker.ParseConfig(map[string]any{"failure_threshold": five, "open_timeout_ms": five})
		require.NoError(t, err, "%T", five)
		require.Equal(t, 5, c.FailureThreshold, "%T", five)
		require.Equal(t, 5*time.Millisecond, c.OpenTimeout, "%T", five)
	}
	c, err := breaker.ParseConfig(map[string]any{
		"trip":         []any{map[string]any{"failure_rate": map[string]any{"rate": percent(0.5), "min_calls": uint16(20), "last": 10 * time.Second}}},
		"open_timeout": time.Minute,
	})
	require.NoError(t, err)
	require.Equal(t, []breaker.TripCondition{breaker.FailureRate(0.5, 20, breaker.Last(10*time.Second))}, c.Trip)
	require.Equal(t, time.Minute, c.OpenTimeout)

	_, err = breaker.ParseConfig(map[string]any{"failure_threshold": 5 * time.Second, "open_timeout_ms": 5 * time.Second, "ramp": int32(5)})
	require.ErrorContains(t, err, "failure_threshold: must be a whole number")
	require.ErrorContains(t, err, "open_timeout_ms: must be a whole number of milliseconds")
	require.ErrorContains(t, err, `ramp: must be a duration such as "30s" (milliseconds go under ramp_ms), got 5`)
}

// An empty list of conditions is refused, as an empty WithTrip is: no circuit could mean it.
func TestParseConfigRefusesAnEmptyTrip(t *testing.T) {
	for _, empty := range []any{[]any{}, []map[string]any{}} {
		_, err := breaker.ParseConfig(map[string]any{"trip": empty})
		require.EqualError(t, err, "breaker: trip: must name at least one condition, got none")
	}
}
