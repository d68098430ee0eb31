// Package version tells which source a program was built from.
package version

import (
	"fmt"
	"runtime/debug"
)

// String names the source and the compiler of the running program: the module's
// version where it has one, else the commit as git names it.
func String() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return of(info)
}

func of(info *debug.BuildInfo) string {
	set := map[string]string{}
	for _, s := range info.Settings {
		set[s.Key] = s.Value
	}
	name, commit := info.Main.Version, set["vcs.revision"]
	if name == "" || name == "(devel)" {
		name = "devel"
	}
	if len(commit) > 12 {
		commit = commit[:12]
	}
	if commit != "" {
		name += fmt.Sprintf(" (commit %s of %s", commit, set["vcs.time"])
		if set["vcs.modified"] == "true" {
			name += ", changed since"
		}
		name += ")"
	}
	return name + ", " + info.GoVersion
}
