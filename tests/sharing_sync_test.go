package tests

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/breakertest"
)

// One goroutine, whatever the number of circuits, and none once they have left.
func TestShareHubGoroutines(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		counts := make(map[int]int)
		for _, n := range []int{1, 1000} {
			f := newFaulty(w, false)
			before := breakertest.InBubble()
			var all []*breaker.Circuit
			for i := range n {
				all = append(all, breaker.Must(breaker.NewCircuit(fmt.Sprint("c", i), breaker.WithStore(f))))
			}
			w.Add(5 * time.Second)
			counts[n] = breakertest.InBubble() - before
			require.Equal(w, 1, f.watches)
			for _, c := range all {
				require.NoError(w, c.Close())
				require.NoError(w, c.Close())
			}
			synctest.Wait()
			require.Equal(w, before, breakertest.InBubble())
			require.Zero(w, f.watches)
			require.NoError(w, all[0].Run(w.Context(), func(context.Context) error { return nil }))
		}
		require.Equal(w, counts[1], counts[1000])
		require.LessOrEqual(w, counts[1], 2)
	})
}

// Circuits that nobody holds any more leave by themselves.
func TestShareHubOfForgottenCircuits(t *testing.T) {
	breakertest.Guard(t, breakertest.Patience, func() {
		f := newFaulty(&breakertest.World{T: t}, false)
		func() {
			for i := range 10 {
				c := breaker.Must(breaker.NewCircuit(fmt.Sprint("c", i), breaker.WithStore(f)))
				_ = c.Run(t.Context(), func(context.Context) error { return nil })
			}
		}()
		for {
			runtime.GC()
			f.mu.Lock()
			n := f.watches
			f.mu.Unlock()
			if n == 0 {
				return
			}
			runtime.Gosched()
		}
	})
}

func callGood(r *breakertest.Rig) { _ = r.Call(nil) }

// Pushes that are lost, late or out of order: polling sees to it, and nobody goes back.
func TestShareHubPushes(t *testing.T) {
	for _, how := range []string{"lost", "reversed", "twice"} {
		t.Run(how, func(t *testing.T) {
			breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
				f := newFaulty(w, false)
				fl := newFleet(w, f, 2, breaker.WithSuccessThreshold(1))
				a, b := fl.nodes[0], fl.nodes[1]
				fl.sync()
				f.pushes.set(how == "lost", how != "lost")
				for range 4 {
					a.C.Trip(nil)
					require.NoError(w, a.C.Sync(context.Background()))
					a.C.Reset()
					require.NoError(w, a.C.Sync(context.Background()))
				}
				a.C.Trip(nil)
				fl.sync()
				epoch := a.C.Snapshot().Epoch
				f.pushes.release(func(held []push) {
					if how == "reversed" {
						slices.Reverse(held)
					}
				})
				rest(w)
				callGood(b)
				w.Add(1100 * time.Millisecond)
				fl.states(breaker.Open)
				require.Equal(w, epoch, b.C.Snapshot().Epoch)
				var last uint64
				for _, e := range b.Events.List() {
					require.Greater(w, e.Epoch, last)
					last = e.Epoch
				}
			})
		})
	}
}

// Where pushes are lost, circuits in use are told by the poll, within a second.
func TestSharePollIsTheSafetyNet(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		f := newFaulty(w, false)
		fl := newFleet(w, f, 3, breaker.WithOpenTimeout(time.Hour))
		a, b, idle := fl.nodes[0], fl.nodes[1], fl.nodes[2]
		fl.sync()
		f.pushes.set(true, false)
		for range 5 {
			a.C.Trip(nil)
			require.NoError(w, a.C.Sync(context.Background()))
			waited := time.Duration(0)
			for b.C.State() != breaker.Open {
				require.LessOrEqual(w, waited, 1100*time.Millisecond)
				_ = b.Call(nil)
				w.Add(50 * time.Millisecond)
				waited += 50 * time.Millisecond
				rest(w)
			}
			a.C.Reset()
			require.NoError(w, a.C.Sync(context.Background()))
			for waited = 0; b.C.State() != breaker.Closed; waited += 50 * time.Millisecond {
				require.LessOrEqual(w, waited, 1100*time.Millisecond, "an open circuit is in use, whether it is called or not")
				w.Add(50 * time.Millisecond)
				rest(w)
			}
		}
		require.Equal(w, breaker.Closed, idle.C.State())
	})
}

// odd is a store that watches in its own way.
type odd struct {
	*faulty
	watch func(breaker.StoreWatcher) func()
}

func (o *odd) Watch(w breaker.StoreWatcher) func() { return o.watch(w) }

// A Watch that panics is told, one whose stop is missing or panics does no harm.
func TestShareHubOddWatches(t *testing.T) {
	stopped := 0
	for name, watch := range map[string]func(breaker.StoreWatcher) func(){
		"panics":      func(breaker.StoreWatcher) func() { panic("no watch") },
		"no stop":     func(breaker.StoreWatcher) func() { return nil },
		"stop panics": func(breaker.StoreWatcher) func() { return func() { stopped++; panic("no stop") } },
	} {
		t.Run(name, func(t *testing.T) {
			bothHubs(t, func(w *breakertest.World, f *faulty) {
				var errs []error
				hook := breaker.WithHooks(breaker.Hooks{StoreError: func(err error) { errs = append(errs, err) }})
				c, err := breaker.NewCircuit("c", breaker.WithStore(&odd{f, watch}), hook)
				require.NoError(w, err)
				require.NoError(w, c.Run(w.Context(), func(context.Context) error { return nil }))
				rest(w)
				if name == "panics" {
					require.Len(w, errs, 1)
					require.ErrorContains(w, errs[0], "no watch")
					require.Contains(w, c.Snapshot().Shared.LastError, "no watch")
				} else {
					require.Empty(w, errs)
				}
				require.NoError(w, c.Sync(w.Context()))
				require.NoError(w, c.Close())
				rest(w)
			})
		})
	}
	require.Equal(t, 2, stopped)
}

// A store that does not return is not asked again meanwhile, however long that takes and whoever wants it.
func TestShareHubOfAStoreThatDoesNotReturn(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		f := newFaulty(w, false)
		var all []*breaker.Circuit
		for i := range 20 {
			all = append(all, breaker.Must(breaker.NewCircuit(fmt.Sprint("c", i), breaker.WithStore(f))))
		}
		before := breakertest.InBubble()
		f.all(fault{wedges: true})
		for range 300 {
			for _, c := range all {
				_ = c.Run(w.Context(), func(context.Context) error { return breakertest.ErrBoom })
			}
			_ = all[0].Sync(w.Context())
			w.Add(time.Second)
		}
		require.LessOrEqual(w, breakertest.InBubble()-before, 20)
		for _, c := range all {
			require.Equal(w, breaker.Open, c.State())
		}
		f.heal()
		w.Add(time.Second)
		require.Equal(w, before, breakertest.InBubble())
		for _, c := range all {
			require.True(w, c.Snapshot().Shared.Connected)
			require.NoError(w, c.Close())
		}
	})
}

// One that answers now and then is asked again, but what it does not return from has a bound.
func TestShareHubOfAStoreThatReadsButDoesNotReturn(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		f := newFaulty(w, false)
		c := breaker.Must(breaker.NewCircuit("c", breaker.WithStore(f), breaker.WithFailureThreshold(1_000_000)))
		before := breakertest.InBubble()
		f.only("report", fault{wedges: true})
		for range 1000 {
			_ = c.Run(w.Context(), func(context.Context) error { return breakertest.ErrBoom })
			w.Add(time.Second)
		}
		n := breakertest.InBubble() - before
		require.Less(w, n, 300)
		require.Greater(w, n, 100, "it was tried again")
		f.heal()
		w.Add(2 * time.Second)
		require.Equal(w, before, breakertest.InBubble())
		require.True(w, c.Snapshot().Shared.Connected)
		require.NoError(w, c.Close())
	})
}

// partly is a store of whose ledgers some cannot be reached.
type partly struct {
	*faulty
	mu    sync.Mutex
	bad   string
	whole bool // an operation on several has no answer at all then, and takes its time
}

func (p *partly) only(name string, whole bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bad, p.whole = name, whole
}

func (p *partly) spoil(ctx context.Context, names []string, replies []breaker.StoreReply) []breaker.StoreReply {
	p.mu.Lock()
	bad, whole := p.bad, p.whole
	p.mu.Unlock()
	hit := slices.Contains(names, bad)
	if hit && whole {
		<-ctx.Done()
	}
	for i, name := range names {
		if hit && (whole || name == bad) {
			replies[i] = breaker.StoreReply{Err: errStore}
		}
	}
	return replies
}

func (p *partly) single(ctx context.Context, name string, l breaker.Ledger, err error) (breaker.Ledger, error) {
	r := p.spoil(ctx, []string{name}, []breaker.StoreReply{{Ledger: l, Err: err}})[0]
	return r.Ledger, r.Err
}

func (p *partly) Report(ctx context.Context, reports []breaker.StoreReport) []breaker.StoreReply {
	var names []string
	for i := range reports {
		names = append(names, reports[i].Name)
	}
	return p.spoil(ctx, names, p.faulty.Report(ctx, reports))
}

func (p *partly) Read(ctx context.Context, names []string) []breaker.StoreReply {
	return p.spoil(ctx, names, p.faulty.Read(ctx, names))
}

func (p *partly) Move(ctx context.Context, m breaker.StoreMove) (breaker.Ledger, error) {
	l, err := p.faulty.Move(ctx, m)
	return p.single(ctx, m.Name, l, err)
}

func (p *partly) Acquire(ctx context.Context, a breaker.StoreAcquire) (breaker.Ledger, error) {
	l, err := p.faulty.Acquire(ctx, a)
	return p.single(ctx, a.Name, l, err)
}

func (p *partly) Settle(ctx context.Context, v breaker.StoreVerdict) (breaker.Ledger, error) {
	l, err := p.faulty.Settle(ctx, v)
	return p.single(ctx, v.Name, l, err)
}

// A ledger that cannot be reached puts the circuits of its name out of step, and no others: the slots of these hold.
func TestShareHubOneNameIsAway(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		f := newFaulty(w, false)
		var good, bad []*breaker.Circuit
		var stores []*partly
		for range 3 { // processes
			s := &partly{faulty: newFaulty(w, false)}
			s.m = f.m
			stores = append(stores, s)
			good = append(good, breaker.Must(breaker.NewCircuit("good", breaker.WithStore(s), breaker.WithOpenTimeout(100*time.Millisecond), breaker.WithHalfOpenProbes(1), breaker.WithProbeLease(time.Minute))))
			bad = append(bad, breaker.Must(breaker.NewCircuit("bad", breaker.WithStore(s), breaker.WithFailureThreshold(1_000_000))))
		}
		for _, s := range stores {
			s.only("bad", false)
		}
		probes := 0
		good[0].Trip(nil)
		require.NoError(w, good[0].Sync(w.Context()))
		for range 1000 {
			var live []*breaker.Permit
			for i, c := range good {
				_ = bad[i].Run(w.Context(), func(context.Context) error { return breakertest.ErrBoom })
				if p, err := c.Acquire(w.Context()); err == nil {
					live = append(live, p)
				}
				s := c.Snapshot().Shared
				require.False(w, s.Alone, "%+v", s)
				require.True(w, s.Connected, "%+v", s)
			}
			require.LessOrEqual(w, len(live), 1)
			w.Add(10 * time.Millisecond)
			for _, p := range live {
				p.Done(breakertest.ErrBoom)
				probes++
			}
		}
		require.Greater(w, probes, 20)
		for i, s := range stores {
			require.False(w, bad[i].Snapshot().Shared.Connected)
			s.only("", false)
		}
		w.Add(time.Second)
		for i := range stores {
			require.True(w, bad[i].Snapshot().Shared.Connected)
			require.NoError(w, good[i].Close())
			require.NoError(w, bad[i].Close())
		}
	})
}

// One that takes all others of an operation with it is found out.
func TestShareHubOneNameHangs(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		s := &partly{faulty: newFaulty(w, false)}
		var all []*breaker.Circuit
		for i := range 100 {
			all = append(all, breaker.Must(breaker.NewCircuit(fmt.Sprint("c", i), breaker.WithStore(s))))
		}
		s.only("c7", true)
		out := 0
		for range 100 {
			for i, c := range all {
				_ = c.Run(w.Context(), func(context.Context) error { return nil })
				if i != 7 && !c.Snapshot().Shared.Connected {
					out++
				}
			}
			w.Add(100 * time.Millisecond)
		}
		require.Less(w, out, 99*50, "for 5s of 10 on the average")
		for i, c := range all {
			require.Equal(w, i != 7, c.Snapshot().Shared.Connected, "%d", i)
		}
		s.only("", false)
		w.Add(time.Second)
		for _, c := range all {
			require.True(w, c.Snapshot().Shared.Connected)
			require.NoError(w, c.Close())
		}
	})
}

// A store that is away is known to be after a few names, and only one of all asks it.
func TestShareHubAllNamesAreAway(t *testing.T) {
	breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
		f := newFaulty(w, false)
		var all []*breaker.Circuit
		for i := range 200 {
			all = append(all, breaker.Must(breaker.NewCircuit(fmt.Sprint("c", i), breaker.WithStore(f))))
		}
		w.Add(time.Second)
		f.count()
		f.all(fault{hangs: true})
		_ = all[0].Run(w.Context(), func(context.Context) error { return breakertest.ErrBoom })
		w.Add(time.Second)
		require.LessOrEqual(w, f.total(), 8)
		for range 10 {
			began := w.Elapsed()
			for _, c := range all {
				c.Trip(nil)
				_ = c.Run(w.Context(), func(context.Context) error { return breakertest.ErrBoom })
				c.Reset()
			}
			require.Equal(w, began, w.Elapsed(), "somebody waited")
			w.Add(time.Second)
			require.LessOrEqual(w, f.total(), 4, "in a second")
		}
		f.heal()
		w.Add(time.Second)
		for _, c := range all {
			require.True(w, c.Snapshot().Shared.Connected)
			require.NoError(w, c.Close())
		}
	})
}

// A circuit that is dropped while its hub lives on leaves it, with what it had to say said.
func TestShareForgottenCircuits(t *testing.T) {
	breakertest.Guard(t, breakertest.Patience, func() {
		for _, immediate := range []bool{true, false} {
			w := &breakertest.World{T: t}
			f := newFaulty(w, immediate)
			stays := breaker.Must(breaker.NewCircuit("stays", breaker.WithStore(f)))
			var p weak.Pointer[breaker.Circuit]
			func() {
				c := breaker.Must(breaker.NewCircuit("goes", breaker.WithStore(f), breaker.WithTrip(breaker.FailureRate(0.5, 10, breaker.Last(time.Minute)))))
				_ = c.Run(t.Context(), func(context.Context) error { return breakertest.ErrBoom })
				p = weak.Make(c)
			}()
			for p.Value() != nil {
				runtime.GC()
				runtime.Gosched()
			}
			for {
				f.mu.Lock()
				n := f.applied.Failures
				f.mu.Unlock()
				if n == 1 {
					break
				}
				runtime.Gosched()
			}
			require.Equal(t, 1, f.watches)
			require.NoError(t, stays.Close())
			w.End()
		}
	})
}

// Close reports what is left and waits no longer for that than the store may take; afterwards the circuit is on its own.
func TestShareClose(t *testing.T) {
	bothHubs(t, func(w *breakertest.World, f *faulty) {
		fl := newFleet(w, f, 2, breaker.WithStore(f, breaker.FlushEvery(time.Hour)), breaker.WithTrip(breaker.FailureRate(0.9, 1000, breaker.Last(3*time.Hour))), breaker.WithSuccessThreshold(1))
		a, b := fl.nodes[0], fl.nodes[1]
		a.Fails(1)
		fl.sync()
		a.Succeeds(10)
		a.Fails(1)
		var both sync.WaitGroup
		for range 4 {
			both.Go(func() { require.NoError(w, a.C.Close()) })
		}
		both.Wait()
		require.NoError(w, a.C.Close())
		require.NoError(w, b.C.Sync(context.Background()))
		require.EqualValues(w, 2, b.C.Snapshot().Counts.Failures)
		require.EqualValues(w, 10, b.C.Snapshot().Counts.Successes)

		f.count()
		require.NoError(w, a.C.Sync(context.Background()))
		require.NoError(w, a.C.Configure(breaker.WithFailureThreshold(2), breaker.WithTrip(breaker.ConsecutiveFailures(2))))
		a.Succeeds(1)
		a.Fails(2)
		a.Is(breaker.Open)
		a.Rejected()
		a.C.OfferProbe()
		a.Is(breaker.HalfOpen)
		a.Succeeds(1)
		a.Is(breaker.Closed)
		a.C.Trip(nil)
		a.Is(breaker.Open)
		w.Add(30 * time.Second)
		g := a.Gate()
		require.NoError(w, a.C.Close())
		g.Finish(nil)
		a.Is(breaker.Closed)
		a.C.Reset()
		a.Idle()
		b.Is(breaker.Closed)
		if n := f.count(); n["report"]+n["move"]+n["acquire"]+n["settle"] != 0 {
			w.Errorf("a closed circuit has used the store: %v", n)
		}
		require.True(w, a.C.Snapshot().Shared.Alone)
		b.C.Trip(nil)
		require.NoError(w, b.C.Sync(context.Background()))
		a.Is(breaker.Closed)
	})
}

func TestShareCloseInAnOutage(t *testing.T) {
	awayHubs(t, func(w *breakertest.World, f *faulty, ft fault) {
		fl := newFleet(w, f, 3)
		a, b, c := fl.nodes[0], fl.nodes[1], fl.nodes[2]
		a.Fails(1)
		fl.sync()
		f.all(ft)
		b.Fails(1)
		fl.atMost(func() { require.NoError(w, a.C.Close()) })
		fl.atMost(func() {
			var both sync.WaitGroup
			both.Go(func() { _ = b.C.Close() })
			both.Go(func() { _ = b.C.Close() })
			both.Wait()
		})
		w.Add(3 * time.Second)
		fl.atMost(func() { require.NoError(w, c.C.Close()) })
		fl.atMost(func() { _ = c.C.Close() })
		b.Succeeds(1)
		f.heal()
		w.Add(3 * time.Second)
		rest(w)
		require.Zero(w, f.watches)
	})
}
