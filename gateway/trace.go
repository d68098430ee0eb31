package gateway

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/bettercompute/compute/store"
)

// tracer names this package in traces.
const tracer = "better-compute/gateway"

// traced makes a request a span: those that change what a machine is, not those
// by which it waits. A machine's own trace is not continued: whoever reaches the
// listener could write into anybody's.
func traced(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, span := otel.Tracer(tracer).Start(r.Context(), r.Pattern, trace.WithSpanKind(trace.SpanKindServer),
			trace.WithAttributes(attribute.String("http.route", r.Pattern)))
		seen := &seenWriter{ResponseWriter: w, status: http.StatusOK}
		defer func() {
			span.SetAttributes(attribute.Int("http.response.status_code", seen.status))
			span.End()
		}()
		next(seen, r.WithContext(ctx))
	}
}

// concerning adds to a request's span whose machine it is.
func concerning(ctx context.Context, nodeID, operationID string) {
	span := trace.SpanFromContext(ctx)
	span.SetAttributes(attribute.String("node.id", nodeID))
	if operationID != "" {
		span.SetAttributes(attribute.String("operation.id", operationID))
	}
}

// delivered tells of a command that a machine is handed, in the trace of what sent
// it.
func (g *Gateway) delivered(ctx context.Context, d *store.Delivery, nodeID string) {
	ctx, span := otel.Tracer(tracer).Start(d.Traced(ctx), "deliver "+d.Type, trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithAttributes(attribute.String("command.id", d.ID), attribute.String("operation.id", d.OperationID), attribute.String("node.id", nodeID)))
	defer span.End()
	g.log.InfoContext(ctx, "command delivered", "command", d.ID, "type", d.Type, "node", nodeID, "operation", d.OperationID)
}
