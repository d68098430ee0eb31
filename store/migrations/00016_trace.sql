-- +goose Up

-- The W3C traceparent of the call that wrote the row, where it was traced.
ALTER TABLE dispatch ADD COLUMN trace text;

-- +goose Down
SELECT 'forward only';
