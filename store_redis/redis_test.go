package storeredis_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/breakerkit/breaker"
	storeredis "github.com/breakerkit/breaker/store_redis"
	"github.com/breakerkit/breaker/store_redis/internal/redistest"
	"github.com/redis/go-redis/v9"
)

var ctx = context.Background()

// one asks for one ledger.
func one(t *testing.T, s breaker.Store, name string) breaker.Ledger {
	t.Helper()
	r := s.Read(ctx, []string{name})[0]
	return must(t, r.Ledger, r.Err)
}

func move(t *testing.T, s breaker.Store, name string, from uint64, to breaker.State, d time.Duration) breaker.Ledger {
	t.Helper()
	l, err := s.Move(ctx, breaker.StoreMove{Name: name, Shape: shape, From: from, To: to, For: d, Openings: 1})
	return must(t, l, err)
}

func acquire(t *testing.T, s breaker.Store, name string, epoch uint64, tokens ...string) breaker.Ledger {
	t.Helper()
	l, err := s.Acquire(ctx, breaker.StoreAcquire{Name: name, Shape: shape, Epoch: epoch, Tokens: tokens, Lease: time.Minute, Limit: 3})
	return must(t, l, err)
}

func settle(t *testing.T, s breaker.Store, name string, epoch uint64, token string, o breaker.Outcome) breaker.Ledger {
	t.Helper()
	l, err := s.Settle(ctx, breaker.StoreVerdict{Name: name, Shape: shape, Epoch: epoch, Token: token, Outcome: o, Threshold: 1, For: 15 * time.Second})
	return must(t, l, err)
}

// wholeCycle does every operation once, and checks that each is carried out.
func wholeCycle(t *testing.T, s breaker.Store, name string) {
	t.Helper()
	l := report(t, s, breaker.StoreReport{Name: name, Node: "n", Shape: shape, Batch: outcomes(0, 5)})
	failed := l.Counts.ConsecutiveFailures
	l = move(t, s, name, l.Epoch, breaker.Open, 0)
	half := acquire(t, s, name, l.Epoch, "t")
	closed := settle(t, s, name, half.Epoch, "t", breaker.Success)
	if failed != 5 || !l.Applied || half.Granted != 1 || !closed.Applied || one(t, s, name).State != breaker.Closed {
		t.Fatalf("%s: %d failures, then %+v, %+v, %+v", name, failed, l, half, closed)
	}
}

func TestUnknownScripts(t *testing.T) {
	srv := server(t)
	s := open(t, srv.Client(t))
	for i, lose := range []func(){
		func() {},
		func() { srv.Do("SCRIPT", "FLUSH") },
		func() { srv.Do("FLUSHALL") },
		srv.Restart,
	} {
		for _, op := range []func(name string){
			func(name string) { wholeCycle(t, s, name) },
			func(name string) { move(t, s, name, 1<<40, breaker.Open, time.Hour) },
			func(name string) { acquire(t, s, name, 1<<40, "t") },
			func(name string) { settle(t, s, name, 1, "t", breaker.Success) },
			func(name string) { one(t, s, name) },
			func(name string) { // a pipeline in which no script is known, with two reports on one circuit
				reports := make([]breaker.StoreReport, 20)
				for j := range reports {
					reports[j] = breaker.StoreReport{Name: fmt.Sprint(name, "-", j/2), Node: "n", Shape: shape, Batch: outcomes(0, 1)}
				}
				for j, r := range s.Report(ctx, reports) {
					if r.Err != nil || r.Ledger.Counts.Failures != uint64(j%2+1) {
						t.Fatalf("report %d: %+v", j, r)
					}
				}
			},
		} {
			lose()
			op(fmt.Sprint("c", i))
			srv.Do("FLUSHALL")
		}
	}
}

func TestUnknownScriptsOnEveryNode(t *testing.T) {
	guard(t)
	if !redistest.Available() {
		t.Skip("needs a redis-server")
	}
	c := redistest.StartCluster(t, 3)
	s := open(t, c.Client(t), storeredis.MirrorKeys())
	w := watch(t, s)
	for round := range 3 {
		reports := make([]breaker.StoreReport, 60)
		for i := range reports {
			reports[i] = breaker.StoreReport{Name: fmt.Sprintf("odd {%d} ü", i), Node: "n", Shape: shape, Batch: outcomes(0, 1)}
		}
		for i, r := range s.Report(ctx, reports) {
			if r.Err != nil || r.Ledger.Counts.Failures != uint64(round+1) {
				t.Fatalf("round %d, report %d: %+v", round, i, r)
			}
		}
		c.Servers[round].Do("SCRIPT", "FLUSH")
	}
	for _, srv := range c.Servers {
		if n, _ := srv.Do("DBSIZE").(int64); n < 10 {
			t.Errorf("only %d keys on %s: the circuits are not spread", n, srv.Addr)
		}
	}
	for i := range 20 { // whichever node it happens on
		name := fmt.Sprint("c", i)
		wholeCycle(t, s, name)
		w.await(t, "the cycle of "+name, func(name string) func(told) bool {
			return func(c told) bool { return c.name == name && c.ledger.State == breaker.Closed && c.ledger.Epoch > 0 }
		}(name))
	}
}

func TestFailover(t *testing.T) {
	guard(t)
	if !redistest.Available() {
		t.Skip("needs a redis-server")
	}
	r := redistest.StartReplicated(t)
	s := open(t, r.Client(t), storeredis.Timeout(5*time.Second))
	w := watch(t, s)
	wholeCycle(t, s, "c")
	l := move(t, s, "c", one(t, s, "c").Epoch, breaker.Open, time.Hour)
	r.InStep()
	resyncs := w.count()
	r.Failover()

	eventually(t, "the Store is back", func() bool { return s.Read(ctx, []string{"c"})[0].Err == nil })
	if got := one(t, s, "c"); got.Epoch != l.Epoch || got.State != breaker.Open {
		t.Errorf("after the failover %+v, want %+v", got, l)
	}
	eventually(t, "a report is taken", func() bool {
		return s.Report(ctx, []breaker.StoreReport{{Name: "other", Node: "n", Shape: shape, Batch: outcomes(0, 1)}})[0].Err == nil
	})
	eventually(t, "Resync", func() bool { return w.count() > resyncs })
	if next := move(t, s, "c", l.Epoch, breaker.Closed, 0); next.Epoch <= l.Epoch {
		t.Errorf("epoch %d after %d", next.Epoch, l.Epoch)
	}
	w.await(t, "a change on the promoted server", func(c told) bool { return c.name == "c" && c.ledger.Epoch > l.Epoch })
}

// What is in place of a ledger and cannot be read is removed, and told once. It never reads as Closed.
func TestUnreadableLedgers(t *testing.T) {
	c := client(t)
	s := open(t, c, storeredis.MirrorKeys())
	fields := map[string]string{
		"epoch": "x", "series": "1:", "shape": "a:b:c:d", "run": "1:2", "sums": "1:2:3:x", "lately": "1:2:3:-1:5",
	}
	tooLarge := map[string]string{
		"epoch": "9007199254740993:open:1:1", "series": "99999999999999999999:0", "run": strings.Repeat("9", 400) + ":1:1",
		"epoch ": "",
	}
	states := map[string]string{"epoch": "5:ajar:1:1"}
	var spoils []func(key string)
	for _, set := range []map[string]string{fields, tooLarge, states} {
		for field, value := range set {
			if value != "" {
				spoils = append(spoils, func(key string) { c.HSet(ctx, key, field, value) })
			}
		}
	}
	for _, absurd := range [][2]string{
		{"epoch", "0:closed:1:0"},
		{"epoch", "9000000000000000:closed:1:0"},
		{"epoch", fmt.Sprint(time.Now().Add(25*time.Hour).UnixMilli(), ":closed:1:0")},
		{"epoch", "5:open:1:9007199254740992"},
		{"series", "4294967296:0"}, {"series", "0:4294967296"}, {"series", "1:0:9007199254740994"},
		{"shape", "315360000000001:5:3:x"}, {"shape", "0:1000001:3:x"},
		{"shape", "0:5:1001:x"}, {"shape", "0:5:9000:x"}, {"shape", "0:5:9007199254740992:x"},
		{"lately", "0:0:10:5:0"}, {"lately", "1:0:0:0:7"}, {"lately", "1:0:3:4:2"}, {"lately", "1:0:0:6:0"},
		{"lately", "1:0:9007199254740992:9007199254740992:0"},
	} {
		spoils = append(spoils, func(key string) { c.HSet(ctx, key, absurd[0], absurd[1]) })
	}
	spoils = append(spoils,
		func(key string) { c.Del(ctx, key); c.Set(ctx, key, "text", 0) },
		func(key string) { c.Del(ctx, key); c.LPush(ctx, key, "a", "b") },
		func(key string) { c.HSet(ctx, key, "epoch", "\x00\xff", "run", "\n") },
	)
	for i, spoil := range spoils {
		name := fmt.Sprint("c", i)
		key := "cb:{" + name + "}"
		for op, do := range map[string]func() error{
			"Read":   func() error { return s.Read(ctx, []string{name})[0].Err },
			"Report": func() error { return reportErr(s, name) },
			"Move": func() error {
				_, err := s.Move(ctx, breaker.StoreMove{Name: name, Shape: shape, To: breaker.Closed})
				return err
			},
			"Acquire": func() error {
				_, err := s.Acquire(ctx, breaker.StoreAcquire{Name: name, Shape: shape, Tokens: []string{"t"}, Lease: 1e9, Limit: 1})
				return err
			},
			"Settle": func() error {
				_, err := s.Settle(ctx, breaker.StoreVerdict{Name: name, Shape: shape, Epoch: 1, Token: "t"})
				return err
			},
		} {
			c.Del(ctx, key)
			before := report(t, s, breaker.StoreReport{Name: name, Node: "n", Shape: shape, Batch: outcomes(1, 2)})
			spoil(key)
			if err := do(); !errors.Is(err, storeredis.ErrCorrupt) {
				t.Errorf("spoilt %d, %s: %v, want ErrCorrupt", i, op, err)
			}
			if err := do(); err != nil {
				t.Errorf("spoilt %d, %s again: %v", i, op, err)
			}
			c.Del(ctx, key)
			after := acquire(t, s, name, before.Epoch, "t") // the circuits bring it back
			if after.State != breaker.HalfOpen || after.Epoch <= before.Epoch {
				t.Errorf("spoilt %d, %s: brought back as %+v", i, op, after)
			}
		}
	}
}

func reportErr(s breaker.Store, name string) error {
	return s.Report(ctx, []breaker.StoreReport{{Name: name, Node: "n", Shape: shape, Batch: outcomes(1, 1)}})[0].Err
}

// Garbage in what only some operations read is found by those.
func TestUnreadableParts(t *testing.T) {
	c := client(t)
	s := open(t, c)
	for _, field := range []string{"bucket", "f0", "r1"} {
		c.Del(ctx, "cb:{c}")
		report(t, s, breaker.StoreReport{Name: "c", Node: "n", Shape: shape, Batch: outcomes(1, 2)})
		fields := []string{field}
		if field == "bucket" {
			fields = nil
			for i := range 20 {
				fields = append(fields, fmt.Sprint("b", i))
			}
		}
		for _, f := range fields {
			c.HSet(ctx, "cb:{c}", f, "garbage")
		}
		if err := reportErr(s, "c"); !errors.Is(err, storeredis.ErrCorrupt) {
			t.Errorf("%s: %v", field, err)
		}
		if err := reportErr(s, "c"); err != nil {
			t.Errorf("%s again: %v", field, err)
		}
	}
	for _, lease := range []string{"soon", "9007199254740992", "1:9007199254740994"} {
		move(t, s, "h", 0, breaker.HalfOpen, 0)
		acquire(t, s, "h", 0, "t")
		c.HSet(ctx, "cb:{h}", "slot:t", lease)
		if r := s.Read(ctx, []string{"h"})[0]; !errors.Is(r.Err, storeredis.ErrCorrupt) {
			t.Errorf("slot until %s: %+v", lease, r)
		}
	}
}

// What is as large as can be asked for is not garbage.
func TestLargestIsReadable(t *testing.T) {
	s := open(t, client(t))
	largest := breaker.StoreShape{Window: math.MaxInt64, Failures: math.MaxInt, Reporters: math.MaxInt, Config: "largest"}
	report(t, s, breaker.StoreReport{Name: "c", Node: "n", Shape: largest, Batch: outcomes(0, 3)})
	if l := report(t, s, breaker.StoreReport{Name: "c", Node: "n", Shape: largest, Batch: outcomes(0, 3)}); l.Recent != 6 || l.Reporters != 1 {
		t.Errorf("counted %+v", l)
	}
	l, err := s.Move(ctx, breaker.StoreMove{Name: "c", Shape: largest, From: one(t, s, "c").Epoch, To: breaker.Open, For: math.MaxInt64, Openings: math.MaxUint32})
	if got := one(t, s, "c"); err != nil || got.State != breaker.Open || got.Openings != math.MaxUint32 {
		t.Errorf("opened %+v, %v, read %+v", l, err, got)
	}
	half := move(t, s, "c", l.Epoch, breaker.HalfOpen, 0)
	_, err = s.Acquire(ctx, breaker.StoreAcquire{Name: "c", Shape: largest, Epoch: half.Epoch, Tokens: []string{"t"}, Lease: math.MaxInt64, Limit: math.MaxInt})
	if got := one(t, s, "c"); err != nil || got.Slots != 1 {
		t.Errorf("acquired %v, read %+v", err, got)
	}
}

// A server's clock that is set back by more than a day leaves ledgers behind that no circuit follows. They make way.
func TestClockSetBackByDays(t *testing.T) {
	s, _, pass := onOwnTime(t)
	before := report(t, s, breaker.StoreReport{Name: "c", Node: "n", Shape: shape, Batch: outcomes(0, 1)})
	pass(-23 * time.Hour)
	if l := one(t, s, "c"); l.Epoch != before.Epoch {
		t.Errorf("set back by less than a day: %+v, before it %+v", l, before)
	}
	pass(-2 * time.Hour)
	if err := s.Read(ctx, []string{"c"})[0].Err; !errors.Is(err, storeredis.ErrCorrupt) {
		t.Errorf("set back by more: %v", err)
	}
	known := breaker.StoreReport{Name: "c", Node: "n", Epoch: before.Epoch, Shape: shape, Batch: outcomes(0, 1)}
	if report(t, s, known).Applied || move(t, s, "c", before.Epoch, breaker.Open, time.Minute).Applied || acquire(t, s, "c", before.Epoch, "t").Granted > 0 {
		t.Error("an epoch that is out of reach has been begun")
	}
	known.Epoch = 0
	after := report(t, s, known)
	if !after.Applied || after.Epoch > after.Clock || one(t, s, "c").Epoch != after.Epoch {
		t.Errorf("after it: %+v", after)
	}
}

// An older version leaves alone what a newer one has added, and a newer one does without what an older one did not write.
func TestOtherVersions(t *testing.T) {
	c := client(t)
	s := open(t, c)
	l := report(t, s, breaker.StoreReport{Name: "c", Node: "n", Shape: shape, Batch: outcomes(0, 2)})
	c.HSet(ctx, "cb:{c}", "newer", "{\"a\":1}", "slots", "?", "run", "1:2:0:something:new", "series", "3:0;x")
	next := report(t, s, breaker.StoreReport{Name: "c", Node: "n", Epoch: l.Epoch, Shape: shape, Batch: outcomes(0, 1)})
	if next.Counts.ConsecutiveFailures != 3 || next.Openings != 3 {
		t.Errorf("with what is newer: %+v", next)
	}
	if v := c.HGet(ctx, "cb:{c}", "newer").Val(); v != "{\"a\":1}" {
		t.Errorf("the newer field is %q", v)
	}
	for _, field := range []string{"shape", "series", "sums", "lately", "run"} {
		c.HDel(ctx, "cb:{c}", field)
		if got := one(t, s, "c"); got.Epoch != l.Epoch || got.State != breaker.Closed || got.Run == 0 {
			t.Errorf("without %s: %+v", field, got)
		}
	}
}

// A client must not send a command twice, whatever its settings: what is counted twice trips circuits. Here the answers get
// lost, so that the client cannot know that the reports were taken.
func TestNothingIsSentTwice(t *testing.T) {
	guard(t)
	c := client(t)
	line := newLossyLine(t, c.Options().Addr)
	lossy := redis.NewClient(&redis.Options{Addr: line.addr, MaxRetries: 3, MinRetryBackoff: time.Millisecond})
	defer lossy.Close()
	s := open(t, lossy, storeredis.UncheckedClient())
	r := breaker.StoreReport{Name: "c", Node: "n", Shape: shape, Batch: outcomes(0, 1)}
	report(t, s, r)
	line.lose.Store(true)
	for range 3 {
		if reply := s.Report(ctx, []breaker.StoreReport{r})[0]; reply.Err == nil {
			t.Errorf("the answer was not lost: %+v", reply.Ledger)
		}
	}
	line.lose.Store(false)
	if got := one(t, open(t, c), "c"); got.Counts.Failures != 4 {
		t.Errorf("%d failures counted, 4 were reported", got.Counts.Failures)
	}
}

// lossyLine hands everything on to a server, but loses the answers to scripts on circuits, and the connection with them.
type lossyLine struct {
	addr string
	lose atomic.Bool
}

func newLossyLine(t *testing.T, to string) *lossyLine {
	l := must1(net.Listen("tcp", "127.0.0.1:0"))
	line := &lossyLine{addr: l.Addr().String()}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			running.Go(func() { _, _ = io.Copy(out, in); out.Close() })
			running.Go(func() { line.answers(in, out) })
		}
	})
	t.Cleanup(func() { l.Close(); running.Wait() })
	return line
}

func (line *lossyLine) answers(in, out net.Conn) {
	defer in.Close()
	defer out.Close()
	buf := make([]byte, 4096)
	for {
		n, err := out.Read(buf)
		if err != nil || line.lose.Load() && bytes.HasPrefix(buf[:n], []byte("*23\r\n")) {
			return
		}
		if _, err := in.Write(buf[:n]); err != nil {
			return
		}
	}
}

// Names stay in their slot, in their namespace and within bounds.
func TestKeys(t *testing.T) {
	c := client(t)
	s := open(t, c, storeredis.KeyPrefix("app:x"), storeredis.MirrorKeys())
	names := []string{
		"plain", "a:b", "{a}", "}{", "{}", "a}b{c", "%7B", "\n", "\x00", "ü", "\xff", strings.Repeat("x", 199), strings.Repeat("x", 200),
		strings.Repeat("x", 201), strings.Repeat("ü", 500), strings.Repeat("{", 1000), strings.Repeat("x", 1<<16), "*", "[a]", "a b",
	}
	for _, name := range names {
		c.FlushAll(ctx)
		l := report(t, s, breaker.StoreReport{Name: name, Node: "n", Shape: shape, Batch: outcomes(0, 1)})
		move(t, s, name, l.Epoch, breaker.Open, time.Hour)
		keys := c.Keys(ctx, "*").Val()
		if len(keys) != 3 {
			t.Fatalf("%.30q has the keys %q", name, keys)
		}
		tags := make(map[string]bool)
		for _, key := range keys {
			open, end := strings.IndexByte(key, '{'), strings.IndexByte(key, '}')
			if !strings.HasPrefix(key, "app:x:") || open < 0 || end != len(key)-1 || strings.Count(key, "{") != 1 || len(key) > 250 {
				t.Errorf("%.30q has the key %q", name, key)
				continue
			}
			tags[key[open:]] = true
		}
		if len(tags) != 1 {
			t.Errorf("%.30q is in more than one slot: %q", name, keys)
		}
	}
}

// Every key has a time to live, whatever has happened, and a refusal does not renew it.
func TestEveryKeyExpires(t *testing.T) {
	c := client(t)
	s := open(t, c, storeredis.MirrorKeys())
	shapes := []breaker.StoreShape{shape, {Config: "none"}, {Window: time.Second, Failures: 100, Config: "short"}, {Window: 1 << 62, Config: "long"}}
	epochs := make(map[string]uint64)
	for i := range 2000 {
		name := fmt.Sprint("c", rand.IntN(20))
		sh := shapes[rand.IntN(len(shapes))]
		var l breaker.Ledger
		switch rand.IntN(6) {
		case 0, 1, 2:
			l = report(t, s, breaker.StoreReport{Name: name, Node: fmt.Sprint(rand.IntN(9)), Epoch: epochs[name] * uint64(rand.IntN(2)), Shape: sh, Batch: outcomes(rand.Uint64N(3), rand.Uint64N(3))})
		case 3:
			l, _ = s.Move(ctx, breaker.StoreMove{Name: name, Shape: sh, From: epochs[name], To: breaker.State(rand.IntN(3)), For: rand.N(time.Hour)})
		case 4:
			l, _ = s.Acquire(ctx, breaker.StoreAcquire{Name: name, Shape: sh, Epoch: epochs[name], Tokens: []string{fmt.Sprint(i % 7)}, Lease: rand.N(time.Hour), Limit: 2})
		case 5:
			l, _ = s.Settle(ctx, breaker.StoreVerdict{Name: name, Shape: sh, Epoch: epochs[name], Token: fmt.Sprint(rand.IntN(7)), Outcome: breaker.Outcome(rand.IntN(3)), Threshold: 2, For: rand.N(time.Hour)})
		}
		epochs[name] = max(epochs[name], l.Epoch)
	}
	keys := c.Keys(ctx, "*").Val()
	if len(keys) < 20 {
		t.Fatalf("only %d keys", len(keys))
	}
	for _, key := range keys {
		if ttl := c.PTTL(ctx, key).Val(); ttl <= 0 {
			t.Errorf("%s lives for %v", key, ttl)
		}
	}
}

func TestTimeToLive(t *testing.T) {
	c := client(t)
	s := open(t, c)
	near := func(what, name string, want time.Duration) {
		t.Helper()
		if got := c.PTTL(ctx, "cb:{"+name+"}").Val(); got > want || got < want-10*time.Second {
			t.Errorf("%s lives for %v, want %v", what, got, want)
		}
	}
	report(t, s, breaker.StoreReport{Name: "window", Node: "n", Shape: breaker.StoreShape{Window: time.Minute}, Batch: outcomes(0, 1)})
	near("Closed with a window", "window", time.Hour+time.Minute)
	report(t, s, breaker.StoreReport{Name: "none", Node: "n", Batch: outcomes(0, 1)})
	near("Closed without one", "none", 24*time.Hour)
	l := move(t, s, "open", 0, breaker.Open, 5*time.Hour)
	near("Open", "open", 6*time.Hour)
	c.PExpire(ctx, "cb:{open}", 2*time.Hour)
	if acquire(t, s, "open", l.Epoch, "t").Granted != 0 {
		t.Error("granted while Open")
	}
	near("Open, after a refusal", "open", 2*time.Hour)
	move(t, s, "half", 0, breaker.HalfOpen, 0)
	if _, err := s.Acquire(ctx, breaker.StoreAcquire{Name: "half", Shape: shape, Tokens: []string{"t"}, Lease: 3 * time.Hour, Limit: 1}); err != nil {
		t.Fatal(err)
	}
	near("HalfOpen", "half", 4*time.Hour)
	c.PExpire(ctx, "cb:{half}", 2*time.Hour)
	if l := acquire(t, s, "half", 0, "other"); l.Granted != 1 {
		t.Errorf("no second slot: %+v", l)
	}
	near("HalfOpen, with another slot", "half", 4*time.Hour)
}

// The server's clock may be set back. No open period and no lease gets longer by it, and windows go on.
func TestClockSetBack(t *testing.T) {
	s, _, pass := onOwnTime(t)
	opened := move(t, s, "open", 0, breaker.Open, time.Minute)
	half := move(t, s, "half", 0, breaker.HalfOpen, 0)
	acquire(t, s, "half", half.Epoch, "a", "b", "c")
	window := report(t, s, breaker.StoreReport{Name: "window", Node: "n", Shape: shape, Batch: outcomes(0, 4)})
	report(t, s, breaker.StoreReport{Name: "shape", Node: "n", Shape: shape, Batch: outcomes(0, 1)})
	pass(-time.Hour)
	other := breaker.StoreReport{Name: "shape", Node: "n", Shape: breaker.StoreShape{Config: "other"}, Batch: outcomes(0, 1)}
	if !report(t, s, other).Foreign {
		t.Error("another configuration has taken over at once")
	}

	if l := one(t, s, "open"); l.Remaining > time.Minute || l.Age < 0 {
		t.Errorf("after the step: %+v", l)
	}
	acquire(t, s, "open", opened.Epoch, "t")
	if l := acquire(t, s, "half", half.Epoch, "d"); l.Granted != 0 || l.RetryAfter > time.Minute {
		t.Errorf("a lease after the step: %+v", l)
	}
	if l := report(t, s, breaker.StoreReport{Name: "window", Node: "n", Epoch: window.Epoch, Shape: shape, Batch: outcomes(0, 1)}); l.Counts.Failures != 1 || l.Recent != 1 {
		t.Errorf("the window after the step: %+v", l)
	}
	pass(time.Minute)
	if report(t, s, other).Foreign {
		t.Error("another configuration never takes over")
	}
	if l := acquire(t, s, "open", opened.Epoch, "t"); l.Granted != 1 {
		t.Errorf("the open period does not end: %+v", l)
	}
	if l := acquire(t, s, "half", half.Epoch, "d"); l.Granted != 1 {
		t.Errorf("the leases do not end: %+v", l)
	}
	if l := one(t, s, "window"); l.Counts.Failures != 0 || l.Recent != 0 {
		t.Errorf("the window does not forget: %+v", l)
	}
	if l := move(t, s, "open", opened.Epoch+1, breaker.Open, 0); !l.Applied || l.Epoch <= opened.Epoch+1 {
		t.Errorf("an epoch after the step: %+v", l)
	}
}

// The plain keys say what the circuit says, in the words that outside tools expect.
func TestMirrorKeys(t *testing.T) {
	c := client(t)
	s := open(t, c, storeredis.MirrorKeys(), storeredis.KeyPrefix("x"))
	state, fails := "x:state:{api.example.com:443}", "x:fails:{api.example.com:443}"
	const name = "api.example.com:443"
	want := func(when, wantState, wantFails string, atMost time.Duration) {
		t.Helper()
		if got := c.Get(ctx, state).Val(); got != wantState {
			t.Errorf("%s: state is %q, want %q", when, got, wantState)
		}
		if got := c.Get(ctx, fails).Val(); got != wantFails {
			t.Errorf("%s: failures are %q, want %q", when, got, wantFails)
		}
		if ttl := c.PTTL(ctx, state).Val(); wantState != "" && (ttl > 15*time.Second || ttl < 5*time.Second) {
			t.Errorf("%s: state lives for %v", when, ttl)
		}
		if ttl := c.PTTL(ctx, fails).Val(); wantFails != "" && (ttl > atMost || ttl <= atMost-20*time.Second) {
			t.Errorf("%s: failures live for %v, want at most %v", when, ttl, atMost)
		}
	}
	l := report(t, s, breaker.StoreReport{Name: name, Node: "n", Shape: shape, Batch: outcomes(0, 4)})
	want("4 failures", "", "4", time.Minute)
	report(t, s, breaker.StoreReport{Name: name, Node: "n", Epoch: l.Epoch, Shape: shape, Batch: outcomes(1, 0)})
	want("a success", "", "", 0)
	report(t, s, breaker.StoreReport{Name: name, Node: "n", Epoch: l.Epoch, Shape: shape, Batch: outcomes(1, 2)})
	want("a success and 2 failures", "", "2", time.Minute)
	report(t, s, breaker.StoreReport{Name: name, Node: "n", Epoch: l.Epoch, Shape: shape, Batch: outcomes(0, 3)})
	l = move(t, s, name, l.Epoch, breaker.Open, 15*time.Second)
	want("tripped", "OPEN", "5", time.Minute)
	l = move(t, s, name, l.Epoch, breaker.HalfOpen, 0)
	want("half-open", "", "5", time.Minute)
	acquire(t, s, name, l.Epoch, "a", "b")
	l = settle(t, s, name, l.Epoch, "a", breaker.Failure)
	want("a failed probe", "OPEN", "5", time.Minute)
	l = move(t, s, name, l.Epoch, breaker.Open, 0)
	want("open, and due", "", "5", time.Minute)
	l = acquire(t, s, name, l.Epoch, "c")
	settle(t, s, name, l.Epoch, "c", breaker.Success)
	want("recovered", "", "", 0)
	l = move(t, s, name, l.Epoch+10, breaker.Open, 15*time.Second)
	l = move(t, s, name, l.Epoch, breaker.Closed, 0)
	want("reset", "", "", 0)
	l = move(t, s, name, l.Epoch+10, breaker.Open, 15*time.Second)
	acquire(t, s, name, l.Epoch+10, "d")
	want("half-open by one who knows more", "", "", 0)
	c.Del(ctx, "x:{"+name+"}")
	report(t, s, breaker.StoreReport{Name: name, Node: "n", Batch: outcomes(0, 1)})
	want("without a window", "", "1", time.Minute)
	if n := len(c.Keys(ctx, "cb:*").Val()); n > 0 {
		t.Errorf("%d keys with another prefix", n)
	}
}

// An operation ends in time, even if the server says nothing, and with its context.
func TestServerStandsStill(t *testing.T) {
	srv := server(t)
	const limit = 150 * time.Millisecond
	const slack = 4 * time.Second // for a busy machine; the client alone would take 5s
	fresh := srv.Client(t)
	warm := srv.Client(t)
	wholeCycle(t, open(t, warm), "c") // which a busy machine may not manage within the limit
	used := open(t, warm, storeredis.Timeout(limit))
	eventually(t, "it is used", func() bool { return used.Read(ctx, []string{"c"})[0].Err == nil })
	unused := open(t, fresh, storeredis.Timeout(limit))
	srv.Pause()
	defer srv.Resume()
	for _, s := range []*storeredis.Store{used, unused} {
		for op, err := range timed(t, s, ctx, limit+slack) {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v, want DeadlineExceeded", op, err)
			}
		}
		for op, err := range timed(t, s, cancelled(10*time.Millisecond), limit+slack) {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v, want Canceled", op, err)
			}
		}
	}
	patient := open(t, srv.Client(t), storeredis.Timeout(time.Minute))
	for op, err := range timed(t, patient, cancelled(10*time.Millisecond), slack) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s of a patient Store: %v, want Canceled", op, err)
		}
	}
	srv.Resume()
	eventually(t, "it is back", func() bool { return used.Read(ctx, []string{"c"})[0].Err == nil })
	if used.Timeout() != limit {
		t.Errorf("Timeout is %v", used.Timeout())
	}
}

func cancelled(after time.Duration) context.Context {
	c, cancel := context.WithCancel(ctx)
	time.AfterFunc(after, cancel)
	return c
}

// timed does every operation, each of which must end within d.
func timed(t *testing.T, s breaker.Store, ctx context.Context, d time.Duration) map[string]error {
	t.Helper()
	errs := make(map[string]error)
	for op, do := range map[string]func() error{
		"Report": func() error {
			return s.Report(ctx, []breaker.StoreReport{{Name: "c", Node: "n", Batch: outcomes(0, 1)}})[0].Err
		},
		"Read": func() error { return s.Read(ctx, []string{"c"})[0].Err },
		"Move": func() error { _, err := s.Move(ctx, breaker.StoreMove{Name: "c", To: breaker.Open}); return err },
		"Acquire": func() error {
			_, err := s.Acquire(ctx, breaker.StoreAcquire{Name: "c", Tokens: []string{"t"}, Lease: 1e9, Limit: 1})
			return err
		},
		"Settle": func() error {
			_, err := s.Settle(ctx, breaker.StoreVerdict{Name: "c", Epoch: 1, Token: "t"})
			return err
		},
	} {
		begun := time.Now()
		errs[op] = do()
		if took := time.Since(begun); took > d {
			t.Errorf("%s took %v, at most %v", op, took, d)
		}
	}
	return errs
}

func TestServerIsDown(t *testing.T) {
	guard(t)
	l := must1(net.Listen("tcp", "127.0.0.1:0"))
	addr := l.Addr().String()
	l.Close()
	c := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, ContextTimeoutEnabled: true})
	defer c.Close()
	s, err := storeredis.New(c)
	if err != nil {
		t.Fatalf("New on a server that is down: %v", err)
	}
	stop := s.Watch(&watcher{})
	for op, err := range timed(t, s, ctx, 2*time.Second) {
		if err == nil {
			t.Errorf("%s: no error", op)
		}
	}
	stop()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func must1[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// With maxmemory reached writes fail, and say why; reading goes on.
func TestServerIsFull(t *testing.T) {
	srv := server(t)
	s := open(t, srv.Client(t))
	wholeCycle(t, s, "c")
	srv.Do("CONFIG", "SET", "maxmemory", "1")
	defer srv.Do("CONFIG", "SET", "maxmemory", "0")
	if err := reportErr(s, "c"); err == nil || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("a report on a full server: %v", err)
	}
	if l := one(t, s, "c"); l.State != breaker.Closed || l.Epoch == 0 {
		t.Errorf("a read on a full server: %+v", l)
	}
}

// Both versions of the protocol do.
func TestProtocols(t *testing.T) {
	srv := server(t)
	for _, version := range []int{2, 3} {
		s := open(t, srv.Client(t, func(o *redis.Options) { o.Protocol = version }))
		w := watch(t, s)
		name := fmt.Sprint("RESP", version)
		wholeCycle(t, s, name)
		w.await(t, "the cycle", func(c told) bool { return c.name == name && c.ledger.State == breaker.HalfOpen })
		cache := newCache[int](t, srv.Client(t, func(o *redis.Options) { o.Protocol = version }))
		set(t, cache, name, version, time.Now())
		get(t, cache, name, version, true)
	}
}

// Foreign is about the configuration, not about what it has the ledger keep.
func TestForeignIsTheConfiguration(t *testing.T) {
	s := open(t, client(t))
	report(t, s, breaker.StoreReport{Name: "c", Node: "n", Shape: shape, Batch: outcomes(0, 1)})
	other := shape
	other.Window = time.Hour
	if report(t, s, breaker.StoreReport{Name: "c", Node: "n", Shape: other, Batch: outcomes(0, 1)}).Foreign {
		t.Error("foreign with the same configuration")
	}
	other.Config = "other"
	if !report(t, s, breaker.StoreReport{Name: "c", Node: "n", Shape: other, Batch: outcomes(0, 1)}).Foreign {
		t.Error("not foreign with another configuration")
	}
}

// After a loss an epoch begins again, but no run of it is taken for one of before: a trip that was decided on those
// failures loses.
func TestRunsAfterALoss(t *testing.T) {
	c := client(t)
	s := open(t, c)
	before := report(t, s, breaker.StoreReport{Name: "c", Node: "n", Shape: shape, Batch: outcomes(0, 5)})
	c.FlushAll(ctx)
	after := report(t, s, breaker.StoreReport{Name: "c", Node: "n", Epoch: before.Epoch, Shape: shape, Batch: outcomes(0, 1)})
	if after.Epoch != before.Epoch || after.Run <= before.Run {
		t.Errorf("after the loss %+v, before it %+v", after, before)
	}
	l, err := s.Move(ctx, breaker.StoreMove{Name: "c", Shape: shape, From: before.Epoch, Run: before.Run, To: breaker.Open, For: time.Minute})
	if must(t, l, err).Applied {
		t.Error("a trip on failures that are lost was applied")
	}
}

// onOwnTime is a Store on a server whose clock stands still until it is told to go on.
func onOwnTime(t *testing.T) (s *storeredis.Store, m *miniredis.Miniredis, pass func(time.Duration)) {
	guard(t)
	m = miniredis.RunT(t)
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	m.SetTime(now)
	return open(t, miniClient(t, m)), m, func(d time.Duration) { now = now.Add(d); m.SetTime(now) }
}

// Failures that are reported late stay in order.
func TestLateFailures(t *testing.T) {
	s, _, pass := onOwnTime(t)
	late := func(age time.Duration) breaker.Ledger {
		b := outcomes(0, 1)
		b.Slices[0].Age, b.FailureAges[0] = age, age
		return report(t, s, breaker.StoreReport{Name: "c", Node: "n", Shape: breaker.StoreShape{Window: 10 * time.Second, Failures: 2}, Batch: b})
	}
	late(0)
	pass(time.Second)
	late(3 * time.Second) // taken to be of 1s ago
	late(0)
	for _, c := range []struct {
		after time.Duration
		want  uint64
	}{{8999 * time.Millisecond, 2}, {time.Millisecond, 1}, {999 * time.Millisecond, 1}, {time.Millisecond, 0}} {
		pass(c.after)
		if l := one(t, s, "c"); l.Recent != c.want || l.RecentRun != c.want {
			t.Errorf("%v later: %d failures, %d in the run, want %d", c.after, l.Recent, l.RecentRun, c.want)
		}
	}
}

// A caller failed when its last failure was, not when the slice that holds it began.
func TestLastFailureOfACaller(t *testing.T) {
	s, _, pass := onOwnTime(t)
	b := outcomes(0, 2)
	b.Slices[0].Age, b.FailureAges = 9*time.Second, []time.Duration{9 * time.Second, time.Second}
	report(t, s, breaker.StoreReport{Name: "c", Node: "n", Shape: breaker.StoreShape{Window: 10 * time.Second, Reporters: 2}, Batch: b})
	pass(8 * time.Second)
	if l := one(t, s, "c"); l.Reporters != 1 {
		t.Errorf("%d callers failed within the window, want 1", l.Reporters)
	}
	pass(time.Second)
	if l := one(t, s, "c"); l.Reporters != 0 {
		t.Errorf("%d callers failed within the window, want 0", l.Reporters)
	}
}

// A late failure of a probe opens, unless a probe admitted later has succeeded: also where the server's clock was set back
// meanwhile, which moves every lease, and where an older version has written the slot, without its place in the order.
func TestLateFailuresOfProbes(t *testing.T) {
	for _, c := range []struct {
		what            string
		first           time.Duration // what passes before the success
		good            string        // whose probe succeeds
		second          time.Duration // what passes before the failure
		bad             string
		want            breaker.State
		asOlderVersions bool
	}{
		{what: "nothing has succeeded", second: 2 * time.Minute, bad: "a", want: breaker.Open},
		{what: "an earlier one has", good: "a", second: 2 * time.Minute, bad: "b", want: breaker.Open},
		{what: "a later one has", good: "b", second: 2 * time.Minute, bad: "a", want: breaker.HalfOpen},
		{what: "a later one has, late", first: 2 * time.Minute, good: "c", bad: "b", want: breaker.HalfOpen},
		{what: "a later one has, but it is not late", good: "b", bad: "a", want: breaker.Open},
		{what: "set back before the success", first: -time.Hour, good: "c", second: 2 * time.Minute, bad: "a", want: breaker.HalfOpen},
		{what: "set back after the success", good: "b", second: -time.Hour, bad: "a", want: breaker.Open},
		{what: "of an older version", second: 2 * time.Minute, bad: "a", want: breaker.Open, asOlderVersions: true},
	} {
		t.Run(c.what, func(t *testing.T) {
			s, m, pass := onOwnTime(t)
			verdict := func(epoch uint64, token string, o breaker.Outcome) breaker.Ledger {
				l, err := s.Settle(ctx, breaker.StoreVerdict{Name: "c", Shape: shape, Epoch: epoch, Token: token, Outcome: o, Threshold: 9, For: time.Hour})
				return must(t, l, err)
			}
			epoch := move(t, s, "c", 0, breaker.HalfOpen, 0).Epoch
			acquire(t, s, "c", epoch, "a", "b")
			acquire(t, s, "c", epoch, "c")
			if c.asOlderVersions {
				m.HSet("cb:{c}", "series", "1:0", "slot:a", strings.SplitN(m.HGet("cb:{c}", "slot:a"), ":", 2)[0])
			}
			pass(c.first)
			if c.good != "" {
				if l := verdict(epoch, c.good, breaker.Success); !l.Applied || l.Progress != 1 {
					t.Fatalf("a success: %+v", l)
				}
			}
			if c.good != "" && verdict(epoch, c.good, breaker.Success).Applied {
				t.Error("a success counts twice")
			}
			pass(c.second)
			if l := verdict(epoch, c.bad, breaker.Failure); !l.Applied || l.State != c.want {
				t.Errorf("a failure: %+v, want %v", l, c.want)
			}
			if verdict(epoch, c.bad, breaker.Failure).Applied {
				t.Error("a failure counts twice")
			}
		})
	}
}

// Probes that never come back do not fill the server.
func TestRememberedProbesAreBounded(t *testing.T) {
	s, m, pass := onOwnTime(t)
	epoch := move(t, s, "c", 0, breaker.HalfOpen, 0).Epoch
	const rounds, each = 30, 50
	for i := range rounds {
		a := breaker.StoreAcquire{Name: "c", Shape: shape, Epoch: epoch, Lease: time.Second, Limit: each}
		for j := range each {
			a.Tokens = append(a.Tokens, fmt.Sprintf("t%dx%d", i, j))
		}
		if l, err := s.Acquire(ctx, a); must(t, l, err).Granted != each {
			t.Fatalf("round %d: %+v", i, l)
		}
		pass(time.Second)
	}
	keys, err := m.HKeys("cb:{c}")
	if n := len(must(t, keys, err)); n < 1024 || n > 1024+each+10 {
		t.Errorf("%d fields", n)
	}
	if settle(t, s, "c", epoch, "t0x0", breaker.Success).Applied {
		t.Error("the first probe is still remembered")
	}
	if settle(t, s, "c", epoch, "t0x1", breaker.Failure).State != breaker.HalfOpen {
		t.Error("the failure of a probe that is forgotten has opened")
	}
	if !settle(t, s, "c", epoch, fmt.Sprintf("t%dx0", rounds-2), breaker.Failure).Applied || one(t, s, "c").State != breaker.Open {
		t.Error("a late one is not remembered")
	}
}
