package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/breakertest"
	"github.com/breakerkit/breaker/internal/testenv"
)

// The whole circuit against a model that remembers every call and works everything out anew.

var (
	errMdlDown     = errors.New("down")
	errMdlIgnore   = errors.New("not the dependency's fault")
	errMdlAnswered = errors.New("no such thing")
	errMdlManual   = errors.New("maintenance")
)

// mdlBusy is an error of a dependency that asks to be left alone.
type mdlBusy struct{ time.Duration }

func (b mdlBusy) Error() string             { return "busy for " + b.Duration.String() }
func (b mdlBusy) RetryAfter() time.Duration { return b.Duration }

// mdlTime is where a test's time comes from.
type mdlTime interface {
	Now() time.Time
	pass(time.Duration)
}

// mdlClock is a clock that the test moves.
type mdlClock struct {
	mu     sync.Mutex
	t      time.Time
	afters int
}

func newMdlClock() *mdlClock { return &mdlClock{t: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)} }

func (c *mdlClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

// After is for what this test does not use.
func (c *mdlClock) After(time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.afters++
	return nil
}

func (c *mdlClock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// mdlBubble is the time inside a bubble of testing/synctest.
type mdlBubble struct{}

func (mdlBubble) Now() time.Time { return time.Now() }

func (mdlBubble) pass(d time.Duration) {
	if d > 0 {
		<-time.After(d)
	}
}

// mdlRule is what trips.
type mdlRule struct {
	kind  string // consecutive, count, rate, slow, when
	n     int    // failures; rate, slow: the minimum of calls
	rate  float64
	calls int           // the window: LastCalls
	last  time.Duration // or Last; consecutive, count: only failures younger count
	slow  time.Duration
}

func (r mdlRule) window() breaker.Window {
	if r.calls > 0 {
		return breaker.LastCalls(r.calls)
	}
	return breaker.Last(r.last)
}

func (r mdlRule) option() breaker.Option {
	switch r.kind {
	case "count":
		return breaker.WithTrip(breaker.FailureCount(r.n, r.last))
	case "rate":
		return breaker.WithTrip(breaker.FailureRate(r.rate, r.n, r.window()))
	case "slow":
		return breaker.WithTrip(breaker.SlowCallRate(r.slow, r.rate, r.n, r.window()))
	case "when":
		return breaker.WithTrip(breaker.TripWhen(r.window(), r.says))
	}
	return breaker.WithFailureThreshold(r.n)
}

// says is a trip function of a user.
func (r mdlRule) says(n breaker.Counts) bool {
	return n.Failures >= uint64(r.n) && n.Failures > n.Successes || n.ConsecutiveFailures >= 3
}

func (r mdlRule) opts() []breaker.Option {
	opts := []breaker.Option{r.option()}
	if r.kind == "consecutive" {
		opts = append(opts, breaker.WithFailureWindow(r.last))
	}
	return opts
}

// mdlConfig is a circuit's configuration.
type mdlConfig struct {
	rule        mdlRule
	success     int
	probes      int
	open, lease time.Duration
	factor      float64
	maxOpen     time.Duration
	maxInFlight int
	ramp        time.Duration
}

func (c mdlConfig) opts() []breaker.Option {
	return append(c.rule.opts(),
		breaker.WithSuccessThreshold(c.success),
		breaker.WithHalfOpenProbes(c.probes),
		breaker.WithOpenTimeout(c.open),
		breaker.WithProbeLease(c.lease),
		breaker.WithOpenBackoff(c.factor, c.maxOpen, 0),
		breaker.WithMaxInFlight(c.maxInFlight),
		breaker.WithRamp(c.ramp),
	)
}

// mdlDone is a finished call that counted.
type mdlDone struct {
	at      time.Time
	outcome breaker.Outcome
	slow    bool
}

// mdlOut is a call that is out.
type mdlOut struct {
	permit *breaker.Permit
	cancel context.CancelFunc

	stay    uint64
	state   breaker.State
	probe   bool
	lease   time.Time
	started time.Time
	order   int // of admission
}

// mdlModel is the model, and the circuit beside it.
type mdlModel struct {
	t      *rapid.T
	time   mdlTime
	c      *breaker.Circuit
	b      *breaker.Breaker[int]
	timed  bool
	shared bool // the circuit is on a store
	quiet  bool // nobody takes a Snapshot before the end

	cfg                   mdlConfig
	state                 breaker.State
	mode                  breaker.Mode
	epoch                 uint64
	since                 time.Time
	until                 time.Time
	ramp                  time.Time // its end
	series                int
	progress              int
	proven                time.Time // when the last admitted of the good probes of this stay was admitted
	done                  []mdlDone // of this stay
	out                   []*mdlOut
	admitted, provenOrder int
	totals                breaker.Totals
	last                  error // of the present run of failures
	lastAt                time.Time
	cause                 error

	want, got         []breaker.Transition
	wantCall, gotCall []breaker.CallEvent
	wantRej, gotRej   []breaker.RejectEvent
}

func newMdlModel(t *rapid.T, clk mdlTime, cfg mdlConfig) *mdlModel {
	m := &mdlModel{t: t, time: clk, cfg: cfg, epoch: 1, since: clk.Now(), timed: rapid.Bool().Draw(t, "with a Call hook"), quiet: rapid.Bool().Draw(t, "quiet")}
	hooks := breaker.Hooks{
		StateChange: func(e breaker.Transition) { m.got = append(m.got, e) },
		Reject:      func(_ context.Context, e breaker.RejectEvent) { m.gotRej = append(m.gotRej, e) },
	}
	if m.timed {
		hooks.Call = func(_ context.Context, e breaker.CallEvent) { m.gotCall = append(m.gotCall, e) }
	}
	opts := append(cfg.opts(), breaker.WithIgnore(errMdlIgnore), breaker.WithAnswered(errMdlAnswered), breaker.WithHooks(hooks))
	if c, ok := clk.(breaker.Clock); ok {
		opts = append(opts, breaker.WithClock(c))
	}
	b, err := breaker.New[int]("model", opts...)
	if err != nil {
		t.Fatal(err)
	}
	m.b, m.c = b, b.Circuit()
	if rapid.Bool().Draw(t, "sharded") {
		breaker.Shard(m.c)
	}
	return m
}

func (m *mdlModel) now() time.Time { return m.time.Now() }

func (m *mdlModel) due() bool { return m.state == breaker.Open && !m.now().Before(m.until) }

func (m *mdlModel) visible() breaker.State {
	if m.due() {
		return breaker.HalfOpen
	}
	return m.state
}

func (m *mdlModel) live() (ends []time.Time) {
	for _, o := range m.out {
		if o.stay == m.epoch && o.probe && m.now().Before(o.lease) {
			ends = append(ends, o.lease)
		}
	}
	slices.SortFunc(ends, time.Time.Compare)
	return ends
}

// refusal is why the machine would not admit a call: "" if it would.
func (m *mdlModel) refusal() string {
	switch {
	case m.mode == breaker.ForcedOpen:
		return "forced"
	case m.state == breaker.Open && !m.due():
		return "open"
	case m.state == breaker.Closed && m.cfg.maxInFlight > 0 && len(m.out) >= m.cfg.maxInFlight:
		return "in flight"
	case m.state == breaker.HalfOpen && len(m.live()) >= m.cfg.probes:
		return "probes"
	case m.mode == breaker.Auto && m.state == breaker.Closed && m.now().Before(m.ramp) && !m.c.Ready():
		return "ramp" // who passes is the pure machine's matter (TestMachineRampIsEvenWithoutChance)
	}
	return ""
}

func (m *mdlModel) admits() bool {
	return m.mode == breaker.ForcedClosed || m.mode == breaker.Shadow || m.refusal() == ""
}

// admit is one more call, or nil.
func (m *mdlModel) admit() *mdlOut {
	why := m.refusal()
	switch {
	case m.mode == breaker.ForcedClosed:
	case why != "" && m.mode == breaker.Shadow:
		m.wantRej = append(m.wantRej, breaker.RejectEvent{Name: "model", Shadow: true})
	case why != "":
		m.wantRej = append(m.wantRej, breaker.RejectEvent{Name: "model"})
		m.totals.Rejected++
		return nil
	case m.due():
		m.move(breaker.HalfOpen, breaker.ReasonTimeout)
	}
	m.admitted++
	o := &mdlOut{stay: m.epoch, state: m.state, started: m.now(), order: m.admitted}
	if m.mode != breaker.ForcedClosed && why == "" && m.state == breaker.HalfOpen {
		o.probe, o.lease = true, m.now().Add(m.cfg.lease)
	}
	m.out = append(m.out, o)
	return o
}

// settle is the end of a call.
func (m *mdlModel) settle(o *mdlOut, outcome breaker.Outcome, err error) {
	took := m.now().Sub(o.started)
	slow := m.cfg.rule.slow > 0 && took >= m.cfg.rule.slow && outcome != breaker.Ignored
	current := o.stay == m.epoch
	disproved := !m.now().Before(o.lease) && o.started.Before(m.proven)
	if m.shared { // a store tells probes of one instant apart
		disproved = !m.now().Before(o.lease) && o.order < m.provenOrder
	}
	good := outcome == breaker.Success || outcome == breaker.Answered
	m.out = slices.DeleteFunc(m.out, func(p *mdlOut) bool { return p == o })
	m.tally(outcome, slow, current)
	if m.timed {
		m.wantCall = append(m.wantCall, breaker.CallEvent{Name: "model", State: o.state, Outcome: outcome, Probe: o.probe, Late: !current, Duration: took, Err: err})
	}
	if !current {
		return
	}
	m.done = append(m.done, mdlDone{m.now(), outcome, slow})
	switch {
	case m.state == breaker.Closed:
		m.settleClosed(outcome, slow, err)
	case m.state != breaker.HalfOpen || !o.probe:
	case outcome == breaker.Failure && !disproved:
		m.open(breaker.ReasonProbeFailed, err, err)
	case slow && !disproved:
		m.open(breaker.ReasonProbeFailed, errMdlSlow, nil)
	case good && !slow:
		m.last = nil
		m.progress++
		if o.started.After(m.proven) {
			m.proven = o.started
		}
		m.provenOrder = max(m.provenOrder, o.order)
		if m.progress >= m.cfg.success {
			m.move(breaker.Closed, breaker.ReasonRecovered)
			m.ramp = m.now().Add(m.cfg.ramp)
		}
	}
}

// errMdlSlow stands for the cause that only the library can make.
var errMdlSlow = errors.New("breaker: slow call")

func (m *mdlModel) tally(outcome breaker.Outcome, slow, current bool) {
	m.totals.Calls++
	switch outcome {
	case breaker.Success, breaker.Answered:
		m.totals.Successes++
	case breaker.Failure:
		m.totals.Failures++
	case breaker.Ignored:
		m.totals.Ignored++
	}
	if slow {
		m.totals.Slow++
	}
	if !current {
		m.totals.Late++
	}
}

func (m *mdlModel) settleClosed(outcome breaker.Outcome, slow bool, err error) {
	switch outcome {
	case breaker.Success:
		m.last = nil
	case breaker.Failure:
		m.last, m.lastAt = err, m.now()
	}
	if m.mode == breaker.ForcedClosed || !m.trips(outcome) {
		return
	}
	switch {
	case outcome == breaker.Failure:
		m.open(breaker.ReasonThreshold, err, err)
	case slow:
		m.open(breaker.ReasonThreshold, errMdlSlow, nil)
	default:
		m.open(breaker.ReasonThreshold, errMdlAny, nil)
	}
}

// errMdlAny is a cause that nobody has promised.
var errMdlAny = errors.New("any")

// trips works the rule out from all that was.
func (m *mdlModel) trips(outcome breaker.Outcome) bool {
	r := m.cfg.rule
	n := m.counts()
	atLeast := func(part, all uint64) bool {
		return all >= uint64(r.n) && part*1_000_000 >= uint64(math.Round(r.rate*1_000_000))*all
	}
	switch {
	case r.kind == "when":
		return outcome == breaker.Failure && r.says(n)
	case outcome == breaker.Ignored:
		return false
	case r.kind == "rate":
		return atLeast(n.Failures, n.Failures+n.Successes)
	case r.kind == "slow":
		return atLeast(n.Slow, n.Failures+n.Successes)
	case r.kind == "count":
		return n.Failures >= uint64(r.n)
	}
	return n.ConsecutiveFailures >= uint64(r.n)
}

func (m *mdlModel) open(why breaker.Reason, cause, hinted error) {
	if m.state == breaker.Closed && m.now().Sub(m.since) >= m.cfg.open {
		m.series = 0
	}
	m.series++
	period := float64(m.cfg.open)
	if m.cfg.factor > 0 {
		period = min(period*math.Pow(m.cfg.factor, float64(m.series-1)), float64(m.cfg.maxOpen))
	}
	var busy mdlBusy
	if errors.As(hinted, &busy) {
		period = max(period, float64(min(busy.Duration, 5*time.Minute)))
	}
	m.until = m.now().Add(time.Duration(period))
	m.cause = cause
	if cause != nil && cause != errMdlAny {
		m.last, m.lastAt = cause, m.now()
	}
	m.move(breaker.Open, why)
}

// move begins a new stay.
func (m *mdlModel) move(to breaker.State, why breaker.Reason) {
	if to != m.state {
		e := breaker.Transition{Name: "model", From: m.state, To: to, Reason: why, At: m.now(), Epoch: m.epoch + 1, Counts: m.stayCounts()}
		if to == breaker.Open {
			e.Until, e.Cause = m.until, m.cause
		}
		m.want = append(m.want, e)
	}
	m.state, m.since, m.ramp, m.progress, m.done = to, m.now(), m.now(), 0, nil
	m.proven, m.provenOrder = time.Time{}, 0
	m.epoch++
	if to == breaker.Closed {
		m.last, m.cause = nil, nil
	}
}

// stayCounts is what was counted in this stay.
func (m *mdlModel) stayCounts() breaker.Counts {
	n := mdlSum(m.done)
	if m.state == breaker.HalfOpen {
		n.ConsecutiveSuccesses, n.ConsecutiveFailures = uint64(m.progress), 0
	}
	if r := m.cfg.rule; m.state == breaker.Closed && r.kind == "consecutive" && r.last > 0 {
		n.ConsecutiveFailures = min(uint64(r.n), mdlSum(m.younger(m.done, r.last)).ConsecutiveFailures) // it keeps n times
	}
	return n
}

// counts is what the trip policy sees.
func (m *mdlModel) counts() breaker.Counts {
	n, r := m.stayCounts(), m.cfg.rule
	if m.state != breaker.Closed {
		return n
	}
	switch {
	case r.kind == "count":
		n.Failures = min(uint64(r.n), mdlSum(m.younger(m.done, r.last)).Failures) // it keeps n times
	case r.calls > 0:
		heard := slices.DeleteFunc(slices.Clone(m.done), func(d mdlDone) bool { return d.outcome == breaker.Ignored })
		w := mdlSum(heard[max(0, len(heard)-r.calls):])
		ignored := mdlSum(m.done[max(0, len(m.done)-r.calls):]).Ignored
		n.Successes, n.Failures, n.Ignored, n.Slow = w.Successes, w.Failures, ignored, w.Slow
	case r.kind != "consecutive":
		w := mdlSum(m.younger(m.done, r.last))
		n.Successes, n.Failures, n.Ignored, n.Slow = w.Successes, w.Failures, w.Ignored, w.Slow
	}
	return n
}

func (m *mdlModel) younger(done []mdlDone, d time.Duration) []mdlDone {
	i := 0
	for i < len(done) && m.now().Sub(done[i].at) >= d {
		i++
	}
	return done[i:]
}

func mdlSum(done []mdlDone) (n breaker.Counts) {
	for _, d := range done {
		switch d.outcome {
		case breaker.Success:
			n.Successes++
			n.ConsecutiveSuccesses++
			n.ConsecutiveFailures = 0
		case breaker.Failure:
			n.Failures++
			n.ConsecutiveFailures++
			n.ConsecutiveSuccesses = 0
		case breaker.Answered:
			n.Successes++
			if n.ConsecutiveFailures == 0 {
				n.ConsecutiveSuccesses++
			}
		case breaker.Ignored:
			n.Ignored++
		}
		if d.slow {
			n.Slow++
		}
	}
	return n
}

// What may happen.

// mdlEndings are the ways in which a call ends.
var mdlEndings = []string{"ok", "ok", "ok", "fail", "fail", "fail", "busy", "ignored", "answered", "answered", "cancel", "panic", "goexit"}

func (m *mdlModel) ending(kind string) (breaker.Outcome, error) {
	switch kind {
	case "ok":
		return breaker.Success, nil
	case "busy":
		return breaker.Failure, mdlBusy{rapid.SampledFrom([]time.Duration{-1, 1, 20 * time.Second, time.Hour}).Draw(m.t, "hint")}
	case "ignored":
		return breaker.Ignored, errMdlIgnore
	case "answered":
		return breaker.Answered, errMdlAnswered
	case "cancel":
		return breaker.Ignored, errMdlDown
	case "panic", "goexit":
		return breaker.Failure, nil
	}
	return breaker.Failure, errMdlDown
}

// call makes a whole call.
func (m *mdlModel) call(*rapid.T) {
	kind := rapid.SampledFrom(mdlEndings).Draw(m.t, "ending")
	way := rapid.SampledFrom([]string{"Run", "Do", "Try", "Acquire"}).Draw(m.t, "way")
	outcome, err := m.ending(kind)
	why, o := m.refusal(), m.admit()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ran := false
	var got error
	end := func() { got = m.do(ctx, way, func() error { ran = true; return mdlEnd(kind, err, cancel) }) }
	if kind == "panic" || kind == "goexit" {
		if way == "Acquire" {
			kind, err = "fail", errMdlDown
		} else {
			m.abnormal(o, end)
			return
		}
	}
	end()
	if ran != (o != nil) {
		m.t.Fatalf("ran %v, want %v (%s)", ran, o != nil, why)
	}
	if o == nil {
		m.checkRejection(why, got)
		return
	}
	if got != err {
		m.t.Fatalf("error %v, want %v", got, err)
	}
	m.settle(o, outcome, err)
}

// mdlEnd is what the called function does.
func mdlEnd(kind string, err error, cancel func()) error {
	switch kind {
	case "cancel":
		cancel()
	case "panic":
		panic(errMdlDown)
	case "goexit":
		runtime.Goexit()
	}
	return err
}

func (m *mdlModel) do(ctx context.Context, way string, fn func() error) error {
	switch way {
	case "Run":
		return m.c.Run(ctx, func(context.Context) error { return fn() })
	case "Do":
		_, err := m.b.Do(ctx, func(context.Context) (int, error) { return 1, fn() })
		return err
	case "Try":
		return m.b.Try(ctx, func(context.Context) (int, error) { return 1, fn() }).Err
	}
	p, err := m.c.Acquire(ctx)
	if err != nil {
		return err
	}
	err = fn()
	p.Done(err)
	return err
}

// abnormal makes a call that panics or ends its goroutine.
func (m *mdlModel) abnormal(o *mdlOut, call func()) {
	done := make(chan any)
	go func() {
		defer func() { done <- recover() }()
		call()
	}()
	<-done
	if o != nil {
		m.totals.Panics++
		m.settle(o, breaker.Failure, errMdlAbnormal)
	}
}

var errMdlAbnormal = errors.New("breaker: call ended by panic or runtime.Goexit")

func (m *mdlModel) checkRejection(why string, err error) {
	if why == "in flight" {
		if err != breaker.ErrTooManyInFlight {
			m.t.Fatalf("error %v, want ErrTooManyInFlight", err)
		}
		return
	}
	var open *breaker.OpenError
	if !errors.As(err, &open) || !errors.Is(err, breaker.ErrOpen) || errors.Is(err, breaker.ErrTooManyProbes) != (why == "probes") {
		m.t.Fatalf("error %v for %q", err, why)
	}
	want := time.Duration(0)
	switch why {
	case "open":
		want = m.until.Sub(m.now())
	case "probes":
		want = m.live()[0].Sub(m.now())
	case "ramp":
		want = m.ramp.Sub(m.now())
	}
	got := open.RetryAfter()
	if m.shared && why == "probes" && want-got < 10 { // leases that end together are told apart by nanoseconds
		got = max(got, want)
	}
	if got != want || (why == "forced") != open.Until.IsZero() {
		m.t.Fatalf("RetryAfter %v (until %v), want %v", got, open.Until, want)
	}
	if open.Mode != m.mode || why != "forced" && open.State != m.state || open.Circuit != "model" {
		m.t.Fatalf("%+v", open)
	}
	if m.cause != errMdlAny && !mdlSameError(open.Cause, m.cause) {
		m.t.Fatalf("Cause %v, want %v", open.Cause, m.cause)
	}
}

// mdlSameError compares by identity, or by text where the error is the library's own.
func mdlSameError(a, b error) bool {
	return a == b || a != nil && b != nil && a.Error() == b.Error()
}

func (m *mdlModel) start(*rapid.T) {
	why, o := m.refusal(), m.admit()
	ctx, cancel := context.WithCancel(context.Background())
	p, err := m.c.Acquire(ctx)
	if o == nil {
		cancel()
		m.checkRejection(why, err)
		return
	}
	if err != nil {
		m.t.Fatalf("not admitted: %v", err)
	}
	o.permit, o.cancel = p, cancel
}

func (m *mdlModel) finish(*rapid.T) {
	var begun []*mdlOut
	for _, o := range m.out {
		if o.permit != nil {
			begun = append(begun, o)
		}
	}
	if len(begun) == 0 {
		m.t.Skip("nothing is out")
	}
	o := begun[rapid.IntRange(0, len(begun)-1).Draw(m.t, "call")]
	kind := rapid.SampledFrom(mdlEndings[:len(mdlEndings)-2]).Draw(m.t, "ending")
	outcome, err := m.ending(kind)
	if kind == "cancel" {
		o.cancel()
	}
	switch rapid.SampledFrom([]string{"Done", "Settle"}).Draw(m.t, "how") {
	case "Done":
		o.permit.Done(err)
	case "Settle":
		o.permit.Settle(outcome, err)
	}
	m.settle(o, outcome, err)
	o.permit.Done(errMdlDown) // only the first counts
	o.permit.Settle(breaker.Failure, nil)
	o.cancel()
}

func (m *mdlModel) alreadyDone(*rapid.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := m.c.Acquire(ctx); err != context.Canceled {
		m.t.Fatal(err)
	}
	if err := m.c.Run(ctx, func(context.Context) error { panic("ran") }); err != context.Canceled {
		m.t.Fatal(err)
	}
}

// wait lets time pass; to where something is about to happen, with preference.
func (m *mdlModel) wait(t *rapid.T) {
	all := []time.Duration{1, time.Millisecond, 300 * time.Millisecond, time.Second, 3 * time.Second, time.Minute}
	at := func(when time.Time) {
		if d := when.Sub(m.now()); d > 1 {
			all = append(all, d-1, d, d)
		}
	}
	if m.state == breaker.Open {
		at(m.until)
	}
	for _, end := range m.live() {
		at(end)
	}
	for _, d := range m.done {
		if m.cfg.rule.last > 0 {
			at(d.at.Add(m.cfg.rule.last))
		}
	}
	m.time.pass(rapid.SampledFrom(all).Draw(t, "d"))
}

func (m *mdlModel) trip(t *rapid.T) {
	cause := rapid.SampledFrom([]error{nil, errMdlManual, mdlBusy{40 * time.Second}}).Draw(t, "cause")
	if m.due() {
		m.move(breaker.HalfOpen, breaker.ReasonTimeout)
	}
	if m.state != breaker.Open {
		m.open(breaker.ReasonManual, cause, cause)
	}
	m.c.Trip(cause)
}

func (m *mdlModel) reset(*rapid.T) {
	m.series = 0
	m.move(breaker.Closed, breaker.ReasonManual)
	m.c.Reset()
}

func (m *mdlModel) offer(*rapid.T) {
	if m.state == breaker.Open && !m.due() {
		m.move(breaker.HalfOpen, breaker.ReasonHealthCheck)
	}
	m.c.OfferProbe()
}

func (m *mdlModel) setMode(t *rapid.T) {
	modes := []breaker.Mode{breaker.Auto, breaker.Auto, breaker.ForcedOpen, breaker.ForcedClosed, breaker.Shadow}
	if m.cfg.ramp > 0 {
		modes = modes[:4] // in Shadow, Ready does not tell whom the ramp would refuse
	}
	old := m.mode
	m.mode = rapid.SampledFrom(modes).Draw(t, "mode")
	if old == breaker.ForcedClosed && m.mode != old && m.state == breaker.Closed {
		m.done, m.last = nil, nil
	}
	m.c.SetMode(m.mode)
}

// configure changes all but the window, so that everything survives.
func (m *mdlModel) configure(t *rapid.T) {
	m.cfg.success = rapid.IntRange(1, 3).Draw(t, "success threshold")
	m.cfg.probes = rapid.IntRange(1, 3).Draw(t, "probes")
	m.cfg.open = time.Duration(rapid.IntRange(3, 6).Draw(t, "open timeout")) * time.Second
	m.cfg.lease = time.Duration(rapid.IntRange(2, 7).Draw(t, "lease")) * time.Second
	if m.cfg.maxInFlight > 0 {
		m.cfg.maxInFlight = rapid.IntRange(1, 4).Draw(t, "max in flight")
	}
	if n := rapid.IntRange(2, 5).Draw(t, "n"); mdlSum(m.done).Failures <= uint64(m.cfg.rule.n) { // else some times are gone
		m.cfg.rule.n = n
	}
	if m.cfg.rule.rate > 0 {
		m.cfg.rule.rate = rapid.SampledFrom([]float64{0.3, 0.5, 1.0 / 3, 1}).Draw(t, "rate")
	}
	if err := m.c.Configure(m.cfg.opts()...); err != nil {
		t.Fatal(err)
	}
	if err := m.c.Configure(breaker.WithOpenTimeout(-1), breaker.WithFailureThreshold(1)); err == nil {
		t.Fatal("nonsense was taken")
	}
}

// check compares all that can be seen.
func (m *mdlModel) check(t *rapid.T) {
	if got := m.c.State(); got != m.visible() {
		t.Fatalf("State %v, want %v", got, m.visible())
	}
	if got := m.c.Ready(); got != m.admits() {
		t.Fatalf("Ready %v, want %v (%s)", got, m.admits(), m.refusal())
	}
	if !m.quiet {
		m.checkSnapshot(t, m.c.Snapshot())
	}
	m.checkHooks(t)
}

func (m *mdlModel) checkSnapshot(t *rapid.T, s breaker.Snapshot) {
	want := breaker.Snapshot{Name: "model", State: m.visible(), Mode: m.mode, Epoch: m.epoch, Since: m.since,
		Openings: uint64(m.series), InFlight: int64(len(m.out)), Counts: m.counts(), Totals: m.totals}
	switch {
	case m.state == breaker.Open:
		want.Until = m.until
		if m.due() {
			want.Since, want.Until = m.until, time.Time{}
		}
	case m.state == breaker.HalfOpen:
		want.Probes = int64(len(m.live()))
	}
	want.ConsecutiveFailures, want.ConsecutiveSuccesses = want.Counts.ConsecutiveFailures, want.Counts.ConsecutiveSuccesses
	if m.last != nil {
		want.LastFailure, want.LastFailureAt = m.last.Error(), m.lastAt
	}
	if m.state == breaker.Open { // forced calls in it: only their numbers are promised
		want.ConsecutiveFailures, want.Counts.ConsecutiveFailures = s.ConsecutiveFailures, s.Counts.ConsecutiveFailures
		want.ConsecutiveSuccesses, want.Counts.ConsecutiveSuccesses = s.ConsecutiveSuccesses, s.Counts.ConsecutiveSuccesses
	}
	for _, at := range []struct {
		name      string
		got, want *time.Time
	}{{"Since", &s.Since, &want.Since}, {"Until", &s.Until, &want.Until}, {"LastFailureAt", &s.LastFailureAt, &want.LastFailureAt}} {
		if !at.got.Equal(*at.want) {
			t.Fatalf("%s %v, want %v", at.name, at.got, at.want)
		}
		*at.got, *at.want = time.Time{}, time.Time{}
	}
	type plain breaker.Snapshot // without String
	if got, want := fmt.Sprintf("%+v", plain(s)), fmt.Sprintf("%+v", plain(want)); got != want {
		t.Fatalf("Snapshot\n got %s\nwant %s", got, want)
	}
}

func (m *mdlModel) checkHooks(t *rapid.T) {
	for i, w := range m.want {
		if i >= len(m.got) {
			break
		}
		g := m.got[i]
		if w.From != breaker.Closed { // only in Closed are the runs promised
			g.Counts.ConsecutiveFailures, g.Counts.ConsecutiveSuccesses = 0, 0
			w.Counts.ConsecutiveFailures, w.Counts.ConsecutiveSuccesses = 0, 0
		}
		if w.Cause == errMdlAny {
			w.Cause = g.Cause
		}
		same := g.At.Equal(w.At) && g.Until.Equal(w.Until) && mdlSameError(g.Cause, w.Cause)
		g.At, g.Until, g.Cause = w.At, w.Until, w.Cause
		if !same || g != w {
			t.Fatalf("Transition\n got %+v\nwant %+v", m.got[i], w)
		}
	}
	for i, w := range m.wantCall {
		if i < len(m.gotCall) && mdlSameError(m.gotCall[i].Err, w.Err) {
			m.gotCall[i].Err = w.Err
		}
	}
	for i := range m.gotRej {
		m.gotRej[i].Err = nil
	}
	if len(m.got) != len(m.want) || !slices.Equal(m.gotCall, m.wantCall) || !slices.Equal(m.gotRej, m.wantRej) {
		t.Fatalf("hooks\n got %+v %+v %+v\nwant %+v %+v %+v", m.got, m.gotCall, m.gotRej, m.want, m.wantCall, m.wantRej)
	}
	m.got, m.want, m.gotCall, m.wantCall, m.gotRej, m.wantRej = nil, nil, nil, nil, nil, nil
}

func (m *mdlModel) run() {
	actions := map[string]func(*rapid.T){"": m.check}
	for name, a := range map[string]struct {
		weight int
		do     func(*rapid.T)
	}{
		"call": {8, m.call}, "start": {3, m.start}, "finish": {3, m.finish}, "wait": {4, m.wait}, "already done": {1, m.alreadyDone},
		"Trip": {1, m.trip}, "Reset": {1, m.reset}, "OfferProbe": {1, m.offer}, "SetMode": {1, m.setMode}, "Configure": {1, m.configure},
	} {
		for i := range a.weight {
			actions[fmt.Sprintf("%s %d", name, i)] = a.do
		}
	}
	m.t.Repeat(actions)
	m.checkSnapshot(m.t, m.c.Snapshot())
	for _, o := range m.out {
		if o.permit != nil {
			o.permit.Done(nil)
			o.cancel()
		}
	}
	if got := m.c.Snapshot().InFlight; got != 0 {
		m.t.Fatalf("%d in flight at the end", got)
	}
}

// mdlRules are the rules that the model knows.
var mdlRules = map[string]mdlRule{
	"consecutive":              {kind: "consecutive", n: 3},
	"consecutive in a window":  {kind: "consecutive", n: 3, last: 10 * time.Second},
	"FailureCount":             {kind: "count", n: 3, last: 10 * time.Second},
	"FailureRate of LastCalls": {kind: "rate", n: 4, rate: 0.5, calls: 6},
	"FailureRate of Last":      {kind: "rate", n: 4, rate: 0.5, last: 10 * time.Second},
	"SlowCallRate, LastCalls":  {kind: "slow", n: 3, rate: 0.5, calls: 6, slow: 2 * time.Second},
	"SlowCallRate, Last":       {kind: "slow", n: 3, rate: 0.5, last: 10 * time.Second, slow: 2 * time.Second},
	"TripWhen, LastCalls":      {kind: "when", n: 3, calls: 6},
	"TripWhen, Last":           {kind: "when", n: 3, last: 10 * time.Second},
}

func mdlRun(t *rapid.T, clk mdlTime, rule mdlRule) {
	cfg := mdlConfig{rule: rule, success: rapid.IntRange(1, 2).Draw(t, "success threshold"), probes: rapid.IntRange(1, 2).Draw(t, "probes"),
		open: 5 * time.Second, lease: time.Duration(rapid.SampledFrom([]int{3, 5, 8}).Draw(t, "lease")) * time.Second}
	if rapid.Bool().Draw(t, "backoff") {
		cfg.factor, cfg.maxOpen = 2, 18*time.Second
	}
	if rapid.Bool().Draw(t, "bounded") {
		cfg.maxInFlight = 2
	}
	if rapid.Bool().Draw(t, "ramp") {
		cfg.ramp = 4 * time.Second
	}
	newMdlModel(t, clk, cfg).run()
}

func TestModel(t *testing.T) {
	for name, rule := range mdlRules {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range mdlRounds() {
				rapid.Check(t, func(t *rapid.T) { mdlRun(t, newMdlClock(), rule) })
			}
		})
	}
}

// mdlRounds is how many times 100 cases a property is tried.
func mdlRounds() int { return testenv.Size(1, 1, 10) }

func TestModelInABubble(t *testing.T) {
	for name, rule := range mdlRules {
		t.Run(name, func(t *testing.T) {
			mdlCheckInABubble(t, func(t *rapid.T) { mdlRun(t, mdlBubble{}, rule) })
		})
	}
}

// mdlCheckInABubble is rapid.Check inside a bubble, where rapid must not ask the test for its deadline.
func mdlCheckInABubble(t *testing.T, f func(*rapid.T)) {
	synctest.Test(t, func(t *testing.T) { rapid.Check(struct{ testing.TB }{t}, f) })
}

// A success that trips, by being the call that fills the minimum, opens the circuit when it ends, for a whole period.
func TestModelSuccessThatTrips(t *testing.T) {
	for name, rule := range map[string]mdlRule{
		"LastCalls": {kind: "rate", n: 4, rate: 0.5, calls: 10},
		"Last":      {kind: "rate", n: 4, rate: 0.5, last: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			clk := newMdlClock()
			c := breaker.Must(breaker.NewCircuit("late", append(rule.opts(), breaker.WithClock(clk), breaker.WithOpenTimeout(30*time.Second))...))
			for range 3 {
				_ = c.Run(t.Context(), func(context.Context) error { return errMdlDown })
			}
			clk.pass(time.Minute)
			_ = c.Run(t.Context(), func(context.Context) error { return nil })
			if s := c.Snapshot(); s.State != breaker.Open || !s.Until.Equal(clk.Now().Add(30*time.Second)) {
				t.Errorf("%v until %v at %v", s.State, s.Until, clk.Now())
			}
		})
	}
}

// What a mode or a configuration let pass is not held against a later time.
func TestModelFailuresOfAForcedTime(t *testing.T) {
	clk := newMdlClock()
	c := breaker.Must(breaker.NewCircuit("forced", breaker.WithClock(clk), breaker.WithTrip(breaker.FailureCount(3, 10*time.Second))))
	c.SetMode(breaker.ForcedClosed)
	for range 3 {
		_ = c.Run(t.Context(), func(context.Context) error { return errMdlDown })
	}
	p := breaker.Must(c.Acquire(t.Context()))
	c.SetMode(breaker.Auto)
	clk.pass(time.Minute)
	p.Done(nil)
	if s := c.Snapshot(); s.State != breaker.Closed {
		t.Errorf("%v at a success, a minute after the failures", s.State)
	}
}

// A trip function may call the circuit; its word counts only while the stay that it was asked about lasts.
func TestModelTripWhenOfAnEndedStay(t *testing.T) {
	for name, end := range map[string]func(*breaker.Circuit){
		"Reset":          (*breaker.Circuit).Reset,
		"Trip and Reset": func(c *breaker.Circuit) { c.Trip(nil); c.Reset() },
		"Trip":           func(c *breaker.Circuit) { c.Trip(nil); c.OfferProbe() },
		"nothing":        func(*breaker.Circuit) {},
	} {
		t.Run(name, func(t *testing.T) {
			var c *breaker.Circuit
			asked := 0
			c = breaker.Must(breaker.NewCircuit("asked", breaker.WithTrip(breaker.TripWhen(breaker.LastCalls(3), func(breaker.Counts) bool {
				asked++
				end(c)
				return true
			}))))
			breakertest.Guard(t, breakertest.Patience, func() { _ = c.Run(t.Context(), func(context.Context) error { return errMdlDown }) })
			want := map[string]breaker.State{"Trip": breaker.HalfOpen, "nothing": breaker.Open}[name]
			if c.State() != want || asked != 1 {
				t.Errorf("%v after %d questions, want %v", c.State(), asked, want)
			}
		})
	}
}

// A call that outlives thousands of stays is late, not mistaken for one of the present stay.
func TestModelStaysAreNeverMistaken(t *testing.T) {
	for _, stays := range []int{1, 1 << 8, 1 << 12, 1 << 13, 1 << 14, 1 << 15, 1 << 16} {
		c := breaker.Must(breaker.NewCircuit("old"))
		p := breaker.Must(c.Acquire(t.Context()))
		for range stays {
			c.Reset()
		}
		p.Done(nil)
		if s := c.Snapshot(); s.Totals.Late != 1 || s.Totals.Calls != 1 || s.InFlight != 0 || s.Counts.Successes != 0 || s.Epoch != uint64(stays)+1 {
			t.Errorf("after %d stays: %v, %+v", stays, s, s.Totals)
		}
	}
}

// Configure keeps the counts of a window that stays the same, and forgets those of one that does not.
func TestModelConfigureAnotherWindow(t *testing.T) {
	calls, last := mdlRules["FailureRate of LastCalls"], mdlRules["FailureRate of Last"]
	slow := mdlRules["SlowCallRate, LastCalls"]
	other := func(r mdlRule, change func(*mdlRule)) mdlRule { change(&r); return r }
	for name, tc := range map[string]struct {
		from, to mdlRule
		keeps    bool
	}{
		"another rate":            {calls, other(calls, func(r *mdlRule) { r.rate = 0.9 }), true},
		"another minimum":         {last, other(last, func(r *mdlRule) { r.n = 5 }), true},
		"another number of calls": {calls, other(calls, func(r *mdlRule) { r.calls = 7 }), false},
		"another time":            {last, other(last, func(r *mdlRule) { r.last *= 2 }), false},
		"time for calls":          {calls, last, false},
		"calls for time":          {last, calls, false},
		"another slow limit":      {slow, other(slow, func(r *mdlRule) { r.slow *= 2 }), true},
		"a window for a run":      {mdlRules["consecutive"], calls, false},
		"a window for a count":    {mdlRules["FailureCount"], last, false},
	} {
		t.Run(name, func(t *testing.T) {
			clk := newMdlClock()
			c := breaker.Must(breaker.NewCircuit("changes", append(tc.from.opts(), breaker.WithClock(clk))...))
			call := func(err error) { _ = c.Run(t.Context(), func(context.Context) error { return err }) }
			call(nil)
			call(errMdlDown)
			call(errMdlDown)
			if err := c.Configure(tc.to.option()); err != nil {
				t.Fatal(err)
			}
			want := breaker.Counts{ConsecutiveFailures: 2}
			if tc.keeps {
				want.Successes, want.Failures = 1, 2
			}
			if s := c.Snapshot(); s.Counts != want || s.State != breaker.Closed {
				t.Errorf("%v, %+v, want %+v", s.State, s.Counts, want)
			}
			if tc.to.kind == "rate" && !tc.keeps { // a whole new minimum is needed
				for i := range tc.to.n {
					if s := c.State(); s != breaker.Closed {
						t.Fatalf("%v after %d calls in the new window", s, i)
					}
					call(errMdlDown)
				}
				if s := c.State(); s != breaker.Open {
					t.Errorf("%v after %d calls in the new window", s, tc.to.n)
				}
			}
		})
	}
}

// The failures that a count holds are not those of a run that a success has ended.
func TestModelConfigureARunForACount(t *testing.T) {
	count, run := mdlRules["FailureCount"], mdlRules["consecutive in a window"]
	clk := newMdlClock()
	c := breaker.Must(breaker.NewCircuit("changes", append(count.opts(), breaker.WithClock(clk))...))
	call := func(err error) { _ = c.Run(t.Context(), func(context.Context) error { return err }) }
	call(errMdlDown)
	call(errMdlDown)
	call(nil)
	opts := append(breaker.DefaultConfig().Options(), run.opts()...)
	if err := c.Configure(opts...); err != nil {
		t.Fatal(err)
	}
	call(errMdlDown)
	if s := c.Snapshot(); s.State != breaker.Closed || s.ConsecutiveFailures != 1 {
		t.Errorf("%v with a run of %d failures", s.State, s.ConsecutiveFailures)
	}
	call(errMdlDown)
	call(errMdlDown)
	if s := c.State(); s != breaker.Open {
		t.Errorf("%v after 3 failures in a row", s)
	}
}
