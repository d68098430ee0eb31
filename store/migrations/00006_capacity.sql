-- +goose Up

-- GPUs that a tenant has set aside in a pool for a time (spec capacity.md).
CREATE TABLE reservations (
    id         text PRIMARY KEY,
    tenant_id  text NOT NULL REFERENCES tenants,
    pool_id    text NOT NULL REFERENCES pools,
    gpus       int  NOT NULL CHECK (gpus > 0),
    used       int  NOT NULL DEFAULT 0,                -- GPUs of the live allocations under it
    starts_at  timestamptz NOT NULL,
    ends_at    timestamptz NOT NULL,
    state      text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'ended', 'cancelled')),
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CHECK (starts_at < ends_at),
    CONSTRAINT reservations_held CHECK (used BETWEEN 0 AND gpus)
);
CREATE INDEX reservations_open ON reservations (pool_id, starts_at) WHERE state = 'open';
CREATE INDEX reservations_due ON reservations (ends_at) WHERE state = 'open';
CREATE INDEX reservations_by_tenant ON reservations (tenant_id, id);
CREATE INDEX reservations_by_pool ON reservations (pool_id, id);

-- A tenant's quota in a pool, cut into slots so that its allocations do not
-- wait for one another's commits. The slots' quotas add up to the offer's. What
-- is used under a reservation is not in it. over is what a forced cut of the
-- quota left above it.
CREATE TABLE quota_slots (
    pool_id   text     NOT NULL,
    tenant_id text     NOT NULL,
    slot      smallint NOT NULL,
    quota     int      NOT NULL CHECK (quota >= 0),
    used      int      NOT NULL DEFAULT 0 CHECK (used >= 0),
    over      int      NOT NULL DEFAULT 0 CHECK (over >= 0),
    PRIMARY KEY (pool_id, tenant_id, slot),
    FOREIGN KEY (pool_id, tenant_id) REFERENCES pool_offers ON DELETE CASCADE,
    CONSTRAINT quota_slots_held CHECK (used <= quota + over)
);
INSERT INTO quota_slots (pool_id, tenant_id, slot, quota) SELECT pool_id, tenant_id, 0, quota_gpus FROM pool_offers;

-- Who holds a device: a column has one value, so no device has two holders.
ALTER TABLE devices ADD COLUMN allocation_id text REFERENCES allocations;
CREATE INDEX devices_free ON devices (node_id) WHERE present AND allocation_id IS NULL;

ALTER TABLE allocations ADD COLUMN quota_slot smallint;          -- null: the owner's, or under a reservation
ALTER TABLE allocations ADD COLUMN queue_until timestamptz;      -- when a queued one gives up
ALTER TABLE allocations ADD COLUMN waits_for text CHECK (waits_for IN ('capacity', 'quota'));
ALTER TABLE allocations ADD COLUMN created_by text;
ALTER TABLE allocations ADD FOREIGN KEY (reservation_id) REFERENCES reservations;
CREATE INDEX allocations_by_tenant ON allocations (tenant_id, id);
CREATE INDEX allocations_by_pool ON allocations (pool_id, id);
CREATE INDEX allocations_held ON allocations (pool_id, tenant_id) WHERE state = 'active';
CREATE INDEX allocations_queue ON allocations (pool_id, created_at, id) WHERE state = 'queued';
CREATE INDEX allocations_queue_until ON allocations (queue_until) WHERE state = 'queued';
CREATE INDEX allocations_expiry ON allocations (expires_at) WHERE state = 'active';
CREATE INDEX allocations_reserved ON allocations (reservation_id) WHERE reservation_id IS NOT NULL AND state IN ('queued', 'active');

-- +goose Down
SELECT 'forward only';
