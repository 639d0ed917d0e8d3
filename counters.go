package breaker

import (
	"math"
	"math/bits"
	"runtime"
	"sync/atomic"
	"unsafe"
)

// cell counts what happens without the lock. The upper 16 bits of successes are the cellTag of the word under which they
// are counted (word.go).
type cell struct {
	started   atomic.Uint64
	successes atomic.Uint64
	rejected  atomic.Uint64
}

const (
	tagShift  = 48
	countMask = 1<<tagShift - 1
)

// shards are the counters of a circuit that is called by many goroutines at once. It makes them once calls have
// contended for its one cell: with two goroutines, an add to a shared counter costs each 25 ns, one to a counter on a
// cache line of its own 7 ns.
type shards struct {
	shift uint // 64 - log2(len(cells))
	cells []paddedCell
}

// paddedCell fills two cache lines, since processors fetch them in pairs.
type paddedCell struct {
	cell
	_ [128 - unsafe.Sizeof(cell{})]byte
}

const (
	contentionToShard = 32 // high enough that a circuit that is seldom called stays small
	maxShards         = 64
)

func newShards(tag uint64) *shards {
	n := uint(bits.Len(uint(16*runtime.GOMAXPROCS(0) - 1)))
	n = min(n, uint(bits.Len(maxShards-1)))
	s := &shards{shift: 64 - n, cells: make([]paddedCell, 1<<n)}
	for i := range s.cells {
		s.cells[i].successes.Store(tag)
	}
	return s
}

// pick chooses a cell by the address of the goroutine's stack, which differs between goroutines and costs nothing to
// get.
func (s *shards) pick() *cell {
	var here byte
	const golden = 0x9E3779B97F4A7C15 // 2^64 / golden ratio: spreads neighbouring stacks over the cells
	h := uint64(uintptr(unsafe.Pointer(&here))>>11) * golden
	return &s.cells[h>>s.shift].cell
}

// counters returns the cell in which this goroutine counts.
func (c *Circuit) counters() *cell {
	if s := c.shards.Load(); s != nil {
		return s.pick()
	}
	return &c.cell
}

// contended notes that two calls wanted the same counter at once, and makes the shards when that happens often.
func (c *Circuit) contended() {
	if c.contention.Add(1) != contentionToShard {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shards.Load() == nil {
		c.shards.Store(newShards(cellTag(c.word.Load())))
	}
}

// oweStartLocked counts the start of a call afterwards. It is apart from the cells because an atomic add, in a line that
// calls write to, took a fifth of settle.
func (c *Circuit) oweStartLocked() {
	if c.owedStarts++; c.owedStarts == math.MaxUint32 {
		c.cell.started.Add(uint64(c.owedStarts))
		c.owedStarts = 0
	}
}

// sumLocked adds up one counter of every cell.
func (c *Circuit) sumLocked(of func(*cell) uint64) uint64 {
	n := of(&c.cell)
	if s := c.shards.Load(); s != nil {
		for i := range s.cells {
			n += of(&s.cells[i].cell)
		}
	}
	return n
}

// inCellsLocked is how many successes the cells hold.
func (c *Circuit) inCellsLocked() uint64 {
	return c.sumLocked(func(cl *cell) uint64 { return cl.successes.Load() & countMask })
}

// successesLocked is how many successes this epoch has had.
func (c *Circuit) successesLocked() uint64 { return c.inCellsLocked() + c.lockedSuccesses }

// rejectedLocked is how many calls were rejected since construction.
func (c *Circuit) rejectedLocked() uint64 {
	return c.sumLocked(func(cl *cell) uint64 { return cl.rejected.Load() })
}
