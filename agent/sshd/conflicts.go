package sshd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// owned are the keywords that a host may have set for itself. RevokedKeys is
// among them because the first value counts: ours would let in again what the
// host refuses.
var owned = []string{"trustedusercakeys", "authorizedprincipalsfile", "authorizedprincipalscommand", "authorizedprincipalscommanduser", "revokedkeys"}

// sshd's own bound of includes in includes, and the folder of relative ones.
const (
	includeDepth = 16
	includeBase  = "/etc/ssh"
)

// conflicts returns the lines of the host's own configuration, in blocks of Match
// too, that the drop-in would override.
func (c *Config) conflicts() ([]string, error) {
	f := finder{skip: filepath.Clean(c.dropIn())}
	if err := f.read(c.file(), 0); err != nil {
		return nil, err
	}
	return f.found, nil
}

type finder struct {
	// skip is our own file.
	skip  string
	found []string
}

func (f *finder) read(path string, depth int) error {
	if filepath.Clean(path) == f.skip || depth > includeDepth {
		return nil
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) && depth > 0 {
		return nil // sshd passes over it as well
	}
	if err != nil {
		return fmt.Errorf("read sshd's configuration: %w", err)
	}
	number := 0
	for line := range strings.Lines(string(b)) {
		number++
		keyword, args := directive(line)
		switch {
		case keyword == "include":
			for _, pattern := range args {
				if err := f.include(pattern, depth); err != nil {
					return err
				}
			}
		case slices.Contains(owned, keyword):
			if len(args) > 0 && strings.EqualFold(args[0], "none") {
				continue // sshd's own default
			}
			f.found = append(f.found, fmt.Sprintf("%s line %d: %s", path, number, strings.TrimSpace(line)))
		}
	}
	return nil
}

func (f *finder) include(pattern string, depth int) error {
	if !filepath.IsAbs(pattern) {
		pattern = filepath.Join(includeBase, pattern)
	}
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return fmt.Errorf("read sshd's configuration: Include %s: %w", pattern, err)
	}
	for _, p := range paths {
		if err := f.read(p, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// directive splits a line into its keyword, in lower case, and its arguments, as
// sshd does: after blanks, or one =, with quotes around arguments.
func directive(line string) (keyword string, args []string) {
	line = strings.TrimSpace(line)
	if line == "" || line[0] == '#' {
		return "", nil
	}
	end := strings.IndexAny(line, " \t=\"")
	if end < 0 {
		return strings.ToLower(line), nil
	}
	keyword = strings.ToLower(line[:end])
	rest := strings.TrimLeft(line[end:], " \t")
	rest = strings.TrimPrefix(rest, "=")
	for {
		rest = strings.TrimLeft(rest, " \t")
		if rest == "" || rest[0] == '#' {
			return keyword, args
		}
		if quoted, ok := strings.CutPrefix(rest, `"`); ok {
			arg, after, _ := strings.Cut(quoted, `"`)
			args, rest = append(args, arg), after
			continue
		}
		end := strings.IndexAny(rest, " \t")
		if end < 0 {
			return keyword, append(args, rest)
		}
		args, rest = append(args, rest[:end]), rest[end:]
	}
}
