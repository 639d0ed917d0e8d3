package breakerhttp

import (
	"container/list"
	"context"
	"sync"
	"time"
)

const (
	cacheEntries = 1024
	cacheBytes   = 64 << 20
)

func newMemoryCache(now func() time.Time) *memoryCache {
	return &memoryCache{now: now, byKey: make(map[string]*list.Element)}
}

// memoryCache is the cache in memory, bounded in answers and in bytes; the answer used least recently goes first.
type memoryCache struct {
	now func() time.Time

	mu     sync.Mutex
	bytes  int
	byKey  map[string]*list.Element
	recent list.List // of *memoryEntry, the one used last in front
}

type memoryEntry struct {
	key     string
	value   []byte
	started time.Time
	expires time.Time
}

func (c *memoryCache) Get(_ context.Context, key string) ([]byte, bool, error) {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.byKey[key]
	if at == nil {
		return nil, false, nil
	}
	e := at.Value.(*memoryEntry)
	if !now.Before(e.expires) {
		c.removeLocked(at)
		return nil, false, nil
	}
	c.recent.MoveToFront(at)
	return e.value, true, nil
}

func (c *memoryCache) Set(_ context.Context, key string, value []byte, started time.Time, ttl time.Duration) error {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := c.byKey[key]; at != nil {
		if e := at.Value.(*memoryEntry); started.Before(e.started) && now.Before(e.expires) {
			return nil
		}
		c.removeLocked(at)
	}
	c.byKey[key] = c.recent.PushFront(&memoryEntry{key, value, started, now.Add(ttl)})
	c.bytes += len(value)
	for len(c.byKey) > cacheEntries || c.bytes > cacheBytes {
		c.removeLocked(c.recent.Back())
	}
	return nil
}

func (c *memoryCache) removeLocked(at *list.Element) {
	e := at.Value.(*memoryEntry)
	delete(c.byKey, e.key)
	c.bytes -= len(e.value)
	c.recent.Remove(at)
}
