// Package compute_test checks what concerns the tree as a whole.
package compute_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/bettercompute/compute"

// mayImport says which folders of this module the packages of a folder may
// import beside their own subfolders. cmd is not in it: there all meets. A new
// folder has to be given its place here.
var mayImport = map[string][]string{
	"fleet":      {},
	"authz":      {"fleet"},
	"store":      {"fleet"},
	"api":        {"fleet", "authz", "store"},
	"bmc":        {"fleet"},
	"activities": {"fleet", "bmc"},
	"workflows":  {"fleet", "activities"},
	"gate":       {"fleet", "activities", "bmc", "store"},
	"worker":     {"fleet", "activities", "bmc", "gate", "store", "workflows"},
	"gateway":    {"fleet", "identity", "store"},
	"agent":      {"fleet", "identity"},
	"identity":   {"fleet"},
	"cli":        {"fleet", "bmc", "version"}, // bmc check looks at a BMC that no control plane knows yet
	"sim":        {"fleet", "agent"},
	"devidp":     {},
	"telemetry":  {},
	"localstack": {},
	"version":    {},
}

// helpers are packages for tests; what they import does not count as an import
// of the folder that they lie in.
var helpers = map[string][]string{
	"store/storetest":            {"fleet", "store", "localstack"},
	"agent/sshd/sshdtest":        {"agent"},
	"agent/tpm/tpmtest":          {},
	"identity/pkcs11/pkcs11test": {},
	"bmc/bmctest":                {"bmc", "fleet", "sim"},
	"bmc/ipmi/ipmisim":           {},
	"bmc/redfish/recorded":       {},
}

// mayNotReach says which other modules a folder's packages may not depend on,
// also not through others.
var mayNotReach = map[string][]string{
	"authz":      {"github.com/jackc/pgx", "go.temporal.io", "github.com/gin-gonic"},
	"store":      {"go.temporal.io", "github.com/gin-gonic", "github.com/stmcginnis/gofish", "github.com/bmc-toolbox"},
	"api":        {"go.temporal.io", "github.com/stmcginnis/gofish", "github.com/bmc-toolbox"},
	"gateway":    {"go.temporal.io", "github.com/stmcginnis/gofish", "github.com/bmc-toolbox"},
	"activities": {"github.com/jackc/pgx", "github.com/gin-gonic", "github.com/stmcginnis/gofish", "github.com/bmc-toolbox"},
	"workflows":  {"github.com/jackc/pgx", "github.com/gin-gonic", "github.com/stmcginnis/gofish", "github.com/bmc-toolbox"},
	"agent":      {"github.com/jackc/pgx", "go.temporal.io", "github.com/gin-gonic", "github.com/miekg/pkcs11"},
	"cli":        {"github.com/jackc/pgx", "go.temporal.io", "github.com/gin-gonic"},
	"bmc":        {"github.com/jackc/pgx", "go.temporal.io", "github.com/gin-gonic"},
	"sim":        {"github.com/jackc/pgx", "go.temporal.io"},
}

// goPackage is what `go list` tells of one package.
type goPackage struct {
	path          string // below the module
	imports, deps []string
}

func listPackages(t *testing.T) []goPackage {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f",
		`{{.ImportPath}}|{{join .Imports " "}}|{{join .Deps " "}}`, "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []goPackage
	for line := range strings.Lines(string(out)) {
		part := strings.Split(strings.TrimSpace(line), "|")
		all = append(all, goPackage{path: strings.TrimPrefix(strings.TrimPrefix(part[0], module), "/"),
			imports: strings.Fields(part[1]), deps: strings.Fields(part[2])})
	}
	return all
}

func folder(path string) string {
	top, _, _ := strings.Cut(path, "/")
	return top
}

// Packages depend on each other in one direction only.
func TestImportDirection(t *testing.T) {
	t.Parallel()
	for _, p := range listPackages(t) {
		top := folder(p.path)
		if top == "" || top == "cmd" {
			continue
		}
		allowed, known := mayImport[top]
		if !known {
			t.Errorf("folder %s has no rule: say in mayImport what it may import", top)
			continue
		}
		if own, ok := helpers[p.path]; ok {
			allowed = own
		}
		for _, i := range p.imports {
			target, own := strings.CutPrefix(i, module+"/")
			if own && folder(target) != top && !slices.Contains(allowed, folder(target)) {
				t.Errorf("%s imports %s; it may import only %v", p.path, target, allowed)
			}
		}
	}
}

// What a folder must know nothing of does not come in through others either.
func TestForeignDependencies(t *testing.T) {
	t.Parallel()
	for _, p := range listPackages(t) {
		if _, helper := helpers[p.path]; helper || p.path == "bmc/redfish" || p.path == "bmc/ipmi" {
			continue
		}
		for _, d := range p.deps {
			for _, foreign := range mayNotReach[folder(p.path)] {
				if strings.HasPrefix(d, foreign) {
					t.Errorf("%s depends on %s", p.path, d)
				}
			}
		}
	}
}

// The vocabulary needs nothing but the standard library.
func TestVocabularyStandsAlone(t *testing.T) {
	t.Parallel()
	for _, p := range listPackages(t) {
		if folder(p.path) != "fleet" {
			continue
		}
		for _, d := range p.deps {
			if first, _, _ := strings.Cut(d, "/"); strings.Contains(first, ".") {
				t.Errorf("%s depends on %s, which is not of the standard library", p.path, d)
			}
		}
	}
}
