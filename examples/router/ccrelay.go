package main

import (
	"errors"
	"slices"

	"github.com/breakerkit/breaker"
)

// ccRelayKeys is where the keys of cc-relay's circuit_breaker table go. Its half_open_probes is both how many requests
// may try at once and how many successes close the circuit.
var ccRelayKeys = map[string][]string{
	"failure_threshold": {"failure_threshold"},
	"open_duration_ms":  {"open_timeout_ms"},
	"half_open_probes":  {"half_open_probes", "success_threshold"},
}

// ccRelayProbes is cc-relay's default, which is not the library's.
const ccRelayProbes = 3

// fromCCRelay turns the health section of a cc-relay configuration into what [breaker.ParseConfig] reads:
//
//	health:
//	  circuit_breaker: {failure_threshold: 5, open_duration_ms: 30000, half_open_probes: 3}
//	  health_check: {enabled: true, interval_ms: 10000}
//
// The health_check table stays as it is. The error names keys that are not cc-relay's; values are ParseConfig's to judge.
func fromCCRelay(health map[string]any) (map[string]any, error) {
	out := map[string]any{"half_open_probes": ccRelayProbes, "success_threshold": ccRelayProbes}
	put := func(names ...string) readFunc {
		return func(_ *reader, _ string, v any) {
			for _, name := range names {
				out[name] = v
			}
		}
	}
	circuit := make(readers)
	for key, names := range ccRelayKeys {
		circuit[key] = put(names...)
	}
	var r reader
	r.table("", health, readers{"circuit_breaker": within(circuit), "health_check": put("health_check")})
	return out, errors.Join(r.faults...)
}

// ccRelayPath is where a key that came out of fromCCRelay went in.
func ccRelayPath(path string) string {
	for key, names := range ccRelayKeys {
		if slices.Contains(names, path) {
			return "circuit_breaker." + key
		}
	}
	return path
}

// ccRelay reads the health section of a cc-relay configuration.
func ccRelay(to *breaker.Config) readFunc {
	return section(func(r *reader, at string, m map[string]any) {
		keys, err := fromCCRelay(m)
		r.adopt(at, err, func(path string) string { return path })
		c, err := breaker.ParseConfig(keys)
		r.adopt(at, err, ccRelayPath)
		*to = c
	})
}
