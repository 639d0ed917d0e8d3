package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/breakerkit/breaker"
)

// demoPause is what a reader needs between two scenes.
const demoPause = 700 * time.Millisecond

// sample is the file that the demo runs by, with the addresses of its own providers.
//
//go:embed router.yaml
var sample []byte

const question = `{"stream":true,"messages":[{"role":"user","content":"Hello?"}]}`

// player plays the demo's story against a router, from outside, and checks that it happens.
type player struct {
	ctx    context.Context
	pause  time.Duration
	clock  *storyClock
	start  time.Time
	locals []*local
	r      *router
	url    string
	client *http.Client
	steps  int
	wrong  []error

	mu  sync.Mutex
	out io.Writer
}

// step is some questions at once and what they must come to.
type step struct {
	title  string
	n      int
	answer string // who answered how many of them
	calls  [3]int // that reached amber, birch and cedar
	states string // of their circuits afterwards
}

// demo plays the story with providers and a router of its own. If stay, they run on until ctx ends.
func demo(ctx context.Context, out io.Writer, pause time.Duration, stay bool) error {
	p := &player{ctx: ctx, out: out, pause: pause, clock: &storyClock{}}
	p.start = p.clock.Now()
	defer p.end()
	stop, err := p.begin()
	if err != nil {
		return err
	}
	defer stop()
	for _, scene := range []func(){p.wellScene, p.strategyScene, p.outageScene, p.recoveryScene, p.limitScene, p.breakScene,
		p.reloadScene, p.downScene, p.checkScene} {
		if scene(); ctx.Err() != nil {
			return ctx.Err()
		}
	}
	p.summary()
	if err := errors.Join(p.wrong...); err != nil {
		return err
	}
	p.say("\nAll %d steps went as they should.", p.steps)
	if stay {
		p.say("Try: curl -N %s%s -H 'Content-Type: application/json' -d '%s'", p.url, chatPath, question)
		p.say("     curl %s%s\nCtrl-C ends.", p.url, circuitsPath)
		p.clock.run()
		<-ctx.Done()
	}
	return nil
}

// begin starts the providers and the router.
func (p *player) begin() (stop func(), err error) {
	for _, name := range []string{"amber", "birch", "cedar"} {
		l, err := startLocal(name)
		if err != nil {
			return nil, err
		}
		p.locals = append(p.locals, l)
	}
	s, err := p.settings(nil)
	if err != nil {
		return nil, err
	}
	hooks := breaker.Hooks{StateChange: p.changed}
	p.r, err = newRouter(s, options{log: slog.New(slog.DiscardHandler), clock: p.clock, hooks: hooks})
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	serving, cancel := context.WithCancel(p.ctx)
	ended := make(chan error, 1)
	go func() { ended <- serve(serving, p.r, ln, time.Second) }()
	tr := &http.Transport{MaxIdleConnsPerHost: 20}
	p.url, p.client = "http://"+ln.Addr().String(), &http.Client{Transport: tr}
	b := s.breaker
	p.say("router    %s%s   settings router.yaml\nproviders amber (priority 3), birch (2), cedar (1)", p.url, chatPath)
	p.say("circuits  %d failures open one for %v; then %d probes at once, and %d successes close it",
		b.FailureThreshold, b.OpenTimeout, b.HalfOpenProbes, b.SuccessThreshold)
	return func() {
		tr.CloseIdleConnections()
		cancel()
		<-ended
		_ = p.r.Close()
	}, nil
}

func (p *player) end() {
	for _, l := range p.locals {
		l.down()
	}
}

// settings are the sample's, with some of it changed.
func (p *player) settings(change map[string]any) (settings, error) {
	m, err := decode(".yaml", sample)
	if err != nil {
		return settings{}, err
	}
	maps.Copy(m, change)
	for i, v := range m["providers"].([]any) {
		v.(map[string]any)["url"] = p.locals[i].url()
	}
	return parseSettings(m, func(string) string { return "" })
}

func (p *player) wellScene() {
	p.title("1. All is well: amber has the highest priority")
	p.watch()
	p.play(step{"2 more questions", 2, "2 amber", [3]int{2, 0, 0}, "closed closed closed"})
}

// strategyScene shares out questions in each way.
func (p *player) strategyScene() {
	p.title("2. Other strategies, by reading the file again")
	p.reload("round-robin")
	p.play(step{"round-robin", 6, "2 amber, 2 birch, 2 cedar", [3]int{2, 2, 2}, "closed closed closed"})
	p.reload("weighted")
	p.play(step{"weighted 3:1:1", 10, "6 amber, 2 birch, 2 cedar", [3]int{6, 2, 2}, "closed closed closed"})
	p.reload("shuffle")
	p.play(step{"shuffle: each once per round", 6, "2 amber, 2 birch, 2 cedar", [3]int{2, 2, 2}, "closed closed closed"})
	p.reload("failover")
}

func (p *player) reload(strategy string) {
	s, err := p.settings(map[string]any{"strategy": strategy})
	p.check(err)
	p.check(p.r.reload(s))
}

// outageScene is the published story's first half.
func (p *player) outageScene() {
	p.title("3. amber fails, each time in another way")
	amber := p.locals[0]
	amber.say(reply{}, reply{status: 429}, reply{status: 500}, reply{status: 401}, reply{status: 503}, reply{hang: true})
	p.play(step{"429 Too Many Requests", 1, "1 birch", [3]int{1, 1, 0}, "closed closed closed"})
	p.play(step{"500 Internal Server Error", 1, "1 birch", [3]int{1, 1, 0}, "closed closed closed"})
	p.play(step{"401 Unauthorized: the request is wrong", 1, "1 401", [3]int{1, 0, 0}, "closed closed closed"})
	p.play(step{"503 Service Unavailable", 1, "1 birch", [3]int{1, 1, 0}, "closed closed closed"})
	hung := p.skipWhen(amber, amber.count()+1, 3*time.Second)
	p.play(step{"no answer within 3s", 1, "1 birch", [3]int{1, 1, 0}, "closed closed closed"})
	<-hung
	amber.down()
	p.r.client.CloseIdleConnections()
	p.play(step{"amber dies: connection refused", 1, "1 birch", [3]int{0, 1, 0}, "open closed closed"})
	p.check(amber.up())
	p.play(step{"it is up again, but its circuit is open", 20, "20 birch", [3]int{0, 20, 0}, "open closed closed"})
}

func (p *player) recoveryScene() {
	p.title("4. 30s later, ten questions at once")
	p.skip(30 * time.Second)
	p.play(step{"3 are probes, 7 go elsewhere", 10, "3 amber, 7 birch", [3]int{3, 7, 0}, "closed closed closed"})
	p.play(step{"amber is back", 3, "3 amber", [3]int{3, 0, 0}, "closed closed closed"})
}

func (p *player) limitScene() {
	p.title("5. amber's key is over its limit: Retry-After 90s")
	p.locals[0].say(reply{}, slices.Repeat([]reply{{status: 429, after: 90}}, 5)...)
	for range 4 {
		p.quiet(step{"429", 1, "1 birch", [3]int{1, 1, 0}, "closed closed closed"})
	}
	p.play(step{"the 5th 429", 1, "1 birch", [3]int{1, 1, 0}, "open closed closed"})
	p.expect("amber's open period", p.left(0), "90s")
}

func (p *player) breakScene() {
	p.title("6. birch breaks off in the middle of an answer")
	p.locals[1].say(reply{}, reply{cut: 4})
	p.watch()
	p.play(step{"another provider's words would not go on there", 1, "1 birch", [3]int{0, 1, 0}, "open closed closed"})
}

func (p *player) reloadScene() {
	p.title("7. round-robin, while amber is open")
	p.skip(5 * time.Second)
	p.reload("round-robin")
	p.play(step{"6 questions", 6, "3 birch, 3 cedar", [3]int{0, 3, 3}, "open closed closed"})
	p.expect("what is left of amber's open period", p.left(0), "85s")
	_, err := p.settings(map[string]any{"strategy": "best", "breaker": map[string]any{"open_timeout": 30}})
	for line := range strings.Lines(fmt.Sprint(err)) {
		p.say("  refused: %s", strings.TrimSpace(line))
	}
	p.play(step{"a file with faults changes nothing", 6, "3 birch, 3 cedar", [3]int{0, 3, 3}, "open closed closed"})
}

func (p *player) downScene() {
	p.title("8. All three die")
	p.end()
	for range 4 {
		p.quiet(step{"refused twice", 1, "1 503", [3]int{0, 0, 0}, "open closed closed"})
	}
	p.play(step{"after 4 more, the 5th question", 1, "1 503", [3]int{0, 0, 0}, "open open open"})
	p.play(step{"100 questions: one answer, at once", 100, "100 503", [3]int{0, 0, 0}, "open open open"})
	p.expect("Retry-After", p.retryAfter(), "30")
}

func (p *player) checkScene() {
	p.title("9. birch comes back, and a health check finds it")
	p.check(p.locals[1].up())
	p.skip(12 * time.Second)
	p.wait("a health check that passes", func() bool { return p.circuit("birch").State() == breaker.HalfOpen })
	for range 2 {
		p.quiet(step{"a probe", 1, "1 birch", [3]int{0, 1, 0}, "open half-open open"})
	}
	p.play(step{"the third probe closes it, 18s early", 1, "1 birch", [3]int{0, 1, 0}, "open closed open"})
}

// summary checks what the providers have been asked in all.
func (p *player) summary() {
	var all []string
	for _, l := range p.locals {
		all = append(all, fmt.Sprintf("%s %d", l.name, l.count()))
	}
	p.say("\nCalls that reached the providers: %s", strings.Join(all, ", "))
	p.expect("the calls", strings.Join(all, ", "), "amber 29, birch 54, cedar 12")
}

func (p *player) title(text string) {
	pause(p.ctx, p.pause)
	p.say("\n%-50s %-26s %-9s %s", text, "answered by", "calls", "circuits")
}

// watch asks a question and shows the answer's words as they come.
func (p *player) watch() {
	for _, l := range p.locals {
		l.speak(p.pause / 16)
	}
	resp, err := p.post()
	if err != nil {
		p.check(err)
		return
	}
	defer resp.Body.Close()
	p.print("  > ")
	in := bufio.NewReader(resp.Body)
	for err == nil {
		var line []byte
		line, err = in.ReadBytes('\n')
		if w := words(line); w != "" {
			p.print(w + " ")
		}
	}
	if err != io.EOF {
		p.print("-- broken off")
	}
	p.print("\n")
	for _, l := range p.locals {
		l.speak(0)
	}
}

// play makes a step's questions at once, prints what came of them, and checks it.
func (p *player) play(want step) {
	got := p.quiet(want)
	p.say("  %-48s %-26s %d %d %d     %s", got.title, got.answer, got.calls[0], got.calls[1], got.calls[2], got.states)
	pause(p.ctx, p.pause/4)
}

func (p *player) quiet(want step) step {
	before := p.calls()
	got := want
	got.answer = p.ask(want.n, sum(want.calls[:]))
	for i, n := range p.calls() {
		got.calls[i] = n - before[i]
	}
	got.states = strings.Join(p.states(), " ")
	p.expect(want.title, fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want))
	p.steps++
	return got
}

func (p *player) calls() (all []int) {
	for _, l := range p.locals {
		all = append(all, l.count())
	}
	return all
}

func (p *player) states() (all []string) {
	for _, l := range p.locals {
		all = append(all, p.circuit(l.name).State().String())
	}
	return all
}

func (p *player) circuit(name string) *breaker.Circuit {
	return p.r.live.Load().providers[name].circuit
}

// left is what is left of a provider's open period.
func (p *player) left(i int) string {
	until := p.circuit(p.locals[i].name).Snapshot().Until
	return fmt.Sprintf("%.0fs", until.Sub(p.clock.Now()).Seconds())
}

// ask sends n questions at once and tells who has answered how many. The providers hold their answers back until as many
// calls as expected are with them: so it shows how many requests a probe is.
func (p *player) ask(n, expected int) string {
	var release []func()
	total := expected
	for _, l := range p.locals {
		total += l.count()
		if n > 1 {
			release = append(release, l.hold())
		}
	}
	answers := make(chan string, n)
	for range n {
		go func() { answers <- p.one() }()
	}
	if n > 1 {
		p.wait("calls", func() bool { return sum(p.calls()) >= total })
	}
	for _, f := range release {
		f()
	}
	tally := make(map[string]int)
	for range n {
		tally[<-answers]++
	}
	var all []string
	for _, who := range slices.Sorted(maps.Keys(tally)) {
		all = append(all, fmt.Sprintf("%d %s", tally[who], who))
	}
	return strings.Join(all, ", ")
}

func sum(all []int) (n int) {
	for _, one := range all {
		n += one
	}
	return n
}

// wait waits for what another goroutine does.
func (p *player) wait(what string, done func() bool) {
	late := time.Now().Add(10 * time.Second)
	for !done() {
		if time.Now().After(late) || !pause(p.ctx, time.Millisecond) {
			p.check(errors.New("never happened: " + what))
			return
		}
	}
}

func (p *player) post() (*http.Response, error) {
	req, err := http.NewRequestWithContext(p.ctx, http.MethodPost, p.url+chatPath, strings.NewReader(question))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return p.client.Do(req)
}

// one asks a question and tells who has answered, or with what status.
func (p *player) one() string {
	resp, err := p.post()
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	switch who := strings.Fields(words(text)); {
	case err != nil:
		return "broken off"
	case resp.StatusCode != http.StatusOK:
		return fmt.Sprint(resp.StatusCode)
	case len(who) > 2 && bytes.HasSuffix(text, []byte("[DONE]\n\n")):
		return who[2]
	}
	return "half an answer"
}

func (p *player) retryAfter() string {
	resp, err := p.post()
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	return resp.Header.Get("Retry-After")
}

// skip lets time pass.
func (p *player) skip(d time.Duration) {
	p.clock.skip(d)
	p.say("  ... %v pass", d)
}

// skipWhen lets time pass as soon as a provider has had n calls.
func (p *player) skipWhen(l *local, n int, d time.Duration) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		if l.reached(p.ctx, n) == nil {
			p.skip(d)
		}
	}()
	return done
}

// changed shows what happens to a circuit, as the log would.
func (p *player) changed(t breaker.Transition) {
	level, until := "INFO", ""
	if t.To == breaker.Open {
		level = "WARN"
		until = fmt.Sprintf(", for %v; the last failure: %v", t.Until.Sub(t.At), t.Cause)
	}
	p.say("  %s  t=%v  %s %v > %v: %s%s", level, t.At.Sub(p.start), t.Name, t.From, t.To, t.Reason, until)
}

// expect checks a fact of the story.
func (p *player) expect(what, got, want string) {
	if got != want {
		p.wrong = append(p.wrong, fmt.Errorf("%s: %s, not %s", what, got, want))
		p.say("  NOT AS EXPECTED: %s, not %s", got, want)
	}
}

func (p *player) check(err error) {
	if err != nil {
		p.wrong = append(p.wrong, err)
	}
}

func (p *player) say(format string, args ...any) { p.print(fmt.Sprintf(format+"\n", args...)) }

func (p *player) print(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = io.WriteString(p.out, text)
}
