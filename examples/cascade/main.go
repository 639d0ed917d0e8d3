// Cascade sends 5,000 users to a chatbot whose model has begun to hang: without a breaker, with a breaker alone, and with
// a breaker that also bounds the calls in flight and the time of each. It prints what the model, the chatbot and its users
// have to bear. Users are goroutines; time is the example's own, so that a minute passes at once.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/examples/internal/world"
)

const (
	users    = 5000
	patience = 30 * time.Second // how long the chatbot's client waits for the model
)

func main() {
	if err := run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "cascade:", err)
		os.Exit(1)
	}
}

// protection is how the chatbot calls the model. Without options it has no breaker.
type protection struct {
	name string
	opts []breaker.Option
}

var protections = []protection{
	{"no breaker", nil},
	{"breaker", []breaker.Option{
		breaker.WithFailureThreshold(5),
		breaker.WithOpenTimeout(30 * time.Second),
	}},
	{"with limits", []breaker.Option{
		breaker.WithFailureThreshold(5),
		breaker.WithOpenTimeout(30 * time.Second),
		breaker.WithMaxInFlight(100),
		breaker.WithTimeout(time.Second),
	}},
}

// arrivals are when the users come: the n-th of them, counted from 0.
var arrivals = []struct {
	name string
	at   func(n int) time.Duration
}{
	{"Five users find out, the others come half a minute later", func(n int) time.Duration {
		if n < 5 {
			return 0
		}
		return patience + 500*time.Millisecond
	}},
	{"All of them at the same moment", func(int) time.Duration { return 0 }},
	{"100 of them every second", func(n int) time.Duration { return time.Duration(n) * time.Second / 100 }},
}

// outcome is what one crowd met.
type outcome struct {
	reached  int           // calls that reached the model
	peak     int           // the most calls in flight at once
	opened   time.Duration // when the circuit first opened; negative if it did not
	rejected int           // users who were told at once
	waited   int           // users who waited for all of the client's patience
	longest  time.Duration // the longest that anyone waited
}

// simulate sends a crowd to the hanging model.
func simulate(p protection, at func(int) time.Duration) (outcome, error) {
	w := world.New()
	began := w.Now()
	model := &model{world: w}
	o := outcome{opened: -1}

	ask := model.ask
	if p.opts != nil {
		chatbot, err := breaker.New[string]("model", append([]breaker.Option{
			breaker.WithClock(w),
			breaker.WithHooks(breaker.Hooks{StateChange: func(t breaker.Transition) {
				if t.To == breaker.Open && o.opened < 0 {
					o.opened = t.At.Sub(began)
				}
			}}),
		}, p.opts...)...)
		if err != nil {
			return o, err
		}
		ask = chatbot.Wrap(model.ask)
	}
	for n := range users {
		w.Enter(at(n), func() {
			came := w.Now()
			_, err := ask(context.Background())
			wait := w.Now().Sub(came)
			if errors.Is(err, breaker.ErrOpen) || errors.Is(err, breaker.ErrTooManyInFlight) {
				o.rejected++
			}
			if wait >= patience {
				o.waited++
			}
			o.longest = max(o.longest, wait)
		})
	}
	w.Run()
	o.reached, o.peak = model.calls, model.peak
	return o, nil
}

// model is the hanging one: whoever asks it waits for the end of the context or of the client's own patience.
type model struct {
	world    *world.World
	calls    int
	inFlight int
	peak     int
}

func (m *model) ask(ctx context.Context) (string, error) {
	m.calls++
	m.inFlight++
	m.peak = max(m.peak, m.inFlight)
	defer func() { m.inFlight-- }()
	if end, ok := ctx.Deadline(); ok && end.Sub(m.world.Now()) < patience {
		m.world.Sleep(end.Sub(m.world.Now()))
		<-ctx.Done() // it ends at the instant that has just come
		return "", ctx.Err()
	}
	m.world.Sleep(patience)
	return "", errors.New("no answer within 30s")
}

func run(out io.Writer) error {
	fmt.Fprintln(out, "5,000 users ask a chatbot whose model hangs. Its HTTP client gives up after 30 s.")
	fmt.Fprintln(out)
	fmt.Fprintln(out, "  no breaker    every user's request goes to the model")
	fmt.Fprintln(out, "  breaker       5 failures open the circuit for 30 s")
	fmt.Fprintln(out, "  with limits   the same, and at most 100 calls in flight, of 1 s each")
	for _, a := range arrivals {
		var all []outcome
		fmt.Fprintf(out, "\n%-58s", a.name)
		for _, p := range protections {
			o, err := simulate(p, a.at)
			if err != nil {
				return err
			}
			all = append(all, o)
			fmt.Fprintf(out, "  %11s", p.name)
		}
		fmt.Fprintln(out)
		row(out, "calls that reach the model", all, func(o outcome) string { return count(o.reached) })
		row(out, "peak in flight", all, func(o outcome) string { return count(o.peak) })
		row(out, "circuit opens at", all, func(o outcome) string { return instant(o.opened) })
		row(out, "users rejected at once", all, func(o outcome) string { return count(o.rejected) })
		row(out, "users who wait the full 30 s", all, func(o outcome) string { return count(o.waited) })
		row(out, "longest wait", all, func(o outcome) string { return instant(o.longest) })
	}
	fmt.Fprint(out, `
A breaker learns from results. It stops the cascade as soon as five calls have failed, but a call that hangs
has no result yet: the first wave, which is everyone who comes before that, a breaker alone cannot stop. A limit
on the calls in flight bounds the first wave, and a timeout for each attempt makes it short.
`)
	return nil
}

func row(out io.Writer, name string, all []outcome, value func(outcome) string) {
	fmt.Fprintf(out, "  %-56s", name)
	for _, o := range all {
		fmt.Fprintf(out, "  %11s", value(o))
	}
	fmt.Fprintln(out)
}

// count is a number with a comma in front of the last three digits.
func count(n int) string {
	s := strconv.Itoa(n)
	if len(s) > 3 {
		s = s[:len(s)-3] + "," + s[len(s)-3:]
	}
	return s
}

func instant(d time.Duration) string {
	if d < 0 {
		return "never"
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}
