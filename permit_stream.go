package breaker

import "time"

// This file is for wrappers whose calls end later than the function that makes them returns, and not all of whose time is
// the dependency's.

// Fast reports whether the call was admitted on the fast path: it is no probe, and nobody asks how long it takes.
func (p *Permit) Fast() bool { return p.call.cell != nil }

// Probe reports whether the call is a probe.
func (p *Permit) Probe() bool { return p.call.probe }

// SettleExcluding is [Permit.Settle] for a call of whose time, since it was admitted, excluded was not the dependency's:
// it counts neither for slow calls nor in CallEvent.Duration.
func (p *Permit) SettleExcluding(o Outcome, cause error, excluded time.Duration) {
	if !p.first() || o == Success && p.circuit.succeed(&p.call) {
		return
	}
	defer p.ensure()
	p.circuit.settleExcluding(p.ctx, &p.call, validOutcome(o), cause, max(0, excluded))
}

// Undisturbed reports whether a call would be admitted without asking the machine. If not, Refusal says whether it would be
// admitted at all.
func (c *Circuit) Undisturbed() bool { return c.word.Load()&(wordFast|wordTimed) != 0 }
