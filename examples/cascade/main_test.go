package main

// The numbers are the same every time.
func Example() {
	main()
	// Output:
	// 5,000 users ask a chatbot whose model hangs. Its HTTP client gives up after 30 s.
	//
	//   no breaker    every user's request goes to the model
	//   breaker       5 failures open the circuit for 30 s
	//   with limits   the same, and at most 100 calls in flight, of 1 s each
	//
	// Five users find out, the others come half a minute later     no breaker      breaker  with limits
	//   calls that reach the model                                      5,000            5            5
	//   peak in flight                                                  4,995            5            5
	//   circuit opens at                                                never      30.00 s       1.00 s
	//   users rejected at once                                              0        4,995        4,995
	//   users who wait the full 30 s                                    5,000            5            0
	//   longest wait                                                  30.00 s      30.00 s       1.00 s
	//
	// All of them at the same moment                               no breaker      breaker  with limits
	//   calls that reach the model                                      5,000        5,000          100
	//   peak in flight                                                  5,000        5,000          100
	//   circuit opens at                                                never      30.00 s       1.00 s
	//   users rejected at once                                              0            0        4,900
	//   users who wait the full 30 s                                    5,000        5,000            0
	//   longest wait                                                  30.00 s      30.00 s       1.00 s
	//
	// 100 of them every second                                     no breaker      breaker  with limits
	//   calls that reach the model                                      5,000        3,005          106
	//   peak in flight                                                  3,001        3,001          100
	//   circuit opens at                                                never      30.04 s       1.04 s
	//   users rejected at once                                              0        1,995        4,894
	//   users who wait the full 30 s                                    5,000        3,005            0
	//   longest wait                                                  30.00 s      30.00 s       1.00 s
	//
	// A breaker learns from results. It stops the cascade as soon as five calls have failed, but a call that hangs
	// has no result yet: the first wave, which is everyone who comes before that, a breaker alone cannot stop. A limit
	// on the calls in flight bounds the first wave, and a timeout for each attempt makes it short.
}
