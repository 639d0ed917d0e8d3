package world_test

import (
	"fmt"
	"time"

	"github.com/breakerkit/breaker/examples/internal/world"
)

func Example() {
	w := world.New()
	began := w.Now()
	say := func(what string) { fmt.Println(w.Now().Sub(began), what) }

	w.Enter(time.Hour, func() { say("an hour is over") })
	w.Enter(0, func() {
		say("good morning")
		timeout := w.After(30 * time.Minute)
		w.Sleep(45 * time.Minute)
		<-timeout // has been there for a quarter of an hour
		say("a long sleep")
	})
	w.Enter(0, func() {
		say("me too")
		<-w.Waiting().After(time.Minute)
		say("a short sleep")
	})
	w.Run()
	// Output:
	// 0s good morning
	// 0s me too
	// 1m0s a short sleep
	// 45m0s a long sleep
	// 1h0m0s an hour is over
}
