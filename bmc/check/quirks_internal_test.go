package check

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var quirkConst = regexp.MustCompile(`\bquirk\w+\s*=\s*"([^"]+)"`)

// Every quirk that a driver can learn is explained, in the report and in
// docs/bmc.md.
func TestEveryQuirkIsExplained(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/bmc.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, driver := range []string{"redfish", "ipmi"} {
		files, err := filepath.Glob("../" + driver + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range quirkConst.FindAllStringSubmatch(string(source), -1) {
				quirk := m[1]
				if strings.HasSuffix(quirk, "-") {
					quirk += "3" // a family, named with a number
				}
				found++
				text := QuirkText(quirk)
				if row := "`" + strings.TrimSuffix(quirk, "3") + "`"; text == "" || !strings.Contains(string(doc), row) && !strings.Contains(string(doc), strings.Replace(row, "-`", "-N`", 1)) {
					t.Errorf("%s: quirk %s: text %q; docs/bmc.md has a row for each", file, quirk, text)
				}
			}
		}
	}
	if found < len(quirkTexts) {
		t.Errorf("%d quirks are in the drivers, %d are explained", found, len(quirkTexts))
	}
}
