// Package breakerhttp puts circuit breakers around HTTP: on the client's side a [Transport], an http.RoundTripper with a circuit for
// each origin; on the server's side a [Handler]; and health checks for either.
//
//	t, err := breakerhttp.NewTransport(nil, breakerhttp.WithRetry(breaker.MaxRetries(2)))
//	client := &http.Client{Transport: t}
//
// # What counts
//
// Each attempt counts singly, by the status of its response or the error in its place:
//
//	Failure   transport errors and timeouts, 408, 429, every status of 500 or more
//	Answered  every other 4xx: a success, but for not ending a run of failures
//	Ignored   whatever comes after the caller's own cancel; an error where the request's own body could not be read, or
//	          where the request is one that net/http does not send
//	Success   the rest
//
// [WithClassifier] decides otherwise, [Ignore429] for one status. A Failure keeps its response: the caller gets it as
// the host sent it. Its Retry-After lengthens the open period that it starts, and the wait before a retry.
//
// # When it counts
//
// A Failure and an Ignored outcome are settled when the headers have come. A Success is settled at the end of the body:
// at its EOF, at its full Content-Length, when the caller closes it or cancels. Until then the request is in flight. An
// error while the body is read is a Failure, and so is the caller's deadline. A body that is neither read to its end nor
// closed stays in flight until the request's context ends, and holds a probe's slot no longer than the lease. That the
// context has ended is seen when more requests come, when one would be rejected for it, and by [Transport.Circuits] and
// [Transport.Circuit]: a Circuit that one kept may show such a body for a little longer. [SettleAtHeaders] changes all
// this to the headers alone.
//
// # Circuits
//
// A circuit's name is the origin: https://example.com, http://10.0.0.7:8080. Upper case, a default port and a trailing
// dot make no difference; the path, the query and userinfo are no part of it. [WithKey] makes other ones.
package breakerhttp
