package breaker

import (
	"context"
	"fmt"
	"hash/maphash"
	"iter"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"golang.org/x/sync/singleflight"
)

// Group makes one circuit per key: a host, a tenant, a shard. Keys that share nothing but the configuration do not
// disturb each other. It is safe for concurrent use; looking up a key that is there takes no lock. Make one with
// NewGroup: the zero value panics.
//
// A Group is bounded. Where it needs room it evicts circuits that have been idle, then closed ones, those with the
// fewest failures first; never one that is open, half-open, forced or busy, since many keys could be used to reset a
// tripped one otherwise. A circuit that somebody still holds when it is evicted comes back under its key as it is.
type Group[T any] struct {
	seed      maphash.Seed
	table     atomic.Pointer[table[T]]
	base      atomic.Pointer[groupBase[T]]
	gone      atomic.Uint64 // how many evictions there were
	maxKeys   int
	idleAfter int64
	perKey    func(string) []Option
	flight    singleflight.Group // builds each key once

	mu      sync.Mutex
	size    int
	hand    int                                // where the search for room goes on
	sweepAt int64                              // when to look for idle circuits again
	evicted map[string]weak.Pointer[member[T]] // those that were at some time, and that somebody may still hold
	closed  bool
}

// groupBase is what all keys without options of their own share.
type groupBase[T any] struct {
	draft    draft
	settings *settings
	plan     *callPolicy[T]
}

// member is the circuit of a key, and its place in the table. It is one allocation.
type member[T any] struct {
	Breaker[T]
	own     Circuit
	next    atomic.Pointer[member[T]]
	usedAt  atomic.Int64  // when it was last looked up, within usedEvery lookups
	usedIn  atomic.Uint32 // how many calls had started then
	usedGap atomic.Uint32 // how many calls may start before it is noted again
}

// MaxKeys bounds the keys of a Group. Default 10,000.
func MaxKeys(n int) Option {
	return groupOption("MaxKeys", func(d *draft) {
		d.faults.between("MaxKeys", n, 1, maxCount)
		d.group.maxKeys = n
	})
}

// IdleAfter sets after how long without a call a closed circuit of a Group may go. It goes when room is looked for, not
// before: there is no goroutine that would wait for it. Default 10m.
func IdleAfter(t time.Duration) Option {
	return groupOption("IdleAfter", func(d *draft) {
		d.faults.positive("IdleAfter", t)
		d.group.idleAfter = t
	})
}

// PerKey gives some keys options of their own, which are added to the group's. f runs once for each key, and again for
// Configure and for a key without a circuit that Timeout is asked about, outside every lock; it may use the group, but
// not ask for the key that it is asked about. Where what it returns is wrong, the key
// gets the group's options, and the StoreError hook and the logger the error.
func PerKey(f func(key string) []Option) Option {
	return groupOption("PerKey", func(d *draft) {
		if f == nil {
			d.faults.add("PerKey", "must not be nil")
		}
		d.group.perKey = f
	})
}

func groupOption(name string, set func(*draft)) Option { return option{name, scopeGroup, set} }

type groupDraft struct {
	maxKeys   int
	idleAfter time.Duration
	perKey    func(string) []Option
	twoStep   string
}

// NewGroup makes a group. It takes circuit, call and group options; the error names every one that is wrong.
func NewGroup[T any](opts ...Option) (*Group[T], error) {
	d := &draft{cfg: DefaultConfig(), group: groupDraft{maxKeys: 10_000, idleAfter: 10 * time.Minute}}
	d.take("NewGroup", scopeCircuit|scopeFixed|scopeCall|scopeGroup, opts)
	p := newCallPolicy[T](d)
	d.checkTwoStep(d.group.twoStep, false)
	if err := d.faults.err(); err != nil {
		return nil, err
	}
	g := &Group[T]{
		seed:      maphash.MakeSeed(),
		maxKeys:   d.group.maxKeys,
		idleAfter: int64(d.group.idleAfter),
		perKey:    d.group.perKey,
		evicted:   make(map[string]weak.Pointer[member[T]]),
	}
	d.moved = g.opened
	g.table.Store(newTable[T](minBuckets))
	g.base.Store(&groupBase[T]{*d, newSettings(d, newTimeline(d.clock)), p})
	return g, nil
}

// Get returns the breaker of a key, and makes it if there is none. It never returns nil.
func (g *Group[T]) Get(key string) *Breaker[T] {
	m := g.find(key)
	if m == nil {
		m = g.build(key)
	}
	m.use(g.idleAfter)
	return &m.Breaker
}

// Do is Get(key).Do(ctx, fn).
func (g *Group[T]) Do(ctx context.Context, key string, fn func(context.Context) (T, error)) (T, error) {
	m := g.find(key)
	if m == nil { // for a call that will not be made none is made
		if err := precheck(ctx, fn == nil); err != nil {
			var none T
			return none, err
		}
		m = g.build(key)
	}
	m.use(g.idleAfter)
	return m.Breaker.Do(ctx, fn)
}

// Lookup returns the breaker of a key if there is one. It makes none, and does not count as a use.
func (g *Group[T]) Lookup(key string) (*Breaker[T], bool) {
	if m := g.find(key); m != nil {
		return &m.Breaker, true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if m := g.table.Load().get(g.hash(key), key); m != nil {
		return &m.Breaker, true
	}
	return nil, false
}

// Len is how many keys there are.
func (g *Group[T]) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.size
}

// All yields the keys and breakers that were there at its start, in no order.
func (g *Group[T]) All() iter.Seq2[string, *Breaker[T]] {
	return func(yield func(string, *Breaker[T]) bool) {
		for _, m := range g.members() {
			if !yield(m.own.name, &m.Breaker) {
				return
			}
		}
	}
}

// Circuits yields the keys and their circuits: a Group is a [Source].
func (g *Group[T]) Circuits() iter.Seq2[string, *Circuit] {
	return func(yield func(string, *Circuit) bool) {
		for _, m := range g.members() {
			if !yield(m.own.name, &m.own) {
				return
			}
		}
	}
}

// Configure changes the options of the group and of every circuit in it, as [Circuit.Configure] does. What PerKey gives
// a key goes on top again.
func (g *Group[T]) Configure(opts ...Option) error {
	g.mu.Lock()
	old := g.base.Load()
	d := old.draft
	d.take("Configure", scopeCircuit, opts)
	if err := d.faults.err(); err != nil {
		g.mu.Unlock()
		return err
	}
	g.base.Store(&groupBase[T]{d, newSettings(&d, old.settings.time), old.plan})
	g.mu.Unlock()
	for _, m := range g.reachable() {
		g.refresh(m, nil)
	}
	return nil
}

// Close closes every circuit; see [Circuit.Close]. The group goes on working; circuits made later run no health checks.
func (g *Group[T]) Close() error {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	for _, m := range g.reachable() {
		_ = m.own.Close()
	}
	return nil
}

func (g *Group[T]) hash(key string) uint64 { return maphash.String(g.seed, key) }

// find looks a key up without a lock. While the table grows it may miss one that is there; build will not.
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

// build makes the member of a key, or finds it where another call has made it meanwhile.
func (g *Group[T]) build(key string) *member[T] {
	v, _, _ := g.flight.Do(key, func() (any, error) {
		if m := g.revive(key); m != nil {
			return m, nil
		}
		base := g.base.Load()
		s, p, d := g.settingsFor(base, key)
		m := &member[T]{}
		m.own.name = key
		m.own.watched = true // whether it is busy decides whether it may go
		m.own.init(s, d)
		m.Breaker = p.bind(&m.own)
		m.usedAt.Store(m.own.m.now)
		g.add(m)
		g.refresh(m, base)
		return m, nil
	})
	return v.(*member[T])
}

// revive returns the member of a key if it is in the table, or evicted but still held by somebody.
func (g *Group[T]) revive(key string) *member[T] {
	g.mu.Lock()
	m := g.table.Load().get(g.hash(key), key)
	var held *member[T]
	if m == nil {
		held = g.evicted[key].Value()
	}
	g.mu.Unlock()
	if held != nil {
		g.add(held)
		return held
	}
	return m
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
func (g *Group[T]) settingsFor(base *groupBase[T], key string) (*settings, *callPolicy[T], *draft) {
	if g.perKey == nil {
		return base.settings, base.plan, &base.draft
	}
	var opts []Option
	base.settings.contain(key, "PerKey", func() { opts = g.perKey(key) })
	if len(opts) == 0 {
		return base.settings, base.plan, &base.draft
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
		return base.settings, base.plan, &base.draft
	}
	return newSettings(&d, base.settings.time), p, &d
}

// opened brings back a circuit that opens after it was evicted, by a call that had looked it up before. Once open, it
// must not be lost with whoever holds it.
func (g *Group[T]) opened(t Transition) {
	if t.To == Open && g.find(t.Name) == nil {
		g.revive(t.Name)
	}
}

// add puts a member into the table, and makes room for it. Where there is none to be had, the member works all the same,
// but is not kept.
func (g *Group[T]) add(m *member[T]) {
	s := m.own.load()
	now := s.time.now()
	g.mu.Lock()
	room := g.size < g.maxKeys || g.makeRoomLocked(s, now)
	if room {
		g.size++
		g.table.Load().put(g.hash(m.own.name), m)
		g.growLocked()
	} else {
		g.rememberLocked(m)
	}
	closed := g.closed
	g.mu.Unlock()
	if closed {
		_ = m.own.Close() // which asks the store, and may call hooks
	}
	if !room {
		s.hookOverflow(m.own.name)
	}
}

// makeRoomLocked evicts what is idle, or else the closed circuit with the fewest failures; it reports whether it could.
func (g *Group[T]) makeRoomLocked(s *settings, now int64) bool {
	if now >= g.sweepAt {
		g.sweepLocked(s, now)
		if g.size < g.maxKeys {
			return true
		}
	}
	var least *member[T]
	var failures uint64
	t := g.table.Load()
	for range t.buckets {
		g.hand = (g.hand + 1) % len(t.buckets)
		for m := t.buckets[g.hand].Load(); m != nil; m = m.next.Load() {
			if n, ok := m.own.evictable(now); ok && (least == nil || n < failures) {
				least, failures = m, n
			}
		}
		if least != nil && failures == 0 {
			break
		}
	}
	if least == nil {
		return false
	}
	g.evictLocked(least)
	return true
}

// sweepLocked evicts every circuit that has been idle.
func (g *Group[T]) sweepLocked(s *settings, now int64) {
	g.sweepAt = now + max(1, g.idleAfter/64)
	var idle []*member[T]
	t := g.table.Load()
	for i := range t.buckets {
		for m := t.buckets[i].Load(); m != nil; m = m.next.Load() {
			if m.idle(now, g.idleAfter) {
				if _, ok := m.own.evictable(now); ok {
					idle = append(idle, m)
				}
			}
		}
	}
	for _, m := range idle {
		g.evictLocked(m)
	}
}

func (g *Group[T]) evictLocked(m *member[T]) {
	g.gone.Add(1)
	g.table.Load().remove(g.hash(m.own.name), m)
	g.size--
	g.rememberLocked(m)
}

// rememberLocked keeps hold of a member that is not in the table for as long as somebody else does. It goes on when the
// member comes back, so that one that comes and goes has one cleanup only.
func (g *Group[T]) rememberLocked(m *member[T]) {
	key := m.own.name
	if g.evicted[key].Value() == m {
		return
	}
	g.evicted[key] = weak.Make(m)
	runtime.AddCleanup(m, g.forget, key)
}

// forget drops what is left of a member that nobody holds any more.
func (g *Group[T]) forget(key string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p, ok := g.evicted[key]; ok && p.Value() == nil {
		delete(g.evicted, key)
	}
}

// members is what is in the table now.
func (g *Group[T]) members() []*member[T] {
	g.mu.Lock()
	defer g.mu.Unlock()
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
	g.mu.Lock()
	defer g.mu.Unlock()
	all := g.membersLocked()
	t := g.table.Load()
	for key, p := range g.evicted {
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
	if c.m.stateAt(now) != Closed || c.m.state != Closed || c.m.mode != Auto || c.inFlightLocked() > 0 || c.m.ramping() {
		return 0, false
	}
	c.m.now = max(c.m.now, now) // what has left a window protects nobody
	for i := range s.trips.rules {
		if r := &s.trips.rules[i]; r.TripCondition.window != (Window{}) || r.kind == tripCount {
			return c.liveCountsLocked(s).Failures, true
		}
	}
	var n Counts
	c.runsLocked(s, &n)
	return n.ConsecutiveFailures, true
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
