-- +goose Up

-- Identities of machines that joined (spec identity.md).

CREATE TABLE join_tokens (
    id         text PRIMARY KEY,
    tenant_id  text NOT NULL REFERENCES tenants,
    site_id    text NOT NULL REFERENCES sites,
    pool_id    text REFERENCES pools,
    labels     jsonb NOT NULL DEFAULT '{}',
    hash       bytea NOT NULL UNIQUE,                  -- of the secret
    max_uses   int NOT NULL CHECK (max_uses > 0),
    uses       int NOT NULL DEFAULT 0 CHECK (uses <= max_uses),
    expires_at timestamptz NOT NULL,
    revoked_at timestamptz,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX join_tokens_by_tenant ON join_tokens (tenant_id, id);

-- One-time tokens by which the system that a deploy installed becomes its node.
CREATE TABLE deploy_tokens (
    operation_id text PRIMARY KEY REFERENCES operations,
    node_id      text NOT NULL REFERENCES nodes,
    hash         bytea NOT NULL UNIQUE,
    expires_at   timestamptz NOT NULL,
    used_at      timestamptz
);

-- The key of a machine is one node's, and a node has one.
CREATE TABLE node_keys (
    hash     bytea PRIMARY KEY,                        -- SHA-256 of the public key's SPKI
    node_id  text NOT NULL UNIQUE REFERENCES nodes,
    tpm      boolean NOT NULL DEFAULT false,           -- bound to a TPM: survives a revocation by an operation
    token_id text,                                     -- the join token it was bound with
    bound_at timestamptz NOT NULL DEFAULT now()
);

-- What a joined machine is known by. Two joins that race for one machine meet
-- here: uuid is canonical in one byte order, macs the whole set.
CREATE TABLE machine_claims (
    kind    text NOT NULL CHECK (kind IN ('uuid', 'macs', 'ek')),
    value   text NOT NULL,
    node_id text NOT NULL REFERENCES nodes,
    PRIMARY KEY (kind, value)
);
CREATE INDEX machine_claims_of ON machine_claims (node_id);
CREATE TABLE joined_hardware (
    node_id   text PRIMARY KEY REFERENCES nodes,
    doc       jsonb NOT NULL,                          -- fleet.Hardware
    uuid      text,                                    -- canonical, where it proves something
    macs      text[] NOT NULL DEFAULT '{}',            -- universally administered, lower case
    joined_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX joined_hardware_macs ON joined_hardware USING gin (macs);
CREATE INDEX joined_hardware_uuid ON joined_hardware (uuid);

CREATE INDEX bmcs_by_uuid ON bmcs (lower(identity->>'uuid'));

-- A certificate counts as the machine's once the machine showed it: the answer
-- to a join can be lost.
ALTER TABLE certificates ADD COLUMN key_hash bytea;
ALTER TABLE certificates ADD COLUMN used_at timestamptz;

-- One row a gateway process: since when it has served without a break. Who was
-- not heard of is lost only when there was a gateway to be heard by.
CREATE TABLE gateways (
    id    text PRIMARY KEY,
    at    timestamptz NOT NULL DEFAULT now(),
    since timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX sessions_live ON sessions (last_seen_at) WHERE disconnected_at IS NULL;

-- What an agent is to apply, and what it says it runs.
CREATE TABLE node_specs (
    node_id     text PRIMARY KEY REFERENCES nodes,
    version     bigint NOT NULL,
    doc         jsonb NOT NULL,
    changed_at  timestamptz NOT NULL DEFAULT now(),
    judged      bigint,                                -- the version it last tried
    applied     bigint,                                -- the version it runs
    applied_at  timestamptz,
    apply_error text
);

CREATE INDEX commands_of_node ON commands (node_id, created_at) WHERE boot_id IS NULL AND state IN ('pending', 'delivered');

-- The public keys of the SSH CAs in use, and the accounts that certificates are
-- issued for.
CREATE TABLE ssh_cas (
    public_key text PRIMARY KEY,                       -- authorized_keys form, without comment
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE ssh_accounts (
    account text PRIMARY KEY
);

-- SSH certificates that were issued; never the certificate itself.
CREATE TABLE ssh_certs (
    serial        numeric(20) PRIMARY KEY,             -- 64 bits, unsigned
    node_id       text NOT NULL REFERENCES nodes,
    tenant_id     text NOT NULL,                       -- that issued it
    principal     text NOT NULL,
    issued_by     text NOT NULL,
    key_hash      text NOT NULL,                       -- fingerprint of the public key
    valid_after   timestamptz NOT NULL,
    valid_before  timestamptz NOT NULL,
    revoked_at    timestamptz,
    revoked_by    text,
    revoke_reason text,
    created_at    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ssh_certs_of_node ON ssh_certs (node_id, created_at DESC, serial DESC);
CREATE INDEX ssh_certs_by_issuer ON ssh_certs (issued_by, created_at);

-- +goose Down
SELECT 'forward only';
