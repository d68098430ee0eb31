-- +goose Up

-- The nodes that have not tried their newest spec: few, and asked for by every
-- gateway every two seconds.
CREATE INDEX node_specs_untried ON node_specs (node_id) WHERE version > coalesce(judged, 0);

-- +goose Down
SELECT 'forward only';
