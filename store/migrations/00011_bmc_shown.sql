-- +goose Up

-- What a BMC shows in place of what was recorded of it, for a person to compare
-- and accept: observations, null while all is as recorded.
ALTER TABLE bmcs ADD COLUMN tls_shown text;
ALTER TABLE bmcs ADD COLUMN identity_shown jsonb;             -- fleet.BMCIdentity

-- The cipher suite that works is one of the quirks; no process reads this any
-- more, and a later migration may drop it.
COMMENT ON COLUMN bmcs.cipher_suite IS 'unused: see quirks';
