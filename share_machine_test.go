package breaker

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// OnStoreOf puts each circuit on the Store that make gives for the circuit's clock; it must come after WithClock.
func OnStoreOf(make func(Clock) Store, opts ...StoreOption) Option {
	return fixedOption("Store", func(d *draft) { WithStore(make(d.clock), opts...).apply(d) })
}

// Sibling makes another circuit of the same name with the same configuration, but hooks of its own.
func Sibling(c *Circuit, h Hooks) (*Circuit, error) {
	d := c.load().draft
	d.hooks, d.faults = []Hooks{h}, nil
	return newCircuit(c.name, &d)
}

// The pure machine as a circuit on a store uses it: it follows a ledger, which moves it and gives the slots, or acts by
// itself while the store is away. Breadth first through every state within small bounds.

// shWorld is a machine, what is out, and who gives the slots.
type shWorld struct {
	m     machine
	own   bool // the store is away: one probe at a time
	calls []shCall
	stay  int
}

type shCall struct {
	pass  pass
	stay  int
	given bool // its slot is the store's
}

const (
	shTimeout = 2
	shLease   = 2
	shSlots   = 2
)

var (
	shAsked = policy{successThreshold: 2, openTimeout: shTimeout, lease: shLease, ramp: 1}
	shAlone = policy{successThreshold: 2, probes: 1, openTimeout: shTimeout, lease: shLease, ramp: 1}
)

func (w *shWorld) policy() *policy {
	if w.own {
		return &shAlone
	}
	return &shAsked
}

func (w *shWorld) key() string {
	m := &w.m
	k := fmt.Sprint(m.state, m.mode, min(m.opens, 2), m.progress, m.credit, min(m.now-m.since, 4), max(0, m.until-m.now), max(0, m.ramp-m.now), w.own)
	for _, end := range m.leases {
		k += fmt.Sprint(" l", max(0, end-m.now))
	}
	var calls []string
	for _, c := range w.calls {
		calls = append(calls, fmt.Sprint(" c", c.stay == w.stay, c.pass.epoch == m.epoch, c.pass.probe, max(0, c.pass.lease-m.now), c.given))
	}
	slices.Sort(calls)
	return k + strings.Join(calls, "")
}

func (w *shWorld) live() (n int) {
	for _, c := range w.calls {
		if c.stay == w.stay && c.pass.probe && c.pass.lease > w.m.now {
			n++
		}
	}
	return n
}

// next is the world after an event.
func (w *shWorld) next(e event, call int) (n shWorld, fx effects) {
	e.now = w.m.now + e.now
	n = *w
	n.m, fx = step(w.m, w.policy(), e)
	n.calls = append([]shCall(nil), w.calls...)
	if n.m.epoch != w.m.epoch {
		n.stay++
	}
	switch {
	case call >= 0:
		n.calls = slices.Delete(n.calls, call, call+1)
	case e.kind == eventAdmit && (fx.refused == admitted || fx.shadow):
		n.calls = append(n.calls, shCall{fx.pass, n.stay, e.slot != 0})
	}
	return n, fx
}

// check is what must hold after every event.
func (w *shWorld) check(n *shWorld, e event, call int, fx effects) error {
	m, old := &n.m, &w.m
	slots := shSlots + 1 // the store's, and one of the circuit's own from before
	switch {
	case m.liveLeases() != n.live() || m.liveLeases() > slots:
		return fmt.Errorf("%d live leases, %d held", m.liveLeases(), n.live())
	case m.state != HalfOpen && len(m.leases) > 0:
		return fmt.Errorf("leases in %v", m.state)
	case m.epoch < old.epoch || m.now < old.now || m.since > m.now || m.until < m.since:
		return fmt.Errorf("time or epochs run backwards: %+v", *m)
	case m.progress > 0 && m.state != HalfOpen:
		return fmt.Errorf("progress in %v", m.state)
	}
	moved := m.epoch != old.epoch
	switch e.kind {
	case eventSettle:
		c := w.calls[call]
		if stale := c.stay != w.stay; stale != fx.late || stale && moved {
			return fmt.Errorf("a stale call decides: moved %v, late %v", moved, fx.late)
		}
		if e.decided && moved {
			return fmt.Errorf("a probe moved the machine that the store has judged")
		}
		if e.decided && m.progress != old.progress {
			return fmt.Errorf("a judged probe counts")
		}
	case eventAdmit:
		passed := fx.refused == admitted
		if passed && old.mode == Auto && old.state == Open && old.now < old.until {
			return fmt.Errorf("admitted in Open")
		}
		if passed && old.mode == ForcedOpen {
			return fmt.Errorf("admitted in ForcedOpen")
		}
		if passed && old.mode == Auto && old.state == HalfOpen && e.slot == 0 && (!w.own || w.live() > 0) {
			return fmt.Errorf("a probe without a slot")
		}
		if passed && m.state == HalfOpen && old.mode != ForcedClosed && (!fx.pass.probe || fx.pass.epoch != m.epoch) {
			return fmt.Errorf("no pass of a probe: %+v", fx.pass)
		}
		if e.slot != 0 && fx.pass.probe && old.state == HalfOpen && fx.pass.lease != e.slot {
			return fmt.Errorf("lease %d, given until %d", fx.pass.lease, e.slot)
		}
	case eventFollow:
		if m.state != e.to || !moved || len(m.leases) != 0 || m.progress != 0 {
			return fmt.Errorf("adopted %v: %+v", e.to, *m)
		}
		if (fx.moved == 1) != (old.state != e.to) || fx.moved > 1 {
			return fmt.Errorf("%d moves from %v to %v", fx.moved, old.state, e.to)
		}
		if e.to == Open && m.until != e.until {
			return fmt.Errorf("until %d, want %d", m.until, e.until)
		}
		if e.to == Closed && m.ramping() && (old.state == Closed || e.why == byOperator) {
			return fmt.Errorf("a ramp without a recovery")
		}
	}
	return nil
}

// recovers: with a healthy dependency and a store that answers, or none at all, the circuit closes.
func (w shWorld) recovers() error {
	w.calls = nil // they hang for good
	for _, own := range []bool{true, false} {
		r := w
		r.own = own
		r, _ = r.next(event{kind: eventSetMode, mode: Auto}, -1)
		for range 40 {
			if r.m.state == Closed {
				break
			}
			e := event{kind: eventAdmit, now: 1}
			if !own { // the store makes it half-open when it is due, and gives a slot
				if r.m.state == Open {
					if r.m.now+1 < r.m.until {
						r, _ = r.next(event{kind: eventSetMode, mode: Auto, now: 1}, -1)
						continue
					}
					r, _ = r.next(event{kind: eventFollow, now: 1, to: HalfOpen, why: byTimeout, since: r.m.now + 1}, -1)
				}
				e.slot = r.m.now + 1 + shLease
			}
			n, fx := r.next(e, -1)
			r = n
			if fx.refused != admitted || !fx.pass.probe {
				continue
			}
			last := len(r.calls) - 1
			r, _ = r.next(event{kind: eventSettle, pass: r.calls[last].pass, outcome: Success}, last)
		}
		if r.m.state != Closed {
			return fmt.Errorf("by itself %v: not closed, but %+v", own, r.m)
		}
	}
	return nil
}

// events lists what may happen to a world, and the call that each settles.
func (w *shWorld) events() (all []event, calls []int) {
	do := func(e event, call int) { all, calls = append(all, e), append(calls, call) }
	do(event{kind: eventSetMode, mode: w.m.mode, now: 1}, -1) // a tick
	for mode := Auto; mode <= Shadow; mode++ {
		do(event{kind: eventSetMode, mode: mode}, -1)
	}
	if len(w.calls) < 2 {
		if w.own || w.m.state == Closed || w.m.state == Open && !w.m.due(w.m.now) || w.m.state == HalfOpen || w.m.mode != Auto {
			do(event{kind: eventAdmit}, -1) // who is due and follows asks the store first
		}
		if w.m.state == HalfOpen && w.live() < shSlots {
			do(event{kind: eventAdmit, slot: w.m.now + 1}, -1)
			do(event{kind: eventAdmit, slot: w.m.now + shLease}, -1)
		}
	}
	for i, c := range w.calls {
		for _, o := range []Outcome{Success, Failure, Ignored} {
			do(event{kind: eventSettle, pass: c.pass, outcome: o, trip: true}, i)
			if c.given {
				do(event{kind: eventSettle, pass: c.pass, outcome: o, decided: true}, i)
			}
		}
	}
	do(event{kind: eventTrip}, -1)
	do(event{kind: eventReset}, -1)
	do(event{kind: eventOfferProbe}, -1)
	for to := Closed; to <= Open; to++ {
		for _, why := range []reason{byRemote, byOperator, byRecovery} {
			for _, ago := range []int64{0, 3} {
				do(event{kind: eventFollow, to: to, why: why, since: w.m.now - ago, until: w.m.now + 1, opens: uint32(ago)}, -1)
			}
		}
	}
	do(event{kind: eventFollow, to: Open, why: byRemote, since: w.m.now + 9, until: w.m.now + 9}, -1) // from a clock ahead
	return all, calls
}

func TestShareMachineExhaustively(t *testing.T) {
	type reached struct {
		w      shWorld
		parent int
		by     event
	}
	start := shWorld{m: machine{epoch: 1}}
	queue := []reached{{w: start, parent: -1}}
	known := map[string]bool{start.key(): true}
	transitions := 0
	for i := 0; i < len(queue); i++ {
		w := queue[i].w
		fail := func(e event, err error) {
			trace := ""
			for j := i; j >= 0; j = queue[j].parent {
				trace = fmt.Sprintf("\n  %+v by itself %v: %+v", queue[j].by, queue[j].w.own, queue[j].w.m) + trace
			}
			t.Fatalf("%v\nafter %s\n  %+v", err, trace, e)
		}
		reach := func(n shWorld, e event) {
			if k := n.key(); !known[k] {
				known[k] = true
				queue = append(queue, reached{n, i, e})
			}
		}
		if err := w.recovers(); err != nil {
			fail(event{}, err)
		}
		away := w
		away.own = !w.own
		reach(away, event{})
		all, calls := w.events()
		for j, e := range all {
			transitions++
			n, fx := w.next(e, calls[j])
			if err := w.check(&n, e, calls[j], fx); err != nil {
				fail(e, err)
			}
			reach(n, e)
		}
		if len(queue) > 400_000 {
			t.Fatal("too many states")
		}
	}
	t.Logf("%d states, %d transitions", len(queue), transitions)
}
