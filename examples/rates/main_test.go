package main

// The story is the same every time, to the last digit.
func Example() {
	main()
	// Output:
	// Exchange rates: 5 failures within 60 s open the circuit for 15 s; the last good answer is kept for 600 s.
	//
	//  time   pair     server       rate     from    circuit afterwards
	//   0 s   EURUSD   200          1.0810   live    closed
	//         The server goes down.
	//   1 s   EURUSD   503          1.0810   cache   closed, failures: 1
	//   2 s   EURUSD   503          1.0810   cache   closed, failures: 2
	//   3 s   EURUSD   503          1.0810   cache   closed, failures: 3
	//   4 s   EURUSD   503          1.0810   cache   closed, failures: 4
	//   5 s   EURUSD   503          1.0810   cache   open until 20 s
	//         The circuit is open: cached answers, and nobody bothers the server.
	//   6 s   EURUSD   not called   1.0810   cache   open until 20 s
	//  19 s   EURUSD   not called   1.0810   cache   open until 20 s
	//         Nothing is known of this pair yet.
	//  19 s   EURGBP   not called   none     -       open until 20 s; error: try again in 1s
	//         15 s are over: this request is the probe.
	//  20 s   EURUSD   503          1.0810   cache   open until 35 s
	//         Much later, still down.
	// 590 s   EURUSD   503          1.0810   cache   open until 605 s
	// 599 s   EURUSD   not called   1.0810   cache   open until 605 s
	//         The cached answer is 600 s old now, and served no more.
	// 600 s   EURUSD   not called   none     -       open until 605 s; error: try again in 5s
	//         The server is back.
	// 605 s   EURUSD   200          1.0890   live    closed
	// 606 s   EURUSD   200          1.0900   live    closed
	//
	// 15 requests: 3 answered by the server, 10 by the cache, 2 not at all. 10 reached the server.
}
