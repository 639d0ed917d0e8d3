package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/breakerkit/breaker"
)

// Call is one operation of a history, with the times, in nanoseconds since the history's beginning, between which it took
// effect.
type Call struct {
	Client     int
	Op         any // see [Model.Do]
	Start, End int64
	Ledger     breaker.Ledger
	Err        error
}

// Name is the name of the ledger that the operation is about.
func (c Call) Name() string { return nameOf(c.Op) }

func nameOf(op any) string {
	switch op := op.(type) {
	case breaker.StoreReport:
		return op.Name
	case breaker.StoreMove:
		return op.Name
	case breaker.StoreAcquire:
		return op.Name
	case breaker.StoreVerdict:
		return op.Name
	case Read:
		return string(op)
	}
	panic(fmt.Sprintf("storetest: %T is no operation", op))
}

// Do carries out an operation of the kinds that [Model.Do] lists on a Store.
func Do(ctx context.Context, st breaker.Store, op any) (breaker.Ledger, error) {
	var replies []breaker.StoreReply
	switch op := op.(type) {
	case breaker.StoreReport:
		replies = st.Report(ctx, []breaker.StoreReport{op})
	case breaker.StoreMove:
		return st.Move(ctx, op)
	case breaker.StoreAcquire:
		return st.Acquire(ctx, op)
	case breaker.StoreVerdict:
		return st.Settle(ctx, op)
	case Read:
		replies = st.Read(ctx, []string{string(op)})
	default:
		panic(fmt.Sprintf("storetest: %T is no operation", op))
	}
	if len(replies) != 1 {
		return breaker.Ledger{}, errReplies
	}
	return replies[0].Ledger, replies[0].Err
}

// History is what several clients do at the same time, each on a Store of its own (which may be the same one), with each
// random operations on some names, which nobody must have used before. No time has to pass for any of it: leases and
// windows are long, open periods long or 0. The history is to be checked with [Step], name by name.
func History(ctx context.Context, clients []breaker.Store, names []string, each int, seed uint64) []Call {
	begun := time.Now()
	calls := make([][]Call, len(clients))
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i, st := range clients {
		wg.Go(func() {
			c := client{id: i, random: rand.New(rand.NewPCG(seed, uint64(i))), known: make(map[string]breaker.Ledger)}
			<-start
			for range each {
				call := Call{Client: i, Op: c.operation(names[c.random.IntN(len(names))])}
				call.Start = int64(time.Since(begun))
				call.Ledger, call.Err = Do(ctx, st, call.Op)
				call.End = int64(time.Since(begun))
				c.learn(call)
				calls[i] = append(calls[i], call)
			}
		})
	}
	close(start)
	wg.Wait()
	return slices.Concat(calls...)
}

// Step reports whether a ledger is what an operation of a [History] may have returned, given how the model stands, and
// returns how it stands then. It has the form that linearizability checkers ask for.
func Step(m Model, op any, got breaker.Ledger) (bool, Model) {
	next, want := m.Do(op, Moment{Clock: got.Clock})
	return still(got) == still(want), next
}

// client thinks up operations that have a chance of success: it goes by what it has last seen.
type client struct {
	id     int
	n      int
	random *rand.Rand
	known  map[string]breaker.Ledger
	tokens []probeToken
}

type probeToken struct {
	name  string
	epoch uint64
	token string
}

var historyShapes = []breaker.StoreShape{
	{Window: 1000 * time.Hour, Failures: 3, Reporters: 2, Config: "windowed"},
	{Failures: 4, Config: "plain"},
}

func (c *client) operation(name string) any {
	c.n++
	l := c.known[name]
	epoch := l.Epoch
	if c.random.IntN(10) == 0 {
		epoch -= min(epoch, c.random.Uint64N(3))
	}
	shape := historyShapes[0]
	if c.random.IntN(8) == 0 {
		shape = historyShapes[1]
	}
	switch k := c.random.IntN(10); {
	case k < 4:
		letters := []string{"F", "FF", "S", "SF", "FSF", "FFSSS", "I", ""}
		b := outcomes(letters[c.random.IntN(len(letters))])
		b.Early = c.random.IntN(8) == 0
		return breaker.StoreReport{Name: name, Node: fmt.Sprint("n", c.id), Epoch: epoch, Shape: shape, Batch: b}
	case k < 6:
		m := breaker.StoreMove{Name: name, Shape: shape, From: epoch, To: breaker.State(c.random.IntN(3)), Openings: c.random.Uint32N(9)}
		if l.State == breaker.Closed && c.random.IntN(2) == 0 {
			m.Run = l.Run
		}
		if c.random.IntN(4) == 0 {
			m.For = 1000 * time.Hour
		}
		return m
	case k < 8:
		a := breaker.StoreAcquire{Name: name, Shape: shape, Epoch: epoch, Lease: 1000 * time.Hour, Limit: 2, Openings: 1}
		for i := range 1 + c.random.IntN(2) {
			a.Tokens = append(a.Tokens, fmt.Sprintf("c%dn%dt%d", c.id, c.n, i))
		}
		return a
	case k < 9 && len(c.tokens) > 0:
		return c.verdict(shape)
	}
	return Read(name)
}

// verdict settles a probe, and now and then one that is settled already.
func (c *client) verdict(shape breaker.StoreShape) breaker.StoreVerdict {
	i := c.random.IntN(len(c.tokens))
	t := c.tokens[i]
	if c.random.IntN(5) > 0 {
		c.tokens = slices.Delete(c.tokens, i, i+1)
	}
	return breaker.StoreVerdict{
		Name: t.name, Shape: shape, Epoch: t.epoch, Token: t.token, Outcome: breaker.Outcome(c.random.IntN(3)),
		Threshold: 2, Openings: c.random.Uint32N(9),
	}
}

func (c *client) learn(call Call) {
	if call.Err != nil {
		return
	}
	c.known[call.Name()] = call.Ledger
	if a, ok := call.Op.(breaker.StoreAcquire); ok && call.Ledger.Granted > 0 {
		for _, token := range a.Tokens {
			c.tokens = append(c.tokens, probeToken{a.Name, call.Ledger.Epoch, token})
		}
	}
}
