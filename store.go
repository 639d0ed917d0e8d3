package breaker

import (
	"context"
	"errors"
	"time"
)

// A Store lets circuits of one name, in any number of processes, act as one: it is a ledger of what they have counted
// and of where they stand. [WithStore] puts a circuit on it. The packages store and store_redis have implementations;
// the package store/storetest checks any other.
//
// A Store decides nothing about when to trip: policies are evaluated by the circuits, so that a user's own function
// works with every Store. What it must do is fencing. It alone raises epochs, an operation that belongs to an epoch
// which has ended changes nothing, and it alone hands out probe slots. All its times are its own: what goes in and out
// are ages and durations, never instants of a caller's clock.
//
// # What a ledger keeps
//
// For each name: the epoch with its [State], the time it began and, if Open, when a probe is due; the sums of a time
// window; the run of failures in a row with the run's number; the times of the last failures; which callers failed
// lately; and, if HalfOpen, the probe successes in a row and every slot with the end of its lease. A new epoch begins
// with all counts at 0 and no slots. An expired slot is free for others but is remembered until its epoch ends, so that
// its success can still count, once.
//
// # Epochs
//
// A name that nobody has written to has the empty ledger: epoch 0, Closed. Every new epoch is numbered one above the
// highest of the ledger's own, the one that the operation was told of, and the Store's clock in milliseconds less one.
// Thus a Store that has lost a ledger, or some of it, never uses a number again: the circuits bring back the highest
// they were given. Circuits do not follow an epoch that is more than a day ahead of the Store's clock; a Store may take it
// for one that no Store has given, and begin none from there.
//
// # Implementing one
//
// All methods are safe for concurrent use, return within the Store's own limit of time or when ctx ends, and may be
// called for any name, empty ones excluded: names are arbitrary text, and two different names never share a ledger. A
// Store that is closed returns [ErrStoreClosed]. Two optional methods are looked for once, when a circuit is made:
//
//   - Immediate() bool: true for a Store whose operations never wait for anything. Circuits then use it within the call
//     that needs it, and no goroutine serves it.
//   - Timeout() time.Duration: the longest that an operation takes; 250ms where the method is missing. Nobody waits for an
//     operation much longer than this, even if it does not return; but a Store that does not return from 8 operations by
//     which it was tried is not tried again before it has returned from one.
type Store interface {
	// Report adds what circuits have counted to their ledgers and reads them. It returns one reply per report, in their
	// order. A report is applied, as a whole, if the ledger is Closed in the epoch that the report names; if the report
	// names none; or if the ledger is empty, which then begins in the epoch named, or in a new one. Otherwise it changes
	// nothing. A report with an empty batch is a read.
	Report(ctx context.Context, reports []StoreReport) []StoreReply

	// Move begins a new epoch in another state if the ledger's epoch is the one that the move starts from, or a lower one:
	// then the ledger has lost what came after, and is brought back. Where the move names a run, and the ledger's epoch is
	// the one it starts from, the run must be the ledger's present one too.
	Move(ctx context.Context, m StoreMove) (Ledger, error)

	// Acquire takes probe slots. An Open ledger whose period has ended becomes HalfOpen first, in a new epoch; so does an
	// empty one, or one that is behind the epoch named. Slots are given, in the order of the tokens, while fewer than the
	// limit are live; a token that holds one already keeps it as it is. Ledger.Granted says how many of the tokens hold a
	// slot now. Where none is given, nothing is changed, not even a time of expiry.
	Acquire(ctx context.Context, a StoreAcquire) (Ledger, error)

	// Settle ends a probe, and the state with it where the probe decides: in one step, so that no other probe's result can
	// come in between. It changes nothing if the ledger is not HalfOpen in the epoch named, or does not know the token. A
	// success adds to the successes in a row, and at the threshold closes; a failure opens, unless the token's lease has
	// expired; Ignored frees the slot.
	Settle(ctx context.Context, v StoreVerdict) (Ledger, error)

	// Read reads ledgers, and returns one reply per name, in their order.
	Read(ctx context.Context, names []string) []StoreReply

	// Watch calls w until stop is called: Changed after every new epoch, whenever a run of failures begins, and whenever
	// a slot is handed back while HalfOpen, whoever caused it, the watcher's own process included; Resync after any time
	// during which some of that may have been missed. w's methods do not block. After stop has returned, they are not
	// called any more. Watch itself does not wait for a connection.
	Watch(w StoreWatcher) (stop func())

	// Close ends the Store's goroutines. It may be called more than once. Circuits on it go on by themselves.
	Close() error
}

// StoreWatcher is told of changes in a [Store].
type StoreWatcher interface {
	Changed(name string, l Ledger)
	Resync()
}

// StoreShape is what a circuit's trip policy needs its ledger to keep.
type StoreShape struct {
	Window    time.Duration // of the sums, and of who failed lately; 0: none, all since the epoch began
	Failures  int           // how many failures have their times kept; 0: none
	Reporters int           // how many failing callers are told apart; 0: none
	Config    string        // a digest of the configuration, at most 16 letters and digits
}

// StoreReport is what one circuit has counted while Closed since its last report.
type StoreReport struct {
	Name  string
	Node  string // who reports: at most 16 letters and digits, different for every circuit of a name
	Epoch uint64 // the epoch in which it was counted; 0: not known
	Shape StoreShape
	Batch StoreBatch
}

// StoreBatch is a number of outcomes. It is entered as if they had come one after another: the successes of one place in the
// run, and the failures before, between and after them.
type StoreBatch struct {
	Slices []StoreSlice // what was counted when, oldest first

	// The ages of the last failures, oldest first: as many as the batch has, but no more than Shape.Failures.
	FailureAges []time.Duration

	// The shape of the run of failures. Without a success in the batch Head, Tail and Longest are all the failures.
	Head     uint64 // failures before the first success
	Tail     uint64 // failures after the last success
	Longest  uint64 // the longest run of failures
	Trailing uint64 // successes after the last failure

	// Early says that the successes came before the ledger's present run of failures: they are summed up, but neither end
	// the run nor count as successes in a row, as if the batch's shape had none.
	Early bool
}

// StoreSlice is what was counted within a short time.
type StoreSlice struct {
	Age                                time.Duration // of the oldest
	Successes, Failures, Ignored, Slow uint64
}

// StoreMove asks for a new epoch.
type StoreMove struct {
	Name     string
	Shape    StoreShape
	From     uint64        // the epoch that it starts from
	Run      uint64        // the run that the decision rests on; 0: none
	To       State         // Closed, HalfOpen or Open
	For      time.Duration // To is Open: the open period
	Openings uint32        // openings in this series, this one included
}

// StoreAcquire asks for probe slots.
type StoreAcquire struct {
	Name     string
	Shape    StoreShape
	Epoch    uint64   // the highest epoch known
	Tokens   []string // one for each slot; unique, of at most 32 letters and digits
	Lease    time.Duration
	Limit    int    // slots that may be live at once
	Openings uint32 // for a ledger that has been lost
}

// StoreVerdict ends a probe.
type StoreVerdict struct {
	Name      string
	Shape     StoreShape
	Epoch     uint64
	Token     string
	Outcome   Outcome
	Threshold uint32        // successes in a row that close
	For       time.Duration // a failure: the open period
	Openings  uint32        // a failure: openings in this series, this one included
}

// StoreReply is the answer to one of several questions. Where Err is not nil, it is not known whether anything was done.
type StoreReply struct {
	Ledger Ledger
	Err    error
}

// Ledger is where the circuits of one name stand, and what the operation that returns it has done.
type Ledger struct {
	Clock     uint64 // the Store's clock, in milliseconds since 1970
	Epoch     uint64 // 0: the ledger is empty
	State     State
	Age       time.Duration // how long ago the epoch began
	Remaining time.Duration // Open: until a probe is due; never negative
	Openings  uint32        // openings in this series; see WithOpenBackoff
	Progress  uint32        // HalfOpen: probe successes in a row
	Slots     int           // HalfOpen: slots whose lease has not expired
	Run       uint64        // the number of the present run of failures; it grows whenever a success ends one. Never 0
	Counts    Counts        // the window's sums, or the epoch's where there is no window; the runs always the epoch's
	Peak      uint64        // Report: the longest that the run was while the batch was entered, if only for a moment
	Recent    uint64        // failures younger than the window, by the times kept
	RecentRun uint64        // those of them that belong to the present run
	Reporters int           // callers that failed within the window, by the number told apart
	Foreign   bool          // the ledger is kept for a configuration that differs from the caller's

	Applied    bool          // Report, Move, Settle: the operation has been carried out. Acquire: it has begun an epoch
	Granted    int           // Acquire: how many of the tokens hold a slot
	RetryAfter time.Duration // Acquire: when no slot was free, until the first lease expires
}

// ErrLedger is what an error is (errors.Is) that concerns one ledger only, such as one that somebody else has written over:
// the Store itself answers.
var ErrLedger = errors.New("breaker: ledger is unusable")

// ErrStoreClosed is what the operations of a closed [Store] return.
var ErrStoreClosed = errors.New("breaker: store is closed")
