// Package bmctest is the suite that every BMC driver passes: what the rest of
// the control plane relies on, said once and judged by the machine's true
// state. A new method of bmc.Client is tested here, for all drivers at once.
package bmctest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/bmc/check"
	"github.com/bettercompute/compute/fleet"
)

// Bench is one machine that is off, and how to see what really became of it.
type Bench struct {
	// Open is the driver's own.
	Open    func(ctx context.Context, target bmc.Target, opts bmc.Options) (bmc.Client, error)
	Target  bmc.Target
	Options bmc.Options
	// Power is the true power state, Boot the true one-time boot target.
	Power func() bmc.PowerState
	Boot  func() bmc.BootTarget
	// Changes is how many changing requests the machine received.
	Changes func() int
}

// patience is a test's own, well over what any step takes.
const patience = 2 * time.Minute

// Run runs the suite; every test gets a machine of its own.
func Run(t *testing.T, newBench func(t *testing.T) Bench) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, Bench){
		"identify": identify, "power": power, "soft off": softOff, "power already so": alreadySo, "intent first": intentFirst, "lease": lease,
		"spent restart": spentRestart, "boot": boot, "wrong machine": wrongMachine, "wrong password": wrongPassword,
		"address not allowed": notAllowed, "cancelled": cancelled, "inventory": inventory, "media": media, "erase": erase,
		"password": password, "check": checked,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newBench(t))
		})
	}
}

func (b Bench) ctx(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func (b Bench) client(t *testing.T) bmc.Client {
	t.Helper()
	c, err := b.Open(b.ctx(t), b.Target, b.Options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

// wantKind fails unless the error has the kind and, as every error of a driver,
// says what was done, why it failed and what to do.
func wantKind(t *testing.T, err error, kind bmc.Kind) {
	t.Helper()
	var e *bmc.Error
	if !errors.As(err, &e) || e.Kind != kind {
		t.Fatalf("kind %q, want %q: %v", bmc.KindOf(err), kind, err)
	}
	if e.Doing == "" || e.Cause == "" || e.Remedy == "" {
		t.Errorf("an error that does not explain itself: %+v", e)
	}
}

func identify(t *testing.T, b Bench) {
	f, err := b.client(t).Identify(b.ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	if f.Identity.Manufacturer == "" || f.Identity.Model == "" || f.Identity.Serial == "" || f.Identity.UUID == "" {
		t.Errorf("identity %+v", f.Identity)
	}
	if f.MachineKey == "" || f.Power != bmc.PowerOff || f.Capabilities.Driver != b.Target.Driver {
		t.Errorf("found %+v", f)
	}
	if n := b.Changes(); n != 0 {
		t.Errorf("identifying changed something %d times", n)
	}
}

func power(t *testing.T, b Bench) {
	c := b.client(t)
	for _, step := range []struct {
		aim  bmc.PowerAim
		want bmc.PowerState
	}{
		{bmc.AimReset, bmc.PowerOn}, // of a machine that is off: on
		{bmc.AimOff, bmc.PowerOff}, {bmc.AimCycle, bmc.PowerOn}, {bmc.AimCycle, bmc.PowerOn}, {bmc.AimReset, bmc.PowerOn},
		{bmc.AimOff, bmc.PowerOff}, {bmc.AimOn, bmc.PowerOn},
	} {
		before := b.Changes()
		r, err := c.SetPower(b.ctx(t), bmc.PowerChange{Aim: step.aim})
		if err != nil {
			t.Fatalf("%s: %v", step.aim, err)
		}
		if p := b.Power(); r.State != step.want || p != step.want {
			t.Errorf("%s: said %s, is %s, want %s", step.aim, r.State, p, step.want)
		}
		if r.AlreadySo || len(r.Sent) == 0 || b.Changes()-before != len(r.Sent) {
			t.Errorf("%s: %+v after %d requests", step.aim, r, b.Changes()-before)
		}
		if p, err := c.Power(b.ctx(t)); err != nil || p != step.want {
			t.Errorf("%s: %s is read, %v", step.aim, p, err)
		}
	}
}

// softOff asks and never escalates: a system that does not listen stays on, and
// the error names what forces it.
func softOff(t *testing.T, b Bench) {
	c := b.client(t)
	if _, err := c.SetPower(b.ctx(t), bmc.PowerChange{Aim: bmc.AimOn}); err != nil {
		t.Fatal(err)
	}
	before := b.Changes()
	r, err := c.SetPower(b.ctx(t), bmc.PowerChange{Aim: bmc.AimSoftOff})
	if n := b.Changes() - before; n != 1 || len(r.Sent) != 1 {
		t.Errorf("%d requests, said %q", n, r.Sent)
	}
	if err == nil {
		if r.State != bmc.PowerOff || b.Power() != bmc.PowerOff {
			t.Errorf("said %s, is %s", r.State, b.Power())
		}
		return
	}
	wantKind(t, err, bmc.KindTimeout)
	var e *bmc.Error
	if errors.As(err, &e) && !strings.Contains(e.Remedy, "power off") || b.Power() != bmc.PowerOn {
		t.Errorf("%v; remedy %q; is %s", err, e.Remedy, b.Power())
	}
}

func alreadySo(t *testing.T, b Bench) {
	c := b.client(t)
	for _, aim := range []bmc.PowerAim{bmc.AimOff, bmc.AimSoftOff} {
		r, err := c.SetPower(b.ctx(t), bmc.PowerChange{Aim: aim})
		if err != nil || !r.AlreadySo || len(r.Sent) != 0 || b.Changes() != 0 {
			t.Errorf("%s: %+v, %v, %d requests", aim, r, err, b.Changes())
		}
	}
}

// intentFirst: the caller's record comes before each request, and without it
// nothing is sent.
func intentFirst(t *testing.T, b Bench) {
	c := b.client(t)
	no := errors.New("the record could not be written")
	_, err := c.SetPower(b.ctx(t), bmc.PowerChange{Aim: bmc.AimOn, Acting: func(context.Context, string) error { return no }})
	if !errors.Is(err, no) || b.Changes() != 0 {
		t.Errorf("%v, %d requests", err, b.Changes())
	}
	var acted []string
	r, err := c.SetPower(b.ctx(t), bmc.PowerChange{Aim: bmc.AimOn, Acting: func(_ context.Context, request string) error {
		if b.Changes() != len(acted) {
			t.Error("the request was sent before its record")
		}
		acted = append(acted, request)
		return nil
	}})
	if err != nil || strings.Join(acted, ",") != strings.Join(r.Sent, ",") {
		t.Errorf("recorded %q, sent %q, %v", acted, r.Sent, err)
	}
}

func lease(t *testing.T, b Bench) {
	lost := &bmc.Error{Kind: bmc.KindBusy, Doing: "change", Cause: "the lease is lost", Remedy: "none"}
	asked := 0
	b.Options.BeforeChange = func(context.Context) error { asked++; return lost }
	c := b.client(t)
	r, err := c.SetPower(b.ctx(t), bmc.PowerChange{Aim: bmc.AimOn})
	wantKind(t, err, bmc.KindBusy)
	if len(r.Sent) > 0 {
		t.Errorf("%q is said to have been sent without a lease", r.Sent)
	}
	wantKind(t, c.SetBoot(b.ctx(t), bmc.BootOverride{Target: bmc.BootPXE}), bmc.KindBusy)
	if n := b.Changes(); n != 0 || asked != 2 {
		t.Errorf("%d requests without a lease, which was asked for %d times for two changes", n, asked)
	}
}

func spentRestart(t *testing.T, b Bench) {
	c := b.client(t)
	if _, err := c.SetPower(b.ctx(t), bmc.PowerChange{Aim: bmc.AimOn}); err != nil {
		t.Fatal(err)
	}
	before := b.Changes()
	for _, aim := range []bmc.PowerAim{bmc.AimReset, bmc.AimCycle} {
		r, err := c.SetPower(b.ctx(t), bmc.PowerChange{Aim: aim, Spent: true})
		if err != nil || r.State != bmc.PowerOn || b.Changes() != before {
			t.Errorf("%s: %+v, %v, %d requests", aim, r, err, b.Changes()-before)
		}
	}
}

func boot(t *testing.T, b Bench) {
	c := b.client(t)
	ctx := b.ctx(t)
	for _, target := range []bmc.BootTarget{bmc.BootPXE, bmc.BootDisk, bmc.BootCD, bmc.BootNone} {
		want := bmc.BootOverride{Target: target}
		if err := c.SetBoot(ctx, want); err != nil {
			t.Fatalf("%s: %v", target, err)
		}
		if is := b.Boot(); is != target {
			t.Errorf("said %s, is %s", target, is)
		}
		if o, err := c.Boot(ctx); err != nil || o.Target != target || o.Persistent {
			t.Errorf("%s: read %+v, %v", target, o, err)
		}
		before := b.Changes()
		if err := c.SetBoot(ctx, want); err != nil || b.Changes() != before {
			t.Errorf("%s: an override that is as wanted was written again: %v", target, err)
		}
	}
}

func wrongMachine(t *testing.T, b Bench) {
	f, err := b.client(t).Identify(b.ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range []fleet.BMCIdentity{{UUID: "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee", Serial: f.Identity.Serial}, {UUID: f.Identity.UUID, Serial: "ANOTHER"}} {
		b.Target.Identity = &other
		c := b.client(t)
		_, err := c.SetPower(b.ctx(t), bmc.PowerChange{Aim: bmc.AimOn})
		wantKind(t, err, bmc.KindWrongMachine)
		wantKind(t, c.SetBoot(b.ctx(t), bmc.BootOverride{Target: bmc.BootPXE}), bmc.KindWrongMachine)
	}
	if n := b.Changes(); n != 0 {
		t.Errorf("%d requests to another machine", n)
	}
	b.Target.Identity = &f.Identity
	if _, err := b.client(t).SetPower(b.ctx(t), bmc.PowerChange{Aim: bmc.AimOn}); err != nil {
		t.Errorf("the recorded machine itself: %v", err)
	}
}

func wrongPassword(t *testing.T, b Bench) {
	b.Target.Password = "Not-the-pass1"
	_, err := b.Open(b.ctx(t), b.Target, b.Options)
	wantKind(t, err, bmc.KindAuth)
	if strings.Contains(err.Error(), b.Target.Password) {
		t.Errorf("the error holds the password: %v", err)
	}
}

func notAllowed(t *testing.T, b Bench) {
	b.Options.AllowAddress = func(string) error { return errors.New("outside") }
	b.Options.Observe = func(e bmc.Exchange) {
		if e.Status != 0 {
			t.Errorf("something was sent: %+v", e)
		}
	}
	_, err := b.Open(b.ctx(t), b.Target, b.Options)
	wantKind(t, err, bmc.KindNotAllowed)
}

// cancelled: a cancelled caller gets its cancellation back, not a verdict on
// the BMC.
func cancelled(t *testing.T, b Bench) {
	c := b.client(t)
	ctx, cancel := context.WithCancel(b.ctx(t))
	cancel()
	_, err := c.SetPower(ctx, bmc.PowerChange{Aim: bmc.AimOn})
	if !errors.Is(err, context.Canceled) || b.Changes() != 0 {
		t.Errorf("%v, %d requests", err, b.Changes())
	}
}

func inventory(t *testing.T, b Bench) {
	inv, err := b.client(t).Inventory(b.ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	missing := strings.Join(inv.Missing, "\n")
	for what, none := range map[string]bool{"processors": len(inv.CPUs) == 0, "memory": inv.MemoryMiB == 0, "disks": len(inv.Disks) == 0, "network interfaces": len(inv.NICs) == 0} {
		if none && !strings.Contains(missing, what) {
			t.Errorf("no %s, and that is not said: %q", what, inv.Missing)
		}
	}
	if inv.Serial == "" || inv.Model == "" {
		t.Errorf("inventory %+v", inv)
	}
}

// supported says whether a method is offered at all; where it is not, its error
// says what to use instead and nothing was sent.
func supported(t *testing.T, b Bench, err error) bool {
	t.Helper()
	if bmc.KindOf(err) != bmc.KindUnsupported {
		return true
	}
	wantKind(t, err, bmc.KindUnsupported)
	if n := b.Changes(); n != 0 {
		t.Errorf("%d requests for what is not supported", n)
	}
	return false
}

func media(t *testing.T, b Bench) {
	c := b.client(t)
	const image = "http://127.0.0.1:9/boot/1/compute.iso"
	err := c.InsertMedia(b.ctx(t), image)
	if !supported(t, b, err) {
		wantKind(t, c.EjectMedia(b.ctx(t), nil), bmc.KindUnsupported)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	before := b.Changes()
	if err := c.InsertMedia(b.ctx(t), image); err != nil || b.Changes() != before {
		t.Errorf("an image that is there was inserted again: %v", err)
	}
	if err := c.EjectMedia(b.ctx(t), func(url string) bool { return url == image }); err != nil || b.Changes() != before {
		t.Errorf("a claimed image was ejected: %v", err)
	}
	if err := c.EjectMedia(b.ctx(t), nil); err != nil || b.Changes() == before {
		t.Errorf("not ejected: %v", err)
	}
}

func erase(t *testing.T, b Bench) {
	c := b.client(t)
	inv, err := c.Inventory(b.ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	serials := []string{"no-such-disk"}
	_, err = c.EraseDrives(b.ctx(t), serials)
	wantKind(t, err, bmc.KindUnsupported)
	f, err := c.Identify(b.ctx(t))
	if err != nil || !f.Capabilities.SecureErase || len(inv.Disks) == 0 {
		return
	}
	records, err := c.EraseDrives(b.ctx(t), []string{inv.Disks[0].Serial})
	if err != nil || len(records) != 1 || records[0].Result != "done" || records[0].Detail == "" {
		t.Errorf("%+v, %v", records, err)
	}
}

func password(t *testing.T, b Bench) {
	c := b.client(t)
	err := c.SetPassword(b.ctx(t), "Fresh-pass-123")
	if !supported(t, b, err) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Power(b.ctx(t)); err != nil {
		t.Errorf("with the new password: %v", err)
	}
	old := b
	_, err = old.Open(b.ctx(t), old.Target, old.Options)
	wantKind(t, err, bmc.KindAuth)
	b.Target.Password = "Fresh-pass-123"
	if _, err := b.client(t).Power(b.ctx(t)); err != nil {
		t.Errorf("a fresh login: %v", err)
	}
}

// checked: the report that an operator gets of new hardware finds nothing broken
// and changes nothing. It reads, beside what the other tests look at, the log.
func checked(t *testing.T, b Bench) {
	r := check.Run(b.ctx(t), check.Way{Open: b.Open}, b.Target, b.Options)
	if !r.Reached || !r.Usable || r.Driver != b.Target.Driver {
		t.Errorf("%+v", r)
	}
	for _, f := range r.Findings {
		if f.Says == "" || f.Grade != check.Works && f.Then == "" {
			t.Errorf("a finding that does not explain itself: %+v", f)
		}
		if f.Area == "log" && f.Then != "" && !strings.Contains(f.Says, "no log service") {
			t.Errorf("the log could not be read: %+v", f)
		}
	}
	for _, q := range r.Quirks {
		if check.QuirkText(q) == "" {
			t.Errorf("quirk %s is not explained", q)
		}
	}
	if n := b.Changes(); n != 0 {
		t.Errorf("a check changed something %d times", n)
	}
}
