package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
	"go.yaml.in/yaml/v3"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/pool"
)

const maxConfig = 1 << 20 // bytes

// settings is a configuration file, read and checked.
type settings struct {
	listen        string
	strategy      string        // a key of strategies
	failoverLimit time.Duration // until the first byte, all providers together
	firstByte     time.Duration // until the first byte, each provider
	idle          time.Duration // between two parts of an answer
	maxBody       int           // bytes of a request
	debug         bool
	debugPrefix   string
	breaker       breaker.Config
	providers     []providerSettings
}

// providerSettings is one entry under providers.
type providerSettings struct {
	name, url   string
	keyEnv, key string // the environment variable, and what it holds
	health      string // the path that the health check asks for; empty: a connection is enough
	priority    int
	weight      int
}

var strategies = map[string]pool.Strategy{
	"failover":    pool.Failover,
	"round-robin": pool.RoundRobin,
	"weighted":    pool.WeightedRoundRobin,
	"shuffle":     pool.Shuffle,
	"least-busy":  pool.LeastBusy,
}

func defaultSettings() settings {
	return settings{
		listen:        "127.0.0.1:8080",
		strategy:      "failover",
		failoverLimit: 5 * time.Second,
		firstByte:     3 * time.Second,
		idle:          30 * time.Second,
		maxBody:       1 << 20,
		debugPrefix:   "X-Router-",
		breaker:       breaker.DefaultConfig(),
	}
}

// loadSettings reads a file by the decoder that its name asks for.
func loadSettings(path string, getenv func(string) string) (settings, error) {
	info, err := os.Stat(path)
	if err != nil {
		return settings{}, err
	}
	if info.Size() > maxConfig {
		return settings{}, fmt.Errorf("%s: is larger than %d bytes", path, maxConfig)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return settings{}, err
	}
	m, err := decode(filepath.Ext(path), text)
	if err != nil {
		return settings{}, fmt.Errorf("%s: %w", path, err)
	}
	s, err := parseSettings(m, getenv)
	if err != nil {
		return settings{}, fmt.Errorf("%s:\n%w", path, err)
	}
	return s, nil
}

// decode makes a map of a document. What the keys mean is the same whatever the format.
func decode(ext string, text []byte) (m map[string]any, err error) {
	switch ext {
	case ".yaml", ".yml":
		err = yaml.Unmarshal(text, &m)
	case ".toml":
		err = toml.Unmarshal(text, &m)
	case ".json":
		err = json.Unmarshal(text, &m)
	default:
		err = fmt.Errorf("%q is none of .yaml, .yml, .toml, .json", ext)
	}
	return m, err
}

// parseSettings reads a decoded file. The error names everything that is wrong, each with its path.
func parseSettings(m map[string]any, getenv func(string) string) (settings, error) {
	s := defaultSettings()
	var r reader
	if m["breaker"] != nil && m["health"] != nil {
		r.fault("health", "must not be given together with breaker")
	}
	r.table("", m, readers{
		"listen":             text(&s.listen, loopback),
		"strategy":           text(&s.strategy, oneOf(slices.Sorted(maps.Keys(strategies)))),
		"failover_limit":     duration(&s.failoverLimit),
		"first_byte_timeout": duration(&s.firstByte),
		"idle_timeout":       duration(&s.idle),
		"max_body":           whole(&s.maxBody, 1, 64<<20),
		"debug_headers":      boolean(&s.debug),
		"debug_prefix":       text(&s.debugPrefix, headerPrefix),
		"breaker":            circuits(&s.breaker),
		"health":             ccRelay(&s.breaker),
		"providers":          listOf(&s.providers, readProvider),
	})
	r.providers(s.providers)
	for i := range s.providers {
		if p := &s.providers[i]; p.keyEnv != "" {
			p.key = getenv(p.keyEnv)
		}
	}
	return s, errors.Join(r.faults...)
}

func readProvider(r *reader, at string, m map[string]any) providerSettings {
	p := providerSettings{weight: 1}
	r.table(at, m, readers{
		"name":        text(&p.name, nil),
		"url":         text(&p.url, webAddress),
		"key_env":     text(&p.keyEnv, nil),
		"health_path": text(&p.health, absolutePath),
		"priority":    whole(&p.priority, 0, 1000),
		"weight":      whole(&p.weight, 1, 1000),
	})
	for _, key := range []string{"name", "url"} {
		if m[key] == nil {
			r.fault(at+"."+key, "must be given")
		}
	}
	return p
}

// providers checks what the entries must be together.
func (r *reader) providers(all []providerSettings) {
	if len(all) == 0 {
		r.fault("providers", "must name at least one")
	}
	seen := make(map[string]int)
	for i, p := range all {
		if first, twice := seen[p.name]; twice && p.name != "" {
			r.fault(fmt.Sprintf("providers[%d].name", i), "%q is the name of providers[%d] already", p.name, first)
			continue
		}
		seen[p.name] = i
	}
}

// circuits reads the library's own section.
func circuits(to *breaker.Config) readFunc {
	return section(func(r *reader, at string, m map[string]any) {
		c, err := breaker.ParseConfig(m)
		r.adopt(at, err, func(path string) string { return path })
		*to = c
	})
}

// reader reads decoded values and remembers everything that is wrong.
type reader struct{ faults []error }

type (
	readFunc func(r *reader, at string, v any)
	readers  map[string]readFunc
)

func (r *reader) fault(at, format string, args ...any) {
	r.faults = append(r.faults, fmt.Errorf(at+": "+format, args...))
}

// adopt takes over faults that have paths of their own, under the path at. rename turns those into what the file says.
func (r *reader) adopt(at string, err error, rename func(string) string) {
	seen := make(map[string]bool)
	for _, one := range unjoin(err) {
		path, problem, _ := strings.Cut(strings.TrimPrefix(one.Error(), "breaker: "), ": ")
		if path = rename(path); !seen[path] { // one key of the file may stand for two
			r.fault(at+"."+path, "%s", problem)
		}
		seen[path] = true
	}
}

func unjoin(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	if err != nil {
		return []error{err}
	}
	return nil
}

// table reads a table's values in the order of their keys.
func (r *reader) table(at string, m map[string]any, keys readers) {
	for _, key := range slices.Sorted(maps.Keys(m)) {
		path := strings.TrimPrefix(at+"."+key, ".")
		if read := keys[key]; read != nil {
			read(r, path, m[key])
			continue
		}
		r.fault(path, "is none of %s", strings.Join(slices.Sorted(maps.Keys(keys)), ", "))
	}
}

// section reads a table.
func section(read func(r *reader, at string, m map[string]any)) readFunc {
	return func(r *reader, at string, v any) {
		if m, ok := v.(map[string]any); ok {
			read(r, at, m)
			return
		}
		r.fault(at, "must be a table")
	}
}

// within reads a table whose keys are known.
func within(keys readers) readFunc {
	return section(func(r *reader, at string, m map[string]any) { r.table(at, m, keys) })
}

func listOf[T any](to *[]T, read func(*reader, string, map[string]any) T) readFunc {
	return func(r *reader, at string, v any) {
		list, ok := v.([]any)
		if tables, is := v.([]map[string]any); is { // TOML's array of tables
			ok = true
			for _, m := range tables {
				list = append(list, m)
			}
		}
		if !ok {
			r.fault(at, "must be a list")
			return
		}
		for i, v := range list {
			path := fmt.Sprintf("%s[%d]", at, i)
			if m, ok := v.(map[string]any); ok {
				*to = append(*to, read(r, path, m))
			} else {
				r.fault(path, "must be a table")
			}
		}
	}
}

// text reads a text that is not empty and that good has nothing against.
func text(to *string, good func(string) error) readFunc {
	return func(r *reader, at string, v any) {
		s, ok := v.(string)
		if !ok || s == "" {
			r.fault(at, "must be a text, got %v", v)
			return
		}
		if good != nil {
			if err := good(s); err != nil {
				r.fault(at, "%w", err)
				return
			}
		}
		*to = s
	}
}

func boolean(to *bool) readFunc {
	return func(r *reader, at string, v any) {
		b, ok := v.(bool)
		if !ok {
			r.fault(at, "must be true or false, got %v", v)
		}
		*to = b
	}
}

func duration(to *time.Duration) readFunc {
	return func(r *reader, at string, v any) {
		s, _ := v.(string)
		d, err := time.ParseDuration(s)
		if err != nil || d <= 0 {
			r.fault(at, `must be a duration above 0, such as "5s", got %v`, v)
			return
		}
		*to = d
	}
}

// whole reads a whole number. Each decoder has its own type for them.
func whole(to *int, least, most int) readFunc {
	return func(r *reader, at string, v any) {
		n := math.NaN()
		switch v := v.(type) {
		case int:
			n = float64(v)
		case int64:
			n = float64(v)
		case uint64:
			n = float64(v)
		case float64:
			n = v
		}
		if n != math.Trunc(n) || n < float64(least) || n > float64(most) || math.IsNaN(n) {
			r.fault(at, "must be a whole number from %d to %d, got %v", least, most, v)
			return
		}
		*to = int(n)
	}
}

func oneOf(all []string) func(string) error {
	return func(s string) error {
		if !slices.Contains(all, s) {
			return fmt.Errorf("must be one of %s, got %q", strings.Join(all, ", "), s)
		}
		return nil
	}
}

// loopback refuses to listen where others can connect: there is no authentication.
func loopback(s string) error {
	at, err := netip.ParseAddrPort(s)
	if err != nil || !at.Addr().IsLoopback() {
		return fmt.Errorf("must be a loopback address and a port, such as 127.0.0.1:8080, got %q", s)
	}
	return nil
}

// webAddress does not repeat what it refuses: there may be a password in it.
func webAddress(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" ||
		u.Fragment != "" {
		return errors.New("must be http:// or https://, a host and optionally a path")
	}
	return nil
}

func absolutePath(s string) error {
	if !strings.HasPrefix(s, "/") {
		return fmt.Errorf("must start with /, got %q", s)
	}
	return nil
}

func headerPrefix(s string) error {
	for _, c := range []byte(s) {
		if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && c != '-' {
			return fmt.Errorf("must be letters, digits and hyphens, got %q", s)
		}
	}
	return nil
}
