package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/breakerkit/breaker"
	storeredis "github.com/breakerkit/breaker/store_redis"
	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"
)

// What a process of the fleet is told by its environment.
const (
	redisEnv  = "FLEET_BENCH_REDIS"
	numberEnv = "FLEET_BENCH_NUMBER"
)

// options is what a circuit is made with.
type options struct {
	Threshold int
	Limit     int // probes at once
	Successes int
	Open      time.Duration
}

// request is a line to a process, answer the line that comes back.
type request struct {
	Do      string // new, fail, sync, probe, opened, close
	Name    string
	Theirs  bool
	Options options
	Calls   int           // fail: one after the other
	Callers int           // probe: at the same time
	Hold    time.Duration // probe: how long a call takes
}

type answer struct {
	Err    string
	Ran    int            // fail: calls that were run
	Failed int            // calls that were neither run nor rejected: the breaker itself failed
	Spans  [][2]time.Time // probe: when calls ran
	Took   time.Duration  // fail: all of them
	At     time.Time      // fail: when the last had ended; opened: when it was
	Count  uint64         // sync: failures in a row
}

// process is one of the fleet.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Scanner
}

func startProcess(ctx context.Context, redis string, n int) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.CommandContext(ctx, self)}
	p.cmd.Env = append(os.Environ(), redisEnv+"="+redis, fmt.Sprintf("%s=%d", numberEnv, n))
	p.cmd.Stderr = os.Stderr
	stdin, err1 := p.cmd.StdinPipe()
	stdout, err2 := p.cmd.StdoutPipe()
	if err := errors.Join(err1, err2, p.cmd.Start()); err != nil {
		return nil, err
	}
	p.stdin, p.lines = stdin, bufio.NewScanner(stdout)
	return p, nil
}

// ask sends a request and waits for the answer.
func (p *process) ask(r request) (a answer, err error) {
	if err := json.NewEncoder(p.stdin).Encode(r); err != nil {
		return a, err
	}
	if !p.lines.Scan() {
		return a, fmt.Errorf("a process has ended: %w", cmp.Or(p.lines.Err(), io.EOF))
	}
	if err := json.Unmarshal(p.lines.Bytes(), &a); err != nil {
		return a, err
	}
	if a.Err != "" {
		return a, errors.New(a.Err)
	}
	return a, nil
}

func (p *process) stop() error {
	return errors.Join(p.stdin.Close(), p.cmd.Wait())
}

// node is what a process does for the fleet.
type node struct {
	client *redis.Client
	store  *storeredis.Store
	number string
	ours   *breaker.Circuit
	theirs *theirs
	opened chan time.Time
}

// serve answers requests until there are no more.
func serve(stdin io.Reader, stdout io.Writer) error {
	n := &node{client: newClient(os.Getenv(redisEnv)), number: os.Getenv(numberEnv)}
	var err error
	// A machine that runs nine busy processes on two cores is slow at times, which is not what is measured.
	if n.store, err = storeredis.New(n.client, storeredis.Timeout(5*time.Second)); err != nil {
		return err
	}
	in, out := json.NewDecoder(stdin), json.NewEncoder(stdout)
	for {
		var r request
		if err := in.Decode(&r); err != nil {
			return nil
		}
		a, err := n.do(r)
		if err != nil {
			a.Err = err.Error()
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
}

func (n *node) do(r request) (a answer, err error) {
	ctx := context.Background()
	switch r.Do {
	case "new":
		return a, n.make(r)
	case "fail":
		return n.fail(r), nil
	case "sync":
		err = n.ours.Sync(ctx)
		a.Count = n.ours.Snapshot().Counts.ConsecutiveFailures
	case "probe":
		return n.probe(r), nil
	case "opened":
		select {
		case a.At = <-n.opened:
		case <-time.After(10 * time.Second):
			err = errors.New("not open after 10s")
		}
	case "close":
		err = n.ours.Close()
	}
	return a, err
}

var errBoom = errors.New("boom")

func (n *node) make(r request) (err error) {
	n.ours, n.theirs = nil, nil
	if r.Theirs {
		n.theirs, err = newTheirs(n.client, n.number, r.Name, r.Options)
		return err
	}
	n.opened = make(chan time.Time, 100)
	o := r.Options
	n.ours, err = breaker.NewCircuit(r.Name,
		breaker.WithStore(n.store),
		breaker.WithFailureThreshold(o.Threshold),
		breaker.WithHalfOpenProbes(o.Limit),
		breaker.WithSuccessThreshold(o.Successes),
		breaker.WithOpenTimeout(o.Open),
		breaker.WithProbeLease(time.Minute),
		breaker.WithHooks(breaker.Hooks{StateChange: func(t breaker.Transition) {
			if t.To == breaker.Open {
				n.opened <- time.Now()
			}
		}}))
	return err
}

func (n *node) call(f func() error) error {
	if n.theirs != nil {
		return n.theirs.call(f)
	}
	return n.ours.Run(context.Background(), func(context.Context) error { return f() })
}

func (n *node) fail(r request) (a answer) {
	began := time.Now()
	for range r.Calls {
		a.count(n.call(func() error { a.Ran++; return errBoom }))
	}
	a.Took, a.At = time.Since(began), time.Now()
	return a
}

// count counts a call that the breaker failed for a reason of its own, such as a lock that it did not get.
func (a *answer) count(err error) {
	for _, usual := range []error{nil, errBoom, breaker.ErrOpen, gobreaker.ErrOpenState, gobreaker.ErrTooManyRequests} {
		if errors.Is(err, usual) {
			return
		}
	}
	a.Failed++
}

// probe has many callers ask at once, and notes which of them run when.
func (n *node) probe(r request) (a answer) {
	var mu sync.Mutex
	var callers sync.WaitGroup
	for range r.Callers {
		callers.Go(func() {
			var span [2]time.Time
			err := n.call(func() error {
				span[0] = time.Now()
				time.Sleep(r.Hold)
				span[1] = time.Now()
				return nil
			})
			mu.Lock()
			defer mu.Unlock()
			if a.count(err); !span[1].IsZero() {
				a.Spans = append(a.Spans, span)
			}
		})
	}
	callers.Wait()
	return a
}
