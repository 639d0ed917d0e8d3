package breaker

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/breakerkit/breaker/internal/window"
)

// A RetryOption configures retries: for [WithRetry] or [NewRetryPolicy]. Retry options do not depend on their order; of
// one given twice the later wins.
type RetryOption interface{ applyRetry(*retryDraft) }

type retryOption func(*retryDraft)

func (o retryOption) applyRetry(d *retryDraft) { o(d) }

// MaxRetries sets how many attempts may follow the first. Default 0 = off.
func MaxRetries(n int) RetryOption {
	return retryOption(func(d *retryDraft) { d.faults.between("MaxRetries", n, 0, maxCount); d.p.max = n })
}

// Exponential waits base before the first retry and twice as long before each next one, never longer than max, jitter
// included. Default 100ms, 10s. A base of 0 does not wait.
func Exponential(base, max time.Duration) RetryOption {
	return retryOption(func(d *retryDraft) {
		d.faults.notNegative("Exponential.Base", base)
		d.faults.positive("Exponential.Max", max)
		d.p.base, d.p.maxWait, d.p.constant = base, max, false
	})
}

// Constant waits t before every retry, and never longer than 10s, or t where that is longer, jitter included.
func Constant(t time.Duration) RetryOption {
	return retryOption(func(d *retryDraft) {
		d.faults.notNegative("Constant", t)
		d.p.base, d.p.maxWait, d.p.constant = t, max(t, defaultMaxWait), true
	})
}

// AddJitter lengthens every wait by a random part of itself, from 0 to share (0 to 1). Default 0.5.
func AddJitter(share float64) RetryOption {
	return retryOption(func(d *retryDraft) {
		if !(share >= 0 && share <= 1) {
			d.faults.add("AddJitter", "must be from 0 to 1, got %v", share)
		}
		d.p.jitter, d.p.full = share, false
	})
}

// FullJitter waits a random time from 0 to what the wait would be.
func FullJitter() RetryOption {
	return retryOption(func(d *retryDraft) { d.p.jitter, d.p.full = 0, true })
}

// NoJitter waits exactly what the backoff says.
func NoJitter() RetryOption {
	return retryOption(func(d *retryDraft) { d.p.jitter, d.p.full = 0, false })
}

// RetryIf is asked about each failed attempt whether it is worth another one. It can only say no: outcomes that are Ignored
// or Answered and rejections are never retried, and nothing is after the caller's context has ended. Default: every Failure
// is retried.
func RetryIf(f func(error) bool) RetryOption {
	return retryOption(func(d *retryDraft) {
		if f == nil {
			d.faults.add("RetryIf", "must not be nil")
		}
		d.p.retryIf = f
	})
}

// MaxElapsed bounds the time of all attempts and waits: a wait that would end later than t after the start of the first
// attempt is not begun. Default 0 = no bound but the context's.
func MaxElapsed(t time.Duration) RetryOption {
	return retryOption(func(d *retryDraft) { d.faults.notNegative("MaxElapsed", t); d.p.maxElapsed = t })
}

// RetryAfterCap bounds the wait that a dependency may ask for. A failure with a method RetryAfter() time.Duration,
// anywhere in its chain, makes the wait at least that long, up to t; one that asks for more ends the retries at once.
// Default: the backoff's max.
func RetryAfterCap(t time.Duration) RetryOption {
	return retryOption(func(d *retryDraft) { d.faults.notNegative("RetryAfterCap", t); d.p.hintMax, d.hintSet = t, true })
}

// WithBudget bounds the retries of all calls that share the budget; see [NewBudget]. Default none.
func WithBudget(b *Budget) RetryOption {
	return retryOption(func(d *retryDraft) {
		if b == nil {
			d.faults.add("Budget", "must not be nil")
		}
		d.p.budget = b
	})
}

// RetryClock gives a free-standing [Retry] another clock. A Breaker's retries use the circuit's (WithClock).
func RetryClock(c Clock) RetryOption {
	return retryOption(func(d *retryDraft) {
		if isNil(c) {
			d.faults.add("RetryClock", "must not be nil")
			c = nil
		}
		d.clock = c
	})
}

// RetryRand gives a free-standing [Retry] another source of jitter. A Breaker's retries use the circuit's (WithRand).
func RetryRand(f func() float64) RetryOption {
	return retryOption(func(d *retryDraft) {
		if f == nil {
			d.faults.add("RetryRand", "must not be nil")
		}
		d.p.rand, d.randSet = f, true
	})
}

// WithRetry repeats a failed call, as often as [MaxRetries] says. Each attempt passes the circuit and counts singly; a
// circuit that opens ends the retries without a wait, and the error is both the failure and the rejection (errors.Is). A
// wait that cannot end before the context's deadline is not begun, and the end of the context ends one at once: no attempt
// follows it. After more than one attempt the error is a [*RetryError].
func WithRetry(opts ...RetryOption) Option {
	return callOption("Retry", func(d *draft) {
		r := newRetryDraft(opts)
		if r.clock != nil {
			r.faults.add("RetryClock", "is not an option of WithRetry, which goes by WithClock")
		}
		if r.randSet {
			r.faults.add("RetryRand", "is not an option of WithRetry, which uses WithRand")
		}
		d.faults = append(d.faults, r.faults...)
		d.call.retry = &r.p
	})
}

// RetryPolicy is what [Retry] does between attempts. It is immutable and may be shared. The zero value never retries.
type RetryPolicy struct {
	p *retryPolicy
}

// NewRetryPolicy makes a policy for [Retry]. The error names every option that is wrong.
func NewRetryPolicy(opts ...RetryOption) (RetryPolicy, error) {
	r := newRetryDraft(opts)
	if err := r.faults.err(); err != nil {
		return RetryPolicy{}, err
	}
	r.p.time = newTimeline(r.clock)
	return RetryPolicy{&r.p}, nil
}

// Retry calls fn until it succeeds or the policy ends. Every error is retried but those that [DefaultClassifier] ignores,
// for as long as ctx lasts. It knows no circuit; put it around a Breaker's Do, whose rejections it does not retry, or use
// WithRetry, which ends as soon as the circuit opens. A Do whose circuit opened amid retries of its own has failed, and is
// retried when the circuit is due for a probe, if [RetryAfterCap] allows that long a wait.
func Retry[T any](ctx context.Context, policy RetryPolicy, fn func(context.Context) (T, error)) (v T, err error) {
	if err := precheck(ctx, fn == nil); err != nil {
		return v, err
	}
	p := policy.p
	if p == nil {
		return fn(ctx)
	}
	loop := p.begin(p.time)
	loop.ran()
	for attempts := 1; ; attempts++ {
		v, err = fn(ctx)
		if err == nil {
			return v, nil
		}
		if ctx.Err() != nil || DefaultClassifier(err) != Failure {
			return v, retried(attempts, err)
		}
		again, because := loop.again(ctx, nil, attempts, err)
		if !again {
			return v, retried(attempts, also(err, because))
		}
	}
}

// RetryError is the error of a call that failed after more than one attempt. It unwraps to the last attempt's error.
type RetryError struct {
	Attempts int // how often the function ran
	Err      error
}

func (e *RetryError) Error() string {
	return fmt.Sprintf("breaker: failed after %d attempts: %v", e.Attempts, e.Err)
}

func (e *RetryError) Unwrap() error { return e.Err }

// retried wraps the error of a call in a RetryError if there was more than one attempt.
func retried(attempts int, err error) error {
	if attempts < 2 || err == nil {
		return err
	}
	return &RetryError{Attempts: attempts, Err: err}
}

// also returns an error that is both err and because, in one line.
func also(err, because error) error {
	if because == nil {
		return err
	}
	return &twoErrors{err, because}
}

// twoErrors is how a call failed, and why there was no further attempt.
type twoErrors struct{ err, because error }

func (e *twoErrors) Error() string   { return fmt.Sprintf("%v; not retried: %v", e.err, e.because) }
func (e *twoErrors) Unwrap() []error { return []error{e.err, e.because} }

const defaultMaxWait = 10 * time.Second

type retryDraft struct {
	p       retryPolicy
	hintSet bool
	randSet bool
	clock   Clock
	faults  faults
}

func newRetryDraft(opts []RetryOption) *retryDraft {
	d := &retryDraft{p: retryPolicy{base: 100 * time.Millisecond, maxWait: defaultMaxWait, jitter: 0.5, rand: rand.Float64}}
	for _, o := range opts {
		if o == nil {
			d.faults.add("RetryOption", "must not be nil")
			continue
		}
		o.applyRetry(d)
	}
	if !d.hintSet {
		d.p.hintMax = d.p.maxWait
	}
	return d
}

// retryPolicy is the retries of a call. It is immutable.
type retryPolicy struct {
	max        int
	base       time.Duration
	maxWait    time.Duration
	constant   bool
	jitter     float64 // the greatest part of the wait to add
	full       bool
	retryIf    func(error) bool
	maxElapsed time.Duration
	hintMax    time.Duration
	budget     *Budget
	time       *timeline      // of a free-standing policy
	rand       func() float64 // of a free-standing policy
}

func (p *retryPolicy) draw() float64 { return unit(p.rand()) }

// backoff is the wait before the n-th retry. random is a random number from [0, 1).
func (p *retryPolicy) backoff(n int, random float64) time.Duration {
	d := float64(p.base)
	if !p.constant {
		d = math.Ldexp(d, n-1) // base * 2^(n-1), +Inf rather than an overflow
	}
	d = min(d, float64(p.maxWait))
	if p.full {
		d *= random
	} else {
		d *= 1 + p.jitter*random
	}
	if d >= float64(p.maxWait) {
		return p.maxWait
	}
	return time.Duration(d)
}

// retryLoop is one call's retries.
type retryLoop struct {
	p     *retryPolicy
	time  *timeline
	began int64
}

// counts reports whether calls must be counted, or their start known, before anything has failed.
func (p *retryPolicy) counts() bool { return p != nil && (p.budget != nil || p.maxElapsed > 0) }

// begin starts a call. A nil policy never retries.
func (p *retryPolicy) begin(t *timeline) retryLoop {
	if p == nil {
		return retryLoop{}
	}
	l := retryLoop{p: p, time: t}
	if p.maxElapsed > 0 {
		l.began = t.now()
	}
	return l
}

// ran counts a call towards those that the budget allows retries for. Rejected calls are not counted.
func (l *retryLoop) ran() {
	if l.p != nil && l.p.budget != nil {
		l.p.budget.call(l.time.read())
	}
}

// again decides after the n-th attempt failed with err whether there will be another one, and waits for it. If not,
// because is why, if the caller should be told. c is the circuit that the attempts pass, if any: if it is open, there
// is no wait and no further attempt. Its Retry hooks are called.
func (l *retryLoop) again(ctx context.Context, c *Circuit, n int, err error) (again bool, because error) {
	p := l.p
	if n > p.max || rejection(err) || p.retryIf != nil && !p.retryIf(err) {
		return false, nil
	}
	hint := retryAfter(err)
	if hint > p.hintMax {
		return false, nil
	}
	draw := p.draw
	if c != nil {
		if because := c.openRejection(); because != nil {
			return false, because
		}
		draw = c.load().draw
	}
	random := 0.0
	if p.jitter > 0 || p.full {
		random = draw()
	}
	wait := max(hint, p.backoff(n, random))
	if p.maxElapsed > 0 && duration(l.time.now()-l.began)+wait >= p.maxElapsed {
		return false, nil
	}
	if !l.time.fits(ctx, wait) {
		return false, context.DeadlineExceeded
	}
	if p.budget != nil && !p.budget.retry(l.time.read()) {
		return false, nil
	}
	if c != nil {
		c.load().hookRetry(ctx, RetryEvent{Name: c.name, Attempt: n, Wait: wait, Err: err})
	}
	if err = l.time.sleep(ctx, wait); err == nil {
		err = ctx.Err() // both may have ended at once
	}
	return err == nil, err
}

// Budget bounds the retries of many calls together: within a window of time they may be no more than a ratio of the
// calls, plus a reserve for quiet times. It is safe for concurrent use and may be shared between breakers. Make one with
// NewBudget: the zero value allows no retry.
type Budget struct {
	ratio   float64
	reserve uint64
	length  time.Duration

	mu    sync.Mutex
	used  bool
	base  time.Time // of the first reading
	last  int64
	calls *window.Time // as successes; nil for the zero value
	spent retryWindow
}

// NewBudget makes a budget: at every retry, the period of the given length that ends with it has retries <= ratio*calls +
// reserve. Up to 128 instants of calls, and as many of retries, that is exact. Beyond, calls may count for up to 1/64 of the
// length less and retries for up to 1/64 longer, so that the bound holds all the same. ratio is 0 or more, reserve not
// negative, length above 0. Finagle's default is a ratio of 0.2 and 10 retries a second in reserve.
func NewBudget(ratio float64, reserve int, length time.Duration) (*Budget, error) {
	var f faults
	if !(ratio >= 0) || math.IsInf(ratio, 1) {
		f.add("Budget.Ratio", "must be 0 or more and finite, got %v", ratio)
	}
	f.between("Budget.Reserve", reserve, 0, maxCount)
	f.positive("Budget.Window", length)
	if err := f.err(); err != nil {
		return nil, err
	}
	return &Budget{ratio: ratio, reserve: uint64(reserve), length: length, calls: window.NewTime(length), spent: newRetryWindow(length)}, nil
}

// call counts one call.
func (b *Budget) call(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.calls != nil {
		b.calls.Add(b.sinceLocked(now), window.Success, false)
	}
}

// retry takes one retry out of the budget, if it allows one.
func (b *Budget) retry(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.calls == nil {
		return false
	}
	at := b.sinceLocked(now)
	calls := b.calls.Sums(at).OK
	earned := math.Round(b.ratio*float64(calls)*ppm) / ppm // 0.29 of 100 calls is 29, not 28.999999999999996
	if float64(b.spent.count(at))+1 > earned+float64(b.reserve) {
		return false
	}
	b.spent.add(at)
	return true
}

// sinceLocked turns a clock's reading into nanoseconds that never decrease. A reading that is earlier by more than the
// window means that the clock was set back, and time goes on from there. A smaller difference may come from calls that
// arrive out of order, or from several clocks, and counts as no time.
func (b *Budget) sinceLocked(now time.Time) int64 {
	if !b.used {
		b.used, b.base = true, now
	}
	at := int64(now.Sub(b.base))
	if b.last-at > int64(b.length) {
		b.base = now.Add(-duration(b.last))
	}
	b.last = max(b.last, at)
	return b.last
}

// retryWindow counts the retries of a window of time. Every instant gets a slice of its own while there is room; then those
// within the same 64th of the window are merged. A slice is as old as its youngest retry, unlike one of a timeWindow: a
// retry that were forgotten too early would be allowed twice.
type retryWindow struct {
	length, grain int64
	slices        []retrySlice // oldest first
	total         uint64
}

const maxRetrySlices = 128

type retrySlice struct {
	last int64
	n    uint64
}

func newRetryWindow(d time.Duration) retryWindow {
	return retryWindow{length: int64(d), grain: int64(d-1)/64 + 1}
}

// count is how many retries the window that ends at now holds. now never falls.
func (w *retryWindow) count(now int64) uint64 {
	gone := 0
	for gone < len(w.slices) && w.slices[gone].last <= now-w.length {
		w.total -= w.slices[gone].n
		gone++
	}
	w.slices = slices.Delete(w.slices, 0, gone)
	return w.total
}

// add counts a retry at an instant for which count has been asked.
func (w *retryWindow) add(now int64) {
	w.total++
	if n := len(w.slices); n > 0 && w.slices[n-1].last == now {
		w.slices[n-1].n++
		return
	}
	if len(w.slices) == maxRetrySlices {
		w.merge()
	}
	w.slices = append(w.slices, retrySlice{now, 1})
}

func (w *retryWindow) merge() {
	kept := w.slices[:1]
	for _, s := range w.slices[1:] {
		end := &kept[len(kept)-1]
		if s.last/w.grain == end.last/w.grain {
			end.last, end.n = s.last, end.n+s.n
			continue
		}
		kept = append(kept, s)
	}
	w.slices = kept
}
