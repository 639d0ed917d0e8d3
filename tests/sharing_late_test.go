package tests

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/store"
)

// recorder is a Memory on a clock that is set by hand. It keeps the verdicts and the batches that it is sent.
type recorder struct {
	*store.Memory
	mu       sync.Mutex
	at       time.Time
	verdicts []breaker.StoreVerdict
	batches  []breaker.StoreBatch
	held     chan struct{} // while not nil, reports wait for its end
	waiting  chan struct{} // told of each report that waits
}

func newRecorder() *recorder {
	r := &recorder{at: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), waiting: make(chan struct{}, 100)}
	r.Memory = store.NewMemory(store.WithClock(r))
	return r
}

func (r *recorder) Now() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.at
}

func (r *recorder) After(time.Duration) <-chan time.Time { return nil }

func (r *recorder) pass(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at = r.at.Add(d)
}

func (r *recorder) Settle(ctx context.Context, v breaker.StoreVerdict) (breaker.Ledger, error) {
	r.mu.Lock()
	r.verdicts = append(r.verdicts, v)
	r.mu.Unlock()
	return r.Memory.Settle(ctx, v)
}

func (r *recorder) Report(ctx context.Context, reports []breaker.StoreReport) []breaker.StoreReply {
	r.mu.Lock()
	held := r.held
	for _, report := range reports {
		r.batches = append(r.batches, report.Batch)
	}
	r.mu.Unlock()
	if held != nil {
		r.waiting <- struct{}{}
		<-held
	}
	return r.Memory.Report(ctx, reports)
}

// slowRecorder is a recorder whose operations take time, so that outcomes gather meanwhile.
type slowRecorder struct{ *recorder }

func (slowRecorder) Immediate() bool        { return false }
func (slowRecorder) Timeout() time.Duration { return time.Hour }

var errHung = errors.New("hung, and failed")

// pair is two circuits of one name.
func (r *recorder) pair(t *testing.T, s breaker.Store, opts ...breaker.Option) [2]*breaker.Circuit {
	t.Helper()
	var both [2]*breaker.Circuit
	for i := range both {
		c, err := breaker.NewCircuit("dep", append([]breaker.Option{breaker.WithStore(s), breaker.WithClock(r),
			breaker.WithOpenTimeout(10 * time.Second), breaker.WithProbeLease(time.Second)}, opts...)...)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		both[i] = c
	}
	return both
}

// within10s is a context that keeps a call which waits for ever from holding up the tests.
func within10s(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func probe(t *testing.T, c *breaker.Circuit) *breaker.Permit {
	t.Helper()
	p, err := c.Acquire(within10s(t))
	require.NoError(t, err)
	return p
}

func bothAre(t *testing.T, both [2]*breaker.Circuit, want breaker.State) {
	t.Helper()
	for _, c := range both {
		require.Equal(t, want, c.State())
		require.False(t, c.Snapshot().Shared.Alone)
	}
}

// A probe that outlasts its lease and then fails opens the circuits again: or else a dependency that hangs for longer than
// the lease would keep them half-open for ever. The success of a probe that was admitted later makes it void.
func TestShareLateFailureOfAProbe(t *testing.T) {
	due := func(t *testing.T, opts ...breaker.Option) (*recorder, [2]*breaker.Circuit) {
		r := newRecorder()
		both := r.pair(t, r, opts...)
		both[0].Trip(nil)
		bothAre(t, both, breaker.Open)
		r.pass(10 * time.Second)
		return r, both
	}
	t.Run("opens all", func(t *testing.T) {
		r, both := due(t)
		first := probe(t, both[0])
		r.pass(2 * time.Second)
		second := probe(t, both[1])
		first.Settle(breaker.Failure, errHung)
		bothAre(t, both, breaker.Open)
		require.Equal(t, 10*time.Second, both[1].Snapshot().Until.Sub(r.Now()))
		second.Settle(breaker.Success, nil)
		first.Settle(breaker.Failure, errHung)
		bothAre(t, both, breaker.Open)
		require.NotEmpty(t, r.verdicts)
		require.Equal(t, breaker.Failure, r.verdicts[0].Outcome)
	})
	t.Run("after an earlier probe has succeeded", func(t *testing.T) {
		r, both := due(t, breaker.WithHalfOpenProbes(2), breaker.WithSuccessThreshold(2))
		first, second := probe(t, both[0]), probe(t, both[1])
		first.Settle(breaker.Success, nil)
		r.pass(2 * time.Second)
		second.Settle(breaker.Failure, errHung)
		bothAre(t, both, breaker.Open)
	})
	t.Run("after a later probe has succeeded", func(t *testing.T) {
		r, both := due(t, breaker.WithSuccessThreshold(2))
		first := probe(t, both[0])
		r.pass(2 * time.Second)
		probe(t, both[1]).Settle(breaker.Success, nil)
		first.Settle(breaker.Failure, errHung)
		bothAre(t, both, breaker.HalfOpen)
		probe(t, both[0]).Settle(breaker.Success, nil)
		bothAre(t, both, breaker.Closed)
	})
	t.Run("of two of one circuit whose leases end together", func(t *testing.T) {
		for _, firstFails := range []bool{true, false} {
			for _, before := range []time.Duration{0, 2 * time.Second} {
				r, both := due(t, breaker.WithHalfOpenProbes(2), breaker.WithSuccessThreshold(2))
				good, bad := probe(t, both[0]), probe(t, both[0])
				if firstFails {
					good, bad = bad, good
				}
				r.pass(before)
				good.Settle(breaker.Success, nil)
				r.pass(2 * time.Second)
				bad.Settle(breaker.Failure, errHung)
				bothAre(t, both, map[bool]breaker.State{true: breaker.HalfOpen, false: breaker.Open}[firstFails])
			}
		}
	})
}

// A Store is told of an Answered probe as of one that has succeeded.
func TestShareAnsweredProbe(t *testing.T) {
	r := newRecorder()
	both := r.pair(t, r, breaker.WithSuccessThreshold(1))
	both[0].Trip(nil)
	r.pass(10 * time.Second)
	probe(t, both[1]).Settle(breaker.Answered, errHung)
	bothAre(t, both, breaker.Closed)
	require.Len(t, r.verdicts, 1)
	require.Equal(t, breaker.Success, r.verdicts[0].Outcome)
}

// What is Answered counts as a success, but does not end the run of failures of all circuits.
func TestShareAnsweredEndsNoRun(t *testing.T) {
	end := func(t *testing.T, c *breaker.Circuit, outcomes string) {
		for _, o := range outcomes {
			probe(t, c).Settle(map[rune]breaker.Outcome{'S': breaker.Success, 'F': breaker.Failure, 'A': breaker.Answered}[o], errHung)
		}
	}
	t.Run("one by one", func(t *testing.T) {
		r := newRecorder()
		both := r.pair(t, r, breaker.WithFailureThreshold(3))
		end(t, both[0], "FA")
		end(t, both[1], "AFA")
		require.NoError(t, both[0].Sync(within10s(t)))
		require.EqualValues(t, 2, both[0].Snapshot().Counts.ConsecutiveFailures)
		end(t, both[0], "SA")
		end(t, both[1], "AFAF")
		bothAre(t, both, breaker.Closed)
		end(t, both[0], "A")
		require.NoError(t, both[0].Sync(within10s(t)))
		counts := both[0].Snapshot().Counts
		require.EqualValues(t, 8, counts.Successes)
		require.EqualValues(t, 2, counts.ConsecutiveFailures)
		end(t, both[0], "F")
		bothAre(t, both, breaker.Open)
	})
	for batch, want := range map[string]breaker.StoreBatch{
		"AFAFA":     {Head: 2, Tail: 2, Longest: 2, Early: true},
		"FAFSFAA":   {Head: 2, Tail: 1, Longest: 2},
		"AFSSA":     {Head: 1, Longest: 1, Trailing: 2},
		"FASAFAFAF": {Head: 1, Tail: 3, Longest: 3},
		"FSFASAASA": {Head: 1, Longest: 1, Trailing: 2},
	} {
		t.Run("in one batch: "+batch, func(t *testing.T) {
			r := newRecorder()
			c := r.pair(t, slowRecorder{r}, breaker.WithFailureThreshold(50))[0]
			r.mu.Lock()
			r.held = make(chan struct{})
			r.mu.Unlock()
			end(t, c, "F")
			select {
			case <-r.waiting:
			case <-time.After(10 * time.Second):
				t.Fatal("no report")
			}
			end(t, c, batch)
			r.mu.Lock()
			close(r.held)
			r.held = nil
			r.mu.Unlock()
			require.NoError(t, c.Sync(within10s(t)))
			r.mu.Lock()
			defer r.mu.Unlock()
			require.GreaterOrEqual(t, len(r.batches), 2)
			got := r.batches[1]
			var sums breaker.StoreSlice
			for _, s := range got.Slices {
				sums.Successes += s.Successes
				sums.Failures += s.Failures
			}
			var all breaker.StoreSlice
			for _, o := range batch {
				if o == 'F' {
					all.Failures++
				} else {
					all.Successes++
				}
			}
			require.Equal(t, all, sums)
			got.Slices, got.FailureAges = nil, nil
			require.Equal(t, want, got)
		})
	}
}
