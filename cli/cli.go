// Package cli is computectl: one command for every method of the method table,
// with flags made from the method's input, and what a person needs beside
// them: names in place of ids, --watch, tables.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/version"
)

// Exit codes of computectl.
const (
	ExitRefused = 1 // the call was refused or could not be made
	ExitUsage   = 2 // the command line is wrong
	ExitFailed  = 3 // a watched operation or a row failed; what was checked is not usable
)

// app is one run of computectl.
type app struct {
	in       io.Reader
	out, err io.Writer
	url      string
	tenant   string
	token    string
	output   string
	now      func() time.Time
	// names are the ids of pools and sites that were looked up by name.
	names map[string]string
}

// New returns the root command.
func New(in io.Reader, out, errOut io.Writer) *cobra.Command {
	a := &app{in: in, out: out, err: errOut, now: time.Now, names: map[string]string{}}
	root := &cobra.Command{
		Use:   "computectl",
		Short: "Operate a bare-metal GPU fleet",
		Long: "computectl calls the control plane's HTTP API: `computectl GROUP METHOD`.\n\n" +
			"It reads COMPUTE_URL, COMPUTE_TOKEN, COMPUTE_TENANT, COMPUTE_SITE and COMPUTE_POOL.\n" +
			"Exit codes: 0 done, 1 refused or not reached, 2 wrong command line, 3 a watched operation or\n" +
			"a row failed, or what was checked is not usable.",
		SilenceUsage: true, SilenceErrors: true,
		Version: version.String(),
	}
	root.SetOut(out)
	root.SetErr(errOut)
	f := root.PersistentFlags()
	f.StringVar(&a.url, "url", os.Getenv("COMPUTE_URL"), "the API's URL (COMPUTE_URL)")
	f.StringVar(&a.tenant, "tenant", os.Getenv("COMPUTE_TENANT"), "the tenant (COMPUTE_TENANT)")
	f.StringVarP(&a.output, "output", "o", "table", "table or json")
	// Before any call: a mutation is not to be found out as done and not shown.
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		if a.output != "table" && a.output != "json" {
			return usagef("--output is table or json, not %q", a.output)
		}
		return nil
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	groups := map[string]*cobra.Command{}
	for _, m := range fleet.Methods {
		g, ok := groups[m.Group]
		if !ok {
			g = &cobra.Command{Use: fleet.Kebab(m.Group), Short: groupShort[m.Group], Args: cobra.NoArgs,
				RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
			groups[m.Group] = g
			root.AddCommand(g)
		}
		g.AddCommand(a.methodCmd(m))
	}
	for _, kind := range accepts {
		groups["metal"].AddCommand(a.acceptCmd(kind))
	}
	root.AddCommand(a.attentionCmd(), a.eventsCmd(), a.loginCmd(), a.bmcCmd(), a.sshCmd())
	return root
}

var groupShort = map[string]string{
	"nodes":        "Nodes as their tenants see them",
	"metal":        "Machines and their life: enroll, inspect, commission, deploy, rescue, release, retire",
	"sites":        "Sites: networks, limits, waiting times",
	"pools":        "Pools of nodes",
	"reservations": "GPUs of a pool set aside for a time",
	"allocations":  "GPUs of a node that somebody holds",
	"operations":   "Operations and their steps",
	"joinTokens":   "Tokens by which machines join",
	"access":       "Roles, service tokens and the audit",
}

// usageError is a wrong command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// failedOperation is a watched operation that did not end well.
type failedOperation struct{ op fleet.Operation }

func (e failedOperation) Error() string {
	if e.op.Error == nil {
		return fmt.Sprintf("%s %s (%s)", e.op.Verb, e.op.State, e.op.ID)
	}
	s := fmt.Sprintf("%s %s", e.op.Verb, e.op.State)
	if e.op.Error.Step != "" {
		s += " at step " + e.op.Error.Step
	}
	s += ": " + e.op.Error.Cause
	if e.op.Error.Remedy != "" {
		s += "\n  to do: " + e.op.Error.Remedy
	}
	if e.op.State == fleet.OpFailed && e.op.EndedAt == nil {
		s += "\n  it is parked: computectl metal retry " + e.op.NodeID + " (or abort)"
	}
	return s + "\n  operation " + e.op.ID + ", workflow " + e.op.WorkflowID
}

// ExitCode maps an error of the root command to the process's exit code.
func ExitCode(err error) int {
	var usage usageError
	var failed failedOperation
	var ssh sshEnded
	switch {
	case err == nil:
		return 0
	case errors.As(err, &ssh):
		return ssh.code
	case errors.As(err, &failed), errors.Is(err, errNotUsable), errors.Is(err, errRows), errors.Is(err, errAccept):
		return ExitFailed
	case errors.As(err, &usage), strings.HasPrefix(err.Error(), "unknown command"):
		return ExitUsage
	default:
		return ExitRefused
	}
}

// Explain writes an error for a person.
func Explain(err error) string {
	var p *problem
	if errors.As(err, &p) {
		return p.explain()
	}
	if errors.Is(err, errNotReached) {
		return notReached(err)
	}
	if errors.Is(err, context.Canceled) {
		return "computectl: interrupted"
	}
	return "computectl: " + err.Error()
}
