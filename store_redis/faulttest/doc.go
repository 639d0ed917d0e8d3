// Package faulttest has no code of its own: its tests run a fleet of processes on real Redis servers, break things, and
// check that the fleet agrees.
package faulttest
