package main

// The story is the same every time, to the last digit.
func Example() {
	main()
	// Output:
	// Two banks: 2 retries, then the backup; 5 failures within 60 s open a bank's circuit for 15 s.
	//
	//   time   payment    primary    backup   waited   receipt             mark       circuits afterwards
	//    0 s   no. 1          1 x         -       0s   primary has no. 1   -          closed, closed
	//          A hiccup: the second attempt helps.
	//    1 s   no. 2          2 x         -    100ms   primary has no. 2   retry      closed, closed
	//          The primary bank goes down.
	//    2 s   no. 3          3 x       1 x    300ms   backup has no. 3    failover   closed, closed
	//          The fifth failure opens its circuit and ends the retries.
	//    3 s   no. 4          2 x       1 x    100ms   backup has no. 4    failover   open, closed
	//          Open: the backup bank at once, the primary bank is left alone.
	//    4 s   no. 5            -       1 x       0s   backup has no. 5    failover   open, closed
	//    5 s   no. 6            -       1 x       0s   backup has no. 6    failover   open, closed
	//          Now the backup bank has a hiccup too. It counts in the backup's circuit.
	//    6 s   no. 7            -       1 x       0s   none: both failed   -          open, closed
	//    7 s   no. 8            -       1 x       0s   backup has no. 8    failover   open, closed
	//          The primary bank is back; 15 s are over, and this payment is the probe.
	//   19 s   no. 9          1 x         -       0s   primary has no. 9   -          closed, closed
	//   20 s   no. 10         1 x         -       0s   primary has no. 10   -          closed, closed
	//
	// circuit        requests     good   failed   rejected   state
	// primary-bank         10        4        6          4   closed
	// backup-bank           6        5        1          0   closed
	//
	// Rescued by a retry: 1. Rescued by the backup bank: 5.
}
