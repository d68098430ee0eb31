package api_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/compute/fleet"
)

// on is an input on a node of acme with more members.
func on(nodeID string, more ...any) obj {
	in := obj{"tenantId": "acme", "nodeId": nodeID}
	for i := 0; i+1 < len(more); i += 2 {
		in[more[i].(string)] = more[i+1]
	}
	return in
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.store.Pool().Exec(context.Background(), sql, args...); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) text(sql string, args ...any) string {
	r.t.Helper()
	var s string
	if err := r.store.Pool().QueryRow(context.Background(), sql, args...).Scan(&s); err != nil {
		r.t.Fatal(err)
	}
	return s
}

// What a BMC's input must be, before anything is looked up.
func TestBMCInput(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, c := range map[string]struct {
		bmc   obj
		field string
	}{
		"no address":            {obj{"address": "not a host"}, "bmc.address"},
		"credentials in it":     {obj{"address": "https://root:pw@127.0.0.9"}, "bmc.address"},
		"redfish over ipmi":     {obj{"address": "ipmi://127.0.0.9", "driver": "redfish"}, "bmc.driver"},
		"ipmi, long user":       {obj{"address": "127.0.0.9", "driver": "ipmi", "username": strings.Repeat("u", 17)}, "bmc.username"},
		"ipmi, long password":   {obj{"address": "ipmi://127.0.0.9", "password": strings.Repeat("p", 21)}, "bmc.password"},
		"a CA that is none":     {obj{"address": "127.0.0.9", "tls": obj{"ca": "none"}}, "bmc.tls.ca"},
		"fingerprint, unpinned": {obj{"address": "127.0.0.9", "tls": obj{"mode": "verify", "fingerprint": "sha256:" + strings.Repeat("0", 64)}}, "bmc.tls.fingerprint"},
	} {
		in := enrollIn(r.site, "127.0.0.9")
		for k, v := range c.bmc {
			in["bmc"].(obj)[k] = v
		}
		p := r.refused("owner", "metal/enroll", in, fleet.CodeInvalidInput, "")
		if len(p.Fields) != 1 || p.Fields[0].Field != c.field {
			t.Errorf("%s: fields %v, want %s", name, p.Fields, c.field)
		}
	}
	var out fleet.MetalOperationOut
	in := enrollIn(r.site, "127.0.0.9")
	in["bmc"].(obj)["driver"] = "ipmi"
	r.ok("owner", "metal/enroll", in, &out)
	if out.Node.BMC.Address != "ipmi://127.0.0.9" {
		t.Errorf("a bare host with driver ipmi became %s", out.Node.BMC.Address)
	}
}

// A name is unique in its site, a pool is of the node's site and tenant, and
// advance: ready chains inspect and commission.
func TestEnrollPlace(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	named := func(address, name string) obj { in := enrollIn(r.site, address); in["name"] = name; return in }
	r.ok("owner", "metal/enroll", named("127.0.0.9", "a"), nil)
	r.refused("owner", "metal/enroll", named("127.0.0.10", "a"), fleet.CodeConflict, "name-taken")
	var other fleet.SiteOut
	r.ok("owner", "sites/create", obj{"tenantId": "acme", "name": "other", "allowedNetworks": []string{}}, &other)
	pool := r.pool(other.Site.ID, "elsewhere")
	in := enrollIn(r.site, "127.0.0.10")
	in["poolId"] = pool
	r.refused("owner", "metal/enroll", in, fleet.CodeInvalidInput, "")
	in["poolId"] = "pool_01j00000000000000000000000"
	r.refused("owner", "metal/enroll", in, fleet.CodeNotFound, "")
	r.refused("owner", "metal/enroll", enrollIn(other.Site.ID, "127.0.0.11"), fleet.CodeInvalidInput, "")
	in = enrollIn(r.site, "127.0.0.12")
	in["advance"], in["inUse"] = "ready", true
	var out fleet.MetalOperationOut
	r.ok("owner", "metal/enroll", in, &out)
	if got := r.text(`SELECT array_to_string(chain, ',') FROM operations WHERE id = $1`, out.Operation.ID); got != "inspect,commission" {
		t.Errorf("chain = %s", got)
	}
	if !out.Node.MaybeInUse {
		t.Error("enrolled with inUse: true, and not presumed to be in use")
	}
}

func (r *rig) pool(site, name string) string {
	r.t.Helper()
	var out fleet.PoolOut
	r.ok("owner", "pools/create", obj{"tenantId": "acme", "siteId": site, "name": name, "gpuModel": "H100 SXM5", "gpusPerNode": 2}, &out)
	return out.Pool.ID
}

func deployIn(nodeID string, image obj, more ...any) obj {
	img := obj{"url": "https://images.test/a.raw?sig=sesame", "checksum": "sha256:" + strings.Repeat("0", 64), "format": "raw"}
	for k, v := range image {
		img[k] = v
	}
	return on(nodeID, append([]any{"image", img}, more...)...)
}

// An ISO is booted and not written; the way to boot is one that is offered; the
// image's query and the documents are sealed apart.
func TestDeployInput(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Ready)
	iso := obj{"format": "iso"}
	for field, value := range map[string]any{"expect": "report", "hostname": "a", "sshKeys": []string{"ssh-ed25519 AAAA"}, "userData": "x", "networkData": "x",
		"rootDevice": obj{"type": "ssd"}, "bootVia": "pxe"} {
		p := r.refused("owner", "metal/deploy", deployIn(n.ID, iso, field, value), fleet.CodeInvalidInput, "")
		if len(p.Fields) != 1 || p.Fields[0].Field != field {
			t.Errorf("iso with %s: fields %v", field, p.Fields)
		}
	}
	r.exec(`UPDATE bmcs SET checked_at = now(), capabilities = '{"virtualMedia": false, "httpBoot": false}' WHERE node_id = $1`, n.ID)
	r.refused("owner", "metal/deploy", deployIn(n.ID, nil), fleet.CodeUnsupported, "no-way-to-boot")
	r.exec(`UPDATE bmcs SET capabilities = '{"virtualMedia": true, "httpBoot": false}' WHERE node_id = $1`, n.ID)
	r.refused("owner", "metal/deploy", deployIn(n.ID, nil, "bootVia", "httpBoot"), fleet.CodeUnsupported, "boot-via")
	r.refused("owner", "metal/deploy", deployIn(n.ID, nil, "bootVia", "pxe"), fleet.CodeUnsupported, "boot-via")
	var out fleet.MetalOperationOut
	r.ok("owner", "metal/deploy", deployIn(n.ID, nil, "userData", "#cloud-config sesame", "networkData", "sesame"), &out)
	if n := r.count(`SELECT count(*) FROM operations WHERE input::text LIKE '%sesame%'`); n != 0 {
		t.Error("a secret of the deploy stands in the operation's input")
	}
	if got := r.text(`SELECT string_agg(name, ',' ORDER BY name) FROM operation_secrets WHERE operation_id = $1`, out.Operation.ID); got != "imageURL,networkData,userData" {
		t.Errorf("sealed apart: %s", got)
	}
	if got := r.text(`SELECT input->'image'->>'url' FROM operations WHERE id = $1`, out.Operation.ID); got != "https://images.test/a.raw" {
		t.Errorf("the stored URL is %s", got)
	}
}

// A forced retire needs a reason and a permission of its own; the effective
// erase is decided when a verb is admitted and stored with it.
func TestLeaving(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.grant("acme", "provisioner", fleet.RoleProvisioner)
	n := r.enrolled("127.0.0.9", fleet.Ready)
	r.refused("owner", "metal/retire", on(n.ID, "force", true), fleet.CodeInvalidInput, "")
	r.refused("owner", "metal/retire", on(n.ID, "skipDisks", []string{"s"}), fleet.CodeInvalidInput, "")
	r.refused("provisioner", "metal/retire", on(n.ID, "force", true, "reason", "burnt"), fleet.CodeAccessDenied, "not-permitted")
	r.exec(`UPDATE nodes SET erase_owed_since = now() WHERE id = $1`, n.ID)
	r.refused("owner", "metal/retire", on(n.ID, "erase", "none"), fleet.CodeInvalidState, "erase-owed")
	var out fleet.MetalOperationOut
	r.ok("provisioner", "metal/retire", on(n.ID), &out)
	if got := r.text(`SELECT input->>'erase' FROM operations WHERE id = $1`, out.Operation.ID); got != "full" {
		t.Errorf("a retire with an erase owed erases %s, want full", got)
	}
	r.refused("owner", "metal/abort", on(n.ID), fleet.CodeInvalidState, "operation-in-progress")

	d := r.enrolled("127.0.0.10", fleet.Deployed)
	pool := r.pool(r.site, "strict")
	r.exec(`UPDATE pools SET policy = '{"eraseOnRelease": "full"}' WHERE id = $1`, pool)
	r.exec(`UPDATE nodes SET pool_id = $2 WHERE id = $1`, d.ID, pool)
	p := r.refused("owner", "metal/release", on(d.ID, "erase", "metadata"), fleet.CodeInvalidInput, "")
	if !strings.Contains(p.Detail, "full") {
		t.Errorf("an erase weaker than the policy is refused without naming it: %s", p.Detail)
	}
	r.ok("owner", "metal/release", on(d.ID), &out)
	if got := r.text(`SELECT input->>'erase' FROM operations WHERE id = $1`, out.Operation.ID); got != "full" {
		t.Errorf("a release under the policy full erases %s", got)
	}
}

// Power under a live allocation needs force with a reason, and the event lists
// what was hit.
func TestPowerUnderAllocations(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Deployed)
	pool := r.pool(r.site, "p")
	r.exec(`INSERT INTO allocations (id, tenant_id, pool_id, node_id, holder, gpus, state) VALUES ('alloc_1', 'acme', $1, $2, 'job', 1, 'active')`, pool, n.ID)
	r.refused("owner", "metal/power", on(n.ID, "action", "reset"), fleet.CodeInvalidState, "allocations-live")
	r.refused("owner", "metal/power", on(n.ID, "action", "reset", "force", true), fleet.CodeInvalidInput, "")
	r.refused("owner", "metal/release", on(n.ID), fleet.CodeInvalidState, "allocations-live")
	var out fleet.MetalOperationOut
	r.ok("owner", "metal/power", on(n.ID, "action", "reset", "force", true, "reason", "hung"), &out)
	if out.Node.ProvisionState != fleet.Deployed {
		t.Errorf("power moved the node to %s", out.Node.ProvisionState)
	}
	if got := r.text(`SELECT data->>'allocations' FROM events WHERE data->>'operationId' = $1`, out.Operation.ID); got != `["alloc_1"]` {
		t.Errorf("the event lists %s", got)
	}
}

// Credentials that IPMI would cut are refused, and so is a rotation over IPMI;
// neither password stands anywhere in the clear.
func TestSetCredentials(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Ready)
	r.exec(`UPDATE bmcs SET capabilities = '{"driver": "ipmi"}' WHERE node_id = $1`, n.ID)
	r.refused("owner", "metal/setCredentials", on(n.ID, "username", "u", "password", strings.Repeat("p", 21)), fleet.CodeInvalidInput, "")
	r.refused("owner", "metal/setCredentials", on(n.ID, "username", strings.Repeat("u", 17), "password", "p"), fleet.CodeInvalidInput, "")
	r.refused("owner", "metal/setCredentials", on(n.ID, "username", "u", "password", "p", "rotate", true), fleet.CodeUnsupported, "rotate-over-ipmi")
	r.ok("owner", "metal/setCredentials", on(n.ID, "username", "u", "password", "sesame-new"), nil)
	if n := r.count(`SELECT count(*) FROM operations WHERE input::text LIKE '%sesame%'`); n != 0 {
		t.Error("the new password stands in the operation's input")
	}
}

// While recovery is pending what could change a machine is refused, and what
// could not is not.
func TestRecoveryPending(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Ready)
	r.exec(`UPDATE cluster_epoch SET recovery_pending = true, recovery_reason = 'restore'`)
	r.refused("owner", "metal/commission", on(n.ID), fleet.CodeUnavailable, "recovery-pending")
	r.refused("owner", "metal/power", on(n.ID, "action", "on"), fleet.CodeUnavailable, "recovery-pending")
	r.refused("owner", "metal/inspect", on(n.ID, "mode", "inBand"), fleet.CodeUnavailable, "recovery-pending")
	r.ok("owner", "metal/enroll", enrollIn(r.site, "127.0.0.10"), nil)
	r.ok("owner", "metal/inspect", on(n.ID), nil)
}

// A held node takes no verb that could touch it, and says by whom and why;
// unhold wakes what waits.
func TestHold(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Ready)
	r.refused("operator", "metal/hold", on(n.ID, "reason", "cabling", "until", time.Now().Add(-time.Hour).Format(time.RFC3339)), fleet.CodeInvalidInput, "")
	var dry, held, free fleet.MetalChangeOut
	r.ok("operator", "metal/hold", on(n.ID, "reason", "cabling", "dryRun", true), &dry)
	if dry.Node.Hold != nil || dry.Plan == nil || dry.Node.Version != n.Version {
		t.Errorf("a dry hold answered %+v", dry)
	}
	r.ok("operator", "metal/hold", on(n.ID, "reason", "cabling"), &held)
	if held.Node.Hold == nil || held.Node.Hold.By != "dev:operator" || held.Node.Version != n.Version+1 {
		t.Errorf("held: %+v, version %d", held.Node.Hold, held.Node.Version)
	}
	p := r.refused("owner", "metal/deploy", deployIn(n.ID, nil), fleet.CodeInvalidState, "held")
	if !strings.Contains(p.Detail, "dev:operator") || !strings.Contains(p.Detail, "cabling") {
		t.Errorf("held by whom, why? %s", p.Detail)
	}
	var out fleet.MetalOperationOut
	r.ok("owner", "metal/inspect", on(n.ID), &out)
	r.exec(`UPDATE operations SET state = 'waiting' WHERE id = $1`, out.Operation.ID)
	r.ok("operator", "metal/unhold", on(n.ID), &free)
	if free.Node.Hold != nil {
		t.Errorf("after unhold: %+v", free.Node.Hold)
	}
	if n := r.count(`SELECT count(*) FROM dispatch WHERE operation_id = $1 AND signal = 'wake'`, out.Operation.ID); n != 1 {
		t.Errorf("%d wakes of the waiting operation, want 1", n)
	}
	version := free.Node.Version
	r.ok("operator", "metal/unhold", on(n.ID), &free)
	if free.Node.Version != version {
		t.Error("unhold of a node that is not held raised its version")
	}
}

// Verbs that mend leave a parked operation parked; any other ends it, and its
// workflow is told to close.
func TestParked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Ready)
	var op, power fleet.MetalOperationOut
	r.ok("owner", "metal/inspect", on(n.ID), &op)
	r.exec(`UPDATE operations SET state = 'failed', parked = true, delivered_at = now() WHERE id = $1`, op.Operation.ID)
	r.exec(`UPDATE nodes SET provision_state = 'failed', failed = '{"from": "inspecting", "step": "identify", "cause": "c", "remedy": "r", "at": "2026-01-01T00:00:00Z"}' WHERE id = $1`, n.ID)
	r.exec(`DELETE FROM dispatch`)
	r.ok("owner", "metal/power", on(n.ID, "action", "on"), &power)
	r.refused("owner", "metal/retry", on(n.ID), fleet.CodeInvalidState, "operation-in-progress")
	r.exec(`UPDATE operations SET state = 'succeeded', ended_at = now() WHERE id = $1`, power.Operation.ID)
	if got := r.text(`SELECT state FROM operations WHERE id = $1 AND parked`, op.Operation.ID); got != "failed" {
		t.Errorf("after power the parked operation is %s", got)
	}
	var retried fleet.MetalOperationOut
	r.ok("owner", "metal/retry", on(n.ID), &retried)
	if retried.Operation.ID != op.Operation.ID || retried.Operation.State != fleet.OpPending || retried.Node.ProvisionState != fleet.Inspecting {
		t.Errorf("retry: operation %s %s, node %s", retried.Operation.ID, retried.Operation.State, retried.Node.ProvisionState)
	}
	r.exec(`UPDATE operations SET state = 'failed', parked = true WHERE id = $1`, op.Operation.ID)
	r.exec(`UPDATE nodes SET provision_state = 'failed', failed = '{"from": "inspecting", "step": "identify", "cause": "c", "remedy": "r", "at": "2026-01-01T00:00:00Z"}' WHERE id = $1`, n.ID)
	var retire fleet.MetalOperationOut
	r.ok("owner", "metal/retire", on(n.ID), &retire)
	if got := r.text(`SELECT state FROM operations WHERE id = $1`, op.Operation.ID); got != "aborted" {
		t.Errorf("superseded, the parked operation is %s", got)
	}
	if n := r.count(`SELECT count(*) FROM dispatch WHERE operation_id = $1 AND signal = 'end'`, op.Operation.ID); n != 1 {
		t.Errorf("%d ends told to the superseded workflow, want 1", n)
	}
	if n := r.count(`SELECT count(*) FROM nodes WHERE provision_op = $1`, retire.Operation.ID); n != 1 {
		t.Error("the fence is not the new operation's")
	}
}

// manage records the BMC while it is proved, once, and forgets it when the proof
// fails; then, and only then, power is admitted.
func TestManage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	other := r.enrolled("127.0.0.9", fleet.Ready)
	bmc := func(address string) obj { return obj{"address": address, "username": "u", "password": "sesame-p"} }
	r.refused("owner", "metal/manage", on(other.ID, "bmc", bmc("127.0.0.10")), fleet.CodeInvalidState, "")
	n := r.joined(hostUUID)
	r.refused("owner", "metal/manage", on(n.ID, "bmc", bmc("127.0.0.10")), fleet.CodeInvalidState, "operation-in-progress")
	if err := r.store.SucceedOperation(t.Context(), n.Operations.Provision, fleet.OperationResult{}); err != nil {
		t.Fatal(err)
	}
	r.refused("owner", "metal/power", on(n.ID, "action", "on"), fleet.CodeInvalidState, "guarded")
	r.refused("owner", "metal/manage", on(n.ID, "bmc", bmc("10.0.0.1")), fleet.CodeInvalidInput, "")
	r.refused("owner", "metal/manage", on(n.ID, "bmc", bmc("127.0.0.9")), fleet.CodeConflict, "already-enrolled")

	var out fleet.MetalOperationOut
	r.ok("owner", "metal/manage", on(n.ID, "bmc", bmc("127.0.0.10"), "dryRun", true), &out)
	if bmcs := r.count(`SELECT count(*) FROM bmcs WHERE node_id = $1`, n.ID); bmcs != 0 || out.Plan == nil || len(out.Plan.Steps) != 1 || out.Plan.WouldBe != fleet.Adopted {
		t.Errorf("dry run: %d BMCs, plan %+v", bmcs, out.Plan)
	}
	r.ok("owner", "metal/manage", on(n.ID, "bmc", bmc("127.0.0.10")), &out)
	if out.Node.ProvisionState != fleet.Adopted || !out.Node.Guarded {
		t.Errorf("managing: %+v", out.Node)
	}
	if n := r.count(`SELECT count(*) FROM operations WHERE input::text LIKE '%sesame-p%'`); n != 0 {
		t.Error("the password stands in the operation's input")
	}
	if err := r.store.FailOperation(t.Context(), out.Operation.ID, fleet.OperationFailure{Step: "prove-bmc", Code: "no-proof", Cause: "another machine"}); err != nil {
		t.Fatal(err)
	}
	if bmcs := r.count(`SELECT count(*) FROM bmcs WHERE node_id = $1`, n.ID); bmcs != 0 {
		t.Error("a BMC without proof is recorded")
	}
	r.refused("owner", "metal/power", on(n.ID, "action", "on"), fleet.CodeInvalidState, "guarded")

	r.ok("owner", "metal/manage", on(n.ID, "bmc", bmc("127.0.0.10")), &out)
	if err := r.store.SucceedOperation(t.Context(), out.Operation.ID, fleet.OperationResult{}); err != nil {
		t.Fatal(err)
	}
	if got := r.nodeOf(n.ID); got.ProvisionState != fleet.Adopted || !got.Guarded || got.Version <= out.Node.Version {
		t.Errorf("managed: %+v", got)
	}
	r.refused("owner", "metal/manage", on(n.ID, "bmc", bmc("127.0.0.11")), fleet.CodeInvalidState, "already-managed")
	for _, verb := range []string{"inspect", "commission", "unrescue", "release", "retire"} {
		r.refused("owner", "metal/"+verb, on(n.ID), fleet.CodeInvalidState, "")
	}
	r.refused("owner", "metal/deploy", deployIn(n.ID, nil), fleet.CodeInvalidState, "")
	r.ok("owner", "metal/power", on(n.ID, "action", "reset", "force", true, "reason", "hung"), nil)
}

// A machine that is enrolled by its BMC and is an adopted host is refused, and
// the host is named.
func TestEnrollMeetsAdopted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	host := r.joined(hostUUID)
	for name, c := range map[string]struct {
		identity fleet.BMCIdentity
		macs     []string
		meets    bool
	}{
		"UUID":             {identity: fleet.BMCIdentity{UUID: hostUUID}, meets: true},
		"UUID turned":      {identity: fleet.BMCIdentity{UUID: fleet.SwapUUID(hostUUID)}, meets: true},
		"addresses":        {macs: []string{"00:1B:21:00:00:01", "00:1b:21:00:00:07"}, meets: true},
		"another":          {identity: fleet.BMCIdentity{UUID: "4c4c4544-0051-3910-8053-b4c04f4e3935"}, macs: []string{"00:1b:21:00:00:09"}},
		"nothing to go by": {},
	} {
		var out fleet.MetalOperationOut
		r.ok("owner", "metal/enroll", enrollIn(r.site, "127.0.1."+fmt.Sprint(len(name))), &out)
		if _, err := r.store.BeginOperation(t.Context(), out.Operation.ID, "run"); err != nil {
			t.Fatal(err)
		}
		err := r.store.RecordFound(t.Context(), out.Operation.ID, fleet.Found{Identity: c.identity}, "redfish")
		if err == nil {
			inv := fleet.Inventory{}
			for _, m := range c.macs {
				inv.NICs = append(inv.NICs, fleet.NIC{MAC: m})
			}
			err = r.store.RecordInventory(t.Context(), out.Operation.ID, inv)
		}
		if (fleet.ReasonOf(err) == "already-enrolled") != c.meets || c.meets && !strings.Contains(err.Error(), host.ID) {
			t.Errorf("%s: %v, want met = %v", name, err, c.meets)
		}
	}
}
