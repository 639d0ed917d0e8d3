package breakertest

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	ErrBoom   = errors.New("boom")                 // a failure of the dependency
	ErrClient = errors.New("the client was wrong") // an error that is the caller's own
)

// Hint is an error of a dependency that says when to come back.
type Hint time.Duration

func (h Hint) Error() string             { return "come back in " + time.Duration(h).String() }
func (h Hint) RetryAfter() time.Duration { return time.Duration(h) }

// Patience is how long a test may take in real time before it is taken to be stuck.
const Patience = 2 * time.Minute

// Guard runs f and fails the test if f has not returned after d: a wedge shows as a failure with stacks, and the other
// tests run on.
func Guard(t *testing.T, d time.Duration, f func()) {
	t.Helper()
	returned := false
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if v := recover(); v != nil { // a bubble whose goroutines wait for ever, for one
				t.Errorf("panic: %v\n%s", v, debug.Stack())
			}
		}()
		f()
		returned = true
	}()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		switch {
		case returned:
		case t.Failed():
			t.FailNow()
		case t.Skipped():
			t.SkipNow()
		default:
			t.Fatal("the test's own goroutine was ended")
		}
	case <-timer.C:
		stacks := make([]byte, 1<<20)
		t.Fatalf("stuck: not done after %v\n%s", d, stacks[:runtime.Stack(stacks, true)])
	}
}

// InBubble counts the goroutines of the caller's bubble, once nothing moves in it. Those outside, such as the runtime's own
// that clean up after the tests before, come and go.
func InBubble() int {
	synctest.Wait()
	stacks := make([]byte, 1<<20)
	text := string(stacks[:runtime.Stack(stacks, true)])
	own, _, _ := strings.Cut(text, ":\n")
	_, bubble, ok := strings.Cut(own, ", synctest bubble ")
	if !ok {
		panic("not in a bubble: " + own)
	}
	bubble, _, _ = strings.Cut(bubble, "]")
	n := 0
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "goroutine ") && strings.Contains(line, ", synctest bubble "+bubble+"]") {
			n++
		}
	}
	return n
}

// NoMoreThan waits until there are no more goroutines than before: those of tests before, and the runtime's that clean up
// after them, come and go.
func NoMoreThan(t require.TestingT, before int) {
	for range 1_000_000 { // not for some time: in a bubble that does not pass
		if runtime.NumGoroutine() <= before {
			return
		}
		runtime.Gosched()
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), before)
}

// InGoroutine runs f in a goroutine of its own and reports how it ended: by a panic with what value, or otherwise.
func InGoroutine(f func()) (panicked any) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { panicked = recover() }()
		f()
	}()
	<-done
	return panicked
}

// PanicOf runs f and returns the value that it panicked with.
func PanicOf(f func()) (v any) {
	defer func() { v = recover() }()
	f()
	return nil
}

// Status is an error that carries an HTTP status.
type Status int

func (s Status) Error() string { return fmt.Sprint("status ", int(s)) }

// Seconds turns seconds into durations.
func Seconds(s ...float64) []time.Duration {
	var all []time.Duration
	for _, one := range s {
		all = append(all, time.Duration(one*float64(time.Second)))
	}
	return all
}
