package breaker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// Sharing: a circuit with a Store follows the ledger that the store keeps for its name. Its own state machine is its copy
// of the ledger's state: calls are admitted and rejected by that copy, without I/O. Outcomes are collected in a tally and
// reported in batches; when the ledger moves to another state, the machine follows. The store alone grants probe slots and
// decides what a probe's outcome does to the state. While the store cannot be used, the circuit decides by itself.
//
// Everything about one circuit is in its share, defined below:
//
//	share_config.go   what a trip policy must be for a store, and what circuits of one configuration have in common
//	share_follow.go   how the machine follows the ledger
//	share_tally.go    counting what is to be reported
//	share_report.go   reporting it, and when; Sync
//	share_decide.go   asking the trip policy about the ledger's counts
//	share_move.go     moves that the store is asked for: openings and operators' commands
//	share_probe.go    probe slots and probe outcomes
//	share_status.go   what Snapshot says
//
// syncer.go decides when a process talks to a store and on behalf of which circuits; store_client.go carries the operations
// out. No operation of a store is called with a circuit's lock held.
//
// The rest of the package calls sharing only through the following methods of Circuit. Those that end in Locked need the
// circuit's lock; the others must not be called with it.
//
//	joinStore, leaveStore       construction, Close
//	Sync                        the exported method
//	orderMove                   Trip, Reset, OfferProbe
//	policyLocked                the policy to run the machine with
//	readyPolicyLocked           the same for Ready, which takes no slot
//	storeSlotLocked, awaitSlot  admission: a probe slot from the store
//	nextProbeLocked             rejection: when the next call may probe
//	slotFreeAtLocked            rejection: when a slot is expected to be free
//	settleProbe                 settlement of a probe: asks the store, before the lock is taken
//	addToTallyLocked            settlement: counts an outcome for the next report
//	foldTallyLocked             ForcedClosed begins: what comes from now on is not reported
//	skipTallyLocked             ForcedClosed has ended
//	deferToStoreLocked          settlement: leaves the opening to the ledger's counts
//	applySettlementLocked       settlement of a probe: takes over the store's answer
//	storeDecidesLocked          settlement: whether the circuit's own trip functions are asked
//	afterSettlement             settlement: hooks, and the next report, after the lock is released
//	beginSharedStayLocked       after every change of the machine's epoch
//	needsSuccessLocked          publication of the word: whether the next success must take the lock
//	epochLocked, joiningLocked  transitions: the epoch to tell, and whether to tell hooks at all
//	storeStatusLocked, sharedCountsLocked, sharedProbesLocked  Snapshot
//
// config.go besides uses sharing, newSharing and sharingFaults.

// joinStore attaches a new circuit to its store and reads the ledger once, so that the circuit starts in the state of the
// others. It waits no longer than for one operation.
func (c *Circuit) joinStore(s *settings) {
	sh := newShare(s.sharing.store)
	if err := sh.link.syncer.watchErr; err != nil {
		sh.noteAnomalyLocked(c.name, "it cannot be watched", ": "+err.Error())
	}
	c.mu.Lock()
	c.extrasLocked().share = sh
	c.mu.Unlock()
	sh.link.syncer.add(c)
	if !sh.unreachable() {
		c.applyReply(sh.link.client.read(c.name), byRemote)
	}
	c.mu.Lock()
	sh.joined = true
	switch {
	case sh.view.epoch > 0:
		c.run, c.runMark = 0, 0 // the ledger's run replaces one restored from a Snapshot
		if c.memory != nil {
			c.memory.endRun(s.trips)
		}
	case sh.link.lastErr == nil && c.m.state != Closed: // the ledger is empty, but a Snapshot was restored: tell the others
		sh.outbox.orders = append(sh.outbox.orders, order{to: Open, why: byRemote, until: max(c.m.now, c.m.until)})
	}
	c.mu.Unlock()
	c.deliver(s)
	c.scheduleOrders()
}

// leaveStore reports what has not been reported, and detaches the circuit from its store for good. Only the first call does
// anything.
func (c *Circuit) leaveStore() {
	c.mu.Lock()
	sh := c.shareLocked()
	open := sh != nil && !sh.closed
	c.mu.Unlock()
	if !open {
		return
	}
	if !sh.unreachable() {
		ctx, cancel := context.WithTimeout(context.Background(), sh.link.client.timeout)
		defer cancel()
		_ = c.Sync(ctx) // what cannot be reported now is lost with the circuit
	}
	c.mu.Lock()
	sh.closed = true
	c.mu.Unlock()
	sh.link.syncer.leave(c)
}

// policyLocked returns the policy to run the machine with. In step with a ledger the machine has no probe slots of its own
// to give; standalone it has one.
func (c *Circuit) policyLocked(s *settings) *policy {
	sh := c.shareLocked()
	switch {
	case sh == nil || sh.closed:
		return &s.policy
	case sh.standing == inStep:
		return &s.sharing.policyInStep
	}
	return &s.sharing.policyStandalone
}

// readyPolicyLocked returns the policy by which Ready judges m, a copy of the machine; denied says that a call would be
// rejected because the store has refused a slot lately. Nobody knows without asking whether the store has a free slot, and
// Ready does not ask: otherwise it assumes that there is one.
func (c *Circuit) readyPolicyLocked(s *settings, m *machine) (p *policy, denied bool) {
	sh := c.shareLocked()
	if !sh.isInStep() {
		return c.policyLocked(s), false
	}
	return &s.policy, m.mode == Auto && m.state == HalfOpen && m.now < sh.probes.deniedUntil
}

// epochLocked returns the number of the current epoch as events and snapshots tell it: the store's, once one is known.
func (c *Circuit) epochLocked() uint64 {
	if sh := c.shareLocked(); sh != nil && sh.view.epoch > 0 {
		return sh.view.epoch
	}
	return c.m.epoch
}

// joiningLocked reports whether joinStore is reading the ledger. The change of state that follows from it is not told to
// hooks: to its user, the circuit starts in that state.
func (c *Circuit) joiningLocked() bool {
	sh := c.shareLocked()
	return sh != nil && !sh.joined
}

// nextProbeLocked returns the earliest time at which a call may become a probe, as far as is known.
func (c *Circuit) nextProbeLocked() int64 {
	if sh := c.shareLocked(); c.m.state == HalfOpen && sh.isInStep() && c.m.now < sh.probes.deniedUntil {
		return sh.probes.deniedUntil
	}
	return c.m.nextProbe()
}

// slotFreeAtLocked returns when a caller that is rejected until then should try again. After a refusal by the store the
// circuit asks again sooner than a slot is sure to be free, in case one is given back early; callers are told the later time.
func (c *Circuit) slotFreeAtLocked(until int64) int64 {
	if sh := c.shareLocked(); sh != nil && until == sh.probes.deniedUntil {
		return sh.probes.freeAt
	}
	return until
}

// deferToStoreLocked takes the decision to open away from the machine while the ledger's counts decide; the cause is kept
// for the opening that may follow. It returns how soon the outcome must be reported. While the store is unavailable it
// changes nothing, and the machine opens on the circuit's own counts.
func (c *Circuit) deferToStoreLocked(s *settings, e *event, cause error) urgency {
	if !c.storeDecidesLocked() {
		return none
	}
	e.trip = false
	if e.pass.epoch == c.m.epoch && e.outcome != Ignored && (e.outcome != Answered || cause != nil) {
		c.shared().outbox.cause = cause
	}
	return c.urgencyLocked(s, e.now)
}

// storeDecidesLocked reports whether the ledger's counts, not the circuit's own, decide when to open.
func (c *Circuit) storeDecidesLocked() bool {
	sh := c.shareLocked()
	return sh.isInStep() && !sh.unavailable()
}

// afterSettlement does what a settlement has led to and what must not be done under the lock. answer is what settleProbe
// returned.
func (c *Circuit) afterSettlement(answer *StoreReply, u urgency) {
	if answer != nil {
		c.epochOpEnded()
		c.deliver(c.load())
		c.scheduleOrders()
	}
	c.shared().link.syncer.schedule(c, u)
}

// beginSharedStayLocked follows a change of the machine's epoch by e.
func (c *Circuit) beginSharedStayLocked(e *event) {
	sh := c.shareLocked()
	if sh == nil {
		return
	}
	if e.kind != eventFollow {
		sh.machineMoved(c.m.state)
	}
	if e.kind == eventSettle && c.m.state == Closed {
		for i := range sh.outbox.orders {
			sh.outbox.orders[i].recovered = sh.outbox.orders[i].appliedHere
		}
	}
	sh.clearEpoch()
}

// sharedProbesLocked returns how many probe slots are in use in all processes, as far as is known; 0 where the ledger says
// nothing about this circuit.
func (c *Circuit) sharedProbesLocked() int64 {
	if sh := c.shareLocked(); sh.isInStep() {
		return int64(sh.view.ledger.Slots)
	}
	return 0
}

// share is one circuit's part in sharing. The circuit's lock guards all of it, except where a field says otherwise.
type share struct {
	link     storeLink
	standing standing // assigned only by rejoin, detach and machineMoved
	joined   bool     // joinStore has taken over the first reading; never false again
	closed   bool     // leaveStore was called; never false again. The store is not used, and standing means nothing
	view     ledgerView
	outbox   outbox
	probes   probeSlots

	polledCalls uint64       // the circuit's calls, rejections included, when the syncer last looked whether it is in use
	flushedAt   atomic.Int64 // when the syncer last reported for this circuit, by the syncer's clock; needs no lock
}

// storeLink is the connection to the store and the state of the last exchange. The first four fields are set by joinStore
// and never change: they may be read without the lock.
//
// lastErr and anomaly are independent: anomaly stays after a later exchange has failed or was in order. exchangedAt means
// nothing before exchanged is set.
type storeLink struct {
	syncer *syncer      // the one for the store in this process
	client *storeClient // the syncer's
	peers  *peers       // the circuits of this name in this process
	node   string       // identifies this circuit in reports and, as their prefix, its tokens; random

	lastErr       error   // why the last exchange failed; nil if it worked
	exchanged     bool    // at least one exchange has worked
	exchangedAt   int64   // when one last did
	foreign       bool    // the ledger is kept for another configuration; from replies to operations that carry a shape
	anomaly       string  // what was last told as odd in an exchange that worked; kept so that it is not told twice in a row
	pendingErrors []error // for the StoreError hooks; taken by deliver
}

// ledgerView is what is known of the ledger.
//
// epoch always equals ledger.Epoch. Both are 0 until a ledger that somebody has written to is seen, and again if the
// store's clock turns out to have been set back by more than a day. pushed is nil unless epochOps is above 0.
type ledgerView struct {
	epoch   uint64 // the highest that was taken over
	ledger  Ledger // as last seen in that epoch
	takenAt int64  // when ledger was last replaced, by the syncer's clock

	// An operation of this circuit that begins an epoch is answered to the circuit and pushed to every watcher, in either
	// order. Were the push taken over first, the circuit would tell its own opening as somebody else's. So pushed ledgers
	// wait while such operations are under way.
	epochOps int     // operations under way that may begin an epoch
	pushed   *Ledger // the newest that was pushed meanwhile
}

// outbox is what the circuit has to say to the store. The tally, hint, cause and scheduled belong to the machine's current
// epoch; clearEpoch drops them.
//
// Failures enter the tally only in step. Of orders, the first may be under way, which only the holder of reporting knows; the
// others wait. undecided is nil unless asking is set.
type outbox struct {
	// reporting is a lock that can be waited for with a context: a channel of one place, filled by whoever runs orders and
	// sends reports for the circuit. Only one goroutine may at a time, or runs of failures would be entered out of order.
	// The circuit's lock is taken while it is held, never the other way round.
	reporting   chan struct{}
	reportAgain bool // somebody wanted reporting while it was taken: the holder goes on for them

	tally      tally
	scheduled  urgency // what the syncer has been told about the tally
	reportedAt int64   // when a report was last begun
	hint       int64   // the wait that the last counted failure asked for (Retry-After); 0 after a success
	cause      error   // what the last outcome would be the cause of, if the ledger opens on it
	lost       uint64  // outcomes whose report was not answered
	orders     []order // moves to ask the store for, in this order

	asking    bool        // a goroutine is in the user's trip functions
	undecided *StoreReply // what it is to ask them about next
}

// probeSlots is this circuit's part in HalfOpen: slots it has asked for, been given, or been refused.
//
// granted, tokens and deniedUntil belong to the machine's current epoch; clearEpoch drops them. freeAt means something only
// while deniedUntil is set, rejoinAt and rejoinAfter only while the circuit is standalone.
type probeSlots struct {
	request        *slotRequest     // under way; nil: none
	waiting        int              // calls in awaitSlot
	granted        []grant          // slots given by the store and not taken by a call yet
	tokens         map[int64]string // of slots that calls have taken and not settled, by the end of their lease
	serial         uint64           // numbers the tokens
	deniedUntil    int64            // the store has refused a slot: it is not asked again before this
	freeAt         int64            // when the store expects a slot to be free
	uselessReplies int              // replies in a row that neither granted nor refused a slot

	rejoinAt    int64         // when a standalone circuit asks for a slot again, by the syncer's clock
	rejoinAfter time.Duration // how long it waited the last time
}

func newShare(store Store) *share {
	y := syncerOf(store)
	return &share{
		link: storeLink{syncer: y, client: y.client, node: fmt.Sprintf("%016x", rand.Uint64())},
		outbox: outbox{
			reporting:  make(chan struct{}, 1),
			reportedAt: -int64(maxDuration),
		},
	}
}

// shareLocked returns the circuit's share, nil without a store.
func (c *Circuit) shareLocked() *share {
	if c.extras == nil {
		return nil
	}
	return c.extras.share
}

// shared returns the share of a circuit that has a store. It needs no lock: joinStore sets it before anybody else sees the
// circuit, and it stays.
func (c *Circuit) shared() *share { return c.extras.share }

// isInStep reports whether the machine is a copy of the ledger's state. It may be called on a nil share.
func (sh *share) isInStep() bool { return sh != nil && sh.standing == inStep && !sh.closed }

// unavailable reports whether there is no point in asking the store.
func (sh *share) unavailable() bool { return sh.closed || sh.unreachable() }

// unreachable reports whether the store does not answer, to anybody or about this name. It needs no lock.
func (sh *share) unreachable() bool {
	return sh.link.client.unreachable.Load() || sh.link.peers.unreachable.Load()
}

// standing is how the machine's state relates to the ledger's.
//
// In step the machine is in the state of the ledger as last seen, or HalfOpen where the ledger is Open and due; only after a
// restart from a Snapshot it may be Open over an empty ledger, until the order that brings the ledger there is carried out.
// Standalone it may be in any state; Open only if the probe for which it has become standalone has not been admitted yet,
// since a later opening makes it standaloneOpen. With standaloneOpen it is Open or HalfOpen: when it closes it is in step
// again if the ledger is Closed, and standalone if not.
type standing uint8

const (
	inStep         standing = iota // it is the ledger's, as last seen
	standalone                     // the circuit had to decide something while the store was unavailable
	standaloneOpen                 // and it opened; kept through its own half-open stays
)

// rejoin makes the machine follow the ledger again, which the caller has found to be due: the ledger has a newer epoch, or
// nothing keeps the circuit standalone; see followLocked.
func (sh *share) rejoin() { sh.standing = inStep }

// detach makes a circuit that is in step standalone because the store gives no answer to a request for a probe slot, or
// none that helps.
func (sh *share) detach() {
	if sh.standing == inStep {
		sh.standing = standalone
	}
}

// machineMoved follows a change of the machine's state that did not come from the ledger. After an opening, only the
// circuit's own probes or a newer epoch of the ledger end it: the ledger, which is still Closed, does not.
func (sh *share) machineMoved(to State) {
	switch {
	case sh.standing == standaloneOpen && to == Closed && sh.view.ledger.State == Closed:
		sh.standing = inStep
	case to == Open, sh.standing == standaloneOpen && to == HalfOpen:
		sh.standing = standaloneOpen
	default:
		sh.standing = standalone
	}
}

// clearEpoch drops what belonged to the epoch of the machine that has ended.
func (sh *share) clearEpoch() {
	sh.outbox.tally = tally{}
	sh.outbox.hint, sh.outbox.cause, sh.outbox.scheduled = 0, nil, none
	sh.probes.granted, sh.probes.tokens = nil, nil
	sh.probes.deniedUntil = 0
}
