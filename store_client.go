package breaker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// storeClient carries out the operations of one Store: each returns within a bounded time, and a panic is its error. From
// the answers it knows which names, or the whole store, cannot be reached. It knows nothing of circuits; the syncer does.
//
// A name is unreachable if its last operation had no answer. The store is unreachable if all names are, or if some are and
// checkAvailability has found no other that answers: then nobody asks it but the syncer's loop, now and then. A Store that
// is Immediate is never unreachable.
type storeClient struct {
	store     Store
	immediate bool          // operations never wait: they are called directly
	timeout   time.Duration // of one operation
	changed   func()        // called when a name or the store became reachable or unreachable; must not block
	onLost    func()        // called in a goroutine of its own when takeLost has something to return

	unreachable    atomic.Bool
	calls          atomic.Int32 // immediate: operations under way
	overdue        atomic.Int32 // operations that were given up, but have not returned
	overdueRetries atomic.Int32 // those of them that were begun when no answer was expected

	mu         sync.Mutex
	names      map[string]*atomic.Bool // of the circuits there are; whether each is unreachable
	unanswered map[string]int          // the unreachable ones: how many operations in a row had no answer
	lost       map[string]struct{}     // those that became unreachable since takeLost was last called; nil: none
	lostAll    bool                    // the whole store did
	answers    uint64                  // operations that were answered
	suspect    bool                    // a name became unreachable while others may be reached: checkAvailability is to find out
}

const (
	defaultTimeout    = 250 * time.Millisecond // of a Store that does not say
	maxOverdue        = 256                    // operations that do not return, before no more are begun
	maxOverdueRetries = 8                      // the same for operations that are not expected to be answered
	maxSuspectReads   = 3                      // names that do not answer either, before the store is taken to be unreachable
)

func newStoreClient(s Store, changed, onLost func()) *storeClient {
	sc := &storeClient{store: s, timeout: defaultTimeout, changed: changed, onLost: onLost}
	sc.names, sc.unanswered = make(map[string]*atomic.Bool), make(map[string]int)
	if i, ok := s.(interface{ Immediate() bool }); ok {
		sc.immediate = i.Immediate()
	}
	if t, ok := s.(interface{ Timeout() time.Duration }); ok && t.Timeout() > 0 {
		sc.timeout = t.Timeout()
	}
	return sc
}

// addName makes a name known. It returns where to read whether the name is unreachable.
func (sc *storeClient) addName(name string) (unreachable *atomic.Bool) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	unreachable = new(atomic.Bool)
	sc.names[name] = unreachable
	return unreachable
}

func (sc *storeClient) removeName(name string) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	delete(sc.names, name)
	delete(sc.unanswered, name)
	delete(sc.lost, name)
}

// anyName returns one of the names, at random.
func (sc *storeClient) anyName() (name string, ok bool) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	for name := range sc.names {
		return name, true
	}
	return "", false
}

// The operations.

func (sc *storeClient) watch(w StoreWatcher) (unwatch func(), err error) {
	_, err = contained(context.Background(), func(context.Context) []StoreReply {
		unwatch = sc.store.Watch(w)
		return nil
	})
	return unwatch, err
}

// endWatch ends a watch; nobody is left who could be told that it panicked.
func (sc *storeClient) endWatch(unwatch func()) {
	_, _ = contained(context.Background(), func(context.Context) []StoreReply {
		unwatch()
		return nil
	})
}

func (sc *storeClient) report(r StoreReport) StoreReply {
	return sc.reportMany([]StoreReport{r})[0]
}

func (sc *storeClient) reportMany(reports []StoreReport) []StoreReply {
	names := make([]string, len(reports))
	for i := range reports {
		names[i] = reports[i].Name
	}
	return sc.operate(names, func(ctx context.Context) []StoreReply { return sc.store.Report(ctx, reports) })
}

func (sc *storeClient) read(name string) StoreReply {
	return sc.readMany([]string{name})[0]
}

func (sc *storeClient) readMany(names []string) []StoreReply {
	return sc.operate(names, func(ctx context.Context) []StoreReply { return sc.store.Read(ctx, names) })
}

func (sc *storeClient) move(m StoreMove) StoreReply {
	return sc.operateOne(m.Name, func(ctx context.Context) (Ledger, error) { return sc.store.Move(ctx, m) })
}

func (sc *storeClient) acquire(a StoreAcquire) StoreReply {
	return sc.operateOne(a.Name, func(ctx context.Context) (Ledger, error) { return sc.store.Acquire(ctx, a) })
}

func (sc *storeClient) settle(v StoreVerdict) StoreReply {
	return sc.operateOne(v.Name, func(ctx context.Context) (Ledger, error) { return sc.store.Settle(ctx, v) })
}

func (sc *storeClient) operateOne(name string, op func(context.Context) (Ledger, error)) StoreReply {
	return sc.operate([]string{name}, func(ctx context.Context) []StoreReply {
		l, err := op(ctx)
		return []StoreReply{{l, err}}
	})[0]
}

// operate carries out an operation about names, and learns from the replies who is reachable. It returns one reply per name.
func (sc *storeClient) operate(names []string, op func(context.Context) []StoreReply) []StoreReply {
	replies, err := sc.bounded(!sc.expectsAnswer(names), op)
	if err == nil && len(replies) != len(names) {
		err = fmt.Errorf("breaker: store gave %d replies to %d questions", len(replies), len(names))
	}
	if err != nil {
		replies = make([]StoreReply, len(names))
		for i := range replies {
			replies[i].Err = err
		}
	}
	if !sc.immediate {
		sc.markReachability(names, replies)
	}
	return replies
}

// expectsAnswer reports whether the store and all of these names were reachable at the last operation.
func (sc *storeClient) expectsAnswer(names []string) bool {
	if sc.immediate {
		return true
	}
	sc.mu.Lock()
	defer sc.mu.Unlock()
	return !sc.unreachable.Load() && !slices.ContainsFunc(names, func(name string) bool { return sc.unanswered[name] > 0 })
}

// bounded runs an operation, and gives up on one that does not return in time. A retry is an operation that is not expected
// to be answered; fewer of those may hang at once, or a store that never returns would collect a goroutine at every try.
func (sc *storeClient) bounded(retry bool, op func(context.Context) []StoreReply) (replies []StoreReply, err error) {
	if sc.immediate {
		sc.calls.Add(1)
		defer sc.calls.Add(-1)
		return contained(context.Background(), op)
	}
	if retry && sc.overdueRetries.Load() >= maxOverdueRetries || sc.overdue.Load() >= maxOverdue {
		return nil, errOverdue
	}
	ctx, cancel := context.WithTimeout(context.Background(), sc.timeout)
	type result struct {
		replies []StoreReply
		err     error
	}
	done := make(chan result, 1)
	var over atomic.Bool // set when it has returned and when it is given up; whoever finds it set takes it out of the count
	count := func(by int32) {
		sc.overdue.Add(by)
		if retry {
			sc.overdueRetries.Add(by)
		}
	}
	go func() {
		defer func() {
			cancel()
			if over.Swap(true) {
				count(-1)
			}
		}()
		replies, err := contained(ctx, op)
		done <- result{replies, err}
	}()
	late := time.NewTimer(sc.timeout + sc.timeout/4)
	defer late.Stop()
	select {
	case r := <-done:
		return r.replies, r.err
	case <-late.C:
		count(1)
		if over.Swap(true) {
			count(-1)
		}
		return nil, fmt.Errorf("breaker: store did not return within %v", sc.timeout)
	}
}

var errOverdue = errors.New("breaker: store has not returned from what it was asked before")

// contained runs an operation, whose panic becomes its error.
func contained(ctx context.Context, op func(context.Context) []StoreReply) (replies []StoreReply, err error) {
	err = errors.New("breaker: store ended the goroutine")
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("breaker: store panicked: %v", r)
		}
	}()
	return op(ctx), nil
}

// Reachability.

// answered reports whether the store has answered. That a ledger is unusable is an answer.
func (r StoreReply) answered() bool { return r.Err == nil || errors.Is(r.Err, ErrLedger) }

// markReachability enters which names were answered. One answer shows that the store is reachable. If none was given, it is
// unreachable if no name is left that was; otherwise it is suspect.
func (sc *storeClient) markReachability(names []string, replies []StoreReply) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	changed, any := false, false
	for i, name := range names {
		ok := replies[i].answered()
		any = any || ok
		unreachable := sc.names[name]
		if unreachable == nil {
			continue // its last circuit has left
		}
		if ok {
			delete(sc.unanswered, name)
		} else {
			sc.unanswered[name]++
		}
		if unreachable.Swap(!ok) == ok {
			changed = true
			sc.noteLostLocked(name, ok)
		}
	}
	switch {
	case any:
		sc.answers++
		sc.suspect = false
		changed = sc.unreachable.Swap(false) || changed
	case len(sc.unanswered) == len(sc.names):
		changed = sc.loseAllLocked() || changed
	default:
		sc.suspect = sc.suspect || changed && !sc.unreachable.Load()
	}
	if changed {
		sc.changed()
	}
	if len(sc.lost) > 0 || sc.lostAll {
		go sc.onLost()
	}
}

// checkAvailability reports whether the store is reachable. If it is suspect, this reads names that are not known to be
// unreachable, one in each operation: a name that hangs would take the others of its operation with it.
func (sc *storeClient) checkAvailability() bool {
	sc.mu.Lock()
	suspect, answers := sc.suspect, sc.answers
	sc.suspect = false
	sc.mu.Unlock()
	for n := 0; suspect && n < maxSuspectReads; n++ {
		name, ok := sc.reachableName()
		if ok {
			sc.read(name)
		}
		sc.mu.Lock()
		sc.suspect = false
		switch {
		case sc.answers != answers, len(sc.unanswered) == 0:
			suspect = false
		case !ok || n == maxSuspectReads-1:
			if sc.loseAllLocked() {
				go sc.onLost()
			}
		}
		sc.mu.Unlock()
	}
	return !sc.unreachable.Load()
}

// loseAllLocked enters that the whole store is unreachable. It reports whether that is new.
func (sc *storeClient) loseAllLocked() bool {
	isNew := !sc.unreachable.Swap(true)
	sc.lostAll = sc.lostAll || isNew
	return isNew
}

// noteLostLocked enters for takeLost that a name has become reachable, or unreachable.
func (sc *storeClient) noteLostLocked(name string, reachable bool) {
	if reachable {
		delete(sc.lost, name)
		return
	}
	if sc.lost == nil {
		sc.lost = make(map[string]struct{})
	}
	sc.lost[name] = struct{}{}
}

// takeLost returns the names that have become unreachable since it was last called, and still are; all says that every name
// has, the whole store being unreachable.
func (sc *storeClient) takeLost() (names []string, all bool) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	names, all = slices.Collect(maps.Keys(sc.lost)), sc.lostAll && sc.unreachable.Load()
	sc.lost, sc.lostAll = nil, false
	return names, all
}

// reachableName returns a name that is not known to be unreachable, at random.
func (sc *storeClient) reachableName() (name string, ok bool) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	for name := range sc.names {
		if sc.unanswered[name] == 0 {
			return name, true
		}
	}
	return "", false
}

// isSuspect reports whether checkAvailability has something to find out.
func (sc *storeClient) isSuspect() bool {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	return sc.suspect
}

// unreachableNames returns the names that had no answer, those first that were asked about least often.
func (sc *storeClient) unreachableNames() []string {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	return slices.SortedFunc(maps.Keys(sc.unanswered), func(a, b string) int {
		return cmp.Compare(sc.unanswered[a], sc.unanswered[b])
	})
}

func (sc *storeClient) anyUnreachable() bool {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	return len(sc.unanswered) > 0
}
