package breaker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"
)

// hub is what all circuits of this process that are on one Store have in common: the watch, the clock for what is due,
// and the knowledge that the store is away. With a Store that is Immediate everything is done by the call that needs it;
// otherwise there is one goroutine, and the Store's own, whatever the number of circuits. A hub lasts as long as it has
// circuits, and keeps none of them alive unless it has something to report.
type hub struct {
	store     Store
	immediate bool
	timeout   time.Duration
	unwatch   func() // nil: the store has given none
	unwatched error  // why nothing is watched
	stop      chan struct{}
	wake      chan struct{}
	time      *timeline    // of this process, whatever clock the circuits have: it paces real connections
	away      atomic.Bool  // the store did not answer, whatever the name: nobody asks it but the hub, now and then
	busy      atomic.Int32 // immediate: operations under way
	overdue   atomic.Int32 // operations that were given up, but have not returned
	trying    atomic.Int32 // those of them that were begun without much hope

	mu      sync.Mutex
	members map[string]*line
	silent  map[string]int // names whose last operation had no answer, and how many in a row had none
	answers uint64         // operations that were answered
	doubt   bool           // one was not that might have been
	n       int
	due     map[*Circuit]int64 // who has something to say, and when
	resync  bool               // everybody should read
	nextAt  int64              // when serve looks again
	names   []string           // to poll, what is left of the present round
	untold  []*Circuit         // whose hooks have to be told of what a store's word has changed

	retryAt int64 // serve's own: when to try what is away
}

// line is what the circuits of one name have in common.
type line struct {
	all  []weak.Pointer[Circuit]
	away atomic.Bool // its last operation had no answer: one ledger may be out of reach where others are not
}

const (
	defaultTimeout = 250 * time.Millisecond // of a Store that does not say
	spacing        = 10 * time.Millisecond  // between two reports of one circuit
	pollEvery      = time.Second            // how often circuits in use are read, whether anything was pushed or not
	pollAtMost     = 500                    // in one second
	reportAtMost   = 256                    // in one operation
	retryEvery     = 250 * time.Millisecond // how often what is away is tried, and up to as much more by chance
	witnesses      = 3                      // names to ask before a store is taken to be away
	retryFailures  = 3                      // how many operations of one try may have no answer
	overdueAtMost  = 256                    // operations that do not return, before there are no more of them
	triesAtMost    = 8                      // those of them that were begun while what they asked for was away
)

// hubs finds the hub of a Store: circuits of one process share its watch.
var hubs struct {
	sync.Mutex
	of map[Store]*hub
}

// hubOf returns the hub of a store, with one place in it taken for a circuit that will join.
func hubOf(s Store) *hub {
	hubs.Lock()
	defer hubs.Unlock()
	h := hubs.of[s]
	if h == nil {
		h = &hub{store: s, timeout: defaultTimeout, stop: make(chan struct{}), wake: make(chan struct{}, 1), time: newTimeline(nil), nextAt: never}
		h.members, h.silent, h.due = make(map[string]*line), make(map[string]int), make(map[*Circuit]int64)
		if i, ok := s.(interface{ Immediate() bool }); ok {
			h.immediate = i.Immediate()
		}
		if t, ok := s.(interface{ Timeout() time.Duration }); ok && t.Timeout() > 0 {
			h.timeout = t.Timeout()
		}
		_, h.unwatched = contained(context.Background(), func(context.Context) []StoreReply {
			h.unwatch = s.Watch(h)
			return nil
		})
		if !h.immediate {
			go h.serve()
		}
		if hubs.of == nil {
			hubs.of = make(map[Store]*hub)
		}
		hubs.of[s] = h
	}
	h.n++
	return h
}

// join enters a circuit. When nobody holds it any more, it leaves by itself.
func (h *hub) join(c *Circuit) {
	p := weak.Make(c)
	h.mu.Lock()
	defer h.mu.Unlock()
	name := c.name
	l := h.members[name]
	if l == nil {
		l = new(line)
		h.members[name] = l
	}
	l.all = append(l.all, p)
	c.extras.share.line = l
	runtime.AddCleanup(c, func(p weak.Pointer[Circuit]) { h.forget(name, p) }, p)
}

// leave takes a circuit out.
func (h *hub) leave(c *Circuit) {
	h.mu.Lock()
	delete(h.due, c)
	h.mu.Unlock()
	h.forget(c.name, weak.Make(c))
}

// forget ends the hub with its last circuit.
func (h *hub) forget(name string, p weak.Pointer[Circuit]) {
	hubs.Lock()
	defer hubs.Unlock()
	h.mu.Lock()
	i := -1
	l := h.members[name]
	if l != nil {
		i = slices.Index(l.all, p)
	}
	if i < 0 {
		h.mu.Unlock()
		return
	}
	if l.all = slices.Delete(l.all, i, i+1); len(l.all) == 0 {
		delete(h.members, name)
		delete(h.silent, name)
	}
	h.mu.Unlock()
	if h.n--; h.n > 0 {
		return
	}
	delete(hubs.of, h.store)
	close(h.stop)
	if h.unwatch != nil {
		go func() { // it waits for what is being delivered, perhaps by this very goroutine
			_, _ = contained(context.Background(), func(context.Context) []StoreReply { // nobody is left to be told
				h.unwatch()
				return nil
			})
		}()
	}
}

// named returns the circuits of a name.
func (h *hub) named(name string) (all []*Circuit) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.members[name]; l != nil {
		for _, p := range l.all {
			if c := p.Value(); c != nil {
				all = append(all, c)
			}
		}
	}
	return all
}

// Changed is called by the store.
func (h *hub) Changed(name string, l Ledger) {
	for _, c := range h.named(name) {
		c.pushed(l)
	}
}

// Resync is called by the store when it may have missed something.
func (h *hub) Resync() {
	if h.immediate {
		h.mu.Lock()
		names := h.allNamesLocked()
		h.mu.Unlock()
		h.readAll(names)
		return
	}
	h.mu.Lock()
	h.resync = true
	h.mu.Unlock()
	h.rouse()
}

func (h *hub) allNamesLocked() []string { return slices.Collect(maps.Keys(h.members)) }

// tellLater sees to it that a circuit's hooks are told, and its orders run. In the midst of an operation of an immediate
// store that waits until it is over: a hook may use the very circuit whose operation it is.
func (h *hub) tellLater(c *Circuit) {
	h.mu.Lock()
	h.untold = append(h.untold, c)
	h.mu.Unlock()
	if h.busy.Load() == 0 {
		h.tellOthers()
	}
}

func (h *hub) tellOthers() {
	for {
		h.mu.Lock()
		all := h.untold
		h.untold = nil
		h.mu.Unlock()
		if len(all) == 0 {
			return
		}
		for _, c := range all {
			c.tellOwn(c.load())
			c.pursue()
		}
	}
}

// run runs what may take its time: in the goroutine of the call where nothing waits, beside it otherwise.
func (h *hub) run(f func()) {
	if h.immediate {
		f()
		return
	}
	go f()
}

// The store's operations, bounded in time.

func (h *hub) report(r StoreReport) StoreReply {
	return h.one(r.Name, func(ctx context.Context) []StoreReply { return h.store.Report(ctx, []StoreReport{r}) })
}

func (h *hub) read(name string) StoreReply {
	return h.readMany([]string{name})[0]
}

func (h *hub) readMany(names []string) []StoreReply {
	return h.many(names, func(ctx context.Context) []StoreReply { return h.store.Read(ctx, names) })
}

func (h *hub) one(name string, op func(context.Context) []StoreReply) StoreReply {
	return h.many([]string{name}, op)[0]
}

func (h *hub) move(m StoreMove) StoreReply {
	return h.single(m.Name, func(ctx context.Context) (Ledger, error) { return h.store.Move(ctx, m) })
}

func (h *hub) acquire(a StoreAcquire) StoreReply {
	return h.single(a.Name, func(ctx context.Context) (Ledger, error) { return h.store.Acquire(ctx, a) })
}

func (h *hub) settle(v StoreVerdict) StoreReply {
	return h.single(v.Name, func(ctx context.Context) (Ledger, error) { return h.store.Settle(ctx, v) })
}

func (h *hub) single(name string, op func(context.Context) (Ledger, error)) StoreReply {
	return h.one(name, func(ctx context.Context) []StoreReply {
		l, err := op(ctx)
		return []StoreReply{{l, err}}
	})
}

// many runs an operation that asks about names, and judges by the answers who is away.
func (h *hub) many(names []string, op func(context.Context) []StoreReply) []StoreReply {
	replies, err := h.bounded(h.hopeless(names), op)
	if err == nil && len(replies) != len(names) {
		err = fmt.Errorf("breaker: store gave %d replies to %d questions", len(replies), len(names))
	}
	if err != nil {
		replies = make([]StoreReply, len(names))
		for i := range replies {
			replies[i].Err = err
		}
	}
	if !h.immediate {
		h.judge(names, replies)
	}
	return replies
}

// hopeless reports whether an answer would be a surprise.
func (h *hub) hopeless(names []string) bool {
	if h.immediate {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.away.Load() || slices.ContainsFunc(names, func(name string) bool { return h.silent[name] > 0 })
}

// answered reports whether the store has answered, be it that it cannot use the ledger.
func (r StoreReply) answered() bool { return r.Err == nil || errors.Is(r.Err, ErrLedger) }

// judge takes the names that had no answer to be away. The store is away where all of them are; where some may not be,
// serve asks one of these.
func (h *hub) judge(names []string, replies []StoreReply) {
	h.mu.Lock()
	defer h.mu.Unlock()
	news, any := false, false
	for i, name := range names {
		ok := replies[i].answered()
		any = any || ok
		l := h.members[name]
		if l == nil {
			continue // it has left
		}
		if ok {
			delete(h.silent, name)
		} else {
			h.silent[name]++
		}
		news = l.away.Swap(!ok) == ok || news
	}
	switch {
	case any:
		h.answers++
		h.doubt = false
		news = h.away.Swap(false) || news
	case len(h.silent) == len(h.members):
		news = !h.away.Swap(true) || news
	default:
		h.doubt = h.doubt || news && !h.away.Load()
	}
	if news {
		h.rouse()
	}
}

// bounded runs an operation, and gives up on one that does not return in time. Of those that are hopeless it begins
// no others while some do not return.
func (h *hub) bounded(hopeless bool, op func(context.Context) []StoreReply) (replies []StoreReply, err error) {
	if h.immediate {
		h.busy.Add(1)
		defer h.busy.Add(-1)
		return contained(context.Background(), op)
	}
	if hopeless && h.trying.Load() >= triesAtMost || h.overdue.Load() >= overdueAtMost {
		return nil, errOverdue
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.timeout)
	type result struct {
		replies []StoreReply
		err     error
	}
	done := make(chan result, 1)
	var over atomic.Bool // it has ended, or was given up; whoever finds it so counts it out
	count := func(by int32) {
		h.overdue.Add(by)
		if hopeless {
			h.trying.Add(by)
		}
	}
	go func() {
		defer func() {
			cancel()
			if over.Swap(true) {
				count(-1)
			}
		}()
		replies, err := contained(ctx, op)
		done <- result{replies, err}
	}()
	late := time.NewTimer(h.timeout + h.timeout/4)
	defer late.Stop()
	select {
	case r := <-done:
		return r.replies, r.err
	case <-late.C:
		count(1)
		if over.Swap(true) {
			count(-1)
		}
		return nil, fmt.Errorf("breaker: store did not return within %v", h.timeout)
	}
}

var errOverdue = errors.New("breaker: store has not returned from what it was asked before")

// contained runs an operation, whose panic is its error.
func contained(ctx context.Context, op func(context.Context) []StoreReply) (replies []StoreReply, err error) {
	err = errors.New("breaker: store ended the goroutine")
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("breaker: store panicked: %v", r)
		}
	}()
	return op(ctx), nil
}

// The goroutine.

// want notes that a circuit has something to say, and when.
func (h *hub) want(c *Circuit, u urgency) {
	if u == notAtAll {
		return
	}
	if h.immediate {
		c.exchange()
		return
	}
	at := h.time.now()
	if u < promptly {
		at = max(at, c.extras.share.flushedAt.Load()+int64(spacing))
	}
	if u == soon {
		at += int64(c.load().sharing.flushEvery)
	}
	h.mu.Lock()
	if was, ok := h.due[c]; !ok || at < was {
		h.due[c] = at
	}
	early := at < h.nextAt
	h.mu.Unlock()
	if early {
		h.rouse()
	}
}

func (h *hub) rouse() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// serve does what is due, until the hub ends.
func (h *hub) serve() {
	pollAt := h.time.now() + int64(pollEvery)
	timer := time.NewTimer(pollEvery)
	defer timer.Stop()
	for {
		select {
		case <-h.stop:
			return
		case <-h.wake:
		case <-timer.C:
		}
		now := h.time.now()
		var next int64
		if h.gone() {
			next = h.retry(now)
		} else {
			h.flush(now)
			if pollAt <= now {
				h.poll()
				pollAt = now + int64(pollEvery)
			}
			next = min(h.nextDue(pollAt), h.retryName(now))
		}
		timer.Reset(duration(max(0, next-h.time.now())))
	}
}

// nextDue is when the next circuit has something to say, or at the latest.
func (h *hub) nextDue(latest int64) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c, at := range h.due {
		if !c.extras.share.line.away.Load() {
			latest = min(latest, at)
		}
	}
	if h.resync || h.doubt {
		latest = 0
	}
	h.nextAt = latest
	return latest
}

// flush lets everybody speak whose time has come, as many as possible in one operation.
func (h *hub) flush(now int64) {
	h.mu.Lock()
	resync := h.resync
	h.resync = false
	var due []*Circuit
	for c, at := range h.due {
		if at <= now && !c.extras.share.line.away.Load() {
			due = append(due, c)
			delete(h.due, c)
		}
	}
	h.mu.Unlock()
	if resync {
		h.readAll(h.inUse(-1))
	}
	for all := range slices.Chunk(due, reportAtMost) {
		h.reportFor(all)
	}
}

// reportFor carries out one round of an exchange for several circuits.
func (h *hub) reportFor(all []*Circuit) {
	var reports []StoreReport
	var speakers []*Circuit
	for _, c := range all {
		switch {
		case h.gone(), c.extras.share.line.away.Load():
			h.put(c)
			continue
		case !c.takeTurn():
			continue // who has it goes on for us
		}
		err := c.runOrders()
		r, ok := c.takeReport(false)
		if !ok {
			h.pass(c, err)
			continue
		}
		c.extras.share.flushedAt.Store(h.time.now())
		reports, speakers = append(reports, r), append(speakers, c)
	}
	if len(reports) == 0 {
		return
	}
	names := make([]string, len(reports))
	for i := range reports {
		names[i] = reports[i].Name
	}
	replies := h.many(names, func(ctx context.Context) []StoreReply { return h.store.Report(ctx, reports) })
	for i, c := range speakers {
		c.reported(&reports[i], &replies[i])
		h.pass(c, nil)
		h.consider(c, &reports[i], replies[i])
	}
}

// put notes that a circuit still has something to say, once its ledger can be reached again.
func (h *hub) put(c *Circuit) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.due[c] = h.time.now()
}

// pass ends a circuit's turn.
func (h *hub) pass(c *Circuit, err error) {
	switch again := c.passTurn(); {
	case err != nil && (again || c.hasOrders()):
		h.want(c, soon) // no sooner, or it would be asked all the time
		return
	case again:
		h.want(c, atOnce)
	}
	c.pursue()
}

// consider has a circuit decide on what was answered; beside this goroutine where that runs a user's function.
func (h *hub) consider(c *Circuit, r *StoreReport, answer StoreReply) {
	if c.load().trips.user {
		go c.decide(r, answer)
		return
	}
	c.decide(r, answer)
}

// poll reads the circuits that are in use, some in each round where they are many.
func (h *hub) poll() {
	h.readAll(h.inUse(pollAtMost))
}

// inUse returns names whose circuits have had calls since they were last here, or are not closed: atMost of them, or all
// with -1. The others have to wait for the next time, and those that had no answer for retryName.
func (h *hub) inUse(atMost int) (names []string) {
	h.mu.Lock()
	if len(h.names) == 0 || atMost < 0 {
		h.names = h.allNamesLocked()
	}
	all := h.names
	h.mu.Unlock()
	for len(all) > 0 && len(names) != atMost {
		name := all[0]
		all = all[1:]
		if slices.ContainsFunc(h.named(name), func(c *Circuit) bool { return !c.extras.share.line.away.Load() && c.inUse() }) {
			names = append(names, name)
		}
	}
	h.mu.Lock()
	h.names = all
	h.mu.Unlock()
	return names
}

// inUse reports whether the circuit should know where its ledger stands: it was used since it was last asked this, or
// it is not closed.
func (c *Circuit) inUse() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	sh := c.extras.share
	used := c.earlierSuccesses + c.successesLocked() + c.failures + c.rejectedLocked()
	in := used != sh.used || c.m.state != Closed || sh.acting != follows
	sh.used = used
	return in
}

// readAll reads where ledgers stand.
func (h *hub) readAll(names []string) {
	for some := range slices.Chunk(names, reportAtMost) {
		h.readSome(some)
		if h.gone() {
			return
		}
	}
}

// readSome is readAll in one operation. It reports whether that was answered.
func (h *hub) readSome(names []string) (answered bool) {
	replies := h.readMany(names)
	for i, name := range names {
		for _, c := range h.named(name) {
			c.readReply(replies[i])
		}
	}
	return slices.ContainsFunc(replies, StoreReply.answered)
}

// readReply takes in where the ledger stands.
func (c *Circuit) readReply(r StoreReply) {
	c.learned(r, byRemote)
	c.tell(c.load())
	c.pursue()
}

// gone reports whether the store is away. Where there is doubt it asks about names that may still have an answer, each
// by itself: one that hangs must not speak for the others.
func (h *hub) gone() bool {
	h.mu.Lock()
	doubt, answers := h.doubt, h.answers
	h.doubt = false
	h.mu.Unlock()
	for n := 0; doubt && n < witnesses; n++ {
		h.mu.Lock()
		name, ok := "", false
		for name = range h.members {
			if ok = h.silent[name] == 0; ok {
				break
			}
		}
		h.mu.Unlock()
		if ok {
			h.read(name)
		}
		h.mu.Lock()
		h.doubt = false
		switch {
		case h.answers != answers, len(h.silent) == 0:
			doubt = false
		case !ok || n == witnesses-1:
			h.away.Store(true)
		}
		h.mu.Unlock()
	}
	return h.away.Load()
}

// retry asks a store that is away whether it is back, and has everybody read if it is. It returns when to try again.
func (h *hub) retry(now int64) (next int64) {
	if now < h.retryAt {
		return h.retryAt
	}
	h.retryAt = h.nextTry(now)
	h.mu.Lock()
	var one []string
	for name := range h.members {
		one = append(one, name)
		break
	}
	h.mu.Unlock()
	if len(one) == 0 {
		return h.retryAt
	}
	h.readMany(one)
	if h.away.Load() {
		return h.retryAt
	}
	h.readSilent(h.silentNames())
	h.readAll(h.inUse(-1))
	return now
}

// retryName asks about the name that was asked about in vain least often, and if there is an answer about the others.
// It returns when to try again.
func (h *hub) retryName(now int64) (next int64) {
	h.mu.Lock()
	n := len(h.silent)
	h.mu.Unlock()
	switch {
	case n == 0:
		return never
	case now < h.retryAt:
		return h.retryAt
	}
	if names := h.silentNames(); len(names) > 0 && h.readSome(names[:1]) {
		h.readSilent(names[1:])
	}
	h.retryAt = h.nextTry(h.time.now()) // other names have their turn meanwhile, however long this took
	return h.retryAt
}

func (h *hub) nextTry(now int64) int64 {
	return now + int64(retryEvery) + rand.Int64N(int64(retryEvery))
}

// silentNames returns the names that had no answer, those first that were asked about least often.
func (h *hub) silentNames() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.SortedFunc(maps.Keys(h.silent), func(a, b string) int { return cmp.Compare(h.silent[a], h.silent[b]) })
}

// readSilent reads names that had no answer, as many as possible in one operation. One that hangs may take the others of
// its operation with it: it is looked for by halves.
func (h *hub) readSilent(names []string) {
	failures := 0
	var read func([]string)
	read = func(some []string) {
		if failures == retryFailures || h.readSome(some) {
			return
		}
		if failures++; len(some) > 1 {
			read(some[:len(some)/2])
			read(some[len(some)/2:])
		}
	}
	for some := range slices.Chunk(names, reportAtMost) {
		read(some)
	}
}
