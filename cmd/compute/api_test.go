package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bettercompute/compute/devidp"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/localstack"
	"github.com/bettercompute/compute/store"
)

// apiProcess is a process of the API on a database of its own.
type apiProcess struct {
	*operator
	user     *user
	cmd      *exec.Cmd
	policies string

	mu  sync.Mutex
	log strings.Builder
}

// startAPI starts the API of a database with the policies in a file.
func startAPI(t *testing.T, o *operator, policies string) *apiProcess {
	t.Helper()
	dir := t.TempDir()
	bin, err := built()
	if err != nil {
		t.Fatal(err)
	}
	var issuer *devidp.Issuer
	idp := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { issuer.Handler().ServeHTTP(w, q) }))
	t.Cleanup(idp.Close)
	if issuer, err = devidp.New(idp.URL, filepath.Join(dir, "issuer.pem")); err != nil {
		t.Fatal(err)
	}
	token, err := issuer.Mint(devidp.Token{Subject: "owner", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.CreateBootKey(filepath.Join(dir, "boot.key")); err != nil {
		t.Fatal(err)
	}
	port, err := localstack.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	p := &apiProcess{operator: o, policies: filepath.Join(dir, "policies.cedar")}
	p.write(policies)
	p.user = &user{t: t, env: map[string]string{"COMPUTE_URL": httpURL(port), "COMPUTE_TOKEN": token}}
	p.cmd = exec.CommandContext(t.Context(), filepath.Join(bin, "compute"), "api", "--database-url", o.database, "--keyset", o.keyset,
		"--boot-key", filepath.Join(dir, "boot.key"), "--issuers", "dev="+idp.URL+","+devidp.Audience, "--listen", loopback(port), "--policies", p.policies)
	log, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.keep(log)
	return p
}

func (p *apiProcess) keep(log io.Reader) {
	for lines := bufio.NewScanner(log); lines.Scan(); {
		p.mu.Lock()
		p.log.WriteString(lines.Text() + "\n")
		p.mu.Unlock()
	}
}

func (p *apiProcess) write(policies string) {
	p.t.Helper()
	if err := os.WriteFile(p.policies, []byte(policies), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// reload writes other policies and waits until the process has said what it
// made of them.
func (p *apiProcess) reload(policies, says string) {
	p.t.Helper()
	p.write(policies)
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		p.t.Fatal(err)
	}
	until(p.t, func() string {
		p.mu.Lock()
		defer p.mu.Unlock()
		return missing(!strings.Contains(p.log.String(), says), "the log does not say %q:\n%s", says, p.log.String())
	})
}

func (p *apiProcess) ready() (int, readiness) {
	p.t.Helper()
	status, text := get(p.t, p.user.env["COMPUTE_URL"]+"/readyz")
	var r readiness
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		p.t.Fatalf("/readyz: %s", text)
	}
	return status, r
}

// A process of the API takes other policies with SIGHUP and refuses a set that
// does not parse; it is ready with a schema that it knows or that is newer, as
// during an upgrade, and not with an older one.
func TestAPIProcess(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	o.run("admin", "create-tenant", "acme", "--owner", "dev:owner")
	all := `permit (principal, action, resource);`
	bad := startAPI(t, o, "permit everything")
	if err := bad.cmd.Wait(); err == nil {
		t.Error("the API started with policies that do not parse")
	}
	p := startAPI(t, o, all)
	url := p.user.env["COMPUTE_URL"]
	if err := (&devStack{}).waitHTTP(t.Context(), "api", url+"/readyz"); err != nil {
		t.Fatal(err)
	}
	list := func() *refusal { return p.user.callAt(url, "nodes/list", obj{"tenantId": "acme"}, nil) }
	if r := list(); r != nil {
		t.Errorf("nodes/list: %+v", *r)
	}
	p.reload("permit everything", "policies refused")
	if r := list(); r != nil {
		t.Errorf("nodes/list after a refused set: %+v", *r)
	}
	p.reload(`forbid (principal, action, resource);`, "policies read again")
	if r := list(); r == nil || r.Code != fleet.CodeAccessDenied {
		t.Errorf("nodes/list with a set that forbids all: %+v", r)
	}

	o.exec(`INSERT INTO goose_db_version (version_id, is_applied) VALUES ($1, true)`, store.SchemaVersion+1)
	if status, r := p.ready(); status != http.StatusOK {
		t.Errorf("with a newer schema: %d %q", status, r.Why)
	}
	o.exec(`DELETE FROM goose_db_version WHERE version_id >= $1`, store.SchemaVersion)
	if status, r := p.ready(); status != http.StatusServiceUnavailable || !strings.Contains(r.Why, "compute migrate") {
		t.Errorf("with an older schema: %d %q", status, r.Why)
	}
	for path, want := range map[string]string{"/healthz": "ok", "/docs": "metal/enroll", "/openapi.json": `"openapi":"3.1`, "/metrics": "compute_api_request_seconds_count"} {
		if status, text := get(t, url+path); status != http.StatusOK || !strings.Contains(strings.ReplaceAll(text, " ", ""), want) {
			t.Errorf("%s: %d, without %q", path, status, want)
		}
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("asked to stop it ended with %v", err)
	}
}
