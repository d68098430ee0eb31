package store

import (
	"context"
	"fmt"
	"time"
)

// HorizonAge is the age of the oldest transaction of the cluster that still
// runs and has a transaction id: events after it are held back.
func HorizonAge(ctx context.Context, q Reader) (time.Duration, error) {
	var seconds float64
	err := q.QueryRow(ctx, `SELECT coalesce(extract(epoch FROM clock_timestamp() - min(xact_start)), 0) FROM pg_stat_activity
		WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()`).Scan(&seconds)
	if err != nil {
		return 0, fmt.Errorf("read the age of the events' horizon: %w", err)
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

// DispatcherSeen is how long ago a dispatcher last said that it reaches
// Temporal; false when none ever did.
func DispatcherSeen(ctx context.Context, q Reader) (time.Duration, bool, error) {
	var seconds *float64
	err := q.QueryRow(ctx, `SELECT extract(epoch FROM now() - max(at)) FROM heartbeats WHERE kind = 'dispatcher'`).Scan(&seconds)
	if err != nil {
		return 0, false, fmt.Errorf("read the dispatcher's heartbeat: %w", err)
	}
	if seconds == nil {
		return 0, false, nil
	}
	return time.Duration(*seconds * float64(time.Second)), true, nil
}
