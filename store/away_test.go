package store_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/bettercompute/compute/store"
)

// Each way in which a Postgres that goes away shows is told from an answer.
func TestAway(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"reset":           {&net.OpError{Op: "read", Err: syscall.ECONNRESET}, true},
		"broken pipe":     {&net.OpError{Op: "write", Err: syscall.EPIPE}, true},
		"cut off":         {io.ErrUnexpectedEOF, true},
		"closed before":   {pgconn.ErrConnClosed, true},
		"shutting down":   {&pgconn.PgError{Code: "57P01"}, true},
		"starting":        {&pgconn.PgError{Code: "57P03"}, true},
		"stood still":     {&pgconn.PgError{Code: "25P03"}, true},
		"no connection":   {&pgconn.PgError{Code: "53300"}, true},
		"unique":          {&pgconn.PgError{Code: "23505"}, false},
		"statement ended": {&pgconn.PgError{Code: "57014"}, false},
		"no rows":         {pgx.ErrNoRows, false},
		"another":         {errors.New("another"), false},
		"none":            {nil, false},
	} {
		err := c.err
		if err != nil {
			err = fmt.Errorf("while something was done: %w", err)
		}
		if got := store.Away(err); got != c.want {
			t.Errorf("%s: away = %v, want %v", name, got, c.want)
		}
	}
}
