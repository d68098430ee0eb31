package cli

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"

	"github.com/bettercompute/compute/fleet"
)

// sshFlags are what computectl ssh is told.
type sshFlags struct {
	account, host string
	port          int
	ttl           time.Duration
}

// sshCmd logs in to a node with a certificate made for it.
func (a *app) sshCmd() *cobra.Command {
	var o sshFlags
	cmd := &cobra.Command{
		Use:   "ssh NODE [flags] [-- ARGS]",
		Short: "Log in to a node with a certificate made for it",
		Long: "Makes a key in a folder that only you can enter, has a break-glass certificate issued for it (nodes/issueSshCert), runs ssh\n" +
			"with both, and removes them when ssh ends. ARGS go to ssh after the host: a command, or options of ssh. Your own\n" +
			"ssh configuration and known hosts are used.\n\n" +
			"The host is the node's name unless --host says otherwise. sshd ends no session when the certificate expires.\n" +
			"computectl ends with ssh's own exit code.",
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); len(args) == 0 || dash == 0 || dash < 0 && len(args) != 1 || dash > 1 {
				return usagef("usage: %s", cmd.UseLine())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return a.ssh(cmd.Context(), o, args[0], args[1:]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.account, "account", "root", "the account to log in to")
	f.StringVar(&o.host, "host", "", "address or name by which ssh reaches the node; the node's name when it is not given")
	f.IntVar(&o.port, "port", 22, "port of the node's sshd")
	f.DurationVar(&o.ttl, "ttl", 15*time.Minute, "the certificate's life, from 1m to 1h")
	return cmd
}

// sshEnded is an ssh that ended with an exit code other than 0. It has said why.
type sshEnded struct{ code int }

func (e sshEnded) Error() string { return "ssh ended with exit code " + strconv.Itoa(e.code) }

func (a *app) ssh(ctx context.Context, o sshFlags, node string, args []string) (err error) {
	program, err := exec.LookPath("ssh")
	if err != nil {
		return fmt.Errorf("find ssh: %w", err)
	}
	in := map[string]any{"tenantId": a.tenant, "nodeId": node}
	if err := a.resolveNode(ctx, in); err != nil {
		return err
	}
	host, err := a.sshHost(ctx, o, in)
	if err != nil {
		return err
	}
	// A closed terminal must not leave the key behind.
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP)
	defer stop()
	dir, err := os.MkdirTemp(os.Getenv("XDG_RUNTIME_DIR"), "computectl-ssh-") // 0700; in memory where there is such a folder
	if err != nil {
		return fmt.Errorf("make a folder for the key: %w", err)
	}
	defer func() {
		if left := os.RemoveAll(dir); left != nil {
			err = errors.Join(err, fmt.Errorf("remove the key: %w", left))
		}
	}()
	key := filepath.Join(dir, "key")
	public, err := newSSHKey(key)
	if err != nil {
		return err
	}
	in["publicKey"], in["principal"], in["ttlSeconds"] = public, o.account, int64(o.ttl/time.Second)
	var issued fleet.IssuedSSHCertOut
	if err := a.call(ctx, "nodes", "issueSshCert", in, &issued); err != nil {
		return err
	}
	if err := os.WriteFile(key+"-cert.pub", []byte(issued.Certificate+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the certificate: %w", err)
	}
	c := issued.SSHCert
	fmt.Fprintf(a.err, "certificate %s for %s, good until %s; %s\n", c.Serial, c.Principal, c.ValidBefore.Local().Format(time.TimeOnly), issued.Note)
	return a.runSSH(ctx, program, append([]string{"-i", key, "-o", "CertificateFile=" + key + "-cert.pub", "-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none",
		"-l", o.account, "-p", strconv.Itoa(o.port), host}, args...))
}

// sshHost is where ssh reaches the node.
func (a *app) sshHost(ctx context.Context, o sshFlags, in map[string]any) (string, error) {
	host := o.host
	if host == "" {
		var out fleet.NodeOut
		if err := a.call(ctx, "nodes", "get", in, &out); err != nil {
			return "", err
		}
		if host = out.Node.Name; host == "" {
			return "", usagef("node %s has no name: say with --host where ssh reaches it", out.Node.ID)
		}
	}
	if host[0] == '-' {
		return "", usagef("--host %q is no host", host)
	}
	return host, nil
}

// newSSHKey makes a key in a file and returns its public half.
func newSSHKey(file string) (public string, err error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", fmt.Errorf("make a key: %w", err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		return "", fmt.Errorf("write the key: %w", err)
	}
	if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
		return "", fmt.Errorf("write the key: %w", err)
	}
	k, err := ssh.NewPublicKey(private.Public())
	if err != nil {
		return "", fmt.Errorf("write the key: %w", err)
	}
	line := ssh.MarshalAuthorizedKey(k)
	return string(line[:len(line)-1]), nil
}

// runSSH runs ssh as if it had been called in place of computectl.
func (a *app) runSSH(ctx context.Context, program string, args []string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.in, a.out, a.err
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()
	var ended *exec.ExitError
	if errors.As(err, &ended) && ended.ExitCode() > 0 {
		return sshEnded{ended.ExitCode()}
	}
	if err != nil {
		return fmt.Errorf("run ssh: %w", err)
	}
	return nil
}
