//go:build race

package breaker

// RaceEnabled reports whether the race detector watches. It allocates on its own account and slows everything down.
const RaceEnabled = true
