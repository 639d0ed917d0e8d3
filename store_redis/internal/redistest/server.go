// Package redistest runs real Redis servers for tests: single ones, clusters, and replicated ones behind sentinels. They
// listen on free ports of the loopback interface, keep nothing on disk, and end with the test. Each can be paused, killed
// and started again on its port.
//
//	srv := redistest.Start(t)
//	client := srv.Client(t)
//	srv.Pause()
//	...
//	srv.Resume()
//
// It needs the redis-server program; [Available] says whether it is there. What a server has logged is shown when the test
// fails.
package redistest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// patience is how long the helpers wait for a server to do what it should.
const patience = time.Minute

// Available reports whether there is a redis-server program.
func Available() bool {
	_, err := exec.LookPath("redis-server")
	return err == nil
}

// Server is a redis-server process. Its methods are for the test's goroutine; what goes wrong in them ends the test.
type Server struct {
	Addr string // host:port

	tb   testing.TB
	dir  string
	args []string
	cmd  *exec.Cmd // nil while it does not run
}

// Start starts a server, with further arguments of redis-server if any, and waits until it answers.
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return start(tb, func(port, _ string) []string {
		return append([]string{"--port", port, "--save", "", "--appendonly", "no"}, args...)
	})
}

// start starts a server whose arguments depend on its port and directory. A port that was free may be taken when the
// server gets to it: then it tries another.
func start(tb testing.TB, args func(port, dir string) []string) *Server {
	tb.Helper()
	var err error
	for range 5 {
		port := freePort(tb)
		dir := tb.TempDir()
		s := &Server{Addr: "127.0.0.1:" + port, tb: tb, dir: dir}
		s.args = append(args(port, dir), "--bind", "127.0.0.1", "--dir", dir, "--daemonize", "no", "--logfile", "")
		if err = s.run(); err == nil {
			tb.Cleanup(s.cleanup)
			return s
		}
	}
	tb.Fatalf("redistest: no server would start: %v", err)
	return nil
}

func freePort(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("redistest: no free port: %v", err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// run starts the process and waits until it answers.
func (s *Server) run() error {
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("redis-server", s.args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = dieWithParent()
	if err := cmd.Start(); err != nil {
		return err
	}
	s.cmd = cmd
	client := s.plainClient()
	defer client.Close()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if s.listens() {
			err = client.Ping(context.Background()).Err()
			if err == nil && s.isMine(client) {
				return nil
			}
		}
		if cmd.Process.Signal(syscall.Signal(0)) != nil || exited(cmd) {
			break
		}
	}
	s.Kill()
	return fmt.Errorf("%w\n%s", errors.Join(errors.New("it does not answer"), err), s.log())
}

// listens spares the client, which logs what it cannot reach.
func (s *Server) listens() bool {
	c, err := net.DialTimeout("tcp", s.Addr, time.Second)
	if err != nil {
		return false
	}
	return c.Close() == nil
}

// isMine tells the server from a stranger on its port.
func (s *Server) isMine(client *redis.Client) bool {
	info, err := client.Info(context.Background(), "server").Result()
	return err == nil && bytes.Contains([]byte(info), []byte("process_id:"+strconv.Itoa(s.Pid())+"\r"))
}

// exited reports whether a process that nobody has waited for has ended.
func exited(cmd *exec.Cmd) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
	if err != nil {
		return false // not a system with /proc: the time limit will do
	}
	_, rest, _ := bytes.Cut(stat, []byte(") "))
	return bytes.HasPrefix(rest, []byte("Z"))
}

// Pid is the process's number, or 0 while it does not run.
func (s *Server) Pid() int {
	if s.cmd == nil {
		return 0
	}
	return s.cmd.Process.Pid
}

// Pause stops the process as it stands: connections stay open, and nothing is answered, until Resume.
func (s *Server) Pause() { s.tb.Helper(); s.signal(syscall.SIGSTOP) }

// Resume lets a paused process go on.
func (s *Server) Resume() { s.tb.Helper(); s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	s.tb.Helper()
	if s.cmd == nil {
		s.tb.Fatalf("redistest: %v for a server that does not run", sig)
	}
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.tb.Fatalf("redistest: %v: %v", sig, err)
	}
}

// Kill ends the process as a crash does. All it had kept is lost.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.cmd = nil
}

// Restart starts the server again on its port, after a Kill if it still runs, and waits until it answers. It is empty.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Kill()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err = s.run(); err == nil {
			return
		}
	}
	s.tb.Fatalf("redistest: the server would not start again: %v", err)
}

// Client is a client of the server with settings that the Store accepts. It is closed when tb ends.
func (s *Server) Client(tb testing.TB, change ...func(*redis.Options)) *redis.Client {
	o := &redis.Options{Addr: s.Addr, MaxRetries: -1, ContextTimeoutEnabled: true}
	for _, f := range change {
		f(o)
	}
	c := redis.NewClient(o)
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

// plainClient is for the helpers' own questions.
func (s *Server) plainClient() *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: s.Addr, MaxRetries: -1, DialerRetries: 1,
		DialTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
	})
}

// Do sends one command, for the test's own questions, and returns the reply.
func (s *Server) Do(args ...any) any {
	s.tb.Helper()
	c := s.plainClient()
	defer c.Close()
	v, err := c.Do(context.Background(), args...).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		s.tb.Fatalf("redistest: %v: %v", args, err)
	}
	return v
}

// Info is one value of the server's INFO, such as "master_link_status" of "replication", or "".
func (s *Server) Info(section, key string) string {
	c := s.plainClient()
	defer c.Close()
	text, _ := c.Info(context.Background(), section).Result()
	for line := range bytes.SplitSeq([]byte(text), []byte("\r\n")) {
		if k, v, ok := bytes.Cut(line, []byte(":")); ok && string(k) == key {
			return string(v)
		}
	}
	return ""
}

func (s *Server) logFile() string { return filepath.Join(s.dir, "server.log") }

// log is the end of what the server has logged.
func (s *Server) log() string {
	text, _ := os.ReadFile(s.logFile())
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-25):], []byte("\n")))
}

func (s *Server) cleanup() {
	if s.tb.Failed() {
		s.tb.Logf("redis-server %s:\n%s", s.Addr, s.log())
	}
	s.Kill()
}

// eventually waits until ok.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("redistest: %s: not within %v", what, patience)
		}
	}
}

func addrs(servers []*Server) []string {
	var list []string
	for _, s := range servers {
		list = append(list, s.Addr)
	}
	return list
}
