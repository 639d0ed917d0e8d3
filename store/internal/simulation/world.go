// Package simulation runs a fleet of circuits on one store, in virtual time and one goroutine, from a seed. The network
// between them, the store, the clocks and the processes fail in every way that a real fleet's do; all the while it is
// checked that what circuits and store promise still holds.
package simulation

import (
	"container/heap"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/breakerkit/breaker"
)

// Result is what a run has come to.
type Result struct {
	Seed  uint64
	Err   error  // the first promise that was broken
	Hash  uint64 // of all steps
	Steps int
	Trace string // the last steps, where there was an error or it was asked for
	Stats Stats
}

// Stats says what a run, or many, consisted of.
type Stats struct {
	Nodes, Calls, Operations, Epochs                                  int
	Probes, Alone, Failed, Killed, Wipes, Failovers, Outages, Overlap int
	Answered, LateFailures, Disproved                                 int
}

// Add adds another run's.
func (s *Stats) Add(o Stats) {
	s.Nodes += o.Nodes
	s.Calls += o.Calls
	s.Operations += o.Operations
	s.Epochs += o.Epochs
	s.Probes += o.Probes
	s.Alone += o.Alone
	s.Failed += o.Failed
	s.Killed += o.Killed
	s.Wipes += o.Wipes
	s.Failovers += o.Failovers
	s.Outages += o.Outages
	s.Overlap += o.Overlap
	s.Answered += o.Answered
	s.LateFailures += o.LateFailures
	s.Disproved += o.Disproved
}

// World is a run.
type World struct {
	rng     *rand.Rand
	plan    plan
	now     time.Duration
	agenda  agenda
	serial  int
	trace   trace
	err     error
	server  *server
	names   []string
	nodes   []*node // those that live
	all     []*node
	joined  int
	owner   map[string]*node // by the name that it gives itself
	calls   []*running
	runs    [3]int // by name: failures in a row
	proofs  [3]proof
	spared  int
	failing float64 // how often the dependency fails

	reachable time.Duration // the store is, from then on
	healing   bool          // the faults have ended
	late      bool          // a late copy of a command is being carried out
	depth     int           // of what happens while something else is on its way
	budget    int           // operations left in this step
	stats     Stats
}

// Options says what of a run is wanted.
type Options struct {
	Traced bool // the last steps, in any case
	Node   int  // of them, only those of a node (from 1), and those of none; 0: all
}

// Run runs the fleet of a seed.
func Run(seed uint64, o Options) (r Result) {
	w := &World{trace: trace{only: o.Node - 1}, rng: rand.New(rand.NewPCG(seed, 0x5eed)), owner: make(map[string]*node)}
	w.plan = w.draw()
	w.names = []string{"a", "b", "c"}[:w.plan.names]
	w.server = newServer(w)
	w.live()
	r = Result{Seed: seed, Err: w.err, Hash: w.trace.hash, Steps: w.trace.n, Stats: w.stats}
	if o.Traced || w.err != nil {
		r.Trace = fmt.Sprintf("%+v\n%v", w.plan, &w.trace)
	}
	for _, n := range w.all {
		n.dead = true
		_ = n.circuit.Close()
	}
	return r
}

func (w *World) n(n int) int           { return w.rng.IntN(n) }
func (w *World) chance(p float64) bool { return p > 0 && w.rng.Float64() < p }

func (w *World) note(node int, what string, a, b uint64) {
	w.trace.add(record{w.now, node, what, a, b})
}

// fail notes the first promise that is broken.
func (w *World) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
		w.note(-1, "BROKEN: "+w.err.Error(), 0, 0)
	}
}

func (w *World) nameIndex(name string) int { return int(name[0] - 'a') }

func (w *World) byToken(token string) *node { return w.owner[token[:16]] }

// delay is how long something is on its way.
func (w *World) delay() time.Duration {
	return time.Duration(w.rng.ExpFloat64() * float64(200*time.Millisecond))
}

// The agenda.

type appointment struct {
	at     time.Duration
	serial int
	do     func()
}

type agenda []appointment

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].serial < a[j].serial
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(appointment)) }
func (a *agenda) Pop() any {
	last := len(*a) - 1
	x := (*a)[last]
	*a = (*a)[:last]
	return x
}

func (w *World) at(t time.Duration, do func()) {
	w.serial++
	heap.Push(&w.agenda, appointment{t, w.serial, do})
}

// pass lets time pass, and does what is due meanwhile.
func (w *World) pass(d time.Duration) {
	until := w.now + d
	for len(w.agenda) > 0 && w.agenda[0].at <= until && w.err == nil {
		next := heap.Pop(&w.agenda).(appointment)
		w.now = max(w.now, next.at)
		w.budget = 2000 + 20*len(w.nodes)
		next.do()
	}
	w.now = until
	w.budget = 2000 + 20*len(w.nodes)
}

// live is the whole run: some time with faults, and some without.
func (w *World) live() {
	w.budget = 1 << 20
	for range w.plan.nodes {
		w.join()
	}
	w.at(0, w.dependency)
	if w.plan.wipes {
		w.every(3*time.Second, w.loseAll)
	}
	if w.plan.failovers {
		w.every(2*time.Second, w.loseSome)
	}
	if w.plan.blackouts {
		w.every(3*time.Second, w.blackOut)
	}
	if w.plan.partitions {
		w.every(time.Second, w.part)
	}
	for i := 0; i < w.plan.steps && w.err == nil; i++ {
		w.pass(time.Duration(w.rng.ExpFloat64() * float64(w.plan.gap)))
		w.event()
	}
	if w.err == nil {
		w.heal()
	}
	w.stats.Nodes = w.joined
}

// every makes an appointment again and again, until the faults end.
func (w *World) every(d time.Duration, do func()) {
	w.at(w.now+time.Duration(w.rng.ExpFloat64()*float64(d)), func() {
		if !w.healing {
			do()
			w.every(d, do)
		}
	})
}

// event is one thing that happens.
func (w *World) event() {
	n := w.some()
	p := &w.plan
	switch r := w.n(100); {
	case r < 3 && p.hands:
		w.hand(n)
	case r < 5 && p.modes:
		n.mode = []breaker.Mode{breaker.Auto, breaker.Auto, breaker.ForcedOpen, breaker.ForcedClosed, breaker.Shadow}[w.n(5)]
		w.note(n.id, "mode "+n.mode.String(), 0, 0)
		n.circuit.SetMode(n.mode)
	case r < 7 && p.churn:
		w.churn(n)
	case r < 9 && p.jumps:
		jump := time.Duration(w.rng.NormFloat64() * float64([]time.Duration{10 * time.Millisecond, time.Second, time.Hour}[w.n(3)]))
		w.note(n.id, "JUMP", uint64(jump), 0)
		n.clock.off += jump
	case r < 11:
		w.note(n.id, "sync", 0, 0)
		if err := n.circuit.Sync(context.Background()); err != nil && p.calm {
			w.fail("node %d: Sync: %v", n.id, err)
		}
	default:
		w.call(n)
	}
	w.look(n)
	if w.trace.n%16 == 0 {
		w.look(w.nodes[w.n(len(w.nodes))])
	}
}

// some is a node by chance, often one of a few.
func (w *World) some() *node {
	if w.chance(0.6) {
		return w.nodes[w.n(min(8, len(w.nodes)))]
	}
	return w.nodes[w.n(len(w.nodes))]
}

// hand is an operator's.
func (w *World) hand(n *node) {
	switch w.n(3) {
	case 0:
		w.note(n.id, "Trip", 0, 0)
		n.circuit.Trip(errDependency)
	case 1:
		w.note(n.id, "Reset", 0, 0)
		n.circuit.Reset()
	case 2:
		w.note(n.id, "OfferProbe", 0, 0)
		n.circuit.OfferProbe()
	}
}

func (w *World) churn(n *node) {
	if w.chance(0.5) {
		n = w.join()
		w.note(n.id, "JOIN", 0, 0)
		return
	}
	w.note(n.id, "LEAVE", 0, 0)
	_ = n.circuit.Close()
	w.drop(n)
}

// dependency changes how the dependency does.
func (w *World) dependency() {
	if w.healing {
		return
	}
	w.failing = []float64{0, 0, 0.02, 0.3, 0.5, 0.9, 1}[w.n(7)]
	w.note(-1, "DEPENDENCY fails", uint64(100*w.failing), 0)
	w.at(w.now+time.Duration(w.rng.ExpFloat64()*float64(time.Duration(w.plan.steps)*w.plan.gap/6)), w.dependency)
}

// loseAll has the store forget everything.
func (w *World) loseAll() {
	if w.server.settled() {
		w.server.wipe()
		w.gap()
	}
}

// loseSome has the store forget the last writes.
func (w *World) loseSome() {
	if w.server.settled() {
		w.server.failover(1 + w.n(10))
		w.gap()
	}
}

// gap has all nodes lose their connections.
func (w *World) gap() {
	for _, n := range w.nodes {
		n.missed()
	}
}

// blackOut makes the store unreachable for all.
func (w *World) blackOut() {
	w.stats.Outages++
	w.reachable = w.now + 4*w.delay()
	w.note(-1, "BLACKOUT", uint64(w.reachable), 0)
	w.gap()
}

// part parts some nodes from the store.
func (w *World) part() {
	w.stats.Outages++
	until := w.now + 3*w.delay()
	share := w.rng.Float64()
	w.note(-1, "PARTITION", uint64(until), uint64(100*share))
	for _, n := range w.nodes {
		if w.chance(share) {
			n.reachable = until
			n.missed()
		}
	}
}

// overlap lets something else happen while an operation is on its way.
func (w *World) overlap() {
	if w.depth > 1 || w.healing || !w.chance(w.plan.overlaps) {
		return
	}
	w.depth++
	w.stats.Overlap++
	defer func() { w.depth-- }()
	w.note(-1, "meanwhile", uint64(w.depth), 0)
	if len(w.calls) > 0 && w.chance(0.5) {
		w.end(w.calls[w.n(len(w.calls))])
		return
	}
	n := w.some()
	switch {
	case n.busy > 0: // another call on it might wait for this operation
	case w.plan.hands && w.chance(0.1):
		w.hand(n)
	default:
		w.call(n)
	}
}

// heal ends all faults, and checks that the fleet recovers.
func (w *World) heal() {
	w.note(-1, "HEALING", 0, 0)
	w.healing, w.failing, w.reachable = true, 0, 0
	for _, n := range w.nodes {
		n.reachable = 0
		if n.mode != breaker.Auto {
			n.mode = breaker.Auto
			n.circuit.SetMode(n.mode)
		}
		n.handle.watcher.Resync()
		w.look(n)
	}
	w.recover()
	w.pass(10 * time.Second) // what is on its way arrives, and what windows hold leaves them, which may trip once more
	w.recover()
	w.pass(10 * time.Second)
	w.settle()
	w.settle()
	w.finish()
}

// recover makes calls until every circuit is closed and follows its ledger, and checks that this does not take long.
func (w *World) recover() {
	round := max(5*time.Millisecond, (w.plan.longest+w.plan.lease)/25)
	polled := w.now
	bound := w.now + time.Second + w.plan.longest*102/100 + 2*w.plan.lease + 8*round + 50*time.Millisecond
	for w.err == nil {
		w.pass(round)
		poll := w.now >= polled+time.Second
		if poll {
			polled = w.now
		}
		var last *node
		for _, n := range w.nodes {
			if s := n.circuit.Snapshot(); s.State != breaker.Closed || s.Shared.Alone {
				last = n
				if poll {
					n.handle.watcher.Resync()
				}
				w.call(n)
				w.look(n)
			}
		}
		if last == nil {
			return
		}
		if s := last.circuit.Snapshot(); w.now > bound && (s.State != breaker.Closed || s.Shared.Alone) {
			w.fail("node %d: is still %v, shared %+v, ledger %+v", last.id, s.State, *s.Shared, w.server.read(last.name))
		}
		for range 3 {
			w.call(w.some())
		}
	}
}

// settle has all nodes report and read, and checks that they agree with the ledger.
func (w *World) settle() {
	for _, n := range w.nodes {
		if w.err != nil {
			return
		}
		if err := n.circuit.Sync(context.Background()); err != nil {
			w.fail("node %d: Sync: %v", n.id, err)
		}
		w.look(n)
		s, l := n.circuit.Snapshot(), w.server.read(n.name)
		switch {
		case s.InFlight != 0:
			w.fail("node %d: %d in flight at the end", n.id, s.InFlight)
		case s.Shared.Alone || s.State != breaker.Closed:
			w.fail("node %d: is %v at the end, shared %+v", n.id, s.State, *s.Shared)
		case s.Shared.Epoch != l.Epoch && l.Epoch != 0:
			w.fail("node %d: is in epoch %d at the end, the ledger in %d", n.id, s.Shared.Epoch, l.Epoch)
		case !s.Shared.Connected || s.Shared.Foreign || w.plan.calm && s.Shared.Lost > 0:
			w.fail("node %d: shared %+v", n.id, *s.Shared)
		}
	}
}

// finish checks what was counted, and that every ledger comes to an end.
func (w *World) finish() {
	for i := range w.names {
		if w.err != nil {
			return
		}
		if w.plan.calm {
			var counted uint64
			for _, n := range w.all {
				if n.name == i {
					counted += n.counted
				}
			}
			if failed := w.server.names[i].failed; failed != counted {
				w.fail("%d failures were counted, %d entered", counted, failed)
			}
		}
	}
	if p := &w.plan; p.strict && !p.kills && !p.churn {
		for i := range w.names {
			for _, n := range w.server.names[i].moved {
				if n != 1 {
					w.fail("%d nodes took themselves for those that began an epoch", n)
				}
			}
		}
	}
	w.now += 26 * time.Hour
	for i := range w.names {
		if l := w.server.read(i); l.Epoch != 0 {
			w.fail("ledger has not expired: %+v", l)
		}
	}
}
