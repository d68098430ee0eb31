-- +goose Up

-- What the BMC alone said of the hardware when it was read last: what the sweep
-- compares with. doc can hold what the machine saw of itself, in other words.
ALTER TABLE inventories ADD COLUMN bmc_doc jsonb;
CREATE INDEX bmcs_inventory_due ON bmcs (next_inventory_at);

-- +goose Down
SELECT 'forward only';
