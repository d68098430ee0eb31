package gateway

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/identity"
	"github.com/bettercompute/compute/store"
)

// joinsAtOnce bounds the joins that this process judges side by side; the rest
// are told to come back, so that a flood of joins takes no connection from the
// machines that are in.
const joinsAtOnce = 16

// joinBody bounds a join, which carries an inventory, and joinWithin how long it
// may take to come: it is read before it is judged, so that those who send slowly
// keep nobody else out.
const (
	joinBody   = 1 << 20
	joinWithin = 20 * time.Second
)

// joinRequest is what a machine says to join.
type joinRequest struct {
	Token string `json:"token"`
	// CSR is a PEM certificate request, signed by the key to be bound.
	CSR       string           `json:"csr"`
	Hardware  fleet.Hardware   `json:"hardware"`
	Inventory *fleet.Inventory `json:"inventory"`
	// TPMProof is the secret of a challenge that the machine's TPM answered.
	TPMProof []byte `json:"tpmProof"`
}

// certificateAnswer is a certificate with what it belongs to.
type certificateAnswer struct {
	NodeID     string `json:"nodeId"`
	Generation int64  `json:"generation"`
	// Certificate is a PEM chain.
	Certificate string     `json:"certificate"`
	NotAfter    fleet.Time `json:"notAfter"`
}

func noJoins() error {
	return fleet.Errorf(fleet.CodeUnsupported, "no-node-ca", "this gateway has no CA for nodes, so no machine can join it")
}

// join lets a machine become a node.
func (g *Gateway) join(w http.ResponseWriter, r *http.Request) {
	if g.cfg.Nodes == nil {
		g.answerError(w, r, noJoins())
		return
	}
	var in joinRequest
	if err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(joinWithin)); err != nil {
		g.answerError(w, r, fmt.Errorf("bound the reading of a join: %w", err))
		return
	}
	if err := readJSON(w, r, joinBody, &in); err != nil {
		g.answerError(w, r, err)
		return
	}
	select {
	case g.joining <- struct{}{}:
		defer func() { <-g.joining }()
	default:
		g.answerError(w, r, &fleet.Error{Code: fleet.CodeUnavailable, Reason: "busy", Detail: "many machines join now; try again", RetryAfter: 2 * time.Second})
		return
	}
	out, err := g.grantJoin(r.Context(), in)
	if err != nil {
		g.log.InfoContext(r.Context(), "join refused", "from", clientOf(r), "code", fleet.CodeOf(err), "reason", fleet.ReasonOf(err))
		g.answerError(w, r, err)
		return
	}
	concerning(r.Context(), out.NodeID, "")
	g.log.InfoContext(r.Context(), "machine joined", "node", out.NodeID, "generation", out.Generation, "from", clientOf(r))
	answerJSON(w, out)
}

func (g *Gateway) grantJoin(ctx context.Context, in joinRequest) (certificateAnswer, error) {
	csr, err := identity.ParseCSR([]byte(in.CSR))
	if err != nil {
		return certificateAnswer{}, fleet.Invalid("csr", err.Error())
	}
	hash, err := identity.KeyHash(csr.PublicKey)
	if err != nil {
		return certificateAnswer{}, err
	}
	serial, err := identity.NewSerial()
	if err != nil {
		return certificateAnswer{}, err
	}
	in.Hardware = cleanHardware(in.Hardware)
	granted, err := g.store.Join(ctx, store.JoinIn{Token: in.Token, KeyHash: hash, Serial: serial, Hardware: in.Hardware, Inventory: in.Inventory, Proof: in.TPMProof})
	if err != nil {
		return certificateAnswer{}, err
	}
	return g.sign(csr.PublicKey, serial, granted)
}

// cleanHardware bounds what a machine says of itself.
func cleanHardware(h fleet.Hardware) fleet.Hardware {
	h.UUID, h.Serial, h.Vendor = fleet.Text(h.UUID, 64), fleet.Text(h.Serial, 256), fleet.Text(h.Vendor, 256)
	h.MACs = fleet.UniversalMACs(h.MACs[:min(len(h.MACs), 256)])
	return h
}

func (g *Gateway) sign(public any, serial string, granted store.Granted) (certificateAnswer, error) {
	chain, err := g.cfg.Nodes.Issue(public, identity.Grant{NodeID: granted.NodeID, Generation: granted.Generation, Serial: serial, At: granted.At, NotAfter: granted.NotAfter})
	if err != nil {
		// Not spent: the same machine asks again, and is granted the same.
		g.log.Warn("certificate not signed", "node", granted.NodeID, "error", err)
		return certificateAnswer{}, err
	}
	return certificateAnswer{NodeID: granted.NodeID, Generation: granted.Generation, Certificate: string(chain), NotAfter: fleet.At(granted.NotAfter)}, nil
}

// shown reads the client certificate of a request; the database judges it.
func (g *Gateway) shown(r *http.Request) (store.ShownCert, error) {
	if g.cfg.Nodes == nil {
		return store.ShownCert{}, noJoins()
	}
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return store.ShownCert{}, fleet.Errorf(fleet.CodeUnauthenticated, store.ReasonCertificate, "a node's certificate is needed")
	}
	c, err := g.cfg.Nodes.Read(r.TLS.PeerCertificates)
	if err != nil {
		g.log.InfoContext(r.Context(), "certificate refused", "from", clientOf(r), "error", err)
		return store.ShownCert{}, fleet.Errorf(fleet.CodeUnauthenticated, store.ReasonCertificate, "the certificate is no node's of ours")
	}
	return store.ShownCert{NodeID: c.NodeID, Generation: c.Generation, Serial: c.Serial, KeyHash: c.KeyHash, NotAfter: c.NotAfter}, nil
}

// renew follows a certificate by another of the same key.
func (g *Gateway) renew(w http.ResponseWriter, r *http.Request) {
	out, err := g.grantRenewal(w, r)
	if err != nil {
		g.answerError(w, r, err)
		return
	}
	concerning(r.Context(), out.NodeID, "")
	g.log.InfoContext(r.Context(), "certificate renewed", "node", out.NodeID, "generation", out.Generation)
	answerJSON(w, out)
}

func (g *Gateway) grantRenewal(w http.ResponseWriter, r *http.Request) (certificateAnswer, error) {
	shown, err := g.shown(r)
	if err != nil {
		return certificateAnswer{}, err
	}
	var in struct {
		CSR      string `json:"csr"`
		TPMProof []byte `json:"tpmProof"`
	}
	if err := readJSON(w, r, smallBody, &in); err != nil {
		return certificateAnswer{}, err
	}
	csr, err := identity.ParseCSR([]byte(in.CSR))
	if err != nil {
		return certificateAnswer{}, fleet.Invalid("csr", err.Error())
	}
	hash, err := identity.KeyHash(csr.PublicKey)
	if err != nil {
		return certificateAnswer{}, err
	}
	serial, err := identity.NewSerial()
	if err != nil {
		return certificateAnswer{}, err
	}
	granted, err := g.store.Renew(r.Context(), shown, hash, serial, in.TPMProof)
	if err != nil {
		return certificateAnswer{}, err
	}
	return g.sign(csr.PublicKey, serial, granted)
}
