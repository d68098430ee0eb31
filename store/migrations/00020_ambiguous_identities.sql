-- +goose Up

-- Nodes that one joining machine matched together, each pair both ways: what
-- tells when a node is ambiguous no more.
CREATE TABLE ambiguous_identities (
    node_id  text NOT NULL REFERENCES nodes,
    other_id text NOT NULL REFERENCES nodes,
    settled  boolean NOT NULL DEFAULT false,           -- the machine has joined since
    PRIMARY KEY (node_id, other_id)
);
CREATE INDEX ambiguous_identities_of_other ON ambiguous_identities (other_id);
-- Those that are marked already: what with is not known any more, and nothing
-- ends a mark but this table. A machine that is still ambiguous marks them anew.
INSERT INTO ambiguous_identities (node_id, other_id, settled)
SELECT node_id, node_id, true FROM conditions WHERE type = 'IdentityAmbiguous' AND status = 'True';

-- +goose Down
SELECT 'forward only';
