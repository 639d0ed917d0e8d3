package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/breakerkit/breaker"
)

// A timeline prints the calls and the state changes and remembers what the verdict needs.
type timeline struct {
	w        io.Writer
	began    time.Time
	calls    int64
	rejected int64
	leaked   int64 // rejected calls that reached the server all the same
	changes  []breaker.Transition
	pending  []breaker.Transition // changes that a call caused, shown below it
}

func (t *timeline) header(c breaker.Config, p pace) {
	fmt.Fprintf(t.w, "Circuit \"weather\": %d failures in a row open it for %v, %d good probes close it.\n", c.FailureThreshold, c.OpenTimeout, c.SuccessThreshold)
	fmt.Fprintf(t.w, "One call every %v; an attempt may take %v.\n\n", p.every, p.limit)
	fmt.Fprintf(t.w, "%7s  %4s  %-10s  %9s  %s\n", "time", "call", "server", "waited", "caller got")
}

// change is the breaker's StateChange hook. Only one goroutine calls the breaker here, so the hook runs in that goroutine.
func (t *timeline) change(tr breaker.Transition) {
	t.changes = append(t.changes, tr)
	if tr.To == breaker.HalfOpen {
		t.print(tr) // the call that it lets through comes next
		return
	}
	t.pending = append(t.pending, tr)
}

func (t *timeline) print(tr breaker.Transition) {
	next := ""
	if tr.To == breaker.Open {
		next = fmt.Sprintf(", next probe in %v", tr.Until.Sub(tr.At))
	}
	fmt.Fprintf(t.w, "%6.2fs  ---- %v -> %v: %s%s\n", tr.At.Sub(t.began).Seconds(), tr.From, tr.To, tr.Reason, next)
}

func (t *timeline) call(began time.Time, server, answer string, err error) {
	waited := time.Since(began)
	got := fmt.Sprintf("%q", answer)
	if open, ok := errors.AsType[*breaker.OpenError](err); ok {
		t.rejected++
		if server != "not called" {
			t.leaked++
		}
		got = fmt.Sprintf("rejected, next probe in %.1fs", open.RetryAfter().Seconds())
	} else if errors.Is(err, context.DeadlineExceeded) {
		got = "error: timeout"
	} else if err != nil {
		got = "error: " + err.Error()
	}
	t.calls++
	fmt.Fprintf(t.w, "%6.2fs  %4d  %-10s  %9v  %s\n",
		began.Sub(t.began).Seconds(), t.calls, server, waited.Round(time.Microsecond), got)
	for _, tr := range t.pending {
		t.print(tr)
	}
	t.pending = nil
}

// verdict prints the totals and says of each part of the story whether it happened.
func (t *timeline) verdict(s breaker.Snapshot, requests int64) error {
	fmt.Fprintf(t.w, "\nTotals: %d calls ran (%d successes, %d failures), %d rejected; the circuit is %v.\n\n",
		s.Totals.Calls, s.Totals.Successes, s.Totals.Failures, s.Totals.Rejected, s.State)
	did := func(i int, r breaker.Reason) bool { return i < len(t.changes) && t.changes[i].Reason == r }
	failed := 0
	for _, part := range []struct {
		happened bool
		what     string
	}{
		{did(0, breaker.ReasonThreshold), "failures opened the circuit"},
		{t.rejected > 0 && t.leaked == 0, fmt.Sprintf("%d calls were rejected, none of them reached the server", t.rejected)},
		{did(1, breaker.ReasonTimeout) && did(2, breaker.ReasonProbeFailed), "a probe met the hanging server and opened it again"},
		{did(3, breaker.ReasonTimeout) && did(4, breaker.ReasonRecovered) && len(t.changes) == 5, "good probes closed it after the recovery"},
		{requests == t.calls-t.rejected, fmt.Sprintf("the server got %d requests: %d calls less %d rejected", requests, t.calls, t.rejected)},
		{int64(s.Totals.Calls) == requests && int64(s.Totals.Rejected) == t.rejected, "the breaker's totals say the same"},
	} {
		mark := "yes"
		if !part.happened {
			mark = "NO "
			failed++
		}
		fmt.Fprintf(t.w, "  %s  %s\n", mark, part.what)
	}
	if failed > 0 {
		return fmt.Errorf("%d parts of the story did not happen", failed)
	}
	fmt.Fprintln(t.w, "\nEverything happened as it should.")
	return nil
}
