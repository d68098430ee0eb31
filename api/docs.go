package api

import (
	"bytes"
	_ "embed"
	"html/template"
	"net/http"
	"reflect"
	"strings"
	"sync"

	"github.com/gin-gonic/gin"

	"github.com/bettercompute/compute/fleet"
)

//go:embed docs.html
var docsHTML string

// docField is a row of a method's input.
type docField struct{ Name, Type, Rules, Doc string }

// docMethod is a method as the reference shows it.
type docMethod struct {
	fleet.Method
	Fields []docField
}

// docsPage is rendered once: the table does not change while a process runs.
var docsPage = sync.OnceValues(func() ([]byte, error) {
	t, err := template.New("docs").Parse(docsHTML)
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller says what it was for
	}
	groups := map[string][]docMethod{}
	var order []string
	for _, m := range fleet.Methods {
		if groups[m.Group] == nil {
			order = append(order, m.Group)
		}
		groups[m.Group] = append(groups[m.Group], docMethod{Method: m, Fields: docFields(reflect.TypeOf(m.In), "")})
	}
	var buf bytes.Buffer
	err = t.Execute(&buf, map[string]any{"Order": order, "Groups": groups, "Table": fleet.Table})
	return buf.Bytes(), err //nolint:wrapcheck // the caller says what it was for
})

func docFields(t reflect.Type, path string) []docField {
	var out []docField
	for _, m := range members(t) {
		name := join(path, m.name)
		ft := m.field.Type
		if ft.Kind() == reflect.Pointer {
			ft = ft.Elem()
		}
		out = append(out, docField{Name: name, Type: typeName(ft), Rules: ruleWords(m.field.Tag), Doc: m.field.Tag.Get("doc")})
		if ft.Kind() == reflect.Struct && ft != reflect.TypeFor[fleet.Time]() {
			out = append(out, docFields(ft, name)...)
		}
	}
	return out
}

func typeName(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[fleet.Time]():
		return "time"
	case t.Kind() == reflect.Slice:
		return "list of " + typeName(t.Elem())
	case t.Kind() == reflect.Map:
		return "map of " + typeName(t.Elem())
	case t.Kind() == reflect.Struct:
		return "object"
	case t.Kind() == reflect.Int, t.Kind() == reflect.Int64:
		return "integer"
	case t.Kind() == reflect.Bool:
		return "boolean"
	default:
		return "string"
	}
}

// ruleWords says a member's rules as a person reads them.
func ruleWords(tag reflect.StructTag) string {
	var words []string
	if required(tag.Get("validate")) {
		words = append(words, "required")
	}
	kind := reflect.String
	for rule := range strings.SplitSeq(tag.Get("validate"), ",") {
		name, param, _ := strings.Cut(rule, "=")
		switch name {
		case "required", "omitempty", "", "endkeys":
		case "dive":
			words = append(words, "each")
		case "keys":
			words = append(words, "key")
		default:
			words = append(words, strings.Replace(describe(name, param, kind), " characters", "", 1))
		}
	}
	if def := tag.Get("default"); def != "" {
		words = append(words, "default "+def)
	}
	return strings.Join(words, "; ")
}

func (s *Server) docs(g *gin.Context) {
	page, err := docsPage()
	if err != nil {
		writeProblem(g, s.log, err)
		return
	}
	g.Header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	g.Data(http.StatusOK, "text/html; charset=utf-8", page)
}
