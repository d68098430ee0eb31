package sshd

import (
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
// too, that the drop-in would override, or that would override it.
func (c *Config) conflicts() ([]string, error) {
	f := finder{skip: c.dropIn()}
	if err := f.read(c.file(), 0, false); err != nil {
		return nil, err
	}
	return f.found, nil
}

type finder struct {
	// skip is our own file.
	skip  string
	found []string
}

// read looks through a file. in says that it is included by a block of Match; a
// block that begins in a file ends with it.
func (f *finder) read(path string, depth int, in bool) error {
	if sameFile(path, f.skip) || depth > includeDepth {
		return nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read sshd's configuration: %w", err)
	}
	number := 0
	for line := range strings.Lines(string(b)) {
		number++
		keyword, args := directive(line)
		switch {
		case keyword == "match":
			in = true
		case keyword == "include":
			for _, pattern := range args {
				if err := f.include(pattern, depth, in); err != nil {
					return err
				}
			}
		case slices.Contains(owned, keyword):
			// sshd's own default; in a block of Match it takes ours away.
			if len(args) > 0 && strings.EqualFold(args[0], "none") && !in {
				continue
			}
			f.found = append(f.found, fmt.Sprintf("%s line %d: %s", path, number, strings.TrimSpace(line)))
		}
	}
	return nil
}

// sameFile says whether two paths lead to one file, whatever links are on them.
func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

func (f *finder) include(pattern string, depth int, in bool) error {
	if !filepath.IsAbs(pattern) {
		pattern = filepath.Join(includeBase, pattern)
	}
	paths, err := filepath.Glob(strings.ReplaceAll(pattern, "[!", "[^"))
	if err != nil {
		return fmt.Errorf("read sshd's configuration: Include %s: %w", pattern, err)
	}
	for _, p := range paths {
		if strings.HasPrefix(filepath.Base(p), ".") && !strings.HasPrefix(filepath.Base(pattern), ".") {
			continue // no wildcard of sshd's stands for the dot
		}
		if err := f.read(p, depth+1, in); err != nil {
			return err
		}
	}
	return nil
}

// directive splits a line into its keyword, in lower case, and its arguments, as
// sshd does: the keyword may be quoted, and = may stand between the two.
func directive(line string) (keyword string, args []string) {
	line = strings.TrimLeft(strings.TrimRight(line, " \t\r\n\f"), " \t\r=")
	rest := ""
	if quoted, ok := strings.CutPrefix(line, `"`); ok {
		keyword, rest, _ = strings.Cut(quoted, `"`)
	} else if end := strings.IndexAny(line, " \t\r=\""); end >= 0 {
		keyword, rest = line[:end], line[end:]
	} else {
		keyword = line
	}
	rest = strings.TrimPrefix(strings.TrimLeft(rest, " \t\r"), "=")
	return strings.ToLower(keyword), arguments(rest)
}

// arguments splits what follows a keyword: at blanks that are neither quoted nor
// escaped, up to a comment.
func arguments(s string) (args []string) {
	for {
		s = strings.TrimLeft(s, " \t")
		if s == "" || s[0] == '#' {
			return args
		}
		var arg strings.Builder
		var quote byte
		i := 0
		for ; i < len(s) && (quote != 0 || s[i] != ' ' && s[i] != '\t'); i++ {
			switch c := s[i]; {
			case c == '\\' && i+1 < len(s) && (strings.IndexByte(`'"\`, s[i+1]) >= 0 || quote == 0 && s[i+1] == ' '):
				i++
				arg.WriteByte(s[i])
			case quote == 0 && (c == '"' || c == '\''):
				quote = c
			case quote != 0 && c == quote:
				quote = 0
			default:
				arg.WriteByte(c)
			}
		}
		args, s = append(args, arg.String()), s[i:]
	}
}
