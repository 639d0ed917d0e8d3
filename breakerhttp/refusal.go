package breakerhttp

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
)

// refusals are parts of the errors with which net/http refuses a request that it has not sent, where that depends on the
// connection: over HTTP/2 other headers are lawful, and the peer says how many it takes.
var refusals = []string{
	"unsupported protocol scheme", "no Host in request URL", "invalid Host header", "invalid request :path", "invalid :protocol header",
	"invalid Upgrade request header", "invalid Connection request header", "invalid Transfer-Encoding request header",
	"header list larger than peer's", "header list size exceeds",
}

// unsendable reports whether net/http refuses to send a request as it is, which says nothing about the host. It is asked
// after an error only, so that a request that is sent pays nothing for it.
func unsendable(req *http.Request, err error) bool {
	switch req.URL.Scheme {
	case "http", "https":
		if req.URL.Host == "" {
			return true
		}
	}
	if req.Method != "" && !token(req.Method) || strings.ContainsFunc(req.URL.RequestURI(), control) ||
		!validFields(req.Header) || !validFields(req.Trailer) || unwritable(req) {
		return true
	}
	text := err.Error()
	return slices.ContainsFunc(refusals, func(part string) bool { return strings.Contains(text, part) })
}

// headWritten is the body of a request whose head net/http is to write: once that is done, it is read.
type headWritten struct{ done bool }

func (b *headWritten) Read([]byte) (int, error) {
	b.done = true
	return 0, io.ErrUnexpectedEOF
}
func (*headWritten) Close() error { return nil }

// unwritable has net/http itself write the request's head, to nobody: what it refuses, it has refused before.
func unwritable(req *http.Request) bool {
	body := &headWritten{}
	probe := *req
	if req.Body != nil && req.Body != http.NoBody {
		probe.Body = body
		if req.ContentLength == 0 { // unknown, to net/http
			probe.ContentLength = -1
		}
	}
	return probe.Write(io.Discard) != nil && !body.done
}

// noConnection reports whether an error says that there was no connection to send a request on.
func noConnection(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && (op.Op == "dial" || op.Op == "proxyconnect")
}

// untrusted reports whether an error is that of a certificate that is not trusted: as long as nobody changes it, every
// handshake ends so.
func untrusted(err error) bool {
	var (
		verification *tls.CertificateVerificationError
		authority    x509.UnknownAuthorityError
		hostname     x509.HostnameError
		invalid      x509.CertificateInvalidError
	)
	return errors.As(err, &verification) || errors.As(err, &authority) || errors.As(err, &hostname) || errors.As(err, &invalid)
}

func validFields(h http.Header) bool {
	for name, values := range h {
		if !token(name) {
			return false
		}
		for _, v := range values {
			if strings.ContainsFunc(v, func(r rune) bool { return r != '\t' && control(r) }) {
				return false
			}
		}
	}
	return true
}

func control(r rune) bool { return r < ' ' || r == 0x7f }

// token reports whether s is a method or the name of a header field.
func token(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
		return !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
}
