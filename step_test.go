package breaker

import "unsafe"

// IdleSize is the bytes of a circuit and its typed breaker.
const IdleSize = unsafe.Sizeof(Circuit{}) + unsafe.Sizeof(Breaker[int]{})

// step is the machine's step on values: the machine given is left as it was.
func step(m machine, p *policy, e event) (machine, effects) {
	var fx effects
	m.leases = append([]int64(nil), m.leases...)
	m.step(p, &e, &fx)
	return m, fx
}
