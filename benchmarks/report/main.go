// Report measures this library and its peers in one run, prints a table of both, and fails where a gate fails.
//
//	GOWORK=off go -C benchmarks run ./report
package main

import (
	"flag"
	"fmt"
	"os"
	"time"
)

func main() {
	var (
		quick  = flag.Bool("quick", false, "take about two minutes instead of six; rougher numbers")
		rounds = flag.Int("rounds", 0, "how often to measure every row (default 11, with -quick 7)")
		out    = flag.String("o", "REPORT.md", "`file` to write the report to")
		into   = flag.String("into", "", "`file` to put the tables into, between its benchmarks:begin and benchmarks:end marks")
	)
	flag.Parse()
	p := plan{rounds: 11, sample: 100 * time.Millisecond}
	if *quick {
		p = plan{rounds: 7, sample: 25 * time.Millisecond}
	}
	if *rounds > 0 {
		p.rounds = *rounds
	}
	broken, err := report(p, *out, *into)
	if err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(2)
	}
	if len(broken) > 0 {
		for _, v := range broken {
			fmt.Fprintln(os.Stderr, "gate failed:", v)
		}
		os.Exit(1)
	}
}

// report measures, prints and writes everything, and returns the gates that fail.
func report(p plan, out, into string) ([]verdict, error) {
	rows, sizes := allRows(), allSizes()
	r, err := measure(rows, p, os.Stderr)
	if err != nil {
		return nil, err
	}
	weigh(sizes, r, os.Stderr)
	verdicts := judge(gates, r)
	numbers := tables(rows, sizes, r, p)
	text := "# Benchmarks\n\n" + numbers + "\n## Gates\n\n" + gateTable(verdicts)
	fmt.Print(text)
	if err := os.WriteFile(out, []byte(text), 0o644); err != nil {
		return nil, err
	}
	if into != "" {
		if err := embedIn(into, numbers); err != nil {
			return nil, err
		}
	}
	return failed(verdicts), nil
}

// embedIn puts the tables into the file.
func embedIn(file, numbers string) error {
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	text, err := embed(string(old), numbers)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return os.WriteFile(file, []byte(text), 0o644)
}
