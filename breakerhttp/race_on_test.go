//go:build race

package breakerhttp_test

const raceEnabled = true
