package simulation

import (
	"fmt"
	"strings"
	"time"
)

// kept is how many of the last steps a trace has.
const kept = 200

// record is one line of a trace.
type record struct {
	at   time.Duration
	node int // -1: none
	what string
	a, b uint64
}

func (r record) String() string {
	who := "      "
	if r.node >= 0 {
		who = fmt.Sprintf("n%-5d", r.node)
	}
	return fmt.Sprintf("%12v %s %-22s %d %d", r.at, who, r.what, r.a, r.b)
}

// trace is the last steps of a run, and a hash of all of them.
type trace struct {
	last  [kept]record
	n     int // steps
	only  int // the node to show; below 0: all
	shown int
	hash  uint64
}

func (t *trace) add(r record) {
	t.n++
	if t.only < 0 || r.node < 0 || r.node == t.only {
		t.last[t.shown%kept] = r
		t.shown++
	}
	const prime = 1099511628211
	h := t.hash
	for i := range len(r.what) {
		h = (h ^ uint64(r.what[i])) * prime
	}
	for _, v := range [...]uint64{uint64(r.at), uint64(r.node), r.a, r.b} {
		h = (h ^ v) * prime
		h ^= h >> 29
	}
	t.hash = h
}

// String is the last steps, oldest first.
func (t *trace) String() string {
	var b strings.Builder
	for i := max(0, t.shown-kept); i < t.shown; i++ {
		fmt.Fprintln(&b, t.last[i%kept])
	}
	return b.String()
}
