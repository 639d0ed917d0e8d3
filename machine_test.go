package breaker

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/breakerkit/breaker/internal/testenv"
)

// The pure machine, run through every state that it can reach within small bounds: breadth first, so that the trace of
// a broken rule is a shortest one. Time is counted in periodDue. Two worlds that differ only in what happened long ago are
// one state (mdlKey), which makes the number of states finite.
//
// What a step must do is said twice: once in state.go, once in mdlWorld.want below, which knows of slots only what the
// calls that are out have been given, and of epochs only that there are stays.

const (
	mdlMaxCalls   = 3
	mdlMaxPlayers = 5 // what a key has room for
)

// mdlCall is a call that is out.
type mdlCall struct {
	pass pass
	stay int
}

// mdlWorld is a machine, what is out, and what the test itself keeps account of.
type mdlWorld struct {
	m      machine
	policy int // index of the policy in force
	calls  []mdlCall
	stay   int // stays so far
	series int // openings since the circuit last stayed closed for an open period
}

// mdlAction is one thing to do to a world.
type mdlAction struct {
	event     event
	call      int // settle: index of the call
	tick      bool
	configure bool
}

func (a mdlAction) String() string {
	e := a.event
	switch {
	case a.configure:
		return "configure"
	case a.tick:
		return "tick"
	case e.kind == eventAdmit:
		return "admit"
	case e.kind == eventSettle:
		return fmt.Sprintf("settle #%d %v trip=%v hint=%d", a.call, e.outcome, e.trip, e.hint)
	case e.kind == eventTrip:
		return fmt.Sprintf("Trip hint=%d", e.hint)
	case e.kind == eventReset:
		return "Reset"
	case e.kind == eventOfferProbe:
		return "OfferProbe"
	}
	return "SetMode " + e.mode.String()
}

// mdlKey is a world without what no step can tell apart.
type mdlKey struct {
	state         State
	mode          Mode
	policy        uint8
	opens         uint8
	progress      uint8
	age, until    int8
	ramp          int8
	credit        int32
	slots, outs   uint8
	leases, calls [mdlMaxPlayers]uint16
}

// mdlExplorer explores under one list of policies: the first to begin with, the others by configuration.
type mdlExplorer struct {
	policies []policy
	horizon  int64 // ages above it are one
	maxOpens uint32
	hints    []int64

	worlds      []mdlWorld
	parents     []int
	actions     []mdlAction
	index       map[mdlKey]int
	transitions int
	alive       map[mdlKey]bool
}

func newMdlExplorer(policies ...policy) *mdlExplorer {
	x := &mdlExplorer{policies: policies, maxOpens: 1, hints: []int64{0}, index: map[mdlKey]int{}, alive: map[mdlKey]bool{}}
	for _, p := range policies {
		x.horizon = max(x.horizon, p.openTimeout, p.ramp)
		if p.backoffFactor > 0 {
			x.maxOpens = 4
		}
	}
	return x
}

func (x *mdlExplorer) key(w *mdlWorld) mdlKey {
	m := &w.m
	k := mdlKey{state: m.state, mode: m.mode, policy: uint8(w.policy), progress: uint8(m.progress), credit: m.credit}
	k.opens = uint8(min(m.opens, x.maxOpens))
	switch m.state {
	case Closed:
		k.age = int8(min(m.now-m.since, x.horizon))
		k.ramp = int8(max(0, m.ramp-m.now))
	case Open:
		k.until = int8(max(0, m.until-m.now))
	case HalfOpen: // what it depends on is in its leases
	}
	k.slots, k.outs = uint8(len(m.leases)), uint8(len(w.calls))
	for i, end := range m.leases {
		k.leases[i] = uint16(max(0, end-m.now))
	}
	for i, c := range w.calls {
		k.calls[i] = mdlCallKey(w, c)
	}
	slices.Sort(k.calls[:len(w.calls)])
	return k
}

func mdlCallKey(w *mdlWorld, c mdlCall) uint16 {
	k := uint16(min(w.stay-c.stay, 2))<<8 | uint16(min(w.m.epoch-c.pass.epoch, 3))<<12
	if c.pass.probe {
		k |= 1<<7 | uint16(max(0, c.pass.lease-w.m.now))
	}
	return k
}

// actionsOf lists all that may happen in a world.
func (x *mdlExplorer) actionsOf(w *mdlWorld) (all []mdlAction) {
	do := func(e event) { e.now = w.m.now; all = append(all, mdlAction{event: e}) }
	all = append(all, mdlAction{tick: true, event: event{kind: eventSetMode, mode: w.m.mode, now: w.m.now + 1}})
	if len(x.policies) > 1 {
		all = append(all, mdlAction{configure: true})
	}
	if len(w.calls) < mdlMaxCalls {
		do(event{kind: eventAdmit, inFlight: int64(len(w.calls))})
	}
	seen := map[uint16]bool{}
	for i, c := range w.calls {
		if k := mdlCallKey(w, c); !seen[k] {
			seen[k] = true
			all = x.settlements(all, w, i)
		}
	}
	for _, hint := range x.hints {
		do(event{kind: eventTrip, hint: hint})
	}
	do(event{kind: eventReset})
	do(event{kind: eventOfferProbe})
	for mode := Auto; mode <= Shadow; mode++ {
		if mode != w.m.mode {
			do(event{kind: eventSetMode, mode: mode})
		}
	}
	return all
}

func (x *mdlExplorer) settlements(all []mdlAction, w *mdlWorld, i int) []mdlAction {
	for _, o := range []Outcome{Success, Failure, Ignored} {
		for _, trip := range []bool{false, true} {
			for _, hint := range x.hints {
				if hint > 0 && o != Failure {
					continue
				}
				e := event{kind: eventSettle, pass: w.calls[i].pass, outcome: o, trip: trip, hint: hint, now: w.m.now}
				all = append(all, mdlAction{event: e, call: i})
			}
		}
	}
	return all
}

// mdlWant is what a step must do.
type mdlWant struct {
	moves   []mdlMove
	refused refusal
	probe   bool // the call admitted holds a slot
	late    bool
	newStay bool  // Reset of a closed circuit
	series  int   // openings in the series afterwards
	until   int64 // of an opening
	closing bool  // by probes: a ramp begins
}

type mdlMove struct {
	to     State
	reason Reason
}

// live counts the slots that calls hold.
func (w *mdlWorld) live(now int64) (n int) {
	for _, c := range w.calls {
		if c.stay == w.stay && c.pass.probe && c.pass.lease > now {
			n++
		}
	}
	return n
}

// want says what an action must do.
func (w *mdlWorld) want(p *policy, a mdlAction) (want mdlWant) {
	want.series = w.series
	now := max(w.m.now, a.event.now)
	due := w.m.state == Open && now >= w.m.until
	switch a.event.kind {
	case eventAdmit:
		want.refused = w.wantRefused(p, a.event, now)
		pass := want.refused == admitted && w.m.mode != ForcedClosed
		if pass && due {
			want.moves = []mdlMove{{HalfOpen, ReasonTimeout}}
		}
		want.probe = pass && w.m.state != Closed
	case eventSettle:
		w.wantSettled(&want, p, a, now)
	case eventTrip:
		if due {
			want.moves = []mdlMove{{HalfOpen, ReasonTimeout}}
		}
		if due || w.m.state != Open {
			w.wantOpen(&want, p, a.event, now, ReasonManual)
		}
	case eventReset:
		want.series, want.newStay = 0, true
		if w.m.state != Closed {
			want.moves = []mdlMove{{Closed, ReasonManual}}
		}
	case eventOfferProbe:
		if w.m.state == Open && !due {
			want.moves = []mdlMove{{HalfOpen, ReasonHealthCheck}}
		}
	case eventSetMode:
	}
	return want
}

func (w *mdlWorld) wantRefused(p *policy, e event, now int64) refusal {
	share := 1.0
	if w.m.state == Closed && now < w.m.ramp {
		share = float64(now-w.m.since) / float64(w.m.ramp-w.m.since)
	}
	switch {
	case w.m.mode == ForcedClosed:
		return admitted
	case w.m.mode == ForcedOpen:
		return refusedForced
	case w.m.state == Open && now < w.m.until:
		return refusedOpen
	case w.m.state == Closed && p.maxInFlight > 0 && e.inFlight >= p.maxInFlight:
		return refusedInFlight
	case w.m.state == HalfOpen && w.live(now) >= p.probes:
		return refusedProbes
	case share < 1 && float64(w.m.credit)/ppm+share < 1:
		return refusedRamp
	}
	return admitted
}

func (w *mdlWorld) wantSettled(want *mdlWant, p *policy, a mdlAction, now int64) {
	c := w.calls[a.call]
	switch expired := now >= c.pass.lease; {
	case c.stay != w.stay:
		want.late = true
	case w.m.state == Closed && a.event.trip && w.m.mode != ForcedClosed:
		w.wantOpen(want, p, a.event, now, ReasonThreshold)
	case w.m.state != HalfOpen || !c.pass.probe:
	case a.event.outcome == Failure && !expired:
		w.wantOpen(want, p, a.event, now, ReasonProbeFailed)
	case a.event.outcome == Success && int(w.m.progress)+1 >= int(p.successThreshold):
		want.moves = []mdlMove{{Closed, ReasonRecovered}}
		want.closing = true
	}
}

func (w *mdlWorld) wantOpen(want *mdlWant, p *policy, e event, now int64, why Reason) {
	want.moves = append(want.moves, mdlMove{Open, why})
	if w.m.state == Closed && now-w.m.since >= p.openTimeout {
		want.series = 0
	}
	want.series++
	period := float64(p.openTimeout)
	if p.backoffFactor > 0 {
		for range want.series - 1 {
			period = min(period*p.backoffFactor, float64(p.backoffMax))
		}
	}
	want.until = now + max(int64(period), e.hint)
}

// next carries an action out and checks all that it did.
func (x *mdlExplorer) next(w *mdlWorld, a mdlAction) (mdlWorld, error) {
	n := mdlWorld{policy: w.policy, stay: w.stay}
	p := &x.policies[w.policy]
	if a.configure {
		n = *w
		n.policy = (w.policy + 1) % len(x.policies)
		return n, nil
	}
	want := w.want(p, a)
	var fx effects
	n.m, fx = step(w.m, p, a.event)
	n.series = want.series
	n.stay += len(want.moves)
	if want.newStay && len(want.moves) == 0 {
		n.stay++
	}
	n.calls = append(make([]mdlCall, 0, mdlMaxCalls+1), w.calls...)
	switch {
	case a.event.kind == eventSettle:
		n.calls = slices.Delete(n.calls, a.call, a.call+1)
	case a.event.kind == eventAdmit && (fx.refused == admitted || fx.shadow):
		n.calls = append(n.calls, mdlCall{fx.pass, n.stay})
	}
	for _, check := range []func() error{
		func() error { return mdlCheckMoves(w, &n, fx, want) },
		func() error { return mdlCheckStay(w, &n, fx, want, p, a) },
		func() error { return mdlCheckEvent(w, &n, fx, want, p, a) },
		func() error { return x.checkSlots(&n) },
		func() error { return mdlCheckTime(w, p, a, n.m, fx) },
	} {
		if err := check(); err != nil {
			return n, err
		}
	}
	return n, nil
}

func mdlSame(a, b machine) bool {
	return a.state == b.state && a.mode == b.mode && a.opens == b.opens && a.progress == b.progress && a.credit == b.credit &&
		a.epoch == b.epoch && a.now == b.now && a.since == b.since && a.until == b.until && a.ramp == b.ramp &&
		slices.Equal(a.leases, b.leases)
}

func TestMachineHasNoFieldThatTheModelMisses(t *testing.T) {
	if n := reflect.TypeFor[machine]().NumField(); n != 11 {
		t.Fatalf("machine has %d fields: teach mdlSame and mdlKey the new ones", n)
	}
}

// mdlCheckMoves: exactly the moves wanted, chained, under epochs that grow.
func mdlCheckMoves(w, n *mdlWorld, fx effects, want mdlWant) error {
	if int(fx.moved) != len(want.moves) {
		return fmt.Errorf("%d moves %+v, want %+v", fx.moved, fx.moves[:fx.moved], want.moves)
	}
	at, epoch := w.m.state, w.m.epoch
	for i, mv := range fx.moves[:fx.moved] {
		if mv.from != at || mv.to == at || mv.to != want.moves[i].to || reasons[mv.reason] != want.moves[i].reason {
			return fmt.Errorf("move %+v from %v, want %+v", mv, at, want.moves[i])
		}
		if mv.epoch <= epoch || mv.at != n.m.now {
			return fmt.Errorf("move %+v: epoch not above %d or time not %d", mv, epoch, n.m.now)
		}
		if mv.to == Open && mv.until != want.until {
			return fmt.Errorf("move %+v: until, want %d", mv, want.until)
		}
		at, epoch = mv.to, mv.epoch
	}
	if at != n.m.state {
		return fmt.Errorf("state %v, but moves end in %v", n.m.state, at)
	}
	switch {
	case fx.moved > 0 && n.m.epoch != epoch:
		return fmt.Errorf("epoch %d, but the last move says %d", n.m.epoch, epoch)
	case fx.moved == 0 && want.newStay && n.m.epoch <= w.m.epoch:
		return fmt.Errorf("epoch %d after %d: must grow", n.m.epoch, w.m.epoch)
	case fx.moved == 0 && !want.newStay && n.m.epoch != w.m.epoch:
		return fmt.Errorf("epoch %d after %d: must stay", n.m.epoch, w.m.epoch)
	}
	return nil
}

// mdlCheckStay: a new stay starts afresh; within one, its begin and its deadline stay what they are.
func mdlCheckStay(w, n *mdlWorld, fx effects, want mdlWant, p *policy, a mdlAction) error {
	m, old := &n.m, &w.m
	if m.now != max(old.now, a.event.now) {
		return fmt.Errorf("now %d after %d and an event at %d", m.now, old.now, a.event.now)
	}
	if m.epoch == old.epoch {
		if m.since != old.since || m.until != old.until || m.ramp != old.ramp {
			return fmt.Errorf("a deadline has moved within a stay: %+v after %+v", *m, *old)
		}
		return nil
	}
	ramp := m.now
	if want.closing {
		ramp += p.ramp
	}
	slots := 0
	if want.probe {
		slots = 1
	}
	if m.since != m.now || m.progress != 0 || m.credit != 0 || len(m.leases) != slots || m.state == Closed && m.ramp != ramp {
		return fmt.Errorf("a new stay begins with %+v", *m)
	}
	if m.state == Open && m.until != want.until {
		return fmt.Errorf("until %d, want %d", m.until, want.until)
	}
	return nil
}

// mdlCheckEvent: what the event itself was to give and to change.
func mdlCheckEvent(w, n *mdlWorld, fx effects, want mdlWant, p *policy, a mdlAction) error {
	expect := w.m // what may differ is copied from n; the rest must be as it was
	expect.now = n.m.now
	switch a.event.kind {
	case eventAdmit:
		return mdlCheckAdmit(w, n, fx, want, p, a)
	case eventSettle:
		if fx.late != want.late {
			return fmt.Errorf("late %v, want %v", fx.late, want.late)
		}
		c := w.calls[a.call]
		if fx.moved == 0 && !want.late && w.m.state == HalfOpen && c.pass.probe {
			expect.leases = n.m.leases // checkSlots counts them
			if a.event.outcome == Success {
				expect.progress++
			}
		}
	case eventSetMode:
		expect.mode = a.event.mode
	case eventReset:
		if n.m.opens != 0 {
			return fmt.Errorf("Reset has left %d openings in the series", n.m.opens)
		}
		expect = n.m
	}
	if len(want.moves) == 0 && !mdlSame(n.m, expect) {
		return fmt.Errorf("machine %+v, want %+v", n.m, expect)
	}
	if n.m.mode != expect.mode {
		return fmt.Errorf("mode %v, want %v", n.m.mode, expect.mode)
	}
	return nil
}

func mdlCheckAdmit(w, n *mdlWorld, fx effects, want mdlWant, p *policy, a mdlAction) error {
	if fx.refused != want.refused {
		return fmt.Errorf("refused %d, want %d", fx.refused, want.refused)
	}
	if shadow := fx.refused != admitted && w.m.mode == Shadow; fx.shadow != shadow {
		return fmt.Errorf("shadow %v, want %v", fx.shadow, shadow)
	}
	expect := w.m
	expect.now = n.m.now
	if w.m.state == Closed && n.m.now < w.m.ramp {
		expect.credit = n.m.credit
	}
	if want.probe {
		expect.leases = n.m.leases
	}
	if len(want.moves) == 0 && !mdlSame(n.m, expect) {
		return fmt.Errorf("machine %+v, want %+v", n.m, expect)
	}
	if fx.refused != admitted && !fx.shadow {
		return nil
	}
	wantPass := pass{epoch: n.m.epoch}
	if want.probe {
		wantPass = pass{epoch: n.m.epoch, probe: true, lease: n.m.now + p.lease}
	}
	if fx.pass != wantPass {
		return fmt.Errorf("pass %+v, want %+v", fx.pass, wantPass)
	}
	return nil
}

// checkSlots: the live leases are those of the calls that are out, no more, no less, and no more than there are slots.
func (x *mdlExplorer) checkSlots(n *mdlWorld) error {
	slots, threshold := 0, uint32(0)
	for _, p := range x.policies {
		slots, threshold = max(slots, p.probes), max(threshold, p.successThreshold)
	}
	m := &n.m
	if live, held := m.liveLeases(), n.live(m.now); live != held || held > slots || len(m.leases) > slots {
		return fmt.Errorf("%d live leases of %v at %d, %d held by calls, %d slots", live, m.leases, m.now, held, slots)
	}
	if !slices.IsSorted(m.leases) || m.state != HalfOpen && len(m.leases) > 0 {
		return fmt.Errorf("leases %v in %v", m.leases, m.state)
	}
	if m.progress > 0 && (m.state != HalfOpen || m.progress >= threshold) {
		return fmt.Errorf("progress %d in %v", m.progress, m.state)
	}
	if m.credit < 0 || m.credit >= ppm || m.credit > 0 && m.state != Closed {
		return fmt.Errorf("credit %d in %v", m.credit, m.state)
	}
	if m.until < m.since || m.since > m.now {
		return fmt.Errorf("since %d, until %d at %d", m.since, m.until, m.now)
	}
	return nil
}

// mdlCheckTime: an event from the past does what it does now, and time that passes bit by bit is time that passes at
// once.
func mdlCheckTime(w *mdlWorld, p *policy, a mdlAction, m machine, fx effects) error {
	e := a.event
	e.now = w.m.now - 1
	if w.m.epoch%2 == 0 {
		e.now = math.MinInt64
	}
	if rm, rfx := step(w.m, p, e); !a.tick && (!mdlSame(rm, m) || rfx != fx) {
		return fmt.Errorf("dated back to %d: %+v %+v, want %+v %+v", e.now, rm, rfx, m, fx)
	}
	e.now = a.event.now
	e.now += 2
	jm, jfx := step(w.m, p, e)
	slow, _ := step(w.m, p, event{kind: eventSetMode, mode: w.m.mode, now: w.m.now + 1})
	slow, sfx := step(slow, p, e)
	if !mdlSame(jm, slow) || jfx != sfx {
		return fmt.Errorf("2 periodDue later at once: %+v %+v, tick by tick: %+v %+v", jm, jfx, slow, sfx)
	}
	return nil
}

// explore visits every state and returns the first rule broken, with the way there.
func (x *mdlExplorer) explore() error {
	x.reach(mdlWorld{m: machine{epoch: 1}}, -1, mdlAction{})
	for i := 0; i < len(x.worlds); i++ {
		w := x.worlds[i]
		for _, a := range x.actionsOf(&w) {
			x.transitions++
			n, err := x.next(&w, a)
			if err != nil {
				return fmt.Errorf("%w\nafter:%s\n  %v", err, x.trace(i), a)
			}
			x.reach(n, i, a)
		}
		if err := errors.Join(mdlCheckReads(&w, &x.policies[w.policy]), x.checkRecovery(w)); err != nil {
			return fmt.Errorf("%w\nafter:%s", err, x.trace(i))
		}
	}
	return nil
}

func (x *mdlExplorer) reach(w mdlWorld, parent int, a mdlAction) {
	k := x.key(&w)
	if _, known := x.index[k]; known {
		return
	}
	x.index[k] = len(x.worlds)
	x.worlds = append(x.worlds, w)
	x.parents = append(x.parents, parent)
	x.actions = append(x.actions, a)
}

func (x *mdlExplorer) trace(i int) string {
	var steps []string
	for ; x.parents[i] >= 0; i = x.parents[i] {
		steps = append(steps, "\n  "+x.actions[i].String())
	}
	slices.Reverse(steps)
	return strings.Join(steps, "")
}

// mdlCheckReads: what readers are told comes true.
func mdlCheckReads(w *mdlWorld, p *policy) error {
	for ahead := range int64(4) {
		now := w.m.now + ahead
		want := w.m.state
		if want == Open && now >= w.m.until {
			want = HalfOpen
		}
		if got := w.m.stateAt(now); got != want || w.m.stateAt(now-9) != w.m.stateAt(w.m.now-1) {
			return fmt.Errorf("stateAt(%d) is %v, want %v", now, got, want)
		}
	}
	if w.m.mode != Auto || w.m.state == Closed {
		return nil
	}
	due := w.m.nextProbe()
	if due > w.m.now {
		if _, fx := step(w.m, p, event{kind: eventAdmit, now: due - 1}); fx.refused != refusedOpen && fx.refused != refusedProbes &&
			w.m.liveLeases() >= p.probes {
			return fmt.Errorf("next probe at %d, but one was admitted at %d", due, due-1)
		}
	}
	if _, fx := step(w.m, p, event{kind: eventAdmit, now: due}); (fx.refused != admitted || !fx.pass.probe) && w.m.liveLeases() <= p.probes {
		return fmt.Errorf("next probe at %d, but then %+v", due, fx)
	}
	return nil
}

// checkRecovery: with a healthy dependency and traffic, a circuit closes within what is left of the open period and the
// probes' time, however long a call takes, and whether the calls that are out come back or never do.
func (x *mdlExplorer) checkRecovery(w mdlWorld) error {
	p := &x.policies[w.policy]
	if w.m.mode == ForcedOpen || w.m.mode == ForcedClosed {
		w.m, _ = step(w.m, p, event{kind: eventSetMode, mode: Auto, now: w.m.now})
	}
	hang := w
	hang.calls = nil // for ever: only their leases are left of them
	k := x.key(&hang)
	if !x.alive[k] {
		for _, long := range []int64{0, 1, p.lease, p.lease + 2} {
			if err := mdlRecover(hang, p, long); err != nil {
				return fmt.Errorf("what is out hangs; %w", err)
			}
		}
		x.alive[k] = true
	}
	for i := range w.calls { // they all come back now
		w.m, _ = step(w.m, p, event{kind: eventSettle, pass: w.calls[i].pass, outcome: Success, now: w.m.now})
	}
	w.calls = nil
	if k := x.key(&w); !x.alive[k] {
		if live := w.m.liveLeases(); live != 0 {
			return fmt.Errorf("%d live leases with no call out", live)
		}
		if err := mdlRecover(w, p, p.lease+2); err != nil {
			return fmt.Errorf("what was out has come back; %w", err)
		}
	}
	return nil
}

// mdlRecover runs healthy traffic against a machine: at every tick as many calls as it takes, each lasting long.
func mdlRecover(w mdlWorld, p *policy, long int64) error {
	type running struct {
		pass pass
		ends int64
	}
	m := w.m
	deadline := mdlRecovery(&m, p, long)
	var out []running
	for now := m.now; now <= deadline; now++ {
		for range 2 * (p.probes + int(p.successThreshold)) { // calls that begin at this tick, each after those that end
			for len(out) > 0 && out[0].ends <= now {
				m, _ = step(m, p, event{kind: eventSettle, pass: out[0].pass, now: now})
				out = out[1:]
			}
			if m.state == Closed {
				return nil
			}
			var fx effects
			m, fx = step(m, p, event{kind: eventAdmit, inFlight: math.MaxInt64, now: now})
			if fx.refused == admitted {
				out = append(out, running{fx.pass, now + long})
			}
		}
	}
	return fmt.Errorf("calls of %d periodDue: not closed by %d, but %+v", long, deadline, m)
}

// mdlRecovery is when a machine must have closed: what is left of the open period, or of leases that hang, and then as
// many rounds of probes as it takes. A slot is free again when its call ends or its lease does.
func mdlRecovery(m *machine, p *policy, long int64) int64 {
	rounds := (int(p.successThreshold) + p.probes - 1) / p.probes
	deadline := m.now + int64(rounds-1)*min(long, p.lease) + long
	if m.state == Open {
		deadline += max(0, m.until-m.now)
	}
	if len(m.leases) > 0 {
		deadline += max(0, m.leases[len(m.leases)-1]-m.now)
	}
	return deadline
}

// mdlNamed is an exploration: one policy, or several that are configured one after the other.
type mdlNamed struct {
	name  string
	hints []int64
	of    []policy
}

func mdlExplorations() (all []mdlNamed) {
	const timeout = 2
	for _, threshold := range []uint32{1, 2} {
		for _, probes := range []int{1, 2} {
			for _, lease := range []int64{timeout - 1, timeout, timeout + 1} {
				p := policy{successThreshold: threshold, probes: probes, openTimeout: timeout, lease: lease}
				all = append(all, mdlVariants(p)...)
			}
		}
	}
	wide := policy{successThreshold: 2, probes: 2, openTimeout: timeout, lease: 3}
	narrow := policy{successThreshold: 1, probes: 1, openTimeout: 3, lease: 1, maxInFlight: 2}
	return append(all, mdlNamed{"configured", nil, []policy{wide, narrow}})
}

func mdlVariants(p policy) []mdlNamed {
	name := fmt.Sprintf("threshold %d, probes %d, lease %d", p.successThreshold, p.probes, p.lease)
	growing, all := p, p
	growing.ramp, growing.backoffFactor, growing.backoffMax = 2, 2, 5
	all.ramp, all.backoffFactor, all.backoffMax, all.maxInFlight = 4, 3, 4, 2
	return []mdlNamed{
		{name, []int64{0, p.openTimeout + 1}, []policy{p}},
		{name + ", ramp, backoff", nil, []policy{growing}},
		{name + ", ramp, backoff, limit", nil, []policy{all}},
	}
}

func TestMachineExhaustively(t *testing.T) {
	explorations := mdlExplorations()
	if !testenv.Long() || testenv.Small() {
		explorations = slices.DeleteFunc(explorations, func(n mdlNamed) bool {
			p := n.of[0]
			return p.lease == 2 || p.probes == 1 || p.successThreshold == 1 && !testenv.Long()
		})
	}
	var mu sync.Mutex
	states, transitions := 0, 0
	t.Run("", func(t *testing.T) {
		for _, n := range explorations {
			t.Run(n.name, func(t *testing.T) {
				t.Parallel()
				x := newMdlExplorer(n.of...)
				if n.hints != nil {
					x.hints = n.hints
				}
				if err := x.explore(); err != nil {
					t.Fatal(err)
				}
				mu.Lock()
				defer mu.Unlock()
				states += len(x.worlds)
				transitions += x.transitions
			})
		}
	})
	t.Logf("%d policies: %d states, %d transitions", len(explorations), states, transitions)
}

func TestMachineRampIsEvenWithoutChance(t *testing.T) {
	const ramp = 1000
	p := policy{successThreshold: 1, probes: 1, openTimeout: 1, lease: 1, ramp: ramp}
	m := machine{epoch: 1}
	m, _ = step(m, &p, event{kind: eventTrip})
	m, fx := step(m, &p, event{kind: eventAdmit, now: 1})
	m, _ = step(m, &p, event{kind: eventSettle, pass: fx.pass, now: 1})
	passed, share := 0, 0.0
	for i := range ramp + 10 {
		m, fx = step(m, &p, event{kind: eventAdmit, now: 1 + int64(i)})
		if fx.refused == admitted {
			passed++
		}
		share += min(1, float64(i)/ramp)
		if d := share - float64(passed); d < -0.01 || d > 1.01 { // ramp/ppm of rounding on top
			t.Fatalf("tick %d: %d passed, want %.2f", i, passed, share)
		}
	}
}

func TestMachineOpenPeriods(t *testing.T) {
	p := policy{openTimeout: 1000, backoffFactor: 2, backoffMax: 7000, backoffJitter: 0.5}
	for _, c := range []struct {
		n      uint32
		random float64
		want   int64
	}{
		{1, 0, 1000}, {2, 0, 2000}, {3, 0, 4000}, {4, 0, 7000}, {5, 0, 7000}, {math.MaxUint32, 0, 7000},
		{1, 0.5, 1250}, {2, 0.999, 2999}, {3, 0.999, 5998}, {4, 0.999, 7000}, {math.MaxUint32, 0.999, 7000},
	} {
		if got := p.period(c.n, c.random); got != c.want {
			t.Errorf("period(%d, %v) = %d, want %d", c.n, c.random, got, c.want)
		}
	}
	p.backoffFactor = 0
	if got := p.period(9, 0.9); got != 1000 {
		t.Errorf("without backoff: %d", got)
	}
	most := policy{openTimeout: int64(maxDuration), backoffFactor: 1e300, backoffMax: int64(maxDuration), backoffJitter: 1, lease: int64(maxDuration)}
	m := machine{epoch: 1, opens: math.MaxUint32}
	m, _ = step(m, &most, event{kind: eventTrip, random: 0.999, hint: int64(maxDuration), now: int64(maxDuration) - 1})
	if m.until <= m.now || m.opens != math.MaxUint32 {
		t.Errorf("the longest period wraps: %+v", m)
	}
}

func TestMachineHintLengthensAndNeverShortens(t *testing.T) {
	p := policy{openTimeout: 1000, successThreshold: 1, probes: 1, lease: 10}
	for _, hint := range []int64{0, 1, 999, 1000, 1001, 50_000} {
		m, fx := step(machine{epoch: 1}, &p, event{kind: eventSettle, pass: pass{epoch: 1}, outcome: Failure, trip: true, hint: hint, now: 5})
		if want := 5 + max(1000, hint); m.until != want || fx.moves[0].until != want {
			t.Errorf("hint %d: until %d, want %d", hint, m.until, want)
		}
		again, _ := step(m, &p, event{kind: eventSettle, pass: pass{epoch: 1}, outcome: Failure, trip: true, hint: 1 << 40, now: 6})
		if again.until != m.until {
			t.Errorf("a straggler has moved until from %d to %d", m.until, again.until)
		}
	}
}
