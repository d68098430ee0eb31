package api

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/bettercompute/compute/fleet"
)

// pager is a page of a list: how many items, after which key. Its cursors are
// the last item's key and a tag of what is listed, so that a cursor of another
// list or filter is noticed.
type pager struct {
	limit      int
	after, tag string
}

// newPager reads a page of a list. filters is the input without its page. valid
// checks the key that a cursor holds.
func newPager(list string, p fleet.PageIn, filters any, valid func(key string) bool) (pager, error) {
	b, err := json.Marshal(filters)
	if err != nil {
		return pager{}, fmt.Errorf("read the filters of %s: %w", list, err)
	}
	sum := sha256.Sum256(append([]byte(list+"\x00"), b...))
	pg := pager{tag: hex.EncodeToString(sum[:6])}
	if p.Limit != nil {
		pg.limit = *p.Limit
	}
	if p.Cursor == nil {
		return pg, nil
	}
	i := strings.LastIndexByte(*p.Cursor, '.')
	if i < 0 || (*p.Cursor)[i+1:] != pg.tag || !valid((*p.Cursor)[:i]) {
		return pager{}, fleet.Invalid("cursor", "nextCursor of the page before, of the same list with the same filters")
	}
	pg.after = (*p.Cursor)[:i]
	return pg, nil
}

// idCursor accepts a key that is an id of a pattern.
func idCursor(pattern string) func(string) bool {
	return func(key string) bool { return fleet.MatchPattern(pattern, key) }
}

// cut takes the item too many that a query read to see whether there is more,
// and returns the next cursor.
func cut[T any](pg pager, list []T, key func(T) string) ([]T, string) {
	if list == nil {
		list = []T{}
	}
	if len(list) <= pg.limit {
		return list, ""
	}
	return list[:pg.limit], key(list[pg.limit-1]) + "." + pg.tag
}

// paged makes the check of an input from the reader of its page.
func paged[In any](read func(In) (pager, error)) func(In) error {
	return func(in In) error {
		_, err := read(in)
		return err
	}
}
