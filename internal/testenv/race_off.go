//go:build !race

package testenv

// Race reports whether the race detector watches. It allocates on its own account and slows everything down.
const Race = false
