package api_test

import (
	"net/http"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/telemetry"
)

// A call is a span of its caller's trace; the order to Temporal carries it on,
// a problem names it, and no attribute of any span holds what was sent.
func TestTrace(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewInMemoryExporter()
	provider := telemetry.Use(sdktrace.WithSyncer(spans))
	t.Cleanup(func() { _ = provider.Shutdown(t.Context()) })
	r := newRig(t)
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	var out fleet.MetalOperationOut
	if p := r.call("owner", "metal/enroll", enrollIn(r.site, "https://127.0.0.9"), &out, "traceparent", "00-"+trace+"-00f067aa0ba902b7-01"); p != nil {
		t.Fatal(p)
	}
	if got := r.text(`SELECT trace FROM dispatch WHERE operation_id = $1`, out.Operation.ID); !strings.Contains(got, trace) {
		t.Errorf("the order to Temporal carries the trace %q, want %s", got, trace)
	}
	status, body := r.get("/api/compute/nodes/get")
	if status != http.StatusMethodNotAllowed || !strings.Contains(string(body), `"traceId"`) {
		t.Errorf("problem = %d %s, want one that names its trace", status, body)
	}
	found := false
	for _, s := range spans.GetSpans() {
		found = found || s.Name == "POST /api/compute/metal/enroll" && s.SpanContext.TraceID().String() == trace
		for _, a := range s.Attributes {
			if v := a.Value.String(); strings.Contains(v, "sesame") || strings.Contains(v, "Bearer") {
				t.Errorf("attribute %s of %s is %q", a.Key, s.Name, v)
			}
		}
	}
	if !found {
		t.Error("the call is no span of its caller's trace")
	}
}
