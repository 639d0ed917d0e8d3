package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/breakerkit/breaker/store"
)

// redisServer is a redis-server of our own.
type redisServer struct {
	addr string
	cmd  *exec.Cmd
	dir  string
}

// startRedis starts a server on a free port, without files, and waits until it answers.
func startRedis(ctx context.Context, path string) (*redisServer, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "fleet")
	if err != nil {
		return nil, err
	}
	r := &redisServer{addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), dir: dir}
	r.cmd = exec.Command(path, "--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--save", "", "--appendonly", "no",
		"--dir", dir, "--logfile", filepath.Join(dir, "log"))
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	for {
		if conn, err := net.DialTimeout("tcp", r.addr, time.Second); err == nil {
			return r, conn.Close()
		}
		select {
		case <-ctx.Done():
			r.kill()
			return nil, fmt.Errorf("redis-server does not answer: %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func (r *redisServer) signal(s os.Signal) error { return r.cmd.Process.Signal(s) }

func (r *redisServer) kill() {
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait()
	_ = os.RemoveAll(r.dir)
}

// fleet is the workers, wherever they run.
type fleet struct {
	events chan event
	end    func() error
	once   sync.Once
	err    error
}

// stop ends all workers and waits for them.
func (f *fleet) stop() error {
	f.once.Do(func() { f.err = f.end() })
	return f.err
}

// startProcesses starts the workers as processes: this program, told by its environment to be one.
func startProcesses(ctx context.Context, upstream, redis string) (*fleet, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	f := &fleet{events: make(chan event, 64)}
	var ends []func() error
	var reading sync.WaitGroup
	for n := range workers {
		cmd := exec.CommandContext(ctx, self)
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", workerEnv, n+1), upstreamEnv+"="+upstream, redisEnv+"="+redis)
		cmd.Stderr = os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt is for us: we end them
		stdin, err1 := cmd.StdinPipe()
		stdout, err2 := cmd.StdoutPipe()
		if err := errors.Join(err1, err2, cmd.Start()); err != nil {
			return nil, err
		}
		reading.Go(func() { readEvents(stdout, f.events) })
		ends = append(ends, func() error { return errors.Join(stdin.Close()) }, cmd.Wait)
	}
	f.end = func() error {
		var errs []error
		for i := 0; i < len(ends); i += 2 {
			errs = append(errs, ends[i]())
		}
		reading.Wait() // before Wait, which closes what is read
		for i := 1; i < len(ends); i += 2 {
			errs = append(errs, ends[i]())
		}
		close(f.events)
		return errors.Join(errs...)
	}
	return f, nil
}

func readEvents(r io.Reader, to chan<- event) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) == nil {
			to <- e
		}
	}
}

// startInMemory starts the workers as goroutines that share a store in memory.
func startInMemory(ctx context.Context, upstream string) *fleet {
	f := &fleet{events: make(chan event, 64)}
	ctx, cancel := context.WithCancel(ctx)
	memory := store.NewMemory()
	var running sync.WaitGroup
	for n := range workers {
		running.Go(func() {
			w, err := newWorker(n+1, upstream, memory, func(e event) { f.events <- e })
			if err == nil {
				_ = w.run(ctx)
			}
		})
	}
	f.end = func() error {
		cancel()
		running.Wait()
		close(f.events)
		return memory.Close()
	}
	return f
}
