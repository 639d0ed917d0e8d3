package storeredis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/breakerkit/breaker"
	"github.com/redis/go-redis/v9"
)

var errNoName = errors.New("storeredis: a name must not be empty")

// Store is a [breaker.Store] on Redis. It must be made by [New]. It is safe for concurrent use, and keeps nothing for any
// circuit in memory.
type Store struct {
	client  redis.UniversalClient
	prefix  string
	channel string
	mirror  bool
	timeout time.Duration

	closing context.Context // ends with Close
	end     context.CancelFunc

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup // operations and the listener
	watches []*watch       // replaced, never changed
	deaf    func()         // ends the listener
}

var _ breaker.Store = (*Store)(nil)

// New makes a Store on a client of a single server, of one behind sentinels, or of a cluster. It makes no connection: a
// server that is down makes operations fail, not New. The client stays the caller's, who closes it after the Store.
//
// A nil client, nonsense in an option, and a client that retries or ignores deadlines are errors; see [UncheckedClient].
func New(client redis.UniversalClient, opts ...Option) (*Store, error) {
	set, err := newSettings(client, opts)
	if err != nil {
		return nil, err
	}
	s := &Store{client: client, prefix: set.prefix, mirror: set.mirror, timeout: set.timeout}
	s.channel = s.prefix + ":events"
	if c, ok := client.(*redis.Client); ok && c.Options().DB != 0 {
		s.channel += ":" + strconv.Itoa(c.Options().DB) // channels do not belong to a database
	}
	s.closing, s.end = context.WithCancel(context.Background())
	return s, nil
}

// Timeout is the longest that an operation takes.
func (s *Store) Timeout() time.Duration { return s.timeout }

// Report adds what circuits have counted, in one pipeline. See [breaker.Store].
func (s *Store) Report(ctx context.Context, reports []breaker.StoreReport) []breaker.StoreReply {
	calls := make([]call, len(reports))
	for i := range reports {
		calls[i] = s.report(&reports[i])
	}
	return s.do(ctx, calls)
}

// Move begins a new epoch. See [breaker.Store].
func (s *Store) Move(ctx context.Context, m breaker.StoreMove) (breaker.Ledger, error) {
	if m.To > breaker.Open {
		return breaker.Ledger{}, fmt.Errorf("storeredis: Move: there is no %v", m.To)
	}
	return s.one(ctx, s.call(moveScript, m.Name, shapeText(m.Shape),
		epoch(m.From), min(m.Run, limit), m.To.String(), micros(m.For), m.Openings))
}

// Acquire takes probe slots. See [breaker.Store].
func (s *Store) Acquire(ctx context.Context, a breaker.StoreAcquire) (breaker.Ledger, error) {
	c := s.call(acquireScript, a.Name, shapeText(a.Shape), epoch(a.Epoch), micros(a.Lease), max(a.Limit, 0), a.Openings)
	for _, token := range a.Tokens {
		c.args = append(c.args, token)
	}
	return s.one(ctx, c)
}

// Settle ends a probe. See [breaker.Store].
func (s *Store) Settle(ctx context.Context, v breaker.StoreVerdict) (breaker.Ledger, error) {
	return s.one(ctx, s.call(settleScript, v.Name, shapeText(v.Shape),
		epoch(v.Epoch), v.Token, v.Outcome.String(), v.Threshold, micros(v.For), v.Openings))
}

// Read reads ledgers, in one pipeline. See [breaker.Store].
func (s *Store) Read(ctx context.Context, names []string) []breaker.StoreReply {
	calls := make([]call, len(names))
	for i, name := range names {
		calls[i] = s.call(reportScript, name, "", 0, "", 0, 0, 0, 0, 0, 0)
	}
	return s.do(ctx, calls)
}

// call is a script's call on a circuit. One without a name has no keys.
func (s *Store) call(sc *script, name, shape string, args ...any) call {
	if name == "" {
		return call{}
	}
	return call{sc, s.keysOf(name), append([]any{s.channel, name, shape}, args...)}
}

func (s *Store) one(ctx context.Context, c call) (breaker.Ledger, error) {
	r := s.do(ctx, []call{c})[0]
	return r.Ledger, r.Err
}

// do carries calls out, within the Store's limit of time and until ctx ends, whatever the client does meanwhile.
func (s *Store) do(ctx context.Context, calls []call) []breaker.StoreReply {
	if err := s.enter(ctx); err != nil {
		return failed(len(calls), err)
	}
	replies, err := within(ctx, s.timeout, func(ctx context.Context) []breaker.StoreReply {
		defer s.running.Done()
		return s.pipeline(ctx, calls)
	})
	switch {
	case err == nil:
		return replies
	case ctx.Err() != nil:
		return failed(len(calls), ctx.Err())
	}
	return failed(len(calls), fmt.Errorf("storeredis: %w", err))
}

// enter counts an operation in.
func (s *Store) enter(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return breaker.ErrStoreClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	s.running.Add(1)
	return nil
}

func (s *Store) pipeline(ctx context.Context, calls []call) []breaker.StoreReply {
	replies := make([]breaker.StoreReply, len(calls))
	var sent []call
	for i, c := range calls {
		if c.script == nil {
			replies[i].Err = errNoName
			continue
		}
		sent = append(sent, c)
	}
	done := run(ctx, s.client, sent)
	for i := range replies {
		if replies[i].Err != nil {
			continue
		}
		replies[i].Ledger, replies[i].Err = ledgerOf(done[0].Val(), done[0].Err())
		done = done[1:]
	}
	return replies
}

func failed(n int, err error) []breaker.StoreReply {
	replies := make([]breaker.StoreReply, n)
	for i := range replies {
		replies[i].Err = err
	}
	return replies
}

// epoch is an epoch as the scripts can take it: those beyond the limit are all alike, and given by no Store.
func epoch(e uint64) uint64 { return min(e, limit) }

// shapeText is a shape as it is kept.
func shapeText(s breaker.StoreShape) string {
	const mostReporters, mostFailures = 1000, 1e6 // beyond that, no more are told apart and kept
	b := make([]byte, 0, 48)
	b = strconv.AppendInt(b, micros(s.Window), 10)
	b = append(b, ':')
	b = strconv.AppendInt(b, int64(min(max(s.Failures, 0), mostFailures)), 10)
	b = append(b, ':')
	b = strconv.AppendInt(b, int64(min(max(s.Reporters, 0), mostReporters)), 10)
	b = append(b, ':')
	return string(append(b, s.Config...))
}

// report is the call for a report. What contradicts itself in a batch is set right here.
func (s *Store) report(r *breaker.StoreReport) call {
	b := &r.Batch
	all, last, slices := tally(b.Slices)
	ages := b.FailureAges
	ages = ages[len(ages)-int(min(uint64(len(ages)), all.Failures)):]
	if len(ages) > 0 {
		last = ages[len(ages)-1]
	}
	head, tail, longest := all.Failures, all.Failures, all.Failures
	trailing := int64(min(b.Trailing, all.Successes))
	switch {
	case b.Early: // the successes are no part of the run
		trailing = -1
	case all.Successes > 0:
		head, tail = min(b.Head, all.Failures), min(b.Tail, all.Failures)
		longest = min(max(b.Longest, head, tail), all.Failures)
	}
	c := s.call(reportScript, r.Name, shapeText(r.Shape), epoch(r.Epoch), r.Node,
		head, tail, longest, trailing, micros(last), len(slices)/5)
	c.args = append(c.args, slices...)
	for _, age := range ages {
		c.args = append(c.args, micros(age))
	}
	return c
}

// tally is the sums of slices, the age of the last that has a failure, and what the script is told of them: nothing where
// there is nothing to count.
func tally(slices []breaker.StoreSlice) (all breaker.StoreSlice, last time.Duration, args []any) {
	args = make([]any, 0, 5*len(slices))
	for _, c := range slices {
		ok, failed, ignored, slow := min(c.Successes, limit), min(c.Failures, limit), min(c.Ignored, limit), min(c.Slow, limit)
		all.Successes, all.Failures = min(all.Successes+ok, limit), min(all.Failures+failed, limit)
		all.Ignored, all.Slow = min(all.Ignored+ignored, limit), min(all.Slow+slow, limit)
		if failed > 0 {
			last = c.Age
		}
		args = append(args, micros(c.Age), ok, failed, ignored, slow)
	}
	if all == (breaker.StoreSlice{}) {
		return all, 0, nil
	}
	return all, last, args
}
