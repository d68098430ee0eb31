package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bettercompute/compute/api"
	"github.com/bettercompute/compute/identity"
)

// sshConfig is what compute api is told of break-glass SSH. A value that cannot
// be read ends the process: none of them may fall back to its default unseen.
type sshConfig struct {
	caKey, accounts, requireMFA, backdate, perHour string
}

func (c *sshConfig) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	env := func(p *string, name, variable, value, usage string) {
		if v, ok := os.LookupEnv(variable); ok {
			value = v
		}
		f.StringVar(p, name, value, usage+" ("+variable+")")
	}
	env(&c.caKey, "ssh-ca-key", "COMPUTE_SSH_CA_KEY", "", "the SSH CA's key: "+caKeyUsage+"; without one no SSH certificates are issued")
	env(&c.accounts, "ssh-accounts", "COMPUTE_SSH_ACCOUNTS", "root", "accounts that certificates are issued for, separated by commas; all API processes have to name the same")
	env(&c.requireMFA, "ssh-require-mfa", "COMPUTE_SSH_REQUIRE_MFA", "true", "whether an SSH certificate needs a session with a second factor")
	env(&c.backdate, "ssh-backdate", "COMPUTE_SSH_BACKDATE", "5m", "how far certificates begin in the past, for hosts whose clocks are behind")
	env(&c.perHour, "ssh-certs-per-hour", "COMPUTE_SSH_CERTS_PER_HOUR", "20", "how many SSH certificates an identity gets an hour")
}

func (c *sshConfig) options() (api.SSHOptions, error) {
	var o api.SSHOptions
	for a := range strings.SplitSeq(c.accounts, ",") {
		o.Accounts = append(o.Accounts, strings.TrimSpace(a))
	}
	mfa, err := strconv.ParseBool(c.requireMFA)
	if err != nil {
		return o, fmt.Errorf("--ssh-require-mfa %q: true or false", c.requireMFA)
	}
	o.WithoutMFA = !mfa
	if o.Backdate, err = time.ParseDuration(c.backdate); err != nil || o.Backdate <= 0 {
		return o, fmt.Errorf("--ssh-backdate %q: a duration such as 5m", c.backdate)
	}
	if o.PerHour, err = strconv.Atoi(c.perHour); err != nil || o.PerHour < 1 {
		return o, fmt.Errorf("--ssh-certs-per-hour %q: a number of at least 1", c.perHour)
	}
	if c.caKey == "" {
		return o, nil
	}
	o.CA, err = identity.LoadSSHCA(c.caKey, openToken)
	return o, err
}
