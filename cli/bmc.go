package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bettercompute/compute/bmc"
	"github.com/bettercompute/compute/bmc/check"
	"github.com/bettercompute/compute/bmc/open"
	"github.com/bettercompute/compute/fleet"
)

// bmcCmd is what speaks to a BMC itself, for hardware that no control plane
// knows yet.
func (a *app) bmcCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "bmc", Short: "Look at a BMC directly, before it is enrolled", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(a.bmcCheckCmd())
	return cmd
}

// bmcFlags are those of bmc check.
type bmcFlags struct {
	username, passwordFile, driver string
	tlsMode, fingerprint, caFile   string
	legacy                         bool
	suites                         []int
	timeout                        time.Duration
}

func (a *app) bmcCheckCmd() *cobra.Command {
	var f bmcFlags
	cmd := &cobra.Command{
		Use:   "check ADDRESS",
		Short: "Say whether the control plane can drive a BMC; changes nothing",
		Long: "Logs in to a BMC and reads everything that the control plane will lean on: certificate, sessions,\n" +
			"identity, power, reset types, boot override, virtual media, inventory, services. Of each it says\n" +
			"whether it works, is odd, missing or broken, what the control plane does about it, and what to try.\n" +
			"It needs no control plane and sends nothing that changes the machine or the BMC.\n\n" +
			"ADDRESS is as for metal enroll: https://host[:port], redfish://host/redfish/v1/Systems/1,\n" +
			"ipmi://host, or a bare host.\n\n" +
			"  computectl bmc check 10.0.0.5 --username root --password-file bmc-password --tls-mode pin\n\n" +
			"Exit codes: 0 it can be enrolled, 1 it could not be looked into, 2 wrong command line, 3 something\n" +
			"that the control plane needs is broken.",
		Args: arguments("ADDRESS"),
		RunE: func(cmd *cobra.Command, args []string) error { return a.bmcCheck(cmd.Context(), args[0], f) },
	}
	fs := cmd.Flags()
	fs.StringVar(&f.username, "username", "", "the BMC's account (needed)")
	fs.StringVar(&f.passwordFile, "password-file", "", "its password (needed); a file, - for standard input")
	fs.StringVar(&f.driver, "driver", "auto", "auto, redfish or ipmi")
	fs.StringVar(&f.tlsMode, "tls-mode", "verify", "verify, pin or insecure")
	fs.StringVar(&f.fingerprint, "tls-fingerprint", "", "with pin: the certificate's fingerprint, sha256:...; none trusts the one that is shown")
	fs.StringVar(&f.caFile, "tls-ca-file", "", "with verify: the CA's certificates in PEM; none are the system's")
	fs.BoolVar(&f.legacy, "legacy-tls", false, "allow the TLS versions and ciphers that old BMCs need")
	fs.IntSliceVar(&f.suites, "ipmi-cipher-suites", nil, "the IPMI cipher suites to try, in order; default 17,3")
	fs.DurationVar(&f.timeout, "timeout", 5*time.Minute, "how long to try")
	return cmd
}

// target is the BMC that address and flags name.
func (a *app) target(address string, f bmcFlags) (bmc.Target, error) {
	parsed, err := fleet.ParseBMCAddress(address)
	switch {
	case err != nil:
		return bmc.Target{}, usagef("the address %w", err)
	case f.username == "" || f.passwordFile == "":
		return bmc.Target{}, usagef("--username and --password-file are needed")
	case !slices.Contains([]string{"auto", "redfish", "ipmi"}, f.driver):
		return bmc.Target{}, usagef("--driver is auto, redfish or ipmi, not %q", f.driver)
	case !slices.Contains([]string{"verify", "pin", "insecure"}, f.tlsMode):
		return bmc.Target{}, usagef("--tls-mode is verify, pin or insecure, not %q", f.tlsMode)
	case f.fingerprint != "" && !fleet.MatchPattern("fingerprint", f.fingerprint):
		return bmc.Target{}, usagef("--tls-fingerprint is sha256: and 64 hex digits")
	}
	t := bmc.Target{Address: parsed, Driver: f.driver, Username: f.username, CipherSuites: f.suites,
		TLS: bmc.TLS{Mode: f.tlsMode, Fingerprint: f.fingerprint, Legacy: f.legacy}}
	if f.caFile != "" {
		ca, err := os.ReadFile(f.caFile)
		if err != nil {
			return t, fmt.Errorf("read the CA: %w", err)
		}
		t.TLS.CA = string(ca)
	}
	t.Password, err = a.readSecret(f.passwordFile)
	return t, err
}

// errCannotCheck and errNotUsable end bmc check; the report has said why.
var (
	errCannotCheck = errors.New("the BMC could not be looked into")
	errNotUsable   = errors.New("the BMC lacks something that the control plane needs")
)

func (a *app) bmcCheck(ctx context.Context, address string, f bmcFlags) error {
	target, err := a.target(address, f)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	report := check.Run(ctx, check.Way{Open: open.Open, Certificate: open.Certificate}, target, bmc.Options{})
	if a.output == "json" {
		raw, err := json.Marshal(report)
		if err != nil {
			return fmt.Errorf("print the report: %w", err)
		}
		if err := a.print(raw); err != nil {
			return err
		}
	} else if err := report.WriteText(a.out); err != nil {
		return fmt.Errorf("print the report: %w", err)
	}
	switch {
	case !report.Reached:
		return errCannotCheck
	case !report.Usable:
		return errNotUsable
	}
	if a.output != "json" {
		fmt.Fprintf(a.out, "\nTo enroll it:\n  computectl metal enroll --name NAME %s\n", strings.Join(enrollFlags(address, f), " "))
	}
	return nil
}

// enrollFlags are the flags of metal enroll that say the same.
func enrollFlags(address string, f bmcFlags) []string {
	out := []string{"--bmc-address " + quoted(address), "--bmc-username " + quoted(f.username), "--bmc-password-file " + quoted(f.passwordFile)}
	if f.driver != "auto" {
		out = append(out, "--bmc-driver "+f.driver)
	}
	if f.tlsMode != "verify" {
		out = append(out, "--bmc-tls-mode "+f.tlsMode)
	}
	if f.fingerprint != "" {
		out = append(out, "--bmc-tls-fingerprint "+f.fingerprint)
	}
	if f.caFile != "" {
		out = append(out, `--bmc-tls-ca "$(cat `+quoted(f.caFile)+`)"`)
	}
	if f.legacy {
		out = append(out, "--bmc-legacy-tls")
	}
	for _, s := range f.suites {
		out = append(out, fmt.Sprintf("--bmc-ipmi-cipher-suites %d", s))
	}
	return out
}

// quoted is a word for a shell.
func quoted(s string) string {
	if s != "" && strings.Trim(strings.ToLower(s), "abcdefghijklmnopqrstuvwxyz0123456789-_.:/@") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
