package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// local is a provider on this machine whose answers the demo, or a test, decides.
type local struct {
	name string
	addr string

	mu      sync.Mutex
	srv     *http.Server // nil: nobody listens
	steady  reply
	next    []reply       // that come before steady
	pace    time.Duration // between two words
	calls   int
	arrived chan struct{} // closed at the next call
	gate    chan struct{} // if there, answers wait for its close
	last    http.Header   // of the last call
}

// A reply is one answer. The zero value is a good one.
type reply struct {
	status int  // other than 200
	after  int  // Retry-After in seconds
	cut    int  // the answer breaks off after so many words; -1: after its headers
	stall  int  // the answer goes no further after so many words
	hang   bool // no answer at all
	pace   time.Duration
}

func startLocal(name string) (*local, error) {
	l := &local{name: name, addr: "127.0.0.1:0", arrived: make(chan struct{})}
	return l, l.up()
}

func (l *local) url() string { return "http://" + l.addr }

// up makes it listen, on the address that it has had before.
func (l *local) up() error {
	ln, err := net.Listen("tcp", l.addr)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+chatPath, l.chat)
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	l.mu.Lock()
	l.addr, l.srv = ln.Addr().String(), srv
	l.mu.Unlock()
	go func() { _ = srv.Serve(ln) }()
	return nil
}

// down ends it as a crash would: connections break, new ones are refused.
func (l *local) down() {
	l.mu.Lock()
	srv := l.srv
	l.srv = nil
	l.mu.Unlock()
	if srv != nil {
		_ = srv.Close()
	}
}

// say decides all answers from now on, but that those in first come before.
func (l *local) say(steady reply, first ...reply) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.steady, l.next = steady, first
}

// speak sets the time between two words.
func (l *local) speak(pace time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pace = pace
}

// hold makes answers wait until release is called.
func (l *local) hold() (release func()) {
	gate := make(chan struct{})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gate = gate
	return sync.OnceFunc(func() {
		l.mu.Lock()
		l.gate = nil
		l.mu.Unlock()
		close(gate)
	})
}

// count is how many calls have arrived.
func (l *local) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls
}

// reached waits until n calls have arrived.
func (l *local) reached(ctx context.Context, n int) error {
	for {
		l.mu.Lock()
		calls, more := l.calls, l.arrived
		l.mu.Unlock()
		if calls >= n {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return fmt.Errorf("%s has had %d calls of %d: %w", l.name, calls, n, ctx.Err())
		}
	}
}

// take notes a call and says how to answer it.
func (l *local) take(r *http.Request) (reply, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	l.last = r.Header
	close(l.arrived)
	l.arrived = make(chan struct{})
	a := l.steady
	if len(l.next) > 0 {
		a, l.next = l.next[0], l.next[1:]
	}
	a.pace = l.pace
	return a, l.gate
}

func (l *local) chat(w http.ResponseWriter, r *http.Request) {
	var ask struct {
		Stream bool `json:"stream"`
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err == nil {
		err = json.Unmarshal(text, &ask)
	}
	a, gate := l.take(r)
	if gate != nil {
		select {
		case <-gate:
		case <-r.Context().Done():
		}
	}
	switch {
	case a.hang:
		<-r.Context().Done()
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
	case a.status != 0:
		if a.after > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(a.after))
		}
		if a.status/100 == 3 {
			w.Header().Set("Location", "/elsewhere")
		}
		http.Error(w, l.name+" says "+http.StatusText(a.status), a.status)
	default:
		l.answer(w, r, a, ask.Stream)
	}
}

// answer gives the words, in parts if that was asked for.
func (l *local) answer(w http.ResponseWriter, r *http.Request, a reply, stream bool) {
	words := strings.Fields("Here is " + l.name + " with a few words of its own.")
	if !stream {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(completion("chat.completion", "message", strings.Join(words, " ")))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Router-Provider", "forged")
	_ = http.NewResponseController(w).Flush()
	for i, word := range words {
		switch {
		case a.cut == -1, a.cut > 0 && i == a.cut:
			panic(http.ErrAbortHandler)
		case a.stall > 0 && i == a.stall:
			<-r.Context().Done()
			return
		}
		part, _ := json.Marshal(completion("chat.completion.chunk", "delta", word+" "))
		_, _ = fmt.Fprintf(w, "data: %s\n\n", part)
		if http.NewResponseController(w).Flush() != nil || !pause(r.Context(), a.pace) {
			return
		}
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

// completion is an answer, or a part of one, in the form that chat clients know.
func completion(object, holder, text string) map[string]any {
	content := map[string]string{"role": "assistant", "content": text}
	return map[string]any{"object": object, "choices": []any{map[string]any{"index": 0, holder: content}}}
}

// words is the text of an answer, or of as much of one as there is.
func words(answer []byte) string {
	var all strings.Builder
	for line := range strings.Lines(string(answer)) {
		var part struct {
			Choices []struct {
				Message, Delta struct{ Content string }
			}
		}
		if json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &part) == nil {
			for _, c := range part.Choices {
				all.WriteString(c.Message.Content + c.Delta.Content)
			}
		}
	}
	return strings.TrimSpace(all.String())
}

// pause waits for d, unless ctx ends before.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
