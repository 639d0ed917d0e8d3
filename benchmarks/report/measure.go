package main

import (
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A plan is how much is measured.
type plan struct {
	rounds int           // how often every row is measured
	sample time.Duration // how long each time, about
}

// A contender is one row with one number of goroutines, on a breaker of its own: what contention has changed in a
// breaker does not show in another count's numbers.
type contender struct {
	row     row
	threads int
	op      op
	calls   int       // per sample
	samples []float64 // ns per unit
	asked   int64     // operations of Stores in all samples
}

// A metric is what a number in the results says of a row: the ns per unit with so many goroutines when positive, or one
// of the constants.
type metric int

const (
	one    metric = 1
	two    metric = 2
	allocs metric = -1 // allocations per unit
	bytes  metric = -2 // bytes per idle breaker, or per key
	asked  metric = -3 // operations of the Store in a million units, with one goroutine
)

// results are the numbers of one run.
type results map[key]map[metric]float64

func (r results) set(k key, m metric, v float64) {
	if r[k] == nil {
		r[k] = map[metric]float64{}
	}
	r[k][m] = v
}

// get is the number, or NaN when it was not measured; NaN compares as false with everything.
func (r results) get(k key, m metric) float64 {
	if v, ok := r[k][m]; ok {
		return v
	}
	return math.NaN()
}

// measure runs all rows but those apart, and then these.
func measure(rows []row, p plan, progress io.Writer) (results, error) {
	runtime.GOMAXPROCS(2)
	r := results{}
	for _, apart := range []bool{false, true} {
		var turn []row
		for _, row := range rows {
			if row.work.apart == apart {
				turn = append(turn, row)
			}
		}
		if err := measureInTurn(turn, p, r, progress); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// measureInTurn runs the rows in turn, round after round, so that whatever disturbs the machine disturbs all of them,
// and keeps each one's median.
func measureInTurn(rows []row, p plan, r results, progress io.Writer) error {
	if len(rows) == 0 {
		return nil
	}
	contenders, err := prepare(rows, p, r)
	if err != nil {
		return err
	}
	start := time.Now()
	for round := range p.rounds {
		for i := range contenders {
			if err := contenders[i].measure(); err != nil {
				return err
			}
		}
		spent := time.Since(start)
		left := spent / time.Duration(round+1) * time.Duration(p.rounds-round-1)
		fmt.Fprintf(progress, "round %d of %d of %d rows, about %v left\n", round+1, p.rounds, len(rows), left.Round(time.Second))
	}
	subtract(contenders, r)
	for _, c := range contenders {
		r.set(c.row.key(), metric(c.threads), median(c.samples))
		r.setQuartiles(c)
		if c.threads == 1 {
			r.set(c.row.key(), asked, 1e6*float64(c.asked)/(float64(len(c.samples))*c.units()))
		}
	}
	return nil
}

// subtract takes from each row what it stands on, round by round: what slows the machine for a while slows both.
func subtract(contenders []contender, r results) {
	for _, c := range contenders {
		base := slices.IndexFunc(contenders, func(b contender) bool {
			return b.row.key() == (key{c.row.work.name, c.row.over}) && b.threads == c.threads
		})
		if base < 0 {
			continue
		}
		for i := range c.samples {
			c.samples[i] -= contenders[base].samples[i]
		}
		if c.threads == 1 {
			r.set(c.row.key(), allocs, r.get(c.row.key(), allocs)-r.get(contenders[base].row.key(), allocs))
		}
	}
}

// prepare makes the contenders, finds out how many calls fill a sample, and counts allocations.
func prepare(rows []row, p plan, r results) ([]contender, error) {
	var contenders []contender
	for _, row := range rows {
		for _, threads := range row.goroutines() {
			c := contender{row: row, threads: threads, op: row.setup()}
			if err := c.calibrate(p.sample); err != nil {
				return nil, err
			}
			if threads == 1 {
				r.set(row.key(), allocs, c.allocations())
			}
			contenders = append(contenders, c)
		}
	}
	return contenders, nil
}

// calibrate sets calls so that they take about d.
func (c *contender) calibrate(d time.Duration) error {
	c.calls = 10 * c.row.work.calls * c.threads
	for {
		spent, err := c.run()
		if err != nil {
			return err
		}
		if spent >= d/8 {
			c.calls = c.whole(float64(c.calls) * float64(d) / float64(spent))
			return nil
		}
		c.calls *= 2
	}
}

// whole rounds a number of calls up to whole units and whole runs between two failures.
func (c *contender) whole(calls float64) int {
	step := c.row.work.calls
	if c.row.work.every != never {
		step = c.row.work.every
	}
	return (int(calls)/step + 1) * step
}

// measure takes one sample.
func (c *contender) measure() error {
	runtime.GC()
	before := operations.Load()
	spent, err := c.run()
	if err != nil {
		return err
	}
	c.asked += operations.Load() - before
	c.samples = append(c.samples, float64(spent.Nanoseconds())/c.units())
	return nil
}

// units are those of one sample.
func (c *contender) units() float64 { return float64(c.calls) / float64(c.row.work.calls) }

// run makes the calls with all goroutines and checks that as many gave an error as the work says.
func (c *contender) run() (time.Duration, error) {
	spent, errs := share(c.op, c.calls, c.threads, c.whole(float64(c.calls)/float64(50*c.threads)))
	got, want := float64(errs)/float64(c.calls), c.row.work.errs
	if math.Abs(got-want) > 0.02 {
		return 0, fmt.Errorf("%s: %s: %.1f %% of the calls gave an error instead of %.0f %%",
			c.row.work.name, c.row.name, 100*got, 100*want)
	}
	return spent, nil
}

// share runs n calls of op on the given number of goroutines. Each takes its calls in portions, so that none waits long
// for another at the end.
func share(op op, n, threads, portion int) (time.Duration, int) {
	var ready, done sync.WaitGroup
	var taken, errs atomic.Int64
	begin := make(chan struct{})
	ready.Add(threads)
	for range threads {
		done.Go(func() {
			ready.Done()
			<-begin
			for left := n; left > 0; {
				left = n - int(taken.Add(int64(portion))) + portion
				errs.Add(int64(op(max(0, min(left, portion)))))
			}
		})
	}
	ready.Wait()
	start := time.Now()
	close(begin)
	done.Wait()
	return time.Since(start), int(errs.Load())
}

// allocations is the number of allocations per unit, in hundredths: what one call in ten allocates must not be rounded
// away. The least of several counts is the one without other goroutines' allocations in it.
func (c *contender) allocations() float64 {
	const units = 1000
	least := math.Inf(1)
	for range 5 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		c.op(units * c.row.work.calls)
		runtime.ReadMemStats(&after)
		least = min(least, float64(after.Mallocs-before.Mallocs)/units)
	}
	return math.Round(100*least) / 100
}

func median(samples []float64) float64 {
	sorted := slices.Sorted(slices.Values(samples))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}
