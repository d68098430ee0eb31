package store

import (
	"context"
	"time"
)

// ServiceTokenPrefix begins every service token's secret, so that one that
// leaked is recognized.
const ServiceTokenPrefix = "bcsvc_"

// ServiceTokenByHash returns the id and end of a live service token by the
// SHA-256 of its secret; NOT_FOUND for one that is not known, has expired or
// was revoked.
func ServiceTokenByHash(ctx context.Context, q Reader, hash []byte) (id string, end time.Time, err error) {
	err = q.QueryRow(ctx, `SELECT id, expires_at FROM service_tokens WHERE hash = $1 AND revoked_at IS NULL AND expires_at > now()`, hash).Scan(&id, &end)
	if err != nil {
		return "", time.Time{}, noRows(err, "service token", "look up a service token")
	}
	return id, end, nil
}
