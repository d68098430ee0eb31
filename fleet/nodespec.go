package fleet

// NodeSpec is what an agent brings about on its node. It is applied as a whole
// or not at all.
type NodeSpec struct {
	Version int64 `json:"version"`
	// Tag tells it from another one of the same version: after a restore of the
	// database versions begin again from an older one.
	Tag    string `json:"tag,omitempty"`
	NodeID string `json:"nodeId"`
	// SSH is absent while no SSH CA is configured.
	SSH *SSHSpec `json:"ssh,omitempty"`
	// Labels are the operator's, Taints the keys of operator taints.
	Labels map[string]string `json:"labels"`
	Taints []string          `json:"taints"`
}

// SSHSpec is who may log in with a certificate.
type SSHSpec struct {
	// CAKeys are the public keys of the CAs, in authorized_keys form.
	CAKeys []string `json:"caKeys"`
	// Principals are, by local account, the principals that may log in to it.
	Principals map[string][]string `json:"principals"`
	// RevokedSerials are those of certificates that were revoked and have not ended.
	RevokedSerials []string `json:"revokedSerials"`
	// ExpiredThrough is a serial: certificates up to it have ended by the control
	// plane's clock, so that a host whose clock is behind refuses them too.
	ExpiredThrough string `json:"expiredThrough"`
}

// SSHPrincipal is the principal of a certificate for an account of a node.
func SSHPrincipal(account, nodeID string) string { return account + "@" + nodeID }
