package breaker

import (
	"math/bits"
	"runtime"
	"unsafe"
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
	clashesToShard = 32 // a circuit that is called seldom should not grow by a chance meeting
	maxShards      = 64
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

// contended is told when two calls have met at a counter.
func (c *Circuit) contended() {
	if c.clashes.Add(1) != clashesToShard {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shards.Load() == nil {
		c.shards.Store(newShards(tagOf(c.word.Load())))
	}
}
