package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bettercompute/compute/agent"
	"github.com/bettercompute/compute/agent/linux"
	"github.com/bettercompute/compute/agent/tpm"
)

// stateDir is where a joined machine keeps its identity.
const stateDir = "/var/lib/nodeagent"

// member is the machine that the program runs on, as a member.
type member struct {
	state  agent.State
	sshDir string
	tpm    string
}

// flags are those of all commands of a member; those of sshd only where it is
// touched.
func (m *member) flags(cmd *cobra.Command, ssh bool) {
	cmd.Flags().StringVar(&m.state.Dir, "state", stateDir, "folder of the machine's identity")
	if ssh {
		cmd.Flags().StringVar(&m.sshDir, "ssh-dir", "/etc/ssh", "folder of sshd's configuration")
	}
}

// tpmFlag is that of the commands by which the machine shows who it is.
func (m *member) tpmFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&m.tpm, "tpm", "auto", "the machine's TPM 2.0: auto is "+tpm.Device+" where there is one, off none, or a path")
}

// theTPM is the machine's TPM, nil when there is none or it is not to be used.
func (m *member) theTPM() agent.TPM {
	if t := tpm.Choose(m.tpm); t != nil {
		return t
	}
	return nil
}

func (m *member) host() *linux.Host {
	h := &linux.Host{Root: "/"}
	if m.sshDir != "" {
		h.SSHD.File = filepath.Join(m.sshDir, "sshd_config")
		h.SSHD.DropIn = filepath.Join(m.sshDir, "sshd_config.d", "better-compute.conf")
		h.SSHD.Dir = filepath.Join(m.sshDir, "better-compute")
	}
	return h
}

func newLog() *slog.Logger { return slog.New(slog.NewTextHandler(os.Stderr, nil)) }

func joinCmd() *cobra.Command {
	cfg := agent.JoinConfig{Log: newLog()}
	var m member
	var tokenFile string
	var within time.Duration
	cmd := &cobra.Command{
		Use:   "join",
		Short: "Make this machine a node",
		Long: "Makes a key on this machine, which never leaves it, and joins with a token of joinTokens/create. The gateway's CA is\n" +
			"trusted by its fingerprint alone. Asked again after an answer that was lost, it is the same join. After a revocation it\n" +
			"joins again as the same node; a running nodeagent takes the new identity up by itself.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			token, err := readToken(tokenFile, cmd.InOrStdin())
			if err != nil {
				return err
			}
			cfg.Token, cfg.State, cfg.TPM = token, m.state, m.theTPM()
			ctx, cancel := context.WithTimeout(cmd.Context(), within)
			defer cancel()
			id, err := agent.Join(ctx, cfg, m.host())
			if errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("not joined within %s: %s is not reached, or does not answer as the gateway of that fingerprint", within, cfg.GatewayURL)
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "joined as %s, generation %d; nodeagent run keeps its session (nodeagent unit prints a systemd unit for it)\n", id.NodeID, id.Generation)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.GatewayURL, "gateway", "", "URL of the gateway's TLS listener")
	f.StringVar(&cfg.CAFingerprint, "ca-fingerprint", "", "fingerprint of the gateway's CA: sha256:<hex> (compute keys fingerprint)")
	f.StringVar(&tokenFile, "token-file", "", "file of the token's secret; - is the standard input")
	f.DurationVar(&within, "within", 10*time.Minute, "how long to try while the gateway does not answer")
	for _, name := range []string{"gateway", "ca-fingerprint", "token-file"} {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err) // the flag is defined above
		}
	}
	m.flags(cmd, false)
	m.tpmFlag(cmd)
	return cmd
}

// readToken reads the secret from a file, so that no process list shows it.
func readToken(file string, stdin io.Reader) (string, error) {
	var b []byte
	var err error
	if file == "-" {
		b, err = io.ReadAll(io.LimitReader(stdin, 4096))
	} else {
		b, err = os.ReadFile(file)
	}
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" {
		return "", fmt.Errorf("the token file %s is empty", file)
	}
	return token, nil
}

func runCmd() *cobra.Command {
	var m member
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Keep this machine's session with the control plane",
		Long: "Keeps the session of a machine that joined, runs the control plane's commands and brings its NodeSpec about. A machine\n" +
			"that has not joined, has left or was revoked is waited for; one whose folder holds a join.json joins by it. While the\n" +
			"control plane is away, what it last asked for stays.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			release, err := m.state.Lock()
			if err != nil {
				return err
			}
			defer release()
			err = agent.Keep(cmd.Context(), agent.ServeConfig{State: m.state, Host: m.host(), TPM: m.theTPM(), Log: newLog()})
			if cmd.Context().Err() != nil {
				return nil
			}
			return err
		},
	}
	m.flags(cmd, true)
	m.tpmFlag(cmd)
	return cmd
}

func leaveCmd() *cobra.Command {
	var m member
	cmd := &cobra.Command{
		Use:   "leave",
		Short: "End the session and remove the identity from this machine",
		Long: "Ends the session and removes key, certificate and what the agent set up for sshd. The node stays in the control plane:\n" +
			"to let this machine join again as a new node, delete it there (nodes/delete).",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := agent.Leave(cmd.Context(), m.state, m.host(), newLog()); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "left: no key, certificate or sshd configuration of the control plane is on this machine; the node is still in the control plane")
			return nil
		},
	}
	m.flags(cmd, true)
	return cmd
}

// statusOut is what status prints.
type statusOut struct {
	agent.Identity
	CertificateEnds time.Time    `json:"certificateEnds"`
	Running         bool         `json:"running"`
	Session         agent.Status `json:"session"`
}

func statusCmd() *cobra.Command {
	var m member
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show who this machine joined as and how its session is",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := statusOut{}
			var err error
			if out.Identity, err = m.state.Identity(); err != nil {
				return err
			}
			if out.Session, out.CertificateEnds, err = m.state.Status(); err != nil {
				return err
			}
			switch release, err := m.state.Lock(); {
			case errors.Is(err, agent.ErrRunning):
				out.Running = true
			case err != nil:
				return err
			default:
				release()
				out.Session = agent.Status{} // what was said last is not so any more
			}
			return printStatus(cmd.OutOrStdout(), out, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	m.flags(cmd, false)
	return cmd
}

func printStatus(w io.Writer, s statusOut, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(s)
	}
	session := "none: nodeagent run is not running"
	switch {
	case s.Session.InSession:
		session = fmt.Sprintf("open since %s, epoch %d", s.Session.At.Format(time.RFC3339), s.Session.Epoch)
	case s.Running:
		session = "none: " + s.Session.Error
	}
	_, err := fmt.Fprintf(w, "node          %s\ngeneration    %d\ngateway       %s\njoined        %s\ncertificate   until %s\nsession       %s\n",
		s.NodeID, s.Generation, s.GatewayURL, s.JoinedAt.Format(time.RFC3339), s.CertificateEnds.Format(time.RFC3339), session)
	return err
}

// unit is the systemd unit of nodeagent run.
//
//go:embed nodeagent.service
var unit string

func unitCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "unit",
		Short: "Print a systemd unit for nodeagent run",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := io.WriteString(cmd.OutOrStdout(), unit)
			return err
		},
	}
}
