package breaker_test

import (
	"errors"
	"runtime"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"

	"github.com/breakerkit/breaker"
)

var (
	errDown  = errors.New("the dependency is down")
	errOther = errors.New("another error")

	// farAway keeps a circuit closed in a test about something else.
	farAway = breaker.WithFailureThreshold(1 << 30)
)

// A stage is a bubble's time for one test.
type stage struct {
	*testing.T
	began time.Time
}

// scene runs f in a bubble of its own. One that gets stuck fails with stacks instead of holding up the other tests.
func scene(t *testing.T, f func(*stage)) {
	t.Helper()
	done, returned := make(chan struct{}), false
	go func() {
		defer close(done)
		defer func() {
			if v := recover(); v != nil { // such as goroutines of the bubble that wait for ever
				t.Errorf("panic: %v\n%s", v, debug.Stack())
			}
		}()
		synctest.Test(t, func(t *testing.T) { f(&stage{t, time.Now()}) })
		returned = true
	}()
	select {
	case <-done:
		if !returned {
			t.FailNow()
		}
	case <-time.After(2 * time.Minute):
		stacks := make([]byte, 1<<20)
		t.Fatalf("stuck\n%s", stacks[:runtime.Stack(stacks, true)])
	}
}

func (s *stage) elapsed() time.Duration { return time.Since(s.began) }

// at lets time pass until d after the beginning.
func (s *stage) at(d time.Duration) {
	<-time.After(d - s.elapsed())
	synctest.Wait()
}

// recovered runs f and returns what it panicked with.
func recovered(f func()) (v any) {
	defer func() { v = recover() }()
	f()
	return nil
}
