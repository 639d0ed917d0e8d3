package pool

import (
	"time"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/seam"
)

// What the root package gives to its own wrappers only; the package seam says what each function is for.
var (
	checkTwoStep = seam.CheckTwoStep.(func(string, bool, ...breaker.Option) error)
	timeoutOf    = seam.Timeout.(func(*breaker.Breaker[struct{}]) time.Duration)
	clockOf      = seam.Clock.(func(*breaker.Group[struct{}]) breaker.Clock)
	rejection    = seam.Rejection.(func(error) bool)
)
