package faulttest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/breakerkit/breaker"
	storeredis "github.com/breakerkit/breaker/store_redis"
)

// The test's own program is every process of the fleet, too.
func TestMain(m *testing.M) {
	if job := os.Getenv(jobEnv); job != "" {
		if err := serve(job, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

const jobEnv = "FAULTTEST_JOB"

// job is what a process is started with.
type job struct {
	Number    int
	Name      string   // of the circuit
	Addrs     []string // of a server, of a cluster's nodes, or of a sentinel
	Kind      string   // single, cluster, sentinel
	Repeating bool     // operations are sent again, late
	Limit     int
	Callers   int
}

// order is a line to a process.
type order struct {
	Do string        // fail, recover, state, skew, hold, trip, reset, end
	By time.Duration // skew
}

// line is what comes back: an event, or the answer to an order.
type line struct {
	Kind  string // change, probe, state, totals
	At    int64  // wall clock, nanoseconds
	Epoch uint64
	From  breaker.State
	To    breaker.State
	Why   string
	Alone bool

	Start, End int64 // probe

	State  breaker.Snapshot // state, totals
	Ran    uint64           // totals: how often the function ran
	Failed uint64           // totals: with a failure
	OnOpen uint64           // totals: calls that an open circuit has let through
	Waited time.Duration    // totals: the longest that a call waited which needed no slot
	Err    string
}

// How the circuits of the fleet are configured.
const (
	openFor      = 200 * time.Millisecond
	lease        = time.Second
	threshold    = 5
	successes    = 2
	storeTimeout = 250 * time.Millisecond
)

// process is one of the fleet, seen from the test.
type process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	orders *json.Encoder
	states chan line
	done   chan struct{}

	mu     sync.Mutex
	events []line
	totals *line
}

func start(t *testing.T, j job) *process {
	t.Helper()
	text, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(os.Args[0]), states: make(chan line, 1), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), jobEnv+"="+string(text))
	p.cmd.Stderr = os.Stderr
	stdin, err1 := p.cmd.StdinPipe()
	stdout, err2 := p.cmd.StdoutPipe()
	if err := errors.Join(err1, err2, p.cmd.Start()); err != nil {
		t.Fatal(err)
	}
	p.stdin, p.orders = stdin, json.NewEncoder(stdin)
	go p.listen(stdout)
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		_ = p.cmd.Wait()
	})
	return p
}

func (p *process) listen(stdout io.Reader) {
	defer close(p.done)
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var l line
		if json.Unmarshal(lines.Bytes(), &l) != nil {
			continue
		}
		switch l.Kind {
		case "state":
			p.states <- l
		case "totals":
			p.mu.Lock()
			p.totals = &l
			p.mu.Unlock()
		default:
			p.mu.Lock()
			p.events = append(p.events, l)
			p.mu.Unlock()
		}
	}
}

func (p *process) tell(o order) { _ = p.orders.Encode(o) }

// state asks where the process's circuit stands.
func (p *process) state(limit time.Duration) (breaker.Snapshot, error) {
	p.tell(order{Do: "state"})
	select {
	case l := <-p.states:
		return l.State, nil
	case <-p.done:
		return breaker.Snapshot{}, errors.New("the process has ended")
	case <-time.After(limit):
		return breaker.Snapshot{}, errors.New("the process does not answer")
	}
}

// The process itself.

type node struct {
	circuit *breaker.Circuit
	clock   *skewed
	failing atomic.Bool
	holding atomic.Bool
	onOpen  atomic.Uint64
	ran     atomic.Uint64
	failed  atomic.Uint64
	waited  atomic.Int64
	beats   atomic.Int64  // how much of its time the process has been given
	limited chan struct{} // ends the traffic

	mu  sync.Mutex
	out *json.Encoder
}

func serve(text string, stdin io.Reader, stdout io.Writer) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	client := connect(j)
	defer client.Close()
	s, err := storeredis.New(client, storeredis.Timeout(storeTimeout))
	if err != nil {
		return err
	}
	defer s.Close()
	var store breaker.Store = s
	if j.Repeating {
		store = &repeating{Store: s}
	}
	n := &node{clock: &skewed{}, limited: make(chan struct{}), out: json.NewEncoder(stdout)}
	n.circuit, err = breaker.NewCircuit(j.Name,
		breaker.WithStore(store, breaker.FlushEvery(50*time.Millisecond)),
		breaker.WithClock(n.clock),
		breaker.WithFailureThreshold(threshold),
		breaker.WithSuccessThreshold(successes),
		breaker.WithHalfOpenProbes(j.Limit),
		breaker.WithOpenTimeout(openFor),
		breaker.WithProbeLease(lease),
		breaker.WithHooks(breaker.Hooks{StateChange: n.changed, Call: n.called}))
	if err != nil {
		return err
	}
	var traffic sync.WaitGroup
	traffic.Go(n.pulse)
	for range j.Callers {
		traffic.Go(n.traffic)
	}
	n.obey(stdin)
	close(n.limited)
	n.holding.Store(false)
	traffic.Wait()
	n.tell(line{Kind: "totals", State: n.circuit.Snapshot(), Ran: n.ran.Load(), Failed: n.failed.Load(),
		OnOpen: n.onOpen.Load(), Waited: time.Duration(n.waited.Load())})
	return n.circuit.Close()
}

func connect(j job) redis.UniversalClient {
	switch j.Kind {
	case "cluster":
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: j.Addrs, MaxRetries: -1, MaxRedirects: 3, ContextTimeoutEnabled: true})
	case "sentinel":
		return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: j.Addrs, MaxRetries: -1, ContextTimeoutEnabled: true})
	}
	return redis.NewClient(&redis.Options{Addr: j.Addrs[0], MaxRetries: -1, ContextTimeoutEnabled: true})
}

func (n *node) obey(stdin io.Reader) {
	orders := json.NewDecoder(stdin)
	for {
		var o order
		if orders.Decode(&o) != nil {
			return
		}
		switch o.Do {
		case "fail":
			n.failing.Store(true)
		case "recover":
			n.failing.Store(false)
		case "hold":
			n.holding.Store(true)
		case "skew":
			n.clock.skew(o.By)
		case "trip":
			n.circuit.Trip(errDown)
		case "reset":
			n.circuit.Reset()
		case "state":
			n.tell(line{Kind: "state", State: n.circuit.Snapshot()})
		case "end":
			return
		}
	}
}

func (n *node) tell(l line) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l.At = time.Now().UnixNano()
	_ = n.out.Encode(l)
}

func (n *node) changed(t breaker.Transition) {
	n.tell(line{Kind: "change", Epoch: t.Epoch, From: t.From, To: t.To, Why: string(t.Reason), Alone: n.circuit.Snapshot().Shared.Alone})
}

// passage is one call, from the inside and from the outside.
type passage struct {
	before, start, end time.Time
	beats              int64         // before
	state              breaker.State // before
	alone              bool
	epoch              uint64
}

type passageKey struct{}

var errDown = errors.New("down")

func (n *node) traffic() {
	for {
		select {
		case <-n.limited:
			return
		default:
		}
		p := &passage{state: n.circuit.State(), before: time.Now(), beats: n.beats.Load()}
		due := n.circuit.Snapshot().Until.Sub(n.clock.Now()) < openFor/4 // then it may need a slot when it is made
		err := n.circuit.Run(context.WithValue(context.Background(), passageKey{}, p), func(context.Context) error { return n.work(p) })
		if open := (*breaker.OpenError)(nil); errors.As(err, &open) && p.state == breaker.Open && !due && p.start.IsZero() {
			n.note(p, time.Since(p.before))
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// work is the dependency.
func (n *node) work(p *passage) error {
	p.start = time.Now()
	s := n.circuit.Snapshot()
	p.alone, p.epoch = s.Shared.Alone, s.Epoch
	for s.State == breaker.HalfOpen && n.holding.Load() {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(time.Millisecond)
	n.ran.Add(1)
	p.end = time.Now()
	if n.failing.Load() {
		n.failed.Add(1)
		return errDown
	}
	return nil
}

func (n *node) called(ctx context.Context, c breaker.CallEvent) {
	p := ctx.Value(passageKey{}).(*passage)
	switch {
	case c.Probe && !p.alone:
		// Its lease has begun some time after before, or for a slot that nobody had taken yet, as much earlier as the answer took.
		over := min(p.end.UnixNano(), p.before.Add(lease-storeTimeout).UnixNano())
		n.tell(line{Kind: "probe", Epoch: p.epoch, Start: p.start.UnixNano(), End: max(p.start.UnixNano(), over)})
	case c.State == breaker.Open:
		n.onOpen.Add(1)
	case p.state == breaker.Closed:
		n.note(p, p.start.Sub(p.before))
	}
}

const beat = 2 * time.Millisecond

// pulse beats for as long as there is traffic.
func (n *node) pulse() {
	ticker := time.NewTicker(beat)
	defer ticker.Stop()
	for {
		select {
		case <-n.limited:
			return
		case <-ticker.C:
			n.beats.Add(1)
		}
	}
}

// note keeps the longest wait of a call that had no slot to wait for. Time in which the process did not run, because it was
// stopped or the machine is busy, is not the store's: the pulse has stood still, too.
func (n *node) note(p *passage, d time.Duration) {
	d = min(d, beat*time.Duration(n.beats.Load()-p.beats+1))
	for was := n.waited.Load(); int64(d) > was && !n.waited.CompareAndSwap(was, int64(d)); was = n.waited.Load() {
	}
}

// skewed is a clock that jumps.
type skewed struct{ by atomic.Int64 }

func (s *skewed) Now() time.Time                         { return time.Now().Add(time.Duration(s.by.Load())) }
func (s *skewed) After(d time.Duration) <-chan time.Time { return time.After(d) }
func (s *skewed) skew(d time.Duration)                   { s.by.Add(int64(d)) }

// repeating sends moves, questions for slots and verdicts again, late: as if the network had.
type repeating struct{ breaker.Store }

func again(f func(context.Context)) {
	time.AfterFunc(150*time.Millisecond, func() {
		ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
		defer cancel()
		f(ctx)
	})
}

func (r *repeating) Move(ctx context.Context, m breaker.StoreMove) (breaker.Ledger, error) {
	again(func(ctx context.Context) { _, _ = r.Store.Move(ctx, m) })
	return r.Store.Move(ctx, m)
}

func (r *repeating) Settle(ctx context.Context, v breaker.StoreVerdict) (breaker.Ledger, error) {
	again(func(ctx context.Context) { _, _ = r.Store.Settle(ctx, v) })
	return r.Store.Settle(ctx, v)
}

func (r *repeating) Acquire(ctx context.Context, a breaker.StoreAcquire) (breaker.Ledger, error) {
	again(func(ctx context.Context) { _, _ = r.Store.Acquire(ctx, a) })
	return r.Store.Acquire(ctx, a)
}

func (r *repeating) Timeout() time.Duration { return storeTimeout }
