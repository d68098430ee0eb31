package cli

import (
	"context"
	"crypto/rand"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/bettercompute/compute/fleet"
)

// The bounds of an enrolment from a file.
const (
	sheetParallel    = 8
	sheetParallelMax = 64
	// sheetTries bounds how often one row is sent when the API is busy or its
	// answer is lost.
	sheetTries = 6
)

// bulkFlags are what metal enroll takes for many machines at once.
func bulkFlags(cmd *cobra.Command, fields []field) {
	cmd.Flags().String("from", "", "enroll the machines of a CSV file, - for standard input")
	cmd.Flags().String("results", "", "with --from: write what became of each row to a CSV file")
	cmd.Flags().Int("parallel", sheetParallel, "with --from: how many rows at a time")
	cmd.Long += "\n\nWith --from, one row of a CSV file is one machine. The first line names the columns, which are the flags\n" +
		"above without dashes in front: " + strings.Join(slices.Sorted(maps.Keys(sheetColumns(fields))), ", ") + ".\n" +
		"bmc-password holds the password itself, bmc-password-env the name of an environment variable, bmc-password-file\n" +
		"a file. What a row leaves empty is taken from the flags of the command. Several values stand in one cell with\n" +
		"semicolons between them; lines that begin with # are left out. Nothing is sent while a row is wrong. A machine\n" +
		"whose BMC is enrolled in the site is left as it is, so that the same file can be run again. With --watch each\n" +
		"row is followed to the end of its operation. The exit code is 3 when a row failed."
}

// The outcomes of a row.
const (
	rowEnrolled = "enrolled"
	rowWould    = "would-enroll"
	rowAlready  = "already-enrolled"
	rowFailed   = "failed"
	rowNotTried = "not-tried"
)

// rowResult is what became of a row.
type rowResult struct {
	Row       int    `json:"row"`
	Name      string `json:"name,omitempty"`
	Address   string `json:"bmcAddress"`
	Outcome   string `json:"outcome"`
	NodeID    string `json:"nodeId,omitempty"`
	Operation string `json:"operationId,omitempty"`
	Code      string `json:"code,omitempty"`
	Message   string `json:"message,omitempty"`
}

var resultHeader = []string{"row", "name", "bmc-address", "outcome", "nodeId", "operationId", "code", "message"}

func (r rowResult) cells() []string {
	return []string{strconv.Itoa(r.Row), r.Name, r.Address, r.Outcome, r.NodeID, r.Operation, r.Code, r.Message}
}

// job is one row on its way.
type job struct {
	line int
	in   map[string]any
}

// sheetRun enrolls the machines of one file.
type sheetRun struct {
	a             *app
	dryRun, watch bool
	// stop ends all rows: no further one can succeed.
	stop context.CancelCauseFunc

	mu      sync.Mutex
	results []rowResult
	file    *csv.Writer
	fileErr error
}

// enrollSheet enrolls the machines of the file of --from.
func (a *app) enrollSheet(cmd *cobra.Command, m fleet.Method, fields []field) error {
	fs := cmd.Flags()
	parallel, err := fs.GetInt("parallel")
	if err != nil || parallel < 1 || parallel > sheetParallelMax {
		return usagef("--parallel is from 1 to %d", sheetParallelMax)
	}
	jobs, err := a.jobs(cmd, m, fields, fs.Lookup("from").Value.String())
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(cmd.Context())
	defer stop(nil)
	run := &sheetRun{a: a, stop: stop, dryRun: fs.Lookup("dry-run").Value.String() == "true", watch: fs.Lookup("watch").Value.String() == "true"}
	if path := fs.Lookup("results").Value.String(); path != "" {
		f, err := os.Create(path)
		if err != nil {
			return fmt.Errorf("write the results: %w", err)
		}
		defer f.Close()
		run.file = csv.NewWriter(f)
		run.write(resultHeader)
	}
	run.all(ctx, jobs, parallel)
	return run.end(context.Cause(ctx))
}

// jobs are the rows of the file as inputs. All that is wrong is said at once.
func (a *app) jobs(cmd *cobra.Command, m fleet.Method, fields []field, path string) ([]job, error) {
	columns := sheetColumns(fields)
	rows, err := a.readSheet(path, columns)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, usagef("%s has no rows", path)
	}
	var out []job
	var wrong []string
	first := map[string]int{}
	for _, row := range rows {
		in, err := a.rowInput(cmd, m, fields, columns, row)
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("line %d: %v", row.line, err))
			continue
		}
		j := job{line: row.line, in: in}
		for _, key := range []string{"name " + j.text("name"), "BMC " + j.address().String() + j.address().System} {
			if before, twice := first[j.text("siteId")+key]; twice && key != "name " {
				wrong = append(wrong, fmt.Sprintf("line %d: %s is on line %d too", row.line, key, before))
			}
			first[j.text("siteId")+key] = row.line
		}
		out = append(out, j)
	}
	if len(wrong) > 0 {
		return nil, usagef("nothing was sent; %d rows are wrong:\n  %s", len(wrong), strings.Join(wrong, "\n  "))
	}
	return out, nil
}

func (j job) text(member string) string {
	s, _ := j.in[member].(string)
	return s
}

func (j job) address() fleet.BMCAddress {
	bmc, _ := j.in["bmc"].(map[string]any)
	s, _ := bmc["address"].(string)
	a, _ := fleet.ParseBMCAddress(s) // checked with the row
	return a
}

func (r *sheetRun) all(ctx context.Context, jobs []job, parallel int) {
	next := make(chan job)
	var running sync.WaitGroup
	for range min(parallel, len(jobs)) {
		running.Go(func() {
			for j := range next {
				r.done(r.row(ctx, j))
			}
		})
	}
	for _, j := range jobs {
		next <- j
	}
	close(next)
	running.Wait()
}

// row enrolls one machine.
func (r *sheetRun) row(ctx context.Context, j job) rowResult {
	res := rowResult{Row: j.line, Name: j.text("name"), Address: j.address().String() + j.address().System, Outcome: rowNotTried}
	if ctx.Err() != nil {
		return res
	}
	var out fleet.MetalOperationOut
	err := r.send(ctx, j, &out)
	var p *problem
	switch {
	case err == nil && r.dryRun:
		res.Outcome = rowWould
	case err == nil:
		res.Outcome, res.NodeID, res.Operation = rowEnrolled, out.Node.ID, out.Operation.ID
		if r.watch {
			r.follow(ctx, out, &res)
		}
	case errors.As(err, &p):
		res.Outcome, res.Code, res.Message = rowFailed, string(p.Code), plainly(p)
		if p.Code == fleet.CodeConflict {
			r.recognise(ctx, j, &res)
		}
		if p.Code == fleet.CodeUnauthenticated {
			r.stop(err)
		}
	default:
		res.Outcome, res.Message = rowFailed, err.Error()
	}
	return res
}

// plainly is a problem in one line.
func plainly(p *problem) string {
	s := p.Detail
	for _, f := range p.Fields {
		s += "; " + f.Field + ": " + f.Constraint
	}
	return s
}

// send sends a row, and again while the API is busy or its answer was lost: the
// key makes that the same call.
func (r *sheetRun) send(ctx context.Context, j job, out *fleet.MetalOperationOut) error {
	key := "enroll-" + rand.Text()
	for try := 1; ; try++ {
		err := r.a.send(ctx, "metal", "enroll", key, j.in, out)
		wait := time.Duration(try) * time.Second
		var p *problem
		switch {
		case errors.As(err, &p) && p.retryAfter > 0:
			wait = p.retryAfter
		case errors.As(err, &p) && p.Code == fleet.CodeUnavailable, errors.Is(err, errNotReached):
		default:
			return err
		}
		if try == sheetTries {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

// recognise makes of a conflict a machine that is enrolled already, when it is
// this BMC's.
func (r *sheetRun) recognise(ctx context.Context, j job, res *rowResult) {
	var page fleet.MetalPage
	err := r.a.call(ctx, "metal", "list", map[string]any{"tenantId": j.in["tenantId"], "siteId": j.in["siteId"], "bmcAddress": res.Address}, &page)
	if err != nil || len(page.Items) != 1 {
		return // the conflict itself says what is wrong
	}
	n := page.Items[0]
	res.Outcome, res.NodeID, res.Code, res.Message = rowAlready, n.ID, "", "it is "+string(n.ProvisionState)
	if n.Name != res.Name && res.Name != "" {
		res.Message += fmt.Sprintf(", named %q", n.Name)
	}
}

// follow waits for the end of a row's operation and of those that follow it.
func (r *sheetRun) follow(ctx context.Context, out fleet.MetalOperationOut, res *rowResult) {
	id := out.Operation.ID
	for {
		var got fleet.OperationOut
		err := r.a.call(ctx, "operations", "wait", map[string]any{"tenantId": out.Node.TenantID, "operationId": id, "timeoutSeconds": 30}, &got)
		op := got.Operation
		switch {
		case err != nil:
			res.Message = "no longer watched, it goes on: " + err.Error()
			return
		case op.State == fleet.OpSucceeded && op.Next != "":
			id = op.Next
		case op.State == fleet.OpSucceeded:
			return
		case op.EndedAt != nil || op.State == fleet.OpFailed:
			res.Outcome, res.Operation, res.Message = rowFailed, op.ID, string(op.Verb)+" "+string(op.State)
			if op.Error != nil {
				res.Code = op.Error.Code
				res.Message += " at step " + op.Error.Step + ": " + op.Error.Cause
			}
			return
		}
	}
}

// done keeps and tells what became of a row.
func (r *sheetRun) done(res rowResult) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results = append(r.results, res)
	r.write(res.cells())
	if r.a.output == "json" || res.Outcome == rowNotTried {
		return
	}
	fmt.Fprintf(r.a.out, "line %d  %-17s %s\n", res.Row, res.Outcome, strings.Join(strings.Fields(strings.Join([]string{res.Name, res.Address, res.NodeID, res.Code, res.Message}, " ")), " "))
}

// write writes a row of the results at once, so that it is there after a kill.
func (r *sheetRun) write(cells []string) {
	if r.file == nil {
		return
	}
	if err := r.file.Write(cells); err != nil && r.fileErr == nil {
		r.fileErr = err
	}
	r.file.Flush()
}

// errRows ends an enrolment in which a row did not come to its end.
var errRows = errors.New("not every machine was enrolled")

// end sums up.
func (r *sheetRun) end(cause error) error {
	count := map[string]int{}
	for _, res := range r.results {
		count[res.Outcome]++
	}
	if r.a.output == "json" {
		slices.SortFunc(r.results, func(a, b rowResult) int { return a.Row - b.Row })
		raw, err := json.Marshal(map[string]any{"items": r.results})
		if err != nil {
			return fmt.Errorf("print the results: %w", err)
		}
		if err := r.a.print(raw); err != nil {
			return err
		}
	} else {
		var parts []string
		for _, o := range []string{rowEnrolled, rowWould, rowAlready, rowFailed, rowNotTried} {
			if count[o] > 0 {
				parts = append(parts, fmt.Sprintf("%d %s", count[o], o))
			}
		}
		fmt.Fprintf(r.a.out, "%d rows: %s\n", len(r.results), strings.Join(parts, ", "))
	}
	if r.file != nil {
		if err := errors.Join(r.fileErr, r.file.Error()); err != nil {
			return fmt.Errorf("write the results: %w", err)
		}
	}
	if cause != nil {
		return cause
	}
	if count[rowFailed]+count[rowNotTried] > 0 {
		return errRows
	}
	return nil
}
