package main

import (
	"context"
	"encoding/json"
	"flag"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// asRouter makes a copy of the test binary the router itself, where a test has started it as such.
func asRouter() bool {
	args, child := os.LookupEnv("ROUTER_ARGS")
	if child {
		os.Args = append(os.Args[:1], strings.Fields(args)...)
		main()
	}
	return child
}

func TestFlags(t *testing.T) {
	f, err := parseFlags(strings.Fields("-config a.yaml -v -grace 5s"), io.Discard)
	require.NoError(t, err)
	require.Equal(t, &flags{config: "a.yaml", verbose: true, grace: 5 * time.Second}, f)
	f, err = parseFlags([]string{"-stay"}, io.Discard)
	require.NoError(t, err)
	require.True(t, f.stay)
	for _, bad := range []string{"extra", "-unknown", "-config a.yaml -stay", "-config a.yaml -demo", "-grace x"} {
		_, err := parseFlags(strings.Fields(bad), io.Discard)
		require.Error(t, err, bad)
	}
}

func TestRunRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	require.NoError(t, os.WriteFile(path, []byte("listen: 192.0.2.1:80\nproviders: [{name: a, url: 'http://a'}]"), 0o600))
	for args, says := range map[string]string{
		"-h":                   flag.ErrHelp.Error(),
		"-config " + path:      "listen: must be a loopback address",
		"-config none.yaml":    "no such file",
		"-config router_x.ini": "no such file",
	} {
		require.ErrorContains(t, run(context.Background(), strings.Fields(args), nil, io.Discard, io.Discard), says, args)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	require.NoError(t, os.WriteFile(path, []byte("listen: "+taken.Addr().String()+"\nproviders: [{name: a, url: 'http://a'}]"), 0o600))
	require.ErrorIs(t, run(context.Background(), []string{"-config", path}, nil, io.Discard, io.Discard), syscall.EADDRINUSE)
}

// The demo's story happens, and it says so.
func TestDemo(t *testing.T) {
	guard(t, func() {
		var out strings.Builder
		require.NoError(t, demo(context.Background(), &out, 0, false), out.String())
		for _, line := range []string{
			"  > Here is amber with a few words of its own. \n",
			"  WARN  t=3s  amber closed > open: threshold reached, for 30s; the last failure: dial tcp ",
			"  it is up again, but its circuit is open          20 birch                   0 20 0     open closed closed\n",
			"  INFO  t=33s  amber open > half-open: timeout expired\n",
			"  3 are probes, 7 go elsewhere                     3 amber, 7 birch           3 7 0     closed closed closed\n",
			"  WARN  t=33s  amber closed > open: threshold reached, for 1m30s; the last failure: status 429\n",
			"  > Here is birch with -- broken off\n",
			"  INFO  t=50s  birch open > half-open: health check\n",
			"Calls that reached the providers: amber 29, birch 54, cedar 12\n",
			"steps went as they should.\n",
		} {
			require.Contains(t, out.String(), line)
		}
		require.Less(t, strings.Count(out.String(), "\n"), 70)
	})
}

// With -stay the story's router runs on, in a time that passes, until it is told to end.
func TestDemoStays(t *testing.T) {
	guard(t, func() {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		out := newLogBuffer()
		ended := make(chan error, 1)
		go func() { ended <- demo(ctx, out, 0, true) }()
		require.True(t, out.wait(ctx, "Ctrl-C ends.", 1))
		url := regexp.MustCompile(`http://127\.0\.0\.1:\d+`).FindString(out.String())
		resp, err := http.Post(url+chatPath, "application/json", strings.NewReader(question))
		require.NoError(t, err)
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, "Here is birch with a few words of its own.", words(text))
		http.DefaultClient.CloseIdleConnections()
		cancel()
		require.NoError(t, <-ended)
	})
}

// child is the program itself, in a process of its own.
type child struct {
	*testing.T
	ctx    context.Context
	cmd    *exec.Cmd
	log    *logBuffer
	url    string
	client *http.Client
	config string
	amber  *local
	birch  *local
}

func startChild(t *testing.T, ctx context.Context) *child {
	c := &child{T: t, ctx: ctx, log: newLogBuffer(), config: filepath.Join(t.TempDir(), "router.yaml")}
	for name, l := range map[string]**local{"amber": &c.amber, "birch": &c.birch} {
		up, err := startLocal(name)
		require.NoError(t, err)
		t.Cleanup(up.down)
		*l = up
	}
	c.write("failover", "breaker: {open_timeout: 1h, success_threshold: 3}")
	c.cmd = exec.CommandContext(ctx, os.Args[0])
	c.cmd.Env = append(os.Environ(), "ROUTER_ARGS=-v -config "+c.config)
	c.cmd.Stderr = c.log
	require.NoError(t, c.cmd.Start())
	require.True(t, c.log.wait(ctx, "msg=listening", 1), c.log)
	c.url = "http://" + regexp.MustCompile(`address=(\S+)`).FindStringSubmatch(c.log.String())[1]
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	c.client = &http.Client{Transport: tr}
	return c
}

// write makes the file.
func (c *child) write(strategy, rest string) {
	c.Helper()
	text := "listen: 127.0.0.1:0\ndebug_headers: true\nstrategy: " + strategy + "\n" + rest + `
providers:
- {name: amber, priority: 2, url: "` + c.amber.url() + `"}
- {name: birch, priority: 1, url: "` + c.birch.url() + `"}
`
	require.NoError(c, os.WriteFile(c.config, []byte(text), 0o600))
}

// reload writes the file, sends the signal and waits for the word about it.
func (c *child) reload(strategy, rest, word string) {
	c.Helper()
	c.write(strategy, rest)
	n := strings.Count(c.log.String(), word)
	require.NoError(c, c.cmd.Process.Signal(syscall.SIGHUP))
	require.True(c, c.log.wait(c.ctx, word, n+1), c.log)
}

// ask sends a question and returns who answered and by which strategy.
func (c *child) ask() (who, strategy string) {
	c.Helper()
	resp, err := c.client.Post(c.url+chatPath, "application/json", strings.NewReader(question))
	require.NoError(c, err)
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(c, err)
	return resp.Header.Get("X-Router-Provider"), resp.Header.Get("X-Router-Strategy")
}

// A real signal to a real process: an open circuit stays open with what is left of its period, a file with faults is
// refused, and the end waits for what is under way.
func TestSignals(t *testing.T) {
	guard(t, func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience-time.Second)
		defer cancel()
		c := startChild(t, ctx)
		c.amber.say(reply{status: 500})
		for range 5 {
			c.ask()
		}
		before := circuitAt(t, c.client, c.url, "amber")
		require.Equal(t, breaker.Open, before.State)
		require.Equal(t, time.Hour, before.Until.Sub(before.Since))

		c.reload("round-robin", "breaker: {open_timeout: 1ms}", "msg=reloaded")
		c.unchanged(before)
		who, strategy := c.ask()
		require.Equal(t, "birch round-robin", who+" "+strategy)

		c.reload("shuffle", "breaker: {open_timeout: 30, failure_threshold: 0}", "not reloaded")
		require.Contains(t, c.log.String(), "breaker.open_timeout: must be a duration")
		require.Contains(t, c.log.String(), "breaker.failure_threshold: must be from 1")
		c.reload("shuffle", "breaker: [", "not reloaded")
		who, strategy = c.ask()
		require.Equal(t, "birch round-robin", who+" "+strategy)
		c.unchanged(before)
		require.Equal(t, 5, c.amber.count())
		c.ends()
	})
}

// unchanged requires amber's circuit to be as it was. Wall times may differ by what the clocks drift.
func (c *child) unchanged(before breaker.Snapshot) {
	c.Helper()
	after := circuitAt(c, c.client, c.url, "amber")
	for _, at := range [][2]time.Time{{before.Since, after.Since}, {before.Until, after.Until}} {
		require.WithinDuration(c, at[0], at[1], time.Second)
	}
	require.Equal(c, breaker.Open, after.State)
	require.Equal(c, before.Epoch, after.Epoch)
	require.Equal(c, before.Totals, after.Totals)
}

// ends tells the process to end while an answer is under way: the answer comes whole, nothing new is taken, and the exit is 0.
func (c *child) ends() {
	c.Helper()
	release := c.birch.hold()
	defer release()
	n := c.birch.count()
	whole := make(chan string, 1)
	go func() {
		who, _ := c.ask()
		whole <- who
	}()
	require.NoError(c, c.birch.reached(c.ctx, n+1))
	require.NoError(c, c.cmd.Process.Signal(syscall.SIGTERM))
	for {
		conn, err := net.Dial("tcp", strings.TrimPrefix(c.url, "http://"))
		if err != nil {
			break
		}
		_ = conn.Close()
		require.True(c, pause(c.ctx, time.Millisecond))
	}
	release()
	require.Equal(c, "birch", <-whole)
	require.NoError(c, c.cmd.Wait())
}

// What takes longer than the grace is cut off.
func TestShutdownGraceEnds(t *testing.T) {
	play(t, "amber", nil, func(b *bench) {
		b.locals["amber"].say(reply{stall: 1})
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(b, err)
		b.url = "http://" + ln.Addr().String()
		ctx, cancel := context.WithCancel(b.ctx)
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- serve(ctx, b.r, ln, time.Millisecond) }()
		s := b.stream()
		defer s.end()
		s.words(1)
		cancel()
		require.ErrorContains(b, <-ended, "cut off")
		_, err = io.ReadAll(s.in)
		require.Error(b, err)
	})
}

// A listener that breaks ends the program with its error.
func TestServeFails(t *testing.T) {
	play(t, "amber", nil, func(b *bench) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(b, err)
		require.NoError(b, ln.Close())
		require.ErrorIs(b, serve(b.ctx, b.r, ln, time.Second), net.ErrClosed)
	})
}

// What the circuits' page shows is a Snapshot, readable as one.
func TestSnapshotsAreReadable(t *testing.T) {
	play(t, "amber", nil, func(b *bench) {
		resp, err := b.client.Get(b.url + circuitsPath)
		require.NoError(b, err)
		defer resp.Body.Close()
		var all []breaker.Snapshot
		require.NoError(b, json.NewDecoder(resp.Body).Decode(&all))
		require.Len(b, all, 1)
	})
}
