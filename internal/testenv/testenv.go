// Package testenv tells the tests of this repository how much to do.
package testenv

import (
	"os"
	"testing"
)

// Long reports whether the long tests run in full: model checks, exhaustive walks, simulations and faults. It is asked for
// by BREAKER_LONG_TESTS=1 in the environment, as .ci/run does. Without it they run too, but fewer cases.
func Long() bool { return os.Getenv("BREAKER_LONG_TESTS") == "1" }

// Small reports whether a test should do as little as still means something: with -short, and under the race detector,
// which makes everything many times as long.
func Small() bool { return testing.Short() || Race }

// Size is how much a test does: least where Small says so, all of it for a Long run, otherwise usual.
func Size(least, usual, all int) int {
	switch {
	case Small():
		return least
	case Long():
		return all
	}
	return usual
}
