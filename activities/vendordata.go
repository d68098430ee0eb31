package activities

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/bettercompute/compute/fleet"
)

// phoneHomeTries is how often cloud-init tries to report.
const phoneHomeTries = 10

// vendorData is what we ask of the installed system's cloud-init beside the
// caller's user data: to report, and, where the site lets installed systems
// become their nodes, to keep the join file for nodeagent, which is installed
// from where the site says.
func (a *Record) vendorData(ctx context.Context, w Work, in fleet.MetalDeployIn) (string, error) {
	cloud := map[string]any{}
	if in.Expect == "" || in.Expect == "report" {
		url, err := a.Machines.ReportURL(ctx, w.OperationID)
		if err != nil {
			return "", fmt.Errorf("make the report URL: %w", err)
		}
		cloud["phone_home"] = map[string]any{"url": url, "post": []string{"instance_id", "hostname", "fqdn"}, "tries": phoneHomeTries}
	}
	if boot := w.Site.Boot; boot != nil && boot.InstallAgent {
		file, err := a.Machines.JoinFile(ctx, w.OperationID)
		if err != nil {
			return "", err
		}
		content, err := json.Marshal(file)
		if err != nil {
			return "", fmt.Errorf("write the join file: %w", err)
		}
		cloud["write_files"] = []any{map[string]any{"path": fleet.JoinFilePath, "permissions": "0600", "owner": "root:root", "content": string(content)}}
		if boot.AgentURL != "" {
			cloud["runcmd"] = []any{[]string{"sh", "-c", installAgent, "nodeagent", boot.AgentURL, strings.TrimPrefix(boot.AgentChecksum, "sha256:")}}
		}
	}
	if len(cloud) == 0 {
		return "", nil
	}
	doc, err := json.Marshal(cloud)
	if err != nil {
		return "", fmt.Errorf("write the vendor data: %w", err)
	}
	return "#cloud-config\n" + string(doc) + "\n", nil
}

// installAgent puts nodeagent in place and starts it. Its arguments are where it
// lies and the digest that it must have; nothing else is trusted.
const installAgent = `set -eu
umask 022
f=$(mktemp)
curl -fsSL --retry 10 --retry-connrefused -o "$f" "$1" || wget -q -O "$f" "$1"
echo "$2  $f" | sha256sum -c -
install -m 0755 "$f" /usr/local/bin/nodeagent
rm -f "$f"
/usr/local/bin/nodeagent unit > /etc/systemd/system/nodeagent.service
systemctl daemon-reload
systemctl enable --now nodeagent`
