package api

import (
	"github.com/gin-gonic/gin"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// traced begins the span of a request, as a child of the caller's where it sent
// one. Of the request it tells the route, the id and the outcome, never what was
// sent or answered.
func traced(g *gin.Context, requestID string) (end func()) {
	ctx := otel.GetTextMapPropagator().Extract(g.Request.Context(), propagation.HeaderCarrier(g.Request.Header))
	ctx, span := otel.Tracer("better-compute/api").Start(ctx, g.Request.Method+" "+g.FullPath(), trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(attribute.String("http.route", g.FullPath()), attribute.String("request.id", requestID)))
	g.Request = g.Request.WithContext(ctx)
	return func() {
		span.SetAttributes(attribute.Int("http.response.status_code", g.Writer.Status()), attribute.String("code", g.GetString(codeKey)))
		span.End()
	}
}
