package gateway_test

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// loadAgents is how many machines TestLoad connects: each costs 110 KiB at the
// gateway, as much in the machines' process, and 1.2 ms of processor at either
// end together whenever it connects. COMPUTE_TEST_LOAD=10000 makes it a whole
// fleet, which takes 2 GiB and a minute of two idle processors; TestTenThousand in
// store does what Postgres has to do for so many.
const loadMachines = 2000

// paced are the statements that a gateway sends by the clock, for all of its
// sessions in one.
var paced = []string{"SELECT boot_id FROM commands", "SELECT h.node FROM unnest", "UPDATE sessions s SET last_seen_at", "INSERT INTO gateways", "LISTEN"}

// judge fails the test when more was sent to Postgres for each machine than
// opening its sessions takes, or when what goes by the clock goes by the fleet.
func (r *loadRig) judge(when string) {
	r.t.Helper()
	sent := r.sent.all()
	s := r.stats() // of later than what was sent
	// What broke in between was opened too, and some are on their way.
	opened := s.Opened + s.Faults + int64(r.nodes/10)
	alone := map[string]int{}
	for sql, n := range sent {
		each := true
		for _, p := range paced {
			each = each && !strings.HasPrefix(sql, p)
		}
		if each {
			alone[sql] = n
		} else if n > r.nodes/4 {
			r.t.Errorf("%s: %d times for %d machines: %s", when, n, r.nodes, sql)
		}
	}
	if len(alone) > 3 {
		r.t.Errorf("%s: %d statements for a machine alone, want the opening of its session and two looks: %v", when, len(alone), alone)
	}
	for sql, n := range alone {
		if int64(n) > opened {
			r.t.Errorf("%s: %d times where %d sessions were opened: %s", when, n, opened, sql)
		}
	}
}

// A fleet is in session over TLS with its own certificates. What Postgres is sent
// for its heartbeats does not grow with it; a restart of the gateway, by its death
// or in order, and a split of more than a minute on either side of it change
// nothing of any node; what is really lost is told, and of nothing else.
//
// It runs beside no other test of the package: it takes the whole machine.
func TestLoad(t *testing.T) {
	n := loadMachines
	if more, err := strconv.Atoi(os.Getenv("COMPUTE_TEST_LOAD")); err == nil {
		n = more
	}
	r := newLoad(t, n)
	all := int64(r.nodes)
	everybody := func(since loadStats, rounds int64) func(loadStats) bool {
		return func(s loadStats) bool { return s.Live == all && s.Heartbeats >= since.Heartbeats+rounds*all }
	}
	kill, _ := r.startGateway()
	before := r.await("the fleet comes", everybody(loadStats{}, 1))
	r.judge("the fleet comes")
	r.untouched("the fleet comes")
	r.memory()
	r.await("heartbeats", everybody(before, 3))
	r.judge("at rest")

	r.splitStore()
	r.splitAgents()

	kill()
	r.later(100 * time.Second)
	r.lose("the gateway is dead", 0)
	before = r.stats()
	_, stop := r.startGateway()
	r.await("back after its death", everybody(before, 1))
	r.lose("the gateway is back", 0)
	r.untouched("after the gateway's death")

	before = r.stats()
	stop()
	r.later(100 * time.Second)
	r.lose("the gateway has stopped", 0)
	r.startGateway()
	s := r.await("back after its end", everybody(r.stats(), 1))
	if asked := s.Asked - before.Asked; asked < all/10 {
		t.Errorf("%d of %d machines were asked to come back later by the gateway that stopped", asked, all)
	}
	r.untouched("after the gateway's end")

	r.loseSome(20)
	if s := r.stats(); s.Refused != 0 {
		t.Errorf("%d machines were sent away: %s", s.Refused, s.Last)
	}
}

// splitStore cuts the gateway off from Postgres, which another gateway reaches
// all the while.
func (r *loadRig) splitStore() {
	r.t.Helper()
	r.exec(`INSERT INTO gateways (id, since) VALUES ('gw-other', now() - interval '1 hour')`)
	before := r.stats()
	r.toStore.cut()
	// Half a minute between heartbeats, fifteen seconds until they are noted, and
	// the split.
	r.later(105 * time.Second)
	r.exec(`UPDATE gateways SET at = now() WHERE id = 'gw-other'`)
	r.lose("cut off from Postgres", 0)
	r.await("heartbeats while cut off", func(s loadStats) bool { return s.Heartbeats >= before.Heartbeats+int64(r.nodes) })
	r.lose("cut off from Postgres", 0)
	r.toStore.mend()
	r.awaitFresh(r.nodes)
	r.lose("Postgres is back", 0)
	r.untouched("after the split from Postgres")
	r.exec(`DELETE FROM gateways WHERE id = 'gw-other'`)
}

// splitAgents cuts the gateway off from its machines.
func (r *loadRig) splitAgents() {
	r.t.Helper()
	r.toAgents.cut()
	r.later(105 * time.Second)
	r.steady()
	r.lose("cut off from the machines", 0)
	r.toAgents.mend()
	r.awaitFresh(r.nodes)
	r.steady()
	r.lose("the machines are back", 0)
	r.untouched("after the split from the machines")
}

// loseSome silences some machines.
func (r *loadRig) loseSome(some int) {
	r.t.Helper()
	r.tell("silence " + strconv.Itoa(some))
	// Those whose last heartbeat is not noted yet.
	await(r.t, "the last of the silent ones is noted", func() bool {
		return r.count(`SELECT count(*) FROM sessions WHERE node_id <= $1 AND last_seen_at > now() - interval '10 seconds'`, nodeID(some)) == 0
	})
	r.later(85 * time.Second)
	r.awaitFresh(r.nodes - some)
	r.steady()
	r.lose("some are silent", some)
	for what, sql := range map[string]string{
		"conditions": `SELECT count(*) FROM conditions WHERE type = 'Connected' AND status = 'False' AND node_id <= $1`,
		"reasons":    `SELECT count(*) FROM nodes WHERE no_schedule_reasons = '{unreachable}' AND id <= $1`,
		"events":     `SELECT count(*) FROM events WHERE type = 'node.condition.changed' AND node_id <= $1`,
	} {
		if n := r.count(sql, nodeID(some)); n != some {
			r.t.Errorf("%d silent machines: %d %s", some, n, what)
		}
	}
	if n := r.count(`SELECT count(*) FROM events`); n != some {
		r.t.Errorf("%d events in all, want %d", n, some)
	}
}
