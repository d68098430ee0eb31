package sshd_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/bettercompute/compute/agent/sshd/sshdtest"
	"github.com/bettercompute/compute/fleet"
)

const (
	nodeID = "node_01arz3ndektsv4rrffq69g5fav"
	other  = "node_01arz3ndektsv4rrffq69g5faw"
)

// authority is an SSH CA of a test.
type authority struct {
	t      testing.TB
	signer ssh.Signer
}

func newSigner(t testing.TB) ssh.Signer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ssh.NewSignerFromSigner(private)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func line(k ssh.PublicKey) string { return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(k))) }

// certify makes a certificate of a key that is good now, with changes.
func (a authority) certify(key ssh.PublicKey, principal string, serial uint64, change func(*ssh.Certificate)) string {
	a.t.Helper()
	now := time.Now()
	c := &ssh.Certificate{Key: key, Serial: serial, CertType: ssh.UserCert, KeyId: "dev:oncall req_1", ValidPrincipals: []string{principal},
		ValidAfter: uint64(now.Add(-5 * time.Minute).Unix()), ValidBefore: uint64(now.Add(15 * time.Minute).Unix()),
		Permissions: ssh.Permissions{Extensions: map[string]string{"permit-pty": ""}}}
	if change != nil {
		change(c)
	}
	if err := c.SignCert(rand.Reader, a.signer); err != nil {
		a.t.Fatal(err)
	}
	return line(c)
}

// spec is a NodeSpec of a node that lets the test's account in.
func (a authority) spec(s *sshdtest.Server, change func(*fleet.SSHSpec)) fleet.NodeSpec {
	spec := &fleet.SSHSpec{CAKeys: []string{line(a.signer.PublicKey())}, ExpiredThrough: "1000", RevokedSerials: []string{},
		Principals: map[string][]string{s.Account: {fleet.SSHPrincipal(s.Account, nodeID)}}}
	if change != nil {
		change(spec)
	}
	return fleet.NodeSpec{Version: 1, NodeID: nodeID, SSH: spec, Labels: map[string]string{}, Taints: []string{}}
}

func apply(t *testing.T, s *sshdtest.Server, spec fleet.NodeSpec) {
	t.Helper()
	if conflict, err := s.Config.Apply(t.Context(), spec); err != nil || conflict != "" {
		t.Fatalf("apply: conflict %q, error %v", conflict, err)
	}
}

// withoutPrincipal is a certificate that names nobody, made by ssh-keygen: our own
// library makes none.
func withoutPrincipal(t *testing.T, s *sshdtest.Server, ca ed25519.PrivateKey, key ssh.PublicKey) string {
	t.Helper()
	block, err := ssh.MarshalPrivateKey(ca, "")
	if err != nil {
		t.Fatal(err)
	}
	s.Write("ca", string(pem.EncodeToMemory(block)))
	s.Write("nobody.pub", line(key)+"\n")
	if out, err := exec.CommandContext(t.Context(), "ssh-keygen", "-q", "-s", s.Path("ca"), "-I", "x", "-z", "2004", s.Path("nobody.pub")).CombinedOutput(); err != nil {
		t.Fatalf("sign without a principal: %v: %s", err, out)
	}
	b, err := os.ReadFile(s.Path("nobody-cert.pub"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A real sshd that the agent set up lets in whom the control plane certified for
// this node and account now, and nobody else.
func TestLogins(t *testing.T) {
	t.Parallel()
	s := sshdtest.New(t)
	s.Start()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromSigner(private)
	if err != nil {
		t.Fatal(err)
	}
	ca, user, stranger := authority{t, signer}, newSigner(t), authority{t, newSigner(t)}
	own := s.Account + "@" + nodeID
	certificate := ca.certify(user.PublicKey(), own, 2000, nil)
	if _, err := s.Login(user, certificate); !sshdtest.Refused(err) {
		t.Fatalf("before the NodeSpec: %v", err)
	}
	apply(t, s, ca.spec(s, func(spec *fleet.SSHSpec) { spec.RevokedSerials = []string{"3000"} }))
	s.Eventually("the certificate logs in", func() bool { _, err := s.Login(user, certificate); return err == nil })
	shift := func(by time.Duration) func(*ssh.Certificate) {
		return func(c *ssh.Certificate) {
			c.ValidAfter, c.ValidBefore = uint64(int64(c.ValidAfter)+int64(by/time.Second)), uint64(int64(c.ValidBefore)+int64(by/time.Second))
		}
	}
	for name, c := range map[string]struct {
		certificate string
		good        bool
	}{
		"its own node":                     {certificate, true},
		"no certificate":                   {"", false},
		"another node":                     {ca.certify(user.PublicKey(), s.Account+"@"+other, 2001, nil), false},
		"another account of the node":      {ca.certify(user.PublicKey(), "nobody@"+nodeID, 2002, nil), false},
		"the account alone":                {ca.certify(user.PublicKey(), s.Account, 2003, nil), false},
		"no principal":                     {withoutPrincipal(t, s, private, user.PublicKey()), false},
		"another CA":                       {stranger.certify(user.PublicKey(), own, 2006, nil), false},
		"signed by the key itself":         {authority{t, user}.certify(user.PublicKey(), own, 2007, nil), false},
		"a host certificate":               {ca.certify(user.PublicKey(), own, 2008, func(c *ssh.Certificate) { c.CertType = ssh.HostCert }), false},
		"a critical option it cannot know": {ca.certify(user.PublicKey(), own, 2009, func(c *ssh.Certificate) { c.CriticalOptions = map[string]string{"x@example": ""} }), false},
		"ended":                            {ca.certify(user.PublicKey(), own, 2010, shift(-15*time.Minute)), false},
		"revoked":                          {ca.certify(user.PublicKey(), own, 3000, nil), false},
		// The host's clock is behind, so that it takes the certificate for a live
		// one; the control plane says that serials up to this one have ended.
		"ended by the control plane's clock": {ca.certify(user.PublicKey(), own, 1000, nil), false},
		"the first that has not":             {ca.certify(user.PublicKey(), own, 1001, nil), true},
		// To a host whose clock is behind by so much, a fresh certificate looks as
		// one that was made later does here.
		"host 1 s behind":                {ca.certify(user.PublicKey(), own, 2011, shift(time.Second)), true},
		"host 30 s behind":               {ca.certify(user.PublicKey(), own, 2012, shift(30*time.Second)), true},
		"host behind by the back-date":   {ca.certify(user.PublicKey(), own, 2013, shift(5*time.Minute-time.Second)), true},
		"host behind by more than that":  {ca.certify(user.PublicKey(), own, 2014, shift(7*time.Minute)), false},
		"host ahead, before its end":     {ca.certify(user.PublicKey(), own, 2015, shift(-13*time.Minute)), true},
		"host ahead by more than a life": {ca.certify(user.PublicKey(), own, 2016, shift(-15*time.Minute-time.Second)), false},
	} {
		who, err := s.Login(user, c.certificate)
		if c.good && (err != nil || who != s.Account) || !c.good && !sshdtest.Refused(err) {
			t.Errorf("%s: %q, %v; want good %v", name, who, err, c.good)
		}
	}
	if _, err := s.Login(newSigner(t), ""); !sshdtest.Refused(err) {
		t.Errorf("another key: %v", err)
	}
	doc, err := os.ReadFile("../../docs/break-glass-access.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(s.Log(), "dev:oncall req_1 (serial 2000)") {
		t.Error("sshd's log does not name key id and serial")
	}
	for _, says := range []string{"Certificate invalid: not yet valid", "Certificate invalid: expired", "revoked by file", "does not contain an authorized principal", "Failed publickey"} {
		if !strings.Contains(s.Log(), says) || !strings.Contains(string(doc), "`"+says+"`") {
			t.Errorf("sshd's log, or the document on what it says, lacks %q", says)
		}
	}
}

// A revocation is in force without a restart of sshd, ssh-keygen reads the same
// list, and a lifted CA takes its certificates along.
func TestRevocation(t *testing.T) {
	t.Parallel()
	s := sshdtest.New(t)
	s.Start()
	ca, next, user := authority{t, newSigner(t)}, authority{t, newSigner(t)}, newSigner(t)
	own := s.Account + "@" + nodeID
	certificates := map[string]string{}
	for _, serial := range []uint64{1000, 2000, 1<<63 + 5} {
		certificates[strconv.FormatUint(serial, 10)] = ca.certify(user.PublicKey(), own, serial, nil)
	}
	of := next.certify(user.PublicKey(), own, 2001, nil)
	apply(t, s, ca.spec(s, nil))
	s.Eventually("the certificate logs in", func() bool { _, err := s.Login(user, certificates["2000"]); return err == nil })
	reloads := s.Reloads()
	apply(t, s, ca.spec(s, func(spec *fleet.SSHSpec) {
		spec.RevokedSerials, spec.CAKeys = []string{"2000"}, append(spec.CAKeys, line(next.signer.PublicKey()))
	}))
	krl := filepath.Join(s.Config.Dir, "current", "revoked.krl")
	for serial, certificate := range certificates {
		file := "cert-" + serial + ".pub"
		s.Write(file, certificate+"\n")
		_, err := s.Login(user, certificate)
		out, queryErr := exec.CommandContext(t.Context(), "ssh-keygen", "-Q", "-f", krl, s.Path(file)).CombinedOutput()
		revoked := serial != strconv.FormatUint(1<<63+5, 10)
		if (err != nil) != revoked || strings.Contains(string(out), "REVOKED") != revoked || (queryErr != nil) != revoked {
			t.Errorf("serial %s: login %v, ssh-keygen -Q %s; want revoked %v", serial, err, out, revoked)
		}
	}
	if _, err := s.Login(user, of); err != nil {
		t.Errorf("of the next CA: %v", err)
	}
	apply(t, s, next.spec(s, nil))
	if _, err := s.Login(user, certificates[strconv.FormatUint(1<<63+5, 10)]); !sshdtest.Refused(err) {
		t.Errorf("of a CA that was distrusted: %v", err)
	}
	if s.Reloads() != reloads {
		t.Error("sshd was reloaded for a change of the files that it reads at each login")
	}
	entries, err := os.ReadDir(s.Config.Dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("left in the folder: %v (%v), want the link and what it points to", entries, err)
	}
}

// modes checks that the files are what sshd's strict modes and its user processes
// need.
func modes(t *testing.T, s *sshdtest.Server) {
	t.Helper()
	for name, want := range map[string]os.FileMode{"": 0o755, "current/": 0o755, "current/principals": 0o755, "current/principals/" + s.Account: 0o644,
		"current/ca.pub": 0o644, "current/revoked.krl": 0o644} {
		info, err := os.Stat(s.Config.Dir + "/" + name)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%q: %v (%v), want %v", name, info.Mode(), err, want)
		}
	}
	if info, err := os.Stat(s.Config.DropIn); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("the drop-in: %v (%v)", info.Mode(), err)
	}
}

// The revocation list is one that ssh-keygen reads.
func TestFiles(t *testing.T) {
	t.Parallel()
	s := sshdtest.New(t)
	ca := authority{t, newSigner(t)}
	apply(t, s, ca.spec(s, nil))
	modes(t, s)
	refused := func() string {
		out, err := exec.CommandContext(t.Context(), "ssh-keygen", "-Q", "-l", "-f", s.Config.Dir+"/current/revoked.krl").CombinedOutput()
		if err != nil {
			t.Errorf("ssh-keygen -Q: %v", err)
		}
		return string(out)
	}
	if out := refused(); !strings.Contains(out, "serial: 1-1000") {
		t.Errorf("the revocation list: %s", out)
	}
	// Nothing has ended and nothing is revoked: a list there is all the same.
	apply(t, s, ca.spec(s, func(spec *fleet.SSHSpec) { spec.ExpiredThrough = "0" }))
	if out := refused(); strings.Contains(out, "serial:") {
		t.Errorf("the revocation list: %s", out)
	}
}

// A host without OpenSSH's programs is told of, and nothing is put there.
func TestNotInstalled(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"sshd", "ssh-keygen"} {
		s := sshdtest.New(t)
		*map[string]*string{"sshd": &s.Config.Program, "ssh-keygen": &s.Config.Keygen}[name] = s.Path("none")
		conflict, err := s.Config.Apply(t.Context(), authority{t, newSigner(t)}.spec(s, nil))
		if err != nil || !strings.HasPrefix(conflict, name+" is not installed") {
			t.Errorf("%s: conflict %q (%v)", name, conflict, err)
		}
		if _, err := os.Lstat(s.Config.Dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: files were made (%v)", name, err)
		}
		if err := s.Config.Remove(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// One that was taken off the host holds up nobody who leaves.
	s := sshdtest.New(t)
	apply(t, s, authority{t, newSigner(t)}.spec(s, nil))
	s.Config.Program = s.Path("none")
	if err := s.Config.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// Leaving removes all of it, and the sshd that runs goes on without.
func TestRemove(t *testing.T) {
	t.Parallel()
	s := sshdtest.New(t)
	s.Start()
	ca, user := authority{t, newSigner(t)}, newSigner(t)
	s.Write("authorized_keys", line(user.PublicKey())+"\n")
	certificate := ca.certify(newSigner(t).PublicKey(), s.Account+"@"+nodeID, 2000, nil)
	apply(t, s, ca.spec(s, nil))
	for range 2 {
		if err := s.Config.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{s.Config.DropIn, s.Config.Dir} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there (%v)", path, err)
		}
	}
	s.Eventually("the host's own keys log in", func() bool { _, err := s.Login(user, ""); return err == nil })
	if _, err := s.Login(newSigner(t), certificate); err == nil {
		t.Error("a certificate logs in after the host left")
	}
	apply(t, s, ca.spec(s, nil))
	without := ca.spec(s, nil)
	without.SSH = nil
	apply(t, s, without)
	if _, err := os.Lstat(s.Config.DropIn); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the drop-in of a control plane without an SSH CA: %v", err)
	}
}

// What the host says for itself is left alone and told, and ours is not in force
// beside it.
func TestConflict(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ lines, found string }{
		"a CA":                 {"TrustedUserCAKeys /etc/ssh/theirs.pub", "TrustedUserCAKeys /etc/ssh/theirs.pub"},
		"in another case":      {"authorizedPRINCIPALSfile=/etc/ssh/p/%u", "authorizedPRINCIPALSfile=/etc/ssh/p/%u"},
		"a command in a Match": {"Match User root\n  AuthorizedPrincipalsCommand /bin/true\n  AuthorizedPrincipalsCommandUser nobody", "AuthorizedPrincipalsCommand /bin/true"},
		"their revocations":    {"RevokedKeys \"/etc/ssh/revoked keys\"", "RevokedKeys"},
		"a user alone":         {"AuthorizedPrincipalsCommandUser nobody", "AuthorizedPrincipalsCommandUser nobody"},
		"in a file of theirs":  {"Include THEIRS", "TrustedUserCAKeys /etc/ssh/of-theirs.pub"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := sshdtest.New(t)
			ca := authority{t, newSigner(t)}
			apply(t, s, ca.spec(s, nil))
			s.Write("theirs.conf", "TrustedUserCAKeys /etc/ssh/of-theirs.pub\n")
			own, err := os.ReadFile(s.Config.File)
			if err != nil {
				t.Fatal(err)
			}
			config := string(own) + strings.ReplaceAll(c.lines, "THEIRS", s.Path("theirs.conf")) + "\n"
			s.Write("sshd_config", config)
			conflict, err := s.Config.Apply(t.Context(), ca.spec(s, nil))
			if err != nil || !strings.Contains(conflict, c.found) || !strings.Contains(conflict, " line ") {
				t.Errorf("conflict %q (%v), want one that quotes %q", conflict, err, c.found)
			}
			if _, err := os.Lstat(s.Config.DropIn); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("our drop-in is in force beside it (%v)", err)
			}
			if now, err := os.ReadFile(s.Config.File); err != nil || string(now) != config {
				t.Errorf("the host's configuration was changed (%v)", err)
			}
			s.Write("sshd_config", string(own)+"# TrustedUserCAKeys x\nTrustedUserCAKeys none\n")
			apply(t, s, ca.spec(s, nil))
		})
	}
}

// What sshd does not take is taken back, and what was in force stays.
func TestTakenBack(t *testing.T) {
	t.Parallel()
	s := sshdtest.New(t)
	s.Start()
	ca, user := authority{t, newSigner(t)}, newSigner(t)
	certificate := ca.certify(user.PublicKey(), s.Account+"@"+nodeID, 2000, nil)
	own, err := os.ReadFile(s.Config.File)
	if err != nil {
		t.Fatal(err)
	}
	// The host does not include the drop-in's folder.
	s.Write("sshd_config", strings.ReplaceAll(string(own), "Include ", "# "))
	if conflict, err := s.Config.Apply(t.Context(), ca.spec(s, nil)); err == nil || !strings.Contains(err.Error(), "does "+s.Config.File+" include") {
		t.Errorf("conflict %q, error %v", conflict, err)
	}
	if _, err := os.Lstat(s.Config.DropIn); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the drop-in was left (%v)", err)
	}
	// The host's configuration is broken: sshd would not start again.
	s.Write("sshd_config", string(own)+"NoSuchKeyword yes\n")
	if conflict, err := s.Config.Apply(t.Context(), ca.spec(s, nil)); err == nil || !strings.Contains(err.Error(), "NoSuchKeyword") {
		t.Errorf("conflict %q, error %v", conflict, err)
	}
	s.Write("sshd_config", string(own))
	reloadFails := true
	reload := s.Config.Reload
	s.Config.Reload = func(context.Context) error {
		if reloadFails {
			reloadFails = false
			return errors.New("no reload today")
		}
		return nil
	}
	if _, err := s.Config.Apply(t.Context(), ca.spec(s, nil)); err == nil {
		t.Error("a reload that failed is no error")
	}
	if _, err := os.Lstat(s.Config.DropIn); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the drop-in was left (%v)", err)
	}
	s.Config.Reload = reload
	apply(t, s, ca.spec(s, nil))
	s.Eventually("the certificate logs in", func() bool { _, err := s.Login(user, certificate); return err == nil })
	// Once in force, a revocation is not kept back by what else is wrong.
	s.Write("sshd_config", string(own)+"NoSuchKeyword yes\n")
	conflict, err := s.Config.Apply(t.Context(), ca.spec(s, func(spec *fleet.SSHSpec) { spec.RevokedSerials = []string{"2000"} }))
	if err != nil || !strings.Contains(conflict, "NoSuchKeyword") {
		t.Errorf("conflict %q, error %v", conflict, err)
	}
	if _, err := s.Login(user, certificate); !sshdtest.Refused(err) {
		t.Errorf("the revoked certificate: %v", err)
	}
}

// A NodeSpec that would let in others than its own node's accounts is refused
// whole, and the last good one stays.
func TestSpecRefused(t *testing.T) {
	t.Parallel()
	s := sshdtest.New(t)
	ca := authority{t, newSigner(t)}
	apply(t, s, ca.spec(s, nil))
	before, err := os.Readlink(s.Config.Dir + "/current")
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*fleet.SSHSpec){
		"no CA":                  func(p *fleet.SSHSpec) { p.CAKeys = nil },
		"a CA with options":      func(p *fleet.SSHSpec) { p.CAKeys = []string{"no-pty " + p.CAKeys[0]} },
		"two keys in one":        func(p *fleet.SSHSpec) { p.CAKeys = []string{p.CAKeys[0] + "\n" + p.CAKeys[0]} },
		"an empty principal":     func(p *fleet.SSHSpec) { p.Principals[s.Account] = []string{""} },
		"a blank principal":      func(p *fleet.SSHSpec) { p.Principals[s.Account] = []string{" "} },
		"another node's":         func(p *fleet.SSHSpec) { p.Principals[s.Account] = []string{s.Account + "@" + other} },
		"two lines":              func(p *fleet.SSHSpec) { p.Principals[s.Account] = []string{s.Account + "@" + nodeID + "\nroot"} },
		"an account that climbs": func(p *fleet.SSHSpec) { p.Principals["../../x"] = nil },
		"no serial":              func(p *fleet.SSHSpec) { p.RevokedSerials = []string{"1\nid: x"} },
		"a range":                func(p *fleet.SSHSpec) { p.ExpiredThrough = "1-5" },
	} {
		if _, err := s.Config.Apply(t.Context(), ca.spec(s, change)); err == nil {
			t.Errorf("%s: applied", name)
		}
	}
	for _, node := range []string{"", "node_x", nodeID + "\nroot", " "} {
		spec := ca.spec(s, func(p *fleet.SSHSpec) { p.Principals[s.Account] = []string{s.Account + "@" + node} })
		spec.NodeID = node
		if _, err := s.Config.Apply(t.Context(), spec); err == nil {
			t.Errorf("of node %q: applied", node)
		}
	}
	if now, err := os.Readlink(s.Config.Dir + "/current"); err != nil || now != before {
		t.Errorf("in force is %s (%v), want %s", now, err, before)
	}
}
