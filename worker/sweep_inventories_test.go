package worker_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/gate"
	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/store/seal"
	"github.com/bettercompute/compute/store/storetest"
	"github.com/bettercompute/compute/worker"
)

// machine is a BMC of which the sweeps use two readings.
type machine struct {
	bmc.Client
	power     bmc.PowerState
	inventory func(ctx context.Context) (fleet.Inventory, error)
}

func (m *machine) Power(context.Context) (bmc.PowerState, error) { return m.power, nil }
func (m *machine) Inventory(ctx context.Context) (fleet.Inventory, error) {
	return m.inventory(ctx)
}
func (m *machine) Close(context.Context) error { return nil }

// sweeps are the sweeps of BMCs over one deployed machine, node_a, recorded off.
type sweeps struct {
	t           *testing.T
	store       *store.Store
	pool        *pgxpool.Pool
	machine     *machine
	power       *worker.BMCSweep
	inventories *worker.InventorySweep
}

func newSweeps(t *testing.T) *sweeps {
	t.Helper()
	keys, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	s := &sweeps{t: t, pool: storetest.New(t), machine: &machine{power: bmc.PowerOn}}
	s.store = store.New(s.pool, store.Options{Seal: keys})
	s.machine.inventory = func(context.Context) (fleet.Inventory, error) { return fleet.Inventory{BIOSVersion: "1"}, nil }
	log := slog.New(slog.DiscardHandler)
	g := &gate.Gate{Store: s.store, Holder: "w", Log: log, Waits: bmc.Waits{Request: time.Minute, Busy: time.Second},
		OpenBMC: func(context.Context, bmc.Target, bmc.Options) (bmc.Client, error) { return s.machine, nil }}
	s.power = &worker.BMCSweep{Store: s.store, Gate: g, Log: log, Every: time.Hour}
	s.inventories = &worker.InventorySweep{Store: s.store, Gate: g, Log: log, Every: time.Hour, RestEvery: 5 * time.Millisecond}
	s.exec(`INSERT INTO tenants (id) VALUES ('acme')`)
	s.exec(`INSERT INTO sites (id, tenant_id, name, spec) VALUES ('site_1', 'acme', 'one', '{"name": "one"}')`)
	s.exec(`INSERT INTO nodes (id, tenant_id, site_id, provision_state) VALUES ('node_a', 'acme', 'site_1', 'deployed')`)
	sealed, err := s.store.SealBMCPassword("node_a", "hunter2")
	if err != nil {
		t.Fatal(err)
	}
	s.exec(`INSERT INTO bmcs (node_id, site_id, address, driver, username, password, tls_mode, capabilities, identity, power_state, reachable)
		VALUES ('node_a', 'site_1', 'https://10.1.2.3', 'auto', 'admin', $1, 'insecure', '{"driver": "redfish"}', '{"serial": "s1"}', 'off', true)`, sealed)
	return s
}

func (s *sweeps) exec(sql string, args ...any) {
	s.t.Helper()
	if _, err := s.pool.Exec(s.t.Context(), sql, args...); err != nil {
		s.t.Fatal(err)
	}
}

// round reads the inventories that are due and says what is recorded.
func (s *sweeps) round() *fleet.Inventory {
	s.t.Helper()
	if err := s.inventories.Round(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	m, err := store.LoadMetal(s.t.Context(), s.pool, "node_a")
	if err != nil {
		s.t.Fatal(err)
	}
	return m.Inventory
}

// The hardware of a machine in use is read once an interval, and the lease is
// given back.
func TestInventorySweep(t *testing.T) {
	t.Parallel()
	s := newSweeps(t)
	reads := 0
	s.machine.inventory = func(context.Context) (fleet.Inventory, error) {
		reads++
		return fleet.Inventory{BIOSVersion: "1", Serial: "s1"}, nil
	}
	for range 2 {
		if inv := s.round(); inv == nil || inv.BIOSVersion != "1" {
			t.Errorf("recorded %+v, want what was read", inv)
		}
	}
	if reads != 1 {
		t.Errorf("read %d times in an interval, want once", reads)
	}
	var held int
	if err := s.pool.QueryRow(t.Context(), `SELECT count(*) FROM bmc_leases WHERE holder IS NOT NULL`).Scan(&held); err != nil || held != 0 {
		t.Errorf("%d leases are held after the round (%v)", held, err)
	}
}

// A reading gives way to an operation that begins, and records nothing.
func TestInventorySweepGivesWay(t *testing.T) {
	t.Parallel()
	s := newSweeps(t)
	s.machine.inventory = func(ctx context.Context) (fleet.Inventory, error) {
		s.exec(`UPDATE nodes SET provision_op = 'op_x'`)
		<-ctx.Done()
		return fleet.Inventory{BIOSVersion: "of a machine that is being changed", Serial: "s1"}, nil
	}
	if inv := s.round(); inv != nil {
		t.Errorf("recorded %+v beside an operation", inv)
	}
}

// Another machine behind the address is told and not taken for the one recorded.
func TestInventorySweepStranger(t *testing.T) {
	t.Parallel()
	s := newSweeps(t)
	shown := func() *fleet.BMCIdentity {
		t.Helper()
		m, err := store.LoadMetal(t.Context(), s.pool, "node_a")
		if err != nil {
			t.Fatal(err)
		}
		return m.BMC.ShownIdentity
	}
	for told, read := range []func(context.Context) (fleet.Inventory, error){
		// A driver that leaves the comparison to its caller, and one that makes it.
		func(context.Context) (fleet.Inventory, error) { return fleet.Inventory{Serial: "s2"}, nil },
		func(context.Context) (fleet.Inventory, error) {
			return fleet.Inventory{}, bmc.CompareIdentity("read", &fleet.BMCIdentity{Serial: "s1"}, fleet.BMCIdentity{Serial: "s3"})
		},
	} {
		s.machine.inventory = read
		s.exec(`UPDATE bmcs SET next_inventory_at = now()`)
		if inv := s.round(); inv != nil {
			t.Errorf("recorded %+v of another machine", inv)
		}
		var events int
		if err := s.pool.QueryRow(t.Context(), `SELECT count(*) FROM events WHERE type = 'security.bmc.identity-changed'`).Scan(&events); err != nil || events != told+1 {
			t.Errorf("%d events tell of it (%v), want %d", events, err, told+1)
		}
		if is := shown(); is == nil || is.Serial == "s1" {
			t.Errorf("the other machine is shown as %+v", is)
		}
	}
	s.machine.inventory = func(context.Context) (fleet.Inventory, error) { return fleet.Inventory{Serial: "s1"}, nil }
	s.exec(`UPDATE bmcs SET next_inventory_at = now()`)
	if s.round() == nil || shown() != nil {
		t.Errorf("back again, the other machine is still shown: %+v", shown())
	}
}

// After a restore the sweep's look at the power finds the machines that are not
// as the database says, and takes them out of placement.
func TestPowerSweepAfterRestore(t *testing.T) {
	t.Parallel()
	s := newSweeps(t)
	s.exec(`UPDATE cluster_epoch SET recovery_pending = true, recovery_reason = 'restore'`)
	if err := s.power.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	d, err := s.store.LoadDisagreements(t.Context())
	if err != nil || len(d.Unverified) != 1 || d.Unverified[0].NodeID != "node_a" {
		t.Errorf("unverified = %+v (%v), want node_a", d.Unverified, err)
	}
}
