// Package breakertest has what the test suites of this repository share: guards, fake clocks, a circuit with what a test
// needs around it, and recorders of events. It is compiled into tests only.
package breakertest
