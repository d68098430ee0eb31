package main

import (
	"strings"
	"testing"

	"github.com/bettercompute/compute/store"
)

// A size that is none is refused before anything starts; a wrong command line is
// answered with the right one, and no help shows the database's password.
func TestWrongCommandsOfCompute(t *testing.T) {
	const url = "postgres://compute:sesame@127.0.0.1:1/compute"
	t.Setenv("DATABASE_URL", url)
	run := func(args ...string) (string, error) {
		var out strings.Builder
		cmd := rootCmd()
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SetArgs(args)
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	for line, says := range map[string]string{
		"dev --nodes -1":       "--nodes is 0 or more",
		"dev --time-scale 0":   "--time-scale more than 0",
		"admin grant":          "usage: compute admin grant TENANT IDENTITY ROLE",
		"migrate now":          "usage: compute migrate",
		"recover --who x":      "usage: compute recover",
		"recover --keep both":  "--keep is postgres or temporal",
		"admin create-tenant":  "usage: compute admin create-tenant ID",
		"keys rotate --frisch": "usage: compute keys rotate",
	} {
		if _, err := run(strings.Fields(line)...); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %s", line, err, says)
		}
	}
	for _, command := range commands() {
		if out, err := run(command.Name(), "--help"); err != nil || strings.Contains(out, "sesame") {
			t.Errorf("help of %s (%v):\n%s", command.Name(), err, out)
		}
	}
	if out, err := run("version"); err != nil || !strings.Contains(out, "schema ") || !strings.Contains(out, "worker build ") {
		t.Errorf("version (%v): %s", err, out)
	}
}

// What there is to judge is listed also when no recovery is pending.
func TestDisagreementsAreShown(t *testing.T) {
	t.Parallel()
	unverified := []store.UnverifiedNode{{NodeID: "node_1", Why: "power is on, recorded off"}}
	for says, d := range map[string]store.Disagreements{
		"nothing to recover: epoch 0":                {},
		"no recovery is pending (epoch 0); to judge": {Unverified: unverified},
		"node node_1 is unverified: power is on":     {Unverified: unverified},
		"recovery is pending (restored, epoch 0)":    {Epoch: store.Epoch{RecoveryPending: true, Reason: "restored"}},
	} {
		var out strings.Builder
		if showDisagreements(&out, d); !strings.Contains(out.String(), says) {
			t.Errorf("%+v: %s, want %s", d, out.String(), says)
		}
	}
	if concerns(store.Disagreements{Unverified: unverified}, "node_2") || !concerns(store.Disagreements{Unverified: unverified}, "node_1") {
		t.Error("the nodes that are to be judged are not those that are listed")
	}
}
