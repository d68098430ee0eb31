package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/bettercompute/compute/identity"
	"github.com/bettercompute/compute/store"
	"github.com/bettercompute/compute/store/seal"
)

func newKeysCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "keys", Short: "Make, rotate and check the keys of this installation"}
	cmd.AddCommand(newKeysInitCmd(), newKeysRotateCmd(), newKeysCheckCmd(), newKeysRotateNodeCACmd(), newKeysSSHCmd(), newKeysFingerprintCmd())
	return cmd
}

func newKeysInitCmd() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make the key files that are missing",
		Long: "Makes keyset.json (seals secrets in the database), boot.key (boot ids derive from it), ca.pem and ca-key.pem (the\n" +
			"gateway's CA, which machines pin), node-ca.pem and node-ca-key.pem (the CA of nodes, an intermediate of the gateway's),\n" +
			"ssh-ca-key.pem and ssh-ca.pub (the CA of break-glass SSH certificates). Files that are there are left alone. All but\n" +
			"ca.pem, node-ca.pem and ssh-ca.pub are secrets: keep them off the database's backups.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := initKeys(cmd.Context(), dir); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "the keys are in", dir)
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "keys", "folder of the key files")
	return cmd
}

func initKeys(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the keys' folder: %w", err)
	}
	if _, err := seal.Create(filepath.Join(dir, "keyset.json")); err != nil {
		return err
	}
	if _, err := store.CreateBootKey(filepath.Join(dir, "boot.key")); err != nil {
		return err
	}
	root, err := identity.Create(filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca-key.pem"), "Better Compute gateway CA", openToken)
	if err != nil {
		return err
	}
	if err := root.CreateNodeCA(nodeCAFiles(dir)); err != nil {
		return err
	}
	key, public := sshCAFiles(dir)
	return identity.CreateSSHCA(ctx, key, public, openToken)
}

// nodeCAFiles are the files of the CA of nodes in a folder of keys.
func nodeCAFiles(dir string) (cert, key string) {
	return filepath.Join(dir, "node-ca.pem"), filepath.Join(dir, "node-ca-key.pem")
}

func newKeysRotateNodeCACmd() *cobra.Command {
	var dir, uri string
	cmd := &cobra.Command{
		Use:   "rotate-node-ca",
		Short: "Replace the CA that signs the certificates of nodes",
		Long: "Makes a fresh CA of nodes below the same gateway's CA and puts it in place of node-ca.pem and node-ca-key.pem. Gateways\n" +
			"that read these files take it up within seconds; where they read copies, put the new files in their places. No session\n" +
			"ends and no machine joins again: what the former one signed is good until it ends, and is renewed by the new one. One\n" +
			"is good for three years.\n\n" +
			"With --key the CA's key is one that was made in a token, named by its PKCS#11 URI; node-ca-key.pem then holds the URI.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			root, err := identity.Load(filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca-key.pem"), openToken)
			if err != nil {
				return err
			}
			cert, key := nodeCAFiles(dir)
			if uri == "" {
				err = root.RotateNodeCA(cert, key)
			} else {
				err = root.CertifyNodeCA(cmd.Context(), cert, key, uri, openToken)
			}
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "the new CA of nodes is in", cert)
			fmt.Fprintln(cmd.OutOrStdout(), "gateways that read this file take it up within seconds, without a restart; where they read copies, put", cert, "and", key, "in their places")
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "keys", "folder of the key files")
	cmd.Flags().StringVar(&uri, "key", "", "the new CA's key in a token: pkcs11:token=LABEL;object=LABEL?module-path=/path.so&pin-source=file:/path")
	return cmd
}

func newKeysFingerprintCmd() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "fingerprint",
		Short: "Print the fingerprint of the gateway's CA, which joining machines are told",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ca, err := identity.LoadCert(filepath.Join(dir, "ca.pem"))
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), identity.Fingerprint(ca))
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "keys", "folder of the key files")
	return cmd
}

func newKeysRotateCmd() *cobra.Command {
	var c stateConfig
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Seal with a new key from now on, and seal all secrets anew",
		Long: "Adds a key to the keyset's file, makes it the one that seals, and seals every secret of the database anew with it.\n" +
			"Processes that read the same file take it up by themselves when they meet the first secret that it sealed. Where they\n" +
			"read copies, put the new file in their places right away; the old keys stay in it and go on opening.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.keyset == "" {
				return errors.New("no keyset is configured: set COMPUTE_KEYSET or --keyset")
			}
			old, err := seal.Load(c.keyset)
			if err != nil {
				return err
			}
			fresh, err := old.Rotate()
			if err != nil {
				return err
			}
			if err := fresh.Save(c.keyset); err != nil {
				return err
			}
			return checkSeals(cmd, c, true)
		},
	}
	c.flags(cmd)
	return cmd
}

func newKeysCheckCmd() *cobra.Command {
	var c stateConfig
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Open every sealed secret of the database and say what does not open",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return checkSeals(cmd, c, false) },
	}
	c.flags(cmd)
	return cmd
}

func checkSeals(cmd *cobra.Command, c stateConfig, reseal bool) error {
	s, err := c.open(cmd.Context())
	if err != nil {
		return err
	}
	defer s.Close()
	if s.Seal == nil {
		return errors.New("no keyset is configured: set COMPUTE_KEYSET or --keyset")
	}
	checks, err := s.CheckSeals(cmd.Context(), reseal)
	if err != nil {
		return err
	}
	lost := 0
	for _, k := range checks {
		lost += k.Lost
		what := "by an older key"
		if reseal {
			what = "sealed anew"
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%-26s %6d secrets, %d %s, %d do not open\n", k.Column, k.Sealed, k.Old, what, k.Lost)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "the keyset holds %d keys\n", s.Seal.Keys())
	if lost > 0 {
		return fmt.Errorf("%d secrets were sealed with keys that this keyset does not hold", lost)
	}
	return nil
}
