package storeredis_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/testenv"
	"github.com/breakerkit/breaker/store_redis/internal/redistest"
)

// shape is what a circuit with everything turned on has its ledger keep.
var shape = breaker.StoreShape{Window: time.Minute, Failures: 5, Reporters: 3, Config: "0123456789abcdef"}

// outcomes is a batch of successes followed by failures, of now.
func outcomes(successes, failures uint64) breaker.StoreBatch {
	b := breaker.StoreBatch{
		Slices: []breaker.StoreSlice{{Successes: successes, Failures: failures, Slow: successes / 2}},
		Tail:   failures, Longest: failures, FailureAges: make([]time.Duration, failures),
	}
	if successes == 0 {
		b.Head = failures
	}
	if failures == 0 {
		b.Trailing = successes
	}
	return b
}

// report reports one batch and returns the ledger.
func report(t *testing.T, s breaker.Store, r breaker.StoreReport) breaker.Ledger {
	t.Helper()
	reply := s.Report(context.Background(), []breaker.StoreReport{r})[0]
	if reply.Err != nil {
		t.Fatal(reply.Err)
	}
	return reply.Ledger
}

func must[T any](t *testing.T, v T, err error) T {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// scriptCost is the mean time that the server has spent on a script since its statistics were last reset.
func scriptCost(srv *redistest.Server) float64 {
	for field := range strings.SplitSeq(srv.Info("commandstats", "cmdstat_evalsha"), ",") {
		if v, ok := strings.CutPrefix(field, "usec_per_call="); ok {
			us, _ := strconv.ParseFloat(v, 64)
			return us
		}
	}
	return 0
}

// A script holds up everybody else on the server. What it costs must depend neither on how much has been counted nor on
// how long the window is.
func TestCostOfScripts(t *testing.T) {
	srv := server(t)
	s := open(t, srv.Client(t))
	ctx := context.Background()
	n := testenv.Size(500, 500, 2000)
	measure := func(what string, do func(i int)) {
		t.Helper()
		do(0) // the script is loaded
		srv.Do("CONFIG", "RESETSTAT")
		for i := range n {
			do(i)
		}
		us := scriptCost(srv)
		t.Logf("%-40s %5.1f µs", what, us)
		if us > 2000 { // two orders of magnitude above what is expected: machines may be busy
			t.Errorf("%s takes %.0f µs", what, us)
		}
	}
	client := srv.Client(t)
	nothing := client.ScriptLoad(ctx, "return 1").Val()
	measure("for comparison: return 1", func(int) { client.EvalSha(ctx, nothing, []string{"k"}) })
	little := client.ScriptLoad(ctx, "return redis.call('HINCRBY', KEYS[1], 'a', 1) + redis.call('PEXPIRE', KEYS[1], 60000)").Val()
	measure("for comparison: HINCRBY and PEXPIRE", func(int) { client.EvalSha(ctx, little, []string{"k"}) })
	many := breaker.StoreShape{Window: time.Hour, Failures: 1000, Config: "many"}
	plain := breaker.StoreShape{Config: "plain"}
	measure("read, empty", func(int) { s.Read(ctx, []string{"none"}) })
	measure("report, no window", func(int) {
		report(t, s, breaker.StoreReport{Name: "plain", Node: "n", Shape: plain, Batch: outcomes(5, 1)})
	})
	measure("report, window, 5 times, 3 reporters", func(i int) {
		report(t, s, breaker.StoreReport{Name: "full", Node: strconv.Itoa(i % 3), Shape: shape, Batch: outcomes(5, 1)})
	})
	measure("report, window of an hour, 1000 times", func(int) {
		report(t, s, breaker.StoreReport{Name: "many", Node: "n", Shape: many, Batch: outcomes(5, 1)})
	})
	measure("read", func(int) { s.Read(ctx, []string{"full"}) })
	measure("move", func(int) {
		if _, err := s.Move(ctx, breaker.StoreMove{Name: "moved", Shape: shape, From: uint64(time.Now().Add(time.Hour).UnixMilli()), To: breaker.Open, For: time.Hour}); err != nil {
			t.Fatal(err)
		}
	})
	opened := ledger(s.Move(ctx, breaker.StoreMove{Name: "open", Shape: shape, To: breaker.Open, For: time.Hour}))
	measure("acquire, denied while open", func(int) {
		ledger(s.Acquire(ctx, breaker.StoreAcquire{Name: "open", Shape: shape, Epoch: opened.Epoch, Tokens: []string{"t"}, Lease: time.Minute, Limit: 1}))
	})
	measure("acquire and settle, of two", func(i int) {
		token := strconv.Itoa(i)
		l := ledger(s.Acquire(ctx, breaker.StoreAcquire{Name: "half", Shape: shape, Tokens: []string{token}, Lease: time.Minute, Limit: 1}))
		l = ledger(s.Settle(ctx, breaker.StoreVerdict{Name: "half", Shape: shape, Epoch: l.Epoch, Token: token, Threshold: 1 << 30}))
		if !l.Applied {
			t.Fatal("not applied")
		}
	})
}

func ledger(l breaker.Ledger, err error) breaker.Ledger {
	if err != nil {
		panic(err)
	}
	return l
}

// What a circuit takes of the server's memory depends neither on traffic nor on the window's length.
func TestSizeOfCircuits(t *testing.T) {
	srv := server(t)
	s := open(t, srv.Client(t))
	sizes := make(map[string]int64)
	for _, window := range []time.Duration{0, 200 * time.Millisecond, time.Minute, 24 * time.Hour} {
		for _, traffic := range []uint64{1, 1_000_000} {
			sh := shape
			sh.Window = window
			name := fmt.Sprintf("w%v-%d", window, traffic)
			for i := range 30 { // through more than a whole ring of the shortest window
				b := outcomes(traffic, traffic)
				b.FailureAges = make([]time.Duration, 5)
				for j := range uint64(20) {
					b.Slices = append(b.Slices, breaker.StoreSlice{Age: window / 20 * time.Duration(j), Successes: traffic, Failures: traffic, Ignored: traffic})
				}
				report(t, s, breaker.StoreReport{Name: name, Node: fmt.Sprintf("node-%d", i), Shape: sh, Batch: b})
			}
			key := "cb:{" + name + "}"
			sizes[name], _ = srv.Do("MEMORY", "USAGE", key).(int64)
			t.Logf("window %-6v traffic %-8d %4d bytes", window, traffic, sizes[name])
			if got := srv.Do("OBJECT", "ENCODING", key); got != "listpack" {
				t.Errorf("%s is a %v", name, got)
			}
			if sizes[name] > 2048 {
				t.Errorf("%s takes %d bytes", name, sizes[name])
			}
		}
	}
	const tokens = 100
	for i := range tokens {
		ledger(s.Acquire(context.Background(), breaker.StoreAcquire{Name: "probes", Shape: shape, Tokens: []string{fmt.Sprintf("%032d", i)}, Lease: time.Hour, Limit: tokens}))
	}
	t.Logf("half-open with %d slots: %d bytes, %v", tokens, srv.Do("MEMORY", "USAGE", "cb:{probes}"), srv.Do("OBJECT", "ENCODING", "cb:{probes}"))
	ledger(s.Move(context.Background(), breaker.StoreMove{Name: "fresh", Shape: shape, To: breaker.Open, For: time.Hour}))
	t.Logf("open: %d bytes", srv.Do("MEMORY", "USAGE", "cb:{fresh}"))
}

func BenchmarkReport(b *testing.B) {
	if !redistest.Available() {
		b.Skip("needs a redis-server")
	}
	srv := redistest.Start(b)
	s, err := newStore(srv.Client(b))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	for _, size := range []int{1, 10, 100, 500} {
		b.Run(fmt.Sprintf("pipeline=%d", size), func(b *testing.B) {
			reports := make([]breaker.StoreReport, size)
			for i := range reports {
				reports[i] = breaker.StoreReport{Name: fmt.Sprint("c", i), Node: "n", Shape: shape, Batch: outcomes(5, 1)}
			}
			done := 0
			for b.Loop() {
				for _, r := range s.Report(context.Background(), reports) {
					if r.Err != nil {
						b.Fatal(r.Err)
					}
				}
				done += size
			}
			b.ReportMetric(float64(done)/b.Elapsed().Seconds(), "reports/s")
		})
	}
}
