package breaker

import (
	"fmt"
	"hash/maphash"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"weak"
)

// Where a key is. It is in one of these places, and moves from one to another in one hold of Group.mu:
//
//	absent     nothing is known of it
//	building   one goroutine makes its circuit, others wait                  Group.building
//	kept       its circuit is in the table                                   Group.table
//	away       its circuit is not, but somebody may hold it: a weak pointer  Group.away
//	collected  nobody did; as absent, until the cleanup has removed the pointer
//
//	absent, collected --asked for--> building --made--> kept, or away where there is no room
//	building --its goroutine ends--> absent, and one of those who wait begins anew
//	kept --evicted--> away                 only while closed, in mode Auto and without calls: see Circuit.leave
//	away --asked for, opens, is forced--> kept, or away still where there is no room
//	away --nobody holds it--> collected
//
// So a key has one circuit at a time, and one that is open or forced is forgotten only if it found no room. A circuit that
// is away tells the group when it opens or is forced, under its own lock: it enters itself into Group.recalls, which holds
// it until the next hold of Group.mu puts it back into its place (lock). Locks are taken in the order Group.mu, Circuit.mu,
// recalls.mu.
//
// No function of the user's runs under a lock: PerKey and what a new circuit calls run while the key is building, an
// Overflow hook after unlock.

// building is a key whose circuit is being made.
type building[T any] struct {
	done   chan struct{} // closed when that has ended
	member *member[T]    // what came of it; nil where its goroutine ended before
}

// recalls is the circuits that were evicted and must not be forgotten any more.
type recalls struct {
	any      atomic.Bool
	mu       sync.Mutex
	circuits []*Circuit
}

// add is called under the circuit's lock.
func (r *recalls) add(c *Circuit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.circuits = append(r.circuits, c)
	r.any.Store(true)
}

func (r *recalls) take() (all []*Circuit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all, r.circuits = r.circuits, nil
	r.any.Store(false)
	return all
}

// recallLocked tells the group of a circuit that is away that it must not be forgotten. It is called when the state or
// the mode has changed.
func (c *Circuit) recallLocked(s *settings) {
	if c.evicted && (c.m.state != Closed || c.m.mode != Auto) {
		c.evicted = false // once is enough
		s.draft.recall(c)
	}
}

func (c *Circuit) setAway(away bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.evicted = away
}

func (g *Group[T]) hash(key string) uint64 { return maphash.String(g.seed, key) }

// find looks a key up without a lock. While the table grows it may miss one that is there; obtain will not.
func (g *Group[T]) find(key string) *member[T] {
	if g != nil {
		if t := g.table.Load(); t != nil {
			return t.get(g.hash(key), key)
		}
	}
	panic("breaker: nil or zero Group; make one with NewGroup")
}

// use notes that a member was looked up. A member that is seldom used notes every time; one in constant use, the more
// seldom the busier it is, so that the note's error stays below a 64th of the idle time.
func (m *member[T]) use(idleAfter int64) {
	started := uint32(m.own.cell.started.Load())
	gap := m.usedGap.Load()
	if gap > 0 && started-m.usedIn.Load() < gap {
		return
	}
	now := m.own.load().time.now()
	if now-m.usedAt.Load() < idleAfter/64 {
		m.usedGap.Store(min(2*gap+1, maxUsedGap))
	} else {
		m.usedGap.Store(0)
	}
	m.usedIn.Store(started)
	m.usedAt.Store(now)
}

const maxUsedGap = 1 << 10

// idle reports whether a member has not been used for some time: not looked up, and not called more than once since it
// was. One that has been called by somebody who holds it counts as used just now.
func (m *member[T]) idle(now, idleAfter int64) bool {
	if now-m.usedAt.Load() < idleAfter {
		return false
	}
	started := uint32(m.own.cell.started.Load())
	few := uint32(1) // a lookup is noted before the call that follows it
	if sh := m.own.shards.Load(); sh != nil {
		few = 0 // its own note, of the last time that it was asked about
		for i := range sh.cells {
			started += uint32(sh.cells[i].started.Load())
		}
	}
	if started-m.usedIn.Load() > few {
		m.usedIn.Store(started)
		m.usedAt.Store(now)
		return false
	}
	return true
}

// lock takes the group's lock, and puts back what was recalled before.
func (g *Group[T]) lock() {
	if !g.recalls.any.Load() {
		g.mu.Lock()
		return
	}
	now := g.now() // which may be a function of the user's
	g.mu.Lock()
	for _, c := range g.recalls.take() {
		if m := g.away[c.name].Value(); m != nil && &m.own == c && !g.keptLocked(m) {
			g.keepLocked(m, now)
		}
	}
}

// unlock gives the lock back, and tells the hooks for which circuits there was no room.
func (g *Group[T]) unlock() {
	untold := g.untold
	g.untold = nil
	g.mu.Unlock()
	g.overflowed(untold)
}

// overflowed tells the hooks. A hook that asks for the same key finds no room either, and is not told of that again.
func (g *Group[T]) overflowed(all []*member[T]) {
	if len(all) == 0 {
		return
	}
	key := all[0].own.name
	defer func() { // whatever becomes of this goroutine in a hook
		g.mu.Lock()
		delete(g.telling, key)
		g.mu.Unlock()
		g.overflowed(all[1:])
	}()
	all[0].own.load().hookOverflow(key)
}

func (g *Group[T]) now() int64 { return g.base.Load().settings.time.now() }

func (g *Group[T]) keptLocked(m *member[T]) bool {
	return g.table.Load().get(g.hash(m.own.name), m.own.name) == m
}

// obtain returns the member of a key that find has not found, and makes it if there is none.
func (g *Group[T]) obtain(key string) *member[T] {
	if key == "" {
		s := g.base.Load().settings
		s.hookStoreError("", errEmptyKey)
		return g.apart(key)
	}
	now := g.now()
	for {
		m, b, mine := g.claim(key, now)
		switch {
		case m != nil:
			g.sweepOn(now)
			return m
		case mine:
			return g.build(key, b)
		case isConstructing():
			return g.apart(key)
		}
		<-b.done
		if b.member != nil {
			return b.member
		}
	}
}

// claim returns the member of a key that is kept or away. Otherwise somebody must build it: the caller, if mine.
func (g *Group[T]) claim(key string, now int64) (m *member[T], b *building[T], mine bool) {
	g.lock()
	if m = g.table.Load().get(g.hash(key), key); m == nil {
		if m = g.away[key].Value(); m != nil {
			g.keepLocked(m, now)
		} else if b = g.building[key]; b == nil {
			b = &building[T]{done: make(chan struct{})}
			g.building[key] = b
			g.mu.Unlock() // no hook may end this goroutine before build, which tells them
			return nil, b, true
		}
	}
	g.unlock()
	return m, b, false
}

// build makes the member of a key.
func (g *Group[T]) build(key string, b *building[T]) *member[T] {
	defer g.abandon(key, b)
	base := g.base.Load()
	s, p, d := g.settingsFor(base, key)
	m := &member[T]{}
	m.own.name = key
	m.own.watched = true // whether it is busy decides whether it may go
	var now int64
	constructing(func() {
		now = s.time.now() // not the machine's, which a store or a health check may move as soon as there is one
		m.own.init(s, d)
	})
	m.usedAt.Store(now)
	m.Breaker = p.bind(&m.own)
	untold, closed := g.publish(key, b, m, now)
	defer g.overflowed(untold)
	defer g.sweepOn(now)
	defer g.refresh(m, base)
	if closed {
		_ = m.own.Close() // which asks the store, and may call hooks
	}
	return m
}

// publish ends the building of a key. It returns of whom the hooks must be told, and whether the group is closed.
func (g *Group[T]) publish(key string, b *building[T], m *member[T], now int64) (untold []*member[T], closed bool) {
	g.lock()
	defer g.mu.Unlock()
	delete(g.building, key)
	b.member = m
	close(b.done)
	g.keepLocked(m, now)
	untold, g.untold = g.untold, nil
	return untold, g.closed
}

// abandon ends the building of a key that was not published, because a function of the user's has ended the goroutine.
func (g *Group[T]) abandon(key string, b *building[T]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.building[key] == b {
		delete(g.building, key)
		close(b.done)
	}
}

// apart makes a member that the group does not know.
func (g *Group[T]) apart(key string) *member[T] {
	base := g.base.Load()
	m := &member[T]{}
	m.own.name = key
	m.own.init(base.apart, &base.apart.draft)
	m.Breaker = base.policy.bind(&m.own)
	return m
}

// constructing runs what may call functions of the user's while a key has no circuit yet. It has a frame of its own for
// isConstructing to find.
//
//go:noinline
func constructing(f func()) { f() }

var constructingEntry = reflect.ValueOf(constructing).Pointer()

// isConstructing reports whether this goroutine is inside a function that constructing runs. It must then wait for no
// key: the key may be its own, or that of a goroutine that waits for its own. Nothing but the stack tells, since PerKey
// and hooks take no context that could. It is asked only where there is somebody to wait for.
func isConstructing() bool {
	var pcs [64]uintptr
	for skip := 2; ; skip += len(pcs) {
		n := runtime.Callers(skip, pcs[:])
		if n == 0 {
			return false
		}
		frames := runtime.CallersFrames(pcs[:n])
		for more := true; more; {
			var f runtime.Frame
			if f, more = frames.Next(); f.Entry == constructingEntry {
				return true
			}
		}
	}
}

// refresh gives a member the group's configuration, unless that is still the one that it has. It looks again afterwards:
// another Configure may have overtaken it.
func (g *Group[T]) refresh(m *member[T], has *groupBase[T]) {
	for base := g.base.Load(); base != has; base = g.base.Load() {
		s, _, _ := g.settingsFor(base, m.own.name)
		m.own.replaceSettings(s)
		has = base
	}
}

// settingsFor is the configuration of a key.
func (g *Group[T]) settingsFor(base *groupBase[T], key string) (s *settings, p *callPolicy[T], d *draft) {
	if g.perKey == nil {
		return base.settings, base.policy, &base.draft
	}
	constructing(func() { s, p, d = g.ownSettings(base, key) })
	return s, p, d
}

func (g *Group[T]) ownSettings(base *groupBase[T], key string) (*settings, *callPolicy[T], *draft) {
	var opts []Option
	base.settings.contain(key, "PerKey", func() { opts = g.perKey(key) })
	if len(opts) == 0 {
		return base.settings, base.policy, &base.draft
	}
	d := base.draft
	d.call.fallbacks = slices.Clip(d.call.fallbacks)
	d.take("PerKey", scopeCircuit|scopeSnapshot|scopeCall, opts)
	p := newCallPolicy[T](&d)
	d.checkTwoStep(d.group.twoStep, false)
	if err := d.faults.err(); err != nil {
		err = fmt.Errorf("breaker: options of key %q: %w", key, err)
		base.settings.logUnreturned(key, "PerKey", err)
		base.settings.hookStoreError(key, err)
		return base.settings, base.policy, &base.draft
	}
	return newSettings(&d, base.settings.time), p, &d
}

// keepLocked puts a member into the table, and makes room for it. Where there is none to be had, the member works all the
// same, and is away.
func (g *Group[T]) keepLocked(m *member[T], now int64) {
	if g.size >= g.maxKeys && !g.makeRoomLocked(now) {
		m.own.setAway(true)
		g.rememberLocked(m)
		if key := m.own.name; !g.telling[key] {
			g.telling[key] = true
			g.untold = append(g.untold, m)
		}
		return
	}
	m.own.setAway(false)
	g.size++
	g.table.Load().put(g.hash(m.own.name), m)
	g.growLocked()
}

// How many members are looked at in one hold of the lock, and how often one that is about to go may turn out to be needed.
const (
	lookAt   = 64
	maxTries = 4
)

// makeRoomLocked evicts what is idle, or else the closed circuit with the fewest failures, of those that it looks at; it
// reports whether it could.
func (g *Group[T]) makeRoomLocked(now int64) bool {
	g.sweepLocked(now)
	for range maxTries {
		if g.size < g.maxKeys {
			return true
		}
		least := g.leastLocked(now)
		if least == nil {
			return false
		}
		g.evictLocked(least, now)
	}
	return g.size < g.maxKeys
}

// leastLocked is the member with the fewest failures that may go.
func (g *Group[T]) leastLocked(now int64) (least *member[T]) {
	var failures uint64
	t := g.table.Load()
	for looked, visited := 0, 0; looked < lookAt && visited < min(len(t.buckets), 8*lookAt); visited++ {
		g.hand = (g.hand + 1) % len(t.buckets)
		for m := t.buckets[g.hand].Load(); m != nil; m = m.next.Load() {
			looked++
			if n, ok := m.own.evictable(now); ok && (least == nil || n < failures) {
				least, failures = m, n
			}
		}
		if least != nil && failures == 0 {
			break
		}
	}
	return least
}

// sweepLocked goes on with the search for idle circuits, or begins it where it is time to, and evicts those that it finds.
func (g *Group[T]) sweepLocked(now int64) {
	g.idle = 0
	t := g.table.Load()
	if g.swept >= len(t.buckets) {
		if now < g.sweepAt {
			return
		}
		g.swept, g.sweepAt = 0, now+max(1, g.idleAfter/64)
	}
	for looked, visited := 0, 0; looked < lookAt && visited < 8*lookAt && g.swept < len(t.buckets); visited++ {
		for m := t.buckets[g.swept].Load(); m != nil; {
			looked++
			next := m.next.Load()
			if m.idle(now, g.idleAfter) && g.evictLocked(m, now) {
				g.idle++
			}
			m = next
		}
		g.swept++
	}
}

// maxSweeps is how often sweepOn takes the lock.
const maxSweeps = 16

// sweepOn goes on with the search for idle circuits while it finds some, with the lock given back in between.
func (g *Group[T]) sweepOn(now int64) {
	for more, n := true, 0; more && n < maxSweeps; n++ {
		g.mu.Lock()
		more = g.idle > 0
		if more {
			g.sweepLocked(now)
		}
		g.mu.Unlock()
	}
}

// evictLocked takes a member out of the table, unless it must stay.
func (g *Group[T]) evictLocked(m *member[T], now int64) bool {
	if !m.own.leave(now) {
		return false
	}
	g.gone.Add(1)
	g.table.Load().remove(g.hash(m.own.name), m)
	g.size--
	g.rememberLocked(m)
	return true
}

// rememberLocked keeps hold of a member that is not in the table for as long as somebody else does. The pointer stays
// when the member comes back, so that one that comes and goes has one cleanup only.
func (g *Group[T]) rememberLocked(m *member[T]) {
	key := m.own.name
	if g.away[key].Value() == m {
		return
	}
	g.away[key] = weak.Make(m)
	runtime.AddCleanup(m, (*awayKey[T]).collected, &awayKey[T]{weak.Make(g), key})
}

// awayKey is a key of a group, for the cleanup of its member. It does not hold the group, which holds the member.
type awayKey[T any] struct {
	group weak.Pointer[Group[T]]
	key   string
}

// collected drops what is left of a member that nobody holds any more.
func (a *awayKey[T]) collected() {
	g := a.group.Value()
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if p, ok := g.away[a.key]; ok && p.Value() == nil {
		delete(g.away, a.key)
	}
}

// members is what is in the table now.
func (g *Group[T]) members() []*member[T] {
	g.lock()
	defer g.unlock()
	return g.membersLocked()
}

func (g *Group[T]) membersLocked() []*member[T] {
	all := make([]*member[T], 0, g.size)
	t := g.table.Load()
	for i := range t.buckets {
		for m := t.buckets[i].Load(); m != nil; m = m.next.Load() {
			all = append(all, m)
		}
	}
	return all
}

// reachable is what is in the table now, and what was evicted but is still held by somebody.
func (g *Group[T]) reachable() []*member[T] {
	g.lock()
	defer g.unlock()
	all := g.membersLocked()
	t := g.table.Load()
	for key, p := range g.away {
		if m := p.Value(); m != nil && t.get(g.hash(key), key) != m {
			all = append(all, m)
		}
	}
	return all
}

// evictable reports whether the circuit may be forgotten, and how many failures would be forgotten with it.
func (c *Circuit) evictable(now int64) (failures uint64, ok bool) {
	s := c.load()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.m.now = max(c.m.now, now) // what has left a window protects nobody
	if !c.evictableLocked() {
		return 0, false
	}
	for i := range s.trips.rules {
		if r := &s.trips.rules[i]; r.TripCondition.window != (Window{}) || r.kind == tripCount {
			return c.liveCountsLocked(s).Failures, true
		}
	}
	var n Counts
	c.runsLocked(s, &n)
	return n.ConsecutiveFailures, true
}

func (c *Circuit) evictableLocked() bool {
	return c.m.state == Closed && c.m.mode == Auto && c.inFlightLocked() <= 0 && !c.m.ramping()
}

// leave marks the circuit as away, if it may still be forgotten. From here on it tells its group when it may not.
func (c *Circuit) leave(now int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.m.now = max(c.m.now, now)
	if !c.evictableLocked() {
		return false
	}
	c.evicted = true
	return true
}

// table is a hash table of members: chains that are read without a lock and written under the group's. A sync.Map would
// take 124 bytes a key more than the circuit.
type table[T any] struct {
	buckets []atomic.Pointer[member[T]]
}

const minBuckets = 16

func newTable[T any](buckets int) *table[T] {
	return &table[T]{make([]atomic.Pointer[member[T]], buckets)}
}

func (t *table[T]) bucket(hash uint64) *atomic.Pointer[member[T]] {
	return &t.buckets[hash&uint64(len(t.buckets)-1)]
}

func (t *table[T]) get(hash uint64, key string) *member[T] {
	for m := t.bucket(hash).Load(); m != nil; m = m.next.Load() {
		if m.own.name == key {
			return m
		}
	}
	return nil
}

func (t *table[T]) put(hash uint64, m *member[T]) {
	b := t.bucket(hash)
	m.next.Store(b.Load())
	b.Store(m)
}

func (t *table[T]) remove(hash uint64, m *member[T]) {
	at := t.bucket(hash)
	for at.Load() != m {
		at = &at.Load().next
	}
	at.Store(m.next.Load())
}

// growLocked doubles a table that has more members than buckets. Readers of the old one may be led into a chain of the
// new one meanwhile and miss a key; they ask again under the lock.
func (g *Group[T]) growLocked() {
	old := g.table.Load()
	if g.size <= len(old.buckets) {
		return
	}
	t := newTable[T](2 * len(old.buckets))
	for i := range old.buckets {
		for m := old.buckets[i].Load(); m != nil; {
			next := m.next.Load()
			t.put(g.hash(m.own.name), m)
			m = next
		}
	}
	g.table.Store(t)
}
