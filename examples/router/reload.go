package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/pool"
)

// reload puts settings in force. What it refuses changes nothing. Circuits of providers that stay keep their state, the
// rest of an open period and their counts; requests under way end as they began.
func (r *router) reload(s settings) error {
	r.reloading.Lock()
	defer r.reloading.Unlock()
	old := r.live.Load()
	if old.listen != "" && old.listen != s.listen {
		return fmt.Errorf("listen: %s cannot become %s without a restart", old.listen, s.listen)
	}
	next := &live{settings: s, pool: old.pool, providers: make(map[string]*provider)}
	var added []*provider
	for _, ps := range s.providers {
		p := old.providers[ps.name]
		if p == nil {
			var err error
			if p, err = r.newProvider(ps, s.breaker); err != nil {
				return err
			}
			added = append(added, p)
		}
		next.providers[ps.name] = p
	}
	if !sameShape(&old.settings, &s) {
		var err error
		if next.pool, err = newPool(r, next); err != nil {
			return err
		}
	}
	return r.adopt(old, next, added)
}

// adopt puts in force what has been found good.
func (r *router) adopt(old, next *live, added []*provider) error {
	var errs []error
	for _, ps := range next.settings.providers {
		p := next.providers[ps.name]
		p.aim(ps)
		errs = append(errs, p.circuit.Configure(next.breaker.Options()...))
		if next.pool == old.pool && slices.Contains(added, p) {
			errs = append(errs, next.pool.Add(next.member(ps)))
		}
	}
	r.live.Store(next)
	for name, p := range old.providers {
		if next.providers[name] != nil {
			continue
		}
		if next.pool == old.pool {
			next.pool.Remove(name)
		}
		errs = append(errs, p.circuit.Close())
	}
	return errors.Join(errs...)
}

// sameShape reports whether the pool can stay: providers may come and go, but those that stay have the same place in it,
// and all of them are in the order that the file now has.
func sameShape(a, b *settings) bool {
	if a.strategy != b.strategy || len(a.providers) == 0 {
		return false
	}
	now := make(map[string]providerSettings)
	for _, p := range b.providers {
		now[p.name] = p
	}
	var kept []providerSettings // what the pool would hold, in its order: those that come go behind their equals
	for _, p := range a.providers {
		is, stays := now[p.name]
		if stays && (is.priority != p.priority || is.weight != p.weight) {
			return false
		}
		if stays {
			kept = append(kept, is)
			delete(now, p.name)
		}
	}
	for _, p := range b.providers {
		if _, comes := now[p.name]; comes {
			kept = append(kept, p)
		}
	}
	return slices.Equal(inOrder(kept), inOrder(b.providers))
}

// inOrder is the providers' names by priority; equals are in the order given.
func inOrder(all []providerSettings) (names []string) {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b providerSettings) int { return cmp.Compare(b.priority, a.priority) })
	for _, p := range all {
		names = append(names, p.name)
	}
	return names
}

// newPool makes a pool over circuits that are there already.
func newPool(r *router, l *live) (*pool.Pool[*provider], error) {
	var members []pool.Member[*provider]
	for _, ps := range l.settings.providers {
		members = append(members, l.member(ps))
	}
	// Without WithLimit, which would end with the answer: call.attempt has a limit that ends with the first byte.
	var opts []pool.Option
	if r.clock != (realTime{}) {
		opts = append(opts, pool.WithClock(r.clock))
	}
	return pool.New(strategies[l.strategy], members, opts...)
}

// member is a provider's place in the pool. Its priority is for failover: the other strategies share out among all.
func (l *live) member(s providerSettings) pool.Member[*provider] {
	p := l.providers[s.name]
	m := pool.Member[*provider]{Name: p.name, Value: p, Weight: s.weight, Circuit: p.circuit}
	if strategies[l.strategy] == pool.Failover {
		m.Priority = s.priority
	}
	return m
}

// newProvider makes a provider with a circuit of its own. The file's settings come last: they tune the health check.
func (r *router) newProvider(s providerSettings, c breaker.Config) (*provider, error) {
	p := &provider{name: s.name}
	p.aim(s)
	opts := []breaker.Option{
		breaker.WithHealthCheck(breaker.DefaultConfig().HealthCheck.Interval, p.healthy),
		breaker.WithIgnore(errCallersFault),
		breaker.WithLogger(r.log),
		breaker.WithHooks(r.hooks),
	}
	if r.clock != (realTime{}) {
		opts = append(opts, breaker.WithClock(r.clock))
	}
	circuit, err := breaker.NewCircuit(s.name, append(opts, c.Options()...)...)
	p.circuit = circuit
	return p, err
}

// names are the providers in force.
func (l *live) names() []string { return slices.Sorted(maps.Keys(l.providers)) }
