package storetest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/bettercompute/compute/store"
)

// Recorder keeps the statements that a pool sends, to look at their plans.
type Recorder struct {
	mu    sync.Mutex
	sent  map[string][]any
	total int
}

// Recorded is New with what is sent recorded.
func Recorded(t testing.TB) (*pgxpool.Pool, *Recorder) {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(URL(t))
	if err != nil {
		t.Fatal(err)
	}
	r := &Recorder{sent: map[string][]any{}}
	cfg.ConnConfig.Tracer = r
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatalf("connect to the test database: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool, r
}

func (r *Recorder) record(sql string, args []any) {
	switch verb, _, _ := strings.Cut(strings.ToUpper(strings.TrimSpace(sql)), " "); strings.TrimRight(verb, "\n") {
	case "SELECT", "WITH", "INSERT", "UPDATE", "DELETE":
		r.mu.Lock()
		defer r.mu.Unlock()
		r.sent[sql] = args
		r.total++
	}
}

// TraceQueryStart is pgx.QueryTracer's.
func (r *Recorder) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	r.record(d.SQL, d.Args)
	return ctx
}

// TraceQueryEnd is pgx.QueryTracer's.
func (r *Recorder) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart is pgx.BatchTracer's.
func (r *Recorder) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

// TraceBatchQuery is pgx.BatchTracer's.
func (r *Recorder) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	r.record(d.SQL, d.Args)
}

// TraceBatchEnd is pgx.BatchTracer's.
func (r *Recorder) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// Forget drops what was recorded.
func (r *Recorder) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.sent)
	r.total = 0
}

// Count is how many different statements are recorded.
func (r *Recorder) Count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.sent)
}

// Total is how many statements were sent.
func (r *Recorder) Total() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.total
}

// plan is a node of EXPLAIN's answer.
type plan struct {
	Type     string `json:"Node Type"`
	Relation string `json:"Relation Name"`
	Plans    []plan `json:"Plans"`
}

func (p plan) scans() []string {
	var out []string
	if p.Type == "Seq Scan" {
		out = append(out, p.Relation)
	}
	for _, child := range p.Plans {
		out = append(out, child.scans()...)
	}
	return out
}

// SeqScans says of the recorded statements which read one of these tables, or a
// partition of one, from end to end. A table of few rows is best read so.
func (r *Recorder) SeqScans(t testing.TB, url string, tables ...string) map[string][]string {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	rows, err := conn.Query(context.Background(), `SELECT relname::text FROM pg_class WHERE reltuples < 1000`)
	if err != nil {
		t.Fatal(err)
	}
	small, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string][]string{}
	for sql, args := range r.sent {
		var raw []byte
		if err := conn.QueryRow(context.Background(), "EXPLAIN (FORMAT JSON) "+sql, args...).Scan(&raw); err != nil {
			t.Errorf("explain: %v\n%s", err, sql)
			continue
		}
		var plans []struct{ Plan plan }
		if err := json.Unmarshal(raw, &plans); err != nil || len(plans) != 1 {
			t.Fatal(fmt.Errorf("read the plan of %s: %w", sql, err))
		}
		for _, relation := range plans[0].Plan.scans() {
			parent, _, _ := strings.Cut(relation, "_p2")
			if slices.Contains(tables, parent) && !slices.Contains(small, relation) {
				out[sql] = append(out[sql], relation)
			}
		}
	}
	return out
}

// BigTables are those that grow with the fleet or with what happens to it.
var BigTables = []string{"nodes", "node_visibility", "conditions", "sessions", "inventories", "devices", "allocations", "allocation_devices",
	"certificates", "bmcs", "operations", "events", "events_default", "bindings", "audit", "audit_default", "boots", "reports", "commands",
	"erase_records", "step_samples", "joined_hardware", "machine_claims", "node_keys", "reservations", "idempotency_keys", "service_tokens", "join_tokens",
	"ssh_certs", "deploy_tokens"}

// Fill makes a fleet of this many nodes, numbered from 1, of one tenant and
// site, each two-hundredth in a pool, with what has happened to them, and gathers the
// planner's statistics.
func Fill(t testing.TB, pool *pgxpool.Pool, tenant, site, gpuPool string, nodes int) {
	t.Helper()
	args := pgx.NamedArgs{"tenant": tenant, "site": site, "pool": gpuPool, "nodes": nodes}
	for _, sql := range []string{
		`INSERT INTO nodes (id, tenant_id, site_id, pool_id, name, provision_state, labels, boot_mac)
			SELECT 'node_' || lpad(n::text, 26, '0'), @tenant, @site, CASE WHEN n % 200 = 0 THEN NULLIF(@pool, '') END, 'n' || n, (ARRAY['ready', 'deployed', 'enrolling'])[1 + n % 3],
				jsonb_build_object('rack', 'r' || n / 40), '02:00:' || lpad(to_hex(n), 8, '0') FROM generate_series(1, @nodes) n`,
		`INSERT INTO node_visibility (tenant_id, node_id) SELECT tenant_id, id FROM nodes WHERE id LIKE 'node_000%'`,
		`INSERT INTO bmcs (node_id, site_id, address, driver, username, password, tls_mode, capabilities, identity, next_check_at, next_inventory_at)
			SELECT id, site_id, 'https://10.0.0.' || id, 'auto', 'admin', 'x', 'insecure', '{"driver": "redfish"}',
				jsonb_build_object('serial', 's' || id, 'uuid', 'u' || id, 'model', 'm'), now() + interval '1 hour', now() + interval '1 hour'
			FROM nodes WHERE id LIKE 'node_000%'`,
		`INSERT INTO inventories (node_id, doc, serial, macs, inspected_at) SELECT id, '{}', 's' || id, ARRAY[boot_mac], now() FROM nodes WHERE id LIKE 'node_000%'`,
		`INSERT INTO conditions (node_id, type, status)
			SELECT id, t, 'True' FROM nodes, unnest(ARRAY['BmcReachable', 'BmcTrusted', 'BmcAuthenticated']) t WHERE id LIKE 'node_000%'`,
		`INSERT INTO sessions (node_id, gateway, connected_at, last_seen_at) SELECT id, 'gw', now(), now() FROM nodes WHERE id LIKE 'node_000%'`,
		`INSERT INTO bindings (id, tenant_id, identity, role, on_node, granted_by) SELECT 'bind_' || id, tenant_id, 'dev:of-' || id, 'viewer', id, 'dev:owner' FROM nodes WHERE id LIKE 'node_000%'`,
		`INSERT INTO step_samples (verb, step, hardware_model, seconds) SELECT 'v' || n % 10, 's' || n % 100, 'm' || n % 7, 1 FROM generate_series(1, @nodes) n`,
		`INSERT INTO devices (id, node_id, model, serial)
			SELECT 'dev_' || id || g, id, 'H100', 'g' || id || g FROM nodes, generate_series(1, 2) g WHERE id LIKE 'node_000%'`,
		`INSERT INTO operations (id, node_id, tenant_id, verb, lane, state, requested_by, epoch, created_at, ended_at)
			SELECT 'op_' || lpad(n::text, 25, '0') || o, 'node_' || lpad(n::text, 26, '0'), @tenant, 'inspect', 'provision', 'succeeded', 'dev:owner', 1,
				now() - make_interval(hours => n % 1000 + o), now() - make_interval(hours => n % 1000 + o)
			FROM generate_series(1, @nodes) n, generate_series(1, 2) o`,
		`UPDATE cluster_epoch SET base = base + (1::bigint << 40)`, // the events below are of former transactions
		`INSERT INTO events (tx, type, node_id, tenant_id, audience, actor, at)
			SELECT o * 100000 + n, 'node.power.changed', 'node_' || lpad(n::text, 26, '0'), @tenant, ARRAY[@tenant::text], 'system', now() - make_interval(days => 60 - o * 12)
			FROM generate_series(1, @nodes) n, generate_series(1, 5) o`,
		`INSERT INTO audit (tenant_id, identity, method, node_id, outcome, request_id, at)
			SELECT @tenant, 'dev:owner', 'nodes/cordon', 'node_' || lpad(n::text, 26, '0'), 'OK', 'r', now() - make_interval(days => o * 30)
			FROM generate_series(1, @nodes) n, generate_series(0, 1) o`,
	} {
		if _, err := pool.Exec(context.Background(), sql, args); err != nil {
			t.Fatalf("fill the database: %v\n%s", err, sql)
		}
	}
	if err := store.New(pool, store.Options{}).KeepPartitions(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(context.Background(), `ANALYZE`); err != nil {
		t.Fatal(err)
	}
}
