package breakerhttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/breakerkit/breaker"
)

// body is one attempt from its admission to the end of its response's body, whose place it takes. It is the only
// allocation that a request through a closed circuit adds.
type body struct {
	permit breaker.Permit // a zero Permit where there is no circuit
	rc     io.ReadCloser
	left   int64   // of the Content-Length; -1: unknown
	watch          // of the caller's context
	more   *extras // nil: none
}

// extras is what only some attempts need.
type extras struct {
	ctx    context.Context         // the caller's, where there is no permit that knows it
	gone   <-chan struct{}         // the request's Cancel
	past   *breaker.Circuit        // of an attempt that passes the circuit by
	cancel context.CancelCauseFunc // of the attempt's own context
	keep   *recording              // what has been read, for the cache
	unread atomic.Bool             // the request's body could not be read
}

// upgraded is the body of a 101: the connection itself.
type upgraded struct {
	*body
	w io.Writer
}

func (u upgraded) Write(p []byte) (int, error) { return u.w.Write(p) }

// CloseWrite passes a half-close on, where the connection has one.
func (u upgraded) CloseWrite() error {
	if c, ok := u.w.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return errors.ErrUnsupported
}

// ctx is the caller's context.
func (b *body) ctx() context.Context {
	if b.permit.Circuit() == nil {
		return b.more.ctx
	}
	return b.permit.Context()
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
	b.rc, b.left = resp.Body, resp.ContentLength
	if b.left == 0 { // left out, or to be followed by the end alone
		b.left = -1
	}
	resp.Body = b
	if resp.StatusCode == http.StatusSwitchingProtocols {
		b.left = -1
		if w, ok := b.rc.(io.Writer); ok {
			resp.Body = upgraded{b, w}
		}
	}
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
	n, err = b.rc.Read(p)
	if b.more != nil && b.more.keep != nil {
		b.more.keep.add(p[:n])
	}
	if b.left > 0 {
		b.left -= min(int64(n), b.left)
	}
	switch {
	case err == io.EOF:
		b.complete()
		b.release()
	case err != nil:
		err = b.broken(err)
	case b.left == 0:
		b.complete()
	}
	return n, err
}

// Close before the end is the caller's good right: a decoder stops at the end of its value, not of the stream.
func (b *body) Close() error {
	if b.ended() != nil {
		b.callerEnded()
	}
	b.settle(breaker.Success, nil) // before the close, which breaks a Read that is under way
	err := b.rc.Close()
	b.release()
	return err
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
		b.settle(breaker.Success, nil)
		return
	}
	b.settle(b.judge(err), err)
}

func (b *body) judge(err error) breaker.Outcome {
	if c := b.permit.Circuit(); c != nil {
		if o, decided := c.Decided(b.callerCtx(), err); decided {
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
	if o == breaker.Success {
		b.permit.Done(nil)
		return
	}
	b.permit.Settle(o, cause)
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
