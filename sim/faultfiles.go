package sim

import (
	"embed"
	"fmt"
	"path"
	"slices"
	"strings"
)

//go:embed faults/*.yaml
var faultFiles embed.FS

// FaultNames lists the fault files that are built in.
func FaultNames() []string {
	entries, err := faultFiles.ReadDir("faults")
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
	}
	slices.Sort(names)
	return names
}

// NamedFaults is one of the fault files that are built in.
func NamedFaults(name string) (*FaultFile, error) {
	b, err := faultFiles.ReadFile(path.Join("faults", name+".yaml"))
	if err != nil {
		return nil, fmt.Errorf("fault file %q: there is no such file built in", name)
	}
	return ParseFaults(b)
}
