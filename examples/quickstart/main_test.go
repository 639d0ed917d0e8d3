package main

import (
	"context"
	"strings"
	"testing"
	"time"
)

func TestStory(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 45*time.Second)
	defer cancel()

	var out strings.Builder
	// The limit is long, so that a busy machine does not turn a good answer into a failure; only one request runs into it.
	err := run(ctx, &out, pace{every: 100 * time.Millisecond, limit: 500 * time.Millisecond, open: 600 * time.Millisecond})
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	rest := out.String()
	for _, want := range []string{
		"closed -> open: threshold reached, next probe in 600ms\n",
		"rejected, next probe in",
		"open -> half-open: timeout expired\n",
		"half-open -> open: probe failed, next probe in 600ms\n",
		"rejected, next probe in",
		"open -> half-open: timeout expired\n",
		"half-open -> closed: recovered\n",
	} {
		_, after, ok := strings.Cut(rest, want)
		if !ok {
			t.Fatalf("no %q, or not in its place, in\n%s", want, out.String())
		}
		rest = after
	}
}
