package breaker_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
)

// Where pushes are lost, circuits in use are told by the poll, within a second.
func TestSharePollIsTheSafetyNet(t *testing.T) {
	bubble(t, byDo, func(w *world) {
		f := newFaulty(w, false)
		fl := newFleet(w, f, 3, breaker.WithOpenTimeout(time.Hour))
		a, b, idle := fl.nodes[0], fl.nodes[1], fl.nodes[2]
		fl.sync()
		f.pushes.set(true, false)
		for range 5 {
			a.c.Trip(nil)
			require.NoError(w, a.c.Sync(context.Background()))
			waited := time.Duration(0)
			for b.c.State() != breaker.Open {
				require.LessOrEqual(w, waited, 1100*time.Millisecond)
				_ = b.call(nil)
				w.add(50 * time.Millisecond)
				waited += 50 * time.Millisecond
				w.rest()
			}
			a.c.Reset()
			require.NoError(w, a.c.Sync(context.Background()))
			for waited = 0; b.c.State() != breaker.Closed; waited += 50 * time.Millisecond {
				require.LessOrEqual(w, waited, 1100*time.Millisecond, "an open circuit is in use, whether it is called or not")
				w.add(50 * time.Millisecond)
				w.rest()
			}
		}
		require.Equal(w, breaker.Closed, idle.c.State())
	})
}
