package breaker

import (
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
	away      atomic.Bool  // the store did not answer: nobody asks it but the hub, now and then
	busy      atomic.Int32 // immediate: operations under way

	mu      sync.Mutex
	members map[string][]weak.Pointer[Circuit]
	n       int
	due     map[*Circuit]int64 // who has something to say, and when
	resync  bool               // everybody should read
	nextAt  int64              // when serve looks again
	names   []string           // to poll, what is left of the present round
	untold  []*Circuit         // whose hooks have to be told of what a store's word has changed

	retryAt int64 // serve's own: when to try a store that is away
}

const (
	defaultTimeout = 250 * time.Millisecond // of a Store that does not say
	spacing        = 10 * time.Millisecond  // between two reports of one circuit
	pollEvery      = time.Second            // how often circuits in use are read, whether anything was pushed or not
	pollAtMost     = 500                    // in one second
	reportAtMost   = 256                    // in one operation
	retryEvery     = 250 * time.Millisecond // how often a store that is away is tried, and up to as much more by chance
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
		h.members, h.due = make(map[string][]weak.Pointer[Circuit]), make(map[*Circuit]int64)
		if i, ok := s.(interface{ Immediate() bool }); ok {
			h.immediate = i.Immediate()
		}
		if t, ok := s.(interface{ Timeout() time.Duration }); ok && t.Timeout() > 0 {
			h.timeout = t.Timeout()
		}
		_, h.unwatched = contained(context.Background(), func(context.Context) []Reply {
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
	h.members[c.name] = append(h.members[c.name], p)
	name := c.name
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
	all := h.members[name]
	i := slices.Index(all, p)
	if i < 0 {
		h.mu.Unlock()
		return
	}
	if all = slices.Delete(all, i, i+1); len(all) == 0 {
		delete(h.members, name)
	} else {
		h.members[name] = all
	}
	h.mu.Unlock()
	if h.n--; h.n > 0 {
		return
	}
	delete(hubs.of, h.store)
	close(h.stop)
	if h.unwatch != nil {
		go func() { // it waits for what is being delivered, perhaps by this very goroutine
			_, _ = contained(context.Background(), func(context.Context) []Reply { // nobody is left to be told
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
	for _, p := range h.members[name] {
		if c := p.Value(); c != nil {
			all = append(all, c)
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

func (h *hub) report(r Report) Reply {
	return h.one(func(ctx context.Context) []Reply { return h.store.Report(ctx, []Report{r}) })
}

func (h *hub) read(name string) Reply {
	return h.one(func(ctx context.Context) []Reply { return h.store.Read(ctx, []string{name}) })
}

func (h *hub) one(op func(context.Context) []Reply) Reply { return h.many(1, op)[0] }

func (h *hub) move(m Move) Reply {
	return h.single(func(ctx context.Context) (Ledger, error) { return h.store.Move(ctx, m) })
}

func (h *hub) acquire(a Acquire) Reply {
	return h.single(func(ctx context.Context) (Ledger, error) { return h.store.Acquire(ctx, a) })
}

func (h *hub) settle(v Verdict) Reply {
	return h.single(func(ctx context.Context) (Ledger, error) { return h.store.Settle(ctx, v) })
}

func (h *hub) single(op func(context.Context) (Ledger, error)) Reply {
	return h.one(func(ctx context.Context) []Reply {
		l, err := op(ctx)
		return []Reply{{l, err}}
	})
}

// many runs an operation that answers n questions. Without an answer to any of them, the store is taken to be away.
func (h *hub) many(n int, op func(context.Context) []Reply) []Reply {
	replies, err := h.bounded(op)
	if err == nil && len(replies) != n {
		err = fmt.Errorf("breaker: store gave %d replies to %d questions", len(replies), n)
	}
	if err != nil {
		replies = make([]Reply, n)
		for i := range replies {
			replies[i].Err = err
		}
	}
	answered := slices.ContainsFunc(replies, func(r Reply) bool { return r.Err == nil || errors.Is(r.Err, ErrLedger) })
	if !h.immediate && h.away.Swap(!answered) == answered {
		h.rouse()
	}
	return replies
}

// bounded runs an operation, and gives up on one that does not return in time.
func (h *hub) bounded(op func(context.Context) []Reply) (replies []Reply, err error) {
	if h.immediate {
		h.busy.Add(1)
		defer h.busy.Add(-1)
		return contained(context.Background(), op)
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.timeout)
	type result struct {
		replies []Reply
		err     error
	}
	done := make(chan result, 1)
	go func() {
		defer cancel()
		replies, err := contained(ctx, op)
		done <- result{replies, err}
	}()
	late := time.NewTimer(h.timeout + h.timeout/4)
	defer late.Stop()
	select {
	case r := <-done:
		return r.replies, r.err
	case <-late.C:
		return nil, fmt.Errorf("breaker: store did not return within %v", h.timeout)
	}
}

// contained runs an operation, whose panic is its error.
func contained(ctx context.Context, op func(context.Context) []Reply) (replies []Reply, err error) {
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
		at = max(at, c.rare.share.flushedAt.Load()+int64(spacing))
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
		if h.away.Load() {
			next = h.retry(now)
		} else {
			h.flush(now)
			if pollAt <= now {
				h.poll()
				pollAt = now + int64(pollEvery)
			}
			next = min(pollAt, h.nextDue(pollAt))
		}
		timer.Reset(duration(max(0, next-h.time.now())))
	}
}

// nextDue is when the next circuit has something to say, or at the latest.
func (h *hub) nextDue(latest int64) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, at := range h.due {
		latest = min(latest, at)
	}
	if h.resync {
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
		if at <= now {
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
	var reports []Report
	var speakers []*Circuit
	for _, c := range all {
		switch {
		case h.away.Load():
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
		c.rare.share.flushedAt.Store(h.time.now())
		reports, speakers = append(reports, r), append(speakers, c)
	}
	if len(reports) == 0 {
		return
	}
	replies := h.many(len(reports), func(ctx context.Context) []Reply { return h.store.Report(ctx, reports) })
	for i, c := range speakers {
		c.reported(&reports[i], &replies[i])
		h.pass(c, nil)
		h.consider(c, &reports[i], replies[i])
	}
}

// put notes that a circuit still has something to say, once the store is back.
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
func (h *hub) consider(c *Circuit, r *Report, answer Reply) {
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
// with -1. The others have to wait for the next time.
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
		if slices.ContainsFunc(h.named(name), (*Circuit).inUse) {
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
	sh := c.rare.share
	used := c.oks + c.successesLocked() + c.failures + c.rejectedLocked()
	in := used != sh.used || c.m.state != Closed || sh.acting != follows
	sh.used = used
	return in
}

// readAll reads where ledgers stand.
func (h *hub) readAll(names []string) {
	for some := range slices.Chunk(names, reportAtMost) {
		replies := h.many(len(some), func(ctx context.Context) []Reply { return h.store.Read(ctx, some) })
		for i, name := range some {
			for _, c := range h.named(name) {
				c.readReply(replies[i])
			}
		}
		if h.away.Load() {
			return
		}
	}
}

// readReply takes in where the ledger stands.
func (c *Circuit) readReply(r Reply) {
	c.learned(r, byRemote)
	c.tell(c.load())
	c.pursue()
}

// retry asks a store that is away whether it is back, and has everybody read if it is. It returns when to try again.
func (h *hub) retry(now int64) (next int64) {
	if now < h.retryAt {
		return h.retryAt
	}
	h.retryAt = now + int64(retryEvery) + rand.Int64N(int64(retryEvery))
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
	h.many(1, func(ctx context.Context) []Reply { return h.store.Read(ctx, one) })
	if h.away.Load() {
		return h.retryAt
	}
	h.readAll(h.inUse(-1))
	return now
}
