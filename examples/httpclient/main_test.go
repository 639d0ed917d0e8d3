package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const story = `The circuit opens at 3 failures in a row. A request is retried up to 2 times.

All is well:
  status 200                    server saw 1
  status 200                    server saw 1

One hiccup, a retry helps:
  status 200, rescued by retry  server saw 2

The server is down. The third failure opens the circuit, and no more requests get through:
  status 503                    server saw 3
  rejected at once              server saw 0
  rejected at once              server saw 0

200ms later the server is back. Two probes close the circuit:
  status 200                    server saw 1
  status 200                    server saw 1
  status 200                    server saw 1
`

func TestStory(t *testing.T) {
	var out strings.Builder
	require.NoError(t, run(&out, 200*time.Millisecond))
	require.Equal(t, story, out.String())
}
