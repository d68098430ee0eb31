package store_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/bettercompute/compute/store/storetest"
)

// readsAll are statements that read a table that grows from end to end, with why
// they may: by a part of the text.
var readsAll = map[string]string{
	"WITH node_want AS":                "the comparison of the projection is of all of it, by a command",
	"DELETE FROM node_visibility v":    "the projection is made anew by a command",
	"FROM events_default":              "holds the few rows that no partition was there for",
	"FROM audit_default":               "holds the few rows that no partition was there for",
	"password FROM bmcs WHERE":         "all that is sealed is sealed anew, by a command",
	"secrets FROM commands WHERE":      "all that is sealed is sealed anew, by a command",
	"FROM ssh_certs c JOIN nodes n ON": "begins at the live certificates, which are few, where there are any",
	"FROM sessions s JOIN nodes n":     "begins at the silent sessions, where there are any",
	"EXISTS (SELECT FROM joined_hardw": "one of two plans that are kept for the moment of the look-up",
}

// Every statement of the program, found in its source, has an index for what it
// looks up in a table that grows: a new one that reads such a table from end to
// end is noticed without anybody calling it. TestPlans looks at what the planner
// makes of them on a fleet of ten thousand nodes.
func TestStatementsUseIndexes(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), storetest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for _, setting := range []string{"plan_cache_mode = force_generic_plan", "enable_seqscan = off", "enable_hashjoin = off", "enable_mergejoin = off"} {
		if _, err := conn.Exec(t.Context(), "SET "+setting); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := conn.Query(t.Context(), `SELECT indexrelid::regclass::text FROM pg_index WHERE indpred IS NOT NULL`)
	if err != nil {
		t.Fatal(err)
	}
	partial, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	explained := 0
	for i, st := range readSource(t).statements() {
		sql := numbered(st.text)
		verb, _, _ := strings.Cut(strings.TrimSpace(strings.ToUpper(sql)), " ")
		if !slices.Contains([]string{"SELECT", "WITH", "INSERT", "UPDATE", "DELETE", "\nWITH"}, strings.TrimRight(verb, "\n\t(")) {
			continue
		}
		name := fmt.Sprintf("s%d", i)
		described, err := conn.Prepare(t.Context(), name, sql)
		if err != nil {
			continue // TestStatementsPrepare says so
		}
		nulls := strings.TrimSuffix(strings.Repeat("NULL,", len(described.ParamOIDs)), ",")
		if nulls != "" {
			nulls = "(" + nulls + ")"
		}
		var raw []byte
		if err := conn.QueryRow(t.Context(), "EXPLAIN (FORMAT JSON) EXECUTE "+name+nulls, pgx.QueryExecModeSimpleProtocol).Scan(&raw); err != nil {
			t.Errorf("%s: explain: %v", st.at, err)
			continue
		}
		explained++
		var plans []struct{ Plan planNode }
		if err := json.Unmarshal(raw, &plans); err != nil {
			t.Fatal(err)
		}
		var scans []string
		plans[0].Plan.walk(func(p planNode) {
			table, _, _ := strings.Cut(p.Relation, "_p2")
			if slices.Contains(storetest.BigTables, table) && !p.looksUp(partial) {
				scans = append(scans, strings.TrimSpace(p.Relation+" "+p.Index))
			}
		})
		may := false
		for part := range readsAll {
			may = may || strings.Contains(sql, part)
		}
		if len(scans) > 0 && !may {
			t.Errorf("%s reads %v from end to end:\n%s", st.at, scans, sql)
		}
	}
	if explained < 200 {
		t.Errorf("only %d statements were explained", explained)
	}
}

// planNode is a node of EXPLAIN's answer.
type planNode struct {
	Type     string     `json:"Node Type"`
	Relation string     `json:"Relation Name"`
	Index    string     `json:"Index Name"`
	Cond     string     `json:"Index Cond"`
	TID      string     `json:"TID Cond"`
	Plans    []planNode `json:"Plans"`
}

// looksUp says whether a node reads of its table what an index finds, or writes.
func (p planNode) looksUp(partial []string) bool {
	found := func(p planNode) bool { return p.Cond != "" || p.TID != "" || slices.Contains(partial, p.Index) }
	switch p.Type {
	case "Seq Scan", "Index Scan", "Index Only Scan", "Tid Scan":
		return found(p)
	case "Bitmap Heap Scan":
		byIndex := false
		p.walk(func(c planNode) { byIndex = byIndex || c.Type == "Bitmap Index Scan" && found(c) })
		return byIndex
	}
	return true
}

func (p planNode) walk(visit func(planNode)) {
	visit(p)
	for _, child := range p.Plans {
		child.walk(visit)
	}
}
