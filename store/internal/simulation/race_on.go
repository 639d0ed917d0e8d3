//go:build race

package simulation

// Raced reports whether the race detector is on, which makes runs many times as long.
const Raced = true
