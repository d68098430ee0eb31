-- +goose Up

-- No process has read or written it since 00011: the cipher suite that works is
-- one of the quirks.
ALTER TABLE bmcs DROP COLUMN cipher_suite;

-- A TPM is bound by its claim (machine_claims, kind ek). Processes that are
-- still old write this; a later migration may drop it.
COMMENT ON COLUMN node_keys.tpm IS 'unused: see machine_claims';

-- +goose Down
SELECT 'forward only';
