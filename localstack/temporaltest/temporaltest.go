// Package temporaltest gives tests a real Temporal dev server.
package temporaltest

import (
	"context"
	"testing"

	"go.temporal.io/sdk/client"

	"github.com/bettercompute/compute/localstack"
)

// Server returns the address of a running Temporal server and a namespace with
// our search attributes that no other test uses at the same time.
func Server(t testing.TB) (address, namespace string) {
	t.Helper()
	address, err := localstack.SharedTemporal(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	namespace, release, err := localstack.TakeNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return address, namespace
}

// Client returns a client of such a server and namespace, closed with the test.
func Client(t testing.TB) client.Client {
	t.Helper()
	address, namespace := Server(t)
	c, err := client.Dial(client.Options{HostPort: address, Namespace: namespace, Logger: quiet{}})
	if err != nil {
		t.Fatalf("connect to the test Temporal server: %v", err)
	}
	t.Cleanup(c.Close)
	return c
}

// quiet drops the SDK's log lines, which would drown a test's own.
type quiet struct{}

func (quiet) Debug(string, ...any) {}
func (quiet) Info(string, ...any)  {}
func (quiet) Warn(string, ...any)  {}
func (quiet) Error(string, ...any) {}
