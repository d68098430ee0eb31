package cli

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bettercompute/compute/fleet"
)

// sheetRow is one line of a CSV file with a header.
type sheetRow struct {
	// line is the line in the file, which is how the row is named.
	line  int
	cells map[string]string
}

// passwordColumns say where a row's password is: in the cell, in an environment
// variable, or in a file.
var passwordColumns = []string{"bmc-password", "bmc-password-env", "bmc-password-file"}

// sheetColumns are the columns of an enrolment's file: the flags of metal enroll
// by their names, and the passwords.
func sheetColumns(fields []field) map[string]*field {
	out := map[string]*field{"bmc-password": nil, "bmc-password-env": nil}
	for _, f := range fields {
		name := f.flag
		if f.secret {
			name += "-file"
		}
		if f.flag != "dry-run" {
			out[name] = &f
		}
	}
	return out
}

// readSheet reads a CSV file; its header may hold only known columns, each once.
func (a *app) readSheet(path string, columns map[string]*field) ([]sheetRow, error) {
	var raw []byte
	var err error
	if path == "-" {
		raw, err = io.ReadAll(a.in)
	} else {
		raw, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("read the file of machines: %w", err)
	}
	r := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(raw, []byte("\xef\xbb\xbf"))))
	r.Comment = '#'
	header, err := r.Read()
	if errors.Is(err, io.EOF) {
		return nil, usagef("%s is empty: its first line names the columns, which are %s", path, strings.Join(slices.Sorted(maps.Keys(columns)), ", "))
	}
	if err != nil {
		return nil, usagef("%s: the header: %w", path, err)
	}
	seen := map[string]bool{}
	for i, h := range header {
		header[i] = strings.TrimSpace(h)
		if _, known := columns[header[i]]; !known {
			return nil, usagef("%s: no column is called %q; columns are %s", path, header[i], strings.Join(slices.Sorted(maps.Keys(columns)), ", "))
		}
		if seen[header[i]] {
			return nil, usagef("%s: column %s is there twice", path, header[i])
		}
		seen[header[i]] = true
	}
	var out []sheetRow
	for {
		cells, err := r.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, usagef("%s: %w", path, err)
		}
		row := sheetRow{cells: map[string]string{}}
		row.line, _ = r.FieldPos(0)
		for i, c := range cells {
			if header[i] != "bmc-password" { // whose spaces may be its own
				c = strings.TrimSpace(c)
			}
			if c != "" {
				row.cells[header[i]] = c
			}
		}
		if len(row.cells) > 0 {
			out = append(out, row)
		}
	}
}

// rowInput is the input that a row and, where its cells are empty, the command's
// own flags give.
func (a *app) rowInput(cmd *cobra.Command, m fleet.Method, fields []field, columns map[string]*field, row sheetRow) (map[string]any, error) {
	in, err := a.gather(cmd, m, fields)
	if err != nil {
		return nil, err
	}
	if err := a.rowPassword(in, row); err != nil {
		return nil, err
	}
	for name, cell := range row.cells {
		f := columns[name]
		if slices.Contains(passwordColumns, name) {
			continue
		}
		v, err := f.parse(cell, a)
		if err != nil {
			return nil, fmt.Errorf("column %s: %w", name, err)
		}
		put(in, f.path, v)
	}
	if err := a.resolveNames(cmd.Context(), in); err != nil {
		return nil, err
	}
	return in, checkRow(in)
}

// parse reads a cell as the flag of its field would. Several values stand in one
// cell with semicolons between them.
func (f field) parse(cell string, a *app) (any, error) {
	var one cobra.Command
	f.addFlag(&one)
	values := []string{cell}
	if f.many() {
		values = strings.Split(cell, ";")
	}
	for _, v := range values {
		if err := one.Flags().Set(f.flag, strings.TrimSpace(v)); err != nil {
			return nil, fmt.Errorf("%q cannot be read: %w", cell, err)
		}
	}
	v, _, err := f.value(&one, a)
	return v, err
}

func (a *app) rowPassword(in map[string]any, row sheetRow) error {
	var from []string
	for _, c := range passwordColumns {
		if row.cells[c] != "" {
			from = append(from, c)
		}
	}
	if len(from) > 1 {
		return fmt.Errorf("the password is given twice, in %s", strings.Join(from, " and "))
	}
	if len(from) == 0 {
		return nil
	}
	cell := row.cells[from[0]]
	switch from[0] {
	case "bmc-password-env":
		name := cell
		if cell = os.Getenv(name); cell == "" {
			return fmt.Errorf("the environment variable %s is not set", name)
		}
	case "bmc-password-file":
		if cell == "-" {
			return errors.New("a row's password is not read from standard input")
		}
		var err error
		if cell, err = a.readSecret(cell); err != nil {
			return err
		}
	}
	put(in, []string{"bmc", "password"}, cell)
	return nil
}

// checkRow finds what is wrong with a row before anything is sent; the rest is
// the API's to judge.
func checkRow(in map[string]any) error {
	bmc, _ := in["bmc"].(map[string]any)
	var missing []string
	for _, m := range []string{"address", "username", "password"} {
		if s, _ := bmc[m].(string); s == "" {
			missing = append(missing, "bmc-"+m)
		}
	}
	if s, _ := in["siteId"].(string); s == "" {
		missing = append(missing, "site-id (or COMPUTE_SITE)")
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s is missing", strings.Join(missing, ", "))
	}
	address, _ := bmc["address"].(string)
	if _, err := fleet.ParseBMCAddress(address); err != nil {
		return fmt.Errorf("column bmc-address: %q %w", address, err)
	}
	if name, given := in["name"].(string); given && !fleet.MatchPattern("dnsLabel", name) {
		return fmt.Errorf("column name: %q is no DNS label", name)
	}
	if mac, given := in["bootMacAddress"].(string); given && !fleet.MatchPattern("mac", mac) {
		return fmt.Errorf("column boot-mac-address: %q is no MAC address", mac)
	}
	return nil
}
