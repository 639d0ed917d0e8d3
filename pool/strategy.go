package pool

import "fmt"

// A Strategy says whose turn it is among the members of a pool. The zero value is Failover.
type Strategy uint8

// The strategies. All of them pass over members that would not take the call, and all but Failover, whose order is the
// priority alone, choose among the members of the highest Priority: those of a lower one are used while none above is
// ready. A turn of a member that is passed over is dropped, so that it goes to no neighbour in particular, and no member
// has turns to make up for when it comes back.
const (
	Failover           Strategy = iota // the one with the highest Priority; of equals, the one given first
	RoundRobin                         // one after the other, in the order given
	WeightedRoundRobin                 // each as often as its Weight, spread evenly: 3 to 1 is a, a, b, a
	Shuffle                            // each once per round, in an order that is random and new for each round
	LeastBusy                          // the one with the fewest calls of this pool in flight; equals one after the other
)

var strategyNames = [...]string{"failover", "round-robin", "weighted-round-robin", "shuffle", "least-busy"}

// String is the strategy's name: failover, round-robin, weighted-round-robin, shuffle or least-busy.
func (s Strategy) String() string {
	if int(s) < len(strategyNames) {
		return strategyNames[s]
	}
	return fmt.Sprintf("Strategy(%d)", uint8(s))
}

// MarshalText writes what String returns.
func (s Strategy) MarshalText() ([]byte, error) {
	if int(s) < len(strategyNames) {
		return []byte(strategyNames[s]), nil
	}
	return nil, fmt.Errorf("pool: Strategy: unknown value %d", uint8(s))
}
