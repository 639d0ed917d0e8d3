package breakerhttp

import (
	"bytes"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync/atomic"
	"time"
)

// upload is the body of a request on its way out. It notes when it cannot be read: a client that sends broken chunks, or
// more than it may, says nothing about the host that would have got them.
type upload struct {
	io.ReadCloser
	left   int64        // of the Content-Length; meaningless where that is unknown
	sized  bool         // whether it is known
	unread *atomic.Bool // set for good once reading has failed
	waits  *waits       // nil: nobody asks
	closed atomic.Bool  // what fails afterwards is the doing of whoever closed it
}

// waits is how long has been waited for something. It may be asked while a wait goes on.
type waits struct {
	now   func() time.Time
	total atomic.Int64 // of those that have ended
	since atomic.Int64 // when the one that goes on began; 0: none does
}

// instant is an instant as a number that is not 0, not even at the zero time of a fake clock.
func instant(t time.Time) int64 { return t.UnixNano() | 1 }

func (w *waits) begin() { w.since.Store(instant(w.now())) }

func (w *waits) end() {
	if since := w.since.Swap(0); since != 0 {
		w.total.Add(instant(w.now()) - since)
	}
}

// until is the sum until now.
func (w *waits) until(now time.Time) time.Duration {
	sum := w.total.Load()
	if since := w.since.Load(); since != 0 {
		sum += max(0, instant(now)-since)
	}
	return time.Duration(sum)
}

// watchUpload returns the request to send in req's place, so that unread is set when its body cannot be read.
func watchUpload(req *http.Request, unread *atomic.Bool, waits *waits) *http.Request {
	watched := func(rc io.ReadCloser) io.ReadCloser {
		return &upload{ReadCloser: rc, left: req.ContentLength, sized: req.ContentLength > 0, unread: unread, waits: waits}
	}
	r := req.WithContext(req.Context())
	r.Body = watched(req.Body)
	if req.GetBody != nil { // net/http asks for another one where a connection that it kept has gone
		r.GetBody = func() (io.ReadCloser, error) {
			rc, err := req.GetBody()
			if err != nil || rc == nil || rc == http.NoBody {
				return rc, err
			}
			return watched(rc), nil
		}
	}
	return r
}

func (u *upload) Read(p []byte) (n int, err error) {
	if u.waits != nil {
		u.waits.begin()
		defer u.waits.end()
	}
	n, err = u.ReadCloser.Read(p)
	u.left -= int64(n)
	failed := err != nil && err != io.EOF
	if u.sized { // a body of another length than its request says cannot be sent either
		failed = failed || u.left < 0 || err == io.EOF && u.left > 0
	}
	if failed && !u.closed.Load() {
		u.unread.Store(true)
	}
	return n, err
}

func (u *upload) Close() error {
	u.closed.Store(true) // before the close, which breaks a Read that is under way
	return u.ReadCloser.Close()
}

var (
	nopCloser         = reflect.TypeOf(io.NopCloser(struct{ io.Reader }{}))
	nopCloserWriterTo = reflect.TypeOf(io.NopCloser(&bytes.Buffer{}))
)

// mayFail reports whether there is a body that might not be readable. What http.NewRequest makes of a buffer or a string
// always is, and net/http has shorter ways for it.
func mayFail(req *http.Request) bool {
	if req.Body == nil || req.Body == http.NoBody {
		return false
	}
	if t := reflect.TypeOf(req.Body); t != nopCloser && t != nopCloserWriterTo {
		return true
	}
	switch r := reflect.ValueOf(req.Body).Field(0).Interface().(type) {
	case *bytes.Buffer:
		return int64(r.Len()) != req.ContentLength
	case *bytes.Reader:
		return int64(r.Len()) != req.ContentLength
	case *strings.Reader:
		return int64(r.Len()) != req.ContentLength
	}
	return true
}
