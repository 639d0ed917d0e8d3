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

// The functions of CONTRIBUTING's walks are in the files that it names.
func TestWalks(t *testing.T) {
	text, err := os.ReadFile("../CONTRIBUTING.md")
	require.NoError(t, err)
	steps := regexp.MustCompile("(?m)^\\| `([\\w.]+)` \\| `([\\w/]+\\.go)` \\| .* \\|$").FindAllStringSubmatch(string(text), -1)
	require.Greater(t, len(steps), 40, "steps found")
	for _, step := range steps {
		file := filepath.Join("..", step[2])
		if homes := declaring(t, step[1], filepath.Dir(file)); !slices.Contains(homes, file) {
			t.Errorf("%s is not in %s; files that declare it: %v", step[1], step[2], homes)
		}
	}
}

// declaring lists the files of a directory that declare a function, or a method given as Type.Method.
func declaring(t *testing.T, name, dir string) (all []string) {
	t.Helper()
	receiver := ""
	if of, method, ok := strings.Cut(name, "."); ok {
		receiver, name = `\(\w* ?\*?`+of+`(\[\w+\])?\) `, method
	}
	declaration := regexp.MustCompile(`(?m)^func ` + receiver + name + `[(\[]`)
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		if declaration.Match(text) {
			all = append(all, file)
		}
	}
	return all
}
