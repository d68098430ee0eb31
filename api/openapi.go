package api

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/bettercompute/compute/fleet"
)

type object = map[string]any

// commonErrors are those that every method can answer.
var commonErrors = []fleet.Code{fleet.CodeInvalidInput, fleet.CodeUnauthenticated, fleet.CodeAccessDenied, fleet.CodeRateLimited,
	fleet.CodeUnavailable, fleet.CodeInternal}

// OpenAPI makes the OpenAPI 3.1 document from the method table. It fails on a
// rule that it cannot say, so that nothing is enforced but undocumented.
func OpenAPI() ([]byte, error) {
	s := &schemas{defs: object{}}
	paths := object{}
	for _, m := range fleet.Methods {
		in := s.input(reflect.TypeOf(m.In))
		out := s.output(reflect.TypeOf(m.Out))
		responses := object{"200": object{"description": "Done.", "content": content(out)}}
		for _, code := range slices.Concat(commonErrors, m.Errors) {
			responses[strconv.Itoa(statuses[code])] = refusal(string(code))
		}
		responses["413"] = refusal("INVALID_INPUT: larger than 1 MiB")
		responses["415"] = refusal("INVALID_INPUT: not application/json")
		op := object{"operationId": m.Group + "_" + m.Name, "tags": []string{m.Group}, "summary": strings.TrimSuffix(m.Summary, "."),
			"requestBody": object{"required": true, "content": content(in)}, "responses": responses,
			"x-permission": string(m.Permission), "x-resource": string(m.Resource), "x-kind": string(m.Kind)}
		if m.Doc != "" {
			op["description"] = m.Doc
		}
		if m.Kind == fleet.KindMutation {
			op["parameters"] = []any{object{"name": "Idempotency-Key", "in": "header", "required": false,
				"description": "Makes a repeat of this call answer what the first one answered, for 24 hours.",
				"schema":      object{"type": "string", "minLength": 1, "maxLength": 255}}}
		}
		paths[m.Path()] = object{"post": op}
	}
	if len(s.errs) > 0 {
		return nil, fmt.Errorf("rules that the OpenAPI document cannot say: %s", strings.Join(s.errs, "; "))
	}
	s.defs["Problem"] = problemSchema
	paths["/api/compute/events/stream"] = object{"get": s.streamOperation()}
	doc := object{"openapi": "3.1.0",
		"info":       object{"title": "Better Compute", "version": "v1", "description": "The control plane of bare-metal GPU fleets."},
		"paths":      paths,
		"security":   []any{object{"bearer": []string{}}},
		"components": object{"schemas": s.defs, "securitySchemes": object{"bearer": object{"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}}}}
	b, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the OpenAPI document: %w", err)
	}
	return append(b, '\n'), nil
}

var problemSchema = object{"type": "object", "description": "RFC 9457. Further members are named by the code.",
	"required": []string{"type", "title", "status", "detail", "instance", "code", "requestId"},
	"properties": object{"type": object{"type": "string"}, "title": object{"type": "string"}, "status": object{"type": "integer"},
		"detail": object{"type": "string"}, "instance": object{"type": "string"}, "code": object{"type": "string"}, "reason": object{"type": "string"},
		"requestId": object{"type": "string"},
		"traceId":   object{"type": "string", "description": "The trace of the call, where traces are sent."}, "fields": object{"type": "array", "items": object{"type": "object",
			"properties": object{"field": object{"type": "string"}, "constraint": object{"type": "string"}}}}}}

func refusal(description string) object {
	return object{"description": description, "content": object{
		"application/problem+json": object{"schema": object{"$ref": "#/components/schemas/Problem"}}}}
}

func content(schema object) object { return object{"application/json": object{"schema": schema}} }

// schemas collects the schemas of types by name.
type schemas struct {
	defs object
	errs []string
}

// input is the schema of an input type, with its rules.
func (s *schemas) input(t reflect.Type) object { return s.structure(t, true) }

// output is the schema of an output type.
func (s *schemas) output(t reflect.Type) object { return s.structure(t, false) }

func (s *schemas) structure(t reflect.Type, strict bool) object {
	name := schemaName(t, strict)
	ref := object{"$ref": "#/components/schemas/" + name}
	if _, done := s.defs[name]; done {
		return ref
	}
	s.defs[name] = object{} // a type may hold itself
	properties, needed := object{}, []string{}
	for _, m := range members(t) {
		tag := m.field.Tag.Get("validate")
		schema := s.typed(m.field.Type, strict)
		if strict {
			s.rules(schema, m.field.Type, tag, t.Name()+"."+m.name)
		}
		if doc := m.field.Tag.Get("doc"); doc != "" {
			schema["description"] = doc
		}
		if def := m.field.Tag.Get("default"); def != "" {
			schema["default"] = typedDefault(m.field.Type, def)
		}
		if m.field.Tag.Get("secret") == "true" {
			schema["writeOnly"] = strict
		}
		if strict && required(tag) || !strict && !strings.Contains(m.field.Tag.Get("json"), "omitempty") {
			needed = append(needed, m.name)
		}
		properties[m.name] = schema
	}
	def := object{"type": "object", "properties": properties}
	if strict {
		def["additionalProperties"] = false
	}
	if len(needed) > 0 {
		def["required"] = needed
	}
	s.defs[name] = def
	return ref
}

// schemaName tells a type as input, where its rules hold and nothing may be
// added, from the same type as output.
func schemaName(t reflect.Type, strict bool) string {
	if strict && !strings.HasSuffix(t.Name(), "In") {
		return t.Name() + "In"
	}
	return t.Name()
}

func (s *schemas) typed(t reflect.Type, strict bool) object {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == reflect.TypeFor[fleet.Time]() {
		return object{"type": "string", "format": "date-time"}
	}
	switch t.Kind() {
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int, reflect.Int64:
		return object{"type": "integer"}
	case reflect.Slice:
		return object{"type": "array", "items": s.typed(t.Elem(), strict)}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": s.typed(t.Elem(), strict)}
	case reflect.Struct:
		return s.structure(t, strict)
	case reflect.Interface:
		return object{}
	default:
		s.errs = append(s.errs, "type "+t.String())
		return object{}
	}
}

func typedDefault(t reflect.Type, text string) any {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Int, reflect.Int64:
		if n, err := strconv.Atoi(text); err == nil {
			return n
		}
	case reflect.Bool:
		return text == "true"
	default:
	}
	return text
}

// rules says a member's validation rules in JSON Schema's words.
func (s *schemas) rules(schema object, t reflect.Type, tag, where string) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	at, kind := schema, t.Kind()
	for rule := range strings.SplitSeq(tag, ",") {
		name, param, _ := strings.Cut(rule, "=")
		switch name {
		case "", "required", "omitempty":
		case "dive":
			t = t.Elem()
			kind = t.Kind()
			next, ok := at["items"].(object)
			if !ok {
				next, _ = at["additionalProperties"].(object)
			}
			at = next
		case "keys":
			names := object{}
			schema["propertyNames"] = names
			at, kind = names, reflect.String
		case "endkeys":
			at, _ = schema["additionalProperties"].(object)
		case "pattern":
			at["pattern"] = fleet.Patterns[param]
		case "oneof":
			at["enum"] = strings.Fields(param)
			if kind == reflect.Int {
				at["enum"] = numbers(param)
			}
		case "unique":
			at["uniqueItems"] = true
		case "cidr":
			at["format"] = "cidr"
		case "sshcertkey":
			at["format"] = "ssh-public-key"
		case "min", "max":
			n, err := strconv.Atoi(param)
			if err != nil {
				s.errs = append(s.errs, where+": "+rule)
			}
			at[bound(name, kind)] = n
		default:
			s.errs = append(s.errs, where+": "+rule)
		}
	}
}

func numbers(param string) []int {
	var out []int
	for _, f := range strings.Fields(param) {
		if n, err := strconv.Atoi(f); err == nil {
			out = append(out, n)
		}
	}
	return out
}

// bound is JSON Schema's word for a limit on a kind of value.
func bound(rule string, kind reflect.Kind) string {
	suffix := map[reflect.Kind]string{reflect.String: "Length", reflect.Slice: "Items", reflect.Map: "Properties"}[kind]
	if suffix == "" {
		return rule + "imum"
	}
	return rule + suffix
}

// streamOperation describes the stream of events, which is no method.
func (s *schemas) streamOperation() object {
	parameter := func(name, in, pattern, doc string, required bool) object {
		return object{"name": name, "in": in, "required": required, "description": doc,
			"schema": object{"type": "string", "pattern": fleet.Patterns[pattern]}}
	}
	responses := object{"200": object{"description": "Server-sent events: id is the event's cursor, data the event; an event gap says that some before it are no longer kept.",
		"content": object{"text/event-stream": object{"schema": s.output(reflect.TypeFor[fleet.Event]())}}}}
	for _, code := range commonErrors {
		responses[strconv.Itoa(statuses[code])] = refusal(string(code))
	}
	return object{"operationId": "events_stream", "tags": []string{"events"}, "summary": "Follow a tenant's events as they happen",
		"description": "Begins after Last-Event-ID or cursor, else with what happens from now on.",
		"parameters": []any{
			parameter("tenantId", "query", "tenantId", "The tenant.", true),
			parameter("nodeId", "query", "nodeId", "Only events of this node.", false),
			parameter("type", "query", "eventType", "Only events whose type starts with this.", false),
			parameter("cursor", "query", "eventCursor", "Cursor of the last event seen.", false),
			parameter("Last-Event-ID", "header", "eventCursor", "The same, as clients send it by themselves; it wins.", false),
		},
		"responses": responses, "x-permission": string(streamMethod.Permission), "x-resource": string(streamMethod.Resource)}
}
