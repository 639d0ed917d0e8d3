package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The files of the root package stand in an order, which CONTRIBUTING.md gives: a file uses what is declared in itself and in
// the files below it. What it uses of a file above is an exception, which is listed there with its reason.
func TestFilesUseWhatStandsBelowThem(t *testing.T) {
	text, err := os.ReadFile("../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text2, found := strings.Cut(string(text), "### The order of the root's files")
	if !found {
		t.Fatal("CONTRIBUTING.md does not give the order of the files")
	}
	section, _, _ := strings.Cut(text2, "\n## ")
	rank := map[string]int{}
	list, exceptions, _ := strings.Cut(section, "Where a file uses one")
	for i, m := range regexp.MustCompile("`([a-z_]+\\.go)`").FindAllStringSubmatch(list, -1) {
		rank[m[1]] = i
	}
	excused := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^- `([a-z_]+\\.go)` uses `([a-z_]+\\.go)`: \\S").FindAllStringSubmatch(exceptions, -1) {
		excused[m[1]+" uses "+m[2]] = true
	}

	used := upward(t, rank)
	for pair, names := range used {
		if !excused[pair] {
			t.Errorf("%s, which stands above it: %s", pair, strings.Join(names, " "))
		}
	}
	for pair := range excused {
		if used[pair] == nil {
			t.Errorf("CONTRIBUTING.md excuses that %s, which it does not", pair)
		}
	}
}

// upward returns, for each pair of files of which the first uses the second although that stands above it, what it uses.
func upward(t *testing.T, rank map[string]int) map[string][]string {
	fset := token.NewFileSet()
	names, err := filepath.Glob("../*.go")
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
		if _, ok := rank[filepath.Base(name)]; !ok {
			t.Errorf("CONTRIBUTING.md does not say where %s stands", filepath.Base(name))
		}
	}
	methods := map[string]bool{} // "file type": the file has methods of the type, which is its own
	for _, file := range files {
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil {
				methods[filepath.Base(fset.Position(f.Pos()).Filename)+" "+receiver(f.Recv.List[0].Type)] = true
			}
		}
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: nothing{}, Error: func(error) {}} // what is imported does not matter
	pkg, _ := conf.Check("breaker", fset, files, info)
	used := map[string][]string{}
	for id, obj := range info.Uses {
		from, to := filepath.Base(fset.Position(id.Pos()).Filename), filepath.Base(fset.Position(obj.Pos()).Filename)
		if obj.Parent() != pkg.Scope() || methods[from+" "+obj.Name()] {
			continue
		}
		if pair := from + " uses " + to; rank[from] > rank[to] && !slices.Contains(used[pair], obj.Name()) {
			used[pair] = append(used[pair], obj.Name())
		}
	}
	return used
}

// receiver is the name of a receiver's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// nothing imports packages without what is in them.
type nothing struct{}

func (nothing) Import(name string) (*types.Package, error) {
	p := types.NewPackage(name, path.Base(name))
	p.MarkComplete()
	return p, nil
}
