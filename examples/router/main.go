// Router answers chat requests in the place of several providers that can do the same: it asks the one that its strategy
// names, goes on to the next if that fails before the first byte of an answer, and leaves alone for a while those that
// keep failing.
//
//	go run ./examples/router                      plays a story with three providers on this machine, and ends
//	go run ./examples/router -stay                and then runs on, to be tried with curl
//	go run ./examples/router -config router.yaml  serves; SIGHUP reads the file again
//
// The answer is passed on as it comes, in parts where the provider streams. An answer that breaks off after its first byte
// breaks off for the caller too: another provider's words would not go on where it ended. It counts as a failure all the
// same.
//
// Providers have a circuit each; router.yaml and router.toml show the settings. A reload keeps the circuits, with what is
// left of their open periods, and refuses a file with anything wrong in it as a whole.
//
// It listens on a loopback address alone, since it asks its callers for no key. http://127.0.0.1:8080/-/circuits shows the
// circuits.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	err := run(ctx, os.Args[1:], hangup, os.Stdout, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "router:", err)
		os.Exit(1)
	}
}

// flags is the command line.
type flags struct {
	config     string
	demo, stay bool
	verbose    bool
	grace      time.Duration
}

func parseFlags(args []string, stderr io.Writer) (*flags, error) {
	f := &flags{}
	set := flag.NewFlagSet("router", flag.ContinueOnError)
	set.SetOutput(stderr)
	set.StringVar(&f.config, "config", "", "serve as this `file` says: .yaml, .toml or .json; SIGHUP reads it again")
	set.BoolVar(&f.demo, "demo", false, "play a story with three providers on this machine; the default without -config")
	set.BoolVar(&f.stay, "stay", false, "after the story, run on until Ctrl-C")
	set.BoolVar(&f.verbose, "v", false, "log each attempt, with the status that the provider really gave")
	set.DurationVar(&f.grace, "grace", 30*time.Second, "how long requests under way may take at shutdown")
	if err := set.Parse(args); err != nil {
		return nil, err
	}
	if set.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	if f.config != "" && (f.demo || f.stay) {
		return nil, errors.New("-config and the demo exclude each other")
	}
	return f, nil
}

func run(ctx context.Context, args []string, hangup <-chan os.Signal, stdout, stderr io.Writer) error {
	f, err := parseFlags(args, stderr)
	if err != nil {
		return err
	}
	if f.config == "" {
		return demo(ctx, stdout, demoPause, f.stay)
	}
	level := slog.LevelInfo
	if f.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	s, err := loadSettings(f.config, os.Getenv)
	if err != nil {
		return err
	}
	r, err := newRouter(s, options{log: log})
	if err != nil {
		return err
	}
	defer r.Close()
	ln, err := net.Listen("tcp", s.listen)
	if err != nil {
		return err
	}
	log.Info("listening", "address", ln.Addr().String(), "strategy", s.strategy, "providers", r.live.Load().names())
	go r.reloadOn(ctx, hangup, f.config)
	return serve(ctx, r, ln, f.grace)
}

// reloadOn reads the file again whenever a signal says so. A file that is refused is named with all that is wrong in it.
func (r *router) reloadOn(ctx context.Context, hangup <-chan os.Signal, path string) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangup:
		}
		s, err := loadSettings(path, os.Getenv)
		if err == nil {
			err = r.reload(s)
		}
		if err != nil {
			r.log.Error("not reloaded, the old settings stay", "problem", err.Error())
			continue
		}
		r.log.Info("reloaded", "strategy", s.strategy, "providers", r.live.Load().names())
	}
}

// serve answers requests until ctx ends, and then those that are under way, for as long as grace.
func serve(ctx context.Context, r *router, ln net.Listener, grace time.Duration) error {
	srv := &http.Server{
		Handler:           r,
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(r.log.Handler(), slog.LevelWarn),
	}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(ln) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	err := srv.Shutdown(limit)
	if err != nil {
		err = fmt.Errorf("requests were cut off: %w", err)
	}
	_ = srv.Close() // and with it what Shutdown did not wait for
	<-failed
	return err
}
