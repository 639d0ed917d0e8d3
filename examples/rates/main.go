// Rates asks an exchange-rate server on the loopback interface through a circuit breaker that remembers the last good
// answer of each pair for ten minutes. The server goes down for ten minutes and comes back; the requests are real, but
// the clock is the example's own, so that the ten minutes pass at once.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/breakerkit/breaker"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "rates:", err)
		os.Exit(1)
	}
}

// service is what an application would have: one breaker for the server, made once.
type service struct {
	breaker *breaker.Breaker[float64]
	client  *http.Client
	url     string
}

func newService(url string, opts ...breaker.Option) (*service, error) {
	b, err := breaker.New[float64]("exchange-rates", append(opts,
		breaker.WithFailureThreshold(5),
		breaker.WithFailureWindow(60*time.Second),
		breaker.WithOpenTimeout(15*time.Second),
		breaker.WithSuccessThreshold(1), // one probe decides
		breaker.WithLastGood[float64](600*time.Second, pairOf))...)
	if err != nil {
		return nil, err
	}
	return &service{b, &http.Client{Timeout: 5 * time.Second}, url}, nil
}

// rate is the rate of a pair such as EURUSD: the server's, or the last good one while the server is in trouble.
func (s *service) rate(ctx context.Context, pair string) breaker.Result[float64] {
	ctx = context.WithValue(ctx, pairKey{}, pair)
	return s.breaker.Try(ctx, s.fetch)
}

// pairKey is where the pair is in a context: the request and the key of the last good answer both come from there.
type pairKey struct{}

func pairOf(ctx context.Context) string {
	pair, _ := ctx.Value(pairKey{}).(string)
	return pair
}

// fetch is an ordinary HTTP request. It knows nothing of the breaker.
func (s *service) fetch(ctx context.Context) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/"+pairOf(ctx), nil)
	if err != nil {
		return 0, err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, errors.New(resp.Status)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(string(body), 64)
}

// server is the exchange-rate server. Each good answer is a little higher than the one before.
type server struct {
	down     atomic.Bool
	requests atomic.Int64
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := s.requests.Add(1)
	base, known := map[string]float64{"EURUSD": 1.08, "EURGBP": 0.85}[strings.TrimPrefix(r.URL.Path, "/")]
	switch {
	case s.down.Load():
		http.Error(w, "out of order", http.StatusServiceUnavailable)
	case !known:
		http.NotFound(w, r)
	default:
		fmt.Fprintf(w, "%.4f", base+float64(n)/1000)
	}
}

// A clock stands still until somebody sets it. One goroutine uses it here; a clock for more would need a lock.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

// After belongs to breaker.Clock; nothing in this example waits.
func (c *clock) After(time.Duration) <-chan time.Time { panic("rates: nobody should wait") }

// story is who asks for which pair, and when.
var story = []struct {
	at   int // in seconds
	pair string
	note string
}{
	{0, "EURUSD", ""},
	{1, "EURUSD", "The server goes down."},
	{2, "EURUSD", ""},
	{3, "EURUSD", ""},
	{4, "EURUSD", ""},
	{5, "EURUSD", ""},
	{6, "EURUSD", "The circuit is open: cached answers, and nobody bothers the server."},
	{19, "EURUSD", ""},
	{19, "EURGBP", "Nothing is known of this pair yet."},
	{20, "EURUSD", "15 s are over: this request is the probe."},
	{590, "EURUSD", "Much later, still down."},
	{599, "EURUSD", ""},
	{600, "EURUSD", "The cached answer is 600 s old now, and served no more."},
	{605, "EURUSD", "The server is back."},
	{606, "EURUSD", ""},
}

const (
	goesDown = 1 // seconds into the story
	isBack   = 605
)

func run(ctx context.Context, w io.Writer) error {
	upstream := &server{}
	srv := httptest.NewServer(upstream)
	defer srv.Close()

	began := time.Date(2026, time.January, 5, 9, 0, 0, 0, time.UTC)
	clk := &clock{began}
	rates, err := newService(srv.URL, breaker.WithClock(clk))
	if err != nil {
		return err
	}

	fmt.Fprintln(w, "Exchange rates: 5 failures within 60 s open the circuit for 15 s; the last good answer is kept for 600 s.")
	fmt.Fprintf(w, "\n%5s   %-6s   %-10s   %-6s   %-5s   %s\n", "time", "pair", "server", "rate", "from", "circuit afterwards")
	for _, s := range story {
		clk.now = began.Add(time.Duration(s.at) * time.Second)
		upstream.down.Store(s.at >= goesDown && s.at < isBack)
		before := upstream.requests.Load()
		r := rates.rate(ctx, s.pair)

		if s.note != "" {
			fmt.Fprintf(w, "        %s\n", s.note)
		}
		fmt.Fprintf(w, "%3d s   %-6s   %-10s   %-6s   %-5s   %s\n", s.at, s.pair,
			said(upstream.requests.Load() > before, upstream.down.Load()), rate(r), from(r), circuit(rates.breaker.Snapshot(), r.Err, began))
	}
	t := rates.breaker.Snapshot().Totals
	cached := t.Rescues[breaker.RescueCache]
	fmt.Fprintf(w, "\n%d requests: %d answered by the server, %d by the cache, %d not at all. %d reached the server.\n",
		len(story), t.Successes, cached, uint64(len(story))-t.Successes-cached, upstream.requests.Load())
	return nil
}

func said(asked, down bool) string {
	switch {
	case !asked:
		return "not called"
	case down:
		return "503"
	}
	return "200"
}

func rate(r breaker.Result[float64]) string {
	if r.Err != nil {
		return "none"
	}
	return fmt.Sprintf("%.4f", r.Value)
}

// from is the mark that an application would log, or show its user: what answered.
func from(r breaker.Result[float64]) string {
	switch {
	case r.Err != nil:
		return "-"
	case r.Rescue != "":
		return string(r.Rescue)
	}
	return "live"
}

func circuit(s breaker.Snapshot, err error, began time.Time) string {
	text := s.State.String()
	switch {
	case s.State == breaker.Open:
		text += fmt.Sprintf(" until %.0f s", s.Until.Sub(began).Seconds())
	case s.ConsecutiveFailures > 0:
		text += fmt.Sprintf(", failures: %d", s.ConsecutiveFailures)
	}
	if open, ok := errors.AsType[*breaker.OpenError](err); ok {
		text += fmt.Sprintf("; error: try again in %v", open.RetryAfter())
	}
	return text
}
