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
// period has ended would take the call, so it gets its turn back, and with it its probe, without anybody's help.
//
// # Moving on
//
// [Do] calls another member after a Failure, and after a rejection, be it by the member's own circuit, which another
// caller was quicker to pass, or by a breaker inside the function. Each member is called at most once. It does not move on
// after a Success, after any other Ignored outcome, which is the caller's fault and would be the same elsewhere, after an
// error marked by [Stop], and after the caller's own cancel or deadline. When nobody is left the error is an
// [*UnavailableError].
//
// The function may run more than once for one Do, and a member that failed may have acted before it did. Where that must
// not happen twice, return Stop(err) once the request is out.
//
// # Time
//
// Everything that one Do calls has [WithLimit] together, by default 5s; breaker.WithTimeout in [WithBreaker] bounds each
// attempt besides. Both end the context that the function is given, and both are the failure of the member that was being
// called. Neither reaches beyond the function: once it has returned a value without an error, its context follows the caller's alone, so that a
// stream among what it returned lives as long as the caller wants it. Keep the context itself for that, not only its Done channel: once
// nobody holds the context, the channel may stay open for good. The context's Deadline is the caller's.
//
// # What cannot happen
//
//   - A member is not called past its circuit, unless [MaxEjected] says so.
//   - However the function ends, by return, panic or runtime.Goexit, the attempt is settled, exactly once.
//   - No function of yours runs under a lock.
package pool
