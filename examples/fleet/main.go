// Fleet shows three processes that share one circuit over Redis, before one upstream that fails and recovers:
//
//	go run ./examples/fleet
//
// It starts the processes, the upstream and a redis-server of its own on loopback ports, and prints who fails, who opens
// when, who probes and who closes. Then it stops Redis, and nobody notices; and the upstream fails once more, with nobody
// to agree with. It takes about 15 seconds and ends with a check of what happened.
//
// Without a redis-server on this machine the three share a circuit inside one process instead, and the part with the
// stopped Redis is left out.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

const workers = 3

func main() {
	signal.Ignore(syscall.SIGPIPE) // a reader that has seen enough must not leave a redis-server behind
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if os.Getenv(workerEnv) != "" {
		err = work(ctx, os.Stdin, os.Stdout)
	} else {
		err = run(ctx, os.Stdout, findRedis())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

// findRedis is the path of a redis-server, or "".
func findRedis() string {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return ""
	}
	return path
}

// run plays the story. redis is the path of a redis-server; empty, a store in memory takes its place.
func run(ctx context.Context, w io.Writer, redis string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	s := newStory(w)
	defer s.up.close()

	if redis == "" {
		s.out.say("there is no redis-server on this machine: the three share a circuit in memory, within one process")
		s.fleet = startInMemory(ctx, s.up.url())
	} else if err = s.startFleet(ctx, redis); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.fleet.stop()) }()
	go s.listen()

	s.agree(ctx)
	if s.redis != nil {
		defer s.redis.kill()
		s.withoutRedis(ctx)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := s.fleet.stop(); err != nil {
		return err
	}
	<-s.heardAll
	return s.verdict()
}
