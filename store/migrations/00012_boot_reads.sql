-- +goose Up

-- When a file of the boot was read last: whether the machine boots our medium.
ALTER TABLE boots ADD COLUMN read_at timestamptz;
