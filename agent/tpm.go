package agent

import (
	"errors"
	"log/slog"

	"github.com/bettercompute/compute/identity"
)

// TPM is the machine's TPM as far as the control plane challenges it.
type TPM interface {
	// Prove asks for a challenge of the TPM's keys and returns the secret that
	// only this TPM could read in it.
	Prove(challenge func(identity.TPMKeys) (identity.TPMCredential, error)) ([]byte, error)
}

// reasonChallenge is the gateway's of a proof that answers no open challenge: a
// fresh one mends it. It is so after an answer that was lost.
const reasonChallenge = "tpm-challenge"

// proofTries bounds how often a fresh challenge is asked for.
const proofTries = 3

// prove has the TPM answer a challenge that ask gets of the gateway; without a
// TPM there is no proof.
//
// One that fails is told of, and proves nothing: the gateway decides whether the
// machine is let in without.
func prove(tpm TPM, log *slog.Logger, ask func(body map[string]any, credential any) error) ([]byte, error) {
	if tpm == nil {
		return nil, nil
	}
	var refused error
	proof, err := tpm.Prove(func(keys identity.TPMKeys) (c identity.TPMCredential, err error) {
		refused = ask(map[string]any{"tpm": keys}, &c)
		return c, refused
	})
	if refused != nil {
		return nil, refused
	}
	if err != nil {
		log.Warn("the TPM does not work; going on without its proof", "error", err)
		return nil, nil
	}
	return proof, nil
}

// proved does what needs a proof, again with a fresh challenge when the gateway
// does not know the proof.
func proved(do func() error) error {
	var err error
	for range proofTries {
		err = do()
		var status *statusError
		if !errors.As(err, &status) || status.Reason != reasonChallenge {
			return err
		}
	}
	return err
}
