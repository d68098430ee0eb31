package fleet

import (
	"slices"
	"strings"
)

// JoinFilePath is where an agent finds the JoinFile of the system that it runs
// on.
const JoinFilePath = "/var/lib/nodeagent/join.json"

// JoinFile tells an agent to join by itself: the system that a deploy installs
// has one.
type JoinFile struct {
	GatewayURL    string `json:"gatewayUrl"`
	CAFingerprint string `json:"caFingerprint"`
	// Token is a join token's secret or a deploy token.
	Token string `json:"token"`
}

// UniversalMACs are the addresses that a maker gave, in lower case, sorted and
// once each: those that software made up (locally administered) and group
// addresses name no machine.
func UniversalMACs(macs []string) []string {
	var out []string
	for _, m := range macs {
		m = strings.ToLower(m)
		if !MatchPattern("mac", m) || strings.ContainsAny(m[1:2], "2367abef13579d") || m == "00:00:00:00:00:00" {
			continue
		}
		out = append(out, m)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// SameMACs says whether two sets of addresses are one machine's: neither is
// empty and one holds the other, since a BMC often lists fewer ports than the
// system has.
func SameMACs(a, b []string) bool {
	a, b = UniversalMACs(a), UniversalMACs(b)
	if len(a) > len(b) {
		a, b = b, a
	}
	return len(a) > 0 && !slices.ContainsFunc(a, func(m string) bool { return !slices.Contains(b, m) })
}

// JoinMatch is a node that a joining machine could be.
type JoinMatch struct {
	NodeID, TenantID, SiteID string
	State                    ProvisionState
	// Key, UUID, MACs and EK say by what it matches.
	Key, UUID, MACs, EK bool
	// KeyBound says that some key is the node's, EKBound that a TPM is: then it,
	// and no key on a disk, says who the machine is. CertValid says that a certificate of
	// the present generation is.
	KeyBound, EKBound, CertValid bool
	// BindsEnrolled is its site's joinBindsEnrolled.
	BindsEnrolled bool
}

// JoinAsk is what a join is decided by.
type JoinAsk struct {
	// TenantID and SiteID are the token's. DeployNode is the node of a deploy
	// token, "" for a join token.
	TenantID, SiteID, DeployNode string
	// DeployBare says that nothing is recorded by which the node of a deploy token
	// could be told from others: no UUID that proves something, no addresses.
	DeployBare bool
	// TPM says that the machine proved to hold its TPM; TokenOnly that the
	// token's site lets machines without join.
	TPM, TokenOnly bool
	Matches        []JoinMatch
}

// The outcomes of a join that is admitted.
const (
	JoinNew  = "new"  // a new node
	JoinBind = "bind" // the key becomes the found node's
	JoinNext = "next" // the same node, next generation
)

// The reasons of a join that is refused.
const (
	ReasonTPMRequired  = "tpm-required"
	ReasonMachineKnown = "machine-known"
	ReasonAmbiguous    = "identity-ambiguous"
	ReasonNodeRetired  = "node-retired"
	ReasonKeyDiffers   = "key-differs"
	ReasonHasIdentity  = "has-identity"
	ReasonNotBindable  = "enrolled-not-bindable"
	ReasonWrongMachine = "wrong-machine"
)

// DecideJoin is the table of joins (spec identity.md): which node a joining
// machine becomes, or why it may not. The lowest row that fits decides.
func DecideJoin(a JoinAsk) (outcome, nodeID string, err error) {
	if !a.TPM && !a.TokenOnly && a.DeployNode == "" {
		return "", "", Errorf(CodeAccessDenied, ReasonTPMRequired, "this site lets no machine join by a token alone, and the machine proved no TPM; let the agent use its TPM (--tpm), or set tokenOnlyJoin on the site (sites/update)")
	}
	for _, m := range a.Matches {
		foreign := m.TenantID != a.TenantID || m.SiteID != a.SiteID
		if a.DeployNode != "" {
			foreign = m.NodeID != a.DeployNode
		}
		if foreign {
			return "", "", Errorf(CodeConflict, ReasonMachineKnown, "this machine, or one that cannot be told from it, is known already and not to this token")
		}
	}
	if len(a.Matches) > 1 {
		return "", "", Errorf(CodeConflict, ReasonAmbiguous, "the machine matches %d nodes by different attributes; delete those that it is not", len(a.Matches))
	}
	if len(a.Matches) == 0 {
		if a.DeployNode != "" && a.DeployBare {
			return JoinBind, a.DeployNode, nil
		}
		if a.DeployNode != "" {
			return "", "", Errorf(CodeConflict, ReasonWrongMachine, "the deploy token is another machine's")
		}
		return JoinNew, "", nil
	}
	return decideMatch(a, a.Matches[0])
}

// decideMatch walks the rows of a join that found one node, the lowest first.
func decideMatch(a JoinAsk, m JoinMatch) (outcome, nodeID string, err error) {
	keyed := m.Key
	if m.EKBound {
		keyed = m.EK
	}
	switch {
	case m.State == Retired:
		return "", "", Errorf(CodeConflict, ReasonNodeRetired, "the machine is a retired node; delete that node (nodes/delete), then join again").With("youCan", []string{"delete"})
	case (m.KeyBound || m.EKBound) && !keyed:
		return "", "", Errorf(CodeConflict, ReasonKeyDiffers, "the machine is known with another key: its TPM or board was changed, or another machine claims to be it").With("youCan", []string{"delete"})
	case keyed && m.CertValid:
		return "", "", Errorf(CodeConflict, ReasonHasIdentity, "the node has a valid certificate; revoke it first").With("youCan", []string{"revokeIdentity", "delete"})
	case keyed:
		return JoinNext, m.NodeID, nil
	case a.DeployNode == m.NodeID || m.BindsEnrolled:
		return JoinBind, m.NodeID, nil
	default:
		return "", "", Errorf(CodeConflict, ReasonNotBindable, "the machine is an enrolled node, and its site does not let a join token bind a key to one").
			With("youCan", []string{"set joinBindsEnrolled", "deploy"})
	}
}
