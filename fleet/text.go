package fleet

import (
	"strings"
	"unicode/utf8"
)

// Text cuts what a machine or a BMC says to a length, in bytes, that ends at a
// character, and drops what Postgres cannot store: NUL and what is no UTF-8.
func Text(s string, most int) string {
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "\uFFFD")
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}
