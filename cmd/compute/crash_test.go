package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/sim"
	"github.com/bettercompute/compute/store"
)

// program runs a command of ours as a process of its own beside the rig.
func (r *rig) program(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asProgram+"=1", "DATABASE_URL="+r.databases, "TEMPORAL_ADDRESS="+r.address, "TEMPORAL_NAMESPACE="+r.namespace,
		"COMPUTE_KEYSET="+r.keyset, "COMPUTE_BOOT_KEY="+r.bootKey, "COMPUTE_BOOT_URL="+r.store.BootURL, "COMPUTE_GATEWAY_URL="+r.store.GatewayURL,
		"COMPUTE_TIME_SCALE="+strconv.Itoa(rigScale))
	cmd.Stderr = r.log
	return cmd
}

// spawnWorker starts a worker as a process, which ends with the test.
func (r *rig) spawnWorker() *os.Process {
	r.t.Helper()
	cmd := r.program("worker", "--unversioned", "--allow-short-retention")
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have been killed by the test
		_ = cmd.Wait()
	})
	return cmd.Process
}

func kill(t *testing.T, p *os.Process, s syscall.Signal) {
	t.Helper()
	if err := p.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// slowReset answers a reset of a type two seconds of ours late: time to do harm
// between the request and its answer.
func slowReset(kind string) *sim.FaultFile {
	return &sim.FaultFile{Faults: []sim.Rule{{Name: "slow", Match: sim.Match{Method: "POST", Path: "**/ComputerSystem.Reset", Body: map[string]any{"ResetType": kind}},
		Reply: &sim.Reply{Delay: sim.Duration(60 * time.Second)}}}}
}

// The reset was made and its bookkeeping fails for a while: it is not made
// again, and the operation succeeds (C21).
func TestWritesRefusedAfterReset(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.startWorker()
	h := r.add(t, sim.MachineSpec{Profile: "generic", Seed: 3, Power: "On"})
	h.enrolled()
	h.faults(slowReset("ForceRestart"))
	op := h.begin("power", obj{"action": "reset"})
	h.poll("the reset", func() bool { return h.Counts().Resets["ForceRestart"] == 1 })
	allow := r.refuseWrites()
	h.poll("attempts at the bookkeeping", func() bool {
		d, err := r.temporal.DescribeWorkflow(t.Context(), fleet.WorkflowID(op.ID), "")
		if err != nil {
			t.Fatal(err)
		}
		p := d.RawResponse.GetPendingActivities()
		return len(p) > 0 && p[0].GetAttempt() >= 3
	})
	allow()
	o := h.await(op.ID)
	succeeded(t, o)
	if n := h.Counts().Resets; n["ForceRestart"] != 1 || len(n) != 1 {
		t.Errorf("resets %v, want one ForceRestart", n)
	}
	alwaysSo(t, h, &sim.FaultFile{}, 0)
}

// refuseWrites makes the rig's database read-only until the returned function
// is called.
func (r *rig) refuseWrites() (allow func()) {
	r.t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, strings.Split(r.databases, "?")[0])
	if err != nil {
		r.t.Fatal(err)
	}
	name := pgx.Identifier{conn.Config().Database}.Sanitize()
	exec := func(statements ...string) {
		r.t.Helper()
		for _, s := range statements {
			if _, err := conn.Exec(ctx, s); err != nil {
				r.t.Fatal(err)
			}
		}
	}
	// The setting is for sessions that begin after it.
	const begin = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`
	exec(`ALTER DATABASE `+name+` SET default_transaction_read_only = on`, begin)
	return func() {
		r.t.Helper()
		exec(`ALTER DATABASE `+name+` RESET default_transaction_read_only`, begin)
		if err := conn.Close(ctx); err != nil {
			r.t.Fatal(err)
		}
	}
}

// A worker is killed after it sent a reset (C21), a new password and a medium:
// the next one reads before it acts, and each was sent once.
func TestWorkerKilledInMidChange(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first := r.spawnWorker()
	reset := r.add(t, sim.MachineSpec{Profile: "generic", Seed: 3, Power: "On"})
	rotated := r.add(t, sim.MachineSpec{Profile: "generic", Seed: 4})
	reset.enrolled()
	rotated.enrolled()
	reset.faults(slowReset("ForceRestart"))
	rotated.faults(&sim.FaultFile{Faults: []sim.Rule{{Name: "slow", Match: sim.Match{Method: "PATCH", Path: "**/Accounts/*"}, Reply: &sim.Reply{Delay: sim.Duration(60 * time.Second)}}}})
	resetOp := reset.begin("power", obj{"action": "reset"})
	rotateOp := rotated.begin("setCredentials", obj{"username": rotated.Username(), "password": "A-new-Passw0rd", "rotate": true})
	reset.poll("the reset", func() bool { return reset.Counts().Resets["ForceRestart"] == 1 })
	rotated.poll("the new password", func() bool { return rotated.Password() == "A-new-Passw0rd" })
	kill(t, first, syscall.SIGKILL)
	second := r.spawnWorker()
	succeeded(t, reset.await(resetOp.ID))
	succeeded(t, rotated.await(rotateOp.ID))
	if n := reset.Counts().Resets; n["ForceRestart"] != 1 || len(n) != 1 {
		t.Errorf("resets %v, want one ForceRestart", n)
	}
	if n := len(rotated.changes()); n != 1 {
		t.Errorf("%d changes, want one new password", n)
	}
	for _, h := range []*host{reset, rotated} {
		h.ClearFaults()
		succeeded(t, h.do("power", obj{"action": "off"}))
		h.noSession()
		if c := h.Counts(); c.ChangesInFlightMax > 1 || c.LoginsFailed != 0 {
			t.Errorf("%d changes at once, %d logins refused", c.ChangesInFlightMax, c.LoginsFailed)
		}
	}

	// The keyset is rotated by command while the processes run: all goes on.
	if out, err := r.program("keys", "rotate").Output(); err != nil {
		t.Fatalf("keys rotate: %v\n%s", err, out)
	}
	succeeded(t, rotated.do("setCredentials", obj{"username": rotated.Username(), "password": "Another-Passw0rd", "rotate": true}))
	succeeded(t, reset.do("power", obj{"action": "on"}))
	out, err := r.program("keys", "check").Output()
	if err != nil || !bytes.Contains(out, []byte("holds 2 keys")) || !bytes.Contains(out, []byte(" 0 do not open")) {
		t.Errorf("keys check: %v\n%s", err, out)
	}
	kill(t, second, syscall.SIGTERM)
}

// A worker is frozen for longer than its lease while it makes a change: the
// other one waits out the lease and a request's timeout, reads before it acts,
// and there is never more than one change under way. The first one, let go, does
// no harm.
func TestWorkerFrozenInMidChange(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first := r.spawnWorker()
	h := r.add(t, sim.MachineSpec{Profile: "generic", Seed: 3})
	h.ready()
	h.faults(&sim.FaultFile{Faults: []sim.Rule{{Name: "slow", Match: sim.Match{Method: "POST", Path: "**/VirtualMedia.InsertMedia"}, Reply: &sim.Reply{Delay: sim.Duration(60 * time.Second)}}}})
	op := h.begin("deploy", obj{"image": obj{"url": r.images + "demo.iso", "format": "iso", "checksum": "sha256:" + r.sum(t, "demo.iso")}})
	h.poll("the medium", func() bool { return h.Counts().InsertMedia == 1 })
	kill(t, first, syscall.SIGSTOP)
	frozen := r.rack.Now()
	var left float64 // seconds of the lease
	if err := r.store.Pool().QueryRow(t.Context(), `SELECT extract(epoch FROM expires_at - clock_timestamp())::float8 FROM bmc_leases WHERE node_id = $1 AND slot = $2`,
		h.node, store.ChangeSlot).Scan(&left); err != nil {
		t.Fatal(err)
	}
	free := frozen.Add(time.Duration(rigScale * (left + scaledWaits(rigScale).Request.Seconds()) * float64(time.Second)))
	second := r.spawnWorker()
	h.poll("the take-over", func() bool {
		return slices.ContainsFunc(h.Requests(), func(q sim.Request) bool { return q.At.After(free) && q.Method != "GET" })
	})
	kill(t, first, syscall.SIGCONT)
	succeeded(t, h.await(op.ID))
	reads := 0
	for _, q := range h.Requests() {
		switch {
		case !q.At.After(frozen):
		case q.At.Before(free) && q.Method != "GET" && !strings.Contains(q.Path, "/Sessions"):
			t.Errorf("%s %s came while the lease was the frozen worker's", q.Method, q.Path)
		case q.Method == "GET":
			reads++
		case reads == 0 && !strings.Contains(q.Path, "/Sessions"):
			t.Errorf("%s %s came before anything was read", q.Method, q.Path)
		}
	}
	if c := h.Counts(); c.InsertMedia != 1 || c.ChangesInFlightMax > 1 || c.SessionsOpenMax > 1 {
		t.Errorf("%d InsertMedia, %d changes at once, %d sessions at once", c.InsertMedia, c.ChangesInFlightMax, c.SessionsOpenMax)
	}
	bootedISO(1)(t, h, fleet.Operation{})
	for _, p := range []*os.Process{first, second} {
		kill(t, p, syscall.SIGTERM)
	}
}
