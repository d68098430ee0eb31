package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"

	"github.com/bettercompute/compute/identity"
	"github.com/bettercompute/compute/store"
)

// sshCAFiles are the files of the SSH CA in a folder of keys.
func sshCAFiles(dir string) (key, public string) {
	return filepath.Join(dir, "ssh-ca-key.pem"), filepath.Join(dir, "ssh-ca.pub")
}

func newKeysSSHCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ssh",
		Short: "Say which SSH CAs the nodes trust",
		Long: "An API process makes the nodes trust the SSH CA that it signs with. To replace the CA: trust the new one, restart the\n" +
			"API processes with its key, and an hour later (no certificate lives longer) distrust the old one. When a CA's key is\n" +
			"lost to somebody else, distrust it at once: nodes with a session refuse what it signed within seconds, others when they\n" +
			"are back.",
	}
	cmd.AddCommand(newKeysSSHListCmd(), newKeysSSHPublicCmd(), newKeysSSHTrustCmd("trust", "Make the nodes trust an SSH CA", (*store.Store).TrustSSHCA),
		newKeysSSHTrustCmd("distrust", "Make the nodes refuse all that an SSH CA signed", (*store.Store).DistrustSSHCA))
	return cmd
}

func newKeysSSHListCmd() *cobra.Command {
	var c stateConfig
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the SSH CAs that nodes trust or trusted",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := c.open(cmd.Context())
			if err != nil {
				return err
			}
			defer s.Close()
			cas, err := s.SSHCAs(cmd.Context())
			if err != nil {
				return err
			}
			for _, ca := range cas {
				state := "trusted"
				if ca.DistrustedAt != nil {
					state = "distrusted " + ca.DistrustedAt.UTC().Format(time.RFC3339)
				}
				key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(ca.PublicKey))
				if err != nil {
					return fmt.Errorf("read the SSH CA %q: %w", ca.PublicKey, err)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s  since %s  %s\n  %s\n", ssh.FingerprintSHA256(key), ca.CreatedAt.UTC().Format(time.RFC3339), state, ca.PublicKey)
			}
			return nil
		},
	}
	c.flags(cmd)
	return cmd
}

func newKeysSSHPublicCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "public KEY",
		Short: "Print the public key of an SSH CA, for trust and distrust",
		Long:  "KEY is what COMPUTE_SSH_CA_KEY is set to: " + caKeyUsage + ".",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := identity.LoadSSHCA(args[0], openToken)
			if err != nil {
				return err
			}
			if err := identity.KeyReady(cmd.Context(), key); err != nil {
				return err
			}
			if token, ok := key.(identity.RemoteKey); ok {
				defer func() { _ = token.Close() }() // the process ends
			}
			public, err := identity.SSHPublicKey(key.Public())
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), public)
			return nil
		},
	}
}

func newKeysSSHTrustCmd(name, short string, change func(s *store.Store, ctx context.Context, publicKey string) error) *cobra.Command {
	var c stateConfig
	cmd := &cobra.Command{
		Use:   name + " FILE.pub",
		Short: short,
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := identity.ReadSSHPublicKey(args[0])
			if err != nil {
				return err
			}
			s, err := c.open(cmd.Context())
			if err != nil {
				return err
			}
			defer s.Close()
			if err := change(s, cmd.Context(), key); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "done; the nodes are told with their next NodeSpec")
			return nil
		},
	}
	c.flags(cmd)
	return cmd
}
