package api

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/go-playground/validator/v10"

	"github.com/bettercompute/compute/fleet"
)

// rules validates values by the method table's tags. Lengths are counted in
// characters; `pattern` names one of fleet.Patterns.
var rules = func() *validator.Validate {
	v := validator.New(validator.WithRequiredStructEnabled())
	if err := v.RegisterValidation("pattern", func(fl validator.FieldLevel) bool {
		return fleet.MatchPattern(fl.Param(), fl.Field().String())
	}); err != nil {
		panic(err)
	}
	if err := v.RegisterValidation("sshcertkey", func(fl validator.FieldLevel) bool {
		_, err := parseSSHKey(fl.Field().String())
		return err == nil
	}); err != nil {
		panic(err)
	}
	return v
}()

// check enforces a present member's rules. Presence itself is the decoder's
// business, so that an empty string is judged by its rules and not taken for an
// absent one.
func (d *decoder) check(v reflect.Value, tag, path string) {
	for v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Type() == reflect.TypeFor[fleet.Time]() || v.Kind() == reflect.Struct {
		return // its members were checked on their own
	}
	tag = strings.TrimPrefix(strings.TrimPrefix(tag, "required"), "omitempty")
	tag = strings.TrimPrefix(tag, ",")
	if tag == "" {
		return
	}
	err := rules.Var(v.Interface(), tag)
	var failed validator.ValidationErrors
	if !errors.As(err, &failed) {
		return
	}
	for _, f := range failed {
		// The name is "" for the member itself, "[3]" or "[key]" for an element.
		d.fail(path+f.Namespace(), describe(f.Tag(), f.Param(), f.Kind()))
	}
}

// describe says a rule in words; it is also what the schema generator knows.
func describe(tag, param string, kind reflect.Kind) string {
	switch tag {
	case "pattern":
		return "matches " + fleet.Patterns[param]
	case "max":
		return "at most " + amount(param, kind)
	case "min":
		return "at least " + amount(param, kind)
	case "oneof":
		return "one of " + strings.Join(strings.Fields(param), ", ")
	case "unique":
		return "no repeats"
	case "cidr":
		return "a network as ADDRESS/BITS"
	case "sshcertkey":
		return sshKeyRule
	default:
		return strings.TrimSpace(tag + " " + param)
	}
}

func amount(n string, kind reflect.Kind) string {
	switch kind {
	case reflect.String:
		return n + " characters"
	case reflect.Slice, reflect.Map:
		return n + " items"
	default:
		return n
	}
}

func isEOF(err error) bool { return errors.Is(err, io.EOF) }

// faultAt is where in a text its syntax is wrong.
func faultAt(err error) jsontext.Pointer {
	var syntax *jsontext.SyntacticError
	if errors.As(err, &syntax) {
		return syntax.JSONPointer
	}
	return ""
}

// plain says a syntax error without the library's prefix.
func plain(err error) string {
	var syntax *jsontext.SyntacticError
	if errors.As(err, &syntax) {
		return fmt.Sprintf("%v at byte %d", syntax.Err, syntax.ByteOffset)
	}
	return "unexpected end"
}
