package breaker

import (
	"reflect"
	"sync"
	"unsafe"
	"weak"
)

// recentSettings are those that circuits were last made with. A circuit made with the same options shares them: they are
// four times as large as itself. They are held weakly, so that what they refer to goes with the last circuit.
var recentSettings struct {
	mu   sync.Mutex
	all  [8]weak.Pointer[settings]
	next int
}

// sharedSettings compiles a draft without faults, or finds what an equal one was compiled to.
func sharedSettings(d *draft) *settings {
	if d.clock != nil || d.store.store != nil {
		return newSettings(d, newTimeline(d.clock))
	}
	kept := d.kept()
	r := &recentSettings
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.all {
		if s := p.Value(); s != nil && s.time.current() && identical(reflect.ValueOf(&s.draft).Elem(), reflect.ValueOf(&kept).Elem()) {
			return s
		}
	}
	s := newSettings(d, newTimeline(nil))
	r.all[r.next] = weak.Make(s)
	r.next = (r.next + 1) % len(r.all)
	return s
}

// kept is what a circuit keeps of a draft, for Configure.
func (d *draft) kept() draft {
	k := *d
	k.where, k.allowed, k.faults = "", 0, nil
	k.snapshot, k.group = nil, groupDraft{}
	k.call = callDraft{timeout: d.call.timeout} // on which the default lease depends
	return k
}

// identical compares two variables by all that they hold, so that no option can be forgotten here. Functions are the same
// if they are the same closure, pointers if they point to the same variable. Where it cannot tell it says no.
func identical(v, w reflect.Value) bool {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if !identical(v.Field(i), w.Field(i)) {
				return false
			}
		}
		return true
	case reflect.Slice:
		if v.Len() != w.Len() {
			return false
		}
		for i := range v.Len() {
			if !identical(v.Index(i), w.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Func: // reflect's pointer is that of the code, which closures have in common
		return *(*unsafe.Pointer)(v.Addr().UnsafePointer()) == *(*unsafe.Pointer)(w.Addr().UnsafePointer())
	}
	return v.Comparable() && w.Comparable() && v.Equal(w)
}
