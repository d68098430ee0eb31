// Package temporaltest gives tests a real Temporal dev server.
package temporaltest

import (
	"context"
	"testing"

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
