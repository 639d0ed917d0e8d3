package breaker

// The word. Its upper bits are the machine's epoch; the lower ones say what an admission or settlement needs besides.
const (
	wordTick  = 0      // settlement of a success: something more, once in every 2^n; 4 bits of n, 0 for nothing
	wordTimed = 1 << 4 // admission: the time, but no lock
	wordPlain = 1 << 5 // admission: nothing. It is the bit that a zero Circuit lacks
	wordTrack = 1 << 6 // admission: count it, so that calls in flight are known
	wordNote  = 1 << 7 // settlement of a success: the lock
	wordEpoch = 8
	wordTag   = 5 // from here on, a success must be counted under the word that admitted it
)

// ticks reports whether the n-th success of a cell has something more to do.
func ticks(word, n uint64) bool {
	every := word >> wordTick & 15
	return every != 0 && n<<(64-every) == 0
}

// untrackAfter is how many successes a circuit has before it stops counting what starts, unless somebody has taken a
// Snapshot: each of the two counts is a third of the cost of a call. They are counted in a cell, by ticks.
const untrackAfter = 1 << trackTick

const trackTick = 15

func tagOf(word uint64) uint64 { return word >> wordTag << tagShift }

// publishLocked puts into word what lock-free readers need to know.
func (c *Circuit) publishLocked(s *settings) {
	w := c.m.epoch << wordEpoch
	if c.m.state == Closed && c.m.mode == Auto && !c.m.ramping() && s.policy.maxInFlight == 0 {
		if s.timed {
			w |= wordTimed
		} else {
			w |= wordPlain
		}
	}
	if !c.untracked {
		w |= wordTrack | trackTick<<wordTick
	}
	if c.memory != nil && c.memory.sampling {
		w = w&^(15<<wordTick) | sampleTick<<wordTick
	}
	if s.trips.user || c.memory.watches(s, c.m.now) || s.sharing != nil && c.asksForSuccessesLocked() {
		w |= wordNote
	}
	old := c.word.Load()
	if w == old || (w|old)&(wordPlain|wordTimed) == 0 { // of one without these bits, nobody reads the others
		return
	}
	c.word.Store(w)
	if (w|old)&wordPlain != 0 && tagOf(w) != tagOf(old) {
		c.retagLocked(old, w)
	}
}

// sealLocked ends the fast path before a failure trips, and reports whether a success has slipped in since that failure
// was counted. It then came before: either it breaks the run, or it comes too late, but never both.
func (c *Circuit) sealLocked() bool {
	if w := c.word.Load(); w&wordPlain != 0 {
		sealed := w &^ wordPlain
		c.word.Store(sealed)
		c.retagLocked(w, sealed)
	}
	return c.successesLocked() != c.runMark
}

// retagLocked marks every cell for a new word, and takes out what was counted under the old one.
func (c *Circuit) retagLocked(old, w uint64) {
	tag := tagOf(w)
	n := c.sumLocked(func(cl *cell) uint64 { return cl.ok.Swap(tag) & countMask })
	c.slowOK += n
	if c.memory != nil {
		c.memory.filed -= n
	}
	if old&wordTrack == 0 {
		c.cell.started.Add(n)
	}
}
