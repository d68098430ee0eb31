package gateway_test

import (
	"crypto/ecdsa"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/bettercompute/compute/agent"
	"github.com/bettercompute/compute/agent/tpm"
	"github.com/bettercompute/compute/agent/tpm/tpmtest"
	"github.com/bettercompute/compute/fleet"
	"github.com/bettercompute/compute/identity"
	"github.com/bettercompute/compute/store"
)

// proof has a TPM answer a challenge for a key; cert is shown instead of a
// token.
func (r *rig) proof(dev *tpm.TPM, cert *tls.Certificate, token string, key *ecdsa.PrivateKey) []byte {
	r.t.Helper()
	secret, err := dev.Prove(func(keys identity.TPMKeys) (identity.TPMCredential, error) {
		return r.challenge(cert, token, key, keys)
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return secret
}

func (r *rig) challenge(cert *tls.Certificate, token string, key *ecdsa.PrivateKey, keys identity.TPMKeys) (c identity.TPMCredential, err error) {
	status, out := r.asMachine(cert, "/node/v1/challenge", "", map[string]any{"token": token, "csr": csrOf(r.t, key), "tpm": keys})
	if status != http.StatusOK {
		return c, fmt.Errorf("challenge: %d %v", status, out)
	}
	b, err := json.Marshal(out)
	if err != nil {
		return c, err
	}
	return c, json.Unmarshal(b, &c)
}

// proofJoin joins with a proof.
func (r *rig) proofJoin(key *ecdsa.PrivateKey, uuid, token string, proof []byte) (int, map[string]any) {
	r.t.Helper()
	return r.asMachine(nil, "/node/v1/join", "", map[string]any{"token": token, "csr": csrOf(r.t, key), "hardware": map[string]any{"uuid": uuid}, "tpmProof": proof})
}

// In a site that lets no machine join by a token alone, the agent joins by its
// TPM, renews by it, and without it does neither.
func TestTPMJoinAndRenewal(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, token := r.siteOf("acme", `{}`)
	dev := &tpm.TPM{Path: tpmtest.Start(t)}
	h := &memberHost{uuid: machineNumber(41)}
	cfg := agent.JoinConfig{GatewayURL: r.GatewayURL, CAFingerprint: r.ca.Fingerprint(), Token: token, State: agent.State{Dir: t.TempDir()}, Log: r.slog(), RetryPause: 10 * time.Millisecond}
	if _, err := agent.Join(t.Context(), cfg, h); err == nil {
		t.Fatal("joined without a TPM")
	}
	cfg.TPM = dev
	id, err := agent.Join(t.Context(), cfg, h)
	if err != nil {
		t.Fatal(err)
	}
	if n := r.count(`SELECT count(*) FROM machine_claims c JOIN node_keys k USING (node_id) WHERE c.kind = 'ek' AND node_id = $1`, id.NodeID); n != 1 {
		t.Errorf("the TPM is bound %d times, want once", n)
	}
	certs := func() int { return r.count(`SELECT count(*) FROM certificates WHERE node_id = $1`, id.NodeID) }
	r.serve(cfg.State, h, func(c *agent.ServeConfig) {
		c.TPM = dev
		c.RenewAt = func(from, _ time.Time) time.Time { return from }
	})
	await(t, "a renewal", func() bool { return certs() > 1 })
}

// A node whose TPM is bound renews its certificate with a fresh proof of it, and
// with nothing less.
func TestRenewalNeedsTheTPM(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	dev, other := &tpm.TPM{Path: tpmtest.Start(t)}, &tpm.TPM{Path: tpmtest.Start(t)}
	token, key := r.joinToken(9), newKey(t)
	joinProof := r.proof(dev, nil, token, key)
	status, out := r.proofJoin(key, machineNumber(42), token, joinProof)
	if status != http.StatusOK {
		t.Fatalf("join: %d %v", status, out)
	}
	cert := certOf(t, fmt.Sprint(out["certificate"]), key)
	renew := func(proof []byte) (int, map[string]any) {
		return r.asMachine(cert, "/node/v1/renew", "", map[string]any{"csr": csrOf(t, key), "tpmProof": proof})
	}
	fresh := r.proof(dev, cert, "", key)
	for _, c := range []struct {
		name, reason string
		proof        []byte
	}{
		{"no proof", store.ReasonTPMChallenge, nil},
		{"the join's proof", store.ReasonTPMChallenge, joinProof},
		{"a proof for a join", store.ReasonTPMChallenge, r.proof(dev, nil, token, key)},
		{"another TPM's proof", fleet.ReasonKeyDiffers, r.proof(other, cert, "", key)},
		{"a fresh proof", "", fresh},
		{"a replayed proof", store.ReasonTPMChallenge, fresh},
	} {
		status, out := renew(c.proof)
		if reason, _ := out["reason"].(string); reason != c.reason || (status == http.StatusOK) != (c.reason == "") {
			t.Errorf("%s: %d %v, want reason %q", c.name, status, out, c.reason)
		}
	}
}

// What answers no open challenge of the key lets no machine in.
func TestTPMAttacks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, token := r.siteOf("acme", `{}`)
	_, second := r.siteOf("acme", `{}`)
	dev, other := &tpm.TPM{Path: tpmtest.Start(t)}, &tpm.TPM{Path: tpmtest.Start(t)}
	key, uuid := newKey(t), machineNumber(43)
	refused := func(what string, key *ecdsa.PrivateKey, token string, proof []byte) {
		t.Helper()
		if status, out := r.proofJoin(key, uuid, token, proof); status != http.StatusForbidden || out["reason"] != store.ReasonTPMChallenge {
			t.Errorf("%s: %d %v", what, status, out)
		}
	}
	refused("a guess", key, token, make([]byte, 32))
	refused("a challenge of another key", newKey(t), token, r.proof(dev, nil, token, key))
	refused("a challenge of another token", key, second, r.proof(dev, nil, token, key))

	late := r.proof(dev, nil, token, key)
	r.exec(`UPDATE tpm_challenges SET expires_at = now()`)
	refused("an expired challenge", key, token, late)

	// Another TPM cannot read what was made for this one, nor this one with
	// another's attestation key.
	var mine, theirs identity.TPMKeys
	keysOf := func(dev *tpm.TPM, keys *identity.TPMKeys) {
		r.proof(dev, nil, token, key)
		_, err := dev.Prove(func(k identity.TPMKeys) (identity.TPMCredential, error) {
			*keys = k
			return r.challenge(nil, token, key, k)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	keysOf(dev, &mine)
	keysOf(other, &theirs)
	for name, keys := range map[string]identity.TPMKeys{"another TPM": mine, "another TPM's endorsement key": {EK: mine.EK, AK: theirs.AK}, "another TPM's attestation key": {EK: theirs.EK, AK: mine.AK}} {
		if _, err := other.Prove(func(identity.TPMKeys) (identity.TPMCredential, error) { return r.challenge(nil, token, key, keys) }); err == nil {
			t.Errorf("%s: read", name)
		}
	}
	// A key that is no TPM's is not challenged.
	for name, keys := range map[string]identity.TPMKeys{"none": {}, "an attestation key as the endorsement key": {EK: mine.AK, AK: mine.AK},
		"an endorsement key as the attestation key": {EK: mine.EK, AK: mine.EK}, "more after the key": {EK: append(mine.EK[:len(mine.EK):len(mine.EK)], 0), AK: mine.AK}} {
		if _, err := r.challenge(nil, token, key, keys); err == nil {
			t.Errorf("%s: challenged", name)
		}
	}
	if _, err := r.challenge(nil, "no token", key, mine); err == nil {
		t.Error("challenged without a token")
	}

	good := r.proof(dev, nil, token, key)
	if status, out := r.proofJoin(key, uuid, token, good); status != http.StatusOK {
		t.Fatalf("the machine itself: %d %v", status, out)
	}
	refused("a replayed proof", key, token, good)
}

// With a TPM bound, the TPM is who the machine is: a key that was lost with its
// disk does not matter, and the key without the TPM does not help.
func TestTPMJoinTable(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	token, uuid, key := r.joinToken(99), machineNumber(44), newKey(t)
	dev, other := &tpm.TPM{Path: tpmtest.Start(t)}, &tpm.TPM{Path: tpmtest.Start(t)}
	_, node := r.rawJoin(key, uuid, token)
	if status, out := r.proofJoin(key, uuid, token, r.proof(dev, nil, token, key)); status != http.StatusOK || out["nodeId"] != node {
		t.Fatalf("the key, now with a TPM: %d %v", status, out)
	}
	refused := func(what string, key *ecdsa.PrivateKey, proof []byte) {
		t.Helper()
		if status, out := r.proofJoin(key, uuid, token, proof); status != http.StatusConflict || out["reason"] != fleet.ReasonKeyDiffers {
			t.Errorf("%s: %d %v, want 409 %s", what, status, out, fleet.ReasonKeyDiffers)
		}
	}
	refused("the UUID, another key, no TPM", newKey(t), nil)
	refused("the key without the TPM", key, nil)
	refused("the key with another TPM", key, r.proof(other, nil, token, key))
	changed := newKey(t)
	refused("another key and TPM", changed, r.proof(other, nil, token, changed))

	r.revoke(node)
	again := newKey(t)
	if status, out := r.proofJoin(again, uuid, token, r.proof(dev, nil, token, again)); status != http.StatusOK || out["nodeId"] != node {
		t.Errorf("the TPM with a new disk: %d %v, want node %s", status, out, node)
	}
	if n := r.count(`SELECT count(*) FROM node_keys WHERE node_id = $1`, node); n != 1 {
		t.Errorf("%d keys of the node, want one", n)
	}
}

// A release revokes the identity and unbinds no TPM: the system that is deployed
// next is the same node by it, with a key of its own, and not without it.
func TestTPMStaysBound(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	dev, uuid, key := &tpm.TPM{Path: tpmtest.Start(t)}, machineNumber(45), newKey(t)
	token, err := r.DeployToken(t.Context(), r.Op)
	if err != nil {
		t.Fatal(err)
	}
	if status, out := r.proofJoin(key, uuid, token, r.proof(dev, nil, token, key)); status != http.StatusOK || out["nodeId"] != r.Node {
		t.Fatalf("join: %d %v", status, out)
	}
	if err := r.RevokeIdentity(t.Context(), r.Op, "release"); err != nil {
		t.Fatal(err)
	}
	if keys, claims := r.count(`SELECT count(*) FROM node_keys WHERE node_id = $1`, r.Node), r.count(`SELECT count(*) FROM machine_claims WHERE kind = 'ek' AND node_id = $1`, r.Node); keys != 0 || claims != 1 {
		t.Errorf("after the release %d keys and %d TPMs are bound, want the TPM alone", keys, claims)
	}
	r.exec(`UPDATE deploy_tokens SET used_at = NULL, expires_at = now() + interval '1 hour'`) // as that of the next deploy
	next := newKey(t)
	if status, out := r.proofJoin(next, uuid, token, nil); status != http.StatusConflict || out["reason"] != fleet.ReasonKeyDiffers {
		t.Errorf("without the TPM: %d %v, want 409 %s", status, out, fleet.ReasonKeyDiffers)
	}
	if status, out := r.proofJoin(next, uuid, token, r.proof(dev, nil, token, next)); status != http.StatusOK || out["nodeId"] != r.Node {
		t.Errorf("with the TPM: %d %v, want node %s", status, out, r.Node)
	}
}

// spentFirst is a TPM whose first proof is one that the gateway took before, as
// after an answer that was lost.
type spentFirst struct {
	*tpm.TPM
	spent []byte
}

func (s *spentFirst) Prove(challenge func(identity.TPMKeys) (identity.TPMCredential, error)) ([]byte, error) {
	proof, err := s.TPM.Prove(challenge)
	if s.spent != nil {
		proof, s.spent = s.spent, nil
	}
	return proof, err
}

// An agent whose proof was taken, and whose answer was lost, asks for a fresh
// challenge by itself.
func TestLostAnswerToAProof(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, token := r.siteOf("acme", `{}`)
	dev := &spentFirst{TPM: &tpm.TPM{Path: tpmtest.Start(t)}, spent: []byte("taken before")}
	cfg := agent.JoinConfig{GatewayURL: r.GatewayURL, CAFingerprint: r.ca.Fingerprint(), Token: token, State: agent.State{Dir: t.TempDir()}, TPM: dev, Log: r.slog(), RetryPause: 10 * time.Millisecond}
	if _, err := agent.Join(t.Context(), cfg, &memberHost{uuid: machineNumber(46)}); err != nil {
		t.Fatal(err)
	}
}
