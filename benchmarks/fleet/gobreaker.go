package main

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"
)

// lockStore is gobreaker's SharedDataStore on Redis: a lock is a key set if absent, deleted by a script if it is still
// ours; the data is a string.
type lockStore struct {
	client *redis.Client
	token  string
}

var unlock = redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)

var errLocked = errors.New("locked")

func (s *lockStore) Lock(name string) error {
	ok, err := s.client.SetNX(context.Background(), name, s.token, 5*time.Second).Result()
	if err == nil && !ok {
		err = errLocked
	}
	return err
}

func (s *lockStore) Unlock(name string) error {
	return unlock.Run(context.Background(), s.client, []string{name}, s.token).Err()
}

func (s *lockStore) GetData(name string) ([]byte, error) {
	data, err := s.client.Get(context.Background(), name).Bytes()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return data, err
}

func (s *lockStore) SetData(name string, data []byte) error {
	return s.client.Set(context.Background(), name, data, 0).Err()
}

// theirs is a call through gobreaker's distributed breaker.
type theirs struct {
	b *gobreaker.DistributedCircuitBreaker[struct{}]
}

func newTheirs(client *redis.Client, token, name string, o options) (*theirs, error) {
	b, err := gobreaker.NewDistributedCircuitBreaker[struct{}](&lockStore{client, token}, gobreaker.Settings{
		Name:        name,
		MaxRequests: uint32(o.Limit),
		Timeout:     o.Open,
		ReadyToTrip: func(n gobreaker.Counts) bool { return n.ConsecutiveFailures >= uint32(o.Threshold) },
	})
	return &theirs{b}, err
}

func (t *theirs) call(f func() error) error {
	_, err := t.b.Execute(func() (struct{}, error) { return struct{}{}, f() })
	return err
}
