package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/BurntSushi/toml"
	goccy "github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/breakerkit/breaker"
)

// decoders are those that the tests read documents with: each has its own types for numbers, lists and tables.
var decoders = map[string]map[string]func([]byte, any) error{
	"yaml": {"go.yaml.in/yaml": yaml.Unmarshal, "goccy/go-yaml": func(text []byte, v any) error { return goccy.Unmarshal(text, v) }},
	"toml": {"BurntSushi/toml": toml.Unmarshal},
	"json": {"encoding/json": json.Unmarshal, "encoding/json with UseNumber": func(text []byte, v any) error {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		return d.Decode(v)
	}},
}

// everyDecoder gives f what each decoder of the format makes of the text.
func everyDecoder(t *testing.T, format, text string, f func(t *testing.T, m map[string]any)) {
	t.Helper()
	require.NotEmpty(t, decoders[format], format)
	for name, decode := range decoders[format] {
		t.Run(name, func(t *testing.T) {
			var m map[string]any
			require.NoError(t, decode([]byte(text), &m), text)
			f(t, m)
		})
	}
}

// faultsOf are the lines of an error.
func faultsOf(err error) []string {
	if err == nil {
		return nil
	}
	return strings.Split(err.Error(), "\n")
}

// One configuration, as each format writes it.
func TestFormatsGiveTheSameConfig(t *testing.T) {
	for name, c := range map[string]struct {
		docs map[string]string
		want func(*breaker.Config)
	}{
		"nothing": {map[string]string{"yaml": "{}", "toml": "", "json": "{}"}, func(*breaker.Config) {}},
		"numbers": {map[string]string{
			"yaml": "failure_threshold: 0x0a\nmax_in_flight: 1_0\nramp_ms: 1.0\nopen_backoff: {factor: 2, max: 1h, jitter: 1}",
			"toml": "failure_threshold = 0x0a\nmax_in_flight = 1_0\nramp_ms = 1e0\nopen_backoff = {factor = 2, max = '1h', jitter = 1.0}",
			"json": `{"failure_threshold": 10, "max_in_flight": 1e1, "ramp_ms": 1.0, "open_backoff": {"factor": 2.0, "max": "1h", "jitter": 1}}`,
		}, func(c *breaker.Config) {
			c.FailureThreshold, c.MaxInFlight, c.Ramp = 10, 10, time.Millisecond
			c.OpenBackoff = breaker.OpenBackoff{Factor: 2, Max: time.Hour, Jitter: 1}
		}},
		"tables within tables": {map[string]string{
			"yaml": "x: &x {interval_ms: 500, enabled: false}\nhealth_check:\n  <<: *x\n  timeout: 1s",
			"toml": "[health_check]\nenabled = false\ninterval_ms = 500\ntimeout = '1s'",
			"json": `{"health_check": {"enabled": false, "interval_ms": 500, "timeout": "1s"}}`,
		}, func(c *breaker.Config) {
			c.HealthCheck = breaker.HealthCheck{Interval: 500 * time.Millisecond, Timeout: time.Second}
		}},
		"a list of tables": {map[string]string{
			"yaml": "trip:\n- consecutive_failures: 3\n- failure_rate: {rate: 1, min_calls: 2, last_ms: 1000}",
			"toml": "[[trip]]\nconsecutive_failures = 3\n[[trip]]\n[trip.failure_rate]\nrate = 1\nmin_calls = 2\nlast_ms = 1000",
			"json": `{"trip": [{"consecutive_failures": 3}, {"failure_rate": {"rate": 1, "min_calls": 2, "last_ms": 1000}}]}`,
		}, func(c *breaker.Config) {
			c.Trip = []breaker.TripCondition{breaker.ConsecutiveFailures(3), breaker.FailureRate(1, 2, breaker.Last(time.Second))}
		}},
		"a list in one line": {map[string]string{
			"yaml": "trip: [{consecutive_failures: 3}]",
			"toml": "trip = [{consecutive_failures = 3}]",
			"json": `{"trip": [{"consecutive_failures": 3}]}`,
		}, func(c *breaker.Config) { c.Trip = []breaker.TripCondition{breaker.ConsecutiveFailures(3)} }},
		"mode": {map[string]string{"yaml": "mode: forced-open", "toml": "mode = 'forced-open'", "json": `{"mode": "forced-open"}`},
			func(c *breaker.Config) { c.Mode = breaker.ForcedOpen }},
	} {
		t.Run(name, func(t *testing.T) {
			want := breaker.DefaultConfig()
			c.want(&want)
			for format, text := range c.docs {
				everyDecoder(t, format, text, func(t *testing.T, m map[string]any) {
					delete(m, "x") // YAML's anchor
					got, err := breaker.ParseConfig(m)
					require.NoError(t, err)
					require.Equal(t, want, got)
				})
			}
		})
	}
}

// What is wrong is named with its path, all of it, and alike in every format.
func TestFormatsGiveTheSameFaults(t *testing.T) {
	docs := map[string]string{
		"yaml": `
unknown: 1
failure_threshold: "5"
success_threshold: 0
half_open_probes: 1.5
open_timeout: 30
max_in_flight: 9223372036854775808
mode: closed
ignore_caller_deadline: 1
health_check: {every: 1s, interval_ms: 10s, timeout: 1h, timeout_ms: 1}
trip:
- failure_rate: {rate: 2, last: 0s}
- 5
`,
		"toml": `
unknown = 1
failure_threshold = "5"
success_threshold = 0
half_open_probes = 1.5
open_timeout = 30
max_in_flight = 9223372036854775808.0
mode = "closed"
ignore_caller_deadline = 1
health_check = {every = "1s", interval_ms = "10s", timeout = "1h", timeout_ms = 1}
trip = [{failure_rate = {rate = 2, last = "0s"}}, 5]
`,
		"json": `{"unknown": 1, "failure_threshold": "5", "success_threshold": 0, "half_open_probes": 1.5, "open_timeout": 30,
"max_in_flight": 9223372036854775808, "mode": "closed", "ignore_caller_deadline": 1,
"health_check": {"every": "1s", "interval_ms": "10s", "timeout": "1h", "timeout_ms": 1},
"trip": [{"failure_rate": {"rate": 2, "last": "0s"}}, 5]}`,
	}
	paths := []string{
		"failure_threshold", "half_open_probes", "health_check.every", "health_check.interval_ms", "health_check.timeout_ms",
		"ignore_caller_deadline", "max_in_flight", "mode", "open_timeout", "trip[0].failure_rate.min_calls", "trip[1]", "unknown",
		"trip[0].failure_rate.rate", "trip[0].failure_rate.last", "success_threshold",
	}
	for format, text := range docs {
		everyDecoder(t, format, text, func(t *testing.T, m map[string]any) {
			c, err := breaker.ParseConfig(m)
			require.Error(t, err)
			require.Zero(t, c)
			var named []string
			for _, line := range faultsOf(err) {
				path, what, ok := strings.Cut(strings.TrimPrefix(line, "breaker: "), ": ")
				require.True(t, ok && what != "", line)
				named = append(named, path)
			}
			require.Equal(t, paths, named, err)
		})
	}
}

// What formats have and a configuration has not.
func TestTypesOfOneFormatOnly(t *testing.T) {
	for text, fault := range map[string]string{
		"open_timeout = 00:00:30":                 "breaker: open_timeout: must be a duration",
		"open_timeout = 1979-05-27T07:32:00Z":     "breaker: open_timeout: must be a duration",
		"open_backoff = {factor = inf, max='1h'}": "breaker: open_backoff.factor: must be at least 1 and finite, got +Inf",
		"open_backoff = {factor = nan, max='1h'}": "breaker: open_backoff.factor: must be at least 1 and finite, got NaN",
		"failure_threshold = nan":                 "breaker: failure_threshold: must be a whole number",
	} {
		everyDecoder(t, "toml", text, func(t *testing.T, m map[string]any) {
			_, err := breaker.ParseConfig(m)
			require.ErrorContains(t, err, fault)
			require.Len(t, faultsOf(err), 1)
		})
	}
	for text, fault := range map[string]string{
		"open_timeout:":                       "breaker: open_timeout: must be a duration",
		"health_check:":                       "breaker: health_check: must be a table, got nothing",
		"health_check: {1: a}":                "breaker: health_check.1: is none of",
		"health_check: {true: a, 1.5: b}":     "breaker: health_check.1.5: is none of",
		"open_timeout: 2001-12-14":            "breaker: open_timeout: must be a duration",
		"ignore_caller_deadline: yes":         "breaker: ignore_caller_deadline: must be true or false",
		"trip: {consecutive_failures: 5}":     "breaker: trip: must be a list",
		"failure_threshold: !!binary aGk=":    "breaker: failure_threshold: must be a whole number",
		"failure_threshold: [1]":              "breaker: failure_threshold: must be a whole number",
		"open_timeout: 1:30":                  "breaker: open_timeout: must be a duration",
		"max_in_flight: 18446744073709551615": "breaker: max_in_flight: must be a whole number",
	} {
		everyDecoder(t, "yaml", text, func(t *testing.T, m map[string]any) {
			_, err := breaker.ParseConfig(m)
			require.ErrorContains(t, err, fault)
		})
	}
}

func noEnv(string) string { return "" }

// The two samples are the same, and are what the router serves.
func TestSampleFiles(t *testing.T) {
	env := func(name string) string { return "value of " + name }
	asYAML, err := loadSettings("router.yaml", env)
	require.NoError(t, err)
	asTOML, err := loadSettings("router.toml", env)
	require.NoError(t, err)
	require.Equal(t, asYAML, asTOML)

	want := defaultSettings()
	want.breaker.SuccessThreshold, want.breaker.HalfOpenProbes = 3, 3
	want.breaker.HealthCheck.Jitter = 2 * time.Second
	want.providers = []providerSettings{
		{"amber", "http://127.0.0.1:9001", "AMBER_KEY", "value of AMBER_KEY", "/healthz", 3, 3},
		{"birch", "http://127.0.0.1:9002", "BIRCH_KEY", "value of BIRCH_KEY", "/healthz", 2, 1},
		{"cedar", "http://127.0.0.1:9003", "CEDAR_KEY", "value of CEDAR_KEY", "", 1, 1},
	}
	require.Equal(t, want, asYAML)
}

// Everything that is wrong with the router's file is named at once, the circuits' part included.
func TestFaultsOfAFile(t *testing.T) {
	const text = `
listen: 0.0.0.0:80
strategy: best
failover_limit: 5
idle_timeout: -1s
max_body: 0
debug_headers: "on"
debug_prefix: "a b"
breaker: {failure_threshold: 0, open_timeout: 30, health_check: {interval: x}}
providers:
- {name: amber, url: "http://a:1", weight: 1.5, wait: 1}
- {name: amber, url: "ftp://a"}
- {url: "http://user:hunter2@a"}
- birch
extra: 1
`
	everyDecoder(t, "yaml", text, func(t *testing.T, m map[string]any) {
		_, err := parseSettings(m, noEnv)
		require.Equal(t, []string{
			`breaker.health_check.interval: must be a duration such as "30s", got "x"`,
			`breaker.open_timeout: must be a duration such as "30s" (milliseconds go under open_timeout_ms), got 30`,
			`breaker.failure_threshold: must be from 1 to 2147483647, got 0`,
			`debug_headers: must be true or false, got on`,
			`debug_prefix: must be letters, digits and hyphens, got "a b"`,
			`extra: is none of breaker, debug_headers, debug_prefix, failover_limit, first_byte_timeout, health, idle_timeout, listen, max_body, providers, strategy`,
			`failover_limit: must be a duration above 0, such as "5s", got 5`,
			`idle_timeout: must be a duration above 0, such as "5s", got -1s`,
			`listen: must be a loopback address and a port, such as 127.0.0.1:8080, got "0.0.0.0:80"`,
			`max_body: must be a whole number from 1 to 67108864, got 0`,
			`providers[0].wait: is none of health_path, key_env, name, priority, url, weight`,
			`providers[0].weight: must be a whole number from 1 to 1000, got 1.5`,
			`providers[1].url: must be http:// or https://, a host and optionally a path`,
			`providers[2].url: must be http:// or https://, a host and optionally a path`,
			`providers[2].name: must be given`,
			`providers[3]: must be a table`,
			`strategy: must be one of failover, least-busy, round-robin, shuffle, weighted, got "best"`,
			`providers[1].name: "amber" is the name of providers[0] already`,
		}, faultsOf(err))
		require.NotContains(t, err.Error(), "hunter2")
	})
	for text, fault := range map[string]string{
		"{}":                               "providers: must name at least one",
		"providers: {}":                    "providers: must be a list",
		"breaker: 5\nproviders: []":        "breaker: must be a table",
		"breaker: {}\nhealth: {}":          "health: must not be given together with breaker",
		"providers: [{name: '', url: 1}]":  "providers[0].name: must be a text",
		"providers: [{health_path: abc}]":  "providers[0].health_path: must start with /",
		"providers: [{name: a, url: '%'}]": "providers[0].url: must be http://",
		"providers: [{priority: -1}]":      "providers[0].priority: must be a whole number from 0 to 1000",
		"providers: [{priority: .nan}]":    "providers[0].priority: must be a whole number from 0 to 1000",
		"listen: 127.0.0.1":                "listen: must be a loopback address",
		"health: {circuit_breaker: 5}":     "health.circuit_breaker: must be a table",
	} {
		everyDecoder(t, "yaml", text, func(t *testing.T, m map[string]any) {
			_, err := parseSettings(m, noEnv)
			require.ErrorContains(t, err, fault)
		})
	}
}

// A file is read by the decoder that its name asks for, and not without bound.
func TestLoadSettings(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	s, err := loadSettings(write("a.json", `{"max_body": 5, "providers": [{"name": "a", "url": "http://a"}]}`), noEnv)
	require.NoError(t, err)
	require.Equal(t, 5, s.maxBody)
	_, err = loadSettings(write("a.yml", `providers: [{name: a, url: "http://a"}]`), noEnv)
	require.NoError(t, err)

	for name, text := range map[string]string{
		"a.txt": "", "b.json": "{", "b.yaml": "a: [", "b.toml": "a", "c.yaml": "{}",
	} {
		_, err := loadSettings(write(name, text), noEnv)
		require.ErrorContains(t, err, name)
	}
	const good = `providers: [{name: a, url: "http://a"}]`
	_, err = loadSettings(write("d.yaml", good+"\n#"+strings.Repeat(" ", maxConfig)), noEnv)
	require.ErrorContains(t, err, "d.yaml: is larger than")
	_, err = loadSettings(filepath.Join(dir, "none.yaml"), noEnv)
	require.ErrorIs(t, err, os.ErrNotExist)
}

// The published keys of cc-relay mean what they mean there.
func TestCCRelay(t *testing.T) {
	circuits := func(change func(*breaker.Config)) breaker.Config {
		c := breaker.DefaultConfig()
		c.SuccessThreshold, c.HalfOpenProbes = 3, 3
		change(&c)
		return c
	}
	for text, want := range map[string]breaker.Config{
		"{}": circuits(func(*breaker.Config) {}),
		"{circuit_breaker: {failure_threshold: 5, open_duration_ms: 30000, half_open_probes: 3}, health_check: {enabled: true, interval_ms: 10000}}": circuits(func(*breaker.Config) {}),
		"{circuit_breaker: {failure_threshold: 10}}":   circuits(func(c *breaker.Config) { c.FailureThreshold = 10 }),
		"{circuit_breaker: {half_open_probes: 1}}":     circuits(func(c *breaker.Config) { c.SuccessThreshold, c.HalfOpenProbes = 1, 1 }),
		"{circuit_breaker: {open_duration_ms: 15000}}": circuits(func(c *breaker.Config) { c.OpenTimeout, c.ProbeLease = 15*time.Second, 15*time.Second }),
		"{health_check: {enabled: false}}":             circuits(func(c *breaker.Config) { c.HealthCheck.Enabled = false }),
		"{health_check: {interval_ms: 5000}}":          circuits(func(c *breaker.Config) { c.HealthCheck.Interval = 5 * time.Second }),
	} {
		everyDecoder(t, "yaml", text, func(t *testing.T, m map[string]any) {
			keys, err := fromCCRelay(m)
			require.NoError(t, err)
			c, err := breaker.ParseConfig(keys)
			require.NoError(t, err)
			require.Equal(t, want, c, text)
			s, err := parseSettings(map[string]any{"health": m, "providers": []any{map[string]any{"name": "a", "url": "http://a"}}}, noEnv)
			require.NoError(t, err)
			require.Equal(t, want, s.breaker)
		})
	}
}

// Faults in a cc-relay section are named by the keys that stand there.
func TestCCRelayFaults(t *testing.T) {
	const text = `
circuit_breaker: {failure_threshold: 0, open_duration_ms: 30s, half_open_probes: -1, recovery_timeout_seconds: 5, open_timeout: 5s}
health_check: {interval_ms: x, every: 1}
failure_threshold: 3
`
	everyDecoder(t, "yaml", text, func(t *testing.T, m map[string]any) {
		_, err := parseSettings(map[string]any{"health": m, "providers": []any{map[string]any{"name": "a", "url": "http://a"}}}, noEnv)
		require.Equal(t, []string{
			"health.circuit_breaker.open_timeout: is none of failure_threshold, half_open_probes, open_duration_ms",
			"health.circuit_breaker.recovery_timeout_seconds: is none of failure_threshold, half_open_probes, open_duration_ms",
			"health.failure_threshold: is none of circuit_breaker, health_check",
			"health.health_check.every: is none of enabled, interval, jitter, timeout",
			`health.health_check.interval_ms: must be a whole number of milliseconds, at most 292 years of them, got "x"`,
			`health.circuit_breaker.open_duration_ms: must be a whole number of milliseconds, at most 292 years of them, got "30s"`,
			"health.circuit_breaker.failure_threshold: must be from 1 to 2147483647, got 0",
			"health.circuit_breaker.half_open_probes: must be from 1 to 2147483647, got -1",
		}, faultsOf(err))
	})
}
