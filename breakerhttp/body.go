package breakerhttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/breakerkit/breaker"
)

// body is one attempt from its admission to the end of its response's body, whose place it takes. It is the only
// allocation that a request through a closed circuit adds.
type body struct {
	permit breaker.Permit // a zero Permit where there is no circuit
	rc     io.ReadCloser
	state  atomic.Int64 // what is left of the Content-Length (-1: unknown), times two; 1 more while a Read waits or has failed
	watch               // of the caller's context
	more   *extras      // nil: none
}

// extras is what only some attempts need.
type extras struct {
	ctx    context.Context         // the caller's, where there is no permit that knows it
	gone   <-chan struct{}         // the request's Cancel
	past   *breaker.Circuit        // of an attempt that passes the circuit by
	cancel context.CancelCauseFunc // of the attempt's own context
	keep   *recording              // what has been read, for the cache
	unread atomic.Bool             // the request's body could not be read

	upload *waits    // for the caller's body; nil: nobody asks
	host   *hostTime // nil: nobody asks how long the call takes
	alive  time.Time // when a probe's stream that still brings bytes is a success; zero: never
	now    func() time.Time
	clock  breaker.Clock
	stall  time.Duration // 0: off
	stream bool          // the body is an upgraded connection
	used   atomic.Bool   // such an upgraded connection has brought or taken bytes
}

// upgraded is the body of a 101: the connection itself.
type upgraded struct {
	*body
	w io.Writer
}

func (u upgraded) Write(p []byte) (int, error) {
	n, err := u.w.Write(p)
	u.moved(n)
	return n, err
}

// CloseWrite passes a half-close on, where the connection has one.
func (u upgraded) CloseWrite() error {
	if c, ok := u.w.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return errors.ErrUnsupported
}

// ctx is the caller's context.
func (b *body) ctx() context.Context {
	c, ctx := admitted(&b.permit)
	if c == nil {
		return b.more.ctx
	}
	return ctx
}

// circuit is the one that admitted the attempt; nil: none.
func (b *body) circuit() *breaker.Circuit {
	c, _ := admitted(&b.permit)
	return c
}

// ended is how the caller has ended the request, if so.
func (b *body) ended() error {
	if b.more == nil {
		return b.ctx().Err()
	}
	return callerEnd(b.ctx(), b.more.gone)
}

// endedCtx is a context that has ended. The request's Cancel channel may say so before the context itself.
type endedCtx struct {
	context.Context
	err error
}

func (c endedCtx) Err() error { return c.err }

// callerCtx is the caller's context, ended if the request is.
func (b *body) callerCtx() context.Context {
	if err := b.ended(); err != nil {
		return endedCtx{b.ctx(), err}
	}
	return b.ctx()
}

// attach puts b in the place of the response's body.
func (b *body) attach(resp *http.Response) {
	b.rc = resp.Body
	left := resp.ContentLength
	if left == 0 { // left out, or to be followed by the end alone
		left = -1
	}
	resp.Body = b
	if resp.StatusCode == http.StatusSwitchingProtocols {
		left = -1
		b.extra().stream = true
		if w, ok := b.rc.(io.Writer); ok {
			resp.Body = upgraded{b, w}
		}
	}
	b.state.Store(left << 1)
}

// record begins to keep an answer for the cache, if it may be kept. One that must not be takes the earlier one away, unless
// it says only that the host has failed.
func (b *body) record(a *attempt, as *http.Request) {
	if b.more == nil || b.more.keep == nil || a.err == nil && a.outcome == breaker.Success && b.more.keep.accept(a.resp, as) {
		return
	}
	if a.err == nil && a.outcome != breaker.Failure && a.resp.StatusCode != http.StatusNotModified {
		b.more.keep.remove()
	}
	b.more.keep = nil
}

func (b *body) Read(p []byte) (n int, err error) {
	state := b.state.Load()
	if b.ended() == nil {
		b.state.Store(state | 1)
	}
	if b.more == nil {
		n, err = b.rc.Read(p)
	} else {
		n, err = b.readWatched(p)
	}
	left := state >> 1
	if left > 0 {
		left -= min(int64(n), left)
	}
	switch {
	case err == io.EOF:
		b.complete()
		b.release()
	case err != nil:
		err = b.broken(err)
	case left == 0:
		b.complete()
		b.state.Store(0)
	default:
		b.state.Store(left << 1)
	}
	return n, err
}

// Close before the end is the caller's good right: a decoder stops at the end of its value, not of the stream. Who closes
// while a Read waits has given up on the host, which says nothing for it, nor against it.
func (b *body) Close() error {
	if b.ended() != nil {
		b.callerEnded()
	}
	b.settle(b.whenLeft(), nil) // before the close, which breaks a Read that is under way
	err := b.rc.Close()
	b.release()
	return err
}

// whenLeft is what it says of the host that its caller does not want to read on.
func (b *body) whenLeft() breaker.Outcome {
	waits := b.state.Load()&1 != 0
	if b.more != nil && b.more.stream { // there somebody always reads
		waits = !b.more.used.Load()
	}
	if waits {
		return breaker.Ignored
	}
	return breaker.Success
}

// complete is the end of a body that was read to its end.
func (b *body) complete() {
	b.settle(breaker.Success, nil)
	b.unwatch()
	if b.more != nil && b.more.keep != nil {
		b.more.keep.complete()
		b.more.keep = nil
	}
}

// broken is the end of a body that could not be read to its end. The error says so if it was the caller's deadline.
func (b *body) broken(err error) error {
	if b.more != nil {
		b.more.keep = nil
	}
	ended := b.ended()
	if ended != nil {
		b.callerEnded()
	} else {
		b.settle(b.judge(err), withoutURL(err))
	}
	b.release()
	if ended == context.DeadlineExceeded && !errors.Is(err, ended) {
		return fmt.Errorf("%w (%w)", ended, err)
	}
	return err
}

// callerEnded settles by how the caller has ended the request: a cancel is how streams end, a deadline is a Failure.
func (b *body) callerEnded() {
	err := b.ended()
	if errors.Is(err, context.Canceled) {
		b.settle(b.whenLeft(), nil)
		return
	}
	b.settle(b.judge(err), err)
}

func (b *body) judge(err error) breaker.Outcome {
	if c := b.circuit(); c != nil {
		if o, ok := decided(c, b.callerCtx(), err); ok {
			return o
		}
	}
	if b.unread() { // while the host was answering already
		return breaker.Ignored
	}
	return breaker.Failure
}

// unread reports whether the request's body could not be read.
func (b *body) unread() bool { return b.more != nil && b.more.unread.Load() }

// settle ends the permit, once. A success on a closed circuit takes no lock.
func (b *body) settle(o breaker.Outcome, cause error) {
	switch {
	case b.more != nil && b.more.host != nil:
		settleExcluding(&b.permit, o, cause, b.more.host.excluded(b.more.upload))
	case o == breaker.Success:
		b.permit.Done(nil)
	default:
		b.permit.Settle(o, cause)
	}
}

// release lets go of what the attempt holds.
func (b *body) release() {
	b.unwatch()
	if b.more != nil && b.more.cancel != nil {
		b.more.cancel(nil)
	}
}

// extra is b's extras, made when they are first needed.
func (b *body) extra() *extras {
	if b.more == nil {
		b.more = &extras{}
	}
	return b.more
}
