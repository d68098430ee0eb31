-- +goose Up

-- Open challenges of TPMs (spec identity.md): a secret that only the TPM of an
-- endorsement key can read, good once and for what it was asked for.
CREATE TABLE tpm_challenges (
    secret_hash bytea PRIMARY KEY,                     -- SHA-256 of the secret
    key_hash    bytea NOT NULL,                        -- the key of the certificate request
    asked_by    bytea NOT NULL,                        -- hash of the token of a join, or of the node that renews
    ek          text NOT NULL,                         -- the endorsement key, as in machine_claims
    expires_at  timestamptz NOT NULL
);
CREATE INDEX tpm_challenges_by_end ON tpm_challenges (expires_at);

-- +goose Down
SELECT 'forward only';
