package gateway_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/bettercompute/compute/agent"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/gateway"
	"github.com/bettercompute/compute/telemetry"
)

// What a machine does at the gateway is told in traces where it changes what it
// is, by route, outcome and whose it is; a command is handed out, and its end told
// on, in the trace of what sent it. A wait is no span, and nothing secret is in
// any.
func TestTrace(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewInMemoryExporter()
	provider := telemetry.Use(sdktrace.WithSyncer(spans))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	r := newRig(t, func(c *gateway.Config) { c.Log = slog.New(telemetry.Logged(c.Log.Handler())) })
	boot := r.arm(1)
	token := r.config(boot).Token
	r.startAgent(boot, &host{})
	ctx, call := otel.Tracer("test").Start(t.Context(), "activity")
	id, err := r.SendCommand(ctx, r.Op, fleet.CommandIn{Key: "inventory", Type: agent.TypeInventory, Args: struct{}{},
		Secrets: map[string]string{"userData": fleet.SecretUserData}, Expires: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	call.End()
	r.awaitCommand(id)
	h := &memberHost{uuid: "4c4c4544-0051-3910-8053-b4c04f4e3934"}
	state, joined := r.joined(h)
	r.serve(state, h)
	r.awaitEpoch(joined.NodeID, 1)

	of := func(s tracetest.SpanStub, key string) string {
		for _, a := range s.Attributes {
			if string(a.Key) == key {
				return a.Value.String()
			}
		}
		return ""
	}
	await(t, "all spans", func() bool {
		var calledIn, delivered, in, opened bool
		for _, s := range spans.GetSpans() {
			calledIn = calledIn || s.Name == "POST /node/v1/call-in" && of(s, "operation.id") == r.Op && of(s, "node.id") == r.Node && of(s, "http.response.status_code") == "200"
			delivered = delivered || s.Name == "deliver "+agent.TypeInventory && s.Parent.SpanID() == call.SpanContext().SpanID() && of(s, "command.id") == id && of(s, "operation.id") == r.Op
			in = in || s.Name == "POST /node/v1/join" && of(s, "node.id") == joined.NodeID
			opened = opened || s.Name == "POST /node/v1/session" && of(s, "node.id") == joined.NodeID
		}
		return calledIn && delivered && in && opened
	})
	for _, s := range spans.GetSpans() {
		if strings.Contains(s.Name, "/next") {
			t.Errorf("a wait is a span: %s", s.Name)
		}
		for _, a := range s.Attributes {
			if v := a.Value.String(); strings.Contains(v, token) || strings.Contains(v, "hush") || strings.Contains(v, boot.ID) || strings.Contains(v, "join-") {
				t.Errorf("attribute %s of %s is %q", a.Key, s.Name, v)
			}
		}
	}
	if n := r.count(`SELECT count(*) FROM dispatch WHERE signal = 'command' AND trace LIKE '%' || $1 || '%'`, call.SpanContext().TraceID().String()); n != 1 {
		t.Errorf("%d orders to Temporal carry on the trace of the command that ended, want one", n)
	}
	named := false
	for _, line := range strings.Split(r.log.String(), "\n") {
		named = named || strings.Contains(line, `"msg":"command delivered"`) && strings.Contains(line, call.SpanContext().TraceID().String())
	}
	if !named {
		t.Error("no line of the log says in which trace the command was handed out")
	}
}
