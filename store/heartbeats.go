package store

import "context"

// BeatDispatcher is the kind of heartbeat of processes that deliver to Temporal.
// Its detail holds temporal: ok or away.
const BeatDispatcher = "dispatcher"

// Beat records that a process lives.
func (s *Store) Beat(ctx context.Context, process, kind string, detail map[string]any) error {
	_, err := s.pool.Exec(ctx, `INSERT INTO heartbeats (process, kind, detail) VALUES ($1, $2, $3)
		ON CONFLICT (process) DO UPDATE SET at = now(), kind = EXCLUDED.kind, detail = EXCLUDED.detail`, process, kind, detail)
	return wrapDoing(err, "write the heartbeat of "+process)
}
