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
	for {
		cl, err := client.DialContext(ctx, opts)
		if err == nil {
			return cl, opts.Namespace, nil
		}
		c.Log.WarnContext(ctx, "Temporal does not answer; trying again", "address", opts.HostPort, "error", err)
		select {
		case <-ctx.Done():
			return nil, "", fmt.Errorf("connect to Temporal at %s: %w", opts.HostPort, err)
		case <-time.After(reconnectEvery):
		}
	}
}

// CheckRetention fails when the namespace forgets closed workflows too soon. A
// Temporal that does not answer is waited for.
func CheckRetention(ctx context.Context, c client.Client, namespace string, log *slog.Logger) error {
	var resp *workflowservice.DescribeNamespaceResponse
	for {
		var err error
		if resp, err = c.WorkflowService().DescribeNamespace(ctx, &workflowservice.DescribeNamespaceRequest{Namespace: namespace}); err == nil {
			break
		}
		if !temporalAway(err) || !sleep(ctx, reconnectEvery) {
			return fmt.Errorf("read the retention of namespace %s: %w", namespace, err)
		}
		log.WarnContext(ctx, "Temporal does not answer; trying again", "error", err)
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
