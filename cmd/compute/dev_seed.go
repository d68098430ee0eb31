package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/bettercompute/compute/devidp"
	"github.com/bettercompute/compute/fleet"
)

// The seed: two tenants, and an identity of the local issuer for each role.
const (
	seedTenant = "acme"
	seedOther  = "globex"
	tokenLife  = 12 * time.Hour
)

var seedGrants = []struct {
	tenant, subject string
	role            fleet.Role
}{
	{seedTenant, "operator", fleet.RoleOperator},
	{seedTenant, "viewer", fleet.RoleViewer},
	{seedTenant, "oncall", fleet.RoleBreakGlass},
}

// devSeed is what the stack was seeded with.
type devSeed struct{ site, pool string }

// seed makes what a newcomer needs to call anything: through the commands and
// the API that everybody uses. A second run finds it made.
func (d *devStack) seed(ctx context.Context) error {
	for tenant, owner := range map[string]string{seedTenant: "dev:owner", seedOther: "dev:owner2"} {
		if err := d.run(ctx, "admin", "create-tenant", tenant, "--owner", owner); err != nil {
			return err
		}
	}
	for _, g := range seedGrants {
		if err := d.run(ctx, "admin", "grant", g.tenant, "dev:"+g.subject, string(g.role)); err != nil {
			return err
		}
	}
	var err error
	if d.owner, err = d.issuer.Mint(devidp.Token{Subject: "owner", TTL: tokenLife}); err != nil {
		return err
	}
	if d.seeded.site, err = d.seedSite(ctx); err != nil {
		return err
	}
	if d.seeded.pool, err = d.seedPool(ctx); err != nil {
		return err
	}
	return d.writeEnv()
}

func (d *devStack) seedSite(ctx context.Context) (string, error) {
	var page fleet.SitesPage
	if err := d.post(ctx, "sites/list", map[string]any{"tenantId": seedTenant}, &page); err != nil {
		return "", err
	}
	for _, s := range page.Items {
		if s.Name == "lab" {
			return s.ID, nil
		}
	}
	var out fleet.SiteOut
	err := d.post(ctx, "sites/create", map[string]any{"tenantId": seedTenant, "name": "lab", "allowedNetworks": []string{"127.0.0.0/8"},
		"tokenOnlyJoin": true, "boot": map[string]any{"installAgent": true}}, &out)
	return out.Site.ID, err
}

func (d *devStack) seedPool(ctx context.Context) (string, error) {
	var page fleet.PoolsPage
	if err := d.post(ctx, "pools/list", map[string]any{"tenantId": seedTenant}, &page); err != nil {
		return "", err
	}
	for _, p := range page.Items {
		if p.Name == "h100" {
			return p.ID, nil
		}
	}
	var out fleet.PoolOut
	err := d.post(ctx, "pools/create", map[string]any{"tenantId": seedTenant, "siteId": d.seeded.site, "name": "h100", "gpuModel": "NVIDIA H100 80GB HBM3"}, &out)
	return out.Pool.ID, err
}

// post calls the stack's API as the tenant's owner.
func (d *devStack) post(ctx context.Context, method string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("seed: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, httpURL(d.ports.API)+"/api/compute/"+method, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("seed: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+d.owner)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("seed: %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("seed: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("seed: %s answered %s: %s", method, resp.Status, answer)
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("seed: %s: %w", method, err)
	}
	return nil
}

// writeEnv writes .dev/env, which a shell reads with `. .dev/env`.
func (d *devStack) writeEnv() error {
	var b strings.Builder
	for _, kv := range [][2]string{
		{"COMPUTE_URL", httpURL(d.ports.API)}, {"COMPUTE_TOKEN", d.owner}, {"COMPUTE_TENANT", seedTenant},
		{"COMPUTE_SITE", d.seeded.site}, {"COMPUTE_POOL", d.seeded.pool}, {"COMPUTE_DEV_ISSUER", httpURL(d.ports.Issuer)},
		{"DATABASE_URL", d.database}, {"TEMPORAL_ADDRESS", d.temporalAddress()}, {"TEMPORAL_NAMESPACE", d.config.Namespace},
		{"TEMPORAL_UI", d.temporal.UI}, {"BMCSIM_URL", httpURL(d.ports.Sim)}, {"GATEWAY_URL", d.gatewayURL()}, {"BOOT_URL", httpURL(d.ports.Boot)},
	} {
		fmt.Fprintf(&b, "export %s=%s\n", kv[0], quoted(kv[1]))
	}
	fmt.Fprintf(&b, "export PATH=%s:\"$PATH\"\n", quoted(d.bin))
	if err := os.WriteFile(d.path("env"), []byte(b.String()), 0o600); err != nil {
		return fmt.Errorf("write the stack's environment: %w", err)
	}
	return nil
}

// quoted is a text as one word of a shell's.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// envFile is the env file as a person types it.
func (d *devStack) envFile() string {
	file := filepath.Join(d.devOptions.state, "env")
	if strings.ContainsAny(file, " '\"$`\\&;()*?") {
		return quoted(file)
	}
	return file
}

// announce says that the stack is ready and what to try.
func (d *devStack) announce(took time.Duration) {
	fmt.Fprintf(d.out, "ready in %.0f s: API %s (docs: /docs), Temporal UI %s, rack of %d machines %s\n",
		took.Seconds(), httpURL(d.ports.API), d.temporal.UI, d.nodes, httpURL(d.ports.Sim))
	fmt.Fprintf(d.out, "try, in a second shell:\n  . %s\n  computectl nodes list\n  curl -s $BMCSIM_URL/sim/machines | jq '.items[0]'   # then the tour of README.md\nCtrl-C stops it; make dev-reset wipes its state.\n", d.envFile())
}
