package breaker

import (
	"context"
	"errors"
	"hash/maphash"
	"iter"
	"sync"
	"sync/atomic"
	"time"
	"weak"
)

// Group makes one circuit per key: a host, a tenant, a shard. Keys that share nothing but the configuration do not
// disturb each other. It is safe for concurrent use; looking up a key that is there takes no lock. Make one with
// NewGroup: the zero value panics.
//
// A Group is bounded. Where it needs room it evicts circuits that have been idle, then closed ones, and of those that
// it looks at the one with the fewest failures; never one that is open, half-open, forced or busy, since many keys could
// be used to reset a tripped one otherwise. It looks at 64 circuits at most for one key, however many there are. A
// circuit that somebody still holds when it is evicted comes back under its key as it is, and by itself if it opens or is
// forced meanwhile.
//
// A key must not be empty.
type Group[T any] struct {
	seed      maphash.Seed
	table     atomic.Pointer[table[T]]
	base      atomic.Pointer[groupBase[T]]
	gone      atomic.Uint64 // how many evictions there were
	maxKeys   int
	idleAfter int64
	perKey    func(string) []Option
	recalls   recalls

	mu       sync.Mutex // group_table.go says what is where
	size     int
	hand     int                                // the bucket where the search for room goes on
	swept    int                                // the bucket where the search for idle circuits goes on
	sweepAt  int64                              // when to begin that search anew
	idle     int                                // how many it found last
	building map[string]*building[T]            // the keys whose circuits are being made
	away     map[string]weak.Pointer[member[T]] // the circuits that were evicted at some time, until they are collected
	telling  map[string]bool                    // the keys that an Overflow hook is being told of
	untold   []*member[T]                       // of these, the ones that this hold of mu has added
	closed   bool
}

// groupBase is what all keys without options of their own share.
type groupBase[T any] struct {
	draft    draft
	settings *settings
	policy   *callPolicy[T]
	apart    *settings // of circuits that belong to no key of the group: without store, health check and recall
	bypass   *settings // of circuits for calls that pass theirs by: apart, and nothing ever rejects
}

func newGroupBase[T any](d *draft, t *timeline, p *callPolicy[T]) *groupBase[T] {
	apart := *d
	apart.store, apart.health, apart.recall = sharingDraft{}, nil, nil
	bypass := apart
	bypass.cfg = DefaultConfig() // no window, which would have to be made for every call
	bypass.cfg.Mode = ForcedClosed
	bypass.cfg.IgnoreCallerDeadline = d.cfg.IgnoreCallerDeadline
	return &groupBase[T]{*d, newSettings(d, t), p, newSettings(&apart, t), newSettings(&bypass, t)}
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

// PerKey gives some keys options of their own, which are added to the group's. f runs once for each key and again for
// Configure, outside every lock; breakerhttp also asks it when a request passes the circuit of a new key by. Where what
// it returns is wrong, or it panics, the key gets the group's options, and the StoreError hook and the logger the error.
//
// f may use the group. But a key whose circuit is being made is not waited for inside f, since that could be for ever:
// for such a key, above all the one that f is asked about, Get and Do use a circuit that works and is not kept.
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
		building:  make(map[string]*building[T]),
		away:      make(map[string]weak.Pointer[member[T]]),
		telling:   make(map[string]bool),
	}
	d.recall = g.recalls.add
	g.table.Store(newTable[T](minBuckets))
	g.base.Store(newGroupBase(d, newTimeline(d.clock), p))
	return g, nil
}

// Get returns the breaker of a key, and makes it if there is none. It never returns nil: for an empty key, which is a
// mistake, it returns a new breaker each time, which works, is in no store and is not kept, and tells the StoreError hook.
func (g *Group[T]) Get(key string) *Breaker[T] {
	m := g.find(key)
	if m == nil {
		m = g.obtain(key)
	}
	m.use(g.idleAfter)
	return &m.Breaker
}

var errEmptyKey = errors.New(`breaker: Group: key must not be empty, got ""`)

// Do is Get(key).Do(ctx, fn). With an empty key it returns an error and calls nothing.
func (g *Group[T]) Do(ctx context.Context, key string, fn func(context.Context) (T, error)) (T, error) {
	m := g.find(key)
	if m == nil { // for a call that will not be made none is made
		if err := precheck(ctx, fn == nil); err != nil {
			var none T
			return none, err
		}
		if key == "" {
			var none T
			return none, errEmptyKey
		}
		m = g.obtain(key)
	}
	m.use(g.idleAfter)
	return m.Breaker.Do(ctx, fn)
}

// Lookup returns the breaker of a key if there is one. It makes none, and does not count as a use.
func (g *Group[T]) Lookup(key string) (*Breaker[T], bool) {
	if m := g.find(key); m != nil {
		return &m.Breaker, true
	}
	g.lock()
	m := g.table.Load().get(g.hash(key), key)
	g.unlock()
	if m == nil {
		return nil, false
	}
	return &m.Breaker, true
}

// Len is how many keys there are.
func (g *Group[T]) Len() int {
	g.lock()
	size := g.size
	g.unlock()
	return size
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
	for {
		old := g.base.Load()
		d := old.draft
		d.take("Configure", scopeCircuit, opts)
		if err := d.faults.err(); err != nil {
			return err
		}
		if g.base.CompareAndSwap(old, newGroupBase(&d, old.settings.time, old.policy)) {
			break
		}
	}
	for _, m := range g.reachable() {
		g.refresh(m, nil)
	}
	return nil
}

// Close closes every circuit; see [Circuit.Close]. The group goes on working; circuits made later run no health checks.
func (g *Group[T]) Close() error {
	g.lock()
	g.closed = true
	g.unlock()
	for _, m := range g.reachable() {
		_ = m.own.Close()
	}
	return nil
}
