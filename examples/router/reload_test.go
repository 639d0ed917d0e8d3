package main

import (
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// withBreaker changes keys of the circuits' section.
func withBreaker(keys map[string]any) func(map[string]any) {
	return func(m map[string]any) {
		for k, v := range keys {
			m["breaker"].(map[string]any)[k] = v
		}
	}
}

// A circuit that is open stays open for what is left; its next period has the new length.
func TestReloadKeepsAnOpenCircuit(t *testing.T) {
	play(t, "amber birch", nil, func(b *bench) {
		b.failFive()
		b.at(26 * second)
		before := b.circuit("amber")
		b.reload("amber birch", withBreaker(map[string]any{"open_timeout": "10s", "failure_threshold": 3}))
		after := b.circuit("amber")
		require.Equal(b, before, after)
		require.Equal(b, 34*second, after.Until.Sub(b.start), "8s are left")
		b.at(34*second - 1)
		b.ask("birch")
		b.locals["amber"].say(reply{}, reply{status: 500})
		b.at(34 * second)
		b.ask("birch") // the probe failed
		require.Equal(b, 44*second, b.circuit("amber").Until.Sub(b.start))
		require.Equal(b, []int{6, 7}, b.counts())
	})
}

// Failures counted before a reload count after it, towards the new threshold.
func TestReloadKeepsCounts(t *testing.T) {
	play(t, "amber birch", nil, func(b *bench) {
		b.locals["amber"].say(reply{status: 500})
		for range 4 {
			b.ask("birch")
		}
		b.reload("amber birch", withBreaker(map[string]any{"failure_threshold": 6, "open_timeout": "1m"}))
		require.EqualValues(b, 4, b.circuit("amber").ConsecutiveFailures)
		require.EqualValues(b, 4, b.circuit("birch").Totals.Successes)
		b.ask("birch")
		b.state("amber", breaker.Closed)
		b.ask("birch")
		b.state("amber", breaker.Open)
		require.Equal(b, time.Minute, b.circuit("amber").Until.Sub(b.start))
	})
}

// Providers come and go; what is under way ends as it began.
func TestReloadMembers(t *testing.T) {
	play(t, "amber birch cedar", nil, func(b *bench) {
		b.reload("amber birch", nil)
		pool := b.r.live.Load().pool
		b.locals["birch"].say(reply{status: 500})
		b.locals["amber"].say(reply{}, reply{status: 500})
		require.Equal(b, 503, b.send(question).status)
		require.Equal(b, []int{1, 1, 0}, b.counts())

		release := b.locals["amber"].hold()
		got := make(chan gotten, 1)
		go func() { got <- b.send(question) }()
		require.NoError(b, b.locals["amber"].reached(b.ctx, 2))
		b.reload("cedar birch", func(m map[string]any) { // in amber's place
			m["providers"].([]any)[1].(map[string]any)["priority"] = 1
		})
		require.Same(b, pool, b.r.live.Load().pool)
		b.ask("cedar")
		require.EqualValues(b, 1, b.circuit("birch").ConsecutiveFailures, "it has stayed")
		release()
		require.Equal(b, "Here is amber with a few words of its own.", (<-got).words)
		require.Equal(b, []int{2, 1, 1}, b.counts())
	})
}

// Another strategy, weight or address leaves the circuits alone.
func TestReloadKeepsCircuits(t *testing.T) {
	for name, change := range map[string]func(map[string]any){
		"strategy": func(m map[string]any) { m["strategy"] = "round-robin" },
		"weight":   func(m map[string]any) { m["providers"].([]any)[1].(map[string]any)["weight"] = 5 },
		"priority": func(m map[string]any) { m["providers"].([]any)[1].(map[string]any)["priority"] = 9 },
		"address":  func(m map[string]any) { m["providers"].([]any)[0].(map[string]any)["url"] = "http://127.0.0.1:1" },
	} {
		t.Run(name, func(t *testing.T) {
			play(t, "amber birch", nil, func(b *bench) {
				b.failFive()
				before := b.r.live.Load().providers["amber"].circuit
				b.reload("amber birch", change)
				require.Same(b, before, b.r.live.Load().providers["amber"].circuit)
				b.at(33 * second)
				b.ask("birch")
				b.state("amber", breaker.Open)
			})
		})
	}
}

// Of providers with equal priorities the first in the file is asked first, in the file that was read last.
func TestReloadOrderOfEquals(t *testing.T) {
	equal := func(m map[string]any) {
		for _, p := range m["providers"].([]any) {
			p.(map[string]any)["priority"] = 1
		}
	}
	play(t, "amber birch cedar", equal, func(b *bench) {
		b.ask("amber")
		before := b.r.live.Load().providers["amber"].circuit
		b.reload("birch amber cedar", equal)
		b.ask("birch")
		require.Same(b, before, b.r.live.Load().providers["amber"].circuit)
		b.reload("birch cedar", equal)
		b.ask("birch")
		b.reload("amber birch cedar", equal) // the newcomer comes first
		b.ask("amber")
		pool := b.r.live.Load().pool
		b.reload("amber cedar", equal)
		b.ask("amber")
		require.Same(b, pool, b.r.live.Load().pool, "nobody who stays has moved")
	})
}

// An address that changes is where the next call goes, and the next health check.
func TestReloadAddress(t *testing.T) {
	checks := withBreaker(map[string]any{"health_check": map[string]any{"interval": "10s"}})
	play(t, "amber birch cedar", checks, func(b *bench) {
		b.reload("amber birch", checks)
		b.failFive2()
		b.locals["amber"].down()
		b.reload("amber birch", func(m map[string]any) {
			checks(m)
			m["providers"].([]any)[0].(map[string]any)["url"] = b.locals["cedar"].url()
		})
		require.True(b, b.clk.waiting(b.ctx, b.start.Add(10*second)))
		b.at(10 * second)
		b.awaits(2)
		b.state("amber", breaker.HalfOpen)
		b.ask("cedar")
	})
}

// failFive2 opens amber's circuit at t=0.
func (b *bench) failFive2() {
	b.Helper()
	b.locals["amber"].say(reply{status: 500})
	for range 5 {
		b.ask("birch")
	}
	b.state("amber", breaker.Open)
}

// A reload that is refused changes nothing.
func TestReloadRefused(t *testing.T) {
	play(t, "amber birch", nil, func(b *bench) {
		b.failFive2()
		before := b.r.live.Load()
		circuit := b.circuit("amber")
		bad := b.settings("amber birch", withBreaker(map[string]any{"open_timeout": "1s"}))
		bad.listen = "127.0.0.1:1"
		require.ErrorContains(b, b.r.reload(bad), "listen: 127.0.0.1:8080 cannot become 127.0.0.1:1 without a restart")
		bad = b.settings("amber birch", nil)
		bad.breaker.OpenTimeout = -1
		bad.providers = append(bad.providers, providerSettings{name: "dove", url: "http://127.0.0.1:1", weight: 1})
		require.ErrorContains(b, b.r.reload(bad), "OpenTimeout")
		require.Same(b, before, b.r.live.Load())
		require.Equal(b, circuit, b.circuit("amber"))
		require.Equal(b, 30*second, b.r.live.Load().providers["amber"].circuit.Config().OpenTimeout)
	})
}

// Under traffic nothing is lost, whatever is reloaded meanwhile.
func TestReloadUnderTraffic(t *testing.T) {
	play(t, "amber birch cedar", nil, func(b *bench) {
		const callers, each = 8, 50
		var wrong sync.Map
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				for range each {
					if g := b.send(question); g.status != 200 || g.err != nil {
						wrong.Store(g.body, g)
					}
				}
			})
		}
		changes := []func(map[string]any){
			func(m map[string]any) { m["strategy"] = "round-robin" },
			func(m map[string]any) { m["strategy"] = "shuffle" },
			withBreaker(map[string]any{"failure_threshold": 7}),
		}
		for i := range 30 {
			names := []string{"amber birch cedar", "amber birch", "birch amber cedar"}[i%3]
			b.reload(names, changes[i%len(changes)])
		}
		all.Wait()
		wrong.Range(func(_, g any) bool {
			require.Fail(b, "a call was lost", "%+v", g)
			return false
		})
		sum := 0
		for _, n := range b.counts() {
			sum += n
		}
		require.Equal(b, callers*each, sum)
	})
}

// A provider that has gone is no longer checked, and after Close nobody is.
func TestHealthChecksEnd(t *testing.T) {
	checks := withBreaker(map[string]any{"health_check": map[string]any{"interval": "10s"}})
	for name, end := range map[string]func(*bench){
		"removed": func(b *bench) { b.reload("birch", checks) },
		"closed":  func(b *bench) { require.NoError(b, b.r.Close()) },
	} {
		t.Run(name, func(t *testing.T) {
			play(t, "amber birch", checks, func(b *bench) {
				b.failFive2()
				require.True(b, checking(), "amber is checked")
				end(b)
				for checking() {
					require.True(b, pause(b.ctx, time.Millisecond), "a check goes on")
				}
			})
		})
	}
}

// checking reports whether a goroutine makes health checks.
func checking() bool {
	stacks := make([]byte, 1<<20)
	return strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "breaker.runHealth")
}
