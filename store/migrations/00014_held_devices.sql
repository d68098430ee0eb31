-- +goose Up

-- What an allocation gives back is found by it; who had a node, by the node.
CREATE INDEX devices_held ON devices (allocation_id) WHERE allocation_id IS NOT NULL;
CREATE INDEX allocations_by_node ON allocations (node_id, id) WHERE node_id IS NOT NULL;

-- +goose Down
SELECT 'forward only';
