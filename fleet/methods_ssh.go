package fleet

// The states of an SSH certificate. A revoked one stays revoked after its
// expiry.
const (
	SSHCertActive  = "active"
	SSHCertExpired = "expired"
	SSHCertRevoked = "revoked"
)

// ByReauthorization revokes the SSH certificates of those who lost the right to
// have them issued (nodes-reference.txt, listSshCerts).
const ByReauthorization = "iam"

// SSHCert is the record of a break-glass certificate, never the certificate
// itself.
type SSHCert struct {
	// Serial is 64 bits unsigned, too many for the numbers of JSON.
	Serial       string `json:"serial"`
	Principal    string `json:"principal"`
	IssuedBy     string `json:"issuedBy"`
	ValidAfter   Time   `json:"validAfter"`
	ValidBefore  Time   `json:"validBefore"`
	State        string `json:"state"`
	RevokedAt    *Time  `json:"revokedAt,omitempty"`
	RevokedBy    string `json:"revokedBy,omitempty"`
	RevokeReason string `json:"revokeReason,omitempty"`
}

// SSHNodeIn names the node of the SSH methods, whose pattern is the reference's
// own.
type SSHNodeIn struct {
	TenantIn
	NodeID string `json:"nodeId" validate:"required,max=57,pattern=sshNodeId" doc:"The node."`
}

// NodesIssueSSHCertIn is the input of nodes/issueSshCert.
type NodesIssueSSHCertIn struct {
	SSHNodeIn
	PublicKey  string `json:"publicKey" validate:"required,max=4096,sshcertkey" doc:"The public key to certify, as its .pub file holds it: Ed25519 or ECDSA P-256."`
	Principal  string `json:"principal,omitempty" validate:"omitempty,pattern=principal" default:"root" doc:"The account to log in to, one of those configured."`
	TTLSeconds int64  `json:"ttlSeconds,omitempty" validate:"omitempty,min=60,max=3600" default:"900" doc:"The certificate's life in seconds; it never outlives the caller's session."`
}

// IssuedSSHCertOut is a certificate that was just issued. It is of use only to
// who holds the private key.
type IssuedSSHCertOut struct {
	Certificate string  `json:"certificate"`
	SSHCert     SSHCert `json:"sshCert"`
	// Address is the node's own as its agent says it, absent when it said none.
	Address string `json:"address,omitempty"`
	// Warning says why the node may not take the certificate, absent for no reason.
	Warning string `json:"warning,omitempty"`
	// Note says what the certificate's end does not do.
	Note string `json:"note"`
}

// NodesRevokeSSHCertIn is the input of nodes/revokeSshCert.
type NodesRevokeSSHCertIn struct {
	SSHNodeIn
	Serial string  `json:"serial" validate:"required,pattern=serial" doc:"The certificate's serial number."`
	Reason *string `json:"reason,omitempty" validate:"omitempty,max=500" doc:"Why, for the record, events and audit."`
}

// RevokedSSHCertOut is a revoked certificate.
type RevokedSSHCertOut struct {
	SSHCert SSHCert `json:"sshCert"`
	// Note says what the revocation does not do.
	Note string `json:"note"`
}

// NodesListSSHCertsIn is the input of nodes/listSshCerts.
type NodesListSSHCertsIn struct {
	SSHNodeIn
	IncludeExpired bool    `json:"includeExpired,omitempty" default:"false" doc:"Also those that expired, which are kept for one day."`
	Limit          *int    `json:"limit,omitempty" validate:"omitempty,min=1,max=500" default:"100" doc:"Certificates a page."`
	Cursor         *string `json:"cursor,omitempty" validate:"omitempty,max=128" doc:"nextCursor of the page before."`
}

// SSHCertsPage is a page of certificates, newest first.
type SSHCertsPage struct {
	Items      []SSHCert `json:"items"`
	NextCursor string    `json:"nextCursor,omitempty"`
}

var sshMethods = []Method{
	{Group: "nodes", Name: "issueSshCert", Kind: KindMutation, Permission: PermNodesSSHRoot, Resource: OnNode,
		Module: "tunnels", Phase: "v0.3", In: NodesIssueSSHCertIn{}, Out: IssuedSSHCertOut{}, Errors: []Code{CodeNotFound, CodeConflict, CodeUnsupported},
		Summary: "Issue a short-lived break-glass SSH certificate for one node.",
		Doc: "It needs a session with a second factor by default, and one that lasts longer than a minute. The certificate is good on this node only, " +
			"for the one account, and is recorded. An identity gets 20 an hour by default."},
	{Group: "nodes", Name: "revokeSshCert", Kind: KindMutation, Permission: PermNodesSSHRoot, Resource: OnNode,
		Module: "tunnels", Phase: "v0.3", In: NodesRevokeSSHCertIn{}, Out: RevokedSSHCertOut{}, Errors: []Code{CodeNotFound, CodeConflict},
		Summary: "Revoke a break-glass SSH certificate before it expires.",
		Doc:     "The node refuses it from its next NodeSpec on. Revoking again returns the same revocation. sshd ends no session that is open."},
	{Group: "nodes", Name: "listSshCerts", Kind: KindRead, Permission: PermNodesRead, Resource: OnNode,
		Module: "tunnels", In: NodesListSSHCertsIn{}, Out: SSHCertsPage{}, Errors: []Code{CodeNotFound},
		Summary: "List the break-glass SSH certificates that the tenant issued for one node, newest first.",
		Doc:     "Expired ones are listed with includeExpired for one day; never the certificate itself."},
}
