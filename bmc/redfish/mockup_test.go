package redfish_test

import (
	"testing"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/bmc/redfish"
	"github.com/bettercompute/compute/bmc/redfish/recorded"
	"github.com/bettercompute/compute/fleet"
)

func openTree(t *testing.T, name, system string) (*redfish.Client, error) {
	t.Helper()
	srv := recorded.Serve(t, name)
	a, err := fleet.ParseBMCAddress(srv.URL + system)
	if err != nil {
		t.Fatal(err)
	}
	c, err := redfish.Open(t.Context(), bmc.Target{Address: a, Username: "root", Password: "secret", TLS: bmc.TLS{Mode: "insecure"}},
		bmc.Options{Waits: waits()})
	if err == nil {
		t.Cleanup(func() { _ = c.Close(t.Context()) })
	}
	return c, err
}
