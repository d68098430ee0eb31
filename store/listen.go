package store

import (
	"context"
	"errors"
	"fmt"
)

// listen calls woken with the payload of each NOTIFY on a channel, whose name
// is a constant of ours, until the context ends or the connection breaks, which
// is an error.
func (s *Store) listen(ctx context.Context, channel string, woken func(payload string)) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", channel, err)
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "LISTEN "+channel); err != nil {
		return fmt.Errorf("listen on %s: %w", channel, err)
	}
	for {
		n, err := conn.Conn().WaitForNotification(ctx)
		if errors.Is(err, context.Canceled) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("listen on %s: %w", channel, err)
		}
		woken(n.Payload)
	}
}
