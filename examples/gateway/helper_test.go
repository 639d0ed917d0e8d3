package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// No test may leave a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long anything may take before it is taken to be stuck.
const patience = 2 * time.Minute

// leapClock is a clock whose waits are over at once: whoever waits moves it.
type leapClock struct {
	mu    sync.Mutex
	now   time.Time
	waits []time.Duration
}

func newLeapClock() *leapClock {
	return &leapClock{now: time.Date(2026, time.January, 5, 9, 0, 0, 0, time.UTC)}
}

func (c *leapClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *leapClock) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	c.waits = append(c.waits, d)
	over := make(chan time.Time, 1)
	over <- c.now
	return over
}

func (c *leapClock) set(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = at
}

// slept returns the waits since it was asked last.
func (c *leapClock) slept() []time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.waits
	c.waits = nil
	return w
}

// logBuffer collects the log.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// bench is a gateway that is called as its users do.
type bench struct {
	t      *testing.T
	g      *gateway
	url    string
	admin  string
	log    *logBuffer
	client *http.Client
}

// newBench starts a gateway with jitter 0 that may go to the addresses in allow.
func newBench(t *testing.T, change func(*settings), allow ...string) *bench {
	t.Helper()
	b := &bench{t: t, log: &logBuffer{}}
	s := defaultSettings()
	s.jitter = 0
	s.logger = slog.New(slog.NewTextHandler(b.log, nil))
	for _, entry := range allow {
		require.NoError(t, s.allow.Set(entry))
	}
	if change != nil {
		change(&s)
	}
	g, err := newGateway(s)
	require.NoError(t, err)
	public, admin := httptest.NewServer(g), httptest.NewServer(g.admin())
	b.g, b.url, b.admin = g, public.URL+"/", admin.URL+"/-/circuits"
	tr := &http.Transport{MaxIdleConnsPerHost: 32}
	b.client = &http.Client{Transport: tr, Timeout: patience, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		public.Close()
		admin.Close()
		require.NoError(t, g.Close())
	})
	return b
}

// answer is what came back from the gateway.
type answer struct {
	status  int
	body    string
	rescued string
	header  http.Header
}

// headers are name, value, name, value...
func (b *bench) send(method, body string, headers ...string) answer {
	b.t.Helper()
	a, err := b.try(method, body, headers...)
	require.NoError(b.t, err)
	return a
}

func (b *bench) try(method, body string, headers ...string) (answer, error) {
	req, err := http.NewRequest(method, b.url, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := b.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, string(text), resp.Header.Get("X-Rescued"), resp.Header}, err
}

// circuit is the circuit of a host as /-/circuits shows it; nil if there is none.
func (b *bench) circuit(addr string) *circuitView {
	b.t.Helper()
	resp, err := b.client.Get(b.admin)
	require.NoError(b.t, err)
	defer resp.Body.Close()
	var all []circuitView
	require.NoError(b.t, json.NewDecoder(resp.Body).Decode(&all))
	for _, c := range all {
		if c.Name == "http://"+addr {
			return &c
		}
	}
	return nil
}

func (b *bench) state(addr string) string {
	b.t.Helper()
	c := b.circuit(addr)
	require.NotNil(b.t, c, "no circuit of %s", addr)
	return c.State
}

func (b *bench) eventually(what string, f func() bool) {
	b.t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(time.Millisecond) {
		require.True(b.t, time.Now().Before(end), "never: %s", what)
	}
}

func newUpstream(t *testing.T, name string) *upstream {
	t.Helper()
	u, err := startUpstream(name)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, u.srv.Close()) })
	return u
}

// newServer is an upstream of another kind; it returns its host:port.
func newServer(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

// refusedAddr is an address on which nobody listens.
func refusedAddr(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	return ln.Addr().String()
}
