-- +goose Up

-- What a BMC shows in place of what was recorded of it, for a person to compare
-- and accept: observations, null while all is as recorded.
ALTER TABLE bmcs ADD COLUMN tls_shown text;
ALTER TABLE bmcs ADD COLUMN identity_shown jsonb;             -- fleet.BMCIdentity
