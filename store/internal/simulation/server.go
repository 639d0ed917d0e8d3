package simulation

import (
	"context"
	"time"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/store"
)

// origin is when every run begins.
var origin = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// clock is a clock that is set.
type clock struct{ at time.Duration }

func (c *clock) Now() time.Time                       { return origin.Add(c.at) }
func (c *clock) After(time.Duration) <-chan time.Time { return nil }

// server is the store that all nodes talk to: a Memory, which may be wiped or come back as it was some time ago. It
// checks every operation against a reckoning of its own.
type server struct {
	w       *World
	clock   clock
	behind  time.Duration // its clock is, since it was wiped
	memory  *store.Memory
	tells   bool
	pushes  []push
	telling bool
	log     []logged          // what has changed this Memory
	epochs  []uint64          // by name: the present one
	leases  []map[string]slot // by name: of that epoch
	given   []int             // by name: slots given in that epoch
	proved  []int             // by name: the number of the last given of those whose probe has succeeded
	seen    []evidence        // by name: in that epoch
	names   []ledgers
}

// ledgers is what has been seen of all ledgers that a name has had.
type ledgers struct {
	highest uint64
	states  map[uint64]breaker.State
	failed  uint64         // failures that were entered
	moved   map[uint64]int // by epoch: how many nodes took its beginning for their own doing
}

// evidence is what speaks for opening.
type evidence struct {
	failed    uint64
	reporters map[*node]bool
}

type slot struct {
	expires time.Duration
	number  int // in the order of giving
}

type push struct {
	name   int
	ledger breaker.Ledger
}

type logged struct {
	at time.Duration
	op any
}

func newServer(w *World) *server {
	s := &server{w: w, names: make([]ledgers, w.plan.names)}
	for i := range s.names {
		s.names[i].states, s.names[i].moved = make(map[uint64]breaker.State), make(map[uint64]int)
	}
	s.renew()
	return s
}

// renew begins with an empty Memory.
func (s *server) renew() {
	s.clock.at = 0
	s.memory = store.NewMemory(store.WithClock(&s.clock))
	s.memory.Watch(s)
	s.log = nil
	s.epochs = make([]uint64, s.w.plan.names)
	s.seen = make([]evidence, s.w.plan.names)
	s.leases = make([]map[string]slot, s.w.plan.names)
	s.given, s.proved = make([]int, s.w.plan.names), make([]int, s.w.plan.names)
	for i := range s.leases {
		s.leases[i] = make(map[string]slot)
	}
	s.tells = true
}

// Changed is called by the Memory. The nodes are told when the operation has been looked at.
func (s *server) Changed(name string, l breaker.Ledger) {
	if s.tells {
		s.pushes = append(s.pushes, push{s.w.nameIndex(name), l})
	}
}

// Resync is never called by a Memory.
func (s *server) Resync() {}

// settled reports whether the clock has passed all epochs: numbers then cannot be given again after a loss.
func (s *server) settled() bool {
	for i := range s.names {
		if s.names[i].highest >= uint64(origin.Add(s.w.now-s.behind).UnixMilli()) {
			return false
		}
	}
	return true
}

// known reports whether all circuits know the last epoch, and nothing is on its way that does not: then even a store whose
// clock is behind gives no number again.
func (s *server) known() bool {
	p := &s.w.plan
	if p.late+p.copies > 0 || p.kills || p.churn {
		return false
	}
	for _, n := range s.w.nodes {
		if n.circuit.Snapshot().Shared.Epoch != s.names[n.name].highest {
			return false
		}
	}
	return true
}

func (s *server) wipe() {
	s.w.stats.Wipes++
	if s.known() {
		s.behind = time.Duration(s.w.rng.Float64() * float64(s.w.now))
	}
	s.w.note(-1, "WIPE", uint64(len(s.log)), uint64(s.behind))
	s.renew()
}

// failover loses the last writes.
func (s *server) failover(lost int) {
	log := s.log[:max(0, len(s.log)-lost)]
	s.w.stats.Failovers++
	s.w.note(-1, "FAILOVER", uint64(len(log)), uint64(lost))
	s.renew()
	s.tells = false
	for _, l := range log {
		s.clock.at = l.at - s.behind
		s.carryOut(l.op, l.at)
	}
	s.log = log
	s.tells = true
}

// read looks at a ledger.
func (s *server) read(name int) breaker.Ledger {
	s.clock.at = s.w.now - s.behind
	return s.memory.Read(context.Background(), []string{s.w.names[name]})[0].Ledger
}

// carryOut carries an operation out on the Memory, and enters what it does to the slots.
func (s *server) carryOut(op any, at time.Duration) (l breaker.Ledger, name int, granted []string) {
	ctx := context.Background()
	var err error
	switch o := op.(type) {
	case breaker.StoreReport:
		name = s.w.nameIndex(o.Name)
		r := s.memory.Report(ctx, []breaker.StoreReport{o})[0]
		l, err = r.Ledger, r.Err
	case breaker.StoreMove:
		name = s.w.nameIndex(o.Name)
		l, err = s.memory.Move(ctx, o)
	case breaker.StoreAcquire:
		name = s.w.nameIndex(o.Name)
		l, err = s.memory.Acquire(ctx, o)
	case breaker.StoreVerdict:
		name = s.w.nameIndex(o.Name)
		l, err = s.memory.Settle(ctx, o)
	}
	if err != nil {
		s.w.fail("the Memory failed: %v", err)
	}
	if l.Epoch != s.epochs[name] {
		s.epochs[name] = l.Epoch
		clear(s.leases[name])
		s.given[name], s.proved[name] = 0, 0
		s.seen[name] = evidence{reporters: make(map[*node]bool)}
	}
	if r, ok := op.(breaker.StoreReport); ok && l.Applied {
		if _, failed := outcomes(r.Batch); failed > 0 {
			s.seen[name].failed += failed
			s.seen[name].reporters[s.w.byToken(r.Node)] = true
		}
	}
	slots := s.leases[name]
	switch o := op.(type) {
	case breaker.StoreAcquire:
		live := s.live(name, at)
		for _, token := range o.Tokens {
			held, known := slots[token]
			switch {
			case l.State != breaker.HalfOpen:
			case known && at < held.expires:
				granted = append(granted, token)
			case !known && live < o.Limit:
				live++
				s.given[name]++
				slots[token] = slot{at + o.Lease, s.given[name]}
				granted = append(granted, token)
			}
		}
	case breaker.StoreVerdict:
		if held, known := slots[o.Token]; known && l.Applied {
			delete(slots, o.Token)
			if o.Outcome == breaker.Success {
				s.proved[name] = max(s.proved[name], held.number)
			}
		}
	}
	return l, name, granted
}

func (s *server) live(name int, at time.Duration) (n int) {
	for _, l := range s.leases[name] {
		if at < l.expires {
			n++
		}
	}
	return n
}

// apply carries an operation out and checks what it has done.
func (s *server) apply(n *node, op any, again bool) breaker.Ledger {
	var l breaker.Ledger
	switch o := op.(type) {
	case string:
		return s.read(s.w.nameIndex(o))
	case breaker.StoreReport:
		l = s.checkReport(o, again)
	case breaker.StoreMove:
		l = s.checkMove(n, o)
	case breaker.StoreAcquire:
		l = s.checkAcquire(o)
	case breaker.StoreVerdict:
		l = s.checkVerdict(o)
	}
	if s.w.plan.failovers {
		s.log = append(s.log, logged{s.w.now, op})
	}
	s.tell()
	return l
}

// checkChange checks what holds for every operation.
func (s *server) checkChange(what string, name int, before, after breaker.Ledger, begins bool) {
	w, seen := s.w, &s.names[name]
	if !begins && after.Epoch != before.Epoch {
		w.fail("%s began epoch %d after %d, though it must not", what, after.Epoch, before.Epoch)
	}
	if begins {
		w.stats.Epochs++
	}
	if begins && after.Epoch <= seen.highest {
		w.fail("%s began epoch %d, but %d has been given before", what, after.Epoch, seen.highest)
	}
	seen.highest = max(seen.highest, after.Epoch)
	if was, ok := seen.states[after.Epoch]; after.Epoch != 0 && ok && was != after.State {
		w.fail("%s: epoch %d is %v, and was %v", what, after.Epoch, after.State, was)
	}
	seen.states[after.Epoch] = after.State
	if after.Slots > w.plan.limit {
		w.fail("%s: %d slots are live, the limit is %d", what, after.Slots, w.plan.limit)
	}
	if live := s.live(name, w.now); after.State == breaker.HalfOpen && after.Slots != live {
		w.fail("%s: %d slots are live, should be %d", what, after.Slots, live)
	}
}

// checkVoid checks that an operation has changed nothing.
func (s *server) checkVoid(what string, before, after breaker.Ledger) {
	if after.Applied || after.Granted > 0 {
		s.w.fail("%s was applied, though it must not: %+v", what, after)
	}
	after.Peak, after.Foreign, after.RetryAfter = before.Peak, before.Foreign, before.RetryAfter
	if after != before {
		s.w.fail("%s changed something:\n%+v\n%+v", what, before, after)
	}
}

func outcomes(b breaker.StoreBatch) (n, failed uint64) {
	for _, s := range b.Slices {
		n += s.Successes + s.Failures + s.Ignored
		failed += s.Failures
	}
	return n, failed
}

func (s *server) checkReport(r breaker.StoreReport, again bool) breaker.Ledger {
	name := s.w.nameIndex(r.Name)
	before := s.read(name)
	n, failed := outcomes(r.Batch)
	after, _, _ := s.carryOut(r, s.w.now)
	reporter := s.w.byToken(r.Node)
	s.w.note(reporter.id, "report", r.Epoch, n<<8|failed<<1|flag(after.Applied))
	if n == 0 || before.State != breaker.Closed || before.Epoch != 0 && r.Epoch != 0 && r.Epoch != before.Epoch {
		s.checkVoid("report", before, after)
		return after
	}
	if !after.Applied {
		s.w.fail("report was not applied: %+v", after)
	}
	begins := before.Epoch == 0 && after.Epoch != r.Epoch
	if before.Epoch == 0 && !begins {
		before.Epoch = r.Epoch // it is brought back
	}
	s.checkChange("report", name, before, after, begins)
	expected := before.Counts.Failures + failed
	if s.w.plan.window == 0 && after.Counts.Failures != expected || after.Counts.Failures > expected {
		s.w.fail("report of %d failures made %d of %d", failed, after.Counts.Failures, before.Counts.Failures)
	}
	if !again {
		reporter.entered += n
		s.names[name].failed += failed
	}
	if !again {
		reporter.in[r.Epoch] -= int64(n)
	}
	if reporter.in[r.Epoch]+reporter.in[0] < 0 {
		s.w.fail("node %d has entered outcomes in epoch %d that were not its own: %d", reporter.id, r.Epoch, n)
	}
	if reporter.entered > reporter.produced {
		s.w.fail("node %d has produced %d outcomes, %d were entered", reporter.id, reporter.produced, reporter.entered)
	}
	return after
}

func (s *server) checkMove(n *node, m breaker.StoreMove) breaker.Ledger {
	name := s.w.nameIndex(m.Name)
	before, seen := s.read(name), s.seen[name]
	after, _, _ := s.carryOut(m, s.w.now)
	s.w.note(n.id, "move to "+m.To.String(), m.From, after.Epoch<<1|flag(after.Applied))
	if before.Epoch > m.From || m.Run != 0 && before.Epoch == m.From && before.Run != m.Run {
		s.checkVoid("move", before, after)
		return after
	}
	s.checkChange("move", name, before, after, true)
	if !after.Applied || after.State != m.To || m.To == breaker.Open && after.Remaining != m.For || after.Slots != 0 {
		s.w.fail("move to %v for %v was not made: %+v", m.To, m.For, after)
	}
	// After a failover a late command may find its epoch again, without the failures that it rests on.
	if p := &s.w.plan; !p.hands && !(s.w.late && p.failovers) && before.State == breaker.Closed && before.Epoch == m.From &&
		(m.To != breaker.Open || seen.failed < uint64(p.least) || len(seen.reporters) < p.minimum) {
		s.w.fail("move to %v after %d failures of %d nodes", m.To, seen.failed, len(seen.reporters))
	}
	if m.For > s.w.plan.longest {
		s.w.fail("move to %v for %v, the longest period is %v", m.To, m.For, s.w.plan.longest)
	}
	return after
}

func (s *server) checkAcquire(a breaker.StoreAcquire) breaker.Ledger {
	name := s.w.nameIndex(a.Name)
	before := s.read(name)
	begins := before.Epoch < a.Epoch || before.Epoch == 0 || before.State == breaker.Open && before.Remaining == 0
	after, _, granted := s.carryOut(a, s.w.now)
	s.w.note(s.w.byToken(a.Tokens[0]).id, "acquire", a.Epoch, after.Epoch<<8|uint64(len(a.Tokens))<<4|uint64(after.Granted))
	s.checkChange("acquire", name, before, after, begins)
	if after.Granted != len(granted) {
		s.w.fail("acquire was granted %d of %d, should be %d", after.Granted, len(a.Tokens), len(granted))
	}
	if begins && (after.State != breaker.HalfOpen || after.Granted == 0) {
		s.w.fail("acquire of a due ledger was refused: %+v", after)
	}
	if !begins && after.Granted == 0 {
		s.checkVoid("acquire", before, after)
	}
	return after
}

func (s *server) checkVerdict(v breaker.StoreVerdict) breaker.Ledger {
	name := s.w.nameIndex(v.Name)
	before := s.read(name)
	held, known := s.leases[name][v.Token]
	late := s.w.now >= held.expires
	void := late && held.number < s.proved[name] // a probe that was admitted later has succeeded
	after, _, _ := s.carryOut(v, s.w.now)
	s.w.note(s.w.byToken(v.Token).id, "settle "+v.Outcome.String(), v.Epoch, after.Epoch<<1|flag(after.Applied))
	if !known || before.State != breaker.HalfOpen || before.Epoch != v.Epoch {
		s.checkVoid("settle", before, after)
		return after
	}
	if !after.Applied {
		s.w.fail("settle was not applied: %+v", after)
	}
	to := breaker.HalfOpen
	switch {
	case v.Outcome == breaker.Success && before.Progress+1 >= uint32(s.w.plan.success):
		to = breaker.Closed
	case v.Outcome == breaker.Failure && !void:
		to = breaker.Open
	}
	if v.Outcome != breaker.Success && v.Outcome != breaker.Failure && v.Outcome != breaker.Ignored {
		s.w.fail("the store was sent a verdict of %v", v.Outcome)
	}
	if v.Outcome == breaker.Failure && late {
		s.w.stats.LateFailures++
		s.w.stats.Disproved += int(flag(void))
	}
	if after.State != to {
		s.w.fail("%v of a probe led to %v, should be %v: %+v", v.Outcome, after.State, to, after)
	}
	s.checkChange("settle", name, before, after, to != breaker.HalfOpen)
	return after
}

func flag(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// tell lets the nodes know of what has changed, as far as it reaches them.
func (s *server) tell() {
	if s.telling {
		return
	}
	s.telling = true
	for len(s.pushes) > 0 {
		p := s.pushes[0]
		s.pushes = s.pushes[1:]
		for _, n := range s.w.nodes {
			if n.name == p.name {
				n.handle.push(p.ledger)
			}
		}
	}
	s.telling = false
}
