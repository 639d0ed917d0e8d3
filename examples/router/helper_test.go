package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/breakerkit/breaker"
)

// No test may leave a goroutine behind.
func TestMain(m *testing.M) {
	if asRouter() {
		return
	}
	goleak.VerifyTestMain(m)
}

// patience is how long anything may take before it is taken to be stuck.
const patience = 2 * time.Minute

// guard runs f and fails the test if f has not returned in time: a wedge shows as a failure with stacks.
func guard(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
		if t.Failed() {
			t.FailNow()
		}
	case <-time.After(patience):
		stacks := make([]byte, 1<<20)
		t.Fatalf("stuck: not done after %v\n%s", patience, stacks[:runtime.Stack(stacks, true)])
	}
}

// handClock moves by hand.
type handClock struct {
	mu    sync.Mutex
	now   time.Time
	waits []wait
	more  chan struct{} // closed at the next wait
}

type wait struct {
	until time.Time
	over  chan time.Time
}

// It starts long after now: a health check's context has its deadline by this clock, and the net package, which looks at
// the real one, would take one in the past for over.
func newHandClock() *handClock {
	return &handClock{now: time.Date(2100, time.January, 5, 9, 0, 0, 0, time.UTC), more: make(chan struct{})}
}

func (c *handClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *handClock) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	over := make(chan time.Time, 1)
	if d <= 0 {
		over <- c.now
		return over
	}
	c.waits = append(c.waits, wait{c.now.Add(d), over})
	close(c.more)
	c.more = make(chan struct{})
	return over
}

// set moves the time on and ends the waits that are over.
func (c *handClock) set(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = now
	c.waits = slices.DeleteFunc(c.waits, func(w wait) bool {
		if w.until.After(now) {
			return false
		}
		w.over <- now
		return true
	})
}

// waiting blocks until somebody waits for exactly that instant.
func (c *handClock) waiting(ctx context.Context, until time.Time) bool {
	for {
		c.mu.Lock()
		found := slices.ContainsFunc(c.waits, func(w wait) bool { return w.until.Equal(until) })
		more := c.more
		c.mu.Unlock()
		if found {
			return true
		}
		select {
		case <-more:
		case <-ctx.Done():
			return false
		}
	}
}

// logBuffer collects a log.
type logBuffer struct {
	mu   sync.Mutex
	b    bytes.Buffer
	more chan struct{}
}

func newLogBuffer() *logBuffer { return &logBuffer{more: make(chan struct{})} }

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.more)
	l.more = make(chan struct{})
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// wait blocks until the log holds text n times.
func (l *logBuffer) wait(ctx context.Context, text string, n int) bool {
	for {
		l.mu.Lock()
		found, more := strings.Count(l.b.String(), text) >= n, l.more
		l.mu.Unlock()
		if found {
			return true
		}
		select {
		case <-more:
		case <-ctx.Done():
			return false
		}
	}
}

// bench is a router with providers on this machine, called as its users do, in a time that moves by hand.
type bench struct {
	*testing.T
	ctx    context.Context
	clk    *handClock
	start  time.Time
	locals map[string]*local
	r      *router
	url    string
	log    *logBuffer
	client *http.Client

	mu     sync.Mutex
	events []breaker.Transition
	more   chan struct{} // closed at the next event
}

// play runs a test with a router whose file is made of providers and change. It is under a guard.
func play(t *testing.T, names string, change func(map[string]any), f func(*bench)) {
	t.Helper()
	guard(t, func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience-time.Second)
		defer cancel()
		b := newBench(t, ctx, names, change)
		defer b.close()
		f(b)
	})
}

func newBench(t *testing.T, ctx context.Context, names string, change func(map[string]any)) *bench {
	b := &bench{T: t, ctx: ctx, clk: newHandClock(), locals: map[string]*local{}, log: newLogBuffer(), more: make(chan struct{})}
	b.start = b.clk.Now()
	for _, name := range strings.Fields(names) {
		l, err := startLocal(name)
		require.NoError(t, err)
		b.locals[name] = l
	}
	r, err := newRouter(b.settings(names, change), options{
		log:   slog.New(slog.NewTextHandler(b.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		clock: b.clk,
		hooks: breaker.Hooks{StateChange: b.note},
	})
	require.NoError(t, err)
	srv := httptest.NewServer(r)
	tr := &http.Transport{MaxIdleConnsPerHost: 32}
	b.r, b.url, b.client = r, srv.URL, &http.Client{Transport: tr}
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		srv.Close()
		_ = r.Close()
		for _, l := range b.locals {
			l.down()
		}
	})
	return b
}

// close ends what may still be under way, so that a failed test is not a stuck one.
func (b *bench) close() {
	for _, l := range b.locals {
		l.mu.Lock()
		gate := l.gate
		l.gate = nil
		l.mu.Unlock()
		if gate != nil && b.Failed() {
			close(gate)
		}
	}
}

// file is a configuration as a decoder gives it: the first name has the highest priority.
func (b *bench) file(names string) map[string]any {
	var providers []any
	all := strings.Fields(names)
	for i, name := range all {
		providers = append(providers, map[string]any{"name": name, "url": b.locals[name].url(), "priority": len(all) - i})
	}
	return map[string]any{
		"first_byte_timeout": "500ms",
		"breaker": map[string]any{
			"success_threshold": 3, "half_open_probes": 3, "health_check": map[string]any{"enabled": false},
		},
		"providers": providers,
	}
}

func (b *bench) settings(names string, change func(map[string]any)) settings {
	b.Helper()
	m := b.file(names)
	if change != nil {
		change(m)
	}
	s, err := parseSettings(m, func(env string) string { return "secret of " + env })
	require.NoError(b, err)
	return s
}

func (b *bench) note(t breaker.Transition) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events = append(b.events, t)
	close(b.more)
	b.more = make(chan struct{})
}

// story is what has happened to the circuits.
func (b *bench) story() (all []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.events {
		all = append(all, fmt.Sprintf("%v %s %v>%v: %s", e.At.Sub(b.start), e.Name, e.From, e.To, e.Reason))
	}
	return all
}

// awaits blocks until there have been n events.
func (b *bench) awaits(n int) {
	b.Helper()
	for {
		b.mu.Lock()
		have, more := len(b.events), b.more
		b.mu.Unlock()
		if have >= n {
			return
		}
		select {
		case <-more:
		case <-b.ctx.Done():
			require.FailNow(b, "events are missing", "%v", b.story())
		}
	}
}

// at moves time to d after the start.
func (b *bench) at(d time.Duration) { b.clk.set(b.start.Add(d)) }

// reply is an answer of the router.
type gotten struct {
	status int
	words  string
	header http.Header
	body   string
	err    error // of the body
}

func (b *bench) send(body string, header ...string) (g gotten) {
	b.Helper()
	req, err := http.NewRequestWithContext(b.ctx, http.MethodPost, b.url+chatPath, strings.NewReader(body))
	require.NoError(b, err)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := b.client.Do(req)
	if err != nil {
		return gotten{err: err}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return gotten{resp.StatusCode, words(text), resp.Header, string(text), err}
}

const unstreamed = `{"messages":[]}`

// ask sends a question and requires an answer by that provider.
func (b *bench) ask(by string) {
	b.Helper()
	g := b.send(question)
	require.NoError(b, g.err)
	require.Equal(b, 200, g.status, g.body)
	require.Equal(b, "Here is "+by+" with a few words of its own.", g.words)
	require.True(b, strings.HasSuffix(g.body, "data: [DONE]\n\n"))
}

// counts is how many calls have reached each provider, in the order of their names.
func (b *bench) counts() (all []int) {
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for name := range b.locals {
			if !yield(name) {
				return
			}
		}
	}) {
		all = append(all, b.locals[name].count())
	}
	return all
}

// circuit is a provider's circuit as /-/circuits shows it.
func (b *bench) circuit(name string) breaker.Snapshot {
	b.Helper()
	return circuitAt(b, b.client, b.url, name)
}

func circuitAt(t require.TestingT, client *http.Client, url, name string) breaker.Snapshot {
	resp, err := client.Get(url + circuitsPath)
	require.NoError(t, err)
	defer resp.Body.Close()
	var all []breaker.Snapshot
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&all))
	for _, s := range all {
		if s.Name == name {
			return s
		}
	}
	require.Fail(t, "no circuit "+name)
	return breaker.Snapshot{}
}

func (b *bench) state(name string, want breaker.State) {
	b.Helper()
	require.Equal(b, want, b.circuit(name).State, "%v", b.story())
}

// reload puts another file in force, as SIGHUP does.
func (b *bench) reload(names string, change func(map[string]any)) {
	b.Helper()
	require.NoError(b, b.r.reload(b.settings(names, change)))
}
