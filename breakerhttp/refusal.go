package breakerhttp

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
)

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
