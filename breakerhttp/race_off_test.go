//go:build !race

package breakerhttp_test

const raceEnabled = false
