package breaker_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/breakertest"
	"github.com/breakerkit/breaker/internal/seam"
	"github.com/breakerkit/breaker/store"
)

// What breakerhttp and pool get, as they get it.
var (
	seamAdmitted     = seam.Admitted.(func(*breaker.Permit) (*breaker.Circuit, context.Context))
	seamFast         = seam.Fast.(func(*breaker.Permit) bool)
	seamExcluding    = seam.SettleExcluding.(func(*breaker.Permit, breaker.Outcome, error, time.Duration))
	seamUndisturbed  = seam.Undisturbed.(func(*breaker.Circuit) bool)
	seamDecided      = seam.Decided.(func(*breaker.Circuit, context.Context, error) (breaker.Outcome, bool))
	seamRescued      = seam.Rescued.(func(*breaker.Circuit, context.Context, breaker.RescueEvent))
	seamReport       = seam.ReportStoreError.(func(*breaker.Circuit, error))
	seamRejection    = seam.Rejection.(func(error) bool)
	seamCheckTwoStep = seam.CheckTwoStep.(func(string, bool, ...breaker.Option) error)
	seamTwoStep      = seam.TwoStep.(func(string) breaker.Option)
	seamTimeout      = seam.Timeout.(func(*breaker.Breaker[struct{}]) time.Duration)
	seamGroupTimeout = seam.GroupTimeout.(func(*breaker.Group[struct{}], string) time.Duration)
	seamBypass       = seam.Bypass.(func(*breaker.Group[struct{}], string) *breaker.Circuit)
	seamEvictions    = seam.Evictions.(func(*breaker.Group[struct{}]) uint64)
	seamClock        = seam.Clock.(func(*breaker.Group[struct{}]) breaker.Clock)
	seamRetryBegin   = seam.RetryBegin.(func(breaker.RetryPolicy, *breaker.Circuit) int64)
	seamRetryRan     = seam.RetryRan.(func(breaker.RetryPolicy, *breaker.Circuit, int))
	seamRetryNext    = seam.RetryNext.(func(context.Context, breaker.RetryPolicy, *breaker.Circuit, int64, int, error) (bool, error))
	seamRetryError   = seam.RetryError.(func(int, error, error) error)
)

// tenant is a group of the kind that wrappers make.
func tenant(t *testing.T, opts ...breaker.Option) *breaker.Group[struct{}] {
	t.Helper()
	g, err := breaker.NewGroup[struct{}](opts...)
	require.NoError(t, err)
	return g
}

func TestPermitAbort(t *testing.T) {
	c := breaker.Must(breaker.NewCircuit("c"))
	ctx := context.Background()
	for range 2 {
		p, err := c.Acquire(ctx)
		require.NoError(t, err)
		p.Abort()
		p.Abort() // only the first settlement counts
		p.Done(nil)
	}
	n := c.Snapshot()
	require.EqualValues(t, 2, n.Totals.Failures)
	require.EqualValues(t, 2, n.Totals.Panics)
	require.EqualValues(t, 2, n.Totals.Calls)
	require.EqualValues(t, 2, n.ConsecutiveFailures)
	require.Zero(t, n.InFlight)
	(*breaker.Permit)(nil).Abort()
	new(breaker.Permit).Abort()
}

// A panic after the caller's cancel is one all the same.
func TestPermitAbortAfterCancel(t *testing.T) {
	c := breaker.Must(breaker.NewCircuit("c"))
	ctx, cancel := context.WithCancel(context.Background())
	p, err := c.Acquire(ctx)
	require.NoError(t, err)
	cancel()
	p.Abort()
	require.EqualValues(t, 1, c.Snapshot().Totals.Failures)
}

// The permit of the seam is one like any other, knows what it was asked for with, and costs nothing.
func TestAcquireInto(t *testing.T) {
	c := breaker.Must(breaker.NewCircuit("c", breaker.WithFailureThreshold(1)))
	ctx := t.Context()
	var p breaker.Permit
	require.NoError(t, c.AcquireInto(ctx, &p))
	gotCircuit, gotCtx := seamAdmitted(&p)
	require.Same(t, c, gotCircuit)
	require.Equal(t, ctx, gotCtx)
	require.EqualValues(t, 1, c.Snapshot().InFlight)
	p.Settle(breaker.Failure, breakertest.ErrBoom)
	p.Done(nil)
	require.EqualValues(t, 1, c.Snapshot().Totals.Calls)

	p = breaker.Permit{}
	require.ErrorIs(t, c.AcquireInto(ctx, &p), breaker.ErrOpen)
	require.Equal(t, breaker.Permit{}, p)
	gotCircuit, gotCtx = seamAdmitted(&p)
	require.Nil(t, gotCircuit)
	require.Nil(t, gotCtx)
	p.Done(nil)
	require.EqualValues(t, 1, c.Snapshot().Totals.Calls)

	done, cancel := context.WithCancel(ctx)
	cancel()
	require.Equal(t, context.Canceled, c.AcquireInto(done, &p), "before the circuit is asked")
	c.Reset()
	mdlAllocs(t, 0, func() {
		var p breaker.Permit
		_ = c.AcquireInto(ctx, &p)
		p.Done(nil)
	})
}

// Who asks for times, or a probe, is not on the fast path; a call is undisturbed wherever the lock need not be taken.
func TestSeamFastAndProbe(t *testing.T) {
	plain := breaker.Must(breaker.NewCircuit("c", breaker.WithFailureThreshold(1)))
	timed := breaker.Must(breaker.NewCircuit("c", breaker.WithTrip(breaker.SlowCallRate(time.Second, 0.5, 1, breaker.LastCalls(10)))))
	for _, tc := range []struct {
		name                     string
		c                        *breaker.Circuit
		prepare                  func()
		undisturbed, fast, probe bool
	}{
		{"closed", plain, func() {}, true, true, false},
		{"timed", timed, func() {}, true, false, false},
		{"half-open", plain, func() { plain.Trip(nil); plain.OfferProbe() }, false, false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.prepare()
			require.Equal(t, tc.undisturbed, seamUndisturbed(tc.c))
			p, err := tc.c.Acquire(t.Context())
			require.NoError(t, err)
			require.Equal(t, tc.fast, seamFast(p))
			require.Equal(t, tc.probe, p.Probe())
			p.Done(nil)
			require.Equal(t, tc.probe, p.Probe(), "afterwards as well")
		})
	}
	plain.Trip(nil)
	require.False(t, seamUndisturbed(plain), "open")
	require.False(t, (*breaker.Permit)(nil).Probe())
	require.False(t, new(breaker.Permit).Probe())
}

// Time that was not the dependency's makes no call slow, and is not told.
func TestSeamSettleExcluding(t *testing.T) {
	var took []time.Duration
	clk := newAskedClock()
	c := breaker.Must(breaker.NewCircuit("c", breaker.WithClock(clk), breaker.WithTrip(breaker.SlowCallRate(2*time.Second, 1, 1, breaker.LastCalls(1))),
		breaker.WithHooks(breaker.Hooks{Call: func(_ context.Context, e breaker.CallEvent) { took = append(took, e.Duration) }})))
	for _, excluded := range []time.Duration{2 * time.Second, time.Hour, -time.Hour} {
		p, err := c.Acquire(t.Context())
		require.NoError(t, err)
		clk.Add(3 * time.Second)
		seamExcluding(p, breaker.Success, nil, excluded)
		p.Done(breakertest.ErrBoom) // only the first settlement counts
	}
	require.Equal(t, []time.Duration{time.Second, 0, 3 * time.Second}, took)
	require.Equal(t, breaker.Open, c.State(), "the last was slow")
	require.EqualValues(t, 3, c.Snapshot().Totals.Successes)
	seamExcluding(new(breaker.Permit), breaker.Success, nil, 0)
}

func TestSeamDecided(t *testing.T) {
	errListed := errors.New("listed")
	c := breaker.Must(breaker.NewCircuit("c", breaker.WithIgnore(errListed), breaker.WithFailOn(breakertest.ErrBoom)))
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tc := range []struct {
		ctx     context.Context
		err     error
		want    breaker.Outcome
		decided bool
	}{
		{t.Context(), nil, breaker.Success, false},
		{t.Context(), errListed, breaker.Ignored, true},
		{t.Context(), breakertest.ErrBoom, breaker.Failure, true},
		{t.Context(), errors.New("other"), breaker.Success, false},
		{canceled, breakertest.ErrBoom, breaker.Ignored, true},
	} {
		o, decided := seamDecided(c, tc.ctx, tc.err)
		require.Equal(t, tc.want, o, "%v", tc.err)
		require.Equal(t, tc.decided, decided, "%v", tc.err)
	}
	require.Zero(t, c.Snapshot().Totals.Calls)
}

// What a wrapper does for a circuit is told and counted under the circuit's name.
func TestSeamRescuedAndReported(t *testing.T) {
	var rescues []breaker.RescueEvent
	var told []error
	c := breaker.Must(breaker.NewCircuit("c", breaker.WithHooks(breaker.Hooks{
		Rescue:     func(_ context.Context, e breaker.RescueEvent) { rescues = append(rescues, e) },
		StoreError: func(err error) { told = append(told, err) },
	})))
	seamRescued(c, t.Context(), breaker.RescueEvent{Kind: breaker.RescueCache, Cause: breakertest.ErrBoom})
	seamRescued(c, t.Context(), breaker.RescueEvent{Kind: breaker.RescueCache, Err: breakertest.ErrBoom})
	require.Equal(t, []breaker.RescueEvent{{Name: "c", Kind: breaker.RescueCache, Cause: breakertest.ErrBoom}, {Name: "c", Kind: breaker.RescueCache, Err: breakertest.ErrBoom}}, rescues)
	require.Equal(t, map[breaker.Rescue]uint64{breaker.RescueCache: 1}, c.Snapshot().Totals.Rescues, "those that helped")
	seamReport(c, breakertest.ErrBoom)
	require.Equal(t, []error{breakertest.ErrBoom}, told)
}

// Wrappers mean by a rejection what the default classifier means by it.
func TestSeamRejection(t *testing.T) {
	for err, want := range map[error]bool{
		nil: false, breakertest.ErrBoom: false, breaker.ErrOpen: true, breaker.ErrTooManyInFlight: true,
		errors.Join(breaker.ErrOpen, breaker.ErrTooManyInFlight): true, errors.Join(breaker.ErrOpen, breakertest.ErrBoom): false,
	} {
		require.Equal(t, want, seamRejection(err), "%v", err)
		require.Equal(t, want, breaker.DefaultClassifier(err) == breaker.Ignored, "%v", err)
	}
}

// What two-step use would pass over is named, and only by a wrapper that passes it over.
func TestSeamCheckTwoStep(t *testing.T) {
	for _, classifies := range []bool{false, true} {
		err := seamCheckTwoStep("here", classifies, twoStepForbids...)
		for _, name := range []string{"Retry", "Fallback", "Result"} {
			require.ErrorContains(t, err, name+": is not an option of here")
		}
		require.Equal(t, !classifies, strings.Contains(err.Error(), "Classifier"))
	}
	require.NoError(t, seamCheckTwoStep("here", false, breaker.WithTimeout(1), breaker.MaxKeys(-1)), "the rest is for others to report")
}

var twoStepForbids = []breaker.Option{breaker.WithClassifier(breaker.DefaultClassifier), breaker.WithRetry(),
	breaker.WithFallbackValue(struct{}{}), breaker.WithResult(func(struct{}, error) breaker.Outcome { return 0 })}

func TestSeamTwoStepGroup(t *testing.T) {
	names := []string{"Classifier", "Retry", "Fallback", "Result"}
	_, err := breaker.NewGroup[struct{}](append(slices.Clip(twoStepForbids), seamTwoStep("here"))...)
	for _, name := range names {
		require.ErrorContains(t, err, name+": is not an option of here")
	}
	for i, o := range twoStepForbids {
		var told []error
		g := tenant(t, seamTwoStep("here"), breaker.WithFailureThreshold(7),
			breaker.WithHooks(breaker.Hooks{StoreError: func(err error) { told = append(told, err) }}),
			breaker.PerKey(func(string) []breaker.Option { return []breaker.Option{breaker.WithFailureThreshold(1), o} }))
		require.Equal(t, 7, g.Get("k").Circuit().Config().FailureThreshold)
		require.Len(t, told, 1)
		require.ErrorContains(t, told[0], names[i])
	}
	g := tenant(t, seamTwoStep("here"), breaker.WithTimeout(time.Second))
	require.Equal(t, time.Second, seamTimeout(g.Get("k")))
	require.Zero(t, seamTimeout(breaker.Must(breaker.New[struct{}]("b"))))
}

func TestSeamGroupTimeout(t *testing.T) {
	perKey := breaker.PerKey(func(key string) []breaker.Option {
		if key == "own" {
			return []breaker.Option{breaker.WithTimeout(time.Minute)}
		}
		return nil
	})
	g := tenant(t, breaker.WithTimeout(time.Second), perKey)
	require.Equal(t, time.Second, seamGroupTimeout(g, "k"))
	require.Equal(t, time.Minute, seamGroupTimeout(g, "own"))
	require.Zero(t, g.Len())
	g.Get("own")
	require.Equal(t, time.Minute, seamGroupTimeout(g, "own"))
	require.Zero(t, seamGroupTimeout(tenant(t), "k"))
}

func TestSeamClock(t *testing.T) {
	require.Nil(t, seamClock(tenant(t)))
	clk := newAskedClock()
	require.Equal(t, clk, seamClock(tenant(t, breaker.WithClock(clk))))
}

func TestSeamBypass(t *testing.T) {
	errOne := errors.New("one")
	var retries []breaker.RetryEvent
	g := tenant(t, breaker.WithIgnore(errOne), breaker.WithMode(breaker.ForcedOpen), breaker.WithFailureThreshold(1),
		breaker.WithHooks(breaker.Hooks{Retry: func(_ context.Context, e breaker.RetryEvent) { retries = append(retries, e) }}))
	c := seamBypass(g, "k")
	require.Equal(t, "k", c.Name())
	require.Zero(t, g.Len())
	o, decided := seamDecided(c, context.Background(), errOne)
	require.True(t, decided)
	require.Equal(t, breaker.Ignored, o)

	p := breaker.Must(breaker.NewRetryPolicy(breaker.MaxRetries(1), breaker.Constant(0)))
	began := seamRetryBegin(p, c)
	seamRetryRan(p, c, 1)
	again, because := seamRetryNext(t.Context(), p, c, began, 1, errors.New("two"))
	require.NoError(t, because)
	require.True(t, again, "it is never open")
	require.Equal(t, "k", retries[0].Name)
}

// Whatever opens the group's circuits, a circuit that stands beside one can be run. It rejects nothing and stays closed.
func TestSeamBypassRuns(t *testing.T) {
	for name, opt := range map[string]breaker.Option{
		"run":        breaker.WithFailureThreshold(1),
		"window":     breaker.WithFailureWindow(time.Minute),
		"count":      breaker.WithTrip(breaker.FailureCount(1, time.Minute)),
		"rate":       breaker.WithTrip(breaker.FailureRate(0.5, 1, breaker.LastCalls(10))),
		"slow":       breaker.WithTrip(breaker.SlowCallRate(1, 0.5, 1, breaker.Last(time.Minute))),
		"function":   breaker.WithTrip(breaker.TripWhen(breaker.LastCalls(10), func(breaker.Counts) bool { return true })),
		"bulkhead":   breaker.WithMaxInFlight(1),
		"forced":     breaker.WithMode(breaker.ForcedOpen),
		"shared":     breaker.WithStore(store.NewMemory()),
		"configured": nil,
	} {
		t.Run(name, func(t *testing.T) {
			breakertest.Guard(t, breakertest.Patience, func() {
				g := tenant(t)
				if opt == nil {
					require.NoError(t, g.Configure(breaker.WithTrip(breaker.FailureRate(0.5, 1, breaker.LastCalls(10)))))
				} else {
					g = tenant(t, opt)
				}
				c := seamBypass(g, "k")
				_, err := c.Acquire(t.Context()) // one is in flight throughout
				require.NoError(t, err)
				for range 100 {
					require.Equal(t, breakertest.ErrBoom, c.Run(t.Context(), func(context.Context) error { return breakertest.ErrBoom }))
					require.NoError(t, c.Run(t.Context(), func(context.Context) error { return nil }))
				}
				n := c.Snapshot()
				require.EqualValues(t, 100, n.Totals.Failures)
				require.EqualValues(t, 100, n.Totals.Successes)
				require.Equal(t, breaker.Closed, n.State)
				require.Zero(t, g.Len())
				c.Trip(nil)
				require.Zero(t, g.Len(), "the group does not hear of it")
				require.NoError(t, c.Run(t.Context(), func(context.Context) error { return nil }))
				require.NoError(t, g.Close())
			})
		})
	}
}

// The driver makes the retries that WithRetry would make.
func TestSeamRetries(t *testing.T) {
	var told []breaker.RetryEvent
	c := breaker.Must(breaker.NewCircuit("c", breaker.WithFailureThreshold(3),
		breaker.WithHooks(breaker.Hooks{Retry: func(_ context.Context, e breaker.RetryEvent) { told = append(told, e) }})))
	ctx := t.Context()
	p := breaker.Must(breaker.NewRetryPolicy(breaker.MaxRetries(2), breaker.Constant(0), breaker.WithBudget(newBudget(t, 1, 0, time.Hour))))
	began := seamRetryBegin(p, c)
	again, because := seamRetryNext(ctx, p, c, began, 1, breakertest.ErrBoom)
	require.False(t, again, "the budget has not heard of a call")
	require.NoError(t, because)
	seamRetryRan(p, c, 1)
	again, _ = seamRetryNext(ctx, p, c, began, 1, nil)
	require.True(t, again)
	require.Equal(t, []breaker.RetryEvent{{Name: "c", Attempt: 1, Err: breaker.ErrUnacceptable}}, told)
	seamRetryRan(p, c, 2)
	require.EqualValues(t, 1, c.Snapshot().Totals.Retries)
	again, because = seamRetryNext(ctx, p, c, began, 3, breakertest.ErrBoom)
	require.False(t, again, "that was the last")
	require.NoError(t, because)

	c.Trip(nil)
	again, because = seamRetryNext(ctx, p, c, began, 2, breakertest.ErrBoom)
	require.False(t, again)
	require.ErrorIs(t, because, breaker.ErrOpen)
	done, cancel := context.WithCancel(ctx)
	cancel()
	_, because = seamRetryNext(done, p, nil, 0, 1, breakertest.ErrBoom)
	require.Equal(t, context.Canceled, because)
	again, _ = seamRetryNext(ctx, breaker.RetryPolicy{}, c, 0, 1, breakertest.ErrBoom)
	require.False(t, again, "the zero policy")
	require.Zero(t, seamRetryBegin(breaker.RetryPolicy{}, nil))

	require.Equal(t, breakertest.ErrBoom, seamRetryError(1, breakertest.ErrBoom, nil))
	require.Equal(t, context.Canceled, seamRetryError(1, nil, context.Canceled))
	err := seamRetryError(2, breakertest.ErrBoom, context.Canceled)
	var all *breaker.RetryError
	require.ErrorAs(t, err, &all)
	require.Equal(t, 2, all.Attempts)
	require.ErrorIs(t, err, breakertest.ErrBoom)
	require.ErrorIs(t, err, context.Canceled)
}

// Without a circuit the policy's own clock serves.
func TestSeamRetriesWithoutCircuit(t *testing.T) {
	clk := newAskedClock()
	p := breaker.Must(breaker.NewRetryPolicy(breaker.MaxRetries(1), breaker.Constant(0), breaker.MaxElapsed(time.Hour), breaker.RetryClock(clk)))
	began := seamRetryBegin(p, nil)
	seamRetryRan(p, nil, 1)
	seamRetryRan(p, nil, 2)
	again, because := seamRetryNext(t.Context(), p, nil, began, 1, breakertest.ErrBoom)
	require.True(t, again)
	require.NoError(t, because)
}

func TestSeamGroupEvictions(t *testing.T) {
	g := tenant(t, breaker.MaxKeys(2))
	for i, key := range []string{"a", "b", "a", "c", "d"} {
		g.Get(key)
		require.EqualValues(t, max(0, i-2), seamEvictions(g))
	}
}
