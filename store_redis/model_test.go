package storeredis_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/testenv"
	"github.com/breakerkit/breaker/store/storetest"
)

// The scripts do what the contract's model does, in every detail, while time passes: through many turns of the window, and
// past leases, open periods and the end of what is kept.
func TestModelInTime(t *testing.T) {
	guard(t)
	m := miniredis.RunT(t)
	s := open(t, miniClient(t, m))
	for seed := range uint64(testenv.Size(2, 3, 6)) {
		r := rand.New(rand.NewPCG(seed, 1))
		now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
		name := fmt.Sprint("c", seed)
		model, g := storetest.NewModel(), generator{Rand: r, name: name}
		for step := range 700 {
			if d := g.pause(); d > 0 {
				now = now.Add(d)
				m.FastForward(d)
			}
			m.SetTime(now)
			at := storetest.Moment{At: time.Duration(now.UnixNano()), Clock: uint64(now.UnixMilli())}
			_, g.ledger = model.Do(storetest.Read(name), at)
			op := g.operation()
			var want breaker.Ledger
			model, want = model.Do(op, at)
			got, err := storetest.Do(ctx, s, op)
			if err != nil || got != want {
				t.Fatalf("seed %d, step %d, %T%+v:\ngot  %+v, %v\nwant %+v", seed, step, op, op, got, err, want)
			}
		}
	}
}

// generator thinks up operations that have a chance of success.
type generator struct {
	*rand.Rand
	name   string
	ledger breaker.Ledger
	tokens []string
}

func (g *generator) pause() time.Duration {
	switch g.IntN(40) {
	case 0:
		return time.Duration(g.IntN(30)) * time.Second
	case 1:
		return 2 * time.Hour * time.Duration(g.IntN(2))
	}
	return time.Duration(g.IntN(700)) * time.Millisecond
}

func (g *generator) operation() any {
	shape := breaker.StoreShape{Window: 10 * time.Second, Failures: 4, Reporters: 2, Config: "windowed"}
	switch g.IntN(12) {
	case 0:
		shape = breaker.StoreShape{Failures: 3, Config: "plain"}
	case 1:
		shape.Failures = 6 // the same configuration in name
	}
	epoch := g.ledger.Epoch
	if epoch > 0 && g.IntN(12) == 0 {
		epoch += g.Uint64N(3) - 1
	}
	for_ := time.Duration(g.IntN(4000)) * time.Millisecond
	switch k := g.IntN(20); {
	case k < 11:
		return breaker.StoreReport{Name: g.name, Node: fmt.Sprint("n", g.IntN(4)), Epoch: epoch, Shape: shape, Batch: g.batch()}
	case k < 13:
		v := breaker.StoreMove{Name: g.name, Shape: shape, From: epoch, To: breaker.State(g.IntN(3)), For: for_, Openings: g.Uint32N(3)}
		if g.IntN(2) == 0 {
			v.Run = g.ledger.Run - g.Uint64N(2)
		}
		return v
	case k < 16:
		g.tokens = append(g.tokens, fmt.Sprint("t", g.IntN(1000)), fmt.Sprint("t", g.IntN(1000)))
		g.tokens = g.tokens[max(0, len(g.tokens)-6):]
		return breaker.StoreAcquire{Name: g.name, Shape: shape, Epoch: epoch, Tokens: g.tokens[len(g.tokens)-1-g.IntN(2):], Lease: for_, Limit: g.IntN(3), Openings: g.Uint32N(3)}
	case k < 19 && len(g.tokens) > 0:
		return breaker.StoreVerdict{
			Name: g.name, Shape: shape, Epoch: epoch, Token: g.tokens[g.IntN(len(g.tokens))], Outcome: breaker.Outcome(g.IntN(3)),
			Threshold: 1 + g.Uint32N(2), For: for_, Openings: g.Uint32N(3),
		}
	}
	return storetest.Read(g.name)
}

// batch is outcomes in some order, spread over the time before.
func (g *generator) batch() (b breaker.StoreBatch) {
	age := time.Duration(g.IntN(3000)) * time.Millisecond
	if g.IntN(8) == 0 {
		age *= 5
	}
	var run uint64
	var ok bool
	for range g.IntN(6) {
		c := breaker.StoreSlice{Age: age, Slow: g.Uint64N(2)}
		switch g.IntN(6) {
		case 0, 1:
			c.Successes = 1 + g.Uint64N(3)
			b.Trailing += c.Successes
			run, ok = 0, true
		case 5:
			c.Successes = 1 // it ends no run
			b.Early = true
		case 2:
			c.Ignored = 1
		default:
			c.Failures = 1
			run++
			b.Trailing = 0
			b.FailureAges = append(b.FailureAges, age)
			if !ok {
				b.Head++
			}
		}
		if g.IntN(300) == 0 {
			c.Ignored = 1 << 60
		}
		b.Longest = max(b.Longest, run)
		b.Slices = append(b.Slices, c)
		age -= time.Duration(g.Int64N(int64(age) + 1)).Truncate(time.Millisecond)
	}
	b.Tail, b.Early = run, b.Early && !ok
	return b
}
