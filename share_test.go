package breaker_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/store"
)

var errShared = errors.New("shared dependency failed")

type fleet struct {
	t     *testing.T
	clock *clock.Mock
	store *store.Memory
}

func newFleet(t *testing.T) *fleet {
	c := clock.NewMock()
	c.Set(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	m := store.NewMemory(store.WithClock(c))
	t.Cleanup(func() { _ = m.Close() })
	return &fleet{t, c, m}
}

func (f *fleet) node(opts ...breaker.Option) *breaker.Circuit {
	all := append([]breaker.Option{breaker.WithClock(f.clock), breaker.WithStore(f.store)}, opts...)
	c, err := breaker.NewCircuit("dep", all...)
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = c.Close() })
	return c
}

func failOn(c *breaker.Circuit, n int) {
	for range n {
		_ = c.Run(context.Background(), func(context.Context) error { return errShared })
	}
}

func okOn(c *breaker.Circuit) error {
	return c.Run(context.Background(), func(context.Context) error { return nil })
}

func TestSharedBasics(t *testing.T) {
	f := newFleet(t)
	var got []breaker.Transition
	a := f.node(breaker.WithHooks(breaker.Hooks{StateChange: func(tr breaker.Transition) { got = append(got, tr) }}))
	var gotB []breaker.Transition
	b := f.node(breaker.WithHooks(breaker.Hooks{StateChange: func(tr breaker.Transition) { gotB = append(gotB, tr) }}))
	failOn(a, 3)
	failOn(b, 1)
	assert.Equal(t, breaker.Closed, a.State())
	failOn(b, 1)
	assert.Equal(t, breaker.Open, a.State())
	assert.Equal(t, breaker.Open, b.State())
	t.Logf("%+v", got)
	t.Logf("%+v", gotB)
	t.Logf("%+v %+v", a.Snapshot(), a.Snapshot().Shared)
	f.clock.Add(30*time.Second - 1)
	require.ErrorIs(t, okOn(a), breaker.ErrOpen)
	f.clock.Add(1)
	assert.Equal(t, breaker.HalfOpen, a.State())
	require.NoError(t, okOn(a))
	assert.Equal(t, breaker.HalfOpen, b.State())
	t.Logf("%+v %+v", b.Snapshot(), b.Snapshot().Shared)
	require.NoError(t, okOn(b))
	assert.Equal(t, breaker.Closed, a.State())
	assert.Equal(t, breaker.Closed, b.State())
	for _, tr := range got {
		t.Logf("a %v->%v %v epoch %d remote %v cause %v until %v", tr.From, tr.To, tr.Reason, tr.Epoch, tr.Remote, tr.Cause, tr.Until)
	}
	for _, tr := range gotB {
		t.Logf("b %v->%v %v epoch %d remote %v cause %v", tr.From, tr.To, tr.Reason, tr.Epoch, tr.Remote, tr.Cause)
	}
}

func TestSharedProbes(t *testing.T) {
	f := newFleet(t)
	nodes := make([]*breaker.Circuit, 10)
	for i := range nodes {
		nodes[i] = f.node(breaker.WithSuccessThreshold(1), breaker.WithHalfOpenProbes(1))
	}
	failOn(nodes[0], 5)
	f.clock.Add(30 * time.Second)
	var wg sync.WaitGroup
	gate := make(chan struct{})
	ran := make(chan int, 100)
	rejected := make(chan error, 100)
	for i := range 40 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			err := nodes[i%10].Run(context.Background(), func(context.Context) error { ran <- i; <-gate; return nil })
			if err != nil {
				rejected <- err
			}
		}()
	}
	for range 39 {
		assert.ErrorIs(t, <-rejected, breaker.ErrTooManyProbes)
	}
	close(gate)
	wg.Wait()
	assert.Len(t, ran, 1)
	for _, n := range nodes {
		assert.Equal(t, breaker.Closed, n.State())
	}
}

func TestSharedTripReset(t *testing.T) {
	f := newFleet(t)
	a, b := f.node(), f.node()
	a.Trip(errShared)
	assert.Equal(t, breaker.Open, b.State())
	b.Reset()
	assert.Equal(t, breaker.Closed, a.State())
	a.Trip(errShared)
	b.OfferProbe()
	assert.Equal(t, breaker.HalfOpen, a.State())
	failOn(a, 4)
	assert.Equal(t, breaker.Open, b.State())
	require.NoError(t, a.Sync(context.Background()))
}

func TestSharedRun(t *testing.T) {
	f := newFleet(t)
	a, b := f.node(), f.node()
	okOn(b)
	failOn(a, 4)
	okOn(b)
	failOn(a, 4)
	assert.Equal(t, breaker.Closed, a.State())
	failOn(b, 1)
	assert.Equal(t, breaker.Open, a.State())
}
