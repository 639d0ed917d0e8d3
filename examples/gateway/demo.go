package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/breakerkit/breaker"
)

const (
	demoScale    = 10 // the demo's time is shorter by this; its counts are the true ones
	demoPatience = 10 * time.Second
)

// player plays the demo's story against a gateway, from outside, and checks that it happens.
type player struct {
	ctx    context.Context
	out    io.Writer
	g      *gateway
	url    string
	admin  string
	client *http.Client
	steps  int
	wrong  []error
}

// scene is a request that is made again and again.
type scene struct {
	method, body string
	headers      []string // name, value, name, value...
	up           *upstream
}

// step is some requests at once and what they must come to.
type step struct {
	title   string
	n       int
	answer  string // statuses
	rescued string // X-Rescued; "-": absent
	calls   int    // that reach the scene's upstream
	state   breaker.State
}

// reply is a request's answer, as far as the story goes.
type reply struct {
	status  int
	rescued string
	err     error
}

// demo plays the story with upstreams and a gateway of its own. If stay, they run on until ctx ends.
func demo(ctx context.Context, out io.Writer, stay bool) error {
	ups := make([]*upstream, 4)
	for i, name := range []string{"model", "rates", "primary bank", "backup bank"} {
		u, err := startUpstream(name)
		if err != nil {
			return err
		}
		defer u.srv.Close()
		ups[i] = u
	}
	p, stop, err := newPlayer(ctx, out, ups)
	if err != nil {
		return err
	}
	defer stop()
	p.fullStack(ups[0])
	p.rates(ups[1])
	p.banks(ups[2], ups[3])
	p.refusals(ups[2])
	p.summary()
	if err := errors.Join(p.wrong...); err != nil {
		return err
	}
	p.say("\nAll %d steps went as they should.", p.steps)
	if stay {
		p.say("Now try the curl lines, with -i. To break the model: curl -X PUT http://%s%s -d 503; 200 heals it. Ctrl-C ends.", ups[0].addr, switchPath)
		<-ctx.Done()
	}
	return nil
}

func newPlayer(ctx context.Context, out io.Writer, ups []*upstream) (p *player, stop func(), err error) {
	s := defaultSettings()
	for _, u := range ups {
		if err := s.allow.Set(u.addr); err != nil {
			return nil, nil, err
		}
	}
	story := fmt.Sprintf("%d failures within %v open a circuit for %v; then 1 probe, and 1 success closes it",
		s.failures, s.window, s.open)
	s.open /= demoScale
	s.jitter = 0
	s.logger = slog.New(slog.DiscardHandler)
	g, err := newGateway(s)
	if err != nil {
		return nil, nil, err
	}
	public, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	admin, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		_ = public.Close()
		return nil, nil, err
	}
	serving, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- serve(serving, g, public, admin, demoPatience) }()

	tr := &http.Transport{MaxIdleConnsPerHost: 20, DisableCompression: true}
	p = &player{ctx: ctx, out: out, g: g, client: &http.Client{Transport: tr, Timeout: demoPatience},
		url: "http://" + public.Addr().String() + "/", admin: "http://" + admin.Addr().String() + "/-/circuits"}
	p.say("gateway   %s   circuits %s\nsettings  %s\ntime      1s is %v here, the open period %v", p.url, p.admin, story,
		time.Second/demoScale, s.open)
	return p, func() {
		tr.CloseIdleConnections()
		cancel()
		<-ended
		_ = g.Close()
	}, nil
}

// fullStack has it all: 3 retries, the circuit, and an answer from before.
func (p *player) fullStack(up *upstream) {
	s := scene{method: http.MethodPost, body: `{"q":1}`, up: up, headers: []string{
		"X-Target-URL", "http://" + up.addr + "/chat", "X-Circuit-Breaker", "on", "X-Retry-Count", "3",
		"X-Retry-Delay", scaled(500 * time.Millisecond), "X-Smart-Cache", scaled(time.Hour), "Idempotency-Key", "1"}}
	p.begin("1. Full stack: 3 retries from 500ms, circuit, cache for 1h", s)
	p.play(s, step{"all is well", 1, "200", "-", 1, breaker.Closed})
	up.set(http.StatusServiceUnavailable)
	p.play(s, step{"the model is down: 4 attempts, then the cache", 1, "200", "cache", 4, breaker.Closed})
	p.play(s, step{"the 5th failure opens the circuit", 1, "200", "cache", 1, breaker.Open})
	p.play(s, step{"open: 100 requests, no call", 100, "100 x 200", "100 x cache", 0, breaker.Open})
	p.halfOpen(up)
	p.play(s, step{"15s later, still down: 1 probe, no retries", 1, "200", "cache", 1, breaker.Open})
	p.halfOpen(up)
	up.set(http.StatusOK)
	p.play(s, step{"15s later, well: 20 at once, 1 is the probe", 20, "20 x 200", "19 x cache", 1, breaker.Closed})
}

// rates rescues by cache alone.
func (p *player) rates(up *upstream) {
	s := scene{method: http.MethodGet, up: up, headers: []string{
		"X-Target-URL", "http://" + up.addr + "/latest?base=EUR", "X-Circuit-Breaker", "on", "X-Smart-Cache", scaled(600 * time.Second)}}
	p.begin("2. Exchange rates: circuit, cache for 600s", s)
	p.play(s, step{"all is well", 1, "200", "-", 1, breaker.Closed})
	up.set(http.StatusInternalServerError)
	for i := 1; i <= 4; i++ {
		p.play(s, step{fmt.Sprintf("failure %d, covered by the cache", i), 1, "200", "cache", 1, breaker.Closed})
	}
	p.play(s, step{"failure 5 opens the circuit", 1, "200", "cache", 1, breaker.Open})
	p.play(s, step{"open: the cache at once", 1, "200", "cache", 0, breaker.Open})
}

// banks rescues by retries and by another host.
func (p *player) banks(primary, backup *upstream) {
	s := scene{method: http.MethodPost, body: "100 EUR", up: primary, headers: []string{
		"X-Target-URL", "http://" + primary.addr + "/pay", "X-Circuit-Breaker", "on", "X-Retry-Count", "2",
		"X-Retry-Delay", scaled(100 * time.Millisecond), "X-Failover-URL", "http://" + backup.addr + "/pay", "Idempotency-Key", "7"}}
	p.begin("3. Two banks: 2 retries, circuit, failover", s)
	primary.set(http.StatusOK, http.StatusBadGateway)
	p.play(s, step{"a hiccup", 1, "200", "retry", 2, breaker.Closed})
	primary.set(http.StatusBadGateway)
	p.play(s, step{"the primary bank is down: 3 attempts", 1, "200", "failover", 3, breaker.Closed})
	p.play(s, step{"the 5th failure opens its circuit", 1, "200", "failover", 2, breaker.Open})
	p.play(s, step{"open: the backup bank at once", 1, "200", "failover", 0, breaker.Open})
	s.headers = s.headers[:4]
	p.play(s, step{"open, and no X-Failover-URL", 1, "503", "-", 0, breaker.Open})
	s.headers = s.headers[:2]
	p.play(s, step{"no X-Circuit-Breaker: past it, the bank's own 502", 1, "502", "-", 1, breaker.Open})
	p.expect("the backup bank's calls", strconv.Itoa(backup.count()), "3")
}

// refusals are what the gateway does not forward.
func (p *player) refusals(up *upstream) {
	s := scene{method: http.MethodGet, up: up, headers: []string{"X-Target-URL", "http://" + up.addr, "X-Retry-Delay", "5"}}
	p.say("\n4. Not forwarded")
	p.play(s, step{"X-Retry-Delay: 5 (no unit)", 1, "400", "-", 0, breaker.Open})
	s.headers = []string{"X-Target-URL", "http://169.254.169.254/"}
	p.play(s, step{"X-Target-URL that is not on the allow-list", 1, "403", "-", 0, breaker.Open})
}

// begin prints a scene's title, and its request for a terminal.
func (p *player) begin(title string, s scene) {
	line := "curl " + p.url
	if s.body != "" {
		line += " -d '" + s.body + "'"
	}
	for i := 0; i < len(s.headers); i += 2 {
		if i == 2 || i == 8 {
			line += " \\\n    "
		}
		line += " -H '" + s.headers[i] + ": " + s.headers[i+1] + "'"
	}
	p.say("\n%s\n  %s\n  %-50s %-9s  %-11s  %-6s  %s", title, line, "requests", "answer", "X-Rescued", "calls", "circuit")
}

// play makes a step's requests at once, prints what came of them, and checks it.
func (p *player) play(s scene, want step) {
	before := s.up.count()
	got := want
	got.answer, got.rescued = p.sendAll(s, want.n)
	after := s.up.count()
	got.calls, got.state = after-before, p.state(s.up)
	p.expect(want.title, fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want))
	p.say("  %-50s %-9s  %-11s  +%d =%2d  %s", want.title, got.answer, got.rescued, got.calls, after, got.state)
}

// sendAll makes n requests at once. Where there are several, the host holds back its answers until all others are there:
// so it shows how many requests a probe is.
func (p *player) sendAll(s scene, n int) (answer, rescued string) {
	release := func() {}
	if n > 1 {
		release = s.up.hold()
	}
	defer release()
	replies := make(chan reply, n)
	for range n {
		go func() { replies <- p.send(s) }()
	}
	var statuses, rescues []string
	for i := range n {
		if i == n-1 {
			release()
		}
		r := <-replies
		if r.err != nil {
			p.wrong = append(p.wrong, r.err)
			continue
		}
		statuses = append(statuses, strconv.Itoa(r.status))
		if r.rescued != "" {
			rescues = append(rescues, r.rescued)
		}
	}
	return tally(statuses, n), tally(rescues, n)
}

func (p *player) send(s scene) (r reply) {
	req, err := http.NewRequestWithContext(p.ctx, s.method, p.url, strings.NewReader(s.body))
	if err != nil {
		return reply{err: err}
	}
	req.Header.Set("Accept", "*/*") // as curl does: typed by hand, the request has the same answer in the cache
	if s.body != "" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(s.headers); i += 2 {
		req.Header.Set(s.headers[i], s.headers[i+1])
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return reply{resp.StatusCode, resp.Header.Get(rescueHeader), err}
}

// tally says how many there are of each; of a single request, what it is.
func tally(all []string, of int) string {
	if len(all) == 0 {
		return "-"
	}
	if of == 1 {
		return all[0]
	}
	slices.Sort(all)
	var parts []string
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n] == all[0] {
			n++
		}
		parts = append(parts, fmt.Sprintf("%d x %s", n, all[0]))
		all = all[n:]
	}
	return strings.Join(parts, ", ")
}

func (p *player) state(up *upstream) breaker.State {
	c, ok := p.g.circuits.Circuit("http://" + up.addr)
	if !ok {
		return breaker.Closed
	}
	return c.State()
}

// halfOpen waits for the end of the open period.
func (p *player) halfOpen(up *upstream) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	late := time.After(demoPatience)
	for p.state(up) != breaker.HalfOpen {
		select {
		case <-tick.C:
		case <-p.ctx.Done():
			return
		case <-late:
			p.wrong = append(p.wrong, errors.New("the open period does not end"))
			return
		}
	}
}

// summary prints the circuits.
func (p *player) summary() {
	p.say("\n  %-28s %-9s  %5s  %6s  %8s  %s", "circuit", "state", "calls", "failed", "rejected", "rescued")
	for _, c := range p.g.view() {
		var rescues []string
		for kind, n := range c.Totals.Rescues {
			rescues = append(rescues, fmt.Sprintf("%s %d", kind, n))
		}
		slices.Sort(rescues)
		if len(rescues) == 0 {
			rescues = []string{"-"}
		}
		p.say("  %-28s %-9s  %5d  %6d  %8d  %s", c.Name, c.State, c.Totals.Calls, c.Totals.Failures, c.Totals.Rejected,
			strings.Join(rescues, ", "))
	}
}

func (p *player) expect(what, got, want string) {
	p.steps++
	if got != want {
		p.wrong = append(p.wrong, fmt.Errorf("%s: got %s, want %s", what, got, want))
	}
}

func (p *player) say(format string, args ...any) { _, _ = fmt.Fprintf(p.out, format+"\n", args...) }

func scaled(d time.Duration) string { return (d / demoScale).String() }
