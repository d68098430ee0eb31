package sim_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/bettercompute/compute/sim"
	"github.com/google/go-cmp/cmp"
)

const sessions = "/redfish/v1/SessionService/Sessions"

func (b *bmc) withToken(token, method, path string) *response {
	return b.as("", "", method, path, nil, "X-Auth-Token", token)
}

func TestSessions(t *testing.T) {
	t.Parallel()
	spec := plain()
	spec.SessionLimit = 2
	b := newBMC(t, spec)
	first, second := b.login(), b.login()
	if first.status != http.StatusCreated || second.status != http.StatusCreated {
		t.Fatalf("log-ins: %d %d", first.status, second.status)
	}
	if r := b.login(); r.status != http.StatusServiceUnavailable || messageID(r) != "SessionLimitExceeded" {
		t.Errorf("third log-in: %d %s", r.status, messageID(r))
	}
	token := first.header.Get("X-Auth-Token")
	if r := b.withToken(token, http.MethodGet, sysPath); r.status != http.StatusOK {
		t.Errorf("with the token: %d", r.status)
	}
	id, _ := first.body["@odata.id"].(string)
	if r := b.withToken(token, http.MethodDelete, id); r.status >= 300 {
		t.Errorf("log-out: %d", r.status)
	}
	if r := b.withToken(token, http.MethodGet, sysPath); r.status != http.StatusUnauthorized || messageID(r) == "" {
		t.Errorf("after the log-out: %d", r.status)
	}
	b.r.Advance(31 * time.Minute)
	b.as("", "", http.MethodPost, sessions, map[string]any{"UserName": b.m.Username(), "Password": "wrong"})
	b.as(b.m.Username(), "wrong", http.MethodGet, sysPath, nil)
	c := b.m.Counts()
	got := []int{c.Logins, c.LoginsFailed, c.SessionsOpen, c.SessionsOpenMax, c.ChangesInFlightMax}
	if diff := cmp.Diff([]int{2, 2, 0, 2, 0}, got); diff != "" {
		t.Errorf("logins, failed, open, open at most, changes at once (-want +got):\n%s", diff)
	}
}

func TestOpenWithoutLogin(t *testing.T) {
	t.Parallel()
	b := newBMC(t, plain())
	for path, want := range map[string]int{"/redfish": 200, "/redfish/v1": 200, "/redfish/v1/": 200, "/redfish/v1/odata": 200,
		"/redfish/v1/$metadata": 200, sysPath: 401, "/redfish/v1/Nothing": 401, sessions: 401} {
		if r := b.as("", "", http.MethodGet, path, nil); r.status != want {
			t.Errorf("%s: got %d, want %d", path, r.status, want)
		}
	}
	if r := b.call(http.MethodGet, "/redfish/v1/Nothing", nil); r.status != http.StatusNotFound || messageID(r) != "ResourceMissingAtURI" {
		t.Errorf("unknown path: %d %s", r.status, messageID(r))
	}
	if r := b.call(http.MethodDelete, sysPath, nil); r.status != http.StatusMethodNotAllowed || r.header.Get("Allow") == "" {
		t.Errorf("DELETE of a system: %d", r.status)
	}
}

func TestLockout(t *testing.T) {
	t.Parallel()
	b := newBMC(t, sim.MachineSpec{Profile: "dell", Seed: 1})
	for range 3 {
		b.as("root", "wrong", http.MethodGet, "/redfish/v1/Systems", nil)
	}
	if r := b.call(http.MethodGet, "/redfish/v1/Systems", nil); r.status != http.StatusUnauthorized {
		t.Errorf("locked out, with the right password: %d, want 401", r.status)
	}
	b.r.Advance(61 * time.Second)
	if r := b.call(http.MethodGet, "/redfish/v1/Systems", nil); r.status != http.StatusOK {
		t.Errorf("after the lock-out: %d, want 200", r.status)
	}
}

func TestAccountPasswordChange(t *testing.T) {
	t.Parallel()
	spec := plain()
	spec.MustChangePassword = true
	b := newBMC(t, spec)
	user, old := b.m.Username(), b.m.Password()
	own := "/redfish/v1/AccountService/Accounts/" + user
	if r := b.call(http.MethodGet, sysPath, nil); r.status != http.StatusForbidden || messageID(r) != "PasswordChangeRequired" {
		t.Fatalf("before the change: %d %s", r.status, messageID(r))
	}
	if r := b.login(); r.status != http.StatusCreated || at(r.body, "@Message.ExtendedInfo", 0, "MessageId") == nil {
		t.Errorf("log-in before the change: %d %s", r.status, r.raw)
	}
	if r := b.call(http.MethodPatch, own, map[string]any{"Password": "short"}); r.status != http.StatusBadRequest {
		t.Errorf("a password too short: %d", r.status)
	}
	if r := b.call(http.MethodPatch, own, map[string]any{"Password": "this-one-is-too-long-for-it"}); r.status != http.StatusBadRequest {
		t.Errorf("a password too long: %d", r.status)
	}
	if r := b.call(http.MethodPatch, own, map[string]any{"Password": "new-password-1"}); r.status >= 300 {
		t.Fatalf("the change: %d %s", r.status, r.raw)
	}
	if r := b.as(user, old, http.MethodGet, sysPath, nil); r.status != http.StatusUnauthorized {
		t.Errorf("with the old password: %d, want 401", r.status)
	}
	if r := b.as(user, "new-password-1", http.MethodGet, sysPath, nil); r.status != http.StatusOK {
		t.Errorf("with the new password: %d, want 200", r.status)
	}
	if got := b.m.View(false).Password; got != "new-password-1" {
		t.Errorf("true state shows %q", got)
	}
}

func TestAccountsAndRoles(t *testing.T) {
	t.Parallel()
	b := newBMC(t, plain())
	accounts := "/redfish/v1/AccountService/Accounts"
	b.done(http.MethodPost, accounts, map[string]any{"UserName": "reader", "Password": "reader-pass", "RoleId": "ReadOnly"})
	b.done(http.MethodPost, accounts, map[string]any{"UserName": "oper", "Password": "oper-pass-1", "RoleId": "Operator"})
	reset := map[string]any{"ResetType": "On"}
	for _, tt := range []struct {
		user, password, method, path string
		body                         any
		want                         bool
	}{
		{"reader", "reader-pass", http.MethodGet, sysPath, nil, true},
		{"reader", "reader-pass", http.MethodPost, resetPath, reset, false},
		{"oper", "oper-pass-1", http.MethodPost, resetPath, reset, true},
		{"oper", "oper-pass-1", http.MethodPost, accounts, map[string]any{"UserName": "x", "Password": "xxxxxxxxx"}, false},
		{"oper", "oper-pass-1", http.MethodPatch, accounts + "/oper", map[string]any{"RoleId": "Administrator"}, false},
		{"reader", "reader-pass", http.MethodPatch, accounts + "/reader", map[string]any{"Password": "reader-pass2"}, true},
	} {
		r := b.as(tt.user, tt.password, tt.method, tt.path, tt.body)
		if ok := r.status < 300; ok != tt.want || !ok && r.status != http.StatusForbidden {
			t.Errorf("%s %s %s: got %d, want allowed=%v", tt.user, tt.method, tt.path, r.status, tt.want)
		}
	}
	b.done(http.MethodDelete, accounts+"/reader", nil)
	if r := b.as("reader", "reader-pass2", http.MethodGet, sysPath, nil); r.status != http.StatusUnauthorized {
		t.Errorf("a deleted account: %d", r.status)
	}
}

func TestFixedAccountSlots(t *testing.T) {
	t.Parallel()
	b := newBMC(t, sim.MachineSpec{Profile: "dell", Seed: 1})
	accounts := "/redfish/v1/AccountService/Accounts"
	if r := b.call(http.MethodPost, accounts, map[string]any{"UserName": "x", "Password": "xxxxxxxxx"}); r.status != http.StatusMethodNotAllowed {
		t.Errorf("POST of an account: %d, want 405", r.status)
	}
	b.done(http.MethodPatch, accounts+"/7", map[string]any{"UserName": "second", "Password": "second-pass", "RoleId": "Administrator", "Enabled": true})
	if r := b.as("second", "second-pass", http.MethodGet, "/redfish/v1/Systems", nil); r.status != http.StatusOK {
		t.Errorf("with the account of a slot: %d", r.status)
	}
	if got := b.get(accounts)["Members@odata.count"]; got != 16.0 {
		t.Errorf("slots: got %v, want 16", got)
	}
}

func TestManagerReset(t *testing.T) {
	t.Parallel()
	b := newBMC(t, plain())
	token := b.login().header.Get("X-Auth-Token")
	b.done(http.MethodPost, "/redfish/v1/Managers/bmc/Actions/Manager.Reset", map[string]any{"ResetType": "GracefulRestart"})
	if r := b.call(http.MethodGet, sysPath, nil); r != nil {
		t.Errorf("while the BMC restarts: %d, want no answer", r.status)
	}
	b.r.Advance(61 * time.Second)
	if r := b.withToken(token, http.MethodGet, sysPath); r.status != http.StatusUnauthorized {
		t.Errorf("with a token from before: %d, want 401", r.status)
	}
}
