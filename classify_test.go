package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/breakertest"
)

// BC-63, BC-66, K18.
func TestCallerWhoWalksAwayIsNoFailure(t *testing.T) {
	ends := map[string]func(context.Context) error{
		"the context's error": func(ctx context.Context) error { return ctx.Err() },
		"wrapped":             func(ctx context.Context) error { return fmt.Errorf("query: %w", ctx.Err()) },
		"its cause":           context.Cause,
		"any other error":     func(context.Context) error { return breakertest.ErrBoom },
		"a deadline's":        func(context.Context) error { return context.DeadlineExceeded },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			breakertest.Everywhere(t, func(w *breakertest.World) {
				r := w.R0()
				r.Fails(2)
				for range 10 {
					ctx, cancel := context.WithCancelCause(w.Context())
					_, err := r.Way.Call(r, ctx, func(ctx context.Context) (int, error) {
						cancel(errors.New("gone"))
						return 0, end(ctx)
					})
					require.Error(w, err)
				}
				r.Is(breaker.Closed)
				s := r.C.Snapshot()
				require.EqualValues(w, 2, s.ConsecutiveFailures)
				require.EqualValues(w, 10, s.Totals.Ignored)
				r.Fails(1)
				r.Is(breaker.Open)
			})
		})
	}
	t.Run("an answer that came all the same counts", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.R0()
			r.Fails(2)
			ctx, cancel := context.WithCancel(w.Context())
			_, err := r.Way.Call(r, ctx, func(context.Context) (int, error) { cancel(); return 1, nil })
			require.NoError(w, err)
			require.Zero(w, r.C.Snapshot().ConsecutiveFailures)
			r.Fails(2)
			r.Is(breaker.Closed)
		})
	})
	t.Run("WithFailOn does not change it", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.R0(breaker.WithFailOn(context.Canceled, breakertest.ErrBoom))
			for range 5 {
				ctx, cancel := context.WithCancel(w.Context())
				_, _ = r.Way.Call(r, ctx, func(ctx context.Context) (int, error) { cancel(); return 0, ctx.Err() })
			}
			r.Is(breaker.Closed)
		})
	})
	t.Run("as a probe it hands its slot back", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.R0()
			r.Trip()
			w.At(10 * time.Second)
			for range 5 {
				ctx, cancel := context.WithCancel(w.Context())
				g := r.GateContext(ctx)
				cancel()
				g.Finish(ctx.Err())
				r.Is(breaker.HalfOpen)
				r.Idle()
			}
			r.Succeeds(1)
			r.Is(breaker.Closed)
		})
	})
}

// BC-64.
func TestDependencysOwnTimeoutCounts(t *testing.T) {
	children := map[string]func(context.Context) error{
		"deadline": func(ctx context.Context) error {
			ctx, cancel := context.WithDeadline(ctx, time.Unix(0, 0))
			defer cancel()
			return ctx.Err()
		},
		"cancel by the client library": func(ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return ctx.Err()
		},
		"wrapped": func(context.Context) error { return fmt.Errorf("client: %w", context.Canceled) },
	}
	for name, child := range children {
		t.Run(name, func(t *testing.T) {
			breakertest.Everywhere(t, func(w *breakertest.World) {
				r := w.R0()
				for range 3 {
					r.Is(breaker.Closed)
					_, err := r.Way.Call(r, w.Context(), func(ctx context.Context) (int, error) { return 0, child(ctx) })
					require.Error(w, err)
				}
				r.Is(breaker.Open)
			})
		})
	}
	t.Run("the attempt's own timeout", func(t *testing.T) {
		for name, opts := range map[string][]breaker.Option{"": nil, " with IgnoreCallerDeadline": {breaker.IgnoreCallerDeadline()}} {
			t.Run("set by WithTimeout"+name, func(t *testing.T) {
				breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
					r := w.R0(append(opts, breaker.WithTimeout(time.Second))...)
					for i := range 3 {
						r.Is(breaker.Closed)
						_, err := r.B.Do(w.Context(), hang)
						require.ErrorIs(w, err, context.DeadlineExceeded)
						require.Equal(w, time.Duration(i+1)*time.Second, w.Elapsed())
					}
					r.Is(breaker.Open)
				})
			})
		}
	})
	t.Run("an attempt that overran is a failure whatever it returned", func(t *testing.T) {
		breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
			r := w.R0(breaker.WithTimeout(time.Second), breaker.WithIgnore(breakertest.ErrClient))
			for i, err := range []error{nil, breakertest.ErrClient, breakertest.ErrBoom} {
				v, got := r.B.Do(w.Context(), func(context.Context) (int, error) {
					<-time.After(time.Second)
					return i, err
				})
				require.Equal(w, i, v, "the value is the answer")
				require.Equal(w, err, got)
			}
			r.Is(breaker.Open)
			require.EqualValues(w, 3, r.C.Snapshot().Totals.Failures)
		})
	})
}

// BC-67, K18.
func TestCallersOwnDeadline(t *testing.T) {
	for _, tc := range []struct {
		name           string
		opts           []breaker.Option
		limit, takes   time.Duration
		cancel         bool
		want           breaker.State
		wantErr        error
		ignoresContext bool
	}{
		{name: "counts", limit: 200 * time.Millisecond, want: breaker.Open, wantErr: context.DeadlineExceeded},
		{name: "counts however short it is", limit: time.Millisecond, want: breaker.Open, wantErr: context.DeadlineExceeded},
		{name: "does not with IgnoreCallerDeadline", opts: []breaker.Option{breaker.IgnoreCallerDeadline()}, limit: time.Millisecond, want: breaker.Closed, wantErr: context.DeadlineExceeded},
		{name: "a cancel before it stays neutral", limit: 200 * time.Millisecond, cancel: true, want: breaker.Closed, wantErr: context.Canceled},
		{name: "counts under an attempt's longer timeout", opts: []breaker.Option{breaker.WithTimeout(time.Minute)}, limit: time.Second, want: breaker.Open, wantErr: context.DeadlineExceeded},
		{name: "an attempt's shorter timeout counts, whatever the deadline's meaning", opts: []breaker.Option{breaker.WithTimeout(time.Second), breaker.IgnoreCallerDeadline()}, limit: time.Minute, want: breaker.Open, wantErr: context.DeadlineExceeded},
		{name: "does not under an attempt's longer timeout with IgnoreCallerDeadline", opts: []breaker.Option{breaker.WithTimeout(time.Minute), breaker.IgnoreCallerDeadline()}, limit: time.Second, want: breaker.Closed, wantErr: context.DeadlineExceeded},
	} {
		t.Run(tc.name, func(t *testing.T) {
			breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
				r := w.R0(tc.opts...)
				for range 3 {
					r.Is(breaker.Closed)
					ctx, cancel := context.WithTimeout(context.Background(), tc.limit)
					if tc.cancel {
						time.AfterFunc(10*time.Millisecond, cancel)
					}
					_, err := r.B.Do(ctx, hang)
					cancel()
					require.ErrorIs(w, err, tc.wantErr)
				}
				r.Is(tc.want)
				r.Idle()
			})
		})
	}
	t.Run("with a cause of its own", func(t *testing.T) {
		breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
			r := w.R0()
			for range 3 {
				ctx, cancel := context.WithTimeoutCause(context.Background(), time.Second, breakertest.ErrClient)
				_, err := r.B.Do(ctx, func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, context.Cause(ctx) })
				cancel()
				require.Equal(w, breakertest.ErrClient, err)
			}
			r.Is(breaker.Open)
		})
	})
	t.Run("met by a function that ignores its context", func(t *testing.T) {
		breakertest.Bubble(t, breakertest.ByDo, func(w *breakertest.World) {
			r := w.R0()
			stuck := make(chan struct{})
			defer close(stuck)
			for range 3 {
				_, err := r.B.Do(context.Background(), breaker.Detach(time.Second, func(context.Context) (int, error) {
					<-stuck
					return 0, nil
				}))
				require.ErrorIs(w, err, context.DeadlineExceeded)
			}
			r.Is(breaker.Open)
			r.Idle()
		})
	})
}

// BC-69.
func TestClientErrorIsNeitherFailureNorForgiveness(t *testing.T) {
	breakertest.Everywhere(t, func(w *breakertest.World) {
		if w.Way.Name == breakertest.ByPolicy.Name {
			return // has a WithResult of its own; WithIgnore decides before it, which the test of WithResult covers
		}
		ignore := breaker.WithIgnore(breakertest.ErrClient)

		a := w.R0(ignore)
		a.Fails(2)
		a.FailsWith(breakertest.ErrClient)
		a.Fails(1)
		a.Is(breaker.Open)

		b := w.R0(ignore, breaker.WithSuccessThreshold(2))
		b.Trip()
		w.Add(10 * time.Second)
		for range 5 { // more than there are slots
			b.FailsWith(breakertest.ErrClient)
			b.Is(breaker.HalfOpen) // the slot is back, there is no verdict
			b.Idle()
		}
		b.Succeeds(1)
		b.FailsWith(breakertest.ErrClient) // the success before stays
		b.Succeeds(1)
		b.Is(breaker.Closed)

		c := w.R0(ignore)
		for _, err := range []error{breakertest.ErrBoom, breakertest.ErrClient, breakertest.ErrBoom, breakertest.ErrClient} {
			c.FailsWith(err)
			c.Is(breaker.Closed)
		}
		c.Fails(1)
		c.Is(breaker.Open)

		d := w.R0(ignore)
		for range 1000 {
			d.FailsWith(breakertest.ErrClient)
		}
		d.Is(breaker.Closed)
	})
	t.Run("in windows", func(t *testing.T) {
		breakertest.BothClocks(t, func(w *breakertest.World) {
			for _, window := range []breaker.Window{breaker.LastCalls(10), breaker.Last(time.Minute)} {
				r := w.R0(breaker.WithIgnore(breakertest.ErrClient), breaker.WithTrip(breaker.FailureRate(0.5, 10, window)))
				for range 5 {
					r.Succeeds(1)
					for range 20 { // takes no place in the window
						r.FailsWith(breakertest.ErrClient)
					}
				}
				r.Fails(4)
				r.Is(breaker.Closed)
				r.FailsWith(breakertest.ErrClient)
				r.Is(breaker.Closed)
				r.Fails(1)
				r.Is(breaker.Open)
			}
		})
	})
}

type reply struct{ code int }

// BC-72.
func TestBadValueCanBeAFailure(t *testing.T) {
	breakertest.BothClocks(t, func(w *breakertest.World) {
		asked := 0
		classify := func(v *reply, err error) breaker.Outcome {
			asked++
			switch {
			case err != nil || v != nil && v.code >= 500:
				return breaker.Failure
			case v != nil && v.code >= 400:
				return breaker.Ignored
			}
			return breaker.Success
		}
		var calls []breaker.CallEvent
		r := w.R0(breaker.WithIgnore(breakertest.ErrClient), breaker.WithHooks(breaker.Hooks{
			Call: func(_ context.Context, c breaker.CallEvent) { calls = append(calls, c) },
		}))
		b := breaker.Must(breaker.Over[*reply](r.C, breaker.WithResult(classify)))
		do := func(v *reply, err error) (*reply, error) {
			return b.Do(w.Context(), func(context.Context) (*reply, error) { return v, err })
		}
		v, err := do(nil, nil)
		require.NoError(w, err)
		require.Nil(w, v)
		bad := &reply{503}
		for i := range 3 {
			require.Equal(w, i, int(r.C.Snapshot().ConsecutiveFailures))
			v, err := do(bad, nil)
			require.NoError(w, err)
			require.Same(w, bad, v)
			require.ErrorIs(w, calls[len(calls)-1].Err, breaker.ErrUnacceptable)
			require.Equal(w, breaker.Failure, calls[len(calls)-1].Outcome)
		}
		r.Is(breaker.Open)
		require.Equal(w, 4, asked, "once about each call")
		_, err = do(bad, nil)
		var open *breaker.OpenError
		require.ErrorAs(w, err, &open)
		require.ErrorIs(w, open.Cause, breaker.ErrUnacceptable)
		require.Equal(w, 4, asked, "never about a rejection")

		r.C.Reset()
		for range 5 {
			_, _ = do(&reply{404}, nil)
			_, _ = do(nil, breakertest.ErrClient) // WithIgnore decides first
		}
		require.Equal(w, 9, asked)
		require.EqualValues(w, 10, r.C.Snapshot().Counts.Ignored)
		_, err = do(&reply{200}, breakertest.ErrBoom)
		require.ErrorIs(w, err, breakertest.ErrBoom)
		require.Equal(w, breaker.Failure, calls[len(calls)-1].Outcome)
	})
	t.Run("an alternative is asked, with a reason", func(t *testing.T) {
		breakertest.BothClocks(t, func(w *breakertest.World) {
			r := w.R0()
			b := breaker.Must(breaker.Over[*reply](r.C, breaker.WithResult(func(v *reply, _ error) breaker.Outcome {
				if v.code >= 500 {
					return breaker.Failure
				}
				return breaker.Success
			})))
			good := &reply{200}
			v, err := b.DoOr(w.Context(), func(context.Context) (*reply, error) { return &reply{503}, nil }, func(_ context.Context, why error) (*reply, error) {
				require.ErrorIs(w, why, breaker.ErrUnacceptable)
				return good, nil
			})
			require.NoError(w, err)
			require.Same(w, good, v)
		})
	})
	t.Run("a wrong type is refused", func(t *testing.T) {
		_, err := breaker.New[int]("test", breaker.WithResult(func(string, error) breaker.Outcome { return breaker.Success }))
		require.ErrorContains(t, err, "int")
		require.ErrorContains(t, err, "string")
		_, err = breaker.Over[int](breaker.Must(breaker.NewCircuit("test")), breaker.WithResult(func(string, error) breaker.Outcome { return breaker.Success }))
		require.Error(t, err)
	})
	t.Run("it panics", func(t *testing.T) {
		breakertest.BothClocks(t, func(w *breakertest.World) {
			r := w.R0()
			b := breaker.Must(breaker.Over[int](r.C, breaker.WithResult(func(int, error) breaker.Outcome { panic("classify") })))
			for range 3 {
				r.Is(breaker.Closed)
				require.Equal(w, "classify", breakertest.PanicOf(func() {
					_, _ = b.Do(w.Context(), func(context.Context) (int, error) { return 1, nil })
				}))
			}
			r.Is(breaker.Open)
			r.Idle()
		})
	})
}

// BC-74.
func TestClassifyingDoesNotReplace(t *testing.T) {
	breakertest.BothClocks(t, func(w *breakertest.World) {
		for _, opt := range []breaker.Option{
			breaker.WithIgnore(breakertest.ErrClient),
			breaker.WithClassifier(func(error) breaker.Outcome { return breaker.Ignored }),
			breaker.WithClassifier(func(error) breaker.Outcome { return breaker.Success }),
			breaker.WithFailOn(breakertest.ErrClient),
		} {
			r := w.R0(opt)
			fn := func(context.Context) (int, error) { return 9, breakertest.ErrClient }
			v, err := r.B.Do(w.Context(), fn)
			require.Equal(w, 9, v)
			require.Same(w, breakertest.ErrClient, err)
			require.Same(w, breakertest.ErrClient, r.C.Run(w.Context(), func(context.Context) error { return breakertest.ErrClient }))
		}
	})
	t.Run("no alternative for what is not a failure", func(t *testing.T) {
		breakertest.BothClocks(t, func(w *breakertest.World) {
			for _, o := range []breaker.Outcome{breaker.Ignored, breaker.Success} {
				r := w.R0(breaker.WithClassifier(func(error) breaker.Outcome { return o }))
				v, err := r.B.DoOr(w.Context(), func(context.Context) (int, error) { return 9, breakertest.ErrClient },
					w.NoAlternative)
				require.Equal(w, 9, v)
				require.Same(w, breakertest.ErrClient, err)
			}
		})
	})
}

// K16, K18.
func TestWhichErrorsCountIsAPredicate(t *testing.T) {
	errX, errY := errors.New("x"), errors.New("y")
	onlyX := func(err error) breaker.Outcome {
		if errors.Is(err, errX) {
			return breaker.Failure
		}
		return breaker.Ignored
	}
	for name, opts := range map[string][]breaker.Option{
		"WithClassifier":                {breaker.WithClassifier(onlyX)},
		"WithIgnore":                    {breaker.WithIgnore(errY)},
		"WithIgnore twice":              {breaker.WithIgnore(errY), breaker.WithIgnore(breakertest.ErrClient)},
		"WithFailOn beats WithIgnore":   {breaker.WithFailOn(errX), breaker.WithIgnore(errX, errY)},
		"WithFailOn beats a classifier": {breaker.WithFailOn(errX), breaker.WithClassifier(func(error) breaker.Outcome { return breaker.Ignored })},
	} {
		t.Run(name, func(t *testing.T) {
			breakertest.BothClocks(t, func(w *breakertest.World) {
				r := w.Circuit(opts...)
				for range 10 {
					r.FailsWith(errY)
				}
				r.Is(breaker.Closed)
				for range 4 {
					r.FailsWith(fmt.Errorf("wrapped: %w", errX))
				}
				r.Is(breaker.Closed)
				r.FailsWith(errX)
				r.Is(breaker.Open)
			})
		})
	}
	t.Run("every error counts by default", func(t *testing.T) {
		breakertest.Everywhere(t, func(w *breakertest.World) {
			r := w.Circuit()
			for _, err := range []error{breakertest.ErrBoom, breakertest.ErrClient, context.DeadlineExceeded, fmt.Errorf("wrapped: %w", context.DeadlineExceeded), errX} {
				r.Is(breaker.Closed)
				r.FailsWith(err)
			}
			r.Is(breaker.Open)
		})
	})
	t.Run("a classifier may call an error a success", func(t *testing.T) {
		breakertest.BothClocks(t, func(w *breakertest.World) {
			r := w.Circuit(breaker.WithClassifier(func(err error) breaker.Outcome {
				if errors.Is(err, errY) {
					return breaker.Success
				}
				return breaker.Failure
			}))
			r.Fails(4)
			r.FailsWith(errY)
			r.Fails(4)
			r.Is(breaker.Closed)
		})
	})
}

// K19.
func TestValueAndErrorComeOutAsTheyWere(t *testing.T) {
	errA := errors.New("a")
	type answer struct{ n int }
	breakertest.BothClocks(t, func(w *breakertest.World) {
		r := w.Circuit()
		v, err := r.B.Do(w.Context(), func(context.Context) (int, error) { return 7, errA })
		require.Equal(w, 7, v)
		require.Same(w, errA, err)
		result := r.B.Try(w.Context(), func(context.Context) (int, error) { return 7, errA })
		require.Equal(w, breaker.Result[int]{Value: 7, Err: errA, Attempts: 1}, result)

		pointers := breaker.Must(breaker.Over[*answer](r.C))
		seven := &answer{7}
		p, err := pointers.Do(w.Context(), func(context.Context) (*answer, error) { return seven, nil })
		require.NoError(w, err)
		require.Same(w, seven, p)

		r.Trip()
		v, err = r.B.Do(w.Context(), func(context.Context) (int, error) { return 7, nil })
		require.Zero(w, v)
		require.ErrorIs(w, err, breaker.ErrOpen)
		p, err = pointers.Do(w.Context(), func(context.Context) (*answer, error) { return seven, nil })
		require.Nil(w, p)
		require.ErrorIs(w, err, breaker.ErrOpen)
	})
}

// An error to be ignored was not recognised once it was wrapped.
func TestWrappedErrorsAreRecognised(t *testing.T) {
	breakertest.BothClocks(t, func(w *breakertest.World) {
		r := w.R0(breaker.WithIgnore(breakertest.ErrClient))
		for _, err := range []error{
			breakertest.ErrClient,
			fmt.Errorf("get: %w", breakertest.ErrClient),
			fmt.Errorf("read: %w", fmt.Errorf("get: %w", breakertest.ErrClient)),
			errors.Join(errors.New("beside"), breakertest.ErrClient),
			fmt.Errorf("%w and %w", errors.New("beside"), breakertest.ErrClient),
		} {
			r.FailsWith(err)
		}
		require.EqualValues(w, 5, r.C.Snapshot().Totals.Ignored)
		require.Zero(w, r.C.Snapshot().Totals.Failures)

		f := w.R0(breaker.WithFailOn(breakertest.ErrClient), breaker.WithClassifier(func(error) breaker.Outcome { return breaker.Ignored }))
		for range 3 {
			f.FailsWith(fmt.Errorf("get: %w", breakertest.ErrClient))
		}
		f.Is(breaker.Open)
	})
}

// K17.
func TestIgnoredIsNeitherSuccessNorFailure(t *testing.T) {
	ignoring := breaker.WithIgnore(breakertest.ErrClient)
	breakertest.BothClocks(t, func(w *breakertest.World) {
		for _, way := range []breakertest.Way{breakertest.ByRun, breakertest.ByDo, breakertest.ByPermit} {
			w.Way = way
			r := w.Circuit(ignoring)
			w.Start = w.Now()
			r.Fails(4)
			r.FailsWith(breakertest.ErrClient)
			r.Is(breaker.Closed)
			r.Fails(1)
			r.Is(breaker.Open)

			w.At(30 * time.Second)
			for range 5 { // more than there are slots
				r.FailsWith(breakertest.ErrClient)
				r.Is(breaker.HalfOpen)
				require.Zero(w, r.C.Snapshot().Probes)
			}
			r.Succeeds(1)
			r.FailsWith(breakertest.ErrClient) // no verdict: the success before stays
			r.Succeeds(1)
			r.Is(breaker.Closed)
			require.EqualValues(w, 7, r.C.Snapshot().Totals.Ignored)
		}
	})
}
