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

// Store is a [breaker.Store] on Redis. It must be made by [New]. It is safe for concurrent use. It keeps nothing about a
// circuit in memory.
type Store struct {
	client  redis.UniversalClient
	prefix  string
	channel string
	mirror  bool
	timeout time.Duration

	closing context.Context // ends with Close
	cancel  context.CancelFunc

	mu            sync.Mutex
	closed        bool
	running       sync.WaitGroup // operations and the listener
	watches       []*watch       // a new slice at every change, so that it may be read after the lock is released
	stopListening func()         // ends the listener's goroutine
}

var _ breaker.Store = (*Store)(nil)

// New makes a Store on a client of a single server, of one behind sentinels, or of a cluster. It makes no connection: a
// server that is down makes operations fail, not New. The client stays the caller's, who closes it after the Store.
//
// A nil client, an option out of range, and a client that retries or ignores deadlines are errors; see [UncheckedClient].
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
	s.closing, s.cancel = context.WithCancel(context.Background())
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
	return s.doOne(ctx, s.call(moveScript, m.Name, encodeShape(m.Shape),
		epoch(m.From), min(m.Run, limit), m.To.String(), micros(m.For), m.Openings))
}

// Acquire takes probe slots. See [breaker.Store].
func (s *Store) Acquire(ctx context.Context, a breaker.StoreAcquire) (breaker.Ledger, error) {
	c := s.call(acquireScript, a.Name, encodeShape(a.Shape), epoch(a.Epoch), micros(a.Lease), max(a.Limit, 0), a.Openings)
	for _, token := range a.Tokens {
		c.args = append(c.args, token)
	}
	return s.doOne(ctx, c)
}

// Settle ends a probe. See [breaker.Store].
func (s *Store) Settle(ctx context.Context, v breaker.StoreVerdict) (breaker.Ledger, error) {
	return s.doOne(ctx, s.call(settleScript, v.Name, encodeShape(v.Shape),
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

// call returns the call of a script on a circuit; the zero call if there is no name.
func (s *Store) call(sc *script, name, shape string, args ...any) call {
	if name == "" {
		return call{}
	}
	return call{sc, s.keysOf(name), append([]any{s.channel, name, shape}, args...)}
}

func (s *Store) doOne(ctx context.Context, c call) (breaker.Ledger, error) {
	r := s.do(ctx, []call{c})[0]
	return r.Ledger, r.Err
}

// do carries out calls, and returns when that is done, when the time limit has passed or when ctx ends, whatever the client
// does meanwhile.
func (s *Store) do(ctx context.Context, calls []call) []breaker.StoreReply {
	if err := s.begin(ctx); err != nil {
		return failedReplies(len(calls), err)
	}
	replies, err := withTimeout(ctx, s.timeout, func(ctx context.Context) []breaker.StoreReply {
		defer s.running.Done()
		return s.pipeline(ctx, calls)
	})
	switch {
	case err == nil:
		return replies
	case ctx.Err() != nil:
		return failedReplies(len(calls), ctx.Err())
	}
	return failedReplies(len(calls), fmt.Errorf("storeredis: %w", err))
}

// begin counts an operation that begins; running.Done ends it. It fails if the Store is closed or ctx has ended.
func (s *Store) begin(ctx context.Context) error {
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

func failedReplies(n int, err error) []breaker.StoreReply {
	replies := make([]breaker.StoreReply, n)
	for i := range replies {
		replies[i].Err = err
	}
	return replies
}

// epoch returns an epoch as the scripts can take it. Those above the limit were given by no Store; one number stands for
// all of them.
func epoch(e uint64) uint64 { return min(e, limit) }

// encodeShape returns a shape in the form in which it is kept.
func encodeShape(s breaker.StoreShape) string {
	const mostReporters, mostFailures = 1000, 1e6 // a larger number is taken for this
	b := make([]byte, 0, 48)
	b = strconv.AppendInt(b, micros(s.Window), 10)
	b = append(b, ':')
	b = strconv.AppendInt(b, int64(min(max(s.Failures, 0), mostFailures)), 10)
	b = append(b, ':')
	b = strconv.AppendInt(b, int64(min(max(s.Reporters, 0), mostReporters)), 10)
	b = append(b, ':')
	return string(append(b, s.Config...))
}

// report returns the call for a report. Numbers of a batch that contradict each other are corrected here, not in the
// script.
func (s *Store) report(r *breaker.StoreReport) call {
	b := &r.Batch
	all, last, slices := flatten(b.Slices)
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
	c := s.call(reportScript, r.Name, encodeShape(r.Shape), epoch(r.Epoch), r.Node,
		head, tail, longest, trailing, micros(last), len(slices)/5)
	c.args = append(c.args, slices...)
	for _, age := range ages {
		c.args = append(c.args, micros(age))
	}
	return c
}

// flatten returns the sums of slices, the age of the last one that has a failure, and the arguments that tell the script of
// the slices; none if all counts are 0.
func flatten(slices []breaker.StoreSlice) (all breaker.StoreSlice, last time.Duration, args []any) {
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
