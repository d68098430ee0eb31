-- +goose Up

-- The last event that retention removed: a cursor before it has a gap.
ALTER TABLE cluster_epoch ADD COLUMN forgotten_tx bigint NOT NULL DEFAULT 0;
ALTER TABLE cluster_epoch ADD COLUMN forgotten_seq bigint NOT NULL DEFAULT 0;

-- What belongs to an operation goes with it when it is old. Erase records are
-- not among it: they outlive the node.
ALTER TABLE operation_secrets DROP CONSTRAINT operation_secrets_operation_id_fkey,
    ADD CONSTRAINT operation_secrets_operation_id_fkey FOREIGN KEY (operation_id) REFERENCES operations ON DELETE CASCADE;
ALTER TABLE deploy_tokens DROP CONSTRAINT deploy_tokens_operation_id_fkey,
    ADD CONSTRAINT deploy_tokens_operation_id_fkey FOREIGN KEY (operation_id) REFERENCES operations ON DELETE CASCADE;
ALTER TABLE boots DROP CONSTRAINT boots_operation_id_fkey,
    ADD CONSTRAINT boots_operation_id_fkey FOREIGN KEY (operation_id) REFERENCES operations ON DELETE CASCADE;
ALTER TABLE reports DROP CONSTRAINT reports_operation_id_fkey,
    ADD CONSTRAINT reports_operation_id_fkey FOREIGN KEY (operation_id) REFERENCES operations ON DELETE CASCADE;
ALTER TABLE commands DROP CONSTRAINT commands_operation_id_fkey,
    ADD CONSTRAINT commands_operation_id_fkey FOREIGN KEY (operation_id) REFERENCES operations ON DELETE CASCADE;
ALTER TABLE commands DROP CONSTRAINT commands_boot_id_fkey,
    ADD CONSTRAINT commands_boot_id_fkey FOREIGN KEY (boot_id) REFERENCES boots ON DELETE CASCADE;
CREATE INDEX operations_ended ON operations (ended_at, id) WHERE ended_at IS NOT NULL;
CREATE INDEX reports_of_operation ON reports (operation_id);
CREATE INDEX commands_of_operation ON commands (operation_id);
CREATE INDEX commands_of_boot ON commands (boot_id) WHERE boot_id IS NOT NULL;

-- +goose Down
SELECT 'forward only';
