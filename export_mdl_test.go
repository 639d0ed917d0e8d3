package breaker

// Shard gives a circuit its sharded counters, as contention does.
func Shard(c *Circuit) {
	for c.shards.Load() == nil {
		c.contended()
	}
}

// Sharded reports whether a circuit has sharded counters.
func Sharded(c *Circuit) bool { return c.shards.Load() != nil }
