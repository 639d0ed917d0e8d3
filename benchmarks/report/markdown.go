package main

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"
)

// A table is written in Markdown with its columns padded, so that it reads well on a terminal too. All columns but the
// first texts ones are numbers, aligned right.
type table struct {
	texts int
	lines [][]string
}

func (t *table) add(cells ...string) { t.lines = append(t.lines, cells) }

func (t *table) String() string {
	widths := make([]int, len(t.lines[0]))
	for _, cells := range t.lines {
		for i, cell := range cells {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var s strings.Builder
	for n, cells := range t.lines {
		for i, cell := range cells {
			s.WriteString("| " + t.pad(i, cell, widths[i]) + " ")
		}
		s.WriteString("|\n")
		if n == 0 {
			s.WriteString(t.rule(widths))
		}
	}
	return s.String()
}

func (t *table) pad(column int, cell string, width int) string {
	space := strings.Repeat(" ", width-utf8.RuneCountInString(cell))
	if column < t.texts {
		return cell + space
	}
	return space + cell
}

func (t *table) rule(widths []int) string {
	var s strings.Builder
	for i, width := range widths {
		dashes := strings.Repeat("-", width+1)
		if i < t.texts {
			s.WriteString("|" + dashes + "-")
		} else {
			s.WriteString("|" + dashes + ":")
		}
	}
	return s.String() + "|\n"
}

// tables are the numbers, for the README and the report.
func tables(rows []row, sizes []size, r results, p plan) string {
	return fmt.Sprintf(`%s%s

%s
Shared by more goroutines, ns per call:

%s
Every second call fails, ns per call:

%s
HTTP to a server on the loopback interface, ns per request:

%s
Choosing a member of a pool and calling it, ns per call:

%s
What sharing through a Store in the same process adds, ns per call:

%s
One idle breaker, and all that one key of many needs besides its string:

%s`, machine(p), warning(r), mainTable(rows, r), contentionTable(rows, r), halfTable(rows, r), loopbackTable(r), poolTable(r), storeTable(r), sizeTable(sizes, r))
}

func mainTable(rows []row, r results) string {
	t := table{texts: 2}
	t.add("work", "", "ns, 1 goroutine", "2 goroutines", "allocations", "times ours, 1 / 2")
	last := ""
	for _, row := range rows {
		if row.work.ownTable {
			continue
		}
		name := row.work.name
		if name == last {
			name = ""
		}
		last = row.work.name
		n := r[row.key()]
		t.add(name, bold(row.name), nanoseconds(n[one]), nanoseconds(n[two]), allocs.format(n[allocs]), timesOurs(row, r))
	}
	return t.String()
}

// timesOurs is how long the peer's row takes in terms of ours.
func timesOurs(row row, r results) string {
	if row.vs == "" {
		return ""
	}
	theirs, ours := r[row.key()], r[key{row.work.name, row.vs}]
	ratios := times(theirs[one] / ours[one])
	if ours[two] > 0 {
		ratios += " / " + times(theirs[two]/ours[two])
	}
	return ratios
}

func times(ratio float64) string {
	if ratio < 10 {
		return fmt.Sprintf("%.1f×", ratio)
	}
	return fmt.Sprintf("%.0f×", ratio)
}

func contentionTable(rows []row, r results) string {
	t := table{texts: 1}
	t.add("goroutines", "1", "2", "4", "8")
	for _, row := range rows {
		if !row.many {
			continue
		}
		cells := []string{bold(row.name)}
		for _, threads := range row.goroutines() {
			cells = append(cells, nanoseconds(r[row.key()][metric(threads)]))
		}
		t.add(cells...)
	}
	return t.String()
}

// halfTable has the rows where failures meet.
func halfTable(rows []row, r results) string {
	t := table{texts: 1}
	t.add("", "1 goroutine", fmt.Sprint(metric(crowd)), "allocations", "times ours, 1 / "+fmt.Sprint(crowd))
	for _, row := range rows {
		if row.work.name != half.name {
			continue
		}
		n, ratios := r[row.key()], ""
		if row.vs != "" {
			ours := r[key{half.name, row.vs}]
			ratios = times(n[one]/ours[one]) + " / " + times(n[crowd]/ours[crowd])
		}
		t.add(bold(row.name), nanoseconds(n[one]), nanoseconds(n[crowd]), allocs.format(n[allocs]), ratios)
	}
	return t.String()
}

func sizeTable(sizes []size, r results) string {
	t := table{texts: 2}
	t.add("", "", "bytes", "counted over")
	last := ""
	for _, s := range sizes {
		k := s.key()
		what := k.work
		if what == last {
			what = ""
		}
		last = k.work
		t.add(what, bold(k.name), bytes.format(r[k][bytes]), fmt.Sprint(s.instances))
	}
	return t.String()
}

// gateTable says of every gate whether it holds.
func gateTable(verdicts []verdict) string {
	t := table{texts: 3}
	t.add("", "holds", "")
	for _, v := range verdicts {
		holds := "yes"
		if !v.holds() {
			holds = "**no**"
		}
		t.add(string(v.rank), holds, v.String())
	}
	return t.String()
}

// bold marks the rows of this library.
func bold(name string) string {
	if strings.HasPrefix(name, "breaker, ") {
		return "**" + name + "**"
	}
	return name
}

// nanoseconds rounds to what can be trusted; a missing number is a dash.
func nanoseconds(v float64) string {
	switch {
	case v == 0:
		return "–"
	case v < 100:
		return fmt.Sprintf("%.1f", tenths(v))
	}
	return fmt.Sprintf("%.0f", v)
}

// tenths rounds a number that may be negative. What rounds to 0 is 0, not -0.
func tenths(v float64) float64 {
	if v = math.Round(10*v) / 10; v == 0 {
		return 0
	}
	return v
}

// warning says when the machine had no second core to give: a call that shares nothing takes half as long per call on two.
func warning(r results) string {
	plain := r[key{anchors.name, plainCall}]
	if plain[two] < 0.8*plain[one] {
		return ""
	}
	return " **Two goroutines had little more than one core: the second column means little.**"
}

// machine says, in one line, where and how the numbers were taken.
func machine(p plan) string {
	return fmt.Sprintf("%s, %d CPUs, %s %s/%s, %s; medians of %d rounds in one run. Peers: %s.",
		cpu(), runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH, time.Now().Format(time.DateOnly),
		p.rounds, strings.Join(peers(), ", "))
}

// cpu is the processor's name where the system tells it.
func cpu() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "unknown CPU"
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown CPU"
}

// peerModules are the modules that the rows measure.
var peerModules = []string{
	"github.com/sony/gobreaker/v2",
	"github.com/failsafe-go/failsafe-go",
	"github.com/eapache/go-resiliency",
	"github.com/rubyist/circuitbreaker",
	"github.com/go-kratos/aegis",
	"github.com/zeromicro/go-zero",
	"github.com/afex/hystrix-go",
	"github.com/avast/retry-go/v4",
	"github.com/cenkalti/backoff/v5",
}

// peers are the peers' modules with the versions that are measured.
func peers() []string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	versions := map[string]string{}
	for _, m := range info.Deps {
		versions[m.Path] = m.Version
	}
	var peers []string
	for _, path := range peerModules {
		peers = append(peers, strings.TrimPrefix(path, "github.com/")+" "+versions[path])
	}
	return peers
}

// The lines in a document between which embed puts the tables.
const (
	beginMark = "<!-- benchmarks:begin -->"
	endMark   = "<!-- benchmarks:end -->"
)

var errNoMarks = errors.New("no " + beginMark + " followed by " + endMark)

// embed replaces what stands between the marks.
func embed(document, text string) (string, error) {
	before, rest, ok := strings.Cut(document, beginMark)
	if !ok {
		return "", errNoMarks
	}
	_, after, ok := strings.Cut(rest, endMark)
	if !ok {
		return "", errNoMarks
	}
	return before + beginMark + "\n" + text + endMark + after, nil
}
