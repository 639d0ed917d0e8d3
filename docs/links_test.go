package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	codeBlock = regexp.MustCompile("(?ms)^```.*?^```$|`[^`\n]*`")
	link      = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading   = regexp.MustCompile(`(?m)^#+ (.*)$`)
	dropped   = regexp.MustCompile(`[^\w\- ]`) // from a heading's anchor
)

// Every link to a file of the repository leads to one, and to a heading that it has.
func TestLinks(t *testing.T) {
	for _, file := range documents(t, "..") {
		if !strings.HasSuffix(file, ".md") {
			continue
		}
		text, err := os.ReadFile(filepath.Join("..", file))
		require.NoError(t, err)
		for _, m := range link.FindAllStringSubmatch(codeBlock.ReplaceAllString(string(text), ""), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			path, anchor, _ := strings.Cut(m[1], "#")
			to := filepath.Join("..", filepath.Dir(file), path)
			if path == "" {
				to = filepath.Join("..", file)
			}
			if _, err := os.Stat(to); err != nil || anchor != "" && !hasAnchor(t, to, anchor) {
				t.Errorf("%s: nothing at %s", file, m[1])
			}
		}
	}
}

// hasAnchor reports whether a Markdown file has a heading with that anchor.
func hasAnchor(t *testing.T, file, anchor string) bool {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for _, h := range heading.FindAllStringSubmatch(string(text), -1) {
		if strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-") == anchor {
			return true
		}
	}
	return false
}
