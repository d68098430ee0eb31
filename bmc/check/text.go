package check

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Columns of the text; a terminal of 100 columns shows it without breaks.
const (
	gradeWidth = 9
	areaWidth  = 13
	textWidth  = 76
)

// WriteText writes the report for a person.
func (r Report) WriteText(w io.Writer) error {
	var b strings.Builder
	head := "BMC " + r.Address
	if r.Driver != "" {
		head += ", driver " + r.Driver
	}
	b.WriteString(head + "\n\n")
	for _, f := range r.Findings {
		row(&b, string(f.Grade), f.Area, f.Says)
		if f.Then != "" {
			row(&b, "", "", "then: "+f.Then)
		}
		if f.Try != "" {
			row(&b, "", "", "try: "+f.Try)
		}
	}
	if len(r.Unchecked) > 0 {
		b.WriteString("\nNot checked, since it takes a change:\n")
		for _, u := range r.Unchecked {
			b.WriteString("  - " + u + "\n")
		}
	}
	b.WriteString("\n" + r.verdict() + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func row(b *strings.Builder, grade, area, text string) {
	for i, line := range wrap(text) {
		if i > 0 {
			grade, area = "", ""
		}
		b.WriteString(strings.TrimRight(fmt.Sprintf("  %-*s%-*s%s", gradeWidth, grade, areaWidth, area, line), " ") + "\n")
	}
}

// wrap breaks a text between its words.
func wrap(text string) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case len(line)+1+len(word) > textWidth:
			lines = append(lines, line)
			line = "  " + word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
}

// verdict is the last word: how it stands, and what was sent for it.
func (r Report) verdict() string {
	count := map[Grade]int{}
	for _, f := range r.Findings {
		count[f.Grade]++
	}
	s := fmt.Sprintf("%d work, %d odd, %d missing, %d broken. ", count[Works], count[Odd], count[Missing], count[Broken])
	switch {
	case !r.Reached:
		s += "It could not be looked into."
	case !r.Usable:
		s += "It could be enrolled, but what is broken would stop it there."
	default:
		s += "It can be enrolled."
	}
	var sent []string
	for _, m := range slices.Sorted(maps.Keys(r.Requests)) {
		sent = append(sent, fmt.Sprintf("%d %s", r.Requests[m], m))
	}
	if len(sent) == 0 {
		return s + "\nNo request was sent."
	}
	return s + "\nNothing was changed; sent were " + strings.Join(sent, ", ") + "."
}
