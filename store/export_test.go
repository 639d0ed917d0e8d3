package store

// Len is how many ledgers are kept.
func (m *Memory) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.ledgers) != len(m.queue) {
		panic("the map and the queue disagree")
	}
	return len(m.ledgers)
}

// Remembered is how many tokens a ledger knows.
func (m *Memory) Remembered(name string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.ledgers[name].slots)
}
