package store

import (
	"strings"

	"github.com/oklog/ulid/v2"
)

// NewID makes an id of a kind: the kind, an underscore and a ULID in lower
// case. Ids made one after the other in a process sort in that order.
func NewID(kind string) string {
	return kind + "_" + strings.ToLower(ulid.Make().String())
}
