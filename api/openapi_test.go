package api

import (
	"bytes"
	"context"
	"flag"
	"os"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/bettercompute/compute/fleet"
)

var update = flag.Bool("update", false, "write the golden files anew")

// The OpenAPI document is made from the method table: the golden file shows
// what a change of the table changes for callers.
func TestOpenAPIGolden(t *testing.T) {
	t.Parallel()
	got, err := OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	const golden = "testdata/openapi.json"
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the document differs from %s; make generate, and look at the difference", golden)
	}
}

// The document is one that a library of others reads, with a path for each
// method.
func TestOpenAPIReadable(t *testing.T) {
	t.Parallel()
	b, err := OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	doc, err := openapi3.NewLoader().LoadFromData(b)
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(context.Background(), openapi3.DisableExamplesValidation(), openapi3.DisableSchemaPatternValidation()); err != nil {
		t.Error(err)
	}
	for _, m := range fleet.Methods {
		if doc.Paths.Find(m.Path()) == nil {
			t.Errorf("no path for %s", m.FullName())
		}
	}
}
