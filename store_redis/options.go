package storeredis

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/redis/go-redis/v9"
)

// Option configures a [Store].
type Option interface{ apply(*settings) }

type option func(*settings)

func (o option) apply(s *settings) { o(s) }

type settings struct {
	prefix    string
	mirror    bool
	timeout   time.Duration
	anyClient bool
}

// The defaults.
const (
	defaultPrefix  = "cb"
	defaultTimeout = 200 * time.Millisecond
)

// KeyPrefix sets what all keys and the channel begin with. Default "cb". Circuits share if name, prefix and database are
// the same. It may have up to 100 bytes, but no braces and no control characters.
func KeyPrefix(prefix string) Option { return option(func(s *settings) { s.prefix = prefix }) }

// MirrorKeys also keeps two plain keys for each circuit, for dashboards and scripts to read:
//
//	cb:state:{<name>}  "OPEN" while the circuit is open; it expires when a probe is due
//	cb:fails:{<name>}  the number of failures in a row; it expires with the window, or after 60 seconds without one, and
//	                   goes with a success
//
// Nothing reads them back. They are written by the same scripts, so that they never contradict the circuit for longer than
// a command takes.
func MirrorKeys() Option { return option(func(s *settings) { s.mirror = true }) }

// Timeout sets how long an operation may take, its connection included. Default 200ms. Probes wait for no longer than this.
func Timeout(d time.Duration) Option { return option(func(s *settings) { s.timeout = d }) }

// UncheckedClient accepts a client whatever its settings are. Without this option [New] refuses a client that retries or
// ignores deadlines, and a Ring. Operations return in time and are sent once in any case,
// but a client that ignores deadlines keeps a connection and a goroutine for every operation that got no answer until its
// own ReadTimeout; and events published on one shard of a Ring do not reach the others.
func UncheckedClient() Option { return option(func(s *settings) { s.anyClient = true }) }

func newSettings(client redis.UniversalClient, opts []Option) (*settings, error) {
	s := &settings{prefix: defaultPrefix, timeout: defaultTimeout}
	for _, o := range opts {
		if o != nil {
			o.apply(s)
		}
	}
	var faults []error
	if fault := prefixFault(s.prefix); fault != "" {
		faults = append(faults, fmt.Errorf("storeredis: KeyPrefix: %s, got %q", fault, s.prefix))
	}
	if s.timeout <= 0 {
		faults = append(faults, fmt.Errorf("storeredis: Timeout: must be above 0, got %v", s.timeout))
	}
	faults = append(faults, clientFault(client, s.anyClient))
	return s, errors.Join(faults...)
}

// clientFault says what is wrong with a client, as far as its settings can be read.
func clientFault(client redis.UniversalClient, unchecked bool) error {
	if isNil(client) {
		return errors.New("storeredis: client: must not be nil")
	}
	if unchecked {
		return nil
	}
	switch c := client.(type) {
	case *redis.Client:
		o := c.Options()
		return settingsFault(o.MaxRetries, o.ContextTimeoutEnabled, o.ReadTimeout)
	case *redis.ClusterClient:
		o := c.Options()
		return settingsFault(o.MaxRetries, o.ContextTimeoutEnabled, o.ReadTimeout)
	case *redis.Ring:
		return errors.New("storeredis: client: must not be a Ring, whose shards do not see each other's events (UncheckedClient accepts it)")
	}
	return nil
}

func settingsFault(retries int, deadlines bool, readTimeout time.Duration) error {
	var faults []error
	if retries > 0 {
		faults = append(faults, fmt.Errorf("storeredis: client: MaxRetries must be -1, for none, got %d: what is sent twice may count twice (UncheckedClient accepts it)", retries))
	}
	if !deadlines {
		faults = append(faults, errors.New("storeredis: client: ContextTimeoutEnabled must be true, got false: without it an operation is not given up in time (UncheckedClient accepts it)"))
	}
	if readTimeout < 0 {
		faults = append(faults, fmt.Errorf("storeredis: client: ReadTimeout must not be -2, which turns deadlines off, got %d (UncheckedClient accepts it)", readTimeout-1))
	}
	return errors.Join(faults...)
}

func isNil(v any) bool {
	r := reflect.ValueOf(v)
	return v == nil || r.Kind() == reflect.Pointer && r.IsNil()
}
