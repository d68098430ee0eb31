package api_test

import (
	"strings"
	"testing"

	"github.com/bettercompute/compute/fleet"
)

// A deploy can wait for the installed system's agent only where the site gives
// it a token to join by, and what the site has installed is pinned.
func TestExpectSession(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.enrolled("127.0.0.9", fleet.Ready)
	r.exec(`UPDATE bmcs SET checked_at = now(), capabilities = '{"virtualMedia": true}' WHERE node_id = $1`, n.ID)
	site := func(boot obj) obj { return obj{"tenantId": "acme", "siteId": r.site, "boot": boot} }
	for _, boot := range []obj{{"installAgent": true, "agentUrl": "https://files.test/nodeagent"}, {"agentChecksum": "sha256:" + strings.Repeat("0", 64)}} {
		p := r.refused("owner", "sites/update", site(boot), fleet.CodeInvalidInput, "")
		if len(p.Fields) != 1 || p.Fields[0].Field != "boot.agentChecksum" {
			t.Errorf("%v: fields %v", boot, p.Fields)
		}
	}
	p := r.refused("owner", "metal/deploy", deployIn(n.ID, nil, "expect", "session"), fleet.CodeUnsupported, "no-agents")
	if !strings.Contains(p.Detail, "boot.installAgent") {
		t.Errorf("what to do is not said: %s", p.Detail)
	}
	r.ok("owner", "sites/update", site(obj{"installAgent": true, "agentUrl": "https://files.test/nodeagent", "agentChecksum": "sha256:" + strings.Repeat("0", 64)}), nil)
	r.ok("owner", "metal/deploy", deployIn(n.ID, nil, "expect", "session"), nil)
}
