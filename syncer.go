package breaker

import (
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"
)

// syncer keeps all circuits of this process that are on one Store in step with it: it watches the store, reports for the
// circuits when they are due, polls, and tries a store that cannot be reached.
//
// For a Store that is Immediate all of that is done within the calls that need it. Otherwise there is one goroutine, loop,
// besides the Store's own, whatever the number of circuits. A syncer lasts as long as it has circuits. It keeps no circuit
// alive but those that are due.
type syncer struct {
	client  *storeClient
	time    *timeline // real time, whatever clock the circuits have: it paces I/O
	unwatch func()    // nil: Watch has returned none
	// watchErr is why the store is not watched; nil if it is. Circuits then learn of changes by polling only.
	watchErr error
	stopped  atomic.Bool   // the last circuit has left: loop ends, at the latest when it polls
	wake     chan struct{} // one place: loop is to look again

	circuits int // guarded by syncers

	mu          sync.Mutex
	byName      map[string]*peers
	due         map[*Circuit]int64 // circuits with something to report or to ask, and from when on they may
	wakeAt      int64              // when loop looks again without being woken
	resync      bool               // all circuits in use are to be read
	pollQueue   []string           // names that this round of polling has not come to yet
	undelivered []*Circuit         // circuits with news for their hooks, or orders, from a push

	retryAt int64 // when to ask again what cannot be reached; only loop uses it
}

// peers is the circuits of one name.
type peers struct {
	all         []weak.Pointer[Circuit] // guarded by the syncer's mu
	unreachable *atomic.Bool            // their name had no answer, though other names may have; needs no lock
}

const (
	reportSpacing    = 10 * time.Millisecond  // between two reports of one circuit
	pollEvery        = time.Second            // how often circuits in use are read, whether anything was pushed or not
	maxPolled        = 500                    // names in one poll
	maxPerOperation  = 256                    // names in one operation
	retryEvery       = 250 * time.Millisecond // how often an unreachable store or name is asked; up to as much is added at random
	maxRetryFailures = 3                      // operations of one try that may have no answer
)

// syncers holds the syncer of each Store in use.
var syncers struct {
	sync.Mutex
	of map[Store]*syncer
}

// syncerOf returns the syncer of a store, and counts one circuit that add will enter.
func syncerOf(s Store) *syncer {
	syncers.Lock()
	defer syncers.Unlock()
	y := syncers.of[s]
	if y == nil {
		y = newSyncer(s)
		if syncers.of == nil {
			syncers.of = make(map[Store]*syncer)
		}
		syncers.of[s] = y
	}
	y.circuits++
	return y
}

func newSyncer(s Store) *syncer {
	y := &syncer{wake: make(chan struct{}, 1), time: newTimeline(nil), wakeAt: never}
	y.byName, y.due = make(map[string]*peers), make(map[*Circuit]int64)
	y.client = newStoreClient(s, y.wakeUp, y.decideAlone)
	y.unwatch, y.watchErr = y.client.watch(y)
	if !y.client.immediate {
		go y.loop()
	}
	return y
}

// add enters a circuit that syncerOf has counted. One that is garbage collected is removed.
func (y *syncer) add(c *Circuit) {
	p := weak.Make(c)
	y.mu.Lock()
	defer y.mu.Unlock()
	name := c.name
	l := y.byName[name]
	if l == nil {
		l = &peers{unreachable: y.client.addName(name)}
		y.byName[name] = l
	}
	l.all = append(l.all, p)
	c.shared().link.peers = l
	// The collector runs this outside of every testing/synctest bubble, where a channel of a bubble must not be used.
	runtime.AddCleanup(c, func(p weak.Pointer[Circuit]) { y.remove(name, p) }, p)
}

// leave removes a circuit that is closed.
func (y *syncer) leave(c *Circuit) {
	y.mu.Lock()
	delete(y.due, c)
	y.mu.Unlock()
	y.remove(c.name, weak.Make(c))
	if y.stopped.Load() {
		y.wakeUp()
	}
}

// remove removes a circuit if it is there, and ends the syncer with the last one. It uses no channel; see add.
func (y *syncer) remove(name string, p weak.Pointer[Circuit]) {
	syncers.Lock()
	defer syncers.Unlock()
	if !y.removePeer(name, p) {
		return
	}
	if y.circuits--; y.circuits > 0 {
		return
	}
	delete(syncers.of, y.client.store)
	y.stopped.Store(true)
	if y.client.immediate {
		go y.endWatch() // it waits for a call of Changed or Resync, which may be the one that we are in
	}
}

// endWatch ends the watch that newSyncer has begun.
func (y *syncer) endWatch() {
	if y.unwatch != nil {
		y.client.endWatch(y.unwatch)
	}
}

func (y *syncer) removePeer(name string, p weak.Pointer[Circuit]) (removed bool) {
	y.mu.Lock()
	defer y.mu.Unlock()
	l := y.byName[name]
	if l == nil {
		return false
	}
	i := slices.Index(l.all, p)
	if i < 0 {
		return false
	}
	if l.all = slices.Delete(l.all, i, i+1); len(l.all) == 0 {
		delete(y.byName, name)
		y.client.removeName(name)
	}
	return true
}

// named returns the circuits of a name.
func (y *syncer) named(name string) (all []*Circuit) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if l := y.byName[name]; l != nil {
		for _, p := range l.all {
			if c := p.Value(); c != nil {
				all = append(all, c)
			}
		}
	}
	return all
}

func (y *syncer) allNamesLocked() []string { return slices.Collect(maps.Keys(y.byName)) }

// Changed is called by the store: syncer is its StoreWatcher.
func (y *syncer) Changed(name string, l Ledger) {
	for _, c := range y.named(name) {
		c.applyPushed(l)
	}
}

// Resync is called by the store when it may have missed changes.
func (y *syncer) Resync() {
	if y.client.immediate {
		y.mu.Lock()
		names := y.allNamesLocked()
		y.mu.Unlock()
		y.readAll(names)
		return
	}
	y.mu.Lock()
	y.resync = true
	y.mu.Unlock()
	y.wakeUp()
}

// deliverLater calls a circuit's hooks and runs its orders after a push. During an operation of an immediate store it only
// notes the circuit, for deliverPending: a hook may use the very circuit whose operation is under way.
func (y *syncer) deliverLater(c *Circuit) {
	y.mu.Lock()
	y.undelivered = append(y.undelivered, c)
	y.mu.Unlock()
	if y.client.calls.Load() == 0 {
		y.deliverPending()
	}
}

// deliverPending makes up for what deliverLater has put off. It is called after every operation.
func (y *syncer) deliverPending() {
	for {
		y.mu.Lock()
		all := y.undelivered
		y.undelivered = nil
		y.mu.Unlock()
		if len(all) == 0 {
			return
		}
		for _, c := range all {
			c.deliverOwn(c.load())
			c.scheduleOrders()
		}
	}
}

// background runs what may wait for the store: in a goroutine of its own, or right here if the store never waits.
func (y *syncer) background(f func()) {
	if y.client.immediate {
		f()
		return
	}
	go f()
}

// schedule sees to it that a circuit's tally is reported and its orders are run, as soon as u says: within this call for
// an immediate store, otherwise by loop.
func (y *syncer) schedule(c *Circuit, u urgency) {
	if u == none {
		return
	}
	if y.client.immediate {
		c.exchange()
		return
	}
	at := y.time.now()
	if u < immediate {
		at = max(at, c.shared().flushedAt.Load()+int64(reportSpacing))
	}
	if u == nextFlush {
		at += int64(c.load().sharing.flushEvery)
	}
	y.mu.Lock()
	if was, ok := y.due[c]; !ok || at < was {
		y.due[c] = at
	}
	early := at < y.wakeAt
	y.mu.Unlock()
	if early {
		y.wakeUp()
	}
}

func (y *syncer) wakeUp() {
	select {
	case y.wake <- struct{}{}:
	default:
	}
}

// loop does what is due, until the last circuit has left.
func (y *syncer) loop() {
	defer y.endWatch()
	pollAt := y.time.now() + int64(pollEvery)
	timer := time.NewTimer(pollEvery)
	defer timer.Stop()
	for {
		select {
		case <-y.wake:
		case <-timer.C:
		}
		if y.stopped.Load() {
			return
		}
		now := y.time.now()
		var next int64
		if y.client.checkAvailability() {
			y.flush(now)
			if pollAt <= now {
				y.readAll(y.namesInUse(maxPolled))
				pollAt = now + int64(pollEvery)
			}
			next = min(y.nextDue(pollAt), y.retryNames(now))
		} else {
			next = y.retryStore(now)
		}
		timer.Reset(duration(max(0, next-y.time.now())))
	}
}

// nextDue returns when the next circuit is due, but no later than latest. It notes that as the time at which loop looks
// again: retryNames may make it earlier, which does no harm.
func (y *syncer) nextDue(latest int64) int64 {
	suspect := y.client.isSuspect()
	y.mu.Lock()
	defer y.mu.Unlock()
	for c, at := range y.due {
		if !c.shared().link.peers.unreachable.Load() {
			latest = min(latest, at)
		}
	}
	if y.resync || suspect {
		latest = 0
	}
	y.wakeAt = latest
	return latest
}

// flush reports for all circuits that are due, after reading those in use if that is called for.
func (y *syncer) flush(now int64) {
	y.mu.Lock()
	resync := y.resync
	y.resync = false
	var due []*Circuit
	for c, at := range y.due {
		if at <= now && !c.shared().link.peers.unreachable.Load() {
			due = append(due, c)
			delete(y.due, c)
		}
	}
	y.mu.Unlock()
	if resync {
		y.readAll(y.namesInUse(-1))
	}
	for all := range slices.Chunk(due, maxPerOperation) {
		y.reportFor(all)
	}
}

// reportFor runs the orders of several circuits, then sends their reports in one operation, and has each decide on its
// reply. From taking a report until its reply is applied it holds the circuit's reporting.
func (y *syncer) reportFor(all []*Circuit) {
	var reports []StoreReport
	var from []*Circuit
	for _, c := range all {
		switch {
		case !y.client.checkAvailability(), c.shared().link.peers.unreachable.Load():
			y.requeue(c)
			continue
		case !c.beginReporting():
			continue // whoever holds it goes on for us
		}
		err := c.runOrders()
		r, ok := c.takeReport(false)
		if !ok {
			y.release(c, err)
			continue
		}
		c.shared().flushedAt.Store(y.time.now())
		reports, from = append(reports, r), append(from, c)
	}
	if len(reports) == 0 {
		return
	}
	replies := y.client.reportMany(reports)
	for i, c := range from {
		c.applyReport(&reports[i], &replies[i])
		y.release(c, nil)
		y.decide(c, &reports[i], replies[i])
	}
}

// requeue makes a circuit due as soon as its ledger can be reached again.
func (y *syncer) requeue(c *Circuit) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.due[c] = y.time.now()
}

// release ends a circuit's reporting, and schedules what is left to do. err is what its orders ended with.
func (y *syncer) release(c *Circuit, err error) {
	switch again := c.endReporting(); {
	case err != nil && (again || c.hasOrders()):
		y.schedule(c, nextFlush) // no sooner, or a store that refuses would be asked all the time
		return
	case again:
		y.schedule(c, rateLimited)
	}
	c.scheduleOrders()
}

// decide has a circuit decide on the reply to its report. User's functions are not run by loop.
func (y *syncer) decide(c *Circuit, r *StoreReport, answer StoreReply) {
	if c.load().trips.user {
		go c.decide(r, answer)
		return
	}
	c.decide(r, answer)
}

// decideAlone has the circuits whose ledgers have become unreachable decide by their own counts. Failures may have come
// while an operation was waiting for its answer: without this, each of these circuits would open only at its next failure.
func (y *syncer) decideAlone() {
	names, all := y.client.takeLost()
	if all {
		y.mu.Lock()
		names = y.allNamesLocked()
		y.mu.Unlock()
	}
	for _, name := range names {
		for _, c := range y.named(name) {
			if c.load().trips.user { // the others do not wait for a user's function
				go c.decideByOwnCounts()
			} else {
				c.decideByOwnCounts()
			}
		}
	}
}

// namesInUse returns the reachable names whose circuits are in use, atMost of them or, with -1, all. With a limit it goes on
// where it stopped the last time, so that in the end every name has its turn.
func (y *syncer) namesInUse(atMost int) (names []string) {
	y.mu.Lock()
	if len(y.pollQueue) == 0 || atMost < 0 {
		y.pollQueue = y.allNamesLocked()
	}
	all := y.pollQueue
	y.mu.Unlock()
	for len(all) > 0 && len(names) != atMost {
		name := all[0]
		all = all[1:]
		if slices.ContainsFunc(y.named(name), func(c *Circuit) bool { return !c.shared().link.peers.unreachable.Load() && c.inUse() }) {
			names = append(names, name)
		}
	}
	y.mu.Lock()
	y.pollQueue = all
	y.mu.Unlock()
	return names
}

// inUse reports whether the circuit must know the state of its ledger: it has had calls since this was last asked, or it is
// not closed, or not in step.
func (c *Circuit) inUse() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	sh := c.shared()
	calls := c.earlierSuccesses + c.successesLocked() + c.failures + c.rejectedLocked()
	in := calls != sh.polledCalls || c.m.state != Closed || sh.standing != inStep
	sh.polledCalls = calls
	return in
}

// readAll reads ledgers, in several operations where they are many.
func (y *syncer) readAll(names []string) {
	for some := range slices.Chunk(names, maxPerOperation) {
		y.readSome(some)
		if !y.client.checkAvailability() {
			return
		}
	}
}

// readSome reads ledgers in one operation. It reports whether any was answered.
func (y *syncer) readSome(names []string) (answered bool) {
	replies := y.client.readMany(names)
	for i, name := range names {
		for _, c := range y.named(name) {
			c.applyRead(replies[i])
		}
	}
	return slices.ContainsFunc(replies, StoreReply.answered)
}

// applyRead follows the ledger as it was read.
func (c *Circuit) applyRead(r StoreReply) {
	c.applyReply(r, byRemote)
	c.deliver(c.load())
	c.scheduleOrders()
}

// retryStore asks an unreachable store about one name, if that is due. If it answers, all names are read. It returns when to
// try again.
func (y *syncer) retryStore(now int64) (next int64) {
	if now < y.retryAt {
		return y.retryAt
	}
	y.retryAt = nextRetry(now)
	name, ok := y.client.anyName()
	if !ok {
		return y.retryAt
	}
	y.client.read(name)
	if y.client.unreachable.Load() {
		return y.retryAt
	}
	y.readUnreachable(y.client.unreachableNames())
	y.readAll(y.namesInUse(-1))
	return now
}

// retryNames asks about unreachable names while the store itself is reachable, if that is due: first about the one that was
// asked about least often, and if there is an answer about the others. It returns when to try again.
func (y *syncer) retryNames(now int64) (next int64) {
	switch {
	case !y.client.anyUnreachable():
		return never
	case now < y.retryAt:
		return y.retryAt
	}
	if names := y.client.unreachableNames(); len(names) > 0 && y.readSome(names[:1]) {
		y.readUnreachable(names[1:])
	}
	y.retryAt = nextRetry(y.time.now()) // counted from the end: other names have their turn, however long this took
	return y.retryAt
}

func nextRetry(now int64) int64 {
	return now + int64(retryEvery) + rand.Int64N(int64(retryEvery))
}

// readUnreachable reads names that had no answer, as many as possible in one operation. One that hangs may take the others
// of its operation with it: where there is no answer, each half is tried by itself, within maxRetryFailures.
func (y *syncer) readUnreachable(names []string) {
	failures := 0
	var read func([]string)
	read = func(some []string) {
		if failures == maxRetryFailures || y.readSome(some) {
			return
		}
		if failures++; len(some) > 1 {
			read(some[:len(some)/2])
			read(some[len(some)/2:])
		}
	}
	for some := range slices.Chunk(names, maxPerOperation) {
		read(some)
	}
}
