package breaker

import (
	"context"
	"errors"
	"time"
)

// A Store lets circuits of one name, in any number of processes, act as one. It keeps a ledger for each name: what the
// circuits have counted, and the state that they are in. [WithStore] puts a circuit on a Store; how the circuit gets on with
// it is told by [StoreStatus], in [Snapshot]. The packages store and store_redis have implementations.
//
// The methods are called by circuits. A program makes a Store, hands it to WithStore, and closes it after its circuits. The
// rest of this comment, and the types whose names begin with Store, are for people who write a Store; the package
// store/storetest checks one.
//
// A Store does not decide when to open: trip policies are evaluated by the circuits, so that a user's own function works
// with every Store. It decides which of several operations comes first. It alone numbers the epochs, an operation for an
// epoch that has ended changes nothing, and it alone grants probe slots. It uses its own clock only: what goes in and out
// are ages and durations, never times of a caller's clock.
//
// # What a ledger keeps
//
// For each name: the epoch and its [State], the time it began and, if Open, when a probe is due; the sums of a time
// window; the length of the current run of failures in a row, and the run's number; the times of the last failures; which
// callers have failed lately; and, if HalfOpen, the number of probe successes in a row, every slot with the end of its
// lease and its place in the order of giving, and the last of the slots whose probes have succeeded. A new epoch begins with
// all counts at 0 and no slots. A slot whose lease has ended is free for others, but is remembered until its epoch ends, so
// that its outcome can still count, once.
//
// # Epochs
//
// An epoch is the time that a ledger stays in one state; its number is above that of every earlier one. A name that nobody
// has written to has the empty ledger: epoch 0, Closed. A new epoch is numbered one above the highest of three: the
// ledger's own epoch, the one that the operation was told of, and the Store's clock in milliseconds since 1970, less one.
// A Store that has lost a ledger, or the latest part of it, thus never uses a number again: the circuits tell it the
// highest that they were given. Circuits do not follow an epoch that is more than a day ahead of the Store's clock. A Store
// may take such an epoch for one that no Store has given, and refuse to begin another one above it.
//
// # Implementing one
//
// All methods are safe for concurrent use, return within the Store's own limit of time or when ctx ends, and may be called
// for any name but the empty one. Names are arbitrary text, and two different names never share a ledger. After Close they
// return [ErrStoreClosed]. Two optional methods are looked for once, when a circuit is made:
//
//   - Immediate() bool: true for a Store whose operations never wait for anything. Circuits then use it within the call
//     that needs it, and no goroutine serves it. Without the method: false.
//   - Timeout() time.Duration: the longest that an operation takes. Without the method, or if it is not above 0: 250ms. No
//     circuit waits for an operation longer than a quarter more than this, even if it does not return. While 8 operations
//     by which it was found out whether the Store answers again have not returned, it is not asked again.
type Store interface {
	// Report adds what circuits have counted to their ledgers, and reads them. It returns one reply per report, in the
	// order of the reports. A report is applied, as a whole, if the ledger is Closed and the report names its epoch or
	// none. It is also applied if the ledger is empty, which then begins in the epoch that the report names, or in a new
	// one if it names none. Otherwise it changes nothing. A report with an empty batch is a read.
	Report(ctx context.Context, reports []StoreReport) []StoreReply

	// Move begins a new epoch if the ledger is in the epoch that the move starts from, or in a lower one: then the ledger
	// has lost what came after, and is brought back by this. If the ledger is in the epoch that the move starts from, and
	// the move names a run, the ledger must be in that run too. Otherwise it changes nothing.
	Move(ctx context.Context, m StoreMove) (Ledger, error)

	// Acquire takes probe slots. An Open ledger whose open period has ended becomes HalfOpen first, in a new epoch; so does
	// an empty one, and one whose epoch is below the one named. Slots are granted in the order of the tokens while fewer
	// than the limit have a lease that has not ended. A token that holds a slot keeps it, with the lease as it is.
	// Ledger.Granted says how many of the tokens hold a slot now. If no slot is granted nothing is changed, and the ledger
	// is kept no longer than it would have been.
	Acquire(ctx context.Context, a StoreAcquire) (Ledger, error)

	// Settle ends a probe and, if the probe decides, the epoch: in one step, so that no other probe's outcome can come in
	// between. It changes nothing if the ledger is not HalfOpen in the epoch named, or does not know the token. A success
	// adds to the successes in a row, and at the threshold begins a Closed epoch. A failure begins an Open epoch. It does so
	// after the token's lease too, since a dependency that hangs longer than the lease would otherwise keep the ledger
	// HalfOpen for ever; but not if a slot that was given later has been settled with a success in this epoch, which is the
	// newer evidence. Ignored, and any other outcome, only frees the slot.
	Settle(ctx context.Context, v StoreVerdict) (Ledger, error)

	// Read reads ledgers. It returns one reply per name, in the order of the names.
	Read(ctx context.Context, names []string) []StoreReply

	// Watch calls w's methods until stop is called: Changed after every new epoch, whenever a run of failures begins, and
	// whenever a slot is given back while HalfOpen, whoever caused it, this process included; Resync when some of that may
	// have been missed. w's methods do not wait for anything. After stop has returned they are not called any more. Watch
	// itself does not wait for a connection.
	Watch(w StoreWatcher) (stop func())

	// Close ends the Store's goroutines. It may be called more than once. Circuits on the Store go on without it.
	Close() error
}

// The contract between circuits and a Store. From here to the end of the file is for people who write a Store, in the order
// in which they meet it.

// StoreReport is what one circuit has counted while Closed since its last report. See [Store].
type StoreReport struct {
	Name  string     // of the circuit, and so of the ledger
	Node  string     // identifies the circuit that reports: at most 16 letters and digits, different for all that share a name
	Epoch uint64     // in which the batch was counted; 0: the circuit knows none yet
	Shape StoreShape // what the ledger is to keep
	Batch StoreBatch // empty: the report is a read
}

// StoreShape says what the trip policy of a circuit needs its ledger to keep. The zero value needs nothing but the sums of
// the epoch and the run of failures.
type StoreShape struct {
	Window    time.Duration // the time window of what Ledger counts; 0: none, it counts the whole epoch
	Failures  int           // of how many failures the times are kept, the last ones; 0: of none
	Reporters int           // how many callers that have failed are told apart; 0: none
	Config    string        // a digest of the circuit's configuration, at most 16 letters and digits; see Ledger.Foreign
}

// StoreBatch is a number of outcomes of one circuit. It is entered as if they had come one after another: Head failures, then
// the successes, with the other failures between them, then Tail failures. The zero value is empty.
//
// Not every success ends a run of failures: one that came before the run does not, nor does one that was [Answered]. Slices
// count all successes alike. Of the other fields, Head to Trailing take account of those only that end a run, and Early says
// that there are none.
type StoreBatch struct {
	Slices []StoreSlice // what was counted when, oldest first

	// FailureAges is how long ago the last failures were, oldest first: of all failures of the batch, but no more than
	// Shape.Failures.
	FailureAges []time.Duration

	// What the batch does to the run of failures. Without a success that ends a run, Head, Tail and Longest are all failures.
	Head     uint64 // failures before the first success that ends a run
	Tail     uint64 // failures after the last one
	Longest  uint64 // failures in a row, at most
	Trailing uint64 // successes that end a run, after the last failure, or in all if there is no failure

	// Early says that none of the successes ends a run. They are added to the sums, but neither end the ledger's run nor count
	// as successes in a row.
	Early bool
}

// StoreSlice is the outcomes of a short time, some milliseconds as a rule.
type StoreSlice struct {
	Age       time.Duration // of the first of them
	Successes uint64
	Failures  uint64
	Ignored   uint64
	Slow      uint64 // of the others, those that took the slow limit or longer
}

// StoreMove asks for a new epoch.
type StoreMove struct {
	Name     string
	Shape    StoreShape    // what the ledger is to keep from now on
	From     uint64        // the epoch that it is to end
	Run      uint64        // the run of failures that is the reason, by its number; 0: any
	To       State         // the state of the new epoch
	For      time.Duration // To is Open: the open period. It may be 0
	Openings uint32        // openings in the current series, this one included; 0 if To is Closed
}

// StoreAcquire asks for probe slots, one for each token.
type StoreAcquire struct {
	Name     string
	Shape    StoreShape    // what the ledger is to keep, if this begins an epoch
	Epoch    uint64        // the highest that the circuit knows; 0: none
	Tokens   []string      // each identifies a slot, and is never used again; at most 32 letters and digits
	Lease    time.Duration // for how long a slot is held if it is not given back
	Limit    int           // how many slots may be held at once, in all processes
	Openings uint32        // openings in the current series, as the circuit knows it: for a ledger that was lost
}

// StoreVerdict is the outcome of a probe.
type StoreVerdict struct {
	Name      string
	Shape     StoreShape    // what the ledger is to keep, if this begins an epoch
	Epoch     uint64        // in which the slot was granted
	Token     string        // of the slot
	Outcome   Outcome       // Success, Failure, or Ignored, which only gives back the slot; an Answered probe is sent as a Success
	Threshold uint32        // how many successes in a row close
	For       time.Duration // Outcome is Failure: the open period that follows
	Openings  uint32        // Outcome is Failure: openings in the current series, this one included
}

// StoreReply is the reply to one of several questions. If Err is not nil, Ledger means nothing, and it is not known whether
// anything was done.
type StoreReply struct {
	Ledger Ledger
	Err    error
}

// Ledger is what a ledger holds after an operation, and what the operation has done. The zero value, but for Clock and Run,
// is the empty ledger.
type Ledger struct {
	Clock     uint64        // the Store's clock, in milliseconds since 1970
	Epoch     uint64        // 0: the ledger is empty
	State     State         // of the epoch
	Age       time.Duration // how long ago the epoch began
	Remaining time.Duration // Open: until a probe is due; 0 if it is, never negative
	Openings  uint32        // openings in the current series; see WithOpenBackoff
	Progress  uint32        // HalfOpen: probe successes in a row
	Slots     int           // HalfOpen: slots whose lease has not ended
	Run       uint64        // the number of the current run of failures. It rises whenever a success ends a run. Never 0

	// Counts has the sums of the window, or of the epoch where there is no window. ConsecutiveFailures and
	// ConsecutiveSuccesses are those of the epoch in any case.
	Counts    Counts
	Peak      uint64 // Report: the longest that the run was while the batch was entered
	Recent    uint64 // how many of the failures whose times are kept are within the window
	RecentRun uint64 // how many of those belong to the current run
	Reporters int    // callers that have failed within the window, as far as they are told apart
	Foreign   bool   // the ledger is kept for another StoreShape.Config than the caller's; false for a Read

	Applied    bool          // Report, Move, Settle: the operation was carried out. Acquire: it has begun an epoch
	Granted    int           // Acquire: how many of the tokens hold a slot
	RetryAfter time.Duration // Acquire: if no slot was free, until the first lease ends; 0: not known
}

// StoreWatcher is told of changes in a [Store]; see Store.Watch. Circuits implement it.
type StoreWatcher interface {
	// Changed is given what a ledger holds after a change.
	Changed(name string, l Ledger)
	// Resync says that calls of Changed may be missing: whatever is of interest should be read.
	Resync()
}

// ErrLedger is what an error is (errors.Is) that concerns one ledger only, such as one that something else has overwritten.
// The Store itself has answered, and other ledgers can be used.
var ErrLedger = errors.New("breaker: ledger is unusable")

// ErrStoreClosed is returned by the operations of a [Store] after its Close.
var ErrStoreClosed = errors.New("breaker: store is closed")
