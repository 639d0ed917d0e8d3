package storeredis

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode"
)

// maxName is how long an encoded name may be, in bytes.
const maxName = 200

// encodeName makes a name fit to be part of a key: it cannot leave its hash slot or its namespace, and different names stay
// different. All but letters, digits and ._:- is percent-encoded. A result that is too long is cut and gets a tilde and the
// hash of the whole name; no other encoded name contains a tilde.
func encodeName(name string) string {
	plain := strings.IndexFunc(name, func(r rune) bool { return !isPlain(r) }) < 0
	if plain && len(name) <= maxName {
		return name
	}
	var b strings.Builder
	for i := 0; i < len(name) && b.Len() <= maxName; i++ {
		if c := name[i]; isPlain(rune(c)) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	if b.Len() <= maxName {
		return b.String()
	}
	sum := sha256.Sum256([]byte(name))
	hash := hex.EncodeToString(sum[:])
	return b.String()[:maxName-1-len(hash)] + "~" + hash
}

func isPlain(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("._:-", r)
}

// keysOf returns the keys of a circuit: its hash and, with the mirror, the two plain ones. They share a hash tag, and so a
// hash slot.
func (s *Store) keysOf(name string) []string {
	tagged := ":{" + encodeName(name) + "}"
	keys := []string{s.prefix + tagged}
	if s.mirror {
		keys = append(keys, s.prefix+":state"+tagged, s.prefix+":fails"+tagged)
	}
	return keys
}

// prefixFault says what is wrong with a key prefix.
func prefixFault(prefix string) string {
	const maxPrefix = 100
	odd := func(r rune) bool { return r == '{' || r == '}' || r == unicode.ReplacementChar || !unicode.IsPrint(r) }
	switch {
	case prefix == "":
		return "must not be empty"
	case len(prefix) > maxPrefix:
		return fmt.Sprintf("must not be longer than %d bytes", maxPrefix)
	case strings.ContainsFunc(prefix, odd):
		return "must have neither braces nor control characters"
	case strings.HasSuffix(prefix, ":state"), strings.HasSuffix(prefix, ":fails"):
		return "must not end in :state or :fails, where the mirror of another prefix would be"
	}
	return ""
}
