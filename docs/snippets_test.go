// Package docs_test compiles the Go code that the documentation shows.
package docs_test

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSnippets type-checks every block of Go code in every Markdown file of the repository, and in the packages' doc.go. A block is one of
//
//   - a file, which begins with its package clause and stands for itself;
//   - declarations, which may use the names of testdata/names.go, or take their place;
//   - statements, which may use those as well and stand in a function that returns an error. A variable may be left unused.
//
// Declarations and statements import nothing: the packages that they name are taken from what testdata/names.go imports. In
// a doc.go a line of three dots stands for what is left out. Nothing is run and nothing is downloaded: the packages come
// from the workspace and from what its modules require.
func TestSnippets(t *testing.T) {
	c := newChecker(t, "..")
	require.Empty(t, c.check(snippet{file: "testdata/names.go", line: 1}), "testdata/names.go alone")
	n := 0
	for _, file := range documents(t, "..") {
		for _, s := range snippetsOf(t, "..", file) {
			n++
			for _, err := range c.check(s) {
				t.Error(err)
			}
		}
	}
	require.Greater(t, n, 20, "code blocks found")
}

// A block that does not compile is reported with the document's line.
func TestSnippetErrorsNameTheLine(t *testing.T) {
	c := newChecker(t, "..")
	for text, want := range map[string]string{
		"circuit.Explode()":                                 "page.md:8:9: circuit.Explode undefined",
		"circuit.Reset()\ncircuit.Trip()":                   "page.md:9:14: not enough arguments in call to circuit.Trip",
		"func f() {\n\treturn 1\n}":                         "page.md:9:9: too many return values",
		"circuit.Reset()\nx := := 1":                        "page.md:9:6: expected operand",
		"package p\n\nimport \"os\"":                        `page.md:10:8: "os" imported and not used`,
		"package p\n\nimport \"example.com/nobody/has-it\"": "page.md:10:8: could not import example.com/nobody/has-it",
	} {
		errs := c.check(snippet{file: "page.md", line: 8, text: text})
		require.NotEmpty(t, errs, text)
		require.ErrorContains(t, errs[0], want, text)
	}
	require.Empty(t, c.check(snippet{file: "page.md", line: 8, text: "circuit.Trip(err)"}))
}

// The program at the top of the README prints what stands below it.
func TestReadmeExample(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```go\n(package main.*?)```\n\n```text\n(.*?)```").FindSubmatch(text)
	require.NotNil(t, blocks, "a program and its output")
	program := filepath.Join(t.TempDir(), "main.go")
	require.NoError(t, os.WriteFile(program, blocks[1], 0o600))
	run := exec.CommandContext(t.Context(), "go", "run", program)
	run.Dir = ".." // of the module that the program imports
	out, err := run.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, string(blocks[2]), string(out))
}

// documents are the Markdown files and the package comments, by their paths from root.
func documents(t *testing.T, root string) (all []string) {
	t.Helper()
	require.NoError(t, fs.WalkDir(os.DirFS(root), ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || len(path) > 1 && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case strings.HasSuffix(path, ".md"), d.Name() == "doc.go":
			all = append(all, path)
		}
		return nil
	}))
	return all
}

// snippet is a block of Go code and where it stands.
type snippet struct {
	file string
	line int // of its first line
	text string
}

var (
	fenced = regexp.MustCompile("(?ms)^```go[^\n]*\n(.*?)^```$")
	// In a comment code is indented by a tab; what has no word of Go in it is a drawing.
	commented = regexp.MustCompile(`(?m)(?:^//\t.*\n|^//\n)*^//\t.*\n`)
	code      = regexp.MustCompile(`(?m):=|^func |^var `)
)

// snippetsOf returns the blocks of Go code in a file.
func snippetsOf(t *testing.T, root, file string) (all []snippet) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, file))
	require.NoError(t, err)
	text := string(raw)
	add := func(from, to int, strip string) {
		s := snippet{file: file, line: 1 + strings.Count(text[:from], "\n"), text: text[from:to]}
		if strip != "" {
			s.text = regexp.MustCompile("(?m)^"+strip).ReplaceAllString(s.text, "")
		}
		all = append(all, s)
	}
	if strings.HasSuffix(file, ".md") {
		for _, at := range fenced.FindAllStringSubmatchIndex(text, -1) {
			add(at[2], at[3], "")
		}
		return all
	}
	for _, at := range commented.FindAllStringIndex(text, -1) {
		if code.MatchString(strings.ReplaceAll(text[at[0]:at[1]], "//\t", "")) {
			add(at[0], at[1], `//(\t\.\.\.$|\t)?`)
		}
	}
	return all
}

// checker type-checks snippets against the packages of the workspace.
type checker struct {
	fset     *token.FileSet
	importer types.Importer
	names    *ast.File
	imports  map[string]string // what names.go imports, by the name that code uses
}

func newChecker(t *testing.T, root string) *checker {
	t.Helper()
	c := &checker{fset: token.NewFileSet(), imports: map[string]string{}}
	var err error
	c.names, err = parser.ParseFile(c.fset, "testdata/names.go", nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	var paths []string
	for _, spec := range c.names.Imports {
		path := strings.Trim(spec.Path.Value, `"`)
		paths = append(paths, path)
		if spec.Name != nil && spec.Name.Name != "_" {
			c.imports[spec.Name.Name] = path
			continue
		}
		c.imports[path[strings.LastIndexByte(path, '/')+1:]] = path
	}
	exports := exportData(t, root, paths)
	c.importer = importer.ForCompiler(c.fset, "gc", func(path string) (io.ReadCloser, error) {
		file, ok := exports[path]
		if !ok {
			return nil, fmt.Errorf("not among the packages that the workspace's modules use")
		}
		return os.Open(file)
	})
	return c
}

// exportData names the files in which the compiler keeps what the packages, and those that they import, export.
func exportData(t *testing.T, root string, paths []string) map[string]string {
	t.Helper()
	work, err := filepath.Abs(filepath.Join(root, "go.work"))
	require.NoError(t, err)
	list := exec.CommandContext(t.Context(), "go",
		append([]string{"list", "-e", "-export", "-deps", "-f", "{{if .Export}}{{.ImportPath}}\t{{.Export}}{{end}}"}, paths...)...)
	list.Dir, list.Env = root, append(os.Environ(), "GOWORK="+work, "GOPROXY=off")
	var stderr bytes.Buffer
	list.Stderr = &stderr
	out, err := list.Output()
	require.NoError(t, err, stderr.String())
	exports := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), "\t")
		exports[path] = file
	}
	return exports
}

// check returns what is wrong with a snippet.
func (c *checker) check(s snippet) (errs []error) {
	file, whole, err := c.parse(s)
	if err != nil {
		return []error{err}
	}
	files := []*ast.File{file}
	if !whole {
		files = append(files, c.names)
	}
	config := types.Config{Importer: c.importer, Error: func(err error) {
		var e types.Error
		errors.As(err, &e)
		switch {
		case !whole && e.Soft: // a variable or a package that is not used
		case c.isNames(e.Pos) && s.text != "": // a name that the snippet declares itself
		case strings.HasPrefix(e.Msg, "\t"): // more about the error before
		default:
			errs = append(errs, err)
		}
	}}
	config.Check("snippet", c.fset, files, nil)
	return errs
}

func (c *checker) isNames(at token.Pos) bool {
	return c.names.FileStart <= at && at <= c.names.FileEnd
}

// parse makes a file of a snippet, whose positions are those in the document.
func (c *checker) parse(s snippet) (file *ast.File, whole bool, err error) {
	line := fmt.Sprintf("//line %s:%d:1\n", s.file, s.line)
	parse := func(text string) (*ast.File, error) {
		return parser.ParseFile(c.fset, "", text, parser.SkipObjectResolution)
	}
	if strings.HasPrefix(strings.TrimSpace(s.text), "package ") {
		file, err = parse(line + s.text)
		return file, true, err
	}
	head := "package snippet\n" + c.header()
	if file, err = parse(head + line + s.text); err == nil {
		return file, false, nil
	}
	file, err = parse(head + "func _() error {\n" + line + s.text + "\nreturn nil\n}")
	return file, false, err
}

// header imports all that fragments may name.
func (c *checker) header() string {
	var all []string
	for name, path := range c.imports {
		all = append(all, fmt.Sprintf("import %s %q\n", name, path))
	}
	slices.Sort(all)
	return strings.Join(all, "")
}
