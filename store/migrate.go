package store

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the database/sql driver that goose uses
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed migrations/*.sql
var migrations embed.FS

// SchemaVersion is the newest migration this program knows: the number of the
// last of the embedded files.
var SchemaVersion = newestMigration()

func newestMigration() int64 {
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil || len(files) == 0 {
		panic("store: no migrations are embedded")
	}
	version, err := goose.NumericComponent(files[len(files)-1])
	if err != nil {
		panic("store: " + err.Error())
	}
	return version
}

// Migrate brings the database's schema up to date. Any number of processes may
// call it at once: an advisory lock lets one work. Migrations are forward only
// and safe while older processes run. It also records the cluster's epoch and
// makes the partitions to come.
func Migrate(ctx context.Context, url string) error {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	defer db.Close()
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, dir, goose.WithSessionLocker(locker))
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	for _, sql := range []string{firstEpochSQL, nextEpochSQL} {
		if _, err := db.ExecContext(ctx, sql); err != nil {
			return fmt.Errorf("record the cluster's epoch: %w", err)
		}
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	defer conn.Close(ctx)
	return keepPartitions(ctx, conn)
}

// SchemaKnown says whether the database's schema is one this program knows.
func SchemaKnown(ctx context.Context, q Reader) (bool, error) {
	var v int64
	if err := q.QueryRow(ctx, `SELECT max(version_id) FROM goose_db_version WHERE is_applied`).Scan(&v); err != nil {
		return false, fmt.Errorf("read the schema's version: %w", err)
	}
	return v >= SchemaVersion, nil
}
