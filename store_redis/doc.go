// Package storeredis lets circuits of one name, in any number of processes, act as one over Redis: they count together,
// open together, and share their probe slots. It is a [breaker.Store] for [github.com/redis/go-redis/v9]; besides, it has
// a [Cache] that keeps last good answers for a whole fleet.
//
//	client := redis.NewClient(&redis.Options{
//		Addr:                  "localhost:6379",
//		MaxRetries:            -1,   // a command that is sent twice may count twice
//		ContextTimeoutEnabled: true, // so that a late answer does not hold a connection
//	})
//	shared, err := storeredis.New(client)
//	...
//	defer shared.Close()
//	payments, err := breaker.New[Receipt]("payments", breaker.WithStore(shared))
//
// The client may be one of a single server, of a master behind sentinels (redis.NewFailoverClient), or of a cluster. One
// Store serves all circuits of a process. It needs Redis 5 or newer, scripts (EVAL, EVALSHA) and, for pushing changes,
// PUBLISH and SUBSCRIBE.
//
// # What it costs
//
// Calls of a circuit that is Closed or Open cause no command: outcomes travel in batches, and changes are pushed. One
// operation is one script on one key; the batches of many circuits go in one pipeline. A script takes the server some 10 to
// 50 microseconds, whatever has been counted and however long the window is, and a circuit 180 to 1,400 bytes. In a process
// there is one connection and one goroutine that listens, however many circuits there are, and one more goroutine for
// every operation that is under way.
//
// # What is kept
//
// For each circuit one hash with the key <prefix>:{<name>}. The name is percent-encoded and bounded: what is longer than
// 200 bytes is cut and gets a hash. All of a circuit is in one hash slot; circuits are spread over a cluster. Every key has
// a time to live, set by the script that writes it:
//
//   - Closed: the window and an hour, from the last report; 24 hours where there is no window.
//   - Open: what remains of the open period and an hour.
//   - HalfOpen: the longest lease and an hour.
//
// A refused request for a slot, a stale report and a read renew nothing. Changes are published on the channel
// <prefix>:events, in a database other than 0 on <prefix>:events:<database>. [MirrorKeys] adds two plain keys for each
// circuit, for others to read.
//
// The time is the server's, read once by each script; only ages and durations are sent. If the server's clock is set back,
// open periods and leases do not become longer.
//
// # When Redis fails
//
// No operation takes longer than [Timeout], and none is sent twice by the client, even if no answer comes: then it is not
// known whether it was carried out. A script that the server does not know is sent again with its source: after a restart,
// a promotion, SCRIPT FLUSH, and once on every node of a cluster. A ledger that is lost, by eviction, FLUSHALL or a failover
// that lost writes, is restored by the circuits, in an epoch above all earlier ones. A key that holds something else, which
// cannot be read, is removed, and one operation returns [ErrCorrupt]. Fields that a newer version has added are left alone.
// When maxmemory is reached, writes fail with Redis' error, and reads still work. An evicted key is a lost ledger: with a
// policy that evicts keys, circuits lose their counts at any time.
//
// The connection that receives events is sent a PING after 250ms without any, and given up after 750ms without an answer.
// After it has been made anew, the circuits in use read their ledgers.
//
// # Two configurations on one name
//
// What a ledger keeps (the window, how many failures, how many callers) is what the configuration of its first writer asks
// for, as long as anybody reports with that one. Circuits with another configuration are counted too, and learn that the
// ledger is foreign to them. They take over, with all counts at 0, when no report with the first configuration has come for
// its window, or for a minute if that is longer; and with any new epoch that they begin.
//
// # Limits
//
//   - A probe that takes longer than its lease may overlap with the next one.
//   - "n failures in a row" over all processes occurs at random: at 5 % errors, five in a row come every 3.4 million calls.
//     For much traffic use a rate.
//   - A window is kept in 20 parts. What is older than it is never counted; what is about to leave may be missed by one part.
//     The times of failures are exact, but one that is reported late is taken to be no older than the latest known.
//   - Of the probes that outlive their leases in one HalfOpen epoch, the last 1,024 are remembered. At most 1,000 failing
//     callers are told apart, and the times of at most a million failures kept; with more than some 100 the hash takes more
//     memory than a listpack does.
//   - Durations beyond ten years are ten years; counts stop at 2^53.
//   - A failover may lose the last writes. Circuits that know of an opening which was lost stay Open for their time, and
//     restore it as HalfOpen when they probe; processes that do not know of it admit calls meanwhile.
//   - A Ring is refused, since its shards do not see each other's events; see [UncheckedClient].
package storeredis
