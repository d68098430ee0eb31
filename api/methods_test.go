package api_test

import (
	"github.com/bettercompute/compute/fleet"
)

// nodeInput is the least input by which a method is called on a node of acme;
// false for methods that are not on one node.
func nodeInput(m fleet.Method, nodeID string) (obj, bool) {
	if m.Resource != fleet.OnNode {
		return nil, false
	}
	in := on(nodeID)
	for name, v := range required[m.FullName()] {
		in[name] = v
	}
	return in, true
}

// required is what methods need beside their tenant and the thing they are on.
// $node, $pool, $site and $tenant stand for the ids of the case at hand.
var required = map[string]obj{
	"nodes/label":          {"set": obj{"a": "1"}},
	"nodes/taint":          {"add": []string{"a"}},
	"nodes/issueSshCert":   {"publicKey": testSSHKey},
	"nodes/revokeSshCert":  {"serial": "1"},
	"metal/deploy":         {"image": obj{"url": "http://127.0.0.1/i.raw", "checksum": testChecksum, "format": "raw"}},
	"metal/rescue":         {"sshKeys": []string{testSSHKey}},
	"metal/power":          {"action": "on"},
	"metal/setCredentials": {"username": "root", "password": "secret of a test"},
	"metal/hold":           {"reason": "r"},
	"metal/update":         {"name": "n"},
	"metal/manage":         {"bmc": obj{"address": "127.0.0.77", "username": "root", "password": "secret of a test"}},
	"metal/enroll":         {"siteId": "$site", "dryRun": true, "bmc": obj{"address": "127.0.0.78", "username": "root", "password": "secret of a test"}},
	"sites/create":         {"name": "$name"},
	"pools/create":         {"siteId": "$site", "name": "$name", "gpuModel": "H100"},
	"pools/addNode":        {"nodeId": "$node"},
	"pools/removeNode":     {"nodeId": "$node"},
	"pools/update":         {"gpuModel": "H100"},
	"pools/offer":          {"toTenantId": "another", "quota": obj{"gpus": 1}},
	"pools/unoffer":        {"toTenantId": "another"},
	"operations/wait":      {"timeoutSeconds": 1},
	"reservations/create":  {"gpus": 1, "from": "2100-01-01T00:00:00Z", "to": "2100-01-02T00:00:00Z"},
	"allocations/create":   {"gpus": 1, "holder": "job"},
	"access/grant":         {"identity": "dev:somebody", "role": "viewer", "on": obj{"tenantId": "$tenant"}},
	"access/revoke":        {"bindingId": "bind_01j00000000000000000000000"},
	"access/issueToken":    {"name": "ci", "role": "viewer", "on": obj{"tenantId": "$tenant"}, "ttlSeconds": 60},
	"access/revokeToken":   {"serviceTokenId": "svct_01j00000000000000000000000"},
	"joinTokens/create":    {"siteId": "$site", "ttlSeconds": 60, "maxUses": 1},
	"joinTokens/revoke":    {"joinTokenId": "join_01j00000000000000000000000"},
}

const (
	testSSHKey   = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
	testChecksum = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)
