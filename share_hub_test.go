package breaker_test

import (
	"context"

	"testing"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// odd is a store that watches in its own way.
type odd struct {
	*faulty
	watch func(breaker.Watcher) func()
}

func (o *odd) Watch(w breaker.Watcher) func() { return o.watch(w) }

// A Watch that panics is told, one whose stop is missing or panics does no harm.
func TestShareHubOddWatches(t *testing.T) {
	stopped := 0
	for name, watch := range map[string]func(breaker.Watcher) func(){
		"panics":      func(breaker.Watcher) func() { panic("no watch") },
		"no stop":     func(breaker.Watcher) func() { return nil },
		"stop panics": func(breaker.Watcher) func() { return func() { stopped++; panic("no stop") } },
	} {
		t.Run(name, func(t *testing.T) {
			bothHubs(t, func(w *world, f *faulty) {
				var errs []error
				hook := breaker.WithHooks(breaker.Hooks{StoreError: func(err error) { errs = append(errs, err) }})
				c, err := breaker.NewCircuit("c", breaker.WithStore(&odd{f, watch}), hook)
				require.NoError(w, err)
				require.NoError(w, c.Run(w.Context(), func(context.Context) error { return nil }))
				w.rest()
				if name == "panics" {
					require.Len(w, errs, 1)
					require.ErrorContains(w, errs[0], "no watch")
					require.Contains(w, c.Snapshot().Shared.LastError, "no watch")
				} else {
					require.Empty(w, errs)
				}
				require.NoError(w, c.Sync(w.Context()))
				require.NoError(w, c.Close())
				w.rest()
			})
		})
	}
	require.Equal(t, 2, stopped)
}
