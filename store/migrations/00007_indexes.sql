-- +goose Up

-- Who sees a node is asked with each of its events, by the node.
CREATE INDEX node_visibility_of_node ON node_visibility (node_id);
CREATE INDEX nodes_by_name ON nodes (tenant_id, name) WHERE name IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX nodes_held ON nodes (id) WHERE hold IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX audit_by_node ON audit (node_id, id DESC) WHERE node_id IS NOT NULL;

-- +goose Down
SELECT 'forward only';
