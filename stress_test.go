package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/breakertest"
	"github.com/breakerkit/breaker/internal/testenv"
)

// mdlTally is what the callers themselves have counted.
type mdlTally struct {
	ok, failed, ignored, panics, rejected atomic.Uint64
}

// mdlChain checks that transitions form a chain: each begins where the one before ended, under a higher epoch.
type mdlChain struct {
	mu     sync.Mutex
	at     breaker.State
	epoch  uint64
	events int
	faults []string
	last   chan breaker.Transition // gets the event whose cause is errMdlManual
}

func newMdlChain() *mdlChain { return &mdlChain{last: make(chan breaker.Transition, 1)} }

func (c *mdlChain) hooks() breaker.Hooks {
	return breaker.Hooks{StateChange: func(t breaker.Transition) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.events++
		if t.From != c.at || t.To == t.From || t.Epoch <= c.epoch {
			c.faults = append(c.faults, fmt.Sprintf("%v>%v epoch %d after %v epoch %d", t.From, t.To, t.Epoch, c.at, c.epoch))
		}
		c.at, c.epoch = t.To, t.Epoch
		if t.Cause == errMdlManual {
			c.last <- t
		}
	}}
}

// end closes and trips the circuit, waits for the event, and reports what was wrong with all of them.
func (c *mdlChain) end(t *testing.T, circuit *breaker.Circuit) {
	t.Helper()
	circuit.SetMode(breaker.Auto)
	circuit.Reset()
	circuit.Trip(errMdlManual)
	<-c.last
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, fault := range c.faults {
		t.Error(fault)
	}
	if s := circuit.Snapshot(); c.at != s.State || c.epoch != s.Epoch {
		t.Errorf("the events end in %v, epoch %d, the circuit stands in %v, epoch %d", c.at, c.epoch, s.State, s.Epoch)
	}
	t.Logf("%d transitions", c.events)
}

// mdlStress lets goroutines do everything at once to one circuit and counts what they do.
type mdlStress struct {
	b     *breaker.Breaker[int]
	c     *breaker.Circuit
	clock *mdlClock // nil: the time package
	n     mdlTally
}

func (s *mdlStress) settled(err error) {
	var open *breaker.OpenError
	switch {
	case err == nil:
		s.n.ok.Add(1)
	case errors.As(err, &open), err == breaker.ErrTooManyInFlight:
		s.n.rejected.Add(1)
	case err == errMdlIgnore:
		s.n.ignored.Add(1)
	default:
		s.n.failed.Add(1)
	}
}

func (s *mdlStress) panics(ctx context.Context) {
	ran := false
	defer func() {
		if recover() != nil {
			s.n.panics.Add(1)
			s.n.failed.Add(1)
		}
		if !ran {
			s.n.rejected.Add(1)
		}
	}()
	_ = s.c.Run(ctx, func(context.Context) error { ran = true; panic("stress") })
}

func (s *mdlStress) permit(ctx context.Context, err error) {
	p, rejection := s.c.Acquire(ctx)
	if rejection != nil {
		s.settled(rejection)
		return
	}
	runtime.Gosched()
	p.Done(err)
	p.Done(errMdlDown)
	s.settled(err)
}

func (s *mdlStress) call(ctx context.Context, err error) {
	_, got := s.b.Do(ctx, func(context.Context) (int, error) { return 1, err })
	s.settled(got)
}

func (s *mdlStress) operate(r *rand.Rand) {
	switch r.IntN(12) {
	case 0:
		s.c.Trip(errMdlDown)
	case 1:
		s.c.Reset()
	case 2:
		s.c.OfferProbe()
	case 3:
		s.c.SetMode(breaker.Mode(r.IntN(4)))
	case 4, 5:
		s.c.SetMode(breaker.Auto)
	case 6:
		if err := s.c.Configure(breaker.WithHalfOpenProbes(1 + r.IntN(3))); err != nil {
			panic(err)
		}
	case 7:
		_ = s.c.State()
	case 8:
		_ = s.c.Ready()
	default:
		if n := s.c.Snapshot().InFlight; n < 0 {
			panic(fmt.Sprintf("%d in flight", n))
		}
	}
}

func (s *mdlStress) work(seed uint64, operations int) {
	ctx := context.Background()
	r := rand.New(rand.NewPCG(seed, 7))
	for range operations {
		switch n := r.IntN(100); {
		case n < 50:
			s.call(ctx, nil)
		case n < 65:
			s.call(ctx, errMdlDown)
		case n < 70:
			s.call(ctx, errMdlIgnore)
		case n < 73:
			s.panics(ctx)
		case n < 80:
			s.permit(ctx, nil)
		case n < 85:
			s.permit(ctx, errMdlDown)
		case n < 92:
			if s.clock != nil {
				s.clock.pass(time.Duration(r.IntN(500)) * time.Microsecond)
			}
		default:
			s.operate(r)
		}
	}
}

// check compares the circuit's totals with what its callers have counted.
func (s *mdlStress) check(t *testing.T) {
	t.Helper()
	snap := s.c.Snapshot()
	n := snap.Totals
	want := breaker.Totals{Successes: s.n.ok.Load(), Failures: s.n.failed.Load(), Ignored: s.n.ignored.Load(),
		Rejected: s.n.rejected.Load(), Panics: s.n.panics.Load(), Late: n.Late, Slow: n.Slow}
	want.Calls = want.Successes + want.Failures + want.Ignored
	if fmt.Sprintf("%+v", n) != fmt.Sprintf("%+v", want) {
		t.Errorf("totals\n got %+v\nwant %+v", n, want)
	}
	if snap.InFlight != 0 || snap.Probes != 0 {
		t.Errorf("%d in flight and %d probes with no call out", snap.InFlight, snap.Probes)
	}
	if counted := snap.Counts.Successes + snap.Counts.Failures + snap.Counts.Ignored; counted > n.Calls {
		t.Errorf("the window holds %d calls of %d", counted, n.Calls)
	}
}

var mdlStressRules = map[string]mdlRule{
	"consecutive":         {kind: "consecutive", n: 3},
	"window of failures":  {kind: "consecutive", n: 3, last: time.Second},
	"FailureCount":        {kind: "count", n: 5, last: time.Second},
	"LastCalls":           {kind: "rate", n: 5, rate: 0.5, calls: 20},
	"Last":                {kind: "rate", n: 5, rate: 0.5, last: time.Second},
	"SlowCallRate":        {kind: "slow", n: 5, rate: 0.5, calls: 20, slow: time.Millisecond},
	"TripWhen, LastCalls": {kind: "when", n: 5, calls: 20},
}

func TestStressEverythingAtOnce(t *testing.T) {
	goroutines, operations := 100, testenv.Size(100, 200, 1000)
	for name, rule := range mdlStressRules {
		for _, injected := range []bool{false, true} {
			for _, sharded := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, injected clock %v, sharded %v", name, injected, sharded), func(t *testing.T) {
					chain := newMdlChain()
					s := &mdlStress{}
					opts := append(rule.opts(), breaker.WithOpenTimeout(time.Millisecond), breaker.WithIgnore(errMdlIgnore), breaker.WithHooks(chain.hooks()))
					if injected {
						s.clock = newMdlClock()
						opts = append(opts, breaker.WithClock(s.clock))
					}
					s.b = breaker.Must(breaker.New[int]("stress", opts...))
					s.c = s.b.Circuit()
					if sharded {
						breaker.Shard(s.c)
					}
					breakertest.Guard(t, breakertest.Patience, func() { mdlTogether(goroutines, func(i int) { s.work(uint64(i), operations) }) })
					s.check(t)
					breakertest.Guard(t, breakertest.Patience, func() { chain.end(t, s.c) })
				})
			}
		}
	}
}

// mdlTogether runs f in n goroutines that begin at once, and waits for them.
func mdlTogether(n int, f func(i int)) {
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-begin
			f(i)
		})
	}
	close(begin)
	wg.Wait()
}

// The whole road: calls meet at the one cell, the circuit shards, nothing is lost on the way.
func TestStressSuccessesThatMeet(t *testing.T) {
	const goroutines = 8
	for name, rule := range mdlStressRules {
		t.Run(name, func(t *testing.T) {
			c := breaker.Must(breaker.NewCircuit("stress", rule.opts()...))
			n := testenv.Size(10_000, 50_000, 200_000)
			breakertest.Guard(t, breakertest.Patience, func() {
				mdlTogether(goroutines, func(int) {
					for range n {
						if err := c.Run(context.Background(), func(context.Context) error { return nil }); err != nil {
							panic(err)
						}
					}
				})
			})
			snap := c.Snapshot()
			if got, want := snap.Totals.Successes, uint64(goroutines*n); got != want || snap.Totals.Calls != want || snap.InFlight != 0 {
				t.Errorf("%d successes of %d, %d in flight (sharded %v)", got, want, snap.InFlight, breaker.Sharded(c))
			}
		})
	}
}

func TestStressRejectionsThatMeet(t *testing.T) {
	const goroutines = 8
	calls := testenv.Size(10_000, 50_000, 200_000)
	c := breaker.Must(breaker.NewCircuit("stress", breaker.WithOpenTimeout(time.Hour)))
	c.Trip(nil)
	breakertest.Guard(t, breakertest.Patience, func() {
		mdlTogether(goroutines, func(int) {
			for range calls {
				if err := c.Run(context.Background(), func(context.Context) error { return nil }); !errors.Is(err, breaker.ErrOpen) {
					panic(err)
				}
			}
		})
	})
	if s := c.Snapshot(); s.Totals.Rejected != goroutines*uint64(calls) || s.Totals.Calls != 0 || s.InFlight != 0 {
		t.Errorf("%v, want %d rejected", s, goroutines*calls)
	}
}

// BC-34: at the moment of opening up exactly as many calls run as there are slots.
func TestStressExactlyTheProbesRun(t *testing.T) {
	const callers, slots = 50, 2
	rounds := testenv.Size(100, 200, 1000)
	clk := newMdlClock()
	c := breaker.Must(breaker.NewCircuit("stress", breaker.WithClock(clk), breaker.WithFailureThreshold(3),
		breaker.WithSuccessThreshold(slots), breaker.WithHalfOpenProbes(slots), breaker.WithOpenTimeout(10*time.Second)))
	breakertest.Guard(t, 2*breakertest.Patience, func() {
		for round := range rounds {
			c.Trip(nil)
			clk.pass(10 * time.Second)
			permits := make([]*breaker.Permit, callers)
			mdlTogether(callers, func(i int) {
				p, err := c.Acquire(context.Background())
				if permits[i] = p; err != nil && !errors.Is(err, breaker.ErrTooManyProbes) {
					panic(err)
				}
			})
			ran := 0
			for _, p := range permits {
				if p != nil {
					ran++
				}
			}
			if s := c.Snapshot(); ran != slots || s.Probes != slots || s.State != breaker.HalfOpen {
				t.Fatalf("round %d: %d ran, want %d; %v", round, ran, slots, s)
			}
			mdlTogether(callers, func(i int) { permits[i].Done(nil) })
			if s := c.Snapshot(); s.State != breaker.Closed || s.InFlight != 0 {
				t.Fatalf("round %d: %v after good probes", round, s)
			}
		}
	})
}

// K25: however many failures arrive at once, the circuit opens once.
func TestStressOneTransition(t *testing.T) {
	const callers = 200
	for name, rule := range mdlStressRules {
		t.Run(name, func(t *testing.T) {
			if rule.kind == "slow" {
				rule = mdlRule{kind: "consecutive", n: callers}
			}
			for range 20 {
				var opened atomic.Int64
				c := breaker.Must(breaker.NewCircuit("stress", append(rule.opts(), breaker.WithHooks(breaker.Hooks{StateChange: func(e breaker.Transition) {
					if e.From != breaker.Closed || e.To != breaker.Open {
						panic(e.To)
					}
					opened.Add(1)
				}}))...))
				breakertest.Guard(t, breakertest.Patience, func() {
					var inside sync.WaitGroup
					inside.Add(callers)
					mdlTogether(callers, func(int) {
						_ = c.Run(context.Background(), func(context.Context) error {
							inside.Done()
							inside.Wait()
							return errMdlDown
						})
					})
				})
				s := c.Snapshot()
				if opened.Load() != 1 || s.State != breaker.Open || s.Totals.Failures != callers {
					t.Fatalf("%d openings; %v", opened.Load(), s)
				}
			}
		})
	}
}

// BC-56: a success between the failure that trips and the opening wins or loses, but never both.
func TestStressSuccessAgainstTrip(t *testing.T) {
	const threshold = 2
	rounds := testenv.Size(30_000, 50_000, 300_000)
	for _, sharded := range []bool{false, true} {
		t.Run(fmt.Sprintf("sharded %v", sharded), func(t *testing.T) {
			broken, trips := 0, 0
			var worst breaker.Transition
			c := breaker.Must(breaker.NewCircuit("stress", breaker.WithFailureThreshold(threshold), breaker.WithHooks(breaker.Hooks{
				StateChange: func(e breaker.Transition) {
					if e.To != breaker.Open {
						return
					}
					trips++
					if e.Counts.ConsecutiveFailures < threshold {
						broken++
						worst = e
					}
				},
			})))
			if sharded {
				breaker.Shard(c)
			}
			var stop atomic.Bool
			breakertest.Guard(t, breakertest.Patience, func() {
				mdlTogether(2, func(i int) {
					for i == 1 && !stop.Load() {
						if c.Run(context.Background(), func(context.Context) error { return nil }) != nil {
							runtime.Gosched()
						}
					}
					for range (1 - i) * rounds {
						_ = c.Run(context.Background(), func(context.Context) error { return errMdlDown })
						_ = c.Run(context.Background(), func(context.Context) error { return errMdlDown })
						c.Reset()
					}
					stop.Store(true)
				})
			})
			if broken > 0 {
				t.Errorf("%d of %d openings on a run that a success had broken: %+v", broken, trips, worst)
			}
			t.Logf("%d openings", trips)
		})
	}
}

// A success counts in the stay that admitted it, or as late; never in the next one.
func TestStressSuccessesOfAnEndedStay(t *testing.T) {
	rounds := testenv.Size(20_000, 30_000, 200_000)
	for _, sharded := range []bool{false, true} {
		t.Run(fmt.Sprintf("sharded %v", sharded), func(t *testing.T) {
			strays := uint64(0)
			c := breaker.Must(breaker.NewCircuit("stress", breaker.WithHooks(breaker.Hooks{StateChange: func(e breaker.Transition) {
				if e.From == breaker.Open { // nobody was admitted in that stay
					strays += e.Counts.Successes
				}
			}})))
			if sharded {
				breaker.Shard(c)
			}
			var stop atomic.Bool
			breakertest.Guard(t, breakertest.Patience, func() {
				mdlTogether(2, func(i int) {
					for i == 1 && !stop.Load() {
						_ = c.Run(context.Background(), func(context.Context) error { return nil })
					}
					for range (1 - i) * rounds {
						c.Trip(nil)
						c.Reset()
					}
					stop.Store(true)
				})
			})
			if strays > 0 {
				t.Errorf("%d successes were counted while the circuit was open", strays)
			}
		})
	}
}

// A circuit without a health check has no goroutine and asks its clock for no timer, whatever it goes through.
func TestStressNoGoroutineNoTimer(t *testing.T) {
	before := runtime.NumGoroutine()
	clk := newMdlClock()
	circuits := make([]*breaker.Circuit, 1000)
	for i := range circuits {
		trip := breaker.WithFailureThreshold(1)
		if i%2 == 1 {
			trip = breaker.WithTrip(breaker.FailureRate(0.5, 1, breaker.Last(time.Second)), breaker.FailureCount(1, time.Second))
		}
		circuits[i] = breaker.Must(breaker.NewCircuit("quiet", breaker.WithClock(clk), trip, breaker.WithRamp(time.Second), breaker.WithSuccessThreshold(1)))
	}
	run := func(err error) {
		for _, c := range circuits {
			_ = c.Run(context.Background(), func(context.Context) error { return err })
		}
	}
	run(nil)
	run(errMdlDown)
	run(nil) // rejected
	clk.pass(30 * time.Second)
	for _, c := range circuits {
		if s := c.State(); s != breaker.HalfOpen {
			t.Fatal(s)
		}
	}
	run(errMdlDown)
	clk.pass(30 * time.Second)
	run(nil)
	for _, c := range circuits {
		if s := c.Snapshot(); s.State != breaker.Closed {
			t.Fatal(s)
		}
	}
	breakertest.NoMoreThan(t, before)
	if clk.afters != 0 {
		t.Errorf("%d timers", clk.afters)
	}
	runtime.KeepAlive(circuits)
}

// However busy a circuit is, it knows what is in flight, if it has been looked at before; otherwise, what has started
// since it was.
func TestStressInFlightOfABusyCircuit(t *testing.T) {
	for _, looked := range []bool{true, false} {
		for _, sharded := range []bool{false, true} {
			t.Run(fmt.Sprintf("looked at %v, sharded %v", looked, sharded), func(t *testing.T) {
				ctx := context.Background()
				c := breaker.Must(breaker.NewCircuit("busy"))
				if sharded {
					breaker.Shard(c)
				}
				if looked {
					_ = c.Snapshot()
				}
				busy := func() {
					for range 200_000 {
						_ = c.Run(ctx, func(context.Context) error { return nil })
					}
				}
				busy()
				unseen := mdlPermits(t, c, 2)
				want := int64(0)
				if looked {
					want = 2
				}
				if got := c.Snapshot().InFlight; got != want {
					t.Errorf("%d in flight, want %d", got, want)
				}
				seen := mdlPermits(t, c, 3)
				busy()
				if got := c.Snapshot().InFlight; got != want+3 {
					t.Errorf("%d in flight, want %d", got, want+3)
				}
				if err := c.Configure(breaker.WithMaxInFlight(int(want) + 3)); err != nil {
					t.Fatal(err)
				}
				if _, err := c.Acquire(ctx); err != breaker.ErrTooManyInFlight {
					t.Errorf("one call too many: %v", err)
				}
				unseen[0].Done(nil)
				unseen[1].Done(errMdlDown)
				seen[0].Done(nil)
				seen[1].Done(errMdlDown)
				seen[2].Settle(breaker.Ignored, nil)
				if s := c.Snapshot(); s.InFlight != 0 || s.Totals.Calls != 400_005 {
					t.Errorf("at the end: %v", s)
				}
			})
		}
	}
}

// A bound given to a busy circuit that nobody has looked at holds for what starts from then on.
func TestStressBoundOfABusyCircuit(t *testing.T) {
	ctx := context.Background()
	c := breaker.Must(breaker.NewCircuit("busy"))
	for range 200_000 {
		_ = c.Run(ctx, func(context.Context) error { return nil })
	}
	if err := c.Configure(breaker.WithMaxInFlight(2)); err != nil {
		t.Fatal(err)
	}
	out := mdlPermits(t, c, 2)
	if _, err := c.Acquire(ctx); err != breaker.ErrTooManyInFlight {
		t.Errorf("one call too many: %v", err)
	}
	out[0].Done(nil)
	out[1].Done(errMdlDown)
	if s := c.Snapshot(); s.InFlight != 0 || s.Totals.Calls != 200_002 {
		t.Errorf("at the end: %v", s)
	}
}

func mdlPermits(t *testing.T, c *breaker.Circuit, n int) (all []*breaker.Permit) {
	t.Helper()
	for range n {
		p, err := c.Acquire(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	return all
}

func TestK24_SafeUnderConcurrency(t *testing.T) {
	for name, opts := range map[string][]breaker.Option{
		"default":       nil,
		"never trips":   {breaker.WithFailureThreshold(1 << 30)},
		"time window":   {breaker.WithTrip(breaker.FailureRate(0.9, 50, breaker.Last(time.Minute)))},
		"call window":   {breaker.WithTrip(breaker.FailureRate(0.9, 50, breaker.LastCalls(100)))},
		"max in flight": {breaker.WithMaxInFlight(10)},
		"slow calls":    {breaker.WithTrip(breaker.SlowCallRate(time.Hour, 0.5, 10, breaker.LastCalls(100)))},
		"user's trip":   {breaker.WithTrip(breaker.TripWhen(breaker.LastCalls(10), func(c breaker.Counts) bool { return c.Failures > 9 }))},
		"call hook":     {breaker.WithHooks(breaker.Hooks{Call: func(context.Context, breaker.CallEvent) {}})},
	} {
		t.Run(name, func(t *testing.T) {
			breakertest.BothClocks(t, func(w *breakertest.World) {
				hammer(w, w.Circuit(append(opts, breaker.WithOpenTimeout(time.Millisecond))...))
			})
		})
	}
}

// hammer makes 100 goroutines do 100 mixed things each, and checks that everything adds up.
func hammer(w *breakertest.World, r *breakertest.Rig) {
	var finished, rejected, failures, ignored, panics atomic.Uint64
	count := func(err error) {
		if errors.Is(err, breaker.ErrOpen) || errors.Is(err, breaker.ErrTooManyInFlight) {
			rejected.Add(1)
			return
		}
		finished.Add(1)
		if err != nil {
			failures.Add(1)
		}
	}
	ctx := context.Background()
	one := func(i int) {
		switch i % 8 {
		case 0, 1:
			count(r.C.Run(ctx, func(context.Context) error { return nil }))
		case 2:
			count(r.C.Run(ctx, func(context.Context) error { return breakertest.ErrBoom }))
		case 3:
			_, err := r.B.Do(ctx, func(context.Context) (int, error) { runtime.Gosched(); return 1, nil })
			count(err)
		case 4:
			p, err := r.C.Acquire(ctx)
			if err == nil {
				p.Done(nil)
				p.Done(breakertest.ErrBoom)
			}
			count(err)
		case 5:
			if breakertest.PanicOf(func() {
				count(r.C.Run(ctx, func(context.Context) error { panic("boom") }))
			}) != nil {
				panics.Add(1)
				failures.Add(1)
				finished.Add(1)
			}
		case 6:
			ctx, cancel := context.WithCancel(ctx)
			err := r.C.Run(ctx, func(ctx context.Context) error { cancel(); return ctx.Err() })
			cancel()
			if errors.Is(err, context.Canceled) {
				ignored.Add(1)
				finished.Add(1)
				return
			}
			count(err)
		case 7:
			_, _ = r.C.State(), r.C.Ready()
			_ = r.C.Snapshot()
			if w.Clk == nil {
				<-time.After(100 * time.Microsecond)
			}
		}
	}
	var all, looking sync.WaitGroup
	stop := make(chan struct{})
	looking.Go(func() { watch(r, stop) })
	for g := range 100 {
		all.Go(func() {
			for i := range 100 {
				one(g + i)
			}
		})
	}
	all.Wait()
	close(stop)
	looking.Wait()
	s := r.C.Snapshot()
	require.Equal(w, finished.Load(), s.Totals.Calls)
	require.Equal(w, failures.Load(), s.Totals.Failures)
	require.Equal(w, ignored.Load(), s.Totals.Ignored)
	require.Equal(w, panics.Load(), s.Totals.Panics)
	require.Equal(w, rejected.Load(), s.Totals.Rejected)
	require.Equal(w, s.Totals.Calls, s.Totals.Successes+s.Totals.Failures+s.Totals.Ignored)
	r.Idle()
}

// watch looks at a circuit under traffic until it is told to stop: whenever one looks, the numbers make sense.
func watch(r *breakertest.Rig, stop <-chan struct{}) {
	slots := int64(r.C.Config().HalfOpenProbes)
	var last breaker.Snapshot
	for {
		select {
		case <-stop:
			return
		default:
		}
		s := r.C.Snapshot()
		assert.GreaterOrEqual(r, s.InFlight, int64(0), "calls in flight")
		assert.LessOrEqual(r, s.Probes, slots)
		assert.GreaterOrEqual(r, s.Epoch, last.Epoch)
		assert.GreaterOrEqual(r, s.Totals.Calls, last.Totals.Calls)
		assert.GreaterOrEqual(r, s.Totals.Successes, last.Totals.Successes)
		assert.GreaterOrEqual(r, s.Totals.Failures, last.Totals.Failures)
		assert.GreaterOrEqual(r, s.Totals.Rejected, last.Totals.Rejected)
		assert.GreaterOrEqual(r, s.Totals.Late, last.Totals.Late)
		assert.Equal(r, s.Totals.Calls, s.Totals.Successes+s.Totals.Failures+s.Totals.Ignored)
		last = s
		if r.Clk == nil {
			<-time.After(100 * time.Microsecond) // a bubble's time passes only while everybody waits
		}
		runtime.Gosched()
	}
}

func TestE3_FiveTimeoutsSpareTheOthers(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		r := w.Circuit(breaker.WithTimeout(30 * time.Second))
		upstream := hang
		var inFlight atomic.Int64
		call := func() error {
			_, err := r.B.Do(context.Background(), func(ctx context.Context) (int, error) {
				r.Ran.Add(1)
				inFlight.Add(1)
				defer inFlight.Add(-1)
				return upstream(ctx)
			})
			return err
		}
		var first sync.WaitGroup
		for range 5 {
			first.Go(func() { assert.ErrorIs(w, call(), context.DeadlineExceeded) })
		}
		w.At(30 * time.Second)
		first.Wait()
		r.Is(breaker.Open)
		require.Equal(w, []string{"closed>open at 30s: threshold reached"}, r.Steps())

		var others sync.WaitGroup
		for range 4995 {
			others.Go(func() { assert.ErrorIs(w, call(), breaker.ErrOpen) })
		}
		others.Wait()
		require.Equal(w, 30*time.Second, w.Elapsed(), "rejections take no time")
		require.EqualValues(w, 5, r.Ran.Load())
		require.Zero(w, inFlight.Load())
		r.Idle()

		upstream = func(context.Context) (int, error) { return 1, nil }
		w.At(60 * time.Second)
		r.Is(breaker.HalfOpen)
		require.NoError(w, call())
		r.Is(breaker.HalfOpen)
		require.NoError(w, call())
		r.Is(breaker.Closed)
		totals := r.C.Snapshot().Totals
		require.EqualValues(w, 7, totals.Calls)
		require.EqualValues(w, 5, totals.Failures)
		require.EqualValues(w, 4995, totals.Rejected)
		for range 100 {
			require.NoError(w, call())
		}
	})
}
