-- +goose Up

-- The pool that a deleted node was in: who was granted something on the pool may
-- still repeat the delete.
ALTER TABLE nodes ADD COLUMN left_pool text;

-- +goose Down
SELECT 'forward only';
