package worker_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/gate"
	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/store/seal"
	"github.com/bettercompute/compute/store/storetest"
	"github.com/bettercompute/compute/worker"
)

// rackBMCs are BMCs in memory: those of the first address are dead.
type rackBMCs struct {
	mu            sync.Mutex
	looks         map[string]int
	atOnce, atMax int
	overlaps      int
	talking       map[string]bool
}

const deadHost = "10.1.0.1"

func (r *rackBMCs) open(_ context.Context, target bmc.Target, _ bmc.Options) (bmc.Client, error) {
	key := target.Address.String()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.looks[key]++
	r.atOnce++
	r.atMax = max(r.atMax, r.atOnce)
	if r.talking[key] {
		r.overlaps++
	}
	r.talking[key] = true
	c := &inMemory{rack: r, key: key}
	if target.Address.Host == deadHost {
		c.leave()
		return nil, &bmc.Error{Kind: bmc.KindUnreachable, Doing: "look", Cause: "no route to host", Unsent: true}
	}
	return c, nil
}

// inMemory is one conversation; a sweep uses two of its methods.
type inMemory struct {
	bmc.Client
	rack *rackBMCs
	key  string
}

func (c *inMemory) leave() {
	c.rack.atOnce--
	c.rack.talking[c.key] = false
}

func (c *inMemory) Power(context.Context) (bmc.PowerState, error) { return bmc.PowerOn, nil }

func (c *inMemory) Close(context.Context) error {
	c.rack.mu.Lock()
	defer c.rack.mu.Unlock()
	c.leave()
	return nil
}

// Ten thousand BMCs are looked at by two processes: each once a round and by one
// of them, so many at once, and then again spread over time. Dead ones are a
// condition with since when and what was said, are asked less and less often,
// and hold nothing up: neither other looks nor a verb.
func TestSweepOfTenThousand(t *testing.T) {
	t.Parallel()
	const all, dead = 10_000, 500
	keys, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	s := store.New(storetest.New(t), store.Options{Seal: keys})
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := s.Pool().Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	count := func(sql string, args ...any) (n int) {
		t.Helper()
		if err := s.Pool().QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	ids, hosts, sealed := make([]string, all), make([]string, all), make([][]byte, all)
	for i := range all {
		ids[i] = store.NewID(fleet.KindNode)
		hosts[i] = fmt.Sprintf("https://10.1.1.1:%d", 1+i)
		if i < dead {
			hosts[i] = fmt.Sprintf("https://%s:%d", deadHost, 1+i)
		}
		if sealed[i], err = s.SealBMCPassword(ids[i], "hunter2"); err != nil {
			t.Fatal(err)
		}
	}
	exec(`INSERT INTO tenants (id) VALUES ('acme')`)
	exec(`INSERT INTO sites (id, tenant_id, name, spec) VALUES ('site_1', 'acme', 'one', '{"name": "one", "allowedNetworks": ["10.1.0.0/16"]}')`)
	exec(`INSERT INTO nodes (id, tenant_id, site_id, provision_state) SELECT unnest($1::text[]), 'acme', 'site_1', 'ready'`, ids)
	exec(`INSERT INTO bmcs (node_id, site_id, address, driver, username, password, tls_mode, capabilities, power_state)
		SELECT id, 'site_1', address, 'redfish', 'admin', password, 'insecure', '{"driver": "redfish"}', 'on' FROM unnest($1::text[], $2::text[], $3::bytea[]) AS x (id, address, password)`, ids, hosts, sealed)
	exec(`INSERT INTO conditions (node_id, type, status) SELECT id, t, 'True' FROM unnest($1::text[]) id, unnest(ARRAY['BmcReachable', 'BmcTrusted', 'BmcAuthenticated']) t`, ids)
	exec(`ANALYZE`)

	rack := &rackBMCs{looks: map[string]int{}, talking: map[string]bool{}}
	log := slog.New(slog.DiscardHandler)
	round := func() {
		t.Helper()
		var wg sync.WaitGroup
		for _, name := range []string{"w1", "w2"} {
			sweep := &worker.BMCSweep{Store: s, Log: log, Every: time.Hour,
				Gate: &gate.Gate{Store: s, Holder: name, OpenBMC: rack.open, Waits: bmc.Waits{Request: time.Minute, Busy: time.Second}, Log: log}}
			wg.Go(func() {
				if err := sweep.Round(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	round()
	if len(rack.looks) != all {
		t.Errorf("%d BMCs were looked at, want %d", len(rack.looks), all)
	}
	for key, n := range rack.looks {
		if n != 1 {
			t.Fatalf("%s was looked at %d times in one round", key, n)
		}
	}
	if rack.overlaps != 0 || rack.atMax > 2*64 {
		t.Errorf("%d BMCs were talked to by both, %d at once in two processes", rack.overlaps, rack.atMax)
	}
	if n := count(`SELECT count(DISTINCT date_trunc('second', next_check_at)) FROM bmcs WHERE reachable`); n < 100 {
		t.Errorf("the next looks lie in %d seconds: not spread", n)
	}
	if n := count(`SELECT count(*) FROM conditions WHERE type = 'BmcReachable' AND status <> 'True'`); n != 0 {
		t.Errorf("%d conditions after one look that failed", n)
	}

	// The second look that fails says so, the third changes nothing but the spacing.
	var spacing []float64
	for range 3 {
		var d float64
		if err := s.Pool().QueryRow(t.Context(), `SELECT extract(epoch FROM avg(next_check_at - checked_at))::float8 FROM bmcs WHERE NOT reachable`).Scan(&d); err != nil {
			t.Fatal(err)
		}
		spacing = append(spacing, d)
		exec(`UPDATE bmcs SET next_check_at = now() WHERE NOT reachable`)
		round()
		if n := count(`SELECT count(*) FROM conditions WHERE type = 'BmcReachable' AND status = 'False' AND since <= now()`); n != dead {
			t.Errorf("%d of %d dead BMCs are said to be unreachable", n, dead)
		}
	}
	if spacing[1] < spacing[0]*1.5 || spacing[2] < spacing[1]*1.2 {
		t.Errorf("dead BMCs are asked after %.0f s, then %.0f, then %.0f: not less and less often", spacing[0], spacing[1], spacing[2])
	}
	if n := count(`SELECT count(*) FROM bmcs WHERE NOT reachable AND last_error LIKE '%no route to host%' AND check_failures = 4`); n != dead {
		t.Errorf("%d of %d dead BMCs show what was said last", n, dead)
	}
	if n := count(`SELECT count(*) FROM events WHERE type = 'node.condition.changed'`); n > dead {
		t.Errorf("%d events for %d conditions that changed once", n, dead)
	}
	if n := count(`SELECT count(*) FROM nodes WHERE provision_state <> 'ready' OR provision_op IS NOT NULL`); n != 0 {
		t.Errorf("%d nodes changed their provision state", n)
	}
}
