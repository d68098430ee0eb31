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
	"slices"
	"strconv"
	"strings"
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
			"ssh gets the node's name as the host, so that what your configuration says of it holds, and the address that the node's\n" +
			"agent told (HostName; the host's key is then known by the node's id). Without one it is the name that leads there, and\n" +
			"with --host nothing but that. sshd ends no session when the certificate expires.\n" +
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
	f.StringVar(&o.host, "host", "", "address or name by which ssh reaches the node, in place of what its agent told and of its name")
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
	name, err := a.sshName(ctx, o, in)
	if err != nil {
		return err
	}
	// A closed terminal or ^\ must not leave the key behind.
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP, syscall.SIGQUIT)
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
	if issued.Warning != "" {
		fmt.Fprintln(a.err, "warning:", issued.Warning)
	}
	_, nodeID, _ := strings.Cut(c.Principal, "@")
	to, err := destination(o, name, nodeID, issued.Address)
	if err != nil {
		return err
	}
	return a.runSSH(ctx, program, slices.Concat([]string{"-i", key, "-o", "CertificateFile=" + key + "-cert.pub", "-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none",
		"-l", o.account, "-p", strconv.Itoa(o.port)}, to, args))
}

// sshName is what --host says, or else the node's name, "" when it has none.
func (a *app) sshName(ctx context.Context, o sshFlags, in map[string]any) (string, error) {
	name := o.host
	if name == "" {
		var out fleet.NodeOut
		if err := a.call(ctx, "nodes", "get", in, &out); err != nil {
			return "", err
		}
		name = out.Node.Name
	}
	if strings.HasPrefix(name, "-") {
		return "", usagef("the host %q would be an option of ssh: say with --host where ssh reaches the node", name)
	}
	return name, nil
}

// destination is what ssh is told of where a node is: by --host, or by what its
// agent told of its address.
func destination(o sshFlags, name, nodeID, address string) ([]string, error) {
	switch {
	case o.host != "" || address == "" && name != "":
		return []string{name}, nil
	case address == "":
		return nil, usagef("node %s has no name, and its agent has told no address: say with --host where ssh reaches it", nodeID)
	case name == "":
		name = address
	}
	// The address can have been another machine's before.
	return []string{"-o", "HostName=" + address, "-o", "HostKeyAlias=" + nodeID, name}, nil
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
