package main

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

const second = time.Second

// failFive lets amber fail in five ways at t=0..4, with a 401 in between, while birch answers. Calls: amber 5, birch 5.
func (b *bench) failFive() {
	b.Helper()
	amber := b.locals["amber"]
	amber.say(reply{}, reply{status: 429}, reply{status: 500}, reply{status: 401}, reply{status: 503}, reply{hang: true})
	b.ask("birch")
	b.at(1 * second)
	b.ask("birch")
	g := b.send(question)
	require.Equal(b, 401, g.status)
	require.Equal(b, "amber says Unauthorized\n", g.body, "nobody else is asked: the request was wrong")
	require.EqualValues(b, 2, b.circuit("amber").ConsecutiveFailures, "it changes nothing")
	b.at(2 * second)
	b.ask("birch")
	b.at(3 * second)
	hung := make(chan gotten, 1)
	go func() { hung <- b.send(question) }()
	require.NoError(b, amber.reached(b.ctx, 5))
	b.at(3*second + 500*time.Millisecond)
	require.Equal(b, 200, (<-hung).status)
	b.at(4 * second)
	amber.down()
	b.r.client.CloseIdleConnections()
	b.state("amber", breaker.Closed)
	b.ask("birch") // amber's fifth failure: refused
	b.state("amber", breaker.Open)
	require.NoError(b, amber.up())
	require.Equal(b, []int{5, 5}, b.counts())
	require.Equal(b, []string{"4s amber closed>open: threshold reached"}, b.story())
	require.ErrorIs(b, b.events[0].Cause, syscall.ECONNREFUSED)
}

// tenAtOnce sends ten questions that are all under way at the same time, of which amber gets some.
func (b *bench) tenAtOnce(amber int) (release func() []gotten) {
	b.Helper()
	before := b.counts()
	holdA, holdB := b.locals["amber"].hold(), b.locals["birch"].hold()
	all := make(chan gotten, 10)
	for range 10 {
		go func() { all <- b.send(question) }()
	}
	require.NoError(b, b.locals["amber"].reached(b.ctx, before[0]+amber))
	require.NoError(b, b.locals["birch"].reached(b.ctx, before[1]+10-amber))
	return func() (got []gotten) {
		holdA()
		holdB()
		for range 10 {
			got = append(got, <-all)
		}
		return got
	}
}

// The published story of an outage and its end, steps 1 to 6, over HTTP.
func TestRecovery(t *testing.T) {
	play(t, "amber birch", nil, func(b *bench) {
		b.failFive() // steps 1 and 2
		for _, at := range []time.Duration{4 * second, 5 * second, 20 * second, 34*second - 1} {
			b.at(at)
			b.ask("birch")
		}
		require.Equal(b, []int{5, 9}, b.counts(), "step 3")

		b.at(34 * second)
		b.state("amber", breaker.HalfOpen) // step 4
		release := b.tenAtOnce(3)          // step 5
		b.state("amber", breaker.HalfOpen)
		require.EqualValues(b, 3, b.circuit("amber").Probes)
		for _, g := range release() {
			require.Equal(b, 200, g.status)
		}
		require.Equal(b, []int{8, 16}, b.counts())
		b.state("amber", breaker.Closed) // step 6
		b.ask("amber")
		require.Equal(b, []int{9, 16}, b.counts())
		require.Equal(b, []string{
			"4s amber closed>open: threshold reached",
			"34s amber open>half-open: timeout expired",
			"34s amber half-open>closed: recovered",
		}, b.story())
		require.Contains(b, b.log.String(), `level=WARN msg="circuit state changed" name=amber from=closed to=open`)
		require.Contains(b, b.log.String(), `level=INFO msg="circuit state changed" name=amber from=half-open to=closed`)
	})
}

// Variant i: one probe of three fails, and the successes are worth nothing.
func TestRecoveryProbeFails(t *testing.T) {
	play(t, "amber birch", nil, func(b *bench) {
		b.failFive()
		b.at(34 * second)
		b.ask("amber")
		b.ask("amber")
		b.state("amber", breaker.HalfOpen)
		b.locals["amber"].say(reply{}, reply{status: 500})
		b.at(35 * second)
		b.ask("birch") // the caller does not pay for the probe
		b.state("amber", breaker.Open)
		require.Equal(b, []int{8, 6}, b.counts())
		b.at(65*second - 1)
		b.ask("birch")
		b.at(65 * second)
		for range 3 {
			b.state("amber", breaker.HalfOpen)
			b.ask("amber")
		}
		b.state("amber", breaker.Closed)
		require.Equal(b, []int{11, 7}, b.counts())
	})
}

// Variant ii: a health check that passes ends the open period early, and decides nothing else.
func TestRecoveryByHealthCheck(t *testing.T) {
	for name, path := range map[string]string{"a connection": "", "a page": "/healthz"} {
		t.Run(name, func(t *testing.T) {
			checks := func(m map[string]any) {
				m["breaker"].(map[string]any)["health_check"] = map[string]any{"interval": "10s"}
				if path != "" {
					m["providers"].([]any)[0].(map[string]any)["health_path"] = path
				}
			}
			play(t, "amber birch", checks, func(b *bench) {
				b.failFive()
				require.True(b, b.clk.waiting(b.ctx, b.start.Add(14*second)))
				b.at(14*second - 1)
				b.ask("birch")
				b.at(14 * second)
				b.awaits(2)
				b.state("amber", breaker.HalfOpen)
				for range 3 {
					b.state("amber", breaker.HalfOpen)
					b.ask("amber")
				}
				b.state("amber", breaker.Closed)
				require.Equal(b, []int{8, 6}, b.counts(), "checks are no calls")
				require.Equal(b, "14s amber open>half-open: health check", b.story()[1])
			})
		})
	}
}

// The health checks of several routers do not come all at once: the first is put off by chance.
func TestHealthCheckJitter(t *testing.T) {
	checks := func(m map[string]any) {
		m["breaker"].(map[string]any)["health_check"] = map[string]any{"interval": "10s", "jitter": "2s"}
	}
	play(t, "amber birch", checks, func(b *bench) {
		require.Equal(b, 2*second, b.r.live.Load().providers["amber"].circuit.Config().HealthCheck.Jitter)
		b.failFive()
		b.at(14*second - 1)
		b.state("amber", breaker.Open)
		b.at(16 * second)
		b.awaits(2)
		require.True(b, strings.HasSuffix(b.story()[1], "health check"), b.story())
	})
}

// Variant iii: with nobody left there is one answer, at once, and it says when to come back.
func TestAllOpen(t *testing.T) {
	play(t, "amber birch", nil, func(b *bench) {
		amber, birch := b.locals["amber"], b.locals["birch"]
		amber.say(reply{status: 500})
		birch.say(reply{status: 503})
		for i := range 5 {
			b.at(time.Duration(i) * second)
			if i < 4 {
				require.GreaterOrEqual(b, b.send(question).status, 502)
			}
		}
		amber.say(reply{}, reply{status: 500})
		require.GreaterOrEqual(b, b.send(question).status, 502)
		require.Equal(b, []int{5, 5}, b.counts())
		b.state("amber", breaker.Open)
		b.state("birch", breaker.Open)

		b.at(10*second + 1) // both are due at 34s
		for range 100 {
			g := b.send(question)
			require.Equal(b, 503, g.status)
			require.Equal(b, "24", g.header.Get("Retry-After"))
			require.JSONEq(b, `{"error":{"message":"no provider is available","type":"router_error"}}`, g.body)
		}
		require.Equal(b, []int{5, 5}, b.counts(), "nobody was asked")
		b.at(34 * second)
		b.ask("amber")
	})
}

// Retry-After is the earliest of all providers.
func TestRetryAfterIsTheEarliest(t *testing.T) {
	play(t, "amber birch", nil, func(b *bench) {
		amber, birch := b.locals["amber"], b.locals["birch"]
		amber.say(reply{status: 429, after: 90})
		birch.say(reply{status: 429, after: 60})
		for range 5 {
			b.send(question)
		}
		require.Equal(b, "60", b.send(question).header.Get("Retry-After"))
		b.at(20 * second)
		require.Equal(b, "40", b.send(question).header.Get("Retry-After"))
		require.Equal(b, []int{5, 5}, b.counts())
	})
}

// Variant iv: a 404 on a probe decides nothing and holds no slot.
func TestProbeThatWasTheCallersFault(t *testing.T) {
	play(t, "amber birch", nil, func(b *bench) {
		b.failFive()
		b.at(34 * second)
		b.locals["amber"].say(reply{}, reply{status: 404}, reply{status: 404}, reply{status: 404}, reply{status: 404})
		for range 4 {
			require.Equal(b, 404, b.send(question).status)
			b.state("amber", breaker.HalfOpen)
			require.Zero(b, b.circuit("amber").Probes)
		}
		require.Equal(b, []int{9, 5}, b.counts())
		for range 3 {
			b.state("amber", breaker.HalfOpen)
			b.ask("amber")
		}
		b.state("amber", breaker.Closed)
	})
}

// What a provider asks for by Retry-After lengthens the open period, and no more than allowed.
func TestRetryAfterLengthens(t *testing.T) {
	play(t, "amber birch", nil, func(b *bench) {
		b.locals["amber"].say(reply{}, reply{status: 429, after: 1}, reply{status: 429}, reply{status: 429}, reply{status: 429},
			reply{status: 429, after: 90})
		for range 5 {
			b.ask("birch")
		}
		require.Equal(b, 90*second, b.circuit("amber").Until.Sub(b.start))
		b.at(90*second - 1)
		b.ask("birch")
		b.at(90 * second)
		b.ask("amber")
	})
	hint := func(m map[string]any) { m["breaker"].(map[string]any)["open_hint"] = "1m" }
	play(t, "amber birch", hint, func(b *bench) {
		b.locals["amber"].say(reply{status: 503, after: 86400})
		for range 5 {
			b.ask("birch")
		}
		require.Equal(b, time.Minute, b.circuit("amber").Until.Sub(b.start))
	})
}

// Each strategy shares out twelve questions, with everybody well and with amber out.
func TestStrategies(t *testing.T) {
	for strategy, want := range map[string][2][]int{
		"failover":    {{12, 0, 0}, {0, 12, 0}},
		"round-robin": {{4, 4, 4}, {0, 6, 6}},
		"weighted":    {{6, 3, 3}, {0, 6, 6}},
		"shuffle":     {{4, 4, 4}, {0, 6, 6}},
		"least-busy":  {{4, 4, 4}, {0, 6, 6}},
	} {
		t.Run(strategy, func(t *testing.T) {
			change := func(m map[string]any) {
				m["strategy"] = strategy
				m["providers"].([]any)[0].(map[string]any)["weight"] = 2
			}
			play(t, "amber birch cedar", change, func(b *bench) {
				for range 12 {
					require.Equal(b, 200, b.send(question).status)
				}
				require.Equal(b, want[0], b.counts())
				b.r.live.Load().providers["amber"].circuit.Trip(nil)
				for range 12 {
					require.Equal(b, 200, b.send(question).status)
				}
				for i, n := range b.counts() {
					require.Equal(b, want[1][i], n-want[0][i])
				}
			})
		})
	}
}
