-- +goose Up

-- The W3C traceparent of what sent the command, where it was traced.
ALTER TABLE commands ADD COLUMN trace text;

-- +goose Down
SELECT 'forward only';
