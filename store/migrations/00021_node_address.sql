-- +goose Up

-- The host's own address on its way to the gateway, as its agent says it: where
-- computectl ssh reaches it.
ALTER TABLE node_specs ADD COLUMN address text;

-- +goose Down
SELECT 'forward only';
