package breaker

import (
	"math/bits"
	"runtime"
	"sync/atomic"
	"unsafe"
)

// cell counts what happens without the lock. ok carries in its upper 16 bits those of the word from wordTagShift on, so
// that a success is counted under the word that admitted it or not at all.
type cell struct {
	started  atomic.Uint64
	ok       atomic.Uint64
	rejected atomic.Uint64
}

const (
	tagShift  = 48
	countMask = 1<<tagShift - 1
)

// shards are counters for many goroutines at once. A circuit makes them when it has seen calls meet at its one cell:
// contended, one shared add costs two goroutines 25 ns each, one on a line of their own 7.
type shards struct {
	shift uint
	cells []paddedCell
}

// paddedCell fills two cache lines: processors fetch lines in pairs.
type paddedCell struct {
	cell
	_ [128 - unsafe.Sizeof(cell{})]byte
}

const (
	contentionToShard = 32 // a circuit that is called seldom should not grow by a chance meeting
	maxShards         = 64
)

func newShards(tag uint64) *shards {
	n := uint(bits.Len(uint(16*runtime.GOMAXPROCS(0) - 1)))
	n = min(n, uint(bits.Len(maxShards-1)))
	s := &shards{shift: 64 - n, cells: make([]paddedCell, 1<<n)}
	for i := range s.cells {
		s.cells[i].ok.Store(tag)
	}
	return s
}

// pick chooses by where the goroutine's stack lies: goroutines have different ones, and asking costs nothing.
func (s *shards) pick() *cell {
	var here byte
	const golden = 0x9E3779B97F4A7C15 // 2^64 / golden ratio: spreads neighbours
	h := uint64(uintptr(unsafe.Pointer(&here))>>11) * golden
	return &s.cells[h>>s.shift].cell
}

// counters returns where this goroutine counts.
func (c *Circuit) counters() *cell {
	if s := c.shards.Load(); s != nil {
		return s.pick()
	}
	return &c.cell
}

// contended is told when two calls have met at a counter.
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

// Sums over the counters.

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

// inCellsLocked is the successes counted under the present word.
func (c *Circuit) inCellsLocked() uint64 {
	return c.sumLocked(func(cl *cell) uint64 { return cl.ok.Load() & countMask })
}

// successesLocked is this epoch's successes.
func (c *Circuit) successesLocked() uint64 { return c.inCellsLocked() + c.lockedSuccesses }

func (c *Circuit) rejectedLocked() uint64 {
	return c.sumLocked(func(cl *cell) uint64 { return cl.rejected.Load() })
}

// inFlightLocked is what was seen to start and has not finished, and what Detach has left running. It reads the ends first,
// so that it is never below the truth.
func (c *Circuit) inFlightLocked() int64 {
	ended := c.earlierSuccesses + c.lockedSuccesses + c.failures
	if c.word.Load()&wordCountStarts != 0 {
		ended += c.inCellsLocked()
	}
	left := int64(0)
	if c.extras != nil {
		ended += c.extras.ignored
		left = c.extras.left
	}
	started := c.sumLocked(func(cl *cell) uint64 { return cl.started.Load() })
	return int64(started-ended) + left
}
