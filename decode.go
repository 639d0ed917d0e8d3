package breaker

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// ParseConfig reads a configuration from what a JSON, YAML or TOML decoder makes of a file. It starts from
// [DefaultConfig]; HalfOpenProbes follows the success_threshold given and ProbeLease the open_timeout given, unless they
// are given themselves. The keys are Config's fields in snake_case:
//
//	failure_threshold: 5
//	failure_window: 60s
//	trip:                                     # any one is enough; replaces the two above
//	  - consecutive_failures: 5
//	  - failure_count: {failures: 100, within: 1m}
//	  - failure_rate: {rate: 0.5, min_calls: 20, last: 10s}
//	  - slow_call_rate: {slow: 2s, rate: 0.9, min_calls: 20, last_calls: 100}
//	success_threshold: 2
//	half_open_probes: 2
//	open_timeout: 30s
//	open_backoff: {factor: 2, max: 5m, jitter: 0.2}
//	open_hint: 5m
//	probe_lease: 30s
//	ramp: 0s
//	max_in_flight: 0
//	ignore_caller_deadline: false
//	mode: auto                                # forced-open, forced-closed, shadow
//	health_check: {enabled: true, interval: 10s, timeout: 5s, jitter: 0s}
//
// A duration is a string as [time.ParseDuration] reads it, or a [time.Duration]. As a whole number of milliseconds it has a key that ends in
// _ms: open_timeout_ms, health_check.interval_ms. Numbers may be of any type that decoders use; where a whole number is
// wanted, 1e3 is one and 1.5 is not. A condition under trip needs all of its keys, and last or last_calls.
//
// The error names everything that is wrong, each with its full path and value: keys that are unknown, missing or double
// (with _ms and without), values of the wrong type, and values out of range. The Config is then the zero value, which no
// constructor accepts.
func ParseConfig(m map[string]any) (Config, error) {
	c := DefaultConfig()
	p := parser{written: make(map[string]string), named: make(map[string]bool)}
	p.table("", m, c.fields())
	p.ranges(c)
	if err := p.faults.err(); err != nil {
		return Config{}, err
	}
	if p.written["half_open_probes"] == "" {
		c.HalfOpenProbes = c.SuccessThreshold
	}
	if p.written["probe_lease"] == "" {
		c.ProbeLease = c.OpenTimeout
	}
	return c, nil
}

// fields maps the keys of a table to where their values go: a pointer, or the fields of a table within it.
type fields map[string]any

func (c *Config) fields() fields {
	return fields{
		"failure_threshold": &c.FailureThreshold,
		"failure_window":    &c.FailureWindow,
		"trip":              &c.Trip,
		"success_threshold": &c.SuccessThreshold,
		"half_open_probes":  &c.HalfOpenProbes,
		"open_timeout":      &c.OpenTimeout,
		"open_backoff": fields{
			"factor": &c.OpenBackoff.Factor,
			"max":    &c.OpenBackoff.Max,
			"jitter": &c.OpenBackoff.Jitter,
		},
		"open_hint":              &c.OpenHint,
		"probe_lease":            &c.ProbeLease,
		"ramp":                   &c.Ramp,
		"max_in_flight":          &c.MaxInFlight,
		"ignore_caller_deadline": &c.IgnoreCallerDeadline,
		"mode":                   &c.Mode,
		"health_check": fields{
			"enabled":  &c.HealthCheck.Enabled,
			"interval": &c.HealthCheck.Interval,
			"timeout":  &c.HealthCheck.Timeout,
			"jitter":   &c.HealthCheck.Jitter,
		},
	}
}

// parser reads values into fields. What is wrong with them it names by their path.
type parser struct {
	faults  faults
	named   map[string]bool   // the paths in faults
	written map[string]string // the path of each setting given -> that path as it was written: with _ms, or without
}

func (p *parser) fault(at, format string, args ...any) {
	p.faults.add(at, format, args...)
	p.named[at] = true
}

func (p *parser) wrong(at, want string, got any) {
	p.fault(at, "must be %s, got %s", want, describe(got))
}

// ranges checks what was read, as every constructor does. It says nothing more about what has been named before.
func (p *parser) ranges(c Config) {
	var found faults
	c.faults(&found, p.path)
	for _, err := range found {
		if f, ok := err.(*fault); !ok || !p.covers(f.path) {
			p.faults = append(p.faults, err)
		}
	}
}

// covers reports whether a path, or one that leads to it, has been named.
func (p *parser) covers(at string) bool {
	for !p.named[at] {
		end := strings.LastIndexByte(at, '.')
		if end < 0 {
			return false
		}
		at = at[:end]
	}
	return true
}

// path turns a field of Config into what was written for it.
func (p *parser) path(field string) string {
	at := snake(field)
	if w := p.written[at]; w != "" {
		return w
	}
	return at
}

// table reads the values of a table, in the order of their keys.
func (p *parser) table(at string, v any, to fields) {
	m, ok := asTable(v)
	if !ok {
		p.wrong(at, "a table", v)
		return
	}
	for _, key := range sortedKeys(m) {
		name, target := key, to[key]
		if base, ms := strings.CutSuffix(key, "_ms"); ms {
			if d, ok := to[base].(*time.Duration); ok {
				name, target = base, (*millis)(d)
			}
		}
		path := under(at, key)
		if target == nil {
			p.fault(path, "is none of %s", strings.Join(sortedKeys(to), ", "))
			continue
		}
		if twin := p.written[under(at, name)]; twin != "" {
			p.fault(path, "must not be given together with %s", twin)
			continue
		}
		p.written[under(at, name)] = path
		p.value(path, m[key], target)
	}
}

// millis is a duration that is written as a whole number of milliseconds.
type millis time.Duration

// value reads one value.
func (p *parser) value(at string, v, to any) {
	switch to := to.(type) {
	case fields:
		p.table(at, v, to)
	case *[]TripCondition:
		p.trips(at, v, to)
	case *int:
		set(p, at, v, to, readInt, fmt.Sprintf("a whole number of %d bits", strconv.IntSize))
	case *millis:
		set(p, at, v, to, readMillis, "a whole number of milliseconds, at most 292 years of them")
	case *time.Duration:
		want := `a duration such as "30s"`
		if _, ok := readNumber(v); ok {
			want += " (milliseconds go under " + at + "_ms)"
		}
		set(p, at, v, to, readDuration, want)
	case *float64:
		set(p, at, v, to, readNumber, "a number")
	case *bool:
		set(p, at, v, to, readBool, "true or false")
	case *Mode:
		set(p, at, v, to, readMode, "one of "+strings.Join(modeNames, ", "))
	}
}

func set[T any](p *parser, at string, v any, to *T, read func(any) (T, bool), want string) {
	t, ok := read(v)
	if !ok {
		p.wrong(at, want, v)
		return
	}
	*to = t
}

// trips reads a list of conditions.
func (p *parser) trips(at string, v any, to *[]TripCondition) {
	var list []any
	switch v := v.(type) {
	case []any:
		list = v
	case []map[string]any: // TOML's array of tables
		for _, m := range v {
			list = append(list, m)
		}
	default:
		p.wrong(at, "a list", v)
		return
	}
	if len(list) == 0 {
		p.fault(at, "must name at least one condition, got none")
	}
	for i, v := range list {
		*to = append(*to, p.trip(fmt.Sprintf("%s[%d]", at, i), v))
	}
}

var conditions = []string{"consecutive_failures", "failure_count", "failure_rate", "slow_call_rate"}

// trip reads one condition.
func (p *parser) trip(at string, v any) (t TripCondition) {
	m, _ := asTable(v)
	if len(m) != 1 {
		p.wrong(at, "a table with one key, "+strings.Join(conditions, " or "), v)
		return t
	}
	key := sortedKeys(m)[0]
	in, v := under(at, key), m[key]
	switch key {
	case "consecutive_failures":
		t.kind = tripConsecutive
		p.value(in, v, &t.failures)
	case "failure_count":
		t.kind = tripCount
		p.allOf(in, v, fields{"failures": &t.failures, "within": &t.within})
	case "failure_rate":
		t.kind = tripRate
		p.rate(in, v, &t, fields{})
	case "slow_call_rate":
		t.kind = tripSlow
		p.rate(in, v, &t, fields{"slow": &t.slow})
	default:
		p.fault(in, "is none of %s", strings.Join(conditions, ", "))
		p.named[at] = true
	}
	return t
}

// rate reads a condition with a rate.
func (p *parser) rate(at string, v any, t *TripCondition, more fields) {
	more["rate"] = &t.rate
	more["min_calls"] = &t.minCalls
	more["last"] = &t.window.last
	more["last_calls"] = &t.window.calls
	p.allOf(at, v, more)

	last, calls := p.written[under(at, "last")], p.written[under(at, "last_calls")]
	if last != "" && calls != "" {
		p.fault(calls, "must not be given together with %s", last)
	}
	p.written[under(at, "window")] = cmp.Or(last, calls, under(at, "last"))
}

// allOf reads a table in which every key must be given; of last and last_calls, one.
func (p *parser) allOf(at string, v any, to fields) {
	p.table(at, v, to)
	if p.named[at] {
		return
	}
	given := func(key string) bool { return p.written[under(at, key)] != "" }
	for _, key := range sortedKeys(to) {
		switch {
		case given(key), key == "last_calls", key == "last" && given("last_calls"):
		case key == "last":
			p.fault(under(at, key), "must be given, or last_calls")
		default:
			p.fault(under(at, key), "must be given")
		}
	}
}

// describe shows what was given instead of a setting.
func describe(v any) string {
	m, table := asTable(v)
	switch v := v.(type) {
	case nil:
		return "nothing"
	case string:
		return strconv.Quote(v)
	case bool, textNumber, int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64, float32, float64:
		return fmt.Sprint(v)
	case []any, []map[string]any:
		return "a list"
	}
	switch {
	case !table:
		return fmt.Sprintf("a value of type %T", v)
	case len(m) == 0:
		return "an empty table"
	}
	return "a table with " + strings.Join(sortedKeys(m), ", ")
}

// asTable returns what decoders give for a table. A key that is no string becomes one that nobody knows.
func asTable(v any) (map[string]any, bool) {
	switch v := v.(type) {
	case map[string]any:
		return v, true
	case map[any]any: // older YAML decoders
		m := make(map[string]any, len(v))
		for k, e := range v {
			m[fmt.Sprint(k)] = e
		}
		return m, true
	}
	return nil, false
}

// textNumber is [encoding/json.Number], and what other decoders have of the kind.
type textNumber interface {
	Int64() (int64, error)
	Float64() (float64, error)
	String() string
}

func readNumber(v any) (float64, bool) {
	if n, ok := v.(textNumber); ok {
		f, err := n.Float64()
		return f, err == nil
	}
	switch r := reflect.ValueOf(v); {
	case r.CanFloat():
		return r.Float(), true
	case isDuration(v): // a Duration would be read as nanoseconds
		return 0, false
	case r.CanInt():
		return float64(r.Int()), true
	case r.CanUint():
		return float64(r.Uint()), true
	}
	return 0, false
}

func isDuration(v any) bool {
	_, ok := v.(time.Duration)
	return ok
}

// readWhole reads a number that has no fraction and fits.
func readWhole(v any) (int64, bool) {
	if n, ok := v.(textNumber); ok {
		if n, err := n.Int64(); err == nil {
			return n, true
		}
	}
	switch r := reflect.ValueOf(v); {
	case isDuration(v):
		return 0, false
	case r.CanInt():
		return r.Int(), true
	case r.CanUint():
		return int64(r.Uint()), r.Uint() <= math.MaxInt64
	}
	f, ok := readNumber(v)
	ok = ok && f == math.Trunc(f) && f >= math.MinInt64 && f < -math.MinInt64 // false for NaN
	if !ok {
		return 0, false
	}
	return int64(f), true
}

func readInt(v any) (int, bool) {
	n, ok := readWhole(v)
	return int(n), ok && int64(int(n)) == n
}

func readMillis(v any) (millis, bool) {
	const ms = int64(time.Millisecond)
	n, ok := readWhole(v)
	return millis(n * ms), ok && n <= math.MaxInt64/ms && n >= math.MinInt64/ms
}

func readDuration(v any) (time.Duration, bool) {
	if d, ok := v.(time.Duration); ok {
		return d, true
	}
	s, ok := v.(string)
	d, err := time.ParseDuration(s)
	return d, ok && err == nil
}

func readBool(v any) (b, ok bool) {
	b, ok = v.(bool)
	return b, ok
}

func readMode(v any) (m Mode, ok bool) {
	s, ok := v.(string)
	ok = ok && m.UnmarshalText([]byte(s)) == nil
	return m, ok
}

func under(at, key string) string {
	if at == "" {
		return key
	}
	return at + "." + key
}

func sortedKeys(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }

// snake turns a path of fields into one of keys: HealthCheck.Interval into health_check.interval.
func snake(field string) string {
	var b strings.Builder
	for i, r := range field {
		if unicode.IsUpper(r) && i > 0 && field[i-1] != '.' {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
