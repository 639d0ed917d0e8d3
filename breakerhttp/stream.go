package breakerhttp

import (
	"context"
	"time"

	"github.com/breakerkit/breaker"
)

// errStalled is the error of a Read that waited for too long.
var errStalled = error(stalled{})

type stalled struct{}

func (stalled) Error() string {
	return "breakerhttp: the response's body brought nothing for as long as WithStall allows"
}
func (stalled) Timeout() bool        { return true }
func (stalled) Temporary() bool      { return true }
func (stalled) Is(target error) bool { return target == context.DeadlineExceeded }

// hostTime tells the host's time of a call from that of its caller: what there was until the headers, without the waits for
// the caller's own upload, and the waits of Reads.
type hostTime struct {
	now     func() time.Time
	began   time.Time
	headers time.Time // zero: they have not come
	upload  time.Duration
	reads   waits
}

// excluded is how much of the time since the beginning was not the host's.
func (h *hostTime) excluded(upload *waits) time.Duration {
	now := h.now()
	headers, up := h.headers, h.upload
	if headers.IsZero() {
		headers, up = now, upload.until(now)
	}
	return now.Sub(headers) - h.reads.until(now) + up
}

// observe prepares what an attempt needs whose time somebody asks for, or that is a probe.
func (t *Transport) observe(b *body, limit time.Duration) {
	circuit := b.circuit() != nil && !fast(&b.permit)
	if !circuit && limit == 0 && t.stall == 0 {
		return
	}
	e := b.extra()
	e.now, e.clock, e.stall = t.now, t.clock, t.stall
	if circuit || limit > 0 {
		e.upload = &waits{now: t.now}
	}
	if circuit {
		e.host = &hostTime{now: t.now, began: t.now(), reads: waits{now: t.now}}
	}
}

// hostHas says how much is left of a limit that counts the host's time alone. It is asked when the limit is over.
func (e *extras) hostHas(limit time.Duration) func() time.Duration {
	began := e.now()
	return func() time.Duration {
		now := e.now()
		waited := e.upload.until(now)
		if waited == 0 {
			return 0
		}
		return limit - (now.Sub(began) - waited)
	}
}

// headersCame notes that the base has returned.
func (b *body) headersCame(t *Transport) {
	if b.more == nil || b.more.host == nil {
		return
	}
	h := b.more.host
	h.headers = t.now()
	h.upload = b.more.upload.until(h.headers)
	if b.permit.Probe() {
		b.more.alive = h.headers.Add(min(t.alive, b.circuit().Config().ProbeLease))
	}
}

// readWatched reads for one who asks how long that takes, keeps what comes, or does not wait for ever.
func (b *body) readWatched(p []byte) (n int, err error) {
	e := b.more
	if e.host != nil {
		e.host.reads.begin()
		defer e.host.reads.end()
	}
	if e.stall > 0 {
		n, err = b.readLimited(p)
	} else {
		n, err = b.rc.Read(p)
	}
	if e.keep != nil {
		e.keep.add(p[:n])
	}
	b.moved(n)
	return n, err
}

// readLimited gives up on a Read that waits for too long.
func (b *body) readLimited(p []byte) (n int, err error) {
	timer := startTimer(b.more.clock, b.more.stall, nil, func() {
		b.settle(breaker.Failure, errStalled)
		if b.more.cancel != nil {
			b.more.cancel(errStalled)
		}
		defer func() { _ = recover() }() // in here a body that panics would end the process
		_ = b.rc.Close()
	})
	defer timer.stop()
	n, err = b.rc.Read(p)
	if !timer.stop() {
		return n, errStalled
	}
	return n, err
}

// moved notes that n bytes have come, or gone. A probe's stream that is still alive some time after its headers has shown
// what it was to show.
func (b *body) moved(n int) {
	e := b.more
	if e == nil || n == 0 {
		return
	}
	if e.stream {
		e.used.Store(true)
	}
	if !e.alive.IsZero() && !e.now().Before(e.alive) {
		b.settle(breaker.Success, nil)
	}
}
