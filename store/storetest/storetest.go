// Package storetest gives each test a migrated database of its own on a real
// Postgres: a template is migrated once and cloned per test.
package storetest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/bettercompute/compute/localstack"
	"github.com/bettercompute/compute/store"
)

// prepared is the cluster and the template of this test process.
type prepared struct {
	admin    *pgxpool.Pool
	url      string
	template string
}

var prepare = sync.OnceValues(func() (*prepared, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	base, err := localstack.SharedPostgres(ctx)
	if err != nil {
		return nil, fmt.Errorf("shared test cluster: %w", err)
	}
	admin, err := pgxpool.New(context.Background(), base+"?pool_max_conns=2")
	if err != nil {
		return nil, fmt.Errorf("connect to the test cluster: %w", err)
	}
	p := &prepared{admin: admin, url: base, template: name("template")}
	if _, err := admin.Exec(ctx, "CREATE DATABASE "+p.template); err != nil {
		return nil, fmt.Errorf("create the template database: %w", err)
	}
	if err := store.Migrate(ctx, WithDatabase(base, p.template)); err != nil {
		return nil, fmt.Errorf("migrate the template database: %w", err)
	}
	return p, nil
})

func name(prefix string) string {
	b := make([]byte, 8)
	if _, err := rand.Read(b); err != nil {
		panic(err)
	}
	return prefix + "_" + hex.EncodeToString(b)
}

// WithDatabase returns a connection URL that names another database.
func WithDatabase(base, database string) string {
	u, err := url.Parse(base)
	if err != nil {
		panic(fmt.Sprintf("storetest: connection URL: %v", err))
	}
	u.Path = "/" + database
	return u.String()
}

// URL returns the connection URL of a fresh migrated database, dropped when
// the test ends.
func URL(t testing.TB) string {
	t.Helper()
	p, err := prepare()
	if err != nil {
		t.Fatal(err)
	}
	db := name("test")
	if _, err := p.admin.Exec(context.Background(), "CREATE DATABASE "+pgx.Identifier{db}.Sanitize()+" TEMPLATE "+p.template); err != nil {
		t.Fatalf("clone the template database: %v", err)
	}
	t.Cleanup(func() {
		if _, err := p.admin.Exec(context.Background(), "DROP DATABASE "+db+" WITH (FORCE)"); err != nil {
			t.Errorf("drop the test database: %v", err)
		}
	})
	return WithDatabase(p.url, db)
}

// New returns a pool on a fresh migrated database; both end with the test.
func New(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), URL(t))
	if err != nil {
		t.Fatalf("connect to the test database: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// Cluster returns a pool on a migrated database of a cluster of the test's own,
// for tests that hold a transaction open or kill the server: the events'
// horizon is the oldest transaction of a whole cluster.
func Cluster(t testing.TB) (*pgxpool.Pool, *localstack.Postgres) {
	t.Helper()
	ctx := context.Background()
	dir := t.TempDir()
	t.Cleanup(func() {
		if err := localstack.RemoveCluster(ctx, dir); err != nil {
			t.Error(err)
		}
	})
	pg, err := localstack.StartPostgres(ctx, localstack.PostgresOptions{Dir: dir, Throwaway: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Migrate(ctx, pg.URL); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(ctx, pg.URL)
	if err != nil {
		t.Fatalf("connect to the test cluster: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool, pg
}

// Again returns another pool on the database of a pool, as another process has.
func Again(t testing.TB, p *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.NewWithConfig(context.Background(), p.Config())
	if err != nil {
		t.Fatalf("connect to the test database: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}
