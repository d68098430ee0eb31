package worker_test

import (
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/telemetry"
	"github.com/bettercompute/compute/worker"
)

// One trace goes from the call that wrote the operation through its delivery
// into the workflow's activities.
func TestTrace(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewInMemoryExporter()
	provider := telemetry.Use(sdktrace.WithSyncer(spans))
	t.Cleanup(func() { _ = provider.Shutdown(t.Context()) })
	b := newBundleOn(t, worker.Connection{Traced: true})
	ctx, call := otel.Tracer("test").Start(t.Context(), "POST /api/compute/metal/deploy")
	op := b.beginIn(ctx)
	call.End()
	stop := b.runBuild("traced-" + b.queue)
	b.await(op, func(o fleet.Operation) bool { return o.State == fleet.OpFailed }) // its machine has no BMC
	stop()
	var started, ran bool
	for _, s := range spans.GetSpans() {
		if s.SpanContext.TraceID() == call.SpanContext().TraceID() {
			started = started || s.Name == "StartWorkflow:Deploy"
			ran = ran || strings.HasPrefix(s.Name, "RunActivity:")
		}
	}
	if !started || !ran {
		t.Errorf("the call's trace holds the start of the workflow: %v, and its activities: %v; want both", started, ran)
	}
}
