// Package breaker is a circuit breaker. It stands between a call and what is called: it stops calling what is down,
// lets it recover, and goes back to calling it, without anybody's help.
//
// A service that calls a database, a queue or another service over a network depends on things that fail, and they
// fail slowly: calls pile up until their timeouts, each holding a goroutine, memory and a connection, while the
// dependency, busy with calls that nobody waits for any more, cannot come back. A circuit breaker notices the failures
// and answers at once in the dependency's place. Nothing runs beside the program: a circuit is a value in memory that
// calls go through.
//
// # The machine
//
// A [Circuit] is in one of three states.
//
//	             the trip policy holds
//	+--------+ -------------------------> +--------+
//	| closed |                            |  open  | <---------+
//	+--------+ <---+                      +--------+           |
//	               |                          |                | a probe
//	enough probes  |                          | the open       | fails
//	in a row       |                          | period ends    |
//	succeed        |                          v                |
//	               |                    +-----------+          |
//	               +------------------- | half-open | ---------+
//	                                    +-----------+
//
// Closed, it lets every call pass and counts how they end. When the trip policy holds, by default at the fifth failure
// since the last success, it opens. Open, it rejects every call, without calling anything, for the open period of 30s.
// The first call after that finds it half-open: it passes as a probe, and as many others may be in flight beside it as
// there are probe slots. Two good probes in a row close the circuit; a bad one opens it for another period.
//
// Each stay in a state is an epoch. A call belongs to the epoch in which it was admitted, and moves the state in that
// epoch only; when it ends later, it is counted and changes nothing. That is what keeps a slow call of yesterday from
// closing, or opening, the circuit of today.
//
// # First use
//
// Make one breaker for each dependency, once, and put every call to the dependency through it.
//
//	var weather = breaker.Must(breaker.New[StoreReport]("weather"))
//
//	func Today(ctx context.Context, city string) (Report, error) {
//		return weather.Do(ctx, func(ctx context.Context) (Report, error) {
//			return fetch(ctx, city)
//		})
//	}
//
// [Breaker.Do] returns what the function returned, unchanged. If the circuit rejects the call, the function does not
// run, and the error is an [*OpenError]: errors.Is(err, [ErrOpen]) holds, and RetryAfter says when the next probe is
// due. A breaker made for each request would always be closed, and protect nothing.
//
// # When it opens
//
// The default, [WithFailureThreshold], counts failures since the last success. It fits a dependency that is either up
// or down, and costs nothing. [WithFailureWindow] lets only young failures count, for a dependency called so seldom
// that an old failure says nothing. [WithTrip] takes other conditions, any one of which is enough:
//
//   - [FailureRate]: a share of the calls fails. For busy dependencies, of which some calls always fail.
//   - [FailureCount]: so many failures within a time, whatever succeeded in between. For budgets: "not more than 100
//     errors a minute".
//   - [SlowCallRate]: a share of the calls is slow. Slowness comes before failure, and costs the caller more.
//   - [ConsecutiveFailures]: the default, to be combined with the others.
//   - [TripWhen]: anything that can be said of a window's [Counts].
//
// A rate needs a minimum of calls, so that one failure at night is not "100 percent", and a window: [LastCalls] where
// the number of calls matters, [Last] where their age does. All of them mean "reached", not "exceeded", and are
// checked after every call, that call included.
//
// # What counts as a failure
//
// A nil error is a [Success], an error a [Failure]. Three kinds of error say nothing about the dependency and are
// [Ignored], neither counted for nor against it: whatever comes back after the caller has cancelled; a rejection by
// another circuit or limiter further in; and what [WithIgnore] or a [WithClassifier] of your own say, "not found" for
// one. [WithFailOn] makes failures of errors that those would let go. [WithResult] looks at the value too.
//
// Whether the caller has cancelled is asked of the caller's context, never read off an error: a context.Canceled that
// was made inside a client library while the caller was still waiting is a failure like any other. The caller's own
// deadline is a failure as well, since that is how a hanging dependency looks from here; [IgnoreCallerDeadline]
// changes it. A panic and runtime.Goexit are failures, and go on as they were.
//
// # Recovery
//
// Probes are slots, not a budget: [WithHalfOpenProbes] says how many may be in flight at once, [WithSuccessThreshold]
// how many must succeed in a row. A slot is held on a lease, [WithProbeLease]. A probe that hangs, or whose [Permit]
// was forgotten, loses its slot when the lease ends; its success still counts, its failure no longer does. Keep the
// lease longer than a healthy call takes.
//
// The open period is [WithOpenTimeout]. [WithOpenBackoff] makes it grow while the dependency stays down, with some
// chance in it, so that many processes do not come back in step. A dependency that says itself how long to stay
// away, by an error with a method RetryAfter() time.Duration, is heeded up to [WithOpenHint]. [WithHealthCheck] asks
// the dependency while the circuit is open and lets probes through before the time. [WithRamp] admits a growing share
// of the calls after closing, where full traffic at once would bring a cold dependency down again.
//
// # Before the first result
//
// A breaker learns from results. When a dependency hangs, every call that starts before the first one has failed is
// let through, and waits. [WithMaxInFlight] bounds how many can: those above it are rejected with
// [ErrTooManyInFlight]. Use it wherever calls may hang, together with a timeout.
//
// [WithTimeout] bounds each call through its context; Do returns when the function does. For a function that ignores
// its context there is [Detach], which leaves it behind at the deadline.
//
// # Ways to call
//
//   - [Breaker.Do] calls, [Breaker.Wrap] makes a function that does so, [Breaker.Try] gives an account of what happened.
//   - [Breaker.DoOr] takes an alternative for this one call: a cached value, a default, a second provider.
//   - [Circuit.Run] is Do for functions that return only an error.
//   - [Circuit.Acquire] gives a [Permit], for calls that are no function: a stream, a message that is acknowledged
//     elsewhere, a RoundTripper. Settle it on every path; only the first settlement counts.
//   - [Over] makes another typed view of a circuit, so that all calls to one dependency share its state, whatever they
//     return.
//
// # Trying again, and answers in place of the dependency's
//
// [WithRetry] repeats failed calls. Each attempt passes the circuit and counts, and a circuit that opens ends the
// retries without another wait: retries around a breaker that does not know of them are how an outage is made worse.
// A [Budget] bounds the retries of many calls together.
//
// [WithFallback], [WithFailover], [WithLastGood] and [WithFallbackValue] answer where a call was rejected or has
// failed, in the order in which they were given; none is asked after a success or after the caller's own cancel, and
// what it does never counts against the circuit. [Result] tells a rescued answer from the dependency's own.
//
// # Several dependencies, several processes
//
// [Group] keeps a circuit for each key. The package pool calls one of several members that can do the same, whose circuits
// allow it. The package breakerhttp puts circuits into an http.Client, one for each origin, or before an http.Handler.
//
// [WithStore] makes circuits of one name one, in any number of processes: they count together, open together, and share
// the probe slots. Each keeps a view of where the others stand, and admits and rejects by it; what it counts travels in
// batches. So no call waits for the [Store], except those that admit or settle a probe, and those not for long. With the
// store away each process goes on by itself. [Snapshot] has in [StoreStatus] how the circuit stands with it, [Circuit.Sync] waits
// until it is in step. The package store has a Store for one process, the module store_redis one for Redis, and
// docs/sharing.md in the repository says what it costs and what happens when it fails.
//
// # For wrappers
//
// Who wraps a client whose calls end later than the function that makes them returns, as a response ends with its body,
// uses a circuit in two steps, [Circuit.Acquire] and [Permit.Settle]. [Permit.Abort] settles a call that ended by a panic,
// [Circuit.Classify] says what an error means before anything is settled, [Circuit.Refusal] why a call would be rejected.
//
// # Operating
//
// [Circuit.Trip] opens a circuit and [Circuit.Reset] closes it; the machine goes on from there. A [Mode] stands above
// the machine until it is taken back: [ForcedOpen] for maintenance, [ForcedClosed] when the circuit must not interfere,
// [Shadow] to try settings under real traffic, where it reports what it would have rejected and lets it pass.
//
// [WithLogger] logs changes of state. [Hooks] tell about them, about every call and about every rejection; they run
// outside all locks and may call any method. [Circuit.Snapshot] reads state, window and totals at one instant. It
// marshals to JSON, and [WithSnapshot] starts a circuit from one: as open as it was, for as long as was left.
//
// # Settings
//
// Options do not depend on their order. They are checked together, and a constructor's error names everything that is
// wrong. [Config] is the circuit's options as data, [ParseConfig] reads it from a file that a JSON, YAML or TOML
// decoder has taken apart, and [Config.Options] makes options of it. A Config stands for all of its fields, those that
// its file left out included: give it first to let code have the last word, last to let the file have it.
//
// [Circuit.Configure] changes the settings of a running circuit. Its state, the time left and the counts stay, and
// nonsense changes nothing. Reading an unchanged file again does not undo a SetMode.
//
// # Testing
//
// Time is read from a [Clock], which the common fake clocks are; so a test moves the open period by hand. The default
// clock works inside testing/synctest, where time.Sleep moves it. No test needs to wait.
//
// # What cannot happen
//
//   - It does not stay open. Opening is a time to be compared with at the next call; there is no timer or goroutine
//     that could be lost. It does not stay half-open: each probe slot falls free at a known time, whatever becomes of
//     the probe, so the next call gets one. From every state, a dependency that answers, and traffic, close the circuit
//     within one open period and the time of the probes, however long a good call takes.
//   - No result of one epoch decides in another. Only a probe of the present half-open stay closes or reopens the
//     circuit, besides Trip and Reset.
//   - No more probes are in flight than there are slots, leases kept. A probe that outlives its lease is the one
//     exception: it may still run beside the one that got its slot.
//   - However a call ends, by return, panic, runtime.Goexit or cancellation, it is settled, exactly once.
//   - One crossing is one change of state and one event, however many calls race. Events arrive in the order of their
//     epochs.
//   - No function of yours runs under a lock: not the call, a classifier, a trip function, a hook or a clock. A hook
//     that panics is contained.
//   - Time does not run backwards. A clock that is set back does not prolong an open period by as much.
//   - Totals do not fall, and they add up: calls are successes, failures and ignored ones.
//
// The machine is a pure function, and the tests walk it through every state that it can reach.
//
// # Limits
//
//   - Without a store a circuit lives in one process. With one, modes, ramps, limits of calls in flight, budgets and
//     health checks still do.
//   - With a store failures in a row happen by chance where there are many calls: at 5 % errors five in a row come every
//     3.4 million. Use a rate there. A policy has one window, exact to a 20th of its length, one flush and one round trip.
//   - With the store away there may be a probe in each process at once.
//   - A timeout is cooperative: it ends a context. Detach comes back in time, but the function it left goes on until it
//     ends by itself, and it goes by the time package's clock.
//   - A window over a time is exact up to 128 instants and works in slices of 1/64 of its length beyond. On a busy
//     circuit with the default clock only every 16th success reads the clock, so up to 15 successes may be taken for
//     slightly older than they are. Failures are always exact.
//   - LastCalls costs two bits a call, once something has failed; Last at most 11 KiB; FailureCount and a failure window
//     eight bytes for each failure up to the threshold. The rest of a circuit is about a kilobyte.
//   - A Permit that is never settled counts as in flight for good; with WithMaxInFlight, its place is lost.
//   - A restored snapshot has the run of failures, but not what lay in a window.
//   - Rejected calls share one error value: do not modify it.
//
// # Concurrency and cost
//
// Every method of every type may be called from any number of goroutines. A call on a closed circuit takes no lock: it
// adds to counters, which spread over several cache lines once goroutines are seen to meet there. A rejection takes
// none either, reads the clock and allocates nothing. Everything else, failures among it, takes a mutex for
// as long as a few counters take.
//
// What takes calls off the fastest path: SlowCallRate, TripWhen, WithMaxInFlight, a ramp while it lasts, a Call hook, a
// mode other than Auto, call options such as WithTimeout. The function given to Do is the call's one allocation, if it
// captures variables. How this compares with other breakers is measured in the benchmarks directory, by one command.
package breaker
