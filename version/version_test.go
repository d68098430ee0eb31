package version

import (
	"runtime/debug"
	"testing"
)

// A program says what it was built from, also where little is known.
func TestOf(t *testing.T) {
	t.Parallel()
	commit := []debug.BuildSetting{{Key: "vcs.revision", Value: "83e092b0123456789"}, {Key: "vcs.time", Value: "2026-01-02T03:04:05Z"}, {Key: "vcs.modified", Value: "true"}}
	for want, info := range map[string]*debug.BuildInfo{
		"v1.2.3, go1.26.8": {GoVersion: "go1.26.8", Main: debug.Module{Version: "v1.2.3"}},
		"devel, go1.26.8":  {GoVersion: "go1.26.8", Main: debug.Module{Version: "(devel)"}},
		"devel (commit 83e092b01234 of 2026-01-02T03:04:05Z, changed since), go1.26.8": {GoVersion: "go1.26.8", Settings: commit},
	} {
		if got := of(info); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if String() == "unknown" {
		t.Error("this test's program does not know what it was built from")
	}
}
