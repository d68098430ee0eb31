package store

import (
	"errors"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// Away says whether an error means that Postgres did not answer: not reached,
// starting or shutting down, without a free connection, or gone in the middle,
// also because this process stood still for so long that its transaction was
// ended.
func Away(err error) bool {
	var connect *pgconn.ConnectError
	var pg *pgconn.PgError
	var broken *net.OpError // a killed server's sockets are reset
	switch {
	case err == nil:
		return false
	case errors.As(err, &pg):
		return strings.HasPrefix(pg.Code, "08") || strings.HasPrefix(pg.Code, "57P0") || pg.Code == "53300" || pg.Code == "25P03"
	case errors.As(err, &connect), errors.As(err, &broken):
		return true
	default:
		return pgconn.SafeToRetry(err) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, pgconn.ErrConnClosed)
	}
}
