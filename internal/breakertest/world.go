package breakertest

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// World is where a test's circuits get their time from, and how they are called.
type World struct {
	*testing.T
	Start time.Time
	Clk   *Clock // nil in a bubble
	Way   Way

	mu    sync.Mutex
	atEnd []func() // unlike with Cleanup, under the guard
}

// Clock is a clock that a test moves on by hand. One that is waiting moves on by itself as soon as somebody waits for it;
// it is for one goroutine.
type Clock struct {
	*clock.Mock
	waiting bool
}

// NewClock is a clock that moves only by hand.
func NewClock() *Clock { return &Clock{Mock: clock.NewMock()} }

// NewWaitingClock is a clock that moves on when somebody waits for it.
func NewWaitingClock() *Clock { return &Clock{Mock: clock.NewMock(), waiting: true} }

func (c *Clock) After(d time.Duration) <-chan time.Time {
	done := c.Mock.After(d)
	if c.waiting {
		c.Add(d)
	}
	return done
}

// A Way is one of the API's ways to make a call.
type Way struct {
	Name    string
	Options []breaker.Option
	Call    func(*Rig, context.Context, func(context.Context) (int, error)) (int, error)
}

var (
	ByRun = Way{"Run", nil, func(r *Rig, ctx context.Context, fn func(context.Context) (int, error)) (v int, err error) {
		err = r.C.Run(ctx, func(ctx context.Context) error {
			var err error
			v, err = fn(ctx)
			return err
		})
		return v, err
	}}
	ByDo = Way{"Do", nil, func(r *Rig, ctx context.Context, fn func(context.Context) (int, error)) (int, error) {
		return r.B.Do(ctx, fn)
	}}
	ByPolicy = Way{"Do with a call option", []breaker.Option{breaker.WithResult(func(_ int, err error) breaker.Outcome {
		return breaker.DefaultClassifier(err)
	})}, ByDo.Call}
	ByPermit = Way{"Acquire", nil, func(r *Rig, ctx context.Context, fn func(context.Context) (int, error)) (int, error) {
		p, err := r.C.Acquire(ctx)
		if err != nil {
			return 0, err
		}
		v, err := fn(ctx)
		p.Done(err)
		return v, err
	}}

	EveryWay = []Way{ByRun, ByDo, ByPolicy, ByPermit}
)

// Everywhere runs a test under an injected clock and under the default clock in a bubble, each in every way to call.
func Everywhere(t *testing.T, f func(*World)) {
	for _, way := range EveryWay {
		t.Run(way.Name, func(t *testing.T) {
			t.Run("injected clock", func(t *testing.T) { Injected(t, way, f) })
			t.Run("bubble", func(t *testing.T) { Bubble(t, way, f) })
		})
	}
}

// BothClocks runs a test under an injected clock and under the default clock in a bubble.
func BothClocks(t *testing.T, f func(*World)) {
	t.Run("injected clock", func(t *testing.T) { Injected(t, ByDo, f) })
	t.Run("bubble", func(t *testing.T) { Bubble(t, ByDo, f) })
}

// BothWaiting is BothClocks for a test of one goroutine, such as one of retries, whose waits are over as soon as they are
// asked for.
func BothWaiting(t *testing.T, f func(*World)) {
	t.Helper()
	t.Run("injected clock", func(t *testing.T) { inject(t, ByDo, true, f) })
	t.Run("bubble", func(t *testing.T) { Bubble(t, ByDo, f) })
}

// Injected runs a test under an injected clock.
func Injected(t *testing.T, way Way, f func(*World)) {
	t.Helper()
	inject(t, way, false, f)
}

func inject(t *testing.T, way Way, waiting bool, f func(*World)) {
	t.Helper()
	Guard(t, Patience, func() {
		clk := &Clock{Mock: clock.NewMock(), waiting: waiting}
		clk.Set(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
		w := &World{T: t, Start: clk.Now(), Clk: clk, Way: way}
		defer w.End()
		f(w)
	})
}

// Bubble runs a test under the default clock in a bubble.
func Bubble(t *testing.T, way Way, f func(*World)) {
	t.Helper()
	Guard(t, Patience, func() {
		synctest.Test(t, func(t *testing.T) {
			w := &World{T: t, Start: time.Now(), Way: way}
			defer w.End()
			f(w)
		})
	})
}

// AtEnd runs f when the test has ended.
func (w *World) AtEnd(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.atEnd = append(w.atEnd, f)
}

// End does what AtEnd was given. A World that was made by hand is ended by its test.
func (w *World) End() {
	for _, f := range w.atEnd {
		f()
	}
}

// Now is the time by the world's clock.
func (w *World) Now() time.Time {
	if w.Clk != nil {
		return w.Clk.Now()
	}
	return time.Now()
}

// Elapsed is the time since the scenario began.
func (w *World) Elapsed() time.Duration { return w.Now().Sub(w.Start) }

// At moves time to d after the scenario's beginning.
func (w *World) At(d time.Duration) {
	w.Helper()
	w.Add(d - w.Elapsed())
}

// Add lets d pass.
func (w *World) Add(d time.Duration) {
	w.Helper()
	require.GreaterOrEqual(w, d, time.Duration(0), "the scenario goes back in time")
	switch {
	case d == 0:
	case w.Clk != nil:
		w.Clk.Add(d)
	default:
		<-time.After(d)
		synctest.Wait()
	}
}

// Options adds the world's clock to options.
func (w *World) Options(opts ...breaker.Option) []breaker.Option {
	if w.Clk != nil {
		opts = append([]breaker.Option{breaker.WithClock(w.Clk)}, opts...)
	}
	return opts
}

// Breaker makes a breaker by the world's clock.
func (w *World) Breaker(opts ...breaker.Option) *breaker.Breaker[int] {
	w.Helper()
	b, err := breaker.New[int]("test", w.Options(opts...)...)
	require.NoError(w, err)
	return b
}

// ContextFor is a context with a deadline by the world's clock, which by an injected one never ends of itself.
func (w *World) ContextFor(d time.Duration) (context.Context, context.CancelFunc) {
	if w.Clk == nil {
		return context.WithTimeout(w.Context(), d)
	}
	return deadline{w.Context(), w.Clk.Now().Add(d)}, func() {}
}

type deadline struct {
	context.Context
	at time.Time
}

func (c deadline) Deadline() (time.Time, bool) { return c.at, true }

// Func is a function that ends as it was told, the last way again and again, and notes when it ran.
type Func struct {
	At   []time.Duration
	w    *World
	ends []error
}

// Func makes a function that ends with these errors, one after the other.
func (w *World) Func(ends ...error) *Func { return &Func{w: w, ends: ends} }

// Call is the function. It returns how often it ran.
func (f *Func) Call(context.Context) (int, error) {
	err := f.ends[min(len(f.At), len(f.ends)-1)]
	f.At = append(f.At, f.w.Elapsed())
	return len(f.At), err
}

// NoCall is a function that must not run.
func (w *World) NoCall(context.Context) (int, error) {
	w.Error("a call ran that should not")
	return 0, nil
}

// NoAlternative is an alternative that must not be asked.
func (w *World) NoAlternative(_ context.Context, why error) (int, error) {
	w.Errorf("an alternative was asked that should not, because of %v", why)
	return 0, nil
}
