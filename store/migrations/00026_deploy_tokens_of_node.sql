-- +goose Up

-- A node's deploy tokens are ended when its identity is revoked, used when its
-- machine joins and removed with it: none of that reads those of the whole fleet.
CREATE INDEX deploy_tokens_of_node ON deploy_tokens (node_id);

-- +goose Down
SELECT 'forward only';
