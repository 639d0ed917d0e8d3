package breakerhttp

import (
	"io"
	"net/http"
)

// hideTrailers removes trailers that are named like this package's own headers: those that are announced now, and the
// others at the body's end, when they have come.
func (t *Transport) hideTrailers(resp *http.Response) {
	t.hideOwn(resp.Trailer)
	if resp.Body == nil || resp.Body == http.NoBody {
		return
	}
	if _, upgraded := resp.Body.(io.Writer); !upgraded { // such a connection has none
		resp.Body = &trailers{ReadCloser: resp.Body, t: t, resp: resp}
	}
}

// trailers is a body after whose end unwanted trailers are removed.
type trailers struct {
	io.ReadCloser
	t    *Transport
	resp *http.Response
}

func (b *trailers) Read(p []byte) (n int, err error) {
	n, err = b.ReadCloser.Read(p)
	if err != nil {
		b.t.hideOwn(b.resp.Trailer)
	}
	return n, err
}
