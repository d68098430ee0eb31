package gateway

import (
	"net/http"

	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/identity"
	"github.com/bettercompute/compute/store"
)

// challengeRequest is what a machine says to be challenged: with a token before
// a join, with its certificate before a renewal.
type challengeRequest struct {
	Token string           `json:"token"`
	CSR   string           `json:"csr"`
	TPM   identity.TPMKeys `json:"tpm"`
}

// challenge gives a secret that only the machine's TPM can read, to be shown
// with the certificate request that it was asked for.
func (g *Gateway) challenge(w http.ResponseWriter, r *http.Request) {
	out, err := g.grantChallenge(w, r)
	if err != nil {
		g.log.InfoContext(r.Context(), "challenge refused", "from", clientOf(r), "code", fleet.CodeOf(err), "reason", fleet.ReasonOf(err))
		g.answerError(w, r, err)
		return
	}
	answerJSON(w, out)
}

func (g *Gateway) grantChallenge(w http.ResponseWriter, r *http.Request) (identity.TPMCredential, error) {
	if g.cfg.Nodes == nil {
		return identity.TPMCredential{}, noJoins()
	}
	var in challengeRequest
	if err := readJSON(w, r, smallBody, &in); err != nil {
		return identity.TPMCredential{}, err
	}
	ask := store.ChallengeIn{Token: in.Token}
	if in.Token == "" {
		shown, err := g.shown(r)
		if err != nil {
			return identity.TPMCredential{}, err
		}
		ask.Shown = &shown
	}
	csr, err := identity.ParseCSR([]byte(in.CSR))
	if err != nil {
		return identity.TPMCredential{}, fleet.Invalid("csr", err.Error())
	}
	if ask.KeyHash, err = identity.KeyHash(csr.PublicKey); err != nil {
		return identity.TPMCredential{}, err
	}
	var out identity.TPMCredential
	if out, ask.Secret, ask.EK, err = identity.NewTPMCredential(in.TPM); err != nil {
		return out, fleet.Invalid("tpm", err.Error())
	}
	return out, g.store.Challenge(r.Context(), ask)
}
