package breaker

// The word. Its upper bits are the machine's epoch; the lower ones say what an admission or settlement needs besides.
const (
	wordPeriodShift = 0      // settlement of a success: something more, once in every 2^n; 4 bits of n, 0 for nothing
	wordTimed       = 1 << 4 // admission: the time, but no lock
	wordFast        = 1 << 5 // admission: nothing. It is the bit that a zero Circuit lacks
	wordCountStarts = 1 << 6 // admission: count it, so that calls in flight are known
	wordLockSuccess = 1 << 7 // settlement of a success: the lock
	wordEpoch       = 8
	wordTagShift    = 5 // from here on, a success must be counted under the word that admitted it
)

// periodDue reports whether the n-th success of a cell has something more to do.
func periodDue(word, n uint64) bool {
	every := word >> wordPeriodShift & 15
	return every != 0 && n<<(64-every) == 0
}

// untrackAfter is how many successes a circuit has before it stops counting what starts, unless somebody has taken a
// Snapshot: each of the two counts is a third of the cost of a call. They are counted in a cell, by periodDue.
const untrackAfter = 1 << untrackShift

const untrackShift = 15

func cellTag(word uint64) uint64 { return word >> wordTagShift << tagShift }

// publishLocked puts into word what lock-free readers need to know.
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
	if s.trips.user || c.memory.needsEverySuccess(s.trips, c.m.now) || s.sharing != nil && c.asksForSuccessesLocked() {
		w |= wordLockSuccess
	}
	old := c.word.Load()
	if w == old || (w|old)&(wordFast|wordTimed) == 0 { // of one without these bits, nobody reads the others
		return
	}
	c.word.Store(w)
	if (w|old)&wordFast != 0 && cellTag(w) != cellTag(old) {
		c.drainCellsLocked(old, w)
	}
}

// disableFastPathLocked ends the fast path before a failure trips, and reports whether a success has slipped in since that failure
// was counted. It then came before: either it breaks the run, or it comes too late, but never both.
func (c *Circuit) disableFastPathLocked() bool {
	if w := c.word.Load(); w&wordFast != 0 {
		sealed := w &^ wordFast
		c.word.Store(sealed)
		c.drainCellsLocked(w, sealed)
	}
	return c.successesLocked() != c.runMark
}

// drainCellsLocked marks every cell for a new word, and takes out what was counted under the old one.
func (c *Circuit) drainCellsLocked(old, w uint64) {
	tag := cellTag(w)
	n := c.sumLocked(func(cl *cell) uint64 { return cl.ok.Swap(tag) & countMask })
	c.lockedSuccesses += n
	if c.memory != nil {
		c.memory.transferred -= n
	}
	if old&wordCountStarts == 0 {
		c.cell.started.Add(n)
	}
}
