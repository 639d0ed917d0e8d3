package pool_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/pool"
)

func TestBC110AtMostSoManyAreEjected(t *testing.T) {
	for _, s := range strategies {
		for n := 1; n <= 10; n++ {
			for _, percent := range []int{0, 10, 50, 67, 100} {
				t.Run(fmt.Sprintf("%v, %d members, %d %%", s, n, percent), func(t *testing.T) {
					guard(t, func() { ejected(t, s, n, percent) })
				})
			}
		}
	}
}

func ejected(t *testing.T, s pool.Strategy, n, percent int) {
	members := make([]pool.Member[string], n)
	for i := range members {
		members[i] = pool.Member[string]{Name: fmt.Sprint(i)}
	}
	r := newRig(t, s, members, r0, pool.MaxEjected(percent))
	for i := range n {
		r.fail[fmt.Sprint(i)] = errBoom
	}
	most := n * percent / 100
	for range 3 { // each call goes through all members, and all fail their threshold
		_, err := r.do()
		require.ErrorIs(t, err, errBoom)
		assert.Len(t, count(r.called()), n)
	}
	for i := range n {
		require.Equal(t, breaker.Open, r.state(fmt.Sprint(i)))
	}
	total := r.totals("0").Calls
	by := map[string]int{}
	for range 20 {
		_, err := r.do()
		assert.Equal(t, n > most, errors.Is(err, errBoom))
		assert.Equal(t, n == most, errors.Is(err, breaker.ErrOpen))
		for name, times := range count(r.called()) {
			by[name] += times
		}
	}
	assert.Len(t, by, n-most, "the others keep receiving traffic")
	for _, times := range by {
		assert.Equal(t, 20, times)
	}
	assert.Equal(t, total, r.totals("0").Calls, "calls past a circuit are not counted")
	assert.Zero(t, r.totals("0").Rejected)
	if n == most {
		return
	}
	clear(r.fail) // it was the caller's own fault; now everything is well
	who := r.good(1)[0]
	assert.Equal(t, breaker.HalfOpen, r.state(who), "a success offers a probe")
	for range 10 * n {
		r.good(1)
	}
	assert.Equal(t, breaker.Closed, r.state(who))
	if s != pool.Failover {
		out := 0
		for i := range n {
			if r.state(fmt.Sprint(i)) == breaker.Open {
				out++
			}
		}
		assert.Equal(t, most, out, "before their time, those that may be out stay out")
	}
}

func TestBC110OneAfterTheOther(t *testing.T) {
	for _, s := range strategies {
		r := newRig(t, s, names("a", "b", "c", "d"), r0, pool.MaxEjected(67))
		for _, n := range []string{"a", "b", "c", "d"} {
			r.fail[n] = errBoom
		}
		for i, n := range []string{"d", "b", "a", "c"} {
			r.open(n)
			_, _ = r.do()
			assert.Len(t, count(r.called()), 4-min(2, i+1), "%v: %d are open", s, i+1)
		}
	}
}

func TestMaxEjectedAndModes(t *testing.T) {
	r := newRig(t, pool.RoundRobin, names("a", "b"), r0, pool.MaxEjected(0))
	r.p.Circuit("a").SetMode(breaker.ForcedOpen)
	assert.Equal(t, map[string]int{"b": 4}, count(r.good(4)), "an operator's word holds")
	r.open("a", "b")
	assert.Equal(t, map[string]int{"b": 4}, count(r.good(4)))
	r.p.Circuit("a").SetMode(breaker.Auto)
	assert.Len(t, count(r.good(4)), 2)
}

func TestMaxEjectedHalfOpenGetsItsProbesOnly(t *testing.T) {
	r := newRig(t, pool.RoundRobin, names("a"), r0, pool.MaxEjected(0))
	r.open("a")
	r.p.Circuit("a").OfferProbe()
	g := r.gate()
	assert.Equal(t, []string{"a"}, g.start(1))
	_, err := r.do()
	require.ErrorIs(t, err, breaker.ErrOpen)
	g.finish()
}

func TestMaxEjectedMovesOnAndClassifies(t *testing.T) {
	r := newRig(t, pool.Failover, names("a", "b"), r0, pool.WithBreaker(breaker.WithIgnore(errClient)), pool.MaxEjected(0))
	r.open("a")
	r.fail["a"] = errBoom
	assert.Equal(t, []string{"b"}, r.good(1))
	assert.Equal(t, []string{"a", "b"}, r.called())
	r.fail["a"] = errClient
	_, err := r.do()
	assert.Equal(t, errClient, err)
	assert.Equal(t, []string{"a"}, r.called())
	assert.Equal(t, breaker.Open, r.state("a"), "only a success offers a probe")
}

// A call past a circuit that was answered, though not with what was asked for, says that the member is well.
func TestAnAnswerPastACircuitOffersAProbe(t *testing.T) {
	r := newRig(t, pool.Failover, names("a", "b"), pool.MaxEjected(0), pool.WithBreaker(breaker.WithClassifier(func(error) breaker.Outcome { return breaker.Answered })))
	r.fail["a"] = status(404)
	r.open("a")
	_, err := r.do()
	assert.Equal(t, status(404), err)
	assert.Equal(t, []string{"a"}, r.called(), "an answer does not move on")
	assert.Equal(t, breaker.HalfOpen, r.state("a"))
	r.open("a")
	r.acquire().Done(status(404))
	assert.Equal(t, breaker.HalfOpen, r.state("a"))
	r.open("a")
	r.acquire().Settle(breaker.Answered, nil)
	assert.Equal(t, breaker.HalfOpen, r.state("a"))
	r.open("a")
	r.acquire().Settle(breaker.Ignored, nil)
	assert.Equal(t, breaker.Open, r.state("a"))
}
