package main

import (
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
			errs = append(errs, next.pool.Add(member(p, ps)))
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

// sameShape reports whether the pool can stay: providers may come and go, but those that stay have the same place in it.
func sameShape(a, b *settings) bool {
	place := make(map[string][2]int)
	for _, p := range a.providers {
		place[p.name] = [2]int{p.priority, p.weight}
	}
	for _, p := range b.providers {
		if at, stays := place[p.name]; stays && at != [2]int{p.priority, p.weight} {
			return false
		}
	}
	return a.strategy == b.strategy && len(a.providers) > 0
}

// newPool makes a pool over circuits that are there already.
func newPool(r *router, l *live) (*pool.Pool[*provider], error) {
	var members []pool.Member[*provider]
	for _, ps := range l.settings.providers {
		members = append(members, member(l.providers[ps.name], ps))
	}
	// The pool's own limit would end with the answer; call.attempt has one that ends with the first byte.
	opts := []pool.Option{pool.WithLimit(0)}
	if r.clock != (realTime{}) {
		opts = append(opts, pool.WithClock(r.clock))
	}
	return pool.New(strategies[l.strategy], members, opts...)
}

func member(p *provider, s providerSettings) pool.Member[*provider] {
	return pool.Member[*provider]{Name: p.name, Value: p, Priority: s.priority, Weight: s.weight, Circuit: p.circuit}
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
