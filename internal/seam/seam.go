// Package seam hands functions of the root package to the packages of this module that wrap circuits, breakerhttp and
// pool, without making them part of the public API.
//
// It cannot name the root package's types, since the root imports it. So each variable is an any that holds a function
// of the type in its comment, set once, when the root package is initialized. Whoever needs one asserts it once, in a
// variable of its package; the root is initialized before that. A call then costs no more than any function variable's,
// and boxes nothing: for that reason the state of retries goes in and out by value, since an argument's address would move it
// to the heap.
//
// Of groups and breakers there are functions for the type argument struct{}, the one that such wrappers use.
package seam

// Two-step use: Circuit.AcquireInto, then Done or Settle when the call has ended, later than the function that made it returns.
var (
	// Admitted tells what a Permit was acquired with; nothing for a zero Permit.
	Admitted any // func(*breaker.Permit) (*breaker.Circuit, context.Context)

	// Fast reports whether a call was admitted on the fast path: it is no probe, and nobody asks how long it takes.
	Fast any // func(*breaker.Permit) bool

	// SettleExcluding is Permit.Settle for a call of whose time, since it was admitted, excluded was not the dependency's:
	// it counts neither for slow calls nor in CallEvent.Duration.
	SettleExcluding any // func(p *breaker.Permit, o breaker.Outcome, cause error, excluded time.Duration)

	// Undisturbed reports whether a call would be admitted without asking the machine. If not, Circuit.Refusal says
	// whether it would be admitted at all.
	Undisturbed any // func(*breaker.Circuit) bool

	// Decided is what comes before every classifier: an error after the caller's own cancel is Ignored, then WithFailOn
	// and WithIgnore decide. decided is false where the classifier would be asked, and for a nil error.
	Decided any // func(c *breaker.Circuit, ctx context.Context, err error) (o breaker.Outcome, decided bool)

	// Rescued counts a rescue that helped (Err is nil), and tells the Rescue hooks of any. The circuit fills in its name.
	Rescued any // func(*breaker.Circuit, context.Context, breaker.RescueEvent)

	// ReportStoreError tells the StoreError hooks of something behind the circuit that failed, and that no caller may
	// suffer from.
	ReportStoreError any // func(*breaker.Circuit, error)

	// Rejection tells whether an error is a circuit's or limiter's refusal to call: one in which nothing has run. Of joined
	// errors each must be one.
	Rejection any // func(err error) bool
)

// Options that two-step use would pass over: WithResult, WithRetry and fallbacks, and a classifier where the wrapper does
// not ask Circuit.Classify. where is the name of what takes the options.
var (
	// CheckTwoStep reports them. What NewGroup would refuse is NewGroup's to report.
	CheckTwoStep any // func(where string, classifies bool, opts ...breaker.Option) error

	// TwoStep is an option of NewGroup for circuits that are called in two steps and do not classify: those options are
	// then errors, in NewGroup and in what PerKey returns.
	TwoStep any // func(where string) breaker.Option
)

// Groups and breakers.
var (
	// Timeout is the limit that WithTimeout sets for an attempt; 0 = none.
	Timeout any // func(*breaker.Breaker[struct{}]) time.Duration

	// GroupTimeout is Timeout for a key of a group. It makes no circuit; without one, PerKey's function is asked.
	GroupTimeout any // func(g *breaker.Group[struct{}], key string) time.Duration

	// Bypass is a circuit for a call that passes the one of its key by. It has the key's name and the group's hooks, clock
	// and lists of errors, but is not in the group, shares nothing, rejects nothing, and never opens.
	Bypass any // func(g *breaker.Group[struct{}], key string) *breaker.Circuit

	// Evictions is how many circuits a group has evicted so far. For as long as the number stays, what Get has returned
	// for a key that the group keeps is what it would return again.
	Evictions any // func(*breaker.Group[struct{}]) uint64

	// Clock is the clock that was given to a group; nil where its circuits go by the time package.
	Clock any // func(*breaker.Group[struct{}]) breaker.Clock
)

// Retries of a call whose attempts the wrapper makes: the loop inside WithRetry, driven from outside. The circuit's clock
// and jitter serve, and its hooks and totals are told; with a nil circuit the policy's own serve, and nobody is told.
var (
	// RetryBegin starts a call, before its first attempt. What it returns is for RetryNext.
	RetryBegin any // func(breaker.RetryPolicy, *breaker.Circuit) (began int64)

	// RetryRan notes that the n-th attempt was made: the first, which earns retries where there is a budget, or one that
	// RetryNext announced. An attempt that the circuit rejected was not made.
	RetryRan any // func(p breaker.RetryPolicy, c *breaker.Circuit, n int)

	// RetryNext is called after the n-th attempt counted as Failure, with its error. It waits and returns true if there
	// is to be another attempt, which must pass the circuit again. Otherwise because says why not, where the caller of
	// the call should know: the circuit has opened, the wait would not end before ctx's deadline, or ctx ended during it.
	RetryNext any // func(ctx context.Context, p breaker.RetryPolicy, c *breaker.Circuit, began int64, n int, err error) (again bool, because error)

	// RetryError is what to return for a call whose last of n attempts ended with err and whose retries ended because of
	// because; a *breaker.RetryError after more than one attempt. Either may be nil.
	RetryError any // func(n int, err, because error) error
)
