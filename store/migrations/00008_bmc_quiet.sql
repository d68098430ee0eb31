-- +goose Up

-- Until when a BMC asked to be left alone.
ALTER TABLE bmcs ADD COLUMN quiet_until timestamptz;
