// Command lint is the set of checks that go vet runs over the project through
// -vettool, beside its own. Each is here for a kind of fault that costs a
// control plane dearly: an error dropped or compared too narrowly, a case
// forgotten when a word was added, a response left open, workflow code that
// does not replay.
package main

import (
	"strings"

	"github.com/gostaticanalysis/nilerr"
	"github.com/kisielk/errcheck/errcheck"
	"github.com/nishanths/exhaustive"
	"github.com/polyfloyd/go-errorlint/errorlint"
	"github.com/timakin/bodyclose/passes/bodyclose"
	"go.temporal.io/sdk/contrib/tools/workflowcheck/workflow"
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/unitchecker"
)

// unchecked are functions whose error may be left: closing what was read, and
// printing to a person.
var unchecked = []string{
	"fmt.Fprint",
	"fmt.Fprintf",
	"fmt.Fprintln",
	"io.WriteString",
	"(io.Closer).Close",
	"(net.Conn).Close",
	"(net.Listener).Close",
	"(net.PacketConn).Close",
	"(*net.UDPConn).Close",
	"(*net/http.Server).Close",
	"(*os.File).Close",
	"(*database/sql.DB).Close",
	"(*github.com/jackc/pgx/v5.Conn).Close",
	"(*github.com/bettercompute/compute/gateway.bootFile).Close",
}

func main() {
	// A default case says what happens to all others.
	must(exhaustive.Analyzer.Flags.Set(exhaustive.DefaultSignifiesExhaustiveFlag, "true"))
	errcheck.DefaultExcludedSymbols = append(errcheck.DefaultExcludedSymbols, unchecked...)
	unitchecker.Main(
		outsideTests(bodyclose.Analyzer), // tests read whole bodies in helpers, which it cannot follow
		errcheck.Analyzer,
		errorlint.NewAnalyzer(),
		exhaustive.Analyzer,
		nilerr.Analyzer,
		workflow.NewChecker(workflow.Config{}).NewAnalyzer(),
	)
}

func outsideTests(a *analysis.Analyzer) *analysis.Analyzer {
	b := *a
	b.Run = func(p *analysis.Pass) (any, error) {
		q := *p
		q.Report = func(d analysis.Diagnostic) {
			if !strings.HasSuffix(p.Fset.Position(d.Pos).Filename, "_test.go") {
				p.Report(d)
			}
		}
		return a.Run(&q)
	}
	return &b
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
