-- +goose Up

-- The cluster's epoch (spec system.md, "The sweep"; api.md, "Events"). One row.
-- base is added to the transaction id in event cursors and is raised whenever
-- the cluster's system identifier or timeline changed, so that a cursor handed
-- out before a restore never names a later event.
CREATE TABLE cluster_epoch (
    one               boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch             bigint  NOT NULL,
    base              bigint  NOT NULL,
    system_identifier text    NOT NULL,
    timeline          bigint  NOT NULL,
    recovery_pending  boolean NOT NULL DEFAULT false,
    recovery_reason   text,
    changed_at        timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE tenants (
    id         text PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE sites (
    id         text PRIMARY KEY,
    tenant_id  text NOT NULL REFERENCES tenants,
    name       text NOT NULL,
    spec       jsonb NOT NULL,          -- fleet.SiteSpec
    version    bigint NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT sites_name_unique UNIQUE (tenant_id, name)
);

CREATE TABLE pools (
    id            text PRIMARY KEY,
    tenant_id     text NOT NULL REFERENCES tenants,   -- the owner
    site_id       text NOT NULL REFERENCES sites,
    name          text NOT NULL,
    gpu_model     text NOT NULL,
    gpus_per_node int,
    sharing_mode  text NOT NULL DEFAULT 'exclusive',
    policy        jsonb NOT NULL DEFAULT '{}',         -- fleet.PoolPolicy
    state         text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'archived')),
    version       bigint NOT NULL DEFAULT 1,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX pools_name_unique ON pools (tenant_id, name) WHERE state = 'active';

CREATE TABLE pool_offers (
    pool_id    text NOT NULL REFERENCES pools,
    tenant_id  text NOT NULL REFERENCES tenants,
    quota_gpus int  NOT NULL CHECK (quota_gpus >= 0),
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pool_id, tenant_id)
);

CREATE TABLE nodes (
    id                  text PRIMARY KEY,
    tenant_id           text NOT NULL REFERENCES tenants,
    site_id             text NOT NULL REFERENCES sites,
    pool_id             text REFERENCES pools,
    name                text,
    provision_state     text NOT NULL,
    failed              jsonb,                         -- fleet.Failure while failed
    cordoned            boolean NOT NULL DEFAULT false,
    cordon_reason       text,
    no_schedule_reasons text[] NOT NULL DEFAULT '{}',
    labels              jsonb NOT NULL DEFAULT '{}',   -- operator, inventory/ and system/ labels
    identity_generation bigint NOT NULL DEFAULT 0,
    guarded             boolean NOT NULL DEFAULT false,
    hold                jsonb,                         -- fleet.Hold
    provision_op        text,                          -- fence: the live or parked operation
    drain_op            text,                          -- fence of the live drain
    boot_mac            text,                          -- lower case
    maybe_in_use        boolean NOT NULL DEFAULT false,
    erase_owed_since    timestamptz,
    image               jsonb,                         -- fleet.ImageView
    whole_image         boolean NOT NULL DEFAULT false,
    skipped_disks       jsonb NOT NULL DEFAULT '[]',
    version             bigint NOT NULL DEFAULT 1,
    created_at          timestamptz NOT NULL DEFAULT now(),
    updated_at          timestamptz NOT NULL DEFAULT now(),
    deleted_at          timestamptz,
    seen_by             text[] NOT NULL DEFAULT '{}',  -- of a tombstone: tenants that saw the node
    CHECK ((provision_state = 'failed') = (failed IS NOT NULL))
);
CREATE UNIQUE INDEX nodes_name_unique ON nodes (site_id, name) WHERE name IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX nodes_by_tenant ON nodes (tenant_id, id) WHERE deleted_at IS NULL;
CREATE INDEX nodes_by_pool ON nodes (pool_id, id) WHERE deleted_at IS NULL;
CREATE INDEX nodes_by_site ON nodes (site_id, id) WHERE deleted_at IS NULL;
CREATE INDEX nodes_by_state ON nodes (tenant_id, provision_state, id) WHERE deleted_at IS NULL;
CREATE INDEX nodes_by_failed_from ON nodes (tenant_id, (failed->>'from'), id) WHERE failed IS NOT NULL;
CREATE INDEX nodes_by_boot_mac ON nodes (boot_mac) WHERE boot_mac IS NOT NULL;
CREATE INDEX nodes_by_labels ON nodes USING gin (labels jsonb_path_ops) WHERE deleted_at IS NULL;

-- The authorization projection: which tenant sees which node. A node's own
-- tenant sees it by node; a pool's owner and those it is offered to by pool.
CREATE TABLE node_visibility (
    tenant_id text NOT NULL REFERENCES tenants,
    node_id   text NOT NULL REFERENCES nodes,
    PRIMARY KEY (tenant_id, node_id)
);
CREATE TABLE pool_visibility (
    tenant_id text NOT NULL REFERENCES tenants,
    pool_id   text NOT NULL REFERENCES pools,
    PRIMARY KEY (tenant_id, pool_id)
);

-- Observations about a node; they do not raise its version.
CREATE TABLE conditions (
    node_id text NOT NULL REFERENCES nodes,
    type    text NOT NULL,
    status  text NOT NULL CHECK (status IN ('True', 'False', 'Unknown')),
    reason  text NOT NULL DEFAULT '',
    message text NOT NULL DEFAULT '',
    since   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (node_id, type)
);
CREATE TABLE sessions (
    node_id         text PRIMARY KEY REFERENCES nodes,
    epoch           bigint NOT NULL DEFAULT 0,
    gateway         text NOT NULL,
    connected_at    timestamptz NOT NULL,
    last_seen_at    timestamptz NOT NULL,
    disconnected_at timestamptz
);
CREATE TABLE inventories (
    node_id      text PRIMARY KEY REFERENCES nodes,
    doc          jsonb NOT NULL,                       -- fleet.Inventory
    serial       text,
    macs         text[] NOT NULL DEFAULT '{}',         -- lower case
    inspected_at timestamptz NOT NULL
);
CREATE INDEX inventories_serial ON inventories (serial);
CREATE INDEX inventories_macs ON inventories USING gin (macs);

-- One row a bookable device. Identities are joined by serial, else PCI
-- address, else UUID.
CREATE TABLE devices (
    id          text PRIMARY KEY,
    node_id     text NOT NULL REFERENCES nodes,
    kind        text NOT NULL DEFAULT 'gpu',
    model       text NOT NULL,
    serial      text,
    uuid        text,
    pci_address text,
    slot        text,
    present     boolean NOT NULL DEFAULT true,
    created_at  timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX devices_by_node ON devices (node_id);
CREATE UNIQUE INDEX devices_serial ON devices (node_id, serial) WHERE serial IS NOT NULL;

CREATE TABLE allocations (
    id             text PRIMARY KEY,
    tenant_id      text NOT NULL REFERENCES tenants,
    pool_id        text NOT NULL REFERENCES pools,
    node_id        text REFERENCES nodes,
    holder         text NOT NULL,
    gpus           int NOT NULL,
    reservation_id text,
    state          text NOT NULL CHECK (state IN ('queued', 'active', 'released', 'expired', 'cancelled')),
    input          jsonb NOT NULL DEFAULT '{}',
    created_at     timestamptz NOT NULL DEFAULT now(),
    expires_at     timestamptz,
    ended_at       timestamptz,
    CHECK ((state = 'active') <= (node_id IS NOT NULL))
);
CREATE INDEX allocations_live ON allocations (node_id) WHERE state = 'active';
CREATE TABLE allocation_devices (
    allocation_id text NOT NULL REFERENCES allocations,
    device_id     text NOT NULL REFERENCES devices,
    live          boolean NOT NULL DEFAULT true,
    PRIMARY KEY (allocation_id, device_id)
);
-- A device is never booked twice: the invariant is this index.
CREATE UNIQUE INDEX allocation_devices_once ON allocation_devices (device_id) WHERE live;

CREATE TABLE certificates (
    serial        text PRIMARY KEY,
    node_id       text NOT NULL REFERENCES nodes,
    generation    bigint NOT NULL,
    not_after     timestamptz NOT NULL,
    revoked_at    timestamptz,
    revoke_reason text,
    created_at    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX certificates_live ON certificates (node_id) WHERE revoked_at IS NULL;

-- A node's BMC. Secrets are sealed (store/seal) with the node's id as
-- associated data.
CREATE TABLE bmcs (
    node_id          text PRIMARY KEY REFERENCES nodes,
    site_id          text NOT NULL REFERENCES sites,
    address          text NOT NULL,                    -- canonical, fleet.BMCAddress
    system           text NOT NULL DEFAULT '',         -- path of the ComputerSystem, when named or found
    system_named     boolean NOT NULL DEFAULT false,   -- whether the address that was given names it
    driver           text NOT NULL,                    -- as asked: auto, redfish, ipmi
    username         text NOT NULL,
    password         bytea,                            -- sealed; null once forgotten
    staged_password  bytea,                            -- sealed: of a rotation under way
    staged_op        text,                             -- the rotation's operation
    tls_mode         text NOT NULL,
    tls_ca           text,
    tls_fingerprint  text,
    legacy_tls       boolean NOT NULL DEFAULT false,
    cipher_suites    int[],
    cipher_suite     int,
    identity         jsonb NOT NULL DEFAULT '{}',      -- fleet.BMCIdentity as enrolled or accepted
    machine_key      text,
    capabilities     jsonb NOT NULL DEFAULT '{}',      -- fleet.Capabilities
    quirks           text[] NOT NULL DEFAULT '{}',
    reachable        boolean NOT NULL DEFAULT false,
    last_error       text,
    checked_at       timestamptz,
    power_state      text,
    power_at         timestamptz,
    next_check_at    timestamptz NOT NULL DEFAULT now(),
    check_failures   int NOT NULL DEFAULT 0,
    next_inventory_at timestamptz NOT NULL DEFAULT now()
);
-- Enrolling twice: by address at the call, by the machine itself after login.
-- A system that was found and not named is no part of the address.
CREATE UNIQUE INDEX bmcs_address_unique ON bmcs (site_id, address, (CASE WHEN system_named THEN system ELSE '' END));
CREATE INDEX bmcs_by_address ON bmcs (address);
CREATE INDEX bmcs_by_serial ON bmcs ((identity->>'serial'));
CREATE UNIQUE INDEX bmcs_machine_unique ON bmcs (site_id, machine_key) WHERE machine_key IS NOT NULL;
CREATE INDEX bmcs_due ON bmcs (next_check_at);

-- The gate: who may talk to a BMC now. slot 0 is for changes.
CREATE TABLE bmc_leases (
    node_id       text NOT NULL REFERENCES nodes,
    slot          int  NOT NULL,
    holder        text,
    token         bigint NOT NULL DEFAULT 0,
    expires_at    timestamptz NOT NULL,
    PRIMARY KEY (node_id, slot)
);
CREATE TABLE bmc_sessions (
    node_id    text PRIMARY KEY REFERENCES nodes,
    uri        text NOT NULL,
    token      bytea NOT NULL,                         -- sealed
    used_at    timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE operations (
    id              text PRIMARY KEY,
    node_id         text NOT NULL REFERENCES nodes,
    tenant_id       text NOT NULL,
    verb            text NOT NULL,
    lane            text NOT NULL CHECK (lane IN ('provision', 'drain')),
    state           text NOT NULL CHECK (state IN ('pending', 'running', 'waiting', 'failed', 'succeeded', 'aborted')),
    parked          boolean NOT NULL DEFAULT false,    -- failed with its workflow open
    abort_requested boolean NOT NULL DEFAULT false,
    input           jsonb NOT NULL DEFAULT '{}',       -- the verb's input without secrets
    return_to       text,                              -- inspect: the state to go back to
    chain           text[] NOT NULL DEFAULT '{}',      -- verbs that follow by themselves
    steps           jsonb NOT NULL DEFAULT '[]',       -- []fleet.Step
    journal         jsonb NOT NULL DEFAULT '{}',       -- step -> what was started, so that a repeat reads before it acts
    waiting_for     jsonb,
    error           jsonb,
    left_behind     text[] NOT NULL DEFAULT '{}',
    next_id         text,
    run_id          text,
    power_on        int NOT NULL DEFAULT 0,            -- number of the last power-on with a boot id
    hardware_model  text,
    evidence        jsonb,
    place           text,                              -- the place held in the site's limit: power or deploy
    place_wanted    text,                              -- the place waited for, in order of creation
    requested_by    text NOT NULL,
    reason          text,
    epoch           bigint NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    started_at      timestamptz,
    delivered_at    timestamptz,
    swept_at        timestamptz,                       -- when the sweep last asked Temporal about it
    ended_at        timestamptz,
    CHECK (NOT parked OR state = 'failed'),
    CHECK ((state IN ('succeeded', 'aborted')) <= (ended_at IS NOT NULL))
);
-- One live operation a node and lane, one parked operation a node.
CREATE UNIQUE INDEX operations_live ON operations (node_id, lane) WHERE state IN ('pending', 'running', 'waiting');
CREATE UNIQUE INDEX operations_parked ON operations (node_id) WHERE parked;
CREATE INDEX operations_by_node ON operations (node_id, created_at DESC, id DESC);
CREATE INDEX operations_by_tenant ON operations (tenant_id, created_at DESC, id DESC);
CREATE INDEX operations_open ON operations (created_at) WHERE state IN ('pending', 'running', 'waiting') OR parked;

CREATE INDEX operations_places ON operations (node_id) WHERE place IS NOT NULL OR place_wanted IS NOT NULL;

-- Secrets of an operation (userData, networkData, the query of image.url,
-- passwords on their way to a BMC), sealed; removed when it ends.
CREATE TABLE operation_secrets (
    operation_id text NOT NULL REFERENCES operations,
    name         text NOT NULL,
    sealed       bytea NOT NULL,
    PRIMARY KEY (operation_id, name)
);

-- How long steps took, for expectedEnd.
CREATE TABLE step_samples (
    verb           text NOT NULL,
    step           text NOT NULL,
    hardware_model text NOT NULL,
    seconds        double precision NOT NULL,
    at             timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX step_samples_by ON step_samples (verb, step, hardware_model, at DESC);

-- What Temporal shall be asked. Rows of one workflow id are delivered in order.
CREATE TABLE dispatch (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    workflow_id   text NOT NULL,
    kind          text NOT NULL CHECK (kind IN ('start', 'signal')),
    operation_id  text NOT NULL,
    workflow_type text,
    signal        text,
    payload       jsonb NOT NULL DEFAULT '{}',
    epoch         bigint NOT NULL,
    attempts      int NOT NULL DEFAULT 0,
    last_error    text,
    not_before    timestamptz NOT NULL DEFAULT now(),
    created_at    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX dispatch_order ON dispatch (workflow_id, id);
CREATE INDEX dispatch_due ON dispatch (not_before, id);

CREATE TABLE reconcile_wanted (
    node_id   text PRIMARY KEY REFERENCES nodes,
    wanted_at timestamptz NOT NULL DEFAULT now()
);

-- What happened. A reader sees rows below the oldest transaction still running.
CREATE TABLE events (
    tx        bigint NOT NULL,                         -- base + pg_current_xact_id()
    seq       bigint GENERATED ALWAYS AS IDENTITY,
    xid       xid8   NOT NULL DEFAULT pg_current_xact_id(),
    type      text   NOT NULL,
    node_id   text,
    tenant_id text   NOT NULL,                         -- the node's own tenant
    audience  text[] NOT NULL,                         -- tenants that saw the node before or after
    private   boolean NOT NULL DEFAULT false,          -- for the own tenant only
    actor     text   NOT NULL,
    version   bigint,
    data      jsonb  NOT NULL DEFAULT '{}',
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tx, seq, at)
) PARTITION BY RANGE (at);
CREATE TABLE events_default PARTITION OF events DEFAULT;
CREATE INDEX events_by_node ON events (node_id, tx, seq);
CREATE INDEX events_by_audience ON events USING gin (audience);

CREATE TABLE bindings (
    id         text PRIMARY KEY,
    tenant_id  text NOT NULL REFERENCES tenants,       -- in which it is given
    identity   text NOT NULL,
    role       text NOT NULL,
    on_tenant  text REFERENCES tenants,
    on_pool    text REFERENCES pools,
    on_node    text REFERENCES nodes,
    granted_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CHECK (num_nonnulls(on_tenant, on_pool, on_node) = 1),
    CONSTRAINT bindings_unique UNIQUE NULLS NOT DISTINCT (tenant_id, identity, role, on_tenant, on_pool, on_node)
);
CREATE INDEX bindings_by_identity ON bindings (identity, tenant_id);

CREATE TABLE service_tokens (
    id         text PRIMARY KEY,
    tenant_id  text NOT NULL REFERENCES tenants,
    name       text NOT NULL,
    hash       bytea NOT NULL UNIQUE,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    revoked_at timestamptz
);

CREATE TABLE audit (
    id         bigint GENERATED ALWAYS AS IDENTITY,
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    tenant_id  text NOT NULL,
    identity   text NOT NULL,
    method     text NOT NULL,
    node_id    text,
    resource   text,
    outcome    text NOT NULL,                          -- OK or the error's code
    reason     text,
    dry_run    boolean NOT NULL DEFAULT false,
    suppressed int NOT NULL DEFAULT 0,                 -- calls counted here beyond the bound
    request_id text NOT NULL,
    PRIMARY KEY (id, at)
) PARTITION BY RANGE (at);
CREATE TABLE audit_default PARTITION OF audit DEFAULT;
CREATE INDEX audit_by_tenant ON audit (tenant_id, id DESC);

CREATE TABLE idempotency_keys (
    tenant_id  text NOT NULL,
    identity   text NOT NULL,
    key        text NOT NULL,
    request    bytea NOT NULL,                         -- HMAC over method and canonical body
    status     int NOT NULL,
    answer     jsonb,                                  -- null when it held a secret
    made_id    text,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, identity, key)
);
CREATE INDEX idempotency_keys_age ON idempotency_keys (created_at);

-- One row a power-on that boots our image. The id and the token derive from
-- the operation and the number of the power-on; only the token's hash is here.
CREATE TABLE boots (
    id           text PRIMARY KEY,
    operation_id text NOT NULL REFERENCES operations,
    node_id      text NOT NULL REFERENCES nodes,
    power_on     int NOT NULL,
    token_hash   bytea NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    used_at      timestamptz,
    reused_at    timestamptz,                          -- its used token was shown again: the machine restarted by itself
    voided_at    timestamptz,
    session_hash bytea UNIQUE,                         -- of the machine that called in
    last_seen_at timestamptz,
    UNIQUE (operation_id, power_on)
);
CREATE TABLE reports (
    id           text PRIMARY KEY,                     -- the one-time part of the report URL
    operation_id text NOT NULL REFERENCES operations,
    node_id      text NOT NULL REFERENCES nodes,
    created_at   timestamptz NOT NULL DEFAULT now(),
    used_at      timestamptz,
    data         jsonb
);
-- Commands to a machine: delivered at least once, run at most once by id.
CREATE TABLE commands (
    id           text PRIMARY KEY,
    node_id      text NOT NULL REFERENCES nodes,
    operation_id text REFERENCES operations,
    boot_id      text REFERENCES boots,
    type         text NOT NULL,
    args         jsonb NOT NULL DEFAULT '{}',          -- without secrets
    secrets      bytea,                                -- sealed JSON merged into args at delivery
    state        text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'delivered', 'succeeded', 'failed', 'cancelled', 'expired')),
    percent      int,
    detail       text,
    result       jsonb,
    created_at   timestamptz NOT NULL DEFAULT now(),
    delivered_at timestamptz,
    progress_at  timestamptz,
    ended_at     timestamptz,
    expires_at   timestamptz NOT NULL
);
CREATE INDEX commands_pending ON commands (boot_id, created_at) WHERE state IN ('pending', 'delivered');

-- What was erased, by whom; outlives the node.
CREATE TABLE erase_records (
    id           text PRIMARY KEY,
    node_id      text NOT NULL,
    operation_id text NOT NULL,
    tenant_id    text NOT NULL,
    disk_serial  text NOT NULL,
    method       text NOT NULL,                        -- metadata, full, skipped
    result       text NOT NULL,
    detail       text,
    actor        text NOT NULL,
    at           timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX erase_records_by_node ON erase_records (node_id, at);

-- One row a process: the dispatcher's heartbeat and what /readyz shows.
CREATE TABLE heartbeats (
    process      text PRIMARY KEY,
    kind         text NOT NULL,
    at           timestamptz NOT NULL DEFAULT now(),
    detail       jsonb NOT NULL DEFAULT '{}'
);

-- Sweeps that one process does at a time: when each began last, and up to which
-- moment the listing of Temporal's workflows was read.
CREATE TABLE sweeps (
    name  text PRIMARY KEY,
    begun timestamptz NOT NULL DEFAULT '-infinity',
    upto  timestamptz
);

-- Workflows that Temporal knows and Postgres does not: found by the sweep after
-- a restore, judged by compute recover.
CREATE TABLE unknown_workflows (
    workflow_id   text PRIMARY KEY,
    workflow_type text NOT NULL,
    node_id       text,
    open          boolean NOT NULL,
    found_at      timestamptz NOT NULL DEFAULT now(),
    judged_at     timestamptz
);

-- +goose Down
SELECT 'forward only';
