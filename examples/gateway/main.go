// Gateway is a reverse proxy that breaks circuits, retries, fails over and caches on behalf of callers who say so in
// headers of their requests:
//
//	go run ./examples/gateway -allow api.example.com:443
//	curl http://127.0.0.1:8080/ -H 'X-Target-URL: https://api.example.com/rates?base=EUR' \
//	  -H 'X-Circuit-Breaker: on' -H 'X-Retry-Count: 2' -H 'X-Smart-Cache: 600s'
//
// Answers that were rescued say how: X-Rescued is retry, failover or cache. There is one circuit for each host; 5 failures
// within 60 s open it for 15 s, and then one probe decides. http://127.0.0.1:8081/-/circuits lists them.
//
// It goes only where -allow says. Anyone who may connect may use it, and set timeouts that open circuits for all, so it
// listens on loopback addresses alone; state is in memory. With -demo it plays a story on this machine and ends.
//
// A POST is retried or sent elsewhere after a failure only if it has an Idempotency-Key, or with -retry-unsafe.
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
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gateway:", err)
		os.Exit(1)
	}
}

// flags is the command line.
type flags struct {
	settings
	listen, admin string
	grace         time.Duration
	demo, stay    bool
}

func parseFlags(args []string, stderr io.Writer) (*flags, error) {
	f := &flags{settings: defaultSettings()}
	set := flag.NewFlagSet("gateway", flag.ContinueOnError)
	set.SetOutput(stderr)
	set.StringVar(&f.listen, "listen", "127.0.0.1:8080", "loopback `address` for requests")
	set.StringVar(&f.admin, "admin", "127.0.0.1:8081", "loopback `address` for /-/circuits")
	set.Var(f.allow, "allow", "`host:port` that requests may go to; separate several by commas, or repeat the flag")
	set.IntVar(&f.failures, "failures", f.failures, "failures that open a circuit")
	set.DurationVar(&f.window, "window", f.window, "only failures this close together count")
	set.DurationVar(&f.open, "open", f.open, "how long a circuit stays open before a probe")
	set.Float64Var(&f.jitter, "jitter", f.jitter, "longest random addition to a retry's delay, as a share of it")
	set.BoolVar(&f.retryUnsafe, "retry-unsafe", false, "repeat failed requests of every method, with an Idempotency-Key or without")
	set.Int64Var(&f.maxBody, "max-body", f.maxBody, "largest request body in bytes")
	set.DurationVar(&f.grace, "grace", f.limits.timeout, "how long requests under way may take at shutdown")
	set.BoolVar(&f.demo, "demo", false, "play a story with two upstreams on this machine, and end")
	set.BoolVar(&f.stay, "stay", false, "with -demo: keep running after the story, for the curl lines")
	if err := set.Parse(args); err != nil {
		return nil, err
	}
	if set.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	return f, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f, err := parseFlags(args, stderr)
	if err != nil {
		return err
	}
	if f.demo {
		return demo(ctx, stdout, f.stay)
	}
	f.logger = slog.New(slog.NewTextHandler(stderr, nil))
	if len(f.allow) == 0 {
		f.logger.Warn("the allow-list is empty: every request will be refused; see -allow")
	}
	g, err := newGateway(f.settings)
	if err != nil {
		return err
	}
	defer g.Close()
	public, err := listen(f.listen)
	if err != nil {
		return err
	}
	admin, err := listen(f.admin)
	if err != nil {
		_ = public.Close()
		return err
	}
	f.logger.Info("listening", "requests", public.Addr().String(), "circuits", admin.Addr().String(), "allow", f.allow.String())
	return serve(ctx, g, public, admin, f.grace)
}

// listen opens a loopback address. There is no authentication, so others must not get in.
func listen(addr string) (net.Listener, error) {
	at, err := netip.ParseAddrPort(addr)
	if err != nil || !at.Addr().IsLoopback() {
		return nil, fmt.Errorf("%q must be a loopback address and a port, such as 127.0.0.1:8080", addr)
	}
	return net.Listen("tcp", addr)
}

// serve answers requests until ctx ends, and then those that are under way, for as long as grace.
func serve(ctx context.Context, g *gateway, public, admin net.Listener, grace time.Duration) error {
	requests, circuits := g.server(g), g.server(g.admin())
	failed := make(chan error, 2)
	go func() { failed <- requests.Serve(public) }()
	go func() { failed <- circuits.Serve(admin) }()

	var err error
	running := 2
	select {
	case <-ctx.Done():
	case err = <-failed:
		running--
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if late := requests.Shutdown(limit); late != nil {
		err = errors.Join(err, fmt.Errorf("requests were cut off: %w", late))
	}
	_ = requests.Close() // and with them what Shutdown did not wait for
	_ = circuits.Close()
	for range running {
		<-failed
	}
	return err
}

// server has limits against callers that are slow on purpose.
func (g *gateway) server(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           onlyLocal(h),
		ReadHeaderTimeout: 5 * time.Second,
		WriteTimeout:      bodyTimeout + g.limits.timeout + 5*time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(g.logger.Handler(), slog.LevelWarn),
	}
}

// onlyLocal answers those who call this machine by its own names. A page in a browser here that had its own name resolve
// to a loopback address, and so passed for a page of ours, would still say that name.
func onlyLocal(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
		if (err != nil || !ip.IsLoopback()) && !strings.EqualFold(host, "localhost") {
			http.Error(w, "gateway: it is called by its loopback address alone", http.StatusMisdirectedRequest)
			return
		}
		h.ServeHTTP(w, r)
	})
}
