package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// sealedColumn is a column of sealed secrets: how its rows are named and what
// each is sealed for.
type sealedColumn struct {
	table, column string
	// key is the row's name, belongsTo what its secret is sealed for, both SQL.
	key, belongsTo string
}

// sealedColumns are all there are. Their belongsTo repeat in SQL what the
// functions beside each column say.
var sealedColumns = []sealedColumn{
	{"bmcs", "password", "node_id", "'bmc:' || node_id || ':password'"},
	{"bmcs", "staged_password", "node_id", "'bmc:' || node_id || ':password'"},
	{"bmc_sessions", "token", "node_id", "'bmc:' || node_id || ':session'"},
	{"left_sessions", "token", "id::text", "'bmc:' || node_id || ':session'"},
	{"operation_secrets", "sealed", "operation_id || '/' || name", "'operation:' || operation_id || ':' || name"},
	{"commands", "secrets", "id", "'command:' || id"},
}

// SealCheck is the state of one column of sealed secrets.
type SealCheck struct {
	Column string
	// Sealed is how many there are, Old how many an older key sealed, Lost how
	// many no key of the set opens.
	Sealed, Old, Lost int
}

// CheckSeals opens every sealed secret and, with reseal, seals anew those that
// an older key sealed.
func (s *Store) CheckSeals(ctx context.Context, reseal bool) ([]SealCheck, error) {
	var out []SealCheck
	for _, c := range sealedColumns {
		check, err := s.checkColumn(ctx, c, reseal)
		if err != nil {
			return nil, err
		}
		out = append(out, check)
	}
	return out, nil
}

func (s *Store) checkColumn(ctx context.Context, c sealedColumn, reseal bool) (SealCheck, error) {
	check := SealCheck{Column: c.table + "." + c.column}
	rows, err := s.pool.Query(ctx, fmt.Sprintf(`SELECT %s, %s, %s FROM %s WHERE %s IS NOT NULL`, c.key, c.belongsTo, c.column, c.table, c.column))
	if err != nil {
		return check, fmt.Errorf("read sealed secrets of %s: %w", check.Column, err)
	}
	type secret struct {
		key, belongsTo string
		sealed         []byte
	}
	list, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (v secret, err error) {
		return v, r.Scan(&v.key, &v.belongsTo, &v.sealed)
	})
	if err != nil {
		return check, fmt.Errorf("read sealed secrets of %s: %w", check.Column, err)
	}
	for _, v := range list {
		check.Sealed++
		plain, err := s.Seal.Open(v.sealed, v.belongsTo)
		if err != nil {
			check.Lost++
			continue
		}
		if s.Seal.SealedByPrimary(v.sealed) {
			continue
		}
		check.Old++
		if !reseal {
			continue
		}
		fresh, err := s.Seal.Seal(plain, v.belongsTo)
		if err != nil {
			return check, err
		}
		// A secret that was replaced in the meantime is left alone.
		_, err = s.pool.Exec(ctx, fmt.Sprintf(`UPDATE %s SET %s = $2 WHERE %s = $1 AND %s = $3`, c.table, c.column, c.key, c.column), v.key, fresh, v.sealed)
		if err != nil {
			return check, fmt.Errorf("seal a secret of %s anew: %w", check.Column, err)
		}
	}
	return check, nil
}
