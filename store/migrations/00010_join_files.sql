-- +goose Up

-- The CA by which machines know a gateway that lets nodes join.
ALTER TABLE gateways ADD COLUMN ca_fingerprint text;
-- The token that a certificate was joined with: it is spent once the certificate
-- was used or revoked.
ALTER TABLE certificates ADD COLUMN token_id text;

-- +goose Down
SELECT 'forward only';
