package api_test

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/store/storetest"
)

func (r *rig) get(path string) (status int, body []byte) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, r.url+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err = io.ReadAll(resp.Body); err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, body
}

// A transaction that holds the events back is shown: its age is a metric and a
// line of /readyz, and once it is old the API says that it is degraded. The
// horizon is the cluster's, so this needs one of its own.
func TestHorizonIsShown(t *testing.T) {
	t.Parallel()
	pool, _ := storetest.Cluster(t)
	r := newRigOn(t, pool)
	slow, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = slow.Rollback(t.Context()) }()
	if _, err := slow.Exec(t.Context(), `SELECT pg_current_xact_id(), pg_sleep(0.01)`); err != nil {
		t.Fatal(err)
	}
	var ready struct {
		Ready                bool
		Degraded             []string
		EventsHorizonSeconds float64
	}
	status, body := r.get("/readyz")
	if err := json.Unmarshal(body, &ready); err != nil || status != http.StatusOK || ready.EventsHorizonSeconds <= 0 {
		t.Errorf("readyz = %d %s (%v), want the age of the horizon", status, body, err)
	}
	_, metrics := r.get("/metrics")
	i := slices.IndexFunc(strings.Split(string(metrics), "\n"), func(l string) bool {
		return strings.HasPrefix(l, "compute_events_horizon_seconds ") && l != "compute_events_horizon_seconds 0"
	})
	if i < 0 {
		t.Error("no metric shows the age of the events' horizon")
	}
}

// Pending recovery is shown and takes no API out of a load balancer.
func TestRecoveryIsShown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`UPDATE cluster_epoch SET recovery_pending = true, recovery_reason = 'restore'`)
	status, body := r.get("/readyz")
	if status != http.StatusOK || !strings.Contains(string(body), "compute recover") {
		t.Errorf("readyz = %d %s, want 200 that names compute recover", status, body)
	}
}

// What is late is said, with 200: no dispatcher that reaches Temporal, orders to
// it that wait. What is well is not.
func TestDegraded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Ready)
	heard := func(ago string) {
		r.exec(`INSERT INTO heartbeats (process, kind, at) VALUES ('w', 'dispatcher', now() - $1::interval)
			ON CONFLICT (process) DO UPDATE SET at = EXCLUDED.at`, ago)
	}
	waits := func(ago string) { r.exec(`UPDATE dispatch SET created_at = now() - $1::interval`, ago) }
	r.ok("owner", "metal/inspect", on(n.ID), nil)
	for _, c := range []struct {
		name           string
		set            func()
		silent, queued bool
	}{
		{"nothing heard of a dispatcher", func() { waits("0") }, true, false},
		{"all well", func() { heard("1 second") }, false, false},
		{"orders wait", func() { waits("16 seconds") }, false, true},
		{"the dispatcher is silent", func() { waits("0"); heard("31 seconds") }, true, false},
	} {
		c.set()
		var ready struct {
			Ready    bool
			Degraded []string
			SSH      struct{ Configured, RequireMFA bool }
		}
		status, body := r.get("/readyz")
		if err := json.Unmarshal(body, &ready); err != nil || status != http.StatusOK || !ready.Ready || ready.SSH.Configured || !ready.SSH.RequireMFA {
			t.Fatalf("%s: %d %s (%v)", c.name, status, body, err)
		}
		says := strings.Join(ready.Degraded, "; ")
		if strings.Contains(says, "no worker reaches Temporal") != c.silent || strings.Contains(says, "operations are started late") != c.queued {
			t.Errorf("%s: degraded %q", c.name, says)
		}
	}
}
