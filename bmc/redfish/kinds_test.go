package redfish_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/bmc/redfish"
	"github.com/bettercompute/compute/sim"
)

// says is an answer with one message.
func says(status int, id string) string {
	return `{status: ` + strconv.Itoa(status) + `, body: {error: {"@Message.ExtendedInfo": [{MessageId: ` + id + `}]}}}`
}

// TestSymptomsOfAKind: what an answer means does not hang on the registry, the
// vendor or the status that goes with it.
func TestSymptomsOfAKind(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rule  string
		aim   bmc.PowerAim
		kind  bmc.Kind
		posts int
	}{
		"not ready, 400":            {`match: {method: GET, path: "**/Systems/*", times: 2}, reply: ` + says(400, "Contoso.2.1.ControllerNotReady"), bmc.AimOn, "", 1},
		"not ready, 403":            {`match: {method: GET, path: "**/Systems/*", times: 2}, reply: ` + says(403, "SMC.1.0.BmcInitializing"), bmc.AimOn, "", 1},
		"not ready, 500":            {`match: {method: GET, path: "**/Systems/*", times: 2}, reply: ` + says(500, "Base.1.17.GeneralError"), bmc.AimOn, "", 1},
		"not ready, a bare 503":     {`match: {method: GET, path: "**/Systems/*", times: 2}, reply: {status: 503, raw: ""}`, bmc.AimOn, "", 1},
		"too many requests":         {`match: {method: GET, path: "**/Systems/*", times: 1}, reply: {status: 429, headers: {Retry-After: "20"}}`, bmc.AimOn, "", 1},
		"reset refused in POST":     {`match: {method: POST, path: "**/ComputerSystem.Reset", times: 2}, apply: false, reply: ` + says(400, "Lenovo.1.0.ServerIsInPOST"), bmc.AimReset, "", 3},
		"reset while a job runs":    {`match: {method: POST, path: "**/ComputerSystem.Reset", times: 1}, apply: false, reply: ` + says(400, "IDRAC.2.8.JobInProgress"), bmc.AimOn, "", 2},
		"restart made, said 500":    {`match: {method: POST, path: "**/ComputerSystem.Reset", times: 1}, reply: ` + says(500, "Base.1.8.InternalError"), bmc.AimReset, "", 1},
		"restart made, said 502":    {`match: {method: POST, path: "**/ComputerSystem.Reset", times: 1}, reply: {status: 502, raw: "<html/>"}`, bmc.AimReset, "", 1},
		"restart not made, said so": {`match: {method: POST, path: "**/ComputerSystem.Reset", times: 1}, apply: false, reply: ` + says(503, "Base.1.8.ServiceTemporarilyUnavailable"), bmc.AimReset, "", 2},
		"restart refused for good":  {`match: {method: POST, path: "**/ComputerSystem.Reset"}, apply: false, reply: ` + says(400, "Base.1.8.ActionParameterValueNotInList"), bmc.AimReset, bmc.KindRefused, 1},
		"If-Match wanted, said 400": {`match: {method: POST, path: "**/ComputerSystem.Reset", headers: {If-Match: absent}}, apply: false, reply: ` + says(400, "Oem.1.0.PreconditionHeaderMissing"), bmc.AimOn, "", 2},
		"no privilege":              {`match: {method: POST, path: "**/ComputerSystem.Reset"}, apply: false, reply: ` + says(403, "HpeCommon.1.0.InsufficientPrivilege"), bmc.AimOn, bmc.KindAuth, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// This profile shows the progress of a boot.
			b := newBench(t, sim.MachineSpec{Profile: "openbmc", Seed: 3, ETag: "header", ResetTypes: []string{"On", "ForceOff", "ForceRestart"},
				Power: map[bmc.PowerAim]string{bmc.AimOn: "Off", bmc.AimReset: "On"}[c.aim]})
			b.rules("faults:\n  - {name: it, " + c.rule + "}")
			r, err := changePower(b, c.aim)
			wantKind(t, err, c.kind)
			if c.kind == "" && r.State != bmc.PowerOn {
				t.Errorf("%+v", r)
			}
			if n := b.resets(); n != c.posts {
				t.Errorf("%d resets, want %d: %+v", n, c.posts, r)
			}
		})
	}
}

// TestTableFullIsBusy: a login that finds no free session is no wrong password,
// whatever status says it.
func TestTableFullIsBusy(t *testing.T) {
	t.Parallel()
	for _, reply := range []string{says(503, "IDRAC.2.8.RAC0218"), says(400, "Base.1.8.CreateLimitReachedForResource"),
		says(403, "Base.1.8.SessionLimitExceeded"), says(403, "iLO.2.14.MaxSessionsReached"), says(500, "Base.1.8.InternalError"), `{status: 429}`} {
		t.Run(reply, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, found("Off"))
			b.rules(`faults:
  - {name: full, match: {method: POST, path: "**/Sessions", times: 1}, apply: false, reply: ` + reply + `}`)
			_, err := redfish.Open(b.ctx(), b.target(), b.opts)
			wantKind(t, err, bmc.KindBusy)
			if _, err := b.open().Power(b.ctx()); err != nil {
				t.Error(err)
			}
		})
	}
	for _, reply := range []string{says(400, "Base.1.8.PropertyValueNotInList"), says(403, "Base.1.8.InsufficientPrivilege"), `{status: 401, raw: "<html/>"}`} {
		b := newBench(t, found("Off"))
		b.rules(`faults:
  - {name: no, match: {method: POST, path: "**/Sessions"}, apply: false, reply: ` + reply + `}`)
		_, err := redfish.Open(b.ctx(), b.target(), b.opts)
		wantKind(t, err, bmc.KindAuth)
	}
}

// TestLoginRefusedUntilChanged: a service that gives no session before the
// password is changed lets it be changed by Basic authentication.
func TestLoginRefusedUntilChanged(t *testing.T) {
	t.Parallel()
	for _, status := range []int{401, 403, 400} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			t.Parallel()
			spec := found("Off")
			spec.MustChangePassword = true
			b := newBench(t, spec)
			account := b.m.View(false).Accounts[0].ID
			b.rules(`faults:
  - {name: first, match: {method: POST, path: "**/Sessions", times: 1}, apply: false, reply: {status: ` + strconv.Itoa(status) + `, body: {error: {"@Message.ExtendedInfo": [{MessageId: Base.1.8.PasswordChangeRequired, MessageArgs: [/redfish/v1/AccountService/Accounts/` + account + `]}]}}}}`)
			c := b.open()
			_, err := c.Power(b.ctx())
			wantKind(t, err, bmc.KindAuth)
			if !strings.Contains(err.Error(), "must change its password") {
				t.Errorf("%v", err)
			}
			if err := c.SetPassword(b.ctx(), "A-new-Passw0rd"); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Power(b.ctx()); err != nil || b.m.Password() != "A-new-Passw0rd" {
				t.Errorf("afterwards: %v", err)
			}
			if n := b.m.Counts().LoginsFailed; n != 0 {
				t.Errorf("%d failed logins", n)
			}
		})
	}
}

// TestMediaWhoseAnswerWasLost: what was perhaps done is looked for, and what
// was not done is done, once.
func TestMediaWhoseAnswerWasLost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rule  string
		posts int
	}{
		"":                        {"", 1},
		"answer lost":             {`match: {method: POST, path: "**/VirtualMedia.InsertMedia", times: 1}, reply: {drop: after}`, 1},
		"never arrived":           {`match: {method: POST, path: "**/VirtualMedia.InsertMedia", times: 1}, reply: {drop: before}`, 2},
		"done late, said 504":     {`match: {method: POST, path: "**/VirtualMedia.InsertMedia", times: 1}, after: 50s, reply: {status: 504, raw: ""}`, 1},
		"done, said 500":          {`match: {method: POST, path: "**/VirtualMedia.InsertMedia", times: 1}, reply: ` + says(500, "Base.1.8.InternalError"), 1},
		"not done, said 500":      {`match: {method: POST, path: "**/VirtualMedia.InsertMedia", times: 1}, apply: false, reply: ` + says(500, "Base.1.8.InternalError"), 2},
		"busy with something":     {`match: {method: POST, path: "**/VirtualMedia.InsertMedia", times: 1}, apply: false, reply: ` + says(400, "IDRAC.2.8.VRM0012"), 2},
		"eject: never arrived":    {`match: {method: POST, path: "**/VirtualMedia.EjectMedia", times: 1}, reply: {drop: before}`, 1},
		"eject: answer lost":      {`match: {method: POST, path: "**/VirtualMedia.EjectMedia", times: 1}, reply: {drop: after}`, 1},
		"eject: done, said 500":   {`match: {method: POST, path: "**/VirtualMedia.EjectMedia", times: 1}, reply: {status: 500}`, 1},
		"eject: refused, is busy": {`match: {method: POST, path: "**/VirtualMedia.EjectMedia", times: 1}, apply: false, reply: ` + says(409, "Contoso.1.0.DeviceIsBusy"), 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, sim.MachineSpec{Profile: "generic", Seed: 3})
			if c.rule != "" {
				b.rules("faults:\n  - {name: it, " + c.rule + "}")
			}
			client := b.open()
			if err := client.InsertMedia(b.ctx(), image); err != nil {
				t.Fatal(err)
			}
			if n := b.m.Counts().InsertMedia; n != c.posts || !b.holds(image) {
				t.Errorf("%d InsertMedia, want %d; holds it: %v", n, c.posts, b.holds(image))
			}
			if err := client.EjectMedia(b.ctx(), nil); err != nil || b.holds(image) {
				t.Errorf("%v; still holds it: %v", err, b.holds(image))
			}
		})
	}
}

// TestTrustWithoutFault: each way to trust lets a whole deploy through.
func TestTrustWithoutFault(t *testing.T) {
	t.Parallel()
	for mode, spec := range map[string]string{"pin": "selfSigned", "verify": "ownCA", "insecure": "selfSigned"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s := found("Off")
			s.TLS.Mode = spec
			b := newBench(t, s)
			b.tls = bmc.TLS{Mode: mode}
			if mode == "verify" {
				b.tls.CA = string(b.rack.CA())
			}
			deployLike(t, b, b.open())
		})
	}
}

// TestSessionsWithoutFault: without a small table it is one session too.
func TestSessionsWithoutFault(t *testing.T) {
	t.Parallel()
	b := newBench(t, found("Off"))
	store := &kept{keep: true}
	b.opts.Session = store
	for i := range 10 {
		mixed(b, i)
	}
	store.keep = false
	if err := b.open().Close(b.ctx()); err != nil {
		t.Fatal(err)
	}
	if n := b.m.Counts(); n.SessionsOpen != 0 || n.SessionsOpenMax > 1 || n.Logins != 1 {
		t.Errorf("%+v", n)
	}
}
