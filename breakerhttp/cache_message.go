package breakerhttp

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// hopHeaders belong to a connection or to a proxy, not to an answer (RFC 9111 3.1).
var hopHeaders = []string{"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
	"Proxy-Authenticate", "Proxy-Authentication-Info", "Proxy-Authorization"}

// dropHopHeaders removes them, and those that Connection names.
func dropHopHeaders(h http.Header) {
	var named []string
	for _, line := range h["Connection"] {
		named = append(named, strings.Split(line, ",")...)
	}
	for _, name := range named {
		h.Del(strings.TrimSpace(name))
	}
	for _, name := range hopHeaders {
		h.Del(name)
	}
}

const (
	// storedHeader says in a stored message when it was stored, in seconds since 1970.
	storedHeader = "Breaker-Stored"
	// startedHeader says when its request was sent, in nanoseconds since 1970.
	startedHeader = "Breaker-Started"
)

// age sets the Age header of a stored answer, and returns it: it was as old as it says when it came.
func age(h http.Header, now time.Time) time.Duration {
	stored, err := strconv.ParseInt(h.Get(storedHeader), 10, 64)
	h.Del(storedHeader)
	if err != nil {
		return 0
	}
	before, _ := seconds(h.Get("Age"))
	s := int64(before/time.Second) + max(0, now.Unix()-stored)
	h.Set("Age", strconv.FormatInt(s, 10))
	return min(time.Duration(min(s, int64(most/time.Second)))*time.Second, most)
}

// startedAt takes out of a stored answer when its request was sent.
func startedAt(h http.Header) int64 {
	at, _ := strconv.ParseInt(h.Get(startedHeader), 10, 64)
	h.Del(startedHeader)
	return at
}

// encode writes an answer as an HTTP/1.1 message.
func encode(resp *http.Response, body []byte, method string) []byte {
	dropHopHeaders(resp.Header)
	if method != http.MethodHead && resp.StatusCode != http.StatusNoContent {
		resp.Header.Set("Content-Length", strconv.Itoa(len(body)))
	}
	var w bytes.Buffer
	fmt.Fprintf(&w, "HTTP/1.1 %d %s\r\n", resp.StatusCode, http.StatusText(resp.StatusCode))
	_ = resp.Header.Write(&w)
	w.WriteString("\r\n")
	w.Write(body)
	return w.Bytes()
}

// decode reads one back; nil if it is none.
func decode(value []byte, req *http.Request) *http.Response {
	r := bytes.NewReader(value)
	resp, err := http.ReadResponse(bufio.NewReaderSize(r, 4096), req)
	if err != nil {
		return nil
	}
	b, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		return nil
	}
	resp.Close = false
	resp.Body = readCloser{bytes.NewReader(b)}
	if len(b) == 0 {
		resp.Body = http.NoBody
	}
	return resp
}

// readCloser is a reader over memory, whose Close has nothing to do.
type readCloser struct{ io.Reader }

func (readCloser) Close() error { return nil }

// WriteTo lets io.Copy pass the memory on without a copy.
func (r readCloser) WriteTo(w io.Writer) (int64, error) { return io.Copy(w, r.Reader) }
