package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every guarantee names its rule, and every rule its tests, which exist.
func TestGuarantees(t *testing.T) {
	text, err := os.ReadFile("guarantees.md")
	require.NoError(t, err)
	promises, tests, ok := strings.Cut(string(text), "\n## Tests\n")
	require.True(t, ok)

	rule := regexp.MustCompile(`(?m)^\| ([A-Z][A-Z0-9-]+) \| (.*) \|$`)
	promised := []string{"MACHINE", "MODEL"} // in the text above the tables
	for _, row := range rule.FindAllStringSubmatch(promises, -1) {
		promised = append(promised, row[1])
	}
	var tested []string
	for _, row := range rule.FindAllStringSubmatch(tests, -1) {
		tested = append(tested, row[1])
		names, dir, _ := strings.Cut(row[2], " | ")
		source := testSource(t, filepath.Join("..", dir))
		for _, name := range regexp.MustCompile("`((?:Test|Fuzz)\\w+)`").FindAllStringSubmatch(names, -1) {
			if !strings.Contains(source, "\nfunc "+name[1]+"(") {
				t.Errorf("%s: there is no %s in %s", row[1], name[1], dir)
			}
		}
	}
	slices.Sort(promised)
	slices.Sort(tested)
	require.Equal(t, promised, tested)
}

// testSource is the text of all tests in a directory.
func testSource(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	require.NoError(t, err)
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		all.Write(text)
	}
	return all.String()
}
