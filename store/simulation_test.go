package store_test

import (
	"flag"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker/internal/testenv"
	"github.com/breakerkit/breaker/store/internal/simulation"
)

var (
	simSeeds = flag.Int("sim.seeds", 0, "how many fleets TestSimulation runs, from seed 0 on; 0: as many as a test may take")
	simSeed  = flag.Int64("sim.seed", -1, "the one fleet that TestSimulation runs, with the last steps of its trace")
	simNode  = flag.Int("sim.node", -1, "the one node that the trace is of; -1: all")
)

// Every seed is a fleet of circuits with faults of its own. One that fails is run again by its seed:
//
//	go test ./store/ -run 'TestSimulation$' -sim.seed=N
func TestSimulation(t *testing.T) {
	if *simSeed >= 0 {
		r := simulation.Run(uint64(*simSeed), simulation.Options{Traced: true, Node: *simNode + 1})
		t.Logf("hash %x after %d steps: %+v\n%s", r.Hash, r.Steps, r.Stats, r.Trace)
		require.NoError(t, r.Err)
		return
	}
	var (
		next  atomic.Int64
		mu    sync.Mutex
		stats simulation.Stats
		wg    sync.WaitGroup
	)
	seeds := int64(*simSeeds)
	if seeds == 0 {
		seeds = int64(howManySeeds())
	}
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for seed := next.Add(1) - 1; seed < seeds && !t.Failed(); seed = next.Add(1) - 1 {
				r := simulation.Run(uint64(seed), simulation.Options{})
				if r.Err != nil {
					t.Errorf("seed %d: %v\ngo test ./store/ -run 'TestSimulation$' -sim.seed=%d\n%s", seed, r.Err, seed, r.Trace)
				}
				mu.Lock()
				stats.Add(r.Stats)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	t.Logf("%d fleets: %+v", seeds, stats)
	if v := reflect.ValueOf(stats); seeds >= 200 {
		for i := range v.NumField() {
			assert.NotZero(t, v.Field(i).Int(), v.Type().Field(i).Name)
		}
	}
}

func howManySeeds() int {
	if testenv.Race {
		return 50
	}
	return testenv.Size(200, 300, 3000)
}

// A run depends on nothing but its seed: not on the names that circuits give themselves, nor on the order of a map.
func TestSimulationRepeats(t *testing.T) {
	seeds := testenv.Size(5, 10, 30)
	for seed := range uint64(seeds) {
		first, second := simulation.Run(seed, simulation.Options{}), simulation.Run(seed, simulation.Options{})
		require.Equal(t, first.Hash, second.Hash, "seed %d", seed)
		require.Equal(t, first.Steps, second.Steps, "seed %d", seed)
	}
}
