package breaker

// The word tells a call, in one atomic load, what it has to do. The circuit writes it under mu whenever one of these
// things changes (publishLocked); a call keeps the word that admitted it until it settles.
//
//	63                                  8   7   6   5   4   3      0
//	+-----------------------------------+---+---+---+---+----------+
//	|               epoch               | L | S | F | T |  period  |
//	+-----------------------------------+---+---+---+---+----------+
//
//	F  wordFast         admission: count the start, if S is set, and go
//	T  wordTimed        admission: read the clock as well, but do not take the lock
//	                    (neither F nor T: take the lock and ask the machine)
//	S  wordCountStarts  admission: count the start of the call, so that the calls in flight are known
//	L  wordLockSuccess  settlement: a success, too, takes the lock
//	period              settlement: every 2^period-th success of a cell does periodicWork; 0: none does
//
// A success without the lock is counted in a cell. The cell carries bits 5 to 20 of the word (cellTag), and a success
// is counted there only if they equal those of the word that admitted the call. Otherwise the word has changed since,
// and the success takes the slow path, which compares the epochs under the lock.
const (
	wordPeriodShift = 0 // 4 bits wide
	wordTimed       = 1 << 4
	wordFast        = 1 << 5 // never set in a zero Circuit, which so comes to load and panics
	wordCountStarts = 1 << 6
	wordLockSuccess = 1 << 7
	wordEpoch       = 8
	wordTagShift    = 5 // the lowest bit that a cell carries
)

// periodDue reports whether the n-th success of a cell is one that does periodicWork.
func periodDue(word, n uint64) bool {
	every := word >> wordPeriodShift & 15
	return every != 0 && n<<(64-every) == 0
}

// After untrackAfter successes in one cell, a circuit of which nobody has taken a Snapshot stops counting the starts of
// calls: counting a start costs a third of a call, and so does counting its end. With one goroutine, where a call with a
// deferred flag takes 5.4 ns, a success takes 15.1 without and 21.1 with its start counted: 2.8 and 3.9 times as long. That
// is why all this is worth its price: wordCountStarts, periodicWork, and the starts that are made up for.
const (
	untrackShift = 15
	untrackAfter = 1 << untrackShift
)

// cellTag is bits 5 to 20 of the word, moved to where a cell carries them.
func cellTag(word uint64) uint64 { return word >> wordTagShift << tagShift }

// undisturbed reports whether a call is admitted without asking the machine.
func (c *Circuit) undisturbed() bool { return c.word.Load()&(wordFast|wordTimed) != 0 }

// publishLocked writes the word anew.
func (c *Circuit) publishLocked(s *settings) {
	w := c.m.epoch << wordEpoch
	if c.m.state == Closed && c.m.mode == Auto && !c.m.ramping() && s.policy.maxInFlight == 0 {
		if s.timed {
			w |= wordTimed
		} else {
			w |= wordFast
		}
	}
	if !c.untracked {
		w |= wordCountStarts | untrackShift<<wordPeriodShift
	}
	if c.memory != nil && c.memory.sampling {
		w = w&^(15<<wordPeriodShift) | sampleShift<<wordPeriodShift
	}
	if c.memory.needsEverySuccess(s.trips, c.m.now) || s.sharing != nil && c.needsSuccessLocked() {
		w |= wordLockSuccess
	}
	old := c.word.Load()
	if w == old || (w|old)&(wordFast|wordTimed) == 0 { // without these bits nobody reads the others, and the write can wait
		return
	}
	c.word.Store(w)
	if (w|old)&wordFast != 0 && cellTag(w) != cellTag(old) {
		c.drainCellsLocked(old, w)
	}
}

// disableFastPathLocked closes the fast path before a failure opens the circuit, and reports whether a success was
// counted since that failure was. Such a success counts as the earlier of the two and ends the run of failures.
// Successes that find the fast path closed are late. So no success is lost, and none is counted twice.
func (c *Circuit) disableFastPathLocked() bool {
	if w := c.word.Load(); w&wordFast != 0 {
		closed := w &^ wordFast
		c.word.Store(closed)
		c.drainCellsLocked(w, closed)
	}
	return c.successesLocked() != c.runMark
}

// drainCellsLocked gives every cell the new word's tag, and moves the successes counted under the old one to
// lockedSuccesses. The ends of calls whose starts were not counted are then counted; so their starts are made up for.
func (c *Circuit) drainCellsLocked(old, w uint64) {
	tag := cellTag(w)
	n := c.sumLocked(func(cl *cell) uint64 { return cl.successes.Swap(tag) & countMask })
	c.lockedSuccesses += n
	if c.memory != nil {
		c.memory.transferred -= n
	}
	if old&wordCountStarts == 0 {
		c.cell.started.Add(n)
	}
}
