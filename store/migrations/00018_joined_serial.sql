-- +goose Up

-- Each enroll asks whether the machine is a host that was adopted, by its serial
-- too.
CREATE INDEX joined_hardware_serial ON joined_hardware (lower(doc->>'serial'));

-- +goose Down
SELECT 'forward only';
