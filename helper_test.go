package breaker_test

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/breakerkit/breaker"
)

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

func every(step, n int) (ms []int) {
	for i := range n {
		ms = append(ms, i*step)
	}
	return ms
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
