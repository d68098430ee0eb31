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

// required is what methods on a node need beside it.
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
}

const (
	testSSHKey   = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
	testChecksum = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)
