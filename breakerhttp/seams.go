package breakerhttp

import (
	"context"
	"time"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/seam"
)

// What the root package gives to its own wrappers only; the package seam says what each function is for.
var (
	admitted         = seam.Admitted.(func(*breaker.Permit) (*breaker.Circuit, context.Context))
	fast             = seam.Fast.(func(*breaker.Permit) bool)
	settleExcluding  = seam.SettleExcluding.(func(*breaker.Permit, breaker.Outcome, error, time.Duration))
	undisturbed      = seam.Undisturbed.(func(*breaker.Circuit) bool)
	decided          = seam.Decided.(func(*breaker.Circuit, context.Context, error) (breaker.Outcome, bool))
	rescued          = seam.Rescued.(func(*breaker.Circuit, context.Context, breaker.RescueEvent))
	reportStoreError = seam.ReportStoreError.(func(*breaker.Circuit, error))
	rejection        = seam.Rejection.(func(error) bool)

	twoStep      = seam.TwoStep.(func(string) breaker.Option)
	timeoutOf    = seam.Timeout.(func(*breaker.Breaker[struct{}]) time.Duration)
	groupTimeout = seam.GroupTimeout.(func(*breaker.Group[struct{}], string) time.Duration)
	bypassOf     = seam.Bypass.(func(*breaker.Group[struct{}], string) *breaker.Circuit)
	evictionsOf  = seam.Evictions.(func(*breaker.Group[struct{}]) uint64)
	clockOf      = seam.Clock.(func(*breaker.Group[struct{}]) breaker.Clock)

	retryBegin = seam.RetryBegin.(func(breaker.RetryPolicy, *breaker.Circuit) int64)
	retryRan   = seam.RetryRan.(func(breaker.RetryPolicy, *breaker.Circuit, int))
	retryNext  = seam.RetryNext.(func(context.Context, breaker.RetryPolicy, *breaker.Circuit, int64, int, error) (bool, error))
	retryError = seam.RetryError.(func(int, error, error) error)
)
