-- +goose Up

-- Since when an operation's workflow cannot go on, shown beside what the
-- operation waits for (fleet.WaitingFor).
ALTER TABLE operations ADD COLUMN failing jsonb;

-- +goose Down
SELECT 'forward only';
