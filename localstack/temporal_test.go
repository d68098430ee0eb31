package localstack_test

import (
	"os"
	"strings"
	"testing"

	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/bettercompute/compute/localstack"
	"github.com/bettercompute/compute/localstack/temporaltest"
)

// A key that temporal-dev.yaml may not have is an error, not ignored.
func TestTemporalConfigUnknownKey(t *testing.T) {
	t.Parallel()
	_, err := localstack.ReadTemporalConfig(strings.NewReader("ip: 127.0.0.1\nnamespace: n\nretentoin: 1h\n"))
	if err == nil || !strings.Contains(err.Error(), "retentoin") {
		t.Errorf("err = %v, want one that names the key", err)
	}
}

// The file that ships is one the reader takes.
func TestTemporalConfigShipped(t *testing.T) {
	t.Parallel()
	f, err := os.Open("../temporal-dev.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c, err := localstack.ReadTemporalConfig(f)
	if err != nil {
		t.Fatal(err)
	}
	if c.Retention.Hours() < 30*24 {
		t.Errorf("retention = %v, want 30 days at least", c.Retention)
	}
}

// The shared server answers in a namespace of the test's own, with our search
// attributes.
func TestSharedTemporal(t *testing.T) {
	t.Parallel()
	address, namespace := temporaltest.Server(t)
	c, err := client.Dial(client.Options{HostPort: address, Namespace: namespace})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	attrs, err := c.OperatorService().ListSearchAttributes(t.Context(), &operatorservice.ListSearchAttributesRequest{Namespace: namespace})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := attrs.GetCustomAttributes()["NodeId"]; !ok {
		t.Errorf("NodeId is not a search attribute of namespace %s: %v", namespace, attrs.GetCustomAttributes())
	}
}
