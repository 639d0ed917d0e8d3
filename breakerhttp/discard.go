package breakerhttp

import (
	"bytes"
	"io"
	"net/http"
	"time"
)

const (
	// drainBytes and drainTime bound what is spent on a response that is dropped: reading it to its end keeps the
	// connection, which is worth little when it takes long.
	drainBytes = 64 << 10
	drainTime  = 20 * time.Millisecond
)

// discard drains and closes a response that is dropped. The time is the real one: a test's clock must not hold it up.
func discard(resp *http.Response) {
	if resp == nil || resp.Body == nil {
		return
	}
	if resp.Body != http.NoBody && resp.ContentLength <= drainBytes {
		drain(resp.Body)
	}
	_ = resp.Body.Close()
}

func drain(r io.Reader) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = recover() }() // a body that panics is dropped all the same; here it would end the process
		_, _ = io.CopyN(io.Discard, r, drainBytes)
	}()
	timer := time.NewTimer(drainTime)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C: // the close that follows ends the read
	}
}

// setAside frees the connection of a response that is held while a retry waits: a small body is read into memory, a large or
// slow one is closed. It reports whether the response can still be given to the caller.
func setAside(resp *http.Response) bool {
	if resp == nil || resp.Body == nil || resp.Body == http.NoBody {
		return true
	}
	rc := resp.Body
	if resp.ContentLength > drainBytes {
		_ = rc.Close()
		return false
	}
	type result struct {
		data []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		r := result{err: io.ErrUnexpectedEOF}
		defer func() { // a body that panics is one that cannot be read; here it would end the process
			_ = recover()
			done <- r
		}()
		r.data, r.err = io.ReadAll(io.LimitReader(rc, drainBytes+1))
	}()
	timer := time.NewTimer(drainTime)
	defer timer.Stop()
	var r result
	select {
	case r = <-done:
	case <-timer.C: // the close that follows ends the read
		r.err = io.ErrUnexpectedEOF
	}
	_ = rc.Close()
	resp.Body = readCloser{bytes.NewReader(r.data)}
	return r.err == nil && len(r.data) <= drainBytes
}
