package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

var (
	errBoom   = errors.New("boom")
	errClient = errors.New("the client was wrong")
)

// patience is how long a test may take in real time before it is taken to be stuck.
const patience = 2 * time.Minute

// guard runs f and fails the test if f has not returned after d: a wedge shows as a failure with stacks, and the other
// tests run on.
func guard(t *testing.T, d time.Duration, f func()) {
	t.Helper()
	returned := false
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if v := recover(); v != nil { // a bubble whose goroutines wait for ever, for one
				t.Errorf("panic: %v\n%s", v, debug.Stack())
			}
		}()
		f()
		returned = true
	}()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		switch {
		case returned:
		case t.Failed():
			t.FailNow()
		case t.Skipped():
			t.SkipNow()
		default:
			t.Fatal("the test's own goroutine was ended")
		}
	case <-timer.C:
		stacks := make([]byte, 1<<20)
		t.Fatalf("stuck: not done after %v\n%s", d, stacks[:runtime.Stack(stacks, true)])
	}
}

// world is where a test's circuits get their time from, and how they are called.
type world struct {
	*testing.T
	start time.Time
	clk   *clock.Mock // nil in a bubble
	way   way
	mu    sync.Mutex
	atEnd []func() // unlike with Cleanup, under the guard
}

func (w *world) end() {
	for _, f := range w.atEnd {
		f()
	}
}

// A way is one of the API's ways to make a call.
type way struct {
	name string
	opts []breaker.Option
	call func(*rig, context.Context, func(context.Context) (int, error)) (int, error)
}

var (
	byRun = way{"Run", nil, func(r *rig, ctx context.Context, fn func(context.Context) (int, error)) (v int, err error) {
		err = r.c.Run(ctx, func(ctx context.Context) error {
			var err error
			v, err = fn(ctx)
			return err
		})
		return v, err
	}}
	byDo = way{"Do", nil, func(r *rig, ctx context.Context, fn func(context.Context) (int, error)) (int, error) {
		return r.b.Do(ctx, fn)
	}}
	byPolicy = way{"Do with a call option", []breaker.Option{breaker.WithResult(func(_ int, err error) breaker.Outcome {
		return breaker.DefaultClassifier(err)
	})}, byDo.call}
	byPermit = way{"Acquire", nil, func(r *rig, ctx context.Context, fn func(context.Context) (int, error)) (int, error) {
		p, err := r.c.Acquire(ctx)
		if err != nil {
			return 0, err
		}
		v, err := fn(ctx)
		p.Done(err)
		return v, err
	}}

	everyWay = []way{byRun, byDo, byPolicy, byPermit}
)

// everywhere runs a test under an injected clock and under the default clock in a bubble, each in every way to call.
func everywhere(t *testing.T, f func(*world)) {
	for _, way := range everyWay {
		t.Run(way.name, func(t *testing.T) {
			t.Run("injected clock", func(t *testing.T) { injected(t, way, f) })
			t.Run("bubble", func(t *testing.T) { bubble(t, way, f) })
		})
	}
}

// bothClocks runs a test under an injected clock and under the default clock in a bubble.
func bothClocks(t *testing.T, f func(*world)) {
	t.Run("injected clock", func(t *testing.T) { injected(t, byDo, f) })
	t.Run("bubble", func(t *testing.T) { bubble(t, byDo, f) })
}

func injected(t *testing.T, way way, f func(*world)) {
	t.Helper()
	guard(t, patience, func() {
		clk := clock.NewMock()
		clk.Set(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
		w := &world{T: t, start: clk.Now(), clk: clk, way: way}
		defer w.end()
		f(w)
	})
}

func bubble(t *testing.T, way way, f func(*world)) {
	t.Helper()
	guard(t, patience, func() {
		synctest.Test(t, func(t *testing.T) {
			w := &world{T: t, start: time.Now(), way: way}
			defer w.end()
			f(w)
		})
	})
}

func (w *world) now() time.Time {
	if w.clk != nil {
		return w.clk.Now()
	}
	return time.Now()
}

// elapsed is the time since the scenario began.
func (w *world) elapsed() time.Duration { return w.now().Sub(w.start) }

// at moves time to d after the scenario's beginning.
func (w *world) at(d time.Duration) { w.add(d - w.elapsed()) }

// add lets d pass.
func (w *world) add(d time.Duration) {
	w.Helper()
	require.GreaterOrEqual(w, d, time.Duration(0), "the scenario goes back in time")
	switch {
	case d == 0:
	case w.clk != nil:
		w.clk.Add(d)
	default:
		<-time.After(d)
		synctest.Wait()
	}
}

// noCall is a function that must not run.
func (w *world) noCall(context.Context) (int, error) {
	w.Error("a call ran that should not")
	return 0, nil
}

// noAlternative is an alternative that must not be asked.
func (w *world) noAlternative(_ context.Context, why error) (int, error) {
	w.Errorf("an alternative was asked that should not, because of %v", why)
	return 0, nil
}

// rig is a circuit with what a test needs around it.
type rig struct {
	*world
	b      *breaker.Breaker[int]
	c      *breaker.Circuit
	events *recorder
	ran    atomic.Int64 // how often a function really ran
}

// circuit makes a rig with the default options and then some.
func (w *world) circuit(opts ...breaker.Option) *rig {
	w.Helper()
	r := &rig{world: w, events: newRecorder()}
	all := []breaker.Option{breaker.WithHooks(r.events.hooks())}
	if w.clk != nil {
		all = append(all, breaker.WithClock(w.clk))
	}
	all = append(append(all, w.way.opts...), opts...)
	b, err := breaker.New[int]("test", all...)
	require.NoError(w, err)
	r.b, r.c = b, b.Circuit()
	w.atEnd = append(w.atEnd, func() { _ = r.c.Close() })
	return r
}

// r0 makes the rig that most cases use: 3 failures open it for 10s, 1 success of 1 probe at a time closes it.
func (w *world) r0(opts ...breaker.Option) *rig {
	w.Helper()
	return w.circuit(append([]breaker.Option{
		breaker.WithFailureThreshold(3),
		breaker.WithSuccessThreshold(1),
		breaker.WithOpenTimeout(10 * time.Second),
	}, opts...)...)
}

// call makes one call whose function returns err.
func (r *rig) call(err error) error { return r.callCtx(context.Background(), err) }

func (r *rig) callCtx(ctx context.Context, err error) error {
	_, got := r.way.call(r, ctx, func(context.Context) (int, error) {
		r.ran.Add(1)
		return 7, err
	})
	return got
}

// ok makes n good calls.
func (r *rig) ok(n int) {
	r.Helper()
	for range n {
		ran := r.ran.Load()
		require.NoError(r, r.call(nil), "at %v", r.elapsed())
		require.Equal(r, ran+1, r.ran.Load())
	}
}

// fail makes n failing calls.
func (r *rig) fail(n int) {
	r.Helper()
	for range n {
		r.failWith(errBoom)
	}
}

func (r *rig) failWith(err error) {
	r.Helper()
	ran := r.ran.Load()
	require.Equal(r, err, r.call(err), "at %v", r.elapsed())
	require.Equal(r, ran+1, r.ran.Load())
}

// trip makes the calls that open the circuit.
func (r *rig) trip() {
	r.Helper()
	r.state(breaker.Closed)
	r.fail(r.c.Config().FailureThreshold)
	r.state(breaker.Open)
}

// rejected makes a call that must be rejected.
func (r *rig) rejected() *breaker.OpenError {
	r.Helper()
	ran := r.ran.Load()
	err := r.call(nil)
	require.ErrorIs(r, err, breaker.ErrOpen, "at %v", r.elapsed())
	require.Equal(r, ran, r.ran.Load(), "a rejected call ran")
	var open *breaker.OpenError
	require.ErrorAs(r, err, &open)
	require.GreaterOrEqual(r, open.RetryAfter(), time.Duration(0))
	return open
}

func (r *rig) state(want breaker.State) {
	r.Helper()
	require.Equal(r, want, r.c.State(), "at %v; events: %v", r.elapsed(), r.steps())
}

// steps is what has happened to the circuit, one line for each change.
func (r *rig) steps() []string {
	var all []string
	for _, t := range r.events.list() {
		all = append(all, fmt.Sprintf("%v>%v at %v: %s", t.From, t.To, t.At.Sub(r.start), t.Reason))
	}
	return all
}

// idle requires that nothing is in flight and no slot in use.
func (r *rig) idle() {
	r.Helper()
	s := r.c.Snapshot()
	require.Zero(r, s.InFlight, "calls in flight")
	require.Zero(r, s.Probes, "slots in use")
}

// gate is a call that stays inside its function until it is told to finish.
type gate struct {
	r       *rig
	release chan error
	result  chan error
	ran     bool
}

// begin starts a call and waits until it is inside its function or has been rejected.
func (r *rig) begin() *gate { return r.beginCtx(context.Background()) }

func (r *rig) beginCtx(ctx context.Context) *gate {
	g := &gate{r: r, release: make(chan error, 1), result: make(chan error, 1)}
	entered := make(chan struct{})
	go func() {
		_, err := r.way.call(r, ctx, func(context.Context) (int, error) {
			r.ran.Add(1)
			close(entered)
			return 7, <-g.release
		})
		g.result <- err
	}()
	select {
	case <-entered:
		g.ran = true
		r.mu.Lock()
		r.atEnd = append(r.atEnd, func() {
			select {
			case g.release <- errBoom:
			default: // already finished
			}
		})
		r.mu.Unlock()
	case err := <-g.result:
		g.result <- err
	}
	return g
}

// gate starts a call that must be admitted.
func (r *rig) gate() *gate { r.Helper(); return r.gateCtx(context.Background()) }

func (r *rig) gateCtx(ctx context.Context) *gate {
	r.Helper()
	g := r.beginCtx(ctx)
	if !g.ran {
		require.NoError(r, <-g.result, "at %v: a call that should be admitted", r.elapsed())
	}
	return g
}

// finish ends the call with err, which must come out of it unchanged.
func (g *gate) finish(err error) {
	g.r.Helper()
	require.True(g.r, g.ran, "a rejected call has nothing to finish")
	g.release <- err
	require.Equal(g.r, err, <-g.result)
}

// recorder keeps the transitions that a circuit reports.
type recorder struct {
	mu     sync.Mutex
	more   chan struct{} // closed at the next one
	events []breaker.Transition
}

func newRecorder() *recorder { return &recorder{more: make(chan struct{})} }

func (r *recorder) hooks() breaker.Hooks {
	return breaker.Hooks{StateChange: func(t breaker.Transition) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.events = append(r.events, t)
		close(r.more)
		r.more = make(chan struct{})
	}}
}

func (r *recorder) list() []breaker.Transition {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]breaker.Transition(nil), r.events...)
}

// waitFor waits for events that another goroutine may still be delivering, until there are enough.
func (r *recorder) waitFor(w *world, enough func([]breaker.Transition) bool) []breaker.Transition {
	w.Helper()
	late := time.After(5 * time.Second) // in a bubble that is when nothing else is left to happen
	for {
		r.mu.Lock()
		events, more := append([]breaker.Transition(nil), r.events...), r.more
		r.mu.Unlock()
		if enough(events) {
			return events
		}
		select {
		case <-more:
		case <-late:
			require.FailNow(w, "events are missing", "%v", events)
		}
	}
}

// inBubble counts the goroutines of the caller's bubble, once nothing moves in it. Those outside, such as the runtime's own
// that clean up after the tests before, come and go.
func inBubble() int {
	synctest.Wait()
	stacks := make([]byte, 1<<20)
	text := string(stacks[:runtime.Stack(stacks, true)])
	own, _, _ := strings.Cut(text, ":\n")
	_, bubble, ok := strings.Cut(own, ", synctest bubble ")
	if !ok {
		panic("not in a bubble: " + own)
	}
	bubble, _, _ = strings.Cut(bubble, "]")
	n := 0
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "goroutine ") && strings.Contains(line, ", synctest bubble "+bubble+"]") {
			n++
		}
	}
	return n
}

// noMoreThan waits until there are no more goroutines than before: those of tests before, and the runtime's that clean up
// after them, come and go.
func noMoreThan(t require.TestingT, before int) {
	for range 1_000_000 { // not for some time: in a bubble that does not pass
		if runtime.NumGoroutine() <= before {
			return
		}
		runtime.Gosched()
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), before)
}

// inGoroutine runs f in a goroutine of its own and reports how it ended: by a panic with what value, or otherwise.
func inGoroutine(f func()) (panicked any) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { panicked = recover() }()
		f()
	}()
	<-done
	return panicked
}

// panicOf runs f and returns the value that it panicked with.
func panicOf(f func()) (v any) {
	defer func() { v = recover() }()
	f()
	return nil
}

// hint is an error of a dependency that says when to come back.
type hint time.Duration

func (h hint) Error() string             { return "come back in " + time.Duration(h).String() }
func (h hint) RetryAfter() time.Duration { return time.Duration(h) }

// policies trips at ten failures in a row, each in its own manner.
func policies() map[string]breaker.Option {
	return map[string]breaker.Option{
		"threshold":            breaker.WithFailureThreshold(10),
		"consecutive failures": breaker.WithTrip(breaker.ConsecutiveFailures(10)),
		"failure count":        breaker.WithTrip(breaker.FailureCount(10, 10*time.Second)),
		"rate in time":         breaker.WithTrip(breaker.FailureRate(0.5, 10, breaker.Last(10*time.Second))),
		"rate of calls":        breaker.WithTrip(breaker.FailureRate(0.5, 10, breaker.LastCalls(10))),
		"user's own": breaker.WithTrip(breaker.TripWhen(breaker.LastCalls(10), func(c breaker.Counts) bool {
			return c.Failures >= 10
		})),
		"slow or failed": breaker.WithTrip(
			breaker.SlowCallRate(time.Hour, 0.5, 10, breaker.LastCalls(10)),
			breaker.FailureRate(0.5, 10, breaker.LastCalls(10)),
		),
	}
}

// rudeHooks misbehave in every hook.
func rudeHooks(misbehave func()) map[string]breaker.Hooks {
	return map[string]breaker.Hooks{
		"StateChange": {StateChange: func(breaker.Transition) { misbehave() }},
		"Call":        {Call: func(context.Context, breaker.CallEvent) { misbehave() }},
		"Reject":      {Reject: func(context.Context, breaker.RejectEvent) { misbehave() }},
		"Rescue":      {Rescue: func(context.Context, breaker.RescueEvent) { misbehave() }},
	}
}

// handClock is a clock that is set by hand, for tests that set it often.
type handClock struct{ ns atomic.Int64 }

func (c *handClock) Now() time.Time { return time.Unix(0, c.ns.Load()) }

func (c *handClock) After(time.Duration) <-chan time.Time { panic("nobody should wait") }

// askingClock asks, but not while it asks.
type askingClock struct {
	asking atomic.Bool
	ask    func()
}

func (c *askingClock) Now() time.Time {
	if c.ask != nil && c.asking.CompareAndSwap(false, true) {
		defer c.asking.Store(false)
		c.ask()
	}
	return time.Unix(1000, 0)
}

func (c *askingClock) After(time.Duration) <-chan time.Time { return nil }

// join makes one option of two.
func join(opts ...breaker.Option) breaker.Option {
	d := breaker.Must(breaker.NewCircuit("join", opts...)).Config()
	return d.Options()[0]
}

// failuresAt makes a failing call at each time, in milliseconds, that is admitted.
func (r *rig) failuresAt(ms ...int) {
	r.Helper()
	for _, at := range ms {
		r.at(time.Duration(at) * time.Millisecond)
		r.fail(1)
	}
}

func every(step, n int) (ms []int) {
	for i := range n {
		ms = append(ms, i*step)
	}
	return ms
}

// acquire takes a permit that must be given.
func (r *rig) acquire() *breaker.Permit {
	r.Helper()
	p, err := r.c.Acquire(context.Background())
	require.NoError(r, err, "at %v", r.elapsed())
	return p
}

// logged is a handler that keeps records.
type logged struct {
	mu      sync.Mutex
	records []slog.Record
}

func (l *logged) Enabled(context.Context, slog.Level) bool { return true }

func (l *logged) WithAttrs([]slog.Attr) slog.Handler { return l }

func (l *logged) WithGroup(string) slog.Handler { return l }

func (l *logged) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records = append(l.records, r)
	return nil
}

func (l *logged) list() []slog.Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]slog.Record(nil), l.records...)
}

func attrs(r slog.Record) map[string]slog.Value {
	all := make(map[string]slog.Value)
	r.Attrs(func(a slog.Attr) bool { all[a.Key] = a.Value; return true })
	return all
}

// hang is a dependency that does not answer: it returns when the attempt's context ends.
func hang(ctx context.Context) (int, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

func mdlOK(context.Context) error { return nil }

func mdlFail(context.Context) error { return errMdlDown }
