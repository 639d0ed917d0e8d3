package pool

import (
	"context"
	"fmt"
	"strings"

	"github.com/breakerkit/breaker"
)

// Snapshot is a pool at one time. Members are read one after the other. It marshals to JSON.
type Snapshot struct {
	Name     string           `json:"name,omitempty"` // given by WithName
	Strategy Strategy         `json:"strategy"`
	Members  []MemberSnapshot `json:"members"` // in the pool's order
}

// MemberSnapshot is one member of a Snapshot.
type MemberSnapshot struct {
	Name     string           `json:"name"`
	Priority int              `json:"priority"`
	Weight   int              `json:"weight"` // what is in force: 1 for 0
	Ready    bool             `json:"ready"`  // it would be called if its turn came
	Circuit  breaker.Snapshot `json:"circuit"`
}

// Snapshot reads the pool. It changes nothing.
func (p *Pool[E]) Snapshot() Snapshot {
	r := p.load()
	s := Snapshot{Name: p.settings.name, Strategy: r.strategy, Members: make([]MemberSnapshot, 0, len(r.entries))}
	var w rotation
	w.begin(context.Background(), &r.roster, &p.settings, 0)
	for i, e := range r.entries {
		_, ready := w.usable(i)
		s.Members = append(s.Members, MemberSnapshot{e.name, e.priority, int(e.turns()), ready, e.circuit.Snapshot()})
	}
	return s
}

// String is one line for people: the strategy, and each member with its circuit's state.
func (p *Pool[E]) String() string {
	if p == nil || p.members.Load() == nil {
		return "pool without New"
	}
	r := p.load()
	var b strings.Builder
	fmt.Fprintf(&b, "%v pool of %d", r.strategy, len(r.entries))
	sep := ": "
	for _, e := range r.entries {
		fmt.Fprintf(&b, "%s%s %v", sep, e.name, e.circuit.State())
		sep = ", "
	}
	return b.String()
}
