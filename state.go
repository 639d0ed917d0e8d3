package breaker

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// State is a circuit's state. The zero value is Closed.
type State uint8

// The three states.
const (
	Closed   State = iota // calls pass and are counted
	HalfOpen              // a few calls pass as probes
	Open                  // no call passes
)

// Mode is a manual override. It does not change the state, which the circuit goes on keeping. The zero value is Auto.
type Mode uint8

// The four modes.
const (
	Auto         Mode = iota // the state decides
	ForcedOpen               // every call is rejected, no probes
	ForcedClosed             // every call is admitted and counted; nothing trips
	Shadow                   // the state changes as in Auto and rejections are reported, but every call is admitted
)

// Outcome is what one call says about the dependency. The zero value is Success.
type Outcome uint8

// The four outcomes.
const (
	Success Outcome = iota
	Failure
	Ignored  // says nothing about the dependency: neither counted for nor against it; a probe slot is handed back
	Answered // the dependency answered, though not with what was asked for: a Success that does not end a run of failures
)

// Counts is what was counted during an epoch (one stay in a state), or in the trip policy's window.
type Counts struct {
	Successes            uint64 `json:"successes"`
	Failures             uint64 `json:"failures"`
	Ignored              uint64 `json:"ignored"`
	Slow                 uint64 `json:"slow"`                  // calls that took the slow limit or longer; 0 without SlowCallRate
	ConsecutiveFailures  uint64 `json:"consecutive_failures"`  // since the last success
	ConsecutiveSuccesses uint64 `json:"consecutive_successes"` // since the last failure
}

// Rate is the share of failures among successes and failures, from 0 to 1; 0 when there were none.
func (c Counts) Rate() float64 {
	n := float64(c.Successes) + float64(c.Failures)
	if n == 0 {
		return 0
	}
	return float64(c.Failures) / n
}

var (
	stateNames   = []string{"closed", "half-open", "open"}
	modeNames    = []string{"auto", "forced-open", "forced-closed", "shadow"}
	outcomeNames = []string{"success", "failure", "ignored", "answered"}
)

func (s State) String() string   { return nameOf(stateNames, uint8(s), "State") }
func (m Mode) String() string    { return nameOf(modeNames, uint8(m), "Mode") }
func (o Outcome) String() string { return nameOf(outcomeNames, uint8(o), "Outcome") }

// answered reports whether the dependency did its part.
func (o Outcome) answered() bool { return o == Success || o == Answered }

// MarshalText writes "closed", "half-open" or "open".
func (s State) MarshalText() ([]byte, error) { return marshalName(stateNames, uint8(s), "State") }

// MarshalText writes "auto", "forced-open", "forced-closed" or "shadow".
func (m Mode) MarshalText() ([]byte, error) { return marshalName(modeNames, uint8(m), "Mode") }

// UnmarshalText reads what MarshalText writes, in any case and with '-' or '_': half_open and HALF_OPEN too.
func (s *State) UnmarshalText(text []byte) error {
	i, err := unmarshalName(stateNames, text, "State")
	if err == nil {
		*s = State(i)
	}
	return err
}

// UnmarshalText reads what MarshalText writes, in any case and with '-' or '_'.
func (m *Mode) UnmarshalText(text []byte) error {
	i, err := unmarshalName(modeNames, text, "Mode")
	if err == nil {
		*m = Mode(i)
	}
	return err
}

func nameOf(names []string, i uint8, kind string) string {
	if int(i) < len(names) {
		return names[i]
	}
	return fmt.Sprintf("%s(%d)", kind, i)
}

func marshalName(names []string, i uint8, kind string) ([]byte, error) {
	if int(i) < len(names) {
		return []byte(names[i]), nil
	}
	return nil, fmt.Errorf("breaker: %s: unknown value %d", kind, i)
}

func unmarshalName(names []string, text []byte, kind string) (int, error) {
	i := slices.Index(names, strings.ReplaceAll(strings.ToLower(string(text)), "_", "-"))
	if i < 0 {
		return 0, fmt.Errorf("breaker: %s: %q is none of %s", kind, text, strings.Join(names, ", "))
	}
	return i, nil
}

// The state machine. It is one pure function: from a machine, a policy and an event, step makes the next machine and
// the effects that the circuit has to carry out. It has no clock, lock, goroutine or callback; the event carries the
// time. So a test can run it through every reachable state (machine_test.go).
//
// An epoch is one uninterrupted stay in a state. Every change of state, and every Reset, begins a new one. A call
// carries the number of the epoch that admitted it; its outcome counts only while that epoch lasts.
//
// Instants are nanoseconds since a base that the caller keeps; never is later than every other instant.

const never = int64(math.MaxInt64)

// machine is everything that admission and state changes depend on. The zero value with epoch 1 is a new closed circuit.
type machine struct {
	state    State
	mode     Mode
	opens    uint32  // openings in this series: what WithOpenBackoff grows the open period by
	progress uint32  // HalfOpen: probe successes in a row
	credit   int32   // Closed, ramping: parts per million of one admission, see rampShare
	epoch    uint64  // the current epoch
	now      int64   // the latest instant seen: time never runs backwards for a machine
	since    int64   // when the epoch began
	until    int64   // Open: when the open period ends and a call may become a probe
	mark     int64   // Closed, HalfOpen: see below; not later than since where there is none
	leases   []int64 // HalfOpen: when each slot in use falls free by itself, in order
}

// machine.mark is, while Closed, when the ramp ends; while HalfOpen, when the last admitted of the probes that have succeeded
// was admitted. It is one field to keep an idle circuit within 256 bytes.

// policy is the part of the configuration that the machine needs. Times are in nanoseconds.
type policy struct {
	successThreshold uint32
	probes           int
	openTimeout      int64
	lease            int64
	ramp             int64
	backoffFactor    float64 // 0: off
	backoffMax       int64
	backoffJitter    float64
	maxInFlight      int64 // 0: off
}

type eventKind uint8

const (
	eventAdmit      eventKind = iota // a call asks to be admitted
	eventSettle                      // an admitted call has ended
	eventTrip                        // open now
	eventReset                       // close now, and start the open backoff over
	eventOfferProbe                  // open -> half-open before its time
	eventSetMode                     // change the mode
	eventFollow                      // take over the state of the shared ledger
)

// event is one thing that happens to a machine.
type event struct {
	kind     eventKind
	now      int64
	inFlight int64   // admit: calls running now
	within   uint64  // admit: the epoch of the circuit's own probe that makes this call; 0: none does
	pass     pass    // settle: what admission gave the call
	outcome  Outcome // settle
	trip     bool    // settle: the trip policy says to open, this outcome included
	hint     int64   // settle, trip: the open period that the dependency asked for; 0 if it did not
	random   float64 // settle, trip: a random number from [0, 1) for the jitter of the open period
	mode     Mode    // set mode

	// With a store:
	slot    int64  // admit: the store has given a probe slot until this instant; 0: it was not asked
	decided bool   // settle: the store decides what follows from the probe
	to      State  // follow
	why     reason // follow
	since   int64  // follow: when the ledger's epoch began
	until   int64  // follow: when its open period ends, if it is Open
	opens   uint32 // follow: its openings in this series
}

// pass is what an admitted call carries until it settles.
type pass struct {
	epoch uint64
	probe bool
	lease int64 // probe: when its slot falls free by itself
	start int64 // probe: when it was admitted
}

// refusal is why a call was not admitted.
type refusal uint8

const (
	admitted refusal = iota
	refusedOpen
	refusedForced
	refusedProbes   // every slot is taken
	refusedRamp     // the ramp after closing does not admit this one
	refusedInFlight // over MaxInFlight
)

// effects is what the circuit has to carry out after a step.
type effects struct {
	pass    pass    // admit: for the call, if refused is admitted or shadow is set
	refused refusal // admit: why the call is not admitted
	shadow  bool    // admit: refused, but the mode admits it all the same
	late    bool    // settle: the call's epoch had ended
	moved   uint8   // how many of moves are valid
	moves   [2]move
}

// move is one change of state.
type move struct {
	from, to State
	reason   reason
	epoch    uint64
	at       int64
	until    int64 // to is Open
}

// reason is a Reason as a number.
type reason uint8

const (
	byThreshold reason = iota
	byTimeout
	byProbe
	byRecovery
	byOperator
	byHealthCheck
	byRemote
)

var reasons = [...]Reason{ReasonThreshold, ReasonTimeout, ReasonProbeFailed, ReasonRecovered, ReasonManual, ReasonHealthCheck, ReasonRemote}

// step applies one event. It depends on nothing but its arguments and changes nothing but m and fx, which the caller
// passes empty.
func (m *machine) step(p *policy, e *event, fx *effects) {
	m.now = max(m.now, e.now)
	switch e.kind {
	case eventAdmit:
		m.admit(p, fx, e)
	case eventSettle:
		m.settle(p, fx, e)
	case eventTrip:
		m.trip(p, fx, e)
	case eventReset:
		m.reset(fx)
	case eventOfferProbe:
		m.offer(fx)
	case eventSetMode:
		m.mode = e.mode
	case eventFollow:
		m.follow(p, fx, e)
	}
}

// due reports whether the open period has ended. At the very instant of its end it has.
func (m *machine) due(now int64) bool { return m.state == Open && now >= m.until }

// stateAt is the state that a reader is shown: HalfOpen if the open period has ended, even before a call has moved the
// machine.
func (m *machine) stateAt(now int64) State {
	if m.due(max(m.now, now)) {
		return HalfOpen
	}
	return m.state
}

// admit decides about one call. A call that is refused takes no slot and does not change the state, so all checks come
// first.
func (m *machine) admit(p *policy, fx *effects, e *event) {
	fx.pass.epoch = m.epoch
	if m.mode == ForcedClosed {
		return
	}
	if m.inProbe(e) && m.mode != ForcedOpen {
		return // the probe decides
	}
	if e.slot != 0 && m.state == HalfOpen && m.mode != ForcedOpen {
		m.admitProbe(fx, e.slot)
		return
	}
	fx.refused = m.refusal(p, e.inFlight)
	if m.ramping() && (fx.refused == admitted || fx.refused == refusedRamp) {
		m.credit += m.rampShare()
	}
	if fx.refused != admitted {
		fx.shadow = m.mode == Shadow
		return
	}
	if m.state == Open {
		m.move(fx, HalfOpen, byTimeout)
	}
	if m.state == HalfOpen {
		m.admitProbe(fx, m.now+p.lease)
	}
	if m.ramping() {
		m.credit -= ppm
	}
}

// inProbe reports whether a call is made by a probe of the current epoch, and so is part of it.
func (m *machine) inProbe(e *event) bool { return m.state == HalfOpen && e.within == m.epoch }

// admitProbe gives a call a probe slot until lease, the instant at which the slot falls free by itself.
func (m *machine) admitProbe(fx *effects, lease int64) {
	m.freeExpired()
	fx.pass = pass{epoch: m.epoch, probe: true, lease: lease, start: m.now}
	m.takeSlot(lease)
}

// refusal says why a call may not be admitted now, or that it may.
func (m *machine) refusal(p *policy, inFlight int64) refusal {
	switch {
	case m.mode == ForcedOpen:
		return refusedForced
	case m.state == Open && m.now < m.until:
		return refusedOpen
	case m.state == Closed && p.maxInFlight > 0 && inFlight >= p.maxInFlight:
		return refusedInFlight
	case m.state == HalfOpen && m.liveLeases() >= p.probes:
		return refusedProbes
	case m.ramping() && m.credit+m.rampShare() < ppm:
		return refusedRamp
	}
	return admitted
}

// settle ends one admitted call.
func (m *machine) settle(p *policy, fx *effects, e *event) {
	if e.pass.epoch != m.epoch {
		fx.late = true
		return
	}
	switch {
	case m.state == Closed:
		if e.trip && m.mode != ForcedClosed {
			m.open(p, fx, byThreshold, e)
		}
	case m.state == HalfOpen && e.pass.probe:
		m.settleProbe(p, fx, e)
	}
}

// settleProbe ends a probe. A probe whose lease has ended has no slot to give back any more, but its outcome counts:
// otherwise a dependency that hangs longer than the lease would keep the circuit half-open for ever. Only a late failure
// counts for nothing if a probe admitted later has succeeded meanwhile.
func (m *machine) settleProbe(p *policy, fx *effects, e *event) {
	expired := m.now >= e.pass.lease
	switch {
	case e.decided:
	case e.outcome.answered() && m.progress+1 >= p.successThreshold:
		m.move(fx, Closed, byRecovery)
		m.mark = m.now + p.ramp
		return
	case e.outcome == Failure && !(expired && e.pass.start < m.mark):
		m.open(p, fx, byProbe, e)
		return
	case e.outcome.answered():
		m.progress++
	}
	if e.outcome.answered() {
		m.mark = max(m.mark, e.pass.start)
	}
	if !expired {
		m.freeSlot(e.pass.lease)
	}
}

func (m *machine) trip(p *policy, fx *effects, e *event) {
	if m.due(m.now) {
		m.move(fx, HalfOpen, byTimeout)
	}
	if m.state != Open {
		m.open(p, fx, byOperator, e)
	}
}

func (m *machine) reset(fx *effects) {
	m.move(fx, Closed, byOperator)
	m.opens = 0
}

func (m *machine) offer(fx *effects) {
	if m.state == Open && !m.due(m.now) {
		m.move(fx, HalfOpen, byHealthCheck)
	}
}

// follow takes over the ledger's state. It begins a new epoch even if the state is the same, since the ledger's has
// changed: calls that are pending were admitted in an epoch that has ended.
func (m *machine) follow(p *policy, fx *effects, e *event) {
	recovering := m.state != Closed && e.why != byOperator && e.opens > 0 // after a Reset, in whatever process, there is nothing to recover from: no ramp
	m.opens = e.opens
	m.until = e.until
	m.move(fx, e.to, e.why)
	m.since = min(m.now, e.since)
	if e.to == Closed && recovering {
		m.mark = m.since + p.ramp
	}
}

// open starts an open period.
func (m *machine) open(p *policy, fx *effects, why reason, e *event) {
	var length int64
	m.opens, length = m.opening(p, e)
	m.until = m.now + length
	m.move(fx, Open, why)
}

// opening is what the next opening would be: its number in its series, and the length of the open period. That is the
// open timeout, grown by the backoff, or what the dependency asked for if that is longer.
func (m *machine) opening(p *policy, e *event) (opens uint32, length int64) {
	opens = m.opens
	if m.state == Closed && m.now-m.since >= p.openTimeout {
		opens = 0
	}
	if opens < math.MaxUint32 {
		opens++
	}
	return opens, max(p.period(opens, e.random), e.hint)
}

// move begins a new epoch: calls that were admitted before are late from here on, and their slots are gone.
func (m *machine) move(fx *effects, to State, why reason) {
	from := m.state
	m.state = to
	m.epoch++
	m.since = m.now
	m.mark = m.now
	m.progress = 0
	m.credit = 0
	m.leases = m.leases[:0]
	if to != Open {
		m.until = m.now
	}
	if from == to {
		return // Reset of a closed circuit: a new epoch, but no transition to report
	}
	mv := &fx.moves[fx.moved] // field by field: a literal would be built on the stack and copied, which takes three times as long
	mv.from, mv.to, mv.reason = from, to, why
	mv.epoch, mv.at, mv.until = m.epoch, m.now, m.until
	fx.moved++
}

// period is the length of the n-th open period in a series: openTimeout * factor^(n-1), with jitter on top, up to the
// maximum.
func (p *policy) period(n uint32, random float64) int64 {
	if p.backoffFactor == 0 {
		return p.openTimeout
	}
	d := float64(p.openTimeout) * math.Pow(p.backoffFactor, float64(n-1)) * (1 + p.backoffJitter*random)
	if d >= float64(p.backoffMax) { // +Inf as well
		return p.backoffMax
	}
	return int64(d)
}

// Probe slots. The machine keeps of a slot in use only when its lease ends, and the call keeps the same instant. A call
// that settles before it frees the slot; one that settles later finds the slot freed. Two leases that end at the same
// instant are interchangeable.

func (m *machine) takeSlot(end int64) {
	m.leases = append(m.leases, end)
	for i := len(m.leases) - 1; i > 0 && m.leases[i-1] > end; i-- { // sorting is only needed after Configure has shortened the lease
		m.leases[i-1], m.leases[i] = m.leases[i], m.leases[i-1]
	}
}

func (m *machine) freeSlot(end int64) {
	if i, ok := slices.BinarySearch(m.leases, end); ok {
		m.leases = slices.Delete(m.leases, i, i+1)
	}
}

func (m *machine) freeExpired() {
	if expired := len(m.leases) - m.liveLeases(); expired > 0 {
		m.leases = slices.Delete(m.leases, 0, expired)
	}
}

func (m *machine) liveLeases() int {
	if len(m.leases) == 0 {
		return 0
	}
	i, _ := slices.BinarySearch(m.leases, m.now+1)
	return len(m.leases) - i
}

// nextProbe is when the next call may become a probe: at the end of the open period, or of the earliest lease in use.
func (m *machine) nextProbe() int64 {
	if m.state == HalfOpen {
		if live := m.liveLeases(); live > 0 {
			return m.leases[len(m.leases)-live]
		}
		return m.now
	}
	return m.until
}

// The ramp. Each call adds the currently admitted share to a credit. When the credit reaches a whole admission, the
// call is admitted and pays for it. So admissions are spread evenly, without randomness.

const ppm = 1_000_000 // parts per million: rates are compared in integers

func (m *machine) ramping() bool { return m.state == Closed && m.now < m.mark }

// rampShare is the admitted share in parts per million. It grows linearly from 0 at the closing to all at the ramp's
// end.
func (m *machine) rampShare() int32 {
	return int32(float64(m.now-m.since) / float64(m.mark-m.since) * ppm)
}

// duration returns nanoseconds as a time.Duration.
func duration(ns int64) time.Duration { return time.Duration(ns) }
