package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/internal/testenv"
	"github.com/breakerkit/breaker/store"
	"github.com/breakerkit/breaker/store/storetest"
)

// ledgers is the model for the checker: histories are checked name by name.
var ledgers = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byName := make(map[string][]porcupine.Operation)
		for _, op := range history {
			name := op.Input.(storetest.Call).Name()
			byName[name] = append(byName[name], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byName {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return storetest.NewModel() },
	Step: func(state, input, output any) (bool, any) {
		return storetest.Step(state.(storetest.Model), input.(storetest.Call).Op, output.(breaker.Ledger))
	},
	Equal: func(a, b any) bool { return a.(storetest.Model).Equal(b.(storetest.Model)) },
	DescribeOperation: func(input, output any) string {
		return fmt.Sprintf("%+v -> %+v", input.(storetest.Call).Op, output)
	},
}

func operations(t *testing.T, calls []storetest.Call) (ops []porcupine.Operation) {
	for _, c := range calls {
		require.NoError(t, c.Err, "%+v", c.Op)
		ops = append(ops, porcupine.Operation{ClientId: c.Client, Input: c, Output: c.Ledger, Call: c.Start, Return: c.End})
	}
	return ops
}

func TestLinearizable(t *testing.T) {
	histories := testenv.Size(10, 20, 60)
	applied := make(map[string]int)
	for seed := range histories {
		m := store.NewMemory()
		clients := make([]breaker.Store, 8)
		for i := range clients {
			clients[i] = m
		}
		calls := storetest.History(t.Context(), clients, []string{"a", "b"}, 60, uint64(seed))
		for _, c := range calls {
			if c.Ledger.Applied || c.Ledger.Granted > 0 {
				applied[fmt.Sprintf("%T", c.Op)]++
			}
		}
		result, _ := porcupine.CheckOperationsVerbose(ledgers, operations(t, calls), 20*time.Second)
		require.Equal(t, porcupine.Ok, result, "history %d", seed)
	}
	for _, op := range []any{breaker.StoreReport{}, breaker.StoreMove{}, breaker.StoreAcquire{}, breaker.StoreVerdict{}} {
		require.Greater(t, applied[fmt.Sprintf("%T", op)], histories, "operations that did something: %v", applied)
	}
	t.Log(applied)
}

// A check that never fails is none.
func TestLinearizableFindsFaults(t *testing.T) {
	for name, spoil := range map[string]func(*breaker.Ledger) bool{
		"a report that is lost":   func(l *breaker.Ledger) bool { l.Counts.Failures++; return l.Counts.Failures > 1 },
		"a slot too many":         func(l *breaker.Ledger) bool { l.Slots++; return l.Granted > 0 },
		"an epoch that is reused": func(l *breaker.Ledger) bool { l.Epoch--; return l.Applied },
	} {
		t.Run(name, func(t *testing.T) {
			m := store.NewMemory()
			calls := storetest.History(t.Context(), []breaker.Store{m, m, m}, []string{"a"}, 60, 1)
			for i := range calls {
				l := calls[i].Ledger
				if spoil(&l) {
					calls[i].Ledger = l
					break
				}
			}
			require.Equal(t, porcupine.Illegal, porcupine.CheckOperationsTimeout(ledgers, operations(t, calls), 20*time.Second))
		})
	}
}
