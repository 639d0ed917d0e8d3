package main

// The numbers are the same every time.
func Example() {
	main()
	// Output:
	// 1,000 callers in 50 processes call a dependency every 2 s, for 30 s: 15,000 calls.
	//
	//   3 retries   after 0.1, 0.2 and 0.4 s, and up to half of that more
	//   breaker     one in each process: opens for 5 s when half of at least 20 calls within 10 s have failed
	//   budget      one in each process: a retry for every 10 calls, and one more, in any 10 s
	//
	//                                            it is down     a fifth of its answers are errors
	//                                calls to it     factor     calls to it     factor   answered
	// no retries                          15,000      1.00x          15,000      1.00x      80.0%
	// 3 retries                           59,298      3.95x          18,683      1.25x      99.8%
	// 3 retries, budget                   16,613      1.11x          16,546      1.10x      88.4%
	// 3 retries, breaker                   1,250      0.08x          18,683      1.25x      99.8%
	// 3 retries, breaker, budget           1,250      0.08x          16,546      1.10x      88.4%
	//
	// Down: plain retries hit the dependency almost four times as hard as its callers do, just when it needs rest.
	// With a breaker they end as soon as the circuit opens, and all that is left is a probe now and then.
	//
	// A fifth of the answers are errors: most calls do well, and the circuits stay closed, as they should. Retries
	// help nearly every caller there, and a budget bounds the load that they add: fewer answers for more rest.
}
