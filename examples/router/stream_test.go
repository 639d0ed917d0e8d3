package main

import (
	"bufio"
	"context"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// stream is an answer that is still coming.
type stream struct {
	*bench
	resp *http.Response
	in   *bufio.Reader
	end  func()
}

func (b *bench) stream() *stream {
	b.Helper()
	ctx, cancel := context.WithCancel(b.ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url+chatPath, strings.NewReader(question))
	require.NoError(b, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := b.client.Do(req)
	require.NoError(b, err)
	return &stream{b, resp, bufio.NewReader(resp.Body), func() {
		cancel()
		_ = resp.Body.Close()
	}}
}

// words reads n words.
func (s *stream) words(n int) string {
	s.Helper()
	var all []string
	for len(all) < n {
		line, err := s.in.ReadBytes('\n')
		require.NoError(s, err)
		if w := words(line); w != "" {
			all = append(all, w)
		}
	}
	return strings.Join(all, " ")
}

// settled waits until a provider's circuit has as many finished calls, and none in flight.
func (b *bench) settled(name string, calls int) breaker.Snapshot {
	b.Helper()
	for {
		s := b.circuit(name)
		if s.Totals.Calls == uint64(calls) && s.InFlight == 0 {
			return s
		}
		require.True(b, pause(b.ctx, time.Millisecond), "%v", s)
	}
}

// Until the first byte another provider takes over, and the caller sees nothing of it.
func TestFailoverBeforeTheFirstByte(t *testing.T) {
	for name, bad := range map[string]reply{
		"status": {status: 502}, "limit": {status: 429}, "timeout": {status: 408}, "broken after the headers": {cut: -1},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, "amber birch", nil, func(b *bench) {
				b.locals["amber"].say(bad)
				b.ask("birch")
				require.Equal(b, []int{1, 1}, b.counts())
				require.EqualValues(b, 1, b.circuit("amber").ConsecutiveFailures)
				require.Zero(b, b.circuit("birch").ConsecutiveFailures)
			})
		})
	}
	t.Run("silent after the headers", func(t *testing.T) {
		play(t, "amber birch", nil, func(b *bench) {
			b.locals["amber"].say(reply{hang: true})
			got := make(chan gotten, 1)
			go func() { got <- b.send(question) }()
			require.NoError(b, b.locals["amber"].reached(b.ctx, 1))
			b.at(499 * time.Millisecond)
			require.Zero(b, b.circuit("amber").Totals.Calls)
			b.at(500 * time.Millisecond)
			require.Equal(b, "Here is birch with a few words of its own.", (<-got).words)
		})
	})
}

// After the first byte nobody takes over: the answer breaks off, and that counts against the provider.
func TestNoFailoverAfterTheFirstByte(t *testing.T) {
	play(t, "amber birch", nil, func(b *bench) {
		b.locals["amber"].say(reply{cut: 3})
		for i := range 5 {
			g := b.send(question)
			require.ErrorIs(b, g.err, io.ErrUnexpectedEOF, "an end that looks like an end would be a lie")
			require.Equal(b, 200, g.status)
			require.Equal(b, "Here is amber", g.words)
			require.EqualValues(b, i+1, b.settled("amber", i+1).Totals.Failures)
		}
		require.Equal(b, []int{5, 0}, b.counts())
		b.state("amber", breaker.Open)
		b.ask("birch")

		b.at(30 * second) // a probe that breaks off has failed
		require.Error(b, b.send(question).err)
		b.settled("amber", 6)
		b.state("amber", breaker.Open)
		require.Equal(b, []int{6, 1}, b.counts())
	})
}

// A stream that stalls is given up, and counts.
func TestStall(t *testing.T) {
	play(t, "amber birch", nil, func(b *bench) {
		b.locals["amber"].say(reply{stall: 3})
		s := b.stream()
		defer s.end()
		require.Equal(b, "Here is amber", s.words(3))
		require.True(b, b.clk.waiting(b.ctx, b.start.Add(30*second)))
		b.at(30 * second)
		_, err := io.ReadAll(s.in)
		require.ErrorIs(b, err, io.ErrUnexpectedEOF)
		require.EqualValues(b, 1, b.settled("amber", 1).Totals.Failures)
		require.Equal(b, []int{1, 0}, b.counts())
	})
}

// Parts arrive as they are sent, and a call is in flight until its last one.
func TestPartsAsTheyCome(t *testing.T) {
	play(t, "amber", nil, func(b *bench) {
		b.locals["amber"].say(reply{stall: 2})
		s := b.stream()
		defer s.end()
		require.Equal(b, "text/event-stream", s.resp.Header.Get("Content-Type"))
		require.Equal(b, "Here is", s.words(2))
		require.EqualValues(b, 1, b.circuit("amber").InFlight)
	})
}

// A caller who leaves says nothing against the provider, and nobody else is asked on his behalf.
func TestCallerLeaves(t *testing.T) {
	play(t, "amber birch", nil, func(b *bench) {
		b.locals["amber"].say(reply{stall: 2})
		s := b.stream()
		s.words(2)
		s.end()
		require.Zero(b, b.settled("amber", 1).Totals.Failures)

		b.locals["amber"].say(reply{hang: true})
		ctx, cancel := context.WithCancel(b.ctx)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url+chatPath, strings.NewReader(question))
		require.NoError(b, err)
		req.Header.Set("Content-Type", "application/json")
		ended := make(chan error, 1)
		go func() {
			_, err := b.client.Do(req)
			ended <- err
		}()
		require.NoError(b, b.locals["amber"].reached(b.ctx, 2))
		cancel()
		require.Error(b, <-ended)
		got := b.settled("amber", 2)
		require.EqualValues(b, 1, got.Totals.Ignored)
		require.Equal(b, []int{2, 0}, b.counts())
		require.True(b, b.log.wait(b.ctx, "status=499", 1))
	})
}

// All attempts together have one limit until the first byte.
func TestFailoverLimit(t *testing.T) {
	limit := func(m map[string]any) { m["failover_limit"] = "700ms" }
	play(t, "amber birch cedar", limit, func(b *bench) {
		b.locals["amber"].say(reply{hang: true})
		b.locals["birch"].say(reply{hang: true})
		got := make(chan gotten, 1)
		go func() { got <- b.send(question) }()
		require.NoError(b, b.locals["amber"].reached(b.ctx, 1))
		b.at(500 * time.Millisecond)
		require.NoError(b, b.locals["birch"].reached(b.ctx, 1))
		b.at(700 * time.Millisecond)
		require.Equal(b, 504, (<-got).status)
		require.Equal(b, []int{1, 1, 0}, b.counts())
		require.EqualValues(b, 1, b.circuit("birch").Totals.Failures)
	})
}

// An answer in one piece passes as it is, and so does one that says that the request was wrong.
func TestAnswersInOnePiece(t *testing.T) {
	play(t, "amber birch", nil, func(b *bench) {
		g := b.send(unstreamed)
		require.Equal(b, "Here is amber with a few words of its own.", g.words)
		require.Equal(b, "application/json", g.header.Get("Content-Type"))
		for _, code := range []int{400, 401, 403, 404, 422} {
			b.locals["amber"].say(reply{status: code})
			g := b.send(unstreamed)
			require.NoError(b, g.err)
			require.Equal(b, code, g.status)
			require.Contains(b, g.body, "amber says")
		}
		b.locals["amber"].say(reply{status: 302})
		require.Equal(b, 302, b.send(unstreamed).status, "nobody follows a redirect with a key in hand")
		require.Equal(b, []int{7, 0}, b.counts())
		require.EqualValues(b, 5, b.circuit("amber").Totals.Ignored)
	})
}

// The provider gets its own key and nothing of the caller's; the caller gets nothing of the provider's but the answer.
func TestHeaders(t *testing.T) {
	key := func(m map[string]any) { m["providers"].([]any)[0].(map[string]any)["key_env"] = "AMBER" }
	play(t, "amber", key, func(b *bench) {
		g := b.send(question, "Authorization", "Bearer mine", "Cookie", "a=b", "X-Other", "1")
		require.Equal(b, 200, g.status)
		got := b.locals["amber"].last
		require.Equal(b, "Bearer secret of AMBER", got.Get("Authorization"))
		require.Empty(b, got.Get("Cookie")+got.Get("X-Other"))
		require.NotContains(b, b.log.String(), "secret")
		require.Equal(b, "no-store", g.header.Get("Cache-Control"))
	})
}

// Debug headers are off by default; a provider cannot forge them.
func TestDebugHeaders(t *testing.T) {
	play(t, "amber birch", nil, func(b *bench) {
		for name := range b.send(question).header {
			require.NotContains(b, name, "Router")
		}
	})
	for prefix, names := range map[string]string{"": "X-Router-", "X-CC-Relay-": "X-Cc-Relay-"} {
		on := func(m map[string]any) {
			m["debug_headers"] = true
			if prefix != "" {
				m["debug_prefix"] = prefix
			}
		}
		play(t, "amber birch", on, func(b *bench) {
			debug := func(g gotten) [3]string {
				return [3]string{g.header.Get(names + "Provider"), g.header.Get(names + "Strategy"), g.header.Get(names + "Health")}
			}
			require.Equal(b, [3]string{"amber", "failover", "closed"}, debug(b.send(question)))
			b.r.live.Load().providers["amber"].circuit.Trip(nil)
			require.Equal(b, [3]string{"birch", "failover", "closed"}, debug(b.send(question)))
			b.at(30 * second)
			require.Equal(b, [3]string{"amber", "failover", "half-open"}, debug(b.send(question)))
			for name := range b.locals {
				b.r.live.Load().providers[name].circuit.Trip(nil)
			}
			require.Equal(b, [3]string{"", "failover", ""}, debug(b.send(question)))
		})
	}
}

// What is not forwarded.
func TestRefusals(t *testing.T) {
	small := func(m map[string]any) { m["max_body"] = 100 }
	play(t, "amber", small, func(b *bench) {
		for _, c := range []struct {
			status             int
			body, name, header string
		}{
			{413, `{"text":"` + strings.Repeat("x", 100) + `"}`, "X-Other", ""},
			{400, `{"text":`, "X-Other", ""},
			{400, ``, "X-Other", ""},
			{415, unstreamed, "Content-Type", "text/plain"},
			{415, unstreamed, "Content-Type", "application/x-www-form-urlencoded"},
		} {
			g := b.send(c.body, c.name, c.header)
			require.Equal(b, c.status, g.status)
			require.Contains(b, g.body, `"router_error"`)
		}
		req, err := http.NewRequest(http.MethodPost, b.url+chatPath, strings.NewReader(unstreamed))
		require.NoError(b, err)
		req.Host = "page.example"
		resp, err := b.client.Do(req)
		require.NoError(b, err)
		require.NoError(b, resp.Body.Close())
		require.Equal(b, 421, resp.StatusCode)
		resp, err = b.client.Get(b.url + chatPath)
		require.NoError(b, err)
		require.NoError(b, resp.Body.Close())
		require.Equal(b, 405, resp.StatusCode)
		require.Equal(b, []int{0}, b.counts())
		require.Equal(b, 200, b.send(unstreamed, "Content-Type", "application/json; charset=utf-8").status)
	})
}

// The log has the status that the provider gave, whatever came out at the end.
func TestLogShowsTheRealStatus(t *testing.T) {
	play(t, "amber birch", nil, func(b *bench) {
		b.locals["amber"].say(reply{status: 429, after: 7})
		b.ask("birch")
		require.True(b, b.log.wait(b.ctx, "msg=request", 1))
		require.Contains(b, b.log.String(), "msg=attempt provider=amber health=closed status=429 retry_after=7s")
		require.Contains(b, b.log.String(), "msg=attempt provider=birch health=closed status=200")
		require.Contains(b, b.log.String(), "msg=request status=200 provider=birch attempts=2")
	})
}

// What the circuits are in is shown without what the providers said.
func TestCircuitsPage(t *testing.T) {
	play(t, "amber birch", nil, func(b *bench) {
		b.locals["amber"].say(reply{status: 500})
		b.ask("birch")
		s := b.circuit("amber")
		require.EqualValues(b, 1, s.ConsecutiveFailures)
		require.Empty(b, s.LastFailure)
	})
}

// Retry-After comes in seconds and in three forms of a date; what is malformed is absent.
func TestRetryAfterForms(t *testing.T) {
	now := time.Date(2026, time.January, 5, 9, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"":                               0,
		"0":                              0,
		"120":                            2 * time.Minute,
		"2147483647":                     math.MaxInt32 * time.Second,
		"99999999999999999999":           0,
		"-5":                             0,
		"1.5":                            0,
		"soon":                           0,
		"Mon, 05 Jan 2026 09:01:00 GMT":  time.Minute,
		"Monday, 05-Jan-26 09:01:00 GMT": time.Minute,
		"Mon Jan  5 09:01:00 2026":       time.Minute,
		"Mon, 05 Jan 2026 08:59:00 GMT":  0,
	} {
		require.Equal(t, want, retryAfter(http.Header{"Retry-After": {text}}, now), text)
	}
}
