package main

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

func document(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile("../../" + path)
	require.NoError(t, err)
	return string(text)
}

var fence = regexp.MustCompile("(?ms)^```(\\S+)( \\S+)?\n(.*?)^```$")

// blocks are a document's code blocks of one format and kind.
func blocks(doc, format, kind string) (all []string) {
	for _, m := range fence.FindAllStringSubmatch(doc, -1) {
		if m[1] == format && strings.TrimSpace(m[2]) == kind {
			all = append(all, m[3])
		}
	}
	return all
}

// The examples of docs/configuration.md are one configuration.
func TestDocumentedExamples(t *testing.T) {
	doc := document(t, "docs/configuration.md")
	want := breaker.DefaultConfig()
	want.FailureThreshold, want.FailureWindow = 10, time.Minute
	want.SuccessThreshold, want.HalfOpenProbes = 3, 3
	want.OpenTimeout, want.ProbeLease = 15*time.Second, 15*time.Second
	want.OpenBackoff = breaker.OpenBackoff{Factor: 2, Max: 5 * time.Minute, Jitter: 0.2}
	want.OpenHint, want.MaxInFlight = 2*time.Minute, 100
	want.HealthCheck.Interval, want.HealthCheck.Jitter = 5*time.Second, 2*time.Second
	want.Trip = []breaker.TripCondition{
		breaker.ConsecutiveFailures(10),
		breaker.FailureRate(0.5, 20, breaker.Last(10*time.Second)),
		breaker.SlowCallRate(2*time.Second, 0.9, 20, breaker.LastCalls(100)),
	}
	for _, format := range []string{"yaml", "toml", "json"} {
		examples := blocks(doc, format, "")
		require.Len(t, examples, 1, format)
		everyDecoder(t, format, examples[0], func(t *testing.T, m map[string]any) {
			got, err := breaker.ParseConfig(m)
			require.NoError(t, err)
			require.Equal(t, want, got)
			_, err = breaker.NewCircuit("documented", got.Options()...)
			require.NoError(t, err)
		})
	}
}

// The error shown is the error given.
func TestDocumentedErrors(t *testing.T) {
	doc := document(t, "docs/configuration.md")
	wrong, text := blocks(doc, "yaml", "wrong"), blocks(doc, "text", "")
	require.Len(t, wrong, 1)
	require.Len(t, text, 1)
	everyDecoder(t, "yaml", wrong[0], func(t *testing.T, m map[string]any) {
		_, err := breaker.ParseConfig(m)
		require.EqualError(t, err, strings.TrimSpace(text[0]))
	})
}

// The cc-relay section and its translation are one configuration; the table names every key.
func TestDocumentedCCRelay(t *testing.T) {
	doc := document(t, "docs/configuration.md")
	section, means := blocks(doc, "yaml", "cc-relay"), blocks(doc, "yaml", "means")
	require.Len(t, section, 1)
	require.Len(t, means, 1)
	everyDecoder(t, "yaml", means[0], func(t *testing.T, m map[string]any) {
		want, err := breaker.ParseConfig(m)
		require.NoError(t, err)
		everyDecoder(t, "yaml", section[0], func(t *testing.T, m map[string]any) {
			keys, err := fromCCRelay(m)
			require.NoError(t, err)
			got, err := breaker.ParseConfig(keys)
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	})
	for theirs, ours := range ccRelayKeys {
		row := "| `circuit_breaker." + theirs + "` | `" + strings.Join(ours, "` and `") + "` |"
		require.Contains(t, doc, row)
	}
}

// row is a line of the table of keys.
type row struct{ key, kind, def, scope string }

func rows(t *testing.T) (all []row) {
	t.Helper()
	for line := range strings.Lines(document(t, "docs/configuration.md")) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 7 || !strings.HasPrefix(cells[1], " `") {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		all = append(all, row{strings.Trim(cells[1], "`"), cells[2], cells[3], cells[4]})
	}
	require.NotEmpty(t, all)
	return all
}

// setting makes a document in which everything is given that the key needs beside it, and the key has that value.
func setting(key string, value any) map[string]any {
	m := map[string]any{}
	parts := strings.Split(key, ".")
	switch {
	case strings.HasPrefix(key, "trip[]."):
		one := map[string]any{}
		if len(parts) == 2 {
			one[parts[1]] = value
		} else {
			table := map[string]any{"rate": 0.5, "min_calls": 1, "last": "10s"}
			switch parts[1] {
			case "failure_count":
				table = map[string]any{"failures": 1, "within": "1s"}
			case "slow_call_rate":
				table["slow"] = "1s"
			}
			if parts[2] == "last_calls" {
				delete(table, "last")
			}
			table[parts[2]] = value
			one[parts[1]] = table
		}
		m["trip"] = []any{one}
	case parts[0] == "open_backoff":
		table := map[string]any{"factor": 2, "max": "1h"}
		table[parts[1]] = value
		m["open_backoff"] = table
	case len(parts) == 2:
		m[parts[0]] = map[string]any{parts[1]: value}
	default:
		m[key] = value
	}
	return m
}

// The table's types and ranges are those in force: the edges are accepted, and what lies beyond is refused by its path.
func TestDocumentedRanges(t *testing.T) {
	const longest = time.Duration(1 << 62)
	accepts := func(r row, v any) {
		t.Helper()
		_, err := breaker.ParseConfig(setting(r.key, v))
		require.NoError(t, err, "%s: %v", r.key, v)
	}
	refuses := func(r row, v any) {
		t.Helper()
		_, err := breaker.ParseConfig(setting(r.key, v))
		require.ErrorContains(t, err, strings.Replace(r.key, "[]", "[0]", 1)+": ", "%s: %v", r.key, v)
	}
	for _, r := range rows(t) {
		switch r.kind + ", " + r.scope {
		case "whole number, 1 to 2147483647":
			accepts(r, 1)
			accepts(r, math.MaxInt32)
			refuses(r, 0)
			refuses(r, math.MaxInt32+1)
		case "whole number, 1 to 16777216":
			accepts(r, 1)
			accepts(r, 1<<24)
			refuses(r, 0)
			refuses(r, 1<<24+1)
		case "whole number, 0 or more":
			accepts(r, 0)
			accepts(r, math.MaxInt)
			refuses(r, -1)
		case "duration, 0 or more", "duration, above 0":
			accepts(r, "1ns")
			if r.key != "open_timeout" {
				accepts(r, longest.String())
			}
			refuses(r, "-1ns")
			refuses(r, (longest + 1).String())
			refuses(r, 5)
			if strings.HasSuffix(r.scope, "0 or more") {
				accepts(r, "0s")
			} else {
				refuses(r, "0s")
			}
		case "duration, `open_timeout` or more":
			accepts(r, "30s")
			refuses(r, "29s")
		case "number, above 0, to 1":
			accepts(r, 0.000001)
			accepts(r, 1)
			refuses(r, 0)
			refuses(r, 1.1)
		case "number, 0 to 1":
			accepts(r, 0)
			accepts(r, 1.0)
			refuses(r, -0.1)
			refuses(r, 1.1)
		case "number, 1 or more":
			accepts(r, 1)
			refuses(r, 0.9)
			refuses(r, math.Inf(1))
		case "true or false, ":
			accepts(r, true)
			accepts(r, false)
			refuses(r, 1)
		case "list, ":
			accepts(r, []any{map[string]any{"consecutive_failures": 5}})
			refuses(r, []any{})
			refuses(r, map[string]any{})
		case "text, `auto`, `forced-open`, `forced-closed`, `shadow`":
			for mode := breaker.Auto; mode <= breaker.Shadow; mode++ {
				require.Contains(t, r.scope, "`"+mode.String()+"`")
				accepts(r, mode.String())
			}
			refuses(r, "open")
		default:
			require.Fail(t, "no such type and range", "%+v", r)
		}
	}
}

// The table's defaults are those in force.
func TestDocumentedDefaults(t *testing.T) {
	c := breaker.DefaultConfig()
	defaults := map[string]any{
		"failure_threshold": c.FailureThreshold, "failure_window": c.FailureWindow, "success_threshold": c.SuccessThreshold,
		"open_timeout": c.OpenTimeout, "open_hint": c.OpenHint, "ramp": c.Ramp, "max_in_flight": c.MaxInFlight,
		"ignore_caller_deadline": c.IgnoreCallerDeadline, "mode": c.Mode,
		"open_backoff.factor": c.OpenBackoff.Factor, "open_backoff.max": c.OpenBackoff.Max, "open_backoff.jitter": c.OpenBackoff.Jitter,
		"health_check.enabled": c.HealthCheck.Enabled, "health_check.interval": c.HealthCheck.Interval,
		"health_check.timeout": c.HealthCheck.Timeout, "health_check.jitter": c.HealthCheck.Jitter,
		"half_open_probes": "success_threshold", "probe_lease": "open_timeout",
	}
	for _, r := range rows(t) {
		switch want, ok := defaults[r.key]; {
		case ok:
			require.Equal(t, fmt.Sprintf("`%v`", want), strings.TrimSuffix(r.def, " (off)"), r.key)
		case r.key == "trip":
			require.Equal(t, "none", r.def)
		default:
			require.Empty(t, r.def, r.key)
		}
	}
	require.Equal(t, c.SuccessThreshold, c.HalfOpenProbes)
	require.Equal(t, c.OpenTimeout, c.ProbeLease)
}

// The table has every key that there is, and no other.
func TestDocumentedKeys(t *testing.T) {
	documented := map[string][]string{}
	for _, r := range rows(t) {
		table, key := "", r.key
		if at := strings.LastIndexByte(r.key, '.'); at >= 0 {
			table, key = r.key[:at], r.key[at+1:]
		}
		documented[table] = append(documented[table], key)
		if top, _, nested := strings.Cut(r.key, "."); nested && top != "trip[]" && !slices.Contains(documented[""], top) {
			documented[""] = append(documented[""], top)
		}
		if len(strings.Split(r.key, ".")) == 3 && !slices.Contains(documented["trip[]"], strings.Split(r.key, ".")[1]) {
			documented["trip[]"] = append(documented["trip[]"], strings.Split(r.key, ".")[1])
		}
	}
	for table, keys := range documented {
		slices.Sort(keys)
		_, err := breaker.ParseConfig(setting(strings.TrimPrefix(table+".no_such_key", "."), 1))
		require.Error(t, err)
		_, listed, ok := strings.Cut(err.Error(), "no_such_key: is none of ")
		require.True(t, ok, err)
		listed, _, _ = strings.Cut(listed, "\n")
		require.Equal(t, strings.Join(keys, ", "), listed, "under %q", table)
	}
}

// Every symptom of docs/troubleshooting.md has its test, and every test its symptom.
func TestTroubleshootingNamesItsTests(t *testing.T) {
	name := regexp.MustCompile(`TestTrouble[A-Z]\w*`)
	var tests []string
	for _, m := range regexp.MustCompile(`(?m)^func (TestTrouble\w+)\(`).FindAllStringSubmatch(document(t, "tests/troubleshooting_test.go"), -1) {
		tests = append(tests, m[1])
	}
	doc := document(t, "docs/troubleshooting.md")
	named := name.FindAllString(doc, -1)
	slices.Sort(tests)
	slices.Sort(named)
	require.Equal(t, tests, slices.Compact(named))

	for section := range strings.SplitSeq(doc, "\n### ") {
		title, _, _ := strings.Cut(section, "\n")
		for _, part := range []string{"**Symptom.**", "**See it.**", "**Change.**", "**Test.**"} {
			require.True(t, strings.HasPrefix(title, "# ") || strings.Contains(section, part), "%s: %s", title, part)
		}
	}
}

// The keys and reasons that the page speaks of are real.
func TestTroubleshootingWords(t *testing.T) {
	doc := document(t, "docs/troubleshooting.md")
	for _, reason := range []breaker.Reason{
		breaker.ReasonThreshold, breaker.ReasonTimeout, breaker.ReasonProbeFailed, breaker.ReasonRecovered, breaker.ReasonManual,
		breaker.ReasonHealthCheck, breaker.ReasonRemote,
	} {
		require.Contains(t, doc, "`"+string(reason)+"`")
	}
	known := map[string]bool{}
	for _, r := range rows(t) {
		for part := range strings.SplitSeq(r.key, ".") {
			known[part] = true
		}
	}
	known["open_backoff"], known["health_check"], known["failure_rate"], known["failure_count"], known["slow_call_rate"] = true, true, true, true, true
	for _, m := range regexp.MustCompile("`([a-z]+(?:_[a-z]+)+)[`:]").FindAllStringSubmatch(doc, -1) {
		require.True(t, known[m[1]], m[1])
	}
}
