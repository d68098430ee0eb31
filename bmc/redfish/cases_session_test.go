package redfish_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/bmc/redfish"
	"github.com/bettercompute/compute/sim"
)

// kept is a session store as the lease row is one.
type kept struct {
	mu         sync.Mutex
	uri, token string
	keep       bool
}

func (k *kept) Load(context.Context) (string, string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.uri, k.token, nil
}

func (k *kept) Save(_ context.Context, uri, token string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.uri, k.token = uri, token
	return nil
}

func (k *kept) Keep() bool { return k.keep }

// forgetful is a session store whose database goes away in the middle of a login.
type forgetful struct{ kept }

var errForgotten = errors.New("the database is away")

func (*forgetful) Save(context.Context, string, string) error { return errForgotten }

// TestSessionThatCannotBeKept: a session that could not be recorded is ended, and
// that is no trouble with the BMC.
func TestSessionThatCannotBeKept(t *testing.T) {
	t.Parallel()
	b := newBench(t, found("Off"))
	b.opts.Session = &forgetful{}
	_, err := redfish.Open(b.ctx(), b.target(), b.opts)
	if n := b.m.Counts(); !errors.Is(err, errForgotten) || bmc.KindOf(err) != "" || n.Logins != 1 || n.SessionsOpen != 0 {
		t.Errorf("%v, kind %q, %d logins, %d sessions open", err, bmc.KindOf(err), n.Logins, n.SessionsOpen)
	}
}

// TestC13SessionsAreShared: 50 operations, some failed and some cancelled, use
// one session, and none is left when the last holder ends.
func TestC13SessionsAreShared(t *testing.T) {
	t.Parallel()
	for _, keep := range []bool{true, false} {
		t.Run(fmt.Sprint("keep ", keep), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, found("Off"))
			b.fault("c13-four-sessions")
			store := &kept{keep: keep}
			b.opts.Session = store
			for i := range 50 {
				mixed(b, i)
			}
			if !keep && b.m.Counts().SessionsOpen != 0 {
				t.Errorf("%d sessions open between holders", b.m.Counts().SessionsOpen)
			}
			store.keep = false
			if err := b.open().Close(b.ctx()); err != nil {
				t.Fatal(err)
			}
			n := b.m.Counts()
			if n.SessionsOpen != 0 || n.SessionsOpenMax > 1 || store.token != "" {
				t.Errorf("%d open, at most %d at once; %q kept", n.SessionsOpen, n.SessionsOpenMax, store.token)
			}
			if keep && n.Logins != 1 {
				t.Errorf("%d logins for one kept session", n.Logins)
			}
		})
	}
}

// mixed is one operation of the kind that i picks; what comes of it is not
// asked.
func mixed(b *bench, i int) {
	ctx, cancel := context.WithCancel(b.ctx())
	defer cancel()
	opts := b.opts
	switch i % 5 {
	case 1: // cancelled in the middle of whatever comes
		n := 0
		opts.Observe = func(bmc.Exchange) {
			if n++; n == i%7 {
				cancel()
			}
		}
	case 2: // fails at a change
		opts.BeforeChange = func(context.Context) error { return errors.New("the lease is lost") }
	case 3:
		cancel()
	}
	c, err := redfish.Open(ctx, b.target(), opts)
	if err != nil {
		return
	}
	defer func() { _ = c.Close(ctx) }()
	_, _ = c.SetPower(ctx, bmc.PowerChange{Aim: []bmc.PowerAim{bmc.AimOn, bmc.AimOff}[i%2]})
	_ = c.SetBoot(ctx, bmc.BootOverride{Target: bmc.BootPXE})
}

func TestC13TableFull(t *testing.T) {
	t.Parallel()
	b := newBench(t, found("Off"))
	b.fault("c13-table-full")
	for range 3 {
		_, err := redfish.Open(b.ctx(), b.target(), b.opts)
		wantKind(t, err, bmc.KindBusy)
	}
	if _, err := b.open().Power(b.ctx()); err != nil {
		t.Fatal(err)
	}
	if n := b.m.Counts(); n.LoginsFailed != 0 {
		t.Errorf("%+v", n)
	}
}

// TestC14TokenInvalid: a run goes through although the token is lost again and
// again, with one login for each loss.
func TestC14TokenInvalid(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"", "c14-token-invalid"} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, found("Off"))
			if fault != "" {
				b.fault(fault)
			}
			store := &kept{keep: true}
			b.opts.Session = store
			c := b.open()
			deployLike(t, b, c)
			lost := 0
			for _, f := range b.m.Faults() {
				lost += f.Hits
			}
			if n := b.m.Counts(); n.Logins > lost+1 || n.LoginsFailed != 0 {
				t.Errorf("%d logins after %d losses, %d failed", n.Logins, lost, n.LoginsFailed)
			}
			if fault != "" && lost == 0 {
				t.Error("the token was never lost")
			}
		})
	}
}

func deployLike(t *testing.T, b *bench, c *redfish.Client) {
	t.Helper()
	ctx := b.ctx()
	steps := []func() error{
		func() error { _, err := c.Identify(ctx); return err },
		func() error { return c.InsertMedia(ctx, image) },
		func() error { return c.SetBoot(ctx, wantCD) },
		func() error { _, err := c.SetPower(ctx, bmc.PowerChange{Aim: bmc.AimOn}); return err },
		func() error { _, err := c.SetPower(ctx, bmc.PowerChange{Aim: bmc.AimOff}); return err },
		func() error { return c.EjectMedia(ctx, nil) },
		func() error { return c.SetBoot(ctx, wantNone) },
	}
	for i, s := range steps {
		if err := s(); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
}

// TestC14SecondRefusalEnds: a token that is refused although it is new is an
// authentication error, and no third login follows.
func TestC14SecondRefusalEnds(t *testing.T) {
	t.Parallel()
	b := newBench(t, found("Off"))
	b.rules(`faults:
  - {name: refused, match: {method: GET, path: "**/Systems/**"}, apply: false, reply: {status: 401, raw: "<html>no</html>"}}`)
	_, err := b.open().Power(b.ctx())
	wantKind(t, err, bmc.KindAuth)
	if n := b.m.Counts().Logins; n > 2 {
		t.Errorf("%d logins", n)
	}
}

// TestWrongPassword: one login, and no other.
func TestWrongPassword(t *testing.T) {
	t.Parallel()
	b := newBench(t, found("Off"))
	target := b.target()
	target.Password = "not-the-password"
	_, err := redfish.Open(b.ctx(), target, b.opts)
	wantKind(t, err, bmc.KindAuth)
	if strings.Contains(err.Error(), "not-the-password") {
		t.Errorf("%v", err)
	}
	if n := b.m.Counts().LoginsFailed; n != 1 {
		t.Errorf("%d failed logins", n)
	}
}

// TestPrivilegeEnds: a missing privilege is no reason to try again.
func TestPrivilegeEnds(t *testing.T) {
	t.Parallel()
	b := newBench(t, found("Off"))
	b.rules(`faults:
  - {name: no, match: {method: POST, path: "**/ComputerSystem.Reset"}, apply: false, reply: {status: 403, body: {error: {"@Message.ExtendedInfo": [{MessageId: Base.1.8.InsufficientPrivilege}]}}}}`)
	_, err := changePower(b, bmc.AimOn)
	wantKind(t, err, bmc.KindAuth)
	if n := b.resets(); n != 1 {
		t.Errorf("%d resets", n)
	}
}

func TestC15NotReady(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"", "c15-not-ready-400", "c15-not-ready-503", "c15-not-ready-503-header", "c15-not-ready-after-change"} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, found("Off"))
			if fault != "" {
				b.fault(fault)
			}
			c := b.open()
			r, err := c.SetPower(b.ctx(), bmc.PowerChange{Aim: bmc.AimOn})
			if err != nil || r.State != bmc.PowerOn || b.resets() != 1 {
				t.Fatalf("%+v, %v, %d resets", r, err, b.resets())
			}
			if err := c.SetBoot(b.ctx(), wantCD); err != nil {
				t.Fatal(err)
			}
			hintsObeyed(t, b, fault)
		})
	}
}

// hintsObeyed checks on the rack's clock that no request came within the 30 s
// that the BMC asked for.
func hintsObeyed(t *testing.T, b *bench, fault string) {
	t.Helper()
	if !strings.Contains(fault, "503") && !strings.Contains(fault, "after") {
		return
	}
	var busy time.Time
	for _, r := range b.m.Requests() {
		if !busy.IsZero() && r.At.Sub(busy) < 29*time.Second {
			t.Errorf("%s %s came %v after the BMC asked for 30 s", r.Method, r.Path, r.At.Sub(busy))
		}
		if busy = (time.Time{}); r.Status == 503 {
			busy = r.At
		}
	}
}

// TestC15WritesWaitToo: a change that is answered "not ready" is sent again
// after the wait, not before.
func TestC15WritesWaitToo(t *testing.T) {
	t.Parallel()
	const busy = `{status: 503, headers: {Retry-After: "30"}, body: {error: {"@Message.ExtendedInfo": [{MessageId: IDRAC.2.8.SYS518}]}}}`
	b := newBench(t, found("Off"))
	b.rules(`faults:
  - {name: busy, match: {method: POST, path: "**/ComputerSystem.Reset", times: 1}, apply: false, reply: ` + busy + `}
  - {name: busy-patch, match: {method: PATCH, times: 1}, apply: false, reply: ` + busy + `}
  - {name: busy-insert, match: {method: POST, path: "**/VirtualMedia.InsertMedia", times: 1}, apply: false, reply: ` + busy + `}`)
	c := b.open()
	if err := c.InsertMedia(b.ctx(), image); err != nil {
		t.Fatal(err)
	}
	if err := c.SetBoot(b.ctx(), wantCD); err != nil {
		t.Fatal(err)
	}
	if _, err := c.SetPower(b.ctx(), bmc.PowerChange{Aim: bmc.AimOn}); err != nil {
		t.Fatal(err)
	}
	hintsObeyed(t, b, "503")
}

// TestBusyBeyondTheDeadline: a wait that does not fit is returned as busy with
// the hint, so that nobody sits it out.
func TestBusyBeyondTheDeadline(t *testing.T) {
	t.Parallel()
	b := newBench(t, found("Off"))
	c := b.open()
	b.rules(`faults:
  - {name: busy, match: {path: "**/Systems/**"}, apply: false, reply: {status: 503, headers: {Retry-After: "86400"}}}`)
	_, err := c.Power(b.ctx())
	wantKind(t, err, bmc.KindBusy)
	var be *bmc.Error
	if !errors.As(err, &be) || be.RetryAfter <= time.Minute {
		t.Errorf("no hint in %+v", be)
	}
}

// TestBrokenAnswers: cut, wrong and late answers to reads are read again.
func TestBrokenAnswers(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]string{
		"cut":      `match: {method: GET, path: "**/Systems/*", times: 2}, reply: {drop: midway}`,
		"dropped":  `match: {method: GET, path: "**/Systems/*", times: 2}, reply: {drop: before}`,
		"html":     `match: {method: GET, path: "**/Systems/*", times: 2}, reply: {status: 200, raw: "<html>starting</html>"}`,
		"half":     `match: {method: GET, path: "**/Systems/*", times: 2}, reply: {status: 200, raw: "{\"PowerState\": \"O"}`,
		"mistyped": `match: {method: GET, path: "**/Systems/*"}, set: {"/MemorySummary": "64 GiB", "/Status": 7, "/Boot/BootOrder": "x"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, found("On"))
			b.rules("faults:\n  - {name: broken, " + rule + "}")
			if p, err := b.open().Power(b.ctx()); err != nil || p != bmc.PowerOn {
				t.Errorf("%s, %v", p, err)
			}
		})
	}
	b := newBench(t, found("On"))
	b.rules(`faults:
  - {name: always, match: {method: GET, path: "**/Systems/*"}, reply: {status: 200, raw: "[1, 2"}}`)
	_, err := b.open().Power(b.ctx())
	wantKind(t, err, bmc.KindProtocol)
}

// TestMustChangePassword: the first login of a new machine lets nothing be done
// but the change of the password.
func TestMustChangePassword(t *testing.T) {
	t.Parallel()
	for _, profile := range sim.Profiles() {
		t.Run(profile, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, sim.MachineSpec{Profile: profile, Seed: 3, MustChangePassword: true})
			c := b.open()
			_, err := c.Identify(b.ctx())
			wantKind(t, err, bmc.KindAuth)
			if !strings.Contains(err.Error(), "password") {
				t.Errorf("%v does not say what is wanted", err)
			}
			const password = "A-new-Passw0rd"
			if err := c.SetPassword(b.ctx(), password); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Identify(b.ctx()); err != nil {
				t.Fatal(err)
			}
			if b.m.Password() != password {
				t.Error("the password was not changed")
			}
		})
	}
}

// TestSetPassword: success is a login with the new password.
func TestSetPassword(t *testing.T) {
	t.Parallel()
	const password = "A-new-Passw0rd"
	for name, c := range map[string]struct {
		rule string
		kind bmc.Kind
		set  bool
	}{
		"good":           {set: true},
		"lost after":     {rule: `match: {method: PATCH, path: "**/Accounts/*", times: 1}, reply: {drop: after}`, set: true},
		"lost before":    {rule: `match: {method: PATCH, path: "**/Accounts/*", times: 1}, reply: {drop: before}`, set: true},
		"never arrives":  {rule: `match: {method: PATCH, path: "**/Accounts/*"}, reply: {drop: before}`, kind: bmc.KindRefused},
		"set, said 500":  {rule: `match: {method: PATCH, path: "**/Accounts/*", times: 1}, reply: {status: 500}`, set: true},
		"said, not done": {rule: `match: {method: PATCH, path: "**/Accounts/*"}, apply: false, reply: {status: 200}`, kind: bmc.KindRefused},
		"repeats it": {rule: `match: {method: PATCH, path: "**/Accounts/*"}, apply: false, reply: {status: 400, body: {error: {"@Message.ExtendedInfo": [{MessageId: Base.1.8.PropertyValueFormatError, Message: "The value ` + password + ` is of a wrong format."}]}}}`,
			kind: bmc.KindRefused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, found("Off"))
			old := b.m.Password()
			if c.rule != "" {
				b.rules("faults:\n  - {name: it, " + c.rule + "}")
			}
			store := &kept{keep: true}
			b.opts.Session = store
			client := b.open()
			err := client.SetPassword(b.ctx(), password)
			wantKind(t, err, c.kind)
			if err != nil && strings.Contains(err.Error(), password) {
				t.Errorf("the error repeats the password: %v", err)
			}
			if is := b.m.Password(); is != map[bool]string{true: password, false: old}[c.set] {
				t.Errorf("the password is set: %v", is == password)
			}
			if n := b.m.Counts(); n.LoginsFailed > 2 {
				t.Errorf("%d failed logins", n.LoginsFailed)
			}
			// The client goes on with the password that works.
			if _, err := client.Power(b.ctx()); err != nil {
				t.Errorf("afterwards: %v", err)
			}
			store.keep = false
			if err := client.Close(b.ctx()); err != nil || b.m.Counts().SessionsOpen != 0 {
				t.Errorf("%v, %d sessions left", err, b.m.Counts().SessionsOpen)
			}
		})
	}
}
