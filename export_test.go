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

// Shard gives a circuit its sharded counters, as contention does.
func Shard(c *Circuit) {
	for c.shards.Load() == nil {
		c.contended()
	}
}

// Sharded reports whether a circuit has sharded counters.
func Sharded(c *Circuit) bool { return c.shards.Load() != nil }
