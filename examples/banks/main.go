// Banks sends payments to a bank on the loopback interface through a circuit breaker that retries twice and then turns to
// a second bank, which has a circuit of its own. The requests are real; the clock is the example's own and jumps ahead
// instead of waiting.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/breakerkit/breaker"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "banks:", err)
		os.Exit(1)
	}
}

// receipt is what a bank answers to a payment.
type receipt string

// newPayments makes two breakers, one for each bank. The primary's last resort is the backup behind its own circuit.
func newPayments(clk breaker.Clock, payPrimary, payBackup func(context.Context) (receipt, error)) (primary, backup *breaker.Breaker[receipt], err error) {
	circuit := []breaker.Option{
		breaker.WithClock(clk),
		breaker.WithFailureThreshold(5),
		breaker.WithFailureWindow(60 * time.Second),
		breaker.WithOpenTimeout(15 * time.Second),
		breaker.WithSuccessThreshold(1), // one probe decides
	}
	backup, err = breaker.New[receipt]("backup-bank", circuit...)
	if err != nil {
		return nil, nil, err
	}
	primary, err = breaker.New[receipt]("primary-bank", append(circuit,
		breaker.WithRetry(
			breaker.MaxRetries(2),
			breaker.Exponential(100*time.Millisecond, 10*time.Second),
			breaker.NoJitter()), // for a story that is the same every time; keep the jitter otherwise
		breaker.WithFailover("backup-bank", backup.Wrap(payBackup)))...)
	return primary, backup, err
}

// idKey is where the payment's number is in a context: either bank is asked for what the context says.
type idKey struct{}

// payAt returns a function that sends the payment to a bank. A payment is sent more than once where an answer is lost:
// the key tells the bank that it is the same one.
func payAt(client *http.Client, url string) func(context.Context) (receipt, error) {
	return func(ctx context.Context) (receipt, error) {
		id, _ := ctx.Value(idKey{}).(string)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(`{"amount": "25.00", "currency": "EUR"}`))
		if err != nil {
			return "", err
		}
		req.Header.Set("Idempotency-Key", id)
		resp, err := client.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return "", errors.New(resp.Status)
		}
		body, err := io.ReadAll(resp.Body)
		return receipt(body), err
	}
}

// bank is a bank's server. It refuses as many of the next requests as it is told to.
type bank struct {
	name     string
	refuse   atomic.Int64
	requests atomic.Int64
}

func (b *bank) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.requests.Add(1)
	if b.refuse.Add(-1) >= 0 {
		http.Error(w, "out of order", http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintf(w, "%s has %s", b.name, r.Header.Get("Idempotency-Key"))
}

// A clock jumps ahead as soon as somebody waits for it, which makes every wait a short one. One goroutine uses it here.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

func (c *clock) After(d time.Duration) <-chan time.Time {
	c.now = c.now.Add(d)
	over := make(chan time.Time, 1)
	over <- c.now
	return over
}

const fromNowOn = 1000 // requests

// story is when the payments are made, and how many requests the banks refuse from then on.
var story = []struct {
	at              time.Duration
	primary, backup int64
	note            string
}{
	{0, 0, 0, ""},
	{1 * time.Second, 1, 0, "A hiccup: the second attempt helps."},
	{2 * time.Second, fromNowOn, 0, "The primary bank goes down."},
	{3 * time.Second, fromNowOn, 0, "The fifth failure opens its circuit and ends the retries."},
	{4 * time.Second, fromNowOn, 0, "Open: the backup bank at once, the primary bank is left alone."},
	{5 * time.Second, fromNowOn, 0, ""},
	{6 * time.Second, fromNowOn, 1, "Now the backup bank has a hiccup too. It counts in the backup's circuit."},
	{7 * time.Second, fromNowOn, 0, ""},
	{19 * time.Second, 0, 0, "The primary bank is back; 15 s are over, and this payment is the probe."},
	{20 * time.Second, 0, 0, ""},
}

func run(ctx context.Context, w io.Writer) error {
	banks := [2]*bank{{name: "primary"}, {name: "backup"}}
	var pay [2]func(context.Context) (receipt, error)
	for i, b := range banks {
		srv := httptest.NewServer(b)
		defer srv.Close()
		pay[i] = payAt(srv.Client(), srv.URL)
	}
	began := time.Date(2026, time.January, 5, 9, 0, 0, 0, time.UTC)
	clk := &clock{began}
	primary, backup, err := newPayments(clk, pay[0], pay[1])
	if err != nil {
		return err
	}

	fmt.Fprintln(w, "Two banks: 2 retries, then the backup; 5 failures within 60 s open a bank's circuit for 15 s.")
	fmt.Fprintf(w, "\n%6s   %-7s   %8s   %7s   %6s   %-17s   %-8s   %s\n",
		"time", "payment", "primary", "backup", "waited", "receipt", "mark", "circuits afterwards")
	for i, s := range story {
		clk.now = began.Add(s.at)
		banks[0].refuse.Store(s.primary)
		banks[1].refuse.Store(s.backup)
		asked := [2]int64{banks[0].requests.Load(), banks[1].requests.Load()}

		id := fmt.Sprintf("no. %d", i+1)
		r := primary.Try(context.WithValue(ctx, idKey{}, id), pay[0])

		if s.note != "" {
			fmt.Fprintf(w, "         %s\n", s.note)
		}
		fmt.Fprintf(w, "%4.0f s   %-7s   %8s   %7s   %6v   %-17s   %-8s   %v, %v\n", s.at.Seconds(), id,
			times(banks[0].requests.Load()-asked[0]), times(banks[1].requests.Load()-asked[1]), clk.now.Sub(began)-s.at,
			got(r), mark(r), primary.State(), backup.State())
	}

	fmt.Fprintf(w, "\n%-12s   %8s   %6s   %6s   %8s   %s\n", "circuit", "requests", "good", "failed", "rejected", "state")
	for i, b := range []*breaker.Breaker[receipt]{primary, backup} {
		t := b.Snapshot().Totals
		fmt.Fprintf(w, "%-12s   %8d   %6d   %6d   %8d   %v\n", b.Name(), banks[i].requests.Load(), t.Successes, t.Failures, t.Rejected, b.State())
	}
	t := primary.Snapshot().Totals
	fmt.Fprintf(w, "\nRescued by a retry: %d. Rescued by the backup bank: %d.\n", t.Rescues[breaker.RescueRetry], t.Rescues[breaker.RescueFailover])
	return nil
}

func times(n int64) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprintf("%d x", n)
}

func got(r breaker.Result[receipt]) string {
	if r.Err != nil {
		return "none: both failed"
	}
	return string(r.Value)
}

func mark(r breaker.Result[receipt]) string {
	if r.Rescue == "" {
		return "-"
	}
	return string(r.Rescue)
}
