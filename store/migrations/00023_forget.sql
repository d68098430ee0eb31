-- +goose Up

-- What is removed by its end.
CREATE INDEX certificates_by_end ON certificates (not_after, serial);
CREATE INDEX commands_by_end ON commands (expires_at, id);
-- A machine that asks to join again looks for what its token came to.
CREATE INDEX certificates_of_key ON certificates (key_hash) WHERE token_id IS NOT NULL;

-- +goose Down
SELECT 'forward only';
