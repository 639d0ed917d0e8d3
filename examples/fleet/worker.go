package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/breakerkit/breaker"
	storeredis "github.com/breakerkit/breaker/store_redis"
	"github.com/redis/go-redis/v9"
)

// What a worker process is told by its environment.
const (
	workerEnv   = "FLEET_WORKER"
	upstreamEnv = "FLEET_UPSTREAM"
	redisEnv    = "FLEET_REDIS"
)

// event is a line that a worker writes.
type event struct {
	Worker int       `json:"worker"`
	At     time.Time `json:"at"`

	From   string `json:"from,omitempty"` // a change of the state
	To     string `json:"to,omitempty"`
	Reason string `json:"reason,omitempty"`
	Alone  bool   `json:"alone,omitempty"`

	Final    bool          `json:"final,omitempty"` // the last line
	Calls    uint64        `json:"calls,omitempty"`
	Failures uint64        `json:"failures,omitempty"`
	Rejected uint64        `json:"rejected,omitempty"`
	Slowest  time.Duration `json:"slowest,omitempty"` // that the breaker has made any call or rejection
}

// circuitOptions is how the fleet's circuit is configured: all of its members alike.
func circuitOptions() []breaker.Option {
	return []breaker.Option{
		breaker.WithFailureThreshold(5),
		breaker.WithSuccessThreshold(2),
		breaker.WithHalfOpenProbes(1),
		breaker.WithOpenTimeout(2 * time.Second),
	}
}

// work is what a worker process does, until its standard input ends.
func work(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	number, err := strconv.Atoi(os.Getenv(workerEnv))
	if err != nil {
		return fmt.Errorf("%s: %w", workerEnv, err)
	}
	client := redis.NewClient(&redis.Options{Addr: os.Getenv(redisEnv), MaxRetries: -1, ContextTimeoutEnabled: true})
	defer client.Close()
	store, err := storeredis.New(client)
	if err != nil {
		return err
	}
	defer store.Close()

	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		cancel()
	}()
	lines := json.NewEncoder(stdout)
	w, err := newWorker(number, os.Getenv(upstreamEnv), store, func(e event) { _ = lines.Encode(e) })
	if err != nil {
		return err
	}
	return w.run(ctx)
}

// worker calls the upstream through its circuit, twenty times a second.
type worker struct {
	number  int
	url     string
	breaker *breaker.Breaker[int]
	slowest time.Duration

	mu   sync.Mutex
	emit func(event)
}

func newWorker(number int, url string, store breaker.Store, emit func(event)) (*worker, error) {
	w := &worker{number: number, url: url, emit: emit}
	opts := append(circuitOptions(),
		breaker.WithStore(store),
		breaker.WithHooks(breaker.Hooks{StateChange: w.changed}))
	var err error
	w.breaker, err = breaker.New[int]("upstream", opts...)
	return w, err
}

func (w *worker) changed(t breaker.Transition) {
	w.tell(event{From: t.From.String(), To: t.To.String(), Reason: string(t.Reason)})
}

func (w *worker) tell(e event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e.Worker, e.At = w.number, time.Now()
	w.emit(e)
}

func (w *worker) run(ctx context.Context) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			t := w.breaker.Snapshot().Totals
			w.tell(event{Final: true, Calls: t.Calls, Failures: t.Failures, Rejected: t.Rejected, Slowest: w.slowest})
			return w.breaker.Close()
		case <-tick.C:
			w.call()
		}
	}
}

// call makes one call, and measures what the breaker has added to it, unless it was a probe: those may wait for Redis.
func (w *worker) call() {
	var inside time.Duration
	probing := w.breaker.State() != breaker.Closed
	began := time.Now()
	_, err := w.breaker.Do(context.Background(), func(ctx context.Context) (int, error) {
		began := time.Now()
		defer func() { inside = time.Since(began) }()
		return w.get(ctx)
	})
	added := time.Since(began) - inside
	if !probing || errors.Is(err, breaker.ErrOpen) && w.breaker.State() == breaker.Open {
		w.slowest = max(w.slowest, added)
	}
}

func (w *worker) get(ctx context.Context) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url, nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set("X-Worker", strconv.Itoa(w.number))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	if resp.StatusCode >= 500 {
		return resp.StatusCode, errors.New(resp.Status)
	}
	return resp.StatusCode, nil
}
