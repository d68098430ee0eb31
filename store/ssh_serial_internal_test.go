package store

import (
	"testing"
	"time"
)

// A serial says when its certificate ends, so that one range of serials is what
// has ended by a time, and no two are the same.
func TestSSHSerials(t *testing.T) {
	t.Parallel()
	end := time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)
	seen := map[uint64]bool{}
	for _, off := range []time.Duration{0, -time.Second, time.Second, 24 * time.Hour, -24 * time.Hour} {
		for range 100 {
			serial, err := newSSHSerial(end.Add(off))
			if err != nil {
				t.Fatal(err)
			}
			if ended := serial <= SSHExpiredThrough(end); ended != (off <= 0) {
				t.Errorf("the serial of a certificate that ends %s from now counts as ended: %v", off, ended)
			}
			if seen[serial] || serial == 0 {
				t.Errorf("serial %d again, or none", serial)
			}
			seen[serial] = true
		}
	}
}
