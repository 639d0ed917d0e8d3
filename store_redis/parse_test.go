package storeredis

import (
	"errors"
	"strings"
	"testing"

	"github.com/breakerkit/breaker"
)

func ledgerNumbers() []int64 {
	return []int64{1796006941164, 17, 0, 5, 0, 1, 0, 0, 3, 10, 4, 2, 1, 3, 0, 4, 3, 2, 7, 1, 1, 0, 9}
}

func anys(n []int64) []any {
	list := make([]any, len(n))
	for i, v := range n {
		list[i] = v
	}
	return list
}

func TestReplies(t *testing.T) {
	l, err := ledgerOf(anys(ledgerNumbers()), nil)
	want := breaker.Ledger{
		Clock: 1796006941164, Epoch: 17, State: breaker.Closed, Age: 5000, Openings: 1, Run: 3,
		Counts: breaker.Counts{Successes: 10, Failures: 4, Ignored: 2, Slow: 1, ConsecutiveFailures: 3},
		Peak:   7, Recent: 4, RecentRun: 3, Reporters: 2, Foreign: true, Applied: true, RetryAfter: 9000,
	}
	if err != nil || l != want {
		t.Errorf("got %+v, %v, want %+v", l, err, want)
	}
	if l, err = ledgerOf(append(anys(ledgerNumbers()), int64(1)), nil); err != nil || l != want {
		t.Errorf("with more numbers: %+v, %v", l, err)
	}
	spoilt := func(i int, v any) []any {
		list := anys(ledgerNumbers())
		list[i] = v
		return list
	}
	for _, reply := range []any{
		nil, "OK", int64(1), []any{}, anys(ledgerNumbers()[:replyNumbers-1]), spoilt(2, int64(3)), spoilt(3, int64(-1)), spoilt(8, int64(0)),
		spoilt(1, int64(limit)), spoilt(0, int64(limit+1)), spoilt(8, "x"), spoilt(5, int64(1<<32)), spoilt(6, int64(1<<32)), []any{[]any{}, nil, errors.New("x")}, map[any]any{"a": 1},
	} {
		if l, err := ledgerOf(reply, nil); !errors.Is(err, breaker.ErrLedger) || l != (breaker.Ledger{}) {
			t.Errorf("%v is read as %+v", reply, l)
		}
	}
}

func TestEvents(t *testing.T) {
	const numbers = "1796006941164 17 2 5 7 1 0 0 3 10 4 2 1 3 0 4 3 2"
	for text, want := range map[string]string{
		numbers + "|name":      "name",
		numbers + "|a|b":       "a|b",
		numbers + "|\n":        "\n",
		numbers + " 5 6|newer": "newer",
		numbers + "|":          "",
		numbers:                "",
		numbers[5:] + "x|name": "",
		"|name":                "",
		"1 2|name":             "",
	} {
		name, l, ok := parseEvent(text)
		if name != want && ok || ok != (want != "") {
			t.Errorf("%q: %q, %+v, %v", text, name, l, ok)
		}
		if ok && (l.Epoch != 17 || l.State != breaker.Open || l.Remaining != 7000 || l.Run != 3) {
			t.Errorf("%q: %+v", text, l)
		}
	}
}

// What comes from a server is somebody else's: it must not end the process.
func FuzzEvents(f *testing.F) {
	f.Add("1796006941164 17 2 5 7 1 0 0 3 10 4 2 1 3 0 4 3 2|name")
	f.Add("1 1 3 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0|x")
	f.Add("-1 99999999999999999999|")
	f.Fuzz(func(t *testing.T, text string) {
		name, l, ok := parseEvent(text)
		if ok && (name == "" || l.Run == 0 || l.Epoch >= limit || l.State > breaker.Open || l.Age < 0 || l.Remaining < 0 || l.Slots < 0) {
			t.Errorf("%q: %q, %+v", text, name, l)
		}
	})
}

func FuzzReplies(f *testing.F) {
	f.Add("1796006941164,17,2,5,7,1,0,0,3,10,4,2,1,3,0,4,3,2,0,0,0,0,0")
	f.Add("[,s,-1,nil")
	f.Fuzz(func(t *testing.T, text string) {
		var list []any
		for part := range strings.SplitSeq(text, ",") {
			n := int64(0)
			for _, c := range part {
				n = n*10 + int64(c-'0')
			}
			switch {
			case part == "nil":
				list = append(list, nil)
			case strings.HasPrefix(part, "s"):
				list = append(list, part)
			case strings.HasPrefix(part, "["):
				list = append(list, []any{n})
			default:
				list = append(list, n)
			}
		}
		l, err := ledgerOf(list, nil)
		if err == nil && (l.Run == 0 || l.State > breaker.Open || l.Age < 0 || l.RetryAfter < 0 || l.Granted < 0) {
			t.Errorf("%v: %+v", list, l)
		}
	})
}

// Two names never have one key, and no key leaves its slot.
func FuzzNames(f *testing.F) {
	f.Add("a", "a ")
	f.Add("{a}", "%7Ba%7D")
	f.Add(strings.Repeat("x", 200), strings.Repeat("x", 201))
	f.Fuzz(func(t *testing.T, a, b string) {
		x, y := encodeName(a), encodeName(b)
		if (a == b) != (x == y) {
			t.Errorf("%q and %q are %q and %q", a, b, x, y)
		}
		for _, e := range []string{x, y} {
			if len(e) > maxName || strings.ContainsAny(e, "{} \n\x00") {
				t.Errorf("%q", e)
			}
		}
	})
}

type counter struct{ calls int }

func (c *counter) Changed(string, breaker.Ledger) { c.calls++ }
func (c *counter) Resync()                        { c.calls++ }

// A call that was under way when stop was called does not reach a watcher that is gone.
func TestNoCallAfterStop(t *testing.T) {
	c := &counter{}
	w := &watch{w: c}
	w.notify(breaker.StoreWatcher.Resync)
	w.stop()
	w.notify(breaker.StoreWatcher.Resync)
	if c.calls != 1 {
		t.Errorf("%d calls, want 1", c.calls)
	}
}
