package breaker_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

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
			bothHubs(t, func(w *world, f *faulty) {
				var errs []error
				hook := breaker.WithHooks(breaker.Hooks{StoreError: func(err error) { errs = append(errs, err) }})
				c, err := breaker.NewCircuit("c", breaker.WithStore(&odd{f, watch}), hook)
				require.NoError(w, err)
				require.NoError(w, c.Run(w.Context(), func(context.Context) error { return nil }))
				w.rest()
				if name == "panics" {
					require.Len(w, errs, 1)
					require.ErrorContains(w, errs[0], "no watch")
					require.Contains(w, c.Snapshot().Shared.LastError, "no watch")
				} else {
					require.Empty(w, errs)
				}
				require.NoError(w, c.Sync(w.Context()))
				require.NoError(w, c.Close())
				w.rest()
			})
		})
	}
	require.Equal(t, 2, stopped)
}

// A store that does not return is not asked again meanwhile, however long that takes and whoever wants it.
func TestShareHubOfAStoreThatDoesNotReturn(t *testing.T) {
	bubble(t, byDo, func(w *world) {
		f := newFaulty(w, false)
		var all []*breaker.Circuit
		for i := range 20 {
			all = append(all, breaker.Must(breaker.NewCircuit(fmt.Sprint("c", i), breaker.WithStore(f))))
		}
		before := inBubble()
		f.all(fault{wedges: true})
		for range 300 {
			for _, c := range all {
				_ = c.Run(w.Context(), func(context.Context) error { return errBoom })
			}
			_ = all[0].Sync(w.Context())
			w.add(time.Second)
		}
		require.LessOrEqual(w, inBubble()-before, 20)
		for _, c := range all {
			require.Equal(w, breaker.Open, c.State())
		}
		f.heal()
		w.add(time.Second)
		require.Equal(w, before, inBubble())
		for _, c := range all {
			require.True(w, c.Snapshot().Shared.Connected)
			require.NoError(w, c.Close())
		}
	})
}

// One that answers now and then is asked again, but what it does not return from has a bound.
func TestShareHubOfAStoreThatReadsButDoesNotReturn(t *testing.T) {
	bubble(t, byDo, func(w *world) {
		f := newFaulty(w, false)
		c := breaker.Must(breaker.NewCircuit("c", breaker.WithStore(f), breaker.WithFailureThreshold(1_000_000)))
		before := inBubble()
		f.only("report", fault{wedges: true})
		for range 1000 {
			_ = c.Run(w.Context(), func(context.Context) error { return errBoom })
			w.add(time.Second)
		}
		n := inBubble() - before
		require.Less(w, n, 300)
		require.Greater(w, n, 100, "it was tried again")
		f.heal()
		w.add(2 * time.Second)
		require.Equal(w, before, inBubble())
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
	bubble(t, byDo, func(w *world) {
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
				_ = bad[i].Run(w.Context(), func(context.Context) error { return errBoom })
				if p, err := c.Acquire(w.Context()); err == nil {
					live = append(live, p)
				}
				s := c.Snapshot().Shared
				require.False(w, s.Alone, "%+v", s)
				require.True(w, s.Connected, "%+v", s)
			}
			require.LessOrEqual(w, len(live), 1)
			w.add(10 * time.Millisecond)
			for _, p := range live {
				p.Done(errBoom)
				probes++
			}
		}
		require.Greater(w, probes, 20)
		for i, s := range stores {
			require.False(w, bad[i].Snapshot().Shared.Connected)
			s.only("", false)
		}
		w.add(time.Second)
		for i := range stores {
			require.True(w, bad[i].Snapshot().Shared.Connected)
			require.NoError(w, good[i].Close())
			require.NoError(w, bad[i].Close())
		}
	})
}

// One that takes all others of an operation with it is found out.
func TestShareHubOneNameHangs(t *testing.T) {
	bubble(t, byDo, func(w *world) {
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
			w.add(100 * time.Millisecond)
		}
		require.Less(w, out, 99*50, "for 5s of 10 on the average")
		for i, c := range all {
			require.Equal(w, i != 7, c.Snapshot().Shared.Connected, "%d", i)
		}
		s.only("", false)
		w.add(time.Second)
		for _, c := range all {
			require.True(w, c.Snapshot().Shared.Connected)
			require.NoError(w, c.Close())
		}
	})
}

// A store that is away is known to be after a few names, and only one of all asks it.
func TestShareHubAllNamesAreAway(t *testing.T) {
	bubble(t, byDo, func(w *world) {
		f := newFaulty(w, false)
		var all []*breaker.Circuit
		for i := range 200 {
			all = append(all, breaker.Must(breaker.NewCircuit(fmt.Sprint("c", i), breaker.WithStore(f))))
		}
		w.add(time.Second)
		f.count()
		f.all(fault{hangs: true})
		_ = all[0].Run(w.Context(), func(context.Context) error { return errBoom })
		w.add(time.Second)
		require.LessOrEqual(w, f.total(), 8)
		for range 10 {
			began := w.elapsed()
			for _, c := range all {
				c.Trip(nil)
				_ = c.Run(w.Context(), func(context.Context) error { return errBoom })
				c.Reset()
			}
			require.Equal(w, began, w.elapsed(), "somebody waited")
			w.add(time.Second)
			require.LessOrEqual(w, f.total(), 4, "in a second")
		}
		f.heal()
		w.add(time.Second)
		for _, c := range all {
			require.True(w, c.Snapshot().Shared.Connected)
			require.NoError(w, c.Close())
		}
	})
}
