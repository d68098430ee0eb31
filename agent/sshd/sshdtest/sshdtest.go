// Package sshdtest runs a real sshd of a test's own on loopback, configured as a
// distribution would, in a folder where the agent's sshd.Config puts its files.
package sshdtest

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/bettercompute/compute/agent/sshd"
)

// deadline bounds every wait; machines that run tests can be slow.
const deadline = time.Minute

// Server is an sshd of a test's own.
type Server struct {
	// Config is what an agent on this host has.
	Config sshd.Config
	// Addr is where it listens, Account the account that the test runs as, which
	// is the one that it can log in to.
	Addr, Account string
	// Dir holds all files of it.
	Dir string

	t    testing.TB
	cmd  *exec.Cmd
	done chan struct{}
	mu   sync.Mutex
	log  bytes.Buffer
}

// New makes the files of an sshd without starting it. more are further lines of
// its configuration.
func New(t testing.TB, more ...string) *Server {
	t.Helper()
	// Not below a folder that everybody can write to: sshd's strict modes refuse
	// files there.
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(me.HomeDir, ".sshd-of-a-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	s := &Server{t: t, Dir: dir, Account: me.Username}
	s.Config = sshd.Config{File: s.Path("sshd_config"), DropIn: s.Path("sshd_config.d", "better-compute.conf"), Dir: s.Path("better-compute")}
	if err := os.Mkdir(s.Path("sshd_config.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", s.Path("host_key")).CombinedOutput(); err != nil {
		t.Fatalf("make the host's key: %v: %s", err, out)
	}
	s.Addr = freeAddr(t)
	host, port, err := net.SplitHostPort(s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	lines := append([]string{"Include " + s.Path("sshd_config.d", "*.conf"), "ListenAddress " + host, "Port " + port, "HostKey " + s.Path("host_key"),
		"PidFile " + s.Path("sshd.pid"), "LogLevel VERBOSE", "UsePAM no", "PasswordAuthentication no", "KbdInteractiveAuthentication no",
		"PermitRootLogin prohibit-password", "AuthorizedKeysFile " + s.Path("authorized_keys"), "MaxStartups 100"}, more...)
	s.Write("sshd_config", strings.Join(lines, "\n")+"\n")
	return s
}

// Account is the account that the test runs as.
func Account(t testing.TB) string {
	t.Helper()
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	return me.Username
}

// NewKey makes a key and its public half as a .pub file holds it.
func NewKey(t testing.TB) (signer ssh.Signer, public string) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if signer, err = ssh.NewSignerFromSigner(private); err != nil {
		t.Fatal(err)
	}
	return signer, strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey())))
}

// Path is a path below the server's folder.
func (s *Server) Path(parts ...string) string {
	return filepath.Join(append([]string{s.Dir}, parts...)...)
}

// Write writes a file below the server's folder.
func (s *Server) Write(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(s.Path(name), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func freeAddr(t testing.TB) string {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Start starts the sshd and waits until it answers. It ends with the test.
func (s *Server) Start() {
	s.t.Helper()
	program, err := exec.LookPath("sshd")
	if err != nil {
		program = "/usr/sbin/sshd"
	}
	if os.Getuid() == 0 {
		if err := os.Mkdir("/run/sshd", 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			s.t.Fatal(err)
		}
	}
	s.cmd = exec.Command(program, "-D", "-e", "-f", s.Path("sshd_config")) //nolint:noctx // it ends with the test
	s.cmd.Stderr = writer{s}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.done = make(chan struct{})
	go func() { _ = s.cmd.Wait(); close(s.done) }() // how it ended shows in its log
	s.t.Cleanup(func() {
		if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			s.t.Error(err)
		}
		<-s.done
		if s.t.Failed() {
			s.t.Logf("sshd said:\n%s", s.Log())
		}
	})
	s.Eventually("sshd answers", func() bool {
		select {
		case <-s.done:
			s.t.Fatalf("sshd ended: %s", s.Log())
		default:
		}
		var d net.Dialer
		conn, err := d.DialContext(context.Background(), "tcp", s.Addr)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

type writer struct{ s *Server }

func (w writer) Write(b []byte) (int, error) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	return w.s.log.Write(b)
}

// Log is what the sshd wrote.
func (s *Server) Log() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.String()
}

// Reloads counts how often the running sshd read its configuration again.
func (s *Server) Reloads() int { return strings.Count(s.Log(), "Received SIGHUP; restarting.") }

// Eventually waits for a condition.
func (s *Server) Eventually(what string, holds func() bool) {
	s.t.Helper()
	tick, late := time.NewTicker(20*time.Millisecond), time.After(deadline)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-late:
			s.t.Fatalf("not within %s: %s", deadline, what)
		}
	}
}

// Login logs in to the account with a key and, when it is not empty, a certificate
// of it, and returns what a command says. A refused login is an error.
func (s *Server) Login(signer ssh.Signer, certificate string) (string, error) {
	if certificate != "" {
		key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(certificate))
		if err != nil {
			return "", fmt.Errorf("read the certificate: %w", err)
		}
		cert, ok := key.(*ssh.Certificate)
		if !ok {
			return "", errors.New("it is no certificate")
		}
		if signer, err = ssh.NewCertSigner(cert, signer); err != nil {
			return "", fmt.Errorf("use the certificate: %w", err)
		}
	}
	config := &ssh.ClientConfig{User: s.Account, Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)}, Timeout: deadline,
		HostKeyCallback: ssh.InsecureIgnoreHostKey()} //nolint:gosec // the test's own sshd on loopback
	var client *ssh.Client
	var err error
	s.Eventually("sshd listens", func() bool {
		client, err = ssh.Dial("tcp", s.Addr, config)
		// While sshd reads its configuration again nobody listens.
		return !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.ECONNRESET)
	})
	if err != nil {
		return "", err
	}
	defer ended(client)
	session, err := client.NewSession()
	if err != nil {
		return "", fmt.Errorf("open a session: %w", err)
	}
	defer ended(session)
	out, err := session.Output("id -un")
	return strings.TrimSpace(string(out)), err
}

// ended closes what the other side may have closed already.
func ended(c io.Closer) { c.Close() }

// Refused says whether an error of Login is sshd's refusal of the key.
func Refused(err error) bool {
	return err != nil && strings.Contains(err.Error(), "unable to authenticate")
}

// PID is the process of the running sshd.
func (s *Server) PID() string { return strconv.Itoa(s.cmd.Process.Pid) }
