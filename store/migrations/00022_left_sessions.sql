-- +goose Up
-- Sessions on BMCs that no node has any more, with what it takes to end them.
CREATE TABLE left_sessions (
    id              bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    node_id         text NOT NULL REFERENCES nodes,
    site_id         text NOT NULL REFERENCES sites,
    address         text NOT NULL,
    tls_mode        text NOT NULL,
    tls_ca          text,
    tls_fingerprint text,
    legacy_tls      boolean NOT NULL,
    uri             text NOT NULL,
    token           bytea NOT NULL,                    -- sealed
    at              timestamptz NOT NULL DEFAULT now(),
    due             timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX left_sessions_due ON left_sessions (due);

-- +goose Down
SELECT 'forward only';
