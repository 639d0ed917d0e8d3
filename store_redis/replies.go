package storeredis

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/breakerkit/breaker"
	"github.com/redis/go-redis/v9"
)

// ErrCorrupt is what an operation returns when it found something in place of a circuit's ledger that it could not read: a
// key of another type, fields that no version of this package has written, or an epoch more than a day ahead of the server's
// clock, which may have been set back. It has removed it, so that this is told once. The circuits then bring the ledger back
// from what they were last given. It is a [breaker.ErrLedger].
var ErrCorrupt = fmt.Errorf("storeredis: %w, and was removed", breaker.ErrLedger)

const (
	viewNumbers  = 18 // numbers in the view of a ledger
	replyNumbers = 23 // those, and the ones that say what the operation has done
	limit        = 1 << 53
)

// ledgerOf returns the ledger in the reply of a script.
func ledgerOf(reply any, err error) (breaker.Ledger, error) {
	switch {
	case err == nil:
	case redis.HasErrorPrefix(err, "CORRUPT"):
		return breaker.Ledger{}, ErrCorrupt
	default:
		return breaker.Ledger{}, fmt.Errorf("storeredis: %w", clientError(err))
	}
	list, _ := reply.([]any)
	n := make([]int64, len(list))
	for i, v := range list {
		n[i], _ = v.(int64)
	}
	l, ok := parseLedger(n)
	if !ok || len(n) < replyNumbers {
		return breaker.Ledger{}, fmt.Errorf("storeredis: %w: %.100q", breaker.ErrLedger, fmt.Sprint(reply))
	}
	l.Peak, l.Foreign, l.Applied = uint64(n[18]), n[19] != 0, n[20] != 0
	l.Granted, l.RetryAfter = int(n[21]), micro(n[22])
	return l, nil
}

// clientError returns an error of the client. That of a connection which took too long becomes a context.DeadlineExceeded
// too.
func clientError(err error) error {
	if isTimeout(err) && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	return err
}

// parseLedger returns the view of a ledger, from the first viewNumbers numbers. There may be more, of a later version.
func parseLedger(n []int64) (l breaker.Ledger, ok bool) {
	if len(n) < viewNumbers {
		return l, false
	}
	for _, v := range n {
		if v < 0 || v > limit {
			return l, false
		}
	}
	if n[1] == limit || n[2] > int64(breaker.Open) || n[8] == 0 || max(n[5], n[6]) > math.MaxUint32 {
		return l, false
	}
	return breaker.Ledger{
		Clock: uint64(n[0]), Epoch: uint64(n[1]), State: breaker.State(n[2]), Age: micro(n[3]), Remaining: micro(n[4]),
		Openings: uint32(n[5]), Progress: uint32(n[6]), Slots: int(n[7]), Run: uint64(n[8]),
		Counts: breaker.Counts{
			Successes: uint64(n[9]), Failures: uint64(n[10]), Ignored: uint64(n[11]), Slow: uint64(n[12]),
			ConsecutiveFailures: uint64(n[13]), ConsecutiveSuccesses: uint64(n[14]),
		},
		Recent: uint64(n[15]), RecentRun: uint64(n[16]), Reporters: int(n[17]),
	}, true
}

// parseEvent returns what is published: the numbers of a view, a bar, and the name.
func parseEvent(text string) (name string, l breaker.Ledger, ok bool) {
	numbers, name, found := strings.Cut(text, "|")
	if !found || name == "" || len(numbers) > 1000 {
		return "", l, false
	}
	fields := strings.Split(numbers, " ")
	n := make([]int64, len(fields))
	for i, f := range fields {
		v, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return "", l, false
		}
		n[i] = v
	}
	l, ok = parseLedger(n)
	return name, l, ok
}

// longest is the longest duration; any longer one is taken for it. In microseconds, sums with it stay exact in a script.
const longest = 10 * 365 * 24 * time.Hour

// micro turns microseconds into a duration.
func micro(n int64) time.Duration {
	return time.Duration(min(n, int64(longest/time.Microsecond))) * time.Microsecond
}

// micros turns a duration into microseconds, rounded up; a negative one is 0.
func micros(d time.Duration) int64 {
	d = min(max(d, 0), longest)
	return int64((d + time.Microsecond - 1) / time.Microsecond)
}
