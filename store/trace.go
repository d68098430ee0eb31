package store

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
)

// traceParent is the name of the one field of a W3C trace context that is kept.
const traceParent = "traceparent"

// traceOf is the traceparent of a context, "" when nobody traces it.
func traceOf(ctx context.Context) string {
	carried := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carried)
	return carried[traceParent]
}

// inTrace is a context in the trace that was kept.
func inTrace(ctx context.Context, kept string) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{traceParent: kept})
}
