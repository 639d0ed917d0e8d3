package main

import (
	"fmt"
	"io"
	"runtime"
)

// A size is what one idle breaker weighs, counted over many instances that all stay reachable. It has one of build and
// bank.
type size struct {
	name      string
	instances int
	build     func(i int) any         // makes one instance, and returns a pointer
	bank      func(keys []string) any // makes one for each key, and returns a pointer to what they are kept in
}

func (s size) key() key {
	if s.bank != nil {
		return key{keyed.name, s.name}
	}
	return key{idle.name, s.name}
}

// allSizes are the sizes of the report: one breaker's, then one key's, ours first.
func allSizes() []size {
	var sizes []size
	for _, source := range [][]size{ourSizes, gobreakerSizes, failsafeSizes, otherSizes, keyedSizes} {
		sizes = append(sizes, source...)
	}
	return sizes
}

// weigh adds the sizes to the results.
func weigh(sizes []size, r results, progress io.Writer) {
	for _, s := range sizes {
		fmt.Fprintf(progress, "weighing %d of %s\n", s.instances, s.name)
		r.set(s.key(), bytes, s.weigh())
	}
}

// weigh counts the heap, and the stacks of the goroutines that some breakers start.
func (s size) weigh() float64 {
	keys := newKeys(s.instances)
	kept := make([]any, s.instances)
	before := inUse()
	if s.bank != nil {
		kept[0] = s.bank(keys)
	} else {
		for i := range kept {
			kept[i] = s.build(i)
		}
	}
	after := inUse()
	runtime.KeepAlive(kept)
	runtime.KeepAlive(keys)
	return float64(after-before) / float64(s.instances)
}

func inUse() int64 {
	runtime.GC()
	runtime.GC() // what the first one has queued for finalizers and cleanups
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
