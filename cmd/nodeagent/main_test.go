package main

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
)

// Who runs it without the right to is told as whom it runs.
func TestExplain(t *testing.T) {
	t.Parallel()
	denied := &fs.PathError{Op: "open", Path: "/var/lib/nodeagent", Err: fs.ErrPermission}
	if text := explain(denied); !strings.Contains(text, "it runs as root") {
		t.Errorf("without permission: %s", text)
	}
	if text := explain(errors.New("other")); text != "nodeagent: other" {
		t.Errorf("of another error: %s", text)
	}
}
