package fleet_test

import (
	"strings"
	"testing"

	"github.com/bettercompute/compute/fleet"
)

func TestText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   string
		most int
		want string
	}{
		{"a\x00b", 10, "ab"},
		{"a\xffb", 10, "a\uFFFDb"},
		{"abc", 3, "abc"},
		{"abcd", 3, "abc"},
		{"aéé", 4, "aé"}, // the second é would be cut in two
		{strings.Repeat("\x00", 9) + "x", 1, "x"},
		{"é", 1, ""},
	} {
		if got := fleet.Text(c.in, c.most); got != c.want {
			t.Errorf("Text(%q, %d) = %q, want %q", c.in, c.most, got, c.want)
		}
	}
}
