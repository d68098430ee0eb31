package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bettercompute/compute/agent"
	"github.com/bettercompute/compute/agent/linux"
	"github.com/bettercompute/compute/agent/sshd/sshdtest"
	"github.com/bettercompute/compute/api"
	"github.com/bettercompute/compute/authz"
	"github.com/bettercompute/compute/devidp"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/gateway"
	"github.com/bettercompute/compute/identity"
	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/store/seal"
	"github.com/bettercompute/compute/store/storetest"
)

// sshFleet is an API, a gateway and the reconciler over a real Postgres, and hosts
// with a real sshd each that join by the agent.
type sshFleet struct {
	t          *testing.T
	store      *store.Store
	issuer     *devidp.Issuer
	ca         *identity.CA
	url, nodes string // the API's and the gateway's
	site, keys string
	log        *slog.Logger
	computectl string
}

func newSSHFleet(t *testing.T, account string) *sshFleet {
	t.Helper()
	f := &sshFleet{t: t, keys: t.TempDir(), log: slog.New(slog.DiscardHandler)}
	if err := initKeys(t.Context(), f.keys); err != nil {
		t.Fatal(err)
	}
	keys, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	node, boot := listenRig(t), listenRig(t)
	f.nodes = "https://" + node.Addr().String()
	f.store = store.New(storetest.New(t), store.Options{Seal: keys, BootKey: []byte("boot key of a test, 32 bytes long"),
		BootURL: "http://" + boot.Addr().String(), GatewayURL: f.nodes})
	f.serveGateway(node, boot)
	f.serveAPI(sshConfig{caKey: filepath.Join(f.keys, "ssh-ca-key.pem"), accounts: account, requireMFA: "true", backdate: "5m", perHour: "20"})
	f.background(f.reconcile)
	if _, err := f.store.CreateTenant(t.Context(), "acme", "dev:owner"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.store.AdminGrant(t.Context(), "acme", "dev:oncall", fleet.RoleBreakGlass); err != nil {
		t.Fatal(err)
	}
	var site fleet.SiteOut
	f.ok("owner", "sites/create", obj{"name": "lab", "allowedNetworks": []string{"127.0.0.0/8"}, "tokenOnlyJoin": true}, &site)
	f.site = site.Site.ID
	f.computectl = filepath.Join(t.TempDir(), "computectl")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", f.computectl, "../computectl").CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	return f
}

// reconcile is what a worker does for NodeSpecs, but sooner.
func (f *sshFleet) reconcile(ctx context.Context) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		_, err1 := f.store.SyncSSH(ctx)
		_, err2 := f.store.Reconcile(ctx)
		if err := errors.Join(err1, err2); err != nil && ctx.Err() == nil {
			f.t.Error(err)
		}
	}
}

// background runs something until the test ends.
func (f *sshFleet) background(run func(ctx context.Context)) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); run(ctx) }()
	f.t.Cleanup(func() { stop(); <-done })
}

func (f *sshFleet) serveGateway(node, boot net.Listener) {
	f.t.Helper()
	var err error
	if f.ca, err = identity.Load(filepath.Join(f.keys, "ca.pem"), filepath.Join(f.keys, "ca-key.pem"), nil); err != nil {
		f.t.Fatal(err)
	}
	cert, key := nodeCAFiles(f.keys)
	issuer, err := identity.OpenIssuer(cert, key, f.ca.Cert, "compute.example", nil)
	if err != nil {
		f.t.Fatal(err)
	}
	g, err := gateway.New(gateway.Config{Store: f.store, CA: f.ca, Nodes: issuer, Poll: 50 * time.Millisecond, Log: f.log})
	if err != nil {
		f.t.Fatal(err)
	}
	f.background(func(ctx context.Context) {
		if err := g.Serve(ctx, node, boot); err != nil {
			f.t.Error(err)
		}
	})
}

func (f *sshFleet) serveAPI(c sshConfig) {
	f.t.Helper()
	idp := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { f.issuer.Handler().ServeHTTP(w, q) }))
	f.t.Cleanup(idp.Close)
	var err error
	if f.issuer, err = devidp.New(idp.URL, filepath.Join(f.keys, "issuer.pem")); err != nil {
		f.t.Fatal(err)
	}
	policies, err := authz.New("")
	if err != nil {
		f.t.Fatal(err)
	}
	options, err := c.options()
	if err != nil {
		f.t.Fatal(err)
	}
	srv, err := api.New(api.Options{Store: f.store, Authz: policies, Log: f.log, RequestKey: []byte("k"), CallsPerSecond: 1e6, SSH: options,
		Issuers: []api.Issuer{{Alias: "dev", URL: idp.URL, Audience: devidp.Audience}}})
	if err != nil {
		f.t.Fatal(err)
	}
	web := httptest.NewServer(srv.Handler())
	f.t.Cleanup(web.Close)
	f.url = web.URL
	f.background(srv.KeepSSH)
}

func (f *sshFleet) token(subject string) string {
	f.t.Helper()
	token, err := f.issuer.Mint(devidp.Token{Subject: subject, MFA: true, TTL: time.Hour})
	if err != nil {
		f.t.Fatal(err)
	}
	return token
}

func (f *sshFleet) ok(subject, method string, in obj, out any) {
	f.t.Helper()
	in["tenantId"] = "acme"
	body, err := json.Marshal(in)
	if err != nil {
		f.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(f.t.Context(), http.MethodPost, f.url+"/api/compute/"+method, bytes.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+f.token(subject))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		f.t.Fatalf("%s: %s %s (%v)", method, resp.Status, answer, err)
	}
	if err := json.Unmarshal(answer, out); err != nil {
		f.t.Fatalf("%s: %s: %v", method, answer, err)
	}
}

// sshHost is a joined host with a real sshd.
type sshHost struct {
	*linux.Host
	sshd  *sshdtest.Server
	uuid  string
	node  string
	state agent.State
	leave func()
}

func (h *sshHost) Hardware(context.Context) (fleet.Hardware, error) {
	return fleet.Hardware{UUID: h.uuid}, nil
}

func (h *sshHost) Inventory(context.Context) (fleet.Inventory, error) {
	return fleet.Inventory{UUID: h.uuid}, nil
}

// joined joins a host and runs its agent.
func (f *sshFleet) joined(uuid string) *sshHost {
	f.t.Helper()
	h := &sshHost{sshd: sshdtest.New(f.t), uuid: uuid, state: agent.State{Dir: f.t.TempDir()}}
	h.sshd.Start()
	c := &h.sshd.Config
	h.Host = &linux.Host{Root: "/"}
	h.SSHD.File, h.SSHD.DropIn, h.SSHD.Dir = c.File, c.DropIn, c.Dir
	var token fleet.JoinTokenSecretOut
	f.ok("owner", "joinTokens/create", obj{"siteId": f.site, "ttlSeconds": 600, "maxUses": 1}, &token)
	id, err := agent.Join(f.t.Context(), agent.JoinConfig{GatewayURL: f.nodes, CAFingerprint: f.ca.Fingerprint(), Token: token.Secret, State: h.state, Log: f.log}, h)
	if err != nil {
		f.t.Fatal(err)
	}
	h.node = id.NodeID
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := agent.Serve(ctx, agent.ServeConfig{State: h.state, Host: h, Log: f.log, RetryPause: 50 * time.Millisecond})
		if ctx.Err() == nil {
			f.t.Errorf("the agent ended: %v", err)
		}
	}()
	h.leave = func() { stop(); <-done }
	f.t.Cleanup(h.leave)
	return h
}

// ssh runs computectl ssh on a host, with a folder for its key, and returns what
// it said.
func (f *sshFleet) ssh(h *sshHost, runtime string, args ...string) *exec.Cmd {
	host, port, err := net.SplitHostPort(h.sshd.Addr)
	if err != nil {
		f.t.Fatal(err)
	}
	args = append([]string{"ssh", h.node, "--account", h.sshd.Account, "--host", host, "--port", port, "--",
		"-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"}, args...)
	cmd := exec.CommandContext(f.t.Context(), f.computectl, args...)
	cmd.Env = append(os.Environ(), "COMPUTE_URL="+f.url, "COMPUTE_TENANT=acme", "COMPUTE_TOKEN="+f.token("oncall"), "XDG_RUNTIME_DIR="+runtime)
	return cmd
}

func (f *sshFleet) eventually(what string, holds func() bool) {
	f.t.Helper()
	tick, late := time.NewTicker(50*time.Millisecond), time.After(time.Minute)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-late:
			f.t.Fatalf("not within a minute: %s", what)
		}
	}
}

// runsSpec says whether a host runs its newest NodeSpec, and that it is one with
// SSH.
func (f *sshFleet) runsSpec(h *sshHost) bool {
	var runs bool
	if err := f.store.Pool().QueryRow(f.t.Context(), `SELECT coalesce((SELECT applied = version AND doc ? 'ssh' AND apply_error IS NULL FROM node_specs WHERE node_id = $1), false)
		AND NOT EXISTS (SELECT FROM reconcile_wanted WHERE node_id = $1)`, h.node).Scan(&runs); err != nil {
		f.t.Fatal(err)
	}
	return runs
}

// From the verb to the shell: a certificate that the API issued logs in to its
// own node's sshd, which the agent set up from the NodeSpec, and to no other;
// not after its revocation, not once its CA is distrusted, not after the host
// left. ssh-keygen sees the same.
func TestBreakGlass(t *testing.T) {
	t.Parallel()
	own := sshdtest.Account(t)
	f := newSSHFleet(t, own)
	h, other := f.joined("4c4c4544-0051-3910-8053-b4c04f4e3933"), f.joined("4c4c4544-0051-3910-8053-b4c04f4e3934")
	for _, h := range []*sshHost{h, other} {
		f.eventually("the host runs its NodeSpec", func() bool { return f.runsSpec(h) })
	}
	runtime := t.TempDir()
	cmd := f.ssh(h, runtime, "id", "-un")
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil || strings.TrimSpace(string(out)) != own {
		t.Fatalf("computectl ssh: %v: %s%s", err, out, said.String())
	}
	if !strings.Contains(said.String(), "sshd ends no session") {
		t.Errorf("it said %q, nothing of sessions", said.String())
	}
	if err := f.ssh(h, runtime, "exit", "7").Run(); err == nil || err.Error() != "exit status 7" {
		t.Errorf("a command that ends with 7: %v", err)
	}
	f.abandoned(h, runtime)
	if left, err := os.ReadDir(runtime); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
	f.certificates(h, other)
	f.left(h, other)
}

// abandoned closes the terminal of a session: the key is removed all the same.
func (f *sshFleet) abandoned(h *sshHost, runtime string) {
	f.t.Helper()
	cmd := f.ssh(h, runtime, "echo in; exec sleep 600")
	out, err := cmd.StdoutPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 2)); err != nil {
		f.t.Fatal(err)
	}
	keys, err := filepath.Glob(filepath.Join(runtime, "*", "*"))
	if err != nil || len(keys) != 2 {
		f.t.Errorf("the folder of the key: %v (%v)", keys, err)
	}
	for _, key := range append(keys, filepath.Dir(keys[0])) {
		if info, err := os.Stat(key); err != nil || info.Mode().Perm()&0o077 != 0 {
			f.t.Errorf("%s: %v (%v), open to others", key, info.Mode(), err)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		f.t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		f.t.Error("the session went on")
	}
}

// certificates logs in with certificates of the API itself.
func (f *sshFleet) certificates(h, other *sshHost) {
	f.t.Helper()
	signer, public := sshdtest.NewKey(f.t)
	var issued fleet.IssuedSSHCertOut
	f.ok("oncall", "nodes/issueSshCert", obj{"nodeId": h.node, "publicKey": public, "principal": h.sshd.Account}, &issued)
	if _, err := h.sshd.Login(signer, issued.Certificate); err != nil {
		f.t.Errorf("its own node: %v", err)
	}
	if _, err := other.sshd.Login(signer, issued.Certificate); !sshdtest.Refused(err) {
		f.t.Errorf("another node: %v", err)
	}
	if _, err := h.sshd.Login(signer, ""); !sshdtest.Refused(err) {
		f.t.Errorf("the key alone: %v", err)
	}
	h.sshd.Write("issued-cert.pub", issued.Certificate+"\n")
	shown, err := exec.CommandContext(f.t.Context(), "ssh-keygen", "-L", "-f", h.sshd.Path("issued-cert.pub")).Output()
	c := issued.SSHCert
	local := func(t fleet.Time) string { return t.Local().Format("2006-01-02T15:04:05") }
	for _, want := range []string{"user certificate", "Serial: " + c.Serial + "\n", c.Principal + "\n", `Key ID: "dev:oncall req_`,
		fmt.Sprintf("Valid: from %s to %s", local(c.ValidAfter), local(c.ValidBefore)), "Critical Options: (none)", "permit-pty"} {
		if err != nil || !strings.Contains(string(shown), want) {
			f.t.Errorf("ssh-keygen -L does not say %q (%v):\n%s", want, err, shown)
		}
	}
	krl := filepath.Join(h.sshd.Config.Dir, "current", "revoked.krl")
	query := func() string {
		out, err := exec.CommandContext(f.t.Context(), "ssh-keygen", "-Q", "-f", krl, h.sshd.Path("issued-cert.pub")).CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			f.t.Fatal(err)
		}
		return string(out)
	}
	if out := query(); !strings.Contains(out, "ok") {
		f.t.Errorf("ssh-keygen -Q before the revocation: %s", out)
	}
	f.ok("oncall", "nodes/revokeSshCert", obj{"nodeId": h.node, "serial": c.Serial, "reason": "drill"}, &fleet.RevokedSSHCertOut{})
	f.eventually("sshd refuses the revoked certificate", func() bool { _, err := h.sshd.Login(signer, issued.Certificate); return sshdtest.Refused(err) })
	if out := query(); !strings.Contains(out, "REVOKED") {
		f.t.Errorf("ssh-keygen -Q after the revocation: %s", out)
	}
	var page fleet.SSHCertsPage
	f.ok("oncall", "nodes/listSshCerts", obj{"nodeId": h.node}, &page)
	if len(page.Items) < 2 || page.Items[0].State != fleet.SSHCertRevoked || page.Items[0].Serial != c.Serial || page.Items[1].State != fleet.SSHCertActive {
		f.t.Errorf("listed %+v", page.Items)
	}
}

// left takes one host off the control plane, and the CA off the other.
func (f *sshFleet) left(h, other *sshHost) {
	f.t.Helper()
	signer, public := sshdtest.NewKey(f.t)
	certificates := map[*sshHost]string{}
	for _, h := range []*sshHost{h, other} {
		var issued fleet.IssuedSSHCertOut
		f.ok("oncall", "nodes/issueSshCert", obj{"nodeId": h.node, "publicKey": public, "principal": h.sshd.Account}, &issued)
		certificates[h] = issued.Certificate
		if _, err := h.sshd.Login(signer, issued.Certificate); err != nil {
			f.t.Errorf("before: %v", err)
		}
	}
	h.leave()
	if err := agent.Leave(f.t.Context(), h.state, h, f.log); err != nil {
		f.t.Fatal(err)
	}
	f.eventually("the host that left refuses it", func() bool { _, err := h.sshd.Login(signer, certificates[h]); return sshdtest.Refused(err) })
	if _, err := os.Lstat(h.sshd.Config.DropIn); !errors.Is(err, os.ErrNotExist) {
		f.t.Errorf("the drop-in after the host left: %v", err)
	}
	key, err := identity.ReadSSHPublicKey(filepath.Join(f.keys, "ssh-ca.pub"))
	if err != nil {
		f.t.Fatal(err)
	}
	if err := f.store.DistrustSSHCA(f.t.Context(), key); err != nil {
		f.t.Fatal(err)
	}
	f.eventually("certificates of the distrusted CA are refused", func() bool {
		_, err := other.sshd.Login(signer, certificates[other])
		return sshdtest.Refused(err)
	})
}
