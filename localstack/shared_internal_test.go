package localstack

import (
	"errors"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

// A test process counts as a user of the shared server until it ends, also
// after its garbage was collected.
func TestSharedServerIsHeld(t *testing.T) {
	t.Parallel()
	if _, err := SharedPostgres(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		runtime.GC()
	}
	base, err := sharedDir("postgres")
	if err != nil {
		t.Fatal(err)
	}
	f, err := lock(filepath.Join(base, "users"), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		f.Close()
	}
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("the reaper's lock: %v, want that it would block", err)
	}
}
