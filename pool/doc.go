// Package pool calls one of several members that can do the same: providers, replicas, regions. Each member has a circuit
// of its own, and only members whose circuit lets a call through are called.
//
//	p, err := pool.New(pool.Failover, []pool.Member[*Client]{
//		{Name: "primary", Value: primary, Priority: 2},
//		{Name: "backup", Value: backup, Priority: 1},
//	})
//	answer, err := pool.Do(ctx, p, func(ctx context.Context, c *Client) (Answer, error) { return c.Ask(ctx, question) })
//
// # Choosing
//
// A [Strategy] says whose turn it is. A member that would not take the call, because its circuit is open, its probe slots
// are taken or it is busy, is passed over: nothing is counted, and no probe is spent by choosing. A member whose open
// period has ended would take the call, so it gets its turn back, and with it its probe, without help.
//
// Members of a lower Priority are used while none above is ready, whatever the strategy.
//
// # Moving on
//
// [Do] calls another member after a Failure, and after a rejection, be it by the member's own circuit, which another
// caller was quicker to pass, or by a breaker inside the function. Each member is called at most once. It does not move on
// after a Success, after any other Ignored outcome, which is the caller's fault and would be the same elsewhere, after an
// error marked by [Stop], and after the caller's own cancel or deadline: once the caller's context has ended no further
// member is called. When no member is left the error is an [*UnavailableError]. It is a rejection only if nothing ran: where
// a member was called and failed, a circuit or a retry around the pool takes it for a failure.
//
// The function may run more than once for one Do, and a member that failed may have acted before it did. Where that must
// not happen twice, return Stop(err) once the request is out.
//
// # Time
//
// breaker.WithTimeout in [WithBreaker] bounds each attempt, and its end is a Failure of the member. [WithLimit] bounds
// everything that one Do calls together; it is off by default, and its end is a Failure only of a member that had all of
// it. Both end the context that the function is given, whose Deadline is the earlier of the two, or the caller's. Neither
// reaches beyond the function: once it has returned a value without an error, its context follows the caller's alone, so
// that what it returned lives as long as the caller wants it. Keep the context itself for that, not only its Done channel:
// once the context is no longer held, the channel may stay open for good.
//
// # Streams
//
// A stream that is read after the function has returned is a Success by then, whatever becomes of it; one that is read
// inside the function must end within its limits, and a deadline that the function told to the other side stays told. Hold
// the member with [Pool.Acquire] instead, and settle the [Lease] when the stream ends.
//
// # What cannot happen
//
//   - A member is not called past its circuit, unless [MaxEjected] says so.
//   - However the function ends, by return, panic or runtime.Goexit, the attempt is settled exactly once.
//   - No function of the caller's runs under a lock of the pool.
package pool
