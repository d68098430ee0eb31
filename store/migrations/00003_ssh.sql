-- +goose Up

-- Break-glass SSH (spec identity.md, "SSH certificates").

-- A CA that was distrusted stays on record, so that a process that still holds
-- its key cannot bring it back.
ALTER TABLE ssh_cas ADD COLUMN distrusted_at timestamptz;

-- The version of the CAs and accounts together: a NodeSpec made of an older one
-- is made anew.
CREATE TABLE ssh_config (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    version bigint NOT NULL DEFAULT 0
);
INSERT INTO ssh_config DEFAULT VALUES;
ALTER TABLE node_specs ADD COLUMN ssh_version bigint NOT NULL DEFAULT 0;
-- The greatest serial of a certificate that has ended, as the spec says it.
ALTER TABLE node_specs ADD COLUMN ssh_expired numeric(20) NOT NULL DEFAULT 0;

-- A tenant lists what it issued itself; the clean-up goes by the end.
DROP INDEX ssh_certs_of_node;
CREATE INDEX ssh_certs_of_tenant ON ssh_certs (node_id, tenant_id, created_at DESC, serial DESC);
CREATE INDEX ssh_certs_by_end ON ssh_certs (valid_before);
-- A certificate without a principal would be good for anybody.
ALTER TABLE ssh_certs ADD CONSTRAINT ssh_certs_principal CHECK (principal ~ '^[a-z_][a-z0-9_-]{0,31}@node_[0-9a-z]+$');

-- +goose Down
SELECT 'forward only';
