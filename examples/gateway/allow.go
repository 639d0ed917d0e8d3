package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const dialTimeout = 10 * time.Second

// errNotAllowed refuses a connection whose address no entry of the allow-list covers.
var errNotAllowed = errors.New("the address is not on the allow-list")

// allowList is the host:port pairs that requests may go to. Empty, it allows nothing: a proxy that goes wherever its
// callers say gives them the network it stands in. It is a flag.Value that adds up, and must not change once it is in use.
type allowList map[string]bool

// String lists the entries.
func (a allowList) String() string {
	all := make([]string, 0, len(a))
	for entry := range a {
		all = append(all, entry)
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

// Set adds entries, separated by commas.
func (a allowList) Set(s string) error {
	for entry := range strings.SplitSeq(s, ",") {
		host, port, err := net.SplitHostPort(strings.TrimSpace(entry))
		if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || n == 0 || !plainHost(host) {
			return fmt.Errorf("%q is not host:port", entry)
		}
		a[join(host, port)] = true
	}
	return nil
}

// plainHost reports whether host is an address or a name in ASCII. Other names must be written as the resolver sees them
// (xn--...), lest the list and the dialled name spell one host in two ways.
func plainHost(host string) bool {
	if ip, err := netip.ParseAddr(host); err == nil {
		return !ip.IsUnspecified()
	}
	for _, c := range []byte(host) {
		if c >= 0x80 || !strings.ContainsRune("-._", rune(c)) && (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') {
			return false
		}
	}
	return strings.Trim(host, ".") != ""
}

// join spells a host and port in one way: lower case, no dot at the end, addresses in their shortest form.
func join(host, port string) string {
	host = strings.TrimRight(strings.ToLower(host), ".")
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.Unmap().String()
	}
	return net.JoinHostPort(host, port)
}

// hostPort is the host:port that a request for u is sent to.
func hostPort(u *url.URL) string {
	port := u.Port()
	switch {
	case port != "":
	case u.Scheme == "https":
		port = "443"
	default:
		port = "80"
	}
	return join(u.Hostname(), port)
}

// allows reports whether a request may name u.
func (a allowList) allows(u *url.URL) bool { return a[hostPort(u)] }

// dialContext connects to what is allowed. The check is made on each address that a name has resolved to, right before the
// connection: what a name resolved to a moment ago says nothing about now. A nil resolver is the system's.
func (a allowList) dialContext(resolver *net.Resolver) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		d := net.Dialer{Timeout: dialTimeout, Resolver: resolver}
		d.ControlContext = func(_ context.Context, _, resolved string, _ syscall.RawConn) error {
			return a.checkDial(addr, resolved)
		}
		return d.DialContext(ctx, network, addr)
	}
}

// checkDial decides whether the name asked for may lead to the address resolved. A name on the list is good for public
// addresses, and localhost for loopback ones. It must not lead inside, to a private network or to this machine, unless
// that address is on the list itself: whoever owns a name decides what it resolves to.
func (a allowList) checkDial(asked, resolved string) error {
	host, port, err := net.SplitHostPort(asked)
	if err != nil || !a[join(host, port)] {
		return errNotAllowed
	}
	to, err := netip.ParseAddrPort(resolved)
	if err != nil || strconv.Itoa(int(to.Port())) != port {
		return errNotAllowed
	}
	ip := to.Addr().Unmap()
	isLocal := strings.EqualFold(strings.TrimRight(host, "."), "localhost") && ip.IsLoopback()
	if isLocal || a[join(ip.String(), port)] || public(ip) {
		return nil
	}
	return errNotAllowed
}

// special is what IsGlobalUnicast and IsPrivate leave: addresses that are not reached across the internet, or that carry
// an IPv4 address inside.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("::/96"),
	netip.MustParsePrefix("64:ff9b::/96"),
	netip.MustParsePrefix("64:ff9b:1::/48"),
	netip.MustParsePrefix("2001::/32"),
	netip.MustParsePrefix("2002::/16"),
	netip.MustParsePrefix("fec0::/10"),
}

// public reports whether an address belongs to the internet at large.
func public(ip netip.Addr) bool {
	inside := func(p netip.Prefix) bool { return p.Contains(ip) }
	return ip.IsGlobalUnicast() && !ip.IsPrivate() && !slices.ContainsFunc(special, inside)
}
