package cli_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/cli"
)

// Reservations and allocations are made from flags, whatever other commands mean
// by flags of the same name, and listed with who holds what.
func TestCapacityCommands(t *testing.T) {
	t.Parallel()
	var body map[string]any
	answer := `{}`
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body = nil
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, answer)
	}))
	t.Cleanup(srv.Close)
	run := func(args ...string) string {
		var out bytes.Buffer
		root := cli.New(nil, &out, io.Discard)
		root.SetArgs(append([]string{"--url", srv.URL, "--tenant", "acme"}, args...))
		if err := root.Execute(); err != nil {
			t.Errorf("%v: %s", args, cli.Explain(err))
		}
		return out.String()
	}
	pool, from, to := "pool_01j00000000000000000000000", "2030-05-01T08:00:00.000Z", "2030-05-01T20:00:00.000Z"
	for _, c := range []struct {
		args []string
		want map[string]any
	}{
		{[]string{"reservations", "create", "--pool-id", pool, "--gpus", "8", "--from", from, "--to", to},
			map[string]any{"tenantId": "acme", "poolId": pool, "gpus": 8.0, "from": from, "to": to}},
		{[]string{"allocations", "create", "--pool-id", pool, "--gpus", "2", "--holder", "train 7", "--node-selector", "rack=b", "--ttl-seconds", "60", "--wait"},
			map[string]any{"tenantId": "acme", "poolId": pool, "gpus": 2.0, "holder": "train 7", "nodeSelector": map[string]any{"rack": "b"}, "ttlSeconds": 60.0, "wait": true}},
		{[]string{"allocations", "release", "alloc_01j00000000000000000000000"}, map[string]any{"tenantId": "acme", "allocationId": "alloc_01j00000000000000000000000"}},
		{[]string{"reservations", "cancel", "resv_01j00000000000000000000000"}, map[string]any{"tenantId": "acme", "reservationId": "resv_01j00000000000000000000000"}},
		{[]string{"pools", "offer", pool, "--to-tenant-id", "globex", "--quota-gpus", "16"},
			map[string]any{"tenantId": "acme", "poolId": pool, "toTenantId": "globex", "quota": map[string]any{"gpus": 16.0}}},
	} {
		run(c.args...)
		if diff := cmp.Diff(c.want, body); diff != "" {
			t.Errorf("%v (-want +got):\n%s", c.args, diff)
		}
	}
	answer = `{"items": [{"id": "alloc_1", "holder": "train 7", "gpus": 2, "state": "active"}]}`
	if out := run("allocations", "list"); !strings.Contains(out, "HOLDER") || !strings.Contains(out, "train 7") {
		t.Errorf("the list is\n%s", out)
	}
}
