package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/breakerkit/breaker"
	storeredis "github.com/breakerkit/breaker/store_redis"
	"github.com/redis/go-redis/v9"
)

// bench collects what is measured.
type bench struct {
	server *server
	client *redis.Client
	fleet  []*process
	names  int         // how many circuits have got one
	lines  [][3]string // of the table
	broken []string    // promises
}

func (b *bench) stop() (err error) {
	for _, p := range b.fleet {
		if e := p.stop(); e != nil {
			err = e
		}
	}
	_ = b.client.Close()
	return err
}

// row adds a line to the table.
func (b *bench) row(what, ours, theirs string) {
	b.lines = append(b.lines, [3]string{what, ours, theirs})
}

// promise notes what went wrong where a promise is not kept.
func (b *bench) promise(kept bool, wrong string, args ...any) {
	if !kept {
		b.broken = append(b.broken, fmt.Sprintf(wrong, args...))
	}
}

// table is Markdown, padded so that it reads well on a terminal too.
func (b *bench) table() string {
	lines := append([][3]string{{"", "**breaker**", "gobreaker, distributed"}, {}}, b.lines...)
	var widths [3]int
	for _, cells := range lines {
		for i, cell := range cells {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for i, width := range widths {
		lines[1][i] = strings.Repeat("-", width)
	}
	var s strings.Builder
	for _, cells := range lines {
		for i, cell := range cells {
			s.WriteString("| " + cell + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)) + " ")
		}
		s.WriteString("|\n")
	}
	return s.String()
}

// machine says, in one line, where the numbers were taken.
func (b *bench) machine(ctx context.Context) string {
	info, _ := b.client.Info(ctx, "server").Result()
	return fmt.Sprintf("%d processes and Redis %s on one machine, %d CPUs, %s %s/%s, %s.", processes,
		field(info, "redis_version:"), runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH, time.Now().Format(time.DateOnly))
}

// field is what follows a name in an answer of Redis to INFO.
func field(info, name string) string {
	_, rest, _ := strings.Cut(info, name)
	return rest[:max(0, strings.IndexAny(rest, ",\r\n"))]
}

// name is one that no circuit has had.
func (b *bench) name() string {
	b.names++
	return "bench" + strconv.Itoa(b.names)
}

// all asks every process the same, at once.
func (b *bench) all(r request) ([]answer, error) {
	answers := make([]answer, len(b.fleet))
	errs := make([]error, len(b.fleet))
	var asking sync.WaitGroup
	for i, p := range b.fleet {
		asking.Go(func() { answers[i], errs[i] = p.ask(r) })
	}
	asking.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return answers, nil
}

// calls measures a successful call by 1, 8 and 64 goroutines of this process that share a breaker: the time of the run
// divided by all calls.
func (b *bench) calls(ctx context.Context) error {
	store, err := storeredis.New(b.client, storeredis.Timeout(time.Second))
	if err != nil {
		return err
	}
	defer store.Close()
	alone := breaker.Must(breaker.NewCircuit(b.name()))
	shared, err := breaker.NewCircuit(b.name(), breaker.WithStore(store))
	if err != nil {
		return err
	}
	defer shared.Close()
	run := func(c *breaker.Circuit) func() error {
		return func() error { return c.Run(ctx, func(context.Context) error { return nil }) }
	}
	const many = 4096 // calls between two looks at the clock
	for _, n := range []int{1, 8, 64} {
		without, with := 0.0, 0.0
		for range 5 { // the best of some: what disturbs, only slows
			without = max(without, rate(n, 200*time.Millisecond, many, run(alone)))
			with = max(with, rate(n, 200*time.Millisecond, many, run(shared)))
		}
		other, err := newTheirs(b.client, "calls", b.name(), options{Threshold: 5, Limit: 1, Open: time.Minute})
		if err != nil {
			return err
		}
		theirs := rate(n, 2*time.Second, 1, func() error { return other.call(func() error { return nil }) })
		b.row(fmt.Sprintf("a successful call, goroutines: %d", n), fmt.Sprintf("%s, without a Store %s", perCall(with), perCall(without)), perCall(theirs))
		if n == 1 {
			b.promise(1e9/with-1e9/without <= 15, "a Store adds %.1f ns to a call, more than 15", 1e9/with-1e9/without)
		}
	}
	return nil
}

// perCall is the time of one call, with three digits.
func perCall(rate float64) string {
	if ns := 1e9 / rate; ns < 1000 {
		return fmt.Sprintf("%.3g ns", ns)
	}
	return fmt.Sprintf("%.3g µs", 1e6/rate)
}

// rate is the calls per second of n goroutines. They look at the clock after some calls.
func rate(n int, d time.Duration, some int, call func() error) float64 {
	var running sync.WaitGroup
	done := make([]int, n)
	began := time.Now()
	for i := range n {
		running.Go(func() {
			calls := 0
			for time.Since(began) < d {
				for range some {
					_ = call()
				}
				calls += some
			}
			done[i] = calls
		})
	}
	running.Wait()
	all := 0
	for _, n := range done {
		all += n
	}
	return float64(all) / time.Since(began).Seconds()
}

// commands counts what Redis is asked during successful calls. Theirs are fewer, and take longer all the same.
func (b *bench) commands(ctx context.Context) error {
	store, err := storeredis.New(b.client)
	if err != nil {
		return err
	}
	defer store.Close()
	c, err := breaker.NewCircuit(b.name(), breaker.WithStore(store))
	if err != nil {
		return err
	}
	defer c.Close()
	other, err := newTheirs(b.client, "commands", b.name(), options{Threshold: 5, Limit: 1, Open: time.Minute})
	if err != nil {
		return err
	}
	const ours, theirs = 100_000, 1000
	for1, err1 := b.commandsFor(ctx, ours, func() error { return c.Run(ctx, func(context.Context) error { return nil }) })
	for2, err2 := b.commandsFor(ctx, theirs, func() error { return other.call(func() error { return nil }) })
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	b.row("commands that Redis carries out for successful calls", fmt.Sprintf("%d for 100,000", for1), fmt.Sprintf("%d for 1,000", for2))
	b.promise(for1 < 100, "%d commands for 100,000 successful calls", for1)
	return nil
}

// commandsFor is how many commands Redis carries out while n calls are made, those in scripts among them.
func (b *bench) commandsFor(ctx context.Context, n int, call func() error) (int, error) {
	before, err := b.processed(ctx)
	if err != nil {
		return 0, err
	}
	for range n {
		if err := call(); err != nil {
			return 0, err
		}
	}
	after, err := b.processed(ctx)
	return after - before - 1, err // the one that asked is not counted
}

func (b *bench) processed(ctx context.Context) (int, error) {
	info, err := b.client.Info(ctx, "stats").Result()
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(field(info, "total_commands_processed:"))
}

// failures has every process report 1,000 failures, all at once, and looks how many the ledger has.
func (b *bench) failures(context.Context) error {
	never := options{Threshold: 1_000_000, Limit: 1, Successes: 1, Open: time.Minute}
	if _, err := b.all(request{Do: "new", Name: b.name(), Options: never}); err != nil {
		return err
	}
	if _, err := b.all(request{Do: "fail", Calls: 1000}); err != nil {
		return err
	}
	if _, err := b.all(request{Do: "sync"}); err != nil {
		return err
	}
	a, err := b.fleet[0].ask(request{Do: "sync"})
	if err != nil {
		return err
	}
	b.promise(a.Count == processes*1000, "%d of %d failures recorded", a.Count, processes*1000)

	// Theirs waits half a second where the lock is taken: fewer calls, or it would take all day.
	const each = 20
	name := b.name()
	if _, err := b.all(request{Do: "new", Name: name, Theirs: true, Options: never}); err != nil {
		return err
	}
	answers, err := b.all(request{Do: "fail", Calls: each})
	if err != nil {
		return err
	}
	ran, took := 0, time.Duration(0)
	for _, a := range answers {
		ran, took = ran+a.Ran, max(took, a.Took)
	}
	data, err := b.client.Get(context.Background(), "gobreaker:state:"+name).Result()
	if err != nil {
		return err
	}
	recorded := field(data, `"TotalFailures":`)
	b.row(fmt.Sprintf("failures of %d processes at once that are recorded", processes), fmt.Sprintf("%d of %d", a.Count, processes*1000),
		fmt.Sprintf("%s of %d, in %v; %d calls were run", recorded, processes*each, took.Round(time.Second/10), ran))
	return nil
}

// probes has 512 callers of all processes ask for the probes of one circuit, whose success threshold is out of reach:
// whatever runs at once, probes. Theirs takes the limit for the threshold as well, and holds its lock while a call runs.
func (b *bench) probes(context.Context) error {
	for _, limit := range []int{1, 3} {
		o := options{Threshold: 1, Limit: limit, Successes: 1000, Open: 200 * time.Millisecond}
		cells := [2]string{}
		for i, theirs := range []bool{false, true} {
			if _, err := b.all(request{Do: "new", Name: b.name(), Theirs: theirs, Options: o}); err != nil {
				return err
			}
			if _, err := b.fleet[0].ask(request{Do: "fail", Calls: 1}); err != nil {
				return err
			}
			time.Sleep(2 * o.Open)
			answers, err := b.all(request{Do: "probe", Callers: 512 / processes, Hold: 300 * time.Millisecond})
			if err != nil {
				return err
			}
			most, ran, failed := atOnce(answers)
			cells[i] = fmt.Sprintf("%d ran, at most %d at once; %d errors of the breaker's own", ran, most, failed)
			if !theirs {
				b.promise(most <= limit, "%d probes at once, for a limit of %d", most, limit)
			}
		}
		b.row(fmt.Sprintf("a probe is due, limit %d: of 512 calls in %d processes", limit, processes), cells[0], cells[1])
	}
	return nil
}

// atOnce is how many calls ran at once, at most, and in all.
func atOnce(answers []answer) (most, ran, failed int) {
	var spans [][2]time.Time
	for _, a := range answers {
		spans = append(spans, a.Spans...)
		failed += a.Failed
	}
	for _, s := range spans {
		n := 0
		for _, t := range spans {
			if !t[0].After(s[0]) && t[1].After(s[0]) {
				n++
			}
		}
		most = max(most, n)
	}
	return most, len(spans), failed
}

// opening measures how long after the fifth failure each of the processes is open. Theirs have no state of their own to
// look at: each call reads it from Redis.
func (b *bench) opening(context.Context) error {
	o := options{Threshold: 5, Limit: 1, Successes: 1, Open: time.Minute}
	var took []time.Duration
	for range 60 {
		if _, err := b.all(request{Do: "new", Name: b.name(), Options: o}); err != nil {
			return err
		}
		var fifth answer
		for i := range 5 {
			var err error
			if fifth, err = b.fleet[i].ask(request{Do: "fail", Calls: 1}); err != nil {
				return err
			}
			time.Sleep(2 * time.Millisecond)
		}
		answers, err := b.all(request{Do: "opened"})
		if err != nil {
			return err
		}
		for _, a := range answers {
			took = append(took, a.At.Sub(fifth.At))
		}
		if _, err := b.all(request{Do: "close"}); err != nil {
			return err
		}
	}
	slices.Sort(took)
	p50, p99 := took[len(took)/2], took[len(took)*99/100]
	b.row(fmt.Sprintf("from the fifth failure to open in each of %d processes", processes),
		fmt.Sprintf("median %.1f ms, 99th percentile %.1f ms", ms(p50), ms(p99)), "at its next call")
	b.promise(p99 < 25*time.Millisecond, "%v from the fifth failure to open, as 99th percentile", p99)
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// scripts measures what a report costs Redis, and what a ledger takes after 5,000 of them.
func (b *bench) scripts(ctx context.Context) error {
	store, err := storeredis.New(b.client)
	if err != nil {
		return err
	}
	defer store.Close()
	for _, w := range []time.Duration{0, time.Second, time.Hour} {
		name := b.name()
		if err := b.client.ConfigResetStat(ctx).Err(); err != nil {
			return err
		}
		for i := range 5000 {
			batch := breaker.StoreBatch{Head: 1, Longest: 1, Trailing: uint64(i % 3)} // a failure, and successes after it
			batch.Slices = []breaker.StoreSlice{{Successes: batch.Trailing, Failures: 1}}
			if batch.Trailing == 0 {
				batch.Tail = 1
			}
			r := breaker.StoreReport{Name: name, Node: "n", Shape: breaker.StoreShape{Window: w, Config: "c"}, Batch: batch}
			if replies := store.Report(ctx, []breaker.StoreReport{r}); replies[0].Err != nil {
				return replies[0].Err
			}
		}
		info, err := b.client.Info(ctx, "commandstats").Result()
		if err != nil {
			return err
		}
		_, script, _ := strings.Cut(info, "cmdstat_evalsha:")
		size, err := b.client.MemoryUsage(ctx, "cb:{"+name+"}").Result()
		if err != nil {
			return err
		}
		window := "without a window"
		if w > 0 {
			window = "window of " + w.String()
		}
		b.row("Redis's time for a report, and its memory for a circuit, "+window, fmt.Sprintf("%s µs, %d bytes", field(script, "usec_per_call="), size), "–")
	}
	return nil
}

// stopped stops Redis while calls are made, through a closed circuit and an open one. A few of them fail: what a closed
// circuit has to report must not make its calls wait either.
func (b *bench) stopped(ctx context.Context) error {
	client := newClient(b.server.addr)
	defer client.Close()
	store, err := storeredis.New(client)
	if err != nil {
		return err
	}
	defer store.Close()
	closed, err1 := breaker.NewCircuit(b.name(), breaker.WithStore(store))
	open, err2 := breaker.NewCircuit(b.name(), breaker.WithStore(store), breaker.WithOpenTimeout(time.Minute))
	other, err3 := newTheirs(b.client, "stopped", b.name(), options{Threshold: 5, Limit: 1, Open: time.Minute})
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	open.Trip(errBoom)
	if err := open.Sync(ctx); err != nil {
		return err
	}
	if err := b.server.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	var worst [2]time.Duration
	failed := 0
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		for i, c := range []*breaker.Circuit{closed, open} {
			began := time.Now()
			_ = c.Run(ctx, func(context.Context) error {
				if failed < 3 {
					failed++
					return errBoom
				}
				return nil
			})
			worst[i] = max(worst[i], time.Since(began))
		}
		time.Sleep(50 * time.Microsecond)
	}
	asked := time.Now()
	answer := "and runs"
	if err := other.call(func() error { return nil }); err != nil {
		answer = "and fails"
	}
	waited := time.Since(asked)
	if err := b.server.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	began := time.Now()
	for !closed.Snapshot().Shared.Connected && time.Since(began) < 5*time.Second {
		time.Sleep(time.Millisecond)
	}
	back := time.Since(began)
	b.row("Redis is stopped: the longest call", fmt.Sprintf("closed %v, open %v", worst[0].Round(time.Microsecond), worst[1].Round(time.Microsecond)),
		fmt.Sprintf("waits %.1f s, go-redis's default limit, %s", waited.Seconds(), answer))
	b.row("Redis goes on: in step again after", back.Round(time.Millisecond).String(), "–")
	b.promise(back < time.Second, "in step only %v after Redis went on", back)
	b.promise(max(worst[0], worst[1]) < 10*time.Millisecond, "a call took %v while Redis was stopped", max(worst[0], worst[1]))
	return nil
}
