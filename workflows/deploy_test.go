package workflows_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bettercompute/compute/activities"
	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/workflows"
)

func TestDeployWritesAnImage(t *testing.T) {
	t.Parallel()
	b := newBench(t, fleet.VerbDeploy, deployInput(func(in *fleet.MetalDeployIn) { in.SSHKeys = []string{"ssh-ed25519 AAAA"} }))
	b.succeeds(t)
	b.clean(t)
	if !b.eraseOwed || b.revoked != 1 || b.power != fleet.PowerOn || b.boots != 1 {
		t.Errorf("erase owed %v, revoked %d, power %s, boots %d", b.eraseOwed, b.revoked, b.power, b.boots)
	}
	if b.image == nil || !b.result.Image.Verified || !*b.result.Whole || b.result.Image.Confirmed != "report" {
		t.Errorf("image %+v, result %+v", b.image, b.result)
	}
	var types []string
	for _, c := range b.commands {
		types = append(types, c.Type)
	}
	if diff := cmp.Diff([]string{"writeImage", "configDrive", "finish"}, types); diff != "" {
		t.Error(diff)
	}
	if at := slices.Index(b.log, "InsertMedia"); at < 0 || slices.Index(b.log, "Reset on") < at {
		t.Errorf("switched on before the medium was in: %v", b.log)
	}
	config := b.commands[1].in
	if diff := cmp.Diff(map[string]string{"userData": "userData", "networkData": "networkData"}, config.Secrets); diff != "" {
		t.Error(diff)
	}
	args := config.Args.(map[string]any)
	if meta := args["metaData"].(string); !strings.Contains(meta, `"local-hostname":"n1"`) || !strings.Contains(meta, "ssh-ed25519 AAAA") {
		t.Errorf("meta data %s", meta)
	}
	if vendor := config.Sealed["vendorData"]; !strings.HasPrefix(vendor, "#cloud-config\n") || !strings.Contains(vendor, "http://boot/report/r1") {
		t.Errorf("vendor data %s", vendor)
	}
}

// Where the site lets installed systems become their nodes, they get a token to
// join by, sealed, and a deploy can wait for their agent.
func TestDeployAwaitsSession(t *testing.T) {
	t.Parallel()
	b := newBench(t, fleet.VerbDeploy, deployInput(func(in *fleet.MetalDeployIn) { in.Expect = "session" }))
	b.work.Site.Boot = &fleet.BootSpec{InstallAgent: true, AgentURL: "http://files/nodeagent", AgentChecksum: "sha256:" + sum}
	b.noAgent = true
	b.env.RegisterDelayedCallback(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.waiting == nil || !strings.Contains(b.waiting.What, "session") {
			t.Errorf("waits for %+v", b.waiting)
		}
		b.noAgent = false
	}, 30*time.Minute)
	b.succeeds(t)
	b.clean(t)
	if b.result.Image.Confirmed != "session" {
		t.Errorf("confirmed by %q", b.result.Image.Confirmed)
	}
	config := b.commands[1].in
	for _, want := range []string{fleet.JoinFilePath, "bcdeploy_secret=1", "http://files/nodeagent", sum} {
		if !strings.Contains(config.Sealed["vendorData"], want) {
			t.Errorf("the vendor data lacks %q: %s", want, config.Sealed["vendorData"])
		}
	}
	if strings.Contains(fmt.Sprint(config.Args), "bcdeploy") {
		t.Errorf("the token lies open: %v", config.Args)
	}
}

func TestDeployBootsAnISO(t *testing.T) {
	t.Parallel()
	b := newBench(t, fleet.VerbDeploy, deployInput(func(in *fleet.MetalDeployIn) { in.Image.Format = "iso" }))
	b.succeeds(t)
	if b.media != "http://images/os.iso?secret=1" {
		t.Errorf("the medium is %q", b.media)
	}
	if !b.eraseOwed || b.result.Image.Verified || !*b.result.Whole || b.result.Image.Confirmed != "boot" {
		t.Errorf("erase owed %v, result %+v", b.eraseOwed, b.result.Image)
	}
	if len(b.commands) != 0 {
		t.Errorf("commands to a machine that boots a foreign medium: %v", b.commands)
	}
}

func TestDeployRefusesBeforeItChanges(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		input fleet.MetalDeployIn
		caps  fleet.Capabilities
	}{
		"no way to boot":       {deployInput(nil), fleet.Capabilities{Driver: "redfish", BootOverride: true}},
		"boot not offered":     {deployInput(func(in *fleet.MetalDeployIn) { in.BootVia = "httpBoot" }), fleet.Capabilities{Driver: "redfish", BootOverride: true, VirtualMedia: true}},
		"no agent to wait for": {deployInput(func(in *fleet.MetalDeployIn) { in.Expect = "session" }), fleet.Capabilities{Driver: "redfish", BootOverride: true, VirtualMedia: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, fleet.VerbDeploy, c.input)
			b.work.Capabilities = c.caps
			b.after(time.Hour, fleet.SignalAbort, nil)
			if out, err := b.run(t); err != nil || out.State != "aborted" {
				t.Fatalf("%+v, %v", out, err)
			}
			if b.failure == nil || b.failure.Code != "unsupported" || b.revoked != 0 || len(b.resets) != 0 || b.eraseOwed {
				t.Errorf("failure %+v, revoked %d, resets %v", b.failure, b.revoked, b.resets)
			}
		})
	}
}

// TestDeployFailuresParkAndResume makes each step of a deploy fail once: it
// parks with a cause and a remedy, and a retry goes on from that step.
func TestDeployFailuresParkAndResume(t *testing.T) {
	t.Parallel()
	refused := &bmc.Error{Kind: bmc.KindRefused, Doing: "act", Cause: "not now"}
	cases := []struct {
		step    string
		code    string
		set     func(b *bench)
		mend    func(b *bench)
		resumes string // the step that runs first after the retry
	}{
		{step: "switch-off", code: "refused", set: func(b *bench) {
			b.faults["SetPower off"] = []error{refused}
			b.faults["SetPower softOff"] = []error{refused}
		}},
		{step: "prepare-boot", code: "refused", set: func(b *bench) { b.faults["InsertMedia"] = []error{refused} }},
		{step: "switch-on", code: "refused", set: func(b *bench) { b.faults["SetPower on"] = []error{refused} }, resumes: "prepare-boot"},
		{step: "await-call-in", code: "no-call-in", set: func(b *bench) { b.deaf = true }, mend: func(b *bench) { b.deaf = false }, resumes: "prepare-boot"},
		{step: "write-image", code: "machine", set: func(b *bench) { b.answers["writeImage"] = say("failed", "checksum is wrong") }, mend: func(b *bench) { delete(b.answers, "writeImage") }},
		{step: "write-config-drive", code: "machine", set: func(b *bench) { b.answers["configDrive"] = say("failed", "no space") }, mend: func(b *bench) { delete(b.answers, "configDrive") }},
		{step: "boot-disk", code: "refused", set: func(b *bench) { b.faults["SetBoot none"] = []error{refused} }},
		{step: "confirm", code: "no-report", set: func(b *bench) { b.reported = false }, mend: func(b *bench) { b.reported = true }},
	}
	for _, c := range cases {
		t.Run(c.step, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, fleet.VerbDeploy, deployInput(nil))
			c.set(b)
			var resumed []string
			b.env.RegisterDelayedCallback(func() {
				b.mu.Lock()
				f := b.failure
				if f == nil || f.Step != c.step || f.Code != c.code || f.Cause == "" || f.Remedy == "" || !f.Park {
					t.Errorf("failure %+v", f)
				}
				if c.mend != nil {
					c.mend(b)
				}
				b.onStep = func(step string, _ int) { resumed = append(resumed, step) }
				b.mu.Unlock()
				b.clean2(t)
				p := b.progress(t)
				if p.Parked == nil || p.Parked.Step != c.step {
					t.Errorf("progress %+v", p)
				}
				b.env.SignalWorkflow(fleet.SignalRetry, nil)
			}, 10*time.Hour)
			b.succeeds(t)
			b.clean(t)
			want := c.resumes
			if want == "" {
				want = c.step
			}
			if len(resumed) == 0 || resumed[0] != want {
				t.Errorf("went on with %v, want %s first", resumed, want)
			}
			if !slices.Contains(b.log, "retry by temporal") {
				t.Errorf("a person's retry was not asked of Postgres: %v", b.log)
			}
		})
	}
}

// clean2 is clean for a parked operation, whose BMC session may stay.
func (b *bench) clean2(t *testing.T) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.media != "" || (b.override.Target != "" && b.override.Target != bmc.BootNone) {
		t.Errorf("a failure left media %q, override %q", b.media, b.override.Target)
	}
}

// TestDeployStallIsNoticed: the command makes no progress, which fails after
// the stall time and not after the whole limit.
func TestDeployStallIsNoticed(t *testing.T) {
	t.Parallel()
	b := newBench(t, fleet.VerbDeploy, deployInput(nil))
	b.answers["writeImage"] = say("delivered", "")
	start := b.env.Now()
	var failedAt time.Duration
	b.env.RegisterDelayedCallback(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.failure == nil || b.failure.Code != "stalled" {
			t.Errorf("after 12 minutes without progress: %+v", b.failure)
		}
		failedAt = b.env.Now().Sub(start)
	}, 12*time.Minute)
	b.after(13*time.Minute, fleet.SignalAbort, nil)
	if out, err := b.run(t); err != nil || out.State != "aborted" {
		t.Fatalf("%+v, %v (failed at %s)", out, err, failedAt)
	}
	b.clean(t)
}

// TestMachineRestartsByItself: the used token is shown again, so the machine is
// switched off and on with a new medium, a bounded number of times.
func TestMachineRestartsByItself(t *testing.T) {
	t.Parallel()
	t.Run("once", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, fleet.VerbDeploy, deployInput(nil))
		b.answers["writeImage"] = func(w *world, c *command) {
			if c.boot == 1 {
				w.reused[1] = true
				c.State = "delivered"
				b.env.SignalWorkflow(fleet.SignalReboot, workflows.SignalInput{DispatchID: 7})
				return
			}
			succeed(w, c)
		}
		b.succeeds(t)
		if b.boots != 2 || b.resets["on"] != 3 {
			t.Errorf("boots %d, resets %v", b.boots, b.resets)
		}
	})
	// The image stays where it was written; the machine is told where.
	t.Run("after the image", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, fleet.VerbDeploy, deployInput(nil))
		b.answers["finish"] = func(w *world, c *command) {
			if c.boot == 1 {
				w.reused[1] = true
				c.State = "delivered"
				b.env.SignalWorkflow(fleet.SignalReboot, workflows.SignalInput{DispatchID: 7})
				return
			}
			succeed(w, c)
		}
		b.answers["configDrive"] = func(w *world, c *command) {
			if finish := *w.step("finish"); c.boot == 2 && (finish.State != fleet.StepPending || finish.EndedAt != nil) {
				t.Errorf("the step that the restart cut off is %+v", finish)
			}
			if disk := c.in.Args.(map[string]any)["disk"]; disk != "D1" {
				t.Errorf("the config drive goes to disk %q, the image went to D1", disk)
			}
			succeed(w, c)
		}
		b.succeeds(t)
		if n := len(b.commands); n != 5 || b.boots != 2 {
			t.Errorf("%d commands, %d boots", n, b.boots)
		}
	})
	t.Run("for ever, twice", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, fleet.VerbDeploy, deployInput(nil))
		b.answers["writeImage"] = func(w *world, c *command) { w.reused[c.boot] = true; c.State = "delivered" }
		b.after(5*time.Hour, fleet.SignalRetry, nil) // a person's retry begins the count anew
		b.after(10*time.Hour, fleet.SignalAbort, nil)
		if out, err := b.run(t); err != nil || out.State != "aborted" || b.boots != 8 {
			t.Fatalf("%+v, %v, %d boots", out, err, b.boots)
		}
	})
	t.Run("for ever", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, fleet.VerbDeploy, deployInput(nil))
		b.answers["writeImage"] = func(w *world, c *command) { w.reused[c.boot] = true; c.State = "delivered" }
		b.after(5*time.Hour, fleet.SignalAbort, nil)
		if out, err := b.run(t); err != nil || out.State != "aborted" {
			t.Fatalf("%+v, %v", out, err)
		}
		if b.failure == nil || b.failure.Code != activities.CodeReboots || b.boots != 4 {
			t.Errorf("failure %+v after %d boots", b.failure, b.boots)
		}
	})
}
