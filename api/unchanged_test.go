package api_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/devidp"
	"github.com/bettercompute/compute/fleet"
)

// contents are the rows of all tables but the audit, which a refusal may add to,
// as one sum a table.
func (r *rig) contents() map[string]string {
	r.t.Helper()
	ctx := context.Background()
	rows, err := r.store.Pool().Query(ctx, `SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition
		AND relnamespace = 'public'::regnamespace AND relname NOT LIKE 'audit%'`)
	if err != nil {
		r.t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		r.t.Fatal(err)
	}
	sums := map[string]string{}
	for _, name := range tables {
		sums[name] = r.text(fmt.Sprintf(`SELECT count(*) || ' rows, ' || md5(coalesce(string_agg(x::text, ',' ORDER BY x::text), '')) FROM %s x`,
			pgx.Identifier{name}.Sanitize()))
	}
	return sums
}

// A call that is refused, for whatever reason, leaves no trace but in the audit.
func TestRefusalsChangeNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ready, busy, running := r.enrolled("127.0.0.9", fleet.Ready), r.enrolled("127.0.0.10", fleet.Ready), r.enrolled("127.0.0.11", fleet.Enrolling)
	r.exec(`UPDATE nodes SET maybe_in_use = true WHERE id = $1`, running.ID)
	r.exec(`INSERT INTO inventories (node_id, doc, inspected_at) VALUES ($1, '{}', now())`, running.ID)
	r.ok("owner", "metal/inspect", on(busy.ID), nil)
	r.session("late", devidp.Token{TTL: -time.Minute})
	before := r.contents()
	if len(before) < 20 {
		t.Fatalf("only %d tables are compared", len(before))
	}
	for name, c := range map[string]struct {
		subject, method string
		in              any
		code            fleet.Code
		reason          string
	}{
		"wrong state":             {"owner", "metal/release", on(ready.ID), fleet.CodeInvalidState, ""},
		"while another runs":      {"owner", "metal/commission", on(busy.ID), fleet.CodeInvalidState, "operation-in-progress"},
		"power while another is":  {"owner", "metal/power", on(busy.ID, "action", "off"), fleet.CodeInvalidState, "operation-in-progress"},
		"stale version":           {"owner", "metal/inspect", on(ready.ID, "version", ready.Version+7), fleet.CodeConflict, "version"},
		"stale version, cordon":   {"owner", "nodes/cordon", on(ready.ID, "version", ready.Version+7), fleet.CodeConflict, "version"},
		"malformed":               {"owner", "metal/inspect", []byte(`{"tenantId": "acme", "nodeId": `), fleet.CodeInvalidInput, ""},
		"two documents":           {"owner", "metal/inspect", []byte(`{"tenantId": "acme", "nodeId": "` + ready.ID + `"}{}`), fleet.CodeInvalidInput, ""},
		"unknown member":          {"owner", "metal/inspect", on(ready.ID, "mod", "both"), fleet.CodeInvalidInput, ""},
		"expired token":           {"late", "metal/inspect", on(ready.ID), fleet.CodeUnauthenticated, ""},
		"no token":                {"", "metal/inspect", on(ready.ID), fleet.CodeUnauthenticated, ""},
		"another tenant's node":   {"owner2", "metal/inspect", obj{"tenantId": "globex", "nodeId": ready.ID}, fleet.CodeNotFound, ""},
		"no role in the tenant":   {"owner2", "metal/inspect", on(ready.ID), fleet.CodeAccessDenied, "no-role"},
		"not permitted":           {"operator", "metal/retire", on(ready.ID), fleet.CodeAccessDenied, "not-permitted"},
		"maybe in use":            {"owner", "metal/commission", on(running.ID), fleet.CodeInvalidState, "maybe-in-use"},
		"maybe in use, power off": {"owner", "metal/power", on(running.ID, "action", "off"), fleet.CodeInvalidState, "maybe-in-use"},
		"address taken":           {"owner", "metal/enroll", enrollIn(r.site, "https://127.0.0.9/"), fleet.CodeConflict, "already-enrolled"},
		"address outside":         {"owner", "metal/enroll", enrollIn(r.site, "10.9.8.7"), fleet.CodeInvalidInput, ""},
		"moved outside":           {"owner", "metal/update", on(ready.ID, "bmc", obj{"address": "10.9.8.7"}), fleet.CodeInvalidInput, ""},
		"retry of nothing":        {"owner", "metal/retry", on(ready.ID), fleet.CodeInvalidState, ""},
		"abort of nothing":        {"owner", "metal/abort", on(ready.ID), fleet.CodeInvalidState, "nothing-to-abort"},
	} {
		r.refused(c.subject, c.method, c.in, c.code, c.reason)
		if diff := cmp.Diff(before, r.contents()); diff != "" {
			t.Fatalf("%s changed (-before +after):\n%s", name, diff)
		}
	}
}
