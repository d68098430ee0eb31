package worker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/contrib/envconfig"
	"go.temporal.io/sdk/contrib/opentelemetry"
	sdklog "go.temporal.io/sdk/log"
)

// MinRetention is what production namespaces must keep closed workflows for:
// the sweep takes an operation that Temporal does not know for lost.
const MinRetention = 30 * 24 * time.Hour

// Connection says where Temporal is. Empty members are taken from the
// environment as the temporal CLI does (TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE,
// TEMPORAL_TLS_*, TEMPORAL_API_KEY, a profile).
type Connection struct {
	Address, Namespace string
	Log                *slog.Logger
	// State is told of the wait for Temporal; nil is one of Log.
	State *State
	// Traced carries traces into workflows and activities.
	Traced bool
}

// reconnectEvery is the pause between attempts to reach Temporal at start.
const reconnectEvery = 2 * time.Second

// Connect returns a client once Temporal answers, trying until the context
// ends, and the name of its namespace.
func Connect(ctx context.Context, c Connection) (client.Client, string, error) {
	opts, err := envconfig.LoadDefaultClientOptions()
	if err != nil {
		return nil, "", fmt.Errorf("read Temporal's settings from the environment: %w", err)
	}
	if c.Address != "" {
		opts.HostPort = c.Address
	}
	if c.Namespace != "" {
		opts.Namespace = c.Namespace
	}
	if opts.Namespace == "" {
		opts.Namespace = client.DefaultNamespace
	}
	opts.Logger = sdklog.NewStructuredLogger(c.Log)
	if c.Traced {
		tracing, err := opentelemetry.NewTracingInterceptor(opentelemetry.TracerOptions{})
		if err != nil {
			return nil, "", fmt.Errorf("trace workflows: %w", err)
		}
		opts.Interceptors = append(opts.Interceptors, tracing)
	}
	if c.State == nil {
		c.State = &State{Log: c.Log}
	}
	for {
		cl, err := client.DialContext(ctx, opts)
		if err == nil {
			return cl, opts.Namespace, nil
		}
		c.State.Waits(ctx, "Temporal at "+opts.HostPort+" does not answer", err)
		if !sleep(ctx, reconnectEvery) {
			return nil, "", fmt.Errorf("connect to Temporal at %s: %w", opts.HostPort, err)
		}
	}
}

// CheckRetention fails when the namespace forgets closed workflows too soon. A
// Temporal that does not answer and a namespace that is not there yet are waited
// for.
func CheckRetention(ctx context.Context, c client.Client, namespace string, state *State) error {
	var resp *workflowservice.DescribeNamespaceResponse
	err := insist(ctx, state, func(ctx context.Context) error {
		var err error
		resp, err = c.WorkflowService().DescribeNamespace(ctx, &workflowservice.DescribeNamespaceRequest{Namespace: namespace})
		return err //nolint:wrapcheck // wrapped below
	})
	if err != nil {
		return fmt.Errorf("read the retention of namespace %s: %w", namespace, err)
	}
	if kept := resp.GetConfig().GetWorkflowExecutionRetentionTtl().AsDuration(); kept < MinRetention {
		return fmt.Errorf("namespace %s keeps closed workflows for %s; %s at least are needed: temporal operator namespace update --retention 720h %s",
			namespace, kept, MinRetention, namespace)
	}
	return nil
}

// temporalAway says that Temporal did not answer, or not in time.
func temporalAway(err error) bool {
	var unavailable *serviceerror.Unavailable
	var late *serviceerror.DeadlineExceeded
	return errors.As(err, &unavailable) || errors.As(err, &late) || errors.Is(err, context.DeadlineExceeded)
}

// waitReason says in words for a person what is waited for when Temporal answers
// with an error, "" for a refusal that waiting does not mend.
func waitReason(err error) string {
	var missing *serviceerror.NamespaceNotFound
	switch {
	case errors.As(err, &missing):
		return fmt.Sprintf("Temporal has no namespace %s: temporal operator namespace create --retention 720h %s makes it", missing.Namespace, missing.Namespace)
	case temporalAway(err):
		return "Temporal does not answer"
	}
	return ""
}

// BuildID names this build to Temporal's worker versioning: a hash of the
// program's file, so that two builds of one source are told apart.
func BuildID() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program's file: %w", err)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read this program's file: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("read this program's file: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}
