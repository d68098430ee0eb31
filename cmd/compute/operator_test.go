package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bettercompute/compute/fleet"
)

// control calls the rack's control API.
func (u *user) control(method, path, body string, into any) {
	u.t.Helper()
	req, err := http.NewRequestWithContext(u.t.Context(), method, u.env["BMCSIM_URL"]+path, strings.NewReader(body))
	if err != nil {
		u.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		u.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode/100 != 2 {
		u.t.Fatalf("%s %s: %s %s (%v)", method, path, resp.Status, raw, err)
	}
	if into != nil {
		if err := json.Unmarshal(raw, into); err != nil {
			u.t.Fatal(err)
		}
	}
}

// exits runs a program that must end with the exit code.
func (u *user) exits(code int, name string, args ...string) string {
	u.t.Helper()
	cmd := u.command(name, args...)
	out, _ := cmd.CombinedOutput() // the exit code is what is judged
	if got := cmd.ProcessState.ExitCode(); got != code {
		u.t.Fatalf("%s %s: exit code %d, want %d\n%s", name, strings.Join(args, " "), got, code, out)
	}
	return string(out)
}

// simMachine is a simulated machine of the test's own.
type simMachine struct{ ID, Address, Username, Password string }

// traffic is what a simulated machine received: all log-ins, good or refused, and
// all requests.
func (u *user) traffic(id string) (logins, requests int) {
	u.t.Helper()
	var counts struct {
		Requests             map[string]int
		Logins, LoginsFailed int
	}
	u.simulated("/sim/machines/"+id+"/counts", &counts)
	for _, n := range counts.Requests {
		requests += n
	}
	return counts.Logins + counts.LoginsFailed, requests
}

// eventually polls until something is so.
func (u *user) eventually(what string, is func() bool) {
	u.t.Helper()
	for end := time.Now().Add(stackLimit); !is(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			u.t.Fatalf("not seen in time: %s", what)
		}
	}
}

func (u *user) trusted(name string) fleet.ConditionStatus {
	u.t.Helper()
	for _, c := range u.node(name).Conditions {
		if c.Type == "BmcTrusted" {
			return c.Status
		}
	}
	return ""
}

// Machines of several makers are enrolled from a file, as often as one likes;
// certificates that change and a board that is replaced stop the work until a
// person accepts them, all at once.
func TestManyMachines(t *testing.T) {
	t.Parallel()
	u := startUser(t)
	u.ownSite("many")
	dir := t.TempDir()
	var machines []simMachine
	sheet := "name,bmc-address,bmc-username,bmc-password,bmc-password-env,bmc-password-file,labels\n"
	for i, profile := range []string{"dell", "hpe", "supermicro", "lenovo"} {
		var m simMachine
		u.control("POST", "/sim/machines", fmt.Sprintf(`{"profile": %q, "seed": %d}`, profile, 700+i), &m)
		machines = append(machines, m)
		where := []string{m.Password, "", ""}
		switch i {
		case 1:
			u.env["MANY_PASSWORD"] = m.Password
			where = []string{"", "MANY_PASSWORD", ""}
		case 2:
			where = []string{"", "", filepath.Join(dir, "password")}
			if err := os.WriteFile(where[2], []byte(m.Password), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		sheet += fmt.Sprintf("many-%s,%s,%s,%s,maker=%s\n", profile, m.Address, m.Username, strings.Join(where, ","), profile)
	}
	from, to := filepath.Join(dir, "machines.csv"), filepath.Join(dir, "results.csv")
	if err := os.WriteFile(from, []byte(sheet), 0o600); err != nil {
		t.Fatal(err)
	}
	enroll := []string{"metal", "enroll", "--from", from, "--results", to, "--bmc-tls-mode", "pin"}
	if out := u.run("computectl", append(enroll, "--dry-run")...); !strings.Contains(out, "4 rows: 4 would-enroll") {
		t.Fatal(out)
	}
	var page fleet.MetalPage
	if err := json.Unmarshal([]byte(u.run("computectl", "metal", "list", "--site-id", u.env["COMPUTE_SITE"], "-o", "json")), &page); err != nil || len(page.Items) != 0 {
		t.Fatalf("a dry run enrolled %d machines (%v)", len(page.Items), err)
	}
	out := u.run("computectl", append(enroll, "--watch", "--parallel", "4")...)
	if !strings.Contains(out, "4 rows: 4 enrolled") {
		t.Fatal(out)
	}
	u.state("many-dell", fleet.Enrolling)
	again := u.run("computectl", enroll...)
	if !strings.Contains(again, "4 rows: 4 already-enrolled") {
		t.Fatal(again)
	}
	raw, err := os.ReadFile(to)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(strings.NewReader(string(raw))).ReadAll()
	if err != nil || len(rows) != 5 {
		t.Fatalf("results %q, %v", raw, err)
	}
	for _, m := range machines {
		if strings.Contains(out+again+string(raw), m.Password) {
			t.Error("a password is shown")
		}
	}
	u.certificatesChange(machines[:2], []string{"many-dell", "many-hpe"})
	u.boardReplaced(machines[3], "many-lenovo")
}

// certificatesChange: no password reaches a BMC with another certificate, and
// after a person accepted it all goes on.
func (u *user) certificatesChange(machines []simMachine, names []string) {
	t := u.t
	t.Helper()
	before := map[string]fleet.MetalNode{}
	loginsBefore := map[string]int{}
	for i, m := range machines {
		before[names[i]] = u.node(names[i])
		u.control("PUT", "/sim/machines/"+m.ID+"/faults", `{"faults": [], "machine": {"tls": {"rotate": true}}}`, nil)
		loginsBefore[m.ID], _ = u.traffic(m.ID)
	}
	for i, name := range names {
		out := u.exits(3, "computectl", "metal", "inspect", name, "--watch", "--in-use=false")
		if !strings.Contains(out, "not the pinned "+before[name].BMC.TLS.Fingerprint) {
			t.Errorf("the failure does not say which certificate is pinned:\n%s", out)
		}
		logins, requests := u.traffic(machines[i].ID)
		if logins != loginsBefore[machines[i].ID] {
			t.Errorf("%s: a password was sent to a BMC with another certificate", name)
		}
		u.eventually("the condition of "+name, func() bool { return u.trusted(name) == fleet.ConditionFalse })
		if _, now := u.traffic(machines[i].ID); now != requests {
			t.Errorf("%s: a BMC that is not trusted received %d requests", name, now-requests)
		}
		n := u.node(name)
		if shown := n.BMC.TLS.Shown; shown == "" || shown == n.BMC.TLS.Fingerprint || n.BMC.TLS.Fingerprint != before[name].BMC.TLS.Fingerprint {
			t.Errorf("%s shows %q beside the pinned %q", name, shown, n.BMC.TLS.Fingerprint)
		}
		if events := u.run("computectl", "nodes", "events", name); !strings.Contains(events, "security.bmc.certificate-changed") || !strings.Contains(events, n.BMC.TLS.Shown) {
			t.Errorf("no event tells the new certificate:\n%s", events)
		}
	}
	asked := u.exits(1, "computectl", "metal", "accept-certificates", names[0], names[1])
	for _, name := range names {
		if n := u.node(name); !strings.Contains(asked, n.BMC.TLS.Shown) || !strings.Contains(asked, n.BMC.TLS.Fingerprint) || n.BMC.TLS.Fingerprint != before[name].BMC.TLS.Fingerprint {
			t.Errorf("without an answer it showed\n%s\nand %s has %+v", asked, name, n.BMC.TLS)
		}
	}
	accepted := u.run("computectl", "metal", "accept-certificates", "--site-id", u.env["COMPUTE_SITE"], "--yes", "--reason", "new firmware")
	if !strings.Contains(accepted, "2 of 2 accepted") || !strings.Contains(accepted, "computectl metal retry "+names[0]) {
		t.Errorf("accepted:\n%s", accepted)
	}
	for _, name := range names {
		u.run("computectl", "metal", "retry", name, "--watch")
		n := u.node(name)
		if n.BMC.TLS.Shown != "" || n.BMC.TLS.Fingerprint == before[name].BMC.TLS.Fingerprint || u.trusted(name) != fleet.ConditionTrue {
			t.Errorf("%s after it was accepted: %+v, trusted %s", name, n.BMC.TLS, u.trusted(name))
		}
		if events := u.run("computectl", "nodes", "events", name); !strings.Contains(events, "security.bmc.certificate-accepted") || !strings.Contains(events, "new firmware") {
			t.Errorf("no event tells who accepted it:\n%s", events)
		}
	}
	if rest := u.run("computectl", "metal", "accept-certificates", "--site-id", u.env["COMPUTE_SITE"], "--yes"); !strings.Contains(rest, "no machine shows another certificate") {
		t.Errorf("what was accepted is listed again:\n%s", rest)
	}
}

// boardReplaced: a machine with another serial and UUID is not touched until a
// person accepts it.
func (u *user) boardReplaced(m simMachine, name string) {
	t := u.t
	t.Helper()
	const serial, uuid = "NEWBOARD1", "5d0c7f1e-7a51-4a9b-9a8e-0b6f4f5f2a11"
	u.control("PUT", "/sim/machines/"+m.ID+"/faults", fmt.Sprintf(
		`{"faults": [{"name": "another board", "match": {"method": "GET", "path": "**/Systems/*"}, "patch": {"SerialNumber": %q, "UUID": %q}}]}`, serial, uuid), nil)
	u.exits(3, "computectl", "metal", "power", name, "--action", "on", "--watch")
	if n := len(u.resets(m.ID)); n != 0 {
		t.Errorf("%d resets of another machine", n)
	}
	shown := u.node(name).BMC.ShownIdentity
	if shown == nil || shown.Serial != serial || shown.UUID != uuid {
		t.Errorf("the other machine is shown as %+v", shown)
	}
	accepted := u.run("computectl", "metal", "accept-identities", name, "--yes", "--reason", "board replaced")
	if !strings.Contains(accepted, serial) || !strings.Contains(accepted, "1 of 1 accepted") {
		t.Errorf("accepted:\n%s", accepted)
	}
	u.run("computectl", "metal", "power", name, "--action", "on", "--watch")
	if n := u.node(name); n.BMC.ShownIdentity != nil || n.BMC.Identity.Serial != serial || u.resets(m.ID)["On"] != 1 {
		t.Errorf("after it was accepted: %+v, %v", n.BMC, u.resets(m.ID))
	}
	events := u.run("computectl", "nodes", "events", name)
	for _, typ := range []string{"security.bmc.identity-changed", "security.bmc.identity-accepted"} {
		if !strings.Contains(events, typ) {
			t.Errorf("no event %s:\n%s", typ, events)
		}
	}
}
