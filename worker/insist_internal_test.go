package worker

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"go.temporal.io/api/serviceerror"
)

// A worker that starts waits for a Temporal that does not answer, however long,
// and gives up on one that goes on refusing.
func TestInsist(t *testing.T) {
	t.Parallel()
	away, refused := serviceerror.NewUnavailable("away"), serviceerror.NewFailedPrecondition("no such version")
	hangs := errors.New("answers nothing")
	for name, c := range map[string]struct {
		answers func(asked int, since time.Duration) error
		ends    error
	}{
		"granted":            {func(int, time.Duration) error { return nil }, nil},
		"away for an hour":   {func(_ int, since time.Duration) error { return until(since, time.Hour, away) }, nil},
		"frozen for an hour": {func(_ int, since time.Duration) error { return until(since, time.Hour, hangs) }, nil},
		"no namespace for an hour": {func(_ int, since time.Duration) error {
			return until(since, time.Hour, serviceerror.NewNamespaceNotFound("prod"))
		}, nil},
		"refused at first": {func(asked int, _ time.Duration) error { return until(time.Duration(asked), 5, refused) }, nil},
		"refused for good": {func(int, time.Duration) error { return refused }, refused},
		"away, then refused at first": {func(_ int, since time.Duration) error {
			return errors.Join(until(since, time.Hour, away), until(since, time.Hour+time.Second, refused))
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began, asked := time.Now(), 0
				err := insist(t.Context(), &State{Log: slog.New(slog.DiscardHandler)}, func(ctx context.Context) error {
					asked++
					err := c.answers(asked, time.Since(began))
					if errors.Is(err, hangs) {
						<-ctx.Done()
						return ctx.Err()
					}
					return err
				})
				if !errors.Is(err, c.ends) {
					t.Errorf("after %s: %v, want %v", time.Since(began), err, c.ends)
				}
			})
		})
	}
}

// until is an error until a time has come.
func until(now, end time.Duration, err error) error {
	if now < end {
		return err
	}
	return nil
}
