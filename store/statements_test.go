package store_test

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/store/storetest"
)

// Every statement of the program is one that Postgres prepares against the
// migrated schema: names, columns and types are right also where no test runs
// it. The statements are found in the source, so a new one is in the test by
// itself; one whose text cannot be told from the source fails it.
func TestStatementsPrepare(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), storetest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	src := readSource(t)
	found := 0
	for _, s := range src.statements() {
		if s.text == "" {
			t.Errorf("%s: what is sent to the database here cannot be told from the source", s.at)
			continue
		}
		if strings.HasPrefix(s.text, "LISTEN ") || strings.HasPrefix(s.text, "SET ") {
			continue // utility statements are not prepared
		}
		found++
		if _, err := conn.Prepare(t.Context(), "", numbered(s.text)); err != nil {
			t.Errorf("%s: %v\n%s", s.at, err, s.text)
		}
	}
	if found < 100 {
		t.Errorf("found %d statements in the source, want all of them: the search is broken", found)
	}
}

// hole stands where a placeholder is numbered at run time.
const hole = "\x00"

func numbered(sql string) string {
	for n := 1; strings.Contains(sql, hole); n++ {
		sql = strings.Replace(sql, hole, "$"+strconv.Itoa(n), 1)
	}
	return sql
}

type statement struct{ at, text string }

// source is the package's source with what is constant in it.
type source struct {
	fset  *token.FileSet
	files []*ast.File
	info  *types.Info
}

// noImports lets a package be checked without what it imports: constants of its
// own are all that is asked for.
type noImports struct{}

func (noImports) Import(path string) (*types.Package, error) {
	p := types.NewPackage(path, path[strings.LastIndex(path, "/")+1:])
	p.MarkComplete()
	return p, nil
}

func readSource(t *testing.T) *source {
	t.Helper()
	s := &source{fset: token.NewFileSet(), info: &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}}
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(s.fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		s.files = append(s.files, f)
	}
	cfg := types.Config{Importer: noImports{}, Error: func(error) {}}
	_, _ = cfg.Check("store", s.fset, s.files, s.info) // it cannot be without errors
	return s
}

// sends are the methods that take SQL, with the place of it among their
// arguments.
var sends = map[string]int{"Exec": 1, "Query": 1, "QueryRow": 1, "Queue": 0, "ExecContext": 1}

// dataDefinition are the functions that send what is not prepared: statements
// that make and drop partitions, whose own test runs them.
var dataDefinition = []string{"changed"}

func (s *source) statements() []statement {
	var out []statement
	s.inFunctions(func(fn *ast.FuncDecl, call *ast.CallExpr) {
		if slices.Contains(dataDefinition, fn.Name.Name) {
			return
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return
		}
		at, ok := sends[sel.Sel.Name]
		if !ok || len(call.Args) <= at {
			return
		}
		texts := s.texts(fn, call.Args[at])
		if len(texts) == 0 {
			texts = []string{""}
		}
		for _, text := range texts {
			out = append(out, statement{s.fset.Position(call.Pos()).String(), text})
		}
	})
	return out
}

func (s *source) inFunctions(visit func(*ast.FuncDecl, *ast.CallExpr)) {
	for _, f := range s.files {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					visit(fn, call)
				}
				return true
			})
		}
	}
}

// texts are the texts that an expression can have; none when that cannot be
// told.
func (s *source) texts(fn *ast.FuncDecl, e ast.Expr) []string {
	if v := s.info.Types[e].Value; v != nil && v.Kind() == constant.String {
		return []string{constant.StringVal(v)}
	}
	switch e := e.(type) {
	case *ast.ParenExpr:
		return s.texts(fn, e.X)
	case *ast.BinaryExpr:
		return join(s.texts(fn, e.X), s.texts(fn, e.Y))
	case *ast.CallExpr:
		return s.called(fn, e)
	case *ast.Ident:
		return s.assigned(fn, e.Name)
	case *ast.SelectorExpr:
		return s.field(fn, e)
	}
	return nil
}

// field are the texts that the package's literals give to a struct's field.
func (s *source) field(fn *ast.FuncDecl, sel *ast.SelectorExpr) []string {
	typ := s.info.TypeOf(sel.X)
	if typ == nil {
		return nil
	}
	st, ok := typ.Underlying().(*types.Struct)
	if !ok {
		return nil
	}
	var out []string
	for _, f := range s.files {
		ast.Inspect(f, func(n ast.Node) bool {
			lit, ok := n.(*ast.CompositeLit)
			if !ok || s.info.TypeOf(lit) == nil || !types.Identical(s.info.TypeOf(lit), typ) {
				return true
			}
			for i, el := range lit.Elts {
				name := st.Field(min(i, st.NumFields()-1)).Name()
				if kv, ok := el.(*ast.KeyValueExpr); ok {
					name, el = types.ExprString(kv.Key), kv.Value
				}
				if name == sel.Sel.Name {
					out = append(out, s.texts(fn, el)...)
				}
			}
			return true
		})
	}
	return out
}

func join(heads, tails []string) []string {
	var out []string
	for _, h := range heads {
		for _, t := range tails {
			out = append(out, h+t)
		}
	}
	return out
}

// called knows what the functions that put a statement together return.
func (s *source) called(fn *ast.FuncDecl, call *ast.CallExpr) []string {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return nil
	}
	switch sel.Sel.Name {
	case "arg":
		return []string{hole}
	case "where":
		return []string{strings.Join(append(s.conditions(fn), "true"), " AND ")}
	case "Replace": // strings.Replace(sql, ...): what it was before, and the new part in a list's own test
		return s.texts(fn, call.Args[0])
	case "Sprintf":
		return s.formatted(fn, call)
	}
	return nil
}

// conditions are all conditions that a function, or what it hands its clauses
// to, can add.
func (s *source) conditions(fn *ast.FuncDecl) []string {
	var out []string
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		switch f := call.Fun.(type) {
		case *ast.SelectorExpr:
			switch f.Sel.Name {
			case "add":
				for _, text := range s.texts(fn, call.Args[0]) {
					out = append(out, strings.ReplaceAll(text, "%s", hole))
				}
			case "node":
				out = append(out, s.conditions(s.function("node"))...)
			}
		case *ast.Ident:
			if f.Name == "append" && strings.HasSuffix(types.ExprString(call.Args[0]), ".sql") {
				for _, a := range call.Args[1:] {
					out = append(out, s.texts(fn, a)...)
				}
			}
		}
		return true
	})
	return out
}

func (s *source) function(name string) *ast.FuncDecl {
	for _, f := range s.files {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Name.Name == name {
				return fn
			}
		}
	}
	panic("no function " + name)
}

// assigned are the texts that a function's variable or parameter is given.
func (s *source) assigned(fn *ast.FuncDecl, name string) []string {
	var out []string
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for i, left := range n.Lhs {
				if id, ok := left.(*ast.Ident); !ok || id.Name != name || i >= len(n.Rhs) {
					continue
				}
				switch {
				case n.Tok == token.ADD_ASSIGN:
					out = append(out, join(slices.Clone(out), s.texts(fn, n.Rhs[i]))...)
				case !mentions(n.Rhs[i], name): // sql = f(sql) is no new text
					out = append(out, s.texts(fn, n.Rhs[i])...)
				}
			}
		case *ast.RangeStmt:
			if id, ok := n.Value.(*ast.Ident); ok && id.Name == name {
				out = append(out, s.elements(fn, n.X)...)
			}
		}
		return true
	})
	return append(out, s.passed(fn, name)...)
}

func mentions(e ast.Expr, name string) bool {
	found := false
	ast.Inspect(e, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && id.Name == name {
			found = true
		}
		return true
	})
	return found
}

// elements are the values of a literal that is ranged over.
func (s *source) elements(fn *ast.FuncDecl, e ast.Expr) []string {
	lit, ok := e.(*ast.CompositeLit)
	if !ok {
		return nil
	}
	var out []string
	for _, el := range lit.Elts {
		if kv, ok := el.(*ast.KeyValueExpr); ok {
			el = kv.Value
		}
		out = append(out, s.texts(fn, el)...)
	}
	return out
}

// passed are the texts that a parameter is given by the package's own calls.
func (s *source) passed(fn *ast.FuncDecl, name string) []string {
	at := -1
	n := 0
	for _, field := range fn.Type.Params.List {
		for _, id := range field.Names {
			if id.Name == name {
				at = n
			}
			n++
		}
	}
	if at < 0 {
		return nil
	}
	var out []string
	s.inFunctions(func(caller *ast.FuncDecl, call *ast.CallExpr) {
		called := ""
		switch f := call.Fun.(type) {
		case *ast.Ident:
			called = f.Name
		case *ast.SelectorExpr:
			called = f.Sel.Name
		}
		if called == fn.Name.Name && len(call.Args) > at && caller != fn {
			out = append(out, s.texts(caller, call.Args[at])...)
		}
	})
	return out
}

// formatted are the statements about the sealed columns, one a column.
func (s *source) formatted(fn *ast.FuncDecl, call *ast.CallExpr) []string {
	format := s.texts(fn, call.Args[0])
	if len(format) != 1 {
		return nil
	}
	var out []string
	for _, f := range s.files {
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || spec.Names[0].Name != "sealedColumns" {
				return true
			}
			for _, el := range spec.Values[0].(*ast.CompositeLit).Elts {
				fields := map[string]string{}
				for i, v := range el.(*ast.CompositeLit).Elts {
					if kv, ok := v.(*ast.KeyValueExpr); ok {
						fields[kv.Key.(*ast.Ident).Name] = s.only(fn, kv.Value)
						continue
					}
					fields[[]string{"table", "column", "key", "belongsTo"}[min(i, 3)]] = s.only(fn, v)
				}
				args := make([]any, 0, len(call.Args))
				for _, a := range call.Args[1:] {
					args = append(args, fields[a.(*ast.SelectorExpr).Sel.Name])
				}
				out = append(out, fmt.Sprintf(format[0], args...))
			}
			return false
		})
	}
	return out
}

func (s *source) only(fn *ast.FuncDecl, e ast.Expr) string {
	if texts := s.texts(fn, e); len(texts) == 1 {
		return texts[0]
	}
	return ""
}
