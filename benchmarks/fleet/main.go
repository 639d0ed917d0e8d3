// Fleet measures a circuit that is shared over Redis, beside gobreaker's distributed breaker on the same server, in the
// same run:
//
//	GOWORK=off go -C benchmarks run ./fleet
//
// It starts a redis-server and eight processes on this machine and ends them; it takes about a minute. It prints a table,
// and writes it to a file with -o. It exits non-zero where this library breaks a promise:
//
//   - A Store adds at most 15 ns to a successful call.
//   - 100,000 successful calls take less than 100 commands.
//   - No failure is lost or counted twice, whoever reports at the same time.
//   - No more probes run at once than the limit says, in all processes together.
//   - From the failure that is one too many until the last process is open it takes less than 25 ms, 99 times of 100.
//   - No call waits for a Redis that is stopped, and once it goes on, circuits are in step with it within a second.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

const processes = 8

func main() {
	signal.Ignore(syscall.SIGPIPE) // a reader that has seen enough must not leave a redis-server behind
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if os.Getenv(redisEnv) != "" {
		err = serve(os.Stdin, os.Stdout)
	} else {
		err = run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	out := flag.String("o", "", "`file` to write the table to as well")
	flag.Parse()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	server, err := startRedis(ctx)
	if err != nil {
		return err
	}
	defer server.kill()
	b := &bench{server: server, client: newClient(server.addr)}
	for n := range processes {
		p, err := startProcess(ctx, server.addr, n)
		if err != nil {
			return errors.Join(err, b.stop())
		}
		b.fleet = append(b.fleet, p)
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	for _, part := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"cost of a call", b.calls},
		{"commands for successful calls", b.commands},
		{"failures recorded", b.failures},
		{"probes", b.probes},
		{"from the fifth failure to open everywhere", b.opening},
		{"cost of a report, and of a ledger", b.scripts},
		{"Redis stopped", b.stopped},
	} {
		fmt.Fprintf(os.Stderr, "%s ...\n", part.name)
		if err := part.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	text := b.machine(ctx) + "\n\n" + b.table()
	fmt.Print(text)
	if *out != "" {
		if err := os.WriteFile(*out, []byte(text), 0o644); err != nil {
			return err
		}
	}
	if len(b.broken) > 0 {
		return fmt.Errorf("broken promises:\n  %s", strings.Join(b.broken, "\n  "))
	}
	return nil
}
