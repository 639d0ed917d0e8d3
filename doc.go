// Package breaker is a circuit breaker. It stands between a call and what is called: it stops calling a dependency that is
// down, lets it recover, and then calls it again by itself.
//
// A dependency that fails slowly makes calls pile up until their timeouts, each holding a goroutine, memory and a
// connection, while the dependency works for callers that have given up. A circuit breaker notices the failures and answers
// at once in the dependency's place. A circuit is a value in memory that calls go through. It has no goroutine and no timer.
//
// # The machine
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
// Closed, a circuit lets every call pass and counts how they end. By default the fifth failure since the last success opens
// it. Open, it rejects every call for 30s. After that it is half-open: calls pass as probes, by default two at a time. Two
// good ones in a row close the circuit, a bad one opens it for another 30s.
//
// Each stay in a state is an epoch. A call moves the state only in the epoch in which it was admitted; when it ends later, it
// is counted and changes nothing.
//
// # First use
//
// Make one breaker for each dependency, once, and put every call to the dependency through it. A breaker made for each
// request would always be closed, and protect nothing.
//
//	var weather = breaker.Must(breaker.New[Report]("weather"))
//
//	func Today(ctx context.Context, city string) (Report, error) {
//		return weather.Do(ctx, func(ctx context.Context) (Report, error) {
//			return report(ctx, city) // any call that heeds its context
//		})
//	}
//
// # The names of a first day
//
//   - [New] makes a [Breaker], which calls functions of one result type; [NewCircuit] makes the [Circuit] behind it alone.
//   - [Breaker.Do] returns what the function returned, unchanged. If the circuit rejects the call, the function does not run.
//   - [ErrOpen] is what errors.Is finds in every rejection by the circuit's state; [OpenError] says when the next probe is due.
//   - [WithTimeout] bounds each attempt. [WithMaxInFlight] bounds the calls at once, before the first of them has failed.
//   - [WithTrip] replaces five failures in a row by a [FailureRate] or another condition.
//   - [WithIgnore] names the errors that are the caller's fault and say nothing about the dependency.
//   - [WithRetry] repeats failed calls. An open circuit ends the retries.
//   - [WithFallback] and its relatives answer where a call was rejected or has failed.
//   - [Group] keeps a circuit for each key.
//   - [WithLogger] and [WithHooks] tell what happens; [Circuit.Snapshot] reads how things stand.
//
// The policies of one breaker nest in this order, whatever the order of the options:
//
//	fallback( retry( circuit( timeout( fn ))))
//
// A call that ends later than the function that begins it, such as a stream, is made in two steps: [Circuit.Acquire] and
// [Permit.Done].
//
// Every method of every type may be called from any number of goroutines, and no function of yours runs under a lock.
//
// # Where the rest is told
//
// In the repository's directory docs: getting-started.md; concepts.md, on what counts, when a circuit opens and how it
// recovers; recipes.md; configuration.md, with every option; guarantees.md and limits.md; sharing.md, for circuits that
// many processes share through a [Store]; troubleshooting.md; benchmarks.md.
//
// The package breakerhttp puts circuits into an http.Client or before an http.Handler, the package pool calls one of several
// members that can do the same, the package store has a Store inside one process, and the module store_redis one on Redis.
package breaker
